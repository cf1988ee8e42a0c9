// driver.h - the driver: the order of a step, as a state machine. Freestanding.
//
//     LOAD, FORWARD, BACKWARD   every replica computes its grains
//     VERDICT                   where somebody asks: apply, skip, replay or stop; all have the same
//                               answer, from flags that are joined at the meeting before REDUCE
//     REDUCE, APPLY             every owner adds and updates its partition; where the update asks
//                               for norms of the gradient (norms.h) these are two, with squares,
//                               a meeting and a verdict on the norms between them
//
// How often replicas and workers meet between these depends on what they share. A *course* says it:
// a list of rows, each of them one act of every replica of this worker or of its first replica
// alone. The driver walks through the rows, and knows two tables:
//
//   lk_lanes       who computes: replicas on this processor (below), or GPUs (comm/cuda/lanes.h)
//   lk_transport   how bytes travel between workers, and the course that follows from it:
//                  replicas in turn (below), threads (comm/threads/threads.h), window and messages
//                  (comm/mpi/transport.h)
//
// A transport moves bytes and never adds. Every member of a worker, one for each replica, goes
// through the same rows at its own pace:
//
//   lk_driver_start(d, 0, step);                                       once a step
//   lk_member_start(&m, d, r);  while (lk_member_next(&m) == LK_GOES_ON) {}     member r
//   result = lk_driver_finish(d);                                      when all members are over
//
// A transport that blocks lets nobody see LK_WAITS. The simulation (tests/comm/simulate_test.c)
// never blocks: it calls lk_member_next of whichever member of whichever worker it likes.
#ifndef LOCKSTEP_COMM_STEP_DRIVER_H
#define LOCKSTEP_COMM_STEP_DRIVER_H

#include "comm/step/exchange.h"

// What workers tell each other in one go. STEP and REPORTS carry reports alone, of a step and of an
// evaluation; NORMS carries nothing: what is shared is there; to LAST the leader comes when all is
// saved.
typedef enum lk_round {
    LK_ROUND_BOXES,
    LK_ROUND_SUMS,
    LK_ROUND_NORMS,
    LK_ROUND_STEP,
    LK_ROUND_REPORTS,
    LK_ROUND_LAST,
    LK_NO_ROUND
} lk_round;

// Where the time of a step goes (apps/run/laps.h).
typedef enum lk_lap {
    LK_LAP_COMPUTING,
    LK_LAP_EARLY,
    LK_LAP_WAITING,
    LK_LAP_ROUNDS,
    LK_LAP_MOVING,
    LK_LAP_UPDATING,
    LK_LAPS,
    LK_NO_LAP = LK_LAPS
} lk_lap;

// --- courses -----------------------------------------------------------------------------------

typedef enum lk_act {
    // Of every replica:
    LK_ACT_COMPUTE,   // LOAD, FORWARD, BACKWARD up to the end of a bucket
    LK_ACT_SHARE,     // its share of a bucket's boxes
    LK_ACT_JOIN,      // its share of the sums of a bucket that this worker owns
    LK_ACT_VERDICT,   // nothing where nobody asks
    LK_ACT_REDUCE,    // sums for G: what it owns, or its share of a bucket's
    LK_ACT_SQUARE,    // the squares of what it owns
    LK_ACT_JUDGE,     // the verdict on the norms; nothing where nobody asks
    LK_ACT_APPLY,     // REDUCE where that is still to be done, and APPLY
    LK_ACT_EVALUATE,  // LOAD, FORWARD of the test set
    LK_ACT_MEET,      // none goes on before all replicas of this worker have come
    // Of the first replica alone, for all:
    LK_ACT_LOOK,         // which buckets have come meanwhile?
    LK_ACT_REPORT,         // this worker's report is written, with the last bucket
    LK_ACT_COMPLETE,     // .. and completed
    LK_ACT_GIVE,         // what this worker has written goes to all,
    LK_ACT_GIVE_JOINED,  // .. the sums of all buckets that it has joined since
    LK_ACT_AWAIT,        // what all others have written is here
} lk_act;

typedef struct lk_row {
    uint8_t act, round, lap;  // lk_act, lk_round, lk_lap: what ends with it, by the first's clock
} lk_row;

typedef enum lk_repeat {
    LK_ONCE,
    LK_EACH_BUCKET,   // for every bucket of the exchange
    LK_BUCKETS_LEFT,  // for every bucket that this worker has not joined yet
} lk_repeat;

// Steps whose update asks for norms, or all others.
typedef enum lk_when { LK_ALWAYS, LK_NORMED, LK_PLAIN } lk_when;

typedef struct lk_section {
    const lk_row *rows;
    uint8_t count, repeat, when;
} lk_section;

enum { LK_SECTIONS_MAX = 7 };

typedef struct lk_course {
    lk_section section[LK_SECTIONS_MAX];  // up to the first of no rows
} lk_course;

extern const lk_course lk_course_alone;     // one worker
extern const lk_course lk_course_shared;    // all workers share one memory (exchange.h)
extern const lk_course lk_course_boxes;     // boxes and sums, in buckets (exchange.h)
extern const lk_course lk_course_device;    // the step is the device's; nobody waits for it
extern const lk_course lk_course_devices;   // .. and of several workers', who exchange reports
extern const lk_course lk_course_evaluate;  // an evaluation: of one worker,
extern const lk_course lk_course_evaluates;  // and of several

// --- transports --------------------------------------------------------------------------------

typedef struct lk_driver lk_driver;
typedef struct lk_member lk_member;

typedef enum lk_wait { LK_WAIT_OVER, LK_WAIT_ON, LK_WAIT_LOST } lk_wait;

typedef struct lk_transport {
    const lk_course *step, *evaluation;
    // Have all replicas of this worker come to this row?
    lk_wait (*meet)(lk_member *m);
    // Called by the first replica alone; not where one worker is alone. A bucket of a round is
    // given once and awaited once a step, in ascending order; reports have one bucket and go with
    // the last bucket of the boxes. `look` never waits: have all given theirs? A bucket for which
    // it said so is not awaited any more. `await` says LK_WAIT_LOST, and in d->lost why, where
    // workers are lost.
    void (*give)(lk_driver *d, lk_round round, uint32_t bucket);
    bool (*look)(lk_driver *d, lk_round round, uint32_t bucket);
    lk_wait (*await)(lk_driver *d, lk_round round, uint32_t bucket);
} lk_transport;

// --- who computes ------------------------------------------------------------------------------

typedef struct lk_lanes {
    void (*compute)(lk_member *m);
    void (*share)(lk_member *m);
    void (*join)(lk_member *m, uint32_t bucket);
    // Where the verdict is not LK_VERDICT_APPLY, no weight is written.
    void (*apply)(lk_member *m);
    void (*reduce)(lk_member *m);
    void (*square)(lk_member *m);
    void (*evaluate)(lk_member *m);
    // What was found that is not finite, joined over all workers. false: nobody knows any more.
    bool (*flags)(const lk_member *m, lk_flags *out);
    bool (*norm_flags)(const lk_member *m, lk_flags *out);
    void (*report)(lk_driver *d);
    void (*complete)(lk_driver *d);
    lk_step_result (*finish)(lk_driver *d);
} lk_lanes;

extern const lk_lanes lk_lanes_alone;   // replicas of one worker,
extern const lk_lanes lk_lanes_steps;   // .. of a board: no evaluation, verdict or norms,
extern const lk_lanes lk_lanes_scaled;  // .. of one whose loss is scaled: with a verdict,
extern const lk_lanes lk_lanes_normed;  // .. of one whose updates want norms
extern const lk_lanes lk_lanes_shared;  // of one of several that share a memory
extern const lk_lanes lk_lanes_boxes;   // of one of several that do not

// --- the driver --------------------------------------------------------------------------------

// The verdict on a step with these flags: LK_VERDICT_APPLY where there is none, and nowhere else
// (GPUs have followed that rule already). Every replica of every worker asks it for itself: so it
// depends on nothing that they do not all know alike, and changes nothing.
typedef lk_verdict (*lk_decide)(const void *context, uint64_t step, const lk_flags *flags);

struct lk_driver {
    const lk_lanes *lanes;
    const lk_transport *transport;
    void *lanes_context, *transport_context;  // theirs alone
    lk_group *groups;                         // (programs) one for each step program
    lk_exchange *exchanges;                   // (programs) or NULL: one worker
    uint32_t programs;
    lk_error *lost;    // why other workers, or a GPU, are not heard any more
    lk_decide decide;  // NULL: nobody asks, and every step is applied
    const void *decide_context;
    // A lap has ended; round: the one that was awaited, or LK_NO_ROUND. NULL: nobody looks.
    void (*lap)(void *clock, lk_lap lap, lk_round round);
    void *clock;
    uint32_t stop;  // told to all with the next report: a signal this worker was asked to stop by;
    bool save_by_clock;  // the leader's clock says that the step is saved
    // Of the step or the evaluation under way:
    const lk_course *course;
    lk_group *group;
    lk_exchange *exchange;
    uint64_t step;          // of an evaluation: steps done
    const lk_source *test;  // NULL: a step
    uint64_t test_count;
    uint32_t buckets;
    lk_when when;         // this step is
    uint32_t here;        // buckets whose boxes have come, from the first on
    uint32_t lost_after;  // the number of the meeting after which all end; 0: nobody is lost
    lk_verdict verdict;
};

struct lk_member {
    lk_driver *driver;
    uint32_t replica;
    uint32_t section, row, bucket;
    uint32_t meetings;       // that this member has been to
    uint32_t joined, given;  // buckets that it has joined; of the first: whose sums are given
    bool over;
    lk_verdict verdict;
    uint32_t bad_param;  // that the verdict is about, or LK_NONE
    lk_walk walk;
};

typedef enum lk_going { LK_GOES_ON, LK_WAITS, LK_OVER } lk_going;

// All pointers but `exchanges`, `lap` and `decide` are set. A step after one that is replayed is
// the same step.
void lk_driver_start(lk_driver *d, uint32_t program, uint64_t step);
void lk_driver_start_evaluation(lk_driver *d, uint32_t program, uint64_t steps_done,
                                const lk_source *test, uint64_t count);
lk_step_result lk_driver_finish(lk_driver *d);

void lk_member_start(lk_member *m, lk_driver *d, uint32_t replica);
lk_going lk_member_next(lk_member *m);

// A replica or a GPU cannot go on: this member's step ends here.
static inline void lk_member_end(lk_member *m) { m->over = true; }

// One worker whose replicas take turns, over lk_in_turn: all of a step.
extern const lk_transport lk_in_turn;
void lk_driver_run_in_turn(lk_driver *d);

// The lap of the first member ends.
static inline void lk_member_lap(const lk_member *m, lk_lap lap, lk_round round) {
    const lk_driver *d = m->driver;
    if (m->replica == 0 && d->lap && lap != LK_NO_LAP) d->lap(d->clock, lap, round);
}

#endif
