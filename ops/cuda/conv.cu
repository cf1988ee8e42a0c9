// conv.cu - convolutions as jobs of sums.h: the image is gathered, and pooled gradients are routed,
// while a chunk is fetched.
//
// Rows of a job are positions, its columns channels (forward, gradient of the input); or rows are
// weights and one more stands for the bias (gradient of the weights). Numbers of positions and
// terms are below 2^31: lk_cuda_run checks it.
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

// The pixel at (y, x) of example m; +0 outside the image, where y or x has wrapped below 0.
static inline __device__ float pixel(const lk_conv2d &c, const float *x, uint32_t m, uint32_t iy,
                                     uint32_t ix, uint32_t ci) {
    if (iy >= c.in_h || ix >= c.in_w) return 0.0f;
    return x[(((uint64_t)m * c.in_h + iy) * c.in_w + ix) * c.in_c + ci];
}

// The gradient of output cell (oy, ox, co) of example m, which exists: whole, or routed to the cell
// that won.
template <bool POOLED>
static inline __device__ float output_gradient(const conv_shape &s, const float *dy,
                                               const uint8_t *argmax, uint32_t m, uint32_t oy,
                                               uint32_t ox, uint32_t co) {
    const lk_conv2d &c = s.c;
    if (!POOLED) return dy[(((uint64_t)m * c.out_h + oy) * c.out_w + ox) * c.out_c + co];
    uint32_t py = oy / 2, px = ox / 2;
    if (py >= s.pooled_h || px >= s.pooled_w) return 0.0f;
    uint64_t at = (((uint64_t)m * s.pooled_h + py) * s.pooled_w + px) * c.out_c + co;
    return argmax[at] == oy % 2 * 2 + ox % 2 ? dy[at] : 0.0f;
}

// --- forward -------------------------------------------------------------------------------------

// Rows: output positions; with POOLED the four cells of each pooled position side by side.
template <bool POOLED>
struct conv_forward_job {
    static constexpr int group = POOLED ? 4 : 1;
    static constexpr bool a_terms_first = true, b_terms_first = false;
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
    __device__ float a(const row &p, uint32_t u) const {
        conv_tap t = tap_of(u, s.in_c, s.kernel_w);
        return pixel(s.c, x, p.m, p.y + t.y, p.x + t.x, t.channel);
    }
    __device__ float b(uint32_t u, uint32_t j) const { return w[(uint64_t)u * columns + j]; }
    __device__ float start(uint32_t j) const { return bias ? bias[j] : 0.0f; }
    __device__ bool store(uint32_t i, uint32_t j, const float *v) const {
        float best = v[0] + 0.0f;
        uint8_t winner = 0;
        bool bad = lk_cuda_not_finite(best);
#pragma unroll
        for (int cell = 1; cell < group; cell++) {
            float sum = v[cell] + 0.0f;
            bad |= lk_cuda_not_finite(sum);
            winner = sum > best ? (uint8_t)cell : winner;
            best = sum > best ? sum : best;
        }
        uint64_t at = (uint64_t)(i / group) * columns + j;
        y[at] = !s.c.relu || best > 0.0f ? best : 0.0f;
        if (POOLED) argmax[at] = winner;
        return bad;
    }
};

template <bool POOLED>
static void conv_forward(lk_cuda_stream *s, const lk_conv2d *c, uint32_t m_count, const float *x,
                         const float *w, const float *bias, float *y, uint8_t *argmax) {
    uint64_t floats = POOLED ? 4 * lk_conv2d_pooled_floats(c) : lk_conv2d_out_floats(c);
    const conv_forward_job<POOLED> job = {lk_cuda_rows_of(s, m_count * floats / c->out_c),
                                          c->out_c,
                                          shape_of(c, POOLED),
                                          x,
                                          w,
                                          bias,
                                          y,
                                          argmax};
    lk_cuda_run(s, job, c->kernel_h * c->kernel_w * c->in_c, 1, 1);
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

// --- gradient of the input -----------------------------------------------------------------------

// Rows: input positions. Terms: taps, and the output channels behind each.
template <bool POOLED>
struct conv_input_job {
    static constexpr int group = 1;
    static constexpr bool a_terms_first = true, b_terms_first = true;
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
    __device__ float a(const row &p, uint32_t u) const {
        conv_tap t = tap_of(u, s.out_c, s.kernel_w);
        // Tap t of output (oy, ox) reads the input at (oy, ox) * stride + t - pad.
        if (p.y < t.y || p.x < t.x) return 0.0f;
        uint32_t oy = lk_cuda_quotient(p.y - t.y, s.stride_h);
        uint32_t ox = lk_cuda_quotient(p.x - t.x, s.stride_w);
        bool reads = oy * s.stride_h.by == p.y - t.y && ox * s.stride_w.by == p.x - t.x;
        if (!reads || oy >= s.c.out_h || ox >= s.c.out_w) return 0.0f;
        return output_gradient<POOLED>(s, dy, argmax, p.m, oy, ox, t.channel);
    }
    __device__ float b(uint32_t u, uint32_t j) const {
        uint32_t tap = lk_cuda_quotient(u, s.out_c);
        return w[((uint64_t)tap * columns + j) * s.c.out_c + (u - tap * s.c.out_c)];
    }
    __device__ float start(uint32_t j) const { return bias ? bias[j] : 0.0f; }
    __device__ bool store(uint32_t i, uint32_t j, const float *v) const {
        uint64_t at = (uint64_t)i * columns + j;
        float sum = v[0] + 0.0f;
        dx[at] = (!mask || mask[at] > 0.0f) && (!relu || sum > 0.0f) ? sum : 0.0f;
        return lk_cuda_not_finite(sum);
    }
};

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
    lk_cuda_run(s, job, c->kernel_h * c->kernel_w * c->out_c, 1, 1);
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

// Rows: weights (ky, kx, ci), and one of ones for the bias. Terms: (example, position in 2x2
// tiles).
template <bool POOLED>
struct conv_weight_job {
    static constexpr int group = 1;
    static constexpr bool a_terms_first = false, b_terms_first = false;
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
    __device__ float a(const row &t, uint32_t u) const {
        if (t.number == UINT32_MAX) return 1.0f;
        conv_position p = cell_of(u);
        if (p.y >= s.c.out_h || p.x >= s.c.out_w) return 0.0f;
        return pixel(s.c, x, p.m, p.y * s.c.stride_h + t.y - s.c.pad_top,
                     p.x * s.c.stride_w + t.x - s.c.pad_left, t.channel);
    }
    __device__ float b(uint32_t u, uint32_t j) const {
        conv_position p = cell_of(u);
        if (p.y >= s.c.out_h || p.x >= s.c.out_w) return 0.0f;
        return output_gradient<POOLED>(s, dy, argmax, p.m, p.y, p.x, j);
    }
    __device__ float start(uint32_t j) const { return (void)j, 0.0f; }
    __device__ bool store(uint32_t i, uint32_t j, const float *v) const {
        if (i < weights)
            dw[(uint64_t)i * columns + j] = v[0];
        else
            db[j] = v[0];
        return false;
    }
};

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
    lk_cuda_run(s, job, terms, g->grain, g->examples);
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
            most = LK_MAX(most, lk_cuda_scratch_of(weight_rows(c) + bias, c->out_c,
                                                   lk_conv2d_terms(c), grain, m, false));
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
        lk_cuda_prepare_job<conv_weight_job<false>>,  lk_cuda_prepare_job<conv_weight_job<true>>};
    for (int (*prepare)(void) : each) {
        int error = prepare();
        if (error) return error;
    }
    return lk_cuda_prepare_kernels(lk_cuda_join_grains);
}
