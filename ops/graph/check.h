// check.h - the memory checking mode (layout.guards): mistakes in a plan or a kernel made loud.
// Freestanding. Costs a pass over the memory at every op, changes no bit of a correct program.
//
// A tensor is alive from its first to its last op; in a plan with guards the LK_GUARD_BYTES behind
// it live as long. So for each op, in its replica's region:
//
//   before   the tensors it is the first to use are filled with POISON, their guards written
//   after    of those it is the last to use, the guards are looked at, and they are filled again
//
// A write beyond a tensor destroys its guard: a panic names tensor and op. A value read before it
// was written or after its life is a signalling NaN: the step ends as not finite, at that tensor.
#ifndef LOCKSTEP_OPS_CHECK_H
#define LOCKSTEP_OPS_CHECK_H

#include "ops/graph/execute.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LK_CHECK_POISON 0x7fa1a1a1u  // of four bytes; as a float a signalling NaN
#define LK_CHECK_POISON_HALF 0x7fa17fa1u  // of two times two; as either float of 16 bits a NaN
#define LK_CHECK_GUARD  0x9d         // of a byte

// Where a tensor's guard ends, in bytes from its start. It begins right behind the tensor: with the
// bytes that only round it up to a cache line.
static inline uint64_t lk_check_guard_end(const lk_tensor *t) {
    return lk_round_up(t->bytes, LK_TENSOR_ALIGN_BYTES) + LK_GUARD_BYTES;
}

// Says that the guard `bytes` behind a tensor is broken, seen after the last op that uses it, and
// ends the program.
__attribute__((noreturn)) void lk_check_broken(const lk_program *program, uint32_t tensor,
                                               uint64_t bytes);

// Once, before the first step: the replica's region is poison, the guards of tensors that live as
// long as the run are written, those of the device region too. Of a program that is planned for a
// device the device region alone: it is the host's mirror of it (comm/cuda/guards.h has the rest).
void lk_check_start(const lk_frame *frame);

void lk_check_before_op(const lk_frame *frame, uint32_t op);
// `poison` is false in evaluation, where the logits are still wanted after their last op.
void lk_check_after_op(const lk_frame *frame, uint32_t op, bool poison);

// After a step: the guards of the tensors that live as long as the run.
void lk_check_lasting(const lk_frame *frame);

#ifdef __cplusplus
}
#endif
#endif
