// operands.h - what an operand of 16 bits must be (ops/cuda/operand.h), said another way: the
// number that it is, and its bits.
#ifndef LOCKSTEP_TESTS_CUDA_OPERANDS_H
#define LOCKSTEP_TESTS_CUDA_OPERANDS_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

// Nearest, ties to even, in all sixteen bits; subnormals; the largest numbers become infinite. What
// is not zero does not become so.
static inline float to_bf16(float value) {
    const bool zero = value == 0.0f;
    uint32_t bits, low;
    memcpy(&bits, &value, sizeof bits);
    low = bits & 0xffffu;
    bits -= low;
    if (low > 0x8000u || (low == 0x8000u && (bits & 0x10000u))) bits += 0x10000u;
    if (!zero && (bits & 0x7fffffffu) == 0) bits |= 0x10000u;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint16_t bf16_bits(float operand) {
    uint32_t bits;
    memcpy(&bits, &operand, sizeof bits);
    return (uint16_t)(bits >> 16);
}

// The same of binary16: as many quanta, of 2^-24 or more, as are nearest.
static inline float to_fp16(float value) {
    if (value == 0.0f || !isfinite(value)) return value;
    const int exponent = ilogbf(value);
    const int quantum = (exponent < -14 ? -14 : exponent) - 10;
    const double whole = rint(ldexp((double)value, -quantum));
    const double rounded = ldexp(whole == 0.0 ? 1.0 : fabs(whole), quantum);
    return copysignf(rounded > 65504.0 ? INFINITY : (float)rounded, value);
}

static inline uint16_t fp16_bits(float operand) {
    const uint32_t sign = signbit(operand) ? 0x8000u : 0;
    const float size = fabsf(operand);
    if (isinf(operand)) return (uint16_t)(sign | 0x7c00u);
    if (size < 0x1p-14f) return (uint16_t)(sign | (uint32_t)ldexpf(size, 24));
    const int exponent = ilogbf(size);
    const uint32_t fraction = (uint32_t)ldexpf(size, 10 - exponent) & 0x3ffu;
    return (uint16_t)(sign | (uint32_t)(exponent + 15) << 10 | fraction);
}

#endif
