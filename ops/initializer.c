// initializer.c - the formulas of initializer.h (ARITHMETIC.md 8). Freestanding.
#include "ops/initializer.h"

#include "arena/philox.h"

#include "ops/math.h"

static void fill_zeros(const lk_initial *p, float *w) {
    for (uint64_t e = 0; e < p->count; e++) w[e] = 0.0f;
}

// Element e of parameter p: u = unit float of word e % 4 of the Philox block with counter
// (e / 4 low, e / 4 high, p, 0); w = (2u - 1) * limit, limit = sqrt(6 / fan).
static void fill_uniform(const lk_initial *p, uint64_t fan, float *w) {
    const float limit = lk_sqrtf(6.0f / lk_count_to_float(fan));
    for (uint64_t e = 0; e < p->count; e += 4) {
        lk_philox_block b = lk_philox(p->seed, LK_PURPOSE_INITIALIZER, (uint32_t)(e / 4),
                                      (uint32_t)(e / 4 >> 32), p->param, 0);
        for (uint64_t i = 0; i < 4 && e + i < p->count; i++) {
            w[e + i] = (2.0f * lk_unit_float(b.word[i]) - 1.0f) * limit;
        }
    }
}

static void fill_glorot_uniform(const lk_initial *p, float *w) {
    fill_uniform(p, p->fan_in + p->fan_out, w);
}
static void fill_he_uniform(const lk_initial *p, float *w) { fill_uniform(p, p->fan_in, w); }

const lk_initializer lk_initializer_glorot_uniform = {"glorot_uniform", fill_glorot_uniform};
const lk_initializer lk_initializer_he_uniform = {"he_uniform", fill_he_uniform};
const lk_initializer lk_initializer_zeros = {"zeros", fill_zeros};

const lk_initializer *lk_initializer_at(uint32_t number) {
    static const lk_initializer *const all[] = {
#define LK_INITIALIZER_ENTRY(name) &lk_initializer_##name,
        LK_INITIALIZER_LIST(LK_INITIALIZER_ENTRY)
#undef LK_INITIALIZER_ENTRY
    };
    return number < LK_COUNT(all) ? all[number] : NULL;
}
