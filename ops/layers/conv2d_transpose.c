// conv2d_transpose.c - the transposed convolution: formulas, shapes, the reference, gradients.
// Freestanding. ARITHMETIC.md 3, 5 and 6.
//
// Its geometry is that of the convolution of which it is the gradient: from y, (in_h, in_w, in_c),
// to x, (out_h, out_w, out_c). Cell (iy, ix) of x and tap (ky, kx) of the kernel meet cell
//
//     oy = iy*stride_h + ky - pad_top,   ox = ix*stride_w + kx - pad_left   of y.
//
//   y[m][oy][ox][f] = sum over (ky, kx, ci), ascending, of w[ky][kx][f][ci] * x[m][iy][ix][ci],
//       cells that do not exist being zero terms; bias[f] starts slice 0; then ReLU if c->relu
//
//   dx[m][iy][ix][ci] = sum over (ky, kx, f), ascending, of dy[m][oy][ox][f] * w[ky][kx][f][ci],
//       cells outside y being zero terms: a convolution of dy
//
//   dw: the node of the grains' sums over (example, cell of x) of dy * x; db: over (example, cell
//       of y) of dy. Cells in 2x2 tiles and slices as a convolution has them (conv2d.c).
//
// So the fast kernels are the convolution's: its input gradient for y, its output for dx, its
// weight gradient with dy and x in each other's place for dw. A stride multiplies no zeros.
//
// x (m, out_h, out_w, out_c), w (kernel_h, kernel_w, in_c, out_c), bias (in_c) or NULL,
// y (m, in_h, in_w, in_c)
#include "ops/cpu/conv_shape.h"
#include "ops/graph/build.h"
#include "ops/layers/export.h"
#include "ops/layers/keys.h"
#include "ops/layers/sums.h"

// --- the reference -------------------------------------------------------------------------------

static float weight(const lk_conv2d *c, const float *w, uint32_t ky, uint32_t kx, uint32_t f,
                    uint32_t ci) {
    return w[(((uint64_t)ky * c->kernel_w + kx) * c->in_c + f) * c->out_c + ci];
}

// The row (or column) of x that reaches row `at` of y through kernel row `tap`, -1 where none does.
static int64_t source_of(uint32_t at, uint32_t tap, uint32_t pad, uint32_t stride, uint32_t count) {
    const int64_t steps = (int64_t)at + pad - tap;
    return steps >= 0 && steps % stride == 0 && steps / stride < count ? steps / stride : -1;
}

static float output_cell(const lk_conv2d *c, const lk_lane *l, const float *x, uint32_t oy,
                         uint32_t ox, uint32_t f) {
    slice_sum s;
    slice_start(&s, l->param[1] ? l->param[1][f] : 0.0f);
    for (uint32_t ky = 0; ky < c->kernel_h; ky++) {
        for (uint32_t kx = 0; kx < c->kernel_w; kx++) {
            const int64_t iy = source_of(oy, ky, c->pad_top, c->stride_h, c->out_h);
            const int64_t ix = source_of(ox, kx, c->pad_left, c->stride_w, c->out_w);
            for (uint32_t ci = 0; ci < c->out_c; ci++) {
                const float cell =
                    iy < 0 || ix < 0 ? 0.0f : x[(iy * c->out_w + ix) * c->out_c + ci];
                slice_term(&s, weight(c, l->param[0], ky, kx, f, ci), cell);
            }
        }
    }
    return slice_finish(&s);
}

static uint32_t conv2d_transpose_forward(lk_lane *l, const lk_op *op) {
    const lk_conv2d *c = &op->conv;
    const float *x = l->at[LK_X];
    float *y = l->at[LK_Y];
    uint32_t bad = 0;
    for (uint32_t m = 0; m < l->examples; m++, x += lk_conv2d_out_floats(c)) {
        for (uint64_t i = 0; i < lk_conv2d_in_floats(c); i++) {
            const uint64_t at = i / c->in_c;
            const float sum = output_cell(c, l, x, (uint32_t)(at / c->in_w),
                                          (uint32_t)(at % c->in_w), (uint32_t)(i % c->in_c));
            bad |= lk_not_finite(sum);
            *y++ = c->relu ? lk_relu(sum) : sum;
        }
    }
    return bad;
}

// Channel f of y, or of its gradient, that cell (iy, ix) of x meets at tap (ky, kx); +0 outside.
static float met_of(const lk_conv2d *c, lk_dtype dtype, const void *y, uint64_t first, uint32_t iy,
                    uint32_t ix, uint32_t ky, uint32_t kx, uint32_t f) {
    const int64_t oy = (int64_t)iy * c->stride_h + ky - c->pad_top;
    const int64_t ox = (int64_t)ix * c->stride_w + kx - c->pad_left;
    if (oy < 0 || ox < 0 || oy >= c->in_h || ox >= c->in_w) return 0.0f;
    return lk_value_at(dtype, y, first + (uint64_t)(oy * c->in_w + ox) * c->in_c + f);
}

static float met(const lk_conv2d *c, const float *y, uint32_t iy, uint32_t ix, uint32_t ky,
                 uint32_t kx, uint32_t f) {
    return met_of(c, LK_F32, y, 0, iy, ix, ky, kx, f);
}

static float input_cell(const lk_conv2d *c, const float *w, const float *dy, uint32_t iy,
                        uint32_t ix, uint32_t ci) {
    slice_sum s;
    slice_start(&s, 0.0f);
    for (uint32_t ky = 0; ky < c->kernel_h; ky++) {
        for (uint32_t kx = 0; kx < c->kernel_w; kx++) {
            for (uint32_t f = 0; f < c->in_c; f++) {
                slice_term(&s, met(c, dy, iy, ix, ky, kx, f), weight(c, w, ky, kx, f, ci));
            }
        }
    }
    return slice_finish(&s);
}

static uint32_t conv2d_transpose_input_gradient(lk_lane *l, const lk_op *op) {
    const lk_conv2d *c = &op->conv;
    const float *dy = l->at[LK_DY];
    float *dx = l->at[LK_DX];
    uint32_t bad = 0;
    for (uint32_t m = 0; m < l->examples; m++, dy += lk_conv2d_in_floats(c)) {
        for (uint64_t i = 0; i < lk_conv2d_out_floats(c); i++) {
            const uint64_t at = i / c->out_c;
            const float sum = input_cell(c, l->param[0], dy, (uint32_t)(at / c->out_w),
                                         (uint32_t)(at % c->out_w), (uint32_t)(i % c->out_c));
            bad |= lk_not_finite(sum);
            *dx++ = sum;
        }
    }
    return bad;
}

// What one parameter sums: a weight, or, of the bias, channel f.
typedef struct term_of {
    uint32_t ky, kx, f, ci;
    bool bias;
    lk_dtype x, dy;  // of the views
} term_of;

// The sum of a grain, over examples and the cells of x (of a bias those of y), in 2x2 tiles. Where
// dy and x have changed places, x of the view is the gradient of y, and dy of the view is x.
static float grain_of(const lk_conv2d *c, const lk_grain_view *g, const term_of *v) {
    const uint32_t terms = lk_conv2d_terms(c), per_slice = LK_SLICE_TERMS / terms;
    slice_sum s;
    slice_start(&s, 0.0f);
    for (uint32_t m = 0; m < g->examples; m++) {
        const uint64_t x = m * lk_conv2d_out_floats(c), dy = m * lk_conv2d_in_floats(c);
        if (m > 0 && (per_slice == 0 || m % per_slice == 0)) slice_cut(&s);
        for (uint32_t t = 0; t < terms; t++) {
            const uint32_t wide = (c->out_w + 1) / 2, tile = t / 4;
            const uint32_t iy = 2 * (tile / wide) + t % 4 / 2, ix = 2 * (tile % wide) + t % 2;
            const bool exists = iy < c->out_h && ix < c->out_w;
            const uint64_t at = x + ((uint64_t)iy * c->out_w + ix) * c->out_c + v->ci;
            const float there = exists ? lk_value_at(v->dy, g->dy, at) : 0.0f;
            if (v->bias)
                slice_term(&s, 1.0f, there);
            else
                slice_term(&s,
                           exists ? met_of(c, v->x, g->x, dy, iy, ix, v->ky, v->kx, v->f) : 0.0f,
                           there);
        }
    }
    tree_leaf(&s.tree, s.chain);
    return tree_finish(&s.tree);
}

static float node_of(const lk_conv2d *c, const lk_lane *l, const term_of *v) {
    tree_sum t;
    tree_start(&t);
    for (uint32_t g = 0; g < l->grain_count; g++) tree_leaf(&t, grain_of(c, &l->grains[g], v));
    return tree_finish(&t);
}

static uint32_t conv2d_transpose_weight_gradient(lk_lane *l, const lk_op *op) {
    const lk_conv2d *c = &op->conv;
    const lk_dtype x = lk_lane_x_is_half(l) ? l->half->dtype : LK_F32;
    const lk_dtype dy = lk_lane_dy_is_half(l) ? l->half->dtype : LK_F32;
    for (uint64_t i = 0; i < lk_conv2d_weight_floats(c); i++) {
        const uint64_t tap = i / c->out_c / c->in_c;
        const term_of v = {(uint32_t)(tap / c->kernel_w), (uint32_t)(tap % c->kernel_w),
                           (uint32_t)(i / c->out_c % c->in_c), (uint32_t)(i % c->out_c), false,
                           x, dy};
        l->sums[0][i] = node_of(c, l, &v);
    }
    return 0;
}

// Its geometry is that of a convolution whose output is y.
static uint32_t conv2d_transpose_bias_gradient(lk_lane *l, const lk_op *op) {
    for (uint32_t f = 0; f < op->conv.out_c; f++) {
        const lk_dtype dy = lk_lane_dy_is_half(l) ? l->half->dtype : LK_F32;
        const term_of v = {.ci = f, .bias = true, .dy = dy};
        l->sums[1][f] = node_of(&op->conv, l, &v);
    }
    return 0;
}

// --- shapes and parameters -----------------------------------------------------------------------

// Rows (or columns) of y, as Keras counts; 0: too many.
static uint32_t output_size(uint32_t in, uint32_t size, uint32_t stride, lk_padding padding) {
    const uint64_t more = padding == LK_PADDING_VALID && size > stride ? size - stride : 0;
    const uint64_t out = (uint64_t)in * stride + more;
    return out <= INT32_MAX ? (uint32_t)out : 0;
}

static lk_status build_conv2d_transpose(lk_builder *b, const lk_layer *l) {
    const lk_shape in = b->input[0].shape;
    lk_shape back, out = {.c = l->units};
    uint32_t top = 0, left = 0;
    if (in.flat) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: wants images (height, width, channels) but its input is flat "
                       "(%u); put a reshape before it",
                       l->name, in.c);
    }
    if (l->units == 0) return lk_fail(b->error, LK_BAD_CONFIG, "layer %s: filters is 0", l->name);
    out.h = l->stride_h ? output_size(in.h, l->size_h, l->stride_h, l->padding) : 1;
    out.w = l->stride_w ? output_size(in.w, l->size_w, l->stride_w, l->padding) : 1;
    if (out.h == 0 || out.w == 0) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: an output of more than 2^31 rows or columns", l->name);
    }
    LK_CHECK(lk_build_window(b, l, out, &back, &top, &left));
    lk_assert(back.h == in.h && back.w == in.w);
    lk_build_op(b, &lk_op_conv2d_transpose, b->input[0], out)->conv =
        (lk_conv2d){.in_h = out.h,
                    .in_w = out.w,
                    .in_c = out.c,
                    .out_h = in.h,
                    .out_w = in.w,
                    .out_c = in.c,
                    .kernel_h = l->size_h,
                    .kernel_w = l->size_w,
                    .stride_h = l->stride_h,
                    .stride_w = l->stride_w,
                    .pad_top = top,
                    .pad_left = left,
                    .use_bias = l->use_bias};
    return LK_OK;
}

// Fans as Keras has them, who takes the third size of any kernel for that of its input.
static lk_status declare(lk_builder *b, lk_op *op) {
    const lk_conv2d *c = &op->conv;
    const uint64_t window = (uint64_t)c->kernel_h * c->kernel_w;
    const lk_param_shape kernel = {
        .suffix = "kernel",
        .rank = 4,
        .size = {c->kernel_h, c->kernel_w, c->in_c, c->out_c},
        .fan_in = window * c->in_c,
        .fan_out = window * c->out_c,
        .initializer = b->program->spec->model.layers[op->layer].initializer};
    const lk_param_shape bias = {
        .suffix = "bias", .rank = 1, .size = {c->in_c}, .initializer = &lk_initializer_zeros};
    LK_CHECK(lk_build_param(b, op, 0, &kernel));
    return c->use_bias ? lk_build_param(b, op, 1, &bias) : LK_OK;
}

static bool absorb(const lk_builder *b, lk_op *op, const lk_op *next) {
    (void)b;
    return lk_build_absorb_relu(op, next, &op->conv.relu);
}

static lk_status differentiate(lk_builder *b, uint32_t of) {
    const lk_program *p = b->program;
    const lk_conv2d c = p->ops[of].conv;
    if (c.use_bias) {
        const uint32_t at = p->op_count;
        lk_build_param_gradient(b, &lk_op_conv2d_transpose_bias_gradient, of, 1, 1);
        const lk_conv2d cells = {.in_h = c.in_h,
                                 .in_w = c.in_w,
                                 .in_c = 1,
                                 .out_h = c.in_h,
                                 .out_w = c.in_w,
                                 .out_c = c.in_c,
                                 .kernel_h = 1,
                                 .kernel_w = 1,
                                 .stride_h = 1,
                                 .stride_w = 1};
        for (uint32_t i = at; i < p->op_count; i++) p->ops[i].conv = cells;
    }
    lk_build_param_gradient(b, &lk_op_conv2d_transpose_weight_gradient, of, 0, 1);
    const uint32_t at = p->op_count;
    LK_CHECK(lk_build_input_gradient(b, &lk_op_conv2d_transpose_input_gradient, of, 0, false));
    if (p->op_count > at) {
        p->ops[at].param[1] = LK_NONE;
        p->ops[at].conv.relu = p->ops[at].conv.use_bias = false;
    }
    return LK_OK;
}

// --- descriptors ---------------------------------------------------------------------------------

static uint64_t scratch_floats(const lk_op *op, uint32_t examples) {
    (void)examples;
    return lk_conv_scratch_floats(&op->conv);
}

// Of gradients that read 16 bits: image, sums, and what lies as dy of one example, widened.
static uint64_t half_floats(const lk_op *op, uint32_t examples) {
    const lk_conv2d *c = &op->conv;
    (void)examples;
    return lk_conv_image_floats(c) + lk_conv_sum_floats(c) +
           lk_round_up(lk_conv2d_out_floats(c), LK_LANES_MAX);
}

static lk_flop flop(const lk_op *op) {
    const lk_conv2d *c = &op->conv;
    const uint64_t all =
        2ull * c->kernel_h * c->kernel_w * c->in_c * c->out_c * c->out_h * c->out_w;
    return (lk_flop){all, all};
}

const lk_op_type lk_op_conv2d_transpose = {.name = "conv2d_transpose",
                                           .suffix = "",
                                           .number = LK_OP_CONV2D_TRANSPOSE,
                                           .scope = LK_SCOPE_EXAMPLES,
                                           .reference = conv2d_transpose_forward,
                                           .scratch_floats = LK_RULE(scratch_floats),
                                           .flop = LK_RULE(flop),
                                           .absorb = LK_RULE(absorb),
                                           .declare = LK_RULE(declare),
                                           .differentiate = LK_RULE(differentiate),
                                           .mixed = true};
const lk_op_type lk_op_conv2d_transpose_input_gradient = {
    .name = "conv2d_transpose_input_gradient",
    .number = LK_OP_CONV2D_TRANSPOSE_INPUT_GRADIENT,
    .scope = LK_SCOPE_EXAMPLES,
    .reference = conv2d_transpose_input_gradient,
    .scratch_floats = LK_RULE(scratch_floats),
    .flop = LK_RULE(flop),
    .mixed = true};
const lk_op_type lk_op_conv2d_transpose_weight_gradient = {
    .name = "conv2d_transpose_weight_gradient",
    .number = LK_OP_CONV2D_TRANSPOSE_WEIGHT_GRADIENT,
    .scope = LK_SCOPE_GRAINS,
    .exchanged = true,
    .reference = conv2d_transpose_weight_gradient,
    .scratch_floats = LK_RULE(scratch_floats),
    .flop = LK_RULE(flop),
    .mixed = true,
    .half_floats = LK_MIXED_RULE(half_floats)};
const lk_op_type lk_op_conv2d_transpose_bias_gradient = {
    .name = "conv2d_transpose_bias_gradient",
    .number = LK_OP_CONV2D_TRANSPOSE_BIAS_GRADIENT,
    .scope = LK_SCOPE_GRAINS,
    .reference = conv2d_transpose_bias_gradient,
    .scratch_floats = LK_RULE(scratch_floats),
    .mixed = true,
    .half_floats = LK_MIXED_RULE(half_floats)};

const lk_layer_type lk_layer_conv2d_transpose = {
    .inputs = 1, .ops_max = 5, .tensors_max = 7, .params_max = 2, .build = build_conv2d_transpose};

static const lk_setting keys[] = {
    LK_KEY_ACTIVATION,
    {.name = "filters",
     .kind = LK_SETTING_U32,
     .offset = offsetof(lk_layer, units),
     .field = "units",
     .required = true,
     .most = 1 << 24,
     .meaning = "channels of the output"},
    LK_KEYS_KERNEL_INITIALIZER,
    LK_KEY_KERNEL_REGULARIZER,
    LK_KEY_KERNEL_SIZE,
    {.name = "padding",
     .kind = LK_SETTING_PADDING,
     .offset = offsetof(lk_layer, padding),
     .constant = LK_PADDING_VALID,
     .meaning = "input times stride, or what the windows reach"},
    LK_KEY_SPECTRAL_NORMALIZATION,
    LK_KEY_STRIDES,
    LK_KEY_USE_BIAS("channel"),
};

// Rows that the windows reach too far, and how many they do not reach.
static void say_reach(uint32_t in, uint32_t out, uint32_t size, uint32_t stride, uint32_t before,
                      int64_t *after, int64_t *missing) {
    const int64_t total = (int64_t)(in - 1) * stride + size - out;
    *after = total > before ? total - before : 0;
    *missing = total < 0 ? -total : 0;
}

static void say_conv2d_transpose(lk_export *e, const lk_layer *l) {
    const lk_conv2d *c = &e->op->conv;
    const int64_t size[] = {c->kernel_h, c->kernel_w}, strides[] = {c->stride_h, c->stride_w};
    int64_t pads[] = {c->pad_top, c->pad_left, 0, 0}, missing[2];
    say_reach(c->out_h, c->in_h, c->kernel_h, c->stride_h, c->pad_top, &pads[2], &missing[0]);
    say_reach(c->out_w, c->in_w, c->kernel_w, c->stride_w, c->pad_left, &pads[3], &missing[1]);
    lk_export_node *node = lk_export_node_add(e, "ConvTranspose");
    node->parameters = LK_EXPORT_PARAMETERS;
    lk_export_ints(node, "kernel_shape", 2, size);
    lk_export_ints(node, "strides", 2, strides);
    lk_export_ints(node, "pads", 4, pads);
    lk_export_ints(node, "output_padding", 2, missing);
    lk_export_image(e, l->units);
}

const lk_layer_words lk_layer_words_conv2d_transpose = {
    .type = &lk_layer_conv2d_transpose,
    .name = "conv2d_transpose",
    .keys = keys,
    .key_count = LK_COUNT(keys),
    .meaning = "transposed convolution over images",
    .say_export = say_conv2d_transpose};
