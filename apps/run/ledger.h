// ledger.h - which example is used where: step, position, grain and replica, and back, from
// arithmetic alone. No data is read and no run is opened. Freestanding.
//
// Steps count from 0 here, as everywhere in the library; a replica is one of all workers' together.
#ifndef LOCKSTEP_APPS_RUN_LEDGER_H
#define LOCKSTEP_APPS_RUN_LEDGER_H

#include "ops/graph/program.h"

typedef struct lk_ledger_use {
    uint64_t example;  // its index in the training set; of strips none
    uint32_t image_count;  // of a strip: its images, by their indices in the training set
    uint64_t images[LK_STRIP_IMAGES_MAX];
    uint64_t epoch, step;
    uint32_t position;  // in the global batch
    uint32_t grain;     // of the step
    uint32_t replica;
} lk_ledger_use;

// What position `position` of the global batch of step `step` uses, on one of `replicas` replicas.
// False where there is no example: behind the end of a short batch.
bool lk_ledger_at(const lk_run_spec *spec, uint32_t replicas, uint64_t step, uint32_t position,
                  lk_ledger_use *use);

// Where epoch `epoch` uses example `example`. False where it does not: in a last, short batch that
// is left out (drop_remainder).
bool lk_ledger_find(const lk_run_spec *spec, uint32_t replicas, uint64_t epoch, uint64_t example,
                    lk_ledger_use *use);
// The strip of round `round` of epoch `epoch` that has image `image` (lk_strip_find). False where
// there is none.
bool lk_ledger_find_strip(const lk_run_spec *spec, uint32_t replicas, uint64_t epoch,
                          uint64_t round, uint64_t image, lk_ledger_use *use);

#endif
