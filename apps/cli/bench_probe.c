// bench_probe.c - chains of fma on every core at once, and a cache line sent to and fro.
#define _GNU_SOURCE
#include "apps/cli/bench_probe.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "apps/cli/command.h"
#if defined __x86_64__
#include <immintrin.h>
#elif defined __aarch64__
#include <arm_neon.h>
#endif

enum { CORES_MAX = 64, CHAINS = 12, ROUNDS = 400000, TRIPS = 10000, WARM_TRIPS = 1000 };

// --- fma chains ----------------------------------------------------------------------------------
// Twelve chains that do not wait for each other hide the latency of every core that has two units
// of four cycles. They begin apart, or the compiler would see that they are one, and end near 1.

#define EACH(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)
#define BEGIN(i) lanes a##i = SPLAT(0.5f + 0.03125f * i);
#define NEXT(i) a##i = FMA(a##i, decay, rest);
#define JOIN(i) sum = FMA(a##i, rest, sum);
#define CHAIN_BODY()                                         \
    lanes decay = SPLAT(0.9999f), rest = SPLAT(0.0001f), sum = rest; \
    EACH(BEGIN)                                              \
    for (uint32_t r = 0; r < rounds; r++) { EACH(NEXT) }     \
    EACH(JOIN)

#if defined __x86_64__
__attribute__((target("avx512f"))) static float chains_512(uint32_t rounds) {
#define lanes __m512
#define SPLAT(x) _mm512_set1_ps(x)
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
    CHAIN_BODY()
#undef lanes
#undef SPLAT
#undef FMA
    return _mm512_cvtss_f32(sum);
}

__attribute__((target("avx2,fma"))) static float chains_256(uint32_t rounds) {
#define lanes __m256
#define SPLAT(x) _mm256_set1_ps(x)
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
    CHAIN_BODY()
#undef lanes
#undef SPLAT
#undef FMA
    return _mm256_cvtss_f32(sum);
}
#elif defined __aarch64__
static float chains_neon(uint32_t rounds) {
#define lanes float32x4_t
#define SPLAT(x) vdupq_n_f32(x)
#define FMA(a, b, c) vfmaq_f32(c, a, b)
    CHAIN_BODY()
#undef lanes
#undef SPLAT
#undef FMA
    return vgetq_lane_f32(sum, 0);
}
#endif

static float chains_scalar(uint32_t rounds) {
#define lanes float
#define SPLAT(x) (x)
#define FMA(a, b, c) ((a) * (b) + (c))
    CHAIN_BODY()
#undef lanes
#undef SPLAT
#undef FMA
    return sum;
}

typedef struct chain_kind {
    const char *name;
    uint32_t lane_count;
    float (*run)(uint32_t rounds);
} chain_kind;

static chain_kind widest(void) {
#if defined __x86_64__
    if (__builtin_cpu_supports("avx512f")) return (chain_kind){"avx512", 16, chains_512};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return (chain_kind){"avx2", 8, chains_256};
    }
#elif defined __aarch64__
    return (chain_kind){"neon", 4, chains_neon};
#endif
    return (chain_kind){"scalar", 1, chains_scalar};
}

const char *lk_probe_vectors(void) { return widest().name; }

// --- a few threads, each on its own processor ----------------------------------------------------

typedef struct probe {
    chain_kind chains;
    uint32_t cores;
    int cpus[CORES_MAX];
    atomic_uint ready;
    atomic_bool incomplete;  // a thread could not be started: no figures
    double began[CORES_MAX], ended[CORES_MAX];
    float sums[CORES_MAX];   // stored, so that the chains are not left out
    double trip_seconds;
    _Alignas(128) atomic_uint ball;
    char behind[128 - sizeof(atomic_uint)];
} probe;

typedef struct probe_member {
    probe *p;
    uint32_t index;
    pthread_t thread;
} probe_member;

static void pin_to(int cpu) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    (void)sched_setaffinity(0, sizeof one, &one);
}

// Nobody starts before all are there: the peak is that of all cores at once.
static void meet(probe *p) {
    atomic_fetch_add(&p->ready, 1);
    while (atomic_load_explicit(&p->ready, memory_order_acquire) < p->cores) {
    }
}

static void measure_chains(probe *p, uint32_t index) {
    uint32_t rounds = p->chains.lane_count == 1 ? ROUNDS / 4 : ROUNDS;
    p->sums[index] = p->chains.run(rounds / 16);  // the clock of wide vectors settles
    p->began[index] = lk_seconds();
    p->sums[index] += p->chains.run(rounds);
    p->ended[index] = lk_seconds();
}

// Member 0 writes odd numbers and waits for even ones, member 1 the other way round.
static void measure_trips(probe *p, uint32_t index) {
    double start = 0;
    for (uint32_t t = 0; t < WARM_TRIPS + TRIPS; t++) {
        if (t == WARM_TRIPS) start = lk_seconds();
        if (index == 0) atomic_store_explicit(&p->ball, 2 * t + 1, memory_order_release);
        while (atomic_load_explicit(&p->ball, memory_order_acquire) != 2 * t + 1 + (index == 0)) {
        }
        if (index == 1) atomic_store_explicit(&p->ball, 2 * t + 2, memory_order_release);
    }
    if (index == 0) p->trip_seconds = (lk_seconds() - start) / TRIPS;
}

static void *member_main(void *argument) {
    const probe_member *m = argument;
    pin_to(m->p->cpus[m->index]);
    meet(m->p);
    if (atomic_load(&m->p->incomplete)) return NULL;
    measure_chains(m->p, m->index);
    if (m->index < 2 && m->p->cores > 1) measure_trips(m->p, m->index);
    return NULL;
}

static double peak_of(const probe *p) {
    double began = p->began[0], ended = p->ended[0];
    for (uint32_t i = 1; i < p->cores; i++) {
        began = LK_MIN(began, p->began[i]);
        ended = LK_MAX(ended, p->ended[i]);
    }
    double rounds = p->chains.lane_count == 1 ? ROUNDS / 4 : ROUNDS;
    return 2.0 * CHAINS * p->chains.lane_count * rounds * p->cores / (ended - began) * 1e-9;
}

lk_probe lk_probe_machine(uint32_t cores) {
    cpu_set_t allowed;
    probe p = {.chains = widest()};
    probe_member members[CORES_MAX];
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return (lk_probe){0};
    for (int cpu = 0; cpu < CPU_SETSIZE && p.cores < LK_MIN(cores, CORES_MAX); cpu++) {
        if (CPU_ISSET(cpu, &allowed)) p.cpus[p.cores++] = cpu;
    }
    uint32_t started = 1;
    for (; started < p.cores; started++) {
        probe_member *m = &members[started];
        *m = (probe_member){.p = &p, .index = started};
        if (pthread_create(&m->thread, NULL, member_main, m) != 0) break;
    }
    bool whole = started == p.cores;
    if (!whole) {
        atomic_store(&p.incomplete, true);
        atomic_fetch_add(&p.ready, p.cores - started);  // for those who will not come
    }
    members[0] = (probe_member){.p = &p, .index = 0};
    member_main(&members[0]);
    for (uint32_t i = 1; i < started; i++) pthread_join(members[i].thread, NULL);
    (void)sched_setaffinity(0, sizeof allowed, &allowed);
    if (!whole) return (lk_probe){.cores = p.cores};
    return (lk_probe){p.cores, peak_of(&p), p.cores > 1 ? p.trip_seconds * 1e9 : 0.0};
}
