// bf16.h - what an operand in bf16 must be (ops/cuda/operand.h), said another way.
#ifndef LOCKSTEP_TESTS_CUDA_BF16_H
#define LOCKSTEP_TESTS_CUDA_BF16_H

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

#endif
