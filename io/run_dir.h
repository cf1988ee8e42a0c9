// run_dir.h - one directory per run, held by one process at a time.
//
//   <run>/lock              flock'ed while a process works here; holds its pid
//   <run>/identity          the run identity, one line of hexadecimal
//   <run>/checkpoints/      see checkpoint.h
//   <run>/config.json ...   small files, written whole or not at all
//   <run>/metrics.jsonl ... logs: one JSON object a line, appended
//
// Host only, on the real file system: it holds descriptors of directories. Knows nothing of what
// the files say, but for "step":N in a log line. Never allocates.
#ifndef LOCKSTEP_IO_RUN_DIR_H
#define LOCKSTEP_IO_RUN_DIR_H

#include "io/file_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LK_IDENTITY_HEX_BYTES = 65 };  // SHA-256 in lower-case hexadecimal, with its NUL

typedef struct lk_run_dir {
    const lk_file_ops *ops;           // once open: those of `held`
    int lock_file;                    // -1 when closed
    bool resumed;                     // there was a run of this identity
    char path[LK_PATH_BYTES];         // as given
    char checkpoints[LK_PATH_BYTES];  // <path>/checkpoints
    lk_held_files held;               // both directories
} lk_run_dir;

// What may be there already.
typedef enum lk_run_entry {
    LK_ENTER_NEW,               // nothing
    LK_ENTER_RESUME,            // a run of this identity
    LK_ENTER_EITHER,   // nothing, or a run of this identity
    LK_ENTER_REMOVE,            // a run of this identity, perhaps without its checkpoints
} lk_run_entry;

// Creates or enters a run directory, and holds its lock until lk_run_dir_close or the process ends.
// From then on all work in it is done in the directories that were entered, not by their paths:
// whoever moves the directory moves the run with it, and what has its path then is not touched. It
// holds a pointer to itself: it stays where it is.
//
// identity_hex  the identity of the configuration at hand. A new run records it; a resumed one must
//               have recorded the same.
//
// Where it refuses, nothing that was there is changed.
// LK_UNAVAILABLE  another process works there (its pid is named)
// LK_BAD_USAGE    not resuming, and the directory is not empty; or "lock" or "checkpoints" is
//                 something that no run makes, a link for one
// LK_NO_INPUT     resuming, and there is no run, or it has lost its checkpoints
// LK_BAD_CONFIG   resuming a run of another identity (both are named)
// LK_BAD_DATA     the recorded identity is damaged
lk_status lk_run_dir_open(lk_run_dir *run, const char *path, lk_run_entry entry,
                          const char *identity_hex, lk_error *error);
void lk_run_dir_close(lk_run_dir *run);

// Whether the directory is still this process's alone. Call it before each save.
// LK_UNAVAILABLE: its lock file is gone or another one, so another process may work there.
// LK_IO_ERROR: its checkpoints are not where they were.
lk_status lk_run_dir_check(const lk_run_dir *run, lk_error *error);

// Reads the identity that a run directory recorded, without the lock.
lk_status lk_run_dir_identity(const lk_file_ops *ops, const char *path,
                              char hex[LK_IDENTITY_HEX_BYTES], lk_error *error);

// Writes <run>/<name>: after a crash it is the old file or the new one, whole.
lk_status lk_run_dir_write(const lk_run_dir *run, const char *name, const void *data, size_t bytes,
                           lk_error *error);

// --- logs ----------------------------------------------------------------------------------------

// Appends whole lines, each in one write: whoever follows the file sees it, and a process that is
// killed loses none. The caller's buffer puts a line and its newline together, and keeps what could
// not be written.
typedef struct lk_line_log {
    const lk_file_ops *ops;
    int file;                  // -1 when closed
    char *buffer;              // the caller's
    size_t capacity, used;     // bytes
    bool patient;              // on a full disk it goes on, and drops what the buffer cannot hold
    uint64_t lost;             // lines, for that reason
    bool doubtful;             // a sync has failed: the system may have forgotten lines
    char path[LK_PATH_BYTES];
} lk_line_log;

// Opens <run>/<name> for appending, created where missing.
lk_status lk_line_log_open(lk_line_log *log, const lk_run_dir *run, const char *name, char *buffer,
                           size_t buffer_bytes, lk_error *error);

// Adds one line, given without its newline: it is in the file when this returns. A patient log
// never fails here: what cannot be written is kept while the buffer has room, then counted as lost.
lk_status lk_line_log_add(lk_line_log *log, const char *line, size_t bytes, lk_error *error);
// The same of a record that is no line: its bytes alone, with no newline behind them.
lk_status lk_line_log_add_bytes(lk_line_log *log, const void *record, size_t bytes,
                                lk_error *error);
// Writes what the buffer has kept. After a failure it holds what is not written yet, to the byte:
// it may be called again.
lk_status lk_line_log_flush(lk_line_log *log, lk_error *error);

// Makes durable what was added. Call it before each checkpoint: a resumed log then has no gap.
lk_status lk_line_log_sync(lk_line_log *log, lk_error *error);

// Flushes and closes; closed even where it fails, or where LK_IO_ERROR tells of lines lost before.
lk_status lk_line_log_close(lk_line_log *log, lk_error *error);

// Resume: cuts <run>/<name> after the last complete line with "step":N, N <= step; what follows
// belongs to steps that will be done again. A line without a step, or whose checksum (line_sum.h)
// is wrong, belongs to the line before it (at the top, to the run). A missing log is LK_OK.
// `removed_bytes` may be NULL.
lk_status lk_line_log_cut(const lk_run_dir *run, const char *name, uint64_t step,
                          uint64_t *removed_bytes, lk_error *error);

#ifdef __cplusplus
}
#endif
#endif
