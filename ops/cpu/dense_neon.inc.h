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
#define LINE_DONE(p, s) \
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
    for (; terms >= 16; terms -= 16) {
        V_UNROLL for (int half = 0; half < 2; half++, x += 8, w += 8 * stride) {
            const vf value[2] = {v_load(x), v_load(x + V_LANES)};
            uint32_t some[8];
            V_UNROLL for (int j = 0; j < 8; j++) some[j] = v_word(x + j);
            V_UNROLL for (int j = 0; j < 8; j++) {
                if (some[j]) panel_add(sum, w + (uint64_t)j * stride, value[j / 4], j % 4);
            }
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
    return v_noted(bad) | dense_forward_from(d, NULL, wide, m_count, x, w, bias, y, scratch);
}

// --- gradients: sums of many inputs side by side -------------------------------------------------

typedef vf inputs_sums[4 * INPUTS_LINES];

V_INLINE void inputs_clear(inputs_sums sum) {
    V_UNROLL for (int i = 0; i < 4 * INPUTS_LINES; i++) sum[i] = v_zero();
}

// A chain in assembly: 28 registers at once are more than gcc 12 gives out without moving some
// about. The sums are v8 .. v31; a term is `op` of a row, which `x` names, and a factor.
#define INPUTS_LINE(op, x, a, b, c, d, factor)                                                 \
    "ld1 {v0.4s - v3.4s}, [" x "], #64\n\t" op " v" #a ".4s, v0.4s, " factor "\n\t" op " v" #b \
    ".4s, v1.4s, " factor "\n\t" op " v" #c ".4s, v2.4s, " factor "\n\t" op " v" #d            \
    ".4s, v3.4s, " factor "\n\t"
#define INPUTS_TERM(op, x, factor)                                                        \
    INPUTS_LINE(op, x, 8, 9, 10, 11, factor)                                              \
    INPUTS_LINE(op, x, 12, 13, 14, 15, factor)                                            \
    INPUTS_LINE(op, x, 16, 17, 18, 19, factor) INPUTS_LINE(op, x, 20, 21, 22, 23, factor) \
        INPUTS_LINE(op, x, 24, 25, 26, 27, factor) INPUTS_LINE(op, x, 28, 29, 30, 31, factor)
// The first term is a product: if -0, it stays so, a zero's sign meaning nothing before + 0.0f.
// Then four at a time share the loads of their factors. `move`(x) takes a row to its first lane.
#define INPUTS_CHAIN(move) \
    "ldr x11, [%[row]]\n\tadd x9, %[row], #8\n\tldr s4, [%[factor]]\n\t"                      \
    "add x10, %[factor], #4\n\t" move("x11") INPUTS_TERM("fmul", "x11", "v4.s[0]")           \
    "subs x13, %[count], #5\n\tb.lo 2f\n\t"                                                  \
    "1:\n\tldp x11, x12, [x9], #16\n\tldr q4, [x10], #16\n\t"                               \
    move("x11") INPUTS_TERM("fmla", "x11", "v4.s[0]")                                        \
    move("x12") INPUTS_TERM("fmla", "x12", "v4.s[1]") "ldp x11, x12, [x9], #16\n\t"          \
    move("x11") INPUTS_TERM("fmla", "x11", "v4.s[2]")                                        \
    move("x12") INPUTS_TERM("fmla", "x12", "v4.s[3]") "subs x13, x13, #4\n\tb.hs 1b\n\t"     \
    "2:\n\tadds x13, x13, #4\n\tb.eq 4f\n\t"                                                \
    "3:\n\tldr x11, [x9], #8\n\tldr s4, [x10], #4\n\t"                                      \
    move("x11") INPUTS_TERM("fmla", "x11", "v4.s[0]") "subs x13, x13, #1\n\tb.ne 3b\n\t4:"
#define INPUTS_MOVE(x) "add " x ", " x ", %[k]\n\t"
#define INPUTS_STAY(x) ""
#define INPUTS_ASM(move)                                                                          \
    __asm__ volatile(                                                                             \
        INPUTS_CHAIN(move)                                                                        \
        : "=w"(s8), "=w"(s9), "=w"(s10), "=w"(s11), "=w"(s12), "=w"(s13), "=w"(s14), "=w"(s15),   \
          "=w"(s16), "=w"(s17), "=w"(s18), "=w"(s19), "=w"(s20), "=w"(s21), "=w"(s22), "=w"(s23), \
          "=w"(s24), "=w"(s25), "=w"(s26), "=w"(s27), "=w"(s28), "=w"(s29), "=w"(s30), "=w"(s31)  \
        : [row] "r"(row), [k] "r"(k * sizeof(float)), [factor] "r"(factor), [count] "r"(count)    \
        : "v0", "v1", "v2", "v3", "v4", "x9", "x10", "x11", "x12", "x13", "cc", "memory")
#define INPUTS_NAME(i) register vf s##i __asm__("v" #i)
#define INPUTS_NAMES(a, b, c, d) \
    INPUTS_NAME(a);              \
    INPUTS_NAME(b);              \
    INPUTS_NAME(c);              \
    INPUTS_NAME(d)

// A chain of `count` terms from zero, lanes at floats k .. of the rows.
V_INLINE void inputs_sum(inputs_sums sum, const float *const *row, const uint64_t k,
                         const float *factor, uint64_t count, const bool move) {
    _Static_assert(INPUTS_LINES == 6, "24 sums");
    INPUTS_NAMES(8, 9, 10, 11);
    INPUTS_NAMES(12, 13, 14, 15);
    INPUTS_NAMES(16, 17, 18, 19);
    INPUTS_NAMES(20, 21, 22, 23);
    INPUTS_NAMES(24, 25, 26, 27);
    INPUTS_NAMES(28, 29, 30, 31);
    if (count == 0) {
        inputs_clear(sum);
        return;
    }
    if (move)
        INPUTS_ASM(INPUTS_MOVE);
    else
        INPUTS_ASM(INPUTS_STAY);
    const inputs_sums all = {s8,  s9,  s10, s11, s12, s13, s14, s15, s16, s17, s18, s19,
                             s20, s21, s22, s23, s24, s25, s26, s27, s28, s29, s30, s31};
    V_UNROLL for (int i = 0; i < 4 * INPUTS_LINES; i++) sum[i] = all[i];
}

// --- input gradient ------------------------------------------------------------------------------

// Deep, as in dense.inc.h: lanes are inputs, and a panel of weights transposed serves all examples.
// The terms of each are listed once: the units whose gradient is not zero.
typedef struct deep_block {
    const float *w, *dy, *mask;  // as of the kernel, from the block's first example
    float *dx;
    uint32_t m_count, k_count, n_count;
    float *transposed;   // (units rounded up to V_LANES, INPUTS)
    const float **rows;  // (m_count, n_count) of `transposed`
    float *factors;      // (m_count, n_count) of dy
    uint32_t *count;     // (m_count)
} deep_block;
_Static_assert((int)INPUTS <= (int)LK_DENSE_DEEP_MAX, "scratch is sized for this panel");

static void deep_list(const deep_block *b) {
    for (uint32_t m = 0; m < b->m_count; m++) {
        const float *dy = b->dy + m * b->n_count, *row = b->transposed;
        const float **rows = b->rows + m * b->n_count;
        float *factors = b->factors + m * b->n_count;
        uint32_t count = 0;
        for (uint32_t n = 0; n < b->n_count; n++, row += INPUTS) {
            rows[count] = row;
            factors[count] = dy[n];
            count += dy[n] != 0.0f;
        }
        b->count[m] = count;
    }
}

// to[j][i] = from[i][j], i < 16, j < 4: ld4 puts four floats into one lane of four vectors. gcc 12,
// told so by intrinsics, moves all four around each of them. Returns from + 16 rows.
V_INLINE const float *turn_16x4(const float *from, uint64_t stride, float *to) {
#define TURN_4(a, d)                                                    \
    "ld4 {v" #a ".s - v" #d ".s}[0], [%0], %2\n\tld4 {v" #a ".s - v" #d \
    ".s}[1], [%0], %2\n\t"                                              \
    "ld4 {v" #a ".s - v" #d ".s}[2], [%0], %2\n\tld4 {v" #a ".s - v" #d ".s}[3], [%0], %2\n\t"
    float *third = to + 2 * INPUTS;
    __asm__ volatile(TURN_4(0, 3) TURN_4(4, 7) TURN_4(16, 19) TURN_4(20, 23)
            "stp q0, q4, [%1]\n\tstp q16, q20, [%1, #32]\n\t"
            "stp q1, q5, [%1, %4]\n\tstp q17, q21, [%1, %5]\n\t"
            "stp q2, q6, [%3]\n\tstp q18, q22, [%3, #32]\n\t"
            "stp q3, q7, [%3, %4]\n\tstp q19, q23, [%3, %5]"
            : "+r"(from)
            : "r"(to), "r"(stride * sizeof(float)), "r"(third), "i"(4 * INPUTS),
              "i"(4 * INPUTS + 32)
            : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16", "v17", "v18", "v19", "v20",
              "v21", "v22", "v23", "memory");
#undef TURN_4
    return from;
}

// Weights of inputs k .. for all units.
static void deep_panel_load(const deep_block *b, uint32_t k) {
    const uint64_t stride = b->n_count;
    uint32_t n = 0;
    for (; n + V_LANES <= b->n_count; n += V_LANES) {
        const float *w = b->w + k * stride + n;
        float *out = b->transposed + n * INPUTS;
        for (float *end = out + INPUTS; out < end; out += 16) w = turn_16x4(w, stride, out);
    }
    for (uint32_t lane = 0; n < b->n_count && lane < INPUTS; lane += V_LANES) {
        transpose(b->w + (k + lane) * stride + n, stride, V_LANES, b->n_count - n,
                  b->transposed + n * INPUTS + lane, INPUTS);
    }
}
_Static_assert(INPUTS % 16 == 0, "turned 16 at a time");

// dx = mask > 0 ? sum : +0, for four vectors. Both addresses move on.
V_INLINE void deep_mask(const float **mask, float **dx, const vf sum[4]) {
    __asm__ volatile(
        "ld1 {v0.4s - v3.4s}, [%0], #64\n\t"
        "fcmgt v0.4s, v0.4s, #0.0\n\tfcmgt v1.4s, v1.4s, #0.0\n\t"
        "fcmgt v2.4s, v2.4s, #0.0\n\tfcmgt v3.4s, v3.4s, #0.0\n\t"
        "and v0.16b, v0.16b, %2.16b\n\tand v1.16b, v1.16b, %3.16b\n\t"
        "and v2.16b, v2.16b, %4.16b\n\tand v3.16b, v3.16b, %5.16b\n\t"
        "st1 {v0.4s - v3.4s}, [%1], #64"
        : "+r"(*mask), "+r"(*dx)
        : "w"(sum[0]), "w"(sum[1]), "w"(sum[2]), "w"(sum[3])
        : "v0", "v1", "v2", "v3", "memory");
}

// Finishes, masks and stores the sums of inputs k .. of example m.
V_INLINE vf deep_store(const deep_block *b, uint64_t at, const inputs_sums sum, vf bad) {
    const float *mask = b->mask ? b->mask + at : NULL;
    float *dx = b->dx + at;
    V_UNROLL for (int i = 0; i < 4 * INPUTS_LINES; i += 4) {
        vf finished[4];
        V_UNROLL for (int v = 0; v < 4; v++) {
            finished[v] = v_add(sum[i + v], v_zero());
            bad = v_note(bad, finished[v]);
        }
        if (mask) {
            deep_mask(&mask, &dx, finished);
            continue;
        }
        V_UNROLL for (int v = 0; v < 4; v++) v_store(dx + v * V_LANES, finished[v]);
        dx += LINE;
    }
    return bad;
}

// Inputs k .. of all examples of a block.
V_NOINLINE void deep_tile(const deep_block *b, uint32_t k, vf *bad) {
    for (uint32_t m = 0; m < b->m_count; m++) {
        inputs_sums sum;
        inputs_sum(sum, b->rows + m * b->n_count, 0, b->factors + m * b->n_count, b->count[m],
                   false);
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
    float *lists = scratch + lk_round_up(d->n_count, V_LANES) * INPUTS;
    for (uint32_t m = 0; m < m_count; m += LK_DENSE_EXAMPLES) {
        uint64_t at = (uint64_t)m * d->k_count;
        deep_block b = {
            .w = w,
            .dy = dy + (uint64_t)m * d->n_count,
            .mask = mask ? mask + at : NULL,
            .dx = dx + at,
            .m_count = LK_MIN(m_count - m, (uint32_t)LK_DENSE_EXAMPLES),
            .k_count = d->k_count,
            .n_count = d->n_count,
            .transposed = scratch,
        };
        b.rows = (const float **)(void *)lists;
        b.factors = (float *)(void *)(b.rows + b.m_count * b.n_count);
        b.count = (uint32_t *)(void *)(b.factors + b.m_count * b.n_count);
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

// Lanes are inputs, and the terms of a unit are the examples of which it has a gradient. Their
// lists serve all tiles of inputs and, where there is room for those of all units, all calls.
enum {
    UNITS = 16,  // of a block
    STAGE_FLOATS = INPUTS * UNITS,
    WEIGHT_FLOATS = 30720,  // weights that one call should be for: making its lists takes time
};

typedef struct unit_block {
    const lk_grain_view *grains;
    uint32_t grain_count, k_count, n_count;
    uint32_t terms;   // room for those of one unit
    uint32_t listed;  // units with lists
    const float **x;  // (listed, terms) the example's inputs, grain after grain
    float *dy;        // (listed, terms) the unit's gradient of that example
    uint32_t *count;  // (listed, grain_count)
    uint32_t *kept;   // whether the lists are those of all units, for another call
    float *node;      // (LK_TREE_LEVELS_MAX, INPUTS)
    float *stage;     // (INPUTS / V_LANES, UNITS, V_LANES)
} unit_block;

// Units n .. n + listed - 1.
static void unit_lists(const unit_block *b, uint32_t n) {
    for (uint32_t u = 0; u < b->listed; u++) {
        const float **to_x = b->x + u * b->terms;
        float *to_dy = b->dy + u * b->terms;
        for (uint32_t g = 0; g < b->grain_count; g++) {
            const float *dy = b->grains[g].dy + n + u, *x = b->grains[g].x;
            uint32_t count = 0;
            for (uint32_t m = 0; m < b->grains[g].examples; m++) {
                to_x[count] = x;
                to_dy[count] = *dy;
                count += v_word(dy) != 0;
                x += b->k_count;
                dy += b->n_count;
            }
            b->count[u * b->grain_count + g] = count;
            to_x += count;
            to_dy += count;
        }
    }
}

// sum = node + sum
V_INLINE void inputs_join(inputs_sums sum, const float *node) {
    V_UNROLL for (int i = 0; i < 4 * INPUTS_LINES; i += 4) {
        __asm__(
            "ld1 {v0.4s - v3.4s}, [%0], #64\n\tfadd %1.4s, v0.4s, %1.4s\n\t"
            "fadd %2.4s, v1.4s, %2.4s\n\tfadd %3.4s, v2.4s, %3.4s\n\t"
            "fadd %4.4s, v3.4s, %4.4s"
            : "+r"(node), "+w"(sum[i]), "+w"(sum[i + 1]), "+w"(sum[i + 2]), "+w"(sum[i + 3])
            : "m"(*(const float(*)[INPUTS])node)
            : "v0", "v1", "v2", "v3");
    }
}

// The node of one unit's grains, inputs k .., to the stage.
V_NOINLINE void unit_sum(const unit_block *b, uint32_t unit, uint64_t k, float *stage) {
    const float *const *x = b->x + unit * b->terms;
    const float *dy = b->dy + unit * b->terms;
    const uint32_t *count = b->count + unit * b->grain_count, last = b->grain_count - 1;
    inputs_sums sum;
    for (uint32_t grain = 0;; grain++) {
        const uint32_t terms = count[grain];
        inputs_sum(sum, x, k, dy, terms, true);
        x += terms;
        dy += terms;
        float *node = b->node;
        uint32_t leaves = grain;
        if (grain == last) {
            for (; leaves; leaves >>= 1, node += INPUTS) {
                if (leaves & 1) inputs_join(sum, node);
            }
            break;
        }
        for (; leaves & 1; leaves >>= 1, node += INPUTS) inputs_join(sum, node);
        V_UNROLL for (int v = 0; v < 4 * INPUTS_LINES; v++) v_store(node + v * V_LANES, sum[v]);
    }
    V_UNROLL for (int v = 0; v < 4 * INPUTS_LINES; v++)
        v_store(stage + v * UNITS * V_LANES, sum[v]);
}

// Four inputs of UNITS units of the stage become rows of dw. gcc 12, told so by intrinsics, moves
// each vector once more.
_Static_assert(UNITS == 16, "four registers of four lanes");
V_INLINE void unit_rows(const float *stage, float *dw, uint64_t stride) {
    __asm__ volatile(
        "ld4 {v0.4s - v3.4s}, [%0], #64\n\tld4 {v4.4s - v7.4s}, [%0], #64\n\t"
        "ld4 {v16.4s - v19.4s}, [%0], #64\n\tld4 {v20.4s - v23.4s}, [%0]\n\t"
        "stp q0, q4, [%1]\n\tstp q16, q20, [%1, #32]\n\tadd %1, %1, %2\n\t"
        "stp q1, q5, [%1]\n\tstp q17, q21, [%1, #32]\n\tadd %1, %1, %2\n\t"
        "stp q2, q6, [%1]\n\tstp q18, q22, [%1, #32]\n\tadd %1, %1, %2\n\t"
        "stp q3, q7, [%1]\n\tstp q19, q23, [%1, #32]"
        : "+r"(stage), "+r"(dw)
        : "r"(stride * sizeof(float))
        : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16", "v17", "v18", "v19", "v20", "v21",
          "v22", "v23", "memory");
}

// Inputs k .. of listed units u0 .. u0 + units - 1. The stage has zeros for those without terms.
static void unit_tile(const unit_block *b, uint64_t k, uint32_t u0, uint32_t units, uint32_t some,
                      float *dw) {
    const uint64_t stride = b->n_count;
    for (; some; some &= some - 1) {
        const uint32_t u = (uint32_t)__builtin_ctz(some);
        unit_sum(b, u0 + u, k, b->stage + u * V_LANES);
    }
    const float *stage = b->stage;
    for (uint32_t v = 0; v < INPUTS / V_LANES; v++, stage += UNITS * V_LANES) {
        if (units == UNITS) unit_rows(stage, dw, stride);
        for (uint32_t u = 0; units < UNITS && u < units; u += V_LANES) {
            vf4 square = vld4q_f32(stage + u * V_LANES);
            V_UNROLL for (uint32_t i = 0; i < V_LANES; i++) {
                v_store_first(dw + i * stride + u, units - u, square.val[i]);
            }
        }
        dw += V_LANES * stride;
    }
}

// Bit i: unit u0 + i has terms.
static uint32_t units_with_terms(const unit_block *b, uint32_t u0, uint32_t units) {
    const uint32_t *count = b->count + u0 * b->grain_count;
    uint32_t some = 0;
    for (uint32_t u = 0; u < units; u++) {
        uint32_t terms = 0;
        for (uint32_t g = 0; g < b->grain_count; g++) terms += *count++;
        some |= (uint32_t)(terms > 0) << u;
    }
    return some;
}

// The lists are laid out behind nodes and stage. Returns false where they do not fit.
static bool unit_layout(unit_block *b, const lk_dense *d, float *scratch) {
    const uint64_t used = LK_TREE_LEVELS_MAX * INPUTS + STAGE_FLOATS + LK_LANES_MAX;
    const lk_op op = {.dense = *d};
    const uint64_t room = lk_op_dense_weight_gradient.scratch_floats(&op, 1) - used;
    uint64_t terms = 0;
    for (uint32_t g = 0; g < b->grain_count; g++) {
        if (b->grains[g].examples > LK_SLICE_TERMS) return false;
        terms += b->grains[g].examples;
    }
    const uint64_t unit = terms * (sizeof *b->x + sizeof *b->dy) / sizeof(float) + b->grain_count;
    const uint64_t most = room / unit, whole = most >= UNITS ? UNITS : V_LANES;
    b->listed = most >= b->n_count ? b->n_count : (uint32_t)(most / whole * whole);
    b->terms = (uint32_t)terms;
    b->node = scratch;
    b->stage = b->node + LK_TREE_LEVELS_MAX * INPUTS;
    b->kept = (uint32_t *)(void *)(b->stage + STAGE_FLOATS);
    b->x = (const float **)(void *)(b->stage + STAGE_FLOATS + LK_LANES_MAX);
    b->dy = (float *)(void *)(b->x + b->listed * terms);
    b->count = (uint32_t *)(void *)(b->dy + b->listed * terms);
    return b->listed > 0;
}

static void dense_weight_gradient_neon(const lk_dense *d, uint32_t grain_count,
                                       const lk_grain_view *grains, const lk_weight_rows *rows,
                                       float *dw, float *scratch) {
    const uint32_t k0 = rows->first, k1 = rows->end;
    unit_block b = {.grains = grains, .grain_count = grain_count, .k_count = d->k_count,
                    .n_count = d->n_count};
    const bool fits = unit_layout(&b, d, scratch);
    if (rows->w) weight_fetch(d, k0, k1, rows->w);
    if (!fits || k1 - k0 < INPUTS) {
        lk_weight_rows anew = *rows;
        anew.again = false;
        dense_weight_gradient(d, grain_count, grains, &anew, dw, scratch);
        if (fits) *b.kept = false;
        return;
    }
    const bool again = rows->again && *b.kept;
    *b.kept = b.listed == d->n_count;
    for (uint32_t n = 0; n < d->n_count; n += b.listed) {
        b.listed = LK_MIN(b.listed, d->n_count - n);
        if (!again) unit_lists(&b, n);
        for (uint32_t u = 0; u < b.listed; u += UNITS) {
            const uint32_t units = LK_MIN(b.listed - u, (uint32_t)UNITS);
            const uint32_t some = units_with_terms(&b, u, units);
            clear_floats(STAGE_FLOATS, b.stage);
            // The last tile is moved back over inputs already done: the same bits again.
            for (uint32_t k = k0; k < k1; k += INPUTS) {
                const uint32_t at = LK_MIN(k, k1 - INPUTS);
                unit_tile(&b, at, u, units, some, dw + (uint64_t)(at - k0) * d->n_count + n + u);
            }
        }
    }
}
