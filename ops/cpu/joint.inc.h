// joint.inc.h - the kernels of a transducer's joint (ops/layers/transducer.c): h and z of a tile of
// cells, by the kernels of dense layers; cells that an example has not are left out. Its loss, and
// the embedding of its labels.
// Included by table.inc.h, compiled once per variant.

#include "ops/layers/decode.h"
#include "ops/tree.h"

typedef struct joint_run {
    const lk_joint *j;
    const lk_lane *l;
    lk_dtype dtype;  // what h and dz are rounded to
    uint32_t
        *number;      // (tile) the cells of the tile: of the microbatch, examples' after each other
    uint32_t *label;  // (tile) y[u + 1], or the blank
    float *h, *z;     // (tile, k_count), (tile, n_count)
    float *more;      // behind them
    uint32_t count;   // cells of the tile
    uint32_t frames, labels, example;  // T and U of that example, once looked up
} joint_run;

static joint_run joint_start(const lk_lane *l, const lk_op *op) {
    const lk_joint *j = &op->joint;
    joint_run r = {.j = j,
                   .l = l,
                   .dtype = (lk_dtype)op->dtype,
                   .number = l->at[LK_SCRATCH],
                   .example = UINT32_MAX};
    r.label = r.number + j->tile;
    r.h = (float *)(void *)(r.label + j->tile);
    r.z = r.h + (uint64_t)j->tile * j->dense.k_count;
    r.more = r.z + (uint64_t)j->tile * j->dense.n_count;
    return r;
}

static const uint32_t *joint_row(const joint_run *r, uint32_t m) {
    return (const uint32_t *)r->l->at[LK_LABELS] + (uint64_t)m * (1 + r->j->labels);
}

// h of the tile's next cell, of the two rows that it is made of.
static void joint_hidden(const joint_run *r, const float *x, const float *x2) {
    const uint32_t k_count = r->j->dense.k_count;
    float *restrict h = r->h + (uint64_t)r->count * k_count;
    for (uint32_t k = 0; k < k_count; k++) h[k] = x[k] + x2[k];
    for (uint32_t k = 0; k < k_count; k++) h[k] = lk_tanhf(h[k]);
    if (r->dtype != LK_F32) (void)round_floats(r->dtype, k_count, h, h);  // z is looked at
}

// Has example m the cell? Then it joins the tile.
static bool joint_take(joint_run *r, uint32_t m, uint32_t t, uint32_t u) {
    const lk_joint *j = r->j;
    if (r->example != m) {
        r->example = m;
        r->frames = lk_joint_frames(j, joint_row(r, m));
        r->labels = lk_joint_labels(j, joint_row(r, m));
    }
    if (t >= r->frames || u > r->labels) return false;
    const uint32_t k_count = j->dense.k_count;
    const float *x = (const float *)r->l->at[LK_X] + ((uint64_t)m * j->frames + t) * k_count;
    const float *x2 =
        (const float *)r->l->at[LK_X2] + ((uint64_t)m * (j->labels + 1) + u) * k_count;
    joint_hidden(r, x, x2);
    r->label[r->count] = u < r->labels ? joint_row(r, m)[1 + u] : LK_BLANK;
    r->number[r->count++] = m * lk_joint_cells(j) + t * (j->labels + 1) + u;
    return true;
}

// As many of the cells from `at` on as the tile holds. Returns the next one.
static uint32_t joint_fill(joint_run *r, uint32_t at, uint32_t end) {
    const uint32_t cells = lk_joint_cells(r->j), columns = r->j->labels + 1;
    for (r->count = 0; at < end && r->count < r->j->tile; at++)
        (void)joint_take(r, at / cells, at % cells / columns, at % columns);
    return at;
}

static uint32_t joint_scores(const joint_run *r) {
    const lk_lane *l = r->l;
    if (r->count == 0) return 0;
    return TABLE_BEST(dense_forward)(&r->j->dense, r->count, r->h, l->param[0], l->param[1], r->z,
                                     r->more);
}

static uint32_t joint_output(const joint_run *r, uint32_t i) {
    const uint32_t n_count = r->j->dense.n_count, label = r->label[i];
    const float *z = r->z + (uint64_t)i * n_count;
    float *y = (float *)r->l->at[LK_Y] + (uint64_t)r->number[i] * LK_JOINT_OUT;
    float *kept = (float *)r->l->at[LK_AUX] + (uint64_t)r->number[i] * LK_JOINT_KEPT;
    float top = z[0];
    if (label >= n_count) return 1;
    for (uint32_t n = 1; n < n_count; n++) top = z[n] > top ? z[n] : top;
    const float sum = softmax_sum(n_count, z, top, true), size = lk_logf(sum);
    kept[LK_JOINT_TOP] = top;
    kept[LK_JOINT_SHARE] = 1.0f / sum;
    y[LK_JOINT_BLANK] = z[LK_BLANK] - top - size + 0.0f;
    y[LK_JOINT_LABEL] = label != LK_BLANK ? z[label] - top - size + 0.0f : 0.0f;
    return !(y[LK_JOINT_BLANK] - y[LK_JOINT_BLANK] == 0.0f) |
           !(y[LK_JOINT_LABEL] - y[LK_JOINT_LABEL] == 0.0f);
}

static uint32_t call_joint(lk_lane *l, const lk_op *op) {
    const lk_joint *j = &op->joint;
    const uint32_t end = l->examples * lk_joint_cells(j);
    joint_run r = joint_start(l, op);
    uint32_t bad = 0;
    memset(l->at[LK_Y], 0, (uint64_t)end * LK_JOINT_OUT * sizeof(float));
    memset(l->at[LK_AUX], 0, (uint64_t)end * LK_JOINT_KEPT * sizeof(float));
    for (uint32_t at = 0; at < end;) {
        at = joint_fill(&r, at, end);
        bad |= joint_scores(&r);
        for (uint32_t i = 0; i < r.count; i++) bad |= joint_output(&r, i);
    }
    return bad;
}

// --- decoding ------------------------------------------------------------------------------------

// From example m on the cells that are looked at, as many as the tile holds. Returns the next one.
static uint32_t decode_fill(joint_run *r, uint32_t tile, uint32_t m) {
    const lk_joint *j = r->j;
    const uint32_t k_count = j->dense.k_count;
    for (r->count = 0; m < r->l->examples && r->count < tile; m++) {
        const lk_decoding *d = (const lk_decoding *)r->l->at[LK_AUX] + m;
        if (d->waits || !lk_decoding_is_on(j, d, lk_joint_frames(j, joint_row(r, m)))) continue;
        const float *x =
            (const float *)r->l->at[LK_X] + ((uint64_t)m * j->frames + d->frame) * k_count;
        const float *x2 =
            (const float *)r->l->at[LK_X2] + ((uint64_t)m * (j->labels + 1) + d->said) * k_count;
        joint_hidden(r, x, x2);
        r->number[r->count++] = m;
    }
    return m;
}

// One cell of each example at a time, until each has said a label or is done.
static uint32_t call_decode(lk_lane *l, const lk_op *op) {
    const lk_joint *j = &op->joint;
    const uint32_t tile = LK_MIN(l->examples, j->tile), row = 1 + j->labels;
    joint_run r = {
        .j = j, .l = l, .dtype = (lk_dtype)op->dtype, .number = l->at[LK_SCRATCH]};
    lk_decoding *all = l->at[LK_AUX];
    uint32_t bad = 0, looked = 1;
    r.h = (float *)(void *)(r.number + lk_round_up(tile, 16));
    r.z = r.h + lk_round_up((uint64_t)tile * j->dense.k_count, 16);
    r.more = r.z + lk_round_up((uint64_t)tile * j->dense.n_count, 16);
    for (uint32_t m = 0; m < l->examples; m++) all[m].waits = 0;
    while (!bad && looked > 0) {
        looked = 0;
        for (uint32_t m = 0; m < l->examples;) {
            m = decode_fill(&r, tile, m);
            bad |= joint_scores(&r);
            looked += r.count;
            for (uint32_t i = 0; i < r.count; i++) {
                const uint32_t symbol =
                    lk_decoding_symbol(j->classes, r.z + (uint64_t)i * j->dense.n_count);
                lk_decoding_take(&all[r.number[i]], symbol,
                                 (uint32_t *)l->at[LK_Y] + (uint64_t)r.number[i] * row);
            }
        }
    }
    return bad;
}

// z of the tile becomes dz.
static uint32_t joint_slopes(const joint_run *r) {
    uint32_t bad = 0;
    const uint32_t n_count = r->j->dense.n_count;
    for (uint32_t i = 0; i < r->count; i++) {
        float *restrict z = r->z + (uint64_t)i * n_count;
        if (r->number[i] == UINT32_MAX) {
            memset(z, 0, n_count * sizeof *z);
            continue;
        }
        const float *dy = (const float *)r->l->at[LK_DY] + (uint64_t)r->number[i] * LK_JOINT_OUT;
        const float *kept =
            (const float *)r->l->at[LK_AUX] + (uint64_t)r->number[i] * LK_JOINT_KEPT;
        const float blank = dy[LK_JOINT_BLANK], label = dy[LK_JOINT_LABEL], g = blank + label;
        const float top = kept[LK_JOINT_TOP], share = kept[LK_JOINT_SHARE];
        for (uint32_t n = 0; n < n_count; n++) z[n] = lk_expf(z[n] - top) * share;
        const uint32_t own = r->label[i] < n_count ? r->label[i] : LK_BLANK;
        const float p = z[LK_BLANK], q = z[own];
        for (uint32_t n = 0; n < n_count; n++) z[n] = lk_fmaf(-z[n], g, 0.0f);
        z[own] = lk_fmaf(-q, g, label);
        z[LK_BLANK] = lk_fmaf(-p, g, blank);
        if (r->dtype != LK_F32) bad |= round_floats(r->dtype, n_count, z, z);
    }
    return bad;
}

static void joint_add(uint32_t k_count, const float *restrict h, const float *restrict dh,
                      float *restrict dx) {
    for (uint32_t k = 0; k < k_count; k++) dx[k] = dx[k] + dh[k] * lk_fmaf(-h[k], h[k], 1.0f);
}

static uint32_t joint_finite(uint64_t count, const float *v) {
    uint32_t bad = 0;
    for (uint64_t i = 0; v && i < count; i++) bad |= !(v[i] - v[i] == 0.0f);
    return bad;
}

static uint32_t call_joint_input_gradient(lk_lane *l, const lk_op *op) {
    const lk_joint *j = &op->joint;
    const uint32_t k_count = j->dense.k_count, cells = lk_joint_cells(j), rows = j->labels + 1;
    const uint32_t end = l->examples * cells;
    const uint64_t x_floats = (uint64_t)l->examples * j->frames * k_count;
    const uint64_t x2_floats = (uint64_t)l->examples * rows * k_count;
    float *dx = l->at[LK_DX], *dx2 = l->at[LK_DX2];
    joint_run r = joint_start(l, op);
    float *dh = r.more;
    r.more += (uint64_t)j->tile * k_count;
    uint32_t bad = 0;
    if (dx) memset(dx, 0, x_floats * sizeof *dx);
    if (dx2) memset(dx2, 0, x2_floats * sizeof *dx2);
    for (uint32_t at = 0; at < end;) {
        at = joint_fill(&r, at, end);
        if (r.count == 0) continue;
        bad |= joint_scores(&r);
        bad |= joint_slopes(&r);
        bad |= TABLE_BEST(dense_input_gradient)(&j->dense, r.count, l->param[0], r.z, NULL, dh,
                                                r.more);
        for (uint32_t i = 0; i < r.count; i++) {
            const uint64_t m = r.number[i] / cells, cell = r.number[i] % cells;
            const float *h = r.h + (uint64_t)i * k_count, *d = dh + (uint64_t)i * k_count;
            if (dx) joint_add(k_count, h, d, dx + (m * j->frames + cell / rows) * k_count);
            if (dx2) joint_add(k_count, h, d, dx2 + (m * rows + cell % rows) * k_count);
        }
    }
    return bad | joint_finite(x_floats, dx) | joint_finite(x2_floats, dx2);
}

// --- gradients of parameters ---------------------------------------------------------------------

// Nodes of `floats` in a binary counter, from left to right.
typedef struct joint_nodes {
    float *at;
    uint64_t floats;
    lk_counter counter;
} joint_nodes;

static float *joint_top(const joint_nodes *n) { return n->at + n->counter.count * n->floats; }

static void joint_push(joint_nodes *n, lk_node node) {
    uint32_t top = n->counter.count;
    for (uint32_t m = lk_counter_push(&n->counter, node); m > 0; m--, top--) {
        float *left = n->at + (top - 1) * n->floats;
        add(n->floats, left, left + n->floats, left);
    }
}

static void joint_finish(const joint_nodes *n) {
    for (uint32_t i = n->counter.count; i > 1; i--) {
        float *left = n->at + (i - 2) * n->floats;
        add(n->floats, left, left + n->floats, left);
    }
}

// The node of rows [first, end) of the grain that begins with example m: of each slice those rows
// that are cells, or one of zeros.
static void joint_tile_sums(joint_run *r, uint32_t m, uint64_t first, uint64_t end, float *sums) {
    const lk_joint *j = r->j;
    const uint64_t k_count = j->dense.k_count, n_count = j->dense.n_count;
    const uint32_t cells = lk_joint_cells(j), columns = j->labels + 1;
    const lk_weight_rows all = {.end = j->dense.k_count};
    lk_grain_view views[LK_JOINT_TILE_MAX / LK_SLICE_TERMS];
    uint32_t slices = 0;
    r->count = 0;
    for (uint64_t at = first; at < end; slices++) {
        const uint32_t before = r->count;
        const uint64_t cut = LK_MIN(at + LK_SLICE_TERMS, end);
        for (; at < cut; at++) {
            const uint32_t cell = (uint32_t)(at % cells);
            (void)joint_take(r, m + (uint32_t)(at / cells), cell / columns, cell % columns);
        }
        if (r->count == before) {
            memset(r->h + r->count * k_count, 0, k_count * sizeof *r->h);
            r->number[r->count++] = UINT32_MAX;
        }
        views[slices] = (lk_grain_view){.x = r->h + before * k_count,
                                        .dy = r->z + before * n_count,
                                        .examples = r->count - before};
    }
    (void)joint_scores(r);
    (void)joint_slopes(r);
    TABLE_BEST(dense_weight_gradient)(&j->dense, slices, views, &all, sums, r->more);
    column_sums(j->dense.n_count, slices, views, sums + lk_round_up(k_count * n_count, 16));
}

static uint32_t call_joint_weight_gradient(lk_lane *l, const lk_op *op) {
    const lk_joint *j = &op->joint;
    const uint64_t cells = lk_joint_cells(j), n_count = j->dense.n_count;
    const uint64_t kernel = j->dense.k_count * n_count, place = lk_round_up(kernel, 16);
    joint_run r = joint_start(l, op);
    joint_nodes grains = {.at = r.more, .floats = place + lk_round_up(n_count, 16)};
    r.more += lk_joint_nodes_held(j, l->grain_count) * grains.floats;
    for (uint32_t g = 0; g < l->grain_count; g++) {
        const uint64_t rows = l->grains[g].examples * cells;
        const uint64_t first = (uint64_t)(l->grains[g].dy - (const float *)l->at[LK_DY]);
        const uint32_t m = (uint32_t)(first / (cells * LK_JOINT_OUT));
        joint_nodes tiles = {.at = joint_top(&grains), .floats = grains.floats};
        for (uint64_t i = 0; i < rows; i += j->tile) {
            joint_tile_sums(&r, m, i, LK_MIN(i + j->tile, rows), joint_top(&tiles));
            joint_push(&tiles, (lk_node){0, (uint32_t)(i / j->tile)});
        }
        joint_finish(&tiles);
        joint_push(&grains, (lk_node){0, g});
    }
    joint_finish(&grains);
    memcpy(l->sums[0], grains.at, kernel * sizeof(float));
    if (l->sums[1]) memcpy(l->sums[1], grains.at + place, n_count * sizeof(float));
    return 0;
}

// --- label_embedding -----------------------------------------------------------------------------

static uint32_t call_label_embedding(lk_lane *l, const lk_op *op) {
    const lk_joint *j = &op->joint;
    const uint64_t units = j->dense.n_count, bytes = units * sizeof(float);
    const joint_run r = {.j = j, .l = l};
    float *y = l->at[LK_Y];
    for (uint32_t m = 0; m < l->examples; m++, y += (j->labels + 1) * units) {
        const uint32_t *row = joint_row(&r, m), labels = lk_joint_labels(j, row);
        memset(y, 0, (j->labels + 1) * bytes);
        for (uint32_t u = 0; u <= labels; u++) {
            const uint32_t id = u ? row[u] : LK_BLANK;
            if (id >= j->dense.k_count) return 1;
            memcpy(y + u * units, l->param[0] + id * units, bytes);
        }
    }
    return 0;
}

// Row `u` of example m is added to that of its label.
static void embedding_add(const joint_run *r, uint32_t m, uint32_t u, float *sums) {
    const uint32_t units = r->j->dense.n_count, *row = joint_row(r, m);
    const uint32_t id = u ? row[u] : LK_BLANK;
    if (u > lk_joint_labels(r->j, row) || id >= r->j->dense.k_count) return;
    const float *dy =
        (const float *)r->l->at[LK_DY] + ((uint64_t)m * (r->j->labels + 1) + u) * units;
    float *restrict to = sums + (uint64_t)id * units;
    for (uint32_t k = 0; k < units; k++) to[k] = to[k] + dy[k];
}

static uint32_t call_label_embedding_gradient(lk_lane *l, const lk_op *op) {
    const lk_joint *j = &op->joint;
    const uint32_t columns = j->labels + 1;
    const uint64_t floats = (uint64_t)j->dense.k_count * j->dense.n_count;
    const joint_run r = {.j = j, .l = l};
    joint_nodes grains = {.at = l->at[LK_SCRATCH], .floats = lk_round_up(floats, 16)};
    for (uint32_t g = 0; g < l->grain_count; g++) {
        const uint32_t rows = l->grains[g].examples * columns;
        const uint64_t first = (uint64_t)(l->grains[g].dy - (const float *)l->at[LK_DY]);
        const uint32_t m = (uint32_t)(first / ((uint64_t)columns * j->dense.n_count));
        joint_nodes slices = {.at = joint_top(&grains), .floats = grains.floats};
        for (uint32_t i = 0; i < rows; i++) {
            if (i % LK_SLICE_TERMS == 0)
                memset(joint_top(&slices), 0, slices.floats * sizeof(float));
            embedding_add(&r, m + i / columns, i % columns, joint_top(&slices));
            if ((i + 1) % LK_SLICE_TERMS == 0 || i + 1 == rows)
                joint_push(&slices, (lk_node){0, i / LK_SLICE_TERMS});
        }
        joint_finish(&slices);
        joint_push(&grains, (lk_node){0, g});
    }
    joint_finish(&grains);
    memcpy(l->sums[0], grains.at, floats * sizeof(float));
    return 0;
}

// --- transducer ----------------------------------------------------------------------------------

// Rows of an example's cells: y and dy (columns, 2), beta (columns).
typedef struct lattice_run {
    uint32_t frames, labels, columns;
    const float *y;
    float *beta, *alpha, *dy;
} lattice_run;

static float log_of_both(float p, float q) {
    const float top = p > q ? p : q, low = p > q ? q : p;
    return top + lk_log1pexpf(low - top);
}

static float lattice_loss(const lattice_run *a) {
    for (uint32_t t = a->frames; t-- > 0;) {
        const float *y = a->y + (uint64_t)t * a->columns * LK_JOINT_OUT;
        float *beta = a->beta + (uint64_t)t * a->columns, *after = beta + a->columns;
        const bool last = t + 1 == a->frames;
        beta[a->labels] = last ? y[2 * a->labels] : after[a->labels] + y[2 * a->labels];
        for (uint32_t u = a->labels; u-- > 0;) {
            const float up = beta[u + 1] + y[2 * u + 1];
            beta[u] = last ? up : log_of_both(after[u] + y[2 * u], up);
        }
    }
    return 0.0f - a->beta[0];
}

static void lattice_forward(const lattice_run *a, uint32_t t) {
    const float *y = a->y + (uint64_t)t * a->columns * LK_JOINT_OUT;
    const float *before = t ? y - (uint64_t)a->columns * LK_JOINT_OUT : y;
    float *alpha = a->alpha;
    alpha[0] = t ? alpha[0] + before[0] : 0.0f;
    for (uint32_t u = 1; u <= a->labels; u++) {
        const float below = alpha[u - 1] + y[2 * u - 1];
        alpha[u] = t ? log_of_both(alpha[u] + before[2 * u], below) : below;
    }
}

static uint32_t lattice_slopes(const lattice_run *a, uint32_t t, float loss) {
    const uint64_t row = (uint64_t)t * a->columns;
    const float *y = a->y + row * LK_JOINT_OUT, *beta = a->beta + row, *after = beta + a->columns;
    const float *alpha = a->alpha;
    float *dy = a->dy + row * LK_JOINT_OUT;
    const bool last = t + 1 == a->frames;
    uint32_t bad = 0;
    for (uint32_t u = 0; u <= a->labels && !last; u++)
        dy[2 * u] = 0.0f - lk_expf(alpha[u] + y[2 * u] + after[u] + loss);
    if (last) dy[2 * a->labels] = 0.0f - lk_expf(alpha[a->labels] + y[2 * a->labels] + loss);
    for (uint32_t u = 0; u < a->labels; u++)
        dy[2 * u + 1] = 0.0f - lk_expf(alpha[u] + y[2 * u + 1] + beta[u + 1] + loss);
    for (uint32_t i = 0; i < 2 * a->labels + 2; i++) bad |= !(dy[i] - dy[i] == 0.0f);
    return bad;
}

static uint32_t call_transducer(lk_lane *l, const lk_op *op) {
    const lk_joint *j = &op->joint;
    const uint64_t cells = lk_joint_cells(j), floats = cells * LK_JOINT_OUT;
    float *loss = l->at[LK_Y], *dy = l->train ? l->at[LK_DX] : NULL;
    uint32_t bad = 0;
    if (dy) memset(dy, 0, l->examples * floats * sizeof *dy);
    for (uint32_t m = 0; m < l->examples; m++) {
        const uint32_t *row = (const uint32_t *)l->at[LK_X2] + (uint64_t)m * (1 + j->labels);
        const lattice_run a = {.frames = lk_joint_frames(j, row),
                               .labels = lk_joint_labels(j, row),
                               .columns = j->labels + 1,
                               .y = (const float *)l->at[LK_X] + m * floats,
                               .beta = l->at[LK_SCRATCH],
                               .alpha = (float *)l->at[LK_SCRATCH] + cells,
                               .dy = dy ? dy + m * floats : NULL};
        loss[m] = a.frames ? lattice_loss(&a) : 0.0f;
        bad |= !(loss[m] - loss[m] == 0.0f);
        for (uint32_t t = 0; dy && t < a.frames; t++) {
            lattice_forward(&a, t);
            bad |= lattice_slopes(&a, t, loss[m]);
        }
    }
    return bad;
}
