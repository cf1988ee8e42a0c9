// lockstep.c - the library's run (lockstep.h): a handle around run.h that starts when it is first
// needed, and that no error of a step leaves half changed.
#define _GNU_SOURCE
#include <errno.h>
#include <jansson.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "apps/run/checkpoints.h"
#include "apps/run/lockstep_private.h"
#include "apps/run/plan_json.h"
#include "apps/run/scales.h"
#include "apps/run/weights.h"

_Static_assert((int)LOCKSTEP_ERROR_BYTES == (int)LK_ERROR_TEXT_BYTES, "an error has its room");
_Static_assert((int)LOCKSTEP_HASH_BYTES == (int)LK_SHA256_HEX_BYTES, "a hash has its room");

// --- errors --------------------------------------------------------------------------------------

const char *lockstep_version(void) { return LK_VERSION; }

// The words of a status, where those of the program's exit codes would speak of a command line.
const char *lockstep_status_text(lockstep_status status) {
    switch (status) {
    case LOCKSTEP_BAD_USAGE: return "the call is wrong here";
    case LOCKSTEP_INTERNAL: return "a defect of Lockstep";
    case LOCKSTEP_RETRY: return "another process was at it: try again";
    case LOCKSTEP_STOPPED: return "stopped after saving";
    default: return lk_status_text((lk_status)status);
    }
}

lockstep_status lk_lockstep_answer(const lk_error *found, lockstep_error *error) {
    const lockstep_status status =
        lk_is_stop(found->status) ? LOCKSTEP_STOPPED : (lockstep_status)found->status;
    if (!error) return status;
    error->status = status;
    error->text[0] = '\0';
    if (status != LOCKSTEP_OK) lk_format(error->text, sizeof error->text, "%s", found->text);
    return status;
}

lk_status lk_lockstep_enter(const lockstep_run *r, lk_error *error) {
    if (!r) return lk_fail(error, LK_BAD_USAGE, "a run: found NULL, wanted one that is open");
    if (r->broken.status != LK_OK) {
        *error = r->broken;
        return error->status;
    }
    return lk_float_mode_check(error);
}

// --- opening -------------------------------------------------------------------------------------

static lk_status refuse_config(const lockstep_config *config, lk_error *error) {
    if (!config) return lk_fail(error, LK_BAD_USAGE, "a configuration: found NULL, wanted one");
    if (config->wrong.status != LK_OK) *error = config->wrong;
    return error->status;
}

static lk_status configure(lockstep_run *r, const lockstep_config *config,
                           const lockstep_options *options, lk_error *error) {
    char *text = json_dumps(config->root, JSON_REAL_PRECISION(17));
    if (!text) return lk_fail(error, LK_UNAVAILABLE, "%s: no memory to read it", config->name);
    lk_config_options o = {.config = config->name,
                           .text = text,
                           .text_bytes = strlen(text),
                           .train = config->has_train ? &config->train : NULL,
                           .test = config->has_test ? &config->test : NULL,
                           .replicas = options->replicas,
                           .workers = 1,
                           .kernels = options->kernels};
    lk_run_needs needs = {.checkpoints = true, .logs = true, .predict = true};
    if (options->prediction_only) {
        needs.checkpoints = needs.logs = false;
        o.evaluates = o.no_data = true;
        o.train = NULL;
    }
    const lk_status status = lk_run_configure(&r->run, &o, needs, error);
    free(text);
    return status;
}

lockstep_run *lockstep_open(const lockstep_config *config, const lockstep_options *options,
                            lockstep_error *error) {
    static const lockstep_options plain = {0};
    lk_error found = {.status = LK_OK};
    lockstep_run *r = NULL;
    if (!options) options = &plain;
    if (refuse_config(config, &found) == LK_OK && !(r = calloc(1, sizeof *r))) {
        (void)lk_fail(&found, LK_UNAVAILABLE, "%s: no memory for a run", config->name);
    }
    if (r) {
        r->max_memory = options->max_memory;
        r->prediction_only = options->prediction_only;
        (void)configure(r, config, options, &found);
    }
    (void)lk_lockstep_answer(&found, error);
    if (found.status == LK_OK) return r;
    lockstep_close(r);
    return NULL;
}

void lockstep_close(lockstep_run *r) {
    if (!r) return;
    lk_run_close(&r->run);
    free(r->trainer);
    free(r);
}

// --- the plan, the start -------------------------------------------------------------------------

static lk_status ensure_planned(lockstep_run *r, lk_error *error) {
    LK_CHECK(lk_lockstep_enter(r, error));
    if (r->planned || r->started) return LK_OK;
    const lk_status status = lk_run_plan(&r->run, error);
    r->planned = status == LK_OK;
    if (status != LK_OK) r->broken = *error;
    return status;
}

// The replicas keep to their processors; the caller's thread is not the library's to bind.
static lk_status take_memory(lockstep_run *r, lk_error *error) {
    cpu_set_t before;
    const bool bound = sched_getaffinity(0, sizeof before, &before) == 0;
    lk_status status = lk_run_start(&r->run, r->max_memory, error);
    if (bound) (void)sched_setaffinity(0, sizeof before, &before);
    return status == LK_OK ? lk_run_seal(&r->run, false, error) : status;
}

static lk_status ensure_started(lockstep_run *r, lk_error *error) {
    LK_CHECK(ensure_planned(r, error));
    if (r->started) return LK_OK;
    r->planned = false;
    const lk_status status = take_memory(r, error);
    r->started = status == LK_OK;
    if (status != LK_OK) r->broken = *error;
    if (r->started && !r->prediction_only) lk_saver_make(&r->saver, &r->run, r->directory);
    return status;
}

lockstep_status lockstep_start(lockstep_run *r, lockstep_error *error) {
    lk_error found = {.status = LK_OK};
    (void)ensure_started(r, &found);
    return lk_lockstep_answer(&found, error);
}

lockstep_status lockstep_plan(lockstep_run *r, lockstep_memory *plan, lockstep_error *error) {
    lk_error found = {.status = LK_OK};
    if (ensure_planned(r, &found) == LK_OK && plan) {
        const lk_run_spec *s = &r->run.config.spec;
        const lk_program *p = &r->run.program;
        *plan = (lockstep_memory){
            .bytes = lk_run_bytes(&r->run),
            .parameters = p->param_floats,
            .parameter_bytes = p->regions[LK_REGION_DEVICE].bytes,
            .replica_bytes = p->regions[LK_REGION_REPLICA].bytes,
            .replicas = r->run.layout.replicas,
            .global_batch = s->global_batch,
            .grain = s->grain,
            .output_count = (uint32_t)lk_program_prediction(p),
            .input_bytes = lk_model_input_bytes(&s->model)};
    }
    return lk_lockstep_answer(&found, error);
}

size_t lockstep_plan_json(lockstep_run *r, char *out, size_t bytes, lockstep_error *error) {
    lk_error found = {.status = LK_OK};
    size_t length = 0;
    if (ensure_planned(r, &found) == LK_OK) {
        length = lk_plan_json(&r->run, NULL, out, out ? bytes : 0);
    }
    (void)lk_lockstep_answer(&found, error);
    return length;
}

// --- steps ---------------------------------------------------------------------------------------

// An error in the middle of a step leaves nobody knows what: the run is over.
static lk_status end_run(lockstep_run *r, const lk_error *error) {
    r->broken = *error;
    return error->status;
}

static void say_not_finite(const lk_run *run, const char *what, uint64_t step,
                           const lk_step_result *result, lk_error *error) {
    const lk_loss_scale *how = &run->config.spec.model.loss_scale;
    const float scale = result->loss_scale;
    if (result->verdict == LK_VERDICT_STOP && scale > 0) {
        (void)lk_fail(error, LK_NOT_FINITE,
                      "%s %llu: %s is not finite at loss scale %llu: %s; try %sa smaller "
                      "learning_rate, or %s",
                      what, (unsigned long long)step, result->bad_tensor, (unsigned long long)scale,
                      lk_scale_reason(how, scale), lk_scale_advice(how, scale),
                      lk_scale_unscaled(run));
    } else {
        (void)lk_fail(error, LK_NOT_FINITE,
                      "%s %llu: %s is not finite: the run diverged; try a smaller learning_rate",
                      what, (unsigned long long)step, result->bad_tensor);
    }
}

static lk_status check_result(lockstep_run *r, const char *what, uint64_t step,
                              const lk_step_result *result, lk_error *error) {
    lk_run *run = &r->run;
    if (run->lost.status != LK_OK) {
        *error = run->lost;
    } else if (result->bad_tensor) {
        say_not_finite(run, what, step, result, error);
        (void)lk_run_blame_data(run, error->status, error);
    }
    return error->status;
}

_Static_assert(LOCKSTEP_METRICS_MAX == LK_METRIC_MEANS_MAX + LK_METRIC_COUNTS_MAX, "");

void lk_lockstep_result(const lk_metrics *names, const lk_step_result *from, lockstep_result *to) {
    to->examples = from->examples;
    to->correct = from->counts[0];
    to->loss = from->means[LK_METRIC_LOSS];
    to->metric_count = 0;
    for (uint32_t i = 0; i < names->sum_count; i++) {
        to->metrics[to->metric_count++] =
            (lockstep_metric){names->sum[i], (double)from->means[i]};
    }
    for (uint32_t i = 0; i < names->count_count; i++) {
        const double share =
            (double)from->counts[i] / lk_metric_all(names, i, from->counts, from->examples);
        if (!names->share[i]) continue;
        to->metrics[to->metric_count++] = (lockstep_metric){names->share[i], share};
    }
}

static void give(const lockstep_run *r, const lk_step_result *from, lockstep_result *to) {
    if (!to) return;
    *to = (lockstep_result){.step = r->done};
    lk_lockstep_result(lk_name_result(&r->run.program, from, 0).names, from, to);
}

static lk_status refuse_training(const lockstep_run *r, lk_error *error) {
    if (!r->prediction_only) return LK_OK;
    return lk_fail(error, LK_BAD_USAGE,
                   "this run was opened with prediction_only: it has no training data; open "
                   "another one without it");
}

static lk_status step(lockstep_run *r, lockstep_result *out, lk_error *error) {
    LK_CHECK(ensure_started(r, error));
    LK_CHECK(refuse_training(r, error));
    lk_run *run = &r->run;
    run->arena.phase = "training";
    lk_step_result result = lk_run_step(run, r->done);
    if (result.pending && run->lost.status == LK_OK) result = lk_run_settle(run);
    if (check_result(r, "step", r->done + 1, &result, error) != LK_OK) return end_run(r, error);
    r->done++;
    give(r, &result, out);
    return lk_run_scrub(run, error) == LK_OK ? LK_OK : end_run(r, error);
}

lockstep_status lockstep_step(lockstep_run *r, lockstep_result *result, lockstep_error *error) {
    lk_error found = {.status = LK_OK};
    (void)step(r, result, &found);
    return lk_lockstep_answer(&found, error);
}

static lk_status evaluate(lockstep_run *r, lockstep_result *out, lk_error *error) {
    LK_CHECK(ensure_started(r, error));
    lk_run *run = &r->run;
    if (!run->config.test.given && r->prediction_only) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "%s: a run opened with prediction_only takes no data of the document: hand "
                       "a test set over with lockstep_config_examples",
                       run->config.document.source);
    }
    if (!run->config.test.given) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "%s: there is no test set to evaluate: name one in data.test, or hand it "
                       "over with lockstep_config_examples",
                       run->config.document.source);
    }
    run->arena.phase = "evaluation";
    const lk_step_result result = lk_run_evaluate(run, r->done);
    if (check_result(r, "evaluation after step", r->done, &result, error) != LK_OK) {
        return run->lost.status == LK_OK ? error->status : end_run(r, error);
    }
    LK_CHECK(lk_run_check_data(run, error));
    give(r, &result, out);
    return LK_OK;
}

lockstep_status lockstep_evaluate(lockstep_run *r, lockstep_result *result, lockstep_error *error) {
    lk_error found = {.status = LK_OK};
    (void)evaluate(r, result, &found);
    return lk_lockstep_answer(&found, error);
}

lockstep_status lockstep_predict(lockstep_run *r, const void *inputs, uint64_t count,
                                 float *outputs, lockstep_error *error) {
    lk_error found = {.status = LK_OK};
    if (ensure_started(r, &found) == LK_OK && count > 0) {
        if (!inputs || !outputs) {
            (void)lk_fail(&found, LK_BAD_USAGE,
                          "prediction of %llu examples: found no address of %s, wanted one",
                          (unsigned long long)count, inputs ? "outputs" : "inputs");
        } else {
            r->run.arena.phase = "prediction";
            (void)lk_run_predict(&r->run, inputs, count, outputs, &found);
        }
        if (r->run.lost.status != LK_OK) (void)end_run(r, &found);
    }
    return lk_lockstep_answer(&found, error);
}

// --- checkpoints ---------------------------------------------------------------------------------

static lk_status save(lockstep_run *r, const char *directory, lk_error *error) {
    LK_CHECK(ensure_started(r, error));
    LK_CHECK(refuse_training(r, error));
    if (!directory || !*directory) {
        return lk_fail(error, LK_BAD_USAGE, "a checkpoint: found no directory, wanted one");
    }
    LK_CHECK(lk_path_join(r->directory, directory, "", "", error));
    const int made = lk_file_ops_posix.make_directory(NULL, directory);
    if (made < 0 && made != -EEXIST) {
        return lk_file_fail(error, LK_IO_ERROR, directory, "make the directory", made);
    }
    if (made == 0) {  // a power cut must not lose it with the checkpoint in it
        char parent[LK_PATH_BYTES];
        lk_path_parent(parent, directory);
        const int synced = lk_file_ops_posix.sync_directory(NULL, parent);
        if (synced < 0) return lk_file_fail(error, LK_IO_ERROR, parent, "sync it", synced);
    }
    r->run.arena.phase = "checkpoint";
    LK_CHECK(lk_run_check_data(&r->run, error));
    LK_CHECK(lk_saver_look(&r->saver, r->done, error));
    r->saver.job.directory = r->directory;
    r->saver.job.keep_max = 0;
    return lk_checkpoint_save(&lk_file_ops_posix, &r->saver.job, error);
}

lockstep_status lockstep_save(lockstep_run *r, const char *directory, lockstep_error *error) {
    lk_error found = {.status = LK_OK};
    (void)save(r, directory, &found);
    return lk_lockstep_answer(&found, error);
}

// The newest whole checkpoint of a directory, or of the run that lives there.
static lk_status find_newest(const char *directory, char path[LK_PATH_BYTES], lk_error *error) {
    enum { ENTRIES_MAX = 65536 };
    char inner[LK_PATH_BYTES];
    struct stat there;
    lk_checkpoint_found found;
    LK_CHECK(lk_path_join(inner, directory, "/", "checkpoints", error));
    if (stat(inner, &there) != 0) LK_CHECK(lk_path_join(inner, directory, "", "", error));
    lk_safetensors_entry *entries = calloc(ENTRIES_MAX, sizeof *entries);
    if (!entries) return lk_fail(error, LK_UNAVAILABLE, "%s: no memory to read it", directory);
    const lk_status status = lk_checkpoint_find_newest(&lk_file_ops_posix, inner, entries,
                                                       ENTRIES_MAX, NULL, NULL, &found, error);
    free(entries);
    return status == LK_OK ? lk_path_join(path, found.path, "", "", error) : status;
}

// Verified first, so that a damaged one is refused while the run is still what it was.
static lk_status load(lockstep_run *r, const char *path, lk_error *error) {
    static const lk_say nobody = {0};
    char file[LK_PATH_BYTES];
    struct stat there;
    lk_open_checkpoint checkpoint;
    LK_CHECK(ensure_started(r, error));
    if (!path || !*path) {
        return lk_fail(error, LK_BAD_USAGE, "a checkpoint: found no path, wanted one");
    }
    LK_CHECK(lk_path_join(file, path, "", "", error));
    if (stat(path, &there) == 0 && S_ISDIR(there.st_mode)) LK_CHECK(find_newest(path, file, error));
    if (!r->prediction_only || !lk_is_export(&lk_file_ops_posix, file)) {
        LK_CHECK(lk_checkpoint_enter(&checkpoint, file, false, error));
        lk_checkpoint_leave(&checkpoint);
    }
    uint64_t done = 0;
    r->run.weights_changed = false;
    const lk_status status =
        lk_load_weights(&r->run, &lk_file_ops_posix, file, NULL, &nobody, &done, error);
    if (status == LK_OK) r->done = done;
    return status != LK_OK && r->run.weights_changed ? end_run(r, error) : status;
}

lockstep_status lockstep_load(lockstep_run *r, const char *path, lockstep_error *error) {
    lk_error found = {.status = LK_OK};
    (void)load(r, path, &found);
    return lk_lockstep_answer(&found, error);
}

// --- what it is ----------------------------------------------------------------------------------

uint64_t lockstep_steps_done(const lockstep_run *r) { return r ? r->done : 0; }

uint64_t lockstep_steps_configured(lockstep_run *r, lockstep_error *error) {
    lk_error found = {.status = LK_OK};
    const uint64_t steps = ensure_started(r, &found) == LK_OK ? lk_run_steps(&r->run) : 0;
    (void)lk_lockstep_answer(&found, error);
    return steps;
}

typedef void (*hasher)(lockstep_run *r, char hex[LOCKSTEP_HASH_BYTES]);

static lockstep_status hash(lockstep_run *r, hasher make, char hex[LOCKSTEP_HASH_BYTES],
                            lockstep_error *error) {
    lk_error found = {.status = LK_OK};
    if (ensure_started(r, &found) == LK_OK && lk_run_fetch(&r->run, &found) == LK_OK) make(r, hex);
    return lk_lockstep_answer(&found, error);
}

static void digest_of(lockstep_run *r, char hex[LOCKSTEP_HASH_BYTES]) {
    lk_run_digest(&r->run, hex);
}

static void state_of(lockstep_run *r, char hex[LOCKSTEP_HASH_BYTES]) {
    lk_run_state_hash(&r->run, r->done, hex);
}

static void identity_of(lockstep_run *r, char hex[LOCKSTEP_HASH_BYTES]) {
    memcpy(hex, r->run.identity_hex, LOCKSTEP_HASH_BYTES);
}

lockstep_status lockstep_digest(lockstep_run *r, char hex[LOCKSTEP_HASH_BYTES],
                                lockstep_error *error) {
    return hash(r, digest_of, hex, error);
}

lockstep_status lockstep_state_hash(lockstep_run *r, char hex[LOCKSTEP_HASH_BYTES],
                                    lockstep_error *error) {
    return hash(r, state_of, hex, error);
}

lockstep_status lockstep_run_identity(lockstep_run *r, char hex[LOCKSTEP_HASH_BYTES],
                                      lockstep_error *error) {
    return hash(r, identity_of, hex, error);
}
