// conv_neon.inc.h - 3x3 kernels on images of one channel with pooling, on NEON. Included by
// table.inc.h.
//
// conv.inc.h is for every shape. Here all nine taps of eight output channels stay in registers, so
// that a 2x2 tile of positions loads nothing but its 4x4 patch of pixels. What does not fit, and
// what could overflow, goes to conv.inc.h.

enum {
    PATCH_TAPS = 9,
    PATCH_GROUP = LK_CONV_PANEL / PANEL,  // panels whose weights are packed at once
};

// Sums of the four cells of a tile of 8 channels, in the order of the terms: by rows of pixels.
V_INLINE void patch_cells(vf sum[4][2], const vf w[PATCH_TAPS][2], const vf pixel[4]) {
    V_UNROLL for (int row = 0; row < 4; row++) {
        V_UNROLL for (int kx = 0; kx < 3; kx++) {
            V_UNROLL for (int cell = 0; cell < 4; cell++) {
                const int ky = row - cell / 2;
                if (ky < 0 || ky > 2) continue;
                V_UNROLL for (int v = 0; v < 2; v++) {
                    sum[cell][v] = v_fma_lane(pixel[row], cell % 2 + kx, w[ky * 3 + kx][v],
                                              sum[cell][v]);
                }
            }
        }
    }
}

V_INLINE uint16x8_t narrow(vm low, vm high) {
    return vuzp1q_u16(vreinterpretq_u16_u32(low), vreinterpretq_u16_u32(high));
}

// Maxima and winners of finite sums. fmax takes +0 of two zeros, which is what + 0.0f would make.
V_INLINE void patch_store(const vf sum[4][2], const bool relu, float *y, uint8_t *argmax) {
    vm right[2], lower_right[2], below[2];
    vf best[2], zero = v_zero();
    __asm__ volatile("" : "+w"(zero));  // made again each time: the taps need the registers
    V_UNROLL for (int v = 0; v < 2; v++) {
        right[v] = v_gt(sum[1][v], sum[0][v]);
        lower_right[v] = v_gt(sum[3][v], sum[2][v]);
        vf upper = vmaxq_f32(sum[0][v], sum[1][v]), lower = vmaxq_f32(sum[2][v], sum[3][v]);
        below[v] = v_gt(lower, upper);
        best[v] = vmaxq_f32(upper, lower);
        best[v] = relu ? vmaxq_f32(best[v], zero) : v_add(best[v], zero);
    }
    V_UNROLL for (int v = 0; v < 2; v++) v_store(y + v * V_LANES, best[v]);
    uint16x8_t row = narrow(below[0], below[1]);
    uint16x8_t column = vbslq_u16(row, narrow(lower_right[0], lower_right[1]),
                                  narrow(right[0], right[1]));
    uint8x8_t three = vdup_n_u8(3);
    __asm__ volatile("" : "+w"(three));
    vst1_u8(argmax, vand_u8(vmovn_u16(vsliq_n_u16(column, row, 1)), three));
}

// One panel of 8 channels of one example.
typedef struct patch_panel {
    const float *packed;  // (PATCH_TAPS, PANEL)
    const float *starts;  // (4, PANEL), the bias four times
    const float *image;
    uint64_t image_row;
    const uint64_t *ink;  // of each row of tiles
    uint32_t rows, columns;
    uint64_t out_c;
} patch_panel;

V_INLINE void patch_fill(const patch_panel *p, const bool relu, float *y, uint8_t *argmax) {
    vf w[PATCH_TAPS][2];
    V_UNROLL for (int i = 0; i < 2 * PATCH_TAPS; i++) {
        w[i / 2][i % 2] = v_load(p->packed + i * V_LANES);
    }
    const float *row = p->image, *starts = p->starts;
    const uint64_t image_row = p->image_row, out_c = p->out_c;
    for (uint32_t r = 0; r < p->rows; r++, row += 2 * image_row) {
        const float *pixels = row;
        uint64_t ink = p->ink[r];
        for (uint32_t column = p->columns; column > 0; column--, pixels += 2, ink >>= 2) {
            vf pixel[4], sum[4][2];
            V_FORGET(starts);  // a load for each sum, not a move
            V_UNROLL for (int i = 0; i < 8; i++) sum[i / 2][i % 2] = v_load(starts + i * V_LANES);
            if (ink & 15) {
                V_UNROLL for (int i = 0; i < 4; i++) pixel[i] = v_load(pixels + i * image_row);
                patch_cells(sum, w, pixel);
                patch_store(sum, relu, y, argmax);
            } else {
                V_UNROLL for (int v = 0; v < 2; v++) {
                    v_store(y + v * V_LANES, relu ? v_relu(sum[0][v]) : v_add(sum[0][v], v_zero()));
                }
                vst1_u8(argmax, vdup_n_u8(0));
            }
            y += out_c;
            argmax += out_c;
        }
    }
}

V_NOINLINE void patch_fill_relu(const patch_panel *p, float *y, uint8_t *argmax) {
    patch_fill(p, true, y, argmax);
}
V_NOINLINE void patch_fill_plain(const patch_panel *p, float *y, uint8_t *argmax) {
    patch_fill(p, false, y, argmax);
}

// The columns of each row of tiles that are not blank, as inked_columns says.
static void patch_ink(const float *image, uint64_t image_row, uint32_t rows, uint64_t *ink) {
    uint64_t row_ink[INK_ROWS];
    for (uint32_t r = 0; r < 2 * rows + 2; r++) {
        row_ink[r] = inked_columns(image + r * image_row, image_row, 1, image_row);
    }
    for (uint32_t r = 0; r < rows; r++) {
        ink[r] = row_ink[2 * r] | row_ink[2 * r + 1] | row_ink[2 * r + 2] | row_ink[2 * r + 3];
    }
}

// Weights and starts of the panels of a group: (panels, PATCH_TAPS, PANEL), (panels, 4, PANEL).
static void patch_pack(const lk_conv2d *c, const float *w, const float *bias, uint32_t co,
                       uint32_t panels, float *packed, float *starts) {
    for (uint32_t n = 0; n < panels; n++, co += PANEL) {
        for (uint32_t tap = 0; tap < PATCH_TAPS; tap++, packed += PANEL) {
            copy_floats(PANEL, w + (uint64_t)tap * c->out_c + co, packed);
        }
        for (uint32_t cell = 0; cell < 4; cell++, starts += PANEL) {
            if (bias) copy_floats(PANEL, bias + co, starts);
            else clear_floats(PANEL, starts);
        }
    }
}

static bool patch_fits(const lk_conv2d *c, uint32_t m_count, const float *x, float limit) {
    bool fits = c->kernel_h == 3 && c->kernel_w == 3 && c->in_c * c->stride_h * c->stride_w == 1 &&
                c->out_c % PANEL == 0 && lk_conv_image_w(c) <= 64 &&
                lk_conv_image_h(c) <= INK_ROWS;
    return fits && magnitude(m_count * lk_conv2d_in_floats(c), x) <= limit;
}

static uint32_t conv2d_pool_forward_neon(const lk_conv2d *c, uint32_t m_count, const float *x,
                                         const float *w, const float *bias, float *y,
                                         uint8_t *argmax, lk_ahead *ahead, float *scratch) {
    if (!patch_fits(c, m_count, x, pool_limit(c, w, bias))) {
        return conv2d_pool_forward(c, m_count, x, w, bias, y, argmax, ahead, scratch);
    }
    conv_scratch s = conv_scratch_of(lk_conv_terms_forward(c), lk_conv_image_floats(c), scratch);
    float starts[PATCH_GROUP * 4 * PANEL];
    uint64_t ink[INK_ROWS];
    patch_panel p = {.image_row = lk_conv_image_w(c), .ink = ink, .rows = c->out_h / 2,
                     .columns = c->out_w / 2, .out_c = c->out_c};
    bool direct = image_is_example(c);
    if (!direct) clear_floats(lk_conv_image_floats(c), s.image);
    for (uint32_t co = 0; co < c->out_c; co += PATCH_GROUP * PANEL) {
        uint32_t panels = LK_MIN((c->out_c - co) / PANEL, (uint32_t)PATCH_GROUP);
        patch_pack(c, w, bias, co, panels, s.packed, starts);
        for (uint32_t m = 0; m < m_count; m++) {
            uint64_t at = m * lk_conv2d_pooled_floats(c) + co;
            p.image = direct ? x + m * lk_conv2d_in_floats(c) : s.image;
            if (!direct) image_load(c, x + m * lk_conv2d_in_floats(c), s.image);
            patch_ink(p.image, p.image_row, p.rows, ink);
            for (uint32_t n = 0; n < panels; n++, at += PANEL) {
                p.packed = s.packed + n * PATCH_TAPS * PANEL;
                p.starts = starts + n * 4 * PANEL;
                if (c->relu) patch_fill_relu(&p, y + at, argmax + at);
                else patch_fill_plain(&p, y + at, argmax + at);
            }
        }
    }
    return 0;
}
