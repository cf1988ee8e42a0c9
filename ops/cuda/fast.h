// fast.h - dense layers and convolutions in the fast arithmetic: products of matrices by blas.h,
// one batch a grain, everything around them by our own kernels. C; needs no header of CUDA.
//
// Like the launches of kernels.h, with these differences:
// - A sum of products is cuBLAS's: its order is that of an algorithm chosen once for a grain's
//   shape. Bias, ReLU, masks, the bias's gradient and all that is no product are the strict ones.
// - A convolution is the product of a matrix of all windows of the image (terms in the order of
//   kernels.h) with the weights; the gradient of its input is gathered from the product of the
//   output's gradient with the weights, taps ascending.
// - Operands are rounded once, to nearest even: tf32 by the matrix units, bf16 and fp16 by our
//   kernels, of which what is not zero stays so (operand.h). What that makes infinite in fp16 is
//   reported as a sum would be; a window, or what was pooled, by the sums it enters.
// - A convolution behind which a 2x2 pool stands is no product of cuBLAS where the strict kernels,
//   which never store what is before the pool, are reckoned to be faster (ops/layers/conv2d.c).
//   What it pools a dense layer may take as its operand.
// - A grain is computed whole and by itself, the partial gradients of grains are added by the tree:
//   the bits do not depend on microbatches, replicas or workers. A short last grain has a shape,
//   and so an algorithm, of its own.
//
// Scratch holds operands for as many grains at once as fit in `chunk_bytes`, one at least.
#ifndef LOCKSTEP_OPS_CUDA_FAST_H
#define LOCKSTEP_OPS_CUDA_FAST_H

#include "ops/cuda/blas.h"
#include "ops/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

// Operands of one launch, where nobody says otherwise: of the order of a second-level cache.
enum { LK_FAST_CHUNK_BYTES = 64 << 20 };

// Terms of a product that is a weight gradient: a few outputs, such as a first convolution's, are
// one block of threads, however many terms a grain has. So they are shared by several, whose sums
// the tree joins. A grain's pieces depend on its size alone.
enum { LK_FAST_PIECE_TERMS = 8192 };

typedef struct lk_fast_rules {
    lk_fast_precision precision;  // not LK_STRICT
    uint32_t grain;
    uint32_t grains;  // of a global batch: what algorithms are chosen for
    uint64_t chunk_bytes;
    uint32_t piece_terms;  // of a weight gradient: a grain of twice as many or more is cut
    uint32_t launch_max;   // elements that a launch numbers, if a row is not more: below 2^31
} lk_fast_rules;

typedef struct lk_fast {
    lk_fast_rules rules;
    lk_blas blas;
} lk_fast;

// A layer: one of the two is not NULL. Narrow, of a dense layer: its x, and the mask of its input's
// gradient, are operands of 16 bits (operand.h), of k_count in whole lines of LK_BLAS_ALIGN_BYTES.
typedef struct lk_fast_layer {
    const lk_dense *dense;
    const lk_conv2d *conv;
    bool narrow;
} lk_fast_layer;

typedef enum lk_fast_pass {
    LK_FAST_FORWARD,
    LK_FAST_INPUT_GRADIENT,
    LK_FAST_WEIGHT_GRADIENT,
} lk_fast_pass;

// y, dx, and the node of the grains, as of the layer's launches in kernels.h.
void lk_fast_forward(lk_fast *f, lk_cuda_stream *s, const lk_fast_layer *layer, uint32_t m_count,
                     const void *x, const float *w, const float *bias, float *y);
void lk_fast_input_gradient(lk_fast *f, lk_cuda_stream *s, const lk_fast_layer *layer,
                            uint32_t m_count, const float *w, const float *dy, const void *mask,
                            float *dx);
// db: of a convolution, or NULL.
void lk_fast_weight_gradient(lk_fast *f, lk_cuda_stream *s, const lk_fast_layer *layer,
                             const lk_cuda_grains *grains, float *dw, float *db);

// Scratch of a pass, in floats, for up to `examples` examples.
uint64_t lk_fast_scratch_floats(const lk_fast_rules *rules, const lk_fast_layer *layer,
                                lk_fast_pass pass, uint32_t examples);

#ifdef __cplusplus
}
#endif
#endif
