// import_files.h - what every importer writes (io/data_import.h): the IDX files of one part of a
// set, or of both, and the names of its classes. Files are written under temporary names, each
// locked, so that a second import into the directory is refused (LK_UNAVAILABLE); they appear when
// all of them are whole, and none takes the place of another. Host only. No heap.
//
// Intended use: begin, for each example place, images and label, finish; abandon in any case.
#ifndef LOCKSTEP_IO_IMPORT_FILES_H
#define LOCKSTEP_IO_IMPORT_FILES_H

#include "io/data_import.h"
#include "io/npy.h"

#ifdef __cplusplus
extern "C" {
#endif

// A .npy file that is read: its header is, and its size is that of its shape.
typedef struct lk_import_array {
    const char *path;
    int file;
    lk_npy npy;
} lk_import_array;
lk_status lk_import_open_array(lk_import_array *array, const char *path, lk_error *error);
// Floats from NumPy's order of bytes to that of IDX; LK_BAD_DATA where one is not finite. `first`:
// the number of the first one.
lk_status lk_import_turn_floats(uint8_t *piece, size_t bytes, uint64_t first, const char *path,
                                lk_error *error);

enum { LK_IMPORT_FILES_MAX = 5, LK_IMPORT_HELD_BYTES = 4096 };

typedef struct lk_import_files {
    lk_import_to to;
    uint64_t count, held_out;  // all examples; those of them that were chosen as the test set
    lk_imported *parts;        // (2) what is said of them
    uint32_t images[2], labels[2];
    uint32_t file_count;
    struct {
        int file;  // locked
        uint32_t held;
        char path[LK_PATH_BYTES], temporary[LK_PATH_BYTES];
        uint8_t bytes[LK_IMPORT_HELD_BYTES];  // not yet written
    } at[LK_IMPORT_FILES_MAX];
} lk_import_files;

// The directory, and nothing in it yet.
lk_status lk_import_start(lk_import_files *f, const lk_import_to *to, lk_imported parts[2],
                          lk_error *error);
// The two files of a part, whose count, height, width and channels are known.
lk_status lk_import_begin_part(lk_import_files *f, lk_import_part part, lk_error *error);
// The files of all parts of a set of `count` examples of the shape in `of`.
lk_status lk_import_begin(lk_import_files *f, uint64_t count, const lk_imported *of,
                          lk_error *error);
// To which part an example goes.
lk_import_part lk_import_place(const lk_import_files *f, uint64_t example);

lk_status lk_import_image(lk_import_files *f, lk_import_part part, const void *data, size_t bytes,
                          lk_error *error);
lk_status lk_import_label(lk_import_files *f, lk_import_part part, uint32_t label, lk_error *error);
// Where labels are sequences: an example's `label_bytes`.
lk_status lk_import_labels(lk_import_files *f, lk_import_part part, const uint8_t *row,
                           lk_error *error);

// The classes.txt that lies in the directory already; none: 0 names.
lk_status lk_import_known_names(const lk_import_to *to, lk_class_list *names, lk_error *error);
// classes.txt, where there is none: a line for each name.
lk_status lk_import_list(lk_import_files *f, const lk_class_list *names, lk_error *error);
lk_status lk_import_names(lk_import_files *f, const char *lines, size_t bytes, lk_error *error);

lk_status lk_import_finish(lk_import_files *f, lk_error *error);
// After a failure what was begun goes. Closes all files in any case.
void lk_import_abandon(lk_import_files *f);

#ifdef __cplusplus
}
#endif
#endif
