// staged.h - what a GPU worker's host does for the exchange of comm/step/exchange.h with what its
// GPUs have left in pinned memory: what they hold, report, and sums are those of a worker of
// threads. Host only; touches no GPU. Part of comm/cuda/group.h; nobody else's business.
#ifndef LOCKSTEP_COMM_CUDA_STAGED_H
#define LOCKSTEP_COMM_CUDA_STAGED_H

#include "comm/cuda/group.h"

// What each GPU of the worker holds of a step, in its host.blocks: its whole nodes; or of an
// evaluation those of the loss.
typedef struct lk_cuda_staged_nodes {
    lk_counter blocks[LK_CUDA_GPUS_MAX];
    lk_holding list[LK_CUDA_GPUS_MAX];
} lk_cuda_staged_nodes;
void lk_cuda_staged_held(const lk_cuda_group *g, uint32_t leaves, lk_cuda_staged_nodes *out);

// This worker's report of a step, from what its GPUs say.
void lk_cuda_staged_report(const lk_cuda_group *g, lk_exchange *x, uint64_t step, uint32_t stop);

// What the GPUs need for APPLY and for their result: all sums, the loss, and what the reports say.
void lk_cuda_staged_sums(const lk_cuda_group *g, const lk_exchange *x, uint64_t step);

// The report of this worker's share of an evaluation of `count` examples, from g->evaluations.
void lk_cuda_staged_evaluated(const lk_cuda_group *g, lk_exchange *x, uint64_t count,
                              uint32_t stop);

#endif
