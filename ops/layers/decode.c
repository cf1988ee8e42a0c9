// decode.c - see decode.h: the reference, and what of a decoding no kernel does. Freestanding.
// ARITHMETIC.md 4.
#include "ops/layers/decode.h"

#include "ops/graph/build.h"

static const uint32_t *row_of(const lk_lane *l, const lk_joint *j, uint32_t m) {
    return (const uint32_t *)l->at[LK_LABELS] + (uint64_t)m * (1 + j->labels);
}
static uint32_t *said_of(const lk_lane *l, const lk_joint *j, uint32_t m) {
    return (uint32_t *)l->at[LK_Y] + (uint64_t)m * (1 + j->labels);
}

// --- the reference -------------------------------------------------------------------------------

static uint32_t go_on(const lk_lane *l, const lk_op *op, uint32_t m) {
    const lk_joint *j = &op->joint;
    const uint64_t k = j->dense.k_count;
    const uint32_t frames = lk_joint_frames(j, row_of(l, j, m));
    const float *x = (const float *)l->at[LK_X] + (uint64_t)m * j->frames * k;
    const float *x2 = (const float *)l->at[LK_X2] + (uint64_t)m * (j->labels + 1) * k;
    float *h = l->at[LK_SCRATCH], *z = h + lk_round_up(k, 16);
    lk_decoding *d = (lk_decoding *)l->at[LK_AUX] + m;
    uint32_t bad = 0;
    d->waits = 0;
    while (!bad && !d->waits && lk_decoding_is_on(j, d, frames)) {
        bad = lk_joint_scores(op, x + d->frame * k, x2 + d->said * k, l->param, h, z);
        lk_decoding_take(d, lk_decoding_symbol(j->classes, z), said_of(l, j, m));
    }
    return bad;
}

static uint32_t decode(lk_lane *l, const lk_op *op) {
    uint32_t bad = 0;
    for (uint32_t m = 0; m < l->examples; m++) bad |= go_on(l, op, m);
    return bad;
}

// --- before, between and after -------------------------------------------------------------------

void lk_decode_start(const lk_lane *l, const lk_op *op) {
    const lk_joint *j = &op->joint;
    __builtin_memset(l->at[LK_AUX], 0, l->examples * sizeof(lk_decoding));
    for (uint32_t m = 0; m < l->examples; m++) {
        uint32_t *said = said_of(l, j, m);
        __builtin_memset(said, 0, (1 + j->labels) * sizeof *said);
        said[0] = row_of(l, j, m)[0];
    }
}

bool lk_decode_goes_on(const lk_lane *l, const lk_op *op) {
    const lk_joint *j = &op->joint;
    for (uint32_t m = 0; m < l->examples; m++) {
        const lk_decoding *d = (const lk_decoding *)l->at[LK_AUX] + m;
        if (d->waits && lk_decoding_is_on(j, d, lk_joint_frames(j, row_of(l, j, m)))) return true;
    }
    return false;
}

// row[k] becomes the errors from the first i labels of a to the first k of b, i from 0 up.
uint32_t lk_label_errors(const uint32_t *a, uint32_t a_count, const uint32_t *b, uint32_t b_count,
                         uint32_t *row) {
    for (uint32_t k = 0; k <= b_count; k++) row[k] = k;
    for (uint32_t i = 1; i <= a_count; i++) {
        uint32_t before = row[0];  // of i - 1 and k - 1
        row[0] = i;
        for (uint32_t k = 1; k <= b_count; k++) {
            const uint32_t changed = before + (a[i - 1] != b[k - 1]);
            before = row[k];
            row[k] = LK_MIN(LK_MIN(row[k], row[k - 1]) + 1, changed);
        }
    }
    return row[b_count];
}

void lk_decode_count(lk_lane *l, const lk_op *op) {
    const lk_joint *j = &op->joint;
    for (uint32_t m = 0; m < l->examples; m++) {
        const uint32_t *want = row_of(l, j, m), *said = said_of(l, j, m);
        const uint32_t count = lk_joint_labels(j, want);
        const uint32_t errors = lk_label_errors(said + 1, lk_joint_labels(j, said), want + 1, count,
                                                l->at[LK_SCRATCH]);
        l->counts[LK_DECODE_CORRECT] += errors == 0;
        l->counts[LK_DECODE_ERRORS] += errors;
        l->counts[LK_DECODE_LABELS] += count;
    }
}

// --- descriptor ----------------------------------------------------------------------------------

// Of the cells looked at together h and z, and their examples; or a row of errors.
uint64_t lk_decode_scratch(const lk_op *op, uint32_t examples) {
    const lk_joint *j = &op->joint;
    const lk_op dense = {.dense = j->dense};
    const uint64_t rows = LK_MIN(examples, j->tile);
    const uint64_t cells = lk_round_up(rows, 16) + lk_round_up(rows * j->dense.k_count, 16) +
                           lk_round_up(rows * j->dense.n_count, 16) +
                           lk_dense_forward_scratch(&dense, (uint32_t)rows);
    return LK_MAX(cells, j->labels + 1);
}

const lk_op_type lk_op_decode = {.name = "decode",
                                 .suffix = "/decoded",
                                 .number = LK_OP_DECODE,
                                 .labels = true,
                                 .mixed = true,
                                 .looks = true,
                                 .scope = LK_SCOPE_DECODE,
                                 .reference = LK_RULE(decode),
                                 .scratch_floats = LK_RULE(lk_decode_scratch)};
