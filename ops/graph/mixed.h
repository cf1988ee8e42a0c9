// mixed.h - kernels of fp32 over tensors of 16 bits: mixed precision. Freestanding.
// ARITHMETIC.md 15.
//
// In memory a tensor of mixed precision has 16 bits; a kernel reads and writes fp32. So an op goes
// through its examples by blocks, small enough for a cache:
//
//   widen    what it reads: exact
//   compute  by the kernel that any model has: the same chains, slices and trees
//   narrow   what it writes: one rounding, ReLU or its mask, and a look at what is not finite
//
// Kernels of products do so themselves (lk_half in ops/op.h), and get all examples at once.
//
// What it rounds and where, and what it looks at, follows the model alone: not blocks, not fusion.
// The walk calls this in place of a kernel where one of the op's tensors has 16 bits.
#ifndef LOCKSTEP_OPS_MIXED_H
#define LOCKSTEP_OPS_MIXED_H

#include "ops/graph/execute.h"

// Floats of a block: what is widened and narrowed at once.
enum { LK_MIXED_FLOATS = 32 * 1024 };

// Examples of a block of sequences, at least: each time is one product of all of them.
enum { LK_MIXED_SEQUENCES = 32 };

// Has one of the op's tensors 16 bits, or is it the loss? (Winners of a pool are no floats.)
bool lk_mixed_has_half(const lk_program *program, const lk_op *op);
static inline bool lk_mixed_is(const lk_program *program, const lk_op *op) {
    return lk_model_is_mixed(&program->spec->model) && lk_mixed_has_half(program, op);
}

// Scratch of an op for which that is so; then what it computes is called by these.
uint64_t lk_mixed_scratch_floats(const lk_program *program, const lk_op *op);
uint32_t lk_mixed_call(lk_frame *frame, const lk_op *op, const lk_microbatch *microbatch,
                       lk_lane *lane);

// Is the op's gradient of parameters one whose operands are widened whole, a grain at a time?
bool lk_mixed_by_grain(const lk_program *program, const lk_op *op);

// The gradient of parameters, with `views` of the grains, behind which is room for as many.
void lk_mixed_sums(lk_frame *frame, const lk_op *op, const lk_lane *lane, lk_grain_view *views);

// LOAD: an example that lies at `from` in fp32 becomes row `row` of its tensor.
uint32_t lk_mixed_load(const lk_frame *frame, const lk_op *op, uint32_t row, const float *from);

// --- for a gradient whose rows are computed apart (comm/step/step.c) -----------------------------

// Of the operands of all replicas: the rows that are computed at once, at most, and the scratch.
uint64_t lk_mixed_rows(const lk_program *program, const lk_op *op);
uint64_t lk_mixed_rows_floats(const lk_program *program, const lk_op *op);

// `views` (count, and room for as many behind): first the gradients are widened into `scratch`,
// then for each run of rows the inputs. The op that then computes rows [0, rows) is in *run.
typedef struct lk_mixed_rows_state {
    lk_op run;
    lk_grain_view *wide;
    float *x;
} lk_mixed_rows_state;
void lk_mixed_rows_start(lk_mixed_rows_state *state, const lk_frame *frame, const lk_op *op,
                         lk_grain_view *views, uint32_t count, float *scratch);
void lk_mixed_rows_take(lk_mixed_rows_state *state, const lk_frame *frame, const lk_op *op,
                        const lk_grain_view *views, uint32_t count, uint64_t first, uint64_t rows);

// --- weights -------------------------------------------------------------------------------------

// Every weight that products take, rounded: after parameters were made or loaded. Returns the first
// parameter of which one is not finite, or LK_NONE.
uint32_t lk_mixed_round(const lk_program *program, uint8_t *device);

#endif
