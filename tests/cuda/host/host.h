// host.h - the host execution layer: CUDA's runtime and device code carried out by the processor,
// so that the GPU's sources are tested where there is no GPU. What a test can see and set of it.
//
// Compile .cu files as C++ with this directory first on the include path. The same sources run; the
// layer is stricter than a device where that finds bugs:
//
// - Work that is enqueued waits until the host synchronises or polls (cudaEventQuery,
//   cudaStreamQuery; not a plain read of pinned memory), then runs in order: a host that reads too
//   early, or writes too early what the device has yet to read, sees it. (With a seed, a
//   part of the work runs at once, as a seed decides: the opposite mistake is to rely on the
//   delay.)
// - Device memory cannot be touched by the host: it is mapped only while device code runs, and only
//   that of the device whose code it is. Streams, events and graphs are of the device that was
//   current when they were made, and are refused on another one.
// - The streams of a captured graph go on in any order that its events allow, as the seed decides,
//   and all have to come back to the first.
// - Fresh device memory, and shared memory before each block, is signalling NaN. Bytes beyond an
//   allocation, or beyond the shared memory of a launch, are out of bounds for ASan.
// - Blocks run one after another; their order, and the order of a block's threads between barriers,
//   is decided by the seed. A barrier that not all threads reach ends the program with file, line,
//   function, block and threads.
// - The blocks of a cooperative launch are all there at once, as many as the seed lets fit, and go
//   on in any order where one waits for others (__nanosleep) and at some barriers of a block. In
//   any other launch a wait for other blocks ends the program, and so does one that nothing ends.
// - While a stream is captured, whatever a capture forbids fails.
// - The driver takes memory of a device for each kernel that runs there for the first time.
// - The layer takes no heap, and no memory map but for what is allocated through it.
#ifndef LOCKSTEP_HOST_HOST_H
#define LOCKSTEP_HOST_HOST_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Also from the environment, at the first call of the runtime:
//   LOCKSTEP_HOST_CUDA_SEED     as lk_host_seed
//   LOCKSTEP_HOST_CUDA_DEVICES  as lk_host_devices
//   LOCKSTEP_HOST_CUDA_MEMORY   bytes of a device (default 8 GiB)
//   LOCKSTEP_HOST_CUDA_NAME     of the device, where another one shall seem to be there
//   LOCKSTEP_HOST_CUDA_FAIL     FUNCTION:N, as lk_host_fail
//   LOCKSTEP_HOST_CUDA_STUCK    the Nth graph that is launched never begins, and none after it
//   LOCKSTEP_HOST_CUDA_LEAVE_OUT  FILE:LINE, a barrier that is left out: a test must then fail
void lk_host_seed(uint64_t seed);

// How many devices there are; 0: as on a machine with a driver but no GPU; -1: no driver.
void lk_host_devices(int count);

// The n-th call (1: the next) of the runtime function of this name fails, once, as it would.
void lk_host_fail(const char *function, uint32_t n);

typedef struct lk_host_counts {
    uint64_t allocations;  // cudaMalloc, cudaHostAlloc, cudaHostRegister, streams, events, graphs
    uint64_t live_bytes;   // of device memory
    uint64_t driver_bytes;  // .. that nobody asked for: of kernels and NCCL
    uint64_t launches;     // of kernels, captured ones not counted
    uint64_t graph_launches;
    uint64_t synchronisations;
    uint64_t barriers;  // that a block passed
} lk_host_counts;
lk_host_counts lk_host_counted(void);

// Ends the program where the driver has taken more than `driver_bytes` by now.
void lk_host_took_no_more(uint64_t driver_bytes);

// Ends the program where a group of NCCL's calls is left open: it would keep the next ones.
void lk_host_ends_groups(void);

#ifdef __cplusplus
}
#endif
#endif
