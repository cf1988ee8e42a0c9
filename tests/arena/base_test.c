// Tests of arena/base.h, arena/sha256.h and arena/philox.h.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <sodium.h>

#include "arena/base.h"
#include "arena/philox.h"
#include "arena/sha256.h"

static void test_format_equals_snprintf(void **state) {
    (void)state;
    char ours[128], theirs[128];
#define SAME(...)                                                          \
    do {                                                                   \
        size_t n = lk_format(ours, sizeof ours, __VA_ARGS__);              \
        assert_int_equal(n, snprintf(theirs, sizeof theirs, __VA_ARGS__)); \
        assert_string_equal(ours, theirs);                                 \
    } while (0)
    SAME("plain");
    SAME("%s|%.*s|%c|%%", "text", 3, "abcdef", 'x');
    SAME("%d %i %u %x %X", -5, 7, 4000000000u, 0xbeefu, 0xbeefu);
    SAME("%ld %lu %lx", -5L, 5UL, 255UL);
    SAME("%lld %llu %llx", INT64_MIN + 0LL, UINT64_MAX + 0ULL, 0x1234567890ULL);
    SAME("%zu %zx", (size_t)12345, (size_t)0xabc);
    SAME("%08x %5d %05d %3u", 0x1fu, -42, -42, 12345u);
    assert_int_equal(lk_format(ours, 4, "%s", "abcdef"), 6);
    assert_string_equal(ours, "abc");
}

static void test_first_error_is_kept(void **state) {
    (void)state;
    lk_error error = {0};
    assert_int_equal(lk_fail(&error, LK_BAD_DATA, "first %d", 1), LK_BAD_DATA);
    assert_int_equal(lk_fail(&error, LK_INTERNAL, "second"), LK_BAD_DATA);
    assert_string_equal(error.text, "first 1");
}

// Paths may be as long as the whole line, and names may hold anything.
static void test_an_error_is_one_line_with_its_end(void **state) {
    (void)state;
    lk_error error = {0};
    char path[1001], wanted[LK_ERROR_TEXT_BYTES];
    memset(path, 'p', sizeof path);
    memcpy(path, "/first", 6);
    memcpy(path + 994, "last", 5);
    lk_fail(&error, LK_NO_INPUT, "%s: cannot open: %s; %s", path, "no such file", "check the path");
    assert_int_equal(error.status, LK_NO_INPUT);
    snprintf(wanted, sizeof wanted, "%.80s...%s: cannot open: no such file; check the path", path,
             path + 998 - 80);
    assert_string_equal(error.text, wanted);
    error = (lk_error){0};
    lk_fail(&error, LK_NO_INPUT, "%s: cannot open", "a\nb\x1b[2J\x7f\xc3\xa9");
    assert_string_equal(error.text, "a?b?[2J?\xc3\xa9: cannot open");
    path[LK_ERROR_TEXT_BYTES - 1] = '\0';
    error = (lk_error){0};
    lk_fail(&error, LK_NO_INPUT, "%s", path);  // fits to the byte
    assert_string_equal(error.text, path);
}

static void test_sha256_equals_libsodium(void **state) {
    (void)state;
    uint8_t data[700], ours[32], theirs[32];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * 131 + 7);
    for (size_t n = 0; n <= sizeof data; n++) {
        lk_sha256 hash;
        lk_sha256_start(&hash);
        lk_sha256_add(&hash, data, n / 3);
        lk_sha256_add(&hash, data + n / 3, n - n / 3);
        lk_sha256_finish(&hash, ours);
        crypto_hash_sha256(theirs, data, n);
        assert_memory_equal(ours, theirs, 32);
    }
}

// Known answers of Random123 (kat_vectors, philox4x32, 10 rounds).
static void test_philox_known_answers(void **state) {
    (void)state;
    lk_philox_block zero = lk_philox(0, (lk_purpose)0, 0, 0, 0, 0);
    const uint32_t expect_zero[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    assert_memory_equal(zero.word, expect_zero, 16);
    lk_philox_block ones = lk_philox(UINT64_MAX, (lk_purpose)0, ~0u, ~0u, ~0u, ~0u);
    const uint32_t expect_ones[4] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
    assert_memory_equal(ones.word, expect_ones, 16);
}

// The counters of ARITHMETIC.md 10, written out.
static void test_philox_of_a_step(void **state) {
    (void)state;
    const uint64_t seed = 0x0123456789abcdefu, step = (5ull << 32) + 77;
    const lk_philox_block drawn = lk_philox_step(seed, LK_PURPOSE_DROPOUT, step, 3, 1000, 19);
    const lk_philox_block wanted = lk_philox(seed, (lk_purpose)4, 19, 1000, 77, 3 + 5 * 65536);
    assert_memory_equal(&drawn, &wanted, sizeof drawn);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_format_equals_snprintf),
        cmocka_unit_test(test_first_error_is_kept),
        cmocka_unit_test(test_an_error_is_one_line_with_its_end),
        cmocka_unit_test(test_sha256_equals_libsodium),
        cmocka_unit_test(test_philox_known_answers),
        cmocka_unit_test(test_philox_of_a_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
