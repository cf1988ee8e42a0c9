// conv_weight_neon.inc.h - the weight gradient of 3x3 kernels on images of one channel with
// pooling, on NEON. Included by conv_weight.inc.h, whose third way it is, for two vectors of
// channels at once: all sums stay in registers, a table of two rows of a tile's pixels serves 6
// picks, and the picks of neighbouring taps are a float apart.

enum {
    PATCH_BIAS = 9,  // after the taps
    PATCH_SUMS,      // of a vector of channels
};

static bool patch_adds(const part *p) {
    const lk_conv2d *c = p->c;
    return c->kernel_h == 3 && c->kernel_w == 3 && c->in_c * c->stride_h * c->stride_w == 1;
}

// Bytes that make picks: where the pixel that a cell's first tap sees begins in the table; the
// bytes of a float; and of the next float.
typedef struct pick_bytes {
    uint8x16_t first, bytes, next;
} pick_bytes;
static const uint8_t patch_picks[3][16] = {
    {0, 4, 16, 20},
    {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3},
    {4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4},
};

// One term of 4 channels. A table is of consecutive registers: compilers, free to choose, would
// copy each row of pixels for each table that it is in.
#define PATCH_TERM(sum, pick, d, low, v_low, high, v_high)   \
    do {                                                     \
        register vf low_ __asm__(v_low) = (low);             \
        register vf high_ __asm__(v_high) = (high);          \
        vf x_;                                               \
        __asm__("tbl %1.16b, {" v_low ".16b, " v_high        \
                ".16b}, %2.16b\n\t"                          \
                "fmla %0.4s, %1.4s, %3.4s"                   \
                : "+w"(sum), "=&w"(x_)                       \
                : "w"(pick), "w"(d), "w"(low_), "w"(high_)); \
    } while (0)

// The terms of one tile.
V_INLINE void patch_terms(vf sum[PATCH_SUMS][2], const vf d[2], const float *pixel,
                          uint64_t image_w, const uint8_t *argmax, const pick_bytes *picks) {
    uint8x16_t cells = vcombine_u8(vld1_u8(argmax), vdup_n_u8(0)), pick[2];
    vf row[4];
    cells = vqtbl1q_u8(picks->first, cells);
    cells = vzip1q_u8(cells, cells);  // each of 8 twice, then four times
    pick[0] = vaddq_u8(vzip1q_u8(cells, cells), picks->bytes);
    pick[1] = vaddq_u8(vzip2q_u8(cells, cells), picks->bytes);
    V_UNROLL for (int i = 0; i < 4; i++) row[i] = v_load(pixel + i * image_w);
    V_UNROLL for (int kx = 0; kx < 3; kx++) {
        V_UNROLL for (int v = 0; v < 2; v++) {
            PATCH_TERM(sum[kx][v], pick[v], d[v], row[0], "v28", row[1], "v29");
            PATCH_TERM(sum[3 + kx][v], pick[v], d[v], row[1], "v29", row[2], "v30");
            PATCH_TERM(sum[6 + kx][v], pick[v], d[v], row[2], "v30", row[3], "v31");
            if (kx < 2) pick[v] = vaddq_u8(pick[v], picks->next);
        }
    }
}

// Output channels co .. co + 2 * V_LANES - 1, tiles t0 .. t1 - 1.
V_NOINLINE void patch_add(const part *p, uint32_t t0, uint32_t t1, uint32_t co, float *at) {
    const uint64_t out_c = p->c->out_c, wide = tiles_w(p->c), pooled_w = p->c->out_w / 2;
    const uint64_t image_w = lk_conv_image_w(p->c);
    const uint64_t ink_step = image_w <= 64 ? 2 : 0;  // more columns than bits: all set, and kept
    vf sum[PATCH_SUMS][2];
    V_UNROLL for (int i = 0; i < 2 * PATCH_SUMS; i++) {
        sum[i % PATCH_SUMS][i / PATCH_SUMS] = v_load(at + i * V_LANES);
    }
    pick_bytes picks = {vld1q_u8(patch_picks[0]), vld1q_u8(patch_picks[1]),
                        vld1q_u8(patch_picks[2])};
    __asm__("" : "+w"(picks.first), "+w"(picks.bytes), "+w"(picks.next));
    uint64_t ty = t0 / wide, tx = t0 % wide;
    for (uint32_t t = t0; t < t1 && ty < p->c->out_h / 2;) {
        // The tiles of one tile row; those of an odd last column have no terms.
        uint64_t n = LK_MIN(wide - tx, (uint64_t)(t1 - t)), end = LK_MIN(tx + n, pooled_w);
        const float *dy = p->dy + (ty * pooled_w + tx) * out_c + p->co + co;
        const uint8_t *argmax = p->argmax + (ty * pooled_w + tx) * out_c + p->co + co;
        const float *pixel = p->image + 2 * ty * image_w + 2 * tx;
        uint64_t ink = ink_of_rows(p, 2 * ty, 4) >> tx * ink_step;
        for (; tx < end; tx++, dy += out_c, argmax += out_c, pixel += 2, ink >>= ink_step) {
            const vf d[2] = {v_load(dy), v_load(dy + V_LANES)};
            sum[PATCH_BIAS][0] = v_add(sum[PATCH_BIAS][0], d[0]);
            sum[PATCH_BIAS][1] = v_add(sum[PATCH_BIAS][1], d[1]);
            if (ink & 15) patch_terms(sum, d, pixel, image_w, argmax, &picks);
        }
        t += (uint32_t)n;
        tx = 0;
        ty++;
    }
    V_UNROLL for (int i = 0; i < 2 * PATCH_SUMS; i++) {
        v_store(at + i * V_LANES, sum[i % PATCH_SUMS][i / PATCH_SUMS]);
    }
}
