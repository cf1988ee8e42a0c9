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

// What a joint layer has of the scores of all cells of a microbatch, (examples, frames, labels + 1,
// symbols): a tile of them, with all that its ops want beside it. False: the op is no joint.
typedef struct lk_plan_joint {
    const char *layer;
    uint32_t examples, frames, columns, symbols;
    uint32_t tile;         // cells
    uint64_t whole_bytes;  // of the scores of all cells, as floats
    uint64_t tile_bytes;   // the most scratch of its ops
} lk_plan_joint;
bool lk_plan_joint_of(const lk_program *program, uint32_t op, lk_plan_joint *out);

// What is said of the persistent kernel (layout.persistent), and why; empty where nobody asked.
enum { LK_PLAN_PERSISTENT_BYTES = 320 };
void lk_plan_persistent(const lk_run *run, char text[LK_PLAN_PERSISTENT_BYTES]);

#endif
