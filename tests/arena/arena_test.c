// arena_test.c - nothing is taken from the arena after the seal, nor more than was measured.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "arena/arena.h"

static _Alignas(LK_PAGE_BYTES) uint8_t memory[2 * LK_PAGE_BYTES];
static jmp_buf panicked;
static char said[256];

static void on_panic(const char *file, int line, const char *what) {
    (void)file;
    (void)line;
    strncpy(said, what, sizeof said - 1);
    longjmp(panicked, 1);
}

static void refused(lk_arena *arena, uint64_t bytes, const char *why) {
    uint64_t used = arena->used;
    uint32_t entries = arena->entry_count;
    said[0] = '\0';
    lk_set_panic_handler(on_panic);
    if (setjmp(panicked) == 0) (void)lk_arena_take(arena, "more", bytes, 1, 64);
    lk_set_panic_handler(NULL);
    if (!strstr(said, why)) fail_msg("found \"%s\", wanted \"%s\"", said, why);
    assert_non_null(strstr(said, " bytes for more during start-up"));
    assert_int_equal(arena->used, used);
    assert_int_equal(arena->entry_count, entries);
}

static void test_sealed(void **state) {
    (void)state;
    static lk_arena arena;
    for (int measures = 0; measures < 2; measures++) {
        lk_arena_open(&arena, measures ? NULL : memory, measures ? 0 : sizeof memory);
        uint8_t *first = lk_arena_take(&arena, "some", 64, 1, 64);
        assert_ptr_equal(first, measures ? NULL : memory);
        lk_arena_seal(&arena);
        refused(&arena, 64, "nothing is allocated after the seal");
        refused(&arena, 0, "nothing is allocated after the seal");
        lk_arena_close(&arena);
        refused(&arena, 64, "nothing is allocated after the seal");
    }
}

static void test_measured(void **state) {
    (void)state;
    static lk_arena arena;
    lk_arena_open(&arena, memory, sizeof memory);
    refused(&arena, sizeof memory + 1, "more than was measured");
    refused(&arena, UINT64_MAX - 128, "does not fit in 63 bits");
    assert_ptr_equal(lk_arena_take(&arena, "all", sizeof memory, 1, 64), memory);
    refused(&arena, 1, "more than was measured");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sealed),
        cmocka_unit_test(test_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
