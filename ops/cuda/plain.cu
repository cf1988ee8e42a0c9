// plain.cu - kernels that a lane and an op say all about: lk_cuda_plain_NAME for each of
// LK_PLAIN_OP_LIST (ops/op.h), called as every kernel is. They enqueue a launch and return 0.
#include "ops/cuda/plain.h"
#include "ops/cuda/table.h"

static inline lk_cuda_stream *stream_of(const lk_lane *l) {
    return static_cast<const lk_cuda_lane *>(l->device)->stream;
}
static inline float *floats_of(const lk_lane *l, lk_role role) {
    return static_cast<float *>(l->at[role]);
}

// --- sums ----------------------------------------------------------------------------------------

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    sum_of(lk_cuda_state *state, uint32_t op, uint64_t count, const float *a, const float *b,
           float *sum) {
    bool bad = false;
    LK_CUDA_EACH(i, count) {
        float both = a[i] + b[i];
        sum[i] = both;
        bad |= lk_cuda_not_finite(both);
    }
    lk_cuda_report(state, op, bad);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    copy(uint64_t count, const float *from, float *to) {
    LK_CUDA_EACH(i, count) to[i] = from[i];
}

static uint32_t launch_sum(const lk_lane *l, const lk_op *op, lk_role a, lk_role b, lk_role sum) {
    lk_cuda_stream *s = stream_of(l);
    const uint64_t count = l->examples * op->floats;
    lk_cuda_launch(s, sum_of, lk_cuda_blocks(count), LK_CUDA_THREADS, 0, s->state, s->op, count,
                   floats_of(l, a), floats_of(l, b), floats_of(l, sum));
    return 0;
}

uint32_t lk_cuda_plain_add(lk_lane *l, const lk_op *op) {
    return launch_sum(l, op, LK_X, LK_X2, LK_Y);
}

uint32_t lk_cuda_plain_add_backward(lk_lane *l, const lk_op *op) {
    const uint64_t count = l->examples * op->floats;
    lk_cuda_launch(stream_of(l), copy, lk_cuda_blocks(count), LK_CUDA_THREADS, 0, count,
                   floats_of(l, LK_DY), floats_of(l, LK_DX));
    return 0;
}

uint32_t lk_cuda_plain_add_gradient(lk_lane *l, const lk_op *op) {
    return launch_sum(l, op, LK_X, LK_DY, LK_DX);
}

// --- activations ---------------------------------------------------------------------------------

template <typename F>
static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    activate(F f, uint64_t count, const float *x, float *y) {
    activate_body(lk_cuda_here(), f, count, x, y);
}
template <typename F>
static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    activate_backward(F f, uint64_t count, const float *y, const float *dy, float *dx) {
    activate_backward_body(lk_cuda_here(), f, count, y, dy, dx);
}

template <typename F>
static uint32_t launch_forward(const lk_lane *l, const lk_op *op, F f,
                               lk_cuda_body body = LK_CUDA_BODY_NONE) {
    const uint64_t count = l->examples * op->floats;
    lk_cuda_spans spans = {};
    lk_cuda_reads(&spans, floats_of(l, LK_X), count);
    lk_cuda_writes(&spans, floats_of(l, LK_Y), count);
    lk_cuda_launch_body(stream_of(l), body, spans, activate<F>, lk_cuda_blocks(count),
                        LK_CUDA_THREADS, 0, f, count, floats_of(l, LK_X), floats_of(l, LK_Y));
    return 0;
}
template <typename F>
static uint32_t launch_backward(const lk_lane *l, const lk_op *op, F f,
                                lk_cuda_body body = LK_CUDA_BODY_NONE) {
    const uint64_t count = l->examples * op->floats;
    lk_cuda_spans spans = {};
    lk_cuda_reads(&spans, floats_of(l, LK_Y), count);
    lk_cuda_reads(&spans, floats_of(l, LK_DY), count);
    lk_cuda_writes(&spans, floats_of(l, LK_DX), count);
    lk_cuda_launch_body(stream_of(l), body, spans, activate_backward<F>, lk_cuda_blocks(count),
                        LK_CUDA_THREADS, 0, f, count, floats_of(l, LK_Y), floats_of(l, LK_DY),
                        floats_of(l, LK_DX));
    return 0;
}

struct leaky_relu_of {
    float slope;
    __device__ float forward(float x) const { return x > 0.0f ? x : slope * x; }
    __device__ float backward(float y, float dy) const { return y > 0.0f ? dy : slope * dy; }
};

uint32_t lk_cuda_plain_tanh(lk_lane *l, const lk_op *op) {
    return launch_forward(l, op, tanh_of(), LK_CUDA_BODY_TANH);
}
uint32_t lk_cuda_plain_tanh_backward(lk_lane *l, const lk_op *op) {
    return launch_backward(l, op, tanh_of(), LK_CUDA_BODY_TANH_BACKWARD);
}
uint32_t lk_cuda_plain_sigmoid(lk_lane *l, const lk_op *op) {
    return launch_forward(l, op, sigmoid_of(), LK_CUDA_BODY_SIGMOID);
}
uint32_t lk_cuda_plain_sigmoid_backward(lk_lane *l, const lk_op *op) {
    return launch_backward(l, op, sigmoid_of(), LK_CUDA_BODY_SIGMOID_BACKWARD);
}
uint32_t lk_cuda_plain_leaky_relu(lk_lane *l, const lk_op *op) {
    return launch_forward(l, op, leaky_relu_of{op->slope});
}
uint32_t lk_cuda_plain_leaky_relu_backward(lk_lane *l, const lk_op *op) {
    return launch_backward(l, op, leaky_relu_of{op->slope});
}

struct relu6_of {
    __device__ float forward(float x) const { return x > 6.0f ? 6.0f : x > 0.0f ? x : 0.0f; }
    __device__ float backward(float y, float dy) const { return y > 0.0f && y < 6.0f ? dy : 0.0f; }
};
struct elu_of {
    float alpha;
    __device__ float forward(float x) const { return x > 0.0f ? x : alpha * lk_eluf(x); }
    __device__ float backward(float y, float dy) const { return y > 0.0f ? dy : dy * (y + alpha); }
};

uint32_t lk_cuda_plain_relu6(lk_lane *l, const lk_op *op) {
    return launch_forward(l, op, relu6_of());
}
uint32_t lk_cuda_plain_relu6_backward(lk_lane *l, const lk_op *op) {
    return launch_backward(l, op, relu6_of());
}
uint32_t lk_cuda_plain_elu(lk_lane *l, const lk_op *op) {
    return launch_forward(l, op, elu_of{op->slope});
}
uint32_t lk_cuda_plain_elu_backward(lk_lane *l, const lk_op *op) {
    return launch_backward(l, op, elu_of{op->slope});
}

// dx = dy * F::slope(x), where dx may be dy.
template <typename F>
static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    smooth_backward(lk_cuda_state *state, uint32_t op, F f, uint64_t count, const float *x,
                    const float *dy, float *dx) {
    bool bad = false;
    LK_CUDA_EACH(i, count) {
        const float d = dy[i] * f.slope(x[i]);
        dx[i] = d;
        bad |= lk_cuda_not_finite(d);
    }
    lk_cuda_report(state, op, bad);
}

#define CUDA_SMOOTH(name, function, slope_of)                                                    \
    struct name##_of {                                                                           \
        __device__ float forward(float x) const { return function(x); }                          \
        __device__ float slope(float x) const { return slope_of(x); }                            \
    };                                                                                           \
    uint32_t lk_cuda_plain_##name(lk_lane *l, const lk_op *op) {                                 \
        return launch_forward(l, op, name##_of());                                               \
    }                                                                                            \
    uint32_t lk_cuda_plain_##name##_backward(lk_lane *l, const lk_op *op) {                      \
        lk_cuda_stream *s = stream_of(l);                                                        \
        const uint64_t count = l->examples * op->floats;                                         \
        lk_cuda_launch(s, smooth_backward<name##_of>, lk_cuda_blocks(count), LK_CUDA_THREADS, 0, \
                       s->state, s->op, name##_of(), count, floats_of(l, LK_X),                  \
                       floats_of(l, LK_DY), floats_of(l, LK_DX));                                \
        return 0;                                                                                \
    }
CUDA_SMOOTH(softplus, lk_log1pexpf, lk_sigmoidf)
CUDA_SMOOTH(swish, lk_swishf, lk_swish_slopef)
CUDA_SMOOTH(gelu, lk_geluf, lk_gelu_slopef)
CUDA_SMOOTH(gelu_tanh, lk_gelu_tanhf, lk_gelu_tanh_slopef)
#undef CUDA_SMOOTH

// --- dropout -------------------------------------------------------------------------------------

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    drop(lk_cuda_state *state, uint32_t op, uint32_t layer, uint64_t seed, uint32_t first_example,
         uint64_t blocks, uint64_t floats, uint64_t examples, float rate, const float *from,
         float *to) {
    drop_body(lk_cuda_here(), state, op, layer, seed, first_example, blocks, floats, examples, rate,
              from, to);
}

static uint32_t launch_drop(const lk_lane *l, const lk_op *op, lk_role from, lk_role to) {
    lk_cuda_stream *s = stream_of(l);
    const uint64_t blocks = (op->floats + 3) / 4;
    const uint64_t count = l->examples * op->floats;
    lk_cuda_spans spans = {};
    lk_cuda_reads(&spans, floats_of(l, from), count);
    lk_cuda_writes(&spans, floats_of(l, to), count);
    lk_cuda_launch_body(s, LK_CUDA_BODY_DROP, spans, drop, lk_cuda_blocks(l->examples * blocks),
                        LK_CUDA_THREADS, 0, s->state, s->op, lk_draws_of(op), l->seed,
                        l->first_example, blocks, op->floats, (uint64_t)l->examples,
                        op->dropout.rate, floats_of(l, from), floats_of(l, to));
    return 0;
}

uint32_t lk_cuda_plain_dropout(lk_lane *l, const lk_op *op) {
    if (l->train) return launch_drop(l, op, LK_X, LK_Y);
    const uint64_t count = l->examples * op->floats;
    lk_cuda_launch(stream_of(l), copy, lk_cuda_blocks(count), LK_CUDA_THREADS, 0, count,
                   floats_of(l, LK_X), floats_of(l, LK_Y));
    return 0;
}

uint32_t lk_cuda_plain_dropout_backward(lk_lane *l, const lk_op *op) {
    return launch_drop(l, op, LK_DY, LK_DX);
}

// --- values elsewhere ----------------------------------------------------------------------------

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    join(lk_join j, uint64_t count, const float *__restrict__ x, const float *__restrict__ x2,
         float *__restrict__ y) {
    const uint32_t both = j.values[0] + j.values[1];
    LK_CUDA_EACH(i, count) {
        const uint64_t cell = i / both, at = i - cell * both;
        y[i] = at < j.values[0] ? x[cell * j.values[0] + at]
                                : x2[cell * j.values[1] + at - j.values[0]];
    }
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    part(uint32_t values, uint32_t both, uint32_t skip, uint64_t count,
         const float *__restrict__ dy, float *__restrict__ dx) {
    LK_CUDA_EACH(i, count) {
        const uint64_t cell = i / values;
        dx[i] = dy[cell * both + skip + i - cell * values];
    }
}

uint32_t lk_cuda_plain_concatenate(lk_lane *l, const lk_op *op) {
    const uint64_t count = l->examples * op->floats;
    lk_cuda_launch(stream_of(l), join, lk_cuda_blocks(count), LK_CUDA_THREADS, 0, op->join, count,
                   floats_of(l, LK_X), floats_of(l, LK_X2), floats_of(l, LK_Y));
    return 0;
}

uint32_t lk_cuda_plain_concatenate_gradient(lk_lane *l, const lk_op *op) {
    const lk_join *j = &op->join;
    const uint64_t count = (uint64_t)l->examples * j->cells * j->values[j->which];
    lk_cuda_launch(stream_of(l), part, lk_cuda_blocks(count), LK_CUDA_THREADS, 0,
                   j->values[j->which], j->values[0] + j->values[1], j->which ? j->values[0] : 0u,
                   count, floats_of(l, LK_DY), floats_of(l, LK_DX));
    return 0;
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    surround(lk_pool2d p, uint64_t count, const float *__restrict__ x, float *__restrict__ y) {
    LK_CUDA_EACH(i, count) {
        const uint64_t cell = i / p.channels, m = cell / p.out_w / p.out_h;
        const int64_t iy = (int64_t)(cell / p.out_w % p.out_h) - p.pad_top;
        const int64_t ix = (int64_t)(cell % p.out_w) - p.pad_left;
        const bool inside = iy >= 0 && ix >= 0 && iy < p.in_h && ix < p.in_w;
        y[i] = inside ? x[((m * p.in_h + (uint64_t)iy) * p.in_w + (uint64_t)ix) * p.channels + i -
                          cell * p.channels]
                      : 0.0f;
    }
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    inner(lk_pool2d p, uint64_t count, const float *__restrict__ dy, float *__restrict__ dx) {
    LK_CUDA_EACH(i, count) {
        const uint64_t cell = i / p.channels, m = cell / p.in_w / p.in_h;
        const uint64_t oy = cell / p.in_w % p.in_h + p.pad_top, ox = cell % p.in_w + p.pad_left;
        dx[i] = dy[((m * p.out_h + oy) * p.out_w + ox) * p.channels + i - cell * p.channels];
    }
}

uint32_t lk_cuda_plain_zero_padding2d(lk_lane *l, const lk_op *op) {
    const uint64_t count = l->examples * op->floats;
    lk_cuda_launch(stream_of(l), surround, lk_cuda_blocks(count), LK_CUDA_THREADS, 0, op->pool,
                   count, floats_of(l, LK_X), floats_of(l, LK_Y));
    return 0;
}

uint32_t lk_cuda_plain_zero_padding2d_backward(lk_lane *l, const lk_op *op) {
    const lk_pool2d *p = &op->pool;
    const uint64_t count = (uint64_t)l->examples * p->in_h * p->in_w * p->channels;
    lk_cuda_launch(stream_of(l), inner, lk_cuda_blocks(count), LK_CUDA_THREADS, 0, *p, count,
                   floats_of(l, LK_DY), floats_of(l, LK_DX));
    return 0;
}

// --- noise ---------------------------------------------------------------------------------------

// A thread has the four values of a block of words.
static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    draw_noise(const lk_cuda_state *state, lk_noise n, lk_noise_key key, bool train,
               uint64_t blocks, uint64_t floats, uint64_t examples, float *y) {
    const uint32_t first = key.example;
    if (train) key.step = state->step;
    LK_CUDA_EACH(i, examples * blocks) {
        const uint64_t m = i / blocks, block = i - m * blocks;
        key.example = first + (uint32_t)m;
        for (uint64_t e = 4 * block; e < 4 * block + 4 && e < floats; e++) {
            y[m * floats + e] = lk_noise_at(&n, &key, e);
        }
    }
}

uint32_t lk_cuda_plain_noise(lk_lane *l, const lk_op *op) {
    lk_cuda_stream *s = stream_of(l);
    const uint64_t blocks = (op->floats + 3) / 4;
    lk_cuda_launch(s, draw_noise, lk_cuda_blocks(l->examples * blocks), LK_CUDA_THREADS, 0,
                   static_cast<const lk_cuda_state *>(s->state), op->noise, lk_noise_key_of(l, 0),
                   l->train, blocks, op->floats, (uint64_t)l->examples, floats_of(l, LK_Y));
    return 0;
}

// --- average pools -------------------------------------------------------------------------------

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    average(lk_cuda_state *state, uint32_t op, lk_pool2d p, uint64_t count,
            const float *__restrict__ x, float *__restrict__ y) {
    average_body(lk_cuda_here(), state, op, p, count, x, y);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    average_backward(lk_cuda_state *state, uint32_t op, lk_pool2d p, uint64_t count,
                     const float *__restrict__ dy, float *__restrict__ dx) {
    average_backward_body(lk_cuda_here(), state, op, p, count, dy, dx);
}

uint32_t lk_cuda_plain_average_pool2d(lk_lane *l, const lk_op *op) {
    lk_cuda_stream *s = stream_of(l);
    const lk_pool2d *p = &op->pool;
    const uint64_t count = (uint64_t)l->examples * p->out_h * p->out_w * p->channels;
    lk_cuda_spans spans = {};
    lk_cuda_reads(&spans, floats_of(l, LK_X),
                  (uint64_t)l->examples * p->in_h * p->in_w * p->channels);
    lk_cuda_writes(&spans, floats_of(l, LK_Y), count);
    lk_cuda_launch_body(s, LK_CUDA_BODY_AVERAGE, spans, average, lk_cuda_blocks(count),
                        LK_CUDA_THREADS, 0, s->state, s->op, *p, count, floats_of(l, LK_X),
                        floats_of(l, LK_Y));
    return 0;
}

uint32_t lk_cuda_plain_average_pool2d_backward(lk_lane *l, const lk_op *op) {
    lk_cuda_stream *s = stream_of(l);
    const lk_pool2d *p = &op->pool;
    const uint64_t count = (uint64_t)l->examples * p->in_h * p->in_w * p->channels;
    lk_cuda_spans spans = {};
    lk_cuda_reads(&spans, floats_of(l, LK_DY),
                  (uint64_t)l->examples * p->out_h * p->out_w * p->channels);
    lk_cuda_writes(&spans, floats_of(l, LK_DX), count);
    lk_cuda_launch_body(s, LK_CUDA_BODY_AVERAGE_BACKWARD, spans, average_backward,
                        lk_cuda_blocks(count), LK_CUDA_THREADS, 0, s->state, s->op, *p, count,
                        floats_of(l, LK_DY), floats_of(l, LK_DX));
    return 0;
}

// --- losses --------------------------------------------------------------------------------------

// One warp an example: each lane computes its own terms, and every lane adds all of them, in the
// arithmetic's order.
enum { LANES = 32, ALL = 0xffffffff, WARPS = 4 };

struct slice_sums {
    lk_cuda_tree tree;
    float chain;
};

static inline __device__ void slice_start(slice_sums *s) { s->tree.leaves = 0, s->chain = 0.0f; }
static inline __device__ void slice_cut(slice_sums *s) {
    lk_cuda_tree_leaf(&s->tree, s->chain);
    s->chain = 0.0f;
}
static inline __device__ float slice_finish(slice_sums *s) {
    slice_cut(s);
    return lk_cuda_tree_finish(&s->tree) + 0.0f;
}

static inline __device__ bool is_missing(const uint32_t *labels, uint64_t m) {
    return labels && labels[m] == LK_CUDA_NO_EXAMPLE;
}

// Blocks of a warp an example, which reads or writes so many arrays of values.
static lk_cuda_grid warps_of(const lk_lane *l, const lk_op *op, uint32_t arrays) {
    const uint64_t examples = l->examples;
    return {dim3((l->examples + WARPS - 1) / WARPS),
            {examples * LANES, op->floats, 0, examples * op->floats * arrays * sizeof(float)}};
}

static __global__ void __launch_bounds__(WARPS *LANES)
    mean_squared_error(lk_cuda_state *state, uint32_t op, uint32_t m_count, uint32_t count,
                       const float *__restrict__ p, const float *__restrict__ t,
                       const uint32_t *__restrict__ labels, float *__restrict__ dp,
                       float *__restrict__ y) {
    const uint32_t lane = threadIdx.x % LANES;
    const uint64_t m = (uint64_t)blockIdx.x * WARPS + threadIdx.x / LANES;
    if (m >= m_count) return;  // the whole warp
    const bool missing = is_missing(labels, m);
    const float part = 1.0f / (float)count;
    slice_sums squares, absolutes;
    bool bad = false;
    slice_start(&squares), slice_start(&absolutes);
    for (uint32_t first = 0; first < count; first += LANES) {
        if (first > 0 && first % LK_SLICE_TERMS == 0) slice_cut(&squares), slice_cut(&absolutes);
        const uint64_t at = m * count + first + lane;
        const float mine = first + lane < count ? p[at] - t[at] : 0.0f;
        for (uint32_t i = 0; i < LANES && first + i < count; i++) {
            const float d = __shfl_sync(ALL, mine, (int)i);
            squares.chain = lk_fmaf(d, d, squares.chain);
            absolutes.chain = absolutes.chain + (d < 0.0f ? -d : d);
        }
        if (!dp || first + lane >= count) continue;
        const float g = mine * (2.0f * part) + 0.0f;
        bad |= lk_cuda_not_finite(g);
        dp[at] = missing ? 0.0f : g;
    }
    const float square = slice_finish(&squares) * part, absolute = slice_finish(&absolutes) * part;
    bad |= lk_cuda_not_finite(square) || lk_cuda_not_finite(absolute);
    if (lane == 0) {
        y[2 * m] = missing ? 0.0f : square;
        y[2 * m + 1] = missing ? 0.0f : absolute;
    }
    lk_cuda_report(state, op, bad);
}

uint32_t lk_cuda_plain_mean_squared_error(lk_lane *l, const lk_op *op) {
    lk_cuda_stream *s = stream_of(l);
    lk_cuda_launch(s, mean_squared_error, warps_of(l, op, 3), WARPS * LANES, 0, s->state, s->op,
                   l->examples, (uint32_t)op->floats, floats_of(l, LK_X), floats_of(l, LK_X2),
                   static_cast<const uint32_t *>(l->at[LK_AUX]),
                   l->train ? floats_of(l, LK_DX) : NULL, floats_of(l, LK_Y));
    return 0;
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    negate(uint64_t count, const float *from, float *to) {
    LK_CUDA_EACH(i, count) to[i] = 0.0f - from[i];
}

uint32_t lk_cuda_plain_mean_squared_error_target_gradient(lk_lane *l, const lk_op *op) {
    const uint64_t count = l->examples * op->floats;
    lk_cuda_launch(stream_of(l), negate, lk_cuda_blocks(count), LK_CUDA_THREADS, 0, count,
                   floats_of(l, LK_DY), floats_of(l, LK_DX));
    return 0;
}

static __global__ void __launch_bounds__(WARPS *LANES)
    mean(lk_cuda_state *state, uint32_t op, uint32_t m_count, uint32_t count, float scale,
         const float *__restrict__ x, const uint32_t *__restrict__ labels, float *__restrict__ dx,
         float *__restrict__ y) {
    const uint32_t lane = threadIdx.x % LANES;
    const uint64_t m = (uint64_t)blockIdx.x * WARPS + threadIdx.x / LANES;
    if (m >= m_count) return;  // the whole warp
    const bool missing = is_missing(labels, m);
    const float part = 1.0f / (float)count, slope = part * scale + 0.0f;
    slice_sums sum;
    slice_start(&sum);
    for (uint32_t first = 0; first < count; first += LANES) {
        if (first > 0 && first % LK_SLICE_TERMS == 0) slice_cut(&sum);
        const uint64_t at = m * count + first + lane;
        const float mine = first + lane < count ? x[at] : 0.0f;
        for (uint32_t i = 0; i < LANES && first + i < count; i++) {
            sum.chain = sum.chain + __shfl_sync(ALL, mine, (int)i);
        }
        if (dx && first + lane < count) dx[at] = missing ? 0.0f : slope;
    }
    const float value = slice_finish(&sum) * part * scale + 0.0f;
    if (lane == 0) y[m] = missing ? 0.0f : value;
    lk_cuda_report(state, op, lk_cuda_not_finite(value) || lk_cuda_not_finite(slope));
}

uint32_t lk_cuda_plain_mean(lk_lane *l, const lk_op *op) {
    lk_cuda_stream *s = stream_of(l);
    lk_cuda_launch(s, mean, warps_of(l, op, 2), WARPS * LANES, 0, s->state, s->op, l->examples,
                   (uint32_t)op->floats, op->scale, floats_of(l, LK_X),
                   static_cast<const uint32_t *>(l->at[LK_AUX]),
                   l->train ? floats_of(l, LK_DX) : NULL, floats_of(l, LK_Y));
    return 0;
}

// One thread an example, whose logits are few.
static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    binary_crossentropy(lk_cuda_state *state, uint32_t op, uint64_t m_count, uint32_t count,
                        float smoothing, const float *__restrict__ logits,
                        const uint32_t *__restrict__ labels, float *__restrict__ dlogits,
                        float *__restrict__ loss) {
    const float part = 1.0f / (float)count, off = smoothing * 0.5f, on = 1.0f - smoothing + off;
    bool bad = false;
    LK_CUDA_EACH(m, m_count) {
        const bool missing = is_missing(labels, m);
        const uint32_t label = missing ? 0 : labels[m];
        const float *z = logits + m * count;
        uint32_t top = 0;
        slice_sums sum;
        slice_start(&sum);
        for (uint32_t k = 0; k < count; k++) {
            const float y = (count == 1 ? label == 1 : label == k) ? on : off;
            if (k > 0 && k % LK_SLICE_TERMS == 0) slice_cut(&sum);
            sum.chain =
                sum.chain + lk_fmaf(y, lk_log1pexpf(-z[k]), (1.0f - y) * lk_log1pexpf(z[k]));
            if (z[k] > z[top]) top = k;
            const float d = (lk_sigmoidf(z[k]) - y) * part + 0.0f;
            bad |= dlogits && lk_cuda_not_finite(d);
            if (dlogits) dlogits[m * count + k] = missing ? 0.0f : d;
        }
        if (count == 1) top = z[0] > 0.0f;
        const bool known = label < LK_MAX(count, 2u);
        const float value = known ? slice_finish(&sum) * part : __uint_as_float(0x7fc00000);
        bad |= lk_cuda_not_finite(value);
        loss[m] = missing ? 0.0f : value;
        if (top == label && !missing) atomicAdd(&state->counts[0], 1u);
    }
    lk_cuda_report(state, op, bad);
}

uint32_t lk_cuda_plain_binary_crossentropy(lk_lane *l, const lk_op *op) {
    lk_cuda_stream *s = stream_of(l);
    lk_cuda_launch(s, binary_crossentropy, lk_cuda_blocks(l->examples, op->floats), LK_CUDA_THREADS,
                   0, s->state, s->op, (uint64_t)l->examples, (uint32_t)op->floats, op->scale,
                   floats_of(l, LK_X), static_cast<const uint32_t *>(l->at[LK_X2]),
                   l->train ? floats_of(l, LK_DX) : NULL, floats_of(l, LK_Y));
    return 0;
}

// One thread an example, whose scores are few. `fake` NULL: the generator's loss, of made examples.
static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    gan(lk_cuda_state *state, uint32_t op, uint64_t m_count, uint32_t count, lk_gan of,
        const float *__restrict__ first, const float *__restrict__ fake,
        const uint32_t *__restrict__ labels, float *__restrict__ dfirst, float *__restrict__ dfake,
        float *__restrict__ y) {
    const float part = 1.0f / (float)count;
    bool bad = false;
    LK_CUDA_EACH(m, m_count) {
        const bool missing = is_missing(labels, m);
        slice_sums losses, scores, others;
        slice_start(&losses), slice_start(&scores), slice_start(&others);
        for (uint32_t k = 0; k < count; k++) {
            const uint64_t at = m * count + k;
            if (k > 0 && k % LK_SLICE_TERMS == 0) {
                slice_cut(&losses), slice_cut(&scores), slice_cut(&others);
            }
            const lk_gan_loss a =
                fake ? lk_gan_real(of, first[at]) : lk_gan_generator(of.kind, first[at]);
            losses.chain = losses.chain + a.loss;
            scores.chain = scores.chain + first[at];
            const float da = a.slope * part + 0.0f;
            bad |= dfirst && lk_cuda_not_finite(da);
            if (dfirst) dfirst[at] = missing ? 0.0f : da;
            if (!fake) continue;
            const lk_gan_loss b = lk_gan_fake(of.kind, fake[at]);
            others.chain = others.chain + b.loss;
            const float db = b.slope * part + 0.0f;
            bad |= dfake && lk_cuda_not_finite(db);
            if (dfake) dfake[at] = missing ? 0.0f : db;
        }
        float loss = slice_finish(&losses) * part;
        if (fake) loss = loss + slice_finish(&others) * part;
        const float score = slice_finish(&scores) * part;
        bad |= lk_cuda_not_finite(loss) || lk_cuda_not_finite(score);
        y[2 * m] = missing ? 0.0f : loss;
        y[2 * m + 1] = missing ? 0.0f : score;
    }
    lk_cuda_report(state, op, bad);
}

static uint32_t launch_gan(const lk_lane *l, const lk_op *op) {
    lk_cuda_stream *s = stream_of(l);
    lk_cuda_launch(s, gan, lk_cuda_blocks(l->examples, op->floats), LK_CUDA_THREADS, 0, s->state,
                   s->op, (uint64_t)l->examples, (uint32_t)op->floats, op->gan, floats_of(l, LK_X),
                   floats_of(l, LK_X2), static_cast<const uint32_t *>(l->at[LK_AUX]),
                   l->train ? floats_of(l, LK_DX) : NULL, l->train ? floats_of(l, LK_DX2) : NULL,
                   floats_of(l, LK_Y));
    return 0;
}

uint32_t lk_cuda_plain_gan_generator(lk_lane *l, const lk_op *op) { return launch_gan(l, op); }
uint32_t lk_cuda_plain_gan_discriminator(lk_lane *l, const lk_op *op) { return launch_gan(l, op); }

int lk_cuda_prepare_plain(void) {
    const int error = lk_cuda_prepare_kernels(
        activate<relu6_of>, activate<elu_of>, activate<softplus_of>, activate<swish_of>,
        activate<gelu_of>, activate<gelu_tanh_of>, activate_backward<relu6_of>,
        activate_backward<elu_of>, smooth_backward<softplus_of>, smooth_backward<swish_of>,
        smooth_backward<gelu_of>, smooth_backward<gelu_tanh_of>);
    if (error) return error;
    return lk_cuda_prepare_kernels(sum_of, copy, drop, draw_noise, join, part, surround, inner,
                                   average, average_backward, mean_squared_error, negate, mean, gan,
                                   binary_crossentropy, activate<tanh_of>, activate<sigmoid_of>,
                                   activate<leaky_relu_of>, activate_backward<tanh_of>,
                                   activate_backward<sigmoid_of>, activate_backward<leaky_relu_of>);
}
