// update.h - REDUCE, APPLY and the end of a step as a block has them. The launches are update.cu's,
// and the persistent kernel's (persistent.cu).
#ifndef LOCKSTEP_OPS_CUDA_UPDATE_H
#define LOCKSTEP_OPS_CUDA_UPDATE_H

#include "ops/cuda/join.h"
#include "ops/layers/rounded.h"
#include "ops/math.h"

// The last of `count` entries that begins at `at` or before, the first being one that does: so of
// those that begin at the same place the one that has something there. `begin`: their member.
template <typename Entry, typename Number>
static inline __device__ uint32_t find_last(const Entry *entries, Number Entry::*begin,
                                            uint32_t count, uint64_t at) {
    uint32_t low = 0;
    while (count > 1) {
        uint32_t half = count / 2;
        low = entries[low + half].*begin <= at ? low + half : low;
        count -= half;
    }
    return low;
}

// How an optimizer updates: several share a formula (ops/optimizer.c).
enum update_form {
    FORM_SGD,
    FORM_MOMENTUM,
    FORM_MOMENTUM_KERAS,
    FORM_RMSPROP,
    FORM_ADAM,
    FORM_LARS,
    FORM_LAMB
};

// An optimizer without its descriptor, which is the host's.
struct update_rule {
    update_form form;
    bool nesterov, centered, amsgrad;
    float momentum, rho, epsilon, beta_1, beta_2, clipvalue;
    lk_norm norm;
    float clipnorm, global_clipnorm, eta;
    bool averages;  // of weights are kept, in the last slot
    uint32_t slot_count;
};

// Each of these takes element i of w and of the slots, and returns the new w; `bad` collects what
// is stored and not finite. `w` comes after its decay, but for l2.
static inline __device__ float keep(float *slot, uint64_t i, float value, bool &bad) {
    slot[i] = value;
    bad |= lk_cuda_not_finite(value);
    return value;
}

static inline __device__ float apply_momentum(const update_rule &o, const lk_step_scalars &s,
                                              float g, float w, float *const *slots, uint64_t i,
                                              bool &bad) {
    const float a = keep(slots[0], i, lk_fmaf(o.momentum, slots[0][i], g), bad);
    return lk_fmaf(-s.learning_rate, o.nesterov ? lk_fmaf(o.momentum, a, g) : a, w);
}

static inline __device__ float apply_momentum_keras(const update_rule &o, const lk_step_scalars &s,
                                                    float g, float w, float *const *slots,
                                                    uint64_t i, bool &bad) {
    const float step = s.learning_rate * g;
    const float m = keep(slots[0], i, lk_fmaf(o.momentum, slots[0][i], -step), bad);
    return w + (o.nesterov ? lk_fmaf(o.momentum, m, -step) : m);
}

static inline __device__ float apply_rmsprop(const update_rule &o, const lk_step_scalars &s,
                                             float g, float w, float *const *slots, uint64_t i,
                                             bool &bad) {
    const float rest = 1.0f - o.rho, before = slots[0][i];
    float d = keep(slots[0], i, lk_fmaf(rest, lk_fmaf(g, g, -before), before), bad);
    if (o.centered) {
        const float mean = slots[1][i];
        const float mg = keep(slots[1], i, lk_fmaf(rest, g - mean, mean), bad);
        d = lk_fmaf(-mg, mg, d);
        d = d > 0.0f ? d : 0.0f;
    }
    float update = (s.learning_rate * g) / lk_sqrtf(d + o.epsilon);
    bad |= lk_cuda_not_finite(update);
    if (o.momentum > 0.0f) {
        float *const mom = slots[o.centered ? 2 : 1];
        update = keep(mom, i, lk_fmaf(o.momentum, mom[i], update), bad);
    }
    return w - update;
}

static inline __device__ float apply_adam(const update_rule &o, const lk_step_scalars &s, float g,
                                          float w, float *const *slots, uint64_t i, bool &bad) {
    const float mean = slots[0][i], square = slots[1][i];
    const float m = keep(slots[0], i, lk_fmaf(1.0f - o.beta_1, g - mean, mean), bad);
    float x = keep(slots[1], i, lk_fmaf(1.0f - o.beta_2, lk_fmaf(g, g, -square), square), bad);
    if (o.amsgrad) {
        const float before = slots[2][i];
        x = keep(slots[2], i, x > before ? x : before, bad);
    }
    return w - (m * s.step_size) / lk_fmaf(s.root, lk_sqrtf(x), o.epsilon);
}

static inline __device__ float apply_lars(const update_rule &o, const lk_step_scalars &s, float g,
                                          float w, float *const *slots, uint64_t i, bool &bad) {
    const float step = s.learning_rate * g;
    const float v = keep(slots[0], i, lk_fmaf(o.momentum, slots[0][i], step), bad);
    return w - (o.nesterov ? lk_fmaf(o.momentum, v, step) : v);
}

// The update of lamb, and the means that it makes.
static inline __device__ float lamb_update(const update_rule &o, const lk_step_scalars &s, float g,
                                           float &m, float &v) {
    m = lk_fmaf(1.0f - o.beta_1, g - m, m);
    v = lk_fmaf(1.0f - o.beta_2, lk_fmaf(g, g, -v), v);
    return (m * s.step_size) / lk_fmaf(s.root, lk_sqrtf(v), o.epsilon);
}

static inline __device__ float apply_lamb(const update_rule &o, const lk_step_scalars &s, float g,
                                          float w, float *const *slots, uint64_t i, bool &bad) {
    float m = slots[0][i], v = slots[1][i];
    const float u = lamb_update(o, s, g, m, v);
    keep(slots[0], i, m, bad);
    keep(slots[1], i, v, bad);
    return lk_fmaf(-s.learning_rate, u, w);
}

// The mean gradient, with that of the regularizer.
static inline __device__ float regularized(const lk_step_scalars &s, float sum, float w) {
    const float g = (sum + 0.0f) * s.inverse_n;
    return s.regularizer != 0.0f ? lk_fmaf(s.regularizer, w, g) : g;
}

// .. cut, and w after its decay, or g with it.
static inline __device__ float mean_gradient(const update_rule &o, const lk_step_scalars &s,
                                             float sum, float &w, bool &bad) {
    float g = regularized(s, sum, w);
    bad |= lk_cuda_not_finite(g);
    if (o.clipvalue > 0.0f) {
        g = g > o.clipvalue ? o.clipvalue : g;
        g = g < -o.clipvalue ? -o.clipvalue : g;
    }
    if (s.l2 != 0.0f) g = lk_fmaf(s.l2, w, g);
    if (s.decay != 0.0f) w = lk_fmaf(-s.decay, w, w);
    return g;
}

// The scalars of a step with what is a parameter's own.
static inline __device__ lk_step_scalars own_scalars(const lk_step_scalars &s,
                                                     const lk_cuda_param *p) {
    lk_step_scalars own = s;
    own.regularizer = 2.0f * p->l2;
    return own;
}

// v as products take it, where they take it rounded.
static inline __device__ void keep_rounded(const lk_cuda_param *p, float *to, uint64_t i, float v,
                                           bool &bad) {
    if (to) keep(to, i, lk_rounded((uint8_t)p->dtype, v), bad);
}

// As ops/optimizer.c says; returns whether anything stored is not finite.
static inline __device__ bool apply(const update_rule &o, const lk_step_scalars &s, float sum,
                                    const lk_cuda_param *p, uint64_t i) {
    float *const w = p->w, *const *slots = p->slots;
    bool bad = false;
    float next = w[i];
    const float g = mean_gradient(o, s, sum, next, bad);
    if (o.form == FORM_SGD) {
        next = lk_fmaf(-s.learning_rate, g, next);
    } else if (o.form == FORM_MOMENTUM) {
        next = apply_momentum(o, s, g, next, slots, i, bad);
    } else if (o.form == FORM_MOMENTUM_KERAS) {
        next = apply_momentum_keras(o, s, g, next, slots, i, bad);
    } else if (o.form == FORM_RMSPROP) {
        next = apply_rmsprop(o, s, g, next, slots, i, bad);
    } else if (o.form == FORM_LARS) {
        next = apply_lars(o, s, g, next, slots, i, bad);
    } else if (o.form == FORM_LAMB) {
        next = apply_lamb(o, s, g, next, slots, i, bad);
    } else {
        next = apply_adam(o, s, g, next, slots, i, bad);
    }
    bad |= lk_cuda_not_finite(next);
    if (p->clip > 0.0f) next = next > p->clip ? p->clip : next < -p->clip ? -p->clip : next;
    w[i] = next;
    keep_rounded(p, p->rounded, i, next, bad);
    if (o.averages) {
        float *const average = slots[o.slot_count - 1];
        const float mean = lk_fmaf(s.average, average[i], (1.0f - s.average) * next);
        keep(average, i, mean, bad);
        keep_rounded(p, p->rounded_average, i, mean, bad);
    }
    return bad;
}

// Element i of the gradient sum of a kernel of spectral_normalization with respect to it, of that
// with respect to what products took and its product with the kernel; the vector moves on.
static inline __device__ float turned(const lk_cuda_param *p, float product, uint64_t i,
                                      float sum) {
    const float factor = p->numbers[LK_CUDA_SPECTRAL_FACTOR];
    const uint32_t row = lk_cuda_quotient((uint32_t)i, p->columns);
    const uint32_t column = (uint32_t)i - row * p->columns.by;
    if (row == 0) p->vector[column] = p->n[column];
    if (p->numbers[LK_CUDA_SPECTRAL_STILL] != 0.0f) return sum;
    return lk_fmaf(-(product * factor * p->v[row]), p->n[column], sum) * factor;
}

// The mean of a metric over the step, which no loss scale changes; the first is the loss, to which
// the penalty is added.
static inline __device__ float mean_of(const lk_cuda_state *state, lk_cuda_metrics metrics,
                                       uint32_t node_count, uint32_t i, uint32_t examples) {
    const float inverse_n = 1.0f / (float)examples;
    const float mean = (lk_cuda_reduce(metrics.nodes, node_count, i) + 0.0f) * inverse_n;
    return i == 0 && state->penalty != 0.0f ? mean + state->penalty : mean;
}

// Has the step a flag? What says so was written before.
static inline __device__ bool is_flagged(const lk_cuda_state *state, lk_cuda_metrics metrics,
                                         uint32_t node_count, uint32_t examples) {
    bool flagged = state->bad_op != UINT32_MAX;
    for (uint32_t i = 0; i < metrics.sums; i++) {
        flagged |= lk_cuda_not_finite(mean_of(state, metrics, node_count, i, examples));
    }
    return flagged;
}

// --- the update ----------------------------------------------------------------------------------

// Is the step applied, and by which scalars?
static inline __device__ bool is_applied(const lk_cuda_state *state, const lk_cuda_metrics &metrics,
                                         uint32_t node_count, const lk_cuda_scalars &ring,
                                         lk_step_scalars *scalars) {
    if (state->stopped) return false;
    *scalars = ring.ring[state->step % ring.slots];
    return !(state->asks && is_flagged(state, metrics, node_count, scalars->examples));
}

// Element i of entry `index`, by the sum of its gradient.
static inline __device__ void update_element(lk_cuda_state *state, const update_rule &o,
                                             const lk_step_scalars &scalars, const lk_cuda_param *p,
                                             uint32_t index, uint64_t i, float sum) {
    bool bad;
    if (p->moving.terms > 0) {
        p->w[i] = lk_moving_of_sum(p->moving, scalars.examples, p->w[i], sum);
        bad = lk_cuda_not_finite(p->w[i]);
    } else {
        bad = apply(o, own_scalars(scalars, p), sum, p, i);
    }
    if (bad) atomicMin(&state->bad_param, index);
}

template <bool normed>
static inline __device__ void update_body(lk_cuda_at block, lk_cuda_state *state,
                                          const update_rule &o, const lk_cuda_param *params,
                                          uint32_t param_count, uint64_t node_floats,
                                          const lk_cuda_node *nodes, uint32_t node_count,
                                          const lk_cuda_metrics &metrics,
                                          const lk_cuda_norms &norms, const lk_cuda_scalars &ring) {
    lk_step_scalars scalars;
    if (!is_applied(state, metrics, node_count, ring, &scalars)) return;
    LK_CUDA_EACH_AT(block, at, node_floats) {
        uint32_t index = find_last(params, &lk_cuda_param::node_offset, param_count, at);
        const lk_cuda_param *p = &params[index];
        if (at < p->node_offset || at - p->node_offset >= p->count) continue;
        if (normed && p->moving.terms == 0) {
            const uint64_t i = at - p->node_offset;
            float sum = norms.gradient[p->first_slice * LK_SLICE_TERMS + i];
            if (p->vector) sum = turned(p, norms.sums[2 * index], i, sum);
            if (apply(o, norms.own[index], sum, p, i)) {
                atomicMin(&state->bad_param, index);
            }
            continue;
        }
        update_element(state, o, scalars, p, index, at - p->node_offset,
                       lk_cuda_reduce(nodes, node_count, at));
    }
}

// The elements of a block are of one parameter: its threads join the parts of each, if there are
// any, and the first of an element's threads updates it.
static inline __device__ void join_and_update_body(lk_cuda_at block, lk_cuda_state *state,
                                                   const update_rule &o,
                                                   const lk_cuda_param *params,
                                                   uint32_t param_count, const lk_cuda_parts *parts,
                                                   const lk_cuda_node *node,
                                                   const lk_cuda_metrics &metrics,
                                                   const lk_cuda_scalars &ring) {
    lk_step_scalars scalars;
    if (!is_applied(state, metrics, 1, ring, &scalars)) return;
    const uint32_t index = find_last(parts, &lk_cuda_parts::first_block, param_count, block.x);
    const lk_cuda_param *p = &params[index];
    const lk_cuda_parts own = parts[index];
    const uint32_t workers_log = lk_cuda_join_workers_log(own.count);
    const uint32_t of_block = LK_CUDA_JOIN_THREADS >> workers_log;
    const uint64_t first = (uint64_t)(block.x - own.first_block) * of_block;
    const uint64_t i = first + (threadIdx.x & (of_block - 1));
    const uint64_t there = LK_MIN(i, p->count - 1);
    const float sum = own.at
                          ? lk_cuda_join_tree(own.at + there, own.stride, own.count, workers_log)
                          : node->values[p->node_offset + there];
    if (threadIdx.x >= of_block || i >= p->count) return;
    update_element(state, o, scalars, p, index, i, sum);
}

// One thread: a few numbers.
static inline __device__ void step_end_body(lk_cuda_at, lk_cuda_state *state,
                                            const lk_cuda_metrics &metrics, uint32_t node_count,
                                            const lk_cuda_scalars &scalars, bool images,
                                            lk_cuda_result *ring, uint32_t slots) {
    if (threadIdx.x > 0 || state->stopped) return;
    lk_cuda_result result = {};
    const uint32_t examples = scalars.ring[state->step % scalars.slots].examples;
    result.step = state->step;
    result.bad_op = state->bad_op;
    result.bad_param = state->bad_param;
    result.not_finite = state->bad_op != UINT32_MAX || state->bad_param != UINT32_MAX;
    for (uint32_t i = 0; i < metrics.sums; i++) {
        result.means[i] = mean_of(state, metrics, node_count, i, examples);
        result.not_finite |= lk_cuda_not_finite(result.means[i]);
    }
    for (uint32_t i = 0; i < LK_METRIC_COUNTS_MAX; i++) result.counts[i] = state->counts[i];
    ring[state->step % slots] = result;  // read once the stream is behind it: no fence
    const bool held = state->asks && is_flagged(state, metrics, node_count, examples);
    state->stopped = result.not_finite && !held;
    state->step++;
    state->batch += images;
    state->bad_op = state->bad_param = UINT32_MAX;
    for (uint32_t i = 0; i < LK_METRIC_COUNTS_MAX; i++) state->counts[i] = 0;
}

#endif
