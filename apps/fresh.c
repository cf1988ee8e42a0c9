// fresh.c - train --fresh: removes what an earlier run left in a directory, and nothing else but
// its lock, which stays: who waits for it must find the same file as who holds it. Knows what a run
// writes there by name. All of it goes or nothing: whatever no run has written is named instead.
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "apps/command.h"
#include "apps/hot.h"

static const char *const files_of_run[] = {"metrics.jsonl",   "hashes.jsonl", "evaluations.jsonl",
                                           "arithmetic.json", "config.json",  "plan.json",
                                           "identity"};

// What lies in a run directory, or in its checkpoints, and is nothing that a run has written.
typedef struct stranger {
    bool among_checkpoints;
    char name[LK_ERROR_TEXT_BYTES];
} stranger;

static void visit_for_stranger(void *context, const char *name) {
    stranger *s = context;
    const size_t bytes = strlen(name), tail = sizeof ".tmp" - 1;
    const bool unfinished = bytes > tail && strcmp(name + bytes - tail, ".tmp") == 0;
    char whole[64];
    uint64_t step;
    snprintf(whole, sizeof whole, "%.*s", (int)(bytes - (unfinished ? tail : 0)), name);
    bool known = s->among_checkpoints
                     ? lk_checkpoint_step_of(whole, &step)
                     : strcmp(name, "lock") == 0 || strcmp(name, "checkpoints") == 0;
    for (uint32_t i = 0; i < LK_COUNT(files_of_run) && !s->among_checkpoints; i++) {
        known = known || strcmp(whole, files_of_run[i]) == 0;
    }
    if (!known) snprintf(s->name, sizeof s->name, "%s", name);
}

static lk_status refuse_strangers(const char *directory, bool among_checkpoints, lk_error *error) {
    stranger s = {.among_checkpoints = among_checkpoints};
    (void)lk_file_ops_posix.list(NULL, directory, visit_for_stranger, &s);
    if (!s.name[0]) return LK_OK;
    return lk_fail(error, LK_BAD_USAGE,
                   "%s: --fresh removes a run, and \"%s\" is not of one; nothing was removed: move "
                   "it away, or name another directory",
                   directory, s.name);
}

static void remove_file(void *context, const char *name) {
    char path[2 * LK_PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", (const char *)context, name);
    (void)lk_file_ops_posix.remove(NULL, path);
}

static void remove_files(const char *path, const char *checkpoints) {
    (void)lk_file_ops_posix.list(NULL, checkpoints, remove_file, (void *)checkpoints);
    (void)rmdir(checkpoints);
    // The identity last: until then the rest is known as a run's, should this be cut short.
    for (uint32_t i = 0; i < LK_COUNT(files_of_run); i++) {
        char unfinished[32];  // of a run that was cut short while it wrote this one
        snprintf(unfinished, sizeof unfinished, "%s.tmp", files_of_run[i]);
        remove_file((void *)path, unfinished);
        remove_file((void *)path, files_of_run[i]);
    }
}

lk_status lk_remove_run(const char *path, lk_error *error) {
    char checkpoints[LK_PATH_BYTES + 16], hex[LK_IDENTITY_HEX_BYTES];
    lk_error none = {.status = LK_OK};
    if (lk_run_dir_identity(&lk_file_ops_posix, path, hex, &none) != LK_OK) return LK_OK;
    // Whoever works there now keeps it: the lock decides, before anything is removed.
    lk_run_dir held;
    LK_CHECK(lk_run_dir_open(&held, &lk_file_ops_posix, path, true, hex, error));
    snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", path);
    lk_status status = refuse_strangers(path, false, error);
    if (status == LK_OK) status = refuse_strangers(checkpoints, true, error);
    if (status == LK_OK) {
        lk_hot_forget(path);
        remove_files(path, checkpoints);
    }
    lk_run_dir_close(&held);
    return status;
}
