// npy.h - writes a matrix of floats as a NumPy .npy file, row by row, without holding it.
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
    int file;                        // -1 when closed
    uint64_t rows, columns;          // of the whole matrix
    uint64_t rows_written;
    char path[LK_PATH_BYTES];        // appears when the file is finished
    char temporary[LK_PATH_BYTES];   // <path>.tmp until then
} lk_npy_writer;

// Intended use: start, add until all rows are there, finish. After any failure: abandon.
lk_status lk_npy_start(lk_npy_writer *writer, const lk_file_ops *ops, const char *path,
                       uint64_t rows, uint64_t columns, lk_error *error);

// values   (rows, columns)   row-major. LK_INTERNAL: more rows than announced.
lk_status lk_npy_add(lk_npy_writer *writer, const float *values, uint64_t rows, lk_error *error);

// Makes the file durable and gives it its name. LK_INTERNAL: fewer rows than announced.
lk_status lk_npy_finish(lk_npy_writer *writer, lk_error *error);

// Removes what was written so far; nothing to do after a finish.
void lk_npy_abandon(lk_npy_writer *writer);

#ifdef __cplusplus
}
#endif
#endif
