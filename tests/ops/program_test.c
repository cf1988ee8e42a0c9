// program_test.c - what lk_program_build decides: shapes, refusals, fusion, memory, and the tree's
// bookkeeping, against brute force.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comm/step/reduce.h"
#include "comm/step/step.h"
#include "ops/variant.h"
#include "tests/ops/layers.h"

static uint64_t draws = 1;

static uint32_t draw(uint32_t below) {
    draws = draws * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((draws >> 33) % below);
}

#define CONV(n, filters, size, stride, pad, with_relu)                                         \
    {                                                                                          \
        .type = &lk_layer_conv2d, .name = n, .units = filters, .size_h = size, .size_w = size, \
        .stride_h = stride, .stride_w = stride, .dilation_h = 1, .dilation_w = 1, .groups = 1, \
        .padding = pad, .use_bias = true,                                                      \
        .activation = (with_relu) ? &lk_layer_relu : NULL,                                     \
        .initializer = &lk_initializer_glorot_uniform                                          \
    }
#define DENSE(n, count, with_relu)                                            \
    {                                                                         \
        .type = &lk_layer_dense, .name = n, .units = count, .use_bias = true, \
        .activation = (with_relu) ? &lk_layer_relu : NULL,                    \
        .initializer = &lk_initializer_glorot_uniform                         \
    }
#define VALID LK_PADDING_VALID
#define SAME  LK_PADDING_SAME

static lk_run_spec spec_of(uint32_t h, uint32_t w, uint32_t c, uint32_t classes, uint32_t count,
                           const lk_layer *layers) {
    return (lk_run_spec){.model = {.in_h = h, .in_w = w, .in_c = c,
                                   .classes = classes,
                                   .layer_count = count, .layers = layers},
                         .seed = 1,
                         .global_batch = 8,
                         .optimizer = {.type = &lk_optimizer_momentum,
                                       .learning_rate = 0.1f,
                                       .momentum = 0.9f},
                         .grain = 2,
                         .example_count = 100};
}

static const lk_layout one_replica = {.replicas = 1, .fuse = true};

// A program with its tables on the heap; free(tables).
static lk_status build(const lk_run_spec *spec, const lk_layout *layout, bool overlay,
                       lk_program *p, void **tables, lk_error *error) {
    const lk_plan_options options = {.overlay = overlay};
    *error = (lk_error){.status = LK_OK};
    *tables = aligned_alloc(64, lk_round_up(lk_program_bytes(&spec->model), 64));
    assert_non_null(*tables);
    return lk_program_build(spec, layout, &options, *tables, p, error);
}

#define ADD(n, a, b) {.type = &lk_layer_add, .name = n, .input_count = 2, .inputs = {a, b}}

// --- shapes and fusion -------------------------------------------------------------------------

static void expect_shape(const lk_program *p, const char *name, uint32_t rank,
                         const uint64_t *shape) {
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        const lk_tensor *t = &p->tensors[i];
        if (strcmp(t->name, name) != 0) continue;
        assert_int_equal(t->rank, rank);
        for (uint32_t d = 0; d < rank; d++) assert_int_equal(t->shape[d], shape[d]);
        return;
    }
    fail_msg("no tensor %s", name);
}

#define EXPECT_SHAPE(p, name, ...)                                                    \
    expect_shape(p, name, sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t), \
                 (const uint64_t[]){__VA_ARGS__})

static void shapes_are_inferred(void **state) {
    (void)state;
    const lk_layer layers[] = {CONV("a", 4, 3, 2, SAME, true),    // 9 x 12 x 2 -> 5 x 6 x 4
                               POOL("p", 3, 2, VALID),            // -> 2 x 2 x 4
                               CONV("b", 3, 2, 1, VALID, false),  // -> 1 x 1 x 3
                               FLATTEN,
                               DENSE("c", 7, true),
                               DENSE("d", 5, false)};
    const lk_run_spec spec = spec_of(9, 12, 2, 5, LK_COUNT(layers), layers);
    lk_program p;
    lk_error error;
    void *tables;
    assert_int_equal(build(&spec, &one_replica, true, &p, &tables, &error), LK_OK);
    EXPECT_SHAPE(&p, "input", 8, 9 * 12 * 2);
    EXPECT_SHAPE(&p, "a/kernel", 3, 3, 2, 4);
    EXPECT_SHAPE(&p, "a/bias", 4);
    EXPECT_SHAPE(&p, "a/kernel/momentum", 3, 3, 2, 4);
    EXPECT_SHAPE(&p, "a", 8, 5 * 6 * 4);
    EXPECT_SHAPE(&p, "p", 8, 2 * 2 * 4);
    EXPECT_SHAPE(&p, "p/argmax", 8, 2 * 2 * 4);
    EXPECT_SHAPE(&p, "b/kernel", 2, 2, 4, 3);
    EXPECT_SHAPE(&p, "c/kernel", 3, 7);
    EXPECT_SHAPE(&p, "d/kernel", 7, 5);
    EXPECT_SHAPE(&p, "d", 8, 5);
    EXPECT_SHAPE(&p, "d/gradient", 8, 5);
    EXPECT_SHAPE(&p, "loss", 8);
    assert_int_equal(p.param_floats, 3 * 3 * 2 * 4 + 4 + 2 * 2 * 4 * 3 + 3 + 3 * 7 + 7 + 7 * 5 + 5);
    assert_int_equal(p.ops[1].conv.pad_top, 1);   // (5 - 1) * 2 + 3 - 9 = 2, half of it before
    assert_int_equal(p.ops[1].conv.pad_left, 0);  // (6 - 1) * 2 + 3 - 12 = 1, half rounded down
    static const char *const names[] = {"a/kernel", "a/bias", "b/kernel", "b/bias",
                                        "c/kernel", "c/bias", "d/kernel", "d/bias"};
    assert_int_equal(p.param_count, LK_COUNT(names));
    for (uint32_t i = 0; i < p.param_count; i++) {
        assert_string_equal(p.tensors[p.params[i].tensor].name, names[i]);
        assert_ptr_equal(p.params[i].initializer,
                         i % 2 ? &lk_initializer_zeros : &lk_initializer_glorot_uniform);
    }
    assert_int_equal(p.params[0].fan_in, 3 * 3 * 2);
    assert_int_equal(p.params[0].fan_out, 3 * 3 * 4);
    assert_int_equal(p.params[4].fan_in, 3);
    assert_int_equal(p.params[4].fan_out, 7);
    free(tables);
}

// The forward ops of conv (h x w x 1 in, 3 x 3, valid), an optional relu and a pool.
static uint32_t forward_kinds_of(uint32_t h, uint32_t w, bool fuse, bool relu_layer, lk_layer pool,
                                 const lk_op_type *kinds[8]) {
    const lk_layer layers[] = {CONV("a", 2, 3, 1, VALID, !relu_layer), RELU("r"), pool, FLATTEN,
                               DENSE("d", 3, false)};
    lk_layer without[] = {layers[0], layers[2], layers[3], layers[4]};
    const lk_run_spec spec = spec_of(h, w, 1, 3, relu_layer ? 5 : 4, relu_layer ? layers : without);
    const lk_layout layout = {.replicas = 1, .fuse = fuse};
    lk_program p;
    lk_error error;
    void *tables;
    assert_int_equal(build(&spec, &layout, true, &p, &tables, &error), LK_OK);
    for (uint32_t i = 0; i < p.forward_end; i++) kinds[i] = p.ops[i].type;
    uint32_t count = p.forward_end;
    free(tables);
    return count;
}

static uint32_t forward_kinds(bool fuse, bool relu_layer, lk_layer pool,
                              const lk_op_type *kinds[8]) {
    return forward_kinds_of(7, 8, fuse, relu_layer, pool, kinds);
}

static void fusion_follows_geometry(void **state) {
    (void)state;
    const lk_op_type *kinds[8];
    for (int relu_layer = 0; relu_layer < 2; relu_layer++) {
        // load, conv2d + pool, dense
        assert_int_equal(forward_kinds(true, relu_layer, (lk_layer)POOL("p", 2, 2, VALID), kinds),
                         3);
        assert_ptr_equal(kinds[1], &lk_op_conv2d_pool);
        // 5 rows pooled "same" are 3: the fused kernel drops the last, so it does not fit.
        assert_int_equal(forward_kinds(true, relu_layer, (lk_layer)POOL("p", 2, 2, SAME), kinds),
                         4);
        assert_ptr_equal(kinds[1], &lk_op_conv2d);
        assert_ptr_equal(kinds[2], &lk_op_max_pool2d);
        // Either side alone decides: 5 x 6, 6 x 5 and 5 x 5 do not fit, 6 x 6 does.
        for (uint32_t h = 7; h <= 8; h++) {
            for (uint32_t w = 7; w <= 8; w++) {
                lk_layer same = POOL("p", 2, 2, SAME);
                assert_int_equal(forward_kinds_of(h, w, true, relu_layer, same, kinds),
                                 h == 8 && w == 8 ? 3 : 4);
            }
        }
        assert_int_equal(forward_kinds(true, relu_layer, (lk_layer)POOL("p", 2, 1, VALID), kinds),
                         4);
        assert_int_equal(forward_kinds(true, relu_layer, (lk_layer)POOL("p", 3, 2, VALID), kinds),
                         4);
        // One op a layer: load, conv2d, relu, pool, dense.
        assert_int_equal(forward_kinds(false, relu_layer, (lk_layer)POOL("p", 2, 2, VALID), kinds),
                         5);
        assert_ptr_equal(kinds[2], &lk_op_relu);
    }
}

// conv ("a", if there is one), conv "b" of 3 x 3, relu, pool, dense in the fast arithmetic: the
// type of b, and whether it is strict, fused or not; how its output, and the dense layer's x, are
// stored.
typedef struct pooled {
    const lk_op_type *type;
    bool strict, narrow;
    lk_dtype dtype;
} pooled;

static pooled pooled_conv(lk_fast_precision precision, uint32_t h, uint32_t first,
                          uint32_t channels, uint32_t filters, bool fuse) {
    const lk_layer all[] = {CONV("a", channels, 1, 1, SAME, true),
                            CONV("b", filters, 3, 1, SAME, true), POOL("p", 2, 2, VALID), FLATTEN,
                            DENSE("d", 3, false)};
    lk_run_spec spec =
        spec_of(h, h + 1, first ? channels : 1, 3, LK_COUNT(all) - first, all + first);
    const lk_layout layout = {.replicas = 1, .fuse = fuse, .device = true};
    const uint32_t b = fuse || first ? 2 - first : 3;  // "a" has a ReLU of its own
    pooled found;
    lk_program p;
    lk_error error;
    void *tables;
    spec.model.fast_precision = precision;
    spec.model.loss_scale = LK_LOSS_SCALE_DEFAULT;
    assert_int_equal(build(&spec, &layout, true, &p, &tables, &error), LK_OK);
    found = (pooled){p.ops[b].type, p.ops[b].strict, p.ops[b].narrow,
                     p.tensors[p.ops[b].tensor[LK_Y]].dtype};
    for (uint32_t i = 0; i < p.op_count; i++) {
        const lk_op *op = &p.ops[i];
        if (op->layer != LK_COUNT(all) - 1 - first) continue;
        assert_int_equal(op->narrow, found.narrow);  // also of the gradients
        if (op->tensor[LK_MASK] != LK_NONE && found.narrow) {
            assert_int_equal(op->tensor[LK_MASK], p.ops[b].tensor[LK_Y]);
        }
    }
    free(tables);
    return found;
}

// Few channels stay with the strict kernels, many go to cuBLAS: both sides of where the estimates
// cross, fused or not.
static void few_channels_pool_strictly(void **state) {
    (void)state;
    static const struct {
        lk_fast_precision precision;
        uint32_t first, channels, filters;
        bool strict;
    } rows[] = {
        {LK_FAST_BF16, 1, 1, 32, true},     {LK_FAST_BF16, 0, 96, 96, true},
        {LK_FAST_BF16, 0, 112, 112, false}, {LK_FAST_TF32, 0, 144, 144, true},
        {LK_FAST_TF32, 0, 160, 160, false}, {LK_FAST_BF16, 1, 64, 176, true},
        {LK_FAST_BF16, 1, 64, 192, false},  {LK_FAST_FP16, 0, 96, 96, true},
        {LK_FAST_FP16, 0, 112, 112, false},
    };
    for (uint32_t i = 0; i < LK_COUNT(rows); i++) {
        for (int fuse = 0; fuse < 2; fuse++) {
            const pooled b = pooled_conv(rows[i].precision, 4, rows[i].first, rows[i].channels,
                                         rows[i].filters, fuse);
            assert_int_equal(b.strict, rows[i].strict);
            assert_ptr_equal(b.type, fuse && b.strict ? &lk_op_conv2d_pool : &lk_op_conv2d);
            const bool narrow = fuse && b.strict && rows[i].precision != LK_FAST_TF32;
            assert_int_equal(b.narrow, narrow);
            const bool fp16 = rows[i].precision == LK_FAST_FP16;
            assert_int_equal(b.dtype, !narrow ? LK_F32 : fp16 ? LK_F16 : LK_BF16);
        }
    }
    // Strict arithmetic asks nobody. 2 x 2 x 5 values are no whole lines of 16 bytes.
    assert_ptr_equal(pooled_conv(LK_STRICT, 4, 0, 160, 160, true).type, &lk_op_conv2d_pool);
    assert_false(pooled_conv(LK_FAST_BF16, 5, 0, 4, 5, true).narrow);
    assert_int_equal(pooled_conv(LK_FAST_BF16, 5, 0, 4, 5, true).dtype, LK_F32);
    assert_true(pooled_conv(LK_FAST_BF16, 5, 0, 4, 8, true).narrow);
}

// Of 5 x 5 cells a pool with a stride of 3 one way has as many windows as the fused one, others.
static void strides_of_a_fused_pool_are_two(void **state) {
    (void)state;
    for (int way = 0; way < 2; way++) {
        lk_layer layers[] = {CONV("a", 2, 3, 1, VALID, true), POOL("p", 2, 2, VALID), FLATTEN,
                             DENSE("d", 3, false)};
        *(way ? &layers[1].stride_h : &layers[1].stride_w) = 3;
        const lk_run_spec spec = spec_of(7, 7, 1, 3, LK_COUNT(layers), layers);
        lk_program p;
        lk_error error;
        void *tables;
        assert_int_equal(build(&spec, &one_replica, true, &p, &tables, &error), LK_OK);
        assert_ptr_equal(p.ops[1].type, &lk_op_conv2d);
        assert_ptr_equal(p.ops[2].type, &lk_op_max_pool2d);
        free(tables);
    }
}

// A ReLU that an op took in masks the gradient of the next; the loss takes what the last op took
// in.
static void masks_and_outputs_follow_fusion(void **state) {
    (void)state;
    for (int relu = 0; relu < 2; relu++) {
        const lk_layer layers[] = {FLATTEN, DENSE("a", 4, relu), DENSE("b", 3, relu)};
        const lk_run_spec spec = spec_of(2, 2, 1, 3, LK_COUNT(layers), layers);
        lk_program p;
        lk_error error;
        void *tables;
        assert_int_equal(build(&spec, &one_replica, true, &p, &tables, &error), LK_OK);
        assert_int_equal(p.forward_end, 3);  // load, a, b
        assert_int_equal(p.logits, p.ops[2].tensor[LK_Y]);
        assert_int_equal(p.ops[3].tensor[LK_X], p.logits);
        uint32_t found = 0;
        for (uint32_t i = p.forward_end; i < p.op_count; i++) {
            if (p.ops[i].type != &lk_op_dense_input_gradient) continue;
            assert_int_equal(p.ops[i].tensor[LK_MASK], relu ? p.ops[1].tensor[LK_Y] : LK_NONE);
            found++;
        }
        assert_int_equal(found, 1);
        free(tables);
    }
}

// What a loss compares with is used by the loss: no ReLU that another layer applies is taken in,
// and its gradient has a term of each of the two.
static void targets_are_used(void **state) {
    (void)state;
    const lk_layer layers[] = {FLATTEN, DENSE("a", 4, false), RELU("r"), DENSE("b", 4, false)};
    lk_run_spec spec = spec_of(2, 2, 1, 3, LK_COUNT(layers), layers);
    lk_program p;
    lk_error error;
    void *tables;
    spec.model.loss = &lk_loss_mean_squared_error;
    spec.model.loss_options = (lk_loss_options){.input_count = 2, .inputs = {4, 2}};
    assert_int_equal(build(&spec, &one_replica, true, &p, &tables, &error), LK_OK);
    assert_int_equal(p.forward_end, 4);  // load, a, r, b
    assert_ptr_equal(p.ops[2].type, &lk_op_relu);
    assert_false(p.ops[1].dense.relu);
    assert_int_equal(p.ops[1].users, 2);
    assert_int_equal(p.ops[4].tensor[LK_X], p.ops[3].tensor[LK_Y]);
    assert_int_equal(p.ops[4].tensor[LK_X2], p.ops[1].tensor[LK_Y]);
    free(tables);
}

static uint64_t scratch_of(const lk_program *p, const lk_op *op) {
    const lk_tensor *t = &p->tensors[op->tensor[LK_SCRATCH]];
    return t->bytes / sizeof(float);
}

// How many ops of a model of two dense layers replicas compute together. Each has scratch for the
// examples that it may compute.
static uint32_t divided_ops(uint32_t units, uint32_t replicas, uint32_t batch,
                            lk_precision precision) {
    const lk_layer layers[] = {FLATTEN, DENSE("a", units, true), DENSE("b", 1024, true),
                               DENSE("c", 3, false)};
    lk_run_spec spec = spec_of(2, 2, 1, 3, LK_COUNT(layers), layers);
    const lk_layout layout = {.replicas = replicas, .fuse = true};
    lk_program p;
    lk_error error;
    void *tables;
    uint32_t count = 0;
    spec.global_batch = batch;
    spec.model.precision = precision;
    assert_int_equal(build(&spec, &layout, true, &p, &tables, &error), LK_OK);
    for (uint32_t i = 0; i < p.reduce_op; i++) {
        const lk_op *op = &p.ops[i];
        count += op->divided;
        if (!op->divided) continue;
        assert_int_equal(op->layer, 2);
        assert_int_equal(scratch_of(&p, op),
                         op->type->divided_floats(op, batch / replicas, replicas));
        assert_true(scratch_of(&p, op) >= op->type->scratch_floats(op, batch / replicas));
    }
    free(tables);
    return count;
}

static void many_weights_are_divided(void **state) {
    (void)state;
    const lk_precision f32 = LK_FLOAT32;
    assert_int_equal(divided_ops(2048, 2, 8, f32), 2);  // forward, and the input's gradient
    assert_int_equal(divided_ops(2047, 2, 8, f32), 0);  // they fit a core's own cache
    assert_int_equal(divided_ops(2048, 1, 8, f32), 0);  // with whom?
    assert_int_equal(divided_ops(2048, 4, 64, f32), 2);
    assert_int_equal(divided_ops(2048, 4, 72, f32), 0);  // 18 a replica are work enough
    assert_int_equal(divided_ops(2048, 2, 8, LK_MIXED_BFLOAT16), 0);
}

// --- refusals ------------------------------------------------------------------------------------

static void refused(const lk_run_spec *spec, const lk_layout *layout, lk_status status,
                    const char *words) {
    lk_program p;
    lk_error error;
    void *tables;
    assert_int_equal(build(spec, layout, true, &p, &tables, &error), status);
    if (!strstr(error.text, words)) fail_msg("wanted \"%s\" in \"%s\"", words, error.text);
    free(tables);
}

static void refused_model(uint32_t h, uint32_t w, uint32_t c, uint32_t classes, uint32_t count,
                          const lk_layer *layers, const char *words) {
    const lk_run_spec spec = spec_of(h, w, c, classes, count, layers);
    refused(&spec, &one_replica, LK_BAD_CONFIG, words);
}

#define REFUSED(words, h, w, c, classes, ...)                                                   \
    refused_model(h, w, c, classes, sizeof((const lk_layer[]){__VA_ARGS__}) / sizeof(lk_layer), \
                  (const lk_layer[]){__VA_ARGS__}, words)

static void bad_models_are_refused(void **state) {
    (void)state;
    REFUSED("layer a: wants images (height, width, channels) but its input is flat (16)", 4, 4, 1,
            2, FLATTEN, CONV("a", 2, 2, 1, VALID, false), DENSE("d", 2, false));
    REFUSED("layer p: wants images", 4, 4, 1, 2, FLATTEN, POOL("p", 2, 2, VALID),
            DENSE("d", 2, false));
    REFUSED("layer a: a window size or stride is 0", 4, 4, 1, 2, CONV("a", 2, 0, 1, VALID, false));
    REFUSED("layer a: a window size or stride is 0", 4, 4, 1, 2, CONV("a", 2, 2, 0, VALID, false));
    REFUSED("layer p: a window size or stride is 0", 4, 4, 1, 2, POOL("p", 2, 0, VALID));
    for (int way = 0; way < 4; way++) {  // each of the four alone
        lk_layer pool = POOL("p", 2, 2, VALID);
        *(uint32_t *const[]){&pool.size_h, &pool.size_w, &pool.stride_h, &pool.stride_w}[way] = 0;
        REFUSED("layer p: a window size or stride is 0", 4, 4, 1, 2, pool);
    }
    REFUSED("layer a: its window of 5 x 5 is larger than its input of 4 x 6", 4, 6, 1, 2,
            CONV("a", 2, 5, 1, VALID, false));
    REFUSED("layer p: its window of 7 x 7 is larger", 9, 6, 1, 2, POOL("p", 7, 1, VALID));
    REFUSED("layer a: filters is 0", 4, 4, 1, 2, CONV("a", 0, 2, 1, VALID, false));
    REFUSED("layer p: a pool of 300 x 300, wanted at most 65,536 cells", 400, 400, 1, 2,
            POOL("p", 300, 1, VALID));
    REFUSED("layer p: a pool of 1 x 65537, wanted at most 65,536 cells", 1, 65537, 1, 2,
            {.type = &lk_layer_max_pool2d,
             .name = "p",
             .size_h = 1,
             .size_w = 65537,
             .stride_h = 1,
             .stride_w = 1,
             .padding = VALID});
    REFUSED("layer d: dense wants a flat input but gets images of 4 x 5 x 1", 4, 5, 1, 2,
            DENSE("d", 2, false));
    REFUSED("layer d: units is 0", 4, 4, 1, 2, FLATTEN, DENSE("d", 0, false));
    REFUSED("layer a: an output of 30000 x 30000 x 4 is more than 2^31 values", 30000, 30000, 1, 2,
            CONV("a", 4, 1, 1, SAME, false));
    REFUSED("layer input: an output of 65535 x 65535 x 16", 65535, 65535, 16, 2, FLATTEN);
    REFUSED("model.input: a dimension is 0", 4, 0, 1, 2, FLATTEN, DENSE("d", 2, false));
    REFUSED("the last layer's output is 1 x 1 x 3, wanted 2 logits", 4, 4, 1, 2, FLATTEN,
            DENSE("d", 3, false));
    REFUSED("the last layer's output is 1 x 1 x 2, wanted 2 logits", 1, 1, 1, 2,
            CONV("a", 2, 1, 1, VALID, false));
    REFUSED("at least 2", 4, 4, 1, 1, FLATTEN, DENSE("d", 1, false));
    REFUSED("no layer has parameters to train", 1, 2, 1, 2, FLATTEN, RELU("r"));
    REFUSED("do not fit in 63 bits", 30000, 30000, 1, 2, FLATTEN, DENSE("d", UINT32_MAX / 2, false),
            DENSE("e", UINT32_MAX / 2, false), DENSE("f", 2, false));
}

static void bad_graphs_are_refused(void **state) {
    (void)state;
    const lk_layer shapes[] = {CONV("a", 2, 3, 1, VALID, false), CONV("b", 3, 3, 1, SAME, false),
                               ADD("sum", 1, 2), FLATTEN, DENSE("d", 3, false)};
    refused_model(5, 5, 1, 3, LK_COUNT(shapes), shapes, "layer sum: its inputs are 3 x 3 x 2 and");
    const lk_layer flat[] = {FLATTEN, DENSE("a", 1, false), ADD("sum", 2, 0), DENSE("d", 3, false)};
    refused_model(1, 1, 1, 3, LK_COUNT(flat), flat, "1 x 1 x 1 (flat) and 1 x 1 x 1, wanted two");
    const lk_layer alone[] = {FLATTEN, DENSE("a", 3, false), {.type = &lk_layer_add, .name =
                              "sum"}};
    refused_model(3, 3, 1, 3, LK_COUNT(alone), alone, "layer sum: found 1 inputs, wanted 2");
    const lk_layer few[] = {{.type = &lk_layer_reshape,
                             .name = "r",
                             .target_shape = {3, {1, 2, 4}}},
                            FLATTEN, DENSE("d", 3, false)};
    refused_model(3, 3, 1, 3, LK_COUNT(few), few,
                  "layer r: its target_shape has 8 values, wanted the 9 of its input, 3 x 3 x 1");
    const lk_layer beside[] = {FLATTEN, DENSE("a", 1, false),
                               {.type = &lk_layer_concatenate, .name = "c", .input_count = 2,
                                .inputs = {2, 0}},
                               DENSE("d", 3, false)};
    refused_model(1, 1, 1, 3, LK_COUNT(beside), beside,
                  "layer c: its inputs are 1 x 1 x 1 (flat) and 1 x 1 x 1, wanted two images");
    const lk_layer unused[] = {FLATTEN, DENSE("a", 3, false), DENSE("b", 3, false),
                               ADD("sum", 2, 2)};
    refused_model(3, 3, 1, 3, LK_COUNT(unused), unused, "layer b: no other layer takes its output");
}

// The gradients of several users are added in descending order of the program: of op 1's output,
// that of the last user first.
static void gradients_of_users_add_backwards(void **state) {
    (void)state;
    const lk_layer layers[] = {CONV("stem", 2, 3, 1, SAME, false), CONV("a", 2, 3, 1, SAME, false),
                               ADD("sum", 2, 1), POOL("side", 3, 1, SAME), ADD("both", 4, 3),
                               FLATTEN, DENSE("d", 3, false)};
    static const lk_op_type *const wanted[] = {
        &lk_op_dense_weight_gradient, &lk_op_dense_bias_gradient, &lk_op_dense_input_gradient,
        &lk_op_add_backward,         // of "both": sum's gradient, its copy
        &lk_op_max_pool2d_backward,  // of "side": a share of sum's
        &lk_op_add_gradient,
        &lk_op_add_backward,  // of "sum": stem's gradient
        &lk_op_conv2d_weight_gradient, &lk_op_conv2d_input_gradient,  // of "a": a share of stem's
        &lk_op_add_gradient, &lk_op_conv2d_weight_gradient};
    const lk_run_spec spec = spec_of(5, 5, 1, 3, LK_COUNT(layers), layers);
    lk_error error;
    lk_program p;
    void *tables;
    assert_int_equal(build(&spec, &one_replica, true, &p, &tables, &error), LK_OK);
    const uint32_t begin = p.forward_end + 2;
    for (uint32_t i = 0; i < LK_COUNT(wanted); i++) {
        assert_string_equal(p.ops[begin + i].type->name, wanted[i]->name);
    }
    assert_int_equal(p.reduce_op, begin + LK_COUNT(wanted));
    free(tables);
}

// Norms and sums apply the ReLU behind them. The only user of their output applies its mask to the
// gradient; where there are several, the gradient goes through it when all have added theirs.
static void norms_and_sums_apply_relu(void **state) {
    (void)state;
    const lk_layer layers[] = {NORM("n"), RELU("nr"), CONV("a", 2, 3, 1, SAME, false),
                               ADD("sum", 3, 2), RELU("sr"), CONV("b", 2, 3, 1, SAME, false),
                               ADD("both", 6, 5), RELU("br"), FLATTEN, DENSE("d", 3, false)};
    static const lk_op_type *const wanted[] = {
        &lk_op_dense_weight_gradient, &lk_op_dense_bias_gradient, &lk_op_dense_input_gradient,
        &lk_op_add_backward, &lk_op_conv2d_weight_gradient, &lk_op_conv2d_input_gradient,
        &lk_op_add_gradient, &lk_op_relu_backward,  // of "sum"
        &lk_op_add_backward, &lk_op_conv2d_weight_gradient, &lk_op_conv2d_input_gradient,
        &lk_op_add_gradient, &lk_op_relu_backward,  // of "n"
        &lk_op_batch_normalization_backward, &lk_op_batch_normalization_gradient};
    const lk_run_spec spec = spec_of(4, 4, 2, 3, LK_COUNT(layers), layers);
    lk_error error;
    lk_program p;
    void *tables;
    assert_int_equal(build(&spec, &one_replica, true, &p, &tables, &error), LK_OK);
    assert_ptr_equal(p.ops[1].type, &lk_op_batch_normalization);
    assert_true(p.ops[1].norm.relu);
    assert_ptr_equal(p.ops[3].type, &lk_op_add);
    assert_true(p.ops[3].sum_relu);
    assert_ptr_equal(p.ops[5].type, &lk_op_add);
    assert_true(p.ops[5].sum_relu);
    uint32_t begin = p.forward_end;
    while (p.ops[begin].type != wanted[0]) begin++;
    for (uint32_t i = 0; i < LK_COUNT(wanted); i++) {
        assert_string_equal(p.ops[begin + i].type->name, wanted[i]->name);
    }
    assert_int_equal(p.ops[begin + 2].tensor[LK_MASK], p.ops[5].tensor[LK_Y]);
    assert_int_equal(p.ops[begin + 5].tensor[LK_MASK], LK_NONE);
    assert_int_equal(p.ops[begin + 7].tensor[LK_Y], p.ops[3].tensor[LK_Y]);
    assert_int_equal(p.ops[begin + 12].tensor[LK_Y], p.ops[1].tensor[LK_Y]);
    free(tables);
}

static const lk_param *param_named(const lk_program *p, const char *name) {
    for (uint32_t i = 0; i < p->param_count; i++) {
        if (strcmp(p->tensors[p->params[i].tensor].name, name) == 0) return &p->params[i];
    }
    fail_msg("no parameter %s", name);
    return NULL;
}

// Gradients pass through a layer that is frozen; it has none itself, and no slots. Before the first
// layer that is trained there are none.
static void frozen_layers_have_no_gradients(void **state) {
    (void)state;
    lk_layer layers[] = {FLATTEN, DENSE("a", 6, true), DENSE("b", 5, true), DENSE("c", 4, false),
                         DENSE("d", 3, false)};
    static const lk_op_type *const wanted[] = {
        &lk_op_dense_weight_gradient, &lk_op_dense_bias_gradient,  // of d
        &lk_op_dense_input_gradient,                               // of d, and, with b's mask, of c
        &lk_op_dense_input_gradient,
        &lk_op_dense_weight_gradient, &lk_op_dense_bias_gradient};  // of b; nothing of a
    const lk_run_spec spec = spec_of(2, 2, 1, 3, LK_COUNT(layers), layers);
    lk_error error;
    lk_program p;
    void *tables;
    layers[1].frozen = layers[3].frozen = true;
    assert_int_equal(build(&spec, &one_replica, true, &p, &tables, &error), LK_OK);
    const uint32_t begin = p.forward_end + 2;
    assert_int_equal(p.reduce_op, begin + LK_COUNT(wanted));
    for (uint32_t i = 0; i < LK_COUNT(wanted); i++) {
        assert_ptr_equal(p.ops[begin + i].type, wanted[i]);
    }
    assert_int_equal(param_named(&p, "a/kernel")->gradient_op, LK_NONE);
    assert_int_equal(param_named(&p, "c/bias")->gradient_op, LK_NONE);
    assert_int_equal(param_named(&p, "b/kernel")->gradient_op, begin + 4);
    for (uint32_t i = 0; i < p.tensor_count; i++) {
        const char *name = p.tensors[i].name;
        assert_string_not_equal(name, "a/kernel/momentum");
        assert_string_not_equal(name, "c/bias/momentum");
    }
    lk_state_walk walk = {0};
    uint32_t found = 0;
    while (lk_next_state(&p, &walk) != LK_NONE) found++;
    assert_int_equal(found, 8 + 4);
    free(tables);
    for (uint32_t i = 1; i < LK_COUNT(layers); i++) layers[i].frozen = true;
    refused(&spec, &one_replica, LK_BAD_CONFIG, "found no layer that a step changes");
}

// Parameters, states, what is kept of grains; what adds up for the states comes before all
// gradients; of a frozen layer there is neither, and no row for grains.
static void batch_normalization_has_states(void **state) {
    (void)state;
    lk_layer layers[] = {NORM("n"), FLATTEN, DENSE("a", 6, false), NORM("m"), DENSE("d", 3, false)};
    static const lk_op_type *const wanted[] = {
        &lk_op_batch_normalization_statistics, &lk_op_batch_normalization_statistics,
        &lk_op_dense_weight_gradient, &lk_op_dense_bias_gradient, &lk_op_dense_input_gradient,
        &lk_op_batch_normalization_backward, &lk_op_batch_normalization_gradient,
        &lk_op_dense_weight_gradient, &lk_op_dense_bias_gradient, &lk_op_dense_input_gradient,
        &lk_op_batch_normalization_backward, &lk_op_batch_normalization_gradient};
    static const char *const names[] = {"n/moving_mean", "n/moving_variance", "m/moving_mean",
                                        "m/moving_variance"};
    lk_run_spec spec = spec_of(2, 2, 2, 3, LK_COUNT(layers), layers);
    lk_error error;
    lk_program p;
    void *tables;
    assert_int_equal(build(&spec, &one_replica, true, &p, &tables, &error), LK_OK);
    const uint32_t begin = p.forward_end + 2;
    assert_int_equal(p.reduce_op, begin + LK_COUNT(wanted));
    for (uint32_t i = 0; i < LK_COUNT(wanted); i++) {
        assert_string_equal(p.ops[begin + i].type->name, wanted[i]->name);
    }
    assert_int_equal(p.ops[p.reduce_op - 2].tensor[LK_DX], LK_NONE);  // of the input nobody asks
    assert_int_equal(p.state_count, LK_COUNT(names));
    for (uint32_t i = 0; i < p.state_count; i++) {
        const lk_param *entry = &p.params[p.param_count + i];
        assert_string_equal(p.tensors[entry->tensor].name, names[i]);
        assert_true(lk_state_evaluated(&p, p.param_count + i));
        assert_int_equal(entry->gradient_op, begin + i / 2);
        assert_true(entry->node_offset + entry->count <= p.node_floats);
    }
    EXPECT_SHAPE(&p, "n/gamma", 2);
    EXPECT_SHAPE(&p, "n/beta", 2);
    EXPECT_SHAPE(&p, "n/grains", 4, LK_NORM_COLUMNS * 2);
    EXPECT_SHAPE(&p, "m/grains", 4, LK_NORM_COLUMNS * 6);
    free(tables);
    layers[0].frozen = true;
    assert_int_equal(build(&spec, &one_replica, true, &p, &tables, &error), LK_OK);
    assert_int_equal(p.state_count, LK_COUNT(names));
    assert_int_equal(p.params[p.param_count].gradient_op, LK_NONE);
    assert_int_equal(p.params[p.param_count + 2].gradient_op, begin);
    for (uint32_t i = 0; i < p.tensor_count; i++) {
        assert_string_not_equal(p.tensors[i].name, "n/grains");
    }
    free(tables);
    spec.grain = 1;
    refused(&spec, &one_replica, LK_BAD_CONFIG,
            "layer m: batch_normalization: a grain of 1 example of 1 x 1 x 6");
}

// A kernel that is normalized: one state, of its columns; of each replica, for good, what products
// take, and v, n, numbers and scratch. Updates are of two halves. Its bias, and other layers, have
// none of it.
static void spectral_normalization_has_a_vector(void **state) {
    (void)state;
    lk_layer layers[] = {CONV("a", 5, 2, 1, VALID, true), FLATTEN, DENSE("d", 3, false)};
    lk_run_spec spec = spec_of(3, 3, 2, 3, LK_COUNT(layers), layers);
    lk_error error;
    lk_program p;
    void *tables;
    assert_int_equal(build(&spec, &one_replica, true, &p, &tables, &error), LK_OK);
    const uint64_t bytes = p.regions[LK_REGION_DEVICE].bytes;
    assert_int_equal(lk_program_norm(&p), LK_NORM_NONE);
    assert_int_equal(p.gradient, LK_NONE);
    free(tables);
    layers[0].spectral = true;
    assert_int_equal(build(&spec, &one_replica, true, &p, &tables, &error), LK_OK);
    EXPECT_SHAPE(&p, "a/vector_u", 5);
    EXPECT_SHAPE(&p, "a/kernel/normalized", 2, 2, 2, 5);
    assert_int_equal(p.state_count, 1);
    assert_int_equal(p.params[p.param_count].gradient_op, LK_NONE);
    assert_true(lk_state_evaluated(&p, p.param_count));
    const lk_param *kernel = param_named(&p, "a/kernel");
    for (uint32_t i = 0; i < 2; i++) {
        const lk_tensor *t = &p.tensors[kernel->rounded + i];
        assert_int_equal(t->region, LK_REGION_REPLICA);
        assert_int_equal(t->last, LK_FOREVER);
    }
    assert_true(p.tensors[kernel->rounded + 1].shape[0] >= 16 * 3);
    assert_int_equal(param_named(&p, "a/bias")->rounded, LK_NONE);
    assert_int_equal(param_named(&p, "d/kernel")->rounded, LK_NONE);
    assert_int_equal(lk_program_norm(&p), LK_NORM_SPECTRAL);
    assert_int_not_equal(p.gradient, LK_NONE);
    assert_true(p.regions[LK_REGION_DEVICE].bytes > bytes);
    free(tables);
    layers[0].frozen = true;
    assert_int_equal(build(&spec, &one_replica, true, &p, &tables, &error), LK_OK);
    assert_int_equal(lk_program_norm(&p), LK_NORM_NONE);
    EXPECT_SHAPE(&p, "a/vector_u", 5);
    free(tables);
    layers[0].frozen = false;
    spec.optimizer.clipnorm = 1.0f;
    refused(&spec, &one_replica, LK_BAD_CONFIG,
            "spectral_normalization of a/kernel: found an optimizer that wants norms");
    spec.optimizer.clipnorm = 0.0f;
    spec.optimizer.weight_average = 0.5f;
    spec.model.averages = &lk_average_linked;
    refused(&spec, &one_replica, LK_BAD_CONFIG,
            "spectral_normalization of a/kernel: found weight_average in the optimizer");
}

// Parameters, what is kept of cells, gradients; of no layer that stays as it is.
static void layer_normalization_has_cells(void **state) {
    (void)state;
    lk_layer layers[] = {CELLS("n"), FLATTEN, DENSE("a", 6, false), CELLS("m"),
                         DENSE("d", 3, false)};
    static const lk_op_type *const wanted[] = {
        &lk_op_dense_weight_gradient,       &lk_op_dense_bias_gradient,
        &lk_op_dense_input_gradient,        &lk_op_layer_normalization_gradient,
        &lk_op_layer_normalization_input_gradient, &lk_op_dense_weight_gradient,
        &lk_op_dense_bias_gradient,         &lk_op_dense_input_gradient,
        &lk_op_layer_normalization_gradient};
    const lk_run_spec spec = spec_of(2, 3, 2, 3, LK_COUNT(layers), layers);
    lk_error error;
    lk_program p;
    void *tables;
    assert_int_equal(build(&spec, &one_replica, true, &p, &tables, &error), LK_OK);
    const uint32_t begin = p.forward_end + 2;
    assert_int_equal(p.reduce_op, begin + LK_COUNT(wanted));
    for (uint32_t i = 0; i < LK_COUNT(wanted); i++) {
        assert_string_equal(p.ops[begin + i].type->name, wanted[i]->name);
    }
    EXPECT_SHAPE(&p, "n/gamma", 2);
    EXPECT_SHAPE(&p, "m/beta", 6);
    EXPECT_SHAPE(&p, "n/statistics", 8, 12);
    EXPECT_SHAPE(&p, "m/statistics", 8, 2);
    free(tables);
    layers[0].scale = false;  // beta alone still learns
    assert_int_equal(build(&spec, &one_replica, true, &p, &tables, &error), LK_OK);
    assert_int_equal(p.reduce_op, begin + LK_COUNT(wanted));
    free(tables);
    layers[0].frozen = true;
    assert_int_equal(build(&spec, &one_replica, true, &p, &tables, &error), LK_OK);
    assert_int_equal(p.reduce_op, begin + LK_COUNT(wanted) - 2);
    free(tables);
}

static void numbers_of_initializers_are_checked(void **state) {
    (void)state;
    lk_layer layers[] = {FLATTEN, DENSE("d", 2, false)};
    const lk_run_spec spec = spec_of(4, 4, 1, 2, 2, layers);
    lk_error error;
    lk_program p;
    void *tables;
    layers[1].initial = 0.5f;
    refused(&spec, &one_replica, LK_BAD_CONFIG,
            "layer d: kernel_initializer glorot_uniform takes no kernel_initializer_value");
    layers[1].initializer = &lk_initializer_constant, layers[1].initial = -0.5f;
    assert_int_equal(build(&spec, &one_replica, true, &p, &tables, &error), LK_OK);
    assert_true(p.params[0].initial == -0.5f);
    free(tables);
    layers[1].initializer = &lk_initializer_truncated_normal;
    refused(&spec, &one_replica, LK_BAD_CONFIG,
            "found a number below 0, wanted the stddev of truncated_normal, above 0");
}

static void bad_runs_are_refused(void **state) {
    (void)state;
    const lk_layer layers[] = {FLATTEN, DENSE("d", 2, false)};
    const lk_run_spec good = spec_of(2, 2, 1, 2, 2, layers);
    lk_run_spec s = good;
    lk_error error = {.status = LK_OK};
    s.global_batch = 0;
    refused(&s, &one_replica, LK_BAD_CONFIG, "global_batch: found 0");
    s.global_batch = UINT32_MAX;  // its grains, rounded up, would not fit 32 bits
    refused(&s, &one_replica, LK_BAD_CONFIG, "global_batch: found 4294967295, wanted 1 to");
    s.global_batch = LK_BATCH_MAX;
    assert_int_equal(lk_run_spec_check(&s, &error), LK_OK);
    for (uint32_t i = 0; i < 3; i++) {
        s = good;
        s.grain = (const uint32_t[]){0, 3, 2 * LK_GRAIN_MAX}[i];
        refused(&s, &one_replica, LK_BAD_CONFIG, "wanted a power of two from 1 to 4096");
    }
    s = good;
    s.example_count = 0;
    refused(&s, &one_replica, LK_BAD_DATA, "no examples");
    s.example_count = 7;
    s.drop_remainder = true;
    refused(&s, &one_replica, LK_BAD_CONFIG, "an epoch would have no step; wanted at most 7");
    s = good;
    s.optimizer.learning_rate = -0.1f;
    refused(&s, &one_replica, LK_BAD_CONFIG, "optimizer.learning_rate");
    s.optimizer.learning_rate = HUGE_VALF;
    refused(&s, &one_replica, LK_BAD_CONFIG, "optimizer.learning_rate");
    s.optimizer.learning_rate = 1.0f;
    s.optimizer.momentum = 1.0f;
    refused(&s, &one_replica, LK_BAD_CONFIG, "optimizer.momentum");
    const lk_layout none = {.replicas = 0}, many = {.replicas = 5};
    refused(&good, &none, LK_BAD_CONFIG, "replicas: found 0, wanted 1 to 4");
    refused(&good, &many, LK_BAD_CONFIG,
            "replicas: found 5, wanted 1 to 4: a global batch of 8 has 4 "
            "grains of 2");
}

static void bad_shards_are_refused(void **state) {
    (void)state;
    const lk_layer layers[] = {FLATTEN, DENSE("d", 2, false)};
    static const uint64_t even[] = {0, 26, 51, 75, 100}, more[] = {0, 26, 50, 76, 100},
                          odd[] = {0, 25, 51, 75, 100};
    lk_program p;
    lk_error error;
    void *tables;
    lk_run_spec s = spec_of(2, 2, 1, 2, 2, layers);  // 4 grains of 2
    s.shards = 4;
    s.shard_first = even;  // 26, 25, 24, 25
    refused(&s, &one_replica, LK_BAD_CONFIG,
            "shard 2 has 24 examples and shard 0 has 26, wanted shards that differ by one example "
            "at most; shard the data again with --shards 4");
    s.shard_first = more;
    refused(&s, &one_replica, LK_BAD_CONFIG, "shard 1 has 24 examples and shard 0 has 26");
    s.shard_first = odd;
    refused(&s, &one_replica, LK_BAD_CONFIG, "shard 2 has 24 examples and shard 1 has 26");
    s.shard_first = NULL;  // as a plan may
    s.shards = 3;
    refused(&s, &one_replica, LK_BAD_CONFIG,
            "found 3 shards and 4 grains a step, wanted a number of shards that divides the "
            "grains; shard the data again with --shards 2");
    s.shards = 8;
    refused(&s, &one_replica, LK_BAD_CONFIG, "shard the data again with --shards 4");
    s.shards = 1;
    s.global_batch = 9;
    refused(&s, &one_replica, LK_BAD_CONFIG,
            "grain: found 2, wanted a power of two that divides global_batch 9, such as 1");
    s.global_batch = 8;
    s.shards = 2;
    assert_int_equal(build(&s, &one_replica, true, &p, &tables, &error), LK_OK);
    free(tables);
}

// The order "sharded" for every small run: an epoch has every example once, a step as many as in
// the order "global", and grain i reads from shard floor(i * S / G) alone.
static void check_places(const lk_run_spec *s) {
    uint8_t seen[64] = {0};
    uint32_t grains = lk_grain_count(s);
    uint64_t steps = lk_steps_per_epoch(s), all = 0;
    for (uint64_t step = 0; step < steps; step++) {
        uint32_t there = 0;
        assert_int_equal(lk_step_positions(s, step), s->global_batch);
        for (uint32_t i = 0; i < s->global_batch; i++) {
            uint64_t position = step * s->global_batch + i;
            lk_place place = lk_place_of(s, position);
            assert_int_equal(place.shard, i / s->grain * s->shards / grains);
            if (!lk_position_exists(s, position)) continue;
            uint64_t example = s->shard_first[place.shard] + place.at;
            assert_true(example < s->shard_first[place.shard + 1]);
            assert_int_equal(seen[example]++, 0);
            there++;
        }
        assert_int_equal(there, lk_step_examples(s, step));
        all += there;
    }
    uint64_t rest = s->drop_remainder ? s->example_count % s->global_batch : 0;
    assert_int_equal(all, s->example_count - rest);
}

// `larger` of the shards have one example more: the first ones, or the last.
static void cut_into(uint64_t *first, uint32_t shards, uint32_t count, bool first_ones) {
    uint32_t larger = count % shards;
    for (uint32_t k = 0; k <= shards; k++) {
        uint32_t before = first_ones ? LK_MIN(k, larger) : LK_MAX(k + larger, shards) - shards;
        first[k] = count / shards * k + before;
    }
}

static uint32_t check_counts(lk_run_spec *s, uint64_t *first) {
    lk_error error = {.status = LK_OK};
    uint32_t checked = 0;
    for (uint32_t n = s->shards; n <= 60; n++) {
        cut_into(first, s->shards, n, n % 2);
        s->example_count = n;
        s->drop_remainder = n % 3 == 0 && n >= s->global_batch;
        assert_int_equal(lk_run_spec_check(s, &error), LK_OK);
        check_places(s);
        checked++;
    }
    return checked;
}

static void every_example_comes_once_an_epoch(void **state) {
    (void)state;
    const lk_layer layers[] = {FLATTEN, DENSE("d", 2, false)};
    lk_run_spec s = spec_of(2, 2, 1, 2, 2, layers);
    uint64_t first[9];
    uint32_t checked = 0;
    s.shard_first = first;
    for (s.grain = 1; s.grain <= 4; s.grain *= 2) {
        for (s.global_batch = s.grain; s.global_batch <= 24; s.global_batch += s.grain) {
            for (s.shards = 1; s.shards <= 8; s.shards++) {
                if (lk_grain_count(&s) % s.shards == 0) checked += check_counts(&s, first);
            }
        }
    }
    assert_true(checked > 5000);
}

// --- identity ----------------------------------------------------------------------------------

// Change number `i` of a run; false after the last.
static bool change(uint32_t i, lk_run_spec *s, lk_layer layers[2]) {
    static const uint64_t shards[] = {0, 50, 100}, others[] = {0, 49, 100};
    lk_optimizer *o = &s->optimizer;
    lk_layer *l = &layers[1];
    lk_model *m = &s->model;
    lk_loss_options *wanted = &m->loss_options;
    uint32_t *const numbers[] = {&s->model.in_h,    &s->model.in_w,   &s->model.in_c,
                                 &s->model.classes, &s->global_batch, &s->grain,
                                 &l->units,         &l->size_h,       &l->size_w,
                                 &l->stride_h,      &l->stride_w};
    if (i < LK_COUNT(numbers)) return ++*numbers[i];
    switch (i - LK_COUNT(numbers)) {
    case 0: s->model.layer_count = 1; return true;
    case 1: l->type = &lk_layer_relu; return true;
    case 2: l->padding = LK_PADDING_SAME; return true;
    case 3: l->use_bias = !l->use_bias; return true;
    case 4: l->activation = &lk_layer_relu; return true;
    case 5: l->initializer = &lk_initializer_he_uniform; return true;
    case 6: o->type = &lk_optimizer_sgd; return true;
    case 7: o->learning_rate = 0.2f; return true;
    case 8: o->momentum = 0.8f; return true;
    case 9: o->nesterov = true; return true;
    case 10: s->seed ^= 1ull << 32; return true;
    case 11: s->drop_remainder = true; return true;
    case 12: s->model.fast_precision = LK_FAST_TF32; return true;
    case 13: s->model.fast_precision = LK_FAST_BF16; return true;
    case 14: s->example_count++; return true;
    case 15: s->data_hash[31] ^= 1; return true;
    case 16: s->shards = 2, s->shard_first = shards; return true;
    case 17: s->shards = 2, s->shard_first = others; return true;
    // Where the rows are the default's, which is left out, the columns are not.
    case 18: l->stride_h = l->stride_w = 1; return true;
    case 19: l->stride_h = 1; return true;
    case 20: l->input_count = 1, l->inputs[0] = 0; return true;
    case 21: m->loss = &lk_loss_mean_squared_error; return true;
    case 22:
        m->loss = &lk_loss_mean_squared_error;
        *wanted = (lk_loss_options){.input_count = 2, .inputs = {1, 0}};
        return true;
    case 23:
        m->loss = &lk_loss_mean_squared_error;
        *wanted = (lk_loss_options){.input_count = 2, .inputs = {2, 1}};
        return true;
    case 24: m->loss = &lk_loss_mean, wanted->scale = 1.0f; return true;
    case 25: m->loss = &lk_loss_mean, wanted->scale = -1.0f; return true;
    case 26: l->frozen = true; return true;
    case 27: m->fast_precision = LK_FAST_FP16; return true;
    case 28: m->fast_precision = LK_FAST_FP16, m->loss_scale.replays = 1; return true;
    case 29: m->input_type = LK_INPUT_F32; return true;
    default: return false;
    }
}

// Two runs that differ in anything that decides bits have two identities.
static void every_field_is_in_the_identity(void **state) {
    (void)state;
    enum { MOST = 48 };
    uint8_t identity[MOST][LK_SHA256_BYTES];
    uint32_t count = 0;
    for (bool more = true; more; count++) {                               // the last has no change
        lk_layer layers[] = {FLATTEN, CONV("c", 3, 2, 2, VALID, false)};  // never built
        lk_run_spec s = spec_of(2, 2, 1, 3, LK_COUNT(layers), layers);
        assert_true(count < MOST);
        more = change(count, &s, layers);
        lk_run_identity(&s, identity[count]);
        for (uint32_t i = 0; i < count; i++) {
            if (memcmp(identity[i], identity[count], LK_SHA256_BYTES) != 0) continue;
            fail_msg("changes %u and %u give one identity", i, count);
        }
    }
    assert_int_equal(count, 11 + 30 + 1);
}

// The inputs that a loss has anyway change nothing where they are said.
static void inputs_of_a_loss_that_are_the_default(void **state) {
    (void)state;
    lk_layer layers[] = {FLATTEN, DENSE("d", 4, false)};
    uint8_t said[LK_SHA256_BYTES], unsaid[LK_SHA256_BYTES];
    lk_run_spec s = spec_of(2, 2, 1, 3, LK_COUNT(layers), layers);
    s.model.loss = &lk_loss_mean_squared_error;
    lk_run_identity(&s, unsaid);
    s.model.loss_options = (lk_loss_options){.input_count = 2, .inputs = {2, 0}};
    lk_run_identity(&s, said);
    assert_memory_equal(said, unsaid, sizeof said);
}

// --- the planner ---------------------------------------------------------------------------------

static bool meet(const lk_tensor *a, const lk_tensor *b) {
    return a->first <= b->last && b->first <= a->last;
}

static bool overlap(const lk_tensor *a, const lk_tensor *b) {
    return a->region == b->region && a->bytes && b->bytes && a->offset < b->offset + b->bytes &&
           b->offset < a->offset + a->bytes;
}

static void check_plan(const lk_tensor *tensors, uint32_t count, const lk_plan_options *options,
                       const lk_region_plan regions[LK_REGION_COUNT]) {
    uint64_t sum[LK_REGION_COUNT] = {0};
    for (uint32_t i = 0; i < count; i++) {
        const lk_tensor *a = &tensors[i];
        const lk_region_plan *r = &regions[a->region];
        uint64_t guard = options->guards ? LK_GUARD_BYTES : 0;
        assert_int_equal(a->offset % LK_TENSOR_ALIGN_BYTES, 0);
        assert_true(a->offset + a->bytes + guard <= r->bytes);
        sum[a->region] += lk_round_up(a->bytes, LK_TENSOR_ALIGN_BYTES) + guard;
        for (uint32_t j = 0; j < i; j++) {
            if (!options->overlay || meet(a, &tensors[j])) assert_false(overlap(a, &tensors[j]));
        }
    }
    for (uint32_t r = 0; r < LK_REGION_COUNT; r++) {
        assert_int_equal(regions[r].bytes % LK_TENSOR_ALIGN_BYTES, 0);
        assert_true(regions[r].lower_bound_bytes <= regions[r].bytes);
        assert_true(regions[r].bytes <= sum[r]);
        if (!options->overlay) assert_int_equal(regions[r].bytes, sum[r]);
    }
}

static void plans_of_random_tables(void **state) {
    (void)state;
    enum { TENSORS = 40, OPS = 24 };
    for (int round = 0; round < 400; round++) {
        lk_tensor tensors[TENSORS];
        uint32_t order[TENSORS], count = 1 + draw(TENSORS);
        lk_error error = {.status = LK_OK};
        lk_region_plan regions[LK_REGION_COUNT];
        const lk_plan_options options = {.overlay = round & 1, .guards = round & 2};
        for (uint32_t i = 0; i < count; i++) {
            const uint64_t shape[] = {draw(4) ? 1 + draw(3000) : 64 * draw(20)};
            lk_region region = draw(4) ? LK_REGION_REPLICA : LK_REGION_DEVICE;
            assert_int_equal(lk_tensor_make(&tensors[i], "t", LK_CLASS_ACTIVATION,
                                            (lk_dtype)draw(4), region, 1, shape, &error),
                             LK_OK);
            tensors[i].first = draw(OPS);
            tensors[i].last = draw(6) ? tensors[i].first + draw(OPS) : LK_FOREVER;
        }
        assert_int_equal(lk_plan_regions(tensors, count, &options, order, regions, &error), LK_OK);
        check_plan(tensors, count, &options, regions);
    }
}

// The largest first: then the small ones fit in beside them, and nothing is above the bound.
static void a_plan_by_hand(void **state) {
    (void)state;
    static const uint64_t sizes[] = {64, 128, 192};
    lk_tensor tensors[LK_COUNT(sizes)];
    uint32_t order[LK_COUNT(sizes)];
    lk_region_plan regions[LK_REGION_COUNT];
    lk_error error = {.status = LK_OK};
    for (uint32_t i = 0; i < LK_COUNT(sizes); i++) {
        assert_int_equal(lk_tensor_make(&tensors[i], "t", LK_CLASS_ACTIVATION, LK_U8,
                                        LK_REGION_REPLICA, 1, &sizes[i], &error),
                         LK_OK);
        tensors[i].first = i;
        tensors[i].last = i + 1;
    }
    assert_int_equal(lk_plan_regions(tensors, LK_COUNT(sizes), &(lk_plan_options){.overlay = true},
                                     order, regions, &error),
                     LK_OK);
    assert_int_equal(regions[LK_REGION_REPLICA].bytes, 128 + 192);
    assert_int_equal(regions[LK_REGION_REPLICA].lower_bound_bytes, 128 + 192);
    assert_int_equal(tensors[2].offset, 0);
    assert_int_equal(tensors[1].offset, 192);
    assert_int_equal(tensors[0].offset, 0);
    // 2^66 bytes, which are 0 in 64 bits.
    const uint64_t huge[] = {1ull << 33, 1ull << 33};
    assert_int_equal(lk_tensor_make(&tensors[0], "huge", LK_CLASS_ACTIVATION, LK_U8,
                                    LK_REGION_REPLICA, 2, huge, &error),
                     LK_BAD_CONFIG);
    assert_non_null(strstr(error.text, "huge"));
}

// The tensors an op touches live while it runs; with and without overlay no two of them overlap.
static void plans_of_programs(void **state) {
    (void)state;
    const lk_layer layers[] = {CONV("a", 4, 3, 1, VALID, true),
                               POOL("p", 2, 2, VALID),
                               CONV("b", 3, 2, 1, SAME, true),
                               POOL("q", 3, 2, SAME),
                               FLATTEN,
                               DENSE("c", 7, true),
                               DENSE("d", 5, false)};
    const lk_run_spec spec = spec_of(12, 12, 1, 5, LK_COUNT(layers), layers);
    uint64_t bytes[2];
    for (uint32_t i = 0; i < 16; i++) {
        const lk_layout layout = {
            .replicas = i & 2 ? 2 : 1, .fuse = i & 4, .microbatch_examples = i & 8 ? 2 : 0};
        lk_program p;
        lk_error error;
        void *tables;
        assert_int_equal(build(&spec, &layout, i & 1, &p, &tables, &error), LK_OK);
        check_plan(p.tensors, p.tensor_count, &(const lk_plan_options){.overlay = i & 1},
                   p.regions);
        for (uint32_t o = 0; o < p.op_count; o++) {
            const lk_op *op = &p.ops[o];
            const uint32_t *used = op->tensor;
            for (uint32_t u = 0; u < LK_ROLES; u++) {
                if (used[u] == LK_NONE) continue;
                assert_true(p.tensors[used[u]].first <= o && o <= p.tensors[used[u]].last);
            }
        }
        bytes[i & 1] = p.regions[LK_REGION_REPLICA].bytes;
        if (i & 1) assert_true(bytes[1] < bytes[0]);
        free(tables);
    }
}

// --- the tree ------------------------------------------------------------------------------------

enum { LEAVES_MAX = 40 };

// The largest block at `at` by trial: a whole node is one of which no leaf lies in [end, total).
static lk_node block_by_trial(uint32_t at, uint32_t end, uint32_t total) {
    lk_node best = {0, at};
    for (uint32_t level = 1; level < 10; level++) {
        uint32_t wide = 1u << level;
        if (at % wide != 0 || (at + wide > end && end < total)) break;
        if (at + wide / 2 < end) best = (lk_node){level, at >> level};
    }
    return best;
}

static void blocks_match_trial(void **state) {
    (void)state;
    for (uint32_t total = 1; total <= LEAVES_MAX; total++) {
        for (uint32_t end = 1; end <= total; end++) {
            for (uint32_t at = 0; at < end; at++) {
                lk_node want = block_by_trial(at, end, total), got = lk_next_block(at, end, total);
                assert_int_equal(got.level, want.level);
                assert_int_equal(got.index, want.index);
            }
        }
    }
    assert_int_equal(lk_root_level(1), 0);
    assert_int_equal(lk_root_level(UINT32_MAX), 32);
}

// What a replica holds: its counter, and the values of its nodes.
typedef struct holder {
    lk_counter counter;
    float values[LK_BLOCKS_MAX];
    uint32_t most;  // slots in use at once, the block just computed included
} holder;

// The node's value by the definition; false where it is absent.
static bool plain_node(const float *leaves, uint32_t total, uint32_t level, uint32_t index,
                       float *value) {
    if ((uint64_t)index << level >= total) return false;
    if (level == 0) {
        *value = leaves[index];
        return true;
    }
    float right = 0.0f;
    plain_node(leaves, total, level - 1, 2 * index, value);
    if (plain_node(leaves, total, level - 1, 2 * index + 1, &right)) *value = *value + right;
    return true;
}

// Walks the leaves [first, end) of `total` in microbatches, as a replica does.
static void hold(holder *h, const float *leaves, uint32_t first, uint32_t end, uint32_t total,
                 uint32_t microbatch) {
    h->counter.count = 0;
    h->most = 0;
    for (uint32_t at = first; at < end;) {
        uint32_t microbatch_end = LK_MIN(at + microbatch, end);
        while (at < microbatch_end) {
            lk_node block = lk_next_block(at, microbatch_end, total);
            uint32_t slot = h->counter.count;
            h->most = LK_MAX(h->most, slot + 1);
            assert_true(plain_node(leaves, total, block.level, block.index, &h->values[slot]));
            for (uint32_t merges = lk_counter_push(&h->counter, block); merges > 0;
                 merges--, slot--) {
                h->values[slot - 1] = h->values[slot - 1] + h->values[slot];
            }
            assert_int_equal(h->counter.count, slot + 1);
            at = LK_MIN((block.index + 1) << block.level, microbatch_end);
        }
    }
    for (uint32_t i = 0; i < h->counter.count; i++) {  // every entry is the node it says
        float want;
        lk_node n = h->counter.nodes[i];
        assert_true(plain_node(leaves, total, n.level, n.index, &want));
        assert_memory_equal(&want, &h->values[i], sizeof want);
    }
}

// Any split into replicas and microbatches gives the bits of the plain recursive tree.
static void reduction_is_the_plain_tree(void **state) {
    (void)state;
    float leaves[LEAVES_MAX], scratch[2 * (LK_TREE_LEVELS_MAX + 1)];
    for (uint32_t i = 0; i < LEAVES_MAX; i++)
        leaves[i] = (float)draw(1u << 24) * 0x1p-10f - 8000.0f;
    static holder holders[LEAVES_MAX];
    for (uint32_t full = 1; full <= LEAVES_MAX; full++) {
        for (uint32_t trial = 0; trial < 40; trial++) {
            uint32_t replicas = 1 + draw(full), microbatch = 1 + draw(full), total = 1 + draw(full);
            lk_holding holdings[LEAVES_MAX];
            for (uint32_t r = 0; r < replicas; r++) {
                lk_grain_range g = lk_replica_grains(full, replicas, r);
                uint32_t end = LK_MIN(g.first + g.count, total);
                hold(&holders[r], leaves, g.first, LK_MAX(end, g.first), total, microbatch);
                holdings[r] = (lk_holding){&holders[r].counter, holders[r].values, 1};
            }
            float want;
            assert_true(plain_node(leaves, total, lk_root_level(total), 0, &want));
            const float *got =
                lk_reduce(&lk_kernels_reference, holdings, replicas, total, 0, 1, scratch);
            assert_memory_equal(&want, got, sizeof want);
        }
    }
}

static void ranges_cover_the_grains(void **state) {
    (void)state;
    for (uint32_t grains = 1; grains <= LEAVES_MAX; grains++) {
        for (uint32_t replicas = 1; replicas <= grains; replicas++) {
            uint32_t at = 0;
            for (uint32_t r = 0; r < replicas; r++) {
                lk_grain_range g = lk_replica_grains(grains, replicas, r);
                assert_int_equal(g.first, at);
                assert_true(g.count == grains / replicas ||
                            g.count == (grains + replicas - 1) / replicas);
                at += g.count;
            }
            assert_int_equal(at, grains);
        }
    }
}

// The slots a program plans for, against the most that any replica needs in any step, short ones
// included.
static void slots_are_exactly_enough(void **state) {
    (void)state;
    const lk_layer layers[] = {FLATTEN, DENSE("d", 2, false)};
    static const float leaves[LEAVES_MAX];
    lk_run_spec spec = spec_of(2, 2, 1, 2, LK_COUNT(layers), layers);
    spec.grain = 1;
    static holder h;
    for (uint32_t grains = 1; grains <= LEAVES_MAX; grains++) {
        spec.global_batch = grains;
        for (uint32_t replicas = 1; replicas <= grains; replicas++) {
            for (uint32_t microbatch = 1; microbatch <= (grains + replicas - 1) / replicas;
                 microbatch++) {
                const lk_layout layout = {.replicas = replicas,
                                          .microbatch_examples = microbatch,
                                          .reduce = LK_REDUCE_ALL_PARTIALS};
                lk_program p;
                lk_error error;
                void *tables;
                assert_int_equal(build(&spec, &layout, true, &p, &tables, &error), LK_OK);
                assert_int_equal(p.microbatch_grains, microbatch);
                uint32_t most = 0;
                for (uint32_t r = 0; r < replicas; r++) {
                    lk_grain_range g = lk_replica_grains(grains, replicas, r);
                    for (uint32_t total = 1; total <= grains; total++) {
                        uint32_t end = LK_MIN(g.first + g.count, total);
                        hold(&h, leaves, g.first, LK_MAX(end, g.first), total, microbatch);
                        most = LK_MAX(most, h.most);
                    }
                }
                if (p.node_slots != most) {
                    fail_msg(
                        "%u grains, %u replicas, microbatches of %u: planned %u slots, needed %u",
                        grains, replicas, microbatch, p.node_slots, most);
                }
                free(tables);
            }
        }
    }
}

// On a device the blocks of a microbatch wait for its end: what a full step needs is enough for a
// short one, and the loss has its place behind the parameters.
static void slots_of_a_device(void **state) {
    (void)state;
    const lk_layer layers[] = {FLATTEN, DENSE("d", 2, false)};
    lk_run_spec spec = spec_of(2, 2, 1, 2, LK_COUNT(layers), layers);
    spec.grain = 1;
    for (uint32_t grains = 1; grains <= LEAVES_MAX; grains++) {
        spec.global_batch = grains;
        for (uint32_t replicas = 1; replicas <= grains; replicas++) {
            for (uint32_t microbatch = 1; microbatch <= (grains + replicas - 1) / replicas;
                 microbatch++) {
                const lk_layout layout = {
                    .replicas = replicas, .microbatch_examples = microbatch, .device = true};
                lk_program p;
                lk_error error;
                void *tables;
                assert_int_equal(build(&spec, &layout, true, &p, &tables, &error), LK_OK);
                assert_int_equal(p.loss_offset, p.node_floats - 16);
                uint32_t most = 0;
                for (uint32_t r = 0; r < replicas; r++) {
                    lk_grain_range g = lk_replica_grains(grains, replicas, r);
                    for (uint32_t total = g.first + 1; total <= grains; total++) {
                        uint32_t count = LK_MIN(g.count, total - g.first);
                        most = LK_MAX(most, lk_device_slots(g.first, count, microbatch, total));
                    }
                }
                assert_int_equal(p.node_slots, most);
                free(tables);
            }
        }
    }
}

// Only a replica that holds all its examples at once can be read by others when all have computed.
static void operands_are_resident(void **state) {
    (void)state;
    const lk_layer layers[] = {FLATTEN, DENSE("d", 2, false)};
    lk_run_spec spec = spec_of(2, 2, 1, 2, LK_COUNT(layers), layers);
    for (uint32_t microbatch = 2; microbatch <= 8;
         microbatch += 2) {  // 8 examples in grains of 2, by 2 replicas
        const lk_layout layout = {
            .replicas = 2, .microbatch_examples = microbatch, .reduce = LK_REDUCE_ALL_OPERANDS};
        lk_program p;
        lk_error error;
        void *tables;
        assert_int_equal(build(&spec, &layout, true, &p, &tables, &error), LK_OK);
        assert_int_equal(p.params[0].mode,
                         microbatch < 4 ? LK_REDUCE_PARTIALS : LK_REDUCE_OPERANDS);
        assert_int_equal(p.params[1].mode, LK_REDUCE_PARTIALS);  // a bias has no rows
        free(tables);
    }
}

// A replica has room for every microbatch that it is given, of a step and of an evaluation: those
// fill whole grains, also where the global batch has a short one.
static void microbatches_fit(void **state) {
    (void)state;
    const lk_layer layers[] = {FLATTEN, DENSE("d", 2, false)};
    lk_run_spec spec = spec_of(2, 2, 1, 2, LK_COUNT(layers), layers);
    for (int round = 0; round < 500; round++) {
        spec.grain = 1u << draw(7);
        spec.global_batch = 1 + draw(100);
        spec.example_count = 1 + draw(200);
        const uint32_t grains = lk_grain_count(&spec), tested = 1 + draw(200);
        const lk_layout layout = {.replicas = 1 + draw(grains),
                                  .microbatch_examples = draw(2) ? 1 + draw(100) : 0};
        lk_program p;
        lk_error error;
        void *tables;
        assert_int_equal(build(&spec, &layout, true, &p, &tables, &error), LK_OK);
        uint64_t trained = 0, evaluated = 0;
        for (uint32_t r = 0; r < layout.replicas; r++) {
            for (lk_microbatches w = lk_step_microbatches(&p, r, 0); lk_next_microbatch(&w);) {
                assert_in_range(w.microbatch.examples, 1, p.microbatch_examples);
                trained += w.microbatch.examples;
            }
            for (lk_microbatches w = lk_evaluate_microbatches(&p, r, tested);
                 lk_next_microbatch(&w);) {
                assert_in_range(w.microbatch.examples, 1, p.microbatch_examples);
                evaluated += w.microbatch.examples;
            }
        }
        assert_int_equal(trained, lk_step_examples(&spec, 0));
        assert_int_equal(evaluated, tested);
        free(tables);
    }
}

// Of large activations a replica holds the grains that fit into 24 MiB, at least one; a number of
// examples that somebody asks for stands.
static void large_activations_wait(void **state) {
    (void)state;
    const lk_layer layers[] = {CONV("c", 8, 3, 1, VALID, true), FLATTEN, DENSE("d", 2, false)};
    lk_run_spec spec = spec_of(256, 256, 1, 2, LK_COUNT(layers), layers);
    // A grain of four: images and what the layers make of them. Two fit.
    const uint64_t grain = 4 * (256 * 256 + 254 * 254 * 8 + 2) * sizeof(float);
    const struct {
        uint32_t grain, batch, asked, held;
    } cases[] = {{4, 64, 0, 8}, {4, 8, 0, 8}, {4, 12, 0, 8}, {4, 4, 0, 4},
                 {64, 128, 0, 64}, {4, 64, 64, 64}, {4, 64, 12, 12}};
    assert_true(2 * grain <= 24 << 20 && 3 * grain > 24 << 20);
    for (size_t i = 0; i < LK_COUNT(cases); i++) {
        spec.grain = cases[i].grain;
        spec.global_batch = spec.example_count = cases[i].batch;
        const lk_layout layout = {
            .replicas = 1, .fuse = true, .microbatch_examples = cases[i].asked};
        lk_program p;
        lk_error error;
        void *tables;
        assert_int_equal(build(&spec, &layout, true, &p, &tables, &error), LK_OK);
        assert_int_equal(p.microbatch_examples, cases[i].held);
        free(tables);
    }
}

// lockstep checkpoint export has words for every layer there is (ops/layers/export.h).
static void layers_say_themselves(void **state) {
    (void)state;
    const lk_layer_words *words;
    for (uint32_t i = 0; (words = lk_layer_words_at(i)) != NULL; i++) {
        if (words->type == &lk_layer_lstm) continue;  // not said yet: refused by name
        if (words->type == &lk_layer_label_embedding || words->type == &lk_layer_joint) continue;
        if (!words->say_export) fail_msg("%s has no say_export", words->name);
    }
}

// Every table of an instruction set has a kernel of each op that has a reference (portable leaves
// the plain ones to the compiler); a table without one is found out, by the first op of the program
// that wants it.
static void tables_have_all_kernels(void **state) {
    static const lk_op_type *const types[] = {
#define TYPE(NUMBER, name) &lk_op_##name,
        LK_OP_LIST(TYPE)
#undef TYPE
    };
    const lk_layer layers[] = {CONV("a", 2, 3, 1, SAME, true), POOL("p", 3, 1, VALID), FLATTEN,
                               DENSE("d", 3, false)};
    const lk_run_spec spec = spec_of(5, 5, 1, 3, LK_COUNT(layers), layers);
    const lk_kernels *k, *full = NULL;
    lk_program p;
    lk_error error = {.status = LK_OK};
    void *tables;
    (void)state;
    for (unsigned n = 0; (void)lk_kernels_missing(n, &k), k; n++) {
        if (k == &lk_kernels_reference || k == &lk_kernels_portable) continue;
        full = k;
        for (uint32_t i = 0; i < LK_COUNT(types); i++) {
            if (!lk_kernel_is_reference(k, types[i])) continue;
            fail_msg("%s has no kernel of %s", k->name, types[i]->name);
        }
    }
    if (!full) return;
    lk_kernels table = *full;
    assert_int_equal(build(&spec, &one_replica, true, &p, &tables, &error), LK_OK);
    assert_null(lk_program_without_kernel(&p, &table));
    table.kernel[LK_OP_MAX_POOL2D_BACKWARD] = NULL;
    const lk_op *missing = lk_program_without_kernel(&p, &table);
    assert_non_null(missing);
    assert_ptr_equal(missing->type, &lk_op_max_pool2d_backward);
    table.kernel[LK_OP_MAX_POOL2D] = NULL;
    assert_ptr_equal(lk_program_without_kernel(&p, &table)->type, &lk_op_max_pool2d);
    assert_ptr_equal(lk_program_without_kernel(&p, &lk_kernels_reference), &p.ops[1]);
    free(tables);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_have_all_kernels),
        cmocka_unit_test(shapes_are_inferred),
        cmocka_unit_test(fusion_follows_geometry),
        cmocka_unit_test(few_channels_pool_strictly),
        cmocka_unit_test(strides_of_a_fused_pool_are_two),
        cmocka_unit_test(masks_and_outputs_follow_fusion),
        cmocka_unit_test(targets_are_used),
        cmocka_unit_test(many_weights_are_divided),
        cmocka_unit_test(bad_models_are_refused),
        cmocka_unit_test(bad_graphs_are_refused),
        cmocka_unit_test(gradients_of_users_add_backwards),
        cmocka_unit_test(frozen_layers_have_no_gradients),
        cmocka_unit_test(batch_normalization_has_states),
        cmocka_unit_test(norms_and_sums_apply_relu),
        cmocka_unit_test(spectral_normalization_has_a_vector),
        cmocka_unit_test(layer_normalization_has_cells),
        cmocka_unit_test(numbers_of_initializers_are_checked),
        cmocka_unit_test(bad_runs_are_refused),
        cmocka_unit_test(bad_shards_are_refused),
        cmocka_unit_test(every_example_comes_once_an_epoch),
        cmocka_unit_test(every_field_is_in_the_identity),
        cmocka_unit_test(inputs_of_a_loss_that_are_the_default),
        cmocka_unit_test(plans_of_random_tables),
        cmocka_unit_test(a_plan_by_hand),
        cmocka_unit_test(plans_of_programs),
        cmocka_unit_test(blocks_match_trial),
        cmocka_unit_test(reduction_is_the_plain_tree),
        cmocka_unit_test(ranges_cover_the_grains),
        cmocka_unit_test(slots_are_exactly_enough),
        cmocka_unit_test(slots_of_a_device),
        cmocka_unit_test(operands_are_resident),
        cmocka_unit_test(microbatches_fit),
        cmocka_unit_test(large_activations_wait),
        cmocka_unit_test(layers_say_themselves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
