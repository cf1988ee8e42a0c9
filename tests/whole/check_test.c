// check_test.c - the memory checking mode finds what it is for: a lifetime that is too short, a
// write behind a tensor, a value read before it was written. And it finds nothing in a correct
// program.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comm/step/step.h"
#include "ops/graph/check.h"
#include "ops/op.h"

enum { PIXELS = 36, EXAMPLES = 40, CLASSES = 4 };

static uint8_t images[EXAMPLES][PIXELS];

static void in_order(void *context, uint64_t epoch, uint64_t position, uint32_t count,
                     uint64_t *index) {
    (void)context, (void)epoch;
    for (uint32_t i = 0; i < count; i++) index[i] = position + i;
}

static const uint8_t *image(void *context, uint64_t index) {
    (void)context;
    return images[index];
}

static uint32_t label(void *context, uint64_t index) {
    (void)context;
    return (uint32_t)(index % CLASSES);
}

static const lk_source source = {NULL, in_order, image, label, false, NULL, false};

// A run small enough to be looked at: what a test may bend before the first step.
typedef struct bench {
    lk_run_spec spec;
    lk_program program;
    lk_kernels kernels;
    lk_group group;
    void *tables, *group_tables, *device, *replicas;
} bench;

static const lk_layer layers[] = {{.type = &lk_layer_conv2d,
                                   .name = "conv",
                                   .units = 3,
                                   .size_h = 3,
                                   .size_w = 3,
                                   .stride_h = 1,
                                   .stride_w = 1,
                                   .padding = LK_PADDING_SAME,
                                   .use_bias = true,
                                   .activation = &lk_layer_relu,
                                   .initializer = &lk_initializer_glorot_uniform},
                                  {.type = &lk_layer_max_pool2d,
                                   .name = "pool",
                                   .size_h = 2,
                                   .size_w = 2,
                                   .stride_h = 2,
                                   .stride_w = 2,
                                   .padding = LK_PADDING_VALID},
                                  {.type = &lk_layer_flatten, .name = "flatten"},
                                  {.type = &lk_layer_dense,
                                   .name = "hidden",
                                   .units = 7,
                                   .use_bias = true,
                                   .activation = &lk_layer_relu,
                                   .initializer = &lk_initializer_glorot_uniform},
                                  {.type = &lk_layer_dense,
                                   .name = "logits",
                                   .units = CLASSES,
                                   .use_bias = true,
                                   .initializer = &lk_initializer_glorot_uniform}};

static void *memory(uint64_t bytes) {
    void *at = aligned_alloc(4096, lk_round_up(bytes + 1, 4096));
    assert_non_null(at);
    memset(at, 0, lk_round_up(bytes + 1, 4096));
    return at;
}

static void build_to_reduce(bench *b, bool fuse, bool guards, lk_reduce_choice reduce) {
    lk_error error = {.status = LK_OK};
    memset(b, 0, sizeof *b);
    b->spec = (lk_run_spec){.model = {.in_h = 6,
                                      .in_w = 6,
                                      .in_c = 1,
                                      .classes = CLASSES,
                                      .layers = layers,
                                      .layer_count = LK_COUNT(layers)},
                            .optimizer = {.type = &lk_optimizer_sgd, .learning_rate = 0.01f},
                            .seed = 3,
                            .global_batch = 16,
                            .grain = 4,
                            .example_count = EXAMPLES};
    const lk_layout layout = {.replicas = 2, .fuse = fuse, .reduce = reduce};
    const lk_plan_options options = {.overlay = true, .guards = guards};
    b->tables = memory(lk_program_bytes(&b->spec.model));
    assert_int_equal(lk_program_build(&b->spec, &layout, &options, b->tables, &b->program, &error),
                     LK_OK);
    b->kernels = lk_kernels_reference;
    for (size_t i = 0; i < sizeof images; i++) images[i / PIXELS][i % PIXELS] = (uint8_t)(i * 37);
}

static void build(bench *b, bool fuse, bool guards) {
    build_to_reduce(b, fuse, guards, LK_REDUCE_AUTO);
}

static void start(bench *b) {
    const lk_program *p = &b->program;
    uint64_t stride = lk_round_up(p->regions[LK_REGION_REPLICA].bytes, 4096);
    b->group_tables = memory(lk_group_bytes(p));
    b->device = memory(p->regions[LK_REGION_DEVICE].bytes);
    b->replicas = memory(stride * p->layout.replicas);
    lk_group_make(&b->group, p, &b->kernels, &source, b->device, b->replicas, stride,
                  b->group_tables);
    lk_program_initialize(p, b->device);
}

static lk_step_result step(bench *b, uint64_t number) {
    for (uint32_t r = 0; r < 2; r++) lk_step_compute(&b->group, r, number);
    for (uint32_t r = 0; r < 2; r++) lk_step_update(&b->group, r, number);
    return lk_step_finish(&b->group, number);
}

static void end(bench *b) {
    free(b->tables);
    free(b->group_tables);
    free(b->device);
    free(b->replicas);
}

static lk_tensor *find(bench *b, const char *name) {
    for (uint32_t i = 0; i < b->program.tensor_count; i++) {
        if (strcmp(b->program.tensors[i].name, name) == 0) return &b->program.tensors[i];
    }
    fail_msg("no tensor %s", name);
    return NULL;
}

// --- a correct program -------------------------------------------------------------------------

static void test_same_bits(void **state) {
    (void)state;
    for (int fuse = 0; fuse < 2; fuse++) {
        bench plain, checked;
        build(&plain, fuse, false);
        build(&checked, fuse, true);
        start(&plain);
        start(&checked);
        for (uint64_t s = 0; s < 7; s++) {  // two epochs and more, short batches among them
            lk_step_result a = step(&plain, s), b = step(&checked, s);
            assert_null(a.bad_tensor);
            assert_null(b.bad_tensor);
            assert_memory_equal(a.means, b.means, sizeof a.means);
        }
        for (uint32_t i = 0; i < plain.program.param_count; i++) {
            uint32_t t = plain.program.params[i].tensor;
            assert_memory_equal(lk_tensor_at(&plain.group.frames[0], t),
                                lk_tensor_at(&checked.group.frames[0], t),
                                plain.program.tensors[t].bytes);
        }
        uint32_t correct[2];
        for (int again = 0; again < 2; again++) {  // what the steps counted is not in it
            for (uint32_t r = 0; r < 2; r++) {
                lk_evaluate_compute(&checked.group, r, &source, EXAMPLES);
            }
            lk_step_result result = lk_evaluate_finish(&checked.group, EXAMPLES);
            assert_null(result.bad_tensor);
            correct[again] = result.counts[0];
        }
        assert_in_range(correct[0], 1, EXAMPLES);
        assert_int_equal(correct[1], correct[0]);
        end(&plain);
        end(&checked);
    }
}

// A run that goes on with the short batch: the second replica has no grain in its first step.
static void test_idle_replica(void **state) {
    (void)state;
    for (lk_reduce_choice reduce = LK_REDUCE_AUTO; reduce <= LK_REDUCE_ALL_OPERANDS; reduce++) {
        bench b;
        build_to_reduce(&b, true, true, reduce);
        start(&b);
        for (uint64_t s = 2; s < 6; s++) assert_null(step(&b, s).bad_tensor);
        end(&b);
    }
}

// --- a lifetime that is too short --------------------------------------------------------------

static const char *bad_tensor_with_short_life(const char *name, bool guards) {
    bench b;
    build(&b, true, guards);
    // As if the planner had forgotten that the backward ops read it. No offset is planned anew, so
    // without the check nothing is overwritten and nobody would know.
    find(&b, name)->last = b.program.forward_end;
    start(&b);
    const char *bad = step(&b, 0).bad_tensor;
    end(&b);
    return bad;
}

static void test_short_life(void **state) {
    (void)state;
    static const char *const names[] = {"hidden", "input"};
    for (size_t i = 0; i < LK_COUNT(names); i++) {
        assert_null(bad_tensor_with_short_life(names[i], false));
        assert_non_null(bad_tensor_with_short_life(names[i], true));
    }
}

// --- writes behind a tensor ----------------------------------------------------------------------

static jmp_buf panicked;
static char panic_text[300];

static void on_panic(const char *file, int line, const char *what) {
    (void)file, (void)line;
    lk_format(panic_text, sizeof panic_text, "%s", what);
    longjmp(panicked, 1);
}

static uint32_t long_dense(lk_lane *l, const lk_op *op) {
    const lk_dense *d = &op->dense;
    uint32_t bad = lk_op_dense.reference(l, op);
    float *y = l->at[LK_Y];
    if (d->n_count == 7) y[(uint64_t)l->examples * d->n_count] = 1.0f;  // the layer "hidden"
    return bad;
}

static uint32_t long_apply(const lk_optimizer *o, const lk_step_scalars *scalars, uint64_t count,
                           const float *sum, float *w, float *const slots[]) {
    uint32_t bad = o->type->reference(o, scalars, count, sum, w, slots);
    if (count == CLASSES) w[count] = 1.0f;  // logits/bias, the last of the device region or not
    return bad;
}

static void expect_panic(bench *b, const char *tensor, const char *when) {
    panic_text[0] = '\0';
    lk_set_panic_handler(on_panic);
    if (setjmp(panicked) == 0) step(b, 0);
    lk_set_panic_handler(NULL);
    assert_non_null(strstr(panic_text, "guard: something wrote 0 bytes behind tensor "));
    assert_non_null(strstr(panic_text, tensor));
    assert_non_null(strstr(panic_text, when));
    end(b);
}

static void test_write_behind(void **state) {
    (void)state;
    bench b;
    build(&b, true, true);
    b.kernels.kernel[LK_OP_DENSE] = long_dense;
    start(&b);
    expect_panic(&b, "hidden", "seen after");

    build(&b, true, true);
    b.kernels.apply[LK_OPTIMIZER_SGD] = long_apply;
    start(&b);
    expect_panic(&b, "logits/bias", "seen after a step");
}

// --- values read before they were written --------------------------------------------------------

static void load_nothing(uint64_t count, const uint8_t *in, float *out) {
    (void)count, (void)in, (void)out;
}

static void test_never_written(void **state) {
    (void)state;
    bench b;
    build(&b, true, true);
    b.kernels.load_u8 = load_nothing;
    start(&b);
    assert_non_null(step(&b, 0).bad_tensor);
    end(&b);
    build(&b, true, false);
    b.kernels.load_u8 = load_nothing;
    start(&b);
    assert_null(step(&b, 0).bad_tensor);  // zeroes from the kernel: nobody would know
    end(&b);
    // What an evaluation left behind is not the input of the next.
    build(&b, true, true);
    start(&b);
    for (int again = 0; again < 2; again++) {
        for (uint32_t r = 0; r < 2; r++) lk_evaluate_compute(&b.group, r, &source, EXAMPLES);
        const char *bad = lk_evaluate_finish(&b.group, EXAMPLES).bad_tensor;
        assert_true(again ? bad != NULL : bad == NULL);
        b.kernels.load_u8 = load_nothing;
    }
    end(&b);
}

// --- what is not finite, by its name -------------------------------------------------------------

// What kernels say without its being so, by the replica that computes and the units of its layer.
static struct {
    uint32_t replica, forward[2], gradient;
    bool apply, loss;
} told;

static uint32_t telling_dense(lk_lane *l, const lk_op *op) {
    return lk_op_dense.reference(l, op) | (op->dense.n_count == told.forward[told.replica]);
}

static uint32_t telling_gradient(lk_lane *l, const lk_op *op) {
    return lk_op_dense_input_gradient.reference(l, op) | (op->dense.n_count == told.gradient);
}

static uint32_t telling_apply(const lk_optimizer *o, const lk_step_scalars *scalars, uint64_t count,
                              const float *sum, float *w, float *const slots[]) {
    return o->type->reference(o, scalars, count, sum, w, slots) | told.apply;
}

static void telling_sums(uint32_t n_count, uint32_t grain_count, const lk_grain_view *grains,
                         float *out) {
    lk_kernels_reference.column_sums(n_count, grain_count, grains, out);
    if (told.loss && n_count == 1) *out = __builtin_inff();
}

static void expect_report(const char *wanted) {
    bench b;
    build(&b, true, false);
    b.kernels.kernel[LK_OP_DENSE] = telling_dense;
    b.kernels.kernel[LK_OP_DENSE_INPUT_GRADIENT] = telling_gradient;
    b.kernels.apply[LK_OPTIMIZER_SGD] = telling_apply;
    b.kernels.column_sums = telling_sums;
    start(&b);
    for (uint32_t r = 0; r < 2; r++) {
        told.replica = r;
        lk_step_compute(&b.group, r, 0);
    }
    for (uint32_t r = 0; r < 2; r++) lk_step_update(&b.group, r, 0);
    const char *found = lk_step_finish(&b.group, 0).bad_tensor;
    assert_string_equal(found ? found : "(none)", wanted);
    end(&b);
}

// The first of the program's ops, whichever replica it was in; then the first parameter; then the
// loss.
static void test_reports(void **state) {
    (void)state;
    memset(&told, 0, sizeof told);
    expect_report("(none)");
    told.loss = true;
    expect_report("loss");
    told.apply = true;
    expect_report("conv/kernel");
    told.gradient = CLASSES;
    expect_report("hidden/gradient");
    for (uint32_t r = 0; r < 2; r++) {
        told.forward[r] = CLASSES;
        told.forward[1 - r] = 0;
        expect_report("logits");
        told.forward[1 - r] = 7;
        expect_report("hidden");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),     cmocka_unit_test(test_idle_replica),
        cmocka_unit_test(test_short_life),    cmocka_unit_test(test_write_behind),
        cmocka_unit_test(test_never_written), cmocka_unit_test(test_reports)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
