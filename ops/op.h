// op.h - what an op is: one descriptor that says all of it, and how its kernels are called.
// Freestanding; knows no op by name but in the list below.
//
// An op is one thing in one place. Its descriptor (lk_op_type) and its scalar reference kernels
// stand in one file of ops/layers/, with the layer that it belongs to: formula, shape rule,
// reference forward, reference gradient, differentiation rule. Whoever works with ops (the graph,
// the walk, the plan, the checks, the benchmark) asks the descriptor and knows no op itself.
//
// To add an op: its file, a line of LK_OP_LIST, a section of ARITHMETIC.md, its rows in the tests.
// Fast kernels are optional: where a table has none, the reference runs (and `lockstep plan` and
// `lockstep bench` say so).
#ifndef LOCKSTEP_OPS_OP_H
#define LOCKSTEP_OPS_OP_H

#include "arena/permutation.h"
#include "arena/plan.h"
#include "ops/geometry.h"
#include "ops/metric.h"
#include "ops/moving.h"
#include "ops/gan.h"
#include "ops/noise.h"
#include "ops/optimizer.h"

#define LK_NONE UINT32_MAX

// --- the list ------------------------------------------------------------------------------------

// Every op: the end of its number's name, and of its descriptor's.
#define LK_OP_LIST(X)                                           \
    X(LOAD, load)                                               \
    X(CONV2D, conv2d)                                           \
    X(CONV2D_POOL, conv2d_pool)                                 \
    X(MAX_POOL2D, max_pool2d)                                   \
    X(RELU, relu)                                               \
    X(DENSE, dense)                                             \
    X(SOFTMAX_CROSS_ENTROPY, softmax_cross_entropy)             \
    X(METRIC_SUM, metric_sum)                                   \
    X(RELU_BACKWARD, relu_backward)                             \
    X(MAX_POOL2D_BACKWARD, max_pool2d_backward)                 \
    X(DENSE_INPUT_GRADIENT, dense_input_gradient)               \
    X(DENSE_WEIGHT_GRADIENT, dense_weight_gradient)             \
    X(DENSE_BIAS_GRADIENT, dense_bias_gradient)                 \
    X(CONV2D_INPUT_GRADIENT, conv2d_input_gradient)             \
    X(CONV2D_POOL_INPUT_GRADIENT, conv2d_pool_input_gradient)   \
    X(CONV2D_WEIGHT_GRADIENT, conv2d_weight_gradient)           \
    X(CONV2D_POOL_WEIGHT_GRADIENT, conv2d_pool_weight_gradient) \
    X(CONV2D_TRANSPOSE, conv2d_transpose)                       \
    X(CONV2D_TRANSPOSE_INPUT_GRADIENT, conv2d_transpose_input_gradient) \
    X(CONV2D_TRANSPOSE_WEIGHT_GRADIENT, conv2d_transpose_weight_gradient) \
    X(CONV2D_TRANSPOSE_BIAS_GRADIENT, conv2d_transpose_bias_gradient) \
    X(SEQUENCE_DENSE, sequence_dense)                           \
    X(SEQUENCE_DENSE_INPUT_GRADIENT, sequence_dense_input_gradient) \
    X(SEQUENCE_DENSE_WEIGHT_GRADIENT, sequence_dense_weight_gradient) \
    X(SEQUENCE_DENSE_BIAS_GRADIENT, sequence_dense_bias_gradient) \
    X(LSTM, lstm)                                               \
    X(LSTM_BACKWARD, lstm_backward)                             \
    X(GRU, gru)                                                 \
    X(GRU_BACKWARD, gru_backward)                               \
    X(RECURRENT_WEIGHT_GRADIENT, recurrent_weight_gradient)     \
    X(RECURRENT_BIAS_GRADIENT, recurrent_bias_gradient)         \
    X(LABEL_EMBEDDING, label_embedding)                         \
    X(LABEL_EMBEDDING_GRADIENT, label_embedding_gradient)       \
    X(JOINT, joint)                                             \
    X(JOINT_INPUT_GRADIENT, joint_input_gradient)               \
    X(JOINT_WEIGHT_GRADIENT, joint_weight_gradient)             \
    X(TRANSDUCER, transducer)                                   \
    X(DECODE, decode)                                           \
    X(USE, use)                                                 \
    X(REDUCE_APPLY, reduce_apply)                               \
    LK_PLAIN_OP_LIST(X)

// Those of them whose fast kernels need nothing but what every kernel gets: the tables take them
// from this list, plain_NAME of ops/cpu/plain.inc.h and lk_cuda_plain_NAME of ops/cuda/plain.cu.
#define LK_PLAIN_OP_LIST(X)                     \
    X(ADD, add)                                 \
    X(ADD_BACKWARD, add_backward)               \
    X(ADD_GRADIENT, add_gradient)               \
    X(TANH, tanh)                               \
    X(TANH_BACKWARD, tanh_backward)             \
    X(SIGMOID, sigmoid)                         \
    X(SIGMOID_BACKWARD, sigmoid_backward)       \
    X(LEAKY_RELU, leaky_relu)                   \
    X(LEAKY_RELU_BACKWARD, leaky_relu_backward) \
    X(AVERAGE_POOL2D, average_pool2d)           \
    X(AVERAGE_POOL2D_BACKWARD, average_pool2d_backward) \
    X(DROPOUT, dropout)                         \
    X(DROPOUT_BACKWARD, dropout_backward) \
    X(RELU6, relu6) \
    X(RELU6_BACKWARD, relu6_backward) \
    X(ELU, elu) \
    X(ELU_BACKWARD, elu_backward) \
    X(SOFTPLUS, softplus) \
    X(SOFTPLUS_BACKWARD, softplus_backward) \
    X(SWISH, swish) \
    X(SWISH_BACKWARD, swish_backward) \
    X(GELU, gelu) \
    X(GELU_BACKWARD, gelu_backward) \
    X(GELU_TANH, gelu_tanh) \
    X(GELU_TANH_BACKWARD, gelu_tanh_backward) \
    X(CONCATENATE, concatenate)                 \
    X(GROUPED_CONV2D, grouped_conv2d)           \
    X(GROUPED_CONV2D_INPUT_GRADIENT, grouped_conv2d_input_gradient) \
    X(GROUPED_CONV2D_WEIGHT_GRADIENT, grouped_conv2d_weight_gradient) \
    X(CONCATENATE_GRADIENT, concatenate_gradient) \
    X(ZERO_PADDING2D, zero_padding2d)           \
    X(ZERO_PADDING2D_BACKWARD, zero_padding2d_backward) \
    X(BATCH_NORMALIZATION, batch_normalization) \
    X(BATCH_NORMALIZATION_BACKWARD, batch_normalization_backward) \
    X(BATCH_NORMALIZATION_STATISTICS, batch_normalization_statistics) \
    X(BATCH_NORMALIZATION_GRADIENT, batch_normalization_gradient) \
    X(LAYER_NORMALIZATION, layer_normalization) \
    X(LAYER_NORMALIZATION_INPUT_GRADIENT, layer_normalization_input_gradient) \
    X(LAYER_NORMALIZATION_GRADIENT, layer_normalization_gradient) \
    X(MEAN_SQUARED_ERROR, mean_squared_error)   \
    X(MEAN_SQUARED_ERROR_TARGET_GRADIENT, mean_squared_error_target_gradient) \
    X(MEAN, mean)                               \
    X(BINARY_CROSSENTROPY, binary_crossentropy) \
    X(NOISE, noise)                             \
    X(GAN_GENERATOR, gan_generator)             \
    X(GAN_DISCRIMINATOR, gan_discriminator)

// Where a table of kernels has the op's. Never stored: a number may change with every version.
typedef enum lk_op_number {
#define LK_OP_NUMBER(NUMBER, name) LK_OP_##NUMBER,
    LK_OP_LIST(LK_OP_NUMBER)
#undef LK_OP_NUMBER
        LK_OP_COUNT
} lk_op_number;

typedef struct lk_op_type lk_op_type;
#define LK_OP_DECLARE(NUMBER, name) extern const lk_op_type lk_op_##name;
LK_OP_LIST(LK_OP_DECLARE)
#undef LK_OP_DECLARE

// --- an op of a program --------------------------------------------------------------------------

typedef enum lk_phase { LK_LOAD, LK_FORWARD, LK_BACKWARD, LK_REDUCE, LK_APPLY } lk_phase;

const char *lk_phase_name(lk_phase phase);

// What the tensors of an op are to it.
typedef enum lk_role {
    LK_X,        // input activation
    LK_X2,       // second input: the other summand, labels, the target of a loss; of an op that
                 // sees grains, what says on a device which positions have no example: the labels;
                 // of a recurrent op, written: its state before each step
    LK_Y,        // output, one row for each example
    LK_AUX,      // what forward keeps for backward beside y: winners of a pool; LOAD: the labels,
                 // as which a device marks what has no example: a loss that takes no labels has
                 // them here; a loss with class weights has those, a table of the device region
    LK_DY,       // gradient of y
    LK_DX,       // gradient of x, written
    LK_MASK,     // the tensor whose ReLU mask is applied to dx
    LK_DX2 = LK_MASK,  // an op that writes both: gradient of its second input; of a recurrent op,
                       // written: the gradient of what its recurrent kernel made
    LK_SCRATCH,  // means nothing before and after
    LK_STATE,    // the first of its states; the others follow it (lk_lane.state)
    LK_LABELS = LK_STATE,  // of an op that reads sequences of labels: a row of each example
    LK_ROLES
} lk_role;

enum { LK_OP_INPUTS = 2, LK_OP_PARAMS = 2, LK_OP_STATES = 2, LK_OP_WORDS = 14 };

// One op. Tensors and parameters are numbers in the program's tables, LK_NONE where it has none.
typedef struct lk_op {
    LK_WIDE const lk_op_type *type;
    LK_WIDE uint64_t floats;  // of y in one example
    lk_phase phase;
    uint32_t layer;  // number in the model, LK_NONE where it belongs to none
    uint32_t tensor[LK_ROLES];
    uint32_t param[LK_OP_PARAMS];  // kernel, bias; a gradient op: those whose gradient it computes
    // Of forward ops, for whoever builds the program:
    uint32_t input[LK_OP_INPUTS];  // the ops whose y it takes
    uint32_t gradient;             // tensor: the gradient of y
    uint32_t users;                // ops that take y
    bool wants : 1;                // y depends on a parameter that is trained
    bool relu : 1;                 // y is ReLU of what the op computes
    bool masked : 1;               // ... and `gradient` has been through its mask
    // Of mixed precision (ops/graph/mixed.h):
    bool ends : 1;        // y is a layer's output: what comes before it in the layer is not rounded
    bool relu_apart : 1;  // its ReLU is another layer: what it is of is rounded
    bool odd_apart : 1;   // a 2x2 pool behind it drops an odd last row or column; conv: the shape
    bool again : 1;       // decoding runs it again: it makes a row of the labels said (decode.h)
    // Of the fast arithmetic (ops/cuda/fast.h):
    bool strict : 1;      // a convolution whose products are the strict ones
    bool narrow : 1;      // of a pooled convolution y, of the dense layer behind it x, has 16 bits
    // The replicas of a process may compute it together, each some of its outputs for the examples
    // of all, and so read the weights once. Room is planned for that.
    bool divided : 1;
    uint8_t dtype;        // lk_dtype of its layer
    uint8_t value;                 // of the objective, plus 1, that it is part of; 0: short form
    union {
        LK_WIDE lk_conv2d conv;
        LK_WIDE lk_grouped_conv2d grouped;
        lk_pool2d pool;
        lk_dense dense;
        lk_sequence sequence;
        float slope;    // leaky_relu; alpha of elu
        bool sum_relu;  // add: y is ReLU of the sum
        float scale;  // mean; label smoothing
        lk_dropout dropout;
        lk_join join;
        lk_noise noise;
        lk_gan gan;
        lk_batch_norm norm;
        lk_joint joint;
        uint32_t words[LK_OP_WORDS];  // all of them, as `lockstep embed` writes them
    };
} lk_op;

// What dropout draws by: the layer's number in the model, and which use of its network it is.
enum { LK_DRAWS_OF_USE = 4096, LK_DRAWS_USES_MAX = 16 };
static inline uint32_t lk_draws_of(const lk_op *op) {
    return op->layer + LK_DRAWS_OF_USE * op->dropout.use;
}

// How many uses a gradient op of parameters is for: one, and an op of type `use` after it for each
// further one, with its tensors.
static inline uint32_t lk_op_uses(const lk_op *op) {
    uint32_t uses = 1;
#ifdef LK_SHORT_FORM_ALONE
    return uses;
#endif
    while (op[uses].type == &lk_op_use) uses++;
    return uses;
}

// --- calling a kernel ----------------------------------------------------------------------------

// The rows of one grain, as a weight gradient reads them. Grains of an array are consecutive leaves
// of the tree and the first has an even number of trailing leaves (its number is a multiple of the
// next power of two of the array's length), so that the array's sum is one whole node.
typedef struct lk_grain_view {
    // (examples, ...) input of the layer
    LK_WIDE const float *x;
    // (examples, ...) gradient of its output (of the sum, ReLU's mask applied)
    LK_WIDE const float *dy;
    // (examples, pooled...) fused pooling: which cell 0..3 of the 2x2 tile won
    LK_WIDE const uint8_t *argmax;
    LK_WIDE uint32_t examples;  // 1 .. grain; rows, of an op with steps
} lk_grain_view;

// Of ops that keep floats of each grain: those, in the place of argmax.
static inline const float *lk_grain_kept(const lk_grain_view *view) {
    return (const float *)(const void *)view->argmax;
}

// Weights that other cores wrote last and that this one will read soon. A kernel that computes much
// and loads little may ask for some of them on its way, and moves `at`.
typedef struct lk_ahead {
    LK_WIDE const float *begin;
    LK_WIDE const float *at;  // begin .. end, and no more than a kernel's few lines past it
    LK_WIDE const float *end;
} lk_ahead;

// The rows of w that a call of a weight gradient is for, and what it may know of other calls.
typedef struct lk_weight_rows {
    uint32_t first, end;  // first <= k < end
    // The call before was for other rows of the same grains, and its scratch is as it left it: what
    // it found out about them, it need not find again.
    bool again;
    // Not NULL: these weights (k_count, n_count) are updated with what the calls return, and the
    // next one is for rows end .. next_end - 1. Other cores had them, and the inputs, last: so what
    // the next call will touch of both may be fetched while this one computes.
    const float *w;
    uint32_t next_end;
} lk_weight_rows;

// What is stored of a value v as 16 bits, and when it is not finite.
typedef enum lk_narrow_rule {
    LK_NARROW,             // rounded v; it
    LK_NARROW_RELU,        // rounded relu(v), of one layer; v or it
    LK_NARROW_RELU_AFTER,  // relu(rounded v), of two layers; rounded v
    LK_NARROW_MASK,        // mask > 0 ? rounded v : +0; rounded v
} lk_narrow_rule;

typedef struct lk_narrow {
    lk_dtype dtype;
    lk_narrow_rule rule;
    const uint16_t *mask;  // of MASK, in the same dtype
} lk_narrow;

// What counts of values that are stored: of every `lines` lines of `line` values the first `even`
// ones of the first `even_lines`. line 0: all do.
typedef struct lk_look {
    bool heeds;  // false: none does
    uint32_t line, even, lines, even_lines;
} lk_look;

// Mixed precision: which of a kernel's tensors have 16 bits. It widens what it reads, and rounds
// once what it stores. For kernels that say so alone (lk_kernels.half, lk_op_type.half_floats).
typedef struct lk_half {
    lk_dtype dtype;
    bool x, dy;     // the input, the gradient of y
    lk_narrow out;  // y or dx; of dtype LK_F32 otherwise. What the kernel returns follows the rule
} lk_half;

// Where an op runs and on what: everything that a kernel needs besides the op itself. Addresses are
// of the memory that the kernel works on: a GPU's are the device's.
typedef struct lk_lane {
    void *at[LK_ROLES];          // the op's tensors, NULL where it has none
    float *param[LK_OP_PARAMS];  // its parameters
    float *state[LK_OP_STATES];  // its states, NULL where it has none
    uint32_t examples;           // of the microbatch: rows of x and y; of a block of grains
    bool train;                  // false: evaluation, no gradient is wanted
    // What random words are drawn by (ARITHMETIC.md 10), in training: the number of the first row's
    // example in the global batch, the seed, the number of the step (a GPU has that in its state).
    uint32_t first_example;
    uint64_t seed, step;
    // Of ops that see grains, in training: how many of grain g's rows have an example, the first
    // ones; and what it finds that by. NULL: all have.
    uint32_t (*present)(const struct lk_lane *lane, uint32_t g);
    const void *present_in[2];
    // Ops on grains: the node of the grains' sums, of each parameter (NULL: not wanted). A node is
    // a partial sum: neither + 0.0f nor checked, and its zeros have no sign.
    uint32_t grain_count, grain;  // how many; examples of a whole one
    const lk_grain_view *grains;  // a device: the first alone, the others follow it
    float *sums[LK_OP_PARAMS];
    const lk_weight_rows *rows;             // not NULL: only these rows of the first parameter's
    lk_ahead *ahead;                        // NULL, or what may be fetched meanwhile
    uint32_t counts[LK_METRIC_COUNTS_MAX];  // a loss: its counts, added to
    void *device;                           // a GPU's: lk_cuda_lane (ops/cuda/table.h)
    const lk_half *half;                    // NULL: all of it is fp32
    // Of an op that is divided (lk_op.divided): not NULL, the lanes (all_count) of all replicas of
    // this process, itself being `number` of them. The kernel computes its part of the outputs of
    // one example, for the examples of all: their tensors are at all[i]->at.
    struct lk_lane *const *all;
    uint32_t all_count, number;
} lk_lane;

// What row m of a lane draws its noise by: in training of its step, otherwise always the same.
static inline lk_noise_key lk_noise_key_of(const lk_lane *l, uint32_t m) {
    return (lk_noise_key){.seed = l->seed,
                          .step = l->train ? l->step : 0,
                          .purpose = l->train ? LK_PURPOSE_NOISE : LK_PURPOSE_FIXED_NOISE,
                          .example = l->first_example + m};
}

// Grains of a microbatch; rows of grain g, the last may be short; rows that have an example.
static inline uint32_t lk_lane_grains(const lk_lane *l) {
    return (l->examples + l->grain - 1) / l->grain;
}
static inline uint32_t lk_lane_rows(const lk_lane *l, uint32_t g) {
    return LK_MIN(l->examples - g * l->grain, l->grain);
}
static inline uint32_t lk_lane_present(const lk_lane *l, uint32_t g) {
    return l->present ? l->present(l, g) : lk_lane_rows(l, g);
}

// Returns 0, or 1 where a finished sum or a stored value is not finite (ARITHMETIC.md 12); the
// outputs are then unspecified. Common to all kernels:
// - Pointers are 64-byte aligned unless said otherwise; outputs are written entirely and overlap
//   nothing.
// - A kernel may read, never write, up to the next multiple of 64 bytes after a tensor's end.
// - Operands are finite: whatever stored them checked it. So terms that are exactly zero may be
//   skipped or padded in.
typedef uint32_t (*lk_kernel)(lk_lane *lane, const lk_op *op);

// --- descriptors ---------------------------------------------------------------------------------

// How the walk over a program (ops/graph/execute.h) calls an op.
typedef enum lk_scope {
    LK_SCOPE_SOURCE,    // no kernel: the walk brings the examples
    LK_SCOPE_EXAMPLES,  // once, for the examples of a microbatch
    LK_SCOPE_LOSS,      // the same; y: the metrics of each example, dx: the gradient of x
    LK_SCOPE_METRIC,    // sums of y over grains, into the nodes of the step's metrics
    LK_SCOPE_GRAINS,    // once for each block of grains: gradients of parameters, into tree nodes
    LK_SCOPE_DECODE,    // in evaluation, again and again: with the ops before it that say `again`
    LK_SCOPE_USE,       // no kernel: one more use of what the gradient op before it is for
    LK_SCOPE_UPDATE,    // no kernel: REDUCE and APPLY
} lk_scope;

// Products and sums of one example, in floating-point operations. "framework" counts every position
// of a convolution's output; "routed" only the winning one of four in a gradient that comes through
// a 2x2 max-pool.
typedef struct lk_flop {
    uint64_t framework, routed;
} lk_flop;

typedef struct lk_builder lk_builder;  // ops/graph/build.h

struct lk_op_type {
    const char *name;    // in plans and benchmarks
    const char *suffix;  // of its tensors' names, after the layer's: "" or "/relu"
    lk_op_number number;
    lk_scope scope;
    lk_kernel reference;  // NULL where the scope has none
    bool exchanged;       // a gradient of parameters: LK_X is the gradient of y, and LK_DY is x
    bool recurrent;       // .. LK_X is LK_X2 of the forward op, and LK_DY the gradient of its sums
                          // over its state: LK_DX2 of its backward op, or the gradient of its x
    bool sequence;  // it has sequence.steps rows of each example
    bool labels;  // it reads sequences of labels, in LK_LABELS
    bool grains;  // of LK_SCOPE_EXAMPLES: it sees grains, and which positions have no example

    // Each may be NULL where there is nothing to say.
    // Scratch in floats, the most over all CPU variants, so that a plan does not depend on them.
    uint64_t (*scratch_floats)(const lk_op *op, uint32_t examples);
    lk_flop (*flop)(const lk_op *op);
    // Takes in `next`, the only op that uses its y, where one kernel does both.
    bool (*absorb)(const lk_builder *b, lk_op *op, const lk_op *next);
    // Makes what it keeps besides y: winners, parameters.
    lk_status (*declare)(lk_builder *b, lk_op *op);
    // Emits the ops for the gradients of its parameters and inputs, from that of y.
    lk_status (*differentiate)(lk_builder *b, uint32_t op);
    // Emits what it adds up over the grains of a step for its states (lk_build_state_sums), in
    // training of its network: before all gradients.
    lk_status (*observe)(lk_builder *b, uint32_t op);
    // An op that adds up for states: how APPLY makes each of them follow its mean over a step.
    lk_moving (*moving)(const lk_op *op);
    // A gradient op whose rows can be computed apart, from the operands of all replicas: how many
    // there are, and of how many floats.
    void (*rows)(const lk_op *op, uint64_t *rows, uint64_t *columns);
    // Makes of such an op one that has so few rows: its input has so few columns.
    void (*some_rows)(lk_op *op, uint32_t rows);
    // Mixed precision (ops/graph/mixed.h): its tensors may have 16 bits. Of a convolution with a
    // pool: the op that makes the values of which the winners are sought, once they are rounded.
    bool mixed;
    bool plain;  // .. its parameters stay in fp32: no product takes them
    bool kept;   // .. of LK_SCOPE_GRAINS: it reads what forward and backward kept of each, in fp32
    bool looks;  // .. what its kernel returns counts, beside what is seen in what it writes
    bool both;   // .. it writes LK_DX2, and has no mask
    // The fast arithmetic in 16 bits: y can be stored as multiplied; x is multiplied, and read
    // by nothing else but products and masks.
    bool narrows, multiplies;
    const lk_op_type *apart;
    // Not NULL: there are kernels that take lk_lane.half, with so much scratch. Of
    // LK_SCOPE_GRAINS: all do; otherwise those that say so in their table.
    uint64_t (*half_floats)(const lk_op *op, uint32_t examples);
    // Not NULL: there are kernels that take lk_lane.all (those that say so in their table). The
    // scratch that they want where each replica has up to `examples` examples, in floats; 0: the op
    // is not divided then.
    uint64_t (*divided_floats)(const lk_op *op, uint32_t examples, uint32_t replicas);
};

// Rows of one example, in x and in its gradients: 1, or the steps of a sequence. Each is a term of
// the sums over examples, as an example of its own would be.
static inline uint32_t lk_op_steps(const lk_op *op) {
#ifndef LK_SHORT_FORM_ALONE
    while (op->type == &lk_op_use) op--;
#endif
    return op->type->sequence ? op->sequence.steps : 1;
}

// --- tables of kernels ---------------------------------------------------------------------------

// One variant: reference, portable, avx2, avx512, neon; cuda. Every variant gives the reference's
// bits for every shape, or is wrong.
typedef struct lk_kernels {
    const char *name;
    lk_kernel kernel[LK_OP_COUNT];       // NULL: the descriptor's reference
    lk_apply apply[LK_OPTIMIZER_COUNT];  // likewise, the optimizer's
    lk_squares squares[LK_NORMS];        // likewise
    bool half[LK_OP_COUNT];              // the kernel takes lk_lane.half
    bool divides[LK_OP_COUNT];           // .. lk_lane.all
    // dst[i] = (float)src[i] * 0x1.010102p-8f    (1/255 rounded; src is not aligned)
    void (*load_u8)(uint64_t count, const uint8_t *src, float *dst);
    // x[i] = fma(x[i], factor[i % period], offset[i % period]). period: a multiple of 16
    void (*adjust)(uint64_t count, uint32_t period, const float *factor, const float *offset,
                   float *x);
    // index[i] = lk_permute(permutation, first + i) of arena/permutation.h.
    // NULL: one after another.
    void (*permute)(const lk_permutation *permutation, uint64_t first, uint32_t count,
                    uint64_t *index);
    // The node of the grains' sums of dy[m][n] over examples m.   out (n_count)
    void (*column_sums)(uint32_t n_count, uint32_t grain_count, const lk_grain_view *grains,
                        float *out);
    // out[i] = a[i] + b[i]: two sibling nodes become their parent. out may be a or b.
    void (*add)(uint64_t count, const float *a, const float *b, float *out);
    // Floats of 16 bits (ops/half.h), `dtype` says which. dst[i] = float(src[i]), exact.
    void (*widen)(lk_dtype dtype, uint64_t count, const uint16_t *src, float *dst);
    // Of `rows` rows so far apart, of which the next `count` columns will be wanted soon. NULL: by
    // widen.
    void (*widen_rows)(lk_dtype dtype, uint32_t rows, uint64_t count, const uint16_t *src,
                       uint64_t src_stride, float *dst, uint64_t dst_stride);
    // dst[i] = src[i] rounded once. Returns 1 where a result, before `rule` leaves it out, or
    // src[i] where the rule says so, is not finite; dst[i] is then unspecified.
    uint32_t (*narrow)(const lk_narrow *how, uint64_t count, const float *src, uint16_t *dst);
    // Of one example: dst and argmax are the winners of the 2x2 tiles of src (out_h, out_w, out_c),
    // by the values stored: the first of equals. Looks at the cells of tiles alone.
    uint32_t (*narrow_pool)(const lk_narrow *how, const lk_conv2d *c, const float *src,
                            uint16_t *dst, uint8_t *argmax);
    // dst[i] = float(src[i] rounded once). Returns 1 where one is not finite.
    uint32_t (*round)(lk_dtype dtype, uint64_t count, const float *src, float *dst);
    // average[i] = fma(keep, average[i], (1 - keep) * w[i]). Returns 1 where one is not finite.
    // NULL: lk_average_reference (ops/graph/average.h).
    uint32_t (*average)(uint64_t count, float keep, const float *w, float *average);
    // g[i] = fma(-share, n[i], g[i]) * factor, at any address.
    // NULL: lk_spectral_turn_reference (ops/graph/spectral.h).
    void (*turn)(uint64_t count, float share, float factor, const float *n, float *g);
    // What a caller of a weight gradient for some rows should ask for: a multiple of `weight_rows`
    // rows, about `weight_floats` floats (at most LK_OPERANDS_FLOATS_MAX); 0: no preference.
    uint32_t weight_rows, weight_floats;
} lk_kernels;

static inline lk_kernel lk_kernel_of(const lk_kernels *k, const lk_op_type *type) {
    return k->kernel[type->number] ? k->kernel[type->number] : type->reference;
}

// Has the table none of its own for an op that has kernels?
static inline bool lk_kernel_is_reference(const lk_kernels *k, const lk_op_type *type) {
    return type->reference && !k->kernel[type->number];
}

static inline lk_apply lk_apply_of(const lk_kernels *k, const lk_optimizer *o) {
    return k->apply[o->type->number] ? k->apply[o->type->number] : o->type->reference;
}

static inline lk_squares lk_squares_of(const lk_kernels *k, lk_norm norm) {
    return k->squares[norm] ? k->squares[norm] : lk_squares_reference[norm];
}

extern const lk_kernels lk_kernels_reference;
extern const lk_kernels lk_kernels_portable;
extern const lk_kernels lk_kernels_avx2;    // x86-64 builds
extern const lk_kernels lk_kernels_avx512;  // x86-64 builds
extern const lk_kernels lk_kernels_neon;    // AArch64 builds

#endif
