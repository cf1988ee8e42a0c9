// grouped_conv.cu - convolutions whose channels are in groups or whose windows are spread out
// (ops/layers/grouped_conv2d.c): a thread has a value of y or dx, or a weight, whose sums are one
// chain after the other. Part of the plain kernels (plain.cu).
#include "ops/cuda/device.h"
#include "ops/cuda/table.h"

static inline lk_cuda_stream *stream_of(const lk_lane *l) {
    return static_cast<const lk_cuda_lane *>(l->device)->stream;
}
static inline float *floats_of(const lk_lane *l, lk_role role) {
    return static_cast<float *>(l->at[role]);
}

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
                                               uint32_t oy, uint32_t ox, uint32_t ky,
                                               uint32_t kx) {
    const lk_conv2d &c = g.conv;
    const int64_t iy = (int64_t)oy * c.stride_h + (int64_t)ky * g.dilation_h - c.pad_top;
    const int64_t ix = (int64_t)ox * c.stride_w + (int64_t)kx * g.dilation_w - c.pad_left;
    if (iy < 0 || ix < 0 || iy >= c.in_h || ix >= c.in_w) return nullptr;
    return x + ((uint64_t)iy * c.in_w + (uint64_t)ix) * c.in_c;
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    group_outputs(lk_cuda_state *state, uint32_t op, lk_grouped_conv2d g, uint64_t count,
                  const float *__restrict__ x, const float *__restrict__ w,
                  const float *__restrict__ bias, float *__restrict__ y) {
    const lk_conv2d &c = g.conv;
    const uint32_t inputs = c.in_c / g.groups, outputs = c.out_c / g.groups;
    bool bad = false;
    LK_CUDA_EACH(i, count) {
        const uint64_t cell = i / c.out_c;
        const uint32_t co = (uint32_t)(i - cell * c.out_c), first = co / outputs * inputs;
        const uint32_t ox = (uint32_t)(cell % c.out_w), oy = (uint32_t)(cell / c.out_w % c.out_h);
        const float *example = x + cell / c.out_w / c.out_h * c.in_h * c.in_w * c.in_c;
        group_sum sum(bias ? bias[co] : 0.0f);
        for (uint32_t tap = 0; tap < c.kernel_h * c.kernel_w; tap++) {
            const float *from = pixel_of(g, example, oy, ox, tap / c.kernel_w, tap % c.kernel_w);
            for (uint32_t ci = 0; ci < inputs; ci++) {
                sum.term(from ? from[first + ci] : 0.0f,
                         w[((uint64_t)tap * inputs + ci) * c.out_c + co]);
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
                                           uint32_t stride, uint32_t count) {
    const int64_t at = (int64_t)in + pad - tap;
    return at >= 0 && at % stride == 0 && at / stride < count ? at / stride : -1;
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    group_inputs(lk_cuda_state *state, uint32_t op, lk_grouped_conv2d g, uint64_t count,
                 const float *__restrict__ dy, const float *__restrict__ w,
                 float *__restrict__ dx) {
    const lk_conv2d &c = g.conv;
    const uint32_t inputs = c.in_c / g.groups, outputs = c.out_c / g.groups;
    bool bad = false;
    LK_CUDA_EACH(i, count) {
        const uint64_t cell = i / c.in_c;
        const uint32_t channel = (uint32_t)(i - cell * c.in_c), first = channel / inputs * outputs;
        const uint32_t ix = (uint32_t)(cell % c.in_w), iy = (uint32_t)(cell / c.in_w % c.in_h);
        const float *example = dy + cell / c.in_w / c.in_h * c.out_h * c.out_w * c.out_c;
        group_sum sum(0.0f);
        for (uint32_t tap = 0; tap < c.kernel_h * c.kernel_w; tap++) {
            const int64_t oy = output_of(iy, tap / c.kernel_w * g.dilation_h, c.pad_top,
                                         c.stride_h, c.out_h);
            const int64_t ox = output_of(ix, tap % c.kernel_w * g.dilation_w, c.pad_left,
                                         c.stride_w, c.out_w);
            const float *row = w + ((uint64_t)tap * inputs + channel % inputs) * c.out_c + first;
            for (uint32_t o = 0; o < outputs; o++) {
                sum.term(row[o], oy < 0 || ox < 0
                                     ? 0.0f
                                     : example[(oy * c.out_w + ox) * c.out_c + first + o]);
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
    const float *x, *dy;
    float *kernel, *bias;
};

// The sum of the grain whose first example is `first`, of weight (ky, kx, channel of x, co) or,
// without a channel, of bias co.
static inline __device__ float grain_of(const group_operands &o, uint64_t first, uint32_t ky,
                                        uint32_t kx, int64_t channel, uint32_t co) {
    const lk_conv2d &c = o.g.conv;
    const uint32_t whole = LK_SLICE_TERMS / o.terms, wide = (c.out_w + 1) / 2;
    const uint32_t examples = (uint32_t)LK_MIN(o.examples - first, (uint64_t)o.grain);
    group_sum sum(0.0f);
    for (uint32_t m = 0; m < examples; m++) {
        const float *x = o.x + (first + m) * c.in_h * c.in_w * c.in_c;
        const float *dy = o.dy + (first + m) * c.out_h * c.out_w * c.out_c;
        if (m > 0 && (whole == 0 || m % whole == 0)) sum.cut();
        for (uint32_t t = 0; t < o.terms; t++) {
            const uint32_t tile = t / 4;
            const uint32_t oy = 2 * (tile / wide) + t % 4 / 2, ox = 2 * (tile % wide) + t % 2;
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

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    group_weights(group_operands o, uint64_t weights, uint64_t count) {
    const lk_conv2d &c = o.g.conv;
    const uint32_t inputs = c.in_c / o.g.groups, outputs = c.out_c / o.g.groups;
    LK_CUDA_EACH(i, count) {
        const bool of_bias = i >= weights;
        const uint64_t row = i / c.out_c;
        const uint32_t co = (uint32_t)(i - row * c.out_c), tap = (uint32_t)(row / inputs);
        const int64_t channel =
            of_bias ? -1 : (int64_t)(co / outputs * inputs + (uint32_t)(row % inputs));
        lk_cuda_tree tree;
        tree.leaves = 0;
        for (uint64_t first = 0; first < o.examples; first += o.grain) {
            lk_cuda_tree_leaf(
                &tree, grain_of(o, first, tap / c.kernel_w, tap % c.kernel_w, channel, co));
        }
        float *to = of_bias ? o.bias + co : o.kernel + i;
        *to = lk_cuda_tree_finish(&tree);
    }
}

// Terms of a value, whose group has a share of so many channels.
static uint64_t terms_of(const lk_op *op, uint32_t channels) {
    return (uint64_t)op->conv.kernel_h * op->conv.kernel_w * (channels / op->grouped.groups);
}

uint32_t lk_cuda_plain_grouped_conv2d(lk_lane *l, const lk_op *op) {
    lk_cuda_stream *s = stream_of(l);
    const uint64_t count = l->examples * lk_conv2d_out_floats(&op->conv);
    const uint64_t terms = terms_of(op, op->conv.in_c);
    lk_cuda_launch(s, group_outputs, lk_cuda_blocks(count, terms, 8 * count * terms, count * terms),
                   LK_CUDA_THREADS, 0, s->state, s->op, op->grouped, count, floats_of(l, LK_X),
                   l->param[0], l->param[1], floats_of(l, LK_Y));
    return 0;
}

uint32_t lk_cuda_plain_grouped_conv2d_input_gradient(lk_lane *l, const lk_op *op) {
    lk_cuda_stream *s = stream_of(l);
    const uint64_t count = l->examples * lk_conv2d_in_floats(&op->conv);
    const uint64_t terms = terms_of(op, op->conv.out_c);
    lk_cuda_launch(s, group_inputs, lk_cuda_blocks(count, terms, 8 * count * terms, count * terms),
                   LK_CUDA_THREADS, 0, s->state, s->op, op->grouped, count, floats_of(l, LK_DY),
                   l->param[0], floats_of(l, LK_DX));
    return 0;
}

uint32_t lk_cuda_plain_grouped_conv2d_weight_gradient(lk_lane *l, const lk_op *op) {
    const uint64_t weights = lk_grouped_weight_floats(&op->grouped);
    const uint64_t count = weights + (l->sums[1] ? op->conv.out_c : 0);
    const group_operands o = {op->grouped,  l->grain,       l->examples, lk_conv2d_terms(&op->conv),
                              l->grains->x, l->grains->dy, l->sums[0],  l->sums[1]};
    const uint64_t terms = (uint64_t)l->examples * o.terms;
    lk_cuda_launch(stream_of(l), group_weights,
                   lk_cuda_blocks(count, terms, 8 * count * terms, count * terms), LK_CUDA_THREADS,
                   0, o, weights, count);
    return 0;
}

int lk_cuda_prepare_grouped_conv(void) {
    return lk_cuda_prepare_kernels(group_outputs, group_inputs, group_weights);
}
