// Tests of io/shuffle.h: a bijection for every count, and the golden values that pin the formula.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "io/shuffle.h"

enum { COUNT_MAX = 70000 };

static uint8_t seen[COUNT_MAX];

static void check_bijection(uint64_t seed, uint64_t epoch, uint64_t count) {
    memset(seen, 0, count);
    for (uint64_t p = 0; p < count; p++) {
        uint64_t example = lk_shuffle(seed, epoch, count, p);
        assert_true(example < count);
        assert_int_equal(seen[example], 0);
        assert_int_equal(lk_unshuffle(seed, epoch, count, example), p);
        seen[example] = 1;
    }
}

static void test_every_small_count_is_a_bijection(void **state) {
    (void)state;
    for (uint64_t count = 1; count <= 300; count++)
        for (uint64_t epoch = 0; epoch < 3; epoch++) check_bijection(count * 77, epoch, count);
}

static void test_large_counts_are_bijections(void **state) {
    (void)state;
    const uint64_t counts[] = {1023, 1024, 1025, 4095, 4096, 4097, 16384, 16385, 60000, 65536,
                               65537};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        check_bijection(0x0123456789abcdef, (uint64_t)1 << 40, counts[i]);
}

// Written by another implementation, from the comment in shuffle.h alone.
static void test_golden_values(void **state) {
    (void)state;
    static const struct {
        uint64_t seed, epoch, count, position[5], example[5];
    } golden[] = {
        {1, 0, 10, {0, 1, 2, 5, 9}, {0, 2, 8, 1, 6}},
        {42, 0, 60000, {0, 1, 2, 30000, 59999}, {47030, 42778, 48759, 43785, 51109}},
        {42, 1, 60000, {0, 1, 2, 30000, 59999}, {35245, 32152, 4214, 35900, 58183}},
        {7, 3, 1000003, {0, 1, 2, 500001, 1000002}, {200525, 729614, 314287, 776586, 502244}},
        {0xfedcba9876543210, ((uint64_t)1 << 33) + 5, LK_SHUFFLE_COUNT_MAX,
         {0, 1, 2, LK_SHUFFLE_COUNT_MAX / 2, LK_SHUFFLE_COUNT_MAX - 1},
         {154136901969, 480606886676, 443580342796, 243972162758, 681399691029}},
    };
    for (size_t g = 0; g < sizeof golden / sizeof golden[0]; g++)
        for (size_t i = 0; i < 5; i++)
            assert_int_equal(lk_shuffle(golden[g].seed, golden[g].epoch, golden[g].count,
                                        golden[g].position[i]), golden[g].example[i]);
}

// The same other implementation, by 8 * shard + round.
static void test_golden_values_of_shards(void **state) {
    (void)state;
    static const struct {
        uint64_t seed, epoch;
        uint32_t shard;
        uint64_t count, position[5], example[5];
    } golden[] = {
        {42, 0, 0, 60000, {0, 1, 2, 30000, 59999}, {47030, 42778, 48759, 43785, 51109}},
        {42, 0, 1, 30000, {0, 1, 2, 15000, 29999}, {24908, 7868, 558, 6862, 7090}},
        {42, 5, 3, 8571, {0, 1, 2, 4000, 8570}, {5568, 4501, 1233, 2249, 6943}},
        {7, (uint64_t)1 << 33, LK_SHUFFLE_SHARDS_MAX - 1, 1000003,
         {0, 1, 2, 500001, 1000002}, {96527, 435172, 618430, 805279, 56015}},
    };
    for (size_t g = 0; g < sizeof golden / sizeof golden[0]; g++)
        for (size_t i = 0; i < 5; i++)
            assert_int_equal(lk_shuffle_shard(golden[g].seed, golden[g].epoch, golden[g].shard,
                                              golden[g].count, golden[g].position[i]),
                             golden[g].example[i]);
}

// Neighbours must not stay neighbours, and epochs and seeds must differ: counts far outside of what
// a uniform permutation gives (expected 1 fixed point, 60,000 / 4 in the same quarter).
static void test_it_mixes(void **state) {
    (void)state;
    const uint64_t count = 60000;
    unsigned fixed = 0, neighbours = 0, same_epoch = 0, same_quarter = 0;
    uint64_t before = count;
    for (uint64_t p = 0; p < count; p++) {
        uint64_t example = lk_shuffle(3, 0, count, p);
        fixed += example == p;
        neighbours += example == before + 1;
        same_epoch += example == lk_shuffle(3, 1, count, p);
        same_quarter += example / (count / 4) == p / (count / 4);
        before = example;
    }
    assert_in_range(fixed, 0, 10);
    assert_in_range(neighbours, 0, 10);
    assert_in_range(same_epoch, 0, 10);
    assert_in_range(same_quarter, 14500, 15500);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_small_count_is_a_bijection),
        cmocka_unit_test(test_large_counts_are_bijections),
        cmocka_unit_test(test_golden_values),
        cmocka_unit_test(test_golden_values_of_shards),
        cmocka_unit_test(test_it_mixes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
