// trace.h - where the time of some steps goes, op by op and replica by replica: records in the
// arena while they run, a JSON file of Chrome's trace format afterwards, for Perfetto
// (ui.perfetto.dev) and chrome://tracing.
//
// A lane is a row of spans that follow on each other without a gap, so that the spans of a step add
// up to its time: one lane for each replica of this process, and one for the steps themselves. Of
// several workers each writes a file, rank 0 FILE, rank 3 FILE.3; their pids are the ranks.
//
// Reading the clock after each op costs some time, and the bits are those of every run: the same
// ops in the same order. Not of steps on GPUs.
#ifndef LOCKSTEP_APPS_RUN_TRACE_H
#define LOCKSTEP_APPS_RUN_TRACE_H

#include "apps/run/laps.h"
#include "arena/arena.h"
#include "comm/step/driver.h"

struct lk_run;

enum { LK_TRACE_NAME_BYTES = 3 * LK_NAME_BYTES };

// What ended at a time: an op of the program, by its number; or beyond those a lap.
typedef struct lk_trace_record {
    double end;
    uint32_t what;
} lk_trace_record;

// A replica's: written by its own thread alone.
typedef struct lk_trace_lane {
    lk_trace_record *records;
    uint64_t used;
    double at;  // the end of the last
    uint8_t apart[40];
} lk_trace_lane;

typedef struct lk_trace_step {
    uint64_t step;  // from 0
    double begin, end;
    const lk_program *program;  // of the objective whose step it is
} lk_trace_step;

typedef struct lk_trace {
    struct lk_run *run;
    lk_trace_lane *lanes;  // (lane_count); NULL: no trace is wanted
    uint32_t lane_count;
    uint64_t capacity;     // records of a lane
    lk_trace_step *steps;  // (step_count) at most
    uint64_t *first;       // (step_count, lane_count): a step's first record of a lane
    uint32_t step_count, steps_used;
    char *text;  // the file goes out by this buffer
    const lk_lanes *plain;
    lk_lanes seen;              // those, with the ends of what they do recorded
    const lk_program *program;  // of the step at hand
    bool on;                    // it is traced
    bool written;
} lk_trace;

// Takes the memory for the trace that the configuration asks for, or measures it.
void lk_trace_take(struct lk_run *run, lk_arena *arena);
// Before the run starts: LK_BAD_CONFIG where GPUs compute, LK_BAD_USAGE where no file can be there
// or it is another one's: the run will live in `run_dir`.
lk_status lk_trace_check(const struct lk_run *run, const char *run_dir, lk_error *error);

// Around a step, by the first thread.
void lk_trace_begin(lk_trace *trace, uint64_t step);
void lk_trace_end(lk_trace *trace);
// The step is traced: puts lanes that record what the driver's own do into their place.
void lk_trace_drive(lk_trace *trace, lk_driver *driver);

// What a record of this number is of in a step of this program: "conv2d_forward conv2d_0", or of a
// lap its word; and in which phase of a step it is.
void lk_trace_name(const lk_program *program, uint32_t what, char out[LK_TRACE_NAME_BYTES],
                   const char **phase);
// The mean over the steps that were traced, and over the lanes, of what each op and lap took: they
// add up to the mean time of a step, which it returns. Of a run of one objective.
//
// seconds   (op_count + LK_LAPS) by their numbers
double lk_trace_means(const lk_trace *trace, double *seconds);

// Writes the file once all its steps are done, or with `over` those that are.
lk_status lk_trace_write(lk_trace *trace, bool over, lk_error *error);

#endif
