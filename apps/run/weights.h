// weights.h - what lies in a run directory, seen from the run that it is of: where it is, whose it
// is, its newest weights, and how it is removed. Host only, start-up only: may use the heap.
#ifndef LOCKSTEP_APPS_RUN_WEIGHTS_H
#define LOCKSTEP_APPS_RUN_WEIGHTS_H

#include "apps/run/run.h"
#include "apps/run/say.h"

// Where a configured run lives without --run-dir; returns `path`.
const char *lk_default_run_dir(const lk_run *run, char *path, size_t bytes);

// Removes the run that lives in `path`, for --fresh. A directory without a recorded identity was
// not made by a run and is left for lk_run_dir_open to judge. LK_BAD_USAGE names what is of no run,
// and nothing is removed then; otherwise as lk_run_dir_open, which takes the lock first.
lk_status lk_remove_run(const char *path, lk_error *error);

// Does a run write something of this name right into its directory? It may be unfinished, NAME.tmp.
bool lk_run_owns(const char *name);

// The newest valid checkpoint of a run directory; warns of what had to be passed over. `ops`
// are lk_file_ops_posix, or those of a directory that is held.
lk_status lk_find_weights(const lk_file_ops *ops, const char *run_dir,
                          lk_safetensors_entry *entries, size_t capacity, const lk_say *say,
                          lk_checkpoint_found *found, lk_error *error);

// Training records with every checkpoint what its values hash to. LK_BAD_DATA: this one has not.
lk_status lk_check_recorded(const lk_safetensors *reader, lk_error *error);
// Adds to an error of identity which keys of this configuration differ from the recorded one.
void lk_explain_identity(const lk_run *run, const char *run_dir, lk_error *error);
// The steps of the run that is recorded there; 0 where that is not known.
uint64_t lk_recorded_steps(const lk_run *run, const char *run_dir);

// Does an export lie there, which names its layout, and which evaluation takes as well?
bool lk_is_export(const lk_file_ops *ops, const char *file);

// Loads weights into a started run: from one file, or from the newest valid checkpoint of a run
// directory; says which, and warns of what had to be passed over. *steps_done is what it recorded.
lk_status lk_load_weights(lk_run *run, const lk_file_ops *ops, const char *file,
                          const char *run_dir, const lk_say *say, uint64_t *steps_done,
                          lk_error *error);

#endif
