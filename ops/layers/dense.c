// dense.c - the fully connected layer: formulas, shapes, the reference, gradients. Freestanding.
// ARITHMETIC.md 3, 5 and 6.
//
//   y[m][n]  = sum over k, ascending, of x[m][k] * w[k][n]; bias[n] starts slice 0; ReLU if d->relu
//   dx[m][k] = sum over n, ascending, of w[k][n] * dy[m][n]; +0 where a mask is given and not > 0
//   dw[k][n] = the node of the grains' sums of x[m][k] * dy[m][n] over examples m
//   db[n]    = the node of the grains' sums of dy[m][n] over examples m
//
// x and dx (m, k_count), w and dw (k_count, n_count), bias and db (n_count), y and dy (m, n_count)
//
// Over a sequence the same with rows in place of examples: m counts its times too, those of an
// example after each other.
#include "ops/cpu/tiles.h"
#include "ops/graph/build.h"
#include "ops/layers/export.h"
#include "ops/layers/keys.h"
#include "ops/layers/sums.h"

// --- the reference -------------------------------------------------------------------------------

static uint32_t dense_forward(lk_lane *l, const lk_op *op) {
    const lk_dense *d = &op->dense;
    const float *x = l->at[LK_X], *w = l->param[0], *bias = l->param[1];
    float *y = l->at[LK_Y];
    uint32_t bad = 0;
    for (uint32_t m = 0; m < l->examples; m++) {
        for (uint32_t n = 0; n < d->n_count; n++) {
            slice_sum s;
            slice_start(&s, bias ? bias[n] : 0.0f);
            for (uint32_t k = 0; k < d->k_count; k++) {
                slice_term(&s, x[(uint64_t)m * d->k_count + k], w[(uint64_t)k * d->n_count + n]);
            }
            float sum = slice_finish(&s);
            bad |= lk_not_finite(sum);
            y[(uint64_t)m * d->n_count + n] = d->relu ? lk_relu(sum) : sum;
        }
    }
    return bad;
}

static uint32_t dense_input_gradient(lk_lane *l, const lk_op *op) {
    const lk_dense *d = &op->dense;
    const float *w = l->param[0], *dy = l->at[LK_DY], *mask = l->at[LK_MASK];
    float *dx = l->at[LK_DX];
    uint32_t bad = 0;
    for (uint32_t m = 0; m < l->examples; m++) {
        for (uint32_t k = 0; k < d->k_count; k++) {
            uint64_t at = (uint64_t)m * d->k_count + k;
            slice_sum s;
            slice_start(&s, 0.0f);
            for (uint32_t n = 0; n < d->n_count; n++) {
                slice_term(&s, w[(uint64_t)k * d->n_count + n], dy[(uint64_t)m * d->n_count + n]);
            }
            float sum = slice_finish(&s);
            bad |= lk_not_finite(sum);
            dx[at] = !mask || mask[at] > 0.0f ? sum : 0.0f;
        }
    }
    return bad;
}

static uint32_t dense_weight_gradient(lk_lane *l, const lk_op *op) {
    const lk_dense *d = &op->dense;
    const lk_weight_rows all = {.end = d->k_count}, *rows = l->rows ? l->rows : &all;
    for (uint32_t k = rows->first; k < rows->end; k++) {
        for (uint32_t n = 0; n < d->n_count; n++) {
            tree_sum t;
            tree_start(&t);
            for (uint32_t g = 0; g < l->grain_count; g++) {
                const lk_grain_view *v = &l->grains[g];
                tree_leaf(&t, grain_sum(v, v->x + k, d->k_count, v->dy + n, d->n_count));
            }
            l->sums[0][(uint64_t)(k - rows->first) * d->n_count + n] = tree_finish(&t);
        }
    }
    return 0;
}

static uint32_t dense_bias_gradient(lk_lane *l, const lk_op *op) {
    const uint32_t n_count = op->dense.n_count;
    if (!lk_lane_dy_is_half(l)) {
        lk_kernels_reference.column_sums(n_count, l->grain_count, l->grains, l->sums[1]);
        return 0;
    }
    for (uint32_t n = 0; n < n_count; n++) {
        tree_sum t;
        tree_start(&t);
        for (uint32_t g = 0; g < l->grain_count; g++) {
            slice_sum s;
            slice_start(&s, 0.0f);
            for (uint32_t m = 0; m < l->grains[g].examples; m++) {
                const uint64_t at = (uint64_t)m * n_count + n;
                slice_term(&s, 1.0f, lk_value_at(l->half->dtype, l->grains[g].dy, at));
            }
            tree_leaf(&s.tree, s.chain);
            tree_leaf(&t, tree_finish(&s.tree));
        }
        l->sums[1][n] = tree_finish(&t);
    }
    return 0;
}

// --- over a sequence -----------------------------------------------------------------------------

static lk_lane rows_of(const lk_lane *l, const lk_op *op) {
    lk_lane rows = *l;
    rows.examples *= op->sequence.steps;
    return rows;
}

static uint32_t sequence_dense(lk_lane *l, const lk_op *op) {
    lk_lane rows = rows_of(l, op);
    return dense_forward(&rows, op);
}

static uint32_t sequence_dense_input_gradient(lk_lane *l, const lk_op *op) {
    lk_lane rows = rows_of(l, op);
    return dense_input_gradient(&rows, op);
}

// --- shapes, parameters, fusion ------------------------------------------------------------------

lk_status lk_build_sequence_dense(lk_builder *b, const lk_layer *l, const lk_dense *d) {
    const lk_shape in = b->input[0].shape, out = {in.h, 1, d->n_count, false};
    const uint64_t rows = (uint64_t)b->program->spec->grain * in.h;
    if (rows > LK_SEQUENCE_ROWS_MAX) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: a grain of %u examples of %u times has %llu rows, wanted at most "
                       "%d; use %s",
                       l->name, b->program->spec->grain, in.h, (unsigned long long)rows,
                       LK_SEQUENCE_ROWS_MAX,
                       in.h <= LK_SEQUENCE_ROWS_MAX
                           ? "a smaller grain"
                           : "fewer times: shorter examples, or time_reduction before it");
    }
    if ((uint64_t)b->program->microbatch_examples * in.h > INT32_MAX) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: a microbatch of %u examples of %u times has more than 2^31 rows; "
                       "use a smaller layout.wave_examples",
                       l->name, b->program->microbatch_examples, in.h);
    }
    lk_op *op = lk_build_op(b, &lk_op_sequence_dense, b->input[0], out);
    op->dense = *d;
    op->sequence.steps = in.h;
    return LK_OK;
}

static lk_status build_dense(lk_builder *b, const lk_layer *l) {
    const lk_shape in = b->input[0].shape, out = {1, 1, l->units, true};
    if (!in.flat && in.w != 1) {  // one column wide: a sequence
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: dense wants a flat input but gets images of %u x %u x %u; put a "
                       "flatten layer before it",
                       l->name, in.h, in.w, in.c);
    }
    if (l->units == 0) return lk_fail(b->error, LK_BAD_CONFIG, "layer %s: units is 0", l->name);
    if (!in.flat) {
        const lk_dense d = {.k_count = in.c, .n_count = l->units, .use_bias = l->use_bias};
        return lk_build_sequence_dense(b, l, &d);
    }
    lk_build_op(b, &lk_op_dense, b->input[0], out)->dense =
        (lk_dense){.k_count = in.c, .n_count = l->units, .use_bias = l->use_bias};
    return LK_OK;
}

static lk_status declare(lk_builder *b, lk_op *op) {
    const lk_dense *d = &op->dense;
    const lk_layer *layer = &b->program->spec->model.layers[op->layer];
    const lk_param_shape kernel = {.suffix = "kernel",
                                   .rank = 2,
                                   .size = {d->k_count, d->n_count},
                                   .fan_in = d->k_count,
                                   .fan_out = d->n_count,
                                   .initializer = layer->initializer};
    const lk_param_shape bias = {
        .suffix = "bias",
        .rank = 1,
        .size = {d->n_count},
        .initializer = layer->forget_bias ? &lk_initializer_forget_ones : &lk_initializer_zeros};
    LK_CHECK(lk_build_param(b, op, 0, &kernel));
    return d->use_bias ? lk_build_param(b, op, 1, &bias) : LK_OK;
}

static bool absorb(const lk_builder *b, lk_op *op, const lk_op *next) {
    (void)b;
    return lk_build_absorb_relu(op, next, &op->dense.relu);
}

static lk_status differentiate(lk_builder *b, uint32_t of) {
    lk_build_param_gradient(b, &lk_op_dense_weight_gradient, of, 0, 1);
    if (b->program->ops[of].dense.use_bias) {
        lk_build_param_gradient(b, &lk_op_dense_bias_gradient, of, 1, 1);
    }
    return lk_build_input_gradient(b, &lk_op_dense_input_gradient, of, 0, true);
}

static lk_status differentiate_sequence(lk_builder *b, uint32_t of) {
    lk_build_param_gradient(b, &lk_op_sequence_dense_weight_gradient, of, 0, 1);
    if (b->program->ops[of].dense.use_bias) {
        lk_build_param_gradient(b, &lk_op_sequence_dense_bias_gradient, of, 1, 1);
    }
    return lk_build_input_gradient(b, &lk_op_sequence_dense_input_gradient, of, 0, true);
}

// --- descriptors ---------------------------------------------------------------------------------

// Sums under way, and a tree of slices for each: blocks of examples by panels of units.
uint64_t lk_dense_forward_scratch(const lk_op *op, uint32_t m_count) {
    const uint64_t levels = lk_tree_levels(lk_slices(op->dense.k_count));
    return lk_dense_sums(op->dense.k_count, op->dense.n_count, m_count) * (1 + levels);
}

// Which terms are not zero. Then, lanes being examples, dy transposed, a block of examples at a
// time, and one register tile's tree of slices; or, lanes being inputs, a panel of weights
// transposed, of one run of units, and the terms of each example: address, factor; how many.
uint64_t lk_dense_input_gradient_scratch(const lk_op *op, uint32_t m_count) {
    const lk_dense *d = &op->dense;
    uint64_t examples = LK_MIN(m_count, (uint32_t)LK_DENSE_EXAMPLES);
    uint64_t levels = lk_tree_levels(lk_slices(d->n_count));
    uint64_t broad =
        lk_round_up(examples, 2 * LK_LANES_MAX) * lk_round_up(d->n_count, LK_LANES_MAX) +
        levels * LK_DENSE_INPUTS_MAX * 2 * LK_LANES_MAX;
    uint64_t lists = examples * (1 + d->n_count * 3);
    uint64_t deep = d->n_count > LK_DENSE_RUN ? 0 : LK_DENSE_RUN * LK_DENSE_DEEP_MAX + lists;
    return lk_dense_bits_floats(d->n_count, examples + 1) + LK_MAX(broad, deep);
}

// One register tile's trees: over the slices of a grain, and over the grains. Then, if units
// without a gradient are left out: which they are, the grains without them, and rows of sums. Then
// operands side by side.
uint64_t lk_dense_weight_gradient_scratch(const lk_op *op, uint32_t m_count) {
    const lk_dense *d = &op->dense;
    (void)m_count;
    uint64_t trees = (uint64_t)(LK_GRAIN_SLICE_LEVELS + LK_TREE_LEVELS_MAX) * LK_DENSE_TILE_MAX;
    uint64_t views = LK_DENSE_PACK_GRAINS * sizeof(lk_grain_view) / sizeof(float);
    uint64_t packed = lk_dense_pack_floats(d->n_count);
    if (packed == 0) return trees + LK_LANES_MAX;
    return trees + LK_LANES_MAX + lk_dense_bits_floats(d->n_count, 1) + views + packed +
           LK_DENSE_PACK_ROWS + lk_dense_side_floats(d->n_count);
}

// Of kernels that read and store 16 bits: runs of inputs, or a block of dy, are widened. The block
// may also come from several replicas.
static uint64_t forward_half(const lk_op *op, uint32_t m_count) {
    return LK_DENSE_RUN_FLOATS + lk_dense_forward_scratch(op, m_count);
}
static uint64_t input_gradient_beside(const lk_op *op, uint32_t m_count) {
    const uint64_t examples = LK_MIN(m_count, (uint32_t)LK_DENSE_EXAMPLES);
    return lk_round_up(examples * op->dense.n_count, LK_LANES_MAX) +
           lk_dense_input_gradient_scratch(op, m_count);
}
static uint64_t bias_gradient_half(const lk_op *op, uint32_t m_count) {
    (void)op, (void)m_count;
    return 0;
}

// Weights that a core's own cache cannot keep, for so few examples that fetching them takes as long
// as computing: 16 is what pays, measured with 2048 x 2048 and 6272 x 1024.
static uint32_t divided_among(const lk_op *op, uint32_t m_count, uint32_t replicas) {
    const uint64_t weights = (uint64_t)op->dense.k_count * op->dense.n_count;
    if (replicas == 1 || weights < LK_DENSE_FAR || m_count > LK_DENSE_FEW) return 0;
    return (uint32_t)LK_MIN((uint64_t)m_count * replicas, (uint64_t)UINT32_MAX);
}
static uint64_t forward_divided(const lk_op *op, uint32_t m_count, uint32_t replicas) {
    const uint32_t all = divided_among(op, m_count, replicas);
    return all ? lk_dense_forward_scratch(op, all) : 0;
}
static uint64_t input_gradient_divided(const lk_op *op, uint32_t m_count, uint32_t replicas) {
    const uint32_t all = divided_among(op, m_count, replicas);
    return all ? input_gradient_beside(op, all) : 0;
}

static lk_flop flop(const lk_op *op) {
    const uint64_t all = 2ull * op->dense.k_count * op->dense.n_count;
    return (lk_flop){all, all};
}

static uint32_t rows_most(const lk_op *op, uint32_t m_count) {
    return (uint32_t)LK_MIN((uint64_t)m_count * op->sequence.steps, UINT32_MAX);
}
static uint64_t sequence_forward_scratch(const lk_op *op, uint32_t m_count) {
    return lk_dense_forward_scratch(op, rows_most(op, m_count));
}
static uint64_t sequence_input_gradient_scratch(const lk_op *op, uint32_t m_count) {
    return lk_dense_input_gradient_scratch(op, rows_most(op, m_count));
}
static lk_flop sequence_flop(const lk_op *op) {
    const uint64_t all = flop(op).framework * op->sequence.steps;
    return (lk_flop){all, all};
}

static void rows(const lk_op *op, uint64_t *row_count, uint64_t *columns) {
    *row_count = op->dense.k_count;
    *columns = op->dense.n_count;
}

static void some_rows(lk_op *op, uint32_t row_count) { op->dense.k_count = row_count; }

const lk_op_type lk_op_dense = {.name = "dense",
                                .number = LK_OP_DENSE,
                                .scope = LK_SCOPE_EXAMPLES,
                                .reference = dense_forward,
                                .scratch_floats = LK_RULE(lk_dense_forward_scratch),
                                .flop = LK_RULE(flop),
                                .absorb = LK_RULE(absorb),
                                .declare = LK_RULE(declare),
                                .differentiate = LK_RULE(differentiate),
                                .mixed = true,
                                .multiplies = true,
                                .half_floats = LK_RULE(forward_half),
                                .divided_floats = LK_RULE(forward_divided)};
const lk_op_type lk_op_dense_input_gradient = {
    .name = "dense_input_gradient",
    .number = LK_OP_DENSE_INPUT_GRADIENT,
    .scope = LK_SCOPE_EXAMPLES,
    .reference = dense_input_gradient,
    .scratch_floats = LK_RULE(lk_dense_input_gradient_scratch),
    .flop = LK_RULE(flop),
    .mixed = true,
    .half_floats = LK_RULE(input_gradient_beside),
    .divided_floats = LK_RULE(input_gradient_divided)};
const lk_op_type lk_op_dense_weight_gradient = {.name = "dense_weight_gradient",
                                                .number = LK_OP_DENSE_WEIGHT_GRADIENT,
                                                .scope = LK_SCOPE_GRAINS,
                                                .reference = dense_weight_gradient,
                                                .scratch_floats =
                                                    LK_RULE(lk_dense_weight_gradient_scratch),
                                                .flop = LK_RULE(flop),
                                                .rows = rows,
                                                .mixed = true,
                                                .some_rows = some_rows};
const lk_op_type lk_op_dense_bias_gradient = {.name = "dense_bias_gradient",
                                              .number = LK_OP_DENSE_BIAS_GRADIENT,
                                              .scope = LK_SCOPE_GRAINS,
                                              .reference = dense_bias_gradient,
                                              .mixed = true,
                                              .half_floats = LK_MIXED_RULE(bias_gradient_half)};

const lk_op_type lk_op_sequence_dense = {.name = "sequence_dense",
                                         .number = LK_OP_SEQUENCE_DENSE,
                                         .sequence = true,
                                         .scope = LK_SCOPE_EXAMPLES,
                                         .reference = sequence_dense,
                                         .mixed = true,
                                         .scratch_floats = LK_RULE(sequence_forward_scratch),
                                         .flop = LK_RULE(sequence_flop),
                                         .absorb = LK_RULE(absorb),
                                         .declare = LK_RULE(declare),
                                         .differentiate = LK_RULE(differentiate_sequence)};
const lk_op_type lk_op_sequence_dense_input_gradient = {
    .name = "sequence_dense_input_gradient",
    .number = LK_OP_SEQUENCE_DENSE_INPUT_GRADIENT,
    .sequence = true,
    .scope = LK_SCOPE_EXAMPLES,
    .reference = sequence_dense_input_gradient,
    .mixed = true,
    .scratch_floats = LK_RULE(sequence_input_gradient_scratch),
    .flop = LK_RULE(sequence_flop)};
// The views of grains count rows.
const lk_op_type lk_op_sequence_dense_weight_gradient = {
    .name = "sequence_dense_weight_gradient",
    .number = LK_OP_SEQUENCE_DENSE_WEIGHT_GRADIENT,
    .sequence = true,
    .scope = LK_SCOPE_GRAINS,
    .reference = dense_weight_gradient,
    .mixed = true,
    .scratch_floats = LK_RULE(lk_dense_weight_gradient_scratch),
    .flop = LK_RULE(sequence_flop),
    .rows = rows,
    .some_rows = some_rows};
const lk_op_type lk_op_sequence_dense_bias_gradient = {.name = "sequence_dense_bias_gradient",
                                                       .number = LK_OP_SEQUENCE_DENSE_BIAS_GRADIENT,
                                                       .sequence = true,
                                                       .scope = LK_SCOPE_GRAINS,
                                                       .reference = dense_bias_gradient,
                                                       .mixed = true};
// Of what a recurrent layer's state is multiplied by.
const lk_op_type lk_op_recurrent_weight_gradient = {
    .name = "recurrent_weight_gradient",
    .number = LK_OP_RECURRENT_WEIGHT_GRADIENT,
    .sequence = true,
    .scope = LK_SCOPE_GRAINS,
    .reference = dense_weight_gradient,
    .recurrent = true,
    .mixed = true,
    .scratch_floats = LK_RULE(lk_dense_weight_gradient_scratch),
    .flop = LK_RULE(sequence_flop),
    .rows = rows,
    .some_rows = some_rows};
const lk_op_type lk_op_recurrent_bias_gradient = {.name = "recurrent_bias_gradient",
                                                  .number = LK_OP_RECURRENT_BIAS_GRADIENT,
                                                  .sequence = true,
                                                  .scope = LK_SCOPE_GRAINS,
                                                  .reference = dense_bias_gradient,
                                                  .recurrent = true,
                                                  .mixed = true};

const lk_layer_type lk_layer_dense = {
    .inputs = 1, .ops_max = 5, .tensors_max = 5, .params_max = 2, .build = build_dense};

static const lk_setting keys[] = {
    LK_KEY_ACTIVATION,
    LK_KEYS_KERNEL_INITIALIZER,
    LK_KEY_KERNEL_REGULARIZER,
    LK_KEY_SPECTRAL_NORMALIZATION,
    {.name = "units",
     .kind = LK_SETTING_U32,
     .offset = offsetof(lk_layer, units),
     .field = "units",
     .required = true,
     .most = 1 << 24,
     .meaning = "values of the output"},
    LK_KEY_USE_BIAS("value"),
};

// Of (batch, features, time, 1) every row of features, which come last meanwhile.
static void say_sequence_dense(lk_export *e, const lk_layer *l) {
    static const int64_t last[] = {0, 2, 3, 1}, second[] = {0, 3, 1, 2};
    lk_export_ints(lk_export_node_named(e, "Transpose", "Rows"), "perm", 4, last);
    lk_export_node_add(e, "MatMul")->parameters = LK_EXPORT_KERNEL;
    if (l->use_bias) lk_export_node_add(e, "Add")->parameters = LK_EXPORT_BIAS;
    lk_export_ints(lk_export_node_add(e, "Transpose"), "perm", 4, second);
    e->out = (lk_export_value){.channels = l->units, .times = e->op->sequence.steps};
}

static void say_dense(lk_export *e, const lk_layer *l) {
    if (e->op->type == &lk_op_sequence_dense) {
        say_sequence_dense(e, l);
        return;
    }
    lk_export_node_add(e, "Gemm")->parameters = LK_EXPORT_PARAMETERS;
    e->out = (lk_export_value){.flat = true, .channels = l->units};
}

const lk_layer_words lk_layer_words_dense = {.type = &lk_layer_dense,
                                             .name = "dense",
                                             .keys = keys,
                                             .key_count = LK_COUNT(keys),
                                             .meaning = "every input to every unit",
                                             .say_export = say_dense};
