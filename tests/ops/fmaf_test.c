// fmaf_test.c - both software fmas against the processor's own, over random and nasty triples.
//
// Built with the instruction set that has fma (see CMakeLists.txt); skipped where the CPU lacks it.
// The first argument is the number of millions of triples (default 24).
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "arena/base.h"
#include "ops/fmaf.h"

static uint64_t triples = 24u * 1000 * 1000;

static uint64_t random_state = 0x9E3779B97F4A7C15u;

// splitmix64
static uint64_t next_random(void) {
    uint64_t z = random_state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static bool same(float a, float b) {
    return (a != a && b != b) || lk_float_to_bits(a) == lk_float_to_bits(b);
}

static void check(float a, float b, float c) {
    float want = __builtin_fmaf(a, b, c);
    float soft = lk_soft_fmaf(a, b, c);
#ifdef __x86_64__
    float wide = lk_wide_fmaf(a, b, c);
#else
    float wide = want;
#endif
    if (same(want, soft) && same(want, wide)) return;
    fail_msg("fma(%a, %a, %a) is %a; lk_soft_fmaf says %a, lk_wide_fmaf %a", (double)a, (double)b,
             (double)c, (double)want, (double)soft, (double)wide);
}

// A float whose exponent field is uniform in [low, high] and whose mantissa is random, or has few
// ones, or few zeros: long runs of equal bits are where halfway cases and carries come from.
static float random_float(unsigned low, unsigned high) {
    uint64_t r = next_random();
    uint32_t mantissa = (uint32_t)r & 0x7fffffu;
    if ((r >> 60) < 5) mantissa &= mantissa >> 3 & (uint32_t)(r >> 24) & 0x7fffffu;
    else if ((r >> 60) < 10) mantissa |= (uint32_t)(r >> 20) | (uint32_t)(r >> 30);
    uint32_t exponent = low + (uint32_t)((r >> 48 & 0xfff) * (high - low + 1) >> 12);
    return lk_float_from_bits((uint32_t)(r >> 59 & 1) << 31 | exponent << 23 |
                              (mantissa & 0x7fffffu));
}

static float nudged(float value, int steps) {
    return lk_float_from_bits(lk_float_to_bits(value) + (uint32_t)steps);
}

static void test_random(void **state) {
    (void)state;
    for (uint64_t i = 0; i < triples; i++) {
        uint64_t r = next_random();
        float a, b, c;
        switch (i & 7) {
        case 0:  // any bits at all
            a = lk_float_from_bits((uint32_t)r);
            b = lk_float_from_bits((uint32_t)(r >> 32));
            c = lk_float_from_bits((uint32_t)next_random());
            break;
        case 1:  // of one size: ordinary training
            a = random_float(120, 130), b = random_float(120, 130), c = random_float(110, 140);
            break;
        case 2:  // cancellation: c is the rounded negative product, or next to it
            a = random_float(64, 190), b = random_float(64, 190);
            c = nudged(-(a * b), (int)(r & 7) - 3);
            break;
        case 3:  // cancellation where the product is subnormal
            a = random_float(0, 127), b = random_float(1, 24);
            c = nudged(-(a * b), (int)(r & 7) - 3);
            break;
        case 4:  // subnormal result, subnormal operands
            a = random_float(0, 80), b = random_float(20, 100), c = random_float(0, 3);
            break;
        case 5:  // the addend lies near the rounding point of the product, or far below it
            a = random_float(100, 150), b = random_float(100, 150);
            c = random_float(0, 126) * (a * b) * 0x1p-20f;
            break;
        case 6:  // near overflow
            a = random_float(180, 200), b = random_float(180, 200), c = random_float(245, 254);
            break;
        default:  // the product lies near the rounding point of the addend, or far below it
            a = random_float(60, 127), b = random_float(100, 127), c = random_float(110, 127);
            break;
        }
        check(a, b, c);
    }
}

// Every triple of values on the edges.
static void test_edges(void **state) {
    (void)state;
    static const uint32_t edges[] = {
        0x00000000, 0x00000001, 0x00000002, 0x00000003, 0x003fffff, 0x00400000, 0x00400001,
        0x007fffff, 0x00800000, 0x00800001, 0x00ffffff, 0x01000000, 0x0c800000, 0x19800000,
        0x1a000000, 0x1fffffff, 0x20000000, 0x33000000, 0x33000001, 0x33800000, 0x34000000,
        0x3effffff, 0x3f000000, 0x3f000001, 0x3f7fffff, 0x3f800000, 0x3f800001, 0x3f800003,
        0x3fc00000, 0x3fffffff, 0x40000000, 0x40400000, 0x4b000000, 0x4b7fffff, 0x4b800000,
        0x5f000000, 0x5f7fffff, 0x5f800000, 0x7e800000, 0x7effffff, 0x7f000000, 0x7f7ffffe,
        0x7f7fffff, 0x7f800000, 0x7f800001, 0x7fc00000,
    };
    size_t count = 2 * LK_COUNT(edges);
    for (size_t i = 0; i < count * count * count; i++) {
        size_t which[3] = {i % count, i / count % count, i / count / count};
        float value[3];
        for (int j = 0; j < 3; j++) {
            value[j] = lk_float_from_bits(edges[which[j] / 2] | (uint32_t)(which[j] & 1) << 31);
        }
        check(value[0], value[1], value[2]);
    }
}

int main(int argc, char **argv) {
#ifdef __x86_64__
    if (!__builtin_cpu_supports("fma")) return 77;
#endif
    if (argc > 1) triples = strtoull(argv[1], NULL, 10) * 1000 * 1000;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
