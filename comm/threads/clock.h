// clock.h - the time, for deadlines and for figures that are printed; no number of a run depends on
// it. Host only.
#ifndef LOCKSTEP_COMM_THREADS_CLOCK_H
#define LOCKSTEP_COMM_THREADS_CLOCK_H

#ifdef __cplusplus
extern "C" {
#endif

// Seconds of a clock that only goes forward.
double lk_seconds(void);

// Time that this process had to itself, for deadlines: while it is stopped (Ctrl-Z), or its machine
// suspended, nobody can expect anything of it. Looked at often, as every wait here does; what lies
// between two looks counts as LK_LOOK_SECONDS_MAX at most.
#define LK_LOOK_SECONDS_MAX 0.5
typedef struct lk_patience {
    double looked, spent;
} lk_patience;

void lk_patience_start(lk_patience *p);
double lk_patience_spent(lk_patience *p);  // seconds since it was started, pauses left out

#ifdef __cplusplus
}
#endif
#endif
