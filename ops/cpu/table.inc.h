// table.inc.h - all kernels of one variant. The file that includes this is compiled with the flags
// of its instruction set and names the table: #define LK_VARIANT avx2
#include "ops/cpu/vector.h"

#include "ops/cpu/half.inc.h"

#include "ops/cpu/dense.inc.h"

#include "ops/cpu/conv.inc.h"

#include "ops/cpu/misc.inc.h"

#include "ops/cpu/permute.inc.h"

#include "ops/cpu/plain.inc.h"

#include "ops/cpu/norm.inc.h"

#include "ops/cpu/layer_norm.inc.h"

#include "ops/cpu/grouped_conv.inc.h"

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

#define TABLE_HALF
#include "ops/cpu/calls.inc.h"

#include "ops/cpu/recurrent.inc.h"

#include "ops/cpu/joint.inc.h"

#define TABLE_PLAIN(NUMBER, name) [LK_OP_##NUMBER] = plain_##name,

const lk_kernels TABLE_NAME(LK_VARIANT) = {
    .name = TABLE_TEXT(LK_VARIANT),
    .kernel = {LK_PLAIN_OP_LIST(TABLE_PLAIN)  //
               [LK_OP_DENSE] = call_dense,
               [LK_OP_DENSE_INPUT_GRADIENT] = call_dense_input_gradient,
               [LK_OP_DENSE_WEIGHT_GRADIENT] = call_dense_weight_gradient,
               [LK_OP_DENSE_BIAS_GRADIENT] = call_dense_bias_gradient,
               [LK_OP_CONV2D] = call_conv2d,
               [LK_OP_CONV2D_POOL] = call_conv2d_pool,
               [LK_OP_CONV2D_INPUT_GRADIENT] = call_conv2d_input_gradient,
               [LK_OP_CONV2D_POOL_INPUT_GRADIENT] = call_conv2d_pool_input_gradient,
               [LK_OP_CONV2D_WEIGHT_GRADIENT] = call_conv2d_weight_gradient,
               [LK_OP_CONV2D_POOL_WEIGHT_GRADIENT] = call_conv2d_pool_weight_gradient,
               [LK_OP_CONV2D_TRANSPOSE] = call_conv2d_transpose,
               [LK_OP_CONV2D_TRANSPOSE_INPUT_GRADIENT] = call_conv2d_transpose_input_gradient,
               [LK_OP_CONV2D_TRANSPOSE_WEIGHT_GRADIENT] = call_conv2d_transpose_weight_gradient,
               [LK_OP_CONV2D_TRANSPOSE_BIAS_GRADIENT] = call_conv2d_transpose_bias_gradient,
               [LK_OP_MAX_POOL2D] = call_max_pool2d,
               [LK_OP_MAX_POOL2D_BACKWARD] = call_max_pool2d_backward,
               [LK_OP_RELU] = call_relu,
               [LK_OP_RELU_BACKWARD] = call_relu_backward,
               [LK_OP_SOFTMAX_CROSS_ENTROPY] = call_softmax_cross_entropy,
               [LK_OP_SEQUENCE_DENSE] = call_sequence_dense,
               [LK_OP_SEQUENCE_DENSE_INPUT_GRADIENT] = call_sequence_dense_input_gradient,
               [LK_OP_SEQUENCE_DENSE_WEIGHT_GRADIENT] = call_dense_weight_gradient,
               [LK_OP_SEQUENCE_DENSE_BIAS_GRADIENT] = call_dense_bias_gradient,
               [LK_OP_LSTM] = call_lstm,
               [LK_OP_LSTM_BACKWARD] = call_lstm_backward,
               [LK_OP_GRU] = call_gru,
               [LK_OP_GRU_BACKWARD] = call_gru_backward,
               [LK_OP_RECURRENT_WEIGHT_GRADIENT] = call_dense_weight_gradient,
               [LK_OP_RECURRENT_BIAS_GRADIENT] = call_dense_bias_gradient,
               [LK_OP_LABEL_EMBEDDING] = call_label_embedding,
               [LK_OP_LABEL_EMBEDDING_GRADIENT] = call_label_embedding_gradient,
               [LK_OP_TRANSDUCER] = call_transducer,
               [LK_OP_DECODE] = call_decode,
               [LK_OP_JOINT] = call_joint,
               [LK_OP_JOINT_INPUT_GRADIENT] = call_joint_input_gradient,
               [LK_OP_JOINT_WEIGHT_GRADIENT] = call_joint_weight_gradient},
    .half = {[LK_OP_DENSE] = true,
             [LK_OP_DENSE_INPUT_GRADIENT] = true,
             [LK_OP_CONV2D_POOL] = true},
    .apply = {[LK_OPTIMIZER_SGD] = TABLE_BEST(apply_sgd),
              [LK_OPTIMIZER_MOMENTUM] = apply_momentum,
              [LK_OPTIMIZER_MOMENTUM_KERAS] = apply_momentum_keras,
              [LK_OPTIMIZER_RMSPROP_TF1] = apply_rmsprop,
              [LK_OPTIMIZER_RMSPROP_KERAS] = apply_rmsprop,
              [LK_OPTIMIZER_ADAM_TF1] = apply_adam,
              [LK_OPTIMIZER_ADAM_KERAS] = apply_adam,
              [LK_OPTIMIZER_ADAM_TORCH] = apply_adam,
              [LK_OPTIMIZER_ADAMW_TORCH] = apply_adam,
              [LK_OPTIMIZER_LARS_TF] = apply_lars,
              [LK_OPTIMIZER_LAMB_KERAS] = apply_lamb},
    .squares = {[LK_NORM_GRADIENT] = squares_of_gradient, [LK_NORM_LARS] = squares_of_lars,
                [LK_NORM_LAMB] = squares_of_lamb, [LK_NORM_SPECTRAL] = products},
    .load_u8 = TABLE_BEST(load_u8),
    .adjust = adjust,
    .permute = permute,
    .column_sums = column_sums, .add = add,
    .widen = widen, .widen_rows = widen_rows,
    .narrow = narrow, .narrow_pool = narrow_pool,
    .round = round_floats,
    .average = average, .turn = turn,
#ifdef V_NEON
    .weight_rows = INPUTS,
    .weight_floats = WEIGHT_FLOATS,
#else
    .divides = {[LK_OP_DENSE] = true, [LK_OP_DENSE_INPUT_GRADIENT] = true},
#endif
};
