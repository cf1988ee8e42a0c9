// conv_view.inc.h - which part of a source the positions of a grid see. Included by conv.inc.h.
//
// Beside the source are zeros, and a term that is zero may be left out. Positions are taken in
// parts, of which all see the source with the same taps: the middle, the borders, the corners. Then
// no zero is multiplied, and the source is read where it lies. A part takes its positions from
// several examples, since few positions do not fill their last tile. Where that is more work, as of
// one small example, the source is an image with its zeros around it, of which all taps are seen:
// one part.

// One axis: tap t of place n sees place first + n * step + t * way of the source.
typedef struct axis {
    uint32_t places, taps;
    uint32_t size;      // of the source
    int64_t first, step;
    int64_t way;        // 1; -1 of a gradient
} axis;

// Neighbouring places that see the source with the same taps.
typedef struct span {
    uint32_t place, places;
    uint32_t tap, taps;
} span;

// What a kernel sums: the positions of a grid, and what each tap of them sees.
typedef struct conv_view {
    axis y, x;
    uint32_t channels;                        // of the source
    bool planes;                              // .. of which each has a plane
    bool joined;                              // taps of a row lie side by side, as their weights
    uint64_t source;                          // floats of an example of it
    uint64_t first, term_row, term_column;    // term numbers: of tap (0, 0), from one to the next
    uint64_t terms;                           // of a sum
    // Floats to the first position of the outputs, and from one to the next.
    uint64_t out, out_example, out_row, out_column;
} conv_view;

enum {
    VIEW_FLOATS = 65536,   // of a source, in examples summed together: half of a core's cache
    VIEW_TILE_TERMS = 16,  // what a tile takes beside its terms
};

static span span_at(const axis *a, uint32_t place) {
    const int64_t base = a->first + place * a->step, taps = a->taps;
    const int64_t from = a->way > 0 ? -base : base - a->size + 1;
    const int64_t to = a->way > 0 ? a->size - base : base + 1;
    const int64_t begin = LK_MIN(LK_MAX(from, 0), taps), end = LK_MIN(LK_MAX(to, begin), taps);
    return (span){place, 1, (uint32_t)begin, (uint32_t)(end - begin)};
}

// The one that begins at `place`.
static span span_from(const axis *a, uint32_t place) {
    span s = span_at(a, place);
    for (; place + s.places < a->places; s.places++) {
        const span next = span_at(a, place + s.places);
        if (next.tap != s.tap || next.taps != s.taps) break;
    }
    return s;
}

// Runs what follows for each span `s` of the axis.
#define EACH_SPAN(s, a)                                                                      \
    for (span s = (a)->places > 0 ? span_from(a, 0) : (span){0}; s.places > 0;               \
         s = s.place + s.places < (a)->places ? span_from(a, s.place + s.places) : (span){0})

// The part of a view where two spans meet. Returns the place of the first term.
static uint64_t view_part(const conv_view *v, const span *y, const span *x, grid *g, walk *k) {
    const int64_t column = v->planes ? 1 : v->channels, row = v->x.size * column;
    *k = (walk){.rows = y->taps,
                .columns = v->joined ? 1 : x->taps,
                .length = v->joined ? x->taps * v->channels : v->channels,
                .image_row = v->y.way * row,
                .image_column = v->x.way * column,
                .first = v->first + y->tap * v->term_row + x->tap * v->term_column,
                .term_row = v->term_row,
                .term_column = v->term_column,
                .terms = v->terms,
                .plane = v->planes ? (uint64_t)v->y.size * v->x.size : 0};
    g->rows = y->places;
    g->columns = x->places;
    g->image_row = (uint64_t)(v->y.step * row);
    g->image_column = (uint64_t)(v->x.step * column);
    g->image_example = v->source;
    g->out_row = v->out_row;
    g->out_column = v->out_column;
    g->out_example = v->out_example;
    if (y->taps == 0 || x->taps == 0) {
        k->rows = 0;
        return 0;
    }
    const int64_t at_y = v->y.first + y->place * v->y.step + y->tap * v->y.way;
    const int64_t at_x = v->x.first + x->place * v->x.step + x->tap * v->x.way;
    return (uint64_t)(at_y * row + at_x * column);
}

// All positions of `examples` examples.
static uint32_t view_sum(const conv_view *v, uint32_t examples, const panel *p, const float *source,
                         const float *mask, float *out, next_example *next) {
    uint32_t bad = 0;
    EACH_SPAN(y, &v->y) {
        EACH_SPAN(x, &v->x) {
            const uint64_t at = v->out + y.place * v->out_row + x.place * v->out_column;
            grid g = {.examples = examples};
            walk k;
            const float *pixel = source + view_part(v, &y, &x, &g, &k);
            bad |= grid_any(&g, &k, p, pixel, mask ? mask + at : NULL, out + at, next);
        }
    }
    return bad;
}

// Of `examples` examples together, in terms of a tile of half the positions.
static uint64_t view_work(const conv_view *v, uint64_t examples) {
    uint64_t work = 0;
    EACH_SPAN(y, &v->y) {
        EACH_SPAN(x, &v->x) {
            const uint64_t positions = examples * y.places * x.places, half = TILE_WIDE / 2;
            const uint64_t terms = (uint64_t)y.taps * x.taps * v->channels + VIEW_TILE_TERMS;
            work += (positions + half - 1) / half * terms;
        }
    }
    return work;
}

// Examples whose source has `floats` floats, 1 at least, that are summed together.
static uint32_t view_examples(uint64_t floats, uint32_t m_count) {
    return (uint32_t)LK_MIN(LK_MAX(VIEW_FLOATS / floats, (uint64_t)1), (uint64_t)m_count);
}

// Outputs. The source is the input, or with `padded` the image of it.
static conv_view view_forward(const lk_conv2d *c, bool padded, bool planes) {
    const uint64_t h = padded ? lk_conv_image_h(c) : c->in_h;
    const uint64_t w = padded ? lk_conv_image_w(c) : c->in_w;
    const int64_t top = padded ? 0 : -(int64_t)c->pad_top;
    const int64_t left = padded ? 0 : -(int64_t)c->pad_left;
    return (conv_view){
        .y = {c->out_h, c->kernel_h, (uint32_t)h, top, c->stride_h, 1},
        .x = {c->out_w, c->kernel_w, (uint32_t)w, left, c->stride_w, 1},
        .channels = c->in_c,
        .planes = planes,
        .joined = !planes,
        .source = lk_conv2d_in_floats(c),
        .term_row = (uint64_t)c->kernel_w * c->in_c,
        .term_column = c->in_c,
        .terms = lk_conv_terms_forward(c),
        .out_row = (uint64_t)c->out_w * c->out_c,
        .out_column = c->out_c,
        .out_example = lk_conv2d_out_floats(c)};
}

// Of inputs, those whose (iy + pad_top) % stride_h and (ix + pad_left) % stride_w are ky and kx:
// they are read through the taps ky, ky + stride_h, .. only, and with stride 1 they are all. The
// first of them on an axis:
static uint32_t phase_first(uint32_t tap, uint32_t pad, uint32_t stride) {
    return (tap + stride - pad % stride) % stride;
}

// .. and the axis.
static axis phase_axis(uint32_t tap, uint32_t pad, uint32_t stride, uint32_t kernel, uint32_t in,
                       uint32_t out) {
    const uint32_t first = phase_first(tap, pad, stride);
    return (axis){.places = first < in ? (in - first + stride - 1) / stride : 0,
                  .taps = tap < kernel ? (kernel - tap - 1) / stride + 1 : 0,
                  .size = out,
                  .first = ((int64_t)first + pad) / stride,
                  .step = 1,
                  .way = -1};
}

// A phase of the gradient of the input. The source is the gradient of the output, or with `padded`
// the image of it.
static conv_view view_backward(const lk_conv2d *c, uint32_t ky, uint32_t kx, bool padded,
                               bool planes) {
    const lk_conv_reach h = lk_conv_reach_h(c), w = lk_conv_reach_w(c);
    const uint64_t tap = (uint64_t)c->kernel_w * c->out_c;
    conv_view v = {
        .y = phase_axis(ky, c->pad_top, c->stride_h, c->kernel_h, c->in_h, c->out_h),
        .x = phase_axis(kx, c->pad_left, c->stride_w, c->kernel_w, c->in_w, c->out_w),
        .channels = c->out_c,
        .planes = planes,
        .source = lk_conv2d_out_floats(c),
        .first = ky * tap + (uint64_t)kx * c->out_c,
        .term_row = c->stride_h * tap,
        .term_column = (uint64_t)c->stride_w * c->out_c,
        .terms = lk_conv_terms_backward(c),
        .out_row = (uint64_t)c->stride_h * c->in_w * c->in_c,
        .out_column = (uint64_t)c->stride_w * c->in_c,
        .out_example = lk_conv2d_in_floats(c)};
    v.out = ((uint64_t)phase_first(ky, c->pad_top, c->stride_h) * c->in_w +
             phase_first(kx, c->pad_left, c->stride_w)) * c->in_c;
    if (padded) {
        v.y.first -= h.first;
        v.x.first -= w.first;
        v.y.size = (uint32_t)h.count;
        v.x.size = (uint32_t)w.count;
    }
    return v;
}
