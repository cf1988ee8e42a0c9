// model.h - what a run computes, as data: layers, loss, optimizer, batch, seed. Freestanding.
//
// Everything here decides the bits and enters the run identity. How many replicas, which kernels
// and where files lie is not here.
#ifndef LOCKSTEP_OPS_MODEL_H
#define LOCKSTEP_OPS_MODEL_H

#include "arena/base.h"
#include "arena/plan.h"
#include "arena/sha256.h"
#include "ops/layers/layer.h"
#include "ops/optimizer.h"

// The version of the arithmetic (ops/ARITHMETIC.md). It enters every run identity.
enum { LK_ARITHMETIC_VERSION = 1 };

enum { LK_GRAIN_MAX = 4096, LK_BATCH_MAX = 1 << 30 };

// Which arithmetic. Strict: ops/ARITHMETIC.md, the same bits on all hardware. Any other is "fast":
// a GPU's library multiplies matrices, in operands of this precision and sums of fp32; the rest is
// strict. The bits are then those of a GPU model and a version of the library, for any number of
// replicas, and how a sum is cut (ops/cuda/fast.h) has a version of its own.
typedef enum lk_precision { LK_STRICT = 0, LK_TF32 = 1, LK_BF16 = 2 } lk_precision;
enum { LK_FAST_VERSION = 1 };

const char *lk_precision_name(lk_precision precision);

// A network and what it is trained with.
typedef struct lk_model {
    uint32_t in_h, in_w, in_c;  // of one example
    uint32_t classes;           // of labels; 0 where the loss takes none
    uint32_t layer_count;
    const lk_layer *layers;
    const lk_loss_type *loss;  // NULL: sparse_categorical_crossentropy
    lk_loss_options loss_options;
} lk_model;

static inline const lk_loss_type *lk_model_loss(const lk_model *model) {
    return model->loss ? model->loss : &lk_loss_sparse_categorical_crossentropy;
}

// Everything that decides the bits of a run.
typedef struct lk_run_spec {
    lk_model model;
    lk_optimizer optimizer;
    uint64_t seed;
    uint32_t global_batch;               // examples of one step, 1 to LK_BATCH_MAX
    uint32_t grain;                      // a power of two from 1 to LK_GRAIN_MAX
    bool drop_remainder;                 // the last, short batch of an epoch is left out
    lk_precision precision;              // LK_STRICT, or that of the fast arithmetic
    uint64_t example_count;              // of the training set
    uint8_t data_hash[LK_SHA256_BYTES];  // of the training set
    // The order of the examples. "global": one permutation of the whole set; shards are 0.
    // "sharded": every part of a step reads from one shard alone (lk_place).
    uint32_t shards;
    const uint64_t *shard_first;  // (shards + 1) the first example of each; the last is
                                  // example_count. NULL: not known, which a plan need not
} lk_run_spec;

// Order "sharded", with B = global_batch, S = shards, c = B / S: the positions of an epoch are cut
// into batches of B, each batch into S parts of c, and part k of every batch belongs to shard k.
// So position p is, where there is such an example, number `at` of those of shard k:
//
//     k = (p mod B) / c,    at = (p / B) * c + (p mod B) mod c,    divisions rounding down
//
// S divides the number of grains, so c is a multiple of the grain and grain i of every step reads
// from shard floor(i * S / grains) alone. Shards differ by one example at most: as long as a whole
// batch is left, each has c. In a last, partial step some shards have one more than others, and
// positions with `at` not below the shard's size have no example (in any grain, not only in the
// last): they are computed as examples of zeros that add +0 to every gradient and to the loss.
typedef struct lk_place {
    uint32_t shard;
    uint64_t at;
} lk_place;
lk_place lk_place_of(const lk_run_spec *spec, uint64_t position);

// Is there an example at `position` of an epoch? Both orders; positions of the last, partial step
// of order "sharded" run up to the end of a whole batch.
bool lk_position_exists(const lk_run_spec *spec, uint64_t position);

// Grains of a full global batch.
static inline uint32_t lk_grain_count(const lk_run_spec *spec) {
    return (spec->global_batch + spec->grain - 1) / spec->grain;
}

// Steps of one epoch, and the examples of step `step` (counted from the start of the run).
uint64_t lk_steps_per_epoch(const lk_run_spec *spec);
uint32_t lk_step_examples(const lk_run_spec *spec, uint64_t step);

// The positions of a step that are computed: its examples, or a whole batch in order "sharded".
uint32_t lk_step_positions(const lk_run_spec *spec, uint64_t step);

// What changes from step to step, of step `step`.
lk_step_scalars lk_step_scalars_at(const lk_run_spec *spec, uint64_t step);

// The default grain: the largest power of two up to 16 that divides global_batch.
uint32_t lk_default_grain(uint32_t global_batch);

// That of the fast arithmetic, whose partial gradients cost more than the sums they save: the
// largest power of two up to LK_GRAIN_MAX that divides global_batch and leaves eight grains of it,
// or the strict default where that is larger.
uint32_t lk_default_fast_grain(uint32_t global_batch);

// Checks batch, grain, shards and optimizer. The model is checked by lk_program_build.
lk_status lk_run_spec_check(const lk_run_spec *spec, lk_error *error);

// SHA-256 over a fixed byte encoding of the whole spec and the arithmetic version (model.c writes
// it down). Layer names are left out: they change no bit.
void lk_run_identity(const lk_run_spec *spec, uint8_t out[LK_SHA256_BYTES]);

#endif
