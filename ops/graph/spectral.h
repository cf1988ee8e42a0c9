// spectral.h - spectral_normalization: layers whose kernel w is divided by an estimate of its
// greatest singular value, one power iteration a step. Freestanding. ARITHMETIC.md 7.
//
// With w seen as a matrix (rows, columns), its columns the last size, and the state u (columns):
//
//   a = w u       v = a / |a|        b = v w       n = b / |b|        sigma = b . n
//
// The layer computes with w / sigma. Of the gradient sum G with respect to that, with v and n held
// fixed, w has
//
//   (G - (G . w / sigma) v n) / sigma
//
// and n becomes u where the step is applied. All of this is of w and u alone, so each replica makes
// it by itself as a step or an evaluation begins, from the same numbers in the same order; in an
// evaluation, or a step that does not train w, u stays as it is. Sums are those of a dense layer
// and of its input's gradient, by their kernels.
//
// G . w is a sum of products by slices, as norms are of squares: comm/step/norms.h.
#ifndef LOCKSTEP_OPS_GRAPH_SPECTRAL_H
#define LOCKSTEP_OPS_GRAPH_SPECTRAL_H

#include "ops/graph/execute.h"

// Layers of a model that have it.
uint32_t lk_spectral_count(const lk_model *model);

// Floats of what a replica keeps of a kernel beside its normalized one, in this order and each
// rounded up to 16: v, n, numbers, scratch.
uint64_t lk_spectral_floats(uint64_t count, uint64_t columns);

// What cannot be had together with it: norms and averages in the objective that trains it.
lk_status lk_spectral_check(const lk_program *program, lk_error *error);

// One kernel of a frame.
typedef struct lk_spectral {
    const float *w;             // (rows, columns)
    float *u;                   // (columns) the state
    float *normalized, *v, *n;  // (rows, columns), (rows), (columns) of this replica, as all below
    float *numbers;             // 1 / sigma, or 1 where sigma is not above 0 and, says the other
                                // one, u stays, and G too
    float *scratch;
    uint64_t rows, columns;
    lk_dtype dtype;  // what the normalized kernel is rounded to
} lk_spectral;

// One of `count` elements in fp32; `memory` has lk_spectral_floats, and all is aligned to 64 bytes.
lk_spectral lk_spectral_of(uint64_t count, uint64_t columns, const float *w, float *u,
                           float *normalized, float *memory);

// Makes v, n, the factor and the normalized kernel. Returns 1 where a number is not finite.
uint32_t lk_spectral_make(const lk_kernels *kernels, const lk_spectral *s);

// The same for every kernel that an op of the frame's program takes; flags the first of these ops.
#if LK_HAS_SPECTRAL
void lk_spectral_start(lk_frame *frame);
#else
#define lk_spectral_start(frame) ((void)(frame))
#endif

// The kernel of a forward op, in the frame.
lk_spectral lk_spectral_at(const lk_frame *frame, const lk_op *op);

// The first forward op that takes a parameter as its kernel; NULL: none does.
const lk_op *lk_spectral_op(const lk_program *program, uint32_t param);

// Elements [first, first + count) of G, which lie at `sum`, become those of the gradient sum with
// respect to w. `product`: G . w.
void lk_spectral_turn(const lk_kernels *kernels, const lk_spectral *s, float product,
                      uint64_t first, uint64_t count, float *sum);
void lk_spectral_turn_reference(uint64_t count, float share, float factor, const float *n,
                                float *g);

// n becomes u.
void lk_spectral_keep(const lk_spectral *s);

#endif
