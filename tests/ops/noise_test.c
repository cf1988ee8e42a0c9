// Tests of ops/noise.h and of lk_cos_sinf: error over all arguments, the formulas in double, whose
// noise an element is, how it is spread, frozen bits. Fast kernels: kernels_test.c.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ops/layers/layer.h"
#include "ops/op.h"

static const double PI = 3.14159265358979323846;

static uint64_t mix(uint64_t hash, float value) {
    return (hash ^ lk_float_to_bits(value)) * 0x9E3779B97F4A7C15u + (hash >> 29);
}

// --- sine and cosine -----------------------------------------------------------------------------

// In units of the last place of a float near `want`.
static double error_in_ulp(float got, double want) {
    int exponent;
    if (want == 0.0) return got == 0.0f ? 0.0 : INFINITY;
    (void)frexp(want, &exponent);
    return fabs((double)got - want) / ldexp(1.0, exponent - 24);
}

// The angle is reduced exactly, so that double's own rounding is of no account.
static void every_angle_is_within_an_ulp(void **state) {
    double worst = 0.0;
    uint64_t hash = 0;
    (void)state;
    for (uint32_t a = 0; a < 1u << 24; a++) {
        const uint32_t quarter = (a + (1u << 21)) >> 22;
        const double angle = ((double)a - quarter * 0x1p22) * 0x1p-24 * 2.0 * PI;
        const double c = cos(angle), s = sin(angle);
        const double cosine[] = {c, -s, -c, s, c}, sine[] = {s, c, -s, -c, s};
        const lk_cos_sin got = lk_cos_sinf(a);
        worst = fmax(worst, error_in_ulp(got.cosine, cosine[quarter]));
        worst = fmax(worst, error_in_ulp(got.sine, sine[quarter]));
        hash = mix(mix(hash, got.cosine), got.sine);
    }
    print_message("largest error %.6f ulp, hash %016llx\n", worst, (unsigned long long)hash);
    assert_true(worst < 0.9871 && worst > 0.9869);
    assert_true(hash == 0x6fcd9f55642240eb);
}

static void quarters_are_exact(void **state) {
    static const float cosine[] = {1.0f, 0.0f, -1.0f, 0.0f}, sine[] = {0.0f, 1.0f, 0.0f, -1.0f};
    (void)state;
    for (uint32_t q = 0; q < 4; q++) {
        const lk_cos_sin got = lk_cos_sinf(q << 22);
        assert_true(got.cosine == cosine[q] && got.sine == sine[q]);
    }
}

// --- noise ---------------------------------------------------------------------------------------

static const lk_noise_key KEY = {
    .seed = 0x500000007u, .step = 77, .purpose = LK_PURPOSE_NOISE, .example = 1000};

// Element `at` of normal noise, in double, of the words of attempt `attempt`.
static double normal_in_double(const lk_noise *n, uint64_t at, uint32_t attempt) {
    const lk_philox_block b = lk_philox(0x500000007u, (lk_purpose)5,
                                        (uint32_t)(at / 4) + (attempt << 29), 1000, 77, n->number);
    const uint32_t *word = &b.word[at % 4 / 2 * 2];
    const double u = ((word[0] >> 8) + 1) * 0x1p-24, v = (word[1] >> 8) * 0x1p-24;
    const double radius = sqrt(-2.0 * log(u));
    return radius * (at % 2 ? sin(2.0 * PI * v) : cos(2.0 * PI * v));
}

static void noise_is_what_its_formula_says(void **state) {
    lk_noise n = {.kind = LK_NOISE_NORMAL, .number = 259, .offset = 0.5f, .scale = 3.0f};
    uint32_t drawn_again = 0;
    (void)state;
    for (uint64_t i = 0; i < 20000; i++) {
        n.kind = LK_NOISE_NORMAL;
        const double want = 0.5 + 3.0 * normal_in_double(&n, i, 0);
        assert_true(fabs((double)lk_noise_at(&n, &KEY, i) - want) < 4e-6);
        n.kind = LK_NOISE_TRUNCATED_NORMAL;
        uint32_t attempt = 0;
        while (fabs(normal_in_double(&n, i, attempt)) > 2.0) attempt++;
        drawn_again += attempt;
        const double cut = 0.5 + 3.0 * normal_in_double(&n, i, attempt);
        assert_true(fabs((double)lk_noise_at(&n, &KEY, i) - cut) < 4e-6);
        n.kind = LK_NOISE_UNIFORM;
        const lk_philox_block b =
            lk_philox(KEY.seed, (lk_purpose)5, (uint32_t)i / 4, 1000, 77, 259);
        assert_true(lk_noise_at(&n, &KEY, i) ==
                    fmaf(3.0f, (float)(b.word[i % 4] >> 8) * 0x1p-24f, 0.5f));
    }
    assert_true(drawn_again > 800 && drawn_again < 1100);
}

// The greatest radius there is, and none at all.
static void the_ends_of_the_normal_distribution(void **state) {
    (void)state;
    assert_true(lk_normal_pair(0xffffff00u, 0).cosine == 0.0f);
    const float most = lk_normal_pair(0, 0).cosine;
    assert_true(most > 5.7f && most < 5.78f && lk_normal_pair(255, 1u << 31).cosine == -most);
}

static void keys_of_noise(void **state) {
    (void)state;
    const lk_noise_source normal = {.kind = LK_NOISE_NORMAL, .mean = 2.0f, .stddev = 0.5f};
    const lk_noise_source even = {.kind = LK_NOISE_UNIFORM, .low = -1.0f, .high = 3.0f};
    const lk_noise a = lk_noise_of(&normal, 7), b = lk_noise_of(&even, 8);
    assert_true(a.number == 7 && a.offset == 2.0f && a.scale == 0.5f);
    assert_true(b.number == 8 && b.offset == -1.0f && b.scale == 4.0f);
}

enum { EXAMPLES = 6, FLOATS = 21 };

static void draw(float *y, uint32_t first, uint32_t examples, uint64_t step, bool train,
                 uint32_t number) {
    const lk_op op = {.type = &lk_op_noise,
                      .floats = FLOATS,
                      .noise = {.kind = LK_NOISE_NORMAL, .number = number, .scale = 1.0f}};
    lk_lane lane = {.examples = examples,
                    .train = train,
                    .first_example = first,
                    .seed = 9,
                    .step = step,
                    .at = {[LK_Y] = y}};
    assert_int_equal(lk_op_noise.reference(&lane, &op), 0);
}

// Of whoever computes an example, and however many with it, the same; of another step, place or
// noise another. Where nothing is trained the step is of no account.
static void noise_belongs_to_the_example(void **state) {
    float all[EXAMPLES][FLOATS], some[2][FLOATS];
    (void)state;
    draw(all[0], 40, EXAMPLES, 5, true, 1);
    draw(some[0], 43, 2, 5, true, 1);
    assert_memory_equal(all[3], some[0], sizeof some);
    assert_memory_not_equal(all[2], some[0], sizeof some[0]);
    draw(some[0], 43, 2, 6, true, 1);
    assert_memory_not_equal(all[3], some[0], sizeof some[0]);
    draw(some[0], 43, 2, 5, true, 2);
    assert_memory_not_equal(all[3], some[0], sizeof some[0]);
    draw(some[0], 43, 2, 5, false, 1);
    assert_memory_not_equal(all[3], some[0], sizeof some[0]);
    draw(some[1], 43, 1, 6, false, 1);
    assert_memory_equal(some[0], some[1], sizeof some[0]);
}

typedef struct moments {
    double mean, variance, low, high;
} moments;

static moments moments_of(uint32_t kind, uint64_t *hash) {
    enum { COUNT = 1 << 20 };
    const lk_noise n = {.kind = kind, .number = 3, .scale = 1.0f};
    moments m = {.low = 100.0, .high = -100.0};
    double squares = 0.0;
    for (uint64_t i = 0; i < COUNT; i++) {
        const float x = lk_noise_at(&n, &KEY, i);
        m.mean += (double)x / COUNT;
        squares += (double)x * (double)x / COUNT;
        m.low = fmin(m.low, (double)x);
        m.high = fmax(m.high, (double)x);
        *hash = mix(*hash, x);
    }
    m.variance = squares - m.mean * m.mean;
    return m;
}

static void how_noise_is_spread(void **state) {
    uint64_t hash = 0;
    (void)state;
    const moments normal = moments_of(LK_NOISE_NORMAL, &hash);
    assert_true(fabs(normal.mean) < 0.003 && fabs(normal.variance - 1.0) < 0.005);
    assert_true(normal.low < -4.0 && normal.high > 4.0);
    // 1 - 2 * 2 * phi(2) / (2 * Phi(2) - 1)
    const moments cut = moments_of(LK_NOISE_TRUNCATED_NORMAL, &hash);
    assert_true(fabs(cut.mean) < 0.003 && fabs(cut.variance - 0.773741) < 0.003);
    assert_true(cut.low >= -2.0 && cut.high <= 2.0 && cut.high > 1.99);
    const moments even = moments_of(LK_NOISE_UNIFORM, &hash);
    assert_true(fabs(even.mean - 0.5) < 0.001 && fabs(even.variance - 1.0 / 12.0) < 0.0005);
    assert_true(even.low >= 0.0 && even.high < 1.0);
    print_message("hash %016llx\n", (unsigned long long)hash);
    assert_true(hash == 0x0214e990cbf375f3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_angle_is_within_an_ulp),
        cmocka_unit_test(quarters_are_exact),
        cmocka_unit_test(noise_is_what_its_formula_says),
        cmocka_unit_test(the_ends_of_the_normal_distribution),
        cmocka_unit_test(keys_of_noise),
        cmocka_unit_test(noise_belongs_to_the_example),
        cmocka_unit_test(how_noise_is_spread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
