// inputs.h - an example as a step saw it, for people: what LOAD made of its image (moved, mirrored,
// adjusted, cut, normalised), turned back to bytes. Host only. Of inputs of bytes alone.
//
// Computed once more, with the kernels of the run, beside it: nothing of the run is read but its
// configuration, and nothing written but the caller's room.
#ifndef LOCKSTEP_APPS_RUN_INPUTS_H
#define LOCKSTEP_APPS_RUN_INPUTS_H

#include "apps/run/run.h"

// The byte whose place in the range of inputs is nearest.
uint8_t lk_input_byte(const lk_model *model, float x);

// Of lk_input_show's room: the floats of an image and its bytes.
uint64_t lk_input_bytes(const lk_run *run);

// Example number `example` of the global batch of step `step`, whose image is `image`.
//
// room     (lk_input_bytes) aligned like a tensor
// Returns  (height, width, channels) bytes, in the room
const uint8_t *lk_input_show(const lk_run *run, uint64_t step, uint32_t example,
                             const uint8_t *image, void *room);

#endif
