// same.h - are the numbers of a GPU those of the processor? A NaN has the bits of whoever made it
// (0x7fffffff on a GPU, 0xffc00000 on x86-64), so any is any other of its type; everything else is
// compared bit for bit.
#ifndef LOCKSTEP_TESTS_CUDA_GPU_SAME_H
#define LOCKSTEP_TESTS_CUDA_GPU_SAME_H

#include <stdint.h>
#include <string.h>

#include "arena/plan.h"

static inline bool bits_are_nan(lk_dtype dtype, uint32_t bits) {
    if (dtype == LK_F32) return (bits & 0x7fffffffu) > 0x7f800000u;
    if (dtype == LK_F16) return (bits & 0x7fffu) > 0x7c00u;
    return dtype == LK_BF16 && (bits & 0x7fffu) > 0x7f80u;
}

// Number `i` of those at `at`; floats of any type by their bits.
static inline uint32_t bits_at(lk_dtype dtype, const void *at, uint64_t i) {
    const uint64_t bytes = lk_dtype_bytes(dtype);
    const uint8_t *from = (const uint8_t *)at + i * bytes;
    uint16_t half = 0;
    uint32_t whole = 0;
    if (bytes == 1) return *from;
    if (bytes == sizeof half) {
        memcpy(&half, from, sizeof half);
        return half;
    }
    memcpy(&whole, from, sizeof whole);
    return whole;
}

static inline bool same_numbers(lk_dtype dtype, const void *a, const void *b, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t x = bits_at(dtype, a, i), y = bits_at(dtype, b, i);
        if (x != y && !(bits_are_nan(dtype, x) && bits_are_nan(dtype, y))) return false;
    }
    return true;
}

static inline uint64_t count_nans(lk_dtype dtype, const void *at, uint64_t count) {
    uint64_t nans = 0;
    for (uint64_t i = 0; i < count; i++) nans += bits_are_nan(dtype, bits_at(dtype, at, i));
    return nans;
}

#endif
