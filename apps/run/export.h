// export.h - a trained model for other frameworks: its layers in their order, each said as
// ops/layers/export.h has it, and the file of ONNX that they make.
//
// Host only. Knows no layer: what a layer becomes, its descriptor says.
#ifndef LOCKSTEP_APPS_RUN_EXPORT_H
#define LOCKSTEP_APPS_RUN_EXPORT_H

#include "io/safetensors.h"
#include "ops/graph/program.h"
#include "ops/layers/export.h"

// Called for each layer, and once more for its activation, in the order of the configuration.
typedef lk_status (*lk_export_visitor)(void *context, const lk_export *said, uint32_t layer,
                                       lk_error *error);

// Walks the layers of a program that is not fused. `last`, which may be NULL, is what the last
// layer gives. LK_BAD_CONFIG: a layer that cannot be said.
lk_status lk_export_walk(const lk_program *program, lk_export_visitor visit, void *context,
                         lk_export_value *last, lk_error *error);

// The type of the layer that a tensor, LAYER/.., is of; NULL: of none.
const lk_layer_type *lk_export_layer_type(const lk_model *model, const char *tensor);

// Is it what a parameter, or a state that evaluation reads, is called without its layer? `rank` is
// that of its shape.
bool lk_export_is_known(const char *word, uint32_t rank);

// The state of a kernel of spectral_normalization, which no other framework has so: an exported
// kernel is the normalized one.
#define LK_EXPORT_VECTOR "vector_u"

// What PyTorch calls it, of a layer of that type; NULL: it is not known. An LSTM of PyTorch adds a
// second row of biases to the first, LK_TORCH_SECOND_BIAS; a GRU has it for its state, as ours.
const char *lk_export_torch_word(const lk_layer_type *type, const char *word);
#define LK_TORCH_SECOND_BIAS "bias_hh_l0"

// Of a parameter as PyTorch has it, (gates, ..) of `count` floats: a GRU has its first two gates in
// the other order, r z n there and z r h here. Other layers' it leaves alone.
void lk_export_swap_gates(const lk_layer_type *type, uint64_t count, float *values);

// Are they the biases for a GRU's state, which an ONNX model has behind the others in one tensor?
bool lk_export_joins_biases(const lk_layer_type *type, const char *word);

// Notes how many channels the rows of a layer's kernel, or the numbers of a norm of rows, count in
// PyTorch's order, (channels, positions) for our (positions, channels); all of them where both are
// the same. Others it leaves alone.
//
// channels  (parameters and states) LK_NONE: a sum of two orders, which PyTorch has not
// Returns false in that case.
bool lk_export_order(const lk_program *program, const lk_export *said, uint32_t *channels);

// What an ONNX model takes for an image.
typedef enum lk_onnx_input {
    LK_ONNX_U8,   // bytes, as a data set has them; scaled in the model as in training
    LK_ONNX_F32,  // floats, scaled already: bytes / 255
} lk_onnx_input;

typedef struct lk_onnx_fold lk_onnx_fold;  // apps/run/export_fold.h

typedef struct lk_onnx_model {
    const lk_program *program;             // not fused
    const lk_safetensors_tensor *tensors;  // (param_count) values of its parameters, in their
                                           // order, then of its states; kernels of rank 4 are
                                           // (out, in, h, w). As `fold` has left them
    const lk_onnx_fold *fold;              // of these tensors and `input`
    lk_onnx_input input;
    const lk_safetensors_pair *metadata;  // (metadata_count)
    size_t metadata_count;
} lk_onnx_model;

// Makes the bytes of the ONNX file: opset 17, for any number of images at once. Inputs and outputs:
//
//     images          (batch, height, width, channels)   uint8 or float
//     logits          (batch, classes)                   float
//     probabilities   (batch, classes)                   float, where the loss has a softmax
//
// or, of a transducer, whose labels may be any number up to all, and none:
//
//     labels              (batch, labels)                           int64, an input beside images
//     encoder             (batch, frames, values)                   float: what its joint takes
//     prediction          (batch, labels + 1, values)               float: likewise
//     logits              (batch, frames, labels + 1, symbols)      float
//     log_probabilities   (batch, frames, labels + 1, symbols)      float
//
// out    (capacity)   may be NULL with capacity 0: then only measures, by the same code
// used   bytes of the file
// LK_BAD_CONFIG: a layer that ONNX cannot say, or a model of 2 GiB, which its format cannot hold.
// LK_INTERNAL: a buffer too small.
lk_status lk_onnx_format(const lk_onnx_model *model, void *out, size_t capacity, size_t *used,
                         lk_error *error);

#endif
