// transducer.c - a transducer's ops as launches: a joint's cells tile after tile, whose products
// are those of dense layers; of gradients of parameters a tile has whole grains, where it has room
// for one. Which launches there are depends on the plan alone, not on how many cells the examples
// have: those that are none are rows of zeros.
#include "ops/cuda/table.h"
#include "ops/cuda/transducer.h"
#include "ops/tree.h"

static lk_cuda_stream *stream_of(const lk_lane *l) {
    return ((const lk_cuda_lane *)l->device)->stream;
}

// The number, in the microbatch, of the first example of a block of grains.
static uint32_t first_of(const lk_lane *l, uint64_t row_floats) {
    return (uint32_t)((uint64_t)(l->grains->dy - (const float *)l->at[LK_DY]) / row_floats);
}

static const uint32_t *labels_of(const lk_lane *l, const lk_joint *j, uint32_t m) {
    return (const uint32_t *)l->at[LK_LABELS] + (uint64_t)m * (1 + j->labels);
}

// --- label_embedding, transducer -----------------------------------------------------------------

uint32_t lk_cuda_embed_labels(lk_lane *l, const lk_op *op) {
    lk_cuda_label_embedding(stream_of(l), &op->joint, l->examples, l->at[LK_LABELS], l->param[0],
                            l->at[LK_Y]);
    return 0;
}

uint32_t lk_cuda_embed_labels_gradient(lk_lane *l, const lk_op *op) {
    const lk_joint *j = &op->joint;
    const uint32_t m = first_of(l, (uint64_t)(j->labels + 1) * j->dense.n_count);
    const lk_cuda_grains grains = {
        .dy = l->grains->dy, .grain = l->grain, .examples = l->examples};
    lk_cuda_label_embedding_gradient(stream_of(l), j, &grains, labels_of(l, j, m), l->sums[0]);
    return 0;
}

uint32_t lk_cuda_transducer_loss(lk_lane *l, const lk_op *op) {
    lk_cuda_transducer(stream_of(l), &op->joint, l->examples, l->at[LK_X2], l->at[LK_X],
                       l->at[LK_Y], l->train ? l->at[LK_DX] : NULL);
    return 0;
}

// --- a joint's tiles -----------------------------------------------------------------------------

// Scratch: h (tile, values), z (tile, symbols), dh (tile, values), nodes, then the products'.
typedef struct tiles {
    lk_cuda_stream s;  // whose scratch is the products'
    const lk_op *op;
    const lk_lane *l;
    lk_cuda_cells cells;
    float *h, *z, *dh, *nodes;
    uint64_t node_floats;
} tiles;

static uint64_t row_floats(const lk_joint *j, uint64_t columns) {
    return lk_round_up(j->tile * columns, 16);
}
static uint64_t node_floats(const lk_joint *j) {
    const uint64_t k = j->dense.k_count, n = j->dense.n_count;
    return lk_round_up(k * n, 16) + lk_round_up(n, 16);
}
static uint64_t nodes_held(const lk_op *op, uint32_t examples) {
    const lk_joint *j = &op->joint;
    return op->type->scope == LK_SCOPE_GRAINS ? lk_joint_nodes_held(j, examples / j->grain + 1) : 0;
}

static tiles tiles_of(const lk_lane *l, const lk_op *op) {
    const lk_joint *j = &op->joint;
    tiles t = {.s = *stream_of(l),
               .op = op,
               .l = l,
               .cells = {.labels = l->at[LK_LABELS],
                         .x = l->at[LK_X],
                         .x2 = l->at[LK_X2],
                         .dtype = op->dtype},
               .node_floats = node_floats(j)};
    t.h = t.s.scratch;
    t.z = t.h + row_floats(j, j->dense.k_count);
    t.dh = t.z + row_floats(j, j->dense.n_count);
    t.nodes = t.dh + row_floats(j, j->dense.k_count);
    t.s.scratch = t.nodes + nodes_held(op, l->examples) * t.node_floats;
    return t;
}

// h and z of the tile that begins with a cell, of those before `end`.
static void tile_scores(tiles *t, uint64_t first, uint64_t end) {
    const lk_joint *j = &t->op->joint;
    t->cells.first = (uint32_t)first;
    t->cells.count = (uint32_t)LK_MIN(end - first, (uint64_t)j->tile);
    lk_cuda_joint_states(&t->s, j, &t->cells, t->h);
    lk_cuda_dense_forward(&t->s, &j->dense, t->cells.count, t->h, t->l->param[0], t->l->param[1],
                          t->z);
}

static void tile_slopes(tiles *t, uint64_t first, uint64_t end, bool says) {
    tile_scores(t, first, end);
    lk_cuda_joint_slopes(&t->s, &t->op->joint, &t->cells, says, t->l->at[LK_AUX], t->l->at[LK_DY],
                         t->z);
}

uint32_t lk_cuda_joint(lk_lane *l, const lk_op *op) {
    const lk_joint *j = &op->joint;
    const uint64_t cells = (uint64_t)l->examples * lk_joint_cells(j);
    tiles t = tiles_of(l, op);
    for (uint64_t at = 0; at < cells; at += j->tile) {
        tile_scores(&t, at, cells);
        lk_cuda_joint_outputs(&t.s, j, &t.cells, t.z, l->at[LK_AUX], l->at[LK_Y]);
    }
    stream_of(l)->error = t.s.error;
    return 0;
}

uint32_t lk_cuda_joint_input_gradient(lk_lane *l, const lk_op *op) {
    const lk_joint *j = &op->joint;
    const uint64_t cells = (uint64_t)l->examples * lk_joint_cells(j), k = j->dense.k_count;
    float *dx = l->at[LK_DX], *dx2 = l->at[LK_DX2];
    tiles t = tiles_of(l, op);
    if (dx) lk_cuda_fill(&t.s, l->examples * j->frames * k, 0, l->at[LK_DX]);
    if (dx2) lk_cuda_fill(&t.s, l->examples * (j->labels + 1) * k, 0, l->at[LK_DX2]);
    for (uint64_t at = 0; at < cells; at += j->tile) {
        tile_slopes(&t, at, cells, true);
        lk_cuda_dense_input_gradient(&t.s, &j->dense, t.cells.count, l->param[0], t.z, NULL, t.dh);
        lk_cuda_joint_add(&t.s, j, &t.cells, t.h, t.dh, dx, dx2);
    }
    stream_of(l)->error = t.s.error;
    return 0;
}

// --- gradients of a joint's parameters -----------------------------------------------------------

// Nodes in a binary counter: the leaves of a tree, from left to right.
typedef struct held {
    float *at;
    lk_counter counter;
} held;

static float *top_of(const tiles *t, const held *n) {
    return n->at + n->counter.count * t->node_floats;
}

static void join(tiles *t, const held *n, uint32_t right) {
    float *a = n->at + (right - 1) * t->node_floats;
    lk_cuda_add(&t->s, t->node_floats, a, a + t->node_floats, a);
}

// What lies at top_of is leaf `leaf`.
static void push(tiles *t, held *n, uint32_t leaf) {
    uint32_t top = n->counter.count;
    for (uint32_t merges = lk_counter_push(&n->counter, (lk_node){0, leaf}); merges > 0; merges--)
        join(t, n, top--);
}

static void finish(tiles *t, const held *n) {
    for (uint32_t i = n->counter.count; i > 1; i--) join(t, n, i - 1);
}

// The node of cells [first, end), or of the tile of them that begins at `first`; `grain`: the cells
// of a grain.
static void tile_node(tiles *t, uint64_t first, uint64_t end, uint64_t grain, float *node) {
    const lk_joint *j = &t->op->joint;
    const uint64_t kernel = (uint64_t)j->dense.k_count * j->dense.n_count;
    tile_slopes(t, first, end, false);
    const lk_cuda_grains rows = {
        .x = t->h, .dy = t->z, .grain = (uint32_t)grain, .examples = t->cells.count};
    lk_cuda_dense_weight_gradient(&t->s, &j->dense, &rows, node);
    lk_cuda_column_sums(&t->s, j->dense.n_count, &rows, node + lk_round_up(kernel, 16));
}

// The node of a grain of more cells than a tile, whose slices are whole but for its last.
static void grain_node(tiles *t, uint64_t begin, uint64_t end, float *node) {
    const uint32_t tile = t->op->joint.tile;
    held slices = {.at = node};
    for (uint64_t at = begin; at < end; at += tile) {
        tile_node(t, at, end, tile, top_of(t, &slices));
        push(t, &slices, (uint32_t)((at - begin) / tile));
    }
    finish(t, &slices);
}

// Leaves are whole nodes of grains, as many of them as a tile has room for, or single grains.
uint32_t lk_cuda_joint_weight_gradient(lk_lane *l, const lk_op *op) {
    const lk_joint *j = &op->joint;
    const uint64_t cells = lk_joint_cells(j), grain = l->grain * cells;
    const uint64_t kernel = (uint64_t)j->dense.k_count * j->dense.n_count;
    const uint32_t m = first_of(l, cells * LK_JOINT_OUT);
    tiles t = tiles_of(l, op);
    const uint64_t begin = m * cells, end = begin + l->examples * cells;
    held grains = {.at = t.nodes};
    uint64_t some = grain;
    while (2 * some <= j->tile) some *= 2;
    for (uint64_t at = begin; at < end; at += some) {
        const uint64_t to = LK_MIN(at + some, end);
        if (some <= j->tile) {
            tile_node(&t, at, to, grain, top_of(&t, &grains));
        } else {
            grain_node(&t, at, to, top_of(&t, &grains));
        }
        push(&t, &grains, (uint32_t)((at - begin) / some));
    }
    finish(&t, &grains);
    lk_cuda_move(&t.s, kernel, grains.at, l->sums[0]);
    if (l->sums[1]) {
        lk_cuda_move(&t.s, j->dense.n_count, grains.at + lk_round_up(kernel, 16), l->sums[1]);
    }
    stream_of(l)->error = t.s.error;
    return 0;
}

// --- decoding ------------------------------------------------------------------------------------

uint32_t lk_cuda_decode_labels(lk_lane *l, const lk_op *op) {
    const lk_cuda_cells all = {.labels = l->at[LK_LABELS],
                               .x = l->at[LK_X],
                               .x2 = l->at[LK_X2],
                               .dtype = op->dtype};
    lk_cuda_decode(stream_of(l), &op->joint, l->examples, &all, l->param[0], l->param[1],
                   l->at[LK_Y], l->at[LK_AUX]);
    return 0;
}

void lk_cuda_decode_begin(lk_lane *l, const lk_op *op) {
    lk_cuda_decode_start(stream_of(l), &op->joint, l->examples, l->at[LK_LABELS], l->at[LK_Y],
                         l->at[LK_AUX]);
}

void lk_cuda_decode_end(lk_lane *l, const lk_op *op) {
    lk_cuda_decode_count(stream_of(l), &op->joint, l->examples, l->at[LK_LABELS], l->at[LK_Y]);
}

// --- scratch -------------------------------------------------------------------------------------

uint64_t lk_cuda_transducer_scratch_floats(const lk_op *op, uint32_t examples) {
    const lk_joint *j = &op->joint;
    const uint64_t k = j->dense.k_count, n = j->dense.n_count;
    const uint64_t grain = (uint64_t)j->grain * lk_joint_cells(j);
    if (op->type == &lk_op_transducer) return 2ull * examples * lk_joint_cells(j);
    if (op->type == &lk_op_label_embedding_gradient) return (uint64_t)examples * (j->labels + 1);
    if (op->type == &lk_op_decode) return examples * LK_MAX(k + n, (uint64_t)1 + j->labels);
    return 2 * row_floats(j, k) + row_floats(j, n) + nodes_held(op, examples) * node_floats(j) +
           lk_cuda_dense_scratch_floats(&j->dense, (uint32_t)LK_MIN(grain, (uint64_t)j->tile),
                                        j->tile);
}
