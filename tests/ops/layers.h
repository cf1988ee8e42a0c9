// layers.h - layers of a model in a word each, for the tests of ops/.
#ifndef LOCKSTEP_TESTS_OPS_LAYERS_H
#define LOCKSTEP_TESTS_OPS_LAYERS_H

#include "ops/model.h"

#define POOL(n, size, stride, pad)                                              \
    {                                                                           \
        .kind = LK_LAYER_MAX_POOL2D, .name = n, .size_h = size, .size_w = size, \
        .stride_h = stride, .stride_w = stride, .padding = pad                  \
    }
#define FLATTEN \
    { .kind = LK_LAYER_FLATTEN, .name = "flatten" }
#define RELU(n) \
    { .kind = LK_LAYER_RELU, .name = n }

#endif
