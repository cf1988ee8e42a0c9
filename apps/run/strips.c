// strips.c - the formulas of strips.h.
#include "apps/run/strips.h"

#include "arena/philox.h"
#include "io/shuffle.h"

// The images that strips are made of, and how many strips: of the set, or of a shard.
typedef struct part {
    uint64_t first, count;
    uint64_t strips;
    uint32_t shard;
} part;

static part part_of(const lk_run_spec *spec, uint32_t shard) {
    if (!spec->shards) return (part){0, spec->strip_images, spec->example_count, 0};
    const uint64_t first = spec->shard_first[shard], count = spec->shard_first[shard + 1] - first;
    return (part){first, count, count, shard};
}

static uint64_t rounds_of(const lk_run_spec *spec, const part *of) {
    return (of->strips * spec->strips.most + of->count - 1) / of->count;
}

static uint32_t images_of(const lk_run_spec *spec, uint64_t epoch, uint64_t position) {
    const lk_strips *s = &spec->strips;
    const uint32_t word =
        lk_philox(spec->seed, LK_PURPOSE_STRIPS, (uint32_t)position, (uint32_t)(position >> 32),
                  (uint32_t)epoch, (uint32_t)(epoch >> 32))
            .word[0];
    return s->least + (uint32_t)((uint64_t)word * (s->most - s->least + 1) >> 32);
}

// The images of slots q, q + 1, ..
static void take_slots(const lk_run_spec *spec, const part *of, uint64_t epoch, uint64_t q,
                       uint32_t count, uint64_t *images) {
    for (uint32_t i = 0; i < count; i++, q++) {
        images[i] = of->first + lk_shuffle_shard(spec->seed, epoch + q / of->count, of->shard,
                                                 of->count, q % of->count);
    }
}

uint32_t lk_strip_of(const lk_run_spec *spec, uint64_t epoch, uint64_t position,
                     uint64_t images[LK_STRIP_IMAGES_MAX]) {
    const lk_place place = spec->shards ? lk_place_of(spec, position) : (lk_place){.at = position};
    const part of = part_of(spec, place.shard);
    const uint32_t count = images_of(spec, epoch, position);
    take_slots(spec, &of, epoch * rounds_of(spec, &of), place.at * spec->strips.most, count,
               images);
    return count;
}

uint32_t lk_strip_fixed(const lk_run_spec *spec, uint64_t count, uint64_t index,
                        uint64_t images[LK_STRIP_IMAGES_MAX]) {
    const part of = {.count = count};
    const uint32_t found = images_of(spec, LK_STRIPS_FIXED, index);
    take_slots(spec, &of, LK_STRIPS_FIXED, index * spec->strips.most, found, images);
    return found;
}

// --- and back ------------------------------------------------------------------------------------

static part part_with(const lk_run_spec *spec, uint64_t image) {
    uint32_t shard = 0;
    while (spec->shards && image >= spec->shard_first[shard + 1]) shard++;
    return part_of(spec, shard);
}

uint64_t lk_strip_rounds(const lk_run_spec *spec, uint64_t image) {
    const part of = part_with(spec, image);
    return rounds_of(spec, &of);
}

bool lk_strip_find(const lk_run_spec *spec, uint64_t epoch, uint64_t round, uint64_t image,
                   uint64_t *position) {
    const part of = part_with(spec, image);
    const uint64_t number = epoch * rounds_of(spec, &of) + round;
    const uint64_t q = round * of.count +
                       lk_unshuffle_shard(spec->seed, number, of.shard, of.count, image - of.first);
    const uint64_t at = q / spec->strips.most;
    if (at >= of.strips) return false;
    *position = at;
    if (spec->shards) {
        const uint64_t each = spec->global_batch / spec->shards;
        *position = at / each * spec->global_batch + of.shard * each + at % each;
    }
    return q % spec->strips.most < images_of(spec, epoch, *position);
}
