// file_ops.h - every file operation that a checkpoint or a run directory makes, as one small table.
//
// Code that must survive a crash calls nothing but this table, so a test can put a file system
// under it that fails, tears or forgets at any operation. The real one is lk_file_ops_posix.
// Nothing here allocates: a directory is listed from a small buffer on the stack.
//
// Host only. Knows nothing of what is in the files.
#ifndef LOCKSTEP_IO_FILE_OPS_H
#define LOCKSTEP_IO_FILE_OPS_H

#include "arena/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LK_PATH_BYTES = 1024 };  // longest path that io/ builds, with its NUL

typedef enum lk_open_mode {
    LK_OPEN_READ,    // must exist
    LK_OPEN_CREATE,  // write; must not exist (-EEXIST)
    LK_OPEN_APPEND,  // write at the end, read; created where missing
    LK_OPEN_UPDATE,  // read and write; must exist
} lk_open_mode;

typedef void (*lk_name_visitor)(void *context, const char *name);

// Each function takes the context first and returns a count or handle >= 0, or a negative errno.
// write and read may do less than asked and may answer -EINTR: call the helpers below instead.
typedef struct lk_file_ops {
    void *context;
    int (*open)(void *context, const char *path, lk_open_mode mode);
    int (*close)(void *context, int file);
    int64_t (*write)(void *context, int file, const void *data, size_t bytes);
    int64_t (*read)(void *context, int file, void *data, size_t bytes, uint64_t offset);
    int64_t (*size)(void *context, int file);                   // bytes; -ESPIPE: no plain file
    int (*truncate)(void *context, int file, uint64_t bytes);
    int (*sync)(void *context, int file);                       // contents to stable storage
    int (*lock)(void *context, int file);                       // exclusive; -EWOULDBLOCK if taken
    int (*rename)(void *context, const char *from, const char *to);  // replaces `to`
    int (*remove)(void *context, const char *path);
    int (*make_directory)(void *context, const char *path);
    int (*remove_directory)(void *context, const char *path);        // an empty one
    int (*sync_directory)(void *context, const char *path);     // names to stable storage
    int (*list)(void *context, const char *path, lk_name_visitor visit, void *visit_context);
} lk_file_ops;

extern const lk_file_ops lk_file_ops_posix;

// Directories held by descriptors. The operations of `ops` look a name in one of them up there, and
// nowhere else: in the directory that was held, wherever it was moved to and whatever has its path
// by now. No link is followed to what is written. Paths stay whole, for error lines: a path must be
// that of a held directory, or that plus "/" and a name.
enum { LK_HELD_MAX = 3 };

typedef struct lk_held_files {
    lk_file_ops ops;  // their context is this struct: it stays where it is
    uint32_t count;
    struct {
        int directory;
        char path[LK_PATH_BYTES];
    } at[LK_HELD_MAX];
} lk_held_files;

void lk_held_files_start(lk_held_files *held);
// Holds one more. The first is looked up as any path is, the others in those before them, where
// they must not be links. 0, or a negative errno; -ELOOP: it is a link.
int lk_held_files_add(lk_held_files *held, const char *path);
void lk_held_files_end(lk_held_files *held);

// Whether `path` still leads to an open file; false also where nothing is there.
bool lk_held_files_is(const lk_held_files *held, const char *path, int file);
// Where the first directory lies now, and whether that is still where its path leads.
bool lk_held_files_in_place(const lk_held_files *held, char now[LK_PATH_BYTES]);
// Bytes that may still be written there; UINT64_MAX where the file system does not say.
uint64_t lk_held_files_free_bytes(const lk_held_files *held);

// Writes or reads exactly `bytes`, going on after short counts and interruptions. `path` is for the
// error line. A file that ends too early is LK_BAD_DATA; all else LK_IO_ERROR.
lk_status lk_file_write_all(const lk_file_ops *ops, int file, const char *path, const void *data,
                            size_t bytes, lk_error *error);
lk_status lk_file_read_all(const lk_file_ops *ops, int file, const char *path, void *data,
                           size_t bytes, uint64_t offset, lk_error *error);

// Reads a file that must exist; LK_NO_INPUT where it does not, LK_BAD_DATA where it is a pipe or
// the like.
lk_status lk_file_open_read(const lk_file_ops *ops, const char *path, int *file, uint64_t *bytes,
                            lk_error *error);

// A new file under a temporary name, any leftover of that name removed first: where a lock says
// that nobody else writes it.
lk_status lk_file_create(const lk_file_ops *ops, const char *path, int *file, lk_error *error);

// Where nobody holds a lock: a new file under a temporary name of this process, which is written to
// `temporary`: PATH.PID.tmp. What is there under that name is left alone, and another one taken.
lk_status lk_file_create_beside(const lk_file_ops *ops, const char *path,
                                char temporary[LK_PATH_BYTES], int *file, lk_error *error);

// Makes a written file durable and closes it. The file is closed whatever happens.
lk_status lk_file_sync_close(const lk_file_ops *ops, int file, const char *path, lk_error *error);

// Gives a durable temporary file its name, and makes the name durable.
lk_status lk_file_publish(const lk_file_ops *ops, const char *temporary, const char *path,
                          lk_error *error);

// Writes a whole small file: temporary, sync, rename, sync of the directory. Old or new, no half.
// The first where a lock is held, by lk_file_create; the second by lk_file_create_beside.
lk_status lk_file_write_atomic(const lk_file_ops *ops, const char *path, const void *data,
                               size_t bytes, lk_error *error);
lk_status lk_file_write_beside(const lk_file_ops *ops, const char *path, const void *data,
                               size_t bytes, lk_error *error);

// Records "path: cannot <what>: <system's reason>; <advice>" for a negative errno.
lk_status lk_file_fail(lk_error *error, lk_status status, const char *path, const char *what,
                       int64_t negative_errno);

// out = "a/b", or "a" + b where `separator` is "". LK_BAD_USAGE where it does not fit.
lk_status lk_path_join(char out[LK_PATH_BYTES], const char *a, const char *separator, const char *b,
                       lk_error *error);

// The directory that holds `path`: "." for a bare name.
void lk_path_parent(char out[LK_PATH_BYTES], const char *path);

#ifdef __cplusplus
}
#endif
#endif
