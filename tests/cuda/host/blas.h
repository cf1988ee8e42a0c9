// blas.h - what a test sees of cublasLt.cpp, the recording stand-in for cuBLASLt.
//
// It multiplies in fp32, operands rounded as the matrix units round them, each sum in the order of
// the algorithm: an algorithm cuts the terms in pieces of its own, so that whoever takes one for
// other batches, another shape or another version gets other bits, as with the real library. It
// refuses what the real one may refuse or punish: operands outside of device memory, addresses and
// rows out of line, a workspace that is not there, anything but a product while a stream is
// captured.
//
// LOCKSTEP_HOST_CUDA_FAIL (host.h) knows its functions too, and "dlopen": it is not installed, and
// "algorithm": the heuristic finds none. LOCKSTEP_HOST_CUBLAS_VERSION is another version.
#ifndef LOCKSTEP_HOST_BLAS_H
#define LOCKSTEP_HOST_BLAS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lk_host_range {
    const uint8_t *at;
    uint64_t bytes;
} lk_host_range;

// One call of cublasLtMatmul, as it was made.
typedef struct lk_host_product {
    uint64_t m, n, k, batches;
    bool a_transposed, b_transposed, captured;
    int type;  // cudaDataType_t of the operands
    int64_t lda, ldb, ldd, stride_a, stride_b, stride_d;
    lk_host_range a, b, d, workspace;  // of all batches
    const void *stream;
    uint64_t piece;  // terms: of the algorithm
} lk_host_product;

typedef struct lk_host_blas {
    uint64_t products;    // calls of cublasLtMatmul
    uint64_t heuristics;  // algorithms that were asked for
    uint64_t live;        // handles and descriptors
} lk_host_blas;
lk_host_blas lk_host_blas_counted(void);

// The i-th of the products, of which the first LK_HOST_PRODUCTS are kept; NULL past the last.
enum { LK_HOST_PRODUCTS = 4096 };
const lk_host_product *lk_host_product_at(uint64_t i);

#ifdef __cplusplus
}
#endif
#endif
