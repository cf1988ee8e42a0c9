// The fast arithmetic's passes against the scalar reference, on operands whose sums are exact in
// any order and any precision: so they must be equal, whatever cuBLAS does. Then what does depend
// on the order: a grain's bits may not depend on how it is computed. Last, what is said when cuBLAS
// fails.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <cuda_runtime_api.h>

#include "ops/cuda/fast.h"
#include "ops/op.h"
#include "tests/cuda/operands.h"
#include "tests/cuda/host/blas.h"
#include "tests/cuda/host/host.h"
#include "tests/ops/kernel_calls.h"

enum { OP = 7, HELD_MAX = 24, PLANS = 64, EXAMPLES_MAX = 44 };

// --- the device ----------------------------------------------------------------------------------

static struct {
    void *at[HELD_MAX];
    uint32_t count;
} held;

static void must(int error) {
    if (error != cudaSuccess) fail_msg("device: %s", cudaGetErrorString((cudaError_t)error));
}

static void *space(uint64_t bytes) {
    must(cudaMalloc(&held.at[held.count], bytes));
    return held.at[held.count++];
}

static void *there(const void *from, uint64_t bytes) {
    void *at = space(bytes);
    must(cudaMemcpy(at, from, bytes, cudaMemcpyHostToDevice));
    return at;
}

static void give_all(void) {
    for (uint32_t i = 0; i < held.count; i++) must(cudaFree(held.at[i]));
    held.count = 0;
}

// --- layers --------------------------------------------------------------------------------------

typedef struct layer {
    const char *name;
    lk_dense dense;
    lk_conv2d conv;  // where out_c is not 0
    bool narrow;     // x and mask are operands of 16 bits (ops/cuda/operand.h)
} layer;

// Rows in and out of line, one channel and several, strides, padding on either side, a kernel that
// leaves cells of the image out, a layer of one unit.
static const layer layers[] = {
    {.name = "dense 16x8 relu",
     .dense = {.k_count = 16, .n_count = 8, .use_bias = true, .relu = true}},
    {.name = "dense 19x10", .dense = {.k_count = 19, .n_count = 10, .use_bias = true}},
    {.name = "dense 4x1 no bias", .dense = {.k_count = 4, .n_count = 1}},
    {.name = "conv same", .conv = {6, 5, 1, 6, 5, 5, 3, 3, 1, 1, 1, 1, true, true}},
    {.name = "conv strided", .conv = {7, 6, 3, 3, 2, 4, 3, 2, 2, 3, 0, 0, true, false}},
    {.name = "conv 1x1", .conv = {3, 3, 4, 3, 3, 8, 1, 1, 1, 1, 0, 0, false, false}},
};

static bool is_conv(const layer *l) { return l->conv.out_c != 0; }
static lk_fast_layer view(const layer *l) {
    return is_conv(l) ? (lk_fast_layer){.conv = &l->conv}
                      : (lk_fast_layer){.dense = &l->dense, .narrow = l->narrow};
}
static uint64_t in_floats(const layer *l) {
    return is_conv(l) ? lk_conv2d_in_floats(&l->conv) : l->dense.k_count;
}
static uint64_t out_floats(const layer *l) {
    return is_conv(l) ? lk_conv2d_out_floats(&l->conv) : l->dense.n_count;
}
static uint64_t weight_floats(const layer *l) {
    return is_conv(l) ? lk_conv2d_weight_floats(&l->conv)
                      : (uint64_t)l->dense.k_count * l->dense.n_count;
}
static uint32_t units(const layer *l) { return is_conv(l) ? l->conv.out_c : l->dense.n_count; }
static bool has_bias(const layer *l) { return is_conv(l) ? l->conv.use_bias : l->dense.use_bias; }

enum { FLOATS = 8192 };
typedef struct operands {
    float x[FLOATS], dy[FLOATS], w[FLOATS], bias[64], mask[FLOATS];
} operands;

static uint32_t draw(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

// Small integers, or with `fractions` numbers that every precision rounds.
static void fill(float *to, uint64_t count, bool fractions, uint32_t *seed) {
    assert_true(count <= FLOATS);
    for (uint64_t i = 0; i < count; i++) {
        to[i] = (float)((int32_t)(draw(seed) % 9) - 4);
        if (fractions) to[i] += (float)draw(seed) * 0x1p-25f;
    }
}

static void fill_all(operands *o, bool fractions, uint32_t seed) {
    fill(o->x, FLOATS, fractions, &seed);
    fill(o->dy, FLOATS, fractions, &seed);
    fill(o->w, FLOATS, fractions, &seed);
    fill(o->bias, LK_COUNT(o->bias), fractions, &seed);
    fill(o->mask, FLOATS, false, &seed);
}

// --- passes --------------------------------------------------------------------------------------

typedef struct results {
    float y[FLOATS], dx[FLOATS], dw[FLOATS], db[64];
    uint32_t bad_op;
} results;

typedef struct device {
    lk_fast fast;
    lk_cuda_stream s;
    uint8_t *x, *mask;
    float *dy, *w, *bias, *y, *dx, *dw, *db;
} device;

static lk_fast_rules rules_of(lk_fast_precision precision, uint32_t grain, uint64_t chunk_bytes) {
    return (lk_fast_rules){precision, grain, 5, chunk_bytes, LK_FAST_PIECE_TERMS, INT32_MAX};
}

// Rows of a layer's x or mask: as numbers, or as operands.
static void *rows_there(const layer *l, lk_fast_precision precision, const float *rows,
                        uint64_t count) {
    static uint16_t narrow[FLOATS];
    if (!l->narrow) return there(rows, count * sizeof(float));
    for (uint64_t i = 0; i < count; i++) {
        narrow[i] = precision == LK_FAST_FP16 ? fp16_bits(to_fp16(rows[i]))
                                              : bf16_bits(to_bf16(rows[i]));
    }
    return there(narrow, count * sizeof *narrow);
}

static void open_device(device *d, const layer *l, const lk_fast_rules *rules, const operands *o,
                        uint32_t examples, void *tables) {
    const lk_cuda_state fresh = {.bad_op = UINT32_MAX, .bad_param = UINT32_MAX};
    const lk_fast_layer v = view(l);
    uint64_t scratch = 0;
    for (lk_fast_pass p = LK_FAST_FORWARD; p <= LK_FAST_WEIGHT_GRADIENT; p++) {
        scratch = LK_MAX(scratch, lk_fast_scratch_floats(rules, &v, p, examples));
    }
    lk_error error = {.status = LK_OK};
    *d = (device){.fast.rules = *rules};
    must(lk_cuda_prepare());
    void *workspace = space(2 * (LK_BLAS_WORKSPACE_BYTES / 1024));
    assert_int_equal(lk_blas_open(&d->fast.blas, rules->precision, PLANS, tables, workspace,
                                  LK_BLAS_WORKSPACE_BYTES / 1024, &error),
                     LK_OK);
    d->s = (lk_cuda_stream){.state = there(&fresh, sizeof fresh),
                            .scratch = space(LK_MAX(scratch, 1) * sizeof(float)),
                            .op = OP};
    d->x = rows_there(l, rules->precision, o->x, examples * in_floats(l));
    d->dy = there(o->dy, examples * out_floats(l) * sizeof(float));
    d->w = there(o->w, weight_floats(l) * sizeof(float));
    d->bias = has_bias(l) ? there(o->bias, units(l) * sizeof(float)) : NULL;
    d->mask = rows_there(l, rules->precision, o->mask, examples * in_floats(l));
    d->y = space(examples * out_floats(l) * sizeof(float));
    d->dx = space(examples * in_floats(l) * sizeof(float));
    d->dw = space(weight_floats(l) * sizeof(float));
    d->db = is_conv(l) && has_bias(l) ? space(units(l) * sizeof(float)) : NULL;
}

// Examples [first, first + count) of the batch; the gradient of weights only where `node` is true.
static void passes(device *d, const layer *l, uint32_t first, uint32_t count, bool node) {
    const lk_fast_layer v = view(l);
    const uint64_t in = first * in_floats(l), out = first * out_floats(l);
    const uint64_t begin = in * (l->narrow ? sizeof(uint16_t) : sizeof(float));
    const lk_cuda_grains grains = {.x = (const float *)(const void *)(d->x + begin),
                                   .dy = d->dy + out,
                                   .grain = d->fast.rules.grain,
                                   .examples = count};
    lk_fast_forward(&d->fast, &d->s, &v, count, d->x + begin, d->w, d->bias, d->y + out);
    lk_fast_input_gradient(&d->fast, &d->s, &v, count, d->w, d->dy + out, d->mask + begin,
                           d->dx + in);
    if (node) lk_fast_weight_gradient(&d->fast, &d->s, &v, &grains, d->dw, d->db);
}

static void close_device(device *d, const layer *l, uint32_t examples, results *r) {
    lk_cuda_state state;
    assert_string_equal(d->fast.blas.error.status == LK_OK ? "" : d->fast.blas.error.text, "");
    must(d->s.error);
    must(cudaDeviceSynchronize());
    memset(r, 0, sizeof *r);
    must(cudaMemcpy(&state, d->s.state, sizeof state, cudaMemcpyDeviceToHost));
    must(cudaMemcpy(r->y, d->y, examples * out_floats(l) * 4, cudaMemcpyDeviceToHost));
    must(cudaMemcpy(r->dx, d->dx, examples * in_floats(l) * 4, cudaMemcpyDeviceToHost));
    must(cudaMemcpy(r->dw, d->dw, weight_floats(l) * 4, cudaMemcpyDeviceToHost));
    if (d->db) must(cudaMemcpy(r->db, d->db, units(l) * 4, cudaMemcpyDeviceToHost));
    r->bad_op = state.bad_op;
    lk_blas_close(&d->fast.blas);
    give_all();
}

// Rehearses and carries out the passes in parts of `part` examples; the gradient of weights at
// once.
static void compute(const layer *l, const lk_fast_rules *rules, const operands *o,
                    uint32_t examples, uint32_t part, results *r) {
    static uint64_t tables[8192];
    device d;
    assert_true(lk_blas_bytes(PLANS) <= sizeof tables);
    open_device(&d, l, rules, o, examples, tables);
    for (uint32_t rehearse = 2; rehearse-- > 0;) {
        d.s.rehearses = rehearse;
        if (!rehearse) lk_blas_seal(&d.fast.blas);
        passes(&d, l, 0, examples, true);
        for (uint32_t at = 0; at < examples; at += part) {
            passes(&d, l, at, LK_MIN(part, examples - at), false);
        }
    }
    close_device(&d, l, examples, r);
}

static void expect(const layer *l, uint32_t grain, const operands *o, uint32_t examples,
                   results *r) {
    const lk_kernels *k = &lk_kernels_reference;
    static float scratch[1 << 16];
    static lk_grain_view views[EXAMPLES_MAX];
    const float *bias = has_bias(l) ? o->bias : NULL;
    uint32_t count = 0;
    memset(r, 0, sizeof *r);
    r->bad_op = UINT32_MAX;
    for (uint32_t at = 0; at < examples; at += grain) {
        views[count++] = (lk_grain_view){.x = o->x + at * in_floats(l),
                                         .dy = o->dy + at * out_floats(l),
                                         .examples = LK_MIN(grain, examples - at)};
    }
    if (is_conv(l)) {
        const lk_conv2d *c = &l->conv;
        conv2d_forward(k, c, examples, o->x, o->w, bias, r->y, scratch);
        conv2d_input_gradient(k, c, examples, o->w, o->dy, o->mask, r->dx, scratch);
        conv2d_weight_gradient(k, c, count, views, r->dw, bias ? r->db : NULL, scratch);
        return;
    }
    const lk_dense *d = &l->dense;
    dense_forward(k, d, examples, o->x, o->w, bias, r->y, scratch);
    dense_input_gradient(k, d, examples, o->w, o->dy, o->mask, r->dx, scratch);
    dense_weight_gradient(k, d, count, views, &(lk_weight_rows){.end = d->k_count}, r->dw, scratch);
}

static void same(const layer *l, const char *what, const void *a, const void *b, size_t bytes) {
    if (memcmp(a, b, bytes) != 0) fail_msg("%s: %s", l->name, what);
}

static void same_results(const layer *l, const results *a, const results *b) {
    same(l, "y", a->y, b->y, sizeof a->y);
    same(l, "dx", a->dx, b->dx, sizeof a->dx);
    same(l, "dw", a->dw, b->dw, sizeof a->dw);
    same(l, "db", a->db, b->db, sizeof a->db);
    same(l, "bad_op", &a->bad_op, &b->bad_op, sizeof a->bad_op);
}

// --- tests ---------------------------------------------------------------------------------------

static void exact_sums_are_the_references(void **state) {
    (void)state;
    static operands o;
    static results found, wanted;
    const uint32_t batches[] = {1, 8, 13, 44};
    fill_all(&o, false, 1);
    for (uint32_t i = 0; i < LK_COUNT(layers) * LK_COUNT(batches); i++) {
        const layer *l = &layers[i / LK_COUNT(batches)];
        const uint32_t examples = batches[i % LK_COUNT(batches)];
        for (lk_fast_precision p = LK_FAST_TF32; p <= LK_FAST_FP16; p++) {
            lk_fast_rules rules = rules_of(p, 8, i % 2 ? 1 : LK_FAST_CHUNK_BYTES);
            if (i % 3 > 0) rules.piece_terms = i % 3 == 1 ? 1 : 40;
            if (i / LK_COUNT(batches) % 2 != i % 2) rules.launch_max = i % 3 ? 1 : 150;
            compute(l, &rules, &o, examples, 8, &found);
            expect(l, 8, &o, examples, &wanted);
            // A sum of terms that are zero may be -0 in a partial sum: nowhere else.
            for (uint32_t k = 0; k < FLOATS; k++) found.dw[k] += 0.0f, wanted.dw[k] += 0.0f;
            same_results(l, &found, &wanted);
        }
    }
}

// One grain a call or all of them, chunks of any size: the same bits. That order matters at all
// with these operands is shown by another size of grain.
static void grains_do_not_know_each_other(void **state) {
    (void)state;
    static operands o;
    static results all, found;
    uint32_t parted = 0;
    fill_all(&o, true, 2);
    for (uint32_t i = 0; i < LK_COUNT(layers); i++) {
        const layer *l = &layers[i];
        const uint64_t chunks[] = {1, 4000, 16000};
        for (lk_fast_precision p = LK_FAST_TF32; p <= LK_FAST_FP16; p++) {
            lk_fast_rules rules = rules_of(p, 4, LK_FAST_CHUNK_BYTES);
            compute(l, &rules, &o, 43, 43, &all);
            for (uint32_t part = 4; part <= 24; part += 4) {
                rules.chunk_bytes = chunks[part / 4 % LK_COUNT(chunks)];
                compute(l, &rules, &o, 43, part, &found);
                same_results(l, &found, &all);
            }
            rules.grain = 16;
            compute(l, &rules, &o, 43, 43, &found);
            parted += memcmp(found.dw, all.dw, sizeof all.dw) != 0;
        }
    }
    assert_true(parted > LK_COUNT(layers));
}

// A grain that is cut into pieces of two examples has the gradient of weights of grains of two, in
// calls and chunks of any size; all else is that of a whole grain.
static void pieces_are_small_grains(void **state) {
    (void)state;
    static operands o;
    static results whole, small, cut;
    uint32_t parted = 0;
    fill_all(&o, true, 5);
    for (uint32_t i = 0; i < LK_COUNT(layers); i++) {
        const layer *l = &layers[i];
        lk_fast_rules rules = rules_of(LK_FAST_BF16, 2, LK_FAST_CHUNK_BYTES);
        rules.grains = 20;
        compute(l, &rules, &o, 43, 43, &small);
        rules = rules_of(LK_FAST_BF16, 8, LK_FAST_CHUNK_BYTES);
        compute(l, &rules, &o, 43, 43, &whole);
        parted += memcmp(whole.dw, small.dw, sizeof small.dw) != 0;
        rules.piece_terms = 2 * (uint32_t)(is_conv(l) ? l->conv.out_h * l->conv.out_w : 1);
        memcpy(whole.dw, small.dw, sizeof small.dw);
        for (uint32_t part = 8; part <= 48; part += 8) {
            rules.chunk_bytes = part % 16 ? 1 : LK_FAST_CHUNK_BYTES;
            compute(l, &rules, &o, 43, LK_MIN(part, 43u), &cut);
            same_results(l, &cut, &whole);
        }
    }
    assert_true(parted > LK_COUNT(layers) / 2);
}

// The sums of nodes are those of the tree: the node of eleven grains is that of eight and of three.
static void nodes_join(void **state) {
    (void)state;
    static operands o, right;
    static results all, a, b;
    fill_all(&o, true, 3);
    for (uint32_t i = 0; i < LK_COUNT(layers); i++) {
        const layer *l = &layers[i];
        const lk_fast_rules rules = rules_of(LK_FAST_BF16, 4, i % 2 ? 1 : LK_FAST_CHUNK_BYTES);
        right = o;
        memcpy(right.x, o.x + 32 * in_floats(l), 11 * in_floats(l) * sizeof(float));
        memcpy(right.dy, o.dy + 32 * out_floats(l), 11 * out_floats(l) * sizeof(float));
        compute(l, &rules, &o, 43, 43, &all);
        compute(l, &rules, &o, 32, 32, &a);
        compute(l, &rules, &right, 11, 11, &b);
        for (uint32_t k = 0; k < FLOATS; k++) a.dw[k] = a.dw[k] + b.dw[k];
        same(l, "dw", a.dw, all.dw, sizeof a.dw);
    }
}

// A layer whose outputs are its inputs.
static const layer one = {.name = "dense 1x1", .dense = {.k_count = 8, .n_count = 8}};

static void fill_one(operands *o) {
    memset(o, 0, sizeof *o);
    for (uint32_t i = 0; i < 8; i++) o->w[i * 8 + i] = 1.0f;
}

static void operands_are_rounded_to_nearest_even(void **state) {
    (void)state;
    static operands o;
    static results r;
    uint32_t seed = 4;
    fill_one(&o);
    for (uint32_t i = 0; i < 43 * 8; i++) {
        uint32_t bits = draw(&seed) << 8 ^ draw(&seed);
        if (i % 3 == 0) bits = (bits & 0xffff0000u) | 0x8000u;
        if (i % 5 == 0) bits &= 0x807fffffu;
        if (i % 7 == 0) bits &= 0x8000ffffu;
        if ((bits & 0x7f800000u) == 0x7f800000u) bits ^= 0x40000000u;
        memcpy(&o.x[i], &bits, sizeof bits);
    }
    const lk_fast_rules rules = rules_of(LK_FAST_BF16, 4, LK_FAST_CHUNK_BYTES);
    compute(&one, &rules, &o, 43, 43, &r);
    for (uint32_t i = 0; i < 43 * 8; i++) assert_true(r.y[i] == to_bf16(o.x[i]));
    assert_int_equal(r.bad_op, UINT32_MAX);
    const uint32_t largest = 0x7f7fffffu;
    memcpy(&o.x[17], &largest, sizeof largest);
    compute(&one, &rules, &o, 43, 43, &r);
    assert_int_equal(r.bad_op, OP);
}

// Of numbers from 2^-28 to 65504, halfway between two of fp16 or not.
static void operands_in_fp16_are(void **state) {
    (void)state;
    static operands o;
    static results r;
    const lk_fast_rules rules = rules_of(LK_FAST_FP16, 4, LK_FAST_CHUNK_BYTES);
    uint32_t seed = 9, tiny = 0;
    fill_one(&o);
    for (uint32_t i = 0; i < 43 * 8; i++) {
        const uint32_t bits = draw(&seed);
        const float fraction =
            1.0f + (i % 3 ? (float)bits * 0x1p-24f : (float)(bits >> 14) * 0x1p-10f);
        const int exponent = (int)(draw(&seed) % 43) - 28;
        o.x[i] = ldexpf(i % 2 ? fraction : -fraction, exponent);
        if (i % 3 == 0) o.x[i] += ldexpf(i % 2 ? 1.0f : -1.0f, exponent - 11);
        tiny += fabsf(o.x[i]) <= 0x1p-25f;
    }
    o.x[0] = 65519.996f;  // the last one that is not infinite
    compute(&one, &rules, &o, 43, 43, &r);
    for (uint32_t i = 0; i < 43 * 8; i++) {
        if (r.y[i] != to_fp16(o.x[i])) fail_msg("%a: %a", (double)o.x[i], (double)r.y[i]);
    }
    assert_true(r.y[0] == 65504.0f && tiny > 5);
    assert_int_equal(r.bad_op, UINT32_MAX);
}

// The bad op of the gradient of weights alone, where the gradient has one number like that.
static uint32_t bad_op_of_gradient(lk_fast_precision precision, float number) {
    static uint64_t tables[8192];
    static operands o;
    static results r;
    const lk_fast_rules rules = rules_of(precision, 4, LK_FAST_CHUNK_BYTES);
    const lk_fast_layer v = view(&one);
    device d;
    fill_one(&o);
    o.dy[21] = number;
    open_device(&d, &one, &rules, &o, 12, tables);
    const lk_cuda_grains grains = {
        .x = (const float *)(const void *)d.x, .dy = d.dy, .grain = 4, .examples = 12};
    for (uint32_t rehearse = 2; rehearse-- > 0;) {
        d.s.rehearses = rehearse;
        lk_fast_weight_gradient(&d.fast, &d.s, &v, &grains, d.dw, d.db);
        lk_blas_seal(&d.fast.blas);
    }
    close_device(&d, &one, 12, &r);
    return r.bad_op;
}

// An overflow of fp16 is seen where it is rounded, if no other product tells.
static void overflows_are_seen(void **state) {
    (void)state;
    static operands o;
    static results r;
    const lk_fast_rules rules = rules_of(LK_FAST_FP16, 4, LK_FAST_CHUNK_BYTES);
    assert_int_equal(bad_op_of_gradient(LK_FAST_FP16, 65519.996f), UINT32_MAX);
    for (int sign = -1; sign <= 1; sign += 2) {
        assert_int_equal(bad_op_of_gradient(LK_FAST_FP16, (float)sign * 65520.0f), OP);
        assert_int_equal(bad_op_of_gradient(LK_FAST_FP16, (float)sign * INFINITY), OP);
        assert_int_equal(bad_op_of_gradient(LK_FAST_BF16, (float)sign * 65520.0f), UINT32_MAX);
    }
    assert_int_equal(bad_op_of_gradient(LK_FAST_FP16, NAN), OP);
    fill_one(&o);
    o.w[3] = 1e5f;
    compute(&one, &rules, &o, 12, 12, &r);
    assert_int_equal(r.bad_op, OP);
}

// What lies there as an operand is multiplied, and masks, as the number that becomes that operand.
static void narrow_inputs_are_the_same(void **state) {
    (void)state;
    static operands o;
    static results wide, narrow;
    fill_all(&o, true, 7);
    for (uint32_t i = 0; i < FLOATS; i += 3) o.mask[i] = i % 2 ? 0x1p-149f : 0x1p-140f;
    layer l = {.name = "dense 24x10 relu",
               .dense = {.k_count = 24, .n_count = 10, .use_bias = true, .relu = true}};
    for (uint32_t i = 0; i < 6; i++) {
        const uint32_t part = 4 + i / 2 * 20;
        lk_fast_rules rules = rules_of(i % 2 ? LK_FAST_FP16 : LK_FAST_BF16, 4,
                                       part == 24 ? LK_FAST_CHUNK_BYTES : 1);
        rules.launch_max = part == 24 ? 50 : INT32_MAX;
        l.narrow = false;
        compute(&l, &rules, &o, 43, 43, &wide);
        l.narrow = true;
        compute(&l, &rules, &o, 43, LK_MIN(part, 43u), &narrow);
        same_results(&l, &narrow, &wide);
    }
    const lk_fast_layer v = view(&l), of = {.dense = &l.dense};
    const lk_fast_rules rules = rules_of(LK_FAST_BF16, 4, LK_FAST_CHUNK_BYTES);
    assert_true(lk_fast_scratch_floats(&rules, &v, LK_FAST_FORWARD, 43) <
                lk_fast_scratch_floats(&rules, &of, LK_FAST_FORWARD, 43));
}

// --- failures ------------------------------------------------------------------------------------

static void failing(const char *call, uint32_t n, lk_status status, const char *said) {
    static uint64_t tables[8192];
    static operands o;
    const lk_fast_rules rules = rules_of(LK_FAST_TF32, 4, LK_FAST_CHUNK_BYTES);
    device d;
    fill_all(&o, false, 5);
    open_device(&d, &layers[1], &rules, &o, 12, tables);
    d.s.rehearses = true;
    lk_host_fail(call, n);
    passes(&d, &layers[1], 0, 12, true);
    assert_int_equal(d.fast.blas.error.status, status);
    if (!strstr(d.fast.blas.error.text, said)) fail_msg("%s", d.fast.blas.error.text);
    assert_null(strchr(d.fast.blas.error.text, '\n'));
    assert_int_not_equal(d.s.error, 0);
    lk_blas_close(&d.fast.blas);
    assert_int_equal(lk_host_blas_counted().live, 0);
    give_all();
}

static void failures_are_said(void **state) {
    (void)state;
    const char *shape = "for 5 products in tf32 of 4 x 19 by 19 x 10 with 32768 bytes of workspace";
    failing("cublasLtMatmulAlgoGetHeuristic", 1, LK_UNAVAILABLE, shape);
    failing("algorithm", 1, LK_UNAVAILABLE, "has no algorithm: CUBLAS_STATUS_NOT_SUPPORTED");
    failing("algorithm", 3, LK_UNAVAILABLE, "of 19 x 4 by 4 x 10");
    failing("cublasLtMatmulDescCreate", 2, LK_UNAVAILABLE, "of 4 x 10 by 10 x 19");
    failing("cublasLtMatrixLayoutCreate", 2, LK_UNAVAILABLE, "CUBLAS_STATUS_ALLOC_FAILED");
    failing("cublasLtMatmulPreferenceCreate", 1, LK_UNAVAILABLE, "CUBLAS_STATUS_ALLOC_FAILED");
    failing("cublasLtMatmulAlgoCheck", 1, LK_UNAVAILABLE, "has no algorithm for all grains");
    failing("cublasLtMatmul", 2, LK_INTERNAL, "failed: CUBLAS_STATUS_EXECUTION_FAILED");
}

// Fewer examples, and shorter chunks, never need more scratch than what was planned for many.
static void scratch_grows(void **state) {
    (void)state;
    for (uint32_t i = 0; i < LK_COUNT(layers); i++) {
        const lk_fast_layer v = view(&layers[i]);
        for (uint64_t chunk = 1; chunk < 1 << 20; chunk *= 3) {
            lk_fast_rules rules = rules_of(i % 2 ? LK_FAST_BF16 : LK_FAST_TF32, 4, chunk);
            if (i % 3 == 0) rules.piece_terms = 2;
            for (lk_fast_pass p = LK_FAST_FORWARD; p <= LK_FAST_WEIGHT_GRADIENT; p++) {
                uint64_t most = 0;
                for (uint32_t m = 1; m <= 300; m++) {
                    const uint64_t floats = lk_fast_scratch_floats(&rules, &v, p, m);
                    if (floats < most) fail_msg("%s: pass %u, %u examples", layers[i].name, p, m);
                    most = floats;
                }
            }
        }
    }
}

static void plans_are_few(void **state) {
    (void)state;
    static operands o;
    static results r;
    const uint64_t before = lk_host_blas_counted().heuristics;
    const lk_fast_rules rules = rules_of(LK_FAST_BF16, 4, 1);
    fill_all(&o, false, 6);
    compute(&layers[0], &rules, &o, 43, 4, &r);
    // Three passes, each for a whole and for a short grain.
    assert_int_equal(lk_host_blas_counted().heuristics - before, 6);
    assert_int_equal(lk_host_blas_counted().live, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_sums_are_the_references),
        cmocka_unit_test(grains_do_not_know_each_other),
        cmocka_unit_test(pieces_are_small_grains),
        cmocka_unit_test(nodes_join),
        cmocka_unit_test(operands_are_rounded_to_nearest_even),
        cmocka_unit_test(operands_in_fp16_are),
        cmocka_unit_test(overflows_are_seen),
        cmocka_unit_test(narrow_inputs_are_the_same),
        cmocka_unit_test(failures_are_said),
        cmocka_unit_test(scratch_grows),
        cmocka_unit_test(plans_are_few),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
