// grouped_conv.cu - convolutions whose channels are in groups or whose windows are spread out:
// launches of grouped_conv.h. Part of the plain kernels (plain.cu).
#include "ops/cuda/grouped_conv.h"

#include "ops/cuda/table.h"

static inline lk_cuda_stream *stream_of(const lk_lane *l) {
    return static_cast<const lk_cuda_lane *>(l->device)->stream;
}
static inline float *floats_of(const lk_lane *l, lk_role role) {
    return static_cast<float *>(l->at[role]);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS, 6)
    group_outputs(lk_cuda_state *state, uint32_t op, lk_grouped_conv2d g, group_places places,
                  uint32_t inputs, uint32_t count, const float *__restrict__ x,
                  const float *__restrict__ w, const float *__restrict__ bias,
                  float *__restrict__ y) {
    lk_cuda_begin();
    group_outputs_body(lk_cuda_here(), state, op, g, places, inputs, count, x, w, bias, y);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    group_inputs(lk_cuda_state *state, uint32_t op, lk_grouped_conv2d g, group_places places,
                 uint32_t outputs, uint32_t count, const float *__restrict__ dy,
                 const float *__restrict__ w, float *__restrict__ dx) {
    lk_cuda_begin();
    group_inputs_body(lk_cuda_here(), state, op, g, places, outputs, count, dy, w, dx);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    group_weights(group_operands o, uint64_t weights, uint64_t count) {
    lk_cuda_begin();
    group_weights_body(lk_cuda_here(), o, weights, count);
}

// How many terms the sum of one value has; its group reads its share of the `channels`.
static uint64_t terms_of(const lk_op *op, uint32_t channels) {
    return (uint64_t)op->conv.kernel_h * op->conv.kernel_w * (channels / op->grouped.groups);
}

static group_places places_of(const lk_op *op, uint32_t rows, uint32_t columns, uint32_t channels) {
    return {lk_cuda_pictures_of(rows, columns, channels),
            lk_cuda_divide_by(channels / op->grouped.groups), lk_cuda_divide_by(op->conv.stride_h),
            lk_cuda_divide_by(op->conv.stride_w)};
}

uint32_t lk_cuda_plain_grouped_conv2d(lk_lane *l, const lk_op *op) {
    lk_cuda_stream *s = stream_of(l);
    const lk_conv2d &c = op->conv;
    const uint64_t out = lk_conv2d_out_floats(&c), in = lk_conv2d_in_floats(&c);
    const uint64_t terms = terms_of(op, c.in_c);
    lk_cuda_in_parts(s, l->examples, out, [&](uint64_t first, uint32_t some) {
        const float *const x = floats_of(l, LK_X) + first * in;
        float *const y = floats_of(l, LK_Y) + first * out;
        const uint64_t count = some * out;
        lk_cuda_spans spans = {};
        lk_cuda_reads(&spans, x, some * in);
        lk_cuda_reads(&spans, l->param[0], lk_grouped_weight_floats(&op->grouped));
        lk_cuda_reads(&spans, l->param[1], c.out_c);
        lk_cuda_writes(&spans, y, count);
        lk_cuda_launch_body(s, LK_CUDA_BODY_GROUP_OUTPUTS, spans, group_outputs,
                            lk_cuda_blocks(count, terms, 8 * count * terms, count * terms),
                            LK_CUDA_THREADS, 0, s->state, s->op, op->grouped,
                            places_of(op, c.out_h, c.out_w, c.out_c), c.in_c / op->grouped.groups,
                            (uint32_t)count, x, l->param[0], l->param[1], y);
    });
    return 0;
}

uint32_t lk_cuda_plain_grouped_conv2d_input_gradient(lk_lane *l, const lk_op *op) {
    lk_cuda_stream *s = stream_of(l);
    const lk_conv2d &c = op->conv;
    const uint64_t out = lk_conv2d_out_floats(&c), in = lk_conv2d_in_floats(&c);
    const uint64_t terms = terms_of(op, c.out_c);
    lk_cuda_in_parts(s, l->examples, in, [&](uint64_t first, uint32_t some) {
        const float *const dy = floats_of(l, LK_DY) + first * out;
        float *const dx = floats_of(l, LK_DX) + first * in;
        const uint64_t count = some * in;
        lk_cuda_spans spans = {};
        lk_cuda_reads(&spans, dy, some * out);
        lk_cuda_reads(&spans, l->param[0], lk_grouped_weight_floats(&op->grouped));
        lk_cuda_writes(&spans, dx, count);
        lk_cuda_launch_body(s, LK_CUDA_BODY_GROUP_INPUTS, spans, group_inputs,
                            lk_cuda_blocks(count, terms, 8 * count * terms, count * terms),
                            LK_CUDA_THREADS, 0, s->state, s->op, op->grouped,
                            places_of(op, c.in_h, c.in_w, c.in_c), c.out_c / op->grouped.groups,
                            (uint32_t)count, dy, l->param[0], dx);
    });
    return 0;
}

uint32_t lk_cuda_plain_grouped_conv2d_weight_gradient(lk_lane *l, const lk_op *op) {
    const lk_conv2d &c = op->conv;
    const uint64_t weights = lk_grouped_weight_floats(&op->grouped);
    const uint64_t count = weights + (l->sums[1] ? c.out_c : 0);
    const group_operands o = {op->grouped,
                              l->grain,
                              l->examples,
                              lk_conv2d_terms(&c),
                              lk_cuda_divide_by((c.out_w + 1) / 2),
                              l->grains->x,
                              l->grains->dy,
                              l->sums[0],
                              l->sums[1]};
    const uint64_t terms = (uint64_t)l->examples * o.terms;
    lk_cuda_spans spans = {};
    lk_cuda_reads(&spans, o.x, l->examples * lk_conv2d_in_floats(&c));
    lk_cuda_reads(&spans, o.dy, l->examples * lk_conv2d_out_floats(&c));
    lk_cuda_writes(&spans, o.kernel, weights);
    lk_cuda_writes(&spans, o.bias, c.out_c);
    lk_cuda_launch_body(stream_of(l), LK_CUDA_BODY_GROUP_WEIGHTS, spans, group_weights,
                        lk_cuda_blocks(count, terms, 8 * count * terms, count * terms),
                        LK_CUDA_THREADS, 0, o, weights, count);
    return 0;
}

int lk_cuda_prepare_grouped_conv(void) {
    return lk_cuda_prepare_kernels(group_outputs, group_inputs, group_weights);
}
