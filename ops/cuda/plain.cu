// plain.cu - kernels that a lane and an op say all about: lk_cuda_plain_NAME for each of
// LK_PLAIN_OP_LIST (ops/op.h), called as every kernel is. They enqueue a launch and return 0.
#include "ops/cuda/device.h"
#include "ops/cuda/table.h"
#include "ops/math.h"

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

// y = F::forward(x); dx = F::backward(y, dy), where dx may be dy.
template <typename F>
static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    activate(F f, uint64_t count, const float *x, float *y) {
    LK_CUDA_EACH(i, count) y[i] = f.forward(x[i]);
}
template <typename F>
static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    activate_backward(F f, uint64_t count, const float *y, const float *dy, float *dx) {
    LK_CUDA_EACH(i, count) dx[i] = f.backward(y[i], dy[i]);
}

template <typename F>
static uint32_t launch_forward(const lk_lane *l, const lk_op *op, F f) {
    const uint64_t count = l->examples * op->floats;
    lk_cuda_launch(stream_of(l), activate<F>, lk_cuda_blocks(count), LK_CUDA_THREADS, 0, f, count,
                   floats_of(l, LK_X), floats_of(l, LK_Y));
    return 0;
}
template <typename F>
static uint32_t launch_backward(const lk_lane *l, const lk_op *op, F f) {
    const uint64_t count = l->examples * op->floats;
    lk_cuda_launch(stream_of(l), activate_backward<F>, lk_cuda_blocks(count), LK_CUDA_THREADS, 0, f,
                   count, floats_of(l, LK_Y), floats_of(l, LK_DY), floats_of(l, LK_DX));
    return 0;
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

uint32_t lk_cuda_plain_tanh(lk_lane *l, const lk_op *op) {
    return launch_forward(l, op, tanh_of());
}
uint32_t lk_cuda_plain_tanh_backward(lk_lane *l, const lk_op *op) {
    return launch_backward(l, op, tanh_of());
}
uint32_t lk_cuda_plain_sigmoid(lk_lane *l, const lk_op *op) {
    return launch_forward(l, op, sigmoid_of());
}
uint32_t lk_cuda_plain_sigmoid_backward(lk_lane *l, const lk_op *op) {
    return launch_backward(l, op, sigmoid_of());
}
uint32_t lk_cuda_plain_leaky_relu(lk_lane *l, const lk_op *op) {
    return launch_forward(l, op, leaky_relu_of{op->slope});
}
uint32_t lk_cuda_plain_leaky_relu_backward(lk_lane *l, const lk_op *op) {
    return launch_backward(l, op, leaky_relu_of{op->slope});
}

int lk_cuda_prepare_plain(void) {
    return lk_cuda_prepare_kernels(sum_of, copy, activate<tanh_of>, activate<sigmoid_of>,
                                   activate<leaky_relu_of>, activate_backward<tanh_of>,
                                   activate_backward<sigmoid_of>, activate_backward<leaky_relu_of>);
}
