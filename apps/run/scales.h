// scales.h - what a run says of its loss scales (ops/graph/scale.h): why one ends it, what may
// help, and what has become of them at the end.
#ifndef LOCKSTEP_APPS_RUN_SCALES_H
#define LOCKSTEP_APPS_RUN_SCALES_H

#include "apps/run/run.h"
#include "apps/run/say.h"

// Why a step that overflows at this scale ends the run.
const char *lk_scale_reason(const lk_loss_scale *how, float scale);
// What to try about the scale, with a comma behind it; "" where no other scale helps.
const char *lk_scale_advice(const lk_loss_scale *how, float scale);
// The precisions that want no loss scale.
const char *lk_scale_unscaled(const lk_run *run);

// Scale, skipped and replayed steps of each objective after `done` steps, and a warning of one all
// of whose steps were skipped. Nothing where the model has no loss scale.
void lk_say_scales(const lk_run *run, uint64_t done, const lk_say *say);

#endif
