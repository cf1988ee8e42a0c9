// layer_norm.cu - layer normalisation (ops/layers/layer_norm.c): a thread has a cell, whose sums
// are one chain after the other; of the gradients of gamma and beta a block has 32 values, a thread
// one of them, and a warp every eighth slice. Part of the plain kernels (plain.cu).
#include "ops/cuda/device.h"
#include "ops/cuda/table.h"
#include "ops/math.h"

enum { LANES = 32, WARPS = 8, THREADS = LANES * WARPS };

static inline lk_cuda_stream *stream_of(const lk_lane *l) {
    return static_cast<const lk_cuda_lane *>(l->device)->stream;
}
static inline float *floats_of(const lk_lane *l, lk_role role) {
    return static_cast<float *>(l->at[role]);
}

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

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    find_statistics(lk_cuda_state *state, uint32_t op, cell_operands o) {
    bool bad = false;
    LK_CUDA_EACH(cell, o.cells) {
        const float *x = o.x + cell * o.channels;
        const float mean = mean_of(o.channels, value_of{x});
        const float variance = mean_of(o.channels, square_of{x, mean});
        o.kept[2 * cell] = mean;
        o.kept[2 * cell + 1] = 1.0f / lk_sqrtf(variance + o.epsilon);
        bad |= lk_cuda_not_finite(mean) || lk_cuda_not_finite(variance);
    }
    lk_cuda_report(state, op, bad);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    normalize_cells(lk_cuda_state *state, uint32_t op, cell_operands o) {
    bool bad = false;
    LK_CUDA_EACH(i, o.cells * o.channels) {
        const uint64_t cell = i / o.channels;
        const uint32_t k = (uint32_t)(i - cell * o.channels);
        const float gamma = o.gamma ? o.gamma[k] : 1.0f, beta = o.beta ? o.beta[k] : 0.0f;
        const float n = (o.x[i] - o.kept[2 * cell]) * o.kept[2 * cell + 1];
        const float y = lk_fmaf(n, gamma, beta);
        o.to[i] = y;
        bad |= lk_cuda_not_finite(y);
    }
    lk_cuda_report(state, op, bad);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS, 4)
    turn_back_cells(lk_cuda_state *state, uint32_t op, cell_operands o) {
    bool bad = false;
    LK_CUDA_EACH(cell, o.cells) {
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

static cell_operands operands_of(const lk_lane *l, const lk_op *op, lk_role to) {
    const uint64_t cells = (uint64_t)l->examples * op->norm.h * op->norm.w;
    return {cells,           op->norm.channels, op->norm.epsilon,     floats_of(l, LK_X),
            floats_of(l, LK_DY), l->param[0],   l->param[1],          floats_of(l, LK_AUX),
            floats_of(l, to)};
}

static uint64_t cell_bytes(const cell_operands &o) { return o.cells * o.channels * sizeof(float); }

uint32_t lk_cuda_plain_layer_normalization(lk_lane *l, const lk_op *op) {
    lk_cuda_stream *s = stream_of(l);
    const cell_operands o = operands_of(l, op, LK_Y);
    lk_cuda_launch(s, find_statistics, lk_cuda_blocks(o.cells, 2 * o.channels, 2 * cell_bytes(o)),
                   LK_CUDA_THREADS, 0, s->state, s->op, o);
    lk_cuda_launch(s, normalize_cells, lk_cuda_blocks(o.cells * o.channels, 1, 2 * cell_bytes(o)),
                   LK_CUDA_THREADS, 0, s->state, s->op, o);
    return 0;
}

uint32_t lk_cuda_plain_layer_normalization_input_gradient(lk_lane *l, const lk_op *op) {
    lk_cuda_stream *s = stream_of(l);
    const cell_operands o = operands_of(l, op, LK_DX);
    lk_cuda_launch(s, turn_back_cells, lk_cuda_blocks(o.cells, 3 * o.channels, 6 * cell_bytes(o)),
                   LK_CUDA_THREADS, 0, s->state, s->op, o);
    return 0;
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
    float *shared = lk_cuda_shared;  // (WARPS, LANES)
    const uint32_t warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const uint32_t examples = LK_MIN(o.examples - g * o.grain, o.grain);
    const uint32_t whole = LK_SLICE_TERMS / o.cells;
    const uint32_t of_one = (o.cells + LK_SLICE_TERMS - 1) / LK_SLICE_TERMS;
    const uint32_t slices = whole > 0 ? (examples + whole - 1) / whole : examples * of_one;
    const uint64_t cell = (uint64_t)g * o.grain * o.cells;
    lk_cuda_tree tree;
    tree.leaves = 0;
    for (uint32_t first = 0; first < slices; first += WARPS) {
        const uint32_t slice = first + warp;
        if (slice < slices && k < o.channels) {
            shared[warp * LANES + lane] = slice_of(o, cell, examples, slice, k, of_gamma);
        }
        __syncthreads();
        for (uint32_t i = 0; warp == 0 && k < o.channels && i < WARPS && first + i < slices; i++) {
            lk_cuda_tree_leaf(&tree, shared[i * LANES + lane]);
        }
        __syncthreads();
    }
    return warp == 0 && k < o.channels ? lk_cuda_tree_finish(&tree) : 0.0f;
}

static __global__ void __launch_bounds__(THREADS) sums_of_cells(grain_operands o) {
    const uint32_t k = blockIdx.x * LANES + threadIdx.x % LANES;
    const bool of_gamma = blockIdx.y == 0;
    float *const to = of_gamma ? o.gamma : o.beta;
    lk_cuda_tree tree;
    tree.leaves = 0;
    if (!to) return;  // the whole block
    for (uint32_t g = 0; g < (o.examples + o.grain - 1) / o.grain; g++) {
        lk_cuda_tree_leaf(&tree, sum_of_grain(o, g, k, of_gamma));
    }
    if (threadIdx.x < LANES && k < o.channels) to[k] = lk_cuda_tree_finish(&tree);
}

uint32_t lk_cuda_plain_layer_normalization_gradient(lk_lane *l, const lk_op *op) {
    const lk_batch_norm &n = op->norm;
    const grain_operands o = {n.channels,    n.h * n.w,    l->grain,   l->examples, l->grains->x,
                              l->grains->dy, lk_grain_kept(l->grains), l->sums[0],  l->sums[1]};
    const uint64_t cells = (uint64_t)l->examples * o.cells;
    const lk_cuda_grid grid = {
        dim3((n.channels + LANES - 1) / LANES, 2),
        {2ull * n.channels * WARPS, cells / WARPS, 0, 3 * cells * n.channels * sizeof(float)}};
    lk_cuda_launch(stream_of(l), sums_of_cells, grid, THREADS, THREADS, o);
    return 0;
}

int lk_cuda_prepare_layer_norm(void) {
    return lk_cuda_prepare_kernels(find_statistics, normalize_cells, turn_back_cells,
                                   sums_of_cells);
}
