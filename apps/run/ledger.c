// ledger.c - positions to examples and back: the order of the examples and the cut of a step's
// grains over replicas, asked in both directions.
#include "apps/run/ledger.h"

#include "apps/run/order.h"
#include "apps/run/strips.h"

static uint32_t replica_of(const lk_run_spec *spec, uint32_t replicas, uint32_t grain) {
    const uint32_t grains = lk_grain_count(spec);
    uint32_t replica = 0;
    while (replica + 1 < replicas &&
           lk_replica_grains(grains, replicas, replica + 1).first <= grain) {
        replica++;
    }
    return replica;
}

static lk_ledger_use use_of(const lk_run_spec *spec, uint32_t replicas, uint64_t epoch,
                            uint64_t position) {
    const uint32_t in_batch = (uint32_t)(position % spec->global_batch);
    const uint64_t batch = epoch * lk_steps_per_epoch(spec) + position / spec->global_batch;
    return (lk_ledger_use){.epoch = epoch,
                           .step = lk_step_of_batch(&spec->model, batch),
                           .position = in_batch,
                           .grain = in_batch / spec->grain,
                           .replica = replica_of(spec, replicas, in_batch / spec->grain)};
}

bool lk_ledger_at(const lk_run_spec *spec, uint32_t replicas, uint64_t step, uint32_t position,
                  lk_ledger_use *use) {
    const lk_batch_start start = lk_batch_start_of(spec, step);
    const uint64_t at = start.position + position;
    lk_assert(position < spec->global_batch);
    if (!lk_step_place_of(&spec->model, step).images) return false;
    if (!lk_position_exists(spec, at)) return false;
    *use = use_of(spec, replicas, start.epoch, at);
    if (lk_spec_has_strips(spec))
        use->image_count = lk_strip_of(spec, start.epoch, at, use->images);
    else
        use->example = lk_order(spec, start.epoch, at);
    return true;
}

bool lk_ledger_find(const lk_run_spec *spec, uint32_t replicas, uint64_t epoch, uint64_t example,
                    lk_ledger_use *use) {
    lk_assert(example < spec->example_count);
    const uint64_t position = lk_order_position(spec, epoch, example);
    if (position / spec->global_batch >= lk_steps_per_epoch(spec)) return false;
    *use = use_of(spec, replicas, epoch, position);
    use->example = example;
    return true;
}

bool lk_ledger_find_strip(const lk_run_spec *spec, uint32_t replicas, uint64_t epoch,
                          uint64_t round, uint64_t image, lk_ledger_use *use) {
    uint64_t position;
    lk_assert(image < spec->strip_images);
    if (!lk_strip_find(spec, epoch, round, image, &position)) return false;
    if (position >= lk_steps_per_epoch(spec) * spec->global_batch) return false;
    *use = use_of(spec, replicas, epoch, position);
    use->image_count = lk_strip_of(spec, epoch, position, use->images);
    return true;
}
