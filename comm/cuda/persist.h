// persist.h - steps as launches of the persistent kernel (ops/cuda/tasks.h) instead of graphs. Host
// only; needs no CUDA header.
//
// The walk that records a graph (comm/cuda/walk.h) keeps the launches of a step as tasks instead,
// and a table of each kind of steps lies in the device's arena. Many steps are one launch: a step
// that is begun waits until the ring has no more of its half, another kind of steps follows, or
// somebody waits for the device.
//
// A step has a table where it is computed by one GPU, in the strict arithmetic, of ops that have
// bodies. Nobody asks for a verdict on such steps: who does has a loss scale, in mixed precision,
// which has no persistent kernel. The table, and the choice that `auto` makes, are found by a walk
// at addresses that nobody touches, without a GPU. It changes no bit, so it is not part of the run
// identity.
#ifndef LOCKSTEP_COMM_CUDA_PERSIST_H
#define LOCKSTEP_COMM_CUDA_PERSIST_H

#include "comm/cuda/gpu.h"

// Chooses, by c->persist.wanted; c->at has addresses.
void lk_cuda_persist_choose(lk_cuda_step *c);

// Does the device have room for tables, whatever is chosen?
bool lk_cuda_persist_has_tables(const lk_cuda_step *c);

// Once the GPU is there: how many blocks it holds. LK_UNAVAILABLE: none.
lk_status lk_cuda_persist_start(lk_cuda_step *c, lk_error *error);

// The table of steps like `step` into the host's arena; and all of them to the device.
lk_status lk_cuda_persist_record(lk_cuda_step *c, uint32_t kind, uint64_t step, lk_error *error);
void lk_cuda_persist_ready(lk_cuda_step *c);

// A launch of one step of a kind, whatever was begun.
void lk_cuda_persist_try(lk_cuda_step *c, uint32_t kind);

// A step, or the steps that wait, handed to the device.
void lk_cuda_persist_begin(lk_cuda_step *c, uint64_t step);
void lk_cuda_persist_flush(lk_cuda_step *c);

#endif
