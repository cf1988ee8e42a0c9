// cuda_step.h - whole steps on one GPU: its arena, the step recorded as a graph, examples fed ahead
// of it. Host only; needs no CUDA header.
//
// The program, its waves and its tree are those of comm/step.h, planned for a device
// (lk_layout.device). The replicas of the process share the GPU's time, one after another:
// the same grains, the same nodes, the same bits. LOAD to APPLY of a full step is recorded once,
// that of a short last step too, and replayed; nothing in between comes from the host but bytes:
//
//   host arena    | mirror of the device region | input ring | results | .. pinned
//   device arena  | state, tables | device region | replica 0 | replica 1 | .. | input ring | data
//   |
//
// The ring holds the examples of the next steps (or, with the data set resident on the device, only
// their numbers), in two halves: the host fills one while the device works on the other. Nobody
// waits for the device until a result is wanted. A step that is not finite stops all later ones on
// the device, so that the step and the tensor reported are those of a run that looks at every step.
//
// In the fast arithmetic all steps and the evaluation are walked once before anything is recorded,
// as a rehearsal: so cuBLAS has chosen and loaded all it needs, and later makes nothing.
//
// Intended usage, all through lk_cuda (see there):
//   plan, take_host        measure; as often as wanted; no GPU is needed
//   start                  the GPU, its memory, the graphs
//   upload                 parameters and slots of the mirror
//   begin .. settle ..     steps
//   download               before anybody reads the mirror
//   end
#ifndef LOCKSTEP_COMM_CUDA_STEP_H
#define LOCKSTEP_COMM_CUDA_STEP_H

#include "arena/arena.h"
#include "arena/cuda_memory.h"
#include "comm/cuda_queue.h"
#include "comm/step.h"
#include "ops/cuda/fast.h"
#include "ops/cuda/kernels.h"

// Examples a replica holds at once, where nobody says: enough work for a large GPU, and activations
// of small networks that stay in its second-level cache.
enum { LK_CUDA_WAVE_EXAMPLES = 1024 };

// Nodes of the loss that an evaluation holds, each in a cache line of its own.
enum { LK_CUDA_LOSSES = 2 * LK_BLOCKS_MAX, LK_CUDA_LOSS_FLOATS = 16 };

// What the plan of a device depends on besides the program.
typedef struct lk_cuda_needs {
    uint64_t examples;       // of the training set: kept on the device; 0: streamed
    bool evaluation;         // there is a test set
    uint64_t test_examples;  // of it; 0: not known yet, which a plan need not
} lk_cuda_needs;

// Where things lie on the device,
typedef struct lk_cuda_regions {
    lk_cuda_state *states;  // [0] of training, [1] of evaluation
    lk_cuda_param *params;  // (param_count)
    lk_cuda_node *nodes;    // (2, 2, node_max): of a full and a short step: gradients, losses
    uint8_t *device, *replicas;
    uint64_t replica_bytes;
    uint8_t *images;      // of the input ring (slots, global_batch, image), or NULL
    uint32_t *labels;     // (slots, global_batch), or NULL
    uint32_t *index;      // (slots, global_batch), or NULL
    uint8_t *all_images;  // of the whole data set, or NULL
    uint32_t *all_labels;
    uint8_t *test_images;   // (2, wave_examples, image)
    uint32_t *test_labels;  // (2, wave_examples)
    float *test_losses;     // (LK_CUDA_LOSSES, LK_CUDA_LOSS_FLOATS)
    uint8_t *workspace;     // of cuBLAS, in the fast arithmetic, or NULL
} lk_cuda_regions;

// .. and in the host's arena. The block from `pinned` on is known to the GPU.
typedef struct lk_cuda_host {
    uint8_t *pinned;
    uint64_t pinned_bytes;
    uint8_t *images;
    uint32_t *labels, *index;
    uint8_t *test_images;
    uint32_t *test_labels;
    float *logits;            // (wave_examples, classes)
    float *losses;            // (LK_CUDA_LOSSES, LK_CUDA_LOSS_FLOATS)
    lk_cuda_result *results;  // (slots)
    lk_cuda_state *state;
    lk_cuda_param *params;
    lk_cuda_node *nodes;
    uint8_t *plans;  // tables of cuBLAS's plans, in the fast arithmetic
} lk_cuda_host;

typedef struct lk_cuda_step {
    const lk_program *program;
    const lk_source *source;  // of the training examples
    lk_cuda_needs needs;
    lk_cuda_device device;
    lk_arena arena;  // the ledger of the device
    uint8_t *block;
    lk_cuda_regions at;
    lk_cuda_host host;
    uint8_t *mirror;           // of the device region, in the host's arena
    lk_cuda_result *results;   // the ring as the device sees it
    uint64_t foreign_bytes;    // held on the device besides the plan, by the driver and others
    uint32_t slots, node_max;  // of the rings; of whole nodes in a batch
    uint32_t examples[2];      // of a full and of a short step; 0: there is none
    uint32_t node_count[2];
    lk_cuda_queue compute, copy;
    lk_fast fast;    // the arithmetic of a spec that is not strict
    bool rehearses;  // steps are walked to prepare them: launches do nothing
    struct CUevent_st *copied[2], *done[2];  // of each half of the ring
    struct CUevent_st *tested[2];            // of each half of the test set's
    struct CUgraphExec_st *graph[2];
    uint64_t staged;     // steps before this one are in the ring, or were
    uint64_t next;       // step that the device's state stands at
    bool mirror_is_new;  // the mirror was written: the device must have it before the next step
    bool pinned, mirror_pinned;
} lk_cuda_step;

// The calls, in a table: a program may be linked without them (apps/devices.c).
typedef struct lk_cuda_calls {
    // lk_layout.device_scratch_floats of a program: the most that any of its ops needs.
    uint64_t (*scratch_floats)(const lk_program *program);

    // Takes the regions of the device's arena and of the host's part, or measures them. `program`
    // is planned for a device. c->arena.used is what the GPU must have.
    void (*plan)(lk_cuda_step *c, const lk_program *program, const lk_cuda_needs *needs);
    void (*take_host)(lk_cuda_step *c, lk_arena *arena);

    // arena/cuda_memory.h: is there a GPU?
    lk_status (*open)(lk_cuda_device *device, lk_error *error);

    // After open, plan, and take_host with memory behind the arena: one block of the GPU's memory,
    // kernels, graphs, the data set where it is resident. `mirror` is the host's device region,
    // aligned to a page. LK_UNAVAILABLE where there is no GPU or no room. `end` in any case.
    lk_status (*start)(lk_cuda_step *c, const lk_source *source, uint8_t *mirror, lk_error *error);
    void (*end)(lk_cuda_step *c);

    // The mirror's parameters and slots for the device, before the next step or evaluation; and
    // back: waits for the steps begun.
    void (*upload)(lk_cuda_step *c);
    lk_status (*download)(lk_cuda_step *c, lk_error *error);

    // Hands a step to the device and returns.
    lk_status (*begin)(lk_cuda_step *c, uint64_t step, lk_error *error);

    // Waits for the steps begun; the result of the last, or of the first that was not finite.
    lk_status (*settle)(lk_cuda_step *c, lk_step_result *result, lk_error *error);

    // Examples [0, count) of `source`, in order, forward only. on_logits may be NULL.
    lk_status (*evaluate)(lk_cuda_step *c, const lk_source *source, uint64_t count,
                          lk_on_logits on_logits, void *context, lk_step_result *result,
                          lk_error *error);
} lk_cuda_calls;
extern const lk_cuda_calls lk_cuda;

#endif
