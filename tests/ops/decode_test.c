// decode_test.c - greedy decoding of a transducer: random small models against a plain
// implementation, which asks the network anew for every prefix of labels and every cell; all
// variants, microbatches, overlays and guards; ties, and as many labels as a frame or a plan has;
// the errors of labels against their definition.
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ops/graph/check.h"
#include "ops/graph/execute.h"
#include "ops/layers/decode.h"
#include "ops/math.h"
#include "ops/variant.h"

static uint64_t draws;

static uint32_t draw(void) {
    draws = draws * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(draws >> 33);
}
static uint32_t draw_from(uint32_t low, uint32_t high) { return low + draw() % (high - low + 1); }
static float draw_value(void) { return (float)(int32_t)(draw() - 0x40000000u) * 0x1p-30f; }

// --- errors of labels ----------------------------------------------------------------------------

// The definition: the first labels are equal or changed, or one of them is left out.
static uint32_t errors_by_definition(const uint32_t *a, uint32_t a_count, const uint32_t *b,
                                     uint32_t b_count) {
    if (a_count == 0) return b_count;
    if (b_count == 0) return a_count;
    const uint32_t both = errors_by_definition(a + 1, a_count - 1, b + 1, b_count - 1);
    const uint32_t less = errors_by_definition(a + 1, a_count - 1, b, b_count);
    const uint32_t more = errors_by_definition(a, a_count, b + 1, b_count - 1);
    return LK_MIN(both + (*a != *b), LK_MIN(less, more) + 1);
}

static void errors_are_the_fewest(void **state) {
    (void)state;
    draws = 1;
    for (uint32_t i = 0; i < 2000; i++) {
        uint32_t a[6], b[6], row[7];
        const uint32_t a_count = draw_from(0, 6), b_count = draw_from(0, 6);
        for (uint32_t k = 0; k < 6; k++) a[k] = draw_from(1, 3), b[k] = draw_from(1, 3);
        assert_int_equal(lk_label_errors(a, a_count, b, b_count, row),
                         errors_by_definition(a, a_count, b, b_count));
    }
}

// --- a model and its examples --------------------------------------------------------------------

enum { EXAMPLES = 11, ROWS = 6, FEATURES = 4, LABELS = 4, CLASSES = 4, ROW = 1 + LABELS };

static uint8_t images[EXAMPLES][ROWS * FEATURES];
static uint32_t rows[EXAMPLES][ROW];

static void order(void *context, uint64_t epoch, uint64_t position, uint32_t count,
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
    return rows[index / ROW][index % ROW];
}
static const lk_source source = {.order = order, .image = image, .label = label};

static void draw_examples(void) {
    for (uint32_t i = 0; i < EXAMPLES; i++) {
        const uint32_t labels = draw_from(0, LABELS);
        for (uint32_t k = 0; k < ROWS * FEATURES; k++) images[i][k] = (uint8_t)draw();
        memset(rows[i], 0, sizeof rows[i]);
        rows[i][0] = draw_from(i ? 1 : 0, ROWS);  // the first one may have no frame at all
        for (uint32_t u = 1; u <= labels; u++) rows[i][u] = draw_from(1, CLASSES - 1);
    }
}

#define OVER(n, u, from)                                                         \
    {                                                                            \
        .type = &lk_layer_dense, .name = n, .units = u, .use_bias = true,        \
        .initializer = &lk_initializer_glorot_uniform, .input_count = 1, .inputs = {from} \
    }

// The prediction network stands before the encoder, so that what it no longer needs is overlaid.
static const lk_layer layers[] = {
    {.type = &lk_layer_label_embedding,
     .name = "said",
     .units = 5,
     .initializer = &lk_initializer_glorot_uniform},
    {.type = &lk_layer_lstm,
     .name = "pred",
     .units = 7,
     .use_bias = true,
     .forget_bias = true,
     .return_sequences = true,
     .initializer = &lk_initializer_glorot_uniform},
    {.type = &lk_layer_dropout, .name = "drop", .rate = 0.5f},
    OVER("pred_out", 9, 3),
    {.type = &lk_layer_reshape,
     .name = "rows",
     .target_shape = {.count = 2, .at = {ROWS / 2, 2 * FEATURES}},
     .input_count = 1,
     .inputs = {0}},
    OVER("enc", 9, 5),
    {.type = &lk_layer_joint,
     .name = "joint",
     .units = CLASSES + 2,  // two symbols that no label is
     .use_bias = true,
     .initializer = &lk_initializer_glorot_uniform,
     .input_count = 2,
     .inputs = {6, 4}},
};

static const lk_run_spec spec = {
    .model = {.in_h = ROWS,
              .in_w = FEATURES,
              .in_c = 1,
              .classes = CLASSES,
              .labels = LABELS,
              .layer_count = LK_COUNT(layers),
              .layers = layers,
              .loss = &lk_loss_transducer},
    .optimizer = {.type = &lk_optimizer_sgd, .rate = {.type = &lk_rate_constant}},
    .seed = 1,
    .global_batch = 16,
    .grain = 2,
    .example_count = EXAMPLES};

typedef struct machine {
    lk_program program;
    lk_frame frame;
    void *tables;
} machine;

static void *memory(uint64_t bytes) {
    void *at = aligned_alloc(4096, lk_round_up(bytes + 1, 4096));
    assert_non_null(at);
    memset(at, 0, lk_round_up(bytes + 1, 4096));
    return at;
}

static void build(machine *m, uint32_t microbatch, bool overlay, bool guards,
                  const lk_kernels *kernels) {
    const lk_layout layout = {.replicas = 1, .fuse = true, .microbatch_examples = microbatch};
    const lk_plan_options options = {.overlay = overlay, .guards = guards};
    lk_error error = {.status = LK_OK};
    m->tables = memory(lk_program_bytes(&spec.model));
    if (lk_program_build(&spec, &layout, &options, m->tables, &m->program, &error) != LK_OK)
        fail_msg("%s", error.text);
    m->frame = (lk_frame){.program = &m->program,
                          .source = &source,
                          .kernels = kernels,
                          .device = memory(m->program.regions[LK_REGION_DEVICE].bytes),
                          .replica = memory(m->program.regions[LK_REGION_REPLICA].bytes)};
    lk_frame_start(&m->frame);
    if (guards) lk_check_start(&m->frame);
}

static void give(machine *m) {
    free(m->tables);
    free(m->frame.device);
    free(m->frame.replica);
}

static float *param_named(const machine *m, const char *name) {
    for (uint32_t i = 0; i < m->program.param_count; i++) {
        if (strcmp(m->program.tensors[m->program.params[i].tensor].name, name) == 0)
            return lk_param_at(&m->frame, i);
    }
    fail_msg("no parameter %s", name);
    return NULL;
}

// Large enough weights that labels change what comes after them. `blank`: how much the blank is
// liked; far below 0 it never is.
static void draw_weights(machine *m, float blank) {
    for (uint32_t i = 0; i < m->program.param_count; i++) {
        float *w = lk_param_at(&m->frame, i);
        for (uint64_t e = 0; e < m->program.params[i].count; e++) w[e] = 2.0f * draw_value();
    }
    param_named(m, "joint/bias")[LK_BLANK] = blank;
}

// --- the plain implementation --------------------------------------------------------------------

static lk_microbatch one_example(uint32_t i) {
    return (lk_microbatch){.grain_count = 1, .examples = 1, .total_grains = 8, .position = i};
}

// The symbol of cell (frame, labels of `said`) of example i, by the whole network for it alone,
// whose labels are those said.
static uint32_t symbol_at(machine *m, uint32_t i, uint32_t frame, const uint32_t *said,
                          uint32_t count) {
    const lk_microbatch microbatch = one_example(i);
    const lk_op *joint = &m->program.ops[m->program.forward_end - 1];
    const lk_dense *d = &joint->joint.dense;
    const float *w = param_named(m, "joint/kernel"), *bias = param_named(m, "joint/bias");
    uint32_t kept[ROW], top = 0;
    float best = 0;
    memcpy(kept, rows[i], sizeof kept);
    memset(rows[i] + 1, 0, LABELS * sizeof *rows[i]);
    memcpy(rows[i] + 1, said, count * sizeof *said);
    for (uint32_t op = 0; op < m->program.forward_end; op++)
        lk_execute_forward_op(&m->frame, &microbatch, op);
    memcpy(rows[i], kept, sizeof kept);
    assert_ptr_equal(joint->type, &lk_op_joint);
    const float *x = (float *)lk_tensor_at(&m->frame, joint->tensor[LK_X]) + frame * d->k_count;
    const float *x2 = (float *)lk_tensor_at(&m->frame, joint->tensor[LK_X2]) + count * d->k_count;
    for (uint32_t n = 0; n < CLASSES; n++) {
        float z = bias[n];
        for (uint32_t k = 0; k < d->k_count; k++)
            z = lk_fmaf(lk_tanhf(x[k] + x2[k]), w[k * d->n_count + n], z);
        if (n == 0 || z > best) best = z, top = n;
    }
    return top;
}

static uint32_t decode_plainly(machine *m, uint32_t i, uint32_t said[LABELS]) {
    const uint32_t frames = (rows[i][0] + 1) / 2;  // two rows of the input are a frame
    uint32_t count = 0;
    for (uint32_t t = 0; t < frames; t++) {
        for (uint32_t here = 0; here < LK_DECODE_HERE_MAX && count < LABELS; here++) {
            const uint32_t symbol = symbol_at(m, i, t, said, count);
            if (symbol == LK_BLANK) break;
            said[count++] = symbol;
        }
    }
    return count;
}

// --- what is compared ----------------------------------------------------------------------------

typedef struct answer {
    uint32_t count[EXAMPLES], said[EXAMPLES][LABELS];
    uint32_t correct, errors, labels;
} answer;

static void answer_plainly(answer *a, float blank, uint64_t seed) {
    machine m;
    build(&m, 2, false, false, &lk_kernels_reference);
    draws = seed;
    draw_weights(&m, blank);
    memset(a, 0, sizeof *a);
    for (uint32_t i = 0; i < EXAMPLES; i++) {
        uint32_t want = 0;
        a->count[i] = decode_plainly(&m, i, a->said[i]);
        while (want < LABELS && rows[i][1 + want]) want++;
        const uint32_t errors = errors_by_definition(a->said[i], a->count[i], rows[i] + 1, want);
        a->errors += errors;
        a->correct += errors == 0;
        a->labels += want;
    }
    give(&m);
}

static void check_rows(const machine *m, const lk_microbatch *microbatch, const answer *a) {
    const uint32_t *said = lk_tensor_at(&m->frame, lk_program_shown(&m->program));
    for (uint32_t e = 0; e < microbatch->examples; e++, said += ROW) {
        const uint32_t i = (uint32_t)microbatch->position + e;
        assert_int_equal(said[0], rows[i][0]);
        for (uint32_t u = 0; u < LABELS; u++) {
            const uint32_t want = u < a->count[i] ? a->said[i][u] : 0;
            if (said[1 + u] == want) continue;
            fail_msg("%s, microbatches of %u, example %u, label %u: found %u, wanted %u",
                     m->frame.kernels->name, m->program.microbatch_examples, i, u, said[1 + u],
                     want);
        }
    }
}

static void check(const answer *a, float blank, uint64_t seed, uint32_t microbatch, bool overlay,
                  bool guards, const lk_kernels *kernels) {
    machine m;
    build(&m, microbatch, overlay, guards, kernels);
    draws = seed;
    draw_weights(&m, blank);
    for (uint32_t at = 0; at < EXAMPLES; at += microbatch) {
        lk_microbatch b = {.first_grain = at / 2, .total_grains = (EXAMPLES + 1) / 2};
        b.position = at;
        b.examples = LK_MIN(microbatch, EXAMPLES - at);
        b.grain_count = (b.examples + 1) / 2;
        lk_execute_forward(&m.frame, &b);
        check_rows(&m, &b, a);
    }
    assert_int_equal(m.frame.bad_op, LK_NONE);
    assert_int_equal(m.frame.counts[LK_DECODE_CORRECT], a->correct);
    assert_int_equal(m.frame.counts[LK_DECODE_ERRORS], a->errors);
    assert_int_equal(m.frame.counts[LK_DECODE_LABELS], a->labels);
    give(&m);
}

static void models_say_what_plain_ones_say(void **state) {
    static const float blanks[] = {0.0f, 2.0f, -2.0f, -100.0f};
    uint32_t said = 0, labels = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= 24; seed++) {
        const float blank = blanks[seed % LK_COUNT(blanks)];
        const lk_kernels *k;
        answer a;
        draws = 1000 + seed;
        draw_examples();
        answer_plainly(&a, blank, seed);
        for (uint32_t i = 0; i < EXAMPLES; i++) said += a.count[i];
        labels += a.labels;
        for (unsigned n = 0; (void)lk_kernels_missing(n, &k), k; n++) {
            if (lk_kernels_missing(n, &k)) continue;
            check(&a, blank, seed, 2 << seed % 4, true, seed % 2, k);
        }
        check(&a, blank, seed, 16, false, true, &lk_kernels_portable);
    }
    if (said < labels / 2 || said > 4 * labels) fail_msg("%u said, of %u", said, labels);
}

// All scores are equal: the blank, which is the lowest symbol; without it the first label, as often
// as the plan has room for, of every example that has a frame.
static void the_lowest_of_equals(void **state) {
    (void)state;
    draws = 5;
    draw_examples();
    rows[0][0] = 0;
    for (uint32_t round = 0; round < 2; round++) {
        const lk_kernels *k;
        for (unsigned n = 0; (void)lk_kernels_missing(n, &k), k; n++) {
            const lk_microbatch b = {
                .grain_count = 6, .total_grains = 6, .examples = EXAMPLES, .position = 0};
            machine m;
            if (lk_kernels_missing(n, &k)) continue;
            build(&m, 16, true, true, k);
            if (round) param_named(&m, "joint/bias")[LK_BLANK] = -1.0f;
            lk_execute_forward(&m.frame, &b);
            const uint32_t *said = lk_tensor_at(&m.frame, lk_program_shown(&m.program));
            for (uint32_t e = 0; e < EXAMPLES * ROW; e++) {
                const uint32_t row = e / ROW * ROW;
                if (e > row) assert_int_equal(said[e], round && said[row] ? 1 : 0);
            }
            give(&m);
        }
    }
}

// A label after which there are always more: a frame says a bounded number of them.
static void a_frame_says_a_bounded_number(void **state) {
    const lk_joint j = {.labels = 100};
    uint32_t said[101] = {0};
    lk_decoding d = {.frame = 0};
    (void)state;
    for (uint32_t i = 0; i < 25; i++) lk_decoding_take(&d, 1, said);
    assert_int_equal(d.frame, 25 / LK_DECODE_HERE_MAX);
    assert_int_equal(d.here, 25 % LK_DECODE_HERE_MAX);
    assert_int_equal(d.said, 25);
    lk_decoding_take(&d, LK_BLANK, said);
    assert_int_equal(d.frame, 25 / LK_DECODE_HERE_MAX + 1);
    assert_int_equal(d.here, 0);
    assert_true(lk_decoding_is_on(&j, &d, d.frame + 1));
    assert_false(lk_decoding_is_on(&j, &d, d.frame));
}

static void not_finite_is_said(void **state) {
    const lk_kernels *k;
    (void)state;
    draws = 9;
    draw_examples();
    for (unsigned n = 0; (void)lk_kernels_missing(n, &k), k; n++) {
        // An example of no labels has one row, which likes no blank: a label that nobody has said
        // in training leads to rows of the embedding that are too large.
        const lk_microbatch b = one_example(1);
        machine m;
        if (lk_kernels_missing(n, &k)) continue;
        memset(rows[1], 0, sizeof rows[1]);
        rows[1][0] = ROWS;
        build(&m, 2, true, true, k);
        param_named(&m, "joint/bias")[1] = 1.0f;
        for (uint32_t i = 0; i < 5; i++) param_named(&m, "said/embeddings")[5 + i] = 3e38f;
        for (uint32_t i = 0; i < 5 * 28; i++) param_named(&m, "pred/kernel")[i] = 3e38f;
        lk_execute_forward(&m.frame, &b);
        assert_true(m.frame.bad_op != LK_NONE);
        assert_ptr_equal(m.program.ops[m.frame.bad_op].type, &lk_op_decode);
        give(&m);
    }
}

static void an_encoder_knows_no_labels(void **state) {
    lk_layer other[LK_COUNT(layers)];
    lk_run_spec changed = spec;
    const lk_layout layout = {.replicas = 1, .fuse = true};
    const lk_plan_options options = {.overlay = true};
    lk_error error = {.status = LK_OK};
    lk_program p;
    (void)state;
    memcpy(other, layers, sizeof other);
    changed.model.layers = other;
    other[4].target_shape = (lk_sizes){.count = 2, .at = {LABELS + 1, 7}};
    other[4].inputs[0] = 3;
    void *tables = memory(lk_program_bytes(&changed.model));
    assert_int_equal(lk_program_build(&changed, &layout, &options, tables, &p, &error),
                     LK_BAD_CONFIG);
    if (!strstr(error.text, "layer joint: found a first input that depends on the labels"))
        fail_msg("%s", error.text);
    free(tables);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_are_the_fewest),
        cmocka_unit_test(models_say_what_plain_ones_say),
        cmocka_unit_test(the_lowest_of_equals),
        cmocka_unit_test(a_frame_says_a_bounded_number),
        cmocka_unit_test(not_finite_is_said),
        cmocka_unit_test(an_encoder_knows_no_labels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
