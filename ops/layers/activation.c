// activation.c - functions of single values: formulas, the reference, gradients. Freestanding.
// ARITHMETIC.md 3 and 5. Each is a layer of its own and may be another's "activation".
//
//   relu   y = x > 0 ? x : +0;    dx = y > 0 ? dy : +0    (in place: dx may be dy)
#include "ops/graph/build.h"
#include "ops/layers/sums.h"

static uint32_t relu_forward(lk_lane *l, const lk_op *op) {
    const float *x = l->at[LK_X];
    float *y = l->at[LK_Y];
    for (uint64_t i = 0; i < l->examples * op->floats; i++) y[i] = lk_relu(x[i]);
    return 0;
}

static uint32_t relu_backward(lk_lane *l, const lk_op *op) {
    const float *y = l->at[LK_Y], *dy = l->at[LK_DY];
    float *dx = l->at[LK_DX];
    for (uint64_t i = 0; i < l->examples * op->floats; i++) dx[i] = y[i] > 0.0f ? dy[i] : 0.0f;
    return 0;
}

static lk_status build_relu(lk_builder *b, const lk_layer *l) {
    (void)l;
    lk_build_op(b, &lk_op_relu, b->input[0], b->input[0].shape);
    return LK_OK;
}

static lk_status differentiate_relu(lk_builder *b, uint32_t of) {
    return lk_build_gradient_in_place(b, &lk_op_relu_backward, of);
}

const lk_op_type lk_op_relu = {.name = "relu",
                               .suffix = "/relu",
                               .number = LK_OP_RELU,
                               .scope = LK_SCOPE_EXAMPLES,
                               .reference = relu_forward,
                               .differentiate = differentiate_relu};
const lk_op_type lk_op_relu_backward = {.name = "relu_backward",
                                        .number = LK_OP_RELU_BACKWARD,
                                        .scope = LK_SCOPE_EXAMPLES,
                                        .reference = relu_backward};

const lk_layer_type lk_layer_relu = {
    .inputs = 1, .ops_max = 2, .tensors_max = 2, .build = build_relu};
const lk_layer_words lk_layer_words_relu = {.type = &lk_layer_relu,
                                            .name = "relu",
                                            .activation = true,
                                            .meaning = "what is above zero, else zero"};
