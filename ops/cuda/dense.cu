// dense.cu - fully connected layers: launches of what dense.h says.
#include "ops/cuda/dense.h"
#include "ops/cuda/sums_launches.h"

uint32_t lk_cuda_blocks_wanted = 264;

// --- forward -------------------------------------------------------------------------------------

void lk_cuda_dense_forward(lk_cuda_stream *s, const lk_dense *d, uint32_t m_count, const float *x,
                           const float *w, const float *bias, float *y) {
    const dense_forward_job job = {m_count, d->n_count, d->k_count, d->relu, x, w, bias, y};
    lk_cuda_run(s, job, d->k_count, 1, 1);
}

// --- gradient of the input -----------------------------------------------------------------------

void lk_cuda_dense_input_gradient(lk_cuda_stream *s, const lk_dense *d, uint32_t m_count,
                                  const float *w, const float *dy, const float *mask, float *dx) {
    const dense_input_job job = {m_count, d->k_count, d->n_count, dy, w, mask, dx};
    lk_cuda_run(s, job, d->n_count, 1, 1);
}

// --- gradient of the weights ---------------------------------------------------------------------

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

template <bool ONE_TREE>
static __global__ void __launch_bounds__(COLUMN_THREADS)
    column_sums(uint32_t n_count, uint32_t columns, lk_cuda_terms terms,
                const float *__restrict__ dy, float *__restrict__ out) {
    lk_cuda_begin();
    column_sums_body<ONE_TREE>(lk_cuda_here(), n_count, columns, terms, dy, out);
}

// Columns to a block: of few columns that have many leaves fewer, so that each has more threads.
static uint32_t columns_of_block(uint32_t n_count, uint32_t leaves) {
    uint32_t columns = 1;
    while (columns < COLUMNS_MAX && columns < n_count) columns *= 2;
    while (columns > 1 && n_count < COLUMN_BLOCKS * columns && leaves > COLUMN_THREADS / columns) {
        columns /= 2;
    }
    return columns;
}

static lk_cuda_grid column_grid(uint32_t n_count, uint32_t columns, const lk_cuda_terms &terms,
                                uint64_t bytes) {
    const uint32_t leaves = COLUMN_THREADS / columns;
    const uint64_t turns = (terms.leaves + leaves - 1) / leaves;
    return {dim3((n_count + columns - 1) / columns),
            {(uint64_t)n_count * LK_MIN(terms.leaves, leaves), turns * lk_cuda_leaf_terms(terms), 0,
             bytes}};
}

void lk_cuda_column_sums(lk_cuda_stream *s, uint32_t n_count, const lk_cuda_grains *g, float *out) {
    const lk_cuda_terms terms = lk_cuda_terms_of(1, g->grain, g->examples);
    const uint32_t columns = columns_of_block(n_count, terms.leaves);
    const uint64_t n = n_count;
    const bool one = lk_cuda_one_tree(terms);
    lk_cuda_spans spans = {};
    lk_cuda_reads(&spans, g->dy, n * g->examples);
    lk_cuda_writes(&spans, out, n);
    lk_cuda_launch_body(s, one ? LK_CUDA_BODY_COLUMN_SUMS : LK_CUDA_BODY_COLUMN_SUMS_GRAINS, spans,
                        one ? column_sums<true> : column_sums<false>,
                        column_grid(n_count, columns, terms, n * g->examples * sizeof(float)),
                        COLUMN_THREADS, COLUMN_THREADS, n_count, columns, terms, g->dy, out);
}

// A column is a label and a value of it: of the rows of this label alone.
typedef struct label_rows {
    uint32_t n_count;  // labels times values
    lk_cuda_divisor values;
    uint32_t first_label;
    const uint32_t *ids;
    const float *dy;

    typedef struct column {
        uint32_t label, value;
    } column;
    __device__ column column_of(uint32_t n) const {
        const uint32_t label = lk_cuda_quotient(n, values);
        return {first_label + label, n - label * values.by};
    }
    __device__ float add(float sum, const column &at, uint32_t m) const {
        return ids[m] == at.label ? sum + dy[(uint64_t)m * values.by + at.value] : sum;
    }
} label_rows;

template <bool ONE_TREE>
static __global__ void __launch_bounds__(COLUMN_THREADS)
    label_sums(label_rows rows, uint32_t columns, lk_cuda_terms terms, float *__restrict__ out) {
    lk_cuda_begin();
    sum_columns<ONE_TREE>(lk_cuda_here(), rows, columns, terms, out);
}

void lk_cuda_label_sums(lk_cuda_stream *s, uint32_t labels, uint32_t n_count,
                        const lk_cuda_grains *g, const uint32_t *ids, float *out) {
    const lk_cuda_terms terms = lk_cuda_terms_of(1, g->grain, g->examples);
    const bool one = lk_cuda_one_tree(terms);
    lk_cuda_in_parts(s, labels, n_count, [&](uint64_t first, uint32_t some) {
        const label_rows rows = {some * n_count, lk_cuda_divide_by(n_count), (uint32_t)first, ids,
                                 g->dy};
        const uint32_t columns = columns_of_block(rows.n_count, terms.leaves);
        const uint64_t bytes = (uint64_t)rows.n_count * g->examples * sizeof *ids;
        lk_cuda_launch(s, one ? label_sums<true> : label_sums<false>,
                       column_grid(rows.n_count, columns, terms, bytes), COLUMN_THREADS,
                       COLUMN_THREADS, rows, columns, terms, out + first * n_count);
    });
}

int lk_cuda_prepare_dense(void) {
    int error = lk_cuda_prepare_job<dense_forward_job>();
    if (!error) error = lk_cuda_prepare_job<dense_input_job>();
    if (!error) error = lk_cuda_prepare_job<dense_weight_job>();
    if (error) return error;
    return lk_cuda_prepare_kernels(column_sums<true>, column_sums<false>, label_sums<true>,
                                   label_sums<false>, lk_cuda_join_grains);
}
