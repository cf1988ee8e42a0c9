// update.cu - REDUCE, APPLY and the end of a step: one launch for all parameters, one for the rest.
#include "ops/cuda/update.h"

static update_rule rule_of(const lk_optimizer *o) {
    const lk_optimizer_number number = o->type->number;
    update_rule rule = {FORM_ADAM,
                        o->nesterov,
                        o->centered,
                        o->amsgrad,
                        o->momentum,
                        o->rho,
                        o->epsilon,
                        o->beta_1,
                        o->beta_2,
                        o->clipvalue,
                        lk_optimizer_norm(o),
                        o->clipnorm,
                        o->global_clipnorm,
                        o->eta,
                        lk_optimizer_averages(o),
                        lk_optimizer_slot_count(o)};
    if (number == LK_OPTIMIZER_LARS_TF) rule.form = FORM_LARS;
    if (number == LK_OPTIMIZER_LAMB_KERAS) rule.form = FORM_LAMB;
    if (number == LK_OPTIMIZER_SGD) rule.form = FORM_SGD;
    if (number == LK_OPTIMIZER_MOMENTUM) rule.form = FORM_MOMENTUM;
    if (number == LK_OPTIMIZER_MOMENTUM_KERAS) rule.form = FORM_MOMENTUM_KERAS;
    if (number == LK_OPTIMIZER_RMSPROP_TF1 || number == LK_OPTIMIZER_RMSPROP_KERAS) {
        rule.form = FORM_RMSPROP;
    }
    return rule;
}

// --- norms ---------------------------------------------------------------------------------------

static inline __device__ const lk_cuda_param *find_slice(const lk_cuda_param *params,
                                                         uint32_t count, uint64_t slice) {
    return &params[find_last(params, &lk_cuda_param::first_slice, count, slice)];
}

// A thread a slice: its chains.
static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    square(const lk_cuda_state *state, update_rule o, const lk_cuda_param *__restrict__ params,
           uint32_t param_count, const lk_cuda_node *__restrict__ nodes, uint32_t node_count,
           lk_cuda_norms norms, lk_cuda_scalars ring) {
    lk_cuda_begin();
    if (state->stopped) return;
    const lk_step_scalars of_step = ring.ring[state->step % ring.slots];
    LK_CUDA_EACH(slice, norms.slices) {
        const lk_cuda_param *p = find_slice(params, param_count, slice);
        const lk_step_scalars s = own_scalars(of_step, p);
        const uint64_t first = (slice - p->first_slice) * LK_SLICE_TERMS;
        const uint64_t end = p->moving.terms > 0 ? first : LK_MIN(first + LK_SLICE_TERMS, p->count);
        float one = 0.0f, two = 0.0f;
        for (uint64_t i = first; i < end; i++) {
            bool ignored = false;
            float w = p->w[i];
            const float before = w, sum = lk_cuda_reduce(nodes, node_count, p->node_offset + i);
            norms.gradient[slice * LK_SLICE_TERMS + (i - first)] = sum;
            const float g = mean_gradient(o, s, sum, w, ignored);
            float of_one = g, of_two = 0.0f;
            if (o.norm == LK_NORM_SPECTRAL) {
                one = p->vector ? lk_fmaf(sum, before, one) : 0.0f;
                continue;
            }
            if (o.norm == LK_NORM_LARS) {
                of_one = before;
                of_two = g;
            } else if (o.norm == LK_NORM_LAMB) {
                float m = p->slots[0][i], v = p->slots[1][i];
                of_one = w;
                of_two = lamb_update(o, s, g, m, v);
            } else {
                of_one = regularized(s, sum, before);  // without the decay that is added to it
            }
            one = lk_fmaf(of_one, of_one, one);
            two = lk_fmaf(of_two, of_two, two);
        }
        norms.squares[2 * slice] = one;
        norms.squares[2 * slice + 1] = two;
    }
}

// As lk_optimizer_fit.
static inline __device__ bool fit(const update_rule &o, const float *squares, float all,
                                  lk_step_scalars &s) {
    const float first = lk_sqrtf(o.global_clipnorm > 0.0f ? all : squares[0]);
    const float second = lk_sqrtf(squares[1]);
    if (o.norm == LK_NORM_GRADIENT) {
        const float most = o.global_clipnorm > 0.0f ? o.global_clipnorm : o.clipnorm;
        const float share = most / (first > most ? first : most);
        s.inverse_n = s.inverse_n * share;
        s.regularizer = s.regularizer * share;
    } else if (first > 0.0f && second > 0.0f) {
        const float length = o.norm == LK_NORM_LARS ? o.eta * first : first;
        s.learning_rate = s.learning_rate * (length / second);
    }
    return lk_cuda_not_finite(first) || lk_cuda_not_finite(second) ||
           lk_cuda_not_finite(s.learning_rate);
}

// One block: a thread a parameter, first its trees, then its scalars.
static __global__ void __launch_bounds__(LK_CUDA_THREADS, 2)
    fit_all(lk_cuda_state *state, update_rule o, const lk_cuda_param *__restrict__ params,
            uint32_t param_count, lk_cuda_norms norms, lk_cuda_scalars ring) {
    lk_cuda_begin();
    const bool stopped = state->stopped;
    const lk_step_scalars s = ring.ring[state->step % ring.slots];
    for (uint32_t i = threadIdx.x; i < param_count; i += blockDim.x) {
        const uint64_t slices = (params[i].count + LK_SLICE_TERMS - 1) / LK_SLICE_TERMS;
        for (uint32_t k = 0; k < 2 && slices > 0; k++) {
            lk_cuda_tree tree;
            tree.leaves = 0;
            for (uint64_t at = 0; at < slices; at++) {
                lk_cuda_tree_leaf(&tree, norms.squares[2 * (params[i].first_slice + at) + k]);
            }
            norms.sums[2 * i + k] = lk_cuda_tree_finish(&tree) + 0.0f;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        float all = 0.0f;
        for (uint32_t i = 0; i < param_count; i++) {
            if (params[i].count > 0 && params[i].moving.terms == 0) all = all + norms.sums[2 * i];
        }
        norms.sums[2 * param_count] = all;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < param_count; i += blockDim.x) {
        norms.own[i] = own_scalars(s, &params[i]);
        if (stopped || params[i].count == 0 || params[i].moving.terms > 0) continue;
        if (o.norm == LK_NORM_SPECTRAL) {
            if (params[i].vector && lk_cuda_not_finite(norms.sums[2 * i])) {
                atomicMin(&state->bad_param, i);
            }
            continue;
        }
        if (fit(o, &norms.sums[2 * i], norms.sums[2 * param_count], norms.own[i])) {
            atomicMin(&state->bad_param, i);
        }
    }
}

// --- regularizers --------------------------------------------------------------------------------

// A thread a slice: its chain.
static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    weigh_slices(const lk_cuda_param *__restrict__ params, uint32_t param_count,
                 lk_cuda_penalty penalty, uint32_t average) {
    lk_cuda_begin();
    LK_CUDA_EACH(slice, penalty.slices) {
        const lk_cuda_param *p = find_slice(params, param_count, slice);
        const float *w = average == UINT32_MAX ? p->w : p->slots[average];
        const uint64_t first = (slice - p->first_slice) * LK_SLICE_TERMS;
        const uint64_t end = p->l2 > 0.0f ? LK_MIN(first + LK_SLICE_TERMS, p->count) : first;
        float chain = 0.0f;
        for (uint64_t i = first; i < end; i++) chain = lk_fmaf(w[i], w[i], chain);
        penalty.squares[slice] = chain;
    }
}

// One block: a thread a parameter, its tree; then one thread adds them up.
static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    weigh_all(lk_cuda_state *state, const lk_cuda_param *__restrict__ params, uint32_t param_count,
              lk_cuda_penalty penalty) {
    lk_cuda_begin();
    for (uint32_t i = threadIdx.x; i < param_count; i += blockDim.x) {
        if (params[i].l2 == 0.0f) continue;
        const uint64_t slices = (params[i].count + LK_SLICE_TERMS - 1) / LK_SLICE_TERMS;
        lk_cuda_tree tree;
        tree.leaves = 0;
        for (uint64_t at = 0; at < slices; at++) {
            lk_cuda_tree_leaf(&tree, penalty.squares[params[i].first_slice + at]);
        }
        penalty.sums[i] = lk_cuda_tree_finish(&tree) + 0.0f;
    }
    __syncthreads();
    if (threadIdx.x > 0) return;
    float all = 0.0f;
    for (uint32_t i = 0; i < param_count; i++) {
        if (params[i].l2 > 0.0f) all = lk_fmaf(params[i].l2, penalty.sums[i], all);
    }
    state->penalty = all;
}

void lk_cuda_weigh(lk_cuda_stream *s, const lk_cuda_param *params, uint32_t param_count,
                   lk_cuda_penalty penalty, uint32_t average) {
    if (!penalty.squares) return;
    const uint64_t bytes = penalty.slices * LK_SLICE_TERMS * sizeof(float);
    lk_cuda_launch(s, weigh_slices, lk_cuda_blocks(penalty.slices, LK_SLICE_TERMS, bytes),
                   LK_CUDA_THREADS, 0, params, param_count, penalty, average);
    lk_cuda_launch(s, weigh_all,
                   {dim3(1), {param_count, penalty.slices, 0, penalty.slices * sizeof(float)}},
                   LK_CUDA_THREADS, 0, s->state, params, param_count, penalty);
}

// --- the update ----------------------------------------------------------------------------------

template <bool normed>
static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    update(lk_cuda_state *state, update_rule o, const lk_cuda_param *__restrict__ params,
           uint32_t param_count, uint64_t node_floats, const lk_cuda_node *__restrict__ nodes,
           uint32_t node_count, lk_cuda_metrics metrics, lk_cuda_norms norms,
           lk_cuda_scalars ring) {
    lk_cuda_begin();
    update_body<normed>(lk_cuda_here(), state, o, params, param_count, node_floats, nodes,
                        node_count, metrics, norms, ring);
}

void lk_cuda_update(lk_cuda_stream *s, const lk_optimizer *o, const lk_cuda_param *params,
                    uint32_t param_count, uint64_t node_floats, const lk_cuda_node *nodes,
                    uint32_t node_count, lk_cuda_metrics metrics, lk_cuda_norms norms,
                    lk_cuda_scalars scalars) {
    if (param_count == 0 || node_count == 0) return;
    update_rule rule = rule_of(o);
    if (norms.squares && rule.norm == LK_NORM_NONE) rule.norm = LK_NORM_SPECTRAL;
    const uint64_t written = 2 * (1 + rule.slot_count);  // read too
    if (!norms.squares) {
        const uint64_t bytes = node_floats * (node_count + written) * sizeof(float);
        lk_cuda_launch_body(s, LK_CUDA_BODY_UPDATE, {}, update<false>,
                            lk_cuda_blocks(node_floats, node_count, bytes), LK_CUDA_THREADS, 0,
                            s->state, rule, params, param_count, node_floats, nodes, node_count,
                            metrics, norms, scalars);
        return;
    }
    const uint64_t terms = norms.slices * LK_SLICE_TERMS * sizeof(float);
    lk_cuda_launch(s, square,
                   lk_cuda_blocks(norms.slices, LK_SLICE_TERMS * node_count,
                                  terms * (node_count + written / 2 + 1)),
                   LK_CUDA_THREADS, 0, s->state, rule, params, param_count, nodes, node_count,
                   norms, scalars);
    lk_cuda_launch(s, fit_all, {dim3(1), {param_count, 2 * norms.slices, 0, 8 * norms.slices}},
                   LK_CUDA_THREADS, 0, s->state, rule, params, param_count, norms, scalars);
    lk_cuda_launch(s, update<true>,
                   lk_cuda_blocks(node_floats, 1, node_floats * (1 + written) * sizeof(float)),
                   LK_CUDA_THREADS, 0, s->state, rule, params, param_count, node_floats, nodes,
                   node_count, metrics, norms, scalars);
}

static __global__ void __launch_bounds__(LK_CUDA_JOIN_THREADS)
    join_and_update(lk_cuda_state *state, update_rule o, const lk_cuda_param *__restrict__ params,
                    uint32_t param_count, const lk_cuda_parts *__restrict__ parts,
                    const lk_cuda_node *__restrict__ node, lk_cuda_metrics metrics,
                    lk_cuda_scalars ring) {
    lk_cuda_begin();
    join_and_update_body(lk_cuda_here(), state, o, params, param_count, parts, node, metrics, ring);
}

uint64_t lk_cuda_joining_blocks(uint64_t count, uint32_t parts) {
    const uint32_t of_block = LK_CUDA_JOIN_THREADS >> lk_cuda_join_workers_log(parts);
    return (count + of_block - 1) / of_block;
}

void lk_cuda_joining_add(lk_cuda_joining *joining, uint64_t count, uint32_t parts) {
    const uint32_t run = 1u << lk_cuda_join_run_log(parts, lk_cuda_join_workers_log(parts));
    joining->blocks += lk_cuda_joining_blocks(count, parts);
    joining->elements += count;
    joining->work.items += count * ((parts + run - 1) / run);
    joining->work.steps = LK_MAX(joining->work.steps, (uint64_t)LK_MIN(run, parts));
    joining->work.bytes += count * parts * sizeof(float);
}

void lk_cuda_joining_change(lk_cuda_joining *joining, uint64_t count, uint32_t parts) {
    joining->blocks -= lk_cuda_joining_blocks(count, 1);
    joining->elements -= count;
    joining->work.items -= count;
    joining->work.bytes -= count * sizeof(float);
    lk_cuda_joining_add(joining, count, parts);
}

void lk_cuda_join_and_update(lk_cuda_stream *s, const lk_optimizer *o, const lk_cuda_param *params,
                             uint32_t param_count, lk_cuda_joining joining,
                             const lk_cuda_node *node, lk_cuda_metrics metrics,
                             lk_cuda_scalars scalars) {
    const update_rule rule = rule_of(o);
    lk_cuda_grid grid = {dim3((uint32_t)joining.blocks), joining.work};
    grid.work.bytes += joining.elements * 2 * (1 + rule.slot_count) * sizeof(float);
    lk_cuda_launch_body(s, LK_CUDA_BODY_JOIN_AND_UPDATE, {}, join_and_update, grid,
                        LK_CUDA_JOIN_THREADS, LK_CUDA_JOIN_THREADS, s->state, rule, params,
                        param_count, joining.parts, node, metrics, scalars);
}

static __global__ void step_end(lk_cuda_state *state, lk_cuda_metrics metrics, uint32_t node_count,
                                lk_cuda_scalars scalars, bool images, lk_cuda_result *ring,
                                uint32_t slots) {
    lk_cuda_begin();
    step_end_body(lk_cuda_here(), state, metrics, node_count, scalars, images, ring, slots);
}

void lk_cuda_step_end(lk_cuda_stream *s, lk_cuda_metrics metrics, uint32_t node_count,
                      lk_cuda_scalars scalars, bool images, lk_cuda_result *ring, uint32_t slots) {
    const uint64_t sums = (uint64_t)metrics.sums * node_count;
    lk_cuda_launch_body(s, LK_CUDA_BODY_STEP_END, {}, step_end,
                        {dim3(1), {1, sums, 0, sums * sizeof(float) + sizeof *ring}}, 32, 0,
                        s->state, metrics, node_count, scalars, images, ring, slots);
}

int lk_cuda_prepare_update(void) {
    return lk_cuda_prepare_kernels(square, fit_all, weigh_slices, weigh_all, update<false>,
                                   update<true>, join_and_update, step_end);
}

int lk_cuda_prepare(void) {
    int (*const each[])(void) = {
        lk_cuda_prepare_elements,  lk_cuda_prepare_update,     lk_cuda_prepare_loss,
        lk_cuda_prepare_pool,      lk_cuda_prepare_dense,      lk_cuda_prepare_conv,
        lk_cuda_prepare_fast,      lk_cuda_prepare_exchange,   lk_cuda_prepare_plain,
        lk_cuda_prepare_norm,      lk_cuda_prepare_layer_norm, lk_cuda_prepare_grouped_conv,
        lk_cuda_prepare_sequence,  lk_cuda_prepare_transducer, lk_cuda_prepare_mixed,
        lk_cuda_prepare_spectral,  lk_cuda_prepare_persistent};
    for (int (*prepare)(void) : each) {
        int error = prepare();
        if (error) return error;
    }
    return cudaSuccess;
}
