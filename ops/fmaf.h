// fmaf.h - the fused multiply-add of the arithmetic: a * b + c with one rounding, on every target.
//
// Core: freestanding C11, also C++ and CUDA. Knows only bits; no libm.
//
// Every implementation here returns the correctly rounded result (to nearest, ties to even) with
// subnormals kept, so that all targets have the same bits. Where a result is NaN it is some NaN:
// the payload differs between machines, and the trainer stops on it.
//
//   lk_fmaf       what the arithmetic calls: the processor's instruction where there is one, else
//                 the faster of the two below
//   lk_wide_fmaf  through double, for baseline x86-64: no branches, vectorises with SSE2 (gcc -O3)
//   lk_soft_fmaf  integers only, for processors without double or without any float unit
#ifndef LOCKSTEP_OPS_FMAF_H
#define LOCKSTEP_OPS_FMAF_H

#include <stdint.h>

// A compiler that may reassociate, or keeps float in wider registers, cannot keep the bits.
#ifdef __FAST_MATH__
#error "Lockstep: -ffast-math changes the trained weights; build without it"
#endif
#if defined(__i386__) && !defined(__SSE2_MATH__)
#error "Lockstep: x87 has excess precision; build for x86-64, or with -msse2 -mfpmath=sse"
#endif

#ifdef __CUDACC__
#define LK_SCALAR static inline __host__ __device__
#else
#define LK_SCALAR static inline
#endif

// A float's bits, and the float that has these bits.
LK_SCALAR uint32_t lk_float_to_bits(float value) {
#ifdef __CUDA_ARCH__
    return __float_as_uint(value);
#else
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    return bits;
#endif
}

LK_SCALAR float lk_float_from_bits(uint32_t bits) {
#ifdef __CUDA_ARCH__
    return __uint_as_float(bits);
#else
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
#endif
}

// A count as a float, to the nearest, ties to even: as the compiler converts it, which on a 32-bit
// processor is a library function of a KiB. What is shifted out stays as the last bit.
LK_SCALAR float lk_count_to_float(uint64_t count) {
    float scale = 1.0f;
    for (; count >> 32; scale *= 2.0f) count = count >> 1 | (count & 1);
    return (float)(uint32_t)count * scale;
}

// A float taken apart: value = mantissa * 2^exponent, mantissa in [2^23, 2^24), or 0 for zero.
typedef struct lk_soft_float {
    uint64_t mantissa;
    int exponent;
} lk_soft_float;

// Leaves the leading one of `mantissa` (not 0) at bit `bit`, the value unchanged.
static inline lk_soft_float lk_soft_normalise(uint64_t mantissa, int exponent, int bit) {
    int shift = bit - (63 - __builtin_clzll(mantissa));
    lk_soft_float out = {shift >= 0 ? mantissa << shift : mantissa >> -shift, exponent - shift};
    return out;
}

static inline lk_soft_float lk_soft_unpack(uint32_t magnitude) {
    lk_soft_float out = {magnitude & 0x7fffffu, -149};
    if (magnitude >> 23) {
        out.mantissa |= 0x800000u;
        out.exponent = (int)(magnitude >> 23) - 150;
    } else if (out.mantissa) {
        out = lk_soft_normalise(out.mantissa, out.exponent, 23);
    }
    return out;
}

// Rounds mantissa * 2^exponent (mantissa not 0, below 2^63) to the bits of a float, ties to even.
// The lowest bit may be sticky: "and something more below".
static inline uint32_t lk_soft_round(uint64_t mantissa, int exponent) {
    lk_soft_float value = lk_soft_normalise(mantissa, exponent, 62);
    int top = value.exponent + 62;  // the leading one is worth 2^top
    if (top > 127) return 0x7f800000u;
    // 39 bits too many, and one more for every binade below the smallest normal number.
    int shift = top >= -126 ? 39 : 39 - 126 - top;
    if (shift > 63) return 0;
    uint64_t kept = value.mantissa >> shift;
    uint64_t rest = value.mantissa & (((uint64_t)1 << shift) - 1);
    uint64_t half = (uint64_t)1 << (shift - 1);
    kept += rest > half || (rest == half && (kept & 1));
    // The leading one, or a carry out of the rounding, counts the exponent up by itself.
    return (uint32_t)kept + (top >= -126 ? (uint32_t)(top + 126) << 23 : 0);
}

// The exact fma by integers. Two terms with their leading ones at bit 61 are aligned and added; of
// the smaller one, what falls below bit 0 is or-ed into bit 0. That is exact enough: the low 14
// bits of either are 0, so bits are lost only where cancellation takes at most one place.
static inline float lk_soft_fmaf(float a, float b, float c) {
    uint32_t a_bits = lk_float_to_bits(a), b_bits = lk_float_to_bits(b);
    uint32_t c_bits = lk_float_to_bits(c);
    uint32_t p_sign = (a_bits ^ b_bits) & 0x80000000u, c_sign = c_bits & 0x80000000u;
    uint32_t infinity = 0x7f800000u, quiet_nan = 0x7fc00000u;
    a_bits &= 0x7fffffffu;
    b_bits &= 0x7fffffffu;
    c_bits &= 0x7fffffffu;
    if (a_bits > infinity || b_bits > infinity || c_bits > infinity) {
        return lk_float_from_bits(quiet_nan);
    }
    if (a_bits == infinity || b_bits == infinity) {
        int undefined = a_bits == 0 || b_bits == 0 || (c_bits == infinity && c_sign != p_sign);
        return lk_float_from_bits(undefined ? quiet_nan : p_sign | infinity);
    }
    if (a_bits == 0 || b_bits == 0) {
        // 0 + c is c; and zeros of unlike sign add to +0.
        return c_bits == 0 ? lk_float_from_bits(p_sign & c_sign) : c;
    }
    if (c_bits == infinity) return c;

    lk_soft_float x = lk_soft_unpack(a_bits), y = lk_soft_unpack(b_bits);
    x = lk_soft_normalise(x.mantissa * y.mantissa, x.exponent + y.exponent, 61);
    if (c_bits == 0) return lk_float_from_bits(p_sign | lk_soft_round(x.mantissa, x.exponent));
    y = lk_soft_unpack(c_bits);
    y = lk_soft_normalise(y.mantissa, y.exponent, 61);

    uint32_t sign = p_sign;
    if (y.exponent > x.exponent || (y.exponent == x.exponent && y.mantissa > x.mantissa)) {
        lk_soft_float larger = y;
        y = x;
        x = larger;
        sign = c_sign;
    }
    int shift = x.exponent - y.exponent;
    if (shift > 62) shift = 62;
    uint64_t lost = y.mantissa & (((uint64_t)1 << shift) - 1);
    uint64_t smaller = (y.mantissa >> shift) | (lost != 0);
    uint64_t sum = p_sign == c_sign ? x.mantissa + smaller : x.mantissa - smaller;
    if (sum == 0) return 0.0f;
    return lk_float_from_bits(sign | lk_soft_round(sum, x.exponent));
}

#ifdef __x86_64__
// The exact fma through double. The product of two floats is exact in double; the sum is taken with
// its error (two-sum), rounded to odd, and then to float. Rounding to odd first makes the second
// rounding right, since double has more than two bits to spare, also for subnormal results.
static inline float lk_wide_fmaf(float a, float b, float c) {
    double product = (double)a * (double)b, addend = (double)c;
    double sum = product + addend;
    double from_addend = sum - product;
    double error = (product - (sum - from_addend)) + (addend - from_addend);
    uint64_t sum_bits, error_bits;
    __builtin_memcpy(&sum_bits, &sum, sizeof sum_bits);
    __builtin_memcpy(&error_bits, &error, sizeof error_bits);
    // An even sum that is inexact moves one step to where the error points; that neighbour is odd.
    // Where the sum is infinite or NaN the error is NaN, and the comparison does not hold.
    uint64_t even = ~sum_bits & 1;
    uint64_t inward = (sum_bits ^ error_bits) >> 63;  // 1: the error points towards zero
    uint64_t odd_bits = sum_bits + even - 2 * (even & inward);
    double odd;
    __builtin_memcpy(&odd, &odd_bits, sizeof odd);
    sum = __builtin_fabs(error) > 0.0 ? odd : sum;
    return (float)sum;
}
#endif

// a * b + c, rounded once. LK_USE_SOFT_FMAF chooses the integers anywhere (tests do).
LK_SCALAR float lk_fmaf(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
    return __fmaf_rn(a, b, c);
#elif defined(LK_USE_SOFT_FMAF)
    return lk_soft_fmaf(a, b, c);
#elif defined(__FMA__) || defined(__aarch64__) || defined(__ARM_FEATURE_FMA) || \
    defined(__riscv_flen)
    return __builtin_fmaf(a, b, c);
#elif defined(__x86_64__)
    return lk_wide_fmaf(a, b, c);
#else
    return lk_soft_fmaf(a, b, c);
#endif
}

#endif
