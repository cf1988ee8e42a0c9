// augment_test.c - LOAD of images that are moved, mirrored, adjusted, cut and normalised: every
// pixel by the formula of ARITHMETIC.md 3, one after the other, for every variant and any
// microbatch.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ops/graph/execute.h"
#include "ops/variant.h"

enum { H = 7, W = 9, CHANNELS_MAX = 5, EXAMPLES = 24, CLASSES = 3 };

static uint8_t images[EXAMPLES][H * W * CHANNELS_MAX];

static void backwards(void *context, uint64_t epoch, uint64_t position, uint32_t count,
                      uint64_t *index) {
    (void)context, (void)epoch;
    for (uint32_t i = 0; i < count; i++) index[i] = EXAMPLES - 1 - position - i;
}

static const uint8_t *image(void *context, uint64_t index) {
    (void)context;
    return images[index];
}

static uint32_t label(void *context, uint64_t index) {
    (void)context;
    return (uint32_t)(index % CLASSES);
}

static const lk_source source = {NULL, backwards, image, label, false, NULL, false};

static const lk_layer layers[] = {{.type = &lk_layer_flatten, .name = "flatten"},
                                  {.type = &lk_layer_dense,
                                   .name = "logits",
                                   .units = CLASSES,
                                   .use_bias = true,
                                   .initializer = &lk_initializer_zeros}};

static lk_run_spec spec_of(uint32_t channels, uint32_t range, const lk_augment *augment) {
    return (lk_run_spec){.model = {.in_h = H,
                                   .in_w = W,
                                   .in_c = channels,
                                   .input_range = range,
                                   .classes = CLASSES,
                                   .layers = layers,
                                   .layer_count = LK_COUNT(layers)},
                         .optimizer = {.type = &lk_optimizer_sgd, .learning_rate = 0.01f},
                         .seed = (7ull << 32) + 11,
                         .global_batch = 16,
                         .grain = 4,
                         .example_count = EXAMPLES,
                         .augment = *augment};
}

// --- the formula ---------------------------------------------------------------------------------

static float of_byte(const lk_model *m, uint8_t byte) {
    return m->input_range == LK_RANGE_SIGNED ? ((float)byte - 127.5f) / 127.5f
                                             : (float)byte * 0x1.010102p-8f;
}

static int64_t below(uint32_t word, uint64_t bound) { return (int64_t)((word * bound) >> 32); }
static float unit(uint32_t word) { return (float)(word >> 8) * 0x1p-24f; }

static float wanted(const lk_run_spec *s, bool train, uint64_t step, uint32_t place,
                    const uint8_t *from, int64_t y, int64_t x, uint32_t c) {
    const lk_augment *a = &s->augment;
    const lk_model *m = &s->model;
    const uint32_t high = (uint32_t)(step >> 32) << 16;
    const lk_philox_block w = lk_philox(s->seed, 7, 0, place, (uint32_t)step, high);
    const lk_philox_block v = lk_philox(s->seed, 7, 1, place, (uint32_t)step, high);
    const float middle = m->input_range == LK_RANGE_SIGNED ? 0.0f : 0.5f;
    int64_t sy = y, sx = x;
    float contrast = 1.0f, offset = 0.0f, value;
    if (train) {
        const int64_t cy = below(v.word[1], H) - a->cutout_h / 2;
        const int64_t cx = below(v.word[2], W) - a->cutout_w / 2;
        if (y >= cy && y < cy + a->cutout_h && x >= cx && x < cx + a->cutout_w) return 0.0f;
        if (a->flip && w.word[2] >= 0x80000000u) sx = W - 1 - x;
        sy += below(w.word[0], 2 * a->shift_h + 1) - a->shift_h;
        sx += below(w.word[1], 2 * a->shift_w + 1) - a->shift_w;
        contrast = fmaf(a->contrast, 2.0f * unit(w.word[3]) - 1.0f, 1.0f);
        offset = fmaf(-contrast, middle, middle) + a->brightness * (2.0f * unit(v.word[0]) - 1.0f);
    }
    const bool inside = sy >= 0 && sy < H && sx >= 0 && sx < W;
    sy = sy < 0 ? 0 : sy < H ? sy : H - 1;
    sx = sx < 0 ? 0 : sx < W ? sx : W - 1;
    value = inside || a->padding == LK_PADDED_EDGE
                ? of_byte(m, from[((uint64_t)sy * W + (uint64_t)sx) * m->in_c + c])
                : of_byte(m, 0);
    if (!a->mean.count && !(train && (a->contrast != 0.0f || a->brightness != 0.0f))) return value;
    const float r = a->mean.count ? 1.0f / a->deviation.at[c] : 1.0f;
    const float shift = a->mean.count ? -a->mean.at[c] * r : 0.0f;
    return fmaf(value, contrast * r, fmaf(offset, r, shift));
}

// --- a program's LOAD ----------------------------------------------------------------------------

static void *memory(uint64_t bytes) {
    void *at = aligned_alloc(4096, lk_round_up(bytes + 1, 4096));
    assert_non_null(at);
    memset(at, 0, lk_round_up(bytes + 1, 4096));
    return at;
}

// Grains of 4 at the places from 8 on, in step `step`.
static void check_variant(const lk_run_spec *spec, const lk_program *p, lk_frame *f, bool train,
                          uint64_t step) {
    const lk_microbatch microbatch = {.first_grain = 2,
                                      .grain_count = 2,
                                      .examples = 7,
                                      .total_grains = 4,
                                      .shuffled = train,
                                      .step = step,
                                      .position = 8};
    const float *x = lk_tensor_at(f, p->input);
    const uint32_t c = spec->model.in_c;
    lk_counter after;
    lk_frame_start(f);
    memset(lk_tensor_at(f, p->input), 0xff, 7 * H * W * c * sizeof *x);
    if (train)
        lk_execute_train_ops(f, &microbatch, 0, 1, &after);
    else
        lk_execute_forward(f, &microbatch);
    assert_int_equal(f->bad_op, LK_NONE);
    for (uint32_t m = 0; m < 7; m++) {
        const uint8_t *from = images[train ? EXAMPLES - 1 - (8 + m) : 8 + m];
        for (uint32_t i = 0; i < H * W * c; i++) {
            const float want = wanted(spec, train, step, 8 + m, from, i / c / W, i / c % W, i % c);
            const float got = x[m * H * W * c + i];
            if (memcmp(&want, &got, sizeof want) == 0) continue;
            fail_msg(
                "%s, train %d, step %llu, example %u, value %u of %u channels: found %a, "
                "wanted %a",
                f->kernels->name, train, (unsigned long long)step, m, i, c, (double)got,
                (double)want);
        }
    }
}

static void check(uint32_t channels, uint32_t range, const lk_augment *augment) {
    const lk_run_spec spec = spec_of(channels, range, augment);
    const lk_layout layout = {.replicas = 1, .fuse = true, .microbatch_examples = 8};
    const lk_plan_options options = {.overlay = false};
    lk_error error = {.status = LK_OK};
    lk_program p;
    void *tables = memory(lk_program_bytes(&spec.model));
    assert_int_equal(lk_program_build(&spec, &layout, &options, tables, &p, &error), LK_OK);
    lk_frame f = {.program = &p,
                  .source = &source,
                  .device = memory(p.regions[LK_REGION_DEVICE].bytes),
                  .replica = memory(p.regions[LK_REGION_REPLICA].bytes)};
    lk_program_initialize(&p, f.device);
    for (unsigned v = 0; lk_kernels_missing(v, &f.kernels), f.kernels != NULL; v++) {
        if (lk_kernels_missing(v, &f.kernels) != NULL) continue;
        for (uint64_t step = 0; step < 12; step++) {
            check_variant(&spec, &p, &f, true, step + (step == 11 ? 5ull << 32 : 0));
        }
        check_variant(&spec, &p, &f, false, 3);
    }
    free(tables);
    free(f.device);
    free(f.replica);
}

static const lk_augment kinds[] = {
    {.shift_h = 2, .shift_w = 3},
    {.shift_h = 6, .shift_w = 8, .padding = LK_PADDED_EDGE, .flip = 1},
    {.shift_w = 1, .padding = LK_PADDED_EDGE},
    {.flip = 1},
    {.cutout_h = 3, .cutout_w = 4},
    {.cutout_h = 1, .cutout_w = 200, .flip = 1},
    {.cutout_h = 0, .cutout_w = 4, .flip = 1},
    {.brightness = 0.25f},
    {.contrast = 0.5f, .shift_h = 1},
    {.shift_h = 2,
     .shift_w = 2,
     .flip = 1,
     .cutout_h = 4,
     .cutout_w = 4,
     .brightness = 0.1f,
     .contrast = 0.2f},
};

static void test_formula(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof images; i++) {
        images[i / sizeof *images][i % sizeof *images] = (uint8_t)(i * 2654435761u >> 13);
    }
    for (uint32_t i = 0; i < LK_COUNT(kinds); i++) {
        for (uint32_t channels = 1; channels <= CHANNELS_MAX; channels += 2) {
            lk_augment normalised = kinds[i];
            check(channels, i % 2 ? LK_RANGE_SIGNED : LK_RANGE_UNIT, &kinds[i]);
            normalised.mean.count = normalised.deviation.count = channels;
            for (uint32_t c = 0; c < channels; c++) {
                normalised.mean.at[c] = 0.1f + 0.17f * (float)c;
                normalised.deviation.at[c] = 0.3f + 0.05f * (float)c;
            }
            check(channels, i % 3 ? LK_RANGE_UNIT : LK_RANGE_SIGNED, &normalised);
        }
    }
}

// Every draw comes: a shift of 1 is -1, 0 and 1, a half of the images is mirrored, and every place
// is cut somewhere; two steps, and two examples, draw otherwise.
static void test_draws(void **state) {
    const lk_augment a = {.shift_h = 1,
                          .shift_w = 2,
                          .flip = 1,
                          .cutout_h = 2,
                          .cutout_w = 2,
                          .brightness = 0.5f,
                          .contrast = 0.5f};
    uint32_t dy[3] = {0}, dx[5] = {0}, flips = 0, cut = 0, same = 0;
    float least = 2.0f, most = 0.0f;
    (void)state;
    for (uint32_t i = 0; i < 3000; i++) {
        const lk_augmented d = lk_augment_draw(&a, 1, i / 30, i % 30, H, W, 0.5f);
        const lk_augmented next = lk_augment_draw(&a, 1, i / 30 + 1, i % 30, H, W, 0.5f);
        assert_true(d.dy >= -1 && d.dy <= 1 && d.dx >= -2 && d.dx <= 2);
        dy[d.dy + 1]++;
        dx[d.dx + 2]++;
        flips += d.flip;
        cut |= 1u << (d.cut_x + 1);
        same += d.contrast == next.contrast;
        least = fminf(least, d.contrast);
        most = fmaxf(most, d.contrast);
    }
    for (uint32_t i = 0; i < 3; i++) assert_in_range(dy[i], 850, 1150);
    for (uint32_t i = 0; i < 5; i++) assert_in_range(dx[i], 500, 700);
    assert_in_range(flips, 1350, 1650);
    assert_int_equal(cut, (1u << W) - 1);
    assert_true(same < 3 && least >= 0.5f && least < 0.51f && most < 1.5f && most > 1.49f);
}

static void refused(const lk_augment *a, const char *words) {
    const lk_run_spec spec = spec_of(3, LK_RANGE_UNIT, a);
    lk_error error = {.status = LK_OK};
    assert_int_equal(lk_run_spec_check(&spec, &error), LK_BAD_CONFIG);
    if (!strstr(error.text, words)) fail_msg("found \"%s\", wanted \"%s\"", error.text, words);
}

static void test_refused(void **state) {
    (void)state;
    refused(&(lk_augment){.mean = {1, {0.5f}}, .deviation = {1, {1.0f}}}, "which has 3");
    refused(&(lk_augment){.mean = {3, {0.5f}}}, "found 3 mean and 0 deviation");
    refused(&(lk_augment){.deviation = {3, {0.5f}}}, "found 0 mean and 3 deviation");
    refused(&(lk_augment){.shift_h = H}, "found [7, 0], wanted less than the 7 rows");
    refused(&(lk_augment){.shift_w = W}, "found [0, 9]");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formula),
        cmocka_unit_test(test_draws),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
