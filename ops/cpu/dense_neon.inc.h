// dense_neon.inc.h - dense layers on NEON, where ReLU's zeros pay most. Included by table.inc.h.
//
// dense.inc.h leaves out what is zero for a whole tile of examples. With 32 registers of 4 lanes a
// tile can be one example (or one unit) and 16 to 24 vectors, so that every single zero costs
// nothing, and ld1 fetches four vectors at once. Where a shape does not fit, dense.inc.h computes.

typedef float32x4x4_t vf4;  // four vectors, side by side in memory

enum {
    LINE = 4 * V_LANES,
    PANEL_UNITS = 4 * LINE,  // lanes of a tile of the forward pass
    INPUTS_LINES = 6,
    INPUTS = INPUTS_LINES * LINE,  // lanes of a tile of either gradient
};

// The address of the next four vectors is known only when these four sums are: so it moves on as a
// part of the load, and clang does not load all lines at once until it spills.
#define LINE_DONE(p, s)                                                                          \
    __asm__("" : "+r"(p), "+w"((s)[0]), "+w"((s)[1]), "+w"((s)[2]), "+w"((s)[3]))

// --- forward -------------------------------------------------------------------------------------

_Static_assert((int)PANEL_UNITS <= LK_DENSE_PANEL_MAX, "scratch is sized for this panel");

typedef struct panel_block {
    const float *w;  // (k_count, n_count), from the panel's first unit
    uint64_t n_count;
    uint64_t level;  // floats of a level of `node`
    float *node;     // (levels, examples, PANEL_UNITS)
} panel_block;

typedef vf panel_sums[PANEL_UNITS / V_LANES];

static inline uint32_t bits_of(const float *x) {
    uint32_t bits;
    memcpy(&bits, x, sizeof bits);
    return bits;
}

V_INLINE void panel_add(panel_sums sum, const float *row, vf x, int lane) {
    V_FORGET(row);  // one address, that moves on
    V_UNROLL for (int i = 0; i < PANEL_UNITS / V_LANES; i += 4) {
        vf4 r = vld1q_f32_x4(row);
        V_UNROLL for (int v = 0; v < 4; v++) {
            sum[i + v] = v_fma_lane(x, lane, r.val[v], sum[i + v]);
        }
        row += LINE;
        LINE_DONE(row, sum + i);
    }
}

// One slice of one example, from term k on: leaf `slice` of its trees.
V_NOINLINE void panel_slice(const panel_block *b, const float *x, uint32_t terms, const float *w,
                            const float *start, uint64_t slice, float *node) {
    const uint64_t stride = b->n_count;
    panel_sums sum;
    V_UNROLL for (int v = 0; v < PANEL_UNITS / V_LANES; v++) sum[v] = v_load(start + v * V_LANES);
    for (; terms >= 8; terms -= 8, x += 8, w += 8 * stride) {
        const vf value[2] = {v_load(x), v_load(x + V_LANES)};
        uint32_t bits[8];
        V_UNROLL for (int j = 0; j < 8; j++) bits[j] = bits_of(x + j);
        V_UNROLL for (int j = 0; j < 8; j++) {
            if (bits[j]) panel_add(sum, w + (uint64_t)j * stride, value[j / 4], j % 4);
        }
    }
    for (; terms > 0; terms--, x++, w += stride) panel_add(sum, w, v_set1(*x), 0);
    for (; slice & 1; slice >>= 1, node += b->level) {
        const float *left = node;
        V_UNROLL for (int v = 0; v < PANEL_UNITS / V_LANES; v++) {
            sum[v] = v_add(v_load(left + v * V_LANES), sum[v]);
        }
    }
    V_UNROLL for (int v = 0; v < PANEL_UNITS / V_LANES; v++) v_store(node + v * V_LANES, sum[v]);
}

// All examples of a block pass over one slice's rows of the panel before the next.
static vf panel_forward(const panel_block *b, const lk_dense *d, uint32_t examples, const float *x,
                        const float *bias, float *y, vf bad) {
    static const float zeros[PANEL_UNITS];
    uint64_t slices = 0;
    for (uint32_t k = 0; k < d->k_count; k += LK_SLICE_TERMS, slices++) {
        uint32_t terms = LK_MIN(d->k_count - k, (uint32_t)LK_SLICE_TERMS);
        for (uint32_t m = 0; m < examples; m++) {
            panel_slice(b, x + (uint64_t)m * d->k_count + k, terms, b->w + k * b->n_count,
                        k == 0 && bias ? bias : zeros, slices, b->node + m * PANEL_UNITS);
        }
    }
    for (uint32_t m = 0; m < examples; m++, y += b->n_count) {
        for (uint32_t n = 0; n < PANEL_UNITS; n += V_LANES) {
            vf sum = tree_root((uint32_t)b->level, slices, b->node, m * PANEL_UNITS + n);
            sum = v_add(sum, v_zero());
            bad = v_note(bad, sum);
            v_store(y + n, d->relu ? v_relu(sum) : sum);
        }
    }
    return bad;
}

// Panels of PANEL_UNITS; what units are left, dense.inc.h computes.
static uint32_t dense_forward_neon(const lk_dense *d, uint32_t m_count, const float *x,
                                   const float *w, const float *bias, float *y, float *scratch) {
    vf bad = v_zero();
    uint32_t wide = d->n_count / PANEL_UNITS * PANEL_UNITS;
    if (wide == 0) return dense_forward(d, m_count, x, w, bias, y, scratch);
    for (uint32_t m = 0; m < m_count; m += LK_DENSE_EXAMPLES) {
        uint32_t examples = LK_MIN(m_count - m, (uint32_t)LK_DENSE_EXAMPLES);
        for (uint32_t n = 0; n < wide; n += PANEL_UNITS) {
            panel_block b = {w + n, d->n_count, examples * PANEL_UNITS, scratch};
            bad = panel_forward(&b, d, examples, x + (uint64_t)m * d->k_count,
                                bias ? bias + n : NULL, y + (uint64_t)m * d->n_count + n, bad);
        }
    }
    return v_noted(bad) | dense_forward_from(d, wide, m_count, x, w, bias, y, scratch);
}

// --- gradients: sums of many inputs side by side -------------------------------------------------

typedef vf inputs_sums[4 * INPUTS_LINES];

// One term: sum = row * factor + sum.
V_INLINE void inputs_add(inputs_sums sum, const float *row, float factor) {
    V_UNROLL for (int i = 0; i < 4 * INPUTS_LINES; i += 4) {
        vf4 r = vld1q_f32_x4(row);
        V_UNROLL for (int v = 0; v < 4; v++) {
            sum[i + v] = vfmaq_n_f32(sum[i + v], r.val[v], factor);
        }
        row += LINE;
        LINE_DONE(row, sum + i);
    }
}

// The first term of a chain that starts from zero. A product that is -0 stays so: a zero's sign
// means nothing before + 0.0f.
V_INLINE void inputs_first(inputs_sums sum, const float *row, float factor) {
    V_UNROLL for (int i = 0; i < 4 * INPUTS_LINES; i += 4) {
        vf4 r = vld1q_f32_x4(row);
        V_UNROLL for (int v = 0; v < 4; v++) sum[i + v] = vmulq_n_f32(r.val[v], factor);
        row += LINE;
        LINE_DONE(row, sum + i);
    }
}

V_INLINE void inputs_clear(inputs_sums sum) {
    V_UNROLL for (int i = 0; i < 4 * INPUTS_LINES; i++) sum[i] = v_zero();
}

// --- input gradient ------------------------------------------------------------------------------

// Deep, as in dense.inc.h: lanes are inputs, and a panel of weights transposed serves all examples.
// The terms of each are listed once: the units whose gradient is not zero, and -1 at the end.
typedef struct deep_block {
    const float *w, *dy, *mask;  // as of the kernel, from the block's first example
    float *dx;
    uint32_t m_count, k_count, n_count;
    float *transposed;  // (units, INPUTS)
    int8_t *terms;      // (m_count, INPUT_TERMS + 1)
} deep_block;
_Static_assert(INPUT_TERMS * INPUTS + (INPUT_TERMS + 1) * LK_DENSE_EXAMPLES / 4 <=
                   LK_DENSE_RUN * LK_DENSE_DEEP_MAX, "scratch is sized for panel and lists");

static void deep_list(const deep_block *b) {
    for (uint32_t m = 0; m < b->m_count; m++) {
        int8_t *t = b->terms + m * (INPUT_TERMS + 1);
        for (uint32_t n = 0; n < b->n_count; n++) {
            *t = (int8_t)n;
            t += b->dy[m * b->n_count + n] != 0.0f;
        }
        *t = -1;
    }
}

// to[j][i] = from[i][j], i < 8, j < 4: ld4 puts four floats into one lane of four vectors. gcc 12,
// told so by intrinsics, moves all four around each of them.
V_INLINE void turn_8x4(const float *from, uint64_t stride, float *to) {
    __asm__ volatile("ld4 {v0.s - v3.s}[0], [%0], %2\n\tld4 {v0.s - v3.s}[1], [%0], %2\n\t"
            "ld4 {v0.s - v3.s}[2], [%0], %2\n\tld4 {v0.s - v3.s}[3], [%0], %2\n\t"
            "ld4 {v4.s - v7.s}[0], [%0], %2\n\tld4 {v4.s - v7.s}[1], [%0], %2\n\t"
            "ld4 {v4.s - v7.s}[2], [%0], %2\n\tld4 {v4.s - v7.s}[3], [%0], %2\n\t"
            "stp q0, q4, [%1]\n\tstp q1, q5, [%1, %3]\n\t"
            "stp q2, q6, [%1, %4]\n\tstr q3, [%1, %5]\n\tstr q7, [%1, %6]"
            : "+r"(from)
            : "r"(to), "r"(stride * sizeof(float)), "i"(4 * INPUTS), "i"(8 * INPUTS),
              "i"(12 * INPUTS), "i"(12 * INPUTS + 16)
            : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "memory");
}

// Weights of inputs k .. for all units.
static void deep_panel_load(const deep_block *b, uint32_t k) {
    const uint64_t stride = b->n_count;
    uint32_t n = 0;
    for (; n + V_LANES <= b->n_count; n += V_LANES) {
        const float *w = b->w + k * stride + n;
        float *out = b->transposed + n * INPUTS;
        for (float *end = out + INPUTS; out < end; out += 8, w += 8 * stride) {
            turn_8x4(w, stride, out);
        }
    }
    for (uint32_t lane = 0; n < b->n_count && lane < INPUTS; lane += V_LANES) {
        transpose(b->w + (k + lane) * stride + n, stride, V_LANES, b->n_count - n,
                  b->transposed + n * INPUTS + lane, INPUTS);
    }
}

// Finishes, masks and stores the sums of inputs k .. of example m.
V_INLINE vf deep_store(const deep_block *b, uint64_t at, const inputs_sums sum, vf bad) {
    float *dx = b->dx + at;
    if (!b->mask) {
        V_UNROLL for (int v = 0; v < 4 * INPUTS_LINES; v++) {
            vf finished = v_add(sum[v], v_zero());
            bad = v_note(bad, finished);
            v_store(dx + v * V_LANES, finished);
        }
        return bad;
    }
    const float *mask = b->mask + at;
    V_UNROLL for (int i = 0; i < 4 * INPUTS_LINES; i += 4) {
        vf4 open = vld1q_f32_x4(mask);
        V_UNROLL for (int v = 0; v < 4; v++) {
            vf finished = v_add(sum[i + v], v_zero());
            bad = v_note(bad, finished);
            open.val[v] = v_keep(v_gt(open.val[v], v_zero()), finished);
        }
        V_UNROLL for (int v = 0; v < 4; v++) v_store(dx + (i + v) * V_LANES, open.val[v]);
        mask += LINE;
        __asm__("" : "+r"(mask), "+w"(bad));
    }
    return bad;
}

// Inputs k .. of all examples of a block.
V_NOINLINE void deep_tile(const deep_block *b, uint32_t k, vf *bad) {
    const char *rows = (const char *)b->transposed;
    int64_t pitch = INPUTS * sizeof(float);
    V_FORGET(pitch);  // for the compiler to multiply and add at once
    for (uint32_t m = 0; m < b->m_count; m++) {
        const int8_t *t = b->terms + m * (INPUT_TERMS + 1);
        const float *dy = b->dy + (uint64_t)m * b->n_count;
        int64_t unit = *t++;
        inputs_sums sum;
        if (unit >= 0) {
            inputs_first(sum, (const float *)(const void *)(rows + unit * pitch), dy[unit]);
            while ((unit = *t++) >= 0) {
                inputs_add(sum, (const float *)(const void *)(rows + unit * pitch), dy[unit]);
            }
        } else {
            inputs_clear(sum);
        }
        *bad = deep_store(b, (uint64_t)m * b->k_count + k, sum, *bad);
    }
}

static uint32_t dense_input_gradient_neon(const lk_dense *d, uint32_t m_count, const float *w,
                                          const float *dy, const float *mask, float *dx,
                                          float *scratch) {
    if (d->n_count > INPUT_TERMS || d->k_count < INPUTS) {
        return dense_input_gradient(d, m_count, w, dy, mask, dx, scratch);
    }
    vf bad = v_zero();
    for (uint32_t m = 0; m < m_count; m += LK_DENSE_EXAMPLES) {
        uint64_t at = (uint64_t)m * d->k_count;
        deep_block b = {
            .w = w, .dy = dy + (uint64_t)m * d->n_count, .mask = mask ? mask + at : NULL,
            .dx = dx + at, .m_count = LK_MIN(m_count - m, (uint32_t)LK_DENSE_EXAMPLES),
            .k_count = d->k_count, .n_count = d->n_count, .transposed = scratch,
            .terms = (int8_t *)(scratch + INPUT_TERMS * INPUTS),
        };
        deep_list(&b);
        // The last panel is moved back over inputs already done: the same bits again.
        for (uint32_t k = 0; k < d->k_count; k += INPUTS) {
            uint32_t first = LK_MIN(k, d->k_count - INPUTS);
            deep_panel_load(&b, first);
            deep_tile(&b, first, &bad);
        }
    }
    return v_noted(bad);
}

// --- weight gradient -----------------------------------------------------------------------------

// Lanes are inputs, and the terms of a unit are the examples of which it has a gradient. Their list
// is made once for a block of units and serves all tiles of inputs.
enum {
    UNITS = 16,             // of a block, at most
    TERMS_MAX = 2560,       // of its lists, with their ends
    WEIGHT_FLOATS = 30720,  // that a caller had best ask for at once: making the lists takes time
};

typedef struct unit_term {
    const float *x;  // the example's inputs; NULL ends the terms of a grain
    float dy;
} unit_term;

typedef struct unit_block {
    const lk_grain_view *grains;
    uint32_t grain_count, k_count, n_count;
    uint32_t k, n, units;
    uint32_t terms_max;  // of one unit, with their ends
    unit_term *terms;    // (units, terms_max), grain after grain
    bool some[UNITS];    // has terms
    float *node;         // (LK_TREE_LEVELS_MAX, INPUTS)
} unit_block;

V_INLINE void unit_list(unit_term **next, const float *x, const float *dy) {
    if (bits_of(dy)) *(*next)++ = (unit_term){x, *dy};
}

static void unit_terms(unit_block *b) {
    unit_term *next[UNITS];
    for (uint32_t u = 0; u < b->units; u++) next[u] = b->terms + u * b->terms_max;
    for (uint32_t g = 0; g < b->grain_count; g++) {
        const float *dy = b->grains[g].dy + b->n, *x = b->grains[g].x;
        for (uint32_t m = 0; m < b->grains[g].examples; m++, x += b->k_count, dy += b->n_count) {
            if (b->units == UNITS) {
                V_UNROLL for (int u = 0; u < UNITS; u++) unit_list(next + u, x, dy + u);
            } else {
                for (uint32_t u = 0; u < b->units; u++) unit_list(next + u, x, dy + u);
            }
        }
        for (uint32_t u = 0; u < b->units; u++) *next[u]++ = (unit_term){NULL, 0.0f};
    }
    for (uint32_t u = 0; u < b->units; u++) {
        b->some[u] = next[u] - b->terms - u * b->terms_max > b->grain_count;
    }
}

V_INLINE void inputs_join(inputs_sums sum, const float *node) {
    V_UNROLL for (int i = 0; i < 4 * INPUTS_LINES; i += 4) {
        vf4 left = vld1q_f32_x4(node);
        V_UNROLL for (int v = 0; v < 4; v++) sum[i + v] = v_add(left.val[v], sum[i + v]);
        node += LINE;
        LINE_DONE(node, sum + i);
    }
}

// The node of one unit's grains.
V_INLINE void unit_sum(const unit_block *b, const unit_term *t, inputs_sums sum) {
    const uint64_t k = b->k;
    const uint32_t last = b->grain_count - 1;
    for (uint32_t grain = 0;; grain++, t++) {
        if (t->x) {
            inputs_first(sum, t->x + k, t->dy);
            for (t++; t->x; t++) inputs_add(sum, t->x + k, t->dy);
        } else {
            inputs_clear(sum);
        }
        float *node = b->node;
        uint32_t leaves = grain;
        if (grain == last) {
            for (; leaves; leaves >>= 1, node += INPUTS) {
                if (leaves & 1) inputs_join(sum, node);
            }
            return;
        }
        for (; leaves & 1; leaves >>= 1, node += INPUTS) inputs_join(sum, node);
        V_UNROLL for (int v = 0; v < 4 * INPUTS_LINES; v++) v_store(node + v * V_LANES, sum[v]);
    }
}

// A vector of inputs of UNITS units, as rows of dw.
V_INLINE void unit_rows(const float *stage, float *dw, uint64_t stride) {
    vf4 square[UNITS / V_LANES];
    V_UNROLL for (int u = 0; u < UNITS / V_LANES; u++) square[u] = vld4q_f32(stage + u * LINE);
    V_UNROLL for (int i = 0; i < V_LANES; i++, dw += stride) {
        V_UNROLL for (int u = 0; u < UNITS / V_LANES; u++) {
            v_store(dw + u * V_LANES, square[u].val[i]);
        }
    }
}

// Inputs b->k .. of a block of units.
V_NOINLINE void unit_tile(const unit_block *b, float *dw) {
    float stage[INPUTS / V_LANES][UNITS][V_LANES];
    for (uint32_t u = 0; u < b->units; u++) {
        inputs_sums sum;
        if (b->some[u]) unit_sum(b, b->terms + u * b->terms_max, sum);
        else inputs_clear(sum);
        float *at = stage[0][u];
        V_FORGET(at);
        V_UNROLL for (int v = 0; v < 4 * INPUTS_LINES; v++) {
            v_store(at + v * UNITS * V_LANES, sum[v]);
        }
    }
    const uint64_t stride = b->n_count;
    const uint32_t units = b->units;
    for (uint32_t v = 0; v < INPUTS / V_LANES; v++, dw += V_LANES * stride) {
        if (units == UNITS) {
            unit_rows(stage[v][0], dw, stride);
            continue;
        }
        for (uint32_t u = 0; u < units; u += V_LANES) {
            vf4 square = vld4q_f32(stage[v][u]);
            V_UNROLL for (uint32_t i = 0; i < V_LANES; i++) {
                v_store_first(dw + i * stride + u, units - u, square.val[i]);
            }
        }
    }
}

static void dense_weight_gradient_neon(const lk_dense *d, uint32_t grain_count,
                                       const lk_grain_view *grains, const lk_weight_rows *rows,
                                       float *dw, float *scratch) {
    // The lists are made anew, and lie where the other way keeps what it found.
    const uint32_t k0 = rows->first, k1 = rows->end;
    unit_block b = {.grains = grains, .grain_count = grain_count, .k_count = d->k_count,
                    .n_count = d->n_count, .node = scratch};
    uint64_t terms = grain_count;
    bool fits = k1 - k0 >= INPUTS;
    if (rows->w) weight_fetch(d, k0, k1, rows->w);
    for (uint32_t g = 0; g < grain_count; g++) {
        terms += grains[g].examples;
        fits &= grains[g].examples <= LK_SLICE_TERMS;
    }
    if (!fits || terms * V_LANES > TERMS_MAX) {
        lk_weight_rows anew = *rows;
        anew.again = false;
        dense_weight_gradient(d, grain_count, grains, &anew, dw, scratch);
        return;
    }
    b.terms_max = (uint32_t)terms;
    b.terms = (unit_term *)(void *)(scratch + LK_TREE_LEVELS_MAX * INPUTS);
    const uint32_t step = (uint32_t)LK_MIN(TERMS_MAX / terms / V_LANES * V_LANES, (uint64_t)UNITS);
    for (b.n = 0; b.n < d->n_count; b.n += step) {
        b.units = LK_MIN(d->n_count - b.n, step);
        unit_terms(&b);
        // The last tile is moved back over inputs already done: the same bits again.
        for (uint32_t k = k0; k < k1; k += INPUTS) {
            b.k = LK_MIN(k, k1 - INPUTS);
            unit_tile(&b, dw + (uint64_t)(b.k - k0) * d->n_count + b.n);
        }
    }
}
