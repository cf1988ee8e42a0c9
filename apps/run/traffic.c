// traffic.c - the sums of traffic.h.
#include "apps/run/traffic.h"

// Of a bucket every worker sends every other that owns some of it one box in the first round, and,
// where it owns some itself, its partition of the sum to all in the second. A report goes to
// everybody.
static void add_part(const lk_run *run, const lk_bucket *bucket, uint32_t w, lk_traffic *t) {
    const lk_program *p = &run->program;
    const lk_worker *list = run->workers.list;
    const uint32_t world = run->workers.world;
    const lk_partition own = lk_bucket_partition(bucket, world, w);
    const uint64_t mine = lk_exchange_slots(p, &list[w]), own_floats = own.end - own.begin;
    uint64_t slots = 0, owners = 0;
    for (uint32_t o = 0; o < world; o++) {
        const lk_partition theirs = lk_bucket_partition(bucket, world, o);
        if (o == w) continue;
        slots += lk_exchange_slots(p, &list[o]);
        owners += theirs.end > theirs.begin;
    }
    const uint64_t others = world - 1, rest = bucket->end - bucket->begin - own_floats;
    t->bytes[0] += LK_MAX(mine * rest, slots * own_floats) * sizeof(float);
    t->bytes[1] += LK_MAX(others * own_floats, rest) * sizeof(float);
    t->messages[0] += LK_MAX(owners, own_floats ? others : 0);
    t->messages[1] += LK_MAX(owners, own_floats ? others : 0);
}

lk_traffic lk_traffic_of(const lk_run *run) {
    const lk_buckets buckets = lk_exchange_buckets(&run->program);
    const uint64_t others = run->workers.world - 1;
    lk_traffic most = {.bytes = {0}};
    for (uint32_t w = 0; w < run->workers.world; w++) {
        lk_traffic t = {.bytes = {others * sizeof(lk_report)}, .messages = {others}};
        for (uint32_t k = 0; k < buckets.count; k++) add_part(run, &buckets.bucket[k], w, &t);
        for (uint32_t round = 0; round < LK_TRAFFIC_ROUNDS; round++) {
            most.bytes[round] = LK_MAX(most.bytes[round], t.bytes[round]);
            most.messages[round] = LK_MAX(most.messages[round], t.messages[round]);
        }
    }
    return most;
}

lk_traffic_time lk_traffic_time_of(const lk_traffic *traffic, const lk_link *link) {
    lk_traffic_time t = {.latency = LK_TRAFFIC_ROUNDS * link->latency_us};
    for (uint32_t round = 0; round < LK_TRAFFIC_ROUNDS; round++) {
        t.messages += (double)traffic->messages[round] * LK_MESSAGE_US;
        t.bytes += 8e6 * (double)traffic->bytes[round] / link->bits_per_second;
    }
    t.all = t.latency + t.messages + t.bytes;
    return t;
}
