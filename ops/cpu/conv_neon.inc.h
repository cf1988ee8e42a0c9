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

// A run of tiles of 8 channels in assembly: neither compiler keeps to 32 registers by itself. In v0
// .. v17 are the taps, in v18 .. v25 the sums of the four cells, in v26 .. v29 the rows of pixels,
// then what the winners are told by. The terms of a row of pixels: all of one row of taps, a and b,
// for the cells l and r.
#define PATCH_PAIR(sum0, sum1, w0, w1, x) \
    "fmla v" #sum0 ".4s, v" #w0 ".4s, " x \
    "\n\t"                                \
    "fmla v" #sum1 ".4s, v" #w1 ".4s, " x "\n\t"
#define PATCH_ROW(x, l0, l1, r0, r1, a0, b0, a1, b1, a2, b2)                    \
    PATCH_PAIR(l0, l1, a0, b0, x ".s[0]")                                       \
    PATCH_PAIR(r0, r1, a0, b0, x ".s[1]")                                       \
    PATCH_PAIR(l0, l1, a1, b1, x ".s[1]") PATCH_PAIR(r0, r1, a1, b1, x ".s[2]") \
        PATCH_PAIR(l0, l1, a2, b2, x ".s[2]") PATCH_PAIR(r0, r1, a2, b2, x ".s[3]")
#define PATCH_UPPER(x, ...) PATCH_ROW(x, 18, 19, 20, 21, __VA_ARGS__)
#define PATCH_LOWER(x, ...) PATCH_ROW(x, 22, 23, 24, 25, __VA_ARGS__)
#define PATCH_TAPS_0        0, 1, 2, 3, 4, 5
#define PATCH_TAPS_1        6, 7, 8, 9, 10, 11
#define PATCH_TAPS_2        12, 13, 14, 15, 16, 17
// A macro's list of arguments must be seen as a list.
#define PATCH_CALL(row, x, taps) row(x, taps)

// Maxima and winners are those of finite sums. fmax takes +0 of two zeros, which is what + 0.0f
// would make.
#define PATCH_STORE(finish)                                                              \
    "fcmgt v26.4s, v20.4s, v18.4s\n\tfcmgt v27.4s, v21.4s, v19.4s\n\t" /* right */       \
    "fcmgt v28.4s, v24.4s, v22.4s\n\tfcmgt v29.4s, v25.4s, v23.4s\n\t" /* lower right */ \
    "fmax v18.4s, v18.4s, v20.4s\n\tfmax v19.4s, v19.4s, v21.4s\n\t"                     \
    "fmax v22.4s, v22.4s, v24.4s\n\tfmax v23.4s, v23.4s, v25.4s\n\t"                     \
    "fcmgt v20.4s, v22.4s, v18.4s\n\tfcmgt v21.4s, v23.4s, v19.4s\n\t" /* below */       \
    "fmax v18.4s, v18.4s, v22.4s\n\tfmax v19.4s, v19.4s, v23.4s\n\t" finish              \
    " v18.4s, v18.4s, v30.4s\n\t" finish                                                 \
    " v19.4s, v19.4s, v30.4s\n\t"                                                        \
    "uzp1 v26.8h, v26.8h, v27.8h\n\tuzp1 v28.8h, v28.8h, v29.8h\n\t"                     \
    "uzp1 v20.8h, v20.8h, v21.8h\n\tbit v26.16b, v28.16b, v20.16b\n\t"                   \
    "sli v26.8h, v20.8h, #1\n\txtn v26.8b, v26.8h\n\tand v26.8b, v26.8b, v31.8b\n\t"     \
    "st1 {v18.4s, v19.4s}, [%[y]], %[step]\n\tst1 {v26.8b}, [%[argmax]], %[cells]\n\t"

#define PATCH_RUN(finish)                                                                         \
    __asm__ volatile(                                                                             \
        "ld1 {v0.4s - v3.4s}, [%[w]], #64\n\tld1 {v4.4s - v7.4s}, [%[w]], #64\n\t"                \
        "ld1 {v8.4s - v11.4s}, [%[w]], #64\n\tld1 {v12.4s - v15.4s}, [%[w]], #64\n\t"             \
        "ld1 {v16.4s, v17.4s}, [%[w]]\n\tmovi v30.4s, #0\n\tmovi v31.8b, #3\n\t1:\n\t"            \
        "ld1 {v18.4s - v21.4s}, [%[starts]]\n\tld1 {v22.4s - v25.4s}, [%[starts]]\n\t"            \
        "ldr q27, [%[x], %[row]]\n\tldr q28, [%[x], %[row2]]\n\tldr q29, [%[x], %[row3]]\n\t"     \
        "ldr q26, [%[x]], #8\n\t" PATCH_CALL(PATCH_UPPER, "v26", PATCH_TAPS_0) PATCH_CALL(        \
            PATCH_UPPER, "v27", PATCH_TAPS_1) PATCH_CALL(PATCH_LOWER, "v27", PATCH_TAPS_0)        \
            PATCH_CALL(PATCH_UPPER, "v28", PATCH_TAPS_2) PATCH_CALL(                              \
                PATCH_LOWER, "v28", PATCH_TAPS_1) PATCH_CALL(PATCH_LOWER, "v29", PATCH_TAPS_2)    \
                PATCH_STORE(finish) "subs %[tiles], %[tiles], #1\n\tb.ne 1b"                      \
        : [w] "+r"(w), [x] "+r"(x), [y] "+r"(y), [argmax] "+r"(argmax), [tiles] "+r"(tiles)       \
        : [starts] "r"(p->starts), [row] "r"(row), [row2] "r"(2 * row), [row3] "r"(3 * row),      \
          [step] "r"(p->out_c * sizeof(float)), [cells] "r"(p->out_c)                             \
        : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", \
          "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25",     \
          "v26", "v27", "v28", "v29", "v30", "v31", "cc", "memory")

// One panel of 8 channels of one example.
typedef struct patch_panel {
    const float *packed;  // (PATCH_TAPS, PANEL)
    const float *starts;  // (2, PANEL), the bias twice
    const float *image;
    uint64_t image_row;
    const uint64_t *ink;  // of each row of tiles: two bits each, the same
    uint32_t rows, columns;
    uint64_t out_c;
} patch_panel;

// `tiles` tiles side by side, one at least.
V_INLINE void patch_run(const patch_panel *p, const float *x, uint64_t tiles, const bool relu,
                        float *y, uint8_t *argmax) {
    const uint64_t row = p->image_row * sizeof *x;
    const float *w = p->packed;
    if (relu)
        PATCH_RUN("fmax");
    else
        PATCH_RUN("fadd");
}

// The same where the image is blank: the bias is what all cells come to, and the first wins.
static void patch_blank(const patch_panel *p, uint64_t tiles, const bool relu, float *y,
                        uint8_t *argmax) {
    vf start[2];
    V_UNROLL for (int v = 0; v < 2; v++) {
        start[v] = v_load(p->starts + v * V_LANES);
        start[v] = relu ? v_relu(start[v]) : v_add(start[v], v_zero());
    }
    for (; tiles > 0; tiles--, y += p->out_c, argmax += p->out_c) {
        V_UNROLL for (int v = 0; v < 2; v++) v_store(y + v * V_LANES, start[v]);
        vst1_u8(argmax, vdup_n_u8(0));
    }
}

// Rows of tiles, run by run: of tiles with ink, of tiles without.
V_INLINE void patch_fill(const patch_panel *p, const bool relu, float *y, uint8_t *argmax) {
    const float *row = p->image;
    for (uint32_t r = 0; r < p->rows; r++, row += 2 * p->image_row) {
        const float *x = row;
        uint64_t ink = p->ink[r], left = p->columns;
        while (left > 0) {
            const bool some = ink & 1;
            const uint64_t other = some ? ~ink : ink;
            const uint64_t run = other ? LK_MIN((uint64_t)__builtin_ctzll(other) / 2, left) : left;
            ink >>= 2 * run % 64;
            if (some)
                patch_run(p, x, run, relu, y, argmax);
            else
                patch_blank(p, run, relu, y, argmax);
            x += 2 * run;
            y += run * p->out_c;
            argmax += run * p->out_c;
            left -= run;
        }
    }
}

V_NOINLINE void patch_fill_relu(const patch_panel *p, float *y, uint8_t *argmax) {
    patch_fill(p, true, y, argmax);
}
V_NOINLINE void patch_fill_plain(const patch_panel *p, float *y, uint8_t *argmax) {
    patch_fill(p, false, y, argmax);
}

// Which tiles see a pixel that is not blank.
static void patch_ink(const float *image, uint64_t image_row, uint32_t rows, uint64_t *ink) {
    uint64_t row_ink[INK_ROWS];
    for (uint32_t r = 0; r < 2 * rows + 2; r++) {
        row_ink[r] = inked_columns(image + r * image_row, image_row, 1, image_row);
    }
    for (uint32_t r = 0; r < rows; r++) {
        uint64_t seen =
            row_ink[2 * r] | row_ink[2 * r + 1] | row_ink[2 * r + 2] | row_ink[2 * r + 3];
        seen |= seen >> 1;
        seen |= seen >> 2;
        seen &= 0x5555555555555555;
        ink[r] = seen | seen << 1;
    }
}

// Weights and starts of the panels of a group: (panels, PATCH_TAPS, PANEL), (panels, 2, PANEL).
static void patch_pack(const lk_conv2d *c, const float *w, const float *bias, uint32_t co,
                       uint32_t panels, float *packed, float *starts) {
    for (uint32_t n = 0; n < panels; n++, co += PANEL) {
        for (uint32_t tap = 0; tap < PATCH_TAPS; tap++, packed += PANEL) {
            copy_floats(PANEL, w + (uint64_t)tap * c->out_c + co, packed);
        }
        for (uint32_t cell = 0; cell < 2; cell++, starts += PANEL) {
            if (bias)
                copy_floats(PANEL, bias + co, starts);
            else
                clear_floats(PANEL, starts);
        }
    }
}

// As magnitude() says, four vectors at a time; the maximum of these instructions keeps what is not
// a number.
static float patch_magnitude(uint64_t count, const float *x) {
    vf most[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    uint64_t i = 0;
    for (; i + 4 * V_LANES <= count; i += 4 * V_LANES) {
        V_UNROLL for (int v = 0; v < 4; v++) {
            most[v] = vmaxq_f32(most[v], v_abs(v_load(x + i + v * V_LANES)));
        }
    }
    most[0] = vmaxq_f32(vmaxq_f32(most[0], most[1]), vmaxq_f32(most[2], most[3]));
    float whole = vmaxvq_f32(most[0]), rest = magnitude(count - i, x + i);
    return whole > rest || whole != whole ? whole : rest;
}

static bool patch_fits(const lk_conv2d *c, uint32_t m_count, const float *x, float limit) {
    bool fits = c->kernel_h == 3 && c->kernel_w == 3 && c->in_c * c->stride_h * c->stride_w == 1 &&
                c->out_c % PANEL == 0 && lk_conv_image_w(c) <= 64 && lk_conv_image_h(c) <= INK_ROWS;
    return fits && patch_magnitude(m_count * lk_conv2d_in_floats(c), x) <= limit;
}

static uint32_t conv2d_pool_forward_neon(const lk_conv2d *c, uint32_t m_count, const float *x,
                                         const float *w, const float *bias, float *y,
                                         uint8_t *argmax, lk_ahead *ahead, float *scratch) {
    if (!patch_fits(c, m_count, x, pool_limit(c, w, bias))) {
        return conv2d_pool_forward(c, m_count, x, w, bias, y, argmax, ahead, scratch);
    }
    conv_scratch s = conv_scratch_of(lk_conv_terms_forward(c), lk_conv_image_floats(c), scratch);
    float starts[PATCH_GROUP * 2 * PANEL];
    uint64_t ink[INK_ROWS];
    patch_panel p = {.image_row = lk_conv_image_w(c),
                     .ink = ink,
                     .rows = c->out_h / 2,
                     .columns = c->out_w / 2,
                     .out_c = c->out_c};
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
                p.starts = starts + n * 2 * PANEL;
                if (c->relu)
                    patch_fill_relu(&p, y + at, argmax + at);
                else
                    patch_fill_plain(&p, y + at, argmax + at);
            }
        }
    }
    return 0;
}
