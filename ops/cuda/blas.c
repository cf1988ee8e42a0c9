// blas.c - cuBLASLt behind blas.h. Its matrices are column-major, so it is given the transposes:
// out^T = right^T * left^T, with the same bytes.
#include "ops/cuda/blas.h"

#include <string.h>

#include "ops/cuda/blas_calls.h"

enum { ALGORITHMS_WANTED = 8 };

typedef struct lk_blas_plan {
    lk_blas_shape shape;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t right, left, out;  // cuBLAS calls them A, B, and C or D
    cublasLtMatmulAlgo_t algorithm;
    uint32_t batches;  // that the layouts say
    uint32_t tried;    // the last number of batches that was rehearsed
} lk_blas_plan;

uint64_t lk_blas_bytes(uint32_t plan_max) { return plan_max * sizeof(lk_blas_plan); }

// --- failures ------------------------------------------------------------------------------------

// Streams know CUDA's errors only: this one says that cuBLAS has another.
enum { UNKNOWN_ERROR = 999 };

static const char *name_of(const lk_blas *b, cublasStatus_t code) {
    return b->calls->cublasLtGetStatusName(code);
}

static void refuse(lk_blas *b, lk_cuda_stream *s, const lk_blas_shape *shape, uint32_t batches,
                   lk_status status, const char *what, cublasStatus_t code) {
    char version[32];
    lk_blas_version_text(b, version, sizeof version);
    s->error = UNKNOWN_ERROR;
    lk_fail(&b->error, status,
            "arithmetic \"fast\": cuBLAS %s %s: %s, for %u products in %s of %llu x %llu by %llu x "
            "%llu with %llu bytes of workspace; use another precision, or arithmetic \"strict\"",
            version, what, name_of(b, code), batches, lk_fast_precision_name(b->precision),
            (unsigned long long)shape->rows, (unsigned long long)shape->terms,
            (unsigned long long)shape->terms, (unsigned long long)shape->columns,
            (unsigned long long)b->workspace_bytes);
}

// --- plans ---------------------------------------------------------------------------------------

static cublasStatus_t make_layout(const lk_blas *b, cublasLtMatrixLayout_t *layout,
                                  cudaDataType_t type, uint64_t rows, uint64_t columns, uint64_t ld,
                                  uint64_t stride) {
    const int64_t offset = (int64_t)stride;
    cublasStatus_t code =
        b->calls->cublasLtMatrixLayoutCreate(layout, type, rows, columns, (int64_t)ld);
    if (code != CUBLAS_STATUS_SUCCESS) return code;
    return b->calls->cublasLtMatrixLayoutSetAttribute(
        *layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &offset, sizeof offset);
}

static cublasStatus_t make_layouts(const lk_blas *b, lk_blas_plan *p) {
    const lk_blas_shape *s = &p->shape;
    const bool left = s->left_transposed, right = s->right_transposed;
    const cudaDataType_t operand = b->precision == LK_FAST_BF16   ? CUDA_R_16BF
                                   : b->precision == LK_FAST_FP16 ? CUDA_R_16F
                                                                  : CUDA_R_32F;
    cublasStatus_t code = make_layout(b, &p->right, operand, right ? s->terms : s->columns,
                                      right ? s->columns : s->terms, s->right_ld, s->right_stride);
    if (code != CUBLAS_STATUS_SUCCESS) return code;
    code = make_layout(b, &p->left, operand, left ? s->rows : s->terms, left ? s->terms : s->rows,
                       s->left_ld, s->left_stride);
    if (code != CUBLAS_STATUS_SUCCESS) return code;
    return make_layout(b, &p->out, CUDA_R_32F, s->columns, s->rows, s->out_ld, s->out_stride);
}

static cublasStatus_t make_product(const lk_blas *b, lk_blas_plan *p) {
    const lk_blas_calls *c = b->calls;
    const int32_t right = p->shape.right_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t left = p->shape.left_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasStatus_t code = c->cublasLtMatmulDescCreate(
        &p->product,
        b->precision == LK_FAST_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
        CUDA_R_32F);
    if (code != CUBLAS_STATUS_SUCCESS) return code;
    code = c->cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_TRANSA, &right,
                                             sizeof right);
    if (code != CUBLAS_STATUS_SUCCESS) return code;
    return c->cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_TRANSB, &left,
                                             sizeof left);
}

static cublasStatus_t set_batches(const lk_blas *b, lk_blas_plan *p, uint32_t batches) {
    const cublasLtMatrixLayout_t layouts[] = {p->right, p->left, p->out};
    const int32_t count = (int32_t)batches;
    if (p->batches == batches) return CUBLAS_STATUS_SUCCESS;
    for (uint32_t i = 0; i < LK_COUNT(layouts); i++) {
        cublasStatus_t code = b->calls->cublasLtMatrixLayoutSetAttribute(
            layouts[i], CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count);
        if (code != CUBLAS_STATUS_SUCCESS) return code;
    }
    p->batches = batches;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t set_preference(const lk_blas *b, cublasLtMatmulPreference_t wish) {
    const uint32_t align = LK_BLAS_ALIGN_BYTES, reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
    const uint64_t workspace = b->workspace_bytes;
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *value;
        size_t bytes;
    } wishes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof reduction},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align, sizeof align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align, sizeof align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align, sizeof align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align, sizeof align},
    };
    for (uint32_t i = 0; i < LK_COUNT(wishes); i++) {
        cublasStatus_t code = b->calls->cublasLtMatmulPreferenceSetAttribute(
            wish, wishes[i].name, wishes[i].value, wishes[i].bytes);
        if (code != CUBLAS_STATUS_SUCCESS) return code;
    }
    return CUBLAS_STATUS_SUCCESS;
}

// The first that the library recommends, and can carry out.
static cublasStatus_t choose(const lk_blas *b, lk_blas_plan *p) {
    const lk_blas_calls *c = b->calls;
    cublasLtMatmulHeuristicResult_t found[ALGORITHMS_WANTED];
    cublasLtMatmulPreference_t wish;
    int count = 0;
    cublasStatus_t code = c->cublasLtMatmulPreferenceCreate(&wish);
    if (code != CUBLAS_STATUS_SUCCESS) return code;
    code = set_preference(b, wish);
    if (code == CUBLAS_STATUS_SUCCESS) {
        code = c->cublasLtMatmulAlgoGetHeuristic(b->handle, p->product, p->right, p->left, p->out,
                                                 p->out, wish, ALGORITHMS_WANTED, found, &count);
    }
    (void)c->cublasLtMatmulPreferenceDestroy(wish);
    if (code != CUBLAS_STATUS_SUCCESS) return code;
    for (int i = 0; i < count; i++) {
        if (found[i].state != CUBLAS_STATUS_SUCCESS) continue;
        p->algorithm = found[i].algo;
        return CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

static lk_blas_plan *find(const lk_blas *b, const lk_blas_shape *shape) {
    for (uint32_t i = 0; i < b->plan_count; i++) {
        if (memcmp(&b->plans[i].shape, shape, sizeof *shape) == 0) return &b->plans[i];
    }
    return NULL;
}

static lk_blas_plan *make(lk_blas *b, lk_cuda_stream *s, const lk_blas_shape *shape) {
    lk_assert(!b->sealed && b->plan_count < b->plan_max);
    lk_blas_plan *p = &b->plans[b->plan_count++];
    memset(p, 0, sizeof *p);
    p->shape = *shape;
    cublasStatus_t code = make_product(b, p);
    if (code == CUBLAS_STATUS_SUCCESS) code = make_layouts(b, p);
    if (code == CUBLAS_STATUS_SUCCESS) code = set_batches(b, p, (uint32_t)shape->batches);
    if (code == CUBLAS_STATUS_SUCCESS) code = choose(b, p);
    if (code == CUBLAS_STATUS_SUCCESS) return p;
    refuse(b, s, shape, (uint32_t)shape->batches, LK_UNAVAILABLE, "has no algorithm", code);
    return NULL;
}

// The algorithm must do for this number of batches too, in the same workspace.
static bool check(lk_blas *b, lk_cuda_stream *s, const lk_blas_plan *p) {
    cublasLtMatmulHeuristicResult_t found = {.state = CUBLAS_STATUS_SUCCESS};
    cublasStatus_t code = b->calls->cublasLtMatmulAlgoCheck(
        b->handle, p->product, p->right, p->left, p->out, p->out, &p->algorithm, &found);
    if (code == CUBLAS_STATUS_SUCCESS) code = found.state;
    if (code == CUBLAS_STATUS_SUCCESS && found.workspaceSize > b->workspace_bytes) {
        code = CUBLAS_STATUS_NOT_SUPPORTED;
    }
    if (code == CUBLAS_STATUS_SUCCESS) return true;
    refuse(b, s, &p->shape, p->batches, LK_UNAVAILABLE, "has no algorithm for all grains", code);
    return false;
}

// --- products ------------------------------------------------------------------------------------

// Of a product nothing is known but what it multiplies and touches. `steps`: an operand's bytes.
static void tell(const lk_blas *b, const lk_cuda_stream *s, const lk_blas_shape *p,
                 uint32_t batches) {
    const uint64_t each = lk_dtype_bytes(lk_fast_dtype(b->precision));
    const uint64_t out = p->rows * p->columns * sizeof(float);
    const uint64_t left = p->rows * p->terms * each * (p->left_stride ? batches : 1);
    const uint64_t right = p->terms * p->columns * each * (p->right_stride ? batches : 1);
    const lk_cuda_launched launched = {
        .op = s->op,
        .kernel = (void (*)(void))lk_blas_multiply,
        .blocks = {1, 1, 1},
        .threads = 1,
        .work = {.items = 1,
                 .steps = each,
                 .fma = p->rows * p->columns * p->terms * batches,
                 .bytes = left + right + out * batches},
        .ahead = LK_CUDA_STEPS_AHEAD,
    };
    s->observer->launched(s->observer->context, &launched);
}

void lk_blas_multiply(lk_blas *b, lk_cuda_stream *s, const lk_blas_shape *shape, uint32_t batches,
                      const void *left, const void *right, float *out) {
    const float one = 1.0f, zero = 0.0f;
    if (s->error || s->tasks) return;  // no task multiplies so: what finishes a product says that
    if (s->observer) {
        tell(b, s, shape, batches);
        return;
    }
    lk_blas_plan *p = find(b, shape);
    if (!p) p = make(b, s, shape);
    if (!p) return;
    lk_assert(s->rehearses || b->sealed);
    uint8_t *const workspace = (uint8_t *)b->workspace + (s->beside ? b->workspace_bytes : 0);
    cublasStatus_t code = set_batches(b, p, batches);
    if (code == CUBLAS_STATUS_SUCCESS && s->rehearses) {
        if (p->tried == batches) return;
        p->tried = batches;
        if (!check(b, s, p)) return;
    }
    if (code == CUBLAS_STATUS_SUCCESS) {
        code = b->calls->cublasLtMatmul(b->handle, p->product, &one, right, p->right, left, p->left,
                                        &zero, out, p->out, out, p->out, &p->algorithm,
                                        workspace, b->workspace_bytes, s->stream);
    }
    s->follows = false;
    if (code != CUBLAS_STATUS_SUCCESS) {
        refuse(b, s, shape, batches, LK_INTERNAL, "failed", code);
    }
}

// --- start and end -------------------------------------------------------------------------------

lk_status lk_blas_open(lk_blas *b, lk_fast_precision precision, uint32_t plan_max, void *tables,
                       void *workspace, uint64_t workspace_bytes, lk_error *error) {
    *b = (lk_blas){.plans = tables,
                   .plan_max = plan_max,
                   .precision = precision,
                   .workspace = workspace,
                   .workspace_bytes = workspace_bytes};
    b->calls = lk_blas_library(error);
    if (!b->calls) return error->status;
    b->version = (uint32_t)b->calls->cublasLtGetVersion();
    cublasLtHandle_t handle = NULL;
    cublasStatus_t code = b->calls->cublasLtCreate(&handle);
    b->handle = handle;
    if (code == CUBLAS_STATUS_SUCCESS) return LK_OK;
    return lk_fail(error, LK_UNAVAILABLE,
                   "arithmetic \"fast\": cuBLAS cannot be started: %s; \"strict\" needs no library",
                   name_of(b, code));
}

void lk_blas_seal(lk_blas *b) { b->sealed = true; }

void lk_blas_close(lk_blas *b) {
    const lk_blas_calls *c = b->calls;
    for (uint32_t i = 0; i < b->plan_count; i++) {
        const lk_blas_plan *p = &b->plans[i];
        if (p->right) (void)c->cublasLtMatrixLayoutDestroy(p->right);
        if (p->left) (void)c->cublasLtMatrixLayoutDestroy(p->left);
        if (p->out) (void)c->cublasLtMatrixLayoutDestroy(p->out);
        if (p->product) (void)c->cublasLtMatmulDescDestroy(p->product);
    }
    if (b->handle) (void)c->cublasLtDestroy(b->handle);
    memset(b, 0, sizeof *b);
}
