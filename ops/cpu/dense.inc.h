// dense.inc.h - the kernels of dense layers, in the words of vector.h. Compiled once per variant.
//
// Every lane is one output: its chain is the reference's, term for term. What is free is which
// outputs share registers, and when a chain rests in memory between two runs of terms. Tiles are
// sized so that the sums of a tile, its shared operands and one broadcast fit the registers, and
// that there are enough chains (8 at least) to hide the latency of fma.
#include "ops/cpu/tiles.h"
#include "ops/op.h"

// --- trees of many sums side by side -------------------------------------------------------------

// One more leaf for each of `count` trees, after `leaves` of them; node (levels, count), count a
// multiple of V_LANES.
static inline void tree_push(uint32_t count, uint64_t leaves, const float *leaf, float *node) {
    for (uint32_t i = 0; i < count; i += V_LANES) {
        vf sum = v_load(leaf + i);
        float *at = node + i;
        for (uint64_t l = leaves; l & 1; l >>= 1, at += count) sum = v_add(v_load(at), sum);
        v_store(at, sum);
    }
}

// The roots at lanes i.. of such trees. A node without a right sibling is copied upwards.
V_INLINE vf tree_root(uint32_t count, uint64_t leaves, const float *node, uint32_t i) {
    const float *at = node + i;
    for (; !(leaves & 1); leaves >>= 1) at += count;
    vf sum = v_load(at);
    for (leaves >>= 1, at += count; leaves; leaves >>= 1, at += count) {
        if (leaves & 1) sum = v_add(v_load(at), sum);
    }
    return sum;
}

// --- zeros ---------------------------------------------------------------------------------------

// Bit i: x[0][i], .. or x[rows - 1][i] is not zero. count <= 64.
V_INLINE uint64_t terms_of_any(const float *const *x, const int rows, uint32_t count) {
    uint64_t bits = 0;
    for (uint32_t i = 0; i < count; i += V_LANES) {
        vf most = v_abs(v_load_first(x[0] + i, count - i));
        V_UNROLL for (int row = 1; row < rows; row++) {
            most = v_max(v_abs(v_load_first(x[row] + i, count - i)), most);
        }
        bits |= (uint64_t)v_bits(v_gt(most, v_zero())) << i;
    }
    return bits;
}

// A compiler's word for it would be a function of its library where there is no instruction.
static inline uint32_t count_bits(uint64_t bits) {
    uint32_t count = 0;
    for (; bits; bits &= bits - 1) count++;
    return count;
}

// --- copying, transposing ------------------------------------------------------------------------

static void copy_floats(uint64_t count, const float *src, float *dst) {
    for (; count >= V_LANES; count -= V_LANES, src += V_LANES, dst += V_LANES) {
        v_store(dst, v_load(src));
    }
    for (; count > 0; count--) *dst++ = *src++;
}

V_INLINE void transpose_square(const float *from, uint64_t stride, float *to, uint64_t to_stride) {
    vf r[V_LANES];
    v_transpose(r, from, stride);
    V_UNROLL for (int i = 0; i < V_LANES; i++, to += to_stride) v_store(to, r[i]);
}

V_NOINLINE void transpose_part(const float *from, uint64_t stride, uint32_t rows, uint32_t columns,
                               float *to, uint64_t to_stride) {
    _Alignas(64) float square[V_LANES * V_LANES];
    for (uint32_t i = 0; i < V_LANES; i++) {
        vf row = i < rows ? v_load_first(from + i * stride, columns) : v_zero();
        v_store(square + i * V_LANES, row);
    }
    transpose_square(square, V_LANES, to, to_stride);
}

// to[j][i] = from[i][j], i and j < V_LANES; +0 in place of what is past `rows` or `columns`.
V_INLINE void transpose(const float *from, uint64_t stride, uint32_t rows, uint32_t columns,
                        float *to, uint64_t to_stride) {
    if (rows >= V_LANES && columns >= V_LANES) transpose_square(from, stride, to, to_stride);
    else transpose_part(from, stride, rows, columns, to, to_stride);
}

// --- whose examples ------------------------------------------------------------------------------

// Of how many examples a kernel computes: the lane's own, or those of all lanes.
static uint32_t dense_count(const lk_lane *lane, uint32_t own) {
    if (!lane || !lane->all) return own;
    uint32_t count = 0;
    for (uint32_t i = 0; i < lane->all_count; i++) count += lane->all[i]->examples;
    return count;
}

// Where rows m .. m + count - 1 of `floats` floats begin: of a tensor of one lane at `own`, or of
// that tensor of all lanes, one lane's after another's.
static void dense_rows(const lk_lane *lane, lk_role role, const void *own, uint64_t floats,
                       uint32_t m, uint32_t count, float **rows) {
    if (!lane || !lane->all) {
        float *at = (float *)(uintptr_t)own;
        for (uint32_t i = 0; i < count; i++) rows[i] = at + (m + i) * floats;
        return;
    }
    uint32_t first = 0;  // of the lane's
    for (uint32_t i = 0; i < lane->all_count; first += lane->all[i++]->examples) {
        float *at = lane->all[i]->at[role];
        const uint32_t end = LK_MIN(first + lane->all[i]->examples, m + count);
        for (uint32_t row = LK_MAX(first, m); row < end; row++) {
            rows[row - m] = at + (row - first) * floats;
        }
    }
}

// The units or inputs that a lane computes of `all`: all of them where it is alone; otherwise whole
// pieces of `piece`, about as many as any other lane.
typedef struct dense_part {
    uint32_t first, end;
} dense_part;

static dense_part dense_part_of(const lk_lane *lane, uint32_t all, uint32_t piece) {
    if (!lane || !lane->all) return (dense_part){0, all};
    const uint64_t pieces = (all + piece - 1) / piece;
    const uint64_t first = pieces * lane->number / lane->all_count * piece;
    const uint64_t end = pieces * (lane->number + 1) / lane->all_count * piece;
    return (dense_part){(uint32_t)LK_MIN(first, all), (uint32_t)LK_MIN(end, all)};
}

// --- forward -----------------------------------------------------------------------------------

// A panel of units, a block of examples. Runs of FORWARD_TERMS rows of the panel stay in L1 while
// all tiles of examples pass over them; in between the sums rest in `sum`. A tile leaves out the
// terms that are zero in all of its examples: it finds them a run ahead, so that nothing waits.
enum {
    FORWARD_VECTORS = V_REGISTERS == 32 ? 4 : 3,
    FORWARD_PANEL = FORWARD_VECTORS * V_LANES,
    FORWARD_ROWS_MAX = 8,
    FORWARD_ROWS_MIN = 4,
    FORWARD_TERMS = V_FACTORS > 1 ? 256 : 64,
    FORWARD_PACKED_MIN = 16,  // examples whose tiles pass over a run often enough
    // Panels may go in groups: each has whole lines of weights, and is two tiles; a run of terms
    // passes over all of a group, what of it is zero is found once, and the weights, which of few
    // examples are most of what is read, come from far away in their order.
    FORWARD_GROUP_ROWS = V_REGISTERS == 32 ? 8 : 4,
    FORWARD_GROUP_VECTORS = V_REGISTERS == 32 ? 2 : 3,
    FORWARD_GROUP_PANEL = 2 * FORWARD_GROUP_VECTORS * V_LANES,
    // Inputs of 16 bits are widened for each group of panels anew: this one has as many whole
    // panels as LK_DENSE_PANEL_MAX units take.
    FORWARD_HALF_UNITS = (LK_DENSE_PANEL_MAX + FORWARD_PANEL - 1) / FORWARD_PANEL * FORWARD_PANEL,
    // Terms for which lines are fetched at once.
    FORWARD_GROUP_BATCH = V_REGISTERS == 32 || V_TERMS == 1 ? 1 : 4,
    FORWARD_ZEROS = 8,        // terms of a run that are computed though they are zero
    FORWARD_PANEL_MAX = LK_MAX((int)FORWARD_PANEL, (int)FORWARD_GROUP_PANEL),
};
_Static_assert((int)FORWARD_PANEL_MAX <= LK_DENSE_PANEL_MAX, "scratch is sized for this panel");
_Static_assert(LK_DENSE_EXAMPLES % FORWARD_ROWS_MAX == 0, "tiles fill the block of sums");
_Static_assert(LK_SLICE_TERMS % FORWARD_TERMS == 0, "a run of terms ends with its slice");
_Static_assert(V_FACTORS > 1 || (int)FORWARD_TERMS == LK_DENSE_RUN, "a bit for each term");
_Static_assert((int)FORWARD_GROUP_PANEL <= 4 * LK_LANES_MAX, "two lines a term fetch a panel");

// Of inputs of 16 bits: a run is widened for all examples.
enum { FORWARD_RUN = LK_DENSE_EXAMPLES * FORWARD_TERMS };
_Static_assert((int)FORWARD_RUN <= LK_DENSE_RUN_FLOATS, "scratch holds this run");

// What a tile prefetches of the next run of rows: the line at `at` with each of its terms; in
// groups what lies up to `step` floats from `at`, with every FORWARD_GROUP_BATCH terms.
typedef struct forward_ahead {
    const float *at;
    int64_t step;  // floats from one time to the next
    const float *end;  // in groups: here `at` goes on in the next row of the group's units
} forward_ahead;

typedef struct forward_block {
    float *const *x;  // (m_count) rows of k_count; the last repeated, to the end of its tile
    const uint16_t *x_half;  // not NULL: (m_count, k_count) of 16 bits, of which x has a run
    float *wide;             // .. (m_count, FORWARD_TERMS)
    lk_dtype dtype;
    const float *w;  // (k_count, n_count), from the first unit of the group, or of the panel
    float *packed;   // not NULL: a run of its rows side by side (FORWARD_TERMS, panel)
    float *const *y;  // not NULL: (m_count) rows of n_count, where the sums go
    uint32_t m_count, k_count, n_count;
    bool grouped;     // a group has several panels
    uint32_t unit;    // the first of this group of panels, or of a panel of it
    uint32_t units;   // of it
    uint32_t together;  // units of the group
    forward_ahead *ahead;  // in groups: how far its tiles have come
    uint32_t panel;   // units that one can have
    uint32_t panel_sums, sums;  // floats of `sum`: of a panel, of the group
    float *sum;       // (panels, m_count rounded up to FORWARD_ROWS_MAX, panel)
    float *node;      // (levels, sums)
    uint64_t *terms;  // (tiles) of a run, bit i: term i is not zero in all examples
    uint64_t any;     // .. in all examples of all tiles, or more
} forward_block;

// The panel of a group that has its unit n.
static forward_block forward_panel(const forward_block *group, uint32_t n) {
    forward_block b = *group;
    b.w += n;
    b.unit += n;
    b.units = LK_MIN(group->units - n, group->panel);
    b.sum += n / group->panel * group->panel_sums;
    b.node += n / group->panel * group->panel_sums;
    return b;
}

// The rows of a tile, from term k on.
V_INLINE void forward_rows(const forward_block *b, uint32_t m0, uint32_t k, const float **x,
                           const int rows) {
    const uint64_t from = b->x_half ? 0 : k;
    V_UNROLL for (int i = 0; i < rows; i++) {
        x[i] = b->x[m0 + (uint32_t)i] + from;
    }
}

static void forward_widen(const forward_block *b, uint32_t k) {
    float *to = b->wide;
    const uint16_t *from = b->x_half + k;
    const uint32_t terms = LK_MIN(b->k_count - k, (uint32_t)FORWARD_TERMS);
    for (uint32_t m = 0; m < b->m_count; m++, from += b->k_count, to += FORWARD_TERMS) {
        for (uint32_t i = 0; i < FORWARD_TERMS; i += 2 * LK_LANES_MAX) {  // the next run's
            __builtin_prefetch(from + FORWARD_TERMS + i);
        }
        widen(b->dtype, terms, from, to);
    }
}

// Of a whole run with few zeros all terms are taken: in a loop that counts each takes less time.
V_INLINE uint64_t forward_find(const forward_block *b, uint32_t m0, uint32_t k, const int rows) {
    const float *x[FORWARD_ROWS_MAX];
    if (k >= b->k_count) return 0;
    const uint32_t count = LK_MIN(b->k_count - k, (uint32_t)LK_DENSE_RUN);
    forward_rows(b, m0, k, x, rows);
    const uint64_t bits = terms_of_any(x, rows, count);
    return count == LK_DENSE_RUN && count_bits(~bits) <= FORWARD_ZEROS ? UINT64_MAX : bits;
}

// A run of rows that collide is laid side by side where enough tiles pass over it, by the first of
// these, or, of a panel that is not whole, before.
V_INLINE bool forward_packs(uint32_t n_count, uint32_t m_count) {
    return V_LANES >= 8 && lk_dense_rows_collide(n_count) && m_count >= FORWARD_PACKED_MIN;
}

static void forward_pack(const forward_block *b, uint32_t k0, uint32_t terms) {
    const float *from = b->w + (uint64_t)k0 * b->n_count;
    float *to = b->packed;
    for (uint32_t k = 0; k < terms; k++, from += b->n_count, to += b->panel) {
        for (uint32_t n = 0; n < b->units; n += V_LANES) {
            v_store(to + n, v_load_first(from + n, b->units - n));
        }
    }
}

// A tile prefetches one column of vectors, or one row of V_FACTORS. Every other tile of a column
// begins at its end, so that few terms suffice for all of it.
V_INLINE forward_ahead forward_ahead_of(const forward_block *b, uint32_t k, uint32_t tile,
                                        uint32_t vectors) {
    const int64_t stride = b->n_count;
    const float *next = b->w + (uint64_t)(k + FORWARD_TERMS) * b->n_count;
    if (V_FACTORS > 1) return (forward_ahead){.at = next + tile % V_FACTORS * stride};
    next += tile % vectors * V_LANES;
    if (tile / vectors % 2 == 0) return (forward_ahead){.at = next, .step = stride};
    return (forward_ahead){.at = next + (FORWARD_TERMS - 1) * stride, .step = -stride};
}

// In groups: the tiles of a run, one after the other, walk over the group's units row by row.
// A core's own prefetcher follows lines side by side, but not those of a column, of which each lies
// on another page.
static forward_ahead forward_ahead_group(const forward_block *group, uint32_t k) {
    const uint32_t tiles = (group->m_count + FORWARD_GROUP_ROWS - 1) / FORWARD_GROUP_ROWS * 2;
    const bool last = k + FORWARD_TERMS >= group->k_count;  // the next group's first run follows
    const float *row = last ? group->w + group->units
                            : group->w + (uint64_t)(k + FORWARD_TERMS) * group->n_count;
    return (forward_ahead){.at = row,
                           .step = FORWARD_GROUP_BATCH * FORWARD_GROUP_PANEL / tiles,
                           .end = row + group->units};
}

// In groups a step may be several lines long.
V_INLINE void forward_prefetch(const forward_block *b, forward_ahead *a, const bool grouped) {
    __builtin_prefetch(a->at, 0, 2);  // to the second level: the first is full
    for (int64_t i = LK_LANES_MAX; grouped && i < a->step; i += LK_LANES_MAX) {
        __builtin_prefetch(a->at + i, 0, 2);
    }
    a->at += a->step;
    if (!grouped || a->at < a->end) return;
    a->at += b->n_count - b->together;
    a->end += b->n_count;
}

// In groups: what a tile that took `taken` terms would have prefetched with the others. Other tiles
// may want what this one leaves out.
V_INLINE void forward_prefetch_rest(const forward_block *b, forward_ahead *a, uint32_t taken) {
    taken = (taken + FORWARD_GROUP_BATCH - 1) / FORWARD_GROUP_BATCH * FORWARD_GROUP_BATCH;
    for (; taken < LK_DENSE_RUN; taken += FORWARD_GROUP_BATCH) forward_prefetch(b, a, true);
}

// One term of a tile, its row of weights being at `w`; packs: `to` gets a copy of it.
V_INLINE void forward_term(const float *const *x, uint64_t k, const float *w, vm tail, float *to,
                           vf sum[FORWARD_ROWS_MAX][4], const int rows, const int vectors,
                           const bool masked, const bool packs) {
    vf row[4];
    V_UNROLL for (int v = 0; v < vectors; v++) {
        row[v] = masked && v == vectors - 1 ? v_load_mask(w + v * V_LANES, tail)
                                            : v_load(w + v * V_LANES);
        V_PIN(row[v]);
        if (packs) v_store(to + v * V_LANES, row[v]);
    }
    V_UNROLL for (int i = 0; i < rows; i++) {
        vf value = v_set1(x[i][k]);
        if (vectors > 1) V_PIN(value);
        V_UNROLL for (int v = 0; v < vectors; v++) V_ADD_PRODUCT(sum[i][v], row[v], value);
    }
}

// All LK_DENSE_RUN terms of a run.
V_INLINE void forward_whole_run(const forward_block *b, const float *const *x, const float *w,
                                uint64_t apart, vm tail, float *to, vf sum[FORWARD_ROWS_MAX][4],
                                forward_ahead *ahead, const int rows, const int vectors,
                                const bool masked, const bool grouped, const bool packs) {
    const uint64_t panel = grouped ? FORWARD_GROUP_PANEL : FORWARD_PANEL;
    const uint64_t batch = grouped ? FORWARD_GROUP_BATCH : 1;
    for (uint64_t k = 0; k < LK_DENSE_RUN; k += batch) {
        forward_prefetch(b, ahead, grouped);
        V_UNROLL for (uint64_t i = 0; i < batch; i++, w += apart) {
            forward_term(x, k + i, w, tail, packs ? to + (k + i) * panel : NULL, sum, rows,
                         vectors, masked, packs);
        }
    }
}

// Terms k0 .. k0 + terms - 1 of examples m0 .. m0 + rows - 1: all units of the panel, or `part` of
// `parts` of them.
V_INLINE void forward_tile(const forward_block *b, uint32_t m0, uint32_t k0, uint32_t terms,
                           const int rows, const int vectors, const bool masked, const int part,
                           const int parts, const bool packs) {
    const vm tail = v_first(masked ? b->units % V_LANES : V_LANES);
    const uint64_t panel = parts > 1 ? (int)FORWARD_GROUP_PANEL : (int)FORWARD_PANEL;
    const uint64_t stride = b->n_count, apart = b->packed && !packs ? panel : stride;
    const uint32_t tile = m0 / (uint32_t)rows;
    const float *x[FORWARD_ROWS_MAX], *first = b->w + k0 * stride;
    const float *w = (b->packed && !packs ? b->packed : first) + part * vectors * V_LANES;
    float *to = packs ? b->packed + part * vectors * V_LANES : NULL;
    float *rest = b->sum + m0 * panel + part * vectors * V_LANES;
    forward_ahead ahead =
        parts > 1 ? *b->ahead : forward_ahead_of(b, k0, tile, (uint32_t)vectors);
    vf sum[FORWARD_ROWS_MAX][4];
    forward_rows(b, m0, k0, x, rows);
    V_UNROLL for (int i = 0; i < rows; i++) {
        V_UNROLL for (int v = 0; v < vectors; v++) {
            sum[i][v] = v_load(rest + (uint64_t)i * panel + v * V_LANES);
        }
    }
    uint32_t k = 0, taken = 0;
    for (; V_FACTORS > 1 && k + V_FACTORS <= terms; k += V_FACTORS) {
        vf value[FORWARD_ROWS_MAX];
        V_UNROLL for (int i = 0; i < rows; i++) value[i] = v_load(x[i] + k);
        __builtin_prefetch(ahead.at + k * stride);
        V_UNROLL for (int j = 0; j < V_FACTORS; j++, w += stride) {
            vf row[4];
            V_FORGET(w);  // vectors are loaded in pairs from one address
            V_UNROLL for (int v = 0; v < vectors; v++) {
                row[v] = masked && v == vectors - 1 ? v_load_mask(w + v * V_LANES, tail)
                                                    : v_load(w + v * V_LANES);
            }
            V_UNROLL for (int i = 0; i < rows; i++) {
                V_UNROLL for (int v = 0; v < vectors; v++) {
                    sum[i][v] = v_fma_lane(value[i], j, row[v], sum[i][v]);
                }
            }
        }
    }
    const bool finds = V_FACTORS == 1 && parts == 1 && !b->x_half;
    if (finds && k0 == 0) b->terms[tile] = forward_find(b, m0, 0, rows);
    uint64_t some = V_FACTORS > 1 ? (1u << (terms - k)) - 1 : packs ? b->any : b->terms[tile];
    if (V_FACTORS == 1 && some == UINT64_MAX) {  // as a loop that counts they take less time
        forward_whole_run(b, x, w, apart, tail, to, sum, &ahead, rows, vectors, masked, parts > 1,
                          packs);
        taken = LK_DENSE_RUN;
        some = 0;
    }
    for (; some; some &= some - 1) {
        const uint64_t i = (uint64_t)__builtin_ctzll(some);
        if (parts == 1 || taken++ % FORWARD_GROUP_BATCH == 0) {
            forward_prefetch(b, &ahead, parts > 1);
        }
        forward_term(x, k + i, w + i * apart, tail, packs ? to + i * panel : NULL, sum, rows,
                     vectors, masked, packs);
    }
    if (parts > 1) forward_prefetch_rest(b, &ahead, taken);
    V_UNROLL for (int i = 0; i < rows; i++) {
        V_UNROLL for (int v = 0; v < vectors; v++) {
            v_store(rest + (uint64_t)i * panel + v * V_LANES, sum[i][v]);
        }
    }
    if (parts > 1) *b->ahead = ahead;
    if (finds) b->terms[tile] = forward_find(b, m0, k0 + terms, rows);
}

// Functions of their own: a tile needs all registers.
#define FORWARD_TILE(name, rows, vectors, masked)                                          \
    V_NOINLINE void name(const forward_block *b, uint32_t m, uint32_t k, uint32_t terms) { \
        forward_tile(b, m, k, terms, rows, vectors, masked, 0, 1, false);                  \
    }
enum { FORWARD_PAIR_ROWS = V_REGISTERS == 32 ? 8 : 4 };
FORWARD_TILE(forward_1, 8, 1, false)
FORWARD_TILE(forward_1_masked, 8, 1, true)
FORWARD_TILE(forward_2, FORWARD_PAIR_ROWS, 2, false)
FORWARD_TILE(forward_2_masked, FORWARD_PAIR_ROWS, 2, true)
FORWARD_TILE(forward_3, 4, 3, false)
FORWARD_TILE(forward_3_masked, 4, 3, true)
FORWARD_TILE(forward_4, 4, FORWARD_VECTORS, false)
FORWARD_TILE(forward_4_masked, 4, FORWARD_VECTORS, true)
#undef FORWARD_TILE

V_NOINLINE void forward_panel_packing(const forward_block *b, uint32_t m, uint32_t k,
                                      uint32_t terms) {
    forward_tile(b, m, k, terms, 4, FORWARD_VECTORS, false, 0, 1, true);
}

#define FORWARD_HALF(name, part, packs)                                                        \
    V_NOINLINE void name(const forward_block *b, uint32_t m, uint32_t k, uint32_t terms) {     \
        forward_tile(b, m, k, terms, FORWARD_GROUP_ROWS, FORWARD_GROUP_VECTORS, false, part,   \
                     2, packs);                                                                \
    }
FORWARD_HALF(forward_half, 0, false)
FORWARD_HALF(forward_half_packing, 0, true)
FORWARD_HALF(forward_other_half, 1, false)
FORWARD_HALF(forward_other_half_packing, 1, true)
#undef FORWARD_HALF
static void forward_halves(const forward_block *b, uint32_t m, uint32_t k, uint32_t terms) {
    if (b->terms[m / FORWARD_GROUP_ROWS] == 0) {  // as of frames behind a sequence's end
        forward_prefetch_rest(b, b->ahead, 0);
        forward_prefetch_rest(b, b->ahead, 0);
        return;
    }
    forward_half(b, m, k, terms);
    forward_other_half(b, m, k, terms);
}
static void forward_halves_packing(const forward_block *b, uint32_t m, uint32_t k,
                                   uint32_t terms) {
    forward_half_packing(b, m, k, terms);
    forward_other_half_packing(b, m, k, terms);
}

// What the last run of a tile finishes is about to be written, and another core may hold it.
static void forward_fetch(const forward_block *b, uint32_t m, uint32_t end) {
    for (; m < end; m++) {
        const float *y = b->y[m] + b->unit;
        for (uint32_t n = 0; n < b->units; n += LK_LANES_MAX) v_fetch_to_write(y + n);
    }
}

// Where it was measured, with few registers and vectors of eight, groups pay for all examples, but
// not where there is no whole run. Nor where many inputs of 16 bits make few units: not with 3136 x
// 512 behind a convolution, but with 784 x 320 to 784 x 2048, 2048 x 2048 and 3136 x 1024.
V_INLINE bool forward_is_grouped(const lk_dense *d, bool x_half, uint32_t m_count,
                                 uint32_t units) {
    const bool narrows = x_half && d->k_count > 2048 && d->n_count <= 512;
    const bool pays = d->k_count >= LK_DENSE_RUN && !narrows;
    const bool all = V_REGISTERS == 16 && V_LANES == 8 && pays;
    const uint32_t most = all ? LK_DENSE_EXAMPLES : lk_dense_few(d->k_count, d->n_count);
    return V_FACTORS == 1 && m_count <= most && units >= FORWARD_GROUP_PANEL;
}

// The terms of all tiles of a run that are not zero, where no tile has found them a run ahead.
static void forward_find_all(const forward_block *b, uint32_t k, uint32_t rows) {
    for (uint32_t m = 0; m < b->m_count; m += rows) {
        b->terms[m / rows] = rows == FORWARD_ROWS_MAX ? forward_find(b, m, k, FORWARD_ROWS_MAX)
                                                  : forward_find(b, m, k, FORWARD_ROWS_MIN);
    }
}

// The most units of a group whose inputs have 16 bits. Where its panels have more units than
// LK_DENSE_PANEL_MAX, sums reach into the part of LK_DENSE_RUN_FLOATS that the run leaves free.
static uint32_t forward_half_units(const lk_dense *d) {
    const uint64_t beyond = (uint64_t)(FORWARD_HALF_UNITS - LK_DENSE_PANEL_MAX) * LK_DENSE_EXAMPLES;
    const uint64_t levels = lk_tree_levels(lk_slices(d->k_count));
    const bool fits = beyond * (1 + levels) <= LK_DENSE_RUN_FLOATS - FORWARD_RUN;
    return fits ? FORWARD_HALF_UNITS : FORWARD_PANEL;
}

// The terms of a run that any tile takes; more, where that is not known before.
static uint64_t forward_any(const forward_block *b, uint32_t k, uint32_t terms, uint32_t rows) {
    uint64_t any = 0;
    if (!b->grouped && !b->x_half && k == 0) {
        return terms == 64 ? UINT64_MAX : (1ull << terms) - 1;
    }
    for (uint32_t m = 0; m < b->m_count; m += rows) any |= b->terms[m / rows];
    return any;
}

// A run of terms passes over one panel.
static void forward_pass(forward_block *b, uint32_t k, uint32_t terms) {
    static const struct {
        void (*run)(const forward_block *b, uint32_t m, uint32_t k, uint32_t terms);
        uint32_t rows;
    } tiles[8] = {
        {forward_1, 8},
        {forward_1_masked, 8},
        {forward_2, FORWARD_PAIR_ROWS},
        {forward_2_masked, FORWARD_PAIR_ROWS},
        {forward_3, 4},
        {forward_3_masked, 4},
        {forward_4, 4},
        {forward_4_masked, 4},
    };
    uint32_t kind = (b->units + V_LANES - 1) / V_LANES * 2 - 2 + (b->units % V_LANES != 0);
    uint32_t rows = b->grouped ? FORWARD_GROUP_ROWS : tiles[kind].rows;
    const bool packs = b->packed && b->units == b->panel;
    if (V_FACTORS == 1 && b->x_half && !b->grouped) forward_find_all(b, k, rows);
    if (packs) b->any = forward_any(b, k, terms, rows);
    if (b->packed && !packs) forward_pack(b, k, terms);
    const bool last = b->y && k + terms == b->k_count;
    for (uint32_t m = 0; m < b->m_count; m += rows) {
        if (last) forward_fetch(b, m, LK_MIN(m + rows, b->m_count));
        if (b->grouped) (packs && m == 0 ? forward_halves_packing : forward_halves)(b, m, k, terms);
        else (packs && m == 0 ? forward_panel_packing : tiles[kind].run)(b, m, k, terms);
    }
}

static void forward_run(const forward_block *group, uint32_t k, uint32_t terms) {
    if (group->x_half) forward_widen(group, k);
    if (group->grouped) forward_find_all(group, k, FORWARD_GROUP_ROWS);
    if (group->grouped) *group->ahead = forward_ahead_group(group, k);
    for (uint32_t n = 0; n < group->units; n += group->panel) {
        forward_block b = forward_panel(group, n);
        forward_pass(&b, k, terms);
    }
}

// All sums of a panel start from the bias, or from +0.
static void forward_start(const forward_block *b, const float *bias) {
    for (uint32_t n = 0; n < b->units; n += V_LANES) {
        vf start = bias ? v_load_first(bias + n, b->units - n) : v_zero();
        for (uint32_t i = n; i < b->panel_sums; i += b->panel) v_store(b->sum + i, start);
    }
}

static vf forward_finish_half(const forward_block *b, uint64_t slices, const lk_narrow *how,
                              uint64_t at, uint16_t *y, vf bad) {
    _Alignas(64) float row[FORWARD_PANEL_MAX];
    for (uint32_t m = 0; m < b->m_count; m++, at += b->n_count) {
        const lk_narrow here = {how->dtype, how->rule, how->mask ? how->mask + at : NULL};
        for (uint32_t n = 0; n < b->units; n += V_LANES) {
            const vf sum = tree_root(b->sums, slices, b->node, m * b->panel + n);
            v_store(row + n, v_add(sum, v_zero()));
        }
        if (narrow(&here, b->units, row, y + at)) bad = v_set1(__builtin_nanf(""));
    }
    return bad;
}

static vf forward_finish(const forward_block *b, uint64_t slices, bool relu, vf bad) {
    for (uint32_t m = 0; m < b->m_count; m++) {
        float *y = b->y[m] + b->unit;
        for (uint32_t n = 0; n < b->units; n += V_LANES) {
            vf sum = tree_root(b->sums, slices, b->node, m * b->panel + n);
            sum = v_add(sum, v_zero());
            bad = v_note(bad, sum);
            v_store_first(y + n, b->units - n, relu ? v_relu(sum) : sum);
        }
    }
    return bad;
}

// The sums of one group, slice by slice.
static uint64_t forward_slices(const forward_block *group, const float *bias) {
    uint64_t slices = 0;
    for (uint32_t k = 0; k < group->k_count; slices++) {
        uint32_t end = LK_MIN(group->k_count - k, (uint32_t)LK_SLICE_TERMS) + k;
        for (uint32_t n = 0; n < group->units; n += group->panel) {
            const forward_block b = forward_panel(group, n);
            forward_start(&b, slices == 0 && bias ? bias + n : NULL);
        }
        for (; k < end; k += LK_MIN(end - k, (uint32_t)FORWARD_TERMS)) {
            forward_run(group, k, LK_MIN(end - k, (uint32_t)FORWARD_TERMS));
        }
        tree_push(group->sums, slices, group->sum, group->node);
    }
    return slices;
}

// All of a group. Where y has 16 bits, its first value is at `at`.
static vf forward_group(const forward_block *group, bool relu, const lk_half *half,
                        const float *bias, uint16_t *y, uint64_t at, vf bad) {
    const uint64_t slices = forward_slices(group, bias);
    for (uint32_t n = 0; n < group->units; n += group->panel) {
        const forward_block b = forward_panel(group, n);
        if (b.y) bad = forward_finish(&b, slices, relu, bad);
        else bad = forward_finish_half(&b, slices, &half->out, at + n, y, bad);
    }
    return bad;
}

// Units first .. Not NULL, `lane` says what of x and y has 16 bits, or which part of the units of
// all lanes' examples this is.
static uint32_t dense_forward_from(const lk_dense *d, const lk_lane *lane, uint32_t first,
                                   uint32_t m_count, const void *x, const float *w,
                                   const float *bias, void *y, float *scratch) {
    const lk_half *half = lane ? lane->half : NULL;
    const bool x_half = half && half->x, y_half = half && half->out.dtype != LK_F32;
    const dense_part part = dense_part_of(lane, d->n_count, FORWARD_GROUP_PANEL);
    const uint32_t all = dense_count(lane, m_count);
    const uint32_t room = (uint32_t)lk_dense_sums(d->k_count, d->n_count, all);
    vf bad = v_zero();
    uint64_t terms[LK_DENSE_EXAMPLES / FORWARD_ROWS_MIN];
    float *x_rows[LK_DENSE_EXAMPLES], *y_rows[LK_DENSE_EXAMPLES];
    forward_ahead ahead;
    _Alignas(64) float packed[V_LANES >= 8 ? FORWARD_TERMS * FORWARD_PANEL_MAX : 1];
    for (uint32_t m = 0; m < all; m += LK_DENSE_EXAMPLES) {
        uint32_t examples = LK_MIN(all - m, (uint32_t)LK_DENSE_EXAMPLES);
        float *sum = scratch + (x_half ? FORWARD_RUN : 0);
        if (x_half) dense_rows(NULL, LK_X, scratch, FORWARD_TERMS, 0, examples, x_rows);
        else dense_rows(lane, LK_X, x, d->k_count, m, examples, x_rows);
        for (uint32_t i = examples; i % FORWARD_ROWS_MAX != 0; i++) x_rows[i] = x_rows[i - 1];
        if (!y_half) dense_rows(lane, LK_Y, y, d->n_count, m, examples, y_rows);
        for (uint32_t n = first + part.first, units; n < part.end; n += units) {
            const bool grouped = forward_is_grouped(d, x_half, examples, part.end - n);
            const uint32_t panel = grouped ? FORWARD_GROUP_PANEL : FORWARD_PANEL;
            const uint32_t of_panel = (uint32_t)lk_round_up(examples, FORWARD_ROWS_MAX) * panel;
            const uint32_t most = grouped  ? room / of_panel * panel
                                  : x_half ? forward_half_units(d)
                                           : panel;
            units = LK_MIN(part.end - n, most);
            if (grouped) units -= units % panel;
            const uint32_t sums = (units + panel - 1) / panel * of_panel;
            const forward_block group = {
                .x = x_rows,
                .x_half = x_half ? (const uint16_t *)x + (uint64_t)m * d->k_count : NULL,
                .wide = scratch,
                .dtype = half ? half->dtype : LK_F32,
                .w = w + n,
                .packed = forward_packs(d->n_count, examples) ? packed : NULL,
                .y = y_half ? NULL : y_rows,
                .m_count = examples,
                .k_count = d->k_count,
                .n_count = d->n_count,
                .grouped = grouped,
                .unit = n,
                .units = units,
                .together = units,
                .ahead = &ahead,
                .panel = panel,
                .panel_sums = of_panel,
                .sums = sums,
                .sum = sum,
                .node = sum + sums,
                .terms = terms,
            };
            bad = forward_group(&group, d->relu, half, bias ? bias + n : NULL, y,
                                (uint64_t)m * d->n_count + n, bad);
        }
    }
    return v_noted(bad);
}

static uint32_t dense_forward(const lk_dense *d, uint32_t m_count, const float *x, const float *w,
                              const float *bias, float *y, float *scratch) {
    return dense_forward_from(d, NULL, 0, m_count, x, w, bias, y, scratch);
}

// --- input gradient ------------------------------------------------------------------------------

// Two ways, and both leave out zero terms, as ReLU leaves many in dy. Broad: lanes are examples; a
// unit costs nothing where no example of the block has a gradient of it. Deep: lanes are inputs; a
// single gradient that is zero costs nothing, but the weights must be transposed.
enum {
    INPUT_TERMS = LK_DENSE_RUN,  // units whose zeros are known by a bit each
    INPUT_PART = 48,             // inputs of a part are a multiple of this
    INPUT_ZEROS = FORWARD_ZEROS,
};
_Static_assert(LK_SLICE_TERMS % INPUT_TERMS == 0, "a run of terms ends with its slice");

typedef struct input_block {
    const float *w;     // (k_count, n_count)
    const float *dy;    // (m_count, n_count)
    float *const *mask;  // (m_count) rows of k_count, or NULL
    float *const *dx;    // (m_count) rows of k_count
    const lk_narrow *how;  // not NULL: how dx is stored in 16 bits,
    uint16_t *dx_half;     // .. which lies here,
    uint64_t at;           // .. from which value on
    uint32_t m_count, k_count, n_count;
    dense_part part;    // the inputs
    uint32_t runs;      // of INPUT_TERMS units, the last may be shorter
    uint64_t *terms;    // (m_count, runs), bit i: term i of the run is not zero
    uint64_t *live;     // (runs), the same of any example
    float *transposed;  // broad: (panels, n_count rounded up to V_LANES, BROAD_LANES), of dy
                        // deep: (INPUT_TERMS, DEEP_PANEL), of a panel of w
    float *node;        // broad: (levels, BROAD_ROWS, BROAD_LANES)
} input_block;

// How many terms are not zero, and how many would be if all examples had the zeros in common only.
static void input_find_terms(const input_block *b, uint64_t *some, uint64_t *any) {
    uint64_t *terms = b->terms;
    *some = *any = 0;
    for (uint32_t run = 0; run < b->runs; run++) b->live[run] = 0;
    for (uint32_t m = 0; m < b->m_count; m++) {
        const float *dy = b->dy + (uint64_t)m * b->n_count;
        for (uint32_t run = 0; run < b->runs; run++, terms++, dy += INPUT_TERMS) {
            *terms =
                terms_of_any(&dy, 1, LK_MIN(b->n_count - run * INPUT_TERMS, (uint32_t)INPUT_TERMS));
            b->live[run] |= *terms;
            *some += count_bits(*terms);
        }
    }
    for (uint32_t run = 0; run < b->runs; run++) *any += b->m_count * count_bits(b->live[run]);
    for (uint32_t run = 0; run < b->n_count / INPUT_TERMS; run++) {
        if (count_bits(~b->live[run]) <= INPUT_ZEROS) b->live[run] = UINT64_MAX;
    }
}

// --- broad: dy is transposed once per block of examples, weights are read as they lie and
// broadcast, and a stage of finished sums is transposed back into rows of dx.
enum {
    BROAD_VECTORS = 2,
    BROAD_LANES = BROAD_VECTORS * V_LANES,
    BROAD_ROWS = V_FACTORS > 1 ? 12 : V_REGISTERS == 32 ? 8 : 6,
    BROAD_STAGE = INPUT_PART,
};
_Static_assert((int)BROAD_ROWS <= LK_DENSE_INPUTS_MAX, "scratch is sized for this tile");
_Static_assert(BROAD_STAGE % BROAD_ROWS == 0 && BROAD_STAGE % V_LANES == 0, "a stage is whole");

static void broad_transpose(const input_block *b) {
    uint64_t panel_floats = lk_round_up(b->n_count, V_LANES) * BROAD_LANES;
    for (uint32_t m = 0; m < lk_round_up(b->m_count, BROAD_LANES); m += V_LANES) {
        float *out = b->transposed + m / BROAD_LANES * panel_floats + m % BROAD_LANES;
        const float *dy = b->dy + (uint64_t)m * b->n_count;
        uint32_t rows = b->m_count > m ? b->m_count - m : 0;
        for (uint32_t n = 0; n < b->n_count; n += V_LANES) {
            transpose(dy + n, b->n_count, rows, b->n_count - n, out + n * BROAD_LANES, BROAD_LANES);
        }
    }
}

// One unit's terms of a tile.
V_INLINE void broad_term(const float *const *w, uint64_t unit, const float *dy,
                         vf sum[BROAD_ROWS][BROAD_VECTORS], const int vectors) {
    vf row[BROAD_VECTORS];
    V_UNROLL for (int v = 0; v < vectors; v++) {
        row[v] = v_load(dy + v * V_LANES);
        V_PIN(row[v]);
    }
    V_UNROLL for (int i = 0; i < BROAD_ROWS; i++) {
        vf value = v_set1(w[i][unit]);
        if (vectors > 1) V_PIN(value);
        V_UNROLL for (int v = 0; v < vectors; v++) V_ADD_PRODUCT(sum[i][v], row[v], value);
    }
}

// Finished sums, without + 0.0f, of inputs k .. k + BROAD_ROWS - 1 for the examples of a panel, to
// stage (BROAD_ROWS, BROAD_LANES). Rows past the end repeat the last one.
V_INLINE void broad_tile(const input_block *b, const float *transposed, uint32_t k, float *stage,
                         const int vectors) {
    const float *w[BROAD_ROWS];
    V_UNROLL for (int i = 0; i < BROAD_ROWS; i++) {
        w[i] = b->w + (uint64_t)LK_MIN(k + (uint32_t)i, b->part.end - 1) * b->n_count;
    }
    uint64_t slices = 0;
    for (uint32_t n = 0; n < b->n_count; slices++) {
        vf sum[BROAD_ROWS][BROAD_VECTORS];
        V_UNROLL for (int i = 0; i < BROAD_ROWS; i++) {
            V_UNROLL for (int v = 0; v < vectors; v++) sum[i][v] = v_zero();
        }
        uint32_t end = LK_MIN(b->n_count - n, (uint32_t)LK_SLICE_TERMS) + n;
        for (; n < end; n += INPUT_TERMS) {
            uint64_t units = b->live[n / INPUT_TERMS];
            if (units == UINT64_MAX) {  // as a loop that counts they take less time
                const float *dy = transposed + (uint64_t)n * BROAD_LANES;
                const float *dy_end = dy + INPUT_TERMS * BROAD_LANES;
                for (uint64_t unit = n; dy < dy_end; unit += 2, dy += 2 * BROAD_LANES) {
                    broad_term(w, unit, dy, sum, vectors);
                    broad_term(w, unit + 1, dy + BROAD_LANES, sum, vectors);
                }
                continue;
            }
            for (; units; units &= units - 1) {
                const uint64_t unit = n + (uint64_t)__builtin_ctzll(units);
                broad_term(w, unit, transposed + unit * BROAD_LANES, sum, vectors);
            }
        }
        V_UNROLL for (int i = 0; i < BROAD_ROWS; i++) {
            V_UNROLL for (int v = 0; v < vectors; v++) {
                v_store(stage + i * BROAD_LANES + v * V_LANES, sum[i][v]);
            }
        }
        if (b->n_count <= LK_SLICE_TERMS) continue;
        tree_push(BROAD_ROWS * BROAD_LANES, slices, stage, b->node);
    }
    for (uint32_t i = 0; slices > 1 && i < BROAD_ROWS * BROAD_LANES; i += V_LANES) {
        v_store(stage + i, tree_root(BROAD_ROWS * BROAD_LANES, slices, b->node, i));
    }
}

// Functions of their own: a tile needs all registers.
V_NOINLINE void broad_tile_narrow(const input_block *b, const float *transposed, uint32_t k,
                                  float *stage) {
    broad_tile(b, transposed, k, stage, 1);
}
V_NOINLINE void broad_tile_wide(const input_block *b, const float *transposed, uint32_t k,
                                float *stage) {
    broad_tile(b, transposed, k, stage, BROAD_VECTORS);
}

// The same of 16 bits: `rows` examples of `columns` inputs, from value `at` on.
V_NOINLINE vf input_put_square(const input_block *b, const vf *r, uint32_t rows, uint64_t at,
                               uint32_t columns, vf bad) {
    for (uint32_t i = 0; i < rows; i++, at += b->k_count) {
        bad = half_put(b->how, b->at + at, columns, v_add(r[i], v_zero()), b->dx_half, bad);
    }
    return bad;
}

// Finishes and stores staged inputs k .. of the examples m ..: a square of V_LANES of each, or, not
// `whole`, as many as there are.
V_INLINE vf broad_square(const input_block *b, const float *stage, uint32_t m, uint32_t k, vf bad,
                         const bool whole) {
    uint32_t rows = whole ? V_LANES : LK_MIN(b->m_count - m, (uint32_t)V_LANES);
    uint32_t columns = whole ? V_LANES : LK_MIN(b->part.end - k, (uint32_t)V_LANES);
    vf r[V_LANES];
    v_transpose(r, stage, BROAD_LANES);
    if (b->how) {
        return input_put_square(b, r, rows, (uint64_t)m * b->k_count + k, columns, bad);
    }
    V_UNROLL for (uint32_t i = 0; i < V_LANES; i++) {
        if (i < rows) {
            vf sum = v_add(r[i], v_zero());
            bad = v_note(bad, sum);
            if (b->mask) {
                sum = v_keep(v_gt(v_load_first(b->mask[m + i] + k, columns), v_zero()), sum);
            }
            v_store_first(b->dx[m + i] + k, columns, sum);
        }
    }
    return bad;
}

static vf broad_store(const input_block *b, const float *stage, uint32_t m, uint32_t k, vf bad) {
    uint32_t end = LK_MIN(b->part.end - k, (uint32_t)BROAD_STAGE) + k;
    for (; k < end; k += V_LANES, stage += V_LANES * BROAD_LANES) {
        bool whole = b->m_count - m >= V_LANES && end - k >= V_LANES;
        bad = whole ? broad_square(b, stage, m, k, bad, true)
                    : broad_square(b, stage, m, k, bad, false);
    }
    return bad;
}

static vf broad_stage(const input_block *b, uint32_t m, uint32_t k, vf bad) {
    _Alignas(64) float stage[BROAD_STAGE * BROAD_LANES];
    const float *transposed = b->transposed + m * lk_round_up(b->n_count, V_LANES);
    bool narrow = b->m_count - m <= V_LANES;
    for (uint32_t i = 0; i < BROAD_STAGE; i += BROAD_ROWS) {
        float *tile = stage + i * BROAD_LANES;
        if (k + i >= b->part.end) memset(tile, 0, BROAD_ROWS * BROAD_LANES * sizeof *tile);
        else if (narrow) broad_tile_narrow(b, transposed, k + i, tile);
        else broad_tile_wide(b, transposed, k + i, tile);
    }
    bad = broad_store(b, stage, m, k, bad);
    return narrow ? bad : broad_store(b, stage + V_LANES, m + V_LANES, k, bad);
}

// Where the last of its pieces of `piece` inputs ends.
static uint64_t input_end(const input_block *b, uint32_t piece) {
    return b->part.first + lk_round_up(b->part.end - b->part.first, piece);
}

static vf input_broad(const input_block *b, vf bad) {
    broad_transpose(b);
    // Back to front: the rows of w that the forward pass read last are still in the cache.
    for (uint64_t k = input_end(b, BROAD_STAGE); k > b->part.first;) {
        k -= BROAD_STAGE;
        for (uint32_t m = 0; m < b->m_count; m += BROAD_LANES) {
            bad = broad_stage(b, m, (uint32_t)k, bad);
        }
    }
    return bad;
}

// --- deep: a panel of inputs is transposed into L1, where it serves all examples of a block: to
// each gradient that is not zero belongs one row of it. Only where the units are one run: panels of
// more do not fit the L1, and then this way is not faster.
enum {
    DEEP_VECTORS = 8,
    DEEP_PANEL = DEEP_VECTORS * V_LANES,
};
_Static_assert((int)DEEP_PANEL <= LK_DENSE_DEEP_MAX, "scratch is sized for this panel");

// Rows k .. k + lanes - 1 of w.
static void deep_transpose(const input_block *b, uint32_t k, uint32_t lanes) {
    for (uint32_t lane = 0; lane < lanes; lane += V_LANES) {
        const float *w = b->w + (uint64_t)(k + lane) * b->n_count;
        uint32_t rows = b->part.end > k + lane ? b->part.end - k - lane : 0;
        for (uint32_t n = 0; n < b->n_count; n += V_LANES) {
            float *out = b->transposed + n * DEEP_PANEL + lane;
            transpose(w + n, b->n_count, rows, b->n_count - n, out, DEEP_PANEL);
        }
    }
}

typedef vf deep_sums[DEEP_VECTORS];

// Finishes the sums of whole vectors of inputs, and stores them as 16 bits.
V_INLINE vf deep_put(const bool f16, const lk_narrow_rule rule, const uint16_t *mask, uint16_t *dx,
                     const deep_sums sum, vf bad, const int vectors) {
    half_look look = half_look_start();
    V_UNROLL for (int v = 0; v < vectors; v++) {
        const vf finished = v_add(sum[v], v_zero());
        half_look_at(&look, finished);
        narrow_store(f16, rule, rule == LK_NARROW_MASK ? mask + v * V_LANES : NULL, V_LANES,
                     finished, dx + v * V_LANES);
    }
    return half_looked(f16, rule, &look) ? v_note(bad, v_set1(__builtin_inff())) : bad;
}

// The same of `count` inputs at most; value `at` is the first.
V_INLINE vf deep_finish_half(const input_block *b, uint64_t at, uint32_t count, const deep_sums sum,
                             vf bad, const int vectors) {
    const lk_narrow *how = b->how;
    const bool f16 = how->dtype == LK_F16;
    const uint16_t *mask = how->rule == LK_NARROW_MASK ? how->mask + b->at + at : NULL;
    uint16_t *dx = b->dx_half + b->at + at;
    if (count >= (uint32_t)(vectors * V_LANES)) {
        if (f16 && mask) return deep_put(true, LK_NARROW_MASK, mask, dx, sum, bad, vectors);
        if (mask) return deep_put(false, LK_NARROW_MASK, mask, dx, sum, bad, vectors);
        if (f16) return deep_put(true, LK_NARROW, NULL, dx, sum, bad, vectors);
        return deep_put(false, LK_NARROW, NULL, dx, sum, bad, vectors);
    }
    for (uint32_t v = 0; v * V_LANES < count; v++) {
        const vf finished = v_add(sum[v], v_zero());
        bad = half_put(how, b->at + at + v * V_LANES, count - v * V_LANES, finished, b->dx_half,
                       bad);
    }
    return bad;
}

// Finishes, masks and stores the sums of inputs k .. of example m.
V_INLINE vf deep_finish(const input_block *b, uint32_t m, uint32_t k, const deep_sums sum, vf bad,
                        const int vectors) {
    const uint32_t count = b->part.end - k;
    if (b->how) {
        return deep_finish_half(b, (uint64_t)m * b->k_count + k, count, sum, bad, vectors);
    }
    const float *mask = b->mask ? b->mask[m] + k : NULL;
    float *dx = b->dx[m] + k;
    V_UNROLL for (uint32_t v = 0; v < (uint32_t)vectors; v++) {
        if (count <= v * V_LANES) break;
        uint32_t lanes = count - v * V_LANES;
        vf finished = v_add(sum[v], v_zero());
        bad = v_note(bad, finished);
        if (mask) {
            finished = v_keep(v_gt(v_load_first(mask + v * V_LANES, lanes), v_zero()), finished);
        }
        v_store_first(dx + v * V_LANES, lanes, finished);
    }
    return bad;
}

V_INLINE vf deep_inputs(const input_block *b, uint32_t k, vf bad, const int vectors) {
    deep_transpose(b, k, vectors * V_LANES);
    for (uint32_t m = 0; m < b->m_count; m++) {
        deep_sums sum;
        V_UNROLL for (int v = 0; v < vectors; v++) sum[v] = v_zero();
        for (uint64_t terms = b->terms[m]; terms; terms &= terms - 1) {
            uint32_t n = (uint32_t)__builtin_ctzll(terms);
            const float *w = b->transposed + n * DEEP_PANEL;
            vf value = v_set1(b->dy[m * b->n_count + n]);
            V_UNROLL for (int v = 0; v < vectors; v++) {
                sum[v] = v_fma(v_load(w + v * V_LANES), value, sum[v]);
            }
        }
        bad = deep_finish(b, m, k, sum, bad, vectors);
    }
    return bad;
}

static vf deep_panel(const input_block *b, uint32_t k, vf bad) {
    uint32_t vectors = (LK_MIN(b->part.end - k, (uint32_t)DEEP_PANEL) + V_LANES - 1) / V_LANES;
    if (vectors > 4) return deep_inputs(b, k, bad, DEEP_VECTORS);
    return vectors > 2 ? deep_inputs(b, k, bad, 4) : deep_inputs(b, k, bad, 2);
}

// Whether that is faster, as measured with AVX-512, in tenths of a term's time: a term takes a bit
// longer, and a panel's transposing as long as 14 examples; no dx has to be transposed.
static bool input_deep_pays(const input_block *b, uint64_t some, uint64_t any) {
    if (b->runs > 1) return false;
    return 12 * some + 140ull * b->n_count < 10 * any + 3ull * b->m_count * b->n_count;
}

static vf input_deep(const input_block *b, vf bad) {
    for (uint64_t k = input_end(b, DEEP_PANEL); k > b->part.first;) {
        k -= DEEP_PANEL;
        bad = deep_panel(b, (uint32_t)k, bad);
    }
    return bad;
}

// dy of examples m .. m + count - 1 side by side: where it lies, or, widened or from all lanes, in
// `wide`.
static const float *input_dy(const lk_dense *d, const lk_lane *lane, const void *dy, uint32_t m,
                             uint32_t count, float *wide) {
    const uint64_t at = (uint64_t)m * d->n_count;
    if (lane && lane->half && lane->half->dy) {
        widen(lane->half->dtype, count * d->n_count, (const uint16_t *)dy + at, wide);
        return wide;
    }
    if (!lane || !lane->all) return (const float *)dy + at;
    float *rows[LK_DENSE_EXAMPLES];
    dense_rows(lane, LK_DY, dy, d->n_count, m, count, rows);
    for (uint32_t i = 0; i < count; i++) {
        memcpy(wide + (uint64_t)i * d->n_count, rows[i], d->n_count * sizeof *wide);
    }
    return wide;
}

// Not NULL, `lane` says what of dy and dx has 16 bits, or which part of the inputs of all lanes'
// examples this is.
static uint32_t dense_input_gradient_of(const lk_dense *d, const lk_lane *lane, uint32_t m_count,
                                        const float *w, const void *dy, const float *mask,
                                        void *dx, float *scratch) {
    const lk_half *half = lane ? lane->half : NULL;
    const bool dx_half = half && half->out.dtype != LK_F32;
    const uint32_t all = dense_count(lane, m_count);
    vf bad = v_zero();
    uint64_t examples = LK_MIN(all, (uint32_t)LK_DENSE_EXAMPLES);
    uint32_t runs = (d->n_count + INPUT_TERMS - 1) / INPUT_TERMS;
    float *mask_rows[LK_DENSE_EXAMPLES], *dx_rows[LK_DENSE_EXAMPLES];
    float *wide = scratch;
    if (lane && (lane->all || (half && half->dy))) {
        scratch += lk_round_up(examples * d->n_count, LK_LANES_MAX);
    }
    float *more = scratch + lk_dense_bits_floats(d->n_count, examples + 1);
    for (uint32_t m = 0; m < all; m += LK_DENSE_EXAMPLES) {
        uint64_t some, any;
        const uint32_t m_some = LK_MIN(all - m, (uint32_t)LK_DENSE_EXAMPLES);
        if (mask) dense_rows(lane, LK_MASK, mask, d->k_count, m, m_some, mask_rows);
        if (!dx_half) dense_rows(lane, LK_DX, dx, d->k_count, m, m_some, dx_rows);
        const input_block b = {
            .w = w,
            .dy = input_dy(d, lane, dy, m, m_some, wide),
            .mask = mask ? mask_rows : NULL,
            .dx = dx_rows,
            .how = dx_half ? &half->out : NULL,
            .dx_half = dx,
            .at = (uint64_t)m * d->k_count,
            .m_count = m_some,
            .k_count = d->k_count,
            .n_count = d->n_count,
            .part = dense_part_of(lane, d->k_count, INPUT_PART),
            .runs = runs,
            .transposed = more,
            .node = more + lk_round_up(examples, BROAD_LANES) * lk_round_up(d->n_count, V_LANES),
            .live = (uint64_t *)(void *)scratch,
            .terms = (uint64_t *)(void *)scratch + runs,
        };
        input_find_terms(&b, &some, &any);
        bad = input_deep_pays(&b, some, any) ? input_deep(&b, bad) : input_broad(&b, bad);
    }
    return v_noted(bad);
}

static uint32_t dense_input_gradient(const lk_dense *d, uint32_t m_count, const float *w,
                                     const float *dy, const float *mask, float *dx,
                                     float *scratch) {
    return dense_input_gradient_of(d, NULL, m_count, w, dy, mask, dx, scratch);
}

// --- weight gradient -----------------------------------------------------------------------------

// A register tile of weights runs over the examples of one grain after the other. Where their rows
// collide they are laid side by side: the gradients once, panel by panel, so that a core's own
// prefetcher follows them, and the inputs of a few rows of weights for all panels.
enum {
    // Where it was measured: with few registers, and a second cache that all gradients would fill.
    WEIGHT_SIDE = V_REGISTERS == 16 && V_LANES == 8,
    WEIGHT_VECTORS = V_REGISTERS == 32 ? 4 : 3,
    WEIGHT_PANEL = WEIGHT_VECTORS * V_LANES,
    WEIGHT_ROWS = V_REGISTERS == 32 ? 6 : 4,
    WEIGHT_ROWS_MAX = 16,
    WEIGHT_EVERY = 4,
    WEIGHT_TERMS = 8,  // examples at once, of operands side by side; a multiple of 4
};

typedef struct weight_block {
    const lk_grain_view *grains;
    uint32_t grain_count, k_count, n_count;
    float *node;        // (LK_TREE_LEVELS_MAX, rows, vectors), over the grains
    float *slice_node;  // (LK_GRAIN_SLICE_LEVELS, rows, vectors), over the slices of a grain
    // With every example of a tile two lines are fetched that the next call will want: of its
    // weights, to be written, and of its inputs.
    const float *w, *w_end;
    uint32_t w_step;            // floats from one example to the next; 0: nothing is fetched
    uint32_t every;             // such a tile fetches, among its neighbours
    bool fetches;               // .. the tile under way
    uint32_t next, next_lines;  // the first of those inputs; lines of them of each example
    uint64_t x_ahead;           // floats from an input of the tile to what is fetched with it
    // Operands side by side. Each, if NULL, is read where it lies.
    const float *side_dy;       // (panels, examples, units of a panel, rounded up to V_LANES)
    const float *side_x;        // (examples, side_rows), from row side_first on
    uint32_t side_first, side_rows;
    uint64_t examples;          // of all grains
} weight_block;

typedef vf weight_sums[WEIGHT_ROWS_MAX][4];

// Where a tile finds its operands of one grain, and how far the next example's are.
typedef struct weight_terms {
    const float *x, *dy;
    uint64_t x_step, dy_step;
} weight_terms;

// `before`: examples of the grains before this one.
V_INLINE weight_terms weight_terms_of(const weight_block *b, const lk_grain_view *g,
                                      uint64_t before, uint32_t k, uint32_t n, const int vectors) {
    const uint64_t units = vectors * V_LANES;
    if (!WEIGHT_SIDE || !b->side_dy) {
        return (weight_terms){g->x + k, g->dy + n, b->k_count, b->n_count};
    }
    const float *dy = b->side_dy + n * b->examples + before * units;
    if (!b->side_x) return (weight_terms){g->x + k, dy, b->k_count, units};
    return (weight_terms){b->side_x + before * b->side_rows + (k - b->side_first), dy,
                          b->side_rows, units};
}

// A register tile as leaf `leaves` of its trees: tree_push without a stop in memory.
V_INLINE void weight_push(weight_sums sum, uint64_t leaves, float *node, const int rows,
                          const int vectors) {
    const int count = rows * vectors * V_LANES;
    for (; leaves & 1; leaves >>= 1, node += count) {
        V_UNROLL for (int i = 0; i < rows; i++) {
            V_UNROLL for (int v = 0; v < vectors; v++) {
                sum[i][v] = v_add(v_load(node + (i * vectors + v) * V_LANES), sum[i][v]);
            }
        }
    }
    V_UNROLL for (int i = 0; i < rows; i++) {
        V_UNROLL for (int v = 0; v < vectors; v++) {
            v_store(node + (i * vectors + v) * V_LANES, sum[i][v]);
        }
    }
}

// The roots of the trees with a register tile as their last leaf, after `leaves` others.
V_INLINE void weight_root(weight_sums sum, uint64_t leaves, const float *node, const int rows,
                          const int vectors) {
    const int count = rows * vectors * V_LANES;
    for (; leaves; leaves >>= 1, node += count) {
        if (!(leaves & 1)) continue;
        V_UNROLL for (int i = 0; i < rows; i++) {
            V_UNROLL for (int v = 0; v < vectors; v++) {
                sum[i][v] = v_add(v_load(node + (i * vectors + v) * V_LANES), sum[i][v]);
            }
        }
    }
}

// The terms of one example; pinned: its factors stay in registers, which makes a loop over single
// examples slower.
V_INLINE void weight_example(const float *x, const float *dy, vm tail, weight_sums sum,
                             const int rows, const int vectors, const bool masked,
                             const bool pinned) {
    vf row[4];
    V_UNROLL for (int v = 0; v < vectors; v++) {
        row[v] = masked && v == vectors - 1 ? v_load_mask(dy + v * V_LANES, tail)
                                            : v_load(dy + v * V_LANES);
        V_PIN(row[v]);
    }
    V_UNROLL for (int i = 0; i < rows; i++) {
        vf value = v_set1(x[i]);
        if (pinned) V_PIN(value);
        V_UNROLL for (int v = 0; v < vectors; v++) {
            if (pinned) V_ADD_PRODUCT(sum[i][v], row[v], value);
            else sum[i][v] = v_fma(row[v], value, sum[i][v]);
        }
    }
}

// Four examples of operands side by side, whose inputs are at x + 0, 1, 2 and 3 times `step`.
V_INLINE void weight_four(const float *x, const float *dy, uint64_t step, uint64_t step_3, vm tail,
                          weight_sums sum, const int rows, const int vectors, const bool masked) {
    V_UNROLL for (uint64_t i = 0; i < 4; i++) {
        const uint64_t apart = i < 3 ? i * step : step_3;
        weight_example(x + apart, dy + i * (uint64_t)(vectors * V_LANES), tail, sum, rows, vectors,
                       masked, true);
    }
}

// Of operands side by side as many as whole WEIGHT_TERMS have, beside whose terms a loop's own
// instructions are few. Returns how many are left.
V_INLINE uint32_t weight_side_examples(weight_terms *at, uint32_t count, vm tail, weight_sums sum,
                                       const int rows, const int vectors, const bool masked) {
    const float *x = at->x, *dy = at->dy;
    uint64_t step = at->x_step, step_3 = 3 * step;
    for (; count >= WEIGHT_TERMS; count -= WEIGHT_TERMS) {
        V_UNROLL for (int i = 0; i < WEIGHT_TERMS; i += 4) {
            V_FORGET(step);  // else what is known of it becomes a register for each address
            V_FORGET(step_3);
            weight_four(x, dy, step, step_3, tail, sum, rows, vectors, masked);
            x += 4 * step;
            dy += 4 * vectors * V_LANES;
            V_FORGET(x);
            V_FORGET(dy);
        }
    }
    at->x = x;
    at->dy = dy;
    return count;
}

// The terms of `count` examples, of which the first is at `at`; fetches: with each what is wanted
// later.
V_INLINE void weight_examples(weight_block *b, weight_terms *at, uint32_t count, vm tail,
                              weight_sums sum, const int rows, const int vectors,
                              const bool masked, const bool side, const bool fetches) {
    if (side && !fetches) {
        count = weight_side_examples(at, count, tail, sum, rows, vectors, masked);
    }
    const float *x = at->x, *dy = at->dy, *w = b->w;
    for (; count > 0; count--, x += at->x_step, dy += at->dy_step) {
        if (fetches && !side) {
            __builtin_prefetch(x + LK_LANES_MAX);
            __builtin_prefetch(x + b->x_ahead, 0, 2);
        }
        if (fetches) {
            v_fetch_to_write(w);
            w += b->w_step;
        }
        weight_example(x, dy, tail, sum, rows, vectors, masked, false);
    }
    at->x = x;
    at->dy = dy;
    b->w = w;
}

// The sums of a tile over one grain, whose operands begin at `at`.
V_INLINE void weight_grain(weight_block *b, weight_terms at, uint32_t examples, vm tail,
                           weight_sums sum, const int rows, const int vectors, const bool masked) {
    const bool side = WEIGHT_SIDE && b->side_dy;
    uint64_t slices = 0;
    for (uint32_t m = 0;; slices++) {
        V_UNROLL for (int i = 0; i < rows; i++) {
            V_UNROLL for (int v = 0; v < vectors; v++) sum[i][v] = v_zero();
        }
        const uint32_t some = LK_MIN(examples - m, (uint32_t)LK_SLICE_TERMS);
        if (side && b->fetches)
            weight_examples(b, &at, some, tail, sum, rows, vectors, masked, true, true);
        else if (side) weight_examples(b, &at, some, tail, sum, rows, vectors, masked, true, false);
        else if (b->fetches)
            weight_examples(b, &at, some, tail, sum, rows, vectors, masked, false, true);
        else weight_examples(b, &at, some, tail, sum, rows, vectors, masked, false, false);
        m += some;
        if (m == examples) break;
        weight_push(sum, slices, b->slice_node, rows, vectors);
    }
    weight_root(sum, slices, b->slice_node, rows, vectors);
}

V_INLINE void weight_tile(weight_block *b, uint32_t k, uint32_t n, float *dw, const int rows,
                          const int vectors, const bool masked) {
    const vm tail = v_first(masked ? b->n_count % V_LANES : V_LANES);
    const uint32_t last = b->grain_count - 1;
    weight_sums sum;
    uint64_t before = 0;
    for (uint32_t grain = 0;; grain++) {
        const lk_grain_view *g = &b->grains[grain];
        weight_grain(b, weight_terms_of(b, g, before, k, n, vectors), g->examples, tail, sum, rows,
                     vectors, masked);
        before += g->examples;
        if (grain == last) break;
        weight_push(sum, grain, b->node, rows, vectors);
    }
    weight_root(sum, last, b->node, rows, vectors);
    V_UNROLL for (int i = 0; i < rows; i++) {
        V_UNROLL for (int v = 0; v < vectors; v++) {
            float *out = dw + (uint64_t)i * b->n_count + v * V_LANES;
            if (masked && v == vectors - 1) v_store_mask(out, tail, sum[i][v]);
            else v_store(out, sum[i][v]);
        }
    }
}

// What the tile at input k fetches: the lines of the next call's inputs take turns.
V_INLINE void weight_look_ahead(weight_block *b, uint32_t k, uint32_t tile) {
    b->x_ahead = LK_LANES_MAX;
    if (b->next_lines) b->x_ahead = b->next - k + tile % b->next_lines * LK_LANES_MAX;
    if (b->w >= b->w_end) b->w_step = 0;
    b->fetches = tile % b->every == 0;
}

// Rows k0 .. k1 - 1 of one panel. The last tile is moved back over rows already done (the same bits
// again); where there are fewer rows than a tile has, they go one by one.
V_INLINE void weight_rows(weight_block *b, uint32_t k0, uint32_t k1, uint32_t n, float *dw,
                          const uint32_t rows, const int vectors, const bool masked) {
    if (k1 - k0 < rows) {
        for (uint32_t k = k0; k < k1; k++) {
            weight_tile(b, k, n, dw + (uint64_t)(k - k0) * b->n_count, 1, vectors, masked);
        }
        return;
    }
    for (uint32_t k = k0; k < k1; k += rows) {
        uint32_t at = LK_MIN(k, k1 - rows);
        weight_look_ahead(b, at, (k - k0) / rows);
        weight_tile(b, at, n, dw + (uint64_t)(at - k0) * b->n_count, (int)rows, vectors, masked);
    }
}

// Rows of a tile of one, two or three vectors.
enum {
    ONE_ROWS = V_REGISTERS == 32 ? 16 : 8,
    PAIR_ROWS = V_REGISTERS == 32 ? 8 : 6,
    TRIPLE_ROWS = V_REGISTERS == 32 ? 8 : 4,
};

// Rows k0 .. k1 - 1, panel by panel.
static void weight_panels(weight_block *b, uint32_t k0, uint32_t k1, float *dw) {
    for (uint32_t n = 0; n < b->n_count; n += WEIGHT_PANEL) {
        uint32_t units = LK_MIN(b->n_count - n, (uint32_t)WEIGHT_PANEL);
        switch ((units + V_LANES - 1) / V_LANES * 2 + (units % V_LANES != 0)) {
            case 2: weight_rows(b, k0, k1, n, dw + n, ONE_ROWS, 1, false); break;
            case 3: weight_rows(b, k0, k1, n, dw + n, ONE_ROWS, 1, true); break;
            case 4: weight_rows(b, k0, k1, n, dw + n, PAIR_ROWS, 2, false); break;
            case 5: weight_rows(b, k0, k1, n, dw + n, PAIR_ROWS, 2, true); break;
            case 6: weight_rows(b, k0, k1, n, dw + n, TRIPLE_ROWS, 3, false); break;
            case 7: weight_rows(b, k0, k1, n, dw + n, TRIPLE_ROWS, 3, true); break;
            case 8: weight_rows(b, k0, k1, n, dw + n, WEIGHT_ROWS, WEIGHT_VECTORS, false); break;
            default: weight_rows(b, k0, k1, n, dw + n, WEIGHT_ROWS, WEIGHT_VECTORS, true); break;
        }
    }
}

// Units that have no gradient in any example, as ReLU leaves them, are left out where that spares
// vectors: the gradients of the others are packed side by side, and rows of their sums are spread
// over the rows of dw, whose other columns are +0. Found once for all rows of a gradient.
typedef struct weight_pack {
    uint32_t stride;        // units left, rounded up to V_LANES; 0: all stay where they are
    uint64_t *live;         // bit i of word j: unit 64 * j + i is left
    lk_grain_view *grains;  // with packed gradients
    float *dy;              // (examples, stride)
    float *rows;            // (LK_DENSE_PACK_ROWS)
    float *side;            // (lk_dense_side_floats), of all units
} weight_pack;

// Kept in the scratch memory from one call to the next, but for the addresses.
static weight_pack weight_pack_at(const lk_dense *d, float *scratch) {
    weight_pack p = {.live = (uint64_t *)(void *)(scratch + LK_LANES_MAX)};
    float *more = scratch + LK_LANES_MAX + lk_dense_bits_floats(d->n_count, 1);
    p.grains = (lk_grain_view *)(void *)more;
    p.dy = more + LK_DENSE_PACK_GRAINS * sizeof *p.grains / sizeof *more;
    p.rows = p.dy + lk_dense_pack_floats(d->n_count);
    p.side = p.rows + LK_DENSE_PACK_ROWS;
    memcpy(&p.stride, scratch, sizeof p.stride);
    return p;
}

static uint32_t weight_find_live(const lk_dense *d, uint32_t grain_count,
                                 const lk_grain_view *grains, uint64_t *live) {
    uint32_t count = 0;
    for (uint32_t n = 0; n < d->n_count; n += V_LANES) {
        vf most = v_zero();
        for (uint32_t g = 0; g < grain_count; g++) {
            const float *dy = grains[g].dy + n;
            for (uint32_t m = 0; m < grains[g].examples; m++, dy += d->n_count) {
                most = v_max(v_abs(v_load_first(dy, d->n_count - n)), most);
            }
        }
        uint64_t bits = v_bits(v_gt(most, v_zero()));
        live[n / 64] = (n % 64 ? live[n / 64] : 0) | bits << n % 64;
        count += count_bits(bits);
    }
    return count;
}

static void weight_pack_grain(const lk_dense *d, const weight_pack *p, const lk_grain_view *g,
                              float *to) {
    const float *dy = g->dy;
    for (uint32_t m = 0; m < g->examples; m++, dy += d->n_count, to += p->stride) {
        uint32_t i = 0;
        for (uint32_t n = 0; n < d->n_count; n += 64) {
            for (uint64_t some = p->live[n / 64]; some; some &= some - 1) {
                to[i++] = dy[n + (uint32_t)__builtin_ctzll(some)];
            }
        }
        for (; i < p->stride; i++) to[i] = 0.0f;
    }
}

// Leaving out vectors of sums must pay for spreading the rest, and for packing.
static bool weight_pack_pays(const lk_dense *d, uint64_t examples, uint64_t live) {
    uint64_t all = (d->n_count + V_LANES - 1) / V_LANES;
    uint64_t some = LK_MAX((live + V_LANES - 1) / V_LANES, 1);
    if (some * V_LANES > LK_DENSE_PACK_UNITS ||
        examples * some * V_LANES > lk_dense_pack_floats(d->n_count)) {
        return false;
    }
    return examples * (all - some) > 8 * all && d->k_count * (all - some) > 8 * live;
}

static void weight_find_pack(const lk_dense *d, uint32_t grain_count, const lk_grain_view *grains,
                             float *scratch) {
    weight_pack p = weight_pack_at(d, scratch);
    uint64_t examples = 0, at = 0;
    p.stride = 0;
    for (uint32_t g = 0; g < grain_count; g++) examples += grains[g].examples;
    if (grain_count <= LK_DENSE_PACK_GRAINS && weight_pack_pays(d, examples, 0)) {
        uint32_t live = weight_find_live(d, grain_count, grains, p.live);
        if (weight_pack_pays(d, examples, live)) {
            p.stride = (uint32_t)lk_round_up(LK_MAX(live, 1), V_LANES);
        }
    }
    memcpy(scratch, &p.stride, sizeof p.stride);
    for (uint32_t g = 0; p.stride && g < grain_count; at += grains[g++].examples * p.stride) {
        p.grains[g] = (lk_grain_view){
            .x = grains[g].x, .dy = p.dy + at, .examples = grains[g].examples};
        weight_pack_grain(d, &p, &grains[g], p.dy + at);
    }
}

static void weight_spread(const lk_dense *d, const weight_pack *p, uint32_t rows, float *dw) {
    const float *from = p->rows;
    for (uint32_t row = 0; row < rows; row++, from += p->stride, dw += d->n_count) {
        const float *at = from;
        for (uint32_t n = 0; n < d->n_count; n += V_LANES) {
            uint64_t bits = p->live[n / 64] >> n % 64 & ((1ull << V_LANES) - 1);
            at += v_spread(dw + n, d->n_count - n, (uint32_t)bits, at);
        }
    }
}

// --- operands side by side

static void weight_side_dy(const weight_block *b, float *to) {
    for (uint32_t n = 0; n < b->n_count; n += WEIGHT_PANEL) {
        const uint32_t end = LK_MIN(b->n_count - n, (uint32_t)WEIGHT_PANEL) + n;
        for (uint32_t g = 0; g < b->grain_count; g++) {
            const float *dy = b->grains[g].dy;
            for (uint32_t m = 0; m < b->grains[g].examples; m++, dy += b->n_count) {
                for (uint32_t i = n; i < end; i += V_LANES, to += V_LANES) {
                    v_store(to, v_load_first(dy + i, end - i));
                }
            }
        }
    }
}

// The inputs of rows k0 .. k1 - 1; those of the rows that come next are fetched.
static void weight_side_x(weight_block *b, uint32_t k0, uint32_t k1, float *to) {
    b->side_x = to;
    b->side_first = k0;
    b->side_rows = k1 - k0;
    for (uint32_t g = 0; g < b->grain_count; g++) {
        const float *x = b->grains[g].x + k0;
        for (uint32_t m = 0; m < b->grains[g].examples; m++, x += b->k_count) {
            for (uint32_t i = 0; i < b->side_rows; i += LK_LANES_MAX) {
                __builtin_prefetch(x + b->side_rows + i, 0, 2);
            }
            copy_floats(b->side_rows, x, to);
            to += b->side_rows;
        }
    }
}

// Rows k0 .. k1 - 1 from operands side by side, which are made here but for gradients that an
// earlier call has left.
static void weight_from_side(weight_block *b, uint32_t k0, uint32_t k1, bool again, float *side,
                             float *dw) {
    const uint64_t dy_floats = b->examples * lk_round_up(b->n_count, V_LANES);
    if (!again) weight_side_dy(b, side);
    b->side_dy = side;
    if (b->k_count <= LK_DENSE_SIDE_ROWS) {  // the inputs lie side by side already
        weight_panels(b, k0, k1, dw);
        return;
    }
    for (uint32_t k = k0; k < k1;) {
        const uint32_t end = LK_MIN(k1 - k, (uint32_t)LK_DENSE_SIDE_ROWS) + k;
        weight_side_x(b, k, end, side + dy_floats);
        weight_panels(b, k, end, dw + (uint64_t)(k - k0) * b->n_count);
        k = end;
    }
}

// Whether there is room for them, and they are what is summed.
static bool weight_has_side(const lk_dense *d, const weight_block *b, bool packed) {
    const uint64_t room = lk_dense_side_floats(d->n_count);
    return WEIGHT_SIDE && !packed && lk_dense_side_of(d->n_count, b->examples) <= room;
}

// Weights of one call, that other cores had last, are about to be written.
static void weight_fetch(const lk_dense *d, uint32_t first, uint32_t end, const float *w) {
    const float *last = w + (uint64_t)end * d->n_count;
    for (w += (uint64_t)first * d->n_count; w < last; w += LK_LANES_MAX) v_fetch_to_write(w);
}

// What a call fetches for the next one, spread over its own examples and tiles.
static void weight_plan_ahead(weight_block *b, const lk_dense *d, const lk_weight_rows *rows,
                              const float *dw) {
    static const uint32_t tile_rows[] = {ONE_ROWS, PAIR_ROWS, TRIPLE_ROWS, WEIGHT_ROWS};
    uint64_t tiles = 0;
    b->w = b->w_end = dw;
    b->x_ahead = LK_LANES_MAX;
    b->every = WEIGHT_EVERY;
    if (!rows->w || rows->next_end <= rows->end) return;
    for (uint32_t n = 0; n < b->n_count; n += WEIGHT_PANEL) {
        uint32_t units = LK_MIN(b->n_count - n, (uint32_t)WEIGHT_PANEL);
        tiles += (rows->end - rows->first) / tile_rows[(units - 1) / V_LANES] + 1;
    }
    uint64_t floats = (uint64_t)(rows->next_end - rows->end) * d->n_count;
    b->next = rows->end;
    b->next_lines = (rows->next_end - rows->end + LK_LANES_MAX - 1) / LK_LANES_MAX;
    b->w = rows->w + (uint64_t)rows->end * d->n_count;
    b->w_end = b->w + floats;
    b->w_step = (uint32_t)((floats + b->examples * tiles - 1) / (b->examples * tiles));
    while (b->every > 1 && b->every * b->w_step > LK_LANES_MAX) b->every /= 2;
    b->w_step *= b->every;
}

static void dense_weight_gradient(const lk_dense *d, uint32_t grain_count,
                                  const lk_grain_view *grains, const lk_weight_rows *rows,
                                  float *dw, float *scratch) {
    const uint32_t k0 = rows->first, k1 = rows->end;
    float *more = scratch + (LK_GRAIN_SLICE_LEVELS + LK_TREE_LEVELS_MAX) * LK_DENSE_TILE_MAX;
    if (rows->w && !rows->again) weight_fetch(d, k0, k1, rows->w);
    if (!rows->again) weight_find_pack(d, grain_count, grains, more);
    const weight_pack p = weight_pack_at(d, more);
    weight_block b = {
        .grains = p.stride ? p.grains : grains, .grain_count = grain_count, .k_count = d->k_count,
        .n_count = p.stride ? p.stride : d->n_count,
        .slice_node = scratch, .node = scratch + LK_GRAIN_SLICE_LEVELS * LK_DENSE_TILE_MAX,
    };
    for (uint32_t g = 0; g < grain_count; g++) b.examples += grains[g].examples;
    weight_plan_ahead(&b, d, rows, dw);
    if (weight_has_side(d, &b, p.stride > 0)) {
        weight_from_side(&b, k0, k1, rows->again, p.side, dw);
        return;
    }
    if (!p.stride) {
        weight_panels(&b, k0, k1, dw);
        return;
    }
    const uint32_t most = LK_DENSE_PACK_ROWS / p.stride;
    for (uint32_t k = k0; k < k1;) {
        uint32_t count = LK_MIN(k1 - k, most / 16 * 16);
        weight_panels(&b, k, k + count, p.rows);
        weight_spread(d, &p, count, dw + (uint64_t)(k - k0) * d->n_count);
        k += count;
    }
}

// --- column sums ---------------------------------------------------------------------------------

// One grain's sum of a vector of columns. fma(1, dy, s) is dy + s.
V_INLINE vf column_grain(const lk_dtype dtype, const lk_grain_view *g, uint32_t n,
                         uint32_t n_count) {
    float node[LK_GRAIN_SLICE_LEVELS * V_LANES];
    const float *dy = g->dy + n;
    const uint16_t *dy_half = (const uint16_t *)(const void *)g->dy + n;
    vf sum = v_zero();
    uint64_t slices = 0;
    for (uint32_t m = 0; m < g->examples; m++, dy += n_count, dy_half += n_count) {
        if (m > 0 && m % LK_SLICE_TERMS == 0) {
            float leaf[V_LANES];
            v_store(leaf, sum);
            tree_push(V_LANES, slices++, leaf, node);
            sum = v_zero();
        }
        sum = v_add(sum, dtype == LK_F32 ? v_load_first(dy, n_count - n)
                                         : half_load_first(dtype == LK_F16, dy_half, n_count - n));
    }
    if (slices == 0) return sum;
    float leaf[V_LANES];
    v_store(leaf, sum);
    tree_push(V_LANES, slices++, leaf, node);
    return tree_root(V_LANES, slices, node, 0);
}

V_INLINE void column_sums_of(const lk_dtype dtype, uint32_t n_count, uint32_t grain_count,
                             const lk_grain_view *grains, float *out) {
    float node[LK_TREE_LEVELS_MAX * V_LANES], leaf[V_LANES];
    for (uint32_t n = 0; n < n_count; n += V_LANES) {
        for (uint32_t grain = 0; grain < grain_count; grain++) {
            v_store(leaf, column_grain(dtype, &grains[grain], n, n_count));
            tree_push(V_LANES, grain, leaf, node);
        }
        v_store_first(out + n, n_count - n, tree_root(V_LANES, grain_count, node, 0));
    }
}

static void column_sums(uint32_t n_count, uint32_t grain_count, const lk_grain_view *grains,
                        float *out) {
    column_sums_of(LK_F32, n_count, grain_count, grains, out);
}

static void column_sums_half(lk_dtype dtype, uint32_t n_count, uint32_t grain_count,
                             const lk_grain_view *grains, float *out) {
    if (dtype == LK_F16)
        column_sums_of(LK_F16, n_count, grain_count, grains, out);
    else
        column_sums_of(LK_BF16, n_count, grain_count, grains, out);
}
