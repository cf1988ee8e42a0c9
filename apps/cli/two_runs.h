// two_runs.h - two run directories side by side: their logs, a line at a time, and the checkpoints
// that both have. Knows nothing of what is compared (diff.c) nor how closely (diff_tolerance.c).
// Host only; may use the heap.
#ifndef LOCKSTEP_APPS_CLI_TWO_RUNS_H
#define LOCKSTEP_APPS_CLI_TWO_RUNS_H

#include <stdio.h>

#include "apps/cli/tools.h"
#include "io/json.h"
#include "io/line_sum.h"

enum { LK_SIDES = 2 };

// --- what is said --------------------------------------------------------------------------------

// --json: one object, of what was found and of all lines that are said otherwise; else NULL.
extern json_t *lk_diff_answer;
// Prints, or adds to the answer's "lines".
void lk_diff_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
// Adds a number or a text to the answer, where there is one.
void lk_diff_number(const char *key, uint64_t value);
void lk_diff_text(const char *key, const char *value);

// A log of one JSON object a line, each with its "step".
typedef struct lk_json_log {
    char path[LK_PATH_BYTES];
    bool repeats;  // lines of one step may follow each other; else every step is a later one
    FILE *file;    // NULL: there is none
    char *text;    // getline's
    size_t capacity;
    uint64_t line;     // its number, from 1
    lk_json document;  // of the line at hand
    bool at_line;      // false: the log has ended
    uint64_t step;     // of the line at hand, or of the last one
    uint64_t lines;    // read in all
    lk_line_sums sums;
} lk_json_log;

// A log that is not there is one without lines.
lk_status lk_json_log_open(lk_json_log *log, const char *run_dir, const char *name, bool repeats,
                           lk_error *error);
// Goes to the next line; LK_BAD_DATA where its checksum is wrong. The last line of a run that was
// killed may be torn: without its newline it never was written.
lk_status lk_json_log_next(lk_json_log *log, lk_error *error);
// Says how many lines had no checksum, where there are such.
void lk_json_log_say(const lk_json_log *log);
void lk_json_log_close(lk_json_log *log);

// Steps of which both runs have checkpoint files, good or not, ascending; free() out->steps.
lk_status lk_common_checkpoints(const char *const runs[LK_SIDES], lk_steps *out, lk_error *error);

// Opens both checkpoints of a step, with their values; false, with a line, where one of them is
// damaged.
bool lk_checkpoint_enter_both(const char *const runs[LK_SIDES], uint64_t step,
                              lk_open_checkpoint pair[LK_SIDES]);
void lk_checkpoint_leave_both(lk_open_checkpoint pair[LK_SIDES]);

bool lk_same_shape(const lk_safetensors_entry *a, const lk_safetensors_entry *b);

// lockstep diff --tolerance: prints how far the runs lie apart. LK_DIFFERS where that is further
// than `tolerance`, LK_NO_INPUT where they have nothing in common.
lk_status lk_compare_within(const char *const runs[LK_SIDES], double tolerance, lk_error *error);

#endif
