// elements.h - data, ReLU and sums of nodes as a block has them. The launches are elements.cu's,
// and the persistent kernel's (persistent.cu).
#ifndef LOCKSTEP_OPS_CUDA_ELEMENTS_H
#define LOCKSTEP_OPS_CUDA_ELEMENTS_H

#include "ops/cuda/device.h"

// --- data ----------------------------------------------------------------------------------------

static inline __device__ float byte_value(const lk_cuda_source &source, uint8_t byte) {
    return source.is_signed ? ((float)byte - 127.5f) / 127.5f : (float)byte * 0x1.010102p-8f;
}

// Value `at` of an image.
static inline __device__ float load_value(const lk_cuda_source &source, const uint8_t *image,
                                          uint64_t at) {
    if (!source.is_f32) return byte_value(source, image[at]);
    const uint32_t word = ((const uint32_t *)(const void *)image)[at];
    return lk_float_from_bits(source.big_endian ? word >> 24 | (word >> 8 & 0xff00u) |
                                                      (word & 0xff00u) << 8 | word << 24
                                                : word);
}

// Value `at` of an image that is normalised or augmented (ops/augment.h).
static inline __device__ float load_augmented(const lk_cuda_source &source,
                                              const lk_cuda_picture &picture, uint64_t step,
                                              uint32_t example, const uint8_t *image, uint64_t at) {
    const lk_augment *a = &source.augment;
    const lk_cuda_cell cell = lk_cuda_cell_of(picture, (uint32_t)at);
    const uint32_t y = cell.y, x = cell.x, c = cell.channel;
    const lk_augmented d = source.train ? lk_augment_draw(a, source.seed, step, example, source.h,
                                                          source.w, source.middle)
                                        : lk_augment_none();
    if (source.train && lk_augment_is_cut(a, &d, y, x)) return 0.0f;
    int32_t from_y = (int32_t)y + d.dy, from_x = (int32_t)(d.flip ? source.w - 1 - x : x) + d.dx;
    const bool inside =
        lk_augment_inside(a, source.h, &from_y) && lk_augment_inside(a, source.w, &from_x);
    const uint64_t from = ((uint64_t)from_y * source.w + from_x) * source.c + c;
    const float black = source.is_f32 ? 0.0f : byte_value(source, 0);
    const float value = inside ? load_value(source, image, from) : black;
    float factor, offset;
    if (!lk_augment_adjusts(a, &d)) return value;
    lk_augment_channel(a, &d, c, &factor, &offset);
    return lk_fmaf(value, factor, offset);
}

// What a block loads: `rows` rows of the batch, or one of the `parts` parts of a row.
struct load_tile {
    uint32_t rows, parts;
    lk_cuda_divisor by_floats;  // where there are several rows
    lk_cuda_picture picture;    // where something is augmented
};

enum { LOAD_VALUES = 4 * LK_CUDA_THREADS };

// Where the example of row m of a slot lies; LK_NO_EXAMPLE.
static inline __device__ uint64_t load_number(const lk_cuda_state *state,
                                              const lk_cuda_source &source, uint32_t m) {
    if (!source.resident) return state->batch % source.slots * source.slot_examples + m;
    const uint64_t epoch = state->batch / source.epoch_batches;
    const uint64_t batch = state->batch - epoch * source.epoch_batches;
    const uint64_t number = lk_order_at(
        &source.order, epoch, batch * source.order.global_batch + source.first_example + m);
    return number == LK_NO_EXAMPLE ? number : number - source.kept;
}

// Value `at` of row m, and the labels that its thread stores.
static inline __device__ float load_one(const lk_cuda_state *state, const lk_cuda_source &source,
                                        const lk_cuda_picture &picture, uint64_t number,
                                        uint32_t first, uint32_t m, uint64_t floats, uint64_t at,
                                        uint32_t *labels) {
    const uint32_t row = source.label_row;
    const bool missing = number == LK_NO_EXAMPLE;
    const uint32_t *own = source.labels + (missing ? 0 : number) * row;
    const uint32_t none = row > 1 ? 0 : LK_CUDA_NO_EXAMPLE;
    for (uint64_t k = at; k < row; k += floats)
        labels[(uint64_t)m * row + k] = missing ? none : own[k];
    if (missing || (row > 1 && at >= (uint64_t)source.w * source.c * own[0])) return 0.0f;
    const uint8_t *image = source.images + number * floats * (source.is_f32 ? 4 : 1);
    if (!source.augments) return load_value(source, image, at);
    return load_augmented(source, picture, state->step, source.first_example + first + m, image,
                          at);
}

// The numbers of a block's rows are computed once, a thread each.
static inline __device__ void load_body(lk_cuda_at block, const lk_cuda_state *state,
                                        const lk_cuda_source &source, const load_tile &tile,
                                        uint32_t first, uint32_t m_count, uint64_t floats, float *x,
                                        uint32_t *labels) {
    uint64_t *const numbers = (uint64_t *)(void *)lk_cuda_shared;
    const uint32_t t = threadIdx.x, part = block.x % tile.parts;
    const uint32_t row = block.x / tile.parts * tile.rows;
    const uint32_t rows = LK_MIN(m_count - row, tile.rows);
    const uint64_t begin = (uint64_t)part * LOAD_VALUES;
    const uint32_t values = (uint32_t)LK_MIN(floats - begin, (uint64_t)LOAD_VALUES);
    if (t < rows) numbers[t] = load_number(state, source, first + row + t);
    __syncthreads();
    for (uint32_t i = t; i < rows * values; i += LK_CUDA_THREADS) {
        const uint32_t r = rows == 1 ? 0 : lk_cuda_quotient(i, tile.by_floats), m = row + r;
        const uint64_t at = begin + (i - r * values);
        x[m * floats + at] =
            load_one(state, source, tile.picture, numbers[r], first, m, floats, at, labels);
    }
}

// --- ReLU and sums -------------------------------------------------------------------------------

static inline __device__ void relu_forward_body(lk_cuda_at at, uint64_t count, const float *x,
                                                float *y) {
    LK_CUDA_EACH_AT(at, i, count) y[i] = x[i] > 0.0f ? x[i] : 0.0f;
}

static inline __device__ void relu_backward_body(lk_cuda_at at, uint64_t count, const float *y,
                                                 const float *dy, float *dx) {
    LK_CUDA_EACH_AT(at, i, count) dx[i] = y[i] > 0.0f ? dy[i] : 0.0f;
}

static inline __device__ void add_body(lk_cuda_at at, uint64_t count, const float *a,
                                       const float *b, float *out) {
    LK_CUDA_EACH_AT(at, i, count) out[i] = a[i] + b[i];
}

static inline __device__ void fill_body(lk_cuda_at at, uint64_t words, uint32_t value,
                                        uint32_t *to) {
    LK_CUDA_EACH_AT(at, i, words) to[i] = value;
}

// --- grains of several uses ----------------------------------------------------------------------

// A row of blocks has a grain, or several.
template <typename T>
static inline __device__ void spread_body(lk_cuda_at at, uint32_t grains, uint64_t of_grain,
                                          uint64_t live, uint32_t leaves, uint32_t leaf,
                                          const T *from, T *to) {
    for (uint32_t g = at.y; g < grains; g += at.rows) {
        LK_CUDA_EACH_AT(at, i, of_grain) {
            const uint64_t own = g * of_grain + i;
            to[((uint64_t)g * leaves + leaf) * of_grain + i] = own < live ? from[own] : 0;
        }
    }
}

#endif
