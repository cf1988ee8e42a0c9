// reference.c - the arithmetic itself: every kernel of kernels.h, written to be read. Freestanding.
//
// This file is the contract. It is slow on purpose: one scalar at a time, in the order that
// ops/ARITHMETIC.md states, and it shares no code with the fast kernels. Change nothing here
// without a new arithmetic version.
#include "ops/fmaf.h"
#include "ops/kernels.h"
#include "ops/math.h"

// --- sums --------------------------------------------------------------------------------------

// A sum under way: the chain of the current slice, and the finished slices as a binary counter of
// tree nodes (node[l] stands for 2^l leaves where bit l of `leaves` is set).
typedef struct tree_sum {
    float node[LK_TREE_LEVELS_MAX];
    uint64_t leaves;
} tree_sum;

static void tree_start(tree_sum *t) { t->leaves = 0; }

static void tree_leaf(tree_sum *t, float value) {
    unsigned level = 0;
    for (; t->leaves >> level & 1; level++) value = t->node[level] + value;
    t->node[level] = value;
    t->leaves++;
}

// The root. Nodes without a right sibling are copied upwards, so only the set bits take part.
static float tree_finish(const tree_sum *t) {
    bool some = false;
    float sum = 0.0f;
    for (unsigned level = 0; level < LK_TREE_LEVELS_MAX; level++) {
        if (!(t->leaves >> level & 1)) continue;
        sum = some ? t->node[level] + sum : t->node[level];
        some = true;
    }
    return sum;
}

typedef struct slice_sum {
    tree_sum tree;
    float chain;
    uint32_t terms;  // in the current slice
} slice_sum;

static void slice_start(slice_sum *s, float start) {
    tree_start(&s->tree);
    s->chain = start;
    s->terms = 0;
}

static void slice_cut(slice_sum *s) {
    tree_leaf(&s->tree, s->chain);
    s->chain = 0.0f;
    s->terms = 0;
}

static void slice_term(slice_sum *s, float a, float b) {
    if (s->terms == LK_SLICE_TERMS) slice_cut(s);
    s->chain = lk_fmaf(a, b, s->chain);
    s->terms++;
}

// The finished sum: + 0.0f makes -0 into +0, so zero terms never matter.
static float slice_finish(slice_sum *s) {
    tree_leaf(&s->tree, s->chain);
    return tree_finish(&s->tree) + 0.0f;
}

static uint32_t not_finite(float x) { return !(x - x == 0.0f); }
static float relu(float x) { return x > 0.0f ? x : 0.0f; }

// --- data --------------------------------------------------------------------------------------

static void load_u8(uint64_t count, const uint8_t *src, float *dst) {
    for (uint64_t i = 0; i < count; i++) dst[i] = (float)src[i] * 0x1.010102p-8f;
}

// --- dense -------------------------------------------------------------------------------------

static uint32_t dense_forward(const lk_dense *d, uint32_t m_count, const float *x, const float *w,
                              const float *bias, float *y, float *scratch) {
    (void)scratch;
    uint32_t bad = 0;
    for (uint32_t m = 0; m < m_count; m++) {
        for (uint32_t n = 0; n < d->n_count; n++) {
            slice_sum s;
            slice_start(&s, bias ? bias[n] : 0.0f);
            for (uint32_t k = 0; k < d->k_count; k++) {
                slice_term(&s, x[(uint64_t)m * d->k_count + k], w[(uint64_t)k * d->n_count + n]);
            }
            float sum = slice_finish(&s);
            bad |= not_finite(sum);
            y[(uint64_t)m * d->n_count + n] = d->relu ? relu(sum) : sum;
        }
    }
    return bad;
}

static uint32_t dense_input_gradient(const lk_dense *d, uint32_t m_count, const float *w,
                                     const float *dy, const float *mask, float *dx,
                                     float *scratch) {
    (void)scratch;
    uint32_t bad = 0;
    for (uint32_t m = 0; m < m_count; m++) {
        for (uint32_t k = 0; k < d->k_count; k++) {
            uint64_t at = (uint64_t)m * d->k_count + k;
            slice_sum s;
            slice_start(&s, 0.0f);
            for (uint32_t n = 0; n < d->n_count; n++) {
                slice_term(&s, w[(uint64_t)k * d->n_count + n], dy[(uint64_t)m * d->n_count + n]);
            }
            float sum = slice_finish(&s);
            bad |= not_finite(sum);
            dx[at] = !mask || mask[at] > 0.0f ? sum : 0.0f;
        }
    }
    return bad;
}

// One grain's sum over examples of x[m][k] * dy[m][n]; x == NULL stands for ones.
static float grain_sum(const lk_grain_view *g, const float *x, uint64_t x_stride, const float *dy,
                       uint64_t dy_stride) {
    slice_sum s;
    slice_start(&s, 0.0f);
    for (uint32_t m = 0; m < g->examples; m++) {
        slice_term(&s, x ? x[m * x_stride] : 1.0f, dy[m * dy_stride]);
    }
    tree_leaf(&s.tree, s.chain);
    return tree_finish(&s.tree);
}

static void dense_weight_gradient(const lk_dense *d, uint32_t grain_count,
                                  const lk_grain_view *grains, const lk_weight_rows *rows,
                                  float *dw, float *scratch) {
    (void)scratch;
    for (uint32_t k = rows->first; k < rows->end; k++) {
        for (uint32_t n = 0; n < d->n_count; n++) {
            tree_sum t;
            tree_start(&t);
            for (uint32_t g = 0; g < grain_count; g++) {
                const lk_grain_view *v = &grains[g];
                tree_leaf(&t, grain_sum(v, v->x + k, d->k_count, v->dy + n, d->n_count));
            }
            dw[(uint64_t)(k - rows->first) * d->n_count + n] = tree_finish(&t);
        }
    }
}

static void column_sums(uint32_t n_count, uint32_t grain_count, const lk_grain_view *grains,
                        float *out) {
    for (uint32_t n = 0; n < n_count; n++) {
        tree_sum t;
        tree_start(&t);
        for (uint32_t g = 0; g < grain_count; g++) {
            tree_leaf(&t, grain_sum(&grains[g], NULL, 0, grains[g].dy + n, n_count));
        }
        out[n] = tree_finish(&t);
    }
}

// --- convolution -------------------------------------------------------------------------------

// The pixel of one example that tap (ky, kx) of output (oy, ox) reads; +0 outside the image.
static float pixel(const lk_conv2d *c, const float *x, uint32_t oy, uint32_t ox, uint32_t ky,
                   uint32_t kx, uint32_t ci) {
    int64_t iy = (int64_t)oy * c->stride_h + ky - c->pad_top;
    int64_t ix = (int64_t)ox * c->stride_w + kx - c->pad_left;
    if (iy < 0 || ix < 0 || iy >= c->in_h || ix >= c->in_w) return 0.0f;
    return x[((uint64_t)iy * c->in_w + (uint64_t)ix) * c->in_c + ci];
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

static uint32_t conv2d_forward(const lk_conv2d *c, uint32_t m_count, const float *x, const float *w,
                               const float *bias, float *y, float *scratch) {
    (void)scratch;
    uint32_t bad = 0;
    for (uint32_t m = 0; m < m_count; m++, x += lk_conv2d_in_floats(c)) {
        for (uint32_t oy = 0; oy < c->out_h; oy++) {
            for (uint32_t ox = 0; ox < c->out_w; ox++) {
                for (uint32_t co = 0; co < c->out_c; co++) {
                    float sum = conv2d_cell(c, x, w, bias, oy, ox, co);
                    bad |= not_finite(sum);
                    *y++ = c->relu ? relu(sum) : sum;
                }
            }
        }
    }
    return bad;
}

static uint32_t conv2d_pool_forward(const lk_conv2d *c, uint32_t m_count, const float *x,
                                    const float *w, const float *bias, float *y, uint8_t *argmax,
                                    lk_ahead *ahead, float *scratch) {
    (void)ahead, (void)scratch;
    uint32_t bad = 0;
    for (uint32_t m = 0; m < m_count; m++, x += lk_conv2d_in_floats(c)) {
        for (uint32_t py = 0; py < c->out_h / 2; py++) {
            for (uint32_t px = 0; px < c->out_w / 2; px++) {
                for (uint32_t co = 0; co < c->out_c; co++) {
                    float best = 0.0f;
                    uint8_t winner = 0;
                    for (uint32_t cell = 0; cell < 4; cell++) {
                        float sum =
                            conv2d_cell(c, x, w, bias, 2 * py + cell / 2, 2 * px + cell % 2, co);
                        bad |= not_finite(sum);
                        if (cell == 0 || sum > best) {
                            best = sum;
                            winner = (uint8_t)cell;
                        }
                    }
                    *y++ = c->relu ? relu(best) : best;
                    *argmax++ = winner;
                }
            }
        }
    }
    return bad;
}

// Gradient of output cell (oy, ox, co) of one example, from whole or from pooled gradients.
static float output_gradient(const lk_conv2d *c, const float *dy, const uint8_t *argmax,
                             uint32_t oy, uint32_t ox, uint32_t co) {
    if (!argmax) return dy[((uint64_t)oy * c->out_w + ox) * c->out_c + co];
    uint32_t py = oy / 2, px = ox / 2;
    if (py >= c->out_h / 2 || px >= c->out_w / 2) return 0.0f;
    uint64_t at = ((uint64_t)py * (c->out_w / 2) + px) * c->out_c + co;
    return argmax[at] == oy % 2 * 2 + ox % 2 ? dy[at] : 0.0f;
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
                    bad |= not_finite(sum);
                    dx[at] = !mask || mask[at] > 0.0f ? sum : 0.0f;
                }
            }
        }
        dy += dy_floats;
        if (argmax) argmax += dy_floats;
    }
    return bad;
}

static uint32_t conv2d_input_gradient(const lk_conv2d *c, uint32_t m_count, const float *w,
                                      const float *dy, const float *mask, float *dx,
                                      float *scratch) {
    (void)scratch;
    return input_gradient(c, m_count, w, dy, lk_conv2d_out_floats(c), NULL, mask, dx);
}

static uint32_t conv2d_pool_input_gradient(const lk_conv2d *c, uint32_t m_count, const float *w,
                                           const float *dy, const uint8_t *argmax,
                                           const float *mask, float *dx, float *scratch) {
    (void)scratch;
    return input_gradient(c, m_count, w, dy, lk_conv2d_pooled_floats(c), argmax, mask, dx);
}

// What one weight (or, with bias set, one bias) of a convolution sums.
typedef struct weight_of {
    uint32_t ky, kx, ci, co;
    bool bias, pooled;
} weight_of;

// Adds the terms of one example, in tile order, to the slices of its grain.
static void weight_terms(const lk_conv2d *c, const lk_grain_view *g, uint32_t m, const weight_of *v,
                         slice_sum *s) {
    const float *x = g->x + m * lk_conv2d_in_floats(c);
    const uint8_t *argmax = v->pooled ? g->argmax + m * lk_conv2d_pooled_floats(c) : NULL;
    const float *dy =
        g->dy + m * (v->pooled ? lk_conv2d_pooled_floats(c) : lk_conv2d_out_floats(c));
    for (uint32_t ty = 0; ty < c->out_h; ty += 2) {
        for (uint32_t tx = 0; tx < c->out_w; tx += 2) {
            for (uint32_t cell = 0; cell < 4; cell++) {
                uint32_t oy = ty + cell / 2, ox = tx + cell % 2;
                bool exists = oy < c->out_h && ox < c->out_w;
                float dy_cell = exists ? output_gradient(c, dy, argmax, oy, ox, v->co) : 0.0f;
                float x_cell = v->bias  ? 1.0f
                               : exists ? pixel(c, x, oy, ox, v->ky, v->kx, v->ci)
                                        : 0.0f;
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

static void weight_gradient(const lk_conv2d *c, uint32_t grain_count, const lk_grain_view *grains,
                            bool pooled, float *dw, float *db) {
    for (uint32_t ky = 0; ky < c->kernel_h; ky++) {
        for (uint32_t kx = 0; kx < c->kernel_w; kx++) {
            for (uint32_t ci = 0; ci < c->in_c; ci++) {
                for (uint32_t co = 0; co < c->out_c; co++) {
                    weight_of v = {ky, kx, ci, co, false, pooled};
                    dw[weight_at(c, ky, kx, ci, co)] = weight_node(c, grain_count, grains, &v);
                }
            }
        }
    }
    for (uint32_t co = 0; db && co < c->out_c; co++) {
        weight_of v = {0, 0, 0, co, true, pooled};
        db[co] = weight_node(c, grain_count, grains, &v);
    }
}

static void conv2d_weight_gradient(const lk_conv2d *c, uint32_t grain_count,
                                   const lk_grain_view *grains, float *dw, float *db,
                                   float *scratch) {
    (void)scratch;
    weight_gradient(c, grain_count, grains, false, dw, db);
}

static void conv2d_pool_weight_gradient(const lk_conv2d *c, uint32_t grain_count,
                                        const lk_grain_view *grains, float *dw, float *db,
                                        float *scratch) {
    (void)scratch;
    weight_gradient(c, grain_count, grains, true, dw, db);
}

// --- pooling and ReLU --------------------------------------------------------------------------

// Index in x of cell `cell` of the window of (oy, ox), or -1 where padding lies.
static int64_t window_cell(const lk_pool2d *p, uint32_t oy, uint32_t ox, uint32_t channel,
                           uint32_t cell) {
    int64_t iy = (int64_t)oy * p->stride_h + cell / p->pool_w - p->pad_top;
    int64_t ix = (int64_t)ox * p->stride_w + cell % p->pool_w - p->pad_left;
    if (iy < 0 || ix < 0 || iy >= p->in_h || ix >= p->in_w) return -1;
    return (iy * p->in_w + ix) * p->channels + channel;
}

static void max_pool_forward(const lk_pool2d *p, uint32_t m_count, const float *x, float *y,
                             uint16_t *argmax) {
    for (uint32_t m = 0; m < m_count; m++, x += (uint64_t)p->in_h * p->in_w * p->channels) {
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
}

static uint32_t max_pool_backward(const lk_pool2d *p, uint32_t m_count, const float *dy,
                                  const uint16_t *argmax, float *dx) {
    uint64_t in_floats = (uint64_t)p->in_h * p->in_w * p->channels;
    uint32_t bad = 0;
    for (uint32_t m = 0; m < m_count; m++, dx += in_floats) {
        for (uint64_t i = 0; i < in_floats; i++) dx[i] = 0.0f;
        for (uint32_t oy = 0; oy < p->out_h; oy++) {
            for (uint32_t ox = 0; ox < p->out_w; ox++) {
                for (uint32_t channel = 0; channel < p->channels; channel++) {
                    int64_t at = window_cell(p, oy, ox, channel, *argmax++);
                    dx[at] = dx[at] + *dy++;
                }
            }
        }
        for (uint64_t i = 0; i < in_floats; i++) bad |= not_finite(dx[i]);
    }
    return bad;
}

static void relu_forward(uint64_t count, const float *x, float *y) {
    for (uint64_t i = 0; i < count; i++) y[i] = relu(x[i]);
}

static void relu_backward(uint64_t count, const float *y, const float *dy, float *dx) {
    for (uint64_t i = 0; i < count; i++) dx[i] = y[i] > 0.0f ? dy[i] : 0.0f;
}

// --- loss --------------------------------------------------------------------------------------

static uint32_t first_maximum(uint32_t count, const float *v) {
    uint32_t top = 0;
    for (uint32_t k = 1; k < count; k++) {
        if (v[k] > v[top]) top = k;
    }
    return top;
}

static uint32_t softmax_cross_entropy(uint32_t m_count, uint32_t classes, const float *logits,
                                      const uint32_t *labels, float *dlogits, float *loss,
                                      uint32_t *correct) {
    uint32_t bad = 0, hits = 0;
    for (uint32_t m = 0; m < m_count; m++, logits += classes) {
        uint32_t prediction = first_maximum(classes, logits);
        float top = logits[prediction];
        slice_sum s;
        slice_start(&s, 0.0f);
        for (uint32_t k = 0; k < classes; k++) slice_term(&s, 1.0f, lk_expf(logits[k] - top));
        float sum = slice_finish(&s);
        float reciprocal = 1.0f / sum;
        const float *own = labels[m] < classes ? logits + labels[m] : NULL;
        loss[m] = own ? lk_logf(sum) - (*own - top) + 0.0f : __builtin_nanf("");
        bad |= not_finite(loss[m]);
        hits += prediction == labels[m];
        for (uint32_t k = 0; dlogits && k < classes; k++) {
            float p = lk_expf(logits[k] - top) * reciprocal;
            float g = p - (k == labels[m] ? 1.0f : 0.0f) + 0.0f;
            bad |= not_finite(g);
            *dlogits++ = g;
        }
    }
    *correct = hits;
    return bad;
}

// --- reduce and apply --------------------------------------------------------------------------

static void add(uint64_t count, const float *a, const float *b, float *out) {
    for (uint64_t i = 0; i < count; i++) out[i] = a[i] + b[i];
}

static uint32_t apply(const lk_optimizer *o, uint64_t count, const float *sum, float inverse_n,
                      float *w, float *const slots[LK_OPTIMIZER_SLOTS_MAX]) {
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        float g = (sum[i] + 0.0f) * inverse_n, update = g;
        bad |= not_finite(g);
        if (o->kind == LK_MOMENTUM) {
            float a = lk_fmaf(o->momentum, slots[0][i], g);
            bad |= not_finite(a);
            slots[0][i] = a;
            update = o->nesterov ? lk_fmaf(o->momentum, a, g) : a;
        }
        w[i] = lk_fmaf(-o->learning_rate, update, w[i]);
        bad |= not_finite(w[i]);
    }
    return bad;
}

const lk_kernels lk_kernels_reference = {
    .name = "reference",
    .load_u8 = load_u8,
    .dense_forward = dense_forward,
    .dense_input_gradient = dense_input_gradient,
    .dense_weight_gradient = dense_weight_gradient,
    .column_sums = column_sums,
    .conv2d_forward = conv2d_forward,
    .conv2d_pool_forward = conv2d_pool_forward,
    .conv2d_input_gradient = conv2d_input_gradient,
    .conv2d_pool_input_gradient = conv2d_pool_input_gradient,
    .conv2d_weight_gradient = conv2d_weight_gradient,
    .conv2d_pool_weight_gradient = conv2d_pool_weight_gradient,
    .max_pool_forward = max_pool_forward,
    .max_pool_backward = max_pool_backward,
    .relu_forward = relu_forward,
    .relu_backward = relu_backward,
    .softmax_cross_entropy = softmax_cross_entropy,
    .add = add,
    .apply = apply,
};
