// left.h - gradients that their ops leave in parts, for the update to join (lk_cuda_stream.left of
// ops/cuda/kernels.h). Part of comm/cuda/walk.h.
//
// Where one GPU computes the whole gradient of a step in one node, nobody but the update reads it.
// So the parts of a sum stay where the op put them, in memory that no other op takes, and the
// update joins them and stores no gradient: a launch fewer for each such op. (The other way round,
// the update at the end of each op, is one launch fewer of a step, and writes weights that the
// gradient of the op's input may still be reading.) The order of every sum is the same.
#ifndef LOCKSTEP_COMM_CUDA_LEFT_H
#define LOCKSTEP_COMM_CUDA_LEFT_H

#include "comm/cuda/gpu.h"

typedef struct lk_cuda_left {
    lk_cuda_step *c;       // NULL: no op leaves any
    lk_cuda_parts *table;  // of this kind of steps; NULL: planned, but not there yet
    uint64_t floats;       // taken so far
    uint32_t ops;          // that left some
    lk_cuda_parts parts;   // of the op at hand
    lk_cuda_joining joining;
} lk_cuda_left;

// The floats of the parts of all objectives' programs, the most of any; 0: all gradients are whole.
uint64_t lk_cuda_left_floats(const lk_cuda_step *c);

// The walk over a step of this kind begins: where there are floats it has one microbatch, and that
// one node. Before the launches of a gradient op, and after them.
void lk_cuda_left_start(lk_cuda_left *l, lk_cuda_step *c, uint32_t which);
void lk_cuda_left_before(lk_cuda_left *l, lk_cuda_stream *s, const lk_op *op);
void lk_cuda_left_after(lk_cuda_left *l, lk_cuda_stream *s, const lk_op *op);

// The update, where any op left some; else false.
bool lk_cuda_left_update(lk_cuda_left *l, lk_cuda_stream *s, const lk_cuda_node *node,
                         lk_cuda_metrics metrics, lk_cuda_scalars scalars);

#endif
