// norms.h - a step whose update wants norms of the whole gradient first (ops/optimizer.h, lk_norm).
// Freestanding.
//
// G lies in the device region, once for each memory, and REDUCE and APPLY are two:
//
//   lk_step_reduce (step.h), or exchange.h   the gradient sums, by their owners
//   lk_norms_square(group, r)                the squares of what replica r owns, by slices
//   ------------- all of this memory have come
//   lk_norms_flags                           is a norm not finite? the same for everybody
//   lk_norms_apply(group, r, step)           norms, and the update of what replica r owns
//
// What a replica owns of a parameter begins and ends at multiples of LK_SLICE_TERMS elements
// (lk_group_owned), so no slice has two owners. Norms are trees over slices: whoever wants one adds
// it by itself, from the same numbers in the same order.
#ifndef LOCKSTEP_COMM_STEP_NORMS_H
#define LOCKSTEP_COMM_STEP_NORMS_H

#include "comm/step/step.h"

// Where the sum of an element of G lies, and where one is written.
static inline float *lk_gradient_at(const lk_frame *f, uint32_t param) {
    const lk_program *p = f->program;
    return (float *)lk_tensor_at(f, p->gradient) +
           lk_param_first_slice(p, param) * LK_SLICE_TERMS;
}

// Before anything of a step is computed, or of an evaluation: group->penalty, of the weights as
// forward will take them (ops/ARITHMETIC.md 7), in an evaluation of their averages where there are
// some. Each process for itself: the same weights in the same order.
#ifdef LK_SHORT_FORM_ALONE
#define lk_norms_weigh(group, train) ((void)(group))
#else
void lk_norms_weigh(lk_group *group, bool train);
#endif

void lk_norms_square(lk_group *group, uint32_t replica);
void lk_norms_flags(const lk_group *group, uint32_t replica, lk_flags *out);
void lk_norms_apply(lk_group *group, uint32_t replica, uint64_t step);

#endif
