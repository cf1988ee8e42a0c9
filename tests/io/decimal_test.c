// Tests of io/decimal.h: every line that the C library's printf would write, without it.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "io/decimal.h"

static void check_bits(uint32_t bits) {
    float value;
    char found[LK_DECIMAL_BYTES], wanted[64];
    memcpy(&value, &bits, sizeof value);
    memset(found, '?', sizeof found);
    lk_decimal(value, found);
    snprintf(wanted, sizeof wanted, "%.9g", (double)value);
    assert_true(memchr(found, '\0', sizeof found));
    assert_string_equal(found, wanted);
}

static void check(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    check_bits(bits);
    check_bits(bits ^ 0x80000000u);
}

static void test_strided_sweep(void **state) {
    (void)state;
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 40009) check_bits((uint32_t)bits);
}

static void test_edges(void **state) {
    (void)state;
    const uint32_t bits[] = {0,          1,          2,          0x007fffff,
                             0x00800000, 0x7f7fffff, 0x7f800000, 0x7fc00000,
                             0x4b7fffff, 0x4b800000, 0x4e6e6b28, 0x4e6e6b27};
    for (size_t i = 0; i < sizeof bits / sizeof bits[0]; i++) {
        check_bits(bits[i]);
        check_bits(bits[i] | 0x80000000u);
    }
    const float values[] = {1.0f,    0.1f,     9.99999e-5f,   0.0001f,     100.0f, 999999936.0f,
                            1.0e+9f, 2.30258f, 1234567936.0f, 0.99999994f, 10.0f,  1.0e-10f};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) check(values[i]);
}

// Eighths between 10^6 and 2^21 with an odd numerator have ten digits of which the last is 5.
static void test_ties_go_to_even(void **state) {
    (void)state;
    for (uint32_t eighths = 8000001; eighths < 16777216; eighths += 2 * 997)
        check((float)eighths / 8.0f);
    check(1000000.125f);
    check(1000000.375f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strided_sweep),
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_ties_go_to_even),
    };
    return cmocka_run_group_tests_name("decimal", tests, NULL, NULL);
}
