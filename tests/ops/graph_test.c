// graph_test.c - models of several networks and objectives: the schedule's arithmetic against a
// walk through all steps; gradients of parameters with several uses, and through networks that are
// not trained, against finite differences in double and against the tree's rule; memory; refusals;
// and the same bits for every layout.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comm/step/hash.h"
#include "comm/step/step.h"
#include "ops/variant.h"
#include "tests/ops/layers.h"

#define DENSE(n, count, with_relu)                                            \
    {                                                                         \
        .type = &lk_layer_dense, .name = n, .units = count, .use_bias = true, \
        .activation = (with_relu) ? &lk_layer_relu : NULL,                    \
        .initializer = &lk_initializer_glorot_uniform                         \
    }
#define FLAT(n) \
    { .type = &lk_layer_flatten, .name = n }
#define SGD(rate) \
    { .type = &lk_optimizer_sgd, .learning_rate = rate }
#define MOMENTUM(rate) \
    { .type = &lk_optimizer_momentum, .learning_rate = rate, .momentum = 0.9f }

// The images are 2 x 3 x 1. `body` takes them, `twice` 5 values to 5, `sum` adds two, `head` and
// `other` make logits.
enum { SIDE = 6, WIDE = 5, CLASSES = 3, BODY = 0, TWICE = 1, SUM = 2, HEAD = 3, OTHER = 4 };

static const lk_layer layers[] = {
    FLAT("body.flatten"),
    DENSE("body.a", WIDE, true),
    DENSE("twice.b", WIDE, true),
    {.type = &lk_layer_add, .name = "sum.add", .input_count = 2, .inputs = {0, 1}},
    DENSE("head.c", CLASSES, false),
    DENSE("other.d", 4, true),
    DENSE("other.e", CLASSES, false)};
#define ROW(n) \
    { 1, 1, n, true }
static const lk_network networks[] = {{"body", 0, 2, 1, {{2, 3, 1, false}}},
                                      {"twice", 2, 1, 1, {ROW(WIDE)}},
                                      {"sum", 3, 1, 2, {ROW(WIDE), ROW(WIDE)}},
                                      {"head", 4, 1, 1, {ROW(WIDE)}},
                                      {"other", 5, 2, 1, {ROW(WIDE)}}};

#define USE(NAME, NETWORK, ...)                                     \
    {                                                               \
        .name = NAME, .network = NETWORK, .inputs = { __VA_ARGS__ } \
    }

// The same with `twice` a transposed convolution of one pixel: its kernel is the dense one turned.
static const lk_layer folded_layers[] = {
    FLAT("body.flatten"),
    DENSE("body.a", WIDE, true),
    {.type = &lk_layer_reshape, .name = "twice.image", .target_shape = {3, {1, 1, WIDE}}},
    {.type = &lk_layer_conv2d_transpose, .name = "twice.b", .units = WIDE, .size_h = 1,
     .size_w = 1, .stride_h = 1, .stride_w = 1, .padding = LK_PADDING_SAME, .use_bias = true,
     .activation = &lk_layer_relu, .initializer = &lk_initializer_glorot_uniform},
    FLAT("twice.row"),
    {.type = &lk_layer_add, .name = "sum.add", .input_count = 2, .inputs = {0, 1}},
    DENSE("head.c", CLASSES, false),
    DENSE("other.d", 4, true),
    DENSE("other.e", CLASSES, false)};
static const lk_network folded_networks[] = {{"body", 0, 2, 1, {{2, 3, 1, false}}},
                                             {"twice", 2, 3, 1, {ROW(WIDE)}},
                                             {"sum", 5, 1, 2, {ROW(WIDE), ROW(WIDE)}},
                                             {"head", 6, 1, 1, {ROW(WIDE)}},
                                             {"other", 7, 2, 1, {ROW(WIDE)}}};
static bool folded;

// head(sum(twice(twice(body)), twice(body))): three uses of `twice`, one of them on its own output,
// two of one value.
static const lk_use once[] = {USE("x", BODY, LK_IMAGES, 0), USE("y", TWICE, 0, 0),
                              USE("logits", HEAD, 1, 0)};
static const lk_use two_uses[] = {USE("x", BODY, LK_IMAGES, 0), USE("y", TWICE, 0, 0),
                                  USE("z", TWICE, 1, 0), USE("s", SUM, 2, 0),
                                  USE("logits", HEAD, 3, 0)};
static const lk_use three_uses[] = {USE("x", BODY, LK_IMAGES, 0), USE("y", TWICE, 0, 0),
                                    USE("z", TWICE, 1, 0),        USE("t", TWICE, 0, 0),
                                    USE("s", SUM, 2, 3),          USE("logits", OTHER, 4, 0)};
static const lk_use other_head[] = {USE("x", BODY, LK_IMAGES, 0), USE("y", TWICE, 0, 0),
                                    USE("logits", OTHER, 1, 0)};

#define TRAINS(n) (1u << (n))
#define OBJECTIVE(n, uses, trained, how)                                                        \
    {                                                                                           \
        .name = n, .value_count = LK_COUNT(uses), .values = uses, .output = LK_COUNT(uses) - 1, \
        .trains = trained, .optimizer = how                                                     \
    }

// --- a model and its programs --------------------------------------------------------------------

enum { EXAMPLES = 11, GRAIN = 2, REPLICAS_MAX = 3 };

static uint8_t images[EXAMPLES][SIDE];

static void in_order(void *context, uint64_t epoch, uint64_t position, uint32_t count,
                     uint64_t *index) {
    (void)context;
    for (uint32_t i = 0; i < count; i++) index[i] = (position + i + epoch) % EXAMPLES;
}
static const uint8_t *image_at(void *context, uint64_t index) {
    (void)context;
    return images[index];
}
static uint32_t label_at(void *context, uint64_t index) {
    (void)context;
    return (uint32_t)(index % CLASSES);
}
static const lk_source source = {NULL, in_order, image_at, label_at, false, NULL, false};

static int make_images(void **state) {
    uint64_t draws = 7;
    (void)state;
    for (uint32_t i = 0; i < EXAMPLES * SIDE; i++) {
        draws = draws * 6364136223846793005u + 1442695040888963407u;
        images[i / SIDE][i % SIDE] = (uint8_t)(draws >> 56);
    }
    return 0;
}

static lk_graph graph_of(uint32_t objective_count, const lk_objective *objectives,
                         uint32_t schedule_count, const lk_schedule_entry *schedule) {
    return (lk_graph){.network_count = LK_COUNT(networks),
                      .networks = folded ? folded_networks : networks,
                      .objective_count = objective_count,
                      .objectives = objectives,
                      .schedule_count = schedule_count,
                      .schedule = schedule,
                      .calls = &lk_graph_linked};
}

static lk_run_spec spec_of(const lk_graph *graph, uint32_t batch) {
    return (lk_run_spec){.model = {.in_h = 2,
                                   .in_w = 3,
                                   .in_c = 1,
                                   .classes = CLASSES,
                                   .layer_count = folded ? LK_COUNT(folded_layers)
                                                         : LK_COUNT(layers),
                                   .layers = folded ? folded_layers : layers,
                                   .graph = graph},
                         .seed = 5,
                         .global_batch = batch,
                         .grain = GRAIN,
                         .example_count = EXAMPLES};
}

typedef struct built {
    lk_program programs[LK_OBJECTIVES_MAX];
    lk_group group;
    uint8_t *device, *replicas;
    void *tables, *group_tables;
} built;

static void *memory(uint64_t bytes) {
    void *p = aligned_alloc(64, lk_round_up(bytes, 64) + 64);
    assert_non_null(p);
    memset(p, 0x7f, lk_round_up(bytes, 64) + 64);
    return p;
}

static void build(const lk_run_spec *spec, const lk_layout *layout, const lk_kernels *kernels,
                  lk_plan_options options, built *b) {
    lk_error error = {.status = LK_OK};
    const lk_program *p = b->programs;
    b->tables = memory(lk_programs_bytes(&spec->model));
    if (lk_programs_build(spec, layout, &options, b->tables, b->programs, &error) != LK_OK) {
        fail_msg("%s", error.text);
    }
    const uint64_t stride = p->regions[LK_REGION_REPLICA].bytes;
    b->device = memory(p->regions[LK_REGION_DEVICE].bytes);
    b->replicas = memory(stride * layout->replicas);
    b->group_tables = memory(lk_group_bytes(p));
    lk_program_initialize(p, b->device);
    lk_group_make(&b->group, p, kernels, &source, b->device, b->replicas, stride, b->group_tables);
}

static void release(built *b) {
    free(b->tables);
    free(b->device);
    free(b->replicas);
    free(b->group_tables);
}

static lk_step_result take_step(built *b, uint64_t step) {
    const uint32_t replicas = b->group.replicas;
    lk_group_use(&b->group, lk_program_of_step(b->programs, step));
    for (uint32_t r = 0; r < replicas; r++) lk_step_compute(&b->group, r, step);
    for (uint32_t r = 0; r < replicas; r++) lk_step_update(&b->group, r, step);
    lk_step_result result = lk_step_finish(&b->group, step);
    assert_null(result.bad_tensor);
    return result;
}

static float *param_at(const built *b, uint32_t i) {
    const lk_program *p = b->programs;
    return (float *)(void *)(b->device + p->tensors[p->params[i].tensor].offset);
}

// --- the schedule --------------------------------------------------------------------------------

static void steps_belong_to_objectives(void **state) {
    static const lk_loss_type no_labels = {.build = NULL};
    static const lk_use of_nothing[] = {USE("x", TWICE, 0, 0)};
    const lk_objective objectives[] = {
        {.name = "a", .value_count = 3, .values = once},
        {.name = "b", .value_count = 1, .values = of_nothing, .loss = &no_labels},
        {.name = "c", .value_count = 3, .values = once, .loss = &no_labels}};
    const lk_schedule_entry schedule[] = {{0, 3}, {1, 2}, {2, 1}, {0, 1}, {1, 1}};
    const lk_graph graph = graph_of(3, objectives, LK_COUNT(schedule), schedule);
    const lk_run_spec spec = spec_of(&graph, 4);
    (void)state;
    uint64_t updates[3] = {0}, batches = 0, step = 0;
    for (uint32_t cycle = 0; cycle < 50; cycle++) {
        for (uint32_t e = 0; e < LK_COUNT(schedule); e++) {
            for (uint32_t k = 0; k < schedule[e].steps; k++, step++) {
                const uint32_t objective = schedule[e].objective;
                const lk_step_place at = lk_step_place_of(&spec.model, step);
                assert_int_equal(at.objective, objective);
                assert_int_equal(at.images, objective != 1);
                assert_int_equal(at.update, updates[objective]++);
                assert_int_equal(at.batch, batches);
                // 11 examples in batches of 4, 4 and 3; of one that reads none all are there.
                const uint32_t there = objective == 1 || batches % 3 != 2 ? 4 : 3;
                assert_int_equal(lk_step_examples(&spec, step), there);
                const lk_batch_start start = lk_batch_start_of(&spec, step);
                assert_int_equal(start.epoch, batches / 3);
                assert_int_equal(start.position, batches % 3 * 4);
                batches += objective != 1;
                if (objective != 1) {
                    assert_int_equal(lk_steps_of_batches(&spec.model, batches), step + 1);
                }
            }
        }
    }
    assert_int_equal(lk_steps_of_batches(&spec.model, 0), 0);
    assert_int_equal(lk_steps_of_batches(&spec.model, UINT64_MAX), UINT64_MAX);
    const lk_graph blind = graph_of(3, objectives, 1, &schedule[1]);
    const lk_run_spec nothing_read = spec_of(&blind, 4);
    assert_int_equal(lk_steps_of_batches(&nothing_read.model, 1), UINT64_MAX);
    const lk_run_spec chain = {.model = {.in_h = 1}};
    const lk_step_place at = lk_step_place_of(&chain.model, 17);
    assert_true(at.objective == 0 && at.images && at.update == 17 && at.batch == 17);
}

// --- gradients -----------------------------------------------------------------------------------

// One layer in double.
static void dense_in_double(const double *w, const double *bias, uint32_t in, uint32_t out,
                            bool relu, const double *x, double *y) {
    for (uint32_t n = 0; n < out; n++) {
        y[n] = bias[n];
        for (uint32_t k = 0; k < in; k++) y[n] += x[k] * w[k * out + n];
        if (relu && y[n] < 0.0) y[n] = 0.0;
    }
}

// The value of network `n`, whose first parameter is number `first[n]`.
static void apply_in_double(double *const *params, uint32_t n, double in[2][SIDE], double *out) {
    static const uint32_t first[] = {0, 2, 0, 4, 6};
    double hidden[SIDE], kernel[WIDE * WIDE];
    double *const *p = params + first[n];
    switch (n) {
    case BODY: dense_in_double(p[0], p[1], SIDE, WIDE, true, in[0], out); break;
    case TWICE:
        for (uint32_t i = 0; i < WIDE * WIDE; i++) {
            kernel[i] = p[0][folded ? i % WIDE * WIDE + i / WIDE : i];
        }
        dense_in_double(kernel, p[1], WIDE, WIDE, true, in[0], out);
        break;
    case SUM:
        for (uint32_t i = 0; i < WIDE; i++) out[i] = in[0][i] + in[1][i];
        break;
    case HEAD: dense_in_double(p[0], p[1], WIDE, CLASSES, false, in[0], out); break;
    default:
        dense_in_double(p[0], p[1], WIDE, 4, true, in[0], hidden);
        dense_in_double(p[2], p[3], 4, CLASSES, false, hidden, out);
    }
}

static double loss_of(const lk_objective *o, double *const *params, uint32_t example) {
    double values[8][SIDE], sum = 0.0;
    for (uint32_t v = 0; v < o->value_count; v++) {
        double in[2][SIDE] = {{0}};
        for (uint32_t i = 0; i < networks[o->values[v].network].input_count; i++) {
            const uint32_t from = o->values[v].inputs[i];
            for (uint32_t e = 0; e < SIDE; e++) {
                in[i][e] = from == LK_IMAGES ? images[example][e] / 255.0 : values[from][e];
            }
        }
        apply_in_double(params, o->values[v].network, in, values[v]);
    }
    const double *logits = values[o->output];
    for (uint32_t k = 0; k < CLASSES; k++) sum += exp(logits[k]);
    return log(sum) - logits[example % CLASSES];
}

static double mean_loss(const lk_objective *o, double *const *params) {
    double sum = 0.0;
    for (uint32_t m = 0; m < EXAMPLES; m++) sum += loss_of(o, params, m);
    return sum / EXAMPLES;
}

static void near(const char *what, uint64_t at, double wanted, double found, double within) {
    if (fabs(wanted - found) <= within * (1.0 + fabs(wanted))) return;
    fail_msg("%s[%llu]: wanted %.9g, found %.9g", what, (unsigned long long)at, wanted, found);
}

// One step of plain SGD with learning rate 1 leaves w - mean gradient. What is not trained stays.
static void check_gradients(const lk_objective *o, const lk_layout *layout,
                            const lk_kernels *kernels) {
    const double by = 1e-6;
    // The other objective makes use of the networks that the first leaves out.
    const lk_objective all[] = {*o, OBJECTIVE("rest", two_uses, TRAINS(HEAD), SGD(1.0f)),
                                OBJECTIVE("more", three_uses, TRAINS(OTHER), SGD(1.0f))};
    const lk_schedule_entry schedule[] = {{0, 1}, {1, 1}, {2, 1}};
    const lk_graph graph = graph_of(3, all, 3, schedule);
    const lk_run_spec spec = spec_of(&graph, EXAMPLES);
    double *params[16];
    built b;
    build(&spec, layout, kernels, (lk_plan_options){.overlay = true}, &b);
    const lk_program *p = b.programs;
    assert_int_equal(p->param_count, 10 - 2 + 2);
    for (uint32_t i = 0; i < p->param_count; i++) {
        params[i] = memory(p->params[i].count * sizeof **params);
        for (uint64_t e = 0; e < p->params[i].count; e++) {
            if (i % 2) param_at(&b, i)[e] = 0.0625f * (float)(e % 5);
            params[i][e] = (double)param_at(&b, i)[e];
        }
    }
    const lk_step_result result = take_step(&b, 0);
    near("loss", 0, mean_loss(o, params), (double)result.means[LK_METRIC_LOSS], 1e-5);
    for (uint32_t i = 0; i < p->param_count; i++) {
        const char *name = p->tensors[p->params[i].tensor].name;
        bool trained = false;
        for (uint32_t n = 0; n < LK_COUNT(networks); n++) {
            const size_t length = strlen(networks[n].name);
            if (strncmp(name, networks[n].name, length) == 0) trained = o->trains >> n & 1;
        }
        assert_int_equal(trained, p->params[i].gradient_op != LK_NONE);
        for (uint64_t e = 0; e < p->params[i].count; e++) {
            const double before = params[i][e];
            params[i][e] = before + by;
            double difference = mean_loss(o, params);
            params[i][e] = before - by;
            difference -= mean_loss(o, params);
            params[i][e] = before;
            near(name, e, trained ? difference / (2 * by) : 0.0,
                 before - (double)param_at(&b, i)[e], trained ? 2e-5 : 0.0);
        }
    }
    for (uint32_t i = 0; i < p->param_count; i++) free(params[i]);
    release(&b);
}

static void gradients_are_those_of_differences(void **state) {
    (void)state;
    const uint32_t all = TRAINS(BODY) | TRAINS(TWICE), deep = TRAINS(BODY);
    const lk_objective objectives[] = {
        OBJECTIVE("once", once, all | TRAINS(HEAD), SGD(1.0f)),
        OBJECTIVE("two", two_uses, all | TRAINS(HEAD), SGD(1.0f)),
        OBJECTIVE("three", three_uses, all | TRAINS(OTHER), SGD(1.0f)),
        OBJECTIVE("through", two_uses, deep, SGD(1.0f)),  // `twice` and `head` pass it on
        OBJECTIVE("middle", three_uses, TRAINS(TWICE), SGD(1.0f)),
        OBJECTIVE("last", three_uses, TRAINS(OTHER), SGD(1.0f))};
    for (uint32_t k = 0; k < LK_COUNT(objectives); k++) {
        for (uint32_t i = 0; i < 8; i++) {
            const lk_layout layout = {.replicas = i & 1 ? 3 : 1,
                                      .fuse = i & 2,
                                      .microbatch_examples = i & 4 ? 0 : GRAIN,
                                      .reduce = i & 4 ? LK_REDUCE_AUTO : LK_REDUCE_ALL_PARTIALS};
            for (int twice = 0; twice < 2; twice++) {
                folded = twice;
                check_gradients(&objectives[k], &layout, &lk_kernels_reference);
                check_gradients(&objectives[k], &layout, &lk_kernels_portable);
            }
            folded = false;
        }
    }
}

// What a network that is not trained would have had to compute is not there.
static void untrained_networks_have_no_gradient_ops(void **state) {
    (void)state;
    const lk_objective o[] = {OBJECTIVE("a", two_uses, TRAINS(BODY), SGD(1.0f)),
                              OBJECTIVE("b", three_uses, TRAINS(OTHER), SGD(1.0f))};
    const lk_schedule_entry schedule[] = {{0, 1}, {1, 1}};
    const lk_graph graph = graph_of(2, o, 2, schedule);
    const lk_run_spec spec = spec_of(&graph, 4);
    const lk_layout layout = {.replicas = 1, .fuse = true};
    built b;
    build(&spec, &layout, &lk_kernels_reference, (lk_plan_options){.overlay = true}, &b);
    uint32_t weight[2] = {0}, input[2] = {0};
    for (uint32_t k = 0; k < 2; k++) {
        const lk_program *p = &b.programs[k];
        for (uint32_t i = 0; i < p->op_count; i++) {
            weight[k] += p->ops[i].type == &lk_op_dense_weight_gradient;
            input[k] += p->ops[i].type == &lk_op_dense_input_gradient;
        }
    }
    assert_int_equal(weight[0], 1);  // body/a
    assert_int_equal(input[0], 3);   // head, and twice two times
    assert_int_equal(weight[1], 2);  // other/d, other/e
    assert_int_equal(input[1], 1);   // of other/e alone
    release(&b);
}

// All uses of a network are the same ops, whatever follows it: nothing is fused over its edge.
static void networks_are_fused_by_themselves(void **state) {
    (void)state;
    static const lk_network two[] = {{"a", 0, 2, 1, {{2, 3, 1, false}}},
                                     {"b", 2, 2, 1, {ROW(WIDE)}}};
    static const lk_layer list[] = {FLAT("a.flatten"), DENSE("a.dense", WIDE, false),
                                    RELU("b.relu"), DENSE("b.dense", CLASSES, false)};
    static const lk_use uses[] = {USE("x", 0, LK_IMAGES, 0), USE("logits", 1, 0, 0)};
    const lk_objective o[] = {OBJECTIVE("o", uses, 3, SGD(1.0f))};
    const lk_schedule_entry schedule[] = {{0, 1}};
    const lk_graph graph = {2, 1, 1, two, o, schedule, &lk_graph_linked};
    const lk_layout layout = {.replicas = 1, .fuse = true};
    lk_run_spec spec = spec_of(&graph, 8);
    built b;
    spec.model.layers = list;
    spec.model.layer_count = LK_COUNT(list);
    build(&spec, &layout, &lk_kernels_reference, (lk_plan_options){.overlay = true}, &b);
    assert_int_equal(b.programs[0].forward_end, 4);
    assert_ptr_equal(b.programs[0].ops[2].type, &lk_op_relu);
    release(&b);
}

// --- the tree's rule -----------------------------------------------------------------------------

// The sum of leaves [index << level, ...), where leaf g * 2^k + u is use u of grain g; false where
// it has none.
static bool tree_of(float *const *leaf, const bool *there, uint32_t level, uint32_t index,
                    uint64_t e, float *out) {
    if (level == 0) {
        *out = there[index] ? leaf[index][e] : 0.0f;
        return there[index];
    }
    float left, right;
    const bool a = tree_of(leaf, there, level - 1, index * 2, e, &left);
    const bool b = tree_of(leaf, there, level - 1, index * 2 + 1, e, &right);
    *out = a && b ? left + right : a ? left : right;
    return a || b;
}

static void check_tree(const lk_use *uses, uint32_t count, uint32_t wanted, uint32_t replicas,
                       uint32_t microbatch) {
    enum { GRAINS = (EXAMPLES + GRAIN - 1) / GRAIN, LEAVES = 32, KERNEL = WIDE * WIDE };
    const lk_objective o[] = {{.name = "o",
                               .value_count = count,
                               .values = uses,
                               .output = count - 1,
                               .trains = TRAINS(TWICE),
                               .optimizer = SGD(1.0f)},
                              OBJECTIVE("rest", two_uses, TRAINS(HEAD), SGD(1.0f)),
                              OBJECTIVE("more", three_uses, TRAINS(OTHER), SGD(1.0f))};
    const lk_schedule_entry schedule[] = {{0, 1}, {1, 1}, {2, 1}};
    const lk_graph graph = graph_of(3, o, 3, schedule);
    const lk_run_spec spec = spec_of(&graph, EXAMPLES);
    const lk_layout whole = {.replicas = 1, .fuse = true, .microbatch_examples = 64},
                    cut = {.replicas = replicas, .fuse = true, .microbatch_examples = microbatch};
    static float leaves[LEAVES][KERNEL];
    float *leaf[LEAVES], before[KERNEL];
    bool there[LEAVES] = {false};
    built b;
    // All uses' tensors of all grains, as one replica without overlay keeps them.
    build(&spec, &whole, &lk_kernels_reference, (lk_plan_options){.overlay = false}, &b);
    lk_step_compute(&b.group, 0, 0);
    const lk_op *op = &b.programs[0].ops[b.programs[0].params[2].gradient_op];
    assert_int_equal(lk_op_uses(op), wanted);
    const uint32_t wide = wanted == 1 ? 1 : wanted == 2 ? 2 : 4;
    for (uint32_t i = 0; i < LEAVES; i++) leaf[i] = leaves[i];
    for (uint32_t g = 0; g < GRAINS; g++) {
        for (uint32_t u = 0; u < wanted; u++) {
            const lk_grain_view view = lk_grain_view_at(&b.group.frames[0], op + u, g, EXAMPLES);
            lk_lane lane = {.grain_count = 1, .grain = GRAIN, .grains = &view};
            lane.sums[0] = leaf[g * wide + u];
            (void)lk_op_dense_weight_gradient.reference(&lane, op);
            there[g * wide + u] = true;
        }
    }
    release(&b);
    build(&spec, &cut, &lk_kernels_reference, (lk_plan_options){.overlay = true}, &b);
    memcpy(before, param_at(&b, 2), sizeof before);
    (void)take_step(&b, 0);
    for (uint64_t e = 0; e < KERNEL; e++) {
        float sum;
        assert_true(tree_of(leaf, there, 5, 0, e, &sum));
        const float g = (sum + 0.0f) * (1.0f / (float)EXAMPLES);
        const float w = fmaf(-1.0f, g, before[e]);
        assert_memory_equal(&w, &param_at(&b, 2)[e], sizeof w);
    }
    release(&b);
}

static void uses_are_leaves_of_the_tree(void **state) {
    (void)state;
    for (uint32_t replicas = 1; replicas <= REPLICAS_MAX; replicas++) {
        for (uint32_t microbatch = GRAIN; microbatch <= 8; microbatch *= 2) {
            check_tree(once, LK_COUNT(once), 1, replicas, microbatch);
            check_tree(two_uses, LK_COUNT(two_uses), 2, replicas, microbatch);
            check_tree(three_uses, LK_COUNT(three_uses), 3, replicas, microbatch);
        }
    }
}

// --- whole runs ----------------------------------------------------------------------------------

// Two objectives of which each trains what the other one uses, `body` and `twice` both.
static const lk_objective pair[] = {
    OBJECTIVE("first", two_uses, TRAINS(BODY) | TRAINS(TWICE) | TRAINS(HEAD), MOMENTUM(0.1f)),
    OBJECTIVE("second", three_uses, TRAINS(TWICE) | TRAINS(OTHER), MOMENTUM(0.05f))};
static const lk_schedule_entry pair_schedule[] = {{0, 2}, {1, 1}};

static void train(const lk_layout *layout, const lk_kernels *kernels, bool guards, uint32_t steps,
                  char hash[LK_SHA256_HEX_BYTES]) {
    const lk_graph graph = graph_of(2, pair, 2, pair_schedule);
    const lk_run_spec spec = spec_of(&graph, 8);
    built b;
    build(&spec, layout, kernels, (lk_plan_options){.overlay = !guards, .guards = guards}, &b);
    for (uint64_t step = 0; step < steps; step++) (void)take_step(&b, step);
    lk_state_hash(b.programs, b.device, steps, hash);
    release(&b);
}

static void layouts_change_no_bit(void **state) {
    (void)state;
    const lk_kernels *kernels[] = {&lk_kernels_reference, &lk_kernels_portable, NULL};
    char wanted[LK_SHA256_HEX_BYTES], found[LK_SHA256_HEX_BYTES];
    lk_error error;
    assert_int_equal(lk_kernels_choose("auto", &kernels[2], &error), LK_OK);
    train(&(lk_layout){.replicas = 1, .fuse = false, .reduce = LK_REDUCE_ALL_PARTIALS}, kernels[0],
          false, 13, wanted);
    for (uint32_t i = 0; i < 3 * 3 * 2 * 2 * 2 * 3; i++) {
        const lk_layout layout = {.replicas = 1 + i % 3,
                                  .microbatch_examples = i / 3 % 3 * GRAIN,
                                  .fuse = i / 9 % 2,
                                  .reduce = i / 18 % 2 ? LK_REDUCE_AUTO : LK_REDUCE_ALL_PARTIALS};
        train(&layout, kernels[i / 72], i / 36 % 2, 13, found);
        assert_string_equal(found, wanted);
    }
    train(&(lk_layout){.replicas = 1}, kernels[0], false, 12, found);
    assert_string_not_equal(found, wanted);
}

// --- memory --------------------------------------------------------------------------------------

static void programs_share_their_regions(void **state) {
    (void)state;
    const lk_graph graph = graph_of(2, pair, 2, pair_schedule);
    const lk_run_spec spec = spec_of(&graph, 8);
    const lk_layout layout = {.replicas = 2, .fuse = true};
    static const char *const slots[] = {"body.a/kernel/momentum", "twice.b/kernel/first.momentum",
                                        "twice.b/kernel/second.momentum", "head.c/bias/momentum",
                                        "other.e/bias/momentum"};
    built b;
    lk_program alone;
    lk_error error = {.status = LK_OK};
    uint32_t found = 0;
    build(&spec, &layout, &lk_kernels_reference, (lk_plan_options){.overlay = true}, &b);
    const lk_program *p = b.programs, *q = b.programs + 1;
    assert_int_equal(p->param_count, q->param_count);
    assert_int_equal(p->regions[LK_REGION_REPLICA].bytes, q->regions[LK_REGION_REPLICA].bytes);
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        const lk_tensor *t = &p->tensors[i], *other = &q->tensors[i];
        if (t->region != LK_REGION_DEVICE) continue;
        assert_string_equal(t->name, other->name);
        assert_int_equal(t->offset, other->offset);
        for (uint32_t k = 0; k < LK_COUNT(slots); k++) found += strcmp(t->name, slots[k]) == 0;
        for (uint32_t k = 0; k < i; k++) assert_string_not_equal(t->name, p->tensors[k].name);
    }
    assert_int_equal(found, LK_COUNT(slots));
    // The larger of the two, not their sum.
    lk_plan_options options = {.overlay = true};
    void *tables = memory(lk_programs_bytes(&spec.model));
    assert_int_equal(lk_program_build(&spec, &layout, &options, tables, &alone, &error), LK_OK);
    assert_true(alone.regions[LK_REGION_REPLICA].bytes <= p->regions[LK_REGION_REPLICA].bytes);
    assert_true(p->regions[LK_REGION_REPLICA].bytes < 2 * alone.regions[LK_REGION_REPLICA].bytes);
    free(tables);
    // Parameters, then the slots of the first, then those of the second.
    lk_state_walk walk = {0};
    uint32_t count = 0;
    while (lk_next_state(p, &walk) != LK_NONE) count++;
    assert_int_equal(count, 10 + 6 + 6);
    release(&b);
}

// One network and one objective in the full form are the short form, to the bit.
static void the_short_form_is_the_full_form(void **state) {
    (void)state;
    static const lk_network one[] = {{"body", 0, 3, 1, {{2, 3, 1, false}}}};
    static const lk_layer plain[] = {FLAT("flatten"), DENSE("a", WIDE, true),
                                     DENSE("c", CLASSES, false)};
    static const lk_use use[] = {USE("logits", 0, LK_IMAGES, 0)};
    const lk_objective o[] = {OBJECTIVE("o", use, TRAINS(0), MOMENTUM(0.1f))};
    const lk_schedule_entry schedule[] = {{0, 1}};
    const lk_graph graph = {1, 1, 1, one, o, schedule, &lk_graph_linked};
    const lk_layout layout = {.replicas = 2, .fuse = true};
    char hash[2][LK_SHA256_HEX_BYTES];
    for (uint32_t full = 0; full < 2; full++) {
        lk_run_spec spec = spec_of(full ? &graph : NULL, 8);
        built b;
        spec.model.layers = plain;
        spec.model.layer_count = LK_COUNT(plain);
        if (!full) spec.optimizer = o[0].optimizer;
        build(&spec, &layout, &lk_kernels_reference, (lk_plan_options){.overlay = true}, &b);
        for (uint64_t step = 0; step < 4; step++) (void)take_step(&b, step);
        lk_state_hash(b.programs, b.device, 4, hash[full]);
        release(&b);
    }
    assert_string_equal(hash[0], hash[1]);
}

static void the_target_of_a_loss_is_in_the_identity(void **state) {
    (void)state;
    uint8_t identity[3][LK_SHA256_BYTES];
    for (uint32_t i = 0; i < 3; i++) {
        lk_objective o[] = {OBJECTIVE("a", two_uses, TRAINS(HEAD), SGD(1.0f)), pair[1]};
        o[0].loss = &lk_loss_mean_squared_error;
        o[0].target = i == 2 ? LK_IMAGES : i;
        const lk_graph graph = graph_of(2, o, 2, pair_schedule);
        const lk_run_spec spec = spec_of(&graph, 8);
        lk_run_identity(&spec, identity[i]);
    }
    assert_memory_not_equal(identity[0], identity[1], LK_SHA256_BYTES);
    assert_memory_not_equal(identity[0], identity[2], LK_SHA256_BYTES);
}

// --- refusals ------------------------------------------------------------------------------------

static void refused(const lk_graph *graph, const char *words) {
    static lk_program programs[LK_OBJECTIVES_MAX];
    const lk_run_spec spec = spec_of(graph, 8);
    const lk_layout layout = {.replicas = 1, .fuse = true};
    const lk_plan_options options = {.overlay = true};
    lk_error error = {.status = LK_OK};
    void *tables = memory(lk_programs_bytes(&spec.model));
    assert_int_equal(lk_programs_build(&spec, &layout, &options, tables, programs, &error),
                     LK_BAD_CONFIG);
    if (!strstr(error.text, words)) fail_msg("wanted \"%s\" in \"%s\"", words, error.text);
    free(tables);
}

static void refused_objective(lk_objective changed, const char *words) {
    const lk_objective o[] = {changed, pair[1]};
    const lk_graph graph = graph_of(2, o, 2, pair_schedule);
    refused(&graph, words);
}

static void bad_graphs_are_refused(void **state) {
    (void)state;
    static const lk_use forward[] = {USE("x", BODY, LK_IMAGES, 0), USE("y", TWICE, 1, 0)};
    static const lk_use idle[] = {USE("x", BODY, LK_IMAGES, 0), USE("y", TWICE, 0, 0),
                                  USE("logits", HEAD, 0, 0)};
    static const lk_use shape[] = {USE("x", BODY, LK_IMAGES, 0), USE("y", HEAD, 0, 0),
                                   USE("logits", HEAD, 1, 0)};
    static const lk_use no_network[] = {USE("x", 9, LK_IMAGES, 0)};
    static const lk_use well[] = {USE("x", BODY, LK_IMAGES, 0), USE("logits", HEAD, 0, 0)};
    const uint32_t head = TRAINS(HEAD);
    lk_objective other = OBJECTIVE("a", well, head, SGD(1.0f));
    other.loss = &lk_loss_mean_squared_error;
    other.target = 7;
    refused_objective(other, "objective a: the second input of its loss is no value of it");
    other.target = 1;
    refused_objective(other, "both inputs are the same tensor");
    static const lk_use even[] = {{.name = "z",
                                   .network = LK_NONE,
                                   .noise = {.kind = LK_NOISE_UNIFORM, .low = 1.0f},
                                   .shape = {1, 1, WIDE, true}},
                                  USE("logits", HEAD, 0, 0)};
    refused_objective((lk_objective)OBJECTIVE("a", even, head, SGD(1.0f)),
                      "objective a: value z: its noise goes from low to a high below it");
    refused_objective((lk_objective)OBJECTIVE("a", forward, TRAINS(BODY), SGD(1.0f)),
                      "objective a: value y: its input 0 is no earlier value");
    refused_objective((lk_objective)OBJECTIVE("a", idle, head, SGD(1.0f)),
                      "objective a: value y is of no use to the loss; take it out");
    refused_objective((lk_objective)OBJECTIVE("a", shape, head, SGD(1.0f)),
                      "objective a: value logits: network head gets 1 x 1 x 3 (flat), but its "
                      "input is 1 x 1 x 5 (flat)");
    refused_objective((lk_objective)OBJECTIVE("a", no_network, head, SGD(1.0f)),
                      "objective a: value x: there is no network 9");
    refused_objective((lk_objective)OBJECTIVE("a", two_uses, TRAINS(OTHER), SGD(1.0f)),
                      "objective a: it trains network other, which none of its values uses");
    refused_objective((lk_objective)OBJECTIVE("a", two_uses, 0, SGD(1.0f)),
                      "objective a: it trains no network");
    refused_objective((lk_objective)OBJECTIVE("a", other_head, TRAINS(OTHER), SGD(1.0f)),
                      "network head: no objective uses it");
    refused_objective((lk_objective)OBJECTIVE("a", two_uses, head, SGD(-1.0f)),
                      "learning_rate: found a negative");
    lk_objective middle = OBJECTIVE("a", two_uses, head, SGD(1.0f));
    middle.output = 2;
    refused_objective(middle, "objective a: value z is the loss's and another value's");
    middle.output = 5;
    refused_objective(middle, "objective a: found 5 values, wanted 1 to 250, and one of them");
    const lk_schedule_entry none[] = {{0, 1}, {1, 0}}, one[] = {{0, 1}};
    lk_graph graph = graph_of(2, pair, 2, none);
    refused(&graph, "schedule: entry 1 has no objective or no steps");
    graph = graph_of(2, pair, 1, one);
    refused(&graph, "schedule: no entry is of objective second");
    graph = graph_of(2, pair, 0, one);
    refused(&graph, "model: found 0 entries of the schedule, wanted 1 to 64");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_belong_to_objectives),
        cmocka_unit_test(gradients_are_those_of_differences),
        cmocka_unit_test(untrained_networks_have_no_gradient_ops),
        cmocka_unit_test(networks_are_fused_by_themselves),
        cmocka_unit_test(uses_are_leaves_of_the_tree),
        cmocka_unit_test(layouts_change_no_bit),
        cmocka_unit_test(programs_share_their_regions),
        cmocka_unit_test(the_short_form_is_the_full_form),
        cmocka_unit_test(the_target_of_a_loss_is_in_the_identity),
        cmocka_unit_test(bad_graphs_are_refused),
    };
    return cmocka_run_group_tests(tests, make_images, NULL);
}
