// plain.h - sums, activations, dropout, noise, values elsewhere and average pools as a block has
// them. The launches are plain.cu's, and the persistent kernel's (persistent.cu).
#ifndef LOCKSTEP_OPS_CUDA_PLAIN_H
#define LOCKSTEP_OPS_CUDA_PLAIN_H

#include "arena/philox.h"
#include "ops/cuda/device.h"
#include "ops/math.h"
#include "ops/noise.h"

// --- sums ----------------------------------------------------------------------------------------

static inline __device__ void sum_body(lk_cuda_at at, lk_cuda_state *state, uint32_t op,
                                       uint64_t count, const float *a, const float *b, float *sum,
                                       bool relu) {
    bool bad = false;
    LK_CUDA_EACH_AT(at, i, count) {
        const float both = a[i] + b[i];
        sum[i] = relu && !(both > 0.0f) ? 0.0f : both;
        bad |= lk_cuda_not_finite(both);
    }
    lk_cuda_report(state, op, bad);
}

static inline __device__ void copy_body(lk_cuda_at at, uint64_t count, const float *from,
                                        float *to) {
    LK_CUDA_EACH_AT(at, i, count) to[i] = from[i];
}

static inline __device__ void negate_body(lk_cuda_at at, uint64_t count, const float *from,
                                          float *to) {
    LK_CUDA_EACH_AT(at, i, count) to[i] = 0.0f - from[i];
}

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
struct leaky_relu_of {
    float slope;
    __device__ float forward(float x) const { return x > 0.0f ? x : slope * x; }
    __device__ float backward(float y, float dy) const { return y > 0.0f ? dy : slope * dy; }
};
struct relu6_of {
    __device__ float forward(float x) const { return x > 6.0f ? 6.0f : x > 0.0f ? x : 0.0f; }
    __device__ float backward(float y, float dy) const { return y > 0.0f && y < 6.0f ? dy : 0.0f; }
};
struct elu_of {
    float alpha;
    __device__ float forward(float x) const { return x > 0.0f ? x : alpha * lk_eluf(x); }
    __device__ float backward(float y, float dy) const { return y > 0.0f ? dy : dy * (y + alpha); }
};

// dx = dy * F::slope(x), where dx may be dy.
template <typename F>
static inline __device__ void smooth_backward_body(lk_cuda_at at, lk_cuda_state *state, uint32_t op,
                                                   const F &f, uint64_t count, const float *x,
                                                   const float *dy, float *dx) {
    bool bad = false;
    LK_CUDA_EACH_AT(at, i, count) {
        const float d = dy[i] * f.slope(x[i]);
        dx[i] = d;
        bad |= lk_cuda_not_finite(d);
    }
    lk_cuda_report(state, op, bad);
}

// NAME, function, slope of each.
#define CUDA_SMOOTH_LIST(X)                          \
    X(SOFTPLUS, softplus, lk_log1pexpf, lk_sigmoidf) \
    X(SWISH, swish, lk_swishf, lk_swish_slopef)      \
    X(GELU, gelu, lk_geluf, lk_gelu_slopef)          \
    X(GELU_TANH, gelu_tanh, lk_gelu_tanhf, lk_gelu_tanh_slopef)
#define CUDA_SMOOTH(NUMBER, name, function, slope_of)                   \
    struct name##_of {                                                  \
        __device__ float forward(float x) const { return function(x); } \
        __device__ float slope(float x) const { return slope_of(x); }   \
    };
CUDA_SMOOTH_LIST(CUDA_SMOOTH)
#undef CUDA_SMOOTH

// --- dropout -------------------------------------------------------------------------------------

// A thread has the four values of a block of words. dx may be dy.
static inline __device__ void drop_body(lk_cuda_at grid, lk_cuda_state *state, uint32_t op,
                                        uint32_t layer, uint64_t seed, uint32_t first_example,
                                        const lk_cuda_divisor &blocks, uint64_t floats,
                                        uint32_t examples, float rate, const float *from,
                                        float *to) {
    const float scale = 1.0f / (1.0f - rate);
    bool bad = false;
    LK_CUDA_EACH_AT(grid, i, (uint64_t)examples * blocks.by) {
        const uint32_t m = lk_cuda_quotient((uint32_t)i, blocks);
        const uint32_t block = (uint32_t)i - m * blocks.by;
        const lk_philox_block drawn =
            lk_philox_step(seed, LK_PURPOSE_DROPOUT, state->step, layer, first_example + m, block);
        for (uint32_t j = 0; j < 4 && 4ull * block + j < floats; j++) {
            const uint64_t at = m * floats + 4ull * block + j;
            const float kept = lk_unit_float(drawn.word[j]) >= rate ? from[at] * scale : 0.0f;
            to[at] = kept;
            bad |= lk_cuda_not_finite(kept);
        }
    }
    lk_cuda_report(state, op, bad);
}

// --- noise ---------------------------------------------------------------------------------------

// Likewise.
static inline __device__ void noise_body(lk_cuda_at grid, const lk_cuda_state *state,
                                         const lk_noise &n, const lk_noise_key &of, bool train,
                                         const lk_cuda_divisor &blocks, uint64_t floats,
                                         uint32_t examples, float *y) {
    lk_noise_key key = of;
    if (train) key.step = state->step;
    LK_CUDA_EACH_AT(grid, i, (uint64_t)examples * blocks.by) {
        const uint32_t m = lk_cuda_quotient((uint32_t)i, blocks);
        const uint64_t first = 4ull * ((uint32_t)i - m * blocks.by);
        key.example = of.example + m;
        for (uint64_t e = first; e < first + 4 && e < floats; e++) {
            y[m * floats + e] = lk_noise_at(&n, &key, e);
        }
    }
}

// --- values elsewhere ----------------------------------------------------------------------------

// y has the values of a cell of x (first of them), then those of x2.
static inline __device__ void join_body(lk_cuda_at at, const lk_cuda_divisor &both, uint32_t first,
                                        uint32_t count, const float *x, const float *x2, float *y) {
    LK_CUDA_EACH_AT(at, i, count) {
        const uint32_t cell = lk_cuda_quotient((uint32_t)i, both);
        const uint32_t value = (uint32_t)i - cell * both.by;
        y[i] = value < first ? x[(uint64_t)cell * first + value]
                             : x2[(uint64_t)cell * (both.by - first) + value - first];
    }
}

static inline __device__ void part_body(lk_cuda_at at, const lk_cuda_divisor &values, uint32_t both,
                                        uint32_t skip, uint32_t count, const float *dy, float *dx) {
    LK_CUDA_EACH_AT(at, i, count) {
        const uint32_t cell = lk_cuda_quotient((uint32_t)i, values);
        dx[i] = dy[(uint64_t)cell * both + skip + (uint32_t)i - cell * values.by];
    }
}

// Zeros around a picture, and what lies within them.
static inline __device__ void surround_body(lk_cuda_at at, const lk_pool2d &p,
                                            const lk_cuda_pictures &out, uint32_t count,
                                            const float *x, float *y) {
    LK_CUDA_EACH_AT(at, i, count) {
        const lk_cuda_element o = lk_cuda_element_of(out, (uint32_t)i);
        // A row or column before the picture wraps to a very large number.
        const uint32_t iy = o.y - p.pad_top, ix = o.x - p.pad_left;
        const bool inside = iy < p.in_h && ix < p.in_w;
        const uint64_t cell = ((uint64_t)o.m * p.in_h + iy) * p.in_w + ix;
        y[i] = inside ? x[cell * p.channels + o.channel] : 0.0f;
    }
}

static inline __device__ void inner_body(lk_cuda_at at, const lk_pool2d &p,
                                         const lk_cuda_pictures &in, uint32_t count,
                                         const float *dy, float *dx) {
    LK_CUDA_EACH_AT(at, i, count) {
        const lk_cuda_element o = lk_cuda_element_of(in, (uint32_t)i);
        const uint64_t line = (uint64_t)o.m * p.out_h + o.y + p.pad_top;
        dx[i] = dy[(line * p.out_w + o.x + p.pad_left) * p.channels + o.channel];
    }
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
                                           const lk_pool2d &p, const lk_cuda_pictures &out,
                                           uint32_t count, const float *x, float *y) {
    bool bad = false;
    LK_CUDA_EACH_AT(block, i, count) {
        const lk_cuda_element at = lk_cuda_element_of(out, (uint32_t)i);
        const uint64_t m = at.m, channel = at.channel;
        const reach h = reach_of(at.y, p.stride_h, p.pad_top, p.pool_h, p.in_h);
        const reach w = reach_of(at.x, p.stride_w, p.pad_left, p.pool_w, p.in_w);
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
                                                    uint32_t op, const lk_pool2d &p,
                                                    const lk_cuda_pictures &in,
                                                    const lk_cuda_divisor &stride_h,
                                                    const lk_cuda_divisor &stride_w, uint32_t count,
                                                    const float *dy, float *dx) {
    bool bad = false;
    LK_CUDA_EACH_AT(block, i, count) {
        const lk_cuda_element here = lk_cuda_element_of(in, (uint32_t)i);
        const uint32_t ix = here.x + p.pad_left, iy = here.y + p.pad_top;
        const uint64_t m = here.m, channel = here.channel;
        const uint32_t first_y = iy < p.pool_h ? 0 : lk_cuda_quotient(iy - p.pool_h, stride_h) + 1;
        const uint32_t first_x = ix < p.pool_w ? 0 : lk_cuda_quotient(ix - p.pool_w, stride_w) + 1;
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
