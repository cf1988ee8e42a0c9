// tar.h - POSIX ustar archives: a writer whose bytes depend on names and contents alone, and a
// strict reader of small archives.
//
//   512 bytes of header | contents, zeros up to a multiple of 512 | next ... | 1,024 zeros
//
// The header has name, size in octal, a sum of its bytes, and nothing of whoever writes: owner,
// group and time are 0, so equal contents give equal bytes. GNU tar, bsdtar and Python read it.
//
// The reader takes plain files with names of its own kind and refuses the rest, by name: links,
// directories, devices, extended headers; absolute names, ".." and what does not print; sizes past
// the end, wrong sums, bytes that are not zero where they should be. Nothing is ever unpacked: an
// entry points into the caller's memory.
//
// Host only. No heap. Knows nothing of what is in the files.
#ifndef LOCKSTEP_IO_TAR_H
#define LOCKSTEP_IO_TAR_H

#include "io/file_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LK_TAR_BLOCK_BYTES = 512, LK_TAR_NAME_BYTES = 101 };  // a name of 100, with its NUL

// --- writing -------------------------------------------------------------------------------------

typedef struct lk_tar_writer {
    const lk_file_ops *ops;
    int file;                       // -1 when closed
    uint64_t bytes;                 // written so far
    uint64_t left;                  // of the contents of the entry at hand
    char path[LK_PATH_BYTES];       // appears when the archive is finished
    char temporary[LK_PATH_BYTES];  // <path>.tmp until then
} lk_tar_writer;

// Intended use: start; for each file begin and write until its bytes are there; finish. After any
// failure: abandon.
lk_status lk_tar_start(lk_tar_writer *writer, const lk_file_ops *ops, const char *path,
                       lk_error *error);
// LK_INTERNAL: a name that the reader would refuse, 8 GiB or more, or the entry before is not
// whole.
lk_status lk_tar_begin(lk_tar_writer *writer, const char *name, uint64_t bytes, lk_error *error);
// LK_INTERNAL: more than was announced.
lk_status lk_tar_write(lk_tar_writer *writer, const void *data, size_t bytes, lk_error *error);
// A whole file at once.
lk_status lk_tar_add(lk_tar_writer *writer, const char *name, const void *data, size_t bytes,
                     lk_error *error);
// Makes the archive durable and gives it its name.
lk_status lk_tar_finish(lk_tar_writer *writer, lk_error *error);
// Removes what was written so far; nothing to do after a finish.
void lk_tar_abandon(lk_tar_writer *writer);

// --- reading -------------------------------------------------------------------------------------

typedef struct lk_tar_entry {
    char name[LK_TAR_NAME_BYTES];
    const uint8_t *data;  // (bytes), in the archive; NULL: there are no more
    uint64_t bytes;
} lk_tar_entry;

// The entry at *at, which starts at 0 and moves on. After the last one, everything behind it has
// been looked at. `path` is for the error line, which names the byte. LK_BAD_DATA.
lk_status lk_tar_next(const uint8_t *archive, uint64_t bytes, const char *path, uint64_t *at,
                      lk_tar_entry *entry, lk_error *error);

#ifdef __cplusplus
}
#endif
#endif
