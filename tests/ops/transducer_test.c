// transducer_test.c - the joint, the loss of a transducer and the embedding of its labels: golden
// vectors, finite differences in double, all variants and tiles against the reference, bit for bit;
// what is not finite; programs, and what is refused.
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

#include "ops/graph/program.h"
#include "ops/layers/decode.h"
#include "ops/variant.h"
#include "tests/ops/guarded.h"
#include "tests/ops/layers.h"

static uint64_t draws = 1;

static uint32_t draw(void) {
    draws = draws * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(draws >> 33);
}
static uint32_t draw_from(uint32_t low, uint32_t high) { return low + draw() % (high - low + 1); }
static float draw_value(void) { return (float)(int32_t)(draw() - 0x40000000u) * 0x1p-30f; }

static void near(const char *what, uint64_t at, double want, double got, double tolerance) {
    if (fabs(want - got) <= tolerance * (1.0 + fabs(want))) return;
    fail_msg("%s[%llu]: wanted %.9g, got %.9g", what, (unsigned long long)at, want, got);
}

// Floats whose last one is the last that may be read.
static float *block(uint64_t floats) {
    return guarded_take(LK_MAX(floats, 1u) * sizeof(float), 0xff);
}

// --- a joint and its loss as their ops -----------------------------------------------------------

enum { X, X2, KERNEL, BIAS, OPERANDS };
enum { Y, KEPT, LOSS, DY, DX, DX2, DKERNEL, DBIAS, RESULTS };
static const char *const result_names[] = {"y",  "kept", "loss",    "dy",
                                           "dx", "dx2",  "dkernel", "dbias"};

typedef struct joint {
    uint32_t examples, frames, labels, values, symbols, grain, tile, frames_said;
    uint32_t *row;  // (examples, 1 + labels)
    float *in[OPERANDS];
    float *out[RESULTS];
    uint32_t bad;
} joint;

static uint64_t cells_of(const joint *c) { return (uint64_t)c->frames * (c->labels + 1); }

static uint64_t operand_floats(const joint *c, int which) {
    const uint64_t all[] = {(uint64_t)c->examples * c->frames * c->values,
                            (uint64_t)c->examples * (c->labels + 1) * c->values,
                            (uint64_t)c->values * c->symbols, c->symbols};
    return all[which];
}

static uint64_t result_floats(const joint *c, int which) {
    const uint64_t two = 2 * c->examples * cells_of(c);
    const uint64_t all[] = {two,
                            two,
                            c->examples,
                            two,
                            operand_floats(c, X),
                            operand_floats(c, X2),
                            operand_floats(c, KERNEL),
                            c->symbols};
    return all[which];
}

static lk_op op_of(const joint *c) {
    return (lk_op){
        .joint = {.dense = {.k_count = c->values, .n_count = c->symbols, .use_bias = true},
                  .frames = c->frames,
                  .labels = c->labels,
                  .frames_said = c->frames_said,
                  .tile = c->tile,
                  .grain = c->grain}};
}

static void call(joint *c, const lk_kernels *k, const lk_op_type *type, lk_lane *l) {
    lk_op op = op_of(c);
    op.type = type;
    l->at[LK_SCRATCH] = block(type->scratch_floats(&op, c->examples));
    l->train = true;
    l->examples = c->examples;
    c->bad |= lk_kernel_of(k, type)(l, &op);
    guarded_give(l->at[LK_SCRATCH]);
}

static lk_lane lane_of(const joint *c) {
    lk_lane l = {.param = {c->in[KERNEL], c->in[BIAS]}};
    l.at[LK_X] = c->in[X], l.at[LK_X2] = c->in[X2], l.at[LK_AUX] = c->out[KEPT];
    l.at[LK_LABELS] = c->row;
    return l;
}

static void run(joint *c, const lk_kernels *k) {
    lk_grain_view views[64];
    c->bad = 0;
    lk_lane l = lane_of(c);
    l.at[LK_Y] = c->out[Y];
    call(c, k, &lk_op_joint, &l);
    lk_lane loss = {.at = {[LK_X] = c->out[Y], [LK_X2] = c->row}};
    loss.at[LK_Y] = c->out[LOSS], loss.at[LK_DX] = c->out[DY];
    call(c, k, &lk_op_transducer, &loss);
    lk_lane back = lane_of(c);
    back.at[LK_DY] = c->out[DY], back.at[LK_DX] = c->out[DX], back.at[LK_DX2] = c->out[DX2];
    call(c, k, &lk_op_joint_input_gradient, &back);
    lk_lane sums = lane_of(c);
    sums.at[LK_DY] = c->out[DY], sums.grains = views, sums.grain = c->grain;
    for (uint32_t m = 0; m < c->examples; m += c->grain) {
        views[sums.grain_count++] = (lk_grain_view){.dy = c->out[DY] + 2 * m * cells_of(c),
                                                    .examples = LK_MIN(c->grain, c->examples - m)};
    }
    sums.sums[0] = c->out[DKERNEL], sums.sums[1] = c->out[DBIAS];
    call(c, k, &lk_op_joint_weight_gradient, &sums);
}

static joint joint_of(uint32_t examples, uint32_t frames, uint32_t labels, uint32_t values,
                      uint32_t symbols) {
    joint c = {.examples = examples,
               .frames = frames,
               .labels = labels,
               .values = values,
               .symbols = symbols,
               .grain = examples,
               .tile = LK_SLICE_TERMS,
               .frames_said = frames};
    c.row = guarded_take((uint64_t)examples * (1 + labels) * sizeof *c.row, 0);
    for (int i = 0; i < OPERANDS; i++) {
        c.in[i] = block(operand_floats(&c, i));
        for (uint64_t e = 0; e < operand_floats(&c, i); e++) c.in[i][e] = draw_value();
    }
    for (int i = 0; i < RESULTS; i++) c.out[i] = block(result_floats(&c, i));
    for (uint32_t m = 0; m < examples; m++) {
        uint32_t *row = c.row + m * (1 + labels);
        row[0] = draw_from(1, frames);
        const uint32_t count = draw_from(0, labels);
        for (uint32_t u = 0; u < count; u++) row[1 + u] = draw_from(1, symbols - 1);
    }
    return c;
}

static void give_back(joint *c) {
    guarded_give(c->row);
    for (int i = 0; i < OPERANDS; i++) guarded_give(c->in[i]);
    for (int i = 0; i < RESULTS; i++) guarded_give(c->out[i]);
}

// --- golden vectors ------------------------------------------------------------------------------

// Those of the papers' implementations: scores z of each cell, the losses and what dz is.
static const float scores_1[] = {.1f, .6f, .1f, .1f, .1f, .1f, .1f, .6f, .1f, .1f,
                                 .1f, .1f, .2f, .8f, .1f, .1f, .6f, .1f, .1f, .1f,
                                 .1f, .1f, .2f, .1f, .1f, .7f, .1f, .2f, .1f, .1f};
static const double slopes_1[] = {
    -.13116688, -.3999269, .17703125,  .17703125, .17703125, -.18572757, .12247056,  -.18168412,
    .12247056,  .12247056, -.32091254, .06269141, .06928472, .12624499,  .06269141,  .05456069,
    -.21824276, .05456069, .05456069,  .05456069, .12073959, .12073959,  -.48295835, .12073959,
    .12073959,  -.6925882, .16871116,  .18645467, .16871116, .16871116};
static const float scores_2[] = {
    0.065357f, 0.787530f, 0.081592f, 0.529716f, 0.750675f, 0.754135f, 0.609764f, 0.868140f,
    0.622532f, 0.668522f, 0.858039f, 0.164539f, 0.989780f, 0.944298f, 0.603168f, 0.946783f,
    0.666203f, 0.286882f, 0.094184f, 0.366674f, 0.736168f, 0.166680f, 0.714154f, 0.399400f,
    0.535982f, 0.291821f, 0.612642f, 0.324241f, 0.800764f, 0.524106f, 0.779195f, 0.183314f,
    0.113745f, 0.240222f, 0.339470f, 0.134160f, 0.505562f, 0.051597f, 0.640290f, 0.430733f,
    0.829473f, 0.177467f, 0.320700f, 0.042883f, 0.302803f, 0.675178f, 0.569537f, 0.558474f,
    0.083132f, 0.060165f, 0.107958f, 0.748615f, 0.943918f, 0.486356f, 0.418199f, 0.652408f,
    0.024243f, 0.134582f, 0.366342f, 0.295830f, 0.923670f, 0.689929f, 0.741898f, 0.250005f,
    0.603430f, 0.987289f, 0.592606f, 0.884672f, 0.543450f, 0.660770f, 0.377128f, 0.358021f};
static const double slopes_2[] = {-.186844, -.062555, .249399};

// One example whose scores are these: a value for each cell, tanh of which is 1 there and -1 in all
// other cells, and a kernel of half the scores. So dz of a cell is half of its row of the kernel's
// gradient and of the bias's.
static joint joint_of_scores(uint32_t frames, uint32_t labels, uint32_t symbols, const float *z,
                             const uint32_t *said) {
    const uint32_t cells = frames * (labels + 1);
    joint c = joint_of(1, frames, labels, cells, symbols);
    for (uint32_t k = 0; k < cells; k++) {
        for (uint32_t t = 0; t < frames; t++)
            c.in[X][t * cells + k] = t == k / (labels + 1) ? 0.0f : -40.0f;
        for (uint32_t u = 0; u <= labels; u++)
            c.in[X2][u * cells + k] = u == k % (labels + 1) ? 20.0f : -20.0f;
    }
    for (uint32_t n = 0; n < symbols; n++) {
        c.in[BIAS][n] = 0.0f;
        for (uint32_t k = 0; k < cells; k++) {
            c.in[KERNEL][k * symbols + n] = 0.5f * z[k * symbols + n];
            c.in[BIAS][n] += 0.5f * z[k * symbols + n];
        }
    }
    memcpy(c.row, said, (1 + labels) * sizeof *said);
    run(&c, &lk_kernels_reference);
    assert_int_equal(c.bad, 0);
    return c;
}

static double slope_of(const joint *c, uint32_t i) {
    return 0.5 * ((double)c->out[DKERNEL][i] + (double)c->out[DBIAS][i % c->symbols]);
}

static void golden_vectors(void **state) {
    static const uint32_t said[][3] = {{2, 1, 2}, {4, 1, 2}, {4, 1, 1}};
    (void)state;
    joint c = joint_of_scores(2, 2, 5, scores_1, said[0]);
    near("loss", 1, 4.495666774, (double)c.out[LOSS][0], 1e-6);
    for (uint32_t i = 0; i < LK_COUNT(slopes_1); i++)
        near("dz", i, slopes_1[i], slope_of(&c, i), 1e-6);
    give_back(&c);
    c = joint_of_scores(4, 2, 3, scores_2, said[1]);
    near("loss", 2, 4.280653034, (double)c.out[LOSS][0], 1e-6);
    for (uint32_t i = 0; i < LK_COUNT(slopes_2); i++)
        near("dz", i, slopes_2[i], slope_of(&c, i), 2e-6);
    give_back(&c);
    c = joint_of_scores(4, 2, 3, scores_2 + 36, said[2]);
    near("loss", 3, 3.938436927, (double)c.out[LOSS][0], 1e-6);
    give_back(&c);
}

// --- finite differences --------------------------------------------------------------------------

enum { WIDE = 2048 };

static double lse(double a, double b) {
    const double top = fmax(a, b);
    return isinf(top) ? top : top + log(exp(a - top) + exp(b - top));
}

// The sum of all examples' losses, in double, by alpha alone.
static double loss_of(const joint *c, double in[OPERANDS][WIDE]) {
    double loss = 0.0;
    for (uint32_t m = 0; m < c->examples; m++) {
        const uint32_t *row = c->row + m * (1 + c->labels);
        const uint32_t frames = (row[0] * c->frames + c->frames_said - 1) / c->frames_said;
        double alpha[64], next = 0.0;
        uint32_t labels = 0;
        while (labels < c->labels && row[1 + labels]) labels++;
        for (uint32_t u = 0; u <= labels; u++) alpha[u] = u ? -INFINITY : 0.0;
        for (uint32_t t = 0; t < frames; t++) {
            for (uint32_t u = 0; u <= labels; u++) {
                double z[64], sum = -INFINITY;
                for (uint32_t n = 0; n < c->symbols; n++) {
                    z[n] = in[BIAS][n];
                    for (uint32_t k = 0; k < c->values; k++) {
                        z[n] += tanh(in[X][(m * c->frames + t) * c->values + k] +
                                     in[X2][(m * (c->labels + 1) + u) * c->values + k]) *
                                in[KERNEL][k * c->symbols + n];
                    }
                    sum = lse(sum, z[n]);
                }
                if (u) alpha[u] = lse(alpha[u], next);
                if (u < labels) next = alpha[u] + z[row[1 + u]] - sum;
                alpha[u] += z[0] - sum;
            }
        }
        loss -= alpha[labels];
    }
    return loss;
}

static void check_differences(uint32_t examples, uint32_t frames, uint32_t labels, uint32_t values,
                              uint32_t symbols, uint32_t frames_said) {
    static double in[OPERANDS][WIDE];
    static const int of[] = {DX, DX2, DKERNEL, DBIAS};
    joint c = joint_of(examples, frames, labels, values, symbols);
    c.frames_said = frames_said;
    c.row[0] = frames_said;  // the longest; and the shortest of both
    for (uint32_t u = 0; u < labels; u++) c.row[1 + u] = 1 + u % (symbols - 1);
    if (examples > 1) memset(c.row + 1 + labels, 0, (1 + labels) * sizeof *c.row);
    if (examples > 1) c.row[1 + labels] = 1;
    run(&c, &lk_kernels_reference);
    assert_int_equal(c.bad, 0);
    for (int i = 0; i < OPERANDS; i++) {
        assert_true(operand_floats(&c, i) <= WIDE);
        for (uint64_t e = 0; e < operand_floats(&c, i); e++) in[i][e] = (double)c.in[i][e];
    }
    double loss = 0.0;
    for (uint32_t m = 0; m < examples; m++) loss += (double)c.out[LOSS][m];
    near("loss", 0, loss_of(&c, in), loss, 2e-6);
    for (int i = 0; i < OPERANDS; i++) {
        for (uint64_t e = 0; e < operand_floats(&c, i); e++) {
            const double before = in[i][e], by = 1e-5;
            in[i][e] = before + by;
            double slope = loss_of(&c, in);
            in[i][e] = before - by;
            slope -= loss_of(&c, in);
            in[i][e] = before;
            near(result_names[of[i]], e, slope / (2 * by), (double)c.out[of[i]][e], 5e-6);
        }
    }
    give_back(&c);
}

static void gradients_are_slopes(void **state) {
    (void)state;
    draws = 3;
    check_differences(5, 6, 4, 5, 7, 6);
    check_differences(4, 5, 3, 3, 4, 17);  // rows of the input are more than the joint's
    check_differences(3, 1, 3, 4, 3, 1);   // T = 1
    check_differences(3, 7, 0, 2, 2, 7);   // U = 0
    check_differences(1, 1, 0, 1, 2, 1);
}

// --- variants and tiles --------------------------------------------------------------------------

static void check_variants(joint *c, uint32_t grain, uint32_t tile) {
    const lk_kernels *k;
    joint got = *c;
    c->grain = got.grain = grain;
    c->tile = got.tile = tile;
    for (int i = 0; i < RESULTS; i++) got.out[i] = block(result_floats(c, i));
    for (unsigned n = 0; (void)lk_kernels_missing(n, &k), k; n++) {
        if (lk_kernels_missing(n, &k) || k == &lk_kernels_reference) continue;
        for (int i = 0; i < RESULTS; i++)
            memset(got.out[i], 0x5a, result_floats(c, i) * sizeof(float));
        run(&got, k);
        assert_int_equal(got.bad, c->bad);
        for (int i = 0; i < RESULTS && !c->bad; i++) {
            const uint64_t floats = result_floats(c, i);
            uint64_t e = 0;
            // A node's zeros have no sign.
            while (e < floats && (i < DKERNEL ? memcmp(&c->out[i][e], &got.out[i][e], 4) == 0
                                              : c->out[i][e] == got.out[i][e]))
                e++;
            if (e == floats) continue;
            fail_msg(
                "%s: %s[%llu] of %u examples, %u frames, %u labels, %u values, %u symbols, "
                "grain %u, tile %u",
                k->name, result_names[i], (unsigned long long)e, c->examples, c->frames, c->labels,
                c->values, c->symbols, grain, tile);
        }
    }
    for (int i = 0; i < RESULTS; i++) guarded_give(got.out[i]);
}

static void check_tiles(uint32_t examples, uint32_t frames, uint32_t labels, uint32_t values,
                        uint32_t symbols, uint32_t grain) {
    joint c = joint_of(examples, frames, labels, values, symbols);
    c.grain = grain;
    run(&c, &lk_kernels_reference);
    for (uint32_t tile = LK_SLICE_TERMS; tile <= 8 * LK_SLICE_TERMS; tile *= 2)
        check_variants(&c, grain, tile);
    give_back(&c);
}

static void variants_and_tiles_have_the_same_bits(void **state) {
    (void)state;
    draws = 7;
    for (uint32_t i = 0; i < 12; i++) {
        check_tiles(draw_from(1, 9), draw_from(1, 12), draw_from(0, 6), draw_from(1, 40),
                    draw_from(2, 40), 1u << draw() % 4);
    }
    check_tiles(6, 70, 8, 5, 4, 4);     // grains of five slices, a tile is part of one or all of it
    check_tiles(9, 12, 6, 5, 4, 1);     // a tile has room for six grains, and takes four
    check_tiles(70, 12, 6, 5, 4, 16);   // grains of three slices, two of them in a tile
    check_tiles(2, 3, 2, 530, 600, 1);  // sums of two slices inside of a cell
}

// Of all rounds what is said, and how far each example is; the second inputs stay as they are.
static void say(const joint *c, const lk_kernels *k, uint32_t *said, lk_decoding *states) {
    lk_op op = op_of(c);
    lk_lane l = lane_of(c);
    op.type = &lk_op_decode;
    op.joint.classes = c->symbols - 1;
    l.examples = c->examples;
    l.at[LK_Y] = said, l.at[LK_AUX] = states;
    l.at[LK_SCRATCH] = block(op.type->scratch_floats(&op, c->examples));
    lk_decode_start(&l, &op);
    for (uint32_t round = 0; round < c->labels; round++)
        assert_int_equal(lk_kernel_of(k, op.type)(&l, &op), 0);
    guarded_give(l.at[LK_SCRATCH]);
}

static void variants_say_the_same(void **state) {
    enum { EXAMPLES = 7, LABELS = 9 };
    uint32_t want[EXAMPLES * (1 + LABELS)], got[EXAMPLES * (1 + LABELS)];
    lk_decoding ends[EXAMPLES], got_ends[EXAMPLES];
    const lk_kernels *k;
    (void)state;
    for (uint32_t values = 1; values < 600; values = 3 * values + 5) {
        joint c = joint_of(EXAMPLES, 12, LABELS, values, 2 + values);
        say(&c, &lk_kernels_reference, want, ends);
        for (unsigned n = 0; (void)lk_kernels_missing(n, &k), k; n++) {
            if (lk_kernels_missing(n, &k)) continue;
            say(&c, k, got, got_ends);
            if (memcmp(want, got, sizeof want)) fail_msg("%s: %u values", k->name, values);
            assert_memory_equal(ends, got_ends, sizeof ends);
        }
        give_back(&c);
    }
}

// --- what is not finite, or no label -------------------------------------------------------------

static void overflows_are_said(void **state) {
    const lk_kernels *k;
    (void)state;
    for (unsigned n = 0; (void)lk_kernels_missing(n, &k), k; n++) {
        if (lk_kernels_missing(n, &k)) continue;
        for (int kind = 0; kind < 5; kind++) {
            joint c = joint_of(2, 3, 2, 4, 5);
            c.row[0] = 3, c.row[1] = 1, c.row[2] = 4;
            if (kind == 1) c.in[KERNEL][7] = INFINITY;
            if (kind == 2) c.in[BIAS][0] = -INFINITY;
            if (kind == 3) c.row[2] = 5;            // no symbol
            if (kind == 4) c.in[BIAS][0] = -3e38f;  // and with the label's greatest: b overflows
            if (kind == 4) c.in[BIAS][1] = 3e38f;
            run(&c, k);
            if (c.bad != (kind > 0)) fail_msg("%s: kind %d: said %u", k->name, kind, c.bad);
            give_back(&c);
        }
    }
}

// A position without an example is a row of zeros: no frames, no loss, no gradient.
static void no_frames_no_loss(void **state) {
    (void)state;
    joint c = joint_of(3, 4, 2, 3, 4);
    memset(c.row + 3, 0, 3 * sizeof *c.row);
    run(&c, &lk_kernels_portable);
    assert_int_equal(c.bad, 0);
    assert_true(c.out[LOSS][1] == 0.0f && c.out[LOSS][0] > 0.0f);
    for (uint32_t i = 0; i < 24; i++) assert_true(c.out[DY][24 + i] == 0.0f);
    for (uint32_t i = 0; i < 12; i++) assert_true(c.out[DX][12 + i] == 0.0f);
    give_back(&c);
}

// --- label_embedding -----------------------------------------------------------------------------

static void check_embeddings(const lk_kernels *k) {
    enum { EXAMPLES = 3, LABELS = 300, CLASSES = 4, UNITS = 19, ROWS = LABELS + 1 };
    static const uint32_t lengths[EXAMPLES] = {0, LABELS - 10, LABELS};
    static uint32_t row[EXAMPLES][1 + LABELS];
    static float w[CLASSES * UNITS], y[EXAMPLES * ROWS * UNITS], dy[EXAMPLES * ROWS * UNITS];
    double want[CLASSES * UNITS] = {0};
    float dw[CLASSES * UNITS], reference[CLASSES * UNITS];
    const lk_joint shape = {.dense = {.k_count = CLASSES, .n_count = UNITS},
                            .frames = 1,
                            .labels = LABELS,
                            .grain = 2};
    const lk_op op = {.type = &lk_op_label_embedding, .joint = shape};
    const lk_op back = {.type = &lk_op_label_embedding_gradient, .joint = shape};
    draws = 9;
    for (uint32_t i = 0; i < CLASSES * UNITS; i++) w[i] = draw_value();
    for (uint32_t m = 0; m < EXAMPLES; m++) {
        row[m][0] = 1;
        for (uint32_t u = 0; u < lengths[m]; u++) row[m][1 + u] = draw_from(1, CLASSES - 1);
    }
    lk_lane l = {.examples = EXAMPLES, .param = {w}};
    l.at[LK_LABELS] = row, l.at[LK_Y] = y;
    assert_int_equal(lk_kernel_of(k, &lk_op_label_embedding)(&l, &op), 0);
    for (uint32_t i = 0; i < EXAMPLES * ROWS * UNITS; i++) {
        const uint32_t m = i / UNITS / ROWS, u = i / UNITS % ROWS;
        const uint32_t id = u ? row[m][u] : 0;
        dy[i] = draw_value();
        assert_true(y[i] == (u <= lengths[m] ? w[id * UNITS + i % UNITS] : 0.0f));
        if (u <= lengths[m]) want[id * UNITS + i % UNITS] += (double)dy[i];
    }
    // Two grains: of two examples, more than a slice of rows, and of one.
    const lk_grain_view views[] = {{.dy = dy, .examples = 2},
                                   {.dy = dy + 2 * ROWS * UNITS, .examples = 1}};
    lk_lane g = {.grains = views, .grain_count = 2, .grain = 2, .sums = {dw}};
    g.at[LK_LABELS] = row, g.at[LK_DY] = dy;
    g.at[LK_SCRATCH] = block(lk_op_label_embedding_gradient.scratch_floats(&back, EXAMPLES));
    assert_int_equal(lk_kernel_of(k, back.type)(&g, &back), 0);
    g.sums[0] = reference;
    (void)back.type->reference(&g, &back);
    for (uint32_t i = 0; i < CLASSES * UNITS; i++) {
        near("dw", i, want[i], (double)dw[i], 1e-5);
        if (dw[i] != reference[i]) fail_msg("%s: dw[%u]", k->name, i);
    }
    guarded_give(g.at[LK_SCRATCH]);
    row[2][5] = CLASSES;
    assert_int_equal(lk_kernel_of(k, &lk_op_label_embedding)(&l, &op), 1);
}

static void embeddings(void **state) {
    const lk_kernels *k;
    (void)state;
    for (unsigned n = 0; (void)lk_kernels_missing(n, &k), k; n++) {
        if (!lk_kernels_missing(n, &k)) check_embeddings(k);
    }
}

// --- programs ------------------------------------------------------------------------------------

static lk_status build(const lk_layer *layers, uint32_t count, uint32_t labels,
                       const lk_loss_type *loss, lk_program *p, void **memory, lk_error *error) {
    static lk_run_spec spec;
    const lk_layout alone = {.replicas = 1, .replicas_all = 1, .fuse = true};
    spec =
        (lk_run_spec){.model = {.in_h = 6,
                                .in_w = 4,
                                .in_c = 1,
                                .classes = 3,
                                .labels = labels,
                                .layer_count = count,
                                .layers = layers,
                                .loss = loss},
                      .optimizer = {.type = &lk_optimizer_sgd, .rate = {.type = &lk_rate_constant}},
                      .seed = 1,
                      .global_batch = 4,
                      .grain = 4,
                      .example_count = 4};
    const lk_plan_options options = {.overlay = true};
    *memory = aligned_alloc(64, lk_round_up(lk_program_bytes(&spec.model), 64));
    error->status = LK_OK;
    return lk_program_build(&spec, &alone, &options, *memory, p, error);
}

#define ROWS(t, f)                                                                             \
    {                                                                                          \
        .type = &lk_layer_reshape, .name = "rows", .target_shape = {.count = 2, .at = {t, f} } \
    }
#define OVER(n, u)                                                        \
    {                                                                     \
        .type = &lk_layer_dense, .name = n, .units = u, .use_bias = true, \
        .initializer = &lk_initializer_glorot_uniform                     \
    }
#define SAID(u)                                                        \
    {                                                                  \
        .type = &lk_layer_label_embedding, .name = "said", .units = u, \
        .initializer = &lk_initializer_glorot_uniform                  \
    }
#define JOINT(u, a, b)                                                               \
    {                                                                                \
        .type = &lk_layer_joint, .name = "joint", .units = u, .use_bias = true,      \
        .initializer = &lk_initializer_glorot_uniform, .input_count = 2, .inputs = { \
            a,                                                                       \
            b                                                                        \
        }                                                                            \
    }

static void programs_of_transducers(void **state) {
    const lk_layer layers[] = {ROWS(3, 8), OVER("enc", 5), SAID(4), OVER("pred", 5),
                               JOINT(3, 2, 4)};
    static const char *const names[] = {"enc/kernel",  "enc/bias",  "said/embeddings",
                                        "pred/kernel", "pred/bias", "joint/kernel",
                                        "joint/bias"};
    lk_program p;
    lk_error error;
    void *memory;
    (void)state;
    const lk_status status =
        build(layers, LK_COUNT(layers), 2, &lk_loss_transducer, &p, &memory, &error);
    if (status != LK_OK) fail_msg("%s", error.text);
    assert_int_equal(p.param_count, LK_COUNT(names));
    for (uint32_t i = 0; i < p.param_count; i++) {
        assert_string_equal(p.tensors[p.params[i].tensor].name, names[i]);
        assert_true(p.params[i].gradient_op != LK_NONE);
    }
    assert_int_equal(lk_program_output_floats(&p), 3 * 3 * 2);
    assert_int_equal(p.tensors[p.labels].shape[1], 3);
    free(memory);
}

static void what_is_refused(void **state) {
    const lk_layer good[] = {ROWS(3, 8), OVER("enc", 5), SAID(4), OVER("pred", 5), JOINT(3, 2, 4)};
    const lk_layer wide[] = {ROWS(3, 8), OVER("enc", 6), SAID(4), OVER("pred", 5), JOINT(3, 2, 4)};
    const lk_layer few[] = {ROWS(3, 8), OVER("enc", 5), SAID(4), OVER("pred", 5), JOINT(2, 2, 4)};
    const lk_layer twice[] = {ROWS(3, 8), OVER("enc", 5), JOINT(3, 2, 2)};
    const lk_layer none[] = {ROWS(3, 8), OVER("enc", 2)};
    const lk_layer loose[] = {ROWS(3, 8), OVER("enc", 5), SAID(5), JOINT(3, 3, 3)};
    const lk_loss_type *loss = &lk_loss_transducer;
    lk_program p;
    lk_error error;
    void *memory;
    (void)state;
#define REFUSES(layers, labels, loss, said)                                              \
    assert_int_equal(build(layers, LK_COUNT(layers), labels, loss, &p, &memory, &error), \
                     LK_BAD_CONFIG);                                                     \
    if (!strstr(error.text, said)) fail_msg("%s", error.text);                           \
    free(memory)
    REFUSES(good, 0, loss, "layer said: found no model.labels, wanted the most labels");
    REFUSES(wide, 2, loss, "layer joint: its inputs are 3 x 1 x 6 and 3 x 1 x 5, wanted");
    REFUSES(few, 2, loss, "layer joint: found 2 units, wanted at least model.classes, 3");
    REFUSES(twice, 2, loss, "layer joint: found 3 units and one input twice");
    REFUSES(none, 2, loss, "the last layer's output is 3 x 1 x 2, wanted 2 log-probabilities");
    REFUSES(loose, 2, loss, "layer enc: no other layer takes its output");
    REFUSES(good, 2, NULL, "end with flatten and a dense layer");
    REFUSES(good, 2, &lk_loss_mean, "model.labels: found 2 labels an example, and a loss");
#undef REFUSES
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_vectors),
        cmocka_unit_test(gradients_are_slopes),
        cmocka_unit_test(variants_and_tiles_have_the_same_bits),
        cmocka_unit_test(variants_say_the_same),
        cmocka_unit_test(overflows_are_said),
        cmocka_unit_test(no_frames_no_loss),
        cmocka_unit_test(embeddings),
        cmocka_unit_test(programs_of_transducers),
        cmocka_unit_test(what_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
