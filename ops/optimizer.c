// optimizer.c - optimizers, one after another: formula, reference, descriptor. Freestanding.
//
// g is the mean gradient, lr and mu the floats of the configuration. The formulas are TensorFlow
// 1's (training_ops), in fma form.
#include "ops/optimizer.h"

#include "ops/fmaf.h"

static uint32_t not_finite(float x) { return !(x - x == 0.0f); }

// --- sgd                  w = fma(-lr, g, w)
static uint32_t apply_sgd(const lk_optimizer *o, const lk_step_scalars *s, uint64_t count,
                          const float *sum, float *w, float *const slots[LK_OPTIMIZER_SLOTS_MAX]) {
    uint32_t bad = 0;
    (void)o, (void)slots;
    for (uint64_t i = 0; i < count; i++) {
        const float g = (sum[i] + 0.0f) * s->inverse_n;
        w[i] = lk_fmaf(-s->learning_rate, g, w[i]);
        bad |= not_finite(g) | not_finite(w[i]);
    }
    return bad;
}

const lk_optimizer_type lk_optimizer_sgd = {.number = LK_OPTIMIZER_SGD, .reference = apply_sgd};

#define LEARNING_RATE                                                                   \
    {                                                                                   \
        .name = "learning_rate", .kind = LK_SETTING_FLOAT,                              \
        .offset = offsetof(lk_optimizer, learning_rate), .required = true, .low = 0.0f, \
        .high = 0x1.fffffep+127f, .meaning = "what a gradient is multiplied with"       \
    }
static const lk_setting sgd_keys[] = {LEARNING_RATE};
static const lk_optimizer_words words_sgd = {&lk_optimizer_sgd, "sgd", sgd_keys, LK_COUNT(sgd_keys),
                                             "gradient descent"};

// --- momentum             a = fma(mu, a, g);                      w = fma(-lr, a, w)
//     momentum, nesterov   a = fma(mu, a, g);  u = fma(mu, a, g);  w = fma(-lr, u, w)
// (TF writes the last as w -= g*lr + a*mu*lr.) The slot a starts at +0 and is stored as it is.
static uint32_t apply_momentum(const lk_optimizer *o, const lk_step_scalars *s, uint64_t count,
                               const float *sum, float *w,
                               float *const slots[LK_OPTIMIZER_SLOTS_MAX]) {
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        const float g = (sum[i] + 0.0f) * s->inverse_n;
        const float a = lk_fmaf(o->momentum, slots[0][i], g);
        const float update = o->nesterov ? lk_fmaf(o->momentum, a, g) : a;
        slots[0][i] = a;
        w[i] = lk_fmaf(-s->learning_rate, update, w[i]);
        bad |= not_finite(g) | not_finite(a) | not_finite(w[i]);
    }
    return bad;
}

static uint32_t list_momentum_slots(const lk_optimizer *o, lk_slot out[LK_OPTIMIZER_SLOTS_MAX]) {
    (void)o;
    out[0] = (lk_slot){.name = "momentum"};
    return 1;
}

static lk_status check_momentum(const lk_optimizer *o, lk_error *error) {
    if (o->momentum >= 0.0f && o->momentum < 1.0f) return LK_OK;
    return lk_fail(error, LK_BAD_CONFIG,
                   "optimizer.momentum: found a number outside 0 <= momentum < 1");
}

const lk_optimizer_type lk_optimizer_momentum = {.number = LK_OPTIMIZER_MOMENTUM,
                                                 .reference = apply_momentum,
                                                 .list_slots = list_momentum_slots,
                                                 .check = check_momentum};

static const lk_setting momentum_keys[] = {LEARNING_RATE,
                                           {.name = "momentum",
                                            .kind = LK_SETTING_FLOAT,
                                            .offset = offsetof(lk_optimizer, momentum),
                                            .low = 0.0f,
                                            .high = 1.0f,
                                            .below = 1.0f,
                                            .float_constant = 0.9f,
                                            .meaning = "what is kept of the slot in each step"},
                                           {.name = "nesterov",
                                            .kind = LK_SETTING_BOOL,
                                            .offset = offsetof(lk_optimizer, nesterov),
                                            .constant = false,
                                            .meaning = "looks one step of the slot ahead"}};
static const lk_optimizer_words words_momentum = {&lk_optimizer_momentum, "momentum", momentum_keys,
                                                  LK_COUNT(momentum_keys),
                                                  "TensorFlow 1's, with its Nesterov form"};

// --- step scalars --------------------------------------------------------------------------------

lk_step_scalars lk_optimizer_scalars(const lk_optimizer *o, uint64_t s, uint64_t t,
                                     float inverse_n) {
    return (lk_step_scalars){
        .s = s, .t = t, .learning_rate = o->learning_rate, .inverse_n = inverse_n};
}

// --- the list ------------------------------------------------------------------------------------

const lk_optimizer_words *lk_optimizer_words_at(uint32_t number) {
    static const lk_optimizer_words *const all[] = {
#define LK_OPTIMIZER_ENTRY(NUMBER, name) &words_##name,
        LK_OPTIMIZER_LIST(LK_OPTIMIZER_ENTRY)
#undef LK_OPTIMIZER_ENTRY
    };
    return number < LK_COUNT(all) ? all[number] : NULL;
}

const lk_optimizer_words *lk_optimizer_words_of(const lk_optimizer_type *type) {
    const lk_optimizer_words *words;
    for (uint32_t i = 0; (words = lk_optimizer_words_at(i)) != NULL; i++) {
        if (words->type == type) return words;
    }
    lk_panic(__FILE__, __LINE__, "an optimizer that is not in the list");
}
