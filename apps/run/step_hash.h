// step_hash.h - the step hash of a whole tensor (comm/step/hash.h) at the speed of a kernel table:
// a run logs it of all parameters while nobody computes. The same sum with every table. Host only.
#ifndef LOCKSTEP_APPS_RUN_STEP_HASH_H
#define LOCKSTEP_APPS_RUN_STEP_HASH_H

#include "ops/op.h"

uint64_t lk_step_hash_by(const lk_kernels *kernels, const float *values, uint64_t count);

#endif
