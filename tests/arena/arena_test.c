// Tests of arena/arena.h: where regions lie, and each of the refusals, which end the process. And
// of arena/host_memory.h: a block's pages are all there.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "arena/arena.h"
#include "arena/host_memory.h"

static _Alignas(LK_PAGE_BYTES) uint8_t memory[4 * LK_PAGE_BYTES];
static jmp_buf back;
static char why[256];

static void on_panic(const char *file, int line, const char *what) {
    (void)file, (void)line;
    lk_format(why, sizeof why, "%s", what);
    longjmp(back, 1);
}

static void assert_refused(lk_arena *arena, uint64_t bytes, uint64_t count, const char *reason) {
    const uint64_t used = arena->used;
    lk_set_panic_handler(on_panic);
    if (setjmp(back) == 0) {
        (void)lk_arena_take(arena, "tables", bytes, count, 64);
        fail_msg("it was given");
    }
    lk_set_panic_handler(NULL);
    assert_int_equal(arena->used, used);
    if (!strstr(why, reason) || !strstr(why, "for tables")) fail_msg("%s", why);
}

static void test_sealed(void **state) {
    (void)state;
    static lk_arena arena;
    for (int measures = 0; measures < 2; measures++) {
        lk_arena_open(&arena, measures ? NULL : memory, measures ? 0 : sizeof memory);
        uint8_t *first = lk_arena_take(&arena, "some", 64, 1, 64);
        assert_ptr_equal(first, measures ? NULL : memory);
        lk_arena_seal(&arena);
        assert_refused(&arena, 64, 1, "nothing is allocated after the seal");
        assert_refused(&arena, 0, 1, "nothing is allocated after the seal");
        lk_arena_close(&arena);
        assert_refused(&arena, 64, 1, "nothing is allocated after the seal");
    }
}

static void test_measured(void **state) {
    (void)state;
    static lk_arena arena;
    lk_arena_open(&arena, memory, sizeof memory);
    assert_refused(&arena, sizeof memory + 1, 1, "more than was measured");
    assert_refused(&arena, UINT64_MAX - 128, 1, "does not fit in 63 bits");
    assert_ptr_equal(lk_arena_take(&arena, "all", sizeof memory, 1, 64), memory);
    assert_refused(&arena, 1, 1, "more than was measured");
}

static void test_regions_lie_where_they_were_measured(void **state) {
    (void)state;
    lk_arena measure, arena;
    lk_arena_open(&measure, NULL, 0);
    lk_arena_open(&arena, memory, sizeof memory);
    for (lk_arena *a = &measure; a; a = a == &measure ? &arena : NULL) {
        uint8_t *first = lk_arena_take(a, "odd", 3, 1, 1);
        uint8_t *second = lk_arena_take(a, "aligned", 100, 3, 64);
        uint8_t *third = lk_arena_take(a, "page", 1, 1, LK_PAGE_BYTES);
        assert_int_equal(a->used, 2 * LK_PAGE_BYTES);
        assert_int_equal(a->entries[1].offset, 64);
        assert_int_equal(a->entries[1].bytes, 128);
        assert_int_equal(a->entries[2].offset, LK_PAGE_BYTES);
        if (a == &measure) assert_true(!first && !second && !third);
        else assert_true(first == memory && second == memory + 64 && third == memory + 4096);
    }
}

static void test_no_byte_beyond_the_measure(void **state) {
    (void)state;
    lk_arena arena;
    lk_arena_open(&arena, memory, 128);
    assert_non_null(lk_arena_take(&arena, "all of it", 64, 2, 64));
    assert_refused(&arena, 1, 1, "more than was measured");
}

static void test_sizes_that_overflow(void **state) {
    (void)state;
    lk_arena arena;
    lk_arena_open(&arena, NULL, 0);
    assert_refused(&arena, 1ull << 32, 1ull << 32, "63 bits");
    assert_refused(&arena, 1ull << 62, 2, "63 bits");
    assert_refused(&arena, (1ull << 63) + 64, 2, "63 bits");
}

static void test_the_ledger_has_an_end(void **state) {
    (void)state;
    lk_arena arena;
    lk_arena_open(&arena, NULL, 0);
    for (uint32_t i = 0; i < LK_ARENA_ENTRIES_MAX; i++) lk_arena_take(&arena, "one", 64, 1, 64);
    assert_refused(&arena, 64, 1, "the ledger is full");
}

int __wrap_mlock(const void *at, size_t bytes);
int __wrap_mlock(const void *at, size_t bytes) {
    (void)at, (void)bytes;
    return -1;  // RLIMIT_MEMLOCK, where it is small
}

// Locked or not: no page of the block is missing from here on.
static void test_a_block_that_cannot_be_locked_is_there(void **state) {
    (void)state;
    enum { BYTES = 32 << 20 };
    lk_host_block block;
    lk_error error = {.status = LK_OK};
    const uint64_t before = lk_memory_anonymous();
    if (before == 0) skip();  // no /proc
    assert_int_equal(lk_host_block_map(BYTES, &block, &error), LK_OK);
    assert_false(block.locked);
    assert_true(lk_memory_anonymous() >= before + BYTES);
    lk_host_block_unmap(&block);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sealed),
        cmocka_unit_test(test_measured),
        cmocka_unit_test(test_regions_lie_where_they_were_measured),
        cmocka_unit_test(test_no_byte_beyond_the_measure),
        cmocka_unit_test(test_sizes_that_overflow),
        cmocka_unit_test(test_the_ledger_has_an_end),
        cmocka_unit_test(test_a_block_that_cannot_be_locked_is_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
