// evaluate.c - lockstep eval and predict: weights in, one pass over the test set in order, figures
// or logits out.
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "apps/cli/command.h"
#include "apps/cli/tools.h"
#include "io/npy.h"

static lk_status open_run(lk_run *run, const lk_common_options *o, lk_text_out *out,
                          lk_error *error) {
    if (!o->run_dir == !o->checkpoint) {
        return lk_fail(error, LK_BAD_USAGE,
                       "wanted weights: either --run-dir DIR or --checkpoint FILE");
    }
    LK_CHECK(lk_run_configure(run, &o->config, (lk_run_needs){0}, error));
    // Of the layout, not of the configuration: there replicas may be a factor of the batch.
    if (o->output) run->layout.replicas = 1;
    if (!run->config.test.given) {
        return lk_fail(error, LK_BAD_CONFIG, "%s: data.test: missing, there is nothing to evaluate",
                       run->config.document.source);
    }
    LK_CHECK(lk_run_plan(run, error));
    lk_watch_data(&run->train, &run->test);
    LK_CHECK(lk_run_start(run, o->max_memory, error));
    uint64_t steps;
    const lk_say say = lk_say_on(out);
    LK_CHECK(lk_load_weights(run, &lk_file_ops_posix, o->checkpoint, o->run_dir, &say, &steps,
                             error));
    return lk_run_seal(run, false, error);
}

// One object on standard output. `output`: the file of the logits, or NULL.
static lk_status report_json(const lk_run *run, const lk_step_result *r, const char *output,
                             lk_error *error) {
    char digest[LK_SHA256_HEX_BYTES];
    lk_run_digest(run, digest);
    json_t *answer = json_pack(
        "{s:I, s:I, s:f, s:f, s:s, s:s}", "test_examples", (json_int_t)r->examples, "correct",
        (json_int_t)r->correct, "test_loss", (double)r->loss, "test_accuracy",
        (double)r->correct / r->examples, "digest", digest, "run_identity", run->identity_hex);
    if (output) json_object_set_new(answer, "logits", lk_json_text(output));
    return lk_print_json(answer, error);
}

static lk_status report(lk_run *run, lk_text_out *out, lk_step_result *result, lk_error *error) {
    lk_step_result r = lk_run_evaluate(run, 0);
    if (run->lost.status != LK_OK) return lk_fail(error, run->lost.status, "%s", run->lost.text);
    if (r.bad_tensor) {
        lk_fail(error, LK_NOT_FINITE, "evaluation: %s is not finite", r.bad_tensor);
        return lk_run_blame_data(run, error->status, error);
    }
    LK_CHECK(lk_run_check_data(run, error));
    char digest[LK_SHA256_HEX_BYTES];
    lk_run_digest(run, digest);
    lk_text_line(out, "test_examples %u", r.examples);
    lk_text_line(out, "test_loss %.9g", (double)r.loss);
    lk_text_line(out, "test_accuracy %.2f", 100.0 * r.correct / r.examples);
    lk_text_line(out, "digest %s", digest);
    *result = r;
    return lk_text_check(out, "standard output", error);
}

// --json: what is said on the way, nowhere.
static void open_output(lk_text_out *out, const lk_common_options *o) {
    lk_text_open(out, o->json ? open("/dev/null", O_WRONLY | O_CLOEXEC) : STDOUT_FILENO);
}

lk_status lk_command_eval(int argc, char **argv, lk_error *error) {
    static lk_run run;
    lk_common_options o;
    lk_text_out out;
    lk_step_result result;
    LK_CHECK(lk_parse_common(argc, argv, LK_OPT_WEIGHTS | LK_OPT_JSON, &o, error));
    open_output(&out, &o);
    lk_status status = open_run(&run, &o, &out, error);
    if (status == LK_OK) status = report(&run, &out, &result, error);
    if (status == LK_OK && o.json) status = report_json(&run, &result, NULL, error);
    lk_run_close(&run);
    return status;
}

// --- predict -----------------------------------------------------------------------------------

typedef struct prediction {
    lk_npy_writer writer;
    lk_error *error;
} prediction;

// One replica computes the waves, so they come in the order of the set.
static void write_logits(void *context, uint64_t first, uint32_t count, const float *logits) {
    prediction *p = context;
    lk_assert(first == p->writer.rows_written || p->error->status != LK_OK);
    if (p->error->status == LK_OK) (void)lk_npy_add(&p->writer, logits, count, p->error);
}

static lk_status predict(lk_run *run, const char *output, lk_text_out *out, lk_step_result *result,
                         lk_error *error) {
    prediction p = {.error = error};
    LK_CHECK(lk_npy_start(&p.writer, &lk_file_ops_posix, output, run->test.count,
                          run->config.spec.model.classes, error));
    run->world.on_logits = write_logits;
    run->world.on_logits_context = &p;
    lk_status status = report(run, out, result, error);
    if (error->status == LK_OK) status = lk_npy_finish(&p.writer, error);
    if (error->status != LK_OK) {
        lk_npy_abandon(&p.writer);
        return error->status;
    }
    lk_text_line(out, "logits %s (%llu, %u)", output, (unsigned long long)run->test.count,
                 run->config.spec.model.classes);
    return status;
}

lk_status lk_command_predict(int argc, char **argv, lk_error *error) {
    static lk_run run;
    lk_common_options o;
    lk_text_out out;
    LK_CHECK(lk_parse_common(argc, argv, LK_OPT_WEIGHTS | LK_OPT_OUTPUT | LK_OPT_JSON, &o, error));
    if (!o.output)
        return lk_fail(error, LK_BAD_USAGE, "predict: wanted --output FILE.npy for the logits");
    LK_CHECK(lk_check_place(o.output, error));
    o.config.gpus = 1;
    lk_step_result result;
    open_output(&out, &o);
    lk_status status = open_run(&run, &o, &out, error);
    if (status == LK_OK) status = predict(&run, o.output, &out, &result, error);
    if (status == LK_OK && o.json) status = report_json(&run, &result, o.output, error);
    lk_run_close(&run);
    return status;
}
