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

#include "comm/step.h"
#include "io/made_up.h"
#include "ops/variant.h"
#include "tests/bench/qemu_counter.h"

// Accounts: 0 is what nobody asked about, 1 the step outside of kernels, then the kernels.
#define KERNELS(X)                                                                       \
    X(load_u8) X(conv2d_pool_forward) X(dense_forward) X(softmax_cross_entropy)          \
    X(column_sums) X(dense_input_gradient) X(dense_weight_gradient)                      \
    X(conv2d_pool_weight_gradient) X(add) X(apply)
enum {
    OUTSIDE,
    REST,
#define ACCOUNT(kernel) ACCOUNT_##kernel,
    KERNELS(ACCOUNT)
#undef ACCOUNT
};

static const lk_kernels *counted;
static bool counting;

static void charge(long account) {
    if (counting) syscall(COUNTER_CALL, account);
}

// A kernel of the same name that charges what the counted one runs to its account.
#define COUNTED(kernel, parameters, ...)             \
    static void counted_##kernel parameters {        \
        charge(ACCOUNT_##kernel);                    \
        counted->kernel(__VA_ARGS__);                \
        charge(REST);                                \
    }
#define COUNTED_FLAG(kernel, parameters, ...)            \
    static uint32_t counted_##kernel parameters {        \
        charge(ACCOUNT_##kernel);                        \
        uint32_t bad = counted->kernel(__VA_ARGS__);     \
        charge(REST);                                    \
        return bad;                                      \
    }

COUNTED(load_u8, (uint64_t count, const uint8_t *src, float *dst), count, src, dst)
COUNTED_FLAG(conv2d_pool_forward,
             (const lk_conv2d *c, uint32_t m, const float *x, const float *w, const float *bias,
              float *y, uint8_t *argmax, lk_ahead *ahead, float *scratch),
             c, m, x, w, bias, y, argmax, ahead, scratch)
COUNTED_FLAG(dense_forward,
             (const lk_dense *d, uint32_t m, const float *x, const float *w, const float *bias,
              float *y, float *scratch),
             d, m, x, w, bias, y, scratch)
COUNTED_FLAG(softmax_cross_entropy,
             (uint32_t m, uint32_t classes, const float *logits, const uint32_t *labels,
              float *dlogits, float *loss, uint32_t *correct),
             m, classes, logits, labels, dlogits, loss, correct)
COUNTED(column_sums, (uint32_t n, uint32_t count, const lk_grain_view *grains, float *out), n,
        count, grains, out)
COUNTED_FLAG(dense_input_gradient,
             (const lk_dense *d, uint32_t m, const float *w, const float *dy, const float *mask,
              float *dx, float *scratch),
             d, m, w, dy, mask, dx, scratch)
COUNTED(dense_weight_gradient,
        (const lk_dense *d, uint32_t count, const lk_grain_view *grains, const lk_weight_rows *rows,
         float *dw, float *scratch),
        d, count, grains, rows, dw, scratch)
COUNTED(conv2d_pool_weight_gradient,
        (const lk_conv2d *c, uint32_t count, const lk_grain_view *grains, float *dw, float *db,
         float *scratch),
        c, count, grains, dw, db, scratch)
COUNTED(add, (uint64_t count, const float *a, const float *b, float *out), count, a, b, out)
COUNTED_FLAG(apply,
             (const lk_optimizer *o, uint64_t count, const float *sum, float inverse_n, float *w,
              float *const slots[LK_OPTIMIZER_SLOTS_MAX]),
             o, count, sum, inverse_n, w, slots)

static lk_kernels counted_table(void) {
    lk_kernels table = *counted;  // a kernel without an account is charged to the rest
#define ENTRY(kernel) table.kernel = counted_##kernel;
    KERNELS(ENTRY)
#undef ENTRY
    return table;
}

// --- the run -------------------------------------------------------------------------------------

enum { HEIGHT = 28, WIDTH = 28, CLASSES = 10, STEPS = 3 };

static uint8_t *images, *labels;

static uint64_t in_order(void *context, uint64_t epoch, uint64_t position) {
    (void)context, (void)epoch;
    return position;
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
        lk_made_up_example(&made_up, i, images + i * HEIGHT * WIDTH, labels + i);
    }
}

// The model of the README: one convolution, pooled, and two dense layers.
static const lk_layer layers[] = {
    {.kind = LK_LAYER_CONV2D, .name = "conv", .units = 32, .size_h = 3, .size_w = 3, .stride_h = 1,
     .stride_w = 1, .padding = LK_PADDING_VALID, .use_bias = true, .relu = true,
     .initializer = LK_INIT_GLOROT_UNIFORM},
    {.kind = LK_LAYER_MAX_POOL2D, .name = "pool", .size_h = 2, .size_w = 2, .stride_h = 2,
     .stride_w = 2, .padding = LK_PADDING_VALID},
    {.kind = LK_LAYER_FLATTEN, .name = "flatten"},
    {.kind = LK_LAYER_DENSE, .name = "dense", .units = 64, .use_bias = true, .relu = true,
     .initializer = LK_INIT_GLOROT_UNIFORM},
    {.kind = LK_LAYER_DENSE, .name = "logits", .units = CLASSES, .use_bias = true,
     .initializer = LK_INIT_GLOROT_UNIFORM},
};

static void one_step(lk_world *world, uint64_t step) {
    lk_step_compute(world, 0, step);
    lk_step_update(world, 0, step);
    if (lk_step_finish(world, step).bad_tensor) {
        fprintf(stderr, "step_count: step %llu is not finite\n", (unsigned long long)step);
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
    const lk_run_spec spec = {.model = {HEIGHT, WIDTH, 1, CLASSES, LK_COUNT(layers), layers},
                              .optimizer = {LK_SGD, 0.05f, 0.0f, false}, .seed = 1,
                              .global_batch = batch, .grain = lk_default_grain(batch),
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
    const lk_source source = {NULL, in_order, image_at, label_at};
    const lk_kernels table = counted_table();
    lk_world world;
    lk_world_make(&world, &p, &table, &source, device, replica, stride, memory(lk_world_bytes(&p)));
    for (uint64_t step = 0; step < STEPS; step++) {
        counting = step + 1 == STEPS;
        charge(REST);
        one_step(&world, step);
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
    printf("account %d the rest of the step\n", REST);
#define NAME(kernel) printf("account %d %s\n", ACCOUNT_##kernel, #kernel);
    KERNELS(NAME)
#undef NAME
    return LK_OK;
}
