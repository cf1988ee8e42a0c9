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

// The number after `key` at the start of a line; false if there is none.
static bool number_of(const char *text, const char *key, uint64_t *value) {
    for (const char *at = strstr(text, key); at; at = strstr(at + 1, key)) {
        if (at != text && at[-1] != '\n') continue;
        *value = strtoull(at + strlen(key), NULL, 10);
        return true;
    }
    return false;
}

// The same, in kB as /proc writes it.
static bool kilobytes_of(const char *text, const char *key, uint64_t *bytes) {
    if (!number_of(text, key, bytes)) return false;
    *bytes *= 1024;
    return true;
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

// The two versions of cgroups: where their groups lie and what their files are called.
static const struct hierarchy {
    const char *line;  // of /proc/self/cgroup, up to the path of the group
    const char *mount, *limit, *used, *inactive, *active, *name;
} hierarchies[] = {
    {"0::", "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file ", "active_file ",
     "the cgroup's memory.max"},
    {":memory:", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     "total_inactive_file ", "total_active_file ", "the cgroup's memory.limit_in_bytes"},
};

// What one group still allows. Cached pages of files count as used there, but make room.
static void group_limit(lk_memory_available *a, const struct hierarchy *h, const char *group) {
    char path[4400], text[8192];
    uint64_t limit, used = 0, inactive = 0, active = 0;
    lk_format(path, sizeof path, "%s%s/%s", h->mount, group, h->limit);
    if (!read_number(path, &limit)) return;
    lk_format(path, sizeof path, "%s%s/%s", h->mount, group, h->used);
    (void)read_number(path, &used);
    lk_format(path, sizeof path, "%s%s/memory.stat", h->mount, group);
    read_small(path, text, sizeof text);
    (void)number_of(text, h->inactive, &inactive);
    (void)number_of(text, h->active, &active);
    used -= LK_MIN(used, inactive + active);
    least(a, limit > used ? limit - used : 0, h->name);
}

// From this process's own group up to the root. In a container the path may be the host's, where
// nothing lies here: then the root is the container's.
static void cgroup_limits(lk_memory_available *a, const struct hierarchy *h) {
    char text[4096];
    read_small("/proc/self/cgroup", text, sizeof text);
    char *group = strstr(text, h->line);
    if (!group) return;
    group += strlen(h->line);
    group[strcspn(group, "\n")] = '\0';
    for (char *slash; (slash = strrchr(group, '/')); *slash = '\0') {
        if (slash[1] != '\0') group_limit(a, h, group);
    }
    group_limit(a, h, "");
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
    for (size_t i = 0; i < LK_COUNT(hierarchies); i++) cgroup_limits(&a, &hierarchies[i]);
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
