// watch.h - a process that can be asked: what signals ask it to do, and what it says of itself by
// the clock while it computes. Host only; nothing of it allocates, and nothing waits for a reader.
//
//   SIGINT, SIGTERM, SIGHUP   save and end after this step; answered at once. One more SIGINT ends
//                             at once. A SIGHUP that was ignored at the start stays so (nohup).
//   SIGUSR1                   one line that says how far the run is, which goes on
//   the clock                 twice a second the progress line of a terminal, or that of whoever
//                             started this process (LOCKSTEP_PROGRESS_FD); once a second an event
//                             under --json; once a minute a line where nothing else is said
//
// All of it is done by handlers on the main thread, which is the first replica: they read what it
// writes, and write where it writes when it does not.
#ifndef LOCKSTEP_APPS_CLI_WATCH_H
#define LOCKSTEP_APPS_CLI_WATCH_H

#include "apps/run/run.h"
#include "io/text.h"

// Metrics of the last step of an objective whose result is known; examples 0: of none.
typedef struct lk_watch_metrics {
    const lk_metrics *volatile names;
    const char *volatile objective;  // NULL: there is only one
    volatile float means[LK_METRIC_SUMS_MAX];
    volatile uint32_t counts[LK_METRIC_COUNTS_MAX], examples;
} lk_watch_metrics;

typedef struct lk_watch {
    const lk_run *run;             // NULL: it does not train, or not yet: then
    const char *volatile instead;  // ... what it does
    lk_text_out *out;              // where lines go; NULL: nowhere
    int progress_file;             // of the progress line, where that is another process's; or -1
    bool leads;                    // it answers for all workers, and shows progress
    bool json, quiet;
    volatile uint64_t first, done, total;
    volatile uint64_t saved;  // step of the last checkpoint, or UINT64_MAX
    lk_watch_metrics metrics[LK_OBJECTIVES_MAX];
    volatile uint32_t objective;  // .. and which of them is the last
    volatile double start, step_began;
    volatile double evaluating;  // seconds spent outside training since `start`
    volatile double said_at;     // the last line
} lk_watch;

// One a process. What has no run yet answers with `instead`.
extern lk_watch lk_watching;

// From here on those signals are noted and answered, and SIGPIPE is none. The one noted last, or 0.
void lk_watch_stop(void);
uint32_t lk_stop_signal(void);

// SIGUSR1 alone, for what comes before.
void lk_watch_ask(void);

// Between two steps: what a handler could not write, since its reader is slow or a line was under
// way. Costs a load.
void lk_watch_catch_up(void);

// Makes the clock of the calling thread, before the seal.
void lk_watch_prepare(void);

// The clock, from before the seal until what is said last.
void lk_watch_clock(bool runs);

// A service manager and a monitoring agent hear at once how far it is, for the last time.
void lk_watch_last(void);

enum { LK_DECIMAL_BYTES = 32 };
// A number that is not negative, with some decimals; lk_format has none. Returns `out`.
const char *lk_watch_decimal(char out[LK_DECIMAL_BYTES], double value, unsigned places);

// This worker has waited `seconds` for another, which `who` names: shown beside the progress.
// Start-up calls it (comm/cluster/rendezvous.h), and steps do (comm/mpi/mpi.h).
void lk_watch_waiting(const char *who, double seconds);

#endif
