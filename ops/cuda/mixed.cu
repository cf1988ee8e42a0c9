// mixed.cu - see mixed.h. One element at a time.
#include "ops/cuda/mixed.h"

#include "ops/cuda/device.h"
#include "ops/half.h"

static inline __device__ uint16_t to_half(lk_dtype dtype, float x) {
    return dtype == LK_F16 ? lk_half_from_float(x) : lk_bfloat_from_float(x);
}
static inline __device__ float from_half(lk_dtype dtype, uint16_t h) {
    return dtype == LK_F16 ? lk_half_to_float(h) : lk_bfloat_to_float(h);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    widen(lk_dtype dtype, uint64_t count, const uint16_t *__restrict__ from,
          float *__restrict__ to) {
    lk_cuda_begin();
    LK_CUDA_EACH(i, count) to[i] = from_half(dtype, from[i]);
}

void lk_cuda_widen(lk_cuda_stream *s, lk_dtype dtype, uint64_t count, const uint16_t *from,
                   float *to) {
    lk_cuda_launch(s, widen, lk_cuda_blocks(count), LK_CUDA_THREADS, 0, dtype, count, from, to);
}

// What is stored of a value, as lk_narrow_rule says, and whether that is a flag.
static inline __device__ uint16_t narrowed(const lk_narrow &how, uint64_t i, float v, bool &bad) {
    const bool relu = how.rule == LK_NARROW_RELU;
    const uint16_t h = to_half(how.dtype, relu && !(v > 0.0f) ? 0.0f : v);
    bad = lk_cuda_not_finite(from_half(how.dtype, h)) || (relu && lk_cuda_not_finite(v));
    if (how.rule == LK_NARROW_RELU_AFTER && (h == 0 || h >= 0x8000)) return 0;
    if (how.rule == LK_NARROW_MASK && (how.mask[i] == 0 || how.mask[i] >= 0x8000)) return 0;
    return h;
}

static inline __device__ bool counts(const lk_look &look, uint64_t i) {
    if (look.line == 0) return true;
    return i % look.line < look.even && i / look.line % look.lines < look.even_lines;
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    narrow(lk_cuda_state *state, uint32_t op, lk_narrow how, lk_look look, uint64_t count,
           const float *__restrict__ from, uint16_t *__restrict__ to) {
    lk_cuda_begin();
    bool any = false;
    LK_CUDA_EACH(i, count) {
        bool bad;
        to[i] = narrowed(how, i, from[i], bad);
        any |= bad && counts(look, i);
    }
    lk_cuda_report(state, op, any);
}

void lk_cuda_narrow(lk_cuda_stream *s, const lk_narrow *how, const lk_look *look,
                    uint64_t count, const float *from, uint16_t *to) {
    lk_cuda_launch(s, narrow, lk_cuda_blocks(count), LK_CUDA_THREADS, 0, s->state, s->op, *how,
                   *look, count, from, to);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    look_for(lk_cuda_state *state, uint32_t op, lk_look look, uint64_t count,
             const float *__restrict__ values) {
    lk_cuda_begin();
    bool any = false;
    LK_CUDA_EACH(i, count) any |= lk_cuda_not_finite(values[i]) && counts(look, i);
    lk_cuda_report(state, op, any);
}

void lk_cuda_look_for(lk_cuda_stream *s, const lk_look *look, uint64_t count,
                      const float *values) {
    lk_cuda_launch(s, look_for, lk_cuda_blocks(count), LK_CUDA_THREADS, 0, s->state, s->op, *look,
                   count, values);
}

// A thread a tile of a picture `out`. The winner is sought among the values before ReLU; the one
// stored is after it.
static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    narrow_pool(lk_cuda_state *state, uint32_t op, lk_narrow how, lk_conv2d c, lk_cuda_picture out,
                uint32_t examples, const float *__restrict__ from, uint16_t *__restrict__ to,
                uint8_t *__restrict__ argmax) {
    lk_cuda_begin();
    const uint64_t line = (uint64_t)c.out_w * c.out_c;
    const lk_cuda_at block = lk_cuda_here();
    bool any = false;
    LK_CUDA_EACH_PICTURE_AT(block, m, examples) LK_CUDA_EACH_AT(block, i, out.elements) {
        const lk_cuda_cell at = lk_cuda_cell_of(out, (uint32_t)i);
        const float *tile =
            from + (m * (uint64_t)c.out_h + 2 * at.y) * line + 2ull * at.x * c.out_c + at.channel;
        const uint64_t stored = (uint64_t)m * out.elements + i;
        float best = 0.0f;
        for (uint32_t k = 0; k < 4; k++) {
            const float v = tile[k / 2 * line + k % 2 * c.out_c];
            bool bad;
            const uint16_t h = narrowed(how, stored, v, bad);
            const float rounded = from_half(how.dtype, to_half(how.dtype, v));
            any |= bad;
            if (k > 0 && !(rounded > best)) continue;
            best = rounded;
            argmax[stored] = (uint8_t)k;
            to[stored] = h;
        }
    }
    lk_cuda_report(state, op, any);
}

void lk_cuda_narrow_pool(lk_cuda_stream *s, const lk_narrow *how, const lk_conv2d *c,
                         uint32_t examples, const float *from, uint16_t *to, uint8_t *argmax) {
    const lk_cuda_picture out = lk_cuda_picture_of(s, c->out_h / 2, c->out_w / 2, c->out_c);
    const uint64_t values = (uint64_t)c->out_h * c->out_w * c->out_c;
    lk_cuda_grid grid = lk_cuda_picture_blocks(out, examples);
    grid.work.steps = 4;
    grid.work.bytes = examples * (values * sizeof *from + (uint64_t)out.elements * 3);
    lk_cuda_launch(s, narrow_pool, grid, LK_CUDA_THREADS, 0, s->state, s->op, *how, *c, out,
                   examples, from, to, argmax);
}

// S = initial * 2^power, both normal numbers.
static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    scale(float initial, const uint32_t *__restrict__ power, uint64_t count,
          float *__restrict__ dx) {
    lk_cuda_begin();
    const float by = lk_float_from_bits(lk_float_to_bits(initial) + (*power << 23));
    LK_CUDA_EACH(i, count) dx[i] = dx[i] * by;
}

void lk_cuda_scale(lk_cuda_stream *s, float initial, const uint32_t *power, uint64_t count,
                   float *dx) {
    lk_cuda_launch(s, scale, lk_cuda_blocks(count), LK_CUDA_THREADS, 0, initial, power, count, dx);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    clear_bytes(uint64_t bytes, uint8_t *__restrict__ at) {
    lk_cuda_begin();
    LK_CUDA_EACH(i, bytes) at[i] = 0;
}

void lk_cuda_clear_bytes(lk_cuda_stream *s, uint64_t bytes, uint8_t *at) {
    lk_cuda_launch(s, clear_bytes, lk_cuda_blocks(bytes), LK_CUDA_THREADS, 0, bytes, at);
}

int lk_cuda_prepare_mixed(void) {
    return lk_cuda_prepare_kernels(widen, narrow, look_for, narrow_pool, scale, clear_bytes);
}
