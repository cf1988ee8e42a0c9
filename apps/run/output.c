// output.c - see output.h.
#define _GNU_SOURCE
#include "apps/run/output.h"

#include <string.h>
#include <sys/stat.h>

#include "apps/run/journal.h"
#include "apps/run/weights.h"

static bool is_same(const char *one, const char *other) {
    struct stat a, b;
    return stat(one, &a) == 0 && stat(other, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

// A damaged identity is one, too: there are weights beside it.
static bool is_run(const char *directory, const char *run_dir) {
    char hex[LK_IDENTITY_HEX_BYTES];
    lk_error none = {.status = LK_OK};
    const lk_status found = lk_run_dir_identity(&lk_file_ops_posix, directory, hex, &none);
    return found == LK_OK || found == LK_BAD_DATA || (run_dir && is_same(directory, run_dir));
}

// Is `directory` what a run calls `name`? By whatever path it was reached.
static bool is_folder(const char *directory, const char *name, const char *run_dir) {
    char run[LK_PATH_BYTES], folder[LK_PATH_BYTES];
    lk_error none = {.status = LK_OK};
    return lk_path_join(run, directory, "/", "..", &none) == LK_OK &&
           lk_path_join(folder, run, "/", name, &none) == LK_OK && is_same(folder, directory) &&
           is_run(run, run_dir);
}

lk_status lk_output_of_no_run(const char *option, const char *path, const char *run_dir,
                              lk_error *error) {
    static const char *const folders[] = {"checkpoints", LK_JOURNAL_EVALUATOR};
    char parent[LK_PATH_BYTES];
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    lk_path_parent(parent, path);
    if (lk_run_owns(name) && strcmp(name, "report.html") != 0 && is_run(parent, run_dir)) {
        return lk_fail(error, LK_BAD_USAGE,
                       "%s: found %s, a file of the run in that directory, wanted another name",
                       option, path);
    }
    for (uint32_t i = 0; i < LK_COUNT(folders); i++) {
        if (!is_folder(parent, folders[i], run_dir)) continue;
        return lk_fail(error, LK_BAD_USAGE,
                       "%s: found %s, among the %s of a run, wanted another place", option, path,
                       i == 0 ? "checkpoints" : "evaluator's files");
    }
    return LK_OK;
}

lk_status lk_output_check(const char *option, const char *path, const char *run_dir,
                          lk_error *error) {
    struct stat there;
    if (stat(path, &there) == 0 && !S_ISREG(there.st_mode)) {
        return lk_fail(error, LK_BAD_USAGE,
                       "%s: found %s, which is no plain file, wanted one or a new name", option,
                       path);
    }
    return lk_output_of_no_run(option, path, run_dir, error);
}

lk_status lk_output_apart(const char *option, const char *path, const char *input,
                          lk_error *error) {
    struct stat there;
    if (!input || stat(input, &there) != 0 || !S_ISREG(there.st_mode) || !is_same(path, input)) {
        return LK_OK;
    }
    return lk_fail(error, LK_BAD_USAGE,
                   "%s: found %s, the file that is read itself, wanted another name", option, path);
}

lk_status lk_output_of_no_input(const char *option, const char *path, const lk_config *c,
                                lk_error *error) {
    const char *const inputs[] = {c->document.source, c->train.images,   c->train.labels,
                                  c->train.manifest,  c->test.images,    c->test.labels,
                                  c->test.manifest,   c->init.file};
    for (uint32_t i = 0; i < LK_COUNT(inputs); i++) {
        if (*inputs[i]) LK_CHECK(lk_output_apart(option, path, inputs[i], error));
    }
    return LK_OK;
}
