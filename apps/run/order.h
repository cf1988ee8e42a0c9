// order.h - which example a position of an epoch is, in either order of a run. Freestanding, so
// that the program and the trainer without an operating system read one and the same.
#ifndef LOCKSTEP_APPS_RUN_ORDER_H
#define LOCKSTEP_APPS_RUN_ORDER_H

#include "io/shuffle.h"
#include "ops/graph/program.h"

// Index of the example at a position that exists (lk_position_exists).
static inline uint64_t lk_order(const lk_run_spec *spec, uint64_t epoch, uint64_t position) {
    if (!spec->shards) return lk_shuffle(spec->seed, epoch, spec->example_count, position);
    lk_place place = lk_place_of(spec, position);
    uint64_t first = spec->shard_first[place.shard];
    uint64_t count = spec->shard_first[place.shard + 1] - first;
    return first + lk_shuffle_shard(spec->seed, epoch, place.shard, count, place.at);
}

// The position of an epoch at which an example is read: the inverse of lk_order.
static inline uint64_t lk_order_position(const lk_run_spec *spec, uint64_t epoch,
                                         uint64_t example) {
    if (!spec->shards) return lk_unshuffle(spec->seed, epoch, spec->example_count, example);
    const uint64_t part = spec->global_batch / spec->shards;
    uint32_t shard = 0;
    while (example >= spec->shard_first[shard + 1]) shard++;
    const uint64_t first = spec->shard_first[shard], count = spec->shard_first[shard + 1] - first;
    const uint64_t at = lk_unshuffle_shard(spec->seed, epoch, shard, count, example - first);
    return at / part * spec->global_batch + shard * part + at % part;
}

// The shards that some grains of every step read in order "sharded", of `shards` and `grains` in
// all.
static inline lk_grain_range lk_order_shards(uint32_t shards, uint32_t grains,
                                             lk_grain_range read) {
    uint64_t first = (uint64_t)read.first * shards / grains;
    uint64_t last = (uint64_t)(read.first + read.count - 1) * shards / grains;
    return (lk_grain_range){(uint32_t)first, (uint32_t)(last - first + 1)};
}

#endif
