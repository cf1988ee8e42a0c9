// noise.c - noise as a value of an objective: the op that draws it. Freestanding. ARITHMETIC.md 10.
//
//   y[i] = offset + scale * (what is drawn for element i of the example: ops/noise.h)
//
// In training it is another one in every step; where nothing is trained always the same, so that
// evaluations of two checkpoints see the same noise. It is finite, as the bounds of its keys say.
#include "ops/graph/build.h"

static uint32_t noise_forward(lk_lane *l, const lk_op *op) {
    float *y = l->at[LK_Y];
    for (uint32_t m = 0; m < l->examples; m++) {
        const lk_noise_key key = lk_noise_key_of(l, m);
        for (uint64_t i = 0; i < op->floats; i++) *y++ = lk_noise_at(&op->noise, &key, i);
    }
    return 0;
}

const lk_op_type lk_op_noise = {.name = "noise",
                                .suffix = "",
                                .number = LK_OP_NOISE,
                                .scope = LK_SCOPE_EXAMPLES,
                                .reference = noise_forward,
                                .mixed = true};

lk_noise lk_noise_of(const lk_noise_source *source, uint32_t number) {
    const bool uniform = source->kind == LK_NOISE_UNIFORM;
    return (lk_noise){.kind = source->kind,
                      .number = number,
                      .offset = uniform ? source->low : source->mean,
                      .scale = uniform ? source->high - source->low : source->stddev};
}

static const lk_setting normal_keys[] = {
    {.name = "mean",
     .kind = LK_SETTING_FLOAT,
     .offset = offsetof(lk_noise_source, mean),
     .low = -1e6f,
     .high = 1e6f,
     .meaning = "what is added"},
    {.name = "stddev",
     .kind = LK_SETTING_FLOAT,
     .offset = offsetof(lk_noise_source, stddev),
     .high = 1e6f,
     .float_constant = 1.0f,
     .meaning = "what the noise is multiplied by"},
};
static const lk_setting uniform_keys[] = {
    {.name = "high",
     .kind = LK_SETTING_FLOAT,
     .offset = offsetof(lk_noise_source, high),
     .low = -1e6f,
     .high = 1e6f,
     .float_constant = 1.0f,
     .meaning = "where it ends"},
    {.name = "low",
     .kind = LK_SETTING_FLOAT,
     .offset = offsetof(lk_noise_source, low),
     .low = -1e6f,
     .high = 1e6f,
     .meaning = "where it begins"},
};

const lk_noise_words *lk_noise_words_at(uint32_t kind) {
    static const lk_noise_words all[] = {
        [LK_NOISE_NORMAL] = {"normal", normal_keys, LK_COUNT(normal_keys),
                             "of the normal distribution"},
        [LK_NOISE_TRUNCATED_NORMAL] = {"truncated_normal", normal_keys, LK_COUNT(normal_keys),
                                       "of the same, without what is more than two stddev away"},
        [LK_NOISE_UNIFORM] = {"uniform", uniform_keys, LK_COUNT(uniform_keys),
                              "evenly spread from low to high"}};
    return kind < LK_COUNT(all) ? &all[kind] : NULL;
}
