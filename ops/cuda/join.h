// join.h - the tree over the parts of sums (sums.h), by the threads of a block. CUDA C++, included
// by sums.h, norm.h and update.h.
#ifndef LOCKSTEP_OPS_CUDA_JOIN_H
#define LOCKSTEP_OPS_CUDA_JOIN_H

#include "ops/cuda/device.h"

enum { LK_CUDA_JOIN_THREADS = 256, LK_CUDA_JOIN_WORKERS = 8 };

// The logarithm of how many threads of a block have the same output of `count` values.
static inline __device__ __host__ uint32_t lk_cuda_join_workers_log(uint32_t count) {
    uint32_t log = 0;
    while (1u << log < LK_CUDA_JOIN_WORKERS && 8u << log < count) log++;
    return log;
}

// The logarithm of how many values a worker joins: a power of two, 8 at least.
static inline __device__ __host__ uint32_t lk_cuda_join_run_log(uint32_t count,
                                                                uint32_t workers_log) {
    uint32_t run_log = 3;
    while ((uint64_t)1 << (run_log + workers_log) < count) run_log++;
    return run_log;
}

// The tree over `count` values that lie `stride` apart, by the threads of a block that have the
// same output: each takes a whole node. Valid in all of them. All threads of a block call it, with
// the same count.
static inline __device__ float lk_cuda_join_tree(const float *from, uint64_t stride, uint32_t count,
                                                 uint32_t workers_log) {
    const uint32_t outputs = LK_CUDA_JOIN_THREADS >> workers_log;
    const uint32_t output = threadIdx.x & (outputs - 1);
    const uint32_t worker = (threadIdx.x << workers_log) / LK_CUDA_JOIN_THREADS;
    const uint32_t run_log = lk_cuda_join_run_log(count, workers_log), run = 1u << run_log;
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
    return lk_cuda_join_eight(lk_cuda_shared + output, outputs, (count + run - 1) >> run_log);
}

#endif
