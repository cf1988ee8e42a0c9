// kernel_calls.h - kernels called by name, with operands: what a lane and an op carry (ops/op.h),
// for tests of single kernels. `k` is a table; where it has no kernel the reference runs.
#ifndef LOCKSTEP_TESTS_OPS_KERNEL_CALLS_H
#define LOCKSTEP_TESTS_OPS_KERNEL_CALLS_H

#include <string.h>

#include "ops/op.h"

// Kernels take operands that they only read as void *, as all of an op's tensors are.
#define WITHOUT_CONST(pointer) ((void *)(uintptr_t)(pointer))

// Runs what follows for every variant that this processor has, but the reference; `k` is its table
// (ops/variant.h). The reference's own results are computed once, before.
#define EACH_VARIANT(k)                                                                 \
    for (unsigned number_ = 0, skip_ = 0; skip_ < 1; skip_++)                           \
        for (const lk_kernels *k; lk_kernels_missing(number_, &k), k != NULL; number_++) \
            if (lk_kernels_missing(number_, &k) == NULL && k != &lk_kernels_reference)

static inline uint32_t call_op(const lk_kernels *k, const lk_op *op, lk_lane *lane) {
    lane->train = true;
    return lk_kernel_of(k, op->type)(lane, op);
}

static inline uint32_t dense_forward(const lk_kernels *k, const lk_dense *d, uint32_t m,
                                     const float *x, const float *w, const float *bias, float *y,
                                     float *scratch) {
    const lk_op op = {.type = &lk_op_dense, .floats = d->n_count, .dense = *d};
    lk_lane l = {.examples = m, .param = {WITHOUT_CONST(w), WITHOUT_CONST(bias)}};
    l.at[LK_X] = WITHOUT_CONST(x), l.at[LK_Y] = y, l.at[LK_SCRATCH] = scratch;
    return call_op(k, &op, &l);
}

static inline uint32_t dense_input_gradient(const lk_kernels *k, const lk_dense *d, uint32_t m,
                                            const float *w, const float *dy, const float *mask,
                                            float *dx, float *scratch) {
    const lk_op op = {.type = &lk_op_dense_input_gradient, .floats = d->n_count, .dense = *d};
    lk_lane l = {.examples = m, .param = {WITHOUT_CONST(w)}};
    l.at[LK_DY] = WITHOUT_CONST(dy), l.at[LK_MASK] = WITHOUT_CONST(mask), l.at[LK_DX] = dx;
    l.at[LK_SCRATCH] = scratch;
    return call_op(k, &op, &l);
}

static inline void dense_weight_gradient(const lk_kernels *k, const lk_dense *d, uint32_t grains,
                                         const lk_grain_view *views, const lk_weight_rows *rows,
                                         float *dw, float *scratch) {
    const lk_op op = {.type = &lk_op_dense_weight_gradient, .floats = d->n_count, .dense = *d};
    lk_lane l = {.grain_count = grains, .grains = views, .rows = rows, .sums = {dw}};
    l.at[LK_SCRATCH] = scratch;
    (void)call_op(k, &op, &l);
}

static inline uint32_t conv_forward(const lk_kernels *k, const lk_op *op, uint32_t m,
                                    const float *x, const float *w, const float *bias, float *y,
                                    uint8_t *argmax, lk_ahead *ahead, float *scratch) {
    lk_lane l = {.examples = m, .param = {WITHOUT_CONST(w), WITHOUT_CONST(bias)}, .ahead = ahead};
    l.at[LK_X] = WITHOUT_CONST(x), l.at[LK_Y] = y, l.at[LK_AUX] = argmax;
    l.at[LK_SCRATCH] = scratch;
    return call_op(k, op, &l);
}

static inline uint32_t conv2d_forward(const lk_kernels *k, const lk_conv2d *c, uint32_t m,
                                      const float *x, const float *w, const float *bias, float *y,
                                      float *scratch) {
    const lk_op op = {.type = &lk_op_conv2d, .floats = lk_conv2d_out_floats(c), .conv = *c};
    return conv_forward(k, &op, m, x, w, bias, y, NULL, NULL, scratch);
}

static inline uint32_t conv2d_pool_forward(const lk_kernels *k, const lk_conv2d *c, uint32_t m,
                                           const float *x, const float *w, const float *bias,
                                           float *y, uint8_t *argmax, lk_ahead *ahead,
                                           float *scratch) {
    const lk_op op = {.type = &lk_op_conv2d_pool, .floats = lk_conv2d_pooled_floats(c), .conv = *c};
    return conv_forward(k, &op, m, x, w, bias, y, argmax, ahead, scratch);
}

static inline uint32_t conv2d_pool_input_gradient(const lk_kernels *k, const lk_conv2d *c,
                                                  uint32_t m, const float *w, const float *dy,
                                                  const uint8_t *argmax, const float *mask,
                                                  float *dx, float *scratch) {
    const lk_op op = {
        .type = argmax ? &lk_op_conv2d_pool_input_gradient : &lk_op_conv2d_input_gradient,
        .floats = argmax ? lk_conv2d_pooled_floats(c) : lk_conv2d_out_floats(c),
        .conv = *c};
    lk_lane l = {.examples = m, .param = {WITHOUT_CONST(w)}};
    l.at[LK_DY] = WITHOUT_CONST(dy), l.at[LK_MASK] = WITHOUT_CONST(mask), l.at[LK_DX] = dx;
    l.at[LK_AUX] = WITHOUT_CONST(argmax), l.at[LK_SCRATCH] = scratch;
    return call_op(k, &op, &l);
}

static inline uint32_t conv2d_input_gradient(const lk_kernels *k, const lk_conv2d *c, uint32_t m,
                                             const float *w, const float *dy, const float *mask,
                                             float *dx, float *scratch) {
    return conv2d_pool_input_gradient(k, c, m, w, dy, NULL, mask, dx, scratch);
}

static inline void conv_weight_gradient(const lk_kernels *k, const lk_op_type *type,
                                        const lk_conv2d *c, uint32_t grains,
                                        const lk_grain_view *views, float *dw, float *db,
                                        float *scratch) {
    const lk_op op = {.type = type, .conv = *c};
    lk_lane l = {.grain_count = grains, .grains = views, .sums = {dw, db}};
    l.at[LK_SCRATCH] = scratch;
    (void)call_op(k, &op, &l);
}

static inline void conv2d_weight_gradient(const lk_kernels *k, const lk_conv2d *c, uint32_t grains,
                                          const lk_grain_view *views, float *dw, float *db,
                                          float *scratch) {
    conv_weight_gradient(k, &lk_op_conv2d_weight_gradient, c, grains, views, dw, db, scratch);
}

static inline void conv2d_pool_weight_gradient(const lk_kernels *k, const lk_conv2d *c,
                                               uint32_t grains, const lk_grain_view *views,
                                               float *dw, float *db, float *scratch) {
    conv_weight_gradient(k, &lk_op_conv2d_pool_weight_gradient, c, grains, views, dw, db, scratch);
}

static inline void max_pool_forward(const lk_kernels *k, const lk_pool2d *p, uint32_t m,
                                    const float *x, float *y, uint16_t *argmax) {
    const lk_op op = {.type = &lk_op_max_pool2d, .pool = *p};
    lk_lane l = {.examples = m};
    l.at[LK_X] = WITHOUT_CONST(x), l.at[LK_Y] = y, l.at[LK_AUX] = argmax;
    (void)call_op(k, &op, &l);
}

static inline uint32_t max_pool_backward(const lk_kernels *k, const lk_pool2d *p, uint32_t m,
                                         const float *dy, const uint16_t *argmax, float *dx) {
    const lk_op op = {.type = &lk_op_max_pool2d_backward, .pool = *p};
    lk_lane l = {.examples = m};
    l.at[LK_DY] = WITHOUT_CONST(dy), l.at[LK_AUX] = WITHOUT_CONST(argmax), l.at[LK_DX] = dx;
    return call_op(k, &op, &l);
}

static inline uint32_t average_pool(const lk_kernels *k, const lk_op_type *type, const lk_pool2d *p,
                                    uint32_t m, const float *x, float *y, const float *dy,
                                    float *dx) {
    const lk_op op = {
        .type = type, .floats = (uint64_t)p->out_h * p->out_w * p->channels, .pool = *p};
    lk_lane l = {.examples = m};
    l.at[LK_X] = WITHOUT_CONST(x), l.at[LK_Y] = y;
    l.at[LK_DY] = WITHOUT_CONST(dy), l.at[LK_DX] = dx;
    return call_op(k, &op, &l);
}

static inline void relu_forward(const lk_kernels *k, uint64_t count, const float *x, float *y) {
    const lk_op op = {.type = &lk_op_relu, .floats = count};
    lk_lane l = {.examples = 1};
    l.at[LK_X] = WITHOUT_CONST(x), l.at[LK_Y] = y;
    (void)call_op(k, &op, &l);
}

static inline void relu_backward(const lk_kernels *k, uint64_t count, const float *y,
                                 const float *dy, float *dx) {
    const lk_op op = {.type = &lk_op_relu_backward, .floats = count};
    lk_lane l = {.examples = 1};
    l.at[LK_Y] = WITHOUT_CONST(y), l.at[LK_DY] = WITHOUT_CONST(dy), l.at[LK_DX] = dx;
    (void)call_op(k, &op, &l);
}

// Any op of single values: those of its tensors that are not NULL.
static inline uint32_t element_op(const lk_kernels *k, const lk_op_type *type, uint64_t count,
                                  const float *x, const float *x2, float *y, const float *dy,
                                  float *dx) {
    lk_op op = {.type = type, .floats = count};
    lk_lane l = {.examples = 1};
    if (type != &lk_op_add) op.slope = 0.3f;
    l.at[LK_X] = WITHOUT_CONST(x), l.at[LK_X2] = WITHOUT_CONST(x2), l.at[LK_Y] = y;
    l.at[LK_DY] = WITHOUT_CONST(dy), l.at[LK_DX] = dx;
    return call_op(k, &op, &l);
}

// With weights of the classes, or NULL.
static inline uint32_t weighted_cross_entropy(const lk_kernels *k, uint32_t m, uint32_t classes,
                                              float smoothing, const float *weights,
                                              const float *logits, const uint32_t *labels,
                                              float *dlogits, float *loss, uint32_t *correct) {
    const lk_op op = {
        .type = &lk_op_softmax_cross_entropy, .floats = classes, .scale = smoothing};
    lk_lane l = {.examples = m};
    l.at[LK_X] = WITHOUT_CONST(logits), l.at[LK_X2] = WITHOUT_CONST(labels);
    l.at[LK_Y] = loss, l.at[LK_DX] = dlogits, l.at[LK_AUX] = WITHOUT_CONST(weights);
    const uint32_t bad = call_op(k, &op, &l);
    *correct = l.counts[0];
    return bad;
}

static inline uint32_t smoothed_cross_entropy(const lk_kernels *k, uint32_t m, uint32_t classes,
                                              float smoothing, const float *logits,
                                              const uint32_t *labels, float *dlogits, float *loss,
                                              uint32_t *correct) {
    return weighted_cross_entropy(k, m, classes, smoothing, NULL, logits, labels, dlogits, loss,
                                  correct);
}

static inline uint32_t softmax_cross_entropy(const lk_kernels *k, uint32_t m, uint32_t classes,
                                             const float *logits, const uint32_t *labels,
                                             float *dlogits, float *loss, uint32_t *correct) {
    return smoothed_cross_entropy(k, m, classes, 0.0f, logits, labels, dlogits, loss, correct);
}

static inline uint32_t mean_squared_error(const lk_kernels *k, uint32_t m, uint64_t count,
                                          const float *p, const float *t, float *y, float *dp) {
    const lk_op op = {.type = &lk_op_mean_squared_error, .floats = count};
    lk_lane l = {.examples = m};
    l.at[LK_X] = WITHOUT_CONST(p), l.at[LK_X2] = WITHOUT_CONST(t);
    l.at[LK_Y] = y, l.at[LK_DX] = dp;
    return call_op(k, &op, &l);
}

static inline uint32_t mean_loss(const lk_kernels *k, uint32_t m, uint64_t count, float scale,
                                 const float *x, float *y, float *dx) {
    const lk_op op = {.type = &lk_op_mean, .floats = count, .scale = scale};
    lk_lane l = {.examples = m};
    l.at[LK_X] = WITHOUT_CONST(x), l.at[LK_Y] = y, l.at[LK_DX] = dx;
    return call_op(k, &op, &l);
}

static inline uint32_t apply(const lk_kernels *k, const lk_optimizer *o, uint64_t count,
                             const float *sum, float inverse_n, float *w,
                             float *const slots[LK_OPTIMIZER_SLOTS_MAX]) {
    const lk_step_scalars scalars = lk_optimizer_scalars(o, 0, 0, inverse_n);
    return lk_apply_of(k, o)(o, &scalars, count, sum, w, slots);
}

// Scratch of an op, in floats.
static inline uint64_t conv2d_scratch_floats(const lk_conv2d *c) {
    const lk_op op = {.type = &lk_op_conv2d, .conv = *c};
    return op.type->scratch_floats(&op, 1);
}
static inline uint64_t dense_scratch_floats(const lk_op_type *type, const lk_dense *d, uint32_t m) {
    const lk_op op = {.type = type, .dense = *d};
    return type->scratch_floats(&op, m);
}

#endif
