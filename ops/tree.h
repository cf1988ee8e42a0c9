// tree.h - the tree's bookkeeping: nodes by number, and how a run of leaves splits into whole
// nodes.
//
// Node (level, index) stands for leaves [index << level, (index + 1) << level); its value is the
// sum of its two children, or a copy of the one that exists. Leaves are the grains of a global
// batch. Which replica holds a leaf never matters: any run of leaves is a few whole nodes.
// Freestanding, numbers only.
#ifndef LOCKSTEP_OPS_TREE_H
#define LOCKSTEP_OPS_TREE_H

#include "ops/geometry.h"

typedef struct lk_node {
    uint32_t level, index;
} lk_node;

enum { LK_BLOCKS_MAX = 2 * LK_TREE_LEVELS_MAX };

// The level of the root over `leaves` leaves: the least with 1 << level >= leaves.
static inline uint32_t lk_root_level(uint32_t leaves) {
    uint32_t level = 0;
    while ((uint64_t)1 << level < leaves) level++;
    return level;
}

// The largest whole node that starts at leaf `at` and has no leaf in [end, total): a node may reach
// over the end of all leaves, where there is nothing. at < end <= total.
static inline lk_node lk_next_block(uint32_t at, uint32_t end, uint32_t total) {
    uint32_t level = 0;
    while (level < 31) {
        uint64_t wide = (uint64_t)2 << level;
        if (at % wide != 0) break;
        if (at + wide > end && end != total) break;
        if ((uint64_t)at + (wide >> 1) >= end)
            break;  // the narrower node already holds all that is left
        level++;
    }
    return (lk_node){level, at >> level};
}

// A binary counter of nodes: what a replica holds while it adds blocks from left to right. Each
// entry has one slot of memory; slot i belongs to entry i.
typedef struct lk_counter {
    uint32_t count;
    lk_node nodes[LK_BLOCKS_MAX];
} lk_counter;

// Enters a block to the right of all others. Returns how many times the two topmost slots must then
// be added (slot[top - 1] = slot[top - 1] + slot[top], top--), which the entries already reflect.
static inline uint32_t lk_counter_push(lk_counter *c, lk_node block) {
    lk_assert(c->count < LK_BLOCKS_MAX);
    uint32_t merges = 0;
    while (c->count > 0 && block.index % 2 == 1) {
        lk_node top = c->nodes[c->count - 1];
        if (top.level != block.level || top.index != block.index - 1) break;
        block = (lk_node){block.level + 1, block.index / 2};
        c->count--;
        merges++;
    }
    c->nodes[c->count++] = block;
    return merges;
}

#endif
