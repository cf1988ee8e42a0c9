// layer_norm.c - layer normalisation: formulas, the reference, gradients. Freestanding.
// ARITHMETIC.md 3, 5 and 6.
//
//   layer_normalization   of the K values of each cell (of a flat layer, of an example):
//
//     S = sum of 1 * x      mean = S / K        d = x - mean
//     Q = sum of d * d      inv = 1 / sqrt(Q / K + epsilon)      n = d * inv
//     y = n * gamma + beta
//
//     g = dy * gamma        B = sum of 1 * g    A = sum of g * n
//     dx = inv * (g - B / K - n * (A / K))
//     dgamma = sum of dy * n, dbeta = sum of dy, over the cells of all examples
//
// A cell is normalised by itself, so it does not matter what a grain or a batch is. Forward keeps
// mean and inv of each cell, beside each other. The cells of an example are terms of the gradients
// of gamma and beta in the order in which they lie there, rows first: of a sequence, time
// ascending.
#include "ops/graph/build.h"
#include "ops/layers/export.h"
#include "ops/layers/sums.h"
#include "ops/math.h"

// --- one cell ------------------------------------------------------------------------------------

static float share_of(const lk_batch_norm *n) { return 1.0f / lk_count_to_float(n->channels); }
static uint32_t cells_of(const lk_batch_norm *n) { return n->h * n->w; }

// kept[0], kept[1]: mean and inv.
static uint32_t find_statistics(const lk_batch_norm *n, const float *x, float kept[2]) {
    slice_sum sum, squares;
    slice_start(&sum, 0.0f);
    slice_start(&squares, 0.0f);
    for (uint32_t k = 0; k < n->channels; k++) slice_term(&sum, 1.0f, x[k]);
    const float mean = slice_finish(&sum) * share_of(n);
    for (uint32_t k = 0; k < n->channels; k++) slice_term(&squares, x[k] - mean, x[k] - mean);
    const float variance = slice_finish(&squares) * share_of(n);
    kept[0] = mean;
    kept[1] = 1.0f / lk_sqrtf(variance + n->epsilon);
    return lk_not_finite(mean) | lk_not_finite(variance);
}

static float normal(float x, const float kept[2]) { return (x - kept[0]) * kept[1]; }
static float gamma_of(const lk_lane *l, uint32_t k) { return l->param[0] ? l->param[0][k] : 1.0f; }
static float beta_of(const lk_lane *l, uint32_t k) { return l->param[1] ? l->param[1][k] : 0.0f; }

static uint32_t layer_normalization(lk_lane *l, const lk_op *op) {
    const lk_batch_norm *n = &op->norm;
    const float *x = l->at[LK_X];
    float *y = l->at[LK_Y], *kept = l->at[LK_AUX];
    uint32_t bad = 0;
    for (uint64_t cell = 0; cell < (uint64_t)l->examples * cells_of(n); cell++) {
        bad |= find_statistics(n, x, kept);
        for (uint32_t k = 0; k < n->channels; k++) {
            y[k] = lk_fmaf(normal(x[k], kept), gamma_of(l, k), beta_of(l, k));
            bad |= lk_not_finite(y[k]);
        }
        x += n->channels, y += n->channels, kept += 2;
    }
    return bad;
}

// --- backward ------------------------------------------------------------------------------------

static uint32_t turn_back(const lk_lane *l, const lk_batch_norm *n, const float *x, const float *dy,
                          const float kept[2], float *dx) {
    slice_sum of_n, of_one;
    slice_start(&of_n, 0.0f);
    slice_start(&of_one, 0.0f);
    for (uint32_t k = 0; k < n->channels; k++) {
        const float g = dy[k] * gamma_of(l, k);
        slice_term(&of_n, g, normal(x[k], kept));
        slice_term(&of_one, 1.0f, g);
    }
    const float a = slice_finish(&of_n) * share_of(n), b = slice_finish(&of_one) * share_of(n);
    uint32_t bad = 0;
    for (uint32_t k = 0; k < n->channels; k++) {
        dx[k] = kept[1] * lk_fmaf(-normal(x[k], kept), a, dy[k] * gamma_of(l, k) - b);
        bad |= lk_not_finite(dx[k]);
    }
    return bad;
}

static uint32_t layer_normalization_input_gradient(lk_lane *l, const lk_op *op) {
    const lk_batch_norm *n = &op->norm;
    const float *x = l->at[LK_X], *dy = l->at[LK_DY], *kept = l->at[LK_AUX];
    float *dx = l->at[LK_DX];
    uint32_t bad = 0;
    for (uint64_t cell = 0; cell < (uint64_t)l->examples * cells_of(n); cell++) {
        bad |= turn_back(l, n, x, dy, kept, dx);
        x += n->channels, dy += n->channels, dx += n->channels, kept += 2;
    }
    return bad;
}

// A grain's sum of dy * n, or of dy, for value k of all its cells. A slice has as many whole
// examples as fit; an example longer than a slice starts one of its own.
static float grain_of(const lk_batch_norm *n, const lk_grain_view *g, uint32_t k, bool of_gamma) {
    const uint32_t cells = cells_of(n), whole = LK_SLICE_TERMS / cells;
    const float *kept = lk_grain_kept(g);
    slice_sum s;
    slice_start(&s, 0.0f);
    for (uint32_t m = 0; m < g->examples; m++) {
        if (m > 0 && (whole == 0 || m % whole == 0)) slice_cut(&s);
        for (uint32_t c = 0; c < cells; c++) {
            const uint64_t cell = (uint64_t)m * cells + c, at = cell * n->channels + k;
            slice_term(&s, of_gamma ? normal(g->x[at], kept + 2 * cell) : 1.0f, g->dy[at]);
        }
    }
    tree_leaf(&s.tree, s.chain);
    return tree_finish(&s.tree);
}

static uint32_t layer_normalization_gradient(lk_lane *l, const lk_op *op) {
    for (uint32_t i = 0; i < 2; i++) {
        for (uint32_t k = 0; l->sums[i] && k < op->norm.channels; k++) {
            tree_sum t;
            tree_start(&t);
            for (uint32_t g = 0; g < l->grain_count; g++) {
                tree_leaf(&t, grain_of(&op->norm, &l->grains[g], k, i == 0));
            }
            l->sums[i][k] = tree_finish(&t);
        }
    }
    return 0;
}

// --- shapes, parameters, differentiation ---------------------------------------------------------

static lk_status build_layer_normalization(lk_builder *b, const lk_layer *l) {
    const lk_shape in = b->input[0].shape;
    const lk_batch_norm norm = {.h = in.h,
                                .w = in.w,
                                .channels = in.c,
                                .flat = in.flat,
                                .epsilon = l->epsilon,
                                .scale = l->scale,
                                .center = l->center,
                                .frozen = l->frozen};
    lk_build_op(b, &lk_op_layer_normalization, b->input[0], in)->norm = norm;
    return LK_OK;
}

static lk_status declare_layer_normalization(lk_builder *b, lk_op *op) {
    const lk_batch_norm *n = &op->norm;
    lk_param_shape param = {.suffix = "gamma", .rank = 1, .size = {n->channels}};
    param.initializer = &lk_initializer_ones;
    if (n->scale) LK_CHECK(lk_build_param(b, op, 0, &param));
    param.suffix = "beta";
    param.initializer = &lk_initializer_zeros;
    if (n->center) LK_CHECK(lk_build_param(b, op, 1, &param));
    return lk_build_rows(b, op, "/statistics", LK_CLASS_ACTIVATION, LK_F32,
                         2 * (uint64_t)cells_of(n), &op->tensor[LK_AUX]);
}

static lk_status differentiate_layer_normalization(lk_builder *b, uint32_t of) {
    lk_program *p = b->program;
    const lk_op *op = &p->ops[of];
    if (op->norm.scale || op->norm.center) {
        lk_build_param_gradient(b, &lk_op_layer_normalization_gradient, of, 0, 2);
    }
    const uint32_t at = p->op_count;
    LK_CHECK(lk_build_input_gradient(b, &lk_op_layer_normalization_input_gradient, of, 0, false));
    if (p->op_count > at) p->ops[at].tensor[LK_X] = op->tensor[LK_X];
    return LK_OK;
}

static lk_flop flop_layer_normalization(const lk_op *op) {
    return (lk_flop){7 * op->floats, 7 * op->floats};
}

const lk_op_type lk_op_layer_normalization = {
    .name = "layer_normalization",
    .suffix = "",
    .number = LK_OP_LAYER_NORMALIZATION,
    .scope = LK_SCOPE_EXAMPLES,
    .reference = layer_normalization,
    .mixed = true,
    .plain = true,
    .looks = true,
    .flop = LK_RULE(flop_layer_normalization),
    .declare = LK_RULE(declare_layer_normalization),
    .differentiate = LK_RULE(differentiate_layer_normalization)};
const lk_op_type lk_op_layer_normalization_input_gradient = {
    .name = "layer_normalization_input_gradient",
    .number = LK_OP_LAYER_NORMALIZATION_INPUT_GRADIENT,
    .scope = LK_SCOPE_EXAMPLES,
    .reference = layer_normalization_input_gradient,
    .mixed = true,
    .plain = true,
    .flop = LK_RULE(flop_layer_normalization)};
const lk_op_type lk_op_layer_normalization_gradient = {
    .name = "layer_normalization_gradient",
    .number = LK_OP_LAYER_NORMALIZATION_GRADIENT,
    .scope = LK_SCOPE_GRAINS,
    .reference = layer_normalization_gradient,
    .mixed = true};

const lk_layer_type lk_layer_layer_normalization = {.inputs = 1,
                                                    .ops_max = 4,
                                                    .tensors_max = 4,
                                                    .params_max = 2,
                                                    .build = build_layer_normalization};

// --- words ---------------------------------------------------------------------------------------

static const lk_setting layer_normalization_keys[] = {
    {.name = "center",
     .kind = LK_SETTING_BOOL,
     .offset = offsetof(lk_layer, center),
     .constant = 1,
     .meaning = "beta is added"},
    {.name = "epsilon",
     .kind = LK_SETTING_FLOAT,
     .offset = offsetof(lk_layer, epsilon),
     .low = 0x1p-30f,
     .high = 1.0f,
     .float_constant = 1e-3f,
     .meaning = "added to the variance"},
    {.name = "scale",
     .kind = LK_SETTING_BOOL,
     .offset = offsetof(lk_layer, scale),
     .constant = 1,
     .meaning = "multiplied by gamma"},
};

// Of an image over its channels, which ONNX normalises where they are last.
static void say_layer_normalization(lk_export *e, const lk_layer *l) {
    static const int64_t last[] = {0, 2, 3, 1}, second[] = {0, 3, 1, 2};
    const bool image = !e->in[0].flat;
    if (image) lk_export_ints(lk_export_node_add(e, "Transpose"), "perm", 4, last);
    lk_export_node *node = lk_export_node_add(e, "LayerNormalization");
    node->statistics = true;
    lk_export_int(node, "axis", -1);
    lk_export_float(node, "epsilon", l->epsilon);
    if (!image) return;
    node = lk_export_node_add(e, "Transpose");
    node->name = "Channels";
    lk_export_ints(node, "perm", 4, second);
}

const lk_layer_words lk_layer_words_layer_normalization = {
    .type = &lk_layer_layer_normalization,
    .name = "layer_normalization",
    .keys = layer_normalization_keys,
    .key_count = LK_COUNT(layer_normalization_keys),
    .meaning = "the channels of each cell with mean 0 and variance 1",
    .say_export = say_layer_normalization};
