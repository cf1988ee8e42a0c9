// shuffle.h - the order of the examples: a keyed permutation of a whole epoch, without memory.
//
// Core: freestanding. Position p of epoch e is example lk_shuffle(seed, e, count, p), for any p in
// any order: a resumed run, or one of many replicas, asks for its own positions and nothing else.
// In order "sharded" (ops/order.h) each shard has a permutation of its own.
//
// The formula is that of arena/permutation.h, by which a GPU computes it, too: key is the seed, and
// shard 0 is the whole set, in order "global". Golden values are in tests/io/shuffle_test.c.
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
