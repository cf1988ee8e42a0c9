// gpu.h - what one GPU of a run holds: where its regions lie, its queues and graphs, how far it is.
// Host only; needs no CUDA header. Whose steps it makes: comm/cuda/step.h; their ops as launches:
// comm/cuda/walk.h.
#ifndef LOCKSTEP_COMM_CUDA_GPU_H
#define LOCKSTEP_COMM_CUDA_GPU_H

#include "arena/arena.h"
#include "arena/cuda_memory.h"
#include "comm/cuda/exchange.h"
#include "comm/cuda/queue.h"
#include "comm/step/step.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/table.h"
#include "ops/cuda/tasks.h"

// Examples a replica holds at once, where nobody says: enough work for a large GPU, and activations
// of small networks that stay in its second-level cache.
enum { LK_CUDA_MICROBATCH_EXAMPLES = 1024 };

// Kinds of steps, each with a graph and tables of its own: number 2 * k are full steps of objective
// k, 2 * k + 1 its short ones.
enum { LK_CUDA_KINDS = 2 * LK_OBJECTIVES_MAX };

// Nodes of the loss that an evaluation holds, each in a cache line of its own.
enum { LK_CUDA_LOSSES = 2 * LK_BLOCKS_MAX, LK_CUDA_LOSS_FLOATS = 16 };

// Ops that run beside the others and that nobody has waited for (comm/cuda/beside.h), at most.
enum { LK_CUDA_BESIDE_MAX = 16 };

// A value of an objective, made of another one's rows in host memory: by the forward ops
// [begin, end) that are of it.
typedef struct lk_cuda_making {
    uint32_t begin, end;
    uint8_t value;
    uint32_t from, to;  // tensors
    uint32_t examples;  // at most a microbatch
} lk_cuda_making;

// What the plan of a device depends on besides the program.
typedef struct lk_cuda_needs {
    uint64_t first, examples;  // of the training set, kept on the device; 0 examples: streamed
    bool evaluation;           // there is a test set
    uint64_t test_examples;    // of it; 0: not known yet, which a plan need not
    uint64_t made_bytes;       // of a row of a value that is made of another; 0: none is
    uint32_t made_objective;   // .. whose value it is,
    lk_cuda_making made;       // and how it is made, of any number of examples
} lk_cuda_needs;

// Where things lie on the device,
typedef struct lk_cuda_regions {
    lk_cuda_state *states;  // [0] of training, [1] of evaluation
    lk_cuda_param *params;  // (objectives, entries)
    lk_cuda_node *nodes;    // (kinds, table_max), see comm/cuda/walk.c
    lk_cuda_parts *parts;   // (kinds, entries), and what they are of: comm/cuda/left.h; or NULL
    float *left;            // (left_floats)
    uint8_t *device, *replicas;
    uint64_t replica_bytes;
    uint8_t *images;           // of the input ring (slots, global_batch, image), or NULL: of image
                               // batches, where the rest of the ring is of steps
    uint32_t *labels;          // (slots, global_batch, row of labels), or NULL
    lk_step_scalars *scalars;  // (slots)
    lk_cuda_norms norms;       // where the update of an objective asks for any
    lk_cuda_penalty penalty;   // where a layer that an objective trains has a regularizer
    uint8_t *all_images;       // of the data set that lies here, or NULL
    uint32_t *all_labels;
    uint64_t *shards;          // of its order "sharded": the first example of each, or NULL
    uint8_t *test_images;   // (2, microbatch_examples, image)
    uint32_t *test_labels;  // (2, microbatch_examples, row of labels)
    float *test_losses;     // (LK_CUDA_LOSSES, LK_CUDA_LOSS_FLOATS)
    uint8_t *workspace;     // of cuBLAS, in the fast arithmetic, or NULL
    uint8_t *tables;        // (kinds, LK_CUDA_TABLE_BYTES_MAX): comm/cuda/persist.h; or NULL
    lk_cuda_meeting *meeting;
    uint32_t *broken;  // (objectives) of the checking mode (comm/cuda/guards.h), or NULL
    // With others, else NULL:
    float *blocks;        // (slots of this GPU, node_floats): its whole nodes
    float *inbox;         // (slots of all others, floats of its partition): theirs; staged: NULL
    float *sums;          // (node_floats)
    lk_gpu_report *reports;  // (peers); staged: of this GPU, then of all
} lk_cuda_regions;

// A node that a replica holds after its microbatches.
typedef struct lk_cuda_held {
    lk_node node;
    const float *values;  // on the device
} lk_cuda_held;

// .. and in the host's arena. The block from `pinned` on is known to the GPU.
typedef struct lk_cuda_host {
    uint8_t *pinned;
    uint64_t pinned_bytes;
    uint8_t *images;
    uint32_t *labels;          // of resident data what they go by at the start
    lk_step_scalars *scalars;
    uint8_t *test_images;
    uint32_t *test_labels;
    float *logits;            // (microbatch_examples, what is shown of an example)
    uint8_t *made;            // (microbatch_examples, made_bytes), of the first GPU
    float *losses;            // (LK_CUDA_LOSSES, LK_CUDA_LOSS_FLOATS)
    lk_cuda_result *results;  // (slots)
    lk_cuda_state *state;
    lk_cuda_param *params;
    lk_cuda_node *nodes;
    lk_cuda_parts *parts;
    uint8_t *tables;  // as the device's
    uint32_t *broken;
    // Where the exchange is staged, else NULL:
    float *blocks;        // (slots of this GPU, node_floats)
    lk_gpu_report *reports;  // of this GPU, then of all
    float *sums;          // (node_floats), for all GPUs of a worker: of the first alone
    uint8_t *plans;       // tables of cuBLAS's plans, in the fast arithmetic
    lk_cuda_held *held;   // (kinds, node_max)
} lk_cuda_host;

// Steps as launches of the persistent kernel: comm/cuda/persist.h.
typedef enum lk_cuda_persistence {
    LK_CUDA_PERSISTENT_OFF,
    LK_CUDA_PERSISTENT_AUTO,  // where it is reckoned to be quicker
    LK_CUDA_PERSISTENT_ON,
} lk_cuda_persistence;

typedef struct lk_cuda_persist {
    lk_cuda_persistence wanted;  // set by the group
    bool fits, is;               // there is such a kernel of these steps; they are its launches
    char why[192];               // .. there is none
    uint32_t launches, levels;   // of full steps, one of each objective
    double seconds, graph_seconds;  // that these are reckoned to take
    uint32_t blocks;
    uint64_t bytes[LK_CUDA_KINDS];  // of a table
    uint32_t pending, kind;  // steps begun that wait for their launch, all of this kind
} lk_cuda_persist;

// Waiting for a device that others can keep waiting: asked again and again while nothing happens,
// with the seconds that it has lasted. Sleeps a little; other than LK_OK ends the wait.
typedef lk_status (*lk_cuda_watch)(void *context, double seconds, lk_error *error);

typedef struct lk_cuda_step {
    const lk_program *program;  // in use: that of the step or evaluation at hand
    const lk_source *source;  // of the training examples
    lk_cuda_needs needs;
    // Set by the group: replicas [first_replica, first_replica + replicas) of the process.
    lk_cuda_device device;
    uint32_t first_replica, replicas;
    lk_worker share;                   // these replicas among those of all workers
    const lk_cuda_exchange *exchange;  // NULL: nothing is sent to another GPU
    bool staged;                       // what others need goes through the host
    uint32_t peer;                     // of the exchange; staged: this GPU's number in its worker
    lk_cuda_watch watch;               // NULL: the device waits for nobody
    void *watcher;

    lk_arena arena;       // the ledger of the device,
    lk_arena host_arena;  // and of what it has in the host's arena
    uint8_t *block;
    lk_cuda_regions at;
    lk_cuda_host host;
    uint8_t *mirror;          // of the device region, in the host's arena
    lk_cuda_result *results;  // the ring as the device sees it
    uint64_t external_bytes;   // held on the device besides the plan, by the driver and others
    uint32_t slots;           // of the rings
    uint32_t batch_first, batch_count;  // examples of a batch that its replicas compute
    uint32_t node_max, table_max;       // nodes held at most; entries of a table of nodes
    uint32_t examples[LK_CUDA_KINDS];   // of such a step; 0: there is none
    uint32_t held_count[LK_CUDA_KINDS], node_count[LK_CUDA_KINDS];
    uint32_t block_count[LK_CUDA_KINDS], block_first[LK_CUDA_KINDS][LK_BLOCKS_MAX + 1];
    lk_cuda_queue compute, copy, comm, beside;
    lk_fast fast;    // the arithmetic of a spec that is not strict
    bool dependent;  // launches: asked for, and, once it is open, known to the GPU
    bool rehearses;  // steps are walked to prepare them: launches do nothing
    lk_cuda_persist persist;
    uint64_t left_floats;  // of gradients left in parts; 0: none is
    lk_cuda_tasks *tasks;                    // NULL, or where launches are kept
    const lk_cuda_observer *observer;        // NULL, or who is told of launches instead of the GPU
    struct CUevent_st *copied[2], *done[2];  // of each half of the ring
    struct CUevent_st *tested[2];            // of each half of the test set's
    struct CUevent_st *forked, *joined;      // compute to comm and back
    struct CUevent_st *left, *passed[LK_CUDA_BESIDE_MAX];  // compute to beside, and each op there
    struct CUgraphExec_st *graph[LK_CUDA_KINDS];
    struct CUgraphExec_st *update[LK_CUDA_KINDS];  // the second half of a step that is staged
    uint64_t ahead;                    // steps before this one are in the ring, or were
    uint64_t next;                     // step that the device's state stands at
    bool asks;   // set by the group: somebody asks for a verdict on each step, and waits for it
    bool asked;  // .. when the device's state was written
    bool mirror_is_new;  // the mirror was written: the device must have it before the next step
    bool pinned;
} lk_cuda_step;

// Does somebody else compute a part of the batch, so that whole nodes and sums travel?
static inline bool lk_cuda_step_shares(const lk_cuda_step *c) { return c->exchange || c->staged; }

// Kinds of steps that the programs have; a step of one, false where there is none; that of a step.
static inline uint32_t lk_cuda_kinds(const lk_cuda_step *c) {
    return 2 * lk_exchange_programs(c->program);
}
bool lk_cuda_step_of_kind(const lk_program *program, uint32_t kind, uint64_t *step);
uint32_t lk_cuda_kind_of(const lk_program *program, uint64_t step);

// The table of the parameters of the program in use, on the device.
static inline lk_cuda_param *lk_cuda_params(const lk_cuda_step *c) {
    return c->at.params + (uint64_t)c->program->objective * lk_entry_count(c->program);
}

// lk_cuda_calls.kernels: the table of the run's arithmetic.
const lk_kernels *lk_cuda_step_kernels(const lk_run_spec *spec);

// Of an exchange: the slots of GPUs [0, peer), leaving out this one, before theirs in its inbox;
// the floats of its own partition.
uint64_t lk_cuda_slots_before(const lk_cuda_step *c, uint32_t peer);
uint64_t lk_cuda_own_floats(const lk_cuda_step *c);

// Block `block` of another GPU in the inbox of this one: where its partition begins.
float *lk_cuda_inbox(const lk_cuda_step *c, uint32_t peer, uint32_t block);

#endif
