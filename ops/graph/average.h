// average.h - averages of weights, which evaluation takes in place of them: the slot "average" of
// each parameter that an optimizer with `weight_average` trains. Freestanding.
//
//   average = fma(keep, average, (1 - keep) * w)    after each update, with the new w
//
// keep is the number of the configuration; in an objective's first update 0, as in Keras, so that
// initial weights leave no trace. Training computes with the weights alone.
//
// A program that keeps none is linked without this file: lk_model.averages points to
// lk_average_linked.
#ifndef LOCKSTEP_OPS_AVERAGE_H
#define LOCKSTEP_OPS_AVERAGE_H

#include "ops/graph/execute.h"

struct lk_average_calls {
    // After an update of elements [first, first + count) of parameter `index` by these scalars, the
    // same of its average. Returns 1 where one is not finite.
    uint32_t (*follow)(const lk_frame *frame, const lk_step_scalars *scalars, uint32_t index,
                       uint64_t first, uint64_t count);
    // Puts averages in the place of an op's parameters.
    void (*take)(const lk_frame *frame, const lk_op *op, lk_lane *lane);
    // Averages become the weights: initial ones, or those that were taken from a file.
    void (*start)(const lk_program *program, uint8_t *device);
    // Mixed precision: rounds those of a parameter for products. Returns 1 where one is not finite.
    uint32_t (*round)(const lk_program *program, uint8_t *device, uint32_t index);
};

// lk_kernels.average
uint32_t lk_average_reference(uint64_t count, float keep, const float *w, float *average);

// The tensor of a parameter's average in its device region, of the first objective that keeps one;
// NULL: none does.
const lk_tensor *lk_average_of(const lk_program *program, uint32_t param);

#endif
