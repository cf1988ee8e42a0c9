// activation.c - functions of single values: formulas, the reference, gradients. Freestanding.
// ARITHMETIC.md 3 and 5. Each is a layer of its own and may be another's "activation".
//
//   relu         y = x > 0 ? x : +0;           dx = y > 0 ? dy : +0
//   leaky_relu   y = x > 0 ? x : slope * x;    dx = y > 0 ? dy : slope * dy
//   tanh         y = lk_tanhf(x);              dx = dy * fma(-y, y, 1)
//   sigmoid      y = lk_sigmoidf(x);           dx = dy * (y * (1 - y))
//   relu6        y = x > 0 ? min(x, 6) : +0;   dx = y > 0 and y < 6 ? dy : +0
//   elu          y = x > 0 ? x : alpha * lk_eluf(x);   dx = y > 0 ? dy : dy * (y + alpha)
//   softplus     y = lk_log1pexpf(x);          dx = dy * lk_sigmoidf(x)
//   swish        y = lk_swishf(x);             dx = dy * lk_swish_slopef(x)
//   gelu         y = lk_geluf(x);              dx = dy * lk_gelu_slopef(x)
//                approximate: lk_gelu_tanhf, lk_gelu_tanh_slopef
//
// dx may be dy. Slopes are 0 to 1, so that a finite dy gives a finite dx: nothing is checked, but
// dx of swish and gelu, whose slopes reach 1.13.
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
                               .differentiate = LK_RULE(differentiate_relu),
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
                                     .differentiate = LK_RULE(differentiate_leaky_relu),
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
                               .differentiate = LK_RULE(differentiate_tanh),
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
                                  .differentiate = LK_RULE(differentiate_sigmoid),
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

// --- relu6 ---------------------------------------------------------------------------------------

static uint32_t relu6_forward(lk_lane *l, const lk_op *op) {
    const float *x = l->at[LK_X];
    float *y = l->at[LK_Y];
    for (uint64_t i = 0; i < l->examples * op->floats; i++) {
        y[i] = x[i] > 6.0f ? 6.0f : lk_relu(x[i]);
    }
    return 0;
}

static uint32_t relu6_backward(lk_lane *l, const lk_op *op) {
    const float *y = l->at[LK_Y], *dy = l->at[LK_DY];
    float *dx = l->at[LK_DX];
    for (uint64_t i = 0; i < l->examples * op->floats; i++) {
        dx[i] = y[i] > 0.0f && y[i] < 6.0f ? dy[i] : 0.0f;
    }
    return 0;
}

static lk_status build_relu6(lk_builder *b, const lk_layer *l) {
    (void)l;
    lk_build_op(b, &lk_op_relu6, b->input[0], b->input[0].shape);
    return LK_OK;
}

static lk_status differentiate_relu6(lk_builder *b, uint32_t of) {
    return lk_build_gradient_in_place(b, &lk_op_relu6_backward, of);
}

const lk_op_type lk_op_relu6 = {.name = "relu6",
                                .suffix = "/relu6",
                                .number = LK_OP_RELU6,
                                .scope = LK_SCOPE_EXAMPLES,
                                .reference = relu6_forward,
                                .differentiate = LK_RULE(differentiate_relu6),
                                .mixed = true};
const lk_op_type lk_op_relu6_backward = {.name = "relu6_backward",
                                         .number = LK_OP_RELU6_BACKWARD,
                                         .scope = LK_SCOPE_EXAMPLES,
                                         .reference = relu6_backward,
                                         .mixed = true};

const lk_layer_type lk_layer_relu6 = {
    .inputs = 1, .ops_max = 2, .tensors_max = 2, .build = build_relu6};

static void say_relu6(lk_export *e, const lk_layer *l) {
    static const float bounds[] = {0.0f, 6.0f};
    (void)l;
    lk_export_reals(lk_export_node_add(e, "Clip"), 2, bounds);
}

const lk_layer_words lk_layer_words_relu6 = {.type = &lk_layer_relu6,
                                             .name = "relu6",
                                             .activation = true,
                                             .meaning = "what is from 0 to 6, else the nearer one",
                                             .say_export = say_relu6};

// --- elu -----------------------------------------------------------------------------------------

static uint32_t elu_forward(lk_lane *l, const lk_op *op) {
    const float *x = l->at[LK_X];
    float *y = l->at[LK_Y];
    for (uint64_t i = 0; i < l->examples * op->floats; i++) {
        y[i] = x[i] > 0.0f ? x[i] : op->slope * lk_eluf(x[i]);
    }
    return 0;
}

static uint32_t elu_backward(lk_lane *l, const lk_op *op) {
    const float *y = l->at[LK_Y], *dy = l->at[LK_DY];
    float *dx = l->at[LK_DX];
    for (uint64_t i = 0; i < l->examples * op->floats; i++) {
        dx[i] = y[i] > 0.0f ? dy[i] : dy[i] * (y[i] + op->slope);
    }
    return 0;
}

static lk_status build_elu(lk_builder *b, const lk_layer *l) {
    lk_op *op = lk_build_op(b, &lk_op_elu, b->input[0], b->input[0].shape);
    op->slope = l->type == &lk_layer_elu ? l->alpha : 1.0f;
    return LK_OK;
}

static lk_status differentiate_elu(lk_builder *b, uint32_t of) {
    return lk_build_gradient_in_place(b, &lk_op_elu_backward, of);
}

const lk_op_type lk_op_elu = {.name = "elu",
                              .suffix = "/elu",
                              .number = LK_OP_ELU,
                              .scope = LK_SCOPE_EXAMPLES,
                              .reference = elu_forward,
                              .differentiate = LK_RULE(differentiate_elu),
                              .mixed = true};
const lk_op_type lk_op_elu_backward = {.name = "elu_backward",
                                       .number = LK_OP_ELU_BACKWARD,
                                       .scope = LK_SCOPE_EXAMPLES,
                                       .reference = elu_backward,
                                       .mixed = true};

const lk_layer_type lk_layer_elu = {
    .inputs = 1, .ops_max = 2, .tensors_max = 2, .build = build_elu};

static const lk_setting elu_keys[] = {
    {.name = "alpha",
     .kind = LK_SETTING_FLOAT,
     .offset = offsetof(lk_layer, alpha),
     .low = 0.0f,
     .high = 1.0f,
     .float_constant = 1.0f,
     .meaning = "what e^x - 1 is multiplied by"},
};

static void say_elu(lk_export *e, const lk_layer *l) {
    (void)l;
    lk_export_float(lk_export_node_add(e, "Elu"), "alpha", e->op->slope);
}

const lk_layer_words lk_layer_words_elu = {.type = &lk_layer_elu,
                                           .name = "elu",
                                           .keys = elu_keys,
                                           .key_count = LK_COUNT(elu_keys),
                                           .activation = true,
                                           .meaning = "what is above zero, else e^x - 1",
                                           .say_export = say_elu};

// --- smooth ones: y of x, and dx = dy * slope of x -----------------------------------------------

static uint32_t smooth(const lk_lane *l, const lk_op *op, float (*function)(float)) {
    const float *x = l->at[LK_X];
    float *y = l->at[LK_Y];
    for (uint64_t i = 0; i < l->examples * op->floats; i++) y[i] = function(x[i]);
    return 0;
}

static uint32_t smooth_backward(const lk_lane *l, const lk_op *op, float (*slope)(float)) {
    const float *x = l->at[LK_X], *dy = l->at[LK_DY];
    float *dx = l->at[LK_DX];
    uint32_t bad = 0;
    for (uint64_t i = 0; i < l->examples * op->floats; i++) {
        dx[i] = dy[i] * slope(x[i]);
        bad |= lk_not_finite(dx[i]);
    }
    return bad;
}

// As of any activation, but backward looks at x.
static lk_status differentiate_smooth(lk_builder *b, const lk_op_type *type, uint32_t of) {
    const uint32_t at = b->program->op_count;
    LK_CHECK(lk_build_gradient_in_place(b, type, of));
    b->program->ops[at].tensor[LK_X] = b->program->ops[of].tensor[LK_X];
    b->program->ops[at].tensor[LK_Y] = LK_NONE;
    return LK_OK;
}

#define SMOOTH(name_, NUMBER, function, slope)                                         \
    static float name_##_of(float x) { return function(x); }                           \
    static float name_##_slope(float x) { return slope(x); }                           \
    static uint32_t name_##_forward(lk_lane *l, const lk_op *op) {                     \
        return smooth(l, op, name_##_of);                                              \
    }                                                                                  \
    static uint32_t name_##_backward(lk_lane *l, const lk_op *op) {                    \
        return smooth_backward(l, op, name_##_slope);                                  \
    }                                                                                  \
    static lk_status differentiate_##name_(lk_builder *b, uint32_t of) {               \
        return differentiate_smooth(b, &lk_op_##name_##_backward, of);                 \
    }                                                                                  \
    const lk_op_type lk_op_##name_ = {.name = #name_,                                  \
                                      .suffix = "/" #name_,                            \
                                      .number = LK_OP_##NUMBER,                        \
                                      .scope = LK_SCOPE_EXAMPLES,                      \
                                      .reference = name_##_forward,                    \
                                      .differentiate = LK_RULE(differentiate_##name_), \
                                      .mixed = true};                                  \
    const lk_op_type lk_op_##name_##_backward = {.name = #name_ "_backward",           \
                                                 .number = LK_OP_##NUMBER##_BACKWARD,  \
                                                 .scope = LK_SCOPE_EXAMPLES,           \
                                                 .reference = name_##_backward,        \
                                                 .mixed = true};
SMOOTH(softplus, SOFTPLUS, lk_log1pexpf, lk_sigmoidf)
SMOOTH(swish, SWISH, lk_swishf, lk_swish_slopef)
SMOOTH(gelu, GELU, lk_geluf, lk_gelu_slopef)
SMOOTH(gelu_tanh, GELU_TANH, lk_gelu_tanhf, lk_gelu_tanh_slopef)
#undef SMOOTH

static lk_status build_softplus(lk_builder *b, const lk_layer *l) {
    (void)l;
    lk_build_op(b, &lk_op_softplus, b->input[0], b->input[0].shape);
    return LK_OK;
}
static lk_status build_swish(lk_builder *b, const lk_layer *l) {
    (void)l;
    lk_build_op(b, &lk_op_swish, b->input[0], b->input[0].shape);
    return LK_OK;
}
// An "activation" is the exact one.
static lk_status build_gelu(lk_builder *b, const lk_layer *l) {
    const bool tanh_form = l->type == &lk_layer_gelu && l->approximate;
    lk_build_op(b, tanh_form ? &lk_op_gelu_tanh : &lk_op_gelu, b->input[0], b->input[0].shape);
    return LK_OK;
}

const lk_layer_type lk_layer_softplus = {
    .inputs = 1, .ops_max = 2, .tensors_max = 2, .build = build_softplus};
const lk_layer_type lk_layer_swish = {
    .inputs = 1, .ops_max = 2, .tensors_max = 2, .build = build_swish};
const lk_layer_type lk_layer_gelu = {
    .inputs = 1, .ops_max = 2, .tensors_max = 2, .build = build_gelu};

static const lk_setting gelu_keys[] = {
    {.name = "approximate",
     .kind = LK_SETTING_BOOL,
     .offset = offsetof(lk_layer, approximate),
     .meaning = "the form with tanh"},
};

static void say_softplus(lk_export *e, const lk_layer *l) {
    (void)l;
    lk_export_node_add(e, "Softplus");
}

static void say_swish(lk_export *e, const lk_layer *l) {
    (void)l;
    lk_export_node_add(e, "Sigmoid");
    lk_export_node_add(e, "Mul")->again = true;
}

// Operator set 13 has no gelu: x * (erf(x / sqrt(2)) + 1) / 2, or x / (1 + e^-z).
static void say_gelu(lk_export *e, const lk_layer *l) {
    static const float root = 0x1.6a09e6p-1f, half = 0.5f, one = 1.0f;
    static const float cube = 0x1.2444f2p-4f, line = 0x1.988454p+0f;
    (void)l;
    if (e->op->type == &lk_op_gelu) {
        lk_export_reals(lk_export_node_add(e, "Mul"), 1, &root);
        lk_export_node_add(e, "Erf");
        lk_export_reals(lk_export_node_add(e, "Add"), 1, &one);
        lk_export_node_named(e, "Mul", "Times")->again = true;
        lk_export_reals(lk_export_node_named(e, "Mul", "Half"), 1, &half);
        return;
    }
    lk_export_node_named(e, "Mul", "Square")->again = true;
    lk_export_reals(lk_export_node_add(e, "Mul"), 1, &cube);
    lk_export_reals(lk_export_node_add(e, "Add"), 1, &line);
    lk_export_node_named(e, "Mul", "Times")->again = true;
    lk_export_node_add(e, "Sigmoid");
    lk_export_node_named(e, "Mul", "Gelu")->again = true;
}

const lk_layer_words lk_layer_words_softplus = {.type = &lk_layer_softplus,
                                                .name = "softplus",
                                                .activation = true,
                                                .meaning = "log(1 + exp(x))",
                                                .say_export = say_softplus};
const lk_layer_words lk_layer_words_swish = {.type = &lk_layer_swish,
                                             .name = "swish",
                                             .activation = true,
                                             .meaning = "x / (1 + exp(-x))",
                                             .say_export = say_swish};
const lk_layer_words lk_layer_words_gelu = {
    .type = &lk_layer_gelu,
    .name = "gelu",
    .keys = gelu_keys,
    .key_count = LK_COUNT(gelu_keys),
    .activation = true,
    .meaning = "x times the part of a normal distribution below x",
    .say_export = say_gelu};
