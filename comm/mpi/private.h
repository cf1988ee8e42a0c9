// private.h - what the files behind mpi.h know of each other. Nobody else's business, and not
// installed: it needs MPI's own header.
//
//   mpi.c          MPI is loaded, started and left; who the workers are
//   agree.c    what all say to each other in start-up, in blocking calls
//   window.c   between the workers of a host: memory that they share, and a word in it
//   message.c  between all others: persistent requests
//   round.c     rounds, over both
//   lost.c     who is lost, while start-up or a round waits
//
// A build without MPI has none.c instead of them all.
#ifndef LOCKSTEP_COMM_MPI_PRIVATE_H
#define LOCKSTEP_COMM_MPI_PRIVATE_H

#include <mpi.h>

#include "comm/mpi/mpi.h"

// How long one that is about to end waits for another's word, which may tell more.
enum { LK_MPI_LAST_WORD_MS = 500 };

enum { LK_MPI_ROUNDS = LK_ROUND_LAST + 1 };

// --- mpi.c -------------------------------------------------------------------------------------

// MPI is loaded where a launcher is, not linked: a process alone is not touched by it (UCX, below
// MPICH, puts itself between a program and its calls for memory as soon as it is loaded).
#define LK_MPI_CALLS(X)        \
    X(MPI_Allgather)           \
    X(MPI_Allreduce)           \
    X(MPI_Bcast)               \
    X(MPI_Comm_dup)            \
    X(MPI_Comm_rank)           \
    X(MPI_Comm_set_errhandler) \
    X(MPI_Comm_size)           \
    X(MPI_Comm_split_type)     \
    X(MPI_Finalize)            \
    X(MPI_Get_library_version) \
    X(MPI_Info_create)         \
    X(MPI_Info_free)           \
    X(MPI_Info_set)            \
    X(MPI_Init_thread)         \
    X(MPI_Recv_init)           \
    X(MPI_Request_get_status)  \
    X(MPI_Send_init)           \
    X(MPI_Startall)            \
    X(MPI_Testall)             \
    X(MPI_Win_allocate_shared) \
    X(MPI_Win_shared_query)

extern struct lk_mpi_calls {
#define LK_MPI_CALL_FIELD(name) __typeof__(&name) name;
    LK_MPI_CALLS(LK_MPI_CALL_FIELD)
#undef LK_MPI_CALL_FIELD
} lk_mpi_calls;

// LK_MPI_CALL(MPI_Name, arguments): what it returns. MPICH ends the process in some of its calls
// when another worker dies at a bad moment (assertions of MPICH 4.0, by exit); lost.c sees to it
// that this is said, and that the process ends with LK_RETRY, as after any loss of a worker.
#define LK_MPI_CALL(name, ...) \
    (lk_mpi.inside = true, lk_mpi_returned(lk_mpi_calls.name(__VA_ARGS__)))

typedef struct lk_mpi_peer {
    uint32_t host;  // the lowest rank on its host
    int64_t process;
    uint64_t process_namespace;
    char name[LK_MPI_HOST_BYTES];
} lk_mpi_peer;

// What more than one file knows. All zeros until lk_mpi_start.
extern struct lk_mpi_common {
    // Set by lk_mpi_start for good.
    bool started;
    uint32_t world, rank, host_workers;
    uint32_t cores;  // that this process may use, before its threads are pinned to some of them
    lk_mpi_options options;
    MPI_Comm all, host;  // all workers, those of this host
    lk_mpi_peer peers[LK_MPI_WORLD_MAX];
    // Set by lk_mpi_connect for good: the workers that messages are used with.
    bool connected;
    uint32_t remote_count, remote[LK_MPI_WORLD_MAX];
    // Of the rounds.
    uint64_t step;       // of the last one
    bool leader_writes;  // as its last reports said
    bool broken;         // MPI has said that a connection is
    bool inside;         // in a call of MPI
} lk_mpi;

static inline int lk_mpi_returned(int result) {
    lk_mpi.inside = false;
    return result;
}

// --- round.c --------------------------------------------------------------------------------

// What is given and awaited at once: one bucket of a round.
typedef struct lk_mpi_gift {
    lk_round round;
    uint32_t wanted;  // buckets of the round that a worker has given, this one among them
    uint32_t program;  // whose it is
    int kinds[2];     // of messages
    uint32_t count;
    bool reports;
} lk_mpi_gift;

// Has worker w given what is wanted, however it travels?
bool lk_mpi_has_given(uint32_t w, const lk_mpi_gift *g);

// The leader comes to the end when all is saved. Has it?
bool lk_mpi_leader_has_come(const lk_exchange *x);

// --- window.c ------------------------------------------------------------------------------

// Is worker w one that the window is used with?
bool lk_mpi_in_window(uint32_t w);

// Has worker w given what is wanted, as far as the window tells? It says so of all that are remote.
bool lk_mpi_has_come(uint32_t w, const lk_mpi_gift *g);

// Worker w's report, in either of its two places; NULL where a message carries it. This worker's
// own is always here.
lk_report *lk_mpi_report_here(uint32_t w, uint32_t parity);

// This worker gives one more bucket of the round, and wakes who waits for it.
void lk_mpi_arrive(lk_round round);
// How many buckets of the round this worker has given.
uint32_t lk_mpi_given(lk_round round);

// Until worker w gives something, or a short while.
void lk_mpi_sleep_on(uint32_t w, const lk_mpi_gift *g);

// This worker ends for the death of worker w, and whoever sees its own end reads so. Safe in a
// signal handler.
void lk_mpi_say_lost(uint32_t w);
// For whose death worker w has ended; LK_NONE: for nobody's, or no window tells.
uint32_t lk_mpi_said_lost(uint32_t w);

// --- message.c -----------------------------------------------------------------------------

// What the requests between two workers carry. Reports have two places, so two of each; boxes and
// sums are of a bucket.
enum {
    LK_MPI_REPORT,
    LK_MPI_BOX = LK_MPI_REPORT + 2,
    LK_MPI_SUM = LK_MPI_BOX + LK_BUCKETS_MAX,
    LK_MPI_KINDS = LK_MPI_SUM + LK_BUCKETS_MAX
};

// Inbox: reports (2, remote workers), then for each its boxes and its partitions.
lk_status lk_mpi_make_requests(lk_exchange *x, void *inbox, lk_error *error);

// From all remote workers, before they can have anything of this kind to send; to all of them.
void lk_mpi_start_receives(int kind);
void lk_mpi_start_sends(const lk_mpi_gift *g);

// Has everything of the gift been sent and received? Never waits, but messages get on.
bool lk_mpi_messages_done(const lk_mpi_gift *g);

// Has it been received from lk_mpi.remote[at]; the report that has.
bool lk_mpi_message_is_here(uint32_t at, const lk_mpi_gift *g);
const lk_report *lk_mpi_report_of(uint32_t at, uint32_t parity);

// --- lost.c --------------------------------------------------------------------------------

// From here to lk_mpi_seal an alarm ends the process where start-up lasts too long.
void lk_mpi_limit_start(void);

// At exit: if MPI has ended the process in one of its calls, it ends in its own words. For atexit.
void lk_mpi_on_exit(void);

// After a call of MPI that failed in start-up: the end, if another worker has died.
void lk_mpi_blame_dead(void);

// A blocking call of start-up: the others are all there, or nothing goes on.
void lk_mpi_need(int result);

// Whoever is lost may have given up since another is stopped. For lk_rendezvous_ask.
void lk_mpi_look_for_stopped(uint32_t lost);

// Where the workers have found each other by themselves, the sign of life tells more, and a moment
// later.
void lk_mpi_let_rendezvous_speak(void);

// The processes of this host are watched from here on.
void lk_mpi_watch(void);

// Somebody has been waited for, `seconds` by now. LK_OK: the waiting goes on; else why it ends.
lk_status lk_mpi_judge_silence(double seconds, const lk_mpi_gift *g, lk_error *error);

#endif
