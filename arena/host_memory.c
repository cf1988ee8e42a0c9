// host_memory.c - Linux behind host_memory.h. Reads /proc and the cgroup with plain reads, no
// stdio.
#define _GNU_SOURCE
#include "arena/host_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "arena/arena.h"

static const uint64_t HUGE_PAGE_BYTES = 2ull << 20;

// Reads a small file of the kernel's whole; an empty string where there is none.
static void read_small(const char *path, char *out, size_t bytes) {
    size_t length = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && length + 1 < bytes) {
        ssize_t n = read(fd, out + length, bytes - 1 - length);
        if (n <= 0) break;
        length += (size_t)n;
    }
    if (fd >= 0) close(fd);
    out[length] = '\0';
}

// The number after `key` at the start of a line, in kB as /proc writes it; false if there is none.
static bool kilobytes_of(const char *text, const char *key, uint64_t *bytes) {
    for (const char *at = strstr(text, key); at; at = strstr(at + 1, key)) {
        if (at != text && at[-1] != '\n') continue;
        *bytes = strtoull(at + strlen(key), NULL, 10) * 1024;
        return true;
    }
    return false;
}

static bool read_number(const char *path, uint64_t *value) {
    char text[64];
    read_small(path, text, sizeof text);
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);  // "max" reads as nothing
    if (end == text || errno != 0) return false;
    *value = v;
    return true;
}

static void least(lk_memory_available *a, uint64_t bytes, const char *limit) {
    if (bytes < a->bytes) *a = (lk_memory_available){bytes, limit};
}

// What the cgroups from this process's own up to the root still allow (version 2, then version 1).
static void cgroup_limits(lk_memory_available *a) {
    char text[1024], path[1200];
    read_small("/proc/self/cgroup", text, sizeof text);
    char *group = strstr(text, "0::/");
    if (group) {
        group += 3;
        group[strcspn(group, "\n")] = '\0';
        for (;;) {
            uint64_t limit, used = 0;
            bool root = strcmp(group, "/") == 0;
            lk_format(path, sizeof path, "/sys/fs/cgroup%s/memory.max", root ? "" : group);
            if (read_number(path, &limit)) {
                lk_format(path, sizeof path, "/sys/fs/cgroup%s/memory.current", root ? "" : group);
                (void)read_number(path, &used);
                least(a, limit > used ? limit - used : 0, "the cgroup's memory.max");
            }
            if (root) break;
            char *slash = strrchr(group, '/');
            slash[slash == group] = '\0';
        }
    }
    uint64_t limit, used = 0;
    if (read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes", &limit)) {
        (void)read_number("/sys/fs/cgroup/memory/memory.usage_in_bytes", &used);
        least(a, limit > used ? limit - used : 0, "the cgroup's memory.limit_in_bytes");
    }
}

lk_memory_available lk_memory_query(void) {
    lk_memory_available a = {UINT64_MAX, "nothing"};
    char text[4096];
    uint64_t bytes, used = 0;
    read_small("/proc/meminfo", text, sizeof text);
    if (kilobytes_of(text, "MemAvailable:", &bytes)) least(&a, bytes, "MemAvailable");
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        read_small("/proc/self/status", text, sizeof text);
        (void)kilobytes_of(text, "VmSize:", &used);
        least(&a, limit.rlim_cur > used ? limit.rlim_cur - used : 0, "RLIMIT_AS (ulimit -v)");
    }
    cgroup_limits(&a);
    return a;
}

lk_status lk_memory_check(uint64_t bytes, uint64_t max_bytes, lk_error *error) {
    lk_memory_available a = lk_memory_query();
    if (max_bytes) least(&a, max_bytes, "--max-memory");
    if (bytes <= a.bytes) return LK_OK;
    return lk_fail(
        error, LK_UNAVAILABLE,
        "not enough memory: the plan needs %llu bytes, %s leaves %llu, %llu are missing; "
        "use fewer replicas, a smaller wave_examples or a smaller model (lockstep plan shows "
        "where the bytes go)",
        (unsigned long long)bytes, a.limit, (unsigned long long)a.bytes,
        (unsigned long long)(bytes - a.bytes));
}

lk_status lk_host_block_map(uint64_t bytes, lk_host_block *block, lk_error *error) {
    bytes = lk_round_up(bytes, LK_PAGE_BYTES);
    *block = (lk_host_block){.bytes = bytes};
    // Start on a huge page: map more, give the ends back. Only then can all of the block be huge.
    uint64_t reach = bytes + HUGE_PAGE_BYTES;
    uint8_t *raw = mmap(NULL, reach, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) {
        return lk_fail(error, LK_UNAVAILABLE, "the arena of %llu bytes cannot be mapped: %s",
                       (unsigned long long)bytes, strerror(errno));
    }
    uint64_t skip = lk_round_up((uintptr_t)raw, HUGE_PAGE_BYTES) - (uintptr_t)raw;
    block->base = raw + skip;
    if (skip) munmap(raw, skip);
    munmap(block->base + bytes, reach - skip - bytes);
    (void)madvise(block->base, bytes, MADV_HUGEPAGE);  // a wish: without it the run is only slower
    block->locked = mlock(block->base, bytes) == 0;
    // Touched in any case: from here on no page can be missing.
    for (uint64_t at = 0; at < bytes; at += LK_PAGE_BYTES)
        ((volatile uint8_t *)block->base)[at] = 0;
    return LK_OK;
}

void lk_host_block_unmap(lk_host_block *block) {
    if (block->base) munmap(block->base, block->bytes);
    block->base = NULL;
}

uint64_t lk_memory_anonymous(void) {
    char text[8192];
    uint64_t anonymous = 0, shared = 0;
    read_small("/proc/self/status", text, sizeof text);
    (void)kilobytes_of(text, "RssAnon:", &anonymous);
    (void)kilobytes_of(text, "RssShmem:", &shared);
    return anonymous + shared;
}
