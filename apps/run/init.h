// init.h - a run that begins with somebody else's weights: parameters by their names from a
// safetensors file, in place of what their initializers make. The run identity holds a hash of what
// was taken, so that a run is of the weights that it began with.
//
//   init.file   any safetensors file: a checkpoint, an export of layout keras (LAYER/kernel (in,
//               out), LAYER/bias) or of layout torch (LAYER.weight (out, in), LAYER.bias), or what
//               another program writes with such names
//   init.map    "OTHER=MINE,..": layer MINE of the model is called OTHER in the file
//   init.skip   "MINE,..": layers that keep what their initializers made
//
// Every parameter of every other layer must be there in its shape, as finite fp32. States, such as
// moving statistics, are taken where the file has them. What else is in the file is left there.
// Host only, start-up only: may use the heap.
#ifndef LOCKSTEP_APPS_RUN_INIT_H
#define LOCKSTEP_APPS_RUN_INIT_H

#include "apps/run/run.h"

// Takes what the configuration asks for, if it does, and puts the hash into the specification.
//
// store         whether this process has the parameters: run->core.device is then written
// LK_NO_INPUT, LK_BAD_DATA, LK_BAD_CONFIG; nothing was started then.
lk_status lk_init_take(lk_run *run, bool store, lk_error *error);

#endif
