// tasks_test.c - launches kept as tasks: their levels against what they touch, the table, and when
// there is none.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ops/cuda/tasks.h"
#include "ops/op.h"

enum { TILES_X = 3, TILES_Y = 2 };

static lk_cuda_tasks tasks;
static uint64_t draws;

static uint32_t draw(uint32_t below) {
    draws = draws * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((draws >> 33) % below);
}

// Float number `at` of a memory that nobody touches.
static const float *place(uint32_t at) {
    return (const float *)((uintptr_t)4096 + at * sizeof(float));
}

// A task of `tiles_x` by two tiles, whose arguments are its number.
static void keep(const lk_cuda_spans *spans, uint32_t tiles_x) {
    uint8_t arguments[64];
    const uint64_t bytes = lk_cuda_body_bytes(LK_CUDA_BODY_RELU);
    const lk_cuda_launched launched = {.op = 5, .blocks = {tiles_x, TILES_Y, 1}, .threads = 256};
    assert_in_range(bytes, 1, sizeof arguments);
    memset(arguments, (int)tasks.count + 1, sizeof arguments);
    lk_cuda_tasks_keep(&tasks, LK_CUDA_BODY_RELU, &launched, spans, arguments, bytes);
}

static lk_cuda_spans span(uint32_t at, uint32_t floats, bool writes) {
    lk_cuda_spans s = {.count = 0};
    lk_cuda_touches(&s, place(at), floats, writes);
    return s;
}

static uint32_t level_of(lk_cuda_spans spans) {
    keep(&spans, TILES_X);
    assert_null(tasks.refused);
    return tasks.kept[tasks.count - 1].level;
}

// --- levels --------------------------------------------------------------------------------------

static void test_known_levels(void **state) {
    (void)state;
    lk_cuda_tasks_open(&tasks);
    assert_int_equal(level_of(span(0, 10, true)), 0);
    assert_int_equal(level_of(span(10, 10, true)), 0);           // beside it
    assert_int_equal(level_of(span(9, 1, false)), 1);            // reads its last float
    assert_int_equal(level_of(span(0, 20, false)), 1);           // readers may share
    assert_int_equal(level_of(span(30, 5, false)), 0);           // what nobody writes
    assert_int_equal(level_of(span(19, 4, true)), 2);            // writes what is read
    assert_int_equal(level_of(span(22, 1, true)), 3);            // writes what is written
    assert_int_equal(level_of((lk_cuda_spans){.count = 0}), 4);  // of which nothing is said
    assert_int_equal(level_of(span(100, 1, false)), 5);          // nothing goes past it
    assert_int_equal(tasks.levels, 6);
}

static bool conflict(const lk_cuda_spans *a, const lk_cuda_spans *b) {
    for (uint32_t i = 0; i < a->count; i++) {
        for (uint32_t k = 0; k < b->count; k++) {
            const uintptr_t x = (uintptr_t)a->span[i].from, y = (uintptr_t)b->span[k].from;
            const bool apart = x + a->span[i].bytes <= y || y + b->span[k].bytes <= x;
            if (!apart && (a->span[i].writes || b->span[k].writes)) return true;
        }
    }
    return false;
}

// Above all earlier tasks that it conflicts with, and no higher than these ask for.
static void test_random_levels(void **state) {
    (void)state;
    for (uint32_t run = 0; run < 50; run++) {
        lk_cuda_tasks_open(&tasks);
        for (uint32_t n = 1 + draw(60); n > 0; n--) {
            lk_cuda_spans spans = {.count = 0};
            for (uint32_t k = 1 + draw(LK_CUDA_TASK_SPANS_MAX); k > 0; k--) {
                lk_cuda_touches(&spans, place(draw(400)), 1 + draw(8), draw(3) == 0);
            }
            keep(&spans, TILES_X);
        }
        for (uint32_t i = 0; i < tasks.count; i++) {
            uint32_t wanted = 0;
            for (uint32_t k = 0; k < i; k++) {
                if (!conflict(&tasks.kept[k].spans, &tasks.kept[i].spans)) continue;
                wanted = LK_MAX(wanted, tasks.kept[k].level + 1);
            }
            assert_int_equal(tasks.kept[i].level, wanted);
        }
    }
}

// --- the table -----------------------------------------------------------------------------------

// Every task stands in its level once, its tiles behind those before it, its arguments aligned.
static void check_table(const uint8_t *table) {
    const lk_cuda_table *head = (const void *)table;
    const lk_cuda_level *levels = (const void *)(table + head->level);
    const lk_cuda_task *at = (const void *)(table + head->task);
    bool seen[LK_CUDA_TASKS_MAX] = {false};
    uint32_t number = 0;
    assert_int_equal(head->levels, tasks.levels);
    for (uint32_t l = 0; l < head->levels; l++) {
        assert_int_equal(levels[l].task, number);
        for (uint32_t tile = 0; tile < levels[l].tiles; number++, at++) {
            const uint32_t which = table[at->arguments] - 1u;
            const lk_cuda_kept *kept = &tasks.kept[which];
            assert_false(seen[which]);
            seen[which] = true;
            assert_int_equal(kept->level, l);
            assert_int_equal(at->body, kept->body);
            assert_int_equal(at->tile, tile);
            assert_int_equal(at->in_x, kept->launched.blocks[0]);
            assert_int_equal(at->tiles, at->in_x * TILES_Y);
            assert_int_equal(at->arguments % LK_CUDA_TASK_ALIGN_BYTES, 0);
            tile += at->tiles;
        }
    }
    assert_int_equal(number, tasks.count);
}

static void test_table(void **state) {
    (void)state;
    for (uint32_t run = 0; run < 20; run++) {
        lk_cuda_tasks_open(&tasks);
        for (uint32_t n = 1 + draw(100); n > 0; n--) {
            const lk_cuda_spans spans = span(draw(40), 1 + draw(8), draw(2));
            keep(&spans, 1 + draw(5));
        }
        const uint64_t bytes = lk_cuda_tasks_bytes(&tasks);
        uint8_t *table = malloc(bytes + 1);
        table[bytes] = 0xa5;
        lk_cuda_tasks_write(&tasks, table);
        check_table(table);
        assert_int_equal(table[bytes], 0xa5);
        free(table);
    }
}

// --- no table ------------------------------------------------------------------------------------

static void test_refused(void **state) {
    (void)state;
    const lk_cuda_launched launched = {.op = 7, .blocks = {1, 1, 1}};
    const lk_cuda_spans one = span(0, 1, false);
    lk_cuda_tasks_open(&tasks);
    keep(&one, TILES_X);
    lk_cuda_tasks_keep(&tasks, LK_CUDA_BODY_NONE, &launched, &one, NULL, 0);
    assert_non_null(tasks.refused);
    assert_int_equal(tasks.refused_op, 7);
    keep(&one, TILES_X);  // nothing follows
    assert_int_equal(tasks.count, 1);

    lk_cuda_tasks_open(&tasks);
    for (uint32_t i = 0; i < LK_CUDA_TASKS_MAX; i++) keep(&one, TILES_X);
    assert_null(tasks.refused);
    assert_in_range(lk_cuda_tasks_bytes(&tasks), 1, LK_CUDA_TABLE_BYTES_MAX);
    keep(&one, TILES_X);
    assert_non_null(tasks.refused);
    assert_int_equal(tasks.refused_op, LK_NONE);

    static uint8_t arguments[LK_CUDA_ARGUMENTS_BYTES_MAX];
    const uint64_t bytes = lk_cuda_body_bytes(LK_CUDA_BODY_CONV_POOL_INPUT);
    const uint64_t room = lk_round_up(bytes, LK_CUDA_TASK_ALIGN_BYTES);
    lk_cuda_tasks_open(&tasks);
    for (uint64_t i = 0; i < LK_CUDA_ARGUMENTS_BYTES_MAX / room; i++) {
        lk_cuda_tasks_keep(&tasks, LK_CUDA_BODY_CONV_POOL_INPUT, &launched, &one, arguments, bytes);
    }
    assert_null(tasks.refused);
    assert_in_range(lk_cuda_tasks_bytes(&tasks), 1, LK_CUDA_TABLE_BYTES_MAX);
    lk_cuda_tasks_keep(&tasks, LK_CUDA_BODY_CONV_POOL_INPUT, &launched, &one, arguments, bytes);
    assert_non_null(tasks.refused);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_levels),
        cmocka_unit_test(test_random_levels),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
