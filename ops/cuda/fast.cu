// fast.cu - the fast arithmetic's passes: operands made, multiplied, and finished. CUDA C++.
#include "ops/cuda/fast.h"

#include "ops/cuda/device.h"
#include "ops/cuda/operand.h"

// --- operands ------------------------------------------------------------------------------------

// An operand of 16 bits, which `dtype` says; others are fp32.
typedef uint16_t half;

static inline __device__ void put(lk_dtype, float *to, float value) { *to = value; }
static inline __device__ void put(lk_dtype dtype, half *to, float value) {
    *to = lk_cuda_operand(dtype, value);
}

// An overflow of fp16, or what was not finite before. A gradient that nothing but the gradient of
// weights takes is seen nowhere else. In bf16 only what is near the end of fp32 overflows.
static inline __device__ bool overflows(lk_dtype, float) { return false; }
static inline __device__ bool overflows(lk_dtype dtype, half value) {
    return dtype == LK_F16 && (value & 0x7c00u) == 0x7c00u;
}

static inline __device__ bool positive(float value) { return value > 0.0f; }
static inline __device__ bool positive(half value) { return lk_cuda_operand_positive(value); }

// Rows of `columns` elements: `all` of them, below 2^31, and where element n is in rows `ld` apart.
typedef struct row_shape {
    lk_cuda_divisor columns;
    uint32_t all;
    uint64_t ld;
} row_shape;

static inline __device__ uint64_t in_rows(const row_shape &s, uint32_t n, uint32_t *column) {
    const uint32_t r = lk_cuda_quotient(n, s.columns);
    *column = n - r * s.columns.by;
    return r * s.ld + *column;
}

// Calls launch(first row, their shape) for as many rows at a time as rules allow.
template <typename Launch>
static void each_rows(const lk_fast_rules &rules, uint64_t rows, uint64_t columns, uint64_t ld,
                      Launch launch) {
    const uint64_t most = LK_MAX(rules.launch_max / columns, (uint64_t)1);
    for (uint64_t r = 0, some; r < rows; r += some) {
        some = LK_MIN(most, rows - r);
        const row_shape shape = {lk_cuda_divide_by((uint32_t)columns), (uint32_t)(some * columns),
                                 ld};
        launch(r, shape);
    }
}

// Row r of `to` is row r of `from`, whose rows are side by side. Rounding to 16 bits takes more
// registers: for compute capability 10.0 eight blocks would spill.
template <typename T>
static __global__ void __launch_bounds__(LK_CUDA_THREADS, sizeof(T) == 2 ? 6 : 8)
    pack(lk_cuda_state *state, uint32_t op, lk_dtype dtype, row_shape s,
         const float *__restrict__ from, T *__restrict__ to) {
    lk_cuda_begin();
    bool bad = false;
    LK_CUDA_EACH(i, s.all) {
        uint32_t column;
        T value;
        put(dtype, &value, from[i]);
        bad = bad || overflows(dtype, value);
        to[in_rows(s, (uint32_t)i, &column)] = value;
    }
    lk_cuda_report(state, op, bad);
}

// A convolution's windows.
typedef struct window_shape {
    lk_conv2d c;
    lk_cuda_divisor in_c, in_w, in_h, kernel_w, out_w, out_h, terms, stride_h, stride_w;
    uint32_t ld;
} window_shape;

static window_shape window_shape_of(const lk_conv2d *c, uint64_t ld) {
    window_shape s = {};
    s.c = *c;
    s.in_c = lk_cuda_divide_by(c->in_c);
    s.in_w = lk_cuda_divide_by(c->in_w);
    s.in_h = lk_cuda_divide_by(c->in_h);
    s.stride_h = lk_cuda_divide_by(c->stride_h);
    s.stride_w = lk_cuda_divide_by(c->stride_w);
    s.kernel_w = lk_cuda_divide_by(c->kernel_w);
    s.out_w = lk_cuda_divide_by(c->out_w);
    s.out_h = lk_cuda_divide_by(c->out_h);
    s.terms = lk_cuda_divide_by(c->kernel_h * c->kernel_w * c->in_c);
    s.ld = (uint32_t)ld;
    return s;
}

// to[(m, oy, ox)][(ky, kx, ci)] = x[m][oy*stride_h + ky - pad_top][..][ci], +0 outside the image.
// `all` elements of them, below 2^31; x (m, in_h, in_w, in_c).
template <typename T>
static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    windows(lk_dtype dtype, window_shape s, uint32_t all, const float *__restrict__ x,
            T *__restrict__ to) {
    lk_cuda_begin();
    LK_CUDA_EACH(i, all) {
        const uint32_t n = (uint32_t)i;
        const uint32_t row = lk_cuda_quotient(n, s.terms), term = n - row * s.terms.by;
        const uint32_t tap = lk_cuda_quotient(term, s.in_c), ci = term - tap * s.in_c.by;
        const uint32_t ky = lk_cuda_quotient(tap, s.kernel_w), kx = tap - ky * s.kernel_w.by;
        const uint32_t line = lk_cuda_quotient(row, s.out_w), ox = row - line * s.out_w.by;
        const uint32_t m = lk_cuda_quotient(line, s.out_h), oy = line - m * s.out_h.by;
        const uint32_t iy = oy * s.c.stride_h + ky - s.c.pad_top;
        const uint32_t ix = ox * s.c.stride_w + kx - s.c.pad_left;
        const bool inside = iy < s.c.in_h && ix < s.c.in_w;
        const uint64_t at = (((uint64_t)m * s.c.in_h + iy) * s.c.in_w + ix) * s.in_c.by + ci;
        put(dtype, &to[(uint64_t)row * s.ld + term], inside ? x[at] : 0.0f);
    }
}

// --- finishing -----------------------------------------------------------------------------------

// y[r][c] = from[r][c] + bias[c], ReLU; from may be y.
static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    finish_forward(lk_cuda_state *state, uint32_t op, row_shape s, bool relu, const float *from,
                   const float *__restrict__ bias, float *y) {
    lk_cuda_begin();
    bool bad = false;
    LK_CUDA_EACH(i, s.all) {
        uint32_t c;
        const float value = from[in_rows(s, (uint32_t)i, &c)];
        const float sum = value + (bias ? bias[c] : 0.0f) + 0.0f;
        bad = bad || lk_cuda_not_finite(sum);
        y[i] = !relu || sum > 0.0f ? sum : 0.0f;
    }
    lk_cuda_report(state, op, bad);
}

// dx[r][c] = from[r][c] where mask > 0 or there is none; from may be dx.
template <typename Mask>
static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    finish_input_gradient(lk_cuda_state *state, uint32_t op, row_shape s, const float *from,
                          const Mask *__restrict__ mask, float *dx) {
    lk_cuda_begin();
    bool bad = false;
    LK_CUDA_EACH(i, s.all) {
        uint32_t c;
        const float sum = from[in_rows(s, (uint32_t)i, &c)] + 0.0f;
        bad = bad || lk_cuda_not_finite(sum);
        dx[i] = !mask || positive(mask[i]) ? sum : 0.0f;
    }
    lk_cuda_report(state, op, bad);
}

// dx[m][iy][ix][ci] = sum over taps (ky, kx), ascending, of the window's gradient at that tap.
// `all` elements of them, below 2^31.
static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    gather_windows(lk_cuda_state *state, uint32_t op, window_shape s, uint32_t all,
                   const float *__restrict__ from, const float *__restrict__ mask,
                   float *__restrict__ dx) {
    lk_cuda_begin();
    const lk_conv2d &c = s.c;
    bool bad = false;
    LK_CUDA_EACH(i, all) {
        const uint32_t n = (uint32_t)i;
        const uint32_t cell = lk_cuda_quotient(n, s.in_c), ci = n - cell * s.in_c.by;
        const uint32_t line = lk_cuda_quotient(cell, s.in_w), m = lk_cuda_quotient(line, s.in_h);
        const uint32_t ix = cell - line * s.in_w.by, iy = line - m * s.in_h.by;
        float sum = 0.0f;
        for (uint32_t ky = 0; ky < c.kernel_h && ky <= iy + c.pad_top; ky++) {
            const uint32_t y = iy + c.pad_top - ky, oy = lk_cuda_quotient(y, s.stride_h);
            if (oy * c.stride_h != y || oy >= c.out_h) continue;
            for (uint32_t kx = 0; kx < c.kernel_w && kx <= ix + c.pad_left; kx++) {
                const uint32_t x = ix + c.pad_left - kx, ox = lk_cuda_quotient(x, s.stride_w);
                if (ox * c.stride_w != x || ox >= c.out_w) continue;
                const uint64_t row = ((uint64_t)m * c.out_h + oy) * c.out_w + ox;
                sum = sum + from[row * s.ld + (ky * c.kernel_w + kx) * c.in_c + ci];
            }
        }
        sum = sum + 0.0f;
        bad = bad || lk_cuda_not_finite(sum);
        dx[i] = !mask || mask[i] > 0.0f ? sum : 0.0f;
    }
    lk_cuda_report(state, op, bad);
}

// out[r][c] = tree over leaves of from[leaf][r][c]; leaves are `stride` apart.
static __global__ void __launch_bounds__(LK_CUDA_THREADS)
    join_partials(uint32_t leaves, uint64_t stride, row_shape s, const float *__restrict__ from,
                  float *__restrict__ out) {
    lk_cuda_begin();
    LK_CUDA_EACH(i, s.all) {
        uint32_t c;
        const uint64_t at = in_rows(s, (uint32_t)i, &c);
        lk_cuda_tree tree;
        tree.leaves = 0;
        for (uint32_t leaf = 0; leaf < leaves; leaf += 8) {
            const float *eight = from + leaf * stride + at;
            lk_cuda_tree_leaf(&tree, lk_cuda_join_eight(eight, stride, LK_MIN(leaves - leaf, 8u)));
        }
        out[i] = lk_cuda_tree_finish(&tree);
    }
}

// --- what a pass multiplies, and where it lies ---------------------------------------------------

// The layer as a product: an example is `positions` rows.
typedef struct product_shape {
    uint64_t positions, terms, columns;
    bool windows;  // the input is to be spread out in windows
    bool narrow;   // .. or is an operand already
} product_shape;

static product_shape product_of(const lk_fast_layer *l) {
    if (l->dense) return {1, l->dense->k_count, l->dense->n_count, false, l->narrow};
    const lk_conv2d *c = l->conv;
    return {(uint64_t)c->out_h * c->out_w, (uint64_t)c->kernel_h * c->kernel_w * c->in_c, c->out_c,
            true, false};
}

static uint64_t operand_bytes(lk_fast_precision precision) {
    return lk_dtype_is_half(lk_fast_dtype(precision)) ? 2 : 4;
}

// Elements from row to row, so that all rows are aligned.
static uint64_t operand_ld(lk_fast_precision precision, uint64_t columns) {
    return lk_round_up(columns, LK_BLAS_ALIGN_BYTES / operand_bytes(precision));
}

static uint64_t float_ld(uint64_t columns) { return operand_ld(LK_FAST_TF32, columns); }

// Offsets in scratch, in floats; LK_AS_IT_IS: used where it lies.
#define LK_AS_IT_IS UINT64_MAX

typedef struct scratch_plan {
    uint32_t chunk;  // grains at once: a power of two
    uint32_t piece;  // examples of a product: of a grain all, or a power of two of them
    uint64_t input, weights, gradient, out;
    uint64_t nodes;  // of chunks, the first of which is the result's own place
    uint64_t floats;
} scratch_plan;

static uint64_t take(uint64_t *used, uint64_t bytes) {
    const uint64_t at = *used;
    *used += lk_round_up((bytes + 3) / 4, 64);
    return at;
}

// An operand of `rows` of `columns`: in scratch if it must be converted or its rows moved apart.
static uint64_t take_operand(lk_fast_precision precision, uint64_t *used, uint64_t rows,
                             uint64_t columns) {
    const uint64_t ld = operand_ld(precision, columns);
    if (precision == LK_FAST_TF32 && ld == columns) return LK_AS_IT_IS;
    return take(used, rows * ld * operand_bytes(precision));
}

static uint64_t take_windows(lk_fast_precision precision, uint64_t *used, uint64_t rows,
                             uint64_t columns) {
    return take(used, rows * operand_ld(precision, columns) * operand_bytes(precision));
}

// A weight gradient's, so that its tree over pieces is that over grains and then over their pieces.
static uint32_t piece_of(const lk_fast_rules *r, const product_shape *p, lk_fast_pass pass) {
    uint32_t piece = r->grain;
    if (pass != LK_FAST_WEIGHT_GRADIENT) return piece;
    while (piece > 1 && piece / 2 * p->positions >= r->piece_terms) piece /= 2;
    return piece;
}

// For `grains` grains at once; of the last ones there may be fewer, as `examples` says.
static scratch_plan lay(const lk_fast_rules *r, const product_shape *p, lk_fast_pass pass,
                        uint32_t grains, uint32_t examples) {
    const uint32_t piece = piece_of(r, p, pass);
    scratch_plan s = {grains, piece, LK_AS_IT_IS, LK_AS_IT_IS, LK_AS_IT_IS, LK_AS_IT_IS, 0, 0};
    const uint64_t rows = LK_MIN((uint64_t)grains * r->grain, (uint64_t)examples) * p->positions;
    uint64_t *used = &s.floats;
    if (pass != LK_FAST_WEIGHT_GRADIENT) {
        s.weights = take_operand(r->precision, used, p->terms, p->columns);
    }
    if (pass != LK_FAST_INPUT_GRADIENT && !p->narrow) {
        s.input = p->windows ? take_windows(r->precision, used, rows, p->terms)
                             : take_operand(r->precision, used, rows, p->terms);
    }
    if (pass != LK_FAST_FORWARD) {
        s.gradient = take_operand(r->precision, used, rows, p->columns);
    }
    if (pass == LK_FAST_FORWARD && float_ld(p->columns) != p->columns) {
        s.out = take(used, rows * float_ld(p->columns) * 4);
    }
    if (pass == LK_FAST_INPUT_GRADIENT && (p->windows || float_ld(p->terms) != p->terms)) {
        s.out = take(used, rows * float_ld(p->terms) * 4);
    }
    if (pass == LK_FAST_WEIGHT_GRADIENT) {
        const uint64_t all = ((uint64_t)examples + r->grain - 1) / r->grain;
        s.out = take(used, r->grain / piece * grains * p->terms * float_ld(p->columns) * 4);
        s.nodes = *used;
        for (uint64_t held = grains; held < all; held *= 2) {
            (void)take(used, p->terms * p->columns * 4);
        }
    }
    return s;
}

// How many grains fit does not depend on how many there are: fewer examples never need more
// scratch.
static scratch_plan plan_of(const lk_fast_rules *r, const product_shape *p, lk_fast_pass pass,
                            uint32_t examples) {
    uint32_t chunk = 1;
    while ((uint64_t)chunk * r->grain < examples &&
           lay(r, p, pass, chunk * 2, chunk * 2 * r->grain).floats * 4 <= r->chunk_bytes) {
        chunk *= 2;
    }
    return lay(r, p, pass, chunk, examples);
}

uint64_t lk_fast_scratch_floats(const lk_fast_rules *rules, const lk_fast_layer *layer,
                                lk_fast_pass pass, uint32_t examples) {
    const product_shape p = product_of(layer);
    uint64_t floats = plan_of(rules, &p, pass, examples).floats;
    if (pass == LK_FAST_WEIGHT_GRADIENT && layer->conv) {
        floats =
            LK_MAX(floats, lk_cuda_conv2d_bias_scratch_floats(layer->conv, rules->grain, examples));
    }
    return floats;
}

// --- steps of a pass -----------------------------------------------------------------------------

typedef struct pass {
    lk_fast *f;
    lk_cuda_stream *s;
    const lk_fast_layer *layer;
    product_shape p;
    scratch_plan at;
    lk_dtype dtype;
    uint64_t bytes;  // of an element of an operand
} pass;

static pass start(lk_fast *f, lk_cuda_stream *s, const lk_fast_layer *layer, lk_fast_pass which,
                  uint32_t examples) {
    const product_shape p = product_of(layer);
    const lk_fast_precision precision = f->rules.precision;
    return {f,
            s,
            layer,
            p,
            plan_of(&f->rules, &p, which, examples),
            lk_fast_dtype(precision),
            operand_bytes(precision)};
}

// The operand in scratch at `at`, made of `from`; or `from` itself.
static const void *operand(const pass *q, uint64_t at, const void *x, uint64_t rows,
                           uint64_t columns) {
    if (at == LK_AS_IT_IS) return x;
    float *to = q->s->scratch + at;
    each_rows(q->f->rules, rows, columns, operand_ld(q->f->rules.precision, columns),
              [&](uint64_t r, const row_shape &shape) {
                  const lk_cuda_grid blocks = lk_cuda_blocks(shape.all);
                  const float *from = (const float *)x + r * columns;
                  if (q->bytes == 2) {
                      lk_cuda_launch(q->s, pack<half>, blocks, LK_CUDA_THREADS, 0, q->s->state,
                                     q->s->op, q->dtype, shape, from, (half *)to + r * shape.ld);
                  } else {
                      lk_cuda_launch(q->s, pack<float>, blocks, LK_CUDA_THREADS, 0, q->s->state,
                                     q->s->op, q->dtype, shape, from, to + r * shape.ld);
                  }
              });
    return to;
}

static const void *spread(const pass *q, const float *x, uint32_t examples) {
    const lk_conv2d *c = q->layer->conv;
    const uint64_t ld = operand_ld(q->f->rules.precision, q->p.terms);
    const window_shape shape = window_shape_of(c, ld);
    const uint64_t each = q->p.positions * q->p.terms;
    const uint32_t most = (uint32_t)LK_MAX(q->f->rules.launch_max / each, (uint64_t)1);
    float *to = q->s->scratch + q->at.input;
    lk_cuda_rows_of(q->s, each);
    for (uint32_t m = 0; m < examples; m += most) {
        const uint32_t all = (uint32_t)(LK_MIN(most, examples - m) * each);
        const uint64_t first = m * q->p.positions * ld;
        const float *from = x + m * lk_conv2d_in_floats(c);
        if (q->bytes == 2) {
            lk_cuda_launch(q->s, windows<half>, lk_cuda_blocks(all), LK_CUDA_THREADS, 0, q->dtype,
                           shape, all, from, (half *)to + first);
        } else {
            lk_cuda_launch(q->s, windows<float>, lk_cuda_blocks(all), LK_CUDA_THREADS, 0, q->dtype,
                           shape, all, from, to + first);
        }
    }
    return to;
}

// Of `examples` from example m on.
static const void *input_of(const pass *q, const void *x, uint32_t m, uint32_t examples) {
    const uint64_t k = q->p.terms;
    if (q->p.narrow) return (const half *)x + m * k;
    if (!q->p.windows) return operand(q, q->at.input, (const float *)x + m * k, examples, k);
    return spread(q, (const float *)x + m * lk_conv2d_in_floats(q->layer->conv), examples);
}

// The whole pieces of `examples` in one call, a short one in another. `shape` is that of a piece,
// but for what its examples are: `along` rows, or terms of a gradient of weights.
static void multiply(const pass *q, lk_blas_shape shape, uint64_t lk_blas_shape::*along,
                     uint32_t examples, const void *left, const void *right, float *out) {
    const uint32_t piece = q->at.piece, whole = examples / piece, rest = examples % piece;
    shape.*along = piece * q->p.positions;
    shape.batches = q->f->rules.grain / piece * q->f->rules.grains;
    if (whole) lk_blas_multiply(&q->f->blas, q->s, &shape, whole, left, right, out);
    if (!rest) return;
    left = (const uint8_t *)left + whole * shape.left_stride * q->bytes;
    right = (const uint8_t *)right + whole * shape.right_stride * q->bytes;
    out += whole * shape.out_stride;
    shape.*along = rest * q->p.positions;
    shape.batches = 1;
    lk_blas_multiply(&q->f->blas, q->s, &shape, 1, left, right, out);
}

// Examples that a chunk starting at example m has.
static uint32_t chunk_at(const pass *q, uint32_t m, uint32_t m_count) {
    return (uint32_t)LK_MIN((uint64_t)q->at.chunk * q->f->rules.grain, (uint64_t)m_count - m);
}

// --- passes --------------------------------------------------------------------------------------

void lk_fast_forward(lk_fast *f, lk_cuda_stream *s, const lk_fast_layer *layer, uint32_t m_count,
                     const void *x, const float *w, const float *bias, float *y) {
    const pass q = start(f, s, layer, LK_FAST_FORWARD, m_count);
    const uint64_t k = q.p.terms, n = q.p.columns, rows = f->rules.grain * q.p.positions;
    const bool relu = layer->conv ? layer->conv->relu : layer->dense->relu;
    lk_blas_shape shape = {};
    shape.columns = n;
    shape.terms = k;
    shape.left_ld = operand_ld(f->rules.precision, k);
    shape.right_ld = operand_ld(f->rules.precision, n);
    shape.out_ld = float_ld(n);
    shape.left_stride = rows * shape.left_ld;
    shape.out_stride = rows * shape.out_ld;
    const void *weights = operand(&q, q.at.weights, w, k, n);
    for (uint32_t m = 0, some; m < m_count; m += some) {
        some = chunk_at(&q, m, m_count);
        float *to = y + m * q.p.positions * n;
        float *out = q.at.out == LK_AS_IT_IS ? to : s->scratch + q.at.out;
        const void *input = input_of(&q, x, m, some);
        multiply(&q, shape, &lk_blas_shape::rows, some, input, weights, out);
        each_rows(f->rules, some * q.p.positions, n, shape.out_ld,
                  [&](uint64_t r, const row_shape &stored) {
                      lk_cuda_launch(s, finish_forward, lk_cuda_blocks(stored.all), LK_CUDA_THREADS,
                                     0, s->state, s->op, stored, relu, out + r * stored.ld, bias,
                                     to + r * n);
                  });
    }
}

// What becomes of the products of examples [m, m + some).
static void finish_gradient(const pass *q, uint32_t m, uint32_t some, const float *out, uint64_t ld,
                            const void *mask, float *dx) {
    lk_cuda_stream *s = q->s;
    const lk_conv2d *c = q->layer->conv;
    const uint64_t columns = c ? lk_conv2d_in_floats(c) : q->p.terms, first = m * columns;
    const float *seen = mask && !q->p.narrow ? (const float *)mask + first : nullptr;
    const half *narrow = mask && q->p.narrow ? (const half *)mask + first : nullptr;
    each_rows(q->f->rules, some, columns, ld, [&](uint64_t r, const row_shape &shape) {
        const lk_cuda_grid blocks = lk_cuda_blocks(shape.all);
        const uint64_t at = r * columns;
        const float *from = out + r * q->p.positions * ld;
        float *to = dx + first + at;
        if (c) {
            lk_cuda_launch(s, gather_windows, blocks, LK_CUDA_THREADS, 0, s->state, s->op,
                           window_shape_of(c, ld), shape.all, from, seen ? seen + at : nullptr, to);
        } else if (narrow) {
            lk_cuda_launch(s, finish_input_gradient<half>, blocks, LK_CUDA_THREADS, 0, s->state,
                           s->op, shape, from, narrow + at, to);
        } else {
            lk_cuda_launch(s, finish_input_gradient<float>, blocks, LK_CUDA_THREADS, 0, s->state,
                           s->op, shape, from, seen ? seen + at : nullptr, to);
        }
    });
}

void lk_fast_input_gradient(lk_fast *f, lk_cuda_stream *s, const lk_fast_layer *layer,
                            uint32_t m_count, const float *w, const float *dy, const void *mask,
                            float *dx) {
    const pass q = start(f, s, layer, LK_FAST_INPUT_GRADIENT, m_count);
    const uint64_t k = q.p.terms, n = q.p.columns, rows = f->rules.grain * q.p.positions;
    const uint64_t in = layer->conv ? lk_conv2d_in_floats(layer->conv) : k;
    lk_blas_shape shape = {};
    shape.columns = k;
    shape.terms = n;
    shape.right_transposed = true;
    shape.left_ld = shape.right_ld = operand_ld(f->rules.precision, n);
    shape.out_ld = float_ld(k);
    shape.left_stride = rows * shape.left_ld;
    shape.out_stride = rows * shape.out_ld;
    const void *weights = operand(&q, q.at.weights, w, k, n);
    for (uint32_t m = 0, some; m < m_count; m += some) {
        some = chunk_at(&q, m, m_count);
        float *out = q.at.out == LK_AS_IT_IS ? dx + m * in : s->scratch + q.at.out;
        const uint64_t here = some * q.p.positions;
        const void *gradient = operand(&q, q.at.gradient, dy + m * q.p.positions * n, here, n);
        multiply(&q, shape, &lk_blas_shape::rows, some, gradient, weights, out);
        finish_gradient(&q, m, some, out, shape.out_ld, mask, dx);
    }
}

// Adds the topmost two of the `held` nodes into one, `merges` times. Returns how many are left.
static uint32_t join_chunks(const pass *q, float *const *nodes, uint32_t held, uint32_t merges) {
    for (; merges > 0; merges--, held--) {
        lk_cuda_add(q->s, q->p.terms * q->p.columns, nodes[held - 2], nodes[held - 1],
                    nodes[held - 2]);
    }
    return held;
}

static void weight_products(const pass *q, const lk_cuda_grains *g, float *dw) {
    const lk_fast_rules *r = &q->f->rules;
    const uint64_t k = q->p.terms, n = q->p.columns, rows = q->at.piece * q->p.positions;
    float *out = q->s->scratch + q->at.out, *nodes[LK_TREE_LEVELS_MAX + 1] = {dw};
    for (uint32_t i = 0; i < LK_TREE_LEVELS_MAX; i++) {
        nodes[i + 1] = q->s->scratch + q->at.nodes + i * lk_round_up(k * n, 64);
    }
    lk_blas_shape shape = {};
    shape.rows = k;
    shape.columns = n;
    shape.left_transposed = true;
    shape.left_ld = operand_ld(r->precision, k);
    shape.right_ld = operand_ld(r->precision, n);
    shape.out_ld = float_ld(n);
    shape.left_stride = rows * shape.left_ld;
    shape.right_stride = rows * shape.right_ld;
    shape.out_stride = k * shape.out_ld;
    uint32_t held = 0, chunks = 0;
    for (uint32_t m = 0, some; m < g->examples; m += some) {
        some = chunk_at(q, m, g->examples);
        const void *input = input_of(q, g->x, m, some);
        const void *gradient =
            operand(q, q->at.gradient, g->dy + m * q->p.positions * n, some * q->p.positions, n);
        multiply(q, shape, &lk_blas_shape::terms, some, input, gradient, out);
        const uint32_t leaves = (some + q->at.piece - 1) / q->at.piece;
        each_rows(*r, k, n, shape.out_ld, [&](uint64_t row, const row_shape &joined) {
            lk_cuda_launch(q->s, join_partials, lk_cuda_blocks(joined.all), LK_CUDA_THREADS, 0,
                           leaves, shape.out_stride, joined, out + row * joined.ld,
                           nodes[held] + row * n);
        });
        held = join_chunks(q, nodes, held + 1, (uint32_t)__builtin_ctz(++chunks));
    }
    join_chunks(q, nodes, held, held - 1);
}

void lk_fast_weight_gradient(lk_fast *f, lk_cuda_stream *s, const lk_fast_layer *layer,
                             const lk_cuda_grains *g, float *dw, float *db) {
    const pass q = start(f, s, layer, LK_FAST_WEIGHT_GRADIENT, g->examples);
    weight_products(&q, g, dw);
    if (db) lk_cuda_conv2d_bias_gradient(s, layer->conv, g, db);
}

int lk_cuda_prepare_fast(void) {
    return lk_cuda_prepare_kernels(pack<float>, pack<half>, windows<float>, windows<half>,
                                   finish_forward, finish_input_gradient<float>,
                                   finish_input_gradient<half>, gather_windows, join_partials);
}
