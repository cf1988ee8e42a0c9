// arena.c - the bump allocator behind arena.h. Freestanding.
#include "arena/arena.h"

void lk_arena_open(lk_arena *arena, void *base, uint64_t capacity) {
    *arena = (lk_arena){.base = base, .capacity = capacity, .phase = "start-up"};
    lk_assert((uintptr_t)base % LK_PAGE_BYTES == 0);
}

static void refuse(const lk_arena *arena, const char *name, uint64_t bytes, const char *why) {
    static char what[200];
    lk_format(what, sizeof what, "arena: %llu bytes for %s during %s: %s",
              (unsigned long long)bytes, name, arena->phase, why);
    lk_panic(__FILE__, __LINE__, what);
}

void *lk_arena_take(lk_arena *arena, const char *name, uint64_t bytes, uint64_t count,
                    uint64_t align) {
    lk_assert(align && align <= LK_PAGE_BYTES && (align & (align - 1)) == 0);
    if (arena->state != LK_ARENA_OPEN)
        refuse(arena, name, bytes, "nothing is allocated after the seal");
    if (arena->entry_count == LK_ARENA_ENTRIES_MAX)
        refuse(arena, name, bytes, "the ledger is full");
    uint64_t each = lk_round_up(bytes, align), offset = lk_round_up(arena->used, align), all;
    if (!lk_mul_ok(each, count, &all) || !lk_add_ok(all, offset, &all) || all > INT64_MAX) {
        refuse(arena, name, bytes, "does not fit in 63 bits");
    }
    if (arena->base && all > arena->capacity) refuse(arena, name, bytes, "more than was measured");
    arena->entries[arena->entry_count++] = (lk_arena_entry){name, offset, each, count};
    arena->used = all;
    return arena->base ? arena->base + offset : NULL;
}

void lk_arena_seal(lk_arena *arena) {
    lk_assert(arena->state == LK_ARENA_OPEN);
    arena->state = LK_ARENA_SEALED;
}

void lk_arena_close(lk_arena *arena) { arena->state = LK_ARENA_CLOSED; }
