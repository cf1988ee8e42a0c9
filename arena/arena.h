// arena.h - one block of memory for everything, sized before the run and sealed. Freestanding.
//
//   OPEN     lk_arena_take() hands out regions, in order, each entered in the ledger
//   SEALED   nothing can be taken: an attempt panics, naming the phase and the size
//   CLOSED   the run is over; the owner of the block may give it back
//
// An arena without a base address measures: the same calls, no memory, and `used` is the answer. So
// the plan that is printed and the memory that is taken come from one piece of code.
#ifndef LOCKSTEP_ARENA_ARENA_H
#define LOCKSTEP_ARENA_ARENA_H

#include "arena/base.h"

enum { LK_ARENA_ENTRIES_MAX = 32, LK_PAGE_BYTES = 4096 };

typedef enum lk_arena_state { LK_ARENA_OPEN, LK_ARENA_SEALED, LK_ARENA_CLOSED } lk_arena_state;

// One region of the ledger. `count` regions of `bytes` each follow one another (one per replica).
typedef struct lk_arena_entry {
    const char *name;  // a literal
    uint64_t offset;
    uint64_t bytes;  // of one, rounded up to the alignment
    uint64_t count;
} lk_arena_entry;

typedef struct lk_arena {
    uint8_t *base;      // NULL: measuring
    uint64_t capacity;  // bytes behind base
    uint64_t used;
    lk_arena_state state;
    const char *phase;  // what the run is doing now, for the message of a refused allocation
    uint32_t entry_count;
    lk_arena_entry entries[LK_ARENA_ENTRIES_MAX];
} lk_arena;

// base NULL and capacity 0 measure. base must be aligned to LK_PAGE_BYTES.
void lk_arena_open(lk_arena *arena, void *base, uint64_t capacity);

// `count` regions of `bytes` each, every one aligned to `align` (a power of two up to
// LK_PAGE_BYTES). Returns the first, or NULL when measuring. Panics when sealed or when the
// capacity is exceeded: the capacity was measured by the same calls.
void *lk_arena_take(lk_arena *arena, const char *name, uint64_t bytes, uint64_t count,
                    uint64_t align);

void lk_arena_seal(lk_arena *arena);
void lk_arena_close(lk_arena *arena);

#endif
