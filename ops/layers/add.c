// add.c - sums of two tensors: formulas, the reference, gradients. Freestanding. ARITHMETIC.md
// 3, 5.
//
//   add            y = x + x2, or ReLU of it; the gradient of both is dy itself
//   add_backward   dx = dy, where dy cannot serve as the gradient of an input: the other has it
//   add_gradient   dx = x + dy: the share of one more user of a tensor; dx may be x
#include "ops/graph/build.h"
#include "ops/layers/export.h"
#include "ops/layers/sums.h"

static uint32_t sum_of(uint64_t count, const float *a, const float *b, float *sum) {
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        sum[i] = a[i] + b[i];
        bad |= lk_not_finite(sum[i]);
    }
    return bad;
}

static uint32_t add_forward(lk_lane *l, const lk_op *op) {
    const uint64_t count = l->examples * op->floats;
    float *y = l->at[LK_Y];
    const uint32_t bad = sum_of(count, l->at[LK_X], l->at[LK_X2], y);
    for (uint64_t i = 0; op->sum_relu && i < count; i++) y[i] = lk_relu(y[i]);
    return bad;
}

static uint32_t add_backward(lk_lane *l, const lk_op *op) {
    const float *dy = l->at[LK_DY];
    float *dx = l->at[LK_DX];
    for (uint64_t i = 0; i < l->examples * op->floats; i++) dx[i] = dy[i];
    return 0;
}

static uint32_t add_gradient(lk_lane *l, const lk_op *op) {
    return sum_of(l->examples * op->floats, l->at[LK_X], l->at[LK_DY], l->at[LK_DX]);
}

static lk_status build_add(lk_builder *b, const lk_layer *l) {
    const lk_shape x = b->input[0].shape, x2 = b->input[1].shape;
    if (x.h != x2.h || x.w != x2.w || x.c != x2.c || x.flat != x2.flat) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: its inputs are %u x %u x %u%s and %u x %u x %u%s, wanted two of "
                       "the same shape",
                       l->name, x.h, x.w, x.c, x.flat ? " (flat)" : "", x2.h, x2.w, x2.c,
                       x2.flat ? " (flat)" : "");
    }
    lk_build_op(b, &lk_op_add, b->input[0], x)->input[1] = b->input[1].op;
    return LK_OK;
}

static bool absorb(const lk_builder *b, lk_op *op, const lk_op *next) {
    (void)b;
    return op->dtype == LK_F32 && lk_build_absorb_relu(op, next, &op->sum_relu);
}

// The second input first: what is left of dy is the first's own, who may change it in place.
static lk_status differentiate(lk_builder *b, uint32_t of) {
    LK_CHECK(lk_build_gradient_share(b, &lk_op_add_backward, of, 1));
    return lk_build_gradient_share(b, &lk_op_add_backward, of, 0);
}

const lk_op_type lk_op_add = {.name = "add",
                              .suffix = "",
                              .number = LK_OP_ADD,
                              .scope = LK_SCOPE_EXAMPLES,
                              .reference = add_forward,
                              .absorb = LK_RULE(absorb),
                              .differentiate = LK_RULE(differentiate),
                              .mixed = true};
const lk_op_type lk_op_add_backward = {.name = "add_backward",
                                       .number = LK_OP_ADD_BACKWARD,
                                       .scope = LK_SCOPE_EXAMPLES,
                                       .reference = add_backward,
                                       .mixed = true};
const lk_op_type lk_op_add_gradient = {.name = "add_gradient",
                                       .number = LK_OP_ADD_GRADIENT,
                                       .scope = LK_SCOPE_EXAMPLES,
                                       .reference = add_gradient,
                                       .mixed = true};

const lk_layer_type lk_layer_add = {
    .inputs = 2, .ops_max = 3, .tensors_max = 2, .build = build_add};

static void say_add(lk_export *e, const lk_layer *l) {
    (void)l;
    lk_export_node_add(e, "Add");
    if (e->in[0].channels != e->in[1].channels) e->out.channels = 0;
    e->out.times = LK_MAX(e->in[0].times, e->in[1].times);
}

const lk_layer_words lk_layer_words_add = {.type = &lk_layer_add,
                                           .name = "add",
                                           .meaning = "the sum of two layers of the same shape",
                                           .say_export = say_add};
