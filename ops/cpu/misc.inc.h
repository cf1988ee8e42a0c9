// misc.inc.h - the kernels that touch each element once: data, pooling, ReLU, loss, reduce, apply.
// In the words of vector.h; compiled once per variant.
#include "ops/op.h"
#include "ops/math.h"

// --- data --------------------------------------------------------------------------------------

static void load_u8(uint64_t count, const uint8_t *src, float *dst) {
    const vf scale = v_set1(0x1.010102p-8f);
    uint64_t i = 0;
    for (; i + V_LANES <= count; i += V_LANES) {
        v_store(dst + i, v_mul(v_from_i(i_load_u8(src + i)), scale));
    }
    if (i < count) {
        uint32_t rest = (uint32_t)(count - i);
        v_store_first(dst + i, rest, v_mul(v_from_i(i_load_u8_first(src + i, rest)), scale));
    }
}

static void adjust(uint64_t count, uint32_t period, const float *factor, const float *offset,
                   float *x) {
    uint32_t at = 0;
    for (uint64_t i = 0; i < count; i += V_LANES) {
        const uint32_t rest = (uint32_t)LK_MIN(count - i, (uint64_t)V_LANES);
        v_store_first(x + i, rest,
                      v_fma(v_load_first(x + i, rest), v_load(factor + at), v_load(offset + at)));
        at = at + V_LANES == period ? 0 : at + V_LANES;
    }
}

// --- pooling -----------------------------------------------------------------------------------

// The cells of one window that lie in the image: rows y0 .. y1 - 1 and columns x0 .. x1 - 1 of the
// window, whose cell (0, 0) is pixel (top, left).
typedef struct window {
    int64_t top, left;
    uint32_t y0, y1, x0, x1;
} window;

static inline uint32_t window_begin(int64_t start, uint32_t length) {
    return start >= 0 ? 0 : -start < (int64_t)length ? (uint32_t)-start : length;
}
static inline uint32_t window_end(int64_t start, uint32_t length, uint32_t in) {
    int64_t inside = (int64_t)in - start;
    return inside >= (int64_t)length ? length : inside > 0 ? (uint32_t)inside : 0;
}

static inline window window_at(const lk_pool2d *p, uint32_t oy, uint32_t ox) {
    window w = {.top = (int64_t)oy * p->stride_h - p->pad_top,
                .left = (int64_t)ox * p->stride_w - p->pad_left};
    w.y0 = window_begin(w.top, p->pool_h);
    w.y1 = window_end(w.top, p->pool_h, p->in_h);
    w.x0 = window_begin(w.left, p->pool_w);
    w.x1 = window_end(w.left, p->pool_w, p->in_w);
    return w;
}

// The maximum of a window for up to V_LANES channels; x is the first of them at pixel (0, 0).
V_INLINE vf window_maximum(const lk_pool2d *p, const window *w, const float *x, uint32_t channels,
                           vi *winner) {
    vf best = v_zero();
    bool some = false;
    *winner = i_set1(0);
    for (uint32_t cy = w->y0; cy < w->y1; cy++) {
        for (uint32_t cx = w->x0; cx < w->x1; cx++) {
            int64_t pixel = (w->top + cy) * p->in_w + w->left + cx;
            vf value = v_load_first(x + pixel * p->channels, channels);
            vi cell = i_set1((int32_t)(cy * p->pool_w + cx));
            vm better = v_gt(value, best);
            best = some ? v_select(better, value, best) : value;
            *winner = some ? i_select(better, cell, *winner) : cell;
            some = true;
        }
    }
    return best;
}

static void max_pool_forward(const lk_pool2d *p, uint32_t m_count, const float *x, float *y,
                             uint16_t *argmax) {
    for (uint32_t m = 0; m < m_count; m++, x += (uint64_t)p->in_h * p->in_w * p->channels) {
        for (uint32_t o = 0; o < p->out_h * p->out_w; o++) {
            window w = window_at(p, o / p->out_w, o % p->out_w);
            for (uint32_t c = 0; c < p->channels; c += V_LANES) {
                uint32_t rest = LK_MIN(p->channels - c, (uint32_t)V_LANES);
                uint16_t cells[V_LANES];
                vi winner;
                v_store_first(y + c, rest, window_maximum(p, &w, x + c, rest, &winner));
                if (rest == V_LANES) {
                    i_store_u16(argmax + c, winner);
                    continue;
                }
                i_store_u16(cells, winner);
                memcpy(argmax + c, cells, rest * sizeof *cells);
            }
            y += p->channels;
            argmax += p->channels;
        }
    }
}

// Every cell of the window gets dy where it won and +0 elsewhere: sums start from +0 and so are
// never -0, and adding +0 leaves them as they are.
static void window_scatter(const lk_pool2d *p, const window *w, const float *dy,
                           const uint16_t *argmax, uint32_t channels, float *dx) {
    uint16_t cells[V_LANES] = {0};
    memcpy(cells, argmax, channels * sizeof *cells);
    vi winner = i_load_u16(cells);
    vf value = v_load_first(dy, channels);
    for (uint32_t cy = w->y0; cy < w->y1; cy++) {
        for (uint32_t cx = w->x0; cx < w->x1; cx++) {
            float *at = dx + ((w->top + cy) * p->in_w + w->left + cx) * p->channels;
            vm won = i_eq(winner, i_set1((int32_t)(cy * p->pool_w + cx)));
            vf sum = v_add(v_load_first(at, channels), v_keep(won, value));
            v_store_first(at, channels, sum);
        }
    }
}

static uint32_t all_finite_flag(uint64_t count, const float *x) {
    vf bad = v_zero();
    for (uint64_t i = 0; i < count; i += V_LANES) {
        bad = v_note(bad, v_load_first(x + i, (uint32_t)LK_MIN(count - i, (uint64_t)V_LANES)));
    }
    return v_noted(bad);
}

static uint32_t max_pool_backward(const lk_pool2d *p, uint32_t m_count, const float *dy,
                                  const uint16_t *argmax, float *dx) {
    uint64_t in_floats = (uint64_t)p->in_h * p->in_w * p->channels;
    uint32_t bad = 0;
    for (uint32_t m = 0; m < m_count; m++, dx += in_floats) {
        memset(dx, 0, in_floats * sizeof *dx);
        for (uint32_t o = 0; o < p->out_h * p->out_w; o++) {
            window w = window_at(p, o / p->out_w, o % p->out_w);
            for (uint32_t c = 0; c < p->channels; c += V_LANES) {
                uint32_t rest = LK_MIN(p->channels - c, (uint32_t)V_LANES);
                window_scatter(p, &w, dy + c, argmax + c, rest, dx + c);
            }
            dy += p->channels;
            argmax += p->channels;
        }
        bad |= all_finite_flag(in_floats, dx);
    }
    return bad;
}

// --- element by element --------------------------------------------------------------------------

// Runs over `count` elements by vectors: `i` is the index, `rest` the lanes that exist.
#define EACH_VECTOR(count)                                                                      \
    for (uint64_t i = 0, rest; i < (count) && (rest = LK_MIN((count)-i, (uint64_t)V_LANES), 1); \
         i += V_LANES)

static void relu_forward(uint64_t count, const float *x, float *y) {
    EACH_VECTOR(count) {
        v_store_first(y + i, (uint32_t)rest, v_relu(v_load_first(x + i, (uint32_t)rest)));
    }
}

static void relu_backward(uint64_t count, const float *y, const float *dy, float *dx) {
    EACH_VECTOR(count) {
        vm open = v_gt(v_load_first(y + i, (uint32_t)rest), v_zero());
        v_store_first(dx + i, (uint32_t)rest, v_keep(open, v_load_first(dy + i, (uint32_t)rest)));
    }
}

static void add(uint64_t count, const float *a, const float *b, float *out) {
    EACH_VECTOR(count) {
        vf left = v_load_first(a + i, (uint32_t)rest), right = v_load_first(b + i, (uint32_t)rest);
        v_store_first(out + i, (uint32_t)rest, v_add(left, right));
    }
}

#include "ops/cpu/apply.inc.h"

// --- loss --------------------------------------------------------------------------------------

enum { SOFTMAX_BLOCK = 16 };  // floats that softmax_powers works on: a loop compilers vectorise

// e[i] = exp(logits[i] - top); what lies beyond `count` is made from zeros and means nothing.
static void softmax_powers(uint32_t count, const float *logits, float top, float e[SOFTMAX_BLOCK]) {
    for (uint32_t i = 0; i < SOFTMAX_BLOCK; i++) e[i] = (i < count ? logits[i] : top) - top;
    for (uint32_t i = 0; i < SOFTMAX_BLOCK; i++) e[i] = lk_expf(e[i]);
}

// Tree over slices of the chain of additions: of the powers, or of the logits less the greatest.
static float softmax_sum(uint32_t classes, const float *logits, float top, bool of_powers) {
    float node[LK_TREE_LEVELS_MAX], e[SOFTMAX_BLOCK], sum = 0.0f;
    uint64_t slices = 0;
    for (uint32_t k = 0; k < classes; k += SOFTMAX_BLOCK) {
        uint32_t count = LK_MIN(classes - k, (uint32_t)SOFTMAX_BLOCK);
        if (of_powers) softmax_powers(count, logits + k, top, e);
        for (uint32_t i = 0; i < count; i++) sum = sum + (of_powers ? e[i] : logits[k + i] - top);
        if ((k + count) % LK_SLICE_TERMS != 0 && k + count < classes) continue;
        uint32_t level = 0;
        for (; slices >> level & 1; level++) sum = node[level] + sum;
        node[level] = sum;
        slices++;
        sum = 0.0f;
    }
    bool some = false;
    for (uint32_t level = 0; slices >> level; level++) {
        if (!(slices >> level & 1)) continue;
        sum = some ? node[level] + sum : node[level];
        some = true;
    }
    return sum + 0.0f;
}

static uint32_t softmax_gradient(uint32_t classes, const float *logits, float top, float reciprocal,
                                 uint32_t label, float smoothing, float weight,
                                 float *dlogits) {
    const float off = smoothing / lk_count_to_float(classes), on = 1.0f - smoothing + off;
    float e[SOFTMAX_BLOCK];
    uint32_t bad = 0;
    for (uint32_t k = 0; k < classes; k += SOFTMAX_BLOCK) {
        uint32_t count = LK_MIN(classes - k, (uint32_t)SOFTMAX_BLOCK);
        softmax_powers(count, logits + k, top, e);
        for (uint32_t i = 0; i < count; i++) {
            float g = (e[i] * reciprocal - (k + i == label ? on : off) + 0.0f) * weight + 0.0f;
            bad |= !(g - g == 0.0f);
            dlogits[k + i] = g;
        }
    }
    return bad;
}

static float softmax_distance(uint32_t classes, const float *logits, float own, float top,
                              float smoothing) {
    if (smoothing == 0.0f) return own - top;
    return lk_fmaf(smoothing / lk_count_to_float(classes), softmax_sum(classes, logits, top, false),
                   (1.0f - smoothing) * (own - top));
}

// Without weights each is 1, which changes nothing.
static uint32_t softmax_cross_entropy(uint32_t m_count, uint32_t classes, float smoothing,
                                      const float *weights, const float *logits,
                                      const uint32_t *labels, float *dlogits, float *loss,
                                      uint32_t *correct) {
    uint32_t bad = 0, hits = 0;
    for (uint32_t m = 0; m < m_count; m++, logits += classes) {
        uint32_t first = 0;
        for (uint32_t k = 1; k < classes; k++) {
            if (logits[k] > logits[first]) first = k;
        }
        float top = logits[first], sum = softmax_sum(classes, logits, top, true);
        const float *own = labels[m] < classes ? logits + labels[m] : NULL;
        const float away = own ? softmax_distance(classes, logits, *own, top, smoothing) : 0.0f;
        const float weight = weights && own ? weights[labels[m]] : 1.0f;
        loss[m] = own ? (lk_logf(sum) - away + 0.0f) * weight + 0.0f : __builtin_nanf("");
        bad |= !(loss[m] - loss[m] == 0.0f);
        hits += first == labels[m];
        if (!dlogits) continue;
        bad |= softmax_gradient(classes, logits, top, 1.0f / sum, labels[m], smoothing, weight,
                                dlogits);
        dlogits += classes;
    }
    *correct += hits;
    return bad;
}
