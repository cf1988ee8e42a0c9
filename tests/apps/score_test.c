// score_test.c - the figures of generated images against what they must be by their formulas: sets
// whose covariances are known multiples of each other, answers whose entropy is known.
#include "apps/cli/score.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { IMAGES = 400, CLASSES = 4, FEATURES_MAX = 130 };

static double next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 40) * 0x1p-24 - 0.5;
}

static void near(double found, double wanted, double within) {
    if (fabs(found - wanted) <= within * (1 + fabs(wanted))) return;
    fail_msg("found %.15g, wanted %.15g", found, wanted);
}

static lk_moments make(uint32_t features) {
    lk_moments m;
    double *memory = malloc(lk_moments_doubles(features, CLASSES) * sizeof *memory);
    assert_non_null(memory);
    lk_moments_start(&m, features, CLASSES, memory);
    return m;
}

// Features that depend on each other, some of them always 0 and some the same; those of `b` are
// twice those of `a` and 1 more. Whole numbers of 1/1024: exact in fp32.
static void fill(uint32_t features, lk_moments *a, lk_moments *b) {
    static const float logits[CLASSES] = {0, 1, 2, 3};
    float x[FEATURES_MAX], y[FEATURES_MAX];
    uint64_t state = features;
    for (uint32_t n = 0; n < IMAGES; n++) {
        for (uint32_t i = 0; i < features; i++) {
            const double draw = next_random(&state) + (i ? 0.5 * (double)x[i - 1] : 0);
            x[i] = (float)(floor(draw * 1024) / 1024);
            if (features > 4 && i == 3) x[i] = 0;
            if (features > 4 && i == 4) x[i] = x[1];
            y[i] = 2 * x[i] + 1;
        }
        lk_moments_add(a, x, logits);
        lk_moments_add(b, y, logits);
    }
}

// Of C and 4 C: tr(C + 4 C - 2 * 2 C) = tr C.
static void test_distance(void **state) {
    (void)state;
    static const uint32_t sizes[] = {1, 2, 3, 5, 17, 64, FEATURES_MAX};
    for (uint32_t s = 0; s < LK_COUNT(sizes); s++) {
        const uint32_t n = sizes[s];
        lk_moments a = make(n), b = make(n), both = make(n);
        double *scratch = malloc(lk_frechet_doubles(n) * sizeof *scratch), wanted = 0;
        assert_non_null(scratch);
        fill(n, &a, &b);
        for (uint32_t i = 0; i < n; i++) {
            const double mean = a.sum[i] / IMAGES, apart = mean + 1;
            wanted += apart * apart;
            wanted += (a.products[(uint64_t)i * n + i] - IMAGES * mean * mean) / (IMAGES - 1);
        }
        near(lk_frechet_distance(&a, &b, scratch), wanted, 1e-7);
        near(lk_frechet_distance(&b, &a, scratch), wanted, 1e-7);
        near(lk_frechet_distance(&a, &a, scratch), 0, 1e-6);
        lk_moments_join(&both, &a);
        lk_moments_join(&both, &a);
        assert_true(both.count == 2 * IMAGES && both.sum[0] == 2 * a.sum[0]);
        near(lk_score(&both), lk_score(&a), 1e-12);
        free(a.sum), free(b.sum), free(both.sum), free(scratch);
    }
}

// Independent features: the distance is that of each, added.
static void test_apart(void **state) {
    (void)state;
    static const float logits[CLASSES] = {0};
    double scratch[64];
    lk_moments a = make(2), b = make(2);
    assert_true(lk_frechet_doubles(2) <= LK_COUNT(scratch));
    for (uint32_t n = 0; n < 4; n++) {
        const float x = n & 1 ? 1 : -1, y = n & 2 ? 1 : -1;
        lk_moments_add(&a, (float[]){3 * x, y}, logits);
        lk_moments_add(&b, (float[]){x, 5 * y + 7}, logits);
    }
    // Covariances 4/3 of 9 and 1, of 1 and 25.
    const double wanted = 49 + 4.0 / 3 * ((3 - 1) * (3 - 1) + (5 - 1) * (5 - 1));
    near(lk_frechet_distance(&a, &b, scratch), wanted, 1e-12);
    free(a.sum), free(b.sum);
}

static void test_score(void **state) {
    (void)state;
    lk_moments sure = make(1), same = make(1), none = make(1), half = make(1);
    const float feature = 0;
    for (uint32_t n = 0; n < 400; n++) {
        float logits[CLASSES] = {0};
        lk_moments_add(&none, &feature, logits);
        logits[n % CLASSES] = 200;
        lk_moments_add(&sure, &feature, logits);
        logits[n % CLASSES] = 0;
        logits[n & 1] = logits[2 + (n & 1)] = 200;  // two classes are as likely, by turns
        lk_moments_add(&half, &feature, logits);
        lk_moments_add(&same, &feature, (const float[]){-300, 5, -300, -300});
    }
    near(lk_score(&sure), CLASSES, 1e-12);  // each sure, all classes as often
    near(lk_score(&none), 1, 1e-12);        // never sure
    near(lk_score(&same), 1, 1e-12);        // always the same
    near(lk_score(&half), 2, 1e-12);
    free(sure.sum), free(same.sum), free(none.sum), free(half.sum);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_distance),
        cmocka_unit_test(test_apart),
        cmocka_unit_test(test_score),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
