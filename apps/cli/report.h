// report.h - what lockstep report knows of a run, between who reads it (report.c) and who writes
// the page (report_page.c). Heap.
#ifndef LOCKSTEP_APPS_CLI_REPORT_H
#define LOCKSTEP_APPS_CLI_REPORT_H

#include <jansson.h>

#include "apps/cli/markup.h"
#include "apps/run/laps.h"
#include "apps/run/run.h"

enum { LK_REPORT_SIDES = 2, LK_REPORT_MISTAKES = 24, LK_REPORT_HEX_BYTES = 65 };

// The lines of metrics.jsonl of one kind and, where a model has several, of one objective.
typedef struct lk_report_curve {
    bool test;        // not of training
    char *objective;  // NULL: there is only one. Heap
    size_t count, capacity;
    double *step, *loss, *accuracy, *errors;
} lk_report_curve;

// An example of the test set that was taken for something else.
typedef struct lk_report_mistake {
    uint64_t index;
    uint32_t label, predicted;
    double confidence;  // the probability of `predicted`
    uint8_t *png;       // (png_bytes); NULL: it is too large for a picture
    size_t png_bytes;
} lk_report_mistake;

// Of a step: an op, or what is left beside the ops.
typedef struct lk_report_op {
    char name[LK_TRACE_NAME_BYTES];
    const char *phase;
    double us;
} lk_report_op;

typedef struct lk_report_pair {
    uint32_t label, predicted;
    uint64_t times;
} lk_report_pair;

typedef struct lk_report_class {
    uint32_t label;
    uint64_t right, examples;
} lk_report_class;

enum { LK_REPORT_CLASSES_ALL = 256, LK_REPORT_CLASSES_WORST = 100 };

typedef struct lk_report_run {
    const char *path;
    char identity[LK_REPORT_HEX_BYTES], digest[LK_REPORT_HEX_BYTES], state[LK_REPORT_HEX_BYTES];
    char version[32];
    bool saved;               // there is a checkpoint
    uint64_t step;            // .. of this step
    json_t *config, *plan;    // NULL: it has none that can be read
    lk_report_curve *curves;  // (curve_count), those of training first. Heap
    uint32_t curve_count;
    double wall_first, wall_last;  // of times.jsonl; 0: none
    uint64_t phase_steps;          // 0: no process of it has come to its end
    double phases[LK_LAPS];        // us of a step, of the last process
    // Of a step on this machine, op by op: heap; ops_of_steps 0: not measured.
    lk_report_op *ops;
    uint32_t op_count, ops_of_steps, ops_replicas;
    double ops_step_us;
    char ops_kernels[32];
    // By the newest checkpoint, of the whole test set; examples 0: `why_not`.
    uint64_t examples, correct;
    uint32_t classes;
    // What was taken for what, in the order of label and prediction, without what never was: a
    // matrix of many classes would hold little but zeros. Heap.
    lk_report_pair *pairs;  // (pair_count)
    uint64_t pair_count;
    // The classes that the test set has, in order; or of more than LK_REPORT_CLASSES_ALL those that
    // were right the least often. Heap.
    lk_report_class *by_class;  // (class_count)
    uint32_t class_count;
    lk_report_mistake mistakes[LK_REPORT_MISTAKES];
    uint32_t mistake_count;
    char why_not[LK_ERROR_TEXT_BYTES];
} lk_report_run;

// The whole page, of one run or of two beside each other.
void lk_report_page(lk_markup *m, const lk_report_run *runs, uint32_t count);

#endif
