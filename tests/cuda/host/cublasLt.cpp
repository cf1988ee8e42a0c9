// cublasLt.cpp - a recording stand-in for cuBLASLt, as blas.h says. Its products are launches of
// the host execution layer: enqueued, captured and carried out like those of the kernels.
#include "cublasLt.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "blas.h"
#include "block.h"

struct cublasLtContext {
    int unused;
};
struct cublasLtMatmulDescOpaque_t {
    cublasComputeType_t compute;
    int32_t a, b;
};
struct cublasLtMatrixLayoutOpaque_t {
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t ld, stride;
    int32_t batches;
};
struct cublasLtMatmulPreferenceOpaque_t {
    uint64_t workspace;
    uint32_t reduction, align;
};

static lk_host_blas counts;
static lk_host_product products[LK_HOST_PRODUCTS];

lk_host_blas lk_host_blas_counted(void) { return counts; }
const lk_host_product *lk_host_product_at(uint64_t i) {
    return i < counts.products && i < LK_HOST_PRODUCTS ? &products[i] : NULL;
}

// Nothing but products is allowed while a graph is recorded.
#define OUTSIDE_OF_CAPTURES                                         \
    if (lk_host_fails(__func__)) return CUBLAS_STATUS_ALLOC_FAILED; \
    if (lk_host_captures()) lk_host_die("%s while a stream is captured", __func__)

// --- handles and descriptors -------------------------------------------------------------------

template <typename T>
static cublasStatus_t make(T **out, const T &value) {
    *out = static_cast<T *>(malloc(sizeof(T)));
    if (!*out) return CUBLAS_STATUS_ALLOC_FAILED;
    memcpy(*out, &value, sizeof(T));
    lk_host_count_allocation();
    counts.live++;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t end(void *what) {
    if (!what) return CUBLAS_STATUS_INVALID_VALUE;
    free(what);
    counts.live--;
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void) {
    const char *other = getenv("LOCKSTEP_HOST_CUBLAS_VERSION");
    return other ? strtoul(other, NULL, 10) : CUBLAS_VERSION;
}

const char *cublasLtGetStatusName(cublasStatus_t status) {
    switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    }
    return "unknown";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    OUTSIDE_OF_CAPTURES;
    return make(handle, cublasLtContext{});
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return end(handle); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    OUTSIDE_OF_CAPTURES;
    if (scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
    return make(desc, cublasLtMatmulDescOpaque_t{compute, CUBLAS_OP_N, CUBLAS_OP_N});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return end(desc); }

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t name,
                                              const void *value, size_t bytes) {
    if (bytes != sizeof(int32_t)) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(name == CUBLASLT_MATMUL_DESC_TRANSA ? &desc->a : &desc->b, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
    OUTSIDE_OF_CAPTURES;
    if (rows == 0 || columns == 0 || ld < (int64_t)rows) return CUBLAS_STATUS_INVALID_VALUE;
    return make(layout, cublasLtMatrixLayoutOpaque_t{type, rows, columns, ld, 0, 1});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return end(layout); }

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t name,
                                                const void *value, size_t bytes) {
    const bool batches = name == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
    if (bytes != (batches ? sizeof(int32_t) : sizeof(int64_t))) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(batches ? (void *)&layout->batches : (void *)&layout->stride, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
    OUTSIDE_OF_CAPTURES;
    return make(preference, cublasLtMatmulPreferenceOpaque_t{0, 7, 256});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) { return end(p); }

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t name,
                                                    const void *value, size_t bytes) {
    const bool workspace = name == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
    uint32_t align = 0;
    if (bytes != (workspace ? sizeof p->workspace : sizeof align)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (workspace) {
        memcpy(&p->workspace, value, bytes);
    } else if (name == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) {
        memcpy(&p->reduction, value, bytes);
    } else {
        memcpy(&align, value, bytes);
        p->align = align < p->align ? align : p->align;
    }
    return CUBLAS_STATUS_SUCCESS;
}

// --- algorithms --------------------------------------------------------------------------------

// What an algorithm's bytes mean here.
struct algorithm {
    uint64_t mark, piece, align, workspace, reduction;
    uint64_t unused[3];
};
static_assert(sizeof(algorithm) == sizeof(cublasLtMatmulAlgo_t), "in place of the real one");
static const uint64_t MARK = 0x6c6f636b73746570u;
enum { WORKSPACE = 4096 };

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t p, int wanted,
                                              cublasLtMatmulHeuristicResult_t *results,
                                              int *count) {
    OUTSIDE_OF_CAPTURES;
    counts.heuristics++;
    *count = 0;
    if (p->workspace < WORKSPACE) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (wanted < 2 || lk_host_fails("algorithm")) return CUBLAS_STATUS_SUCCESS;
    const uint64_t what[] = {(uint64_t)d->batches, d->rows,    d->columns,
                             (uint64_t)desc->a,    a->columns, b->columns,
                             cublasLtGetVersion(), a->type};
    uint64_t choice = 0;
    for (uint64_t w : what) choice = (choice ^ w) * 0x9e3779b97f4a7c15u;
    algorithm chosen = {MARK, (uint64_t)4 << (choice >> 62), p->align, WORKSPACE, p->reduction, {}};
    memset(results, 0, 2 * sizeof *results);
    results[0].state =
        CUBLAS_STATUS_NOT_SUPPORTED;  // as it may happen: the next one is to be taken
    memcpy(&results[1].algo, &chosen, sizeof chosen);
    results[1].workspaceSize = WORKSPACE;
    *count = 2;
    return CUBLAS_STATUS_SUCCESS;
}

static bool fit(const cublasLtMatmulDescOpaque_t *t, const cublasLtMatrixLayoutOpaque_t *a,
                const cublasLtMatrixLayoutOpaque_t *b, const cublasLtMatrixLayoutOpaque_t *d) {
    const bool a_t = t->a == CUBLAS_OP_T, b_t = t->b == CUBLAS_OP_T;
    const bool narrow = a->type == CUDA_R_16BF || a->type == CUDA_R_16F;
    return narrow == (t->compute == CUBLAS_COMPUTE_32F) && a->type == b->type &&
           (narrow || a->type == CUDA_R_32F) && d->type == CUDA_R_32F &&
           (a_t ? a->columns : a->rows) == d->rows && (b_t ? b->rows : b->columns) == d->columns &&
           (a_t ? a->rows : a->columns) == (b_t ? b->columns : b->rows) &&
           a->batches == b->batches && a->batches == d->batches && d->batches > 0;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *result) {
    OUTSIDE_OF_CAPTURES;
    algorithm chosen;
    memcpy(&chosen, algo, sizeof chosen);
    result->workspaceSize = WORKSPACE;
    result->state = CUBLAS_STATUS_SUCCESS;
    return chosen.mark == MARK && fit(desc, a, b, d) ? CUBLAS_STATUS_SUCCESS
                                                     : CUBLAS_STATUS_NOT_SUPPORTED;
}

// --- products ----------------------------------------------------------------------------------

// tf32 keeps ten bits of the fraction.
static float rounded(float value) {
    uint32_t bits = __float_as_uint(value);
    if ((bits & 0x7f800000u) == 0x7f800000u) return value;
    bits += 0xfffu + (bits >> 13 & 1u);
    return __uint_as_float(bits & ~0x1fffu);
}

static float from_fp16(uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
    const float size = exponent == 31  ? (fraction ? NAN : INFINITY)
                       : exponent == 0 ? ldexpf((float)fraction, -24)
                                       : ldexpf((float)(fraction | 0x400), exponent - 25);
    return bits & 0x8000 ? -size : size;
}

static uint64_t bytes_of(int type) { return type == CUDA_R_32F ? 4 : 2; }

static float element(const uint8_t *at, int type, int64_t i) {
    if (type == CUDA_R_32F) return rounded(reinterpret_cast<const float *>(at)[i]);
    const uint16_t bits = reinterpret_cast<const uint16_t *>(at)[i];
    return type == CUDA_R_16F ? from_fp16(bits) : __uint_as_float((uint32_t)bits << 16);
}

static void multiply(const void *memory) {
    const lk_host_product *p = static_cast<const lk_host_product *>(memory);
    const int64_t bytes = (int64_t)bytes_of(p->type);
    for (uint64_t g = 0; g < p->batches; g++) {
        const uint8_t *a = p->a.at + (int64_t)g * p->stride_a * bytes;
        const uint8_t *b = p->b.at + (int64_t)g * p->stride_b * bytes;
        float *d = (float *)(uintptr_t)p->d.at + (int64_t)g * p->stride_d;
        for (uint64_t j = 0; j < p->n; j++) {
            for (uint64_t i = 0; i < p->m; i++) {
                float sum = 0.0f, piece = 0.0f;
                for (uint64_t t = 0; t < p->k; t++) {
                    const int64_t x = (int64_t)(p->a_transposed ? i : t) * p->lda;
                    const int64_t y = (int64_t)(p->b_transposed ? t : j) * p->ldb;
                    piece =
                        fmaf(element(a, p->type, x + (int64_t)(p->a_transposed ? t : i)),
                             element(b, p->type, y + (int64_t)(p->b_transposed ? j : t)), piece);
                    if ((t + 1) % p->piece == 0) sum += piece, piece = 0.0f;
                }
                d[(int64_t)j * p->ldd + (int64_t)i] = sum + piece;
            }
        }
    }
}

static lk_host_range range_of(const void *at, const cublasLtMatrixLayoutOpaque_t *l) {
    const int64_t elements = (int64_t)(l->batches - 1) * l->stride +
                             (int64_t)(l->columns - 1) * l->ld + (int64_t)l->rows;
    return {static_cast<const uint8_t *>(at), (uint64_t)elements * bytes_of(l->type)};
}

// Addresses, rows and batches of a matrix lie as the algorithm was told.
static bool in_line(const lk_host_range *range, const cublasLtMatrixLayoutOpaque_t *l,
                    uint64_t align) {
    const uint64_t bytes = bytes_of(l->type);
    return (uintptr_t)range->at % align == 0 && (uint64_t)l->ld * bytes % align == 0 &&
           (uint64_t)l->stride * bytes % align == 0 && lk_host_on_device(range->at, range->bytes);
}

static bool apart(const lk_host_range *x, const lk_host_range *y) {
    return x->at + x->bytes <= y->at || y->at + y->bytes <= x->at;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a_at, cublasLtMatrixLayout_t a, const void *b_at,
                              cublasLtMatrixLayout_t b, const void *beta, const void *c_at,
                              cublasLtMatrixLayout_t c, void *d_at, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
    algorithm chosen;
    float one, zero;
    if (lk_host_fails(__func__)) return CUBLAS_STATUS_EXECUTION_FAILED;
    if (!handle || !algo || c != d || c_at != d_at) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&chosen, algo, sizeof chosen);
    memcpy(&one, alpha, sizeof one);
    memcpy(&zero, beta, sizeof zero);
    if (chosen.mark != MARK || !fit(desc, a, b, d) || one != 1.0f || zero != 0.0f) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    const bool a_t = desc->a == CUBLAS_OP_T;
    lk_host_product p = {d->rows,
                         d->columns,
                         a_t ? a->rows : a->columns,
                         (uint64_t)d->batches,
                         a_t,
                         desc->b == CUBLAS_OP_T,
                         lk_host_captures(),
                         a->type,
                         a->ld,
                         b->ld,
                         d->ld,
                         a->stride,
                         b->stride,
                         d->stride,
                         range_of(a_at, a),
                         range_of(b_at, b),
                         range_of(d_at, d),
                         {static_cast<uint8_t *>(workspace), workspace_bytes},
                         stream,
                         chosen.piece};
    const bool good = in_line(&p.a, a, chosen.align) && in_line(&p.b, b, chosen.align) &&
                      in_line(&p.d, d, chosen.align) && workspace_bytes >= chosen.workspace &&
                      lk_host_on_device(workspace, workspace_bytes) && apart(&p.d, &p.a) &&
                      apart(&p.d, &p.b) && apart(&p.d, &p.workspace);
    if (!good) return CUBLAS_STATUS_INVALID_VALUE;
    if (d->batches > 1 && d->stride < (int64_t)(d->columns - 1) * d->ld + (int64_t)d->rows) {
        return CUBLAS_STATUS_INVALID_VALUE;  // batches would write over each other
    }
    // An algorithm that may cut sums between blocks adds them as they come.
    if (chosen.reduction) p.piece += counts.products % 3;
    if (counts.products < LK_HOST_PRODUCTS) products[counts.products] = p;
    counts.products++;
    cudaLaunchConfig_t config = {};
    config.stream = stream;
    static const char kernels[16] = {};  // one of each algorithm
    return lk_host_launch(&config, &kernels[p.piece % 16], multiply, &p, sizeof p) == cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}

// --- as a library ------------------------------------------------------------------------------

// The program's own calls of dlopen and dlsym (linked with --wrap): cuBLAS is here, all else is
// where it is.
static const struct {
    const char *name;
    void *at;
} functions[] = {
#define FUNCTION(name) \
    { #name, (void *)name }
    FUNCTION(cublasLtCreate),
    FUNCTION(cublasLtDestroy),
    FUNCTION(cublasLtGetVersion),
    FUNCTION(cublasLtGetStatusName),
    FUNCTION(cublasLtMatmulDescCreate),
    FUNCTION(cublasLtMatmulDescDestroy),
    FUNCTION(cublasLtMatmulDescSetAttribute),
    FUNCTION(cublasLtMatrixLayoutCreate),
    FUNCTION(cublasLtMatrixLayoutDestroy),
    FUNCTION(cublasLtMatrixLayoutSetAttribute),
    FUNCTION(cublasLtMatmulPreferenceCreate),
    FUNCTION(cublasLtMatmulPreferenceDestroy),
    FUNCTION(cublasLtMatmulPreferenceSetAttribute),
    FUNCTION(cublasLtMatmulAlgoGetHeuristic),
    FUNCTION(cublasLtMatmulAlgoCheck),
    FUNCTION(cublasLtMatmul),
#undef FUNCTION
};
static int library;

extern "C" {
void *__real_dlopen(const char *file, int flags);
void *__real_dlsym(void *handle, const char *name);
void *__wrap_dlopen(const char *file, int flags);
void *__wrap_dlsym(void *handle, const char *name);
}

void *__wrap_dlopen(const char *file, int flags) {
    if (!file || strcmp(file, "libcublasLt.so.13") != 0) return __real_dlopen(file, flags);
    return lk_host_fails("dlopen") ? __real_dlopen("libnot-installed.so", flags) : &library;
}

void *__wrap_dlsym(void *handle, const char *name) {
    if (handle != &library) return __real_dlsym(handle, name);
    for (const auto &f : functions) {
        if (strcmp(f.name, name) == 0 && !lk_host_fails("dlsym")) return f.at;
    }
    return NULL;
}
