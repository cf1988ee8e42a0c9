// pool.cu - max-pooling that stands alone (fused pooling is the convolution's): launches of pool.h.
#include "ops/cuda/pool.h"

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    forward(lk_pool2d p, lk_cuda_picture out, uint32_t m_count, const float *__restrict__ x,
            float *__restrict__ y, uint16_t *__restrict__ argmax) {
    lk_cuda_begin();
    max_pool_body(lk_cuda_here(), p, out, m_count, x, y, argmax);
}

void lk_cuda_max_pool_forward(lk_cuda_stream *s, const lk_pool2d *p, uint32_t m_count,
                              const float *x, float *y, uint16_t *argmax) {
    const lk_cuda_picture out = lk_cuda_picture_of(s, p->out_h, p->out_w, p->channels);
    const uint64_t count = (uint64_t)m_count * out.elements;
    lk_cuda_spans spans = {};
    lk_cuda_reads(&spans, x, (uint64_t)m_count * p->in_h * p->in_w * p->channels);
    lk_cuda_writes(&spans, y, count);
    lk_cuda_writes(&spans, argmax, (count + 1) / 2);
    lk_cuda_launch_body(s, LK_CUDA_BODY_MAX_POOL, spans, forward,
                        lk_cuda_picture_blocks(out, m_count), LK_CUDA_THREADS, 0, *p, out, m_count,
                        x, y, argmax);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    backward(lk_cuda_state *state, uint32_t op, lk_pool2d p, lk_cuda_picture in,
             lk_cuda_divisor stride_h, lk_cuda_divisor stride_w, uint32_t m_count,
             const float *__restrict__ dy, const uint16_t *__restrict__ argmax,
             float *__restrict__ dx) {
    lk_cuda_begin();
    max_pool_backward_body(lk_cuda_here(), state, op, p, in, stride_h, stride_w, m_count, dy,
                           argmax, dx);
}

void lk_cuda_max_pool_backward(lk_cuda_stream *s, const lk_pool2d *p, uint32_t m_count,
                               const float *dy, const uint16_t *argmax, float *dx) {
    const lk_cuda_picture in = lk_cuda_picture_of(s, p->in_h, p->in_w, p->channels);
    const uint64_t outputs = (uint64_t)m_count * p->out_h * p->out_w * p->channels;
    lk_cuda_spans spans = {};
    lk_cuda_reads(&spans, dy, outputs);
    lk_cuda_reads(&spans, argmax, (outputs + 1) / 2);
    lk_cuda_writes(&spans, dx, (uint64_t)m_count * in.elements);
    lk_cuda_launch_body(s, LK_CUDA_BODY_MAX_POOL_BACKWARD, spans, backward,
                        lk_cuda_picture_blocks(in, m_count), LK_CUDA_THREADS, 0, s->state, s->op,
                        *p, in, lk_cuda_divide_by(p->stride_h), lk_cuda_divide_by(p->stride_w),
                        m_count, dy, argmax, dx);
}

int lk_cuda_prepare_pool(void) { return lk_cuda_prepare_kernels(forward, backward); }
