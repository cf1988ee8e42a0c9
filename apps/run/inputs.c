// inputs.c - see inputs.h.
#include "apps/run/inputs.h"

#include "ops/fmaf.h"
#include "ops/graph/augment.h"

uint8_t lk_input_byte(const lk_model *model, float x) {
    const bool is_signed = model->input_range == LK_RANGE_SIGNED;
    const float scaled = is_signed ? x * 127.5f + 127.5f : x * 255.0f;
    const uint32_t halves = scaled >= 255.0f ? 510 : scaled > 0.0f ? (uint32_t)(scaled * 2.0f) : 0;
    return (uint8_t)((halves + 1) / 2);
}

static uint64_t image_floats(const lk_model *m) { return (uint64_t)m->in_h * m->in_w * m->in_c; }

uint64_t lk_input_bytes(const lk_run *run) {
    return image_floats(&run->config.spec.model) * (sizeof(float) + 1);
}

const uint8_t *lk_input_show(const lk_run *run, uint64_t step, uint32_t example,
                             const uint8_t *image, void *room) {
    const lk_run_spec *spec = &run->config.spec;
    const lk_augment *a = &spec->augment;
    const uint64_t floats = image_floats(&spec->model);
    const lk_frame f = {
        .program = &run->program, .kernels = run->kernels, .source = &run->train_source};
    float *x = room;
    uint8_t *bytes = (uint8_t *)(x + floats);
    if (lk_spec_augments(spec, true) || f.source->crops) {
        lk_augment_load(&f, true, step, example, image, x);
    } else {
        lk_load_values(&f, floats, image, x);
    }
    for (uint64_t i = 0; i < floats; i++) {
        const uint64_t c = a->mean.count ? i % a->mean.count : 0;
        const float plain = a->mean.count ? lk_fmaf(x[i], a->deviation.at[c], a->mean.at[c]) : x[i];
        bytes[i] = lk_input_byte(&spec->model, plain);
    }
    return bytes;
}
