// data_sets.h - the data sets that are known by name, and where they lie on this machine.
#ifndef LOCKSTEP_APPS_RUN_DATA_SETS_H
#define LOCKSTEP_APPS_RUN_DATA_SETS_H

#include "io/file_ops.h"

enum { LK_DATA_SET_FILES = 4, LK_DATA_SET_HOSTS = 2, LK_DATA_SET_PLACES = 3 };

// A set is known by the SHA-256 of its unpacked files.
typedef struct lk_data_set {
    const char *name;
    const char *sha256[LK_DATA_SET_FILES];  // of the unpacked files
    const char *hosts[LK_DATA_SET_HOSTS];   // address before FILE.gz; NULL: it has none
    const char *instead;                    // where there is no host: what to do
} lk_data_set;

// The known set `number`, from 0; NULL after the last. And the names of the four files of each.
const lk_data_set *lk_data_set_at(uint32_t number);
extern const char *const lk_data_set_files[LK_DATA_SET_FILES];

// Where a set of that name is put: $LOCKSTEP_DATA/NAME, else the user's cache. False: neither is.
bool lk_data_set_home(const char *name, char directory[LK_PATH_BYTES]);

// Are all four files there, plain or .gz? And one of them.
bool lk_data_set_is_whole(const char *directory);
bool lk_data_set_file(const char *directory, const char *name, char path[LK_PATH_BYTES]);

// Where a set of that name may lie, in the order in which everybody looks: $LOCKSTEP_DATA, the
// user's cache, the system's data sets. False: there is no such place here.
bool lk_data_set_place(uint32_t place, const char *name, char directory[LK_PATH_BYTES]);
// The first of them that has all four files, plain or .gz. False: none.
bool lk_data_set_find(const char *name, char directory[LK_PATH_BYTES]);

#endif
