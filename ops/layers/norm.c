// norm.c - batch normalisation: formulas, the reference, gradients, states. Freestanding.
// ARITHMETIC.md 3, 5, 6 and 7.
//
//   batch_normalization   of each channel c, over the M values of one grain:
//
//     S = sum of 1 * x      mean = S / M        d = x - mean
//     Q = sum of d * d      inv = 1 / sqrt(Q / M + epsilon)      n = d * inv
//     y = n * gamma + beta, or ReLU of that
//
//     B = sum of 1 * dy     A = sum of dy * n
//     dx = gamma * inv * (dy - B / M - n * (A / M))       dgamma = A      dbeta = B
//
// A grain is a part of the arithmetic: none of it depends on who computes what. Terms, slices
// and tree of these sums are those of a convolution's bias gradient. In evaluation, and of a layer
// that is frozen, mean and variance are the moving ones: they follow S and Q of all grains.
//
// A grain's sums are kept, in a row for each grain (8, channels): the gradients of gamma and
// beta, and what the moving statistics follow, are the trees over these rows.
#include "ops/graph/build.h"
#include "ops/layers/export.h"
#include "ops/layers/sums.h"
#include "ops/math.h"

// --- sums of a grain -----------------------------------------------------------------------------

// One channel's values of the examples of a grain, and what its terms are made of.
typedef struct channel {
    const lk_batch_norm *norm;
    uint32_t examples;
    const float *x, *dy;  // of the first example at its first cell
    float mean, inv;
} channel;

static float normal(const channel *c, uint64_t at) { return (c->x[at] - c->mean) * c->inv; }

typedef float (*term)(const channel *c, uint64_t at, float chain);
static float term_x(const channel *c, uint64_t at, float chain) { return chain + c->x[at]; }
static float term_square(const channel *c, uint64_t at, float chain) {
    const float d = c->x[at] - c->mean;
    return lk_fmaf(d, d, chain);
}
static float term_dy(const channel *c, uint64_t at, float chain) { return chain + c->dy[at]; }
static float term_gamma(const channel *c, uint64_t at, float chain) {
    return lk_fmaf(c->dy[at], normal(c, at), chain);
}

// The terms of one example, in tiles of 2 x 2 cells. Those that do not exist are zero: they count.
static void example_sum(const channel *c, uint32_t m, term next, slice_sum *s) {
    const lk_batch_norm *n = c->norm;
    for (uint32_t ty = 0; ty < n->h; ty += 2) {
        for (uint32_t tx = 0; tx < n->w; tx += 2) {
            for (uint32_t cell = 0; cell < 4; cell++, s->terms++) {
                const uint32_t y = ty + cell / 2, x = tx + cell % 2;
                if (s->terms == LK_SLICE_TERMS) slice_cut(s);
                if (y >= n->h || x >= n->w) continue;
                s->chain = next(c, (((uint64_t)m * n->h + y) * n->w + x) * n->channels, s->chain);
            }
        }
    }
}

// A slice has as many whole examples as fit; an example longer than a slice starts one of its own.
static float grain_of(const channel *c, term next) {
    const uint32_t whole = LK_SLICE_TERMS / lk_norm_terms(c->norm);
    slice_sum s;
    slice_start(&s, 0.0f);
    for (uint32_t m = 0; m < c->examples; m++) {
        if (m > 0 && (whole == 0 || m % whole == 0)) slice_cut(&s);
        if (whole > 0) s.terms = 0;
        example_sum(c, m, next, &s);
    }
    tree_leaf(&s.tree, s.chain);
    return tree_finish(&s.tree);
}

// One divided by the number of a channel's values in `examples` examples.
static float share_of(const lk_batch_norm *n, uint32_t examples) {
    return 1.0f / lk_count_to_float((uint64_t)examples * n->h * n->w);
}

// --- forward -------------------------------------------------------------------------------------

static float gamma_of(const lk_lane *l, uint32_t c) { return l->param[0] ? l->param[0][c] : 1.0f; }
static float beta_of(const lk_lane *l, uint32_t c) { return l->param[1] ? l->param[1][c] : 0.0f; }
static float inverse_root(float variance, float epsilon) {
    return 1.0f / lk_sqrtf(variance + epsilon);
}

static bool uses_moving(const lk_lane *l, const lk_batch_norm *n) { return !l->train || n->frozen; }

// y of `rows` examples from x on; `rows` apart, each of `floats`.
static uint32_t normalize(const lk_batch_norm *n, uint32_t rows, const float *x, float mean,
                          float inv, float gamma, float beta, float *y) {
    uint32_t bad = 0;
    for (uint64_t i = 0; i < (uint64_t)rows * n->h * n->w; i++) {
        const uint64_t at = i * n->channels;
        const float value = lk_fmaf((x[at] - mean) * inv, gamma, beta);
        bad |= lk_not_finite(value);
        y[at] = n->relu ? lk_relu(value) : value;
    }
    return bad;
}

static uint32_t forward_grain(const lk_lane *l, const lk_op *op, uint32_t g) {
    const lk_batch_norm *n = &op->norm;
    const uint32_t examples = lk_lane_present(l, g);
    const uint64_t first = (uint64_t)g * l->grain * op->floats;
    const float *x = (const float *)l->at[LK_X] + first;
    float *y = (float *)l->at[LK_Y] + first;
    float *row = (float *)l->at[LK_AUX] + (uint64_t)g * LK_NORM_COLUMNS * n->channels;
    uint32_t bad = 0;
    __builtin_memset(row, 0, LK_NORM_COLUMNS * (uint64_t)n->channels * sizeof *row);
    __builtin_memset(y, 0, lk_lane_rows(l, g) * op->floats * sizeof *y);
    for (uint32_t c = 0; examples > 0 && c < n->channels; c++) {
        channel of = {.norm = n, .examples = examples, .x = x + c};
        const float share = share_of(n, examples), sum = grain_of(&of, term_x);
        of.mean = (sum + 0.0f) * share;
        const float squares = grain_of(&of, term_square), variance = (squares + 0.0f) * share;
        const float inv = inverse_root(variance, n->epsilon);
        bad |= lk_not_finite(of.mean) | lk_not_finite(variance);
        row[LK_NORM_SUM * n->channels + c] = sum;
        row[LK_NORM_SQUARES * n->channels + c] = squares;
        row[LK_NORM_MEAN * n->channels + c] = of.mean;
        row[LK_NORM_INVERSE * n->channels + c] = inv;
        bad |= normalize(n, examples, x + c, of.mean, inv, gamma_of(l, c), beta_of(l, c), y + c);
    }
    return bad;
}

static uint32_t batch_normalization(lk_lane *l, const lk_op *op) {
    const lk_batch_norm *n = &op->norm;
    const float *x = l->at[LK_X];
    float *y = l->at[LK_Y];
    uint32_t bad = 0;
    if (!uses_moving(l, n)) {
        for (uint32_t g = 0; g < lk_lane_grains(l); g++) bad |= forward_grain(l, op, g);
        return bad;
    }
    for (uint32_t c = 0; c < n->channels; c++) {
        const float inv = inverse_root(l->state[1][c], n->epsilon);
        bad |= normalize(n, l->examples, x + c, l->state[0][c], inv, gamma_of(l, c), beta_of(l, c),
                         y + c);
    }
    return bad;
}

// --- backward ------------------------------------------------------------------------------------

static uint32_t input_gradient(const channel *c, float factor, float a, float b, float *dx) {
    const lk_batch_norm *n = c->norm;
    uint32_t bad = 0;
    for (uint64_t i = 0; i < (uint64_t)c->examples * n->h * n->w; i++) {
        const uint64_t at = i * n->channels;
        dx[at] = factor * lk_fmaf(-normal(c, at), a, c->dy[at] - b);
        bad |= lk_not_finite(dx[at]);
    }
    return bad;
}

// dx may be dy: each value is read for the last time where it is written.
static uint32_t backward_grain(const lk_lane *l, const lk_op *op, uint32_t g) {
    const lk_batch_norm *n = &op->norm;
    const uint32_t examples = lk_lane_present(l, g);
    const uint64_t first = (uint64_t)g * l->grain * op->floats, here = examples * op->floats;
    const float *x = (const float *)l->at[LK_X] + first, *dy = (const float *)l->at[LK_DY] + first;
    float *dx = l->at[LK_DX] ? (float *)l->at[LK_DX] + first : NULL;
    float *row = (float *)l->at[LK_AUX] + (uint64_t)g * LK_NORM_COLUMNS * n->channels;
    uint32_t bad = 0;
    for (uint32_t c = 0; examples > 0 && c < n->channels; c++) {
        const channel of = {.norm = n,
                            .examples = examples,
                            .x = x + c,
                            .dy = dy + c,
                            .mean = row[LK_NORM_MEAN * n->channels + c],
                            .inv = row[LK_NORM_INVERSE * n->channels + c]};
        const float share = share_of(n, examples);
        const float a = grain_of(&of, term_gamma), b = grain_of(&of, term_dy);
        row[LK_NORM_GAMMA * n->channels + c] = a;
        row[LK_NORM_BETA * n->channels + c] = b;
        bad |= lk_not_finite(a) | lk_not_finite(b);
        if (!dx) continue;
        bad |= input_gradient(&of, gamma_of(l, c) * of.inv, (a + 0.0f) * share, (b + 0.0f) * share,
                              dx + c);
    }
    if (dx) __builtin_memset(dx + here, 0, (lk_lane_rows(l, g) * op->floats - here) * sizeof *dx);
    return bad;
}

static uint32_t batch_normalization_backward(lk_lane *l, const lk_op *op) {
    const lk_batch_norm *n = &op->norm;
    const float *dy = l->at[LK_DY];
    float *dx = l->at[LK_DX];
    uint32_t bad = 0;
    if (!n->frozen) {
        for (uint32_t g = 0; g < lk_lane_grains(l); g++) bad |= backward_grain(l, op, g);
        return bad;
    }
    for (uint64_t i = 0; i < l->examples * op->floats; i++) {
        const uint32_t c = (uint32_t)(i % n->channels);
        dx[i] = gamma_of(l, c) * inverse_root(l->state[1][c], n->epsilon) * dy[i];
        bad |= lk_not_finite(dx[i]);
    }
    return bad;
}

// --- trees over grains ---------------------------------------------------------------------------

// Columns first and second of the grains' rows, each to a node of its own.
static uint32_t rows_to_nodes(const lk_lane *l, const lk_op *op, uint32_t first) {
    const uint32_t channels = op->norm.channels;
    for (uint32_t i = 0; i < 2; i++) {
        for (uint32_t c = 0; l->sums[i] && c < channels; c++) {
            tree_sum t;
            tree_start(&t);
            for (uint32_t g = 0; g < l->grain_count; g++) {
                tree_leaf(&t, lk_grain_kept(&l->grains[g])[(first + i) * channels + c]);
            }
            l->sums[i][c] = tree_finish(&t);
        }
    }
    return 0;
}

static uint32_t batch_normalization_statistics(lk_lane *l, const lk_op *op) {
    return rows_to_nodes(l, op, LK_NORM_SUM);
}

static uint32_t batch_normalization_gradient(lk_lane *l, const lk_op *op) {
    return rows_to_nodes(l, op, LK_NORM_GAMMA);
}

static lk_moving follow_statistics(const lk_op *op) {
    return (lk_moving){.momentum = op->norm.momentum,
                       .terms = op->norm.h * op->norm.w * lk_op_uses(op)};
}

// --- shapes, parameters, states ------------------------------------------------------------------

static lk_status build_batch_normalization(lk_builder *b, const lk_layer *l) {
    const lk_shape in = b->input[0].shape;
    const lk_batch_norm norm = {.h = in.h,
                          .w = in.w,
                          .channels = in.c,
                          .flat = in.flat,
                          .epsilon = l->epsilon,
                          .momentum = l->momentum,
                          .scale = l->scale,
                          .center = l->center,
                          .frozen = l->frozen};
    if ((uint64_t)b->program->spec->grain * in.h * in.w < 2) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: batch_normalization: a grain of 1 example of 1 x 1 x %u has one "
                       "value of each channel, and no variance; wanted a grain of 2 or more, which "
                       "global_batch is a multiple of",
                       l->name, in.c);
    }
    lk_build_op(b, &lk_op_batch_normalization, b->input[0], in)->norm = norm;
    return LK_OK;
}

static lk_status declare_batch_normalization(lk_builder *b, lk_op *op) {
    const lk_batch_norm *n = &op->norm;
    lk_param_shape param = {.suffix = "gamma", .rank = 1, .size = {n->channels}};
    lk_state_shape state = {
        .suffix = "moving_mean", .dtype = LK_F32, .rank = 1, .size = {n->channels}};
    uint32_t tensor;
    param.initializer = &lk_initializer_ones;
    if (n->scale) LK_CHECK(lk_build_param(b, op, 0, &param));
    param.suffix = "beta";
    param.initializer = &lk_initializer_zeros;
    if (n->center) LK_CHECK(lk_build_param(b, op, 1, &param));
    LK_CHECK(lk_build_state(b, op, 0, &state, &tensor));
    state.suffix = "moving_variance";
    state.initializer = &lk_initializer_ones;
    LK_CHECK(lk_build_state(b, op, 1, &state, &tensor));
    if (n->frozen) return LK_OK;
    return lk_build_grain_rows(b, op, "/grains", (uint64_t)LK_NORM_COLUMNS * n->channels,
                               &op->tensor[LK_AUX]);
}

// In fp32 alone: with 16 bits the plan of mnist-gan would be 11% above its lower bound.
static bool absorb(const lk_builder *b, lk_op *op, const lk_op *next) {
    (void)b;
    return op->dtype == LK_F32 && lk_build_absorb_relu(op, next, &op->norm.relu);
}

// --- differentiation -----------------------------------------------------------------------------

static lk_status observe_batch_normalization(lk_builder *b, uint32_t of) {
    lk_build_state_sums(b, &lk_op_batch_normalization_statistics, of, 2);
    return LK_OK;
}

static lk_status differentiate_batch_normalization(lk_builder *b, uint32_t of) {
    lk_program *p = b->program;
    const lk_op *op = &p->ops[of];
    const uint32_t at = p->op_count;
    if (p->ops[op->input[0]].wants) {
        LK_CHECK(lk_build_gradient_in_place(b, &lk_op_batch_normalization_backward, of));
    } else {
        (void)lk_build_gradient(b, &lk_op_batch_normalization_backward, of);
    }
    lk_op *g = &p->ops[at];
    static const lk_role kept[] = {LK_X, LK_X2, LK_AUX, LK_STATE};
    for (uint32_t i = 0; i < LK_COUNT(kept); i++) g->tensor[kept[i]] = op->tensor[kept[i]];
    g->tensor[LK_Y] = LK_NONE;
    for (uint32_t i = 0; i < LK_OP_PARAMS; i++) g->param[i] = op->param[i];
    if (!op->norm.scale && !op->norm.center) return LK_OK;
    lk_build_param_gradient(b, &lk_op_batch_normalization_gradient, of, 0, 2);
    return LK_OK;
}

static lk_flop flop_batch_normalization(const lk_op *op) {
    return (lk_flop){7 * op->floats, 7 * op->floats};
}

const lk_op_type lk_op_batch_normalization = {
    .name = "batch_normalization",
    .suffix = "",
    .number = LK_OP_BATCH_NORMALIZATION,
    .scope = LK_SCOPE_EXAMPLES,
    .reference = batch_normalization,
    .grains = true,
    .mixed = true,
    .plain = true,
    .looks = true,
    .flop = LK_RULE(flop_batch_normalization),
    .absorb = LK_RULE(absorb),
    .declare = LK_RULE(declare_batch_normalization),
    .observe = LK_RULE(observe_batch_normalization),
    .differentiate = LK_RULE(differentiate_batch_normalization)};
const lk_op_type lk_op_batch_normalization_backward = {
    .name = "batch_normalization_backward",
    .number = LK_OP_BATCH_NORMALIZATION_BACKWARD,
    .scope = LK_SCOPE_EXAMPLES,
    .reference = batch_normalization_backward,
    .grains = true,
    .mixed = true,
    .plain = true,
    .looks = true,
    .flop = LK_RULE(flop_batch_normalization)};
const lk_op_type lk_op_batch_normalization_statistics = {
    .name = "batch_normalization_statistics",
    .number = LK_OP_BATCH_NORMALIZATION_STATISTICS,
    .scope = LK_SCOPE_GRAINS,
    .reference = batch_normalization_statistics,
    .mixed = true,
    .kept = true,
    .moving = follow_statistics};
const lk_op_type lk_op_batch_normalization_gradient = {
    .name = "batch_normalization_gradient",
    .number = LK_OP_BATCH_NORMALIZATION_GRADIENT,
    .scope = LK_SCOPE_GRAINS,
    .reference = batch_normalization_gradient,
    .mixed = true,
    .kept = true};

const lk_layer_type lk_layer_batch_normalization = {.inputs = 1,
                                                    .ops_max = 5,
                                                    .tensors_max = 4,
                                                    .params_max = 2,
                                                    .states_max = 2,
                                                    .build = build_batch_normalization};

// --- words ---------------------------------------------------------------------------------------

static const lk_setting batch_normalization_keys[] = {
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
    {.name = "momentum",
     .kind = LK_SETTING_FLOAT,
     .offset = offsetof(lk_layer, momentum),
     .high = 1.0f,
     .float_constant = 0.99f,
     .meaning = "the share that the moving statistics keep of themselves in a step"},
    {.name = "scale",
     .kind = LK_SETTING_BOOL,
     .offset = offsetof(lk_layer, scale),
     .constant = 1,
     .meaning = "multiplied by gamma"},
};

static void say_batch_normalization(lk_export *e, const lk_layer *l) {
    lk_export_node *node = lk_export_node_add(e, "BatchNormalization");
    node->statistics = true;
    lk_export_float(node, "epsilon", l->epsilon);
}

const lk_layer_words lk_layer_words_batch_normalization = {
    .type = &lk_layer_batch_normalization,
    .name = "batch_normalization",
    .keys = batch_normalization_keys,
    .key_count = LK_COUNT(batch_normalization_keys),
    .meaning = "each channel with mean 0 and variance 1 over a grain, or by moving statistics",
    .say_export = say_batch_normalization};
