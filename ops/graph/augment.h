// augment.h - LOAD of an image that is normalised or augmented. Freestanding.
#ifndef LOCKSTEP_OPS_GRAPH_AUGMENT_H
#define LOCKSTEP_OPS_GRAPH_AUGMENT_H

#include "ops/graph/execute.h"

// Into x the image of example number `example` of the global batch, as step `step` sees it; where
// nothing is trained, as an evaluation does.
void lk_augment_load(const lk_frame *frame, bool train, uint64_t step, uint32_t example,
                     const uint8_t *image, float *x);

#endif
