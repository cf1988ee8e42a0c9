// dense.h - fully connected layers as a block has them: three matrix products as jobs of sums.h,
// and column sums. The launches are dense.cu's, and the persistent kernel's (persistent.cu).
#ifndef LOCKSTEP_OPS_CUDA_DENSE_H
#define LOCKSTEP_OPS_CUDA_DENSE_H

#include "ops/cuda/sums.h"

// --- products ----------------------------------------------------------------------------------

// x (rows, terms), w (terms, columns), bias (columns) or NULL, y (rows, columns)
typedef struct dense_forward_job {
    static constexpr int group = 1;
    static constexpr bool by_phase = false;
    static constexpr lk_cuda_body body = LK_CUDA_BODY_DENSE_FORWARD,
                                  join = LK_CUDA_BODY_DENSE_FORWARD_JOIN;
    static constexpr bool a_is_value = false, a_terms_first = true, b_terms_first = false;
    typedef uint32_t row;
    uint32_t rows, columns, terms;
    bool relu;
    const float *x, *w, *bias;
    float *y;

    __device__ row row_of(uint32_t i) const { return i; }
    __device__ bool a(row i, uint32_t u, const float **from) const {
        return *from = x + (uint64_t)i * terms + u, true;
    }
    __device__ float a_instead(row) const { return 0.0f; }
    __device__ bool a_by_four() const { return false; }
    __device__ bool b_by_four() const { return lk_cuda_by_four(w, columns); }
    __device__ bool b(uint32_t u, uint32_t j, const float **from) const {
        return *from = w + (uint64_t)u * columns + j, true;
    }
    __device__ float start(uint32_t i, uint32_t j) const { return (void)i, bias ? bias[j] : 0.0f; }
    __device__ bool store(uint32_t i, uint32_t j, const float *v) const {
        float sum = v[0] + 0.0f;
        y[(uint64_t)i * columns + j] = !relu || sum > 0.0f ? sum : 0.0f;
        return lk_cuda_not_finite(sum);
    }

    void touches(const lk_cuda_terms &, lk_cuda_spans *s) const {
        lk_cuda_reads(s, x, (uint64_t)rows * terms);
        lk_cuda_reads(s, w, (uint64_t)terms * columns);
        lk_cuda_reads(s, bias, columns);
        lk_cuda_writes(s, y, (uint64_t)rows * columns);
    }
} dense_forward_job;

// dy (rows, terms), w (columns, terms), mask (rows, columns) or NULL, dx (rows, columns)
typedef struct dense_input_job {
    static constexpr int group = 1;
    static constexpr bool by_phase = false;
    static constexpr lk_cuda_body body = LK_CUDA_BODY_DENSE_INPUT,
                                  join = LK_CUDA_BODY_DENSE_INPUT_JOIN;
    static constexpr bool a_is_value = false, a_terms_first = true, b_terms_first = true;
    typedef uint32_t row;
    uint32_t rows, columns, terms;
    const float *dy, *w, *mask;
    float *dx;

    __device__ row row_of(uint32_t i) const { return i; }
    __device__ bool a(row i, uint32_t u, const float **from) const {
        return *from = dy + (uint64_t)i * terms + u, true;
    }
    __device__ float a_instead(row) const { return 0.0f; }
    __device__ bool a_by_four() const { return false; }
    __device__ bool b_by_four() const { return false; }
    __device__ bool b(uint32_t u, uint32_t j, const float **from) const {
        return *from = w + (uint64_t)j * terms + u, true;
    }
    __device__ float start(uint32_t i, uint32_t j) const { return (void)i, (void)j, 0.0f; }
    __device__ bool store(uint32_t i, uint32_t j, const float *v) const {
        uint64_t at = (uint64_t)i * columns + j;
        float sum = v[0] + 0.0f;
        dx[at] = !mask || mask[at] > 0.0f ? sum : 0.0f;
        return lk_cuda_not_finite(sum);
    }

    void touches(const lk_cuda_terms &, lk_cuda_spans *s) const {
        lk_cuda_reads(s, dy, (uint64_t)rows * terms);
        lk_cuda_reads(s, w, (uint64_t)terms * columns);
        lk_cuda_reads(s, mask, (uint64_t)rows * columns);
        lk_cuda_writes(s, dx, (uint64_t)rows * columns);
    }
} dense_input_job;

// x (examples, rows), dy (examples, columns), dw (rows, columns): a node, stored as it is.
typedef struct dense_weight_job {
    static constexpr int group = 1;
    static constexpr bool by_phase = false;
    static constexpr lk_cuda_body body = LK_CUDA_BODY_DENSE_WEIGHT,
                                  join = LK_CUDA_BODY_DENSE_WEIGHT_JOIN;
    static constexpr bool a_is_value = false, a_terms_first = false, b_terms_first = false;
    typedef uint32_t row;
    uint32_t rows, columns;
    const float *x, *dy;
    float *dw;

    __device__ row row_of(uint32_t i) const { return i; }
    __device__ bool a(row i, uint32_t u, const float **from) const {
        return *from = x + (uint64_t)u * rows + i, true;
    }
    __device__ float a_instead(row) const { return 0.0f; }
    __device__ bool a_by_four() const { return lk_cuda_by_four(x, rows); }
    __device__ bool b_by_four() const { return lk_cuda_by_four(dy, columns); }
    __device__ bool b(uint32_t u, uint32_t j, const float **from) const {
        return *from = dy + (uint64_t)u * columns + j, true;
    }
    __device__ float start(uint32_t i, uint32_t j) const { return (void)i, (void)j, 0.0f; }
    __device__ bool store(uint32_t i, uint32_t j, const float *v) const {
        dw[(uint64_t)i * columns + j] = v[0];
        return false;
    }

    void touches(const lk_cuda_terms &t, lk_cuda_spans *s) const {
        lk_cuda_reads(s, x, (uint64_t)t.examples * rows);
        lk_cuda_reads(s, dy, (uint64_t)t.examples * columns);
        lk_cuda_writes(s, dw, (uint64_t)rows * columns);
    }
} dense_weight_job;

// --- column sums ---------------------------------------------------------------------------------

// A block has a few columns, so that few of them have many blocks too; the others of its threads
// take leaves.
enum { COLUMN_THREADS = 256, COLUMNS_MAX = 8, COLUMN_BLOCKS = 64 };

// What is added up, of a column: the values of it in each row.
typedef struct column_rows {
    uint32_t n_count;
    const float *dy;

    typedef const float *column;
    __device__ column column_of(uint32_t n) const { return dy + n; }
    __device__ float add(float sum, column at, uint32_t m) const {
        return sum + at[(uint64_t)m * n_count];
    }
} column_rows;

// The tree over leaves [begin, end) of a column, in the first of the column's threads. As many
// leaves at once as a column has threads: their node, a whole one, joins those before.
template <typename Rows>
static inline __device__ float tree_of_leaves(lk_cuda_at at, const Rows &rows, uint32_t columns,
                                              const lk_cuda_terms &terms, uint32_t begin,
                                              uint32_t tree_end) {
    const uint32_t mine = threadIdx.x / columns, leaves = COLUMN_THREADS / columns;
    const uint32_t n = at.x * columns + threadIdx.x % columns;
    const typename Rows::column column = rows.column_of(LK_MIN(n, rows.n_count - 1));
    lk_cuda_tree tree;
    tree.leaves = 0;
    for (uint32_t first = begin; first < tree_end; first += leaves) {
        const uint32_t leaf = first + mine, present = LK_MIN(tree_end - first, leaves);
        float chain = 0.0f;
        if (leaf < tree_end && n < rows.n_count) {
            uint32_t end = lk_cuda_leaf_end(terms, leaf);
            for (uint32_t m = leaf ? lk_cuda_leaf_end(terms, leaf - 1) : 0; m < end; m++) {
                chain = rows.add(chain, column, m);
            }
        }
        lk_cuda_shared[threadIdx.x] = chain;
        for (uint32_t by = 1; by < present; by *= 2) {
            __syncthreads();
            if (mine % (2 * by) == 0 && mine + by < present) {
                chain = chain + lk_cuda_shared[threadIdx.x + by * columns];
                lk_cuda_shared[threadIdx.x] = chain;
            }
        }
        if (mine == 0) lk_cuda_tree_leaf(&tree, chain);
        __syncthreads();  // before the next leaves are written there
    }
    return lk_cuda_tree_finish(&tree);
}

// Of one tree: over all leaves; otherwise of each grain, and over them.
template <bool ONE_TREE, typename Rows>
static inline __device__ void sum_columns(lk_cuda_at at, const Rows &rows, uint32_t columns,
                                          const lk_cuda_terms &terms, float *out) {
    const uint32_t n = at.x * columns + threadIdx.x % columns;
    float sum;
    if (ONE_TREE) {
        sum = tree_of_leaves(at, rows, columns, terms, 0, terms.leaves);
    } else {
        lk_cuda_tree grains;
        grains.leaves = 0;
        for (uint32_t leaf = 0; leaf < terms.leaves; leaf += terms.grain_leaves) {
            const uint32_t end = LK_MIN(leaf + terms.grain_leaves, terms.leaves);
            lk_cuda_tree_leaf(&grains, tree_of_leaves(at, rows, columns, terms, leaf, end));
        }
        sum = lk_cuda_tree_finish(&grains);
    }
    if (threadIdx.x < columns && n < rows.n_count) out[n] = sum;
}

template <bool ONE_TREE>
static inline __device__ void column_sums_body(lk_cuda_at at, uint32_t n_count, uint32_t columns,
                                               const lk_cuda_terms &terms, const float *dy,
                                               float *out) {
    sum_columns<ONE_TREE>(at, column_rows{n_count, dy}, columns, terms, out);
}

#endif
