// journal.h - what a run writes for people and their tools beside its logs: times.jsonl, and event
// files for TensorBoard. Nothing of it is read by a run, and nothing of it changes a bit.
//
//   times.jsonl   for each line of metrics.jsonl one of the same step and kind, with what two equal
//                 runs do not share:
//                 {"step":100,"train":{"epoch":..,"examples_seen":..,"wall_time":..,"seconds":..,
//                 "steps_per_second":..},"crc32":..}
//                 and where a process ends, where the time of its steps went (laps.h), in us
//                 {"step":200,"phases":{"steps":..,"computing":..,..},"crc32":..}
//   event files   io/events.h, as configuration events says
//
// The leader's; and an evaluator's event files, in a directory of their own, since it writes while
// the leader does. All memory is of the arena: lk_journal_bytes.
#ifndef LOCKSTEP_APPS_RUN_JOURNAL_H
#define LOCKSTEP_APPS_RUN_JOURNAL_H

#include "apps/run/metric_text.h"
#include "apps/run/run.h"
#include "apps/run/say.h"
#include "io/events.h"

typedef struct lk_journal {
    lk_run *run;  // NULL: this process writes nothing
    lk_line_log times;
    lk_events events;
    bool evaluates;     // an evaluator's: no times.jsonl, and no training inputs
    uint64_t begun_at;  // steps done when this process began
    double began;       // .. by lk_seconds, when its first step did
    double last;        // when the last line came, and after how many steps
    uint64_t last_step;
} lk_journal;

uint64_t lk_journal_bytes(const lk_run *run);

// A resumed run: cuts what is beyond step `done`. An event file that is cut before, since it is
// damaged, is said.
lk_status lk_journal_cut(const lk_run_dir *dir, uint64_t done, const lk_say *say, lk_error *error);
// Before the seal. `over`: the run is finished, and no event file is begun.
lk_status lk_journal_open(lk_journal *r, lk_run *run, const lk_run_dir *dir, uint64_t done,
                          bool over, lk_error *error);
// An evaluator's, before each checkpoint that it evaluates, of step `first`: where event files are
// asked for, a new one in <run>/evaluator the first time, and again where somebody has removed it.
// `r` is zeroed before the first call.
#define LK_JOURNAL_EVALUATOR "evaluator"
lk_status lk_journal_open_evaluator(lk_journal *r, lk_run *run, const lk_run_dir *dir,
                                    uint64_t first, lk_error *error);
// The first step begins now.
void lk_journal_start(lk_journal *r);
// With a line of metrics.jsonl, or an evaluator's, of `kind` "train" or "test", after `done` steps.
lk_status lk_journal_metrics(lk_journal *r, const char *kind, uint64_t done,
                             lk_named_result named, lk_error *error);
// A picture of its own, a PNG file, where pictures of the examples are asked for, too
// (events.images); `png_bytes` is at most that of lk_samples.
typedef struct lk_journal_picture {
    const char *tag;
    uint32_t height, width, channels;
    const uint8_t *png;
    size_t png_bytes;
} lk_journal_picture;
lk_status lk_journal_add_picture(lk_journal *r, uint64_t done, const lk_journal_picture *picture,
                                 lk_error *error);
// Where the time of this process's steps went.
lk_status lk_journal_phases(lk_journal *r, uint64_t done, lk_error *error);

// Before a checkpoint. No reason not to save: what fails is said as they are closed.
void lk_journal_sync(lk_journal *r);
lk_status lk_journal_close(lk_journal *r, lk_error *error);

#endif
