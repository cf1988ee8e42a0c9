// lanes.h - the acts of a step (comm/step/driver.h) by the GPUs of a worker, one member for all of
// them. Part of comm/cuda/group.h; nobody else's business.
#ifndef LOCKSTEP_COMM_CUDA_LANES_H
#define LOCKSTEP_COMM_CUDA_LANES_H

#include "comm/cuda/group.h"

void lk_cuda_group_use(lk_cuda_group *g, const lk_program *program);

// What this needs of group.c. A step is handed to all GPUs; they have done all that was; the second
// half of a step that is staged; the result of the last step, or of the first that was not finite.
lk_status lk_cuda_group_begin(lk_cuda_group *g, uint64_t step, lk_error *error);
lk_status lk_cuda_group_wait(lk_cuda_group *g, lk_error *error);
lk_status lk_cuda_group_update(lk_cuda_group *g, uint64_t step, lk_error *error);
lk_status lk_cuda_group_settle(lk_cuda_group *g, lk_step_result *result, lk_error *error);
lk_status lk_cuda_group_flags(lk_cuda_group *g, lk_flags *out, lk_error *error);

// The mirror's loss scale follows the verdict on a step, or is told, NULL where there is none; so
// does the count of steps that were skipped; and the GPUs have the same.
void lk_cuda_group_follow(lk_cuda_group *g, lk_verdict verdict);
const lk_scale_state *lk_cuda_group_scale(const lk_cuda_group *g);

// Examples [0, count) of `source`, in order, forward only; on_logits may be NULL. Then the result
// of the GPUs of this worker alone.
lk_status lk_cuda_group_evaluate(lk_cuda_group *g, const lk_source *source, uint64_t count,
                                 lk_on_logits on_logits, void *context, lk_error *error);
lk_step_result lk_cuda_group_evaluated(lk_cuda_group *g, uint64_t count);

// Who computes, and the transport between workers that follows from how their GPUs exchange.
void lk_cuda_drive(lk_cuda_group *g, lk_driver *d);

#endif
