// conv.cu - convolutions: launches of the jobs of conv.h and conv_phase.h.
#include "ops/cuda/conv_phase.h"
#include "ops/cuda/sums_launches.h"

static conv_shape shape_of(const lk_conv2d *c, bool pooled) {
    conv_shape s = {};
    s.c = *c;
    s.pooled_h = c->out_h / 2;
    s.pooled_w = c->out_w / 2;
    s.in_c = lk_cuda_divide_by(c->in_c);
    s.out_c = lk_cuda_divide_by(c->out_c);
    s.kernel_w = lk_cuda_divide_by(c->kernel_w);
    s.in_w = lk_cuda_divide_by(c->in_w);
    s.in_h = lk_cuda_divide_by(c->in_h);
    s.place_w = lk_cuda_divide_by(LK_MAX(pooled ? s.pooled_w : c->out_w, 1u));
    s.place_h = lk_cuda_divide_by(LK_MAX(pooled ? s.pooled_h : c->out_h, 1u));
    s.stride_h = lk_cuda_divide_by(c->stride_h);
    s.stride_w = lk_cuda_divide_by(c->stride_w);
    s.tiles_w = lk_cuda_divide_by((c->out_w + 1) / 2);
    s.terms = lk_cuda_divide_by(lk_conv2d_terms(c));
    return s;
}

// --- forward -------------------------------------------------------------------------------------

template <bool POOLED>
static conv_forward_job<POOLED> forward_job(lk_cuda_stream *s, const lk_conv2d *c, uint32_t m_count,
                                            const float *x, const float *w, const float *bias,
                                            float *y, uint8_t *argmax) {
    uint64_t floats = POOLED ? 4 * lk_conv2d_pooled_floats(c) : lk_conv2d_out_floats(c);
    return {lk_cuda_rows_of(s, m_count * floats / c->out_c),
            c->out_c,
            shape_of(c, POOLED),
            x,
            w,
            bias,
            y,
            argmax};
}

template <bool POOLED>
static void conv_forward(lk_cuda_stream *s, const lk_conv2d *c, uint32_t m_count, const float *x,
                         const float *w, const float *bias, float *y, uint8_t *argmax) {
    lk_cuda_run(s, forward_job<POOLED>(s, c, m_count, x, w, bias, y, argmax),
                c->kernel_h * c->kernel_w * c->in_c, 1, 1);
}

void lk_cuda_conv2d_forward(lk_cuda_stream *s, const lk_conv2d *c, uint32_t m_count, const float *x,
                            const float *w, const float *bias, float *y) {
    conv_forward<false>(s, c, m_count, x, w, bias, y, nullptr);
}

void lk_cuda_conv2d_pool_forward(lk_cuda_stream *s, const lk_conv2d *c, uint32_t m_count,
                                 const float *x, const float *w, const float *bias, float *y,
                                 uint8_t *argmax) {
    conv_forward<true>(s, c, m_count, x, w, bias, y, argmax);
}

void lk_cuda_conv2d_pool_forward_narrow(lk_cuda_stream *s, const lk_conv2d *c, uint32_t m_count,
                                        const float *x, const float *w, const float *bias,
                                        lk_dtype dtype, uint16_t *y, uint8_t *argmax) {
    conv_narrow_job job;
    static_cast<conv_forward_job<true> &>(job) =
        forward_job<true>(s, c, m_count, x, w, bias, nullptr, argmax);
    job.dtype = dtype;
    job.narrow = y;
    lk_cuda_run(s, job, c->kernel_h * c->kernel_w * c->in_c, 1, 1);
}

// --- gradient of the input -----------------------------------------------------------------------

// The job of a strided convolution, of what all its phases have in common.
static conv_phase_job phase_job(const conv_input_job<false> &all, uint32_t m_count) {
    const lk_conv2d &c = all.s.c;
    conv_phase_job job;
    static_cast<conv_input_job<false> &>(job) = all;
    job.lines = phase_lengths_of(c.in_h, c.stride_h);
    job.places = phase_lengths_of(c.in_w, c.stride_w);
    job.taps = phase_lengths_of(c.kernel_w, c.stride_w);
    job.examples = m_count;
    return job;
}

template <bool POOLED>
static void conv_input(lk_cuda_stream *s, const lk_conv2d *c, uint32_t m_count, const float *w,
                       const float *dy, const uint8_t *argmax, const float *mask, float *dx,
                       const float *bias = nullptr, bool relu = false) {
    const conv_input_job<POOLED> job = {lk_cuda_rows_of(s, (uint64_t)m_count * c->in_h * c->in_w),
                                        c->in_c,
                                        shape_of(c, POOLED),
                                        w,
                                        dy,
                                        argmax,
                                        mask,
                                        dx,
                                        bias,
                                        relu};
    const uint32_t terms = c->kernel_h * c->kernel_w * c->out_c;
    if constexpr (!POOLED) {
        if (c->stride_h > 1 || c->stride_w > 1) {
            lk_cuda_run(s, phase_job(job, m_count), terms, 1, 1);
            return;
        }
    }
    lk_cuda_run(s, job, terms, 1, 1);
}

void lk_cuda_conv2d_input_gradient(lk_cuda_stream *s, const lk_conv2d *c, uint32_t m_count,
                                   const float *w, const float *dy, const float *mask, float *dx) {
    conv_input<false>(s, c, m_count, w, dy, nullptr, mask, dx);
}

void lk_cuda_conv2d_transpose_forward(lk_cuda_stream *s, const lk_conv2d *c, uint32_t m_count,
                                      const float *x, const float *w, const float *bias, float *y) {
    conv_input<false>(s, c, m_count, w, x, nullptr, nullptr, y, bias, c->relu);
}

void lk_cuda_conv2d_pool_input_gradient(lk_cuda_stream *s, const lk_conv2d *c, uint32_t m_count,
                                        const float *w, const float *dy, const uint8_t *argmax,
                                        const float *mask, float *dx) {
    conv_input<true>(s, c, m_count, w, dy, argmax, mask, dx);
}

// --- gradient of the weights ---------------------------------------------------------------------

template <int R>
static __global__ void __launch_bounds__(ROUTED_WARPS *ROUTED_LANES, 2)
    routed_sums(routed_job job, lk_cuda_terms terms, uint32_t row_groups, uint32_t wide,
                float *scratch) {
    lk_cuda_begin();
    routed_body<R>(lk_cuda_here(), job, terms, row_groups, wide, scratch);
}

// How the leaves are cut: a block has at least one leaf for each warp, and more where enough blocks
// are left.
typedef struct routed_cut {
    lk_cuda_terms terms;
    uint32_t rows;  // of a thread: fewer where the terms are few
    uint32_t wide;  // columns of a warp
} routed_cut;

// Blocks for each part, where a thread has `of_thread` rows.
static uint32_t routed_row_groups(uint32_t rows, uint32_t of_thread, uint32_t wide) {
    const uint32_t of_block = of_thread * (ROUTED_LANES / wide);
    return (rows + of_block - 1) / of_block;
}

static routed_cut routed_cut_of(uint32_t rows, uint32_t columns, lk_cuda_terms terms) {
    const uint64_t wanted = lk_cuda_blocks_wanted;
    routed_cut cut = {terms, 4, columns <= 8 ? 8u : columns <= 16 ? 16u : 32u};
    const uint64_t tiles = (columns + cut.wide - 1) / cut.wide;
    const uint64_t full = terms.leaves / ROUTED_WARPS * tiles;
    if (routed_row_groups(rows, 4, cut.wide) * full < wanted) cut.rows = 2;
    const uint64_t row_blocks = routed_row_groups(rows, cut.rows, cut.wide) * tiles;
    uint32_t part_leaves = ROUTED_WARPS << routed_tile<4>::levels;
    while (part_leaves > ROUTED_WARPS && row_blocks * (terms.leaves / part_leaves) < 4 * wanted) {
        part_leaves /= 2;
    }
    lk_cuda_terms_cut(&cut.terms, part_leaves);
    return cut;
}

template <int R>
static void launch_routed(lk_cuda_stream *s, const routed_job &job, const routed_cut &cut) {
    const lk_cuda_terms &t = cut.terms;
    const uint32_t row_groups = routed_row_groups(job.rows, R, cut.wide);
    const uint32_t tiles = (job.columns + cut.wide - 1) / cut.wide;
    const uint64_t positions = (uint64_t)t.examples * job.s.pooled_h * job.s.pooled_w;
    const uint64_t sums = (uint64_t)job.rows * job.columns, each = t.part_leaves / ROUTED_WARPS;
    const uint64_t nodes = LK_MIN((uint64_t)t.parts * ROUTED_WARPS, (t.leaves + each - 1) / each);
    const uint64_t threads = (uint64_t)(job.rows + R - 1) / R * job.columns;
    // A block's pixels and gradients come once into the first cache.
    const uint64_t images = (uint64_t)t.examples * lk_conv2d_in_floats(&job.s.c) * tiles;
    const uint64_t floats = row_groups * (images + positions * job.columns * 5 / 4);
    const lk_cuda_work work = {threads * nodes, each * lk_cuda_leaf_terms(t) / 4, positions * sums,
                               (floats + sums * t.parts) * sizeof(float)};
    lk_cuda_launch_body(s, R == 2 ? LK_CUDA_BODY_ROUTED_2 : LK_CUDA_BODY_ROUTED_4,
                        lk_cuda_spans_of(s, job, t), routed_sums<R>,
                        {dim3(row_groups * t.parts, tiles), work}, ROUTED_WARPS * ROUTED_LANES,
                        R * ROUTED_WARPS * ROUTED_LANES, job, t, row_groups, cut.wide, s->scratch);
}

// --- launches of both ----------------------------------------------------------------------------

static uint32_t weight_rows(const lk_conv2d *c) { return c->kernel_h * c->kernel_w * c->in_c; }

// Without dw: of the bias alone.
template <bool POOLED>
static void conv_weight(lk_cuda_stream *s, const lk_conv2d *c, const lk_cuda_grains *g, float *dw,
                        float *db) {
    const uint32_t weights = dw ? weight_rows(c) : 0, terms = lk_conv2d_terms(c);
    lk_cuda_rows_of(s, (uint64_t)g->examples * terms);
    const conv_weight_job<POOLED> job = {weights + (db != nullptr),
                                         c->out_c,
                                         weights,
                                         shape_of(c, POOLED),
                                         g->x,
                                         g->dy,
                                         g->argmax,
                                         dw,
                                         db};
    if constexpr (!POOLED) {
        lk_cuda_run(s, job, terms, g->grain, g->examples);
    } else if (job.rows > 0 && job.columns > 0) {
        const routed_cut cut =
            routed_cut_of(job.rows, job.columns, lk_cuda_terms_of(terms, g->grain, g->examples));
        if (cut.rows == 4)
            launch_routed<4>(s, job, cut);
        else
            launch_routed<2>(s, job, cut);
        lk_cuda_join_parts(s, job, cut.terms);
    }
}

void lk_cuda_conv2d_weight_gradient(lk_cuda_stream *s, const lk_conv2d *c, const lk_cuda_grains *g,
                                    float *dw, float *db) {
    conv_weight<false>(s, c, g, dw, db);
}

void lk_cuda_conv2d_pool_weight_gradient(lk_cuda_stream *s, const lk_conv2d *c,
                                         const lk_cuda_grains *g, float *dw, float *db) {
    conv_weight<true>(s, c, g, dw, db);
}

void lk_cuda_conv2d_bias_gradient(lk_cuda_stream *s, const lk_conv2d *c, const lk_cuda_grains *g,
                                  float *db) {
    conv_weight<false>(s, c, g, nullptr, db);
}

// --- scratch -------------------------------------------------------------------------------------

static uint64_t routed_scratch(const lk_conv2d *c, uint32_t rows, uint32_t grain,
                               uint32_t examples) {
    const lk_cuda_terms terms = lk_cuda_terms_of(lk_conv2d_terms(c), grain, examples);
    const routed_cut cut = routed_cut_of(rows, c->out_c, terms);
    return cut.terms.parts > 1 ? (uint64_t)cut.terms.parts * rows * c->out_c : 0;
}

uint64_t lk_cuda_conv2d_scratch_floats(const lk_conv2d *c, uint32_t grain, uint32_t examples) {
    const uint32_t window = c->kernel_h * c->kernel_w;
    const uint64_t out = (uint64_t)c->out_h * c->out_w, in = (uint64_t)c->in_h * c->in_w;
    const uint64_t pooled = (uint64_t)(c->out_h / 2) * (c->out_w / 2) * 4;
    uint64_t most = 0;
    for (uint32_t m = examples; m > 0; m--) {
        most = LK_MAX(most, lk_cuda_scratch_of(m * out, c->out_c, window * c->in_c, 1, 1, false));
        most = LK_MAX(most, lk_cuda_scratch_of(m * pooled, c->out_c, window * c->in_c, 1, 1, true));
        most = LK_MAX(most, lk_cuda_scratch_of(m * in, c->in_c, window * c->out_c, 1, 1, false));
        for (uint32_t bias = 0; bias < 2; bias++) {
            const uint32_t rows = weight_rows(c) + bias;
            most = LK_MAX(most,
                          lk_cuda_scratch_of(rows, c->out_c, lk_conv2d_terms(c), grain, m, false));
            most = LK_MAX(most, routed_scratch(c, rows, grain, m));
        }
    }
    return most;
}

uint64_t lk_cuda_conv2d_bias_scratch_floats(const lk_conv2d *c, uint32_t grain, uint32_t examples) {
    uint64_t most = 0;
    for (uint32_t m = examples; m > 0; m--) {
        most = LK_MAX(most, lk_cuda_scratch_of(1, c->out_c, lk_conv2d_terms(c), grain, m, false));
    }
    return most;
}

int lk_cuda_prepare_conv(void) {
    int (*const each[])(void) = {
        lk_cuda_prepare_job<conv_forward_job<false>>, lk_cuda_prepare_job<conv_forward_job<true>>,
        lk_cuda_prepare_job<conv_input_job<false>>,   lk_cuda_prepare_job<conv_input_job<true>>,
        lk_cuda_prepare_job<conv_weight_job<false>>,  lk_cuda_prepare_job<conv_narrow_job>,
        lk_cuda_prepare_job<conv_phase_job>};
    for (int (*prepare)(void) : each) {
        int error = prepare();
        if (error) return error;
    }
    return lk_cuda_prepare_kernels(lk_cuda_join_grains, lk_cuda_join<routed_job>, routed_sums<2>,
                                   routed_sums<4>);
}
