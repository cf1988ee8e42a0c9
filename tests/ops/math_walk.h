// math_walk.h - the floats that a sweep of the scalar functions visits, and the hash of what it
// found. Freestanding: the sweep of the host and that of an emulated target walk the same.
#ifndef LOCKSTEP_TESTS_OPS_MATH_WALK_H
#define LOCKSTEP_TESTS_OPS_MATH_WALK_H

#include "arena/base.h"
#include "ops/fmaf.h"

enum { MATH_BLOCK = 4096 };

// Sees `count` arguments, at most MATH_BLOCK, in no promised order.
typedef void math_visitor(void *context, const float *x, size_t count);

// Every `stride`-th pattern from `first` to before `end`; x is room for MATH_BLOCK.
static inline void math_walk(uint64_t first, uint64_t end, uint64_t stride, float *x,
                             math_visitor *visit, void *context) {
    size_t count = 0;
    for (uint64_t u = first; u < end; u += stride) {
        x[count++] = lk_float_from_bits((uint32_t)u);
        if (count < MATH_BLOCK) continue;
        visit(context, x, count);
        count = 0;
    }
    visit(context, x, count);
}

// Where something changes: the limits of the clamps, of overflow and underflow, of each power of
// two, of the reduction (2/3), around 1 and the multiples of ln 2 / 2; 1,024 patterns each side.
static inline void math_walk_edges(float *x, math_visitor *visit, void *context) {
    static const uint32_t edges[] = {
        0x00000000, 0x00800000, 0x3f2aaaab, 0x3f800000, 0x3faaaaab, 0x42b00f34, 0x42aeac50,
        0x42b17218, 0x42b20000, 0x42cff1b5, 0x42ce8ed0, 0x42d00000, 0x7f800000,
    };
    for (size_t i = 0; i < LK_COUNT(edges) + 254 + 300; i++) {
        uint32_t middle = edges[i % LK_COUNT(edges)];
        if (i >= LK_COUNT(edges)) middle = (uint32_t)(i - LK_COUNT(edges) + 1) << 23;
        if (i >= LK_COUNT(edges) + 254) {
            middle = lk_float_to_bits((float)(i - LK_COUNT(edges) - 253) * 0x1.62e43p-2f);
        }
        for (uint64_t sign = 0; sign < 2; sign++) {
            uint64_t first = ((uint32_t)(middle - 1024) & 0x7fffffffu) | sign << 31;
            math_walk(first, first + 2048, 1, x, visit, context);
        }
    }
}

// All NaNs are one: payload and sign belong to the machine.
static inline uint32_t math_result_bits(float y) {
    return y != y ? 0x7fc00000u : lk_float_to_bits(y);
}

// The hash of a sweep is the sum of these, so that threads may share the work.
static inline uint64_t math_hash(float x, float y) {
    uint64_t z = (uint64_t)lk_float_to_bits(x) << 32 | math_result_bits(y);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

// What every compiler, instruction set and target must find: sums at strides 1, 509 and 65,537;
// 0: not taken.
typedef struct math_expected {
    uint64_t full, strided, coarse;
} math_expected;

static const math_expected math_expected_exp = {0xf3fcc451da4e5280, 0xc4f31b70c2a325f1,
                                                0xe3e554c3a5719309};
static const math_expected math_expected_log = {0x7100ca39d5d40740, 0x4853db76d0f94734,
                                                0xe07a21e2d533829b};
static const math_expected math_expected_sqrt = {0x3692ef38b40c18c4, 0x970042c0ad735bb3,
                                                 0x50eb760b148145d1};

static const math_expected math_expected_tanh = {0x050678ac685ab3de, 0x8fd4188d7cdb4b55,
                                                 0x6eb1b221bb5b49c5};
static const math_expected math_expected_sigmoid = {0xab35992e54961766, 0xc1a3bcd62ef8ac85,
                                                    0xb2db25efad306761};

static const math_expected math_expected_elu = {0, 0x3506bfc11427e5cd, 0x374170aa7aaef4ac};
static const math_expected math_expected_softplus = {0, 0x34c7ae6393b38b2c, 0xce8f2669b9115b8f};
static const math_expected math_expected_swish = {0, 0xa918686eb4b2828f, 0x39d4df050fb054f3};
static const math_expected math_expected_gelu = {0, 0x7ba6524b6acde379, 0x0b83c2f2dabe3f84};
static const math_expected math_expected_gelu_tanh = {0, 0xd9b5937e7456ffeb, 0xf23cb48396e8728d};

static inline uint64_t math_expect(const math_expected *e, uint64_t stride) {
    return stride == 1 ? e->full : stride == 509 ? e->strided : stride == 65537 ? e->coarse : 0;
}

#endif
