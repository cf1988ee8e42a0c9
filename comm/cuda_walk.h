// cuda_walk.h - the ops of a step as launches, in the order of ops/execute.c and comm/step.c. Part
// of comm/cuda_step.h; nobody else's business.
#ifndef LOCKSTEP_COMM_CUDA_WALK_H
#define LOCKSTEP_COMM_CUDA_WALK_H

#include "comm/cuda_step.h"

// The nodes held, and where: entry i of the counter lies in slot[i]. The blocks of a wave take free
// slots before they are joined.
typedef struct lk_cuda_nodes {
    lk_counter counter;
    uint32_t slot[LK_BLOCKS_MAX];
    bool taken[LK_CUDA_LOSSES];
} lk_cuda_nodes;

// Enqueues LOAD to APPLY of a step like `step`, and writes the table of its whole nodes for the
// device: c->host.nodes. `which`: 0 of full steps, 1 of short ones. Returns a cudaError_t.
int lk_cuda_walk_step(lk_cuda_step *c, uint32_t which, uint64_t step);

// Enqueues the forward ops of a wave up to the loss; its blocks join `nodes`. `half` of the test
// set's ring has the examples.
int lk_cuda_walk_forward(lk_cuda_step *c, const lk_wave *wave, uint32_t half, lk_cuda_nodes *nodes);

// The pass and the layer of an op that is a product of matrices: what the fast arithmetic leaves to
// cuBLAS.
bool lk_cuda_is_product(const lk_op *op, lk_fast_layer *layer, lk_fast_pass *pass);

#endif
