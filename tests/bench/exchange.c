// exchange.c - linked with the whole program, measures what workers that share memory pay for it:
// every other block of steps, each of them works on copies of its own instead. The program knows
// nothing of it: its calls are wrapped by the linker (CMakeLists.txt).
//
//   mpiexec -n 2 lockstep_exchange train CONFIG --replicas 1 --collective window
//
// The same instructions run on as many bytes in both kinds of step, and workers wait for each other
// in both; but in the second kind nobody else has written, or will read, what one reads and writes:
// parameters and slots, and what replicas of other workers hold. The copies are made again for
// every such block, so that they hold numbers of the same kind. What a step of the first kind takes
// longer is the exchange: there (rounds, and REDUCE and APPLY, which fetch what others computed),
// and back (computing, which fetches parameters that others updated, and writes again what others
// have read). Blocks are short and compared in pairs, as the speed of a shared machine is another
// one soon.
//
// EXCHANGE_NEAR=1: in place of copies of what other replicas hold, REDUCE reads what its own holds
// a second time, from the nearest cache: "there" is then the most that it can be called.
//
// The run's numbers are worth nothing. Rank 0 prints one line at its end, in microseconds: the
// median over all pairs, and both quartiles. EXCHANGE_BREAK=shared leaves the memory shared: found,
// exit 70.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "apps/run/run.h"

enum {
    BLOCK = 32,  // steps, of which the first WARM fetch what the block before had elsewhere
    WARM = 4,
    PAIRS_MAX = 16384,
    SHARERS_MAX = 64,
};

typedef struct pair {
    double shared[LK_LAPS], own[LK_LAPS];  // seconds of a step
} pair;

static pair pairs[PAIRS_MAX];
static uint64_t pair_count;

// What all share; this worker's copy; what it was when the copy was made.
static uint8_t *device, *device_copy, *device_kept;
static uint8_t *replica[SHARERS_MAX], *replica_copy[SHARERS_MAX];  // of other workers

static _Noreturn void fail(int code, const char *why) {
    (void)fprintf(stderr, "lockstep_exchange: %s\n", why);
    _exit(code);  // other threads are at work
}

static bool is_ours(const lk_group *w, uint32_t sharer) {
    return sharer >= w->first && sharer < w->first + w->replicas;
}

// Of the kind that a window's memory is.
static uint8_t *memory(uint64_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) fail(LK_UNAVAILABLE, "no memory for copies");
    return p;
}

static void take_memory(const lk_run *run) {
    const lk_group *w = &run->group;
    const lk_region_plan *regions = run->program.regions;
    if (!run->layout.shared || w->sharers == w->replicas || w->sharers > SHARERS_MAX) {
        fail(LK_BAD_USAGE, "wanted: 2 to 64 workers that share memory, see tests/bench/exchange.c");
    }
    device = run->core.device;
    device_copy = memory(regions[LK_REGION_DEVICE].bytes);
    device_kept = memory(regions[LK_REGION_DEVICE].bytes);
    for (uint32_t s = 0; s < w->sharers; s++) {
        if (is_ours(w, s)) continue;
        replica[s] = w->sharer[s].replica;
        if (!getenv("EXCHANGE_NEAR")) replica_copy[s] = memory(regions[LK_REGION_REPLICA].bytes);
    }
}

// Others may be computing: of what a replica of theirs holds, the copy may be of two steps.
static uint8_t *replica_of_ones_own(const lk_run *run, uint32_t sharer) {
    const lk_group *w = &run->group;
    if (!replica_copy[sharer]) return w->frames[sharer % w->replicas].replica;
    memcpy(replica_copy[sharer], replica[sharer], run->program.regions[LK_REGION_REPLICA].bytes);
    return replica_copy[sharer];
}

// Between two steps, when all workers are done with the first and none can update in the second.
static void point(lk_run *run, bool own) {
    lk_group *w = &run->group;
    const uint64_t bytes = run->program.regions[LK_REGION_DEVICE].bytes;
    const char *wish = getenv("EXCHANGE_BREAK");
    const bool broken = wish && strcmp(wish, "shared") == 0;
    if (own) {
        memcpy(device_copy, device, bytes);
        memcpy(device_kept, device, bytes);
    } else if (memcmp(device_kept, device, bytes) != 0) {
        fail(LK_INTERNAL, "what is shared was written by a step that shares nothing");
    }
    for (uint32_t s = 0; s < w->sharers; s++) {
        if (is_ours(w, s)) {
            w->sharer[s].device = own && !broken ? device_copy : device;
            continue;
        }
        w->sharer[s].replica = own ? replica_of_ones_own(run, s) : replica[s];
    }
    lk_group_look_ahead(w);
}

lk_step_result __real_lk_run_step(lk_run *run, uint64_t step);
lk_step_result __wrap_lk_run_step(lk_run *run, uint64_t step);
lk_step_result __wrap_lk_run_step(lk_run *run, uint64_t step) {
    const uint64_t block = step / BLOCK, at = step % BLOCK;
    const bool own = block % 2 == 1;
    if (!device) {
        if (step != 0) fail(LK_BAD_USAGE, "wanted a run from its first step, not --resume");
        take_memory(run);
        memcpy(device_kept, device, run->program.regions[LK_REGION_DEVICE].bytes);
    }
    if (at == 0) point(run, own);
    const lk_laps before = run->laps;
    lk_step_result result = __real_lk_run_step(run, step);
    if (at < WARM || block / 2 >= PAIRS_MAX) return result;
    double *laps = own ? pairs[block / 2].own : pairs[block / 2].shared;
    for (uint32_t i = 0; i < LK_LAPS; i++) {
        laps[i] += (run->laps.seconds[i] - before.seconds[i]) / (BLOCK - WARM);
    }
    if (own && at == BLOCK - 1) pair_count = block / 2 + 1;
    return result;
}

// --- what is printed -----------------------------------------------------------------------------

enum { THERE = 1 << LK_LAP_ROUNDS | 1 << LK_LAP_UPDATING, BACK = 1 << LK_LAP_COMPUTING };

static double sum(const double laps[LK_LAPS], uint32_t of) {
    double all = 0;
    for (uint32_t i = 0; i < LK_LAPS; i++) all += of >> i & 1 ? laps[i] : 0;
    return 1e6 * all;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print(const char *name, uint32_t of, double sign) {
    static double values[PAIRS_MAX];
    for (uint64_t i = 0; i < pair_count; i++) {
        values[i] = sum(pairs[i].shared, of) - sign * sum(pairs[i].own, of);
    }
    qsort(values, pair_count, sizeof *values, by_size);
    (void)printf("%s %.1f (%.1f .. %.1f)", name, values[pair_count / 2], values[pair_count / 4],
                 values[pair_count * 3 / 4]);
}

void __real_lk_run_close(lk_run *run);
void __wrap_lk_run_close(lk_run *run);
void __wrap_lk_run_close(lk_run *run) {
    if (run->workers.rank == 0 && pair_count > 0) {
        (void)printf("of %llu pairs of blocks: ", (unsigned long long)pair_count);
        print("a step", (1 << LK_LAPS) - 1, 0);
        print(" us; longer than without exchange: there", THERE, 1);
        print(", back", BACK, 1);
        print(", both", THERE | BACK, 1);
        print(", waiting", 1 << LK_LAP_WAITING, 1);
        (void)printf(" us\n");
    }
    __real_lk_run_close(run);
}
