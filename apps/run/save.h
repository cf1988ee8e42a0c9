// save.h - a run's checkpoints: io/checkpoint.h's job, filled with what a run records. Its buffer
// and tables lie in the arena; nothing here allocates. A saver stays where it was made, since the
// job points into it.
#ifndef LOCKSTEP_APPS_RUN_SAVE_H
#define LOCKSTEP_APPS_RUN_SAVE_H

#include "apps/run/run.h"

typedef struct lk_saver {
    lk_run *run;
    lk_checkpoint_job job;
    lk_safetensors_pair pairs[LK_RUN_STATE_PAIRS];
    char digest[LK_SHA256_HEX_BYTES], state[LK_SHA256_HEX_BYTES];
    char numbers[4][24];
    char cublas[24];
} lk_saver;

// Of a started run that needs checkpoints.
void lk_saver_make(lk_saver *saver, lk_run *run, const char *directory);
// Digest, state hash and step as they are now: before every save.
lk_status lk_saver_look(lk_saver *saver, uint64_t steps_done, lk_error *error);

#endif
