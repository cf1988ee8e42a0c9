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

// Which terms are not zero. Then, lanes being examples, dy transposed, a block of examples at a
// time, and one register tile's tree of slices; or, lanes being inputs, a panel of weights
// transposed, of one run of units, and the terms of each example: address, factor; how many.
uint64_t lk_dense_input_gradient_scratch_floats(const lk_dense *d, uint32_t m_count) {
    uint64_t examples = LK_MIN(m_count, (uint32_t)LK_DENSE_EXAMPLES);
    uint64_t levels = lk_tree_levels(lk_slices(d->n_count));
    uint64_t broad =
        lk_round_up(examples, 2 * LK_LANES_MAX) * lk_round_up(d->n_count, LK_LANES_MAX) +
        levels * LK_DENSE_INPUTS_MAX * 2 * LK_LANES_MAX;
    uint64_t lists = examples * (1 + d->n_count * 3);
    uint64_t deep = d->n_count > LK_DENSE_RUN ? 0 : LK_DENSE_RUN * LK_DENSE_DEEP_MAX + lists;
    return lk_dense_bits_floats(d->n_count, examples + 1) + LK_MAX(broad, deep);
}

// One register tile's trees: over the slices of a grain, and over the grains. Then, if units
// without a gradient are left out: which they are, the grains without them, and rows of sums.
uint64_t lk_dense_weight_gradient_scratch_floats(const lk_dense *d) {
    uint64_t trees = (uint64_t)(LK_GRAIN_SLICE_LEVELS + LK_TREE_LEVELS_MAX) * LK_DENSE_TILE_MAX;
    uint64_t views = LK_DENSE_PACK_GRAINS * sizeof(lk_grain_view) / sizeof(float);
    uint64_t packed = lk_dense_pack_floats(d->n_count);
    if (packed == 0) return trees + LK_LANES_MAX;
    return trees + LK_LANES_MAX + lk_dense_bits_floats(d->n_count, 1) + views + packed +
           LK_DENSE_PACK_ROWS;
}

// Packed weights and an image, or an image and the sums of a gradient; see conv_shape.h.
uint64_t lk_conv2d_scratch_floats(const lk_conv2d *c) { return lk_conv_scratch_floats(c); }
