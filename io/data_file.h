// data_file.h - opening and mapping files of examples, and remembering what was computed of them.
//
// Host only, start-up only. Knows files, not what is in them.
//
// Hashing 47 MB of images takes longer than a whole start-up may, so its result is kept in a cache
// directory as a *record*: lines of text that say of which state of the files it was taken (the
// stamp: sizes, inodes and times of all; that of the last change of any kind cannot be set back, as
// that of the contents can), the XXH3 of each piece of the bytes, their SHA-256, and a checksum of
// the record itself. Equal stamp: believed, once some pieces were looked at. Another stamp, but all
// pieces equal: believed, and the record renewed. Else it is computed again. A cache that cannot be
// read or written costs time, never a result.
//
// A stamp tells two states apart only where a tick of the file system's clock lies between them.
// A file that was changed less than LK_DATA_YOUNG_NS ago may change again under the same times: it
// is *young*, and a record of it is written with stamp 0, which is believed of no file.
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

// What says that a file is unchanged, joined to what came before it. Never 0.
uint64_t lk_data_stamp(uint64_t before, const struct stat *info);

// A file as it was found: which it is, and what says that it is unchanged.
typedef struct lk_data_state {
    uint64_t device, inode;
    int64_t bytes, modified, changed;  // the times: ns since 1970
    bool young;
} lk_data_state;

// The coarsest clock of a file system, FAT's: 2 s.
#define LK_DATA_YOUNG_NS 2000000000

// The state of a file of which `info` was just taken.
lk_data_state lk_data_state_of(const struct stat *info);

// The file's name as the kernel resolves it, joined to what came before it.
uint64_t lk_data_name(uint64_t before, const char *path);

// SHA-256 of bytes in memory.
void lk_data_sha256(const void *bytes, uint64_t count, uint8_t out[LK_SHA256_BYTES]);

// The cache directory: `wanted`, or where that is NULL $XDG_CACHE_HOME/lockstep, or
// ~/.cache/lockstep; made where missing. "" asks for none. False: there is none.
bool lk_data_cache(const char *wanted, char out[LK_PATH_BYTES]);
// .. its name alone; false where none is said or known.
bool lk_data_cache_path(const char *wanted, char out[LK_PATH_BYTES]);

enum { LK_DATA_PIECES = 64, LK_DATA_RECORD_BYTES = 1174 };

typedef struct lk_data_record {
    uint64_t stamp;                  // of the files when it was taken; 0: of young ones
    uint64_t piece[LK_DATA_PIECES];  // XXH3; those that there are not: 0
    uint8_t sha256[LK_SHA256_BYTES];
} lk_data_record;

// False where there is none, or anything but a whole record whose checksum is right.
bool lk_data_record_read(const char *path, lk_data_record *record);
bool lk_data_record_parse(const char *text, size_t bytes, lk_data_record *record);
void lk_data_record_print(const lk_data_record *record, char out[LK_DATA_RECORD_BYTES]);

// Keeps a record; where that fails, so be it.
void lk_data_record_write(const char *path, const lk_data_record *record);

#endif
