// judge.h - a classifier that says what images are (score.h): the weights of a run that was trained
// before, in memory of its own. Host only.
#ifndef LOCKSTEP_APPS_CLI_JUDGE_H
#define LOCKSTEP_APPS_CLI_JUDGE_H

#include "apps/run/run.h"
#include "apps/run/say.h"
#include "apps/cli/score.h"

typedef struct lk_judge {
    lk_run run;
    bool opened;
    uint32_t last_op;  // makes the logits of the last hidden layer's values
    uint32_t features, classes;
    float *hidden;  // (microbatch_examples, features): heap
} lk_judge;

// `path`: a run's directory, whose newest checkpoint is taken; or a checkpoint in one. `like`: the
// run whose images it is to see. Takes its memory; nothing is sealed yet. `judge` is zeroed before,
// and closed also after an error.
// LK_BAD_CONFIG: no classifier, or one of other images.
lk_status lk_judge_open(lk_judge *judge, const char *path, const lk_run *like, uint64_t max_memory,
                        const lk_say *say, lk_error *error);
void lk_judge_close(lk_judge *judge);

// Adds images (count, height, width, channels) to a set. Takes no memory. LK_NOT_FINITE.
lk_status lk_judge_add(lk_judge *judge, const uint8_t *images, uint64_t count, lk_moments *to,
                       lk_error *error);

#endif
