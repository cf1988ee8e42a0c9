// step_count.c - one training step of the MNIST CNN, whose instructions qemu_counter.c counts.
//
//   step_count KERNELS [EXAMPLES]    a table of kernels by name; the global batch (default 64)
//
// The real step: the program compiled from the model, run by the scheduler on made-up images, one
// replica. Two steps pass uncounted, so that all tables are warm and ReLU has made its zeros; of
// the third, each kernel has an account and the rest of the step another. Prints "account name" for
// each, and the digest of the parameters: variants that differ are not worth comparing.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/step/driver.h"
#include "io/made_up.h"
#include "ops/variant.h"
#include "tests/bench/qemu_counter.h"

// Accounts: 0 is what nobody asked about, 1 the step outside of kernels, then what every step
// needs, then the ops by number.
enum { OUTSIDE, REST, LOAD_U8, COLUMN_SUMS, ADD, APPLY, OPS };
_Static_assert(OPS + LK_OP_COUNT <= COUNTER_ACCOUNTS, "an account for each op");

static const lk_kernels *counted;
static bool counting, used[OPS + LK_OP_COUNT];
static const char *names[OPS + LK_OP_COUNT] = {[REST] = "the rest of the step",
                                               [LOAD_U8] = "load_u8",
                                               [COLUMN_SUMS] = "column_sums",
                                               [ADD] = "add",
                                               [APPLY] = "apply"};

static void charge(long account) {
    used[account] = true;
    if (counting) syscall(COUNTER_CALL, account);
}

static uint32_t counted_op(lk_lane *lane, const lk_op *op) {
    names[OPS + op->type->number] = op->type->name;
    charge(OPS + op->type->number);
    const uint32_t bad = lk_kernel_of(counted, op->type)(lane, op);
    charge(REST);
    return bad;
}

static uint32_t counted_apply(const lk_optimizer *o, const lk_step_scalars *scalars, uint64_t count,
                              const float *sum, float *w,
                              float *const slots[LK_OPTIMIZER_SLOTS_MAX]) {
    charge(APPLY);
    const uint32_t bad = lk_apply_of(counted, o)(o, scalars, count, sum, w, slots);
    charge(REST);
    return bad;
}

static void counted_load_u8(uint64_t count, const uint8_t *src, float *dst) {
    charge(LOAD_U8);
    counted->load_u8(count, src, dst);
    charge(REST);
}

static void counted_column_sums(uint32_t n, uint32_t count, const lk_grain_view *grains,
                                float *out) {
    charge(COLUMN_SUMS);
    counted->column_sums(n, count, grains, out);
    charge(REST);
}

static void counted_add(uint64_t count, const float *a, const float *b, float *out) {
    charge(ADD);
    counted->add(count, a, b, out);
    charge(REST);
}

static lk_kernels counted_table(void) {
    lk_kernels table = *counted;
    for (uint32_t i = 0; i < LK_OP_COUNT; i++) table.kernel[i] = counted_op;
    for (uint32_t i = 0; i < LK_OPTIMIZER_COUNT; i++) table.apply[i] = counted_apply;
    table.load_u8 = counted_load_u8;
    table.column_sums = counted_column_sums;
    table.add = counted_add;
    return table;
}

// --- the run -------------------------------------------------------------------------------------

enum { HEIGHT = 28, WIDTH = 28, CLASSES = 10, STEPS = 3 };

static uint8_t *images, *labels;

static void in_order(void *context, uint64_t epoch, uint64_t position, uint32_t count,
                     uint64_t *index) {
    (void)context, (void)epoch;
    for (uint32_t i = 0; i < count; i++) index[i] = position + i;
}
static const uint8_t *image_at(void *context, uint64_t index) {
    (void)context;
    return images + index * HEIGHT * WIDTH;
}
static uint32_t label_at(void *context, uint64_t index) {
    (void)context;
    return labels[index];
}

static void *memory(uint64_t bytes) {
    void *p = aligned_alloc(64, lk_round_up(bytes, 64) + 64);
    if (!p) {
        fprintf(stderr, "step_count: no memory for %llu bytes\n", (unsigned long long)bytes);
        exit(LK_UNAVAILABLE);
    }
    memset(p, 0, lk_round_up(bytes, 64) + 64);
    return p;
}

static void make_examples(uint64_t count) {
    const lk_made_up made_up = {.seed = 1, .count = count, .height = HEIGHT, .width = WIDTH,
                                .channels = 1, .classes = CLASSES};
    images = memory(count * HEIGHT * WIDTH);
    labels = memory(count);
    for (uint64_t i = 0; i < count; i++) {
        uint32_t label;
        lk_made_up_example(&made_up, i, images + i * HEIGHT * WIDTH, &label);
        labels[i] = (uint8_t)label;
    }
}

// The model of the figures in tests/README.md: one convolution, pooled, and two dense layers.
static const lk_layer layers[] = {
    {.type = &lk_layer_conv2d,
     .name = "conv",
     .units = 32,
     .size_h = 3,
     .size_w = 3,
     .stride_h = 1,
     .stride_w = 1,
     .padding = LK_PADDING_VALID,
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
     .name = "dense",
     .units = 64,
     .use_bias = true,
     .activation = &lk_layer_relu,
     .initializer = &lk_initializer_glorot_uniform},
    {.type = &lk_layer_dense,
     .name = "logits",
     .units = CLASSES,
     .use_bias = true,
     .initializer = &lk_initializer_glorot_uniform},
};

static void one_step(lk_driver *driver, uint64_t step) {
    lk_driver_start(driver, 0, step);
    lk_driver_run_in_turn(driver);
    if (lk_driver_finish(driver).bad_tensor) {
        fprintf(stderr, "step_count: step %llu is not finite\n", (unsigned long long)step + 1);
        exit(LK_NOT_FINITE);
    }
}

static void print_digest(const lk_program *p, const uint8_t *device) {
    uint8_t digest[LK_SHA256_BYTES];
    lk_sha256 hash;
    lk_sha256_start(&hash);
    for (uint32_t i = 0; i < p->param_count; i++) {
        lk_sha256_add(&hash, device + p->tensors[p->params[i].tensor].offset,
                      p->params[i].count * sizeof(float));
    }
    lk_sha256_finish(&hash, digest);
    printf("digest ");
    for (unsigned i = 0; i < sizeof digest; i++) printf("%02x", digest[i]);
    printf("\n");
}

static void run(uint32_t batch) {
    const lk_run_spec spec = {.model = {.in_h = HEIGHT,
                                        .in_w = WIDTH,
                                        .in_c = 1,
                                        .classes = CLASSES,
                                        .layer_count = LK_COUNT(layers),
                                        .layers = layers},
                              .optimizer = {.type = &lk_optimizer_sgd, .learning_rate = 0.05f},
                              .seed = 1,
                              .global_batch = batch,
                              .grain = lk_default_grain(batch),
                              .example_count = (uint64_t)batch * STEPS};
    const lk_layout layout = {.replicas = 1, .fuse = true};
    const lk_plan_options options = {.overlay = true};
    lk_error error = {.status = LK_OK};
    lk_program p;
    void *tables = memory(lk_program_bytes(&spec.model));
    if (lk_program_build(&spec, &layout, &options, tables, &p, &error) != LK_OK) {
        fprintf(stderr, "step_count: %s\n", error.text);
        exit((int)error.status);
    }
    uint64_t stride = p.regions[LK_REGION_REPLICA].bytes;
    uint8_t *device = memory(p.regions[LK_REGION_DEVICE].bytes), *replica = memory(stride);
    lk_program_initialize(&p, device);
    make_examples(spec.example_count);
    const lk_source source = {NULL, in_order, image_at, label_at, false, NULL, false};
    const lk_kernels table = counted_table();
    lk_group group;
    lk_group_make(&group, &p, &table, &source, device, replica, stride, memory(lk_group_bytes(&p)));
    lk_error lost = {.status = LK_OK};
    lk_driver driver = {.lanes = &lk_lanes_steps,
                        .transport = &lk_in_turn,
                        .groups = &group,
                        .programs = 1,
                        .lost = &lost};
    for (uint64_t step = 0; step < STEPS; step++) {
        counting = step + 1 == STEPS;
        charge(REST);
        one_step(&driver, step);
        charge(OUTSIDE);
    }
    print_digest(&p, device);
}

int main(int argc, char **argv) {
    lk_error error = {.status = LK_OK};
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: step_count KERNELS [EXAMPLES]\n");
        return LK_BAD_USAGE;
    }
    if (lk_kernels_choose(argv[1], &counted, &error) != LK_OK) {
        fprintf(stderr, "step_count: %s\n", error.text);
        return (int)error.status;
    }
    run(argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 64);
    for (uint32_t i = REST; i < LK_COUNT(names); i++) {
        if (used[i]) printf("account %u %s\n", i, names[i]);
    }
    return LK_OK;
}
