// blas.h - products of matrices by cuBLASLt, whose algorithms are chosen once and for all grains.
// Plain C, and needs no header of CUDA. Knows no layer and no step.
//
//   out[i][j] = sum over t of left[i][t] * right[t][j],  for each of `batches` grains
//
// in operands of the precision, with sums of fp32. A product of one shape has one plan: descriptors
// and an algorithm, taken for the shape's own number of batches and used for any other, so that
// what a grain comes to cannot depend on how many grains a call has. Algorithms that cut a sum in
// pieces are not taken: pieces may be added in any order, and the tree over grains is ours.
//
// Plans are made while `open`: the first product of each shape, outside any capture, makes one and
// is carried out, so that the library has loaded its kernels. After that nothing is made.
//
// Intended usage:
//   1. lk_blas_open, with tables of lk_blas_bytes()
//   2. lk_blas_multiply of all shapes, on streams that rehearse (kernels.h)
//   3. lk_blas_seal; then lk_blas_multiply, captured or not
//   4. lk_blas_close
#ifndef LOCKSTEP_OPS_CUDA_BLAS_H
#define LOCKSTEP_OPS_CUDA_BLAS_H

#include "ops/cuda/kernels.h"
#include "ops/graph/model.h"

#ifdef __cplusplus
extern "C" {
#endif

// What NVIDIA advises for its newest GPUs.
enum { LK_BLAS_WORKSPACE_BYTES = 32 << 20 };

// Operands are aligned so in each grain: addresses and rows, in bytes.
enum { LK_BLAS_ALIGN_BYTES = 16 };

// A product of one grain, row-major. A row is `ld` elements from the next, a grain `stride` from
// the next (0: shared by all). No padding, so that equal shapes are equal bytes.
typedef struct lk_blas_shape {
    uint64_t rows, columns, terms;
    uint64_t left_transposed;   // left is (terms, rows), else (rows, terms)
    uint64_t right_transposed;  // right is (columns, terms), else (terms, columns)
    uint64_t left_ld, right_ld, out_ld;
    uint64_t left_stride, right_stride, out_stride;
    uint64_t batches;  // that the algorithm is chosen for
} lk_blas_shape;

struct lk_blas_calls;  // the library's
struct lk_blas_plan;

typedef struct lk_blas {
    const struct lk_blas_calls *calls;
    void *handle;
    struct lk_blas_plan *plans;
    uint32_t plan_count, plan_max;
    lk_fast_precision precision;
    void *workspace;           // on the device: (2, workspace_bytes), for two streams
    uint64_t workspace_bytes;  // of one stream
    uint32_t version;  // 130100 is 13.1.0
    bool sealed;
    lk_error error;  // the first failure: streams only know that there was one
} lk_blas;

uint64_t lk_blas_bytes(uint32_t plan_max);

// `tables` is of the host, `workspace` of the current device: 2 * workspace_bytes bytes.
// LK_UNAVAILABLE where there is no cuBLAS of the version this was built for.
lk_status lk_blas_open(lk_blas *b, lk_fast_precision precision, uint32_t plan_max, void *tables,
                       void *workspace, uint64_t workspace_bytes, lk_error *error);
void lk_blas_seal(lk_blas *b);
void lk_blas_close(lk_blas *b);

// Enqueues a product. left, right: float (tf32), the upper halves of floats (bf16), or
// binary16 (fp16). A failure is noted in b->error, and on the stream.
void lk_blas_multiply(lk_blas *b, lk_cuda_stream *s, const lk_blas_shape *shape, uint32_t batches,
                      const void *left, const void *right, float *out);

// "13.1.0"
static inline void lk_blas_version_text(const lk_blas *b, char *out, size_t bytes) {
    lk_format(out, bytes, "%u.%u.%u", b->version / 10000, b->version / 100 % 100, b->version % 100);
}

#ifdef __cplusplus
}
#endif
#endif
