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

static uint32_t either(lk_lane *lane, const lk_op *op) {
    const lk_op_number number = op->type->number;
    const float *const at = lane->ahead ? lane->ahead->at : NULL;
    if (quick_may_run()) {
        const uint32_t bad = quick->kernel[number](lane, op);
        if (!quick_failed()) return bad;
        if (lane->ahead) lane->ahead->at = at;
    }
    return exact->kernel[number](lane, op);
}

// By parts, of which weights and slots are kept until the flag is known.
static uint32_t either_apply(const lk_optimizer *o, const lk_step_scalars *scalars, uint64_t count,
                             const float *sum, float *w,
                             float *const slots[LK_OPTIMIZER_SLOTS_MAX]) {
    enum { PART = 1024 };
    const lk_optimizer_number number = o->type->number;
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
            one = quick->apply[number](o, scalars, each, sum + first, w + first, at);
            done = !quick_failed();
        }
        if (!done) {
            memcpy(w + first, kept[0], bytes);
            for (uint32_t i = 0; i < slot_count; i++) memcpy(at[i], kept[1 + i], bytes);
            one = exact->apply[number](o, scalars, each, sum + first, w + first, at);
        }
        bad |= one;
    }
    return bad;
}

// In place, and little work beside what it is for.
static void exact_adjust(uint64_t count, uint32_t period, const float *factor, const float *offset,
                         float *x) {
    exact->adjust(count, period, factor, offset, x);
}

static uint32_t exact_average(uint64_t count, float keep, const float *w, float *average_at) {
    return exact->average(count, keep, w, average_at);
}

#define EITHER(NUMBER, name) [LK_OPTIMIZER_##NUMBER] = either_apply,

const lk_kernels lk_kernels_portable = {
    .name = "portable",
    .kernel = {[LK_OP_DENSE] = either,
               [LK_OP_DENSE_INPUT_GRADIENT] = either,
               [LK_OP_DENSE_WEIGHT_GRADIENT] = either,
               [LK_OP_DENSE_BIAS_GRADIENT] = call_dense_bias_gradient,
               [LK_OP_CONV2D] = either,
               [LK_OP_CONV2D_POOL] = either,
               [LK_OP_CONV2D_INPUT_GRADIENT] = either,
               [LK_OP_CONV2D_POOL_INPUT_GRADIENT] = either,
               [LK_OP_CONV2D_WEIGHT_GRADIENT] = either,
               [LK_OP_CONV2D_POOL_WEIGHT_GRADIENT] = either,
               [LK_OP_CONV2D_TRANSPOSE] = either,
               [LK_OP_CONV2D_TRANSPOSE_INPUT_GRADIENT] = either,
               [LK_OP_CONV2D_TRANSPOSE_WEIGHT_GRADIENT] = either,
               [LK_OP_CONV2D_TRANSPOSE_BIAS_GRADIENT] = call_conv2d_transpose_bias_gradient,
               [LK_OP_MAX_POOL2D] = call_max_pool2d,
               [LK_OP_MAX_POOL2D_BACKWARD] = call_max_pool2d_backward,
               [LK_OP_RELU] = call_relu,
               [LK_OP_RELU_BACKWARD] = call_relu_backward,
               [LK_OP_SOFTMAX_CROSS_ENTROPY] = call_softmax_cross_entropy},
    .divides = {[LK_OP_DENSE] = true, [LK_OP_DENSE_INPUT_GRADIENT] = true},
    .apply = {LK_OPTIMIZER_LIST(EITHER)},
    .load_u8 = load_u8,
    .adjust = exact_adjust,
    .permute = permute,
    .column_sums = column_sums,
    .add = add,
    .widen = widen,
    .widen_rows = widen_rows,
    .narrow = narrow,
    .narrow_pool = narrow_pool,
    .round = round_floats,
    .average = exact_average,
};
#else
typedef int lk_no_sse2_kernels;  // a file of C is not empty
#endif
