// team.c - threads and barriers behind team.h. Host only (Linux).
#define _GNU_SOURCE
#include "comm/threads/team.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void barrier_make(lk_barrier *b, uint32_t members, uint32_t spins) {
    *b = (lk_barrier){.members = members, .spins = spins};
}

// Sleeps while *word is `value`. Spurious wake-ups are the caller's to check.
static void sleep_while(uint32_t *word, uint32_t value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

// Whoever goes to sleep says so first and then looks at the generation again (in the kernel), and
// whoever changes the generation looks for sleepers afterwards: one of the two sees the other.
static void barrier_wait(lk_barrier *b) {
    uint32_t generation = __atomic_load_n(&b->generation, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&b->arrived, 1, __ATOMIC_ACQ_REL) == b->members) {
        __atomic_store_n(&b->arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&b->generation, generation + 1, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&b->sleepers, __ATOMIC_SEQ_CST) != 0) {
            syscall(SYS_futex, &b->generation, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
        }
        return;
    }
    for (uint32_t i = 0; i < b->spins; i++) {
        if (__atomic_load_n(&b->generation, __ATOMIC_ACQUIRE) != generation) return;
        lk_relax();
    }
    __atomic_add_fetch(&b->sleepers, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&b->generation, __ATOMIC_SEQ_CST) == generation) {
        sleep_while(&b->generation, generation);
    }
    __atomic_sub_fetch(&b->sleepers, 1, __ATOMIC_SEQ_CST);
}

// Modes are looked for by what they do: any processor, no special registers.
lk_status lk_float_mode_check(lk_error *error) {
    volatile float tiny = 0x1p-126f, half = 0.5f;
    float subnormal = tiny * half;
    if (subnormal == 0.0f || subnormal + subnormal != tiny) {
        return lk_fail(
            error, LK_UNAVAILABLE,
            "this thread's processor mode flushes subnormal numbers to zero: a library "
            "built with -ffast-math has switched it on; results would differ, so none are made");
    }
    volatile float one = 1.0f, quarter = 0x1p-25f, more = 0x1.8p-24f;  // of the last place, and 3/4
    if (one + quarter != one || one + more == one || -one - quarter != -one ||
        -one - more == -one) {
        return lk_fail(error, LK_UNAVAILABLE,
                       "this thread does not round to nearest; something has "
                       "changed the rounding mode");
    }
    return LK_OK;
}

static void pin_to(uint32_t index) {
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    uint32_t seen = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed) || seen++ != index) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        (void)sched_setaffinity(0, sizeof one, &one);  // a wish: without it the run is only slower
        return;
    }
}

uint32_t lk_processors(void) {
    cpu_set_t allowed;
    return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? (uint32_t)CPU_COUNT(&allowed) : 1;
}

static void *member_main(void *argument) {
    lk_team_member *m = argument;
    lk_team *team = m->team;
    if (team->pinned) pin_to(team->first_processor + m->index);
    lk_error error = {.status = LK_OK};
    if (lk_float_mode_check(&error) != LK_OK) lk_panic(__FILE__, __LINE__, error.text);
    for (;;) {
        barrier_wait(&team->start);
        if (!team->body) return NULL;
        team->body(team->context, m->index, team);
        barrier_wait(&team->finish);
    }
}

uint64_t lk_team_bytes(uint32_t members) { return members * sizeof(lk_team_member); }

static lk_status start_member(lk_team *team, uint32_t index, uint8_t *stack, lk_error *error) {
    lk_team_member *m = &team->member[index];
    *m = (lk_team_member){.team = team, .index = index};
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    int failed = pthread_attr_setstack(&attributes, stack, LK_TEAM_STACK_BYTES);
    if (!failed) failed = pthread_create(&m->thread, &attributes, member_main, m);
    pthread_attr_destroy(&attributes);
    if (!failed) return LK_OK;
    return lk_fail(error, LK_UNAVAILABLE, "replica %u: its thread cannot be started: %s", index,
                   strerror(failed));
}

// The members that did start wait at the first barrier, on stacks that the caller is about to take
// away: they are let through as by lk_team_stop, with a place taken for each that is missing.
static void abandon(lk_team *team, uint32_t started) {
    uint32_t missing = team->members - 1 - started;
    team->body = NULL;
    __atomic_add_fetch(&team->start.arrived, missing, __ATOMIC_ACQ_REL);
    barrier_wait(&team->start);
    for (uint32_t i = 1; i <= started; i++) pthread_join(team->member[i].thread, NULL);
    team->members = 1;
}

lk_status lk_team_start(lk_team *team, uint32_t members, lk_team_place place, void *memory,
                        uint8_t *stacks, lk_error *error) {
    uint32_t cores = lk_processors();
    uint32_t lanes = LK_MAX(members, place.all);
    uint32_t spins = lanes <= cores ? LK_SPINS_ALONE : LK_SPINS_SHARED;
    *team = (lk_team){.members = members, .member = memory, .first_processor = place.first};
    barrier_make(&team->start, members, spins);
    barrier_make(&team->phase, members, spins);
    barrier_make(&team->finish, members, spins);
    LK_CHECK(lk_float_mode_check(error));
    // Signals are for the main thread: members start with all of them blocked but the fatal ones.
    sigset_t all, old;
    sigfillset(&all);
    const int fatal[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGSYS};
    for (uint32_t i = 0; i < LK_COUNT(fatal); i++) sigdelset(&all, fatal[i]);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    lk_status status = LK_OK;
    team->pinned = place.all > 1 && lanes <= cores;
    uint32_t started = 0;
    while (started + 1 < members && status == LK_OK) {
        uint8_t *stack = stacks + (uint64_t)started * LK_TEAM_STACK_BYTES;
        status = start_member(team, started + 1, stack, error);
        started += status == LK_OK;
    }
    if (status != LK_OK) abandon(team, started);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (status == LK_OK && team->pinned) pin_to(place.first);  // last: new threads inherit the mask
    return status;
}

void lk_team_run(lk_team *team, lk_team_body body, void *context) {
    if (team->members == 1) {
        body(context, 0, team);
        return;
    }
    team->body = body;
    team->context = context;
    barrier_wait(&team->start);
    body(context, 0, team);
    barrier_wait(&team->finish);
}

void lk_team_barrier(lk_team *team) {
    if (team->members > 1) barrier_wait(&team->phase);
}

void lk_team_stop(lk_team *team) {
    if (team->members <= 1) return;
    team->body = NULL;
    barrier_wait(&team->start);
    for (uint32_t i = 1; i < team->members; i++) pthread_join(team->member[i].thread, NULL);
    team->members = 1;
}
