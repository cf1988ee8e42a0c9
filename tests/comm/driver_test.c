// driver_test.c - the driver of a step (comm/step/driver.h) over threads and over replicas that
// take turns: what becomes of a step after each verdict, whichever replica had a flag.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comm/step/hash.h"
#include "comm/threads/threads.h"
#include "tests/ops/layers.h"

enum { REPLICAS = 8, GRAIN = 2, BATCH = REPLICAS * GRAIN, PIXELS = 4, STEPS = 4, FLAGGED = 1 };

static void order(void *context, uint64_t epoch, uint64_t position, uint32_t count,
                  uint64_t *index) {
    (void)context;
    for (uint32_t i = 0; i < count; i++) index[i] = (position + i + epoch) % BATCH;
}

static const uint8_t *image(void *context, uint64_t index) {
    static const uint8_t images[BATCH + PIXELS] = {17,  201, 3,  90, 250, 44, 8,   133, 71, 5,
                                                   160, 222, 19, 38, 99,  77, 140, 1,   63, 12};
    (void)context;
    return images + index;
}

static uint32_t label(void *context, uint64_t index) {
    (void)context;
    return (uint32_t)(index % 3);
}

static const lk_layer layers[] = {FLATTEN,
                                  {.type = &lk_layer_dense,
                                   .name = "d",
                                   .units = 3,
                                   .use_bias = true,
                                   .initializer = &lk_initializer_glorot_uniform}};

static const lk_source source = {NULL, order, image, label, false, NULL, false};

typedef struct fixture {
    lk_run_spec spec;
    lk_layout layout;
    lk_program program;
    lk_group group;
    lk_lanes lanes;
    lk_driver driver;
    lk_error lost;
    lk_team team;
    void *blocks[6];
    uint32_t block_count;
    uint8_t *device;
} fixture;

// --- a flag ------------------------------------------------------------------------------------

static _Thread_local uint32_t replica_here;
static uint32_t flagged_replica, flags_left;  // REPLICAS: none
// The flag: an op; finite losses whose mean is not finite; finite gradients whose norm is not.
static enum { BY_OP, BY_MEAN, BY_NORM } flag;
static float clipnorm;  // of the optimizer
static lk_kernels kernels;

static uint32_t forward(lk_lane *lane, const lk_op *op) {
    const uint32_t bad = lk_kernel_of(&lk_kernels_reference, op->type)(lane, op);
    return bad | (replica_here == flagged_replica && flag == BY_OP);
}

static uint32_t loss(lk_lane *lane, const lk_op *op) {
    const uint32_t bad = lk_kernel_of(&lk_kernels_reference, op->type)(lane, op);
    float *losses = lane->at[LK_Y], *gradients = lane->train ? lane->at[LK_DX] : NULL;
    for (uint32_t i = 0; i < lane->examples && replica_here == flagged_replica; i++) {
        if (flag == BY_MEAN) losses[i] = 0x1.8p+127f;
        if (flag == BY_NORM && gradients) gradients[3 * i] = 0x1p+100f;
    }
    return bad;
}

static void compute(lk_member *m) {
    const bool now = m->driver->step == FLAGGED && flags_left > 0;
    replica_here = now ? m->replica : REPLICAS + 1;
    lk_lanes_alone.compute(m);
}

static lk_verdict decide(const void *context, uint64_t step, const lk_flags *flags) {
    assert_true(!lk_is_flagged(flags) || step == FLAGGED);
    return lk_is_flagged(flags) ? *(const lk_verdict *)context : LK_VERDICT_APPLY;
}

// --- a run -------------------------------------------------------------------------------------

static void *take(fixture *f, uint64_t bytes, uint8_t fill) {
    lk_assert(f->block_count < LK_COUNT(f->blocks));
    void *block = aligned_alloc(4096, lk_round_up(bytes, 4096));
    assert_non_null(block);
    memset(block, fill, bytes);
    return f->blocks[f->block_count++] = block;
}

static void make(fixture *f) {
    const lk_plan_options options = {.overlay = true};
    lk_error error = {.status = LK_OK};
    memset(f, 0, sizeof *f);
    f->layout = (lk_layout){.replicas = REPLICAS, .fuse = true};
    f->spec = (lk_run_spec){.model = {.in_h = 2, .in_w = 2, .in_c = 1,
                                      .classes = 3,
                                      .layer_count = LK_COUNT(layers), .layers = layers,
                                      .skips = true},
                            .seed = 1,
                            .global_batch = BATCH,
                            .optimizer = {.type = &lk_optimizer_momentum,
                                          .learning_rate = 0.1f,
                                          .momentum = 0.9f,
                                          .global_clipnorm = clipnorm,
                                          .rate = {.type = &lk_rate_exponential,
                                                   .steps = 1,
                                                   .decay_rate = 0.5f}},
                            .grain = GRAIN,
                            .example_count = BATCH};
    void *tables = take(f, lk_program_bytes(&f->spec.model), 0xff);
    assert_int_equal(lk_program_build(&f->spec, &f->layout, &options, tables, &f->program, &error),
                     LK_OK);
    const lk_program *p = &f->program;
    const uint64_t stride = lk_round_up(p->regions[LK_REGION_REPLICA].bytes, 64);
    kernels = lk_kernels_reference;
    kernels.kernel[LK_OP_DENSE] = forward;
    kernels.kernel[LK_OP_SOFTMAX_CROSS_ENTROPY] = loss;
    f->device = take(f, p->regions[LK_REGION_DEVICE].bytes, 0);
    lk_group_make(&f->group, p, &kernels, &source, f->device, take(f, REPLICAS * stride, 0xff),
                  stride, take(f, lk_group_bytes(p), 0xff));
    lk_program_initialize(p, f->device);
    f->lanes = lk_lanes_alone;
    f->lanes.compute = compute;
    f->driver = (lk_driver){.lanes = &f->lanes,
                            .transport = &lk_threads,
                            .groups = &f->group,
                            .programs = 1,
                            .lost = &f->lost};
    uint8_t *stacks = take(f, (uint64_t)REPLICAS * LK_TEAM_STACK_BYTES, 0);
    assert_int_equal(lk_team_start(&f->team, REPLICAS, (lk_team_place){0, REPLICAS},
                                   take(f, lk_team_bytes(REPLICAS), 0), stacks, &error),
                     LK_OK);
}

static void end(fixture *f) {
    lk_team_stop(&f->team);
    for (uint32_t i = 0; i < f->block_count; i++) free(f->blocks[i]);
}

static lk_step_result step_of(fixture *f, uint64_t step) {
    lk_driver_start(&f->driver, 0, step);
    lk_threads_run(&f->driver, &f->team);
    return lk_driver_finish(&f->driver);
}

// What is left after each step where step `skipped` updates nothing; without a driver.
static void play(uint64_t skipped, uint8_t *states, float losses[STEPS]) {
    fixture f;
    make(&f);
    const uint64_t bytes = f.program.regions[LK_REGION_DEVICE].bytes;
    replica_here = REPLICAS + 1;
    memcpy(states, f.device, bytes);
    for (uint64_t s = 0; s < STEPS; s++) {
        for (uint32_t r = 0; r < REPLICAS; r++) lk_step_compute(&f.group, r, s);
        for (uint32_t r = 0; r < REPLICAS; r++) {
            if (s == skipped) lk_step_pass(&f.group, r, true);
            if (s != skipped) lk_step_update(&f.group, r, s);
        }
        losses[s] = lk_step_finish(&f.group, s).means[0];
        memcpy(states + (s + 1) * bytes, f.device, bytes);
    }
    end(&f);
}

enum { DEVICE_BYTES_MAX = 4096 };
static uint8_t plain[(STEPS + 1) * DEVICE_BYTES_MAX], skipping[(STEPS + 1) * DEVICE_BYTES_MAX];
static float plain_loss[STEPS], skipping_loss[STEPS];

// --- tests -------------------------------------------------------------------------------------

static void check_step(fixture *f, uint64_t step, lk_verdict want, const uint8_t *states,
                       const float *losses) {
    const uint64_t bytes = f->program.regions[LK_REGION_DEVICE].bytes;
    const bool flagged = flagged_replica < REPLICAS && flags_left > 0 && step == FLAGGED;
    const lk_step_result r = step_of(f, step);
    assert_int_equal(r.verdict, want);
    assert_int_equal(r.step, step);
    assert_true(!r.bad_tensor == !flagged);
    static const char *const names[] = {"d", "loss", "d/kernel"};
    if (flagged) assert_string_equal(r.bad_tensor, names[flag]);
    if (flagged && flag == BY_MEAN) {
        assert_true(r.means[0] > 0x1.fffffep+127f);
    } else {
        assert_memory_equal(&r.means[0], &losses[step], sizeof r.means[0]);
    }
    const bool waits = want == LK_VERDICT_REPLAY || want == LK_VERDICT_STOP;
    assert_memory_equal(f->device, states + (step + !waits) * bytes, bytes);
}

static void run_all(lk_verdict verdict, uint32_t replica) {
    const bool skips = verdict == LK_VERDICT_SKIP && replica < REPLICAS;
    const uint8_t *states = skips ? skipping : plain;
    const float *losses = skips ? skipping_loss : plain_loss;
    fixture f;
    make(&f);
    f.driver.decide = decide;
    f.driver.decide_context = &verdict;
    flagged_replica = replica;
    flags_left = verdict == LK_VERDICT_REPLAY ? 2 : 1;
    for (uint64_t step = 0; step < STEPS; step++) {
        const bool flagged = step == FLAGGED && replica < REPLICAS;
        // The same step until nothing is wrong with it: twice.
        for (; flagged && verdict == LK_VERDICT_REPLAY && flags_left > 0; flags_left--) {
            check_step(&f, step, verdict, states, losses);
        }
        const bool again = verdict == LK_VERDICT_REPLAY;
        check_step(&f, step, flagged && !again ? verdict : LK_VERDICT_APPLY, states, losses);
        if (flagged && verdict == LK_VERDICT_STOP) break;
    }
    end(&f);
}

static void test_skip(void **state) {
    (void)state;
    flag = BY_MEAN;
    for (uint32_t r = 0; r < REPLICAS; r++) run_all(LK_VERDICT_SKIP, r);
    run_all(LK_VERDICT_REPLAY, 3);
    flag = BY_OP;
    for (uint32_t r = 0; r <= REPLICAS; r++) run_all(LK_VERDICT_SKIP, r);
}

// s goes on, t does not: the rate of the step after a skipped one is what the skipped one's was.
static void test_t_counts_updates(void **state) {
    const lk_verdict verdict = LK_VERDICT_SKIP;
    (void)state;
    fixture f;
    make(&f);
    f.driver.decide = decide;
    f.driver.decide_context = &verdict;
    flagged_replica = 3;
    flags_left = 1;
    for (uint64_t s = 0; s < STEPS; s++) {
        static const float rates[STEPS] = {0.1f, 0.05f, 0.05f, 0.025f};
        (void)step_of(&f, s);
        assert_int_equal(f.group.scalars.s, s);
        assert_int_equal(f.group.scalars.t, s > FLAGGED ? s - 1 : s);
        assert_memory_equal(&f.group.scalars.learning_rate, &rates[s], sizeof(float));
        assert_int_equal(lk_steps_skipped(&f.program, f.device, 0), s >= FLAGGED);
    }
    // Beyond 32 bits.
    const lk_tensor *t = &f.program.tensors[f.program.skipped];
    uint32_t *words = (uint32_t *)(void *)(f.device + t->offset);
    assert_int_equal(t->class_, LK_CLASS_STATE);
    words[0] = UINT32_MAX;
    lk_skip_step(&f.program, f.device);
    assert_int_equal(lk_steps_skipped(&f.program, f.device, 0), 1ull << 32);
    end(&f);
}

static void test_replay(void **state) {
    (void)state;
    for (uint32_t r = 0; r <= REPLICAS; r++) run_all(LK_VERDICT_REPLAY, r);
}

static void test_stop(void **state) {
    (void)state;
    for (uint32_t r = 0; r <= REPLICAS; r++) run_all(LK_VERDICT_STOP, r);
}

// Nobody asks: the step is applied, and its result names the tensor, as ever.
static void test_nobody_asks(void **state) {
    (void)state;
    for (uint32_t r = 0; r < REPLICAS; r++) {
        fixture f;
        make(&f);
        flagged_replica = r;
        flags_left = 1;
        for (uint64_t s = 0; s < STEPS; s++) {
            check_step(&f, s, LK_VERDICT_APPLY, plain, plain_loss);
        }
        end(&f);
    }
}

static uint32_t calls, shared_calls;

// Of an op that is divided, where all lanes are here: by the reference, its own examples alone.
static uint32_t forward_shared(lk_lane *lane, const lk_op *op) {
    __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
    if (lane->all) {
        assert_int_equal(lane->all_count, REPLICAS);
        assert_ptr_equal(lane->all[lane->number], lane);
        for (uint32_t i = 0; i < REPLICAS; i++) {
            const float *x = lane->all[i]->at[LK_X];  // what another replica has loaded is there
            assert_int_equal(lane->all[i]->examples, GRAIN);
            assert_true(x[0] > 0.0f && x[0] <= 1.0f);
        }
        __atomic_fetch_add(&shared_calls, 1, __ATOMIC_RELAXED);
    }
    return lk_kernel_of(&lk_kernels_reference, op->type)(lane, op);
}

// Replicas that are threads share the work of an op that is divided, where a table has kernels for
// it, and in steps of which each has as much.
static void test_work_is_shared(void **state) {
    (void)state;
    for (uint32_t can = 0; can < 2; can++) {
        fixture f;
        make(&f);
        const uint64_t bytes = f.program.regions[LK_REGION_DEVICE].bytes;
        flagged_replica = REPLICAS;
        kernels.kernel[LK_OP_DENSE] = forward_shared;
        kernels.divides[LK_OP_DENSE] = can;
        for (uint32_t i = 0; i < f.program.op_count; i++) {
            if (f.program.ops[i].type == &lk_op_dense) f.program.ops[i].divided = true;
        }
        lk_threads_share_work(&f.group, &f.team);
        calls = shared_calls = 0;
        for (uint64_t s = 0; s < STEPS; s++) {
            const float loss = step_of(&f, s).means[0];
            assert_memory_equal(&loss, &plain_loss[s], sizeof loss);
            assert_memory_equal(f.device, plain + (s + 1) * bytes, bytes);
        }
        assert_int_equal(calls, STEPS * REPLICAS);
        assert_int_equal(shared_calls, can ? calls : 0);
        end(&f);
    }
}

static void test_replicas_in_turn(void **state) {
    (void)state;
    fixture f;
    make(&f);
    const uint64_t bytes = f.program.regions[LK_REGION_DEVICE].bytes;
    flagged_replica = REPLICAS;
    f.driver.transport = &lk_in_turn;
    for (uint64_t s = 0; s < STEPS; s++) {
        lk_driver_start(&f.driver, 0, s);
        lk_driver_run_in_turn(&f.driver);
        const float loss = lk_driver_finish(&f.driver).means[0];
        assert_memory_equal(&loss, &plain_loss[s], sizeof loss);
        assert_memory_equal(f.device, plain + (s + 1) * bytes, bytes);
    }
    end(&f);
}

// The flag that only the whole gradient shows, before any of its weights is written.
static void run_norm(lk_verdict verdict, uint32_t replica) {
    char before[LK_SHA256_HEX_BYTES], now[LK_SHA256_HEX_BYTES];
    fixture f;
    make(&f);
    f.driver.decide = decide;
    f.driver.decide_context = &verdict;
    flagged_replica = replica;
    flags_left = 1;
    for (uint64_t step = 0; step < FLAGGED; step++) {
        assert_int_equal(step_of(&f, step).verdict, LK_VERDICT_APPLY);
    }
    lk_digest(&f.program, f.device, before);
    const lk_step_result r = step_of(&f, FLAGGED);
    assert_int_equal(r.verdict, verdict);
    assert_string_equal(r.bad_tensor, "d/kernel");
    lk_digest(&f.program, f.device, now);
    assert_string_equal(now, before);
    flags_left = 0;
    const uint64_t next = FLAGGED + (verdict == LK_VERDICT_SKIP);
    const lk_step_result after = step_of(&f, next);
    assert_int_equal(after.verdict, LK_VERDICT_APPLY);
    assert_null(after.bad_tensor);
    lk_digest(&f.program, f.device, now);
    assert_string_not_equal(now, before);
    end(&f);
}

static void test_norm_that_is_not_finite(void **state) {
    (void)state;
    flag = BY_NORM;
    clipnorm = 0.5f;
    for (uint32_t r = 0; r < REPLICAS; r++) {
        run_norm(r % 2 ? LK_VERDICT_SKIP : LK_VERDICT_REPLAY, r);
    }
    clipnorm = 0.0f;
    flag = BY_OP;
}

// After the verdict to replay a step the next one is no other.
static jmp_buf panicked;

static void on_panic(const char *file, int line, const char *what) {
    (void)file, (void)line, (void)what;
    longjmp(panicked, 1);
}

static void test_another_step_is_no_replay(void **state) {
    const lk_verdict verdict = LK_VERDICT_REPLAY;
    (void)state;
    fixture f;
    make(&f);
    f.driver.decide = decide;
    f.driver.decide_context = &verdict;
    flagged_replica = 5;
    flags_left = 1;
    assert_int_equal(step_of(&f, FLAGGED).verdict, LK_VERDICT_REPLAY);
    lk_set_panic_handler(on_panic);
    if (setjmp(panicked) == 0) {
        lk_driver_start(&f.driver, 0, FLAGGED + 1);
        fail();
    }
    lk_set_panic_handler(NULL);
    end(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_skip),
        cmocka_unit_test(test_t_counts_updates),
        cmocka_unit_test(test_replay),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_nobody_asks),
        cmocka_unit_test(test_work_is_shared),
        cmocka_unit_test(test_replicas_in_turn),
        cmocka_unit_test(test_norm_that_is_not_finite),
        cmocka_unit_test(test_another_step_is_no_replay),
    };
    flagged_replica = REPLICAS;
    play(STEPS, plain, plain_loss);
    play(FLAGGED, skipping, skipping_loss);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
