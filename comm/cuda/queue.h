// queue.h - work in order on a GPU: queues, copies, events, and a queue's work kept as a
// graph. Host only; needs no CUDA header.
//
// Nothing here waits but the two calls that say so. A queue remembers the first failure, and does
// nothing more after it: one look (lk_cuda_queue_wait) after many calls is enough.
#ifndef LOCKSTEP_COMM_CUDA_QUEUE_H
#define LOCKSTEP_COMM_CUDA_QUEUE_H

#include "arena/base.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;     // what cudaStream_t,
struct CUevent_st;      // cudaEvent_t,
struct CUgraph_st;      // cudaGraph_t and
struct CUgraphExec_st;  // cudaGraphExec_t point to

typedef struct lk_cuda_queue {
    struct CUstream_st *stream;
    int code;  // 0, or the first cudaError_t
} lk_cuda_queue;

lk_status lk_cuda_queue_make(lk_cuda_queue *queue, lk_error *error);
void lk_cuda_queue_end(lk_cuda_queue *queue);

void lk_cuda_copy_in(lk_cuda_queue *queue, void *device, const void *host, uint64_t bytes);
void lk_cuda_clear(lk_cuda_queue *queue, void *device, uint64_t bytes);  // to zeros
void lk_cuda_copy_out(lk_cuda_queue *queue, void *host, const void *device, uint64_t bytes);

// A point in a queue that another queue, or the host, can wait for. One that was never set is
// passed at once.
lk_status lk_cuda_event_make(struct CUevent_st **event, lk_error *error);
void lk_cuda_event_end(struct CUevent_st *event);
void lk_cuda_event_set(lk_cuda_queue *queue, struct CUevent_st *event);
void lk_cuda_event_follow(lk_cuda_queue *queue, struct CUevent_st *event);
void lk_cuda_event_wait(lk_cuda_queue *queue, struct CUevent_st *event);  // the host waits

// Has the device passed it, or is the queue empty? True after a failure too.
bool lk_cuda_event_done(lk_cuda_queue *queue, struct CUevent_st *event);
bool lk_cuda_queue_done(lk_cuda_queue *queue);

// Between start and stop, what is enqueued is not done but recorded. What was recorded is kept once
// no queue of this thread is being recorded any more.
void lk_cuda_graph_start(lk_cuda_queue *queue);
struct CUgraph_st *lk_cuda_graph_stop(lk_cuda_queue *queue);
lk_status lk_cuda_graph_keep(lk_cuda_queue *queue, struct CUgraph_st *recorded,
                             struct CUgraphExec_st **graph, lk_error *error);
void lk_cuda_graph_launch(lk_cuda_queue *queue, struct CUgraphExec_st *graph);
void lk_cuda_graph_end(struct CUgraphExec_st *graph);

// Until the queue is empty. LK_INTERNAL with the first thing that failed in it.
lk_status lk_cuda_queue_wait(lk_cuda_queue *queue, lk_error *error);

#ifdef __cplusplus
}
#endif
#endif
