// layer_norm.h - layer normalisation (ops/layers/layer_norm.c) as a block has it: a thread has a
// cell, whose sums are one chain after the other; of the gradients of gamma and beta a block has 32
// values, a thread one of them, and a warp every eighth slice. The launches are layer_norm.cu's,
// and the persistent kernel's (persistent.cu).
#ifndef LOCKSTEP_OPS_CUDA_LAYER_NORM_H
#define LOCKSTEP_OPS_CUDA_LAYER_NORM_H

#include "ops/cuda/norm.h"

enum { NORM_WARPS = LK_CUDA_THREADS / NORM_LANES };

struct cell_operands {
    uint64_t cells;  // of all examples
    uint32_t channels;
    float epsilon;
    const float *x, *dy, *gamma, *beta;
    float *kept, *to;
};

// --- the sums of a cell --------------------------------------------------------------------------

struct value_of {
    const float *x;
    __device__ float next(uint32_t k, float chain) const { return chain + x[k]; }
};
struct square_of {
    const float *x;
    float mean;
    __device__ float next(uint32_t k, float chain) const {
        return lk_fmaf(x[k] - mean, x[k] - mean, chain);
    }
};
struct gradient_of {
    const float *dy, *gamma;
    __device__ float at(uint32_t k) const { return gamma ? dy[k] * gamma[k] : dy[k]; }
    __device__ float next(uint32_t k, float chain) const { return chain + at(k); }
};
struct product_of {
    gradient_of g;
    const float *x;
    float mean, inverse;
    __device__ float next(uint32_t k, float chain) const {
        return lk_fmaf(g.at(k), (x[k] - mean) * inverse, chain);
    }
};

// The finished sum, times 1 / K.
template <typename Term>
static inline __device__ float mean_of(uint32_t channels, const Term &term) {
    lk_cuda_tree tree;
    float chain = 0.0f;
    tree.leaves = 0;
    for (uint32_t k = 0; k < channels; k++) {
        if (k > 0 && k % LK_SLICE_TERMS == 0) {
            lk_cuda_tree_leaf(&tree, chain);
            chain = 0.0f;
        }
        chain = term.next(k, chain);
    }
    lk_cuda_tree_leaf(&tree, chain);
    return (lk_cuda_tree_finish(&tree) + 0.0f) * (1.0f / (float)channels);
}

static inline __device__ void find_statistics_body(lk_cuda_at block, lk_cuda_state *state,
                                                   uint32_t op, const cell_operands &o) {
    bool bad = false;
    LK_CUDA_EACH_AT(block, cell, o.cells) {
        const float *x = o.x + cell * o.channels;
        const float mean = mean_of(o.channels, value_of{x});
        const float variance = mean_of(o.channels, square_of{x, mean});
        o.kept[2 * cell] = mean;
        o.kept[2 * cell + 1] = 1.0f / lk_sqrtf(variance + o.epsilon);
        bad |= lk_cuda_not_finite(mean) || lk_cuda_not_finite(variance);
    }
    lk_cuda_report(state, op, bad);
}

// `count` values, from the first of a cell on.
static inline __device__ void normalize_cells_body(lk_cuda_at block, lk_cuda_state *state,
                                                   uint32_t op, const cell_operands &o,
                                                   const lk_cuda_divisor &channels,
                                                   uint32_t count) {
    bool bad = false;
    LK_CUDA_EACH_AT(block, i, count) {
        const uint32_t cell = lk_cuda_quotient((uint32_t)i, channels);
        const uint32_t k = (uint32_t)i - cell * channels.by;
        const float gamma = o.gamma ? o.gamma[k] : 1.0f, beta = o.beta ? o.beta[k] : 0.0f;
        const float n = (o.x[i] - o.kept[2ull * cell]) * o.kept[2ull * cell + 1];
        const float y = lk_fmaf(n, gamma, beta);
        o.to[i] = y;
        bad |= lk_cuda_not_finite(y);
    }
    lk_cuda_report(state, op, bad);
}

static inline __device__ void turn_back_cells_body(lk_cuda_at block, lk_cuda_state *state,
                                                   uint32_t op, const cell_operands &o) {
    bool bad = false;
    LK_CUDA_EACH_AT(block, cell, o.cells) {
        const uint64_t first = cell * o.channels;
        const float *x = o.x + first;
        const float mean = o.kept[2 * cell], inverse = o.kept[2 * cell + 1];
        const gradient_of g = {o.dy + first, o.gamma};
        const float a = mean_of(o.channels, product_of{g, x, mean, inverse});
        const float b = mean_of(o.channels, g);
        for (uint32_t k = 0; k < o.channels; k++) {
            const float n = (x[k] - mean) * inverse;
            const float dx = inverse * lk_fmaf(-n, a, g.at(k) - b);
            o.to[first + k] = dx;
            bad |= lk_cuda_not_finite(dx);
        }
    }
    lk_cuda_report(state, op, bad);
}

// --- gradients of gamma and beta -----------------------------------------------------------------

struct grain_operands {
    uint32_t channels, cells, grain, examples;  // cells of an example
    const float *x, *dy, *kept;
    float *gamma, *beta;
};

// Slice `slice` of the grain whose first cell is `first`, of `examples`: whole ones, or cells of
// one.
static inline __device__ float slice_of(const grain_operands &o, uint64_t first, uint32_t examples,
                                        uint32_t slice, uint32_t k, bool of_gamma) {
    const uint32_t whole = LK_SLICE_TERMS / o.cells;
    const uint32_t of_one = (o.cells + LK_SLICE_TERMS - 1) / LK_SLICE_TERMS;
    uint64_t begin = (uint64_t)slice * whole * o.cells;
    uint64_t end = LK_MIN((uint64_t)(slice + 1) * whole, (uint64_t)examples) * o.cells;
    if (whole == 0) {
        const uint64_t example = slice / of_one * (uint64_t)o.cells;
        begin = example + slice % of_one * (uint64_t)LK_SLICE_TERMS;
        end = LK_MIN(begin + LK_SLICE_TERMS, example + o.cells);
    }
    float chain = 0.0f;
    for (uint64_t cell = first + begin; cell < first + end; cell++) {
        const uint64_t at = cell * o.channels + k;
        const float n = (o.x[at] - o.kept[2 * cell]) * o.kept[2 * cell + 1];
        chain = of_gamma ? lk_fmaf(n, o.dy[at], chain) : chain + o.dy[at];
    }
    return chain;
}

// The sum of a grain, in the first warp.
static inline __device__ float sum_of_grain(const grain_operands &o, uint32_t g, uint32_t k,
                                            bool of_gamma) {
    float *shared = lk_cuda_shared;  // (NORM_WARPS, NORM_LANES)
    const uint32_t warp = threadIdx.x / NORM_LANES, lane = threadIdx.x % NORM_LANES;
    const uint32_t examples = LK_MIN(o.examples - g * o.grain, o.grain);
    const uint32_t whole = LK_SLICE_TERMS / o.cells;
    const uint32_t of_one = (o.cells + LK_SLICE_TERMS - 1) / LK_SLICE_TERMS;
    const uint32_t slices = whole > 0 ? (examples + whole - 1) / whole : examples * of_one;
    const uint64_t cell = (uint64_t)g * o.grain * o.cells;
    lk_cuda_tree tree;
    tree.leaves = 0;
    for (uint32_t first = 0; first < slices; first += NORM_WARPS) {
        const uint32_t slice = first + warp;
        if (slice < slices && k < o.channels) {
            shared[warp * NORM_LANES + lane] = slice_of(o, cell, examples, slice, k, of_gamma);
        }
        __syncthreads();
        for (uint32_t i = 0; warp == 0 && k < o.channels && i < NORM_WARPS && first + i < slices;
             i++) {
            lk_cuda_tree_leaf(&tree, shared[i * NORM_LANES + lane]);
        }
        __syncthreads();
    }
    return warp == 0 && k < o.channels ? lk_cuda_tree_finish(&tree) : 0.0f;
}

static inline __device__ void sums_of_cells_body(lk_cuda_at block, const grain_operands &o) {
    const uint32_t k = block.x * NORM_LANES + threadIdx.x % NORM_LANES;
    const bool of_gamma = block.y == 0;
    float *const to = of_gamma ? o.gamma : o.beta;
    lk_cuda_tree tree;
    tree.leaves = 0;
    if (!to) return;  // the whole block
    for (uint32_t g = 0; g < (o.examples + o.grain - 1) / o.grain; g++) {
        lk_cuda_tree_leaf(&tree, sum_of_grain(o, g, k, of_gamma));
    }
    if (threadIdx.x < NORM_LANES && k < o.channels) to[k] = lk_cuda_tree_finish(&tree);
}

#endif
