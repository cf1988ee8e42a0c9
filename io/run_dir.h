// run_dir.h - one directory per run, held by one process at a time.
//
//   <run>/lock              flock'ed while a process works here; holds its pid
//   <run>/identity          the run identity, one line of hexadecimal
//   <run>/checkpoints/      see checkpoint.h
//   <run>/config.json ...   small files, written whole or not at all
//   <run>/metrics.jsonl ... logs: one JSON object a line, appended
//
// Host only. Knows nothing of what the files say, but for "step":N in a log line. Never allocates.
#ifndef LOCKSTEP_IO_RUN_DIR_H
#define LOCKSTEP_IO_RUN_DIR_H

#include "io/file_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LK_IDENTITY_HEX_BYTES = 65 };  // SHA-256 in lower-case hexadecimal, with its NUL

typedef struct lk_run_dir {
    const lk_file_ops *ops;
    int lock_file;                       // -1 when closed
    char path[LK_PATH_BYTES];            // as given
    char checkpoints[LK_PATH_BYTES];     // <path>/checkpoints
} lk_run_dir;

// Creates or enters a run directory, and holds its lock until lk_run_dir_close or the process ends.
//
// identity_hex  the identity of the configuration at hand. A new run records it; a resumed one must
//               have recorded the same.
//
// LK_UNAVAILABLE  another process works there (its pid is named)
// LK_BAD_USAGE    not resuming, and the directory is not empty; nothing in it was touched
// LK_NO_INPUT     resuming, and there is no run
// LK_BAD_CONFIG   resuming a run of another identity (both are named)
// LK_BAD_DATA     the recorded identity is damaged
lk_status lk_run_dir_open(lk_run_dir *run, const lk_file_ops *ops, const char *path, bool resume,
                          const char *identity_hex, lk_error *error);
void lk_run_dir_close(lk_run_dir *run);

// Reads the identity that a run directory recorded, without the lock.
lk_status lk_run_dir_identity(const lk_file_ops *ops, const char *path,
                              char hex[LK_IDENTITY_HEX_BYTES], lk_error *error);

// Writes <run>/<name>: after a crash it is the old file or the new one, whole.
lk_status lk_run_dir_write(const lk_run_dir *run, const char *name, const void *data, size_t bytes,
                           lk_error *error);

// --- logs ----------------------------------------------------------------------------------------

// Appends whole lines, each in one write: whoever follows the file sees it, and a process that is
// killed loses none. The caller's buffer puts a line and its newline together.
typedef struct lk_line_log {
    const lk_file_ops *ops;
    int file;                  // -1 when closed
    char *buffer;              // the caller's
    size_t capacity;           // bytes
    char path[LK_PATH_BYTES];
} lk_line_log;

// Opens <run>/<name> for appending, created where missing.
lk_status lk_line_log_open(lk_line_log *log, const lk_run_dir *run, const char *name, char *buffer,
                           size_t buffer_bytes, lk_error *error);

// Adds one line, given without its newline: it is in the file when this returns.
lk_status lk_line_log_add(lk_line_log *log, const char *line, size_t bytes, lk_error *error);

// Makes durable what was added. Call it before each checkpoint: a resumed log then has no gap.
lk_status lk_line_log_sync(lk_line_log *log, lk_error *error);

// Closes; closed even where it fails.
lk_status lk_line_log_close(lk_line_log *log, lk_error *error);

// Resume: cuts <run>/<name> after the last complete line with "step":N, N <= step; what follows
// belongs to steps that will be done again. A line without a step belongs to the line before it (at
// the top, to the run). A missing log is LK_OK. `removed_bytes` may be NULL.
lk_status lk_line_log_cut(const lk_run_dir *run, const char *name, uint64_t step,
                          uint64_t *removed_bytes, lk_error *error);

#ifdef __cplusplus
}
#endif
#endif
