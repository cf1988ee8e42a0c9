// math_sweep.c - lk_expf and lk_logf over the floats: error against double, and the bits.
//
//   test_math [STRIDE]     every STRIDE-th float (default 509; 1 is all 2^32), and every edge
//
// Prints the largest error and its argument, and a hash of all results. The hashes of strides 509
// and 1 are pinned, and every compiled variant must have the same bits as the first: so they are
// equal under every compiler, optimization level and instruction set that ran this test.
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

enum { BLOCK = 4096, THREADS = 2, VARIANTS = 4 };

typedef struct function {
    const char *name;
    double (*truth)(double);
    double error_max;                 // in ulp, as ops/math.h promises
    math_kernel *variant[VARIANTS];   // [0] always; NULL where this CPU has no such instruction
    uint64_t hash_strided, hash_full; // at strides 509 and 1
} function;

typedef struct sweep {
    const function *f;
    uint64_t first, end, stride;      // patterns
    double worst;                     // ulp
    float worst_x;
    uint64_t hash;
    uint64_t differ;                  // results of another variant that differ from variant 0
} sweep;

static uint64_t stride = 509;
static bool has_fma;

static const char *const variant_name[VARIANTS] = {"target", "fma", "plain", "soft"};

static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

// All NaNs are one: payload and sign belong to the machine.
static uint32_t result_bits(float y) { return y != y ? 0x7fc00000u : lk_float_to_bits(y); }

// The distance of y from `want` in units of the last place that a float near `want` has.
static double error_in_ulp(float y, double want) {
    if (isnan(want) || isinf(want)) {
        return result_bits(y) == result_bits((float)want) ? 0 : INFINITY;
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

static void sweep_block(sweep *s, const float *x, size_t count) {
    static _Thread_local float y[BLOCK], other[BLOCK];
    const function *f = s->f;
    f->variant[0](x, y, count);
    for (size_t i = 0; i < count; i++) {
        double error = error_in_ulp(y[i], f->truth((double)x[i]));
        if (!(error <= s->worst)) s->worst = error, s->worst_x = x[i];
        s->hash += mix((uint64_t)lk_float_to_bits(x[i]) << 32 | result_bits(y[i]));
    }
    for (int v = 1; v < VARIANTS; v++) {
        if (!f->variant[v]) continue;
        if (stride < 509 && v > 1) continue;  // the slow ones: not in a full sweep
        f->variant[v](x, other, count);
        for (size_t i = 0; i < count; i++) {
            if (result_bits(other[i]) == result_bits(y[i])) continue;
            if (s->differ++ == 0) {
                print_error("%s(%a) is %a here, %a in variant %s\n", f->name, (double)x[i],
                            (double)y[i], (double)other[i], variant_name[v]);
            }
        }
    }
}

static void *sweep_run(void *argument) {
    sweep *s = argument;
    static _Thread_local float x[BLOCK];
    size_t count = 0;
    for (uint64_t u = s->first; u < s->end; u += s->stride) {
        x[count++] = lk_float_from_bits((uint32_t)u);
        if (count == BLOCK) sweep_block(s, x, count), count = 0;
    }
    sweep_block(s, x, count);
    return NULL;
}

// Where something changes: the limits of the clamps, of overflow and underflow, of each power of
// two, of the reduction (2/3), around 1 and the multiples of ln 2 / 2; 1,024 patterns each side.
static void sweep_edges(sweep *s) {
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
            uint64_t first = (uint32_t)(middle - 1024) & 0x7fffffffu;
            sweep part = *s;
            part.stride = 1;
            part.first = first | sign << 31;
            part.end = part.first + 2048;
            sweep_run(&part);
            part.first = s->first, part.end = s->end, part.stride = s->stride;
            *s = part;
        }
    }
}

static void check_function(const function *f) {
    sweep part[THREADS];
    pthread_t thread[THREADS];
    uint64_t steps = (((uint64_t)1 << 32) + stride - 1) / stride;
    for (int i = 0; i < THREADS; i++) {
        part[i] = (sweep){.f = f, .stride = stride};
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
    sweep_edges(&all);
    print_message("%s: stride %llu, largest error %.6f ulp at %a, hash %016llx\n", f->name,
                  (unsigned long long)stride, all.worst, (double)all.worst_x,
                  (unsigned long long)all.hash);
    assert_int_equal(all.differ, 0);
    assert_true(all.worst <= f->error_max);
    if (stride == 509) assert_true(all.hash == f->hash_strided);
    if (stride == 1) assert_true(all.hash == f->hash_full);
}

static void test_exp(void **state) {
    (void)state;
    function f = {.name = "exp", .truth = exp, .error_max = 0.882,
                  .variant = {math_exp_target, NULL, math_exp_plain, math_exp_soft},
                  .hash_strided = 0xc4f31b70c2a325f1, .hash_full = 0xf3fcc451da4e5280};
#ifdef __x86_64__
    if (has_fma) f.variant[1] = math_exp_fma;
#endif
    check_function(&f);
}

static void test_log(void **state) {
    (void)state;
    function f = {.name = "log", .truth = log, .error_max = 0.896,
                  .variant = {math_log_target, NULL, math_log_plain, math_log_soft},
                  .hash_strided = 0x4853db76d0f94734, .hash_full = 0x7100ca39d5d40740};
#ifdef __x86_64__
    if (has_fma) f.variant[1] = math_log_fma;
#endif
    check_function(&f);
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
    assert_int_equal(result_bits(lk_expf(nan)), 0x7fc00000u);
    assert_int_equal(lk_float_to_bits(lk_logf(1.0f)), 0);
    assert_int_equal(lk_float_to_bits(lk_logf(0.0f)), minus_inf);
    assert_int_equal(lk_float_to_bits(lk_logf(-0.0f)), minus_inf);
    assert_int_equal(lk_float_to_bits(lk_logf(inf)), plus_inf);
    assert_int_equal(result_bits(lk_logf(-1.0f)), 0x7fc00000u);
    assert_int_equal(result_bits(lk_logf(-0x1p-149f)), 0x7fc00000u);
    assert_int_equal(result_bits(lk_logf(-inf)), 0x7fc00000u);
    assert_int_equal(result_bits(lk_logf(nan)), 0x7fc00000u);
}

int main(int argc, char **argv) {
    if (argc > 1) stride = strtoull(argv[1], NULL, 10);
    if (stride == 0) {
        fprintf(stderr, "usage: %s [STRIDE], a whole number from 1\n", argv[0]);
        return LK_BAD_USAGE;
    }
#ifdef __x86_64__
    has_fma = __builtin_cpu_supports("fma");
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_special_values),
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
