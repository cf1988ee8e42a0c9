// window.c - between the workers of a host: memory that they share, and a word in it that
// counts. MPI gives the memory; nothing here calls it afterwards, nor asks who is still alive.
//
// A worker's part of the window:  | control: round word, two reports | what it shares or gives |
// The round word counts all that its worker has given, and beside it stands how much of which
// round; the others wait for that, first spinning, then asleep in the kernel.
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "arena/arena.h"
#include "comm/threads/clock.h"
#include "comm/mpi/private.h"

enum { SLEEP_MS = 10 };

typedef struct control {
    _Alignas(64) uint32_t given[LK_MPI_ROUNDS];  // buckets, since the start
    double given_at[LK_MPI_ROUNDS];              // when the last was, by the clock of this host
    _Alignas(64) uint32_t round;
    _Alignas(64) uint32_t sleepers;
    uint32_t gave_up_for;  // 1 + the rank for whose death its worker has ended; 0: none
    _Alignas(64) lk_report reports[2];
} control;

_Static_assert(sizeof(control) <= LK_PAGE_BYTES, "the control part is one page");

static control *controls[LK_MPI_WORLD_MAX];  // NULL where messages are used
static uint32_t rounds, given[LK_MPI_ROUNDS];  // as this worker's own control part says

bool lk_mpi_in_window(uint32_t w) { return !lk_mpi.options.messages && lk_mpi_is_here(w); }

static control *control_at(void *base) {
    return (control *)(void *)(uintptr_t)lk_round_up((uintptr_t)base, LK_PAGE_BYTES);
}

// Each part on pages of its own is what "alloc_shared_noncontig" is for.
lk_status lk_mpi_window(uint64_t payload, uint8_t **mine, lk_error *error) {
    uint64_t bytes = lk_mpi_window_bytes(payload);
    MPI_Win window;
    MPI_Info info;
    void *base;
    lk_mpi_wait_for("the window between the workers of a host");
    LK_MPI_CALL(MPI_Info_create, &info);
    LK_MPI_CALL(MPI_Info_set, info, "alloc_shared_noncontig", "true");
    int failed =
        LK_MPI_CALL(MPI_Win_allocate_shared, (MPI_Aint)bytes, 1, info, lk_mpi.host, &base, &window);
    LK_MPI_CALL(MPI_Info_free, &info);
    if (failed) {
        lk_mpi_blame_dead();
        return lk_fail(error, LK_UNAVAILABLE,
                       "MPI gives no window of %llu bytes between the workers of a host; is there "
                       "room in /dev/shm?",
                       (unsigned long long)bytes);
    }
    memset(base, 0, bytes);
    (void)mlock(base, bytes);  // a wish, as for the arena
    controls[lk_mpi.rank] = control_at(base);
    *mine = lk_mpi_window_of(lk_mpi.rank);
    for (uint32_t w = 0, member = 0; w < lk_mpi.world; w++) {
        if (!lk_mpi_is_here(w)) continue;
        MPI_Aint size;
        int unit;
        LK_MPI_CALL(MPI_Win_shared_query, window, (int)member++, &size, &unit, &base);
        if (w == lk_mpi.rank || !lk_mpi_in_window(w)) continue;
        controls[w] = control_at(base);
        // Every page is in this process's tables before the first step.
        for (MPI_Aint at = 0; at < size; at += LK_PAGE_BYTES) (void)((volatile uint8_t *)base)[at];
    }
    return LK_OK;
}

uint8_t *lk_mpi_window_of(uint32_t rank) {
    return controls[rank] ? (uint8_t *)controls[rank] + LK_PAGE_BYTES : NULL;
}

lk_report *lk_mpi_report_here(uint32_t w, uint32_t parity) {
    return controls[w] ? &controls[w]->reports[parity] : NULL;
}

void lk_mpi_arrive(lk_round round) {
    control *own = controls[lk_mpi.rank];
    own->given_at[round] = lk_seconds();
    __atomic_store_n(&own->given[round], ++given[round], __ATOMIC_SEQ_CST);
    __atomic_store_n(&own->round, ++rounds, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&own->sleepers, __ATOMIC_SEQ_CST) == 0) return;
    syscall(SYS_futex, &own->round, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

uint32_t lk_mpi_given(lk_round round) { return given[round]; }

bool lk_mpi_has_come(uint32_t w, const lk_mpi_gift *g) {
    const control *c = controls[w];
    return !c || (int32_t)(__atomic_load_n(&c->given[g->round], __ATOMIC_ACQUIRE) - g->wanted) >= 0;
}

void lk_mpi_sleep_on(uint32_t w, const lk_mpi_gift *g) {
    control *c = controls[w];
    const struct timespec while_ = {.tv_nsec = SLEEP_MS * 1000000};
    __atomic_add_fetch(&c->sleepers, 1, __ATOMIC_SEQ_CST);
    uint32_t round = __atomic_load_n(&c->round, __ATOMIC_SEQ_CST);
    if (!lk_mpi_has_come(w, g)) syscall(SYS_futex, &c->round, FUTEX_WAIT, round, &while_, NULL, 0);
    __atomic_sub_fetch(&c->sleepers, 1, __ATOMIC_SEQ_CST);
}

void lk_mpi_say_lost(uint32_t w) {
    control *own = controls[lk_mpi.rank];
    if (own) __atomic_store_n(&own->gave_up_for, 1 + w, __ATOMIC_RELEASE);
}

uint32_t lk_mpi_said_lost(uint32_t w) {
    const control *c = controls[w];
    const uint32_t said = c ? __atomic_load_n(&c->gave_up_for, __ATOMIC_ACQUIRE) : 0;
    return said ? said - 1 : LK_NONE;
}

double lk_mpi_last_given(lk_round round) {
    double last = 0;
    for (uint32_t w = 0; w < lk_mpi.world; w++) {
        if (controls[w]) last = LK_MAX(last, controls[w]->given_at[round]);
    }
    return last;
}
