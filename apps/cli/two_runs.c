// two_runs.c - the logs and checkpoints of two run directories, for whoever compares them.
#define _GNU_SOURCE
#include "apps/cli/two_runs.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/data_file.h"

typedef unsigned long long ull;

// --- what is said --------------------------------------------------------------------------------

json_t *lk_diff_answer;

void lk_diff_say(const char *format, ...) {
    static char line[4096];
    static size_t used;
    va_list args;
    va_start(args, format);
    if (lk_diff_answer) {
        int n = vsnprintf(line + used, sizeof line - used, format, args);
        used = LK_MIN(used + (size_t)LK_MAX(n, 0), sizeof line - 1);
        if (used && line[used - 1] == '\n') {
            line[used - 1] = '\0';
            json_array_append_new(json_object_get(lk_diff_answer, "lines"), lk_json_text(line));
            used = 0;
        }
    } else {
        vprintf(format, args);
    }
    va_end(args);
}

void lk_diff_number(const char *key, uint64_t value) {
    if (lk_diff_answer) json_object_set_new(lk_diff_answer, key, json_integer((json_int_t)value));
}

void lk_diff_text(const char *key, const char *value) {
    if (lk_diff_answer) json_object_set_new(lk_diff_answer, key, lk_json_text(value));
}

// --- a log, one line at a time -------------------------------------------------------------------

lk_status lk_json_log_open(lk_json_log *log, const char *run_dir, const char *name, bool repeats,
                           lk_error *error) {
    *log = (lk_json_log){.repeats = repeats};
    lk_line_sums_start(&log->sums);
    LK_CHECK(lk_path_join(log->path, run_dir, "/", name, error));
    struct stat about;
    int fd;
    if (access(log->path, F_OK) != 0 && errno == ENOENT) return LK_OK;
    LK_CHECK(lk_data_open(log->path, &fd, &about, error));
    log->file = fdopen(fd, "r");
    if (log->file) return LK_OK;
    int number = errno;
    close(fd);
    return lk_file_fail(error, LK_NO_INPUT, log->path, "open", -number);
}

void lk_json_log_close(lk_json_log *log) {
    lk_json_close(&log->document);
    free(log->text);
    if (log->file) fclose(log->file);
    *log = (lk_json_log){0};
}

static lk_status log_parse(lk_json_log *log, size_t length, lk_error *error) {
    char source[LK_JSON_SOURCE_BYTES];
    lk_error why = {.status = LK_OK};
    uint64_t step = 0;
    lk_format(source, sizeof source, "%.*s line %llu", LK_JSON_SOURCE_BYTES - 32, log->path,
              (ull)log->line);
    lk_status status = lk_json_load_text(&log->document, source, log->text, length, &why);
    if (status == LK_OK) {
        lk_json_cursor root = lk_json_root(&log->document);
        status = lk_json_get_u64(&root, "step", LK_JSON_REQUIRED, 0, INT64_MAX, &step, &why);
    }
    if (status != LK_OK) return lk_fail(error, LK_BAD_DATA, "%s", why.text);
    if (log->lines && (log->repeats ? step < log->step : step <= log->step)) {
        return lk_fail(error, LK_BAD_DATA,
                       "%s: found step %llu after step %llu, wanted a later one", source, (ull)step,
                       (ull)log->step);
    }
    log->step = step;
    log->lines++;
    return LK_OK;
}

lk_status lk_json_log_next(lk_json_log *log, lk_error *error) {
    lk_json_close(&log->document);
    log->at_line = false;
    if (!log->file) return LK_OK;
    errno = 0;
    ssize_t length = getline(&log->text, &log->capacity, log->file);
    if (length < 0 && ferror(log->file)) {
        return lk_file_fail(error, LK_IO_ERROR, log->path, "read", -errno);
    }
    if (length <= 0 || log->text[length - 1] != '\n') return LK_OK;
    log->line++;
    log->at_line = true;
    LK_CHECK(lk_line_sums_check(&log->sums, log->path, log->text, (size_t)length - 1, error));
    return log_parse(log, (size_t)length - 1, error);
}

void lk_json_log_say(const lk_json_log *log) {
    if (!log->sums.without) return;
    printf("%s: %llu lines without a checksum, as earlier versions wrote them: taken as they are\n",
           log->path, (ull)log->sums.without);
}

// --- checkpoints ---------------------------------------------------------------------------------

lk_status lk_common_checkpoints(const char *const runs[LK_SIDES], lk_steps *out, lk_error *error) {
    lk_steps other = {0};
    char directory[LK_PATH_BYTES];
    *out = (lk_steps){0};
    lk_status status = lk_path_join(directory, runs[0], "/", "checkpoints", error);
    if (status == LK_OK) status = lk_list_checkpoints(directory, out, error);
    if (status == LK_OK) status = lk_path_join(directory, runs[1], "/", "checkpoints", error);
    if (status == LK_OK) status = lk_list_checkpoints(directory, &other, error);
    size_t count = 0;
    for (size_t a = 0, b = 0; a < out->count && b < other.count;) {
        uint64_t x = out->steps[a], y = other.steps[b];
        if (x == y) out->steps[count++] = x;
        a += x <= y;
        b += y <= x;
    }
    out->count = count;
    free(other.steps);
    if (status != LK_OK) free(out->steps);
    return status;
}

bool lk_checkpoint_enter_both(const char *const runs[LK_SIDES], uint64_t step,
                              lk_open_checkpoint pair[LK_SIDES]) {
    char directory[LK_PATH_BYTES], path[LK_PATH_BYTES];
    for (uint32_t i = 0; i < LK_SIDES; i++) {
        lk_error why = {.status = LK_OK};
        if (lk_path_join(directory, runs[i], "/", "checkpoints", &why) == LK_OK &&
            lk_checkpoint_path(path, directory, step, &why) == LK_OK &&
            lk_checkpoint_enter(&pair[i], path, true, &why) == LK_OK) {
            continue;
        }
        lk_diff_say("passed over: %s\n", why.text);
        if (i == 1) lk_checkpoint_leave(&pair[0]);
        return false;
    }
    return true;
}

void lk_checkpoint_leave_both(lk_open_checkpoint pair[LK_SIDES]) {
    for (uint32_t i = 0; i < LK_SIDES; i++) lk_checkpoint_leave(&pair[i]);
}

bool lk_same_shape(const lk_safetensors_entry *a, const lk_safetensors_entry *b) {
    return a->dtype == b->dtype && a->dim_count == b->dim_count &&
           a->end - a->begin == b->end - b->begin &&
           memcmp(a->dims, b->dims, a->dim_count * sizeof a->dims[0]) == 0;
}
