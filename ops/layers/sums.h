// sums.h - sums as ARITHMETIC.md 2 has them, one scalar at a time: what the reference kernels of
// ops/layers/ are written in. Freestanding. Fast kernels share no code with it.
#ifndef LOCKSTEP_OPS_LAYERS_SUMS_H
#define LOCKSTEP_OPS_LAYERS_SUMS_H

#include "ops/fmaf.h"
#include "ops/half.h"
#include "ops/op.h"

// A sum under way: the chain of the current slice, and the finished slices as a binary counter of
// tree nodes (node[l] stands for 2^l leaves where bit l of `leaves` is set).
typedef struct tree_sum {
    float node[LK_TREE_LEVELS_MAX];
    uint64_t leaves;
} tree_sum;

static inline void tree_start(tree_sum *t) { t->leaves = 0; }

static inline void tree_leaf(tree_sum *t, float value) {
    unsigned level = 0;
    for (; t->leaves >> level & 1; level++) value = t->node[level] + value;
    t->node[level] = value;
    t->leaves++;
}

// The root. Nodes without a right sibling are copied upwards, so only the set bits take part.
static inline float tree_finish(const tree_sum *t) {
    bool some = false;
    float sum = 0.0f;
    for (unsigned level = 0; level < LK_TREE_LEVELS_MAX; level++) {
        if (!(t->leaves >> level & 1)) continue;
        sum = some ? t->node[level] + sum : t->node[level];
        some = true;
    }
    return sum;
}

typedef struct slice_sum {
    tree_sum tree;
    float chain;
    uint32_t terms;  // in the current slice
} slice_sum;

static inline void slice_start(slice_sum *s, float start) {
    tree_start(&s->tree);
    s->chain = start;
    s->terms = 0;
}

static inline void slice_cut(slice_sum *s) {
    tree_leaf(&s->tree, s->chain);
    s->chain = 0.0f;
    s->terms = 0;
}

static inline void slice_term(slice_sum *s, float a, float b) {
    if (s->terms == LK_SLICE_TERMS) slice_cut(s);
    s->chain = lk_fmaf(a, b, s->chain);
    s->terms++;
}

// The finished sum: + 0.0f makes -0 into +0, so zero terms never matter.
static inline float slice_finish(slice_sum *s) {
    tree_leaf(&s->tree, s->chain);
    return tree_finish(&s->tree) + 0.0f;
}

// Value i of a tensor of that dtype.
static inline float lk_value_at(lk_dtype dtype, const void *p, uint64_t i) {
    if (LK_HAS_MIXED && dtype == LK_F16) return lk_half_to_float(((const uint16_t *)p)[i]);
    if (LK_HAS_MIXED && dtype == LK_BF16) return lk_bfloat_to_float(((const uint16_t *)p)[i]);
    return ((const float *)p)[i];
}

static inline bool lk_lane_x_is_half(const lk_lane *l) {
    return LK_HAS_MIXED && l->half && l->half->x;
}
static inline bool lk_lane_dy_is_half(const lk_lane *l) {
    return LK_HAS_MIXED && l->half && l->half->dy;
}

static inline uint32_t lk_not_finite(float x) { return !(x - x == 0.0f); }
static inline float lk_relu(float x) { return x > 0.0f ? x : 0.0f; }

// One grain's sum over examples of x[m][k] * dy[m][n]; x == NULL stands for ones.
static inline float grain_sum(const lk_grain_view *g, const float *x, uint64_t x_stride,
                              const float *dy, uint64_t dy_stride) {
    slice_sum s;
    slice_start(&s, 0.0f);
    for (uint32_t m = 0; m < g->examples; m++) {
        slice_term(&s, x ? x[m * x_stride] : 1.0f, dy[m * dy_stride]);
    }
    tree_leaf(&s.tree, s.chain);
    return tree_finish(&s.tree);
}

#endif
