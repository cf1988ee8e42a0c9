// plain.h - activations, dropout and average pools as a block has them. The launches are
// plain.cu's, and the persistent kernel's (persistent.cu).
#ifndef LOCKSTEP_OPS_CUDA_PLAIN_H
#define LOCKSTEP_OPS_CUDA_PLAIN_H

#include "arena/philox.h"
#include "ops/cuda/device.h"
#include "ops/math.h"

// --- activations ---------------------------------------------------------------------------------

// y = F::forward(x); dx = F::backward(y, dy), where dx may be dy.
template <typename F>
static inline __device__ void activate_body(lk_cuda_at at, const F &f, uint64_t count,
                                            const float *x, float *y) {
    LK_CUDA_EACH_AT(at, i, count) y[i] = f.forward(x[i]);
}
template <typename F>
static inline __device__ void activate_backward_body(lk_cuda_at at, const F &f, uint64_t count,
                                                     const float *y, const float *dy, float *dx) {
    LK_CUDA_EACH_AT(at, i, count) dx[i] = f.backward(y[i], dy[i]);
}

struct tanh_of {
    __device__ float forward(float x) const { return lk_tanhf(x); }
    __device__ float backward(float y, float dy) const { return dy * lk_fmaf(-y, y, 1.0f); }
};
struct sigmoid_of {
    __device__ float forward(float x) const { return lk_sigmoidf(x); }
    __device__ float backward(float y, float dy) const { return dy * (y * (1.0f - y)); }
};
// --- dropout -------------------------------------------------------------------------------------

// A thread has the four values of a block of words. dx may be dy.
static inline __device__ void drop_body(lk_cuda_at grid, lk_cuda_state *state, uint32_t op,
                                        uint32_t layer, uint64_t seed, uint32_t first_example,
                                        uint64_t blocks, uint64_t floats, uint64_t examples,
                                        float rate, const float *from, float *to) {
    const float scale = 1.0f / (1.0f - rate);
    bool bad = false;
    LK_CUDA_EACH_AT(grid, i, examples * blocks) {
        const uint64_t m = i / blocks, block = i - m * blocks;
        const lk_philox_block drawn = lk_philox_step(seed, LK_PURPOSE_DROPOUT, state->step, layer,
                                                     first_example + (uint32_t)m, (uint32_t)block);
        for (uint32_t j = 0; j < 4 && 4 * block + j < floats; j++) {
            const uint64_t at = m * floats + 4 * block + j;
            const float kept = lk_unit_float(drawn.word[j]) >= rate ? from[at] * scale : 0.0f;
            to[at] = kept;
            bad |= lk_cuda_not_finite(kept);
        }
    }
    lk_cuda_report(state, op, bad);
}

// --- average pools -------------------------------------------------------------------------------

// Cells begin .. end - 1 of a dimension that window `o` has in the image.
struct reach {
    uint32_t begin, end;
};
static inline __device__ reach reach_of(uint32_t o, uint32_t stride, uint32_t pad, uint32_t pool,
                                        uint32_t in) {
    const uint32_t first = o * stride, last = first + pool;  // both `pad` too large
    return {first > pad ? first - pad : 0, LK_MIN(last > pad ? last - pad : 0, in)};
}

static inline __device__ void average_body(lk_cuda_at block, lk_cuda_state *state, uint32_t op,
                                           const lk_pool2d &p, uint64_t count, const float *x,
                                           float *y) {
    bool bad = false;
    LK_CUDA_EACH_AT(block, i, count) {
        const uint64_t cell = i / p.channels, channel = i - cell * p.channels;
        const uint64_t m = cell / p.out_w / p.out_h;
        const reach h =
            reach_of((uint32_t)(cell / p.out_w % p.out_h), p.stride_h, p.pad_top, p.pool_h, p.in_h);
        const reach w =
            reach_of((uint32_t)(cell % p.out_w), p.stride_w, p.pad_left, p.pool_w, p.in_w);
        lk_cuda_tree tree;
        tree.leaves = 0;
        float chain = 0.0f;
        uint32_t terms = 0;
        for (uint32_t iy = h.begin; iy < h.end; iy++) {
            for (uint32_t ix = w.begin; ix < w.end; ix++, terms++) {
                if (terms == LK_SLICE_TERMS) {
                    lk_cuda_tree_leaf(&tree, chain);
                    chain = 0.0f;
                    terms = 0;
                }
                chain = chain + x[((m * p.in_h + iy) * p.in_w + ix) * p.channels + channel];
            }
        }
        lk_cuda_tree_leaf(&tree, chain);
        const uint32_t cells = (h.end - h.begin) * (w.end - w.begin);
        const float mean = (lk_cuda_tree_finish(&tree) + 0.0f) * (1.0f / (float)cells);
        y[i] = mean;
        bad |= lk_cuda_not_finite(mean);
    }
    lk_cuda_report(state, op, bad);
}

// One thread a cell of dx: the windows that hold it, ascending.
static inline __device__ void average_backward_body(lk_cuda_at block, lk_cuda_state *state,
                                                    uint32_t op, const lk_pool2d &p, uint64_t count,
                                                    const float *dy, float *dx) {
    bool bad = false;
    LK_CUDA_EACH_AT(block, i, count) {
        const uint64_t cell = i / p.channels, channel = i - cell * p.channels;
        const uint32_t ix = (uint32_t)(cell % p.in_w) + p.pad_left;
        const uint32_t iy = (uint32_t)(cell / p.in_w % p.in_h) + p.pad_top;
        const uint64_t m = cell / p.in_w / p.in_h;
        const uint32_t first_y = iy < p.pool_h ? 0 : (iy - p.pool_h) / p.stride_h + 1;
        const uint32_t first_x = ix < p.pool_w ? 0 : (ix - p.pool_w) / p.stride_w + 1;
        float sum = 0.0f;
        for (uint32_t oy = first_y; oy < p.out_h && oy * p.stride_h <= iy; oy++) {
            const reach h = reach_of(oy, p.stride_h, p.pad_top, p.pool_h, p.in_h);
            for (uint32_t ox = first_x; ox < p.out_w && ox * p.stride_w <= ix; ox++) {
                const reach w = reach_of(ox, p.stride_w, p.pad_left, p.pool_w, p.in_w);
                const uint32_t cells = (h.end - h.begin) * (w.end - w.begin);
                const uint64_t at = ((m * p.out_h + oy) * p.out_w + ox) * p.channels + channel;
                sum = sum + dy[at] * (1.0f / (float)cells);
            }
        }
        dx[i] = sum;
        bad |= lk_cuda_not_finite(sum);
    }
    lk_cuda_report(state, op, bad);
}

#endif
