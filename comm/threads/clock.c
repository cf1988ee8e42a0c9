// clock.c - the time of clock.h.
#define _GNU_SOURCE
#include "comm/threads/clock.h"

#include <time.h>

double lk_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void lk_patience_start(lk_patience *p) { *p = (lk_patience){.looked = lk_seconds()}; }

double lk_patience_spent(lk_patience *p) {
    double now = lk_seconds(), gap = now - p->looked;
    p->looked = now;
    p->spent += gap < LK_LOOK_SECONDS_MAX ? gap : LK_LOOK_SECONDS_MAX;
    return p->spent;
}
