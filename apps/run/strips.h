// strips.h - which images make which strip: a function of the seed alone. Freestanding.
//
// Exactly (ARITHMETIC.md 10; golden values in tests/apps/strips_test.c), of n images, K = most:
//
//   strip p of epoch e has  least + (word[0] * (K - least + 1) >> 32)  images, word of the Philox
//                           block of purpose LK_PURPOSE_STRIPS and counter (low, high 32 bits of
//                           p, low, high 32 bits of e)
//   its image i is the one  at slot q = p * K + i of the epoch, whose s strips have s * K slots in
//                           r = ceil(s * K / n) rounds: position q mod n of the set's permutation
//                           of epoch e * r + q / n (io/shuffle.h)
//
// So every image has a slot in each round. Slots of strips that are shorter than K are not used.
// In order "sharded" the same is said of each shard: its permutation and its n, of which s is the
// number too, and p is the strip's number among those of the shard in q.
//
// Fixed strips, those that are evaluated, are the strips of epoch LK_STRIPS_FIXED, r being 1 there:
// rounds follow on it.
#ifndef LOCKSTEP_APPS_RUN_STRIPS_H
#define LOCKSTEP_APPS_RUN_STRIPS_H

#include "ops/graph/model.h"

#define LK_STRIPS_FIXED ((uint64_t)1 << 63)

// The strip at a position of a training epoch that exists (lk_position_exists): its images, from
// left to right, and how many. spec->strip_images and example_count, or the shards, are known.
uint32_t lk_strip_of(const lk_run_spec *spec, uint64_t epoch, uint64_t position,
                     uint64_t images[LK_STRIP_IMAGES_MAX]);

// Strip `index` of an evaluation, of a set of `count` images.
uint32_t lk_strip_fixed(const lk_run_spec *spec, uint64_t count, uint64_t index,
                        uint64_t images[LK_STRIP_IMAGES_MAX]);

// The inverse: where an epoch uses an image, round after round. `round` counts from 0 up to
// lk_strip_rounds; false where that round's slot of the image is not used, or is no strip's.
uint64_t lk_strip_rounds(const lk_run_spec *spec, uint64_t image);
bool lk_strip_find(const lk_run_spec *spec, uint64_t epoch, uint64_t round, uint64_t image,
                   uint64_t *position);

#endif
