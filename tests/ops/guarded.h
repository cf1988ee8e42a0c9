// guarded.h - memory for the tests of kernels that ends where a kernel may no longer read: the page
// after it is not there, so that one more row of an operand ends the test on any processor, without
// a sanitizer. POSIX.
#ifndef LOCKSTEP_TESTS_OPS_GUARDED_H
#define LOCKSTEP_TESTS_OPS_GUARDED_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { GUARDED_BLOCKS_MAX = 512 };

static struct {
    uint8_t *begin, *map;
    size_t map_bytes;
} guarded_blocks[GUARDED_BLOCKS_MAX];

// `bytes` rounded up to 64, aligned to 64, full of `fill`. A kernel may read up to there.
static inline void *guarded_take(uint64_t bytes, int fill) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), size = ((size_t)bytes + 63) / 64 * 64;
    const size_t pages = (size + page - 1) / page * page;
    unsigned i = 0;
    while (i < GUARDED_BLOCKS_MAX && guarded_blocks[i].begin) i++;
    void *map =
        mmap(NULL, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (i == GUARDED_BLOCKS_MAX || map == MAP_FAILED ||
        mprotect((uint8_t *)map + pages, page, PROT_NONE) != 0) {
        fprintf(stderr, "guarded_take: no block of %zu bytes\n", size);
        exit(1);
    }
    guarded_blocks[i].map = map;
    guarded_blocks[i].map_bytes = pages + page;
    guarded_blocks[i].begin = guarded_blocks[i].map + pages - size;
    return memset(guarded_blocks[i].begin, fill, size);
}

static inline void guarded_give(const void *block) {
    if (!block) return;
    for (unsigned i = 0; i < GUARDED_BLOCKS_MAX; i++) {
        if (guarded_blocks[i].begin != block) continue;
        munmap(guarded_blocks[i].map, guarded_blocks[i].map_bytes);
        guarded_blocks[i].begin = NULL;
        return;
    }
    fprintf(stderr, "guarded_give: no such block\n");
    exit(1);
}

#endif
