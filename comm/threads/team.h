// team.h - replicas as threads of one process: started once, then only barriers. Host only.
//
//   lk_team_start();  lk_team_run(body) again and again;  lk_team_stop();
//
// The calling thread is member 0. Nothing is allocated here: stacks come from the arena.
#ifndef LOCKSTEP_COMM_THREADS_TEAM_H
#define LOCKSTEP_COMM_THREADS_TEAM_H

#include <pthread.h>

#include "arena/base.h"

// The thread sanitizer keeps its own thread-local data on the stack and needs room for it.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define LK_THREAD_SANITIZER 1
#endif
#elif defined(__SANITIZE_THREAD__)
#define LK_THREAD_SANITIZER 1
#endif
#ifdef LK_THREAD_SANITIZER
enum { LK_TEAM_STACK_BYTES = 4 * 1024 * 1024 };
#else
enum { LK_TEAM_STACK_BYTES = 512 * 1024 };
#endif

// How often a waiting thread looks before it goes to sleep, if it has a processor of its own or
// shares one: long enough for another's part of a step, short enough not to burn a processor.
enum { LK_SPINS_ALONE = 20000, LK_SPINS_SHARED = 50 };

// Between two looks.
static inline void lk_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

typedef struct lk_team lk_team;
typedef void (*lk_team_body)(void *context, uint32_t member, lk_team *team);

// A barrier that spins for a while, then sleeps in the kernel: fast when every member has a core of
// its own, harmless when they share one.
typedef struct lk_barrier {
    __attribute__((aligned(128))) uint32_t arrived;
    __attribute__((aligned(128))) uint32_t generation;
    __attribute__((aligned(128))) uint32_t sleepers;
    uint32_t members, spins;
} lk_barrier;

typedef struct lk_team_member {
    lk_team *team;
    uint32_t index;
    pthread_t thread;
} lk_team_member;

struct lk_team {
    lk_barrier start, phase, finish;  // of a run; between the phases of a body
    uint32_t members;
    bool pinned;
    uint32_t first_processor;
    lk_team_body body;  // NULL ends the threads
    void *context;
    lk_team_member *member;  // (members)
};

uint64_t lk_team_bytes(uint32_t members);  // of `memory`

// Where members run: member i on processor `first` + i of those this process may use, where they
// are enough for `all` members, other processes' on this host among them. all 0: anywhere.
typedef struct lk_team_place {
    uint32_t first, all;
} lk_team_place;

// Starts members 1 .. members-1 on stacks of LK_TEAM_STACK_BYTES each (aligned to a page).
// LK_UNAVAILABLE where a thread cannot be started or the processor flushes subnormals to zero.
lk_status lk_team_start(lk_team *team, uint32_t members, lk_team_place place, void *memory,
                        uint8_t *stacks, lk_error *error);

// Runs body(context, i, team) on every member and returns when all have.
void lk_team_run(lk_team *team, lk_team_body body, void *context);

// Called by every member inside a body: none goes on before all have come.
void lk_team_barrier(lk_team *team);

void lk_team_stop(lk_team *team);

// LK_UNAVAILABLE if this thread's floating-point unit flushes subnormals or does not round to
// nearest: some library switched it, and every result would differ.
lk_status lk_float_mode_check(lk_error *error);

// Processors that this process may use.
uint32_t lk_processors(void);

#endif
