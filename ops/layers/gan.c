// gan.c - losses of a generator and a discriminator: the reference. Freestanding. Formulas of one
// score are ops/gan.h's; ARITHMETIC.md 4.
//
//   of the K scores of an example, r = 1 / K:
//       gan_generator of f:         loss = (sum of the losses) * r;  df[k] = slope * r + 0.0f;
//                                   fake = (sum of f[k]) * r
//       gan_discriminator of r, f:  loss = (sum of the losses of r[k]) * r + (sum of those of f[k])
//       * r;
//                                   both gradients likewise;  real = (sum of r[k]) * r
#include "ops/graph/build.h"
#include "ops/layers/sums.h"

// Sums of the scores of an example, and their gradient.
typedef struct side {
    slice_sum losses, scores;
    float *gradient, part;
    uint32_t bad;
} side;

static side side_of(const lk_op *op, float *gradient) {
    side s = {.gradient = gradient, .part = 1.0f / lk_count_to_float(op->floats)};
    return s;
}

static void side_begin(side *s) {
    slice_start(&s->losses, 0.0f);
    slice_start(&s->scores, 0.0f);
}

static void side_add(side *s, float score, lk_gan_loss l) {
    slice_term(&s->losses, 1.0f, l.loss);
    slice_term(&s->scores, 1.0f, score);
    if (!s->gradient) return;
    *s->gradient = l.slope * s->part + 0.0f;
    s->bad |= lk_not_finite(*s->gradient++);
}

static uint32_t gan_generator(lk_lane *l, const lk_op *op) {
    const float *f = l->at[LK_X];
    float *y = l->at[LK_Y];
    side fake = side_of(op, l->train ? l->at[LK_DX] : NULL);
    for (uint32_t m = 0; m < l->examples; m++, y += 2) {
        side_begin(&fake);
        for (uint64_t k = 0; k < op->floats; k++, f++) {
            side_add(&fake, *f, lk_gan_generator(op->gan.kind, *f));
        }
        y[0] = slice_finish(&fake.losses) * fake.part;
        y[1] = slice_finish(&fake.scores) * fake.part;
        fake.bad |= lk_not_finite(y[0]) | lk_not_finite(y[1]);
    }
    return fake.bad;
}

static uint32_t gan_discriminator(lk_lane *l, const lk_op *op) {
    const float *r = l->at[LK_X], *f = l->at[LK_X2];
    float *y = l->at[LK_Y];
    side real = side_of(op, l->train ? l->at[LK_DX] : NULL);
    side fake = side_of(op, l->train ? l->at[LK_DX2] : NULL);
    for (uint32_t m = 0; m < l->examples; m++, y += 2) {
        side_begin(&real);
        side_begin(&fake);
        for (uint64_t k = 0; k < op->floats; k++, r++, f++) {
            side_add(&real, *r, lk_gan_real(op->gan, *r));
            side_add(&fake, *f, lk_gan_fake(op->gan.kind, *f));
        }
        const float of_real = slice_finish(&real.losses) * real.part;
        y[0] = of_real + slice_finish(&fake.losses) * fake.part;
        y[1] = slice_finish(&real.scores) * real.part;
        real.bad |= lk_not_finite(y[0]) | lk_not_finite(y[1]);
    }
    return real.bad | fake.bad;
}

const lk_op_type lk_op_gan_generator = {.name = "gan_generator",
                                        .number = LK_OP_GAN_GENERATOR,
                                        .scope = LK_SCOPE_LOSS,
                                        .reference = gan_generator,
                                        .mixed = true};
const lk_op_type lk_op_gan_discriminator = {.name = "gan_discriminator",
                                            .number = LK_OP_GAN_DISCRIMINATOR,
                                            .scope = LK_SCOPE_LOSS,
                                            .reference = gan_discriminator,
                                            .mixed = true,
                                            .both = true};

static lk_status build_gan_generator(lk_builder *b) {
    return lk_build_loss(b, &lk_op_gan_generator, NULL);
}

static uint64_t values_of(const lk_shape *s) { return (uint64_t)s->h * s->w * s->c; }

static lk_status build_gan_discriminator(lk_builder *b) {
    const lk_shape *r = &b->output.shape, *f = &b->target.shape;
    if (b->output.op == b->target.op || values_of(r) != values_of(f)) {
        return lk_fail(
            b->error, LK_BAD_CONFIG,
            "gan_discriminator: its inputs are %u x %u x %u and %u x %u x %u, wanted the "
            "scores of real and those of made examples, two of as many values",
            r->h, r->w, r->c, f->h, f->w, f->c);
    }
    return lk_build_loss(b, &lk_op_gan_discriminator, NULL);
}

const lk_loss_type lk_loss_gan_generator = {.inputs = 1,
                                            .gan = true,
                                            .metrics = {.sum_count = 2, .sum = {"loss", "fake"}},
                                            .build = LK_RULE(build_gan_generator)};
static const lk_metrics of_both = {.sum_count = 4,
                                   .sum = {"loss", "real", "generator_loss", "fake"}};
const lk_loss_type lk_loss_gan_discriminator = {
    .inputs = 2,
    .gan = true,
    .metrics = {.sum_count = 2, .sum = {"loss", "real"}},
    .together = &of_both,
    .beside = &lk_loss_gan_generator,
    .build = LK_RULE(build_gan_discriminator)};

// --- words ---------------------------------------------------------------------------------------

static const char *const kinds[LK_GAN_KINDS] = {"wasserstein", "minimax", "modified",
                                                "least_squares", "hinge"};

#define KIND                                                                              \
    {                                                                                     \
        .name = "kind", .field = "gan.kind", .kind = LK_SETTING_CHOICE, .required = true, \
        .offset = offsetof(lk_loss_options, gan.kind), .choices = kinds,                  \
        .choice_count = LK_GAN_KINDS, .meaning = "which pair of losses: the same of both" \
    }

static const lk_setting generator_keys[] = {KIND};
static const lk_setting discriminator_keys[] = {
    KIND,
    {.name = "label_smoothing",
     .field = "gan.smoothing",
     .kind = LK_SETTING_FLOAT,
     .offset = offsetof(lk_loss_options, gan.smoothing),
     .high = 1.0f,
     .float_constant = 0.25f,
     .meaning = "of modified: real examples have the target 1 less half of it"},
};

const lk_loss_words lk_loss_words_gan_generator = {
    .type = &lk_loss_gan_generator,
    .name = "gan_generator",
    .keys = generator_keys,
    .key_count = LK_COUNT(generator_keys),
    .meaning = "of the discriminator's scores of made examples, for the generator"};
const lk_loss_words lk_loss_words_gan_discriminator = {
    .type = &lk_loss_gan_discriminator,
    .name = "gan_discriminator",
    .keys = discriminator_keys,
    .key_count = LK_COUNT(discriminator_keys),
    .meaning = "of its scores of real examples, and of those of made ones"};
