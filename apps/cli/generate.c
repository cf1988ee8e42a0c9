// generate.c - lockstep generate: images that a run's generator makes of noise, as one picture or
// as an array.
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apps/cli/command.h"
#include "apps/run/generate.h"
#include "io/npy.h"
#include "io/png.h"

enum { GENERATED_UNLESS_SAID = 64 };

static bool ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), m = strlen(end);
    return n > m && strcmp(text + n - m, end) == 0;
}

static lk_status check_options(const lk_common_options *o, lk_error *error) {
    if (!o->run_dir == !o->checkpoint) {
        return lk_fail(error, LK_BAD_USAGE,
                       "wanted weights: either --run-dir DIR or --checkpoint FILE");
    }
    if (!o->output || (!ends_with(o->output, ".png") && !ends_with(o->output, ".npy"))) {
        return lk_fail(error, LK_BAD_USAGE,
                       "generate: --output: found %s, wanted FILE.png or FILE.npy",
                       o->output ? o->output : "none");
    }
    LK_CHECK(lk_output_check("--output", o->output, NULL, error));
    return lk_check_inputs(o, "--output", o->output, error);
}

static lk_status open_run(lk_run *run, const lk_common_options *o, lk_text_out *out,
                          lk_error *error) {
    lk_config_options options = o->config;
    options.evaluates = options.no_data = true;
    options.gpus = 1;
    LK_CHECK(lk_run_configure(run, &options, (lk_run_needs){0}, error));
    run->layout.replicas = 1;
    LK_CHECK(lk_run_plan(run, error));
    lk_generator g;
    LK_CHECK(lk_generator_need(run, &g, error));
    LK_CHECK(lk_run_start(run, o->max_memory, error));
    uint64_t steps;
    const lk_say say = lk_say_on(out);
    return lk_load_weights(run, &lk_file_ops_posix, o->checkpoint, o->run_dir, &say, &steps, error);
}

static lk_noise_choice choice_of(const lk_common_options *o) {
    lk_noise_choice choice = {.count = o->count ? o->count : GENERATED_UNLESS_SAID,
                              .between = o->between[0] > 0};
    if (choice.between) choice.first = o->between[0] - 1;
    if (choice.between) choice.last = o->between[1] - 1;
    return choice;
}

// --- one picture ---------------------------------------------------------------------------------

static lk_status no_memory(const char *path, lk_error *error) {
    return lk_fail(error, LK_UNAVAILABLE, "%s: no memory for it", path);
}

static lk_status write_grid(lk_run *run, const lk_generator *g, const lk_noise_choice *choice,
                            const char *path, lk_error *error) {
    const lk_grid grid = lk_grid_of(run, choice->count);
    if (grid.png_bytes == 0) {
        return lk_fail(error, LK_BAD_USAGE,
                       "--count: found %llu, whose picture has more than %d pixels; wanted fewer, "
                       "or --output FILE.npy",
                       (unsigned long long)choice->count, LK_PNG_PIXELS_MAX);
    }
    const size_t image_bytes = (size_t)choice->count * g->image_floats;
    uint8_t *images = malloc(image_bytes + grid.pixel_bytes + grid.png_bytes);
    if (!images) return no_memory(path, error);
    uint8_t *pixels = images + image_bytes, *png = pixels + grid.pixel_bytes;
    lk_status status = lk_run_seal(run, false, error);
    if (status == LK_OK) status = lk_generate(run, g, choice, 0, choice->count, images, error);
    if (status == LK_OK) {
        lk_grid_fill(run, &grid, choice->count, images, pixels);
        lk_png_write(png, pixels, grid.height, grid.width, grid.channels);
        status = lk_file_write_beside(&lk_file_ops_posix, path, png, grid.png_bytes, error);
    }
    free(images);
    return status;
}

// --- an array ------------------------------------------------------------------------------------

static lk_status write_some(lk_run *run, const lk_generator *g, const lk_noise_choice *choice,
                            lk_npy_writer *writer, uint8_t *images, lk_error *error) {
    for (uint64_t at = 0; at < choice->count;) {
        const uint64_t some = LK_MIN(choice->count - at, g->program->microbatch_examples);
        LK_CHECK(lk_generate(run, g, choice, at, some, images, error));
        LK_CHECK(lk_npy_add_images(writer, images, some, error));
        at += some;
    }
    return lk_npy_finish(writer, error);
}

static lk_status write_array(lk_run *run, const lk_generator *g, const lk_noise_choice *choice,
                             const char *path, lk_error *error) {
    const lk_model *m = &run->config.spec.model;
    const lk_npy_images shape = {choice->count, m->in_h, m->in_w, m->in_c, false};
    lk_npy_writer writer;
    uint8_t *images = malloc((size_t)g->program->microbatch_examples * g->image_floats);
    if (!images) return no_memory(path, error);
    lk_status status = lk_run_seal(run, false, error);
    if (status == LK_OK) {
        status = lk_npy_start_images(&writer, &lk_file_ops_posix, path, &shape, error);
        if (status == LK_OK) status = write_some(run, g, choice, &writer, images, error);
        if (status != LK_OK) lk_npy_abandon(&writer);
    }
    free(images);
    return status;
}

lk_status lk_command_generate(int argc, char **argv, lk_error *error) {
    static lk_run run;
    lk_common_options o;
    lk_text_out out;
    lk_generator g;
    LK_CHECK(lk_parse_common(argc, argv, LK_OPT_WEIGHTS | LK_OPT_GENERATE, &o, error));
    LK_CHECK(check_options(&o, error));
    const lk_noise_choice choice = choice_of(&o);
    lk_text_open(&out, STDOUT_FILENO);
    lk_status status = open_run(&run, &o, &out, error);
    if (status == LK_OK) status = lk_generator_need(&run, &g, error);
    if (status == LK_OK) {
        status = ends_with(o.output, ".png") ? write_grid(&run, &g, &choice, o.output, error)
                                             : write_array(&run, &g, &choice, o.output, error);
    }
    const uint32_t channels = run.config.spec.model.in_c;
    if (status == LK_OK && ends_with(o.output, ".png") &&
        lk_png_shown_channels(channels) < channels) {
        lk_text_line(&out,
                     "of %u channels the picture shows the first; all are in --output FILE.npy",
                     channels);
    }
    if (status == LK_OK) {
        lk_text_line(&out, "images %llu", (unsigned long long)choice.count);
        status = lk_text_check(&out, "standard output", error);
    }
    lk_run_close(&run);
    return status;
}
