// layer_norm.inc.h - layer normalisation, in the words of vector.h; included by table.inc.h, behind
// norm.inc.h, compiled once per variant. The sums over the values of a cell have one chain each:
// a lane of a vector is a cell, whose values come by turning blocks of cells. The gradients of
// gamma and beta are sums over cells: there a lane is a value, as in batch normalisation.

// Up to V_LANES cells; lanes behind the last repeat it.
typedef struct row_part {
    const lk_batch_norm *norm;
    uint32_t count;
    const float *x, *dy, *gamma;  // of the first cell; gamma NULL: ones
    vf mean, inverse;
    vf chain[2];
    vf node[LK_TREE_LEVELS_MAX][2];
    uint32_t slices;
} row_part;

// What is summed: x; the squares of x - mean; dy * gamma, by itself and times n.
typedef enum row_kind { ROW_X, ROW_SQUARES, ROW_DY } row_kind;

// Value k + i of every cell in column[i], for `some` of them.
V_INLINE void row_columns(const row_part *p, const float *from, uint32_t k, uint32_t some,
                          vf column[V_LANES]) {
    const uint32_t channels = p->norm->channels;
    if (some == V_LANES && p->count == V_LANES) {
        v_transpose(column, from + k, channels);
        return;
    }
    for (uint32_t i = 0; i < some; i++) {
        float value[V_LANES];
        for (uint32_t c = 0; c < V_LANES; c++) {
            value[c] = from[(uint64_t)LK_MIN(c, p->count - 1) * channels + k + i];
        }
        column[i] = v_load(value);
    }
}

V_INLINE void row_terms(row_part *p, row_kind kind, uint32_t k, uint32_t some) {
    vf x[V_LANES], dy[V_LANES];
    row_columns(p, p->x, k, some, x);
    if (kind == ROW_DY) row_columns(p, p->dy, k, some, dy);
    for (uint32_t i = 0; i < some; i++) {
        const vf d = v_sub(x[i], p->mean);
        if (kind == ROW_X) p->chain[0] = v_add(p->chain[0], x[i]);
        if (kind == ROW_SQUARES) p->chain[0] = v_fma(d, d, p->chain[0]);
        if (kind != ROW_DY) continue;
        const vf g = p->gamma ? v_mul(dy[i], v_set1(p->gamma[k + i])) : dy[i];
        p->chain[0] = v_fma(g, v_mul(d, p->inverse), p->chain[0]);
        p->chain[1] = v_add(p->chain[1], g);
    }
}

static void row_cut(row_part *p) {
    uint32_t level = 0;
    for (; p->slices >> level & 1; level++) {
        for (uint32_t i = 0; i < 2; i++) p->chain[i] = v_add(p->node[level][i], p->chain[i]);
    }
    for (uint32_t i = 0; i < 2; i++) p->node[level][i] = p->chain[i], p->chain[i] = v_zero();
    p->slices++;
}

// The finished sums come to lie in `chain`, times 1 / K.
V_INLINE void row_means(row_part *p, row_kind kind) {
    const uint32_t channels = p->norm->channels;
    const vf share = v_set1(1.0f / lk_count_to_float(channels));
    p->chain[0] = p->chain[1] = v_zero();
    p->slices = 0;
    for (uint32_t first = 0; first < channels; first += LK_SLICE_TERMS) {
        const uint32_t end = LK_MIN(first + LK_SLICE_TERMS, channels);
        if (first > 0) row_cut(p);
        for (uint32_t k = first; k < end; k += V_LANES) {
            row_terms(p, kind, k, LK_MIN(end - k, (uint32_t)V_LANES));
        }
    }
    for (uint32_t level = 0; p->slices >> level; level++) {
        if (!(p->slices >> level & 1)) continue;
        for (uint32_t i = 0; i < 2; i++) p->chain[i] = v_add(p->node[level][i], p->chain[i]);
    }
    for (uint32_t i = 0; i < 2; i++) p->chain[i] = v_mul(v_add(p->chain[i], v_zero()), share);
}

V_NOINLINE void row_mean_of_x(row_part *p) { row_means(p, ROW_X); }
V_NOINLINE void row_mean_of_squares(row_part *p) { row_means(p, ROW_SQUARES); }
V_NOINLINE void row_means_of_dy(row_part *p) { row_means(p, ROW_DY); }

// --- forward -------------------------------------------------------------------------------------

static vf row_write(const lk_lane *l, const lk_batch_norm *n, const float *x, const float *kept,
                    float *y, vf bad) {
    const vf mean = v_set1(kept[0]), inverse = v_set1(kept[1]);
    EACH_VECTOR(n->channels) {
        const uint32_t some = (uint32_t)rest;
        const vf d = v_mul(v_sub(v_load_first(x + i, some), mean), inverse);
        const vf gamma = l->param[0] ? v_load_first(l->param[0] + i, some) : v_set1(1.0f);
        const vf beta = l->param[1] ? v_load_first(l->param[1] + i, some) : v_zero();
        const vf value = v_fma(d, gamma, beta);
        bad = v_note(bad, v_keep(v_first(some), value));
        v_store_first(y + i, some, value);
    }
    return bad;
}

static uint32_t plain_layer_normalization(lk_lane *l, const lk_op *op) {
    const lk_batch_norm *n = &op->norm;
    const uint64_t cells = (uint64_t)l->examples * n->h * n->w;
    float *kept = l->at[LK_AUX], *y = l->at[LK_Y];
    vf bad = v_zero();
    for (uint64_t cell = 0; cell < cells; cell += V_LANES) {
        float mean[V_LANES], inverse[V_LANES];
        row_part p = {.norm = n,
                      .count = (uint32_t)LK_MIN(cells - cell, (uint64_t)V_LANES),
                      .x = (const float *)l->at[LK_X] + cell * n->channels,
                      .mean = v_zero()};
        row_mean_of_x(&p);
        p.mean = p.chain[0];
        row_mean_of_squares(&p);
        bad = v_note(v_note(bad, p.mean), p.chain[0]);
        v_store(mean, p.mean);
        v_store(inverse, norm_inverse(p.chain[0], n->epsilon));
        for (uint32_t c = 0; c < p.count; c++) {
            float *of = kept + 2 * (cell + c);
            of[0] = mean[c];
            of[1] = inverse[c];
            bad = row_write(l, n, p.x + (uint64_t)c * n->channels, of,
                            y + (cell + c) * n->channels, bad);
        }
    }
    return v_noted(bad);
}

// --- backward ------------------------------------------------------------------------------------

// kept: mean and inverse; a, b: the means of the two sums.
static vf row_write_back(const lk_lane *l, const lk_batch_norm *n, const float *x, const float *dy,
                         const float *kept, float a, float b, float *dx, vf bad) {
    const vf mean = v_set1(kept[0]), inverse = v_set1(kept[1]);
    EACH_VECTOR(n->channels) {
        const uint32_t some = (uint32_t)rest;
        const vf normal = v_mul(v_sub(v_load_first(x + i, some), mean), inverse);
        vf g = v_load_first(dy + i, some);
        if (l->param[0]) g = v_mul(g, v_load_first(l->param[0] + i, some));
        const vf back = v_sub(v_set1(-0.0f), normal);  // -n, of zeros too
        const vf value = v_mul(inverse, v_fma(back, v_set1(a), v_sub(g, v_set1(b))));
        bad = v_note(bad, v_keep(v_first(some), value));
        v_store_first(dx + i, some, value);
    }
    return bad;
}

static uint32_t plain_layer_normalization_input_gradient(lk_lane *l, const lk_op *op) {
    const lk_batch_norm *n = &op->norm;
    const uint64_t cells = (uint64_t)l->examples * n->h * n->w;
    const float *x = l->at[LK_X], *dy = l->at[LK_DY], *kept = l->at[LK_AUX];
    float *dx = l->at[LK_DX];
    vf bad = v_zero();
    for (uint64_t cell = 0; cell < cells; cell += V_LANES) {
        float mean[V_LANES], inverse[V_LANES], a[V_LANES], b[V_LANES];
        row_part p = {.norm = n,
                      .count = (uint32_t)LK_MIN(cells - cell, (uint64_t)V_LANES),
                      .x = x + cell * n->channels,
                      .dy = dy + cell * n->channels,
                      .gamma = l->param[0]};
        for (uint32_t c = 0; c < V_LANES; c++) {
            const float *of = kept + 2 * (cell + LK_MIN(c, p.count - 1));
            mean[c] = of[0];
            inverse[c] = of[1];
        }
        p.mean = v_load(mean);
        p.inverse = v_load(inverse);
        row_means_of_dy(&p);
        v_store(a, p.chain[0]);
        v_store(b, p.chain[1]);
        for (uint32_t c = 0; c < p.count; c++) {
            const uint64_t at = (cell + c) * n->channels;
            bad = row_write_back(l, n, x + at, dy + at, kept + 2 * (cell + c), a[c], b[c], dx + at,
                                 bad);
        }
    }
    return v_noted(bad);
}

// --- gradients of gamma and beta -----------------------------------------------------------------

// The terms of cells [from, end), one after the other.
V_INLINE void row_cells(norm_part *p, uint32_t vectors, const float *kept, uint64_t from,
                        uint64_t end) {
    vf chain[2][NORM_VECTORS];
    NORM_EACH_VECTOR(v, vectors) chain[0][v] = p->chain[0][v], chain[1][v] = p->chain[1][v];
    for (uint64_t cell = from; cell < end; cell++) {
        const uint64_t at = cell * p->norm->channels;
        const vf mean = v_set1(kept[2 * cell]), inverse = v_set1(kept[2 * cell + 1]);
        NORM_EACH_VECTOR(v, vectors) {
            const vf d = v_sub(norm_load(p->x + at, p, vectors, v), mean);
            const vf dy = norm_load(p->dy + at, p, vectors, v);
            chain[0][v] = v_fma(dy, v_mul(d, inverse), chain[0][v]);
            chain[1][v] = v_add(chain[1][v], dy);
        }
    }
    NORM_EACH_VECTOR(v, vectors) p->chain[0][v] = chain[0][v], p->chain[1][v] = chain[1][v];
}

#define ROW_CELLS(vectors) row_cells(p, vectors, kept, from, end)
V_NOINLINE void row_some_cells(norm_part *p, const float *kept, uint64_t from, uint64_t end) {
    NORM_EACH(p, ROW_CELLS)
}

// The sums of one grain come to lie in `chain`.
static void row_grain(norm_part *p, const lk_grain_view *g) {
    const uint32_t cells = p->norm->h * p->norm->w, whole = LK_SLICE_TERMS / cells;
    const uint64_t all = (uint64_t)g->examples * cells;
    const uint64_t some = whole > 0 ? (uint64_t)whole * cells : LK_SLICE_TERMS;
    memset(p->chain, 0, sizeof p->chain);
    p->slices = 0;
    for (uint64_t from = 0; from < all;) {
        uint64_t end = LK_MIN(from + some, all);
        if (whole == 0) end = LK_MIN(end, (from / cells + 1) * cells);  // of this example
        if (from > 0) norm_cut(p);
        row_some_cells(p, lk_grain_kept(g), from, end);
        from = end;
    }
    norm_join(p);
}

static uint32_t plain_layer_normalization_gradient(lk_lane *l, const lk_op *op) {
    const lk_batch_norm *n = &op->norm;
    for (uint32_t c = 0; c < n->channels; c += NORM_FLOATS) {
        norm_part grain = {.norm = n, .count = LK_MIN(n->channels - c, (uint32_t)NORM_FLOATS)};
        norm_part all = grain;
        for (uint32_t g = 0; g < l->grain_count; g++) {
            grain.x = l->grains[g].x + c;
            grain.dy = l->grains[g].dy + c;
            row_grain(&grain, &l->grains[g]);
            if (g > 0) norm_cut(&all);
            memcpy(all.chain, grain.chain, sizeof all.chain);
        }
        norm_join(&all);
        for (uint32_t i = 0; i < 2; i++) {
            for (uint32_t v = 0; l->sums[i] && v < norm_vectors(&all); v++) {
                norm_keep(l->sums[i] + c, &all, NORM_VECTORS, v, all.chain[i][v]);
            }
        }
    }
    return 0;
}
