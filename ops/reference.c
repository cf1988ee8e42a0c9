// reference.c - the table of the scalar reference: what every step needs besides its ops.
// Freestanding.
//
// The reference is the contract. It is slow on purpose: one scalar at a time, in the order that
// ops/ARITHMETIC.md states, and it shares no code with the fast kernels. That of an op stands with
// its descriptor in ops/layers/, that of an optimizer in ops/optimizer.c: the table is empty there.
#include "ops/half.h"
#include "ops/layers/sums.h"

static void load_u8(uint64_t count, const uint8_t *src, float *dst) {
    for (uint64_t i = 0; i < count; i++) dst[i] = (float)src[i] * 0x1.010102p-8f;
}

#ifndef LK_SHORT_FORM_ALONE
static void adjust(uint64_t count, uint32_t period, const float *factor, const float *offset,
                   float *x) {
    for (uint64_t i = 0; i < count; i++) {
        x[i] = lk_fmaf(x[i], factor[i % period], offset[i % period]);
    }
}
#endif

static void column_sums(uint32_t n_count, uint32_t grain_count, const lk_grain_view *grains,
                        float *out) {
    for (uint32_t n = 0; n < n_count; n++) {
        tree_sum t;
        tree_start(&t);
        for (uint32_t g = 0; g < grain_count; g++) {
            tree_leaf(&t, grain_sum(&grains[g], NULL, 0, grains[g].dy + n, n_count));
        }
        out[n] = tree_finish(&t);
    }
}

static void add(uint64_t count, const float *a, const float *b, float *out) {
    for (uint64_t i = 0; i < count; i++) out[i] = a[i] + b[i];
}

#if LK_HAS_MIXED
// --- 16 bits -------------------------------------------------------------------------------------

static uint16_t to_half(lk_dtype dtype, float x) {
    return dtype == LK_F16 ? lk_half_from_float(x) : lk_bfloat_from_float(x);
}

static float from_half(lk_dtype dtype, uint16_t h) {
    return dtype == LK_F16 ? lk_half_to_float(h) : lk_bfloat_to_float(h);
}

static void widen(lk_dtype dtype, uint64_t count, const uint16_t *src, float *dst) {
    for (uint64_t i = 0; i < count; i++) dst[i] = from_half(dtype, src[i]);
}

static uint32_t narrow(const lk_narrow *how, uint64_t count, const float *src, uint16_t *dst) {
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        const bool one_layer = how->rule == LK_NARROW_RELU;
        const uint16_t h = to_half(how->dtype, one_layer ? lk_relu(src[i]) : src[i]);
        bad |= lk_not_finite(from_half(how->dtype, h));
        if (one_layer) bad |= lk_not_finite(src[i]);
        const bool positive = h > 0 && h < 0x8000;
        dst[i] = h;
        if (how->rule == LK_NARROW_RELU_AFTER && !positive) dst[i] = 0;
        if (how->rule != LK_NARROW_MASK) continue;
        if (how->mask[i] == 0 || how->mask[i] >= 0x8000) dst[i] = 0;
    }
    return bad;
}

// Sought among the values before ReLU, as the op that does both does; the stored one is after it.
static uint32_t narrow_pool(const lk_narrow *how, const lk_conv2d *c, const float *src,
                            uint16_t *dst, uint8_t *argmax) {
    const lk_narrow cell = {how->dtype, how->rule, NULL};
    const uint64_t line = (uint64_t)c->out_w * c->out_c;
    uint32_t bad = 0;
    for (uint32_t py = 0; py < c->out_h / 2; py++) {
        for (uint32_t px = 0; px < c->out_w / 2; px++) {
            for (uint32_t co = 0; co < c->out_c; co++, dst++, argmax++) {
                float best = 0.0f;
                for (uint32_t k = 0; k < 4; k++) {
                    const uint32_t y = 2 * py + k / 2, x = 2 * px + k % 2;
                    const float v = src[y * line + (uint64_t)x * c->out_c + co];
                    uint16_t h;
                    bad |= narrow(&cell, 1, &v, &h);
                    const float rounded = from_half(how->dtype, to_half(how->dtype, v));
                    if (k > 0 && !(rounded > best)) continue;
                    best = rounded;
                    *argmax = (uint8_t)k;
                    *dst = h;
                }
            }
        }
    }
    return bad;
}

static uint32_t round_floats(lk_dtype dtype, uint64_t count, const float *src, float *dst) {
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        dst[i] = from_half(dtype, to_half(dtype, src[i]));
        bad |= lk_not_finite(dst[i]);
    }
    return bad;
}

#endif

const lk_kernels lk_kernels_reference = {.name = "reference",
                                         .load_u8 = load_u8,
                                         .column_sums = column_sums,
                                         .add = add,
#ifndef LK_SHORT_FORM_ALONE
                                         .adjust = adjust,
#endif
#if LK_HAS_MIXED
                                         .widen = widen,
                                         .narrow = narrow,
                                         .narrow_pool = narrow_pool,
                                         .round = round_floats,
#endif
};
