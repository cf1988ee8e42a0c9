// Tests of io/made_up.h: golden bytes, ranges, and that the images can be learnt, but not at once.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "arena/sha256.h"
#include "io/made_up.h"

// Written by another implementation, from the comment in made_up.h alone.
static void test_golden_bytes(void **state) {
    (void)state;
    static const struct {
        lk_made_up made_up;
        uint64_t index;
        uint32_t label;
        uint8_t begin[8];
        const char *sha256;
    } golden[] = {
        {{1, 0, 60000, 28, 28, 1, 10}, 0, 1, {84, 185, 97, 120, 75, 55, 75, 175},
         "67bebf2419e72634350bc286d1ea7c3624db37092d3ab4360f0db2ecf1f159b6"},
        {{1, 0, 60000, 28, 28, 1, 10}, 59999, 3, {150, 199, 70, 185, 33, 157, 127, 172},
         "932788048be51bbad883dbf2bf5755f6127e91cd706c9684c6538e18bcb06a7d"},
        {{0xfedcba9876543210, (uint64_t)1 << 33, 6, 9, 17, 3, 7}, 5, 5,
         {36, 105, 144, 53, 38, 135, 164, 186},
         "3eba6e81ef40c15f041c335742c4ed19d806b0b87f7842a2d7a07b4368b36237"},
        {{1, 0, 60000, 28, 28, 1, 65536}, 17, 48644, {181, 102, 78, 159, 74, 158, 71, 180},
         "29b5480455858a91f1bfdec4d24811207ea9b6f4395d8be616b9212279e55862"},
    };
    for (size_t g = 0; g < sizeof golden / sizeof golden[0]; g++) {
        uint8_t image[28 * 28], sum[LK_SHA256_BYTES];
        uint32_t label;
        char hex[LK_SHA256_HEX_BYTES];
        lk_made_up_example(&golden[g].made_up, golden[g].index, image, &label);
        assert_int_equal(label, golden[g].label);
        assert_memory_equal(image, golden[g].begin, 8);
        lk_sha256 hash;
        lk_sha256_start(&hash);
        lk_sha256_add(&hash, image, (size_t)lk_made_up_image_bytes(&golden[g].made_up));
        lk_sha256_finish(&hash, sum);
        lk_hex(sum, sizeof sum, hex);
        assert_string_equal(hex, golden[g].sha256);
    }
}

static void test_a_range_continues_another(void **state) {
    (void)state;
    const lk_made_up train = {9, 0, 200, 12, 12, 2, 4}, test = {9, 150, 50, 12, 12, 2, 4};
    for (uint64_t i = 0; i < 50; i++) {
        uint8_t a[288], b[288];
        uint32_t label_a, label_b;
        lk_made_up_example(&train, 150 + i, a, &label_a);
        lk_made_up_example(&test, i, b, &label_b);
        assert_memory_equal(a, b, sizeof a);
        assert_int_equal(label_a, label_b);
    }
}

static void test_bad_descriptions(void **state) {
    (void)state;
    const lk_made_up bad[] = {
        {1, 0, 0, 28, 28, 1, 10}, {1, 0, 9, 0, 28, 1, 10},  {1, 0, 9, 28, 65536, 1, 10},
        {1, 0, 9, 28, 28, 0, 10}, {1, 0, 9, 28, 28, 1, 65537}, {1, 0, 9, 28, 28, 1, 0},
        {1, 5, (uint64_t)1 << 40, 28, 28, 1, 10}, {1, (uint64_t)1 << 40, 1, 28, 28, 1, 10},
        {1, 0, (uint64_t)1 << 39, 65535, 65535, 16, 10},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        lk_error error = {0};
        assert_int_equal(lk_made_up_check(&bad[i], &error), LK_BAD_CONFIG);
        assert_non_null(strstr(error.text, "wanted"));
    }
    lk_error error = {0};
    const lk_made_up good = {1, 5, ((uint64_t)1 << 40) - 5, 28, 28, 1, 65536};
    assert_int_equal(lk_made_up_check(&good, &error), LK_OK);
}

// --- can it be learnt? Softmax regression, the weakest of the networks, must do it ---------------

enum { PIXELS = 28 * 28, CLASSES = 10, BATCH = 64 };

static float weight[CLASSES][PIXELS + 1];

static void scores(const uint8_t *image, float out[CLASSES]) {
    for (int c = 0; c < CLASSES; c++) {
        out[c] = weight[c][PIXELS];
        for (int i = 0; i < PIXELS; i++)
            out[c] += weight[c][i] * ((float)image[i] - 127.5f) / 255.0f;
    }
}

static void train_step(const lk_made_up *set, uint64_t first) {
    static float gradient[CLASSES][PIXELS + 1];
    memset(gradient, 0, sizeof gradient);
    for (uint64_t e = first; e < first + BATCH; e++) {
        uint8_t image[PIXELS];
        uint32_t label;
        float s[CLASSES], sum = 0, most = -1e30f;
        lk_made_up_example(set, e, image, &label);
        scores(image, s);
        for (int c = 0; c < CLASSES; c++) most = fmaxf(most, s[c]);
        for (int c = 0; c < CLASSES; c++) sum += s[c] = expf(s[c] - most);
        for (int c = 0; c < CLASSES; c++) {
            float delta = (s[c] / sum - (c == (int)label)) / BATCH;
            for (int i = 0; i < PIXELS; i++)
                gradient[c][i] += delta * ((float)image[i] - 127.5f) / 255.0f;
            gradient[c][PIXELS] += delta;
        }
    }
    for (int c = 0; c < CLASSES; c++)
        for (int i = 0; i <= PIXELS; i++) weight[c][i] -= 0.1f * gradient[c][i];
}

static unsigned percent_right(const lk_made_up *set) {
    unsigned right = 0;
    for (uint64_t e = 0; e < set->count; e++) {
        uint8_t image[PIXELS];
        uint32_t label;
        float s[CLASSES];
        int best = 0;
        lk_made_up_example(set, e, image, &label);
        scores(image, s);
        for (int c = 1; c < CLASSES; c++)
            if (s[c] > s[best]) best = c;
        right += best == (int)label;
    }
    return (unsigned)(right * 100 / set->count);
}

static void test_it_can_be_learnt_but_not_at_once(void **state) {
    (void)state;
    const lk_made_up train = {1, 0, 60000, 28, 28, 1, CLASSES};
    const lk_made_up test = {1, 60000, 500, 28, 28, 1, CLASSES};
    unsigned right[61] = {percent_right(&test)};
    for (unsigned step = 1; step <= 60; step++) {
        train_step(&train, (step - 1) * (uint64_t)BATCH);
        if (step == 1 || step == 60) right[step] = percent_right(&test);
    }
    print_message("right: %u%% untrained, %u%% after 1 step, %u%% after 60\n", right[0], right[1],
                  right[60]);
    assert_in_range(right[0], 5, 15);
    assert_in_range(right[1], 0, 70);
    assert_in_range(right[60], 90, 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_bytes),
        cmocka_unit_test(test_a_range_continues_another),
        cmocka_unit_test(test_bad_descriptions),
        cmocka_unit_test(test_it_can_be_learnt_but_not_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
