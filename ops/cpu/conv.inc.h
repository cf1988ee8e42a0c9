// conv.inc.h - convolutions, forward and backward, in the words of vector.h.
//
// Included by one .c file per variant. How outputs and input gradients are computed: weights are
// packed into panels of PANEL channels; a tile of a few positions x PANEL channels is summed in
// registers, one fma a term in the contract's order. The positions of a tile see the example with
// the same taps, so that no zero beside it is multiplied (conv_view.inc.h); where that does not
// pay, the example is copied, with zeros around it, into scratch (the image). A gradient of the
// input is the same walk, over the output's gradient and with weights transposed while they are
// packed. Few channels that come out would not fill the lanes: of those, lanes are positions
// (conv_thin.inc.h). The weight gradients are in conv_weight.inc.h.
#include "ops/cpu/conv_shape.h"
#include "ops/cpu/vector.h"
#include "ops/op.h"

#if defined(__AVX512F__) || defined(V_NEON)
#define V_WIDE 1  // 32 registers: larger tiles
#else
#define V_WIDE 0
#endif

enum {
    PANEL = 2 * V_LANES,                      // channels of a panel
    TILE = 8,                                 // positions of a tile, at most
    TILE_WIDE = V_REGISTERS >= 32 ? 8 : 6,    // .. where a panel has two vectors
    TILE_POOL = V_REGISTERS >= 32 ? 8 : 4,    // .. of a pool: whole squares of 2x2
    VECTORS = PANEL / V_LANES,
};

// --- tree of slices ------------------------------------------------------------------------------

// Nodes of `floats` sums each. A leaf joins its sibling at once, so the stack holds one node for
// every binary digit 1 of the number of leaves, and the newest are the smallest.
typedef struct node_stack {
    float *nodes;
    uint64_t floats;
    uint32_t count;
} node_stack;

static float *stack_top(const node_stack *s) { return s->nodes + s->count * s->floats; }

// parent = the node below the top + the top
static void stack_join(node_stack *s) {
    s->count--;
    float *right = stack_top(s), *left = right - s->floats;
    for (uint64_t i = 0; i < s->floats; i += V_LANES) {
        v_store(left + i, v_add(v_load(left + i), v_load(right + i)));
    }
}

// The value written at stack_top() becomes leaf number `leaf` of the tree.
static void stack_leaf(node_stack *s, uint64_t leaf) {
    s->count++;
    for (; leaf & 1; leaf >>= 1) stack_join(s);
}

// Leaves one node above the `base` nodes of another tree: nodes without a sibling are copied
// upwards.
static void stack_fold(node_stack *s, uint32_t base) {
    while (s->count > base + 1) stack_join(s);
}

// --- images --------------------------------------------------------------------------------------

// From value `at` of x on, which has 16 bits where `half` says so.
static void copy_values(const lk_half *half, uint64_t count, const void *x, uint64_t at,
                        float *dst) {
    if (half)
        widen(half->dtype, count, (const uint16_t *)x + at, dst);
    else
        copy_floats(count, (const float *)x + at, dst);
}

static void clear_floats(uint64_t count, float *dst) { memset(dst, 0, count * sizeof *dst); }

// Whether the kernel reaches every pixel and nothing else, so that the example is its own image.
static bool image_is_example(const lk_conv2d *c) {
    return c->pad_top == 0 && c->pad_left == 0 && lk_conv_image_h(c) == c->in_h &&
           lk_conv_image_w(c) == c->in_w;
}

// Copies an example, value `at` of x and those behind it, into an image that was cleared before (an
// earlier example may be in it). Not NULL: x has 16 bits.
static void image_load_at(const lk_conv2d *c, const lk_half *half, const void *x, uint64_t at,
                          float *image) {
    if (image_is_example(c)) {
        copy_values(half, lk_conv2d_in_floats(c), x, at, image);
        return;
    }
    uint64_t h = lk_conv_image_h(c), w = lk_conv_image_w(c);
    uint64_t rows = LK_MIN((uint64_t)c->in_h, h > c->pad_top ? h - c->pad_top : 0);
    uint64_t columns = LK_MIN((uint64_t)c->in_w, w > c->pad_left ? w - c->pad_left : 0);
    for (uint64_t row = 0; row < rows; row++) {
        copy_values(half, columns * c->in_c, x, at + row * c->in_w * c->in_c,
                    image + ((row + c->pad_top) * w + c->pad_left) * c->in_c);
    }
}

static void image_load(const lk_conv2d *c, const float *x, float *image) {
    image_load_at(c, NULL, x, 0, image);
}

// `pixels` neighbours of `channels` each, into their planes.
static void planes_load_row(uint64_t pixels, uint32_t channels, const float *from, uint64_t plane,
                            float *to) {
    _Alignas(64) float square[V_LANES * V_LANES];
    for (uint64_t at = 0; at < pixels; at += V_LANES) {
        const uint32_t rows = (uint32_t)LK_MIN(pixels - at, (uint64_t)V_LANES);
        for (uint32_t c = 0; c < channels; c += V_LANES) {
            const uint32_t columns = LK_MIN(channels - c, (uint32_t)V_LANES);
            transpose(from + at * channels + c, channels, rows, columns, square, V_LANES);
            for (uint32_t i = 0; i < columns; i++) {
                v_store_first(to + (c + i) * plane + at, rows, v_load(square + i * V_LANES));
            }
        }
    }
}

// The example, a plane for each channel.
static void planes_load(const lk_conv2d *c, const float *x, float *planes) {
    const uint64_t h = lk_conv_image_h(c), w = lk_conv_image_w(c);
    const uint64_t rows = LK_MIN((uint64_t)c->in_h, h > c->pad_top ? h - c->pad_top : 0);
    const uint64_t columns = LK_MIN((uint64_t)c->in_w, w > c->pad_left ? w - c->pad_left : 0);
    for (uint64_t row = 0; row < rows; row++) {
        planes_load_row(columns, c->in_c, x + row * c->in_w * c->in_c, h * w,
                        planes + (row + c->pad_top) * w + c->pad_left);
    }
}

// Bit i: column i of these rows of an image has a pixel that is not zero. Terms that are zero may
// be left out, and most of a drawing is paper. All bits where there are more columns than bits.
static uint64_t inked_columns(const float *pixel, uint64_t pitch, uint64_t rows, uint64_t columns) {
    uint64_t ink = 0, at = 0;
    if (columns > 64) return ~(uint64_t)0;
#ifdef V_NEON
    if (rows == 1 && columns >= 16) {
        // The last 16 may be marked twice.
        for (; at + 16 <= columns; at += 16) ink |= (uint64_t)v_marks(pixel + at) << at;
        return ink | (uint64_t)v_marks(pixel + columns - 16) << (columns - 16);
    }
#endif
    for (; at + V_LANES <= columns; at += V_LANES) {
        vf most = v_zero();
        for (uint64_t r = 0; r < rows; r++) {
            most = v_max(v_abs(v_load(pixel + r * pitch + at)), most);
        }
        ink |= (uint64_t)v_bits(v_gt(most, v_zero())) << at;
    }
    for (uint64_t r = 0; r < rows && at < columns; r++) {
        vf last = v_abs(v_load_first(pixel + r * pitch + at, (uint32_t)(columns - at)));
        ink |= (uint64_t)v_bits(v_gt(last, v_zero())) << at;
    }
    return ink;
}

// Whether `wide` columns from `first` on have any; wide < 64.
static inline bool is_inked(uint64_t ink, uint64_t first, uint64_t wide) {
    if (first >= 64) return ink != 0;
    return (ink >> first & (((uint64_t)1 << wide) - 1)) != 0;
}

// The part of the output's gradient that exists, inside the image of it.
typedef struct gradient_window {
    uint64_t image_w;           // columns of the image
    uint32_t y0, y1, x0, x1;    // rows and columns of the output that the image holds
    int64_t first_y, first_x;   // of the image's corner
} gradient_window;

static gradient_window gradient_window_of(const lk_conv2d *c) {
    lk_conv_reach h = lk_conv_reach_h(c), w = lk_conv_reach_w(c);
    int64_t y1 = LK_MIN((int64_t)c->out_h, h.first + (int64_t)h.count);
    int64_t x1 = LK_MIN((int64_t)c->out_w, w.first + (int64_t)w.count);
    gradient_window g = {.image_w = w.count, .first_y = h.first, .first_x = w.first};
    g.y0 = (uint32_t)LK_MAX(h.first, 0);
    g.x0 = (uint32_t)LK_MAX(w.first, 0);
    g.y1 = (uint32_t)LK_MAX(y1, 0);
    g.x1 = (uint32_t)LK_MAX(x1, 0);
    return g;
}

static float *gradient_at(const lk_conv2d *c, const gradient_window *g, uint32_t oy, uint32_t ox,
                          float *image) {
    uint64_t row = (uint64_t)(oy - g->first_y), column = (uint64_t)(ox - g->first_x);
    return image + (row * g->image_w + column) * c->out_c;
}

static void gradient_load(const lk_conv2d *c, const gradient_window *g, const float *dy,
                          float *image) {
    if (g->x0 >= g->x1) return;
    for (uint32_t oy = g->y0; oy < g->y1; oy++) {
        copy_floats((uint64_t)(g->x1 - g->x0) * c->out_c,
                    dy + ((uint64_t)oy * c->out_w + g->x0) * c->out_c,
                    gradient_at(c, g, oy, g->x0, image));
    }
}

// The same, a plane for each channel.
static void gradient_planes_load(const lk_conv2d *c, const gradient_window *g, const float *dy,
                                 float *planes) {
    const uint64_t plane = lk_conv_reach_h(c).count * g->image_w;
    if (g->x0 >= g->x1) return;
    for (uint32_t oy = g->y0; oy < g->y1; oy++) {
        planes_load_row(g->x1 - g->x0, c->out_c, dy + ((uint64_t)oy * c->out_w + g->x0) * c->out_c,
                        plane,
                        planes + (uint64_t)(oy - g->first_y) * g->image_w +
                            (uint64_t)(g->x0 - g->first_x));
    }
}

// The same from the pooled gradient: the winner gets it, the other cells of a tile +0.
static void gradient_scatter(const lk_conv2d *c, const gradient_window *g, const float *dy,
                             const uint8_t *argmax, float *image) {
    for (uint32_t oy = g->y0; oy < LK_MIN(g->y1, c->out_h / 2 * 2); oy++) {
        for (uint32_t ox = g->x0; ox < LK_MIN(g->x1, c->out_w / 2 * 2); ox++) {
            uint64_t at = ((uint64_t)(oy / 2) * (c->out_w / 2) + ox / 2) * c->out_c;
            float *out = gradient_at(c, g, oy, ox, image);
            vi cell = i_set1((int32_t)(oy % 2 * 2 + ox % 2));
            for (uint32_t co = 0; co < c->out_c; co += V_LANES) {
                uint32_t count = LK_MIN(c->out_c - co, (uint32_t)V_LANES);
                vm won = i_eq(i_load_u8_first(argmax + at + co, count), cell);
                v_store_first(out + co, count, v_keep(won, v_load_first(dy + at + co, count)));
            }
        }
    }
}

// --- tiles ---------------------------------------------------------------------------------------

// The terms of one sum: a grid of runs, each of `length` consecutive floats of the image and of
// consecutive rows of packed weights. Terms are numbered as in the contract, so that a walk that
// leaves some out (they are zero) still cuts its slices at the same places.
typedef struct walk {
    uint32_t rows, columns, length;
    int64_t image_row, image_column;            // floats from one run to the next
    uint64_t first, term_row, term_column;      // term numbers
    uint64_t terms;                             // of the whole sum
    uint64_t plane;  // thin: floats from one term of a run to the next; 0: they lie side by side
} walk;

// The outputs of one walk: a grid of positions, in each of some examples.
typedef struct grid {
    uint32_t examples, rows, columns;
    // Floats from one position's first term to the next one's.
    uint64_t image_example, image_row, image_column;
    uint64_t out_example, out_row, out_column;
} grid;

// What a panel of sums starts from and what becomes of it.
typedef struct panel {
    const float *packed;    // (terms, vectors * V_LANES)
    const float *bias;      // (PANEL), zeros where there is none
    uint32_t vectors;       // 1 .. VECTORS
    uint32_t channels;      // that exist
    bool relu;
    float *nodes;
    lk_ahead *ahead;        // of the pooled forward pass alone
    const lk_narrow *how;   // .. which stores 16 bits
} panel;

// One term for every position of the tile: what is `at` from each pixel, and a row of weights.
V_INLINE void tile_term(const int positions, const int vectors, vf sum[TILE][VECTORS],
                        const float *const pixel[TILE], int64_t at, const float *row) {
    vf w[VECTORS];
    V_UNROLL for (int v = 0; v < vectors; v++) {
        w[v] = v_load(row + v * V_LANES);
        V_PIN(w[v]);
    }
    V_UNROLL for (int i = 0; i < positions; i++) {
        vf x = v_set1(pixel[i][at]);
        if (vectors > 1) V_PIN(x);
        V_UNROLL for (int v = 0; v < vectors; v++) sum[i][v] = v_fma(x, w[v], sum[i][v]);
    }
}

// `length` terms for every position of the tile.
V_INLINE void tile_run(const int positions, const int vectors, vf sum[TILE][VECTORS],
                       const float *const pixel[TILE], int64_t at, const float *packed,
                       uint64_t length) {
    const int width = vectors * V_LANES;
    const float *end = packed + length * (uint64_t)width;
    for (; V_FACTORS > 1 && end - packed >= V_FACTORS * width; at += V_FACTORS) {
        vf x[TILE];
        V_UNROLL for (int i = 0; i < positions; i++) x[i] = v_load(pixel[i] + at);
        V_UNROLL for (int j = 0; j < V_FACTORS; j++) {
            vf w[VECTORS];
            V_UNROLL for (int v = 0; v < vectors; v++) w[v] = v_load(packed + v * V_LANES);
            packed += width;
            V_UNROLL for (int i = 0; i < positions; i++) {
                V_UNROLL for (int v = 0; v < vectors; v++) {
                    sum[i][v] = v_fma_lane(x[i], j, w[v], sum[i][v]);
                }
            }
        }
    }
    const bool paired = V_FACTORS == 1 && V_TERMS == 2;
    const float *pairs = packed + (paired ? length / 2 * 2 * (uint64_t)width : 0);
    for (; paired && packed < pairs; packed += 2 * width, at += 2) {
        tile_term(positions, vectors, sum, pixel, at, packed);
        tile_term(positions, vectors, sum, pixel, at + 1, packed + width);
    }
    for (; packed < end; packed += width, at++) {
        tile_term(positions, vectors, sum, pixel, at, packed);
    }
}

// The same of a thin tile, whose `positions` are vectors of neighbours, and its `vectors` channels.
V_INLINE void thin_run(const int positions, const int vectors, vf sum[TILE][VECTORS],
                       const float *const pixel[TILE], int64_t at, const float *packed,
                       uint64_t length, uint64_t plane) {
    const float *first[TILE];
    V_UNROLL for (int i = 0; i < positions; i++) {
        first[i] = pixel[i] + at;
        V_FORGET(first[i]);  // gcc 12 would keep all of them in memory, and load each at every term
    }
    for (uint64_t j = 0, next = 0; j < length; j++, next += plane, packed += V_LANES) {
        vf w[VECTORS];
        V_UNROLL for (int v = 0; v < vectors; v++) {
            w[v] = v_set1(packed[v]);
            V_PIN(w[v]);
        }
        V_UNROLL for (int i = 0; i < positions; i++) {
            vf x = v_load(first[i] + next);
            if (vectors > 1) V_PIN(x);
            V_UNROLL for (int v = 0; v < vectors; v++) sum[i][v] = v_fma(x, w[v], sum[i][v]);
        }
    }
}

V_INLINE void tile_start(const bool thin, const int positions, const int vectors,
                         vf sum[TILE][VECTORS], const float *bias) {
    V_UNROLL for (int v = 0; v < vectors; v++) {
        vf start = thin ? v_set1(bias[v]) : v_load(bias + v * V_LANES);
        V_UNROLL for (int i = 0; i < positions; i++) sum[i][v] = start;
    }
}

// Terms term .. term + length of every sum; `at`: the first one's place from each pixel.
V_INLINE void tile_terms(const bool thin, const int positions, const int vectors,
                         vf sum[TILE][VECTORS], const walk *k, const float *const pixel[TILE],
                         const panel *p, int64_t at, uint64_t term, uint64_t length) {
    if (thin) {
        thin_run(positions, vectors, sum, pixel, at, p->packed + term * V_LANES, length, k->plane);
    } else {
        tile_run(positions, vectors, sum, pixel, at,
                 p->packed + term * (uint64_t)(vectors * V_LANES), length);
    }
}

// A tile whose sums are one slice each.
V_INLINE void tile_sum(const bool thin, const int positions, const int vectors,
                       vf sum[TILE][VECTORS], const walk *k, const float *const pixel[TILE],
                       const panel *p) {
    tile_start(thin, positions, vectors, sum, p->bias);
    for (uint32_t r = 0; r < k->rows; r++) {
        for (uint32_t q = 0; q < k->columns; q++) {
            uint64_t term = k->first + r * k->term_row + q * k->term_column;
            int64_t at = r * k->image_row + q * k->image_column;
            V_ASIDE(r);
            V_ASIDE(q);
            V_ASIDE(k);
            V_ASIDE(p);
            tile_terms(thin, positions, vectors, sum, k, pixel, p, at, term, k->length);
        }
    }
}

V_INLINE void tile_cut(const int positions, const int vectors, vf sum[TILE][VECTORS],
                       node_stack *s, uint64_t slice) {
    float *top = stack_top(s);
    V_UNROLL for (int i = 0; i < positions; i++) {
        V_UNROLL for (int v = 0; v < vectors; v++) {
            v_store(top + (i * vectors + v) * V_LANES, sum[i][v]);
            sum[i][v] = v_zero();
        }
    }
    stack_leaf(s, slice);
}

// A tile of any number of slices.
V_INLINE void tile_sum_sliced(const bool thin, const int positions, const int vectors,
                              vf sum[TILE][VECTORS], const walk *k, const float *const pixel[TILE],
                              const panel *p) {
    node_stack s = {p->nodes, (uint64_t)(positions * vectors * V_LANES), 0};
    uint64_t slice = 0;
    tile_start(thin, positions, vectors, sum, p->bias);
    for (uint32_t r = 0; r < k->rows; r++) {
        for (uint32_t q = 0; q < k->columns; q++) {
            uint64_t term = k->first + r * k->term_row + q * k->term_column;
            uint64_t end = term + k->length;
            int64_t at = r * k->image_row + q * k->image_column;
            while (term < end) {
                for (; slice < term / LK_SLICE_TERMS; slice++) {
                    tile_cut(positions, vectors, sum, &s, slice);
                }
                uint64_t take = LK_MIN(end, (slice + 1) * LK_SLICE_TERMS) - term;
                tile_terms(thin, positions, vectors, sum, k, pixel, p, at, term, take);
                term += take;
                at += (int64_t)(thin ? take * k->plane : take);
            }
        }
    }
    for (; slice < (k->terms + LK_SLICE_TERMS - 1) / LK_SLICE_TERMS; slice++) {
        tile_cut(positions, vectors, sum, &s, slice);
    }
    stack_fold(&s, 0);
    V_UNROLL for (int i = 0; i < positions; i++) {
        V_UNROLL for (int v = 0; v < vectors; v++) {
            sum[i][v] = v_load(s.nodes + (i * vectors + v) * V_LANES);
        }
    }
}

V_INLINE void tile_any(const bool thin, const int positions, const int vectors,
                       vf sum[TILE][VECTORS], const walk *k, const float *const pixel[TILE],
                       const panel *p) {
    if (k->terms <= LK_SLICE_TERMS) tile_sum(thin, positions, vectors, sum, k, pixel, p);
    else tile_sum_sliced(thin, positions, vectors, sum, k, pixel, p);
}

// --- outputs of a grid ---------------------------------------------------------------------------

// Stores the finished sums of one position, `channels` of them. Returns `bad`, noted.
V_INLINE vf position_store(const int vectors, const vf sum[VECTORS], const uint32_t channels,
                           const bool relu, const float *mask, float *out, vf bad) {
    V_UNROLL for (int v = 0; v < vectors; v++) {
        const uint32_t count = channels - (uint32_t)(v * V_LANES);
        vf y = v_add(sum[v], v_zero());
        bad = v_note(bad, y);
        if (relu) y = v_relu(y);
        if (mask) y = v_keep(v_gt(v_load_first(mask + v * V_LANES, count), v_zero()), y);
        v_store_first(out + v * V_LANES, count, y);
    }
    return bad;
}

#include "ops/cpu/conv_thin.inc.h"

// Where the positions of a tile have their first pixels and their outputs.
typedef struct spots {
    const float *pixel[TILE];
    uint64_t offset[TILE];
    uint32_t count;  // that exist
    const float *mask;
    float *out;
    vf bad;          // noted
} spots;

// A position of a grid.
typedef struct grid_place {
    uint32_t example, row, column;
    const float *pixel;  // its first term
    uint64_t out;
} grid_place;

V_INLINE void grid_place_next(grid_place *at, const grid *g, const float *image) {
    at->pixel += g->image_column;
    at->out += g->out_column;
    if (++at->column < g->columns) return;
    at->column = 0;
    if (++at->row == g->rows) at->row = 0, at->example++;
    at->pixel = image + at->example * g->image_example + at->row * g->image_row;
    at->out = at->example * g->out_example + at->row * g->out_row;
}

// As many positions of the grid, from *at on, as a tile of `size` has, or are left.
V_INLINE void spots_fill(spots *s, uint32_t size, const grid *g, const float *image, uint64_t left,
                         grid_place *at) {
    s->count = (uint32_t)LK_MIN((uint64_t)size, left);
    for (uint32_t i = 0; i < s->count; i++) {
        s->pixel[i] = at->pixel;
        s->offset[i] = at->out;
        // They are there when the sums are.
        for (uint32_t c = 0; c < PANEL; c += LK_LANES_MAX) v_fetch_to_write(s->out + at->out + c);
        if (s->mask) __builtin_prefetch(s->mask + at->out);
        grid_place_next(at, g, image);
    }
    // A tile that is not full sums its last position again.
    for (uint32_t i = s->count; i < size; i++) s->pixel[i] = s->pixel[i - 1];
}

V_INLINE void spots_sum(const int size, const int vectors, spots *s, const walk *k,
                        const panel *p) {
    const float *pixel[TILE];
    vf sum[TILE][VECTORS];
    V_UNROLL for (int i = 0; i < size; i++) {
        pixel[i] = s->pixel[i];
        V_FORGET(pixel[i]);
    }
    V_ASIDE(s);
    tile_any(false, size, vectors, sum, k, pixel, p);
    const uint32_t whole = (uint32_t)(vectors * V_LANES), channels = p->channels;
    const bool relu = p->relu;
    vf bad = s->bad;
    V_UNROLL for (uint32_t i = 0; i < (uint32_t)size; i++) {
        if (i >= s->count) continue;
        const uint64_t at = s->offset[i];
        const float *mask = s->mask ? s->mask + at : NULL;
        bad = channels == whole
                  ? position_store(vectors, sum[i], whole, relu, mask, s->out + at, bad)
                  : position_store(vectors, sum[i], channels, relu, mask, s->out + at, bad);
    }
    s->bad = bad;
}

// Functions of their own: a tile needs all registers. A last tile of few positions has half as many
// sums, which still hide most of the latency of fma; a panel of one vector has more positions.
#define SPOTS_SUM(name, size, vectors)                                       \
    V_NOINLINE void name(spots *s, const walk *k, const panel *p) {          \
        spots_sum(size, vectors, s, k, p);                                   \
    }
SPOTS_SUM(sum_whole, TILE_WIDE, VECTORS)
SPOTS_SUM(sum_rest, TILE_WIDE / 2, VECTORS)
SPOTS_SUM(sum_narrow, TILE, 1)
#undef SPOTS_SUM

// What the next examples are read from, which are fetched while these are summed: a step a tile.
typedef struct next_example {
    const float *at, *end;
    uint64_t step;
} next_example;

// The `group` behind example m of `count`, each of `floats` floats, in a step for each tile of as
// many examples of `positions`.
static next_example next_of(const float *x, uint64_t floats, uint32_t m, uint32_t count,
                            uint32_t group, uint64_t positions) {
    const uint32_t first = LK_MIN(m + group, count), end = LK_MIN(first + group, count);
    return (next_example){x + first * floats, x + end * floats,
                          group * floats / (group * positions / TILE_WIDE + 1) + 1};
}

V_INLINE void next_fetch(next_example *n) {
    const float *end = n->end - n->at < (int64_t)n->step ? n->end : n->at + n->step;
    for (; n->at < end; n->at += LK_LANES_MAX) __builtin_prefetch(n->at, 0, 2);
}

static uint32_t grid_any(const grid *g, const walk *k, const panel *p, const float *image,
                         const float *mask, float *out, next_example *next) {
    if (k->plane) return thin_any(g, k, p, image, mask, out);
    spots s = {.mask = mask, .out = out, .bad = v_zero()};
    grid_place at = {.pixel = image};
    uint64_t left = (uint64_t)g->examples * g->rows * g->columns;
    for (; p->vectors == 1 && left > 0; left -= s.count) {
        spots_fill(&s, TILE, g, image, left, &at);
        sum_narrow(&s, k, p);
    }
    for (; left > 0; left -= s.count) {
        const bool few = left <= TILE_WIDE / 2;
        spots_fill(&s, few ? TILE_WIDE / 2 : TILE_WIDE, g, image, left, &at);
        next_fetch(next);
        (few ? sum_rest : sum_whole)(&s, k, p);
    }
    return v_noted(s.bad);
}

#include "ops/cpu/conv_view.inc.h"

// --- forward -------------------------------------------------------------------------------------

// The parts of scratch that outputs and input gradients use.
typedef struct conv_scratch {
    float *packed, *bias, *image, *nodes;
} conv_scratch;

static conv_scratch conv_scratch_of(uint64_t terms, uint64_t image_floats, float *scratch) {
    conv_scratch s;
    s.packed = scratch;
    s.bias = s.packed + terms * LK_CONV_PANEL;
    s.image = s.bias + LK_CONV_PANEL;
    s.nodes = s.image + image_floats;
    return s;
}

static panel panel_of(const conv_scratch *s, uint32_t channels, bool relu) {
    channels = LK_MIN(channels, (uint32_t)PANEL);
    return (panel){.packed = s->packed,
                   .bias = s->bias,
                   .vectors = channels <= V_LANES ? 1 : VECTORS,
                   .channels = channels,
                   .relu = relu,
                   .nodes = s->nodes};
}

// Weights and biases of output channels co .. co + p->channels, padded with zeros.
static void pack_forward(const lk_conv2d *c, const float *w, const float *bias, uint32_t co,
                         const panel *p, const conv_scratch *s) {
    uint64_t terms = lk_conv_terms_forward(c);
    uint32_t width = p->vectors * V_LANES;
    for (uint64_t term = 0; term < terms; term++) {
        for (uint32_t v = 0; v < width; v += V_LANES) {
            v_store(s->packed + term * width + v,
                    v_load_first(w + term * c->out_c + co + v, p->channels - v));
        }
    }
    for (uint32_t v = 0; v < width; v += V_LANES) {
        v_store(s->bias + v, bias ? v_load_first(bias + co + v, p->channels - v) : v_zero());
    }
}

static walk walk_forward(const lk_conv2d *c) {
    uint64_t row = (uint64_t)c->kernel_w * c->in_c;
    walk k = {.rows = c->kernel_h, .columns = 1, .length = (uint32_t)row, .term_row = row};
    k.image_row = (int64_t)(lk_conv_image_w(c) * c->in_c);
    k.terms = lk_conv_terms_forward(c);
    return k;
}

static uint32_t conv2d_forward(const lk_conv2d *c, uint32_t m_count, const float *x, const float *w,
                               const float *bias, float *y, float *scratch) {
    conv_scratch s = conv_scratch_of(lk_conv_terms_forward(c), lk_conv_image_floats(c), scratch);
    const uint64_t in = lk_conv2d_in_floats(c);
    const bool thin = thin_pays(c->out_c, c->stride_w, c->out_w);
    const conv_view bare = view_forward(c, false, false), padded = view_forward(c, true, thin);
    uint32_t group = view_examples(in, m_count);
    const bool direct = !thin && view_work(&bare, group) <= group * view_work(&padded, 1);
    if (!direct) {
        group = 1;
        clear_floats(lk_conv_image_floats(c), s.image);
    }
    uint32_t bad = 0;
    for (uint32_t co = 0; co < c->out_c; co += PANEL) {
        panel p = panel_of(&s, c->out_c - co, c->relu);
        pack_forward(c, w, bias, co, &p, &s);
        for (uint32_t m = 0; m < m_count; m += group) {
            const float *example = x + m * in;
            if (thin) planes_load(c, example, s.image);
            else if (!direct) image_load(c, example, s.image);
            next_example next = next_of(x, in, m, m_count, group, (uint64_t)c->out_h * c->out_w);
            bad |= view_sum(direct ? &bare : &padded, LK_MIN(group, m_count - m), &p,
                            direct ? example : s.image, NULL,
                            y + m * lk_conv2d_out_floats(c) + co, &next);
        }
    }
    return bad;
}

// --- forward with pooling ------------------------------------------------------------------------

// The maximum of four cells, and which it was. `checked` cells are noted in `bad`.
V_INLINE vf pool_store(const int checked, const vf a[4], bool relu, uint32_t count, float *y,
                       uint8_t *argmax, vf bad) {
    vm right = v_gt(a[1], a[0]), lower_right = v_gt(a[3], a[2]);
    vf upper = v_max(a[1], a[0]), lower = v_max(a[3], a[2]);
    vm below = v_gt(lower, upper);
    vf best = v_max(lower, upper);
    if (checked) {
        V_UNROLL for (int i = 0; i < 4; i++) bad = v_note(bad, a[i]);
    }
    best = relu ? v_max(best, v_zero()) : v_add(best, v_zero());
    v_store_first(y, count, best);
    v_store_cells_first(argmax, count, right, lower_right, below);
    return bad;
}

// The same of 16 bits: the winner is sought among rounded values.
V_INLINE vf pool_store_half(const bool f16, const int checked, const vf sum[4],
                            const lk_narrow_rule rule, uint32_t count, uint16_t *y, uint8_t *argmax,
                            vf bad) {
    vf cell[4];
    pool_winner won;
    // Behind ReLU the zeros of both signs are one.
    V_UNROLL for (int i = 0; i < 4; i++) {
        cell[i] = rule == LK_NARROW ? v_add(sum[i], v_zero()) : sum[i];
    }
    const vf best = pool_tile(f16, rule, cell, checked, &won, &bad);
    half_store_first(f16, false, y, count, best);
    v_store_cells_first(argmax, count, won.right, won.lower_right, won.below);
    return bad;
}

// The sums of a square kernel on images of one channel, as one run of fma.
V_INLINE void square_sum(const int positions, const int vectors, const int size,
                         vf sum[TILE][VECTORS], int64_t image_row, const float *const pixel[TILE],
                         const panel *p) {
    tile_start(false, positions, vectors, sum, p->bias);
    V_UNROLL_TERMS for (int i = 0; i < size * size; i++) {
        tile_term(positions, vectors, sum, pixel, i / size * image_row + i % size,
                  p->packed + i * vectors * V_LANES);
    }
}

// The sums of neighbouring 2x2 tiles, in all `columns` columns, of a square kernel on images of one
// channel: where factors come from lanes, the pixels that all cells see are loaded once.
V_INLINE void patch_sum(const int columns, const int vectors, const int size,
                        vf sum[TILE][VECTORS], uint64_t image_row, const panel *p,
                        const float *image) {
    enum { WIDTH_MAX = 4 };  // vectors of a row of pixels
    const int width = columns + size - 1;
    vf pixels[2][WIDTH_MAX];  // of two neighbouring rows
    V_FORGET(image);  // or loads are shared with the tile of another branch, and registers spent
    tile_start(false, 2 * columns, vectors, sum, p->bias);
    V_UNROLL for (int row = 0; row <= size; row++) {
        V_UNROLL for (int i = 0; i < width; i += V_LANES) {
            pixels[row % 2][i / V_LANES] =
                v_load_first(image + (uint64_t)row * image_row + i, (uint32_t)(width - i));
        }
        V_UNROLL for (int kx = 0; row > 0 && kx < size; kx++) {
            const float *packed = p->packed + ((row - 1) * size + kx) * vectors * V_LANES;
            vf w[VECTORS];
            V_UNROLL for (int v = 0; v < vectors; v++) w[v] = v_load(packed + v * V_LANES);
            V_UNROLL for (int i = 0; i < 2 * columns; i++) {
                int at = i / 4 * 2 + i % 2 + kx, y = (row - 1 + i / 2 % 2) % 2;
                V_UNROLL for (int v = 0; v < vectors; v++) {
                    sum[i][v] = v_fma_lane(pixels[y][at / V_LANES], at % V_LANES, w[v], sum[i][v]);
                }
            }
        }
    }
}

// `tiles` neighbouring 2x2 tiles of the output. `size` is pool_fill's.
V_INLINE vf pool_tiles(const int tiles, const int vectors, const int checked, const lk_dtype to,
                       const uint32_t size, const grid *g, const walk *k, const panel *p,
                       const float *image, void *y, uint8_t *argmax, uint64_t from, vf bad) {
    const float *pixel[TILE];
    vf sum[TILE][VECTORS];
    V_UNROLL for (int i = 0; i < 4 * tiles; i++) {
        pixel[i] = image + (uint64_t)(i / 2 % 2) * g->image_row +
                   (uint64_t)(i / 4 * 2 + i % 2) * g->image_column;
    }
    if (V_FACTORS > 1 && size) {
        patch_sum(2 * tiles, vectors, (int)size, sum, g->image_row, p, image);
    } else if (size) {
        square_sum(4 * tiles, vectors, (int)size, sum, (int64_t)g->image_row, pixel, p);
    } else {
        tile_any(false, 4 * tiles, vectors, sum, k, pixel, p);
    }
    V_UNROLL for (int t = 0; t < tiles; t++) {
        V_UNROLL for (int v = 0; v < vectors; v++) {
            vf cell[4] = {sum[4 * t][v], sum[4 * t + 1][v], sum[4 * t + 2][v], sum[4 * t + 3][v]};
            const uint64_t at = from + (uint64_t)t * g->out_column + (uint64_t)(v * V_LANES);
            const uint32_t count = p->channels - (uint32_t)(v * V_LANES);
            if (to != LK_F32)
                bad = pool_store_half(to == LK_F16, checked, cell, p->how->rule, count,
                                      (uint16_t *)y + at, argmax + at, bad);
            else
                bad = pool_store(checked, cell, p->relu, count, (float *)y + at, argmax + at, bad);
        }
    }
    return bad;
}

// The same where every term is zero.
V_INLINE void pool_blank(const int tiles, const int vectors, const lk_dtype to, const grid *g,
                         const panel *p, void *y, uint8_t *argmax, uint64_t from) {
    V_UNROLL for (int v = 0; v < vectors; v++) {
        vf b = v_load(p->bias + v * V_LANES);
        const vf cell[4] = {b, b, b, b};
        V_UNROLL for (int t = 0; t < tiles; t++) {
            const uint64_t at = from + (uint64_t)t * g->out_column + (uint64_t)(v * V_LANES);
            const uint32_t count = p->channels - (uint32_t)(v * V_LANES);
            if (to != LK_F32)
                pool_store_half(to == LK_F16, 0, cell, p->how->rule, count, (uint16_t *)y + at,
                                argmax + at, v_zero());
            else
                pool_store(0, cell, p->relu, count, (float *)y + at, argmax + at, v_zero());
        }
    }
}

// Prefetches four cache lines of what is needed soon; called once for each group of tiles.
V_INLINE const float *fetch_ahead(const float *at, const float *end) {
    if (at >= end) return at;
    V_UNROLL for (int i = 0; i < 4; i++) __builtin_prefetch(at + i * LK_LANES_MAX, 0, 2);
    return at + 4 * LK_LANES_MAX;
}

// The pooled outputs of one example: a grid of 2x2 tiles. Not 0, `size` is that of a square kernel
// on images of one channel with stride 1, known to the compiler.
V_INLINE uint32_t pool_fill(const int vectors, const int checked, const lk_dtype to,
                            const uint32_t size, const grid *positions, const walk *k,
                            const panel *p, const float *image, void *y, uint8_t *argmax,
                            uint64_t from) {
    const uint32_t step = TILE_POOL / 4;
    grid g = *positions;
    if (size) g.image_column = 1;
    vf bad = v_zero();
    const float *ahead = p->ahead->at;
    for (uint32_t row = 0; row < g.rows; row++) {
        const float *pixels = image + 2 * row * g.image_row;
        uint64_t ink = size ? inked_columns(pixels, g.image_row, size + 1, g.image_row) : 0;
        for (uint32_t column = 0; column < g.columns;) {
            const float *pixel = pixels + 2 * column * g.image_column;
            const uint64_t at = from + row * g.out_row + column * g.out_column;
            bool whole = g.columns - column >= step;
            ahead = fetch_ahead(ahead, p->ahead->end);
            if (size && !is_inked(ink, 2 * column, whole ? 2 * step + size - 1 : size + 1)) {
                if (whole) pool_blank(TILE_POOL / 4, vectors, to, &g, p, y, argmax, at);
                else pool_blank(1, vectors, to, &g, p, y, argmax, at);
            } else if (whole) {
                bad = pool_tiles(TILE_POOL / 4, vectors, checked, to, size, &g, k, p, pixel, y,
                                 argmax, at, bad);
            } else {
                bad = pool_tiles(1, vectors, checked, to, size, &g, k, p, pixel, y, argmax, at,
                                 bad);
            }
            column += whole ? step : 1;
        }
    }
    p->ahead->at = ahead;
    return checked ? v_noted(bad) : 0;
}

// The largest magnitude among `count` floats; infinity where one is not finite. A maximum drops
// what is not a number: so that is noted apart.
static float magnitude(uint64_t count, const float *p) {
    vf top = v_zero(), bad = v_zero(), other_top = v_zero(), other_bad = v_zero();
    float lanes[V_LANES], most = 0.0f;
    uint64_t i = 0;
    for (; i + 2 * V_LANES <= count; i += 2 * V_LANES) {  // two chains: neither waits for itself
        vf v = v_load(p + i), other = v_load(p + i + V_LANES);
        top = v_max(v_abs(v), top);
        other_top = v_max(v_abs(other), other_top);
        bad = v_note(bad, v);
        other_bad = v_note(other_bad, other);
    }
    top = v_max(other_top, top);
    bad = v_add(bad, other_bad);
    if (i + V_LANES <= count) {
        vf v = v_load(p + i);
        top = v_max(v_abs(v), top);
        bad = v_note(bad, v);
        i += V_LANES;
    }
    if (i < count) {
        vf v = v_load_first(p + i, (uint32_t)(count - i));
        top = v_max(v_abs(v), top);
        bad = v_note(bad, v);
    }
    v_store(lanes, top);
    for (int l = 0; l < V_LANES; l++) most = lanes[l] > most ? lanes[l] : most;
    return v_noted(bad) ? __builtin_inff() : most;
}

// `limit`: pixels no larger than this cannot make a sum that is not finite, so that nobody need
// look at the cells that lose.
V_INLINE uint32_t pool_any_of(const lk_dtype to, const grid *g, const walk *k, const panel *p,
                              const lk_conv2d *c, float limit, const float *example,
                              uint64_t floats, const float *image, void *y, uint8_t *argmax,
                              uint64_t at) {
    uint32_t size = c->kernel_h == c->kernel_w && c->in_c * c->stride_h * c->stride_w == 1
                        ? c->kernel_h : 0;
    bool small = (size == 3 || size == 5) && magnitude(floats, example) <= limit;
    if (small && size == 3) {
        return p->vectors == 1 ? pool_fill(1, 0, to, 3, g, k, p, image, y, argmax, at)
                               : pool_fill(VECTORS, 0, to, 3, g, k, p, image, y, argmax, at);
    }
    if (small && size == 5) {
        return p->vectors == 1 ? pool_fill(1, 0, to, 5, g, k, p, image, y, argmax, at)
                               : pool_fill(VECTORS, 0, to, 5, g, k, p, image, y, argmax, at);
    }
    return p->vectors == 1 ? pool_fill(1, 1, to, 0, g, k, p, image, y, argmax, at)
                           : pool_fill(VECTORS, 1, to, 0, g, k, p, image, y, argmax, at);
}

static uint32_t pool_any(const grid *g, const walk *k, const panel *p, const lk_conv2d *c,
                         float limit, const float *example, const float *image, float *y,
                         uint8_t *argmax) {
    return pool_any_of(LK_F32, g, k, p, c, limit, example, lk_conv2d_in_floats(c), image, y, argmax,
                       0);
}

// The same, y in 16 bits.
V_NOINLINE uint32_t pool_any_f16(const grid *g, const walk *k, const panel *p, const lk_conv2d *c,
                                 float limit, uint64_t floats, const float *image, void *y,
                                 uint8_t *argmax, uint64_t at) {
    return pool_any_of(LK_F16, g, k, p, c, limit, image, floats, image, y, argmax, at);
}
V_NOINLINE uint32_t pool_any_bf16(const grid *g, const walk *k, const panel *p, const lk_conv2d *c,
                                  float limit, uint64_t floats, const float *image, void *y,
                                  uint8_t *argmax, uint64_t at) {
    return pool_any_of(LK_BF16, g, k, p, c, limit, image, floats, image, y, argmax, at);
}

// The limit of pool_any: terms * |x| * |w| + |bias| stays below 3/4 of `most`. Below 0, which no
// pixel is: weights that are not finite make such a sum even of a blank image.
static float pool_limit_of(const lk_conv2d *c, const float *w, const float *bias, float most) {
    float weights = magnitude(lk_conv2d_weight_floats(c), w);
    if (weights == __builtin_inff()) return -1.0f;
    if (bias && magnitude(c->out_c, bias) > most / 4) return -1.0f;
    most = most / 2 / (float)lk_conv_terms_forward(c);
    return weights > 1.0f ? most / weights : most;
}

static float pool_limit(const lk_conv2d *c, const float *w, const float *bias) {
    return pool_limit_of(c, w, bias, 0x1p127f);
}

static uint32_t conv2d_pool_forward(const lk_conv2d *c, uint32_t m_count, const float *x,
                                    const float *w, const float *bias, float *y, uint8_t *argmax,
                                    lk_ahead *ahead, float *scratch) {
    conv_scratch s = conv_scratch_of(lk_conv_terms_forward(c), lk_conv_image_floats(c), scratch);
    walk k = walk_forward(c);
    grid g = {.rows = c->out_h / 2, .columns = c->out_w / 2};
    g.image_row = (uint64_t)k.image_row * c->stride_h;
    g.image_column = (uint64_t)c->in_c * c->stride_w;
    g.out_row = (uint64_t)g.columns * c->out_c;
    g.out_column = c->out_c;
    bool direct = image_is_example(c);
    if (!direct) clear_floats(lk_conv_image_floats(c), s.image);
    float limit = pool_limit(c, w, bias);
    uint32_t bad = 0;
    for (uint32_t co = 0; co < c->out_c; co += PANEL) {
        panel p = panel_of(&s, c->out_c - co, c->relu);
        p.ahead = ahead;
        pack_forward(c, w, bias, co, &p, &s);
        for (uint32_t m = 0; m < m_count; m++) {
            const float *example = x + m * lk_conv2d_in_floats(c);
            uint64_t at = m * lk_conv2d_pooled_floats(c) + co;
            if (!direct) image_load(c, example, s.image);
            bad |= pool_any(&g, &k, &p, c, limit, example, direct ? example : s.image, y + at,
                            argmax + at);
        }
    }
    return bad;
}

// The same, y in 16 bits, x as `half` says. 2^15 and 2^127 are finite in 16 bits, too.
static uint32_t conv2d_pool_forward_half(const lk_conv2d *c, const lk_half *half, uint32_t m_count,
                                         const void *x, const float *w, const float *bias,
                                         void *y, uint8_t *argmax, lk_ahead *ahead,
                                         float *scratch) {
    conv_scratch s = conv_scratch_of(lk_conv_terms_forward(c), lk_conv_image_floats(c), scratch);
    const uint64_t floats = lk_conv_image_h(c) * lk_conv_image_w(c) * c->in_c;
    walk k = walk_forward(c);
    grid g = {.rows = c->out_h / 2, .columns = c->out_w / 2};
    g.image_row = (uint64_t)k.image_row * c->stride_h;
    g.image_column = (uint64_t)c->in_c * c->stride_w;
    g.out_row = (uint64_t)g.columns * c->out_c;
    g.out_column = c->out_c;
    clear_floats(lk_conv_image_floats(c), s.image);
    const bool f16 = half->out.dtype == LK_F16;
    float limit = pool_limit_of(c, w, bias, f16 ? 0x1p15f : 0x1p127f);
    uint32_t bad = 0;
    for (uint32_t co = 0; co < c->out_c; co += PANEL) {
        panel p = panel_of(&s, c->out_c - co, false);
        p.ahead = ahead;
        p.how = &half->out;
        pack_forward(c, w, bias, co, &p, &s);
        for (uint32_t m = 0; m < m_count; m++) {
            image_load_at(c, half->x ? half : NULL, x, m * lk_conv2d_in_floats(c), s.image);
            const uint64_t at = m * lk_conv2d_pooled_floats(c) + co;
            if (f16)
                bad |= pool_any_f16(&g, &k, &p, c, limit, floats, s.image, y, argmax, at);
            else
                bad |= pool_any_bf16(&g, &k, &p, c, limit, floats, s.image, y, argmax, at);
        }
    }
    return bad;
}

// --- gradient of the input -----------------------------------------------------------------------

// Weights of input channels ci .. ci + p->channels, transposed: one row per (ky, kx, co); and their
// biases, where a transposed convolution has any.
static void pack_backward(const lk_conv2d *c, const float *w, const float *bias, uint32_t ci,
                          const panel *p, const conv_scratch *s) {
    uint32_t width = p->vectors * V_LANES;
    clear_floats(LK_CONV_PANEL, s->bias);
    if (bias) memcpy(s->bias, bias + ci, p->channels * sizeof *bias);
    for (uint64_t tap = 0; tap < (uint64_t)c->kernel_h * c->kernel_w; tap++) {
        const float *from = w + (tap * c->in_c + ci) * c->out_c;
        float *to = s->packed + tap * c->out_c * width;
        for (uint32_t i = 0; i < width; i++) {
            for (uint32_t co = 0; co < c->out_c; co++) {
                to[co * width + i] = i < p->channels ? from[(uint64_t)i * c->out_c + co] : 0.0f;
            }
        }
    }
}

// What all phases take of `group` examples.
static uint64_t input_work(const lk_conv2d *c, uint32_t group, bool padded) {
    uint64_t work = 0;
    for (uint32_t ky = 0; ky < c->stride_h; ky++) {
        for (uint32_t kx = 0; kx < c->stride_w; kx++) {
            const conv_view v = view_backward(c, ky, kx, padded, false);
            work += padded ? group * view_work(&v, 1) : view_work(&v, group);
        }
    }
    return work;
}

// `bias` and `relu` of a transposed convolution, which is such a gradient.
static uint32_t input_sums(const lk_conv2d *c, uint32_t m_count, const float *w, const float *bias,
                           bool relu, const float *dy, const uint8_t *argmax, const float *mask,
                           float *dx, float *scratch) {
    conv_scratch s =
        conv_scratch_of(lk_conv_terms_backward(c), lk_conv_gradient_floats(c), scratch);
    gradient_window window = gradient_window_of(c);
    uint64_t dy_floats = argmax ? lk_conv2d_pooled_floats(c) : lk_conv2d_out_floats(c);
    const bool thin = !argmax && thin_pays(c->in_c, 1, c->in_w / c->stride_w);
    uint32_t group = view_examples(lk_conv2d_out_floats(c), m_count);
    const bool direct =
        !argmax && !thin && input_work(c, group, false) <= input_work(c, group, true);
    if (!direct) {
        group = 1;
        clear_floats(lk_conv_gradient_floats(c), s.image);
    }
    uint32_t bad = 0;
    for (uint32_t ci = 0; ci < c->in_c; ci += PANEL) {
        panel p = panel_of(&s, c->in_c - ci, relu);
        pack_backward(c, w, bias, ci, &p, &s);
        for (uint32_t m = 0; m < m_count; m += group) {
            const float *example = dy + m * dy_floats;
            next_example next =
                next_of(dy, dy_floats, m, m_count, group, (uint64_t)c->in_h * c->in_w);
            if (argmax) gradient_scatter(c, &window, example, argmax + m * dy_floats, s.image);
            else if (thin) gradient_planes_load(c, &window, example, s.image);
            else if (!direct) gradient_load(c, &window, example, s.image);
            for (uint32_t ky = 0; ky < c->stride_h; ky++) {
                for (uint32_t kx = 0; kx < c->stride_w; kx++) {
                    const conv_view v = view_backward(c, ky, kx, !direct, thin);
                    const uint64_t at = m * lk_conv2d_in_floats(c) + ci;
                    bad |= view_sum(&v, LK_MIN(group, m_count - m), &p,
                                    direct ? example : s.image, mask ? mask + at : NULL, dx + at,
                                    &next);
                }
            }
        }
    }
    return bad;
}

static uint32_t input_gradient(const lk_conv2d *c, uint32_t m_count, const float *w,
                               const float *dy, const uint8_t *argmax, const float *mask, float *dx,
                               float *scratch) {
    return input_sums(c, m_count, w, NULL, false, dy, argmax, mask, dx, scratch);
}

static uint32_t conv2d_transpose_forward(const lk_conv2d *c, uint32_t m_count, const float *x,
                                         const float *w, const float *bias, float *y,
                                         float *scratch) {
    return input_sums(c, m_count, w, bias, c->relu, x, NULL, NULL, y, scratch);
}

#include "ops/cpu/conv_scatter.inc.h"

static uint32_t conv2d_input_gradient(const lk_conv2d *c, uint32_t m_count, const float *w,
                                      const float *dy, const float *mask, float *dx,
                                      float *scratch) {
    return input_gradient(c, m_count, w, dy, NULL, mask, dx, scratch);
}

static uint32_t conv2d_pool_input_gradient(const lk_conv2d *c, uint32_t m_count, const float *w,
                                           const float *dy, const uint8_t *argmax,
                                           const float *mask, float *dx, float *scratch) {
    if (lk_conv_scatters(c)) return scatter_gradient(c, m_count, w, dy, argmax, mask, dx, scratch);
    return input_gradient(c, m_count, w, dy, argmax, mask, dx, scratch);
}

#include "ops/cpu/conv_weight.inc.h"
