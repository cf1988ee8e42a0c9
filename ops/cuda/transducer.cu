// transducer.cu - what an RNN transducer has beside recurrent layers (ops/layers/transducer.c and
// decode.c): the embedding of its labels, the cells of its joint, the loss, decoding. Products of
// cells are those of dense layers (transducer.c beside this file).
#include "ops/cuda/device.h"
#include "ops/cuda/transducer.h"
#include "ops/layers/rounded.h"
#include "ops/math.h"

// --- label_embedding -----------------------------------------------------------------------------

// The label that row `at` of all examples' embeddings stands for; LK_NONE: there is none. Behind an
// example's last label are zeros alone (io/idx.h).
static inline __device__ uint32_t label_at(const lk_cuda_divisor &columns, const uint32_t *labels,
                                           uint32_t at) {
    const bool first = lk_cuda_quotient(at, columns) * columns.by == at;
    if (first) return LK_BLANK;
    return labels[at] == LK_BLANK ? LK_NONE : labels[at];
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    embed(lk_cuda_state *state, uint32_t op, uint32_t classes, lk_cuda_divisor units,
          lk_cuda_divisor columns, uint32_t count, const uint32_t *labels, const float *w,
          float *y) {
    lk_cuda_begin();
    bool bad = false;
    LK_CUDA_EACH(i, count) {
        const uint32_t row = lk_cuda_quotient((uint32_t)i, units);
        const uint32_t k = (uint32_t)i - row * units.by, id = label_at(columns, labels, row);
        const bool there = id < classes;
        y[i] = there ? w[(uint64_t)id * units.by + k] : 0.0f;
        bad |= !there && id != LK_NONE;
    }
    lk_cuda_report(state, op, bad);
}

void lk_cuda_label_embedding(lk_cuda_stream *s, const lk_joint *j, uint32_t m_count,
                             const uint32_t *labels, const float *w, float *y) {
    const uint32_t units = j->dense.n_count, columns = j->labels + 1;
    const uint64_t floats = (uint64_t)columns * units;
    lk_cuda_in_parts(s, m_count, floats, [&](uint64_t first, uint32_t some) {
        lk_cuda_launch(s, embed, lk_cuda_blocks(some * floats), LK_CUDA_THREADS, 0, s->state, s->op,
                       j->dense.k_count, lk_cuda_divide_by(units), lk_cuda_divide_by(columns),
                       (uint32_t)(some * floats), labels + first * columns, w, y + first * floats);
    });
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    find_labels(lk_cuda_divisor columns, uint32_t rows, const uint32_t *labels, uint32_t *ids) {
    lk_cuda_begin();
    LK_CUDA_EACH(i, rows) ids[i] = label_at(columns, labels, (uint32_t)i);
}

void lk_cuda_label_embedding_gradient(lk_cuda_stream *s, const lk_joint *j,
                                      const lk_cuda_grains *g, const uint32_t *labels, float *dw) {
    const uint32_t columns = j->labels + 1;
    const uint32_t rows = lk_cuda_rows_of(s, (uint64_t)g->examples * columns);
    const lk_cuda_grains all = {nullptr, g->dy, nullptr, g->grain * columns, rows};
    uint32_t *ids = (uint32_t *)(void *)s->scratch;
    lk_cuda_launch(s, find_labels, lk_cuda_blocks(rows), LK_CUDA_THREADS, 0,
                   lk_cuda_divide_by(columns), rows, labels, ids);
    lk_cuda_label_sums(s, j->dense.k_count, j->dense.n_count, &all, ids, dw);
}

// --- cells of a joint ----------------------------------------------------------------------------

// A cell, by its number in the microbatch.
struct cell {
    uint32_t m, t, u;
    uint32_t label;  // y[u + 1]; the blank: there is none
    bool there;      // t < T and u <= U
};

// What takes the number of a cell apart: fewer than 2^30 (ops/layers/transducer.c).
struct cell_numbers {
    lk_cuda_divisor cells, columns;
};

static inline cell_numbers cell_numbers_of(const lk_joint *j) {
    return {lk_cuda_divide_by(lk_joint_cells(j)), lk_cuda_divide_by(j->labels + 1)};
}

// Behind an example's last label are zeros alone (io/idx.h). t < T without the quotient that T is.
static inline __device__ cell cell_of(const lk_joint &j, const cell_numbers &n,
                                      const uint32_t *labels, uint32_t number) {
    const uint32_t m = lk_cuda_quotient(number, n.cells), at = number - m * n.cells.by;
    const uint32_t t = lk_cuda_quotient(at, n.columns), u = at - t * n.columns.by;
    const uint32_t *row = labels + (uint64_t)m * n.columns.by;
    const bool said = (uint64_t)t * j.frames_said < (uint64_t)row[0] * j.frames;
    return {m, t, u, u < j.labels ? row[1 + u] : (uint32_t)LK_BLANK,
            said && (u == 0 || row[u] != LK_BLANK)};
}

// Calls launch(cells, row) for the cells of a tile, of which each has `values`: as many at once as
// lk_cuda_in_parts says, from row `row` of the tile on.
template <typename Launch>
static inline void cells_in_parts(lk_cuda_stream *s, const lk_cuda_cells *c, uint32_t values,
                                  Launch launch) {
    lk_cuda_in_parts(s, c->count, values, [&](uint64_t first, uint32_t some) {
        lk_cuda_cells part = *c;
        part.first += (uint32_t)first;
        part.count = some;
        launch(part, first);
    });
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    find_states(lk_joint j, cell_numbers numbers, lk_cuda_divisor values, lk_cuda_cells c,
                float *h) {
    lk_cuda_begin();
    LK_CUDA_EACH(i, c.count * values.by) {
        const uint32_t own = lk_cuda_quotient((uint32_t)i, values);
        const cell at = cell_of(j, numbers, c.labels, c.first + own);
        const uint32_t k = (uint32_t)i - own * values.by;
        const float *x = c.x + ((uint64_t)at.m * j.frames + at.t) * values.by;
        const float *x2 = c.x2 + ((uint64_t)at.m * numbers.columns.by + at.u) * values.by;
        h[i] = at.there ? lk_rounded(c.dtype, lk_tanhf(x[k] + x2[k])) : 0.0f;
    }
}

void lk_cuda_joint_states(lk_cuda_stream *s, const lk_joint *j, const lk_cuda_cells *c, float *h) {
    const uint64_t values = j->dense.k_count;
    cells_in_parts(s, c, j->dense.k_count, [&](const lk_cuda_cells &part, uint64_t row) {
        lk_cuda_launch(s, find_states, lk_cuda_blocks(part.count * values), LK_CUDA_THREADS, 0, *j,
                       cell_numbers_of(j), lk_cuda_divide_by(j->dense.k_count), part,
                       h + row * values);
    });
}

// The finished sum of the exponentials of z less its greatest.
static inline __device__ float sum_of_exponentials(uint32_t count, const float *z, float top) {
    lk_cuda_tree tree;
    float chain = 0.0f;
    tree.leaves = 0;
    for (uint32_t n = 0; n < count; n++) {
        if (n > 0 && n % LK_SLICE_TERMS == 0) {
            lk_cuda_tree_leaf(&tree, chain);
            chain = 0.0f;
        }
        chain = chain + lk_expf(z[n] - top);
    }
    lk_cuda_tree_leaf(&tree, chain);
    return lk_cuda_tree_finish(&tree) + 0.0f;
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    find_outputs(lk_cuda_state *state, uint32_t op, lk_joint j, cell_numbers numbers,
                 lk_cuda_cells c, const float *from, float *kept, float *y) {
    lk_cuda_begin();
    const uint32_t symbols = j.dense.n_count;
    bool bad = false;
    LK_CUDA_EACH(i, c.count) {
        const cell at = cell_of(j, numbers, c.labels, c.first + (uint32_t)i);
        const float *z = from + i * symbols;
        float top = z[0], share = 0.0f, blank = 0.0f, label = 0.0f;
        if (at.there && at.label < symbols) {
            for (uint32_t n = 1; n < symbols; n++) top = z[n] > top ? z[n] : top;
            const float sum = sum_of_exponentials(symbols, z, top), size = lk_logf(sum);
            share = 1.0f / sum;
            blank = z[LK_BLANK] - top - size + 0.0f;
            if (at.label != LK_BLANK) label = z[at.label] - top - size + 0.0f;
        }
        bad |= at.there && at.label >= symbols;
        bad |= lk_cuda_not_finite(blank) || lk_cuda_not_finite(label);
        kept[(c.first + i) * LK_JOINT_KEPT + LK_JOINT_TOP] = at.there ? top : 0.0f;
        kept[(c.first + i) * LK_JOINT_KEPT + LK_JOINT_SHARE] = share;
        y[(c.first + i) * LK_JOINT_OUT + LK_JOINT_BLANK] = blank;
        y[(c.first + i) * LK_JOINT_OUT + LK_JOINT_LABEL] = label;
    }
    lk_cuda_report(state, op, bad);
}

void lk_cuda_joint_outputs(lk_cuda_stream *s, const lk_joint *j, const lk_cuda_cells *c,
                           const float *z, float *kept, float *y) {
    const uint64_t symbols = j->dense.n_count, bytes = 2 * symbols * c->count * sizeof *z;
    lk_cuda_launch(s, find_outputs, lk_cuda_blocks(c->count, 2 * symbols, bytes), LK_CUDA_THREADS,
                   0, s->state, s->op, *j, cell_numbers_of(j), *c, z, kept, y);
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    find_slopes(lk_cuda_state *state, uint32_t op, lk_joint j, cell_numbers numbers,
                lk_cuda_divisor symbols, lk_cuda_cells c, bool says, const float *kept,
                const float *dy, float *z) {
    lk_cuda_begin();
    bool bad = false;
    LK_CUDA_EACH(i, c.count * symbols.by) {
        const uint32_t row = lk_cuda_quotient((uint32_t)i, symbols);
        const uint32_t n = (uint32_t)i - row * symbols.by, number = c.first + row;
        const cell at = cell_of(j, numbers, c.labels, number);
        const float *own = kept + (uint64_t)number * LK_JOINT_KEPT;
        const float *d = dy + (uint64_t)number * LK_JOINT_OUT;
        const float blank = d[LK_JOINT_BLANK], label = d[LK_JOINT_LABEL];
        const float p = lk_expf(z[i] - own[LK_JOINT_TOP]) * own[LK_JOINT_SHARE];
        const float mine = n == LK_BLANK ? blank : n == at.label ? label : 0.0f;
        const float slope = lk_rounded(c.dtype, lk_fmaf(-p, blank + label, mine));
        const float dz = at.there ? slope : 0.0f;
        z[i] = dz;
        bad |= says && lk_cuda_not_finite(dz);
    }
    lk_cuda_report(state, op, bad);
}

void lk_cuda_joint_slopes(lk_cuda_stream *s, const lk_joint *j, const lk_cuda_cells *c, bool says,
                          const float *kept, const float *dy, float *z) {
    const uint64_t symbols = j->dense.n_count;
    cells_in_parts(s, c, j->dense.n_count, [&](const lk_cuda_cells &part, uint64_t row) {
        lk_cuda_launch(s, find_slopes, lk_cuda_blocks(part.count * symbols), LK_CUDA_THREADS, 0,
                       s->state, s->op, *j, cell_numbers_of(j),
                       lk_cuda_divide_by(j->dense.n_count), part, says, kept, dy,
                       z + row * symbols);
    });
}

// Adds cells begin, begin + step, .. end - 1, which lie in c, to a sum under way.
static inline __device__ float add_cells(const lk_cuda_cells &c, uint32_t values, uint32_t begin,
                                         uint32_t step, uint32_t end, uint32_t k, const float *h,
                                         const float *dh, float sum) {
    for (uint32_t number = begin; number < end; number += step) {
        const uint64_t at = (uint64_t)(number - c.first) * values + k;
        sum = sum + dh[at] * lk_fmaf(-h[at], h[at], 1.0f);
    }
    return sum;
}

// Rows [first_row, ..) of an input, `count` values: those that cells of c are of.
struct input_rows {
    lk_cuda_divisor values;
    uint32_t first_row, count;
};

// Row r of the first input: its cells lie beside each other.
static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    add_to_frames(lk_cuda_state *state, uint32_t op, uint32_t columns, lk_cuda_cells c,
                  input_rows rows, const float *h, const float *dh, float *dx) {
    lk_cuda_begin();
    const uint32_t values = rows.values.by, last = c.first + c.count;
    bool bad = false;
    LK_CUDA_EACH(i, rows.count) {
        const uint32_t own = lk_cuda_quotient((uint32_t)i, rows.values), r = rows.first_row + own;
        const uint32_t begin = LK_MAX(r * columns, c.first), end = LK_MIN((r + 1) * columns, last);
        float *to = dx + (uint64_t)rows.first_row * values + i;
        *to = add_cells(c, values, begin, 1, end, (uint32_t)i - own * values, h, dh, *to);
        bad |= lk_cuda_not_finite(*to);
    }
    lk_cuda_report(state, op, bad);
}

// Row r of the second input: one cell of each frame.
static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    add_to_labels(lk_cuda_state *state, uint32_t op, cell_numbers numbers, lk_cuda_cells c,
                  input_rows rows, const float *h, const float *dh, float *dx2) {
    lk_cuda_begin();
    const uint32_t values = rows.values.by, columns = numbers.columns.by;
    const uint32_t last = c.first + c.count;
    bool bad = false;
    LK_CUDA_EACH(i, rows.count) {
        const uint32_t own = lk_cuda_quotient((uint32_t)i, rows.values), r = rows.first_row + own;
        const uint32_t m = lk_cuda_quotient(r, numbers.columns);
        uint32_t begin = m * numbers.cells.by + r - m * columns;
        const uint32_t end = LK_MIN((m + 1) * numbers.cells.by, last);
        if (begin < c.first) {
            begin += lk_cuda_quotient(c.first - begin + columns - 1, numbers.columns) * columns;
        }
        float *to = dx2 + (uint64_t)rows.first_row * values + i;
        *to = add_cells(c, values, begin, columns, end, (uint32_t)i - own * values, h, dh, *to);
        bad |= lk_cuda_not_finite(*to);
    }
    lk_cuda_report(state, op, bad);
}

// Calls launch(rows) for `count` rows, as many at once as lk_cuda_in_parts says.
template <typename Launch>
static inline void rows_in_parts(lk_cuda_stream *s, uint32_t values, uint64_t first_row,
                                 uint64_t count, Launch launch) {
    lk_cuda_in_parts(s, (uint32_t)count, values, [&](uint64_t first, uint32_t some) {
        launch(input_rows{lk_cuda_divide_by(values), (uint32_t)(first_row + first), some * values});
    });
}

void lk_cuda_joint_add(lk_cuda_stream *s, const lk_joint *j, const lk_cuda_cells *c,
                       const float *h, const float *dh, float *dx, float *dx2) {
    const uint64_t columns = j->labels + 1, cells = lk_joint_cells(j), values = j->dense.k_count;
    const uint64_t last = (uint64_t)c->first + c->count - 1;
    const uint64_t frames = last / columns - c->first / columns + 1;
    const uint64_t labels = (last / cells - c->first / cells + 1) * columns;
    const uint64_t bytes = 2 * c->count * values * sizeof *h;
    const uint64_t times = LK_MIN((uint64_t)j->frames, c->count / columns + 1);
    if (dx) {
        rows_in_parts(s, j->dense.k_count, c->first / columns, frames, [&](const input_rows &r) {
            lk_cuda_launch(s, add_to_frames, lk_cuda_blocks(r.count, columns, bytes),
                           LK_CUDA_THREADS, 0, s->state, s->op, (uint32_t)columns, *c, r, h, dh,
                           dx);
        });
    }
    if (dx2) {
        rows_in_parts(s, j->dense.k_count, c->first / cells * columns, labels,
                      [&](const input_rows &r) {
                          lk_cuda_launch(s, add_to_labels,
                                         lk_cuda_blocks(r.count, times, bytes),
                                         LK_CUDA_THREADS, 0, s->state, s->op, cell_numbers_of(j),
                                         *c, r, h, dh, dx2);
                      });
    }
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    move(uint64_t count, const float *from, float *to) {
    lk_cuda_begin();
    LK_CUDA_EACH(i, count) to[i] = from[i];
}

void lk_cuda_move(lk_cuda_stream *s, uint64_t count, const float *from, float *to) {
    lk_cuda_launch(s, move, lk_cuda_blocks(count), LK_CUDA_THREADS, 0, count, from, to);
}

// --- transducer ----------------------------------------------------------------------------------

// A block has an example, and of it one diagonal of cells after the other, none of which needs
// another of the same.
enum { LATTICE_THREADS = 64 };

struct lattice {
    uint32_t frames, labels, columns;  // T, U; labels of memory plus 1
    const float *y;                    // (frames, columns, 2)
    float *beta, *alpha;               // (frames, columns)
};

static inline __device__ float log_of_both(float a, float b) {
    const float top = a > b ? a : b, low = a > b ? b : a;
    return top + lk_log1pexpf(low - top);
}

static inline __device__ float blank_of(const lattice &a, uint32_t t, uint32_t u) {
    return a.y[((uint64_t)t * a.columns + u) * LK_JOINT_OUT + LK_JOINT_BLANK];
}
static inline __device__ float label_of(const lattice &a, uint32_t t, uint32_t u) {
    return a.y[((uint64_t)t * a.columns + u) * LK_JOINT_OUT + LK_JOINT_LABEL];
}

static inline __device__ void find_beta(const lattice &a, uint32_t t, uint32_t u) {
    float *beta = a.beta + (uint64_t)t * a.columns + u;
    const bool right = t + 1 < a.frames, up = u < a.labels;
    const float r = right ? beta[a.columns] + blank_of(a, t, u) : 0.0f;
    const float p = up ? beta[1] + label_of(a, t, u) : 0.0f;
    *beta = right && up ? log_of_both(r, p) : right ? r : up ? p : blank_of(a, t, u);
}

static inline __device__ void find_alpha(const lattice &a, uint32_t t, uint32_t u) {
    float *alpha = a.alpha + (uint64_t)t * a.columns + u;
    const float left = t ? *(alpha - a.columns) + blank_of(a, t - 1, u) : 0.0f;
    const float below = u ? *(alpha - 1) + label_of(a, t, u - 1) : 0.0f;
    *alpha = t && u ? log_of_both(left, below) : t ? left : below;
}

// Of a cell, which may lie outside of T and U.
static inline __device__ bool find_slope(const lattice &a, uint32_t t, uint32_t u, float loss,
                                         float *dy) {
    const bool there = t < a.frames && u <= a.labels;
    const float *beta = a.beta + (uint64_t)t * a.columns + u;
    const float alpha = there ? a.alpha[(uint64_t)t * a.columns + u] : 0.0f;
    float blank = 0.0f, label = 0.0f;
    if (there && t + 1 < a.frames)
        blank = 0.0f - lk_expf(alpha + blank_of(a, t, u) + beta[a.columns] + loss);
    else if (there && u == a.labels)
        blank = 0.0f - lk_expf(alpha + blank_of(a, t, u) + loss);
    if (there && u < a.labels)
        label = 0.0f - lk_expf(alpha + label_of(a, t, u) + beta[1] + loss);
    dy[LK_JOINT_BLANK] = blank;
    dy[LK_JOINT_LABEL] = label;
    return lk_cuda_not_finite(blank) || lk_cuda_not_finite(label);
}

static __global__ void __launch_bounds__(LATTICE_THREADS)
    sum_lattices(lk_cuda_state *state, uint32_t op, lk_joint j, lk_cuda_divisor columns,
                 const uint32_t *labels, const float *y, float *scratch, float *loss, float *dy) {
    lk_cuda_begin();
    const uint64_t m = blockIdx.x, cells = lk_joint_cells(&j);
    const uint32_t *row = labels + m * columns.by;
    float *beta = scratch + 2 * m * cells;
    const lattice a = {lk_joint_frames(&j, row), lk_joint_labels(&j, row), columns.by,
                       y + m * cells * LK_JOINT_OUT, beta, beta + cells};
    const uint32_t diagonals = a.frames ? a.frames + a.labels : 0;
    for (uint32_t d = diagonals; d-- > 0;) {
        for (uint32_t u = threadIdx.x; u <= LK_MIN(d, a.labels); u += LATTICE_THREADS) {
            if (d - u < a.frames) find_beta(a, d - u, u);
        }
        __syncthreads();
    }
    const float whole = a.frames ? 0.0f - beta[0] : 0.0f;
    bool bad = lk_cuda_not_finite(whole);
    if (threadIdx.x == 0) loss[m] = whole;
    for (uint32_t d = 0; dy && d < diagonals; d++) {
        for (uint32_t u = threadIdx.x; u <= LK_MIN(d, a.labels); u += LATTICE_THREADS) {
            if (d - u < a.frames) find_alpha(a, d - u, u);
        }
        __syncthreads();
    }
    for (uint32_t at = threadIdx.x; dy && at < cells; at += LATTICE_THREADS) {
        float *to = dy + (m * cells + at) * LK_JOINT_OUT;
        const uint32_t t = lk_cuda_quotient(at, columns);
        bad |= find_slope(a, t, at - t * columns.by, whole, to);
    }
    lk_cuda_report(state, op, bad);
}

void lk_cuda_transducer(lk_cuda_stream *s, const lk_joint *j, uint32_t m_count,
                        const uint32_t *labels, const float *y, float *loss, float *dy) {
    const uint64_t cells = lk_joint_cells(j), diagonals = j->frames + j->labels;
    const uint64_t wide = LK_MIN(j->frames, j->labels + 1);
    const lk_cuda_grid grid = {dim3(m_count),
                               {m_count * LK_MIN(wide, (uint64_t)LATTICE_THREADS), 2 * diagonals,
                                0, m_count * cells * 12 * sizeof *y}};
    lk_cuda_launch(s, sum_lattices, grid, LATTICE_THREADS, 0, s->state, s->op, *j,
                   lk_cuda_divide_by(j->labels + 1), labels, y, s->scratch, loss, dy);
}

// --- decoding ------------------------------------------------------------------------------------

// A block has an example, and its threads the scores of a cell.
enum { DECODE_THREADS = 128 };

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    decode_start(lk_cuda_divisor columns, uint32_t m_count, uint32_t count, const uint32_t *labels,
                 uint32_t *said, lk_decoding *states) {
    lk_cuda_begin();
    LK_CUDA_EACH(i, count) {
        const bool first = lk_cuda_quotient((uint32_t)i, columns) * columns.by == i;
        said[i] = first ? labels[i] : 0;
    }
    LK_CUDA_EACH(m, m_count) states[m] = {0, 0, 0, 0};
}

void lk_cuda_decode_start(lk_cuda_stream *s, const lk_joint *j, uint32_t m_count,
                          const uint32_t *labels, uint32_t *said, lk_decoding *states) {
    const uint32_t columns = 1 + j->labels;
    const uint32_t count = lk_cuda_rows_of(s, (uint64_t)m_count * columns);
    lk_cuda_launch(s, decode_start, lk_cuda_blocks(count), LK_CUDA_THREADS, 0,
                   lk_cuda_divide_by(columns), m_count, count, labels, said, states);
}

// Score n of a cell whose states are h.
static inline __device__ float score_of(const lk_dense &d, uint32_t n, const float *h,
                                        const float *w, const float *bias) {
    lk_cuda_tree tree;
    float chain = bias ? bias[n] : 0.0f;
    tree.leaves = 0;
    for (uint32_t k = 0; k < d.k_count; k++) {
        if (k > 0 && k % LK_SLICE_TERMS == 0) {
            lk_cuda_tree_leaf(&tree, chain);
            chain = 0.0f;
        }
        chain = lk_fmaf(h[k], w[(uint64_t)k * d.n_count + n], chain);
    }
    lk_cuda_tree_leaf(&tree, chain);
    return lk_cuda_tree_finish(&tree) + 0.0f;
}

// Until the example says one more label, or is done.
static __global__ void __launch_bounds__(DECODE_THREADS)
    decode(lk_cuda_state *state, uint32_t op, lk_joint j, lk_cuda_cells c, const float *w,
           const float *bias, float *scratch, uint32_t *said, lk_decoding *states) {
    lk_cuda_begin();
    const uint64_t m = blockIdx.x;
    const uint32_t values = j.dense.k_count, symbols = j.dense.n_count, row = 1 + j.labels;
    const uint32_t frames = lk_joint_frames(&j, c.labels + m * row);
    const float *x = c.x + m * j.frames * values, *x2 = c.x2 + m * row * values;
    float *h = scratch + m * ((uint64_t)values + symbols), *z = h + values;
    uint32_t *own = said + m * row;
    uint32_t *symbol = (uint32_t *)(void *)lk_cuda_shared;
    lk_decoding d = states[m];
    bool bad = false;
    if (!lk_decoding_is_on(&j, &d, frames)) return;  // no barrier, so nothing may be written
    d.waits = 0;
    while (!d.waits && lk_decoding_is_on(&j, &d, frames)) {
        for (uint32_t k = threadIdx.x; k < values; k += DECODE_THREADS) {
            const float sum =
                x[(uint64_t)d.frame * values + k] + x2[(uint64_t)d.said * values + k];
            h[k] = lk_rounded(c.dtype, lk_tanhf(sum));
        }
        __syncthreads();
        for (uint32_t n = threadIdx.x; n < symbols; n += DECODE_THREADS) {
            z[n] = score_of(j.dense, n, h, w, bias);
            bad |= lk_cuda_not_finite(z[n]);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            *symbol = lk_decoding_symbol(j.classes, z);
            if (*symbol != LK_BLANK) own[1 + d.said] = *symbol;
        }
        __syncthreads();
        lk_decoding_next(&d, *symbol);
    }
    if (threadIdx.x == 0) states[m] = d;
    lk_cuda_report(state, op, bad);
}

void lk_cuda_decode(lk_cuda_stream *s, const lk_joint *j, uint32_t m_count, const lk_cuda_cells *c,
                    const float *w, const float *bias, uint32_t *said, lk_decoding *states) {
    lk_cuda_launch(s, decode, {dim3(m_count), {m_count * DECODE_THREADS, 1, 0, 0}}, DECODE_THREADS,
                   1, s->state, s->op, *j, *c, w, bias, s->scratch, said, states);
}

// As lk_label_errors.
static inline __device__ uint32_t errors_of(const uint32_t *a, uint32_t a_count, const uint32_t *b,
                                            uint32_t b_count, uint32_t *row) {
    for (uint32_t k = 0; k <= b_count; k++) row[k] = k;
    for (uint32_t i = 1; i <= a_count; i++) {
        uint32_t before = row[0];
        row[0] = i;
        for (uint32_t k = 1; k <= b_count; k++) {
            const uint32_t changed = before + (a[i - 1] != b[k - 1]);
            before = row[k];
            row[k] = LK_MIN(LK_MIN(row[k], row[k - 1]) + 1, changed);
        }
    }
    return row[b_count];
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    count_errors(lk_cuda_state *state, lk_joint j, uint32_t m_count, const uint32_t *labels,
                 const uint32_t *said, uint32_t *scratch) {
    lk_cuda_begin();
    const uint32_t row = 1 + j.labels;
    LK_CUDA_EACH(m, m_count) {
        const uint32_t *want = labels + m * row, *got = said + m * row;
        const uint32_t count = lk_joint_labels(&j, want);
        const uint32_t errors = errors_of(got + 1, lk_joint_labels(&j, got), want + 1, count,
                                          scratch + m * row);
        if (errors == 0) atomicAdd(&state->counts[LK_DECODE_CORRECT], 1u);
        atomicAdd(&state->counts[LK_DECODE_ERRORS], errors);
        atomicAdd(&state->counts[LK_DECODE_LABELS], count);
    }
}

void lk_cuda_decode_count(lk_cuda_stream *s, const lk_joint *j, uint32_t m_count,
                          const uint32_t *labels, const uint32_t *said) {
    const uint64_t row = 1 + j->labels;
    lk_cuda_launch(s, count_errors, lk_cuda_blocks(m_count, row * row), LK_CUDA_THREADS, 0,
                   s->state, *j, m_count, labels, said, (uint32_t *)(void *)s->scratch);
}

int lk_cuda_prepare_transducer(void) {
    return lk_cuda_prepare_kernels(embed, find_labels, find_states, find_outputs, find_slopes,
                                   add_to_frames, add_to_labels, move, sum_lattices, decode_start,
                                   decode, count_errors);
}
