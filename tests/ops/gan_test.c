// Tests of the losses of a generator and a discriminator (ops/layers/gan.c): PyTorch's numbers in
// float64, finite differences in double, several scores an example, what is not finite. Other
// tables of kernels: kernels_test.c.
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

enum { COUNT = 3 };

static const float real[COUNT] = {0.3f, -1.2f, 2.0f}, fake[COUNT] = {-0.5f, 0.8f, 1.5f};

// Means over the three, and gradients of the means: by PyTorch 2.15 in float64, in the order of
// lk_gan_kind; modified with a label smoothing of 0.25.
static const struct {
    double generator, discriminator;
    double of_generator[COUNT], of_real[COUNT], of_fake[COUNT];
} golden[LK_GAN_KINDS] = {
    {-0.6,
     0.23333333333333328,
     {-0.333333333333, -0.333333333333, -0.333333333333},
     {-0.333333333333, -0.333333333333, -0.333333333333},
     {0.333333333333, 0.333333333333, 0.333333333333}},
    {-1.1155303093702125,
     1.8303855503200561,
     {-0.125846889599, -0.229991493709, -0.272524825398},
     {-0.141852494396, -0.256174927833, -0.039734307341},
     {0.125846889599, 0.229991493709, 0.272524825398}},
    {0.5155303093702123,
     1.8762188836533893,
     {-0.207486443734, -0.103341839624, -0.060808507935},
     {-0.100185827729, -0.214508261166, 0.001932359326},
     {0.125846889599, 0.229991493709, 0.272524825398}},
    {0.42333333333333334,
     1.5783333333333336,
     {-0.5, -0.066666666667, 0.166666666667},
     {-0.233333333333, -0.733333333333, 0.333333333333},
     {-0.166666666667, 0.266666666667, 0.5}},
    {-0.6,
     2.5666666666666664,
     {-0.333333333333, -0.333333333333, -0.333333333333},
     {-0.333333333333, -0.333333333333, 0.0},
     {0.333333333333, 0.333333333333, 0.333333333333}},
};

static void near(double wanted, float found, double within) {
    if (fabs(wanted - (double)found) <= within * (1.0 + fabs(wanted))) return;
    fail_msg("wanted %.9g, found %.9g", wanted, (double)found);
}

typedef struct losses {
    float y[COUNT][2], dx[COUNT * 4], dx2[COUNT * 4];
} losses;

static uint32_t call(const lk_op_type *type, lk_gan gan, uint32_t examples, uint64_t floats,
                     const float *x, const float *x2, bool train, losses *out) {
    const lk_op op = {.type = type, .floats = floats, .gan = gan};
    lk_lane lane = {.examples = examples, .train = train};
    memset(out, 0x7f, sizeof *out);
    lane.at[LK_X] = (void *)(uintptr_t)x;
    lane.at[LK_X2] = (void *)(uintptr_t)x2;
    lane.at[LK_Y] = out->y;
    lane.at[LK_DX] = out->dx;
    lane.at[LK_DX2] = x2 ? out->dx2 : NULL;
    return type->reference(&lane, &op);
}

static void losses_are_those_of_pytorch(void **state) {
    (void)state;
    for (uint32_t kind = 0; kind < LK_GAN_KINDS; kind++) {
        const lk_gan gan = {.kind = kind, .smoothing = 0.25f};
        losses g, d;
        assert_int_equal(call(&lk_op_gan_generator, gan, COUNT, 1, fake, NULL, true, &g), 0);
        assert_int_equal(call(&lk_op_gan_discriminator, gan, COUNT, 1, real, fake, true, &d), 0);
        near(golden[kind].generator, (g.y[0][0] + g.y[1][0] + g.y[2][0]) / 3.0f, 1e-6);
        near(golden[kind].discriminator, (d.y[0][0] + d.y[1][0] + d.y[2][0]) / 3.0f, 1e-6);
        for (uint32_t m = 0; m < COUNT; m++) {
            assert_true(g.y[m][1] == fake[m] && d.y[m][1] == real[m]);
            near(3.0 * golden[kind].of_generator[m], g.dx[m], 1e-6);
            near(3.0 * golden[kind].of_real[m], d.dx[m], 1e-6);
            near(3.0 * golden[kind].of_fake[m], d.dx2[m], 1e-6);
        }
    }
}

// The formulas of gan.h once more, in double.
static double softplus(double z) { return z > 0.0 ? z + log1p(exp(-z)) : log1p(exp(z)); }

static double in_double(const char side, uint32_t kind, double smoothing, double x) {
    const double y = 1.0 - smoothing / 2.0;
    switch (kind) {
    case LK_GAN_WASSERSTEIN: return side == 'f' ? x : -x;
    case LK_GAN_MINIMAX: return side == 'g' ? -softplus(x) : softplus(side == 'f' ? x : -x);
    case LK_GAN_MODIFIED:
        return side == 'g' ? softplus(-x) : side == 'f' ? softplus(x) : softplus(x) - x * y;
    case LK_GAN_LEAST_SQUARES: return (side == 'f' ? x * x : (x - 1.0) * (x - 1.0)) / 2.0;
    default: return side == 'g' ? -x : fmax(0.0, side == 'f' ? 1.0 + x : 1.0 - x);
    }
}

static lk_gan_loss of_side(const char side, lk_gan gan, float x) {
    return side == 'g'   ? lk_gan_generator(gan.kind, x)
           : side == 'r' ? lk_gan_real(gan, x)
                         : lk_gan_fake(gan.kind, x);
}

static void gradients_are_those_of_differences(void **state) {
    const double by = 1e-6;
    (void)state;
    for (uint32_t kind = 0; kind < LK_GAN_KINDS; kind++) {
        for (uint32_t s = 0; s < 3; s++) {
            const lk_gan gan = {.kind = kind, .smoothing = 0.5f};
            for (float x = -12.03f; x < 12.0f; x += 0.17f) {
                const lk_gan_loss l = of_side("grf"[s], gan, x);
                const double at = (double)x;
                near(in_double("grf"[s], kind, 0.5, at), l.loss, 1e-6);
                const double up = in_double("grf"[s], kind, 0.5, at + by);
                const double down = in_double("grf"[s], kind, 0.5, at - by);
                near((up - down) / (2.0 * by), l.slope, 1e-6);
            }
        }
    }
}

// Means over the scores of an example; and beyond a slice.
static void examples_may_have_several_scores(void **state) {
    const float r[] = {0.5f, -1.0f, 2.0f, 0.25f, 1.0f, 3.0f},
                f[] = {1.0f, 2.0f, -1.0f, 0.5f, 0.0f, 4.0f};
    const lk_gan gan = {.kind = LK_GAN_LEAST_SQUARES};
    losses d;
    (void)state;
    assert_int_equal(call(&lk_op_gan_discriminator, gan, 2, 3, r, f, true, &d), 0);
    for (uint32_t m = 0; m < 2; m++) {
        double loss = 0.0;
        for (uint32_t k = 0; k < 3; k++) {
            const double a = (double)r[3 * m + k], b = (double)f[3 * m + k];
            loss += ((a - 1.0) * (a - 1.0) + b * b) / 6.0;
            near((a - 1.0) / 3.0, d.dx[3 * m + k], 1e-6);
            near(b / 3.0, d.dx2[3 * m + k], 1e-6);
        }
        near(loss, d.y[m][0], 1e-6);
    }
    near(0.5, d.y[0][1], 1e-6);
    near(4.25 / 3.0, d.y[1][1], 1e-6);
}

// In an evaluation no gradient is written; what is not finite is said.
static void evaluations_and_what_is_not_finite(void **state) {
    const float large[] = {3e38f, 0.0f, 0.0f};
    losses d, untouched;
    (void)state;
    memset(&untouched, 0x7f, sizeof untouched);
    const lk_gan squares = {.kind = LK_GAN_LEAST_SQUARES};
    assert_int_equal(call(&lk_op_gan_discriminator, squares, 3, 1, real, fake, false, &d), 0);
    assert_memory_equal(d.dx, untouched.dx, sizeof d.dx);
    assert_memory_equal(d.dx2, untouched.dx2, sizeof d.dx2);
    assert_int_equal(call(&lk_op_gan_discriminator, squares, 3, 1, large, fake, true, &d), 1);
    assert_int_equal(call(&lk_op_gan_discriminator, squares, 3, 1, real, large, true, &d), 1);
    assert_int_equal(call(&lk_op_gan_generator, squares, 3, 1, large, NULL, true, &d), 1);
    const lk_gan plain = {.kind = LK_GAN_MODIFIED};
    assert_int_equal(call(&lk_op_gan_generator, plain, 3, 1, large, NULL, true, &d), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_are_those_of_pytorch),
        cmocka_unit_test(gradients_are_those_of_differences),
        cmocka_unit_test(examples_may_have_several_scores),
        cmocka_unit_test(evaluations_and_what_is_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
