// elements.cu - kernels of one element at a time: data, ReLU, sums of nodes; and the checking mode.
#include "ops/cuda/elements.h"

// --- data ----------------------------------------------------------------------------------------

// With the registers of six blocks it spills on compute capability 10.0.
static __global__ void __launch_bounds__(LK_CUDA_THREADS, 5)
    load(const lk_cuda_state *state, lk_cuda_source source, load_tile tile, uint32_t first,
         uint32_t m_count, uint64_t floats, float *__restrict__ x, uint32_t *__restrict__ labels) {
    lk_cuda_begin();
    load_body(lk_cuda_here(), state, source, tile, first, m_count, floats, x, labels);
}

void lk_cuda_load(lk_cuda_stream *s, const lk_cuda_source *source, uint32_t first, uint32_t m_count,
                  uint64_t floats, float *x, uint32_t *labels) {
    // A product of the network's rounds waits for the one before.
    enum { ORDER_STEPS = 10 * LK_PERMUTE_ROUNDS };
    const uint64_t parts = (floats + LOAD_VALUES - 1) / LOAD_VALUES;
    const uint32_t fit = (uint32_t)LK_MIN(LOAD_VALUES / floats, (uint64_t)LK_CUDA_THREADS);
    load_tile tile = {LK_MAX(fit, 1u), (uint32_t)parts, {}, {}};
    if (tile.rows > 1) tile.by_floats = lk_cuda_divide_by((uint32_t)floats);
    if (source->augments) tile.picture = lk_cuda_picture_of(s, source->h, source->w, source->c);
    const uint64_t blocks = (m_count + tile.rows - 1) / tile.rows * parts;
    const uint64_t steps = LOAD_VALUES / LK_CUDA_THREADS + (source->resident ? ORDER_STEPS : 0);
    const uint64_t bytes = m_count * floats * (sizeof *x + (source->is_f32 ? sizeof *x : 1));
    const uint64_t items = LK_MIN(m_count * floats, blocks * LK_CUDA_THREADS);
    const lk_cuda_grid grid = {dim3(lk_cuda_rows_of(s, blocks)), {items, steps, 0, bytes}};
    lk_cuda_spans spans = {};
    lk_cuda_writes(&spans, x, m_count * floats);
    lk_cuda_writes(&spans, labels, (uint64_t)m_count * source->label_row);
    lk_cuda_launch_body(s, LK_CUDA_BODY_LOAD, spans, load, grid, LK_CUDA_THREADS, 2 * tile.rows,
                        s->state, *source, tile, first, m_count, floats, x, labels);
}

// --- ReLU and sums -------------------------------------------------------------------------------

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    relu_forward(uint64_t count, const float *x, float *y) {
    lk_cuda_begin();
    relu_forward_body(lk_cuda_here(), count, x, y);
}

void lk_cuda_relu_forward(lk_cuda_stream *s, uint64_t count, const float *x, float *y) {
    lk_cuda_spans spans = {};
    lk_cuda_reads(&spans, x, count);
    lk_cuda_writes(&spans, y, count);
    lk_cuda_launch_body(s, LK_CUDA_BODY_RELU, spans, relu_forward, lk_cuda_blocks(count),
                        LK_CUDA_THREADS, 0, count, x, y);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    relu_backward(uint64_t count, const float *y, const float *dy, float *dx) {
    lk_cuda_begin();
    relu_backward_body(lk_cuda_here(), count, y, dy, dx);
}

void lk_cuda_relu_backward(lk_cuda_stream *s, uint64_t count, const float *y, const float *dy,
                           float *dx) {
    lk_cuda_spans spans = {};
    lk_cuda_reads(&spans, y, count);
    lk_cuda_reads(&spans, dy, count);
    lk_cuda_writes(&spans, dx, count);
    lk_cuda_launch_body(s, LK_CUDA_BODY_RELU_BACKWARD, spans, relu_backward, lk_cuda_blocks(count),
                        LK_CUDA_THREADS, 0, count, y, dy, dx);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    add(uint64_t count, const float *a, const float *b, float *out) {
    lk_cuda_begin();
    add_body(lk_cuda_here(), count, a, b, out);
}

void lk_cuda_add(lk_cuda_stream *s, uint64_t count, const float *a, const float *b, float *out) {
    lk_cuda_spans spans = {};
    lk_cuda_reads(&spans, a, count);
    lk_cuda_reads(&spans, b, count);
    lk_cuda_writes(&spans, out, count);
    lk_cuda_launch_body(s, LK_CUDA_BODY_ADD, spans, add, lk_cuda_blocks(count), LK_CUDA_THREADS, 0,
                        count, a, b, out);
}

// --- grains of several uses ----------------------------------------------------------------------

template <typename T>
static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    spread(uint32_t grains, uint64_t of_grain, uint64_t live, uint32_t leaves, uint32_t leaf,
           const T *__restrict__ from, T *__restrict__ to) {
    lk_cuda_begin();
    spread_body(lk_cuda_here(), grains, of_grain, live, leaves, leaf, from, to);
}

template <typename T>
static void launch_spread(lk_cuda_stream *s, uint64_t bytes, uint32_t grains, uint64_t live,
                          uint32_t leaves, uint32_t leaf, const void *from, void *to) {
    const uint64_t count = bytes / sizeof(T);
    lk_cuda_grid grid = lk_cuda_blocks(count, 1, 2 * bytes * grains);
    grid.blocks.y = LK_MIN(grains, 65535u);
    grid.work.items *= grains;
    // Each leaf fills other places of the same grains, of which all or none are named.
    lk_cuda_spans spans = {};
    lk_cuda_reads(&spans, from, (live + 3) / 4);
    lk_cuda_writes(&spans, to, (bytes * grains * leaves + 3) / 4);
    lk_cuda_launch_body(s, sizeof(T) == 4 ? LK_CUDA_BODY_SPREAD : LK_CUDA_BODY_SPREAD_BYTES, spans,
                        spread<T>, grid, LK_CUDA_THREADS, 0, grains, count, live / sizeof(T),
                        leaves, leaf, static_cast<const T *>(from), static_cast<T *>(to));
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
    lk_cuda_begin();
    fill_body(lk_cuda_here(), words, value, to);
}

void lk_cuda_fill(lk_cuda_stream *s, uint64_t words, uint32_t value, uint32_t *to) {
    lk_cuda_spans spans = {};
    lk_cuda_writes(&spans, to, words);
    lk_cuda_launch_body(s, LK_CUDA_BODY_FILL, spans, fill, lk_cuda_blocks(words), LK_CUDA_THREADS,
                        0, words, value, to);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    check_bytes(uint64_t bytes, uint8_t value, const uint8_t *__restrict__ from, uint32_t number,
                uint32_t *broken) {
    lk_cuda_begin();
    LK_CUDA_EACH(i, bytes) {
        if (from[i] != value) atomicMin(broken, number + (uint32_t)i);
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
