// data_cache.h - what lies in the cache directory, and what of it may go.
//
// Host only. Knows names, not what is in the files. In the cache lie
//
//   NAME-STAMP.idx           a .gz unpacked: of the path, in the state of the .gz (16 hex digits
//   each) NAME-STAMP.idx.record    what was computed of it (data_file.h) NAME.record what was
//   computed of a data set any of them.tmp...       one that is being written; its writer holds its
//   lock, so one that
//                            nobody holds was left by a process that was killed
//
// and data/, the sets of `lockstep data fetch`, which is not touched here.
#ifndef LOCKSTEP_IO_DATA_CACHE_H
#define LOCKSTEP_IO_DATA_CACHE_H

#include "arena/base.h"
#include "io/file_ops.h"

typedef enum lk_cache_entry {
    LK_CACHE_FOREIGN,  // nothing of ours
    LK_CACHE_UNPACKED,
    LK_CACHE_RECORD,
    LK_CACHE_UNFINISHED,
} lk_cache_entry;

lk_cache_entry lk_cache_entry_of(const char *name);

// A new file beside `path` under a name of its own, whose lock this process holds until it closes
// it. Leftovers of the same path are removed first.
lk_status lk_cache_create(const char *path, char temporary[LK_PATH_BYTES], int *file,
                          lk_error *error);

// Removes what killed processes have left in the cache, and what is unpacked of `unpacked`'s file
// in an earlier state of it. `unpacked` is the name that will be written.
void lk_cache_tidy(const char *cache, const char *unpacked);

typedef struct lk_cache_cleaned {
    uint32_t files;
    uint64_t bytes;
    uint32_t busy;  // that others are writing, and that stay
} lk_cache_cleaned;

// Removes all that is ours: it can be made again. Only counts where `dry`. LK_NO_INPUT where there
// is no such directory; LK_IO_ERROR where something cannot be removed.
lk_status lk_cache_clean(const char *cache, bool dry, lk_cache_cleaned *out, lk_error *error);

#endif
