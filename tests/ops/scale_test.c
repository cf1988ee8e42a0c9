// scale_test.c - the loss scale: how it follows events, its bounds, what a configuration may say.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "ops/graph/scale.h"

// The trace of TensorFlow's LossScaleOptimizer, growth interval 4: 0 is an overflow.
static void test_trace(void **state) {
    (void)state;
    static const char events[] = "001111011111";
    static const float wanted[] = {16384, 8192, 8192, 8192, 8192,  16384,
                                   8192,  8192, 8192, 8192, 16384, 16384};
    lk_loss_scale how = LK_LOSS_SCALE_DEFAULT;
    how.growth_steps = 4;
    for (int replays = 0; replays < 2; replays++) {
        lk_scale_state s = {{0}};
        assert_true(lk_scale_value(&how, &s) == 32768);
        for (unsigned i = 0; events[i]; i++) {
            lk_scale_follow(&how, &s,
                            events[i] == '1' ? LK_SCALE_APPLIED
                            : replays        ? LK_SCALE_REPLAYED
                                             : LK_SCALE_SKIPPED);
            assert_true(lk_scale_value(&how, &s) == wanted[i]);
        }
        assert_int_equal(lk_scale_replays(&s), replays ? 3 : 0);
        assert_int_equal(s.word[LK_SCALE_IN_A_ROW], 0);
    }
}

// Growth counts updates: those before an overflow do not count, nor do replays.
static void test_bounds(void **state) {
    (void)state;
    lk_loss_scale how = LK_LOSS_SCALE_DEFAULT;
    lk_scale_state s = {{0}};
    how.growth_steps = 1, how.growth = 65536, how.backoff = 0x1p-16f;
    for (int i = 0; i < 3; i++) lk_scale_follow(&how, &s, LK_SCALE_APPLIED);
    assert_true(lk_scale_value(&how, &s) == 0x1p30f);
    for (int i = 0; i < 4; i++) lk_scale_follow(&how, &s, LK_SCALE_SKIPPED);
    assert_true(lk_scale_value(&how, &s) == 1);
    assert_false(lk_scale_can_fall(&how, &s));
    assert_int_equal(s.word[LK_SCALE_IN_A_ROW], 4);
    lk_scale_follow(&how, &s, LK_SCALE_APPLIED);
    assert_true(lk_scale_can_fall(&how, &s));
    assert_int_equal(s.word[LK_SCALE_IN_A_ROW], 0);
    s.word[LK_SCALE_REPLAYS] = UINT32_MAX;
    lk_scale_follow(&how, &s, LK_SCALE_REPLAYED);
    assert_true(lk_scale_replays(&s) == 1ull << 32);
    how = LK_LOSS_SCALE_DEFAULT, how.is_static = 1;
    s = (lk_scale_state){{0}};
    for (int i = 0; i < 5000; i++) lk_scale_follow(&how, &s, LK_SCALE_APPLIED);
    lk_scale_follow(&how, &s, LK_SCALE_SKIPPED);
    assert_true(lk_scale_value(&how, &s) == 32768);
    assert_false(lk_scale_can_fall(&how, &s));
}

static void test_check(void **state) {
    (void)state;
    lk_model m = {.precision = LK_MIXED_FLOAT16, .loss_scale = LK_LOSS_SCALE_DEFAULT};
    lk_error error = {.status = LK_OK};
    assert_int_equal(lk_scale_check(&m, &error), LK_OK);
    for (unsigned i = 0; i < 10; i++) {
        lk_loss_scale *s = &m.loss_scale;
        *s = LK_LOSS_SCALE_DEFAULT;
        switch (i) {
        case 0: s->initial = 3; break;
        case 1: s->initial = 0x1p31f; break;
        case 2: s->initial = -2; break;
        case 3: s->least = 65536; break;
        case 4: s->least = 0.5f; break;
        case 5: s->growth = 1; break;
        case 6: s->backoff = 1; break;
        case 7: s->growth_steps = 0; break;
        case 8: s->skips_max = 0; break;
        default: s->is_static = s->replays = 1; break;
        }
        error.status = LK_OK;
        assert_int_equal(lk_scale_check(&m, &error), LK_BAD_CONFIG);
        assert_non_null(strstr(error.text, "loss_scale."));
        m.precision = LK_MIXED_BFLOAT16;
        assert_int_equal(lk_scale_check(&m, &error), LK_OK);
        m.fast_precision = LK_FAST_FP16;
        assert_int_equal(lk_scale_check(&m, &error), LK_BAD_CONFIG);
        m.fast_precision = LK_STRICT;
        m.precision = LK_MIXED_FLOAT16;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_trace), cmocka_unit_test(test_bounds),
                                       cmocka_unit_test(test_check)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
