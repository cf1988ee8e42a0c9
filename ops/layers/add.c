// add.c - sums of two tensors: formulas, the reference, gradients. Freestanding. ARITHMETIC.md
// 3, 5.
//
//   add_gradient   dx = x + dy: the share of one more user of a tensor; dx may be x
#include "ops/layers/sums.h"

static uint32_t sum_of(uint64_t count, const float *a, const float *b, float *sum) {
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        sum[i] = a[i] + b[i];
        bad |= lk_not_finite(sum[i]);
    }
    return bad;
}

static uint32_t add_gradient(lk_lane *l, const lk_op *op) {
    return sum_of(l->examples * op->floats, l->at[LK_X], l->at[LK_DY], l->at[LK_DX]);
}

const lk_op_type lk_op_add_gradient = {.name = "add_gradient",
                                       .number = LK_OP_ADD_GRADIENT,
                                       .scope = LK_SCOPE_EXAMPLES,
                                       .reference = add_gradient};
