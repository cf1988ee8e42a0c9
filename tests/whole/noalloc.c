// noalloc.c - linked with the whole program, counts what it asks of the heap and the kernel between
// the seal and the end of the run. Linux with glibc.
//
// Heap: this file defines malloc and its family, so calls from inside the C library count too.
// Kernel: mmap and the like are counted where the program's own objects call them; what the C
// library asks for by itself, --seal shows. The count begins when lk_run_seal is done and ends at
// lk_run_close. The end of the process tells it: exit code 99 where anything was counted, or no
// seal was seen.
//
// NOALLOC_BREAK=malloc|realloc|free|mmap|thread makes such a call in step 500: it must be found.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "apps/run/run.h"
#include "arena/arena.h"

#define COUNTED(X)                                                                                 \
    X(malloc) X(calloc) X(realloc) X(free) X(aligned_alloc) X(mmap) X(mremap) X(munmap) X(sbrk)    \
    X(brk) X(pthread_create)

enum {
#define COUNTED_ENUM(name) COUNT_##name,
    COUNTED(COUNTED_ENUM)
#undef COUNTED_ENUM
    COUNTERS
};

static atomic_ulong counters[COUNTERS];
static atomic_bool sealed, seen, finished;
static void *break_at_seal;  // the end of the heap
static void *volatile kept;  // something to free

static void count(int which) {
    if (atomic_load(&sealed)) atomic_fetch_add(&counters[which], 1);
}

// --- the heap, as the C library and everybody else sees it --------------------------------------

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);
void __libc_free(void *old);

void *malloc(size_t bytes) {
    count(COUNT_malloc);
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes) {
    count(COUNT_calloc);
    return __libc_calloc(n, bytes);
}

void *realloc(void *old, size_t bytes) {
    count(COUNT_realloc);
    return __libc_realloc(old, bytes);
}

void free(void *old) {
    if (old) count(COUNT_free);
    __libc_free(old);
}

void *aligned_alloc(size_t align, size_t bytes) {
    count(COUNT_aligned_alloc);
    return __libc_memalign(align, bytes);
}

void *memalign(size_t align, size_t bytes);
void *memalign(size_t align, size_t bytes) { return aligned_alloc(align, bytes); }

int posix_memalign(void **out, size_t align, size_t bytes) {
    *out = aligned_alloc(align, bytes);
    return *out ? 0 : 12;
}

// --- the kernel, as the program's objects call it -----------------------------------------------

void *__real_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    count(COUNT_mmap);
    return __real_mmap(at, bytes, protection, flags, fd, offset);
}

int __real_munmap(void *at, size_t bytes);
int __wrap_munmap(void *at, size_t bytes);
int __wrap_munmap(void *at, size_t bytes) {
    count(COUNT_munmap);
    return __real_munmap(at, bytes);
}

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*body)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*body)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*body)(void *), void *argument) {
    count(COUNT_pthread_create);
    return __real_pthread_create(thread, attributes, body, argument);
}

// Nobody calls these: should that change, the count is not silent about it.
void *__wrap_mremap(void *at, size_t old_bytes, size_t bytes, int flags, ...);
void *__wrap_mremap(void *at, size_t old_bytes, size_t bytes, int flags, ...) {
    (void)at, (void)old_bytes, (void)bytes, (void)flags;
    count(COUNT_mremap);
    return MAP_FAILED;
}

void *__real_sbrk(intptr_t bytes);
void *__wrap_sbrk(intptr_t bytes);
void *__wrap_sbrk(intptr_t bytes) {
    count(COUNT_sbrk);
    return __real_sbrk(bytes);
}

int __wrap_brk(void *at);
int __wrap_brk(void *at) {
    (void)at;
    count(COUNT_brk);
    return -1;
}

// --- when ---------------------------------------------------------------------------------------

void __real_lk_arena_seal(lk_arena *arena);
void __wrap_lk_arena_seal(lk_arena *arena);
void __wrap_lk_arena_seal(lk_arena *arena) {
    __real_lk_arena_seal(arena);
    atomic_store(&seen, true);
}

// Installing the kernel's filter is the last act of the seal, and builds it on the heap.
lk_status __real_lk_run_seal(lk_run *run, bool enforce, lk_error *error);
lk_status __wrap_lk_run_seal(lk_run *run, bool enforce, lk_error *error);
lk_status __wrap_lk_run_seal(lk_run *run, bool enforce, lk_error *error) {
    lk_status status = __real_lk_run_seal(run, enforce, error);
    kept = malloc(10);
    // Twice: where UCX, below MPI, stands between, its first answer is of before the seal.
    (void)__real_sbrk(0);
    break_at_seal = __real_sbrk(0);
    atomic_store(&sealed, atomic_load(&seen));
    return status;
}

void __real_lk_run_close(lk_run *run);
void __wrap_lk_run_close(lk_run *run);
void __wrap_lk_run_close(lk_run *run) {
    if (atomic_load(&sealed) && __real_sbrk(0) != break_at_seal) count(COUNT_brk);
    atomic_store(&finished, atomic_load(&sealed));
    atomic_store(&sealed, false);
    __real_lk_run_close(run);
}

static void *nothing(void *argument) { return argument; }

static void break_it(const char *how) {
    pthread_t thread;
    if (strcmp(how, "malloc") == 0) kept = malloc(1);
    if (strcmp(how, "realloc") == 0) kept = realloc(kept, 100);
    if (strcmp(how, "mmap") == 0) {
        kept = mmap(NULL, 1, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    if (strcmp(how, "free") == 0) free(kept);
    if (strcmp(how, "thread") == 0 && pthread_create(&thread, NULL, nothing, NULL) == 0) {
        pthread_join(thread, NULL);
    }
}

lk_step_result __real_lk_run_step(lk_run *run, uint64_t step);
lk_step_result __wrap_lk_run_step(lk_run *run, uint64_t step);
lk_step_result __wrap_lk_run_step(lk_run *run, uint64_t step) {
    const char *how = getenv("NOALLOC_BREAK");
    if (step == 500 && how) break_it(how);
    return __real_lk_run_step(run, step);
}

_Noreturn void __real__exit(int status);
_Noreturn void __wrap__exit(int status);
_Noreturn void __wrap__exit(int status) {
    static const char *const names[] = {
#define COUNTED_NAME(name) #name,
        COUNTED(COUNTED_NAME)
#undef COUNTED_NAME
    };
    unsigned long all = 0;
    char line[400] = "noalloc: after the seal:";
    size_t used = strlen(line);
    for (int i = 0; i < COUNTERS; i++) {
        unsigned long n = atomic_load(&counters[i]);
        used += lk_format(line + used, sizeof line - used, " %s %lu", names[i], n);
        all += n;
    }
    used += lk_format(line + used, sizeof line - used, "%s\n", finished ? "" : "; no sealed run");
    ssize_t written = write(STDERR_FILENO, line, used);
    (void)written;
    __real__exit(status == 0 && (all || !finished) ? 99 : status);
}
