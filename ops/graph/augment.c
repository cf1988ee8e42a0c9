// augment.c - an image on its way through LOAD: moved, mirrored, adjusted, cut. Freestanding.
//
// The formulas are ops/augment.h's. Bytes become floats row by row, in the place that they move to;
// a mirrored row is turned around where it lies, so nothing is kept besides the result.
#include "ops/graph/augment.h"

enum { PATTERN = 16 };  // pixels that a table of factors and offsets per channel covers

static void copy_pixel(float *to, const float *from, uint32_t channels) {
    for (uint32_t c = 0; c < channels; c++) to[c] = from[c];
}

static void fill(const lk_frame *f, float *row, uint64_t floats) {
    static const uint8_t black[sizeof(float)] = {0};
    float value;
    lk_load_values(f, 1, black, &value);
    for (uint64_t i = 0; i < floats; i++) row[i] = value;
}

static void turn_around(float *row, uint32_t w, uint32_t channels) {
    for (uint32_t left = 0; left < w / 2; left++) {
        float *a = row + (uint64_t)left * channels, *b = row + (uint64_t)(w - 1 - left) * channels;
        for (uint32_t c = 0; c < channels; c++) {
            const float kept = a[c];
            a[c] = b[c];
            b[c] = kept;
        }
    }
}

// Columns before `begin` and from `end` on, of a row whose others are there.
static void pad_row(const lk_frame *f, float *row, uint32_t w, uint32_t begin, uint32_t end) {
    const uint32_t channels = f->program->spec->model.in_c;
    if (f->program->spec->augment.padding == LK_PADDED_BLACK) {
        if (begin) fill(f, row, (uint64_t)begin * channels);
        if (end < w) fill(f, row + (uint64_t)end * channels, (uint64_t)(w - end) * channels);
        return;
    }
    for (uint32_t x = 0; x < begin; x++) {
        copy_pixel(row + (uint64_t)x * channels, row + (uint64_t)begin * channels, channels);
    }
    for (uint32_t x = end; x < w; x++) {
        copy_pixel(row + (uint64_t)x * channels, row + (uint64_t)(end - 1) * channels, channels);
    }
}

// A shift is less than the image: some of every row is there, where the row is. `stride`: pixels
// from one row of the image to the next.
static void load_row(const lk_frame *f, const lk_augmented *d, uint32_t y, const uint8_t *image,
                     uint32_t stride, float *row) {
    const lk_model *m = &f->program->spec->model;
    const uint64_t row_floats = (uint64_t)m->in_w * m->in_c;
    int32_t from = (int32_t)y + d->dy;
    if (!lk_augment_inside(&f->program->spec->augment, m->in_h, &from)) {
        fill(f, row, row_floats);
        return;
    }
    const uint32_t begin = d->dx < 0 ? (uint32_t)-d->dx : 0;
    const uint32_t end = d->dx > 0 ? m->in_w - (uint32_t)d->dx : m->in_w;
    const uint64_t first = (uint64_t)(d->dx > 0 ? d->dx : 0) * m->in_c;
    const uint64_t value = m->input_type == LK_INPUT_F32 ? sizeof(float) : 1;
    lk_load_values(f, (uint64_t)(end - begin) * m->in_c,
                   image + ((uint64_t)from * stride * m->in_c + first) * value,
                   row + (uint64_t)begin * m->in_c);
    pad_row(f, row, m->in_w, begin, end);
    if (d->flip) turn_around(row, m->in_w, m->in_c);
}

static void adjust(const lk_frame *f, const lk_augmented *d, float *x) {
    const lk_model *m = &f->program->spec->model;
    const lk_augment *a = &f->program->spec->augment;
    const uint32_t channels = a->mean.count ? m->in_c : 1, period = channels * PATTERN;
    _Alignas(64) float factor[LK_AUGMENT_CHANNELS_MAX * PATTERN];
    _Alignas(64) float offset[LK_AUGMENT_CHANNELS_MAX * PATTERN];
    for (uint32_t c = 0; c < channels; c++) {
        lk_augment_channel(a, d, c, &factor[c], &offset[c]);
    }
    for (uint32_t i = channels; i < period; i++) {
        factor[i] = factor[i - channels];
        offset[i] = offset[i - channels];
    }
    f->kernels->adjust((uint64_t)m->in_h * m->in_w * m->in_c, period, factor, offset, x);
}

// The part of [first, first + length) that lies in [0, end).
static uint32_t cut_begin(int32_t first) { return first > 0 ? (uint32_t)first : 0; }
static uint32_t cut_end(int32_t first, uint32_t length, uint32_t end) {
    const int64_t last = (int64_t)first + length;
    return last < 0 ? 0 : (uint32_t)LK_MIN(last, (int64_t)end);
}

static void cut(const lk_frame *f, const lk_augmented *d, float *x) {
    const lk_model *m = &f->program->spec->model;
    const lk_augment *a = &f->program->spec->augment;
    const uint32_t begin = cut_begin(d->cut_x), end = cut_end(d->cut_x, a->cutout_w, m->in_w);
    for (uint32_t y = cut_begin(d->cut_y); y < cut_end(d->cut_y, a->cutout_h, m->in_h); y++) {
        float *row = x + (uint64_t)y * m->in_w * m->in_c;
        for (uint64_t i = (uint64_t)begin * m->in_c; i < (uint64_t)end * m->in_c; i++)
            row[i] = 0.0f;
    }
}

void lk_augment_load(const lk_frame *f, bool train, uint64_t step, uint32_t example,
                     const uint8_t *image, float *x) {
    const lk_run_spec *spec = f->program->spec;
    const lk_model *m = &spec->model;
    const lk_augment *a = &spec->augment;
    const uint64_t row_floats = (uint64_t)m->in_w * m->in_c;
    const lk_augmented d = train ? lk_augment_draw(a, spec->seed, step, example, m->in_h, m->in_w,
                                                   lk_spec_middle(spec))
                                 : lk_augment_none();
    const bool crops = f->source->crops;
    const uint32_t stride = crops ? a->crop_w : m->in_w;
    if (crops) {
        const uint64_t value = m->input_type == LK_INPUT_F32 ? sizeof(float) : 1;
        const lk_crop c =
            lk_augment_crop(a, train, spec->seed, step, example, m->in_h, m->in_w);
        image += ((uint64_t)c.top * stride + c.left) * m->in_c * value;
    }
    if (!crops && d.dy == 0 && d.dx == 0 && !d.flip) {
        lk_load_values(f, row_floats * m->in_h, image, x);
    } else {
        for (uint32_t y = 0; y < m->in_h; y++)
            load_row(f, &d, y, image, stride, x + y * row_floats);
    }
    if (lk_augment_adjusts(a, &d)) adjust(f, &d, x);
    if (train && a->cutout_h && a->cutout_w) cut(f, &d, x);
}
