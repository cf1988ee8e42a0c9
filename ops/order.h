// order.h - which example a position of an epoch is. Freestanding, also C++ and CUDA: a GPU that
// has the data set computes it in LOAD.
//
// Order "global": one permutation of the whole set (arena/permutation.h). Order "sharded", with
// B = global_batch, S = shards, c = B / S: the positions of an epoch are cut into batches of B,
// each batch into S parts of c, and part k of every batch belongs to shard k. So position p is,
// where there is such an example, number `at` of those of shard k:
//
//     k = (p mod B) / c,    at = (p / B) * c + (p mod B) mod c,    divisions rounding down
//
// S divides the number of grains, so c is a multiple of the grain and grain i of every step reads
// from shard floor(i * S / grains) alone. Shards differ by one example at most: as long as a whole
// batch is left, each has c. In a last, partial step some shards have one more than others, and
// positions with `at` not below the shard's size have no example (in any grain, not only in the
// last): they are computed as examples of zeros that add +0 to every gradient and to the loss.
#ifndef LOCKSTEP_OPS_ORDER_H
#define LOCKSTEP_OPS_ORDER_H

#include "arena/permutation.h"

// There is none at this position.
#define LK_NO_EXAMPLE UINT64_MAX

// What decides the order, as lk_run_spec (ops/graph/model.h) has it.
typedef struct lk_example_order {
    uint64_t seed;
    uint64_t example_count;  // of the set
    const uint64_t *shard_first;
    uint32_t global_batch;
    uint32_t shards;  // 0: order "global"
} lk_example_order;

typedef struct lk_place {
    uint32_t shard;
    uint64_t at;
} lk_place;

// In order "sharded".
LK_PHILOX lk_place lk_order_place(uint32_t global_batch, uint32_t shards, uint64_t position) {
    const uint64_t batch = position / global_batch;
    const uint32_t part = global_batch / shards;
    const uint32_t in_batch = (uint32_t)(position - batch * global_batch);
    const uint32_t shard = in_batch / part;
    lk_place place = {shard, batch * part + (in_batch - shard * part)};
    return place;
}

// Number of the example at a position of an epoch; LK_NO_EXAMPLE.
LK_PHILOX uint64_t lk_order_at(const lk_example_order *o, uint64_t epoch, uint64_t position) {
    lk_place place = {0, position};
    uint64_t first = 0, count = o->example_count;
    if (o->shards) {
        place = lk_order_place(o->global_batch, o->shards, position);
        first = o->shard_first[place.shard];
        count = o->shard_first[place.shard + 1] - first;
    }
    if (place.at >= count) return LK_NO_EXAMPLE;
    const lk_permutation p = lk_permutation_of(o->seed, epoch, place.shard, count);
    return first + lk_permute(&p, place.at);
}

#endif
