// file_ops.c - the file operations of Linux, and the helpers that finish short reads and writes.
//
// opendir allocates, so a directory is listed by the getdents64 system call into the stack.
#define _GNU_SOURCE
#include "io/file_ops.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

// --- the operations of the host ------------------------------------------------------------------

// Calls again while a signal interrupts; then the result, or -errno.
#define UNINTERRUPTED(result, call)                  \
    do {                                             \
        (result) = (call);                           \
    } while ((result) < 0 && errno == EINTR);        \
    if ((result) < 0) (result) = -errno

// Where a path is looked up, and what by: a name in a directory that is held, or all of it.
// `itself`: a directory that is held may be found, too, not only what lies in one.
static int find_place(const void *context, const char *path, bool itself, const char **name) {
    const lk_held_files *held = context;
    *name = path;
    if (!held) return AT_FDCWD;
    for (uint32_t i = held->count; i-- > 0;) {  // a directory before the one that it lies in
        const size_t bytes = strlen(held->at[i].path);
        if (strncmp(path, held->at[i].path, bytes) != 0) continue;
        *name = path[bytes] == '/' ? path + bytes + 1 : ".";
        bool within = path[bytes] == '/' && !strchr(*name, '/') && **name;
        if (within || (itself && path[bytes] == '\0')) return held->at[i].directory;
    }
    *name = "outside";  // of them: a bad descriptor, so that it is said and nothing is done
    return -1;
}

static int locate(const void *context, const char *path, const char **name) {
    return find_place(context, path, true, name);
}

static int posix_open(void *context, const char *path, lk_open_mode mode) {
    // O_NONBLOCK: opening a pipe must not wait for its writer; its size refuses it.
    static const int flags[] = {
        [LK_OPEN_READ] = O_RDONLY | O_NONBLOCK,
        [LK_OPEN_CREATE] = O_WRONLY | O_CREAT | O_EXCL,
        [LK_OPEN_APPEND] = O_RDWR | O_CREAT | O_APPEND | O_NONBLOCK,
        [LK_OPEN_UPDATE] = O_RDWR | O_NONBLOCK,
    };
    const char *name;
    int file, at = locate(context, path, &name);
    int more = O_CLOEXEC | (context && mode != LK_OPEN_READ ? O_NOFOLLOW : 0);
    UNINTERRUPTED(file, openat(at, name, flags[mode] | more, 0644));
    return file;
}

static int posix_close(void *context, int file) {
    (void)context;
    // Linux has freed the descriptor even when close was interrupted: never call it twice.
    return close(file) == 0 || errno == EINTR ? 0 : -errno;
}

static int64_t posix_write(void *context, int file, const void *data, size_t bytes) {
    (void)context;
    ssize_t done = write(file, data, bytes);
    return done < 0 ? -errno : done;
}

static int64_t posix_read(void *context, int file, void *data, size_t bytes, uint64_t offset) {
    (void)context;
    ssize_t done = pread(file, data, bytes, (off_t)offset);
    return done < 0 ? -errno : done;
}

static int64_t posix_size(void *context, int file) {
    (void)context;
    struct stat info;
    if (fstat(file, &info) != 0) return -errno;
    if (S_ISDIR(info.st_mode)) return -EISDIR;
    return S_ISREG(info.st_mode) ? info.st_size : -ESPIPE;
}

static int posix_truncate(void *context, int file, uint64_t bytes) {
    (void)context;
    int result;
    UNINTERRUPTED(result, ftruncate(file, (off_t)bytes));
    return result;
}

static int posix_sync(void *context, int file) {
    (void)context;
    int result;
    UNINTERRUPTED(result, fsync(file));
    // A hint: drop the cached pages, so that a read-back asks the device and not the page cache.
    if (result == 0) (void)posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    return result;
}

static int posix_lock(void *context, int file) {
    (void)context;
    int result;
    UNINTERRUPTED(result, flock(file, LOCK_EX | LOCK_NB));
    return result;
}

static int posix_rename(void *context, const char *from, const char *to) {
    const char *old, *new;
    int old_at = locate(context, from, &old), new_at = locate(context, to, &new);
    return renameat(old_at, old, new_at, new) == 0 ? 0 : -errno;
}

static int posix_remove(void *context, const char *path) {
    const char *name;
    int at = locate(context, path, &name);
    return unlinkat(at, name, 0) == 0 ? 0 : -errno;
}

static int posix_make_directory(void *context, const char *path) {
    const char *name;
    int at = find_place(context, path, false, &name);
    return mkdirat(at, name, 0755) == 0 ? 0 : -errno;
}

static int posix_remove_directory(void *context, const char *path) {
    const char *name;
    int at = find_place(context, path, false, &name);
    return unlinkat(at, name, AT_REMOVEDIR) == 0 ? 0 : -errno;
}

static int open_directory(const void *context, const char *path) {
    const char *name;
    int file, at = locate(context, path, &name);
    int more = context ? O_NOFOLLOW : 0;
    UNINTERRUPTED(file, openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | more));
    return file;
}

static int posix_sync_directory(void *context, const char *path) {
    int file = open_directory(context, path);
    if (file < 0) return file;
    int result;
    UNINTERRUPTED(result, fsync(file));
    close(file);
    return result;
}

static int posix_list(void *context, const char *path, lk_name_visitor visit, void *visit_context) {
    // linux_dirent64: u64 inode, s64 offset, u16 record length, u8 type, then the name.
    enum { LENGTH_AT = 16, NAME_AT = 19 };
    _Alignas(8) char buffer[4096];
    int file = open_directory(context, path);
    if (file < 0) return file;
    long bytes;
    while ((bytes = syscall(SYS_getdents64, file, buffer, sizeof buffer)) > 0) {
        for (long at = 0; at < bytes;) {
            uint16_t record_bytes;
            memcpy(&record_bytes, buffer + at + LENGTH_AT, sizeof record_bytes);
            const char *name = buffer + at + NAME_AT;
            if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0) visit(visit_context, name);
            at += record_bytes;
        }
    }
    int result = bytes < 0 ? -errno : 0;
    close(file);
    return result;
}

const lk_file_ops lk_file_ops_posix = {
    .open = posix_open,
    .close = posix_close,
    .write = posix_write,
    .read = posix_read,
    .size = posix_size,
    .truncate = posix_truncate,
    .sync = posix_sync,
    .lock = posix_lock,
    .rename = posix_rename,
    .remove = posix_remove,
    .make_directory = posix_make_directory,
    .remove_directory = posix_remove_directory,
    .sync_directory = posix_sync_directory,
    .list = posix_list,
};

// --- directories that are held -------------------------------------------------------------------

void lk_held_files_start(lk_held_files *held) {
    held->ops = lk_file_ops_posix;
    held->ops.context = held;
    held->count = 0;
}

int lk_held_files_add(lk_held_files *held, const char *path) {
    lk_assert(held->count < LK_HELD_MAX);
    int directory = open_directory(held->count ? held : NULL, path);
    struct stat info;
    const char *name;
    if (directory == -ENOTDIR && held->count) {  // so Linux says of a link to a directory, too
        int at = locate(held, path, &name);
        bool link = fstatat(at, name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(info.st_mode);
        if (link) return -ELOOP;
    }
    if (directory < 0) return directory;
    held->at[held->count].directory = directory;
    lk_format(held->at[held->count].path, LK_PATH_BYTES, "%s", path);
    held->count++;
    return 0;
}

void lk_held_files_end(lk_held_files *held) {
    for (uint32_t i = 0; i < held->count; i++) close(held->at[i].directory);
    held->count = 0;
}

static bool same_file(const struct stat *a, const struct stat *b) {
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

bool lk_held_files_is(const lk_held_files *held, const char *path, int file) {
    struct stat there, here;
    const char *name;
    int at = find_place(held, path, false, &name);
    return fstatat(at, name, &there, AT_SYMLINK_NOFOLLOW) == 0 && fstat(file, &here) == 0 &&
           same_file(&there, &here);
}

bool lk_held_files_in_place(const lk_held_files *held, char now[LK_PATH_BYTES]) {
    struct stat there, here;
    char link[40];
    lk_format(link, sizeof link, "/proc/self/fd/%d", held->at[0].directory);
    ssize_t bytes = readlink(link, now, LK_PATH_BYTES - 1);
    if (bytes >= 0) now[bytes] = '\0';
    else lk_format(now, LK_PATH_BYTES, "(unknown)");
    return stat(held->at[0].path, &there) == 0 && fstat(held->at[0].directory, &here) == 0 &&
           same_file(&there, &here);
}

uint64_t lk_held_files_free_bytes(const lk_held_files *held) {
    struct statfs info;
    uint64_t bytes;
    if (fstatfs(held->at[0].directory, &info) != 0 || info.f_blocks == 0) return UINT64_MAX;
    uint64_t block = (uint64_t)(info.f_frsize ? info.f_frsize : info.f_bsize);
    return lk_mul_ok((uint64_t)info.f_bavail, block, &bytes) ? bytes : UINT64_MAX;
}

// --- helpers on any operations -------------------------------------------------------------------

static const char *advice(int code) {
    switch (code) {
    case ENOSPC:
    case EDQUOT: return "free some space and do it again; a run goes on with --resume";
    case EACCES:
    case EPERM:
    case EROFS: return "check who may read and write there";
    case ENOENT:
    case ENOTDIR: return "check the path";
    case EEXIST: return "remove it or choose another name";
    default: return "check the file system and the disk";
    }
}

lk_status lk_file_fail(lk_error *error, lk_status status, const char *path, const char *what,
                       int64_t negative_errno) {
    int code = (int)-negative_errno;
    // strerror may look for translations; the plain table never allocates.
    const char *reason = strerrordesc_np(code);
    return lk_fail(error, status, "%s: cannot %s: %s; %s", path, what,
                   reason ? reason : "unknown reason", advice(code));
}

lk_status lk_file_write_all(const lk_file_ops *ops, int file, const char *path, const void *data,
                            size_t bytes, lk_error *error) {
    const char *next = data;
    while (bytes > 0) {
        int64_t done = ops->write(ops->context, file, next, bytes);
        if (done == -EINTR) continue;
        if (done < 0) return lk_file_fail(error, LK_IO_ERROR, path, "write", done);
        if (done == 0) return lk_file_fail(error, LK_IO_ERROR, path, "write", -ENOSPC);
        next += done;
        bytes -= (size_t)done;
    }
    return LK_OK;
}

lk_status lk_file_read_all(const lk_file_ops *ops, int file, const char *path, void *data,
                           size_t bytes, uint64_t offset, lk_error *error) {
    char *next = data;
    while (bytes > 0) {
        int64_t done = ops->read(ops->context, file, next, bytes, offset);
        if (done == -EINTR) continue;
        if (done < 0) return lk_file_fail(error, LK_IO_ERROR, path, "read", done);
        if (done == 0) {
            return lk_fail(error, LK_BAD_DATA,
                           "%s: ends at byte %llu, %zu more were expected; the file was cut short",
                           path, (unsigned long long)offset, bytes);
        }
        next += done;
        offset += (uint64_t)done;
        bytes -= (size_t)done;
    }
    return LK_OK;
}

lk_status lk_file_open_read(const lk_file_ops *ops, const char *path, int *file, uint64_t *bytes,
                            lk_error *error) {
    *file = ops->open(ops->context, path, LK_OPEN_READ);
    if (*file < 0) {
        lk_status status = *file == -ENOENT ? LK_NO_INPUT : LK_IO_ERROR;
        return lk_file_fail(error, status, path, "open", *file);
    }
    int64_t size = ops->size(ops->context, *file);
    if (size < 0) {
        ops->close(ops->context, *file);
        *file = -1;
        if (size != -ESPIPE) return lk_file_fail(error, LK_IO_ERROR, path, "take the size", size);
        return lk_fail(error, LK_BAD_DATA,
                       "%s: found a pipe, socket or device, wanted a file; name the file itself",
                       path);
    }
    *bytes = (uint64_t)size;
    return LK_OK;
}

lk_status lk_file_create(const lk_file_ops *ops, const char *path, int *file, lk_error *error) {
    *file = ops->open(ops->context, path, LK_OPEN_CREATE);
    if (*file == -EEXIST) {  // left by a save that failed; by the run's lock nobody writes it now
        int removed = ops->remove(ops->context, path);
        if (removed < 0) {
            return lk_file_fail(error, LK_IO_ERROR, path, "remove the leftover", removed);
        }
        *file = ops->open(ops->context, path, LK_OPEN_CREATE);
    }
    if (*file < 0) return lk_file_fail(error, LK_IO_ERROR, path, "create", *file);
    return LK_OK;
}

lk_status lk_file_create_beside(const lk_file_ops *ops, const char *path,
                                char temporary[LK_PATH_BYTES], int *file, lk_error *error) {
    enum { NAMES_MAX = 100 };
    char ending[48];
    for (unsigned n = 0; n < NAMES_MAX; n++) {
        lk_format(ending, sizeof ending, n ? ".%ld-%u.tmp" : ".%ld.tmp", (long)getpid(), n);
        LK_CHECK(lk_path_join(temporary, path, "", ending, error));
        *file = ops->open(ops->context, temporary, LK_OPEN_CREATE);
        if (*file >= 0) return LK_OK;
        if (*file != -EEXIST) break;
    }
    const int why = *file;
    lk_status status = lk_file_fail(error, LK_IO_ERROR, temporary, "create", why);
    temporary[0] = '\0';
    return status;
}

lk_status lk_file_sync_close(const lk_file_ops *ops, int file, const char *path, lk_error *error) {
    int synced = ops->sync(ops->context, file);
    int closed = ops->close(ops->context, file);
    if (synced < 0) return lk_file_fail(error, LK_IO_ERROR, path, "sync", synced);
    if (closed < 0) return lk_file_fail(error, LK_IO_ERROR, path, "close", closed);
    return LK_OK;
}

lk_status lk_file_publish(const lk_file_ops *ops, const char *temporary, const char *path,
                          lk_error *error) {
    int renamed = ops->rename(ops->context, temporary, path);
    if (renamed < 0) return lk_file_fail(error, LK_IO_ERROR, path, "rename to", renamed);
    char parent[LK_PATH_BYTES];
    lk_path_parent(parent, path);
    int synced = ops->sync_directory(ops->context, parent);
    if (synced < 0) return lk_file_fail(error, LK_IO_ERROR, parent, "sync the directory", synced);
    return LK_OK;
}

// Fills a temporary file that was created, and gives it its name.
static lk_status fill_and_publish(const lk_file_ops *ops, int file, const char *temporary,
                                  const char *path, const void *data, size_t bytes,
                                  lk_error *error) {
    lk_status written = lk_file_write_all(ops, file, temporary, data, bytes, error);
    lk_status synced = lk_file_sync_close(ops, file, temporary, error);
    if (written == LK_OK && synced == LK_OK &&
        lk_file_publish(ops, temporary, path, error) == LK_OK)
        return LK_OK;
    ops->remove(ops->context, temporary);
    return error->status;
}

lk_status lk_file_write_atomic(const lk_file_ops *ops, const char *path, const void *data,
                               size_t bytes, lk_error *error) {
    char temporary[LK_PATH_BYTES];
    int file;
    LK_CHECK(lk_path_join(temporary, path, "", ".tmp", error));
    LK_CHECK(lk_file_create(ops, temporary, &file, error));
    return fill_and_publish(ops, file, temporary, path, data, bytes, error);
}

lk_status lk_file_write_beside(const lk_file_ops *ops, const char *path, const void *data,
                               size_t bytes, lk_error *error) {
    char temporary[LK_PATH_BYTES];
    int file;
    LK_CHECK(lk_file_create_beside(ops, path, temporary, &file, error));
    return fill_and_publish(ops, file, temporary, path, data, bytes, error);
}

lk_status lk_path_join(char out[LK_PATH_BYTES], const char *a, const char *separator, const char *b,
                       lk_error *error) {
    size_t length = lk_format(out, LK_PATH_BYTES, "%s%s%s", a, separator, b);
    if (length < LK_PATH_BYTES) return LK_OK;
    return lk_fail(error, LK_BAD_USAGE, "path of %zu bytes is too long (at most %d): %.*s...; "
                   "choose a shorter directory", length, LK_PATH_BYTES - 1, 80, out);
}

void lk_path_parent(char out[LK_PATH_BYTES], const char *path) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    while (end > 0 && path[end - 1] != '/') end--;
    while (end > 1 && path[end - 1] == '/') end--;
    lk_format(out, LK_PATH_BYTES, "%.*s", end ? (int)end : 1, end ? path : ".");
}
