// plain.cu - kernels that a lane and an op say all about: lk_cuda_plain_NAME for each of
// LK_PLAIN_OP_LIST (ops/op.h), called as every kernel is. They enqueue a launch and return 0.
#include "ops/cuda/plain.h"

#include "ops/cuda/loss.h"
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
           float *sum, bool relu) {
    lk_cuda_begin();
    sum_body(lk_cuda_here(), state, op, count, a, b, sum, relu);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    copy(uint64_t count, const float *from, float *to) {
    lk_cuda_begin();
    copy_body(lk_cuda_here(), count, from, to);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    negate(uint64_t count, const float *from, float *to) {
    lk_cuda_begin();
    negate_body(lk_cuda_here(), count, from, to);
}

static uint32_t launch_sum(const lk_lane *l, const lk_op *op, lk_role a, lk_role b, lk_role sum,
                           bool relu) {
    lk_cuda_stream *s = stream_of(l);
    const uint64_t count = l->examples * op->floats;
    lk_cuda_spans spans = {};
    lk_cuda_reads(&spans, floats_of(l, a), count);
    lk_cuda_reads(&spans, floats_of(l, b), count);
    lk_cuda_writes(&spans, floats_of(l, sum), count);
    lk_cuda_launch_body(s, LK_CUDA_BODY_SUM, spans, sum_of, lk_cuda_blocks(count), LK_CUDA_THREADS,
                        0, s->state, s->op, count, floats_of(l, a), floats_of(l, b),
                        floats_of(l, sum), relu);
    return 0;
}

// A value of `to` for each of `from`.
static uint32_t launch_values(const lk_lane *l, const lk_op *op, lk_cuda_body body,
                              void (*kernel)(uint64_t, const float *, float *), lk_role from,
                              lk_role to) {
    const uint64_t count = l->examples * op->floats;
    lk_cuda_spans spans = {};
    lk_cuda_reads(&spans, floats_of(l, from), count);
    lk_cuda_writes(&spans, floats_of(l, to), count);
    lk_cuda_launch_body(stream_of(l), body, spans, kernel, lk_cuda_blocks(count), LK_CUDA_THREADS,
                        0, count, floats_of(l, from), floats_of(l, to));
    return 0;
}

uint32_t lk_cuda_plain_add(lk_lane *l, const lk_op *op) {
    return launch_sum(l, op, LK_X, LK_X2, LK_Y, op->sum_relu);
}

uint32_t lk_cuda_plain_add_backward(lk_lane *l, const lk_op *op) {
    return launch_values(l, op, LK_CUDA_BODY_COPY, copy, LK_DY, LK_DX);
}

uint32_t lk_cuda_plain_add_gradient(lk_lane *l, const lk_op *op) {
    return launch_sum(l, op, LK_X, LK_DY, LK_DX, false);
}

uint32_t lk_cuda_plain_mean_squared_error_target_gradient(lk_lane *l, const lk_op *op) {
    return launch_values(l, op, LK_CUDA_BODY_NEGATE, negate, LK_DY, LK_DX);
}

// --- activations ---------------------------------------------------------------------------------

template <typename F>
static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    activate(F f, uint64_t count, const float *x, float *y) {
    lk_cuda_begin();
    activate_body(lk_cuda_here(), f, count, x, y);
}
template <typename F>
static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    activate_backward(F f, uint64_t count, const float *y, const float *dy, float *dx) {
    lk_cuda_begin();
    activate_backward_body(lk_cuda_here(), f, count, y, dy, dx);
}

template <typename F>
static uint32_t launch_forward(const lk_lane *l, const lk_op *op, F f, lk_cuda_body body) {
    const uint64_t count = l->examples * op->floats;
    lk_cuda_spans spans = {};
    lk_cuda_reads(&spans, floats_of(l, LK_X), count);
    lk_cuda_writes(&spans, floats_of(l, LK_Y), count);
    lk_cuda_launch_body(stream_of(l), body, spans, activate<F>, lk_cuda_blocks(count),
                        LK_CUDA_THREADS, 0, f, count, floats_of(l, LK_X), floats_of(l, LK_Y));
    return 0;
}
template <typename F>
static uint32_t launch_backward(const lk_lane *l, const lk_op *op, F f, lk_cuda_body body) {
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
    return launch_forward(l, op, leaky_relu_of{op->slope}, LK_CUDA_BODY_LEAKY_RELU);
}
uint32_t lk_cuda_plain_leaky_relu_backward(lk_lane *l, const lk_op *op) {
    return launch_backward(l, op, leaky_relu_of{op->slope}, LK_CUDA_BODY_LEAKY_RELU_BACKWARD);
}
uint32_t lk_cuda_plain_relu6(lk_lane *l, const lk_op *op) {
    return launch_forward(l, op, relu6_of(), LK_CUDA_BODY_RELU6);
}
uint32_t lk_cuda_plain_relu6_backward(lk_lane *l, const lk_op *op) {
    return launch_backward(l, op, relu6_of(), LK_CUDA_BODY_RELU6_BACKWARD);
}
uint32_t lk_cuda_plain_elu(lk_lane *l, const lk_op *op) {
    return launch_forward(l, op, elu_of{op->slope}, LK_CUDA_BODY_ELU);
}
uint32_t lk_cuda_plain_elu_backward(lk_lane *l, const lk_op *op) {
    return launch_backward(l, op, elu_of{op->slope}, LK_CUDA_BODY_ELU_BACKWARD);
}

template <typename F>
static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    smooth_backward(lk_cuda_state *state, uint32_t op, F f, uint64_t count, const float *x,
                    const float *dy, float *dx) {
    lk_cuda_begin();
    smooth_backward_body(lk_cuda_here(), state, op, f, count, x, dy, dx);
}

template <typename F>
static uint32_t launch_smooth_backward(const lk_lane *l, const lk_op *op, F f, lk_cuda_body body) {
    lk_cuda_stream *s = stream_of(l);
    const uint64_t count = l->examples * op->floats;
    lk_cuda_spans spans = {};
    lk_cuda_reads(&spans, floats_of(l, LK_X), count);
    lk_cuda_reads(&spans, floats_of(l, LK_DY), count);
    lk_cuda_writes(&spans, floats_of(l, LK_DX), count);
    lk_cuda_launch_body(s, body, spans, smooth_backward<F>, lk_cuda_blocks(count), LK_CUDA_THREADS,
                        0, s->state, s->op, f, count, floats_of(l, LK_X), floats_of(l, LK_DY),
                        floats_of(l, LK_DX));
    return 0;
}

#define CUDA_SMOOTH(NUMBER, name, function, slope_of)                                        \
    uint32_t lk_cuda_plain_##name(lk_lane *l, const lk_op *op) {                             \
        return launch_forward(l, op, name##_of(), LK_CUDA_BODY_##NUMBER);                    \
    }                                                                                        \
    uint32_t lk_cuda_plain_##name##_backward(lk_lane *l, const lk_op *op) {                  \
        return launch_smooth_backward(l, op, name##_of(), LK_CUDA_BODY_##NUMBER##_BACKWARD); \
    }
CUDA_SMOOTH_LIST(CUDA_SMOOTH)
#undef CUDA_SMOOTH

// --- dropout -------------------------------------------------------------------------------------

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    drop(lk_cuda_state *state, uint32_t op, uint32_t layer, uint64_t seed, uint32_t first_example,
         lk_cuda_divisor blocks, uint64_t floats, uint32_t examples, float rate, const float *from,
         float *to) {
    lk_cuda_begin();
    drop_body(lk_cuda_here(), state, op, layer, seed, first_example, blocks, floats, examples, rate,
              from, to);
}

static uint32_t launch_drop(const lk_lane *l, const lk_op *op, lk_role from, lk_role to) {
    lk_cuda_stream *s = stream_of(l);
    const uint64_t blocks = (op->floats + 3) / 4;
    lk_cuda_in_parts(s, l->examples, blocks, [&](uint64_t first, uint32_t some) {
        const float *const here = floats_of(l, from) + first * op->floats;
        float *const there = floats_of(l, to) + first * op->floats;
        lk_cuda_spans spans = {};
        lk_cuda_reads(&spans, here, some * op->floats);
        lk_cuda_writes(&spans, there, some * op->floats);
        lk_cuda_launch_body(s, LK_CUDA_BODY_DROP, spans, drop, lk_cuda_blocks(some * blocks),
                            LK_CUDA_THREADS, 0, s->state, s->op, lk_draws_of(op), l->seed,
                            l->first_example + (uint32_t)first, lk_cuda_divide_by((uint32_t)blocks),
                            op->floats, some, op->dropout.rate, here, there);
    });
    return 0;
}

uint32_t lk_cuda_plain_dropout(lk_lane *l, const lk_op *op) {
    if (l->train) return launch_drop(l, op, LK_X, LK_Y);
    return launch_values(l, op, LK_CUDA_BODY_COPY, copy, LK_X, LK_Y);
}

uint32_t lk_cuda_plain_dropout_backward(lk_lane *l, const lk_op *op) {
    return launch_drop(l, op, LK_DY, LK_DX);
}

// --- noise ---------------------------------------------------------------------------------------

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    draw_noise(const lk_cuda_state *state, lk_noise n, lk_noise_key key, bool train,
               lk_cuda_divisor blocks, uint64_t floats, uint32_t examples, float *y) {
    lk_cuda_begin();
    noise_body(lk_cuda_here(), state, n, key, train, blocks, floats, examples, y);
}

uint32_t lk_cuda_plain_noise(lk_lane *l, const lk_op *op) {
    lk_cuda_stream *s = stream_of(l);
    const uint64_t blocks = (op->floats + 3) / 4;
    lk_cuda_in_parts(s, l->examples, blocks, [&](uint64_t first, uint32_t some) {
        float *const y = floats_of(l, LK_Y) + first * op->floats;
        lk_noise_key key = lk_noise_key_of(l, 0);
        lk_cuda_spans spans = {};
        lk_cuda_writes(&spans, y, some * op->floats);
        key.example += (uint32_t)first;
        lk_cuda_launch_body(s, LK_CUDA_BODY_NOISE, spans, draw_noise, lk_cuda_blocks(some * blocks),
                            LK_CUDA_THREADS, 0, static_cast<const lk_cuda_state *>(s->state),
                            op->noise, key, l->train, lk_cuda_divide_by((uint32_t)blocks),
                            op->floats, some, y);
    });
    return 0;
}

// --- values elsewhere ----------------------------------------------------------------------------

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    join(lk_cuda_divisor both, uint32_t first, uint32_t count, const float *__restrict__ x,
         const float *__restrict__ x2, float *__restrict__ y) {
    lk_cuda_begin();
    join_body(lk_cuda_here(), both, first, count, x, x2, y);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    part(lk_cuda_divisor values, uint32_t both, uint32_t skip, uint32_t count,
         const float *__restrict__ dy, float *__restrict__ dx) {
    lk_cuda_begin();
    part_body(lk_cuda_here(), values, both, skip, count, dy, dx);
}

uint32_t lk_cuda_plain_concatenate(lk_lane *l, const lk_op *op) {
    lk_cuda_stream *s = stream_of(l);
    const lk_join *j = &op->join;
    lk_cuda_in_parts(s, l->examples, op->floats, [&](uint64_t first, uint32_t some) {
        const uint64_t cells = (uint64_t)j->cells * first, count = some * op->floats;
        const float *const x = floats_of(l, LK_X) + cells * j->values[0];
        const float *const x2 = floats_of(l, LK_X2) + cells * j->values[1];
        float *const y = floats_of(l, LK_Y) + first * op->floats;
        lk_cuda_spans spans = {};
        lk_cuda_reads(&spans, x, (uint64_t)some * j->cells * j->values[0]);
        lk_cuda_reads(&spans, x2, (uint64_t)some * j->cells * j->values[1]);
        lk_cuda_writes(&spans, y, count);
        lk_cuda_launch_body(s, LK_CUDA_BODY_CONCATENATE, spans, join, lk_cuda_blocks(count),
                            LK_CUDA_THREADS, 0, lk_cuda_divide_by(j->values[0] + j->values[1]),
                            j->values[0], (uint32_t)count, x, x2, y);
    });
    return 0;
}

uint32_t lk_cuda_plain_concatenate_gradient(lk_lane *l, const lk_op *op) {
    lk_cuda_stream *s = stream_of(l);
    const lk_join *j = &op->join;
    const uint32_t both = j->values[0] + j->values[1], own = j->values[j->which];
    lk_cuda_in_parts(s, l->examples, (uint64_t)j->cells * both, [&](uint64_t first, uint32_t some) {
        const uint64_t cells = (uint64_t)j->cells * first, all = (uint64_t)j->cells * some;
        const float *const dy = floats_of(l, LK_DY) + cells * both;
        float *const dx = floats_of(l, LK_DX) + cells * own;
        lk_cuda_spans spans = {};
        lk_cuda_reads(&spans, dy, all * both);
        lk_cuda_writes(&spans, dx, all * own);
        lk_cuda_launch_body(s, LK_CUDA_BODY_CONCATENATE_GRADIENT, spans, part,
                            lk_cuda_blocks(all * own), LK_CUDA_THREADS, 0, lk_cuda_divide_by(own),
                            both, j->which ? j->values[0] : 0u, (uint32_t)(all * own), dy, dx);
    });
    return 0;
}

// --- pictures ------------------------------------------------------------------------------------

// What a pool, or zeros around a picture, make of pictures, or send back.
struct pictures {
    const float *from;
    float *to;
    uint32_t count;          // of elements of `to`
    lk_cuda_pictures shape;  // of these
    lk_cuda_spans spans;
};

static uint64_t in_floats(const lk_pool2d *p) { return (uint64_t)p->in_h * p->in_w * p->channels; }
static uint64_t out_floats(const lk_pool2d *p) {
    return (uint64_t)p->out_h * p->out_w * p->channels;
}

// launch(pictures) of all examples, forward or backward.
template <typename Launch>
static void of_pictures(const lk_lane *l, const lk_op *op, bool forward, Launch launch) {
    const lk_pool2d *p = &op->pool;
    const uint64_t from = forward ? in_floats(p) : out_floats(p);
    const uint64_t to = forward ? out_floats(p) : in_floats(p);
    lk_cuda_in_parts(stream_of(l), l->examples, to, [&](uint64_t first, uint32_t some) {
        pictures q = {floats_of(l, forward ? LK_X : LK_DY) + first * from,
                      floats_of(l, forward ? LK_Y : LK_DX) + first * to,
                      (uint32_t)(some * to),
                      forward ? lk_cuda_pictures_of(p->out_h, p->out_w, p->channels)
                              : lk_cuda_pictures_of(p->in_h, p->in_w, p->channels),
                      {}};
        lk_cuda_reads(&q.spans, q.from, some * from);
        lk_cuda_writes(&q.spans, q.to, q.count);
        launch(q);
    });
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    surround(lk_pool2d p, lk_cuda_pictures out, uint32_t count, const float *__restrict__ x,
             float *__restrict__ y) {
    lk_cuda_begin();
    surround_body(lk_cuda_here(), p, out, count, x, y);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    inner(lk_pool2d p, lk_cuda_pictures in, uint32_t count, const float *__restrict__ dy,
          float *__restrict__ dx) {
    lk_cuda_begin();
    inner_body(lk_cuda_here(), p, in, count, dy, dx);
}

uint32_t lk_cuda_plain_zero_padding2d(lk_lane *l, const lk_op *op) {
    of_pictures(l, op, true, [&](const pictures &q) {
        lk_cuda_launch_body(stream_of(l), LK_CUDA_BODY_ZERO_PADDING, q.spans, surround,
                            lk_cuda_blocks(q.count), LK_CUDA_THREADS, 0, op->pool, q.shape, q.count,
                            q.from, q.to);
    });
    return 0;
}

uint32_t lk_cuda_plain_zero_padding2d_backward(lk_lane *l, const lk_op *op) {
    of_pictures(l, op, false, [&](const pictures &q) {
        lk_cuda_launch_body(stream_of(l), LK_CUDA_BODY_ZERO_PADDING_BACKWARD, q.spans, inner,
                            lk_cuda_blocks(q.count), LK_CUDA_THREADS, 0, op->pool, q.shape, q.count,
                            q.from, q.to);
    });
    return 0;
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    average(lk_cuda_state *state, uint32_t op, lk_pool2d p, lk_cuda_pictures out, uint32_t count,
            const float *__restrict__ x, float *__restrict__ y) {
    lk_cuda_begin();
    average_body(lk_cuda_here(), state, op, p, out, count, x, y);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    average_backward(lk_cuda_state *state, uint32_t op, lk_pool2d p, lk_cuda_pictures in,
                     lk_cuda_divisor stride_h, lk_cuda_divisor stride_w, uint32_t count,
                     const float *__restrict__ dy, float *__restrict__ dx) {
    lk_cuda_begin();
    average_backward_body(lk_cuda_here(), state, op, p, in, stride_h, stride_w, count, dy, dx);
}

uint32_t lk_cuda_plain_average_pool2d(lk_lane *l, const lk_op *op) {
    lk_cuda_stream *s = stream_of(l);
    of_pictures(l, op, true, [&](const pictures &q) {
        lk_cuda_launch_body(s, LK_CUDA_BODY_AVERAGE, q.spans, average, lk_cuda_blocks(q.count),
                            LK_CUDA_THREADS, 0, s->state, s->op, op->pool, q.shape, q.count, q.from,
                            q.to);
    });
    return 0;
}

uint32_t lk_cuda_plain_average_pool2d_backward(lk_lane *l, const lk_op *op) {
    lk_cuda_stream *s = stream_of(l);
    of_pictures(l, op, false, [&](const pictures &q) {
        lk_cuda_launch_body(s, LK_CUDA_BODY_AVERAGE_BACKWARD, q.spans, average_backward,
                            lk_cuda_blocks(q.count), LK_CUDA_THREADS, 0, s->state, s->op, op->pool,
                            q.shape, lk_cuda_divide_by(op->pool.stride_h),
                            lk_cuda_divide_by(op->pool.stride_w), q.count, q.from, q.to);
    });
    return 0;
}

// --- losses --------------------------------------------------------------------------------------

enum { WARPS = 4 };

// Blocks of a warp an example; `arrays`: those of values that it reads or writes.
static lk_cuda_grid warps_of(const lk_lane *l, const lk_op *op, uint32_t arrays) {
    const uint64_t examples = l->examples;
    const uint32_t warps = stream_of(l)->tasks ? LK_CUDA_THREADS / LANES : (uint32_t)WARPS;
    return {dim3((l->examples + warps - 1) / warps),
            {examples * LANES, op->floats, 0, examples * op->floats * arrays * sizeof(float)}};
}

// What a loss of `results` numbers an example reads, `labels` among them, and writes.
static lk_cuda_spans spans_of(const lk_lane *l, const lk_op *op, lk_role labels, uint32_t results) {
    const uint64_t count = l->examples * op->floats;
    lk_cuda_spans spans = {};
    lk_cuda_reads(&spans, l->at[LK_X], count);
    if (labels != LK_X2) lk_cuda_reads(&spans, l->at[LK_X2], count);
    lk_cuda_reads(&spans, l->at[labels], l->examples);
    if (l->train) lk_cuda_writes(&spans, l->at[LK_DX], count);
    if (l->train) lk_cuda_writes(&spans, l->at[LK_DX2], count);
    lk_cuda_writes(&spans, l->at[LK_Y], (uint64_t)l->examples * results);
    return spans;
}

static __global__ void __launch_bounds__(WARPS *LANES)
    mean_squared_error(lk_cuda_state *state, uint32_t op, uint32_t m_count, uint32_t count,
                       const float *__restrict__ p, const float *__restrict__ t,
                       const uint32_t *__restrict__ labels, float *__restrict__ dp,
                       float *__restrict__ y) {
    lk_cuda_begin();
    squares_body<WARPS>(lk_cuda_here(), state, op, m_count, count, p, t, labels, dp, y);
}

uint32_t lk_cuda_plain_mean_squared_error(lk_lane *l, const lk_op *op) {
    lk_cuda_stream *s = stream_of(l);
    lk_cuda_launch_body(s, LK_CUDA_BODY_SQUARES, spans_of(l, op, LK_AUX, 2), mean_squared_error,
                        warps_of(l, op, 3), WARPS * LANES, 0, s->state, s->op, l->examples,
                        (uint32_t)op->floats, floats_of(l, LK_X), floats_of(l, LK_X2),
                        static_cast<const uint32_t *>(l->at[LK_AUX]),
                        l->train ? floats_of(l, LK_DX) : NULL, floats_of(l, LK_Y));
    return 0;
}

static __global__ void __launch_bounds__(WARPS *LANES)
    mean(lk_cuda_state *state, uint32_t op, uint32_t m_count, uint32_t count, float scale,
         const float *__restrict__ x, const uint32_t *__restrict__ labels, float *__restrict__ dx,
         float *__restrict__ y) {
    lk_cuda_begin();
    mean_body<WARPS>(lk_cuda_here(), state, op, m_count, count, scale, x, labels, dx, y);
}

uint32_t lk_cuda_plain_mean(lk_lane *l, const lk_op *op) {
    lk_cuda_stream *s = stream_of(l);
    lk_cuda_launch_body(s, LK_CUDA_BODY_MEAN, spans_of(l, op, LK_AUX, 1), mean, warps_of(l, op, 2),
                        WARPS * LANES, 0, s->state, s->op, l->examples, (uint32_t)op->floats,
                        op->scale, floats_of(l, LK_X), static_cast<const uint32_t *>(l->at[LK_AUX]),
                        l->train ? floats_of(l, LK_DX) : NULL, floats_of(l, LK_Y));
    return 0;
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    binary_crossentropy(lk_cuda_state *state, uint32_t op, uint64_t m_count, uint32_t count,
                        float smoothing, const float *__restrict__ logits,
                        const uint32_t *__restrict__ labels, float *__restrict__ dlogits,
                        float *__restrict__ loss) {
    lk_cuda_begin();
    binary_body(lk_cuda_here(), state, op, m_count, count, smoothing, logits, labels, dlogits,
                loss);
}

uint32_t lk_cuda_plain_binary_crossentropy(lk_lane *l, const lk_op *op) {
    lk_cuda_stream *s = stream_of(l);
    lk_cuda_launch_body(s, LK_CUDA_BODY_BINARY, spans_of(l, op, LK_X2, 1), binary_crossentropy,
                        lk_cuda_blocks(l->examples, op->floats), LK_CUDA_THREADS, 0, s->state,
                        s->op, (uint64_t)l->examples, (uint32_t)op->floats, op->scale,
                        floats_of(l, LK_X), static_cast<const uint32_t *>(l->at[LK_X2]),
                        l->train ? floats_of(l, LK_DX) : NULL, floats_of(l, LK_Y));
    return 0;
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS, 6)
    gan(lk_cuda_state *state, uint32_t op, uint64_t m_count, uint32_t count, lk_gan of,
        const float *__restrict__ first, const float *__restrict__ fake,
        const uint32_t *__restrict__ labels, float *__restrict__ dfirst, float *__restrict__ dfake,
        float *__restrict__ y) {
    lk_cuda_begin();
    gan_body(lk_cuda_here(), state, op, m_count, count, of, first, fake, labels, dfirst, dfake, y);
}

static uint32_t launch_gan(const lk_lane *l, const lk_op *op) {
    lk_cuda_stream *s = stream_of(l);
    lk_cuda_launch_body(s, LK_CUDA_BODY_GAN, spans_of(l, op, LK_AUX, 2), gan,
                        lk_cuda_blocks(l->examples, op->floats), LK_CUDA_THREADS, 0, s->state,
                        s->op, (uint64_t)l->examples, (uint32_t)op->floats, op->gan,
                        floats_of(l, LK_X), floats_of(l, LK_X2),
                        static_cast<const uint32_t *>(l->at[LK_AUX]),
                        l->train ? floats_of(l, LK_DX) : NULL,
                        l->train ? floats_of(l, LK_DX2) : NULL, floats_of(l, LK_Y));
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
