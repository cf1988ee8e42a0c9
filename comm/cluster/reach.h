// reach.h - where MPI may be reached. It neither authenticates nor encrypts what it sends, so where
// all workers are on one machine it keeps to memory and loopback, and elsewhere to a network that
// somebody has said is private, or that it may leave it. Host only, start-up only.
//
//   lk_reach_pin      before MPI starts: which interfaces it may use, by the variables that UCX,
//                     libfabric, MPICH's ch3 and NCCL read; those that are set already stay
//   lk_reach_check    after it has: does this process listen anywhere else?
#ifndef LOCKSTEP_COMM_CLUSTER_REACH_H
#define LOCKSTEP_COMM_CLUSTER_REACH_H

#include "arena/base.h"

enum { LK_REACH_TEXT_BYTES = 256 };

// A network as an address and the number of its first bits: 10.1.0.0/16, fd00:1::/32.
typedef struct lk_subnet {
    bool given;
    bool six;  // IPv6
    uint8_t address[16];
    uint32_t bits;
} lk_subnet;

// LK_BAD_USAGE where that is no network.
lk_status lk_subnet_parse(const char *text, lk_subnet *out, lk_error *error);
bool lk_subnet_has(const lk_subnet *network, bool six, const uint8_t address[16]);

typedef struct lk_reach {
    bool local;     // all workers are on this machine
    bool insecure;  // --insecure
    lk_subnet network;
} lk_reach;

// LK_BAD_CONFIG where the workers are on several machines and nothing is said of the network, or
// this machine is not in it.
lk_status lk_reach_pin(const lk_reach *reach, uint32_t rank, lk_error *error);

// *listens: the addresses at which sockets of this process listen that did not when it was pinned,
// as text; "nothing" where there are none. LK_UNAVAILABLE where one is outside.
lk_status lk_reach_check(const lk_reach *reach, uint32_t rank, char listens[LK_REACH_TEXT_BYTES],
                         lk_error *error);

#endif
