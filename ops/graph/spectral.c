// spectral.c - see spectral.h. Freestanding.
#include "ops/graph/spectral.h"

#include "ops/graph/build.h"
#include "ops/layers/sums.h"
#include "ops/math.h"

enum { FACTOR, STILL, NUMBERS = 16 };

uint32_t lk_spectral_count(const lk_model *m) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < m->layer_count; i++) count += m->layers[i].spectral;
    return count;
}

// --- what there is of a kernel -------------------------------------------------------------------

static lk_op matrix_op(const lk_op_type *type, uint64_t rows, uint64_t columns) {
    lk_op op = {.type = type};
    op.dense = (lk_dense){.k_count = (uint32_t)rows, .n_count = (uint32_t)columns};
    return op;
}

uint64_t lk_spectral_floats(uint64_t count, uint64_t columns) {
    const lk_op op = matrix_op(&lk_op_dense, count / columns, columns);
    const uint64_t forward = lk_dense_forward_scratch(&op, 1);
    const uint64_t backward = lk_dense_input_gradient_scratch(&op, 1);
    return lk_round_up(count / columns, 16) + lk_round_up(columns, 16) + NUMBERS +
           LK_MAX(forward, backward);
}

const lk_op *lk_spectral_op(const lk_program *p, uint32_t param) {
    for (uint32_t i = 0; i < p->forward_end; i++) {
        if (p->ops[i].param[0] == param) return &p->ops[i];
    }
    return NULL;
}

lk_spectral lk_spectral_of(uint64_t count, uint64_t columns, const float *w, float *u,
                           float *normalized, float *memory) {
    lk_spectral s = {.w = w,
                     .u = u,
                     .normalized = normalized,
                     .v = memory,
                     .rows = count / columns,
                     .columns = columns,
                     .dtype = LK_F32};
    s.n = s.v + lk_round_up(s.rows, 16);
    s.numbers = s.n + lk_round_up(columns, 16);
    s.scratch = s.numbers + NUMBERS;
    return s;
}

lk_spectral lk_spectral_at(const lk_frame *f, const lk_op *op) {
    const lk_param *param = &f->program->params[op->param[0]];
    const lk_tensor *t = &f->program->tensors[param->tensor];
    float *u = lk_tensor_at(f, op->tensor[LK_STATE]);
    float *normalized = lk_tensor_at(f, param->rounded);
    float *memory = lk_tensor_at(f, param->rounded + 1);  // as they were built
    lk_spectral s = lk_spectral_of(param->count, t->shape[t->rank - 1],
                                   lk_param_at(f, op->param[0]), u, normalized, memory);
    s.dtype = (lk_dtype)op->dtype;
    return s;
}

static lk_status refuse(const lk_program *p, uint32_t param, const char *what, lk_error *error) {
    return lk_fail(error, LK_BAD_CONFIG,
                   "spectral_normalization of %s: found %s; take one of the two out",
                   p->tensors[p->params[param].tensor].name, what);
}

lk_status lk_spectral_check(const lk_program *p, lk_error *error) {
    for (uint32_t i = 0; i < p->param_count; i++) {
        if (!lk_param_is_spectral(p, i)) continue;
        if (p->params[i].gradient_op == LK_NONE) continue;
        if (lk_optimizer_norm(p->optimizer) != LK_NORM_NONE) {
            return refuse(p, i,
                          "an optimizer that wants norms of the whole gradient (clipnorm, "
                          "global_clipnorm, lars_tf, lamb_keras), wanted another",
                          error);
        }
        if (lk_optimizer_averages(p->optimizer)) {
            return refuse(p, i, "weight_average in the optimizer that trains it, wanted none",
                          error);
        }
    }
    return LK_OK;
}

// --- forward -------------------------------------------------------------------------------------

// to = from / |from|, +0 where that is not above 0.
static uint32_t unit(uint64_t count, const float *from, float *to) {
    slice_sum s;
    slice_start(&s, 0.0f);
    for (uint64_t i = 0; i < count; i++) slice_term(&s, from[i], from[i]);
    const float squares = slice_finish(&s);
    const float factor = squares > 0.0f ? 1.0f / lk_sqrtf(squares) : 0.0f;
    for (uint64_t i = 0; i < count; i++) to[i] = from[i] * factor;
    return lk_not_finite(squares);
}

// v = w u, of rows, before it is made a unit.
static uint32_t times_rows(const lk_kernels *k, const lk_spectral *s) {
    const lk_op op = matrix_op(&lk_op_dense_input_gradient, s->rows, s->columns);
    lk_lane lane = {.examples = 1, .param = {(float *)(uintptr_t)s->w}};
    lane.at[LK_DY] = s->u;
    lane.at[LK_DX] = s->v;
    lane.at[LK_SCRATCH] = s->scratch;
    return lk_kernel_of(k, op.type)(&lane, &op);
}

// n = v w, of columns, likewise.
static uint32_t times_columns(const lk_kernels *k, const lk_spectral *s) {
    const lk_op op = matrix_op(&lk_op_dense, s->rows, s->columns);
    lk_lane lane = {.examples = 1, .param = {(float *)(uintptr_t)s->w}};
    lane.at[LK_X] = s->v;
    lane.at[LK_Y] = s->n;
    lane.at[LK_SCRATCH] = s->scratch;
    return lk_kernel_of(k, op.type)(&lane, &op);
}

// sigma = b . n of n = b / |b|, which takes the place of b.
static uint32_t find_sigma(const lk_spectral *s, float *sigma) {
    slice_sum squares, products;
    slice_start(&squares, 0.0f);
    for (uint64_t c = 0; c < s->columns; c++) slice_term(&squares, s->n[c], s->n[c]);
    const float sum = slice_finish(&squares);
    const float factor = sum > 0.0f ? 1.0f / lk_sqrtf(sum) : 0.0f;
    slice_start(&products, 0.0f);
    for (uint64_t c = 0; c < s->columns; c++) {
        const float b = s->n[c];
        s->n[c] = b * factor;
        slice_term(&products, b, s->n[c]);
    }
    *sigma = slice_finish(&products);
    return lk_not_finite(sum) | lk_not_finite(*sigma);
}

uint32_t lk_spectral_make(const lk_kernels *k, const lk_spectral *s) {
    const uint64_t count = s->rows * s->columns;
    float sigma;
    uint32_t bad = times_rows(k, s);
    bad |= unit(s->rows, s->v, s->v);
    bad |= times_columns(k, s);
    bad |= find_sigma(s, &sigma);
    const bool still = !(sigma > 0.0f);
    const float factor = still ? 1.0f : 1.0f / sigma;
    s->numbers[FACTOR] = factor;
    s->numbers[STILL] = still;
    for (uint64_t c = 0; c < s->columns && still; c++) s->n[c] = s->u[c];
    for (uint64_t i = 0; i < count; i++) {
        s->normalized[i] = s->w[i] * factor;
        bad |= lk_not_finite(s->normalized[i]);
    }
    if (s->dtype == LK_F32) return bad;
    return bad | k->round(s->dtype, count, s->normalized, s->normalized);
}

#if LK_HAS_SPECTRAL
void lk_spectral_start(lk_frame *f) {
    const lk_program *p = f->program;
    for (uint32_t i = 0; i < p->forward_end; i++) {
        const lk_op *op = &p->ops[i];
        if (!lk_param_is_spectral(p, op->param[0]) || lk_spectral_op(p, op->param[0]) != op) {
            continue;
        }
        const lk_spectral s = lk_spectral_at(f, op);
        if (lk_spectral_make(f->kernels, &s)) f->bad_op = LK_MIN(f->bad_op, i);
    }
}
#endif

// --- its gradient, and its state -----------------------------------------------------------------

void lk_spectral_turn_reference(uint64_t count, float share, float factor, const float *n,
                                float *g) {
    for (uint64_t i = 0; i < count; i++) g[i] = lk_fmaf(-share, n[i], g[i]) * factor;
}

void lk_spectral_turn(const lk_kernels *k, const lk_spectral *s, float product, uint64_t first,
                      uint64_t count, float *sum) {
    const float factor = s->numbers[FACTOR], share = product * factor;
    if (s->numbers[STILL] != 0.0f) return;
    for (uint64_t at = first; at < first + count;) {
        const uint64_t row = at / s->columns, column = at % s->columns;
        const uint64_t some = LK_MIN(s->columns - column, first + count - at);
        (k->turn ? k->turn : lk_spectral_turn_reference)(some, share * s->v[row], factor,
                                                         s->n + column, sum + (at - first));
        at += some;
    }
}

void lk_spectral_keep(const lk_spectral *s) {
    for (uint64_t c = 0; c < s->columns; c++) s->u[c] = s->n[c];
}
