// table.c - from a lane and an op to the launches of kernels.h and fast.h.
#include "ops/cuda/table.h"

static lk_cuda_stream *stream_of(const lk_lane *l) {
    return ((const lk_cuda_lane *)l->device)->stream;
}
static lk_fast *fast_of(const lk_lane *l) { return ((const lk_cuda_lane *)l->device)->fast; }

// The rows of a block of grains.
static lk_cuda_grains grains_of(const lk_lane *l) {
    return (lk_cuda_grains){.x = l->grains->x,
                            .dy = l->grains->dy,
                            .argmax = l->grains->argmax,
                            .grain = l->grain,
                            .examples = l->examples};
}

// --- strict --------------------------------------------------------------------------------------

static uint32_t dense(lk_lane *l, const lk_op *op) {
    lk_cuda_dense_forward(stream_of(l), &op->dense, l->examples, l->at[LK_X], l->param[0],
                          l->param[1], l->at[LK_Y]);
    return 0;
}
static uint32_t dense_input_gradient(lk_lane *l, const lk_op *op) {
    lk_cuda_dense_input_gradient(stream_of(l), &op->dense, l->examples, l->param[0], l->at[LK_DY],
                                 l->at[LK_MASK], l->at[LK_DX]);
    return 0;
}
static uint32_t dense_weight_gradient(lk_lane *l, const lk_op *op) {
    const lk_cuda_grains grains = grains_of(l);
    lk_cuda_dense_weight_gradient(stream_of(l), &op->dense, &grains, l->sums[0]);
    return 0;
}
static uint32_t dense_bias_gradient(lk_lane *l, const lk_op *op) {
    const lk_cuda_grains grains = grains_of(l);
    lk_cuda_column_sums(stream_of(l), op->dense.n_count, &grains, l->sums[1]);
    return 0;
}

// The rows of a sequence as examples. Of weights and biases the lane's grains count rows already.
static uint32_t rows_of(const lk_lane *l, const lk_op *op) {
    return l->examples * op->sequence.steps;
}
static uint32_t sequence_dense(lk_lane *l, const lk_op *op) {
    lk_cuda_dense_forward(stream_of(l), &op->dense, rows_of(l, op), l->at[LK_X], l->param[0],
                          l->param[1], l->at[LK_Y]);
    return 0;
}
static uint32_t sequence_dense_input_gradient(lk_lane *l, const lk_op *op) {
    lk_cuda_dense_input_gradient(stream_of(l), &op->dense, rows_of(l, op), l->param[0],
                                 l->at[LK_DY], l->at[LK_MASK], l->at[LK_DX]);
    return 0;
}

static uint32_t conv2d(lk_lane *l, const lk_op *op) {
    lk_cuda_conv2d_forward(stream_of(l), &op->conv, l->examples, l->at[LK_X], l->param[0],
                           l->param[1], l->at[LK_Y]);
    return 0;
}
static uint32_t conv2d_pool(lk_lane *l, const lk_op *op) {
    lk_cuda_conv2d_pool_forward(stream_of(l), &op->conv, l->examples, l->at[LK_X], l->param[0],
                                l->param[1], l->at[LK_Y], l->at[LK_AUX]);
    return 0;
}
static uint32_t conv2d_input_gradient(lk_lane *l, const lk_op *op) {
    lk_cuda_conv2d_input_gradient(stream_of(l), &op->conv, l->examples, l->param[0], l->at[LK_DY],
                                  l->at[LK_MASK], l->at[LK_DX]);
    return 0;
}
static uint32_t conv2d_pool_input_gradient(lk_lane *l, const lk_op *op) {
    lk_cuda_conv2d_pool_input_gradient(stream_of(l), &op->conv, l->examples, l->param[0],
                                       l->at[LK_DY], l->at[LK_AUX], l->at[LK_MASK], l->at[LK_DX]);
    return 0;
}
static uint32_t conv2d_weight_gradient(lk_lane *l, const lk_op *op) {
    const lk_cuda_grains grains = grains_of(l);
    lk_cuda_conv2d_weight_gradient(stream_of(l), &op->conv, &grains, l->sums[0], l->sums[1]);
    return 0;
}
static uint32_t conv2d_pool_weight_gradient(lk_lane *l, const lk_op *op) {
    const lk_cuda_grains grains = grains_of(l);
    lk_cuda_conv2d_pool_weight_gradient(stream_of(l), &op->conv, &grains, l->sums[0], l->sums[1]);
    return 0;
}

static uint32_t conv2d_transpose(lk_lane *l, const lk_op *op) {
    lk_cuda_conv2d_transpose_forward(stream_of(l), &op->conv, l->examples, l->at[LK_X],
                                     l->param[0], l->param[1], l->at[LK_Y]);
    return 0;
}
static uint32_t conv2d_transpose_input_gradient(lk_lane *l, const lk_op *op) {
    lk_cuda_conv2d_forward(stream_of(l), &op->conv, l->examples, l->at[LK_DY], l->param[0], NULL,
                           l->at[LK_DX]);
    return 0;
}
static uint32_t conv2d_transpose_weight_gradient(lk_lane *l, const lk_op *op) {
    const lk_cuda_grains grains = grains_of(l);
    lk_cuda_conv2d_weight_gradient(stream_of(l), &op->conv, &grains, l->sums[0], NULL);
    return 0;
}
static uint32_t conv2d_transpose_bias_gradient(lk_lane *l, const lk_op *op) {
    const lk_cuda_grains grains = grains_of(l);
    lk_cuda_conv2d_bias_gradient(stream_of(l), &op->conv, &grains, l->sums[1]);
    return 0;
}

static uint32_t max_pool2d(lk_lane *l, const lk_op *op) {
    lk_cuda_max_pool_forward(stream_of(l), &op->pool, l->examples, l->at[LK_X], l->at[LK_Y],
                             l->at[LK_AUX]);
    return 0;
}
static uint32_t max_pool2d_backward(lk_lane *l, const lk_op *op) {
    lk_cuda_max_pool_backward(stream_of(l), &op->pool, l->examples, l->at[LK_DY], l->at[LK_AUX],
                              l->at[LK_DX]);
    return 0;
}
static uint32_t relu(lk_lane *l, const lk_op *op) {
    lk_cuda_relu_forward(stream_of(l), l->examples * op->floats, l->at[LK_X], l->at[LK_Y]);
    return 0;
}
static uint32_t relu_backward(lk_lane *l, const lk_op *op) {
    lk_cuda_relu_backward(stream_of(l), l->examples * op->floats, l->at[LK_Y], l->at[LK_DY],
                          l->at[LK_DX]);
    return 0;
}
static uint32_t softmax_cross_entropy(lk_lane *l, const lk_op *op) {
    lk_cuda_softmax_cross_entropy(stream_of(l), l->examples, (uint32_t)op->floats, op->scale,
                                  l->train ? l->at[LK_AUX] : NULL, l->at[LK_X], l->at[LK_X2],
                                  l->train ? l->at[LK_DX] : NULL, l->at[LK_Y]);
    return 0;
}

#define PLAIN(NUMBER, name) [LK_OP_##NUMBER] = lk_cuda_plain_##name,
#define STRICT                                                                            \
    LK_PLAIN_OP_LIST(PLAIN)                                                               \
    [LK_OP_DENSE_BIAS_GRADIENT] = dense_bias_gradient,                                    \
    [LK_OP_CONV2D_POOL_INPUT_GRADIENT] = conv2d_pool_input_gradient,                      \
    [LK_OP_CONV2D_POOL_WEIGHT_GRADIENT] = conv2d_pool_weight_gradient,                    \
    [LK_OP_CONV2D_TRANSPOSE] = conv2d_transpose,                                          \
    [LK_OP_CONV2D_TRANSPOSE_INPUT_GRADIENT] = conv2d_transpose_input_gradient,            \
    [LK_OP_CONV2D_TRANSPOSE_WEIGHT_GRADIENT] = conv2d_transpose_weight_gradient,          \
    [LK_OP_CONV2D_TRANSPOSE_BIAS_GRADIENT] = conv2d_transpose_bias_gradient,              \
    [LK_OP_MAX_POOL2D] = max_pool2d, [LK_OP_MAX_POOL2D_BACKWARD] = max_pool2d_backward,   \
    [LK_OP_RELU] = relu, [LK_OP_RELU_BACKWARD] = relu_backward,                           \
    [LK_OP_SEQUENCE_DENSE] = sequence_dense,                                              \
    [LK_OP_SEQUENCE_DENSE_INPUT_GRADIENT] = sequence_dense_input_gradient,                \
    [LK_OP_SEQUENCE_DENSE_WEIGHT_GRADIENT] = dense_weight_gradient,                       \
    [LK_OP_SEQUENCE_DENSE_BIAS_GRADIENT] = dense_bias_gradient,                           \
    [LK_OP_LSTM] = lk_cuda_lstm, [LK_OP_LSTM_BACKWARD] = lk_cuda_lstm_backward,           \
    [LK_OP_GRU] = lk_cuda_gru, [LK_OP_GRU_BACKWARD] = lk_cuda_gru_backward,               \
    [LK_OP_RECURRENT_WEIGHT_GRADIENT] = dense_weight_gradient,                            \
    [LK_OP_RECURRENT_BIAS_GRADIENT] = dense_bias_gradient,                                \
    [LK_OP_LABEL_EMBEDDING] = lk_cuda_embed_labels,                                       \
    [LK_OP_LABEL_EMBEDDING_GRADIENT] = lk_cuda_embed_labels_gradient,                     \
    [LK_OP_JOINT] = lk_cuda_joint,                                                        \
    [LK_OP_JOINT_INPUT_GRADIENT] = lk_cuda_joint_input_gradient,                          \
    [LK_OP_JOINT_WEIGHT_GRADIENT] = lk_cuda_joint_weight_gradient,                        \
    [LK_OP_TRANSDUCER] = lk_cuda_transducer_loss, [LK_OP_DECODE] = lk_cuda_decode_labels, \
    [LK_OP_SOFTMAX_CROSS_ENTROPY] = softmax_cross_entropy

const lk_kernels lk_kernels_cuda = {
    .name = "cuda",
    .kernel = {STRICT, [LK_OP_CONV2D_POOL] = conv2d_pool, [LK_OP_DENSE] = dense,
               [LK_OP_DENSE_INPUT_GRADIENT] = dense_input_gradient,
               [LK_OP_DENSE_WEIGHT_GRADIENT] = dense_weight_gradient, [LK_OP_CONV2D] = conv2d,
               [LK_OP_CONV2D_INPUT_GRADIENT] = conv2d_input_gradient,
               [LK_OP_CONV2D_WEIGHT_GRADIENT] = conv2d_weight_gradient},
};

// --- fast: the products --------------------------------------------------------------------------

typedef struct product {
    bool is, conv;
    lk_fast_pass pass;
} product;

static const product products[LK_OP_COUNT] = {
    [LK_OP_DENSE] = {true, false, LK_FAST_FORWARD},
    [LK_OP_DENSE_INPUT_GRADIENT] = {true, false, LK_FAST_INPUT_GRADIENT},
    [LK_OP_DENSE_WEIGHT_GRADIENT] = {true, false, LK_FAST_WEIGHT_GRADIENT},
    [LK_OP_CONV2D] = {true, true, LK_FAST_FORWARD},
    [LK_OP_CONV2D_INPUT_GRADIENT] = {true, true, LK_FAST_INPUT_GRADIENT},
    [LK_OP_CONV2D_WEIGHT_GRADIENT] = {true, true, LK_FAST_WEIGHT_GRADIENT},
};

static const bool one_job[LK_OP_COUNT] = {
    [LK_OP_DENSE_WEIGHT_GRADIENT] = true,
    [LK_OP_SEQUENCE_DENSE_WEIGHT_GRADIENT] = true,
    [LK_OP_RECURRENT_WEIGHT_GRADIENT] = true,
    [LK_OP_CONV2D_WEIGHT_GRADIENT] = true,
    [LK_OP_CONV2D_POOL_WEIGHT_GRADIENT] = true,
    [LK_OP_CONV2D_TRANSPOSE_WEIGHT_GRADIENT] = true,
};

bool lk_cuda_leaves_parts(const lk_op *op) { return one_job[op->type->number]; }

bool lk_cuda_is_product(const lk_op *op) { return products[op->type->number].is && !op->strict; }

static lk_fast_layer layer_of(const lk_op *op) {
    const bool conv = products[op->type->number].conv;
    return (lk_fast_layer){.dense = conv ? NULL : &op->dense,
                           .conv = conv ? &op->conv : NULL,
                           .narrow = !conv && op->narrow};
}

static uint32_t fast_forward(lk_lane *l, const lk_op *op) {
    if (!lk_cuda_is_product(op)) return conv2d(l, op);
    const lk_fast_layer layer = layer_of(op);
    lk_fast_forward(fast_of(l), stream_of(l), &layer, l->examples, l->at[LK_X], l->param[0],
                    l->param[1], l->at[LK_Y]);
    return 0;
}
static uint32_t fast_input_gradient(lk_lane *l, const lk_op *op) {
    if (!lk_cuda_is_product(op)) return conv2d_input_gradient(l, op);
    const lk_fast_layer layer = layer_of(op);
    lk_fast_input_gradient(fast_of(l), stream_of(l), &layer, l->examples, l->param[0], l->at[LK_DY],
                           l->at[LK_MASK], l->at[LK_DX]);
    return 0;
}
static uint32_t fast_weight_gradient(lk_lane *l, const lk_op *op) {
    if (!lk_cuda_is_product(op)) return conv2d_weight_gradient(l, op);
    const lk_fast_layer layer = layer_of(op);
    const lk_cuda_grains grains = grains_of(l);
    lk_fast_weight_gradient(fast_of(l), stream_of(l), &layer, &grains, l->sums[0], l->sums[1]);
    return 0;
}

static uint32_t fast_pool(lk_lane *l, const lk_op *op) {
    if (!op->narrow) return conv2d_pool(l, op);
    lk_cuda_conv2d_pool_forward_narrow(stream_of(l), &op->conv, l->examples, l->at[LK_X],
                                       l->param[0], l->param[1],
                                       lk_fast_dtype(fast_of(l)->rules.precision), l->at[LK_Y],
                                       l->at[LK_AUX]);
    return 0;
}

const lk_kernels lk_kernels_cuda_fast = {
    .name = "cuda",
    .kernel = {STRICT, [LK_OP_CONV2D_POOL] = fast_pool, [LK_OP_DENSE] = fast_forward,
               [LK_OP_DENSE_INPUT_GRADIENT] = fast_input_gradient,
               [LK_OP_DENSE_WEIGHT_GRADIENT] = fast_weight_gradient, [LK_OP_CONV2D] = fast_forward,
               [LK_OP_CONV2D_INPUT_GRADIENT] = fast_input_gradient,
               [LK_OP_CONV2D_WEIGHT_GRADIENT] = fast_weight_gradient},
};

// --- scratch -------------------------------------------------------------------------------------

static uint64_t dense_scratch(const lk_op *op, uint32_t grain, uint32_t examples) {
    return lk_cuda_dense_scratch_floats(&op->dense, grain, examples);
}
static uint64_t sequence_scratch(const lk_op *op, uint32_t grain, uint32_t examples) {
    return lk_cuda_dense_rows_scratch_floats(&op->dense, op->sequence.steps, grain, examples);
}
static uint64_t recurrent_scratch(const lk_op *op, uint32_t grain, uint32_t examples) {
    (void)grain;
    return lk_cuda_recurrent_scratch_floats(&op->sequence, examples);
}
static uint64_t transducer_scratch(const lk_op *op, uint32_t grain, uint32_t examples) {
    (void)grain;
    return lk_cuda_transducer_scratch_floats(op, examples);
}
static uint64_t bias_scratch(const lk_op *op, uint32_t grain, uint32_t examples) {
    return lk_cuda_conv2d_bias_scratch_floats(&op->conv, grain, examples);
}
static uint64_t conv_scratch(const lk_op *op, uint32_t grain, uint32_t examples) {
    return lk_cuda_conv2d_scratch_floats(&op->conv, grain, examples);
}
static uint64_t norm_scratch(const lk_op *op, uint32_t grain, uint32_t examples) {
    return lk_cuda_norm_scratch_floats(&op->norm, grain, examples);
}

uint64_t lk_cuda_op_scratch_floats(const lk_op *op, uint32_t grain, uint32_t examples,
                                   const lk_fast_rules *rules) {
    static uint64_t (*const strict[LK_OP_COUNT])(const lk_op *, uint32_t, uint32_t) = {
        [LK_OP_DENSE] = dense_scratch,
        [LK_OP_DENSE_INPUT_GRADIENT] = dense_scratch,
        [LK_OP_DENSE_WEIGHT_GRADIENT] = dense_scratch,
        [LK_OP_DENSE_BIAS_GRADIENT] = dense_scratch,
        [LK_OP_SEQUENCE_DENSE] = sequence_scratch,
        [LK_OP_SEQUENCE_DENSE_INPUT_GRADIENT] = sequence_scratch,
        [LK_OP_SEQUENCE_DENSE_WEIGHT_GRADIENT] = sequence_scratch,
        [LK_OP_LSTM] = recurrent_scratch,
        [LK_OP_LSTM_BACKWARD] = recurrent_scratch,
        [LK_OP_GRU] = recurrent_scratch,
        [LK_OP_GRU_BACKWARD] = recurrent_scratch,
        [LK_OP_RECURRENT_WEIGHT_GRADIENT] = sequence_scratch,
        [LK_OP_LABEL_EMBEDDING_GRADIENT] = transducer_scratch,
        [LK_OP_JOINT] = transducer_scratch,
        [LK_OP_JOINT_INPUT_GRADIENT] = transducer_scratch,
        [LK_OP_JOINT_WEIGHT_GRADIENT] = transducer_scratch,
        [LK_OP_TRANSDUCER] = transducer_scratch,
        [LK_OP_DECODE] = transducer_scratch,
        [LK_OP_CONV2D] = conv_scratch,
        [LK_OP_CONV2D_POOL] = conv_scratch,
        [LK_OP_CONV2D_INPUT_GRADIENT] = conv_scratch,
        [LK_OP_CONV2D_POOL_INPUT_GRADIENT] = conv_scratch,
        [LK_OP_CONV2D_WEIGHT_GRADIENT] = conv_scratch,
        [LK_OP_CONV2D_POOL_WEIGHT_GRADIENT] = conv_scratch,
        [LK_OP_CONV2D_TRANSPOSE] = conv_scratch,
        [LK_OP_CONV2D_TRANSPOSE_INPUT_GRADIENT] = conv_scratch,
        [LK_OP_CONV2D_TRANSPOSE_WEIGHT_GRADIENT] = conv_scratch,
        [LK_OP_CONV2D_TRANSPOSE_BIAS_GRADIENT] = bias_scratch,
        [LK_OP_BATCH_NORMALIZATION] = norm_scratch,
        [LK_OP_BATCH_NORMALIZATION_BACKWARD] = norm_scratch,
    };
    if (rules && lk_cuda_is_product(op)) {
        const lk_fast_layer layer = layer_of(op);
        return lk_fast_scratch_floats(rules, &layer, products[op->type->number].pass, examples);
    }
    return strict[op->type->number] ? strict[op->type->number](op, grain, examples) : 0;
}
