// sums_launches.h - the kernels of sums.h as launches: how a sum is cut into leaves, parts and
// tiles. CUDA C++, included by dense.cu, conv.cu and sequence.cu.
#ifndef LOCKSTEP_OPS_CUDA_SUMS_LAUNCHES_H
#define LOCKSTEP_OPS_CUDA_SUMS_LAUNCHES_H

#include "ops/cuda/sums.h"

// --- kernels -------------------------------------------------------------------------------------

// Blocks that shall fit on a multiprocessor, where a block is large; 0: as the compiler likes. The
// registers for it are there without spilling any (tests/cuda/resources.json).
template <typename Tile>
static constexpr int lk_cuda_resident(void) {
    return Tile::threads >= LK_CUDA_THREADS ? 2 : 0;
}

template <typename Tile, typename Job>
static __global__ void __launch_bounds__(Tile::threads, lk_cuda_resident<Tile>())
    lk_cuda_sums(lk_cuda_state *state, uint32_t op, Job job, lk_cuda_terms terms,
                 uint32_t row_tiles, float *__restrict__ scratch) {
    lk_cuda_begin();
    lk_cuda_sums_body<Tile>(lk_cuda_here(), state, op, job, terms, row_tiles, scratch);
}

static __global__ void __launch_bounds__(LK_CUDA_JOIN_THREADS)
    lk_cuda_join_grains(lk_cuda_terms terms, uint64_t outputs, uint32_t workers_log,
                        float *scratch) {
    lk_cuda_begin();
    lk_cuda_join_grains_body(lk_cuda_here(), terms, outputs, workers_log, scratch);
}

template <typename Job>
static __global__ void __launch_bounds__(LK_CUDA_JOIN_THREADS)
    lk_cuda_join(lk_cuda_state *state, uint32_t op, Job job, lk_cuda_join_shape how,
                 const float *__restrict__ scratch) {
    lk_cuda_begin();
    lk_cuda_join_body(lk_cuda_here(), state, op, job, how, scratch);
}

// --- terms, leaves, parts ------------------------------------------------------------------------

static inline lk_cuda_terms lk_cuda_terms_of(uint32_t example_terms, uint32_t grain,
                                             uint32_t examples) {
    lk_cuda_terms t = {example_terms, grain, examples, 0, 0, 0, 0, 1, 0, 0};
    uint32_t last = examples - (examples - 1) / grain * grain;
    t.slice_examples = LK_SLICE_TERMS / example_terms;
    t.example_slices = (example_terms + LK_SLICE_TERMS - 1) / LK_SLICE_TERMS;
    if (t.slice_examples > 0) {
        t.grain_leaves = (grain + t.slice_examples - 1) / t.slice_examples;
        t.leaves = (last + t.slice_examples - 1) / t.slice_examples;
    } else {
        t.grain_leaves = grain * t.example_slices;
        t.leaves = last * t.example_slices;
    }
    t.leaves += (examples - 1) / grain * t.grain_leaves;
    return t;
}

// The tree over slices of a grain and then over grains is one tree over all slices if no grain but
// the last is filled up with nothing.
static inline bool lk_cuda_one_tree(const lk_cuda_terms &t) {
    return t.examples <= t.grain || (t.grain_leaves & (t.grain_leaves - 1)) == 0;
}

// Otherwise a part stays within its grain.
static inline void lk_cuda_terms_cut(lk_cuda_terms *t, uint32_t part_leaves) {
    const uint32_t grains = (t->examples - 1) / t->grain + 1;
    const uint32_t whole = (grains - 1) * t->grain_leaves;
    const bool one_tree = lk_cuda_one_tree(*t);
    t->part_leaves = part_leaves;
    t->grain_parts = one_tree ? 0 : (t->grain_leaves + part_leaves - 1) / part_leaves;
    t->parts = one_tree ? (t->leaves + part_leaves - 1) / part_leaves
                        : (grains - 1) * t->grain_parts +
                              (t->leaves - whole + part_leaves - 1) / part_leaves;
}

// --- launches ------------------------------------------------------------------------------------

typedef enum lk_cuda_tile_kind {
    LK_CUDA_SMALL,
    LK_CUDA_NARROW,
    LK_CUDA_LARGE,
    LK_CUDA_HUGE,
} lk_cuda_tile_kind;

typedef struct lk_cuda_cut {
    lk_cuda_tile_kind tile;
    lk_cuda_terms terms;
} lk_cuda_cut;

static inline uint64_t lk_cuda_tiles(uint64_t rows, uint64_t columns, uint32_t tile_rows,
                                     uint32_t tile_columns) {
    return (rows + tile_rows - 1) / tile_rows * ((columns + tile_columns - 1) / tile_columns);
}

// The tile that computes the fewest outputs for nothing, by its price: a small one reads its
// operands more often for each product. `grouped`: four rows must be one thread's.
static inline lk_cuda_tile_kind lk_cuda_cheapest_tile(uint64_t rows, uint64_t columns,
                                                      bool grouped) {
    const uint64_t large = lk_cuda_tiles(rows, columns, 64, 64) * 64 * 64 * 4;
    const uint64_t narrow = lk_cuda_tiles(rows, columns, 64, 16) * 64 * 16 * 5;
    const uint64_t small = lk_cuda_tiles(rows, columns, 16, 16) * 16 * 16 * 8;
    if (!grouped && small < LK_MIN(narrow, large)) return LK_CUDA_SMALL;
    return narrow < large ? LK_CUDA_NARROW : LK_CUDA_LARGE;
}

// Which tile, and how many leaves a part has: the most that leave enough blocks.
static inline lk_cuda_cut lk_cuda_cut_sums(uint64_t rows, uint64_t columns, lk_cuda_terms terms,
                                           bool grouped) {
    static const uint32_t sides[][2] = {{16, 16}, {64, 16}, {64, 64}, {128, 64}};  // of the kinds
    lk_cuda_cut cut = {lk_cuda_cheapest_tile(rows, columns, grouped), terms};
    const uint64_t wanted = lk_cuda_blocks_wanted, large = lk_cuda_tiles(rows, columns, 64, 64);
    uint32_t part_leaves =
        1u << (cut.tile == LK_CUDA_LARGE ? lk_cuda_large::levels : lk_cuda_small::levels);
    if (lk_cuda_tiles(rows, columns, 128, 64) >= wanted && columns > 32 &&
        terms.leaves <= terms.example_slices) {
        cut.tile = LK_CUDA_HUGE;
        part_leaves = 1u << lk_cuda_huge::levels;
    } else if (large * terms.leaves < wanted) {
        cut.tile = grouped ? LK_CUDA_NARROW : LK_CUDA_SMALL;
        part_leaves = 1u << lk_cuda_small::levels;
    }
    const uint64_t tiles = lk_cuda_tiles(rows, columns, sides[cut.tile][0], sides[cut.tile][1]);
    while (part_leaves > 1 && tiles * (terms.leaves / part_leaves) < wanted) part_leaves /= 2;
    lk_cuda_terms_cut(&cut.terms, part_leaves);
    return cut;
}

// The persistent kernel has two kinds of tiles. Its blocks are few, so small ones are for where
// these have no more than one each. Parts are cut as for the others.
static inline lk_cuda_tile_kind lk_cuda_task_tile(uint64_t rows, uint64_t columns,
                                                  const lk_cuda_cut &cut, bool grouped) {
    const uint64_t tiles = lk_cuda_tiles(rows, columns, 16, 16) * cut.terms.parts;
    return grouped || tiles > lk_cuda_blocks_wanted ? LK_CUDA_NARROW : LK_CUDA_SMALL;
}

// The floats of all parts.
static inline uint64_t lk_cuda_scratch_of(uint64_t rows, uint64_t columns, uint32_t example_terms,
                                          uint32_t grain, uint32_t examples, bool grouped) {
    const lk_cuda_terms terms = lk_cuda_terms_of(example_terms, grain, examples);
    const lk_cuda_cut cut = lk_cuda_cut_sums(rows, columns, terms, grouped);
    return cut.terms.parts > 1 ? cut.terms.parts * rows * columns : 0;
}

// Terms of the longest leaf.
static inline uint64_t lk_cuda_leaf_terms(const lk_cuda_terms &t) {
    if (t.slice_examples == 0) return LK_MIN(t.example_terms, (uint32_t)LK_SLICE_TERMS);
    return (uint64_t)LK_MIN(LK_MIN(t.slice_examples, t.grain), t.examples) * t.example_terms;
}

// Adds the work of the tiles of rows x columns sums of `terms` terms each, of which a thread adds
// `chain` one after another. Every block fetches its rows and its columns, term by term, and
// multiplies whole tiles.
template <typename Tile>
static inline void lk_cuda_add_work(lk_cuda_work *work, uint64_t rows, uint64_t columns,
                                    uint64_t terms, uint64_t chain, uint32_t parts) {
    const uint64_t row_tiles = (rows + Tile::rows - 1) / Tile::rows;
    const uint64_t column_tiles = (columns + Tile::columns - 1) / Tile::columns;
    const uint64_t threads = (rows + Tile::r - 1) / Tile::r * ((columns + Tile::c - 1) / Tile::c);
    const uint64_t fetched = (rows * column_tiles + columns * row_tiles) * terms;
    work->items += threads * parts;
    work->steps = LK_MAX(work->steps, chain);
    work->fma += row_tiles * Tile::rows * column_tiles * Tile::columns * terms;
    work->bytes += (fetched + rows * columns * parts) * sizeof(float);
}

template <typename Tile, typename Job>
static inline lk_cuda_work lk_cuda_tiles_work(const Job &job, const lk_cuda_terms &t) {
    lk_cuda_work work = {};
    if constexpr (Job::by_phase) {
        for (uint32_t n = 0; n < job.phases(); n++) {
            const auto phase = job.phase_of(n);
            const uint64_t terms = job.terms_before(phase, t.example_terms);
            lk_cuda_add_work<Tile>(&work, phase.rows, job.columns, terms,
                                   job.longest_part(phase, t), t.parts);
        }
    } else {
        const uint64_t terms = (uint64_t)t.examples * t.example_terms;
        const uint64_t longest = LK_MIN(t.part_leaves * lk_cuda_leaf_terms(t), terms);
        lk_cuda_add_work<Tile>(&work, job.rows, job.columns, terms, longest, t.parts);
    }
    return work;
}

// What the sums of a job touch, and what joins their parts.
template <typename Job>
static inline lk_cuda_spans lk_cuda_spans_of(const lk_cuda_stream *s, const Job &job,
                                             const lk_cuda_terms &terms) {
    const uint64_t parts = terms.parts > 1 ? terms.parts : 0;
    lk_cuda_spans spans = {};
    if (Job::body == LK_CUDA_BODY_NONE) return spans;
    job.touches(terms, &spans);
    if (parts) lk_cuda_writes(&spans, s->scratch, parts * job.rows * job.columns);
    return spans;
}

template <typename Tile, typename Job>
static inline void lk_cuda_launch_tiles(lk_cuda_stream *s, Job job, const lk_cuda_terms &terms) {
    uint32_t row_tiles = (job.rows + Tile::rows - 1) / Tile::rows;
    if constexpr (Job::by_phase) {
        job.tiles = lk_cuda_divide_by((job.phase_rows() + Tile::rows - 1) / Tile::rows);
        row_tiles = job.phases() * job.tiles.by;
    }
    const uint32_t column_tiles = (job.columns + Tile::columns - 1) / Tile::columns;
    const lk_cuda_grid grid = {dim3(row_tiles * terms.parts, column_tiles),
                               lk_cuda_tiles_work<Tile>(job, terms), lk_cuda_ahead<Tile, Job>()};
    const uint32_t body = Job::body + (Tile::rows == lk_cuda_small::rows ? 0 : 1);
    lk_cuda_launch_body(s, Job::body == LK_CUDA_BODY_NONE ? Job::body : (lk_cuda_body)body,
                        lk_cuda_spans_of(s, job, terms), lk_cuda_sums<Tile, Job>, grid,
                        Tile::threads, lk_cuda_sums_shared<Tile, Job>(), s->state, s->op, job,
                        terms, row_tiles, s->scratch);
}

// Blocks that join `count` values for each of `outputs`, `group` of them by the same threads; in
// `grains` rows of blocks.
static inline lk_cuda_grid lk_cuda_join_blocks(uint64_t outputs, uint32_t count, uint32_t group,
                                               uint32_t grains) {
    const uint32_t workers_log = lk_cuda_join_workers_log(count);
    const uint32_t run = 1u << lk_cuda_join_run_log(count, workers_log);
    const uint64_t threads = outputs << workers_log;
    const uint64_t blocks = (threads + LK_CUDA_JOIN_THREADS - 1) / LK_CUDA_JOIN_THREADS;
    return {dim3((uint32_t)blocks, grains),
            {outputs * ((count + run - 1) / run) * grains, (uint64_t)group * run, 0,
             outputs * group * ((uint64_t)count + 1) * grains * sizeof(float)}};
}

// Where there are parts, joins them, or leaves them to who asks for them.
template <typename Job>
static inline void lk_cuda_join_parts(lk_cuda_stream *s, const Job &job,
                                      const lk_cuda_terms &terms) {
    if (terms.parts == 1) return;
    const uint64_t outputs = (uint64_t)job.rows * job.columns;
    const uint32_t threads = LK_CUDA_JOIN_THREADS;
    const uint32_t step = LK_MAX(terms.grain_parts, 1u), last = (terms.parts + step - 1) / step;
    if (terms.grain_parts > 1) {
        lk_cuda_spans spans = {};
        lk_cuda_writes(&spans, s->scratch, terms.parts * outputs);
        lk_cuda_launch_body(s, LK_CUDA_BODY_JOIN_GRAINS, spans, lk_cuda_join_grains,
                            lk_cuda_join_blocks(outputs, step, 1, last), threads, threads, terms,
                            outputs, lk_cuda_join_workers_log(step), s->scratch);
    }
    if (s->left) {
        *s->left = (lk_cuda_parts){s->scratch, step * outputs, terms.parts * outputs, last, 0};
        return;
    }
    const lk_cuda_join_shape how = {lk_cuda_divide_by(job.columns), last, step,
                                 lk_cuda_join_workers_log(last)};
    lk_cuda_launch_body(s, Job::join, lk_cuda_spans_of(s, job, terms), lk_cuda_join<Job>,
                        lk_cuda_join_blocks(outputs / Job::group, last, Job::group, 1), threads,
                        threads, s->state, s->op, job, how, s->scratch);
}

// All that a job needs: its tiles, and joining their parts.
template <typename Job>
static inline void lk_cuda_run(lk_cuda_stream *s, const Job &job, uint32_t example_terms,
                               uint32_t grain, uint32_t examples) {
    if (job.rows == 0 || job.columns == 0) return;
    lk_cuda_cut cut = lk_cuda_cut_sums(
        job.rows, job.columns, lk_cuda_terms_of(example_terms, grain, examples), Job::group > 1);
    if (s->tasks) cut.tile = lk_cuda_task_tile(job.rows, job.columns, cut, Job::group > 1);
    const lk_cuda_terms &terms = cut.terms;
    switch (cut.tile) {
    case LK_CUDA_SMALL:
        if constexpr (Job::group == 1) lk_cuda_launch_tiles<lk_cuda_small>(s, job, terms);
        break;
    case LK_CUDA_NARROW: lk_cuda_launch_tiles<lk_cuda_narrow>(s, job, terms); break;
    case LK_CUDA_LARGE: lk_cuda_launch_tiles<lk_cuda_large>(s, job, terms); break;
    case LK_CUDA_HUGE: lk_cuda_launch_tiles<lk_cuda_huge>(s, job, terms); break;
    }
    if constexpr (Job::by_phase)
        lk_cuda_join_parts<typename Job::all>(s, job, terms);
    else
        lk_cuda_join_parts(s, job, terms);
}

template <typename Job>
static inline int lk_cuda_prepare_job(void) {
    int error = lk_cuda_prepare_kernels(lk_cuda_sums<lk_cuda_narrow, Job>,
                                        lk_cuda_sums<lk_cuda_large, Job>,
                                        lk_cuda_sums<lk_cuda_huge, Job>);
    if constexpr (Job::group == 1) {
        if (!error) error = lk_cuda_prepare_kernels(lk_cuda_sums<lk_cuda_small, Job>);
    }
    if constexpr (!Job::by_phase) {
        if (!error) error = lk_cuda_prepare_kernels(lk_cuda_join<Job>);
    }
    return error;
}

#endif
