// clock.c - the time of clock.h.
#define _GNU_SOURCE
#include "comm/clock.h"

#include <time.h>

double lk_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
