// plan_json.h - the plan of a run for other programs, and what is counted for it.
#ifndef LOCKSTEP_APPS_RUN_PLAN_JSON_H
#define LOCKSTEP_APPS_RUN_PLAN_JSON_H

#include "apps/run/run.h"
#include "apps/run/traffic.h"

// The plan as one JSON document; out == NULL measures. Returns its length. `link` may be NULL.
size_t lk_plan_json(const lk_run *run, const lk_link *link, char *out, size_t bytes);

// All messages of a step between GPUs, in their order, as a hash.
void lk_plan_schedule(const lk_cuda_exchange *x, char hex[LK_SHA256_HEX_BYTES]);

// Bytes that cross between replicas in one full step: nodes read by slice owners, operands read by
// row owners.
uint64_t lk_plan_exchange_bytes(const lk_program *program);

#endif
