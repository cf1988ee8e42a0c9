// sums.h - the one engine behind dense layers and convolutions: a matrix of sums of products, in
// the arithmetic's order. CUDA C++, included by dense.cu, conv.cu and sequence.cu.
//
//   out[i][j] = tree over leaves of the chain over terms u of a(i, u) * b(u, j)
//
// A "job" says what a and b are, how a chain starts and where a sum is stored; it reads images,
// weights and gradients where they lie, so no operand is ever rearranged in memory. All outputs of
// a job have the same terms: u counts (example, position) pairs, or the terms of one example. A
// leaf is a slice of the arithmetic: a run of terms, cut as ops/ARITHMETIC.md says.
//
// A block computes a tile of outputs for a "part": 2^n leaves that make up a whole node of the
// tree. Every thread keeps a few chains, and the nodes below, in registers. Where a sum has several
// parts they go to scratch and a second kernel joins them: the fewer outputs, the more parts, so
// that small batches fill a GPU too. How sums are spread never changes a bit.
//
// Chunks of a and b are staged in shared memory, in four buffers in turn (three of the huge tile):
// while one is multiplied the next three are under way, so that a trip to memory is paid for once
// in three chunks. A job says where an element lies: a(row, u, &from), b(u, j, &from). It is copied
// from there past the registers (cp.async), and nobody waits for it before its chunk is due; four
// rows (or columns) go at once where they always lie side by side and aligned: a_by_four(),
// b_by_four(). Where a or b returns false the element lies nowhere, and what is stored is
// a_instead(row), as of a row of ones, or 0, as of padding. Of an operand that depends on other
// memory (Job::a_is_value: gradients routed by an argmax) the address would be known a trip later:
// its value, a_value(row, u), goes through registers while a chunk is multiplied.
//
// The outputs of a job may fall into phases (Job::by_phase), each with rows and terms of its own
// (conv_phase.h). A tile has rows of one phase, and its block works with the job's view of that,
// which has rows and the ends of leaves in shared memory.
#ifndef LOCKSTEP_OPS_CUDA_SUMS_H
#define LOCKSTEP_OPS_CUDA_SUMS_H

#include <cuda_pipeline.h>

#include "ops/cuda/join.h"

// --- terms, leaves, parts ------------------------------------------------------------------------

// The terms of a sum and how they are cut. A matrix product has one example of `example_terms`.
typedef struct lk_cuda_terms {
    uint32_t example_terms;    // 1 or more
    uint32_t grain, examples;  // the last grain may be short
    uint32_t slice_examples;   // whole examples of a slice; 0: an example is cut by itself
    uint32_t example_slices;   // .. and these are its slices
    uint32_t grain_leaves;     // leaves of a full grain
    uint32_t leaves;           // of all grains
    uint32_t part_leaves;      // a power of two
    uint32_t grain_parts;      // parts of a full grain; 0: parts are numbered over all grains
    uint32_t parts;            // of all
} lk_cuda_terms;

// The term that follows the last of a leaf; that of leaf - 1 is where the leaf begins.
static inline __device__ uint32_t lk_cuda_leaf_end(const lk_cuda_terms &t, uint32_t leaf) {
    uint32_t grain = leaf / t.grain_leaves, slice = leaf - grain * t.grain_leaves;
    uint32_t first = grain * t.grain;
    if (t.slice_examples > 0) {
        uint32_t end = first + LK_MIN((slice + 1) * t.slice_examples, t.grain);
        return LK_MIN(end, t.examples) * t.example_terms;
    }
    uint32_t example = slice / t.example_slices, piece = slice - example * t.example_slices;
    uint32_t end = LK_MIN((piece + 1) * LK_SLICE_TERMS, t.example_terms);
    return (first + example) * t.example_terms + end;
}

// .. and of a job.
template <typename Job>
static inline __device__ uint32_t lk_cuda_leaf_end_of(const Job &job, const lk_cuda_terms &t,
                                                      uint32_t leaf) {
    if constexpr (Job::by_phase)
        return job.leaf_end(leaf);
    else
        return lk_cuda_leaf_end(t, leaf);
}

typedef struct lk_cuda_leaves {
    uint32_t first, end;
} lk_cuda_leaves;

static inline __device__ lk_cuda_leaves lk_cuda_part_leaves(const lk_cuda_terms &t, uint32_t part) {
    lk_cuda_leaves l = {part * t.part_leaves, t.leaves};
    if (t.grain_parts > 0) {
        uint32_t grain = part / t.grain_parts, within = part - grain * t.grain_parts;
        l.first = grain * t.grain_leaves + within * t.part_leaves;
        l.end = LK_MIN((grain + 1) * t.grain_leaves, t.leaves);
    }
    l.end = LK_MIN(l.first + t.part_leaves, l.end);
    return l;
}

// --- a tile --------------------------------------------------------------------------------------

// Threads side by side that take terms side by side in memory: two sectors.
enum { LK_CUDA_RUN = 16 };
// Buffers of chunks, where a launch has room for them that it need not ask for.
enum { LK_CUDA_STAGES = 4, LK_CUDA_SHARED_FLOATS_MAX = 48 * 1024 / sizeof(float) };

// ROWS x COLUMNS outputs of a block, R x C of them a thread's; 2^LEVELS leaves at most; CHUNK terms
// staged at once. Few chains of a thread are multiplied in a fraction of a trip to memory, so small
// tiles have more terms under way; those of the huge one take longer than a trip.
template <int ROWS, int COLUMNS, int R, int C, int LEVELS, int CHUNK>
struct lk_cuda_tile {
    static constexpr int rows = ROWS, columns = COLUMNS, r = R, c = C, levels = LEVELS;
    static constexpr int chunk = CHUNK, threads = ROWS / R * (COLUMNS / C);
    static constexpr int a_stride = ROWS + 4,
                         b_stride = COLUMNS + 4;  // other banks for other terms
    static constexpr int buffer = CHUNK * (a_stride + b_stride);
    static constexpr int stages = LK_MIN((int)LK_CUDA_STAGES, LK_CUDA_SHARED_FLOATS_MAX / buffer);
    static constexpr int shared = stages * buffer;
    static constexpr int a_loads = ROWS * CHUNK / threads;
    static constexpr int b_loads = COLUMNS * CHUNK / threads;
};

typedef lk_cuda_tile<16, 16, 2, 2, 4, 32> lk_cuda_small;   // for latency
typedef lk_cuda_tile<64, 16, 4, 2, 4, 16> lk_cuda_narrow;  // few columns; four rows a thread
typedef lk_cuda_tile<64, 64, 4, 4, 3, 16> lk_cuda_large;
typedef lk_cuda_tile<128, 64, 8, 4, 1, 16> lk_cuda_huge;  // for long chains

// The first two, by blocks of LK_CUDA_THREADS threads: for the persistent kernel.
typedef lk_cuda_tile<16, 16, 1, 1, 4, 32> lk_cuda_task_small;
typedef lk_cuda_tile<64, 16, 4, 1, 4, 16> lk_cuda_task_narrow;

// Terms that a trip to memory brings.
template <typename Tile, typename Job>
static constexpr int lk_cuda_ahead(void) {
    return (Job::a_is_value ? 1 : Tile::stages - 1) * Tile::chunk;
}

// Element number n of the thread's share of a chunk: which row (or column), which term. Neighbours
// in a warp take what lies side by side in memory.
template <int SIDE, bool TERMS_FIRST, int THREADS>
static inline __device__ void lk_cuda_share(int n, uint32_t *side, uint32_t *term) {
    const uint32_t at = threadIdx.x + (uint32_t)n * THREADS, run = at / (SIDE * LK_CUDA_RUN);
    *side = TERMS_FIRST ? at / LK_CUDA_RUN % SIDE : at % SIDE;
    *term = TERMS_FIRST ? at % LK_CUDA_RUN + run * LK_CUDA_RUN : at / SIDE;
}

// What a thread fetches: of which tile, and its rows of a, looked up once; nobody asks of those
// past the last. Those of a phase are shared.
template <typename Tile, typename Job>
struct lk_cuda_fetch {
    uint32_t i0, j0;
    typename Job::row row[Job::by_phase ? 1 : Tile::a_loads];
};
template <typename Tile, typename Job>
static inline __device__ typename Job::row lk_cuda_row_of(const Job &job,
                                                          const lk_cuda_fetch<Tile, Job> &f, int n,
                                                          uint32_t side) {
    if constexpr (Job::by_phase)
        return job.row_of(f.i0 + side);
    else
        return f.row[n];
}

// Is each fourth of `side` floats, that lie side by side for every term, the first of four that are
// aligned? All threads find the same.
static inline __device__ bool lk_cuda_by_four(const float *rows, uint32_t side) {
    return side % 4 == 0 && reinterpret_cast<uintptr_t>(rows) % sizeof(float4) == 0;
}

// The same by four rows (or columns): number n of the thread's share; false where it has no more.
template <int SIDE, int CHUNK, int THREADS>
static inline __device__ bool lk_cuda_share_four(int n, uint32_t *side, uint32_t *term) {
    const uint32_t at = threadIdx.x + (uint32_t)n * THREADS;
    *side = at % (SIDE / 4) * 4;
    *term = at / (SIDE / 4);
    return SIDE * CHUNK / 4 % THREADS == 0 || at < SIDE * CHUNK / 4;
}

// The thread's share of a chunk of a: copied from where it lies, which goes on until somebody waits
// for it, or through registers.
template <typename Tile, typename Job>
static inline __device__ void lk_cuda_copy_a_four(const Job &job, const lk_cuda_fetch<Tile, Job> &f,
                                                  uint32_t u0, uint32_t left, float *buffer) {
    uint32_t side, term;
#pragma unroll
    for (int n = 0; n < (Tile::a_loads + 3) / 4; n++) {
        if (!lk_cuda_share_four<Tile::rows, Tile::chunk, Tile::threads>(n, &side, &term)) break;
        float *to = buffer + term * Tile::a_stride + side;
        const typename Job::row row = job.row_of(f.i0 + side);
        const bool there = f.i0 + side < job.rows && term < left;
        const float *from;
        if (there && job.a(row, u0 + term, &from)) {
            __pipeline_memcpy_async(to, from, sizeof(float4));
        } else {
            const float v = job.a_instead(row);
            *reinterpret_cast<float4 *>(to) = make_float4(v, v, v, v);
        }
    }
}
template <typename Tile, typename Job>
static inline __device__ void lk_cuda_copy_a(const Job &job, const lk_cuda_fetch<Tile, Job> &f,
                                             uint32_t u0, uint32_t left, float *buffer) {
    uint32_t side, term;
#pragma unroll
    for (int n = 0; n < Tile::a_loads; n++) {
        lk_cuda_share<Tile::rows, Job::a_terms_first, Tile::threads>(n, &side, &term);
        float *to = buffer + term * Tile::a_stride + side;
        const typename Job::row row = lk_cuda_row_of<Tile>(job, f, n, side);
        const bool there = f.i0 + side < job.rows && term < left;
        const float *from;
        if (there && job.a(row, u0 + term, &from))
            __pipeline_memcpy_async(to, from, sizeof *to);
        else
            *to = job.a_instead(row);
    }
}
template <typename Tile, typename Job>
static inline __device__ void lk_cuda_load_a(const Job &job, const lk_cuda_fetch<Tile, Job> &f,
                                             uint32_t u0, uint32_t left, float *values) {
    uint32_t side, term;
#pragma unroll
    for (int n = 0; n < Tile::a_loads; n++) {
        lk_cuda_share<Tile::rows, Job::a_terms_first, Tile::threads>(n, &side, &term);
        const bool there = f.i0 + side < job.rows && term < left;
        values[n] = there ? job.a_value(f.row[n], u0 + term) : 0.0f;
    }
}
template <typename Tile, typename Job>
static inline __device__ void lk_cuda_store_a(const float *values, float *buffer) {
    uint32_t side, term;
#pragma unroll
    for (int n = 0; n < Tile::a_loads; n++) {
        lk_cuda_share<Tile::rows, Job::a_terms_first, Tile::threads>(n, &side, &term);
        buffer[term * Tile::a_stride + side] = values[n];
    }
}

template <typename Tile, typename Job>
static inline __device__ void lk_cuda_copy_b_four(const Job &job, const lk_cuda_fetch<Tile, Job> &f,
                                                  uint32_t u0, uint32_t left, float *buffer) {
    uint32_t side, term;
    buffer += Tile::chunk * Tile::a_stride;
#pragma unroll
    for (int n = 0; n < (Tile::b_loads + 3) / 4; n++) {
        if (!lk_cuda_share_four<Tile::columns, Tile::chunk, Tile::threads>(n, &side, &term)) break;
        float *to = buffer + term * Tile::b_stride + side;
        const bool there = f.j0 + side < job.columns && term < left;
        const float *from;
        if (there && job.b(u0 + term, f.j0 + side, &from))
            __pipeline_memcpy_async(to, from, sizeof(float4));
        else
            *reinterpret_cast<float4 *>(to) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}
template <typename Tile, typename Job>
static inline __device__ void lk_cuda_copy_b(const Job &job, const lk_cuda_fetch<Tile, Job> &f,
                                             uint32_t u0, uint32_t left, float *buffer) {
    uint32_t side, term;
    buffer += Tile::chunk * Tile::a_stride;
#pragma unroll
    for (int n = 0; n < Tile::b_loads; n++) {
        lk_cuda_share<Tile::columns, Job::b_terms_first, Tile::threads>(n, &side, &term);
        float *to = buffer + term * Tile::b_stride + side;
        const bool there = f.j0 + side < job.columns && term < left;
        const float *from;
        if (there && job.b(u0 + term, f.j0 + side, &from))
            __pipeline_memcpy_async(to, from, sizeof *to);
        else
            *to = 0.0f;
    }
}

// N floats that lie side by side, aligned to their size.
template <int N>
static inline __device__ void lk_cuda_take(const float *from, float *to) {
    if (N % 4 == 0) {
#pragma unroll
        for (int n = 0; n < N; n += 4) {
            float4 v = *reinterpret_cast<const float4 *>(from + n);
            to[n] = v.x, to[n + 1] = v.y, to[n + 2] = v.z, to[n + 3] = v.w;
        }
    } else if (N == 1) {
        to[0] = from[0];
    } else {
        float2 v = *reinterpret_cast<const float2 *>(from);
        to[0] = v.x, to[1] = v.y;
    }
}

// The chains of a thread, and the nodes of the leaves before.
template <typename Tile>
struct lk_cuda_chains {
    float chain[Tile::r][Tile::c];
    float node[Tile::levels][Tile::r][Tile::c];
};

template <typename Tile>
static inline __device__ void lk_cuda_term(lk_cuda_chains<Tile> *s, const float *a,
                                           const float *b) {
    float x[Tile::r], w[Tile::c];
    lk_cuda_take<Tile::r>(a, x);
    lk_cuda_take<Tile::c>(b, w);
#pragma unroll
    for (int r = 0; r < Tile::r; r++) {
#pragma unroll
        for (int c = 0; c < Tile::c; c++) s->chain[r][c] = lk_fmaf(x[r], w[c], s->chain[r][c]);
    }
}

// Leaf number `leaf` of the part is done: it joins the nodes to its left that are complete with it.
// The node it became is in `chain`, for the case that it was the last one.
template <typename Tile>
static inline __device__ void lk_cuda_leaf(lk_cuda_chains<Tile> *s, uint32_t leaf) {
#pragma unroll
    for (int level = 0; level < Tile::levels; level++) {
        bool joins = leaf >> level & 1;
#pragma unroll
        for (int r = 0; r < Tile::r; r++) {
#pragma unroll
            for (int c = 0; c < Tile::c; c++) {
                if (joins)
                    s->chain[r][c] = s->node[level][r][c] + s->chain[r][c];
                else
                    s->node[level][r][c] = s->chain[r][c];
            }
        }
        if (!joins) return;
    }
}

// The nodes that are left over are joined from the right.
template <typename Tile>
static inline __device__ void lk_cuda_part_sum(lk_cuda_chains<Tile> *s, uint32_t leaves) {
#pragma unroll
    for (int level = 0; level < Tile::levels; level++) {
        bool held = leaves >> level & 1, last = (leaves & ((2u << level) - 1)) == 1u << level;
        if (!held || last) continue;  // nothing, or what `chain` has already
#pragma unroll
        for (int r = 0; r < Tile::r; r++) {
#pragma unroll
            for (int c = 0; c < Tile::c; c++) {
                s->chain[r][c] = s->node[level][r][c] + s->chain[r][c];
            }
        }
    }
}

// Where a block works: its tile of outputs, its part.
typedef struct lk_cuda_place {
    uint32_t i0, j0, part;
} lk_cuda_place;

// Every chain of the thread begins: the first leaf of all perhaps from a bias.
template <typename Tile, typename Job>
static inline __device__ void lk_cuda_start(const Job &job, uint32_t i, uint32_t j, bool first,
                                            lk_cuda_chains<Tile> *s) {
#pragma unroll
    for (int c = 0; c < Tile::c; c++) {
#pragma unroll
        for (int r = 0; r < Tile::r; r++) {
            const bool starts = first && j + c < job.columns;
            s->chain[r][c] = starts ? job.start(LK_MIN(i + r, job.rows - 1), j + c) : 0.0f;
        }
    }
}

// One chunk: `count` terms from u, of which `leaf` may end anywhere. Of a phase several may end at
// once: it has nothing of them.
template <typename Tile, typename Job>
static inline __device__ void lk_cuda_multiply(const Job &job, const lk_cuda_terms &terms,
                                               lk_cuda_chains<Tile> *s, const float *a,
                                               const float *b, uint32_t u, uint32_t count,
                                               uint32_t first, uint32_t end, uint32_t *leaf,
                                               uint32_t *leaf_end) {
    if (count == Tile::chunk && u + Tile::chunk <= *leaf_end) {
#pragma unroll
        for (int k = 0; k < Tile::chunk; k++) {
            lk_cuda_term(s, a + k * Tile::a_stride, b + k * Tile::b_stride);
        }
        u += Tile::chunk;
        count = 0;
    }
    for (uint32_t k = 0;; k++) {
        if (u + k == *leaf_end) {
            do {
                lk_cuda_leaf(s, *leaf - first);
                if (++*leaf == end) return;
                *leaf_end = lk_cuda_leaf_end_of(job, terms, *leaf);
#pragma unroll
                for (int r = 0; r < Tile::r; r++) {
#pragma unroll
                    for (int c = 0; c < Tile::c; c++) s->chain[r][c] = 0.0f;
                }
            } while (Job::by_phase && u + k == *leaf_end);
        }
        if (k >= count) return;
        lk_cuda_term(s, a + k * Tile::a_stride, b + k * Tile::b_stride);
    }
}

template <typename Tile, typename Job>
static inline __device__ lk_cuda_fetch<Tile, Job> lk_cuda_fetch_of(const Job &job,
                                                                   const lk_cuda_place &at) {
    lk_cuda_fetch<Tile, Job> f;
    f.i0 = at.i0, f.j0 = at.j0;
    if constexpr (!Job::by_phase) {
#pragma unroll
        for (int n = 0; n < Tile::a_loads; n++) {
            uint32_t side, term;
            lk_cuda_share<Tile::rows, Job::a_terms_first, Tile::threads>(n, &side, &term);
            f.row[n] = job.row_of(at.i0 + side);
        }
    }
    return f;
}

// The sums of a part, in the thread's chains. In turn n chunk n is fetched, and chunk n - ahead
// multiplied.
template <typename Tile, typename Job>
static inline __device__ void lk_cuda_sum_part(const Job &job, const lk_cuda_terms &terms,
                                               const lk_cuda_place &at, lk_cuda_chains<Tile> *s) {
    constexpr int32_t chunk = Tile::chunk, stages = Tile::stages, ahead = (stages - 1) * chunk;
    const uint32_t ti = threadIdx.x / (Tile::columns / Tile::c) * Tile::r;
    const uint32_t tj = threadIdx.x % (Tile::columns / Tile::c) * Tile::c;
    const lk_cuda_leaves part = lk_cuda_part_leaves(terms, at.part);
    uint32_t leaf = part.first, leaf_end = lk_cuda_leaf_end_of(job, terms, leaf);
    const uint32_t first = leaf == 0 ? 0 : lk_cuda_leaf_end_of(job, terms, leaf - 1);
    const int32_t count = (int32_t)(lk_cuda_leaf_end_of(job, terms, part.end - 1) - first);
    const lk_cuda_fetch<Tile, Job> f = lk_cuda_fetch_of<Tile>(job, at);
    lk_cuda_start<Tile>(job, at.i0 + ti, at.j0 + tj, leaf == 0, s);
    if constexpr (Job::by_phase) {
        if (count == 0) return;  // it has nothing of the part: the sum is what chains begin with
    }
    float *to = lk_cuda_shared;
    for (int32_t at_term = -ahead;; at_term += chunk) {
        const uint32_t u = first + (uint32_t)at_term, next = u + ahead;
        const int32_t left = count - at_term;
        const bool due = at_term >= 0, more = left > ahead;
        float *const last = lk_cuda_shared + (stages - 1) * Tile::buffer;
        float *const oldest = to == last ? lk_cuda_shared : to + Tile::buffer;
        // Behind the one barrier of a turn the copies of this chunk have come, everybody's, and
        // everybody is done with the chunk before, whose buffer is filled next.
        if (due) {
            __pipeline_wait_prior(stages - 2);
            __syncthreads();
        }
        float values[Tile::a_loads];
        if (more) {
            const uint32_t to_come = (uint32_t)(left - ahead);
            if constexpr (Job::a_is_value)
                lk_cuda_load_a(job, f, next, to_come, values);
            else if (job.a_by_four())
                lk_cuda_copy_a_four(job, f, next, to_come, to);
            else
                lk_cuda_copy_a(job, f, next, to_come, to);
            if (job.b_by_four())
                lk_cuda_copy_b_four(job, f, next, to_come, to);
            else
                lk_cuda_copy_b(job, f, next, to_come, to);
        }
        __pipeline_commit();  // one a turn, though it be of nothing: waits count them
        if (due) {
            const float *b = oldest + chunk * Tile::a_stride + tj;
            lk_cuda_multiply(job, terms, s, oldest + ti, b, u, (uint32_t)LK_MIN(left, chunk),
                             part.first, part.end, &leaf, &leaf_end);
        }
        if constexpr (Job::a_is_value) {
            if (more) lk_cuda_store_a<Tile, Job>(values, to);
        }
        if (left <= chunk) break;
        to = oldest;
    }
    lk_cuda_part_sum(s, part.end - part.first);
}

// The number of a row where it is stored, among those of all phases.
template <typename Job>
static inline __device__ uint32_t lk_cuda_stored_row(const Job &job, uint32_t i) {
    if constexpr (Job::by_phase)
        return job.stored_row(i);
    else
        return i;
}

// A tile of `own`, which is the job or a view of it.
template <typename Tile, typename Own, typename Job>
static inline __device__ void lk_cuda_tile_body(const lk_cuda_place &at, lk_cuda_state *state,
                                                uint32_t op, const Own &own, const Job &job,
                                                const lk_cuda_terms &terms, float *scratch) {
    lk_cuda_chains<Tile> s;
    lk_cuda_sum_part<Tile>(own, terms, at, &s);
    const uint32_t i0 = at.i0 + threadIdx.x / (Tile::columns / Tile::c) * Tile::r;
    const uint32_t j0 = at.j0 + threadIdx.x % (Tile::columns / Tile::c) * Tile::c;
    bool bad = false;
#pragma unroll
    for (int r = 0; r < Tile::r; r += Job::group) {
#pragma unroll
        for (int c = 0; c < Tile::c; c++) {
            if (i0 + r >= own.rows || j0 + c >= job.columns) continue;
            const uint32_t i = lk_cuda_stored_row(own, i0 + r);
            float v[Job::group];
#pragma unroll
            for (int g = 0; g < Job::group; g++) {
                v[g] = s.chain[r + g][c];
                if (terms.parts == 1) continue;
                const uint64_t row = (uint64_t)at.part * job.rows + i + g;
                scratch[row * job.columns + j0 + c] = v[g];
            }
            if (terms.parts == 1) bad |= job.store(i, j0 + c, v);
        }
    }
    lk_cuda_report(state, op, bad);
}

// Floats that a block of a job's tiles shares: its chunks, and behind them what a view has.
template <typename Tile, typename Job>
static constexpr int lk_cuda_sums_shared(void) {
    if constexpr (Job::by_phase)
        return Tile::shared + Job::shared_floats(Tile::rows);
    else
        return Tile::shared;
}

template <typename Tile, typename Job>
static inline __device__ void lk_cuda_sums_body(lk_cuda_at block, lk_cuda_state *state, uint32_t op,
                                                const Job &job, const lk_cuda_terms &terms,
                                                uint32_t row_tiles, float *scratch) {
    const uint32_t part = block.x / row_tiles, tile = block.x - part * row_tiles;
    const uint32_t j0 = block.y * Tile::columns;
    if constexpr (Job::by_phase) {
        const uint32_t phase = lk_cuda_quotient(tile, job.tiles);
        const lk_cuda_place at = {(tile - phase * job.tiles.by) * Tile::rows, j0, part};
        const typename Job::view own(
            job, terms, phase, at.i0, Tile::rows, lk_cuda_part_leaves(terms, part),
            reinterpret_cast<typename Job::shared *>(lk_cuda_shared + Tile::shared));
        if (at.i0 < own.rows) lk_cuda_tile_body<Tile>(at, state, op, own, job, terms, scratch);
    } else {
        const lk_cuda_place at = {tile * Tile::rows, j0, part};
        lk_cuda_tile_body<Tile>(at, state, op, job, job, terms, scratch);
    }
}

// --- joining parts -------------------------------------------------------------------------------

// How the parts of a job are joined. Threads that have the same output are its workers, a power of
// two of them, which is given as its logarithm: so nothing is divided by it.
typedef struct lk_cuda_join_shape {
    lk_cuda_divisor columns;
    uint32_t count, step;  // values of an output, and the parts from one to the next
    uint32_t workers_log;
} lk_cuda_join_shape;

// Joins the parts of every grain into the first of them.
static inline __device__ void lk_cuda_join_grains_body(lk_cuda_at at, const lk_cuda_terms &terms,
                                                       uint64_t outputs, uint32_t workers_log,
                                                       float *scratch) {
    const uint32_t of_block = LK_CUDA_JOIN_THREADS >> workers_log;
    const uint64_t output = (uint64_t)at.x * of_block + (threadIdx.x & (of_block - 1));
    const uint32_t first = at.y * terms.grain_parts;
    float *from = scratch + first * outputs + LK_MIN(output, outputs - 1);
    const uint32_t count = LK_MIN(terms.grain_parts, terms.parts - first);
    const bool mine = threadIdx.x < of_block && output < outputs;
    if (count <= 8 && !mine) return;  // else it would read what another thread writes
    const float sum = lk_cuda_join_tree(from, outputs, count, workers_log);
    if (mine) *from = sum;
}

// Joins the parts, or the grains, and stores the finished sums.
template <typename Job>
static inline __device__ void lk_cuda_join_body(lk_cuda_at at, lk_cuda_state *state, uint32_t op,
                                                const Job &job, const lk_cuda_join_shape &how,
                                                const float *scratch) {
    const uint64_t outputs = (uint64_t)job.rows * job.columns;
    const uint32_t of_block = LK_CUDA_JOIN_THREADS >> how.workers_log;
    const uint64_t stored = (uint64_t)at.x * of_block + (threadIdx.x & (of_block - 1));
    const bool mine = stored < outputs / Job::group;
    const uint64_t row = !mine               ? 0
                         : stored >> 31 == 0 ? lk_cuda_quotient((uint32_t)stored, how.columns)
                                             : stored / job.columns;
    const uint32_t j = mine ? (uint32_t)(stored - row * job.columns) : 0;
    float v[Job::group];
#pragma unroll
    for (int g = 0; g < Job::group; g++) {
        const float *from = scratch + (row * Job::group + g) * job.columns + j;
        v[g] = lk_cuda_join_tree(from, how.step * outputs, how.count, how.workers_log);
    }
    if (threadIdx.x >= of_block || !mine) return;
    lk_cuda_report(state, op, job.store((uint32_t)(row * Job::group), j, v));
}

#endif
