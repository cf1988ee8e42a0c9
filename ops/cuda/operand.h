// operand.h - how a number becomes an operand of 16 bits of a product (fast.h). CUDA C++.
//
// Rounded to nearest even; but what is not zero does not become zero (a magnitude up to 2^-134 in
// bf16 becomes 2^-133, up to 2^-25 in fp16 2^-24), so that the mask of a ReLU is the same of an
// operand as of the number.
#ifndef LOCKSTEP_OPS_CUDA_OPERAND_H
#define LOCKSTEP_OPS_CUDA_OPERAND_H

#include "arena/plan.h"
#include "ops/cuda/device.h"
#include "ops/half.h"

// dtype: LK_BF16 or LK_F16.
static inline __device__ uint16_t lk_cuda_operand(lk_dtype dtype, float x) {
    const uint16_t h = dtype == LK_F16 ? lk_half_from_float(x) : lk_bfloat_from_float(x);
    return (h & 0x7fffu) == 0 && (lk_float_to_bits(x) & 0x7fffffffu) != 0 ? (uint16_t)(h | 1u) : h;
}

// x > 0 of an operand that is a number.
static inline __device__ bool lk_cuda_operand_positive(uint16_t h) { return h != 0 && h < 0x8000u; }

#endif
