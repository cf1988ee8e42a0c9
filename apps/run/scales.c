// scales.c - see scales.h.
#include "apps/run/scales.h"

#include <stdio.h>

#include "ops/graph/scale.h"

// No smaller scale was kept from the step by the configuration.
static bool tried_all(const lk_loss_scale *how, float scale) {
    return scale <= 1 || (how->replays && scale > how->least);
}

const char *lk_scale_reason(const lk_loss_scale *how, float scale) {
    if (!how->replays) return "loss_scale.skips_max steps were skipped one after another";
    return tried_all(how, scale) ? "no smaller one helps"
                                 : "loss_scale.floor allows no smaller one";
}

const char *lk_scale_advice(const lk_loss_scale *how, float scale) {
    if (tried_all(how, scale)) return "";
    if (how->is_static) return "a smaller loss_scale.initial, loss_scale.type dynamic, ";
    if (scale <= how->least) return "a lower loss_scale.floor, ";
    return "a smaller loss_scale.initial, a larger loss_scale.skips_max, ";
}

const char *lk_scale_unscaled(const lk_run *run) {
    return lk_run_is_fast(run) ? "fast_precision bf16 or tf32"
                               : "precision mixed_bfloat16 or float32";
}

// How many of the first `done` steps are of this objective.
static uint64_t steps_of(const lk_model *m, uint32_t objective, uint64_t done) {
    const lk_graph *g = lk_graph_of(m);
    if (!g) return done;
    const uint64_t each = lk_cycle_steps(g), cycles = done / each;
    uint64_t left = done % each, steps = 0;
    for (uint32_t i = 0; i < g->schedule_count; i++) {
        const uint64_t own = g->schedule[i].steps, part = LK_MIN(left, own);
        if (g->schedule[i].objective == objective) steps += cycles * own + part;
        left -= part;
    }
    return steps;
}

void lk_say_scales(const lk_run *run, uint64_t done, const lk_say *say) {
    const lk_model *m = &run->config.spec.model;
    const lk_graph *g = lk_graph_of(m);
    for (uint32_t k = 0; k < lk_objective_count(m); k++) {
        const lk_program *p = &run->programs[k];
        const lk_scale_state *state = lk_scale_of(p, run->core.device);
        char whose[LK_GRAPH_NAME_BYTES + 16] = "";
        if (!state) return;
        if (g && g->objective_count > 1)
            snprintf(whose, sizeof whose, "objective %s, ", g->objectives[k].name);
        const float scale = lk_scale_value(&m->loss_scale, state);
        const uint64_t skipped = lk_steps_skipped(p, run->core.device, k);
        lk_say_line(say, "%sloss_scale %.9g, skipped %llu, replayed %llu", whose, (double)scale,
                    (unsigned long long)skipped, (unsigned long long)lk_scale_replays(state));
        const char *advice = lk_scale_advice(&m->loss_scale, scale);
        if (skipped == 0 || skipped < steps_of(m, k, done)) continue;
        lk_say_warning(say,
                       "%sall %llu steps were skipped and nothing was trained: each overflowed at "
                       "its loss scale; try %s%s%s",
                       whose, (unsigned long long)skipped, advice, *advice ? "or " : "",
                       lk_scale_unscaled(run));
    }
}
