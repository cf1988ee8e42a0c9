// gunzip.c - .gz into plain files, with zlib's inflate in memory of our own. Host only.
#define _GNU_SOURCE
#include "io/gunzip.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "io/data_cache.h"
#include "io/data_file.h"
#include "io/idx.h"

typedef unsigned long long ull;

// inflate's state (7 KiB) and window (32 KiB) come from here; they live as long as one call.
enum { POOL_BYTES = 48 << 10, IN_BYTES = 32 << 10, OUT_BYTES = 64 << 10 };

typedef struct pool {
    _Alignas(max_align_t) unsigned char bytes[POOL_BYTES];
    size_t used;
} pool;

static void *pool_take(void *context, unsigned items, unsigned size) {
    pool *p = context;
    uint64_t bytes = lk_round_up((uint64_t)items * size, _Alignof(max_align_t));
    if (bytes > POOL_BYTES - p->used) return NULL;
    void *at = p->bytes + p->used;
    p->used += bytes;
    return at;
}

static void pool_give(void *context, void *at) {
    (void)context;
    (void)at;
}

typedef struct unpacking {
    const char *path, *out_path;
    uint64_t taken;         // bytes of the .gz read so far
    uint64_t packed_bytes;  // of the .gz, as its size was
    uint64_t given;         // bytes that came out and are written
    uint64_t most;          // that may come out; LK_GUNZIP_IDX: the header has still to say it
    bool exact;             // a header said `most`: no fewer bytes may come out
    int in, out;
    crypto_hash_sha256_state hash;
    lk_error *error;
    pool pool;
    unsigned char packed[IN_BYTES], buffer[OUT_BYTES];
} unpacking;

static lk_status bad_gzip(unpacking *u, const z_stream *z, const char *found) {
    return lk_fail(u->error, LK_BAD_DATA,
                   "%s: byte %llu: found %s, wanted a whole gzip file; fetch it again", u->path,
                   (ull)(u->taken - z->avail_in), found);
}

// The next bytes of the .gz where all are used up; none at its end. Read, not mapped: whoever cuts
// the file short meanwhile makes it one that ends too early, and no signal.
static lk_status read_in(unpacking *u, z_stream *z) {
    const lk_file_ops *ops = &lk_file_ops_posix;
    if (z->avail_in > 0) return LK_OK;
    int64_t bytes;
    do {
        bytes = ops->read(ops->context, u->in, u->packed, IN_BYTES, u->taken);
    } while (bytes == -EINTR);
    if (bytes < 0) return lk_file_fail(u->error, LK_IO_ERROR, u->path, "read", bytes);
    u->taken += (uint64_t)bytes;
    z->next_in = u->packed;
    z->avail_in = (uInt)bytes;
    return LK_OK;
}

// The header that begins the unpacked bytes says how many there are. Deflate makes at most 1,032
// bytes of one.
static lk_status take_limit(unpacking *u, size_t bytes) {
    enum { EXPANSION = 1032 };
    lk_idx idx;
    char name[LK_PATH_BYTES + 16];
    lk_format(name, sizeof name, "%s, unpacked", u->path);
    LK_CHECK(lk_idx_parse_header(u->buffer, bytes, name, &idx, u->error));
    u->most = idx.header_bytes + idx.data_bytes;
    u->exact = true;
    if (u->most / EXPANSION <= u->packed_bytes) return LK_OK;
    return lk_fail(
        u->error, LK_BAD_DATA,
        "%s: its header says %llu bytes (%u x %u x %u x %u), more than a .gz of %llu can "
        "hold; fetch it again",
        name, (ull)u->most, idx.count, idx.height, idx.width, idx.channels, (ull)u->packed_bytes);
}

// Writes what the buffer holds, unless that is more than there may be.
static lk_status write_out(unpacking *u, z_stream *z) {
    size_t bytes = OUT_BYTES - z->avail_out;
    if (u->most == LK_GUNZIP_IDX) LK_CHECK(take_limit(u, bytes));
    if (bytes > u->most - u->given)
        return lk_fail(u->error, LK_BAD_DATA,
                       "%s: unpacked, byte %llu: too long: found more bytes than the %llu that %s; "
                       "fetch it again",
                       u->path, (ull)u->most, (ull)u->most,
                       u->exact ? "its header says" : "are wanted");
    u->given += bytes;
    z->next_out = u->buffer;
    z->avail_out = OUT_BYTES;
    crypto_hash_sha256_update(&u->hash, u->buffer, bytes);
    return lk_file_write_all(&lk_file_ops_posix, u->out, u->out_path, u->buffer, bytes, u->error);
}

static lk_status end_out(unpacking *u, z_stream *z) {
    LK_CHECK(write_out(u, z));
    if (!u->exact || u->given == u->most) return LK_OK;
    return lk_fail(u->error, LK_BAD_DATA,
                   "%s: unpacked, byte %llu: truncated: found %llu bytes, wanted the %llu that its "
                   "header says; fetch it again",
                   u->path, (ull)u->given, (ull)u->given, (ull)u->most);
}

// All members of the file, one after the other.
static lk_status unpack_members(unpacking *u, z_stream *z) {
    z->next_out = u->buffer;
    z->avail_out = OUT_BYTES;
    for (;;) {
        LK_CHECK(read_in(u, z));
        int result = inflate(z, Z_NO_FLUSH);
        if (result == Z_MEM_ERROR)
            return lk_fail(u->error, LK_INTERNAL, "%s: zlib wanted more memory than its %d bytes",
                           u->path, POOL_BYTES);
        if (result == Z_BUF_ERROR) return bad_gzip(u, z, "its end");
        if (result != Z_OK && result != Z_STREAM_END)
            return bad_gzip(u, z, z->msg ? z->msg : "damaged data");
        if (z->avail_out == 0) LK_CHECK(write_out(u, z));
        if (result != Z_STREAM_END) continue;
        LK_CHECK(read_in(u, z));
        if (z->avail_in == 0) return end_out(u, z);
        if (z->next_in[0] != 0x1f) return bad_gzip(u, z, "bytes after the last member");
        inflateReset(z);
    }
}

static lk_status unpack_open(unpacking *u, uint8_t sha256[LK_SHA256_BYTES]) {
    z_stream z = {.zalloc = pool_take, .zfree = pool_give, .opaque = &u->pool};
    u->pool.used = 0;
    u->taken = u->given = 0;
    u->exact = false;
    LK_CHECK(read_in(u, &z));
    if (z.avail_in < 2 || u->packed[0] != 0x1f || u->packed[1] != 0x8b)
        return bad_gzip(u, &z, "no gzip header (1f 8b)");
    if (inflateInit2(&z, 15 + 16) != Z_OK)  // window of 32 KiB; gzip header and nothing else
        return lk_fail(u->error, LK_INTERNAL, "%s: zlib did not start", u->path);
    crypto_hash_sha256_init(&u->hash);
    LK_CHECK(unpack_members(u, &z));
    crypto_hash_sha256_final(&u->hash, sha256);
    return LK_OK;
}

lk_status lk_gunzip(const char *path, int out, const char *out_path, uint64_t most,
                    uint8_t sha256[LK_SHA256_BYTES], lk_error *error) {
    unpacking u;
    u.path = path, u.out_path = out_path, u.out = out, u.error = error, u.most = most;
    struct stat info;
    LK_CHECK(lk_data_open(path, &u.in, &info, error));
    u.packed_bytes = (uint64_t)info.st_size;
    lk_status status = unpack_open(&u, sha256);
    close(u.in);
    return status;
}

// --- the cache -----------------------------------------------------------------------------------

// Unpacks into a fresh file and gives it its name only when it is whole and on the disk. Until then
// its lock is held, which says that it is no leftover.
lk_status lk_gunzip_file(const char *path, const char *out_path, uint64_t most,
                         uint8_t sha256[LK_SHA256_BYTES], lk_error *error) {
    const lk_file_ops *ops = &lk_file_ops_posix;
    char temporary[LK_PATH_BYTES];
    int out;
    LK_CHECK(lk_cache_create(out_path, temporary, &out, error));
    if (lk_gunzip(path, out, temporary, most, sha256, error) == LK_OK) {
        int synced = ops->sync(ops->context, out);
        if (synced < 0)
            lk_file_fail(error, LK_IO_ERROR, temporary, "sync", synced);
        else
            lk_file_publish(ops, temporary, out_path, error);
    }
    if (error->status != LK_OK) (void)ops->remove(ops->context, temporary);
    int closed = ops->close(ops->context, out);
    if (closed < 0 && error->status == LK_OK)
        lk_file_fail(error, LK_IO_ERROR, out_path, "close", closed);
    return error->status;
}

static lk_status unpack_nameless(const char *path, int *fd, lk_error *error) {
    const char *folder = getenv("TMPDIR");
    if (!folder || !*folder) folder = "/tmp";
    char name[LK_PATH_BYTES];
    uint8_t sha256[LK_SHA256_BYTES];
    LK_CHECK(lk_path_join(name, folder, "/", "lockstep-XXXXXX", error));
    *fd = mkostemp(name, O_CLOEXEC);
    if (*fd < 0) return lk_file_fail(error, LK_IO_ERROR, name, "create", -errno);
    unlink(name);
    lk_status status = lk_gunzip(path, *fd, name, LK_GUNZIP_IDX, sha256, error);
    if (status != LK_OK) close(*fd);
    return status;
}

// XXH3 of an open file; false where it cannot be mapped.
static bool hash_open_file(int fd, uint64_t bytes, uint64_t *fast) {
    const uint8_t *map;
    lk_error ignored = {0};
    if (lk_data_map(fd, bytes, false, "", &map, &ignored) != LK_OK) return false;
    *fast = lk_data_fast_hash(0, map, bytes);
    lk_data_unmap(map, bytes);
    return true;
}

// Opens what was unpacked earlier, if it is what the record says.
static bool open_unpacked(const char *name, const char *record_name, int *fd) {
    struct stat info;
    lk_error ignored = {0};
    lk_data_record record;
    uint64_t fast;
    if (!lk_data_record_read(record_name, &record)) return false;
    if (lk_data_open(name, fd, &info, &ignored) != LK_OK) return false;
    uint64_t stamp = lk_data_stamp(0, &info);
    if (record.stamp == stamp) return true;
    if (hash_open_file(*fd, (uint64_t)info.st_size, &fast) && fast == record.piece[0]) {
        record.stamp = stamp;
        if (!lk_data_state_of(&info).young) lk_data_record_write(record_name, &record);
        return true;
    }
    close(*fd);
    return false;
}

static void remember(int fd, const char *record_name, lk_data_record *record) {
    struct stat info;
    const bool known = fstat(fd, &info) == 0;
    if (!known || !hash_open_file(fd, (uint64_t)info.st_size, &record->piece[0])) return;
    record->stamp = lk_data_state_of(&info).young ? 0 : lk_data_stamp(0, &info);
    lk_data_record_write(record_name, record);
}

// Unpacks `path` into the cache as `unpacked`, and opens it.
static lk_status unpack_to_cache(const char *path, const char *unpacked, const char *record_name,
                                 int *fd, lk_error *error) {
    lk_data_record record = {0};
    struct stat info;
    LK_CHECK(lk_gunzip_file(path, unpacked, LK_GUNZIP_IDX, record.sha256, error));
    LK_CHECK(lk_data_open(unpacked, fd, &info, error));
    remember(*fd, record_name, &record);
    return LK_OK;
}

lk_status lk_gunzip_cached(const char *path, const char *cache, bool trust, int *fd,
                           char unpacked[LK_PATH_BYTES], lk_error *error) {
    char record_name[LK_PATH_BYTES], name[48];
    struct stat info;
    LK_CHECK(lk_data_open(path, fd, &info, error));
    close(*fd);
    if (cache) {
        lk_error failed = {0};
        lk_format(name, sizeof name, "%016llx-%016llx.idx", (ull)lk_data_name(0, path),
                  (ull)lk_data_stamp(0, &info));
        LK_CHECK(lk_path_join(unpacked, cache, "/", name, error));
        LK_CHECK(lk_path_join(record_name, unpacked, "", ".record", error));
        if (trust && open_unpacked(unpacked, record_name, fd)) return LK_OK;
        lk_cache_tidy(cache, unpacked);
        lk_status status = unpack_to_cache(path, unpacked, record_name, fd, &failed);
        if (status == LK_OK) return LK_OK;
        if (status == LK_BAD_DATA) return lk_fail(error, status, "%s", failed.text);
        // A cache that is full or not ours to write costs time, never a run.
    }
    LK_CHECK(lk_path_join(unpacked, path, "", "", error));
    return unpack_nameless(path, fd, error);
}
