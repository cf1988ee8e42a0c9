// norm.h - batch normalisation (ops/layers/norm.c) as a block has it: a piece of one grain, and 32
// of its channels at most. Each slice of a grain is a chain of its own, so that few grains fill a
// GPU: a launch leaves the slices' sums in scratch, and every block of the next one takes the tree
// over them. So forward is three launches: sums, squares around the mean, outputs; and backward is
// two: both sums, gradients. The launches are norm.cu's, and the persistent kernel's
// (persistent.cu).
#ifndef LOCKSTEP_OPS_CUDA_NORM_H
#define LOCKSTEP_OPS_CUDA_NORM_H

#include "ops/cuda/join.h"
#include "ops/math.h"

// The first threads of a block have slices, since these are few and long; the others help with
// trees and cells. Of a slice the terms of some tiles of 2 x 2 cells are fetched at once, of one
// tensor or of two; and of outputs some cells. Eight threads share a tree.
enum { NORM_LANES = 32, NORM_SLICE_THREADS = 64, NORM_CELLS = 8 };
enum { NORM_TILES = 6, NORM_TILES_OF_TWO = 2 };
enum { NORM_WORKERS_LOG = 3 };

// What a launch works on. labels: NULL where every position has an example.
struct norm_operands {
    lk_batch_norm norm;
    lk_cuda_divisor tiles, image_tiles;  // of two by two cells, in a row of an image, and in it
    lk_cuda_divisor pieces;  // blocks of a grain
    uint32_t lanes_log;      // of the channels that a block has
    uint64_t floats;         // of an example
    uint32_t examples, grain, slices;  // slices: of a whole grain
    const uint32_t *labels;
    const float *x, *dy, *gamma, *beta;
    float *y, *dx, *rows;
    float *sums, *others;  // scratch: (grains, slices, channels) each
};

// The slices that examples of a grain have.
static inline __device__ __host__ uint32_t norm_slices(const lk_batch_norm &n, uint32_t examples) {
    const uint32_t terms = lk_norm_terms(&n), whole = LK_SLICE_TERMS / terms;
    const uint32_t of_one = (terms + LK_SLICE_TERMS - 1) / LK_SLICE_TERMS;
    return whole > 0 ? (examples + whole - 1) / whole : examples * of_one;
}

// --- sums of a grain -----------------------------------------------------------------------------

// A block's grain, which piece of it the block has, and this thread's channel.
struct grain_channel {
    uint32_t number, piece;
    uint32_t examples, rows;  // that have an example, and all
    uint32_t channel, place;  // threads of the same channel are numbered
    bool mine;                // there is such a channel
    uint64_t first;           // of x and dy: the channel at the grain's first cell
    float *row;               // (LK_NORM_COLUMNS, channels) and the channel
};

static inline __device__ grain_channel channel_of(lk_cuda_at at, const norm_operands &o) {
    grain_channel g;
    g.number = lk_cuda_quotient(at.x, o.pieces);
    g.piece = at.x - g.number * o.pieces.by;
    const uint64_t first = (uint64_t)g.number * o.grain;
    g.rows = (uint32_t)LK_MIN(o.examples - first, (uint64_t)o.grain);
    g.examples = g.rows;
    while (o.labels && g.examples > 0 && o.labels[first + g.examples - 1] == LK_CUDA_NO_EXAMPLE) {
        g.examples--;
    }
    g.place = threadIdx.x >> o.lanes_log;
    g.channel = (at.y << o.lanes_log) + (threadIdx.x & ((1u << o.lanes_log) - 1));
    g.mine = g.channel < o.norm.channels;
    g.first = first * o.floats + g.channel;
    g.row = o.rows + (uint64_t)g.number * LK_NORM_COLUMNS * o.norm.channels + g.channel;
    return g;
}

// What is summed, of a cell.
struct of_x {
    static constexpr int tiles = NORM_TILES;
    const float *x;
    typedef float value;
    __device__ value take(uint64_t at) const { return x[at]; }
    __device__ void add(value v, float *chain) const { chain[0] = chain[0] + v; }
};
struct of_squares {
    static constexpr int tiles = NORM_TILES;
    const float *x;
    float mean;
    typedef float value;
    __device__ value take(uint64_t at) const { return x[at]; }
    __device__ void add(value v, float *chain) const {
        const float d = v - mean;
        chain[0] = lk_fmaf(d, d, chain[0]);
    }
};
struct of_gradients {
    static constexpr int tiles = NORM_TILES_OF_TWO;
    const float *x, *dy;
    float mean, inverse;
    typedef float2 value;
    __device__ value take(uint64_t at) const { return make_float2(x[at], dy[at]); }
    __device__ void add(value v, float *chain) const {
        chain[0] = lk_fmaf(v.y, (v.x - mean) * inverse, chain[0]);
        chain[1] = chain[1] + v.y;
    }
};

// Term::tiles tiles of two by two cells from `first` on, but none from `end` on, of images that lie
// one behind the other from `images` on: all are fetched before the first is added.
template <typename Term>
static inline __device__ void add_tiles(const norm_operands &o, const Term &term, uint64_t images,
                                        uint32_t first, uint32_t end, float *chain) {
    const lk_batch_norm &n = o.norm;
    typename Term::value v[Term::tiles][4];
    bool there[Term::tiles][4];
#pragma unroll
    for (int i = 0; i < Term::tiles; i++) {
        const uint32_t m = lk_cuda_quotient(first + i, o.image_tiles);
        const uint32_t tile = first + i - m * o.image_tiles.by;
        const uint32_t row = lk_cuda_quotient(tile, o.tiles);
        const uint32_t y0 = row * 2, x0 = (tile - row * o.tiles.by) * 2;
        const uint64_t image = images + (first + i < end ? m * o.floats : 0);
#pragma unroll
        for (int t = 0; t < 4; t++) {
            const uint32_t y = y0 + t / 2, x = x0 + t % 2;
            there[i][t] = first + i < end && y < n.h && x < n.w;
            const uint32_t cell = there[i][t] ? y * n.w + x : 0;  // one that exists: no branch
            v[i][t] = term.take(image + (uint64_t)cell * n.channels);
        }
    }
#pragma unroll
    for (int i = 0; i < Term::tiles; i++) {
#pragma unroll
        for (int t = 0; t < 4; t++) {
            if (there[i][t]) term.add(v[i][t], chain);
        }
    }
}

// Slice `slice` of a grain: whole examples, or terms of one.
template <typename Term>
static inline __device__ void add_slice(const norm_operands &o, const grain_channel &g,
                                        const Term &term, uint32_t slice, float *chain) {
    const uint32_t terms = lk_norm_terms(&o.norm), whole = LK_SLICE_TERMS / terms;
    const uint32_t of_one = (terms + LK_SLICE_TERMS - 1) / LK_SLICE_TERMS;
    const uint32_t begin = whole > 0 ? slice * whole : slice / of_one;
    const uint32_t end = whole > 0 ? LK_MIN(begin + whole, g.examples) : begin + 1;
    const uint32_t from = whole > 0 ? 0 : slice % of_one * (LK_SLICE_TERMS / 4);
    const uint32_t last = whole > 0 ? (end - begin) * o.image_tiles.by
                                    : LK_MIN(from + LK_SLICE_TERMS / 4, o.image_tiles.by);
    for (uint32_t tile = from; tile < last; tile += Term::tiles) {
        add_tiles(o, term, g.first + begin * o.floats, tile, last, chain);
    }
}

// Where the sums of a grain's slices lie, of a channel.
static inline __device__ uint64_t sums_at(const norm_operands &o, const grain_channel &g) {
    return (uint64_t)g.number * o.slices * o.norm.channels + (g.mine ? g.channel : 0);
}

// A slice for each of the threads that have some. others: NULL, or of the second sum.
template <typename Term>
static inline __device__ void leave_sums(const norm_operands &o, const grain_channel &g,
                                         const Term &term, float *sums, float *others) {
    const uint32_t slice = g.piece * (NORM_SLICE_THREADS >> o.lanes_log) + g.place;
    const bool has_some = threadIdx.x < NORM_SLICE_THREADS && g.mine;
    if (!has_some || slice >= norm_slices(o.norm, g.examples)) return;
    const uint64_t at = sums_at(o, g) + (uint64_t)slice * o.norm.channels;
    float chain[2] = {0.0f, 0.0f};
    add_slice(o, g, term, slice, chain);
    sums[at] = chain[0];
    if (others) others[at] = chain[1];
}

// The tree over the sums of a grain's slices, for all threads of a channel.
static inline __device__ float grain_sum(const norm_operands &o, const grain_channel &g,
                                         const float *sums) {
    return lk_cuda_join_tree(sums + sums_at(o, g), o.norm.channels, norm_slices(o.norm, g.examples),
                             NORM_WORKERS_LOG);
}

static inline __device__ float share_of(const lk_batch_norm &n, uint32_t examples) {
    return 1.0f / (float)((uint64_t)examples * n.h * n.w);
}

static inline __device__ float inverse_root(float variance, float epsilon) {
    return 1.0f / lk_sqrtf(variance + epsilon);
}

// read(at) and write(cell, at, what was read) for the thread's cells of the piece, NORM_CELLS at
// once: all are read before the first is written.
template <typename Read, typename Write>
static inline __device__ void each_cell(const norm_operands &o, const grain_channel &g,
                                        const Read &read, const Write &write) {
    const uint64_t cells = (uint64_t)g.rows * o.norm.h * o.norm.w;
    const uint32_t places = LK_CUDA_THREADS >> o.lanes_log;
    const uint64_t step = (uint64_t)places * o.pieces.by;
    for (uint64_t i = g.piece * places + g.place; i < cells; i += NORM_CELLS * step) {
        float2 v[NORM_CELLS];
#pragma unroll
        for (int n = 0; n < NORM_CELLS; n++) {
            if (i + n * step < cells) v[n] = read(g.first + (i + n * step) * o.norm.channels);
        }
#pragma unroll
        for (int n = 0; n < NORM_CELLS; n++) {
            const uint64_t cell = i + n * step;
            if (cell < cells) write(cell, g.first + cell * o.norm.channels, v[n]);
        }
    }
}

// --- forward -------------------------------------------------------------------------------------

static inline __device__ void sum_grain_body(lk_cuda_at block, const norm_operands &o) {
    leave_sums(o, channel_of(block, o), of_x{o.x}, o.sums, NULL);
}

static inline __device__ void square_grain_body(lk_cuda_at block, const norm_operands &o) {
    const grain_channel g = channel_of(block, o);
    const float share = g.examples > 0 ? share_of(o.norm, g.examples) : 0.0f;
    const float mean = (grain_sum(o, g, o.sums) + 0.0f) * share;
    leave_sums(o, g, of_squares{o.x, mean}, o.others, NULL);
}

static inline __device__ void normalize_grain_body(lk_cuda_at block, lk_cuda_state *state,
                                                   uint32_t op, const norm_operands &o) {
    const grain_channel g = channel_of(block, o);
    const lk_batch_norm &n = o.norm;
    const uint64_t here = (uint64_t)g.examples * n.h * n.w;
    const float sum = grain_sum(o, g, o.sums), squares = grain_sum(o, g, o.others);
    float mean = 0.0f, inverse = 0.0f;
    bool bad = false;
    if (!g.mine) return;
    if (g.examples > 0) {
        const float share = share_of(n, g.examples);
        mean = (sum + 0.0f) * share;
        const float variance = (squares + 0.0f) * share;
        inverse = inverse_root(variance, n.epsilon);
        bad = lk_cuda_not_finite(mean) || lk_cuda_not_finite(variance);
    }
    if (g.piece == 0 && g.place == 0) {
        for (uint32_t i = 0; i < LK_NORM_COLUMNS; i++) g.row[i * n.channels] = 0.0f;
        g.row[LK_NORM_SUM * n.channels] = sum;
        g.row[LK_NORM_SQUARES * n.channels] = squares;
        g.row[LK_NORM_MEAN * n.channels] = mean;
        g.row[LK_NORM_INVERSE * n.channels] = inverse;
    }
    const float gamma = o.gamma ? o.gamma[g.channel] : 1.0f;
    const float beta = o.beta ? o.beta[g.channel] : 0.0f;
    each_cell(
        o, g, [&](uint64_t at) { return make_float2(o.x[at], 0.0f); },
        [&](uint64_t cell, uint64_t at, float2 v) {
            const float y = cell < here ? lk_fmaf((v.x - mean) * inverse, gamma, beta) : 0.0f;
            o.y[at] = n.relu && !(y > 0.0f) ? 0.0f : y;
            bad |= lk_cuda_not_finite(y);
        });
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

static inline __device__ void sum_gradients_body(lk_cuda_at block, const norm_operands &o) {
    const grain_channel g = channel_of(block, o);
    const float mean = g.mine ? g.row[LK_NORM_MEAN * o.norm.channels] : 0.0f;
    const float inverse = g.mine ? g.row[LK_NORM_INVERSE * o.norm.channels] : 0.0f;
    leave_sums(o, g, of_gradients{o.x, o.dy, mean, inverse}, o.sums, o.others);
}

// dx may be dy: the thread that writes a cell is the last that reads it.
static inline __device__ void turn_back_grain_body(lk_cuda_at block, lk_cuda_state *state,
                                                   uint32_t op, const norm_operands &o) {
    const grain_channel g = channel_of(block, o);
    const lk_batch_norm &n = o.norm;
    const uint64_t here = (uint64_t)g.examples * n.h * n.w;
    const float a = grain_sum(o, g, o.sums), b = grain_sum(o, g, o.others);
    bool bad = false;
    if (!g.mine) return;
    const float mean = g.row[LK_NORM_MEAN * n.channels];
    const float inverse = g.row[LK_NORM_INVERSE * n.channels];
    if (g.piece == 0 && g.place == 0 && g.examples > 0) {
        g.row[LK_NORM_GAMMA * n.channels] = a;
        g.row[LK_NORM_BETA * n.channels] = b;
        bad = lk_cuda_not_finite(a) || lk_cuda_not_finite(b);
    }
    if (!o.dx) {
        lk_cuda_report(state, op, bad);
        return;
    }
    const float share = g.examples > 0 ? share_of(n, g.examples) : 0.0f;
    const float mean_a = (a + 0.0f) * share, mean_b = (b + 0.0f) * share;
    const float factor = (o.gamma ? o.gamma[g.channel] : 1.0f) * inverse;
    each_cell(
        o, g, [&](uint64_t at) { return make_float2(o.x[at], o.dy[at]); },
        [&](uint64_t cell, uint64_t at, float2 v) {
            const float normal = (v.x - mean) * inverse;
            const float dx = factor * lk_fmaf(-normal, mean_a, v.y - mean_b);
            o.dx[at] = cell < here ? dx : 0.0f;
            bad |= cell < here && lk_cuda_not_finite(dx);
        });
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
