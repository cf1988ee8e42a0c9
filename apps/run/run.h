// run.h - a run put together: configuration, data, program, arena, replicas. Host only.
//
// Order of start-up:
//   lk_run_configure   document and command line; nothing is opened but the configuration
//   lk_run_plan        program, planned regions, and the arena's ledger measured without memory
//   lk_run_start       is there room? map and touch the arena, open the data, build for good,
//                      start replicas
//   lk_run_seal        from here on nothing allocates
#ifndef LOCKSTEP_APPS_RUN_RUN_H
#define LOCKSTEP_APPS_RUN_RUN_H

#include "apps/run/config.h"
#include "apps/run/laps.h"
#include "apps/run/trace.h"
#include "arena/arena.h"
#include "arena/host_memory.h"
#include "comm/cuda/group.h"
#include "comm/mpi/mpi.h"
#include "comm/step/driver.h"
#include "comm/threads/team.h"
#include "io/checkpoint.h"
#include "io/manifest.h"
#include "io/run_dir.h"

enum { LK_RUN_LOG_BYTES = 64 * 1024, LK_RUN_STATE_PAIRS = 13, LK_RUN_STACK_BYTES = 128 * 1024 };

// What a command wants from a run beyond the step itself; each adds bytes to the plan.
typedef struct lk_run_needs {
    bool checkpoints;  // buffers for saving
    bool logs;         // metrics and hashes
    bool predict;      // lk_run_predict, without a test set, too
    bool events;       // event files without logs: an evaluator's
} lk_run_needs;

// Who else works on the run. One worker, of rank 0, unless lk_run_join or lk_run_imagine said more.
typedef struct lk_run_workers {
    uint32_t world, rank;
    uint32_t host_first, host_replicas;  // replicas of this host: of lower ranks, of all
    lk_worker *list;                     // (world): start-up heap
    bool joined;                         // they are there, not only planned
    char why_staged[96];                 // why their GPUs do not exchange by themselves
} lk_run_workers;

typedef struct lk_run {
    lk_config config;
    lk_run_needs needs;
    const lk_kernels *kernels;  // of the host
    const lk_cuda_calls *cuda;  // not NULL: the replicas work on GPUs
    lk_cuda_choice gpu_choice;
    lk_cuda_group gpus;
    lk_layout layout;
    lk_plan_options plan_options;
    lk_run_workers workers;
    union {
        lk_program program;                      // of the first objective
        lk_program programs[LK_OBJECTIVES_MAX];  // of all
    };
    lk_arena arena;
    lk_host_block block;
    lk_group group;
    lk_exchange exchange;
    lk_driver driver;  // of all that compute
    uint32_t stop;     // a signal this process was asked to stop by: told to the other workers
    // The leader's clock says that the next step is saved: told, too, where GPUs exchange.
    bool save_by_clock;
    lk_error lost;   // why other workers or the GPU are not heard any more; LK_OK while they are
    bool evaluator;  // evaluation is another task's: the workers leave it out
    lk_team team;
    bool team_started;
    lk_laps laps;            // not of GPUs: nobody waits for their steps
    lk_dataset train, test;  // count 0: not open, or the configuration names no test set
    double next_scrub;       // when a chunk of them is looked at again
    bool scrubs_test;        // .. which of them
    uint64_t *shard_first;   // order "sharded": the spec's table; start-up heap
    uint8_t shards_sha256[LK_SHA256_BYTES];  // of the manifest's list of them
    lk_source train_source, test_source;
    uint8_t identity[LK_SHA256_BYTES];
    char identity_hex[LK_SHA256_HEX_BYTES];
    bool weights_changed;  // set as weights are about to be loaded: from then on they may be any
    uint32_t init_taken;   // entries of the program's params that came from init.file
    char weights_identity[LK_SHA256_HEX_BYTES];  // of the run that saved the weights loaded, or ""
    // Start of the arena's regions.
    lk_core_regions core;
    uint64_t core_bytes;  // all that a machine without an operating system takes: embedded.h
    uint8_t *team_tables, *stacks, *train_memory, *test_memory, *checkpoint_buffer,
        *checkpoint_tables, *exchange_tables, *inbox;
    char *log_buffers;
    uint8_t *journal_buffer;  // journal.h
    uint8_t *samples_buffer;  // generate.h
    lk_trace trace;          // trace.h
    // What this worker holds of the memory that the workers of a host share: MPI's, beside the
    // arena, but counted the same way. All of the window has a little more.
    lk_arena window;
    uint64_t window_bytes, inbox_bytes;
    uint64_t rendezvous_bytes;  // of workers that no launcher of MPI starts; else 0
    uint64_t train_bytes, test_bytes, checkpoint_bytes;
    uint64_t checkpoint_file_bytes;  // of one on disk, at most
    // The hot state (hot.h): steps from one copy to the next, 0: none; bytes of its file, if
    // this worker keeps its host's; and what the steps are reckoned from.
    uint64_t hot_steps, hot_bytes;
    double hot_seconds, hot_step_seconds;
    void *planning;  // start-up heap: the program's tables while nothing is mapped
} lk_run;

// Every function leaves `run` so that lk_run_close may be called, also after an error.
lk_status lk_run_configure(lk_run *run, const lk_config_options *options, lk_run_needs needs,
                           lk_error *error);
// After lk_run_configure, whose status it is given, where lk_mpi_start has been called: meets the
// other workers. Or, for a plan: as many workers as `world`, all with as many replicas as this one.
lk_status lk_run_join(lk_run *run, uint32_t world, uint32_t rank, lk_status mine, lk_error *error);
lk_status lk_run_imagine(lk_run *run, uint32_t world, lk_error *error);
// All workers hold the same run and data, or none goes on. After lk_run_start, given its status.
lk_status lk_run_agree(lk_run *run, lk_status mine, lk_error *error);
// The leader's parameters, slots and steps done for everybody; then the transport.
lk_status lk_run_connect(lk_run *run, uint64_t *steps_done, lk_error *error);
// The grains of a worker, and the shards that they read: all of them in order "global".
lk_grain_range lk_run_grains(const lk_run *run, uint32_t worker);
lk_grain_range lk_run_shards(const lk_run *run, uint32_t worker);
// Bytes of all memory that is planned: the arena, this worker's part of the window, the rendezvous,
// the hot state.
uint64_t lk_run_bytes(const lk_run *run);

lk_status lk_run_plan(lk_run *run, lk_error *error);
lk_status lk_run_start(lk_run *run, uint64_t max_memory, lk_error *error);
lk_status lk_run_seal(lk_run *run, bool enforce, lk_error *error);
void lk_run_close(lk_run *run);

// One step or one evaluation of the test set on all replicas of all workers. Where run->lost says
// that a worker or the GPU is gone, the result is empty and the run is over. A GPU may still be at
// work on the step when lk_run_step returns: the result is then pending. A step whose verdict is to
// replay it is computed again until there is another one; one that is skipped names no tensor.
lk_step_result lk_run_step(lk_run *run, uint64_t step);
lk_step_result lk_run_evaluate(lk_run *run, uint64_t steps_done);
// The number of examples, images or strips, of the test set; 0: there is none.
uint64_t lk_run_test_examples(const lk_run *run);
// As lk_run_evaluate, of these examples.
lk_step_result lk_run_evaluate_examples(lk_run *run, uint64_t steps_done, const lk_source *source,
                                        uint64_t count);

// Mixed precision: rounds the weights that products take, after parameters were loaded from `from`.
// LK_BAD_DATA where one is infinite then.
lk_status lk_run_round(lk_run *run, const char *from, lk_error *error);
// The same of initial values, given what lk_program_initialize returned: LK_BAD_CONFIG, where a run
// begins with them.
lk_status lk_run_check_initial(const lk_run *run, uint32_t bad, lk_error *error);

// In place of a label that nobody knows, entry `index` of all rows: a class that every model has;
// of sequences all frames, and no labels.
static inline uint32_t lk_any_label(const lk_model *m, uint64_t index) {
    return m->labels && index % lk_model_label_row(m) == 0 ? m->in_h : 0;
}

// The logits (count, classes) of examples that are no data set's. One process alone. In no order.
lk_status lk_run_predict(lk_run *run, const void *inputs, uint64_t count, float *logits,
                         lk_error *error);

// Waits for the steps begun: the result of the last, or of the first that was not finite.
lk_step_result lk_run_settle(lk_run *run);

// Between two steps; none of them allocates. LK_BAD_DATA where the examples are not any more what
// the run began with:
//   check_data  somebody changed a file in place: before a checkpoint, and at the end
//   scrub       a chunk of the bytes at a time, all of them in a long run; costs 0.2% at most
//   blame_data  after LK_NOT_FINITE, which is returned where the data are as they were: a label
//               that is no class makes the loss NaN
lk_status lk_run_check_data(lk_run *run, lk_error *error);
lk_status lk_run_scrub(lk_run *run, lk_error *error);
lk_status lk_run_blame_data(lk_run *run, lk_status status, lk_error *error);

// Parameters and slots as they are after the last step, in the host's device region: before anybody
// there looks at them. And the other way round: initial values, for the next step.
lk_status lk_run_fetch(lk_run *run, lk_error *error);
void lk_run_initialize(lk_run *run);

// Of the fast arithmetic; false in a strict run. The GPU and cuBLAS are known once the run has
// started.
bool lk_run_is_fast(const lk_run *run);
void lk_run_cublas(const lk_run *run, char *out, size_t bytes);

// Do the GPUs of several workers exchange by themselves?
bool lk_run_is_direct(const lk_run *run);

// The kernels that compute the steps, as --kernels calls them.
const char *lk_run_kernels(const lk_run *run);

// Have these kernels none of their own for an op, so that it runs by its reference? Not said of the
// kernels "reference", whose name says it.
bool lk_run_by_reference(const lk_run *run, const lk_op_type *type);
// What its replicas are, in words.
const char *lk_run_lanes(const lk_run *run);

// The GPU's part of this program (apps/run/devices.c), or NULL where it was built without.
const lk_cuda_calls *lk_cuda_linked(void);

// Total steps of the configured run.
uint64_t lk_run_steps(const lk_run *run);

// The first step after `last` whose metrics are logged, but for the run's last: by
// log_every_steps. Of several objectives a cycle of the schedule in which such a step lies is
// logged, with the last step of each objective in it.
uint64_t lk_run_logs(const lk_run *run, uint64_t last);

// The objective that a test set is evaluated by: the first that reads images, or the only one.
const lk_program *lk_run_evaluated(const lk_run *run);
// What that evaluation reports: of a GAN also the numbers of its generator.
const lk_metrics *lk_run_evaluated_metrics(const lk_run *run);

// See comm/step/hash.h.
void lk_run_digest(const lk_run *run, char hex[LK_SHA256_HEX_BYTES]);
void lk_run_state_hash(const lk_run *run, uint64_t steps_done, char hex[LK_SHA256_HEX_BYTES]);

// The number of pairs that a checkpoint records besides tensors.
size_t lk_run_pair_count(const lk_run *run);

// Parameters, slots and states as the checkpoint sees them: (lk_run_tensor_count) entries.
uint32_t lk_run_tensor_count(const lk_run *run);
void lk_run_tensors(const lk_run *run, lk_safetensors_tensor *out);

#endif
