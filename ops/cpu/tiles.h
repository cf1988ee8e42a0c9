// tiles.h - the largest tiles of all variants, from which descriptors size the scratch memory:
// a plan does not depend on the variant that will run. Freestanding.
#ifndef LOCKSTEP_OPS_CPU_TILES_H
#define LOCKSTEP_OPS_CPU_TILES_H

#include "ops/geometry.h"

enum {
    LK_LANES_MAX = 16,            // floats of the widest vector
    LK_DENSE_EXAMPLES = 64,       // examples that a dense kernel works on at once
    LK_DENSE_PANEL_MAX = 64,      // units of a panel of dense_forward
    // Of up to LK_DENSE_FEW examples dense_forward has room for the sums of LK_DENSE_FEW_UNITS
    // units. Layers of LK_DENSE_FAR weights or more, for which a core's own cache is too small,
    // have it up to LK_DENSE_FEW_FAR examples.
    LK_DENSE_FEW = 16,
    LK_DENSE_FEW_UNITS = 512,
    LK_DENSE_FAR = 1 << 21,
    LK_DENSE_FEW_FAR = 32,
    LK_DENSE_RUN_FLOATS = 64 * 256,  // of its inputs, widened from 16 bits
    LK_DENSE_INPUTS_MAX = 12,     // inputs of a register tile of dense_input_gradient
    LK_DENSE_DEEP_MAX = 128,      // inputs of its panel, lanes being inputs
    LK_DENSE_RUN = 64,            // terms whose zeros are known by a bit each
    LK_DENSE_TILE_MAX = 24 * 16,  // floats of a register tile of dense_weight_gradient
    LK_DENSE_PACK_UNITS = 256,    // units that it packs: those that have a gradient
    LK_DENSE_PACK_GRAINS = 64,    // grains whose gradients it packs
    LK_DENSE_PACK_ROWS = 4096,    // floats of the rows it then computes at once; 16 rows at least
    LK_DENSE_SIDE_ROWS = 48,      // rows whose inputs it lays side by side
    LK_DENSE_SIDE_FLOATS = 1 << 18,  // of these and of gradients laid side by side, at most
    LK_GRAIN_SLICE_LEVELS = 4,    // of the tree over the slices of a grain: 4,096 examples at most
};

// Levels of nodes that a binary counter of `leaves` leaves needs.
static inline uint32_t lk_tree_levels(uint64_t leaves) {
    uint32_t levels = 0;
    for (; leaves; leaves >>= 1) levels++;
    return levels;
}

// Slices of a sum of `terms` terms.
static inline uint64_t lk_slices(uint64_t terms) {
    return (terms + LK_SLICE_TERMS - 1) / LK_SLICE_TERMS;
}

// The most examples of which dense_forward has room for the sums of LK_DENSE_FEW_UNITS units.
static inline uint32_t lk_dense_few(uint64_t k_count, uint64_t n_count) {
    return k_count * n_count < LK_DENSE_FAR ? LK_DENSE_FEW : LK_DENSE_FEW_FAR;
}

// Floats of the sums under way of dense_forward: a block of examples by a group of units.
static inline uint64_t lk_dense_sums(uint64_t k_count, uint64_t n_count, uint32_t m_count) {
    const uint64_t examples = lk_round_up(LK_MIN(m_count, (uint32_t)LK_DENSE_EXAMPLES), 8);
    const uint64_t few = lk_round_up(LK_MIN(m_count, lk_dense_few(k_count, n_count)), 8);
    const uint64_t units = lk_round_up(n_count, LK_DENSE_PANEL_MAX);
    const uint64_t together = LK_MIN(units, (uint64_t)LK_DENSE_FEW_UNITS);
    return LK_MAX(examples * LK_DENSE_PANEL_MAX, few * together);
}

// Floats that the bits of the terms of `sums` sums take.
static inline uint64_t lk_dense_bits_floats(uint64_t terms, uint64_t sums) {
    return lk_round_up((terms + LK_DENSE_RUN - 1) / LK_DENSE_RUN * sums * (LK_DENSE_RUN / 32), 16);
}

// Floats of packed gradients. A layer of one vector has nothing to gain.
static inline uint64_t lk_dense_pack_floats(uint64_t units) {
    uint64_t most = LK_MIN(lk_round_up(units, LK_LANES_MAX), (uint64_t)LK_DENSE_PACK_UNITS);
    return units > LK_LANES_MAX ? LK_DENSE_EXAMPLES * most : 0;
}

// Whether rows of `units` floats collide: a column of them lies in few places of the first cache or
// on many pages, as its values are many lines apart, most of all by a power of two.
static inline bool lk_dense_rows_collide(uint64_t units) {
    return units % 256 == 0 || units >= 1024;
}

// Floats of `examples` examples' operands of a weight gradient, laid side by side.
static inline uint64_t lk_dense_side_of(uint64_t units, uint64_t examples) {
    return (lk_round_up(units, LK_LANES_MAX) + LK_DENSE_SIDE_ROWS) * examples;
}

// For how many there is room. A plan knows of a layer's units alone: operands of 16 bits are
// widened, and summed, a few columns at a time.
static inline uint64_t lk_dense_side_floats(uint64_t units) {
    const uint64_t examples = units < 1024 ? LK_DENSE_EXAMPLES : 2 * LK_DENSE_EXAMPLES;
    if (!lk_dense_rows_collide(units)) return 0;
    return LK_MIN(lk_dense_side_of(units, examples), (uint64_t)LK_DENSE_SIDE_FLOATS);
}

#endif
