// kernels_bench - how fast each kernel of each variant is, beside the FMA peak of the same run.
//
//   kernels_bench [FILTER]     lines whose "variant kernel shape" contains FILTER
//
// One core. Machines are shared and noisy: all lines are visited ROUNDS times, the peak is measured
// around each visit, and the median of the shares of the peak is printed with the median speed.
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ops/op.h"
#include "ops/variant.h"
#include "tests/bench/peak.h"
#include "tests/ops/kernel_calls.h"

enum { ROUNDS = 15, CALL_NS = 1500000, LINES_MAX = 600, GRAIN = 16, NORM_GRAIN = 32 };

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);  // not what other programs take
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// Operands of one line. Roughly half of x is exact zeros, as after a ReLU.
typedef struct operands {
    float *x, *w, *bias, *dy, *y, *dx, *dw, *scratch;
    uint8_t *argmax, *bytes;
    uint32_t *labels;
    uint16_t *winners;
} operands;

typedef enum op {
    FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, CONV, CONV_POOL, CONV_INPUT, CONV_POOL_INPUT,
    CONV_WEIGHT, CONV_POOL_WEIGHT, SOFTMAX, APPLY, ADAM, COPY, LOAD, MAX_POOL,
    MAX_POOL_BACK, NORM, NORM_BACK, ADD, RELU, RELU_BACK
} op;

typedef struct line {
    const lk_kernels *kernels;
    const char *kernel;
    char shape[80];
    op op;
    uint32_t m_count;
    lk_dense dense;
    lk_conv2d conv;
    lk_pool2d pool;
    lk_batch_norm norm;   // and of ADD and RELU the shape
    double flop;          // of one call; 0: the line prints bytes
    double bytes;
    double gflops[ROUNDS], share[ROUNDS];
} line;

static line lines[LINES_MAX];
static unsigned line_count;

static float *floats(uint64_t count) {
    float *p = aligned_alloc(64, lk_round_up(count * sizeof *p + 64, 64));
    uint32_t random = 1;
    if (!p) exit(70);
    for (uint64_t i = 0; i < count + 16; i++) {
        random = random * 1664525u + 1013904223u;
        p[i] = random >> 31 ? (float)(int32_t)random * 0x1p-35f : 0.0f;
    }
    return p;
}

static uint64_t norm_floats(const line *l) {
    return (uint64_t)l->norm.h * l->norm.w * l->norm.channels;
}
static uint64_t x_floats(const line *l) {
    switch (l->op) {
        case FORWARD: case INPUT_GRADIENT: case WEIGHT_GRADIENT: return l->dense.k_count;
        case SOFTMAX: return l->dense.n_count;
        case APPLY: case ADAM: case COPY: case LOAD: return l->dense.k_count;
        case MAX_POOL: case MAX_POOL_BACK:
            return (uint64_t)l->pool.in_h * l->pool.in_w * l->pool.channels;
        case NORM: case NORM_BACK: case ADD: case RELU: case RELU_BACK: return norm_floats(l);
        default: return lk_conv2d_in_floats(&l->conv);
    }
}
static uint64_t y_floats(const line *l) {
    switch (l->op) {
        case FORWARD: case INPUT_GRADIENT: case WEIGHT_GRADIENT: case SOFTMAX:
            return l->dense.n_count;
        case APPLY: case ADAM: case COPY: case LOAD: return l->dense.k_count;
        case MAX_POOL: case MAX_POOL_BACK:
            return (uint64_t)l->pool.out_h * l->pool.out_w * l->pool.channels;
        case NORM: case NORM_BACK: case ADD: case RELU: case RELU_BACK: return norm_floats(l);
        default: return lk_conv2d_out_floats(&l->conv);
    }
}
static uint64_t w_floats(const line *l) {
    if (l->op <= WEIGHT_GRADIENT) return (uint64_t)l->dense.k_count * l->dense.n_count;
    if (l->op >= NORM) return l->norm.channels;
    return l->op <= CONV_POOL_WEIGHT ? lk_conv2d_weight_floats(&l->conv) : l->dense.k_count;
}
static uint64_t scratch_floats(const line *l) {
    switch (l->op) {
    case FORWARD: return dense_scratch_floats(&lk_op_dense, &l->dense, l->m_count);
    case INPUT_GRADIENT:
        return dense_scratch_floats(&lk_op_dense_input_gradient, &l->dense, l->m_count);
    case WEIGHT_GRADIENT: return dense_scratch_floats(&lk_op_dense_weight_gradient, &l->dense, 1);
    case SOFTMAX:
    case APPLY:
    case ADAM:
    case COPY:
    case LOAD:
    case MAX_POOL:
    case MAX_POOL_BACK: return 0;
    case NORM:
    case NORM_BACK:
    case ADD:
    case RELU:
    case RELU_BACK: return (uint64_t)LK_NORM_COLUMNS * l->norm.channels * l->m_count;
    default: return conv2d_scratch_floats(&l->conv);
    }
}

static operands operands_of(const line *l) {
    uint64_t y_count = y_floats(l) * l->m_count, x_count = x_floats(l) * l->m_count;
    operands o = {
        .x = floats(x_count), .w = floats(w_floats(l)), .bias = floats(65536),
        .dy = floats(y_count),
        .y = floats(y_count), .dx = floats(x_count), .dw = floats(w_floats(l)),
        .scratch = floats(scratch_floats(l)),
    };
    o.argmax = calloc(1, y_count + 64);
    o.bytes = calloc(1, x_count + 64);
    o.labels = calloc(l->m_count, sizeof *o.labels);
    o.winners = calloc(y_count + 64, sizeof *o.winners);
    if (!o.argmax || !o.bytes || !o.labels || !o.winners) exit(70);
    if (l->op == ADAM) memset(o.dw, 0, w_floats(l) * sizeof(float));  // squares
    for (uint64_t i = 0; i < y_count; i++) o.argmax[i] = (uint8_t)(i * 2654435761u >> 30 & 3);
    return o;
}

static void operands_free(operands *o) {
    free(o->x), free(o->w), free(o->bias), free(o->dy), free(o->y), free(o->dx), free(o->dw);
    free(o->scratch), free(o->argmax), free(o->bytes), free(o->labels), free(o->winners);
}

static uint32_t grains_of(const line *l, const operands *o, uint64_t dy_floats,
                          lk_grain_view *grains) {
    uint32_t count = 0;
    for (uint32_t m = 0; m < l->m_count; m += GRAIN, count++) {
        grains[count] = (lk_grain_view){o->x + m * x_floats(l), o->dy + m * dy_floats,
                                        o->argmax + m * dy_floats,
                                        LK_MIN(l->m_count - m, (uint32_t)GRAIN)};
    }
    return count;
}

// In grains of NORM_GRAIN examples. y of ReLU's gradient is x, whose zeros are as ReLU leaves them.
static void call_norm(const line *l, const operands *o) {
    static const lk_op_type *const types[] = {&lk_op_batch_normalization,
                                              &lk_op_batch_normalization_backward, &lk_op_add,
                                              &lk_op_relu, &lk_op_relu_backward};
    const lk_op called = {.type = types[l->op - NORM], .floats = norm_floats(l), .norm = l->norm};
    lk_lane lane = {.examples = l->m_count, .grain = NORM_GRAIN, .param = {o->w, o->bias}};
    lane.at[LK_X] = o->x, lane.at[LK_X2] = o->dy, lane.at[LK_AUX] = o->scratch;
    lane.at[LK_Y] = l->op == RELU_BACK ? o->x : o->y;
    lane.at[LK_DY] = o->dy, lane.at[LK_DX] = o->dx;
    (void)call_op(l->kernels, &called, &lane);
}

static void call(const line *l, const operands *o) {
    const lk_kernels *k = l->kernels;
    static lk_grain_view grains[64];
    uint32_t right, count;
    const lk_optimizer sgd = {.type = &lk_optimizer_sgd, .learning_rate = 0x1p-20f};
    const lk_optimizer adam = {.type = &lk_optimizer_adam_keras, .learning_rate = 0x1p-20f,
                               .beta_1 = 0.9f, .beta_2 = 0.999f, .epsilon = 1e-7f};
    float *slots[LK_OPTIMIZER_SLOTS_MAX] = {o->y, o->dw};
    uint64_t dy = l->op == CONV_POOL_WEIGHT ? lk_conv2d_pooled_floats(&l->conv) : y_floats(l);
    switch (l->op) {
        case FORWARD:
            dense_forward(k, &l->dense, l->m_count, o->x, o->w, o->bias, o->y, o->scratch);
            break;
        case INPUT_GRADIENT:
            dense_input_gradient(k, &l->dense, l->m_count, o->w, o->dy, o->x, o->dx, o->scratch);
            break;
        case WEIGHT_GRADIENT:
            count = grains_of(l, o, dy, grains);
            dense_weight_gradient(k, &l->dense, count, grains,
                                  &(lk_weight_rows){.end = l->dense.k_count}, o->dw, o->scratch);
            break;
        case CONV:
            conv2d_forward(k, &l->conv, l->m_count, o->x, o->w, o->bias, o->y, o->scratch);
            break;
        case CONV_POOL:
            conv2d_pool_forward(k, &l->conv, l->m_count, o->x, o->w, o->bias, o->y, o->argmax,
                                &(lk_ahead){NULL, NULL, NULL}, o->scratch);
            break;
        case CONV_INPUT:
            conv2d_input_gradient(k, &l->conv, l->m_count, o->w, o->dy, o->x, o->dx, o->scratch);
            break;
        case CONV_POOL_INPUT:
            conv2d_pool_input_gradient(k, &l->conv, l->m_count, o->w, o->dy, o->argmax, o->x, o->dx,
                                       o->scratch);
            break;
        case CONV_WEIGHT:
            count = grains_of(l, o, dy, grains);
            conv2d_weight_gradient(k, &l->conv, count, grains, o->dw, o->bias, o->scratch);
            break;
        case CONV_POOL_WEIGHT:
            count = grains_of(l, o, dy, grains);
            conv2d_pool_weight_gradient(k, &l->conv, count, grains, o->dw, o->bias, o->scratch);
            break;
        case SOFTMAX:
            softmax_cross_entropy(k, l->m_count, l->dense.n_count, o->x, o->labels, o->dx, o->y,
                                  &right);
            break;
        case APPLY: apply(k, &sgd, l->dense.k_count, o->x, 0x1p-6f, o->dx, NULL); break;
        case ADAM: apply(k, &adam, l->dense.k_count, o->x, 0x1p-6f, o->dx, slots); break;
        case COPY: memcpy(o->dx, o->x, l->dense.k_count * sizeof(float)); break;
        case LOAD: k->load_u8(l->dense.k_count, o->bytes, o->x); break;
        case MAX_POOL: max_pool_forward(k, &l->pool, l->m_count, o->x, o->y, o->winners); break;
        case MAX_POOL_BACK:
            max_pool_backward(k, &l->pool, l->m_count, o->dy, o->winners, o->dx);
            break;
        case NORM: case NORM_BACK: case ADD: case RELU: case RELU_BACK: call_norm(l, o); break;
    }
}

// --- the lines -----------------------------------------------------------------------------------

static line *add_line(const lk_kernels *k, const char *kernel, op which, uint32_t m_count) {
    if (line_count == LINES_MAX) exit(70);
    line *l = &lines[line_count++];
    *l = (line){.kernels = k, .kernel = kernel, .op = which, .m_count = m_count};
    return l;
}

static void dense_lines(const lk_kernels *k, uint32_t m, uint32_t inputs, uint32_t units) {
    static const char *const names[] = {"dense_forward", "dense_input_gradient",
                                        "dense_weight_gradient"};
    for (op o = FORWARD; o <= WEIGHT_GRADIENT; o++) {
        line *l = add_line(k, names[o], o, m);
        l->dense = (lk_dense){inputs, units, true, true};
        l->flop = 2.0 * m * inputs * units;
        snprintf(l->shape, sizeof l->shape, "m %u, %u -> %u", m, inputs, units);
    }
}

// A square convolution, stride 1; `pad` rows and columns on each side.
static void conv_lines(const lk_kernels *k, uint32_t m, uint32_t in, uint32_t in_c, uint32_t out_c,
                       uint32_t kernel, uint32_t pad) {
    static const char *const names[] = {
        "conv2d_forward", "conv2d_pool_forward", "conv2d_input_gradient",
        "conv2d_pool_input_gradient", "conv2d_weight_gradient", "conv2d_pool_weight_gradient"};
    uint32_t out = in + 2 * pad - kernel + 1;
    for (op o = CONV; o <= CONV_POOL_WEIGHT; o++) {
        if (in_c == 1 && (o == CONV_INPUT || o == CONV_POOL_INPUT)) continue;
        line *l = add_line(k, names[o - CONV], o, m);
        l->conv = (lk_conv2d){in, in, in_c, out, out, out_c, kernel, kernel, 1, 1, pad, pad,
                              true, true};
        double positions = (double)out * out;
        if (o == CONV_POOL_WEIGHT) positions = (double)(out / 2) * (out / 2);
        l->flop = 2.0 * m * positions * kernel * kernel * in_c * out_c;
        snprintf(l->shape, sizeof l->shape, "m %u, %ux%ux%u, %ux%u%s -> %u", m, in, in, in_c,
                 kernel, kernel, pad ? " same" : "", out_c);
    }
}

static void other_lines(const lk_kernels *k) {
    line *l = add_line(k, "softmax_cross_entropy", SOFTMAX, 64);
    l->dense.n_count = 10;
    l->bytes = 64 * 10 * 8;
    snprintf(l->shape, sizeof l->shape, "m 64, 10 classes");
    l = add_line(k, "apply sgd", APPLY, 1);
    l->dense.k_count = 346112;
    l->bytes = 12.0 * l->dense.k_count;
    snprintf(l->shape, sizeof l->shape, "%u floats", l->dense.k_count);
    // Far past the caches: gradient, weight and two slots read, three of them written; and memcpy.
    l = add_line(k, "apply adam_keras", ADAM, 1);
    l->dense.k_count = 10000000;
    l->bytes = 28.0 * l->dense.k_count;
    snprintf(l->shape, sizeof l->shape, "%u floats", l->dense.k_count);
    l = add_line(k, "copy", COPY, 1);
    l->dense.k_count = 10000000;
    l->bytes = 8.0 * l->dense.k_count;
    snprintf(l->shape, sizeof l->shape, "%u floats", l->dense.k_count);
    l = add_line(k, "load_u8", LOAD, 1);
    l->dense.k_count = 784;
    l->bytes = 5.0 * l->dense.k_count;
    snprintf(l->shape, sizeof l->shape, "%u bytes", l->dense.k_count);
    for (op o = MAX_POOL; o <= MAX_POOL_BACK; o++) {
        l = add_line(k, o == MAX_POOL ? "max_pool_forward" : "max_pool_backward", o, 16);
        l->pool = (lk_pool2d){26, 26, 32, 13, 13, 2, 2, 2, 2, 0, 0};
        l->bytes = 16 * 26 * 26 * 32 * 4;
        snprintf(l->shape, sizeof l->shape, "m 16, 26x26x32, 2x2");
    }
}

// Each tensor counts once, however often a kernel passes over it.
static void norm_lines(const lk_kernels *k, uint32_t m, uint32_t h, uint32_t channels) {
    static const char *const names[] = {"batch_normalization", "batch_normalization_backward",
                                        "add", "relu", "relu_backward"};
    for (op o = NORM; o <= RELU_BACK; o++) {
        line *l = add_line(k, names[o - NORM], o, m);
        l->norm = (lk_batch_norm){.h = h, .w = h, .channels = channels, .epsilon = 1e-3f,
                                  .momentum = 0.9f, .scale = true, .center = true};
        l->bytes = (o == NORM || o == RELU ? 8.0 : 12.0) * m * (double)norm_floats(l);
        snprintf(l->shape, sizeof l->shape, "m %u, %ux%ux%u", m, h, h, channels);
    }
}

static void lines_of(const lk_kernels *k) {
    dense_lines(k, 16, 5408, 64);
    dense_lines(k, 32, 5408, 64);
    dense_lines(k, 64, 5408, 64);
    dense_lines(k, 32, 64, 10);
    dense_lines(k, 64, 784, 512);
    dense_lines(k, 256, 512, 512);
    dense_lines(k, 64, 2048, 2048);
    dense_lines(k, 32, 6272, 1024);
    dense_lines(k, 32, 400, 120);
    dense_lines(k, 33, 301, 83);
    conv_lines(k, 32, 28, 1, 32, 3, 0);
    conv_lines(k, 32, 28, 1, 6, 5, 2);
    conv_lines(k, 32, 14, 6, 16, 5, 0);
    conv_lines(k, 16, 16, 32, 64, 3, 1);
    norm_lines(k, 64, 28, 16);
    norm_lines(k, 64, 14, 32);
    norm_lines(k, 64, 7, 64);
    norm_lines(k, 1024, 28, 16);
    other_lines(k);
}

// --- measuring -----------------------------------------------------------------------------------

static double seconds_per_call(const line *l, const operands *o) {
    uint64_t calls = 1;
    for (;;) {
        double start = seconds();
        for (uint64_t i = 0; i < calls; i++) call(l, o);
        double taken = seconds() - start;
        if (taken * 1e9 >= CALL_NS || calls > 1u << 24) return taken / (double)calls;
        calls = taken * 1e9 < CALL_NS / 16 ? calls * 8 : calls * 2;
    }
}

static int by_value(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}
static double median(double *values) {
    qsort(values, ROUNDS, sizeof *values, by_value);
    return values[ROUNDS / 2];
}

static void measure(line *l, int round) {
    operands o = operands_of(l);
    call(l, &o);
    double peak = peak_gflops(seconds), taken = seconds_per_call(l, &o);
    peak = (peak + peak_gflops(seconds)) / 2;
    l->gflops[round] = (l->flop > 0 ? l->flop : l->bytes) / taken * 1e-9;
    l->share[round] = l->gflops[round] / peak;
    operands_free(&o);
}

int main(int argc, char **argv) {
    const lk_kernels *k;
    char text[256];
    static bool chosen[LINES_MAX];
    for (unsigned i = 0; lk_kernels_missing(i, &k), k != NULL; i++) {
        if (!lk_kernels_missing(i, &k) && k != &lk_kernels_reference) lines_of(k);
    }
    for (unsigned i = 0; i < line_count; i++) {
        snprintf(text, sizeof text, "%s %s %s", lines[i].kernels->name, lines[i].kernel,
                 lines[i].shape);
        chosen[i] = argc < 2 || strstr(text, argv[1]);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (unsigned i = 0; i < line_count; i++) {
            if (chosen[i]) measure(&lines[i], round);
        }
    }
    for (unsigned i = 0; i < line_count; i++) {
        line *l = &lines[i];
        if (!chosen[i]) continue;
        printf("%-9s %-28s %-30s ", l->kernels->name, l->kernel, l->shape);
        if (l->flop > 0) {
            double share = median(l->share);
            printf("%7.1f GFLOP/s  %5.1f%% of FMA peak\n", median(l->gflops), 100 * share);
        } else {
            printf("%7.2f GB/s\n", median(l->gflops));
        }
    }
    return 0;
}
