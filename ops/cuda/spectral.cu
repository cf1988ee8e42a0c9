// spectral.cu - kernels of spectral_normalization (ops/graph/spectral.h): one power iteration, and
// the kernel divided. The two products are those of a dense layer; what is a single number is found
// by one block. Their gradient is APPLY's (update.h).
#include "ops/cuda/device.h"
#include "ops/layers/rounded.h"
#include "ops/math.h"

// A block copies the terms of SLICES slices, and then a thread adds up each of them.
enum { SLICES = 8, LANES = LK_CUDA_THREADS / SLICES, ROUND = SLICES * LK_SLICE_TERMS };
enum { SHARED_FLOATS = ROUND + SLICES };

// The finished sum of x[i] * (x[i] * by), i ascending, sliced; the same in all threads of a block.
static inline __device__ float sum_of(uint32_t count, const float *x, float by) {
    float *const terms = lk_cuda_shared, *const chains = terms + ROUND;
    const uint32_t t = threadIdx.x, slice = t / LANES;
    lk_cuda_tree tree;
    tree.leaves = 0;
    for (uint64_t first = 0; first < count; first += ROUND) {
        const uint32_t some = (uint32_t)LK_MIN(count - first, (uint64_t)ROUND);
        for (uint32_t i = t; i < some; i += LK_CUDA_THREADS) terms[i] = x[first + i];
        __syncthreads();
        if (t % LANES == 0 && slice * LK_SLICE_TERMS < some) {
            const uint32_t end = LK_MIN((slice + 1) * LK_SLICE_TERMS, some);
            float chain = 0.0f;
            for (uint32_t i = slice * LK_SLICE_TERMS; i < end; i++) {
                chain = lk_fmaf(terms[i], terms[i] * by, chain);
            }
            chains[slice] = chain;
        }
        __syncthreads();
        for (uint32_t i = 0; t == 0 && i * LK_SLICE_TERMS < some; i++) {
            lk_cuda_tree_leaf(&tree, chains[i]);
        }
    }
    if (t == 0) chains[0] = lk_cuda_tree_finish(&tree) + 0.0f;
    __syncthreads();
    return chains[0];
}

static inline __device__ float inverse_length(float squares) {
    return squares > 0.0f ? 1.0f / lk_sqrtf(squares) : 0.0f;
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    make_unit(lk_cuda_state *state, uint32_t op, uint32_t count, float *v) {
    lk_cuda_begin();
    const float squares = sum_of(count, v, 1.0f), factor = inverse_length(squares);
    for (uint32_t i = threadIdx.x; i < count; i += LK_CUDA_THREADS) v[i] = v[i] * factor;
    lk_cuda_report(state, op, lk_cuda_not_finite(squares));
}

// n is b; it becomes b / |b|, or u where the kernel is not divided.
static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    find_sigma(lk_cuda_state *state, uint32_t op, uint32_t count, const float *__restrict__ u,
               float *n, float *numbers) {
    lk_cuda_begin();
    const float squares = sum_of(count, n, 1.0f), factor = inverse_length(squares);
    const float sigma = sum_of(count, n, factor);
    const bool still = !(sigma > 0.0f);
    for (uint32_t i = threadIdx.x; i < count; i += LK_CUDA_THREADS) {
        n[i] = still ? u[i] : n[i] * factor;
    }
    if (threadIdx.x == 0) {
        numbers[LK_CUDA_SPECTRAL_FACTOR] = still ? 1.0f : 1.0f / sigma;
        numbers[LK_CUDA_SPECTRAL_STILL] = still;
    }
    lk_cuda_report(state, op, lk_cuda_not_finite(squares) || lk_cuda_not_finite(sigma));
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    divide(lk_cuda_state *state, uint32_t op, uint64_t count, uint8_t dtype,
           const float *__restrict__ numbers, const float *__restrict__ w,
           float *__restrict__ normalized) {
    lk_cuda_begin();
    const float factor = numbers[LK_CUDA_SPECTRAL_FACTOR];
    bool bad = false;
    LK_CUDA_EACH(i, count) {
        const float value = lk_rounded(dtype, w[i] * factor);
        normalized[i] = value;
        bad |= lk_cuda_not_finite(value);
    }
    lk_cuda_report(state, op, bad);
}

// One block, which goes over a vector of `count` numbers `times` times.
static lk_cuda_grid block_of(uint32_t count, uint32_t times) {
    const uint64_t turns = (count + LK_CUDA_THREADS - 1) / LK_CUDA_THREADS;
    const uint64_t rounds = ((uint64_t)count + ROUND - 1) / ROUND;
    return {dim3(1),
            {LK_MIN(count, (uint32_t)LK_CUDA_THREADS),
             times * (turns + rounds * LK_MIN(count, (uint32_t)LK_SLICE_TERMS)), 0,
             (uint64_t)count * (times + 1) * sizeof(float)}};
}

void lk_cuda_spectral_make(lk_cuda_stream *s, const lk_cuda_spectral *k) {
    const lk_dense d = {k->rows, k->columns, false, false};
    const uint64_t count = lk_cuda_rows_of(s, (uint64_t)k->rows * k->columns);
    lk_cuda_dense_input_gradient(s, &d, 1, k->w, k->u, NULL, k->v);
    lk_cuda_launch(s, make_unit, block_of(k->rows, 2), LK_CUDA_THREADS, SHARED_FLOATS, s->state,
                   s->op, k->rows, k->v);
    lk_cuda_dense_forward(s, &d, 1, k->v, k->w, NULL, k->n);
    lk_cuda_launch(s, find_sigma, block_of(k->columns, 3), LK_CUDA_THREADS, SHARED_FLOATS, s->state,
                   s->op, k->columns, k->u, k->n, k->numbers);
    lk_cuda_launch(s, divide, lk_cuda_blocks(count, 1, 2 * count * sizeof(float)), LK_CUDA_THREADS,
                   0, s->state, s->op, count, (uint8_t)k->dtype, k->numbers, k->w, k->normalized);
}

uint64_t lk_cuda_spectral_scratch_floats(uint32_t rows, uint32_t columns) {
    const lk_dense d = {rows, columns, false, false};
    return lk_cuda_dense_scratch_floats(&d, 1, 1);
}

int lk_cuda_prepare_spectral(void) {
    return lk_cuda_prepare_kernels(make_unit, find_sigma, divide);
}
