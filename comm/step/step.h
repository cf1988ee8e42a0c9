// step.h - the scheduler: what every replica does in one step, in lockstep. Freestanding.
//
//   lk_step_compute(group, r)   LOAD, FORWARD, BACKWARD, for every replica r
//   ------------- all replicas have finished: gradients are whole, parameters are still old
//   lk_step_update(group, r)    REDUCE, APPLY, for every replica r: the partition that it owns
//   ------------- all replicas have finished: parameters are new
//
// Who calls these, in how many threads, changes no bit. The driver does (comm/step/driver.h), for
// replicas that are threads, or take turns.
#ifndef LOCKSTEP_COMM_STEP_STEP_H
#define LOCKSTEP_COMM_STEP_STEP_H

#include "arena/arena.h"
#include "comm/step/reduce.h"
#include "ops/graph/scale.h"

// Evaluation: sees the logits (count, classes) of examples [first, first + count); of a transducer,
// in their place, rows of u32: how many frames it has, the labels said, zeros (lk_program_shown).
typedef void (*lk_on_logits)(void *context, uint64_t first, uint32_t count, const float *logits);

// How far the first replica is with its grains of a step or an evaluation: for whoever looks
// meanwhile, from its own thread.
typedef struct lk_progress {
    volatile uint32_t done, all;
} lk_progress;

// The replicas of this process, among those that share a memory with them: the same ones, or the
// replicas of all workers of a host (program.h, `shared`). What those compute is known only after
// the others have said that they are done, which is not this module's business.
typedef struct lk_group {
    const lk_program *program;
    const lk_kernels *kernels;
    uint32_t replicas, sharers;
    uint32_t first;        // sharer first + r is replica r
    lk_frame *sharer;      // (sharers): of another process's, only `replica` and `counter` are used
    lk_frame *frames;      // (replicas): sharer + first
    lk_holding *holdings;  // (replicas, sharers): each replica's own table of all holders
    uint32_t *bad_param;   // (replicas): first parameter whose update was not finite, or LK_NONE
    lk_together together;  // `meet` NULL: replicas take turns, or their threads do not say so
    lk_on_logits on_logits;  // called by the replica that computed them; NULL: nobody looks
    void *on_logits_context;
    // May an evaluation be given up? The first replica asks between microbatches; NULL: it goes on
    // to its end. Of one that was given up there is no result.
    bool (*gives_up)(void *context);
    void *gives_up_context;
    bool given_up;
    lk_scale_state scale;      // before the step, where the model has one
    lk_step_scalars scalars;  // of the step under way: the first replica writes them as it starts
    // .. and what the kernels' regularizers add to the loss of a step or an evaluation (norms.h).
    float penalty;
    // Apart from what all replicas read: the first writes it after every microbatch.
    uint8_t apart[64];
    lk_progress progress;
} lk_group;

// What all replicas agree on before a weight is written.
typedef enum lk_verdict {
    LK_VERDICT_APPLY,
    LK_VERDICT_SKIP,    // nothing is written, and the run goes on with the next step
    LK_VERDICT_REPLAY,  // nothing is written, and the same step is next
    LK_VERDICT_STOP,    // nothing is written, and the run ends
} lk_verdict;

// What it is about: what was found, before a weight is written, that is not finite.
typedef struct lk_flags {
    uint32_t bad_op;     // the first op with such a result, or LK_NONE
    uint32_t bad_param;  // where norms are wanted: the first parameter whose norm is, or LK_NONE
    bool bad_mean;       // a metric's mean over the step is, such as the loss
} lk_flags;

static inline bool lk_is_flagged(const lk_flags *f) {
    return f->bad_op != LK_NONE || f->bad_param != LK_NONE || f->bad_mean;
}

typedef struct lk_step_result {
    uint64_t step;  // from 0: whoever says it adds 1. Set by who knows it
    const lk_program *program;  // whose objective it is of; NULL: of the only one, or not known
    uint32_t examples;
    uint32_t counts[LK_METRIC_COUNTS_MAX];  // of the metrics, by number (ops/metric.h)
    float means[LK_METRIC_MEANS_MAX];       // ... over the examples; the first is the loss
    const lk_metrics *names;    // of an evaluation that says more; NULL: those of the program
    float loss_scale;           // after it; 0: the model has none
    uint64_t skipped, replayed; // of the run so far
    const char *bad_tensor;                 // the first that was not finite, or NULL
    bool bad_loss;  // .. of an evaluation: it was the loss or another metric, and no output
    uint32_t stop;                          // a signal that some worker was asked to stop by, or 0
    bool pending;        // a device works on it still: only `stop` and `save_by_clock` are known
    bool save_by_clock;  // the leader's clock says that it is saved
    lk_verdict verdict;
} lk_step_result;

// What a run needs on any machine, with or without an operating system: the arena's first regions.
// Their bytes are the same on every target, so that what one machine plans another one runs.
typedef struct lk_core_regions {
    uint8_t *tables;         // for lk_program_build; not of a board, whose program is compiled
    uint8_t *group_tables;   // for lk_group_make
    uint8_t *device;         // the device region
    uint8_t *replicas;       // the replica regions,
    uint64_t replica_bytes;  // .. from the start of one to that of the next
} lk_core_regions;

// Takes from `arena`, or measures, what a board needs: all but the program's tables.
void lk_core_take(lk_arena *arena, const lk_program *program, lk_core_regions *regions);

// The two parts of a host, where the memory that is shared lies elsewhere: the tables, the
// program's first; the device region, for one process of all, and the replicas' regions.
void lk_core_take_tables(lk_arena *arena, const lk_program *program, lk_core_regions *regions);
void lk_core_take_memory(lk_arena *arena, const lk_program *program, bool device,
                         lk_core_regions *regions);

// Bytes of the group's tables for a program, and the group in `memory` (aligned to 64). `device`
// and `replica_regions` (region r at replica_regions + r * replica_stride) are the planned regions.
uint64_t lk_group_bytes(const lk_program *program);
void lk_group_make(lk_group *group, const lk_program *program, const lk_kernels *kernels,
                   const lk_source *source, uint8_t *device, uint8_t *replica_regions,
                   uint64_t replica_stride, void *memory);

// The program of the steps to come, until another one is said: of another objective, with the same
// regions. Between two steps, by one thread, while no replica computes.
void lk_group_use(lk_group *group, const lk_program *program);

// Where sharer `sharer`, of another process, has its replica region.
void lk_group_reach(lk_group *group, uint32_t sharer, uint8_t *replica);

// From now on replicas, all of them threads that compute at the same time, share the work of ops
// that are divided. `meet` as lk_together says.
void lk_group_share_work(lk_group *group, void (*meet)(void *context), void *context);

// From now on each replica fetches weights that others have updated while it computes what comes
// before the layer that reads them.
void lk_group_look_ahead(lk_group *group);

// Steps are counted from the start of the run; step 0 is the first.
void lk_step_compute(lk_group *group, uint32_t replica, uint64_t step);
// The same, for whoever looks on: `seen` is called after each op of each microbatch.
typedef void (*lk_on_op)(void *context, uint32_t replica, uint32_t op);
void lk_step_compute_seen(lk_group *group, uint32_t replica, uint64_t step, lk_on_op seen,
                          void *context);
// Once, between the two, where there are sharers of other processes: what nodes they hold.
void lk_step_foresee(lk_group *group, uint64_t step);
void lk_step_update(lk_group *group, uint32_t replica, uint64_t step);
// Between the two, for each replica that asks: what all of this process have found.
void lk_step_flags(const lk_group *group, uint32_t replica, uint64_t step, lk_flags *out);
// In its place where nothing is to be written: `skipped` says that the step counts as one that was
// (state: lk_steps_skipped), not one that is computed again.
void lk_step_pass(lk_group *group, uint32_t replica, bool skipped);
// Once a step and replica, where the verdict is known: the loss scale follows it. Or, of a device
// region that no replica of a group computes in:
void lk_step_follow(lk_group *group, uint32_t replica, lk_verdict verdict);
void lk_verdict_follow(const lk_program *program, uint8_t *device, lk_verdict verdict);

// The verdict of a model whose loss is scaled (lk_decide of driver.h; `context` is the group): an
// overflow skips the step, or replays it while the scale can fall, or stops the run.
lk_verdict lk_step_decide(const void *context, uint64_t step, const lk_flags *flags);
// After all replicas' updates.
lk_step_result lk_step_finish(lk_group *group, uint64_t step);

// Evaluation of examples [0, count) of `source`, in order; then the result over all of them.
void lk_evaluate_compute(lk_group *group, uint32_t replica, const lk_source *source,
                         uint64_t count);
lk_step_result lk_evaluate_finish(lk_group *group, uint64_t count);

// --- for whoever else runs a step -------------------------------------------------------------

// The microbatches of one replica: for (lk_microbatches w = lk_step_microbatches(..);
// lk_next_microbatch(&w);) .. w.microbatch ..
typedef struct lk_microbatches {
    const lk_program *program;
    uint64_t start, positions;  // the first position of the batch; how many are computed
    uint32_t at, end;           // grains left
    lk_microbatch microbatch;
} lk_microbatches;
lk_microbatches lk_step_microbatches(const lk_program *program, uint32_t replica, uint64_t step);
lk_microbatches lk_evaluate_microbatches(const lk_program *program, uint32_t replica,
                                         uint64_t count);
bool lk_next_microbatch(lk_microbatches *microbatches);

// The tensor in which a number was not finite, by the first op and the first parameter that saw one
// (LK_NONE: none); NULL where there is none.
const char *lk_bad_tensor(const lk_program *program, uint32_t bad_op, uint32_t bad_param);

// Is the mean of some metric over the step not finite? From those who hold the nodes of the sums,
// and with the penalty that is added to the loss.
bool lk_is_bad_mean(const lk_program *program, const lk_holding *sums, uint32_t holder_count,
                    uint32_t leaves, uint64_t examples, float penalty);

// The result over all of `examples`, from those who hold the nodes of the metrics' sums over
// `leaves`, from their counts, and with the penalty that is added to the loss.
lk_step_result lk_result_of(const lk_program *program, const lk_holding *sums,
                            uint32_t holder_count, uint32_t leaves, uint64_t examples,
                            const uint32_t counts[LK_METRIC_COUNTS_MAX], uint32_t bad_op,
                            uint32_t bad_param, float penalty);

// --- for exchange.h: the same steps, with other workers ----------------------------------------

// lk_step_compute in pieces: how far a replica has come with a step.
typedef struct lk_walk {
    lk_microbatches microbatches;
    uint32_t op;       // of the microbatch under way, the next; 0: none is under way
    lk_counter after;  // the nodes held after it
} lk_walk;
void lk_step_start(lk_group *group, uint32_t replica, uint64_t step, lk_walk *walk);
// Goes on up to and with op `last` of the replica's last microbatch: where none of its grains are
// in the step there is nothing to do. The piece up to the op before reduce_op is the end of all.
void lk_step_walk(lk_group *group, uint32_t replica, lk_walk *walk, uint32_t last);

// How many grains `examples` examples are; how many grains a step has.
uint32_t lk_grains_of(const lk_program *program, uint64_t examples);
uint32_t lk_step_grains(const lk_program *program, uint64_t step);

// Where the update asks for norms (norms.h): REDUCE alone, of what the replica owns, into G.
void lk_step_reduce(lk_group *group, uint32_t replica, uint64_t step);

// The elements of a parameter that a sharer owns. Where the update asks for norms both are
// multiples of LK_SLICE_TERMS, or the end.
typedef struct lk_owned {
    uint64_t first, end;
} lk_owned;
lk_owned lk_group_owned(const lk_group *group, uint32_t index, uint32_t sharer);

// The scalars of a parameter's update: those of the step, with what is its own.
static inline lk_step_scalars lk_group_scalars(const lk_group *group, uint32_t param) {
    lk_step_scalars own = group->scalars;
    own.regularizer = 2.0f * lk_param_l2(group->program, param);
    return own;
}
// Updates them, of a gradient whose sums lie at `sum`.
void lk_group_update(lk_group *group, uint32_t replica, const lk_step_scalars *scalars,
                     uint32_t index, uint64_t first, uint64_t count, const float *sum);

// Before a replica's part of REDUCE. Returns its table of the nodes that the replicas of this
// process hold.
const lk_holding *lk_group_begin_update(lk_group *group, uint32_t replica);

// The update of elements [first, first + count) of a parameter, whose gradient sums lie at `sum`.
void lk_group_apply(lk_group *group, uint32_t replica, uint64_t step, uint32_t param,
                    uint64_t first, uint64_t count, const float *sum);

// lk_result_of, with the parameters that this process updated.
lk_step_result lk_group_result(const lk_group *group, const lk_holding *sums, uint32_t holder_count,
                               uint32_t leaves, uint64_t examples,
                               const uint32_t counts[LK_METRIC_COUNTS_MAX], uint32_t bad_op);

// After the last replica's update, in the memory checking mode.
void lk_group_check(const lk_group *group);

#endif
