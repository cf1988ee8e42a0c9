// reduce.h - joins the tree nodes that replicas hold into the sum over the whole global batch.
// Freestanding; adds floats in tree order, never asks who computed them when.
#ifndef LOCKSTEP_COMM_STEP_REDUCE_H
#define LOCKSTEP_COMM_STEP_REDUCE_H

#include "ops/graph/execute.h"

// The nodes of one holder: entry i of the counter is the `floats` values at values + i * stride.
typedef struct lk_holding {
    LK_WIDE const lk_counter *counter;
    LK_WIDE const float *values;
    LK_WIDE uint64_t stride;
} lk_holding;

// The root over `leaves` leaves, for `count` values that start at `offset` in every node. Returns
// where the result lies: in a holder's own memory where one node is the whole tree, otherwise in
// scratch (count * (lk_root_level(leaves) + 1) floats).
const float *lk_reduce(const lk_kernels *kernels, const lk_holding *holdings, uint32_t holder_count,
                       uint32_t leaves, uint64_t offset, uint64_t count, float *scratch);

// The same for any node that has a leaf.
const float *lk_reduce_node(const lk_kernels *kernels, const lk_holding *holdings,
                            uint32_t holder_count, uint32_t leaves, lk_node node, uint64_t offset,
                            uint64_t count, float *scratch);

#endif
