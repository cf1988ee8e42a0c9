// pool.h - max-pooling that stands alone, as a block has it. One thread an output; nothing is
// shared. The launches are pool.cu's, and the persistent kernel's (persistent.cu).
#ifndef LOCKSTEP_OPS_CUDA_POOL_H
#define LOCKSTEP_OPS_CUDA_POOL_H

#include "ops/cuda/device.h"

// x (m_count, in_h, in_w, channels), y and argmax (m_count, out_h, out_w, channels): one thread a
// cell of y, whose pictures `out` are.
static inline __device__ void max_pool_body(lk_cuda_at block, const lk_pool2d &p,
                                            const lk_cuda_picture &out, uint32_t m_count,
                                            const float *x, float *y, uint16_t *argmax) {
    LK_CUDA_EACH_PICTURE_AT(block, m, m_count) LK_CUDA_EACH_AT(block, i, out.elements) {
        const lk_cuda_cell at = lk_cuda_cell_of(out, (uint32_t)i);
        bool some = false;
        float best = 0.0f;
        uint32_t winner = 0;
        for (uint32_t py = 0; py < p.pool_h; py++) {
            // A row before the image wraps to a very large number.
            uint32_t iy = at.y * p.stride_h + py - p.pad_top;
            if (iy >= p.in_h) continue;
            for (uint32_t px = 0; px < p.pool_w; px++) {
                uint32_t ix = at.x * p.stride_w + px - p.pad_left;
                if (ix >= p.in_w) continue;
                float value =
                    x[(((uint64_t)m * p.in_h + iy) * p.in_w + ix) * p.channels + at.channel];
                if (some && !(value > best)) continue;
                best = value;
                winner = py * p.pool_w + px;
                some = true;
            }
        }
        y[(uint64_t)m * out.elements + i] = best;
        argmax[(uint64_t)m * out.elements + i] = (uint16_t)winner;
    }
}

// One thread a cell of dx, whose pictures `in` are: the windows that hold it, ascending, add what
// they send to it.
static inline __device__ void max_pool_backward_body(
    lk_cuda_at block, lk_cuda_state *state, uint32_t op, const lk_pool2d &p,
    const lk_cuda_picture &in, const lk_cuda_divisor &stride_h, const lk_cuda_divisor &stride_w,
    uint32_t m_count, const float *dy, const uint16_t *argmax, float *dx) {
    bool bad = false;
    LK_CUDA_EACH_PICTURE_AT(block, m, m_count) LK_CUDA_EACH_AT(block, i, in.elements) {
        const lk_cuda_cell at = lk_cuda_cell_of(in, (uint32_t)i);
        const uint32_t ix = at.x + p.pad_left, iy = at.y + p.pad_top;
        // Window o covers [o * stride, o * stride + pool).
        const uint32_t first_y = iy < p.pool_h ? 0 : lk_cuda_quotient(iy - p.pool_h, stride_h) + 1;
        const uint32_t first_x = ix < p.pool_w ? 0 : lk_cuda_quotient(ix - p.pool_w, stride_w) + 1;
        float sum = 0.0f;
        for (uint32_t oy = first_y; oy < p.out_h && oy * p.stride_h <= iy; oy++) {
            for (uint32_t ox = first_x; ox < p.out_w && ox * p.stride_w <= ix; ox++) {
                const uint64_t of_y =
                    (((uint64_t)m * p.out_h + oy) * p.out_w + ox) * p.channels + at.channel;
                uint32_t here = (iy - oy * p.stride_h) * p.pool_w + (ix - ox * p.stride_w);
                if (argmax[of_y] == here) sum = sum + dy[of_y];
            }
        }
        dx[(uint64_t)m * in.elements + i] = sum;
        bad |= lk_cuda_not_finite(sum);
    }
    lk_cuda_report(state, op, bad);
}

#endif
