// half.inc.h - floats of 16 bits in memory: widened as they are loaded, rounded once as they are
// stored. In the words of vector.h; compiled once per variant.
#include "ops/op.h"

// To nearest even by integers: the upper 16 bits are v rounded, the others are to be cut off. A NaN
// may become infinity or a number, so whoever asks looks at v itself, too.
V_INLINE vi bfloat_up(vf v) {
    const vi bits = i_bits(v), odd = i_and(i_shift_right(bits, 16), i_set1(1));
    return i_add(bits, i_add(odd, i_set1(0x7fff)));
}
V_INLINE vf bfloat_round(vf v) {
    return v_from_bits(i_and(bfloat_up(v), i_set1((int32_t)0xffff0000u)));
}

V_INLINE vf half_load(const bool f16, const uint16_t *p) {
    return f16 ? v_load_f16(p) : v_from_bits(i_shift_left(i_load_u16(p), 16));
}
// `rounds`: the store does; otherwise v is rounded already.
V_INLINE void half_store(const bool f16, const bool rounds, uint16_t *p, vf v) {
    if (f16)
        v_store_f16(p, v);
    else
        i_store_u16(p, i_shift_right(rounds ? bfloat_up(v) : i_bits(v), 16));
}
V_INLINE vf half_round(const bool f16, vf v) { return f16 ? v_round_f16(v) : bfloat_round(v); }

// Of fewer than V_LANES the others are +0, and neither read nor written.
V_INLINE vf half_load_first(const bool f16, const uint16_t *p, uint32_t count) {
    uint16_t some[V_LANES] = {0};
    if (count >= V_LANES) return half_load(f16, p);
    memcpy(some, p, count * sizeof *some);
    return half_load(f16, some);
}
V_INLINE void half_store_first(const bool f16, const bool rounds, uint16_t *p, uint32_t count,
                               vf v) {
    uint16_t some[V_LANES];
    half_store(f16, rounds, count >= V_LANES ? p : some, v);
    if (count < V_LANES) memcpy(p, some, count * sizeof *some);
}

// --- of one vector -------------------------------------------------------------------------------

// Stores what v becomes. The store rounds, unless ReLU comes after the rounding. A mask comes
// before: the +0 that it leaves is +0 when it is rounded.
V_INLINE void narrow_store(const bool f16, const lk_narrow_rule rule, const uint16_t *mask,
                           uint32_t count, vf v, uint16_t *dst) {
    if (rule == LK_NARROW_RELU) v = v_relu(v);
    if (rule == LK_NARROW_RELU_AFTER) v = v_relu(half_round(f16, v));
    if (rule == LK_NARROW_MASK) {
        v = v_keep(v_gt(half_load_first(f16, mask, count), v_zero()), v);
    }
    half_store_first(f16, rule != LK_NARROW_RELU_AFTER, dst, count, v);
}

// What is flagged of values and of what they are rounded to, from the patterns of the values: the
// largest as signed numbers has the positive ones, as unsigned numbers the negative ones. So nobody
// waits for a sum of the vector before.
typedef struct half_look {
    vi top, bottom;
} half_look;

V_INLINE half_look half_look_start(void) { return (half_look){i_set1(0), i_set1(0)}; }
V_INLINE void half_look_at(half_look *look, vf v) {
    look->top = i_max(look->top, i_bits(v));
    look->bottom = i_max_u(look->bottom, i_bits(v));
}
// A value from `most` on is rounded to infinity. Of negative ones ReLU leaves none, so that only
// what is not finite itself counts.
V_INLINE uint32_t half_looked(const bool f16, const lk_narrow_rule rule, const half_look *look) {
    const int32_t infinite = 0x7f800000, most = f16 ? 0x477ff000 : 0x7f7f8000;
    const vi size = i_and(look->bottom, i_set1(0x7fffffff));
    const vm up = i_gt(look->top, i_set1(most - 1));
    const vm down = i_gt(size, i_set1((rule == LK_NARROW_RELU ? infinite : most) - 1));
    return (v_bits(up) | v_bits(down)) != 0;
}

// A kernel's finished sums, which become values `at` .. of its output. Lanes from `count` on are
// finite.
V_INLINE vf half_put_of(const bool f16, const lk_narrow_rule rule, const uint16_t *mask,
                        uint32_t count, vf v, uint16_t *dst, vf bad) {
    half_look look = half_look_start();
    half_look_at(&look, v);
    narrow_store(f16, rule, mask, count, v, dst);
    return half_looked(f16, rule, &look) ? v_set1(__builtin_nanf("")) : bad;
}
V_NOINLINE vf half_put(const lk_narrow *how, uint64_t at, uint32_t count, vf v, uint16_t *dst,
                       vf bad) {
    const uint16_t *mask = how->rule == LK_NARROW_MASK ? how->mask + at : NULL;
    if (how->dtype == LK_F16) return half_put_of(true, how->rule, mask, count, v, dst + at, bad);
    return half_put_of(false, how->rule, mask, count, v, dst + at, bad);
}

V_INLINE uint32_t narrow_all(const bool f16, const lk_narrow_rule rule, const uint16_t *mask,
                             uint64_t count, const float *src, uint16_t *dst) {
    half_look look = half_look_start();
    uint64_t i = 0;
    for (; i + V_LANES <= count; i += V_LANES) {
        const vf v = v_load(src + i);
        half_look_at(&look, v);
        narrow_store(f16, rule, mask ? mask + i : NULL, V_LANES, v, dst + i);
    }
    if (i < count) {
        const uint32_t rest = (uint32_t)(count - i);
        const vf v = v_load_first(src + i, rest);
        half_look_at(&look, v);
        narrow_store(f16, rule, mask ? mask + i : NULL, rest, v, dst + i);
    }
    return half_looked(f16, rule, &look);
}

V_INLINE uint32_t narrow_by(const bool f16, const lk_narrow *how, uint64_t count, const float *src,
                            uint16_t *dst) {
    switch (how->rule) {
    case LK_NARROW_RELU: return narrow_all(f16, LK_NARROW_RELU, NULL, count, src, dst);
    case LK_NARROW_RELU_AFTER: return narrow_all(f16, LK_NARROW_RELU_AFTER, NULL, count, src, dst);
    case LK_NARROW_MASK: return narrow_all(f16, LK_NARROW_MASK, how->mask, count, src, dst);
    case LK_NARROW: break;
    }
    return narrow_all(f16, LK_NARROW, NULL, count, src, dst);
}

static uint32_t narrow(const lk_narrow *how, uint64_t count, const float *src, uint16_t *dst) {
    if (how->dtype == LK_F16) return narrow_by(true, how, count, src, dst);
    return narrow_by(false, how, count, src, dst);
}

// The winner of the four cells of a tile, by rounded values before ReLU: its yes/no, as
// v_store_cells_first has them.
typedef struct pool_winner {
    vm right, lower_right, below;
} pool_winner;

// Some channels of a tile: the winner's value after ReLU. What counts in `bad` of a checked tile:
// the sums, and the values rounded; where one layer does both, what ReLU leaves of them, of which
// the winner has the largest.
V_INLINE vf pool_tile(const bool f16, const lk_narrow_rule rule, const vf cell[4],
                      const bool checked, pool_winner *winner, vf *bad) {
    vf r[4], here = v_zero();
    V_UNROLL for (int k = 0; k < 4; k++) {
        r[k] = half_round(f16, cell[k]);
        if (checked) here = v_note(here, cell[k]);
        if (checked && rule != LK_NARROW_RELU) here = v_note(here, r[k]);
    }
    const vf upper = v_max(r[1], r[0]), lower = v_max(r[3], r[2]);
    *winner = (pool_winner){v_gt(r[1], r[0]), v_gt(r[3], r[2]), v_gt(lower, upper)};
    vf best = v_max(lower, upper);
    if (rule != LK_NARROW) best = v_relu(best);
    if (checked && rule == LK_NARROW_RELU) here = v_note(here, best);
    if (checked) *bad = v_add(*bad, here);
    return best;
}

V_INLINE uint32_t pool_all(const bool f16, const lk_narrow_rule rule, const lk_conv2d *c,
                           const float *src, uint16_t *dst, uint8_t *argmax) {
    const uint64_t line = (uint64_t)c->out_w * c->out_c;
    vf bad = v_zero();
    for (uint32_t py = 0; py < c->out_h / 2; py++) {
        for (uint32_t px = 0; px < c->out_w / 2; px++) {
            const float *at = src + 2 * py * line + (uint64_t)(2 * px) * c->out_c;
            for (uint32_t co = 0; co < c->out_c; co += V_LANES) {
                const uint32_t some = LK_MIN(c->out_c - co, (uint32_t)V_LANES);
                const vf cell[4] = {v_load_first(at + co, some),
                                    v_load_first(at + c->out_c + co, some),
                                    v_load_first(at + line + co, some),
                                    v_load_first(at + line + c->out_c + co, some)};
                pool_winner won;
                const vf best = pool_tile(f16, rule, cell, true, &won, &bad);
                v_store_cells_first(argmax + co, some, won.right, won.lower_right, won.below);
                half_store_first(f16, false, dst + co, some, best);
            }
            dst += c->out_c, argmax += c->out_c;
        }
    }
    return v_noted(bad);
}

static uint32_t narrow_pool(const lk_narrow *how, const lk_conv2d *c, const float *src,
                            uint16_t *dst, uint8_t *argmax) {
    const bool f16 = how->dtype == LK_F16;
    switch (how->rule) {
    case LK_NARROW_RELU:
        return f16 ? pool_all(true, LK_NARROW_RELU, c, src, dst, argmax)
                   : pool_all(false, LK_NARROW_RELU, c, src, dst, argmax);
    case LK_NARROW_RELU_AFTER:
        return f16 ? pool_all(true, LK_NARROW_RELU_AFTER, c, src, dst, argmax)
                   : pool_all(false, LK_NARROW_RELU_AFTER, c, src, dst, argmax);
    case LK_NARROW:
    case LK_NARROW_MASK: break;
    }
    return f16 ? pool_all(true, LK_NARROW, c, src, dst, argmax)
               : pool_all(false, LK_NARROW, c, src, dst, argmax);
}

V_INLINE void widen_all(const bool f16, uint64_t count, const uint16_t *src, float *dst) {
    uint64_t i = 0;
    for (; i + V_LANES <= count; i += V_LANES) v_store(dst + i, half_load(f16, src + i));
    for (; i < count; i++) dst[i] = f16 ? lk_half_to_float(src[i]) : lk_bfloat_to_float(src[i]);
}

static void widen(lk_dtype dtype, uint64_t count, const uint16_t *src, float *dst) {
    if (dtype == LK_F16)
        widen_all(true, count, src, dst);
    else
        widen_all(false, count, src, dst);
}

enum { HALVES_OF_A_LINE = 32 };

V_INLINE void widen_rows_of(const bool f16, uint32_t rows, uint64_t count, const uint16_t *src,
                            uint64_t src_stride, float *dst, uint64_t dst_stride) {
    for (uint32_t m = 0; m < rows; m++, src += src_stride, dst += dst_stride) {
        // Of the next row: the processor's own prefetcher cannot follow this many rows.
        for (uint64_t i = 0; i < count; i += HALVES_OF_A_LINE) __builtin_prefetch(src + count + i);
        widen_all(f16, count, src, dst);
    }
}

static void widen_rows(lk_dtype dtype, uint32_t rows, uint64_t count, const uint16_t *src,
                       uint64_t src_stride, float *dst, uint64_t dst_stride) {
    if (dtype == LK_F16)
        widen_rows_of(true, rows, count, src, src_stride, dst, dst_stride);
    else
        widen_rows_of(false, rows, count, src, src_stride, dst, dst_stride);
}

V_INLINE uint32_t round_all(const bool f16, uint64_t count, const float *src, float *dst) {
    half_look look = half_look_start();
    uint64_t i = 0;
    for (; i + V_LANES <= count; i += V_LANES) {
        const vf v = v_load(src + i);
        half_look_at(&look, v);
        v_store(dst + i, half_round(f16, v));
    }
    if (i < count) {
        const uint32_t rest = (uint32_t)(count - i);
        const vf v = v_load_first(src + i, rest);
        half_look_at(&look, v);
        v_store_first(dst + i, rest, half_round(f16, v));
    }
    return half_looked(f16, LK_NARROW, &look);
}

static uint32_t round_floats(lk_dtype dtype, uint64_t count, const float *src, float *dst) {
    return dtype == LK_F16 ? round_all(true, count, src, dst) : round_all(false, count, src, dst);
}
