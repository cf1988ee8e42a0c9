// service.h - what those hear who look after a run: a service manager, in the datagrams of
// sd_notify(3), and a monitoring agent, in a file of Prometheus' text format. Host only. All
// buffers are static, the socket is open before the seal, and nothing here waits or may end a run.
//
//   READY=1      once everything is there and the run is sealed
//   STATUS=...   once a second: the progress line
//   WATCHDOG=1   with it, as long as the run moves: a step, a grain, or another phase. A run that
//                stands still is not fed, and the manager starts it anew
//   STOPPING=1   when it was asked to stop, and at the end
#ifndef LOCKSTEP_APPS_CLI_SERVICE_H
#define LOCKSTEP_APPS_CLI_SERVICE_H

#include "apps/run/run.h"

// Of the last step of an objective that is known. Shares are from 0 to 1.
typedef struct lk_service_metrics {
    const lk_metrics *names;
    const char *objective;  // NULL: there is only one
    double means[LK_METRIC_SUMS_MAX], shares[LK_METRIC_COUNTS_MAX];
} lk_service_metrics;

// How far a run is.
typedef struct lk_service_view {
    double now;             // lk_seconds()
    uint64_t done, total;   // steps
    uint64_t saved;         // step of the last checkpoint, or UINT64_MAX
    const char *phase;      // "training", ..
    const char *progress;   // all of it in a line
    double rate, left;      // steps a second, seconds
    lk_service_metrics metrics[LK_OBJECTIVES_MAX];  // (metric_count)
    uint32_t metric_count;
    bool moves;  // something went on since the view before
} lk_service_view;

// NOTIFY_SOCKET and WATCHDOG_USEC of the environment, and the file of --metrics-file (NULL: none),
// which must be one that can be written and is nobody else's (lk_output_check). LK_BAD_USAGE,
// LK_UNAVAILABLE or LK_IO_ERROR name what cannot be.
lk_status lk_service_open(const char *metrics_file, lk_error *error);
// Does anybody listen?
bool lk_service_listens(void);

// Before the seal, once the run is there: the file is written for the first time.
void lk_service_prepare(const lk_run *run, uint64_t done);
// Behind it.
void lk_service_ready(void);
void lk_service_stopping(void);
// From a signal's handler, or the thread that it interrupts; `last`: now, whatever the clock says.
void lk_service_tick(const lk_service_view *view, bool last);
// Why the file could not be written, once; NULL where it could, or this was said.
const char *lk_service_trouble(void);

#endif
