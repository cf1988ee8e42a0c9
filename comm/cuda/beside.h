// beside.h - ops of a step that run beside the others: on a stream of their own, with scratch of
// their own (lk_op_goes_beside of ops/graph/program.h). Part of comm/cuda/walk.h.
//
// Backward is a chain, the gradients of activations, from which the gradients of parameters hang.
// These go to the second stream in the order of the program. There an op waits for all that the
// first stream was given before it. The first stream waits for an op of the second one where it is
// about to write what that op reads, and at the end of the walk for all of them. Recorded, these
// waits are edges of the graph. How ops are spread over streams changes no bit.
#ifndef LOCKSTEP_COMM_CUDA_BESIDE_H
#define LOCKSTEP_COMM_CUDA_BESIDE_H

#include "comm/cuda/gpu.h"

typedef struct lk_cuda_beside {
    lk_cuda_step *c;  // NULL: nothing runs beside anything
    bool behind;      // the second stream has not been told of all that is on the first
    // The ops on the second stream that the first has not waited for, oldest first, as a ring.
    uint32_t first, count, op[LK_CUDA_BESIDE_MAX];
} lk_cuda_beside;

void lk_cuda_beside_start(lk_cuda_beside *b, lk_cuda_step *c);

// Before the launches of op number `index`: where they go. After them. Before what needs them all.
void lk_cuda_beside_before(lk_cuda_beside *b, lk_cuda_stream *s, uint32_t index);
void lk_cuda_beside_after(lk_cuda_beside *b, lk_cuda_stream *s, uint32_t index);
void lk_cuda_beside_join(lk_cuda_beside *b, lk_cuda_stream *s);

#endif
