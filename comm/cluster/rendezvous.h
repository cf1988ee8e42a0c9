// rendezvous.h - how workers that no launcher started find each other, from the description of
// their cluster alone: rank 0 listens at the address that is said for it, the others come to it,
// prove that they are members (comm/cluster/hello.h), and get MPI's address book from it
// (comm/cluster/pmi.h) by PMI_FD, PMI_RANK and PMI_SIZE, as under a launcher. Host only. One
// rendezvous a process.
//
// Each worker keeps a second connection to the chief, over which nothing is said. When its process
// ends, however it does, the kernel closes it, and the chief tells everybody: that is the sign of
// life. One thread in each process listens to it, started before anything is sealed.
#ifndef LOCKSTEP_COMM_CLUSTER_RENDEZVOUS_H
#define LOCKSTEP_COMM_CLUSTER_RENDEZVOUS_H

#include "comm/cluster/cluster.h"

typedef struct lk_rendezvous_options {
    uint32_t start_timeout_seconds;  // until all have come
    uint32_t step_timeout_seconds;   // after which a host that cannot be reached is given up
    const char *key_file;            // or NULL
    bool insecure;                   // no key, though the cluster leaves this machine
    int listener;                    // a socket of rank 0 that listens already, or -1
    // Hears now and then for whom this worker has waited so long; NULL: nobody does.
    void (*waiting)(const char *who, double seconds);
} lk_rendezvous_options;

// Before lk_mpi_start. Returns when all workers have come.
//   LK_BAD_CONFIG      no key where there must be one, or a bad one
//   LK_UNAVAILABLE     the address is not this machine's, or in use
//   LK_RANKS_DISAGREE  two descriptions that differ, or two workers of one rank
//   LK_RETRY           not all came in time: names the first that did not
// Where another worker has said it all, `error` stays empty.
lk_status lk_rendezvous_meet(const lk_cluster *cluster, const lk_rendezvous_options *options,
                             lk_error *error);

// Bytes that it takes on `rank`, beside the arena: it begins before there is one. Its thread's
// stack, and with rank 0 the tables of the most workers there may be, of which few touch more than
// pages.
uint64_t lk_rendezvous_bytes(uint32_t rank);

// Whole seconds that the meeting took; 0 where there was none.
uint32_t lk_rendezvous_seconds(void);

// The workers have met here, and all are on this host.
bool lk_rendezvous_is_local(void);
// ... and the chief speaks first where MPI does not start in time (LK_RENDEZVOUS_WORD_SECONDS
// later, it does not).
bool lk_rendezvous_speaks(void);
enum { LK_RENDEZVOUS_WORD_SECONDS = 1 };
// So it is to blame then: "; rank 0 on HOST (process P) is stopped". Safe in a signal handler.
void lk_rendezvous_blame_chief(char *out, size_t bytes);

// After lk_rendezvous_meet: this worker has found nothing wrong with its own start. Until then it
// does not end for the loss of another: what it says itself comes first.
void lk_rendezvous_checked(void);

// Start-up is over: whoever is lost from here on is found by lk_rendezvous_lost; until then the
// process itself ends with a line.
void lk_rendezvous_run(void);

// Until then, before a line is said of somebody who is lost: `judge` may know better why.
void lk_rendezvous_ask(void (*judge)(uint32_t rank));

// Before a line that ends the process in start-up: one thread speaks, others wait here for the end.
void lk_rendezvous_last_word(void);

// Somebody's sign of life has ended: who. Costs a load.
bool lk_rendezvous_lost(uint32_t *rank);

// This worker gives up because that one has died: the chief hears of whom, also where it was paused
// and finds both gone.
void lk_rendezvous_say_lost(uint32_t rank);

// This worker ends, alone: the others hear that it is lost, now.
void lk_rendezvous_break_off(void);

// The run is over and others may go. False where somebody was lost already: then nobody answers
// any more at PMI_FD.
bool lk_rendezvous_leave(void);

#endif
