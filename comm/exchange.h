// exchange.h - what workers give each other in a step: whole tree nodes as bytes, finished sums,
// and a short note. Freestanding; knows who owns what, not how bytes travel (comm/mpi.h).
//
// The vector of gradients (program.h, loss_offset) is cut into one slice for each worker, its
// owner. In a step, after all replicas of a worker have computed:
//
//     SHARE    worker w joins its replicas' nodes to the few whole nodes that its grains make. The
//              part of them that lies in slice d is box (w, d).
//     ------------------------- turn: box (w, d) is with d; every note is with everybody ---------
//     JOIN     owner d joins the boxes (*, d), in tree order, to slice d of the whole sum
//     ------------------------- turn: every finished slice is with everybody ---------------------
//     APPLY    every worker updates all its parameters from the same sums, so to the same bits
//
// Nothing but lk_reduce adds, so neither the cut nor the transport can change a number. What is
// written in one turn is read before the next begins, and overwritten after it: two turns a step
// suffice, and notes, which alone go round in evaluation too, lie in two places by turns.
//
// Where all workers share a memory (program.h, `shared`), nothing is boxed: every replica updates
// what it owns from what the others hold, as threads of one process do, parameters and slots exist
// once, and of all this the notes alone are left.
//
//     ------------------------- turn: all have computed; every note is with everybody -----------
//     UPDATE   lk_step_update, every replica its own part
//     ------------------------- turn: parameters are new, every note is complete ----------------
//
// Where all workers' devices exchange by themselves (program.h, `direct`; comm/cuda_exchange.h),
// the notes alone are left too: of a step, what its workers are asked to do next.
#ifndef LOCKSTEP_COMM_EXCHANGE_H
#define LOCKSTEP_COMM_EXCHANGE_H

#include "comm/step.h"

// One worker: replicas [before, before + replicas) of all, threads or on so many GPUs.
typedef struct lk_worker {
    uint32_t replicas, before;
    uint32_t gpus;  // 0: threads
} lk_worker;

// What everybody must know of everybody before a step or an evaluation has a result.
typedef struct lk_note {
    uint32_t stop;                // a signal this worker was asked to stop by, or 0
    uint32_t save;                // it will save after this step, by the clock
    uint32_t correct;             // of its examples
    uint32_t bad_op;              // first op of which a result was not finite, or LK_NONE
    uint32_t bad_param;           // likewise, of the parameters it alone has updated
    lk_counter blocks;            // its whole nodes of this step
    float losses[LK_BLOCKS_MAX];  // the loss sum of each
} lk_note;

typedef struct lk_exchange {
    const lk_program *program;
    const lk_worker *workers;  // (world)
    uint32_t world, rank;
    uint32_t slots;     // of this worker
    float *boxes_out;   // (slots, loss_offset) in all: box (rank, d) is (slots, floats of slice d)
    float *sum_out;     // (floats of slice rank)
    lk_note *note_out;  // where the next note is written, and
    lk_note *note_given;  // where the last one was
    // Set by the transport: where after a turn lies what the others wrote, (world) each.
    const float **box;  // box (w, rank)
    const float **sum;  // slice w of the whole sum
    const lk_note **note;
    lk_holding *holdings;  // (replicas, world): each replica's own table
} lk_exchange;

// A part of the gradients: floats [begin, end) of a node, both multiples of 16. It depends on the
// parameters alone, so it is the same whatever a worker computes with.
typedef struct lk_slice {
    uint64_t begin, end;
} lk_slice;
lk_slice lk_slice_of(const lk_program *program, uint32_t parts, uint32_t part);

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

// Floats that a worker gives: its boxes, then its slice of the sum.
uint64_t lk_exchange_floats(const lk_program *program, const lk_worker *workers, uint32_t world,
                            uint32_t worker);

// Bytes of the tables, and the tables in `memory` (aligned to 64). boxes_out, sum_out, note_out
// and the pointers that the transport sets are still to be filled in.
uint64_t lk_exchange_bytes(uint32_t world, uint32_t replicas);
void lk_exchange_make(lk_exchange *x, const lk_program *program, const lk_worker *workers,
                      uint32_t world, uint32_t rank, void *memory);

// The parts of a step, for each replica of this process.
void lk_exchange_share(lk_exchange *x, lk_world *world, uint32_t replica, uint64_t step);
void lk_exchange_join(lk_exchange *x, lk_world *world, uint32_t replica, uint64_t step);
void lk_exchange_apply(lk_exchange *x, lk_world *world, uint32_t replica, uint64_t step);

// Writes this worker's note, once its replicas have computed their share of `grains` grains of
// which the first `leaves` are there.
void lk_exchange_write_note(lk_exchange *x, const lk_world *world, uint32_t grains, uint32_t leaves,
                            uint32_t stop);

// Where the memory is shared, after the update: completes the note that went round last.
void lk_exchange_complete_note(lk_exchange *x, const lk_world *world);

// The result of the step or evaluation over `examples` in `leaves` grains, from all notes: the same
// for every worker.
lk_step_result lk_exchange_finish(const lk_exchange *x, lk_world *world, uint32_t leaves,
                                  uint64_t examples);

#endif
