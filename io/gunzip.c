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

#include "io/data_file.h"

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
    uint64_t taken;  // bytes of the .gz read so far
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

static lk_status write_out(unpacking *u, const z_stream *z) {
    size_t bytes = OUT_BYTES - z->avail_out;
    crypto_hash_sha256_update(&u->hash, u->buffer, bytes);
    return lk_file_write_all(&lk_file_ops_posix, u->out, u->out_path, u->buffer, bytes, u->error);
}

// All members of the file, one after the other.
static lk_status unpack_members(unpacking *u, z_stream *z) {
    for (;;) {
        LK_CHECK(read_in(u, z));
        z->next_out = u->buffer;
        z->avail_out = OUT_BYTES;
        int result = inflate(z, Z_NO_FLUSH);
        if (result == Z_MEM_ERROR)
            return lk_fail(u->error, LK_INTERNAL, "%s: zlib wanted more memory than its %d bytes",
                           u->path, POOL_BYTES);
        if (result == Z_BUF_ERROR) return bad_gzip(u, z, "its end");
        if (result != Z_OK && result != Z_STREAM_END)
            return bad_gzip(u, z, z->msg ? z->msg : "damaged data");
        LK_CHECK(write_out(u, z));
        if (result != Z_STREAM_END) continue;
        LK_CHECK(read_in(u, z));
        if (z->avail_in == 0) return LK_OK;
        if (z->next_in[0] != 0x1f) return bad_gzip(u, z, "bytes after the last member");
        inflateReset(z);
    }
}

static lk_status unpack_open(unpacking *u, uint8_t sha256[LK_SHA256_BYTES]) {
    z_stream z = {.zalloc = pool_take, .zfree = pool_give, .opaque = &u->pool};
    u->pool.used = 0;
    u->taken = 0;
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

lk_status lk_gunzip(const char *path, int out, const char *out_path,
                    uint8_t sha256[LK_SHA256_BYTES], lk_error *error) {
    unpacking u;
    u.path = path, u.out_path = out_path, u.out = out, u.error = error;
    struct stat info;
    LK_CHECK(lk_data_open(path, &u.in, &info, error));
    lk_status status = unpack_open(&u, sha256);
    close(u.in);
    return status;
}

// --- the cache -----------------------------------------------------------------------------------

// Unpacks into a fresh file and gives it its name only when it is whole and on the disk.
static lk_status unpack_into(const char *path, int out, const char *temporary, const char *name,
                             uint8_t sha256[LK_SHA256_BYTES], lk_error *error) {
    lk_status unpacked = lk_gunzip(path, out, temporary, sha256, error);
    lk_status synced = lk_file_sync_close(&lk_file_ops_posix, out, temporary, error);
    if (unpacked == LK_OK && synced == LK_OK &&
        lk_file_publish(&lk_file_ops_posix, temporary, name, error) == LK_OK)
        return LK_OK;
    unlink(temporary);
    return error->status;
}

// Workers that start together must not write into one file. Random numbers, since on hosts or in
// containers that share a cache they may well have one process id.
static lk_status temporary_name(char out[LK_PATH_BYTES], const char *name, lk_error *error) {
    char suffix[32];
    lk_format(suffix, sizeof suffix, ".tmp.%08x%08x", (unsigned)randombytes_random(),
              (unsigned)randombytes_random());
    return lk_path_join(out, name, "", suffix, error);
}

lk_status lk_gunzip_file(const char *path, const char *out_path, uint8_t sha256[LK_SHA256_BYTES],
                         lk_error *error) {
    char temporary[LK_PATH_BYTES];
    int out;
    LK_CHECK(temporary_name(temporary, out_path, error));
    LK_CHECK(lk_file_create(&lk_file_ops_posix, temporary, &out, error));
    return unpack_into(path, out, temporary, out_path, sha256, error);
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
    lk_status status = lk_gunzip(path, *fd, name, sha256, error);
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
    if (hash_open_file(*fd, (uint64_t)info.st_size, &fast) && fast == record.fast) {
        record.stamp = stamp;
        lk_data_record_write(record_name, &record);
        return true;
    }
    close(*fd);
    return false;
}

static void remember(int fd, const char *record_name, lk_data_record *record) {
    struct stat info;
    if (fstat(fd, &info) != 0 || !hash_open_file(fd, (uint64_t)info.st_size, &record->fast)) return;
    record->stamp = lk_data_stamp(0, &info);
    lk_data_record_write(record_name, record);
}

// Unpacks `path` into the cache as `unpacked`, and opens it.
static lk_status unpack_to_cache(const char *path, const char *unpacked, const char *record_name,
                                 int *fd, lk_error *error) {
    char temporary[LK_PATH_BYTES];
    lk_data_record record = {0};
    struct stat info;
    int out;
    LK_CHECK(temporary_name(temporary, unpacked, error));
    LK_CHECK(lk_file_create(&lk_file_ops_posix, temporary, &out, error));
    LK_CHECK(unpack_into(path, out, temporary, unpacked, record.sha256, error));
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
        lk_status status = unpack_to_cache(path, unpacked, record_name, fd, &failed);
        if (status == LK_OK) return LK_OK;
        if (status == LK_BAD_DATA) return lk_fail(error, status, "%s", failed.text);
        // A cache that is full or not ours to write costs time, never a run.
    }
    LK_CHECK(lk_path_join(unpacked, path, "", "", error));
    return unpack_nameless(path, fd, error);
}
