// conv_scatter.inc.h - the gradient of the input from a pooled gradient. Included by conv.inc.h.
//
// Three of four cells of the output have gradient zero, and often the fourth. So the winners go
// back one position after the other: lanes are taps (kx, ci), consecutive in the image as in the
// packed weights, and a winner adds its gradient times all taps of its channel to the sums of the
// pixels it saw. A pixel (y, x) meets tap (ky, kx) at position (y - ky, x - kx) (strides apart):
// positions in descending order, channels ascending in each, are the terms of every sum in the
// contract's order. Sums must be one slice.

enum { SCATTER_TILE = 12 };  // vectors of taps that are summed at once

typedef struct scatter {
    const lk_conv2d *c;
    float *image;               // sums, `pitch` floats a row
    float *packed;              // (out_c, vectors * V_LANES)
    float *values;              // the winners of a position
    uint32_t *numbers;          // their output channels
    uint64_t pitch;
    uint32_t run_vectors, vectors;  // of one kernel row, of all
} scatter;

static scatter scatter_of(const lk_conv2d *c, float *scratch) {
    scatter s = {.c = c, .image = scratch, .pitch = lk_conv_scatter_pitch(c)};
    s.run_vectors = (c->kernel_w * c->in_c + V_LANES - 1) / V_LANES;
    s.vectors = c->kernel_h * s.run_vectors;
    s.values = s.image + lk_conv_scatter_image_floats(c);
    s.numbers = (uint32_t *)(void *)(s.values + lk_conv_scatter_list_floats(c));
    s.packed = s.values + 2 * lk_conv_scatter_list_floats(c);
    return s;
}

// Weights by output channel; lanes past the end of a kernel row are zero and add nothing.
static void scatter_pack(const scatter *s, const float *w) {
    const lk_conv2d *c = s->c;
    uint32_t run = c->kernel_w * c->in_c, width = s->run_vectors * V_LANES;
    for (uint32_t co = 0; co < c->out_c; co++) {
        float *to = s->packed + (uint64_t)co * s->vectors * V_LANES;
        for (uint32_t ky = 0; ky < c->kernel_h; ky++) {
            for (uint32_t i = 0; i < width; i++) {
                *to++ = i < run ? w[((uint64_t)ky * run + i) * c->out_c + co] : 0.0f;
            }
        }
    }
}

// Adds the listed winners of one position to the sums at `pixel`, the first that it saw.
V_INLINE void scatter_add(const scatter *s, uint32_t count, float *pixel, uint32_t first,
                          const int vectors) {
    float *at[SCATTER_TILE];
    vf sum[SCATTER_TILE];
    V_UNROLL for (int v = 0; v < vectors; v++) {
        uint32_t vector = first + (uint32_t)v;
        at[v] = pixel + vector / s->run_vectors * s->pitch + vector % s->run_vectors * V_LANES;
        sum[v] = v_load(at[v]);
    }
    const float *packed = s->packed + (uint64_t)first * V_LANES;
    uint64_t width = (uint64_t)s->vectors * V_LANES;
    for (uint32_t i = 0; i < count; i++) {
        const float *w = packed + s->numbers[i] * width;
        vf d = v_set1(s->values[i]);
        V_UNROLL for (int v = 0; v < vectors; v++) {
            sum[v] = v_fma(v_load(w + v * V_LANES), d, sum[v]);
        }
    }
    V_UNROLL for (int v = 0; v < vectors; v++) v_store(at[v], sum[v]);
}

static void scatter_position(const scatter *s, uint32_t count, float *pixel) {
    uint32_t blocks = (s->vectors + SCATTER_TILE - 1) / SCATTER_TILE;
    for (uint32_t b = 0; b < blocks; b++) {
        uint32_t first = s->vectors * b / blocks, last = s->vectors * (b + 1) / blocks;
        switch (last - first) {
#define SCATTER_ADD(n) case n: scatter_add(s, count, pixel, first, n); break;
            SCATTER_ADD(1)
            SCATTER_ADD(2)
            SCATTER_ADD(3)
            SCATTER_ADD(4)
            SCATTER_ADD(5)
            SCATTER_ADD(6)
            SCATTER_ADD(7)
            SCATTER_ADD(8)
            SCATTER_ADD(9)
            SCATTER_ADD(10)
            SCATTER_ADD(11)
            SCATTER_ADD(12)
#undef SCATTER_ADD
        }
    }
}

static void scatter_example(const scatter *s, const float *dy, const uint8_t *argmax) {
    const lk_conv2d *c = s->c;
    uint32_t pooled_w = c->out_w / 2;
    clear_floats(lk_conv_scatter_image_floats(c), s->image);
    for (uint32_t oy = c->out_h / 2 * 2; oy-- > 0;) {
        for (uint32_t ox = pooled_w * 2; ox-- > 0;) {
            uint64_t at = ((uint64_t)(oy / 2) * pooled_w + ox / 2) * c->out_c;
            uint8_t cell = (uint8_t)(oy % 2 * 2 + ox % 2);
            uint32_t count = 0;
            for (uint32_t co = 0; co < c->out_c; co += V_LANES) {
                count += v_winners(dy + at + co, argmax + at + co, c->out_c - co, cell, co,
                                   s->values + count, s->numbers + count);
            }
            if (count == 0) continue;
            scatter_position(s, count, s->image + (uint64_t)oy * c->stride_h * s->pitch +
                                           (uint64_t)ox * c->stride_w * c->in_c);
        }
    }
}

// `count` finished sums, or zeros, to dx.
static vf scatter_store(uint64_t count, const float *sum, const float *mask, float *dx, vf bad) {
    for (uint64_t i = 0; i < count; i += V_LANES) {
        uint32_t left = (uint32_t)LK_MIN(count - i, (uint64_t)V_LANES);
        vf v = sum ? v_add(v_load_first(sum + i, left), v_zero()) : v_zero();
        bad = v_note(bad, v);
        if (mask) v = v_keep(v_gt(v_load_first(mask + i, left), v_zero()), v);
        v_store_first(dx + i, left, v);
    }
    return bad;
}

// Copies the pixels of the example out of the image; what no position saw has gradient +0.
static uint32_t scatter_finish(const scatter *s, const float *mask, float *dx) {
    const lk_conv2d *c = s->c;
    uint64_t h = lk_conv_image_h(c), w = lk_conv_image_w(c), row = (uint64_t)c->in_w * c->in_c;
    uint64_t columns = LK_MIN((uint64_t)c->in_w, w > c->pad_left ? w - c->pad_left : 0);
    uint64_t seen = columns * c->in_c;
    vf bad = v_zero();
    for (uint32_t iy = 0; iy < c->in_h; iy++, dx += row) {
        const float *sum = s->image + ((uint64_t)iy + c->pad_top) * s->pitch +
                           (uint64_t)c->pad_left * c->in_c;
        uint64_t count = iy + (uint64_t)c->pad_top < h ? seen : 0;
        bad = scatter_store(count, sum, mask, dx, bad);
        bad = scatter_store(row - count, NULL, mask ? mask + count : NULL, dx + count, bad);
        if (mask) mask += row;
    }
    return v_noted(bad);
}

static uint32_t scatter_gradient(const lk_conv2d *c, uint32_t m_count, const float *w,
                                 const float *dy, const uint8_t *argmax, const float *mask,
                                 float *dx, float *scratch) {
    scatter s = scatter_of(c, scratch);
    uint64_t pooled = lk_conv2d_pooled_floats(c), in = lk_conv2d_in_floats(c);
    uint32_t bad = 0;
    scatter_pack(&s, w);
    for (uint32_t m = 0; m < m_count; m++) {
        scatter_example(&s, dy + m * pooled, argmax + m * pooled);
        bad |= scatter_finish(&s, mask ? mask + m * in : NULL, dx + m * in);
    }
    return bad;
}
