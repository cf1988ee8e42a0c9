// generate.c - see generate.h.
#include "apps/run/generate.h"

#include <string.h>

#include "apps/run/inputs.h"
#include "io/png.h"
#include "ops/graph/mixed.h"
#include "ops/half.h"

// --- where it is ---------------------------------------------------------------------------------

static uint64_t image_floats(const lk_run *run) {
    const lk_model *m = &run->config.spec.model;
    return (uint64_t)m->in_h * m->in_w * m->in_c;
}

// The number of the noise that alone is what value `v` takes; false where it takes more.
static bool takes_noise(const lk_graph *g, const lk_objective *o, uint32_t v, uint32_t *noise) {
    const lk_use *use = &o->values[v];
    if (lk_use_is_noise(use) || g->networks[use->network].input_count != 1) return false;
    *noise = use->inputs[0];
    return *noise != LK_IMAGES && lk_use_is_noise(&o->values[*noise]);
}

// Ops are fused inside of a value alone, so its last forward op has it as its y.
static bool find_ops(const lk_program *p, lk_generator *g) {
    g->noise_op = g->last_op = LK_NONE;
    for (uint32_t i = 0; i < p->forward_end; i++) {
        if (p->ops[i].value == g->values[0]) g->noise_op = i;
        if (p->ops[i].value == g->values[1]) g->last_op = i;
    }
    if (g->noise_op == LK_NONE || g->last_op == LK_NONE) return false;
    const uint32_t noise = p->ops[g->noise_op].tensor[LK_Y], y = p->ops[g->last_op].tensor[LK_Y];
    g->noise_floats = p->tensors[noise].shape[1];
    g->image_floats = p->tensors[y].shape[1];
    return true;
}

bool lk_generator_find(const lk_run *run, lk_generator *out) {
    const lk_graph *g = run->config.spec.model.graph;
    for (uint32_t k = 0; g && k < g->objective_count; k++) {
        const lk_objective *o = &g->objectives[k];
        for (uint32_t v = 0; v < o->value_count; v++) {
            uint32_t noise;
            if (!takes_noise(g, o, v, &noise)) continue;
            *out = (lk_generator){.program = &run->programs[k],
                                  .values = {(uint8_t)(noise + 1), (uint8_t)(v + 1)}};
            if (find_ops(out->program, out) && out->image_floats == image_floats(run)) return true;
        }
    }
    return false;
}

lk_status lk_generator_need(const lk_run *run, lk_generator *out, lk_error *error) {
    if (run->config.spec.model.input_type != LK_INPUT_U8) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "%s: model.input_type: found f32, wanted u8: images are bytes",
                       run->config.document.source);
    }
    if (lk_generator_find(run, out)) return LK_OK;
    return lk_fail(error, LK_BAD_CONFIG,
                   "%s: found no value of an objective that a network makes of noise alone and "
                   "that has the size of model.input, wanted one: a generator of images",
                   run->config.document.source);
}

// --- images --------------------------------------------------------------------------------------

static void draw(const lk_run *run, const lk_op *op, uint64_t number, float *to) {
    const lk_noise_key key = {.seed = run->config.spec.seed,
                              .purpose = LK_PURPOSE_FIXED_NOISE,
                              .example = (uint32_t)number};
    for (uint64_t i = 0; i < op->floats; i++) to[i] = lk_noise_at(&op->noise, &key, i);
}

// Of image n, without room for two noises: element by element.
static void draw_between(const lk_run *run, const lk_op *op, const lk_noise_choice *c, uint64_t n,
                         float *to) {
    lk_noise_key key[2] = {{.seed = run->config.spec.seed, .purpose = LK_PURPOSE_FIXED_NOISE}};
    key[1] = key[0];
    key[0].example = (uint32_t)c->first;
    key[1].example = (uint32_t)c->last;
    const float part = c->count > 1 ? (float)n / (float)(c->count - 1) : 0.0f;
    for (uint64_t i = 0; i < op->floats; i++) {
        const float a = lk_noise_at(&op->noise, &key[0], i);
        const float b = lk_noise_at(&op->noise, &key[1], i);
        to[i] = lk_fmaf(part, b - a, a);
    }
}

// The op's noise of image `number` of the choice.
static void draw_one(const lk_run *run, const lk_op *op, const lk_noise_choice *choice,
                     uint64_t number, float *to) {
    if (choice->between) {
        draw_between(run, op, choice, number, to);
    } else {
        draw(run, op, choice->first + number, to);
    }
}

// The noise of images [at, at + count), rounded where the op's own would be.
static uint32_t draw_some(lk_run *run, const lk_generator *g, const lk_noise_choice *choice,
                          uint64_t at, uint32_t count) {
    const lk_frame *f = &run->group.frames[0];
    const lk_op *op = &g->program->ops[g->noise_op];
    const bool half = lk_dtype_is_half(g->program->tensors[op->tensor[LK_Y]].dtype);
    float *y = lk_tensor_at(f, op->tensor[half ? LK_SCRATCH : LK_Y]);
    uint32_t bad = 0;
    for (uint32_t n = 0; n < count; n++) {
        float *noise = y + (half ? 0 : n * g->noise_floats);
        draw_one(run, op, choice, at + n, noise);
        if (half) bad |= lk_mixed_load(f, op, n, noise);
    }
    return bad;
}

static float value_at(lk_dtype dtype, const void *y, uint64_t i) {
    if (dtype == LK_F16) return lk_half_to_float(((const uint16_t *)y)[i]);
    if (dtype == LK_BF16) return lk_bfloat_to_float(((const uint16_t *)y)[i]);
    return ((const float *)y)[i];
}

static lk_status not_finite(const lk_program *p, uint32_t op, lk_error *error) {
    return lk_fail(error, LK_NOT_FINITE, "generated images: %s is not finite",
                   lk_bad_tensor(p, op, LK_NONE));
}

// The generator's values of `count` images as bytes.
static void take_bytes(const lk_run *run, const lk_generator *g, uint32_t count, const void *y,
                       uint8_t *images) {
    const lk_tensor *t = &g->program->tensors[g->program->ops[g->last_op].tensor[LK_Y]];
    for (uint64_t i = 0; i < count * g->image_floats; i++) {
        images[i] = lk_input_byte(&run->config.spec.model, value_at(t->dtype, y, i));
    }
}

static lk_cuda_making making_of(const lk_generator *g, uint32_t count) {
    return (lk_cuda_making){.begin = g->noise_op + 1,
                            .end = g->last_op + 1,
                            .value = g->values[1],
                            .from = g->program->ops[g->noise_op].tensor[LK_Y],
                            .to = g->program->ops[g->last_op].tensor[LK_Y],
                            .examples = count};
}

// Of images for a GPU: row n of them lies behind the rows before, in the tensor's dtype.
static uint32_t draw_there(const lk_run *run, const lk_generator *g, const lk_noise_choice *choice,
                           uint64_t at, uint32_t count, float *rows) {
    const lk_op *op = &g->program->ops[g->noise_op];
    const lk_dtype dtype = g->program->tensors[op->tensor[LK_Y]].dtype;
    uint8_t *half = (uint8_t *)rows;
    uint32_t bad = 0;
    for (uint32_t n = 0; n < count; n++) {
        const uint8_t *noise = (const uint8_t *)(rows + n * g->noise_floats);
        draw_one(run, op, choice, at + n, rows + n * g->noise_floats);
        if (!lk_dtype_is_half(dtype)) continue;
        for (uint64_t i = 0; i < g->noise_floats; i++, half += sizeof(uint16_t)) {  // in place
            float v;
            memcpy(&v, noise + i * sizeof v, sizeof v);
            const uint16_t bits = dtype == LK_F16 ? lk_half_from_float(v) : lk_bfloat_from_float(v);
            memcpy(half, &bits, sizeof bits);
            v = dtype == LK_F16 ? lk_half_to_float(bits) : lk_bfloat_to_float(bits);
            bad |= !(v - v == 0.0f);
        }
    }
    return bad;
}

// By a GPU, of noise that is drawn here.
static lk_status generate_there(lk_run *run, const lk_generator *g, const lk_noise_choice *choice,
                                uint64_t at, uint32_t count, uint8_t *images, lk_error *error) {
    const lk_program *p = g->program;
    const lk_cuda_making making = making_of(g, count);
    float *const rows = lk_cuda_made(&run->gpus);
    uint32_t bad_op;
    run->cuda->use(&run->gpus, p);
    if (draw_there(run, g, choice, at, count, rows)) return not_finite(p, g->noise_op, error);
    LK_CHECK(run->cuda->make(&run->gpus, &making, &bad_op, error));
    if (bad_op != LK_NONE) return not_finite(p, bad_op, error);
    take_bytes(run, g, count, rows, images);
    return LK_OK;
}

void lk_generated_needs(const lk_run *run, lk_cuda_needs *needs) {
    lk_generator g;
    const bool wanted = run->needs.logs ? run->config.samples.every_steps : run->config.evaluates;
    if (!wanted || !lk_generator_find(run, &g)) return;
    needs->made_bytes = LK_MAX(g.noise_floats, g.image_floats) * sizeof(float);
    needs->made_objective = (uint32_t)(g.program - run->programs);
    needs->made = making_of(&g, 0);
}

// The noise of images [at, at + count) becomes images, count of them at most a microbatch.
static lk_status generate_some(lk_run *run, const lk_generator *g, const lk_noise_choice *choice,
                               uint64_t at, uint32_t count, uint8_t *images, lk_error *error) {
    lk_frame *f = &run->group.frames[0];
    const lk_program *p = g->program;
    const uint32_t grain = run->config.spec.grain;
    const lk_microbatch microbatch = {.grain_count = (count + grain - 1) / grain,
                                      .examples = count,
                                      .total_grains = (count + grain - 1) / grain};
    lk_frame_start(f);
    for (uint32_t i = g->noise_op; i <= g->last_op; i++) {
        const lk_op *op = &p->ops[i];
        if (i != g->noise_op && op->value != g->values[1]) continue;
        lk_execute_forward_op(f, &microbatch, i);
        if (i == g->noise_op && draw_some(run, g, choice, at, count)) f->bad_op = i;
    }
    if (f->bad_op != LK_NONE) return not_finite(p, f->bad_op, error);
    take_bytes(run, g, count, lk_tensor_at(f, p->ops[g->last_op].tensor[LK_Y]), images);
    return LK_OK;
}

lk_status lk_generate(lk_run *run, const lk_generator *g, const lk_noise_choice *choice,
                      uint64_t at, uint64_t count, uint8_t *images, lk_error *error) {
    const uint64_t most = g->program->microbatch_examples;
    lk_group_use(&run->group, g->program);
    while (count > 0) {
        const uint32_t some = (uint32_t)LK_MIN(count, most);
        LK_CHECK((run->cuda ? generate_there : generate_some)(run, g, choice, at, some, images,
                                                              error));
        images += some * g->image_floats;
        at += some;
        count -= some;
    }
    return LK_OK;
}

// --- a grid --------------------------------------------------------------------------------------

lk_grid lk_grid_of(const lk_run *run, uint64_t count) {
    const lk_model *m = &run->config.spec.model;
    lk_grid g = {.rows = 1, .columns = 1, .channels = m->in_c};
    if (count > LK_PNG_PIXELS_MAX) return g;
    while ((uint64_t)g.columns * g.columns < count) g.columns++;
    g.rows = (uint32_t)((count + g.columns - 1) / g.columns);
    if ((uint64_t)g.rows * m->in_h > LK_PNG_PIXELS_MAX) return g;
    if ((uint64_t)g.columns * m->in_w > LK_PNG_PIXELS_MAX) return g;
    g.height = g.rows * m->in_h;
    g.width = g.columns * m->in_w;
    g.pixel_bytes = (size_t)g.height * g.width * g.channels;
    g.png_bytes = lk_png_bytes(g.height, g.width, g.channels);
    return g;
}

void lk_grid_fill(const lk_run *run, const lk_grid *grid, uint64_t count, const uint8_t *images,
                  uint8_t *pixels) {
    const lk_model *m = &run->config.spec.model;
    const size_t row = (size_t)m->in_w * m->in_c;
    memset(pixels, 0x80, grid->pixel_bytes);
    for (uint64_t n = 0; n < count; n++) {
        uint8_t *to = pixels + (size_t)(n / grid->columns) * m->in_h * grid->columns * row +
                      (size_t)(n % grid->columns) * row;
        for (uint32_t y = 0; y < m->in_h; y++, images += row, to += grid->columns * row) {
            memcpy(to, images, row);
        }
    }
}

// --- pictures of a training ----------------------------------------------------------------------

static bool wants_samples(const lk_run *run) { return run->config.samples.every_steps > 0; }

// Images, the grid's pixels and the PNG file, one behind the other.
uint64_t lk_samples_bytes(const lk_run *run) {
    if (!wants_samples(run)) return 0;
    const uint64_t count = run->config.samples.count;
    const lk_grid grid = lk_grid_of(run, count);
    return count * image_floats(run) + grid.pixel_bytes + grid.png_bytes;
}

lk_status lk_samples_check(const lk_run *run, lk_error *error) {
    lk_generator g;
    if (!wants_samples(run)) return LK_OK;
    if (run->config.spec.model.graph && lk_generator_find(run, &g)) {
        if (lk_grid_of(run, run->config.samples.count).png_bytes > 0) return LK_OK;
        return lk_fail(error, LK_BAD_CONFIG,
                       "%s: samples.count: found %u images, whose picture has more than %d pixels; "
                       "wanted fewer",
                       run->config.document.source, run->config.samples.count, LK_PNG_PIXELS_MAX);
    }
    return lk_fail(error, LK_BAD_CONFIG,
                   "%s: samples.every_steps: found no value of an objective that a network makes "
                   "of noise alone and that has the size of model.input, wanted one; take "
                   "\"samples\" out",
                   run->config.document.source);
}

void lk_samples_say(const lk_run *run, const lk_say *say) {
    const uint32_t channels = run->config.spec.model.in_c;
    if (!wants_samples(run) || lk_png_shown_channels(channels) == channels) return;
    lk_say_line(say, "samples: of %u channels pictures show the first", channels);
}

bool lk_samples_due(const lk_run *run, uint64_t done) {
    return wants_samples(run) && done % run->config.samples.every_steps == 0;
}

bool lk_samples_is_ours(const char *name) {
    static const char head[] = "samples-";
    if (strncmp(name, head, sizeof head - 1) != 0) return false;
    name += sizeof head - 1;
    const size_t digits = strspn(name, "0123456789");
    name += digits;
    return digits >= 10 && (strcmp(name, ".png") == 0 || strcmp(name, ".png.tmp") == 0);
}

lk_status lk_samples_make(lk_run *run, const lk_run_dir *dir, uint64_t done, lk_samples *out,
                          lk_error *error) {
    const uint32_t count = run->config.samples.count;
    const lk_noise_choice choice = {.count = count};
    uint8_t *images = run->samples_buffer, *pixels = images + count * image_floats(run);
    lk_generator g;
    char name[48];
    LK_CHECK(lk_generator_need(run, &g, error));
    *out = (lk_samples){.grid = lk_grid_of(run, count)};
    uint8_t *png = pixels + out->grid.pixel_bytes;
    out->png = png;
    LK_CHECK(lk_generate(run, &g, &choice, 0, count, images, error));
    lk_grid_fill(run, &out->grid, count, images, pixels);
    lk_png_write(png, pixels, out->grid.height, out->grid.width, out->grid.channels);
    lk_format(name, sizeof name, "samples-%010llu.png", (unsigned long long)done);
    return lk_run_dir_write(dir, name, png, out->grid.png_bytes, error);
}
