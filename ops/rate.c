// rate.c - rate schedules, one after another: formula, function, descriptor. Freestanding.
//
// lr is the learning rate of the optimizer, t the number of updates before this one, counted from
// the end of the warm-up. The formulas are Keras 3's (keras.optimizers.schedules), in fp32.
#include "ops/rate.h"

#include "ops/powers.h"

// How much of `all` updates is done: 1 at the end and after it.
static float part_of(uint64_t t, uint64_t all) {
    return t >= all ? 1.0f : lk_count_to_float(t) / lk_count_to_float(all);
}

// 1 at 0, 1/2 in the middle, 0 at 1.
static float cosine_of(float part) { return 0.5f * (1.0f + lk_cos_pif(part)); }

// Every type's; ascending with the others (the identity's order).
#define WARMUP                                                                                     \
    {.name = "warmup_from",                                                                        \
     .kind = LK_SETTING_FLOAT,                                                                     \
     .offset = offsetof(lk_rate, warmup_from),                                                     \
     .low = 0.0f,                                                                                  \
     .high = 0x1.fffffep+127f,                                                                     \
     .meaning = "the rate of the first update of a warm-up"},                                      \
    {                                                                                              \
        .name = "warmup_steps", .kind = LK_SETTING_U64, .offset = offsetof(lk_rate, warmup_steps), \
        .zero = true, .most = STEPS_MAX,                                                           \
        .meaning = "updates in which the rate goes to learning_rate; the rest begins then"         \
    }
#define STEPS(MEANING)                                                               \
    {                                                                                \
        .name = "steps", .kind = LK_SETTING_U64, .offset = offsetof(lk_rate, steps), \
        .required = true, .most = STEPS_MAX, .meaning = MEANING                      \
    }
#define NUMBER(FIELD, HIGH, CONSTANT, MEANING)                                                     \
    {                                                                                              \
        .name = #FIELD, .kind = LK_SETTING_FLOAT, .offset = offsetof(lk_rate, FIELD), .low = 0.0f, \
        .high = HIGH, .float_constant = CONSTANT, .meaning = MEANING                               \
    }
#define ALPHA     NUMBER(alpha, 1.0f, 0.0f, "the share of learning_rate that is left at the end")
#define STEPS_MAX ((uint64_t)1 << 40)
#define ANY       0x1.fffffep+127f

// What a configuration refuses by its table, for who builds a run in C.
static lk_status check_steps(const lk_rate *r, lk_error *error) {
    const float numbers[] = {r->warmup_from, r->decay_rate,        r->alpha,
                             r->m_mul,       r->end_learning_rate, r->power};
    bool good = r->steps > 0;
    for (uint32_t i = 0; i < LK_COUNT(numbers); i++) {
        good = good && numbers[i] >= 0.0f && numbers[i] - numbers[i] == 0.0f;
    }
    if (good && r->decay_rate <= 1.0f && r->alpha <= 1.0f && r->m_mul <= 1.0f) return LK_OK;
    return lk_fail(
        error, LK_BAD_CONFIG,
        "optimizer.learning_rate_schedule: found no steps, or a number outside the bounds "
        "that lockstep help keys shows");
}

static lk_status check_restarts(const lk_rate *r, lk_error *error) {
    LK_CHECK(check_steps(r, error));
    if (r->t_mul > 0) return LK_OK;
    return lk_fail(error, LK_BAD_CONFIG,
                   "optimizer.learning_rate_schedule.t_mul: found 0, wanted 1 or more");
}

#define WORDS(NAME, MEANING)                                                        \
    static const lk_rate_words words_##NAME = {&lk_rate_##NAME, #NAME, NAME##_keys, \
                                               LK_COUNT(NAME##_keys), MEANING}

// --- constant             lr
static float constant_at(const lk_rate *r, float lr, uint64_t t) {
    (void)r, (void)t;
    return lr;
}

const lk_rate_type lk_rate_constant = {.at = constant_at};
static const lk_setting constant_keys[] = {WARMUP};
WORDS(constant, "the same in all updates");

// --- piecewise            lr where t <= boundaries[0], values[i] where boundaries[i] < t and t is
//                          not above the next
static float piecewise_at(const lk_rate *r, float lr, uint64_t t) {
    float rate = lr;
    for (uint32_t i = 0; i < r->boundaries.count && r->boundaries.at[i] < t; i++) {
        rate = r->values.at[i];
    }
    return rate;
}

static lk_status check_piecewise(const lk_rate *r, lk_error *error) {
    if (r->values.count != r->boundaries.count) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "optimizer.learning_rate_schedule.values: found %u numbers, wanted %u: one "
                       "for each of the boundaries",
                       r->values.count, r->boundaries.count);
    }
    for (uint32_t i = 1; i < r->boundaries.count; i++) {
        if (r->boundaries.at[i] > r->boundaries.at[i - 1]) continue;
        return lk_fail(error, LK_BAD_CONFIG,
                       "optimizer.learning_rate_schedule.boundaries: found %llu after %llu, wanted "
                       "numbers that ascend",
                       (unsigned long long)r->boundaries.at[i],
                       (unsigned long long)r->boundaries.at[i - 1]);
    }
    return LK_OK;
}

const lk_rate_type lk_rate_piecewise = {.at = piecewise_at, .check = check_piecewise};
static const lk_setting piecewise_keys[] = {
    {.name = "boundaries",
     .kind = LK_SETTING_STEPS,
     .offset = offsetof(lk_rate, boundaries),
     .required = true,
     .most = STEPS_MAX,
     .meaning = "the last update of each rate but the last, ascending; the first update is 0"},
    {.name = "values",
     .kind = LK_SETTING_FLOATS,
     .offset = offsetof(lk_rate, values),
     .required = true,
     .high = ANY,
     .meaning = "the rate after each of the boundaries"},
    WARMUP};
WORDS(piecewise, "Keras' PiecewiseConstantDecay: learning_rate, then values");

// --- exponential          lr * decay_rate^(t / steps), or of the quotient rounded down
static float exponential_at(const lk_rate *r, float lr, uint64_t t) {
    const float power = r->staircase ? lk_count_to_float(t / r->steps)
                                     : lk_count_to_float(t) / lk_count_to_float(r->steps);
    return lr * lk_powf(r->decay_rate, power);
}

const lk_rate_type lk_rate_exponential = {.at = exponential_at, .check = check_steps};
static const lk_setting exponential_keys[] = {
    {.name = "decay_rate",
     .kind = LK_SETTING_FLOAT,
     .offset = offsetof(lk_rate, decay_rate),
     .required = true,
     .low = 0.0f,
     .high = 1.0f,
     .meaning = "what the rate is multiplied with in so many steps"},
    {.name = "staircase",
     .kind = LK_SETTING_BOOL,
     .offset = offsetof(lk_rate, staircase),
     .meaning = "all at once, at their end"},
    STEPS("updates in which the rate falls by decay_rate"),
    WARMUP};
WORDS(exponential, "Keras' ExponentialDecay");

// --- cosine               lr * fma(1 - alpha, cosine, alpha) over `steps`
static float cosine_at(const lk_rate *r, float lr, uint64_t t) {
    return lr * lk_fmaf(1.0f - r->alpha, cosine_of(part_of(t, r->steps)), r->alpha);
}

const lk_rate_type lk_rate_cosine = {.at = cosine_at, .check = check_steps};
static const lk_setting cosine_keys[] = {ALPHA, STEPS("updates to the end of the fall"), WARMUP};
WORDS(cosine, "Keras' CosineDecay");

// --- cosine_restarts      the same again and again: period i has steps * t_mul^i updates, and its
//                          cosine is multiplied with m_mul^i
static float cosine_restarts_at(const lk_rate *r, float lr, uint64_t t) {
    uint64_t period = r->steps, number = 0;
    if (r->t_mul == 1) {
        number = t / period;
        t %= period;
    }
    for (; t >= period; number++) {
        t -= period;
        if (!lk_mul_ok(period, r->t_mul, &period)) period = UINT64_MAX;
    }
    const float cosine = lk_power(r->m_mul, number) * cosine_of(part_of(t, period));
    return lr * lk_fmaf(1.0f - r->alpha, cosine, r->alpha);
}

const lk_rate_type lk_rate_cosine_restarts = {.at = cosine_restarts_at, .check = check_restarts};
static const lk_setting cosine_restarts_keys[] = {
    ALPHA,
    NUMBER(m_mul, 1.0f, 1.0f, "what each restart begins with, as a share of the one before"),
    STEPS("updates of the first period"),
    {.name = "t_mul",
     .kind = LK_SETTING_U32,
     .offset = offsetof(lk_rate, t_mul),
     .most = 1000,
     .constant = 2,
     .meaning = "how much longer each period is than the one before"},
    WARMUP};
WORDS(cosine_restarts, "Keras' CosineDecayRestarts");

// --- polynomial           fma(lr - end, (1 - t / steps)^power, end)
static float polynomial_at(const lk_rate *r, float lr, uint64_t t) {
    const float left = lk_powf(1.0f - part_of(t, r->steps), r->power);
    return lk_fmaf(lr - r->end_learning_rate, left, r->end_learning_rate);
}

const lk_rate_type lk_rate_polynomial = {.at = polynomial_at, .check = check_steps};
static const lk_setting polynomial_keys[] = {
    NUMBER(end_learning_rate, ANY, 0x1.a36e2ep-14f, "the rate at the end and after it"),
    NUMBER(power, ANY, 1.0f, "1: a straight line"), STEPS("updates to the end"), WARMUP};
WORDS(polynomial, "Keras' PolynomialDecay, without its cycle");

// --- the list ------------------------------------------------------------------------------------

const lk_rate_words *lk_rate_words_at(uint32_t number) {
    static const lk_rate_words *const all[] = {
#define LK_RATE_ENTRY(name) &words_##name,
        LK_RATE_LIST(LK_RATE_ENTRY)
#undef LK_RATE_ENTRY
    };
    return number < LK_COUNT(all) ? all[number] : NULL;
}

const lk_rate_words *lk_rate_words_of(const lk_rate_type *type) {
    const lk_rate_words *words;
    for (uint32_t i = 0; (words = lk_rate_words_at(i)) != NULL; i++) {
        if (words->type == (type ? type : &lk_rate_constant)) return words;
    }
    lk_panic(__FILE__, __LINE__, "a rate schedule that is not in the list");
}

lk_status lk_rate_check(const lk_rate *rate, lk_error *error) {
    if (!rate->type || !rate->type->check) return LK_OK;
    return rate->type->check(rate, error);
}

float lk_rate_at(const lk_rate *rate, float lr, uint64_t t) {
    if (t < rate->warmup_steps) {
        const float part = lk_count_to_float(t) / lk_count_to_float(rate->warmup_steps);
        return lk_fmaf(lr - rate->warmup_from, part, rate->warmup_from);
    }
    return rate->type ? rate->type->at(rate, lr, t - rate->warmup_steps) : lr;
}
