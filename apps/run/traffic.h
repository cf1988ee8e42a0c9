// traffic.h - what workers on hosts of their own send each other in a step, and how long that takes
// over a network of a given speed. On paper only: no worker is started.
//
// The rounds are those of comm/step/exchange.h, the bytes those that comm/mpi/mpi.h hands to MPI. A
// host sends and receives at the same time, at the full speed of its link; nothing overlaps the
// computation:
//
//     time = rounds x latency + messages x LK_MESSAGE_US + 8 x bytes / bandwidth
//
// with the most that any worker sends or receives in each round.
#ifndef LOCKSTEP_APPS_RUN_TRAFFIC_H
#define LOCKSTEP_APPS_RUN_TRAFFIC_H

#include "apps/run/run.h"

enum {
    LK_MESSAGE_US = 5,   // the processor's time to send a message and receive one, over sockets
    LK_LATENCY_US = 20,  // unless said otherwise: from sending a message to receiving it
    LK_TRAFFIC_ROUNDS = 2,
};

typedef struct lk_link {
    double bits_per_second;  // 0: none given
    double latency_us;
} lk_link;

// Of the worker that has most, in each round: both sent and received.
typedef struct lk_traffic {
    uint64_t bytes[LK_TRAFFIC_ROUNDS];
    uint64_t messages[LK_TRAFFIC_ROUNDS];
} lk_traffic;

lk_traffic lk_traffic_of(const lk_run *run);

// The terms of the formula, in microseconds.
typedef struct lk_traffic_time {
    double latency, messages, bytes, all;
} lk_traffic_time;
lk_traffic_time lk_traffic_time_of(const lk_traffic *traffic, const lk_link *link);

#endif
