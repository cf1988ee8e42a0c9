// mpi.h - workers as processes that an MPI launcher started, or that found each other
// (comm/cluster/rendezvous.h): who they are, what they agree on, how bytes travel. Host only;
// optional at build time (LOCKSTEP_MPI). One set of workers a process.
//
//   lk_mpi_start    MPI itself; from here to lk_mpi_seal one alarm bounds all that start-up waits
//   lk_mpi_meet     what each worker computes with; may all go on?
//   lk_mpi_window   memory that the workers of a host share
//   lk_mpi_agree    the same run, data and version everywhere?
//   lk_mpi_connect  who gives what where; persistent requests between hosts
//   lk_mpi_seal     start-up is over: no blocking MPI call and no allocation of ours from here on
//   lk_mpi_round    what exchange.h calls a round, with a deadline and an eye on who has died; or
//                   in pieces lk_mpi_give, lk_mpi_look, lk_mpi_await
//
// Workers of one host write what they give into their own part of an MPI shared-memory window,
// where the others read it: after start-up MPI is not called at all between them. Where there is no
// other host, all that replicas hold lies there, and nothing has to be given (exchange.h). Between
// hosts every pair has persistent point-to-point requests; a receive is always started before its
// sender can have anything to send, so nothing arrives unexpected.
#ifndef LOCKSTEP_COMM_MPI_MPI_H
#define LOCKSTEP_COMM_MPI_MPI_H

#include "comm/step/driver.h"
#include "comm/cluster/reach.h"

enum { LK_MPI_WORLD_MAX = 1024, LK_MPI_ITEM_BYTES = 72, LK_MPI_HOST_BYTES = 64 };

// How many times --step-timeout the others wait for the leader, once its last report said that it
// saves (exchange.h), or anybody's said that the run stops. It says so before it saves, since it
// cannot say anything while a disk is slow.
enum { LK_MPI_SAVE_TIMES = 10 };

typedef struct lk_mpi_options {
    uint32_t start_timeout_seconds;  // for all of start-up
    uint32_t step_timeout_seconds;   // for any one wait after it, but for a leader that saves
    bool messages;                   // no window: point-to-point between workers of one host too
    // Hears every 50 ms for whom this worker has waited so long; NULL: nobody does. Allocates
    // nothing.
    void (*waiting)(const char *who, double seconds);
    lk_reach reach;                  // which network MPI may use; `local` is found out
} lk_mpi_options;

// LK_UNAVAILABLE in a build without MPI.
lk_status lk_mpi_built(lk_error *error);

// `world` and `rank` as the launcher said them. LK_UNAVAILABLE in a build without MPI, or where MPI
// finds another number of workers.
lk_status lk_mpi_start(uint32_t world, uint32_t rank, const lk_mpi_options *options,
                       lk_error *error);

// Workers on this host: how many in all, and how many of lower rank.
void lk_mpi_host(uint32_t *workers, uint32_t *before);
bool lk_mpi_is_here(uint32_t rank);  // on this host
bool lk_mpi_shares(void);            // all workers are here, and use the window
const char *lk_mpi_version(void);
const char *lk_mpi_transport(void);  // how bytes travel between these workers, in words
const char *lk_mpi_listens(void);    // at which addresses this process may be reached; or "nothing"
uint64_t lk_mpi_external_bytes(void);  // that MPI took at its start, as the kernel counts them

// All say whether they can go on. Otherwise every worker gets a status that is not LK_OK, and the
// first that has something to say keeps its error; the others are silent.
lk_status lk_mpi_settle(lk_status mine, lk_error *error);

// As lk_mpi_settle; tells everybody of everybody's replicas and GPUs. `before` is filled in.
lk_status lk_mpi_meet(lk_status mine, const lk_worker *worker, lk_worker *workers, lk_error *error);

// One thing that all workers must have alike.
typedef struct lk_mpi_item {
    const char *name;
    char value[LK_MPI_ITEM_BYTES];
} lk_mpi_item;

// LK_RANKS_DISAGREE, on every worker, naming ranks and the first differing item.
lk_status lk_mpi_agree(const lk_mpi_item *items, uint32_t count, lk_error *error);

// What the next of the following calls wait for, for the message where that lasts too long.
void lk_mpi_wait_for(const char *what);

// The leader's bytes to all, or a rank's; everybody's to all, `bytes` each in the order of ranks.
void lk_mpi_broadcast(void *bytes, uint64_t count);
void lk_mpi_broadcast_from(uint32_t rank, void *bytes, uint64_t count);
void lk_mpi_gather(const void *mine, uint64_t bytes, void *all);

// All bytes of this worker's part of the window, `bytes` of which are the caller's; and those that
// it needs besides for messages.
uint64_t lk_mpi_window_bytes(uint64_t bytes);
uint64_t lk_mpi_inbox_bytes(const lk_program *program, const lk_worker *workers, uint32_t world,
                            uint32_t rank);

// Takes the window, by all at the same point. The caller's bytes, aligned to a page, are zeros; the
// others' may be used after the next lk_mpi_settle.
lk_status lk_mpi_window(uint64_t payload, uint8_t **mine, lk_error *error);
uint8_t *lk_mpi_window_of(uint32_t rank);  // those of another worker; NULL: messages are used

// Fills in what exchange.h leaves to the transport, and goes through every round once at full size.
// The caller's bytes of the window are lk_exchange_floats where the memory is not shared;
// `inbox` holds lk_mpi_inbox_bytes, aligned to 64.
lk_status lk_mpi_connect(lk_exchange *x, void *inbox, lk_error *error);

void lk_mpi_seal(void);

// A round in pieces, all of them called by one thread: gives what this worker has written of a
// bucket; says whether all have given theirs (nobody waits, but messages get on); waits until they
// have. Every bucket of a round is given once and awaited once in a step, in ascending order;
// reports, which have one bucket, go with the last bucket of the boxes.
void lk_mpi_give(lk_exchange *x, lk_round round, uint32_t bucket, uint64_t step);
bool lk_mpi_look(const lk_exchange *x, lk_round round, uint32_t bucket);
lk_status lk_mpi_await(lk_exchange *x, lk_round round, uint32_t bucket, lk_error *error);

// After a round: when the last worker of this host gave its last bucket (comm/threads/clock.h).
double lk_mpi_last_given(lk_round round);

// Gives what this worker has written, waits until all have. LK_RETRY naming rank, host, step and
// phase where one has died or is silent for longer than the deadline.
lk_status lk_mpi_round(lk_exchange *x, lk_round round, uint64_t step, lk_error *error);

// The round of reports waits `seconds` longer than --step-timeout, until the next call: for what
// each worker computes before it in an evaluation.
void lk_mpi_allow(double seconds);

// Between rounds, where something else waits for the others: has one of them died? Never waits.
lk_status lk_mpi_look_for_dead(uint64_t step, lk_error *error);

// This worker fails alone, where the others may wait for what they cannot be called away from: they
// hear at once that it is gone, and it leaves without them.
void lk_mpi_break_off(lk_status status);

// The process ends with this status soon, even if whatever is still to be done never comes back.
void lk_mpi_end_soon(lk_status status);

// The orderly end, of all workers at the same point and with the same status, which is returned;
// the process exits with it here where MPI's own end takes longer than it may. LK_RETRY where all
// was well, but the leader is gone before it has said so. After an error of one worker alone this
// is left out, and the process just exits.
lk_status lk_mpi_finish(lk_exchange *x, lk_status status, lk_error *error);

#endif
