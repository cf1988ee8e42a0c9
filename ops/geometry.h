// geometry.h - the shapes that kernels work on: one small struct per kind of layer. Freestanding.
//
// All tensors are row-major, images are [example][row][column][channel] (NHWC) and convolution
// kernels [kernel row][kernel column][input channel][output channel] (HWIO), as in Keras.
#ifndef LOCKSTEP_OPS_GEOMETRY_H
#define LOCKSTEP_OPS_GEOMETRY_H

#include "arena/base.h"
#include "ops/fmaf.h"

// L of the arithmetic: the terms after which a chain of fma is cut. Never changed: it decides the
// bits.
enum { LK_SLICE_TERMS = 512 };

// A sum over 2^32 leaves has this many levels of the tree at most.
enum { LK_TREE_LEVELS_MAX = 33 };

typedef struct lk_conv2d {
    uint32_t in_h, in_w, in_c;
    uint32_t out_h, out_w, out_c;
    uint32_t kernel_h, kernel_w;
    uint32_t stride_h, stride_w;
    uint32_t pad_top,
        pad_left;  // rows and columns of zeros before the image; those after are implied
    bool use_bias;
    bool relu;  // the stored output is relu(sum)
} lk_conv2d;

// One whose window is spread out, or whose channels are in groups: output channel co reads those
// input channels alone that have the same part of all channels.
typedef struct lk_grouped_conv2d {
    lk_conv2d conv;  // the first: it lies where `conv` does
    uint8_t dilation_h, dilation_w;
    uint16_t groups;
} lk_grouped_conv2d;

typedef struct lk_pool2d {
    uint32_t in_h, in_w, channels;
    uint32_t out_h, out_w;
    uint32_t pool_h, pool_w;  // of a maximum, pool_h * pool_w <= 65,536
    uint32_t stride_h, stride_w;
    uint32_t pad_top, pad_left;  // padded cells never win
} lk_pool2d;

typedef struct lk_dropout {
    float rate;
    uint32_t use;  // of the layer's network in the objective, from 0
} lk_dropout;

// Two inputs beside each other in each of `cells` cells: input i has values[i] values there.
typedef struct lk_join {
    uint32_t cells;
    uint32_t values[2];
    uint32_t which;  // of a gradient: for which input it is
} lk_join;

// Of layer normalisation, too.
typedef struct lk_batch_norm {
    uint32_t h, w, channels;  // flat: 1 x 1
    bool flat;
    float epsilon, momentum;
    bool scale, center;  // it has gamma, beta
    bool frozen;         // by the moving statistics, also in training
    bool relu;           // y is ReLU of it
} lk_batch_norm;

// What batch normalisation keeps of a grain: columns of one float a channel each.
enum {
    LK_NORM_SUM,      // of x
    LK_NORM_SQUARES,  // .. of the squares of x - mean
    LK_NORM_MEAN,
    LK_NORM_INVERSE,  // of the deviation
    LK_NORM_GAMMA,    // the sums that are the gradients of gamma and beta
    LK_NORM_BETA,
    LK_NORM_COLUMNS = 8
};

typedef struct lk_dense {
    uint32_t k_count;  // inputs
    uint32_t n_count;  // units
    bool use_bias;
    bool relu;  // the stored output is relu(sum)
} lk_dense;

// A dense layer over the steps of a sequence; or a recurrent layer, but for what its input is
// multiplied by (ops/layers/recurrent.c).
typedef struct lk_sequence {
    lk_dense dense;  // recurrent: units, gates * units. The first: it lies where `dense` does
    uint32_t steps;
    bool every;  // recurrent: y is of every step; otherwise of the last one
} lk_sequence;

// What an LSTM keeps of a step, for each unit: a column of these each.
enum {
    LK_LSTM_INPUT,
    LK_LSTM_FORGET,
    LK_LSTM_CANDIDATE,
    LK_LSTM_OUTPUT,
    LK_LSTM_GATES,
    LK_LSTM_CELL = LK_LSTM_GATES,
    LK_LSTM_COLUMNS
};

// Likewise a GRU: its gates, then the candidate's share of the recurrent kernel.
enum {
    LK_GRU_UPDATE,
    LK_GRU_RESET,
    LK_GRU_CANDIDATE,
    LK_GRU_GATES,
    LK_GRU_INNER = LK_GRU_GATES,
    LK_GRU_COLUMNS
};

// Cells of a tile, the most.
enum { LK_JOINT_TILE_MAX = 1 << 16 };

// Labels that are sequences: of each example a row of numbers, how many frames it has, then its
// labels, which are above 0, and zeros behind them. 0 is the blank.
enum { LK_BLANK = 0 };

// Layers and the loss of a transducer (ops/layers/transducer.c): cells (frame, labels said so far).
typedef struct lk_joint {
    lk_dense dense;        // joint: values of a cell, symbols; label_embedding: classes, units
    uint32_t frames;       // the most of an example: rows of the first input
    uint32_t labels;       // the most of an example: the second input has a row more
    uint32_t frames_said;  // the most that a row of labels may say: rows of the model's input
    uint32_t tile;         // cells computed at once: a power of two of slices
    uint32_t grain;        // examples
    uint32_t classes;      // decode: symbols that can be said, the blank among them
} lk_joint;

// What is kept of a cell for its gradient: the greatest value, 1 / the sum of exponentials.
enum { LK_JOINT_TOP, LK_JOINT_SHARE, LK_JOINT_KEPT };
// Its output, and what the loss takes: log-probabilities.
enum { LK_JOINT_BLANK, LK_JOINT_LABEL, LK_JOINT_OUT };

LK_SCALAR uint32_t lk_joint_cells(const lk_joint *j) { return j->frames * (j->labels + 1); }

// Nodes that the gradient of a joint's parameters holds at once: of slices of a grain, of grains.
static inline uint32_t lk_joint_nodes_held(const lk_joint *j, uint32_t grains) {
    const uint64_t rows = (uint64_t)j->grain * lk_joint_cells(j);
    uint32_t held = 3;
    for (uint64_t slices = rows / LK_SLICE_TERMS; slices > 0; slices /= 2) held++;
    for (; grains > 0; grains /= 2) held++;
    return held;
}

// How many labels a row has; its frames, as many of them as rows of the first input are left.
LK_SCALAR uint32_t lk_joint_labels(const lk_joint *j, const uint32_t *row) {
    uint32_t n = 0;
    while (n < j->labels && row[1 + n] != LK_BLANK) n++;
    return n;
}
LK_SCALAR uint32_t lk_joint_frames(const lk_joint *j, const uint32_t *row) {
    const uint64_t left = ((uint64_t)row[0] * j->frames + j->frames_said - 1) / j->frames_said;
    return left < j->frames ? (uint32_t)left : j->frames;
}

// Rows of a grain of a sequence's gradient sums, the most.
enum { LK_SEQUENCE_ROWS_MAX = 4096 };

// Floats of one example.
static inline uint64_t lk_conv2d_in_floats(const lk_conv2d *c) {
    return (uint64_t)c->in_h * c->in_w * c->in_c;
}
static inline uint64_t lk_conv2d_out_floats(const lk_conv2d *c) {
    return (uint64_t)c->out_h * c->out_w * c->out_c;
}
static inline uint64_t lk_conv2d_weight_floats(const lk_conv2d *c) {
    return (uint64_t)c->kernel_h * c->kernel_w * c->in_c * c->out_c;
}
// Floats of one example after the fused 2x2 max-pool of stride 2 (rows and columns left over are
// dropped).
static inline uint64_t lk_conv2d_pooled_floats(const lk_conv2d *c) {
    return (uint64_t)(c->out_h / 2) * (c->out_w / 2) * c->out_c;
}

// Channels of a group, in and out; its kernel is (kernel_h, kernel_w, inputs, out_c).
static inline uint32_t lk_grouped_inputs(const lk_grouped_conv2d *g) {
    return g->conv.in_c / g->groups;
}
static inline uint32_t lk_grouped_outputs(const lk_grouped_conv2d *g) {
    return g->conv.out_c / g->groups;
}
static inline uint64_t lk_grouped_weight_floats(const lk_grouped_conv2d *g) {
    return lk_conv2d_weight_floats(&g->conv) / g->groups;
}

// Terms of one example in a weight gradient of a convolution: positions in 2x2 tiles, the cells of
// an odd last row or column that do not exist counted as zero terms.
static inline uint32_t lk_conv2d_terms(const lk_conv2d *c) {
    return (c->out_h + 1) / 2 * ((c->out_w + 1) / 2) * 4;
}

// The same of batch normalisation.
LK_SCALAR uint32_t lk_norm_terms(const lk_batch_norm *n) {
    return n->flat ? 1 : (n->h + 1) / 2 * ((n->w + 1) / 2) * 4;
}

#endif
