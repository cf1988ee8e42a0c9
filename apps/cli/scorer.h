// scorer.h - lockstep eval --judge: how a classifier scores what a run's generator makes, and the
// test set beside it.
#ifndef LOCKSTEP_APPS_CLI_SCORER_H
#define LOCKSTEP_APPS_CLI_SCORER_H

#include <jansson.h>

#include "apps/cli/command.h"
#include "apps/run/generate.h"
#include "apps/cli/judge.h"

typedef struct lk_scorer {
    bool on;
    lk_judge judge;
    lk_generator generator;
    uint64_t count;           // images that are made
    uint64_t test_count;
    lk_moments made, test[2]; // of the test set the first half and the second
    double *memory;           // heap
    uint8_t *images;          // (microbatch_examples) of the run: heap
    // Of the images made; of the test set, and of its halves from each other.
    double score, distance, test_score, test_distance;
} lk_scorer;

// Where the run names a judge. Before the seal. `scorer` is zeroed before, and closed in any case.
lk_status lk_scorer_open(lk_scorer *scorer, const lk_run *run, const lk_common_options *options,
                         lk_text_out *out, lk_error *error);
void lk_scorer_close(lk_scorer *scorer);
lk_status lk_scorer_score(lk_scorer *scorer, lk_run *run, lk_error *error);

void lk_scorer_lines(lk_text_out *out, const lk_scorer *scorer);
void lk_scorer_object(json_t *object, const lk_scorer *scorer);

#endif
