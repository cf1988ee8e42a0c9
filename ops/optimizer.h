// optimizer.h - optimizers: which slots they keep and how a step changes a parameter. Freestanding.
//
// The formulas are TensorFlow 1's (training_ops), in fma form; g is the mean gradient, lr and mu
// the floats of the configuration:
//
//   sgd                  w = fma(-lr, g, w)
//   momentum             a = fma(mu, a, g);                      w = fma(-lr, a, w)
//   momentum, nesterov   a = fma(mu, a, g);  u = fma(mu, a, g);  w = fma(-lr, u, w)
//
// (TF writes the last as w -= g*lr + a*mu*lr.) Slots start at +0; the slot is stored as it is, w as
// it is.
#ifndef LOCKSTEP_OPS_OPTIMIZER_H
#define LOCKSTEP_OPS_OPTIMIZER_H

#include "arena/base.h"

enum { LK_OPTIMIZER_SLOTS_MAX = 4 };

typedef enum lk_optimizer_kind { LK_SGD = 1, LK_MOMENTUM = 2 } lk_optimizer_kind;

typedef struct lk_optimizer {
    lk_optimizer_kind kind;
    float learning_rate;
    float momentum;
    bool nesterov;
} lk_optimizer;

static inline uint32_t lk_optimizer_slot_count(const lk_optimizer *o) {
    return o->kind == LK_MOMENTUM ? 1 : 0;
}
static inline const char *lk_optimizer_slot_name(const lk_optimizer *o, uint32_t slot) {
    (void)o;
    (void)slot;
    return "momentum";
}

#endif
