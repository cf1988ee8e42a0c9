// gpu.c - what the steps of a GPU and their launches both ask of it. Host only.
#include "comm/cuda/gpu.h"

const lk_kernels *lk_cuda_step_kernels(const lk_run_spec *spec) {
    return spec->fast_precision != LK_STRICT ? &lk_kernels_cuda_fast : &lk_kernels_cuda;
}

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
