// kernels.c - how much scratch the kernels of kernels.h need: the most over all
// variants. Freestanding.
//
// The layouts are described in ops/cpu/, beside the kernels that use them.
#include "ops/kernels.h"

#include "ops/cpu/conv_shape.h"
#include "ops/cpu/tiles.h"

// Sums under way, and a tree of slices for each: blocks of examples by panels of units.
uint64_t lk_dense_forward_scratch_floats(const lk_dense *d, uint32_t m_count) {
    uint64_t examples = lk_round_up(LK_MIN(m_count, (uint32_t)LK_DENSE_EXAMPLES), 8);
    uint64_t levels = lk_tree_levels(lk_slices(d->k_count));
    return examples * LK_DENSE_PANEL_MAX * (1 + levels);
}

// dy transposed, a block of examples at a time, and one register tile's tree of slices.
uint64_t lk_dense_input_gradient_scratch_floats(const lk_dense *d, uint32_t m_count) {
    uint64_t panels = lk_round_up(LK_MIN(m_count, (uint32_t)LK_DENSE_EXAMPLES), 2 * LK_LANES_MAX);
    uint64_t levels = lk_tree_levels(lk_slices(d->n_count));
    return panels * d->n_count + levels * LK_DENSE_INPUTS_MAX * 2 * LK_LANES_MAX;
}

// One register tile's trees: over the slices of a grain, and over the grains.
uint64_t lk_dense_weight_gradient_scratch_floats(const lk_dense *d) {
    (void)d;
    return (uint64_t)(LK_GRAIN_SLICE_LEVELS + LK_TREE_LEVELS_MAX) * LK_DENSE_TILE_MAX;
}

// Packed weights and an image, or an image and the sums of a gradient; see conv_shape.h.
uint64_t lk_conv2d_scratch_floats(const lk_conv2d *c) { return lk_conv_scratch_floats(c); }
