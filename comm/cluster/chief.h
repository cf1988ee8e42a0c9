// chief.h - the chief's side of the rendezvous: lets the members of a run in and nobody else, keeps
// their address book (comm/cluster/pmi.h) and watches who breaks off. Host only; one thread uses
// it.
//
//   strangers   come in by the listening socket, a few at a time, each with one short line and a
//   few
//               seconds to prove that it is a member; where there are too many, the oldest goes
//   members     two connections each: PMI, which its MPI speaks, and life, which only lives
//
// Everything has a fixed place here, no call waits for one connection, and when all are in the
// listening socket is closed.
#ifndef LOCKSTEP_COMM_CLUSTER_CHIEF_H
#define LOCKSTEP_COMM_CLUSTER_CHIEF_H

#include <poll.h>

#include "comm/cluster/hello.h"
#include "comm/cluster/pmi.h"

enum {
    LK_CHIEF_STRANGERS = 64,
    LK_CHIEF_STRANGER_SECONDS = 5,
    LK_CHIEF_POLLED_MAX = 1 + LK_CHIEF_STRANGERS + 2 * LK_CLUSTER_WORLD_MAX,
};

// What a connection has sent of a line.
typedef struct lk_line_in {
    uint32_t used;
    char text[LK_PMI_LINE_BYTES];
} lk_line_in;

// Takes bytes until a line ends: the number taken, with *line set to the line (its end cut off) or
// to NULL where more is wanted. A line too long, or one with a zero in it, is *broken.
size_t lk_line_take(lk_line_in *in, const char *bytes, size_t count, const char **line,
                    bool *broken);

typedef struct lk_stranger {
    int socket;  // -1: a free place
    double deadline;
    uint8_t question[LK_HELLO_BYTES];
    lk_line_in in;
} lk_stranger;

typedef struct lk_member {
    int pmi, life;  // -1: not there
    lk_hello hello;
    lk_line_in in;  // of pmi
} lk_member;

typedef struct lk_chief {
    const lk_key *key;
    lk_hello self;
    uint32_t world;
    int listener;     // -1 once all are in
    uint32_t absent;  // connections that members have still to make
    uint32_t told;    // the rank that all were last told to wait for
    uint32_t lost;    // the rank that broke off, after LK_RETRY
    uint32_t complaints;
    lk_stranger strangers[LK_CHIEF_STRANGERS];
    lk_member members[LK_CLUSTER_WORLD_MAX];
    uint32_t host[LK_CLUSTER_WORLD_MAX];
    uint32_t hosts;  // once all are in: of how many hosts they are
    lk_pmi pmi;
    struct pollfd polled[LK_CHIEF_POLLED_MAX];
    uint32_t who[LK_CHIEF_POLLED_MAX];  // kind and place of each
} lk_chief;

// `own` is the chief's end of the connection that its own MPI has. The listener listens.
void lk_chief_open(lk_chief *chief, const lk_key *key, const lk_hello *self, int listener, int own);

// Serves whoever has something to say, waiting at most so long for it; -1 waits for ever.
//   LK_OK              go on
//   LK_RETRY           member `lost` has broken off
//   LK_RANKS_DISAGREE  a member describes another cluster, or has a rank that another has
lk_status lk_chief_serve(lk_chief *chief, int milliseconds, lk_error *error);

// The lowest rank that has not come; the world where all have.
uint32_t lk_chief_absent(const lk_chief *chief);

// All are in: nobody else comes in, and MPI may begin. They hear of how many hosts they are, and
// who the chief is: go HOSTS PROCESS NAME.
void lk_chief_go(lk_chief *chief);

// MPI does not get on: the lowest rank that has not come to the barrier in which another waits; the
// world where that cannot be said.
uint32_t lk_chief_behind(const lk_chief *chief);

// A line to every member that has come, with its end.
void lk_chief_tell(lk_chief *chief, const char *line);

#endif
