// conv.h - convolutions as jobs of sums.h, and the one kernel that is none: what a block does. The
// launches are conv.cu's, and the persistent kernel's (persistent.cu). Images are gathered, and
// pooled gradients are routed, while a chunk is fetched: those as addresses, these as values.
//
// Rows of a job are positions, its columns channels (forward, gradient of the input); or rows are
// weights and one more stands for the bias (gradient of the weights). Numbers of positions and
// terms are below 2^31: lk_cuda_run checks it.
#ifndef LOCKSTEP_OPS_CUDA_CONV_H
#define LOCKSTEP_OPS_CUDA_CONV_H

#include "ops/cuda/operand.h"
#include "ops/cuda/sums.h"

// A convolution as a kernel sees it.
typedef struct conv_shape {
    lk_conv2d c;
    lk_cuda_divisor in_c, out_c, kernel_w;
    lk_cuda_divisor in_w, in_h;        // of input positions
    lk_cuda_divisor place_w, place_h;  // of output positions, pooled where pooling is fused
    lk_cuda_divisor stride_h, stride_w;
    lk_cuda_divisor tiles_w, terms;  // of the gradient of weights
    uint32_t pooled_h, pooled_w;
} conv_shape;

// Of the launch: floats of all kernels, and of what an example gives.
static inline uint64_t conv_weights(const lk_conv2d &c) {
    return (uint64_t)c.kernel_h * c.kernel_w * c.in_c * c.out_c;
}
static inline uint64_t conv_outputs(const conv_shape &s, bool pooled) {
    return pooled ? (uint64_t)s.pooled_h * s.pooled_w * s.c.out_c : lk_conv2d_out_floats(&s.c);
}

// n = (high * by_w + mid) * ... taken apart: position (m, y, x) of n.
typedef struct conv_position {
    uint32_t m, y, x;
} conv_position;

static inline __device__ conv_position position_of(uint32_t n, const lk_cuda_divisor &h,
                                                   const lk_cuda_divisor &w) {
    uint32_t line = lk_cuda_quotient(n, w), m = lk_cuda_quotient(line, h);
    return {m, line - m * h.by, n - line * w.by};
}

// Tap (y, x) and channel of term (or weight) n of a kernel with `channels` of them.
typedef struct conv_tap {
    uint32_t number, y, x, channel;
} conv_tap;

static inline __device__ conv_tap tap_of(uint32_t n, const lk_cuda_divisor &channels,
                                         const lk_cuda_divisor &kernel_w) {
    uint32_t number = lk_cuda_quotient(n, channels), y = lk_cuda_quotient(number, kernel_w);
    return {number, y, number - y * kernel_w.by, n - number * channels.by};
}

// The pixel at (y, x) of example m; none outside the image, where y or x has wrapped below 0.
static inline __device__ bool pixel(const lk_conv2d &c, const float *x, uint32_t m, uint32_t iy,
                                    uint32_t ix, uint32_t ci, const float **from) {
    if (iy >= c.in_h || ix >= c.in_w) return false;
    *from = x + (((uint64_t)m * c.in_h + iy) * c.in_w + ix) * c.in_c + ci;
    return true;
}

// The gradient of output cell (oy, ox, co) of example m, if it exists.
static inline __device__ bool output_gradient(const conv_shape &s, const float *dy, uint32_t m,
                                              uint32_t oy, uint32_t ox, uint32_t co,
                                              const float **from) {
    const lk_conv2d &c = s.c;
    if (oy >= c.out_h || ox >= c.out_w) return false;
    *from = dy + (((uint64_t)m * c.out_h + oy) * c.out_w + ox) * c.out_c + co;
    return true;
}

// .. where it is routed to the cell of a pool that won.
static inline __device__ float routed_gradient(const conv_shape &s, const float *dy,
                                               const uint8_t *argmax, uint32_t m, uint32_t oy,
                                               uint32_t ox, uint32_t co) {
    const lk_conv2d &c = s.c;
    uint32_t py = oy / 2, px = ox / 2;  // an odd last row or column has no pool
    if (py >= s.pooled_h || px >= s.pooled_w) return 0.0f;
    uint64_t at = (((uint64_t)m * s.pooled_h + py) * s.pooled_w + px) * c.out_c + co;
    return argmax[at] == oy % 2 * 2 + ox % 2 ? dy[at] : 0.0f;
}

// --- forward -------------------------------------------------------------------------------------

// Rows: output positions; with POOLED the four cells of each pooled position side by side.
template <bool POOLED>
struct conv_forward_job {
    static constexpr int group = POOLED ? 4 : 1;
    static constexpr bool by_phase = false;
    static constexpr lk_cuda_body body =
        POOLED ? LK_CUDA_BODY_CONV_POOL_FORWARD : LK_CUDA_BODY_CONV_FORWARD;
    static constexpr lk_cuda_body join =
        POOLED ? LK_CUDA_BODY_CONV_POOL_FORWARD_JOIN : LK_CUDA_BODY_CONV_FORWARD_JOIN;
    static constexpr bool a_is_value = false, a_terms_first = true, b_terms_first = false;
    typedef conv_position row;  // its m, and where its window begins in the image
    uint32_t rows, columns;
    conv_shape s;
    const float *x, *w, *bias;
    float *y;
    uint8_t *argmax;

    __device__ row row_of(uint32_t i) const {
        conv_position p = position_of(POOLED ? i / 4 : i, s.place_h, s.place_w);
        if (POOLED) p = {p.m, 2 * p.y + i % 4 / 2, 2 * p.x + i % 2};
        return {p.m, p.y * s.c.stride_h - s.c.pad_top, p.x * s.c.stride_w - s.c.pad_left};
    }
    __device__ bool a(const row &p, uint32_t u, const float **from) const {
        conv_tap t = tap_of(u, s.in_c, s.kernel_w);
        return pixel(s.c, x, p.m, p.y + t.y, p.x + t.x, t.channel, from);
    }
    __device__ float a_instead(const row &) const { return 0.0f; }
    __device__ bool a_by_four() const { return false; }
    __device__ bool b_by_four() const { return lk_cuda_by_four(w, columns); }
    __device__ bool b(uint32_t u, uint32_t j, const float **from) const {
        return *from = w + (uint64_t)u * columns + j, true;
    }
    __device__ float start(uint32_t i, uint32_t j) const { return (void)i, bias ? bias[j] : 0.0f; }
    // The greatest of the cells, and whether one of them is not finite.
    static __device__ bool pick(const float *v, float *best, uint8_t *winner) {
        *best = v[0] + 0.0f;
        *winner = 0;
        bool bad = lk_cuda_not_finite(*best);
#pragma unroll
        for (int cell = 1; cell < group; cell++) {
            float sum = v[cell] + 0.0f;
            bad |= lk_cuda_not_finite(sum);
            *winner = sum > *best ? (uint8_t)cell : *winner;
            *best = sum > *best ? sum : *best;
        }
        return bad;
    }
    __device__ bool store(uint32_t i, uint32_t j, const float *v) const {
        float best;
        uint8_t winner;
        const bool bad = pick(v, &best, &winner);
        uint64_t at = (uint64_t)(i / group) * columns + j;
        y[at] = !s.c.relu || best > 0.0f ? best : 0.0f;
        if (POOLED) argmax[at] = winner;
        return bad;
    }

    void touches(const lk_cuda_terms &, lk_cuda_spans *spans) const {
        const uint64_t cells = rows / group, m = cells / ((uint64_t)s.place_h.by * s.place_w.by);
        lk_cuda_reads(spans, x, m * lk_conv2d_in_floats(&s.c));
        lk_cuda_reads(spans, w, conv_weights(s.c));
        lk_cuda_reads(spans, bias, columns);
        lk_cuda_writes(spans, y, cells * columns);
        lk_cuda_writes(spans, argmax, (cells * columns + 3) / 4);
    }
};

// The same, whose pooled y is stored as products of 16 bits take it. No task of the persistent
// kernel.
struct conv_narrow_job : conv_forward_job<true> {
    static constexpr lk_cuda_body body = LK_CUDA_BODY_NONE, join = LK_CUDA_BODY_NONE;
    lk_dtype dtype;
    uint16_t *narrow;

    __device__ bool store(uint32_t i, uint32_t j, const float *v) const {
        float best;
        uint8_t winner;
        const bool bad = pick(v, &best, &winner);
        const uint64_t at = (uint64_t)(i / group) * columns + j;
        narrow[at] = lk_cuda_operand(dtype, !s.c.relu || best > 0.0f ? best : 0.0f);
        argmax[at] = winner;
        return bad;
    }
};

// --- gradient of the input -----------------------------------------------------------------------

// Rows: input positions. Terms: taps, and the output channels behind each. Where outputs are not
// pooled the strides are 1: conv_phase.h has the job of the others.
template <bool POOLED>
struct conv_input_job {
    static constexpr int group = 1;
    static constexpr bool by_phase = false;
    static constexpr lk_cuda_body body =
        POOLED ? LK_CUDA_BODY_CONV_POOL_INPUT : LK_CUDA_BODY_CONV_INPUT;
    static constexpr lk_cuda_body join =
        POOLED ? LK_CUDA_BODY_CONV_POOL_INPUT_JOIN : LK_CUDA_BODY_CONV_INPUT_JOIN;
    static constexpr bool a_is_value = POOLED, a_terms_first = true, b_terms_first = true;
    typedef conv_position row;
    uint32_t rows, columns;
    conv_shape s;
    const float *w, *dy;
    const uint8_t *argmax;
    const float *mask;
    float *dx;
    const float *bias;  // of a transposed convolution, or NULL
    bool relu;

    __device__ row row_of(uint32_t i) const {
        conv_position p = position_of(i, s.in_h, s.in_w);
        return {p.m, p.y + s.c.pad_top, p.x + s.c.pad_left};
    }
    // The output whose tap t is the row's position: tap t of output (oy, ox) reads the input at
    // (oy, ox) * stride + t - pad. Outside where there is none.
    __device__ conv_position reader_of(const row &p, const conv_tap &t) const {
        const uint32_t oy = lk_cuda_quotient(p.y - t.y, s.stride_h);
        const uint32_t ox = lk_cuda_quotient(p.x - t.x, s.stride_w);
        const bool reads = p.y >= t.y && p.x >= t.x && oy * s.stride_h.by == p.y - t.y &&
                           ox * s.stride_w.by == p.x - t.x;
        return {p.m, reads ? oy : UINT32_MAX, ox};
    }
    // The strides are 1. An output below 0 has wrapped to a large number, and is outside as well.
    __device__ bool a(const row &p, uint32_t u, const float **from) const {
        conv_tap t = tap_of(u, s.out_c, s.kernel_w);
        return output_gradient(s, dy, p.m, p.y - t.y, p.x - t.x, t.channel, from);
    }
    __device__ float a_value(const row &p, uint32_t u) const {
        conv_tap t = tap_of(u, s.out_c, s.kernel_w);
        conv_position o = reader_of(p, t);
        return routed_gradient(s, dy, argmax, o.m, o.y, o.x, t.channel);
    }
    __device__ float a_instead(const row &) const { return 0.0f; }
    __device__ bool a_by_four() const { return false; }
    __device__ bool b_by_four() const { return false; }
    __device__ bool b(uint32_t u, uint32_t j, const float **from) const {
        uint32_t tap = lk_cuda_quotient(u, s.out_c);
        *from = w + ((uint64_t)tap * columns + j) * s.c.out_c + (u - tap * s.c.out_c);
        return true;
    }
    __device__ float start(uint32_t i, uint32_t j) const { return (void)i, bias ? bias[j] : 0.0f; }
    __device__ bool store(uint32_t i, uint32_t j, const float *v) const {
        uint64_t at = (uint64_t)i * columns + j;
        float sum = v[0] + 0.0f;
        dx[at] = (!mask || mask[at] > 0.0f) && (!relu || sum > 0.0f) ? sum : 0.0f;
        return lk_cuda_not_finite(sum);
    }

    void touches(const lk_cuda_terms &, lk_cuda_spans *spans) const {
        const uint64_t m = rows / ((uint64_t)s.c.in_h * s.c.in_w);
        const uint64_t outputs = m * conv_outputs(s, POOLED);
        lk_cuda_reads(spans, w, conv_weights(s.c));
        lk_cuda_reads(spans, dy, outputs);
        lk_cuda_reads(spans, argmax, (outputs + 3) / 4);
        lk_cuda_reads(spans, mask, (uint64_t)rows * columns);
        lk_cuda_reads(spans, bias, columns);
        lk_cuda_writes(spans, dx, (uint64_t)rows * columns);
    }
};

// --- gradient of the weights ---------------------------------------------------------------------

// Rows: weights (ky, kx, ci), and one of ones for the bias. Terms: (example, position in 2x2
// tiles).
template <bool POOLED>
struct conv_weight_job {
    static constexpr int group = 1;
    static constexpr bool by_phase = false;
    // Pooled it has no tiles, but the body of routed_body.
    static constexpr lk_cuda_body body = POOLED ? LK_CUDA_BODY_ROUTED_2 : LK_CUDA_BODY_CONV_WEIGHT;
    static constexpr lk_cuda_body join =
        POOLED ? LK_CUDA_BODY_ROUTED_JOIN : LK_CUDA_BODY_CONV_WEIGHT_JOIN;
    static constexpr bool a_is_value = false, a_terms_first = false, b_terms_first = false;
    typedef conv_tap row;
    uint32_t rows, columns;
    uint32_t weights;  // rows without that of the bias
    conv_shape s;
    const float *x, *dy;
    const uint8_t *argmax;
    float *dw, *db;

    __device__ row row_of(uint32_t i) const {
        if (i >= weights) return {UINT32_MAX, 0, 0, 0};
        return tap_of(i, s.in_c, s.kernel_w);
    }
    __device__ conv_position cell_of(uint32_t u) const {
        uint32_t m = lk_cuda_quotient(u, s.terms), at = u - m * s.terms.by, tile = at / 4;
        uint32_t ty = lk_cuda_quotient(tile, s.tiles_w), tx = tile - ty * s.tiles_w.by;
        return {m, 2 * ty + at % 4 / 2, 2 * tx + at % 2};
    }
    __device__ bool a(const row &t, uint32_t u, const float **from) const {
        if (t.number == UINT32_MAX) return false;
        conv_position p = cell_of(u);
        if (p.y >= s.c.out_h || p.x >= s.c.out_w) return false;
        return pixel(s.c, x, p.m, p.y * s.c.stride_h + t.y - s.c.pad_top,
                     p.x * s.c.stride_w + t.x - s.c.pad_left, t.channel, from);
    }
    __device__ float a_instead(const row &t) const { return t.number == UINT32_MAX ? 1.0f : 0.0f; }
    // Channels of a tap lie side by side, but by four ptxas spills for compute capability 10.0.
    __device__ bool a_by_four() const { return false; }
    __device__ bool b_by_four() const { return lk_cuda_by_four(dy, columns); }
    __device__ bool b(uint32_t u, uint32_t j, const float **from) const {
        static_assert(!POOLED, "a pooled one has no tiles");
        conv_position p = cell_of(u);
        return output_gradient(s, dy, p.m, p.y, p.x, j, from);
    }
    __device__ float start(uint32_t i, uint32_t j) const { return (void)i, (void)j, 0.0f; }
    __device__ bool store(uint32_t i, uint32_t j, const float *v) const {
        if (i < weights)
            dw[(uint64_t)i * columns + j] = v[0];
        else
            db[j] = v[0];
        return false;
    }

    void touches(const lk_cuda_terms &t, lk_cuda_spans *spans) const {
        const uint64_t outputs = t.examples * conv_outputs(s, POOLED);
        lk_cuda_reads(spans, x, t.examples * lk_conv2d_in_floats(&s.c));
        lk_cuda_reads(spans, dy, outputs);
        lk_cuda_reads(spans, argmax, (outputs + 3) / 4);
        lk_cuda_writes(spans, dw, (uint64_t)weights * columns);
        lk_cuda_writes(spans, db, columns);
    }
};

// --- gradient of the weights behind a 2x2 pool ---------------------------------------------------

// Of the four cells of a pooled position one has a gradient; the other three are zero terms, which
// are left out. So each column has its own positions, and there is no tile to share: a thread has R
// rows of one column, a warp `wide` columns, and other rows in the lanes that are left. The pixels
// that they take are in the first cache. The warps of a block have the leaves of a part between
// them, each a whole node of them.
enum { ROUTED_LANES = 32, ROUTED_WARPS = 8 };

template <int R>
struct routed_tile {
    static constexpr int r = R, c = 1, levels = 3;
    static constexpr int ahead = 16 / R;  // positions that are fetched at once
};
typedef conv_weight_job<true> routed_job;

// A pooled position of example m, or one that an odd last row or column has not.
typedef struct routed_position {
    uint32_t m, y, x;
} routed_position;

static inline __device__ routed_position routed_position_of(const conv_shape &s, uint32_t u) {
    const uint32_t m = lk_cuda_quotient(u, s.terms), tile = (u - m * s.terms.by) / 4;
    const uint32_t y = lk_cuda_quotient(tile, s.tiles_w);
    return {m, y, tile - y * s.tiles_w.by};
}

static inline __device__ void routed_advance(const conv_shape &s, routed_position *p) {
    if (++p->x < s.tiles_w.by) return;
    p->x = 0;
    if (++p->y < (s.c.out_h + 1) / 2) return;
    p->y = 0;
    p->m++;
}

// The winning cells of some positions for a thread's column: their gradients, 0 for none, and where
// their windows begin, in the image and in x.
template <int AHEAD>
struct routed_cells {
    float gradient[AHEAD];
    uint32_t y[AHEAD], x[AHEAD];
    int64_t at[AHEAD];
};

template <int AHEAD>
static inline __device__ void routed_fetch(const routed_job &job, uint32_t count, uint32_t column,
                                           routed_position *p, routed_cells<AHEAD> *cells) {
    const conv_shape &s = job.s;
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
        const bool some = (uint32_t)k < count && p->y < s.pooled_h && p->x < s.pooled_w;
        const uint64_t position = ((uint64_t)p->m * s.pooled_h + p->y) * s.pooled_w + p->x;
        const uint64_t at = some ? position * s.c.out_c + column : 0;
        const uint32_t cell = some ? job.argmax[at] : 0;
        cells->gradient[k] = some ? job.dy[at] : 0.0f;
        cells->y[k] = (2 * p->y + cell / 2) * s.stride_h.by - s.c.pad_top;
        cells->x[k] = (2 * p->x + cell % 2) * s.stride_w.by - s.c.pad_left;
        const int64_t line = (int64_t)p->m * s.c.in_h + (int32_t)cells->y[k];
        cells->at[k] = (line * s.c.in_w + (int32_t)cells->x[k]) * s.c.in_c;
        if (!some) cells->y[k] = UINT32_MAX / 2;  // outside
        if ((uint32_t)k < count) routed_advance(s, p);
    }
}

// A row of a thread: its tap, and how far its pixel lies behind the first one of a window.
typedef struct routed_row {
    conv_tap tap;
    uint32_t behind;
} routed_row;

// The chains of a leaf, which are over `count` positions from p on.
template <int R>
static inline __device__ void routed_leaf(const routed_job &job, const routed_row *rows,
                                          routed_position p, uint32_t count, uint32_t column,
                                          lk_cuda_chains<routed_tile<R>> *sums) {
    constexpr int ahead = routed_tile<R>::ahead;
    const lk_conv2d &c = job.s.c;
    routed_cells<ahead> cells;
    for (; count > 0; count -= LK_MIN(count, (uint32_t)ahead)) {
        routed_fetch(job, count, column, &p, &cells);
#pragma unroll
        for (int k = 0; k < ahead; k++) {
#pragma unroll
            for (int r = 0; r < R; r++) {
                const conv_tap &t = rows[r].tap;
                const bool one = t.number == UINT32_MAX;  // of the bias
                const bool inside = cells.y[k] + t.y < c.in_h && cells.x[k] + t.x < c.in_w;
                float a = one ? 1.0f : 0.0f;
                if (inside && !one) a = job.x[cells.at[k] + rows[r].behind];
                sums->chain[r][0] = lk_fmaf(a, cells.gradient[k], sums->chain[r][0]);
            }
        }
    }
}

// The node over leaves first to end, in the thread's chains. Their terms, without those of odd rows
// and columns, are pooled positions.
template <int R>
static inline __device__ void routed_node(const routed_job &job, const lk_cuda_terms &terms,
                                          uint32_t i0, uint32_t column, lk_cuda_leaves leaves,
                                          lk_cuda_chains<routed_tile<R>> *sums) {
    const lk_conv2d &c = job.s.c;
    routed_row rows[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        const conv_tap t = job.row_of(LK_MIN(i0 + r, job.rows - 1));
        rows[r] = {t, (t.y * c.in_w + t.x) * c.in_c + t.channel};
    }
    uint32_t u = leaves.first == 0 ? 0 : lk_cuda_leaf_end(terms, leaves.first - 1);
    for (uint32_t leaf = leaves.first; leaf < leaves.end; leaf++) {
        const uint32_t end = lk_cuda_leaf_end(terms, leaf);
#pragma unroll
        for (int r = 0; r < R; r++) sums->chain[r][0] = 0.0f;
        routed_leaf<R>(job, rows, routed_position_of(job.s, u), (end - u) / 4, column, sums);
        lk_cuda_leaf(sums, leaf - leaves.first);
        u = end;
    }
    lk_cuda_part_sum(sums, leaves.end - leaves.first);
}

template <int R>
static inline __device__ void routed_body(lk_cuda_at block, const routed_job &job,
                                          const lk_cuda_terms &terms, uint32_t row_groups,
                                          uint32_t wide, float *scratch) {
    const uint32_t warp = threadIdx.x / ROUTED_LANES, lane = threadIdx.x % ROUTED_LANES;
    const uint32_t row_group = block.x % row_groups, part = block.x / row_groups;
    const uint32_t i0 = (row_group * (ROUTED_LANES / wide) + lane / wide) * R;
    const uint32_t column = block.y * wide + lane % wide;
    const lk_cuda_leaves all = lk_cuda_part_leaves(terms, part);
    const uint32_t each = terms.part_leaves / ROUTED_WARPS, count = all.end - all.first;
    const lk_cuda_leaves mine = {all.first + LK_MIN(warp * each, count),
                                 all.first + LK_MIN((warp + 1) * each, count)};
    lk_cuda_chains<routed_tile<R>> sums;
    if (mine.first < mine.end && i0 < job.rows && column < job.columns) {
        routed_node<R>(job, terms, i0, column, mine, &sums);
#pragma unroll
        for (int r = 0; r < R; r++) {
            lk_cuda_shared[(r * ROUTED_WARPS + warp) * ROUTED_LANES + lane] = sums.chain[r][0];
        }
    }
    __syncthreads();
    // Warp r has row r of the block.
    if (warp >= R || i0 + warp >= job.rows || column >= job.columns) return;
    const float *nodes = lk_cuda_shared + warp * ROUTED_WARPS * ROUTED_LANES + lane;
    const float sum = lk_cuda_join_eight(nodes, ROUTED_LANES, (count + each - 1) / each);
    if (terms.parts == 1)
        job.store(i0 + warp, column, &sum);
    else
        scratch[((uint64_t)part * job.rows + i0 + warp) * job.columns + column] = sum;
}

#endif
