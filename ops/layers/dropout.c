// dropout.c - what training leaves out at random: formulas, the reference, gradient. Freestanding.
// ARITHMETIC.md 3, 5 and 10.
//
//   dropout   y = u >= rate ? x * (1 / (1 - rate)) : +0      dx = u >= rate ? dy * (..) : +0
//             where u is the unit float of the word that the step draws for the element;
//             in evaluation y = x
//
// Nothing is kept for backward: it draws the same words again. dx may be dy.
#include "arena/philox.h"
#include "ops/graph/build.h"
#include "ops/layers/export.h"
#include "ops/layers/sums.h"

static uint32_t drop(const lk_lane *l, const lk_op *op, const float *from, float *to) {
    const float scale = 1.0f / (1.0f - op->dropout.rate);
    uint32_t bad = 0;
    for (uint32_t m = 0; m < l->examples; m++) {
        for (uint64_t i = 0; i < op->floats; i++, from++, to++) {
            const lk_philox_block drawn =
                lk_philox_step(l->seed, LK_PURPOSE_DROPOUT, l->step, lk_draws_of(op),
                               l->first_example + m, (uint32_t)(i / 4));
            *to = lk_unit_float(drawn.word[i % 4]) >= op->dropout.rate ? *from * scale : 0.0f;
            bad |= lk_not_finite(*to);
        }
    }
    return bad;
}

static uint32_t dropout_forward(lk_lane *l, const lk_op *op) {
    const float *x = l->at[LK_X];
    float *y = l->at[LK_Y];
    if (l->train) return drop(l, op, x, y);
    for (uint64_t i = 0; i < l->examples * op->floats; i++) y[i] = x[i];
    return 0;
}

static uint32_t dropout_backward(lk_lane *l, const lk_op *op) {
    return drop(l, op, l->at[LK_DY], l->at[LK_DX]);
}

static lk_status build_dropout(lk_builder *b, const lk_layer *l) {
    const lk_graph *g = b->program->spec->model.graph;
    const uint32_t use = g && b->value ? g->calls->use_of(b, b->value - 1) : 0;
    lk_build_op(b, &lk_op_dropout, b->input[0], b->input[0].shape)->dropout =
        (lk_dropout){.rate = l->rate, .use = use};
    if (!g || (b->layer < LK_DRAWS_OF_USE && use < LK_DRAWS_USES_MAX)) return LK_OK;
    return lk_fail(b->error, LK_BAD_CONFIG,
                   "layer %s: dropout: it is layer %u of the model and use %u of its network, "
                   "wanted layers below %d and uses below %d",
                   l->name, b->layer, use, LK_DRAWS_OF_USE, LK_DRAWS_USES_MAX);
}

static lk_status differentiate_dropout(lk_builder *b, uint32_t of) {
    return lk_build_gradient_in_place(b, &lk_op_dropout_backward, of);
}

const lk_op_type lk_op_dropout = {.name = "dropout",
                                  .suffix = "",
                                  .number = LK_OP_DROPOUT,
                                  .scope = LK_SCOPE_EXAMPLES,
                                  .reference = dropout_forward,
                                  .differentiate = LK_RULE(differentiate_dropout),
                                  .mixed = true};
const lk_op_type lk_op_dropout_backward = {.name = "dropout_backward",
                                           .number = LK_OP_DROPOUT_BACKWARD,
                                           .scope = LK_SCOPE_EXAMPLES,
                                           .reference = dropout_backward,
                                           .mixed = true};

const lk_layer_type lk_layer_dropout = {
    .inputs = 1, .ops_max = 2, .tensors_max = 2, .build = build_dropout};

static const lk_setting dropout_keys[] = {
    {.name = "rate",
     .kind = LK_SETTING_FLOAT,
     .offset = offsetof(lk_layer, rate),
     .required = true,
     .high = 1.0f,
     .below = 1.0f,
     .meaning = "the part of the values that a step leaves out"},
};

// Where nothing is trained it passes everything on: no node.
static void say_dropout(lk_export *e, const lk_layer *l) {
    (void)e;
    (void)l;
}

const lk_layer_words lk_layer_words_dropout = {
    .type = &lk_layer_dropout,
    .name = "dropout",
    .keys = dropout_keys,
    .key_count = LK_COUNT(dropout_keys),
    .meaning = "in training a random part of the values left out, the others scaled up",
    .say_export = say_dropout};
