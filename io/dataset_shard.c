// dataset_shard.c - splitting a data set into pairs of IDX files and their manifest. Host only.
#define _GNU_SOURCE
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "io/dataset.h"
#include "io/file_ops.h"
#include "io/idx.h"
#include "io/manifest.h"

static const lk_file_ops *const ops = &lk_file_ops_posix;

// One shard: examples first .. first + count - 1, and how its files came out.
typedef struct shard {
    uint32_t number;
    uint64_t first, count;
    uint8_t sha256[2][LK_SHA256_BYTES];  // by lk_idx_kind
} shard;

static shard nth_shard(const lk_dataset *set, uint32_t shards, uint32_t number) {
    const uint64_t small = set->count / shards, larger = set->count % shards;
    return (shard){.number = number,
                   .first = number * small + LK_MIN((uint64_t)number, larger),
                   .count = small + (number < larger)};
}

static void file_name(char out[64], lk_idx_kind kind, uint32_t number) {
    const char *what = kind == LK_IDX_IMAGES ? "images" : "labels";
    snprintf(out, 64, "%s-%05u.idx", what, (unsigned)number);
}

typedef struct hashed_file {
    int file;
    const char *path;
    crypto_hash_sha256_state hash;
} hashed_file;

static lk_status add(hashed_file *f, const void *data, uint64_t bytes, lk_error *error) {
    crypto_hash_sha256_update(&f->hash, data, bytes);
    return lk_file_write_all(ops, f->file, f->path, data, bytes, error);
}

// Header and values; whole runs of examples at a time, since a shard may span several parts.
static lk_status write_values(const lk_dataset *set, const shard *s, lk_idx_kind kind,
                              hashed_file *f, lk_error *error) {
    const bool images = kind == LK_IDX_IMAGES;
    const bool sequences = !images && set->sequences;
    const uint32_t row = set->label_bytes / lk_idx_type_bytes(set->label_type);
    const lk_idx idx = {.type = images ? set->type : set->label_type,
                        .ndim = sequences ? 2 : !images ? 1 : set->channels == 1 ? 3 : 4,
                        .count = (uint32_t)s->count,
                        .height = sequences ? row : set->height,
                        .width = set->width,
                        .channels = set->channels};
    uint8_t header[LK_IDX_HEADER_BYTES_MAX];
    LK_CHECK(add(f, header, lk_idx_write_header(&idx, header), error));
    const uint64_t end = s->first + s->count;
    const uint64_t example_bytes = images ? set->image_bytes : set->label_bytes;
    for (uint32_t i = 0; i < set->part_count; i++) {
        const lk_dataset_part *part = &set->parts[i];
        const uint64_t from = LK_MAX(s->first, part->first);
        const uint64_t to = LK_MIN(end, part->first + part->count);
        const uint8_t *data = images ? part->images.data : part->labels.data;
        if (from >= to) continue;
        data += (from - part->first) * example_bytes;
        LK_CHECK(add(f, data, (to - from) * example_bytes, error));
    }
    return LK_OK;
}

static lk_status write_file(const lk_dataset *set, shard *s, lk_idx_kind kind,
                            const char *directory, lk_error *error) {
    char name[64], path[LK_PATH_BYTES], temporary[LK_PATH_BYTES];
    file_name(name, kind, s->number);
    LK_CHECK(lk_path_join(path, directory, "/", name, error));
    LK_CHECK(lk_path_join(temporary, path, "", ".tmp", error));
    hashed_file f = {.path = temporary};
    crypto_hash_sha256_init(&f.hash);
    LK_CHECK(lk_file_create(ops, temporary, &f.file, error));
    lk_status written = write_values(set, s, kind, &f, error);
    lk_status synced = lk_file_sync_close(ops, f.file, temporary, error);
    crypto_hash_sha256_final(&f.hash, s->sha256[kind]);
    if (written == LK_OK && synced == LK_OK &&
        lk_file_publish(ops, temporary, path, error) == LK_OK)
        return LK_OK;
    ops->remove(ops->context, temporary);
    return error->status;
}

// --- the manifest --------------------------------------------------------------------------------

static lk_status write_entry(int file, const char *path, const shard *s, bool last,
                             lk_error *error) {
    char text[512], images[64], labels[64], hex[2][LK_SHA256_HEX_BYTES];
    file_name(images, LK_IDX_IMAGES, s->number);
    file_name(labels, LK_IDX_LABELS, s->number);
    lk_hex(s->sha256[LK_IDX_IMAGES], LK_SHA256_BYTES, hex[0]);
    lk_hex(s->sha256[LK_IDX_LABELS], LK_SHA256_BYTES, hex[1]);
    int length = snprintf(text, sizeof text,
                          "    {\"count\": %llu,\n"
                          "     \"images\": \"%s\",\n     \"images_sha256\": \"%s\",\n"
                          "     \"labels\": \"%s\",\n     \"labels_sha256\": \"%s\"}%s\n",
                          (unsigned long long)s->count, images, hex[0], labels, hex[1],
                          last ? "" : ",");
    lk_assert(length > 0 && (size_t)length < sizeof text);
    return lk_file_write_all(ops, file, path, text, (size_t)length, error);
}

// By which an unfinished manifest of an earlier attempt is known; it may have been torn.
static const char manifest_begin[] = "{\n  \"format\": \"" LK_MANIFEST_FORMAT "\",\n";

static lk_status write_begin(int file, const char *path, const lk_dataset *set, lk_error *error) {
    char text[512], hex[LK_SHA256_HEX_BYTES];
    lk_hex(set->sha256, LK_SHA256_BYTES, hex);
    int length = snprintf(text, sizeof text,
                          "%s  \"count\": %llu,\n"
                          "  \"height\": %u,\n  \"width\": %u,\n  \"channels\": %u,\n%s"
                          "  \"data_sha256\": \"%s\",\n  \"shards\": [\n",
                          manifest_begin, (unsigned long long)set->count, set->height, set->width,
                          set->channels, set->type == LK_IDX_F32 ? "  \"type\": \"f32\",\n" : "",
                          hex);
    lk_assert(length > 0 && (size_t)length < sizeof text);
    return lk_file_write_all(ops, file, path, text, (size_t)length, error);
}

// All files, and the manifest's lines about them as they come.
static lk_status write_all(const lk_dataset *set, uint32_t shards, const char *directory, int file,
                           const char *path, lk_error *error) {
    LK_CHECK(write_begin(file, path, set, error));
    for (uint32_t i = 0; i < shards; i++) {
        shard s = nth_shard(set, shards, i);
        LK_CHECK(write_file(set, &s, LK_IDX_IMAGES, directory, error));
        LK_CHECK(write_file(set, &s, LK_IDX_LABELS, directory, error));
        LK_CHECK(write_entry(file, path, &s, i + 1 == shards, error));
    }
    return lk_file_write_all(ops, file, path, "  ]\n}\n", 6, error);
}

static lk_status refuse_manifest(const char *path, lk_error *error) {
    int there = ops->open(ops->context, path, LK_OPEN_READ);
    if (there < 0) return LK_OK;
    ops->close(ops->context, there);
    return lk_fail(error, LK_BAD_USAGE,
                   "%s: found a manifest, wanted a directory without one; name another directory",
                   path);
}

// What has the name of the unfinished manifest and is none is somebody else's.
static lk_status check_leftover(const char *temporary, int file, lk_error *error) {
    char found[sizeof manifest_begin - 1];
    struct stat about;
    bool plain = lstat(temporary, &about) == 0 && S_ISREG(about.st_mode);
    size_t bytes = plain ? (size_t)LK_MIN((uint64_t)about.st_size, (uint64_t)sizeof found) : 0;
    LK_CHECK(lk_file_read_all(ops, file, temporary, found, bytes, 0, error));
    if (plain && memcmp(found, manifest_begin, bytes) == 0) return LK_OK;
    return lk_fail(error, LK_BAD_USAGE,
                   "%s: found a file that this command has not written, wanted that name free for "
                   "the unfinished manifest; move it away, or name another directory",
                   temporary);
}

// The unfinished manifest, whose lock says that somebody is at work: two at once would write into
// and rename each other's files. It is emptied only when there is still no manifest, since what was
// opened may have become one before it was locked.
static lk_status begin_manifest(const char *temporary, const char *path, int *file,
                                lk_error *error) {
    *file = ops->open(ops->context, temporary, LK_OPEN_APPEND);
    if (*file < 0) return lk_file_fail(error, LK_IO_ERROR, temporary, "create", *file);
    int locked = ops->lock(ops->context, *file);
    if (locked == -EWOULDBLOCK) {
        lk_fail(error, LK_UNAVAILABLE,
                "%s: another process writes shards there; wait for it, or name another directory",
                temporary);
    } else if (locked < 0) {
        lk_file_fail(error, LK_IO_ERROR, temporary, "lock", locked);
    } else if (refuse_manifest(path, error) == LK_OK &&
               check_leftover(temporary, *file, error) == LK_OK) {
        int emptied = ops->truncate(ops->context, *file, 0);
        if (emptied < 0) lk_file_fail(error, LK_IO_ERROR, temporary, "empty", emptied);
    }
    if (error->status != LK_OK) ops->close(ops->context, *file);
    return error->status;
}

static lk_status check_request(const lk_dataset *set, uint32_t shards, const char *directory,
                               const char *path, lk_error *error) {
    if (shards < 1 || shards > set->count)
        return lk_fail(error, LK_BAD_USAGE,
                       "shards: found %u, wanted 1 to %llu, the number of examples", shards,
                       (unsigned long long)set->count);
    if (nth_shard(set, shards, 0).count > UINT32_MAX)
        return lk_fail(error, LK_BAD_USAGE,
                       "shards: found %u, wanted more: an IDX file holds at most 2^32 - 1 examples",
                       shards);
    int made = ops->make_directory(ops->context, directory);
    if (made < 0 && made != -EEXIST)
        return lk_file_fail(error, LK_IO_ERROR, directory, "make the directory", made);
    return refuse_manifest(path, error);
}

lk_status lk_dataset_shard(const lk_dataset *set, uint32_t shards, const char *directory,
                           lk_error *error) {
    char path[LK_PATH_BYTES], temporary[LK_PATH_BYTES];
    int file;
    LK_CHECK(lk_path_join(path, directory, "/", "manifest.json", error));
    LK_CHECK(lk_path_join(temporary, path, "", ".tmp", error));
    lk_assert(!set->native);
    LK_CHECK(check_request(set, shards, directory, path, error));
    LK_CHECK(begin_manifest(temporary, path, &file, error));
    if (write_all(set, shards, directory, file, temporary, error) == LK_OK) {
        int synced = ops->sync(ops->context, file);
        if (synced < 0)
            lk_file_fail(error, LK_IO_ERROR, temporary, "sync", synced);
        else
            lk_file_publish(ops, temporary, path, error);
    }
    if (error->status != LK_OK) ops->remove(ops->context, temporary);
    ops->close(ops->context, file);  // and with it the lock: not before the name is the final one
    return error->status;
}
