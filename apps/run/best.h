// best.h - which evaluation of a run was the best by a named metric, and how many have come since:
// for early stopping (early_stopping) and for the checkpoint that stays (checkpoint.best).
//
// Decided from fp32 means and counts, which are the same bits for every worker in every layout: all
// find the same, and nobody asks. Of means, such as the loss, and of errors less is better; of
// other counts, such as correct or its share accuracy, more. Equal is no improvement, and for early
// stopping what is no more than min_delta is none.
//
// Evaluations count that come every evaluate_every_steps; that at the end of a run does where it is
// one of them. A resumed run hears of those before it from metrics.jsonl.
#ifndef LOCKSTEP_APPS_RUN_BEST_H
#define LOCKSTEP_APPS_RUN_BEST_H

#include "apps/run/metric_text.h"
#include "apps/run/run.h"
#include "io/run_dir.h"

// No pointers: the leader gives it to all workers.
typedef struct lk_best {
    bool wanted, counts, any;
    bool errors;      // of such a count: less is better
    bool share;       // it was asked for as one, not as a count
    float min_delta;  // of the mean, the count or the share: what is no more than this is nothing
    uint32_t number;    // of the mean or the count
    uint64_t patience;  // evaluations without a better one after which it is exhausted; 0: never
    float value;
    uint32_t count;
    uint64_t step, since;  // .. of the best; evaluations since then
    uint64_t noted;        // the last evaluation, which counts once
    bool improved;         // the last one was better than all before
} lk_best;

enum { LK_BEST_STOPS, LK_BEST_STAYS, LK_BESTS };

// Of a planned run. LK_BAD_CONFIG: no such metric, or nobody here evaluates.
lk_status lk_best_make(const lk_run *run, lk_best best[LK_BESTS], lk_error *error);
// One more evaluation, after `done` steps.
void lk_best_note(const lk_run *run, lk_best best[LK_BESTS], uint64_t done,
                  const lk_step_result *result);
// Those that metrics.jsonl has, whose lines are none after the step that is gone on from.
lk_status lk_best_recall(const lk_run *run, const lk_run_dir *dir, lk_best best[LK_BESTS],
                         lk_error *error);
static inline bool lk_best_is_exhausted(const lk_best *best) {
    return best->wanted && best->patience && best->since >= best->patience;
}
// "test_loss 0.25 after step 300"
void lk_best_text(const lk_run *run, const lk_best *best, char out[96]);

#endif
