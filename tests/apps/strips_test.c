// strips_test.c - which images make which strip: golden values, computed by strips_test.py from
// ARITHMETIC.md; every image has one slot in a round; the way back is the way there.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "apps/run/strips.h"

typedef struct golden {
    uint64_t epoch, position;
    uint32_t count;
    uint64_t images[5];
} golden;

static uint64_t shard_first[4] = {0, 17, 34, 50};

static lk_run_spec spec_of(uint32_t most, uint64_t images, uint64_t strips, bool sharded) {
    const lk_run_spec spec = {.seed = 6,
                              .global_batch = 12,
                              .grain = 2,
                              .example_count = strips,
                              .strip_images = images,
                              .strips = {1, most},
                              .shards = sharded ? 3 : 0,
                              .shard_first = sharded ? shard_first : NULL};
    return spec;
}

static void check_golden(const lk_run_spec *spec, const golden *g) {
    uint64_t images[LK_STRIP_IMAGES_MAX];
    assert_int_equal(lk_strip_of(spec, g->epoch, g->position, images), g->count);
    assert_memory_equal(images, g->images, g->count * sizeof *images);
}

static void golden_strips(void **state) {
    static const golden small[] = {
        {0, 0, 3, {49, 33, 17}}, {0, 1, 3, {30, 23, 35}}, {0, 2, 3, {18, 25, 19}},
        {0, 3, 1, {16}},         {0, 4, 2, {12, 37}},     {0, 5, 2, {6, 47}},
        {1, 0, 2, {41, 18}},     {1, 1, 1, {40}},         {1, 2, 3, {6, 29, 35}}};
    static const golden mnist[] = {{0, 0, 4, {19892, 15508, 326, 22434}},
                                   {0, 1, 2, {49122, 17840}},
                                   {0, 59999, 2, {44738, 48770}},
                                   {7, 0, 2, {22715, 45893}},
                                   {7, 31415, 4, {7850, 49664, 652, 4777}}};
    uint64_t images[LK_STRIP_IMAGES_MAX];
    (void)state;
    lk_run_spec spec = spec_of(3, 50, 34, false);
    for (size_t i = 0; i < LK_COUNT(small); i++) check_golden(&spec, &small[i]);
    spec = spec_of(5, 60000, 60000, false);
    spec.seed = 1;
    for (size_t i = 0; i < LK_COUNT(mnist); i++) check_golden(&spec, &mnist[i]);
    static const uint64_t fixed[] = {1683, 5423, 8946, 1107};
    assert_int_equal(lk_strip_fixed(&spec, 10000, 9999, images), LK_COUNT(fixed));
    assert_memory_equal(images, fixed, sizeof fixed);
}

// As many strips as images, of MOST images each: every image comes MOST times an epoch.
static void every_image_once_a_round(void **state) {
    enum { IMAGES = 23, MOST = 4 };
    uint32_t times[IMAGES] = {0};
    uint64_t images[LK_STRIP_IMAGES_MAX];
    (void)state;
    lk_run_spec spec = spec_of(MOST, IMAGES, IMAGES, false);
    spec.strips.least = MOST;
    for (uint64_t p = 0; p < IMAGES; p++) {
        assert_int_equal(lk_strip_of(&spec, 5, p, images), MOST);
        for (uint32_t i = 0; i < MOST; i++) times[images[i]]++;
    }
    for (uint32_t i = 0; i < IMAGES; i++) assert_int_equal(times[i], MOST);
}

// Of every position and every image of its strip some round says the position, and no round says
// one whose strip has not got it.
static void check_back(const lk_run_spec *spec, uint64_t epoch, uint64_t positions) {
    uint64_t images[LK_STRIP_IMAGES_MAX], position, there = 0, back = 0;
    for (uint64_t p = 0; p < positions; p++) {
        if (!lk_position_exists(spec, p)) continue;
        const uint32_t count = lk_strip_of(spec, epoch, p, images);
        assert_in_range(count, spec->strips.least, spec->strips.most);
        there += count;
    }
    for (uint64_t image = 0; image < spec->strip_images; image++) {
        for (uint64_t round = 0; round < lk_strip_rounds(spec, image); round++) {
            if (!lk_strip_find(spec, epoch, round, image, &position)) continue;
            const uint32_t count = lk_strip_of(spec, epoch, position, images);
            uint32_t i = 0;
            while (i < count && images[i] != image) i++;
            assert_true(i < count);
            back++;
        }
    }
    assert_int_equal(there, back);
}

static void there_and_back(void **state) {
    static const uint64_t shapes[][3] = {{3, 50, 34}, {3, 50, 50}, {1, 7, 20},
                                         {5, 9, 100}, {64, 50, 3}, {2, 1, 5}};
    (void)state;
    for (size_t i = 0; i < LK_COUNT(shapes); i++) {
        const lk_run_spec spec = spec_of((uint32_t)shapes[i][0], shapes[i][1], shapes[i][2], false);
        for (uint64_t epoch = 0; epoch < 3; epoch++) check_back(&spec, epoch, shapes[i][2]);
    }
    const lk_run_spec spec = spec_of(3, 50, 50, true);
    for (uint64_t epoch = 0; epoch < 3; epoch++) check_back(&spec, epoch, 60);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_strips),
        cmocka_unit_test(every_image_once_a_round),
        cmocka_unit_test(there_and_back),
    };
    return cmocka_run_group_tests_name("strips", tests, NULL, NULL);
}
