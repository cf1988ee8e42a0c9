// augment.h - what LOAD does to the images of a step: formulas. ARITHMETIC.md 3 and 10.
// Freestanding, also C++ and CUDA: the processor's LOAD and the GPU's kernel share it.
//
// In training an image is moved, mirrored, made lighter or darker and partly blanked, all of it a
// pure function of the seed, the step and the example's place in the global batch: never of a
// replica, a worker or a microbatch. Normalisation by mean and deviation of each channel is part of
// the model: evaluation does it, too, and nothing else of this.
//
// Of images that are larger than the model's input, crop_from, a part is taken first: anywhere in
// training, the middle in evaluation. All else sees that part alone.
//
//   pixel (y, x) of the result is pixel (y + dy, (flip ? w - 1 - x : x) + dx) of the image; outside
//   of it a black one, or the nearest one
//   value = fma(that, contrast * r, fma(offset, r, s))     r = 1 / deviation, s = -mean * r
//   +0 in the rectangle that is cut out
#ifndef LOCKSTEP_OPS_AUGMENT_H
#define LOCKSTEP_OPS_AUGMENT_H

#include "arena/philox.h"
#include "ops/fmaf.h"
#include "ops/setting.h"

typedef enum lk_augment_padding { LK_PADDED_BLACK, LK_PADDED_EDGE } lk_augment_padding;

enum { LK_AUGMENT_CHANNELS_MAX = LK_SETTING_LIST_MAX };

// data.augment and data.normalize. All of it decides bits; zeros: nothing of it.
typedef struct lk_augment {
    uint32_t shift_h, shift_w;  // the most pixels that it moves, either way
    uint32_t padding;           // lk_augment_padding
    uint32_t flip;              // half of the images are mirrored, left to right
    uint32_t cutout_h, cutout_w;
    float brightness, contrast;
    uint32_t crop_h, crop_w;         // what images of the set have; 0: as many as model.input
    lk_floats_list mean, deviation;  // of each channel; none: images stay as they are
} lk_augment;

static inline bool lk_augment_draws(const lk_augment *a) {
    return a->shift_h || a->shift_w || a->flip || a->cutout_h || a->cutout_w ||
           a->brightness != 0.0f || a->contrast != 0.0f;
}

// What is drawn for one example.
typedef struct lk_augmented {
    int32_t dy, dx;
    bool flip;
    int32_t cut_y, cut_x;  // the first row and column that are cut out
    bool adjusts;          // of contrast and offset there is more than 1 and 0
    float contrast, offset;
} lk_augmented;

// A number below `bound` of a word.
LK_SCALAR uint32_t lk_augment_below(uint32_t word, uint32_t bound) {
    return (uint32_t)((uint64_t)word * bound >> 32);
}

// -1 to below 1
LK_SCALAR float lk_augment_around(uint32_t word) { return 0x1p+1f * lk_unit_float(word) - 0x1p+0f; }

// Of example number `example` of the global batch. `middle`: what contrast leaves as it is.
LK_SCALAR lk_augmented lk_augment_draw(const lk_augment *a, uint64_t seed, uint64_t step,
                                       uint32_t example, uint32_t h, uint32_t w, float middle) {
    const lk_philox_block first = lk_philox_step(seed, LK_PURPOSE_AUGMENT, step, 0, example, 0);
    const lk_philox_block second = lk_philox_step(seed, LK_PURPOSE_AUGMENT, step, 0, example, 1);
    lk_augmented d;
    d.dy = (int32_t)lk_augment_below(first.word[0], 2 * a->shift_h + 1) - (int32_t)a->shift_h;
    d.dx = (int32_t)lk_augment_below(first.word[1], 2 * a->shift_w + 1) - (int32_t)a->shift_w;
    d.flip = a->flip && first.word[2] >> 31;
    d.cut_y = (int32_t)lk_augment_below(second.word[1], h) - (int32_t)(a->cutout_h / 2);
    d.cut_x = (int32_t)lk_augment_below(second.word[2], w) - (int32_t)(a->cutout_w / 2);
    d.adjusts = a->brightness != 0.0f || a->contrast != 0.0f;
    d.contrast = lk_fmaf(a->contrast, lk_augment_around(first.word[3]), 0x1p+0f);
    d.offset =
        lk_fmaf(-d.contrast, middle, middle) + a->brightness * lk_augment_around(second.word[0]);
    return d;
}

// The first row and column of the part that is taken of an image.
typedef struct lk_crop {
    uint32_t top, left;
} lk_crop;
LK_SCALAR lk_crop lk_augment_crop(const lk_augment *a, bool train, uint64_t seed, uint64_t step,
                                  uint32_t example, uint32_t h, uint32_t w) {
    const lk_philox_block drawn = lk_philox_step(seed, LK_PURPOSE_AUGMENT, step, 0, example, 2);
    lk_crop c;
    c.top = (a->crop_h - h) / 2;
    c.left = (a->crop_w - w) / 2;
    if (train) {
        c.top = lk_augment_below(drawn.word[0], a->crop_h - h + 1);
        c.left = lk_augment_below(drawn.word[1], a->crop_w - w + 1);
    }
    return c;
}

// What an evaluation has in its place.
LK_SCALAR lk_augmented lk_augment_none(void) {
    lk_augmented d;
    d.dy = d.dx = d.cut_y = d.cut_x = 0;
    d.flip = d.adjusts = false;
    d.contrast = 0x1p+0f;
    d.offset = 0.0f;
    return d;
}

// A value v of channel c becomes fma(v, factor, offset), where anything of it is wanted.
LK_SCALAR bool lk_augment_adjusts(const lk_augment *a, const lk_augmented *d) {
    return d->adjusts || a->mean.count > 0;
}
LK_SCALAR void lk_augment_channel(const lk_augment *a, const lk_augmented *d, uint32_t c,
                                  float *factor, float *offset) {
    const float r = a->mean.count ? 0x1p+0f / a->deviation.at[c] : 0x1p+0f;
    const float s = a->mean.count ? -a->mean.at[c] * r : 0.0f;
    *factor = d->contrast * r;
    *offset = lk_fmaf(d->offset, r, s);
}

// Is (y, x) of the result cut out?
LK_SCALAR bool lk_augment_is_cut(const lk_augment *a, const lk_augmented *d, uint32_t y,
                                 uint32_t x) {
    return (uint32_t)((int32_t)y - d->cut_y) < a->cutout_h &&
           (uint32_t)((int32_t)x - d->cut_x) < a->cutout_w;
}

// A row or column of the image, of n, by the number it would have; false: there is none.
LK_SCALAR bool lk_augment_inside(const lk_augment *a, uint32_t n, int32_t *at) {
    const bool inside = *at >= 0 && *at < (int32_t)n;
    if (!inside && a->padding == (uint32_t)LK_PADDED_EDGE) {
        *at = *at < 0 ? 0 : (int32_t)n - 1;
        return true;
    }
    return inside;
}

#endif
