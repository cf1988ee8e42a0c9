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
// The walk calls this in place of a kernel where one of the op's tensors has 16 bits. On a GPU its
// hands do the work, and a block is a whole microbatch.
#ifndef LOCKSTEP_OPS_MIXED_H
#define LOCKSTEP_OPS_MIXED_H

#include "ops/graph/execute.h"

// Floats of a block: what is widened and narrowed at once.
enum { LK_MIXED_FLOATS = 32 * 1024 };

// Examples of a block of sequences, at least: each time is one product of all of them.
enum { LK_MIXED_SEQUENCES = 32 };

// Who does it: a processor, at once; or a GPU, on addresses of its own, which notes itself what is
// not finite and returns 0.
typedef struct lk_mixed_hands {
    // Calls the op's kernel. What it returns counts only where that is heeded.
    uint32_t (*compute)(lk_frame *f, lk_lane *lane, const lk_op *op, bool heeds);
    void (*widen)(lk_frame *f, lk_dtype dtype, uint64_t count, const void *from, float *to);
    // Rounds values to `to`; of dtype LK_F32 they lie where they shall, and are only looked at.
    uint32_t (*store)(lk_frame *f, const lk_narrow *how, const lk_look *look, uint64_t count,
                      const float *from, uint16_t *to);
    // lk_kernels.narrow_pool, of each of `examples` examples.
    uint32_t (*pool)(lk_frame *f, const lk_narrow *how, const lk_conv2d *conv, uint32_t examples,
                     bool heeds, const float *from, uint16_t *to, uint8_t *winners);
    void (*scale)(lk_frame *f, uint64_t count, float *dx);  // by the loss scale, which there is
    void (*relu)(lk_frame *f, uint64_t count, float *y);
    void (*clear)(lk_frame *f, uint64_t bytes, void *at);
} lk_mixed_hands;

// What a device's lane begins with (lk_frame.lane_device; NULL: a processor).
typedef struct lk_mixed_device {
    const lk_mixed_hands *hands;
} lk_mixed_device;

// Has one of the op's tensors 16 bits, or is it the loss? (Winners of a pool are no floats.)
bool lk_mixed_has_half(const lk_program *program, const lk_op *op);
static inline bool lk_mixed_is(const lk_program *program, const lk_op *op) {
    return lk_model_is_mixed(&program->spec->model) && lk_mixed_has_half(program, op);
}

// Scratch of an op for which that is so; then what it computes is called by these.
uint64_t lk_mixed_scratch_floats(const lk_program *program, const lk_op *op);
uint32_t lk_mixed_call(lk_frame *frame, const lk_op *op, const lk_microbatch *microbatch,
                       lk_lane *lane);

// What the kernel of a loss wrote of `count` examples is multiplied by the loss scale, before its
// one rounding; of any other op, and where there is no scale, nothing happens.
void lk_mixed_scale(lk_frame *frame, const lk_op *op, const lk_lane *lane, uint32_t count);

// Scratch of such an op for what a device widens, beside its kernel's own.
uint64_t lk_mixed_device_floats(const lk_program *program, const lk_op *op);

// Is the op's gradient of parameters one whose operands are widened whole, a grain at a time?
bool lk_mixed_by_grain(const lk_program *program, const lk_op *op);

// The gradient of parameters, with `views` of the grains, behind which is room for as many.
void lk_mixed_sums(lk_frame *frame, const lk_op *op, const lk_lane *lane, lk_grain_view *views);

// .. on a device: of lane->examples rows, from those of its first grain on.
void lk_mixed_device_sums(lk_frame *frame, const lk_op *op, const lk_lane *lane);

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
