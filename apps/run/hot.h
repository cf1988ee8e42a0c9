// hot.h - when and where a run keeps its hot state (io/hot_state.h), and what a resumed run finds
// of it: every host keeps one, by its worker of lowest rank, all after the same steps; a resumed
// run takes the newest whole copy of any of its hosts, where it is newer than the checkpoints.
// Host only. Knows no checkpoint but by its step.
#ifndef LOCKSTEP_APPS_RUN_HOT_H
#define LOCKSTEP_APPS_RUN_HOT_H

#include "apps/run/run.h"
#include "apps/run/say.h"
#include "io/hot_state.h"

// The most of a run's time that keeping it may take where the configuration does not say how often,
// and what this is reckoned from (lockstep plan shows it). A step takes at least its
// multiplications at the processor's best, so the true share is smaller.
#define LK_HOT_SHARE            0.02
#define LK_HOT_BYTES_PER_SECOND 5e9
#define LK_HOT_SECONDS          1e-6

// The word that is kept beside a step.
enum { LK_HOT_EVALUATION_OWED = 1 };  // the step's evaluation was still to come

// What a host has.
typedef enum lk_hot_place {
    LK_HOT_NOT_ASKED,  // of this worker: another of its host keeps it, or nobody
    LK_HOT_COLD,       // there is none
    LK_HOT_HERE,
    LK_HOT_HELD,  // another process holds it, or it cannot be had
} lk_hot_place;

typedef struct lk_hot_offer {
    lk_hot_place place;
    lk_hot_copy copies[LK_HOT_COPIES];
} lk_hot_offer;

// What a resumed run goes on from.
typedef struct lk_hot_choice {
    bool found;
    uint32_t rank, copy;
    uint64_t step, word;
} lk_hot_choice;

typedef struct lk_hot {
    lk_run *run;
    lk_hot_state state;
    const lk_safetensors_tensor *tensors;
    uint64_t every;  // steps from one copy to the next; 0: off
    bool keeps;      // this worker does, for its host
    lk_hot_offer offers[LK_MPI_WORLD_MAX];
} lk_hot;

// run->hot_steps, hot_bytes, hot_seconds and hot_step_seconds, once the program is built.
void lk_hot_plan(lk_run *run);

// The leader has opened the run directory, nobody else looks at `run_dir`: all workers at the same
// point open what they keep and hear what each has. A host that cannot keep any says so,
// and the run goes on: what is promised is on disk.
void lk_hot_meet(lk_hot *hot, lk_run *run, const char *run_dir, bool resume, const lk_say *say);

// The leader's: says what this run keeps.
void lk_hot_print(const lk_hot *hot, const lk_say *say);

// The leader's: the newest copy on any host to which the run's logs reach; warns of what
// had to be passed over. `total`: steps of the whole run.
lk_status lk_hot_choose(const lk_hot *hot, const char *run_dir, uint64_t total, const lk_say *say,
                        lk_hot_choice *choice, lk_error *error);

// .. and that it is older than what the disk has.
void lk_hot_say_stale(const lk_hot_choice *choice, uint64_t step, const lk_say *say);

// All workers at the same point, the leader with its choice: its parameters and slots are then the
// leader's.
lk_status lk_hot_load(lk_hot *hot, lk_hot_choice *choice, lk_error *error);

// After a step: is it kept; does so. GPUs are done with it by then.
bool lk_hot_is_due(const lk_hot *hot, uint64_t done, bool last);
lk_status lk_hot_keep_step(lk_hot *hot, uint64_t done, uint64_t word, lk_error *error);

// Closes it: of a run that has come to its end, or was saved, it is removed.
void lk_hot_end(lk_hot *hot, bool over);

// Before the run in this directory is removed: its hot state, too.
void lk_hot_forget(const char *run_dir);

#endif
