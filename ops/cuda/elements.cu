// elements.cu - kernels of one element at a time: data, ReLU, sums of nodes; and the checking mode.
#include "ops/cuda/device.h"

// --- data ----------------------------------------------------------------------------------------

static __device__ float byte_value(const lk_cuda_source &source, uint8_t byte) {
    return source.is_signed ? ((float)byte - 127.5f) / 127.5f : (float)byte * 0x1.010102p-8f;
}

// Value `at` of an image.
static __device__ float load_value(const lk_cuda_source &source, const uint8_t *image,
                                   uint64_t at) {
    if (!source.is_f32) return byte_value(source, image[at]);
    const uint32_t word = ((const uint32_t *)(const void *)image)[at];
    return lk_float_from_bits(source.big_endian ? word >> 24 | (word >> 8 & 0xff00u) |
                                                      (word & 0xff00u) << 8 | word << 24
                                                : word);
}

// Value `at` of an image that is normalised or augmented (ops/augment.h).
static __device__ float load_augmented(const lk_cuda_source &source, uint64_t step,
                                       uint32_t example, const uint8_t *image, uint64_t at) {
    const lk_augment *a = &source.augment;
    const uint32_t c = (uint32_t)(at % source.c), x = (uint32_t)(at / source.c % source.w);
    const uint32_t y = (uint32_t)(at / source.c / source.w);
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

// What a block loads: so many rows of the batch, or one of several parts of a row.
struct load_tile {
    uint32_t rows, parts;
    lk_cuda_divisor by_floats;  // where there are several rows
};

enum { LOAD_VALUES = 4 * LK_CUDA_THREADS };

// Where the example of row m of a slot lies; LK_NO_EXAMPLE.
static __device__ uint64_t load_number(const lk_cuda_state *state, const lk_cuda_source &source,
                                       uint32_t m) {
    if (!source.resident) return state->batch % source.slots * source.slot_examples + m;
    const uint64_t epoch = state->batch / source.epoch_batches;
    const uint64_t batch = state->batch - epoch * source.epoch_batches;
    const uint64_t number = lk_order_at(
        &source.order, epoch, batch * source.order.global_batch + source.first_example + m);
    return number == LK_NO_EXAMPLE ? number : number - source.kept;
}

// Value `at` of row m, and the labels that its thread stores.
static __device__ float load_one(const lk_cuda_state *state, const lk_cuda_source &source,
                                 uint64_t number, uint32_t first, uint32_t m, uint64_t floats,
                                 uint64_t at, uint32_t *__restrict__ labels) {
    const uint32_t row = source.label_row;
    const bool missing = number == LK_NO_EXAMPLE;
    const uint32_t *own = source.labels + (missing ? 0 : number) * row;
    const uint32_t none = row > 1 ? 0 : LK_CUDA_NO_EXAMPLE;
    for (uint64_t k = at; k < row; k += floats)
        labels[(uint64_t)m * row + k] = missing ? none : own[k];
    if (missing || (row > 1 && at >= floats / source.h * own[0])) return 0.0f;
    const uint8_t *image = source.images + number * floats * (source.is_f32 ? 4 : 1);
    if (!source.augments) return load_value(source, image, at);
    return load_augmented(source, state->step, source.first_example + first + m, image, at);
}

// The numbers of a block's rows are computed once, a thread each. With the registers of six blocks
// it spills on compute capability 10.0.
static __global__ void __launch_bounds__(LK_CUDA_THREADS, 5)
    load(const lk_cuda_state *state, lk_cuda_source source, load_tile tile, uint32_t first,
         uint32_t m_count, uint64_t floats, float *__restrict__ x, uint32_t *__restrict__ labels) {
    uint64_t *const numbers = (uint64_t *)(void *)lk_cuda_shared;
    const uint32_t t = threadIdx.x, part = blockIdx.x % tile.parts;
    const uint32_t row = blockIdx.x / tile.parts * tile.rows;
    const uint32_t rows = LK_MIN(m_count - row, tile.rows);
    const uint64_t begin = (uint64_t)part * LOAD_VALUES;
    const uint32_t values = (uint32_t)LK_MIN(floats - begin, (uint64_t)LOAD_VALUES);
    if (t < rows) numbers[t] = load_number(state, source, first + row + t);
    __syncthreads();
    for (uint32_t i = t; i < rows * values; i += LK_CUDA_THREADS) {
        const uint32_t r = rows == 1 ? 0 : lk_cuda_quotient(i, tile.by_floats), m = row + r;
        const uint64_t at = begin + (i - r * values);
        x[m * floats + at] = load_one(state, source, numbers[r], first, m, floats, at, labels);
    }
}

void lk_cuda_load(lk_cuda_stream *s, const lk_cuda_source *source, uint32_t first, uint32_t m_count,
                  uint64_t floats, float *x, uint32_t *labels) {
    // A product of the network's rounds waits for the one before.
    enum { ORDER_STEPS = 10 * LK_PERMUTE_ROUNDS };
    const uint64_t parts = (floats + LOAD_VALUES - 1) / LOAD_VALUES;
    const uint32_t fit = (uint32_t)LK_MIN(LOAD_VALUES / floats, (uint64_t)LK_CUDA_THREADS);
    load_tile tile = {LK_MAX(fit, 1u), (uint32_t)parts, {}};
    if (tile.rows > 1) tile.by_floats = lk_cuda_divide_by((uint32_t)floats);
    const uint64_t blocks = (m_count + tile.rows - 1) / tile.rows * parts;
    const uint64_t steps = LOAD_VALUES / LK_CUDA_THREADS + (source->resident ? ORDER_STEPS : 0);
    const uint64_t bytes = m_count * floats * (sizeof *x + (source->is_f32 ? sizeof *x : 1));
    const uint64_t items = LK_MIN(m_count * floats, blocks * LK_CUDA_THREADS);
    const lk_cuda_grid grid = {dim3(lk_cuda_rows_of(s, blocks)), {items, steps, 0, bytes}};
    lk_cuda_launch(s, load, grid, LK_CUDA_THREADS, 2 * tile.rows, s->state, *source, tile, first,
                   m_count, floats, x, labels);
}

// --- ReLU and sums -------------------------------------------------------------------------------

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    relu_forward(uint64_t count, const float *x, float *y) {
    LK_CUDA_EACH(i, count) y[i] = x[i] > 0.0f ? x[i] : 0.0f;
}

void lk_cuda_relu_forward(lk_cuda_stream *s, uint64_t count, const float *x, float *y) {
    lk_cuda_launch(s, relu_forward, lk_cuda_blocks(count), LK_CUDA_THREADS, 0, count, x, y);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    relu_backward(uint64_t count, const float *y, const float *dy, float *dx) {
    LK_CUDA_EACH(i, count) dx[i] = y[i] > 0.0f ? dy[i] : 0.0f;
}

void lk_cuda_relu_backward(lk_cuda_stream *s, uint64_t count, const float *y, const float *dy,
                           float *dx) {
    lk_cuda_launch(s, relu_backward, lk_cuda_blocks(count), LK_CUDA_THREADS, 0, count, y, dy, dx);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    add(uint64_t count, const float *a, const float *b, float *out) {
    LK_CUDA_EACH(i, count) out[i] = a[i] + b[i];
}

void lk_cuda_add(lk_cuda_stream *s, uint64_t count, const float *a, const float *b, float *out) {
    lk_cuda_launch(s, add, lk_cuda_blocks(count), LK_CUDA_THREADS, 0, count, a, b, out);
}

// --- grains of several uses ----------------------------------------------------------------------

template <typename T>
static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    spread(uint64_t count, uint64_t of_grain, uint64_t live, uint32_t leaves, uint32_t leaf,
           const T *__restrict__ from, T *__restrict__ to) {
    LK_CUDA_EACH(i, count) {
        const uint64_t g = i / of_grain, at = i - g * of_grain;
        to[(g * leaves + leaf) * of_grain + at] = i < live ? from[i] : 0;
    }
}

template <typename T>
static void launch_spread(lk_cuda_stream *s, uint64_t bytes, uint32_t grains, uint64_t live,
                          uint32_t leaves, uint32_t leaf, const void *from, void *to) {
    const uint64_t count = bytes / sizeof(T) * grains;
    lk_cuda_launch(s, spread<T>, lk_cuda_blocks(count, 1, 2 * bytes * grains), LK_CUDA_THREADS, 0,
                   count, bytes / sizeof(T), live / sizeof(T), leaves, leaf,
                   static_cast<const T *>(from), static_cast<T *>(to));
}

void lk_cuda_spread(lk_cuda_stream *s, uint64_t bytes, uint32_t grains, uint64_t live,
                    uint32_t leaves, uint32_t leaf, const void *from, void *to) {
    if (bytes % sizeof(uint32_t) == 0 && live % sizeof(uint32_t) == 0) {
        launch_spread<uint32_t>(s, bytes, grains, live, leaves, leaf, from, to);
    } else {
        launch_spread<uint8_t>(s, bytes, grains, live, leaves, leaf, from, to);
    }
}

// --- the memory checking mode --------------------------------------------------------------------

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    fill(uint64_t words, uint32_t value, uint32_t *__restrict__ to) {
    LK_CUDA_EACH(i, words) to[i] = value;
}

void lk_cuda_fill(lk_cuda_stream *s, uint64_t words, uint32_t value, uint32_t *to) {
    lk_cuda_launch(s, fill, lk_cuda_blocks(words), LK_CUDA_THREADS, 0, words, value, to);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    check_bytes(uint64_t bytes, uint8_t value, const uint8_t *__restrict__ from, uint32_t number,
                uint32_t *broken) {
    LK_CUDA_EACH(i, bytes) {
        if (from[i] != value) atomicMin(broken, number);
    }
}

void lk_cuda_check_bytes(lk_cuda_stream *s, uint64_t bytes, uint8_t value, const uint8_t *from,
                         uint32_t number, uint32_t *broken) {
    lk_cuda_launch(s, check_bytes, lk_cuda_blocks(bytes), LK_CUDA_THREADS, 0, bytes, value, from,
                   number, broken);
}

int lk_cuda_prepare_elements(void) {
    return lk_cuda_prepare_kernels(load, relu_forward, relu_backward, add, spread<uint32_t>,
                                   spread<uint8_t>, fill, check_bytes);
}
