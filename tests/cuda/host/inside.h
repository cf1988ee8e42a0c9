// inside.h - between the runtime (host.cpp) and the stand-in for NCCL (nccl.cpp).
#ifndef LOCKSTEP_HOST_INSIDE_H
#define LOCKSTEP_HOST_INSIDE_H

#include "cuda_runtime.h"

enum { LK_HOST_DEVICES = 16 };

// Holds the runtime's lock in between; whether the function is to fail.
bool lk_host_enter(const char *function);
void lk_host_leave(void);

// With the lock held:
int lk_host_current_device(void);
int lk_host_stream_device(cudaStream_t stream);
int lk_host_stream_number(cudaStream_t stream);
bool lk_host_is_captured(cudaStream_t stream);
int lk_host_device_holding(const void *at, size_t bytes);  // -1: no device's memory
// What holds this byte and may be touched by the device that works; false: nothing.
bool lk_host_extent(const void *at, const uint8_t **first, size_t *bytes);
uint64_t lk_host_offset(const void *at);  // from the start of what holds it
bool lk_host_has_graphs(int device);      // that nobody destroyed
uint64_t lk_host_random(void);            // 0 without a seed
cudaError_t lk_host_enqueue_group(cudaStream_t stream, void *group);
void lk_host_move(void *to, const void *from, size_t bytes);  // from device to device
void lk_host_count_communicator(void);

// From now on the devices also go on where the host does not ask them to: other processes wait for
// what they send. False where there is no thread to be had.
bool lk_host_go_by_itself(void);

// What a group has to wait for: `devices` of this process (a bit each), which the runtime lets go
// on before it asks again; or other processes. `moved`: something of it was done.
struct lk_host_hold {
    uint32_t devices;
    bool moved, elsewhere;
};

// Of nccl.cpp: goes on with a group that is its stream's next item. False while it has to wait.
bool lk_host_group_run(void *group, lk_host_hold *hold);
size_t lk_host_nccl_bytes(int device);

#endif
