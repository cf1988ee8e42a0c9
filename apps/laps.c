// laps.c - the sums of laps.h.
#include "apps/laps.h"

#include "comm/clock.h"

void lk_laps_start(lk_laps *l) {
    l->at = lk_seconds();
    l->steps++;
}

void lk_lap_ends(lk_laps *l, lk_lap lap) {
    double now = lk_seconds();
    l->seconds[lap] += now - l->at;
    l->at = now;
}

void lk_lap_turn_ends(lk_laps *l, double last) {
    double now = lk_seconds(), alone = LK_MIN(LK_MAX(last - l->at, 0), now - l->at);
    l->seconds[LK_LAP_WAITING] += alone;
    l->seconds[LK_LAP_TURNS] += now - l->at - alone;
    l->at = now;
}

lk_status lk_laps_print(const lk_laps *l, lk_text_out *out) {
    double us[LK_LAPS], all = 0;
    if (l->steps == 0) return LK_OK;
    for (uint32_t i = 0; i < LK_LAPS; i++) {
        us[i] = 1e6 * l->seconds[i] / (double)l->steps;
        all += us[i];
    }
    return lk_text_line(out,
                        "of a step, %.1f us: computing %.1f, exchanging meanwhile %.1f, waiting "
                        "%.1f, turns %.1f, moving %.1f, updating %.1f",
                        all, us[LK_LAP_COMPUTING], us[LK_LAP_EARLY], us[LK_LAP_WAITING],
                        us[LK_LAP_TURNS], us[LK_LAP_MOVING], us[LK_LAP_UPDATING]);
}
