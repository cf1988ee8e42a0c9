// order.h - which example a position of an epoch is, in either order of a run. Freestanding, so
// that the program and the trainer without an operating system read one and the same.
#ifndef LOCKSTEP_APPS_RUN_ORDER_H
#define LOCKSTEP_APPS_RUN_ORDER_H

#include "io/shuffle.h"
#include "ops/graph/program.h"

// Index of the example at a position that exists (lk_position_exists).
static inline uint64_t lk_order(const lk_run_spec *spec, uint64_t epoch, uint64_t position) {
    const lk_example_order order = lk_order_of(spec);
    const uint64_t index = lk_order_at(&order, epoch, position);
    lk_assert(index != LK_NO_EXAMPLE);
    return index;
}

// Positions from `position` on, at most `most`, of which one shard has the examples, one after the
// other in its permutation; of those `there` exist.
typedef struct lk_order_run {
    uint64_t at, first, shard_examples;
    uint32_t shard, count, there;
} lk_order_run;

static inline lk_order_run lk_order_run_of(const lk_run_spec *spec, uint64_t position,
                                           uint32_t most) {
    lk_order_run run = {.at = position, .shard_examples = spec->example_count, .count = most};
    if (spec->shards) {
        const lk_place place = lk_place_of(spec, position);
        const uint32_t part = spec->global_batch / spec->shards;
        run.at = place.at;
        run.shard = place.shard;
        run.first = spec->shard_first[place.shard];
        run.shard_examples = spec->shard_first[place.shard + 1] - run.first;
        run.count = LK_MIN(most, part - (uint32_t)(position % spec->global_batch % part));
    }
    const uint64_t left = run.shard_examples - LK_MIN(run.shard_examples, run.at);
    run.there = (uint32_t)LK_MIN(left, (uint64_t)run.count);
    return run;
}

// lk_order of many positions: index[i] is that of `position + i`, LK_NO_EXAMPLE where there is
// none. By what the kernels have for it, where they have; without kernels one after another.
static inline void lk_order_many(const lk_run_spec *spec, const lk_kernels *kernels, uint64_t epoch,
                                 uint64_t position, uint32_t count, uint64_t *index) {
    const bool at_once = kernels && kernels->permute;
    while (count > 0) {
        const lk_order_run run = lk_order_run_of(spec, position, count);
        const lk_permutation p =
            lk_permutation_of(spec->seed, epoch, run.shard, run.shard_examples);
        if (at_once) kernels->permute(&p, run.at, run.there, index);
        for (uint32_t i = 0; i < run.there; i++)
            index[i] = run.first + (at_once ? index[i] : lk_permute(&p, run.at + i));
        for (uint32_t i = run.there; i < run.count; i++) index[i] = LK_NO_EXAMPLE;
        position += run.count;
        index += run.count;
        count -= run.count;
    }
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
