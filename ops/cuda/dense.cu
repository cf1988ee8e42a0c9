// dense.cu - fully connected layers: three matrix products as jobs of sums.h, and column sums.
#include "ops/cuda/sums.h"

uint32_t lk_cuda_blocks_wanted = 264;

// --- forward -------------------------------------------------------------------------------------

// x (rows, terms), w (terms, columns), bias (columns) or NULL, y (rows, columns)
typedef struct dense_forward_job {
    static constexpr int group = 1;
    static constexpr bool a_terms_first = true, b_terms_first = false;
    typedef uint64_t row;
    uint32_t rows, columns, terms;
    bool relu;
    const float *x, *w, *bias;
    float *y;

    __device__ row row_of(uint32_t i) const { return (uint64_t)i * terms; }
    __device__ float a(row at, uint32_t u) const { return x[at + u]; }
    __device__ float b(uint32_t u, uint32_t j) const { return w[(uint64_t)u * columns + j]; }
    __device__ float start(uint32_t i, uint32_t j) const {
        return (void)i, bias ? bias[j] : 0.0f;
    }
    __device__ bool store(uint32_t i, uint32_t j, const float *v) const {
        float sum = v[0] + 0.0f;
        y[(uint64_t)i * columns + j] = !relu || sum > 0.0f ? sum : 0.0f;
        return lk_cuda_not_finite(sum);
    }
} dense_forward_job;

void lk_cuda_dense_forward(lk_cuda_stream *s, const lk_dense *d, uint32_t m_count, const float *x,
                           const float *w, const float *bias, float *y) {
    const dense_forward_job job = {m_count, d->n_count, d->k_count, d->relu, x, w, bias, y};
    lk_cuda_run(s, job, d->k_count, 1, 1);
}

// --- gradient of the input -----------------------------------------------------------------------

// dy (rows, terms), w (columns, terms), mask (rows, columns) or NULL, dx (rows, columns)
typedef struct dense_input_job {
    static constexpr int group = 1;
    static constexpr bool a_terms_first = true, b_terms_first = true;
    typedef uint64_t row;
    uint32_t rows, columns, terms;
    const float *dy, *w, *mask;
    float *dx;

    __device__ row row_of(uint32_t i) const { return (uint64_t)i * terms; }
    __device__ float a(row at, uint32_t u) const { return dy[at + u]; }
    __device__ float b(uint32_t u, uint32_t j) const { return w[(uint64_t)j * terms + u]; }
    __device__ float start(uint32_t i, uint32_t j) const { return (void)i, (void)j, 0.0f; }
    __device__ bool store(uint32_t i, uint32_t j, const float *v) const {
        uint64_t at = (uint64_t)i * columns + j;
        float sum = v[0] + 0.0f;
        dx[at] = !mask || mask[at] > 0.0f ? sum : 0.0f;
        return lk_cuda_not_finite(sum);
    }
} dense_input_job;

void lk_cuda_dense_input_gradient(lk_cuda_stream *s, const lk_dense *d, uint32_t m_count,
                                  const float *w, const float *dy, const float *mask, float *dx) {
    const dense_input_job job = {m_count, d->k_count, d->n_count, dy, w, mask, dx};
    lk_cuda_run(s, job, d->n_count, 1, 1);
}

// --- gradient of the weights ---------------------------------------------------------------------

// x (examples, rows), dy (examples, columns), dw (rows, columns): a node, stored as it is.
typedef struct dense_weight_job {
    static constexpr int group = 1;
    static constexpr bool a_terms_first = false, b_terms_first = false;
    typedef uint32_t row;
    uint32_t rows, columns;
    const float *x, *dy;
    float *dw;

    __device__ row row_of(uint32_t i) const { return i; }
    __device__ float a(row i, uint32_t u) const { return x[(uint64_t)u * rows + i]; }
    __device__ float b(uint32_t u, uint32_t j) const { return dy[(uint64_t)u * columns + j]; }
    __device__ float start(uint32_t i, uint32_t j) const { return (void)i, (void)j, 0.0f; }
    __device__ bool store(uint32_t i, uint32_t j, const float *v) const {
        dw[(uint64_t)i * columns + j] = v[0];
        return false;
    }
} dense_weight_job;

void lk_cuda_dense_weight_gradient(lk_cuda_stream *s, const lk_dense *d, const lk_cuda_grains *g,
                                   float *dw) {
    const dense_weight_job job = {d->k_count, d->n_count, g->x, g->dy, dw};
    lk_cuda_run(s, job, 1, g->grain, g->examples);
}

uint64_t lk_cuda_dense_scratch_floats(const lk_dense *d, uint32_t grain, uint32_t examples) {
    return lk_cuda_dense_rows_scratch_floats(d, 1, grain, examples);
}

uint64_t lk_cuda_dense_rows_scratch_floats(const lk_dense *d, uint32_t rows, uint32_t grain,
                                           uint32_t examples) {
    uint64_t most = 0;
    for (uint32_t e = examples; e > 0; e--) {
        const uint32_t m = e * rows, whole = grain * rows;
        most = LK_MAX(most, lk_cuda_scratch_of(m, d->n_count, d->k_count, 1, 1, false));
        most = LK_MAX(most, lk_cuda_scratch_of(m, d->k_count, d->n_count, 1, 1, false));
        most = LK_MAX(most, lk_cuda_scratch_of(d->k_count, d->n_count, 1, whole, m, false));
    }
    return most;
}

// --- column sums ---------------------------------------------------------------------------------

// A block has a few columns, so that few of them have many blocks too; the others of its threads
// take leaves.
enum { COLUMN_THREADS = 256, COLUMNS_MAX = 8 };

// The tree over leaves [begin, end) of column n, in the first of the column's threads. As many
// leaves at once as a column has threads: their node, a whole one, joins those before.
static inline __device__ float tree_of_leaves(uint32_t n_count, uint32_t columns,
                                              const lk_cuda_terms &terms, uint32_t begin,
                                              uint32_t tree_end, const float *__restrict__ dy) {
    const uint32_t column = threadIdx.x % columns, mine = threadIdx.x / columns;
    const uint32_t n = blockIdx.x * columns + column, leaves = COLUMN_THREADS / columns;
    lk_cuda_tree tree;
    tree.leaves = 0;
    for (uint32_t first = begin; first < tree_end; first += leaves) {
        const uint32_t leaf = first + mine, present = LK_MIN(tree_end - first, leaves);
        float chain = 0.0f;
        if (leaf < tree_end && n < n_count) {
            uint32_t end = lk_cuda_leaf_end(terms, leaf);
            for (uint32_t m = leaf ? lk_cuda_leaf_end(terms, leaf - 1) : 0; m < end; m++) {
                chain = chain + dy[(uint64_t)m * n_count + n];
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
template <bool ONE_TREE>
static __global__ void __launch_bounds__(COLUMN_THREADS)
    column_sums(uint32_t n_count, uint32_t columns, lk_cuda_terms terms,
                const float *__restrict__ dy, float *__restrict__ out) {
    const uint32_t n = blockIdx.x * columns + threadIdx.x % columns;
    float sum;
    if (ONE_TREE) {
        sum = tree_of_leaves(n_count, columns, terms, 0, terms.leaves, dy);
    } else {
        lk_cuda_tree grains;
        grains.leaves = 0;
        for (uint32_t leaf = 0; leaf < terms.leaves; leaf += terms.grain_leaves) {
            const uint32_t end = LK_MIN(leaf + terms.grain_leaves, terms.leaves);
            lk_cuda_tree_leaf(&grains, tree_of_leaves(n_count, columns, terms, leaf, end, dy));
        }
        sum = lk_cuda_tree_finish(&grains);
    }
    if (threadIdx.x < columns && n < n_count) out[n] = sum;
}

void lk_cuda_column_sums(lk_cuda_stream *s, uint32_t n_count, const lk_cuda_grains *g, float *out) {
    const lk_cuda_terms terms = lk_cuda_terms_of(1, g->grain, g->examples);
    uint32_t columns = 1;
    while (columns < COLUMNS_MAX && columns < n_count) columns *= 2;
    const uint32_t leaves = COLUMN_THREADS / columns;
    const uint64_t turns = (terms.leaves + leaves - 1) / leaves, n = n_count;
    const lk_cuda_grid grid = {dim3((n_count + columns - 1) / columns),
                               {n * LK_MIN(terms.leaves, leaves), turns * lk_cuda_leaf_terms(terms),
                                0, n * g->examples * sizeof(float)}};
    lk_cuda_launch(s, lk_cuda_one_tree(terms) ? column_sums<true> : column_sums<false>, grid,
                   COLUMN_THREADS, COLUMN_THREADS, n_count, columns, terms, g->dy, out);
}

int lk_cuda_prepare_dense(void) {
    int error = lk_cuda_prepare_job<dense_forward_job>();
    if (!error) error = lk_cuda_prepare_job<dense_input_job>();
    if (!error) error = lk_cuda_prepare_job<dense_weight_job>();
    if (error) return error;
    return lk_cuda_prepare_kernels(column_sums<true>, column_sums<false>, lk_cuda_join_grains);
}
