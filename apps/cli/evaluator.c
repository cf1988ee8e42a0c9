// evaluator.c - lockstep train as the evaluator of a cluster: beside the workers, it watches the
// run directory and evaluates each checkpoint once, until the last step.
//
// What was evaluated stands in <run>/evaluations.jsonl, a line for each checkpoint, in the form of
// metrics.jsonl. That file alone says what comes next, so an evaluator that was killed goes on
// where it was, and one that another works beside only waits. A checkpoint's figures depend on its
// bits alone: a line once written stays right. Where event files are asked for, its own are in
// <run>/evaluator (apps/run/journal.h). Nothing else of the run is touched.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "apps/cli/command.h"
#include "apps/run/journal.h"
#include "apps/run/train.h"
#include "io/line_sum.h"

enum { LINE_BYTES = 384, LOOK_MS = 200, WAITING_SECONDS = 600 };

// A checkpoint that is passed over as long as its file stays like this.
typedef struct damaged {
    uint64_t step;
    struct stat file;
} damaged;

typedef struct evaluator {
    lk_run *run;
    const lk_common_options *options;
    lk_text_out out;
    lk_run_dir dir;  // without its lock, which is the leader's
    bool any;        // something was evaluated, by whomever
    uint64_t last;   // ... the checkpoint of this step, after all others
    uint64_t total;  // steps of the run: as the directory says, else as this configuration does
    uint64_t configured;
    bool began;       // an evaluation of this process
    double began_at;  // ... the last one
    lk_step_result result;
    lk_journal journal;  // of what this process evaluates; none before its first checkpoint
    damaged *damaged;  // (damaged_count): heap
    size_t damaged_count;
    double said_at;  // what this waits for
    char said[2 * LK_PATH_BYTES];
} evaluator;

// Until then, or a signal.
static void sleep_until(double time) {
    for (double left; !lk_stop_signal() && (left = time - lk_seconds()) > 0;) {
        struct timespec t = {.tv_nsec = (long)(1e9 * LK_MIN(left, 1e-3 * LOOK_MS))};
        (void)nanosleep(&t, NULL);
    }
}

// Said when it changes, and now and then.
static void say_waiting(evaluator *e, const char *what) {
    if (strcmp(what, e->said) == 0 && lk_seconds() - e->said_at < WAITING_SECONDS) return;
    lk_format(e->said, sizeof e->said, "%s", what);
    lk_watching.instead = "waiting";
    e->said_at = lk_seconds();
    lk_text_line(&e->out, "waiting: %s", what);
}

// --- the log -----------------------------------------------------------------------------------

static const char log_name[] = "evaluations.jsonl";

// The step of the last whole line.
static lk_status read_last(evaluator *e, lk_error *error) {
    char path[LK_PATH_BYTES], text[2 * LINE_BYTES + 1];
    lk_error missing = {.status = LK_OK};
    int file;
    uint64_t bytes;
    unsigned long long step;
    e->any = false;
    LK_CHECK(lk_path_join(path, e->dir.path, "/", log_name, error));
    if (lk_file_open_read(e->dir.ops, path, &file, &bytes, &missing) != LK_OK) return LK_OK;
    size_t length = (size_t)LK_MIN(bytes, sizeof text - 1);
    lk_status status =
        lk_file_read_all(e->dir.ops, file, path, text, length, bytes - length, error);
    e->dir.ops->close(e->dir.ops->context, file);
    LK_CHECK(status);
    while (length && text[length - 1] != '\n') length--;
    if (length == 0) return LK_OK;
    text[length - 1] = '\0';
    const char *before = strrchr(text, '\n'), *last = before ? before + 1 : text;
    lk_line_sums sums;
    lk_line_sums_start(&sums);
    lk_line_sums_feed(&sums, last, strlen(last));
    lk_line_sums_end(&sums);
    // Of all lines, so that it is said which.
    if (sums.wrong) return lk_line_sums_file(e->dir.ops, path, &sums, error);
    e->any = sscanf(last, "{\"step\":%llu,", &step) == 1;
    if (!e->any)
        return lk_fail(error, LK_BAD_DATA, "%s: its last line names no step; move it away", path);
    e->last = step;
    return LK_OK;
}

static lk_named_result named(const evaluator *e) {
    return lk_name_result(&e->run->program, &e->result, 0);
}

static lk_status write_line(evaluator *e, lk_line_log *log, uint64_t step, lk_error *error) {
    char line[LINE_BYTES];
    size_t n = lk_metric_line(line, sizeof line, step, "test", named(e));
    n = lk_line_sum_put(line, n, sizeof line);
    LK_CHECK(lk_line_log_add(log, line, n, error));
    return lk_line_log_sync(log, error);
}

// --- one checkpoint ----------------------------------------------------------------------------

typedef struct choice {
    const evaluator *e;
    bool found;
    uint64_t step;
} choice;

static void checkpoint_path(const evaluator *e, uint64_t step, char path[LK_PATH_BYTES]) {
    lk_format(path, LK_PATH_BYTES, "%s/step-%010llu.safetensors", e->dir.checkpoints,
              (unsigned long long)step);
}

// What is known of this step's checkpoint: NULL, it was never found damaged.
static damaged *find_damaged(const evaluator *e, uint64_t step) {
    for (size_t i = 0; i < e->damaged_count; i++) {
        if (e->damaged[i].step == step) return &e->damaged[i];
    }
    return NULL;
}

static bool is_damaged(const evaluator *e, uint64_t step) {
    char path[LK_PATH_BYTES];
    struct stat now;
    const damaged *d = find_damaged(e, step);
    if (!d) return false;
    checkpoint_path(e, step, path);
    return stat(path, &now) == 0 && now.st_ino == d->file.st_ino &&
           now.st_mtim.tv_sec == d->file.st_mtim.tv_sec &&
           now.st_mtim.tv_nsec == d->file.st_mtim.tv_nsec;
}

// One after the other; with a throttle, which passes some over, always the newest.
static void consider(void *context, const char *name) {
    choice *c = context;
    uint64_t step;
    if (!lk_checkpoint_step_of(name, &step) || (c->e->any && step <= c->e->last)) return;
    bool better = c->e->options->throttle_seconds ? step > c->step : step < c->step;
    if ((c->found && !better) || is_damaged(c->e, step)) return;
    c->found = true;
    c->step = step;
}

static bool choose(const evaluator *e, uint64_t *step) {
    choice c = {.e = e};
    (void)e->dir.ops->list(e->dir.ops->context, e->dir.checkpoints, consider, &c);
    *step = c.step;
    double next = e->began_at + e->options->throttle_seconds;
    bool now = !e->began || lk_seconds() >= next || c.step >= e->total;
    return c.found && now;
}

// All of them are kept in mind: of two, each forgotten over the other, none would ever be passed.
static lk_status remember_damaged(evaluator *e, uint64_t step, const char *path,
                                  const struct stat *file, lk_error *error) {
    damaged *d = find_damaged(e, step);
    if (!d) {
        damaged *grown = realloc(e->damaged, (e->damaged_count + 1) * sizeof *grown);
        if (!grown) return lk_fail(error, LK_UNAVAILABLE, "%s: no memory to pass it over", path);
        e->damaged = grown;
        d = &e->damaged[e->damaged_count++];
    }
    *d = (damaged){.step = step, .file = *file};
    return LK_OK;
}

// `file`: as it was before it was read, so that one that takes its place meanwhile is looked at.
static lk_status pass_over(evaluator *e, uint64_t step, const char *path, const struct stat *file,
                           lk_error *error) {
    lk_status status = error->status;
    if (status != LK_BAD_DATA && status != LK_NO_INPUT) return status;
    error->status = LK_OK;
    if (status == LK_NO_INPUT) return LK_OK;  // the leader keeps only some
    lk_text_line(&e->out, "WARNING: damaged checkpoint passed over: %s", error->text);
    return remember_damaged(e, step, path, file, error);
}

static lk_status evaluate(evaluator *e, lk_line_log *log, uint64_t step, lk_error *error) {
    char path[LK_PATH_BYTES];
    uint64_t recorded;
    struct stat file = {0};
    checkpoint_path(e, step, path);
    (void)stat(path, &file);
    e->began = true;
    e->began_at = lk_seconds();
    lk_watching.instead = "evaluating a checkpoint";
    const lk_say say = lk_say_on(&e->out);
    if (lk_load_weights(e->run, e->dir.ops, path, NULL, &say, &recorded, error) != LK_OK) {
        return pass_over(e, step, path, &file, error);
    }
    e->result = lk_run_evaluate(e->run, step);
    if (e->run->lost.status != LK_OK) {
        *error = e->run->lost;
        return error->status;
    }
    if (e->result.bad_tensor) {
        lk_fail(error, LK_NOT_FINITE, "%s: evaluation: %s is not finite", path,
                e->result.bad_tensor);
        return lk_run_blame_data(e->run, error->status, error);
    }
    LK_CHECK(lk_run_check_data(e->run, error));
    LK_CHECK(write_line(e, log, step, error));
    LK_CHECK(lk_journal_metrics(&e->journal, "test", step, named(e), error));
    e->any = true;
    e->last = step;
    char metrics[LK_METRIC_TEXT_BYTES];
    lk_metric_words(metrics, named(e));
    lk_text_line(&e->out, "evaluation step %llu: %u examples, %s, in %.2f s",
                 (unsigned long long)step, e->result.examples, metrics, lk_seconds() - e->began_at);
    return lk_text_check(&e->out, "standard output", error);
}

// With the log held: of two evaluators one works and the other waits.
static lk_status evaluate_alone(evaluator *e, uint64_t step, lk_error *error) {
    lk_line_log log;
    char buffer[2 * LINE_BYTES];
    lk_status status = LK_OK;
    LK_CHECK(lk_line_log_open(&log, &e->dir, log_name, buffer, sizeof buffer, error));
    if (e->dir.ops->lock(e->dir.ops->context, log.file) < 0) {
        say_waiting(e, "another evaluator works here");
    } else {
        uint64_t removed;
        status = lk_line_log_cut(&e->dir, log_name, UINT64_MAX, &removed, error);
        if (status == LK_OK) status = read_last(e, error);
        bool still = !e->any || step > e->last;
        // Its files: one process at a time chooses their names.
        if (status == LK_OK && still) {
            status = lk_journal_open_evaluator(&e->journal, e->run, &e->dir, step, error);
        }
        if (status == LK_OK && still) status = evaluate(e, &log, step, error);
    }
    lk_status closed = lk_line_log_close(&log, error);
    return status == LK_OK ? closed : status;
}

// --- the run -----------------------------------------------------------------------------------

// Whether the leader has begun this run there.
static bool is_there(evaluator *e) {
    char hex[LK_IDENTITY_HEX_BYTES], text[2 * LK_PATH_BYTES];
    lk_error none = {.status = LK_OK};
    if (lk_run_dir_identity(e->dir.ops, e->dir.path, hex, &none) != LK_OK) {
        lk_format(text, sizeof text, "no run has begun in %s", e->dir.path);
    } else if (strcmp(hex, e->run->identity_hex) != 0) {
        lk_format(text, sizeof text, "%s holds run %s; this configuration is run %s", e->dir.path,
                  hex, e->run->identity_hex);
    } else {
        return true;
    }
    say_waiting(e, text);
    return false;
}

// The run may be shorter or longer than this configuration, and be gone on with: what it recorded
// last counts.
static void find_total(evaluator *e) {
    const uint64_t recorded = lk_recorded_steps(e->run, e->dir.path);
    const uint64_t total = recorded ? recorded : e->configured;
    if (total == e->total) return;
    e->total = total;
    lk_text_line(&e->out,
                 "the run in %s ends at step %llu, this configuration at step %llu: the "
                 "run's counts",
                 e->dir.path, (unsigned long long)total, (unsigned long long)e->configured);
}

static lk_status look(evaluator *e, lk_error *error) {
    uint64_t step;
    if (!is_there(e)) return LK_OK;
    find_total(e);
    LK_CHECK(read_last(e, error));
    if (e->any && e->last >= e->total) return LK_OK;
    if (choose(e, &step)) return evaluate_alone(e, step, error);
    say_waiting(e, "for the next checkpoint");
    return LK_OK;
}

static lk_status finish(evaluator *e) {
    if (!e->result.examples) {
        lk_text_line(&e->out, "nothing to do: step %llu of %llu was evaluated already",
                     (unsigned long long)e->last, (unsigned long long)e->total);
        return LK_OK;
    }
    char digest[LK_SHA256_HEX_BYTES];
    lk_run_digest(e->run, digest);
    lk_metric_lines(&e->out, named(e));
    lk_text_line(&e->out, "digest %s", digest);
    return LK_OK;
}

static lk_status watch(evaluator *e, lk_error *error) {
    sleep_until(lk_seconds() + e->options->start_delay_seconds);
    while (!lk_stop_signal()) {
        uint64_t before = e->last;
        bool any = e->any;
        LK_CHECK(look(e, error));
        if (e->any && e->last >= e->total) return finish(e);
        if (e->any == any && e->last == before) sleep_until(lk_seconds() + 1e-3 * LOOK_MS);
    }
    return lk_stop_status(lk_stop_signal());
}

static lk_status open_run(evaluator *e, lk_error *error) {
    static char path[LK_PATH_BYTES];
    lk_run *run = e->run;
    const lk_common_options *o = e->options;
    LK_CHECK(lk_run_configure(run, &o->config, (lk_run_needs){.events = true}, error));
    if (!run->config.test.given) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "%s: data.test: missing, an evaluator has nothing to do",
                       run->config.document.source);
    }
    LK_CHECK(lk_run_plan(run, error));
    lk_watch_data(&run->train, &run->test);
    LK_CHECK(lk_run_start(run, o->max_memory, error));
    const char *dir = o->run_dir ? o->run_dir : lk_default_run_dir(run, path, sizeof path);
    e->dir = (lk_run_dir){.ops = &lk_file_ops_posix, .lock_file = -1};
    LK_CHECK(lk_path_join(e->dir.path, dir, "", "", error));
    LK_CHECK(lk_path_join(e->dir.checkpoints, dir, "/", "checkpoints", error));
    e->total = e->configured = lk_run_steps(run);
    lk_text_line(&e->out, "lockstep %s  %s  evaluator of %s, %u replicas (%s), kernels %s",
                 LK_VERSION, *run->config.name ? run->config.name : run->config.document.source,
                 dir, run->layout.replicas, lk_run_lanes(run), lk_run_kernels(run));
    if (o->seal) lk_text_line(&e->out, "seal: of the arena alone: reading checkpoints takes heap");
    return lk_run_seal(run, false, error);
}

lk_status lk_evaluator(const lk_common_options *options, lk_error *error) {
    static lk_run run;
    static evaluator e;
    e = (evaluator){.run = &run, .options = options};
    lk_watch_stop();
    lk_text_open(&e.out, options->quiet ? open("/dev/null", O_WRONLY | O_CLOEXEC) : STDOUT_FILENO);
    lk_watching.out = &e.out;
    lk_watching.instead = "starting, as the evaluator";
    lk_status status = open_run(&e, error);
    if (status == LK_OK) status = watch(&e, error);
    if (status == LK_OK) status = lk_text_check(&e.out, "standard output", error);
    // What was lost of them is said, unless there is worse.
    lk_error unwritten = {.status = LK_OK};
    if (lk_journal_close(&e.journal, &unwritten) != LK_OK && status == LK_OK) {
        *error = unwritten;
        status = error->status;
    }
    free(e.damaged);
    lk_run_close(&run);
    return status;
}
