// scorer.c - see scorer.h.
#include "apps/cli/scorer.h"

#include <stdlib.h>
#include <string.h>

// --- start ---------------------------------------------------------------------------------------

static lk_status take_memory(lk_scorer *s, lk_error *error) {
    const uint32_t features = s->judge.features, classes = s->judge.classes;
    const uint64_t set = lk_moments_doubles(features, classes);
    s->memory = malloc((size_t)(3 * set + lk_frechet_doubles(features)) * sizeof *s->memory);
    s->images = malloc((size_t)s->generator.program->microbatch_examples *
                       s->generator.image_floats);
    if (!s->memory || !s->images) {
        return lk_fail(error, LK_UNAVAILABLE, "judge: no memory for %u features", features);
    }
    lk_moments_start(&s->made, features, classes, s->memory);
    for (uint32_t i = 0; i < 2; i++) {
        lk_moments_start(&s->test[i], features, classes, s->memory + (i + 1) * set);
    }
    return LK_OK;
}

lk_status lk_scorer_open(lk_scorer *s, const lk_run *run, const lk_common_options *o,
                         lk_text_out *out, lk_error *error) {
    const lk_say say = lk_say_on(out);
    if (!*run->config.judge) {
        if (!o->count) return LK_OK;
        return lk_fail(error, LK_BAD_USAGE, "--count: of images that a judge scores; wanted "
                                            "--judge DIR, too");
    }
    LK_CHECK(lk_generator_need(run, &s->generator, error));
    s->test_count = run->test.count;
    s->count = o->count ? o->count : s->test_count;
    if (s->count < 2 || s->test_count < 4) {
        return lk_fail(error, LK_BAD_USAGE,
                       "--judge: found %llu images to make and %llu of the test set, wanted 2 and "
                       "4 or more",
                       (unsigned long long)s->count, (unsigned long long)s->test_count);
    }
    LK_CHECK(lk_judge_open(&s->judge, run->config.judge, run, o->max_memory, &say, error));
    LK_CHECK(take_memory(s, error));
    s->on = true;
    return lk_run_seal(&s->judge.run, false, error);
}

void lk_scorer_close(lk_scorer *s) {
    lk_judge_close(&s->judge);
    free(s->memory);
    free(s->images);
}

// --- scores --------------------------------------------------------------------------------------

static lk_status judge_made(lk_scorer *s, lk_run *run, lk_error *error) {
    const lk_noise_choice choice = {.count = s->count};
    const uint64_t most = s->generator.program->microbatch_examples;
    for (uint64_t at = 0; at < s->count; at += most) {
        const uint64_t some = LK_MIN(most, s->count - at);
        LK_CHECK(lk_generate(run, &s->generator, &choice, at, some, s->images, error));
        LK_CHECK(lk_judge_add(&s->judge, s->images, some, &s->made, error));
    }
    return LK_OK;
}

static lk_status judge_test(lk_scorer *s, const lk_run *run, uint64_t at, uint64_t end,
                            lk_moments *to, lk_error *error) {
    const uint64_t most = s->generator.program->microbatch_examples;
    const size_t bytes = (size_t)s->generator.image_floats;
    while (at < end) {
        const uint64_t some = LK_MIN(most, end - at);
        for (uint64_t i = 0; i < some; i++) {
            memcpy(s->images + i * bytes, lk_dataset_image(&run->test, at + i), bytes);
        }
        LK_CHECK(lk_judge_add(&s->judge, s->images, some, to, error));
        at += some;
    }
    return LK_OK;
}

lk_status lk_scorer_score(lk_scorer *s, lk_run *run, lk_error *error) {
    const uint64_t half = s->test_count / 2;
    const uint32_t features = s->judge.features, classes = s->judge.classes;
    double *scratch = s->memory + 3 * lk_moments_doubles(features, classes);
    LK_CHECK(judge_made(s, run, error));
    LK_CHECK(judge_test(s, run, 0, half, &s->test[0], error));
    LK_CHECK(judge_test(s, run, half, s->test_count, &s->test[1], error));
    s->test_distance = lk_frechet_distance(&s->test[0], &s->test[1], scratch);
    lk_moments_join(&s->test[0], &s->test[1]);
    s->score = lk_score(&s->made);
    s->test_score = lk_score(&s->test[0]);
    s->distance = lk_frechet_distance(&s->made, &s->test[0], scratch);
    return lk_run_check_data(run, error);
}

void lk_scorer_lines(lk_text_out *out, const lk_scorer *s) {
    lk_text_line(out, "generated %llu", (unsigned long long)s->count);
    lk_text_line(out, "score %.6g", s->score);
    lk_text_line(out, "frechet_distance %.6g", s->distance);
    lk_text_line(out, "test_score %.6g", s->test_score);
    lk_text_line(out, "test_frechet_distance %.6g", s->test_distance);
}

void lk_scorer_object(json_t *object, const lk_scorer *s) {
    (void)json_object_set_new(object, "generated", json_integer((json_int_t)s->count));
    (void)json_object_set_new(object, "score", json_real(s->score));
    (void)json_object_set_new(object, "frechet_distance", json_real(s->distance));
    (void)json_object_set_new(object, "test_score", json_real(s->test_score));
    (void)json_object_set_new(object, "test_frechet_distance", json_real(s->test_distance));
}
