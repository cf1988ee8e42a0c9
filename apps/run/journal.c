// journal.c - see journal.h.
#define _GNU_SOURCE
#include "apps/run/journal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "apps/run/generate.h"
#include "apps/run/inputs.h"
#include "apps/run/order.h"
#include "comm/threads/clock.h"
#include "io/line_sum.h"
#include "io/png.h"

static const char times_name[] = "times.jsonl";
enum { LINE_BYTES = 400, TIMES_BYTES = 16 * 1024 };

static double wall_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// --- memory --------------------------------------------------------------------------------------

static bool wants_events(const lk_run *run) {
    const lk_config *c = &run->config;
    return c->events.scalars || c->events.histograms || c->events.images > 0;
}

// Of one picture; 0: none are asked for, or the images are too large for one.
static size_t image_bytes(const lk_run *run) {
    const lk_model *m = &run->config.spec.model;
    return run->config.events.images ? lk_png_bytes(m->in_h, m->in_w, m->in_c) : 0;
}

// .. of the largest: an example, or a grid of what is generated.
static size_t record_bytes(const lk_run *run) {
    const lk_config *c = &run->config;
    const bool samples = c->events.images && c->samples.every_steps;
    const size_t grid = samples ? lk_grid_of(run, c->samples.count).png_bytes : 0;
    return LK_MAX(image_bytes(run), grid);
}

static uint64_t align_up(uint64_t bytes) { return lk_round_up(bytes, LK_TENSOR_ALIGN_BYTES); }

// A picture, and room for what it shows.
static uint64_t picture_bytes(const lk_run *run) {
    const lk_run_spec *spec = &run->config.spec;
    const size_t png = image_bytes(run);
    if (png == 0) return 0;
    return align_up(png) + align_up(lk_input_bytes(run)) +
           (lk_spec_has_strips(spec) ? align_up(lk_model_input_bytes(&spec->model)) : 0);
}

uint64_t lk_journal_bytes(const lk_run *run) {
    if (!wants_events(run)) return TIMES_BYTES;
    return TIMES_BYTES + picture_bytes(run) + lk_events_bytes(record_bytes(run));
}

// --- files ---------------------------------------------------------------------------------------

lk_status lk_journal_cut(const lk_run_dir *dir, uint64_t done, const lk_say *say, lk_error *error) {
    lk_events_cuts cuts;
    char others[64] = "";
    LK_CHECK(lk_line_log_cut(dir, times_name, done, NULL, error));
    LK_CHECK(lk_events_cut(dir, done, &cuts, error));
    if (!cuts.damaged) return LK_OK;
    if (cuts.damaged > 1) {
        lk_format(others, sizeof others, "; %u more damaged", cuts.damaged - 1);
    }
    lk_say_warning(say,
                   "%s: byte %llu: a record's checksum is wrong: it was changed or damaged; the "
                   "%llu bytes from there on, which no reader can use, were removed%s",
                   cuts.path, (unsigned long long)cuts.at, (unsigned long long)cuts.bytes, others);
    return LK_OK;
}

// Where they are asked for.
static lk_status open_events(lk_journal *r, const lk_run_dir *dir, uint64_t first,
                             lk_error *error) {
    const lk_run *run = r->run;
    if (!wants_events(run)) return LK_OK;
    uint8_t *memory = run->journal_buffer + TIMES_BYTES + picture_bytes(run);
    lk_status status =
        lk_events_open(&r->events, dir, first, wall_clock(), memory, record_bytes(run), error);
    r->events.log.patient = !run->config.stop_on_failed_save;
    return status;
}

lk_status lk_journal_open(lk_journal *r, lk_run *run, const lk_run_dir *dir, uint64_t done,
                          bool over, lk_error *error) {
    const bool patient = !run->config.stop_on_failed_save;
    *r = (lk_journal){
        .run = run, .times = {.file = -1}, .events = {.log = {.file = -1}}, .begun_at = done};
    if (over) return LK_OK;
    LK_CHECK(lk_line_log_open(&r->times, dir, times_name, (char *)run->journal_buffer, TIMES_BYTES,
                              error));
    r->times.patient = patient;
    return open_events(r, dir, done + 1, error);
}

void lk_journal_start(lk_journal *r) {
    r->began = r->last = lk_seconds();
    r->last_step = r->begun_at;
}

void lk_journal_sync(lk_journal *r) {
    lk_error unsynced = {.status = LK_OK};  // the logs remember it
    if (!r->run) return;
    if (r->times.file >= 0) (void)lk_line_log_sync(&r->times, &unsynced);
    unsynced.status = LK_OK;
    (void)lk_events_sync(&r->events, &unsynced);
}

lk_status lk_journal_close(lk_journal *r, lk_error *error) {
    if (!r->run) return LK_OK;
    lk_journal_sync(r);
    lk_status status = r->times.file < 0 ? LK_OK : lk_line_log_close(&r->times, error);
    lk_status other = lk_events_close(&r->events, error);
    return status != LK_OK ? status : other;
}

// train --fresh takes the files of an evaluator that goes on.
static bool is_there(const lk_events *e) {
    const lk_file_ops *ops = e->log.ops;
    const int file = ops->open(ops->context, e->log.path, LK_OPEN_READ);
    if (file >= 0) ops->close(ops->context, file);
    return file != -ENOENT;
}

lk_status lk_journal_open_evaluator(lk_journal *r, lk_run *run, const lk_run_dir *dir,
                                    uint64_t first, lk_error *error) {
    lk_run_dir own = {.ops = dir->ops, .lock_file = -1};
    if (r->run && (r->events.log.file < 0 || is_there(&r->events))) return LK_OK;
    LK_CHECK(lk_journal_close(r, error));
    *r = (lk_journal){
        .run = run, .times = {.file = -1}, .events = {.log = {.file = -1}}, .evaluates = true};
    if (!wants_events(run)) return LK_OK;
    LK_CHECK(lk_path_join(own.path, dir->path, "/", LK_JOURNAL_EVALUATOR, error));
    const int made = own.ops->make_directory(own.ops->context, own.path);
    if (made < 0 && made != -EEXIST) {
        return lk_file_fail(error, LK_IO_ERROR, own.path, "make the directory", made);
    }
    return open_events(r, &own, first, error);
}

// --- what is written -----------------------------------------------------------------------------

// Where the run is after `done` steps.
typedef struct place {
    double epoch;
    uint64_t examples;
} place;

static place place_after(const lk_run_spec *spec, uint64_t done) {
    const uint64_t steps = lk_steps_per_epoch(spec);
    const uint64_t read = lk_step_place_of(&spec->model, done).batch;  // of several objectives some
    // Only an epoch's last step is short.
    const uint64_t all = LK_MIN(spec->example_count, steps * spec->global_batch);
    return (place){(double)read / (double)steps,
                   read / steps * all + read % steps * spec->global_batch};
}

static lk_status add_line(lk_journal *r, char line[LINE_BYTES], int length, lk_error *error) {
    return lk_line_log_add(&r->times, line, lk_line_sum_put(line, (size_t)length, LINE_BYTES),
                           error);
}

// Of several objectives each has curves of its own.
static void name_tag(char tag[LK_EVENTS_TAG_BYTES], const char *kind, lk_named_result named,
                     const char *what) {
    const size_t bytes = LK_EVENTS_TAG_BYTES;
    if (named.objective) snprintf(tag, bytes, "%s/%s/%s", kind, named.objective, what);
    else snprintf(tag, bytes, "%s/%s", kind, what);
}

static void write_training(lk_journal *r, uint64_t done, lk_named_result named, double rate) {
    const lk_run *run = r->run;
    const lk_run_spec *spec = &run->config.spec;
    lk_events *e = &r->events;
    char tag[LK_EVENTS_TAG_BYTES];
    const lk_step_place at = lk_step_place_of(&spec->model, done - 1);
    const uint64_t skipped = lk_steps_skipped(&run->program, run->core.device, at.objective);
    // The step itself may be one of them: then its rate is what it would have been.
    const lk_step_scalars scalars = lk_step_scalars_at(spec, done - 1, LK_MIN(skipped, at.update));
    name_tag(tag, "train", named, "learning_rate");
    lk_events_scalar(e, tag, scalars.learning_rate);
    if (named.r->loss_scale > 0) {
        lk_events_scalar(e, "train/loss_scale", named.r->loss_scale);
        lk_events_scalar(e, "train/skipped", (float)named.r->skipped);
        lk_events_scalar(e, "train/replayed", (float)named.r->replayed);
    }
    lk_events_scalar(e, "train/epoch", (float)place_after(spec, done).epoch);
    if (rate > 0) {
        lk_events_scalar(e, "speed/steps_per_second", (float)rate);
        lk_events_scalar(e, "speed/images_per_second", (float)(rate * spec->global_batch));
    }
}

static lk_status write_scalars(lk_journal *r, const char *kind, uint64_t done, double wall,
                               lk_named_result named, double rate, lk_error *error) {
    lk_events *e = &r->events;
    char tag[LK_EVENTS_TAG_BYTES];
    lk_events_begin(e, wall, done);
    for (uint32_t i = 0; i < named.names->sum_count; i++) {
        name_tag(tag, kind, named, named.names->sum[i]);
        lk_events_scalar(e, tag, named.r->means[i]);
    }
    for (uint32_t i = 0; i < named.names->count_count; i++) {
        const lk_metrics *m = named.names;
        const uint32_t *counts = named.r->counts;
        if (!m->share[i]) continue;
        name_tag(tag, kind, named, m->share[i]);
        lk_events_scalar(e, tag,
                         (float)counts[i] / (float)lk_metric_all(m, i, counts, named.r->examples));
    }
    if (strcmp(kind, "train") == 0) write_training(r, done, named, rate);
    return lk_events_end(e, error);
}

static lk_status write_histograms(lk_journal *r, uint64_t done, double wall, lk_error *error) {
    const lk_program *p = &r->run->program;
    LK_CHECK(lk_run_fetch(r->run, error));
    for (uint32_t i = 0; i < p->param_count; i++) {
        const lk_tensor *t = &p->tensors[p->params[i].tensor];
        const float *values = (const float *)(const void *)(r->run->core.device + t->offset);
        lk_events_begin(&r->events, wall, done);
        lk_events_histogram(&r->events, t->name, values, p->params[i].count);
        LK_CHECK(lk_events_end(&r->events, error));
    }
    return LK_OK;
}

// The example at a position of an epoch; a strip is made behind what lk_input_show needs.
static const uint8_t *image_at(const lk_run *run, uint64_t epoch, uint64_t position,
                               uint8_t *room) {
    const lk_source *source = &run->train_source;
    const lk_run_spec *spec = &run->config.spec;
    if (!source->strip) return source->image(source->context, lk_order(spec, epoch, position));
    uint8_t *strip = room + align_up(lk_input_bytes(run));
    lk_strip_make(&spec->model, &spec->strips, source, epoch, position, strip);
    return strip;
}

// The first examples of the step that was just done, or of the last one that read some, as LOAD
// made them: those that this worker has.
static lk_status write_images(lk_journal *r, uint64_t done, double wall, lk_error *error) {
    lk_run *run = r->run;
    const lk_run_spec *spec = &run->config.spec;
    const lk_model *m = &spec->model;
    const uint64_t read = lk_step_place_of(m, done).batch, steps = lk_steps_per_epoch(spec);
    if (read == 0) return LK_OK;
    const uint64_t batch = read - 1, step = lk_step_of_batch(m, batch);
    const uint64_t mine = (uint64_t)lk_run_grains(run, run->workers.rank).count * spec->grain;
    const uint64_t there = LK_MIN((uint64_t)lk_step_positions(spec, step), mine);
    const size_t bytes = image_bytes(run);
    uint8_t *png = run->journal_buffer + TIMES_BYTES, *room = png + align_up(bytes);
    char tag[64];
    for (uint32_t i = 0, shown = 0; bytes > 0 && i < there && shown < run->config.events.images;
         i++) {
        const uint64_t position = batch % steps * spec->global_batch + i;
        if (!lk_position_exists(spec, position)) continue;
        const uint8_t *image = image_at(run, batch / steps, position, room);
        snprintf(tag, sizeof tag, "inputs/%02u", shown++);
        lk_png_write(png, lk_input_show(run, step, i, image, room), m->in_h, m->in_w, m->in_c);
        lk_events_begin(&r->events, wall, done);
        lk_events_image(&r->events, tag, m->in_h, m->in_w, m->in_c == 3 ? 3 : 1, png, bytes);
        LK_CHECK(lk_events_end(&r->events, error));
    }
    return LK_OK;
}

static lk_status write_times(lk_journal *r, const char *kind, uint64_t done, double wall,
                             double now, double rate, lk_error *error) {
    const place at = place_after(&r->run->config.spec, done);
    char line[LINE_BYTES], speed[48] = "";
    if (rate > 0) snprintf(speed, sizeof speed, ",\"steps_per_second\":%.6g", rate);
    int n = snprintf(line, sizeof line,
                     "{\"step\":%llu,\"%s\":{\"epoch\":%.6g,\"examples_seen\":%llu,"
                     "\"wall_time\":%.6f,\"seconds\":%.6f%s}}",
                     (unsigned long long)done, kind, at.epoch, (unsigned long long)at.examples,
                     wall, now - r->began, speed);
    r->last = now;  // the time of an evaluation is none of the steps'
    r->last_step = done;
    return add_line(r, line, n, error);
}

lk_status lk_journal_metrics(lk_journal *r, const char *kind, uint64_t done,
                             lk_named_result named, lk_error *error) {
    const bool trained = strcmp(kind, "train") == 0;
    if (!r->run || (r->times.file < 0 && r->events.log.file < 0)) return LK_OK;
    const double wall = wall_clock(), now = lk_seconds(), spent = now - r->last;
    const double rate = trained && spent > 0 ? (double)(done - r->last_step) / spent : 0;
    if (!r->evaluates) LK_CHECK(write_times(r, kind, done, wall, now, rate, error));
    if (r->events.log.file < 0) return LK_OK;
    if (r->run->config.events.scalars) {
        LK_CHECK(write_scalars(r, kind, done, wall, named, rate, error));
    }
    if (trained && done > 1) return LK_OK;
    if (r->run->config.events.images && !r->evaluates) {
        LK_CHECK(write_images(r, done, wall, error));
    }
    return r->run->config.events.histograms ? write_histograms(r, done, wall, error) : LK_OK;
}

lk_status lk_journal_add_picture(lk_journal *r, uint64_t done, const lk_journal_picture *p,
                                 lk_error *error) {
    if (!r->run || !r->run->config.events.images) return LK_OK;
    lk_events_begin(&r->events, wall_clock(), done);
    lk_events_image(&r->events, p->tag, p->height, p->width, p->channels, p->png, p->png_bytes);
    return lk_events_end(&r->events, error);
}

lk_status lk_journal_phases(lk_journal *r, uint64_t done, lk_error *error) {
    if (!r->run || r->times.file < 0 || r->run->laps.steps == 0) return LK_OK;
    const lk_laps *l = &r->run->laps;
    char line[LINE_BYTES];
    int n = snprintf(line, sizeof line, "{\"step\":%llu,\"phases\":{\"steps\":%llu",
                     (unsigned long long)done, (unsigned long long)l->steps);
    for (uint32_t i = 0; i < LK_LAPS; i++) {
        n += snprintf(line + n, sizeof line - (size_t)n, ",\"%s\":%.3f", lk_lap_names[i],
                      1e6 * l->seconds[i] / (double)l->steps);
    }
    n += snprintf(line + n, sizeof line - (size_t)n, "}}");
    return add_line(r, line, n, error);
}
