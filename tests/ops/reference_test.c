// reference_test.c - the reference kernels, and the programs made of them, against another
// derivation of the same mathematics: hand-computed cases, and finite differences of a forward pass
// in double that shares no code with the library. A wrong wiring (masks, winners, order of layers)
// shows here.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "arena/philox.h"
#include "comm/step/step.h"
#include "ops/fmaf.h"
#include "tests/ops/layers.h"
#include "tests/ops/kernel_calls.h"

static const lk_kernels *const k = &lk_kernels_reference;

static uint64_t draws = 1;

static float draw(void) {  // in [-1, 1)
    draws = draws * 6364136223846793005u + 1442695040888963407u;
    return (float)(draws >> 40) * 0x1p-23f - 1.0f;
}

static void fill(float *values, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) values[i] = draw();
}

static void near(const char *what, uint64_t at, double want, double got, double tolerance) {
    if (fabs(want - got) <= tolerance * (1.0 + fabs(want))) return;
    print_error("%s[%llu]: wanted %.9g, got %.9g\n", what, (unsigned long long)at, want, got);
    fail();
}

static void same_bits(const float *want, const float *got, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) assert_memory_equal(&want[i], &got[i], sizeof want[i]);
}

// --- the forward pass in double ------------------------------------------------------------------

enum { VALUES_MAX = 8192, PARAMS_MAX = 32, LAYERS_MAX = 24, EXAMPLES = 5, IMAGE_MAX = 200 };
enum { SEED = 3 };

// The global batch: example m is at place m.
static uint8_t images[EXAMPLES][IMAGE_MAX];
static uint32_t image_labels[EXAMPLES];

typedef struct image_shape {
    int h, w, c;
} image_shape;

static int out_size(int in, int size, int stride, lk_padding padding, int *pad) {
    *pad = 0;
    if (padding == LK_PADDING_VALID) return (in - size + stride) / stride;
    int out = (in + stride - 1) / stride, over = (out - 1) * stride + size - in;
    *pad = over > 0 ? over / 2 : 0;
    return out;
}

// Convolution (w given) or pooling (w NULL).
static image_shape windows(const lk_layer *l, image_shape s, const double *x, const double *w,
                           const double *b, double *y) {
    int top, left, sh = (int)l->stride_h, sw = (int)l->stride_w;
    const bool mean = l->type == &lk_layer_average_pool2d;
    const bool deep = l->type == &lk_layer_depthwise_conv2d;
    const int dh = LK_MAX((int)l->dilation_h, 1), dw = LK_MAX((int)l->dilation_w, 1);
    const int groups = deep ? s.c : LK_MAX((int)l->groups, 1), inputs = s.c / groups;
    const int filters = deep ? s.c * (int)l->units : (int)l->units;
    image_shape o = {out_size(s.h, ((int)l->size_h - 1) * dh + 1, sh, l->padding, &top),
                     out_size(s.w, ((int)l->size_w - 1) * dw + 1, sw, l->padding, &left),
                     w ? filters : s.c};
    assert_true(o.h * o.w * o.c <= VALUES_MAX);
    for (int at = 0; at < o.h * o.w * o.c; at++) {
        int oy = at / o.c / o.w, ox = at / o.c % o.w, co = at % o.c;
        int cells = 0;
        y[at] = mean ? 0.0 : !w ? -INFINITY : b ? b[co] : 0.0;
        for (int tap = 0; tap < (int)(l->size_h * l->size_w); tap++) {
            int iy = oy * sh + tap / (int)l->size_w * dh - top,
                ix = ox * sw + tap % (int)l->size_w * dw - left;
            if (iy < 0 || ix < 0 || iy >= s.h || ix >= s.w) continue;
            const double *cell = x + (iy * s.w + ix) * s.c;
            if (!w && !mean) y[at] = fmax(y[at], cell[co]);
            if (mean) y[at] += cell[co], cells++;
            for (int ci = 0; w && ci < inputs; ci++)
                y[at] += cell[co / (o.c / groups) * inputs + ci] *
                         w[(tap * inputs + ci) * o.c + co];
        }
        if (mean) y[at] /= cells;
    }
    return o;
}

// A transposed convolution: what each value of x gives to y.
static image_shape transposed(const lk_layer *l, image_shape s, const double *x, const double *w,
                              const double *b, double *y) {
    const int kh = (int)l->size_h, kw = (int)l->size_w, sh = (int)l->stride_h;
    const int sw = (int)l->stride_w, valid = l->padding == LK_PADDING_VALID;
    const image_shape o = {s.h * sh + (valid && kh > sh ? kh - sh : 0),
                           s.w * sw + (valid && kw > sw ? kw - sw : 0), (int)l->units};
    const int top = !valid && kh > sh ? (kh - sh) / 2 : 0;
    const int left = !valid && kw > sw ? (kw - sw) / 2 : 0;
    for (int i = 0; i < o.h * o.w * o.c; i++) y[i] = b ? b[i % o.c] : 0.0;
    for (int i = 0; i < s.h * s.w * s.c; i++) {
        for (int n = 0; n < kh * kw * o.c; n++) {
            const int tap = n / o.c, oy = i / s.c / s.w * sh + tap / kw - top;
            const int ox = i / s.c % s.w * sw + tap % kw - left;
            if (oy < 0 || ox < 0 || oy >= o.h || ox >= o.w) continue;
            y[(oy * o.w + ox) * o.c + n % o.c] += x[i] * w[n * s.c + i % s.c];
        }
    }
    return o;
}

static image_shape dense(const lk_layer *l, image_shape s, const double *x, const double *w,
                         const double *b, double *y) {
    int inputs = s.h * s.w * s.c, units = (int)l->units;
    for (int n = 0; n < units; n++) {
        y[n] = b ? b[n] : 0.0;
        for (int i = 0; i < inputs; i++) y[n] += x[i] * w[i * units + n];
    }
    return (image_shape){1, 1, units};
}

// What the dropout layer with this number leaves of value i of the example, in step 0: the words of
// ARITHMETIC.md 10, of the seed that check_model gives.
static double dropped(const lk_layer *l, uint32_t number, uint32_t example, int i, double value) {
    const lk_philox_block drawn =
        lk_philox(SEED, LK_PURPOSE_DROPOUT, (uint32_t)i / 4, example, 0, number);
    const double unit = (double)(drawn.word[i % 4] >> 8) / 16777216.0;
    return unit >= (double)l->rate ? value / (1.0 - (double)l->rate) : 0.0;
}

static image_shape layer_forward(const lk_layer *l, image_shape s, const double *x,
                                 const double *x2, double *const *params, uint32_t *param,
                                 double *y) {
    bool trainable = l->type == &lk_layer_conv2d || l->type == &lk_layer_dense ||
                     l->type == &lk_layer_conv2d_transpose ||
                     l->type == &lk_layer_depthwise_conv2d;
    const double *w = trainable ? params[(*param)++] : NULL;
    const double *b = trainable && l->use_bias ? params[(*param)++] : NULL;
    image_shape o = s;
    if (l->type == &lk_layer_dense) {
        o = dense(l, s, x, w, b, y);
    } else if (l->type == &lk_layer_conv2d_transpose) {
        o = transposed(l, s, x, w, b, y);
    } else if (l->type == &lk_layer_global_average_pool2d) {
        o = (image_shape){1, 1, s.c};
        for (int c = 0; c < s.c; c++) y[c] = 0.0;
        for (int i = 0; i < s.h * s.w * s.c; i++) y[i % s.c] += x[i] / (s.h * s.w);
    } else if (l->type == &lk_layer_conv2d || l->type == &lk_layer_depthwise_conv2d ||
               l->type == &lk_layer_max_pool2d || l->type == &lk_layer_average_pool2d) {
        o = windows(l, s, x, w, b, y);
    } else {
        for (int i = 0; i < s.h * s.w * s.c; i++) y[i] = x2 ? x[i] + x2[i] : x[i];
    }
    const lk_layer_type *f = l->activation ? l->activation : l->type;
    const double slope = l->activation ? 0.2 : (double)l->negative_slope;
    for (int i = 0; i < o.h * o.w * o.c; i++) {
        if (f == &lk_layer_relu) y[i] = fmax(y[i], 0.0);
        if (f == &lk_layer_leaky_relu) y[i] = fmax(y[i], slope * y[i]);
        if (f == &lk_layer_tanh) y[i] = tanh(y[i]);
        if (f == &lk_layer_sigmoid) y[i] = 1.0 / (1.0 + exp(-y[i]));
        if (f == &lk_layer_relu6) y[i] = fmin(fmax(y[i], 0.0), 6.0);
        if (f == &lk_layer_elu && y[i] < 0.0) {
            y[i] = (l->activation ? 1.0 : (double)l->alpha) * expm1(y[i]);
        }
        if (f == &lk_layer_softplus) y[i] = log1p(exp(y[i]));
        if (f == &lk_layer_swish) y[i] = y[i] / (1.0 + exp(-y[i]));
        if (f == &lk_layer_gelu && (l->activation || !l->approximate)) {
            y[i] *= erfc(-y[i] * sqrt(0.5)) / 2;
        } else if (f == &lk_layer_gelu) {
            y[i] /= 1.0 + exp(-1.5957691216057308 * (y[i] + 0.044715 * y[i] * y[i] * y[i]));
        }
    }
    return o;
}

// Layers that put values elsewhere.
static bool places(const lk_layer *l) {
    return l->type == &lk_layer_concatenate || l->type == &lk_layer_zero_padding2d ||
           l->type == &lk_layer_reshape || l->type == &lk_layer_time_reduction;
}

static image_shape placed(const lk_layer *l, image_shape s, image_shape s2, const double *x,
                          const double *x2, double *y) {
    const int *size = (const int *)l->target_shape.at;
    image_shape o = s;
    if (l->type == &lk_layer_concatenate) {
        o.c = s.c + s2.c;
        for (int i = 0; i < o.h * o.w * o.c; i++) {
            const int cell = i / o.c, c = i % o.c;
            y[i] = c < s.c ? x[cell * s.c + c] : x2[cell * s2.c + c - s.c];
        }
    } else if (l->type == &lk_layer_zero_padding2d) {
        const int top = (int)l->sides[0], left = (int)l->sides[2];
        o.h += top + (int)l->sides[1], o.w += left + (int)l->sides[3];
        for (int i = 0; i < o.h * o.w * o.c; i++) y[i] = 0.0;
        for (int i = 0; i < s.h * s.w * s.c; i++) {
            const int iy = i / s.c / s.w + top, ix = i / s.c % s.w + left;
            y[(iy * o.w + ix) * s.c + i % s.c] = x[i];
        }
    } else if (l->type == &lk_layer_time_reduction) {
        const int frames = (int)l->factor;
        o = (image_shape){(s.h + frames - 1) / frames, 1, frames * s.c};
        for (int i = 0; i < o.h * o.c; i++) y[i] = i < s.h * s.c ? x[i] : 0.0;
    } else {
        o = l->target_shape.count == 1 ? (image_shape){1, 1, size[0]}
                                       : (image_shape){size[0], size[1], size[2]};
        for (int i = 0; i < s.h * s.w * s.c; i++) y[i] = x[i];
    }
    return o;
}

// Of the example at a place of the global batch. Values of layer i are at i + 1, those of the
// model's input at 0.
static double loss_of(const lk_model *m, double *const *params, uint32_t example) {
    const uint8_t *image = images[example];
    const uint32_t label = image_labels[example];
    static double values[LAYERS_MAX + 1][VALUES_MAX];
    image_shape s[LAYERS_MAX + 1] = {{(int)m->in_h, (int)m->in_w, (int)m->in_c}};
    for (int i = 0; i < s[0].h * s[0].w * s[0].c; i++) values[0][i] = image[i] / 255.0;
    uint32_t param = 0, last = m->layer_count;
    assert_true(m->layer_count <= LAYERS_MAX);
    for (uint32_t i = 0; i < m->layer_count; i++) {
        const lk_layer *l = &m->layers[i];
        const uint32_t from = l->input_count ? l->inputs[0] : i;
        const double *x2 = l->input_count > 1 ? values[l->inputs[1]] : NULL;
        const image_shape s2 = l->input_count > 1 ? s[l->inputs[1]] : s[from];
        s[i + 1] = places(l)
                       ? placed(l, s[from], s2, values[from], x2, values[i + 1])
                       : layer_forward(l, s[from], values[from], x2, params, &param, values[i + 1]);
        if (l->type != &lk_layer_dropout) continue;
        for (int v = 0; v < s[from].h * s[from].w * s[from].c; v++) {
            values[i + 1][v] = dropped(l, i, example, v, values[from][v]);
        }
    }
    if (m->loss == &lk_loss_mean_squared_error || m->loss == &lk_loss_mean) {
        const lk_loss_options *o = &m->loss_options;
        const uint32_t p = o->input_count ? o->inputs[0] : last;
        const uint32_t t = o->input_count ? o->inputs[1] : 0;
        const int count = s[p].h * s[p].w * s[p].c;
        double loss = 0.0;
        for (int i = 0; i < count; i++) {
            const double d = values[p][i] - values[t][i];
            loss += m->loss == &lk_loss_mean ? values[p][i] * (double)o->scale : d * d;
        }
        return loss / count;
    }
    if (m->loss == &lk_loss_binary_crossentropy) {
        const double share = (double)m->loss_options.scale;
        double loss = 0.0;
        for (int i = 0; i < s[last].c; i++) {
            const bool yes = s[last].c == 1 ? label == 1 : label == (uint32_t)i;
            const double z = values[last][i], y = (1.0 - share) * yes + share / 2;
            loss += fmax(z, 0.0) - z * y + log1p(exp(-fabs(z)));
        }
        return loss / s[last].c;
    }
    double sum = 0.0, top = values[last][0];
    for (int i = 1; i < s[last].c; i++) top = fmax(top, values[last][i]);
    for (int i = 0; i < s[last].c; i++) sum += exp(values[last][i] - top);
    return log(sum) - (values[last][label] - top);
}

// --- single kernels ------------------------------------------------------------------------------

// A convolution's kernels: y against double; since y is linear in x and in w, the gradients of
// sum(r * y) are differences of that sum with a step of 1.
static void check_conv2d(uint32_t in_h, uint32_t in_w, uint32_t in_c, uint32_t out_c, uint32_t kh,
                         uint32_t kw, uint32_t sh, uint32_t sw, lk_padding padding) {
    enum { M = 3 };
    const lk_layer l = {.type = &lk_layer_conv2d,
                        .units = out_c,
                        .size_h = kh,
                        .size_w = kw,
                        .stride_h = sh,
                        .stride_w = sw,
                        .padding = padding};
    int top, left;
    lk_conv2d c = {.in_h = in_h,
                   .in_w = in_w,
                   .in_c = in_c,
                   .out_c = out_c,
                   .kernel_h = kh,
                   .kernel_w = kw,
                   .stride_h = sh,
                   .stride_w = sw,
                   .use_bias = true};
    c.out_h = (uint32_t)out_size((int)in_h, (int)kh, (int)sh, padding, &top);
    c.out_w = (uint32_t)out_size((int)in_w, (int)kw, (int)sw, padding, &left);
    c.pad_top = (uint32_t)top;
    c.pad_left = (uint32_t)left;
    uint32_t in = in_h * in_w * in_c, out = c.out_h * c.out_w * out_c,
             weights = kh * kw * in_c * out_c;
    static float x[M * VALUES_MAX], y[M * VALUES_MAX], r[M * VALUES_MAX], dx[M * VALUES_MAX];
    static float w[VALUES_MAX], b[VALUES_MAX], dw[VALUES_MAX], db[VALUES_MAX];
    static double xd[VALUES_MAX], wd[VALUES_MAX], bd[VALUES_MAX], yd[VALUES_MAX], y1[VALUES_MAX];
    static double gw[VALUES_MAX], gb[VALUES_MAX];
    fill(x, M * in);
    fill(r, M * out);
    fill(w, weights);
    fill(b, out_c);
    for (uint32_t i = 0; i < weights; i++) wd[i] = (double)w[i], gw[i] = 0.0;
    for (uint32_t i = 0; i < out_c; i++) bd[i] = (double)b[i], gb[i] = 0.0;
    assert_int_equal(conv2d_forward(k, &c, M, x, w, b, y, NULL), 0);
    assert_int_equal(conv2d_input_gradient(k, &c, M, w, r, NULL, dx, NULL), 0);
    const lk_grain_view views[] = {{x, r, NULL, 2}, {x + 2 * in, r + 2 * out, NULL, 1}};
    conv2d_weight_gradient(k, &c, 2, views, dw, db, NULL);

    const image_shape s = {(int)in_h, (int)in_w, (int)in_c};
    for (uint32_t m = 0; m < M; m++) {
        for (uint32_t i = 0; i < in; i++) xd[i] = (double)x[m * in + i];
        windows(&l, s, xd, wd, bd, yd);
        for (uint32_t i = 0; i < out; i++) near("y", i, yd[i], (double)y[m * out + i], 1e-5);
        for (uint32_t i = 0; i < in; i++) {
            double sum = 0.0;
            xd[i] += 1.0;
            windows(&l, s, xd, wd, bd, y1);
            xd[i] -= 1.0;
            for (uint32_t o = 0; o < out; o++) sum += (y1[o] - yd[o]) * (double)r[m * out + o];
            near("dx", i, sum, (double)dx[m * in + i], 1e-5);
        }
        for (uint32_t i = 0; i < weights; i++) {
            wd[i] += 1.0;
            windows(&l, s, xd, wd, bd, y1);
            wd[i] -= 1.0;
            for (uint32_t o = 0; o < out; o++) gw[i] += (y1[o] - yd[o]) * (double)r[m * out + o];
        }
        for (uint32_t o = 0; o < out; o++) gb[o % out_c] += (double)r[m * out + o];
    }
    for (uint32_t i = 0; i < weights; i++) near("dw", i, gw[i], (double)dw[i], 1e-5);
    for (uint32_t i = 0; i < out_c; i++) near("db", i, gb[i], (double)db[i], 1e-5);
}

static void convolution_gradients(void **state) {
    (void)state;
    check_conv2d(5, 6, 1, 2, 3, 3, 1, 1, LK_PADDING_VALID);
    check_conv2d(5, 6, 2, 3, 3, 3, 1, 1, LK_PADDING_SAME);
    check_conv2d(7, 5, 3, 2, 2, 3, 2, 1, LK_PADDING_SAME);
    check_conv2d(8, 9, 2, 2, 3, 2, 3, 2, LK_PADDING_VALID);
    check_conv2d(4, 4, 1, 1, 1, 1, 2, 2, LK_PADDING_SAME);
    check_conv2d(3, 3, 60, 2, 3, 3, 1, 1, LK_PADDING_SAME);  // 540 terms: two slices forward
    check_conv2d(24, 23, 1, 1, 2, 2, 1, 1,
                 LK_PADDING_VALID);  // 23 x 22 outputs: 528 terms an example
}

static void convolution_by_hand(void **state) {
    (void)state;
    const lk_conv2d c = {.in_h = 3,
                         .in_w = 3,
                         .in_c = 1,
                         .out_h = 2,
                         .out_w = 2,
                         .out_c = 1,
                         .kernel_h = 2,
                         .kernel_w = 2,
                         .stride_h = 1,
                         .stride_w = 1,
                         .use_bias = true};
    const float x[] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, w[] = {1, 10, 100, 1000}, b[] = {0.5f};
    float y[4];
    assert_int_equal(conv2d_forward(k, &c, 1, x, w, b, y, NULL), 0);
    const float want[] = {5421.5f, 6532.5f, 8754.5f, 9865.5f};
    same_bits(want, y, 4);
    const float dy[] = {1, 0, 0, 2};
    float dx[9], dw[4], db[1];
    assert_int_equal(conv2d_input_gradient(k, &c, 1, w, dy, NULL, dx, NULL), 0);
    const float want_dx[] = {1, 10, 0, 100, 1002, 20, 0, 200, 2000};
    same_bits(want_dx, dx, 9);
    const lk_grain_view view = {x, dy, NULL, 1};
    conv2d_weight_gradient(k, &c, 1, &view, dw, db, NULL);
    const float want_dw[] = {11, 14, 20, 23}, want_db[] = {3};
    same_bits(want_dw, dw, 4);
    same_bits(want_db, db, 1);
}

static void pooling_by_hand(void **state) {
    (void)state;
    const lk_pool2d p = {.in_h = 3,
                         .in_w = 3,
                         .channels = 1,
                         .out_h = 2,
                         .out_w = 2,
                         .pool_h = 2,
                         .pool_w = 2,
                         .stride_h = 1,
                         .stride_w = 1};
    const float x[] = {1, 7, 7, 2, 7, 0, -1, -1, 0};
    float y[4], dx[9];
    uint16_t argmax[4];
    max_pool_forward(k, &p, 1, x, y, argmax);
    const float want[] = {7, 7, 7, 7};
    const uint16_t winners[] = {1, 0, 1, 0};  // of equals, the first
    same_bits(want, y, 4);
    assert_memory_equal(winners, argmax, sizeof winners);
    const float dy[] = {1, 2, 4, 8};
    assert_int_equal(max_pool_backward(k, &p, 1, dy, argmax, dx), 0);
    const float want_dx[] = {0, 3, 0, 0, 12, 0, 0, 0, 0};
    same_bits(want_dx, dx, 9);
    // Padding never wins, not even over negative cells.
    const lk_pool2d padded = {.in_h = 1,
                              .in_w = 1,
                              .channels = 2,
                              .out_h = 1,
                              .out_w = 1,
                              .pool_h = 3,
                              .pool_w = 3,
                              .stride_h = 1,
                              .stride_w = 1,
                              .pad_top = 1,
                              .pad_left = 1};
    const float cells[] = {-5, -6};
    max_pool_forward(k, &padded, 1, cells, y, argmax);
    same_bits(cells, y, 2);
    assert_int_equal(argmax[0], 4);
}

static void small_kernels_by_hand(void **state) {
    (void)state;
    const uint8_t bytes[] = {0, 1, 128, 255};
    float x[4];
    k->load_u8(4, bytes, x);
    for (int i = 0; i < 4; i++) assert_true(fabsf(x[i] - (float)bytes[i] / 255.0f) <= 0x1p-24f);
    assert_true(x[0] == 0.0f && x[3] == 1.0f);

    const float v[] = {-1, -0.0f, 0, 2}, dv[] = {1, 2, 3, 4}, relu[] = {0, 0, 0, 2},
                back[] = {0, 0, 0, 4};
    relu_forward(k, 4, v, x);
    same_bits(relu, x, 4);
    relu_backward(k, 4, x, dv, x);
    same_bits(back, x, 4);

    const lk_dense d = {.k_count = 2, .n_count = 2, .use_bias = true, .relu = true};
    const float in[] = {1, 2, -3, 4}, w[] = {1, 2, 3, -4}, b[] = {0.5f, 1};
    const float y_want[] = {7.5f, 0, 9.5f, 0}, dy[] = {1, 10, 100, 1000};
    const float dx_want[] = {21, -37, 0, -3700}, dw_want[] = {-299, -2990, 402, 4020};
    float y[4], dx[4], dw[4], db[2];
    assert_int_equal(dense_forward(k, &d, 2, in, w, b, y, NULL), 0);
    same_bits(y_want, y, 4);
    assert_int_equal(dense_input_gradient(k, &d, 2, w, dy, in, dx, NULL), 0);
    same_bits(dx_want, dx, 4);
    const lk_grain_view view = {in, dy, NULL, 2};
    dense_weight_gradient(k, &d, 1, &view, &(lk_weight_rows){.end = 2}, dw, NULL);
    same_bits(dw_want, dw, 4);
    k->column_sums(2, 1, &view, db);
    assert_true(db[0] == 101.0f && db[1] == 1010.0f);
}

// Against the compiler's own conversion: around every power of two, at ties and beside them.
static void counts_as_floats(void **state) {
    (void)state;
    for (uint32_t bit = 0; bit < 64; bit++) {
        for (uint32_t low = 0; low < 64; low++) {
            for (int64_t d = -3; d <= 3; d++) {
                const uint64_t n = (1ull << bit) + (low < bit ? 1ull << low : 0) + (uint64_t)d;
                const float got = lk_count_to_float(n), want = (float)n;
                assert_memory_equal(&got, &want, sizeof got);
                const float more = lk_count_to_float(n * 3), three = (float)(n * 3);
                assert_memory_equal(&more, &three, sizeof more);
            }
        }
    }
}

static void loss_and_its_gradient(void **state) {
    (void)state;
    enum { CLASSES = 10, M = 7 };
    float z[M * CLASSES], dz[M * CLASSES], loss[M];
    uint32_t labels[M], correct, hits = 0;
    fill(z, M * CLASSES);
    for (uint32_t i = 0; i < M * CLASSES; i++) z[i] *= 6.0f;
    for (uint32_t i = 0; i < CLASSES; i++) z[i] = 1.25f;  // uniform: the loss is log 10
    for (uint32_t m = 0; m < M; m++) labels[m] = m % CLASSES;
    assert_int_equal(softmax_cross_entropy(k, M, CLASSES, z, labels, dz, loss, &correct), 0);
    near("loss", 0, 2.302585093, (double)loss[0], 1e-7);
    for (uint32_t m = 0; m < M; m++) {
        double sum = 0.0;
        uint32_t top = 0;
        for (uint32_t i = 0; i < CLASSES; i++) {
            sum += exp((double)z[m * CLASSES + i]);
            if (z[m * CLASSES + i] > z[m * CLASSES + top]) top = i;
        }
        hits += top == labels[m];
        near("loss", m, log(sum) - (double)z[m * CLASSES + labels[m]], (double)loss[m], 1e-6);
        for (uint32_t i = 0; i < CLASSES; i++) {
            double p = exp((double)z[m * CLASSES + i]) / sum - (i == labels[m]);
            near("dlogits", i, p, (double)dz[m * CLASSES + i], 1e-6);
        }
    }
    assert_int_equal(correct, hits);
}

// --- fused against separate ----------------------------------------------------------------------

// `ties`: values are small integers, so that sums are often equal, and often 0.
static void check_fused(uint32_t h, uint32_t w_count, bool relu, bool ties) {
    enum { M = 3, OUT_C = 3, IN_C = 2, SIZE = 3 };
    const lk_conv2d c = {.in_h = h,
                         .in_w = w_count,
                         .in_c = IN_C,
                         .out_h = h - 2,
                         .out_w = w_count - 2,
                         .out_c = OUT_C,
                         .kernel_h = SIZE,
                         .kernel_w = SIZE,
                         .stride_h = 1,
                         .stride_w = 1,
                         .use_bias = true,
                         .relu = relu};
    const lk_pool2d p = {.in_h = c.out_h,
                         .in_w = c.out_w,
                         .channels = OUT_C,
                         .out_h = c.out_h / 2,
                         .out_w = c.out_w / 2,
                         .pool_h = 2,
                         .pool_w = 2,
                         .stride_h = 2,
                         .stride_w = 2};
    uint64_t in = lk_conv2d_in_floats(&c), out = lk_conv2d_out_floats(&c);
    uint64_t pooled = lk_conv2d_pooled_floats(&c), weights = lk_conv2d_weight_floats(&c);
    static float x[VALUES_MAX], w[VALUES_MAX], b[OUT_C], y[VALUES_MAX], separate[VALUES_MAX];
    static float fused[VALUES_MAX], dy[VALUES_MAX], dsum[VALUES_MAX], dx[2][VALUES_MAX];
    static float dw[2][VALUES_MAX], db[2][OUT_C];
    static uint16_t winners[VALUES_MAX];
    static uint8_t argmax[VALUES_MAX];
    assert_true(M * in <= VALUES_MAX && M * out <= VALUES_MAX);
    fill(x, M * in);
    fill(w, weights);
    fill(b, OUT_C);
    fill(dy, M * pooled);
    for (uint64_t i = 0; ties && i < M * in; i++) x[i] = roundf(x[i]);
    for (uint64_t i = 0; ties && i < weights; i++) w[i] = roundf(w[i]);
    for (uint64_t i = 0; ties && i < OUT_C; i++) b[i] = -1.0f;

    assert_int_equal(conv2d_forward(k, &c, M, x, w, b, y, NULL), 0);
    max_pool_forward(k, &p, M, y, separate, winners);
    assert_int_equal(conv2d_pool_forward(k, &c, M, x, w, b, fused, argmax, NULL, NULL), 0);
    same_bits(separate, fused, M * pooled);

    assert_int_equal(max_pool_backward(k, &p, M, dy, winners, dsum), 0);
    if (relu) relu_backward(k, M * out, y, dsum, dsum);
    if (relu) relu_backward(k, M * pooled, fused, dy, dy);
    assert_int_equal(conv2d_input_gradient(k, &c, M, w, dsum, x, dx[0], NULL), 0);
    assert_int_equal(conv2d_pool_input_gradient(k, &c, M, w, dy, argmax, x, dx[1], NULL), 0);
    same_bits(dx[0], dx[1], M * in);
    const lk_grain_view whole[] = {{x, dsum, NULL, 2}, {x + 2 * in, dsum + 2 * out, NULL, 1}};
    const lk_grain_view routed[] = {{x, dy, argmax, 2},
                                    {x + 2 * in, dy + 2 * pooled, argmax + 2 * pooled, 1}};
    conv2d_weight_gradient(k, &c, 2, whole, dw[0], db[0], NULL);
    conv2d_pool_weight_gradient(k, &c, 2, routed, dw[1], db[1], NULL);
    for (uint64_t i = 0; i < weights; i++) dw[0][i] += 0.0f, dw[1][i] += 0.0f;
    same_bits(dw[0], dw[1], weights);
    for (uint64_t i = 0; i < OUT_C; i++) db[0][i] += 0.0f, db[1][i] += 0.0f;
    same_bits(db[0], db[1], OUT_C);
}

static void fused_equals_separate(void **state) {
    (void)state;
    for (int i = 0; i < 8; i++) {
        check_fused(8, 8, i & 1, i & 2);
        check_fused(9, 6, i & 1, i & 2);
        check_fused(5, 11, i & 1, i & 2);
    }
    check_fused(25, 25, true, false);  // 23 x 23: an example in two slices
}

// --- whole programs ------------------------------------------------------------------------------



static void in_order(void *context, uint64_t epoch, uint64_t position, uint32_t count,
                     uint64_t *index) {
    (void)context, (void)epoch;
    for (uint32_t i = 0; i < count; i++) index[i] = position + i;
}
static const uint8_t *image_at(void *context, uint64_t index) {
    (void)context;
    return images[index];
}
static uint32_t label_at(void *context, uint64_t index) {
    (void)context;
    return image_labels[index];
}

static void *memory(uint64_t bytes) {
    void *p = aligned_alloc(64, lk_round_up(bytes, 64) + 64);
    assert_non_null(p);
    memset(p, 0x7f, lk_round_up(bytes, 64) + 64);
    return p;
}

// One step of plain SGD with learning rate 1 leaves w - mean gradient: that difference, against the
// central differences of the loss in double, for every element of every parameter.
static void check_program(const lk_run_spec *spec, const lk_layout *layout,
                          const lk_kernels *kernels) {
    const double step = 1e-7;  // seldom over the edge of a ReLU
    lk_error error = {.status = LK_OK};
    lk_program p;
    const lk_plan_options options = {.overlay = true};
    void *tables = memory(lk_program_bytes(&spec->model));
    lk_status status = lk_program_build(spec, layout, &options, tables, &p, &error);
    if (status != LK_OK) print_error("%s\n", error.text);
    assert_int_equal(status, LK_OK);
    uint64_t stride = p.regions[LK_REGION_REPLICA].bytes;
    uint8_t *device = memory(p.regions[LK_REGION_DEVICE].bytes),
            *replicas = memory(stride * layout->replicas);
    void *group_tables = memory(lk_group_bytes(&p));
    lk_program_initialize(&p, device);
    double *params[PARAMS_MAX];
    for (uint32_t i = 0; i < p.param_count; i++) {
        float *w = (float *)(void *)(device + p.tensors[p.params[i].tensor].offset);
        params[i] = memory(p.params[i].count * sizeof **params);
        for (uint64_t e = 0; e < p.params[i].count; e++) {
            if (p.params[i].initializer == &lk_initializer_zeros)
                w[e] = 0.125f * draw();  // biases count too
            params[i][e] = (double)w[e];
        }
    }
    const lk_source source = {NULL, in_order, image_at, label_at, false, NULL, false};
    lk_group group;
    lk_group_make(&group, &p, kernels, &source, device, replicas, stride, group_tables);
    for (uint32_t r = 0; r < layout->replicas; r++) lk_step_compute(&group, r, 0);
    for (uint32_t r = 0; r < layout->replicas; r++) lk_step_update(&group, r, 0);
    lk_step_result result = lk_step_finish(&group, 0);
    assert_null(result.bad_tensor);

    double loss = 0.0;
    for (uint32_t m = 0; m < EXAMPLES; m++)
        loss += loss_of(&spec->model, params, m);
    near("loss", 0, loss / EXAMPLES, (double)result.means[0], 1e-5);
    for (uint32_t i = 0; i < p.param_count; i++) {
        const float *w = (float *)(void *)(device + p.tensors[p.params[i].tensor].offset);
        for (uint64_t e = 0; e < p.params[i].count; e++) {
            double before = params[i][e], difference = 0.0;
            for (uint32_t m = 0; m < EXAMPLES; m++) {
                params[i][e] = before + step;
                difference += loss_of(&spec->model, params, m);
                params[i][e] = before - step;
                difference -= loss_of(&spec->model, params, m);
            }
            params[i][e] = before;
            near(p.tensors[p.params[i].tensor].name, e, difference / (2 * step * EXAMPLES),
                 before - (double)w[e], 2e-5);
        }
    }
    for (uint32_t i = 0; i < p.param_count; i++) free(params[i]);
    free(group_tables);
    free(replicas);
    free(device);
    free(tables);
}

static void check_model_of(const lk_model *model) {
    const lk_run_spec spec = {.model = *model,
                              .seed = SEED,
                              .global_batch = EXAMPLES,
                              .optimizer = {.type = &lk_optimizer_sgd, .learning_rate = 1.0f},
                              .grain = 2,
                              .example_count = EXAMPLES};
    assert_true(model->in_h * model->in_w * model->in_c <= IMAGE_MAX);
    for (uint32_t m = 0; m < EXAMPLES; m++) {
        image_labels[m] = m % 3;
        for (uint32_t i = 0; i < IMAGE_MAX; i++) images[m][i] = (uint8_t)((draw() + 1.0f) * 127.0f);
    }
    for (uint32_t i = 0; i < 8; i++) {
        const lk_layout layout = {
            .replicas = i & 1 ? 2 : 1,
            .fuse = i & 2,
            .microbatch_examples = i & 4 ? 0 : 2,
            .reduce = i & 4 ? LK_REDUCE_ALL_OPERANDS : LK_REDUCE_ALL_PARTIALS};
        check_program(&spec, &layout, &lk_kernels_reference);
        check_program(&spec, &layout, &lk_kernels_portable);
    }
}

static void check_model(uint32_t h, uint32_t w, uint32_t c, const lk_layer *layers,
                        uint32_t count) {
    const lk_model model = {
        .in_h = h, .in_w = w, .in_c = c, .classes = 3, .layer_count = count, .layers = layers};
    check_model_of(&model);
}

#define CONV(n, filters, size, stride, pad, bias, with_relu)                                   \
    {                                                                                          \
        .type = &lk_layer_conv2d, .name = n, .units = filters, .size_h = size, .size_w = size, \
        .stride_h = stride, .stride_w = stride, .padding = pad, .use_bias = bias,              \
        .activation = (with_relu) ? &lk_layer_relu : NULL,                                     \
        .initializer = &lk_initializer_he_uniform                                              \
    }
#define DENSE(n, count, bias, with_relu)                                      \
    {                                                                         \
        .type = &lk_layer_dense, .name = n, .units = count, .use_bias = bias, \
        .activation = (with_relu) ? &lk_layer_relu : NULL,                    \
        .initializer = &lk_initializer_glorot_uniform                         \
    }
#define VALID LK_PADDING_VALID
#define SAME  LK_PADDING_SAME

static void gradients_of_mnist_shape(void **state) {
    (void)state;
    const lk_layer layers[] = {CONV("a", 3, 3, 1, VALID, true, true), POOL("p", 2, 2, VALID),
                               FLATTEN, DENSE("b", 5, true, true), DENSE("c", 3, true, false)};
    check_model(8, 8, 1, layers, LK_COUNT(layers));
}

static void gradients_of_two_pooled(void **state) {
    (void)state;
    const lk_layer layers[] = {CONV("a", 3, 2, 1, VALID, true, true),
                               POOL("p", 2, 2, VALID),
                               CONV("b", 2, 2, 1, SAME, true, true),
                               POOL("q", 2, 2, VALID),
                               FLATTEN,
                               DENSE("c", 3, true, false)};
    check_model(10, 8, 2, layers, LK_COUNT(layers));
}

static void gradients_of_strides_and_overlap(void **state) {
    (void)state;
    const lk_layer layers[] = {CONV("a", 3, 3, 1, SAME, false, true),
                               POOL("p", 3, 2, SAME),
                               RELU("r"),
                               CONV("b", 4, 3, 2, SAME, true, false),
                               RELU("s"),
                               FLATTEN,
                               DENSE("c", 4, false, true),
                               DENSE("d", 3, true, false)};
    check_model(9, 7, 1, layers, LK_COUNT(layers));
}

// A winner that relu made 0 passes no gradient, though nothing after the pool hides it.
static void gradients_of_pools_that_do_not_fuse(void **state) {
    (void)state;
    const lk_layer layers[] = {CONV("a", 8, 3, 1, VALID, true, true), POOL("p", 2, 1, VALID),
                               FLATTEN, DENSE("b", 3, true, false)};
    check_model(5, 5, 1, layers, LK_COUNT(layers));
}

static void gradients_of_odd_orders(void **state) {
    (void)state;
    const lk_layer layers[] = {POOL("p", 2, 1, VALID),
                               CONV("a", 2, 2, 1, VALID, true, false),
                               POOL("q", 2, 2, VALID),
                               RELU("r"),
                               CONV("b", 3, 2, 1, SAME, true, true),
                               RELU("s"),
                               POOL("t", 3, 1, SAME),
                               FLATTEN,
                               RELU("u"),
                               DENSE("c", 4, true, false),
                               DENSE("d", 3, true, true)};
    check_model(8, 7, 1, layers, LK_COUNT(layers));
}

static void gradients_of_dense_only(void **state) {
    (void)state;
    const lk_layer layers[] = {FLATTEN, DENSE("a", 6, true, true), DENSE("b", 5, false, false),
                               RELU("r"), DENSE("c", 3, true, false)};
    check_model(5, 5, 2, layers, LK_COUNT(layers));
}

// Rows of one element: the output of a layer of one unit, and a pooled map that is one cell.
static void gradients_of_narrow_layers(void **state) {
    (void)state;
    const lk_layer pooled[] = {CONV("a", 1, 2, 1, VALID, true, true), POOL("p", 2, 2, VALID),
                               FLATTEN, DENSE("b", 3, true, false)};
    check_model(3, 3, 1, pooled, LK_COUNT(pooled));
    const lk_layer units[] = {FLATTEN,
                              DENSE("a", 1, true, false),
                              DENSE("b", 4, true, true),
                              DENSE("c", 1, true, false),
                              RELU("r"),
                              DENSE("d", 3, true, false)};
    check_model(3, 3, 2, units, LK_COUNT(units));
    const lk_layer one_by_one[] = {CONV("a", 1, 3, 1, VALID, true, false),
                                   CONV("b", 2, 1, 1, SAME, true, false), FLATTEN,
                                   DENSE("c", 3, true, false)};
    check_model(3, 3, 1, one_by_one, LK_COUNT(one_by_one));
}

// --- graphs: several users of a tensor ----------------------------------------------------------

#define ADD(n, a, b) {.type = &lk_layer_add, .name = n, .input_count = 2, .inputs = {a, b}}
#define FROM(layer, number) from_input((lk_layer)layer, number)

static lk_layer from_input(lk_layer l, uint32_t number) {
    l.input_count = 1;
    l.inputs[0] = number;
    return l;
}

// A residual block over images: its input is used by a convolution, by a pool and by the sum.
static void gradients_of_a_residual_block(void **state) {
    (void)state;
    const lk_layer layers[] = {
        CONV("stem", 3, 3, 1, SAME, true, true),                   // 1
        CONV("a", 4, 3, 1, SAME, true, true),                      // 2
        CONV("b", 3, 3, 1, SAME, true, false),                     // 3
        ADD("sum", 3, 1),                                          // 4
        RELU("out"),                                               // 5
        FROM(POOL("side", 3, 1, SAME), 1),                         // 6
        ADD("both", 5, 6),                                         // 7
        POOL("p", 2, 2, VALID), FLATTEN, DENSE("c", 3, true, false)};
    check_model(6, 5, 2, layers, LK_COUNT(layers));
}

#define FUNCTION(n, kind) {.type = &lk_layer_##kind, .name = n, .negative_slope = 0.3f}

static lk_layer with_activation(lk_layer l, const lk_layer_type *activation) {
    l.activation = activation;
    return l;
}

static void gradients_of_activations(void **state) {
    (void)state;
    const lk_layer layers[] = {
        with_activation((lk_layer)CONV("a", 3, 3, 1, SAME, true, false), &lk_layer_tanh),
        FUNCTION("leaky", leaky_relu),
        POOL("p", 2, 2, VALID),
        FUNCTION("s", sigmoid),
        with_activation((lk_layer)CONV("b", 2, 2, 1, SAME, true, false), &lk_layer_leaky_relu),
        FUNCTION("t", tanh),
        ADD("sum", 6, 5),
        FLATTEN,
        with_activation((lk_layer)DENSE("c", 5, true, false), &lk_layer_sigmoid),
        FUNCTION("both", leaky_relu),
        FROM(FUNCTION("own", tanh), 9),
        ADD("last", 10, 11),
        DENSE("d", 3, true, false)};
    check_model(6, 6, 1, layers, LK_COUNT(layers));
}

// As layers and as activations, of several users, after each other.
static void gradients_of_smooth_activations(void **state) {
    (void)state;
    const lk_layer layers[] = {
        with_activation((lk_layer)CONV("a", 3, 3, 1, SAME, true, false), &lk_layer_gelu),
        {.type = &lk_layer_gelu, .name = "tanh_form", .approximate = true},
        FUNCTION("s", swish),
        with_activation((lk_layer)CONV("b", 2, 2, 1, SAME, true, false), &lk_layer_swish),
        {.type = &lk_layer_elu, .name = "e", .alpha = 0.5f},
        FUNCTION("p", softplus),
        ADD("sum", 6, 5),
        FUNCTION("six", relu6),
        FLATTEN,
        with_activation((lk_layer)DENSE("c", 5, true, false), &lk_layer_elu),
        with_activation((lk_layer)DENSE("d", 4, true, false), &lk_layer_softplus),
        FROM(FUNCTION("own", gelu), 10),
        with_activation((lk_layer)FROM(DENSE("f", 4, true, false), 11), &lk_layer_relu6),
        FROM(DENSE("g", 4, true, false), 12),
        ADD("last", 13, 14),
        DENSE("h", 3, true, false)};
    check_model(6, 6, 1, layers, LK_COUNT(layers));
}

#define AVERAGE(n, size, stride, pad)                                                \
    {                                                                                \
        .type = &lk_layer_average_pool2d, .name = n, .size_h = size, .size_w = size, \
        .stride_h = stride, .stride_w = stride, .padding = pad                       \
    }

static void gradients_of_averages(void **state) {
    (void)state;
    const lk_layer layers[] = {CONV("a", 3, 3, 1, SAME, true, true),
                               AVERAGE("p", 3, 2, SAME),
                               CONV("b", 4, 2, 1, SAME, true, false),
                               AVERAGE("q", 2, 1, VALID),
                               {.type = &lk_layer_global_average_pool2d, .name = "mean"},
                               DENSE("c", 3, true, false)};
    check_model(7, 6, 1, layers, LK_COUNT(layers));
}

// Images and rows beside each other, one beside itself, beside the input; zeros around and within;
// rows as images and images as others.
static void gradients_of_places(void **state) {
    (void)state;
#define BESIDE(n, a, b) \
    {.type = &lk_layer_concatenate, .name = n, .input_count = 2, .inputs = {a, b}}
#define AROUND(n, ...) {.type = &lk_layer_zero_padding2d, .name = n, .sides = {__VA_ARGS__}}
#define SEEN(n, k, ...) \
    {.type = &lk_layer_reshape, .name = n, .target_shape = {.count = k, .at = {__VA_ARGS__}}}
    const lk_layer layers[] = {AROUND("frame", 0, 2, 1, 0),
                               CONV("a", 3, 3, 1, VALID, true, true),
                               BESIDE("twice", 2, 2),
                               AROUND("ring", 1, 1, 1, 1),
                               CONV("b", 2, 3, 1, VALID, true, false),
                               BESIDE("both", 5, 2),
                               SEEN("seen", 3, 3, 5, 5),
                               AROUND("sides", 0, 0, 2, 2),
                               POOL("p", 2, 1, VALID),
                               SEEN("row", 1, 80),
                               DENSE("c", 4, true, false),
                               BESIDE("rows", 10, 11),
                               DENSE("d", 3, true, false)};
    check_model(5, 4, 2, layers, LK_COUNT(layers));
#define AS_ONE(n, k) {.type = &lk_layer_time_reduction, .name = n, .factor = k}
    const lk_layer times[] = {SEEN("rows", 3, 10, 1, 2),
                              AS_ONE("two", 2),
                              CONV("a", 3, 1, 1, VALID, true, false),
                              AS_ONE("three", 3),
                              CONV("b", 3, 1, 1, VALID, true, true),
                              AS_ONE("all", 2),
                              FLATTEN,
                              DENSE("c", 3, true, false)};
    check_model(5, 4, 1, times, LK_COUNT(times));
    const lk_layer input[] = {CONV("a", 2, 3, 1, SAME, true, false), BESIDE("s", 0, 1),
                              BESIDE("t", 2, 0), FLATTEN, DENSE("b", 3, true, false)};
    check_model(4, 3, 2, input, LK_COUNT(input));
}

#define TRANSPOSE(n, filters, size, stride, pad, bias, act)                              \
    {                                                                                    \
        .type = &lk_layer_conv2d_transpose, .name = n, .units = filters, .size_h = size, \
        .size_w = size, .stride_h = stride, .stride_w = stride, .padding = pad,          \
        .use_bias = bias, .activation = act ? &lk_layer_relu : NULL,                     \
        .initializer = &lk_initializer_glorot_uniform                                    \
    }

// Windows that overlap, that meet and that leave rows to nobody; two users of one; ReLU in it, and
// masked by the layer behind it.
static void gradients_of_transposed_convolutions(void **state) {
    (void)state;
    const lk_layer layers[] = {CONV("a", 3, 2, 2, SAME, true, true),
                               TRANSPOSE("b", 2, 4, 2, SAME, true, true),
                               TRANSPOSE("c", 3, 2, 3, VALID, true, false),
                               POOL("p", 3, 3, SAME),
                               TRANSPOSE("d", 2, 3, 1, VALID, false, true),
                               POOL("q", 2, 2, VALID),
                               FLATTEN,
                               DENSE("e", 3, true, false)};
    check_model(5, 4, 2, layers, LK_COUNT(layers));
    const lk_layer shared[] = {TRANSPOSE("a", 2, 3, 2, SAME, true, true), POOL("p", 2, 2, VALID),
                               FROM(CONV("b", 2, 2, 2, SAME, true, false), 1), ADD("s", 2, 3),
                               FLATTEN, DENSE("c", 3, true, false)};
    check_model(4, 3, 1, shared, LK_COUNT(shared));
}

#define GROUPS(n, filters, size, stride, spread, parts, pad, bias, act)                     \
    {                                                                                       \
        .type = &lk_layer_conv2d, .name = n, .units = filters, .size_h = size,              \
        .size_w = size, .stride_h = stride, .stride_w = stride, .dilation_h = spread,       \
        .dilation_w = spread, .groups = parts, .padding = pad, .use_bias = bias,            \
        .activation = (act) ? &lk_layer_relu : NULL,                                        \
        .initializer = &lk_initializer_he_uniform                                           \
    }
#define DEPTHWISE(n, multiplier, size, stride, spread, pad, bias, act)                      \
    {                                                                                       \
        .type = &lk_layer_depthwise_conv2d, .name = n, .units = multiplier, .size_h = size, \
        .size_w = size, .stride_h = stride, .stride_w = stride, .dilation_h = spread,       \
        .dilation_w = spread, .padding = pad, .use_bias = bias,                             \
        .activation = (act) ? &lk_layer_relu : NULL,                                        \
        .initializer = &lk_initializer_he_uniform                                           \
    }

// Groups of one channel and of several, windows that are spread out, strides; two users of one.
static void gradients_of_grouped_convolutions(void **state) {
    (void)state;
    const lk_layer layers[] = {CONV("a", 4, 2, 1, SAME, true, true),
                               GROUPS("b", 6, 3, 2, 1, 2, SAME, true, true),
                               DEPTHWISE("c", 2, 2, 1, 2, SAME, true, false),
                               GROUPS("d", 4, 2, 1, 1, 4, VALID, false, true),
                               FLATTEN,
                               DENSE("e", 3, true, false)};
    check_model(6, 7, 2, layers, LK_COUNT(layers));
    const lk_layer spread[] = {GROUPS("a", 3, 3, 1, 2, 1, VALID, true, true),
                               DEPTHWISE("b", 1, 3, 2, 1, SAME, true, true),
                               DEPTHWISE("c", 1, 2, 1, 3, SAME, false, false),
                               ADD("s", 2, 3),
                               FLATTEN,
                               DENSE("e", 3, true, false)};
    check_model(8, 9, 1, spread, LK_COUNT(spread));
}

// Of images, of rows whose length no block of words divides, twice in a row; nothing left out.
static void gradients_of_dropout(void **state) {
    (void)state;
#define DROPOUT(n, part) {.type = &lk_layer_dropout, .name = n, .rate = part}
    const lk_layer layers[] = {CONV("a", 3, 3, 1, SAME, true, true),
                               DROPOUT("p", 0.25f),
                               POOL("q", 2, 2, VALID),
                               FLATTEN,
                               DENSE("b", 7, true, true),
                               DROPOUT("r", 0.5f),
                               DROPOUT("s", 0.0f),
                               ADD("t", 7, 5),
                               DENSE("c", 3, true, false)};
    check_model(6, 5, 1, layers, LK_COUNT(layers));
}

// The loss sum of r * y over one grain of `m` examples, in double.
static double norm_loss(const lk_batch_norm *n, int m, const double *x, const double *gamma,
                        const double *beta, const double *r, double *mean, double *square) {
    const int cells = m * (int)(n->h * n->w), channels = (int)n->channels;
    double loss = 0.0;
    for (int c = 0; c < channels; c++) {
        double sum = 0.0, squares = 0.0;
        for (int i = 0; i < cells; i++) sum += x[i * channels + c];
        sum /= cells;
        for (int i = 0; i < cells; i++) squares += pow(x[i * channels + c] - sum, 2.0);
        const double inverse = 1.0 / sqrt(squares / cells + (double)n->epsilon);
        for (int i = 0; i < cells; i++) {
            const double y = (x[i * channels + c] - sum) * inverse * gamma[c] + beta[c];
            loss += r[i * channels + c] * y;
        }
        mean[c] = sum;
        square[c] = squares;
    }
    return loss;
}

// Its kernels on a grain: y, dx and the gradients of gamma and beta against central differences;
// and what is kept for the moving statistics.
static void check_norm(uint32_t h, uint32_t w, uint32_t channels, uint32_t m) {
    enum { MOST = 3000 };
    const lk_batch_norm n = {.h = h, .w = w, .channels = channels, .epsilon = 1e-3f,
                       .scale = true, .center = true};
    const uint32_t floats = h * w * channels, count = m * floats;
    static float x[MOST], dy[MOST], dx[MOST], y[MOST], gamma[64], beta[64], kept[64 * 8];
    static double xd[MOST], rd[MOST], gd[64], bd[64], mean[64], square[64], unused[64];
    lk_op op = {.type = &lk_op_batch_normalization, .floats = floats, .norm = n};
    lk_lane l = {.examples = m, .grain = m, .train = true, .param = {gamma, beta}};
    assert_true(count <= MOST && channels <= 64);
    fill(x, count), fill(dy, count), fill(gamma, channels), fill(beta, channels);
    for (uint32_t i = 0; i < count; i++) xd[i] = (double)x[i], rd[i] = (double)dy[i];
    for (uint32_t i = 0; i < channels; i++) gd[i] = (double)gamma[i], bd[i] = (double)beta[i];
    l.at[LK_X] = x, l.at[LK_Y] = y, l.at[LK_AUX] = kept, l.at[LK_DY] = dy, l.at[LK_DX] = dx;
    assert_int_equal(lk_op_batch_normalization.reference(&l, &op), 0);
    assert_int_equal(lk_op_batch_normalization_backward.reference(&l, &op), 0);
    const double loss = norm_loss(&n, (int)m, xd, gd, bd, rd, mean, square), by = 1e-5;
    double found = 0.0;
    for (uint32_t i = 0; i < count; i++) found += rd[i] * (double)y[i];
    near("loss", 0, loss, found, 1e-5);
    double *const wrt[] = {xd, gd, bd};
    const float *const gradients[] = {dx, kept + LK_NORM_GAMMA * channels,
                                      kept + LK_NORM_BETA * channels};
    for (uint32_t g = 0; g < 3; g++) {
        for (uint32_t i = 0; i < (g ? channels : count); i++) {
            const double before = wrt[g][i];
            wrt[g][i] = before + by;
            double slope = norm_loss(&n, (int)m, xd, gd, bd, rd, unused, unused);
            wrt[g][i] = before - by;
            slope -= norm_loss(&n, (int)m, xd, gd, bd, rd, unused, unused);
            wrt[g][i] = before;
            near(g ? g > 1 ? "beta" : "gamma" : "dx", i, slope / (2 * by),
                 (double)gradients[g][i], 2e-5);
        }
    }
    for (uint32_t c = 0; c < channels; c++) {
        near("sum", c, mean[c] * m * h * w, (double)kept[LK_NORM_SUM * channels + c], 1e-5);
        near("squares", c, square[c], (double)kept[LK_NORM_SQUARES * channels + c], 1e-5);
    }
}

static void gradients_of_batch_normalization(void **state) {
    (void)state;
    check_norm(3, 4, 5, 4);
    check_norm(1, 1, 7, 16);
    check_norm(5, 5, 1, 2);
    check_norm(24, 23, 2, 2);  // 576 terms an example: two slices
}

// Forward, dx and the gradients of gamma and beta of `cells` cells of K values, as one grain.
typedef struct layer_norm_run {
    float x[2048], dy[2048], y[2048], dx[2048], kept[2048], gamma[1024], beta[1024];
    float of_gamma[1024], of_beta[1024];
} layer_norm_run;

static void run_layer_norm(layer_norm_run *r, uint32_t examples, uint32_t h, uint32_t w,
                           uint32_t channels) {
    lk_op op = {.type = &lk_op_layer_normalization,
                .floats = (uint64_t)h * w * channels,
                .norm = {.h = h, .w = w, .channels = channels, .epsilon = 1e-3f}};
    lk_lane l = {.examples = examples, .grain = examples, .train = true,
                 .param = {r->gamma, r->beta}, .sums = {r->of_gamma, r->of_beta}};
    const lk_grain_view view = {.x = r->x, .dy = r->dy, .argmax = (const uint8_t *)r->kept,
                                .examples = examples};
    l.grains = &view, l.grain_count = 1;
    l.at[LK_X] = r->x, l.at[LK_Y] = r->y, l.at[LK_AUX] = r->kept, l.at[LK_DY] = r->dy;
    l.at[LK_DX] = r->dx;
    assert_int_equal(lk_op_layer_normalization.reference(&l, &op), 0);
    assert_int_equal(lk_op_layer_normalization_input_gradient.reference(&l, &op), 0);
    assert_int_equal(lk_op_layer_normalization_gradient.reference(&l, &op), 0);
}

// Of Keras 3 in float64.
static void golden_layer_normalization(void **state) {
    (void)state;
    static const double x[] = {0.681, 0.383, -0.564, -1.382, 0.95, 0.966, -0.141, 0.542, 0.781,
        0.831, 0.921, -0.456, 1.515, -1.247, 0.862};
    static const double gamma[] = {0.247, 0.437, 0.94, 0.742, -0.573};
    static const double beta[] = {-0.844, 0.408, -0.508, -0.006, 0.42};
    static const double dy[] = {-1.644, -2.11, 0.259, 0.044, -0.246, 0.039, -0.861, -1.513,
        -0.167, -0.972, -1.643, 0.506, -0.061, 0.407, -0.989};
    static const double y[] = {-0.653524279116, 0.594524033538, -1.13535232014, -1.20252378571,
        -0.199972601792, -0.612107671537, -0.408552415548, -0.636251703697, 0.342496083195,
        0.078221331833, -0.697425532426, 0.07415258312, 0.600214718987, -1.15140887484,
        0.113296076059};
    static const double dx[] = {-0.121554175329, -0.778992624586, 0.37319803489, -0.038425303869,
        0.565774068894, 0.150132610466, 0.851939141359, -2.83744375451, 0.092285494459,
        1.74308650823, -0.448681789462, -0.001996211638, -0.031265071657, -0.020690009788,
        0.502633082545};
    static const double dgamma[] = {-2.20615439088, 0.32164559744, -0.038340979873,
        -0.777664830896, -1.37530943504};
    static const double dbeta[] = {-3.248, -2.465, -1.315, 0.284, -2.207};
    static layer_norm_run r;
    for (uint32_t i = 0; i < 15; i++) r.x[i] = (float)x[i], r.dy[i] = (float)dy[i];
    for (uint32_t n = 0; n < 5; n++) r.gamma[n] = (float)gamma[n], r.beta[n] = (float)beta[n];
    run_layer_norm(&r, 3, 1, 1, 5);
    for (uint32_t i = 0; i < 15; i++) {
        near("y", i, y[i], (double)r.y[i], 1e-6);
        near("dx", i, dx[i], (double)r.dx[i], 1e-5);
    }
    for (uint32_t i = 0; i < 5; i++) {
        near("gamma", i, dgamma[i], (double)r.of_gamma[i], 1e-6);
        near("beta", i, dbeta[i], (double)r.of_beta[i], 1e-6);
    }
}

static double layer_norm_loss(uint32_t cells, uint32_t channels, const double *x,
                              const double *gamma, const double *beta, const double *r) {
    double loss = 0.0;
    for (uint32_t c = 0; c < cells; c++, x += channels, r += channels) {
        double mean = 0.0, squares = 0.0;
        for (uint32_t n = 0; n < channels; n++) mean += x[n] / channels;
        for (uint32_t n = 0; n < channels; n++) squares += pow(x[n] - mean, 2.0) / channels;
        for (uint32_t n = 0; n < channels; n++) {
            loss += r[n] * ((x[n] - mean) / sqrt(squares + 1e-3) * gamma[n] + beta[n]);
        }
    }
    return loss;
}

static void check_layer_norm(uint32_t examples, uint32_t h, uint32_t w, uint32_t channels) {
    static layer_norm_run r;
    static double x[2048], gamma[1024], beta[1024], dy[2048];
    const uint32_t cells = examples * h * w, count = cells * channels;
    assert_true(count <= 2048 && channels <= 1024 && cells <= 1024);
    fill(r.x, count), fill(r.dy, count), fill(r.gamma, channels), fill(r.beta, channels);
    for (uint32_t i = 0; i < count; i++) x[i] = (double)r.x[i], dy[i] = (double)r.dy[i];
    for (uint32_t i = 0; i < channels; i++) {
        gamma[i] = (double)r.gamma[i], beta[i] = (double)r.beta[i];
    }
    run_layer_norm(&r, examples, h, w, channels);
    double found = 0.0, *const wrt[] = {x, gamma, beta};
    for (uint32_t i = 0; i < count; i++) found += dy[i] * (double)r.y[i];
    near("loss", 0, layer_norm_loss(cells, channels, x, gamma, beta, dy), found, 1e-5);
    const float *const gradients[] = {r.dx, r.of_gamma, r.of_beta};
    static const char *const names[] = {"dx", "gamma", "beta"};
    for (uint32_t g = 0; g < 3; g++) {
        for (uint32_t i = 0; i < (g ? channels : count); i++) {
            const double before = wrt[g][i], by = 1e-5;
            wrt[g][i] = before + by;
            double slope = layer_norm_loss(cells, channels, x, gamma, beta, dy);
            wrt[g][i] = before - by;
            slope -= layer_norm_loss(cells, channels, x, gamma, beta, dy);
            wrt[g][i] = before;
            near(names[g], i, slope / (2 * by), (double)gradients[g][i], 5e-5);
        }
    }
}

static void gradients_of_layer_normalization(void **state) {
    (void)state;
    check_layer_norm(3, 1, 1, 7);
    check_layer_norm(2, 3, 4, 5);
    check_layer_norm(1, 24, 23, 2);   // 552 cells: two slices
    check_layer_norm(2, 1, 1, 700);   // values in two slices
}

// A kernel of 40 x 25, and what is known of its numbers: deviation, and the greatest there may be.
typedef struct initial_case {
    const lk_initializer *initializer;
    float value;
    double deviation, most;
    uint64_t bits;  // all of them, one after the other, frozen
} initial_case;

static uint64_t bits_of_all(const float *w, uint64_t count) {
    uint64_t sum = 14695981039346656037u;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &w[i], sizeof bits);
        sum = (sum ^ bits) * 1099511628211u;
    }
    return sum;
}

static void initial_values_of_each_initializer(void **state) {
    (void)state;
    enum { ROWS = 40, COLUMNS = 25, COUNT = ROWS * COLUMNS };
    static const double cut = 0.87962566103423978;  // the deviation that is left between -2 and 2
    const initial_case cases[] = {
        {&lk_initializer_glorot_uniform, 0, sqrt(2.0 / 65), sqrt(6.0 / 65), 0x89bf46f291184277},
        {&lk_initializer_he_uniform, 0, sqrt(2.0 / 40), sqrt(6.0 / 40), 0xe46bcf231a66c265},
        {&lk_initializer_lecun_uniform, 0, sqrt(1.0 / 40), sqrt(3.0 / 40), 0x7018a588d727f800},
        {&lk_initializer_glorot_normal, 0, sqrt(2.0 / 65), 2 * sqrt(2.0 / 65) / cut,
         0x1714c80344c6163b},
        {&lk_initializer_he_normal, 0, sqrt(2.0 / 40), 2 * sqrt(2.0 / 40) / cut,
         0x1219772f9da07677},
        {&lk_initializer_lecun_normal, 0, sqrt(1.0 / 40), 2 * sqrt(1.0 / 40) / cut,
         0x81ece28ef058679e},
        {&lk_initializer_truncated_normal, 0, 0.05 * cut, 0.1, 0x2ba36fccb2598cff},
        {&lk_initializer_truncated_normal, 2, 2 * cut, 4, 0x0a6f1ac237dffb26},
        {&lk_initializer_random_normal, 0, 0.05, 0.3, 0x591a07f8a97f708e},
        {&lk_initializer_random_uniform, 0, 0.05 / sqrt(3.0), 0.05, 0x5f6baa82731aa35e},
        {&lk_initializer_constant, -0.5f, 0.5, 0.5, 0xd7d267a05517a745},
        {&lk_initializer_ones, 0, 1, 1, 0xbaa492274717a745},
        {&lk_initializer_zeros, 0, 0, 0, 0x12633b178b17a745},
    };
    uint32_t others = 0;
    for (uint32_t i = 0; i < LK_COUNT(cases); i++) {
        static float w[COUNT];
        const initial_case *c = &cases[i];
        const lk_initial what = {.seed = (9ull << 32) + 5, .param = 3, .count = COUNT,
                                 .fan_in = ROWS, .fan_out = COLUMNS, .columns = COLUMNS,
                                 .value = c->value};
        double squares = 0.0, most = 0.0;
        c->initializer->fill(&what, w);
        for (uint32_t e = 0; e < COUNT; e++) {
            squares += (double)w[e] * (double)w[e] / COUNT;
            most = fmax(most, fabs((double)w[e]));
        }
        assert_true(most <= c->most * (1 + 1e-6));
        near(c->initializer->name, i, c->deviation, sqrt(squares), 0.06 * c->deviation);
        if (bits_of_all(w, COUNT) == c->bits) continue;
        print_error("%s: 0x%016llx\n", c->initializer->name,
                    (unsigned long long)bits_of_all(w, COUNT));
        others++;
    }
    assert_int_equal(others, 0);
}

// The vectors of a matrix, its rows or its columns, are at right angles and as long as the gain.
static void orthogonal_kernels(void **state) {
    (void)state;
    static const uint32_t sizes[][2] = {{40, 25}, {25, 40}, {33, 33}, {1, 5}, {600, 3}, {5, 1}};
    static float w[2000];
    for (uint32_t i = 0; i < LK_COUNT(sizes); i++) {
        const uint32_t rows = sizes[i][0], columns = sizes[i][1];
        const uint32_t count = LK_MIN(rows, columns), length = LK_MAX(rows, columns);
        const uint32_t apart = rows < columns ? columns : 1, step = rows < columns ? 1 : columns;
        const double gain = i % 2 ? 1.5 : 1.0;
        const lk_initial what = {.seed = 5, .param = i, .count = (uint64_t)rows * columns,
                                 .columns = columns, .value = i % 2 ? 1.5f : 0.0f};
        lk_initializer_orthogonal.fill(&what, w);
        for (uint32_t a = 0; a < count; a++) {
            for (uint32_t b = 0; b <= a; b++) {
                double sum = 0.0;
                for (uint32_t n = 0; n < length; n++) {
                    sum += (double)w[a * apart + n * step] * (double)w[b * apart + n * step];
                }
                near("product", a, a == b ? gain * gain : 0.0, sum, 1e-6);
            }
        }
    }
}

// What adds to itself; the model's input in a sum; a sum of two rows; ReLU after and before sums.
static void gradients_of_sums(void **state) {
    (void)state;
    const lk_layer twice[] = {FLATTEN, DENSE("a", 4, true, true), ADD("s", 2, 2), RELU("r"),
                              ADD("t", 4, 2), DENSE("b", 3, true, false)};
    check_model(3, 3, 1, twice, LK_COUNT(twice));
    const lk_layer input[] = {CONV("a", 2, 3, 1, SAME, true, false), ADD("s", 0, 1),
                              ADD("t", 2, 0), FLATTEN, DENSE("b", 3, true, false)};
    check_model(4, 3, 2, input, LK_COUNT(input));
    const lk_layer last[] = {FLATTEN, DENSE("a", 3, true, true), FROM(DENSE("b", 3, true, true), 1),
                             RELU("r"), ADD("s", 4, 2)};
    check_model(3, 3, 1, last, LK_COUNT(last));
}

// --- other losses --------------------------------------------------------------------------------

static void check_loss(const lk_layer *layers, uint32_t count, const lk_loss_type *loss,
                       const lk_loss_options *options) {
    const lk_model model = {.in_h = 3,
                            .in_w = 3,
                            .in_c = 1,
                            .layer_count = count,
                            .layers = layers,
                            .loss = loss,
                            .loss_options = *options};
    check_model_of(&model);
}

// The input as the target, of a dense layer and of a fused one over images; a target that is
// trained, alone and with others who take it; a prediction that is not, and one that others take.
static void gradients_of_squared_errors(void **state) {
    (void)state;
    const lk_layer dense[] = {FLATTEN, DENSE("a", 4, true, true), DENSE("b", 9, true, false)};
    const lk_layer images_of[] = {CONV("a", 2, 2, 1, SAME, true, true),
                                  CONV("b", 1, 3, 1, SAME, true, true)};
    const lk_layer two[] = {FLATTEN, DENSE("a", 4, true, true), DENSE("b", 4, true, false),
                            FROM(DENSE("c", 4, true, true), 1)};
    const lk_layer shared[] = {FLATTEN, DENSE("a", 4, true, true), DENSE("b", 4, true, false),
                               ADD("s", 2, 3), DENSE("c", 4, true, true)};
    check_loss(dense, LK_COUNT(dense), &lk_loss_mean_squared_error, &(lk_loss_options){0});
    check_loss(images_of, LK_COUNT(images_of), &lk_loss_mean_squared_error, &(lk_loss_options){0});
    check_loss(two, LK_COUNT(two), &lk_loss_mean_squared_error,
               &(lk_loss_options){.input_count = 2, .inputs = {3, 4}});
    check_loss(shared, LK_COUNT(shared), &lk_loss_mean_squared_error,
               &(lk_loss_options){.input_count = 2, .inputs = {5, 2}});
    check_loss(shared, LK_COUNT(shared), &lk_loss_mean_squared_error,
               &(lk_loss_options){.input_count = 2, .inputs = {2, 5}});
    check_loss(dense, LK_COUNT(dense), &lk_loss_mean_squared_error,
               &(lk_loss_options){.input_count = 2, .inputs = {0, 3}});
}

static void gradients_of_means(void **state) {
    (void)state;
    const lk_layer layers[] = {FLATTEN, DENSE("a", 4, true, true), DENSE("b", 5, true, false)};
    check_loss(layers, LK_COUNT(layers), &lk_loss_mean, &(lk_loss_options){.scale = 1.0f});
    check_loss(layers, LK_COUNT(layers), &lk_loss_mean, &(lk_loss_options){.scale = -2.5f});
}

static void gradients_of_binary_crossentropies(void **state) {
    (void)state;
    const lk_layer layers[] = {FLATTEN, DENSE("a", 4, true, true), DENSE("b", 3, true, false)};
    for (int smoothed = 0; smoothed < 2; smoothed++) {
        const lk_model model = {.in_h = 3,
                                .in_w = 3,
                                .in_c = 1,
                                .classes = 3,
                                .layer_count = LK_COUNT(layers),
                                .layers = layers,
                                .loss = &lk_loss_binary_crossentropy,
                                .loss_options = {.scale = smoothed ? 0.25f : 0.0f}};
        check_model_of(&model);
    }
}

// By hand, of one logit and of three; far from 0 no digit is lost.
static void binary_crossentropies_by_hand(void **state) {
    (void)state;
    const float alone[] = {0.0f, 30.0f, -30.0f, -2.0f}, three[] = {1.0f, -1.0f, 0.5f};
    const uint32_t labels[] = {1, 1, 1, 0}, second = 2, none = 3;
    const double want[] = {0.693147180559945, 9.35762296884e-14, 30.0, 0.126928011042973};
    float loss[4], dz[4];
    lk_op op = {.type = &lk_op_binary_crossentropy, .floats = 1};
    lk_lane l = {.examples = 4};
    l.at[LK_X] = WITHOUT_CONST(alone), l.at[LK_X2] = WITHOUT_CONST(labels);
    l.at[LK_Y] = loss, l.at[LK_DX] = dz;
    assert_int_equal(call_op(k, &op, &l), 0);
    assert_int_equal(l.counts[0], 2);  // 0 is not above 0
    for (uint32_t i = 0; i < 4; i++) {
        assert_true(fabs((double)loss[i] - want[i]) <= 1e-6 * want[i]);
        near("dz", i, 1 / (1 + exp(-(double)alone[i])) - labels[i], (double)dz[i], 1e-7);
    }
    op.floats = 3;
    l = (lk_lane){.examples = 1};
    l.at[LK_X] = WITHOUT_CONST(three), l.at[LK_X2] = WITHOUT_CONST(&second);
    l.at[LK_Y] = loss, l.at[LK_DX] = dz;
    assert_int_equal(call_op(k, &op, &l), 0);
    near("loss", 0, (1.313261687518 + 0.313261687518 + 0.474076984180) / 3, (double)loss[0], 1e-6);
    assert_int_equal(l.counts[0], 0);
    l.at[LK_X2] = WITHOUT_CONST(&none);
    assert_int_equal(call_op(k, &op, &l), 1);
}

// Of Keras 3 in float64: label_smoothing 0.1, labels 1, 3, 0.
static void golden_label_smoothing(void **state) {
    (void)state;
    static const float z[] = {-0.021f, -1.202f, -0.177f, -2.203f, -1.702f, 0.092f,
                              -0.991f, -0.164f, -0.109f, 1.931f,  1.298f,  -0.045f};
    static const double want[] = {1.973007338536, 1.132467848272, 2.539815951884};
    static const double slopes[] = {0.414493505698, -0.790087969455, 0.351012707908,
                                    0.024581755849, 0.04796737553,   0.413786266788,
                                    0.123563493231, -0.58531713555,  -0.852747687955,
                                    0.530664295651, 0.270055751641,  0.052027640664};
    static const uint32_t labels[] = {1, 3, 0};
    float loss[3], dz[12];
    uint32_t correct;
    assert_int_equal(smoothed_cross_entropy(k, 3, 4, 0.1f, z, labels, dz, loss, &correct), 0);
    for (uint32_t m = 0; m < 3; m++) near("loss", m, want[m], (double)loss[m], 2e-7);
    for (uint32_t i = 0; i < 12; i++) near("dlogits", i, slopes[i], (double)dz[i], 2e-7);
}

// By hand, and of more than one slice: 513 ones are 512 in the first.
static void golden_losses(void **state) {
    (void)state;
    static const float p[4] = {1.0f, -2.0f, 0.5f, 0.0f}, t[4] = {0.0f, -2.0f, 1.0f, 0.5f};
    static const float slope[4] = {0.5f, 0.0f, -0.25f, -0.25f}, none[4];
    float y[2], dp[4], dt[4], ones[513], d[513];
    assert_int_equal(mean_squared_error(k, 1, 4, p, t, y, dp), 0);
    assert_true(y[0] == 0.375f && y[1] == 0.5f);
    same_bits(slope, dp, 4);
    assert_int_equal(element_op(k, &lk_op_mean_squared_error_target_gradient, 4, NULL, NULL, NULL,
                                dp, dt), 0);
    for (uint32_t i = 0; i < 4; i++) assert_true(dt[i] == -slope[i]);
    assert_int_equal(signbit(dt[1]), 0);
    assert_int_equal(mean_loss(k, 1, 4, -2.0f, p, y, dp), 0);
    assert_true(y[0] == 0.25f && dp[0] == -0.5f && dp[3] == -0.5f);
    assert_int_equal(mean_loss(k, 1, 4, 0.0f, p, y, dp), 0);
    same_bits(none, dp, 4);
    for (uint32_t i = 0; i < 513; i++) ones[i] = 0x1.000002p0f;
    assert_int_equal(mean_loss(k, 1, 513, 1.0f, ones, y, d), 0);
    float chain = 0.0f;
    for (uint32_t i = 0; i < 512; i++) chain += ones[i];
    const float sum = chain + ones[512], want = sum * (1.0f / 513.0f);
    assert_true(y[0] == want);
    static const float large[2] = {0x1p127f, 0x1p127f}, small[2] = {-0x1p127f, 0.0f};
    assert_int_equal(mean_squared_error(k, 1, 2, large, small, y, dp), 1);
    assert_int_equal(mean_loss(k, 1, 2, 1.0f, large, y, dp), 1);
}

// Layers over rows of five values, each of which takes any one or two before it; what nobody took
// is added up at the end.
static void gradients_of_random_graphs(void **state) {
    (void)state;
    enum { MIDDLE = 6 };
    for (uint64_t seed = 1; seed <= 30; seed++) {
        lk_layer layers[2 * MIDDLE + 4] = {FLATTEN, DENSE("first", 5, true, false)};
        uint32_t count = 2, taken[2 * MIDDLE + 4] = {0};
        draws = seed * 977;
        for (uint32_t i = 0; i < MIDDLE; i++) {
            const lk_layer kinds[] = {DENSE("", 5, true, false), DENSE("", 5, false, true),
                                      RELU(""), ADD("", 0, 0)};
            lk_layer *l = &layers[count];
            *l = kinds[(uint32_t)((draw() + 1.0f) * 2.0f) % LK_COUNT(kinds)];
            l->input_count = l->type->inputs;
            for (uint32_t n = 0; n < l->input_count; n++) {
                l->inputs[n] = 2 + (uint32_t)((draw() + 1.0f) * 0.5f * (float)(count - 1));
                taken[l->inputs[n]]++;
            }
            count++;
        }
        uint32_t sum = count;  // of the last and all that nobody took
        for (uint32_t number = 2; number < count; number++) {
            if (taken[number] || number == sum) continue;
            layers[count] = (lk_layer)ADD("", number, sum);
            taken[number]++, taken[sum]++;
            sum = ++count;
        }
        layers[count++] = (lk_layer)DENSE("last", 3, true, false);
        for (uint32_t i = 0; i < count; i++) snprintf(layers[i].name, 16, "layer%u", i);
        check_model(2, 3, 1, layers, count);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolution_gradients),
        cmocka_unit_test(convolution_by_hand),
        cmocka_unit_test(pooling_by_hand),
        cmocka_unit_test(small_kernels_by_hand),
        cmocka_unit_test(counts_as_floats),
        cmocka_unit_test(loss_and_its_gradient),
        cmocka_unit_test(fused_equals_separate),
        cmocka_unit_test(gradients_of_mnist_shape),
        cmocka_unit_test(gradients_of_two_pooled),
        cmocka_unit_test(gradients_of_strides_and_overlap),
        cmocka_unit_test(gradients_of_pools_that_do_not_fuse),
        cmocka_unit_test(gradients_of_odd_orders),
        cmocka_unit_test(gradients_of_dense_only),
        cmocka_unit_test(gradients_of_narrow_layers),
        cmocka_unit_test(gradients_of_a_residual_block),
        cmocka_unit_test(gradients_of_averages),
        cmocka_unit_test(gradients_of_dropout),
        cmocka_unit_test(gradients_of_places),
        cmocka_unit_test(gradients_of_transposed_convolutions),
        cmocka_unit_test(gradients_of_grouped_convolutions),
        cmocka_unit_test(gradients_of_batch_normalization),
        cmocka_unit_test(golden_layer_normalization),
        cmocka_unit_test(gradients_of_layer_normalization),
        cmocka_unit_test(initial_values_of_each_initializer),
        cmocka_unit_test(orthogonal_kernels),
        cmocka_unit_test(gradients_of_sums),
        cmocka_unit_test(gradients_of_squared_errors),
        cmocka_unit_test(gradients_of_means),
        cmocka_unit_test(golden_losses),
        cmocka_unit_test(gradients_of_binary_crossentropies),
        cmocka_unit_test(binary_crossentropies_by_hand),
        cmocka_unit_test(golden_label_smoothing),
        cmocka_unit_test(gradients_of_activations),
        cmocka_unit_test(gradients_of_smooth_activations),
        cmocka_unit_test(gradients_of_random_graphs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
