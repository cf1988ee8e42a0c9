// cuda_memory.h - a GPU's memory: is there a GPU, one block of it, host memory that it can read.
// Host only; needs CUDA to be built, no CUDA header to be used, and knows nothing of what is kept
// in the memory.
//
// The block is one cudaMalloc, sized by the plan. What else the driver takes (its context, the
// kernels' code, graphs) is not ours to plan: lk_cuda_memory says how much is gone.
#ifndef LOCKSTEP_ARENA_CUDA_MEMORY_H
#define LOCKSTEP_ARENA_CUDA_MEMORY_H

#include "arena/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LK_CUDA_MAJOR_MIN = 8 };  // of the compute capability: what the kernels are built for

typedef struct lk_cuda_device {
    char name[256];
    uint32_t number;           // of the devices this process sees
    uint32_t major, minor;     // compute capability
    uint32_t processors;       // streaming multiprocessors
    uint32_t driver, runtime;  // as CUDA writes versions: 13.0 is 13000
    uint64_t total_bytes;
    uint8_t id[16];  // no other GPU, or part of one, has it
} lk_cuda_device;

// Bytes of the device that nobody holds, and all of them.
typedef struct lk_cuda_memory {
    uint64_t free_bytes, total_bytes;
} lk_cuda_memory;

// GPUs that this process sees (CUDA_VISIBLE_DEVICES); 0 where there is no driver.
uint32_t lk_cuda_count(void);

// Makes GPU `number` of those the current one of this thread. LK_UNAVAILABLE where there is no
// driver or no such GPU.
lk_status lk_cuda_open(lk_cuda_device *device, uint32_t number, lk_error *error);

// One that was opened is the current one again: memory, queues and launches are made on it.
void lk_cuda_use(uint32_t number);
lk_status lk_cuda_memory_query(lk_cuda_memory *memory, lk_error *error);

// LK_UNAVAILABLE, with wanted and free bytes, where the device has no room. What lies in it
// means nothing.
lk_status lk_cuda_block_take(uint64_t bytes, uint8_t **block, lk_error *error);
void lk_cuda_block_give(uint8_t *block);

// Makes [host, host + bytes), aligned to pages, readable by all devices without a detour; *device
// is its address there.
lk_status lk_cuda_pin(void *host, uint64_t bytes, uint8_t **device, lk_error *error);
void lk_cuda_unpin(void *host);

// LK_OK for 0, else the error that CUDA calls so: LK_UNAVAILABLE for what the machine lacks,
// LK_INTERNAL for what a kernel did. `what` was being done.
lk_status lk_cuda_check(int code, const char *what, lk_error *error);

#ifdef __cplusplus
}
#endif
#endif
