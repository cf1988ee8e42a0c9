// initializer.h - initial values of parameters, as descriptors. Freestanding. To add one: its
// function and descriptor in ops/initializer.c, a line of the list, its formula in ARITHMETIC.md 8.
#ifndef LOCKSTEP_OPS_INITIALIZER_H
#define LOCKSTEP_OPS_INITIALIZER_H

#include "arena/base.h"

// Every initializer, named as Keras names it.
#define LK_INITIALIZER_LIST(X)                                                  \
    X(glorot_uniform) X(he_uniform) X(zeros) X(glorot_normal) X(he_normal)      \
    X(lecun_uniform) X(lecun_normal) X(truncated_normal) X(random_normal)       \
    X(random_uniform) X(orthogonal) X(constant) X(ones)

// What a parameter's values are drawn for.
typedef struct lk_initial {
    uint64_t seed;
    uint32_t param;  // its number, in canonical order
    uint64_t count;  // elements
    uint64_t fan_in, fan_out;
    uint64_t columns;  // the last size of its shape
    float value;       // what the initializer takes, below
} lk_initial;

typedef struct lk_initializer {
    const char *name;  // in a configuration
    void (*fill)(const lk_initial *what, float *w);
    // What it takes, a number: 0 in a configuration stands for its own. NULL: it takes none.
    const char *takes;
    float own;
} lk_initializer;

#define LK_INITIALIZER_DECLARE(name) extern const lk_initializer lk_initializer_##name;
LK_INITIALIZER_LIST(LK_INITIALIZER_DECLARE)
#undef LK_INITIALIZER_DECLARE

// What no configuration names: biases of an LSTM, ones for its forget gates.
extern const lk_initializer lk_initializer_forget_ones;

// Entry `number` of the list, NULL past its end.
const lk_initializer *lk_initializer_at(uint32_t number);

#endif
