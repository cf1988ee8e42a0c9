// gpu.c - what the steps of a GPU and their launches both ask of it. Host only.
#include "comm/cuda/gpu.h"

const lk_kernels *lk_cuda_step_kernels(const lk_run_spec *spec) {
    return spec->model.fast_precision != LK_STRICT ? &lk_kernels_cuda_fast : &lk_kernels_cuda;
}

// --- kinds of steps ------------------------------------------------------------------------------

uint32_t lk_cuda_kind_of(const lk_program *p, uint64_t step) {
    const lk_run_spec *spec = p->spec;
    const lk_step_place place = lk_step_place_of(&spec->model, step);
    const uint64_t full = LK_MIN(spec->example_count, (uint64_t)spec->global_batch);
    return 2 * place.objective + (place.images && lk_step_examples(spec, step) < full);
}

// Full steps come in one of the first two cycles, if ever; a short one is the last of an epoch, and
// whose that is comes again after as many epochs as a cycle has image batches, at the most.
bool lk_cuda_step_of_kind(const lk_program *p, uint32_t kind, uint64_t *step) {
    const lk_run_spec *spec = p->spec;
    const lk_graph *g = lk_graph_of(&spec->model);
    const uint64_t cycle = g ? lk_cycle_steps(g) : 1, epoch = lk_steps_per_epoch(spec);
    for (uint64_t i = 0; i < 2 * cycle; i++) {
        *step = i;
        if (kind % 2 == 0 && lk_cuda_kind_of(p, i) == kind) return true;
    }
    if (kind % 2 == 0 || lk_steps_of_batches(&spec->model, 1) == UINT64_MAX) return false;
    for (uint64_t i = 1; i <= cycle; i++) {
        *step = lk_step_of_batch(&spec->model, i * epoch - 1);
        if (lk_cuda_kind_of(p, *step) == kind) return true;
    }
    return false;
}

// --- exchange ------------------------------------------------------------------------------------

uint64_t lk_cuda_slots_before(const lk_cuda_step *c, uint32_t peer) {
    uint64_t slots = 0;
    for (uint32_t i = 0; i < peer; i++) {
        if (i != c->peer) slots += lk_exchange_slots(c->program, &c->exchange->list[i]);
    }
    return slots;
}

uint64_t lk_cuda_own_floats(const lk_cuda_step *c) {
    const lk_partition partition = lk_cuda_partition(c->exchange, c->peer);
    return partition.end - partition.begin;
}

float *lk_cuda_inbox(const lk_cuda_step *c, uint32_t peer, uint32_t block) {
    return c->at.inbox + (lk_cuda_slots_before(c, peer) + block) * lk_cuda_own_floats(c);
}
