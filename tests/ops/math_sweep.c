// math_sweep.c - lk_expf, lk_logf, lk_sqrtf, lk_tanhf, lk_sigmoidf over the floats: error
// against double, and the bits.
//
//   test_math [STRIDE [FUNCTION [fast]]]
//
// Every STRIDE-th float (default 509; 1 is all 2^32), and every edge; `fast` leaves out the
// variants that take ten times as long.
//
// Prints the largest error and its argument, and a hash of all results. The hashes are pinned
// (math_walk.h), and every compiled variant must have the same bits as the first: so they are equal
// under every compiler, optimization level and instruction set that ran this test.
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "arena/base.h"
#include "ops/math.h"
#include "tests/ops/math_kernel.h"
#include "tests/ops/math_walk.h"

enum { THREADS = 2, EXP = 0, LOG, SQRT, TANH, SIGMOID, ELU, SOFTPLUS, SWISH, GELU, GELU_TANH,
       FUNCTIONS };

typedef struct variant {
    const char *name;
    math_kernel *function[FUNCTIONS];
} variant;

// MATH_VARIANTS is X(variant) for each that the build has, the first as the library is compiled:
//   avx2, avx512   with the flags of these kernels
//   plain, soft    without optimization; with fma and sqrt by integers
//   other_...      by the other compiler, where there is one
#define X(name) MATH_DECLARE(name)
MATH_VARIANTS
#undef X
#define X(name) {#name, {math_exp_##name, math_log_##name, math_sqrt_##name, \
                         math_tanh_##name, math_sigmoid_##name, math_elu_##name, \
                         math_softplus_##name, math_swish_##name, math_gelu_##name, \
                         math_gelu_tanh_##name}},
static const variant variants[] = {MATH_VARIANTS};
#undef X

typedef struct function {
    const char *name;
    unsigned number;
    double (*truth)(double);
    double error_max;  // in ulp, as ops/math.h promises
    const math_expected *expected;
    bool finite;  // no promise of infinity and NaN, which no layer has
} function;

typedef struct sweep {
    const function *f;
    uint64_t first, end;              // patterns
    double worst;                     // ulp
    float worst_x;
    uint64_t hash;
    uint64_t differ;                  // results of another variant that differ from variant 0
} sweep;

static uint64_t stride = 509;
static bool fast;

// Whether this processor has the instructions that a variant is compiled with.
static bool runs_here(const char *name) {
#ifdef __x86_64__
    if (strstr(name, "avx512")) {
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    }
    if (strstr(name, "avx2")) {
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    }
#endif
    (void)name;
    return true;
}

// The distance of y from `want` in units of the last place that a float near `want` has.
static double error_in_ulp(float y, double want) {
    if (isnan(want) || isinf(want)) {
        return math_result_bits(y) == math_result_bits((float)want) ? 0 : INFINITY;
    }
    // 2^exponent <= |want| < 2^(exponent + 1), at least the smallest normal float's exponent.
    uint64_t want_bits;
    memcpy(&want_bits, &want, sizeof want_bits);
    int exponent = (int)(want_bits >> 52 & 0x7ff) - 1023;
    if (exponent < -126) exponent = -126;
    // Beyond the largest float infinity is the one right answer.
    if (exponent > 127) return isinf(y) && (y < 0) == (want < 0) ? 0 : INFINITY;
    double got = isinf(y) ? copysign(0x1p128, (double)y) : (double)y;
    uint64_t scale_bits = (uint64_t)(1023 + 23 - exponent) << 52;
    double scale;
    memcpy(&scale, &scale_bits, sizeof scale);
    return fabs(got - want) * scale;
}

static void sweep_block(void *context, const float *x, size_t count) {
    static _Thread_local float y[MATH_BLOCK], other[MATH_BLOCK];
    sweep *s = context;
    const function *f = s->f;
    variants[0].function[f->number](x, y, count);
    for (size_t i = 0; i < count; i++) {
        if (f->finite && !isfinite(x[i])) continue;
        double error = error_in_ulp(y[i], f->truth((double)x[i]));
        if (!(error <= s->worst)) s->worst = error, s->worst_x = x[i];
    }
    for (size_t i = 0; i < count; i++) s->hash += math_hash(x[i], y[i]);
    for (size_t v = 1; v < LK_COUNT(variants); v++) {
        const char *name = variants[v].name;
        if (!runs_here(name)) continue;
        if (fast && (strcmp(name, "plain") == 0 || strcmp(name, "soft") == 0)) continue;
        variants[v].function[f->number](x, other, count);
        for (size_t i = 0; i < count; i++) {
            if (math_result_bits(other[i]) == math_result_bits(y[i])) continue;
            if (s->differ++ == 0) {
                print_error("%s(%a) is %a here, %a in variant %s\n", f->name, (double)x[i],
                            (double)y[i], (double)other[i], name);
            }
        }
    }
}

static void *sweep_run(void *argument) {
    static _Thread_local float x[MATH_BLOCK];
    sweep *s = argument;
    math_walk(s->first, s->end, stride, x, sweep_block, s);
    return NULL;
}

// Five functions more would make the default a minute longer: these are walked coarsely.
static void check_function(const function *f) {
    if (f->finite && stride == 509) stride = 65537;
    static float x[MATH_BLOCK];
    sweep part[THREADS];
    pthread_t thread[THREADS];
    uint64_t steps = (((uint64_t)1 << 32) + stride - 1) / stride;
    for (int i = 0; i < THREADS; i++) {
        part[i] = (sweep){.f = f};
        part[i].first = steps * (uint64_t)i / THREADS * stride;
        part[i].end = LK_MIN(steps * (uint64_t)(i + 1) / THREADS * stride, (uint64_t)1 << 32);
        assert_int_equal(pthread_create(&thread[i], NULL, sweep_run, &part[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_join(thread[i], NULL), 0);
    sweep all = part[0];
    for (int i = 1; i < THREADS; i++) {
        if (!(part[i].worst <= all.worst)) all.worst = part[i].worst, all.worst_x = part[i].worst_x;
        all.hash += part[i].hash;
        all.differ += part[i].differ;
    }
    math_walk_edges(x, sweep_block, &all);
    print_message("%s: stride %llu, largest error %.6f ulp at %a, hash %016llx\n", f->name,
                  (unsigned long long)stride, all.worst, (double)all.worst_x,
                  (unsigned long long)all.hash);
    assert_int_equal(all.differ, 0);
    assert_true(all.worst <= f->error_max);
    uint64_t expected = math_expect(f->expected, stride);
    if (expected) assert_true(all.hash == expected);
}

static void test_exp(void **state) {
    (void)state;
    check_function(&(function){"exp", EXP, exp, 0.882, &math_expected_exp, false});
}

static void test_log(void **state) {
    (void)state;
    check_function(&(function){"log", LOG, log, 0.896, &math_expected_log, false});
}

static void test_sqrt(void **state) {
    (void)state;
    check_function(&(function){"sqrt", SQRT, sqrt, 0.5, &math_expected_sqrt, false});
}

static double sigmoid(double x) { return x < 0 ? exp(x) / (1.0 + exp(x)) : 1.0 / (1.0 + exp(-x)); }

static void test_tanh(void **state) {
    (void)state;
    check_function(&(function){"tanh", TANH, tanh, 1.406, &math_expected_tanh, false});
}

static void test_sigmoid(void **state) {
    (void)state;
    check_function(&(function){"sigmoid", SIGMOID, sigmoid, 0.879, &math_expected_sigmoid, false});
}

static double elu(double x) { return x > 0 ? x : expm1(x); }
static double softplus(double x) { return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)); }
static double times_sigmoid(double x, double z) { return z < -700 ? -0.0 : x * sigmoid(z); }
static double swish(double x) { return times_sigmoid(x, x); }
static double gelu(double x) { return x < -40 ? -0.0 : x * erfc(-x * sqrt(0.5)) / 2; }
static double gelu_tanh(double x) {
    return times_sigmoid(x, 1.5957691216057308 * (x + 0.044715 * x * x * x));
}

static void test_elu(void **state) {
    (void)state;
    check_function(&(function){"elu", ELU, elu, 1.34, &math_expected_elu, true});
}
static void test_softplus(void **state) {
    (void)state;
    check_function(
        &(function){"softplus", SOFTPLUS, softplus, 1.57, &math_expected_softplus, true});
}
static void test_swish(void **state) {
    (void)state;
    check_function(&(function){"swish", SWISH, swish, 1.62, &math_expected_swish, true});
}
static void test_gelu(void **state) {
    (void)state;
    check_function(&(function){"gelu", GELU, gelu, 1.9, &math_expected_gelu, true});
}
static void test_gelu_tanh(void **state) {
    (void)state;
    check_function(
        &(function){"gelu_tanh", GELU_TANH, gelu_tanh, 1.6, &math_expected_gelu_tanh, true});
}

static void test_special_values(void **state) {
    (void)state;
    const float nan = lk_float_from_bits(0x7fc00000u), inf = lk_float_from_bits(0x7f800000u);
    const uint32_t one = 0x3f800000u, plus_inf = 0x7f800000u, minus_inf = 0xff800000u;
    assert_int_equal(lk_float_to_bits(lk_expf(0.0f)), one);
    assert_int_equal(lk_float_to_bits(lk_expf(-0.0f)), one);
    assert_int_equal(lk_float_to_bits(lk_expf(inf)), plus_inf);
    assert_int_equal(lk_float_to_bits(lk_expf(89.0f)), plus_inf);
    assert_int_equal(lk_float_to_bits(lk_expf(-inf)), 0);
    assert_int_equal(lk_float_to_bits(lk_expf(-104.0f)), 0);
    assert_int_equal(lk_float_to_bits(lk_expf(-103.5f)), 1);  // the smallest subnormal
    assert_int_equal(math_result_bits(lk_expf(nan)), 0x7fc00000u);
    assert_int_equal(lk_float_to_bits(lk_logf(1.0f)), 0);
    assert_int_equal(lk_float_to_bits(lk_logf(0.0f)), minus_inf);
    assert_int_equal(lk_float_to_bits(lk_logf(-0.0f)), minus_inf);
    assert_int_equal(lk_float_to_bits(lk_logf(inf)), plus_inf);
    assert_int_equal(math_result_bits(lk_logf(-1.0f)), 0x7fc00000u);
    assert_int_equal(math_result_bits(lk_logf(-0x1p-149f)), 0x7fc00000u);
    assert_int_equal(math_result_bits(lk_logf(-inf)), 0x7fc00000u);
    assert_int_equal(math_result_bits(lk_logf(nan)), 0x7fc00000u);
    assert_int_equal(lk_float_to_bits(lk_tanhf(0.0f)), 0);
    assert_int_equal(lk_float_to_bits(lk_tanhf(-0.0f)), 0x80000000u);
    assert_int_equal(lk_float_to_bits(lk_tanhf(-0x1p-149f)), 0x80000001u);
    assert_int_equal(lk_float_to_bits(lk_tanhf(inf)), one);
    assert_int_equal(lk_float_to_bits(lk_tanhf(-inf)), one | 0x80000000u);
    assert_int_equal(math_result_bits(lk_tanhf(nan)), 0x7fc00000u);
    assert_int_equal(lk_float_to_bits(lk_sigmoidf(0.0f)), 0x3f000000u);
    assert_int_equal(lk_float_to_bits(lk_sigmoidf(-0.0f)), 0x3f000000u);
    assert_int_equal(lk_float_to_bits(lk_sigmoidf(inf)), one);
    assert_int_equal(lk_float_to_bits(lk_sigmoidf(-inf)), 0);
    assert_int_equal(lk_float_to_bits(lk_sigmoidf(-103.5f)), 1);
    assert_int_equal(math_result_bits(lk_sigmoidf(nan)), 0x7fc00000u);
    assert_int_equal(lk_float_to_bits(lk_sqrtf(-0.0f)), 0x80000000u);
    assert_int_equal(math_result_bits(lk_sqrtf(-0x1p-149f)), 0x7fc00000u);
    assert_int_equal(lk_float_to_bits(lk_soft_sqrtf(-0.0f)), 0x80000000u);
    assert_int_equal(lk_float_to_bits(lk_soft_sqrtf(inf)), plus_inf);
}

int main(int argc, char **argv) {
    char none = 0, *end = &none;
    if (argc > 1) stride = strtoull(argv[1], &end, 10);
    if (stride == 0 || *end) {
        fprintf(stderr, "usage: %s [STRIDE [FUNCTION [fast]]], STRIDE from 1\n",
                argv[0]);
        return LK_BAD_USAGE;
    }
    fast = argc > 3 && strcmp(argv[3], "fast") == 0;
    char filter[64];
    if (argc > 2) {
        snprintf(filter, sizeof filter, "test_%s", argv[2]);
        cmocka_set_test_filter(filter);
    }
    printf("variants:");
    for (size_t v = 0; v < LK_COUNT(variants); v++) {
        printf(" %s%s", variants[v].name, runs_here(variants[v].name) ? "" : " (not on this CPU)");
    }
    printf("\n");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_special_values),
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_log),
        cmocka_unit_test(test_sqrt),
        cmocka_unit_test(test_tanh),
        cmocka_unit_test(test_sigmoid),
        cmocka_unit_test(test_elu),
        cmocka_unit_test(test_softplus),
        cmocka_unit_test(test_swish),
        cmocka_unit_test(test_gelu),
        cmocka_unit_test(test_gelu_tanh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
