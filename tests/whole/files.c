// files.c - linked with the whole program, writes down what it asks of the file system, and lets
// chosen calls fail or end the process. The program knows nothing of it: its calls are wrapped by
// the linker (tests/whole/CMakeLists.txt). Calls on the standard streams are not counted.
//
//   FILES_TRACE=FILE               a line for each call: its number, its name, what it is about
//   FILES_FAULT=HOW@CALL:FROM-TO   from the FROM-th to the TO-th call of that name (or "any"), it
//                                  fails with HOW: EIO, ENOSPC, EINTR, EACCES; or the process ends
//                                  before it (kill) or right after it (after)
//   FILES_ABOUT=TEXT               only calls whose path holds TEXT are counted for FILES_FAULT
//   FILES_FREE=BYTES               what the file system says is free
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "arena/base.h"

static atomic_ulong calls, counted;

long __real_syscall(long number, ...);

static void path_of(int at, const char *name, char out[2 * PATH_MAX]) {
    char link[40], place[PATH_MAX] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    ssize_t bytes = at == AT_FDCWD ? 0 : readlink(link, place, sizeof place - 1);
    place[bytes > 0 ? bytes : 0] = '\0';
    snprintf(out, 2 * PATH_MAX, "%s%s%s", place, *place && name ? "/" : "", name ? name : "");
}

static void trace(unsigned long number, const char *call, const char *path) {
    char line[2 * PATH_MAX + 64];
    const char *file = getenv("FILES_TRACE");
    if (!file) return;
    int n = snprintf(line, sizeof line, "%lu %s %s\n", number, call, path);
    int out = (int)__real_syscall(SYS_openat, AT_FDCWD, file,
                                  O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    lk_assert(out >= 0 && __real_syscall(SYS_write, out, line, (size_t)n) == n);
    (void)__real_syscall(SYS_close, out);
}

static int number_of(const char *name) {
    static const struct {
        const char *name;
        int number;
    } errors[] = {{"EIO", EIO}, {"ENOSPC", ENOSPC}, {"EINTR", EINTR}, {"EACCES", EACCES}};
    for (size_t i = 0; i < LK_COUNT(errors); i++) {
        if (strcmp(errors[i].name, name) == 0) return errors[i].number;
    }
    return 0;
}

// Notes a call. The errno that it must fail with, 0: none; -1: the process ends after it.
static int note(const char *call, int at, const char *name) {
    char path[2 * PATH_MAX], how[16], which[32];
    unsigned long first, last;
    const char *wish = getenv("FILES_FAULT"), *about = getenv("FILES_ABOUT");
    path_of(at, name, path);
    trace(atomic_fetch_add(&calls, 1) + 1, call, path);
    if (!wish || (about && !strstr(path, about))) return 0;
    lk_assert(sscanf(wish, "%15[^@]@%31[^:]:%lu-%lu", how, which, &first, &last) == 4);
    if (strcmp(which, "any") != 0 && strcmp(which, call) != 0) return 0;
    unsigned long number = atomic_fetch_add(&counted, 1) + 1;
    if (number < first || number > last) return 0;
    if (strcmp(how, "kill") == 0) (void)kill(getpid(), SIGKILL);
    return strcmp(how, "after") == 0 ? -1 : number_of(how);
}

// The call itself, or what stands for it.
#define CALLED(type, call, at, name, expression)                   \
    int fault = (at) >= 0 && (at) <= 2 ? 0 : note(call, at, name); \
    if (fault > 0) {                                               \
        errno = fault;                                             \
        return -1;                                                 \
    }                                                              \
    type result = (expression);                                    \
    if (fault < 0) (void)kill(getpid(), SIGKILL);                  \
    return result

int __real_openat(int at, const char *name, int flags, ...);
int __wrap_openat(int at, const char *name, int flags, ...);
int __wrap_openat(int at, const char *name, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;
    va_end(more);
    CALLED(int, "openat", at, name, __real_openat(at, name, flags, mode));
}

ssize_t __real_write(int file, const void *data, size_t bytes);
ssize_t __wrap_write(int file, const void *data, size_t bytes);
ssize_t __wrap_write(int file, const void *data, size_t bytes) {
    CALLED(ssize_t, "write", file, NULL, __real_write(file, data, bytes));
}

ssize_t __real_pread(int file, void *data, size_t bytes, off_t at);
ssize_t __wrap_pread(int file, void *data, size_t bytes, off_t at);
ssize_t __wrap_pread(int file, void *data, size_t bytes, off_t at) {
    CALLED(ssize_t, "pread", file, NULL, __real_pread(file, data, bytes, at));
}

int __real_fsync(int file);
int __wrap_fsync(int file);
int __wrap_fsync(int file) { CALLED(int, "fsync", file, NULL, __real_fsync(file)); }

int __real_ftruncate(int file, off_t bytes);
int __wrap_ftruncate(int file, off_t bytes);
int __wrap_ftruncate(int file, off_t bytes) {
    CALLED(int, "ftruncate", file, NULL, __real_ftruncate(file, bytes));
}

int __real_flock(int file, int operation);
int __wrap_flock(int file, int operation);
int __wrap_flock(int file, int operation) {
    CALLED(int, "flock", file, NULL, __real_flock(file, operation));
}

int __real_renameat(int from_at, const char *from, int to_at, const char *to);
int __wrap_renameat(int from_at, const char *from, int to_at, const char *to);
int __wrap_renameat(int from_at, const char *from, int to_at, const char *to) {
    CALLED(int, "renameat", from_at, from, __real_renameat(from_at, from, to_at, to));
}

int __real_unlinkat(int at, const char *name, int flags);
int __wrap_unlinkat(int at, const char *name, int flags);
int __wrap_unlinkat(int at, const char *name, int flags) {
    CALLED(int, "unlinkat", at, name, __real_unlinkat(at, name, flags));
}

int __real_mkdirat(int at, const char *name, mode_t mode);
int __wrap_mkdirat(int at, const char *name, mode_t mode);
int __wrap_mkdirat(int at, const char *name, mode_t mode) {
    CALLED(int, "mkdirat", at, name, __real_mkdirat(at, name, mode));
}

static int ask_free(int file, struct statfs *out) {
    const char *bytes = getenv("FILES_FREE");
    int result = (int)__real_syscall(SYS_fstatfs, file, out);
    if (result == 0 && bytes) {
        out->f_blocks = 1 << 20;
        out->f_frsize = out->f_bsize = 1;
        out->f_bavail = strtoull(bytes, NULL, 10);
    }
    return result;
}

int __wrap_fstatfs(int file, struct statfs *out);
int __wrap_fstatfs(int file, struct statfs *out) {
    CALLED(int, "fstatfs", file, NULL, ask_free(file, out));
}

// Of the program's own calls, that is how a directory is listed. Takes six words where fewer were
// given, as the kernel does.
long __wrap_syscall(long number, ...);
__attribute__((no_sanitize("address"))) long __wrap_syscall(long number, ...) {
    long a[6];
    va_list more;
    va_start(more, number);
    for (size_t i = 0; i < LK_COUNT(a); i++) a[i] = va_arg(more, long);
    va_end(more);
    if (number != SYS_getdents64) {
        return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    }
    CALLED(long, "getdents", (int)a[0], NULL, __real_syscall(number, a[0], a[1], a[2]));
}
