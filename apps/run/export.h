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

// Is this the kernel of a depthwise convolution? Other frameworks have (in * multiplier, 1, h, w)
// for our (h, w, in, multiplier).
bool lk_export_is_depthwise(const lk_model *model, const char *tensor);

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
// out    (capacity)   may be NULL with capacity 0: then only measures, by the same code
// used   bytes of the file
// LK_BAD_CONFIG: a layer that ONNX cannot say, or a model of 2 GiB, which its format cannot hold.
// LK_INTERNAL: a buffer too small.
lk_status lk_onnx_format(const lk_onnx_model *model, void *out, size_t capacity, size_t *used,
                         lk_error *error);

#endif
