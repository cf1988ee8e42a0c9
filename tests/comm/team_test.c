// Tests of comm/threads/team.h: barriers that lose nobody, with and without a processor for each
// member.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "comm/threads/team.h"

enum { MEMBERS_MAX = 9, ROUNDS = 300 };

typedef struct shared {
    uint32_t members;
    uint32_t value[MEMBERS_MAX];  // plain memory: only the barriers order it
    uint32_t wrong[MEMBERS_MAX];
} shared;

// Writes its own cell, and after the barrier expects to see everybody's.
static void body(void *context, uint32_t member, lk_team *team) {
    shared *s = context;
    for (uint32_t round = 1; round <= 4; round++) {
        s->value[member] += 1;
        lk_team_barrier(team);
        for (uint32_t i = 0; i < s->members; i++) {
            s->wrong[member] += s->value[i] != s->value[member];
        }
        lk_team_barrier(team);
    }
}

static void test_barriers_order_plain_memory(void **state) {
    (void)state;
    for (uint32_t members = 1; members <= MEMBERS_MAX; members += 2) {
        lk_error error = {.status = LK_OK};
        lk_team team;
        void *memory = malloc(lk_team_bytes(members));
        uint8_t *stacks = aligned_alloc(4096, (size_t)members * LK_TEAM_STACK_BYTES);
        shared s = {.members = members};
        const lk_team_place place = {0, members};
        assert_int_equal(lk_team_start(&team, members, place, memory, stacks, &error), LK_OK);
        for (uint32_t i = 0; i < ROUNDS; i++) lk_team_run(&team, body, &s);
        lk_team_stop(&team);
        for (uint32_t i = 0; i < members; i++) {
            assert_int_equal(s.value[i], 4 * ROUNDS);
            assert_int_equal(s.wrong[i], 0);
        }
        free(memory);
        free(stacks);
    }
}

// The first member wakes the other, which sleeps at a barrier that not all have reached.
static void disturb(void *context, uint32_t member, lk_team *team) {
    bool *passed = context;
    const struct timespec moment = {.tv_nsec = 1000000};
    if (member == 0) {
        while (__atomic_load_n(&team->phase.sleepers, __ATOMIC_SEQ_CST) == 0) {
            (void)nanosleep(&moment, NULL);
        }
        for (int i = 0; i < 20; i++) {
            syscall(SYS_futex, &team->phase.generation, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
            (void)nanosleep(&moment, NULL);
        }
        assert_false(__atomic_load_n(passed, __ATOMIC_SEQ_CST));
    }
    lk_team_barrier(team);
    if (member == 1) __atomic_store_n(passed, true, __ATOMIC_SEQ_CST);
}

static void test_a_wake_up_for_nothing(void **state) {
    (void)state;
    lk_error error = {.status = LK_OK};
    lk_team team;
    bool passed = false;
    void *memory = malloc(lk_team_bytes(2));
    uint8_t *stacks = aligned_alloc(4096, LK_TEAM_STACK_BYTES);
    assert_int_equal(lk_team_start(&team, 2, (lk_team_place){0, 2}, memory, stacks, &error), LK_OK);
    lk_team_run(&team, disturb, &passed);
    lk_team_stop(&team);
    assert_true(passed);
    free(memory);
    free(stacks);
}

static void test_float_mode(void **state) {
    (void)state;
    lk_error error = {.status = LK_OK};
    assert_int_equal(lk_float_mode_check(&error), LK_OK);
#if defined(__x86_64__)
    unsigned mode = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(mode | 0x8000);  // flush to zero
    lk_status flushed = lk_float_mode_check(&error);
    __builtin_ia32_ldmxcsr(mode | 0x2000);  // round down
    error.status = LK_OK;
    lk_status rounded = lk_float_mode_check(&error);
    __builtin_ia32_ldmxcsr(mode);
    assert_int_equal(flushed, LK_UNAVAILABLE);
    assert_int_equal(rounded, LK_UNAVAILABLE);
#endif
}

// A thread that the system does not give: those before it end, and nobody touches the stacks that
// the caller then takes away.
static uint32_t threads_left = UINT32_MAX;

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*routine)(void *), void *argument);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*routine)(void *), void *argument);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*routine)(void *), void *argument) {
    if (threads_left == 0) return EAGAIN;
    threads_left--;
    return __real_pthread_create(thread, attributes, routine, argument);
}

static void test_a_missing_thread_leaves_none(void **state) {
    (void)state;
    for (uint32_t given = 0; given + 1 < MEMBERS_MAX; given++) {
        lk_error error = {.status = LK_OK};
        lk_team team;
        void *memory = malloc(lk_team_bytes(MEMBERS_MAX));
        const size_t bytes = (size_t)MEMBERS_MAX * LK_TEAM_STACK_BYTES;
        uint8_t *stacks =
            mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        const lk_team_place place = {0, 1};
        threads_left = given;
        assert_int_equal(lk_team_start(&team, MEMBERS_MAX, place, memory, stacks, &error),
                         LK_UNAVAILABLE);
        threads_left = UINT32_MAX;
        assert_int_equal(munmap(stacks, bytes), 0);
        free(memory);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_barriers_order_plain_memory),
        cmocka_unit_test(test_a_wake_up_for_nothing),
        cmocka_unit_test(test_a_missing_thread_leaves_none),
        cmocka_unit_test(test_float_mode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
