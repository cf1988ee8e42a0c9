// shuffle.h - the order of the examples: a keyed permutation of a whole epoch, without memory.
//
// Core: freestanding. Position p of epoch e is example lk_shuffle(seed, e, count, p), for any p in
// any order: a resumed run, or one of many replicas, asks for its own positions and nothing else.
// In order "sharded" (ops/graph/model.h, lk_place) each shard has a permutation of its own.
//
// Exactly (part of the arithmetic, version 1; golden values are in tests/io/shuffle_test.c):
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
//   shard 0 is the whole set, in order "global"
//   lk_shuffle_shard = E(p); while that is not below count, E of it again (cycle walking)
//
// A Feistel network is a bijection whatever F is, and walking along its cycles until the range is
// met again is a bijection of the range. Six rounds: with fewer, statistics over the whole domain
// can tell the network from a random permutation (Patarin). From 2 examples on 2^(2h) < 4 x count,
// so fewer than 4 walks on average; 60,000 examples: h = 8, 1.1 walks.
#ifndef LOCKSTEP_IO_SHUFFLE_H
#define LOCKSTEP_IO_SHUFFLE_H

#include "arena/base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LK_SHUFFLE_COUNT_MAX  ((uint64_t)1 << 40)
#define LK_SHUFFLE_SHARDS_MAX ((uint32_t)1 << 29)

// count      examples of the set, 1 to LK_SHUFFLE_COUNT_MAX
// position   in the epoch, below count
// Returns the example's index, below count.
uint64_t lk_shuffle(uint64_t seed, uint64_t epoch, uint64_t count, uint64_t position);

// The same within a shard.
//
// shard      below LK_SHUFFLE_SHARDS_MAX
// count      examples of the shard
// position   among those that the epoch reads from the shard, below count
// Returns the example's index in the shard, below count.
uint64_t lk_shuffle_shard(uint64_t seed, uint64_t epoch, uint32_t shard, uint64_t count,
                          uint64_t position);

// The inverse of both: the position at which an epoch reads an example.
//
// example    its index, below count
// Returns the position, below count.
uint64_t lk_unshuffle(uint64_t seed, uint64_t epoch, uint64_t count, uint64_t example);
uint64_t lk_unshuffle_shard(uint64_t seed, uint64_t epoch, uint32_t shard, uint64_t count,
                            uint64_t example);

#ifdef __cplusplus
}
#endif
#endif
