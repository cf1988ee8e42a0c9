// run_dir.c - the directory of one run: lock, identity, small files, logs.
//
// A foreign directory is looked at before anything is created in it, and nothing that is there is
// changed before all of it is judged, so a mistyped path changes nothing. Once entered, directories
// are held by descriptors: a path may lead elsewhere a moment later. The lock file is never
// removed: removing it would let two processes lock two files of one name; where somebody else has
// removed it, lk_run_dir_check tells.
#define _GNU_SOURCE
#include "io/run_dir.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "io/line_sum.h"

static const char LOCK_NAME[] = "lock";
static const char IDENTITY_NAME[] = "identity";
static const char CHECKPOINTS_NAME[] = "checkpoints";

// --- entering ------------------------------------------------------------------------------------

typedef struct survey {
    bool has_lock, has_identity, has_checkpoints, has_log, has_other;
    char other[64];  // one of the others, for the error line
} survey;

static void visit_for_survey(void *context, const char *name) {
    survey *s = context;
    if (strcmp(name, LOCK_NAME) == 0) {
        s->has_lock = true;
    } else if (strcmp(name, "identity.tmp") != 0) {  // of a start that crashed: still empty
        s->has_identity |= strcmp(name, IDENTITY_NAME) == 0;
        s->has_checkpoints |= strcmp(name, CHECKPOINTS_NAME) == 0;
        s->has_log |= strcmp(name, "metrics.jsonl") == 0 || strcmp(name, "hashes.jsonl") == 0;
        s->has_other = true;
        lk_format(s->other, sizeof s->other, "%s", name);
    }
}

static lk_status look(const lk_run_dir *run, survey *s, lk_error *error) {
    *s = (survey){.has_lock = false};
    int listed = run->ops->list(run->ops->context, run->path, visit_for_survey, s);
    if (listed >= 0) return LK_OK;
    return lk_file_fail(error, LK_IO_ERROR, run->path, "list the directory", listed);
}

static lk_status refuse_missing(const lk_run_dir *run, lk_error *error) {
    return lk_fail(error, LK_NO_INPUT, "%s: no run to resume (no file \"%s\"); begin it "
                   "with --fresh, or name the directory of one", run->path, IDENTITY_NAME);
}

static lk_status judge(const lk_run_dir *run, const survey *s, lk_run_entry entry,
                       lk_error *error) {
    if (entry == LK_ENTER_NEW && s->has_other) {
        return lk_fail(error, LK_BAD_USAGE,
                       "%s: not empty (\"%s\" is there); %s", run->path, s->other,
                       s->has_identity ? "go on with --resume, begin anew with --fresh, or name "
                                         "another directory"
                                       : "it is no run's: name another directory");
    }
    if (entry == LK_ENTER_EITHER && s->has_other && !s->has_identity) {
        return lk_fail(error, LK_BAD_USAGE,
                       "%s: holds no run (no file \"%s\") and is not empty (\"%s\" is there); "
                       "name another directory", run->path, IDENTITY_NAME, s->other);
    }
    if ((entry == LK_ENTER_RESUME || entry == LK_ENTER_REMOVE) && !s->has_identity) {
        return refuse_missing(run, error);
    }
    // They are made before the logs: a start that crashed never leaves logs without them.
    if (s->has_identity && s->has_log && !s->has_checkpoints && entry != LK_ENTER_REMOVE) {
        return lk_fail(error, LK_NO_INPUT,
                       "%s: has logs, but its directory \"%s\" is gone: going on would begin at "
                       "step 0 and cut the logs; put it back, or begin anew with --fresh",
                       run->path, CHECKPOINTS_NAME);
    }
    return LK_OK;
}

static lk_status make_directory(const lk_file_ops *ops, const char *path, lk_error *error) {
    int made = ops->make_directory(ops->context, path);
    if (made == -EEXIST) return LK_OK;
    char parent[LK_PATH_BYTES];
    lk_path_parent(parent, path);
    if (made == -ENOENT) {
        return lk_fail(error, LK_IO_ERROR, "%s: cannot create the directory: its parent %s is not "
                       "there; make that first, or correct the name", path, parent);
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

// It may be a stranger's file of that name: a run's is empty or holds a process number.
static lk_status check_lock_file(const lk_run_dir *run, const char *path, lk_error *error) {
    char text[24] = "";
    int64_t size = run->ops->size(run->ops->context, run->lock_file);
    if (size >= 0 && size < (int64_t)sizeof text) {
        LK_CHECK(lk_file_read_all(run->ops, run->lock_file, path, text, (size_t)size, 0, error));
        size_t digits = strspn(text, "0123456789");
        bool newline = text[digits] == '\n' && digits > 0;
        if ((int64_t)digits + newline == size) return LK_OK;
    }
    return lk_fail(error, LK_BAD_USAGE, "%s: is not the lock of a run: found something else than "
                   "the number of a process; move it away, or name another directory", path);
}

// Takes it, and changes nothing in it: what it is has still to be judged.
static lk_status take_lock(lk_run_dir *run, lk_error *error) {
    const lk_file_ops *ops = run->ops;
    char path[LK_PATH_BYTES];
    LK_CHECK(lk_path_join(path, run->path, "/", LOCK_NAME, error));
    run->lock_file = ops->open(ops->context, path, LK_OPEN_APPEND);
    if (run->lock_file == -ELOOP) {
        return lk_fail(error, LK_BAD_USAGE, "%s: is a link, and the lock of a run is a file of its "
                       "own; move it away, or name another directory", path);
    }
    if (run->lock_file < 0) return lk_file_fail(error, LK_IO_ERROR, path, "open", run->lock_file);
    int locked = ops->lock(ops->context, run->lock_file);
    if (locked == -EWOULDBLOCK) return refuse_locked(run, path, error);
    if (locked < 0) return lk_file_fail(error, LK_IO_ERROR, path, "lock", locked);
    return check_lock_file(run, path, error);
}

static lk_status sign_lock(const lk_run_dir *run, lk_error *error) {
    const lk_file_ops *ops = run->ops;
    char path[LK_PATH_BYTES], pid[24];
    LK_CHECK(lk_path_join(path, run->path, "/", LOCK_NAME, error));
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

// From here on the directory is this one, whatever happens to its path.
static lk_status hold(lk_run_dir *run, const char *path, lk_error *error) {
    int held = lk_held_files_add(&run->held, path);
    run->ops = &run->held.ops;
    if (held >= 0) return LK_OK;
    if (held != -ELOOP) return lk_file_fail(error, LK_IO_ERROR, path, "open the directory", held);
    return lk_fail(error, LK_BAD_USAGE, "%s: is a link, and what it leads to may be another run's; "
                   "nothing was changed: put the directory itself there, or make the whole run "
                   "directory a link", path);
}

static lk_status hold_or_make(lk_run_dir *run, lk_run_entry entry, lk_error *error) {
    int held = lk_held_files_add(&run->held, run->path);
    if (held == -ENOENT) {
        if (entry == LK_ENTER_RESUME || entry == LK_ENTER_REMOVE) return refuse_missing(run, error);
        LK_CHECK(make_directory(run->ops, run->path, error));
        return hold(run, run->path, error);
    }
    if (held < 0) return lk_file_fail(error, LK_IO_ERROR, run->path, "open the directory", held);
    run->ops = &run->held.ops;
    return LK_OK;
}

static lk_status enter_checkpoints(lk_run_dir *run, lk_error *error) {
    LK_CHECK(make_directory(run->ops, run->checkpoints, error));
    return hold(run, run->checkpoints, error);
}

static lk_status enter(lk_run_dir *run, lk_run_entry entry, const char *identity_hex,
                       lk_error *error) {
    survey s;
    LK_CHECK(lk_path_join(run->checkpoints, run->path, "/", CHECKPOINTS_NAME, error));
    LK_CHECK(hold_or_make(run, entry, error));
    LK_CHECK(look(run, &s, error));
    // With a lock file there, whoever holds it is the better answer: judge after locking.
    if (!s.has_lock) LK_CHECK(judge(run, &s, entry, error));
    LK_CHECK(take_lock(run, error));
    LK_CHECK(look(run, &s, error));  // again: now nobody else changes it
    LK_CHECK(judge(run, &s, entry, error));
    run->resumed = s.has_identity;
    if (run->resumed) {
        LK_CHECK(compare_identity(run, identity_hex, error));
        LK_CHECK(enter_checkpoints(run, error));
        return sign_lock(run, error);
    }
    LK_CHECK(sign_lock(run, error));
    LK_CHECK(record_identity(run, identity_hex, error));
    return enter_checkpoints(run, error);
}

lk_status lk_run_dir_open(lk_run_dir *run, const char *path, lk_run_entry entry,
                          const char *identity_hex, lk_error *error) {
    lk_assert(strlen(identity_hex) == LK_IDENTITY_HEX_BYTES - 1);
    *run = (lk_run_dir){.ops = &lk_file_ops_posix, .lock_file = -1};
    lk_held_files_start(&run->held);
    LK_CHECK(lk_path_join(run->path, path, "", "", error));
    for (size_t end = strlen(run->path); end > 1 && run->path[end - 1] == '/'; end--) {
        run->path[end - 1] = '\0';  // as lk_path_parent gives it
    }
    lk_status status = enter(run, entry, identity_hex, error);
    if (status != LK_OK) lk_run_dir_close(run);
    return status;
}

void lk_run_dir_close(lk_run_dir *run) {
    if (run->lock_file >= 0) run->ops->close(run->ops->context, run->lock_file);
    run->lock_file = -1;
    lk_held_files_end(&run->held);
}

lk_status lk_run_dir_check(const lk_run_dir *run, lk_error *error) {
    char path[LK_PATH_BYTES], now[LK_PATH_BYTES];
    LK_CHECK(lk_path_join(path, run->path, "/", LOCK_NAME, error));
    if (lk_held_files_is(&run->held, path, run->lock_file)) {
        // A checkpoint that lies elsewhere is none that --resume finds.
        if (lk_held_files_is(&run->held, run->checkpoints, run->held.at[1].directory)) return LK_OK;
        return lk_fail(error, LK_IO_ERROR, "%s: cannot save there: the directory was moved away or "
                       "removed while the run works; put it back", run->checkpoints);
    }
    (void)lk_held_files_in_place(&run->held, now);
    return lk_fail(error, LK_UNAVAILABLE,
                   "%s: the file \"%s\" that this run holds is not there any more, so another "
                   "process may work there: nothing more is saved, the last checkpoint stands; "
                   "leave the lock of a run alone, and go on with --resume", now, LOCK_NAME);
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

// With `ending` 1 a newline comes behind them, with 0 nothing.
static lk_status add(lk_line_log *log, const char *line, size_t bytes, size_t ending,
                     lk_error *error) {
    if (bytes + ending > log->capacity) {
        return lk_fail(error, LK_INTERNAL, "%s: a line of %zu bytes does not fit its buffer of %zu",
                       log->path, bytes, log->capacity);
    }
    lk_error later = {.status = LK_OK}, *why = log->patient ? &later : error;
    lk_status status = LK_OK;
    if (bytes + ending > log->capacity - log->used) status = lk_line_log_flush(log, why);
    if (bytes + ending > log->capacity - log->used) {
        log->lost++;
        return log->patient ? LK_OK : status;
    }
    memcpy(log->buffer + log->used, line, bytes);
    if (ending) log->buffer[log->used + bytes] = '\n';
    log->used += bytes + ending;
    status = lk_line_log_flush(log, why);
    return log->patient ? LK_OK : status;
}

lk_status lk_line_log_add(lk_line_log *log, const char *line, size_t bytes, lk_error *error) {
    return add(log, line, bytes, 1, error);
}

lk_status lk_line_log_add_bytes(lk_line_log *log, const void *record, size_t bytes,
                                lk_error *error) {
    return add(log, record, bytes, 0, error);
}

lk_status lk_line_log_flush(lk_line_log *log, lk_error *error) {
    size_t written = 0;
    int64_t done = 0;
    while (written < log->used) {
        done = log->ops->write(log->ops->context, log->file, log->buffer + written,
                               log->used - written);
        if (done == 0) done = -ENOSPC;
        if (done < 0 && done != -EINTR) break;
        if (done > 0) written += (size_t)done;
    }
    // What is written is written once, and what is not stays: no line comes twice, none is torn.
    log->used -= written;
    memmove(log->buffer, log->buffer + written, log->used);
    if (log->used == 0) return LK_OK;
    return lk_file_fail(error, LK_IO_ERROR, log->path, "write", done);
}

lk_status lk_line_log_sync(lk_line_log *log, lk_error *error) {
    LK_CHECK(lk_line_log_flush(log, error));
    int synced = log->ops->sync(log->ops->context, log->file);
    if (synced >= 0) return LK_OK;
    // The next sync may say that all is well though the system has given these lines up.
    log->doubtful = true;
    return lk_file_fail(error, LK_IO_ERROR, log->path, "sync", synced);
}

lk_status lk_line_log_close(lk_line_log *log, lk_error *error) {
    if (log->file < 0) return LK_OK;
    lk_status status = lk_line_log_flush(log, error);
    int closed = log->ops->close(log->ops->context, log->file);
    log->file = -1;
    if (status != LK_OK) return status;
    if (closed < 0) return lk_file_fail(error, LK_IO_ERROR, log->path, "close", closed);
    if (log->lost == 0 && !log->doubtful) return LK_OK;
    return lk_fail(error, LK_IO_ERROR,
                   "%s: %llu lines are missing that could not be written%s; the run itself went "
                   "on, and its checkpoints are whole",
                   log->path, (unsigned long long)log->lost,
                   log->doubtful ? ", and others may be after a loss of power, since a sync failed"
                                 : "");
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
    lk_line_sums sums;   // a line whose checksum is wrong is one without a step
} cutter;

static const char KEY[] = "\"step\":";
enum { KEY_BYTES = sizeof KEY - 1, IN_VALUE = KEY_BYTES, DONE };

static void end_line(cutter *c) {
    if (c->has_value && !c->sums.wrong) c->keeping = c->value <= c->step;
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
        size_t begun = 0;
        for (size_t i = 0; i < piece; i++) {
            if (chunk[i] == '\n') {
                lk_line_sums_feed(&c->sums, chunk + begun, i - begun);
                lk_line_sums_end(&c->sums);
                begun = i + 1;
            }
            take_byte(c, chunk[i]);
        }
        lk_line_sums_feed(&c->sums, chunk + begun, piece - begun);
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
    lk_line_sums_start(&c.sums);
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
