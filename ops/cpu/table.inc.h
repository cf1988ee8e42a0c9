// table.inc.h - all kernels of one variant. The file that includes this is compiled with the flags
// of its instruction set and names the table: #define LK_VARIANT avx2
#include "ops/cpu/vector.h"

#include "ops/cpu/dense.inc.h"

#include "ops/cpu/conv.inc.h"

#include "ops/cpu/misc.inc.h"

#ifdef V_NEON
#include "ops/cpu/dense_neon.inc.h"

#include "ops/cpu/conv_neon.inc.h"

#include "ops/cpu/misc_neon.inc.h"
#define TABLE_BEST(kernel) kernel##_neon
#else
#define TABLE_BEST(kernel) kernel
#endif

#define TABLE_NAME(variant) TABLE_PASTE(lk_kernels_, variant)
#define TABLE_PASTE(a, b) a##b
#define TABLE_TEXT(variant) TABLE_QUOTE(variant)
#define TABLE_QUOTE(text) #text

const lk_kernels TABLE_NAME(LK_VARIANT) = {
    .name = TABLE_TEXT(LK_VARIANT),
    .load_u8 = TABLE_BEST(load_u8),
    .dense_forward = TABLE_BEST(dense_forward),
    .dense_input_gradient = TABLE_BEST(dense_input_gradient),
    .dense_weight_gradient = TABLE_BEST(dense_weight_gradient),
#ifdef V_NEON
    .weight_rows = INPUTS,
    .weight_floats = WEIGHT_FLOATS,
#endif
    .column_sums = column_sums,
    .conv2d_forward = conv2d_forward,
    .conv2d_pool_forward = TABLE_BEST(conv2d_pool_forward),
    .conv2d_input_gradient = conv2d_input_gradient,
    .conv2d_pool_input_gradient = conv2d_pool_input_gradient,
    .conv2d_weight_gradient = conv2d_weight_gradient,
    .conv2d_pool_weight_gradient = conv2d_pool_weight_gradient,
    .max_pool_forward = max_pool_forward,
    .max_pool_backward = max_pool_backward,
    .relu_forward = relu_forward,
    .relu_backward = relu_backward,
    .softmax_cross_entropy = softmax_cross_entropy,
    .add = add,
    .apply = TABLE_BEST(apply),
};
