// laps_test.c - what apps/run/laps.h says of a step, by a clock that the test moves.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "apps/run/laps.h"

static double now;
double __wrap_lk_seconds(void);
double __wrap_lk_seconds(void) { return now; }

static void lap(lk_laps *laps, lk_lap which, double us) {
    now += 1e-6 * us;
    lk_lap_ends(laps, which);
}

// A step of 10 us, but for computing.
static void step(lk_laps *laps, double computing_us) {
    lk_laps_start(laps);
    lap(laps, LK_LAP_COMPUTING, computing_us);
    now += 4e-6;
    lk_lap_round_ends(laps, now - 1e-6);  // the last came 1 us ago: 3 us of waiting
    lap(laps, LK_LAP_UPDATING, 6);
    now += 1;  // what is between steps is nobody's
}

static void expect(const lk_laps *laps, const char *wanted) {
    char text[1024];
    int ends[2];
    lk_text_out out;
    assert_int_equal(pipe(ends), 0);
    lk_text_open(&out, ends[1]);
    assert_int_equal(lk_laps_print(laps, &out), LK_OK);
    close(ends[1]);
    ssize_t length = read(ends[0], text, sizeof text - 1);
    close(ends[0]);
    assert_true(length >= 0);
    text[length] = 0;
    assert_string_equal(text, wanted);
}

static void test_laps(void **state) {
    (void)state;
    lk_laps laps = {0};
    expect(&laps, "");
    for (uint32_t i = 0; i < LK_LAPS_BLOCK - 1; i++) step(&laps, 100);
    // Too few for a block.
    expect(&laps, "of a step, 110.0 us: computing 100.0, exchanging meanwhile 0.0, waiting 3.0, "
                  "rounds 1.0, moving 0.0, updating 6.0\n");
    step(&laps, 100);
    expect(&laps, "of a step, 110.0 us: computing 100.0, exchanging meanwhile 0.0, waiting 3.0, "
                  "rounds 1.0, moving 0.0, updating 6.0\n"
                  "of a step among the quickest in a row, 110.0 us: computing 100.0, exchanging "
                  "meanwhile 0.0, waiting 3.0, rounds 1.0, moving 0.0, updating 6.0\n");
    // The quicker block counts, whole blocks only, and printing changes nothing.
    for (uint32_t i = 0; i < LK_LAPS_BLOCK; i++) step(&laps, 40);
    for (uint32_t i = 0; i < LK_LAPS_BLOCK / 2; i++) step(&laps, 10);
    for (uint32_t twice = 0; twice < 2; twice++) {
        expect(&laps, "of a step, 68.0 us: computing 58.0, exchanging meanwhile 0.0, waiting 3.0, "
                      "rounds 1.0, moving 0.0, updating 6.0\n"
                      "of a step among the quickest in a row, 50.0 us: computing 40.0, exchanging "
                      "meanwhile 0.0, waiting 3.0, rounds 1.0, moving 0.0, updating 6.0\n");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_laps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
