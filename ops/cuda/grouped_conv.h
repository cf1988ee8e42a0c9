// grouped_conv.h - convolutions whose channels are in groups or whose windows are spread out
// (ops/layers/grouped_conv2d.c) as a block has them: a thread has a value of y or dx, or a weight,
// whose sums are one chain after the other. The launches are grouped_conv.cu's, and the persistent
// kernel's (persistent.cu).
#ifndef LOCKSTEP_OPS_CUDA_GROUPED_CONV_H
#define LOCKSTEP_OPS_CUDA_GROUPED_CONV_H

#include "ops/cuda/device.h"

// A sum under way.
struct group_sum {
    lk_cuda_tree tree;
    float chain;
    uint32_t terms;  // of the slice

    __device__ explicit group_sum(float start) : chain(start), terms(0) { tree.leaves = 0; }
    __device__ void cut(void) {
        lk_cuda_tree_leaf(&tree, chain);
        chain = 0.0f;
        terms = 0;
    }
    __device__ void term(float a, float b) {
        if (terms == LK_SLICE_TERMS) cut();
        chain = lk_fmaf(a, b, chain);
        terms++;
    }
    __device__ float node(void) {
        lk_cuda_tree_leaf(&tree, chain);
        return lk_cuda_tree_finish(&tree);
    }
};

// The first channel of the pixel that tap (ky, kx) of output (oy, ox) reads; NULL outside.
static inline __device__ const float *pixel_of(const lk_grouped_conv2d &g, const float *x,
                                               uint32_t oy, uint32_t ox, uint32_t ky, uint32_t kx) {
    const lk_conv2d &c = g.conv;
    const int64_t iy = (int64_t)oy * c.stride_h + (int64_t)ky * g.dilation_h - c.pad_top;
    const int64_t ix = (int64_t)ox * c.stride_w + (int64_t)kx * g.dilation_w - c.pad_left;
    if (iy < 0 || ix < 0 || iy >= c.in_h || ix >= c.in_w) return nullptr;
    return x + ((uint64_t)iy * c.in_w + (uint64_t)ix) * c.in_c;
}

// Which group a channel is of.
struct group_places {
    lk_cuda_pictures values;   // of what a thread has one of
    lk_cuda_divisor channels;  // of a group, of these
    lk_cuda_divisor stride_h, stride_w;
};

static inline __device__ void group_outputs_body(lk_cuda_at block, lk_cuda_state *state,
                                                 uint32_t op, const lk_grouped_conv2d &g,
                                                 const group_places &places, uint32_t inputs,
                                                 uint32_t count, const float *x, const float *w,
                                                 const float *bias, float *y) {
    const lk_conv2d &c = g.conv;
    bool bad = false;
    LK_CUDA_EACH_AT(block, i, count) {
        const lk_cuda_element at = lk_cuda_element_of(places.values, (uint32_t)i);
        const uint32_t co = at.channel, first = lk_cuda_quotient(co, places.channels) * inputs;
        const float *example = x + (uint64_t)at.m * c.in_h * c.in_w * c.in_c, *weight = w + co;
        group_sum sum(bias ? bias[co] : 0.0f);
        for (uint32_t ky = 0; ky < c.kernel_h; ky++) {
            for (uint32_t kx = 0; kx < c.kernel_w; kx++) {
                const float *from = pixel_of(g, example, at.y, at.x, ky, kx);
                for (uint32_t ci = 0; ci < inputs; ci++, weight += c.out_c) {
                    sum.term(from ? from[first + ci] : 0.0f, *weight);
                }
            }
        }
        const float value = sum.node() + 0.0f;
        bad |= lk_cuda_not_finite(value);
        y[i] = c.relu && !(value > 0.0f) ? 0.0f : value;
    }
    lk_cuda_report(state, op, bad);
}

// The output row (or column) that reads input row `in` through kernel row `tap`, -1 if none does.
static inline __device__ int64_t output_of(uint32_t in, uint32_t tap, uint32_t pad,
                                           const lk_cuda_divisor &stride, uint32_t count) {
    const uint32_t at = in + pad - tap, output = lk_cuda_quotient(at, stride);
    const bool there = in + pad >= tap && output * stride.by == at && output < count;
    return there ? (int64_t)output : -1;
}

static inline __device__ void group_inputs_body(lk_cuda_at block, lk_cuda_state *state, uint32_t op,
                                                const lk_grouped_conv2d &g,
                                                const group_places &places, uint32_t outputs,
                                                uint32_t count, const float *dy, const float *w,
                                                float *dx) {
    const lk_conv2d &c = g.conv;
    const uint32_t inputs = places.channels.by;
    bool bad = false;
    LK_CUDA_EACH_AT(block, i, count) {
        const lk_cuda_element at = lk_cuda_element_of(places.values, (uint32_t)i);
        const uint32_t group = lk_cuda_quotient(at.channel, places.channels);
        const uint32_t first = group * outputs, own = at.channel - group * inputs;
        const float *example = dy + (uint64_t)at.m * c.out_h * c.out_w * c.out_c;
        const float *row = w + (uint64_t)own * c.out_c + first;
        group_sum sum(0.0f);
        for (uint32_t ky = 0; ky < c.kernel_h; ky++) {
            const int64_t oy =
                output_of(at.y, ky * g.dilation_h, c.pad_top, places.stride_h, c.out_h);
            for (uint32_t kx = 0; kx < c.kernel_w; kx++, row += (uint64_t)inputs * c.out_c) {
                const int64_t ox =
                    output_of(at.x, kx * g.dilation_w, c.pad_left, places.stride_w, c.out_w);
                for (uint32_t o = 0; o < outputs; o++) {
                    sum.term(row[o], oy < 0 || ox < 0
                                         ? 0.0f
                                         : example[(oy * c.out_w + ox) * c.out_c + first + o]);
                }
            }
        }
        const float value = sum.node() + 0.0f;
        bad |= lk_cuda_not_finite(value);
        dx[i] = value;
    }
    lk_cuda_report(state, op, bad);
}

struct group_operands {
    lk_grouped_conv2d g;
    uint32_t grain, examples, terms;
    lk_cuda_divisor wide;  // tiles of two by two outputs, in a row of a picture
    const float *x, *dy;
    float *kernel, *bias;
};

// The sum of the grain whose first example is `first`, of weight (ky, kx, channel of x, co) or,
// without a channel, of bias co.
static inline __device__ float grain_of(const group_operands &o, uint64_t first, uint32_t ky,
                                        uint32_t kx, int64_t channel, uint32_t co) {
    const lk_conv2d &c = o.g.conv;
    const uint32_t whole = LK_SLICE_TERMS / o.terms;
    const uint32_t examples = (uint32_t)LK_MIN(o.examples - first, (uint64_t)o.grain);
    group_sum sum(0.0f);
    for (uint32_t m = 0; m < examples; m++) {
        const float *x = o.x + (first + m) * c.in_h * c.in_w * c.in_c;
        const float *dy = o.dy + (first + m) * c.out_h * c.out_w * c.out_c;
        if (m > 0 && (whole == 0 || m % whole == 0)) sum.cut();
        for (uint32_t t = 0; t < o.terms; t++) {
            const uint32_t tile = t / 4, row = lk_cuda_quotient(tile, o.wide);
            const uint32_t oy = 2 * row + t % 4 / 2, ox = 2 * (tile - row * o.wide.by) + t % 2;
            const bool exists = oy < c.out_h && ox < c.out_w;
            float value = channel < 0 ? 1.0f : 0.0f;
            if (exists && channel >= 0) {
                const float *from = pixel_of(o.g, x, oy, ox, ky, kx);
                if (from) value = from[channel];
            }
            sum.term(value, exists ? dy[((uint64_t)oy * c.out_w + ox) * c.out_c + co] : 0.0f);
        }
    }
    return sum.node();
}

static inline __device__ void group_weights_body(lk_cuda_at block, const group_operands &o,
                                                 uint64_t weights, uint64_t count) {
    const lk_conv2d &c = o.g.conv;
    const uint32_t inputs = c.in_c / o.g.groups, outputs = c.out_c / o.g.groups;
    LK_CUDA_EACH_AT(block, i, count) {
        const bool of_bias = i >= weights;
        const uint64_t row = i / c.out_c;
        const uint32_t co = (uint32_t)(i - row * c.out_c), tap = (uint32_t)(row / inputs);
        const int64_t channel =
            of_bias ? -1 : (int64_t)(co / outputs * inputs + (uint32_t)(row % inputs));
        lk_cuda_tree tree;
        tree.leaves = 0;
        for (uint64_t first = 0; first < o.examples; first += o.grain) {
            lk_cuda_tree_leaf(&tree,
                              grain_of(o, first, tap / c.kernel_w, tap % c.kernel_w, channel, co));
        }
        float *to = of_bias ? o.bias + co : o.kernel + i;
        *to = lk_cuda_tree_finish(&tree);
    }
}

#endif
