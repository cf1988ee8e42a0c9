// traffic.c - the sums of traffic.h.
#include "apps/run/traffic.h"

// Of a part every worker sends every other that owns some of it one box in the first turn, and,
// where it owns some itself, its slice of the sum to all in the second. A note goes to everybody.
static void add_part(const lk_run *run, const lk_part *part, uint32_t w, lk_traffic *t) {
    const lk_program *p = &run->program;
    const lk_worker *list = run->workers.list;
    const uint32_t world = run->workers.world;
    const lk_slice own = lk_part_slice(part, world, w);
    const uint64_t mine = lk_exchange_slots(p, &list[w]), own_floats = own.end - own.begin;
    uint64_t slots = 0, owners = 0;
    for (uint32_t o = 0; o < world; o++) {
        const lk_slice theirs = lk_part_slice(part, world, o);
        if (o == w) continue;
        slots += lk_exchange_slots(p, &list[o]);
        owners += theirs.end > theirs.begin;
    }
    const uint64_t others = world - 1, rest = part->end - part->begin - own_floats;
    t->bytes[0] += LK_MAX(mine * rest, slots * own_floats) * sizeof(float);
    t->bytes[1] += LK_MAX(others * own_floats, rest) * sizeof(float);
    t->messages[0] += LK_MAX(owners, own_floats ? others : 0);
    t->messages[1] += LK_MAX(owners, own_floats ? others : 0);
}

lk_traffic lk_traffic_of(const lk_run *run) {
    const lk_parts parts = lk_exchange_parts(&run->program);
    const uint64_t others = run->workers.world - 1;
    lk_traffic most = {.bytes = {0}};
    for (uint32_t w = 0; w < run->workers.world; w++) {
        lk_traffic t = {.bytes = {others * sizeof(lk_note)}, .messages = {others}};
        for (uint32_t k = 0; k < parts.count; k++) add_part(run, &parts.part[k], w, &t);
        for (uint32_t turn = 0; turn < LK_TRAFFIC_TURNS; turn++) {
            most.bytes[turn] = LK_MAX(most.bytes[turn], t.bytes[turn]);
            most.messages[turn] = LK_MAX(most.messages[turn], t.messages[turn]);
        }
    }
    return most;
}

lk_traffic_time lk_traffic_time_of(const lk_traffic *traffic, const lk_link *link) {
    lk_traffic_time t = {.latency = LK_TRAFFIC_TURNS * link->latency_us};
    for (uint32_t turn = 0; turn < LK_TRAFFIC_TURNS; turn++) {
        t.messages += (double)traffic->messages[turn] * LK_MESSAGE_US;
        t.bytes += 8e6 * (double)traffic->bytes[turn] / link->bits_per_second;
    }
    t.all = t.latency + t.messages + t.bytes;
    return t;
}
