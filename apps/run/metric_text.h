// metric_text.h - metrics by name, as users see them: fields of logs and events, parts of lines.
// Host only. The order is fixed: the sums' means, the counts, their shares.
#ifndef LOCKSTEP_APPS_RUN_METRIC_TEXT_H
#define LOCKSTEP_APPS_RUN_METRIC_TEXT_H

#include <jansson.h>

#include "comm/step/step.h"
#include "io/text.h"

enum { LK_METRIC_TEXT_BYTES = 320 };

// One result with the names of what is in it. Of several objectives, its own and the cycle of the
// schedule that its step was of, from 1 (0: an evaluation).
typedef struct lk_named_result {
    const lk_metrics *names;
    const lk_step_result *r;
    const char *objective;  // NULL: there is only one
    uint64_t cycle;
} lk_named_result;

// `done`: the steps finished, of a step; 0: an evaluation. `only`: whose result it is where that
// does not say so.
lk_named_result lk_name_result(const lk_program *only, const lk_step_result *r, uint64_t done);

// "loss":0.5,"correct":90,"examples":100     with `shares` also ,"accuracy":0.9
void lk_metric_fields(char out[LK_METRIC_TEXT_BYTES], lk_named_result named, bool shares);

// A line of metrics.jsonl: {"step":7,"train":{...}}; where errors are counted, with shares. Returns
// its length.
size_t lk_metric_line(char *out, size_t bytes, uint64_t step, const char *kind,
                      lk_named_result named);

// "examples":100,"correct":90,"loss":0.5,"accuracy":0.9      of the event of an evaluation
void lk_metric_evaluation(char out[LK_METRIC_TEXT_BYTES], lk_named_result named);

// loss 0.5, accuracy 90.00%
void lk_metric_words(char out[LK_METRIC_TEXT_BYTES], lk_named_result named);

// loss = 0.5                                  the means alone
void lk_metric_equations(char out[LK_METRIC_TEXT_BYTES], lk_named_result named);

// Lines such as test_loss 0.5, test_accuracy 90.00.
void lk_metric_lines(lk_text_out *out, lk_named_result named);

// "correct", then means and shares with "test_" before their names.
void lk_metric_object(json_t *object, lk_named_result named);

#endif
