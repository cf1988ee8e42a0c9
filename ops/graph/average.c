// average.c - see average.h. Freestanding.
#include "ops/graph/average.h"

#include "ops/fmaf.h"

uint32_t lk_average_reference(uint64_t count, float keep, const float *w, float *average) {
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        average[i] = lk_fmaf(keep, average[i], (1.0f - keep) * w[i]);
        bad |= !(average[i] - average[i] == 0.0f);
    }
    return bad;
}

// Of the parameters that this objective trains, if it keeps any.
static uint32_t own_tensor(const lk_program *p, uint32_t param) {
    const lk_optimizer *o = p->optimizer;
    if (!lk_optimizer_averages(o) || p->params[param].gradient_op == LK_NONE) return LK_NONE;
    return p->params[param].slots[lk_optimizer_slot_count(o) - 1];
}

const lk_tensor *lk_average_of(const lk_program *p, uint32_t param) {
    for (uint32_t k = 0; k < LK_MAX(p->programs, 1u); k++) {
        const lk_program *own = p->all ? &p->all[k] : p;
        const uint32_t tensor = own_tensor(own, param);
        if (tensor != LK_NONE) return &own->tensors[tensor];
    }
    return NULL;
}

static uint32_t round_some(const lk_program *p, const lk_kernels *kernels, uint8_t *device,
                           uint32_t index, uint64_t first, uint64_t count) {
    const uint32_t weights = p->params[index].rounded;
    const lk_tensor *from = lk_average_of(p, index);
    if (!lk_model_is_mixed(&p->spec->model) || weights == LK_NONE || !from) return 0;
    const lk_tensor *to = &p->tensors[weights + 1];  // as it was built, after that of the weights
    return kernels->round(lk_model_dtype(&p->spec->model), count,
                          (const float *)(void *)(device + from->offset) + first,
                          (float *)(void *)(device + to->offset) + first);
}

static uint32_t round_average(const lk_program *p, uint8_t *device, uint32_t index) {
    return round_some(p, &lk_kernels_reference, device, index, 0, p->params[index].count);
}

static uint32_t follow_weights(const lk_frame *f, const lk_step_scalars *s, uint32_t index,
                               uint64_t first, uint64_t count) {
    const lk_kernels *k = f->kernels;
    const uint32_t tensor = own_tensor(f->program, index);
    if (tensor == LK_NONE) return 0;
    float *at = (float *)lk_tensor_at(f, tensor) + first;
    const float *w = lk_param_at(f, index) + first;
    const uint32_t bad =
        (k->average ? k->average : lk_average_reference)(count, s->average, w, at);
    return bad | round_some(f->program, k, f->device, index, first, count);
}

static void take_averages(const lk_frame *f, const lk_op *op, lk_lane *lane) {
    for (uint32_t i = 0; i < LK_OP_PARAMS; i++) {
        const uint32_t param = op->param[i];
        const lk_tensor *average = param == LK_NONE ? NULL : lk_average_of(f->program, param);
        if (!average) continue;
        const uint32_t rounded = f->program->params[param].rounded;
        const bool mixed = i == 0 && lk_model_is_mixed(&f->program->spec->model);
        if (mixed && rounded != LK_NONE) average = &f->program->tensors[rounded + 1];
        lane->param[i] = (float *)(void *)(f->device + average->offset);
    }
}

static void start_averages(const lk_program *p, uint8_t *device) {
    for (uint32_t k = 0; k < LK_MAX(p->programs, 1u); k++) {
        const lk_program *own = p->all ? &p->all[k] : p;
        for (uint32_t i = 0; i < own->param_count; i++) {
            const uint32_t tensor = own_tensor(own, i);
            if (tensor == LK_NONE) continue;
            __builtin_memcpy(device + own->tensors[tensor].offset,
                             device + own->tensors[own->params[i].tensor].offset,
                             own->params[i].count * sizeof(float));
            (void)round_average(own, device, i);  // its verdict: lk_mixed_round's
        }
    }
}

const lk_average_calls lk_average_linked = {
    .follow = follow_weights,
    .take = take_averages,
    .start = start_averages,
    .round = round_average};
