// moving.h - moving averages, of what a step adds up and of weights (ARITHMETIC.md 7).
// Freestanding; also CUDA C++.
#ifndef LOCKSTEP_OPS_MOVING_H
#define LOCKSTEP_OPS_MOVING_H

#include "ops/fmaf.h"

// How a state follows the mean of what a step adds up for it.
typedef struct lk_moving {
    float momentum;  // 0 to 1: the share of what was before
    uint32_t terms;  // of one example, all uses of its network; 0: it is no such state
} lk_moving;

// momentum 1 keeps what was before, 0 takes the value.
LK_SCALAR float lk_moving_next(float momentum, float before, float value) {
    return lk_fmaf(momentum, before, (1.0f - momentum) * value);
}

// `sum` is that of terms * examples terms.
LK_SCALAR float lk_moving_of_sum(lk_moving m, uint32_t examples, float before, float sum) {
    const float mean = (sum + 0.0f) * (1.0f / lk_count_to_float((uint64_t)m.terms * examples));
    return lk_moving_next(m.momentum, before, mean);
}

#endif
