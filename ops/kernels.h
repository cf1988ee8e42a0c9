// kernels.h - the table of kernels that a step is made of, and what each must compute, to the bit.
//
// One table per variant: reference (scalar, the contract itself: ops/reference.c), portable, avx2,
// avx512, neon. Every variant gives the reference's bits for every shape, or is wrong.
// ops/ARITHMETIC.md says the same in formulas: chain (one fma a term, index ascending), slice
// (LK_SLICE_TERMS terms; slice 0 starts from the bias where there is one, all others from +0), tree
// (pairwise by leaf number; a node without a sibling is copied), and "a finished sum is stored as
// s + 0.0f".
//
// Common to all:
// - Pointers are 64-byte aligned unless said otherwise; outputs are written entirely and overlap
// nothing.
// - A kernel may read, never write, up to the next multiple of 64 bytes after a tensor's end.
// - Operands are finite: whatever stored them checked it. So terms that are exactly zero may be
//   skipped or padded in. A kernel returns 0, or 1 where a finished sum (before a fused ReLU or
//   mask) or a stored value is not finite; outputs are then unspecified.
// - `scratch` has at least the floats that the lk_*_scratch_floats() function of the op says; its
//   contents mean nothing before and after (but see dense_weight_gradient).
#ifndef LOCKSTEP_OPS_KERNELS_H
#define LOCKSTEP_OPS_KERNELS_H

#include "ops/geometry.h"
#include "ops/optimizer.h"

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
    LK_WIDE uint32_t examples;  // 1 .. grain
} lk_grain_view;

// Weights that other cores wrote last and that this one will read soon. A kernel that computes much
// and loads little may ask for some of them on its way, and moves `at`.
typedef struct lk_ahead {
    LK_WIDE const float *begin;
    LK_WIDE const float *at;  // begin .. end, and no more than a kernel's few lines past it
    LK_WIDE const float *end;
} lk_ahead;

// The rows of w that a call of dense_weight_gradient is for, and what it may know of other calls.
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

typedef struct lk_kernels {
    const char *name;

    // dst[i] = (float)src[i] * 0x1.010102p-8f    (1/255 rounded; src is not aligned)
    void (*load_u8)(uint64_t count, const uint8_t *src, float *dst);

    // y[m][n] = tree over slices of sum_k x[m][k] * w[k][n], bias[n] starting slice 0; ReLU if
    // d->relu. x (m_count, k_count), w (k_count, n_count), bias (n_count) or NULL, y (m_count,
    // n_count)
    uint32_t (*dense_forward)(const lk_dense *d, uint32_t m_count, const float *x, const float *w,
                              const float *bias, float *y, float *scratch);

    // dx[m][k] = tree over slices of sum_n w[k][n] * dy[m][n]; then +0 where mask is given and
    // not mask[m][k] > 0.    dy (m_count, n_count), mask (m_count, k_count) or NULL, dx (m_count,
    // k_count)
    uint32_t (*dense_input_gradient)(const lk_dense *d, uint32_t m_count, const float *w,
                                     const float *dy, const float *mask, float *dx, float *scratch);

    // The node of the grains' sums of x[m][k] * dy[m][n] over examples m; some rows k of w.
    // A node is a partial sum: neither + 0.0f nor checked, and its zeros have no sign.
    // dw (rows->end - rows->first, n_count)
    void (*dense_weight_gradient)(const lk_dense *d, uint32_t grain_count,
                                  const lk_grain_view *grains, const lk_weight_rows *rows,
                                  float *dw, float *scratch);
    // A caller that wants few rows at a time had best ask for a multiple of so many, and for about
    // so many floats; 0 where LK_OPERANDS_ROWS and LK_OPERANDS_FLOATS are as good.
    uint32_t weight_rows, weight_floats;  // <= LK_OPERANDS_FLOATS_MAX

    // The node of the grains' sums of dy[m][n] over examples m: the bias gradient of a dense layer,
    // and with n_count = 1 the loss. out (n_count)
    void (*column_sums)(uint32_t n_count, uint32_t grain_count, const lk_grain_view *grains,
                        float *out);

    // y[m][oy][ox][co] = tree over slices of sum over (ky, kx, ci), ascending, of
    //     x[m][oy*stride_h + ky - pad_top][ox*stride_w + kx - pad_left][ci] * w[ky][kx][ci][co],
    // cells outside the image being zero terms; bias[co] starts slice 0; ReLU if c->relu.
    uint32_t (*conv2d_forward)(const lk_conv2d *c, uint32_t m_count, const float *x, const float *w,
                               const float *bias, float *y, float *scratch);

    // conv2d_forward followed by 2x2 max-pooling with stride 2: only the pooled values and the
    // winning cell of each tile (0..3, row-major; the first of equals, by the sums before ReLU) are
    // stored. y (m_count, out_h/2, out_w/2, out_c), argmax the same shape. c->relu may be true or
    // false. `ahead` is what may be fetched meanwhile.
    uint32_t (*conv2d_pool_forward)(const lk_conv2d *c, uint32_t m_count, const float *x,
                                    const float *w, const float *bias, float *y, uint8_t *argmax,
                                    lk_ahead *ahead, float *scratch);

    // dx[m][iy][ix][ci] = tree over slices of sum over (ky, kx, co), ascending, of
    //     w[ky][kx][ci][co] * dy[m][oy][ox][co]   with oy*stride_h + ky - pad_top = iy, likewise
    //     ox,
    // positions that do not exist being zero terms; then +0 where mask is given and not mask > 0.
    uint32_t (*conv2d_input_gradient)(const lk_conv2d *c, uint32_t m_count, const float *w,
                                      const float *dy, const float *mask, float *dx,
                                      float *scratch);

    // The same from the gradient of the pooled output: dy (m_count, out_h/2, out_w/2, out_c) goes
    // to the cell that argmax names, the other cells of the convolution's output have gradient +0.
    uint32_t (*conv2d_pool_input_gradient)(const lk_conv2d *c, uint32_t m_count, const float *w,
                                           const float *dy, const uint8_t *argmax,
                                           const float *mask, float *dx, float *scratch);

    // The node of the grains' sums over (example, position) of x * dy, per weight, and of dy, per
    // bias. Terms of a grain are example-major; the positions of an example run in 2x2 tiles (tile
    // row, tile column, row in the tile, column in the tile), lk_conv2d_terms() of them. A slice is
    // LK_SLICE_TERMS / terms whole examples; if that is 0, every example is cut into slices of
    // LK_SLICE_TERMS terms by itself (its last slice may be short). Tree over the slices of a
    // grain, then over grains. dw (kernel_h, kernel_w, in_c, out_c), db (out_c) or NULL
    void (*conv2d_weight_gradient)(const lk_conv2d *c, uint32_t grain_count,
                                   const lk_grain_view *grains, float *dw, float *db,
                                   float *scratch);

    // The same, dy and argmax being pooled as in conv2d_pool_forward: equal to the above with dy
    // scattered to the winning cells and +0 elsewhere.
    void (*conv2d_pool_weight_gradient)(const lk_conv2d *c, uint32_t grain_count,
                                        const lk_grain_view *grains, float *dw, float *db,
                                        float *scratch);

    // y = maximum of the window, argmax = its index in the window (row-major, the first of equals).
    void (*max_pool_forward)(const lk_pool2d *p, uint32_t m_count, const float *x, float *y,
                             uint16_t *argmax);
    // dx = sum of the dy whose window chose this cell, in ascending order of (oy, ox), starting
    // from +0.
    uint32_t (*max_pool_backward)(const lk_pool2d *p, uint32_t m_count, const float *dy,
                                  const uint16_t *argmax, float *dx);

    // y = x > 0 ? x : +0;  dx = y > 0 ? dy : +0. In place allowed (y == x, dx == dy).
    void (*relu_forward)(uint64_t count, const float *x, float *y);
    void (*relu_backward)(uint64_t count, const float *y, const float *dy, float *dx);

    // Per example: top = max_k l[k] (the first of equals is the prediction), e[k] = exp(l[k] -
    // top), s = tree over slices of sum_k e[k] (a chain of additions), r = 1 / s;
    //     loss = log(s) - (l[label] - top);  dlogits[k] = e[k] * r - (k == label), + 0.0f.
    // labels (m_count); logits, dlogits (m_count, classes), dlogits may be NULL; loss (m_count);
    // *correct = number of examples whose prediction is the label. A label from `classes` on is no
    // class: the example's loss is NaN, and reported.
    uint32_t (*softmax_cross_entropy)(uint32_t m_count, uint32_t classes, const float *logits,
                                      const uint32_t *labels, float *dlogits, float *loss,
                                      uint32_t *correct);

    // out[i] = a[i] + b[i]: two sibling nodes become their parent. out may be a or b.
    void (*add)(uint64_t count, const float *a, const float *b, float *out);

    // One optimizer step on `count` parameters: g = (sum[i] + 0.0f) * inverse_n, then as
    // optimizer.h says; w and slots in place.
    uint32_t (*apply)(const lk_optimizer *o, uint64_t count, const float *sum, float inverse_n,
                      float *w, float *const slots[LK_OPTIMIZER_SLOTS_MAX]);
} lk_kernels;

extern const lk_kernels lk_kernels_reference;
extern const lk_kernels lk_kernels_portable;
extern const lk_kernels lk_kernels_avx2;    // x86-64 builds
extern const lk_kernels lk_kernels_avx512;  // x86-64 builds
extern const lk_kernels lk_kernels_neon;    // AArch64 builds

// Scratch that one call needs, in floats: the most over all variants, so that the plan does not
// depend on the variant.
uint64_t lk_dense_forward_scratch_floats(const lk_dense *d, uint32_t m_count);
uint64_t lk_dense_input_gradient_scratch_floats(const lk_dense *d, uint32_t m_count);
uint64_t lk_dense_weight_gradient_scratch_floats(const lk_dense *d);
uint64_t lk_conv2d_scratch_floats(const lk_conv2d *c);  // any of the convolution's kernels

#endif
