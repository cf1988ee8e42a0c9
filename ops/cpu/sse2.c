// sse2.c - the portable kernels of x86-64, for processors without FMA.
//
// fma through double takes some 45 instructions where every case counts, and 14 where no result is
// a subnormal that had to be rounded (v_fma of vector.h). So each kernel runs the short way with
// the processor's flag of underflow down; where the flag is up at its end, it runs again the long
// way (portable.c), over the same outputs. That is exact for all operands, and rare: a sum of
// products of ordinary numbers is not near 2^-126. What writes in place cannot run twice, and the
// loss is little work: apply goes by parts that it can take back, the loss the long way.
#if defined(__x86_64__) && !defined(__FMA__)
#define V_QUICK    1
#define LK_VARIANT portable_quick
#include "ops/cpu/table.inc.h"

extern const lk_kernels lk_kernels_portable_exact;
// Volatile: no compiler may see which functions these are and move their sums past the flag.
static const lk_kernels *const volatile quick = &lk_kernels_portable_quick;
static const lk_kernels *const volatile exact = &lk_kernels_portable_exact;

enum { UNDERFLOW_FLAG = 0x10 };  // of MXCSR

// Whether this processor, or who plays it, raises the flag: some emulators do not. Leaves it down.
static bool quick_may_run(void) {
    volatile double tiny = 0x1.8p-149;
    volatile float rounded;
    _mm_setcsr(_mm_getcsr() & ~(unsigned)UNDERFLOW_FLAG);
    rounded = (float)tiny;
    (void)rounded;
    bool raised = _mm_getcsr() & UNDERFLOW_FLAG;
    _mm_setcsr(_mm_getcsr() & ~(unsigned)UNDERFLOW_FLAG);
    return raised;
}

static bool quick_failed(void) { return _mm_getcsr() & UNDERFLOW_FLAG; }

#define EITHER(kernel, ...)                            \
    do {                                               \
        if (quick_may_run()) {                         \
            uint32_t bad = quick->kernel(__VA_ARGS__); \
            if (!quick_failed()) return bad;           \
        }                                              \
        return exact->kernel(__VA_ARGS__);             \
    } while (0)
#define EITHER_OF(kernel, ...)           \
    do {                                 \
        if (quick_may_run()) {           \
            quick->kernel(__VA_ARGS__);  \
            if (!quick_failed()) return; \
        }                                \
        exact->kernel(__VA_ARGS__);      \
    } while (0)

static uint32_t either_dense_forward(const lk_dense *d, uint32_t m_count, const float *x,
                                     const float *w, const float *bias, float *y, float *scratch) {
    EITHER(dense_forward, d, m_count, x, w, bias, y, scratch);
}

static uint32_t either_dense_input_gradient(const lk_dense *d, uint32_t m_count, const float *w,
                                            const float *dy, const float *mask, float *dx,
                                            float *scratch) {
    EITHER(dense_input_gradient, d, m_count, w, dy, mask, dx, scratch);
}

static void either_dense_weight_gradient(const lk_dense *d, uint32_t grain_count,
                                         const lk_grain_view *grains, const lk_weight_rows *rows,
                                         float *dw, float *scratch) {
    EITHER_OF(dense_weight_gradient, d, grain_count, grains, rows, dw, scratch);
}

static uint32_t either_conv2d_forward(const lk_conv2d *c, uint32_t m_count, const float *x,
                                      const float *w, const float *bias, float *y, float *scratch) {
    EITHER(conv2d_forward, c, m_count, x, w, bias, y, scratch);
}

static uint32_t either_conv2d_pool_forward(const lk_conv2d *c, uint32_t m_count, const float *x,
                                           const float *w, const float *bias, float *y,
                                           uint8_t *argmax, lk_ahead *ahead, float *scratch) {
    const float *const at = ahead ? ahead->at : NULL;
    if (quick_may_run()) {
        uint32_t bad =
            quick->conv2d_pool_forward(c, m_count, x, w, bias, y, argmax, ahead, scratch);
        if (!quick_failed()) return bad;
        if (ahead) ahead->at = at;
    }
    return exact->conv2d_pool_forward(c, m_count, x, w, bias, y, argmax, ahead, scratch);
}

static uint32_t either_conv2d_input_gradient(const lk_conv2d *c, uint32_t m_count, const float *w,
                                             const float *dy, const float *mask, float *dx,
                                             float *scratch) {
    EITHER(conv2d_input_gradient, c, m_count, w, dy, mask, dx, scratch);
}

static uint32_t either_conv2d_pool_input_gradient(const lk_conv2d *c, uint32_t m_count,
                                                  const float *w, const float *dy,
                                                  const uint8_t *argmax, const float *mask,
                                                  float *dx, float *scratch) {
    EITHER(conv2d_pool_input_gradient, c, m_count, w, dy, argmax, mask, dx, scratch);
}

static void either_conv2d_weight_gradient(const lk_conv2d *c, uint32_t grain_count,
                                          const lk_grain_view *grains, float *dw, float *db,
                                          float *scratch) {
    EITHER_OF(conv2d_weight_gradient, c, grain_count, grains, dw, db, scratch);
}

static void either_conv2d_pool_weight_gradient(const lk_conv2d *c, uint32_t grain_count,
                                               const lk_grain_view *grains, float *dw, float *db,
                                               float *scratch) {
    EITHER_OF(conv2d_pool_weight_gradient, c, grain_count, grains, dw, db, scratch);
}

// By parts, of which weights and slots are kept until the flag is known.
static uint32_t either_apply(const lk_optimizer *o, uint64_t count, const float *sum,
                             float inverse_n, float *w,
                             float *const slots[LK_OPTIMIZER_SLOTS_MAX]) {
    enum { PART = 1024 };
    _Alignas(64) float kept[1 + LK_OPTIMIZER_SLOTS_MAX][PART];
    const uint32_t slot_count = lk_optimizer_slot_count(o);
    uint32_t bad = 0;
    for (uint64_t first = 0; first < count; first += PART) {
        const uint64_t each = LK_MIN(count - first, (uint64_t)PART), bytes = each * sizeof *w;
        float *at[LK_OPTIMIZER_SLOTS_MAX] = {NULL};
        memcpy(kept[0], w + first, bytes);
        for (uint32_t i = 0; i < slot_count; i++) {
            at[i] = slots[i] + first;
            memcpy(kept[1 + i], at[i], bytes);
        }
        uint32_t one = 0;
        bool done = quick_may_run();
        if (done) {
            one = quick->apply(o, each, sum + first, inverse_n, w + first, at);
            done = !quick_failed();
        }
        if (!done) {
            memcpy(w + first, kept[0], bytes);
            for (uint32_t i = 0; i < slot_count; i++) memcpy(at[i], kept[1 + i], bytes);
            one = exact->apply(o, each, sum + first, inverse_n, w + first, at);
        }
        bad |= one;
    }
    return bad;
}

const lk_kernels lk_kernels_portable = {
    .name = "portable",
    .load_u8 = load_u8,
    .dense_forward = either_dense_forward,
    .dense_input_gradient = either_dense_input_gradient,
    .dense_weight_gradient = either_dense_weight_gradient,
    .column_sums = column_sums,
    .conv2d_forward = either_conv2d_forward,
    .conv2d_pool_forward = either_conv2d_pool_forward,
    .conv2d_input_gradient = either_conv2d_input_gradient,
    .conv2d_pool_input_gradient = either_conv2d_pool_input_gradient,
    .conv2d_weight_gradient = either_conv2d_weight_gradient,
    .conv2d_pool_weight_gradient = either_conv2d_pool_weight_gradient,
    .max_pool_forward = max_pool_forward,
    .max_pool_backward = max_pool_backward,
    .relu_forward = relu_forward,
    .relu_backward = relu_backward,
    .softmax_cross_entropy = softmax_cross_entropy,
    .add = add,
    .apply = either_apply,
};
#else
typedef int lk_no_sse2_kernels;  // a file of C is not empty
#endif
