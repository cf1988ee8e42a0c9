// grouped_conv.inc.h - convolutions whose channels are in groups or whose windows are spread out,
// in the words of vector.h; included by table.inc.h, compiled once per variant. A lane of a vector
// is a channel of the result: of y, of dx, or of the outputs of a kernel's gradient. So every sum
// has its terms in the order of ARITHMETIC.md, and a depthwise convolution reads and multiplies
// whole vectors of channels.

// Vectors of channels that are worked on at once: enough for one product to wait for another.
enum { GROUP_VECTORS = 4, GROUP_FLOATS = GROUP_VECTORS * V_LANES };

// Where the other factor of a lane is: in the channel of the lane's own number; in one channel for
// all lanes of a block; or as `index` says.
typedef enum group_kind { GROUP_SAME, GROUP_ONE, GROUP_EACH } group_kind;

// Channels first .. first + count - 1 of the result, count <= GROUP_FLOATS.
typedef struct group_block {
    const lk_grouped_conv2d *g;
    group_kind kind;
    uint32_t lanes;          // all channels of the result
    uint32_t inner;          // terms of a tap
    uint32_t first, count;
    uint32_t index[GROUP_FLOATS];  // of each lane: the first channel that its group reads
    vf chain[GROUP_VECTORS];
    vf node[LK_TREE_LEVELS_MAX][GROUP_VECTORS];
    uint32_t slices;
} group_block;

#define GROUP_EACH_VECTOR(v, vectors) V_UNROLL for (uint32_t v = 0; v < (vectors); v++)
#define GROUP_SWITCH(b, kind, call)                            \
    switch (((b)->count + V_LANES - 1) / V_LANES) {            \
        case 1: call(kind, 1); break;                          \
        case 2: call(kind, 2); break;                          \
        case 3: call(kind, 3); break;                          \
        default: call(kind, 4); break;                         \
    }
#define GROUP_EACH_KIND(b, call)                                   \
    if ((b)->kind == GROUP_SAME) {                                 \
        GROUP_SWITCH(b, GROUP_SAME, call)                          \
    } else if ((b)->kind == GROUP_ONE) {                           \
        GROUP_SWITCH(b, GROUP_ONE, call)                           \
    } else {                                                       \
        GROUP_SWITCH(b, GROUP_EACH, call)                          \
    }

V_INLINE uint32_t group_some(const group_block *b, uint32_t v) {
    return LK_MIN(b->count - v * V_LANES, (uint32_t)V_LANES);
}

// Begins a block at channel `first`. A group has `per` channels on this side and `inner` on the
// other, over which the terms of a sum run. The caller has set b->lanes.
static void group_begin(group_block *b, uint32_t first, uint32_t per, uint32_t inner) {
    uint32_t end = LK_MIN(b->lanes, first + GROUP_FLOATS);
    b->kind = per == 1 && inner == 1 ? GROUP_SAME : GROUP_EACH;
    if (per >= V_LANES || per == b->lanes) {
        b->kind = GROUP_ONE;
        end = LK_MIN(end, (first / per + 1) * per);
    }
    b->first = first;
    b->count = end - first;
    b->inner = inner;
    for (uint32_t l = 0; l < GROUP_FLOATS; l++) {
        b->index[l] = LK_MIN(first + l, b->lanes - 1) / per * inner;
    }
}

// Term i of the lanes of vector v: what the pixel (or cell) at `from` has for them.
V_INLINE vf group_factor(const group_block *b, group_kind kind, const float *from, uint32_t i,
                         uint32_t v) {
    if (kind == GROUP_SAME) {
        return v_load_first(from + b->first + v * V_LANES, group_some(b, v));
    }
    if (kind == GROUP_ONE) return v_set1(from[b->index[0] + i]);
    _Alignas(64) float value[V_LANES];
    for (uint32_t l = 0; l < V_LANES; l++) value[l] = from[b->index[v * V_LANES + l] + i];
    return v_load(value);
}

// A slice ends.
static void group_cut(group_block *b) {
    uint32_t level = 0;
    for (; b->slices >> level & 1; level++) {
        for (uint32_t v = 0; v < GROUP_VECTORS; v++) {
            b->chain[v] = v_add(b->node[level][v], b->chain[v]);
        }
    }
    for (uint32_t v = 0; v < GROUP_VECTORS; v++) {
        b->node[level][v] = b->chain[v];
        b->chain[v] = v_zero();
    }
    b->slices++;
}

// The tree over all slices comes to lie in `chain`.
static void group_join(group_block *b) {
    for (uint32_t level = 0; b->slices >> level; level++) {
        if (!(b->slices >> level & 1)) continue;
        for (uint32_t v = 0; v < GROUP_VECTORS; v++) {
            b->chain[v] = v_add(b->node[level][v], b->chain[v]);
        }
    }
}

static void group_clear(group_block *b) {
    for (uint32_t v = 0; v < GROUP_VECTORS; v++) b->chain[v] = v_zero();
    b->slices = 0;
}

// --- output, and gradient of the input -----------------------------------------------------------

// The row (or column) that tap `tap` of result `at` reads, -1 outside. back: of the gradient.
V_INLINE int64_t group_source(bool back, uint32_t at, uint32_t tap, uint32_t dilation, uint32_t pad,
                              uint32_t stride, uint32_t count) {
    const int64_t offset = (int64_t)tap * dilation;
    int64_t there = back ? (int64_t)at + pad - offset : (int64_t)at * stride + offset - pad;
    if (there < 0) return -1;
    if (back && stride > 1) {
        if (there % stride != 0) return -1;
        there /= stride;
    }
    return there < count ? there : -1;
}

// The sums of one cell, from the chains that there are; `from` is the first cell of the example's
// other side, `w` the block's part of the first tap's weights.
V_INLINE void group_cell(group_block *b, bool back, group_kind kind, uint32_t vectors,
                         const float *from, uint32_t row, uint32_t column, const float *w) {
    const lk_grouped_conv2d *g = b->g;
    const lk_conv2d *c = &g->conv;
    const uint32_t h = back ? c->out_h : c->in_h, width = back ? c->out_w : c->in_w;
    const uint32_t channels = back ? c->out_c : c->in_c;
    uint32_t left = LK_SLICE_TERMS;
    vf chain[GROUP_VECTORS];
    GROUP_EACH_VECTOR(v, vectors) chain[v] = b->chain[v];
    for (uint32_t ky = 0; ky < c->kernel_h; ky++) {
        const int64_t y = group_source(back, row, ky, g->dilation_h, c->pad_top, c->stride_h, h);
        for (uint32_t kx = 0; kx < c->kernel_w; kx++, w += (uint64_t)b->inner * b->lanes) {
            const int64_t x =
                group_source(back, column, kx, g->dilation_w, c->pad_left, c->stride_w, width);
            const bool outside = y < 0 || x < 0;
            const float *at = outside ? from : from + (y * width + x) * channels;
            for (uint32_t i = 0, end; i < b->inner; i = end) {
                if (left == 0) {
                    GROUP_EACH_VECTOR(v, vectors) b->chain[v] = chain[v];
                    group_cut(b);
                    GROUP_EACH_VECTOR(v, vectors) chain[v] = v_zero();
                    left = LK_SLICE_TERMS;
                }
                end = LK_MIN(b->inner, i + left);
                left -= end - i;
                for (uint32_t k = outside ? end : i; k < end; k++) {
                    GROUP_EACH_VECTOR(v, vectors) {
                        const vf weight = v_load_first(w + (uint64_t)k * b->lanes + v * V_LANES,
                                                       group_some(b, v));
                        chain[v] = v_fma(group_factor(b, kind, at, k, v), weight, chain[v]);
                    }
                }
            }
        }
    }
    GROUP_EACH_VECTOR(v, vectors) b->chain[v] = chain[v];
}

#define GROUP_OUTPUT(kind, vectors) group_cell(b, false, kind, vectors, from, row, column, w)
V_NOINLINE void group_output_cell(group_block *b, const float *from, uint32_t row, uint32_t column,
                                  const float *w) {
    GROUP_EACH_KIND(b, GROUP_OUTPUT)
}

#define GROUP_INPUT(kind, vectors) group_cell(b, true, kind, vectors, from, row, column, w)
V_NOINLINE void group_input_cell(group_block *b, const float *from, uint32_t row, uint32_t column,
                                 const float *w) {
    GROUP_EACH_KIND(b, GROUP_INPUT)
}

// All cells of all examples, for the channels of the block. w (taps, inner, lanes).
static vf group_cells(group_block *b, bool back, uint32_t examples, const float *from,
                      const float *w, const float *bias, bool relu, float *to, vf bad) {
    const lk_conv2d *c = &b->g->conv;
    const uint32_t h = back ? c->in_h : c->out_h, width = back ? c->in_w : c->out_w;
    const uint64_t floats = back ? lk_conv2d_out_floats(c) : lk_conv2d_in_floats(c);
    for (uint64_t cell = 0; cell < (uint64_t)examples * h * width; cell++) {
        const uint32_t column = (uint32_t)(cell % width), row = (uint32_t)(cell / width % h);
        const float *example = from + cell / width / h * floats;
        group_clear(b);
        for (uint32_t v = 0; bias && v * V_LANES < b->count; v++) {
            b->chain[v] = v_load_first(bias + b->first + v * V_LANES, group_some(b, v));
        }
        if (back) group_input_cell(b, example, row, column, w + b->first);
        else group_output_cell(b, example, row, column, w + b->first);
        group_join(b);
        for (uint32_t v = 0; v * V_LANES < b->count; v++) {
            const uint32_t some = group_some(b, v);
            const vf sum = v_keep(v_first(some), v_add(b->chain[v], v_zero()));
            bad = v_note(bad, sum);
            v_store_first(to + cell * b->lanes + b->first + v * V_LANES, some,
                          relu ? v_keep(v_gt(sum, v_zero()), sum) : sum);
        }
    }
    return bad;
}

static uint32_t plain_grouped_conv2d(lk_lane *l, const lk_op *op) {
    const lk_grouped_conv2d *g = &op->grouped;
    vf bad = v_zero();
    for (uint32_t first = 0, next; first < g->conv.out_c; first = next) {
        group_block b;
        b.g = g;
        b.lanes = g->conv.out_c;
        group_begin(&b, first, lk_grouped_outputs(g), lk_grouped_inputs(g));
        next = first + b.count;
        bad = group_cells(&b, false, l->examples, l->at[LK_X], l->param[0], l->param[1],
                          g->conv.relu, l->at[LK_Y], bad);
    }
    return v_noted(bad);
}

// Of each tap and output of a group the weights of all inputs beside each other.
static void group_turn(const lk_grouped_conv2d *g, const float *w, float *to) {
    const uint32_t inputs = lk_grouped_inputs(g), outputs = lk_grouped_outputs(g);
    const uint32_t in_c = g->conv.in_c, out_c = g->conv.out_c;
    for (uint64_t tap = 0; tap < (uint64_t)g->conv.kernel_h * g->conv.kernel_w; tap++) {
        for (uint32_t o = 0; o < outputs; o++) {
            for (uint32_t c = 0; c < in_c; c++) {
                *to++ = w[(tap * inputs + c % inputs) * out_c + c / inputs * outputs + o];
            }
        }
    }
}

static uint32_t plain_grouped_conv2d_input_gradient(lk_lane *l, const lk_op *op) {
    const lk_grouped_conv2d *g = &op->grouped;
    float *w = l->at[LK_SCRATCH];
    vf bad = v_zero();
    group_turn(g, l->param[0], w);
    for (uint32_t first = 0, next; first < g->conv.in_c; first = next) {
        group_block b;
        b.g = g;
        b.lanes = g->conv.in_c;
        group_begin(&b, first, lk_grouped_inputs(g), lk_grouped_outputs(g));
        next = first + b.count;
        bad = group_cells(&b, true, l->examples, l->at[LK_DY], w, NULL, false, l->at[LK_DX], bad);
    }
    return v_noted(bad);
}

// --- gradients of kernel and bias ----------------------------------------------------------------

// Which weights of the block's outputs; of the biases of all of them.
typedef struct group_weight {
    uint32_t ky, kx, ci;
    bool bias;
} group_weight;

// One position of y.
V_INLINE void group_position(const group_block *b, group_kind kind, uint32_t vectors,
                             const group_weight *of, const float *x, const float *dy, uint32_t oy,
                             uint32_t ox, vf chain[GROUP_VECTORS]) {
    const lk_grouped_conv2d *g = b->g;
    const lk_conv2d *c = &g->conv;
    if (oy >= c->out_h || ox >= c->out_w) return;
    const float *at = dy + ((uint64_t)oy * c->out_w + ox) * c->out_c + b->first;
    if (of->bias) {
        GROUP_EACH_VECTOR(v, vectors) {
            chain[v] = v_add(chain[v], v_load_first(at + v * V_LANES, group_some(b, v)));
        }
        return;
    }
    const int64_t iy =
        group_source(false, oy, of->ky, g->dilation_h, c->pad_top, c->stride_h, c->in_h);
    const int64_t ix =
        group_source(false, ox, of->kx, g->dilation_w, c->pad_left, c->stride_w, c->in_w);
    if (iy < 0 || ix < 0) return;
    const float *pixel = x + (iy * c->in_w + ix) * c->in_c;
    GROUP_EACH_VECTOR(v, vectors) {
        const vf gradient = v_load_first(at + v * V_LANES, group_some(b, v));
        chain[v] = v_fma(group_factor(b, kind, pixel, of->ci, v), gradient, chain[v]);
    }
}

// The positions of one example in their tiles.
V_INLINE void group_tiles(group_block *b, group_kind kind, uint32_t vectors, const group_weight *of,
                          const float *x, const float *dy) {
    const lk_conv2d *c = &b->g->conv;
    uint32_t terms = 0;
    vf chain[GROUP_VECTORS];
    GROUP_EACH_VECTOR(v, vectors) chain[v] = b->chain[v];
    for (uint32_t ty = 0; ty < c->out_h; ty += 2) {
        for (uint32_t tx = 0; tx < c->out_w; tx += 2, terms += 4) {
            if (terms == LK_SLICE_TERMS) {
                GROUP_EACH_VECTOR(v, vectors) b->chain[v] = chain[v];
                group_cut(b);
                GROUP_EACH_VECTOR(v, vectors) chain[v] = v_zero();
                terms = 0;
            }
            group_position(b, kind, vectors, of, x, dy, ty, tx, chain);
            group_position(b, kind, vectors, of, x, dy, ty, tx + 1, chain);
            group_position(b, kind, vectors, of, x, dy, ty + 1, tx, chain);
            group_position(b, kind, vectors, of, x, dy, ty + 1, tx + 1, chain);
        }
    }
    GROUP_EACH_VECTOR(v, vectors) b->chain[v] = chain[v];
}

#define GROUP_TILES(kind, vectors) group_tiles(b, kind, vectors, of, x, dy)
V_NOINLINE void group_example(group_block *b, const group_weight *of, const float *x,
                              const float *dy) {
    GROUP_EACH_KIND(b, GROUP_TILES)
}

// The node of the grains' sums comes to lie in the chains of `all`.
static void group_node(group_block *b, group_block *all, const lk_lane *l,
                       const group_weight *of) {
    const lk_conv2d *c = &b->g->conv;
    const uint32_t whole = LK_SLICE_TERMS / lk_conv2d_terms(c);
    group_clear(all);
    for (uint32_t i = 0; i < l->grain_count; i++) {
        const lk_grain_view *view = &l->grains[i];
        group_clear(b);
        for (uint32_t m = 0; m < view->examples; m++) {
            if (m > 0 && (whole == 0 || m % whole == 0)) group_cut(b);
            group_example(b, of, view->x + m * lk_conv2d_in_floats(c),
                          view->dy + m * lk_conv2d_out_floats(c));
        }
        group_join(b);
        if (i > 0) group_cut(all);
        memcpy(all->chain, b->chain, sizeof all->chain);
    }
    group_join(all);
}

static void group_store(const group_block *b, const group_block *all, float *to) {
    for (uint32_t v = 0; v * V_LANES < b->count; v++) {
        v_store_first(to + b->first + v * V_LANES, group_some(b, v), all->chain[v]);
    }
}

static uint32_t plain_grouped_conv2d_weight_gradient(lk_lane *l, const lk_op *op) {
    const lk_grouped_conv2d *g = &op->grouped;
    const uint32_t inputs = lk_grouped_inputs(g), out_c = g->conv.out_c;
    const uint32_t taps = g->conv.kernel_h * g->conv.kernel_w;
    for (uint32_t first = 0, next; first < out_c; first = next) {
        group_block b, all;
        b.g = g;
        b.lanes = out_c;
        group_begin(&b, first, lk_grouped_outputs(g), inputs);
        next = first + b.count;
        for (uint64_t row = 0; row < (uint64_t)taps * inputs; row++) {
            const uint32_t tap = (uint32_t)(row / inputs);
            const group_weight of = {tap / g->conv.kernel_w, tap % g->conv.kernel_w,
                                     (uint32_t)(row % inputs), false};
            group_node(&b, &all, l, &of);
            group_store(&b, &all, l->sums[0] + row * out_c);
        }
        if (!l->sums[1]) continue;
        group_node(&b, &all, l, &(group_weight){.bias = true});
        group_store(&b, &all, l->sums[1]);
    }
    return 0;
}
