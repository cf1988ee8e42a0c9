// queue.cu - the CUDA runtime behind queue.h. No kernels here.
#include "comm/cuda/queue.h"

#include <cuda_runtime.h>

#include "arena/cuda_memory.h"

// Does a call on a queue that has not failed, and notes its result.
#define ON(queue, call) \
    if ((queue)->code == 0) (queue)->code = (int)(call)

lk_status lk_cuda_queue_make(lk_cuda_queue *queue, lk_error *error) {
    queue->stream = NULL;
    queue->code = (int)cudaStreamCreateWithFlags(&queue->stream, cudaStreamNonBlocking);
    return lk_cuda_check(queue->code, "making a stream", error);
}

void lk_cuda_queue_end(lk_cuda_queue *queue) {
    if (queue->stream) (void)cudaStreamDestroy(queue->stream);
    queue->stream = NULL;
}

void lk_cuda_copy_in(lk_cuda_queue *queue, void *device, const void *host, uint64_t bytes) {
    if (bytes == 0) return;
    ON(queue, cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, queue->stream));
}

void lk_cuda_copy_out(lk_cuda_queue *queue, void *host, const void *device, uint64_t bytes) {
    if (bytes == 0) return;
    ON(queue, cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, queue->stream));
}

void lk_cuda_clear(lk_cuda_queue *queue, void *device, uint64_t bytes) {
    ON(queue, cudaMemsetAsync(device, 0, bytes, queue->stream));
}

// --- events ------------------------------------------------------------------------------------

lk_status lk_cuda_event_make(struct CUevent_st **event, lk_error *error) {
    *event = NULL;
    cudaError_t code = cudaEventCreateWithFlags(event, cudaEventDisableTiming);
    return lk_cuda_check(code, "making an event", error);
}

void lk_cuda_event_end(struct CUevent_st *event) {
    if (event) (void)cudaEventDestroy(event);
}

void lk_cuda_event_set(lk_cuda_queue *queue, struct CUevent_st *event) {
    ON(queue, cudaEventRecord(event, queue->stream));
}

void lk_cuda_event_follow(lk_cuda_queue *queue, struct CUevent_st *event) {
    ON(queue, cudaStreamWaitEvent(queue->stream, event, 0));
}

void lk_cuda_event_wait(lk_cuda_queue *queue, struct CUevent_st *event) {
    ON(queue, cudaEventSynchronize(event));
}

// Not there yet is no failure.
static bool is_done(lk_cuda_queue *queue, cudaError_t code) {
    if (code == cudaErrorNotReady) return false;
    ON(queue, code);
    return true;
}

bool lk_cuda_event_done(lk_cuda_queue *queue, struct CUevent_st *event) {
    return queue->code != 0 || is_done(queue, cudaEventQuery(event));
}

bool lk_cuda_queue_done(lk_cuda_queue *queue) {
    return queue->code != 0 || is_done(queue, cudaStreamQuery(queue->stream));
}

// --- graphs ------------------------------------------------------------------------------------

void lk_cuda_graph_start(lk_cuda_queue *queue) {
    ON(queue, cudaStreamBeginCapture(queue->stream, cudaStreamCaptureModeThreadLocal));
}

struct CUgraph_st *lk_cuda_graph_stop(lk_cuda_queue *queue) {
    cudaGraph_t recorded = NULL;
    ON(queue, cudaStreamEndCapture(queue->stream, &recorded));
    return recorded;
}

lk_status lk_cuda_graph_keep(lk_cuda_queue *queue, struct CUgraph_st *recorded,
                             struct CUgraphExec_st **graph, lk_error *error) {
    *graph = NULL;
    ON(queue, cudaGraphInstantiate(graph, recorded, 0));
    if (recorded) (void)cudaGraphDestroy(recorded);
    // The device's part of the graph is made now, so that no launch takes memory.
    ON(queue, cudaGraphUpload(*graph, queue->stream));
    return lk_cuda_check(queue->code, "recording a step as a graph", error);
}

void lk_cuda_graph_launch(lk_cuda_queue *queue, struct CUgraphExec_st *graph) {
    ON(queue, cudaGraphLaunch(graph, queue->stream));
}

void lk_cuda_graph_end(struct CUgraphExec_st *graph) {
    if (graph) (void)cudaGraphExecDestroy(graph);
}

lk_status lk_cuda_queue_wait(lk_cuda_queue *queue, lk_error *error) {
    ON(queue, cudaStreamSynchronize(queue->stream));
    return lk_cuda_check(queue->code, "a step", error);
}
