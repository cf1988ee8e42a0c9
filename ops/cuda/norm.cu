// norm.cu - batch normalisation: launches of norm.h. Part of the plain kernels (plain.cu).
#include "ops/cuda/norm.h"

#include "ops/cuda/table.h"

static inline lk_cuda_stream *stream_of(const lk_lane *l) {
    return static_cast<const lk_cuda_lane *>(l->device)->stream;
}
static inline float *floats_of(const lk_lane *l, lk_role role) {
    return static_cast<float *>(l->at[role]);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS, 4)
    normalize_grain(lk_cuda_state *state, uint32_t op, norm_operands o) {
    lk_cuda_begin();
    normalize_grain_body(lk_cuda_here(), state, op, o);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS, 4)
    normalize_by_moving(lk_cuda_state *state, uint32_t op, norm_operands o,
                        lk_cuda_divisor channels, uint32_t count, const float *moving_mean,
                        const float *moving_variance) {
    lk_cuda_begin();
    normalize_by_moving_body(lk_cuda_here(), state, op, o, channels, count, moving_mean,
                             moving_variance);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS, 4)
    turn_back_grain(lk_cuda_state *state, uint32_t op, norm_operands o) {
    lk_cuda_begin();
    turn_back_grain_body(lk_cuda_here(), state, op, o);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    turn_back_frozen(lk_cuda_state *state, uint32_t op, norm_operands o, lk_cuda_divisor channels,
                     uint32_t count, const float *moving_variance) {
    lk_cuda_begin();
    turn_back_frozen_body(lk_cuda_here(), state, op, o, channels, count, moving_variance);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    rows_to_nodes(uint32_t channels, uint32_t grains, const float *rows, float *first,
                  float *second) {
    lk_cuda_begin();
    rows_to_nodes_body(lk_cuda_here(), channels, grains, rows, first, second);
}

// Of examples from `first` on.
static norm_operands operands_of(const lk_lane *l, const lk_op *op, uint64_t first) {
    const uint64_t at = first * op->floats;
    const float *const x = floats_of(l, LK_X), *const dy = floats_of(l, LK_DY);
    float *const y = floats_of(l, LK_Y), *const dx = floats_of(l, LK_DX);
    return {op->norm,
            lk_cuda_divide_by((op->norm.w + 1) / 2),
            op->floats,
            l->examples,
            l->grain,
            static_cast<const uint32_t *>(l->at[LK_X2]),
            x ? x + at : x,
            dy ? dy + at : dy,
            l->param[0],
            l->param[1],
            y ? y + at : y,
            dx ? dx + at : dx,
            floats_of(l, LK_AUX)};
}

// A block a grain and 32 channels, whose values it goes over `times` times.
static lk_cuda_grid grains_of(const lk_lane *l, const lk_op *op, uint32_t times, uint32_t arrays) {
    const uint64_t values = op->floats * l->examples, grains = lk_lane_grains(l);
    const uint64_t of_channel = (uint64_t)op->norm.h * op->norm.w * LK_MIN(l->grain, l->examples);
    return {dim3((uint32_t)grains, (op->norm.channels + NORM_LANES - 1) / NORM_LANES),
            {grains * op->norm.channels * NORM_WARPS, times * of_channel / NORM_WARPS, 0,
             values * arrays * sizeof(float)}};
}

static lk_cuda_spans grain_spans(const lk_lane *l, const norm_operands &o, bool forward) {
    const uint64_t all = o.examples * o.floats;
    const uint64_t rows = lk_lane_grains(l) * LK_NORM_COLUMNS * o.norm.channels;
    lk_cuda_spans spans = {};
    lk_cuda_reads(&spans, o.labels, o.examples);
    lk_cuda_reads(&spans, o.x, all);
    lk_cuda_reads(&spans, o.gamma, o.norm.channels);
    if (forward) lk_cuda_reads(&spans, o.beta, o.norm.channels);
    if (!forward) lk_cuda_reads(&spans, o.dy, all);
    lk_cuda_writes(&spans, forward ? o.y : o.dx, all);
    lk_cuda_writes(&spans, o.rows, rows);
    return spans;
}

static void launch_by_moving(const lk_lane *l, const lk_op *op) {
    lk_cuda_stream *s = stream_of(l);
    lk_cuda_in_parts(s, l->examples, op->floats, [&](uint64_t first, uint32_t some) {
        const norm_operands o = operands_of(l, op, first);
        const uint64_t count = some * op->floats;
        lk_cuda_spans spans = {};
        lk_cuda_reads(&spans, o.x, count);
        lk_cuda_reads(&spans, o.gamma, o.norm.channels);
        lk_cuda_reads(&spans, o.beta, o.norm.channels);
        lk_cuda_reads(&spans, l->state[0], o.norm.channels);
        lk_cuda_reads(&spans, l->state[1], o.norm.channels);
        lk_cuda_writes(&spans, o.y, count);
        lk_cuda_launch_body(s, LK_CUDA_BODY_NORMALIZE_BY_MOVING, spans, normalize_by_moving,
                            lk_cuda_blocks(count, 1, 8 * count), LK_CUDA_THREADS, 0, s->state,
                            s->op, o, lk_cuda_divide_by(o.norm.channels), (uint32_t)count,
                            l->state[0], l->state[1]);
    });
}

uint32_t lk_cuda_plain_batch_normalization(lk_lane *l, const lk_op *op) {
    lk_cuda_stream *s = stream_of(l);
    if (!l->train || op->norm.frozen) {
        launch_by_moving(l, op);
        return 0;
    }
    const norm_operands o = operands_of(l, op, 0);
    lk_cuda_launch_body(s, LK_CUDA_BODY_NORMALIZE_GRAIN, grain_spans(l, o, true), normalize_grain,
                        grains_of(l, op, 3, 4), LK_CUDA_THREADS, LK_CUDA_THREADS, s->state, s->op,
                        o);
    return 0;
}

static void launch_frozen(const lk_lane *l, const lk_op *op) {
    lk_cuda_stream *s = stream_of(l);
    lk_cuda_in_parts(s, l->examples, op->floats, [&](uint64_t first, uint32_t some) {
        const norm_operands o = operands_of(l, op, first);
        const uint64_t count = some * op->floats;
        lk_cuda_spans spans = {};
        lk_cuda_reads(&spans, o.dy, count);
        lk_cuda_reads(&spans, o.gamma, o.norm.channels);
        lk_cuda_reads(&spans, l->state[1], o.norm.channels);
        lk_cuda_writes(&spans, o.dx, count);
        lk_cuda_launch_body(s, LK_CUDA_BODY_TURN_BACK_FROZEN, spans, turn_back_frozen,
                            lk_cuda_blocks(count, 1, 8 * count), LK_CUDA_THREADS, 0, s->state,
                            s->op, o, lk_cuda_divide_by(o.norm.channels), (uint32_t)count,
                            l->state[1]);
    });
}

uint32_t lk_cuda_plain_batch_normalization_backward(lk_lane *l, const lk_op *op) {
    lk_cuda_stream *s = stream_of(l);
    if (op->norm.frozen) {
        launch_frozen(l, op);
        return 0;
    }
    const norm_operands o = operands_of(l, op, 0);
    lk_cuda_launch_body(s, LK_CUDA_BODY_TURN_BACK_GRAIN, grain_spans(l, o, false), turn_back_grain,
                        grains_of(l, op, 3, 6), LK_CUDA_THREADS, LK_CUDA_THREADS, s->state, s->op,
                        o);
    return 0;
}

static uint32_t launch_rows(const lk_lane *l, const lk_op *op, uint32_t column) {
    const uint32_t channels = op->norm.channels;
    const float *const kept = lk_grain_kept(l->grains);
    lk_cuda_spans spans = {};
    lk_cuda_reads(&spans, kept, (uint64_t)l->grain_count * LK_NORM_COLUMNS * channels);
    lk_cuda_writes(&spans, l->sums[0], channels);
    lk_cuda_writes(&spans, l->sums[1], channels);
    lk_cuda_launch_body(stream_of(l), LK_CUDA_BODY_ROWS_TO_NODES, spans, rows_to_nodes,
                        lk_cuda_blocks(2 * channels, l->grain_count), LK_CUDA_THREADS, 0, channels,
                        l->grain_count, kept + (uint64_t)column * channels, l->sums[0], l->sums[1]);
    return 0;
}

uint32_t lk_cuda_plain_batch_normalization_statistics(lk_lane *l, const lk_op *op) {
    return launch_rows(l, op, LK_NORM_SUM);
}

uint32_t lk_cuda_plain_batch_normalization_gradient(lk_lane *l, const lk_op *op) {
    return launch_rows(l, op, LK_NORM_GAMMA);
}

int lk_cuda_prepare_norm(void) {
    return lk_cuda_prepare_kernels(normalize_grain, normalize_by_moving, turn_back_grain,
                                   turn_back_frozen, rows_to_nodes);
}
