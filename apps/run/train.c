// train.c - the loop over steps, and everything that happens between two of them (train.h).
#define _GNU_SOURCE
#include "apps/run/train.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "apps/run/generate.h"
#include "apps/run/metric_text.h"
#include "apps/run/output.h"
#include "apps/run/plan_json.h"
#include "apps/run/record.h"
#include "apps/run/scales.h"
#include "apps/run/step_hash.h"
#include "apps/run/weights.h"
#include "comm/threads/clock.h"
#include "io/line_sum.h"
#include "io/text.h"

enum { METRICS_LINE_BYTES = 384 };

// --- what is told ------------------------------------------------------------------------------

static lk_train_event event_of(const lk_trainer *t, lk_train_kind kind) {
    return (lk_train_event){.kind = kind,
                            .run = t->run,
                            .run_dir = t->dir.path,
                            .first = t->first,
                            .step = t->done,
                            .steps = t->total ? t->total : lk_run_steps(t->run),
                            .saved = t->saved,
                            .start = t->start,
                            .step_began = t->step_began,
                            .evaluating = t->evaluating,
                            .leads = t->leads};
}

static void tell_event(const lk_trainer *t, const lk_train_event *event) {
    if (t->calls.event) t->calls.event(t->calls.context, event);
}

static void tell(const lk_trainer *t, lk_train_kind kind) {
    const lk_train_event event = event_of(t, kind);
    tell_event(t, &event);
}

static void tell_result(const lk_trainer *t, lk_train_kind kind, const lk_step_result *r,
                        uint64_t since, double seconds) {
    lk_train_event event = event_of(t, kind);
    event.result = r;
    event.since = since;
    event.seconds = seconds;
    event.digest = t->saver.digest;
    event.state_hash = t->saver.state;
    tell_event(t, &event);
}

// The result of a step that a device works on still is not known.
static void tell_progress(const lk_trainer *t, const lk_step_result *r) {
    tell_result(t, LK_TRAIN_PROGRESS, r && !r->pending ? r : NULL, 0, 0);
}

// --- checkpoints -------------------------------------------------------------------------------

// Said once, and again after it was well in between.
static void watch_directory(lk_trainer *t) {
    char now[LK_PATH_BYTES], text[3 * LK_PATH_BYTES];
    const bool moved = !lk_held_files_in_place(&t->dir.held, now);
    const uint64_t bytes = lk_held_files_free_bytes(&t->dir.held);
    const uint64_t wanted = t->run->checkpoint_file_bytes + (uint64_t)2 * LK_RUN_LOG_BYTES;
    if (moved && !t->moved) {
        lk_format(text, sizeof text,
                  "%s: the directory of this run was moved; the run goes on in it, now at %s",
                  t->dir.path, now);
        lk_say_warning(&t->calls.say, "%s", text);
    }
    if (bytes < wanted && !t->low) {
        lk_format(text, sizeof text,
                  "%s: the disk is almost full: the next checkpoint takes %llu bytes, %llu are "
                  "free; free some, or keep fewer with checkpoint.keep_max",
                  now, (unsigned long long)wanted, (unsigned long long)bytes);
        lk_say_warning(&t->calls.say, "%s", text);
    }
    t->moved = moved;
    t->low = bytes < wanted;
}

// The logs first: a resumed run must not find a checkpoint that is ahead of them.
static lk_status write_checkpoint(lk_trainer *t, lk_error *error) {
    LK_CHECK(lk_run_dir_check(&t->dir, error));
    LK_CHECK(lk_line_log_sync(&t->metrics, error));
    LK_CHECK(lk_line_log_sync(&t->hashes, error));
    lk_journal_sync(&t->journal);
    t->saver.job.step = t->done;
    return lk_checkpoint_save(t->dir.ops, &t->saver.job, error);
}

// A save that fails does not end a healthy run: what was saved stands, and the next one is tried.
static lk_status save_failed(lk_trainer *t, lk_error *error) {
    const lk_error why = *error;
    char text[2 * LK_ERROR_TEXT_BYTES], last[40] = "none before";
    const bool disk = why.status == LK_IO_ERROR || why.status == LK_BAD_DATA;
    if (t->run->config.stop_on_failed_save || !disk) return why.status;
    error->status = LK_OK;
    if (t->saver.job.durable) {
        lk_format(text, sizeof text, "checkpoint step %llu stands, but: %s",
                  (unsigned long long)t->done, why.text);
        lk_say_warning(&t->calls.say, "%s", text);
        return LK_OK;
    }
    if (t->saved != UINT64_MAX) {
        lk_format(last, sizeof last, "that of step %llu", (unsigned long long)t->saved);
    }
    lk_format(text, sizeof text,
              "no checkpoint of step %llu (the last one is %s); the run goes on, the next save "
              "tries again: %s",
              (unsigned long long)t->done, last, why.text);
    // A warning is the first of a series, and no second one of the same words.
    if (t->unsaved.status == LK_OK) lk_say_warning(&t->calls.say, "%s", text);
    else lk_say_line(&t->calls.say, "WARNING: %s", text);
    t->unsaved = why;
    return LK_OK;
}

// One older checkpoint, the next in turn: one that has rotted is said loudly, and the run goes on.
static void scrub(lk_trainer *t) {
    lk_error wrong = {.status = LK_OK};
    if (lk_checkpoint_scrub(t->dir.ops, &t->saver.job, &wrong) == LK_OK) return;
    lk_say_warning(&t->calls.say, "an older checkpoint: %s; the newest stands", wrong.text);
}

static lk_status save(lk_trainer *t, lk_error *error) {
    if (!t->leads) return LK_OK;
    double begin = lk_seconds();
    t->run->arena.phase = "checkpoint";
    LK_CHECK(lk_saver_look(&t->saver, t->done, error));
    t->saver.job.durable = false;
    if (write_checkpoint(t, error) != LK_OK) LK_CHECK(save_failed(t, error));
    t->last_save = lk_seconds();  // a failed one, too: the next is tried when it is due
    t->evaluating += t->last_save - begin;
    tell_progress(t, NULL);
    if (!t->saver.job.durable) return LK_OK;
    t->unsaved.status = LK_OK;
    t->saved = t->done;
    tell_progress(t, NULL);
    tell_result(t, LK_TRAIN_CHECKPOINT, NULL, 0, 0);
    scrub(t);
    watch_directory(t);
    return LK_OK;
}

// Where the run ends: once more, and then it counts that it failed.
static lk_status save_last(lk_trainer *t, lk_error *error) {
    if (t->saved != t->done) LK_CHECK(save(t, error));
    return LK_OK;
}

static lk_status check_saved(const lk_trainer *t, lk_error *error) {
    if (t->unsaved.status != LK_OK && t->saved != t->done) *error = t->unsaved;
    return error->status;
}

static bool clock_says_save(const lk_trainer *t) {
    const lk_config *c = &t->run->config;
    return c->checkpoint_every_seconds &&
           lk_seconds() - t->last_save >= (double)c->checkpoint_every_seconds;
}

static bool step_says_save(const lk_trainer *t, uint64_t done) {
    const uint64_t every = t->run->config.checkpoint_every_steps;
    return every && done % every == 0;
}

// Whoever saves waits for the GPUs, and where these wait for each other, all do so after the same
// step: by the leader's clock.
static bool save_is_due(const lk_trainer *t, const lk_step_result *r) {
    if (step_says_save(t, t->done)) return true;
    return lk_run_is_direct(t->run) ? r->save_by_clock : t->run->save_by_clock;
}

// --- logs --------------------------------------------------------------------------------------

// One line of metrics.jsonl. Times are not in it: two equal runs write equal files.
static lk_status log_metrics(lk_trainer *t, const char *kind, const lk_step_result *r,
                             lk_error *error) {
    if (!t->leads) return LK_OK;
    char line[METRICS_LINE_BYTES];
    const uint64_t step = strcmp(kind, "train") == 0 ? t->done : 0;
    const lk_named_result named = lk_name_result(&t->run->program, r, step);
    size_t n = lk_metric_line(line, sizeof line, t->done, kind, named);
    n = lk_line_sum_put(line, n, sizeof line);
    LK_CHECK(lk_line_log_add(&t->metrics, line, n, error));
    return lk_journal_metrics(&t->journal, kind, t->done, named, error);
}

// One line of hashes.jsonl: a hash for each parameter, in canonical order.
static lk_status log_hashes(lk_trainer *t, lk_error *error) {
    if (!t->leads) return LK_OK;
    LK_CHECK(lk_run_fetch(t->run, error));
    char *line = t->line;
    const lk_program *p = &t->run->program;
    size_t used =
        (size_t)snprintf(line, sizeof t->line, "{\"step\":%llu", (unsigned long long)t->done);
    for (uint32_t i = 0; i < p->param_count; i++) {
        const lk_tensor *tensor = &p->tensors[p->params[i].tensor];
        const void *values = t->run->core.device + tensor->offset;
        uint64_t hash = lk_step_hash_by(t->run->kernels, values, p->params[i].count);
        char name[2 * LK_NAME_BYTES];
        lk_text_escape(name, sizeof name, tensor->name, strlen(tensor->name));
        used += (size_t)snprintf(line + used, sizeof t->line - used, ",\"%s\":\"%016llx\"", name,
                                 (unsigned long long)hash);
        lk_assert(used < LK_TRAIN_HASHES_BYTES);  // check_hash_line
    }
    line[used++] = '}';
    used = lk_line_sum_put(line, used, sizeof t->line);
    return lk_line_log_add(&t->hashes, line, used, error);
}

// Whether such a line has its room, before the first step.
static lk_status check_hash_line(const lk_trainer *t, lk_error *error) {
    const lk_program *p = &t->run->program;
    size_t bytes = sizeof "{\"step\":18446744073709551615}";
    for (uint32_t i = 0; i < p->param_count; i++) {
        const char *name = p->tensors[p->params[i].tensor].name;
        bytes +=
            lk_text_escape(NULL, 0, name, strlen(name)) + sizeof ",\"\":\"0123456789abcdef\"" - 1;
    }
    if (bytes <= LK_TRAIN_HASHES_BYTES) return LK_OK;
    return lk_fail(
        error, LK_BAD_CONFIG,
        "%s: the names and hashes of %u parameters are %zu bytes, a line of hashes.jsonl "
        "has room for %zu; give the layers shorter names, or take fewer",
        t->run->config.document.source, p->param_count, bytes, (size_t)LK_TRAIN_HASHES_BYTES);
}

// A step that is shown, with those since the last one.
static void show_step(lk_trainer *t, const lk_step_result *r) {
    const double now = lk_seconds();
    tell_result(t, LK_TRAIN_STEP, r, t->done - t->last_log_step, now - t->last_log);
    t->last_log = now;
    t->last_log_step = t->done;
}

static lk_status check_workers(const lk_trainer *t, lk_error *error) {
    if (t->run->lost.status != LK_OK) *error = t->run->lost;
    return t->run->lost.status;
}

static lk_status check_finite(const lk_trainer *t, const lk_step_result *r, lk_error *error) {
    const lk_loss_scale *how = &t->run->config.spec.model.loss_scale;
    char saved[80] = "there is no checkpoint yet";
    if (!r->bad_tensor) return LK_OK;
    if (t->saved != UINT64_MAX) {
        lk_format(saved, sizeof saved, "the last checkpoint, of step %llu, stands",
                  (unsigned long long)t->saved);
    }
    if (r->verdict == LK_VERDICT_STOP && r->loss_scale > 0) {
        return lk_fail(error, LK_NOT_FINITE,
                       "step %llu: %s is not finite at loss scale %llu: %s, and the run saves "
                       "nothing more; %s; try %sa smaller learning_rate, or %s",
                       (unsigned long long)r->step + 1, r->bad_tensor,
                       (unsigned long long)r->loss_scale, lk_scale_reason(how, r->loss_scale),
                       saved, lk_scale_advice(how, r->loss_scale), lk_scale_unscaled(t->run));
    }
    return lk_fail(error, LK_NOT_FINITE,
                   "step %llu: %s is not finite: the run diverged and saves nothing more; %s; try "
                   "a smaller learning_rate",
                   (unsigned long long)r->step + 1, r->bad_tensor, saved);
}

// Before anybody says, hashes or saves what was computed: a GPU's steps are over, and finite.
static lk_status settle(lk_trainer *t, lk_step_result *r, lk_error *error) {
    if (!r->pending) return LK_OK;
    *r = lk_run_settle(t->run);
    LK_CHECK(check_workers(t, error));
    return check_finite(t, r, error);
}

// Where the cluster has an evaluator, that is its work.
static bool evaluates(const lk_trainer *t) { return t->run->test.count && !t->run->evaluator; }

// An evaluation may take longer than one step: it gets the time that training on as many examples
// takes. The steps done say how long that is, also on the slowest worker, since all keep step.
static void allow_for_evaluation(const lk_trainer *t, double trained) {
    const uint64_t steps = t->done - t->first;
    if (!t->run->workers.joined) return;
    const double step = steps ? trained / (double)steps : t->step_timeout_seconds;
    const double of_step = (double)lk_run_test_examples(t->run) / t->run->config.spec.global_batch;
    lk_mpi_allow(2 * step * of_step);
}

// What the leader saves stays, if it is the best; and where nothing got better for long, this step
// was the last.
static void use_best(lk_trainer *t) {
    const lk_best *stays = &t->best[LK_BEST_STAYS];
    t->saver.job.spares = stays->any;
    t->saver.job.spared = stays->step;
    if (lk_best_is_exhausted(&t->best[LK_BEST_STOPS])) t->total = t->done;
}

static void note_best(lk_trainer *t, const lk_step_result *result) {
    char text[96];
    const lk_best *stops = &t->best[LK_BEST_STOPS];
    const bool goes_on = t->done < t->total;
    lk_best_note(t->run, t->best, t->done, result);
    use_best(t);
    if (!goes_on || t->done < t->total) return;
    lk_best_text(t->run, stops, text);
    lk_say_line(&t->calls.say, "early stopping after step %llu: %llu evaluations since %s",
                (unsigned long long)t->done, (unsigned long long)stops->since, text);
}

static bool is_asked_to_stop(void *context) {
    const lk_trainer *t = context;
    return t->calls.stop(t->calls.context) != 0;
}

// May be given up, where another evaluation makes up for it: after the last step there is nothing
// to be lost by waiting. Several workers would all have to know it, and a GPU does not ask.
static void make_it_stoppable(lk_trainer *t, bool may) {
    lk_group *group = &t->run->group;
    const bool alone = !t->run->workers.joined && !t->run->cuda;
    group->gives_up = may && alone && t->done < t->total ? is_asked_to_stop : NULL;
    group->gives_up_context = t;
}

static lk_status evaluate(lk_trainer *t, lk_step_result *result, lk_error *error) {
    double begin = lk_seconds(), trained = begin - t->start - t->evaluating;
    t->run->arena.phase = "evaluation";
    allow_for_evaluation(t, trained);
    make_it_stoppable(t, true);
    *result = lk_run_evaluate(t->run, t->done);
    make_it_stoppable(t, false);
    if (t->run->workers.joined) lk_mpi_allow(0);
    LK_CHECK(check_workers(t, error));
    t->owes = t->run->group.given_up;
    if (t->owes) {
        t->stop = t->calls.stop(t->calls.context);
        t->evaluating += lk_seconds() - begin;
        return LK_OK;
    }
    if (result->bad_tensor) {
        return lk_fail(error, LK_NOT_FINITE, "evaluation after step %llu: %s is not finite",
                       (unsigned long long)t->done, result->bad_tensor);
    }
    t->evaluating += lk_seconds() - begin;
    tell_progress(t, NULL);
    const bool again = t->evaluated && t->done == t->first;
    if (!again) {
        LK_CHECK(log_metrics(t, "test", result, error));
        note_best(t, result);
    }
    t->tested = *result;
    t->tested_at = t->done;
    tell_result(t, LK_TRAIN_EVALUATION, result, 0, trained);
    return LK_OK;
}

// --- hot state ---------------------------------------------------------------------------------

// What the logs say of this step is the kernel's before the step can be gone on from.
static lk_status keep_hot(lk_trainer *t, bool tested, lk_error *error) {
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
static lk_status catch_up(lk_trainer *t, lk_error *error) {
    if (!(t->from.word & LK_HOT_EVALUATION_OWED)) return LK_OK;
    lk_step_result ignored;
    const bool writes = step_says_save(t, t->done), may = t->best[LK_BEST_STAYS].wanted;
    t->run->exchange.writes_checkpoint = t->leads && (writes || may);
    if (evaluates(t)) LK_CHECK(evaluate(t, &ignored, error));
    if (t->owes || t->saved == t->done) return LK_OK;
    return writes || t->best[LK_BEST_STAYS].improved ? save(t, error) : LK_OK;
}

// .. and where there is none, in start-up, where the others wait for the leader.
static lk_status save_owed(lk_trainer *t, lk_error *error) {
    if (!t->from.found || (t->from.word & LK_HOT_EVALUATION_OWED)) return LK_OK;
    if (!step_says_save(t, t->done) || t->done == t->total) return LK_OK;
    lk_status status = save(t, error);
    return t->run->workers.joined ? lk_mpi_settle(status, error) : status;
}

// --- pictures ------------------------------------------------------------------------------------

static lk_status make_samples(lk_trainer *t, lk_error *error) {
    lk_samples s;
    LK_CHECK(lk_samples_make(t->run, &t->dir, t->done, &s, error));
    const lk_journal_picture picture = {.tag = "samples",
                                        .height = s.grid.height,
                                        .width = s.grid.width,
                                        .channels = s.grid.channels == 3 ? 3 : 1,
                                        .png = s.png,
                                        .png_bytes = s.grid.png_bytes};
    return lk_journal_add_picture(&t->journal, t->done, &picture, error);
}

// One that cannot be made or written ends no healthy run; it counts at the end.
static void show_samples(lk_trainer *t) {
    const double begin = lk_seconds();
    if (!t->leads || !lk_samples_due(t->run, t->done)) return;
    if (t->unrecorded.status != LK_OK) return;
    if (make_samples(t, &t->unrecorded) != LK_OK) {
        lk_say_warning(&t->calls.say, "%s", t->unrecorded.text);
    }
    t->evaluating += lk_seconds() - begin;
}

// --- the loop ----------------------------------------------------------------------------------

static lk_status one_step(lk_trainer *t, lk_error *error) {
    const lk_config *c = &t->run->config;
    t->run->arena.phase = "training";
    t->step_began = lk_seconds();
    tell_progress(t, NULL);
    t->run->stop = t->calls.stop(t->calls.context);
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
    tell_progress(t, &r);
    // The lines of a run are those of one that was never resumed.
    const bool logged = last || lk_run_logs(t->run, t->done - 1) == t->done;
    const bool shown = logged || t->done == t->first + 1;
    const bool hashed = t->done % c->hash_every_steps == 0 || last;
    const bool saved = save_is_due(t, &r), kept = lk_hot_is_due(&t->hot, t->done, last);
    if (shown || hashed || tested || saved || kept) {
        LK_CHECK(settle(t, &r, error));
        tell_progress(t, &r);
    }
    if (logged) LK_CHECK(log_metrics(t, "train", &r, error));
    if (shown) show_step(t, &r);
    if (hashed) LK_CHECK(log_hashes(t, error));
    show_samples(t);
    if (kept) LK_CHECK(keep_hot(t, tested, error));
    if (tested) {
        lk_step_result ignored;
        t->run->exchange.writes_checkpoint =
            writes || (t->leads && t->best[LK_BEST_STAYS].wanted);
        LK_CHECK(evaluate(t, &ignored, error));
        if (t->owes) return LK_OK;
    }
    if (!saved && !(tested && t->best[LK_BEST_STAYS].improved)) return LK_OK;
    LK_CHECK(lk_run_check_data(t->run, error));
    LK_CHECK(save(t, error));
    // Whoever wanted it may want no more: the run ends here, where nothing of it is lost. Unless it
    // was asked to.
    if (t->calls.stop(t->calls.context) || !t->calls.may_go_on) return LK_OK;
    return t->calls.may_go_on(t->calls.context, error);
}

// A trace that cannot be written ends no healthy run; it counts at the end.
static void write_trace(lk_trainer *t, bool over) {
    const lk_trace *trace = &t->run->trace;
    const bool before = t->unrecorded.status != LK_OK;
    if (!before && lk_trace_write(&t->run->trace, over, &t->unrecorded) != LK_OK && !over) {
        lk_say_warning(&t->calls.say, "%s", t->unrecorded.text);
    }
    if (over && trace->lanes && trace->steps_used == 0) {
        lk_say_line(&t->calls.say,
                    "trace: nothing to write, step %llu was not done by this process",
                    (unsigned long long)t->run->config.trace.first_step);
    }
}

// What is written of all steps of this process, once they are over.
static void end_records(lk_trainer *t) {
    write_trace(t, true);
    if (t->unrecorded.status != LK_OK) return;
    (void)lk_journal_phases(&t->journal, t->done, &t->unrecorded);
}

// It was asked to: saves, and says so.
static lk_status stop(lk_trainer *t, lk_error *error) {
    LK_CHECK(lk_run_check_data(t->run, error));
    if (t->run->cuda) LK_CHECK(settle(t, &(lk_step_result){.pending = true}, error));
    LK_CHECK(save_last(t, error));
    LK_CHECK(check_saved(t, error));
    end_records(t);
    if (t->unrecorded.status != LK_OK) lk_say_warning(&t->calls.say, "%s", t->unrecorded.text);
    lk_train_event stopped = event_of(t, LK_TRAIN_STOPPED);
    stopped.signal = t->stop;
    tell_event(t, &stopped);
    return lk_stop_status(t->stop);
}

static lk_status loop(lk_trainer *t, lk_error *error) {
    t->start = t->last_log = t->last_save = lk_seconds();
    t->first = t->last_log_step = t->done;
    lk_journal_start(&t->journal);
    tell(t, LK_TRAIN_BEGUN);
    LK_CHECK(catch_up(t, error));
    while (!t->owes && t->done < t->total) {
        LK_CHECK(one_step(t, error));
        write_trace(t, false);
        tell(t, LK_TRAIN_BETWEEN);
        // Alone, at once; with others, after the step in which all of them know it.
        if (!t->run->workers.joined && !t->owes) t->stop = t->calls.stop(t->calls.context);
        if (t->stop) return stop(t, error);
        LK_CHECK(lk_run_scrub(t->run, error));
    }
    return t->owes ? stop(t, error) : LK_OK;
}

static lk_status finish(lk_trainer *t, lk_error *error) {
    double seconds = lk_seconds() - t->start - t->evaluating;
    uint64_t steps = t->done - t->first;
    lk_error unwritten = {.status = LK_OK};
    LK_CHECK(lk_run_check_data(t->run, error));
    LK_CHECK(save_last(t, error));
    t->run->exchange.writes_checkpoint = false;
    LK_CHECK(lk_saver_look(&t->saver, t->done, error));
    lk_step_result r = {0};
    if (evaluates(t)) {
        r = t->tested;
        if (t->tested_at != t->done) LK_CHECK(evaluate(t, &r, error));
        LK_CHECK(lk_run_check_data(t->run, error));
        if (t->leads) (void)lk_line_log_sync(&t->metrics, &unwritten);
    }
    end_records(t);
    if (t->leads) lk_say_scales(t->run, t->done, &t->calls.say);
    tell_result(t, LK_TRAIN_END, &r, steps, seconds);
    LK_CHECK(check_saved(t, error));
    if (t->unrecorded.status != LK_OK) *error = t->unrecorded;
    if (unwritten.status != LK_OK) *error = unwritten;
    return error->status;
}

// --- start -------------------------------------------------------------------------------------

// What a fast run's bits depend on besides its identity.
static lk_status write_arithmetic(const lk_trainer *t, lk_error *error) {
    const lk_run *run = t->run;
    const lk_cuda_device *device = &run->gpus.gpu[0].device;
    char text[1024], cublas[24], gpu[2 * sizeof device->name];
    lk_run_cublas(run, cublas, sizeof cublas);
    lk_text_escape(gpu, sizeof gpu, device->name, strlen(device->name));
    int n = snprintf(text, sizeof text,
                     "{\n  \"arithmetic\": \"fast\",\n  \"precision\": \"%s\",\n  \"gpu\": "
                     "\"%s\",\n  \"cublas\": \"%s\"\n}\n",
                     lk_fast_precision_name(run->config.spec.model.fast_precision), gpu, cublas);
    return lk_run_dir_write(&t->dir, "arithmetic.json", text, (size_t)n, error);
}

static lk_status write_documents(const lk_trainer *t, lk_error *error) {
    char *text = malloc(LK_CONFIG_DUMP_BYTES);
    size_t length;
    if (!text) return lk_fail(error, LK_UNAVAILABLE, "no memory at start-up");
    lk_status status =
        lk_json_dump(&t->run->config.document, text, LK_CONFIG_DUMP_BYTES, &length, error);
    if (status == LK_OK) status = lk_run_dir_write(&t->dir, "config.json", text, length, error);
    free(text);
    LK_CHECK(status);
    if (lk_run_is_fast(t->run)) LK_CHECK(write_arithmetic(t, error));
    LK_CHECK(lk_record_write(t->run, &t->dir, error));
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
static lk_status find_evaluation(lk_trainer *t, lk_error *error) {
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

// Is the evaluation of the step that is gone on from still to come? A run that was asked to stop in
// it has saved the step, and its logs end before it.
static bool owes_evaluation(const lk_trainer *t) {
    const uint64_t every = t->run->config.evaluate_every_steps;
    if (t->evaluated || t->done == 0) return false;
    if (t->from.found) return t->from.word & LK_HOT_EVALUATION_OWED;
    return every && t->done % every == 0 && t->done < lk_run_steps(t->run);
}

// A damaged line of a log is said, and stays: the state of the run is in its checkpoints.
static void check_logs(lk_trainer *t) {
    static const char *const names[] = {"metrics.jsonl", "hashes.jsonl"};
    for (uint32_t i = 0; i < LK_COUNT(names); i++) {
        char path[LK_PATH_BYTES];
        lk_error wrong = {.status = LK_OK};
        lk_line_sums sums;
        if (lk_path_join(path, t->dir.path, "/", names[i], &wrong) != LK_OK ||
            lk_line_sums_file(t->dir.ops, path, &sums, &wrong) == LK_OK) {
            continue;
        }
        lk_say_warning(&t->calls.say, "%s", wrong.text);
    }
}

static void visit_for_newest(void *context, const char *name) {
    uint64_t *newest = context, step;
    if (lk_checkpoint_step_of(name, &step)) *newest = LK_MAX(*newest, step + 1);
}

// The newest of hot state and disk. A checkpoint is not even read where its name says that it is
// older; one that is damaged is none.
static lk_status go_on_from(lk_trainer *t, lk_error *error) {
    lk_hot_choice *from = &t->from;
    uint64_t names_end = 0;
    (void)t->dir.ops->list(t->dir.ops->context, t->dir.checkpoints, visit_for_newest, &names_end);
    if (!from->found || from->step < names_end) {
        lk_error why = {.status = LK_OK};
        lk_status status =
            lk_load_weights(t->run, t->dir.ops, NULL, t->dir.path, &t->calls.say, &t->done, &why);
        const bool none = status == LK_NO_INPUT || status == LK_BAD_DATA;
        if (status == LK_OK) t->saved = t->done;
        if (!from->found || !(none || (status == LK_OK && from->step > t->done))) {
            const bool stale = status == LK_OK && from->found && from->step < t->done;
            if (stale) lk_hot_say_stale(from, t->done, &t->calls.say);
            from->found = false;
            *error = why;
            return status;
        }
    } else if (names_end > 0) {
        t->saved = names_end - 1;
    }
    t->done = from->step;
    lk_say_line(&t->calls.say, "weights of step %llu from the hot state of rank %u's host",
                (unsigned long long)t->done, from->rank);
    return LK_OK;
}

static lk_status resume(lk_trainer *t, lk_error *error) {
    LK_CHECK(lk_checkpoint_clean(t->dir.ops, t->dir.checkpoints, error));
    LK_CHECK(lk_hot_choose(&t->hot, t->dir.path, lk_run_steps(t->run), &t->calls.say, &t->from,
                           error));
    lk_status status = go_on_from(t, error);
    if (status == LK_NO_INPUT) {  // the run never came to its first checkpoint: from the start
        error->status = LK_OK;
        t->done = 0;
        lk_say_line(&t->calls.say, "resume: no checkpoint yet in %s, starting at step 0",
                    t->dir.path);
    } else {
        LK_CHECK(status);
    }
    check_logs(t);
    uint64_t removed;
    LK_CHECK(lk_line_log_cut(&t->dir, "metrics.jsonl", t->done, &removed, error));
    LK_CHECK(lk_journal_cut(&t->dir, t->done, &t->calls.say, error));
    LK_CHECK(find_evaluation(t, error));
    t->from.word = owes_evaluation(t) ? LK_HOT_EVALUATION_OWED : 0;
    LK_CHECK(lk_best_recall(t->run, &t->dir, t->best, error));
    return lk_line_log_cut(&t->dir, "hashes.jsonl", t->done, &removed, error);
}

// Where runs live that are given no place of their own.
static lk_status make_runs(lk_error *error) {
    int made = lk_file_ops_posix.make_directory(NULL, "runs");
    if (made >= 0 || made == -EEXIST) return LK_OK;
    return lk_file_fail(error, LK_IO_ERROR, "runs", "create the directory", made);
}

// What the command line says of it comes before the configuration.
static lk_run_entry entry_of(const lk_run *run, const lk_train_options *o) {
    static const lk_run_entry entries[] = {[LK_ON_START_NEW] = LK_ENTER_NEW,
                                          [LK_ON_START_RESUME] = LK_ENTER_RESUME,
                                          [LK_ON_START_EITHER] = LK_ENTER_EITHER};
    if (o->fresh || o->is_new) return LK_ENTER_NEW;
    if (o->resume) return LK_ENTER_RESUME;
    return o->resume_or_start ? LK_ENTER_EITHER : entries[run->config.on_start];
}

static const char *run_dir_of(const lk_run *run, const lk_train_options *o,
                              char path[LK_PATH_BYTES]) {
    return o->run_dir ? o->run_dir : lk_default_run_dir(run, path, LK_PATH_BYTES);
}

// The leader's own part of start-up: what is written, and what a resumed run goes on from.
static lk_status open_directory(lk_trainer *t, const lk_train_options *o, lk_error *error) {
    char path[LK_PATH_BYTES];
    lk_run *run = t->run;
    const char *dir = run_dir_of(run, o, path);
    LK_CHECK(check_hash_line(t, error));
    if (o->fresh) LK_CHECK(lk_remove_run(dir, error));
    if (!o->run_dir) LK_CHECK(make_runs(error));
    lk_status status = lk_run_dir_open(&t->dir, dir, entry_of(run, o), run->identity_hex, error);
    if (status == LK_BAD_CONFIG) lk_explain_identity(run, dir, error);
    LK_CHECK(status);
    tell(t, LK_TRAIN_OPENED);
    return LK_OK;
}

// .. and what it holds, once all have said what their hosts do.
static lk_status open_files(lk_trainer *t, lk_error *error) {
    lk_run *run = t->run;
    lk_hot_print(&t->hot, &t->calls.say);
    lk_samples_say(run, &t->calls.say);
    if (t->dir.resumed) LK_CHECK(resume(t, error));
    tell(t, LK_TRAIN_LAID_OUT);
    // A run that is finished changes nothing any more.
    const bool ended = lk_best_is_exhausted(&t->best[LK_BEST_STOPS]);
    const bool over = t->saved == t->done && (ended || t->done >= lk_run_steps(run));
    if (!over) LK_CHECK(write_documents(t, error));
    LK_CHECK(lk_line_log_open(&t->metrics, &t->dir, "metrics.jsonl", run->log_buffers,
                              LK_RUN_LOG_BYTES, error));
    LK_CHECK(lk_line_log_open(&t->hashes, &t->dir, "hashes.jsonl",
                              run->log_buffers + LK_RUN_LOG_BYTES, LK_RUN_LOG_BYTES, error));
    LK_CHECK(lk_journal_open(&t->journal, run, &t->dir, t->done, over, error));
    t->metrics.patient = t->hashes.patient = !run->config.stop_on_failed_save;
    lk_saver_make(&t->saver, run, t->dir.checkpoints);
    if (!over) watch_directory(t);
    return LK_OK;
}

static lk_status check_lock(const lk_run *run, lk_error *error) {
    struct rlimit limit = {0};
    if (run->block.locked) return LK_OK;
    (void)getrlimit(RLIMIT_MEMLOCK, &limit);
    return lk_fail(error, LK_UNAVAILABLE,
                   "--require-lock: the %llu bytes of the arena cannot be locked in memory, found "
                   "a limit of %llu; raise it: ulimit -l, or LimitMEMLOCK= of a systemd unit",
                   (unsigned long long)run->arena.used, (unsigned long long)limit.rlim_cur);
}

// A GPU's driver asks the kernel for memory and much else in calls that this program does not see.
static lk_status check_seal(const lk_run *run, const lk_train_options *o, lk_error *error) {
    if (!o->seal || !run->cuda) return LK_OK;
    return lk_fail(error, LK_BAD_USAGE,
                   "--seal: found with --kernels cuda, wanted kernels of the processor: a GPU's "
                   "driver makes calls that the kernel would refuse; without --seal the arena is "
                   "sealed all the same, and all of the GPU's memory is taken before the first "
                   "step");
}

static lk_status check_metrics_file(const lk_run *run, const lk_train_options *o,
                                    const char *run_dir, lk_error *error) {
    static const char option[] = "--metrics-file";
    if (!o->metrics_file) return LK_OK;
    LK_CHECK(lk_output_check(option, o->metrics_file, run_dir, error));
    return lk_output_of_no_input(option, o->metrics_file, &run->config, error);
}

static lk_status plan_and_start(lk_trainer *t, const lk_train_options *o, lk_error *error) {
    lk_run *run = t->run;
    char path[LK_PATH_BYTES];
    LK_CHECK(check_seal(run, o, error));
    const char *dir = run_dir_of(run, o, path);
    LK_CHECK(lk_trace_check(run, dir, error));
    LK_CHECK(check_metrics_file(run, o, dir, error));
    run->gpu_choice.seconds_max = o->step_timeout_seconds;
    if (!run->planning) LK_CHECK(lk_run_plan(run, error));
    LK_CHECK(lk_best_make(run, t->best, error));
    LK_CHECK(lk_run_start(run, o->max_memory, error));
    return o->require_lock ? check_lock(run, error) : LK_OK;
}

lk_status lk_train(lk_trainer *t, const lk_train_options *o, lk_error *error) {
    lk_run *run = t->run;
    LK_CHECK(lk_run_agree(run, plan_and_start(t, o, error), error));
    lk_status status = t->leads ? open_directory(t, o, error) : LK_OK;
    if (run->workers.joined) status = lk_mpi_settle(status, error);
    LK_CHECK(status);
    lk_hot_meet(&t->hot, run, t->leads ? t->dir.path : NULL, entry_of(run, o) != LK_ENTER_NEW,
                &t->calls.say);
    if (t->leads) status = open_files(t, error);
    if (run->workers.joined) status = lk_mpi_settle(status, error);
    LK_CHECK(status);
    LK_CHECK(lk_hot_load(&t->hot, &t->from, error));
    LK_CHECK(lk_run_connect(run, &t->done, error));
    // What the leader has heard of the evaluations before; it has the word on what is wanted, too.
    if (run->workers.joined) lk_mpi_broadcast(t->best, sizeof t->best);
    t->total = lk_run_steps(run);
    use_best(t);
    if (t->leads) tell(t, LK_TRAIN_CONNECTED);
    LK_CHECK(save_owed(t, error));
    t->running = true;
    tell(t, LK_TRAIN_READY);
    LK_CHECK(lk_run_seal(run, o->seal, error));
    status = loop(t, error);
    if (status == LK_OK) status = finish(t, error);
    return lk_run_blame_data(run, status, error);
}

// --- the end -----------------------------------------------------------------------------------

void lk_trainer_make(lk_trainer *t, lk_run *run, const lk_train_options *o, bool leads) {
    *t = (lk_trainer){.run = run,
                      .calls = o->calls,
                      .leads = leads,
                      .step_timeout_seconds = o->step_timeout_seconds,
                      .saver = {.run = run},
                      .saved = UINT64_MAX,
                      .tested_at = UINT64_MAX,
                      .dir = {.lock_file = -1},
                      .hot = {.state = {.file = -1}},
                      .metrics = {.file = -1},
                      .hashes = {.file = -1}};
}

// What they still hold is written; that it cannot be counts where nothing else has failed.
static lk_status close_logs(lk_trainer *t, lk_status status, lk_error *error) {
    lk_line_log *const logs[] = {&t->metrics, &t->hashes};
    for (uint32_t i = 0; i < LK_COUNT(logs); i++) {
        lk_status closed = lk_line_log_close(logs[i], error);
        if (status == LK_OK) status = closed;
    }
    lk_status closed = lk_journal_close(&t->journal, error);
    return status == LK_OK ? closed : status;
}

lk_status lk_stop_status(uint32_t signal_number) {
    return signal_number == SIGINT   ? LK_INTERRUPTED
           : signal_number == SIGHUP ? LK_HANGUP
                                     : LK_TERMINATED;
}

bool lk_is_stop(lk_status status) {
    return status == LK_INTERRUPTED || status == LK_TERMINATED || status == LK_HANGUP;
}

// What every worker finds at the same step: the leader says it for all.
static bool is_common(lk_status status) {
    return status == LK_NOT_FINITE || lk_is_stop(status);
}

static bool is_saved(const lk_trainer *t, lk_status status) {
    return t->running && (status == LK_OK || is_common(status));
}

lk_status lk_train_close(lk_trainer *t, lk_status status, lk_error *error) {
    status = close_logs(t, status, error);
    // While the directory is held: what is saved is not needed in memory, too.
    t->over = is_saved(t, status);
    if (t->leads) lk_hot_end(&t->hot, t->over);
    if (t->dir.lock_file >= 0) lk_run_dir_close(&t->dir);
    return status;
}

void lk_train_hush(const lk_trainer *t, lk_status status, lk_error *error) {
    if (t->run->workers.joined && !t->leads && is_common(status)) error->status = LK_OK;
}

lk_status lk_train_end(lk_trainer *t, lk_status status, lk_error *error) {
    if (!t->running || status == LK_OK || is_common(status)) {
        status = lk_mpi_finish(&t->run->exchange, status, error);
    }
    if (!t->leads) lk_hot_end(&t->hot, t->over && (status == LK_OK || is_common(status)));
    return status;
}
