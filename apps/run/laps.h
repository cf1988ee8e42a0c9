// laps.h - where the time of a step goes, as the first thread of a process sees it. Only reads the
// clock: some dozen times a step.
//
//   computing    LOAD, FORWARD, BACKWARD
//   early        exchanging buckets while earlier layers are still to be computed
//   waiting      for replicas and workers that are not as far yet
//   rounds       from when the last of them is, until this one knows; by messages: all that is
//                awaited, so how long bytes travel, too
//   moving       boxes made and joined
//   updating     REDUCE and APPLY where the memory is shared, else APPLY
#ifndef LOCKSTEP_APPS_RUN_LAPS_H
#define LOCKSTEP_APPS_RUN_LAPS_H

#include "comm/step/driver.h"
#include "io/text.h"

// computing, exchanging (early), waiting, rounds, moving, updating: as files and pages have them.
extern const char *const lk_lap_names[LK_LAPS];

// The quickest steps of a run say what a step costs on a machine that others use, too.
enum { LK_LAPS_BLOCK = 64 };

typedef struct lk_laps {
    double seconds[LK_LAPS];   // of all steps
    double block[LK_LAPS];     // of the last LK_LAPS_BLOCK or fewer
    double quickest[LK_LAPS];  // of the quickest LK_LAPS_BLOCK in a row
    double at;                 // the end of the last lap
    uint64_t steps;
} lk_laps;

void lk_laps_start(lk_laps *laps);  // of a step
void lk_lap_ends(lk_laps *laps, lk_lap lap);
// The end of a round that the last worker came to at `last` (seconds of the same clock).
void lk_lap_round_ends(lk_laps *laps, double last);
// One line, in microseconds a step; a second one of the quickest steps, if there were enough steps.
lk_status lk_laps_print(const lk_laps *laps, lk_text_out *out);

#endif
