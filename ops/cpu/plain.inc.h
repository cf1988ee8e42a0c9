// plain.inc.h - kernels that ops/op.h's lane and op say all about: plain_NAME for each of
// LK_PLAIN_OP_LIST. In the words of vector.h; included by table.inc.h, compiled once per variant.

#include "arena/philox.h"

// --- sums ----------------------------------------------------------------------------------------

V_INLINE uint32_t plain_sum(uint64_t count, const float *a, const float *b, float *sum,
                            const bool relu) {
    vf bad = v_zero();
    EACH_VECTOR(count) {
        vf left = v_load_first(a + i, (uint32_t)rest), right = v_load_first(b + i, (uint32_t)rest);
        vf both = v_add(left, right);
        bad = v_note(bad, both);
        v_store_first(sum + i, (uint32_t)rest, relu ? v_relu(both) : both);
    }
    return v_noted(bad);
}

static uint32_t plain_add(lk_lane *l, const lk_op *op) {
    const uint64_t count = l->examples * op->floats;
    if (op->sum_relu) return plain_sum(count, l->at[LK_X], l->at[LK_X2], l->at[LK_Y], true);
    return plain_sum(count, l->at[LK_X], l->at[LK_X2], l->at[LK_Y], false);
}

static uint32_t plain_add_backward(lk_lane *l, const lk_op *op) {
    memcpy(l->at[LK_DX], l->at[LK_DY], l->examples * op->floats * sizeof(float));
    return 0;
}

static uint32_t plain_add_gradient(lk_lane *l, const lk_op *op) {
    return plain_sum(l->examples * op->floats, l->at[LK_X], l->at[LK_DY], l->at[LK_DX], false);
}

// --- activations ---------------------------------------------------------------------------------

static uint32_t plain_leaky_relu(lk_lane *l, const lk_op *op) {
    const vf slope = v_set1(op->slope);
    const float *from = l->at[LK_X];
    float *to = l->at[LK_Y];
    EACH_VECTOR(l->examples * op->floats) {
        vf x = v_load_first(from + i, (uint32_t)rest);
        v_store_first(to + i, (uint32_t)rest, v_select(v_gt(x, v_zero()), x, v_mul(slope, x)));
    }
    return 0;
}

static uint32_t plain_leaky_relu_backward(lk_lane *l, const lk_op *op) {
    const vf slope = v_set1(op->slope);
    const float *y = l->at[LK_Y], *from = l->at[LK_DY];
    float *to = l->at[LK_DX];
    EACH_VECTOR(l->examples * op->floats) {
        vm open = v_gt(v_load_first(y + i, (uint32_t)rest), v_zero());
        vf dy = v_load_first(from + i, (uint32_t)rest);
        v_store_first(to + i, (uint32_t)rest, v_select(open, dy, v_mul(slope, dy)));
    }
    return 0;
}

// Loops that compilers vectorise.
static uint32_t plain_tanh(lk_lane *l, const lk_op *op) {
    const float *restrict x = l->at[LK_X];
    float *restrict y = l->at[LK_Y];
    for (uint64_t i = 0; i < l->examples * op->floats; i++) y[i] = lk_tanhf(x[i]);
    return 0;
}

static uint32_t plain_sigmoid(lk_lane *l, const lk_op *op) {
    const float *restrict x = l->at[LK_X];
    float *restrict y = l->at[LK_Y];
    for (uint64_t i = 0; i < l->examples * op->floats; i++) y[i] = lk_sigmoidf(x[i]);
    return 0;
}

static uint32_t plain_tanh_backward(lk_lane *l, const lk_op *op) {
    const float *from = l->at[LK_Y], *dy = l->at[LK_DY];
    float *to = l->at[LK_DX];
    EACH_VECTOR(l->examples * op->floats) {
        vf y = v_load_first(from + i, (uint32_t)rest);
        vf slope = v_fma(v_sub(v_zero(), y), y, v_set1(1.0f));
        v_store_first(to + i, (uint32_t)rest, v_mul(v_load_first(dy + i, (uint32_t)rest), slope));
    }
    return 0;
}

static uint32_t plain_sigmoid_backward(lk_lane *l, const lk_op *op) {
    const float *from = l->at[LK_Y], *dy = l->at[LK_DY];
    float *to = l->at[LK_DX];
    EACH_VECTOR(l->examples * op->floats) {
        vf y = v_load_first(from + i, (uint32_t)rest);
        vf slope = v_mul(y, v_sub(v_set1(1.0f), y));
        v_store_first(to + i, (uint32_t)rest, v_mul(v_load_first(dy + i, (uint32_t)rest), slope));
    }
    return 0;
}

static uint32_t plain_relu6(lk_lane *l, const lk_op *op) {
    const float *x = l->at[LK_X];
    float *y = l->at[LK_Y];
    EACH_VECTOR(l->examples * op->floats) {
        vf v = v_load_first(x + i, (uint32_t)rest);
        v = v_select(v_gt(v, v_set1(6.0f)), v_set1(6.0f), v_keep(v_gt(v, v_zero()), v));
        v_store_first(y + i, (uint32_t)rest, v);
    }
    return 0;
}

static uint32_t plain_relu6_backward(lk_lane *l, const lk_op *op) {
    const float *y = l->at[LK_Y], *dy = l->at[LK_DY];
    float *dx = l->at[LK_DX];
    EACH_VECTOR(l->examples * op->floats) {
        vf v = v_load_first(y + i, (uint32_t)rest);
        vf open = v_keep(v_gt(v, v_zero()), v_load_first(dy + i, (uint32_t)rest));
        v_store_first(dx + i, (uint32_t)rest, v_keep(v_gt(v_set1(6.0f), v), open));
    }
    return 0;
}

static uint32_t plain_elu(lk_lane *l, const lk_op *op) {
    const float *restrict x = l->at[LK_X];
    float *restrict y = l->at[LK_Y];
    const float alpha = op->slope;
    for (uint64_t i = 0; i < l->examples * op->floats; i++) {
        const float below = alpha * lk_eluf(x[i]);
        y[i] = x[i] > 0.0f ? x[i] : below;
    }
    return 0;
}

static uint32_t plain_elu_backward(lk_lane *l, const lk_op *op) {
    const vf alpha = v_set1(op->slope);
    const float *y = l->at[LK_Y], *from = l->at[LK_DY];
    float *to = l->at[LK_DX];
    EACH_VECTOR(l->examples * op->floats) {
        vf v = v_load_first(y + i, (uint32_t)rest), dy = v_load_first(from + i, (uint32_t)rest);
        vf below = v_mul(dy, v_add(v, alpha));
        v_store_first(to + i, (uint32_t)rest, v_select(v_gt(v, v_zero()), dy, below));
    }
    return 0;
}

// dx may be dy: by blocks, so that compilers vectorise them.
#define PLAIN_SMOOTH(name, function, slope)                                                 \
    static uint32_t plain_##name(lk_lane *l, const lk_op *op) {                             \
        const float *restrict x = l->at[LK_X];                                              \
        float *restrict y = l->at[LK_Y];                                                    \
        for (uint64_t i = 0; i < l->examples * op->floats; i++) y[i] = function(x[i]);      \
        return 0;                                                                           \
    }                                                                                       \
    static uint32_t plain_##name##_backward(lk_lane *l, const lk_op *op) {                  \
        const float *x = l->at[LK_X], *dy = l->at[LK_DY];                                   \
        const uint64_t count = l->examples * op->floats;                                    \
        float *dx = l->at[LK_DX];                                                           \
        float dot[64];                                                                      \
        for (uint64_t at = 0; at < count; at += 64) {                                       \
            const uint64_t some = LK_MIN(count - at, (uint64_t)64);                         \
            for (uint64_t i = 0; i < some; i++) dot[i] = dy[at + i] * slope(x[at + i]);     \
            memcpy(dx + at, dot, some * sizeof *dx);                                        \
        }                                                                                   \
        return all_finite_flag(count, dx);                                                  \
    }
PLAIN_SMOOTH(softplus, lk_log1pexpf, lk_sigmoidf)
PLAIN_SMOOTH(swish, lk_swishf, lk_swish_slopef)
PLAIN_SMOOTH(gelu, lk_geluf, lk_gelu_slopef)
PLAIN_SMOOTH(gelu_tanh, lk_gelu_tanhf, lk_gelu_tanh_slopef)
#undef PLAIN_SMOOTH

// --- random words --------------------------------------------------------------------------------

// Blocks of words that are made at once.
enum { DRAWN_BLOCKS = 16, DRAWN_WORDS = 4 * DRAWN_BLOCKS };

// Words 4 * block .. 4 * block + 63 that a step draws for an example, word i of each block beside
// those of the others: lk_philox_step in loops that compilers vectorise.
static void draw_words(const lk_noise_key *key, uint32_t number, uint32_t block,
                       uint32_t word[restrict 4][DRAWN_BLOCKS]) {
    uint32_t c0[DRAWN_BLOCKS], c1[DRAWN_BLOCKS], c2[DRAWN_BLOCKS], c3[DRAWN_BLOCKS];
    uint32_t k0 = (uint32_t)key->seed, k1 = (uint32_t)(key->seed >> 32) ^ (uint32_t)key->purpose;
    for (uint32_t i = 0; i < DRAWN_BLOCKS; i++) {
        c0[i] = block + i;
        c1[i] = key->example;
        c2[i] = (uint32_t)key->step;
        c3[i] = number + ((uint32_t)(key->step >> 32) << 16);
    }
    for (uint32_t round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        for (uint32_t i = 0; i < DRAWN_BLOCKS; i++) {
            const uint64_t p0 = (uint64_t)0xD2511F53u * c0[i], p1 = (uint64_t)0xCD9E8D57u * c2[i];
            c0[i] = (uint32_t)(p1 >> 32) ^ c1[i] ^ k0;
            c1[i] = (uint32_t)p1;
            c2[i] = (uint32_t)(p0 >> 32) ^ c3[i] ^ k1;
            c3[i] = (uint32_t)p0;
        }
    }
    memcpy(word[0], c0, sizeof c0);
    memcpy(word[1], c1, sizeof c1);
    memcpy(word[2], c2, sizeof c2);
    memcpy(word[3], c3, sizeof c3);
}

// The unit floats of the words, in their order.
static void draw_units(const lk_noise_key *key, uint32_t number, uint32_t block,
                       float *restrict unit) {
    uint32_t word[4][DRAWN_BLOCKS];
    draw_words(key, number, block, word);
    for (uint32_t i = 0; i < DRAWN_BLOCKS; i++) {
        unit[4 * i] = (float)(int32_t)(word[0][i] >> 8) * 0x1p-24f;
        unit[4 * i + 1] = (float)(int32_t)(word[1][i] >> 8) * 0x1p-24f;
        unit[4 * i + 2] = (float)(int32_t)(word[2][i] >> 8) * 0x1p-24f;
        unit[4 * i + 3] = (float)(int32_t)(word[3][i] >> 8) * 0x1p-24f;
    }
}

// --- noise ---------------------------------------------------------------------------------------

// The normal numbers of the words, in their order.
static void draw_normals(const lk_noise_key *key, uint32_t number, uint32_t block,
                         float *restrict z) {
    uint32_t word[4][DRAWN_BLOCKS];
    float cosine[2][DRAWN_BLOCKS], sine[2][DRAWN_BLOCKS];
    draw_words(key, number, block, word);
    for (uint32_t half = 0; half < 2; half++) {
        for (uint32_t i = 0; i < DRAWN_BLOCKS; i++) {
            const lk_cos_sin pair = lk_normal_pair(word[2 * half][i], word[2 * half + 1][i]);
            cosine[half][i] = pair.cosine;
            sine[half][i] = pair.sine;
        }
    }
    for (uint32_t i = 0; i < DRAWN_BLOCKS; i++) {
        z[4 * i] = cosine[0][i];
        z[4 * i + 1] = sine[0][i];
        z[4 * i + 2] = cosine[1][i];
        z[4 * i + 3] = sine[1][i];
    }
}

// Those of them that are too large are drawn again, one by one: 1 of 22.
static void truncate_normals(const lk_noise *n, const lk_noise_key *key, uint64_t at,
                             uint64_t count, float *z) {
    for (uint64_t i = 0; i < count; i++) {
        if (z[i] < -2.0f || z[i] > 2.0f) z[i] = lk_noise_drawn(n, key, at + i, 1);
    }
}

static uint32_t plain_noise(lk_lane *l, const lk_op *op) {
    const lk_noise *n = &op->noise;
    const vf offset = v_set1(n->offset), scale = v_set1(n->scale);
    float *y = l->at[LK_Y];
    for (uint32_t m = 0; m < l->examples; m++, y += op->floats) {
        const lk_noise_key key = lk_noise_key_of(l, m);
        for (uint64_t at = 0; at < op->floats; at += DRAWN_WORDS) {
            _Alignas(64) float drawn[DRAWN_WORDS];
            const uint64_t count = LK_MIN(op->floats - at, (uint64_t)DRAWN_WORDS);
            const uint32_t block = (uint32_t)(at / 4);
            if (n->kind == LK_NOISE_UNIFORM) {
                draw_units(&key, n->number, block, drawn);
            } else {
                draw_normals(&key, n->number, block, drawn);
            }
            if (n->kind == LK_NOISE_TRUNCATED_NORMAL) truncate_normals(n, &key, at, count, drawn);
            EACH_VECTOR(count) {
                v_store_first(y + at + i, (uint32_t)rest,
                              v_fma(scale, v_load(drawn + i), offset));
            }
        }
    }
    return 0;
}

// --- dropout -------------------------------------------------------------------------------------

static uint32_t plain_drop(const lk_lane *l, const lk_op *op, const float *from, float *to) {
    const vf rate = v_set1(op->dropout.rate), scale = v_set1(1.0f / (1.0f - op->dropout.rate));
    vf bad = v_zero();
    for (uint32_t m = 0; m < l->examples; m++, from += op->floats, to += op->floats) {
        const lk_noise_key key = {l->seed, l->step, LK_PURPOSE_DROPOUT, l->first_example + m};
        for (uint64_t at = 0; at < op->floats; at += DRAWN_WORDS) {
            _Alignas(64) float unit[DRAWN_WORDS];
            const uint64_t count = LK_MIN(op->floats - at, (uint64_t)DRAWN_WORDS);
            draw_units(&key, lk_draws_of(op), (uint32_t)(at / 4), unit);
            EACH_VECTOR(count) {
                vm out = v_gt(rate, v_load(unit + i));
                vf kept = v_mul(v_load_first(from + at + i, (uint32_t)rest), scale);
                kept = v_select(out, v_zero(), kept);
                bad = v_note(bad, kept);
                v_store_first(to + at + i, (uint32_t)rest, kept);
            }
        }
    }
    return v_noted(bad);
}

static uint32_t plain_dropout(lk_lane *l, const lk_op *op) {
    if (l->train) return plain_drop(l, op, l->at[LK_X], l->at[LK_Y]);
    memcpy(l->at[LK_Y], l->at[LK_X], l->examples * op->floats * sizeof(float));
    return 0;
}

static uint32_t plain_dropout_backward(lk_lane *l, const lk_op *op) {
    return plain_drop(l, op, l->at[LK_DY], l->at[LK_DX]);
}

// --- values elsewhere ----------------------------------------------------------------------------

static uint32_t plain_concatenate(lk_lane *l, const lk_op *op) {
    const uint32_t *values = op->join.values;
    const float *x = l->at[LK_X], *x2 = l->at[LK_X2];
    float *y = l->at[LK_Y];
    for (uint64_t cell = 0; cell < (uint64_t)l->examples * op->join.cells; cell++) {
        memcpy(y, x, values[0] * sizeof *y);
        memcpy(y + values[0], x2, values[1] * sizeof *y);
        x += values[0], x2 += values[1], y += values[0] + values[1];
    }
    return 0;
}

static uint32_t plain_concatenate_gradient(lk_lane *l, const lk_op *op) {
    const uint32_t *values = op->join.values, which = op->join.which;
    const float *dy = (const float *)l->at[LK_DY] + (which ? values[0] : 0);
    float *dx = l->at[LK_DX];
    for (uint64_t cell = 0; cell < (uint64_t)l->examples * op->join.cells; cell++) {
        memcpy(dx, dy, values[which] * sizeof *dx);
        dx += values[which], dy += values[0] + values[1];
    }
    return 0;
}

static uint32_t plain_zero_padding2d(lk_lane *l, const lk_op *op) {
    const lk_pool2d *p = &op->pool;
    const uint64_t row = (uint64_t)p->in_w * p->channels;
    const uint64_t out_row = (uint64_t)p->out_w * p->channels;
    const float *x = l->at[LK_X];
    float *y = l->at[LK_Y];
    memset(y, 0, l->examples * op->floats * sizeof *y);
    for (uint32_t m = 0; m < l->examples; m++, y += op->floats) {
        float *to = y + p->pad_top * out_row + (uint64_t)p->pad_left * p->channels;
        for (uint32_t iy = 0; iy < p->in_h; iy++, x += row, to += out_row) {
            memcpy(to, x, row * sizeof *to);
        }
    }
    return 0;
}

static uint32_t plain_zero_padding2d_backward(lk_lane *l, const lk_op *op) {
    const lk_pool2d *p = &op->pool;
    const uint64_t row = (uint64_t)p->in_w * p->channels;
    const uint64_t out_row = (uint64_t)p->out_w * p->channels;
    const float *dy = l->at[LK_DY];
    float *dx = l->at[LK_DX];
    for (uint32_t m = 0; m < l->examples; m++, dy += op->floats) {
        const float *from = dy + p->pad_top * out_row + (uint64_t)p->pad_left * p->channels;
        for (uint32_t iy = 0; iy < p->in_h; iy++, dx += row, from += out_row) {
            memcpy(dx, from, row * sizeof *dx);
        }
    }
    return 0;
}

// --- average pools -------------------------------------------------------------------------------

static inline float window_part(const window *w) {
    return 1.0f / (float)((w->y1 - w->y0) * (w->x1 - w->x0));
}

// The sum of a window for up to V_LANES channels; x is the first of them at pixel (0, 0).
V_INLINE vf window_sum(const lk_pool2d *p, const window *w, const float *x, uint32_t channels) {
    vf node[LK_TREE_LEVELS_MAX], chain = v_zero();
    uint32_t slices = 0, terms = 0;
    for (uint32_t cy = w->y0; cy < w->y1; cy++) {
        for (uint32_t cx = w->x0; cx < w->x1; cx++, terms++) {
            int64_t pixel = (w->top + cy) * p->in_w + w->left + cx;
            if (terms == LK_SLICE_TERMS) {
                uint32_t level = 0;
                for (; slices >> level & 1; level++) chain = v_add(node[level], chain);
                node[level] = chain;
                slices++;
                chain = v_zero();
                terms = 0;
            }
            chain = v_add(chain, v_load_first(x + pixel * p->channels, channels));
        }
    }
    for (uint32_t level = 0; slices >> level; level++) {
        if (slices >> level & 1) chain = v_add(node[level], chain);
    }
    return v_add(chain, v_zero());
}

static uint32_t plain_average_pool2d(lk_lane *l, const lk_op *op) {
    const lk_pool2d *p = &op->pool;
    const float *x = l->at[LK_X];
    float *y = l->at[LK_Y];
    vf bad = v_zero();
    for (uint32_t m = 0; m < l->examples; m++, x += (uint64_t)p->in_h * p->in_w * p->channels) {
        for (uint32_t o = 0; o < p->out_h * p->out_w; o++, y += p->channels) {
            const window w = window_at(p, o / p->out_w, o % p->out_w);
            const vf scale = v_set1(window_part(&w));
            for (uint32_t c = 0; c < p->channels; c += V_LANES) {
                uint32_t rest = LK_MIN(p->channels - c, (uint32_t)V_LANES);
                vf mean = v_mul(window_sum(p, &w, x + c, rest), scale);
                bad = v_note(bad, mean);
                v_store_first(y + c, rest, mean);
            }
        }
    }
    return v_noted(bad);
}

static void window_share(const lk_pool2d *p, const window *w, vf share, uint32_t channels,
                         float *dx) {
    for (uint32_t cy = w->y0; cy < w->y1; cy++) {
        for (uint32_t cx = w->x0; cx < w->x1; cx++) {
            float *at = dx + ((w->top + cy) * p->in_w + w->left + cx) * p->channels;
            v_store_first(at, channels, v_add(v_load_first(at, channels), share));
        }
    }
}

static uint32_t plain_average_pool2d_backward(lk_lane *l, const lk_op *op) {
    const lk_pool2d *p = &op->pool;
    const uint64_t in_floats = (uint64_t)p->in_h * p->in_w * p->channels;
    const float *dy = l->at[LK_DY];
    float *dx = l->at[LK_DX];
    uint32_t bad = 0;
    for (uint32_t m = 0; m < l->examples; m++, dx += in_floats) {
        memset(dx, 0, in_floats * sizeof *dx);
        for (uint32_t o = 0; o < p->out_h * p->out_w; o++, dy += p->channels) {
            const window w = window_at(p, o / p->out_w, o % p->out_w);
            const vf scale = v_set1(window_part(&w));
            for (uint32_t c = 0; c < p->channels; c += V_LANES) {
                uint32_t rest = LK_MIN(p->channels - c, (uint32_t)V_LANES);
                window_share(p, &w, v_mul(v_load_first(dy + c, rest), scale), rest, dx + c);
            }
        }
        bad |= all_finite_flag(in_floats, dx);
    }
    return bad;
}

// --- losses --------------------------------------------------------------------------------------

// Sums of up to LOSS_ROWS examples at once: the chain of one would wait for each of its additions.
enum { LOSS_ROWS = 8 };

typedef struct row_sums {
    float chain[LOSS_ROWS];  // of the current slice
    float node[LK_TREE_LEVELS_MAX][LOSS_ROWS];
    uint32_t slices;
} row_sums;

static void rows_start(row_sums *s) { memset(s->chain, 0, sizeof s->chain), s->slices = 0; }

static void rows_cut(row_sums *s) {
    uint32_t level = 0;
    for (; s->slices >> level & 1; level++) {
        for (uint32_t r = 0; r < LOSS_ROWS; r++) s->chain[r] = s->node[level][r] + s->chain[r];
    }
    memcpy(s->node[level], s->chain, sizeof s->chain);
    memset(s->chain, 0, sizeof s->chain);
    s->slices++;
}

// The finished sums come to lie in `chain`.
static void rows_finish(row_sums *s) {
    bool some = false;
    rows_cut(s);
    for (uint32_t level = 0; s->slices >> level; level++) {
        if (!(s->slices >> level & 1)) continue;
        for (uint32_t r = 0; r < LOSS_ROWS; r++) {
            s->chain[r] = some ? s->node[level][r] + s->chain[r] : s->node[level][r];
        }
        some = true;
    }
    for (uint32_t r = 0; r < LOSS_ROWS; r++) s->chain[r] = s->chain[r] + 0.0f;
}

// A slice of as many terms, of each row; rows are `floats` apart.
V_INLINE void error_slice(uint32_t rows, uint32_t terms, uint64_t floats, const float *p,
                          const float *t, float squares[LOSS_ROWS], float absolutes[LOSS_ROWS]) {
    for (uint32_t k = 0; k < terms; k++) {
        for (uint32_t r = 0; r < rows; r++) {
            const float d = p[r * floats + k] - t[r * floats + k];
            squares[r] = lk_fmaf(d, d, squares[r]);
            absolutes[r] = absolutes[r] + (d < 0.0f ? -d : d);
        }
    }
}

// Losses of `rows` examples from row 0 of p and t.
static uint32_t error_rows(uint32_t rows, uint64_t floats, const float *p, const float *t,
                           float *y) {
    const float inverse = 1.0f / (float)floats;
    row_sums squares, absolutes;
    uint32_t bad = 0;
    rows_start(&squares), rows_start(&absolutes);
    for (uint64_t k = 0; k < floats; k += LK_SLICE_TERMS) {
        const uint32_t terms = (uint32_t)LK_MIN(floats - k, (uint64_t)LK_SLICE_TERMS);
        if (k > 0) rows_cut(&squares), rows_cut(&absolutes);
        if (rows == LOSS_ROWS) {
            error_slice(LOSS_ROWS, terms, floats, p + k, t + k, squares.chain, absolutes.chain);
        } else {
            error_slice(rows, terms, floats, p + k, t + k, squares.chain, absolutes.chain);
        }
    }
    rows_finish(&squares), rows_finish(&absolutes);
    for (uint32_t r = 0; r < rows; r++) {
        y[2 * r] = squares.chain[r] * inverse;
        y[2 * r + 1] = absolutes.chain[r] * inverse;
        for (uint32_t i = 0; i < 2; i++) bad |= !(y[2 * r + i] - y[2 * r + i] == 0.0f);
    }
    return bad;
}

static uint32_t plain_mean_squared_error(lk_lane *l, const lk_op *op) {
    const float *p = l->at[LK_X], *t = l->at[LK_X2];
    const vf slope = v_set1(2.0f * (1.0f / (float)op->floats));
    float *y = l->at[LK_Y], *dp = l->at[LK_DX];
    vf unfit = v_zero();
    uint32_t bad = 0;
    for (uint32_t m = 0; m < l->examples; m += LOSS_ROWS) {
        const uint32_t rows = LK_MIN(l->examples - m, (uint32_t)LOSS_ROWS);
        bad |= error_rows(rows, op->floats, p + m * op->floats, t + m * op->floats, y + 2 * m);
    }
    if (!l->train || !dp) return bad;
    EACH_VECTOR(l->examples * op->floats) {
        vf d = v_sub(v_load_first(p + i, (uint32_t)rest), v_load_first(t + i, (uint32_t)rest));
        vf g = v_add(v_mul(d, slope), v_zero());
        unfit = v_note(unfit, g);
        v_store_first(dp + i, (uint32_t)rest, g);
    }
    return bad | v_noted(unfit);
}

static uint32_t plain_mean_squared_error_target_gradient(lk_lane *l, const lk_op *op) {
    const float *dp = l->at[LK_DY];
    float *dt = l->at[LK_DX];
    EACH_VECTOR(l->examples * op->floats) {
        v_store_first(dt + i, (uint32_t)rest,
                      v_sub(v_zero(), v_load_first(dp + i, (uint32_t)rest)));
    }
    return 0;
}

V_INLINE void mean_slice(uint32_t rows, uint32_t terms, uint64_t floats, const float *x,
                         float chain[LOSS_ROWS]) {
    for (uint32_t k = 0; k < terms; k++) {
        for (uint32_t r = 0; r < rows; r++) chain[r] = chain[r] + x[r * floats + k];
    }
}

static uint32_t mean_rows(uint32_t rows, uint64_t floats, const float *x, float scale, float *y) {
    const float inverse = 1.0f / (float)floats;
    row_sums s;
    uint32_t bad = 0;
    rows_start(&s);
    for (uint64_t k = 0; k < floats; k += LK_SLICE_TERMS) {
        const uint32_t terms = (uint32_t)LK_MIN(floats - k, (uint64_t)LK_SLICE_TERMS);
        if (k > 0) rows_cut(&s);
        if (rows == LOSS_ROWS) {
            mean_slice(LOSS_ROWS, terms, floats, x + k, s.chain);
        } else {
            mean_slice(rows, terms, floats, x + k, s.chain);
        }
    }
    rows_finish(&s);
    for (uint32_t r = 0; r < rows; r++) {
        y[r] = s.chain[r] * inverse * scale + 0.0f;
        bad |= !(y[r] - y[r] == 0.0f);
    }
    return bad;
}

static uint32_t plain_mean(lk_lane *l, const lk_op *op) {
    const float *x = l->at[LK_X];
    const float slope = 1.0f / (float)op->floats * op->scale + 0.0f;
    float *y = l->at[LK_Y], *dx = l->at[LK_DX];
    uint32_t bad = !(slope - slope == 0.0f);
    for (uint32_t m = 0; m < l->examples; m += LOSS_ROWS) {
        const uint32_t rows = LK_MIN(l->examples - m, (uint32_t)LOSS_ROWS);
        bad |= mean_rows(rows, op->floats, x + m * op->floats, op->scale, y + m);
    }
    if (!l->train || !dx) return bad;
    EACH_VECTOR(l->examples * op->floats) v_store_first(dx + i, (uint32_t)rest, v_set1(slope));
    return bad;
}

// Logits and scores are few, one an example as a rule: as the reference has them.
static uint32_t plain_binary_crossentropy(lk_lane *l, const lk_op *op) {
    return lk_op_binary_crossentropy.reference(l, op);
}

static uint32_t plain_gan_generator(lk_lane *l, const lk_op *op) {
    return lk_op_gan_generator.reference(l, op);
}

static uint32_t plain_gan_discriminator(lk_lane *l, const lk_op *op) {
    return lk_op_gan_discriminator.reference(l, op);
}
