// half_test.c - floats of 16 bits: every conversion of every variant that this processor runs,
// against a judge that knows only what the numbers mean, in double.
//
//   test_half [STRIDE]    every STRIDE-th float (default 4001; 1 is all 2^32), all 2^16 halves, and
//                         all floats around the edges between two halves
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ops/half.h"
#include "ops/op.h"
#include "ops/variant.h"

enum { THREADS = 2, BLOCK = 1024, HALVES = 1 << 16 };

static const lk_dtype dtypes[] = {LK_F16, LK_BF16};
static uint64_t stride = 4001;

// --- the judge -----------------------------------------------------------------------------------

typedef struct format {
    int mantissa_bits, exponent_bits;
} format;

static format format_of(lk_dtype dtype) {
    return dtype == LK_F16 ? (format){10, 5} : (format){7, 8};
}

static double value_of(lk_dtype dtype, uint16_t h) {
    const format f = format_of(dtype);
    const int bias = (1 << (f.exponent_bits - 1)) - 1, top = (1 << f.exponent_bits) - 1;
    const int exponent = h >> f.mantissa_bits & top, mantissa = h & ((1 << f.mantissa_bits) - 1);
    const double sign = h >> 15 ? -1.0 : 1.0;
    if (exponent == top) return mantissa ? (double)NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexp(mantissa, 1 - bias - f.mantissa_bits);
    return sign * ldexp(mantissa + (1 << f.mantissa_bits), exponent - bias - f.mantissa_bits);
}

// x in units of the last place that the format has there, to the nearest whole number, ties to
// even: rint() of double, whose mode is that.
static double rounded(lk_dtype dtype, double x) {
    const format f = format_of(dtype);
    const int least = 2 - (1 << (f.exponent_bits - 1));  // exponent of the least normal number
    int exponent;
    if (isnan(x) || isinf(x) || x == 0) return x;
    (void)frexp(x, &exponent);
    const int place = (exponent - 1 < least ? least : exponent - 1) - f.mantissa_bits;
    const double y = ldexp(rint(ldexp(x, -place)), place);
    return fabs(y) < ldexp(1, 1 << (f.exponent_bits - 1)) ? y : copysign(INFINITY, x);
}

// Of a number that the format has.
static uint16_t bits_of(lk_dtype dtype, double y) {
    const format f = format_of(dtype);
    const int bias = (1 << (f.exponent_bits - 1)) - 1;
    const uint32_t sign = signbit(y) ? 0x8000 : 0, top = (1u << f.exponent_bits) - 1;
    int exponent;
    if (isinf(y)) return (uint16_t)(sign | top << f.mantissa_bits);
    const double part = frexp(fabs(y), &exponent);  // 1/2 to 1
    if (y == 0 || exponent - 1 < 1 - bias) {
        return (uint16_t)(sign | (uint32_t)ldexp(fabs(y), bias - 1 + f.mantissa_bits));
    }
    const uint32_t mantissa = (uint32_t)ldexp(2 * part - 1, f.mantissa_bits);
    return (uint16_t)(sign | (uint32_t)(exponent - 1 + bias) << f.mantissa_bits | mantissa);
}

static bool same(double a, double b) {
    return (isnan(a) && isnan(b)) || (a == b && signbit(a) == signbit(b));
}

// --- the conversions -----------------------------------------------------------------------------

// What a block of floats becomes, by the judge, and by every variant.
static uint64_t look_at(const float *x, uint32_t count) {
    _Alignas(64) uint16_t h[BLOCK];
    _Alignas(64) float y[BLOCK];
    const lk_kernels *k;
    uint64_t wrong = 0;
    for (unsigned d = 0; d < LK_COUNT(dtypes); d++) {
        uint16_t want[BLOCK];
        float value[BLOCK];
        for (uint32_t i = 0; i < count; i++) {
            const double nearest = rounded(dtypes[d], (double)x[i]);
            value[i] = (float)nearest;
            want[i] = isnan(nearest) ? 0 : bits_of(dtypes[d], nearest);
        }
        for (unsigned v = 0; (void)lk_kernels_missing(v, &k), k; v++) {
            if (lk_kernels_missing(v, &k) || !k->narrow) continue;
            const lk_narrow how = {.dtype = dtypes[d]};
            (void)k->narrow(&how, count, x, h);
            (void)k->round(dtypes[d], count, x, y);
            for (uint32_t i = 0; i < count; i++) {
                if (isnan(value[i])) continue;
                wrong += h[i] != want[i] || lk_float_to_bits(y[i]) != lk_float_to_bits(value[i]);
            }
        }
        for (uint32_t i = 0; i < count; i++) {  // as the reference has it, NaN too
            const uint16_t one =
                dtypes[d] == LK_F16 ? lk_half_from_float(x[i]) : lk_bfloat_from_float(x[i]);
            const bool no_number = isnan(value_of(dtypes[d], one));
            wrong += isnan(value[i]) ? !no_number : one != want[i];
        }
    }
    return wrong;
}

typedef struct share {
    uint64_t first, wrong;
} share;

static void *sweep(void *context) {
    share *s = context;
    float x[BLOCK];
    uint32_t count = 0;
    for (uint64_t bits = s->first * stride; bits < 1ull << 32; bits += THREADS * stride) {
        x[count++] = lk_float_from_bits((uint32_t)bits);
        if (count < BLOCK) continue;
        s->wrong += look_at(x, count);
        count = 0;
    }
    s->wrong += look_at(x, count);
    return NULL;
}

static void test_floats(void **state) {
    (void)state;
    pthread_t thread[THREADS];
    share shares[THREADS] = {{0}};
    for (uint64_t t = 0; t < THREADS; t++) {
        shares[t].first = t;
        assert_int_equal(pthread_create(&thread[t], NULL, sweep, &shares[t]), 0);
    }
    for (unsigned t = 0; t < THREADS; t++) {
        (void)pthread_join(thread[t], NULL);
        assert_int_equal(shares[t].wrong, 0);
    }
}

// Halfway between two neighbours, and the floats beside it: where a rounding is decided.
static void test_edges(void **state) {
    (void)state;
    enum { EACH = 6 };
    float all[BLOCK], *x = all;
    for (unsigned d = 0; d < LK_COUNT(dtypes); d++) {
        for (uint32_t h = 0; h < HALVES; h++) {
            const double a = value_of(dtypes[d], (uint16_t)h);
            const double b = value_of(dtypes[d], (uint16_t)(h + 1));
            if (isnan(a) || isnan(b) || isinf(a)) continue;
            x[0] = (float)a;
            // The number that would follow the largest one.
            x[1] = (float)(isinf(b) ? a + (a - value_of(dtypes[d], (uint16_t)(h - 1))) / 2
                                    : (a + b) / 2);
            x[2] = nextafterf(x[1], INFINITY), x[3] = nextafterf(x[1], -INFINITY);
            x[4] = nextafterf(x[0], INFINITY), x[5] = nextafterf(x[0], -INFINITY);
            x += EACH;
            if (x + EACH <= all + BLOCK) continue;
            assert_int_equal(look_at(all, (uint32_t)(x - all)), 0);
            x = all;
        }
    }
    assert_int_equal(look_at(all, (uint32_t)(x - all)), 0);
}

static void test_halves(void **state) {
    (void)state;
    for (uint32_t i = 0; i < HALVES; i++) {
        for (unsigned d = 0; d < LK_COUNT(dtypes); d++) {
            const double y = value_of(dtypes[d], (uint16_t)i);
            if (!isnan(y)) assert_int_equal(bits_of(dtypes[d], y), i);
        }
    }
    const lk_kernels *k;
    static _Alignas(64) uint16_t h[HALVES];
    static _Alignas(64) float y[HALVES];
    for (uint32_t i = 0; i < HALVES; i++) h[i] = (uint16_t)i;
    for (unsigned d = 0; d < LK_COUNT(dtypes); d++) {
        for (unsigned v = 0; (void)lk_kernels_missing(v, &k), k; v++) {
            if (lk_kernels_missing(v, &k) || !k->widen) continue;
            for (uint32_t cut = 0; cut < 3; cut++) {
                k->widen(dtypes[d], HALVES - cut, h, y);
                for (uint32_t i = 0; i < HALVES - cut; i++) {
                    assert_true(same((double)y[i], value_of(dtypes[d], (uint16_t)i)));
                }
            }
        }
        for (uint32_t i = 0; i < HALVES; i++) {
            const float one =
                dtypes[d] == LK_F16 ? lk_half_to_float(h[i]) : lk_bfloat_to_float(h[i]);
            assert_true(same((double)one, value_of(dtypes[d], h[i])));
        }
    }
}

// --- what is stored, and when it is said to be no number -----------------------------------------

static double stored(const lk_narrow *how, float x, uint16_t mask, bool *bad) {
    const double one_layer = x > 0 ? rounded(how->dtype, (double)x) : 0.0;
    const double y = rounded(how->dtype, (double)x);
    *bad = how->rule == LK_NARROW_RELU ? !isfinite(x) || !isfinite(one_layer) : !isfinite(y);
    switch (how->rule) {
    case LK_NARROW_RELU: return one_layer;
    case LK_NARROW_RELU_AFTER: return y > 0 ? y : 0.0;
    case LK_NARROW_MASK: return value_of(how->dtype, mask) > 0 ? y : 0.0;
    case LK_NARROW: break;
    }
    return y;
}

static const float nasty[] = {0.0f,      -0.0f,    1.0f,      -1.5f,        65504.0f,     65519.0f,
                              65520.0f,  -65520.f, -70000.0f, 0x1p-14f,     0x1.8p-25f,   -0x1p-26f,
                              0x1p-149f, 0x1p20f,  -0x1p20f,  0x1.fffp127f, -0x1.fffp127f};

static const float special[] = {INFINITY, -INFINITY, NAN, -NAN};

static void one_row(const lk_kernels *k, const lk_narrow *how, uint32_t count, const float *x) {
    _Alignas(64) uint16_t got[64];
    bool want_bad = false, one;
    memset(got, 0x5a, sizeof got);
    const bool bad = k->narrow(how, count, x, got) != 0;
    for (uint32_t i = 0; i < count; i++) {
        (void)stored(how, x[i], how->mask[i], &one);
        want_bad |= one;
    }
    assert_int_equal(bad, want_bad);
    assert_int_equal(got[count], 0x5a5a);
    for (uint32_t i = 0; i < count && !bad; i++) {
        assert_true(same(value_of(how->dtype, got[i]), stored(how, x[i], how->mask[i], &one)));
    }
}

static void test_rules(void **state) {
    (void)state;
    const lk_kernels *k;
    uint32_t draw = 7;
    for (uint32_t round = 0; round < 4000; round++) {
        _Alignas(64) float x[64] = {0};
        _Alignas(64) uint16_t mask[64] = {0};
        const uint32_t count = 1 + (draw = draw * 1664525u + 1013904223u) % 50;
        const lk_dtype dtype = dtypes[round % 2];
        for (uint32_t i = 0; i < count; i++) {
            draw = draw * 1664525u + 1013904223u;
            x[i] =
                draw >> 28 ? (float)(int32_t)draw * 0x1p-20f : nasty[(draw >> 8) % LK_COUNT(nasty)];
            mask[i] = draw >> 9 & 1 ? lk_half_from_float(1.0f) : (uint16_t)(draw & 0x8000);
        }
        if (round % 8 < 2) x[count - 1] = special[round / 8 % LK_COUNT(special)];
        for (unsigned v = 0; (void)lk_kernels_missing(v, &k), k; v++) {
            if (lk_kernels_missing(v, &k) || !k->narrow) continue;
            for (int rule = LK_NARROW; rule <= LK_NARROW_MASK; rule++) {
                const lk_narrow how = {dtype, (lk_narrow_rule)rule, mask};
                one_row(k, &how, count, x);
            }
        }
    }
}

// --- a pool among rounded values -----------------------------------------------------------------

enum { SIDE = 5, CHANNELS = 37, POOLED = SIDE / 2 * (SIDE / 2) };

// Few values, so that many are equal once they are rounded.
static float drawn(uint32_t *draw) {
    *draw = *draw * 1664525u + 1013904223u;
    const float near = 1.0f + (float)(*draw >> 20 & 7) * 0x1p-12f;
    switch (*draw >> 28) {
    case 0: return nasty[(*draw >> 8) % 5];
    case 1: return -near;
    case 2: return (float)(int32_t)*draw * 0x1p-20f;
    default: return near;
    }
}

static void pool_case(const lk_kernels *k, const lk_narrow *how, const lk_conv2d *c,
                      const float *src) {
    uint16_t want[POOLED * CHANNELS + 32], got[POOLED * CHANNELS + 32];
    uint8_t want_cell[POOLED * CHANNELS + 32], got_cell[POOLED * CHANNELS + 32];
    const uint64_t count = (uint64_t)POOLED * c->out_c;
    memset(got, 0x5a, sizeof got);
    memset(got_cell, 0x5a, sizeof got_cell);
    const uint32_t bad = lk_kernels_reference.narrow_pool(how, c, src, want, want_cell);
    assert_int_equal(k->narrow_pool(how, c, src, got, got_cell) != 0, bad != 0);
    assert_int_equal(got[count], 0x5a5a);
    assert_int_equal(got_cell[count], 0x5a);
    if (bad) return;
    assert_memory_equal(got, want, count * sizeof *want);
    assert_memory_equal(got_cell, want_cell, count);
}

static void test_pool(void **state) {
    (void)state;
    const lk_kernels *k;
    static float src[SIDE * SIDE * CHANNELS];
    uint32_t draw = 11;
    for (uint32_t round = 0; round < 600; round++) {
        const lk_conv2d c = {.out_h = SIDE, .out_w = SIDE, .out_c = 1 + round % CHANNELS};
        for (uint32_t i = 0; i < SIDE * SIDE * c.out_c; i++) src[i] = drawn(&draw);
        // Not looked at: what the pool drops.
        if (round % 3 == 0) src[SIDE * SIDE * c.out_c - 1] = NAN;
        if (round % 7 == 0) src[(round / 7) % c.out_c] = round % 2 ? 70000.0f : -70000.0f;
        for (unsigned v = 0; (void)lk_kernels_missing(v, &k), k; v++) {
            if (lk_kernels_missing(v, &k) || !k->narrow_pool) continue;
            for (int rule = LK_NARROW; rule <= LK_NARROW_RELU_AFTER; rule++) {
                const lk_narrow how = {dtypes[round % 2], (lk_narrow_rule)rule, NULL};
                pool_case(k, &how, &c, src);
            }
        }
    }
}

int main(int argc, char **argv) {
    if (argc > 1) stride = strtoull(argv[1], NULL, 10);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_halves), cmocka_unit_test(test_edges),
                                       cmocka_unit_test(test_floats), cmocka_unit_test(test_rules),
                                       cmocka_unit_test(test_pool)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
