// data_import.h - other people's data sets as IDX files of MNIST's naming, which --data DIRECTORY
// takes: pairs of .npy arrays, and the binary files of CIFAR-10 and CIFAR-100.
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

#ifdef __cplusplus
extern "C" {
#endif

typedef enum lk_import_part { LK_IMPORT_TRAIN, LK_IMPORT_TEST } lk_import_part;

// What has come of one part.
typedef struct lk_imported {
    uint64_t count;
    uint32_t height, width, channels;
    uint32_t classes;  // every label is below
    char images[LK_PATH_BYTES], labels[LK_PATH_BYTES];
} lk_imported;

// images   u8, (n, height, width) or (n, height, width, channels)
// labels   integers, (n) or (n, 1), each 0 to 255
// LK_NO_INPUT, LK_BAD_DATA (named by file and byte or index), LK_BAD_USAGE: a file that would be
// written is there already. LK_IO_ERROR.
lk_status lk_import_npy(const char *images, const char *labels, const char *to, lk_import_part part,
                        lk_imported *out, lk_error *error);

enum { LK_CIFAR_PIXELS = 32 * 32, LK_CIFAR_CHANNELS = 3 };

// The folder cifar-10-batches-bin or cifar-100-binary, both parts of it. Records are label (of
// CIFAR-100: coarse, then fine, which is taken) and red, green, blue plane; images come out as
// (32, 32, 3). `classes` is 10 or 100.
lk_status lk_import_cifar(const char *directory, const char *to, lk_imported out[2],
                          uint32_t *classes, lk_error *error);

// red, green, blue planes -> (32, 32, 3)
void lk_cifar_pixels(const uint8_t planes[LK_CIFAR_PIXELS * LK_CIFAR_CHANNELS],
                     uint8_t out[LK_CIFAR_PIXELS * LK_CIFAR_CHANNELS]);

enum { LK_CLASS_NAMES_BYTES = 8192, LK_CLASS_NAME_BYTES = 64 };

// A list of `count` names, one a line: printing ASCII, at most 63 letters; carriage returns and
// empty lines at the end are left out of `out`, where they stand behind each other with a newline
// each. Returns its bytes, or 0 and LK_BAD_DATA.
size_t lk_class_names(const char *text, size_t bytes, uint32_t count, const char *name,
                      char out[LK_CLASS_NAMES_BYTES], lk_error *error);

#ifdef __cplusplus
}
#endif
#endif
