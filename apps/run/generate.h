// generate.h - images that a generator makes of noise: of a run of several networks the first value
// of its objectives that is a network's of noise alone and has the size of an image. Host only.
//
// Number `n` is a pure function of the weights, the seed and n: noise is drawn as evaluation draws
// it (LK_PURPOSE_FIXED_NOISE), so that two checkpoints are seen with the same noise. Moving
// statistics take the place of a grain's, as in evaluation.
#ifndef LOCKSTEP_APPS_RUN_GENERATE_H
#define LOCKSTEP_APPS_RUN_GENERATE_H

#include "apps/run/run.h"
#include "apps/run/say.h"

typedef struct lk_generator {
    const lk_program *program;   // of an objective that has the value
    uint32_t noise_op, last_op;  // the value is the y of `last_op`
    uint8_t values[2];           // lk_op.value of the ops that make noise and image
    uint64_t noise_floats, image_floats;
} lk_generator;

// False: no value of the run is an image of noise. Before and after lk_run_start.
bool lk_generator_find(const lk_run *run, lk_generator *out);

// LK_BAD_CONFIG where lk_generator_find finds none.
lk_status lk_generator_need(const lk_run *run, lk_generator *out, lk_error *error);

// Which noise image n is made of: number first + n; or, where `between` is set, what lies between
// those of the numbers first and last, in equal steps, of `count` images.
typedef struct lk_noise_choice {
    uint64_t first, last, count;
    bool between;
} lk_noise_choice;

// The images [at, at + count) as bytes, (count, height, width, channels). Between two steps, by one
// thread; in a replica region, whose values are lost. Takes no memory. LK_NOT_FINITE.
lk_status lk_generate(lk_run *run, const lk_generator *g, const lk_noise_choice *choice,
                      uint64_t at, uint64_t count, uint8_t *images, lk_error *error);

// What a GPU's part of the plan needs for it, if this run makes any.
void lk_generated_needs(const lk_run *run, lk_cuda_needs *needs);

// --- a grid --------------------------------------------------------------------------------------

// Rows and columns of a picture of `count` images, as near to a square as can be; its size. A
// picture that is too large for io/png.h has 0 png_bytes.
typedef struct lk_grid {
    uint32_t rows, columns, height, width, channels;
    size_t pixel_bytes, png_bytes;
} lk_grid;
lk_grid lk_grid_of(const lk_run *run, uint64_t count);

// images   (count, height, width, channels) of one image each
// pixels   (pixel_bytes) of the grid: images row after row, what is left over in grey
void lk_grid_fill(const lk_run *run, const lk_grid *grid, uint64_t count, const uint8_t *images,
                  uint8_t *pixels);

// --- pictures of a training ----------------------------------------------------------------------

// samples-NNNNNNNNNN.png in the run's directory after each samples.every_steps steps: of the first
// samples.count numbers, so of the same noise each time.
uint64_t lk_samples_bytes(const lk_run *run);
// Can there be pictures, where some are asked for? LK_BAD_CONFIG. After lk_run_plan.
lk_status lk_samples_check(const lk_run *run, lk_error *error);
// Says where pictures show less than the images have.
void lk_samples_say(const lk_run *run, const lk_say *say);
bool lk_samples_due(const lk_run *run, uint64_t done);
// Is it the name of such a picture, or of one that was cut short (.tmp)?
bool lk_samples_is_ours(const char *name);

typedef struct lk_samples {
    lk_grid grid;
    const uint8_t *png;  // in the run's memory: good until the next one is made
} lk_samples;
lk_status lk_samples_make(lk_run *run, const lk_run_dir *dir, uint64_t done, lk_samples *out,
                          lk_error *error);

#endif
