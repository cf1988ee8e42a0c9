// shuffle.c - the order of shuffle.h. Freestanding; keeps nothing between two calls.
#include "io/shuffle.h"

#include "arena/permutation.h"

static lk_permutation permutation_of(uint64_t seed, uint64_t epoch, uint32_t shard, uint64_t count,
                                     uint64_t x) {
    lk_assert(shard < LK_SHUFFLE_SHARDS_MAX);
    lk_assert(count >= 1 && count <= LK_SHUFFLE_COUNT_MAX);
    lk_assert(x < count);
    return lk_permutation_of(seed, epoch, shard, count);
}

uint64_t lk_shuffle_shard(uint64_t seed, uint64_t epoch, uint32_t shard, uint64_t count,
                          uint64_t position) {
    const lk_permutation p = permutation_of(seed, epoch, shard, count, position);
    return lk_permute(&p, position);
}

uint64_t lk_unshuffle_shard(uint64_t seed, uint64_t epoch, uint32_t shard, uint64_t count,
                            uint64_t example) {
    const lk_permutation p = permutation_of(seed, epoch, shard, count, example);
    return lk_permute_back(&p, example);
}

uint64_t lk_unshuffle(uint64_t seed, uint64_t epoch, uint64_t count, uint64_t example) {
    return lk_unshuffle_shard(seed, epoch, 0, count, example);
}

uint64_t lk_shuffle(uint64_t seed, uint64_t epoch, uint64_t count, uint64_t position) {
    return lk_shuffle_shard(seed, epoch, 0, count, position);
}
