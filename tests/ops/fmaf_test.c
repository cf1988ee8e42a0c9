// fmaf_test.c - the software fmas, and the short one of the portable kernels, over random and nasty
// triples, against an fma of long integers and, where the processor has one, its own.
//
// The first argument is the number of millions of triples (default 3).
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "arena/base.h"
#include "ops/fmaf.h"
#include "tests/ops/quick_fma.h"

static uint64_t triples = 3u * 1000 * 1000;

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

// --- the oracle: fma by integers of 640 bits, which knows nothing of the functions it judges -----

enum { WORDS = 20, LOWEST = -298 };  // bit 0 is worth 2^-298; the largest product is below 2^256

typedef struct long_number {
    uint32_t word[WORDS];
} long_number;

static long_number long_at(uint64_t mantissa, int exponent) {
    long_number n = {{0}};
    for (int bit = exponent - LOWEST; mantissa; mantissa >>= 1, bit++) {
        if (mantissa & 1) n.word[bit / 32] |= 1u << bit % 32;
    }
    return n;
}

static int long_compare(const long_number *a, const long_number *b) {
    for (int i = WORDS - 1; i >= 0; i--) {
        if (a->word[i] != b->word[i]) return a->word[i] > b->word[i] ? 1 : -1;
    }
    return 0;
}

static long_number long_add(const long_number *a, const long_number *b, bool subtract) {
    long_number sum;
    uint64_t carry = subtract;
    for (int i = 0; i < WORDS; i++) {
        carry += (uint64_t)a->word[i] + (subtract ? ~b->word[i] : b->word[i]);
        sum.word[i] = (uint32_t)carry;
        carry >>= 32;
    }
    return sum;
}

static uint32_t long_bit(const long_number *n, int bit) {
    return bit < 0 ? 0 : n->word[bit / 32] >> bit % 32 & 1;
}

// To the nearest float, ties to even.
static uint32_t long_round(const long_number *n) {
    int top = WORDS * 32 - 1;
    while (top >= 0 && !long_bit(n, top)) top--;
    if (top < 0) return 0;
    int low = LK_MAX(top - 23, -149 - LOWEST);  // the last bit that a float keeps
    uint32_t kept = 0, rest = 0;
    for (int bit = top; bit >= low; bit--) kept = kept << 1 | long_bit(n, bit);
    for (int bit = 0; bit < low - 1; bit++) rest |= long_bit(n, bit);
    kept += long_bit(n, low - 1) && (rest || kept & 1);
    // In units of 2^(low + LOWEST): the bits of a float count on by themselves.
    uint32_t bits = kept + ((uint32_t)(low + LOWEST + 149) << 23);
    return bits > 0x7f800000u ? 0x7f800000u : bits;
}

static uint32_t mantissa_of(uint32_t bits) {
    return (bits & 0x7fffffu) | (bits >> 23 & 0xff ? 0x800000u : 0);
}
static int exponent_of(uint32_t bits) { return LK_MAX((int)(bits >> 23 & 0xff), 1) - 150; }

static float oracle(float a, float b, float c) {
    uint32_t x = lk_float_to_bits(a), y = lk_float_to_bits(b), z = lk_float_to_bits(c);
    // Of infinities and NaN, two roundings are as good as one.
    if ((x >> 23 & 0xff) == 0xff || (y >> 23 & 0xff) == 0xff) return a * b + c;
    if ((z >> 23 & 0xff) == 0xff) return c;
    bool minus = (x ^ y) >> 31, minus_c = z >> 31;
    long_number p =
        long_at((uint64_t)mantissa_of(x) * mantissa_of(y), exponent_of(x) + exponent_of(y));
    long_number q = long_at(mantissa_of(z), exponent_of(z)), sum;
    int order = long_compare(&p, &q);
    if (minus == minus_c) {
        sum = long_add(&p, &q, false);
    } else {
        sum = order >= 0 ? long_add(&p, &q, true) : long_add(&q, &p, true);
        minus = order == 0 ? false : order > 0 ? minus : minus_c;
    }
    return lk_float_from_bits((uint32_t)minus << 31 | long_round(&sum));
}

// --- the judged ----------------------------------------------------------------------------------

#ifdef __x86_64__
__attribute__((target("fma"))) static float hardware_fma(float a, float b, float c) {
    return __builtin_fmaf(a, b, c);
}
static bool has_hardware(void) { return __builtin_cpu_supports("fma"); }
static float wide_fma(float a, float b, float c) { return lk_wide_fmaf(a, b, c); }
#else
static float hardware_fma(float a, float b, float c) { return lk_fmaf(a, b, c); }
static bool has_hardware(void) { return true; }
static float wide_fma(float a, float b, float c) { return lk_fmaf(a, b, c); }
#endif

static uint64_t quick_right, quick_refused;  // fours of triples

// The short fma takes four triples at once.
static void check_quick(float a, float b, float c, float want) {
    static float x[4], y[4], z[4], wanted[4], got[4];
    static unsigned count;
    x[count] = a, y[count] = b, z[count] = c, wanted[count] = want;
    if (++count < 4) return;
    count = 0;
    if (!quick_fma(x, y, z, got)) {
        // Only for a result that is subnormal, or was until it was rounded.
        float least = 1.0f;
        for (int i = 0; i < 4; i++) least = LK_MIN(least, __builtin_fabsf(wanted[i]));
#ifdef __x86_64__
        if (least > 0x1p-126f) fail_msg("an underflow where the least result is %a", (double)least);
#endif
        quick_refused++;
        return;
    }
    quick_right++;
    for (int i = 0; i < 4; i++) {
        if (same(wanted[i], got[i])) continue;
        fail_msg("fma(%a, %a, %a) is %a; the short way says %a", (double)x[i], (double)y[i],
                 (double)z[i], (double)wanted[i], (double)got[i]);
    }
}

static void check(float a, float b, float c) {
    float want = oracle(a, b, c);
    float soft = lk_soft_fmaf(a, b, c), wide = wide_fma(a, b, c);
    float hard = has_hardware() ? hardware_fma(a, b, c) : want;
    check_quick(a, b, c, want);
    if (same(want, soft) && same(want, wide) && same(want, hard)) return;
    fail_msg("fma(%a, %a, %a) is %a; lk_soft_fmaf says %a, lk_wide_fmaf %a, the processor %a",
             (double)a, (double)b, (double)c, (double)want, (double)soft, (double)wide,
             (double)hard);
}

// A float whose exponent field is uniform in [low, high] and whose mantissa is random, or has few
// ones, or few zeros: long runs of equal bits are where halfway cases and carries come from.
static float random_float(unsigned low, unsigned high) {
    uint64_t r = next_random();
    uint32_t mantissa = (uint32_t)r & 0x7fffffu;
    if ((r >> 60) < 5)
        mantissa &= mantissa >> 3 & (uint32_t)(r >> 24) & 0x7fffffu;
    else if ((r >> 60) < 10)
        mantissa |= (uint32_t)(r >> 20) | (uint32_t)(r >> 30);
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

// Sums so near to halfway between two floats, normal and subnormal, that the sum in double is
// halfway: what two roundings get wrong. (1 + i u) (1 - i u) is 1 - (i u)^2, u = 2^-23: half a unit
// of c, but for less than double keeps beside c where i is small. And sums that are halfway.
static void test_halfway(void **state) {
    (void)state;
    for (uint64_t k = 0; k < triples / 2; k++) {
        uint64_t r = next_random();
        // Eight of a kind follow each other: the short way goes by fours.
        bool subnormal = k / 8 % 2 != 0;
        float i = (float)(r & (r & 1 << 20 ? 0x1ff : 1)) * 0x1p-23f;
        float a = r & 1 << 21 ? -1.0f - i : 1.0f + i, b = 1.0f - i;
        uint32_t m = (uint32_t)(r >> 32) & 0x7fffffu, sign = (uint32_t)(r >> 22 & 1) << 31;
        int places = (int)(r >> 23 & 0xff) % 100 - 50;
        float size = lk_float_from_bits((uint32_t)(places + 127) << 23);
        uint32_t normal = subnormal ? 0 : (uint32_t)(places + 127) << 23;
        a = subnormal ? a * 0x1p-70f : a * size;
        b = subnormal ? b * 0x1p-80f : b * 0x1p-24f;
        check(a, b, lk_float_from_bits(sign | normal | m));
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
    if (argc > 1) triples = strtoull(argv[1], NULL, 10) * 1000 * 1000;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_halfway),
        cmocka_unit_test(test_random),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    printf("the short way: %llu fours right, %llu refused\n", (unsigned long long)quick_right,
           (unsigned long long)quick_refused);
    return failed;
}
