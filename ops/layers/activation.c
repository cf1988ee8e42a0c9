// activation.c - functions of single values: formulas, the reference, gradients. Freestanding.
// ARITHMETIC.md 3 and 5. Each is a layer of its own and may be another's "activation".
//
//   relu         y = x > 0 ? x : +0;           dx = y > 0 ? dy : +0
//   leaky_relu   y = x > 0 ? x : slope * x;    dx = y > 0 ? dy : slope * dy
//   tanh         y = lk_tanhf(x);              dx = dy * fma(-y, y, 1)
//   sigmoid      y = lk_sigmoidf(x);           dx = dy * (y * (1 - y))
//
// dx may be dy. Slopes are 0 to 1, so that a finite dy gives a finite dx: nothing is checked.
#include "ops/graph/build.h"
#include "ops/layers/export.h"
#include "ops/layers/sums.h"
#include "ops/math.h"

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
                               .differentiate = differentiate_relu,
                               .mixed = true};
const lk_op_type lk_op_relu_backward = {.name = "relu_backward",
                                        .number = LK_OP_RELU_BACKWARD,
                                        .scope = LK_SCOPE_EXAMPLES,
                                        .reference = relu_backward,
                                        .mixed = true};

const lk_layer_type lk_layer_relu = {
    .inputs = 1, .ops_max = 2, .tensors_max = 2, .build = build_relu};
static void say_relu(lk_export *e, const lk_layer *l) {
    (void)l;
    lk_export_node_add(e, "Relu");
}

const lk_layer_words lk_layer_words_relu = {.type = &lk_layer_relu,
                                            .name = "relu",
                                            .activation = true,
                                            .meaning = "what is above zero, else zero",
                                            .say_export = say_relu};

// --- leaky_relu ----------------------------------------------------------------------------------

static uint32_t leaky_relu_forward(lk_lane *l, const lk_op *op) {
    const float *x = l->at[LK_X];
    float *y = l->at[LK_Y];
    for (uint64_t i = 0; i < l->examples * op->floats; i++) {
        y[i] = x[i] > 0.0f ? x[i] : op->slope * x[i];
    }
    return 0;
}

static uint32_t leaky_relu_backward(lk_lane *l, const lk_op *op) {
    const float *y = l->at[LK_Y], *dy = l->at[LK_DY];
    float *dx = l->at[LK_DX];
    for (uint64_t i = 0; i < l->examples * op->floats; i++) {
        dx[i] = y[i] > 0.0f ? dy[i] : op->slope * dy[i];
    }
    return 0;
}

// As Keras: a layer has 0.3 unless it says otherwise, an "activation" always 0.2.
static lk_status build_leaky_relu(lk_builder *b, const lk_layer *l) {
    lk_op *op = lk_build_op(b, &lk_op_leaky_relu, b->input[0], b->input[0].shape);
    op->slope = l->type == &lk_layer_leaky_relu ? l->negative_slope : 0.2f;
    return LK_OK;
}

static lk_status differentiate_leaky_relu(lk_builder *b, uint32_t of) {
    return lk_build_gradient_in_place(b, &lk_op_leaky_relu_backward, of);
}

const lk_op_type lk_op_leaky_relu = {.name = "leaky_relu",
                                     .suffix = "/leaky_relu",
                                     .number = LK_OP_LEAKY_RELU,
                                     .scope = LK_SCOPE_EXAMPLES,
                                     .reference = leaky_relu_forward,
                                     .differentiate = differentiate_leaky_relu,
                                     .mixed = true};
const lk_op_type lk_op_leaky_relu_backward = {.name = "leaky_relu_backward",
                                              .number = LK_OP_LEAKY_RELU_BACKWARD,
                                              .scope = LK_SCOPE_EXAMPLES,
                                              .reference = leaky_relu_backward,
                                              .mixed = true};

const lk_layer_type lk_layer_leaky_relu = {
    .inputs = 1, .ops_max = 2, .tensors_max = 2, .build = build_leaky_relu};

static const lk_setting leaky_relu_keys[] = {
    {.name = "negative_slope",
     .kind = LK_SETTING_FLOAT,
     .offset = offsetof(lk_layer, negative_slope),
     .low = 0.0f,
     .high = 1.0f,
     .float_constant = 0.3f,
     .meaning = "what values below zero are multiplied by"},
};

static void say_leaky_relu(lk_export *e, const lk_layer *l) {
    (void)l;
    lk_export_float(lk_export_node_add(e, "LeakyRelu"), "alpha", e->op->slope);
}

const lk_layer_words lk_layer_words_leaky_relu = {
    .type = &lk_layer_leaky_relu,
    .name = "leaky_relu",
    .keys = leaky_relu_keys,
    .key_count = LK_COUNT(leaky_relu_keys),
    .activation = true,
    .meaning = "what is above zero, else a part of it",
    .say_export = say_leaky_relu};

// --- tanh ----------------------------------------------------------------------------------------

static uint32_t tanh_forward(lk_lane *l, const lk_op *op) {
    const float *x = l->at[LK_X];
    float *y = l->at[LK_Y];
    for (uint64_t i = 0; i < l->examples * op->floats; i++) y[i] = lk_tanhf(x[i]);
    return 0;
}

static uint32_t tanh_backward(lk_lane *l, const lk_op *op) {
    const float *y = l->at[LK_Y], *dy = l->at[LK_DY];
    float *dx = l->at[LK_DX];
    for (uint64_t i = 0; i < l->examples * op->floats; i++) {
        dx[i] = dy[i] * lk_fmaf(-y[i], y[i], 1.0f);
    }
    return 0;
}

static lk_status build_tanh(lk_builder *b, const lk_layer *l) {
    (void)l;
    lk_build_op(b, &lk_op_tanh, b->input[0], b->input[0].shape);
    return LK_OK;
}

static lk_status differentiate_tanh(lk_builder *b, uint32_t of) {
    return lk_build_gradient_in_place(b, &lk_op_tanh_backward, of);
}

const lk_op_type lk_op_tanh = {.name = "tanh",
                               .suffix = "/tanh",
                               .number = LK_OP_TANH,
                               .scope = LK_SCOPE_EXAMPLES,
                               .reference = tanh_forward,
                               .differentiate = differentiate_tanh,
                               .mixed = true};
const lk_op_type lk_op_tanh_backward = {.name = "tanh_backward",
                                        .number = LK_OP_TANH_BACKWARD,
                                        .scope = LK_SCOPE_EXAMPLES,
                                        .reference = tanh_backward,
                                        .mixed = true};

const lk_layer_type lk_layer_tanh = {
    .inputs = 1, .ops_max = 2, .tensors_max = 2, .build = build_tanh};
static void say_tanh(lk_export *e, const lk_layer *l) {
    (void)l;
    lk_export_node_add(e, "Tanh");
}

const lk_layer_words lk_layer_words_tanh = {.type = &lk_layer_tanh,
                                            .name = "tanh",
                                            .activation = true,
                                            .meaning = "the hyperbolic tangent",
                                            .say_export = say_tanh};

// --- sigmoid -------------------------------------------------------------------------------------

static uint32_t sigmoid_forward(lk_lane *l, const lk_op *op) {
    const float *x = l->at[LK_X];
    float *y = l->at[LK_Y];
    for (uint64_t i = 0; i < l->examples * op->floats; i++) y[i] = lk_sigmoidf(x[i]);
    return 0;
}

static uint32_t sigmoid_backward(lk_lane *l, const lk_op *op) {
    const float *y = l->at[LK_Y], *dy = l->at[LK_DY];
    float *dx = l->at[LK_DX];
    for (uint64_t i = 0; i < l->examples * op->floats; i++) {
        dx[i] = dy[i] * (y[i] * (1.0f - y[i]));
    }
    return 0;
}

static lk_status build_sigmoid(lk_builder *b, const lk_layer *l) {
    (void)l;
    lk_build_op(b, &lk_op_sigmoid, b->input[0], b->input[0].shape);
    return LK_OK;
}

static lk_status differentiate_sigmoid(lk_builder *b, uint32_t of) {
    return lk_build_gradient_in_place(b, &lk_op_sigmoid_backward, of);
}

const lk_op_type lk_op_sigmoid = {.name = "sigmoid",
                                  .suffix = "/sigmoid",
                                  .number = LK_OP_SIGMOID,
                                  .scope = LK_SCOPE_EXAMPLES,
                                  .reference = sigmoid_forward,
                                  .differentiate = differentiate_sigmoid,
                                  .mixed = true};
const lk_op_type lk_op_sigmoid_backward = {.name = "sigmoid_backward",
                                           .number = LK_OP_SIGMOID_BACKWARD,
                                           .scope = LK_SCOPE_EXAMPLES,
                                           .reference = sigmoid_backward,
                                           .mixed = true};

const lk_layer_type lk_layer_sigmoid = {
    .inputs = 1, .ops_max = 2, .tensors_max = 2, .build = build_sigmoid};
static void say_sigmoid(lk_export *e, const lk_layer *l) {
    (void)l;
    lk_export_node_add(e, "Sigmoid");
}

const lk_layer_words lk_layer_words_sigmoid = {.type = &lk_layer_sigmoid,
                                               .name = "sigmoid",
                                               .activation = true,
                                               .meaning = "1 / (1 + exp(-x))",
                                               .say_export = say_sigmoid};
