// laps.c - the sums of laps.h.
#include "apps/run/laps.h"

#include <string.h>

#include "comm/threads/clock.h"

const char *const lk_lap_names[LK_LAPS] = {"computing", "exchanging", "waiting",
                                           "rounds",    "moving",     "updating"};

static double sum(const double laps[LK_LAPS]) {
    double all = 0;
    for (uint32_t i = 0; i < LK_LAPS; i++) all += laps[i];
    return all;
}

static void end_block(lk_laps *l) {
    double best = sum(l->quickest);
    if (best == 0 || sum(l->block) < best) memcpy(l->quickest, l->block, sizeof l->block);
    memset(l->block, 0, sizeof l->block);
}

void lk_laps_start(lk_laps *l) {
    if (l->steps > 0 && l->steps % LK_LAPS_BLOCK == 0) end_block(l);
    l->at = lk_seconds();
    l->steps++;
}

static void add(lk_laps *l, lk_lap lap, double seconds) {
    l->seconds[lap] += seconds;
    l->block[lap] += seconds;
}

void lk_lap_ends(lk_laps *l, lk_lap lap) {
    double now = lk_seconds();
    add(l, lap, now - l->at);
    l->at = now;
}

void lk_lap_round_ends(lk_laps *l, double last) {
    double now = lk_seconds(), alone = LK_MIN(LK_MAX(last - l->at, 0), now - l->at);
    add(l, LK_LAP_WAITING, alone);
    add(l, LK_LAP_ROUNDS, now - l->at - alone);
    l->at = now;
}

static lk_status print(const char *of, const double laps[LK_LAPS], uint64_t steps,
                       lk_text_out *out) {
    const double scale = 1e6 / (double)steps;
    return lk_text_line(out,
                        "of a step%s, %.1f us: computing %.1f, exchanging meanwhile %.1f, waiting "
                        "%.1f, rounds %.1f, moving %.1f, updating %.1f",
                        of, scale * sum(laps), scale * laps[LK_LAP_COMPUTING],
                        scale * laps[LK_LAP_EARLY], scale * laps[LK_LAP_WAITING],
                        scale * laps[LK_LAP_ROUNDS], scale * laps[LK_LAP_MOVING],
                        scale * laps[LK_LAP_UPDATING]);
}

lk_status lk_laps_print(const lk_laps *l, lk_text_out *out) {
    lk_laps last = *l;
    if (l->steps == 0) return LK_OK;
    LK_CHECK(print("", l->seconds, l->steps, out));
    if (l->steps < LK_LAPS_BLOCK) return LK_OK;
    if (l->steps % LK_LAPS_BLOCK == 0) end_block(&last);
    return print(" among the quickest in a row", last.quickest, LK_LAPS_BLOCK, out);
}
