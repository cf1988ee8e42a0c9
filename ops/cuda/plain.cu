// plain.cu - kernels that a lane and an op say all about: lk_cuda_plain_NAME for each of
// LK_PLAIN_OP_LIST (ops/op.h), called as every kernel is. They enqueue a launch and return 0.
#include "ops/cuda/device.h"
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

int lk_cuda_prepare_plain(void) { return lk_cuda_prepare_kernels(sum_of, copy); }
