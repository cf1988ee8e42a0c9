// norm.inc.h - batch normalisation, in the words of vector.h; included by table.inc.h, compiled
// once per variant. A lane of a vector is a channel, so every sum has its terms in the order of
// ARITHMETIC.md 6, and a grain's values are read from cell to cell.

// Vectors of channels that are worked on at once: enough for one addition to wait for another.
enum { NORM_VECTORS = 4, NORM_FLOATS = NORM_VECTORS * V_LANES };

// What is summed: x; the squares of x - mean; dy, and dy * n.
typedef enum norm_kind { NORM_X, NORM_X_SQUARES, NORM_DY } norm_kind;

// Channels of a grain, from `x` and `dy` of its first cell on; `count` of them, up to NORM_FLOATS.
// Lanes behind the last are zeros.
typedef struct norm_part {
    const lk_batch_norm *norm;
    uint32_t examples, count;
    const float *x, *dy;
    vf mean[NORM_VECTORS], inverse[NORM_VECTORS], factor[NORM_VECTORS], term[NORM_VECTORS];
    vf chain[2][NORM_VECTORS];
    vf node[LK_TREE_LEVELS_MAX][2][NORM_VECTORS];
    uint32_t slices;
} norm_part;

V_INLINE uint32_t norm_vectors(const norm_part *p) {
    return (p->count + V_LANES - 1) / V_LANES;
}

// Vector number v of `vectors`. With NORM_VECTORS + 1, as NORM_EACH calls it, all are whole;
// otherwise the last may be shorter.
V_INLINE vf norm_load(const float *from, const norm_part *p, uint32_t vectors, uint32_t v) {
    if (vectors > NORM_VECTORS) return v_load(from + v * V_LANES);
    return v_load_first(from + v * V_LANES, p->count - v * V_LANES);
}

V_INLINE void norm_keep(float *to, const norm_part *p, uint32_t vectors, uint32_t v, vf value) {
    if (vectors > NORM_VECTORS) v_store(to + v * V_LANES, value);
    else v_store_first(to + v * V_LANES, p->count - v * V_LANES, value);
}

// Calls with the number of vectors known to the compiler; NORM_VECTORS + 1: as many, all whole.
#define NORM_EACH(p, call)                                                 \
    switch ((p)->count >= NORM_FLOATS ? NORM_VECTORS + 1 : norm_vectors(p)) { \
        case 1: call(1); break;                                            \
        case 2: call(2); break;                                            \
        case 3: call(3); break;                                            \
        case 4: call(4); break;                                            \
        default: call(5); break;                                           \
    }
#define NORM_EACH_VECTOR(v, vectors) \
    V_UNROLL for (uint32_t v = 0; v < LK_MIN((uint32_t)(vectors), (uint32_t)NORM_VECTORS); v++)

V_INLINE void norm_cell(const norm_part *p, norm_kind kind, uint32_t vectors, uint64_t at,
                        vf chain[2][NORM_VECTORS]) {
    NORM_EACH_VECTOR(v, vectors) {
        const vf x = norm_load(p->x + at, p, vectors, v), d = v_sub(x, p->mean[v]);
        if (kind == NORM_X) chain[0][v] = v_add(chain[0][v], x);
        if (kind == NORM_X_SQUARES) chain[0][v] = v_fma(d, d, chain[0][v]);
        if (kind != NORM_DY) continue;
        const vf dy = norm_load(p->dy + at, p, vectors, v);
        chain[0][v] = v_fma(dy, v_mul(d, p->inverse[v]), chain[0][v]);
        chain[1][v] = v_add(chain[1][v], dy);
    }
}

// A slice is over: sums of whole subtrees are taken at once.
V_NOINLINE void norm_cut(norm_part *p) {
    uint32_t level = 0;
    for (; p->slices >> level & 1; level++) {
        for (uint32_t i = 0; i < 2 * NORM_VECTORS; i++) {
            vf *chain = &p->chain[i / NORM_VECTORS][i % NORM_VECTORS];
            *chain = v_add(p->node[level][i / NORM_VECTORS][i % NORM_VECTORS], *chain);
        }
    }
    memcpy(p->node[level], p->chain, sizeof p->chain);
    memset(p->chain, 0, sizeof p->chain);
    p->slices++;
}

// What is in `chain` joins the subtrees before it: the root.
V_NOINLINE void norm_join(norm_part *p) {
    for (uint32_t level = 0; p->slices >> level; level++) {
        if (!(p->slices >> level & 1)) continue;
        for (uint32_t i = 0; i < 2 * NORM_VECTORS; i++) {
            vf *chain = &p->chain[i / NORM_VECTORS][i % NORM_VECTORS];
            *chain = v_add(p->node[level][i / NORM_VECTORS][i % NORM_VECTORS], *chain);
        }
    }
}

// Rows ty and ty + 1 of an example, in tiles of 2 x 2 cells from `tx` to `end`.
V_INLINE void norm_tiles(norm_part *p, norm_kind kind, uint32_t vectors, uint64_t first,
                         uint32_t ty, uint32_t tx, uint32_t end) {
    const lk_batch_norm *n = p->norm;
    vf chain[2][NORM_VECTORS];
    NORM_EACH_VECTOR(v, vectors) chain[0][v] = p->chain[0][v], chain[1][v] = p->chain[1][v];
    for (; tx < end; tx += 2) {
        const uint64_t at = first + ((uint64_t)ty * n->w + tx) * n->channels;
        const uint64_t below = at + (uint64_t)n->w * n->channels;
        norm_cell(p, kind, vectors, at, chain);
        if (tx + 1 < n->w) norm_cell(p, kind, vectors, at + n->channels, chain);
        if (ty + 1 >= n->h) continue;
        norm_cell(p, kind, vectors, below, chain);
        if (tx + 1 < n->w) norm_cell(p, kind, vectors, below + n->channels, chain);
    }
    NORM_EACH_VECTOR(v, vectors) p->chain[0][v] = chain[0][v], p->chain[1][v] = chain[1][v];
}

// The terms of one example, from the start of a slice or, where its terms fit in one, within it.
V_INLINE void norm_example(norm_part *p, norm_kind kind, uint32_t vectors, uint64_t first) {
    const lk_batch_norm *n = p->norm;
    uint32_t terms = 0;
    for (uint32_t ty = 0; ty < n->h; ty += 2) {
        for (uint32_t tx = 0; tx < n->w;) {
            if (terms == LK_SLICE_TERMS) norm_cut(p), terms = 0;
            const uint32_t room = (LK_SLICE_TERMS - terms) / 2;  // columns
            const uint32_t end = LK_MIN(tx + room, n->w);
            norm_tiles(p, kind, vectors, first, ty, tx, end);
            terms += (end - tx + 1) / 2 * 4;
            tx = end;
        }
    }
}

// The grain's sums come to lie in `chain`.
V_INLINE void norm_sum(norm_part *p, norm_kind kind, uint32_t vectors) {
    const lk_batch_norm *n = p->norm;
    const uint64_t floats = (uint64_t)n->h * n->w * n->channels;
    const uint32_t whole = LK_SLICE_TERMS / lk_norm_terms(n);
    memset(p->chain, 0, sizeof p->chain);
    p->slices = 0;
    for (uint32_t m = 0; m < p->examples; m++) {
        if (m > 0 && (whole == 0 || m % whole == 0)) norm_cut(p);
        norm_example(p, kind, vectors, m * floats);
    }
    norm_join(p);
}

#define NORM_SUM_X(vectors) norm_sum(p, NORM_X, vectors)
#define NORM_SUM_SQUARES(vectors) norm_sum(p, NORM_X_SQUARES, vectors)
#define NORM_SUM_DY(vectors) norm_sum(p, NORM_DY, vectors)
V_NOINLINE void norm_sum_x(norm_part *p) { NORM_EACH(p, NORM_SUM_X) }
V_NOINLINE void norm_sum_squares(norm_part *p) { NORM_EACH(p, NORM_SUM_SQUARES) }
V_NOINLINE void norm_sum_dy(norm_part *p) { NORM_EACH(p, NORM_SUM_DY) }

// --- forward -------------------------------------------------------------------------------------

// y of `cells` cells: (x - mean) * inverse * factor + term, or ReLU of that.
V_INLINE vf norm_apply(const norm_part *p, uint64_t cells, uint32_t vectors, float *y, vf bad,
                       const bool relu) {
    for (uint64_t i = 0; i < cells; i++) {
        const uint64_t at = i * p->norm->channels;
        NORM_EACH_VECTOR(v, vectors) {
            const vf d = v_sub(norm_load(p->x + at, p, vectors, v), p->mean[v]);
            const vf value = v_fma(v_mul(d, p->inverse[v]), p->factor[v], p->term[v]);
            bad = v_note(bad, value);
            norm_keep(y + at, p, vectors, v, relu ? v_relu(value) : value);
        }
    }
    return bad;
}

#define NORM_APPLY(vectors) bad = norm_apply(p, cells, vectors, y, bad, false)
#define NORM_APPLY_RELU(vectors) bad = norm_apply(p, cells, vectors, y, bad, true)
V_NOINLINE vf norm_write(const norm_part *p, uint64_t cells, float *y, vf bad) {
    if (p->norm->relu) NORM_EACH(p, NORM_APPLY_RELU)
    else NORM_EACH(p, NORM_APPLY)
    return bad;
}

static vf norm_inverse(vf variance, float epsilon) {
    return v_div(v_set1(1.0f), v_sqrt(v_add(variance, v_set1(epsilon))));
}

static vf norm_mean(vf sum, float share) { return v_mul(v_add(sum, v_zero()), v_set1(share)); }

static inline float norm_share(const lk_batch_norm *n, uint32_t examples) {
    return 1.0f / lk_count_to_float((uint64_t)examples * n->h * n->w);
}

// Some channels' column of a grain's row.
static void norm_store(float *row, uint32_t column, uint32_t c, const norm_part *p,
                       const vf *values) {
    float *to = row + column * p->norm->channels + c;
    for (uint32_t v = 0; v < norm_vectors(p); v++) norm_keep(to, p, NORM_VECTORS, v, values[v]);
}

static void norm_fetch(const float *row, uint32_t column, uint32_t c, const norm_part *p,
                       vf *values) {
    const float *from = row + column * p->norm->channels + c;
    for (uint32_t v = 0; v < norm_vectors(p); v++) values[v] = norm_load(from, p, NORM_VECTORS, v);
}

// Channels c .. of x and, where there is any, dy; gamma is the factor and beta the term.
static void norm_part_of(const lk_lane *l, const lk_op *op, uint32_t examples, uint64_t first,
                         uint32_t c, norm_part *p) {
    const float *x = l->at[LK_X], *dy = l->at[LK_DY];
    p->norm = &op->norm;
    p->examples = examples;
    p->count = LK_MIN(op->norm.channels - c, (uint32_t)NORM_FLOATS);
    p->x = x ? x + first + c : NULL;
    p->dy = dy ? dy + first + c : NULL;
    for (uint32_t v = 0; v < NORM_VECTORS; v++) {
        p->mean[v] = p->inverse[v] = p->term[v] = v_zero();
        p->factor[v] = v_set1(1.0f);
    }
    if (l->param[0]) norm_fetch(l->param[0], 0, c, p, p->factor);
    if (l->param[1]) norm_fetch(l->param[1], 0, c, p, p->term);
}

static vf norm_forward_grain(const lk_lane *l, const lk_op *op, uint32_t g, vf bad) {
    const lk_batch_norm *n = &op->norm;
    const uint32_t examples = lk_lane_present(l, g);
    const uint64_t first = (uint64_t)g * l->grain * op->floats, here = examples * op->floats;
    const float share = examples > 0 ? norm_share(n, examples) : 0.0f;
    float *y = (float *)l->at[LK_Y] + first;
    float *row = (float *)l->at[LK_AUX] + (uint64_t)g * LK_NORM_COLUMNS * n->channels;
    memset(row, 0, LK_NORM_COLUMNS * (uint64_t)n->channels * sizeof *row);
    memset(y + here, 0, (lk_lane_rows(l, g) * op->floats - here) * sizeof *y);
    for (uint32_t c = 0; examples > 0 && c < n->channels; c += NORM_FLOATS) {
        norm_part p;
        norm_part_of(l, op, examples, first, c, &p);
        norm_sum_x(&p);
        norm_store(row, LK_NORM_SUM, c, &p, p.chain[0]);
        for (uint32_t v = 0; v < norm_vectors(&p); v++) p.mean[v] = norm_mean(p.chain[0][v], share);
        norm_sum_squares(&p);
        norm_store(row, LK_NORM_SQUARES, c, &p, p.chain[0]);
        for (uint32_t v = 0; v < norm_vectors(&p); v++) {
            const vf variance = norm_mean(p.chain[0][v], share);
            p.inverse[v] = norm_inverse(variance, n->epsilon);
            bad = v_note(v_note(bad, p.mean[v]), variance);
        }
        norm_store(row, LK_NORM_MEAN, c, &p, p.mean);
        norm_store(row, LK_NORM_INVERSE, c, &p, p.inverse);
        bad = norm_write(&p, here / n->channels, y + c, bad);
    }
    return bad;
}

static vf norm_by_moving(const lk_lane *l, const lk_op *op) {
    const lk_batch_norm *n = &op->norm;
    vf bad = v_zero();
    for (uint32_t c = 0; c < n->channels; c += NORM_FLOATS) {
        norm_part p;
        norm_part_of(l, op, l->examples, 0, c, &p);
        norm_fetch(l->state[0], 0, c, &p, p.mean);
        norm_fetch(l->state[1], 0, c, &p, p.inverse);
        for (uint32_t v = 0; v < norm_vectors(&p); v++) {
            p.inverse[v] = norm_inverse(p.inverse[v], n->epsilon);
        }
        bad = norm_write(&p, (uint64_t)l->examples * n->h * n->w, (float *)l->at[LK_Y] + c, bad);
    }
    return bad;
}

static uint32_t plain_batch_normalization(lk_lane *l, const lk_op *op) {
    vf bad = v_zero();
    if (!l->train || op->norm.frozen) return v_noted(norm_by_moving(l, op));
    for (uint32_t g = 0; g < lk_lane_grains(l); g++) bad = norm_forward_grain(l, op, g, bad);
    return v_noted(bad);
}

// --- backward ------------------------------------------------------------------------------------

// dx of `cells` cells: factor * (dy - term - n * a), a the sums in chain[0]; dx may be dy.
V_INLINE vf norm_turn_back(const norm_part *p, uint64_t cells, uint32_t vectors, float *dx,
                           vf bad) {
    for (uint64_t i = 0; i < cells; i++) {
        const uint64_t at = i * p->norm->channels;
        NORM_EACH_VECTOR(v, vectors) {
            const vf d = v_sub(norm_load(p->x + at, p, vectors, v), p->mean[v]);
            const vf rest = v_sub(norm_load(p->dy + at, p, vectors, v), p->term[v]);
            const vf back = v_sub(v_set1(-0.0f), v_mul(d, p->inverse[v]));  // -n, of zeros too
            const vf value = v_mul(p->factor[v], v_fma(back, p->chain[0][v], rest));
            bad = v_note(bad, value);
            norm_keep(dx + at, p, vectors, v, value);
        }
    }
    return bad;
}

#define NORM_TURN_BACK(vectors) bad = norm_turn_back(p, cells, vectors, dx, bad)
V_NOINLINE vf norm_write_back(const norm_part *p, uint64_t cells, float *dx, vf bad) {
    NORM_EACH(p, NORM_TURN_BACK)
    return bad;
}

static vf norm_backward_grain(const lk_lane *l, const lk_op *op, uint32_t g, vf bad) {
    const lk_batch_norm *n = &op->norm;
    const uint32_t examples = lk_lane_present(l, g);
    const uint64_t first = (uint64_t)g * l->grain * op->floats, here = examples * op->floats;
    const float share = examples > 0 ? norm_share(n, examples) : 0.0f;
    float *dx = l->at[LK_DX] ? (float *)l->at[LK_DX] + first : NULL;
    float *row = (float *)l->at[LK_AUX] + (uint64_t)g * LK_NORM_COLUMNS * n->channels;
    for (uint32_t c = 0; examples > 0 && c < n->channels; c += NORM_FLOATS) {
        norm_part p;
        norm_part_of(l, op, examples, first, c, &p);
        norm_fetch(row, LK_NORM_MEAN, c, &p, p.mean);
        norm_fetch(row, LK_NORM_INVERSE, c, &p, p.inverse);
        norm_sum_dy(&p);
        norm_store(row, LK_NORM_GAMMA, c, &p, p.chain[0]);
        norm_store(row, LK_NORM_BETA, c, &p, p.chain[1]);
        for (uint32_t v = 0; v < norm_vectors(&p); v++) {
            bad = v_note(v_note(bad, p.chain[0][v]), p.chain[1][v]);
            p.chain[0][v] = norm_mean(p.chain[0][v], share);
            p.term[v] = norm_mean(p.chain[1][v], share);
            p.factor[v] = v_mul(p.factor[v], p.inverse[v]);
        }
        if (dx) bad = norm_write_back(&p, here / n->channels, dx + c, bad);
    }
    if (dx) memset(dx + here, 0, (lk_lane_rows(l, g) * op->floats - here) * sizeof *dx);
    return bad;
}

// Of a layer that is frozen: dy by a factor for each channel.
static vf norm_frozen_gradient(const lk_lane *l, const lk_op *op) {
    const lk_batch_norm *n = &op->norm;
    float *dx = l->at[LK_DX];
    vf bad = v_zero();
    for (uint32_t c = 0; c < n->channels; c += NORM_FLOATS) {
        norm_part p;
        norm_part_of(l, op, l->examples, 0, c, &p);
        norm_fetch(l->state[1], 0, c, &p, p.inverse);
        for (uint32_t v = 0; v < norm_vectors(&p); v++) {
            p.factor[v] = v_mul(p.factor[v], norm_inverse(p.inverse[v], n->epsilon));
        }
        for (uint64_t at = 0; at < l->examples * op->floats; at += n->channels) {
            for (uint32_t v = 0; v < norm_vectors(&p); v++) {
                const vf dy = norm_load(p.dy + at, &p, NORM_VECTORS, v);
                const vf value = v_mul(p.factor[v], dy);
                bad = v_note(bad, value);
                norm_keep(dx + c + at, &p, NORM_VECTORS, v, value);
            }
        }
    }
    return bad;
}

static uint32_t plain_batch_normalization_backward(lk_lane *l, const lk_op *op) {
    vf bad = v_zero();
    if (op->norm.frozen) return v_noted(norm_frozen_gradient(l, op));
    for (uint32_t g = 0; g < lk_lane_grains(l); g++) bad = norm_backward_grain(l, op, g, bad);
    return v_noted(bad);
}

// --- trees over grains ---------------------------------------------------------------------------

V_INLINE vf norm_tree(const lk_lane *l, uint64_t at, uint32_t count) {
    vf node[LK_TREE_LEVELS_MAX], sum = v_zero();
    for (uint32_t g = 0; g < l->grain_count; g++) {
        uint32_t level = 0;
        sum = v_load_first(lk_grain_kept(&l->grains[g]) + at, count);
        for (; g >> level & 1; level++) sum = v_add(node[level], sum);
        node[level] = sum;
    }
    bool some = false;
    for (uint32_t level = 0; l->grain_count >> level; level++) {
        if (!(l->grain_count >> level & 1)) continue;
        sum = some ? v_add(node[level], sum) : node[level];
        some = true;
    }
    return sum;
}

static uint32_t norm_nodes(const lk_lane *l, const lk_op *op, uint32_t first) {
    const uint64_t channels = op->norm.channels;
    for (uint32_t column = 0; column < 2; column++) {
        if (!l->sums[column]) continue;
        EACH_VECTOR(channels) {
            const vf sum = norm_tree(l, (first + column) * channels + i, (uint32_t)rest);
            v_store_first(l->sums[column] + i, (uint32_t)rest, sum);
        }
    }
    return 0;
}

static uint32_t plain_batch_normalization_statistics(lk_lane *l, const lk_op *op) {
    return norm_nodes(l, op, LK_NORM_SUM);
}

static uint32_t plain_batch_normalization_gradient(lk_lane *l, const lk_op *op) {
    return norm_nodes(l, op, LK_NORM_GAMMA);
}
