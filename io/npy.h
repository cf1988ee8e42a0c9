// npy.h - NumPy's .npy files: writes a matrix of floats or labels row by row, or images as bytes,
// without holding it, and reads the header of an array that somebody else wrote.
//
//   93 "NUMPY" 01 00 | u16 118 | {'descr': '<f4', 'fortran_order': False, 'shape': (R, C), } | data
//
// The data starts at byte 128, so the file may be mapped and computed on. Host only. No heap.
#ifndef LOCKSTEP_IO_NPY_H
#define LOCKSTEP_IO_NPY_H

#include "io/file_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LK_NPY_HEADER_BYTES = 128 };

typedef struct lk_npy_writer {
    const lk_file_ops *ops;
    int file;                // -1 when closed
    uint64_t rows, row_bytes;  // of the whole array
    uint64_t rows_written;
    char path[LK_PATH_BYTES];       // appears when the file is finished
    char temporary[LK_PATH_BYTES];  // <path>.tmp until then
} lk_npy_writer;

// Intended use: start, add until all rows are there, finish. After any failure: abandon.
lk_status lk_npy_start(lk_npy_writer *writer, const lk_file_ops *ops, const char *path,
                       uint64_t rows, uint64_t columns, lk_error *error);

// values   (rows, columns)   row-major. LK_INTERNAL: more rows than announced.
lk_status lk_npy_add(lk_npy_writer *writer, const float *values, uint64_t rows, lk_error *error);

// The same of rows of labels, as u32.
lk_status lk_npy_start_labels(lk_npy_writer *writer, const lk_file_ops *ops, const char *path,
                              uint64_t rows, uint64_t columns, lk_error *error);
lk_status lk_npy_add_labels(lk_npy_writer *writer, const uint32_t *values, uint64_t rows,
                            lk_error *error);

// The same of an array of bytes, (count, height, width, channels), as lk_npy_as_images takes it.
typedef struct lk_npy_images {
    uint64_t count;
    uint32_t height, width, channels;
    bool is_f32;  // read alone
} lk_npy_images;
lk_status lk_npy_start_images(lk_npy_writer *writer, const lk_file_ops *ops, const char *path,
                              const lk_npy_images *images, lk_error *error);
lk_status lk_npy_add_images(lk_npy_writer *writer, const uint8_t *images, uint64_t count,
                            lk_error *error);

// Makes the file durable and gives it its name. LK_INTERNAL: fewer rows than announced.
lk_status lk_npy_finish(lk_npy_writer *writer, lk_error *error);

// Removes what was written so far; nothing to do after a finish.
void lk_npy_abandon(lk_npy_writer *writer);

// --- reading -------------------------------------------------------------------------------------

enum { LK_NPY_DIMS_MAX = 4, LK_NPY_READ_BYTES_MAX = 4096 };

typedef struct lk_npy {
    char type;            // 'u', 'i', 'f' or 'b', as in descr
    uint32_t item_bytes;  // 1, 2, 4 or 8; little-endian
    uint32_t ndim;
    uint64_t dims[LK_NPY_DIMS_MAX];  // C order; 0 is refused
    uint64_t count;                  // items
    uint64_t header_bytes;           // where the first one lies
} lk_npy;

// Reads the header, of versions 1 to 3, and compares it with the size of the file.
//
// bytes        the first `byte_count` bytes of the file: all, or at least LK_NPY_READ_BYTES_MAX
// LK_BAD_DATA  no such file, a longer header, another byte order, Fortran's order of dimensions,
//              types that are no plain numbers, more dimensions, a size that is not the header's
lk_status lk_npy_parse(const uint8_t *bytes, uint64_t byte_count, uint64_t file_bytes,
                       const char *name, lk_npy *out, lk_error *error);

// An array of bytes or f32, (n, height, width, channels), of which those at the end that are left
// out are 1, as a data set has inputs. LK_BAD_DATA: it is another.
lk_status lk_npy_as_images(const lk_npy *npy, const char *name, lk_npy_images *out,
                           lk_error *error);

#ifdef __cplusplus
}
#endif
#endif
