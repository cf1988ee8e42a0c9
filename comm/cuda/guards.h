// guards.h - the memory checking mode on a GPU (layout.guards): what ops/graph/check.h does at an
// op, enqueued there. Part of comm/cuda/walk.h; nobody else's business.
//
// What a launch finds out is a number on the device: of the tensor whose guard is broken, and of
// the byte. It comes to the host behind the step and is looked at when somebody waits for that;
// then the program ends as a processor's does. Guards in the device region come with the host's
// mirror of it.
#ifndef LOCKSTEP_COMM_CUDA_GUARDS_H
#define LOCKSTEP_COMM_CUDA_GUARDS_H

#include "comm/cuda/gpu.h"

// Of a program in use, in words of the device: what was found out, LK_NONE: nothing. NULL where the
// plan has no guards.
static inline uint32_t *lk_cuda_broken(const lk_cuda_step *c) {
    return c->at.broken ? c->at.broken + c->program->objective : NULL;
}

// Once: replica regions are poison, nothing is broken. Before the padding of nodes is cleared.
void lk_cuda_guards_start(lk_cuda_step *c);

// The guards of a replica's tensors that live as long as the run, at the start of a step; a look at
// them and at those of the device region at its end. Nothing where `broken` is NULL, as below.
void lk_cuda_guards_begin(lk_cuda_stream *s, const lk_frame *f, const uint32_t *broken);
void lk_cuda_guards_end(lk_cuda_stream *s, const lk_frame *f, uint32_t *broken);

// Before and after an op, as lk_check_before_op and lk_check_after_op.
void lk_cuda_guards_before(lk_cuda_stream *s, const lk_frame *f, uint32_t op,
                           const uint32_t *broken);
void lk_cuda_guards_after(lk_cuda_stream *s, const lk_frame *f, uint32_t op, bool poison,
                          uint32_t *broken);

// The guard of a tensor of the first replica that no op writes first, but the host.
void lk_cuda_guards_enter(lk_cuda_step *c, uint32_t tensor);

// What was found out goes to the host behind all that was enqueued; ends the program if it says
// that a guard was broken.
void lk_cuda_guards_tell(lk_cuda_step *c);
void lk_cuda_guards_look(const lk_cuda_step *c);

#endif
