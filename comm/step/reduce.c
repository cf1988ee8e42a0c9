// reduce.c - the top of the tree. Freestanding.
#include "comm/step/reduce.h"

typedef struct reduction {
    const lk_kernels *kernels;
    const lk_holding *holdings;
    uint32_t holder_count;
    uint32_t leaves;
    uint64_t offset, count;
    float *scratch;  // one row of `count` for each level
} reduction;

static const float *find(const reduction *r, lk_node node) {
    for (uint32_t h = 0; h < r->holder_count; h++) {
        const lk_holding *held = &r->holdings[h];
        for (uint32_t i = 0; i < held->counter->count; i++) {
            lk_node n = held->counter->nodes[i];
            if (n.level == node.level && n.index == node.index) {
                return held->values + i * held->stride + r->offset;
            }
        }
    }
    return NULL;
}

// The value of a node, or NULL where it has no leaf. The recursion is as deep as the tree.
static const float *node_value(const reduction *r, lk_node node) {
    if ((uint64_t)node.index << node.level >= r->leaves) return NULL;
    const float *held = find(r, node);
    if (held) return held;
    lk_assert(node.level > 0);  // a leaf that nobody holds: the ranges did not cover the batch
    // Both children may be computed in the row below: so the right one is, first, moved out of the
    // way where it is not in a holder's memory. The sum is left + right all the same.
    float *row = r->scratch + node.level * r->count;
    const float *right = node_value(r, (lk_node){node.level - 1, node.index * 2 + 1});
    if (!right) return node_value(r, (lk_node){node.level - 1, node.index * 2});
    if (right >= r->scratch && right < row) {
        for (uint64_t i = 0; i < r->count; i++) row[i] = right[i];
        right = row;
    }
    const float *left = node_value(r, (lk_node){node.level - 1, node.index * 2});
    r->kernels->add(r->count, left, right, row);
    return row;
}

const float *lk_reduce_node(const lk_kernels *kernels, const lk_holding *holdings,
                            uint32_t holder_count, uint32_t leaves, lk_node node, uint64_t offset,
                            uint64_t count, float *scratch) {
    const reduction r = {kernels, holdings, holder_count, leaves, offset, count, scratch};
    return node_value(&r, node);
}

const float *lk_reduce(const lk_kernels *kernels, const lk_holding *holdings, uint32_t holder_count,
                       uint32_t leaves, uint64_t offset, uint64_t count, float *scratch) {
    return lk_reduce_node(kernels, holdings, holder_count, leaves,
                          (lk_node){lk_root_level(leaves), 0}, offset, count, scratch);
}
