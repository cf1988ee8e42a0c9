// blas_calls.h - the functions of cuBLASLt that are used, as a table: the library is loaded by runs
// that want it, so that the program starts where it is not installed.
#ifndef LOCKSTEP_OPS_CUDA_BLAS_CALLS_H
#define LOCKSTEP_OPS_CUDA_BLAS_CALLS_H

#include <cublasLt.h>

#include "arena/base.h"

#define LK_BLAS_CALL_LIST(X)                \
    X(cublasLtCreate)                       \
    X(cublasLtDestroy)                      \
    X(cublasLtGetVersion)                   \
    X(cublasLtGetStatusName)                \
    X(cublasLtMatmulDescCreate)             \
    X(cublasLtMatmulDescDestroy)            \
    X(cublasLtMatmulDescSetAttribute)       \
    X(cublasLtMatrixLayoutCreate)           \
    X(cublasLtMatrixLayoutDestroy)          \
    X(cublasLtMatrixLayoutSetAttribute)     \
    X(cublasLtMatmulPreferenceCreate)       \
    X(cublasLtMatmulPreferenceDestroy)      \
    X(cublasLtMatmulPreferenceSetAttribute) \
    X(cublasLtMatmulAlgoGetHeuristic)       \
    X(cublasLtMatmulAlgoCheck)              \
    X(cublasLtMatmul)

typedef struct lk_blas_calls {
#define LK_BLAS_CALL(name) __typeof__(name) *name;
    LK_BLAS_CALL_LIST(LK_BLAS_CALL)
#undef LK_BLAS_CALL
} lk_blas_calls;

// Loads the library, once. NULL, and LK_UNAVAILABLE, where that cannot be done.
const lk_blas_calls *lk_blas_library(lk_error *error);

#endif
