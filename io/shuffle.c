// shuffle.c - the permutation of shuffle.h. Freestanding; keeps nothing between two calls.
#include "io/shuffle.h"

#include "arena/philox.h"

enum { ROUNDS = 6 };

enum { ROUND_NUMBERS = 8 };  // a shard has so many for itself

// F of a round, as wide as half of x.
static uint32_t round_word(uint64_t seed, uint64_t epoch, uint32_t shard, uint32_t round,
                           uint32_t right, uint32_t mask) {
    return lk_philox(seed, LK_PURPOSE_SHUFFLE, right, shard * ROUND_NUMBERS + round,
                     (uint32_t)epoch, (uint32_t)(epoch >> 32)).word[0] & mask;
}

static uint64_t feistel(uint64_t seed, uint64_t epoch, uint32_t shard, unsigned half_bits,
                        uint64_t x) {
    uint32_t mask = ((uint32_t)1 << half_bits) - 1;
    uint32_t left = (uint32_t)(x >> half_bits), right = (uint32_t)x & mask;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t next = left ^ round_word(seed, epoch, shard, round, right, mask);
        left = right;
        right = next;
    }
    return (uint64_t)left << half_bits | right;
}

// The rounds of feistel, the last one first.
static uint64_t feistel_back(uint64_t seed, uint64_t epoch, uint32_t shard, unsigned half_bits,
                             uint64_t x) {
    uint32_t mask = ((uint32_t)1 << half_bits) - 1;
    uint32_t left = (uint32_t)(x >> half_bits), right = (uint32_t)x & mask;
    for (uint32_t round = ROUNDS; round-- > 0;) {
        uint32_t before = right ^ round_word(seed, epoch, shard, round, left, mask);
        right = left;
        left = before;
    }
    return (uint64_t)left << half_bits | right;
}

static unsigned half_bits_of(uint64_t count) {
    unsigned half_bits = 1;
    while ((uint64_t)1 << (2 * half_bits) < count) half_bits++;
    return half_bits;
}

uint64_t lk_shuffle_shard(uint64_t seed, uint64_t epoch, uint32_t shard, uint64_t count,
                          uint64_t position) {
    lk_assert(shard < LK_SHUFFLE_SHARDS_MAX);
    lk_assert(count >= 1 && count <= LK_SHUFFLE_COUNT_MAX);
    lk_assert(position < count);
    const unsigned half_bits = half_bits_of(count);
    uint64_t x = position;
    do {
        x = feistel(seed, epoch, shard, half_bits, x);
    } while (x >= count);
    return x;
}

uint64_t lk_unshuffle_shard(uint64_t seed, uint64_t epoch, uint32_t shard, uint64_t count,
                            uint64_t example) {
    lk_assert(shard < LK_SHUFFLE_SHARDS_MAX);
    lk_assert(count >= 1 && count <= LK_SHUFFLE_COUNT_MAX);
    lk_assert(example < count);
    const unsigned half_bits = half_bits_of(count);
    uint64_t x = example;
    do {
        x = feistel_back(seed, epoch, shard, half_bits, x);
    } while (x >= count);
    return x;
}

uint64_t lk_unshuffle(uint64_t seed, uint64_t epoch, uint64_t count, uint64_t example) {
    return lk_unshuffle_shard(seed, epoch, 0, count, example);
}

uint64_t lk_shuffle(uint64_t seed, uint64_t epoch, uint64_t count, uint64_t position) {
    return lk_shuffle_shard(seed, epoch, 0, count, position);
}
