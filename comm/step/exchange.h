// exchange.h - what workers give each other in a step: whole tree nodes as bytes, finished sums,
// and a short report. Freestanding; knows who owns what, not how bytes travel (comm/mpi/mpi.h).
//
// The vector of gradients (program.h, loss_offset) is cut into buckets, and each bucket into one
// partition for each worker, its owner. In a step, after all replicas of a worker have computed a
// bucket:
//
//     SHARE    worker w joins its replicas' nodes to the few whole nodes that its grains make. What
//              of them lies in partition d is box (w, d).
//     --------------- round: box (w, d) is with d; with the last bucket's, reports are with all
//     JOIN     owner d joins the boxes (*, d), in tree order, to partition d of the whole sum
//     --------------- round: every finished partition is with everybody
//     APPLY    once the step is computed, every worker updates all its parameters from the same
//              sums, so to the same bits
//
// There is one bucket, of all, unless the layout says `bucket_floats`. Then a bucket has several
// neighbouring layers, enough for that many floats. It is exchanged once backward is done with
// them in a replica's last microbatch, while the layers before them are still computed: their
// bucket comes after it.
//
// Nothing but lk_reduce adds, so neither the cut nor the transport can change a number. What is
// written in one round of a bucket is read before the next begins, and overwritten after it: two
// rounds a step suffice, and reports, which alone go round in evaluation too, lie in two places by
// turns.
//
// Where all workers share a memory (program.h, `shared`), nothing is boxed: every replica updates
// what it owns from what the others hold, as threads of one process do, parameters and slots exist
// once, and of all this the reports alone are left.
//
//     ------- round: all have computed; every report is with everybody
//     UPDATE   lk_step_update, every replica its own partition
//     ------- round: parameters are new, every report is complete
//
// Where all workers' devices exchange by themselves (program.h, `direct`; comm/cuda/exchange.h),
// the reports alone are left too: of a step, what its workers are asked to do next.
#ifndef LOCKSTEP_COMM_STEP_EXCHANGE_H
#define LOCKSTEP_COMM_STEP_EXCHANGE_H

#include "comm/step/step.h"

// One worker: replicas [before, before + replicas) of all, as threads or on its `gpus` GPUs.
typedef struct lk_worker {
    uint32_t replicas, before;
    uint32_t gpus;  // 0: threads
    uint32_t gpu;   // the number of the first of them, where it was asked for; LK_NONE: any
} lk_worker;

// What everybody must know of everybody before a step or an evaluation has a result.
typedef struct lk_report {
    uint32_t stop;               // a signal this worker was asked to stop by, or 0
    uint32_t save_by_clock;      // the leader's clock says that this step is saved: by all
    uint32_t writes_checkpoint;  // it does, before its next report, which may be long in coming
    uint32_t counts[LK_METRIC_COUNTS_MAX];  // of the metrics, of its examples
    uint32_t bad_op;                        // first op of which a result was not finite, or LK_NONE
    uint32_t bad_param;                     // likewise, of the parameters it alone has updated
    lk_counter blocks;                      // its whole nodes of this step
    float sums[LK_BLOCKS_MAX][LK_METRIC_SUMS_MAX];  // of the metrics, of each
} lk_report;

// Floats [begin, end) of a node, both multiples of 16. Partitions depend on the parameters alone,
// so they are the same whatever a worker computes with.
typedef struct lk_partition {
    uint64_t begin, end;
} lk_partition;
lk_partition lk_partition_of(const lk_program *program, uint32_t buckets, uint32_t bucket);

// What is exchanged at once: whole layers, final once op `after_op` of a replica's last microbatch
// is done. The last bucket's is the last op of all.
typedef struct lk_bucket {
    uint64_t begin, end;
    uint32_t after_op;
} lk_bucket;

// What does not travel alone, where nobody says: fewer floats, in all or to each owner, than are
// worth messages of their own.
enum { LK_BUCKETS_MAX = 8, LK_BUCKET_FLOATS = 64 * 1024, LK_PARTITION_FLOATS = 8 * 1024 };

typedef struct lk_buckets {
    uint32_t count;
    lk_bucket bucket[LK_BUCKETS_MAX];
} lk_buckets;
lk_buckets lk_exchange_buckets(const lk_program *program);

// Cuts the gradients of a node into buckets of at least `floats`, in the order in which backward is
// done with them, `most` at most. Returns how many.
uint32_t lk_cut_buckets(const lk_program *program, uint64_t floats, uint32_t most,
                        lk_bucket *buckets);

// The partition of a bucket that a worker owns.
lk_partition lk_bucket_partition(const lk_bucket *bucket, uint32_t world, uint32_t worker);

typedef struct lk_exchange {
    const lk_program *program;  // the one at hand
    const lk_worker *workers;   // (world)
    uint32_t world, rank;
    lk_buckets buckets;
    uint32_t pointers;                    // entries of `box` and `sum` of one program
    const float **all_boxes, **all_sums;  // (programs, pointers)
    uint64_t sums_at;   // floats of the boxes of the largest program, behind which its sums lie
    uint32_t slots;     // of this worker
    float *boxes_out;   // (slots, loss_offset) in all: box (rank, d) of a partition is (slots,
                       // floats), at slots * the partition's begin
    float *sum_out;     // the partitions of rank, those of all buckets one after the other
    lk_report *report_out;  // where the next report is written, and
    lk_report *report_given;     // where the last one was
    bool writes_checkpoint;  // to be said by the next report
    // Set by the transport: where after a round lies what the others wrote.
    const float **box;     // (buckets, world) box (w, rank); of the program at hand, as
    const float **sum;     // (buckets, world) partition w of the whole sum
    const lk_report **report;  // (world)
    // What a step's grains make, as long as it has as many as `leaves` says.
    uint32_t leaves;
    lk_counter *held;      // (replicas) the nodes that a replica holds at the end
    lk_counter *blocks;    // (world) the whole nodes of a worker
    lk_holding *holdings;  // (replicas, replicas or world): each replica's own table
    uint32_t holders;      // of a table
    float *scratch;        // (replicas, scratch_floats)
    uint64_t scratch_floats;
} lk_exchange;

// The most whole nodes that a worker's grains make in a step.
uint32_t lk_exchange_slots(const lk_program *program, const lk_worker *worker);

// Those nodes where the worker's grains are of `grains`, of which the first `leaves` are there.
void lk_exchange_blocks(const lk_program *program, const lk_worker *worker, uint32_t grains,
                        uint32_t leaves, lk_counter *out);

// Do workers give each other boxes and sums? Otherwise none of what follows has any floats.
bool lk_exchange_boxes(const lk_program *program);

// Floats of box (worker, owner); floats of all boxes of a worker.
uint64_t lk_exchange_box_floats(const lk_program *program, const lk_worker *workers, uint32_t world,
                                uint32_t worker, uint32_t owner);

// Floats of all partitions that a worker owns, or of those of the buckets before `end`.
uint64_t lk_exchange_sum_floats(const lk_buckets *buckets, uint32_t world, uint32_t worker,
                                uint32_t end);

// Floats that a worker gives: its boxes, then its partition of the sum.
uint64_t lk_exchange_floats(const lk_program *program, const lk_worker *workers, uint32_t world,
                            uint32_t worker);

// From here on the steps, or an evaluation, of this program: of another objective. Between two
// steps.
void lk_exchange_use(lk_exchange *x, const lk_program *program);

// How many programs a run has, one for each objective; and program k of them.
static inline uint32_t lk_exchange_programs(const lk_program *program) {
    return program->all ? program->programs : 1;
}
static inline const lk_program *lk_exchange_program(const lk_program *program, uint32_t k) {
    return program->all ? &program->all[k] : program;
}

// The most buckets, floats of a node and floats of worker's boxes to an owner or sums in a bucket
// that any of the programs has: what is read must have room for each of them.
typedef struct lk_exchange_most {
    uint32_t buckets;
    uint64_t node_floats, slice_floats[LK_BUCKETS_MAX];
} lk_exchange_most;
lk_exchange_most lk_exchange_largest(const lk_program *program, uint32_t world, uint32_t owner);

// Bytes of the tables, and the tables in `memory` (aligned to 64). boxes_out, sum_out, report_out
// and the pointers that the transport sets are still to be filled in.
uint64_t lk_exchange_bytes(const lk_program *program, uint32_t world);
void lk_exchange_make(lk_exchange *x, const lk_program *program, const lk_worker *workers,
                      uint32_t world, uint32_t rank, void *memory);

// Once a step, before the first bucket is shared: what nodes there will be.
void lk_exchange_foresee(lk_exchange *x, uint64_t step);

// Who does a share of the work: number `number` of `count` in this process.
typedef struct lk_adder {
    const lk_kernels *kernels;
    uint32_t number, count;
} lk_adder;

// What is done with a bucket, by each of them. `held`: the nodes of this process' replicas, or
// GPUs; lk_exchange_held makes the table of a replica.
const lk_holding *lk_exchange_held(lk_exchange *x, const lk_group *group, uint32_t replica);
void lk_exchange_share(lk_exchange *x, const lk_adder *by, const lk_holding *held, uint32_t holders,
                       uint32_t bucket);
void lk_exchange_join(lk_exchange *x, const lk_adder *by, uint32_t bucket);
// Of all buckets one after the other, once backward is over.
void lk_exchange_apply(lk_exchange *x, lk_group *group, uint32_t replica, uint64_t step,
                       uint32_t bucket);
// The same, where the update asks for norms: the sums become G (norms.h).
void lk_exchange_store(lk_exchange *x, lk_group *group, uint32_t replica, uint32_t bucket);

// Writes this worker's report, once its replicas have computed their share of `grains` grains of
// which the first `leaves` are there.
void lk_exchange_write_report(lk_exchange *x, const lk_group *group, uint32_t grains,
                              uint32_t leaves, uint32_t stop);

// After the round that brought all reports, for each replica that asks: what all workers have
// found.
void lk_exchange_flags(const lk_exchange *x, uint32_t replica, uint32_t leaves, uint64_t examples,
                       float penalty, lk_flags *out);

// Where the memory is shared, after the update: completes the report that went round last.
void lk_exchange_complete_report(lk_exchange *x, const lk_group *group);

// The result of the step or evaluation over `examples` in `leaves` grains, from all reports: the
// same for every worker.
lk_step_result lk_exchange_finish(const lk_exchange *x, lk_group *group, uint32_t leaves,
                                  uint64_t examples);

#endif
