// scale.h - the loss scale of float16, mixed or fast: how it follows the steps. Freestanding.
// ARITHMETIC.md 16.
//
// A power of two that the gradient of every example's loss is multiplied by, so that small
// gradients are no zeros in 16 bits, and that every mean gradient is divided by. It is state of the
// run, with its counters, so that a run that is resumed has the one that it would have had.
#ifndef LOCKSTEP_OPS_SCALE_H
#define LOCKSTEP_OPS_SCALE_H

#include "ops/graph/program.h"

// What has become of a step.
typedef enum lk_scale_event {
    LK_SCALE_APPLIED,   // weights were updated
    LK_SCALE_SKIPPED,   // an overflow: nothing was written
    LK_SCALE_REPLAYED,  // .. and the same step is computed again
} lk_scale_event;

// The words of the state: the scale is `initial` times 2 to the power of the first.
enum {
    LK_SCALE_POWER,
    LK_SCALE_GOOD,      // updates in a row since it last changed
    LK_SCALE_IN_A_ROW,  // steps skipped one after another, up to now
    LK_SCALE_REPLAYS,   // .. of a run; two words, the low one first
    LK_SCALE_WORDS = LK_SCALE_REPLAYS + 2
};

typedef struct lk_scale_state {
    uint32_t word[LK_SCALE_WORDS];
} lk_scale_state;

// The state of the program's objective, each of which has its own, as the device region has it;
// NULL: the model has no loss scale.
lk_scale_state *lk_scale_of(const lk_program *program, uint8_t *device);

static inline uint64_t lk_scale_replays(const lk_scale_state *s) {
    return (uint64_t)s->word[LK_SCALE_REPLAYS + 1] << 32 | s->word[LK_SCALE_REPLAYS];
}

// The scale, and what it will be after an event.
float lk_scale_value(const lk_loss_scale *how, const lk_scale_state *state);
void lk_scale_follow(const lk_loss_scale *how, lk_scale_state *state, lk_scale_event event);

// What gradients are multiplied by to take it out again: 1 / scale, 1 where the model has none.
float lk_scale_inverse(const lk_program *program, uint8_t *device);

// Would an overflow make it smaller?
bool lk_scale_can_fall(const lk_loss_scale *how, const lk_scale_state *state);

// Powers of two, in their bounds. LK_BAD_CONFIG.
lk_status lk_scale_check(const lk_model *model, lk_error *error);

#endif
