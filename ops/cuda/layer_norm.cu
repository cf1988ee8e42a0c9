// layer_norm.cu - layer normalisation: launches of layer_norm.h. Part of the plain kernels
// (plain.cu).
#include "ops/cuda/layer_norm.h"

#include "ops/cuda/table.h"

static inline lk_cuda_stream *stream_of(const lk_lane *l) {
    return static_cast<const lk_cuda_lane *>(l->device)->stream;
}
static inline float *floats_of(const lk_lane *l, lk_role role) {
    return static_cast<float *>(l->at[role]);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    find_statistics(lk_cuda_state *state, uint32_t op, cell_operands o) {
    lk_cuda_begin();
    find_statistics_body(lk_cuda_here(), state, op, o);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    normalize_cells(lk_cuda_state *state, uint32_t op, cell_operands o, lk_cuda_divisor channels,
                    uint32_t count) {
    lk_cuda_begin();
    normalize_cells_body(lk_cuda_here(), state, op, o, channels, count);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS, 4)
    turn_back_cells(lk_cuda_state *state, uint32_t op, cell_operands o) {
    lk_cuda_begin();
    turn_back_cells_body(lk_cuda_here(), state, op, o);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS) sums_of_cells(grain_operands o) {
    lk_cuda_begin();
    sums_of_cells_body(lk_cuda_here(), o);
}

static cell_operands operands_of(const lk_lane *l, const lk_op *op, lk_role to) {
    const uint64_t cells = (uint64_t)l->examples * op->norm.h * op->norm.w;
    return {cells,
            op->norm.channels,
            op->norm.epsilon,
            floats_of(l, LK_X),
            floats_of(l, LK_DY),
            l->param[0],
            l->param[1],
            floats_of(l, LK_AUX),
            floats_of(l, to)};
}

static uint64_t cell_bytes(const cell_operands &o) { return o.cells * o.channels * sizeof(float); }

static lk_cuda_spans statistics_spans(const cell_operands &o) {
    lk_cuda_spans spans = {};
    lk_cuda_reads(&spans, o.x, o.cells * o.channels);
    lk_cuda_writes(&spans, o.kept, 2 * o.cells);
    return spans;
}

// Of what takes the statistics; without dy it is forward, and takes beta.
static lk_cuda_spans cell_spans(const cell_operands &o, bool forward) {
    lk_cuda_spans spans = {};
    lk_cuda_reads(&spans, o.x, o.cells * o.channels);
    if (!forward) lk_cuda_reads(&spans, o.dy, o.cells * o.channels);
    lk_cuda_reads(&spans, o.gamma, o.channels);
    if (forward) lk_cuda_reads(&spans, o.beta, o.channels);
    lk_cuda_reads(&spans, o.kept, 2 * o.cells);
    lk_cuda_writes(&spans, o.to, o.cells * o.channels);
    return spans;
}

uint32_t lk_cuda_plain_layer_normalization(lk_lane *l, const lk_op *op) {
    lk_cuda_stream *s = stream_of(l);
    const cell_operands o = operands_of(l, op, LK_Y);
    lk_cuda_launch_body(s, LK_CUDA_BODY_FIND_STATISTICS, statistics_spans(o), find_statistics,
                        lk_cuda_blocks(o.cells, 2 * o.channels, 2 * cell_bytes(o)), LK_CUDA_THREADS,
                        0, s->state, s->op, o);
    const uint64_t cells = (uint64_t)op->norm.h * op->norm.w;
    lk_cuda_in_parts(s, l->examples, cells * o.channels, [&](uint64_t first, uint32_t some) {
        cell_operands here = o;
        here.cells = some * cells;
        here.x += first * cells * o.channels;
        here.to += first * cells * o.channels;
        here.kept += 2 * first * cells;
        const uint64_t count = here.cells * o.channels;
        lk_cuda_launch_body(s, LK_CUDA_BODY_NORMALIZE_CELLS, cell_spans(here, true),
                            normalize_cells, lk_cuda_blocks(count, 1, 2 * cell_bytes(here)),
                            LK_CUDA_THREADS, 0, s->state, s->op, here,
                            lk_cuda_divide_by(o.channels), (uint32_t)count);
    });
    return 0;
}

uint32_t lk_cuda_plain_layer_normalization_input_gradient(lk_lane *l, const lk_op *op) {
    lk_cuda_stream *s = stream_of(l);
    const cell_operands o = operands_of(l, op, LK_DX);
    lk_cuda_launch_body(s, LK_CUDA_BODY_TURN_BACK_CELLS, cell_spans(o, false), turn_back_cells,
                        lk_cuda_blocks(o.cells, 3 * o.channels, 6 * cell_bytes(o)), LK_CUDA_THREADS,
                        0, s->state, s->op, o);
    return 0;
}

uint32_t lk_cuda_plain_layer_normalization_gradient(lk_lane *l, const lk_op *op) {
    const lk_batch_norm &n = op->norm;
    const grain_operands o = {n.channels,
                              n.h * n.w,
                              l->grain,
                              l->examples,
                              l->grains->x,
                              l->grains->dy,
                              lk_grain_kept(l->grains),
                              l->sums[0],
                              l->sums[1]};
    const uint64_t cells = (uint64_t)l->examples * o.cells;
    const lk_cuda_grid grid = {dim3((n.channels + NORM_LANES - 1) / NORM_LANES, 2),
                               {2ull * n.channels * NORM_WARPS, cells / NORM_WARPS, 0,
                                3 * cells * n.channels * sizeof(float)}};
    lk_cuda_spans spans = {};
    lk_cuda_reads(&spans, o.x, cells * n.channels);
    lk_cuda_reads(&spans, o.dy, cells * n.channels);
    lk_cuda_reads(&spans, o.kept, 2 * cells);
    lk_cuda_writes(&spans, o.gamma, n.channels);
    lk_cuda_writes(&spans, o.beta, n.channels);
    lk_cuda_launch_body(stream_of(l), LK_CUDA_BODY_SUMS_OF_CELLS, spans, sums_of_cells, grid,
                        LK_CUDA_THREADS, LK_CUDA_THREADS, o);
    return 0;
}

int lk_cuda_prepare_layer_norm(void) {
    return lk_cuda_prepare_kernels(find_statistics, normalize_cells, turn_back_cells,
                                   sums_of_cells);
}
