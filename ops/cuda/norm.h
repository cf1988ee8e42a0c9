// norm.h - batch normalisation (ops/layers/norm.c) as a block has it: 32 channels of one grain, a
// thread one of them, and a warp every eighth slice of it. The launches are norm.cu's, and the
// persistent kernel's (persistent.cu).
#ifndef LOCKSTEP_OPS_CUDA_NORM_H
#define LOCKSTEP_OPS_CUDA_NORM_H

#include "ops/cuda/device.h"
#include "ops/math.h"

enum { NORM_LANES = 32, NORM_WARPS = LK_CUDA_THREADS / NORM_LANES };

// What a launch works on. labels: NULL where every position has an example.
struct norm_operands {
    lk_batch_norm norm;
    lk_cuda_divisor tiles;  // of two by two cells, in a row of an image
    uint64_t floats;        // of an example
    uint32_t examples, grain;
    const uint32_t *labels;
    const float *x, *dy, *gamma, *beta;
    float *y, *dx, *rows;
};

// --- sums of a grain -----------------------------------------------------------------------------

// The block's grain and this thread's channel of it.
struct grain_channel {
    uint32_t examples, rows;  // that have an example, and all
    uint32_t channel, warp, lane;
    bool mine;       // there is such a channel
    uint64_t first;  // of x and dy: the channel at the grain's first cell
    float *row;      // (LK_NORM_COLUMNS, channels) and the channel
};

static inline __device__ grain_channel channel_of(lk_cuda_at at, const norm_operands &o) {
    grain_channel g;
    const uint64_t first = (uint64_t)at.x * o.grain;
    g.rows = (uint32_t)LK_MIN(o.examples - first, (uint64_t)o.grain);
    g.examples = g.rows;
    while (o.labels && g.examples > 0 && o.labels[first + g.examples - 1] == LK_CUDA_NO_EXAMPLE) {
        g.examples--;
    }
    g.warp = threadIdx.x / NORM_LANES;
    g.lane = threadIdx.x % NORM_LANES;
    g.channel = at.y * NORM_LANES + g.lane;
    g.mine = g.channel < o.norm.channels;
    g.first = first * o.floats + g.channel;
    g.row = o.rows + (uint64_t)at.x * LK_NORM_COLUMNS * o.norm.channels + g.channel;
    return g;
}

struct add_x {
    const float *x;
    __device__ float next(uint64_t at, float chain) const { return chain + x[at]; }
};
struct add_square {
    const float *x;
    float mean;
    __device__ float next(uint64_t at, float chain) const {
        const float d = x[at] - mean;
        return lk_fmaf(d, d, chain);
    }
};
struct add_gamma {
    const float *x, *dy;
    float mean, inverse;
    __device__ float next(uint64_t at, float chain) const {
        return lk_fmaf(dy[at], (x[at] - mean) * inverse, chain);
    }
};

// Slice `slice` of a grain: whole examples, or terms of one.
template <typename Term>
static inline __device__ float slice_of(const norm_operands &o, const grain_channel &g,
                                        const Term &term, uint32_t slice) {
    const lk_batch_norm &n = o.norm;
    const uint32_t terms = lk_norm_terms(&n), whole = LK_SLICE_TERMS / terms;
    const uint32_t of_one = (terms + LK_SLICE_TERMS - 1) / LK_SLICE_TERMS;
    const uint32_t begin = whole > 0 ? slice * whole : slice / of_one;
    const uint32_t end = whole > 0 ? LK_MIN(begin + whole, g.examples) : begin + 1;
    const uint32_t from = whole > 0 ? 0 : slice % of_one * LK_SLICE_TERMS;
    const uint32_t rows = (n.h + 1) / 2;
    const uint32_t last = whole > 0 ? o.tiles.by * rows * 4 : LK_MIN(from + LK_SLICE_TERMS, terms);
    float chain = 0.0f;
    for (uint32_t m = begin; m < end; m++) {
        for (uint32_t t = from; t < last; t++) {
            const uint32_t tile = t / 4, row = lk_cuda_quotient(tile, o.tiles);
            const uint32_t y = row * 2 + t % 4 / 2, x = (tile - row * o.tiles.by) * 2 + t % 2;
            if (y >= n.h || x >= n.w) continue;
            chain = term.next(g.first + m * o.floats + ((uint64_t)y * n.w + x) * n.channels, chain);
        }
    }
    return chain;
}

// The grain's sum of a channel, for all threads of it.
template <typename Term>
static inline __device__ float grain_sum(const norm_operands &o, const grain_channel &g,
                                         const Term &term) {
    float *shared = lk_cuda_shared;  // (NORM_WARPS, NORM_LANES)
    const uint32_t terms = lk_norm_terms(&o.norm), whole = LK_SLICE_TERMS / terms;
    const uint32_t of_one = (terms + LK_SLICE_TERMS - 1) / LK_SLICE_TERMS;
    const uint32_t slices = whole > 0 ? (g.examples + whole - 1) / whole : g.examples * of_one;
    lk_cuda_tree tree;
    tree.leaves = 0;
    for (uint32_t first = 0; first < slices; first += NORM_WARPS) {
        const uint32_t slice = first + g.warp;
        if (slice < slices && g.mine) {
            shared[g.warp * NORM_LANES + g.lane] = slice_of(o, g, term, slice);
        }
        __syncthreads();
        for (uint32_t i = 0; g.warp == 0 && g.mine && i < NORM_WARPS && first + i < slices; i++) {
            lk_cuda_tree_leaf(&tree, shared[i * NORM_LANES + g.lane]);
        }
        __syncthreads();
    }
    if (g.warp == 0 && g.mine) shared[g.lane] = lk_cuda_tree_finish(&tree);
    __syncthreads();
    const float sum = g.mine ? shared[g.lane] : 0.0f;
    __syncthreads();
    return sum;
}

static inline __device__ float share_of(const lk_batch_norm &n, uint32_t examples) {
    return 1.0f / (float)((uint64_t)examples * n.h * n.w);
}

static inline __device__ float inverse_root(float variance, float epsilon) {
    return 1.0f / lk_sqrtf(variance + epsilon);
}

// --- forward -------------------------------------------------------------------------------------

static inline __device__ void normalize_grain_body(lk_cuda_at block, lk_cuda_state *state,
                                                   uint32_t op, const norm_operands &o) {
    const grain_channel g = channel_of(block, o);
    const lk_batch_norm &n = o.norm;
    const uint64_t cells = (uint64_t)n.h * n.w, here = g.examples * cells;
    float mean = 0.0f, inverse = 0.0f, sum = 0.0f, squares = 0.0f;
    bool bad = false;
    if (g.examples > 0) {  // the whole block
        const float share = share_of(n, g.examples);
        sum = grain_sum(o, g, add_x{o.x});
        mean = (sum + 0.0f) * share;
        squares = grain_sum(o, g, add_square{o.x, mean});
        const float variance = (squares + 0.0f) * share;
        inverse = inverse_root(variance, n.epsilon);
        bad = g.mine && (lk_cuda_not_finite(mean) || lk_cuda_not_finite(variance));
    }
    if (!g.mine) return;
    if (g.warp == 0) {
        for (uint32_t i = 0; i < LK_NORM_COLUMNS; i++) g.row[i * n.channels] = 0.0f;
        g.row[LK_NORM_SUM * n.channels] = sum;
        g.row[LK_NORM_SQUARES * n.channels] = squares;
        g.row[LK_NORM_MEAN * n.channels] = mean;
        g.row[LK_NORM_INVERSE * n.channels] = inverse;
    }
    const float gamma = o.gamma ? o.gamma[g.channel] : 1.0f;
    const float beta = o.beta ? o.beta[g.channel] : 0.0f;
    for (uint64_t i = g.warp; i < g.rows * cells; i += NORM_WARPS) {
        const uint64_t at = g.first + i * n.channels;
        const float y = i < here ? lk_fmaf((o.x[at] - mean) * inverse, gamma, beta) : 0.0f;
        o.y[at] = n.relu && !(y > 0.0f) ? 0.0f : y;
        bad |= lk_cuda_not_finite(y);
    }
    lk_cuda_report(state, op, bad);
}

// `count` elements, by statistics of all channels.
static inline __device__ void normalize_by_moving_body(lk_cuda_at block, lk_cuda_state *state,
                                                       uint32_t op, const norm_operands &o,
                                                       const lk_cuda_divisor &channels,
                                                       uint32_t count, const float *moving_mean,
                                                       const float *moving_variance) {
    bool bad = false;
    LK_CUDA_EACH_AT(block, i, count) {
        const uint32_t c = (uint32_t)i - lk_cuda_quotient((uint32_t)i, channels) * channels.by;
        const float inverse = inverse_root(moving_variance[c], o.norm.epsilon);
        const float gamma = o.gamma ? o.gamma[c] : 1.0f, beta = o.beta ? o.beta[c] : 0.0f;
        const float y = lk_fmaf((o.x[i] - moving_mean[c]) * inverse, gamma, beta);
        o.y[i] = o.norm.relu && !(y > 0.0f) ? 0.0f : y;
        bad |= lk_cuda_not_finite(y);
    }
    lk_cuda_report(state, op, bad);
}

// --- backward ------------------------------------------------------------------------------------

// dx may be dy: a cell is read for the last time by the thread that writes it, after all sums.
static inline __device__ void turn_back_grain_body(lk_cuda_at block, lk_cuda_state *state,
                                                   uint32_t op, const norm_operands &o) {
    const grain_channel g = channel_of(block, o);
    const lk_batch_norm &n = o.norm;
    const uint64_t cells = (uint64_t)n.h * n.w, here = g.examples * cells;
    const float mean = g.mine ? g.row[LK_NORM_MEAN * n.channels] : 0.0f;
    const float inverse = g.mine ? g.row[LK_NORM_INVERSE * n.channels] : 0.0f;
    float a = 0.0f, b = 0.0f;
    bool bad = false;
    if (g.examples > 0) {  // the whole block
        a = grain_sum(o, g, add_gamma{o.x, o.dy, mean, inverse});
        b = grain_sum(o, g, add_x{o.dy});
    }
    if (!g.mine) return;
    if (g.warp == 0 && g.examples > 0) {
        g.row[LK_NORM_GAMMA * n.channels] = a;
        g.row[LK_NORM_BETA * n.channels] = b;
        bad = lk_cuda_not_finite(a) || lk_cuda_not_finite(b);
    }
    const float share = g.examples > 0 ? share_of(n, g.examples) : 0.0f;
    const float mean_a = (a + 0.0f) * share, mean_b = (b + 0.0f) * share;
    const float factor = (o.gamma ? o.gamma[g.channel] : 1.0f) * inverse;
    for (uint64_t i = g.warp; o.dx && i < g.rows * cells; i += NORM_WARPS) {
        const uint64_t at = g.first + i * n.channels;
        const float normal = (o.x[at] - mean) * inverse;
        const float dx = factor * lk_fmaf(-normal, mean_a, o.dy[at] - mean_b);
        o.dx[at] = i < here ? dx : 0.0f;
        bad |= i < here && lk_cuda_not_finite(dx);
    }
    lk_cuda_report(state, op, bad);
}

static inline __device__ void turn_back_frozen_body(lk_cuda_at block, lk_cuda_state *state,
                                                    uint32_t op, const norm_operands &o,
                                                    const lk_cuda_divisor &channels, uint32_t count,
                                                    const float *moving_variance) {
    bool bad = false;
    LK_CUDA_EACH_AT(block, i, count) {
        const uint32_t c = (uint32_t)i - lk_cuda_quotient((uint32_t)i, channels) * channels.by;
        const float gamma = o.gamma ? o.gamma[c] : 1.0f;
        const float dx = gamma * inverse_root(moving_variance[c], o.norm.epsilon) * o.dy[i];
        o.dx[i] = dx;
        bad |= lk_cuda_not_finite(dx);
    }
    lk_cuda_report(state, op, bad);
}

// --- trees over grains ---------------------------------------------------------------------------

// One thread a channel and column: rows of grains lie one after the other.
static inline __device__ void rows_to_nodes_body(lk_cuda_at block, uint32_t channels,
                                                 uint32_t grains, const float *rows, float *first,
                                                 float *second) {
    LK_CUDA_EACH_AT(block, i, 2 * channels) {
        float *const to = i < channels ? first : second;
        lk_cuda_tree tree;
        tree.leaves = 0;
        if (!to) continue;
        for (uint32_t g = 0; g < grains; g++) {
            lk_cuda_tree_leaf(&tree, rows[(uint64_t)g * LK_NORM_COLUMNS * channels + i]);
        }
        to[i < channels ? i : i - channels] = lk_cuda_tree_finish(&tree);
    }
}

#endif
