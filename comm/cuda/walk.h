// walk.h - the ops of a step as launches, in the order of ops/graph/execute.c and comm/step/step.c.
// Part of comm/cuda/step.h; nobody else's business.
#ifndef LOCKSTEP_COMM_CUDA_WALK_H
#define LOCKSTEP_COMM_CUDA_WALK_H

#include "comm/cuda/beside.h"
#include "comm/cuda/left.h"

// The nodes held, and where: entry i of the counter lies in slot[i]. The blocks of a microbatch
// take free slots before they are joined.
typedef struct lk_cuda_nodes {
    lk_counter counter;
    uint32_t slot[LK_BLOCKS_MAX];
    bool taken[LK_CUDA_LOSSES];
} lk_cuda_nodes;

// What the launches of one replica's microbatches have in common.
typedef struct lk_cuda_walk {
    lk_cuda_stream s;
    lk_cuda_beside beside;
    lk_cuda_left left;
    lk_frame frame;  // addresses on the device
    lk_cuda_lane lane;
    const lk_program *program;
    lk_cuda_source source;
    uint32_t source_first;  // the example of the batch or microbatch at which the source begins
    uint32_t *broken;       // lk_cuda_broken
    bool train;
    // Where nodes lie: slot i at values + i * stride, of which `floats` are added.
    float *values;
    uint64_t stride, floats;
    uint32_t slot_count;
    lk_cuda_nodes *nodes;
    uint32_t fresh[LK_BLOCKS_MAX];  // slots of the microbatch's blocks, from left to right
    // What joins them to the nodes held: slot [0] = slot [0] + slot [1], in this order.
    uint32_t join_count, joins[LK_BLOCKS_MAX][2];
} lk_cuda_walk;

// A step being recorded: all but the ops of its last microbatch is enqueued at the start, so that
// these can be enqueued bucket by bucket (comm/cuda/exchange.h).
typedef struct lk_cuda_recording {
    lk_cuda_step *c;
    uint32_t which;  // 0 of full steps, 1 of short ones
    uint64_t step;
    lk_cuda_walk walk;
    lk_cuda_nodes nodes;
    lk_microbatch last;
    bool has_last;  // a short step may have no grain here
    uint32_t op;    // the next of the last microbatch
    int error;      // a cudaError_t
} lk_cuda_recording;

// LOAD to BACKWARD of a step like `step`. After the start it is known which nodes there will be:
// c->host.nodes lists them for the device. Then the ops of the last microbatch below `end_op`, and
// the joins of floats [begin, end) of its nodes.
void lk_cuda_record_start(lk_cuda_recording *r, lk_cuda_step *c, uint32_t which, uint64_t step);
void lk_cuda_record_ops(lk_cuda_recording *r, uint32_t end_op);
void lk_cuda_record_joins(lk_cuda_recording *r, uint64_t begin, uint64_t end);

// Where the GPUs exchange: on `queue`, the whole nodes that this GPU's grains make, the partition
// that it owns, and what it tells the others.
void lk_cuda_record_nodes(lk_cuda_recording *r, lk_cuda_queue *queue, uint64_t begin, uint64_t end);
void lk_cuda_record_sums(lk_cuda_recording *r, lk_cuda_queue *queue, uint64_t begin, uint64_t end);
void lk_cuda_record_report(lk_cuda_recording *r, lk_cuda_queue *queue);

// Where the exchange is staged: those nodes to the host, and the finished sums, once they lie there
// at `sums`, to this GPU.
void lk_cuda_record_give(lk_cuda_recording *r, lk_cuda_queue *queue, uint64_t begin, uint64_t end);
void lk_cuda_record_take(lk_cuda_recording *r, const float *sums);

// REDUCE, as far as it is this GPU's, and APPLY.
void lk_cuda_record_update(lk_cuda_recording *r);

// Enqueues what an evaluation begins with: kernels divided by their norms, and what regularizers
// add to its loss. Returns a cudaError_t.
int lk_cuda_walk_begin(lk_cuda_step *c);

// Enqueues the forward ops of a microbatch up to the loss; its blocks join `nodes`. `half` of the
// test set's ring has the examples. Returns a cudaError_t.
int lk_cuda_walk_forward(lk_cuda_step *c, const lk_microbatch *microbatch, uint32_t half,
                         lk_cuda_nodes *nodes);

// Enqueues the ops that make a value, of kernels divided anew. Returns a cudaError_t.
int lk_cuda_walk_value(lk_cuda_step *c, const lk_cuda_making *making);

#endif
