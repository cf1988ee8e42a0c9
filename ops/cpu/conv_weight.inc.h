// conv_weight.inc.h - the weight and bias gradients of convolutions. Included by conv.inc.h.
//
// A gradient is computed in parts: as many sums as fit, with the nodes of their tree, into scratch.
// For each part the grains are walked once, example by example and slice by slice; the sums of a
// slice pass through registers a tile at a time, and whole parts are joined on the stack of nodes.
// Three ways to add up one slice, by the lanes of a vector:
//
//   whole gradients   lanes are output channels, a few taps at once; pixels are broadcast. Where
//                     there are many input channels, cells that see padding are left out, and the
//                     example is read where it lies
//   pooled, wide;     lanes are taps: pixels that a cell saw are consecutive in memory, and its
//   whole, thin       gradient is broadcast. Pooled, the three losers of a tile cost nothing;
//                     whole, for few output channels, which would not fill the lanes
//   pooled, narrow    lanes are output channels; each picks its pixel from the four that the cells
//                     of the tile saw, by the winner (two short rows of the image in a register);
//                     for images of few channels, whose kernel rows would not fill the lanes

enum {
    ROWS_MAX = V_WIDE ? 12 : 6,            // taps of a tile of the first way
    ROWS_APART = V_WIDE ? 8 : 6,           // if each needs its own address
    BLOCK_FLOATS = 6144,                   // of image and gradient that are read again and again
    BLOCK_TILES_MIN = 16,
    BLOCK_CELLS_MAX = BLOCK_FLOATS / (1 + V_LANES),
    SEEN_MAX = 8192,                       // cells, and ..
    SEEN_LISTS = 128,                      // .. lists of them, that are kept for all examples
    PACKED_TAPS_MIN = 48,                  // of a part that passes over a block often enough
    APART_CHANNELS_MIN = 16,               // of an input of which each place is a run of its own
    ROWS_ALL = INT32_MAX - 1,              // of rows_see()
    ROWS_GRADIENTS = INT32_MAX,
    INK_ROWS = 64,                         // of an image whose blank parts are looked for
    LANE_TILE = 12,                        // vectors of taps of a tile of the second way
    PICK_HALF = V_HALF,                    // pixels of each of the two rows of the third way
    PICK_ROWS = 3,                         // kernel rows of a tile of it
    PICK_TAPS = LK_MAX(V_HALF - 1, 3),     // taps in each, at most
};

// Floats from a tap to what a cell sees of it; from rows_dy() to the cell's gradients. In a list of
// ROWS_GRADIENTS `pixel` is where these lie in the example's gradient.
typedef struct rows_seen {
    uint32_t pixel, dy;
} rows_seen;

// The cells of a block of tiles, in the order of their sums.
typedef struct rows_block {
    uint32_t t0, t1, count;
    struct {
        uint32_t y, x;        // the first pixel of its window, in the padded image
        uint32_t from, dy;    // floats to its gradients: from the example's first, from rows_dy()
    } cell[BLOCK_CELLS_MAX];
    // The list of each call of rows_see() for one example: in all examples they are the same. What
    // does not fit is found anew, behind these.
    uint32_t call, calls;
    struct {
        uint32_t at, seen;
    } list[SEEN_LISTS];
    rows_seen see[SEEN_MAX + BLOCK_CELLS_MAX];
    uint32_t at, seen;   // of the call under way
    _Alignas(64) float packed[BLOCK_FLOATS];
} rows_block;

// One part of a gradient, and where its terms come from.
typedef struct part {
    const lk_conv2d *c;
    bool pooled;
    float *room;                // for an image
    const float *image;         // of the example under way
    const float *dy;            // of the example under way
    const uint8_t *argmax;
    const lk_half *half;        // not NULL: what has 16 bits
    float *wide;                // .. the example's dy, widened
    uint32_t begin, end;        // taps, or vectors of taps
    uint32_t co, channels;      // output channels
    uint32_t vectors;           // of output channels
    uint32_t run_vectors;       // second way: vectors that hold one kernel row
    float *sums;
    uint64_t floats;            // of the sums
    node_stack stack;
    // Adds the terms of tiles t0 <= t < t1 of the example.
    void (*add)(const struct part *p, uint32_t t0, uint32_t t1);
    rows_block *block;          // first way
    bool needs_image, needs_ink;
    bool unpadded;              // the image is the example alone
    uint64_t ink[INK_ROWS];     // inked_columns() of each row of the image
} part;

static uint64_t tiles_w(const lk_conv2d *c) { return (c->out_w + 1) / 2; }

// The example's slices end here: its sums become a leaf.
static void part_cut(part *p, uint64_t *slices) {
    copy_floats(p->floats, p->sums, stack_top(&p->stack));
    clear_floats(p->floats, p->sums);
    stack_leaf(&p->stack, (*slices)++);
}

// Tiles that are summed for all of a part before the next ones, so that they stay in the nearest
// cache.
static uint32_t block_tiles(const lk_conv2d *c, bool pooled) {
    uint64_t image = 4 * (uint64_t)c->stride_h * c->stride_w * c->in_c;
    uint64_t channels = LK_MIN(lk_round_up(c->out_c, V_LANES), (uint64_t)PANEL);
    uint64_t dy = pooled ? c->out_c : 4 * channels;
    return (uint32_t)LK_MAX(BLOCK_FLOATS / (image + dy), (uint64_t)BLOCK_TILES_MIN);
}

static void part_ink(part *p) {
    uint64_t rows = lk_conv_image_h(p->c), columns = lk_conv_image_w(p->c) * p->c->in_c;
    for (uint64_t r = 0; r < LK_MIN(rows, (uint64_t)INK_ROWS); r++) {
        p->ink[r] = inked_columns(p->image + r * columns, columns, 1, columns);
    }
}

// The columns of `count` rows that are not blank; all of them where nobody looked.
static uint64_t ink_of_rows(const part *p, uint64_t row, uint64_t count) {
    uint64_t ink = 0;
    if (row + count > INK_ROWS) return ~(uint64_t)0;
    while (count-- > 0) ink |= p->ink[row++];
    return ink;
}

static void part_image(part *p, const lk_half *half, const float *x, uint64_t at) {
    p->image = p->unpadded && !half ? x + at : p->room;
    if (!p->unpadded) image_load_at(p->c, half, x, at, p->room);
    else if (half) copy_values(half, lk_conv2d_in_floats(p->c), x, at, p->room);
}

static void part_grain(part *p, const lk_grain_view *g, uint32_t leaf) {
    const lk_conv2d *c = p->c;
    uint32_t base = p->stack.count, tiles = lk_conv2d_terms(c) / 4;
    uint32_t slice_tiles = LK_SLICE_TERMS / 4, examples = slice_tiles / tiles;
    uint32_t block = block_tiles(c, p->pooled);
    uint64_t slices = 0, dy = p->pooled ? lk_conv2d_pooled_floats(c) : lk_conv2d_out_floats(c);
    for (uint32_t m = 0; m < g->examples; m++) {
        const lk_half *x_half = p->half && p->half->x ? p->half : NULL;
        p->dy = g->dy + m * dy;
        if (p->half && p->half->dy) {
            p->dy = p->wide;
            copy_values(p->half, dy, g->dy, m * dy, p->wide);
        }
        p->argmax = p->pooled ? g->argmax + m * dy : NULL;
        if (p->needs_image) part_image(p, x_half, g->x, m * lk_conv2d_in_floats(c));
        if (p->needs_ink) part_ink(p);
        if (m > 0 && (examples == 0 || m % examples == 0)) part_cut(p, &slices);
        for (uint32_t t = 0; t < tiles; t += slice_tiles) {
            if (t > 0) part_cut(p, &slices);
            uint32_t count = LK_MIN(slice_tiles, tiles - t), blocks = (count + block - 1) / block;
            for (uint32_t b = 0; b < blocks; b++) {
                p->add(p, t + count * b / blocks, t + count * (b + 1) / blocks);
            }
        }
    }
    part_cut(p, &slices);
    stack_fold(&p->stack, base);
    p->stack.count--;  // the grain's sum is where the next leaf is expected
    stack_leaf(&p->stack, leaf);
}

// The node of the grains, in the order of the sums; it lies in scratch.
static const float *part_node(part *p, uint32_t grain_count, const lk_grain_view *grains) {
    p->stack.floats = p->floats;
    p->stack.nodes = p->sums + p->floats;
    p->stack.count = 0;
    clear_floats(p->floats, p->sums);
    for (uint32_t g = 0; g < grain_count; g++) part_grain(p, &grains[g], g);
    stack_fold(&p->stack, 0);
    // Terms that are zero were left out, so a zero may have the other sign here than in the
    // reference: neither matters to a sum that ends in + 0.0f, and this makes them one.
    for (uint64_t i = 0; i < p->floats; i += V_LANES) {
        v_store(p->stack.nodes + i, v_add(v_load(p->stack.nodes + i), v_zero()));
    }
    return p->stack.nodes;
}

// Sums that a part may have, so that they and their nodes fit.
static uint64_t part_floats_max(const lk_conv2d *c, uint32_t grain_count,
                                const lk_grain_view *grains) {
    uint32_t terms = lk_conv2d_terms(c), per_slice = LK_SLICE_TERMS / terms;
    uint64_t most = 0;
    for (uint32_t g = 0; g < grain_count; g++) most = LK_MAX(most, (uint64_t)grains[g].examples);
    uint64_t slices = per_slice ? (most + per_slice - 1) / per_slice : most * lk_slices(terms);
    // A node for each 1 of the numbers of finished grains, and of slices of the one under way; the
    // sums, and the leaf that they become.
    uint64_t levels = lk_tree_levels(slices - 1) + lk_tree_levels(grain_count - 1);
    return lk_conv_sum_floats(c) / (levels + 2);
}

// --- biases --------------------------------------------------------------------------------------

V_INLINE void bias_add(const part *p, uint32_t t0, uint32_t t1, const bool pooled) {
    const lk_conv2d *c = p->c;
    uint64_t wide = tiles_w(c);
    for (uint32_t v = 0; v < p->channels; v += V_LANES) {
        uint32_t count = LK_MIN(p->channels - v, (uint32_t)V_LANES);
        const float *dy = p->dy + p->co + v;
        vf sum = v_load(p->sums + v);
        for (uint32_t t = t0; t < t1; t++) {
            uint64_t ty = t / wide, tx = t % wide;
            if (pooled) {
                if (ty >= c->out_h / 2 || tx >= c->out_w / 2) continue;
                sum = v_add(sum, v_load_first(dy + (ty * (c->out_w / 2) + tx) * c->out_c, count));
                continue;
            }
            for (uint64_t oy = 2 * ty; oy < LK_MIN(2 * ty + 2, (uint64_t)c->out_h); oy++) {
                for (uint64_t ox = 2 * tx; ox < LK_MIN(2 * tx + 2, (uint64_t)c->out_w); ox++) {
                    sum = v_add(sum, v_load_first(dy + (oy * c->out_w + ox) * c->out_c, count));
                }
            }
        }
        v_store(p->sums + v, sum);
    }
}

static void bias_add_whole(const part *p, uint32_t t0, uint32_t t1) { bias_add(p, t0, t1, false); }
static void bias_add_pooled(const part *p, uint32_t t0, uint32_t t1) { bias_add(p, t0, t1, true); }

static void bias_gradient(part *p, uint64_t most, uint32_t grain_count, const lk_grain_view *grains,
                          float *db) {
    uint32_t step = (uint32_t)LK_MIN(most / V_LANES * V_LANES, (uint64_t)LK_CONV_SUMS);
    p->add = p->pooled ? bias_add_pooled : bias_add_whole;
    p->needs_image = false;
    for (p->co = 0; p->co < p->c->out_c; p->co += step) {
        p->channels = LK_MIN(p->c->out_c - p->co, step);
        p->floats = lk_round_up(p->channels, V_LANES);
        copy_floats(p->channels, part_node(p, grain_count, grains), db + p->co);
    }
}

// --- first way: whole gradients ------------------------------------------------------------------

// Where tap number `tap`, in the order of the weights, begins in the image.
static uint64_t tap_offset(const lk_conv2d *c, uint32_t tap) {
    uint64_t run = (uint64_t)c->kernel_w * c->in_c;
    return tap / run * lk_conv_image_w(c) * c->in_c + tap % run;
}

// Taken from everywhere in dy, the gradients of a panel would meet in few places of the first
// cache, among themselves and with the image: they are laid side by side, and zeros beside them
// where the last vector is not full.
static bool rows_packs(const part *p) {
    return p->end - p->begin >= PACKED_TAPS_MIN || p->channels % V_LANES != 0;
}
static const float *rows_dy(const part *p) {
    return rows_packs(p) ? p->block->packed : p->dy + p->co;
}

static void rows_find_cells(const part *p, uint32_t t0, uint32_t t1) {
    const lk_conv2d *c = p->c;
    const uint32_t wide = (uint32_t)tiles_w(c);
    const uint32_t packed = rows_packs(p) ? p->vectors * V_LANES : 0;
    rows_block *b = p->block;
    uint32_t n = 0, y = t0 / wide * 2, x = t0 % wide * 2;
    for (uint32_t t = t0; t < t1; t++) {
        // Of an odd last column or row, half the cells exist.
        const uint32_t right = LK_MIN(x + 2, c->out_w), below = LK_MIN(y + 2, c->out_h);
        for (uint32_t i = y; i < below; i++) {
            for (uint32_t j = x; j < right; j++, n++) {
                b->cell[n].y = i * c->stride_h;
                b->cell[n].x = j * c->stride_w;
                b->cell[n].from = (i * c->out_w + j) * c->out_c;
                b->cell[n].dy = packed ? n * packed : b->cell[n].from;
            }
        }
        x += 2;
        if (x >= c->out_w) x = 0, y += 2;
    }
    b->t0 = t0;
    b->t1 = t1;
    b->count = n;
}

// All cells see something in the padded image: returns how many they are.
static uint32_t rows_find_all(const part *p, rows_seen *see) {
    const rows_block *b = p->block;
    const uint32_t column = p->c->in_c, row = (uint32_t)lk_conv_image_w(p->c) * column;
    for (uint32_t n = 0; n < b->count; n++) {
        see[n].pixel = b->cell[n].y * row + b->cell[n].x * column;
        see[n].dy = b->cell[n].dy;
    }
    return b->count;
}

// The cells whose place (ky, kx) of the window is in the example, and not beside it: returns how
// many.
static uint32_t rows_find_seen(const part *p, uint32_t ky, uint32_t kx, rows_seen *see) {
    const lk_conv2d *c = p->c;
    const rows_block *b = p->block;
    uint32_t seen = 0;
    for (uint32_t n = 0; n < b->count; n++) {
        const uint32_t y = b->cell[n].y + ky - c->pad_top, x = b->cell[n].x + kx - c->pad_left;
        see[seen].pixel = (y * c->in_w + x) * c->in_c;
        see[seen].dy = b->cell[n].dy;
        seen += (y < c->in_h) & (x < c->in_w);
    }
    return seen;
}

// Where all gradients lie, in the place of pixels: returns how many they are.
static uint32_t rows_find_gradients(const part *p, rows_seen *see) {
    const rows_block *b = p->block;
    for (uint32_t n = 0; n < b->count; n++) {
        see[n].pixel = b->cell[n].from;
        see[n].dy = b->cell[n].dy;
    }
    return b->count;
}

static uint32_t rows_find(const part *p, uint32_t what, rows_seen *see) {
    if (what == ROWS_GRADIENTS) return rows_find_gradients(p, see);
    if (what == ROWS_ALL) return rows_find_all(p, see);
    return rows_find_seen(p, what / p->c->kernel_w, what % p->c->kernel_w, see);
}

// The next list of cells of tiles t0 .. t1. `what`: the place of the window that they see, or
// ROWS_ALL, or ROWS_GRADIENTS.
static void rows_see(const part *p, uint32_t t0, uint32_t t1, uint32_t what) {
    rows_block *b = p->block;
    const uint32_t call = b->call++;
    if (call < b->calls) {
        b->at = b->list[call].at;
        b->seen = b->list[call].seen;
        return;
    }
    if (b->t0 != t0 || b->t1 != t1) rows_find_cells(p, t0, t1);
    const uint32_t used = b->calls ? b->list[b->calls - 1].at + b->list[b->calls - 1].seen : 0;
    b->at = used;
    b->seen = rows_find(p, what, b->see + used);
    if (call != b->calls || call >= SEEN_LISTS || used + b->seen > SEEN_MAX) return;
    b->list[b->calls].at = used;
    b->list[b->calls++].seen = b->seen;
}

static void rows_pack(const part *p, uint32_t t0, uint32_t t1) {
    rows_block *b = p->block;
    rows_see(p, t0, t1, ROWS_GRADIENTS);
    const rows_seen *cell = b->see + b->at, *end = cell + b->seen;
    const float *from = p->dy + p->co, *next = from + (uint64_t)b->seen * p->c->out_c;
    for (; cell < end; cell++) {
        float *to = b->packed + cell->dy;
        __builtin_prefetch(next + cell->pixel);  // about the next block's
        for (uint32_t v = 0; v < p->vectors * V_LANES; v += V_LANES) {
            v_store(to + v, v_load_first(from + cell->pixel + v, p->channels - v));
        }
    }
}

// The terms of one cell for taps that begin at `tap`. With `joined`, they lie side by side in the
// image: one address serves them all.
V_INLINE void rows_cell(const int rows, const int vectors, const bool joined,
                        vf sum[ROWS_MAX][VECTORS], const float *const tap[ROWS_MAX],
                        const float *from, const rows_seen *cell) {
    const uint64_t pixel = cell->pixel;
    const float *side = tap[0] + pixel, *dy = from + cell->dy;
    vf d[VECTORS];
    V_UNROLL for (int v = 0; v < vectors; v++) {
        d[v] = v_load(dy + v * V_LANES);
        V_PIN(d[v]);
    }
    V_UNROLL for (int r = 0; r < rows; r++) {
        vf x = v_set1(joined ? side[r] : tap[r][pixel]);
        if (vectors > 1) V_PIN(x);
        V_UNROLL for (int v = 0; v < vectors; v++) V_ADD_PRODUCT(sum[r][v], x, d[v]);
    }
}

// `rows` taps from `first` on, all cells of the block. `side`: the first one's place in the image.
V_INLINE void rows_add(const part *p, uint32_t first, const float *side, const int rows,
                       const int vectors, const bool joined) {
    const rows_block *b = p->block;
    const rows_seen *cell = b->see + b->at, *end = cell + b->seen, *pairs = cell + b->seen / 2 * 2;
    const float *tap[ROWS_MAX] = {side}, *from = rows_dy(p);
    vf sum[ROWS_MAX][VECTORS];
    float *at = p->sums + (uint64_t)(first - p->begin) * (uint64_t)(vectors * V_LANES);
    V_UNROLL for (int r = 0; r < rows; r++) {
        if (!joined) tap[r] = p->image + tap_offset(p->c, first + (uint32_t)r);
        V_UNROLL for (int v = 0; v < vectors; v++) {
            sum[r][v] = v_load(at + (r * vectors + v) * V_LANES);
        }
    }
    for (; V_TERMS == 2 && cell < pairs; cell += 2) {
        rows_cell(rows, vectors, joined, sum, tap, from, cell);
        rows_cell(rows, vectors, joined, sum, tap, from, cell + 1);
    }
    if (V_TERMS == 2 && cell < end) rows_cell(rows, vectors, joined, sum, tap, from, cell);
    for (; V_TERMS == 1 && cell < end; cell++) {
        rows_cell(rows, vectors, joined, sum, tap, from, cell);
    }
    V_UNROLL for (int r = 0; r < rows; r++) {
        V_UNROLL for (int v = 0; v < vectors; v++) {
            v_store(at + (r * vectors + v) * V_LANES, sum[r][v]);
        }
    }
}

static void rows_add_block(const part *p, uint32_t first, const float *side, uint32_t rows,
                           bool joined) {
    switch (rows * 4 + joined * 2 + p->vectors - 1) {
#define ROWS_ADD(n, joined)                                                              \
    case (n) * 4 + (joined) * 2: rows_add(p, first, side, n, 1, joined); break;          \
    case (n) * 4 + (joined) * 2 + 1: rows_add(p, first, side, n, VECTORS, joined); break;
#define ROWS_ADD_BOTH(n) ROWS_ADD(n, 0) ROWS_ADD(n, 1)
        ROWS_ADD(1, 1)
        ROWS_ADD_BOTH(2)
        ROWS_ADD_BOTH(3)
        ROWS_ADD_BOTH(4)
        ROWS_ADD_BOTH(5)
        ROWS_ADD_BOTH(6)
#if V_WIDE
        ROWS_ADD_BOTH(7)
        ROWS_ADD_BOTH(8)
        ROWS_ADD(9, 1)
        ROWS_ADD(10, 1)
        ROWS_ADD(11, 1)
        ROWS_ADD(12, 1)
#endif
#undef ROWS_ADD_BOTH
#undef ROWS_ADD
    }
}

// Taps begin .. end, which lie side by side from `side` on, in blocks of nearly equal size: a short
// one has too few sums to hide the latency of fma.
static void rows_add_joined(const part *p, uint32_t begin, uint32_t end, const float *side) {
    const uint32_t rows = end - begin, blocks = (rows + ROWS_MAX - 1) / ROWS_MAX;
    const uint32_t some = rows / blocks, more = rows - some * blocks;
    for (uint32_t b = 0; b < blocks; b++) {
        const uint32_t count = some + (b < more);
        rows_add_block(p, begin, side, count, true);
        begin += count;
        side += count;
    }
}

// The same of kernel rows that are shorter than a block.
static void rows_add_apart(const part *p, uint32_t begin, uint32_t end, uint32_t run) {
    const uint32_t rows = end - begin, blocks = (rows + ROWS_APART - 1) / ROWS_APART;
    for (uint32_t b = 0; b < blocks; b++) {
        const uint32_t first = begin + rows * b / blocks, last = begin + rows * (b + 1) / blocks;
        rows_add_block(p, first, p->image + tap_offset(p->c, first), last - first,
                       first / run == (last - 1) / run);
    }
}

// What the next tiles, about as many, see of the input; a step a place. The next example follows.
static next_example rows_next(const part *p, uint32_t t0, uint32_t t1) {
    const lk_conv2d *c = p->c;
    const uint64_t in = lk_conv2d_in_floats(c), tiles = lk_conv2d_terms(c) / 4;
    const uint64_t floats = (t1 - t0) * in / tiles, places = (p->end - p->begin) / c->in_c + 1;
    const float *at = p->image + t1 * in / tiles;
    return (next_example){at, at + floats, floats / places + 1};
}

// Long kernel rows are split each by itself, so that the taps of a block lie side by side; and so
// are the channels of a place where not all cells see it.
static void rows_add_part(const part *p, uint32_t t0, uint32_t t1) {
    const lk_conv2d *c = p->c;
    const uint32_t run = p->unpadded ? c->in_c : c->kernel_w * c->in_c;
    if (t0 == 0) p->block->call = 0;  // a new example
    if (rows_packs(p)) rows_pack(p, t0, t1);
    if (!p->unpadded) rows_see(p, t0, t1, ROWS_ALL);
    if (run < ROWS_APART) {
        rows_add_apart(p, p->begin, p->end, run);
        return;
    }
    next_example next = rows_next(p, t0, t1);
    for (uint32_t at = p->begin; at < p->end;) {
        const uint32_t number = at / run, end = LK_MIN((number + 1) * run, p->end);
        if (p->unpadded) {
            rows_see(p, t0, t1, number);
            next_fetch(&next);
        }
        const uint64_t side = p->unpadded ? at - number * run : tap_offset(c, at);
        rows_add_joined(p, at, end, p->image + side);
        at = end;
    }
}

static void rows_gradient(part *p, uint64_t most, uint32_t grain_count, const lk_grain_view *grains,
                          float *dw) {
    const lk_conv2d *c = p->c;
    uint32_t taps = (uint32_t)lk_conv_terms_forward(c);
    rows_block block;
    p->block = &block;
    p->needs_image = true;
    // Where it has to be widened, there must be room for all of the example.
    const bool fits = lk_conv2d_in_floats(c) <= lk_conv_image_floats(c);
    p->unpadded = c->in_c >= APART_CHANNELS_MIN && (fits || !p->half || !p->half->x);
    p->add = rows_add_part;
    for (p->co = 0; p->co < c->out_c; p->co += PANEL) {
        p->channels = LK_MIN(c->out_c - p->co, (uint32_t)PANEL);
        p->vectors = p->channels <= V_LANES ? 1 : VECTORS;
        uint32_t width = p->vectors * V_LANES;
        uint32_t step = (uint32_t)LK_MIN(most / width, (uint64_t)taps);
        for (p->begin = 0; p->begin < taps; p->begin = p->end) {
            p->end = LK_MIN(p->begin + step, taps);
            p->floats = (uint64_t)(p->end - p->begin) * width;
            block.t1 = block.calls = 0;  // of no tiles yet
            const float *node = part_node(p, grain_count, grains);
            for (uint32_t tap = p->begin; tap < p->end; tap++, node += width) {
                copy_floats(p->channels, node, dw + (uint64_t)tap * c->out_c + p->co);
            }
        }
    }
}

static void conv2d_bias_gradient(const lk_conv2d *c, const lk_half *half, uint32_t grain_count,
                                 const lk_grain_view *grains, float *db, float *scratch) {
    part p = {.c = c, .half = half, .room = scratch, .sums = scratch + lk_conv_image_floats(c)};
    p.wide = p.sums + lk_conv_sum_floats(c);
    bias_gradient(&p, part_floats_max(c, grain_count, grains), grain_count, grains, db);
}

// --- second way: lanes are taps ------------------------------------------------------------------

// Vector number v holds taps (v % run_vectors) * V_LANES .. of kernel row v / run_vectors. Lanes
// past the end of the row see whatever comes next in the image, and are thrown away.
static uint64_t lanes_offset(const part *p, uint32_t v) {
    return v / p->run_vectors * lk_conv_image_w(p->c) * p->c->in_c + v % p->run_vectors * V_LANES;
}

// The terms of channel `co` of tiles t0 <= t < t1, for vectors of taps that begin at `tap` of the
// image.
V_INLINE void lanes_pooled(const part *p, const float *image, uint32_t t0, uint32_t t1, uint32_t co,
                           const uint64_t tap[LANE_TILE], vf sum[LANE_TILE], const int vectors) {
    const lk_conv2d *c = p->c;
    uint64_t row = lk_conv_image_w(c) * c->in_c * c->stride_h,
             column = (uint64_t)c->in_c * c->stride_w;
    uint64_t wide = tiles_w(c), pooled_w = c->out_w / 2;
    const uint64_t cell[4] = {0, column, row, row + column};
    uint64_t ty = t0 / wide, tx = t0 % wide;
    for (uint32_t t = t0; t < t1;) {
        // The tiles of one tile row; those of an odd last column have no terms.
        uint64_t n = LK_MIN(wide - tx, (uint64_t)(t1 - t)), end = LK_MIN(tx + n, pooled_w);
        if (ty >= c->out_h / 2) break;
        const float *dy = p->dy + ty * pooled_w * c->out_c + co;
        const uint8_t *argmax = p->argmax + ty * pooled_w * c->out_c + co;
        const float *pixels = image + 2 * ty * row;
        for (; tx < end; tx++) {
            const float *pixel = pixels + 2 * tx * column + cell[argmax[tx * c->out_c]];
            vf d = v_set1(dy[tx * c->out_c]);
            V_UNROLL for (int v = 0; v < vectors; v++) {
                sum[v] = v_fma(v_load(pixel + tap[v]), d, sum[v]);
            }
        }
        t += (uint32_t)n;
        tx = 0;
        ty++;
    }
}

// The same of whole gradients, the four cells of a tile in their order.
V_INLINE void lanes_whole(const part *p, const float *image, uint32_t t0, uint32_t t1, uint32_t co,
                          const uint64_t tap[LANE_TILE], vf sum[LANE_TILE], const int vectors) {
    const lk_conv2d *c = p->c;
    const uint64_t row = lk_conv_image_w(c) * c->in_c * c->stride_h;
    const uint64_t column = (uint64_t)c->in_c * c->stride_w, wide = tiles_w(c);
    const uint64_t dy_row = (uint64_t)c->out_w * c->out_c;
    for (uint32_t t = t0; t < t1; t++) {
        const uint64_t y0 = t / wide * 2, x0 = t % wide * 2;
        for (uint64_t y = y0; y < LK_MIN(y0 + 2, (uint64_t)c->out_h); y++) {
            for (uint64_t x = x0; x < LK_MIN(x0 + 2, (uint64_t)c->out_w); x++) {
                const float *pixel = image + y * row + x * column;
                const vf d = v_set1(p->dy[y * dy_row + x * c->out_c + co]);
                V_UNROLL for (int v = 0; v < vectors; v++) {
                    sum[v] = v_fma(v_load(pixel + tap[v]), d, sum[v]);
                }
            }
        }
    }
}

// `vectors` of taps from `first` on. With `joined`, they lie side by side: one address serves all.
V_INLINE void lanes_add(const part *p, uint32_t t0, uint32_t t1, uint32_t first,
                        const int vectors, const bool joined) {
    const uint64_t all = p->end - p->begin;
    const float *image = p->image + (joined ? lanes_offset(p, first) : 0);
    uint64_t tap[LANE_TILE];
    V_UNROLL for (int v = 0; v < vectors; v++) {
        tap[v] = joined ? (uint64_t)(v * V_LANES) : lanes_offset(p, first + (uint32_t)v);
    }
    for (uint32_t co = 0; co < p->channels; co++) {
        float *at = p->sums + (co * all + first - p->begin) * V_LANES;
        vf sum[LANE_TILE];
        V_UNROLL for (int v = 0; v < vectors; v++) sum[v] = v_load(at + v * V_LANES);
        if (p->pooled) lanes_pooled(p, image, t0, t1, p->co + co, tap, sum, vectors);
        else lanes_whole(p, image, t0, t1, p->co + co, tap, sum, vectors);
        V_UNROLL for (int v = 0; v < vectors; v++) v_store(at + v * V_LANES, sum[v]);
    }
}

static void lanes_add_block(const part *p, uint32_t t0, uint32_t t1, uint32_t first,
                            uint32_t last) {
    const bool joined = first / p->run_vectors == (last - 1) / p->run_vectors;
    const uint32_t vectors = last - first;
    switch (vectors * 2 + (joined && vectors >= LANE_TILE / 2)) {
#define LANES_ADD(n) case (n) * 2: lanes_add(p, t0, t1, first, n, false); break;
#define LANES_ADD_BOTH(n) \
    LANES_ADD(n)          \
    case (n) * 2 + 1: lanes_add(p, t0, t1, first, n, true); break;
        LANES_ADD(1)
        LANES_ADD(2)
        LANES_ADD(3)
        LANES_ADD(4)
        LANES_ADD(5)
        LANES_ADD_BOTH(6)
        LANES_ADD_BOTH(7)
        LANES_ADD_BOTH(8)
        LANES_ADD_BOTH(9)
        LANES_ADD_BOTH(10)
        LANES_ADD_BOTH(11)
        LANES_ADD_BOTH(12)
#undef LANES_ADD_BOTH
#undef LANES_ADD
    }
}

// Long kernel rows are split each by itself.
static void lanes_add_part(const part *p, uint32_t t0, uint32_t t1) {
    const uint32_t run = p->run_vectors;
    for (uint32_t at = p->begin; at < p->end;) {
        const bool is_long = run > LANE_TILE / 2;
        const uint32_t end = is_long ? LK_MIN((at / run + 1) * run, p->end) : p->end;
        const uint32_t all = end - at, blocks = (all + LANE_TILE - 1) / LANE_TILE;
        for (uint32_t b = 0; b < blocks; b++) {
            lanes_add_block(p, t0, t1, at + all * b / blocks, at + all * (b + 1) / blocks);
        }
        at = end;
    }
}

// Writes the part's node, whose rows are output channels, to the columns of dw.
static void lanes_store(const part *p, const float *node, float *dw) {
    const lk_conv2d *c = p->c;
    uint32_t run = c->kernel_w * c->in_c;
    for (uint32_t co = 0; co < p->channels; co++) {
        for (uint32_t v = p->begin; v < p->end; v++, node += V_LANES) {
            uint32_t lane0 = v % p->run_vectors * V_LANES;
            uint64_t tap = (uint64_t)(v / p->run_vectors) * run + lane0;
            for (uint32_t l = 0; l < LK_MIN(run - lane0, (uint32_t)V_LANES); l++) {
                dw[(tap + l) * c->out_c + p->co + co] = node[l];
            }
        }
    }
}

static void lanes_gradient(part *p, uint64_t most, uint32_t grain_count,
                           const lk_grain_view *grains, float *dw) {
    const lk_conv2d *c = p->c;
    p->run_vectors = (c->kernel_w * c->in_c + V_LANES - 1) / V_LANES;
    uint32_t vectors = c->kernel_h * p->run_vectors;
    uint32_t wide = (uint32_t)LK_MIN(most / V_LANES, (uint64_t)vectors);
    if (wide > LANE_TILE && wide < vectors) wide = wide / LANE_TILE * LANE_TILE;
    uint32_t step = LK_MIN(c->out_c, (uint32_t)(most / (wide * V_LANES)));
    p->needs_image = true;
    p->add = lanes_add_part;
    for (p->co = 0; p->co < c->out_c; p->co += step) {
        p->channels = LK_MIN(c->out_c - p->co, step);
        for (p->begin = 0; p->begin < vectors; p->begin = p->end) {
            p->end = LK_MIN(p->begin + wide, vectors);
            p->floats = (uint64_t)(p->end - p->begin) * p->channels * V_LANES;
            lanes_store(p, part_node(p, grain_count, grains), dw);
        }
    }
}

// Which of the first two ways takes fewer vectors of sums; the second one loads one for each.
static bool lanes_pay(const lk_conv2d *c) {
    const uint64_t run = (uint64_t)c->kernel_w * c->in_c;
    const uint64_t lanes = c->out_c * c->kernel_h * ((run + V_LANES - 1) / V_LANES);
    const uint64_t rows = c->kernel_h * run * ((c->out_c + V_LANES - 1) / V_LANES);
    return 3 * lanes < 2 * rows;
}

static void conv2d_weight_gradient(const lk_conv2d *c, const lk_half *half, uint32_t grain_count,
                                   const lk_grain_view *grains, float *dw, float *db,
                                   float *scratch) {
    part p = {.c = c, .half = half, .room = scratch, .sums = scratch + lk_conv_image_floats(c)};
    p.wide = p.sums + lk_conv_sum_floats(c);
    uint64_t most = part_floats_max(c, grain_count, grains);
    clear_floats(lk_conv_image_floats(c), p.room);
    if (lanes_pay(c)) lanes_gradient(&p, most, grain_count, grains, dw);
    else rows_gradient(&p, most, grain_count, grains, dw);
    if (db) bias_gradient(&p, most, grain_count, grains, db);
}

// --- third way: pooled gradients, lanes are output channels --------------------------------------

// A block of the kernel: `rows` kernel rows, in each the taps first .. first + taps (a tap being a
// pixel and a channel of it, as in memory). Its sums: rows * taps vectors, then one of the biases.
typedef struct pick_block {
    uint32_t row, rows, first, taps;
} pick_block;

// Neighbouring cells see pixels this far apart; a half must hold both.
static uint32_t pick_step(const lk_conv2d *c) { return c->in_c * c->stride_w; }
static uint32_t pick_taps(const lk_conv2d *c) {
    return LK_MIN(PICK_HALF - pick_step(c), (uint32_t)PICK_TAPS);
}
static bool pick_fits(const lk_conv2d *c) { return 2 * pick_step(c) <= PICK_HALF; }

static uint32_t pick_columns(const lk_conv2d *c) {
    return (c->kernel_w * c->in_c + pick_taps(c) - 1) / pick_taps(c);
}
static uint32_t pick_blocks(const lk_conv2d *c) {
    return (c->kernel_h + PICK_ROWS - 1) / PICK_ROWS * pick_columns(c);
}
static pick_block pick_block_of(const lk_conv2d *c, uint32_t number) {
    uint32_t columns = pick_columns(c), run = c->kernel_w * c->in_c;
    uint32_t column = number % columns, row = number / columns * PICK_ROWS;
    uint32_t first = run * column / columns, last = run * (column + 1) / columns;
    pick_block b = {row, LK_MIN(c->kernel_h - row, (uint32_t)PICK_ROWS), first, last - first};
    return b;
}
static uint64_t pick_floats(const pick_block *b) { return (b->rows * b->taps + 1) * V_LANES; }

V_INLINE void pick_add(const part *p, uint32_t t0, uint32_t t1, const pick_block *b, uint32_t co,
                       float *at, const int rows, const int taps) {
    const lk_conv2d *c = p->c;
    uint64_t image_w = lk_conv_image_w(c) * c->in_c, below = image_w * c->stride_h;
    uint64_t wide = tiles_w(c), pooled_w = c->out_w / 2;
    uint32_t count = LK_MIN(p->channels - co, (uint32_t)V_LANES);
    int32_t step = (int32_t)pick_step(c);
    const int32_t cells[V_LANES] = {I_PICK(0), I_PICK(step), I_PICK(PICK_HALF),
                                    I_PICK(PICK_HALF + step)};
    vi cell = i_load(cells), one = i_set1(I_STEP);
    vf sum[PICK_ROWS * PICK_TAPS], bias = v_load(at + rows * taps * V_LANES);
    V_UNROLL for (int i = 0; i < rows * taps; i++) sum[i] = v_load(at + i * V_LANES);
    uint64_t ty = t0 / wide, tx = t0 % wide;
    for (uint32_t t = t0; t < t1 && ty < c->out_h / 2;) {
        // The tiles of one tile row; those of an odd last column have no terms.
        uint64_t n = LK_MIN(wide - tx, (uint64_t)(t1 - t)), end = LK_MIN(tx + n, pooled_w);
        uint64_t dy = (ty * pooled_w + tx) * c->out_c + p->co + co;
        const float *pixel =
            p->image + 2 * ty * below + b->row * image_w + b->first + 2 * tx * (uint64_t)step;
        uint64_t ink = ink_of_rows(p, 2 * ty * c->stride_h + b->row, c->stride_h + rows);
        uint64_t seen_from = b->first + 2 * tx * (uint64_t)step;
        for (; tx < end; tx++, dy += c->out_c, pixel += 2 * step, seen_from += 2 * step) {
            vf d = v_load_first(p->dy + dy, count);
            bias = v_add(bias, d);
            if (!is_inked(ink, seen_from, taps + step)) continue;
            vi index[PICK_TAPS];
            index[0] = i_permute(cell, count == V_LANES ? i_load_u8(p->argmax + dy)
                                                        : i_load_u8_first(p->argmax + dy, count));
            V_UNROLL for (int i = 1; i < taps; i++) index[i] = i_add(index[i - 1], one);
            V_UNROLL for (int r = 0; r < rows; r++) {
                const float *row = pixel + (uint64_t)r * image_w;
                vh seen = v_halves(row, row + below);
                V_UNROLL for (int i = 0; i < taps; i++) {
                    sum[r * taps + i] = v_fma(v_pick(seen, index[i]), d, sum[r * taps + i]);
                }
            }
        }
        t += (uint32_t)n;
        tx = 0;
        ty++;
    }
    V_UNROLL for (int i = 0; i < rows * taps; i++) v_store(at + i * V_LANES, sum[i]);
    v_store(at + rows * taps * V_LANES, bias);
}

#if V_HALF > 4
#define EACH_PICK_TAPS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#else
#define EACH_PICK_TAPS(X) X(1) X(2) X(3)
#endif
#define EACH_PICK_ROWS(X, taps) X(1, taps) X(2, taps) X(3, taps)

#if V_APART
#define PICK_FUNCTION(rows, taps)                                                           \
    V_NOINLINE void pick_add_##rows##x##taps(const part *p, uint32_t t0, uint32_t t1,       \
                                             const pick_block *b, uint32_t co, float *at) { \
        pick_add(p, t0, t1, b, co, at, rows, taps);                                         \
    }
#define PICK_FUNCTIONS(taps) EACH_PICK_ROWS(PICK_FUNCTION, taps)
EACH_PICK_TAPS(PICK_FUNCTIONS)
#define PICK_CALL(rows, taps) pick_add_##rows##x##taps(p, t0, t1, &b, co, at)
#else
#define PICK_CALL(rows, taps) pick_add(p, t0, t1, &b, co, at, rows, taps)
#endif

#ifdef V_NEON
#include "ops/cpu/conv_weight_neon.inc.h"
#endif

static void pick_add_part(const part *p, uint32_t t0, uint32_t t1) {
    float *at = p->sums;
    uint32_t co = 0;
#ifdef V_NEON
    for (; patch_adds(p) && co + PANEL <= p->channels; co += PANEL) {
        patch_add(p, t0, t1, co, at);
        at += PATCH_SUMS * PANEL;
    }
#endif
    for (; co < p->channels; co += V_LANES) {
        for (uint32_t number = p->begin; number < p->end; number++) {
            pick_block b = pick_block_of(p->c, number);
            switch (b.rows * 8 + b.taps) {
#define PICK_ADD(rows, taps) \
    case (rows) * 8 + (taps): PICK_CALL(rows, taps); break;
#define PICK_ADDS(taps) EACH_PICK_ROWS(PICK_ADD, taps)
                EACH_PICK_TAPS(PICK_ADDS)
#undef PICK_ADDS
#undef PICK_ADD
            }
            at += pick_floats(&b);
        }
    }
}

// Writes the part's node to dw, and the biases of block 0 to db.
static void pick_store(const part *p, const float *node, float *dw, float *db) {
    const lk_conv2d *c = p->c;
    for (uint32_t co = 0; co < p->channels; co += V_LANES) {
        uint32_t count = LK_MIN(p->channels - co, (uint32_t)V_LANES), at = p->co + co;
        for (uint32_t number = p->begin; number < p->end; number++) {
            pick_block b = pick_block_of(c, number);
            for (uint32_t i = 0; i < b.rows * b.taps; i++, node += V_LANES) {
                uint64_t row = b.row + i / b.taps, tap = b.first + i % b.taps;
                copy_floats(count, node, dw + (row * c->kernel_w * c->in_c + tap) * c->out_c + at);
            }
            if (db && number == 0) copy_floats(count, node, db + at);
            node += V_LANES;
        }
    }
}

static void pick_gradient(part *p, uint64_t most, uint32_t grain_count, const lk_grain_view *grains,
                          float *dw, float *db) {
    const lk_conv2d *c = p->c;
    uint32_t blocks = pick_blocks(c);
    uint64_t all = 0;  // sums of one vector of channels
    for (uint32_t i = 0; i < blocks; i++) {
        pick_block b = pick_block_of(c, i);
        all += pick_floats(&b);
    }
    p->needs_image = p->needs_ink = true;
    p->add = pick_add_part;
    uint32_t vectors = (uint32_t)LK_MAX(LK_MIN(most / all, (uint64_t)c->out_c), (uint64_t)1);
    for (p->co = 0; p->co < c->out_c; p->co += vectors * V_LANES) {
        p->channels = LK_MIN(c->out_c - p->co, vectors * V_LANES);
        uint32_t wide = (p->channels + V_LANES - 1) / V_LANES;
        for (p->begin = 0; p->begin < blocks; p->begin = p->end) {
            p->floats = 0;
            for (p->end = p->begin; p->end < blocks; p->end++) {
                pick_block b = pick_block_of(c, p->end);
                if (p->end > p->begin && p->floats + wide * pick_floats(&b) > most) break;
                p->floats += wide * pick_floats(&b);
            }
            pick_store(p, part_node(p, grain_count, grains), dw, db);
        }
    }
}

static void conv2d_pool_weight_gradient(const lk_conv2d *c, const lk_half *half,
                                        uint32_t grain_count, const lk_grain_view *grains,
                                        float *dw, float *db, float *scratch) {
    part p = {.c = c, .pooled = true, .half = half, .room = scratch,
              .sums = scratch + lk_conv_image_floats(c)};
    p.wide = p.sums + lk_conv_sum_floats(c);
    uint64_t most = part_floats_max(c, grain_count, grains);
    clear_floats(lk_conv_image_floats(c), p.room);
    if (pick_fits(c)) {
        pick_gradient(&p, most, grain_count, grains, dw, db);
        return;
    }
    lanes_gradient(&p, most, grain_count, grains, dw);
    if (db) bias_gradient(&p, most, grain_count, grains, db);
}
