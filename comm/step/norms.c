// norms.c - squares, norms and the update after them (norms.h). Freestanding.
#include "comm/step/norms.h"

#include "ops/fmaf.h"
#include "ops/graph/average.h"
#include "ops/graph/spectral.h"
#include "ops/layers/sums.h"

static float *squares_at(const lk_frame *f, uint32_t param) {
    const lk_program *p = f->program;
    return (float *)lk_tensor_at(f, p->squares) + 2 * lk_param_first_slice(p, param);
}

static void slots_at(const lk_frame *f, uint32_t param, uint64_t first,
                     float *out[LK_OPTIMIZER_SLOTS_MAX]) {
    const lk_program *p = f->program;
    for (uint32_t s = 0; s < lk_optimizer_slot_count(p->optimizer); s++) {
        out[s] = (float *)lk_tensor_at(f, p->params[param].slots[s]) + first;
    }
}

// Of kernels of spectral_normalization products with the gradient are wanted, of no others.
static bool wants_squares(const lk_program *p, uint32_t param) {
    return lk_program_norm(p) != LK_NORM_SPECTRAL || lk_param_is_spectral(p, param);
}

void lk_norms_square(lk_group *group, uint32_t replica) {
    const lk_program *p = group->program;
    const lk_frame *f = &group->frames[replica];
    const lk_squares squares = lk_squares_of(group->kernels, lk_program_norm(p));
    for (uint32_t i = 0; i < p->param_count; i++) {
        const lk_owned own = lk_group_owned(group, i, group->first + replica);
        float *slots[LK_OPTIMIZER_SLOTS_MAX] = {NULL};
        if (own.first >= own.end || !wants_squares(p, i)) continue;
        slots_at(f, i, own.first, slots);
        const lk_step_scalars scalars = lk_group_scalars(group, i);
        squares(p->optimizer, &scalars, own.end - own.first,
                lk_gradient_at(f, i) + own.first, lk_param_at(f, i) + own.first, slots,
                squares_at(f, i) + 2 * (own.first / LK_SLICE_TERMS));
    }
}

#ifndef LK_SHORT_FORM_ALONE
// The sum of the squares of w: slices and tree of a norm, by the kernel of norms: of gradients that
// are w, with an inverse of 1.
static float squares_of(const lk_kernels *kernels, const float *w, uint64_t count) {
    enum { SLICES = 32 };
    static const lk_optimizer plain = {.type = &lk_optimizer_sgd};
    const lk_step_scalars one = {.inverse_n = 1.0f};
    const lk_squares squares = lk_squares_of(kernels, LK_NORM_GRADIENT);
    float *const none[LK_OPTIMIZER_SLOTS_MAX] = {NULL};
    float out[2 * SLICES];
    tree_sum t;
    tree_start(&t);
    for (uint64_t first = 0; first < count; first += SLICES * LK_SLICE_TERMS) {
        const uint64_t some = LK_MIN(count - first, (uint64_t)SLICES * LK_SLICE_TERMS);
        squares(&plain, &one, some, w + first, w + first, none, out);
        for (uint64_t i = 0; i * LK_SLICE_TERMS < some; i++) tree_leaf(&t, out[2 * i]);
    }
    return tree_finish(&t) + 0.0f;
}

void lk_norms_weigh(lk_group *group, bool train) {
    const lk_program *p = group->program;
    const lk_frame *f = &group->frames[0];
    group->penalty = 0.0f;
    for (uint32_t i = 0; i < p->param_count; i++) {
        const float l2 = lk_param_l2(p, i);
        if (l2 == 0.0f) continue;
        const lk_tensor *average =
            train || !p->spec->model.averages ? NULL : lk_average_of(p, i);
        const float *w =
            average ? (const float *)(void *)(f->device + average->offset) : lk_param_at(f, i);
        group->penalty = lk_fmaf(l2, squares_of(group->kernels, w, p->params[i].count),
                                 group->penalty);
    }
}
#endif

// The sums of squares of a whole parameter: trees over its slices, finished.
static void sum_squares(const lk_frame *f, uint32_t param, float out[2]) {
    const uint64_t slices = lk_param_slices(&f->program->params[param]);
    const float *squares = squares_at(f, param);
    for (uint32_t k = 0; k < 2; k++) {
        tree_sum t;
        tree_start(&t);
        for (uint64_t i = 0; i < slices; i++) tree_leaf(&t, squares[2 * i + k]);
        out[k] = tree_finish(&t) + 0.0f;
    }
}

// Of all parameters that are trained, where somebody asks.
static float sum_all(const lk_frame *f) {
    const lk_program *p = f->program;
    float all = 0.0f;
    for (uint32_t i = 0; i < p->param_count && p->optimizer->global_clipnorm > 0.0f; i++) {
        float squares[2];
        if (p->params[i].gradient_op == LK_NONE) continue;
        sum_squares(f, i, squares);
        all = all + squares[0];
    }
    return all;
}

// Returns 1 where a norm, or a product, is not finite.
static uint32_t fit(const lk_program *p, const float squares[2], float all, lk_step_scalars *own) {
    if (lk_program_norm(p) == LK_NORM_SPECTRAL) return lk_not_finite(squares[0]);
    return lk_optimizer_fit(p->optimizer, squares, all, own);
}

void lk_norms_flags(const lk_group *group, uint32_t replica, lk_flags *out) {
    const lk_program *p = group->program;
    const lk_frame *f = &group->frames[replica];
    const float all = sum_all(f);
    *out = (lk_flags){.bad_op = LK_NONE, .bad_param = LK_NONE};
    for (uint32_t i = 0; i < p->param_count && out->bad_param == LK_NONE; i++) {
        lk_step_scalars own = lk_group_scalars(group, i);
        float squares[2];
        if (p->params[i].gradient_op == LK_NONE || !wants_squares(p, i)) continue;
        sum_squares(f, i, squares);
        if (fit(p, squares, all, &own)) out->bad_param = i;
    }
}

// What replica `replica` owns of G of a kernel, with respect to what products took, becomes that
// with respect to the kernel; the first replica of a memory keeps its vector.
static void turn_gradient(lk_group *group, uint32_t replica, uint32_t param, const lk_owned *own) {
    const lk_program *p = group->program;
    const lk_frame *f = &group->frames[replica];
    if (!lk_param_is_spectral(p, param) || p->params[param].gradient_op == LK_NONE) return;
    const bool first = (p->layout.shared ? group->first : 0) + replica == 0;
    const lk_spectral s = lk_spectral_at(f, lk_spectral_op(p, param));
    float products[2];
    if (first) lk_spectral_keep(&s);
    if (own->first >= own->end) return;
    sum_squares(f, param, products);
    lk_spectral_turn(group->kernels, &s, products[0], own->first, own->end - own->first,
                     lk_gradient_at(f, param) + own->first);
}

void lk_norms_apply(lk_group *group, uint32_t replica, uint64_t step) {
    const lk_program *p = group->program;
    const lk_frame *f = &group->frames[replica];
    const float all = sum_all(f);
    lk_assert(group->scalars.s == step);
    for (uint32_t i = 0; i < lk_entry_count(p); i++) {
        const lk_owned own = lk_group_owned(group, i, group->first + replica);
        lk_step_scalars scalars = lk_group_scalars(group, i);
        const bool squared = i < p->param_count && wants_squares(p, i);  // a state has none
        float squares[2];
        turn_gradient(group, replica, i, &own);
        if (own.first >= own.end) continue;
        if (squared) sum_squares(f, i, squares);
        if (squared && fit(p, squares, all, &scalars)) {
            group->bad_param[replica] = LK_MIN(group->bad_param[replica], i);
        }
        lk_group_update(group, replica, &scalars, i, own.first, own.end - own.first,
                        lk_gradient_at(f, i) + own.first);
    }
}
