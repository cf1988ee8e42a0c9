// pool.c - pooling over images: formulas, shapes, the reference, gradients. Freestanding.
// ARITHMETIC.md 3 and 5.
//
//   max_pool2d   y = the greatest cell of the window, argmax = its index in the window (row-major,
//                the first of equals); padded cells never win
//                dx = sum of the dy whose window chose this cell, in ascending order of (oy, ox),
//                starting from +0
//
//   average_pool2d   y = sum of 1 * the cells of the window that are in the image, times
//                        1 / float(how many they are)
//                    dx = sum of the windows' dy times the same, in ascending order of (oy, ox),
//                    starting from +0
//   global_average_pool2d   the same; one window, the whole image, gives (channels)
//
// x and dx (m, in_h, in_w, channels), y, dy and argmax (m, out_h, out_w, channels)
#include "ops/graph/build.h"
#include "ops/layers/export.h"
#include "ops/layers/sums.h"

// Index in x of cell `cell` of the window of (oy, ox), or -1 where padding lies.
static int64_t window_cell(const lk_pool2d *p, uint32_t oy, uint32_t ox, uint32_t channel,
                           uint32_t cell) {
    int64_t iy = (int64_t)oy * p->stride_h + cell / p->pool_w - p->pad_top;
    int64_t ix = (int64_t)ox * p->stride_w + cell % p->pool_w - p->pad_left;
    if (iy < 0 || ix < 0 || iy >= p->in_h || ix >= p->in_w) return -1;
    return (iy * p->in_w + ix) * p->channels + channel;
}

static uint32_t max_pool_forward(lk_lane *l, const lk_op *op) {
    const lk_pool2d *p = &op->pool;
    const float *x = l->at[LK_X];
    float *y = l->at[LK_Y];
    uint16_t *argmax = l->at[LK_AUX];
    for (uint32_t m = 0; m < l->examples; m++, x += (uint64_t)p->in_h * p->in_w * p->channels) {
        for (uint32_t oy = 0; oy < p->out_h; oy++) {
            for (uint32_t ox = 0; ox < p->out_w; ox++) {
                for (uint32_t channel = 0; channel < p->channels; channel++) {
                    bool some = false;
                    float best = 0.0f;
                    uint32_t winner = 0;
                    for (uint32_t cell = 0; cell < p->pool_h * p->pool_w; cell++) {
                        int64_t at = window_cell(p, oy, ox, channel, cell);
                        if (at < 0 || (some && !(x[at] > best))) continue;
                        best = x[at];
                        winner = cell;
                        some = true;
                    }
                    *y++ = best;
                    *argmax++ = (uint16_t)winner;
                }
            }
        }
    }
    return 0;
}

static uint32_t max_pool_backward(lk_lane *l, const lk_op *op) {
    const lk_pool2d *p = &op->pool;
    const float *dy = l->at[LK_DY];
    const uint16_t *argmax = l->at[LK_AUX];
    float *dx = l->at[LK_DX];
    uint64_t in_floats = (uint64_t)p->in_h * p->in_w * p->channels;
    uint32_t bad = 0;
    for (uint32_t m = 0; m < l->examples; m++, dx += in_floats) {
        for (uint64_t i = 0; i < in_floats; i++) dx[i] = 0.0f;
        for (uint32_t oy = 0; oy < p->out_h; oy++) {
            for (uint32_t ox = 0; ox < p->out_w; ox++) {
                for (uint32_t channel = 0; channel < p->channels; channel++) {
                    int64_t at = window_cell(p, oy, ox, channel, *argmax++);
                    dx[at] = dx[at] + *dy++;
                }
            }
        }
        for (uint64_t i = 0; i < in_floats; i++) bad |= lk_not_finite(dx[i]);
    }
    return bad;
}

static lk_status build_max_pool2d(lk_builder *b, const lk_layer *l) {
    const lk_shape in = b->input[0].shape;
    lk_shape out = {.c = in.c};
    uint32_t pad_top, pad_left;
    LK_CHECK(lk_build_window(b, l, in, &out, &pad_top, &pad_left));
    if ((uint64_t)l->size_h * l->size_w > 65536) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: a pool of %u x %u, wanted at most 65,536 cells", l->name,
                       l->size_h, l->size_w);
    }
    lk_build_op(b, &lk_op_max_pool2d, b->input[0], out)->pool = (lk_pool2d){.in_h = in.h,
                                                                            .in_w = in.w,
                                                                            .channels = in.c,
                                                                            .out_h = out.h,
                                                                            .out_w = out.w,
                                                                            .pool_h = l->size_h,
                                                                            .pool_w = l->size_w,
                                                                            .stride_h = l->stride_h,
                                                                            .stride_w = l->stride_w,
                                                                            .pad_top = pad_top,
                                                                            .pad_left = pad_left};
    return LK_OK;
}

static lk_status declare(lk_builder *b, lk_op *op) {
    return lk_build_rows(b, op, "/argmax", LK_CLASS_ACTIVATION, LK_U16, op->floats,
                         &op->tensor[LK_AUX]);
}

static lk_status differentiate(lk_builder *b, uint32_t of) {
    return lk_build_input_gradient(b, &lk_op_max_pool2d_backward, of, 0, false);
}

const lk_op_type lk_op_max_pool2d = {.name = "max_pool2d",
                                     .number = LK_OP_MAX_POOL2D,
                                     .scope = LK_SCOPE_EXAMPLES,
                                     .reference = max_pool_forward,
                                     .declare = LK_RULE(declare),
                                     .differentiate = LK_RULE(differentiate),
                                     .mixed = true};
const lk_op_type lk_op_max_pool2d_backward = {.name = "max_pool2d_backward",
                                              .number = LK_OP_MAX_POOL2D_BACKWARD,
                                              .scope = LK_SCOPE_EXAMPLES,
                                              .reference = max_pool_backward,
                                              .mixed = true};

const lk_layer_type lk_layer_max_pool2d = {
    .inputs = 1, .ops_max = 2, .tensors_max = 3, .build = build_max_pool2d};

static const lk_setting keys[] = {
    {.name = "padding",
     .kind = LK_SETTING_PADDING,
     .offset = offsetof(lk_layer, padding),
     .constant = LK_PADDING_VALID,
     .meaning = "windows over the border, or none"},
    {.name = "pool_size",
     .kind = LK_SETTING_PAIR,
     .offset = offsetof(lk_layer, size_h),
     .field = "size",
     .required = true,
     .most = 1 << 20,
     .meaning = "rows and columns of the window"},
    {.name = "strides",
     .kind = LK_SETTING_PAIR,
     .offset = offsetof(lk_layer, stride_h),
     .field = "stride",
     .most = 1 << 20,
     .fallback = "pool_size",
     .meaning = "rows and columns from one window to the next"},
};

static lk_export_node *say_window(lk_export *e, const char *type) {
    const lk_pool2d *p = &e->op->pool;
    const int64_t size[] = {p->pool_h, p->pool_w}, strides[] = {p->stride_h, p->stride_w};
    const int64_t pads[] = {
        p->pad_top, p->pad_left,
        lk_export_pad_end(p->in_h, p->pool_h, p->stride_h, p->out_h, p->pad_top),
        lk_export_pad_end(p->in_w, p->pool_w, p->stride_w, p->out_w, p->pad_left)};
    lk_export_node *node = lk_export_node_add(e, type);
    lk_export_ints(node, "kernel_shape", 2, size);
    lk_export_ints(node, "strides", 2, strides);
    lk_export_ints(node, "pads", 4, pads);
    lk_export_image(e, e->in[0].channels);
    return node;
}

static void say_max_pool2d(lk_export *e, const lk_layer *l) {
    (void)l;
    say_window(e, "MaxPool");
}

const lk_layer_words lk_layer_words_max_pool2d = {.type = &lk_layer_max_pool2d,
                                                  .name = "max_pool2d",
                                                  .keys = keys,
                                                  .key_count = LK_COUNT(keys),
                                                  .meaning = "the greatest of each window",
                                                  .say_export = say_max_pool2d};

// --- averages ------------------------------------------------------------------------------------

// What of a window is in the image: rows [y0, y1) and columns [x0, x1) of it. A window may be far
// larger than the image.
typedef struct window {
    int64_t y0, y1, x0, x1;
    float part;  // 1 / float(n), n its cells
} window;

static window window_of(const lk_pool2d *p, uint32_t oy, uint32_t ox) {
    const int64_t top = (int64_t)oy * p->stride_h - p->pad_top;
    const int64_t left = (int64_t)ox * p->stride_w - p->pad_left;
    window w = {.y0 = LK_MAX(top, 0),
                .y1 = LK_MIN(top + p->pool_h, (int64_t)p->in_h),
                .x0 = LK_MAX(left, 0),
                .x1 = LK_MIN(left + p->pool_w, (int64_t)p->in_w)};
    w.part = 1.0f / (float)(uint32_t)((w.y1 - w.y0) * (w.x1 - w.x0));
    return w;
}

static uint32_t average_pool_forward(lk_lane *l, const lk_op *op) {
    const lk_pool2d *p = &op->pool;
    const float *x = l->at[LK_X];
    float *y = l->at[LK_Y];
    uint32_t bad = 0;
    for (uint32_t m = 0; m < l->examples; m++, x += (uint64_t)p->in_h * p->in_w * p->channels) {
        for (uint32_t o = 0; o < p->out_h * p->out_w; o++) {
            const uint32_t oy = o / p->out_w, ox = o % p->out_w;
            const window w = window_of(p, oy, ox);
            for (uint32_t channel = 0; channel < p->channels; channel++, y++) {
                slice_sum sum;
                slice_start(&sum, 0.0f);
                for (int64_t i = w.y0; i < w.y1; i++) {
                    const float *row = x + i * p->in_w * p->channels + channel;
                    for (int64_t j = w.x0; j < w.x1; j++) {
                        slice_term(&sum, 1.0f, row[j * p->channels]);
                    }
                }
                *y = slice_finish(&sum) * w.part;
                bad |= lk_not_finite(*y);
            }
        }
    }
    return bad;
}

static uint32_t average_pool_backward(lk_lane *l, const lk_op *op) {
    const lk_pool2d *p = &op->pool;
    const float *dy = l->at[LK_DY];
    float *dx = l->at[LK_DX];
    uint64_t in_floats = (uint64_t)p->in_h * p->in_w * p->channels;
    uint32_t bad = 0;
    for (uint32_t m = 0; m < l->examples; m++, dx += in_floats) {
        for (uint64_t i = 0; i < in_floats; i++) dx[i] = 0.0f;
        for (uint32_t o = 0; o < p->out_h * p->out_w; o++) {
            const uint32_t oy = o / p->out_w, ox = o % p->out_w;
            const window w = window_of(p, oy, ox);
            for (uint32_t channel = 0; channel < p->channels; channel++, dy++) {
                for (int64_t i = w.y0; i < w.y1; i++) {
                    float *row = dx + i * p->in_w * p->channels + channel;
                    for (int64_t j = w.x0; j < w.x1; j++) {
                        row[j * p->channels] = row[j * p->channels] + *dy * w.part;
                    }
                }
            }
        }
        for (uint64_t i = 0; i < in_floats; i++) bad |= lk_not_finite(dx[i]);
    }
    return bad;
}

static lk_status build_average_pool2d(lk_builder *b, const lk_layer *l) {
    const lk_shape in = b->input[0].shape;
    lk_shape out = {.c = in.c};
    uint32_t pad_top, pad_left;
    LK_CHECK(lk_build_window(b, l, in, &out, &pad_top, &pad_left));
    lk_build_op(b, &lk_op_average_pool2d, b->input[0], out)->pool =
        (lk_pool2d){.in_h = in.h,
                    .in_w = in.w,
                    .channels = in.c,
                    .out_h = out.h,
                    .out_w = out.w,
                    .pool_h = l->size_h,
                    .pool_w = l->size_w,
                    .stride_h = l->stride_h,
                    .stride_w = l->stride_w,
                    .pad_top = pad_top,
                    .pad_left = pad_left};
    return LK_OK;
}

static lk_status build_global_average_pool2d(lk_builder *b, const lk_layer *l) {
    const lk_shape in = b->input[0].shape;
    lk_layer whole = *l;
    whole.size_h = in.h, whole.size_w = in.w;
    whole.stride_h = whole.stride_w = 1;
    whole.padding = LK_PADDING_VALID;
    LK_CHECK(build_average_pool2d(b, &whole));
    b->output.shape.flat = true;
    return LK_OK;
}

static lk_status differentiate_average(lk_builder *b, uint32_t of) {
    return lk_build_input_gradient(b, &lk_op_average_pool2d_backward, of, 0, false);
}

const lk_op_type lk_op_average_pool2d = {.name = "average_pool2d",
                                         .number = LK_OP_AVERAGE_POOL2D,
                                         .scope = LK_SCOPE_EXAMPLES,
                                         .reference = average_pool_forward,
                                         .differentiate = LK_RULE(differentiate_average),
                                         .mixed = true};
const lk_op_type lk_op_average_pool2d_backward = {.name = "average_pool2d_backward",
                                                  .number = LK_OP_AVERAGE_POOL2D_BACKWARD,
                                                  .scope = LK_SCOPE_EXAMPLES,
                                                  .reference = average_pool_backward,
                                                  .mixed = true};

const lk_layer_type lk_layer_average_pool2d = {
    .inputs = 1, .ops_max = 2, .tensors_max = 2, .build = build_average_pool2d};
const lk_layer_type lk_layer_global_average_pool2d = {
    .inputs = 1, .ops_max = 2, .tensors_max = 2, .build = build_global_average_pool2d};

static void say_average_pool2d(lk_export *e, const lk_layer *l) {
    (void)l;
    lk_export_int(say_window(e, "AveragePool"), "count_include_pad", 0);
}

static void say_global_average_pool2d(lk_export *e, const lk_layer *l) {
    (void)l;
    lk_export_node_add(e, "GlobalAveragePool");
    lk_export_int(lk_export_node_add(e, "Flatten"), "axis", 1);
    e->out = (lk_export_value){.flat = true, .channels = e->in[0].channels};
}

const lk_layer_words lk_layer_words_average_pool2d = {.type = &lk_layer_average_pool2d,
                                                      .name = "average_pool2d",
                                                      .keys = keys,
                                                      .key_count = LK_COUNT(keys),
                                                      .meaning = "the mean of each window",
                                                      .say_export = say_average_pool2d};
const lk_layer_words lk_layer_words_global_average_pool2d = {
    .type = &lk_layer_global_average_pool2d,
    .name = "global_average_pool2d",
    .meaning = "the mean of each channel: images to one row of values",
    .say_export = say_global_average_pool2d};
