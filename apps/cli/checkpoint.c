// checkpoint.c - lockstep checkpoint: what is in a checkpoint, and are all of a run whole? (export
// has a file of its own)
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apps/cli/tools.h"
#include "io/line_sum.h"

typedef unsigned long long ull;

// --- info ----------------------------------------------------------------------------------------

static const char info_help[] =
    "lockstep checkpoint info FILE [--json]\n"
    "\n"
    "Verifies the checkpoint, then prints its metadata and every tensor's type, shape, bytes.\n";

// Strings of a file may hold anything; on a terminal they stay one line of text.
static void print_pair(const char *key, const char *value) {
    char safe_key[256], safe_value[1024];
    lk_text_escape(safe_key, sizeof safe_key, key, strlen(key));
    lk_text_escape(safe_value, sizeof safe_value, value, strlen(value));
    printf("%-24s %s\n", safe_key, safe_value);
}

static void print_tensor(const lk_safetensors_entry *entry) {
    char name[512], shape[24 * LK_SAFETENSORS_DIMS_MAX] = "";
    size_t used = 0;
    lk_text_escape(name, sizeof name, entry->name, strlen(entry->name));
    for (unsigned i = 0; i < entry->dim_count; i++) {
        used += (size_t)snprintf(shape + used, sizeof shape - used, "%s%llu", i ? ", " : "",
                                 (ull)entry->dims[i]);
    }
    printf("  %-30s %-4s [%s]  %llu bytes\n", name, lk_safetensors_dtype_name(entry->dtype), shape,
           (ull)(entry->end - entry->begin));
}

static json_t *describe_tensor(const lk_safetensors_entry *entry) {
    json_t *shape = json_array();
    for (unsigned i = 0; i < entry->dim_count; i++) {
        json_array_append_new(shape, json_integer((json_int_t)entry->dims[i]));
    }
    return json_pack("{s:o, s:s, s:o, s:I}", "name", lk_json_text(entry->name), "type",
                     lk_safetensors_dtype_name(entry->dtype), "shape", shape, "bytes",
                     (json_int_t)(entry->end - entry->begin));
}

static lk_status info_json(const char *path, const lk_safetensors *reader, lk_error *error) {
    json_t *metadata = json_object(), *tensors = json_array();
    void *cursor = NULL;
    const char *key, *value;
    while (lk_safetensors_next_metadata(reader, &cursor, &key, &value)) {
        json_object_set_new(metadata, key, lk_json_text(value));
    }
    for (size_t i = 0; i < reader->entry_count; i++) {
        json_array_append_new(tensors, describe_tensor(&reader->entries[i]));
    }
    return lk_print_json(
        json_pack("{s:o, s:I, s:o, s:o}", "file", lk_json_text(path), "bytes",
                  (json_int_t)reader->file_bytes, "metadata", metadata, "tensors", tensors),
        error);
}

static lk_status info(int argc, char **argv, lk_error *error) {
    bool json = false;
    lk_arguments a = {.help = info_help, .word_count = 1, .json = &json};
    LK_CHECK(lk_parse_arguments(argc, argv, &a, error));
    if (a.helped) return LK_OK;
    lk_open_checkpoint checkpoint;
    struct stat facts;
    if (stat(a.words[0], &facts) == 0 && S_ISDIR(facts.st_mode)) {
        return lk_fail(error, LK_BAD_USAGE,
                       "%s: found a directory, wanted one of its files; all of a run's at once: "
                       "lockstep checkpoint verify %s",
                       a.words[0], a.words[0]);
    }
    LK_CHECK(lk_checkpoint_enter(&checkpoint, a.words[0], false, error));
    const lk_safetensors *reader = &checkpoint.reader;
    if (json) {
        lk_status status = info_json(a.words[0], reader, error);
        lk_checkpoint_leave(&checkpoint);
        return status;
    }
    printf("%-24s %s\n", "file", a.words[0]);
    printf("%-24s %llu\n", "bytes", (ull)reader->file_bytes);
    void *cursor = NULL;
    const char *key, *value;
    while (lk_safetensors_next_metadata(reader, &cursor, &key, &value)) print_pair(key, value);
    uint64_t bytes = 0;
    for (size_t i = 0; i < reader->entry_count; i++) {
        print_tensor(&reader->entries[i]);
        bytes += reader->entries[i].end - reader->entries[i].begin;
    }
    printf("%zu tensors, %llu bytes\n", reader->entry_count, (ull)bytes);
    lk_checkpoint_leave(&checkpoint);
    return LK_OK;
}

// --- verify --------------------------------------------------------------------------------------

static const char verify_help[] =
    "lockstep checkpoint verify FILE|RUN_DIR | --all [DIR] [--json]\n"
    "\n"
    "Reads every byte of one checkpoint, or of all of a run's, and of a run's logs, and prints a\n"
    "line for each: \"ok\", or what is wrong. Exit code 0 only if all are valid, else 65.\n"
    "\n"
    "--all: of all runs in DIR (runs).\n";

typedef struct verification {
    const char *identity;  // that every checkpoint must have recorded; NULL: any
    uint32_t good, bad;    // checkpoints
    uint32_t logs, bad_logs, runs;
    json_t *files;  // --json: what of each; else NULL
} verification;

static void print_verified(const verification *v, const char *path, const char *state,
                           const char *text) {
    if (v->files) {
        json_array_append_new(v->files, json_pack("{s:o, s:s, s:o}", "file", lk_json_text(path),
                                                  "state", state, "text", lk_json_text(text)));
        return;
    }
    printf("%-6s %s\n", state, text);
}

static lk_status check_identity(const lk_open_checkpoint *c, const char *wanted, lk_error *error) {
    const char *found = lk_safetensors_metadata(&c->reader, "run_identity");
    if (!wanted || (found && strcmp(found, wanted) == 0)) return LK_OK;
    return lk_fail(error, LK_BAD_DATA, "%s: found run identity %.*s, wanted this run's, %s",
                   c->path, LK_IDENTITY_HEX_BYTES - 1, found ? found : "(none)", wanted);
}

// One line for one checkpoint.
static void verify_one(const char *path, verification *v) {
    lk_error wrong = {.status = LK_OK};
    char shown[LK_TEXT_SHOWN_BYTES];
    char text[LK_TEXT_SHOWN_BYTES + 100];
    lk_open_checkpoint c;
    lk_text_shown(shown, path);
    if (lk_checkpoint_enter(&c, path, false, &wrong) == LK_OK) {
        if (check_identity(&c, v->identity, &wrong) == LK_OK) {
            snprintf(text, sizeof text, "%s: step %llu, %zu tensors, %llu bytes", shown,
                     (ull)c.step,
                     c.reader.entry_count, (ull)c.reader.file_bytes);
            print_verified(v, path, "ok", text);
        }
        lk_checkpoint_leave(&c);
    }
    if (wrong.status == LK_OK) {
        v->good++;
    } else if (access(path, F_OK) != 0 && errno == ENOENT) {
        snprintf(text, sizeof text, "%s: the run that goes on here has removed it meanwhile",
                 shown);
        print_verified(v, path, "gone", text);
    } else {
        print_verified(v, path, "WRONG", wrong.text);
        v->bad++;
    }
}

// One line for one log, where there is one.
static void verify_log(const char *run_dir, const char *name, verification *v) {
    lk_error wrong = {.status = LK_OK};
    char path[LK_PATH_BYTES], shown[LK_TEXT_SHOWN_BYTES], text[LK_TEXT_SHOWN_BYTES + 80];
    lk_line_sums sums = {.lines = 0};
    if (lk_path_join(path, run_dir, "/", name, &wrong) == LK_OK) {
        (void)lk_line_sums_file(&lk_file_ops_posix, path, &sums, &wrong);
    }
    if (wrong.status != LK_OK) {
        print_verified(v, path, "WRONG", wrong.text);
        v->bad_logs++;
    } else if (sums.lines) {
        int used = snprintf(text, sizeof text, "%s: %llu lines", lk_text_shown(shown, path),
                            (ull)sums.lines);
        if (sums.without) {
            snprintf(text + used, sizeof text - (size_t)used, ", %llu without a checksum",
                     (ull)sums.without);
        }
        print_verified(v, path, "ok", text);
    }
    v->logs += wrong.status != LK_OK || sums.lines;
}

static lk_status verify_run(const char *run_dir, verification *v, lk_error *error) {
    static const char *const logs[] = {"metrics.jsonl", "hashes.jsonl", "evaluations.jsonl"};
    char directory[LK_PATH_BYTES], path[LK_PATH_BYTES], identity[LK_IDENTITY_HEX_BYTES];
    const uint32_t before = v->good + v->bad;
    lk_steps found = {0};
    LK_CHECK(lk_run_dir_identity(&lk_file_ops_posix, run_dir, identity, error));
    v->identity = identity;
    LK_CHECK(lk_path_join(directory, run_dir, "/", "checkpoints", error));
    lk_status status = lk_list_checkpoints(directory, &found, error);
    for (size_t i = 0; status == LK_OK && i < found.count; i++) {
        status = lk_checkpoint_path(path, directory, found.steps[i], error);
        if (status == LK_OK) verify_one(path, v);
    }
    free(found.steps);
    LK_CHECK(status);
    for (uint32_t i = 0; i < LK_COUNT(logs); i++) verify_log(run_dir, logs[i], v);
    v->runs++;
    if (v->good + v->bad > before) return LK_OK;
    return lk_fail(error, LK_NO_INPUT, "%s: there is no checkpoint yet", directory);
}

// A directory of the place is a run where it has recorded its identity.
static bool is_run(const char *place, const char *name, char path[LK_PATH_BYTES]) {
    char identity[LK_PATH_BYTES];
    lk_error ignored = {.status = LK_OK};
    return lk_path_join(path, place, "/", name, &ignored) == LK_OK &&
           lk_path_join(identity, path, "/", "identity", &ignored) == LK_OK &&
           access(identity, F_OK) == 0;
}

// A run that has not come to its first checkpoint is not wrong; one that cannot be read is.
static void verify_found(const char *run_dir, verification *v) {
    lk_error wrong = {.status = LK_OK};
    const lk_status status = verify_run(run_dir, v, &wrong);
    if (status == LK_OK) return;
    print_verified(v, run_dir, status == LK_NO_INPUT ? "none" : "WRONG", wrong.text);
    v->bad += status != LK_NO_INPUT;
}

static lk_status verify_all(const char *place, verification *v, lk_error *error) {
    struct dirent **names;
    char path[LK_PATH_BYTES];
    const int count = scandir(place, &names, NULL, alphasort);
    if (count < 0) return lk_file_fail(error, LK_NO_INPUT, place, "list", -errno);
    for (int i = 0; i < count; i++) {
        const bool itself =
            strcmp(names[i]->d_name, ".") == 0 || strcmp(names[i]->d_name, "..") == 0;
        if (!itself && is_run(place, names[i]->d_name, path)) verify_found(path, v);
        free(names[i]);
    }
    free(names);
    if (v->runs + v->bad) return LK_OK;
    return lk_fail(error, LK_NO_INPUT, "%s: holds no run; name the directory that runs lie in",
                   place);
}

static lk_status verify_place(const char *place, bool all, verification *v, lk_error *error) {
    struct stat facts;
    if (all) return verify_all(place, v, error);
    if (stat(place, &facts) != 0) return lk_file_fail(error, LK_NO_INPUT, place, "open", -errno);
    if (S_ISDIR(facts.st_mode)) return verify_run(place, v, error);
    verify_one(place, v);
    return LK_OK;
}

static lk_status verify(int argc, char **argv, lk_error *error) {
    bool all = false, json = false;
    const lk_argument options[] = {{.name = "all", .flag = &all}};
    lk_arguments a = {.help = verify_help,
                      .options = options,
                      .option_count = LK_COUNT(options),
                      .word_count = 1,
                      .wordless = &all,
                      .json = &json};
    LK_CHECK(lk_parse_arguments(argc, argv, &a, error));
    if (a.helped) return LK_OK;
    const char *place = a.words[0] ? a.words[0] : "runs";
    verification v = {.files = json ? json_array() : NULL};
    LK_CHECK(verify_place(place, all, &v, error));
    if (json) {
        LK_CHECK(lk_print_json(
            json_pack("{s:i, s:i, s:i, s:i, s:o}", "good", (int)v.good, "bad", (int)v.bad, "logs",
                      (int)v.logs, "bad_logs", (int)v.bad_logs, "files", v.files),
            error));
    } else if (all) {
        printf("%u runs, %u checkpoints, %u logs: %u wrong\n", v.runs, v.good + v.bad, v.logs,
               v.bad + v.bad_logs);
    }
    if (v.bad_logs) {
        return lk_fail(error, LK_BAD_DATA,
                       "%s: %u of %u checkpoints and %u of %u logs are not valid", place, v.bad,
                       v.good + v.bad, v.bad_logs, v.logs);
    }
    if (v.bad == 0) return LK_OK;
    return lk_fail(error, LK_BAD_DATA, "%s: %u of %u checkpoints are not valid", place, v.bad,
                   v.good + v.bad);
}

lk_status lk_command_checkpoint(int argc, char **argv, lk_error *error) {
    static const char help[] =
        "lockstep checkpoint info FILE | verify FILE|RUN_DIR|--all | export FILE|RUN_DIR --output "
        "OUT\n"
        "\n"
        "  lockstep checkpoint info FILE             metadata, tensors, shapes, bytes\n"
        "  lockstep checkpoint verify FILE|RUN_DIR   is every byte what was saved?\n"
        "  lockstep checkpoint verify --all [DIR]    ... of all runs in DIR (runs)\n"
        "  lockstep checkpoint export FILE|RUN_DIR   its parameters for other programs\n";
    static const lk_subcommand table[] = {
        {"info", info}, {"verify", verify}, {"export", lk_command_checkpoint_export}};
    return lk_run_subcommand(argc, argv, help, table, LK_COUNT(table), error);
}
