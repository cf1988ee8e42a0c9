// block.h - runs the blocks of a launch; between the runtime (host.cpp) and the threads
// (block.cpp).
#ifndef LOCKSTEP_HOST_BLOCK_H
#define LOCKSTEP_HOST_BLOCK_H

#include "cuda_runtime.h"

enum { LK_HOST_SHARED_BYTES = 227 * 1024, LK_HOST_THREADS_MAX = 1024 };

// Of the blocks of a cooperative launch, which are all there at once: threads, and blocks.
enum { LK_HOST_TOGETHER_MAX = 2048, LK_HOST_BLOCKS_MAX = 16 };

// A launch that may begin before the kernel ahead of it has ended: each of its threads waits for it
// (cudaGridDependencySynchronize), or the program is ended.
static inline bool lk_host_is_dependent(const cudaLaunchConfig_t *c) {
    return c->numAttrs > 0 &&
           c->attrs[0].id == cudaLaunchAttributeProgrammaticStreamSerialization &&
           c->attrs[0].val.programmaticStreamSerializationAllowed;
}

// Takes the stacks of the threads, once; false where there is no memory.
bool lk_host_block_open(void);

// All blocks of a grid, each with poisoned shared memory: one after another, or together.
void lk_host_grid_run(const cudaLaunchConfig_t *config, bool together,
                      void (*call)(const void *memory), const void *memory, uint64_t seed);

// Who runs grids: lk_host_grid_run, until somebody else is put here (tests/cuda/ptx).
extern void (*lk_host_run_grid)(const cudaLaunchConfig_t *config, bool together,
                                void (*call)(const void *memory), const void *memory,
                                uint64_t seed);

// For what stands in for a library of CUDA: is this call to fail (LOCKSTEP_HOST_CUDA_FAIL), is a
// stream captured, does a range lie in device memory; and an allocation that is to be counted.
bool lk_host_fails(const char *function);
bool lk_host_captures(void);
bool lk_host_on_device(const void *at, size_t bytes);
void lk_host_count_allocation(void);

// A mistake in the sources that run here: says so and ends the program.
[[noreturn]] void lk_host_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

// A pseudo-random word that follows from `state`, which it moves on.
static inline uint64_t lk_host_draw(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

#endif
