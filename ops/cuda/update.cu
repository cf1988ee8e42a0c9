// update.cu - REDUCE, APPLY and the end of a step: one launch for all parameters, one for the rest.
#include "ops/cuda/device.h"

// The parameter whose gradient lies at float `at` of a node, or the one before the padding there.
static inline __device__ uint32_t find_param(const lk_cuda_param *params, uint32_t count,
                                             uint64_t at) {
    uint32_t low = 0;
    while (count > 1) {
        uint32_t half = count / 2;
        low = params[low + half].node_offset <= at ? low + half : low;
        count -= half;
    }
    return low;
}

// An optimizer without its descriptor, which is the host's.
struct update_rule {
    lk_optimizer_number number;
    float momentum;
    bool nesterov;
};

// As ops/optimizer.c says; returns whether anything stored is not finite.
static inline __device__ bool apply(const update_rule &o, const lk_step_scalars &scalars, float sum,
                                    float *w, float *const *slots, uint64_t i) {
    float g = (sum + 0.0f) * scalars.inverse_n, change = g;
    bool bad = lk_cuda_not_finite(g);
    if (o.number == LK_OPTIMIZER_MOMENTUM) {
        float a = lk_fmaf(o.momentum, slots[0][i], g);
        bad |= lk_cuda_not_finite(a);
        slots[0][i] = a;
        change = o.nesterov ? lk_fmaf(o.momentum, a, g) : a;
    }
    w[i] = lk_fmaf(-scalars.learning_rate, change, w[i]);
    return bad | lk_cuda_not_finite(w[i]);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    update(lk_cuda_state *state, update_rule o, const lk_cuda_param *__restrict__ params,
           uint32_t param_count, uint64_t node_floats, const lk_cuda_node *__restrict__ nodes,
           uint32_t node_count, lk_cuda_scalars ring) {
    if (state->stopped) return;
    const lk_step_scalars scalars = ring.ring[state->step % ring.slots];
    LK_CUDA_EACH(at, node_floats) {
        uint32_t index = find_param(params, param_count, at);
        const lk_cuda_param *p = &params[index];
        if (at < p->node_offset || at - p->node_offset >= p->count) continue;
        float sum = lk_cuda_reduce(nodes, node_count, at);
        if (apply(o, scalars, sum, p->w, p->slots, at - p->node_offset)) {
            atomicMin(&state->bad_param, index);
        }
    }
}

void lk_cuda_update(lk_cuda_stream *s, const lk_optimizer *o, const lk_cuda_param *params,
                    uint32_t param_count, uint64_t node_floats, const lk_cuda_node *nodes,
                    uint32_t node_count, lk_cuda_scalars scalars) {
    if (param_count == 0 || node_count == 0) return;
    const update_rule rule = {o->type->number, o->momentum, o->nesterov};
    lk_cuda_launch(s, update, lk_cuda_blocks(node_floats), LK_CUDA_THREADS, 0, s->state, rule,
                   params, param_count, node_floats, nodes, node_count, scalars);
}

// One thread: a few numbers.
static __global__ void step_end(lk_cuda_state *state, const lk_cuda_node *nodes,
                                uint32_t node_count, lk_cuda_scalars scalars, lk_cuda_result *ring,
                                uint32_t slots) {
    if (threadIdx.x > 0 || state->stopped) return;
    lk_cuda_result result = {};
    const float inverse_n = scalars.ring[state->step % scalars.slots].inverse_n;
    result.step = state->step;
    result.loss = (lk_cuda_reduce(nodes, node_count, 0) + 0.0f) * inverse_n;
    result.correct = state->correct;
    result.bad_op = state->bad_op;
    result.bad_param = state->bad_param;
    result.not_finite = lk_cuda_not_finite(result.loss) || state->bad_op != UINT32_MAX ||
                        state->bad_param != UINT32_MAX;
    ring[state->step % slots] = result;
    __threadfence_system();
    state->stopped = result.not_finite;
    state->step++;
    state->bad_op = state->bad_param = UINT32_MAX;
    state->correct = 0;
}

void lk_cuda_step_end(lk_cuda_stream *s, const lk_cuda_node *nodes, uint32_t node_count,
                      lk_cuda_scalars scalars, lk_cuda_result *ring, uint32_t slots) {
    lk_cuda_launch(s, step_end, dim3(1), 32, 0, s->state, nodes, node_count, scalars, ring, slots);
}

int lk_cuda_prepare_update(void) { return lk_cuda_prepare_kernels(update, step_end); }

int lk_cuda_prepare(void) {
    int (*const each[])(void) = {
        lk_cuda_prepare_elements, lk_cuda_prepare_update,   lk_cuda_prepare_loss,
        lk_cuda_prepare_pool,     lk_cuda_prepare_dense,    lk_cuda_prepare_conv,
        lk_cuda_prepare_fast,     lk_cuda_prepare_exchange, lk_cuda_prepare_plain};
    for (int (*prepare)(void) : each) {
        int error = prepare();
        if (error) return error;
    }
    return cudaSuccess;
}
