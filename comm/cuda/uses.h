// uses.h - on a GPU, the gradient of a parameter that an objective uses several times: the rows of
// its uses are laid side by side, so that kernels, which take one run of grains, find one. Part of
// comm/cuda/walk.h; nobody else's business.
//
// Use u of grain g is leaf g * 2^k + u of the tree, 2^k the least power of two not below the
// number of uses (ops/graph/execute.c). So in the op's scratch, before what its kernel needs:
//
//   x     | grain 0: use 0, use 1, .. 2^k - 1 | grain 1: .. |     the same of dy, and of what the
//   wide  | in mixed precision, of one use: widened to fp32 |     op keeps of its grains
//   nodes | of runs of grains, until they are joined        |
//
// Uses that there are not, and rows that the last grain has not, are zeros: terms that change
// nothing. As many grains are taken at once as fit in lk_cuda_uses_bytes, one at least; the nodes
// of their runs are joined as those of the microbatch's blocks are.
#ifndef LOCKSTEP_COMM_CUDA_USES_H
#define LOCKSTEP_COMM_CUDA_USES_H

#include "comm/cuda/walk.h"

enum { LK_CUDA_USES_ROLES = 3 };  // x, dy, what is kept
extern uint64_t lk_cuda_uses_bytes;  // tests change it

typedef struct lk_cuda_uses {
    uint32_t uses, leaves;  // of a grain: as many as there are; the power of two
    uint32_t grains;        // taken at once: a power of two
    uint32_t examples;      // of these, with those of leaves that are zeros
    uint64_t grain_bytes[LK_CUDA_USES_ROLES];  // of a tensor, 0: the op has none
    uint64_t at[LK_CUDA_USES_ROLES];           // in bytes, from the start of this scratch
    uint64_t wide, nodes;                      // likewise: room for as many as wait to be joined
    uint64_t node_floats;
    uint64_t floats;  // of all; a multiple of 64 bytes
} lk_cuda_uses;

// Of a gradient op of several uses.
lk_cuda_uses lk_cuda_uses_of(const lk_program *program, const lk_op *op);

// The node of a block, at `node`, where the op has several uses.
void lk_cuda_uses_gradient(lk_cuda_walk *w, const lk_op *op, const lk_microbatch *microbatch,
                           const lk_block *block, float *node);

#endif
