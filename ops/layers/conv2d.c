// conv2d.c - the convolution, alone and with a 2x2 max-pool of stride 2 behind it: formulas,
// shapes, the reference, gradients. Freestanding. ARITHMETIC.md 3, 5 and 6.
//
//   y[m][oy][ox][co] = sum over (ky, kx, ci), ascending, of
//       x[m][oy*stride_h + ky - pad_top][ox*stride_w + kx - pad_left][ci] * w[ky][kx][ci][co],
//       cells outside the image being zero terms; bias[co] starts slice 0; then ReLU if c->relu
//
//   conv2d+pool: of each 2x2 tile of y the greatest (by the sums before ReLU, the first of equals);
//       argmax: which of the cells 0..3. Rows and columns left over are dropped, and not computed.
//
//   dx[m][iy][ix][ci] = sum over (ky, kx, co), ascending, of w[ky][kx][ci][co] * dy[m][oy][ox][co],
//       oy*stride_h + ky - pad_top = iy, likewise ox; positions that do not exist are zero terms;
//       then +0 where a mask is given and not mask > 0. Behind a pool dy goes to the winning cell,
//       the other cells have +0.
//
//   dw, db: the node of the grains' sums over (example, position) of x * dy, per weight, and of dy,
//       per bias. Terms of a grain are example-major; the positions of an example run in 2x2 tiles
//       (tile row, tile column, row in the tile, column in the tile), lk_conv2d_terms() of them. A
//       slice is LK_SLICE_TERMS / terms whole examples; if that is 0, every example is cut into
//       slices of LK_SLICE_TERMS terms by itself (its last slice may be short).
//
// x (m, in_h, in_w, in_c), w (kernel_h, kernel_w, in_c, out_c), bias (out_c) or NULL,
// y (m, out_h, out_w, out_c), pooled y and argmax (m, out_h/2, out_w/2, out_c)
#include "ops/cpu/conv_shape.h"
#include "ops/graph/build.h"
#include "ops/layers/export.h"
#include "ops/layers/keys.h"
#include "ops/layers/sums.h"

// --- the reference -------------------------------------------------------------------------------

// The pixel of one example that tap (ky, kx) of output (oy, ox) reads; +0 outside the image.
static float pixel_of(const lk_conv2d *c, lk_dtype dtype, const void *x, uint64_t at, uint32_t oy,
                      uint32_t ox, uint32_t ky, uint32_t kx, uint32_t ci) {
    int64_t iy = (int64_t)oy * c->stride_h + ky - c->pad_top;
    int64_t ix = (int64_t)ox * c->stride_w + kx - c->pad_left;
    if (iy < 0 || ix < 0 || iy >= c->in_h || ix >= c->in_w) return 0.0f;
    return lk_value_at(dtype, x, at + ((uint64_t)iy * c->in_w + (uint64_t)ix) * c->in_c + ci);
}

static float pixel(const lk_conv2d *c, const float *x, uint32_t oy, uint32_t ox, uint32_t ky,
                   uint32_t kx, uint32_t ci) {
    return pixel_of(c, LK_F32, x, 0, oy, ox, ky, kx, ci);
}

static uint64_t weight_at(const lk_conv2d *c, uint32_t ky, uint32_t kx, uint32_t ci, uint32_t co) {
    return (((uint64_t)ky * c->kernel_w + kx) * c->in_c + ci) * c->out_c + co;
}

// The finished sum of one output cell of one example, before ReLU.
static float conv2d_cell(const lk_conv2d *c, const float *x, const float *w, const float *bias,
                         uint32_t oy, uint32_t ox, uint32_t co) {
    slice_sum s;
    slice_start(&s, bias ? bias[co] : 0.0f);
    for (uint32_t ky = 0; ky < c->kernel_h; ky++) {
        for (uint32_t kx = 0; kx < c->kernel_w; kx++) {
            for (uint32_t ci = 0; ci < c->in_c; ci++) {
                slice_term(&s, pixel(c, x, oy, ox, ky, kx, ci), w[weight_at(c, ky, kx, ci, co)]);
            }
        }
    }
    return slice_finish(&s);
}

static uint32_t conv2d_forward(lk_lane *l, const lk_op *op) {
    const lk_conv2d *c = &op->conv;
    const float *x = l->at[LK_X];
    float *y = l->at[LK_Y];
    uint32_t bad = 0;
    for (uint32_t m = 0; m < l->examples; m++, x += lk_conv2d_in_floats(c)) {
        for (uint32_t oy = 0; oy < c->out_h; oy++) {
            for (uint32_t ox = 0; ox < c->out_w; ox++) {
                for (uint32_t co = 0; co < c->out_c; co++) {
                    float sum = conv2d_cell(c, x, l->param[0], l->param[1], oy, ox, co);
                    bad |= lk_not_finite(sum);
                    *y++ = c->relu ? lk_relu(sum) : sum;
                }
            }
        }
    }
    return bad;
}

// The winner of one 2x2 tile, by the sums before ReLU: the first of equals.
static float pooled_cell(const lk_conv2d *c, const lk_lane *l, const float *x, uint32_t py,
                         uint32_t px, uint32_t co, uint8_t *winner, uint32_t *bad) {
    float best = 0.0f;
    for (uint32_t cell = 0; cell < 4; cell++) {
        float sum =
            conv2d_cell(c, x, l->param[0], l->param[1], 2 * py + cell / 2, 2 * px + cell % 2, co);
        *bad |= lk_not_finite(sum);
        if (cell == 0 || sum > best) {
            best = sum;
            *winner = (uint8_t)cell;
        }
    }
    return best;
}

static uint32_t conv2d_pool_forward(lk_lane *l, const lk_op *op) {
    const lk_conv2d *c = &op->conv;
    const float *x = l->at[LK_X];
    float *y = l->at[LK_Y];
    uint8_t *argmax = l->at[LK_AUX];
    uint32_t bad = 0;
    for (uint32_t m = 0; m < l->examples; m++, x += lk_conv2d_in_floats(c)) {
        for (uint32_t py = 0; py < c->out_h / 2; py++) {
            for (uint32_t px = 0; px < c->out_w / 2; px++) {
                for (uint32_t co = 0; co < c->out_c; co++) {
                    float best = pooled_cell(c, l, x, py, px, co, argmax++, &bad);
                    *y++ = c->relu ? lk_relu(best) : best;
                }
            }
        }
    }
    return bad;
}

// Gradient of output cell (oy, ox, co) of one example, from whole or from pooled gradients.
static float output_gradient_of(const lk_conv2d *c, lk_dtype dtype, const void *dy, uint64_t first,
                                const uint8_t *argmax, uint32_t oy, uint32_t ox, uint32_t co) {
    const uint64_t whole = ((uint64_t)oy * c->out_w + ox) * c->out_c + co;
    if (!argmax) return lk_value_at(dtype, dy, first + whole);
    uint32_t py = oy / 2, px = ox / 2;
    if (py >= c->out_h / 2 || px >= c->out_w / 2) return 0.0f;
    uint64_t at = ((uint64_t)py * (c->out_w / 2) + px) * c->out_c + co;
    return argmax[at] == oy % 2 * 2 + ox % 2 ? lk_value_at(dtype, dy, first + at) : 0.0f;
}

static float output_gradient(const lk_conv2d *c, const float *dy, const uint8_t *argmax,
                             uint32_t oy, uint32_t ox, uint32_t co) {
    return output_gradient_of(c, LK_F32, dy, 0, argmax, oy, ox, co);
}

// The output row (or column) that reads input row `in` through kernel row `tap`; -1 if there is
// none.
static int64_t output_of(uint32_t in, uint32_t tap, uint32_t pad, uint32_t stride,
                         uint32_t out_count) {
    int64_t at = (int64_t)in + pad - tap;
    if (at < 0 || at % stride != 0 || at / stride >= out_count) return -1;
    return at / stride;
}

static float input_cell(const lk_conv2d *c, const float *w, const float *dy, const uint8_t *argmax,
                        uint32_t iy, uint32_t ix, uint32_t ci) {
    slice_sum s;
    slice_start(&s, 0.0f);
    for (uint32_t ky = 0; ky < c->kernel_h; ky++) {
        for (uint32_t kx = 0; kx < c->kernel_w; kx++) {
            int64_t oy = output_of(iy, ky, c->pad_top, c->stride_h, c->out_h);
            int64_t ox = output_of(ix, kx, c->pad_left, c->stride_w, c->out_w);
            for (uint32_t co = 0; co < c->out_c; co++) {
                float g = oy < 0 || ox < 0
                              ? 0.0f
                              : output_gradient(c, dy, argmax, (uint32_t)oy, (uint32_t)ox, co);
                slice_term(&s, w[weight_at(c, ky, kx, ci, co)], g);
            }
        }
    }
    return slice_finish(&s);
}

static uint32_t input_gradient(const lk_conv2d *c, uint32_t m_count, const float *w,
                               const float *dy, uint64_t dy_floats, const uint8_t *argmax,
                               const float *mask, float *dx) {
    uint32_t bad = 0;
    uint64_t at = 0;
    for (uint32_t m = 0; m < m_count; m++) {
        for (uint32_t iy = 0; iy < c->in_h; iy++) {
            for (uint32_t ix = 0; ix < c->in_w; ix++) {
                for (uint32_t ci = 0; ci < c->in_c; ci++, at++) {
                    float sum = input_cell(c, w, dy, argmax, iy, ix, ci);
                    bad |= lk_not_finite(sum);
                    dx[at] = !mask || mask[at] > 0.0f ? sum : 0.0f;
                }
            }
        }
        dy += dy_floats;
        if (argmax) argmax += dy_floats;
    }
    return bad;
}

static uint32_t conv2d_input_gradient(lk_lane *l, const lk_op *op) {
    return input_gradient(&op->conv, l->examples, l->param[0], l->at[LK_DY],
                          lk_conv2d_out_floats(&op->conv), NULL, l->at[LK_MASK], l->at[LK_DX]);
}

static uint32_t conv2d_pool_input_gradient(lk_lane *l, const lk_op *op) {
    return input_gradient(&op->conv, l->examples, l->param[0], l->at[LK_DY],
                          lk_conv2d_pooled_floats(&op->conv), l->at[LK_AUX], l->at[LK_MASK],
                          l->at[LK_DX]);
}

// What one weight (or, with bias set, one bias) of a convolution sums.
typedef struct weight_of {
    uint32_t ky, kx, ci, co;
    bool bias, pooled;
    lk_dtype x, dy;  // of the grains
} weight_of;

// Adds the terms of one example, in tile order, to the slices of its grain.
static void weight_terms(const lk_conv2d *c, const lk_grain_view *g, uint32_t m, const weight_of *v,
                         slice_sum *s) {
    const uint64_t x_at = m * lk_conv2d_in_floats(c);
    const uint64_t dy_at =
        m * (v->pooled ? lk_conv2d_pooled_floats(c) : lk_conv2d_out_floats(c));
    const uint8_t *argmax = v->pooled ? g->argmax + dy_at : NULL;
    for (uint32_t ty = 0; ty < c->out_h; ty += 2) {
        for (uint32_t tx = 0; tx < c->out_w; tx += 2) {
            for (uint32_t cell = 0; cell < 4; cell++) {
                uint32_t oy = ty + cell / 2, ox = tx + cell % 2;
                bool exists = oy < c->out_h && ox < c->out_w;
                float dy_cell = 0.0f, x_cell = v->bias ? 1.0f : 0.0f;
                if (exists) {
                    dy_cell = output_gradient_of(c, v->dy, g->dy, dy_at, argmax, oy, ox, v->co);
                }
                if (exists && !v->bias) {
                    x_cell = pixel_of(c, v->x, g->x, x_at, oy, ox, v->ky, v->kx, v->ci);
                }
                slice_term(s, x_cell, dy_cell);
            }
        }
    }
}

static float weight_grain(const lk_conv2d *c, const lk_grain_view *g, const weight_of *v) {
    uint32_t terms = lk_conv2d_terms(c), per_slice = LK_SLICE_TERMS / terms;
    slice_sum s;
    slice_start(&s, 0.0f);
    for (uint32_t m = 0; m < g->examples; m++) {
        // A slice ends after per_slice whole examples; an example longer than a slice starts one of
        // its own.
        if (m > 0 && (per_slice == 0 || m % per_slice == 0)) slice_cut(&s);
        weight_terms(c, g, m, v, &s);
    }
    tree_leaf(&s.tree, s.chain);
    return tree_finish(&s.tree);
}

static float weight_node(const lk_conv2d *c, uint32_t grain_count, const lk_grain_view *grains,
                         const weight_of *v) {
    tree_sum t;
    tree_start(&t);
    for (uint32_t g = 0; g < grain_count; g++) tree_leaf(&t, weight_grain(c, &grains[g], v));
    return tree_finish(&t);
}

static void weight_gradient(const lk_conv2d *c, const lk_lane *l, bool pooled) {
    const lk_dtype x = lk_lane_x_is_half(l) ? l->half->dtype : LK_F32;
    const lk_dtype dy = lk_lane_dy_is_half(l) ? l->half->dtype : LK_F32;
    float *dw = l->sums[0], *db = l->sums[1];
    for (uint32_t ky = 0; ky < c->kernel_h; ky++) {
        for (uint32_t kx = 0; kx < c->kernel_w; kx++) {
            for (uint32_t ci = 0; ci < c->in_c; ci++) {
                for (uint32_t co = 0; co < c->out_c; co++) {
                    weight_of v = {ky, kx, ci, co, false, pooled, x, dy};
                    dw[weight_at(c, ky, kx, ci, co)] =
                        weight_node(c, l->grain_count, l->grains, &v);
                }
            }
        }
    }
    for (uint32_t co = 0; db && co < c->out_c; co++) {
        weight_of v = {0, 0, 0, co, true, pooled, x, dy};
        db[co] = weight_node(c, l->grain_count, l->grains, &v);
    }
}

static uint32_t conv2d_weight_gradient(lk_lane *l, const lk_op *op) {
    weight_gradient(&op->conv, l, false);
    return 0;
}

static uint32_t conv2d_pool_weight_gradient(lk_lane *l, const lk_op *op) {
    weight_gradient(&op->conv, l, true);
    return 0;
}

// --- shapes and parameters -----------------------------------------------------------------------

static lk_status build_conv2d(lk_builder *b, const lk_layer *l) {
    const lk_shape in = b->input[0].shape;
    lk_shape out = {.c = l->units};
    uint32_t pad_top, pad_left;
    if (l->groups > 1 || l->dilation_h > 1 || l->dilation_w > 1) {
        return lk_build_grouped_conv2d(b, l, LK_MAX(l->groups, 1u), l->units);
    }
    LK_CHECK(lk_build_window(b, l, in, &out, &pad_top, &pad_left));
    if (l->units == 0) return lk_fail(b->error, LK_BAD_CONFIG, "layer %s: filters is 0", l->name);
    lk_build_op(b, &lk_op_conv2d, b->input[0], out)->conv = (lk_conv2d){.in_h = in.h,
                                                                        .in_w = in.w,
                                                                        .in_c = in.c,
                                                                        .out_h = out.h,
                                                                        .out_w = out.w,
                                                                        .out_c = out.c,
                                                                        .kernel_h = l->size_h,
                                                                        .kernel_w = l->size_w,
                                                                        .stride_h = l->stride_h,
                                                                        .stride_w = l->stride_w,
                                                                        .pad_top = pad_top,
                                                                        .pad_left = pad_left,
                                                                        .use_bias = l->use_bias};
    return LK_OK;
}

static bool pool_fits(const lk_conv2d *c, const lk_pool2d *o);

// Is this output taken by a 2x2 pool alone, perhaps through a ReLU, which is then in *relu? The
// answer follows the model alone, whether or not one op does it all.
static bool find_pool(const lk_builder *b, const lk_op *op, lk_op **relu) {
    lk_op *ops = b->program->ops;
    const uint32_t next = lk_build_only_user(b, (uint32_t)(op - ops));
    *relu = next != LK_NONE && ops[next].type == &lk_op_relu && !op->relu ? &ops[next] : NULL;
    const uint32_t pool = *relu ? lk_build_only_user(b, next) : next;
    return pool != LK_NONE && ops[pool].type == &lk_op_max_pool2d &&
           pool_fits(&op->conv, &ops[pool].pool);
}

// Mixed precision: what the pool drops is not looked at.
static void note_odd(lk_builder *b, lk_op *op) {
    lk_op *relu;
    if (!find_pool(b, op, &relu)) return;
    op->odd_apart = true;
    if (!relu) return;
    relu->odd_apart = true;
    relu->conv = op->conv;
}

// The fast arithmetic: does a convolution that a 2x2 pool follows stay with the strict kernels,
// which never store the picture before the pool? They multiply in fp32; cuBLAS is many times as
// fast, but wants the windows of the image and gives the whole picture, which go through memory
// several times. So few channels do, many do not: the shorter of two estimates for an H100, of a
// position of the output in attoseconds, by 60 TFLOP/s in fp32, 700 in bf16 or fp16, 350 in tf32,
// and 3.35 TB/s.
//
//   strict   whole tiles of 16 columns; of the gradient of weights the routed quarter; where the
//            input has a gradient, all of its positions
//   cuBLAS   windows written and read, forward and for the weights; where the input has a gradient,
//            that of the windows; the picture written, finished and pooled; its gradient unpooled,
//            masked, summed for the bias, and made an operand and read
//
// Sizes that would leave 64 bits are left to cuBLAS.
static bool pools_strictly(const lk_builder *b, const lk_op *op) {
    enum { FLOP = 16667, PRODUCT = 1429, BYTE = 298507 };
    const lk_program *p = b->program;
    const lk_conv2d *c = &op->conv;
    const bool half = lk_dtype_is_half(lk_fast_dtype(p->spec->model.fast_precision));
    const uint64_t gradient = p->ops[op->input[0]].type != &lk_op_load, out = c->out_c;
    const uint64_t window = (uint64_t)c->kernel_h * c->kernel_w, terms = window * c->in_c;
    const uint64_t strides = (uint64_t)c->stride_h * c->stride_w;
    if (terms > UINT32_MAX || terms * out > UINT32_MAX || strides > 1024) return false;
    const uint64_t input = window * out * lk_round_up(c->in_c, 16) * strides;
    const uint64_t strict =
        2 * terms * lk_round_up(out, 16) + terms * out / 2 + 2 * gradient * input;
    const uint64_t products = 2 * terms * out * (2 + gradient) * (half ? 1 : 2);
    const uint64_t bytes =
        terms * ((half ? 8 : 16) + 8 * gradient) + out * (36 + (half ? 8 : 4) * (1 + gradient));
    return strict * FLOP <= products * PRODUCT + bytes * BYTE;
}

static void note_strict(const lk_builder *b, lk_op *op) {
    lk_op *relu;
    if (b->program->spec->model.fast_precision == LK_STRICT) return;
    op->strict = op->type == &lk_op_conv2d_pool ||
                 (op->type == &lk_op_conv2d && find_pool(b, op, &relu) && pools_strictly(b, op));
}

static lk_status declare_conv2d(lk_builder *b, lk_op *op) {
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
        .suffix = "bias", .rank = 1, .size = {c->out_c}, .initializer = &lk_initializer_zeros};
    if (op->dtype != LK_F32 && op->type == &lk_op_conv2d) note_odd(b, op);
    note_strict(b, op);
    LK_CHECK(lk_build_param(b, op, 0, &kernel));
    return c->use_bias ? lk_build_param(b, op, 1, &bias) : LK_OK;
}

static lk_status declare_conv2d_pool(lk_builder *b, lk_op *op) {
    LK_CHECK(lk_build_rows(b, op, "/argmax", LK_CLASS_ACTIVATION, LK_U8, op->floats,
                           &op->tensor[LK_AUX]));
    return declare_conv2d(b, op);
}

// --- fusion --------------------------------------------------------------------------------------

// True where max-pooling `o` of the whole output of `c` is the 2x2, stride 2 pooling of the fused
// kernels.
static bool pool_fits(const lk_conv2d *c, const lk_pool2d *o) {
    return o->pool_h == 2 && o->pool_w == 2 && o->stride_h == 2 && o->stride_w == 2 &&
           o->pad_top == 0 && o->pad_left == 0 && o->out_h == c->out_h / 2 &&
           o->out_w == c->out_w / 2;
}

// A ReLU, then a pool.
static bool absorb(const lk_builder *b, lk_op *op, const lk_op *next) {
    if (lk_build_absorb_relu(op, next, &op->conv.relu)) return true;
    if (next->type != &lk_op_max_pool2d || !pool_fits(&op->conv, &next->pool)) return false;
    if (b->program->spec->model.fast_precision != LK_STRICT && !pools_strictly(b, op)) return false;
    op->type = &lk_op_conv2d_pool;
    op->floats = lk_conv2d_pooled_floats(&op->conv);
    return true;
}

// --- gradients -----------------------------------------------------------------------------------

static lk_status differentiate_conv2d(lk_builder *b, uint32_t of) {
    lk_build_param_gradient(b, &lk_op_conv2d_weight_gradient, of, 0, 2);
    return lk_build_input_gradient(b, &lk_op_conv2d_input_gradient, of, 0, true);
}

static lk_status differentiate_conv2d_pool(lk_builder *b, uint32_t of) {
    lk_build_param_gradient(b, &lk_op_conv2d_pool_weight_gradient, of, 0, 2);
    return lk_build_input_gradient(b, &lk_op_conv2d_pool_input_gradient, of, 0, true);
}

// --- descriptors ---------------------------------------------------------------------------------

// Packed weights and an image, or an image and the sums of a gradient; see conv_shape.h.
static uint64_t scratch_floats(const lk_op *op, uint32_t examples) {
    (void)examples;
    return lk_conv_scratch_floats(&op->conv);
}

// Of a gradient of weights that reads 16 bits: image, sums, and dy of one example, widened.
static uint64_t weight_half(const lk_conv2d *c, uint64_t dy) {
    return lk_conv_image_floats(c) + lk_conv_sum_floats(c) + lk_round_up(dy, LK_LANES_MAX);
}
static uint64_t gradient_half(const lk_op *op, uint32_t examples) {
    (void)examples;
    return weight_half(&op->conv, lk_conv2d_out_floats(&op->conv));
}
static uint64_t pool_gradient_half(const lk_op *op, uint32_t examples) {
    (void)examples;
    return weight_half(&op->conv, lk_conv2d_pooled_floats(&op->conv));
}

static lk_flop conv_flop(const lk_conv2d *c, bool routed) {
    const uint64_t position = 2ull * c->kernel_h * c->kernel_w * c->in_c * c->out_c;
    const uint64_t all = position * c->out_h * c->out_w;
    return (lk_flop){all, routed ? position * (c->out_h / 2) * (c->out_w / 2) : all};
}
static lk_flop flop(const lk_op *op) { return conv_flop(&op->conv, false); }
static lk_flop routed_flop(const lk_op *op) { return conv_flop(&op->conv, true); }

const lk_op_type lk_op_conv2d = {.name = "conv2d",
                                 .number = LK_OP_CONV2D,
                                 .scope = LK_SCOPE_EXAMPLES,
                                 .reference = conv2d_forward,
                                 .scratch_floats = LK_RULE(scratch_floats),
                                 .flop = LK_RULE(flop),
                                 .absorb = LK_RULE(absorb),
                                 .declare = LK_RULE(declare_conv2d),
                                 .differentiate = LK_RULE(differentiate_conv2d),
                                 .mixed = true};
const lk_op_type lk_op_conv2d_pool = {.name = "conv2d+pool",
                                      .number = LK_OP_CONV2D_POOL,
                                      .scope = LK_SCOPE_EXAMPLES,
                                      .reference = conv2d_pool_forward,
                                      .scratch_floats = LK_RULE(scratch_floats),
                                      .flop = LK_RULE(flop),
                                      .declare = LK_RULE(declare_conv2d_pool),
                                      .differentiate = LK_RULE(differentiate_conv2d_pool),
                                      .mixed = true,
                                      .narrows = true,
                                      .apart = &lk_op_conv2d,
                                      .half_floats = LK_RULE(scratch_floats)};
const lk_op_type lk_op_conv2d_input_gradient = {.name = "conv2d_input_gradient",
                                                .number = LK_OP_CONV2D_INPUT_GRADIENT,
                                                .scope = LK_SCOPE_EXAMPLES,
                                                .reference = conv2d_input_gradient,
                                                .scratch_floats = LK_RULE(scratch_floats),
                                                .flop = LK_RULE(flop),
                                                .mixed = true};
const lk_op_type lk_op_conv2d_pool_input_gradient = {.name = "conv2d+pool_input_gradient",
                                                     .number = LK_OP_CONV2D_POOL_INPUT_GRADIENT,
                                                     .scope = LK_SCOPE_EXAMPLES,
                                                     .reference = conv2d_pool_input_gradient,
                                                     .scratch_floats = LK_RULE(scratch_floats),
                                                     .flop = LK_RULE(routed_flop),
                                                     .mixed = true};
const lk_op_type lk_op_conv2d_weight_gradient = {.name = "conv2d_weight_gradient",
                                                 .number = LK_OP_CONV2D_WEIGHT_GRADIENT,
                                                 .scope = LK_SCOPE_GRAINS,
                                                 .reference = conv2d_weight_gradient,
                                                 .scratch_floats = LK_RULE(scratch_floats),
                                                 .flop = LK_RULE(flop),
                                                 .mixed = true,
                                                 .half_floats = LK_MIXED_RULE(gradient_half)};
const lk_op_type lk_op_conv2d_pool_weight_gradient = {.name = "conv2d+pool_weight_gradient",
                                                      .number = LK_OP_CONV2D_POOL_WEIGHT_GRADIENT,
                                                      .scope = LK_SCOPE_GRAINS,
                                                      .reference = conv2d_pool_weight_gradient,
                                                      .scratch_floats = LK_RULE(scratch_floats),
                                                      .flop = LK_RULE(routed_flop),
                                                      .mixed = true,
                                                      .half_floats =
                                                          LK_MIXED_RULE(pool_gradient_half)};

const lk_layer_type lk_layer_conv2d = {
    .inputs = 1, .ops_max = 4, .tensors_max = 6, .params_max = 2, .build = build_conv2d};

static const lk_setting keys[] = {
    LK_KEY_ACTIVATION,
    LK_KEY_DILATION_RATE,
    {.name = "filters",
     .kind = LK_SETTING_U32,
     .offset = offsetof(lk_layer, units),
     .field = "units",
     .required = true,
     .most = 1 << 24,
     .meaning = "channels of the output"},
    {.name = "groups",
     .kind = LK_SETTING_U32,
     .offset = offsetof(lk_layer, groups),
     .most = UINT16_MAX,
     .constant = 1,
     .meaning = "parts of the channels, each with filters of its own"},
    LK_KEYS_KERNEL_INITIALIZER,
    LK_KEY_KERNEL_REGULARIZER,
    LK_KEY_KERNEL_SIZE,
    LK_KEY_PADDING,
    LK_KEY_SPECTRAL_NORMALIZATION,
    LK_KEY_STRIDES,
    LK_KEY_USE_BIAS("channel"),
};

static void say_conv2d(lk_export *e, const lk_layer *l) {
    if (e->op->type == &lk_op_grouped_conv2d) {
        lk_export_grouped_conv2d(e);
        return;
    }
    const lk_conv2d *c = &e->op->conv;
    const int64_t size[] = {c->kernel_h, c->kernel_w}, strides[] = {c->stride_h, c->stride_w};
    const int64_t pads[] = {
        c->pad_top, c->pad_left,
        lk_export_pad_end(c->in_h, c->kernel_h, c->stride_h, c->out_h, c->pad_top),
        lk_export_pad_end(c->in_w, c->kernel_w, c->stride_w, c->out_w, c->pad_left)};
    lk_export_node *node = lk_export_node_add(e, "Conv");
    node->parameters = LK_EXPORT_PARAMETERS;
    lk_export_ints(node, "kernel_shape", 2, size);
    lk_export_ints(node, "strides", 2, strides);
    lk_export_ints(node, "pads", 4, pads);
    lk_export_image(e, l->units);
}

const lk_layer_words lk_layer_words_conv2d = {.type = &lk_layer_conv2d,
                                              .name = "conv2d",
                                              .keys = keys,
                                              .key_count = LK_COUNT(keys),
                                              .meaning = "convolution over images",
                                              .say_export = say_conv2d};
