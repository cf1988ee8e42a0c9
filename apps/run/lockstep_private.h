// lockstep_private.h - what is behind the handles of lockstep.h.
#ifndef LOCKSTEP_APPS_RUN_LOCKSTEP_PRIVATE_H
#define LOCKSTEP_APPS_RUN_LOCKSTEP_PRIVATE_H

#include "apps/run/include/lockstep/lockstep.h"
#include "apps/run/save.h"
#include "apps/run/train.h"

struct lockstep_config {
    struct json_t *root;   // jansson's
    char name[64];         // what errors call the document
    lk_dataset_held train, test;
    bool has_train, has_test;
    lk_error wrong;  // the first mistake in building it
};

struct lockstep_run {
    lk_run run;
    lk_saver saver;
    lk_trainer *trainer;  // of lockstep_train; NULL: there was none
    uint64_t max_memory;
    uint64_t done;     // steps finished
    lk_error broken;   // why it is over; LK_OK while it is not
    bool prediction_only, planned, started;
    int stop;                       // lockstep_stop was called
    char directory[LK_PATH_BYTES];  // of lockstep_save
};

// The status of a call, with its error as the caller sees it.
lockstep_status lk_lockstep_answer(const lk_error *found, lockstep_error *error);
// Before a call that works on the run: is it over, does this thread compute as it must?
lk_status lk_lockstep_enter(const lockstep_run *run, lk_error *error);

// What a result says, but for its step.
void lk_lockstep_result(const lk_metrics *names, const lk_step_result *from, lockstep_result *to);

#endif
