// host_memory.h - the arena's block on Linux: is there room, map it, touch it, lock it. Host only.
#ifndef LOCKSTEP_ARENA_HOST_MEMORY_H
#define LOCKSTEP_ARENA_HOST_MEMORY_H

#include "arena/base.h"

typedef struct lk_memory_available {
    uint64_t bytes;     // the least of the limits below
    const char *limit;  // which one that is: a literal
} lk_memory_available;

// The least of MemAvailable, what this cgroup and those above it may still take (version 1 or 2,
// cached pages of files left out), and RLIMIT_AS. UINT64_MAX where none is known.
lk_memory_available lk_memory_query(void);

// LK_UNAVAILABLE, with requested, available, missing and what to change, if `bytes` is more than is
// available or more than `max_bytes` (0: no such limit).
lk_status lk_memory_check(uint64_t bytes, uint64_t max_bytes, lk_error *error);

typedef struct lk_host_block {
    uint8_t *base;  // page-aligned
    uint64_t bytes;
    bool locked;  // in physical memory: the RLIMIT_MEMLOCK allowed it
} lk_host_block;

// Maps, touches every page of and tries to lock a block of private anonymous memory, in huge pages
// where the kernel gives them.
lk_status lk_host_block_map(uint64_t bytes, lk_host_block *block, lk_error *error);
void lk_host_block_unmap(lk_host_block *block);

// Private and shared anonymous memory of this process as the kernel counts it
// (/proc/self/status, RssAnon and RssShmem). 0 where /proc is not there.
uint64_t lk_memory_anonymous(void);

#endif
