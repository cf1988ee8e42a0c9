// half.h - 16-bit floats: binary16 ("float16") and bfloat16, to and from fp32. ARITHMETIC.md 15.
//
// Core: freestanding C11, also C++ and CUDA. Integers and one fp32 addition; no half arithmetic.
//
// To 16 bits: rounded once, to nearest, ties to even, with subnormals kept; what is beyond the
// largest number becomes infinity. To fp32: exact. NaN gives NaN, of any payload: whoever stores a
// number that is not finite says so.
//
//                largest finite   least normal   least subnormal   infinity from
//   float16      65504            2^-14          2^-24             65520
//   bfloat16     0x1.fep+127      2^-126         2^-133            0x1.ffp+127
#ifndef LOCKSTEP_OPS_HALF_H
#define LOCKSTEP_OPS_HALF_H

#include "ops/fmaf.h"

// |x| below 2^-14: adding 1/2, whose last place is 2^-24, rounds it as a subnormal half wants it.
// Above: the exponent's bias is 112 less, and what is cut off is 13 bits.
LK_SCALAR uint16_t lk_half_from_float(float x) {
    const uint32_t bits = lk_float_to_bits(x), a = bits & 0x7fffffffu;
    const uint32_t small = lk_float_to_bits(lk_float_from_bits(a) + 0.5f) - 0x3f000000u;
    const uint32_t normal = (a - 0x38000000u + 0xfffu + (a >> 13 & 1)) >> 13;
    uint32_t h = a < 0x38800000u ? small : normal;
    if (a >= 0x477ff000u) h = 0x7c00u;  // 65520
    if (a > 0x7f800000u) h = 0x7e00u;
    return (uint16_t)((bits >> 16 & 0x8000u) | h);
}

LK_SCALAR float lk_half_to_float(uint16_t h) {
    const uint32_t a = h & 0x7fffu, sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t bits = (a << 13) + 0x38000000u;
    if (a < 0x0400u) bits = lk_float_to_bits((float)a * 0x1p-24f);
    if (a >= 0x7c00u) bits = a << 13 | 0x7f800000u;
    return lk_float_from_bits(sign | bits);
}

LK_SCALAR uint16_t lk_bfloat_from_float(float x) {
    const uint32_t bits = lk_float_to_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

LK_SCALAR float lk_bfloat_to_float(uint16_t h) { return lk_float_from_bits((uint32_t)h << 16); }

#endif
