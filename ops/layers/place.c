// place.c - layers that put values elsewhere and compute none: formulas, the reference, gradients.
// Freestanding. ARITHMETIC.md 3 and 5.
//
//   concatenate      y = the values of x, then those of x2, in each cell of an image, or of the row
//                    dx, dx2 = their parts of dy
//   zero_padding2d   y = x with rows and columns of +0 around it;     dx = dy without them
//   time_reduction   y = x, `factor` frames seen as one, which is no op; or, where that does not
//                    divide them, a zero_padding2d with frames of +0 behind the last
//
// Nothing that was finite becomes otherwise: nothing is checked.
#include "ops/graph/build.h"
#include "ops/layers/export.h"
#include "ops/layers/sums.h"

// --- concatenate ---------------------------------------------------------------------------------

static uint32_t concatenate_forward(lk_lane *l, const lk_op *op) {
    const lk_join *j = &op->join;
    const float *x = l->at[LK_X], *x2 = l->at[LK_X2];
    float *y = l->at[LK_Y];
    for (uint64_t cell = 0; cell < (uint64_t)l->examples * j->cells; cell++) {
        for (uint32_t i = 0; i < j->values[0]; i++) *y++ = *x++;
        for (uint32_t i = 0; i < j->values[1]; i++) *y++ = *x2++;
    }
    return 0;
}

static uint32_t concatenate_gradient(lk_lane *l, const lk_op *op) {
    const lk_join *j = &op->join;
    const uint32_t skip = j->which ? j->values[0] : 0, both = j->values[0] + j->values[1];
    const float *dy = l->at[LK_DY];
    float *dx = l->at[LK_DX];
    for (uint64_t cell = 0; cell < (uint64_t)l->examples * j->cells; cell++, dy += both) {
        for (uint32_t i = 0; i < j->values[j->which]; i++) *dx++ = dy[skip + i];
    }
    return 0;
}

static lk_status build_concatenate(lk_builder *b, const lk_layer *l) {
    const lk_shape x = b->input[0].shape, x2 = b->input[1].shape;
    lk_shape y = x;
    uint64_t floats;
    if (x.h != x2.h || x.w != x2.w || x.flat != x2.flat) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: its inputs are %u x %u x %u%s and %u x %u x %u%s, wanted two "
                       "images of the same height and width, or two rows of values",
                       l->name, x.h, x.w, x.c, x.flat ? " (flat)" : "", x2.h, x2.w, x2.c,
                       x2.flat ? " (flat)" : "");
    }
    y.c = x.c + x2.c;  // each below 2^31
    LK_CHECK(lk_build_check_shape(b, l->name, &y, &floats));
    lk_op *op = lk_build_op(b, &lk_op_concatenate, b->input[0], y);
    op->input[1] = b->input[1].op;
    op->join = (lk_join){.cells = x.h * x.w, .values = {x.c, x2.c}};
    return LK_OK;
}

// The second input first, as a sum has it.
static lk_status differentiate_concatenate(lk_builder *b, uint32_t of) {
    for (uint32_t which = 2; which-- > 0;) {
        const uint32_t at = b->program->op_count;
        LK_CHECK(lk_build_input_gradient(b, &lk_op_concatenate_gradient, of, which, false));
        if (b->program->op_count > at) b->program->ops[at].join.which = which;
    }
    return LK_OK;
}

const lk_op_type lk_op_concatenate = {.name = "concatenate",
                                      .suffix = "",
                                      .number = LK_OP_CONCATENATE,
                                      .scope = LK_SCOPE_EXAMPLES,
                                      .reference = concatenate_forward,
                                      .differentiate = LK_RULE(differentiate_concatenate),
                                      .mixed = true};
const lk_op_type lk_op_concatenate_gradient = {.name = "concatenate_gradient",
                                               .number = LK_OP_CONCATENATE_GRADIENT,
                                               .scope = LK_SCOPE_EXAMPLES,
                                               .reference = concatenate_gradient,
                                               .mixed = true};

const lk_layer_type lk_layer_concatenate = {
    .inputs = 2, .ops_max = 3, .tensors_max = 3, .build = build_concatenate};

// PyTorch has rows that were images in another order, cell behind cell of each: of two of them
// there is no one order, unless both have one position.
static void say_concatenate(lk_export *e, const lk_layer *l) {
    const uint32_t both = e->op->join.values[0] + e->op->join.values[1];
    (void)l;
    lk_export_int(lk_export_node_add(e, "Concat"), "axis", 1);
    e->out.channels = both;
    for (uint32_t i = 0; i < 2 && e->out.flat; i++) {
        const uint32_t channels = e->in[i].channels;
        if (channels != 1 && channels != e->op->join.values[i]) e->out.channels = 0;
    }
}

const lk_layer_words lk_layer_words_concatenate = {
    .type = &lk_layer_concatenate,
    .name = "concatenate",
    .meaning = "the channels of two layers beside each other",
    .say_export = say_concatenate};

// --- zero_padding2d ------------------------------------------------------------------------------

static uint32_t zero_padding2d_forward(lk_lane *l, const lk_op *op) {
    const lk_pool2d *p = &op->pool;
    const float *x = l->at[LK_X];
    float *y = l->at[LK_Y];
    for (uint32_t m = 0; m < l->examples; m++, x += (uint64_t)p->in_h * p->in_w * p->channels) {
        for (uint32_t oy = 0; oy < p->out_h; oy++) {
            for (uint32_t ox = 0; ox < p->out_w; ox++) {
                const int64_t iy = (int64_t)oy - p->pad_top, ix = (int64_t)ox - p->pad_left;
                const bool inside = iy >= 0 && ix >= 0 && iy < p->in_h && ix < p->in_w;
                for (uint32_t c = 0; c < p->channels; c++) {
                    *y++ = inside ? x[(iy * p->in_w + ix) * p->channels + c] : 0.0f;
                }
            }
        }
    }
    return 0;
}

static uint32_t zero_padding2d_backward(lk_lane *l, const lk_op *op) {
    const lk_pool2d *p = &op->pool;
    const float *dy = l->at[LK_DY];
    float *dx = l->at[LK_DX];
    for (uint32_t m = 0; m < l->examples; m++, dy += (uint64_t)p->out_h * p->out_w * p->channels) {
        for (uint32_t iy = 0; iy < p->in_h; iy++) {
            for (uint32_t ix = 0; ix < p->in_w; ix++) {
                const uint64_t at = ((uint64_t)iy + p->pad_top) * p->out_w + ix + p->pad_left;
                for (uint32_t c = 0; c < p->channels; c++) *dx++ = dy[at * p->channels + c];
            }
        }
    }
    return 0;
}

// Zeros around the layer's input: `sides` are those above, below, on the left and on the right.
static void build_padding(lk_builder *b, const uint32_t sides[4]) {
    const lk_shape in = b->input[0].shape;
    const lk_shape out = {
        .h = in.h + sides[0] + sides[1], .w = in.w + sides[2] + sides[3], .c = in.c};
    lk_build_op(b, &lk_op_zero_padding2d, b->input[0], out)->pool =
        (lk_pool2d){.in_h = in.h,
                    .in_w = in.w,
                    .channels = in.c,
                    .out_h = out.h,
                    .out_w = out.w,
                    .pool_h = 1,
                    .pool_w = 1,
                    .stride_h = 1,
                    .stride_w = 1,
                    .pad_top = sides[0],
                    .pad_left = sides[2]};
}

static lk_status build_zero_padding2d(lk_builder *b, const lk_layer *l) {
    const lk_shape in = b->input[0].shape;
    if (in.flat) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: wants images (height, width, channels) but its input is flat "
                       "(%u); put it before flatten",
                       l->name, in.c);
    }
    build_padding(b, l->sides);
    return LK_OK;
}

static lk_status differentiate_zero_padding2d(lk_builder *b, uint32_t of) {
    return lk_build_input_gradient(b, &lk_op_zero_padding2d_backward, of, 0, false);
}

const lk_op_type lk_op_zero_padding2d = {.name = "zero_padding2d",
                                         .suffix = "",
                                         .number = LK_OP_ZERO_PADDING2D,
                                         .scope = LK_SCOPE_EXAMPLES,
                                         .reference = zero_padding2d_forward,
                                         .differentiate = LK_RULE(differentiate_zero_padding2d),
                                         .mixed = true};
const lk_op_type lk_op_zero_padding2d_backward = {.name = "zero_padding2d_backward",
                                                  .number = LK_OP_ZERO_PADDING2D_BACKWARD,
                                                  .scope = LK_SCOPE_EXAMPLES,
                                                  .reference = zero_padding2d_backward,
                                                  .mixed = true};

const lk_layer_type lk_layer_zero_padding2d = {
    .inputs = 1, .ops_max = 2, .tensors_max = 2, .build = build_zero_padding2d};

static const lk_setting zero_padding2d_keys[] = {
    {.name = "padding",
     .kind = LK_SETTING_SIDES,
     .offset = offsetof(lk_layer, sides),
     .field = "sides",
     .most = 1 << 20,
     .constant = 1,
     .meaning = "rows and columns of zeros on each side"},
};

static void say_zero_padding2d(lk_export *e, const lk_layer *l) {
    const int64_t pads[] = {0, 0, l->sides[0], l->sides[2], 0, 0, l->sides[1], l->sides[3]};
    lk_export_constant(lk_export_node_add(e, "Pad"), 8, pads);
    lk_export_image(e, e->in[0].channels);
}

const lk_layer_words lk_layer_words_zero_padding2d = {.type = &lk_layer_zero_padding2d,
                                                      .name = "zero_padding2d",
                                                      .keys = zero_padding2d_keys,
                                                      .key_count = LK_COUNT(zero_padding2d_keys),
                                                      .meaning = "images with zeros around them",
                                                      .say_export = say_zero_padding2d};

// --- time_reduction ------------------------------------------------------------------------------

static lk_status build_time_reduction(lk_builder *b, const lk_layer *l) {
    const lk_shape in = b->input[0].shape;
    if (in.flat || in.w != 1) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: time_reduction wants a sequence (time, features) but gets %u x "
                       "%u x %u%s; put a reshape layer with a target_shape of [time, features] "
                       "before it",
                       l->name, in.h, in.w, in.c, in.flat ? " (flat)" : "");
    }
    if (l->factor == 0 || l->factor > in.h) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: found a factor of %u, wanted 1 to the %u times of its input",
                       l->name, l->factor, in.h);
    }
    const uint32_t times = (in.h - 1) / l->factor + 1, behind = times * l->factor - in.h;
    b->output = b->input[0];
    if (behind) build_padding(b, (uint32_t[]){0, behind, 0, 0});
    b->output.shape = (lk_shape){times, 1, l->factor * in.c, false};
    return LK_OK;
}

const lk_layer_type lk_layer_time_reduction = {
    .inputs = 1, .ops_max = 2, .tensors_max = 2, .build = build_time_reduction};

static const lk_setting time_reduction_keys[] = {
    {.name = "factor",
     .kind = LK_SETTING_U32,
     .offset = offsetof(lk_layer, factor),
     .required = true,
     .most = UINT16_MAX,
     .meaning = "neighbouring frames that become one"},
};

static void say_time_reduction(lk_export *e, const lk_layer *l) {
    static const int64_t last[] = {0, 2, 3, 1}, first[] = {0, 3, 1, 2};
    const uint32_t k = l->factor, c = k * e->in[0].channels;
    const uint32_t before = (uint32_t)(e->in[0].floats / e->in[0].channels);
    const uint32_t times = (before - 1) / k + 1;
    const int64_t pads[] = {0, 0, 0, 0, 0, 0, (int64_t)times * k - before, 0};
    const int64_t shape[] = {0, times, 1, c};
    if (pads[6]) lk_export_constant(lk_export_node_add(e, "Pad"), 8, pads);
    lk_export_ints(lk_export_node_add(e, "Transpose"), "perm", 4, last);
    lk_export_constant(lk_export_node_add(e, "Reshape"), 4, shape);
    lk_export_node *back = lk_export_node_add(e, "Transpose");
    back->name = "Back";
    lk_export_ints(back, "perm", 4, first);
    e->out = (lk_export_value){.channels = c, .times = times};
}

const lk_layer_words lk_layer_words_time_reduction = {
    .type = &lk_layer_time_reduction,
    .name = "time_reduction",
    .keys = time_reduction_keys,
    .key_count = LK_COUNT(time_reduction_keys),
    .meaning = "neighbouring frames of a sequence beside each other, as one",
    .say_export = say_time_reduction};
