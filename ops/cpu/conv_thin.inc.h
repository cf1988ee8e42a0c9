// conv_thin.inc.h - convolutions of which few channels come out: lanes are neighbouring positions.
// Included by conv.inc.h.
//
// The image is kept in planes, one for each channel, so that neighbours lie side by side; a tile is
// a few vectors of positions and one channel or two, whose weights are broadcast. Every sum takes
// its terms in the contract's order, as elsewhere.

// Vectors of positions of a tile of one channel, or two.
enum { THIN_TILE = 8, THIN_PAIR = TILE_WIDE };

// Which way takes fewer vectors of sums, with a bit for the planes. `stride`: pixels between
// neighbours.
static bool thin_pays(uint32_t channels, uint32_t stride, uint32_t columns) {
    if (stride != 1 || channels > V_LANES) return false;
    const uint64_t thin = (uint64_t)channels * ((columns + V_LANES - 1) / V_LANES);
    const uint64_t wide = (uint64_t)columns * ((channels + V_LANES - 1) / V_LANES);
    return 5 * thin < 4 * wide;
}

// --- tiles ---------------------------------------------------------------------------------------

// Some neighbours in one row of a grid, from its first term in the planes to their place in the
// outputs.
typedef struct thin_spot {
    uint64_t out;
    uint32_t count;
} thin_spot;

// Stores the sums of one channel. Returns `bad`, noted.
V_INLINE vf thin_store(vf sum, const thin_spot *at, const grid *g, bool relu, const float *mask,
                       float *out, vf bad) {
    float lanes[V_LANES];
    // Lanes past the end of a row have summed something else.
    vf y = v_keep(v_first(at->count), v_add(sum, v_zero()));
    bad = v_note(bad, y);
    if (relu) y = v_relu(y);
    if (g->out_column == 1 && !mask) {
        v_store_first(out, at->count, y);
        return bad;
    }
    v_store(lanes, y);
    for (uint32_t i = 0; i < at->count; i++) {
        const uint64_t to = i * g->out_column;
        out[to] = mask && !(mask[to] > 0.0f) ? 0.0f : lanes[i];
    }
    return bad;
}

// Channels first .. of the panel in all positions.
V_INLINE uint32_t thin_fill(const int spots, const int channels, const grid *g, const walk *k,
                            const panel *p, const float *planes, const float *mask, float *out) {
    uint32_t row = 0, column = 0;
    vf bad = v_zero();
    while (row < g->rows) {
        const float *pixel[THIN_TILE];
        thin_spot at[THIN_TILE];
        for (int i = 0; i < spots; i++) {
            // A tile that is not full sums its last spot several times, and stores one of them.
            if (row == g->rows) {
                pixel[i] = pixel[i - 1];
                at[i] = (thin_spot){0, 0};
                continue;
            }
            pixel[i] = planes + row * g->image_row + column;
            at[i].out = row * g->out_row + column * g->out_column;
            at[i].count = LK_MIN(g->columns - column, (uint32_t)V_LANES);
            column += V_LANES;
            if (column >= g->columns) {
                column = 0;
                row++;
            }
        }
        vf sum[THIN_TILE][VECTORS];
        tile_any(true, spots, channels, sum, k, pixel, p);
        V_UNROLL for (int i = 0; i < spots; i++) {
            if (at[i].count == 0) continue;
            V_UNROLL for (int v = 0; v < channels; v++) {
                bad = thin_store(sum[i][v], &at[i], g, p->relu, mask ? mask + at[i].out + v : NULL,
                                 out + at[i].out + v, bad);
            }
        }
    }
    return v_noted(bad);
}

// Functions of their own: a tile needs all registers.
V_NOINLINE uint32_t thin_fill_one(const grid *g, const walk *k, const panel *p, const float *planes,
                                  const float *mask, float *out) {
    return thin_fill(THIN_TILE, 1, g, k, p, planes, mask, out);
}
V_NOINLINE uint32_t thin_fill_two(const grid *g, const walk *k, const panel *p, const float *planes,
                                  const float *mask, float *out) {
    return thin_fill(THIN_PAIR, 2, g, k, p, planes, mask, out);
}

static uint32_t thin_any(const grid *g, const walk *k, const panel *p, const float *planes,
                         const float *mask, float *out) {
    panel some = *p;
    uint32_t bad = 0;
    for (uint32_t c = 0; c < p->channels; some.packed += 2, some.bias += 2, c += 2) {
        const float *m = mask ? mask + c : NULL;
        bad |= c + 1 < p->channels ? thin_fill_two(g, k, &some, planes, m, out + c)
                                   : thin_fill_one(g, k, &some, planes, m, out + c);
    }
    return bad;
}
