// philox.h - Philox4x32-10, the counter-based random number generator. Freestanding.
//
// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
// A number is a pure function of (seed, purpose, counter): never of a rank, a thread or the time.
#ifndef LOCKSTEP_ARENA_PHILOX_H
#define LOCKSTEP_ARENA_PHILOX_H

#include "arena/base.h"

#ifdef __CUDACC__
#define LK_PHILOX static inline __host__ __device__
#else
#define LK_PHILOX static inline
#endif

// What a stream of random numbers is for: the second half of the key. Values are part of the
// arithmetic and are never reused or renumbered.
typedef enum lk_purpose {
    LK_PURPOSE_INITIALIZER = 1,  // counter: (element / 4, parameter index)
    LK_PURPOSE_SHUFFLE = 2,      // counter: see arena/permutation.h
    LK_PURPOSE_MADE_UP_DATA = 3, // counter: see io/made_up.h
    LK_PURPOSE_DROPOUT = 4,      // counter: lk_philox_step
    LK_PURPOSE_NOISE = 5,        // counter: lk_philox_step; ops/noise.h
    LK_PURPOSE_FIXED_NOISE = 6,  // the same where nothing is trained, step 0
    LK_PURPOSE_AUGMENT = 7,      // counter: lk_philox_step; ops/augment.h
    LK_PURPOSE_STRIPS = 8,       // counter: see apps/run/strips.h
} lk_purpose;

typedef struct lk_philox_block {
    uint32_t word[4];
} lk_philox_block;

// key = (low half of seed, high half of seed ^ purpose); counter = (c0, c1, c2, c3).
LK_PHILOX lk_philox_block lk_philox(uint64_t seed, lk_purpose purpose, uint32_t c0, uint32_t c1,
                                    uint32_t c2, uint32_t c3) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32) ^ (uint32_t)purpose;
    for (unsigned round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (lk_philox_block){{c0, c1, c2, c3}};
}

// Words 4 * block .. 4 * block + 3 that a step draws for an example: `example` is its number in the
// global batch, `number` that of the layer or noise (ARITHMETIC.md 10). Never of a replica or a
// microbatch.
LK_PHILOX lk_philox_block lk_philox_step(uint64_t seed, lk_purpose purpose, uint64_t step,
                                         uint32_t number, uint32_t example, uint32_t block) {
    return lk_philox(seed, purpose, block, example, (uint32_t)step,
                     number + ((uint32_t)(step >> 32) << 16));
}

// The upper 24 bits as a float in [0, 1): exact, no rounding.
LK_PHILOX float lk_unit_float(uint32_t word) { return (float)(word >> 8) * 0x1p-24f; }

#endif
