// rounded.h - a value as mixed precision takes it between the steps of a reference. Freestanding.
// ARITHMETIC.md 15 and 16.
#ifndef LOCKSTEP_OPS_ROUNDED_H
#define LOCKSTEP_OPS_ROUNDED_H

#include "ops/half.h"
#include "ops/op.h"

// v rounded once to `dtype`; of LK_F32, v.
LK_SCALAR float lk_rounded(uint8_t dtype, float v) {
    if (dtype == LK_F16) return lk_half_to_float(lk_half_from_float(v));
    if (dtype == LK_BF16) return lk_bfloat_to_float(lk_bfloat_from_float(v));
    return v;
}

#endif
