// pmi.h - the address book that MPI's workers keep at their chief: the server's side of PMI version
// 1, the text protocol by which MPICH's processes find each other. Host only.
//
// Knows lines and ranks; how lines travel is comm/cluster/rendezvous.h's. One line in, one line
// out:
//
//   cmd=init pmi_version=1 pmi_subversion=1     cmd=response_to_init ... rc=0
//   cmd=get_maxes | get_appnum | get_my_kvsname | get_universe_size
//   cmd=put kvsname=K key=A value=V             cmd=put_result rc=0 msg=success
//   cmd=get kvsname=K key=A                     cmd=get_result rc=0 msg=success value=V
//   cmd=barrier_in                              cmd=barrier_out rc=0, once all are in
//   cmd=finalize                                cmd=finalize_ack rc=0
//
// Of fixed size: no heap, and whoever puts more than has room is told so.
#ifndef LOCKSTEP_COMM_CLUSTER_PMI_H
#define LOCKSTEP_COMM_CLUSTER_PMI_H

#include "comm/cluster/cluster.h"

enum {
    LK_PMI_KEY_BYTES = 64,      // with its end
    LK_PMI_VALUE_BYTES = 1024,  // with its end
    LK_PMI_LINE_BYTES = 1280,   // the longest line either side may send, with its end
    LK_PMI_POOL_BYTES = LK_CLUSTER_WORLD_MAX * 2048,
    LK_PMI_PLACES = LK_CLUSTER_WORLD_MAX * 16,
};

// One run's book. Large: static, and touched only as far as it is used.
typedef struct lk_pmi {
    uint32_t world;
    uint32_t arrived, ended;  // ranks in the barrier; ranks that have said finalize
    bool in_barrier[LK_CLUSTER_WORLD_MAX];
    bool has_ended[LK_CLUSTER_WORLD_MAX];
    uint32_t pool_used, entries;
    uint32_t place[LK_PMI_PLACES];  // hash table: offset in the pool + 1, or 0
    char pool[LK_PMI_POOL_BYTES];   // "key\0value\0", one after the other
} lk_pmi;

typedef enum lk_pmi_act {
    LK_PMI_ANSWER,   // `answer` goes back to the rank
    LK_PMI_WAIT,     // it is in the barrier: nothing goes back yet
    LK_PMI_RELEASE,  // all are in: `answer` goes to every rank
    LK_PMI_WRONG,    // no line of this protocol, or one out of turn: the rank has to go
} lk_pmi_act;

// `host[rank]` is the same number for ranks of one host, numbered from 0 in order of appearance:
// MPI learns from it who shares memory with whom. Read here only.
void lk_pmi_open(lk_pmi *pmi, uint32_t world, const uint32_t *host);

// A line without its end, from `rank`. The answer ends in a newline.
lk_pmi_act lk_pmi_line(lk_pmi *pmi, uint32_t rank, const char *line,
                       char answer[LK_PMI_LINE_BYTES]);

#endif
