// train.c - lockstep train: the loop over steps, and everything that happens between two of them.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "apps/run/cluster.h"
#include "apps/cli/command.h"
#include "apps/run/hot.h"
#include "apps/run/plan_json.h"
#include "comm/step/hash.h"
#include "comm/cluster/rendezvous.h"
#include "io/line_sum.h"
#include "ops/variant.h"

enum { METRICS_LINE_BYTES = 256, HASHES_LINE_BYTES = LK_RUN_LOG_BYTES / 2 };

// What the loop carries from step to step. Static, one run a process, and written whole at the
// start: no page of it is touched for the first time in the middle of a run.
typedef struct trainer {
    lk_run *run;
    lk_run_dir dir;
    lk_line_log metrics, hashes;
    lk_text_out out;      // what is said on the way; nowhere under --quiet, --json or a leader
    lk_text_out own;      // standard output, where `out` leads elsewhere
    lk_text_out *result;  // what is said at the end
    lk_checkpoint_job checkpoint;
    lk_hot hot;
    lk_safetensors_pair pairs[LK_RUN_STATE_PAIRS];
    char digest[LK_SHA256_HEX_BYTES], state[LK_SHA256_HEX_BYTES];
    char numbers[4][24];
    char cublas[24];
    char line[HASHES_LINE_BYTES + LK_LINE_SUM_BYTES];  // of hashes.jsonl
    uint64_t done;                    // steps finished, in all
    uint64_t total;
    uint64_t first;  // steps that were finished when this process began
    uint64_t saved;  // step of the last checkpoint, or UINT64_MAX
    lk_error unsaved;  // why the last save failed, or LK_OK
    bool low, moved;   // said: little room on the disk; the directory lies elsewhere
    bool evaluated;  // the run that is resumed has logged the evaluation of step `first`
    lk_hot_choice from;  // the hot state that this process began from, if it did
    double start, last_log, last_save;
    uint64_t last_log_step;
    uint32_t stop;             // the signal this run stops by, or 0
    bool leads;                // of several workers one writes and speaks
    lk_collective collective;  // as asked for
    char held[LK_RUN_LOG_BYTES / 2];  // lines that standard output has not taken yet
    bool running;              // start-up is over: from here on workers can fail alone
    bool json;                 // --json: events in place of lines
    double evaluating;         // seconds spent outside training since `start`
    uint32_t step_timeout_seconds;
} trainer;

// --- what is said ------------------------------------------------------------------------------

// --json: an event, one line that is a JSON object.
static void say_event(trainer *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void say_event(trainer *t, const char *format, ...) {
    char line[2048];
    va_list args;
    if (!t->json || !t->leads) return;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    lk_text_record(&t->own, "%s", line);
}

// What the handlers of watch.h look at.
static void note_step(const trainer *t, const lk_step_result *r) {
    lk_watching.done = t->done;
    if (!r || r->pending) return;
    lk_watching.loss = r->loss;
    lk_watching.correct = r->correct;
    lk_watching.examples = r->examples;
}

static void note_spent(const trainer *t) {
    lk_watching.evaluating = t->evaluating;
    lk_watching.saved = t->saved;
    lk_watching.said_at = lk_seconds();
}

// --- checkpoints -------------------------------------------------------------------------------

static void prepare_checkpoint(trainer *t) {
    lk_run *run = t->run;
    lk_safetensors_tensor *tensors = (lk_safetensors_tensor *)(void *)run->checkpoint_tables;
    lk_run_tensors(run, tensors);
    const lk_run_spec *spec = &run->config.spec;
    snprintf(t->numbers[0], sizeof t->numbers[0], "%llu", (unsigned long long)spec->seed);
    snprintf(t->numbers[1], sizeof t->numbers[1], "%u", spec->global_batch);
    snprintf(t->numbers[2], sizeof t->numbers[2], "%u", spec->grain);
    // A strict checkpoint is the same wherever it was computed, so the last four are not its.
    const size_t count = lk_run_is_fast(run) ? LK_RUN_STATE_PAIRS : LK_RUN_STATE_PAIRS - 4;
    const lk_safetensors_pair pairs[LK_RUN_STATE_PAIRS] = {
        {"run_identity", run->identity_hex},
        {"digest", t->digest},
        {"state_hash", t->state},
        {"lockstep_version", LK_VERSION},
        {"name", run->config.name},
        {"seed", t->numbers[0]},
        {"global_batch", t->numbers[1]},
        {"grain", t->numbers[2]},
        {"arithmetic", "fast"},
        {"precision", lk_precision_name(spec->precision)},
        {"gpu", run->gpus.gpu[0].device.name},
        {"cublas", t->cublas}};
    memcpy(t->pairs, pairs, sizeof pairs);
    lk_run_cublas(run, t->cublas, sizeof t->cublas);
    t->checkpoint = (lk_checkpoint_job){.directory = t->dir.checkpoints,
                                        .metadata = t->pairs,
                                        .metadata_count = count,
                                        .tensors = tensors,
                                        .tensor_count = lk_run_tensor_count(run),
                                        .keep_max = run->config.keep_max,
                                        .buffer = run->checkpoint_buffer,
                                        .buffer_bytes = run->checkpoint_bytes};
}

static void warn(trainer *t, const char *text) {
    lk_text_line(&t->out, "WARNING: %s", text);
    fprintf(stderr, "lockstep: WARNING: %s\n", text);
}

// Said once, and again after it was well in between.
static void watch_directory(trainer *t) {
    char now[LK_PATH_BYTES], text[3 * LK_PATH_BYTES];
    const bool moved = !lk_held_files_in_place(&t->dir.held, now);
    const uint64_t bytes = lk_held_files_free_bytes(&t->dir.held);
    const uint64_t wanted = t->run->checkpoint_file_bytes + (uint64_t)2 * LK_RUN_LOG_BYTES;
    if (moved && !t->moved) {
        lk_format(text, sizeof text,
                  "%s: the directory of this run was moved; the run goes on in it, now at %s",
                  t->dir.path, now);
        warn(t, text);
    }
    if (bytes < wanted && !t->low) {
        lk_format(text, sizeof text,
                  "%s: the disk is almost full: the next checkpoint takes %llu bytes, %llu are "
                  "free; free some, or keep fewer with checkpoint.keep_max",
                  now, (unsigned long long)wanted, (unsigned long long)bytes);
        warn(t, text);
    }
    t->moved = moved;
    t->low = bytes < wanted;
}

// The logs first: a resumed run must not find a checkpoint that is ahead of them.
static lk_status write_checkpoint(trainer *t, lk_error *error) {
    LK_CHECK(lk_run_dir_check(&t->dir, error));
    LK_CHECK(lk_line_log_sync(&t->metrics, error));
    LK_CHECK(lk_line_log_sync(&t->hashes, error));
    t->checkpoint.step = t->done;
    return lk_checkpoint_save(t->dir.ops, &t->checkpoint, error);
}

// A save that fails does not end a healthy run: what was saved stands, and the next one is tried.
static lk_status save_failed(trainer *t, lk_error *error) {
    const lk_error why = *error;
    char text[2 * LK_ERROR_TEXT_BYTES], last[40] = "none before";
    const bool disk = why.status == LK_IO_ERROR || why.status == LK_BAD_DATA;
    if (t->run->config.stop_on_failed_save || !disk) return why.status;
    error->status = LK_OK;
    if (t->checkpoint.durable) {
        lk_format(text, sizeof text, "checkpoint step %llu stands, but: %s",
                  (unsigned long long)t->done, why.text);
        warn(t, text);
        return LK_OK;
    }
    if (t->saved != UINT64_MAX) {
        lk_format(last, sizeof last, "that of step %llu", (unsigned long long)t->saved);
    }
    lk_format(text, sizeof text,
              "no checkpoint of step %llu (the last one is %s); the run goes on, the next save "
              "tries again: %s",
              (unsigned long long)t->done, last, why.text);
    // On stderr the first of a series, and no second one of the same words.
    if (t->unsaved.status == LK_OK) warn(t, text);
    else lk_text_line(&t->out, "WARNING: %s", text);
    t->unsaved = why;
    return LK_OK;
}

// One older checkpoint, the next in turn: one that has rotted is said loudly, and the run goes on.
static void scrub(trainer *t) {
    char text[LK_ERROR_TEXT_BYTES + 64];
    lk_error wrong = {.status = LK_OK};
    if (lk_checkpoint_scrub(t->dir.ops, &t->checkpoint, &wrong) == LK_OK) return;
    lk_format(text, sizeof text, "an older checkpoint: %s; the newest stands", wrong.text);
    warn(t, text);
}

static lk_status save(trainer *t, lk_error *error) {
    if (!t->leads) return LK_OK;
    double begin = lk_seconds();
    t->run->arena.phase = "checkpoint";
    LK_CHECK(lk_run_fetch(t->run, error));
    lk_run_digest(t->run, t->digest);
    lk_run_state_hash(t->run, t->done, t->state);
    t->checkpoint.durable = false;
    if (write_checkpoint(t, error) != LK_OK) LK_CHECK(save_failed(t, error));
    t->last_save = lk_seconds();  // a failed one, too: the next is tried when it is due
    t->evaluating += t->last_save - begin;
    note_spent(t);
    if (!t->checkpoint.durable) return LK_OK;
    t->unsaved.status = LK_OK;
    t->saved = t->done;
    lk_text_line(&t->out, "checkpoint step %llu  digest %s", (unsigned long long)t->done,
                 t->digest);
    say_event(t, "{\"event\":\"checkpoint\",\"step\":%llu,\"digest\":\"%s\"}",
              (unsigned long long)t->done, t->digest);
    scrub(t);
    watch_directory(t);
    return LK_OK;
}

// Where the run ends: once more, and then it counts that it failed.
static lk_status save_last(trainer *t, lk_error *error) {
    if (t->saved != t->done) LK_CHECK(save(t, error));
    return LK_OK;
}

static lk_status check_saved(const trainer *t, lk_error *error) {
    if (t->unsaved.status != LK_OK && t->saved != t->done) *error = t->unsaved;
    return error->status;
}

static bool clock_says_save(const trainer *t) {
    const lk_config *c = &t->run->config;
    return c->checkpoint_every_seconds &&
           lk_seconds() - t->last_save >= (double)c->checkpoint_every_seconds;
}

static bool step_says_save(const trainer *t, uint64_t done) {
    const uint64_t every = t->run->config.checkpoint_every_steps;
    return every && done % every == 0;
}

// Whoever saves waits for the GPUs, and where these wait for each other, all do so after the same
// step: by the leader's clock.
static bool save_is_due(const trainer *t, const lk_step_result *r) {
    if (step_says_save(t, t->done)) return true;
    return lk_run_is_direct(t->run) ? r->save_by_clock : t->run->save_by_clock;
}

// --- logs --------------------------------------------------------------------------------------

// One line of metrics.jsonl. Times are not in it: two equal runs write equal files.
static lk_status log_metrics(trainer *t, const char *kind, const lk_step_result *r,
                             lk_error *error) {
    if (!t->leads) return LK_OK;
    char line[METRICS_LINE_BYTES];
    int n = snprintf(line, sizeof line,
                     "{\"step\":%llu,\"%s\":{\"loss\":%.9g,\"correct\":%u,\"examples\":%u}}",
                     (unsigned long long)t->done, kind, (double)r->loss, r->correct, r->examples);
    return lk_line_log_add(&t->metrics, line, lk_line_sum_put(line, (size_t)n, sizeof line), error);
}

// One line of hashes.jsonl: a hash for each parameter, in canonical order.
static lk_status log_hashes(trainer *t, lk_error *error) {
    if (!t->leads) return LK_OK;
    LK_CHECK(lk_run_fetch(t->run, error));
    char *line = t->line;
    const lk_program *p = &t->run->program;
    size_t used =
        (size_t)snprintf(line, sizeof t->line, "{\"step\":%llu", (unsigned long long)t->done);
    for (uint32_t i = 0; i < p->param_count; i++) {
        const lk_tensor *tensor = &p->tensors[p->params[i].tensor];
        const void *values = t->run->core.device + tensor->offset;
        uint64_t hash = lk_step_hash(values, 0, p->params[i].count);
        char name[2 * LK_NAME_BYTES];
        lk_text_escape(name, sizeof name, tensor->name, strlen(tensor->name));
        used += (size_t)snprintf(line + used, sizeof t->line - used, ",\"%s\":\"%016llx\"", name,
                                 (unsigned long long)hash);
        lk_assert(used < HASHES_LINE_BYTES);  // check_hash_line
    }
    line[used++] = '}';
    used = lk_line_sum_put(line, used, sizeof t->line);
    return lk_line_log_add(&t->hashes, line, used, error);
}

// Whether such a line has its room, before the first step.
static lk_status check_hash_line(const trainer *t, lk_error *error) {
    const lk_program *p = &t->run->program;
    size_t bytes = sizeof "{\"step\":18446744073709551615}";
    for (uint32_t i = 0; i < p->param_count; i++) {
        const char *name = p->tensors[p->params[i].tensor].name;
        bytes +=
            lk_text_escape(NULL, 0, name, strlen(name)) + sizeof ",\"\":\"0123456789abcdef\"" - 1;
    }
    if (bytes <= HASHES_LINE_BYTES) return LK_OK;
    return lk_fail(
        error, LK_BAD_CONFIG,
        "%s: the names and hashes of %u parameters are %zu bytes, a line of hashes.jsonl "
        "has room for %zu; give the layers shorter names, or take fewer",
        t->run->config.document.source, p->param_count, bytes, (size_t)HASHES_LINE_BYTES);
}

// The lines that users of the reference tutorial parse, or an event.
static void show_step(trainer *t, const lk_step_result *r) {
    double now = lk_seconds(), spent = now - t->last_log;
    uint64_t steps = t->done - t->last_log_step, every = t->run->config.log_every_steps;
    double rate = spent > 0 ? (double)steps / spent : 0.0;
    bool first = t->done == t->first + 1;
    lk_watching.said_at = now;
    say_event(t,
              "{\"event\":\"step\",\"step\":%llu,\"steps\":%llu,\"loss\":%.9g,\"correct\":%u,"
              "\"examples\":%u,\"steps_per_second\":%.6g}",
              (unsigned long long)t->done, (unsigned long long)t->total, (double)r->loss,
              r->correct, r->examples, rate);
    // On a terminal the clock shows the steps.
    if (!t->out.terminal && first) {
        lk_text_line(&t->out, "loss = %.9g, step = %llu", (double)r->loss,
                     (unsigned long long)(t->done - 1));
    } else if (!t->out.terminal) {
        if (steps == every) lk_text_line(&t->out, "global_step/sec: %g", rate);
        lk_text_line(&t->out, "loss = %.9g, step = %llu (%.3f sec)", (double)r->loss,
                     (unsigned long long)(t->done - 1), spent);
    }
    t->last_log = now;
    t->last_log_step = t->done;
}

static lk_status check_workers(const trainer *t, lk_error *error) {
    if (t->run->lost.status != LK_OK) *error = t->run->lost;
    return t->run->lost.status;
}

static lk_status check_finite(const trainer *t, const lk_step_result *r, lk_error *error) {
    char saved[80] = "there is no checkpoint yet";
    if (!r->bad_tensor) return LK_OK;
    if (t->saved != UINT64_MAX) {
        lk_format(saved, sizeof saved, "the last checkpoint, of step %llu, stands",
                  (unsigned long long)t->saved);
    }
    return lk_fail(error, LK_NOT_FINITE,
                   "step %llu: %s is not finite: the run diverged and saves nothing more; %s; try "
                   "a smaller learning_rate",
                   (unsigned long long)r->step, r->bad_tensor, saved);
}

// Before anybody says, hashes or saves what was computed: a GPU's steps are over, and finite.
static lk_status settle(trainer *t, lk_step_result *r, lk_error *error) {
    if (!r->pending) return LK_OK;
    *r = lk_run_settle(t->run);
    LK_CHECK(check_workers(t, error));
    return check_finite(t, r, error);
}

// Where the cluster has an evaluator, that is its work.
static bool evaluates(const trainer *t) { return t->run->test.count && !t->run->evaluator; }

// A share of the test set is no step, and may take as long as the steps of so many examples. They
// say how long that is, on the slowest worker, too: all keep step.
static void allow_for_evaluation(const trainer *t, double trained) {
    const uint64_t steps = t->done - t->first;
    if (!t->run->workers.joined) return;
    const double step = steps ? trained / (double)steps : t->step_timeout_seconds;
    const double of_step = (double)t->run->test.count / t->run->config.spec.global_batch;
    lk_mpi_allow(2 * step * of_step);
}

static lk_status evaluate(trainer *t, lk_step_result *result, lk_error *error) {
    double begin = lk_seconds(), trained = begin - t->start - t->evaluating;
    t->run->arena.phase = "evaluation";
    allow_for_evaluation(t, trained);
    *result = lk_run_evaluate(t->run, t->done);
    if (t->run->workers.joined) lk_mpi_allow(0);
    LK_CHECK(check_workers(t, error));
    if (result->bad_tensor) {
        return lk_fail(error, LK_NOT_FINITE, "evaluation after step %llu: %s is not finite",
                       (unsigned long long)t->done, result->bad_tensor);
    }
    t->evaluating += lk_seconds() - begin;
    note_spent(t);
    const bool again = t->evaluated && t->done == t->first;
    if (!again) LK_CHECK(log_metrics(t, "test", result, error));
    say_event(t,
              "{\"event\":\"evaluation\",\"step\":%llu,\"examples\":%u,\"correct\":%u,"
              "\"loss\":%.9g,\"accuracy\":%.6g,\"training_seconds\":%.3f}",
              (unsigned long long)t->done, result->examples, result->correct, (double)result->loss,
              (double)result->correct / result->examples, trained);
    lk_text_line(&t->out,
                 "evaluation step %llu: %u examples, loss %.9g, accuracy %.2f%%, "
                 "after %.2f s of training",
                 (unsigned long long)t->done, result->examples, (double)result->loss,
                 100.0 * result->correct / result->examples, trained);
    return LK_OK;
}

// --- hot state ---------------------------------------------------------------------------------

// What the logs say of this step is the kernel's before the step can be gone on from.
static lk_status keep_hot(trainer *t, bool tested, lk_error *error) {
    lk_error full = {.status = LK_OK};
    // What was trained on changed data must not be gone on from.
    LK_CHECK(lk_run_check_data(t->run, error));
    if (t->leads) {
        (void)lk_line_log_flush(&t->metrics, &full);
        (void)lk_line_log_flush(&t->hashes, &full);
    }
    // A copy that is ahead of the logs is of no use: the copies before it stay.
    if (full.status != LK_OK && !t->metrics.patient) *error = full;
    if (full.status != LK_OK) return error->status;
    return lk_hot_keep_step(&t->hot, t->done, tested ? LK_HOT_EVALUATION_OWED : 0, error);
}

// What was still to come after the step that this process began from. A checkpoint after the
// evaluation, as always.
static lk_status catch_up(trainer *t, lk_error *error) {
    if (!t->from.found || !(t->from.word & LK_HOT_EVALUATION_OWED)) return LK_OK;
    lk_step_result ignored;
    const bool writes = step_says_save(t, t->done);
    t->run->exchange.writes_checkpoint = t->leads && writes;
    if (evaluates(t)) LK_CHECK(evaluate(t, &ignored, error));
    return writes ? save(t, error) : LK_OK;
}

// .. and where there is none, in start-up, where the others wait for the leader.
static lk_status save_owed(trainer *t, lk_error *error) {
    if (!t->from.found || (t->from.word & LK_HOT_EVALUATION_OWED)) return LK_OK;
    if (!step_says_save(t, t->done) || t->done == t->total) return LK_OK;
    lk_status status = save(t, error);
    return t->run->workers.joined ? lk_mpi_settle(status, error) : status;
}

// --- the loop ----------------------------------------------------------------------------------

static lk_status one_step(trainer *t, lk_error *error) {
    const lk_config *c = &t->run->config;
    t->run->arena.phase = "training";
    lk_watching.step_began = lk_seconds();
    t->run->stop = lk_stop_signal();
    // Known before the step, so that the others can be told.
    const bool last = t->done + 1 == t->total;
    const bool tested = c->evaluate_every_steps && (t->done + 1) % c->evaluate_every_steps == 0 &&
                        !last && evaluates(t);
    t->run->save_by_clock = t->leads && clock_says_save(t);
    const bool writes =
        t->leads && (t->run->save_by_clock || step_says_save(t, t->done + 1) || last);
    t->run->exchange.writes_checkpoint = writes && !tested;
    lk_step_result r = lk_run_step(t->run, t->done);
    LK_CHECK(check_workers(t, error));
    LK_CHECK(check_finite(t, &r, error));
    t->stop = r.stop;
    t->done++;
    note_step(t, &r);
    // The lines of a run are those of one that was never resumed.
    const bool logged = t->done % c->log_every_steps == 0 || t->done == 1 || last;
    const bool shown = logged || t->done == t->first + 1;
    const bool hashed = t->done % c->hash_every_steps == 0 || last;
    const bool saved = save_is_due(t, &r), kept = lk_hot_is_due(&t->hot, t->done, last);
    if (shown || hashed || tested || saved || kept) {
        LK_CHECK(settle(t, &r, error));
        note_step(t, &r);
    }
    if (logged) LK_CHECK(log_metrics(t, "train", &r, error));
    if (shown) show_step(t, &r);
    if (hashed) LK_CHECK(log_hashes(t, error));
    if (kept) LK_CHECK(keep_hot(t, tested, error));
    if (tested) {
        lk_step_result ignored;
        t->run->exchange.writes_checkpoint = writes;
        LK_CHECK(evaluate(t, &ignored, error));
    }
    if (!saved) return LK_OK;
    LK_CHECK(lk_run_check_data(t->run, error));
    LK_CHECK(save(t, error));
    // Nobody reads any more: the run ends here, where nothing of it is lost. Unless it was asked
    // to, as by the terminal that is gone.
    if (lk_stop_signal()) return LK_OK;
    LK_CHECK(lk_text_check(&t->own, "standard output", error));
    return lk_text_check(&t->out, "standard output", error);
}

static lk_status loop(trainer *t, lk_error *error) {
    t->start = t->last_log = t->last_save = lk_seconds();
    t->first = t->last_log_step = t->done;
    lk_watching.first = lk_watching.done = t->done;
    lk_watching.total = t->total;
    lk_watching.start = t->start;
    note_spent(t);
    lk_watching.run = t->run;
    lk_watch_clock(true);
    LK_CHECK(catch_up(t, error));
    while (t->done < t->total) {
        LK_CHECK(one_step(t, error));
        lk_watch_catch_up();
        // Alone, at once; with others, after the step in which all of them know it.
        if (!t->run->workers.joined) t->stop = lk_stop_signal();
        if (!t->stop) {
            LK_CHECK(lk_run_scrub(t->run, error));
            continue;
        }
        LK_CHECK(lk_run_check_data(t->run, error));
        if (t->run->cuda) LK_CHECK(settle(t, &(lk_step_result){.pending = true}, error));
        LK_CHECK(save_last(t, error));
        LK_CHECK(check_saved(t, error));
        lk_watch_clock(false);
        lk_text_line(t->result, "stopped after step %llu; go on with --resume",
                     (unsigned long long)t->done);
        say_event(t, "{\"event\":\"stopped\",\"step\":%llu,\"signal\":%u}",
                  (unsigned long long)t->done, t->stop);
        return lk_stop_status(t->stop);
    }
    return LK_OK;
}

static void print_result(trainer *t, const lk_step_result *r, uint64_t steps, double seconds) {
    lk_text_out *out = t->result;
    char test[160] = "";
    if (r->examples) {
        lk_text_line(out, "test_loss %.9g", (double)r->loss);
        lk_text_line(out, "test_accuracy %.2f", 100.0 * r->correct / r->examples);
        snprintf(test, sizeof test,
                 "\"test\":{\"loss\":%.9g,\"correct\":%u,\"examples\":%u,\"accuracy\":%.6g},",
                 (double)r->loss, r->correct, r->examples, (double)r->correct / r->examples);
    }
    if (steps) {
        lk_text_line(out, "trained %llu steps in %.3f s: %.1f steps/s, %.0f images/s",
                     (unsigned long long)steps, seconds, (double)steps / seconds,
                     (double)steps * t->run->config.spec.global_batch / seconds);
        lk_laps_print(&t->run->laps, &t->out);
    } else {
        lk_text_line(out, "nothing to do: step %llu of %llu is already saved",
                     (unsigned long long)t->done, (unsigned long long)t->total);
    }
    lk_text_line(out, "run_identity %s", t->run->identity_hex);
    lk_text_line(out, "digest %s", t->digest);
    lk_text_line(out, "state_hash %s", t->state);
    say_event(t,
              "{\"event\":\"end\",\"step\":%llu,\"trained\":%llu,\"seconds\":%.3f,%s"
              "\"run_identity\":\"%s\",\"digest\":\"%s\",\"state_hash\":\"%s\"}",
              (unsigned long long)t->done, (unsigned long long)steps, seconds, test,
              t->run->identity_hex, t->digest, t->state);
}

static lk_status finish(trainer *t, lk_error *error) {
    double seconds = lk_seconds() - t->start - t->evaluating;
    uint64_t steps = t->done - t->first;
    lk_error unwritten = {.status = LK_OK};
    LK_CHECK(lk_run_check_data(t->run, error));
    LK_CHECK(save_last(t, error));
    t->run->exchange.writes_checkpoint = false;
    LK_CHECK(lk_run_fetch(t->run, error));
    lk_run_digest(t->run, t->digest);
    lk_run_state_hash(t->run, t->done, t->state);
    lk_step_result r = {0};
    if (evaluates(t)) {
        LK_CHECK(evaluate(t, &r, error));
        LK_CHECK(lk_run_check_data(t->run, error));
        if (t->leads) (void)lk_line_log_sync(&t->metrics, &unwritten);
    }
    lk_watch_clock(false);
    print_result(t, &r, steps, seconds);
    LK_CHECK(check_saved(t, error));
    if (unwritten.status != LK_OK) *error = unwritten;
    return error->status;
}

// --- start -------------------------------------------------------------------------------------

// What a fast run's bits depend on besides its identity.
static lk_status write_arithmetic(const trainer *t, lk_error *error) {
    const lk_run *run = t->run;
    const lk_cuda_device *device = &run->gpus.gpu[0].device;
    char text[1024], cublas[24], gpu[2 * sizeof device->name];
    lk_run_cublas(run, cublas, sizeof cublas);
    lk_text_escape(gpu, sizeof gpu, device->name, strlen(device->name));
    int n = snprintf(text, sizeof text,
                     "{\n  \"arithmetic\": \"fast\",\n  \"precision\": \"%s\",\n  \"gpu\": "
                     "\"%s\",\n  \"cublas\": \"%s\"\n}\n",
                     lk_precision_name(run->config.spec.precision), gpu, cublas);
    return lk_run_dir_write(&t->dir, "arithmetic.json", text, (size_t)n, error);
}

static lk_status write_documents(const trainer *t, lk_error *error) {
    char *text = malloc(LK_CONFIG_DUMP_BYTES);
    size_t length;
    if (!text) return lk_fail(error, LK_UNAVAILABLE, "no memory at start-up");
    lk_status status =
        lk_json_dump(&t->run->config.document, text, LK_CONFIG_DUMP_BYTES, &length, error);
    if (status == LK_OK) status = lk_run_dir_write(&t->dir, "config.json", text, length, error);
    free(text);
    LK_CHECK(status);
    if (lk_run_is_fast(t->run)) LK_CHECK(write_arithmetic(t, error));
    size_t bytes = lk_plan_json(t->run, NULL, NULL, 0) + 1;
    text = malloc(bytes);
    if (!text) return lk_fail(error, LK_UNAVAILABLE, "no memory at start-up");
    lk_plan_json(t->run, NULL, text, bytes);
    status = lk_run_dir_write(&t->dir, "plan.json", text, bytes - 1, error);
    free(text);
    return status;
}

// Whether metrics.jsonl ends with the evaluation of this step: a run that has nothing left to do
// says it again, but does not write it twice.
static lk_status find_evaluation(trainer *t, lk_error *error) {
    char path[LK_PATH_BYTES], tail[METRICS_LINE_BYTES + 1], wanted[64];
    lk_error missing = {.status = LK_OK};
    uint64_t bytes;
    int file;
    LK_CHECK(lk_path_join(path, t->dir.path, "/", "metrics.jsonl", error));
    if (lk_file_open_read(t->dir.ops, path, &file, &bytes, &missing) != LK_OK) return LK_OK;
    size_t length = (size_t)LK_MIN(bytes, sizeof tail - 1);
    lk_status status =
        lk_file_read_all(t->dir.ops, file, path, tail, length, bytes - length, error);
    t->dir.ops->close(t->dir.ops->context, file);
    LK_CHECK(status);
    tail[length] = '\0';
    snprintf(wanted, sizeof wanted, "{\"step\":%llu,\"test\":", (unsigned long long)t->done);
    t->evaluated = strstr(tail, wanted) != NULL;
    return LK_OK;
}

// A damaged line of a log is said, and stays: the state of the run is in its checkpoints.
static void check_logs(trainer *t) {
    static const char *const names[] = {"metrics.jsonl", "hashes.jsonl"};
    for (uint32_t i = 0; i < LK_COUNT(names); i++) {
        char path[LK_PATH_BYTES];
        lk_error wrong = {.status = LK_OK};
        lk_line_sums sums;
        if (lk_path_join(path, t->dir.path, "/", names[i], &wrong) != LK_OK ||
            lk_line_sums_file(t->dir.ops, path, &sums, &wrong) == LK_OK) {
            continue;
        }
        lk_text_line(&t->out, "WARNING: %s", wrong.text);
        fprintf(stderr, "lockstep: WARNING: %s\n", wrong.text);
    }
}

static void visit_for_newest(void *context, const char *name) {
    uint64_t *newest = context, step;
    if (lk_checkpoint_step_of(name, &step)) *newest = LK_MAX(*newest, step + 1);
}

// The newest of hot state and disk. A checkpoint is not even read where its name says that it is
// older; one that is damaged is none.
static lk_status go_on_from(trainer *t, lk_error *error) {
    lk_hot_choice *from = &t->from;
    uint64_t names_end = 0;
    (void)t->dir.ops->list(t->dir.ops->context, t->dir.checkpoints, visit_for_newest, &names_end);
    if (!from->found || from->step < names_end) {
        lk_error why = {.status = LK_OK};
        lk_status status =
            lk_load_weights(t->run, t->dir.ops, NULL, t->dir.path, &t->out, &t->done, &why);
        const bool none = status == LK_NO_INPUT || status == LK_BAD_DATA;
        if (!from->found || !(none || (status == LK_OK && from->step > t->done))) {
            const bool stale = status == LK_OK && from->found && from->step < t->done;
            if (stale) lk_hot_say_stale(from, t->done, &t->out);
            from->found = false;
            *error = why;
            return status;
        }
    }
    t->done = from->step;
    lk_text_line(&t->out, "weights of step %llu from the hot state of rank %u's host",
                 (unsigned long long)t->done, from->rank);
    return LK_OK;
}

static lk_status resume(trainer *t, lk_error *error) {
    LK_CHECK(lk_checkpoint_clean(t->dir.ops, t->dir.checkpoints, error));
    LK_CHECK(lk_hot_choose(&t->hot, t->dir.path, lk_run_steps(t->run), &t->out, &t->from, error));
    lk_status status = go_on_from(t, error);
    if (status == LK_NO_INPUT) {  // the run never came to its first checkpoint: from the start
        error->status = LK_OK;
        t->done = 0;
        lk_text_line(&t->out, "resume: no checkpoint yet in %s, starting at step 0", t->dir.path);
    } else {
        LK_CHECK(status);
        if (!t->from.found) t->saved = t->done;
    }
    check_logs(t);
    uint64_t removed;
    LK_CHECK(lk_line_log_cut(&t->dir, "metrics.jsonl", t->done, &removed, error));
    LK_CHECK(find_evaluation(t, error));
    if (t->evaluated) t->from.word &= ~(uint64_t)LK_HOT_EVALUATION_OWED;
    return lk_line_log_cut(&t->dir, "hashes.jsonl", t->done, &removed, error);
}

// When gradients travel by messages.
static void print_overlap(const lk_run *run, lk_text_out *out) {
    const uint32_t parts = lk_exchange_parts(&run->program).count;
    uint32_t gpus = 0;
    for (uint32_t w = 0; w < run->workers.world; w++) gpus += run->workers.list[w].gpus;
    if (run->layout.shared) return;
    if (parts > 1) {
        lk_text_line(out,
                     "overlap: on, gradients are exchanged in %u parts, all but the last while "
                     "earlier layers are computed",
                     parts);
        return;
    }
    lk_text_line(out, "overlap: off (%s)",
                 run->config.overlap == LK_OVERLAP_OFF ? "as asked"
                 : gpus                                ? "GPUs by way of the host give all at once"
                 : run->layout.part_floats ? "no part of the gradients is large enough to go alone"
                                           : "auto: on one host it would take the time of the "
                                             "processors that compute");
}

static void print_slow(const lk_run *run, lk_text_out *out) {
    const char *slow = run->cuda ? NULL : lk_kernels_slow(run->kernels);
    if (slow) lk_text_line(out, "kernels: %s", slow);
}

// Who works here, and how bytes travel between them.
static void print_workers(const lk_run *run, lk_collective asked, lk_text_out *out) {
    const char *name = *run->config.name ? run->config.name : run->config.document.source;
    const lk_run_workers *w = &run->workers;
    uint32_t here, before;
    if (!w->joined) {
        lk_text_line(out, "lockstep %s  %s  1 worker x %u replicas (%s), kernels %s", LK_VERSION,
                     name, run->layout.replicas, lk_run_lanes(run), lk_run_kernels(run));
        print_slow(run, out);
        lk_collective_print(asked, run, out);
        return;
    }
    lk_mpi_host(&here, &before);
    lk_text_line(out, "lockstep %s  %s  %u workers, %u replicas in all, kernels %s", LK_VERSION,
                 name, w->world, run->layout.replicas_all, lk_run_kernels(run));
    print_slow(run, out);
    lk_collective_print(asked, run, out);
    lk_text_line(out,
                 "transport: %s; %u worker%s on this host; window %llu bytes, inbox %llu bytes, "
                 "rendezvous %llu bytes, foreign %llu bytes (%s)",
                 lk_mpi_transport(), here, here == 1 ? "" : "s",
                 (unsigned long long)run->window_bytes, (unsigned long long)run->inbox_bytes,
                 (unsigned long long)run->rendezvous_bytes,
                 (unsigned long long)lk_mpi_foreign_bytes(), lk_mpi_version());
    lk_text_line(out, "MPI listens at: %s", lk_mpi_listens());
    print_overlap(run, out);
}

// What each worker computes with, where that is not threads everywhere.
static void print_kinds(const lk_run *run, lk_text_out *out) {
    const lk_run_workers *w = &run->workers;
    uint32_t gpus = 0;
    for (uint32_t i = 0; w->joined && i < w->world; i++) gpus += w->list[i].gpus;
    for (uint32_t i = 0; gpus > 0 && i < LK_MIN(w->world, 16); i++) {
        const lk_worker *them = &w->list[i];
        const uint32_t lanes = them->gpus ? them->gpus : them->replicas;
        lk_text_line(out, "worker %u: %u replica%s on %u %s%s", i, them->replicas,
                     them->replicas == 1 ? "" : "s", lanes, them->gpus ? "GPU" : "thread",
                     lanes == 1 ? "" : "s");
    }
    if (gpus > 0 && w->world > 16) lk_text_line(out, "... and %u more workers", w->world - 16);
}

static void print_gpus(const lk_run *run, lk_text_out *out) {
    const lk_cuda_group *g = &run->gpus;
    for (uint32_t i = 0; run->cuda && i < g->count; i++) {
        const lk_cuda_device *d = &g->gpu[i].device;
        char number[16] = "";
        if (g->count > 1) snprintf(number, sizeof number, " %u", d->number);
        lk_text_line(
            out,
            "GPU%s %s (%u.%u): %llu bytes planned, foreign %llu bytes (context, kernels, other "
            "programs) of %llu",
            number, d->name, d->major, d->minor, (unsigned long long)g->gpu[i].arena.used,
            (unsigned long long)g->gpu[i].foreign_bytes, (unsigned long long)d->total_bytes);
    }
    if (g->count > 0 && g->choice.way == LK_CUDA_STAGED) {
        lk_text_line(out,
                     "exchange by way of the host: %llu bytes a step between it and this worker's "
                     "GPUs; nodes in %u part%s, each under the backward of earlier layers",
                     (unsigned long long)lk_cuda_staged_bytes(g), g->exchange.bucket_count,
                     g->exchange.bucket_count == 1 ? "" : "s");
    }
    if (g->exchange.parts <= 1 || g->choice.way == LK_CUDA_STAGED) return;
    lk_text_line(out,
                 "between %u GPUs: NCCL %s moves %llu bytes a step in %u parts, each under the "
                 "backward of earlier layers; foreign %llu bytes of a GPU are NCCL's",
                 g->exchange.parts, g->nccl.version,
                 (unsigned long long)lk_cuda_exchange_bytes(&g->exchange), g->exchange.bucket_count,
                 (unsigned long long)g->nccl_bytes);
}

// Of steps and epochs, where both are said, the one that ends the run.
static void print_length(const lk_run *run, lk_text_out *out) {
    const lk_config *c = &run->config;
    const unsigned long long total = lk_run_steps(run), epochs = c->epochs;
    const unsigned long long an_epoch = lk_steps_per_epoch(&c->spec);
    const char *s = epochs == 1 ? "" : "s";
    if (!c->steps) {
        lk_text_line(out, "length: %llu steps (%llu epoch%s)", total, epochs, s);
    } else if (!epochs) {
        lk_text_line(out, "length: %llu steps", total);
    } else if (epochs * an_epoch == c->steps) {
        lk_text_line(out, "length: %llu steps, both of steps and of %llu epoch%s", total, epochs,
                     s);
    } else if (total == c->steps) {
        lk_text_line(out, "length: %llu steps (steps), before %llu epoch%s, which are %llu", total,
                     epochs, s, epochs * an_epoch);
    } else {
        lk_text_line(out, "length: %llu steps (%llu epoch%s), before the %llu of steps", total,
                     epochs, s, (unsigned long long)c->steps);
    }
}

static void print_banner(const trainer *t) {
    const lk_run *run = t->run;
    const lk_run_spec *s = &run->config.spec;
    char hash[LK_SHA256_HEX_BYTES], cublas[24];
    lk_hex(s->data_hash, LK_SHA256_BYTES, hash);
    lk_run_cublas(run, cublas, sizeof cublas);
    lk_text_out *out = (lk_text_out *)&t->out;
    print_workers(run, t->collective, out);
    if (run->evaluator) lk_text_line(out, "evaluation: by the cluster's evaluator, not here");
    if (run->train.healed || run->test.healed) {
        lk_text_line(out,
                     "WARNING: bytes in the data cache had changed by themselves; they were "
                     "unpacked again; look after the disk");
    }
    lk_text_line(out, "data %s: %llu examples; test %llu", hash,
                 (unsigned long long)s->example_count, (unsigned long long)run->test.count);
    lk_text_line(
        out, "global batch %u = %u grains of %u; %llu steps an epoch, the last with %u examples",
        s->global_batch, lk_grain_count(s), s->grain, (unsigned long long)lk_steps_per_epoch(s),
        lk_step_examples(s, lk_steps_per_epoch(s) - 1));
    print_length(run, out);
    lk_text_line(out, "arena %llu bytes, %s; %llu parameters", (unsigned long long)run->arena.used,
                 run->block.locked ? "locked in memory" : "touched but NOT locked (see ulimit -l)",
                 (unsigned long long)run->program.param_floats);
    if (lk_run_is_fast(run)) {
        lk_text_line(out,
                     "arithmetic fast: products in %s by cuBLAS %s on %s; another GPU model or "
                     "version may give other bits",
                     lk_precision_name(s->precision), cublas, run->gpus.gpu[0].device.name);
    }
    print_kinds(run, out);
    lk_text_line(out, "run_identity %s", run->identity_hex);
}

static void print_start(trainer *t) {
    const lk_run *run = t->run;
    char name[6 * LK_JSON_SOURCE_BYTES], dir[6 * LK_PATH_BYTES];
    const char *plain = *run->config.name ? run->config.name : run->config.document.source;
    if (!t->json) return;
    lk_text_escape(name, sizeof name, plain, strlen(plain));
    lk_text_escape(dir, LK_MIN(sizeof dir, (size_t)1024), t->dir.path, strlen(t->dir.path));
    say_event(t,
              "{\"event\":\"start\",\"version\":\"%s\",\"name\":\"%.400s\",\"run_dir\":\"%s\","
              "\"step\":%llu,\"steps\":%llu,\"workers\":%u,\"replicas\":%u,\"kernels\":\"%s\","
              "\"arena_bytes\":%llu,\"run_identity\":\"%s\"}",
              LK_VERSION, name, dir, (unsigned long long)t->done,
              (unsigned long long)lk_run_steps(run), run->workers.world,
              run->workers.joined ? run->layout.replicas_all : run->layout.replicas,
              lk_run_kernels(run), (unsigned long long)run->arena.used, run->identity_hex);
}

// Where runs live that are given no place of their own.
static lk_status make_runs(lk_error *error) {
    int made = lk_file_ops_posix.make_directory(NULL, "runs");
    if (made >= 0 || made == -EEXIST) return LK_OK;
    return lk_file_fail(error, LK_IO_ERROR, "runs", "create the directory", made);
}

// What the command line says of it comes before the configuration.
static lk_run_entry entry_of(const lk_run *run, const lk_common_options *o) {
    static const lk_run_entry entries[] = {[LK_ON_START_NEW] = LK_ENTER_NEW,
                                          [LK_ON_START_RESUME] = LK_ENTER_RESUME,
                                          [LK_ON_START_EITHER] = LK_ENTER_EITHER};
    if (o->fresh) return LK_ENTER_NEW;
    if (o->resume) return LK_ENTER_RESUME;
    return o->resume_or_start ? LK_ENTER_EITHER : entries[run->config.on_start];
}

// The leader's own part of start-up: what is written, and what a resumed run goes on from.
static lk_status open_directory(trainer *t, const lk_common_options *o, lk_error *error) {
    static char path[LK_PATH_BYTES];
    lk_run *run = t->run;
    const char *dir = o->run_dir ? o->run_dir : lk_default_run_dir(run, path, sizeof path);
    LK_CHECK(check_hash_line(t, error));
    if (o->fresh) LK_CHECK(lk_remove_run(dir, error));
    if (!o->run_dir) LK_CHECK(make_runs(error));
    lk_status status = lk_run_dir_open(&t->dir, dir, entry_of(run, o), run->identity_hex, error);
    if (status == LK_BAD_CONFIG) lk_explain_identity(run, dir, error);
    LK_CHECK(status);
    print_banner(t);
    return LK_OK;
}

// .. and what it holds, once all have said what their hosts do.
static lk_status open_files(trainer *t, lk_error *error) {
    lk_run *run = t->run;
    lk_hot_print(&t->hot, &t->out);
    if (t->dir.resumed) LK_CHECK(resume(t, error));
    print_start(t);
    // A run that is finished changes nothing any more.
    const bool over = t->saved != UINT64_MAX && t->saved >= lk_run_steps(run);
    if (!over) LK_CHECK(write_documents(t, error));
    LK_CHECK(lk_line_log_open(&t->metrics, &t->dir, "metrics.jsonl", run->log_buffers,
                              LK_RUN_LOG_BYTES, error));
    LK_CHECK(lk_line_log_open(&t->hashes, &t->dir, "hashes.jsonl",
                              run->log_buffers + LK_RUN_LOG_BYTES, LK_RUN_LOG_BYTES, error));
    t->metrics.patient = t->hashes.patient = !run->config.stop_on_failed_save;
    prepare_checkpoint(t);
    if (!over) watch_directory(t);
    return LK_OK;
}

static lk_status plan_and_start(lk_run *run, const lk_common_options *o, lk_error *error) {
    run->gpu_choice.seconds_max = o->mpi.step_timeout_seconds;
    LK_CHECK(lk_run_plan(run, error));
    lk_watch_data(&run->train, &run->test);
    LK_CHECK(lk_run_start(run, o->max_memory, error));
    return LK_OK;
}

static lk_status train(trainer *t, const lk_common_options *o, lk_error *error) {
    lk_run *run = t->run;
    LK_CHECK(lk_run_agree(run, plan_and_start(run, o, error), error));
    lk_status status = t->leads ? open_directory(t, o, error) : LK_OK;
    if (run->workers.joined) status = lk_mpi_settle(status, error);
    LK_CHECK(status);
    lk_hot_meet(&t->hot, run, t->leads ? t->dir.path : NULL, entry_of(run, o) != LK_ENTER_NEW);
    if (t->leads) status = open_files(t, error);
    if (run->workers.joined) status = lk_mpi_settle(status, error);
    LK_CHECK(status);
    LK_CHECK(lk_hot_load(&t->hot, &t->from, error));
    LK_CHECK(lk_run_connect(run, &t->done, error));
    if (t->leads) print_gpus(run, &t->out);
    t->total = lk_run_steps(run);
    LK_CHECK(save_owed(t, error));
    lk_watch_stop();
    t->running = true;
    // Others wait for this process, so it waits for no reader of what it says.
    if (run->workers.joined) lk_text_hold(lk_watching.out, t->held, sizeof t->held);
    lk_watch_prepare();
    LK_CHECK(lk_run_seal(run, o->seal, error));
    status = loop(t, error);
    if (status == LK_OK) status = finish(t, error);
    return lk_run_blame_data(run, status, error);
}

// What every worker finds at the same step: the leader says it for all.
static bool is_common(lk_status status) {
    return status == LK_NOT_FINITE || status == LK_INTERRUPTED || status == LK_TERMINATED ||
           status == LK_HANGUP;
}

// How the workers of a cluster come together: there is one alone; a launcher of MPI has started
// them; or they meet where the description says that rank 0 is.
typedef enum gathering { ALONE, LAUNCHED, MEETING } gathering;

// A launcher of MPICH talks to its processes at this socket. One that is gone, as in a shell that a
// launcher started and outlived, would end in MPI's own words.
static lk_status check_launcher(lk_error *error) {
    const char *text = getenv("PMI_FD");
    struct stat about;
    char *end;
    if (!text) return LK_OK;
    unsigned long number = strtoul(text, &end, 10);
    bool good = *text >= '0' && *text <= '9' && *end == '\0' && number <= INT_MAX;
    if (good && fstat((int)number, &about) == 0 && S_ISSOCK(about.st_mode)) return LK_OK;
    return lk_fail(error, LK_BAD_USAGE,
                   "PMI_FD: found \"%s\", wanted the open socket of the launcher that started this "
                   "process; without one unset PMI_FD, PMI_RANK and PMI_SIZE",
                   text);
}

static lk_status read_cluster(const lk_common_options *o, lk_cluster *c, gathering *how,
                              lk_error *error) {
    lk_cluster_report report;
    LK_CHECK(lk_cluster_read(&(lk_cluster_input){.file = o->cluster}, c, &report, error));
    LK_CHECK(lk_cluster_check_replicas(c, o->config.replicas, error));
    bool launched = report.told[LK_CLUSTER_MPICH] != LK_TOLD_NOTHING ||
                    report.told[LK_CLUSTER_OPEN_MPI] != LK_TOLD_NOTHING;
    *how = c->world <= 1 ? ALONE : launched ? LAUNCHED : MEETING;
    if (*how == LAUNCHED) LK_CHECK(check_launcher(error));
    if (*how != MEETING || c->address[LK_CLUSTER_LEADER][0]) return LK_OK;
    // Processes that do not know of each other would each train alone, to the same files.
    return lk_fail(error, LK_UNAVAILABLE,
                   "%s describes %u workers, but neither where rank 0 is, nor did a launcher of "
                   "MPI start this one; start all with: mpiexec -n %u lockstep train CONFIG",
                   c->origin, c->world, c->world);
}

// The socket at which rank 0 listens, where who started this process has opened it; or -1.
static lk_status inherited_listener(int *out, lk_error *error) {
    const char *text = getenv("LOCKSTEP_LISTEN_FD");
    int listens = 0;
    socklen_t bytes = sizeof listens;
    char *end;
    *out = -1;
    if (!text) return LK_OK;
    unsigned long number = strtoul(text, &end, 10);
    if (*text >= '0' && *text <= '9' && *end == '\0' && number <= INT_MAX) {
        *out = (int)number;
        (void)getsockopt(*out, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes);
    }
    if (listens) return LK_OK;
    return lk_fail(error, LK_BAD_USAGE,
                   "LOCKSTEP_LISTEN_FD: found \"%s\", wanted the number of an inherited socket "
                   "that listens, as lockstep launch gives it; unset it, and rank 0 opens its own",
                   text);
}

static lk_status meet(const lk_common_options *o, const lk_cluster *c, lk_error *error) {
    int listener = -1;
    if (c->rank == LK_CLUSTER_LEADER) LK_CHECK(inherited_listener(&listener, error));
    const lk_rendezvous_options options = {
        .start_timeout_seconds = o->mpi.start_timeout_seconds,
        .step_timeout_seconds = o->mpi.step_timeout_seconds,
        .key_file = getenv("LOCKSTEP_KEY_FILE"),
        .insecure = o->insecure,
        .listener = listener,
        .waiting = lk_watch_waiting,
    };
    LK_CHECK(lk_mpi_built(error));
    return lk_rendezvous_meet(c, &options, error);
}

static lk_status configure(trainer *t, const lk_common_options *o, const lk_cluster *cluster,
                           gathering how, lk_error *error) {
    const lk_run_needs needs = {.checkpoints = true, .logs = true};
    lk_config_options config = o->config;
    uint32_t world = cluster->world, rank = cluster->rank;
    t->leads = lk_cluster_leads(cluster);
    config.workers = how == ALONE ? 1 : world;
    if (world > 0) {
        config.own_replicas = cluster->replicas[rank];
        config.worker_replicas = cluster->replicas;
    }
    lk_mpi_options mpi = o->mpi;
    mpi.waiting = lk_watch_waiting;
    lk_error refused = {.status = LK_OK};
    uint32_t several = how == ALONE ? 1 : world;
    lk_status status = lk_collective_choose(o->collective, several, &mpi, &refused);
    if (how != ALONE) LK_CHECK(lk_mpi_built(error));
    if (how == MEETING) LK_CHECK(meet(o, cluster, error));
    if (how != ALONE) LK_CHECK(lk_mpi_start(world, rank, &mpi, error));
    // What all of them were asked for, and cannot have, is said by one now that they can speak.
    if (status != LK_OK) *error = refused;
    if (status == LK_OK) status = lk_run_configure(t->run, &config, needs, error);
    t->run->evaluator = cluster->has_evaluator;
    t->run->rendezvous_bytes = how == MEETING ? lk_rendezvous_bytes(rank) : 0;
    if (status == LK_OK) {
        status = lk_collective_check_gpus(o->collective, several, t->run->gpu_choice.gpus, error);
    }
    if (how == ALONE) return status;
    LK_CHECK(lk_run_join(t->run, world, rank, status, error));
    return lk_collective_choose_way(t->run, o->collective, error);
}

// What they still hold is written; that it cannot be counts where nothing else has failed.
static lk_status close_logs(trainer *t, lk_status status, lk_error *error) {
    lk_line_log *const logs[] = {&t->metrics, &t->hashes};
    for (uint32_t i = 0; i < LK_COUNT(logs); i++) {
        lk_status closed = lk_line_log_close(logs[i], error);
        if (status == LK_OK) status = closed;
    }
    return status;
}

static bool is_stop(lk_status status) {
    return status == LK_INTERRUPTED || status == LK_TERMINATED || status == LK_HANGUP;
}

static void say_failure(trainer *t, lk_status status, const lk_error *error) {
    char text[2 * LK_ERROR_TEXT_BYTES];
    if (!t->json) return;
    lk_text_escape(text, sizeof text, error->text, strlen(error->text));
    say_event(t, "{\"event\":\"error\",\"code\":%d,\"text\":\"%s\"}", (int)status, text);
}

// The pipe of whoever started this process and shows its progress; or -1.
static lk_status inherited_progress(int *out, lk_error *error) {
    const char *text = getenv("LOCKSTEP_PROGRESS_FD");
    char *end;
    *out = -1;
    if (!text) return LK_OK;
    unsigned long number = strtoul(text, &end, 10);
    int flags = -1;
    if (*text >= '0' && *text <= '9' && *end == '\0' && number <= INT_MAX) {
        flags = fcntl((int)number, F_GETFL);
    }
    if (flags >= 0 && (flags & O_NONBLOCK)) {
        *out = (int)number;
        return LK_OK;
    }
    return lk_fail(
        error, LK_BAD_USAGE,
        "LOCKSTEP_PROGRESS_FD: found \"%s\", wanted the number of an inherited pipe that "
        "does not block, as lockstep launch gives it; unset it",
        text);
}

// Who hears what: lines on the way, the answers of watch.h, and the result.
static lk_status open_outputs(trainer *t, const lk_common_options *o, lk_error *error) {
    const bool talks = t->leads && !o->quiet && !o->json;
    lk_text_open(&t->out, talks ? STDOUT_FILENO : open("/dev/null", O_WRONLY | O_CLOEXEC));
    lk_text_open(&t->own, STDOUT_FILENO);
    t->result = t->leads && o->quiet ? &t->own : &t->out;
    lk_watching.out = talks ? &t->out : &t->own;
    lk_watching.leads = t->leads;
    lk_watching.json = o->json;
    lk_watching.quiet = o->quiet;
    return t->leads ? inherited_progress(&lk_watching.progress_file, error) : LK_OK;
}

lk_status lk_command_train(int argc, char **argv, lk_error *error) {
    static lk_run run;
    static trainer t;
    static lk_cluster cluster;
    gathering how;
    lk_common_options o;
    lk_watch_ask();
    LK_CHECK(lk_parse_common(argc, argv, LK_OPT_OF_TRAIN, &o, error));
    LK_CHECK(read_cluster(&o, &cluster, &how, error));
    if (cluster.evaluator) {  // its run is that of the workers
        o.config.workers = cluster.world;
        o.config.worker_replicas = cluster.replicas;
        return lk_evaluator(&o, error);
    }
    t = (trainer){.run = &run,
                  .collective = o.collective,
                  .json = o.json,
                  .step_timeout_seconds = o.mpi.step_timeout_seconds,
                  .saved = UINT64_MAX,
                  .dir = {.lock_file = -1},
                  .hot = {.state = {.file = -1}},
                  .metrics = {.file = -1},
                  .hashes = {.file = -1}};
    t.leads = lk_cluster_leads(&cluster);
    LK_CHECK(open_outputs(&t, &o, error));
    lk_status status = configure(&t, &o, &cluster, how, error);
    if (status == LK_OK) status = train(&t, &o, error);
    lk_watch_clock(false);
    lk_text_clear(&t.out);
    if (status != LK_OK && !is_stop(status)) say_failure(&t, status, error);
    status = close_logs(&t, status, error);
    // While the directory is held: what is saved is not needed in memory, too.
    const bool saved = t.running && (status == LK_OK || is_common(status));
    if (t.leads) lk_hot_end(&t.hot, saved);
    if (t.dir.lock_file >= 0) lk_run_dir_close(&t.dir);
    if (status == LK_OK) status = lk_text_check(&t.out, "standard output", error);
    if (status == LK_OK) status = lk_text_check(&t.own, "standard output", error);
    if (run.workers.joined && !t.leads && is_common(status)) error->status = LK_OK;
    // Said before anybody ends: a launcher stops all processes when the first does.
    lk_say_error(error);
    if (!t.running || status == LK_OK || is_common(status)) {
        lk_status end = lk_mpi_finish(&run.exchange, status, error);
        if (status == LK_OK && end != LK_OK) lk_say_error(error);
        status = end;
    }
    if (!t.leads) lk_hot_end(&t.hot, saved && (status == LK_OK || is_common(status)));
    // Nobody waits any more.
    (void)lk_text_release(lk_watching.out);
    if (status == LK_OK &&
        (status = lk_text_check(lk_watching.out, "standard output", error)) != LK_OK) {
        lk_say_error(error);
    }
    lk_run_close(&run);
    return status;
}
