// decode.h - what a transducer says of an example: greedy, frame by frame. Freestanding.
//
// At frame t, with u labels said, the symbol of the greatest score of cell (t, u) is taken, the
// lowest of equals, of the model's classes. A label is said: u + 1. The blank: t + 1. After
// LK_DECODE_HERE_MAX labels at one frame t + 1 as well. It ends behind the last frame, or with as
// many labels as are planned.
//
// The joint's second input of u labels is known once the prediction network has seen them. So all
// examples go on until each has said one more label, or is done; then that network runs again, over
// the labels said so far; and so on. What the walk (ops/graph/execute.c) does:
//
//     start;  do { run ops that say `again`, whose labels are those said;  run the decode op }
//             while goes_on;  count
#ifndef LOCKSTEP_OPS_LAYERS_DECODE_H
#define LOCKSTEP_OPS_LAYERS_DECODE_H

#include "ops/op.h"

// Labels said at one frame, the most.
enum { LK_DECODE_HERE_MAX = 10 };

// What an evaluation of a transducer counts: examples whose labels are all right; insertions,
// deletions and substitutions, the fewest that turn the labels said into those of the example; and
// the labels of all examples.
enum { LK_DECODE_CORRECT, LK_DECODE_ERRORS, LK_DECODE_LABELS };

// How far an example is: LK_AUX of a decode op, a row for each.
typedef struct lk_decoding {
    uint32_t frame, said;
    uint32_t here;   // labels said at this frame
    uint32_t waits;  // 1: for the prediction network
} lk_decoding;

enum { LK_DECODING_WORDS = sizeof(lk_decoding) / sizeof(uint32_t) };

// Whether a cell is left to look at: neither frames nor labels have run out.
LK_SCALAR bool lk_decoding_is_on(const lk_joint *j, const lk_decoding *d, uint32_t frames) {
    return d->frame < frames && d->said < j->labels;
}

// It goes on with the symbol of its cell,
LK_SCALAR void lk_decoding_next(lk_decoding *d, uint32_t symbol) {
    if (symbol != LK_BLANK) {
        d->said++;
        d->here++;
        d->waits = 1;
    }
    if (symbol != LK_BLANK && d->here < LK_DECODE_HERE_MAX) return;
    d->frame++;
    d->here = 0;
}
// which goes to `said`, its row of labels.
LK_SCALAR void lk_decoding_take(lk_decoding *d, uint32_t symbol, uint32_t *said) {
    if (symbol != LK_BLANK) said[1 + d->said] = symbol;
    lk_decoding_next(d, symbol);
}

// The first of the greatest.
LK_SCALAR uint32_t lk_decoding_symbol(uint32_t classes, const float *scores) {
    uint32_t top = 0;
    for (uint32_t n = 1; n < classes; n++) top = scores[n] > scores[top] ? n : top;
    return top;
}

// LK_Y, a row of labels for each example, says nothing yet.
void lk_decode_start(const lk_lane *lane, const lk_op *op);
// Does any example wait for the prediction network?
bool lk_decode_goes_on(const lk_lane *lane, const lk_op *op);
// Adds up lane->counts. Its scratch is used.
void lk_decode_count(lk_lane *lane, const lk_op *op);

// The fewest insertions, deletions and substitutions that make b of a.   row (b_count + 1)
uint32_t lk_label_errors(const uint32_t *a, uint32_t a_count, const uint32_t *b, uint32_t b_count,
                         uint32_t *row);

// Scores of a cell, as the joint `op` has them: h (k_count) and z (n_count). Returns 1 where one is
// not finite. (transducer.c)
uint32_t lk_joint_scores(const lk_op *op, const float *x, const float *x2,
                         float *const param[LK_OP_PARAMS], float *h, float *z);

// Floats of scratch for decoding `examples` examples.
uint64_t lk_decode_scratch(const lk_op *op, uint32_t examples);

#endif
