// mixed.h - what mixed precision does on a GPU beside the kernels of fp32, as launches (kernels.h):
// the hands of ops/graph/mixed.h. Plain C, needs no CUDA header.
//
// What is not finite and counts is noted on the device, in the name of the stream's op.
#ifndef LOCKSTEP_OPS_CUDA_MIXED_H
#define LOCKSTEP_OPS_CUDA_MIXED_H

#include "ops/cuda/kernels.h"
#include "ops/op.h"

#ifdef __cplusplus
extern "C" {
#endif

// As lk_kernels.widen, narrow and narrow_pool, the last of `examples` examples.
void lk_cuda_widen(lk_cuda_stream *s, lk_dtype dtype, uint64_t count, const uint16_t *from,
                   float *to);
void lk_cuda_narrow(lk_cuda_stream *s, const lk_narrow *how, const lk_look *look, uint64_t count,
                    const float *from, uint16_t *to);
void lk_cuda_narrow_pool(lk_cuda_stream *s, const lk_narrow *how, const lk_conv2d *c,
                         uint32_t examples, const float *from, uint16_t *to, uint8_t *argmax);

// Values that stay in fp32.
void lk_cuda_look_for(lk_cuda_stream *s, const lk_look *look, uint64_t count, const float *values);

// dx[i] = dx[i] * S, S = initial * 2^*power: the loss scale, whose power lies on the device.
void lk_cuda_scale(lk_cuda_stream *s, float initial, const uint32_t *power, uint64_t count,
                   float *dx);

void lk_cuda_clear_bytes(lk_cuda_stream *s, uint64_t bytes, uint8_t *at);  // to zeros

#ifdef __cplusplus
}
#endif
#endif
