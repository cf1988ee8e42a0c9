// model.c - checks of a run's numbers; where a step begins. Freestanding.
#include "ops/graph/model.h"

#include "ops/geometry.h"

uint64_t lk_steps_per_epoch(const lk_run_spec *spec) {
    uint64_t whole = spec->example_count / spec->global_batch;
    bool rest = spec->example_count % spec->global_batch != 0;
    return whole + (rest && !spec->drop_remainder);
}

lk_step_place lk_step_place_of(const lk_model *m, uint64_t step) {
    if (lk_graph_of(m)) return lk_graph_of(m)->calls->place(lk_graph_of(m), step);
    return (lk_step_place){.images = true, .update = step, .batch = step};
}

uint64_t lk_steps_of_batches(const lk_model *m, uint64_t batches) {
    const lk_graph *g = lk_graph_of(m);
    return g ? g->calls->steps_of_batches(g, batches) : batches;
}

lk_batch_start lk_batch_start_of(const lk_run_spec *spec, uint64_t step) {
    const uint64_t steps = lk_steps_per_epoch(spec);
    const uint64_t batch = lk_step_place_of(&spec->model, step).batch;
    return (lk_batch_start){batch / steps, batch % steps * spec->global_batch};
}

uint32_t lk_step_examples(const lk_run_spec *spec, uint64_t step) {
    const lk_step_place place = lk_step_place_of(&spec->model, step);
    uint64_t at = place.batch % lk_steps_per_epoch(spec) * spec->global_batch;
    if (!place.images) return spec->global_batch;
    return (uint32_t)LK_MIN(spec->example_count - at, (uint64_t)spec->global_batch);
}

uint32_t lk_step_positions(const lk_run_spec *spec, uint64_t step) {
    return spec->shards ? spec->global_batch : lk_step_examples(spec, step);
}

lk_step_scalars lk_step_scalars_at(const lk_run_spec *spec, uint64_t step, uint64_t skipped) {
    // Every step of an objective that is not skipped is an update of it.
    const lk_step_place place = lk_step_place_of(&spec->model, step);
    const uint32_t examples = lk_step_examples(spec, step);
    lk_assert(skipped <= place.update);
    lk_step_scalars scalars =
        lk_optimizer_scalars(lk_optimizer_of(spec, place.objective), step, place.update - skipped,
                             1.0f / (float)examples);
    scalars.examples = examples;
    return scalars;
}

lk_place lk_place_of(const lk_run_spec *spec, uint64_t position) {
    return lk_order_place(spec->global_batch, spec->shards, position);
}

bool lk_position_exists(const lk_run_spec *spec, uint64_t position) {
    if (!spec->shards) return position < spec->example_count;
    lk_place place = lk_place_of(spec, position);
    return place.at < spec->shard_first[place.shard + 1] - spec->shard_first[place.shard];
}

uint32_t lk_default_grain(uint32_t global_batch) {
    uint32_t grain = 16;
    while (global_batch % grain != 0) grain /= 2;
    return grain;
}

uint32_t lk_default_fast_grain(uint32_t global_batch) {
    uint32_t grain = LK_GRAIN_MAX;
    while (global_batch % grain != 0 || (grain > 1 && grain > global_batch / 8)) grain /= 2;
    return LK_MAX(grain, lk_default_grain(global_batch));
}

const char *lk_precision_name(lk_precision precision) {
    static const char *const names[] = {"float32", "mixed_float16", "mixed_bfloat16"};
    return names[precision];
}

const char *lk_fast_precision_name(lk_fast_precision precision) {
    static const char *const names[] = {"strict", "tf32", "bf16", "fp16"};
    return names[precision];
}

static bool is_finite(float x) { return x - x == 0.0f; }

static lk_status check_optimizer(const lk_optimizer *o, lk_error *error) {
    if (!is_finite(o->learning_rate) || o->learning_rate < 0.0f) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "optimizer.learning_rate: found a negative or non-finite number, wanted a "
                       "finite number from 0 up");
    }
    if (!is_finite(o->clipvalue) || o->clipvalue < 0.0f || !is_finite(o->weight_decay) ||
        o->weight_decay < 0.0f) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "optimizer.clipvalue, optimizer.weight_decay: found a negative or a "
                       "non-finite number, wanted finite numbers from 0 up");
    }
    const float clips[] = {o->clipnorm, o->global_clipnorm, o->clipvalue};
    uint32_t given = 0;
    for (uint32_t i = 0; i < LK_COUNT(clips); i++) {
        if (!is_finite(clips[i]) || clips[i] < 0.0f || !is_finite(o->eta) || o->eta < 0.0f) {
            return lk_fail(error, LK_BAD_CONFIG,
                           "optimizer.clipnorm, global_clipnorm, eta: found a negative or a "
                           "non-finite number, wanted finite numbers from 0 up");
        }
        given += clips[i] > 0.0f;
    }
    if (given > (o->type->norm ? 0u : 1u) && (given > 1 || o->clipvalue == 0.0f)) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "optimizer: found %u of clipnorm, global_clipnorm and clipvalue, wanted one "
                       "at most%s; take the others out",
                       given, o->type->norm ? ", and with this optimizer clipvalue alone" : "");
    }
    LK_CHECK(lk_rate_check(&o->rate, error));
    return o->type->check ? o->type->check(o, error) : LK_OK;
}

// The largest divisor of `grains` that is not above `shards`.
static uint32_t fitting_shards(uint32_t grains, uint32_t shards) {
    uint32_t fit = LK_MIN(shards, grains);
    while (grains % fit != 0) fit--;
    return fit;
}

static lk_status check_shard_sizes(const lk_run_spec *spec, lk_error *error) {
    const uint64_t *first = spec->shard_first;
    uint32_t least = 0, most = 0;
    for (uint32_t k = 1; k < spec->shards; k++) {
        uint64_t size = first[k + 1] - first[k];
        if (size < first[least + 1] - first[least]) least = k;
        if (size > first[most + 1] - first[most]) most = k;
    }
    uint64_t small = first[least + 1] - first[least], large = first[most + 1] - first[most];
    if (large - small <= 1) return LK_OK;
    return lk_fail(error, LK_BAD_CONFIG,
                   "order \"sharded\": shard %u has %llu examples and shard %u has %llu, wanted "
                   "shards that differ by one example at most; shard the data again with --shards "
                   "%u",
                   least, (unsigned long long)small, most, (unsigned long long)large,
                   fitting_shards(lk_grain_count(spec), spec->shards));
}

static lk_status check_shards(const lk_run_spec *spec, lk_error *error) {
    uint32_t grains = lk_grain_count(spec);
    if (spec->shards == 0) return LK_OK;
    if (spec->global_batch % spec->grain != 0) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "order \"sharded\": grain: found %u, wanted a power of two that divides "
                       "global_batch %u, such as %u",
                       spec->grain, spec->global_batch, lk_default_grain(spec->global_batch));
    }
    if (grains % spec->shards != 0) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "order \"sharded\": found %u shards and %u grains a step, wanted a number "
                       "of shards that divides the grains; shard the data again with --shards %u",
                       spec->shards, grains, fitting_shards(grains, spec->shards));
    }
    return spec->shard_first ? check_shard_sizes(spec, error) : LK_OK;
}

#ifndef LK_SHORT_FORM_ALONE
static lk_status check_strips(const lk_run_spec *spec, lk_error *error) {
    const lk_model *m = &spec->model;
    const lk_strips *s = &spec->strips;
    if (s->most == 0) return LK_OK;
    if (s->least > s->most || m->labels < s->most || m->in_h % s->most != 0) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "data.strips: found %u to %u images, model.labels %u and %u rows of "
                       "model.input, wanted min up to max, as many labels as max or more, and max "
                       "times the columns of an image as rows",
                       s->least, s->most, m->labels, m->in_h);
    }
    if (spec->augment.shift_h == 0) return LK_OK;
    return lk_fail(error, LK_BAD_CONFIG,
                   "data.augment.shift: found %u rows, which are the times of a strip, and its "
                   "labels would not move with them; wanted [0, COLUMNS]",
                   spec->augment.shift_h);
}

static lk_status check_average(const lk_run_spec *spec, const lk_optimizer *o, lk_error *error) {
    if (!(o->weight_average >= 0.0f && o->weight_average < 1.0f)) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "optimizer.weight_average: found a number outside 0 <= weight_average < 1");
    }
    if (!lk_optimizer_averages(o) || spec->model.averages) return LK_OK;
    return lk_fail(error, LK_BAD_CONFIG,
                   "optimizer.weight_average: found it without what computes averages, wanted "
                   "&lk_average_linked in lk_model.averages");
}

static lk_status check_augment(const lk_run_spec *spec, lk_error *error) {
    const lk_augment *a = &spec->augment;
    const lk_model *m = &spec->model;
    if (a->mean.count != a->deviation.count || (a->mean.count && a->mean.count != m->in_c)) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "data.normalize: found %u mean and %u deviation, wanted one of each for "
                       "every channel of model.input, which has %u",
                       a->mean.count, a->deviation.count, m->in_c);
    }
    if ((a->crop_h || a->crop_w) &&
        (a->crop_h < m->in_h || a->crop_w < m->in_w || spec->strips.most > 0)) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "data.augment.crop_from: found [%u, %u], wanted the rows and columns of the "
                       "set's images, not less than the %u and %u of model.input%s",
                       a->crop_h, a->crop_w, m->in_h, m->in_w,
                       spec->strips.most ? ", and no data.strips" : "");
    }
    if ((!a->shift_h || a->shift_h < m->in_h) && (!a->shift_w || a->shift_w < m->in_w)) {
        return LK_OK;
    }
    return lk_fail(
        error, LK_BAD_CONFIG,
        "data.augment.shift: found [%u, %u], wanted less than the %u rows and %u columns "
        "of model.input",
        a->shift_h, a->shift_w, m->in_h, m->in_w);
}
#endif

lk_status lk_run_spec_check(const lk_run_spec *spec, lk_error *error) {
    uint32_t g = spec->grain;
    if (spec->global_batch == 0 || spec->global_batch > LK_BATCH_MAX) {
        return lk_fail(error, LK_BAD_CONFIG, "global_batch: found %u, wanted 1 to %d",
                       spec->global_batch, LK_BATCH_MAX);
    }
    if (g == 0 || g > LK_GRAIN_MAX || (g & (g - 1)) != 0) {
        return lk_fail(
            error, LK_BAD_CONFIG,
            "grain: found %u, wanted a power of two from 1 to %u (default for global_batch "
            "%u: %u)",
            g, (unsigned)LK_GRAIN_MAX, spec->global_batch, lk_default_grain(spec->global_batch));
    }
    LK_CHECK(check_shards(spec, error));
    if (spec->example_count == 0)
        return lk_fail(error, LK_BAD_DATA, "the training set has no examples");
    if (lk_steps_per_epoch(spec) == 0) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "global_batch: found %u, but the training set has %llu examples and "
                       "drop_remainder is set: an epoch would have no step; wanted at most %llu",
                       spec->global_batch, (unsigned long long)spec->example_count,
                       (unsigned long long)spec->example_count);
    }
#ifndef LK_SHORT_FORM_ALONE
    LK_CHECK(check_augment(spec, error));
    LK_CHECK(check_strips(spec, error));
#endif
    const lk_graph *graph = lk_graph_of(&spec->model);
    if (graph) LK_CHECK(graph->calls->check(&spec->model, error));
    for (uint32_t i = 0; i < lk_objective_count(&spec->model); i++) {
        LK_CHECK(check_optimizer(lk_optimizer_of(spec, i), error));
#ifndef LK_SHORT_FORM_ALONE
        LK_CHECK(check_average(spec, lk_optimizer_of(spec, i), error));
#endif
    }
    return LK_OK;
}
