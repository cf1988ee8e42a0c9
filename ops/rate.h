// rate.h - rate schedules as descriptors: how the learning rate follows the number of updates.
// Freestanding. To add one: its function and descriptor in ops/rate.c, a line of the list, its
// formula in ARITHMETIC.md 7.
#ifndef LOCKSTEP_OPS_RATE_H
#define LOCKSTEP_OPS_RATE_H

#include "ops/setting.h"

// Every rate schedule, as a configuration calls it.
#define LK_RATE_LIST(X) \
    X(constant)         \
    X(piecewise)        \
    X(exponential)      \
    X(cosine)           \
    X(cosine_restarts)  \
    X(polynomial)

typedef struct lk_rate_type lk_rate_type;

// A rate schedule with its numbers; those that a type does not have are 0. Without a type:
// constant.
typedef struct lk_rate {
    LK_WIDE const lk_rate_type *type;
    // Any of them: in its first updates the rate goes from warmup_from to the learning rate.
    LK_WIDE uint64_t warmup_steps;
    LK_WIDE uint64_t steps;
    lk_steps_list boundaries;
    lk_floats_list values;
    float warmup_from;
    float decay_rate, alpha, m_mul, end_learning_rate, power;
    uint32_t t_mul;
    bool staircase;
} lk_rate;

struct lk_rate_type {
    // The rate of update t, counted from the end of the warm-up; lr is the optimizer's.
    float (*at)(const lk_rate *rate, float lr, uint64_t t);
    lk_status (*check)(const lk_rate *rate, lk_error *error);  // NULL: nothing of its own
};

#define LK_RATE_DECLARE(name) extern const lk_rate_type lk_rate_##name;
LK_RATE_LIST(LK_RATE_DECLARE)
#undef LK_RATE_DECLARE

// How a configuration writes it.
typedef struct lk_rate_words {
    const lk_rate_type *type;
    const char *name;
    const lk_setting *keys;  // by name, ascending
    uint32_t key_count;
    const char *meaning;
} lk_rate_words;

// Entry `number` of the list, NULL past its end; the words of a type (NULL: constant).
const lk_rate_words *lk_rate_words_at(uint32_t number);
const lk_rate_words *lk_rate_words_of(const lk_rate_type *type);

lk_status lk_rate_check(const lk_rate *rate, lk_error *error);

// The learning rate of update t, from 0.
float lk_rate_at(const lk_rate *rate, float lr, uint64_t t);

#endif
