// grouped_conv2d.c - the convolution whose channels are in groups or whose window is spread out,
// and the depthwise convolution, which has a group for each input channel: formulas, shapes, the
// reference, gradients. Freestanding. ARITHMETIC.md 3, 5 and 6.
//
// Of G groups, in = in_c / G and out = out_c / G channels each, and the dilation (dh, dw):
//
//   y[m][oy][ox][co] = sum over (ky, kx, ci), ascending, ci < in, of
//       x[m][oy*stride_h + ky*dh - pad_top][ox*stride_w + kx*dw - pad_left][co / out * in + ci]
//       * w[ky][kx][ci][co], cells outside the image being zero terms; bias[co] starts slice 0;
//       then ReLU if conv.relu
//
//   dx[m][iy][ix][c] = sum over (ky, kx, o), ascending, o < out, of
//       w[ky][kx][c % in][c / in * out + o] * dy[m][oy][ox][c / in * out + o],
//       oy*stride_h + ky*dh - pad_top = iy, likewise ox; those that do not exist are zero terms
//
//   dw, db: the node of the grains' sums over (example, position) of x * dy, and of dy, as a
//       convolution has them (conv2d.c)
//
// x (m, in_h, in_w, in_c), w (kernel_h, kernel_w, in, out_c), bias (out_c) or NULL,
// y (m, out_h, out_w, out_c). A depthwise kernel (kernel_h, kernel_w, in_c, multiplier) has the
// same elements in the same order.
#include "ops/cpu/tiles.h"
#include "ops/graph/build.h"
#include "ops/layers/export.h"
#include "ops/layers/keys.h"
#include "ops/layers/sums.h"

// --- the reference -------------------------------------------------------------------------------

// The first channel of the pixel that tap (ky, kx) of output (oy, ox) reads; NULL outside.
static const float *pixel(const lk_grouped_conv2d *g, const float *x, uint32_t oy, uint32_t ox,
                          uint32_t ky, uint32_t kx) {
    const lk_conv2d *c = &g->conv;
    const int64_t iy = (int64_t)oy * c->stride_h + (int64_t)ky * g->dilation_h - c->pad_top;
    const int64_t ix = (int64_t)ox * c->stride_w + (int64_t)kx * g->dilation_w - c->pad_left;
    if (iy < 0 || ix < 0 || iy >= c->in_h || ix >= c->in_w) return NULL;
    return x + ((uint64_t)iy * c->in_w + (uint64_t)ix) * c->in_c;
}

static uint64_t weight_at(const lk_grouped_conv2d *g, uint32_t ky, uint32_t kx, uint32_t ci,
                          uint32_t co) {
    const lk_conv2d *c = &g->conv;
    return (((uint64_t)ky * c->kernel_w + kx) * lk_grouped_inputs(g) + ci) * c->out_c + co;
}

static float output_cell(const lk_grouped_conv2d *g, const lk_lane *l, const float *x, uint32_t oy,
                         uint32_t ox, uint32_t co) {
    const uint32_t inputs = lk_grouped_inputs(g), first = co / lk_grouped_outputs(g) * inputs;
    slice_sum s;
    slice_start(&s, l->param[1] ? l->param[1][co] : 0.0f);
    for (uint32_t ky = 0; ky < g->conv.kernel_h; ky++) {
        for (uint32_t kx = 0; kx < g->conv.kernel_w; kx++) {
            const float *from = pixel(g, x, oy, ox, ky, kx);
            for (uint32_t ci = 0; ci < inputs; ci++) {
                slice_term(&s, from ? from[first + ci] : 0.0f,
                           l->param[0][weight_at(g, ky, kx, ci, co)]);
            }
        }
    }
    return slice_finish(&s);
}

static uint32_t grouped_conv2d(lk_lane *l, const lk_op *op) {
    const lk_grouped_conv2d *g = &op->grouped;
    const lk_conv2d *c = &g->conv;
    const float *x = l->at[LK_X];
    float *y = l->at[LK_Y];
    uint32_t bad = 0;
    for (uint32_t m = 0; m < l->examples; m++, x += lk_conv2d_in_floats(c)) {
        for (uint64_t i = 0; i < lk_conv2d_out_floats(c); i++) {
            const uint64_t at = i / c->out_c;
            const float sum = output_cell(g, l, x, (uint32_t)(at / c->out_w),
                                          (uint32_t)(at % c->out_w), (uint32_t)(i % c->out_c));
            bad |= lk_not_finite(sum);
            *y++ = c->relu ? lk_relu(sum) : sum;
        }
    }
    return bad;
}

// The output row (or column) that reads input row `in` through kernel row `tap`, -1 if none does.
static int64_t output_of(uint32_t in, uint32_t tap, uint32_t pad, uint32_t stride,
                         uint32_t out_count) {
    const int64_t at = (int64_t)in + pad - tap;
    if (at < 0 || at % stride != 0 || at / stride >= out_count) return -1;
    return at / stride;
}

static float input_cell(const lk_grouped_conv2d *g, const float *w, const float *dy, uint32_t iy,
                        uint32_t ix, uint32_t channel) {
    const lk_conv2d *c = &g->conv;
    const uint32_t inputs = lk_grouped_inputs(g), outputs = lk_grouped_outputs(g);
    const uint32_t first = channel / inputs * outputs;
    slice_sum s;
    slice_start(&s, 0.0f);
    for (uint32_t ky = 0; ky < c->kernel_h; ky++) {
        for (uint32_t kx = 0; kx < c->kernel_w; kx++) {
            const int64_t oy = output_of(iy, ky * g->dilation_h, c->pad_top, c->stride_h, c->out_h);
            const int64_t ox =
                output_of(ix, kx * g->dilation_w, c->pad_left, c->stride_w, c->out_w);
            for (uint32_t o = 0; o < outputs; o++) {
                const float there =
                    oy < 0 || ox < 0 ? 0.0f : dy[(oy * c->out_w + ox) * c->out_c + first + o];
                slice_term(&s, w[weight_at(g, ky, kx, channel % inputs, first + o)], there);
            }
        }
    }
    return slice_finish(&s);
}

static uint32_t grouped_conv2d_input_gradient(lk_lane *l, const lk_op *op) {
    const lk_conv2d *c = &op->conv;
    const float *dy = l->at[LK_DY];
    float *dx = l->at[LK_DX];
    uint32_t bad = 0;
    for (uint32_t m = 0; m < l->examples; m++, dy += lk_conv2d_out_floats(c)) {
        for (uint64_t i = 0; i < lk_conv2d_in_floats(c); i++) {
            const uint64_t at = i / c->in_c;
            const float sum = input_cell(&op->grouped, l->param[0], dy, (uint32_t)(at / c->in_w),
                                         (uint32_t)(at % c->in_w), (uint32_t)(i % c->in_c));
            bad |= lk_not_finite(sum);
            *dx++ = sum;
        }
    }
    return bad;
}

// What one weight sums, or one bias.
typedef struct weight_of {
    uint32_t ky, kx, ci, co;
    bool bias;
} weight_of;

// The sum of a grain: examples, and the positions of y in 2x2 tiles.
static float grain_of(const lk_grouped_conv2d *g, const lk_grain_view *view, const weight_of *v) {
    const lk_conv2d *c = &g->conv;
    const uint32_t terms = lk_conv2d_terms(c), per_slice = LK_SLICE_TERMS / terms;
    const uint32_t channel = v->co / lk_grouped_outputs(g) * lk_grouped_inputs(g) + v->ci;
    slice_sum s;
    slice_start(&s, 0.0f);
    for (uint32_t m = 0; m < view->examples; m++) {
        const float *x = view->x + m * lk_conv2d_in_floats(c);
        const float *dy = view->dy + m * lk_conv2d_out_floats(c);
        if (m > 0 && (per_slice == 0 || m % per_slice == 0)) slice_cut(&s);
        for (uint32_t t = 0; t < terms; t++) {
            const uint32_t wide = (c->out_w + 1) / 2, tile = t / 4;
            const uint32_t oy = 2 * (tile / wide) + t % 4 / 2, ox = 2 * (tile % wide) + t % 2;
            const bool exists = oy < c->out_h && ox < c->out_w;
            const float *from = exists && !v->bias ? pixel(g, x, oy, ox, v->ky, v->kx) : NULL;
            slice_term(&s,
                       v->bias ? 1.0f
                       : from  ? from[channel]
                               : 0.0f,
                       exists ? dy[((uint64_t)oy * c->out_w + ox) * c->out_c + v->co] : 0.0f);
        }
    }
    tree_leaf(&s.tree, s.chain);
    return tree_finish(&s.tree);
}

static float node_of(const lk_grouped_conv2d *g, const lk_lane *l, const weight_of *v) {
    tree_sum t;
    tree_start(&t);
    for (uint32_t i = 0; i < l->grain_count; i++) tree_leaf(&t, grain_of(g, &l->grains[i], v));
    return tree_finish(&t);
}

static uint32_t grouped_conv2d_weight_gradient(lk_lane *l, const lk_op *op) {
    const lk_grouped_conv2d *g = &op->grouped;
    const uint32_t out_c = g->conv.out_c, inputs = lk_grouped_inputs(g);
    for (uint64_t i = 0; i < lk_grouped_weight_floats(g); i++) {
        const uint32_t tap = (uint32_t)(i / out_c / inputs);
        const weight_of v = {tap / g->conv.kernel_w, tap % g->conv.kernel_w,
                             (uint32_t)(i / out_c % inputs), (uint32_t)(i % out_c), false};
        l->sums[0][i] = node_of(g, l, &v);
    }
    for (uint32_t co = 0; l->sums[1] && co < out_c; co++) {
        const weight_of v = {.co = co, .bias = true};
        l->sums[1][co] = node_of(g, l, &v);
    }
    return 0;
}

// --- shapes and parameters -----------------------------------------------------------------------

static lk_status check_groups(lk_builder *b, const lk_layer *l, uint32_t in_c, uint32_t groups,
                              uint32_t filters) {
    if (in_c % groups != 0 || filters % groups != 0) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: groups: found %u, wanted a number that divides both its %u input "
                       "channels and its %u filters",
                       l->name, groups, in_c, filters);
    }
    if ((l->stride_h > 1 || l->stride_w > 1) && (l->dilation_h > 1 || l->dilation_w > 1)) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: strides %u x %u and dilation_rate %u x %u, wanted one of them 1 "
                       "x 1, as Keras has it",
                       l->name, l->stride_h, l->stride_w, l->dilation_h, l->dilation_w);
    }
    return LK_OK;
}

lk_status lk_build_grouped_conv2d(lk_builder *b, const lk_layer *l, uint32_t groups,
                                  uint32_t filters) {
    const lk_shape in = b->input[0].shape;
    const uint32_t by_h = LK_MAX(l->dilation_h, 1u), by_w = LK_MAX(l->dilation_w, 1u);
    lk_layer spread = *l;  // as wide as its cells reach
    lk_shape out = {.c = filters};
    uint32_t top, left;
    if (l->size_h > 0) spread.size_h = (l->size_h - 1) * by_h + 1;
    if (l->size_w > 0) spread.size_w = (l->size_w - 1) * by_w + 1;
    LK_CHECK(lk_build_window(b, &spread, in, &out, &top, &left));
    if (filters == 0) return lk_fail(b->error, LK_BAD_CONFIG, "layer %s: filters is 0", l->name);
    LK_CHECK(check_groups(b, l, in.c, groups, filters));
    lk_build_op(b, &lk_op_grouped_conv2d, b->input[0], out)->grouped =
        (lk_grouped_conv2d){.conv = {.in_h = in.h,
                                     .in_w = in.w,
                                     .in_c = in.c,
                                     .out_h = out.h,
                                     .out_w = out.w,
                                     .out_c = out.c,
                                     .kernel_h = l->size_h,
                                     .kernel_w = l->size_w,
                                     .stride_h = l->stride_h,
                                     .stride_w = l->stride_w,
                                     .pad_top = top,
                                     .pad_left = left,
                                     .use_bias = l->use_bias},
                            .dilation_h = (uint8_t)by_h,
                            .dilation_w = (uint8_t)by_w,
                            .groups = (uint16_t)groups};
    return LK_OK;
}

static lk_status build_depthwise_conv2d(lk_builder *b, const lk_layer *l) {
    const lk_shape in = b->input[0].shape;
    const uint64_t filters = (uint64_t)in.c * l->units;
    if (l->units == 0) {
        return lk_fail(b->error, LK_BAD_CONFIG, "layer %s: depth_multiplier is 0", l->name);
    }
    if (!in.flat && (in.c > UINT16_MAX || filters > 1 << 24)) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: %u input channels and a depth_multiplier of %u, wanted at most "
                       "%u channels and %u filters",
                       l->name, in.c, l->units, UINT16_MAX, 1 << 24);
    }
    return lk_build_grouped_conv2d(b, l, in.flat ? 1 : in.c, (uint32_t)filters);
}

// Fans as Keras counts them: those of the kernel's shape.
static lk_status declare(lk_builder *b, lk_op *op) {
    const lk_conv2d *c = &op->conv;
    const lk_layer *layer = &b->program->spec->model.layers[op->layer];
    const bool depthwise = layer->type == &lk_layer_depthwise_conv2d;
    const uint64_t window = (uint64_t)c->kernel_h * c->kernel_w;
    const uint64_t in = depthwise ? c->in_c : lk_grouped_inputs(&op->grouped);
    const uint64_t out = depthwise ? lk_grouped_outputs(&op->grouped) : c->out_c;
    const lk_param_shape kernel = {.suffix = "kernel",
                                   .rank = 4,
                                   .size = {c->kernel_h, c->kernel_w, in, out},
                                   .fan_in = window * in,
                                   .fan_out = window * out,
                                   .initializer = layer->initializer};
    const lk_param_shape bias = {
        .suffix = "bias", .rank = 1, .size = {c->out_c}, .initializer = &lk_initializer_zeros};
    LK_CHECK(lk_build_param(b, op, 0, &kernel));
    return c->use_bias ? lk_build_param(b, op, 1, &bias) : LK_OK;
}

static bool absorb(const lk_builder *b, lk_op *op, const lk_op *next) {
    (void)b;
    return lk_build_absorb_relu(op, next, &op->conv.relu);
}

static lk_status differentiate(lk_builder *b, uint32_t of) {
    const lk_program *p = b->program;
    lk_build_param_gradient(b, &lk_op_grouped_conv2d_weight_gradient, of, 0, 2);
    const uint32_t at = p->op_count;
    LK_CHECK(lk_build_input_gradient(b, &lk_op_grouped_conv2d_input_gradient, of, 0, false));
    if (p->op_count > at) p->ops[at].param[1] = LK_NONE;
    return LK_OK;
}

// --- descriptors ---------------------------------------------------------------------------------

static lk_flop flop(const lk_op *op) {
    const lk_conv2d *c = &op->conv;
    const uint64_t all = 2ull * lk_grouped_weight_floats(&op->grouped) * c->out_h * c->out_w;
    return (lk_flop){all, all};
}

// Of the input's gradient: the weights in another order.
static uint64_t scratch_floats(const lk_op *op, uint32_t examples) {
    (void)examples;
    return lk_round_up(lk_grouped_weight_floats(&op->grouped), LK_LANES_MAX);
}

const lk_op_type lk_op_grouped_conv2d = {.name = "grouped_conv2d",
                                         .suffix = "",
                                         .number = LK_OP_GROUPED_CONV2D,
                                         .scope = LK_SCOPE_EXAMPLES,
                                         .reference = grouped_conv2d,
                                         .mixed = true,
                                         .flop = LK_RULE(flop),
                                         .absorb = LK_RULE(absorb),
                                         .declare = LK_RULE(declare),
                                         .differentiate = LK_RULE(differentiate)};
const lk_op_type lk_op_grouped_conv2d_input_gradient = {
    .name = "grouped_conv2d_input_gradient",
    .number = LK_OP_GROUPED_CONV2D_INPUT_GRADIENT,
    .scope = LK_SCOPE_EXAMPLES,
    .reference = grouped_conv2d_input_gradient,
    .mixed = true,
    .scratch_floats = LK_RULE(scratch_floats),
    .flop = LK_RULE(flop)};
const lk_op_type lk_op_grouped_conv2d_weight_gradient = {
    .name = "grouped_conv2d_weight_gradient",
    .number = LK_OP_GROUPED_CONV2D_WEIGHT_GRADIENT,
    .scope = LK_SCOPE_GRAINS,
    .reference = grouped_conv2d_weight_gradient,
    .mixed = true,
    .flop = LK_RULE(flop)};

const lk_layer_type lk_layer_depthwise_conv2d = {
    .inputs = 1, .ops_max = 4, .tensors_max = 6, .params_max = 2, .build = build_depthwise_conv2d};

static const lk_setting keys[] = {
    LK_KEY_ACTIVATION,
    {.name = "depth_multiplier",
     .kind = LK_SETTING_U32,
     .offset = offsetof(lk_layer, units),
     .field = "units",
     .most = 1 << 24,
     .constant = 1,
     .meaning = "channels of the output that each channel of the input makes"},
    LK_KEY_DILATION_RATE,
    LK_KEYS_KERNEL_INITIALIZER,
    LK_KEY_KERNEL_REGULARIZER,
    LK_KEY_KERNEL_SIZE,
    LK_KEY_PADDING,
    LK_KEY_STRIDES,
    LK_KEY_USE_BIAS("channel"),
};

void lk_export_grouped_conv2d(lk_export *e) {
    const lk_grouped_conv2d *g = &e->op->grouped;
    const lk_conv2d *c = &g->conv;
    const int64_t size[] = {c->kernel_h, c->kernel_w}, strides[] = {c->stride_h, c->stride_w};
    const int64_t dilations[] = {g->dilation_h, g->dilation_w};
    const int64_t pads[] = {c->pad_top, c->pad_left,
                            lk_export_pad_end(c->in_h, (c->kernel_h - 1) * g->dilation_h + 1,
                                              c->stride_h, c->out_h, c->pad_top),
                            lk_export_pad_end(c->in_w, (c->kernel_w - 1) * g->dilation_w + 1,
                                              c->stride_w, c->out_w, c->pad_left)};
    lk_export_node *node = lk_export_node_add(e, "Conv");
    node->parameters = LK_EXPORT_PARAMETERS;
    lk_export_ints(node, "kernel_shape", 2, size);
    lk_export_ints(node, "strides", 2, strides);
    lk_export_ints(node, "pads", 4, pads);
    lk_export_ints(node, "dilations", 2, dilations);
    lk_export_int(node, "group", g->groups);
    lk_export_image(e, c->out_c);
}

static void say_depthwise_conv2d(lk_export *e, const lk_layer *l) {
    (void)l;
    lk_export_grouped_conv2d(e);
}

const lk_layer_words lk_layer_words_depthwise_conv2d = {
    .type = &lk_layer_depthwise_conv2d,
    .name = "depthwise_conv2d",
    .keys = keys,
    .key_count = LK_COUNT(keys),
    .meaning = "convolution of each channel by itself",
    .say_export = say_depthwise_conv2d};
