// loss.c - losses over outputs of layers and labels: formulas, the reference, gradients.
// Freestanding. ARITHMETIC.md 4.
//
//   softmax cross-entropy, from logits, per example:
//       top = max_k l[k] (the first of equals is the prediction), e[k] = exp(l[k] - top),
//       s = tree over slices of sum_k e[k] (a chain of additions), r = 1 / s;
//       loss = log(s) - (l[label] - top);  dlogits[k] = e[k] * r - (k == label), + 0.0f
//   with label smoothing S above 0, off = S / classes, on = (1 - S) + off:
//       loss = log(s) - (off * sum of (l[k] - top) + (1 - S) * (l[label] - top));
//       dlogits[k] = e[k] * r - (k == label ? on : off), + 0.0f
//
// with class weights W, in training alone: loss * W[label] + 0.0f, dlogits[k] * W[label] + 0.0f.
//
// S is the one number of this loss: lk_loss_options.scale, lk_op.scale. W is a tensor of the device
// region, LK_AUX (ops/graph/program.c).
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

// What an example of a class is away from `top`, of which its loss is made.
static float distance_of(const lk_op *op, const float *logits, float own, float top) {
    const uint32_t classes = (uint32_t)op->floats;
    slice_sum s;
    if (op->scale == 0.0f) return own - top;
    slice_start(&s, 0.0f);
    for (uint32_t k = 0; k < classes; k++) slice_term(&s, 1.0f, logits[k] - top);
    return lk_fmaf(op->scale / lk_count_to_float(classes), slice_finish(&s),
                   (1.0f - op->scale) * (own - top));
}

// The classes' weights, in training; NULL: there are none. (Boards know none: `lockstep embed`
// refuses them.)
static const float *weights_of(const lk_lane *l) {
#ifdef LK_SHORT_FORM_ALONE
    (void)l;
    return NULL;
#else
    return l->train ? l->at[LK_AUX] : NULL;
#endif
}

static uint32_t softmax_cross_entropy(lk_lane *l, const lk_op *op) {
    const uint32_t classes = (uint32_t)op->floats, *labels = l->at[LK_X2];
    const float *weights = weights_of(l);
    const float off = op->scale / lk_count_to_float(classes), on = 1.0f - op->scale + off;
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
        loss[m] = own ? lk_logf(sum) - distance_of(op, logits, *own, top) + 0.0f
                      : __builtin_nanf("");
        if (weights && own) loss[m] = loss[m] * weights[labels[m]] + 0.0f;
        bad |= lk_not_finite(loss[m]);
        hits += prediction == labels[m];
        for (uint32_t k = 0; dlogits && k < classes; k++) {
            float p = lk_expf(logits[k] - top) * reciprocal;
            float g = p - (k == labels[m] ? on : off) + 0.0f;
            if (weights && own) g = g * weights[labels[m]] + 0.0f;
            bad |= lk_not_finite(g);
            *dlogits++ = g;
        }
    }
    l->counts[0] += hits;
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
    return lk_build_loss(b, &lk_op_softmax_cross_entropy, NULL);
}

const lk_op_type lk_op_softmax_cross_entropy = {.name = "softmax_cross_entropy",
                                                .number = LK_OP_SOFTMAX_CROSS_ENTROPY,
                                                .scope = LK_SCOPE_LOSS,
                                                .reference = softmax_cross_entropy,
                                                .mixed = true};

const lk_loss_type lk_loss_sparse_categorical_crossentropy = {
    .inputs = 1,
    .labels = true,
    .metrics = {.sum_count = 1,
                .sum = {"loss"},
                .count_count = 1,
                .count = {"correct"},
                .share = {"accuracy"}},
    .build = LK_RULE(build_sparse_categorical_crossentropy)};
#define LABEL_SMOOTHING                                                       \
    {                                                                         \
        .name = "label_smoothing", .kind = LK_SETTING_FLOAT,                  \
        .offset = offsetof(lk_loss_options, scale), .field = "scale",         \
        .below = 1.0f, .high = 1.0f,                                          \
        .meaning = "the share of a label that is spread over all classes"     \
    }
static const lk_setting sparse_keys[] = {
    {.name = "class_weight",
     .kind = LK_SETTING_WEIGHTS,
     .offset = offsetof(lk_loss_options, class_weight),
     .high = 1e6f,
     .chosen = "1 each",
     .meaning = "what an example of a class counts in training, its loss and its gradient"},
    LABEL_SMOOTHING};
static const lk_setting crossentropy_keys[] = {LABEL_SMOOTHING};
const lk_loss_words lk_loss_words_sparse_categorical_crossentropy = {
    .type = &lk_loss_sparse_categorical_crossentropy,
    .name = "sparse_categorical_crossentropy",
    .keys = sparse_keys,
    .key_count = LK_COUNT(sparse_keys),
    .meaning = "softmax cross-entropy from logits, labels are class numbers",
    .export_node = "Softmax",
    .export_name = "probabilities"};

// --- binary_crossentropy -------------------------------------------------------------------------
//
//   of K logits z and a label, r = 1 / K; y[k] = 1 where k is the label, of one logit y[0] = label:
//       with smoothing S: y = 1 - S + S * 0.5 in place of 1, S * 0.5 in place of 0;
//       l[k] = fma(y[k], log1pexp(-z[k]), (1 - y[k]) * log1pexp(z[k]));  loss = (sum of l[k]) * r;
//       dz[k] = (sigmoid(z[k]) - y[k]) * r + 0.0f
//   The prediction is the first greatest logit, of one logit 1 where it is above 0. A label that is
//   no class: the example's loss is NaN, and reported.

static uint32_t binary_crossentropy(lk_lane *l, const lk_op *op) {
    const uint32_t count = (uint32_t)op->floats, *labels = l->at[LK_X2];
    const uint32_t classes = LK_MAX(count, 2u);
    const float off = op->scale * 0.5f, on = 1.0f - op->scale + off;
    const float part = 1.0f / lk_count_to_float(count), *z = l->at[LK_X];
    float *loss = l->at[LK_Y], *dz = l->train ? l->at[LK_DX] : NULL;
    uint32_t bad = 0;
    for (uint32_t m = 0; m < l->examples; m++, z += count) {
        const uint32_t prediction = count == 1 ? z[0] > 0.0f : first_maximum(count, z);
        const uint32_t label = labels[m];
        slice_sum s;
        slice_start(&s, 0.0f);
        for (uint32_t k = 0; k < count; k++) {
            const float y = (count == 1 ? label == 1 : label == k) ? on : off;
            slice_term(&s, 1.0f,
                       lk_fmaf(y, lk_log1pexpf(-z[k]), (1.0f - y) * lk_log1pexpf(z[k])));
            if (!dz) continue;
            *dz = (lk_sigmoidf(z[k]) - y) * part + 0.0f;
            bad |= lk_not_finite(*dz++);
        }
        const float value = label < classes ? slice_finish(&s) * part : __builtin_nanf("");
        bad |= lk_not_finite(value);
        loss[m] = value;
        l->counts[0] += prediction == label;
    }
    return bad;
}

static lk_status build_binary_crossentropy(lk_builder *b) {
    const lk_shape *s = &b->output.shape;
    const uint32_t classes = b->program->spec->model.classes;
    if (!s->flat || classes < 2 || (s->c != classes && (s->c != 1 || classes != 2))) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "model: the last layer's output is %u x %u x %u, wanted %u logits (one a "
                       "class, or one alone of 2 classes) for the loss; end with flatten and a "
                       "dense layer of that many units",
                       s->h, s->w, s->c, classes);
    }
    return lk_build_loss(b, &lk_op_binary_crossentropy, NULL);
}

const lk_op_type lk_op_binary_crossentropy = {.name = "binary_crossentropy",
                                              .number = LK_OP_BINARY_CROSSENTROPY,
                                              .scope = LK_SCOPE_LOSS,
                                              .reference = binary_crossentropy,
                                              .mixed = true};

const lk_loss_type lk_loss_binary_crossentropy = {.inputs = 1,
                                                  .labels = true,
                                                  .metrics = {.sum_count = 1,
                                                              .sum = {"loss"},
                                                              .count_count = 1,
                                                              .count = {"correct"},
                                                              .share = {"accuracy"}},
                                                  .build = LK_RULE(build_binary_crossentropy)};
const lk_loss_words lk_loss_words_binary_crossentropy = {
    .type = &lk_loss_binary_crossentropy,
    .name = "binary_crossentropy",
    .keys = crossentropy_keys,
    .key_count = LK_COUNT(crossentropy_keys),
    .meaning = "of a sigmoid of each logit: of each class by itself, or of the second of two"};

// --- mean_squared_error --------------------------------------------------------------------------
//
//   of the prediction p and the target t, per example, K values each, r = 1 / K:
//       d[k] = p[k] - t[k];  loss = (sum of d[k] * d[k]) * r;
//       mean_absolute_error = (sum of |d[k]|) * r;
//       dp[k] = d[k] * (2 * r) + 0.0f;  dt[k] = 0 - dp[k]

static uint32_t mean_squared_error(lk_lane *l, const lk_op *op) {
    const float *p = l->at[LK_X], *t = l->at[LK_X2];
    const float part = 1.0f / lk_count_to_float(op->floats);
    float *y = l->at[LK_Y], *dp = l->train ? l->at[LK_DX] : NULL;
    uint32_t bad = 0;
    for (uint32_t m = 0; m < l->examples; m++, y += 2) {
        slice_sum squares, absolutes;
        slice_start(&squares, 0.0f);
        slice_start(&absolutes, 0.0f);
        for (uint64_t k = 0; k < op->floats; k++, p++, t++) {
            const float d = *p - *t;
            slice_term(&squares, d, d);
            slice_term(&absolutes, 1.0f, d < 0.0f ? -d : d);
            if (!dp) continue;
            *dp = d * (2.0f * part) + 0.0f;
            bad |= lk_not_finite(*dp++);
        }
        y[0] = slice_finish(&squares) * part;
        y[1] = slice_finish(&absolutes) * part;
        bad |= lk_not_finite(y[0]) | lk_not_finite(y[1]);
    }
    return bad;
}

static uint32_t mean_squared_error_target_gradient(lk_lane *l, const lk_op *op) {
    const float *dp = l->at[LK_DY];
    float *dt = l->at[LK_DX];
    for (uint64_t i = 0; i < l->examples * op->floats; i++) dt[i] = 0.0f - dp[i];
    return 0;
}

static uint64_t values_of(const lk_shape *s) { return (uint64_t)s->h * s->w * s->c; }

static lk_status build_mean_squared_error(lk_builder *b) {
    const lk_shape *p = &b->output.shape, *t = &b->target.shape;
    if (b->output.op == b->target.op) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "model.loss: both inputs are the same tensor, wanted a prediction and a "
                       "target; name two others in its \"inputs\"");
    }
    if (values_of(p) != values_of(t)) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "model.loss: its inputs are %u x %u x %u and %u x %u x %u, wanted two of as "
                       "many values; change the layers, or name others in its \"inputs\"",
                       p->h, p->w, p->c, t->h, t->w, t->c);
    }
    return lk_build_loss(b, &lk_op_mean_squared_error, &lk_op_mean_squared_error_target_gradient);
}

const lk_op_type lk_op_mean_squared_error = {.name = "mean_squared_error",
                                             .number = LK_OP_MEAN_SQUARED_ERROR,
                                             .scope = LK_SCOPE_LOSS,
                                             .reference = mean_squared_error,
                                             .mixed = true};
const lk_op_type lk_op_mean_squared_error_target_gradient = {
    .name = "mean_squared_error_target_gradient",
    .number = LK_OP_MEAN_SQUARED_ERROR_TARGET_GRADIENT,
    .scope = LK_SCOPE_EXAMPLES,
    .reference = mean_squared_error_target_gradient,
    .mixed = true};

const lk_loss_type lk_loss_mean_squared_error = {
    .inputs = 2,
    .metrics = {.sum_count = 2, .sum = {"loss", "mean_absolute_error"}},
    .build = LK_RULE(build_mean_squared_error)};
const lk_loss_words lk_loss_words_mean_squared_error = {
    .type = &lk_loss_mean_squared_error,
    .name = "mean_squared_error",
    .meaning = "of two inputs: the prediction, and the target, which is the model's input unless "
               "named; a mean over values"};

// --- mean ----------------------------------------------------------------------------------------
//
//   of the K outputs of an example, r = 1 / K:
//       loss = ((sum of x[k]) * r) * scale;  dx[k] = r * scale + 0.0f

static uint32_t mean(lk_lane *l, const lk_op *op) {
    const float *x = l->at[LK_X];
    const float part = 1.0f / lk_count_to_float(op->floats), slope = part * op->scale + 0.0f;
    float *y = l->at[LK_Y], *dx = l->train ? l->at[LK_DX] : NULL;
    uint32_t bad = lk_not_finite(slope);
    for (uint32_t m = 0; m < l->examples; m++) {
        slice_sum s;
        slice_start(&s, 0.0f);
        for (uint64_t k = 0; k < op->floats; k++) slice_term(&s, 1.0f, *x++);
        y[m] = slice_finish(&s) * part * op->scale + 0.0f;
        bad |= lk_not_finite(y[m]);
        for (uint64_t k = 0; dx && k < op->floats; k++) *dx++ = slope;
    }
    return bad;
}

static lk_status build_mean(lk_builder *b) { return lk_build_loss(b, &lk_op_mean, NULL); }

const lk_op_type lk_op_mean = {
    .name = "mean", .number = LK_OP_MEAN, .scope = LK_SCOPE_LOSS, .reference = mean,
    .mixed = true};

const lk_loss_type lk_loss_mean = {
    .inputs = 1, .metrics = {.sum_count = 1, .sum = {"loss"}}, .build = LK_RULE(build_mean)};

static const lk_setting mean_keys[] = {
    {.name = "scale",
     .kind = LK_SETTING_FLOAT,
     .offset = offsetof(lk_loss_options, scale),
     .low = -1e6f,
     .high = 1e6f,
     .float_constant = 1.0f,
     .meaning = "what the mean is multiplied by; -1 makes it large"},
};
const lk_loss_words lk_loss_words_mean = {.type = &lk_loss_mean,
                                          .name = "mean",
                                          .keys = mean_keys,
                                          .key_count = LK_COUNT(mean_keys),
                                          .meaning = "of the output's values, times a scale"};
