// staged.h - a GPU worker's part of the exchange of comm/step/exchange.h, done by the host on what
// its GPUs have left in pinned memory: boxes, slice and note are those of a worker of threads. Host
// only; touches no GPU. Part of comm/cuda/group.h; nobody else's business.
#ifndef LOCKSTEP_COMM_CUDA_STAGED_H
#define LOCKSTEP_COMM_CUDA_STAGED_H

#include "comm/cuda/group.h"

// SHARE: the whole nodes of all GPUs, in their host.blocks, make this worker's; and its note.
void lk_cuda_staged_share(const lk_cuda_group *g, lk_exchange *x, uint64_t step, uint32_t stop);

// JOIN: the sum of the slice that this worker owns.
void lk_cuda_staged_join(const lk_cuda_group *g, lk_exchange *x, uint64_t step);

// What the GPUs need for APPLY and for their result: all sums, the loss, and what the notes say.
void lk_cuda_staged_sums(const lk_cuda_group *g, const lk_exchange *x, uint64_t step);

// The note of this worker's share of an evaluation of `count` examples, from g->evaluations.
void lk_cuda_staged_evaluated(const lk_cuda_group *g, lk_exchange *x, uint64_t count,
                              uint32_t stop);

#endif
