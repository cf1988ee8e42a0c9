// join.h - the tree over the parts of sums (sums.h), by the threads of a block. CUDA C++, included by
// sums.h and update.h.
#ifndef LOCKSTEP_OPS_CUDA_JOIN_H
#define LOCKSTEP_OPS_CUDA_JOIN_H

#include "ops/cuda/device.h"

enum { LK_CUDA_JOIN_THREADS = 256, LK_CUDA_JOIN_WORKERS = 8 };

// How many values a worker joins: a power of two, 8 at least.
static inline __device__ __host__ uint32_t lk_cuda_join_run(uint32_t count, uint32_t workers) {
    uint32_t run = 8;
    while (run * workers < count) run *= 2;
    return run;
}

// The threads of a block that have the same output of `count` values: a power of two.
static inline __device__ __host__ uint32_t lk_cuda_join_workers(uint32_t count) {
    uint32_t workers = 1;
    while (workers < LK_CUDA_JOIN_WORKERS && 8 * workers < count) workers *= 2;
    return workers;
}

// The tree over `count` values that lie `stride` apart, by the threads of a block that have the
// same output: each takes a whole node. Valid in the first of them.
static inline __device__ float lk_cuda_join_tree(const float *from, uint64_t stride, uint32_t count,
                                                 uint32_t workers) {
    const uint32_t outputs = LK_CUDA_JOIN_THREADS / workers;
    const uint32_t output = threadIdx.x % outputs, worker = threadIdx.x / outputs;
    const uint32_t run = lk_cuda_join_run(count, workers);
    if (count <= 8) return lk_cuda_join_eight(from, stride, count);
    lk_cuda_tree tree;
    tree.leaves = 0;
    for (uint32_t n = worker * run; n < LK_MIN((worker + 1) * run, count); n += 8) {
        float eight = lk_cuda_join_eight(from + n * stride, stride, LK_MIN(count - n, 8u));
        lk_cuda_tree_leaf(&tree, eight);
    }
    __syncthreads();  // the sums of the output before have been read
    lk_cuda_shared[worker * outputs + output] = lk_cuda_tree_finish(&tree);
    __syncthreads();
    return lk_cuda_join_eight(lk_cuda_shared + output, outputs, (count + run - 1) / run);
}

#endif
