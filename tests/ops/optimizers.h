// optimizers.h - every optimizer, with each of its switches, for the tests of updates.
#ifndef LOCKSTEP_TESTS_OPS_OPTIMIZERS_H
#define LOCKSTEP_TESTS_OPS_OPTIMIZERS_H

#include "ops/optimizer.h"

#define CASE(NAME) .type = &lk_optimizer_##NAME
#define TENTH      .learning_rate = 0x1.99999ap-4f
#define MEANS      .rho = 0.9f, .epsilon = 1e-7f
#define BETAS      .beta_1 = 0.9f, .beta_2 = 0.999f, .epsilon = 1e-8f

static const lk_optimizer optimizer_cases[] = {
    {CASE(sgd), TENTH},
    {CASE(sgd), TENTH, .clipvalue = 0.125f},
    {CASE(momentum), TENTH, .momentum = 0.9f},
    {CASE(momentum), TENTH, .momentum = 0.9f, .nesterov = true},
    {CASE(momentum), TENTH, .momentum = 0.9f, .clipvalue = 0.125f},
    {CASE(momentum_keras), TENTH, .momentum = 0.9f},
    {CASE(momentum_keras), TENTH, .momentum = 0.9f, .nesterov = true, .weight_decay = 0.1f},
    {CASE(rmsprop_tf1), TENTH, MEANS},
    {CASE(rmsprop_tf1), TENTH, MEANS, .momentum = 0.5f},
    {CASE(rmsprop_tf1), TENTH, MEANS, .centered = true, .clipvalue = 0.25f},
    {CASE(rmsprop_keras), TENTH, MEANS, .weight_decay = 0.01f},
    {CASE(rmsprop_keras), TENTH, MEANS, .centered = true, .momentum = 0.9f},
    {CASE(adam_tf1), TENTH, BETAS},
    {CASE(adam_tf1), TENTH, BETAS, .clipvalue = 0.25f},
    {CASE(adam_keras), TENTH, BETAS, .weight_decay = 0.01f},
    {CASE(adam_keras), TENTH, BETAS, .amsgrad = true},
    {CASE(adam_torch), TENTH, BETAS},
    {CASE(adam_torch), TENTH, BETAS, .weight_decay = 0.1f, .amsgrad = true},
    {CASE(adamw_torch), TENTH, BETAS, .weight_decay = 0.01f},
    {CASE(lars_tf), TENTH, .momentum = 0.9f, .eta = 0.01f},
    {CASE(lars_tf), TENTH, .momentum = 0.9f, .eta = 1.0f, .nesterov = true, .weight_decay = 0.1f},
    {CASE(lamb_keras), TENTH, BETAS},
    {CASE(lamb_keras), TENTH, BETAS, .weight_decay = 0.1f, .clipvalue = 0.25f},
    {CASE(sgd), TENTH, .clipnorm = 0.5f},
    {CASE(adam_keras), TENTH, BETAS, .global_clipnorm = 0.25f},
};

#undef CASE
#undef TENTH
#undef MEANS
#undef BETAS

// Is the slot a mean of squares, which is never below 0?
static inline bool is_square(const lk_slot *slot) {
    return slot->name[0] == 'v' || __builtin_strcmp(slot->name, "mean_square") == 0;
}

#endif
