// layers.h - layers of a model in a word each, for the tests of ops/.
#ifndef LOCKSTEP_TESTS_OPS_LAYERS_H
#define LOCKSTEP_TESTS_OPS_LAYERS_H

#include "ops/graph/model.h"

#define POOL(n, size, stride, pad)                                              \
    {                                                                           \
        .type = &lk_layer_max_pool2d, .name = n, .size_h = size, .size_w = size, \
        .stride_h = stride, .stride_w = stride, .padding = pad                  \
    }
#define FLATTEN \
    { .type = &lk_layer_flatten, .name = "flatten" }
#define NORM(n)                                                                          \
    {                                                                                    \
        .type = &lk_layer_batch_normalization, .name = n, .epsilon = 1e-3f, .momentum = 0.9f, \
        .scale = true, .center = true                                                    \
    }
#define CELLS(n)                                                                   \
    {                                                                              \
        .type = &lk_layer_layer_normalization, .name = n, .epsilon = 1e-3f,        \
        .scale = true, .center = true                                              \
    }
#define RELU(n) \
    { .type = &lk_layer_relu, .name = n }

#endif
