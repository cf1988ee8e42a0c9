// Every kernel of every variant that this processor runs against the scalar reference, bit for bit:
// the dense and the element-wise kernels. Shapes are random with odd sizes and tails, values are
// nasty, outputs are poisoned, and each buffer ends where a kernel may no longer read.
//
//   test_kernels [ROUNDS]    random shapes of each dense kernel to try (default 80)
#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ops/cpu/tiles.h"
#include "ops/graph/average.h"
#include "ops/graph/spectral.h"
#include "ops/op.h"
#include "ops/variant.h"
#include "tests/ops/guarded.h"
#include "tests/ops/kernel_calls.h"
#include "tests/ops/optimizers.h"

#define free guarded_give  // all memory here is from block()

// --- made-up operands ----------------------------------------------------------------------------

static uint64_t rounds = 80;
static uint64_t seed;

static uint32_t draw(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33);
}
static uint32_t draw_from(uint32_t low, uint32_t high) { return low + draw() % (high - low + 1); }

// The end of a dimension: small, around the sizes of vectors and tiles, or large.
static uint32_t draw_size(uint32_t large) {
    switch (draw() % 4) {
        case 0: return draw_from(1, 9);
        case 1: return draw_from(1, 5) * 16 + draw_from(0, 2) - 1;
        case 2: return draw_from(1, 70);
        default: return draw_from(1, large);
    }
}

// Whether values are ordinary: zeros, numbers of 24 bits, and numbers of few, whose sums often lie
// halfway between two floats. No sum of their products is subnormal. Otherwise they are nasty, too.
static bool ordinary;

static float draw_ordinary(void) {
    uint32_t kind = draw() % 4;
    if (kind == 0) return 0.0f;
    if (kind == 1) return (float)((int32_t)(draw() % 8191) - 4095) * 0x1p-12f;
    if (kind == 2) return draw() % 2 ? 0x1.000002p+0f : -0x1.fffffep-1f;
    return (float)(int32_t)(draw() - 0x40000000u) * 0x1p-30f;
}

// Zeros, ordinary and extreme values; sums of their products stay finite.
static float draw_value(void) {
    if (ordinary) return draw_ordinary();
    static const float special[] = {0.0f, -0.0f, 0x1p-149f, -0x1p-149f, 0x1.8p-130f, -0x1p-126f,
                                    1.0f, -1.0f, 0x1p50f,   -0x1p50f,   0x1p-60f,    0x1.fp-80f};
    uint32_t kind = draw() % 16;
    if (kind < 4) return 0.0f;
    if (kind < 6) return special[draw() % LK_COUNT(special)];
    float value = (float)(int32_t)(draw() - 0x40000000u) * 0x1p-30f;
    return kind == 6 ? value * 0x1p-100f : value;
}

// Memory that ends, rounded up to 64 bytes, where nothing may be read.
static void *block(uint64_t bytes, int fill) { return guarded_take(LK_MAX(bytes, 1u), fill); }

// So many floats; what follows them up to 64 bytes is NaN, so that nobody uses it.
static float *operand(uint64_t count) {
    float *p = block(count * sizeof *p, 0xff);
    for (uint64_t i = 0; i < count; i++) p[i] = draw_value();
    return p;
}

// Zeros as ReLU leaves them: half of the columns in all rows, and of the rest every other value.
static void quieten(float *p, uint64_t rows, uint64_t columns) {
    for (uint64_t j = 0; j < columns; j++) {
        bool silent = draw() % 2;
        for (uint64_t i = 0; i < rows; i++) {
            if (silent || draw() % 2) p[i * columns + j] = 0.0f;
        }
    }
}

// One output, computed by a variant and by the reference, each into poisoned memory.
typedef struct output {
    uint64_t bytes;
    void *want, *got;
} output;

static output output_of(uint64_t bytes) {
    return (output){bytes, block(bytes, 0xa5), block(bytes, 0x5a)};
}

static void same(const output *o, const char *variant, const char *kernel, const char *shape) {
    const uint8_t *want = o->want, *got = o->got;
    for (uint64_t i = 0; i < lk_round_up(LK_MAX(o->bytes, (uint64_t)1), 64); i++) {
        bool inside = i < o->bytes;
        if (got[i] == (inside ? want[i] : 0x5a)) continue;
        fail_msg("%s %s (%s): byte %llu of %llu is %02x, the reference has %02x%s", variant, kernel,
                 shape, (unsigned long long)i, (unsigned long long)o->bytes, got[i], want[i],
                 inside ? "" : " (written past the end)");
    }
    memset(o->got, 0x5a, lk_round_up(LK_MAX(o->bytes, (uint64_t)1), 64));
}

static void output_free(output *o) {
    free(o->want);
    free(o->got);
}

static const lk_kernels *const reference = &lk_kernels_reference;
static char shape[160];

// --- dense ---------------------------------------------------------------------------------------

// A weight or a bias that is no finite number, met by an input that is not zero: every table says
// so as the reference does.
static void check_weight_flag(const lk_dense *d, uint32_t m_count, float *x, float *w, float *bias,
                              float *y, float *scratch) {
    static const uint32_t patterns[] = {0x7fc00000, 0xff800001, 0x7f800000, 0xff800000};
    const uint32_t k_at = draw() % d->k_count;
    for (uint64_t i = 0; i < (uint64_t)m_count * d->k_count; i++) x[i] = 0.0f;
    for (uint64_t i = 0; i < (uint64_t)d->k_count * d->n_count; i++) w[i] = 0.5f;
    x[(uint64_t)(draw() % m_count) * d->k_count + k_at] = 0x1p-20f;
    for (uint32_t i = 0; i < LK_COUNT(patterns); i++) {
        float *at = &w[(uint64_t)k_at * d->n_count + draw() % d->n_count], good;
        if (d->use_bias && draw() % 2) at = &bias[draw() % d->n_count];
        good = *at;
        memcpy(at, &patterns[i], sizeof *at);
        const float *used = d->use_bias ? bias : NULL;
        assert_int_equal(dense_forward(reference, d, m_count, x, w, used, y, scratch), 1);
        EACH_VARIANT(k) {
            assert_int_equal(dense_forward(k, d, m_count, x, w, used, y, scratch), 1);
        }
        *at = good;
    }
}

// One sum that overflows, anywhere, raises the flag: also one that ReLU makes 0.
static void check_overflow_flag(const lk_dense *d, uint32_t m_count, float *x, float *w,
                                const float *bias, float *y, float *scratch) {
    const uint64_t at = draw() % d->k_count;
    x[(uint64_t)(draw() % m_count) * d->k_count + at] = 0x1p127f;
    w[at * d->n_count + draw() % d->n_count] = d->relu ? -0x1p127f : 0x1p127f;
    assert_int_equal(dense_forward(reference, d, m_count, x, w, bias, y, scratch), 1);
    EACH_VARIANT(k) {
        assert_int_equal(dense_forward(k, d, m_count, x, w, bias, y, scratch), 1);
    }
}

// What an op reads and writes, in floats of one example; a mask is like what it writes.
typedef struct divided {
    lk_op op;
    lk_lane whole;  // of all examples
    lk_role in, out;
    uint64_t in_floats, out_floats;
    const float *want;
} divided;

enum { LANES_MAX = 5 };

static float *copy_rows(const float *from, uint32_t first, uint32_t count, uint64_t floats) {
    float *rows = block(count * floats * sizeof *rows, 0xff);
    memcpy(rows, from + first * floats, count * floats * sizeof *rows);
    return rows;
}

// Lanes that divide the examples between them, each with memory of its own.
static uint32_t draw_lanes(const divided *c, lk_lane *lanes) {
    const uint32_t all = c->whole.examples, count = draw_from(2, LK_MIN(all, LANES_MAX));
    for (uint32_t i = 0, first = 0; i < count; first += lanes[i++].examples) {
        lk_lane *l = &lanes[i];
        const uint32_t left = all - first, others = count - 1 - i;
        *l = c->whole;
        l->examples = others ? draw_from(1, left - others) : left;
        l->at[c->in] = copy_rows(c->whole.at[c->in], first, l->examples, c->in_floats);
        l->at[c->out] = block(l->examples * c->out_floats * sizeof(float), 0x5a);
        if (!c->whole.at[LK_MASK]) continue;
        l->at[LK_MASK] = copy_rows(c->whole.at[LK_MASK], first, l->examples, c->out_floats);
    }
    return count;
}

static void same_rows(const divided *c, const lk_kernels *k, const lk_lane *l, uint32_t first) {
    const uint64_t bytes = l->examples * c->out_floats * sizeof(float);
    const uint8_t *got = l->at[c->out], *want = (const uint8_t *)(c->want + first * c->out_floats);
    for (uint64_t i = 0; i < lk_round_up(bytes, 64); i++) {
        if (got[i] == (i < bytes ? want[i] : 0x5a)) continue;
        fail_msg("%s %s of lane %u of %u (%s): byte %llu of %llu differs", k->name,
                 c->op.type->name, l->number, l->all_count, shape, (unsigned long long)i,
                 (unsigned long long)bytes);
    }
}

// The op may be one that has too few weights to be divided, or lanes too many examples.
static uint64_t scratch_of_all(const lk_op *op, uint32_t examples) {
    const lk_dense *d = &op->dense;
    const bool gradient = op->type == &lk_op_dense_input_gradient;
    const uint64_t rows = LK_MIN(examples, (uint32_t)LK_DENSE_EXAMPLES);
    return dense_scratch_floats(op->type, d, examples) +
           (gradient ? lk_round_up(rows * d->n_count, LK_LANES_MAX) : 0);
}

// An op that is divided: every lane computes its part of the outputs of all lanes' examples.
static void check_divided(const divided *c) {
    lk_lane lanes[LANES_MAX], *all[LANES_MAX];
    const uint32_t examples = c->whole.examples;
    if (examples < 2) return;
    EACH_VARIANT(k) {
        if (!k->divides[c->op.type->number]) continue;
        const uint32_t count = draw_lanes(c, lanes);
        const uint64_t floats = scratch_of_all(&c->op, examples);
        for (uint32_t i = 0; i < count; i++) all[i] = &lanes[i];
        for (uint32_t i = count; i-- > 0;) {
            lanes[i].at[LK_SCRATCH] = block(floats * sizeof(float), 0x7f);
            lanes[i].all = all, lanes[i].all_count = count, lanes[i].number = i;
            assert_int_equal(call_op(k, &c->op, &lanes[i]), 0);
        }
        for (uint32_t i = 0, first = 0; i < count; first += lanes[i++].examples) {
            same_rows(c, k, &lanes[i], first);
            free(lanes[i].at[c->in]), free(lanes[i].at[c->out]), free(lanes[i].at[LK_SCRATCH]);
            if (c->whole.at[LK_MASK]) free(lanes[i].at[LK_MASK]);
        }
    }
}

static void check_forward_divided(const lk_dense *d, uint32_t m_count, float *x, float *w,
                                  float *bias, const float *want) {
    divided c = {.op = {.type = &lk_op_dense, .floats = d->n_count, .dense = *d},
                 .whole = {.examples = m_count, .param = {w, bias}},
                 .in = LK_X,
                 .out = LK_Y,
                 .in_floats = d->k_count,
                 .out_floats = d->n_count,
                 .want = want};
    c.whole.at[LK_X] = x;
    check_divided(&c);
}

static void check_input_gradient_divided(const lk_dense *d, uint32_t m_count, float *w, float *dy,
                                         float *mask, const float *want) {
    divided c = {.op = {.type = &lk_op_dense_input_gradient, .floats = d->n_count, .dense = *d},
                 .whole = {.examples = m_count, .param = {w}},
                 .in = LK_DY,
                 .out = LK_DX,
                 .in_floats = d->n_count,
                 .out_floats = d->k_count,
                 .want = want};
    c.whole.at[LK_DY] = dy;
    c.whole.at[LK_MASK] = mask;
    check_divided(&c);
}

static void check_forward(lk_dense d, uint32_t m_count) {
    ordinary = draw() % 2;
    uint64_t count = (uint64_t)m_count * d.n_count;
    float *x = operand((uint64_t)m_count * d.k_count);
    if (draw() % 2) quieten(x, m_count, d.k_count);
    float *w = operand((uint64_t)d.k_count * d.n_count);
    float *bias = operand(d.n_count), *used = d.use_bias ? bias : NULL;
    float *scratch = block(dense_scratch_floats(&lk_op_dense, &d, m_count) * sizeof(float), 0x7f);
    output y = output_of(count * sizeof(float));
    snprintf(shape, sizeof shape, "m %u k %u n %u", m_count, d.k_count, d.n_count);
    uint32_t bad = dense_forward(reference, &d, m_count, x, w, used, y.want, scratch);
    assert_int_equal(bad, 0);
    EACH_VARIANT(k) {
        assert_int_equal(dense_forward(k, &d, m_count, x, w, used, y.got, scratch), 0);
        same(&y, k->name, "dense_forward", shape);
    }
    check_forward_divided(&d, m_count, x, w, used, y.want);
    // Of many weights, which take the reference long, the bits alone.
    if ((uint64_t)d.k_count * d.n_count < 1 << 20) {
        check_overflow_flag(&d, m_count, x, w, used, y.got, scratch);
        check_weight_flag(&d, m_count, x, w, bias, y.got, scratch);
    }
    output_free(&y);
    free(x), free(w), free(bias), free(scratch);
}

static void check_input_gradient(lk_dense d, uint32_t m_count) {
    ordinary = draw() % 2;
    uint64_t count = (uint64_t)m_count * d.k_count;
    float *w = operand((uint64_t)d.k_count * d.n_count), *mask = operand(count);
    float *dy = operand((uint64_t)m_count * d.n_count), *used = d.relu ? mask : NULL;
    if (draw() % 2) quieten(dy, m_count, d.n_count);
    uint64_t floats = dense_scratch_floats(&lk_op_dense_input_gradient, &d, m_count);
    float *scratch = block(floats * sizeof(float), 0x7f);
    output dx = output_of(count * sizeof(float));
    snprintf(shape, sizeof shape, "m %u k %u n %u mask %d", m_count, d.k_count, d.n_count, d.relu);
    assert_int_equal(dense_input_gradient(reference, &d, m_count, w, dy, used, dx.want, scratch),
                     0);
    EACH_VARIANT(k) {
        float *got = dx.got;
        assert_int_equal(dense_input_gradient(k, &d, m_count, w, dy, used, got, scratch), 0);
        same(&dx, k->name, "dense_input_gradient", shape);
    }
    check_input_gradient_divided(&d, m_count, w, dy, used, dx.want);
    uint64_t at = draw() % d.n_count;
    dy[(uint64_t)(draw() % m_count) * d.n_count + at] = 0x1p127f;
    w[(uint64_t)(draw() % d.k_count) * d.n_count + at] = 0x1p127f;
    assert_int_equal(dense_input_gradient(reference, &d, m_count, w, dy, used, dx.want, scratch),
                     1);
    EACH_VARIANT(k) {
        float *got = dx.got;
        assert_int_equal(dense_input_gradient(k, &d, m_count, w, dy, used, got, scratch), 1);
    }
    output_free(&dx);
    free(w), free(mask), free(dy), free(scratch);
}

enum { GRAINS_MAX = 9 };

// Grains of `grain` examples, the last perhaps shorter, each with its own memory.
static uint32_t draw_grains(lk_grain_view *grains, uint32_t grain, uint64_t x_floats,
                            uint64_t dy_floats) {
    uint32_t count = draw_from(1, GRAINS_MAX);
    for (uint32_t g = 0; g < count; g++) {
        grains[g].examples = g + 1 < count ? grain : draw_from(1, grain);
        grains[g].x = operand(grains[g].examples * x_floats);
        grains[g].dy = operand(grains[g].examples * dy_floats);
        grains[g].argmax = NULL;
    }
    return count;
}

static void free_grains(lk_grain_view *grains, uint32_t count) {
    for (uint32_t g = 0; g < count; g++) free((void *)grains[g].x), free((void *)grains[g].dy);
}

// A node's zeros have no sign: every finished sum ends in + 0.0f, and kernels leave out zero terms.
static void unsign_zeros(float *node, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) node[i] += 0.0f;
}

// Units that are silent in all examples, as ReLU leaves them: none, half, most, or all.
static void silence_units(lk_grain_view *grains, uint32_t count, uint32_t units) {
    static const float zeros[] = {0.0f, -0.0f};
    uint32_t of_eight = (uint32_t[]){0, 4, 7, 8}[draw() % 4];
    for (uint32_t n = 0; n < units; n++) {
        if (draw() % 8 >= of_eight) continue;
        for (uint32_t g = 0; g < count; g++) {
            float *dy = (float *)(uintptr_t)grains[g].dy + n;
            for (uint32_t m = 0; m < grains[g].examples; m++) dy[m * units] = zeros[draw() % 2];
        }
    }
}

static void check_weight_gradient(lk_dense d, uint32_t grain) {
    ordinary = draw() % 2;
    lk_grain_view grains[GRAINS_MAX];
    uint32_t count = draw_grains(grains, grain, d.k_count, d.n_count);
    silence_units(grains, count, d.n_count);
    uint32_t k0 = draw() % 2 ? 0 : draw() % d.k_count, k1 = draw_from(k0 + 1, d.k_count);
    float *scratch =
        block(dense_scratch_floats(&lk_op_dense_weight_gradient, &d, 1) * sizeof(float), 0x7f);
    output dw = output_of((uint64_t)(k1 - k0) * d.n_count * sizeof(float));
    snprintf(shape, sizeof shape, "k %u..%u of %u n %u grains %u of %u", k0, k1, d.k_count,
             d.n_count, count, grain);
    float *w = operand((uint64_t)d.k_count * d.n_count);
    dense_weight_gradient(reference, &d, count, grains, &(lk_weight_rows){.first = k0, .end = k1},
                          dw.want, scratch);
    unsign_zeros(dw.want, (uint64_t)(k1 - k0) * d.n_count);
    EACH_VARIANT(k) {
        uint32_t half = draw_from(k0 + 1, k1);
        float *got = dw.got, *rest = got + (uint64_t)(half - k0) * d.n_count;
        // Told of the weights or not, and of as many rows of the next call, or fewer.
        lk_weight_rows rows = {.first = k0, .end = half, .w = draw() % 2 ? w : NULL,
                               .next_end = draw_from(half, k1)};
        dense_weight_gradient(k, &d, count, grains, &rows, got, scratch);
        rows = (lk_weight_rows){.first = half, .end = k1, .again = true, .w = rows.w,
                                .next_end = k1};
        if (half < k1) dense_weight_gradient(k, &d, count, grains, &rows, rest, scratch);
        unsign_zeros(dw.got, (uint64_t)(k1 - k0) * d.n_count);
        same(&dw, k->name, "dense_weight_gradient", shape);
    }
    output sums = output_of(d.n_count * sizeof(float));
    reference->column_sums(d.n_count, count, grains, sums.want);
    EACH_VARIANT(k) {
        k->column_sums(d.n_count, count, grains, sums.got);
        same(&sums, k->name, "column_sums", shape);
    }
    output_free(&dw);
    output_free(&sums);
    free_grains(grains, count);
    free(w);
    free(scratch);
}

// More leaves than a block of a GPU takes at once, of few columns and of many.
static void check_many_grains(uint32_t n, uint32_t count) {
    enum { MOST = 300, EXAMPLES = 2 };
    lk_grain_view grains[MOST];
    output sums = output_of(n * sizeof(float));
    snprintf(shape, sizeof shape, "n %u grains %u of %u", n, count, EXAMPLES);
    for (uint32_t g = 0; g < count; g++) {
        grains[g] = (lk_grain_view){.examples = g + 1 < count ? EXAMPLES : 1};
        grains[g].dy = operand((uint64_t)grains[g].examples * n);
    }
    reference->column_sums(n, count, grains, sums.want);
    EACH_VARIANT(k) {
        k->column_sums(n, count, grains, sums.got);
        same(&sums, k->name, "column_sums", shape);
    }
    output_free(&sums);
    free_grains(grains, count);
}

static void test_many_grains(void **state) {
    (void)state;
    for (seed = 1; seed <= 3; seed++) {
        check_many_grains(draw_from(5, 40), 70);
        check_many_grains(draw_from(1, 9), 300);
        check_many_grains(draw_from(512, 600), 70);
    }
}

static lk_dense draw_dense(uint32_t k_large, uint32_t n_large) {
    return (lk_dense){draw_size(k_large), draw_size(n_large), draw() % 2, draw() % 2};
}

static void test_dense_forward(void **state) {
    (void)state;
    for (seed = 1; seed <= rounds; seed++) {
        uint64_t start = seed;
        check_forward(draw_dense(1600, 200), draw_size(70));
        seed = start;
    }
    seed = 1;
    check_forward((lk_dense){2600, 10, true, true}, 5);
    check_forward((lk_dense){64, 64, true, false}, 131);
    check_forward((lk_dense){131, 256, true, true}, 97);   // rows of weights far apart are laid
    check_forward((lk_dense){70, 1031, true, false}, 33);  // side by side
    check_forward((lk_dense){1100, 301, true, true}, 16);  // panels in groups,
    check_forward((lk_dense){577, 1024, true, false}, 9);  // .. whole ones and what is left
    check_forward((lk_dense){1100, 301, true, true}, 64);  // .. of many examples
    check_forward((lk_dense){300, 500, true, false}, 100);  // .. smaller ones before larger ones
    check_forward((lk_dense){2100, 1031, true, false}, 17);  // .. more of them, of many weights
    check_forward((lk_dense){1100, 2000, true, false}, 32);  // .. and of few panels each, divided
    check_forward((lk_dense){191, 77, true, true}, 21);  // a last run that is nearly whole
    check_forward((lk_dense){1, 1, true, false}, 1);
}

static void test_dense_input_gradient(void **state) {
    (void)state;
    for (seed = 1; seed <= rounds; seed++) {
        uint64_t start = seed;
        check_input_gradient(draw_dense(200, 1600), draw_size(70));
        seed = start;
    }
    seed = 1;
    check_input_gradient((lk_dense){10, 2600, true, true}, 5);
    check_input_gradient((lk_dense){64, 64, true, false}, 131);
    check_input_gradient((lk_dense){61, 184, true, true}, 37);  // a last run nearly whole
    check_input_gradient((lk_dense){200, 61, true, true}, 67);  // NEON's own wants 96 inputs
}

static void test_dense_weight_gradient(void **state) {
    (void)state;
    for (seed = 1; seed <= rounds; seed++) {
        uint64_t start = seed;
        check_weight_gradient(draw_dense(500, 150), 1u << draw() % 6);
        seed = start;
    }
    for (uint64_t start = 1; start <= 8; start++) {  // rows enough for NEON's own, and too few
        seed = start;
        check_weight_gradient((lk_dense){500, start % 2 ? 64 : 23, true, true}, 16);
    }
    for (uint64_t start = 1; start <= 8; start++) {  // side by side where few examples have room
        seed = start;
        check_weight_gradient((lk_dense){160, start % 2 ? 256 : 1033, true, true},
                              1u << draw() % 5);
        // .. and few inputs, which lie side by side already
        check_weight_gradient((lk_dense){45, start % 2 ? 256 : 1033, true, true},
                              1u << draw() % 5);
    }
    seed = 1;
    check_weight_gradient((lk_dense){150, 23, true, true}, 256);
    check_weight_gradient((lk_dense){7, 5, true, true}, 2048);
    check_weight_gradient((lk_dense){13, 70, true, true}, 1024);
    check_weight_gradient((lk_dense){3, 17, true, true}, 4096);
}

// --- element by element --------------------------------------------------------------------------

// Of 1 to 3 channels; a GPU does it where it loads.
static void check_adjust(uint64_t count, const float *x, output *out) {
    static _Alignas(64) float factor[48], offset[48];
    for (uint32_t i = 0; i < 48; i++) factor[i] = draw_value(), offset[i] = draw_value();
    for (uint32_t period = 16; period <= 48; period += 16) {
        memcpy(out->want, x, count * sizeof *x);
        reference->adjust(count, period, factor, offset, out->want);
        EACH_VARIANT(k) {
            if (!k->adjust) continue;
            memcpy(out->got, x, count * sizeof *x);
            k->adjust(count, period, factor, offset, out->got);
            same(out, k->name, "adjust", shape);
        }
    }
}

static void check_elements(uint64_t count) {
    ordinary = false;
    uint8_t *bytes = (uint8_t *)block(count + 1, 0) + 1;  // not aligned
    for (uint64_t i = 0; i < count; i++) bytes[i] = (uint8_t)(count < 256 ? draw() : i);
    float *a = operand(count), *b = operand(count);
    output out = output_of(count * sizeof(float));
    float *want = out.want, *got = out.got;
    snprintf(shape, sizeof shape, "count %llu", (unsigned long long)count);
#define COMPARE(kernel, ...)                          \
    do {                                              \
        float *to = want;                             \
        reference->kernel(__VA_ARGS__);               \
        to = got;                                     \
        EACH_VARIANT(k) {                             \
            k->kernel(__VA_ARGS__);                   \
            same(&out, k->name, #kernel, shape);      \
        }                                             \
    } while (0)
    COMPARE(load_u8, count, bytes, to);
    COMPARE(add, count, a, b, to);
#undef COMPARE
    check_adjust(count, a, &out);
    relu_forward(reference, count, a, want);
    EACH_VARIANT(k) {
        relu_forward(k, count, a, got);
        same(&out, k->name, "relu_forward", shape);
    }
    relu_backward(reference, count, a, b, want);
    EACH_VARIANT(k) {
        relu_backward(k, count, a, b, got);
        same(&out, k->name, "relu_backward", shape);
    }
    EACH_VARIANT(k) {  // in place
        relu_backward(reference, count, a, b, want);
        memcpy(got, b, out.bytes);
        relu_backward(k, count, a, got, got);
        same(&out, k->name, "relu_backward in place", shape);
    }
    output_free(&out);
    free(a), free(b), free(bytes - 1);
}

static void test_elements(void **state) {
    (void)state;
    seed = 5;
    for (uint64_t count = 0; count < 70; count++) check_elements(count);
    for (uint64_t count = 1000; count < 3000; count += 500) check_elements(count + count % 3);
}

// ReLU of a sum is ReLU and the sum; a sum that overflows raises the flag though ReLU hides it.
static void check_relu_of_sums(uint64_t count, float *a, float *b, output *sum) {
    const lk_op op = {.type = &lk_op_add, .floats = count, .sum_relu = true};
    lk_lane l = {.examples = 1, .train = true};
    l.at[LK_X] = a, l.at[LK_X2] = b, l.at[LK_Y] = sum->want;
    assert_int_equal(element_op(reference, &lk_op_add, count, a, b, sum->want, NULL, NULL), 0);
    relu_forward(reference, count, sum->want, sum->want);
    l.at[LK_Y] = sum->got;
    assert_int_equal(lk_op_add.reference(&l, &op), 0);
    same(sum, "reference", "add with relu", shape);
    EACH_VARIANT(k) {
        assert_int_equal(lk_kernel_of(k, op.type)(&l, &op), 0);
        same(sum, k->name, "add with relu", shape);
    }
    if (count == 0) return;
    const float kept[] = {a[count - 1], b[count - 1]};
    a[count - 1] = b[count - 1] = -0x1p127f;
    EACH_VARIANT(k) assert_int_equal(lk_kernel_of(k, op.type)(&l, &op), 1);
    a[count - 1] = kept[0], b[count - 1] = kept[1];
}

// Sums of two tensors, beside them and in place; one that overflows raises the flag.
static void check_sums(uint64_t count) {
    float *a = operand(count), *b = operand(count);
    output sum = output_of(count * sizeof(float));
    const lk_op_type *in_place = &lk_op_add_gradient;
    snprintf(shape, sizeof shape, "count %llu", (unsigned long long)count);
    memcpy(sum.want, a, sum.bytes);
    assert_int_equal(
        element_op(reference, in_place, count, sum.want, NULL, NULL, b, sum.want), 0);
    EACH_VARIANT(k) {
        memcpy(sum.got, a, sum.bytes);
        assert_int_equal(element_op(k, in_place, count, sum.got, NULL, NULL, b, sum.got), 0);
        same(&sum, k->name, in_place->name, shape);
    }
    assert_int_equal(element_op(reference, &lk_op_add, count, a, b, sum.want, NULL, NULL), 0);
    EACH_VARIANT(k) {
        assert_int_equal(element_op(k, &lk_op_add, count, a, b, sum.got, NULL, NULL), 0);
        same(&sum, k->name, "add", shape);
    }
    check_relu_of_sums(count, a, b, &sum);
    assert_int_equal(
        element_op(reference, &lk_op_add_backward, count, NULL, NULL, NULL, b, sum.want), 0);
    EACH_VARIANT(k) {
        (void)element_op(k, &lk_op_add_backward, count, NULL, NULL, NULL, b, sum.got);
        same(&sum, k->name, "add_backward", shape);
    }
    if (count > 0) a[count / 2] = b[count / 2] = 0x1p127f;
    EACH_VARIANT(k) {
        assert_int_equal(element_op(k, in_place, count, a, NULL, NULL, b, sum.got), count > 0);
        assert_int_equal(element_op(k, &lk_op_add, count, a, b, sum.got, NULL, NULL), count > 0);
    }
    output_free(&sum);
    free(a), free(b);
}

static void test_sums(void **state) {
    (void)state;
    seed = 8;
    for (uint64_t count = 0; count < 70; count++) check_sums(count);
    check_sums(1000);
}

// Activations, and their gradients beside dy and in place.
static void check_activations(uint64_t count) {
    static const struct {
        const lk_op_type *forward, *backward;
    } all[] = {{&lk_op_tanh, &lk_op_tanh_backward},
               {&lk_op_sigmoid, &lk_op_sigmoid_backward},
               {&lk_op_relu6, &lk_op_relu6_backward},
               {&lk_op_elu, &lk_op_elu_backward},
               {&lk_op_leaky_relu, &lk_op_leaky_relu_backward}};
    float *x = operand(count), *dy = operand(count);
    output y = output_of(count * sizeof(float)), dx = output_of(count * sizeof(float));
    for (uint64_t i = 0; i < count; i++) x[i] *= (float)(draw() % 30);
    snprintf(shape, sizeof shape, "count %llu", (unsigned long long)count);
    for (size_t a = 0; a < LK_COUNT(all); a++) {
        (void)element_op(reference, all[a].forward, count, x, NULL, y.want, NULL, NULL);
        (void)element_op(reference, all[a].backward, count, NULL, NULL, y.want, dy, dx.want);
        EACH_VARIANT(k) {
            (void)element_op(k, all[a].forward, count, x, NULL, y.got, NULL, NULL);
            same(&y, k->name, all[a].forward->name, shape);
            (void)element_op(k, all[a].backward, count, NULL, NULL, y.want, dy, dx.got);
            same(&dx, k->name, all[a].backward->name, shape);
            memcpy(dx.got, dy, dx.bytes);
            (void)element_op(k, all[a].backward, count, NULL, NULL, y.want, dx.got, dx.got);
            same(&dx, k->name, "in place", shape);
        }
    }
    output_free(&y), output_free(&dx);
    free(x), free(dy);
}

// Those whose gradient looks at x; what a slope above 1 overflows.
static void check_smooth(uint64_t count) {
    static const struct {
        const lk_op_type *forward, *backward;
    } all[] = {{&lk_op_softplus, &lk_op_softplus_backward},
               {&lk_op_swish, &lk_op_swish_backward},
               {&lk_op_gelu, &lk_op_gelu_backward},
               {&lk_op_gelu_tanh, &lk_op_gelu_tanh_backward}};
    float *x = operand(count), *dy = operand(count);
    output y = output_of(count * sizeof(float)), dx = output_of(count * sizeof(float));
    for (uint64_t i = 0; i < count; i++) x[i] *= (float)(draw() % 40);
    snprintf(shape, sizeof shape, "count %llu", (unsigned long long)count);
    for (size_t a = 0; a < LK_COUNT(all); a++) {
        (void)element_op(reference, all[a].forward, count, x, NULL, y.want, NULL, NULL);
        const uint32_t bad =
            element_op(reference, all[a].backward, count, x, NULL, NULL, dy, dx.want);
        EACH_VARIANT(k) {
            (void)element_op(k, all[a].forward, count, x, NULL, y.got, NULL, NULL);
            same(&y, k->name, all[a].forward->name, shape);
            assert_int_equal(element_op(k, all[a].backward, count, x, NULL, NULL, dy, dx.got), bad);
            same(&dx, k->name, all[a].backward->name, shape);
            memcpy(dx.got, dy, dx.bytes);
            (void)element_op(k, all[a].backward, count, x, NULL, NULL, dx.got, dx.got);
            same(&dx, k->name, "in place", shape);
        }
    }
    for (uint64_t i = 0; i < count; i++) x[i] = 2.0f, dy[i] = 0x1.fffffep127f;
    EACH_VARIANT(k) {
        for (size_t a = 1; a < LK_COUNT(all); a++) {
            assert_int_equal(element_op(k, all[a].backward, count, x, NULL, NULL, dy, dx.got),
                             count > 0);
        }
    }
    output_free(&y), output_free(&dx);
    free(x), free(dy);
}

static void test_activations(void **state) {
    (void)state;
    seed = 9;
    for (uint64_t count = 0; count < 70; count++) check_activations(count);
    for (uint64_t count = 0; count < 140; count += 7) check_smooth(count);
    check_smooth(1000);
    check_activations(1000);
}

// What is left out, beside dy and in place; all of it in evaluation; what the factor overflows.
static void check_dropout(uint32_t examples, uint64_t floats, float rate) {
    const uint64_t count = examples * floats;
    const lk_op forward = {
        .type = &lk_op_dropout, .floats = floats, .layer = 3, .dropout = {rate, 2}};
    lk_op backward = forward;
    backward.type = &lk_op_dropout_backward;
    float *x = operand(count);
    output y = output_of(count * sizeof(float));
    lk_lane lane = {.examples = examples, .first_example = draw() % 5000};
    lane.seed = (uint64_t)draw() << 32 | draw();
    lane.step = draw() % 2 ? (uint64_t)draw() << 8 : draw();
    snprintf(shape, sizeof shape, "%u of %llu, rate %g", examples, (unsigned long long)floats,
             (double)rate);
    lane.at[LK_X] = lane.at[LK_DY] = x;
    lane.at[LK_Y] = lane.at[LK_DX] = y.want;
    assert_int_equal(call_op(reference, &forward, &lane), 0);
    EACH_VARIANT(k) {
        lane.at[LK_Y] = y.got;
        lane.at[LK_DX] = NULL;
        assert_int_equal(call_op(k, &forward, &lane), 0);
        same(&y, k->name, "dropout", shape);
        lane.at[LK_Y] = NULL;
        lane.at[LK_DX] = y.got;
        assert_int_equal(call_op(k, &backward, &lane), 0);
        same(&y, k->name, "dropout_backward", shape);
        memcpy(y.got, x, y.bytes);
        lane.at[LK_DY] = y.got;
        assert_int_equal(call_op(k, &backward, &lane), 0);
        same(&y, k->name, "dropout_backward in place", shape);
        lane.at[LK_DY] = x;
    }
    memcpy(y.want, x, y.bytes);
    lane.train = false;
    lane.at[LK_Y] = y.got;
    lane.at[LK_DX] = NULL;
    EACH_VARIANT(k) {
        assert_int_equal(lk_kernel_of(k, forward.type)(&lane, &forward), 0);
        same(&y, k->name, "dropout in evaluation", shape);
    }
    for (uint64_t i = 0; i < count; i++) x[i] = 0x1p127f;
    EACH_VARIANT(k) assert_int_equal(call_op(k, &forward, &lane), count > 16 && rate > 0.4f);
    output_free(&y);
    free(x);
}

static void test_dropout(void **state) {
    (void)state;
    seed = 10;
    for (uint64_t floats = 0; floats < 70; floats++) check_dropout(draw() % 4, floats, 0.25f);
    check_dropout(3, 1000, 0.5f);
    check_dropout(2, 129, 0.75f);
    check_dropout(2, 129, 0.0f);
}

// In training, and where nothing is trained; a microbatch that begins anywhere.
static void check_noise(uint32_t kind, uint32_t examples, uint64_t floats) {
    const lk_op op = {.type = &lk_op_noise,
                      .floats = floats,
                      .layer = LK_NONE,
                      .noise = {.kind = kind, .number = 259, .offset = 0.25f, .scale = -3.0f}};
    output y = output_of(examples * floats * sizeof(float));
    lk_lane lane = {.examples = examples, .first_example = draw() % 5000, .train = draw() % 4 > 0};
    lane.seed = (uint64_t)draw() << 32 | draw();
    lane.step = draw() % 2 ? (uint64_t)draw() << 8 : draw();
    snprintf(shape, sizeof shape, "kind %u: %u of %llu", kind, examples,
             (unsigned long long)floats);
    lane.at[LK_Y] = y.want;
    assert_int_equal(lk_kernel_of(reference, op.type)(&lane, &op), 0);
    EACH_VARIANT(k) {
        lane.at[LK_Y] = y.got;
        assert_int_equal(lk_kernel_of(k, op.type)(&lane, &op), 0);
        same(&y, k->name, "noise", shape);
    }
    output_free(&y);
}

static void test_noise(void **state) {
    (void)state;
    seed = 13;
    for (uint32_t kind = 0; kind < LK_NOISE_KINDS; kind++) {
        for (uint64_t floats = 1; floats < 70; floats++) check_noise(kind, draw() % 4, floats);
        check_noise(kind, 3, 1000);
        check_noise(kind, 100, 64);
    }
}

// Both losses of a GAN; a second input without a gradient; in evaluation none at all.
static void check_gan(const lk_op_type *type, uint32_t kind, uint32_t examples, uint64_t floats) {
    const bool two = type == &lk_op_gan_discriminator, wants = draw() % 4 > 0;
    const uint64_t count = examples * floats;
    const lk_op op = {.type = type, .floats = floats, .gan = {.kind = kind, .smoothing = 0.25f}};
    float *x = operand(count), *x2 = operand(count);
    output y = output_of(examples * 2 * sizeof(float));
    output dx = output_of(count * sizeof(float)), dx2 = output_of(count * sizeof(float));
    lk_lane lane = {.examples = examples, .train = true};
    snprintf(shape, sizeof shape, "kind %u: %u of %llu", kind, examples,
             (unsigned long long)floats);
    lane.at[LK_X] = x;
    lane.at[LK_X2] = two ? x2 : NULL;
    lane.at[LK_Y] = y.want;
    lane.at[LK_DX] = dx.want;
    lane.at[LK_DX2] = two && wants ? dx2.want : NULL;
    assert_int_equal(lk_kernel_of(reference, type)(&lane, &op), 0);
    EACH_VARIANT(k) {
        lane.at[LK_Y] = y.got;
        lane.at[LK_DX] = dx.got;
        lane.at[LK_DX2] = two && wants ? dx2.got : NULL;
        assert_int_equal(lk_kernel_of(k, type)(&lane, &op), 0);
        same(&y, k->name, type->name, shape);
        same(&dx, k->name, type->name, shape);
        if (two && wants) same(&dx2, k->name, type->name, shape);
    }
    output_free(&y), output_free(&dx), output_free(&dx2);
    free(x), free(x2);
}

static void test_gan(void **state) {
    (void)state;
    seed = 14;
    for (uint32_t kind = 0; kind < LK_GAN_KINDS; kind++) {
        for (uint64_t floats = 1; floats < 1100; floats = 3 * floats + 1) {
            check_gan(&lk_op_gan_generator, kind, 1 + draw() % 9, floats);
            check_gan(&lk_op_gan_discriminator, kind, 1 + draw() % 9, floats);
        }
    }
}

// --- batch normalisation -------------------------------------------------------------------------

// Grain g has `absent` positions without an example, if it is the last.
static uint32_t absent, grains_there;
static uint32_t all_but_absent(const lk_lane *l, uint32_t g) {
    const uint32_t rows = lk_lane_rows(l, g);
    return g + 1 == grains_there ? rows - LK_MIN(absent, rows) : rows;
}

typedef struct norm_case {
    lk_op forward, backward, statistics, gradient;
    uint32_t examples, grain;
    float *x, *dy, *gamma, *beta, *mean, *variance;
} norm_case;

static lk_lane norm_lane(const norm_case *c) {
    grains_there = (c->examples + c->grain - 1) / c->grain;
    lk_lane l = {.examples = c->examples, .grain = c->grain, .train = true};
    l.param[0] = c->forward.norm.scale ? c->gamma : NULL;
    l.param[1] = c->forward.norm.center ? c->beta : NULL;
    l.state[0] = c->mean;
    l.state[1] = c->variance;
    if (absent) l.present = all_but_absent;
    return l;
}

// Forward; backward beside dy, in place, and without dx; the nodes of what is kept of the grains.
static void check_norm_of(const lk_kernels *k, const norm_case *c, const lk_lane *with, output *y,
                          output *dx, output *kept, output *sums) {
    lk_lane l = *with;
    const lk_op *const nodes[] = {&c->statistics, &c->gradient};
    l.at[LK_X] = c->x, l.at[LK_Y] = y->got, l.at[LK_AUX] = kept->got;
    assert_int_equal(lk_kernel_of(k, c->forward.type)(&l, &c->forward), 0);
    same(y, k->name, "batch_normalization", shape);
    l.at[LK_Y] = NULL, l.at[LK_DY] = c->dy, l.at[LK_DX] = dx->got;
    assert_int_equal(lk_kernel_of(k, c->backward.type)(&l, &c->backward), 0);
    same(dx, k->name, "batch_normalization_backward", shape);
    memcpy(dx->got, c->dy, dx->bytes);
    l.at[LK_DY] = dx->got;
    assert_int_equal(lk_kernel_of(k, c->backward.type)(&l, &c->backward), 0);
    same(dx, k->name, "batch_normalization_backward in place", shape);
    l.at[LK_DY] = c->dy, l.at[LK_DX] = NULL;
    if (!c->forward.norm.frozen) {
        assert_int_equal(lk_kernel_of(k, c->backward.type)(&l, &c->backward), 0);
    }
    lk_grain_view views[64];
    const uint64_t row = (uint64_t)LK_NORM_COLUMNS * c->forward.norm.channels * sizeof(float);
    for (uint32_t g = 0; g < grains_there; g++) {
        views[g] = (lk_grain_view){.argmax = (uint8_t *)kept->got + g * row};
    }
    l.grains = views, l.grain_count = grains_there;
    for (uint32_t i = 0; i < 2 && !c->forward.norm.frozen; i++) {
        for (uint32_t s = 0; s < 2; s++) l.sums[s] = sums[2 * i + s].got;
        if (!c->forward.norm.center) l.sums[1] = NULL;
        (void)lk_kernel_of(k, nodes[i]->type)(&l, nodes[i]);
        for (uint32_t s = 0; s < 2; s++) {
            if (l.sums[s]) same(&sums[2 * i + s], k->name, nodes[i]->type->name, shape);
        }
    }
    same(kept, k->name, "what is kept of grains", shape);
}

static void check_norm(uint32_t h, uint32_t w, uint32_t channels, bool flat, uint32_t examples,
                       uint32_t grain) {
    const uint64_t floats = (uint64_t)h * w * channels, count = examples * floats;
    norm_case c = {.examples = examples, .grain = grain};
    c.forward = (lk_op){.type = &lk_op_batch_normalization,
                        .floats = floats,
                        .norm = {.h = h, .w = w, .channels = channels, .flat = flat,
                                 .epsilon = 1e-3f, .momentum = 0.9f, .scale = draw() % 4 > 0,
                                 .center = draw() % 4 > 0, .frozen = draw() % 8 == 0,
                                 .relu = draw() % 2}};
    c.backward = c.statistics = c.gradient = c.forward;
    c.backward.type = &lk_op_batch_normalization_backward;
    c.statistics.type = &lk_op_batch_normalization_statistics;
    c.gradient.type = &lk_op_batch_normalization_gradient;
    absent = draw() % 3 ? 0 : draw() % (grain + 1);
    snprintf(shape, sizeof shape, "%u of %u x %u x %u, grain %u, %u absent%s%s", examples, h, w,
             channels, grain, absent, c.forward.norm.frozen ? ", frozen" : "",
             c.forward.norm.relu ? ", relu" : "");
    const bool before = ordinary;
    ordinary = true;
    float **const operands[] = {&c.x, &c.dy, &c.gamma, &c.beta, &c.mean, &c.variance};
    for (uint32_t i = 0; i < LK_COUNT(operands); i++) {
        *operands[i] = operand(i < 2 ? count : channels);
    }
    ordinary = before;
    for (uint32_t i = 0; i < channels; i++) {
        if (c.variance[i] < 0.0f) c.variance[i] = 1.0f;
    }
    lk_lane lane = norm_lane(&c);
    const uint64_t rows = (uint64_t)grains_there * LK_NORM_COLUMNS * channels * sizeof(float);
    output y = output_of(count * sizeof(float)), dx = output_of(count * sizeof(float));
    output kept = output_of(c.forward.norm.frozen ? 0 : rows), sums[4];
    for (uint32_t i = 0; i < 4; i++) sums[i] = output_of(channels * sizeof(float));
    lk_lane l = lane;
    l.at[LK_X] = c.x, l.at[LK_Y] = y.want, l.at[LK_AUX] = kept.want;
    assert_int_equal(lk_op_batch_normalization.reference(&l, &c.forward), 0);
    l.at[LK_Y] = NULL, l.at[LK_DY] = c.dy, l.at[LK_DX] = dx.want;
    assert_int_equal(lk_op_batch_normalization_backward.reference(&l, &c.backward), 0);
    lk_grain_view views[64];
    for (uint32_t g = 0; g < grains_there; g++) {
        views[g] = (lk_grain_view){.argmax = (uint8_t *)kept.want + g * (rows / grains_there)};
    }
    l.grains = views, l.grain_count = grains_there;
    for (uint32_t i = 0; i < 2 && !c.forward.norm.frozen; i++) {
        const lk_op *op = i ? &c.gradient : &c.statistics;
        for (uint32_t s = 0; s < 2; s++) l.sums[s] = sums[2 * i + s].want;
        (void)op->type->reference(&l, op);
    }
    EACH_VARIANT(k) check_norm_of(k, &c, &lane, &y, &dx, &kept, sums);
    lane.train = false;
    lane.at[LK_X] = c.x, lane.at[LK_Y] = y.want;
    (void)lk_op_batch_normalization.reference(&lane, &c.forward);
    lane.at[LK_Y] = y.got;
    EACH_VARIANT(k) {
        (void)lk_kernel_of(k, c.forward.type)(&lane, &c.forward);
        same(&y, k->name, "batch_normalization in evaluation", shape);
    }
    output_free(&y), output_free(&dx), output_free(&kept);
    for (uint32_t i = 0; i < 4; i++) output_free(&sums[i]);
    for (uint32_t i = 0; i < LK_COUNT(operands); i++) free(*operands[i]);
}

static void test_batch_normalization(void **state) {
    (void)state;
    seed = 12;
    for (uint32_t channels = 1; channels < 70; channels += rounds < 80 ? 11 : 1) {
        check_norm(draw_from(1, 5), draw_from(1, 5), channels, false, draw_from(1, 11),
                   1u << draw() % 4);
        check_norm(1, 1, channels, true, draw_from(2, 40), 1u << draw() % 6);
    }
    check_norm(1, 1, 3, true, 1100, 1024);        // slices of 512 examples
    check_norm(1, 1, 3, false, 300, 256);         // .. of 128, each of which counts four terms
    check_norm(23, 23, 5, false, 3, 2);           // an example of 576 terms: a slice and a bit
    check_norm(50, 50, 3, false, 8, 8);           // more slices than eight: a tree of threads
    check_norm(60, 60, 2, false, 10, 10);         // .. and more than 64: their runs are longer
    check_norm(33, 3, 130, false, 5, 4);          // more channels than are worked on at once
    check_norm(2, 600, 2, false, 2, 2);           // a slice ends within a row of tiles
}

// What is not finite is said: a mean, a variance, y, a sum of gradients, dx.
static void test_batch_normalization_overflows(void **state) {
    (void)state;
    lk_op op = {.type = &lk_op_batch_normalization,
                .floats = 3,
                .norm = {.h = 1, .w = 1, .channels = 3, .flat = true, .epsilon = 1e-3f}};
    float x[6] = {0, 0x1p127f, 1, 0, 0x1p127f, 2}, y[6], kept[3 * LK_NORM_COLUMNS];
    lk_lane l = {.examples = 2, .grain = 2, .train = true};
    EACH_VARIANT(k) {
        op.type = &lk_op_batch_normalization;
        l.at[LK_X] = x, l.at[LK_Y] = y, l.at[LK_AUX] = kept, l.at[LK_DY] = l.at[LK_DX] = NULL;
        x[1] = 0x1p127f, x[4] = 0x1p127f;
        assert_int_equal(lk_kernel_of(k, op.type)(&l, &op), 1);
        x[4] = -0x1p127f;  // the variance alone
        assert_int_equal(lk_kernel_of(k, op.type)(&l, &op), 1);
        x[1] = x[4] = 1.0f;
        assert_int_equal(lk_kernel_of(k, op.type)(&l, &op), 0);
        op.type = &lk_op_batch_normalization_backward;
        float dy[6] = {0, 0x1p127f, 1, 0, 0x1p127f, 1}, dx[6];
        l.at[LK_Y] = NULL, l.at[LK_DY] = dy;
        assert_int_equal(lk_kernel_of(k, op.type)(&l, &op), 1);  // the sum, where no dx is wanted
        l.at[LK_DX] = dx;
        dy[4] = 0.0f;
        assert_int_equal(lk_kernel_of(k, op.type)(&l, &op), 1);
        dy[1] = 1.0f;
        assert_int_equal(lk_kernel_of(k, op.type)(&l, &op), 0);
    }
}

// Of each variant: forward and what it keeps, dx, and the nodes of gamma and beta.
static void check_layer_norm_of(const lk_kernels *k, const lk_lane *with, const lk_op *ops,
                                output *outputs) {
    output *y = &outputs[0], *kept = &outputs[1], *dx = &outputs[2];
    const uint64_t cells = (uint64_t)ops->norm.h * ops->norm.w;
    lk_lane l = *with;
    lk_grain_view views[64];
    l.at[LK_Y] = y->got, l.at[LK_AUX] = kept->got, l.at[LK_DY] = NULL;
    assert_int_equal(lk_kernel_of(k, ops[0].type)(&l, &ops[0]), 0);
    same(y, k->name, "layer_normalization", shape);
    same(kept, k->name, "what is kept of cells", shape);
    l.at[LK_Y] = NULL, l.at[LK_AUX] = kept->want, l.at[LK_DY] = with->at[LK_DY];
    l.at[LK_DX] = dx->got;
    assert_int_equal(lk_kernel_of(k, ops[1].type)(&l, &ops[1]), 0);
    same(dx, k->name, "layer_normalization_input_gradient", shape);
    l.grain_count = lk_lane_grains(&l);
    for (uint32_t g = 0; g < l.grain_count; g++) {
        const uint64_t first = (uint64_t)g * l.grain;
        views[g] = (lk_grain_view){
            .x = (const float *)l.at[LK_X] + first * ops->floats,
            .dy = (const float *)l.at[LK_DY] + first * ops->floats,
            .argmax = (const uint8_t *)((const float *)kept->want + first * cells * 2),
            .examples = lk_lane_rows(&l, g)};
    }
    l.grains = views;
    for (uint32_t r = 0; r < LK_ROLES; r++) l.at[r] = NULL;
    for (uint32_t i = 0; i < 2; i++) {
        if (with->sums[i]) l.sums[i] = k == &lk_kernels_reference ? outputs[3 + i].want
                                                                  : outputs[3 + i].got;
    }
    assert_int_equal(lk_kernel_of(k, ops[2].type)(&l, &ops[2]), 0);
    for (uint32_t i = 0; i < 2; i++) {
        if (with->sums[i] && k != &lk_kernels_reference) {
            same(&outputs[3 + i], k->name, "layer_normalization_gradient", shape);
        }
    }
}

static void check_layer_norm(uint32_t h, uint32_t w, uint32_t channels, uint32_t examples,
                             uint32_t grain) {
    const uint64_t cells = (uint64_t)h * w, floats = cells * channels, count = examples * floats;
    lk_op ops[3] = {{.type = &lk_op_layer_normalization,
                     .floats = floats,
                     .norm = {.h = h, .w = w, .channels = channels, .epsilon = 1e-3f}}};
    ops[1] = ops[2] = ops[0];
    ops[1].type = &lk_op_layer_normalization_input_gradient;
    ops[2].type = &lk_op_layer_normalization_gradient;
    snprintf(shape, sizeof shape, "%u of %u x %u x %u, grain %u", examples, h, w, channels, grain);
    const bool before = ordinary;
    ordinary = true;
    float *x = operand(count), *dy = operand(count), *gamma = operand(channels);
    float *beta = operand(channels);
    ordinary = before;
    output outputs[5] = {output_of(count * sizeof(float)),
                         output_of(examples * cells * 2 * sizeof(float)),
                         output_of(count * sizeof(float)), output_of(channels * sizeof(float)),
                         output_of(channels * sizeof(float))};
    lk_lane l = {.examples = examples, .grain = grain, .train = true};
    l.param[0] = draw() % 3 ? gamma : NULL, l.param[1] = draw() % 3 ? beta : NULL;
    l.sums[0] = l.param[0], l.sums[1] = l.param[1];
    l.at[LK_X] = x, l.at[LK_Y] = outputs[0].want, l.at[LK_AUX] = outputs[1].want;
    l.at[LK_DY] = dy, l.at[LK_DX] = outputs[2].want;
    assert_int_equal(ops[0].type->reference(&l, &ops[0]), 0);
    assert_int_equal(ops[1].type->reference(&l, &ops[1]), 0);
    l.at[LK_DX] = NULL;
    check_layer_norm_of(&lk_kernels_reference, &l, ops, outputs);
    EACH_VARIANT(k) check_layer_norm_of(k, &l, ops, outputs);
    for (uint32_t i = 0; i < LK_COUNT(outputs); i++) output_free(&outputs[i]);
    free(x), free(dy), free(gamma), free(beta);
}

static void test_layer_normalization(void **state) {
    (void)state;
    seed = 14;
    for (uint32_t channels = 1; channels < 70; channels += rounds < 80 ? 9 : 1) {
        check_layer_norm(draw_from(1, 5), draw_from(1, 5), channels, draw_from(1, 9),
                         1u << draw() % 4);
        check_layer_norm(1, 1, channels, draw_from(2, 40), 1u << draw() % 6);
    }
    check_layer_norm(1, 1, 3, 1100, 1024);  // slices of 512 examples
    check_layer_norm(3, 3, 3, 300, 256);    // .. of 56
    check_layer_norm(23, 23, 5, 3, 2);      // an example of 529 terms: a slice and a bit
    check_layer_norm(32, 32, 2, 3, 4);      // .. of two slices
    check_layer_norm(1, 1, 1100, 35, 8);    // values of a cell in slices, and many of them at once
    check_layer_norm(2, 1, 512, 9, 4);
    check_layer_norm(1, 3, 130, 5, 4);
}

// What is not finite is said: a mean, a variance, y, dx.
static void test_layer_normalization_overflows(void **state) {
    (void)state;
    EACH_VARIANT(k) {
        float x[3] = {0x1p127f, 0x1p127f, 1}, y[3], dx[3], kept[2], dy[3] = {1, 2, 3};
        float gamma[3] = {1, 1, 1};
        lk_op op = {.type = &lk_op_layer_normalization,
                    .floats = 3,
                    .norm = {.h = 1, .w = 1, .channels = 3, .epsilon = 1e-3f}};
        lk_lane l = {.examples = 1, .grain = 1, .train = true, .param = {gamma}};
        l.at[LK_X] = x, l.at[LK_Y] = y, l.at[LK_AUX] = kept;
        assert_int_equal(lk_kernel_of(k, op.type)(&l, &op), 1);
        x[1] = -0x1p127f;  // the variance alone
        assert_int_equal(lk_kernel_of(k, op.type)(&l, &op), 1);
        x[0] = x[1] = 2.0f;
        gamma[2] = 0x1.8p127f;
        assert_int_equal(lk_kernel_of(k, op.type)(&l, &op), 1);
        gamma[2] = 1.0f;
        assert_int_equal(lk_kernel_of(k, op.type)(&l, &op), 0);
        op.type = &lk_op_layer_normalization_input_gradient;
        l.at[LK_Y] = NULL, l.at[LK_DY] = dy, l.at[LK_DX] = dx;
        assert_int_equal(lk_kernel_of(k, op.type)(&l, &op), 0);
        dy[0] = dy[1] = 0x1p127f;
        assert_int_equal(lk_kernel_of(k, op.type)(&l, &op), 1);
    }
}

// Slots as they may be: means of squares are not below 0.
static float *made_slots(const lk_optimizer *o, uint64_t count) {
    lk_slot list[LK_OPTIMIZER_SLOTS_MAX];
    const uint32_t all = lk_optimizer_slots(o, list);
    float *slots = operand(all * count);
    for (uint64_t i = 0; i < all * count; i++) {
        if (is_square(&list[i / count])) slots[i] = fabsf(slots[i]);
    }
    return slots;
}

static void point(float *at[LK_OPTIMIZER_SLOTS_MAX], void *slots, uint32_t all, uint64_t count) {
    for (uint32_t i = 0; i < all; i++) at[i] = (float *)slots + i * count;
}

// Forward, and the gradient of each input.
static void check_joined(uint32_t examples, const lk_join *join) {
    const uint64_t cells = (uint64_t)examples * join->cells;
    const uint64_t values[] = {cells * join->values[0], cells * join->values[1]};
    lk_op op = {.type = &lk_op_concatenate, .join = *join};
    op.floats = (uint64_t)join->cells * (join->values[0] + join->values[1]);
    float *x = operand(values[0]), *x2 = operand(values[1]), *dy = operand(values[0] + values[1]);
    output y = output_of((values[0] + values[1]) * sizeof(float));
    lk_lane lane = {.examples = examples};
    snprintf(shape, sizeof shape, "%u x %u cells of %u and %u", examples, join->cells,
             join->values[0], join->values[1]);
    lane.at[LK_X] = x, lane.at[LK_X2] = x2, lane.at[LK_Y] = y.want;
    assert_int_equal(call_op(reference, &op, &lane), 0);
    EACH_VARIANT(k) {
        lane.at[LK_Y] = y.got;
        assert_int_equal(call_op(k, &op, &lane), 0);
        same(&y, k->name, "concatenate", shape);
    }
    op.type = &lk_op_concatenate_gradient;
    for (op.join.which = 0; op.join.which < 2; op.join.which++) {
        output dx = output_of(values[op.join.which] * sizeof(float));
        lk_lane back = {.examples = examples};
        back.at[LK_DY] = dy, back.at[LK_DX] = dx.want;
        assert_int_equal(call_op(reference, &op, &back), 0);
        EACH_VARIANT(k) {
            back.at[LK_DX] = dx.got;
            assert_int_equal(call_op(k, &op, &back), 0);
            same(&dx, k->name, "concatenate_gradient", shape);
        }
        output_free(&dx);
    }
    output_free(&y);
    free(x), free(x2), free(dy);
}

static void check_padded(uint32_t examples, lk_pool2d p, uint32_t bottom, uint32_t right) {
    p.out_h = p.in_h + p.pad_top + bottom, p.out_w = p.in_w + p.pad_left + right;
    const uint64_t in = (uint64_t)examples * p.in_h * p.in_w * p.channels;
    lk_op op = {.type = &lk_op_zero_padding2d, .pool = p};
    op.floats = (uint64_t)p.out_h * p.out_w * p.channels;
    float *x = operand(in), *dy = operand(examples * op.floats);
    output y = output_of(examples * op.floats * sizeof(float)), dx = output_of(in * sizeof(float));
    lk_lane lane = {.examples = examples}, back = lane;
    snprintf(shape, sizeof shape, "%u x (%u, %u, %u) to (%u, %u)", examples, p.in_h, p.in_w,
             p.channels, p.out_h, p.out_w);
    lane.at[LK_X] = x, lane.at[LK_Y] = y.want;
    assert_int_equal(call_op(reference, &op, &lane), 0);
    EACH_VARIANT(k) {
        lane.at[LK_Y] = y.got;
        assert_int_equal(call_op(k, &op, &lane), 0);
        same(&y, k->name, "zero_padding2d", shape);
    }
    op.type = &lk_op_zero_padding2d_backward;
    back.at[LK_DY] = dy, back.at[LK_DX] = dx.want;
    assert_int_equal(call_op(reference, &op, &back), 0);
    EACH_VARIANT(k) {
        back.at[LK_DX] = dx.got;
        assert_int_equal(call_op(k, &op, &back), 0);
        same(&dx, k->name, "zero_padding2d_backward", shape);
    }
    output_free(&y), output_free(&dx);
    free(x), free(dy);
}

static void test_places(void **state) {
    (void)state;
    seed = 12;
    for (int i = 0; i < 40; i++) {
        const lk_join join = {draw_from(1, 30), {draw_from(1, 40), draw_from(1, 40)}, 0};
        check_joined(draw_from(1, 3), &join);
        const lk_pool2d p = {.in_h = draw_from(1, 6),
                             .in_w = draw_from(1, 6),
                             .channels = draw_from(1, 20),
                             .pad_top = draw_from(0, 3),
                             .pad_left = draw_from(0, 3)};
        check_padded(draw_from(1, 3), p, draw_from(0, 3), draw_from(0, 3));
    }
}

static void check_squares(const lk_optimizer *o, const lk_step_scalars *scalars, uint64_t count,
                          const float *sum, const float *w, float *slot) {
    const lk_norm norm = lk_optimizer_norm(o);
    float *slots[LK_OPTIMIZER_SLOTS_MAX] = {NULL};
    output sums = output_of((count + LK_SLICE_TERMS - 1) / LK_SLICE_TERMS * 2 * sizeof(float));
    point(slots, slot, lk_optimizer_slot_count(o), count);
    lk_squares_of(reference, norm)(o, scalars, count, sum, w, slots, sums.want);
    EACH_VARIANT(k) {
        lk_squares_of(k, norm)(o, scalars, count, sum, w, slots, sums.got);
        same(&sums, k->name, "squares", shape);
    }
    output_free(&sums);
}

static void check_apply(const lk_optimizer *o, uint64_t count) {
    ordinary = draw() % 2;
    const uint32_t all = lk_optimizer_slot_count(o);
    lk_step_scalars scalars = lk_optimizer_scalars(o, 0, draw() % 2000, 0x1.555556p-6f);
    scalars.regularizer = draw() % 2 ? 0x1.99999ap-4f : 0.0f;
    float *sum = operand(count), *w = operand(count), *slot = made_slots(o, count);
    output after = output_of(count * sizeof(float)), slots = output_of(all * count * sizeof(float));
    float *want[LK_OPTIMIZER_SLOTS_MAX] = {NULL}, *got[LK_OPTIMIZER_SLOTS_MAX] = {NULL};
    snprintf(shape, sizeof shape, "%s count %llu", lk_optimizer_words_of(o->type)->name,
             (unsigned long long)count);
    point(want, slots.want, all, count), point(got, slots.got, all, count);
    memcpy(after.want, w, after.bytes), memcpy(slots.want, slot, slots.bytes);
    const uint32_t bad = lk_apply_of(reference, o)(o, &scalars, count, sum, after.want, want);
    EACH_VARIANT(k) {
        memcpy(after.got, w, after.bytes), memcpy(slots.got, slot, slots.bytes);
        assert_int_equal(lk_apply_of(k, o)(o, &scalars, count, sum, after.got, got), bad);
        if (bad) continue;  // a NaN's payload is a machine's own
        same(&after, k->name, "apply", shape);
        same(&slots, k->name, "apply, slot", shape);
    }
    if (lk_optimizer_norm(o)) check_squares(o, &scalars, count, sum, w, slot);
    for (int where = 0; count > 0 && where < 2; where++) {
        sum[draw() % count] = where ? INFINITY : -NAN;
        EACH_VARIANT(k) {
            memcpy(after.got, w, after.bytes), memcpy(slots.got, slot, slots.bytes);
            assert_int_equal(lk_apply_of(k, o)(o, &scalars, count, sum, after.got, got), 1);
        }
    }
    output_free(&after), output_free(&slots);
    free(sum), free(w), free(slot);
}

static void test_apply(void **state) {
    (void)state;
    seed = 6;
    for (uint64_t count = 0; count < 90; count++) {
        for (size_t c = count % 3; c < LK_COUNT(optimizer_cases); c += 3) {
            check_apply(&optimizer_cases[c], count);
        }
    }
    for (size_t c = 0; c < LK_COUNT(optimizer_cases); c++) {
        const lk_optimizer *o = &optimizer_cases[c];
        for (uint32_t i = 0; lk_optimizer_norm(o) && i < 4; i++) {
            check_apply(o, 512 * i + draw() % 3);
            check_apply(o, draw() % 12000);
        }
    }
}

static void check_average(uint64_t count, float keep) {
    float *w = operand(count), *before = operand(count);
    output after = output_of(count * sizeof(float));
    snprintf(shape, sizeof shape, "count %llu, %a kept", (unsigned long long)count, (double)keep);
    memcpy(after.want, before, after.bytes);
    const uint32_t bad = lk_average_reference(count, keep, w, after.want);
    EACH_VARIANT(k) {
        if (!k->average) continue;  // a GPU's is a part of its update
        memcpy(after.got, before, after.bytes);
        assert_int_equal(k->average(count, keep, w, after.got), bad);
        if (!bad) same(&after, k->name, "average", shape);
    }
    for (int where = 0; count > 0 && where < 2; where++) {
        w[draw() % count] = where ? -INFINITY : NAN;
        EACH_VARIANT(k) {
            memcpy(after.got, before, after.bytes);
            if (k->average) assert_int_equal(k->average(count, keep, w, after.got), 1);
        }
    }
    output_free(&after);
    free(w), free(before);
}

// n at any address: a partition may begin within a row.
static void check_turn(uint64_t count, uint64_t at) {
    float *n = operand(at + count), *before = operand(count);
    const float share = draw_value(), factor = draw_value();
    output after = output_of(count * sizeof(float));
    snprintf(shape, sizeof shape, "count %llu", (unsigned long long)count);
    memcpy(after.want, before, after.bytes);
    lk_spectral_turn_reference(count, share, factor, n + at, after.want);
    EACH_VARIANT(k) {
        if (!k->turn) continue;
        memcpy(after.got, before, after.bytes);
        k->turn(count, share, factor, n + at, after.got);
        same(&after, k->name, "turn", shape);
    }
    output_free(&after);
    free(n), free(before);
}

static void check_products(uint64_t count) {
    float *sum = operand(count), *w = operand(count);
    float *const none[LK_OPTIMIZER_SLOTS_MAX] = {NULL};
    const lk_optimizer *o = &optimizer_cases[0];
    const lk_step_scalars scalars = {.inverse_n = 1.0f};
    output sums = output_of((count + LK_SLICE_TERMS - 1) / LK_SLICE_TERMS * 2 * sizeof(float));
    snprintf(shape, sizeof shape, "count %llu", (unsigned long long)count);
    lk_squares_of(reference, LK_NORM_SPECTRAL)(o, &scalars, count, sum, w, none, sums.want);
    EACH_VARIANT(k) {
        lk_squares_of(k, LK_NORM_SPECTRAL)(o, &scalars, count, sum, w, none, sums.got);
        same(&sums, k->name, "products", shape);
    }
    output_free(&sums);
    free(sum), free(w);
}

static void test_spectral(void **state) {
    (void)state;
    seed = 33;
    ordinary = true;
    for (uint64_t count = 0; count < 70; count++) {
        check_turn(count, draw() % 17);
        check_products(count);
    }
    for (uint32_t i = 1; i < 8; i++) check_products(512 * i + draw() % 3);
    check_products(draw() % 12000);
}

static void test_average(void **state) {
    static const float kept[] = {0.0f, 0.5f, 0x1.fbe76cp-1f, 0x1.fffffep-1f};
    (void)state;
    seed = 31;
    for (uint64_t count = 0; count < 90; count++) {
        ordinary = draw() % 2;
        check_average(count, kept[draw() % LK_COUNT(kept)]);
    }
}

// --- pooling and loss ----------------------------------------------------------------------------

static void check_pool(const lk_pool2d *p, uint32_t m_count) {
    ordinary = false;
    uint64_t in = (uint64_t)m_count * p->in_h * p->in_w * p->channels;
    uint64_t out = (uint64_t)m_count * p->out_h * p->out_w * p->channels;
    float *x = operand(in), *dy = operand(out);
    output y = output_of(out * sizeof(float)), argmax = output_of(out * sizeof(uint16_t));
    output dx = output_of(in * sizeof(float));
    for (uint64_t i = 0; i < in && draw() % 2; i++) x[i] = (float)(draw() % 3);  // ties
    snprintf(shape, sizeof shape, "m %u in %ux%ux%u out %ux%u pool %ux%u stride %ux%u pad %u,%u",
             m_count, p->in_h, p->in_w, p->channels, p->out_h, p->out_w, p->pool_h, p->pool_w,
             p->stride_h, p->stride_w, p->pad_top, p->pad_left);
    max_pool_forward(reference, p, m_count, x, y.want, argmax.want);
    const uint16_t *winners = argmax.want;
    assert_int_equal(max_pool_backward(reference, p, m_count, dy, winners, dx.want), 0);
    EACH_VARIANT(k) {
        max_pool_forward(k, p, m_count, x, y.got, argmax.got);
        same(&y, k->name, "max_pool_forward", shape);
        same(&argmax, k->name, "max_pool_forward, argmax", shape);
        assert_int_equal(max_pool_backward(k, p, m_count, dy, winners, dx.got), 0);
        same(&dx, k->name, "max_pool_backward", shape);
    }
    const lk_op_type *forward = &lk_op_average_pool2d, *backward = &lk_op_average_pool2d_backward;
    (void)average_pool(reference, forward, p, m_count, x, y.want, NULL, NULL);
    (void)average_pool(reference, backward, p, m_count, NULL, NULL, dy, dx.want);
    EACH_VARIANT(k) {
        assert_int_equal(average_pool(k, forward, p, m_count, x, y.got, NULL, NULL), 0);
        same(&y, k->name, "average_pool2d", shape);
        assert_int_equal(average_pool(k, backward, p, m_count, NULL, NULL, dy, dx.got), 0);
        same(&dx, k->name, "average_pool2d_backward", shape);
    }
    output_free(&y), output_free(&argmax), output_free(&dx);
    free(x), free(dy);
}

// Two windows of the greatest float choose one cell: its sum is not finite, in any example and
// channel, and each variant says so, the reference too.
static void pool_gradient_overflows(uint32_t m_count, uint32_t channels) {
    const lk_pool2d p = {.in_h = 3, .in_w = 3, .channels = channels, .out_h = 2, .out_w = 2,
                         .pool_h = 2, .pool_w = 2, .stride_h = 1, .stride_w = 1};
    const uint64_t out = (uint64_t)m_count * 4 * channels;
    uint16_t *argmax = block(out * sizeof *argmax, 0);
    float *dy = block(out * sizeof *dy, 0), *dx = block(out / 4 * 9 * sizeof *dx, 0);
    // Windows (0, 0) and (0, 1) have cell (1, 1) as theirs of number 3 and 2.
    uint64_t at = (uint64_t)(draw() % m_count) * 4 * channels + draw() % channels;
    argmax[at] = 3, argmax[at + channels] = 2;
    for (int overflow = 0; overflow < 2; overflow++) {
        dy[at] = 0x1.fffffep127f, dy[at + channels] = overflow ? 0x1p127f : -0x1p127f;
        const lk_kernels *k;
        for (unsigned i = 0; lk_kernels_missing(i, &k), k != NULL; i++) {
            if (lk_kernels_missing(i, &k) != NULL) continue;
            uint32_t bad = max_pool_backward(k, &p, m_count, dy, argmax, dx);
            if (bad != (uint32_t)overflow) fail_msg("%s max_pool_backward: %u", k->name, bad);
        }
    }
    free(argmax), free(dy), free(dx);
}

static void test_pool(void **state) {
    (void)state;
    seed = 3;
    for (uint32_t i = 0; i < 40; i++) pool_gradient_overflows(draw_from(1, 4), draw_from(1, 40));
    for (uint64_t i = 1; i <= 150; i++) {
        seed = i;
        lk_pool2d p = {.in_h = draw_from(1, 9), .in_w = draw_from(1, 9), .channels = draw_size(40)};
        p.pool_h = draw_from(1, 3), p.pool_w = draw_from(1, 3);
        p.stride_h = draw_from(1, 3), p.stride_w = draw_from(1, 3);
        p.pad_top = draw() % p.pool_h, p.pad_left = draw() % p.pool_w;
        // As many windows as begin inside the image: each has a cell that exists.
        p.out_h = (p.in_h + p.pad_top - 1) / p.stride_h + 1;
        p.out_w = (p.in_w + p.pad_left - 1) / p.stride_w + 1;
        check_pool(&p, draw_from(1, 3));
    }
    for (uint32_t channels = 1; channels < 40; channels += 19) {  // whole images, several slices
        lk_pool2d p = {.in_h = 40, .in_w = 41, .channels = channels, .out_h = 1, .out_w = 1};
        p.pool_h = p.in_h, p.pool_w = p.in_w, p.stride_h = p.stride_w = 1;
        check_pool(&p, 2);
    }
}

static void check_softmax(uint32_t m_count, uint32_t classes) {
    const float smoothing = draw() % 2 ? 0.0f : (float)(1 + draw() % 9) * 0.1f;
    ordinary = false;
    uint64_t count = (uint64_t)m_count * classes;
    float *logits = operand(count);
    uint32_t *labels = block(m_count * sizeof *labels, 0), right, want_right;
    output loss = output_of(m_count * sizeof(float)), gradient = output_of(count * sizeof(float));
    for (uint64_t i = 0; i < count; i++) {
        float size = logits[i] < 0 ? -logits[i] : logits[i];
        // Many classes: powers of like size, so that the order of the sum shows in its bits.
        if (classes > 200) logits[i] = size > 1.0f ? 1.0f : logits[i];
        else logits[i] = size > 1e4f ? 90.0f : logits[i] * (float)(draw() % 40);
    }
    for (uint32_t m = 0; m < m_count; m++) labels[m] = draw() % classes;
    float *weights = block(classes * sizeof *weights, 0);
    for (uint32_t c = 0; c < classes; c++) weights[c] = (float)(draw() % 5) * 0.3f;
    const float *of_class = draw() % 2 ? weights : NULL;
    snprintf(shape, sizeof shape, "m %u classes %u, %g%s", m_count, classes, (double)smoothing,
             of_class ? ", weights" : "");
    uint32_t bad = weighted_cross_entropy(reference, m_count, classes, smoothing, of_class, logits,
                                          labels, gradient.want, loss.want, &want_right);
    assert_int_equal(bad, 0);
    EACH_VARIANT(k) {
        for (int with = 0; with < 2; with++) {
            float *to = with ? gradient.got : NULL;
            bad = weighted_cross_entropy(k, m_count, classes, smoothing, of_class, logits, labels,
                                         to, loss.got, &right);
            assert_int_equal(bad, 0);
            assert_int_equal(right, want_right);
            same(&loss, k->name, "softmax_cross_entropy, loss", shape);
            if (with) same(&gradient, k->name, "softmax_cross_entropy", shape);
        }
    }
    logits[0] = 0x1.8p127f;  // log(1) - (-max - max) is infinite
    logits[classes - 1] = -0x1.8p127f;
    labels[0] = classes - 1;
    bad = classes > 1;
    assert_int_equal(softmax_cross_entropy(reference, m_count, classes, logits, labels,
                                                      gradient.want, loss.want, &right), bad);
    EACH_VARIANT(k) {
        assert_int_equal(softmax_cross_entropy(k, m_count, classes, logits, labels, gradient.got,
                                               loss.got, &right),
                         bad);
    }
    output_free(&loss), output_free(&gradient);
    free(logits), free(labels), free(weights);
}

static void test_softmax(void **state) {
    (void)state;
    for (uint64_t i = 1; i <= 60; i++) {
        seed = i;
        check_softmax(draw_from(1, 20), draw_size(100));
    }
    check_softmax(2, 512);
    check_softmax(2, 513);
    check_softmax(3, 1000);
    check_softmax(1, 2600);
}

static void check_binary(uint32_t m_count, uint32_t floats, float smoothing) {
    const lk_op op = {.type = &lk_op_binary_crossentropy, .floats = floats, .scale = smoothing};
    float *x = operand((uint64_t)m_count * floats);
    uint32_t *labels = block(m_count * sizeof *labels, 0);
    output loss = output_of(m_count * sizeof(float));
    output dx = output_of((uint64_t)m_count * floats * sizeof(float));
    lk_lane lane = {.examples = m_count, .train = true};
    for (uint32_t m = 0; m < m_count; m++) labels[m] = draw() % LK_MAX(floats, 2u);
    snprintf(shape, sizeof shape, "m %u logits %u, %g", m_count, floats, (double)smoothing);
    lane.at[LK_X] = x, lane.at[LK_X2] = labels;
    lane.at[LK_Y] = loss.want, lane.at[LK_DX] = dx.want;
    assert_int_equal(lk_kernel_of(reference, op.type)(&lane, &op), 0);
    const uint32_t right = lane.counts[0];
    EACH_VARIANT(k) {
        lane.at[LK_Y] = loss.got, lane.at[LK_DX] = dx.got, lane.counts[0] = 0;
        assert_int_equal(lk_kernel_of(k, op.type)(&lane, &op), 0);
        assert_int_equal(lane.counts[0], right);
        same(&loss, k->name, "binary_crossentropy, loss", shape);
        same(&dx, k->name, "binary_crossentropy", shape);
    }
    output_free(&loss), output_free(&dx);
    free(x), free(labels);
}

static void test_binary_crossentropy(void **state) {
    (void)state;
    seed = 16;
    for (uint32_t i = 0; i < 20; i++) check_binary(1 + draw() % 40, 1, i % 2 ? 0.125f : 0.0f);
    for (uint32_t i = 1; i < 20; i++) check_binary(1 + draw() % 9, i, i % 2 ? 0.125f : 0.0f);
    check_binary(2, 513, 0.0f);
    check_binary(1, 1100, 0.5f);
}

// Two losses without labels: values, gradients, both; and a value that overflows.
static void check_losses(uint32_t m_count, uint32_t floats) {
    ordinary = draw() % 2;
    const uint64_t count = (uint64_t)m_count * floats;
    float *p = operand(count), *t = operand(count);
    output y = output_of(2 * m_count * sizeof(float)), one = output_of(m_count * sizeof(float)),
           dp = output_of(count * sizeof(float));
    snprintf(shape, sizeof shape, "m %u floats %u", m_count, floats);
    for (int with = 0; with < 2; with++) {
        assert_int_equal(mean_squared_error(reference, m_count, floats, p, t, y.want, dp.want), 0);
        EACH_VARIANT(k) {
            float *to = with ? dp.got : NULL;
            assert_int_equal(mean_squared_error(k, m_count, floats, p, t, y.got, to), 0);
            same(&y, k->name, "mean_squared_error, loss", shape);
            if (with) same(&dp, k->name, "mean_squared_error", shape);
        }
        assert_int_equal(mean_loss(reference, m_count, floats, -0.7f, p, one.want, dp.want), 0);
        EACH_VARIANT(k) {
            float *to = with ? dp.got : NULL;
            assert_int_equal(mean_loss(k, m_count, floats, -0.7f, p, one.got, to), 0);
            same(&one, k->name, "mean, loss", shape);
            if (with) same(&dp, k->name, "mean", shape);
        }
    }
    const lk_op_type *target = &lk_op_mean_squared_error_target_gradient;
    (void)element_op(reference, target, count, NULL, NULL, NULL, p, dp.want);
    EACH_VARIANT(k) {
        (void)element_op(k, target, count, NULL, NULL, NULL, p, dp.got);
        same(&dp, k->name, "mean_squared_error_target_gradient", shape);
    }
    const uint64_t at = draw() % count;
    p[at] = 0x1p127f, t[at] = 0.0f;
    EACH_VARIANT(k) {
        assert_int_equal(mean_squared_error(k, m_count, floats, p, t, y.got, NULL), 1);
        assert_int_equal(mean_loss(k, m_count, floats, 0x1p20f, p, one.got, NULL), 1);
    }
    output_free(&y), output_free(&one), output_free(&dp);
    free(p), free(t);
}

static void test_losses(void **state) {
    (void)state;
    for (uint64_t i = 1; i <= 60; i++) {
        seed = i;
        check_losses(draw_from(1, 20), draw_size(100));
    }
    check_losses(9, 512);
    check_losses(8, 513);
    check_losses(3, 1100);
    check_losses(17, 2600);
}

// A label that is no class indexes nothing, makes the loss NaN and is reported; the other examples
// and all gradients are what they are without it.
static void check_strange_label(const lk_kernels *k, uint32_t label, uint32_t classes) {
    enum { M = 3, STRANGE = 1 };
    const uint64_t count = (uint64_t)M * classes;
    uint32_t *labels = block(M * sizeof *labels, 0), right;
    float *logits = block(count * sizeof *logits, 0),
          *gradient = block(count * sizeof *gradient, 0);
    output loss = output_of(M * sizeof(float));
    for (uint64_t i = 0; i < count; i++) logits[i] = (float)(i % 5) * 0.25f;
    snprintf(shape, sizeof shape, "label %u classes %u", label, classes);
    assert_int_equal(
        softmax_cross_entropy(reference, M, classes, logits, labels, gradient, loss.want, &right),
        0);
    const uint32_t quiet_nan = 0x7fc00000;
    memcpy((float *)loss.want + STRANGE, &quiet_nan, sizeof quiet_nan);
    labels[STRANGE] = label;
    for (int with = 0; with < 2; with++) {
        uint32_t bad = softmax_cross_entropy(k, M, classes, logits, labels, with ? gradient : NULL,
                                                loss.got, &right);
        assert_int_equal(bad, 1);
        assert_true(right <= M - 1);
        same(&loss, k->name, "softmax_cross_entropy, loss", shape);
    }
    output_free(&loss);
    free(labels), free(logits), free(gradient);
}

static void test_strange_labels(void **state) {
    (void)state;
    const uint32_t labels[] = {3, 4, 17, 255, 256, 0x7fffffff, 0xfffffffe}, classes[] = {1, 3, 17};
    for (size_t c = 0; c < LK_COUNT(classes); c++) {
        for (size_t i = 0; i < LK_COUNT(labels); i++) {
            if (labels[i] < classes[c]) continue;
            check_strange_label(reference, labels[i], classes[c]);
            EACH_VARIANT(k) { check_strange_label(k, labels[i], classes[c]); }
        }
    }
}

// --- the choice of a variant ---------------------------------------------------------------------

static void test_choose(void **state) {
    (void)state;
    const lk_kernels *k = NULL, *automatic = NULL;
    lk_error error = {0};
    assert_int_equal(lk_kernels_choose("portable", &k, &error), LK_OK);
    assert_ptr_equal(k, &lk_kernels_portable);
    assert_int_equal(lk_kernels_choose("reference", &k, &error), LK_OK);
    assert_ptr_equal(k, &lk_kernels_reference);
    assert_int_equal(lk_kernels_choose("auto", &automatic, &error), LK_OK);
    assert_int_equal(lk_kernels_choose(NULL, &k, &error), LK_OK);
    assert_ptr_equal(k, automatic);
    for (unsigned i = 0; lk_kernels_missing(i, &k), k != NULL; i++) {
        const lk_kernels *named = NULL;
        bool runs = lk_kernels_missing(i, &k) == NULL;
        error = (lk_error){0};
        assert_int_equal(lk_kernels_choose(k->name, &named, &error), runs ? LK_OK : LK_UNAVAILABLE);
        assert_ptr_equal(named, runs ? k : NULL);
        if (!runs) assert_non_null(strstr(error.text, lk_kernels_missing(i, &k)));
        // What has its own instructions is not slow.
        if (k != &lk_kernels_portable && k != reference) assert_null(lk_kernels_slow(k));
    }
    error = (lk_error){0};
    assert_int_equal(lk_kernels_choose("sse9", &k, &error), LK_BAD_USAGE);
    assert_null(k);
    assert_non_null(strstr(error.text, "sse9"));
    assert_non_null(strstr(error.text, "auto, "));
    assert_non_null(strstr(error.text, "portable, reference"));
    error = (lk_error){0};
#ifdef __aarch64__
    assert_ptr_equal(automatic, &lk_kernels_neon);
    const char *foreign = "avx2";
#else
    const char *foreign = "neon";
#endif
    assert_int_equal(lk_kernels_choose(foreign, &k, &error), LK_BAD_USAGE);
    assert_non_null(strstr(error.text, foreign));
}

// Every position of a set in calls of all lengths up to 70, and nothing behind them.
static void check_permute(const lk_kernels *k, const lk_permutation *p) {
    enum { MOST = 70, STAYS = 77 };
    uint64_t index[MOST + 1];
    for (uint64_t at = 0, call = 0; at < p->count; call++) {
        const uint32_t count = (uint32_t)LK_MIN(call % (MOST + 1), p->count - at);
        for (uint32_t i = 0; i <= MOST; i++) index[i] = STAYS;
        k->permute(p, at, count, index);
        for (uint32_t i = 0; i < count; i++) {
            if (index[i] == lk_permute(p, at + i)) continue;
            fail_msg("%s permute: position %llu of %llu", k->name, (unsigned long long)at + i,
                     (unsigned long long)p->count);
        }
        assert_int_equal(index[count], STAYS);
        at += count;
    }
}

static void test_permute(void **state) {
    static const uint64_t counts[] = {127, 128,  129,   251,   256,   257,   1021,
                                      1024, 1031, 4093,  4096,  4099,  16381, 16384,
                                      60000, 65521, 65536, 65537, 262139};
    (void)state;
    EACH_VARIANT(k) {
        if (!k->permute) continue;
        for (uint64_t count = 1; count <= 100; count++) {
            const lk_permutation p =
                lk_permutation_of(~count << 31, count << 30, (uint32_t)count % 5, count);
            check_permute(k, &p);
        }
        for (size_t i = 0; i < LK_COUNT(counts); i++) {
            const lk_permutation p = lk_permutation_of(~(uint64_t)i << 31, (i + 1) << (3 * i),
                                                       ((uint32_t)1 << 29) - 1 - i, counts[i]);
            check_permute(k, &p);
        }
        // The largest set: its ends and places between.
        const lk_permutation p = lk_permutation_of(5, 1, 0, ((uint64_t)1 << 40) - 1);
        for (uint64_t at = 0; at < p.count - 64; at += p.count / 100) {
            uint64_t index[64];
            k->permute(&p, at, 64, index);
            for (uint32_t i = 0; i < 64; i++) assert_int_equal(index[i], lk_permute(&p, at + i));
        }
    }
}

int main(int argc, char **argv) {
    if (argc > 1) rounds = strtoul(argv[1], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choose),
        cmocka_unit_test(test_dense_forward),
        cmocka_unit_test(test_dense_input_gradient),
        cmocka_unit_test(test_dense_weight_gradient),
        cmocka_unit_test(test_many_grains),
        cmocka_unit_test(test_elements),
        cmocka_unit_test(test_permute),
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_activations),
        cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_noise),
        cmocka_unit_test(test_gan),
        cmocka_unit_test(test_batch_normalization),
        cmocka_unit_test(test_batch_normalization_overflows),
        cmocka_unit_test(test_layer_normalization),
        cmocka_unit_test(test_layer_normalization_overflows),
        cmocka_unit_test(test_apply),
        cmocka_unit_test(test_average),
        cmocka_unit_test(test_spectral),
        cmocka_unit_test(test_pool),
        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_binary_crossentropy),
        cmocka_unit_test(test_losses),
        cmocka_unit_test(test_strange_labels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
