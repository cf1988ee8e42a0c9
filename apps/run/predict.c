// predict.c - the outputs of a run's model for examples of the caller's: an evaluation whose labels
// nobody knows, and whose loss nobody looks at.
#include <string.h>

#include "apps/run/run.h"

// So many are given to the replicas at once: their numbers fit wherever grains are counted.
enum { PREDICTED_AT_ONCE = 1 << 20 };

typedef struct prediction {
    lk_run *run;
    lk_source source;
    const uint8_t *inputs;
    uint64_t count, input_bytes;
    uint32_t outputs;  // of an example
    float *logits;
} prediction;

static void in_order(void *context, uint64_t epoch, uint64_t position, uint32_t count,
                     uint64_t *index) {
    (void)context, (void)epoch;
    for (uint32_t i = 0; i < count; i++) index[i] = position + i;
}

static const uint8_t *given_input(void *context, uint64_t index) {
    const prediction *p = context;
    return p->inputs + index * p->input_bytes;
}

static uint32_t any_label(void *context, uint64_t index) {
    return lk_any_label(&((const prediction *)context)->run->config.spec.model, index);
}

static void keep_labels(const prediction *p, uint64_t first, uint32_t count, const uint32_t *said) {
    for (uint32_t m = 0; m < count; m++, said += 1 + p->outputs) {
        float *to = p->logits + (first + m) * p->outputs;
        for (uint32_t i = 0; i < p->outputs; i++) to[i] = (float)said[1 + i];
    }
}

// Replicas are here at the same time, each with rows of its own.
static void keep_logits(void *context, uint64_t first, uint32_t count, const float *logits) {
    const prediction *p = context;
    const uint64_t row = (uint64_t)p->outputs * sizeof *logits;
    if (p->run->config.spec.model.labels) {
        keep_labels(p, first, count, (const uint32_t *)(const void *)logits);
    } else {
        memcpy(p->logits + first * p->outputs, logits, count * row);
    }
}

static lk_status predict_some(prediction *p, lk_error *error) {
    lk_run *run = p->run;
    run->group.on_logits = keep_logits;
    run->group.on_logits_context = p;
    const lk_step_result result = lk_run_evaluate_examples(run, 0, &p->source, p->count);
    run->group.on_logits = NULL;
    if (run->lost.status != LK_OK) *error = run->lost;
    if (run->lost.status != LK_OK) return error->status;
    if (!result.bad_tensor || result.bad_loss) return LK_OK;
    return lk_fail(error, LK_NOT_FINITE, "prediction: %s is not finite", result.bad_tensor);
}

lk_status lk_run_predict(lk_run *run, const void *inputs, uint64_t count, float *logits,
                         lk_error *error) {
    const lk_model *m = &run->config.spec.model;
    prediction p = {.run = run,
                    .input_bytes = lk_model_input_bytes(m),
                    .outputs = (uint32_t)lk_program_prediction(&run->program)};
    lk_assert(!run->workers.joined);
    p.source = (lk_source){&p, in_order, given_input, any_label, true, NULL, false};
    for (uint64_t first = 0; first < count; first += p.count) {
        p.inputs = (const uint8_t *)inputs + first * p.input_bytes;
        p.logits = logits + first * p.outputs;
        p.count = LK_MIN(count - first, (uint64_t)PREDICTED_AT_ONCE);
        LK_CHECK(predict_some(&p, error));
    }
    return LK_OK;
}
