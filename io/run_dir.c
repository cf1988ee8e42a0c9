// run_dir.c - the directory of one run: lock, identity, small files, logs.
//
// A foreign directory is looked at before anything is created in it, so a mistyped path changes
// nothing. The lock file is never removed: removing it would let two processes lock two files of
// one name.
#define _GNU_SOURCE
#include "io/run_dir.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static const char LOCK_NAME[] = "lock";
static const char IDENTITY_NAME[] = "identity";

// --- entering ------------------------------------------------------------------------------------

typedef struct survey {
    bool exists, has_lock, has_identity, has_other;
    char other[64];  // one of the others, for the error line
} survey;

static void visit_for_survey(void *context, const char *name) {
    survey *s = context;
    if (strcmp(name, LOCK_NAME) == 0) {
        s->has_lock = true;
    } else if (strcmp(name, "identity.tmp") != 0) {  // of a start that crashed: still empty
        s->has_identity |= strcmp(name, IDENTITY_NAME) == 0;
        s->has_other = true;
        lk_format(s->other, sizeof s->other, "%s", name);
    }
}

static lk_status look(const lk_run_dir *run, survey *s, lk_error *error) {
    *s = (survey){.exists = true};
    int listed = run->ops->list(run->ops->context, run->path, visit_for_survey, s);
    s->exists = listed != -ENOENT;
    if (listed < 0 && s->exists) {
        return lk_file_fail(error, LK_IO_ERROR, run->path, "list the directory", listed);
    }
    return LK_OK;
}

static lk_status judge(const lk_run_dir *run, const survey *s, bool resume, lk_error *error) {
    if (resume && !s->has_identity) {
        return lk_fail(error, LK_NO_INPUT, "%s: no run to resume (no file \"%s\"); start without "
                       "--resume", run->path, IDENTITY_NAME);
    }
    if (!resume && s->has_other) {
        return lk_fail(error, LK_BAD_USAGE, "%s: not empty (\"%s\" is there); %s", run->path,
                       s->other,
                       s->has_identity ? "go on with --resume, begin anew with --fresh, or name "
                                         "another directory"
                                       : "it is no run's: name another directory");
    }
    return LK_OK;
}

static lk_status make_directory(const lk_file_ops *ops, const char *path, lk_error *error) {
    int made = ops->make_directory(ops->context, path);
    if (made == -EEXIST) return LK_OK;
    char parent[LK_PATH_BYTES];
    lk_path_parent(parent, path);
    if (made == -ENOENT) {
        return lk_fail(error, LK_IO_ERROR,
                       "%s: cannot create the directory: its parent %s is not "
                       "there; make that first, or correct the name",
                       path, parent);
    }
    if (made < 0) return lk_file_fail(error, LK_IO_ERROR, path, "create the directory", made);
    int synced = ops->sync_directory(ops->context, parent);
    if (synced < 0) return lk_file_fail(error, LK_IO_ERROR, parent, "sync the directory", synced);
    return LK_OK;
}

static lk_status refuse_locked(const lk_run_dir *run, const char *path, lk_error *error) {
    char pid[24] = "";
    int64_t bytes = run->ops->read(run->ops->context, run->lock_file, pid, sizeof pid - 1, 0);
    size_t digits = bytes > 0 ? strspn(pid, "0123456789") : 0;
    if (digits == 0) lk_format(pid, sizeof pid, "unknown");
    else pid[digits] = '\0';
    return lk_fail(error, LK_UNAVAILABLE, "%s: in use by process %s (it holds %s); wait for it, or "
                   "stop it", run->path, pid, path);
}

static lk_status take_lock(lk_run_dir *run, lk_error *error) {
    const lk_file_ops *ops = run->ops;
    char path[LK_PATH_BYTES], pid[24];
    LK_CHECK(lk_path_join(path, run->path, "/", LOCK_NAME, error));
    run->lock_file = ops->open(ops->context, path, LK_OPEN_APPEND);
    if (run->lock_file < 0) return lk_file_fail(error, LK_IO_ERROR, path, "open", run->lock_file);
    int locked = ops->lock(ops->context, run->lock_file);
    if (locked == -EWOULDBLOCK) return refuse_locked(run, path, error);
    if (locked < 0) return lk_file_fail(error, LK_IO_ERROR, path, "lock", locked);
    int cut = ops->truncate(ops->context, run->lock_file, 0);
    if (cut < 0) return lk_file_fail(error, LK_IO_ERROR, path, "empty", cut);
    size_t bytes = lk_format(pid, sizeof pid, "%ld\n", (long)getpid());
    return lk_file_write_all(ops, run->lock_file, path, pid, bytes, error);
}

static lk_status record_identity(const lk_run_dir *run, const char *identity_hex, lk_error *error) {
    char line[LK_IDENTITY_HEX_BYTES + 1];
    size_t bytes = lk_format(line, sizeof line, "%s\n", identity_hex);
    lk_assert(bytes == LK_IDENTITY_HEX_BYTES);
    return lk_run_dir_write(run, IDENTITY_NAME, line, bytes, error);
}

static lk_status compare_identity(const lk_run_dir *run, const char *identity_hex,
                                  lk_error *error) {
    char recorded[LK_IDENTITY_HEX_BYTES];
    LK_CHECK(lk_run_dir_identity(run->ops, run->path, recorded, error));
    if (strcmp(recorded, identity_hex) == 0) return LK_OK;
    return lk_fail(error, LK_BAD_CONFIG, "%s: was started as run %s, this configuration is run %s; "
                   "resume with the old configuration, or name another directory", run->path,
                   recorded, identity_hex);
}

static lk_status enter(lk_run_dir *run, bool resume, const char *identity_hex, lk_error *error) {
    survey s;
    LK_CHECK(lk_path_join(run->checkpoints, run->path, "/", "checkpoints", error));
    LK_CHECK(look(run, &s, error));
    // With a lock file there, whoever holds it is the better answer: judge after locking.
    if (!s.has_lock) LK_CHECK(judge(run, &s, resume, error));
    if (!s.exists) LK_CHECK(make_directory(run->ops, run->path, error));
    LK_CHECK(take_lock(run, error));
    LK_CHECK(look(run, &s, error));  // again: now nobody else changes it
    LK_CHECK(judge(run, &s, resume, error));
    LK_CHECK(resume ? compare_identity(run, identity_hex, error)
                    : record_identity(run, identity_hex, error));
    return make_directory(run->ops, run->checkpoints, error);
}

lk_status lk_run_dir_open(lk_run_dir *run, const lk_file_ops *ops, const char *path, bool resume,
                          const char *identity_hex, lk_error *error) {
    lk_assert(strlen(identity_hex) == LK_IDENTITY_HEX_BYTES - 1);
    *run = (lk_run_dir){.ops = ops, .lock_file = -1};
    LK_CHECK(lk_path_join(run->path, path, "", "", error));
    lk_status status = enter(run, resume, identity_hex, error);
    if (status != LK_OK) lk_run_dir_close(run);
    return status;
}

void lk_run_dir_close(lk_run_dir *run) {
    if (run->lock_file >= 0) run->ops->close(run->ops->context, run->lock_file);
    run->lock_file = -1;
}

lk_status lk_run_dir_identity(const lk_file_ops *ops, const char *path,
                              char hex[LK_IDENTITY_HEX_BYTES], lk_error *error) {
    char name[LK_PATH_BYTES], line[LK_IDENTITY_HEX_BYTES];  // the newline in place of the NUL
    int file;
    uint64_t bytes;
    LK_CHECK(lk_path_join(name, path, "/", IDENTITY_NAME, error));
    LK_CHECK(lk_file_open_read(ops, name, &file, &bytes, error));
    bool good = bytes == sizeof line;
    if (good) lk_file_read_all(ops, file, name, line, sizeof line, 0, error);
    ops->close(ops->context, file);
    if (error->status != LK_OK) return error->status;
    for (size_t i = 0; good && i < sizeof line - 1; i++) {
        good = (line[i] >= '0' && line[i] <= '9') || (line[i] >= 'a' && line[i] <= 'f');
    }
    if (!good || line[sizeof line - 1] != '\n') {
        return lk_fail(error, LK_BAD_DATA, "%s: damaged: one line of %d hexadecimal digits was "
                       "expected", name, LK_IDENTITY_HEX_BYTES - 1);
    }
    memcpy(hex, line, sizeof line - 1);
    hex[sizeof line - 1] = '\0';
    return LK_OK;
}

lk_status lk_run_dir_write(const lk_run_dir *run, const char *name, const void *data, size_t bytes,
                           lk_error *error) {
    char path[LK_PATH_BYTES];
    LK_CHECK(lk_path_join(path, run->path, "/", name, error));
    return lk_file_write_atomic(run->ops, path, data, bytes, error);
}

// --- logs ----------------------------------------------------------------------------------------

lk_status lk_line_log_open(lk_line_log *log, const lk_run_dir *run, const char *name, char *buffer,
                           size_t buffer_bytes, lk_error *error) {
    *log = (lk_line_log){.ops = run->ops, .file = -1, .buffer = buffer, .capacity = buffer_bytes};
    LK_CHECK(lk_path_join(log->path, run->path, "/", name, error));
    log->file = log->ops->open(log->ops->context, log->path, LK_OPEN_APPEND);
    if (log->file < 0) return lk_file_fail(error, LK_IO_ERROR, log->path, "open", log->file);
    // A new log's name must be as durable as the lines that will be synced under it.
    int synced = run->ops->sync_directory(run->ops->context, run->path);
    if (synced >= 0) return LK_OK;
    log->ops->close(log->ops->context, log->file);
    log->file = -1;
    return lk_file_fail(error, LK_IO_ERROR, run->path, "sync the directory", synced);
}

lk_status lk_line_log_add(lk_line_log *log, const char *line, size_t bytes, lk_error *error) {
    if (bytes + 1 > log->capacity) {
        return lk_fail(error, LK_INTERNAL, "%s: a line of %zu bytes does not fit its buffer of %zu",
                       log->path, bytes, log->capacity);
    }
    memcpy(log->buffer, line, bytes);
    log->buffer[bytes] = '\n';
    return lk_file_write_all(log->ops, log->file, log->path, log->buffer, bytes + 1, error);
}

lk_status lk_line_log_sync(lk_line_log *log, lk_error *error) {
    int synced = log->ops->sync(log->ops->context, log->file);
    if (synced < 0) return lk_file_fail(error, LK_IO_ERROR, log->path, "sync", synced);
    return LK_OK;
}

lk_status lk_line_log_close(lk_line_log *log, lk_error *error) {
    if (log->file < 0) return LK_OK;
    int closed = log->ops->close(log->ops->context, log->file);
    log->file = -1;
    if (closed < 0) return lk_file_fail(error, LK_IO_ERROR, log->path, "close", closed);
    return LK_OK;
}

// --- cutting a log -------------------------------------------------------------------------------

// Walks a log byte by byte; keeps where it may be cut. Lines may be longer than any buffer.
typedef struct cutter {
    uint64_t step;       // the resumed one
    uint64_t at;         // offset of the next byte
    uint64_t keep;       // everything before it stays
    uint64_t value;      // "step" of this line
    unsigned matched;    // bytes of KEY seen, then IN_VALUE or DONE
    bool has_value;
    bool keeping;        // did the last line with a step stay?
} cutter;

static const char KEY[] = "\"step\":";
enum { KEY_BYTES = sizeof KEY - 1, IN_VALUE = KEY_BYTES, DONE };

static void end_line(cutter *c) {
    if (c->has_value) c->keeping = c->value <= c->step;
    if (c->keeping) c->keep = c->at;
    c->matched = 0;
    c->has_value = false;
    c->value = 0;
}

static void match_key(cutter *c, char byte) {
    if (byte == KEY[c->matched]) c->matched++;
    else c->matched = byte == '"';  // a quote is the only byte that may begin the key again
    // `"step"` followed by another key: its last quote was not a beginning, as keys need a comma.
}

static void take_byte(cutter *c, char byte) {
    c->at++;
    if (byte == '\n') {
        end_line(c);
    } else if (c->matched < KEY_BYTES) {
        match_key(c, byte);
    } else if (c->matched == IN_VALUE) {
        if (byte >= '0' && byte <= '9') {
            c->has_value = true;
            if (!lk_mul_ok(c->value, 10, &c->value) ||
                !lk_add_ok(c->value, (uint64_t)(byte - '0'), &c->value)) {
                c->value = UINT64_MAX;
                c->matched = DONE;
            }
        } else if (byte != ' ' || c->has_value) {
            c->matched = DONE;
        }
    }
}

static lk_status scan_log(const lk_file_ops *ops, int file, const char *path, uint64_t bytes,
                          cutter *c, lk_error *error) {
    char chunk[4096];
    while (c->at < bytes) {
        size_t piece = (size_t)LK_MIN(bytes - c->at, (uint64_t)sizeof chunk);
        LK_CHECK(lk_file_read_all(ops, file, path, chunk, piece, c->at, error));
        for (size_t i = 0; i < piece; i++) take_byte(c, chunk[i]);
    }
    return LK_OK;
}

lk_status lk_line_log_cut(const lk_run_dir *run, const char *name, uint64_t step,
                          uint64_t *removed_bytes, lk_error *error) {
    const lk_file_ops *ops = run->ops;
    char path[LK_PATH_BYTES];
    if (removed_bytes) *removed_bytes = 0;
    LK_CHECK(lk_path_join(path, run->path, "/", name, error));
    int file = ops->open(ops->context, path, LK_OPEN_UPDATE);
    if (file == -ENOENT) return LK_OK;
    if (file < 0) return lk_file_fail(error, LK_IO_ERROR, path, "open", file);

    cutter c = {.step = step, .keeping = true};
    int64_t bytes = ops->size(ops->context, file);
    if (bytes < 0) {
        lk_file_fail(error, LK_IO_ERROR, path, "take the size", bytes);
    } else if (scan_log(ops, file, path, (uint64_t)bytes, &c, error) == LK_OK &&
               c.keep < (uint64_t)bytes) {
        int cut = ops->truncate(ops->context, file, c.keep);
        if (cut < 0) lk_file_fail(error, LK_IO_ERROR, path, "cut", cut);
        else if (removed_bytes) *removed_bytes = (uint64_t)bytes - c.keep;
    }
    lk_file_sync_close(ops, file, path, error);
    return error->status;
}
