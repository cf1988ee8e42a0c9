// conv_kernels_test.c - the convolutions of every variant that this processor runs, bit for bit
// against the reference: many shapes, values that break careless arithmetic, buffers of the exact
// size.
//
//   test_conv_kernels [ROUNDS]    random shapes to try (default 60)
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ops/variant.h"
#include "tests/ops/guarded.h"
#include "tests/ops/kernel_calls.h"

#define free guarded_give  // all memory here is from buffer()

enum { GRAINS_MAX = 9 };

static const lk_kernels *const reference = &lk_kernels_reference;

static unsigned rounds = 60;
static uint64_t draws;

static uint32_t draw(uint32_t below) {
    draws = draws * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((draws >> 33) % below);
}

// The kinds of values a tensor is filled with.
// A drawing is mostly paper: kernels may leave out patches that are zero.
typedef enum values { PLAIN, TIES, NASTY, DRAWING, OVERFLOWING } values;

static float value(values kind) {
    float unit = (float)draw(1u << 24) * 0x1p-23f - 1.0f;
    switch (kind) {
    case PLAIN: return draw(4) == 0 ? 0.0f : unit;
    case TIES: return (float)draw(3) - 1.0f;
    case DRAWING: return draw(24) == 0 ? unit : 0.0f;
    case OVERFLOWING: return unit * 0x1p100f;
    case NASTY: break;
    }
    switch (draw(6)) {
    case 0: return unit * 0x1p-130f;  // subnormal
    case 1: return -0.0f;
    case 2: return unit * 0x1p58f;
    case 3: return unit * 0x1p-75f;   // products of two are subnormal, or nothing
    case 4: return 0.0f;
    default: return unit;
    }
}

// Memory for `bytes` bytes, rounded up to whole lines as the arena does, and nothing behind it.
static void *buffer(uint64_t bytes) {
    return guarded_take(bytes ? bytes : 1, 0x7b);
}

static float *filled(uint64_t count, values kind) {
    float *p = buffer(count * sizeof *p);
    for (uint64_t i = 0; i < count; i++) p[i] = value(kind);
    return p;
}

static void poison(void *p, uint64_t bytes) { memset(p, 0xa5, bytes); }

static void same(const char *variant, const char *op, const lk_conv2d *c, const void *want,
                 const void *got, uint64_t bytes) {
    if (memcmp(want, got, bytes) == 0) return;
    uint64_t at = 0;
    while (((const uint8_t *)want)[at] == ((const uint8_t *)got)[at]) at++;
    print_error(
        "%s %s differs at byte %llu of %llu: in %ux%ux%u out %ux%ux%u kernel %ux%u stride "
        "%ux%u pad %u,%u relu %d bias %d\n",
        variant, op, (unsigned long long)at, (unsigned long long)bytes, c->in_h, c->in_w, c->in_c,
        c->out_h, c->out_w, c->out_c, c->kernel_h, c->kernel_w, c->stride_h, c->stride_w,
        c->pad_top, c->pad_left, c->relu, c->use_bias);
    fail();
}

// One shape with all its tensors, and the reference's results.
typedef struct job {
    lk_conv2d c;
    uint32_t m;
    values kind;
    uint64_t in, out, pooled, weights;  // floats; the first three of one example
    float *x, *w, *bias, *dy, *dy_pooled, *mask, *scratch;
    uint8_t *argmax;
} job;

static void job_open(job *j, const lk_conv2d *c, uint32_t m, values kind) {
    *j = (job){.c = *c, .m = m, .kind = kind, .in = lk_conv2d_in_floats(c),
               .out = lk_conv2d_out_floats(c), .pooled = lk_conv2d_pooled_floats(c),
               .weights = lk_conv2d_weight_floats(c)};
    j->x = filled(m * j->in, kind);
    if (kind == DRAWING) kind = draw(2) ? PLAIN : NASTY;
    j->w = filled(j->weights, kind);
    j->bias = c->use_bias ? filled(c->out_c, kind) : NULL;
    j->dy = filled(m * j->out, kind);
    j->dy_pooled = filled(m * j->pooled, kind);
    j->mask = filled(m * j->in, TIES);
    j->argmax = buffer(m * j->pooled);
    for (uint64_t i = 0; i < m * j->pooled; i++) j->argmax[i] = (uint8_t)draw(4);
    j->scratch = buffer(conv2d_scratch_floats(c) * sizeof(float));
}

static void job_close(job *j) {
    free(j->x);
    free(j->w);
    free(j->bias);
    free(j->dy);
    free(j->dy_pooled);
    free(j->mask);
    free(j->argmax);
    free(j->scratch);
}

static void check_forward(const job *j) {
    uint64_t bytes = j->m * j->out * sizeof(float);
    float *want = buffer(bytes), *got = buffer(bytes);
    uint32_t bad = conv2d_forward(reference, &j->c, j->m, j->x, j->w, j->bias, want, j->scratch);
    EACH_VARIANT(k) {
        poison(got, bytes);
        assert_int_equal(bad, conv2d_forward(k, &j->c, j->m, j->x, j->w, j->bias, got, j->scratch));
        if (!bad) same(k->name, "forward", &j->c, want, got, bytes);
    }
    free(want);
    free(got);
}

static void check_pool_forward(const job *j) {
    uint64_t count = j->m * j->pooled, bytes = count * sizeof(float);
    float *want = buffer(bytes), *got = buffer(bytes);
    uint8_t *want_cell = buffer(count), *got_cell = buffer(count);
    uint32_t bad = conv2d_pool_forward(reference, &j->c, j->m, j->x, j->w, j->bias, want, want_cell,
                                       &(lk_ahead){NULL, NULL, NULL}, j->scratch);
    EACH_VARIANT(k) {
        lk_ahead ahead = {.begin = j->x, .at = j->x, .end = j->x + 1};
        poison(got, bytes);
        poison(got_cell, count);
        assert_int_equal(bad, conv2d_pool_forward(k, &j->c, j->m, j->x, j->w, j->bias, got,
                                                  got_cell, &ahead, j->scratch));
        if (bad) continue;
        same(k->name, "pool forward", &j->c, want, got, bytes);
        same(k->name, "pool forward argmax", &j->c, want_cell, got_cell, count);
    }
    free(want);
    free(got);
    free(want_cell);
    free(got_cell);
}

// One weight, then one bias, that is no finite number: every table says so as the reference does,
// also where a maximum drops it or the image is blank.
static void check_not_finite(const job *j) {
    static const uint32_t patterns[] = {0x7fc00000, 0xffc00001, 0x7f800001, 0x7f800000, 0xff800000};
    const uint64_t inputs = j->m * j->in * sizeof *j->x;
    float *x = buffer(inputs);
    memcpy(x, j->x, inputs);
    for (uint32_t i = 0; i < 4; i++) {
        float *at = &j->w[draw((uint32_t)j->weights)], good;
        if (j->bias && i % 2) at = &j->bias[draw(j->c.out_c)];
        if (i == 2) memset(j->x, 0, inputs);
        good = *at;
        memcpy(at, &patterns[draw(LK_COUNT(patterns))], sizeof *at);
        if (i == 0) check_forward(j);
        check_pool_forward(j);
        *at = good;
    }
    memcpy(j->x, x, inputs);
    free(x);
}

static void check_input_gradient(const job *j, bool masked) {
    const float *mask = masked ? j->mask : NULL;
    uint64_t bytes = j->m * j->in * sizeof(float);
    float *want = buffer(bytes), *got = buffer(bytes);
    uint32_t bad =
        conv2d_input_gradient(reference, &j->c, j->m, j->w, j->dy, mask, want, j->scratch);
    EACH_VARIANT(k) {
        poison(got, bytes);
        assert_int_equal(bad,
                         conv2d_input_gradient(k, &j->c, j->m, j->w, j->dy, mask, got, j->scratch));
        if (!bad) same(k->name, "input gradient", &j->c, want, got, bytes);
    }
    bad = conv2d_pool_input_gradient(reference, &j->c, j->m, j->w, j->dy_pooled, j->argmax, mask,
                                     want, j->scratch);
    EACH_VARIANT(k) {
        poison(got, bytes);
        assert_int_equal(bad, conv2d_pool_input_gradient(k, &j->c, j->m, j->w, j->dy_pooled,
                                                         j->argmax, mask, got, j->scratch));
        if (!bad) same(k->name, "pool input gradient", &j->c, want, got, bytes);
    }
    free(want);
    free(got);
}

// The job's examples as grains of 1 .. grain examples.
static uint32_t cut_grains(const job *j, uint32_t grain, bool pooled,
                           lk_grain_view views[GRAINS_MAX]) {
    uint32_t count = 0;
    for (uint32_t m = 0; m < j->m && count < GRAINS_MAX; m += grain) {
        const float *dy = pooled ? j->dy_pooled + m * j->pooled : j->dy + m * j->out;
        views[count++] = (lk_grain_view){j->x + m * j->in, dy,
                                         pooled ? j->argmax + m * j->pooled : NULL,
                                         LK_MIN(grain, j->m - m)};
    }
    return count;
}

static void weight_gradient(const lk_kernels *k, const job *j, uint32_t grains,
                            const lk_grain_view *views, bool pooled, float *dw, float *db) {
    if (!j->c.use_bias) db = NULL;
    if (pooled) {
        conv2d_pool_weight_gradient(k, &j->c, grains, views, dw, db, j->scratch);
    } else {
        conv2d_weight_gradient(k, &j->c, grains, views, dw, db, j->scratch);
    }
}

static void check_weight_gradient(const job *j, uint32_t grain, bool pooled) {
    lk_grain_view views[GRAINS_MAX];
    uint32_t grains = cut_grains(j, grain, pooled, views);
    uint64_t bytes = j->weights * sizeof(float), bias_bytes = j->c.out_c * sizeof(float);
    float *want = buffer(bytes), *got = buffer(bytes);
    float *want_bias = buffer(bias_bytes), *got_bias = buffer(bias_bytes);
    weight_gradient(reference, j, grains, views, pooled, want, want_bias);
    // A node's zeros have no sign: every finished sum ends in + 0.0f, and kernels leave out zero
    // terms.
    for (uint64_t i = 0; i < j->weights; i++) want[i] += 0.0f;
    for (uint64_t i = 0; i < j->c.out_c; i++) want_bias[i] += 0.0f;
    EACH_VARIANT(k) {
        poison(got, bytes);
        poison(got_bias, bias_bytes);
        weight_gradient(k, j, grains, views, pooled, got, got_bias);
        if (j->kind == OVERFLOWING) continue;
        same(k->name, pooled ? "pool dw" : "dw", &j->c, want, got, bytes);
        if (j->c.use_bias)
            same(k->name, pooled ? "pool db" : "db", &j->c, want_bias, got_bias, bias_bytes);
    }
    free(want);
    free(got);
    free(want_bias);
    free(got_bias);
}

// The transposed convolution of the same geometry: from rows of dy to rows of x. Without bias and
// ReLU it is the convolution's input gradient, and its own gradient is the convolution.
static void check_transpose(const job *j) {
    const lk_op_type *types[] = {&lk_op_conv2d_transpose, &lk_op_conv2d_transpose_input_gradient};
    for (uint32_t plain = 0; plain < 3; plain++) {
        const bool back = plain == 2;
        lk_op op = {.type = types[back], .conv = j->c};
        float *bias = plain || !j->c.use_bias ? NULL : j->x;  // long enough
        op.conv.relu = !plain && j->c.relu;
        op.floats = j->in;
        const uint64_t bytes = j->m * (back ? j->out : j->in) * sizeof(float);
        float *want = buffer(bytes), *got = buffer(bytes);
        lk_lane l = {.examples = j->m, .param = {j->w, bias}};
        l.at[back ? LK_DY : LK_X] = back ? j->x : j->dy;
        l.at[back ? LK_DX : LK_Y] = want;
        l.at[LK_SCRATCH] = j->scratch;
        const uint32_t bad = call_op(reference, &op, &l);
        l.at[back ? LK_DX : LK_Y] = got;
        EACH_VARIANT(k) {
            poison(got, bytes);
            assert_int_equal(bad, call_op(k, &op, &l));
            if (!bad) same(k->name, op.type->name, &j->c, want, got, bytes);
        }
        if (plain == 1) {
            (void)conv2d_input_gradient(reference, &j->c, j->m, j->w, j->dy, NULL, got, j->scratch);
        } else if (back) {
            (void)conv2d_forward(reference, &op.conv, j->m, j->x, j->w, NULL, got, j->scratch);
        }
        if (!bad) same("reference", op.type->name, &j->c, want, got, bytes);
        free(want);
        free(got);
    }
}

static void check_transpose_sums(const lk_kernels *k, const job *j, uint32_t grains,
                                 const lk_grain_view *views, const float *want,
                                 const float *want_bias, float *got, float *got_bias) {
    const uint64_t bytes = j->weights * sizeof(float), bias_bytes = j->c.out_c * sizeof(float);
    poison(got, bytes), poison(got_bias, bias_bytes);
    conv_weight_gradient(k, &lk_op_conv2d_transpose_weight_gradient, &j->c, grains, views, got,
                         NULL, j->scratch);
    conv_weight_gradient(k, &lk_op_conv2d_transpose_bias_gradient, &j->c, grains, views, NULL,
                         got_bias, j->scratch);
    for (uint64_t n = 0; n < j->weights; n++) got[n] += 0.0f;
    for (uint64_t n = 0; n < j->c.out_c; n++) got_bias[n] += 0.0f;
    same(k->name, "transposed dw", &j->c, want, got, bytes);
    same(k->name, "transposed db", &j->c, want_bias, got_bias, bias_bytes);
}

// Its weights sum what a convolution's do, dy and x in each other's place; its biases sum dy, here
// the gradient of an output of the convolution's shape.
static void check_transpose_weights(const job *j, uint32_t grain) {
    lk_grain_view views[GRAINS_MAX];
    const uint32_t grains = cut_grains(j, grain, false, views);
    const uint64_t bytes = j->weights * sizeof(float), bias_bytes = j->c.out_c * sizeof(float);
    float *want = buffer(bytes), *want_bias = buffer(bias_bytes);
    float *got = buffer(bytes), *got_bias = buffer(bias_bytes);
    if (j->kind != OVERFLOWING) {
        conv2d_weight_gradient(reference, &j->c, grains, views, want, want_bias, j->scratch);
        for (uint64_t i = 0; i < j->weights; i++) want[i] += 0.0f;
        for (uint64_t i = 0; i < j->c.out_c; i++) want_bias[i] += 0.0f;
        check_transpose_sums(reference, j, grains, views, want, want_bias, got, got_bias);
        EACH_VARIANT(k) {
            check_transpose_sums(k, j, grains, views, want, want_bias, got, got_bias);
        }
    }
    free(want), free(want_bias);
    free(got), free(got_bias);
}

static void check_shape(const lk_conv2d *c, uint32_t m, uint32_t grain, values kind) {
    job j;
    job_open(&j, c, m, kind);
    check_forward(&j);
    check_pool_forward(&j);
    check_input_gradient(&j, false);
    check_input_gradient(&j, true);
    check_weight_gradient(&j, grain, false);
    check_weight_gradient(&j, grain, true);
    check_transpose(&j);
    check_transpose_weights(&j, grain);
    if (kind != OVERFLOWING) check_not_finite(&j);
    job_close(&j);
}

static lk_conv2d shape(uint32_t in_h, uint32_t in_w, uint32_t in_c, uint32_t out_c,
                       uint32_t kernel_h, uint32_t kernel_w, uint32_t stride_h, uint32_t stride_w,
                       bool padded) {
    lk_conv2d c = {.in_h = in_h, .in_w = in_w, .in_c = in_c, .out_c = out_c, .kernel_h = kernel_h,
                   .kernel_w = kernel_w, .stride_h = stride_h, .stride_w = stride_w,
                   .use_bias = true, .relu = true};
    if (padded) {
        c.out_h = (in_h + stride_h - 1) / stride_h;
        c.out_w = (in_w + stride_w - 1) / stride_w;
        uint32_t reach_h = (c.out_h - 1) * stride_h + kernel_h;
        uint32_t reach_w = (c.out_w - 1) * stride_w + kernel_w;
        c.pad_top = reach_h > in_h ? (reach_h - in_h) / 2 : 0;
        c.pad_left = reach_w > in_w ? (reach_w - in_w) / 2 : 0;
    } else {
        c.out_h = (in_h - kernel_h) / stride_h + 1;
        c.out_w = (in_w - kernel_w) / stride_w + 1;
    }
    return c;
}

static void test_known_shapes(void **state) {
    (void)state;
    const lk_conv2d shapes[] = {
        shape(28, 28, 1, 32, 3, 3, 1, 1, false),   // the MNIST CNN
        shape(28, 28, 1, 6, 5, 5, 1, 1, true),     // LeNet
        shape(14, 14, 6, 16, 5, 5, 1, 1, false),
        shape(14, 14, 16, 32, 3, 3, 1, 1, true),   // deeper nets
        shape(7, 7, 64, 33, 3, 3, 1, 1, true),     // two slices a sum
        shape(9, 9, 3, 64, 7, 7, 2, 2, true),      // the first layer of a ResNet
        shape(8, 8, 20, 40, 1, 1, 2, 2, true),     // its shortcuts: some inputs are read by nobody
        shape(6, 5, 120, 9, 3, 3, 2, 1, true),
        shape(26, 27, 2, 130, 2, 3, 1, 1, false),
        shape(50, 49, 1, 5, 3, 3, 1, 1, true),     // five slices an example
        shape(3, 4, 470, 6, 3, 3, 1, 1, true),     // nine slices a sum
        shape(28, 28, 32, 1, 4, 4, 1, 1, true),    // few channels come out: one, of one slice
        shape(11, 33, 21, 3, 5, 5, 1, 1, true),    // .. three, of two slices, a lane more than full
        shape(28, 28, 1, 64, 4, 4, 2, 2, true),    // .. of the input gradient, in four phases
        shape(20, 40, 5, 40, 3, 3, 1, 2, false),   // .. of more than full lanes, inputs unread
        shape(11, 12, 3, 4, 7, 8, 3, 3, true),     // nine phases, of which padding cuts one in two
        shape(5, 6, 2, 600, 3, 3, 2, 2, true),     // a phase has one tap, of two of eleven slices
    };
    for (unsigned i = 0; i < LK_COUNT(shapes); i++) {
        check_shape(&shapes[i], 3, 2, PLAIN);
        check_shape(&shapes[i], 1, 1, NASTY);
        check_shape(&shapes[i], 3, 2, DRAWING);
    }
}

// 3x3 on one channel, for which NEON has kernels of its own: odd sizes, more channels than are
// packed at once, rows that are barely wider than a tile, as wide as the ink's bits and wider.
static void test_patches(void **state) {
    (void)state;
    lk_conv2d shapes[] = {
        shape(7, 16, 1, 40, 3, 3, 1, 1, true),   shape(9, 19, 1, 16, 3, 3, 1, 1, false),
        shape(4, 4, 1, 8, 3, 3, 1, 1, false),    shape(4, 64, 1, 8, 3, 3, 1, 1, false),
        shape(4, 67, 1, 12, 3, 3, 1, 1, false),  shape(8, 33, 1, 24, 3, 3, 1, 1, true),
        shape(4, 76, 1, 8, 3, 3, 1, 1, false),
    };
    for (unsigned i = 0; i < 5 * LK_COUNT(shapes); i++) {
        lk_conv2d *c = &shapes[i / 5];
        c->relu = i % 2;
        c->use_bias = draw(2);
        check_shape(c, 3, 2, (values)(i % 5));
    }
}

static void test_random_shapes(void **state) {
    (void)state;
    for (unsigned round = 0; round < rounds; round++) {
        draws = round;
        uint32_t kernel_h = 1 + draw(7), kernel_w = 1 + draw(7);
        uint32_t in_h = kernel_h + draw(14), in_w = kernel_w + draw(20);
        uint32_t in_c = draw(2) ? 1 + draw(4) : 1 + draw(40),
                 out_c = draw(2) ? 1 + draw(8) : 1 + draw(70);
        if (kernel_h * kernel_w > 20) in_h = kernel_h + draw(4);
        lk_conv2d c = shape(in_h, in_w, in_c, out_c, kernel_h, kernel_w, 1 + draw(3) / 2,
                            1 + draw(3) / 2, draw(2));
        c.use_bias = draw(4) != 0;
        c.relu = draw(2);
        bool large = (uint64_t)in_h * in_w * in_c * out_c * kernel_h * kernel_w > 500000;
        check_shape(&c, 1 + draw(large ? 2 : 12), 1 + draw(4), (values)draw(5));
    }
}

// Where lanes are positions, those past the end of a row see the end of one and the beginning of
// the next: what they sum here overflows, while all outputs are finite.
static void test_past_the_row(void **state) {
    (void)state;
    lk_conv2d c = shape(6, 20, 1, 1, 1, 3, 1, 1, false);
    c.use_bias = false;
    job j;
    job_open(&j, &c, 2, PLAIN);
    for (uint64_t i = 0; i < 3; i++) j.w[i] = 1.0f;
    for (uint64_t i = 0; i < 2 * j.in; i++) {
        const uint64_t column = i % c.in_w;
        j.x[i] = column == 0 || column == c.in_w - 1 ? 0x1p127f : 0.0f;
    }
    const lk_kernels *k;
    for (unsigned i = 0; lk_kernels_missing(i, &k), k; i++) {
        float y[2 * 6 * 18];
        if (lk_kernels_missing(i, &k)) continue;
        assert_int_equal(conv2d_forward(k, &c, 2, j.x, j.w, NULL, y, j.scratch), 0);
    }
    check_forward(&j);
    job_close(&j);
}

// Short examples share a slice; grains of many examples have a tree of slices.
static void test_slices_of_examples(void **state) {
    (void)state;
    lk_conv2d c = shape(5, 5, 3, 10, 3, 3, 1, 1, true);  // 36 terms: 14 examples a slice
    check_shape(&c, 70, 32, PLAIN);
    check_shape(&c, 33, 16, NASTY);
    c = shape(4, 4, 1, 17, 3, 3, 1, 1, false);           // 4 terms: 128 examples a slice
    check_shape(&c, 300, 260, PLAIN);
}

// Examples are summed together as far as the cache goes: three, then two.
static void test_examples_together(void **state) {
    (void)state;
    const lk_conv2d c = shape(30, 30, 24, 24, 3, 3, 1, 1, true);
    check_shape(&c, 5, 2, PLAIN);
}

// --- groups --------------------------------------------------------------------------------------

static lk_grouped_conv2d grouped(const lk_conv2d *shape, uint32_t groups, uint32_t dilation_h,
                                 uint32_t dilation_w) {
    lk_grouped_conv2d g = {.conv = *shape, .dilation_h = (uint8_t)dilation_h,
                           .dilation_w = (uint8_t)dilation_w, .groups = (uint16_t)groups};
    // Of a shape whose window had the size of the spread one.
    g.conv.kernel_h = (shape->kernel_h - 1) / dilation_h + 1;
    g.conv.kernel_w = (shape->kernel_w - 1) / dilation_w + 1;
    return g;
}

static void check_grouped_op(const lk_op *op, lk_lane *l, lk_role to, uint64_t floats) {
    float *want = buffer(floats * sizeof *want), *got = buffer(floats * sizeof *got);
    l->at[to] = want;
    const uint32_t bad = call_op(reference, op, l);
    l->at[to] = got;
    EACH_VARIANT(k) {
        poison(got, floats * sizeof *got);
        assert_int_equal(bad, call_op(k, op, l));
        if (!bad) same(k->name, op->type->name, &op->conv, want, got, floats * sizeof *got);
    }
    free(want), free(got);
}

static void grouped_sums(const lk_kernels *k, const lk_op *op, lk_lane *l, float *const sums[2]) {
    const uint64_t weights = lk_grouped_weight_floats(&op->grouped);
    const uint32_t biases = op->conv.use_bias ? op->conv.out_c : 0;
    poison(sums[0], weights * sizeof(float));
    poison(sums[1], biases * sizeof(float));
    l->sums[0] = sums[0], l->sums[1] = biases ? sums[1] : NULL;
    (void)call_op(k, op, l);
    for (uint64_t n = 0; n < weights; n++) sums[0][n] += 0.0f;
    for (uint64_t n = 0; n < biases; n++) sums[1][n] += 0.0f;
}

static void check_grouped_weights(const lk_op *op, const lk_lane *examples, uint32_t grain,
                                  const float *x, const float *dy) {
    lk_grain_view views[GRAINS_MAX];
    const lk_conv2d *c = &op->conv;
    const uint64_t weights = lk_grouped_weight_floats(&op->grouped);
    float *sums[2][2];
    lk_lane l = {.grains = views, .grain = grain};
    for (uint32_t m = 0; m < examples->examples && l.grain_count < GRAINS_MAX; m += grain) {
        views[l.grain_count++] =
            (lk_grain_view){.x = x + m * lk_conv2d_in_floats(c),
                            .dy = dy + m * lk_conv2d_out_floats(c),
                            .examples = LK_MIN(grain, examples->examples - m)};
    }
    for (uint32_t i = 0; i < 2; i++) {
        sums[i][0] = buffer(weights * sizeof(float));
        sums[i][1] = buffer(c->out_c * sizeof(float));
    }
    grouped_sums(reference, op, &l, sums[0]);
    EACH_VARIANT(k) {
        grouped_sums(k, op, &l, sums[1]);
        same(k->name, "grouped dw", c, sums[0][0], sums[1][0], weights * sizeof(float));
        if (!c->use_bias) continue;
        same(k->name, "grouped db", c, sums[0][1], sums[1][1], c->out_c * sizeof(float));
    }
    for (uint32_t i = 0; i < 4; i++) free(sums[i / 2][i % 2]);
}

static void check_grouped(const lk_grouped_conv2d *g, uint32_t m, uint32_t grain, values kind) {
    const lk_conv2d *c = &g->conv;
    lk_op op = {.type = &lk_op_grouped_conv2d, .grouped = *g};
    const uint64_t in = m * lk_conv2d_in_floats(c), out = m * lk_conv2d_out_floats(c);
    const uint64_t weights = lk_grouped_weight_floats(g);
    float *x = filled(in, kind), *dy = filled(out, kind), *w = filled(weights, kind);
    float *bias = c->use_bias ? filled(c->out_c, kind) : NULL;
    float *scratch = buffer(lk_round_up(weights, 16) * sizeof *scratch);
    lk_lane l = {.examples = m, .param = {w, bias}};
    op.floats = lk_conv2d_out_floats(c);
    l.at[LK_X] = x;
    check_grouped_op(&op, &l, LK_Y, out);
    l = (lk_lane){.examples = m, .param = {w}};
    op.type = &lk_op_grouped_conv2d_input_gradient;
    l.at[LK_DY] = dy, l.at[LK_SCRATCH] = scratch;
    check_grouped_op(&op, &l, LK_DX, in);
    op.type = &lk_op_grouped_conv2d_weight_gradient;
    if (kind != OVERFLOWING) check_grouped_weights(&op, &l, grain, x, dy);
    free(x), free(dy), free(w), free(bias), free(scratch);
}

static void test_groups(void **state) {
    (void)state;
    for (unsigned round = 0; round < rounds; round++) {
        draws = 1000 + round;
        const uint32_t groups = 1 + draw(draw(3) ? 4 : 70);
        const uint32_t dilation_h = 1 + draw(3), dilation_w = 1 + draw(3);
        const uint32_t kernel_h = draw(4) * dilation_h + 1, kernel_w = draw(4) * dilation_w + 1;
        const uint32_t in_c = groups * (1 + draw(groups > 4 ? 2 : 20));
        const uint32_t out_c = groups * (1 + draw(groups > 4 ? 3 : 40));
        const uint32_t stride = dilation_h == 1 && dilation_w == 1 ? 1 + draw(3) : 1;
        lk_conv2d c = shape(kernel_h + draw(5), kernel_w + draw(7), in_c, out_c, kernel_h,
                            kernel_w, stride, 1 + draw(2) * (stride - 1), draw(2));
        c.use_bias = draw(4) != 0;
        c.relu = draw(2);
        const lk_grouped_conv2d g = grouped(&c, groups, dilation_h, dilation_w);
        check_grouped(&g, 1 + draw(5), 1 + draw(3), (values)draw(5));
    }
    lk_conv2d c = shape(9, 9, 64, 64, 3, 3, 1, 1, true);  // depthwise, whole vectors
    lk_grouped_conv2d g = grouped(&c, 64, 1, 1);
    check_grouped(&g, 3, 2, PLAIN);
    c = shape(5, 6, 120, 70, 5, 5, 1, 1, true);  // 1,080 terms: three slices; spread out
    g = grouped(&c, 1, 2, 2);
    check_grouped(&g, 2, 1, PLAIN);
    c = shape(5, 5, 1200, 4, 2, 2, 1, 1, false);  // slices that begin within a tap
    g = grouped(&c, 2, 1, 1);
    check_grouped(&g, 2, 1, NASTY);
    c = shape(24, 23, 3, 6, 3, 3, 1, 1, true);  // 576 terms an example: two slices
    g = grouped(&c, 3, 1, 1);
    check_grouped(&g, 3, 2, PLAIN);
    c = shape(5, 5, 4, 4, 3, 3, 1, 1, true);  // 36 terms: 14 examples a slice
    g = grouped(&c, 4, 1, 1);
    check_grouped(&g, 70, 32, PLAIN);
}

int main(int argc, char **argv) {
    if (argc > 1) rounds = (unsigned)strtoul(argv[1], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_shapes),
        cmocka_unit_test(test_patches),
        cmocka_unit_test(test_random_shapes),
        cmocka_unit_test(test_past_the_row),
        cmocka_unit_test(test_slices_of_examples),
        cmocka_unit_test(test_examples_together),
        cmocka_unit_test(test_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
