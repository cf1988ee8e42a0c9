// loss.c - losses over the last layer's output and the labels: formulas, the reference, gradients.
// Freestanding. ARITHMETIC.md 4.
//
//   softmax cross-entropy, from logits, per example:
//       top = max_k l[k] (the first of equals is the prediction), e[k] = exp(l[k] - top),
//       s = tree over slices of sum_k e[k] (a chain of additions), r = 1 / s;
//       loss = log(s) - (l[label] - top);  dlogits[k] = e[k] * r - (k == label), + 0.0f
//
// logits and dlogits (m, classes), labels (m), loss (m). A label from `classes` on is no class: the
// example's loss is NaN, and reported.
#include "ops/graph/build.h"
#include "ops/layers/sums.h"
#include "ops/math.h"

static uint32_t first_maximum(uint32_t count, const float *v) {
    uint32_t top = 0;
    for (uint32_t k = 1; k < count; k++) {
        if (v[k] > v[top]) top = k;
    }
    return top;
}

static uint32_t softmax_cross_entropy(lk_lane *l, const lk_op *op) {
    const uint32_t classes = (uint32_t)op->floats, *labels = l->at[LK_X2];
    const float *logits = l->at[LK_X];
    float *loss = l->at[LK_Y], *dlogits = l->train ? l->at[LK_DX] : NULL;
    uint32_t bad = 0, hits = 0;
    for (uint32_t m = 0; m < l->examples; m++, logits += classes) {
        uint32_t prediction = first_maximum(classes, logits);
        float top = logits[prediction];
        slice_sum s;
        slice_start(&s, 0.0f);
        for (uint32_t k = 0; k < classes; k++) slice_term(&s, 1.0f, lk_expf(logits[k] - top));
        float sum = slice_finish(&s);
        float reciprocal = 1.0f / sum;
        const float *own = labels[m] < classes ? logits + labels[m] : NULL;
        loss[m] = own ? lk_logf(sum) - (*own - top) + 0.0f : __builtin_nanf("");
        bad |= lk_not_finite(loss[m]);
        hits += prediction == labels[m];
        for (uint32_t k = 0; dlogits && k < classes; k++) {
            float p = lk_expf(logits[k] - top) * reciprocal;
            float g = p - (k == labels[m] ? 1.0f : 0.0f) + 0.0f;
            bad |= lk_not_finite(g);
            *dlogits++ = g;
        }
    }
    l->correct = hits;
    return bad;
}

static lk_status build_sparse_categorical_crossentropy(lk_builder *b) {
    const lk_shape *s = &b->output.shape;
    const uint32_t classes = b->program->spec->model.classes;
    if (!s->flat || s->c != classes || classes < 2) {
        return lk_fail(
            b->error, LK_BAD_CONFIG,
            "model: the last layer's output is %u x %u x %u, wanted %u logits (one a class, "
            "at least 2) for the loss; end with flatten and a dense layer of that many units",
            s->h, s->w, s->c, classes);
    }
    return lk_build_loss(b, &lk_op_softmax_cross_entropy);
}

const lk_op_type lk_op_softmax_cross_entropy = {.name = "softmax_cross_entropy",
                                                .number = LK_OP_SOFTMAX_CROSS_ENTROPY,
                                                .scope = LK_SCOPE_LOSS,
                                                .reference = softmax_cross_entropy};

const lk_loss_type lk_loss_sparse_categorical_crossentropy = {
    .build = build_sparse_categorical_crossentropy, .labels = true};
const lk_loss_words lk_loss_words_sparse_categorical_crossentropy = {
    .type = &lk_loss_sparse_categorical_crossentropy,
    .name = "sparse_categorical_crossentropy",
    .meaning = "softmax cross-entropy from logits, labels are class numbers",
    .export_node = "Softmax",
    .export_name = "probabilities"};
