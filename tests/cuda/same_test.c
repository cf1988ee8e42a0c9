// same_test.c - what gpu_ops (gpu/ops.c) takes for the same numbers, against what C says of them.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ops/half.h"
#include "tests/cuda/gpu/same.h"

enum { HALVES = 1 << 16 };

// NaNs of a GPU, of x86-64, and signalling; infinities; zeros; others.
static const uint32_t floats[] = {0x7fffffffu, 0xffc00000u, 0x7f800001u, 0xff800001u,
                                  0x7f800000u, 0xff800000u, 0,           0x80000000u,
                                  1,           0x3f800000u, 0x3f800001u, 0x7f7fffffu};

static bool is_nan(lk_dtype dtype, uint32_t bits) {
    if (dtype == LK_F32) return isnan(lk_float_from_bits(bits));
    return isnan(dtype == LK_F16 ? lk_half_to_float((uint16_t)bits)
                                 : lk_bfloat_to_float((uint16_t)bits));
}

// `x` beside `y`, in the middle of equal ones.
static void check(lk_dtype dtype, uint32_t x, uint32_t y) {
    const uint32_t bytes = lk_dtype_bytes(dtype);
    uint8_t a[12] = {1, 2, 3}, b[12] = {1, 2, 3};
    memcpy(a + bytes, &x, bytes);  // little-endian, as everywhere
    memcpy(b + bytes, &y, bytes);
    const bool nan = is_nan(dtype, x);
    assert_int_equal(same_numbers(dtype, a, b, 3), x == y || (nan && is_nan(dtype, y)));
    assert_int_equal(count_nans(dtype, a, 3), nan);
}

static void test_floats(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        for (size_t j = 0; j < sizeof floats / sizeof *floats; j++) {
            check(LK_F32, floats[i], floats[j]);
        }
        for (uint32_t bit = 0; bit < 32; bit++) check(LK_F32, floats[i], floats[i] ^ 1u << bit);
    }
}

static void test_halves(void **state) {
    (void)state;
    static const uint32_t others[] = {0x7fff, 0xffff, 0xfe00, 0xffc0, 0x7c01,
                                      0x7f81, 0x7c00, 0x7f80, 0};
    for (uint32_t h = 0; h < HALVES; h++) {
        for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
            check(LK_F16, h, others[i]);
            check(LK_BF16, h, others[i]);
        }
        for (uint32_t bit = 0; bit < 16; bit++) {
            check(LK_F16, h, h ^ 1u << bit);
            check(LK_BF16, h, h ^ 1u << bit);
        }
    }
}

// Whole numbers have no NaN: one of all ones is no other.
static void test_whole_numbers(void **state) {
    (void)state;
    static const lk_dtype dtypes[] = {LK_U8, LK_U16, LK_U32};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        const uint32_t a = UINT32_MAX, b = UINT32_MAX - 1;
        assert_true(same_numbers(dtypes[i], &a, &a, 1));
        assert_false(same_numbers(dtypes[i], &a, &b, 1));
        assert_int_equal(count_nans(dtypes[i], &a, 1), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_floats),
        cmocka_unit_test(test_halves),
        cmocka_unit_test(test_whole_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
