// export.h - a layer in the words of other frameworks, as data: the nodes of ONNX that it becomes,
// and what its output is to a framework that has channels first. Freestanding; writes no file.
//
// Lockstep's images are (height, width, channels), those of ONNX and PyTorch (channels, height,
// width). A layer says its nodes for the latter; where images become a row of values it is the
// layer's to keep our order (ONNX), or the exporter's to turn the weights behind it (PyTorch).
//
// A sequence is an image one column wide to ONNX's nodes, (batch, features, time, 1), which each
// layer of sequences turns for itself; to PyTorch it is (batch, time, features), as batch_first
// has it, and flattens in our order.
#ifndef LOCKSTEP_OPS_LAYERS_EXPORT_H
#define LOCKSTEP_OPS_LAYERS_EXPORT_H

#include "ops/layers/layer.h"
#include "ops/op.h"

enum { LK_EXPORT_NODES_MAX = 10, LK_EXPORT_ATTRIBUTES_MAX = 6, LK_EXPORT_INTS_MAX = 8 };

// The output of a layer.
typedef struct lk_export_value {
    bool flat;          // (values), otherwise an image
    uint32_t channels;  // of an image; flat: of the images that it was, so that position p and
                        // channel c lie at p * channels + c; 0: a sum of two such orders
    uint32_t times;     // of a sequence; 0: it is none
    uint64_t floats;    // of an example; for the walk to fill
    // What a transducer's joint gives: to others logits (batch, frames, labels said + 1, symbols).
    bool cells;
} lk_export_value;

typedef enum lk_export_kind { LK_EXPORT_INT, LK_EXPORT_FLOAT } lk_export_kind;

typedef struct lk_export_attribute {
    const char *name;
    lk_export_kind kind;
    uint32_t count;  // of ints: 0, one alone; otherwise a list
    int64_t ints[LK_EXPORT_INTS_MAX];
    float real;
} lk_export_attribute;

// Parameters that a node takes, in this order. A kernel of (h, w, in, out) is written as
// (out, in, h, w), one of (in, out) as it is; those of an lstm and a gru as ONNX has them.
enum {
    LK_EXPORT_KERNEL = 1,
    LK_EXPORT_RECURRENT = 2,  // of the layer's second op
    LK_EXPORT_BIAS = 4,
    LK_EXPORT_PARAMETERS = LK_EXPORT_KERNEL | LK_EXPORT_BIAS,
};
// What a node may take beside values: the labels said, (batch, any number), an input of the model.
#define LK_EXPORT_LABELS INT32_MIN

// One node. The first takes the layer's inputs, each other one what the node before it gives, where
// `from` does not say otherwise.
typedef struct lk_export_node {
    const char *type;     // as ONNX has it, of operator set 17
    const char *name;     // LAYER/name is that of the node and of what it gives; NULL: the type
    const char *result;   // what it gives is an output of the model of that name; NULL: it is not
    uint32_t from_count;  // values that it takes instead, 0: as above
    int32_t from[2];      // each the layer's node of that number; ~N: its input N; or the labels
    uint32_t output;      // which of its outputs it is for; those before it nobody wants
    uint32_t parameters;  // LK_EXPORT_KERNEL, ..: behind its input,
    bool table;           // .. or before it
    // Of an integer tensor that it takes behind its input, 0: none.
    uint32_t constant_count;
    int64_t constant[LK_EXPORT_INTS_MAX];
    bool statistics;      // takes gamma, beta and, if it has some, the states of the op, ones and
                          // zeros for what it has not
    uint32_t real_count;  // of numbers that it takes, each an input of its own, 0: none
    float reals[2];
    bool again;  // it takes what the first node takes, behind its input
    uint32_t attribute_count;
    lk_export_attribute attributes[LK_EXPORT_ATTRIBUTES_MAX];
} lk_export_node;

struct lk_export {
    const lk_op *op;                          // of a program that is not fused; NULL: it has none
    const lk_op *second;                      // what it became beside that; NULL: nothing
    lk_export_value in[LK_LAYER_INPUTS_MAX];  // of the inputs
    // For lk_layer_words.say_export to fill. `out` is in[0] before.
    lk_export_value out;
    bool reorders;  // it takes a row of values in our order, where PyTorch has another
    uint32_t node_count;
    lk_export_node nodes[LK_EXPORT_NODES_MAX];
};

static inline lk_export_node *lk_export_node_add(lk_export *e, const char *type) {
    lk_assert(e->node_count < LK_EXPORT_NODES_MAX);
    lk_export_node *node = &e->nodes[e->node_count++];
    *node = (lk_export_node){.type = type};
    return node;
}

static inline lk_export_attribute *lk_export_attribute_add(lk_export_node *node, const char *name) {
    lk_assert(node->attribute_count < LK_EXPORT_ATTRIBUTES_MAX);
    lk_export_attribute *a = &node->attributes[node->attribute_count++];
    a->name = name;
    a->kind = LK_EXPORT_INT;
    a->count = 0;
    a->ints[0] = 0;
    a->real = 0.0f;
    return a;
}

static inline void lk_export_int(lk_export_node *node, const char *name, int64_t value) {
    lk_export_attribute_add(node, name)->ints[0] = value;
}

static inline void lk_export_float(lk_export_node *node, const char *name, float value) {
    lk_export_attribute *a = lk_export_attribute_add(node, name);
    a->kind = LK_EXPORT_FLOAT;
    a->real = value;
}

static inline void lk_export_ints(lk_export_node *node, const char *name, uint32_t count,
                                  const int64_t *values) {
    lk_export_attribute *a = lk_export_attribute_add(node, name);
    lk_assert(count <= LK_EXPORT_INTS_MAX);
    a->count = count;
    for (uint32_t i = 0; i < count; i++) a->ints[i] = values[i];
}

// What a node takes.
static inline lk_export_node *lk_export_from(lk_export_node *node, int32_t from) {
    lk_assert(node->from_count < 2);
    node->from[node->from_count++] = from;
    return node;
}

static inline int32_t lk_export_last(const lk_export *e) { return (int32_t)e->node_count - 1; }

// What a layer gives where its windows see images, sequences or not, as such.
static inline void lk_export_image(lk_export *e, uint32_t channels) {
    e->out = (lk_export_value){.channels = channels};
}

// A node whose type another of the layer has, too.
static inline lk_export_node *lk_export_node_named(lk_export *e, const char *type,
                                                   const char *name) {
    lk_export_node *node = lk_export_node_add(e, type);
    node->name = name;
    return node;
}

static inline void lk_export_reals(lk_export_node *node, uint32_t count, const float *values) {
    lk_assert(count <= 2);
    node->real_count = count;
    for (uint32_t i = 0; i < count; i++) node->reals[i] = values[i];
}

static inline void lk_export_constant(lk_export_node *node, uint32_t count, const int64_t *values) {
    lk_assert(count <= LK_EXPORT_INTS_MAX);
    node->constant_count = count;
    for (uint32_t i = 0; i < count; i++) node->constant[i] = values[i];
}

// The cells that ONNX shall add behind the last row or column, so that `out` windows of `size`,
// `stride` apart, fit over `in` cells with `before` cells ahead of them.
static inline int64_t lk_export_pad_end(uint32_t in, uint32_t size, uint32_t stride, uint32_t out,
                                        uint32_t before) {
    const int64_t reach = (int64_t)(out - 1) * stride + size - before;
    return reach > in ? reach - in : 0;
}

// A convolution of groups, or one that is spread out, with the kernel that e->op has.
void lk_export_grouped_conv2d(lk_export *e);

#endif
