// flop.h - the floating-point operations of a training step.
//
// Products and sums of convolutions and dense layers; pooling, ReLU, loss and update are not
// counted, by anybody. "framework" counts every position of a convolution's output, "routed" in a
// gradient that comes through a 2x2 max-pool only the winning one of four.
#ifndef LOCKSTEP_APPS_RUN_FLOP_H
#define LOCKSTEP_APPS_RUN_FLOP_H

#include "ops/graph/program.h"

typedef struct lk_step_flop {
    double framework, routed;
} lk_step_flop;

// Of one op, computed for `examples` examples; zero for an op that is not counted.
lk_step_flop lk_op_flop_of(const lk_op *op, uint64_t examples);

// Of one step of all replicas; of several objectives the mean over a cycle of the schedule.
lk_step_flop lk_step_flop_of(const lk_program *program);

#endif
