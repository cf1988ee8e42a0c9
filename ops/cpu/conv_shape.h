// conv_shape.h - how much scratch the fast convolution kernels lay out, and where its parts begin.
//
// Included by the kernels of every variant and by lk_conv2d_scratch_floats(), so that they agree.
// The numbers do not depend on the variant: they hold for vectors of up to LK_LANES_MAX floats.
//
// Scratch of the output and input gradient kernels:   packed weights | bias | image | slice nodes
// Scratch of the weight gradient kernels:             image | sums and their tree nodes
// Scratch of the pooled input gradient, if it scatters: sums | winners | packed weights
#ifndef LOCKSTEP_OPS_CPU_CONV_SHAPE_H
#define LOCKSTEP_OPS_CPU_CONV_SHAPE_H

#include "ops/cpu/tiles.h"
#include "ops/geometry.h"

enum {
        LK_CONV_PANEL = 2 * LK_LANES_MAX,       // channels packed side by side
    LK_CONV_TILE_FLOATS = 8 * LK_CONV_PANEL, // sums that one tile keeps in registers, at most
    LK_CONV_SUMS = 32768,                    // room for a weight gradient's sums and their tree
};

// The image with its zeros around it, as far as the kernel reaches; what it never reaches is left
// out.
static inline uint64_t lk_conv_image_h(const lk_conv2d *c) {
    return (uint64_t)(c->out_h - 1) * c->stride_h + c->kernel_h;
}
static inline uint64_t lk_conv_image_w(const lk_conv2d *c) {
    return (uint64_t)(c->out_w - 1) * c->stride_w + c->kernel_w;
}
// Vectors may be read past the last pixel.
static inline uint64_t lk_conv_image_floats(const lk_conv2d *c) {
    return lk_round_up(lk_conv_image_h(c) * lk_conv_image_w(c) * c->in_c, LK_LANES_MAX) +
           2 * LK_LANES_MAX;
}

// The rows (or columns) of the output's gradient that an input gradient reaches: from `first`,
// which is negative where it begins with zeros, `count` of them.
typedef struct lk_conv_reach {
    int64_t first;
    uint64_t count;
} lk_conv_reach;

static inline lk_conv_reach lk_conv_reach_of(uint32_t in, uint32_t kernel, uint32_t stride,
                                             uint32_t pad) {
    int64_t low = (int64_t)pad - (kernel - 1), high = (int64_t)in - 1 + pad;
    int64_t first = low >= 0 ? low / stride : -((stride - 1 - low) / stride);
    lk_conv_reach reach = {first, (uint64_t)(high / stride - first + 1)};
    return reach;
}
static inline lk_conv_reach lk_conv_reach_h(const lk_conv2d *c) {
    return lk_conv_reach_of(c->in_h, c->kernel_h, c->stride_h, c->pad_top);
}
static inline lk_conv_reach lk_conv_reach_w(const lk_conv2d *c) {
    return lk_conv_reach_of(c->in_w, c->kernel_w, c->stride_w, c->pad_left);
}
static inline uint64_t lk_conv_gradient_floats(const lk_conv2d *c) {
    return lk_round_up(lk_conv_reach_h(c).count * lk_conv_reach_w(c).count * c->out_c,
                       LK_LANES_MAX) + 2 * LK_LANES_MAX;
}

// Terms of one output, or of one input's gradient.
static inline uint64_t lk_conv_terms_forward(const lk_conv2d *c) {
    return (uint64_t)c->kernel_h * c->kernel_w * c->in_c;
}
static inline uint64_t lk_conv_terms_backward(const lk_conv2d *c) {
    return (uint64_t)c->kernel_h * c->kernel_w * c->out_c;
}

// Nodes of a tile whose sums have `terms` terms: none if they are one slice.
static inline uint64_t lk_conv_node_floats(uint64_t terms) {
    uint64_t slices = lk_slices(terms);
    return slices <= 1 ? 0 : (uint64_t)(lk_tree_levels(slices) + 1) * LK_CONV_TILE_FLOATS;
}

// Sums of the weight gradient, padded in whichever way a kernel lays them out.
static inline uint64_t lk_conv_sum_floats(const lk_conv2d *c) {
    uint64_t taps = lk_conv_terms_forward(c) + 1;
    uint64_t by_channel = taps * lk_round_up(c->out_c, LK_CONV_PANEL);
    uint64_t by_tap = (uint64_t)c->kernel_h *
                      lk_round_up((uint64_t)c->kernel_w * c->in_c, LK_LANES_MAX) * c->out_c;
    uint64_t floats = LK_MAX(by_channel, by_tap);
    // A sum, a node for every level that grains and slices can have, and one under way.
    uint64_t all = floats * (2 * LK_TREE_LEVELS_MAX + 2);
    return LK_MIN(all, (uint64_t)LK_CONV_SUMS);
}

// A pooled gradient goes back to the image winner by winner where the sums are one slice: the sums
// of the whole image, with room between the rows for lanes that are not used; weights by output
// channel; and the list of a position's winners.
static inline bool lk_conv_scatters(const lk_conv2d *c) {
    return lk_conv_terms_backward(c) <= LK_SLICE_TERMS;
}
static inline uint64_t lk_conv_scatter_pitch(const lk_conv2d *c) {
    return lk_round_up(lk_conv_image_w(c) * c->in_c, LK_LANES_MAX) + LK_LANES_MAX;
}
static inline uint64_t lk_conv_scatter_image_floats(const lk_conv2d *c) {
    return (lk_conv_image_h(c) + 1) * lk_conv_scatter_pitch(c);
}
static inline uint64_t lk_conv_scatter_list_floats(const lk_conv2d *c) {
    return lk_round_up(c->out_c, LK_LANES_MAX) + LK_LANES_MAX;
}
static inline uint64_t lk_conv_scatter_floats(const lk_conv2d *c) {
    if (!lk_conv_scatters(c)) return 0;
    uint64_t run = lk_round_up((uint64_t)c->kernel_w * c->in_c, LK_LANES_MAX);
    return lk_conv_scatter_image_floats(c) + c->kernel_h * run * c->out_c +
           2 * lk_conv_scatter_list_floats(c);
}

static inline uint64_t lk_conv_scratch_floats(const lk_conv2d *c) {
    uint64_t terms = LK_MAX(lk_conv_terms_forward(c), lk_conv_terms_backward(c));
    uint64_t image = LK_MAX(lk_conv_image_floats(c), lk_conv_gradient_floats(c));
    uint64_t packed = (terms + 1) * LK_CONV_PANEL + lk_conv_node_floats(terms);
    uint64_t most = image + LK_MAX(packed, lk_conv_sum_floats(c));
    return LK_MAX(most, lk_conv_scatter_floats(c));
}

#endif
