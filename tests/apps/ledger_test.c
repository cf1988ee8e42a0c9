// ledger_test.c - what the ledger says of every position of whole runs, against the microbatches
// that the driver gives each replica and the order by which they are read; and back.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "apps/run/ledger.h"
#include "apps/run/order.h"
#include "comm/step/step.h"

enum { EXAMPLES_MAX = 700, EPOCHS = 3 };

static const lk_layer layers[] = {
    {.type = &lk_layer_flatten, .name = "flatten"},
    {.type = &lk_layer_dense, .name = "dense", .units = 2, .initializer = &lk_initializer_zeros}};

typedef struct shape {
    uint32_t global_batch, grain, replicas, microbatch_examples;
    uint64_t examples;
    uint32_t shards;
    bool drop_remainder;
} shape;

static uint64_t shard_first[17];

static lk_run_spec spec_of(const shape *s) {
    const lk_run_spec spec = {.model = {.in_h = 1,
                                        .in_w = 2,
                                        .in_c = 1,
                                        .classes = 2,
                                        .layer_count = LK_COUNT(layers),
                                        .layers = layers},
                              .optimizer = {.type = &lk_optimizer_sgd},
                              .seed = 5 + s->examples,
                              .global_batch = s->global_batch,
                              .grain = s->grain,
                              .drop_remainder = s->drop_remainder,
                              .example_count = s->examples,
                              .shards = s->shards,
                              .shard_first = s->shards ? shard_first : NULL};
    for (uint32_t k = 0; k <= s->shards && s->shards; k++) {
        shard_first[k] = s->examples / s->shards * k + LK_MIN(k, s->examples % s->shards);
    }
    return spec;
}

// One example that a replica is given, as the driver says it.
static void check_use(const lk_run_spec *spec, uint32_t replicas, const lk_microbatch *microbatch,
                      uint64_t step, uint32_t replica, uint32_t m) {
    const uint64_t position = microbatch->position + m;
    lk_ledger_use at, back;
    const bool exists = !microbatch->sparse || lk_position_exists(spec, position);
    const uint32_t in_batch = (uint32_t)(position % spec->global_batch);
    assert_int_equal(lk_ledger_at(spec, replicas, step, in_batch, &at), exists);
    if (!exists) return;
    assert_int_equal(at.example, lk_order(spec, microbatch->epoch, position));
    assert_int_equal(at.epoch, microbatch->epoch);
    assert_int_equal(at.step, step);
    assert_int_equal(at.position, in_batch);
    assert_int_equal(at.grain, microbatch->first_grain + m / spec->grain);
    assert_int_equal(at.replica, replica);
    assert_true(lk_ledger_find(spec, replicas, microbatch->epoch, at.example, &back));
    assert_int_equal(back.example, at.example);
    assert_int_equal(back.epoch, at.epoch);
    assert_int_equal(back.step, at.step);
    assert_int_equal(back.position, at.position);
    assert_int_equal(back.grain, at.grain);
    assert_int_equal(back.replica, at.replica);
}

// The order of a microbatch at once, by kernels that have it and by those that have not, is that of
// its positions one by one.
static void check_many(const lk_run_spec *spec, const lk_microbatch *microbatch) {
    const lk_kernels *const kernels[] = {NULL, &lk_kernels_reference, &lk_kernels_portable};
    static uint64_t index[EXAMPLES_MAX];
    for (size_t k = 0; k < LK_COUNT(kernels); k++) {
        lk_order_many(spec, kernels[k], microbatch->epoch, microbatch->position,
                      microbatch->examples, index);
        for (uint32_t m = 0; m < microbatch->examples; m++) {
            const uint64_t position = microbatch->position + m;
            const uint64_t want = lk_position_exists(spec, position)
                                      ? lk_order(spec, microbatch->epoch, position)
                                      : LK_NO_EXAMPLE;
            assert_int_equal(index[m], want);
        }
    }
}

static void order_of(void *context, uint64_t epoch, uint64_t position, uint32_t count,
                     uint64_t *index) {
    lk_order_many(context, &lk_kernels_portable, epoch, position, count, index);
}

static const uint8_t images[EXAMPLES_MAX];
static const uint8_t *image_of(void *context, uint64_t index) {
    (void)context;
    return images + index;
}

// The examples of a microbatch as LOAD takes them, one after another.
static void check_coming(lk_run_spec *spec, const lk_microbatch *microbatch) {
    const lk_source source = {.context = spec, .order = order_of, .image = image_of};
    lk_coming coming;
    lk_coming_start(&coming, spec, &source, microbatch, 1, NULL);
    for (uint32_t m = 0; m < microbatch->examples; m++) {
        const uint64_t position = microbatch->position + m;
        uint64_t index = LK_NO_EXAMPLE;
        const uint8_t *image = lk_coming_take(&coming, m, &index);
        if (microbatch->sparse && !lk_position_exists(spec, position)) {
            assert_null(image);
            continue;
        }
        assert_int_equal(
            index, microbatch->shuffled ? lk_order(spec, microbatch->epoch, position) : position);
        assert_ptr_equal(image, images + index);
    }
}

// Every step of some epochs: what the replicas are given, all of it and nothing else.
static void check_run(const shape *s) {
    static uint8_t used[EPOCHS][EXAMPLES_MAX];
    lk_run_spec spec = spec_of(s);
    const lk_layout layout = {.replicas = s->replicas,
                              .microbatch_examples = s->microbatch_examples};
    const lk_plan_options options = {.overlay = true};
    lk_program program;
    lk_error error = {0};
    void *tables = aligned_alloc(64, lk_round_up(lk_program_bytes(&spec.model), 64));
    assert_non_null(tables);
    lk_status built = lk_program_build(&spec, &layout, &options, tables, &program, &error);
    if (built != LK_OK) fail_msg("%s", error.text);
    memset(used, 0, sizeof used);
    const uint64_t an_epoch = lk_steps_per_epoch(&spec);
    for (uint64_t step = 0; step < EPOCHS * an_epoch; step++) {
        uint32_t given = 0, said = 0;
        for (uint32_t r = 0; r < s->replicas; r++) {
            lk_microbatches microbatches = lk_step_microbatches(&program, r, step);
            while (lk_next_microbatch(&microbatches)) {
                check_many(&spec, &microbatches.microbatch);
                check_coming(&spec, &microbatches.microbatch);
                for (uint32_t m = 0; m < microbatches.microbatch.examples; m++) {
                    check_use(&spec, s->replicas, &microbatches.microbatch, step, r, m);
                    given += lk_position_exists(&spec, microbatches.microbatch.position + m);
                }
            }
        }
        for (uint32_t p = 0; p < spec.global_batch; p++) {
            lk_ledger_use use;
            if (!lk_ledger_at(&spec, s->replicas, step, p, &use)) continue;
            used[use.epoch][use.example]++;
            said++;
        }
        assert_int_equal(said, given);
        assert_int_equal(said, lk_step_examples(&spec, step));
    }
    for (uint64_t e = 0; e < EPOCHS; e++) {
        for (uint64_t i = 0; i < s->examples; i++) {
            lk_ledger_use use;
            assert_int_equal(used[e][i], lk_ledger_find(&spec, s->replicas, e, i, &use));
            assert_true(used[e][i] || s->drop_remainder);
        }
    }
    free(tables);
}

static void test_runs(void **state) {
    (void)state;
    static const shape shapes[] = {
        {64, 16, 1, 0, 640, 0, false}, {64, 16, 3, 0, 650, 0, false}, {64, 16, 4, 16, 650, 0, true},
        {64, 8, 5, 8, 100, 0, false},  {30, 8, 2, 0, 97, 0, false},   {1, 1, 1, 0, 7, 0, false},
        {64, 16, 2, 0, 20, 0, false},  {128, 8, 7, 32, 601, 0, true}, {64, 8, 3, 0, 513, 8, false},
        {64, 8, 5, 16, 636, 4, false}, {64, 8, 1, 0, 700, 2, true},   {96, 8, 4, 24, 97, 3, false}};
    for (size_t i = 0; i < LK_COUNT(shapes); i++) check_run(&shapes[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_runs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
