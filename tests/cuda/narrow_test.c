// narrow_test.c - pooled convolutions that store the operands of the product behind them, against
// those that store numbers, by any size of tiles.
//
//   narrow_test [ROUNDS]     fewer than ten: small pictures alone
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <cuda_runtime_api.h>

#include "ops/cuda/kernels.h"
#include "ops/op.h"
#include "tests/cuda/operands.h"

enum { OP = 7, HELD_MAX = 10, FLOATS = 1 << 20, GRAIN = 4 };

static uint32_t rounds = 20;

// --- the device ----------------------------------------------------------------------------------

static struct {
    void *at[HELD_MAX];
    uint32_t count;
} held;

static void must(int error) { assert_int_equal(error, cudaSuccess); }

static void *space(uint64_t bytes) {
    assert_true(held.count < HELD_MAX);
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

// --- both kernels --------------------------------------------------------------------------------

typedef struct operands {
    float x[FLOATS], w[4096], bias[64];
} operands;

typedef struct results {
    float y[FLOATS];
    uint16_t narrow[FLOATS];
    uint8_t winners[2][FLOATS];
    uint32_t bad_op[2];
} results;

// Numbers that every precision rounds.
static void fill(float *to, uint64_t count, uint32_t *seed) {
    for (uint64_t i = 0; i < count; i++) {
        *seed = *seed * 1664525u + 1013904223u;
        to[i] = (float)((int32_t)(*seed >> 8 & 0xffff) - 0x8000) * 0x1p-13f;
    }
}

// What the launches since found to be not finite.
static uint32_t take_bad_op(const lk_cuda_stream *s) {
    const lk_cuda_state fresh = {.bad_op = UINT32_MAX, .bad_param = UINT32_MAX};
    lk_cuda_state after;
    must(s->error);
    must(cudaDeviceSynchronize());
    must(cudaMemcpy(&after, s->state, sizeof after, cudaMemcpyDeviceToHost));
    must(cudaMemcpy(s->state, &fresh, sizeof fresh, cudaMemcpyHostToDevice));
    return after.bad_op;
}

static void pool_both(const lk_conv2d *c, uint32_t examples, lk_dtype dtype, const operands *o,
                      results *r) {
    const uint64_t count = examples * lk_conv2d_pooled_floats(c);
    const uint64_t in = examples * lk_conv2d_in_floats(c);
    const uint64_t scratch = lk_cuda_conv2d_scratch_floats(c, GRAIN, examples);
    const lk_cuda_state fresh = {.bad_op = UINT32_MAX, .bad_param = UINT32_MAX};
    assert_true(count <= FLOATS && in <= FLOATS && lk_conv2d_weight_floats(c) <= 4096);
    lk_cuda_stream s = {.state = there(&fresh, sizeof fresh),
                        .scratch = space(LK_MAX(scratch, 1) * sizeof(float)),
                        .op = OP};
    const float *x = there(o->x, in * sizeof(float));
    const float *w = there(o->w, lk_conv2d_weight_floats(c) * sizeof(float));
    const float *bias = c->use_bias ? there(o->bias, c->out_c * sizeof(float)) : NULL;
    float *y = space(count * sizeof(float));
    uint16_t *narrow = space(count * sizeof *narrow);
    uint8_t *winners[2] = {space(count), space(count)};
    lk_cuda_conv2d_pool_forward(&s, c, examples, x, w, bias, y, winners[0]);
    r->bad_op[0] = take_bad_op(&s);
    lk_cuda_conv2d_pool_forward_narrow(&s, c, examples, x, w, bias, dtype, narrow,
                                       winners[1]);
    r->bad_op[1] = take_bad_op(&s);
    must(cudaMemcpy(r->y, y, count * sizeof *y, cudaMemcpyDeviceToHost));
    must(cudaMemcpy(r->narrow, narrow, count * sizeof *narrow, cudaMemcpyDeviceToHost));
    for (int k = 0; k < 2; k++) {
        must(cudaMemcpy(r->winners[k], winners[k], count, cudaMemcpyDeviceToHost));
    }
    give_all();
}

// Odd rows and columns, strides, few and many columns, no bias, no ReLU; then enough positions for
// large tiles, and for the largest.
typedef struct picture {
    lk_conv2d conv;
    uint32_t examples, rounds;
} picture;

static const picture pictures[] = {
    {{6, 5, 1, 6, 5, 5, 3, 3, 1, 1, 1, 1, true, true}, 9, 0},
    {{9, 7, 3, 7, 5, 8, 3, 3, 1, 1, 0, 0, true, false}, 9, 0},
    {{9, 8, 2, 4, 4, 40, 3, 2, 2, 2, 0, 0, false, true}, 9, 0},
    {{20, 20, 1, 20, 20, 64, 1, 1, 1, 1, 0, 0, true, true}, 50, 10},
    {{20, 20, 1, 20, 20, 64, 1, 1, 1, 1, 0, 0, true, true}, 100, 10},
};

// --- tests ---------------------------------------------------------------------------------------

// What is pooled is rounded once, after the winner is known: tiny numbers do not vanish.
static void operands_are_rounded(lk_dtype dtype) {
    static operands o;
    static results r;
    const bool fp16 = dtype == LK_F16;
    for (uint32_t i = 0; i < LK_COUNT(pictures); i++) {
        const lk_conv2d *c = &pictures[i].conv;
        const uint32_t examples = pictures[i].examples;
        const uint64_t count = examples * lk_conv2d_pooled_floats(c);
        uint32_t seed = i, tiny = 0;
        if (rounds < pictures[i].rounds) continue;
        fill(o.x, FLOATS, &seed);
        fill(o.w, LK_COUNT(o.w), &seed);
        fill(o.bias, LK_COUNT(o.bias), &seed);
        for (uint64_t k = 0; k < FLOATS; k++) o.x[k] *= fp16 ? 0x1p-26f : 0x1p-135f;
        for (uint32_t k = 0; k < LK_COUNT(o.bias); k += 2) o.bias[k] = 0.0f;
        pool_both(c, examples, dtype, &o, &r);
        for (uint64_t k = 0; k < count; k++) {
            const uint16_t wanted =
                fp16 ? fp16_bits(to_fp16(r.y[k])) : bf16_bits(to_bf16(r.y[k]));
            if (r.narrow[k] != wanted) fail_msg("picture %u, value %lu", i, (unsigned long)k);
            tiny += r.y[k] != 0.0f && fabsf(r.y[k]) < (fp16 ? 0x1p-25f : 0x1p-134f);
        }
        assert_true(tiny > 0);
        assert_memory_equal(r.winners[0], r.winners[1], count);
        assert_int_equal(r.bad_op[0], UINT32_MAX);
        assert_int_equal(r.bad_op[1], UINT32_MAX);
    }
}

static void operands_are_the_numbers_rounded(void **state) {
    (void)state;
    operands_are_rounded(LK_BF16);
    operands_are_rounded(LK_F16);
}

// A sum that is not finite is seen where it loses, too; what alone its rounding makes infinite is
// left to the product that takes it.
static void what_is_not_finite_is_seen(void **state) {
    (void)state;
    static operands o;
    static results r;
    const uint32_t largest = 0x7f7fffffu;
    const lk_conv2d *c = &pictures[0].conv;
    uint32_t seed = 1;
    fill(o.x, FLOATS, &seed);
    fill(o.w, LK_COUNT(o.w), &seed);
    for (int sign = -1; sign <= 1; sign += 2) {
        o.x[c->in_w + 1] = (float)sign * INFINITY;
        pool_both(c, 9, sign < 0 ? LK_BF16 : LK_F16, &o, &r);
        assert_int_equal(r.bad_op[0], OP);
        assert_int_equal(r.bad_op[1], OP);
    }
    memset(o.x, 0, sizeof o.x);
    for (uint32_t k = 0; k < LK_COUNT(o.bias); k++) memcpy(&o.bias[k], &largest, sizeof largest);
    for (lk_dtype dtype = LK_F16; dtype <= LK_BF16; dtype++) {
        pool_both(c, 9, dtype, &o, &r);
        assert_int_equal(r.bad_op[0], UINT32_MAX);
        assert_int_equal(r.bad_op[1], UINT32_MAX);
        assert_int_equal(r.narrow[0], dtype == LK_F16 ? 0x7c00 : 0x7f80);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operands_are_the_numbers_rounded),
        cmocka_unit_test(what_is_not_finite_is_seen),
    };
    if (argc > 1) rounds = (uint32_t)strtoul(argv[1], NULL, 10);
    if (lk_cuda_prepare() != 0) return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
