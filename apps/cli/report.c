// report.c - lockstep report: reads what one or two run directories hold, lets the newest weights
// look at the test set once more, and writes one page that needs no other file. Changes nothing of
// a run but that page.
#define _GNU_SOURCE
#include "apps/cli/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apps/cli/two_runs.h"
#include "apps/run/weights.h"
#include "io/png.h"

static const char help[] =
    "lockstep report RUN [RUN_B] [--output FILE.html] [--data DIRECTORY]\n"
    "\n"
    "Writes a page about a run that needs no other file and no script: learning curves, the\n"
    "confusion matrix and the most confident mistakes of its newest weights on its test set,\n"
    "the memory plan to scale, where the time of a step went, configuration, digests, and how\n"
    "to reproduce it. Of two runs, side by side.\n"
    "\n"
    "--output FILE.html: where (RUN/report.html; of two runs it must be said)\n"
    "--data DIRECTORY:   where the data lies now; without the data the page has no predictions\n";

// --- logs ----------------------------------------------------------------------------------------

typedef struct point {
    double step, loss, accuracy, errors;
} point;

static lk_status add_point(lk_report_curve *c, point p, lk_error *error) {
    if (c->count == c->capacity) {
        const size_t capacity = 2 * c->capacity + 256;
        double **const arrays[] = {&c->step, &c->loss, &c->accuracy, &c->errors};
        for (uint32_t i = 0; i < LK_COUNT(arrays); i++) {
            double *larger = realloc(*arrays[i], capacity * sizeof *larger);
            if (!larger) return lk_fail(error, LK_UNAVAILABLE, "no memory for the curves");
            *arrays[i] = larger;
        }
        c->capacity = capacity;
    }
    c->step[c->count] = p.step;
    c->loss[c->count] = p.loss;
    c->accuracy[c->count] = p.accuracy;
    c->errors[c->count++] = p.errors;
    return LK_OK;
}

// A loss that takes no labels counts none as correct.
static double share_of(const json_t *correct, double examples) {
    return correct ? json_number_value(correct) / examples : NAN;
}

// The curve of these lines, made where there is none yet. NULL: no memory.
static lk_report_curve *curve_of(lk_report_run *r, bool test, const char *objective) {
    uint32_t at = 0, trained = 0;
    for (; at < r->curve_count; at++) {
        const lk_report_curve *c = &r->curves[at];
        const bool same = objective && c->objective ? strcmp(objective, c->objective) == 0
                                                    : !objective && !c->objective;
        if (c->test == test && same) return &r->curves[at];
        trained += !c->test;
    }
    if (!test) at = trained;
    lk_report_curve *larger = realloc(r->curves, (r->curve_count + 1) * sizeof *larger);
    if (!larger) return NULL;
    r->curves = larger;
    char *name = objective ? strdup(objective) : NULL;
    if (objective && !name) return NULL;
    memmove(&larger[at + 1], &larger[at], (r->curve_count - at) * sizeof *larger);
    larger[at] = (lk_report_curve){.test = test, .objective = name};
    r->curve_count++;
    return &larger[at];
}

static lk_status take_metrics(lk_report_run *r, const lk_json_log *log, lk_error *error) {
    static const char *const kinds[] = {"train", "test"};
    for (uint32_t i = 0; i < LK_COUNT(kinds); i++) {
        const json_t *line = json_object_get(log->document.root, kinds[i]);
        const double examples = json_number_value(json_object_get(line, "examples"));
        const json_t *loss = json_object_get(line, "loss");
        // A step that was skipped has no loss.
        if (!(examples > 0) || !json_is_number(loss)) continue;
        const json_t *rate = json_object_get(line, "label_error_rate");
        const point p = {.step = (double)log->step,
                         .loss = json_number_value(loss),
                         .accuracy = share_of(json_object_get(line, "correct"), examples),
                         .errors = rate ? json_number_value(rate) : NAN};
        const char *objective = json_string_value(json_object_get(line, "objective"));
        lk_report_curve *curve = curve_of(r, i == 1, objective);
        if (!curve) return lk_fail(error, LK_UNAVAILABLE, "no memory for the curves");
        LK_CHECK(add_point(curve, p, error));
    }
    return LK_OK;
}

static lk_status take_times(lk_report_run *r, const lk_json_log *log, lk_error *error) {
    const json_t *root = log->document.root, *phases = json_object_get(root, "phases");
    const json_t *line = json_object_get(root, "train");
    if (!line) line = json_object_get(root, "test");
    const double wall = json_number_value(json_object_get(line, "wall_time"));
    if (wall > 0 && r->wall_first == 0) r->wall_first = wall;
    if (wall > 0) r->wall_last = wall;
    const json_int_t steps = json_integer_value(json_object_get(phases, "steps"));
    if (steps <= 0) return error->status;
    r->phase_steps = (uint64_t)steps;
    for (uint32_t i = 0; i < LK_LAPS; i++) {
        r->phases[i] = LK_MAX(json_number_value(json_object_get(phases, lk_lap_names[i])), 0);
    }
    return LK_OK;
}

typedef lk_status (*take_line)(lk_report_run *r, const lk_json_log *log, lk_error *error);

static lk_status read_log(lk_report_run *r, const char *name, take_line take, lk_error *error) {
    lk_json_log log;
    lk_status status = lk_json_log_open(&log, r->path, name, true, error);
    while (status == LK_OK) {
        status = lk_json_log_next(&log, error);
        if (status != LK_OK || !log.at_line) break;
        status = take(r, &log, error);
    }
    lk_json_log_close(&log);
    return status;
}

// --- predictions ---------------------------------------------------------------------------------

// What the replicas say of the test set, each of examples of its own.
typedef struct answers {
    uint32_t classes;
    bool binary;    // of sigmoids, one a class, ..
    bool alone;     // .. or one alone
    uint32_t *predicted;  // (examples)
    float *confidence;    // (examples)
} answers;

// Of sigmoids: how sure the greatest is; of one alone, that it is on its side.
static void take_sigmoids(const answers *a, uint64_t first, uint32_t count, const float *logits) {
    const uint32_t outputs = a->alone ? 1 : a->classes;
    for (uint32_t i = 0; i < count; i++, logits += outputs) {
        uint32_t best = 0;
        for (uint32_t c = 1; c < outputs; c++) best = logits[c] > logits[best] ? c : best;
        const double top = (double)logits[best];
        a->predicted[first + i] = a->alone ? top > 0 : best;
        a->confidence[first + i] = (float)(1 / (1 + exp(a->alone ? -fabs(top) : -top)));
    }
}

static void take_logits(void *context, uint64_t first, uint32_t count, const float *logits) {
    const answers *a = context;
    if (a->binary) {
        take_sigmoids(a, first, count, logits);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        const float *row = logits + (uint64_t)i * a->classes;
        uint32_t best = 0;
        double sum = 0;
        for (uint32_t c = 1; c < a->classes; c++) best = row[c] > row[best] ? c : best;
        for (uint32_t c = 0; c < a->classes; c++) sum += exp((double)row[c] - (double)row[best]);
        a->predicted[first + i] = best;
        a->confidence[first + i] = (float)(1 / sum);
    }
}

// Among the most confident so far, which are in order; of equals the first stays before.
static void add_mistake(lk_report_run *r, const lk_report_mistake *mistake) {
    uint32_t at = r->mistake_count;
    while (at > 0 && r->mistakes[at - 1].confidence < mistake->confidence) at--;
    if (at == LK_REPORT_MISTAKES) return;
    const uint32_t last = LK_MIN(r->mistake_count, (uint32_t)LK_REPORT_MISTAKES - 1);
    memmove(&r->mistakes[at + 1], &r->mistakes[at], (last - at) * sizeof *mistake);
    r->mistakes[at] = *mistake;
    r->mistake_count = last + 1;
}

static lk_status take_pictures(lk_report_run *r, const lk_dataset *set, lk_error *error) {
    if (set->type != LK_IDX_U8) return LK_OK;
    const size_t bytes = lk_png_bytes(set->height, set->width, set->channels);
    for (uint32_t i = 0; i < r->mistake_count && bytes > 0; i++) {
        lk_report_mistake *m = &r->mistakes[i];
        m->png = malloc(bytes);
        if (!m->png) return lk_fail(error, LK_UNAVAILABLE, "no memory for pictures");
        m->png_bytes = bytes;
        lk_png_write(m->png, lk_dataset_image(set, m->index), set->height, set->width,
                     set->channels);
    }
    return LK_OK;
}

static int by_label(const void *a, const void *b) {
    const lk_report_pair *x = a, *y = b;
    if (x->label != y->label) return x->label < y->label ? -1 : 1;
    return x->predicted < y->predicted ? -1 : x->predicted > y->predicted;
}

// Equal pairs become one.
static void join_pairs(lk_report_run *r) {
    qsort(r->pairs, r->examples, sizeof *r->pairs, by_label);
    for (uint64_t i = 0; i < r->examples; i++) {
        lk_report_pair *last = r->pair_count ? &r->pairs[r->pair_count - 1] : NULL;
        if (last && by_label(last, &r->pairs[i]) == 0)
            last->times++;
        else
            r->pairs[r->pair_count++] = r->pairs[i];
    }
}

static int by_share(const void *a, const void *b) {
    const lk_report_class *x = a, *y = b;
    const double p = (double)x->right / (double)x->examples;
    const double q = (double)y->right / (double)y->examples;
    if (p != q) return p < q ? -1 : 1;
    return x->label < y->label ? -1 : 1;
}

static lk_status count_by_class(lk_report_run *r, lk_error *error) {
    r->by_class = calloc(LK_MIN((uint64_t)r->classes, r->pair_count), sizeof *r->by_class);
    if (!r->by_class) return lk_fail(error, LK_UNAVAILABLE, "no memory for the classes");
    for (uint64_t i = 0; i < r->pair_count; i++) {
        const lk_report_pair *pair = &r->pairs[i];
        if (i == 0 || pair->label != pair[-1].label)
            r->by_class[r->class_count++].label = pair->label;
        lk_report_class *c = &r->by_class[r->class_count - 1];
        c->examples += pair->times;
        if (pair->label == pair->predicted) c->right += pair->times;
    }
    if (r->classes <= LK_REPORT_CLASSES_ALL) return LK_OK;
    qsort(r->by_class, r->class_count, sizeof *r->by_class, by_share);
    r->class_count = LK_MIN(r->class_count, (uint32_t)LK_REPORT_CLASSES_WORST);
    return LK_OK;
}

static lk_status judge(lk_report_run *r, const lk_run *run, const answers *a, lk_error *error) {
    r->classes = a->classes;
    r->examples = run->test.count;
    r->pairs = calloc(r->examples, sizeof *r->pairs);
    if (!r->pairs) return lk_fail(error, LK_UNAVAILABLE, "no memory for the matrix");
    for (uint64_t i = 0; i < r->examples; i++) {
        const uint32_t label = lk_dataset_label(&run->test, i), predicted = a->predicted[i];
        if (label >= a->classes) {
            return lk_fail(error, LK_BAD_DATA, "test example %llu: label %u, wanted one below %u",
                           (unsigned long long)i, label, a->classes);
        }
        r->pairs[i] = (lk_report_pair){label, predicted, 1};
        r->correct += label == predicted;
        if (label == predicted) continue;
        add_mistake(r, &(lk_report_mistake){.index = i,
                                            .label = label,
                                            .predicted = predicted,
                                            .confidence = (double)a->confidence[i]});
    }
    join_pairs(r);
    LK_CHECK(count_by_class(r, error));
    return take_pictures(r, &run->test, error);
}

// What the page can show of the objective that the test set is evaluated by: one label of each
// example beside one answer. Of several networks the model has no loss of its own.
static lk_status check_answers(const lk_run *run, answers *a, lk_error *error) {
    const lk_program *p = lk_run_evaluated(run);
    const lk_loss_type *loss = lk_program_loss(p);
    const uint64_t outputs = lk_program_output_floats(p);
    if (!loss->labels) {
        return lk_fail(error, LK_UNAVAILABLE, "the model's loss takes no labels");
    }
    if (loss->sequences || run->config.spec.model.labels) {
        return lk_fail(error, LK_UNAVAILABLE, "the model's labels are sequences");
    }
    a->classes = run->config.spec.model.classes;
    a->binary = loss == &lk_loss_binary_crossentropy;
    a->alone = a->binary && outputs == 1;
    if (outputs == a->classes || a->alone) return LK_OK;
    return lk_fail(error, LK_UNAVAILABLE, "the model gives %llu numbers, of %u classes",
                   (unsigned long long)outputs, a->classes);
}

static lk_status look_at_test_set(lk_report_run *r, lk_run *run, answers *a, lk_error *error) {
    const lk_say nobody = {.line = NULL};
    uint64_t step;
    if (!run->config.test.given) {
        return lk_fail(error, LK_NO_INPUT, "the configuration names no test set");
    }
    LK_CHECK(lk_run_plan(run, error));
    LK_CHECK(check_answers(run, a, error));
    lk_watch_data(&run->train, &run->test);
    LK_CHECK(lk_run_start(run, 0, error));
    LK_CHECK(lk_load_weights(run, &lk_file_ops_posix, NULL, r->path, &nobody, &step, error));
    a->predicted = calloc(run->test.count, sizeof *a->predicted);
    a->confidence = calloc(run->test.count, sizeof *a->confidence);
    if (!a->predicted || !a->confidence) {
        return lk_fail(error, LK_UNAVAILABLE, "no memory for the predictions");
    }
    LK_CHECK(lk_run_seal(run, false, error));
    run->group.on_logits = take_logits;
    run->group.on_logits_context = a;
    const lk_step_result result = lk_run_evaluate(run, step);
    if (run->lost.status != LK_OK)
        *error = run->lost;
    else if (result.bad_tensor) {
        (void)lk_fail(error, LK_NOT_FINITE, "%s is not finite", result.bad_tensor);
    } else if (strcmp(run->identity_hex, r->identity) != 0) {
        (void)lk_fail(error, LK_BAD_DATA, "the data found here is not that of the run");
    }
    return error->status == LK_OK ? judge(r, run, a, error) : error->status;
}

// --- the time of the ops -------------------------------------------------------------------------

enum { TRACED_STEPS = 5 };
static const double measured_seconds = 2;  // at most, but for a step that takes longer

// Before the plan: memory for the records of some steps, among that of logs. No file is written.
static void ask_for_trace(lk_run *run) {
    (void)snprintf(run->config.trace.file, sizeof run->config.trace.file, "none");
    run->config.trace.steps = TRACED_STEPS;
}

// Goes on training in memory for some steps, the first of them unseen. Nothing of it is kept but
// the time. Several objectives have ops of their own each, and are left out.
static lk_status time_ops(lk_report_run *r, lk_run *run, lk_error *error) {
    const lk_trace *t = &run->trace;
    const uint32_t kinds = run->program.op_count + LK_LAPS;
    if (!t->lanes || run->program.programs > 1) return LK_OK;
    double *seconds = calloc(kinds, sizeof *seconds);
    r->ops = calloc(kinds, sizeof *r->ops);
    if (!seconds || !r->ops) {
        free(seconds);
        return lk_fail(error, LK_UNAVAILABLE, "no memory for the times of ops");
    }
    run->config.trace.first_step = r->step + 2;
    run->group.on_logits = NULL;
    const double begin = lk_seconds();
    for (uint64_t s = 0; s <= TRACED_STEPS; s++) {
        if (s > 1 && lk_seconds() - begin > measured_seconds) break;
        (void)lk_run_step(run, r->step + s);
    }
    r->ops_step_us = 1e6 * lk_trace_means(t, seconds);
    for (uint32_t i = 0; i < kinds; i++) {
        if (!(seconds[i] > 0)) continue;
        lk_report_op *op = &r->ops[r->op_count++];
        lk_trace_name(&run->program, i, op->name, &op->phase);
        op->us = 1e6 * seconds[i];
    }
    r->ops_of_steps = t->steps_used;
    r->ops_replicas = t->lane_count;
    (void)snprintf(r->ops_kernels, sizeof r->ops_kernels, "%s", lk_run_kernels(run));
    free(seconds);
    return LK_OK;
}

// A run whose data is not here has a page, too. `output`: where the page goes, which is none of the
// files that are read for it.
static lk_status predict(lk_report_run *r, const char *data, const char *output, lk_error *error) {
    static lk_run run;
    char config[LK_PATH_BYTES];
    lk_error why = {.status = LK_OK};
    answers a = {0};
    if (lk_path_join(config, r->path, "/", "config.json", &why) == LK_OK) {
        const lk_config_options options = {.config = config, .data_directory = data};
        lk_status status = lk_run_configure(&run, &options, (lk_run_needs){.logs = true}, &why);
        if (status == LK_OK) {
            status = lk_output_of_no_input("--output", output, &run.config, error);
        }
        if (status == LK_OK) {
            ask_for_trace(&run);
            status = look_at_test_set(r, &run, &a, &why);
        }
        if (status == LK_OK) (void)time_ops(r, &run, &why);
        lk_run_close(&run);
    }
    free(a.predicted);
    free(a.confidence);
    if (why.status == LK_OK) return error->status;
    r->examples = r->mistake_count = 0;
    lk_format(r->why_not, sizeof r->why_not, "%s", why.text);
    return LK_OK;
}

// --- a run ---------------------------------------------------------------------------------------

static json_t *load_document(const char *run, const char *name) {
    char path[LK_PATH_BYTES];
    lk_error none = {.status = LK_OK};
    if (lk_path_join(path, run, "/", name, &none) != LK_OK) return NULL;
    return json_load_file(path, JSON_REJECT_DUPLICATES, NULL);
}

static void say_nothing(void *context, const char *path, const lk_error *why) {
    (void)context, (void)path, (void)why;
}

static void copy_metadata(char *out, size_t bytes, const lk_safetensors *reader, const char *key) {
    const char *value = lk_safetensors_metadata(reader, key);
    lk_format(out, bytes, "%s", value ? value : "");
}

// What the newest whole checkpoint says of itself; a run that has none has a page, too.
static lk_status read_checkpoint(lk_report_run *r, lk_error *error) {
    enum { ENTRIES = 8192 };
    char directory[LK_PATH_BYTES];
    lk_error none = {.status = LK_OK};
    lk_checkpoint_found found;
    lk_safetensors reader;
    lk_safetensors_entry *entries = calloc(ENTRIES, sizeof *entries);
    if (!entries) return lk_fail(error, LK_UNAVAILABLE, "no memory for a checkpoint's tensors");
    if (lk_path_join(directory, r->path, "/", "checkpoints", &none) == LK_OK &&
        lk_checkpoint_find_newest(&lk_file_ops_posix, directory, entries, ENTRIES, say_nothing,
                                  NULL, &found, &none) == LK_OK &&
        lk_checkpoint_open(&reader, &lk_file_ops_posix, found.path, entries, ENTRIES, &r->step,
                           &none) == LK_OK) {
        r->saved = true;
        copy_metadata(r->digest, sizeof r->digest, &reader, "digest");
        copy_metadata(r->state, sizeof r->state, &reader, "state_hash");
        copy_metadata(r->version, sizeof r->version, &reader, "lockstep_version");
        lk_safetensors_close(&reader);
    }
    free(entries);
    return LK_OK;
}

static lk_status read_run(lk_report_run *r, const char *path, const char *data, const char *output,
                          lk_error *error) {
    *r = (lk_report_run){.path = path};
    LK_CHECK(lk_run_dir_identity(&lk_file_ops_posix, path, r->identity, error));
    r->config = load_document(path, "config.json");
    r->plan = load_document(path, "plan.json");
    LK_CHECK(read_log(r, "metrics.jsonl", take_metrics, error));
    LK_CHECK(read_log(r, "times.jsonl", take_times, error));
    LK_CHECK(read_checkpoint(r, error));
    if (r->saved) return predict(r, data, output, error);
    lk_format(r->why_not, sizeof r->why_not, "the run has no checkpoint yet");
    return LK_OK;
}

static void free_run(lk_report_run *r) {
    for (uint32_t i = 0; i < r->curve_count; i++) {
        lk_report_curve *c = &r->curves[i];
        free(c->objective);
        free(c->step);
        free(c->loss);
        free(c->accuracy);
        free(c->errors);
    }
    free(r->curves);
    for (uint32_t i = 0; i < r->mistake_count; i++) free(r->mistakes[i].png);
    free(r->pairs);
    free(r->by_class);
    free(r->ops);
    json_decref(r->config);
    json_decref(r->plan);
}

// --- the command ---------------------------------------------------------------------------------

static lk_status write_page(const lk_report_run *runs, uint32_t count, const char *output,
                            lk_error *error) {
    lk_markup m = {0};
    lk_report_page(&m, runs, count);
    lk_status status = lk_markup_check(&m, error);
    if (status == LK_OK) {
        status = lk_file_write_beside(&lk_file_ops_posix, output, m.text, m.used, error);
    }
    free(m.text);
    return status;
}

lk_status lk_command_report(int argc, char **argv, lk_error *error) {
    static lk_report_run runs[LK_REPORT_SIDES];
    static const bool one_will_do = true;
    const char *output = NULL, *data = NULL;
    char own[LK_PATH_BYTES];
    const lk_argument options[] = {{.name = "output", .text = &output},
                                   {.name = "data", .text = &data}};
    lk_arguments a = {.help = help,
                      .options = options,
                      .option_count = LK_COUNT(options),
                      .word_count = LK_REPORT_SIDES,
                      .wordless = &one_will_do};
    LK_CHECK(lk_parse_arguments(argc, argv, &a, error));
    if (a.helped) return LK_OK;
    const uint32_t count = a.words[1] ? 2 : 1;
    if (!output && count == 2) {
        return lk_fail(error, LK_BAD_USAGE, "report: of two runs, wanted --output FILE.html");
    }
    if (!output) LK_CHECK(lk_path_join(own, a.words[0], "/", "report.html", error));
    if (!output) output = own;
    lk_status status = lk_output_check("--output", output, NULL, error);
    for (uint32_t i = 0; i < count && status == LK_OK; i++) {
        status = read_run(&runs[i], a.words[i], data, output, error);
    }
    if (status == LK_OK) status = write_page(runs, count, output, error);
    if (status == LK_OK) {
        char shown[LK_TEXT_SHOWN_BYTES];
        printf("report %s\n", lk_text_shown(shown, output));
    }
    for (uint32_t i = 0; i < count; i++) free_run(&runs[i]);
    return status;
}
