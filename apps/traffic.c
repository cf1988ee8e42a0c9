// traffic.c - the sums of traffic.h.
#include "apps/traffic.h"

// Every worker sends every other one box and one note in the first turn, and its slice of the sum
// in the second.
lk_traffic lk_traffic_of(const lk_run *run) {
    const lk_program *p = &run->program;
    const lk_worker *list = run->workers.list;
    uint32_t world = run->workers.world;
    uint64_t others = world - 1, slots = 0;
    lk_traffic most = {.messages = {2 * others, others}};
    for (uint32_t w = 0; w < world; w++) slots += lk_exchange_slots(p, &list[w]);
    for (uint32_t w = 0; w < world; w++) {
        lk_slice slice = lk_slice_of(p, world, w);
        uint64_t own = slice.end - slice.begin, mine = lk_exchange_slots(p, &list[w]);
        uint64_t boxes_out = mine * (p->loss_offset - own), boxes_in = (slots - mine) * own;
        uint64_t sums_out = others * own, sums_in = p->loss_offset - own;
        most.bytes[0] = LK_MAX(most.bytes[0], LK_MAX(boxes_out, boxes_in));
        most.bytes[1] = LK_MAX(most.bytes[1], LK_MAX(sums_out, sums_in));
    }
    most.bytes[0] = most.bytes[0] * sizeof(float) + others * sizeof(lk_note);
    most.bytes[1] *= sizeof(float);
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
