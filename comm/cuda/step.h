// step.h - whole steps on one GPU: its arena, the step recorded as a graph, examples fed ahead
// of it. Host only; needs no CUDA header.
//
// The program, its microbatches and its tree are those of comm/step/step.h, planned for a device
// (lk_layout.device). The replicas of a GPU share its time, one after another: the same
// grains, the same nodes, the same bits. LOAD to APPLY of a full step is recorded once, that of a
// short last step too, and replayed; nothing in between comes from the host but bytes:
//
//   host arena    | mirror of the device region | input ring | results | .. pinned
//   device arena  | state, tables | device region | replica 0 | replica 1 | .. | input ring | data
//   |
//
// The ring holds the examples of the next steps, in two halves: the host fills one while the device
// works on the other. With the data set resident on the device LOAD computes the order of the
// examples itself, and the ring holds the scalars of steps alone. Nobody waits for the device until
// a result is wanted. A step that is not finite stops all later ones on the device, so that the
// step and the tensor reported are those of a run that looks at every step.
//
// In the fast arithmetic all steps and the evaluation are walked once before anything is recorded,
// as a rehearsal: so cuBLAS has chosen and loaded all it needs, and later makes nothing.
//
// A driver takes memory when a kernel is first launched. So all that was recorded is tried once
// before the seal, and what is held then is what is measured: the memory of the last step.
//
// One of these is one GPU. Whoever runs a program, with one or several, talks to
// comm/cuda/group.h, which calls the functions below in this order:
//
//   plan, take_host        measure; as often as wanted; no GPU is needed
//   start                  its memory, its queues
//   (the group records the graphs)
//   ready                  what the device must have before the first step
//   try, try_kind .. tried each kind of step and the evaluation once, to no effect
//   begin .. result ..     steps
//   end
//
// The GPU is made the current one of the thread (lk_cuda_use) before every call but the first two.
#ifndef LOCKSTEP_COMM_CUDA_STEP_H
#define LOCKSTEP_COMM_CUDA_STEP_H

#include "comm/cuda/gpu.h"

// lk_layout.device_scratch of a program: the most that any of its ops needs.
lk_device_scratch lk_cuda_scratch(const lk_program *program);

// Takes the regions of the device's arena and of the host's part, or measures them. `program` is
// planned for a device. c->arena.used is what the GPU must have.
void lk_cuda_step_plan(lk_cuda_step *c, const lk_program *program, const lk_cuda_needs *needs);
void lk_cuda_step_take_host(lk_cuda_step *c, lk_arena *arena);

// Of the plan: the regions of the device's arena, at c->block.
void lk_cuda_step_take_regions(lk_cuda_step *c);

// After plan, and take_host with memory behind the arena: one block of the GPU's memory, kernels,
// queues. `mirror` is the host's device region, pinned already. LK_UNAVAILABLE where there is no
// room. `end` in any case.
lk_status lk_cuda_step_start(lk_cuda_step *c, const lk_source *source, uint8_t *mirror,
                             lk_error *error);
// What cuBLAS said, in the fast arithmetic: before what a stream says of it.
lk_status lk_cuda_step_check_fast(const lk_cuda_step *c, lk_error *error);
lk_status lk_cuda_step_ready(lk_cuda_step *c, lk_error *error);

// The trial: the device is as after a step that stopped the run; a step of a kind, the evaluation
// and the making of the program in use are handed to it; it has done them, and what others hold is
// measured.
void lk_cuda_step_try(lk_cuda_step *c);
void lk_cuda_step_try_kind(lk_cuda_step *c, uint32_t kind);
lk_status lk_cuda_step_try_evaluation(lk_cuda_step *c, lk_error *error);
lk_status lk_cuda_step_try_making(lk_cuda_step *c, lk_error *error);
lk_status lk_cuda_step_tried(lk_cuda_step *c, lk_error *error);

// The graphs end: at once, or when those under way do. Before NCCL, whose calls are in them.
void lk_cuda_step_forget(lk_cuda_step *c);
void lk_cuda_step_close(lk_cuda_step *c);

// Until a queue is empty or, if there is an event, has passed it.
lk_status lk_cuda_step_wait_for(lk_cuda_step *c, lk_cuda_queue *queue, struct CUevent_st *event,
                                lk_error *error);

// The mirror's parameters and slots for the device, if they are new; and back: waits for the steps
// begun.
void lk_cuda_step_push(lk_cuda_step *c);
lk_status lk_cuda_step_download(lk_cuda_step *c, lk_error *error);

// Hands a step to the device and returns; waits for the steps begun; then the result of the last,
// or of the first that was not finite.
lk_status lk_cuda_step_begin(lk_cuda_step *c, uint64_t step, lk_error *error);
lk_status lk_cuda_step_update(lk_cuda_step *c, uint64_t step, lk_error *error);  // staged
lk_status lk_cuda_step_wait(lk_cuda_step *c, lk_error *error);
lk_status lk_cuda_step_result(lk_cuda_step *c, lk_step_result *out, lk_error *error);

// After the wait, of the last step begun: its flags. What they held back was not written.
lk_status lk_cuda_step_flags(lk_cuda_step *c, lk_flags *out, lk_error *error);

// This GPU's share of an evaluation: the metrics' nodes of its replicas. Hands it to the device;
// after the wait, `sums` are of the nodes held, c->host.state says the rest.
typedef struct lk_cuda_evaluation {
    lk_counter nodes;
    float sums[LK_BLOCKS_MAX][LK_METRIC_SUMS_MAX];
    uint32_t slot[LK_BLOCKS_MAX];
} lk_cuda_evaluation;
lk_status lk_cuda_step_evaluate(lk_cuda_step *c, const lk_source *source, uint64_t count,
                                lk_on_logits on_logits, void *context, lk_cuda_evaluation *out,
                                lk_error *error);
lk_status lk_cuda_step_evaluated(lk_cuda_step *c, lk_cuda_evaluation *out, lk_error *error);

// Makes a value, of the first replica; its rows come and go at c->host.made. *bad_op: what a result
// was not finite of, or LK_NONE.
lk_status lk_cuda_step_make(lk_cuda_step *c, const lk_cuda_making *making, uint32_t *bad_op,
                            lk_error *error);

#endif
