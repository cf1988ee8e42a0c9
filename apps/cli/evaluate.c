// evaluate.c - lockstep eval and predict: weights in, one pass over the test set in order, figures
// or logits out.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apps/cli/command.h"
#include "apps/cli/pictures.h"
#include "apps/cli/scorer.h"
#include "apps/cli/tools.h"
#include "apps/run/metric_text.h"
#include "io/npy.h"

// Nothing is trained, so the training set need not be on this machine. `images`: examples in memory
// in place of the test set, or NULL.
static lk_status open_run(lk_run *run, const lk_common_options *o, const lk_dataset_held *images,
                          lk_text_out *out, lk_error *error) {
    lk_config_options options = o->config;
    if (!o->run_dir == !o->checkpoint) {
        return lk_fail(error, LK_BAD_USAGE,
                       "wanted weights: either --run-dir DIR or --checkpoint FILE");
    }
    options.evaluates = true;
    options.test = images;
    options.unlabelled = images != NULL;
    LK_CHECK(lk_run_configure(run, &options, (lk_run_needs){0}, error));
    // Of the layout, not of the configuration: there replicas may be a factor of the batch.
    if (o->output) run->layout.replicas = 1;
    if (o->output) LK_CHECK(lk_output_of_no_input("--output", o->output, &run->config, error));
    if (!run->config.test.given) {
        return lk_fail(error, LK_BAD_CONFIG, "%s: data.test: missing, there is nothing to evaluate",
                       run->config.document.source);
    }
    LK_CHECK(lk_run_plan(run, error));
    lk_watch_data(&run->train, &run->test);
    LK_CHECK(lk_run_start(run, o->max_memory, error));
    uint64_t steps;
    const lk_say say = lk_say_on(out);
    return lk_load_weights(run, &lk_file_ops_posix, o->checkpoint, o->run_dir, &say, &steps, error);
}

static bool says_labels(const lk_run *run) { return run->config.spec.model.labels > 0; }

// One object on standard output. `output`: the file of the logits, or NULL.
static lk_status report_json(const lk_run *run, const lk_step_result *r, const char *output,
                             const lk_scorer *scorer, lk_error *error) {
    char digest[LK_SHA256_HEX_BYTES];
    lk_run_digest(run, digest);
    json_t *answer = json_pack("{s:I}", "test_examples", (json_int_t)r->examples);
    lk_metric_object(answer, lk_name_result(&run->program, r, 0));
    if (scorer && scorer->on) lk_scorer_object(answer, scorer);
    (void)json_object_set_new(answer, "digest", json_string(digest));
    (void)json_object_set_new(answer, "run_identity", json_string(run->weights_identity));
    const char *what = says_labels(run) ? "predicted_labels" : "logits";
    if (output) json_object_set_new(answer, what, lk_json_text(output));
    return lk_print_json(answer, error);
}

// One pass over the test set, and what went wrong in it.
static lk_status pass(lk_run *run, lk_step_result *result, lk_error *error) {
    lk_step_result r = lk_run_evaluate(run, 0);
    if (run->lost.status != LK_OK) return lk_fail(error, run->lost.status, "%s", run->lost.text);
    if (r.bad_tensor && !(run->config.unlabelled && r.bad_loss)) {
        lk_fail(error, LK_NOT_FINITE, "evaluation: %s is not finite", r.bad_tensor);
        return lk_run_blame_data(run, error->status, error);
    }
    *result = r;
    return lk_run_check_data(run, error);
}

// Without labels nothing is known of loss and accuracy.
static lk_status report(lk_run *run, bool labels, lk_text_out *out, lk_step_result *result,
                        lk_error *error) {
    char digest[LK_SHA256_HEX_BYTES];
    LK_CHECK(pass(run, result, error));
    lk_run_digest(run, digest);
    lk_text_line(out, "%s %u", labels ? "test_examples" : "images", result->examples);
    if (labels) {
        lk_metric_lines(out, lk_name_result(&run->program, result, 0));
    }
    lk_text_line(out, "digest %s", digest);
    return lk_text_check(out, "standard output", error);
}

// --json: what is said on the way, nowhere.
static void open_output(lk_text_out *out, const lk_common_options *o) {
    lk_text_open(out, o->json ? open("/dev/null", O_WRONLY | O_CLOEXEC) : STDOUT_FILENO);
}

static lk_status evaluate(lk_run *run, const lk_common_options *o, lk_scorer *scorer,
                          lk_text_out *out, lk_error *error) {
    lk_step_result result = {0};
    LK_CHECK(open_run(run, o, NULL, out, error));
    LK_CHECK(lk_scorer_open(scorer, run, o, out, error));
    LK_CHECK(lk_run_seal(run, false, error));
    LK_CHECK(report(run, true, out, &result, error));
    if (scorer->on) {
        LK_CHECK(lk_scorer_score(scorer, run, error));
        lk_scorer_lines(out, scorer);
        LK_CHECK(lk_text_check(out, "standard output", error));
    }
    return o->json ? report_json(run, &result, NULL, scorer, error) : LK_OK;
}

lk_status lk_command_eval(int argc, char **argv, lk_error *error) {
    static lk_run run;
    static lk_scorer scorer;
    lk_common_options o;
    lk_text_out out;
    LK_CHECK(lk_parse_common(argc, argv, LK_OPT_WEIGHTS | LK_OPT_JUDGE | LK_OPT_JSON, &o, error));
    open_output(&out, &o);
    const lk_status status = evaluate(&run, &o, &scorer, &out, error);
    lk_scorer_close(&scorer);
    lk_run_close(&run);
    return status;
}

// --- predict -----------------------------------------------------------------------------------

typedef struct prediction {
    lk_npy_writer writer;
    lk_error *error;
} prediction;

// One replica computes the microbatches, so they come in the order of the set.
static void write_logits(void *context, uint64_t first, uint32_t count, const float *logits) {
    prediction *p = context;
    lk_assert(first == p->writer.rows_written || p->error->status != LK_OK);
    if (p->error->status == LK_OK) (void)lk_npy_add(&p->writer, logits, count, p->error);
}

// Of a transducer's rows the labels.
static void write_labels(void *context, uint64_t first, uint32_t count, const float *rows) {
    prediction *p = context;
    const uint32_t *said = (const uint32_t *)(const void *)rows;
    const uint64_t row = 1 + p->writer.row_bytes / sizeof *said;
    lk_assert(first == p->writer.rows_written || p->error->status != LK_OK);
    for (uint32_t m = 0; m < count && p->error->status == LK_OK; m++) {
        (void)lk_npy_add_labels(&p->writer, said + m * row + 1, 1, p->error);
    }
}

static lk_status predict(lk_run *run, const char *output, bool labels, lk_text_out *out,
                         lk_step_result *result, lk_error *error) {
    prediction p = {.error = error};
    const uint64_t columns = lk_program_prediction(&run->program);
    LK_CHECK((says_labels(run) ? lk_npy_start_labels : lk_npy_start)(
        &p.writer, &lk_file_ops_posix, output, lk_run_test_examples(run), columns, error));
    run->group.on_logits = says_labels(run) ? write_labels : write_logits;
    run->group.on_logits_context = &p;
    lk_status status = report(run, labels, out, result, error);
    if (error->status == LK_OK) status = lk_npy_finish(&p.writer, error);
    if (error->status != LK_OK) {
        lk_npy_abandon(&p.writer);
        return error->status;
    }
    lk_text_line(out, "%s %s (%llu, %llu)", says_labels(run) ? "labels" : "logits", output,
                 (unsigned long long)lk_run_test_examples(run), (unsigned long long)columns);
    return status;
}

// --images: what is known of images without labels.
static lk_status report_images_json(const lk_run *run, const lk_step_result *r, const char *output,
                                    lk_error *error) {
    char digest[LK_SHA256_HEX_BYTES];
    lk_run_digest(run, digest);
    return lk_print_json(
        json_pack("{s:I, s:s, s:s, s:o}", "images", (json_int_t)r->examples, "digest", digest,
                  "run_identity", run->weights_identity, "logits", lk_json_text(output)),
        error);
}

lk_status lk_command_predict(int argc, char **argv, lk_error *error) {
    static lk_run run;
    lk_common_options o;
    lk_text_out out;
    LK_CHECK(lk_parse_common(
        argc, argv, LK_OPT_WEIGHTS | LK_OPT_OUTPUT | LK_OPT_JSON | LK_OPT_IMAGES, &o, error));
    if (!o.output)
        return lk_fail(error, LK_BAD_USAGE, "predict: wanted --output FILE.npy for the logits");
    LK_CHECK(lk_output_check("--output", o.output, NULL, error));
    LK_CHECK(lk_check_inputs(&o, "--output", o.output, error));
    o.config.gpus = 1;
    lk_step_result result = {0};
    lk_dataset_held held = {.count = 0};
    void *memory[2] = {NULL, NULL};
    open_output(&out, &o);
    lk_status status = o.images ? lk_read_pictures(o.images, memory, &held, error) : LK_OK;
    if (status == LK_OK) status = open_run(&run, &o, o.images ? &held : NULL, &out, error);
    if (status == LK_OK) status = lk_run_seal(&run, false, error);
    if (status == LK_OK) status = predict(&run, o.output, !o.images, &out, &result, error);
    if (status == LK_OK && o.json) {
        status = o.images ? report_images_json(&run, &result, o.output, error)
                          : report_json(&run, &result, o.output, NULL, error);
    }
    lk_run_close(&run);
    free(memory[0]);
    free(memory[1]);
    return status;
}
