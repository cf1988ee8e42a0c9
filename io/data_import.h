// data_import.h - other people's data sets as IDX files of MNIST's naming, which --data DIRECTORY
// takes: pairs of .npy arrays, folders of PNG files, CSV, and the binary files of CIFAR-10 and
// CIFAR-100.
//
//   DIRECTORY/train-images-idx3-ubyte, train-labels-idx1-ubyte    t10k-... of the test set
//   DIRECTORY/classes.txt                                         a name a line, where they are
//   known
//
// Everything is streamed through small buffers. Files appear when all of them are whole, and none
// takes the place of another. Host only. No heap.
#ifndef LOCKSTEP_IO_DATA_IMPORT_H
#define LOCKSTEP_IO_DATA_IMPORT_H

#include "io/file_ops.h"
#include "io/idx.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum lk_import_part { LK_IMPORT_TRAIN, LK_IMPORT_TEST } lk_import_part;

// Where it goes.
typedef struct lk_import_to {
    const char *directory;
    lk_import_part part;  // of a set that is not split
    // So many millionths of the examples, rounded down, are the test set: those that the keyed
    // permutation of `seed` (io/shuffle.h, epoch 0) puts first. 0: the set is not split.
    uint32_t test_millionths;
    uint64_t seed;
} lk_import_to;

// Of a table: names of columns, or an example.
typedef enum lk_first_line { LK_FIRST_NONE, LK_FIRST_NAMES, LK_FIRST_EXAMPLE } lk_first_line;

// What has come of one part.
typedef struct lk_imported {
    uint64_t count;  // 0: there is no such part
    uint32_t height, width, channels;
    bool is_f32;       // inputs are floats, else bytes
    lk_first_line first_line;
    uint32_t classes;  // every label is below
    lk_idx_type label_type;  // of a label; 0: u8
    uint32_t label_bytes;    // of an example's row, where labels are sequences; 0: it has one label
    char images[LK_PATH_BYTES], labels[LK_PATH_BYTES];
} lk_imported;

// All importers: LK_NO_INPUT, LK_BAD_DATA (named by file and byte, index or line), LK_BAD_USAGE: a
// file that would be written is there already. LK_UNAVAILABLE: another import writes it.
// LK_IO_ERROR.

// images   u8, or f32 without infinities and NaN; (n, values), (n, height, width) or (n, height,
//          width, channels)
// labels   integers, (n) or (n, 1), each 0 to 65,535. All importers write labels of one byte where
//          all are below 256.
lk_status lk_import_npy(const char *images, const char *labels, const lk_import_to *to,
                        lk_imported out[2], lk_error *error);

// Ragged sequences, each example with frames and labels of its own number.
//
// frames          u8, or f32 without infinities and NaN; (all frames, features)
// frame_offsets   integers, (n + 1): example i has frames [offsets[i], offsets[i + 1]), one or more
// labels          integers, (all labels), each 1 to 65,535; 0 is the blank
// label_offsets   integers, (n + 1), likewise; an example may have no label, but not all
// frames_max, labels_max   the most of an example, which the files have room for; 0: the longest
// classes_max     every label is below; 0: 65,536
typedef struct lk_import_ragged {
    const char *frames, *frame_offsets, *labels, *label_offsets;
    uint64_t frames_max, labels_max, classes_max;
} lk_import_ragged;
enum { LK_IMPORT_FRAMES_MAX = 65535, LK_IMPORT_LABELS_MAX = 4096 };
lk_status lk_import_sequences(const lk_import_ragged *from, const lk_import_to *to,
                              lk_imported out[2], lk_error *error);

// FOLDER/CLASS/*.png: pictures of one size and of as many channels, 1 or 3, in 8 bits. Classes are
// numbered in the order of their names' bytes, or as in a classes.txt that lies in `to` already,
// which a test set wants; examples are the first picture of each class, then the second of each.
// Names that begin with a dot are passed over.
//
// memory   (bytes), as aligned as any type, for names, one file and one picture:
//          LK_IMPORT_PNG_BYTES and more is room for some millions of pictures. LK_UNAVAILABLE: too
//          little.
enum { LK_IMPORT_PNG_BYTES = 256 << 20, LK_IMPORT_PNG_FILE_BYTES = 32 << 20 };
lk_status lk_import_png(const char *path, const lk_import_to *to, void *memory, size_t bytes,
                        lk_imported out[2], lk_error *error);

// One example a line (io/csv.h): its features, whole numbers from 0 to 255, and its label.
struct lk_class_list;
typedef struct lk_csv_columns {
    const char *label;  // a number from 1, or a name; NULL: the last column
    uint32_t shape[3];  // height, width, channels of the features in their order; 0: (1, n, 1)
} lk_csv_columns;

// Labels are whole numbers from 0 to 65,535, all of them, also written as 10.0; or names of
// classes, which are numbered as lk_import_png does. A classes.txt in `to` says which there are.
// The first line is one of names where the label was asked for by its name, where no feature in it
// is a number and one is a name, or where they, three or more, are called 0, 1, .. and the label
// has a name.
lk_status lk_import_csv(const char *path, const lk_csv_columns *columns, const lk_import_to *to,
                        struct lk_class_list *classes, lk_imported out[2], lk_error *error);

enum { LK_CIFAR_PIXELS = 32 * 32, LK_CIFAR_CHANNELS = 3 };

// The folder cifar-10-batches-bin or cifar-100-binary, both parts of it. Records are label (of
// CIFAR-100: coarse, then fine, which is taken) and red, green, blue plane; images come out as
// (32, 32, 3). `classes` is 10 or 100.
lk_status lk_import_cifar(const char *directory, const char *to, lk_imported out[2],
                          uint32_t *classes, lk_error *error);

// red, green, blue planes -> (32, 32, 3)
void lk_cifar_pixels(const uint8_t planes[LK_CIFAR_PIXELS * LK_CIFAR_CHANNELS],
                     uint8_t out[LK_CIFAR_PIXELS * LK_CIFAR_CHANNELS]);

enum { LK_CLASSES_MAX = LK_IDX_CLASSES_MAX, LK_CLASS_NAME_BYTES = 64 };

// Printing ASCII, at most 63 letters, no space first.
bool lk_class_name_is_good(const char *name, size_t letters);

// Names of classes by their numbers, and found by their hash: 4.5 MiB, of which what is not used is
// not touched but for the slots.
enum { LK_CLASS_SLOTS = 2 * LK_CLASSES_MAX };
typedef struct lk_class_list {
    uint32_t count;
    uint32_t slots[LK_CLASS_SLOTS];  // a number and 1, from the place that its hash says; 0: free
    char names[LK_CLASSES_MAX][LK_CLASS_NAME_BYTES];
} lk_class_list;

void lk_class_list_clear(lk_class_list *list);
// The number of a name; `count` where it is not there.
uint32_t lk_class_list_find(const lk_class_list *list, const char *name, size_t letters);
// One more; false where it is no good name, is there already, or is one too many.
bool lk_class_list_add(lk_class_list *list, const char *name, size_t letters);
// In the order of their bytes.
void lk_class_list_sort(lk_class_list *list);

enum { LK_CLASS_NAMES_BYTES = 256 * LK_CLASS_NAME_BYTES };
// A list of `count` names, up to 256, one a line: printing ASCII, at most 63 letters; carriage
// returns and empty lines at the end are left out of `out`, where they stand behind each other with
// a newline each. Returns its bytes, or 0 and LK_BAD_DATA.
size_t lk_class_names(const char *text, size_t bytes, uint32_t count, const char *name,
                      char out[LK_CLASS_NAMES_BYTES], lk_error *error);

#ifdef __cplusplus
}
#endif
#endif
