// hash_test.c - the hashes that logs and checkpoints name a state by, against their definition in
// comm/step/hash.h and libsodium.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sodium.h>

#include "apps/run/step_hash.h"
#include "comm/step/hash.h"
#include "ops/variant.h"
#include "tests/ops/layers.h"

static const float values[] = {1.0f, -2.5f, 0.0f, -0.0f, 3.0e38f};

// The answers are a reading of the definition in Python.
static void test_step_hash_is_a_sum_of_parts(void **state) {
    (void)state;
    assert_true(lk_step_hash(values, 0, 5) == 0x36e9716686671624u);
    assert_true(lk_step_hash(values, 7, 5) == 0xc4fd94f4f4755b86u);
    for (uint64_t cut = 0; cut <= 5; cut++) {
        uint64_t left = lk_step_hash(values, 7, cut);
        assert_true(left + lk_step_hash(values + cut, 7 + cut, 5 - cut) == 0xc4fd94f4f4755b86u);
    }
}

// However wide the vectors are, and wherever the tensor begins.
static void test_all_tables_give_the_same(void **state) {
    static float many[300];
    const lk_kernels *kernels;
    (void)state;
    for (uint32_t i = 0; i < LK_COUNT(many); i++) many[i] = (float)(i * i) - 777.25f;
    for (unsigned number = 0;; number++) {
        const char *missing = lk_kernels_missing(number, &kernels);
        if (!kernels) break;
        if (missing) continue;
        assert_true(lk_step_hash_by(kernels, values, 5) == 0x36e9716686671624u);
        for (uint64_t count = 0; count < 280; count++) {
            const float *from = many + count % 17;
            assert_true(lk_step_hash_by(kernels, from, count) == lk_step_hash(from, 0, count));
        }
    }
}

typedef struct fixture {
    lk_run_spec spec;
    lk_program program;
    void *tables;
    uint8_t *device;
} fixture;

static const lk_layer layers[] = {FLATTEN,
                                  {.type = &lk_layer_dense,
                                   .name = "d",
                                   .units = 3,
                                   .use_bias = true,
                                   .initializer = &lk_initializer_glorot_uniform}};

static void make(fixture *f, bool skips) {
    const lk_layout layout = {.replicas = 1, .fuse = true};
    const lk_plan_options options = {.overlay = true};
    lk_error error = {.status = LK_OK};
    f->spec = (lk_run_spec){.model = {.in_h = 2, .in_w = 2, .in_c = 1,
                                      .classes = 3,
                                      .layer_count = LK_COUNT(layers), .layers = layers,
                                      .skips = skips},
                            .seed = 1,
                            .global_batch = 4,
                            .optimizer = {.type = &lk_optimizer_momentum,
                                          .learning_rate = 0.1f,
                                          .momentum = 0.9f},
                            .grain = 2,
                            .example_count = 8};
    f->tables = aligned_alloc(64, lk_round_up(lk_program_bytes(&f->spec.model), 64));
    assert_non_null(f->tables);
    assert_int_equal(lk_program_build(&f->spec, &layout, &options, f->tables, &f->program, &error),
                     LK_OK);
    const uint64_t bytes = f->program.regions[LK_REGION_DEVICE].bytes;
    f->device = aligned_alloc(64, bytes);
    assert_non_null(f->device);
    for (uint64_t i = 0; i < bytes; i++) f->device[i] = (uint8_t)(7 * i + 1);  // slots, too
}

static void add(crypto_hash_sha256_state *hash, const fixture *f, uint32_t tensor) {
    const lk_tensor *t = &f->program.tensors[tensor];
    crypto_hash_sha256_update(hash, f->device + t->offset, t->bytes);
}

static void finish(crypto_hash_sha256_state *hash, char hex[LK_SHA256_HEX_BYTES]) {
    uint8_t bytes[LK_SHA256_BYTES];
    crypto_hash_sha256_final(hash, bytes);
    sodium_bin2hex(hex, LK_SHA256_HEX_BYTES, bytes, sizeof bytes);
}

// Kernel and bias; then the slot of each, and the steps done as 8 bytes, the lowest first; then
// what is state, which evaluation does not read.
static void check_hashes(bool skips) {
    fixture f;
    crypto_hash_sha256_state hash;
    char wanted[LK_SHA256_HEX_BYTES], found[LK_SHA256_HEX_BYTES];
    static const uint8_t steps[8] = {0x21, 0x43, 0x65};
    make(&f, skips);
    assert_int_equal(f.program.param_count, 2);
    assert_int_equal(f.program.state_count, skips);
    crypto_hash_sha256_init(&hash);
    for (uint32_t i = 0; i < 2; i++) add(&hash, &f, f.program.params[i].tensor);
    crypto_hash_sha256_state all = hash;
    finish(&hash, wanted);
    lk_digest(&f.program, f.device, found);
    assert_string_equal(found, wanted);
    for (uint32_t i = 0; i < 2; i++) add(&all, &f, f.program.params[i].slots[0]);
    crypto_hash_sha256_update(&all, steps, sizeof steps);
    if (skips) add(&all, &f, f.program.skipped);
    finish(&all, wanted);
    lk_state_hash(&f.program, f.device, 0x654321, found);
    assert_string_equal(found, wanted);
    free(f.tables);
    free(f.device);
}

static void test_digest_and_state_hash(void **state) {
    (void)state;
    check_hashes(false);
    check_hashes(true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_step_hash_is_a_sum_of_parts),
        cmocka_unit_test(test_all_tables_give_the_same),
        cmocka_unit_test(test_digest_and_state_hash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
