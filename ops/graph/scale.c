// scale.c - see scale.h. Freestanding.
#include "ops/graph/scale.h"

#include "ops/fmaf.h"

lk_scale_state *lk_scale_of(const lk_program *p, uint8_t *device) {
    if (p->loss_scale == LK_NONE) return NULL;
    lk_scale_state *states = (void *)(device + p->tensors[p->loss_scale].offset);
    return lk_graph_of(&p->spec->model) ? states + p->objective : states;
}

// The exponent of a power of two that is a normal number.
static int32_t exponent_of(float power) { return (int32_t)(lk_float_to_bits(power) >> 23) - 127; }

static int32_t power_of(const lk_loss_scale *how, const lk_scale_state *s) {
    return exponent_of(how->initial) + (int32_t)s->word[LK_SCALE_POWER];
}

static float two_to(int32_t power) { return lk_float_from_bits((uint32_t)(power + 127) << 23); }

float lk_scale_value(const lk_loss_scale *how, const lk_scale_state *s) {
    return two_to(power_of(how, s));
}

float lk_scale_inverse(const lk_program *p, uint8_t *device) {
    const lk_scale_state *state = lk_scale_of(p, device);
    return state ? 1.0f / lk_scale_value(&p->spec->model.loss_scale, state) : 1.0f;
}

static void move(const lk_loss_scale *how, lk_scale_state *s, float factor) {
    const int32_t low = exponent_of(how->least), high = LK_LOSS_SCALE_POWER_MAX;
    const int32_t wanted = power_of(how, s) + exponent_of(factor);
    const int32_t power = wanted < low ? low : wanted > high ? high : wanted;
    s->word[LK_SCALE_POWER] = (uint32_t)(power - exponent_of(how->initial));
    s->word[LK_SCALE_GOOD] = 0;
}

bool lk_scale_can_fall(const lk_loss_scale *how, const lk_scale_state *s) {
    return !how->is_static && power_of(how, s) > exponent_of(how->least);
}

void lk_scale_follow(const lk_loss_scale *how, lk_scale_state *s, lk_scale_event event) {
    if (event == LK_SCALE_APPLIED) {
        s->word[LK_SCALE_IN_A_ROW] = 0;
        if (how->is_static) return;
        if (++s->word[LK_SCALE_GOOD] >= how->growth_steps) move(how, s, how->growth);
        return;
    }
    if (event == LK_SCALE_SKIPPED) s->word[LK_SCALE_IN_A_ROW]++;
    if (event == LK_SCALE_REPLAYED && ++s->word[LK_SCALE_REPLAYS] == 0) {
        s->word[LK_SCALE_REPLAYS + 1]++;
    }
    if (!how->is_static) move(how, s, how->backoff);
}

// --- bounds --------------------------------------------------------------------------------------

static bool is_power(float x, int32_t low, int32_t high) {
    return x > 0 && (lk_float_to_bits(x) & 0x7fffffu) == 0 && exponent_of(x) >= low &&
           exponent_of(x) <= high;
}

static lk_status refuse(const char *key, const char *wanted, lk_error *error) {
    return lk_fail(error, LK_BAD_CONFIG, "loss_scale.%s: wanted a power of two %s", key, wanted);
}

lk_status lk_scale_check(const lk_model *m, lk_error *error) {
    const lk_loss_scale *s = &m->loss_scale;
    if (!lk_model_scales(m)) return LK_OK;
    if (!is_power(s->initial, 0, LK_LOSS_SCALE_POWER_MAX)) {
        return refuse("initial", "from 1 to 2^30", error);
    }
    if (!is_power(s->least, 0, exponent_of(s->initial))) {
        return refuse("floor", "from 1 to loss_scale.initial", error);
    }
    if (!is_power(s->growth, 1, 16)) return refuse("growth_factor", "from 2 to 65536", error);
    if (!is_power(s->backoff, -16, -1)) return refuse("backoff_factor", "from 2^-16 to 0.5", error);
    if (s->growth_steps == 0 || s->skips_max == 0) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "loss_scale.growth_steps, loss_scale.skips_max: found 0, wanted 1 or more");
    }
    if (s->is_static && s->replays) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "loss_scale.on_overflow: found \"replay\" with a static scale, under which "
                       "the step would overflow again; use \"skip\", or type \"dynamic\"");
    }
    return LK_OK;
}
