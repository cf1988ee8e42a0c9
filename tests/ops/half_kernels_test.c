// half_kernels_test.c - kernels that read and store 16 bits themselves (lk_half in ops/op.h), of
// every variant that this processor runs, bit for bit against the reference on widened operands,
// its results rounded apart: random shapes, subnormals, values beside the edge of overflow.
//
//   test_half_kernels [ROUNDS]    shapes to try of each kernel (default 60)
#define _GNU_SOURCE
#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ops/cpu/tiles.h"
#include "ops/half.h"
#include "ops/variant.h"
#include "tests/ops/guarded.h"
#include "tests/ops/kernel_calls.h"

#define free guarded_give  // all memory here is from guarded_take()

enum { GRAINS_MAX = 5 };

static unsigned rounds = 60;
static uint64_t draws;
static const lk_kernels *const judge = &lk_kernels_reference;

static uint32_t draw(uint32_t below) {
    draws = draws * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((draws >> 33) % below);
}
static uint32_t draw_from(uint32_t least, uint32_t most) { return least + draw(most - least + 1); }

// `large`: so that sums of some products are past the edge, and sums of others are not.
static float value(lk_dtype dtype, bool large) {
    const float unit = (float)draw(1u << 24) * 0x1p-23f - 1.0f;
    switch (draw(large ? 3 : 6)) {
    case 0: return 0.0f;
    case 1: return unit;
    case 2: return large ? unit * (dtype == LK_F16 ? 0x1.8p7f : 0x1.8p63f) : unit * 0x1p-3f;
    case 3: return unit * (dtype == LK_F16 ? 0x1p-20f : 0x1p-120f);
    case 4: return -0.0f;
    default: return unit * 0x1p-7f;
    }
}

// A tensor, in fp32 and in 16 bits; `half` says which one the kernel gets.
typedef struct operand {
    float *wide;
    uint16_t *narrow;
    bool half;
} operand;

static operand operand_of(uint64_t count, lk_dtype dtype, bool half, bool large, bool drawing) {
    operand o = {guarded_take(count * sizeof(float), 0x7b), NULL, half};
    for (uint64_t i = 0; i < count; i++) {
        o.wide[i] = drawing && draw(16) ? 0.0f : value(dtype, large);
    }
    (void)judge->round(dtype, count, o.wide, o.wide);
    if (!half) return o;
    const lk_narrow how = {.dtype = dtype};
    o.narrow = guarded_take(count * sizeof *o.narrow, 0x7b);
    assert_int_equal(judge->narrow(&how, count, o.wide, o.narrow), 0);
    return o;
}

static void *of(const operand *o) { return o->half ? (void *)o->narrow : (void *)o->wide; }

static void release(const operand *o) {
    free(o->wide);
    free(o->narrow);
}

static void same(const char *variant, const lk_op *op, const lk_half *h, const void *want,
                 const void *got, uint64_t bytes) {
    if (memcmp(want, got, bytes) == 0) return;
    print_error("%s %s differs: dtype %d x %d dy %d out %d rule %d\n", variant, op->type->name,
                h->dtype, h->x, h->dy, h->out.dtype, h->out.rule);
    fail();
}

// One op over examples, by the judge and by every table that says it takes 16 bits.
typedef struct trial {
    lk_op op;
    lk_half half;
    lk_lane lane;  // what the kernel gets, but for its outputs
    uint64_t count;
    float *wide;  // the judge's output, before it is rounded
    uint32_t bad;
    uint8_t *winners;  // of a pool
    bool pools;
} trial;

static lk_half draw_half(lk_dtype dtype, bool x, bool dy) {
    static const lk_narrow_rule rules[] = {LK_NARROW, LK_NARROW_RELU, LK_NARROW_RELU_AFTER};
    lk_half h = {.dtype = dtype, .x = x, .dy = dy};
    h.out.dtype = dtype;
    h.out.rule = rules[draw(3)];
    return h;
}

static void try_all(trial *t, lk_role role) {
    const bool half = t->half.out.dtype != LK_F32;
    const uint64_t bytes = t->count * (half ? 2 : 4);
    uint16_t *rounded = guarded_take(t->count * 2, 0);
    const lk_kernels *k;
    uint32_t bad = half && !t->pools
                       ? judge->narrow(&t->half.out, t->count, t->wide, rounded)
                       : t->bad;
    if (t->pools) {
        uint64_t at = 0, from = 0;
        bad = 0;
        for (uint32_t m = 0; m < t->lane.examples; m++) {
            bad |= judge->narrow_pool(&t->half.out, &t->op.conv, t->wide + from, rounded + at,
                                      t->winners + at);
            at += lk_conv2d_pooled_floats(&t->op.conv);
            from += lk_conv2d_out_floats(&t->op.conv);
        }
    }
    for (unsigned v = 0; (void)lk_kernels_missing(v, &k), k; v++) {
        if (lk_kernels_missing(v, &k) || !k->half[t->op.type->number]) continue;
        const uint64_t floats = t->op.type->half_floats(&t->op, t->lane.examples);
        lk_ahead ahead = {0};
        lk_lane l = t->lane;
        uint8_t *winners = guarded_take(t->count, 0);
        l.at[LK_SCRATCH] = guarded_take(floats * sizeof(float), 0xa5);
        l.at[role] = guarded_take(bytes, 0xa5);
        if (t->pools) l.at[LK_AUX] = winners;
        l.ahead = &ahead;
        l.half = &t->half;
        assert_int_equal(call_op(k, &t->op, &l), bad);
        if (!bad) same(k->name, &t->op, &t->half, half ? (void *)rounded : t->wide, l.at[role],
                       bytes);
        if (!bad && t->pools) same(k->name, &t->op, &t->half, t->winners, winners, t->count);
        free(winners);
        free(l.at[LK_SCRATCH]);
        free(l.at[role]);
    }
    free(rounded);
}

static lk_dtype draw_dtype(void) { return draw(2) ? LK_F16 : LK_BF16; }

static void test_dense(void **state) {
    (void)state;
    for (unsigned i = 0; i < rounds; i++) {
        const lk_dtype dtype = draw_dtype();
        const bool large = draw(4) == 0;
        const lk_dense d = {.k_count = draw_from(1, draw(3) ? 90 : 1400),
                            .n_count = draw_from(1, draw(3) ? 40 : 150)};
        const uint32_t m = draw_from(1, draw(4) ? 20 : 150);
        const operand x = operand_of((uint64_t)m * d.k_count, dtype, draw(4) > 0, large, draw(3));
        const operand w = operand_of((uint64_t)d.k_count * d.n_count, dtype, false, large, false);
        const operand bias = operand_of(d.n_count, dtype, false, large, false);
        trial t = {.op = {.type = &lk_op_dense, .floats = d.n_count, .dense = d},
                   .half = draw_half(dtype, x.half, false),
                   .lane = {.examples = m, .param = {w.wide, draw(2) ? bias.wide : NULL}},
                   .count = (uint64_t)m * d.n_count};
        if (draw(4) == 0) t.half.out = (lk_narrow){.dtype = LK_F32};
        t.lane.at[LK_X] = of(&x);
        t.wide = guarded_take(t.count * sizeof(float), 0);
        t.bad = dense_forward(judge, &d, m, x.wide, w.wide, t.lane.param[1], t.wide, NULL);
        try_all(&t, LK_Y);
        free(t.wide);
        release(&x), release(&w), release(&bias);
    }
}

static void test_dense_input_gradient(void **state) {
    (void)state;
    for (unsigned i = 0; i < rounds; i++) {
        const lk_dtype dtype = draw_dtype();
        const bool large = draw(4) == 0;
        const lk_dense d = {.k_count = draw_from(1, draw(3) ? 60 : 400),
                            .n_count = draw_from(1, draw(3) ? 70 : 900)};
        const uint32_t m = draw_from(1, draw(4) ? 40 : 150);
        // Few gradients that are not zero: one way of doing it. Many: the other.
        const operand dy =
            operand_of((uint64_t)m * d.n_count, dtype, draw(4) > 0, large, draw(2) > 0);
        const operand w = operand_of((uint64_t)d.k_count * d.n_count, dtype, false, large, false);
        trial t = {.op = {.type = &lk_op_dense_input_gradient, .floats = d.n_count, .dense = d},
                   .half = {.dtype = dtype, .dy = dy.half, .out = {.dtype = dtype}},
                   .lane = {.examples = m, .param = {w.wide}},
                   .count = (uint64_t)m * d.k_count};
        const operand mask = operand_of(t.count, dtype, true, false, false);
        if (draw(2)) {
            t.half.out.rule = LK_NARROW_MASK;
            t.half.out.mask = mask.narrow;
        }
        t.lane.at[LK_DY] = of(&dy);
        t.wide = guarded_take(t.count * sizeof(float), 0);
        (void)dense_input_gradient(judge, &d, m, w.wide, dy.wide, NULL, t.wide, NULL);
        try_all(&t, LK_DX);
        free(t.wide);
        release(&dy), release(&w), release(&mask);
    }
}

// A single sum that is too large for 16 bits is noticed wherever it is, where lanes are inputs:
// each of the examples has one gradient.
static void test_dense_input_gradient_of_a_large_sum(void **state) {
    const lk_dense d = {.k_count = 300, .n_count = 40};
    const uint32_t m = LK_DENSE_EXAMPLES;
    (void)state;
    for (uint32_t at = 0; at < d.k_count; at += 3) {
        const lk_dtype dtype = draw_dtype();
        const operand dy = operand_of((uint64_t)m * d.n_count, dtype, false, false, false);
        const operand w = operand_of((uint64_t)d.k_count * d.n_count, dtype, false, false, false);
        const uint32_t n = draw(d.n_count);
        memset(dy.wide, 0, (uint64_t)m * d.n_count * sizeof(float));
        for (uint32_t i = 0; i < m; i++) dy.wide[i * d.n_count + (n + i) % d.n_count] = 1.0f;
        w.wide[at * d.n_count + n] = (draw(2) ? -1.0f : 1.0f) * (dtype == LK_F16 ? 65520 : FLT_MAX);
        trial t = {.op = {.type = &lk_op_dense_input_gradient, .floats = d.n_count, .dense = d},
                   .half = {.dtype = dtype, .out = {.dtype = dtype}},
                   .lane = {.examples = m, .param = {w.wide}},
                   .count = (uint64_t)m * d.k_count};
        const operand mask = operand_of(t.count, dtype, true, false, false);
        if (draw(2)) t.half.out = (lk_narrow){dtype, LK_NARROW_MASK, mask.narrow};
        t.lane.at[LK_DY] = dy.wide;
        t.wide = guarded_take(t.count * sizeof(float), 0);
        (void)dense_input_gradient(judge, &d, m, w.wide, dy.wide, NULL, t.wide, NULL);
        try_all(&t, LK_DX);
        free(t.wide);
        release(&dy), release(&w), release(&mask);
    }
}

static lk_conv2d draw_conv(void) {
    lk_conv2d c = {.in_c = draw_from(1, draw(2) ? 3 : 20), .out_c = draw_from(1, 40)};
    c.kernel_h = draw_from(1, 5);
    c.kernel_w = draw(2) ? c.kernel_h : draw_from(1, 5);
    c.stride_h = draw_from(1, 2);
    c.stride_w = draw_from(1, 2);
    if (draw(2)) c.in_c = c.stride_h = c.stride_w = 1;  // what drawings are
    c.in_h = draw_from(c.kernel_h + c.stride_h, 14);
    c.in_w = draw_from(c.kernel_w + c.stride_w, 20);
    c.pad_top = draw(c.kernel_h);
    c.pad_left = draw(c.kernel_w);
    c.out_h = (c.in_h + 2 * c.pad_top - c.kernel_h) / c.stride_h + 1;
    c.out_w = (c.in_w + 2 * c.pad_left - c.kernel_w) / c.stride_w + 1;
    return c;
}

static void try_pool(const lk_conv2d *c, const lk_half *half, uint32_t m, const operand *x,
                     float *w, float *bias) {
    trial t = {.op = {.type = &lk_op_conv2d_pool, .conv = *c},
               .half = *half,
               .lane = {.examples = m, .param = {w, bias}},
               .count = m * lk_conv2d_pooled_floats(c),
               .pools = true};
    t.op.floats = lk_conv2d_pooled_floats(c);
    t.lane.at[LK_X] = of(x);
    t.wide = guarded_take(m * lk_conv2d_out_floats(c) * sizeof(float), 0);
    t.winners = guarded_take(t.count, 0);
    (void)conv2d_forward(judge, c, m, x->wide, w, bias, t.wide, NULL);
    if (t.count > 0) try_all(&t, LK_Y);
    free(t.wide);
    free(t.winners);
}

static void test_conv2d_pool(void **state) {
    (void)state;
    for (unsigned i = 0; i < rounds; i++) {
        const lk_dtype dtype = draw_dtype();
        const bool large = draw(4) == 0;
        const lk_conv2d c = draw_conv();
        const uint32_t m = draw_from(1, 3);
        const operand x =
            operand_of(m * lk_conv2d_in_floats(&c), dtype, draw(4) > 0, large, draw(2) > 0);
        const operand w = operand_of(lk_conv2d_weight_floats(&c), dtype, false, large, false);
        const operand bias = operand_of(c.out_c, dtype, false, large, false);
        const lk_half half = draw_half(dtype, x.half, false);
        try_pool(&c, &half, m, &x, w.wide, draw(2) ? bias.wide : NULL);
        release(&x), release(&w), release(&bias);
    }
}

// A sum that is too large for 16 bits is noticed where it is a pool's loser, too.
static void test_conv2d_pool_of_a_large_loser(void **state) {
    (void)state;
    for (uint32_t kernel = 1; kernel <= 5; kernel++) {
        const uint32_t side = kernel + 3, floats = side * side;
        const lk_conv2d c = {.in_h = side, .in_w = side, .in_c = 1, .out_c = 33, .out_h = 4,
                             .out_w = 4, .kernel_h = kernel, .kernel_w = kernel, .stride_h = 1,
                             .stride_w = 1};
        for (uint32_t at = 0; at < floats; at++) {
            const operand x = operand_of(floats, LK_F16, false, false, false);
            const operand w = operand_of(lk_conv2d_weight_floats(&c), LK_F16, false, false, false);
            const lk_half half = draw_half(LK_F16, false, false);
            w.wide[lk_conv2d_weight_floats(&c) / 2] = -64.0f;
            x.wide[at] = 1200.0f;
            try_pool(&c, &half, 1, &x, w.wide, NULL);
            release(&x), release(&w);
        }
    }
}

// --- gradients of parameters: every table, the reference too -------------------------------------

typedef struct grains {
    uint32_t count;
    operand x[GRAINS_MAX], dy[GRAINS_MAX];
    uint8_t *argmax[GRAINS_MAX];
    lk_grain_view wide[GRAINS_MAX], given[GRAINS_MAX];
} grains;

static void draw_grains(grains *g, lk_half *h, uint64_t x, uint64_t dy) {
    h->x = draw(4) > 0;
    h->dy = draw(4) > 0;
    g->count = draw_from(1, GRAINS_MAX);
    for (uint32_t i = 0; i < g->count; i++) {
        const uint32_t examples = draw_from(1, 9);
        g->x[i] = operand_of(examples * x, h->dtype, h->x, false, draw(2) > 0);
        g->dy[i] = operand_of(examples * dy, h->dtype, h->dy, false, draw(2) > 0);
        g->argmax[i] = guarded_take(examples * dy, 0);
        for (uint64_t j = 0; j < examples * dy; j++) g->argmax[i][j] = (uint8_t)draw(4);
        g->wide[i] = (lk_grain_view){g->x[i].wide, g->dy[i].wide, g->argmax[i], examples};
        g->given[i] = (lk_grain_view){of(&g->x[i]), of(&g->dy[i]), g->argmax[i], examples};
    }
}

static void try_grains(const lk_op *op, const lk_half *h, grains *g, uint64_t weights,
                       uint64_t biases) {
    float *want[2] = {guarded_take(weights * 4, 0), guarded_take(biases * 4, 0)};
    lk_lane l = {.grain_count = g->count, .grains = g->wide, .sums = {want[0], want[1]}};
    const lk_kernels *k;
    (void)call_op(judge, op, &l);
    for (unsigned v = 0; (void)lk_kernels_missing(v, &k), k; v++) {
        if (lk_kernels_missing(v, &k)) continue;
        const uint64_t floats = LK_MAX(op->type->half_floats(op, 9 * GRAINS_MAX), 1);
        float *got[2] = {guarded_take(weights * 4, 0xa5), guarded_take(biases * 4, 0xa5)};
        l = (lk_lane){.grain_count = g->count, .grains = g->given, .sums = {got[0], got[1]}};
        l.at[LK_SCRATCH] = guarded_take(floats * sizeof(float), 0xa5);
        l.half = h;
        (void)call_op(k, op, &l);
        for (uint32_t i = 0; i < 2; i++) {
            const uint64_t count = i ? biases : weights;
            for (uint64_t j = 0; j < count; j++) {  // a node's zeros have no sign
                got[i][j] = got[i][j] + 0.0f;
                want[i][j] = want[i][j] + 0.0f;
            }
            same(k->name, op, h, want[i], got[i], count * 4);
            free(got[i]);
        }
        free(l.at[LK_SCRATCH]);
    }
    for (uint32_t i = 0; i < g->count; i++) {
        release(&g->x[i]), release(&g->dy[i]);
        free(g->argmax[i]);
    }
    free(want[0]);
    free(want[1]);
}

static void test_weight_gradients(void **state) {
    (void)state;
    for (unsigned i = 0; i < rounds; i++) {
        const bool pools = draw(2);
        const lk_op op = {.type = pools ? &lk_op_conv2d_pool_weight_gradient
                                        : &lk_op_conv2d_weight_gradient,
                          .conv = draw_conv()};
        const lk_conv2d *c = &op.conv;
        lk_half h = {.dtype = draw_dtype()};
        grains g;
        if (lk_conv2d_pooled_floats(c) == 0) continue;
        draw_grains(&g, &h, lk_conv2d_in_floats(c),
                    pools ? lk_conv2d_pooled_floats(c) : lk_conv2d_out_floats(c));
        try_grains(&op, &h, &g, lk_conv2d_weight_floats(c), c->out_c);
    }
}

// Of many input channels kernels read the example as it is: with padding, and with a last row and a
// last column that no window sees.
static void test_weight_gradients_of_many_channels(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 16; i++) {
        const uint32_t side = 7 + i % 2, pad = i / 2 % 2, kernel = 2 + i / 4 % 2;
        const uint32_t out = (side + 2 * pad - kernel) / 2 + 1;
        const lk_op op = {.type = &lk_op_conv2d_weight_gradient,
                          .conv = {.in_h = side, .in_w = side, .in_c = draw_from(32, 40),
                                   .out_c = draw_from(1, 40), .kernel_h = kernel,
                                   .kernel_w = kernel, .stride_h = 2, .stride_w = 2,
                                   .pad_top = pad, .pad_left = pad, .out_h = out, .out_w = out}};
        const lk_conv2d *c = &op.conv;
        lk_half h = {.dtype = draw_dtype()};
        grains g;
        draw_grains(&g, &h, lk_conv2d_in_floats(c), lk_conv2d_out_floats(c));
        try_grains(&op, &h, &g, lk_conv2d_weight_floats(c), c->out_c);
    }
}

static void test_bias_gradients(void **state) {
    (void)state;
    for (unsigned i = 0; i < rounds; i++) {
        const lk_op op = {.type = &lk_op_dense_bias_gradient,
                          .dense = {.k_count = 1, .n_count = draw_from(1, 70)}};
        lk_half h = {.dtype = draw_dtype()};
        grains g;
        draw_grains(&g, &h, 1, op.dense.n_count);
        try_grains(&op, &h, &g, 0, op.dense.n_count);
    }
}

int main(int argc, char **argv) {
    if (argc > 1) rounds = (unsigned)strtoul(argv[1], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_dense_input_gradient),
        cmocka_unit_test(test_dense_input_gradient_of_a_large_sum),
        cmocka_unit_test(test_conv2d_pool),
        cmocka_unit_test(test_conv2d_pool_of_a_large_loser),
        cmocka_unit_test(test_weight_gradients),
        cmocka_unit_test(test_weight_gradients_of_many_channels),
        cmocka_unit_test(test_bias_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
