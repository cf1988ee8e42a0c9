// train.h - a whole training of a configured run: its directory, logs, checkpoints, hot state, what
// it goes on from, the loop over steps, the end. One way for the command line and for every other
// program. Host only. It prints nothing, ends no process and handles no signal: what is to be known
// is told to the caller, who also says when to stop.
//
//   lk_train_gather      who takes part: alone, or the workers of a cluster; configures the run
//   lk_train             from the plan to the last evaluation
//   lk_train_close       logs, directory
//   lk_train_end         takes leave of the other workers; lk_run_close is the caller's
#ifndef LOCKSTEP_APPS_RUN_TRAIN_H
#define LOCKSTEP_APPS_RUN_TRAIN_H

#include "apps/run/best.h"
#include "apps/run/collective.h"
#include "apps/run/hot.h"
#include "apps/run/journal.h"
#include "apps/run/run.h"
#include "apps/run/save.h"
#include "apps/run/say.h"
#include "comm/cluster/cluster.h"
#include "io/line_sum.h"

enum { LK_TRAIN_HASHES_BYTES = LK_RUN_LOG_BYTES / 2 };

// What a training tells its caller, always on the caller's thread. Before the seal a handler may
// allocate, after it nothing may.
typedef enum lk_train_kind {
    LK_TRAIN_OPENED,      // its directory is held; the leader's
    LK_TRAIN_LAID_OUT,    // its files are open, `step` is what it goes on from; the leader's
    LK_TRAIN_CONNECTED,   // .. and its GPUs are; the leader's
    LK_TRAIN_READY,       // start-up is over, the seal comes next; every worker's
    LK_TRAIN_BEGUN,       // the loop begins
    LK_TRAIN_PROGRESS,    // before and after each step, and after what took time between two
    LK_TRAIN_BETWEEN,     // between two steps
    LK_TRAIN_STEP,        // a step that is shown: `result`, `since`, `seconds`
    LK_TRAIN_EVALUATION,  // `result`, `seconds` of training so far
    LK_TRAIN_CHECKPOINT,  // `digest`
    LK_TRAIN_STOPPED,     // as it was asked to, and saved: `signal`
    LK_TRAIN_END,         // `result` of the test set or no examples, `since`, `seconds`, hashes
} lk_train_kind;

typedef struct lk_train_event {
    lk_train_kind kind;
    const lk_run *run;
    const char *run_dir;           // the leader's
    uint64_t first, step, steps;   // where this process began; finished; in all
    uint64_t saved;                // step of the last checkpoint, or UINT64_MAX
    const lk_step_result *result;  // NULL: not known
    uint64_t since;                // steps since the last shown; at the end, of this process
    double seconds;                // .. which they took
    double start, step_began, evaluating;  // lk_seconds; seconds spent outside training
    const char *digest, *state_hash;
    uint32_t signal;
    bool leads;  // of several workers one writes and speaks
} lk_train_event;

typedef struct lk_train_calls {
    void *context;
    void (*event)(void *context, const lk_train_event *event);
    // Asked before each step and in an evaluation: a signal to stop by, or 0. Not NULL.
    uint32_t (*stop)(void *context);
    // After a checkpoint: may it go on? An error ends it, where nothing is lost. NULL: yes.
    lk_status (*may_go_on)(void *context, lk_error *error);
    lk_say say;
} lk_train_calls;

typedef struct lk_train_options {
    const char *run_dir;     // NULL: runs/NAME
    const char *metrics_file;  // which the caller writes: compared with what is read; NULL: none
    uint64_t max_memory;     // bytes; 0: what there is
    bool resume, fresh, resume_or_start, seal;
    bool is_new;  // a run that is there is refused, whatever the configuration says
    bool require_lock;  // refuse to start where its memory cannot be locked
    uint32_t step_timeout_seconds;
    lk_train_calls calls;
} lk_train_options;

// What the loop carries from step to step. One that was not opened is closed without harm; it is
// written whole at the start, so that no page of it is touched for the first time in a run.
typedef struct lk_trainer {
    lk_run *run;
    lk_train_calls calls;
    lk_run_dir dir;
    lk_line_log metrics, hashes;
    lk_journal journal;
    lk_saver saver;
    lk_hot hot;
    char line[LK_TRAIN_HASHES_BYTES + LK_LINE_SUM_BYTES];  // of hashes.jsonl
    uint64_t done;                    // steps finished, in all
    uint64_t total;
    uint64_t first;  // steps that were finished when this process began
    uint64_t saved;  // step of the last checkpoint, or UINT64_MAX
    lk_error unsaved;  // why the last save failed, or LK_OK
    lk_error unrecorded;  // .. the trace, or where the time went, could not be written
    bool low, moved;   // said: little room on the disk; the directory lies elsewhere
    bool evaluated;  // the run that is resumed has logged the evaluation of step `first`
    bool owes;       // it was asked to stop in an evaluation, which the resumed run makes
    lk_hot_choice from;  // the hot state that this process began from, if it did
    double start, last_log, last_save, step_began;
    uint64_t last_log_step;
    lk_best best[LK_BESTS];
    lk_step_result tested;  // the evaluation after `tested_at` steps, by this process
    uint64_t tested_at;     // UINT64_MAX: none yet
    uint32_t stop;   // the signal this run stops by, or 0
    bool leads;      // of several workers one writes and speaks
    bool running;    // start-up is over: from here on workers can fail alone
    bool over;       // it came to a common end: nothing of it is needed in memory
    double evaluating;  // seconds spent outside training since `start`
    uint32_t step_timeout_seconds;
} lk_trainer;

// Before all else; nothing is opened.
void lk_trainer_make(lk_trainer *trainer, lk_run *run, const lk_train_options *options,
                     bool leads);

// A configured run, from its plan to its end. LK_INTERRUPTED, LK_TERMINATED, LK_HANGUP: it was
// stopped by that signal, and saved.
lk_status lk_train(lk_trainer *trainer, const lk_train_options *options, lk_error *error);
// Always, given lk_train's status: writes what the logs hold, lets go of the directory.
lk_status lk_train_close(lk_trainer *trainer, lk_status status, lk_error *error);
// Always, given lk_train_close's status: returns how this process ends, which is another error
// where the other workers could not be left in order. What all workers find at the same step is the
// leader's to say: lk_train_hush takes it from the others.
lk_status lk_train_end(lk_trainer *trainer, lk_status status, lk_error *error);
void lk_train_hush(const lk_trainer *trainer, lk_status status, lk_error *error);

// How a training ends that was asked to stop by this signal, and whether a status is such an end.
lk_status lk_stop_status(uint32_t signal_number);
bool lk_is_stop(lk_status status);

// --- who takes part ------------------------------------------------------------------------------

// How the workers of a cluster come together: there is one alone; a launcher of MPI has started
// them; or they meet where the description says that rank 0 is.
typedef enum lk_gathering { LK_ALONE, LK_LAUNCHED, LK_MEETING } lk_gathering;

typedef struct lk_gather_options {
    lk_config_options config;
    const char *cluster;  // --cluster FILE, or NULL: as the environment says
    lk_mpi_options mpi;
    lk_collective collective;
    bool insecure;
} lk_gather_options;

// Who takes part, by the description and the environment.
lk_status lk_gather_read(const lk_gather_options *options, lk_cluster *cluster,
                         lk_gathering *how, lk_error *error);
// Meets them, and configures the run with what they have.
lk_status lk_gather(lk_run *run, const lk_gather_options *options, const lk_cluster *cluster,
                    lk_gathering how, lk_error *error);

#endif
