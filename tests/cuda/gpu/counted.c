// counted.c - lk_host_counted() for a program that runs on a GPU: the program's calls of the CUDA
// runtime, wrapped when it is linked (see CMakeLists.txt), so that the tests of the host execution
// layer count the same things there. Launches of kernels are not counted: graphs hold them.
#include <cuda_runtime_api.h>

#include "tests/cuda/host/host.h"

enum { BLOCKS_MAX = 64 };

static lk_host_counts counts;
static struct {
    void *at;
    size_t bytes;
} blocks[BLOCKS_MAX];

// What the driver holds besides the blocks; other programs' memory counts, too.
lk_host_counts lk_host_counted(void) {
    size_t free_bytes = 0, all_bytes = 0;
    if (cudaMemGetInfo(&free_bytes, &all_bytes) != cudaSuccess) return counts;
    counts.driver_bytes = all_bytes - free_bytes - counts.live_bytes;
    return counts;
}

void lk_host_took_no_more(uint64_t driver_bytes) { (void)driver_bytes; }  // the tests look at it

void lk_host_ends_groups(void) {}  // what a real NCCL does with one that is open it says itself

// A call that takes memory of any kind, and one that waits.
#define COUNTED(what, name, parameters, arguments) \
    cudaError_t __real_##name parameters;          \
    cudaError_t __wrap_##name parameters;          \
    cudaError_t __wrap_##name parameters {         \
        counts.what++;                             \
        return __real_##name arguments;            \
    }

COUNTED(allocations, cudaHostAlloc, (void **at, size_t bytes, unsigned flags), (at, bytes, flags))
COUNTED(allocations, cudaHostRegister, (void *at, size_t bytes, unsigned flags), (at, bytes, flags))
COUNTED(allocations, cudaMallocAsync, (void **at, size_t bytes, cudaStream_t s), (at, bytes, s))
COUNTED(allocations, cudaStreamCreateWithFlags, (cudaStream_t * s, unsigned flags), (s, flags))
COUNTED(allocations, cudaEventCreateWithFlags, (cudaEvent_t * e, unsigned flags), (e, flags))
COUNTED(allocations, cudaGraphInstantiate,
        (cudaGraphExec_t * exec, cudaGraph_t graph, unsigned long long flags), (exec, graph, flags))
COUNTED(allocations, cudaFuncGetAttributes,
        (struct cudaFuncAttributes * attributes, const void *kernel), (attributes, kernel))
COUNTED(graph_launches, cudaGraphLaunch, (cudaGraphExec_t exec, cudaStream_t s), (exec, s))
COUNTED(synchronisations, cudaStreamSynchronize, (cudaStream_t s), (s))
COUNTED(synchronisations, cudaEventSynchronize, (cudaEvent_t e), (e))
COUNTED(synchronisations, cudaDeviceSynchronize, (void), ())

// The blocks of device memory, by size.

cudaError_t __real_cudaMalloc(void **at, size_t bytes);
cudaError_t __wrap_cudaMalloc(void **at, size_t bytes);
cudaError_t __wrap_cudaMalloc(void **at, size_t bytes) {
    const cudaError_t error = __real_cudaMalloc(at, bytes);
    counts.allocations++;
    for (int i = 0; i < BLOCKS_MAX && error == cudaSuccess; i++) {
        if (blocks[i].at) continue;
        blocks[i].at = *at;
        blocks[i].bytes = bytes;
        counts.live_bytes += bytes;
        break;
    }
    return error;
}

cudaError_t __real_cudaFree(void *at);
cudaError_t __wrap_cudaFree(void *at);
cudaError_t __wrap_cudaFree(void *at) {
    for (int i = 0; i < BLOCKS_MAX && at; i++) {
        if (blocks[i].at != at) continue;
        blocks[i].at = NULL;
        counts.live_bytes -= blocks[i].bytes;
    }
    return __real_cudaFree(at);
}
