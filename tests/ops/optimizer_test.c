// optimizer_test.c - the references of all optimizers and rate schedules: against the frameworks'
// own results in double, against the formulas in double, and against the bits that were frozen.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "arena/sha256.h"
#include "ops/graph/average.h"
#include "ops/op.h"
#include "ops/powers.h"
#include "tests/ops/kernel_calls.h"
#include "tests/ops/optimizers.h"

static uint64_t seed;

static uint32_t draw(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33);
}

// --- the frameworks' results ---------------------------------------------------------------------

#define TYPE(NAME) .type = &lk_optimizer_##NAME
#define HUNDREDTH  .learning_rate = 0.01f
#define THOUSANDTH .learning_rate = 0.001f
#define TF1        .rho = 0.9f, .epsilon = 1e-10f
#define KERAS      .rho = 0.9f, .epsilon = 1e-7f
#define BETAS      .beta_1 = 0.9f, .beta_2 = 0.999f

// Three updates of w = 1, 2, 3 by the gradients below: TensorFlow 1's kernels, Keras 3 and PyTorch
// 2, computed in double.
static const struct golden {
    const char *name;
    lk_optimizer o;
    double w[3][3];
} goldens[] = {
    {"sgd",
     {TYPE(sgd), HUNDREDTH},
     {{.999, 1.998, 2.997}, {1.001, 1.997, 2.997}, {1.0005, 2.001, 2.994}}},
    {"keras sgd clipvalue",
     {TYPE(sgd), .learning_rate = 0.1f, .clipvalue = 0.15f},
     {{.99, 1.985, 2.985}, {1.005, 1.975, 2.985}, {1.0, 1.99, 2.97}}},
    {"keras sgd cosine",
     {TYPE(sgd), .learning_rate = 0.1f, .rate = {.type = &lk_rate_cosine, .steps = 3}},
     {{.99, 1.98, 2.97}, {1.005, 1.9725, 2.97}, {1.00375, 1.9825, 2.9625}}},
    {"tf1 momentum",
     {TYPE(momentum), HUNDREDTH, .momentum = 0.9f},
     {{.999, 1.998, 2.997}, {1.0001, 1.9952, 2.9943}, {1.00059, 1.99668, 2.98887}}},
    {"tf1 nesterov",
     {TYPE(momentum), HUNDREDTH, .momentum = 0.9f, .nesterov = true},
     {{.9981, 1.9962, 2.9943}, {1.00109, 1.99268, 2.99187}, {1.001031, 1.998012, 2.983983}}},
    {"keras momentum",
     {TYPE(momentum_keras), HUNDREDTH, .momentum = 0.9f},
     {{.999, 1.998, 2.997}, {1.0001, 1.9952, 2.9943}, {1.00059, 1.99668, 2.98887}}},
    {"keras nesterov",
     {TYPE(momentum_keras), HUNDREDTH, .momentum = 0.9f, .nesterov = true},
     {{.9981, 1.9962, 2.9943}, {1.00109, 1.99268, 2.99187}, {1.001031, 1.998012, 2.983983}}},
    {"keras sgd weight_decay",
     {TYPE(momentum_keras), HUNDREDTH, .weight_decay = 0.1f},
     {{.998, 1.996, 2.994}, {.999002, 1.993004, 2.991006}, {.997502998, 1.995010996, 2.985014994}}},
    {"tf1 rmsprop",
     {TYPE(rmsprop_tf1), HUNDREDTH, TF1},
     {{.998946492566, 1.997896484191, 2.996853416123},
      {1.001162023595, 1.996788514712, 2.996853416123},
      {1.000578279388, 2.001409967258, 2.993378385727}}},
    {"tf1 rmsprop momentum",
     {TYPE(rmsprop_tf1), HUNDREDTH, TF1, .momentum = 0.9f},
     {{.998946492566, 1.997896484191, 2.996853416123},
      {1.000213866904, 1.994895350483, 2.994021490633},
      {1.000770759602, 1.996815782693, 2.987997727297}}},
    {"tf1 rmsprop centered",
     {TYPE(rmsprop_tf1), HUNDREDTH, TF1, .centered = true},
     {{.998946434098, 1.997896018656, 2.996851857250},
      {1.001162129631, 1.996787515618, 2.996851857250},
      {1.000578375872, 2.001409643942, 2.993369932495}}},
    {"keras rmsprop",
     {TYPE(rmsprop_keras), HUNDREDTH, KERAS},
     {{.968378804419, 1.968377618676, 2.968377399079},
      {.996949941449, 1.953633583321, 2.968377399079},
      {.989625535846, 1.981819306354, 2.944872446488}}},
    {"keras rmsprop momentum centered",
     {TYPE(rmsprop_keras), HUNDREDTH, KERAS, .momentum = 0.9f, .centered = true},
     {{.966668518364, 1.96666712962, 2.966666872426},
      {.965600751316, 1.920479660676, 2.93666705761},
      {.957296413559, 1.907251194667, 2.883694522188}}},
    {"tf1 adam",
     {TYPE(adam_tf1), THOUSANDTH, BETAS, .epsilon = 1e-8f},
     {{.999000003162, 1.999000001581, 2.999000001054},
      {.999366106172, 1.998067823261, 2.998329943507},
      {.999502796646, 1.998274180146, 2.997511941153}}},
    {"keras adam",
     {TYPE(adam_keras), THOUSANDTH, BETAS, .epsilon = 1e-7f},
     {{.999000031622, 1.999000015811, 2.999000010541},
      {.999366129971, 1.998067849360, 2.998329959353},
      {.999502818746, 1.998274204963, 2.997511962489}}},
    {"keras adam amsgrad",
     {TYPE(adam_keras), THOUSANDTH, BETAS, .epsilon = 1e-7f, .amsgrad = true},
     {{.999000038297, 1.999000022487, 2.999000017216},
      {.999366134208, 1.998067862244, 2.998330305595},
      {.999502822075, 1.998274216476, 2.997512314166}}},
    {"keras adamw",
     {TYPE(adam_keras), THOUSANDTH, BETAS, .epsilon = 1e-7f, .weight_decay = .004f},
     {{.998996038297, 1.998992022486, 2.998988017216},
      {.999358138224, 1.998051866275, 2.998305974538},
      {.999490828658, 1.998250228299, 2.997475989885}}},
    {"torch adam",
     {TYPE(adam_torch), THOUSANDTH, BETAS, .epsilon = 1e-8f},
     {{.9990000001, 1.99900000005, 2.999000000033},
      {.999366103604, 1.99806782047, 2.998329941811},
      {.999502794257, 1.99827417749, 2.99751193888}}},
    {"torch adam weight_decay",
     {TYPE(adam_torch), THOUSANDTH, BETAS, .epsilon = 1e-8f, .weight_decay = 0.1f},
     {{.99900000005, 1.999000000025, 2.999000000017},
      {.998734049202, 1.998017455878, 2.998067869188},
      {.9982074773, 1.99755010178, 2.997104936181}}},
    {"torch adam amsgrad",
     {TYPE(adam_torch), THOUSANDTH, BETAS, .epsilon = 1e-8f, .amsgrad = true},
     {{.9990000001, 1.99900000005, 2.999000000033},
      {.999366103604, 1.99806782047, 2.998330276924},
      {.999502794257, 1.99827417749, 2.997512273993}}},
    {"keras sgd clipnorm",
     {TYPE(sgd), .learning_rate = 0.1f, .clipnorm = 0.2f},
     {{.994654775162, 1.989309550324, 2.983964325485},
      {1.012543318982, 1.980365278414, 2.983964325485},
      {1.010553244601, 1.996285873457, 2.972023879203}}},
    {"keras adam global_clipnorm",
     {TYPE(adam_keras), THOUSANDTH, BETAS, .epsilon = 1e-7f, .global_clipnorm = 0.2f},
     {{.999000065833, 1.999000036255, 2.999000026395},
      {.999521321179, 1.998008615134, 2.998329985824},
      {.99985423766, 1.997984802608, 2.997532949204}}},
    {"lars of tensorflow's models",
     {TYPE(lars_tf), .learning_rate = 0.1f, .momentum = 0.9f, .eta = 0.001f, .weight_decay = 1e-4f},
     {{.9999, 1.9998, 2.9997},
      {1.000144462778, 1.999452350365, 2.999429498105},
      {1.000327183243, 1.999437089492, 2.998962493630}}},
    {"keras lamb",
     {TYPE(lamb_keras), THOUSANDTH, BETAS, .epsilon = 1e-7f},
     {{.997839753941, 1.997839752861, 2.9978397525},
      {.998975515179, 1.994947856381, 2.995761033617},
      {.999572939802, 1.995849767405, 2.99218584222}}},
    {"torch adamw",
     {TYPE(adamw_torch), THOUSANDTH, BETAS, .epsilon = 1e-8f, .weight_decay = 0.1f},
     {{.9989000001, 1.9988000001, 2.998700000033},
      {.999166213604, 1.99766794047, 2.997730071811},
      {.999202987635, 1.997674530696, 2.996612295873}}},
};

// One update of number t, of elements whose slots lie after one another.
static uint32_t update(const lk_optimizer *o, uint64_t t, uint64_t count, const float *sums,
                       float inverse_n, float *w, float *slots) {
    float *at[LK_OPTIMIZER_SLOTS_MAX] = {NULL};
    for (uint32_t i = 0; i < lk_optimizer_slot_count(o); i++) at[i] = slots + i * count;
    lk_step_scalars scalars = lk_optimizer_scalars(o, t, t, inverse_n);
    uint32_t bad = 0;
    if (lk_optimizer_norm(o)) {
        float squares[2];
        assert_true(count <= LK_SLICE_TERMS);
        lk_squares_reference[lk_optimizer_norm(o)](o, &scalars, count, sums, w, at, squares);
        bad = lk_optimizer_fit(o, squares, squares[0], &scalars);
    }
    return bad | o->type->reference(o, &scalars, count, sums, w, at);
}

static void start_slots(const lk_optimizer *o, uint64_t count, float *slots) {
    lk_slot list[LK_OPTIMIZER_SLOTS_MAX];
    const uint32_t all = lk_optimizer_slots(o, list);
    for (uint64_t i = 0; i < all * count; i++) slots[i] = list[i / count].initial;
}

// Within what rounding each of three updates to fp32 may leave.
static void golden_vectors(void **state) {
    static const float g[3][3] = {{.1f, .2f, .3f}, {-.2f, .1f, 0.0f}, {.05f, -.4f, .3f}};
    (void)state;
    for (size_t c = 0; c < LK_COUNT(goldens); c++) {
        const struct golden *golden = &goldens[c];
        float w[] = {1, 2, 3}, slots[3 * LK_OPTIMIZER_SLOTS_MAX];
        start_slots(&golden->o, 3, slots);
        for (uint32_t step = 0; step < 3; step++) {
            float sums[3];
            for (uint32_t i = 0; i < 3; i++) sums[i] = 4.0f * g[step][i];
            assert_int_equal(update(&golden->o, step, 3, sums, 0.25f, w, slots), 0);
            for (uint32_t i = 0; i < 3; i++) {
                const double want = golden->w[step][i], error = fabs((double)w[i] - want);
                if (error <= 1.2e-7 * want * (step + 1)) continue;
                fail_msg("%s, update %u, w[%u]: found %.12g, wanted %.12g", golden->name, step + 1,
                         i, (double)w[i], want);
            }
        }
    }
}

// Nesterov's or a slot's, under a rate that changes, the two momentums part.
static void momentums_differ(void **state) {
    (void)state;
    const lk_rate falls = {.type = &lk_rate_cosine, .steps = 4};
    const lk_optimizer one = {TYPE(momentum), HUNDREDTH, .momentum = 0.9f, .rate = falls};
    const lk_optimizer two = {TYPE(momentum_keras), HUNDREDTH, .momentum = 0.9f, .rate = falls};
    float w[2] = {1.0f, 1.0f}, slots[2] = {0};
    for (uint32_t t = 0; t < 4; t++) {
        const float sum = 1.0f;
        assert_int_equal(update(&one, t, 1, &sum, 1.0f, &w[0], &slots[0]), 0);
        assert_int_equal(update(&two, t, 1, &sum, 1.0f, &w[1], &slots[1]), 0);
    }
    assert_true(fabsf(w[0] - w[1]) > 0.001f);
}

// As Keras' SGD(learning_rate=1, use_ema=True, ema_momentum=0.5), on w = 4 with gradients of 1, 2
// and 4. The first update leaves no trace of initial weights.
static void averages_are_keras(void **state) {
    static const float sums[] = {1, 2, 4}, weights[] = {3, 1, -3}, averages[] = {3, 2, -0.5f};
    const lk_optimizer o = {TYPE(sgd), .learning_rate = 1.0f, .weight_average = 0.5f};
    float w = 4.0f, average = 4.0f, *slots[LK_OPTIMIZER_SLOTS_MAX] = {&average};
    lk_slot list[LK_OPTIMIZER_SLOTS_MAX];
    (void)state;
    assert_int_equal(lk_optimizer_slots(&o, list), 1);
    assert_string_equal(list[0].name, "average");
    for (uint32_t t = 0; t < 3; t++) {
        const lk_step_scalars scalars = lk_optimizer_scalars(&o, 10 + t, t, 1.0f);
        assert_int_equal(o.type->reference(&o, &scalars, 1, &sums[t], &w, slots), 0);
        assert_int_equal(lk_average_reference(1, scalars.average, &w, &average), 0);
        assert_true(w == weights[t] && average == averages[t]);
    }
    w = NAN;
    assert_int_equal(lk_average_reference(1, 0.5f, &w, &average), 1);
}

// --- rate schedules ------------------------------------------------------------------------------

static const struct rate_golden {
    lk_rate rate;
    double rates[9];
} rate_goldens[] = {
    {{.type = &lk_rate_cosine, .steps = 100, .alpha = 0.01f},
     {.1, .099975571036, .0993905738, .097577296197, .0505, .00102442666, .001, .001, .001}},
    {{.type = &lk_rate_cosine, .steps = 90, .warmup_steps = 10},
     {0, .01, .05, .1, .058682408184, 3.0457973e-05, 0, 0, 0}},
    {{.type = &lk_rate_cosine_restarts, .steps = 50, .t_mul = 2, .m_mul = 0.9f},
     {.1, .099901340902, .097552828491, .090450845659, .09, .046413481236, .045, .081,
      .051030468196}},
    {{.type = &lk_rate_exponential, .steps = 50, .decay_rate = 0.5f},
     {.1, .098623268306, .09330330044, .087055057287, .05, .025348985568, .025, .0125,
      9.5367432e-08}},
    {{.type = &lk_rate_exponential, .steps = 50, .decay_rate = 0.5f, .staircase = true},
     {.1, .1, .1, .1, .05, .05, .025, .0125, 9.5367432e-08}},
    {{.type = &lk_rate_polynomial, .steps = 100, .end_learning_rate = 0.01f, .power = 2.0f},
     {.1, .098209001124, .091225, .0829, .0325, .010009, .01, .01, .01}},
    {{.type = &lk_rate_piecewise, .boundaries = {2, {10, 100}}, .values = {2, {0.05f, 0.01f}}},
     {.1, .1, .1, .1, .05, .05, .05, .01, .01}},
    {{.type = &lk_rate_constant}, {.1, .1, .1, .1, .1, .1, .1, .1, .1}},
    {{.warmup_steps = 100, .warmup_from = 0.05f},
     {.05, .0505, .0525, .055, .075, .0995, .1, .1, .1}},
};

// Keras 3's, which computes them in fp32 itself.
static void golden_rates(void **state) {
    static const uint64_t steps[9] = {0, 1, 5, 10, 50, 99, 100, 150, 1000};
    (void)state;
    for (size_t c = 0; c < LK_COUNT(rate_goldens); c++) {
        for (uint32_t i = 0; i < LK_COUNT(steps); i++) {
            const double want = rate_goldens[c].rates[i];
            const float got = lk_rate_at(&rate_goldens[c].rate, 0.1f, steps[i]);
            if (fabs((double)got - want) <= 1.5e-8) continue;
            fail_msg("%s, case %zu, t = %llu: found %.9g, wanted %.9g",
                     lk_rate_words_of(rate_goldens[c].rate.type)->name, c,
                     (unsigned long long)steps[i], (double)got, want);
        }
    }
}

static void rates_at_their_ends(void **state) {
    (void)state;
    const lk_rate falls = {.type = &lk_rate_polynomial, .steps = 10, .power = 1.0f};
    assert_true(lk_rate_at(&falls, 0.5f, 10) == 0.0f && lk_rate_at(&falls, 0.5f, 5) == 0.25f);
    assert_true(lk_rate_at(&falls, 0.5f, UINT64_MAX / 2) == 0.0f);
    const lk_rate same = {.type = &lk_rate_cosine_restarts, .steps = 4, .t_mul = 1, .m_mul = 0.5f};
    assert_true(lk_rate_at(&same, 1.0f, 8) == 0.25f && lk_rate_at(&same, 1.0f, 10) == 0.125f);
    const lk_rate longer = {
        .type = &lk_rate_cosine_restarts, .steps = 1, .t_mul = 1000, .m_mul = 1.0f};
    assert_true(lk_rate_at(&longer, 1.0f, 1) == 1.0f && lk_rate_at(&longer, 1.0f, 501) == 0.5f);
    assert_true(lk_rate_at(&longer, 1.0f, UINT64_MAX) > 0.0f);  // a period of more than 2^64
    const lk_rate warm = {.type = &lk_rate_exponential,
                          .steps = 2,
                          .decay_rate = 0.25f,
                          .warmup_steps = 4,
                          .warmup_from = 1.0f};
    assert_true(lk_rate_at(&warm, 2.0f, 0) == 1.0f && lk_rate_at(&warm, 2.0f, 3) == 1.75f);
    assert_true(lk_rate_at(&warm, 2.0f, 4) == 2.0f && lk_rate_at(&warm, 2.0f, 5) == 1.0f);
}

// --- pow and cos ---------------------------------------------------------------------------------

static double ulps(float got, double want) {
    int exponent;
    (void)frexp(want, &exponent);
    const double ulp = ldexp(1.0, (exponent < -125 ? -125 : exponent) - 24);
    return fabs((double)got - want) / ulp;
}

static float fraction(uint32_t count) { return (float)(draw() % (count + 1)) / (float)count; }

// Bases of all sizes up to 1, and many next to 1; powers of all sizes, and ordinary ones.
static void powers_are_near(void **state) {
    double worst = 0.0;
    (void)state;
    seed = 2;
    for (uint32_t i = 0; i < 300000; i++) {
        float b = lk_float_from_bits(draw() % 0x3f800001u);
        if (i % 3 == 1) b = 1.0f - (float)(draw() >> 8) * 0x1p-24f;
        if (i % 3 == 2) b = lk_float_from_bits(0x3f800000u - draw() % 100000);
        const float y = i % 2 ? 9.0f * fraction(1000) : lk_float_from_bits(draw() % 0x7f800000u);
        const double want = pow((double)b, (double)y);
        worst = fmax(worst, ulps(lk_powf(b, y), want));
    }
    assert_true(worst < 0.501);
    assert_true(lk_powf(0.0f, 0.0f) == 1.0f && lk_powf(0.0f, 2.0f) == 0.0f);
    assert_true(lk_powf(0.7f, 1.0f) == 0.7f && lk_powf(0.5f, 149.0f) == 0x1p-149f);
    assert_true(lk_powf(1.0f, 0x1p100f) == 1.0f && lk_powf(0x1p-149f, 1.0f) == 0x1p-149f);
}

// Against products whose upper half is known: of sums of powers of two, and by long division.
static void high_halves(void **state) {
    (void)state;
    seed = 3;
    assert_true(lk_high64(UINT64_MAX, UINT64_MAX) == UINT64_MAX - 1);
    assert_true(lk_high64(0xffffffffu, 0x100000001u) == 0 && lk_high64(UINT64_MAX, 1) == 0);
    for (uint32_t i = 0; i < 1000; i++) {
        const uint64_t a = (uint64_t)draw() << 33 ^ (uint64_t)draw() << 2 ^ draw();
        const uint64_t b = (uint64_t)draw() << 33 ^ (uint64_t)draw() << 2 ^ draw();
        uint64_t high = 0, low = 0;
        for (int bit = 63; bit >= 0; bit--) {  // shift and add, in 128 bits
            high = high << 1 | low >> 63;
            low <<= 1;
            if (!(b >> bit & 1)) continue;
            low += a;
            high += low < a;
        }
        assert_true(lk_high64(a, b) == high);
    }
}

static void cosines_are_near(void **state) {
    const double pi = 3.14159265358979323846;
    double worst = 0.0;
    (void)state;
    for (uint32_t bits = 0; bits <= 0x3f800000u; bits += bits < 0x3c000000u ? 40009 : 101) {
        const float x = lk_float_from_bits(bits);
        const bool middle = x > 0.25f && x < 0.75f;
        const double want = middle ? sin(pi * (0.5 - (double)x)) : cos(pi * (double)x);
        worst = fmax(worst, ulps(lk_cos_pif(x), want));
    }
    assert_true(worst < 0.501);
    assert_true(lk_cos_pif(0.0f) == 1.0f && lk_cos_pif(1.0f) == -1.0f);
    assert_int_equal(lk_float_to_bits(lk_cos_pif(0.5f)), 0);
    assert_true(lk_power(0.5f, 0) == 1.0f && lk_power(0.5f, 10) == 0x1p-10f);
    assert_true(lk_power(3.0f, 5) == 243.0f && lk_power(0.999f, UINT64_MAX) == 0.0f);
}

// --- what is frozen ------------------------------------------------------------------------------

static void hash_of_optimizer(const lk_optimizer *o, char hex[LK_SHA256_HEX_BYTES]) {
    enum { COUNT = 100, STEPS = 40 };
    float w[COUNT], sums[COUNT], slots[COUNT * LK_OPTIMIZER_SLOTS_MAX];
    uint8_t bytes[LK_SHA256_BYTES];
    lk_sha256 hash;
    lk_sha256_start(&hash);
    start_slots(o, COUNT, slots);
    for (uint32_t i = 0; i < COUNT; i++) w[i] = (float)draw() * 0x1p-30f - 1.0f;
    for (uint32_t t = 0; t < STEPS; t++) {
        for (uint32_t i = 0; i < COUNT; i++) {
            const float size = lk_float_from_bits((97 + draw() % 36) << 23);
            sums[i] = i % 10 == 9 ? 0.0f : ((float)draw() * 0x1p-30f - 1.0f) * size;
        }
        assert_int_equal(update(o, t * t, COUNT, sums, 0x1.555556p-4f, w, slots), 0);
    }
    lk_sha256_add(&hash, w, sizeof w);
    lk_sha256_add(&hash, slots, lk_optimizer_slot_count(o) * COUNT * sizeof(float));
    lk_sha256_finish(&hash, bytes);
    lk_hex(bytes, LK_SHA256_BYTES, hex);
}

static const char *const optimizer_hashes[LK_COUNT(optimizer_cases)] = {
    "792ff669b23beb4c", "c946d1eb77c2d9f3", "43f5b6143e8251ac", "99d07028eaad34bf",
    "aa703debd82e9e96", "38eca8ae4f5132f6", "eb3f008d530401df", "2e2a78b0760a6184",
    "a201cd9ff3944bf7", "5e506027f14e47ac", "8b6ffbeae9f103e2", "219b32c83bcc8a44",
    "f18809e1d5f8c928", "022e00ae88cd4fc9", "150cbcab3b3ef872", "2620656dc2421c34",
    "a4916eb84ed6a850", "1d6428ed15452a9f", "14a6a9fa064450c6", "2487595b0889ee95",
    "5008357574912f22", "7712b994191e8c37", "b3295cbfe4afe596", "8eeb5902286352ee",
    "3063f2d754831e73"};

static void optimizers_are_frozen(void **state) {
    char hex[LK_SHA256_HEX_BYTES];
    uint32_t wrong = 0;
    (void)state;
    for (size_t c = 0; c < LK_COUNT(optimizer_cases); c++) {
        seed = 100 + c;
        hash_of_optimizer(&optimizer_cases[c], hex);
        hex[16] = '\0';
        if (optimizer_hashes[c] && strcmp(hex, optimizer_hashes[c]) == 0) continue;
        wrong++;
        print_message("optimizer case %zu: found \"%s\"\n", c, hex);
    }
    assert_int_equal(wrong, 0);
}

static const char *const rate_hashes[LK_COUNT(rate_goldens)] = {
    "1139414a1af1d692", "1045e036f7c535a1", "3ff58f30cd1a830a",
    "a96dfde0645fafd5", "fdbaa004e63719be", "683786a9fd4a7631",
    "84a4af110a93cb44", "2d39083e50c21504", "519ab019b0b31529"};

static void rates_are_frozen(void **state) {
    char hex[LK_SHA256_HEX_BYTES];
    uint8_t bytes[LK_SHA256_BYTES];
    uint32_t wrong = 0;
    (void)state;
    for (size_t c = 0; c < LK_COUNT(rate_goldens); c++) {
        lk_sha256 hash;
        lk_sha256_start(&hash);
        for (uint64_t t = 0; t < 100000; t += 1 + t / 64) {
            const float rate = lk_rate_at(&rate_goldens[c].rate, 0.3f, t);
            lk_sha256_add(&hash, &rate, sizeof rate);
        }
        lk_sha256_finish(&hash, bytes);
        lk_hex(bytes, LK_SHA256_BYTES, hex);
        hex[16] = '\0';
        if (rate_hashes[c] && strcmp(hex, rate_hashes[c]) == 0) continue;
        wrong++;
        print_message("rate case %zu: found \"%s\"\n", c, hex);
    }
    assert_int_equal(wrong, 0);
}

// --- slots, flags, refusals ----------------------------------------------------------------------

static void slots_have_names(void **state) {
    lk_slot list[LK_OPTIMIZER_SLOTS_MAX];
    (void)state;
    for (size_t c = 0; c < LK_COUNT(optimizer_cases); c++) {
        const uint32_t count = lk_optimizer_slots(&optimizer_cases[c], list);
        assert_true(count <= LK_OPTIMIZER_SLOTS_MAX);
        for (uint32_t i = 0; i < count; i++) {
            assert_true(list[i].name[0] && !strchr(list[i].name, '/'));
            for (uint32_t j = 0; j < i; j++) assert_string_not_equal(list[i].name, list[j].name);
        }
    }
    const lk_optimizer ones = {TYPE(rmsprop_tf1), .momentum = 0.5f, .centered = true};
    assert_int_equal(lk_optimizer_slots(&ones, list), 3);
    assert_true(list[0].initial == 1.0f && list[1].initial == 0.0f && list[2].initial == 0.0f);
    assert_string_equal(list[2].name, "momentum");
    const lk_optimizer plain = {TYPE(rmsprop_keras)};
    assert_int_equal(lk_optimizer_slots(&plain, list), 1);
    assert_true(list[0].initial == 0.0f);
}

// A gradient that is not finite is told, also where it is cut; and so is a square that overflows.
static void overflow_is_told(void **state) {
    (void)state;
    for (size_t c = 0; c < LK_COUNT(optimizer_cases); c++) {
        const lk_optimizer *o = &optimizer_cases[c];
        float w = 1.0f, slots[LK_OPTIMIZER_SLOTS_MAX], sum = INFINITY;
        start_slots(o, 1, slots);
        assert_int_equal(update(o, 0, 1, &sum, 1.0f, &w, slots), 1);
        w = 1.0f;
        sum = NAN;
        start_slots(o, 1, slots);
        assert_int_equal(update(o, 0, 1, &sum, 1.0f, &w, slots), 1);
        w = 1.0f;
        sum = 0x1p100f;  // its square is not finite, but where it is cut
        start_slots(o, 1, slots);
        const bool means = lk_optimizer_slot_count(o) > 0 &&
                           o->type->number >= LK_OPTIMIZER_RMSPROP_TF1;
        const bool squares = (means || lk_optimizer_norm(o)) && o->clipvalue == 0.0f;
        assert_int_equal(update(o, 0, 1, &sum, 1.0f, &w, slots), squares);
    }
}

// A square of the mean that rounding leaves above the mean of squares is no root's to see.
static void deviation_is_not_below_zero(void **state) {
    (void)state;
    const lk_optimizer o = {TYPE(rmsprop_tf1), HUNDREDTH, TF1, .centered = true};
    float w = 1.0f, slots[2] = {1.0f, 0x1.000002p+0f};
    const float sum = 1.0f;
    assert_int_equal(update(&o, 0, 1, &sum, 1.0f, &w, slots), 0);
    assert_true(w - w == 0.0f && w < -900.0f);  // 0.01 / sqrt(1e-10)
}

static void refused(const lk_optimizer *o, const char *what) {
    lk_error error = {.status = LK_OK};
    assert_int_equal(o->type->check(o, &error), LK_BAD_CONFIG);
    assert_non_null(strstr(error.text, what));
}

// For who builds a run in C: a configuration is refused by its table of keys.
static void numbers_are_refused(void **state) {
    (void)state;
    refused(&(lk_optimizer){TYPE(momentum), .momentum = 1.0f}, "optimizer.momentum");
    refused(&(lk_optimizer){TYPE(momentum_keras), .momentum = -0.5f}, "optimizer.momentum");
    refused(&(lk_optimizer){TYPE(rmsprop_tf1), .rho = 1.0f, .epsilon = 1.0f}, "optimizer.rho");
    refused(&(lk_optimizer){TYPE(rmsprop_keras), .rho = 0.5f}, "optimizer.epsilon");
    refused(&(lk_optimizer){TYPE(adam_tf1), .beta_1 = 1.0f, .epsilon = 1.0f}, "optimizer.beta_1");
    refused(&(lk_optimizer){TYPE(adam_keras), .beta_2 = NAN, .epsilon = 1.0f}, "optimizer.beta_2");
    refused(&(lk_optimizer){TYPE(adamw_torch), .epsilon = INFINITY}, "optimizer.epsilon");
}

// Without its numbers a schedule would divide by 0, or not end.
static void schedules_are_refused(void **state) {
    const lk_rate none[] = {
        {.type = &lk_rate_exponential},
        {.type = &lk_rate_cosine},
        {.type = &lk_rate_polynomial},
        {.type = &lk_rate_cosine_restarts, .steps = 1},
        {.type = &lk_rate_cosine, .steps = 1, .alpha = NAN},
        {.type = &lk_rate_exponential, .steps = 1, .decay_rate = 1.5f},
        {.type = &lk_rate_piecewise, .boundaries = {1, {5}}},
        {.type = &lk_rate_piecewise, .boundaries = {2, {5, 5}}, .values = {2, {1.0f, 1.0f}}}};
    (void)state;
    for (size_t i = 0; i < LK_COUNT(none); i++) {
        lk_error error = {.status = LK_OK};
        assert_int_equal(lk_rate_check(&none[i], &error), LK_BAD_CONFIG);
        assert_non_null(strstr(error.text, "optimizer.learning_rate_schedule"));
    }
    for (size_t i = 0; i < LK_COUNT(rate_goldens); i++) {
        lk_error error = {.status = LK_OK};
        assert_int_equal(lk_rate_check(&rate_goldens[i].rate, &error), LK_OK);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_vectors),      cmocka_unit_test(momentums_differ),
        cmocka_unit_test(averages_are_keras),
        cmocka_unit_test(golden_rates),        cmocka_unit_test(rates_at_their_ends),
        cmocka_unit_test(powers_are_near),     cmocka_unit_test(cosines_are_near),
        cmocka_unit_test(high_halves),         cmocka_unit_test(optimizers_are_frozen),
        cmocka_unit_test(rates_are_frozen),    cmocka_unit_test(slots_have_names),
        cmocka_unit_test(overflow_is_told),    cmocka_unit_test(deviation_is_not_below_zero),
        cmocka_unit_test(numbers_are_refused), cmocka_unit_test(schedules_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
