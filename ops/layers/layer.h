// layer.h - layers and losses as a configuration names them: what each is called, which keys it
// has, and the ops it becomes. Freestanding; knows no layer by name but in the lists below.
//
// A descriptor has two parts, so that a machine without an operating system links only what its
// model uses: the core part (lk_layer_type, lk_loss_type) makes ops; the words (lk_layer_words) say
// how a configuration writes it, for those who read, print or hash configurations.
#ifndef LOCKSTEP_OPS_LAYERS_LAYER_H
#define LOCKSTEP_OPS_LAYERS_LAYER_H

#include "arena/plan.h"
#include "ops/initializer.h"
#include "ops/metric.h"
#include "ops/gan.h"
#include "ops/noise.h"
#include "ops/setting.h"

// Every layer, and those of them that may stand as "activation" of another.
#define LK_LAYER_LIST(X)                                                                  \
    X(conv2d) X(max_pool2d) X(flatten) X(dense) X(relu) X(add) X(tanh) X(sigmoid) X(leaky_relu) \
    X(average_pool2d) X(global_average_pool2d) X(dropout)                                 \
    X(reshape) X(concatenate) X(zero_padding2d) X(conv2d_transpose) X(batch_normalization) \
    X(relu6) X(elu) X(softplus) X(swish) X(gelu) X(layer_normalization) \
    X(lstm) X(depthwise_conv2d) X(label_embedding) X(joint) X(gru) X(time_reduction)
#define LK_LOSS_LIST(X)  X(sparse_categorical_crossentropy) X(mean_squared_error) X(mean) \
    X(gan_generator) X(gan_discriminator) X(binary_crossentropy) \
    X(transducer)

enum { LK_LAYER_INPUTS_MAX = 2 };

typedef enum lk_padding { LK_PADDING_VALID = 1, LK_PADDING_SAME = 2 } lk_padding;

typedef struct lk_builder lk_builder;        // ops/graph/build.h
typedef struct lk_layer_type lk_layer_type;  // below
typedef struct lk_loss_type lk_loss_type;

// What a layer computes in: as the model's precision says, or in fp32 alone.
enum { LK_LAYER_POLICY, LK_LAYER_FLOAT32 };

// One layer, named as Keras names it. Fields that a type does not have are 0.
typedef struct lk_layer {
    const lk_layer_type *type;
    char name[LK_NAME_BYTES / 2];       // unique in the model; not part of the identity
    uint32_t units;                     // dense, lstm, gru: units; conv2d: filters;
                                        // depthwise_conv2d: depth_multiplier
    uint32_t size_h, size_w;            // conv2d: kernel_size; max_pool2d: pool_size
    uint32_t stride_h, stride_w;        // conv2d, max_pool2d
    lk_padding padding;                 // conv2d, max_pool2d
    uint32_t dilation_h, dilation_w;    // conv2d, depthwise_conv2d; 0: as 1
    uint32_t groups;                    // conv2d; 0: as 1
    bool use_bias;                      // conv2d, dense, lstm, gru
    bool return_sequences;              // lstm, gru
    bool reset_after;                   // gru: its reset gate takes sums over the state, not it
    bool forget_bias;                   // lstm: its forget gate's biases start at one
    const lk_layer_type *activation;    // conv2d, dense: a layer after it; NULL: linear
    const lk_initializer *initializer;  // layers with a kernel: of it; biases start at zero
    float initial;                      // .. what it takes; 0: its own number
    float l2;                           // .. its kernel_regularizer: the share of the sum of its
                                        // squares that is added to the loss; 0: none
    bool spectral;                      // conv2d, conv2d_transpose, dense: its kernel is divided
                                        // by its greatest singular value (ops/graph/spectral.h)
    float negative_slope;               // leaky_relu
    float alpha;                        // elu
    bool approximate;                   // gelu
    float rate;                         // dropout
    float epsilon, momentum;            // batch_normalization; epsilon of layer_normalization
    bool scale, center;                 // batch_normalization, layer_normalization
    bool frozen;                        // its parameters and states stay as they are
    lk_sizes target_shape;              // reshape
    uint32_t sides[4];                  // zero_padding2d: top, bottom, left, right
    uint32_t factor;                    // time_reduction: frames that become one
    uint32_t dtype;                     // LK_LAYER_POLICY, or LK_LAYER_FLOAT32
    // The layers whose outputs it takes: numbers below its own plus 1, 0 for the model's input.
    // None: the layer before it.
    uint32_t input_count;
    uint32_t inputs[LK_LAYER_INPUTS_MAX];
} lk_layer;

// The core part of a layer: emits its ops and says the shape of its output (ops/graph/build.h).
struct lk_layer_type {
    uint32_t inputs;                // how many it takes
    uint32_t ops_max, tensors_max;  // that it may become, with gradients, without its activation
    uint32_t params_max;
    uint32_t states_max;
    lk_status (*build)(lk_builder *b, const lk_layer *layer);
};

// What a configuration says of a loss beside its type. Fields that a type does not have are 0.
typedef struct lk_loss_options {
    // The layers whose outputs it takes, as a layer's `inputs`. None: the last layer, and then the
    // model's input.
    uint32_t input_count;
    uint32_t inputs[LK_LAYER_INPUTS_MAX];
    float scale;  // mean; label smoothing of the crossentropies
    lk_gan gan;   // gan_generator, gan_discriminator
    lk_weights_list class_weight;  // sparse_categorical_crossentropy
} lk_loss_options;

// A loss over outputs of layers, the first of them the prediction: emits its op and the gradient.
struct lk_loss_type {
    uint32_t inputs;     // how many it takes
    bool labels;         // and the label of each example
    bool sequences;      // .. which is a sequence of them (lk_model.labels)
    bool gan;            // its numbers are lk_loss_options.gan, not a scale
    lk_metrics metrics;  // what its op writes of each example, and counts
    const lk_metrics *evaluated;  // not NULL: those of an evaluation, which counts more
    // Not NULL: evaluated together with the first objective whose loss is `beside`, as far as there
    // is one: its means, then those of the other.
    const lk_metrics *together;
    const struct lk_loss_type *beside;
    lk_status (*build)(lk_builder *b);
};

// What a configuration says of noise. Fields that a kind does not have are 0.
typedef struct lk_noise_source {
    uint32_t kind;       // lk_noise_kind
    float mean, stddev;  // normal, truncated_normal
    float low, high;     // uniform
} lk_noise_source;

// What its op draws, as noise of that number.
lk_noise lk_noise_of(const lk_noise_source *source, uint32_t number);

#define LK_LAYER_DECLARE(name) extern const lk_layer_type lk_layer_##name;
LK_LAYER_LIST(LK_LAYER_DECLARE)
#undef LK_LAYER_DECLARE
#define LK_LOSS_DECLARE(name) extern const lk_loss_type lk_loss_##name;
LK_LOSS_LIST(LK_LOSS_DECLARE)
#undef LK_LOSS_DECLARE

// --- words ---------------------------------------------------------------------------------------

typedef struct lk_export lk_export;  // ops/layers/export.h

typedef struct lk_layer_words {
    const lk_layer_type *type;
    const char *name;
    const lk_setting *keys;  // by name, ascending
    uint32_t key_count;
    bool activation;  // may stand as "activation"
    const char *meaning;
    // Says the layer for other frameworks; an activation is asked with the layer that has it. NULL:
    // it cannot be said.
    void (*say_export)(lk_export *e, const lk_layer *layer);
} lk_layer_words;

typedef struct lk_loss_words {
    const lk_loss_type *type;
    const char *name;
    const lk_setting *keys;  // of lk_loss_options; by name, ascending
    uint32_t key_count;
    const char *meaning;
    // The node of ONNX, on the last axis, that makes of logits what the loss takes them for, and
    // what that is called. NULL: the logits are the answer.
    const char *export_node, *export_name;
} lk_loss_words;

// Entry `number` of the lists, NULL past their ends; the words of a type.
const lk_layer_words *lk_layer_words_at(uint32_t number);
const lk_layer_words *lk_layer_words_of(const lk_layer_type *type);
const lk_loss_words *lk_loss_words_at(uint32_t number);
const lk_loss_words *lk_loss_words_of(const lk_loss_type *type);

// How a configuration writes a kind of noise; NULL past the last one.
typedef struct lk_noise_words {
    const char *name;
    const lk_setting *keys;  // of lk_noise_source; by name, ascending
    uint32_t key_count;
    const char *meaning;
} lk_noise_words;
const lk_noise_words *lk_noise_words_at(uint32_t kind);

#define LK_LAYER_WORDS(name) extern const lk_layer_words lk_layer_words_##name;
LK_LAYER_LIST(LK_LAYER_WORDS)
#undef LK_LAYER_WORDS
#define LK_LOSS_WORDS(name) extern const lk_loss_words lk_loss_words_##name;
LK_LOSS_LIST(LK_LOSS_WORDS)
#undef LK_LOSS_WORDS

#endif
