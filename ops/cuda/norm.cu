// norm.cu - batch normalisation: launches of norm.h. Part of the plain kernels (plain.cu).
#include "ops/cuda/norm.h"

#include "ops/cuda/table.h"

static inline lk_cuda_stream *stream_of(const lk_lane *l) {
    return static_cast<const lk_cuda_lane *>(l->device)->stream;
}
static inline float *floats_of(const lk_lane *l, lk_role role) {
    return static_cast<float *>(l->at[role]);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS, 2) sum_grain(norm_operands o) {
    lk_cuda_begin();
    sum_grain_body(lk_cuda_here(), o);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS, 2) square_grain(norm_operands o) {
    lk_cuda_begin();
    square_grain_body(lk_cuda_here(), o);
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

static __global__ void __launch_bounds__(LK_CUDA_THREADS, 2) sum_gradients(norm_operands o) {
    lk_cuda_begin();
    sum_gradients_body(lk_cuda_here(), o);
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
    const bool keeps = l->train && !op->norm.frozen;  // statistics of its own
    const uint32_t slices = keeps ? norm_slices(op->norm, LK_MIN(l->grain, l->examples)) : 0;
    float *const sums = stream_of(l)->scratch;
    uint32_t lanes_log = 0;
    while (1u << lanes_log < LK_MIN(op->norm.channels, (uint32_t)NORM_LANES)) lanes_log++;
    return {op->norm,
            lk_cuda_divide_by((op->norm.w + 1) / 2),
            lk_cuda_divide_by((op->norm.w + 1) / 2 * ((op->norm.h + 1) / 2)),
            lk_cuda_divide_by(1),
            lanes_log,
            op->floats,
            l->examples,
            l->grain,
            slices,
            static_cast<const uint32_t *>(l->at[LK_X2]),
            x ? x + at : x,
            dy ? dy + at : dy,
            l->param[0],
            l->param[1],
            y ? y + at : y,
            dx ? dx + at : dx,
            floats_of(l, LK_AUX),
            sums,
            keeps ? sums + (uint64_t)lk_lane_grains(l) * slices * op->norm.channels : NULL};
}

uint64_t lk_cuda_norm_scratch_floats(const lk_batch_norm *n, uint32_t grain, uint32_t examples) {
    if (n->frozen) return 0;
    const uint64_t grains = (examples + (uint64_t)grain - 1) / grain;
    return 2 * grains * norm_slices(*n, LK_MIN(grain, examples)) * n->channels;
}

// A block for each piece of a grain, and for the channels of its lanes.
static lk_cuda_grid pieces_of(const lk_lane *l, norm_operands *o, uint64_t pieces,
                              const lk_cuda_work &work, uint32_t ahead) {
    const uint64_t lanes = (uint64_t)1 << o->lanes_log;
    o->pieces = lk_cuda_divide_by((uint32_t)pieces);
    return {dim3((uint32_t)(lk_lane_grains(l) * pieces),
                 (uint32_t)((o->norm.channels + lanes - 1) / lanes)),
            work, ahead};
}

// Blocks of slices; arrays: the tensors whose values they add up.
static lk_cuda_grid slices_of(const lk_lane *l, norm_operands *o, uint32_t arrays) {
    const uint32_t of_block = NORM_SLICE_THREADS >> o->lanes_log;
    const uint64_t terms = (uint64_t)o->norm.h * o->norm.w * LK_MIN(o->grain, o->examples);
    const lk_cuda_work work = {lk_lane_grains(l) * o->slices * o->norm.channels,
                               LK_MIN(terms, (uint64_t)LK_SLICE_TERMS), 0,
                               o->examples * o->floats * arrays * sizeof(float)};
    const uint32_t tiles = arrays > 1 ? NORM_TILES_OF_TWO : NORM_TILES;  // at once
    const uint32_t cells = o->norm.h * o->norm.w;
    return pieces_of(l, o, (o->slices + of_block - 1) / of_block, work,
                     LK_MAX(tiles * cells / o->image_tiles.by, 1u));
}

// Blocks of cells: some for each multiprocessor, where there are enough cells. arrays: the tensors
// that they read and write.
static lk_cuda_grid cells_of(const lk_lane *l, norm_operands *o, uint32_t arrays) {
    enum { TURNS = 8 };
    const uint64_t grains = lk_lane_grains(l), lanes = (uint64_t)1 << o->lanes_log;
    const uint64_t rows = grains * ((o->norm.channels + lanes - 1) / lanes);
    const uint64_t of_block = LK_CUDA_THREADS / lanes * NORM_CELLS;
    const uint64_t cells = (uint64_t)o->norm.h * o->norm.w * LK_MIN(o->grain, o->examples);
    const bool any = o->y || o->dx;  // else a block takes the trees, for the grain's rows
    const uint64_t wanted =
        LK_MAX(any ? (uint64_t)lk_cuda_blocks_wanted * TURNS / rows : 0, (uint64_t)1);
    const uint64_t values = o->examples * o->floats;
    const lk_cuda_work work = {(values + NORM_CELLS - 1) / NORM_CELLS, NORM_CELLS, 0,
                               values * arrays * sizeof(float)};
    return pieces_of(l, o, LK_MIN((cells + of_block - 1) / of_block, wanted), work,
                     LK_CUDA_STEPS_AHEAD);
}

typedef enum norm_pass { SUMS, SQUARES, OUTPUTS, GRADIENT_SUMS, GRADIENTS } norm_pass;

static lk_cuda_spans spans_of(const lk_lane *l, const norm_operands &o, norm_pass pass) {
    const uint64_t all = o.examples * o.floats, grains = lk_lane_grains(l);
    const uint64_t sums = 2 * grains * o.slices * o.norm.channels;
    const uint64_t rows = grains * LK_NORM_COLUMNS * o.norm.channels;
    const bool finds = pass == OUTPUTS || pass == GRADIENTS;
    lk_cuda_spans spans = {};
    lk_cuda_reads(&spans, o.labels, o.examples);
    lk_cuda_reads(&spans, o.x, all);
    lk_cuda_touches(&spans, o.sums, sums, !finds);
    if (finds) lk_cuda_reads(&spans, o.gamma, o.norm.channels);
    if (pass == OUTPUTS) lk_cuda_reads(&spans, o.beta, o.norm.channels);
    if (pass == OUTPUTS) lk_cuda_writes(&spans, o.y, all);
    if (pass >= GRADIENT_SUMS) lk_cuda_reads(&spans, o.dy, all);
    if (pass == GRADIENTS) lk_cuda_writes(&spans, o.dx, all);
    if (pass >= OUTPUTS) lk_cuda_touches(&spans, o.rows, rows, finds);
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
    norm_operands o = operands_of(l, op, 0);
    lk_cuda_grid grid = slices_of(l, &o, 1);
    lk_cuda_launch_body(s, LK_CUDA_BODY_SUM_GRAIN, spans_of(l, o, SUMS), sum_grain, grid,
                        LK_CUDA_THREADS, 0, o);
    lk_cuda_launch_body(s, LK_CUDA_BODY_SQUARE_GRAIN, spans_of(l, o, SQUARES), square_grain, grid,
                        LK_CUDA_THREADS, LK_CUDA_THREADS, o);
    grid = cells_of(l, &o, 2);
    lk_cuda_launch_body(s, LK_CUDA_BODY_NORMALIZE_GRAIN, spans_of(l, o, OUTPUTS), normalize_grain,
                        grid, LK_CUDA_THREADS, LK_CUDA_THREADS, s->state, s->op, o);
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
    norm_operands o = operands_of(l, op, 0);
    lk_cuda_grid grid = slices_of(l, &o, 2);
    lk_cuda_launch_body(s, LK_CUDA_BODY_SUM_GRADIENTS, spans_of(l, o, GRADIENT_SUMS),
                        sum_gradients, grid, LK_CUDA_THREADS, 0, o);
    grid = cells_of(l, &o, 3);
    lk_cuda_launch_body(s, LK_CUDA_BODY_TURN_BACK_GRAIN, spans_of(l, o, GRADIENTS), turn_back_grain,
                        grid, LK_CUDA_THREADS, LK_CUDA_THREADS, s->state, s->op, o);
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
    return lk_cuda_prepare_kernels(sum_grain, square_grain, normalize_grain, normalize_by_moving,
                                   sum_gradients, turn_back_grain, turn_back_frozen,
                                   rows_to_nodes);
}
