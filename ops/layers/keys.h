// keys.h - keys of configurations that several layers with a kernel have, for their tables of
// lk_setting. Boards know none of them.
#ifndef LOCKSTEP_OPS_LAYERS_KEYS_H
#define LOCKSTEP_OPS_LAYERS_KEYS_H

#include "ops/layers/layer.h"

#define LK_KEY_ACTIVATION                         \
    {.name = "activation",                        \
     .kind = LK_SETTING_ACTIVATION,               \
     .offset = offsetof(lk_layer, activation),    \
     .meaning = "a layer after it, such as relu"}
#define LK_KEYS_KERNEL_INITIALIZER                                                             \
    {.name = "kernel_initializer",                                                             \
     .kind = LK_SETTING_INITIALIZER,                                                           \
     .offset = offsetof(lk_layer, initializer),                                                \
     .field = "initializer",                                                                   \
     .meaning = "initial values of the kernel"},                                               \
    {.name = "kernel_initializer_value",                                                       \
     .kind = LK_SETTING_FLOAT,                                                                 \
     .offset = offsetof(lk_layer, initial),                                                    \
     .field = "initial",                                                                       \
     .low = -1e6f,                                                                             \
     .high = 1e6f,                                                                             \
     .meaning = "what the initializer takes: value, stddev, limit or gain; 0: its own number"}
#define LK_KEY_KERNEL_REGULARIZER                                             \
    {.name = "kernel_regularizer",                                            \
     .kind = LK_SETTING_L2,                                                   \
     .offset = offsetof(lk_layer, l2),                                        \
     .field = "l2",                                                           \
     .high = 1e6f,                                                            \
     .chosen = "none",                                                        \
     .meaning = "l2: so many times the sum of the kernel's squares is added to the loss"}
#define LK_KEY_DILATION_RATE                                           \
    {.name = "dilation_rate",                                          \
     .kind = LK_SETTING_PAIR,                                          \
     .offset = offsetof(lk_layer, dilation_h),                         \
     .field = "dilation",                                              \
     .most = UINT8_MAX,                                                \
     .constant = 1,                                                    \
     .meaning = "rows and columns from one cell of a window to the next"}
#define LK_KEY_KERNEL_SIZE                        \
    {.name = "kernel_size",                       \
     .kind = LK_SETTING_PAIR,                     \
     .offset = offsetof(lk_layer, size_h),        \
     .field = "size",                             \
     .required = true,                            \
     .most = 1 << 20,                             \
     .meaning = "rows and columns of the window"}
#define LK_KEY_PADDING                             \
    {.name = "padding",                            \
     .kind = LK_SETTING_PADDING,                   \
     .offset = offsetof(lk_layer, padding),        \
     .constant = LK_PADDING_VALID,                 \
     .meaning = "zeros around the image, or none"}
#define LK_KEY_SPECTRAL_NORMALIZATION                                         \
    {.name = "spectral_normalization",                                        \
     .kind = LK_SETTING_BOOL,                                                 \
     .offset = offsetof(lk_layer, spectral),                                  \
     .field = "spectral",                                                     \
     .meaning = "divides the kernel by an estimate of its greatest singular value"}
#define LK_KEY_STRIDES                                          \
    {.name = "strides",                                         \
     .kind = LK_SETTING_PAIR,                                   \
     .offset = offsetof(lk_layer, stride_h),                    \
     .field = "stride",                                         \
     .most = 1 << 20,                                           \
     .constant = 1,                                             \
     .meaning = "rows and columns from one window to the next"}
#define LK_KEY_USE_BIAS(what)                  \
    {.name = "use_bias",                       \
     .kind = LK_SETTING_BOOL,                  \
     .offset = offsetof(lk_layer, use_bias),   \
     .constant = true,                         \
     .meaning = "adds a number to each " what}

#endif
