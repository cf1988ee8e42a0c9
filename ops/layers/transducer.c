// transducer.c - what an RNN transducer has beside recurrent layers: the embedding of its labels,
// the joint of encoder and prediction network, the loss. Freestanding. ARITHMETIC.md 3 to 6.
//
// An example has T frames, of at most `frames`, and U labels y[1] .. y[U], of at most `labels`,
// each from 1 to V - 1; 0 is the blank. A cell (t, u), t < T and u <= U, stands for frame t with u
// labels said. There are frames * (labels + 1) cells in memory, those of an example after each
// other, t ascending, then u; what lies outside of T and U is +0 everywhere.
//
//   label_embedding   e[u] = w[y[u]], e[0] = w[0];  dw[v] = sum of (v == y[u]) * de[u]
//
//   joint             h[k] = tanh(x[t][k] + x2[u][k]);  z = the dense layer of h, V units
//                     top = max z, e[n] = exp(z[n] - top), s = sum of e[n], r = 1 / s
//                     y[t][u] = (z[0] - top) - log(s), and for u < U (z[y[u + 1]] - top) - log(s)
//
//     backward        p = e[n] * r, g = dy blank + dy label
//                     dz[n] = fma(-p, g, n == 0 ? dy blank : n == y[u + 1] ? dy label : +0)
//                     dh as that of the dense layer, d[k] = dh[k] * fma(-h[k], h[k], 1)
//                     dx[t] = d of u = 0 + d of u = 1 + ..; dx2[u] = d of t = 0 + d of t = 1 + ..
//                     gradients of parameters: those of a dense layer with a row for each cell
//
//   transducer        of b[t][u] and l[t][u], the two numbers of a cell: below
//
// In mixed precision h and dz are rounded: products take them.
//
// z and h are never there for all cells: they are computed, and computed again, for a tile of them.
// Every number of a cell is the cell's alone, and a tile is whole slices of the sums over cells, so
// its size changes no bit.
#include "ops/graph/build.h"
#include "ops/layers/decode.h"
#include "ops/layers/export.h"
#include "ops/layers/keys.h"
#include "ops/layers/rounded.h"
#include "ops/layers/sums.h"
#include "ops/math.h"
#include "ops/tree.h"

typedef unsigned long long ull;

static const uint32_t *labels_of(const lk_lane *l, const lk_joint *j, uint32_t m) {
    return (const uint32_t *)l->at[LK_LABELS] + (uint64_t)m * (1 + j->labels);
}

// The number, in the microbatch, of the first example of a grain.
static uint32_t first_of(const lk_lane *l, const lk_grain_view *view, uint64_t row_floats) {
    return (uint32_t)((uint64_t)(view->dy - (const float *)l->at[LK_DY]) / row_floats);
}

// --- nodes of gradients --------------------------------------------------------------------------

// Matrices of `floats` in a binary counter: the leaves of a tree, from left to right.
typedef struct nodes {
    float *at;
    uint64_t floats;
    lk_counter counter;
} nodes;

static float *node_top(const nodes *n) { return n->at + n->counter.count * n->floats; }

static void node_join(const nodes *n, uint32_t right) {
    float *a = n->at + (right - 1) * n->floats, *b = n->at + right * n->floats;
    for (uint64_t i = 0; i < n->floats; i++) a[i] = a[i] + b[i];
}

// What lies at node_top is leaf `leaf`.
static void node_push(nodes *n, uint32_t leaf) {
    uint32_t top = n->counter.count;
    for (uint32_t m = lk_counter_push(&n->counter, (lk_node){0, leaf}); m > 0; m--)
        node_join(n, top--);
}

// The root, at n->at.
static void node_finish(const nodes *n) {
    for (uint32_t i = n->counter.count; i > 1; i--) node_join(n, i - 1);
}

// --- label_embedding: the reference --------------------------------------------------------------

static uint32_t label_embedding(lk_lane *l, const lk_op *op) {
    const lk_joint *j = &op->joint;
    const uint32_t units = j->dense.n_count;
    float *y = l->at[LK_Y];
    uint32_t bad = 0;
    for (uint32_t m = 0; m < l->examples; m++) {
        const uint32_t *row = labels_of(l, j, m), labels = lk_joint_labels(j, row);
        for (uint32_t u = 0; u <= j->labels; u++, y += units) {
            const uint32_t id = u ? row[u] : LK_BLANK;
            const bool there = u <= labels && id < j->dense.k_count;
            bad |= u <= labels && !there;
            for (uint32_t k = 0; k < units; k++)
                y[k] = there ? l->param[0][(uint64_t)id * units + k] : 0.0f;
        }
    }
    return bad;
}

// The chain of the terms of rows [first, end) of a grain, of which others than `id`'s are zeros.
static float embedding_chain(const lk_lane *l, const lk_joint *j, uint32_t m, uint32_t first,
                             uint32_t end, uint32_t id, uint32_t k) {
    const uint32_t rows = j->labels + 1, units = j->dense.n_count;
    const float *dy = (const float *)l->at[LK_DY] + (uint64_t)m * rows * units;
    float chain = 0.0f;
    for (uint32_t i = first; i < end; i++) {
        const uint32_t u = i % rows, *row = labels_of(l, j, m + i / rows);
        if (u > lk_joint_labels(j, row) || (u ? row[u] : LK_BLANK) != id) continue;
        chain = lk_fmaf(1.0f, dy[(uint64_t)i * units + k], chain);
    }
    return chain;
}

static uint32_t label_embedding_gradient(lk_lane *l, const lk_op *op) {
    const lk_joint *j = &op->joint;
    const uint32_t units = j->dense.n_count;
    for (uint64_t e = 0; e < (uint64_t)j->dense.k_count * units; e++) {
        tree_sum all;
        tree_start(&all);
        for (uint32_t g = 0; g < l->grain_count; g++) {
            const uint32_t rows = l->grains[g].examples * (j->labels + 1);
            const uint32_t m = first_of(l, &l->grains[g], (uint64_t)(j->labels + 1) * units);
            tree_sum grain;
            tree_start(&grain);
            for (uint32_t i = 0; i < rows; i += LK_SLICE_TERMS) {
                const uint32_t end = LK_MIN(i + LK_SLICE_TERMS, rows);
                tree_leaf(&grain, embedding_chain(l, j, m, i, end, (uint32_t)(e / units),
                                                  (uint32_t)(e % units)));
            }
            tree_leaf(&all, tree_finish(&grain));
        }
        l->sums[0][e] = tree_finish(&all);
    }
    return 0;
}

// --- joint: the reference ------------------------------------------------------------------------

// Cell (t, u) of example m, and what of it lies in memory.
typedef struct cell {
    const lk_op *op;
    const lk_joint *j;    // its shape
    const float *x, *x2;  // its rows
    float *y, *kept;      // its numbers
    const float *dy;      // .. of a gradient
    uint32_t label;       // y[u + 1]; the blank: there is none
    bool there;           // t < T and u <= U
} cell;

static cell cell_of(const lk_lane *l, const lk_op *op, uint32_t m, uint32_t at) {
    const lk_joint *j = &op->joint;
    const uint32_t k = j->dense.k_count, t = at / (j->labels + 1), u = at % (j->labels + 1);
    const uint32_t *row = labels_of(l, j, m), labels = lk_joint_labels(j, row);
    const uint64_t number = (uint64_t)m * lk_joint_cells(j) + at;
    return (cell){.op = op,
                  .j = j,
                  .x = (const float *)l->at[LK_X] + ((uint64_t)m * j->frames + t) * k,
                  .x2 = (const float *)l->at[LK_X2] + ((uint64_t)m * (j->labels + 1) + u) * k,
                  .y = l->at[LK_Y] ? (float *)l->at[LK_Y] + number * LK_JOINT_OUT : NULL,
                  .kept = (float *)l->at[LK_AUX] + number * LK_JOINT_KEPT,
                  .dy = l->at[LK_DY] ? (const float *)l->at[LK_DY] + number * LK_JOINT_OUT : NULL,
                  .label = u < labels ? row[1 + u] : LK_BLANK,
                  .there = t < lk_joint_frames(j, row) && u <= labels};
}

uint32_t lk_joint_scores(const lk_op *op, const float *x, const float *x2,
                         float *const param[LK_OP_PARAMS], float *h, float *z) {
    const lk_dense *d = &op->joint.dense;
    uint32_t bad = 0;
    for (uint32_t k = 0; k < d->k_count; k++) h[k] = lk_rounded(op->dtype, lk_tanhf(x[k] + x2[k]));
    for (uint32_t n = 0; n < d->n_count; n++) {
        slice_sum s;
        slice_start(&s, param[1] ? param[1][n] : 0.0f);
        for (uint32_t k = 0; k < d->k_count; k++)
            slice_term(&s, h[k], param[0][(uint64_t)k * d->n_count + n]);
        z[n] = slice_finish(&s);
        bad |= lk_not_finite(z[n]);
    }
    return bad;
}

// h (k_count) and z (n_count) of a cell.
static uint32_t cell_scores(const cell *c, float *const param[LK_OP_PARAMS], float *h, float *z) {
    return lk_joint_scores(c->op, c->x, c->x2, param, h, z);
}

static uint32_t cell_output(const cell *c, const float *z) {
    const uint32_t n_count = c->j->dense.n_count;
    float top = z[0];
    slice_sum s;
    if (c->label >= n_count) return 1;
    for (uint32_t n = 1; n < n_count; n++) top = z[n] > top ? z[n] : top;
    slice_start(&s, 0.0f);
    for (uint32_t n = 0; n < n_count; n++) slice_term(&s, 1.0f, lk_expf(z[n] - top));
    const float sum = slice_finish(&s), size = lk_logf(sum);
    c->kept[LK_JOINT_TOP] = top;
    c->kept[LK_JOINT_SHARE] = 1.0f / sum;
    c->y[LK_JOINT_BLANK] = z[LK_BLANK] - top - size + 0.0f;
    c->y[LK_JOINT_LABEL] = c->label != LK_BLANK ? z[c->label] - top - size + 0.0f : 0.0f;
    return lk_not_finite(c->y[LK_JOINT_BLANK]) | lk_not_finite(c->y[LK_JOINT_LABEL]);
}

static uint32_t joint(lk_lane *l, const lk_op *op) {
    const lk_joint *j = &op->joint;
    float *h = l->at[LK_SCRATCH], *z = h + lk_round_up(j->dense.k_count, 16);
    uint32_t bad = 0;
    for (uint32_t m = 0; m < l->examples; m++) {
        for (uint32_t at = 0; at < lk_joint_cells(j); at++) {
            const cell c = cell_of(l, op, m, at);
            __builtin_memset(c.y, 0, LK_JOINT_OUT * sizeof *c.y);
            __builtin_memset(c.kept, 0, LK_JOINT_KEPT * sizeof *c.kept);
            if (!c.there) continue;
            bad |= cell_scores(&c, l->param, h, z);
            bad |= cell_output(&c, z);
        }
    }
    return bad;
}

// z becomes dz.
static uint32_t cell_slopes(const cell *c, float *z) {
    uint32_t bad = 0;
    const float blank = c->dy[LK_JOINT_BLANK], label = c->dy[LK_JOINT_LABEL], g = blank + label;
    for (uint32_t n = 0; n < c->j->dense.n_count; n++) {
        const float p = lk_expf(z[n] - c->kept[LK_JOINT_TOP]) * c->kept[LK_JOINT_SHARE];
        const float own = n == LK_BLANK ? blank : n == c->label ? label : 0.0f;
        z[n] = lk_rounded(c->op->dtype, lk_fmaf(-p, g, own));
        bad |= lk_not_finite(z[n]);
    }
    return bad;
}

// d of a cell, added to dx and dx2 where they are wanted.
static uint32_t cell_gradient(const cell *c, const float *w, const float *h, const float *dz,
                              float *dx, float *dx2) {
    const lk_dense *d = &c->j->dense;
    uint32_t bad = 0;
    for (uint32_t k = 0; k < d->k_count; k++) {
        slice_sum s;
        slice_start(&s, 0.0f);
        for (uint32_t n = 0; n < d->n_count; n++)
            slice_term(&s, w[(uint64_t)k * d->n_count + n], dz[n]);
        const float dh = slice_finish(&s), slope = dh * lk_fmaf(-h[k], h[k], 1.0f);
        bad |= lk_not_finite(dh);
        if (dx) dx[k] = dx[k] + slope;
        if (dx2) dx2[k] = dx2[k] + slope;
        bad |= dx && lk_not_finite(dx[k]);
        bad |= dx2 && lk_not_finite(dx2[k]);
    }
    return bad;
}

static uint32_t joint_input_gradient(lk_lane *l, const lk_op *op) {
    const lk_joint *j = &op->joint;
    const uint64_t k = j->dense.k_count, rows = j->labels + 1;
    float *h = l->at[LK_SCRATCH], *z = h + lk_round_up(k, 16);
    float *dx = l->at[LK_DX], *dx2 = l->at[LK_DX2];
    uint32_t bad = 0;
    if (dx) __builtin_memset(dx, 0, l->examples * j->frames * k * sizeof *dx);
    if (dx2) __builtin_memset(dx2, 0, l->examples * rows * k * sizeof *dx2);
    for (uint32_t m = 0; m < l->examples; m++) {
        for (uint32_t at = 0; at < lk_joint_cells(j); at++) {
            const cell c = cell_of(l, op, m, at);
            if (!c.there) continue;
            bad |= cell_scores(&c, l->param, h, z);
            bad |= cell_slopes(&c, z);
            bad |= cell_gradient(&c, l->param[0], h, z,
                                 dx ? dx + (m * (uint64_t)j->frames + at / rows) * k : NULL,
                                 dx2 ? dx2 + (m * rows + at % rows) * k : NULL);
        }
    }
    return bad;
}

// The leaf of rows [first, end) of the grain that begins with example m: h (rows, k_count) and dz
// (rows, n_count), +0 where there is no cell; then the chains.
static void joint_slice(const lk_lane *l, const lk_op *op, uint32_t m, uint64_t first,
                        uint64_t end, float *sums) {
    const lk_joint *j = &op->joint;
    const uint32_t cells = lk_joint_cells(j), rows = (uint32_t)(end - first);
    const uint64_t k_count = j->dense.k_count, n_count = j->dense.n_count;
    float *h = l->at[LK_SCRATCH], *dz = h + rows * k_count;
    __builtin_memset(h, 0, rows * (k_count + n_count) * sizeof *h);
    for (uint32_t i = 0; i < rows; i++) {
        const uint64_t at = first + i;
        const cell c = cell_of(l, op, m + (uint32_t)(at / cells), (uint32_t)(at % cells));
        if (!c.there) continue;
        (void)cell_scores(&c, l->param, h + i * k_count, dz + i * n_count);
        (void)cell_slopes(&c, dz + i * n_count);
    }
    for (uint64_t e = 0; e < (k_count + 1) * n_count; e++) {
        const uint64_t k = e / n_count, n = e % n_count;
        float chain = 0.0f;
        for (uint32_t i = 0; i < rows; i++)
            chain = lk_fmaf(k < k_count ? h[i * k_count + k] : 1.0f, dz[i * n_count + n], chain);
        sums[e] = chain;
    }
}

// Leaves are slices, then grains; the last row of a node is the bias's.
static uint32_t joint_weight_gradient(lk_lane *l, const lk_op *op) {
    const lk_joint *j = &op->joint;
    const uint64_t cells = lk_joint_cells(j),
                   kernel = (uint64_t)j->dense.k_count * j->dense.n_count;
    nodes grains = {
        .at = (float *)l->at[LK_SCRATCH] +
              lk_round_up((uint64_t)j->tile * (j->dense.k_count + j->dense.n_count), 16),
        .floats = lk_round_up(kernel + j->dense.n_count, 16)};
    for (uint32_t g = 0; g < l->grain_count; g++) {
        const uint64_t rows = l->grains[g].examples * cells;
        const uint32_t m = first_of(l, &l->grains[g], cells * LK_JOINT_OUT);
        nodes slices = {.at = node_top(&grains), .floats = grains.floats};
        for (uint64_t i = 0; i < rows; i += LK_SLICE_TERMS) {
            joint_slice(l, op, m, i, LK_MIN(i + LK_SLICE_TERMS, rows), node_top(&slices));
            node_push(&slices, (uint32_t)(i / LK_SLICE_TERMS));
        }
        node_finish(&slices);
        node_push(&grains, g);
    }
    node_finish(&grains);
    for (uint64_t e = 0; e < kernel; e++) l->sums[0][e] = grains.at[e];
    for (uint32_t n = 0; n < j->dense.n_count && l->sums[1]; n++)
        l->sums[1][n] = grains.at[kernel + n];
    return 0;
}

// --- transducer ----------------------------------------------------------------------------------
//
//   lse(a, b) = top + log1pexp(low - top), top the greater of the two and low the other
//   beta[T-1][U] = b[T-1][U];  beta[t][u], from the last t down, in each from the last u down:
//       right = beta[t+1][u] + b[t][u], of t < T - 1;  up = beta[t][u+1] + l[t][u], of u < U
//       beta[t][u] = lse(right, up), or the one of them that there is
//   loss = 0 - beta[0][0];  an example of no frames has a loss of +0
//   alpha[0][0] = +0;  alpha[t][u] = lse(alpha[t-1][u] + b[t-1][u], alpha[t][u-1] + l[t][u-1])
//   db[t][u] = 0 - exp((alpha[t][u] + b[t][u] + beta[t+1][u]) + loss), of t < T - 1; of (T-1, U)
//       0 - exp((alpha[t][u] + b[t][u]) + loss);  else +0
//   dl[t][u] = 0 - exp((alpha[t][u] + l[t][u] + beta[t][u+1]) + loss), of u < U; else +0

static float both(float a, float b) {
    const float top = a > b ? a : b, low = a > b ? b : a;
    return top + lk_log1pexpf(low - top);
}

typedef struct lattice {
    uint32_t frames, labels, columns;  // T, U; labels of memory plus 1
    const float *y;                    // (frames, columns, 2)
    float *beta;                       // (frames, columns)
    float *alpha;                      // (columns)
    float *dy;                         // as y
} lattice;

static float blank_of(const lattice *a, uint32_t t, uint32_t u) {
    return a->y[((uint64_t)t * a->columns + u) * LK_JOINT_OUT + LK_JOINT_BLANK];
}
static float label_of(const lattice *a, uint32_t t, uint32_t u) {
    return a->y[((uint64_t)t * a->columns + u) * LK_JOINT_OUT + LK_JOINT_LABEL];
}
static float *beta_at(const lattice *a, uint32_t t, uint32_t u) {
    return a->beta + (uint64_t)t * a->columns + u;
}

static float backward_sum(const lattice *a) {
    for (uint32_t t = a->frames; t-- > 0;) {
        for (uint32_t u = a->labels + 1; u-- > 0;) {
            const bool right = t + 1 < a->frames, up = u < a->labels;
            const float r = right ? *beta_at(a, t + 1, u) + blank_of(a, t, u) : 0.0f;
            const float p = up ? *beta_at(a, t, u + 1) + label_of(a, t, u) : 0.0f;
            *beta_at(a, t, u) = right && up ? both(r, p) : right ? r : up ? p : blank_of(a, t, u);
        }
    }
    return 0.0f - a->beta[0];
}

// alpha of the frame before becomes that of frame t.
static void forward_frame(const lattice *a, uint32_t t) {
    for (uint32_t u = 0; u <= a->labels; u++) {
        const float left = t ? a->alpha[u] + blank_of(a, t - 1, u) : 0.0f;
        const float below = u ? a->alpha[u - 1] + label_of(a, t, u - 1) : 0.0f;
        a->alpha[u] = t && u ? both(left, below) : t ? left : below;
    }
}

static uint32_t slopes(const lattice *a, uint32_t t, float loss) {
    uint32_t bad = 0;
    for (uint32_t u = 0; u <= a->labels; u++) {
        float *dy = a->dy + ((uint64_t)t * a->columns + u) * LK_JOINT_OUT;
        const float b = a->alpha[u] + blank_of(a, t, u), n = a->alpha[u] + label_of(a, t, u);
        if (t + 1 < a->frames)
            dy[LK_JOINT_BLANK] = 0.0f - lk_expf(b + *beta_at(a, t + 1, u) + loss);
        else if (u == a->labels)
            dy[LK_JOINT_BLANK] = 0.0f - lk_expf(b + loss);
        if (u < a->labels) dy[LK_JOINT_LABEL] = 0.0f - lk_expf(n + *beta_at(a, t, u + 1) + loss);
        bad |= lk_not_finite(dy[LK_JOINT_BLANK]) | lk_not_finite(dy[LK_JOINT_LABEL]);
    }
    return bad;
}

static uint32_t transducer(lk_lane *l, const lk_op *op) {
    const lk_joint *j = &op->joint;
    const uint64_t floats = (uint64_t)lk_joint_cells(j) * LK_JOINT_OUT;
    float *loss = l->at[LK_Y], *dy = l->train ? l->at[LK_DX] : NULL;
    uint32_t bad = 0;
    for (uint32_t m = 0; m < l->examples; m++) {
        const uint32_t *row = (const uint32_t *)l->at[LK_X2] + (uint64_t)m * (1 + j->labels);
        lattice a = {.frames = lk_joint_frames(j, row),
                     .labels = lk_joint_labels(j, row),
                     .columns = j->labels + 1,
                     .y = (const float *)l->at[LK_X] + m * floats,
                     .beta = l->at[LK_SCRATCH],
                     .dy = dy ? dy + m * floats : NULL};
        a.alpha = a.beta + lk_joint_cells(j);
        loss[m] = a.frames ? backward_sum(&a) : 0.0f;
        bad |= lk_not_finite(loss[m]);
        if (!dy) continue;
        __builtin_memset(a.dy, 0, floats * sizeof *dy);
        for (uint32_t t = 0; t < a.frames; t++) {
            forward_frame(&a, t);
            bad |= slopes(&a, t, loss[m]);
        }
    }
    return bad;
}

// --- shapes, parameters --------------------------------------------------------------------------

// What both layers and the loss ask of the model.
static lk_status check_model(lk_builder *b, const char *what, const char *name) {
    const lk_model *m = &b->program->spec->model;
    if (lk_graph_of(m)) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "%s%s: found a model of several networks, wanted one network and one "
                       "objective, whose labels are sequences",
                       what, name);
    }
    if (m->labels) return LK_OK;
    return lk_fail(b->error, LK_BAD_CONFIG,
                   "%s%s: found no model.labels, wanted the most labels that an example has, which "
                   "is a sequence of them",
                   what, name);
}

// Enough cells to be worth a product, no more than there are: in at most half a mebibyte of values,
// which a cache holds; on a GPU, where each tile is launches of its own, in 32.
static uint32_t tile_of(const lk_builder *b, const lk_joint *j) {
    const lk_layout *layout = &b->program->layout;
    const uint64_t bytes = (uint64_t)(j->dense.k_count + j->dense.n_count) * sizeof(float);
    const uint64_t all = (uint64_t)b->program->microbatch_examples * lk_joint_cells(j);
    const uint64_t most = LK_MIN((layout->device ? 1ull << 25 : 1ull << 19) / bytes,
                                 (uint64_t)LK_JOINT_TILE_MAX);
    uint32_t tile = LK_SLICE_TERMS;
    if (layout->joint_tile) return layout->joint_tile;
    while (2 * tile <= most && tile < all) tile *= 2;
    return tile;
}

static lk_status build_label_embedding(lk_builder *b, const lk_layer *l) {
    const lk_model *m = &b->program->spec->model;
    LK_CHECK(check_model(b, "layer ", l->name));
    const lk_shape out = {m->labels + 1, 1, l->units, false};
    lk_op *op = lk_build_op(b, &lk_op_label_embedding, (lk_value){.op = LK_NONE}, out);
    op->joint = (lk_joint){.dense = {.k_count = m->classes, .n_count = l->units},
                           .frames = 1,  // so that rows are cells
                           .labels = m->labels,
                           .grain = b->program->spec->grain};
    return LK_OK;
}

static lk_status declare_label_embedding(lk_builder *b, lk_op *op) {
    const lk_dense *d = &op->joint.dense;
    const lk_param_shape embeddings = {
        .suffix = "embeddings",
        .rank = 2,
        .size = {d->k_count, d->n_count},
        .fan_in = d->k_count,
        .fan_out = d->n_count,
        .initializer = b->program->spec->model.layers[op->layer].initializer};
    return lk_build_param(b, op, 0, &embeddings);
}

static lk_status differentiate_label_embedding(lk_builder *b, uint32_t of) {
    lk_build_param_gradient(b, &lk_op_label_embedding_gradient, of, 0, 1);
    return LK_OK;
}

static lk_status build_joint(lk_builder *b, const lk_layer *l) {
    const lk_model *m = &b->program->spec->model;
    const lk_shape x = b->input[0].shape, x2 = b->input[1].shape;
    LK_CHECK(check_model(b, "layer ", l->name));
    if (x.flat || x.w != 1 || x2.flat || x2.w != 1 || x.c != x2.c || x2.h != m->labels + 1) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: its inputs are %u x %u x %u and %u x %u x %u, wanted (frames, "
                       "features) of an encoder and (%u, features) of a prediction network, a row "
                       "more than model.labels, with as many features",
                       l->name, x.h, x.w, x.c, x2.h, x2.w, x2.c, m->labels + 1);
    }
    if (l->units < m->classes || b->input[0].op == b->input[1].op) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: found %u units%s, wanted at least model.classes, %u, the blank "
                       "among them, and two inputs",
                       l->name, l->units,
                       b->input[0].op == b->input[1].op ? " and one input twice" : "", m->classes);
    }
    const lk_joint j = {.dense = {.k_count = x.c, .n_count = l->units, .use_bias = l->use_bias},
                        .frames = x.h,
                        .labels = m->labels,
                        .frames_said = m->in_h,
                        .grain = b->program->spec->grain};
    const uint64_t cells = (uint64_t)x.h * x2.h;
    if (cells * LK_JOINT_OUT * b->program->microbatch_examples > INT32_MAX) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: a microbatch of %u examples of %llu cells has 2^30 or more; use "
                       "a smaller layout.wave_examples",
                       l->name, b->program->microbatch_examples, (ull)cells);
    }
    lk_op *op =
        lk_build_op(b, &lk_op_joint, b->input[0], (lk_shape){x.h, x2.h, LK_JOINT_OUT, false});
    op->input[1] = b->input[1].op;
    op->joint = j;
    op->joint.tile = tile_of(b, &j);
    const uint32_t tile = op->joint.tile;
    if (tile >= LK_SLICE_TERMS && (tile & (tile - 1)) == 0) return LK_OK;
    return lk_fail(b->error, LK_BAD_CONFIG,
                   "layout.joint_tile: found %u, wanted a power of two from %d to %d, or 0", tile,
                   LK_SLICE_TERMS, LK_JOINT_TILE_MAX);
}

static lk_status declare_joint(lk_builder *b, lk_op *op) {
    const lk_dense *d = &op->joint.dense;
    const lk_param_shape kernel = {
        .suffix = "kernel",
        .rank = 2,
        .size = {d->k_count, d->n_count},
        .fan_in = d->k_count,
        .fan_out = d->n_count,
        .initializer = b->program->spec->model.layers[op->layer].initializer};
    const lk_param_shape bias = {
        .suffix = "bias", .rank = 1, .size = {d->n_count}, .initializer = &lk_initializer_zeros};
    LK_CHECK(lk_build_param(b, op, 0, &kernel));
    if (d->use_bias) LK_CHECK(lk_build_param(b, op, 1, &bias));
    return lk_build_rows(b, op, "/kept", LK_CLASS_ACTIVATION, LK_F32,
                         (uint64_t)lk_joint_cells(&op->joint) * LK_JOINT_KEPT, &op->tensor[LK_AUX]);
}

static lk_status differentiate_joint(lk_builder *b, uint32_t of) {
    LK_CHECK(lk_build_input_gradients(b, &lk_op_joint_input_gradient, of));
    lk_build_param_gradient(b, &lk_op_joint_weight_gradient, of, 0, 2);
    return LK_OK;
}

// The ops that op `of` depends on, and it itself, say `again`.
static void mark_before(lk_builder *b, uint32_t of) {
    lk_program *p = b->program;
    for (uint32_t i = 0; i < p->forward_end; i++) p->ops[i].again = i == of;
    for (uint32_t i = of + 1; i-- > 0;) {
        for (uint32_t n = 0; n < LK_OP_INPUTS && p->ops[i].again; n++) {
            if (p->ops[i].input[n] != LK_NONE) p->ops[p->ops[i].input[n]].again = true;
        }
    }
}

// Of these ops those stay that depend on the labels. Is there any?
static bool keep_labels(lk_builder *b) {
    lk_program *p = b->program;
    bool any = false;
    for (uint32_t i = 0; i < p->forward_end; i++) {
        lk_op *op = &p->ops[i];
        bool labels = op->type == &lk_op_label_embedding;
        for (uint32_t n = 0; n < LK_OP_INPUTS; n++) {
            if (op->input[n] != LK_NONE) labels = labels || p->ops[op->input[n]].again;
        }
        op->again = op->again && labels;
        any = any || op->again;
    }
    return any;
}

// What decodes, behind the loss: of the joint's inputs, of which the second is made again. What
// makes the first may not know the labels.
static lk_status build_decode(lk_builder *b) {
    lk_program *p = b->program;
    const lk_op *joint = &p->ops[b->output.op];
    const char *name = p->spec->model.layers[joint->layer].name;
    mark_before(b, joint->input[0]);
    if (keep_labels(b)) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: found a first input that depends on the labels, wanted that of "
                       "an encoder, which does not know them",
                       name);
    }
    mark_before(b, joint->input[1]);
    (void)keep_labels(b);
    lk_op *op = lk_build_after_loss(b, &lk_op_decode, joint->layer);
    op->joint = joint->joint;
    op->joint.classes = p->spec->model.classes;
    for (uint32_t i = 0; i < LK_OP_PARAMS; i++) op->param[i] = joint->param[i];
    op->tensor[LK_X] = joint->tensor[LK_X];
    op->tensor[LK_X2] = joint->tensor[LK_X2];
    op->tensor[LK_LABELS] = p->labels;
    LK_CHECK(lk_build_rows(b, op, "", LK_CLASS_ACTIVATION, LK_U32,
                           lk_model_label_row(&p->spec->model), &op->tensor[LK_Y]));
    return lk_build_rows(b, op, "/state", LK_CLASS_STAGING, LK_U32, LK_DECODING_WORDS,
                         &op->tensor[LK_AUX]);
}

static lk_status build_transducer(lk_builder *b) {
    lk_program *p = b->program;
    const lk_model *m = &p->spec->model;
    const lk_shape s = b->output.shape;
    LK_CHECK(check_model(b, "model.loss: transducer", ""));
    if (p->ops[b->output.op].type != &lk_op_joint || s.flat || s.w != m->labels + 1 ||
        s.c != LK_JOINT_OUT) {
        return lk_fail(
            b->error, LK_BAD_CONFIG,
            "model: the last layer's output is %u x %u x %u, wanted %d log-probabilities "
            "of each frame and each of %u labels said, for the loss; end with a joint "
            "layer",
            s.h, s.w, s.c, LK_JOINT_OUT, m->labels + 1);
    }
    LK_CHECK(lk_build_loss(b, &lk_op_transducer, NULL));
    for (uint32_t i = p->forward_end; i < p->op_count; i++) {
        if (p->ops[i].type != &lk_op_transducer) continue;
        p->ops[i].joint = (lk_joint){.frames = s.h, .labels = m->labels, .frames_said = m->in_h};
    }
    return build_decode(b);
}

// --- descriptors ---------------------------------------------------------------------------------

static uint64_t product_scratch(const lk_joint *j, uint64_t more) {
    const lk_op dense = {.dense = j->dense};
    return lk_round_up(more, 16) + LK_MAX(lk_dense_forward_scratch(&dense, j->tile),
                                          lk_dense_input_gradient_scratch(&dense, j->tile));
}

// Of a tile the cells' numbers and labels, h, z, and dh.
static uint64_t joint_scratch(const lk_op *op, uint32_t m_count) {
    const lk_joint *j = &op->joint;
    const uint64_t tile = j->tile;
    (void)m_count;
    return product_scratch(j, tile * (2 + 2 * (uint64_t)j->dense.k_count + j->dense.n_count));
}

// Of a tile the same but dh, and the nodes held.
static uint64_t weight_gradient_scratch(const lk_op *op, uint32_t m_count) {
    const lk_joint *j = &op->joint;
    const uint64_t k = j->dense.k_count, n = j->dense.n_count;
    const uint64_t held = lk_joint_nodes_held(j, m_count / j->grain + 1);
    const lk_op dense = {.dense = j->dense};
    return product_scratch(
               j, j->tile * (2 + k + n) + held * (lk_round_up(k * n, 16) + lk_round_up(n, 16))) +
           lk_dense_weight_gradient_scratch(&dense, j->tile);
}

static uint64_t embedding_gradient_scratch(const lk_op *op, uint32_t m_count) {
    const lk_joint *j = &op->joint;
    return lk_joint_nodes_held(j, m_count / j->grain + 1) *
           lk_round_up((uint64_t)j->dense.k_count * j->dense.n_count, 16);
}

static uint64_t transducer_scratch(const lk_op *op, uint32_t m_count) {
    (void)m_count;
    return (uint64_t)lk_joint_cells(&op->joint) + op->joint.labels + 1;
}

static lk_flop forward_flop(const lk_op *op) {
    const lk_joint *j = &op->joint;
    const uint64_t all = 2ull * j->dense.k_count * j->dense.n_count * lk_joint_cells(j);
    return (lk_flop){all, all};
}

// z again, and its own product.
static lk_flop backward_flop(const lk_op *op) {
    const uint64_t all = 2 * forward_flop(op).framework;
    return (lk_flop){all, all};
}

const lk_op_type lk_op_label_embedding = {.name = "label_embedding",
                                          .suffix = "",
                                          .number = LK_OP_LABEL_EMBEDDING,
                                          .mixed = true,
                                          .plain = true,
                                          .looks = true,
                                          .labels = true,
                                          .scope = LK_SCOPE_EXAMPLES,
                                          .reference = label_embedding,
                                          .declare = LK_RULE(declare_label_embedding),
                                          .differentiate = LK_RULE(differentiate_label_embedding)};
const lk_op_type lk_op_label_embedding_gradient = {
    .name = "label_embedding_gradient",
    .number = LK_OP_LABEL_EMBEDDING_GRADIENT,
    .mixed = true,
    .labels = true,
    .scope = LK_SCOPE_GRAINS,
    .reference = label_embedding_gradient,
    .scratch_floats = LK_RULE(embedding_gradient_scratch)};
const lk_op_type lk_op_joint = {.name = "joint",
                                .suffix = "",
                                .number = LK_OP_JOINT,
                                .mixed = true,
                                .looks = true,
                                .labels = true,
                                .scope = LK_SCOPE_EXAMPLES,
                                .reference = joint,
                                .scratch_floats = LK_RULE(joint_scratch),
                                .flop = LK_RULE(forward_flop),
                                .declare = LK_RULE(declare_joint),
                                .differentiate = LK_RULE(differentiate_joint)};
const lk_op_type lk_op_joint_input_gradient = {.name = "joint_input_gradient",
                                               .number = LK_OP_JOINT_INPUT_GRADIENT,
                                               .mixed = true,
                                               .looks = true,
                                               .both = true,
                                               .labels = true,
                                               .scope = LK_SCOPE_EXAMPLES,
                                               .reference = joint_input_gradient,
                                               .scratch_floats = LK_RULE(joint_scratch),
                                               .flop = LK_RULE(backward_flop)};
const lk_op_type lk_op_joint_weight_gradient = {.name = "joint_weight_gradient",
                                                .number = LK_OP_JOINT_WEIGHT_GRADIENT,
                                                .mixed = true,
                                                .labels = true,
                                                .scope = LK_SCOPE_GRAINS,
                                                .reference = joint_weight_gradient,
                                                .scratch_floats = LK_RULE(weight_gradient_scratch),
                                                .flop = LK_RULE(backward_flop)};
const lk_op_type lk_op_transducer = {.name = "transducer",
                                     .number = LK_OP_TRANSDUCER,
                                     .mixed = true,
                                     .scope = LK_SCOPE_LOSS,
                                     .reference = transducer,
                                     .scratch_floats = LK_RULE(transducer_scratch)};

const lk_layer_type lk_layer_label_embedding = {
    .inputs = 0, .ops_max = 2, .tensors_max = 4, .params_max = 1, .build = build_label_embedding};
const lk_layer_type lk_layer_joint = {
    .inputs = 2, .ops_max = 3, .tensors_max = 9, .params_max = 2, .build = build_joint};
static const lk_metrics evaluated = {
    .sum_count = 1,
    .sum = {"loss"},
    .count_count = 3,
    .count = {"correct", "label_errors", "labels"},
    .share = {"sequence_accuracy", "label_error_rate"},
    .errors_of = {[LK_DECODE_ERRORS] = LK_DECODE_LABELS + 1},
};
const lk_loss_type lk_loss_transducer = {.inputs = 1,
                                         .labels = true,
                                         .sequences = true,
                                         .metrics = {.sum_count = 1, .sum = {"loss"}},
                                         .evaluated = &evaluated,
                                         .build = LK_RULE(build_transducer)};

// --- words ---------------------------------------------------------------------------------------

static const lk_setting label_embedding_keys[] = {
    {.name = "embeddings_initializer",
     .kind = LK_SETTING_INITIALIZER,
     .offset = offsetof(lk_layer, initializer),
     .field = "initializer",
     .meaning = "initial values of the embeddings"},
    {.name = "units",
     .kind = LK_SETTING_U32,
     .offset = offsetof(lk_layer, units),
     .required = true,
     .most = 1 << 20,
     .meaning = "values of a label"},
};
// Of labels (batch, any number) the blank and they, then their rows, (batch, units, labels + 1, 1).
static void say_label_embedding(lk_export *e, const lk_layer *l) {
    static const int64_t blank_first[] = {0, 1, 0, 0}, second[] = {0, 2, 1}, column[] = {3};
    lk_export_constant(lk_export_from(lk_export_node_add(e, "Pad"), LK_EXPORT_LABELS), 4,
                       blank_first);
    lk_export_node *node = lk_export_node_add(e, "Gather");
    node->parameters = LK_EXPORT_KERNEL;
    node->table = true;
    lk_export_ints(lk_export_node_add(e, "Transpose"), "perm", 3, second);
    lk_export_constant(lk_export_node_add(e, "Unsqueeze"), 1, column);
    e->out = (lk_export_value){.channels = l->units, .times = e->op->joint.labels + 1};
}

const lk_layer_words lk_layer_words_label_embedding = {
    .type = &lk_layer_label_embedding,
    .name = "label_embedding",
    .keys = label_embedding_keys,
    .key_count = LK_COUNT(label_embedding_keys),
    .meaning =
        "a row of values for the blank, then for each label of the example: what a "
        "transducer's prediction network takes; it has no inputs",
    .say_export = say_label_embedding};

static const lk_setting joint_keys[] = {
    {.name = "kernel_initializer",
     .kind = LK_SETTING_INITIALIZER,
     .offset = offsetof(lk_layer, initializer),
     .field = "initializer",
     .meaning = "initial values of the kernel"},
    LK_KEY_KERNEL_REGULARIZER,
    {.name = "units",
     .kind = LK_SETTING_U32,
     .offset = offsetof(lk_layer, units),
     .required = true,
     .most = 1 << 20,
     .meaning = "symbols, the blank among them: model.classes or more"},
    {.name = "use_bias",
     .kind = LK_SETTING_BOOL,
     .offset = offsetof(lk_layer, use_bias),
     .constant = true,
     .meaning = "adds a number to each symbol"},
};
// Rows of an input, (batch, features, time, 1), as (batch, time, features).
static int32_t say_rows(lk_export *e, int32_t input, const char *squeezed, const char *result) {
    static const int64_t column[] = {3}, second[] = {0, 2, 1};
    lk_export_node *node = lk_export_node_named(e, "Squeeze", squeezed);
    lk_export_constant(lk_export_from(node, ~input), 1, column);
    node = lk_export_node_add(e, "Transpose");
    node->result = result;
    lk_export_ints(node, "perm", 3, second);
    return lk_export_last(e);
}

// The logits of every cell: whoever decodes takes encoder and prediction network apart.
static void say_joint(lk_export *e, const lk_layer *l) {
    static const int64_t labels_axis[] = {2}, frames_axis[] = {1};
    const int32_t encoder = say_rows(e, 0, "Frames", "encoder");
    const int32_t prediction = say_rows(e, 1, "Labels", "prediction");
    lk_export_node *node = lk_export_node_named(e, "Unsqueeze", "EachFrame");
    lk_export_constant(lk_export_from(node, encoder), 1, labels_axis);
    const int32_t frames = lk_export_last(e);
    node = lk_export_node_named(e, "Unsqueeze", "EachLabel");
    lk_export_constant(lk_export_from(node, prediction), 1, frames_axis);
    node = lk_export_node_named(e, "Add", "Cells");
    lk_export_from(lk_export_from(node, frames), frames + 1);
    lk_export_node_add(e, "Tanh");
    lk_export_node_add(e, "MatMul")->parameters = LK_EXPORT_KERNEL;
    if (l->use_bias) lk_export_node_add(e, "Add")->parameters = LK_EXPORT_BIAS;
    e->out = (lk_export_value){.channels = l->units, .cells = true};
}

const lk_layer_words lk_layer_words_joint = {
    .type = &lk_layer_joint,
    .name = "joint",
    .keys = joint_keys,
    .key_count = LK_COUNT(joint_keys),
    .meaning =
        "a transducer's: of an encoder and a prediction network the log-probabilities of the "
        "blank and of the next label, of each frame and each number of labels said",
    .say_export = say_joint};

const lk_loss_words lk_loss_words_transducer = {
    .type = &lk_loss_transducer,
    .name = "transducer",
    .meaning = "RNN-T: of all ways to say the labels over the frames, from a joint layer",
    .export_node = "LogSoftmax",
    .export_name = "log_probabilities"};
