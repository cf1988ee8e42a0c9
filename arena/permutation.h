// permutation.h - keyed permutations of 0 .. count - 1, without memory. Freestanding, also C++ and
// CUDA.
//
// The order of the examples is made of them (io/shuffle.h): a processor and a GPU compute it by the
// same code. Exactly (part of the arithmetic, version 1; golden values are in
// tests/io/shuffle_test.c):
//
//   h     half width in bits: the smallest h >= 1 with 2^(2h) >= count
//   mask  2^h - 1
//
//   E(x): a balanced Feistel network of 6 rounds on the 2h bits of x
//       L = x >> h,  R = x & mask
//       for round = 0 .. 5:
//           F = word[0] of Philox4x32-10 (arena/philox.h), purpose LK_PURPOSE_SHUFFLE, counter
//               c0 = R,  c1 = 8 * shard + round,  c2, c3 = low, high 32 bits of epoch
//           (L, R) = (R, L xor (F & mask))
//       E = L << h | R
//
//   lk_permute = E(x); while that is not below count, E of it again (cycle walking)
//
// A Feistel network is a bijection whatever F is, and walking along its cycles until the range is
// met again is a bijection of the range. Six rounds: with fewer, statistics over the whole domain
// can tell the network from a random permutation (Patarin). From 2 examples on 2^(2h) < 4 x count,
// so fewer than 4 walks on average; 60,000 examples: h = 8, 1.1 walks.
#ifndef LOCKSTEP_ARENA_PERMUTATION_H
#define LOCKSTEP_ARENA_PERMUTATION_H

#include "arena/philox.h"

// Each shard has LK_PERMUTE_NUMBERS round numbers of its own, of which its network uses the first
// LK_PERMUTE_ROUNDS.
enum { LK_PERMUTE_NUMBERS = 8, LK_PERMUTE_ROUNDS = 6 };

// One permutation; lk_permutation_of makes it.
typedef struct lk_permutation {
    uint64_t seed, epoch;
    uint64_t count;      // 1 to 2^40
    uint32_t shard;      // below 2^29
    uint32_t half_bits;  // h
} lk_permutation;

LK_PHILOX lk_permutation lk_permutation_of(uint64_t seed, uint64_t epoch, uint32_t shard,
                                           uint64_t count) {
    lk_permutation p = {seed, epoch, count, shard, 1};
    while ((uint64_t)1 << (2 * p.half_bits) < count) p.half_bits++;
    return p;
}

// F of a round, as wide as half of x.
LK_PHILOX uint32_t lk_permute_word(const lk_permutation *p, uint32_t round, uint32_t right) {
    return lk_philox(p->seed, LK_PURPOSE_SHUFFLE, right, p->shard * LK_PERMUTE_NUMBERS + round,
                     (uint32_t)p->epoch, (uint32_t)(p->epoch >> 32))
               .word[0] &
           (((uint32_t)1 << p->half_bits) - 1);
}

// x is below p->count, as is what it becomes.
LK_PHILOX uint64_t lk_permute(const lk_permutation *p, uint64_t x) {
    do {
        uint32_t left = (uint32_t)(x >> p->half_bits);
        uint32_t right = (uint32_t)(x & (((uint64_t)1 << p->half_bits) - 1));
        for (uint32_t round = 0; round < LK_PERMUTE_ROUNDS; round++) {
            const uint32_t next = left ^ lk_permute_word(p, round, right);
            left = right;
            right = next;
        }
        x = (uint64_t)left << p->half_bits | right;
    } while (x >= p->count);
    return x;
}

// .. and back: the rounds, the last one first.
LK_PHILOX uint64_t lk_permute_back(const lk_permutation *p, uint64_t x) {
    do {
        uint32_t left = (uint32_t)(x >> p->half_bits);
        uint32_t right = (uint32_t)(x & (((uint64_t)1 << p->half_bits) - 1));
        for (uint32_t round = LK_PERMUTE_ROUNDS; round-- > 0;) {
            const uint32_t before = right ^ lk_permute_word(p, round, left);
            right = left;
            left = before;
        }
        x = (uint64_t)left << p->half_bits | right;
    } while (x >= p->count);
    return x;
}

#endif
