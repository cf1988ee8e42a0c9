// data_file.h - opening and mapping files of examples, and remembering what was computed of them.
//
// Host only, start-up only. Knows files, not what is in them.
//
// Hashing 47 MB of images takes longer than a whole start-up may, so its result is kept in a cache
// directory as a *record*: three lines of text that say of which state of the files it was taken
// (the stamp: sizes, inodes and times of all; that of the last change of any kind cannot be set
// back, as that of the contents can), their XXH3 and their SHA-256. Equal stamp: believed. Another
// stamp, but equal XXH3: believed, and the record renewed. Else it is computed again. A cache that
// cannot be read or written costs time, never a result.
#ifndef LOCKSTEP_IO_DATA_FILE_H
#define LOCKSTEP_IO_DATA_FILE_H

#include <sys/stat.h>

#include "arena/base.h"
#include "arena/sha256.h"
#include "io/file_ops.h"

// Opens a file for reading. LK_NO_INPUT where it is missing, unreadable, a directory or a device.
lk_status lk_data_open(const char *path, int *fd, struct stat *info, lk_error *error);

// Maps `bytes` bytes of an open file read-only; the descriptor may be closed afterwards. An empty
// file maps to NULL. LK_IO_ERROR.
lk_status lk_data_map(int fd, uint64_t bytes, bool populate, const char *path, const uint8_t **map,
                      lk_error *error);
void lk_data_unmap(const uint8_t *map, uint64_t bytes);

// XXH3 (64 bits) of bytes, begun with what came before them: 0 at first.
uint64_t lk_data_fast_hash(uint64_t before, const void *bytes, uint64_t count);

// What says that a file is unchanged, joined to what came before it.
uint64_t lk_data_stamp(uint64_t before, const struct stat *info);

// The file's name as the kernel resolves it, joined to what came before it.
uint64_t lk_data_name(uint64_t before, const char *path);

// SHA-256 of bytes in memory.
void lk_data_sha256(const void *bytes, uint64_t count, uint8_t out[LK_SHA256_BYTES]);

// The cache directory: `wanted`, or where that is NULL $XDG_CACHE_HOME/lockstep, or
// ~/.cache/lockstep; made where missing. "" asks for none. False: there is none.
bool lk_data_cache(const char *wanted, char out[LK_PATH_BYTES]);

typedef struct lk_data_record {
    uint64_t stamp;  // of the files when it was taken
    uint64_t fast;   // XXH3 of the bytes
    uint8_t sha256[LK_SHA256_BYTES];
} lk_data_record;

// False where there is none, or anything but a whole record.
bool lk_data_record_read(const char *path, lk_data_record *record);

// Keeps a record; where that fails, so be it.
void lk_data_record_write(const char *path, const lk_data_record *record);

#endif
