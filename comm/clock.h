// clock.h - the time, for deadlines and for figures that are printed; no number of a run depends on
// it. Host only.
#ifndef LOCKSTEP_COMM_CLOCK_H
#define LOCKSTEP_COMM_CLOCK_H

#ifdef __cplusplus
extern "C" {
#endif

// Seconds of a clock that only goes forward.
double lk_seconds(void);

#ifdef __cplusplus
}
#endif
#endif
