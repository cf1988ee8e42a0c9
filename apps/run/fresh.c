// fresh.c - train --fresh: removes what an earlier run left in a directory, and nothing else but
// its lock, which stays: who waits for it must find the same file as who holds it. Knows what a run
// writes there by name. All of it goes or nothing: whatever no run has written is named instead.
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "apps/run/generate.h"
#include "apps/run/weights.h"
#include "apps/run/hot.h"
#include "apps/run/journal.h"
#include "apps/run/record.h"
#include "io/events.h"

static const char *const files_of_run[] = {
    "metrics.jsonl", "hashes.jsonl",  "evaluations.jsonl", "arithmetic.json", "config.json",
    "plan.json",     LK_RECORD_NAME,  "times.jsonl",       "report.html",     "identity"};

typedef enum place { IN_RUN, IN_CHECKPOINTS, IN_EVALUATOR } place;

// What lies in one of a run's directories and is nothing that a run has written.
typedef struct stranger {
    place place;
    char name[LK_ERROR_TEXT_BYTES];
} stranger;

static bool is_of_run(place where, const char *name) {
    const size_t bytes = strlen(name), tail = sizeof ".tmp" - 1;
    const bool unfinished = bytes > tail && strcmp(name + bytes - tail, ".tmp") == 0;
    char whole[64];
    uint64_t step;
    snprintf(whole, sizeof whole, "%.*s", (int)(bytes - (unfinished ? tail : 0)), name);
    bool known = where == IN_CHECKPOINTS ? lk_checkpoint_step_of(whole, &step)
                                            : lk_events_is_ours(name);
    known = known || (where == IN_RUN && lk_samples_is_ours(whole));
    static const char *const others[] = {"lock", "checkpoints", LK_JOURNAL_EVALUATOR};
    for (uint32_t i = 0; i < LK_COUNT(others) && where == IN_RUN; i++) {
        known = known || strcmp(name, others[i]) == 0;
    }
    for (uint32_t i = 0; i < LK_COUNT(files_of_run) && where == IN_RUN; i++) {
        known = known || strcmp(whole, files_of_run[i]) == 0;
    }
    return known;
}

bool lk_run_owns(const char *name) { return is_of_run(IN_RUN, name); }

static void visit_for_stranger(void *context, const char *name) {
    stranger *s = context;
    if (!is_of_run(s->place, name)) snprintf(s->name, sizeof s->name, "%s", name);
}

static lk_status refuse_stranger(const char *directory, const char *name, lk_error *error) {
    return lk_fail(error, LK_BAD_USAGE,
                   "%s: --fresh removes a run, and \"%s\" is not of one; nothing was removed: move "
                   "it away, or name another directory",
                   directory, name);
}

static lk_status refuse_strangers(const lk_run_dir *run, place where, const char *directory,
                                  lk_error *error) {
    stranger s = {.place = where};
    if (!*directory) return LK_OK;
    int listed = run->ops->list(run->ops->context, directory, visit_for_stranger, &s);
    if (listed < 0) {
        return lk_file_fail(error, LK_IO_ERROR, directory, "list the directory", listed);
    }
    return s.name[0] ? refuse_stranger(directory, s.name, error) : LK_OK;
}

// Holds the directory of its evaluator's files; `path` is "" where there is none.
static lk_status hold_evaluator(lk_run_dir *run, char path[LK_PATH_BYTES], lk_error *error) {
    LK_CHECK(lk_path_join(path, run->path, "/", LK_JOURNAL_EVALUATOR, error));
    const int held = lk_held_files_add(&run->held, path);
    if (held == -ELOOP || held == -ENOTDIR) {
        return refuse_stranger(run->path, LK_JOURNAL_EVALUATOR, error);
    }
    if (held < 0 && held != -ENOENT) {
        return lk_file_fail(error, LK_IO_ERROR, path, "open", held);
    }
    if (held < 0) *path = '\0';
    return LK_OK;
}

// One name of a directory that is held, and the first that could not be removed.
typedef struct removal {
    const lk_run_dir *run;
    const char *directory;
    lk_error *error;
    uint32_t count;  // removed
} removal;

static void remove_file(void *context, const char *name) {
    removal *r = context;
    char path[LK_PATH_BYTES];
    if (lk_path_join(path, r->directory, "/", name, r->error) != LK_OK) return;
    int removed = r->run->ops->remove(r->run->ops->context, path);
    if (removed < 0 && removed != -ENOENT) {
        lk_file_fail(r->error, LK_IO_ERROR, path, "remove", removed);
    }
    r->count += removed >= 0;
}

static void remove_named_file(void *context, const char *name) {
    if (lk_events_is_ours(name) || lk_samples_is_ours(name)) remove_file(context, name);
}

static lk_status remove_directory(const lk_run_dir *run, const char *directory, lk_error *error) {
    const lk_file_ops *ops = run->ops;
    removal r = {.run = run, .directory = directory, .error = error};
    do {  // again: a list may leave out names while others are removed
        r.count = 0;
        (void)ops->list(ops->context, directory, remove_file, &r);
    } while (r.count > 0 && error->status == LK_OK);
    LK_CHECK(error->status);
    int removed = ops->remove_directory(ops->context, directory);
    if (removed < 0) lk_file_fail(error, LK_IO_ERROR, directory, "remove", removed);
    return error->status;
}

static lk_status remove_files(const lk_run_dir *run, const char *evaluator, lk_error *error) {
    const lk_file_ops *ops = run->ops;
    removal r = {.run = run, .directory = run->path, .error = error};
    LK_CHECK(remove_directory(run, run->checkpoints, error));
    if (*evaluator) LK_CHECK(remove_directory(run, evaluator, error));
    // The identity last: until then the rest is known as a run's, should this be cut short.
    do {
        r.count = 0;
        (void)ops->list(ops->context, run->path, remove_named_file, &r);
    } while (r.count > 0 && error->status == LK_OK);
    for (uint32_t i = 0; i < LK_COUNT(files_of_run) && error->status == LK_OK; i++) {
        char unfinished[32];  // of a run that was cut short while it wrote this one
        snprintf(unfinished, sizeof unfinished, "%s.tmp", files_of_run[i]);
        remove_file(&r, unfinished);
        if (error->status == LK_OK) remove_file(&r, files_of_run[i]);
    }
    return error->status;
}

lk_status lk_remove_run(const char *path, lk_error *error) {
    char hex[LK_IDENTITY_HEX_BYTES], evaluator[LK_PATH_BYTES] = "";
    lk_error none = {.status = LK_OK};
    if (lk_run_dir_identity(&lk_file_ops_posix, path, hex, &none) != LK_OK) return LK_OK;
    // Whoever works there now keeps it: the lock decides, before anything is removed.
    lk_run_dir run;
    LK_CHECK(lk_run_dir_open(&run, path, LK_ENTER_REMOVE, hex, error));
    lk_status status = hold_evaluator(&run, evaluator, error);
    if (status == LK_OK) status = refuse_strangers(&run, IN_RUN, run.path, error);
    if (status == LK_OK) status = refuse_strangers(&run, IN_CHECKPOINTS, run.checkpoints, error);
    if (status == LK_OK) status = refuse_strangers(&run, IN_EVALUATOR, evaluator, error);
    if (status == LK_OK) lk_hot_forget(path);
    if (status == LK_OK) status = remove_files(&run, evaluator, error);
    lk_run_dir_close(&run);
    return status;
}
