// export_fold.h - what constants of an ONNX model other constants take over. In evaluation the
// scaling of bytes, data.normalize and batch normalisation are all
//
//     y = x * factor + offset     of each channel
//
// and a linear layer beside it can compute that by its own numbers:
//
//     behind it    kernel[.., o] * factor[o],    bias[o] * factor[o] + offset[o]
//     before it    kernel[i, o] * factor[i],     bias[o] + sum of kernel[i, o] * offset[i]
//
// The one behind it needs that nobody else takes what it gives; those before it, that all who take
// the values can, and that there are no zeros around an image, unless the offset is 0. Layers that
// only move values, or take the mean or the greatest of some, may stand between.
//
// Host only. Computes in double, and rounds once for each number of the model.
#ifndef LOCKSTEP_APPS_RUN_EXPORT_FOLD_H
#define LOCKSTEP_APPS_RUN_EXPORT_FOLD_H

#include "apps/run/export.h"

// Of the images: of all channels alike, or of each.
typedef struct lk_onnx_scale {
    uint32_t channels;  // 1, or the model's
    float factor[LK_AUGMENT_CHANNELS_MAX], offset[LK_AUGMENT_CHANNELS_MAX];
    bool multiplies, adds;  // some factor is not 1, some offset not 0, and no layer computes it
} lk_onnx_scale;

struct lk_onnx_fold {
    const lk_program *program;
    lk_safetensors_tensor *tensors;  // the values of those that change, change
    size_t tensor_count;
    lk_onnx_scale scale;
    bool *gone;    // (layers) a normalisation that another layer computes
    float **bias;  // (layers) of one that had none and needs one; NULL: lk_onnx_fold_outputs
    // Of the folding alone:
    const lk_op **ops;  // (layers)
    double *sums;       // (the most outputs of a layer)
};

// program  not fused
// tensors  (count) as lk_onnx_model has them, whose values are the caller's own copy
lk_status lk_onnx_fold_open(lk_onnx_fold *fold, const lk_program *program, lk_onnx_input input,
                            lk_safetensors_tensor *tensors, size_t count, lk_error *error);
void lk_onnx_fold_close(lk_onnx_fold *fold);

// How many outputs, or channels of them, a layer with a kernel has.
uint32_t lk_onnx_fold_outputs(const lk_onnx_fold *f, uint32_t number);

// The tensor of that name.
lk_safetensors_tensor *lk_onnx_fold_find(const lk_onnx_fold *fold, const char *name);

#endif
