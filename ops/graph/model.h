// model.h - what a run computes, as data: layers, loss, optimizer, batch, seed. Freestanding.
//
// Everything here decides the bits and enters the run identity. How many replicas, which kernels
// and where files lie is not here.
#ifndef LOCKSTEP_OPS_MODEL_H
#define LOCKSTEP_OPS_MODEL_H

#include "arena/base.h"
#include "arena/plan.h"
#include "arena/sha256.h"
#include "ops/augment.h"
#include "ops/layers/layer.h"
#include "ops/optimizer.h"
#include "ops/order.h"

// The version of the arithmetic (ops/ARITHMETIC.md). It enters every run identity.
enum { LK_ARITHMETIC_VERSION = 1 };

enum { LK_GRAIN_MAX = 4096, LK_BATCH_MAX = 1 << 30 };

// Which arithmetic. Strict: ops/ARITHMETIC.md, the same bits on all hardware. Any other is "fast":
// a GPU's library multiplies matrices, in operands of this precision and sums of fp32; the rest is
// strict. The bits are then those of a GPU model and a version of the library, for any number of
// replicas, and how a sum is cut (ops/cuda/fast.h) has a version of its own.
typedef enum lk_fast_precision {
    LK_STRICT = 0,
    LK_FAST_TF32 = 1,
    LK_FAST_BF16 = 2,
    LK_FAST_FP16 = 3
} lk_fast_precision;
enum { LK_FAST_VERSION = 2 };

// What products of the strict arithmetic take, in Keras' words: fp32, or operands of 16 bits with
// parameters, sums, loss and optimizer in fp32 (ARITHMETIC.md 15).
typedef enum lk_precision { LK_FLOAT32, LK_MIXED_FLOAT16, LK_MIXED_BFLOAT16 } lk_precision;
const char *lk_precision_name(lk_precision precision);

const char *lk_fast_precision_name(lk_fast_precision precision);

// Of what the fast arithmetic multiplies, as it lies in memory.
static inline lk_dtype lk_fast_dtype(lk_fast_precision precision) {
    static const lk_dtype dtypes[] = {LK_F32, LK_F32, LK_BF16, LK_F16};
    return dtypes[precision];
}

// The shape of one example on its way through the layers.
typedef struct lk_shape {
    uint32_t h, w, c;
    bool flat;  // (c) alone; h and w are 1
} lk_shape;

// How the loss is scaled where gradients are float16 (ops/graph/scale.h). All of it decides bits.
enum { LK_LOSS_SCALE_POWER_MAX = 30 };
typedef struct lk_loss_scale {
    uint32_t is_static;     // it stays what it is
    float initial;          // powers of two: the first one,
    float growth, backoff;  // .. what it is multiplied by,
    float least;            // .. and no smaller than this one
    uint32_t growth_steps;  // updates in a row after which it grows
    uint32_t replays;       // a step that overflows is computed again, not skipped
    uint32_t skips_max;     // steps skipped one after another that end the run
} lk_loss_scale;
#define LK_LOSS_SCALE_DEFAULT \
    (lk_loss_scale) { 0, 0x1p15f, 2.0f, 0.5f, 1.0f, 2000, 0, 100 }

typedef struct lk_graph lk_graph;  // below
typedef struct lk_average_calls lk_average_calls;  // ops/graph/average.h
extern const lk_average_calls lk_average_linked;

// What an example's values are: bytes, or floats that LOAD takes as they are.
typedef enum lk_input_type { LK_INPUT_U8, LK_INPUT_F32 } lk_input_type;

// What the bytes of an image become: 0 .. 1, or -1 .. 1 (ARITHMETIC.md 3).
typedef enum lk_input_range { LK_RANGE_UNIT, LK_RANGE_SIGNED } lk_input_range;

// A network and what it is trained with; or, with a graph, the layers of several.
typedef struct lk_model {
    uint32_t in_h, in_w, in_c;  // of one example
    uint32_t input_type;        // lk_input_type
    uint32_t input_range;       // lk_input_range; of bytes alone
    uint32_t classes;           // of labels; 0 where the loss takes none
    uint32_t labels;            // the most of an example, which has a sequence; 0: it has one label
    uint32_t layer_count;
    const lk_layer *layers;
    const lk_loss_type *loss;  // NULL: sparse_categorical_crossentropy
    lk_loss_options loss_options;
    const lk_graph *graph;  // NULL: one network and one objective, the short form
    bool skips;  // a verdict may skip steps, so that t is state of its own (program.h, `skipped`)
    lk_precision precision;
    lk_fast_precision fast_precision;  // LK_STRICT, or that of the fast arithmetic
    lk_loss_scale loss_scale;          // where lk_model_scales
    // Where an optimizer keeps averages of weights: &lk_average_linked; else NULL.
    const lk_average_calls *averages;
} lk_model;

static inline uint64_t lk_model_input_bytes(const lk_model *model) {
    const uint64_t value = model->input_type == LK_INPUT_F32 ? sizeof(float) : 1;
    return (uint64_t)model->in_h * model->in_w * model->in_c * value;
}

// Numbers of an example's row of labels: its label; or how many frames it has, and its labels.
static inline uint32_t lk_model_label_row(const lk_model *model) {
    return LK_HAS_LABELS && model->labels ? 1 + model->labels : 1;
}

static inline bool lk_model_is_mixed(const lk_model *model) {
    return LK_HAS_MIXED && model->precision != LK_FLOAT32;
}

// Gradients are rounded to float16, in either arithmetic: small ones would become zero.
static inline bool lk_model_scales(const lk_model *model) {
    return model->precision == LK_MIXED_FLOAT16 || model->fast_precision == LK_FAST_FP16;
}

// Of what its layers make, those in fp32 apart.
static inline lk_dtype lk_model_dtype(const lk_model *model) {
    static const lk_dtype dtypes[] = {LK_F32, LK_F16, LK_BF16};
    return dtypes[model->precision];
}

// NULL: the short form. What is made for boards knows no other, since `lockstep embed` refuses it,
// and is a KiB smaller for that.
static inline const lk_graph *lk_graph_of(const lk_model *model) {
#ifdef LK_SHORT_FORM_ALONE
    (void)model;
    return (const lk_graph *)0;
#else
    return model->graph;
#endif
}

static inline const lk_loss_type *lk_model_loss(const lk_model *model) {
    return model->loss ? model->loss : &lk_loss_sparse_categorical_crossentropy;
}

// --- the full form: several networks, objectives and a schedule ----------------------------------
//
// A network is a named graph of layers with parameters. An objective is one kind of step: the
// values that it computes, each a network applied to the images or to earlier values; a loss over
// one of them; the networks that it trains; an optimizer. All objectives share the parameters, the
// global batch and the grain. Each becomes a program of its own (ops/graph/program.h).
//
// The short form is one network of all layers, applied once to the images, and one objective that
// trains it with the model's loss and the spec's optimizer.

enum {
    LK_NETWORKS_MAX = 32,
    LK_OBJECTIVES_MAX = 16,
    LK_VALUES_MAX = 250,
    LK_SCHEDULE_MAX = 64,
    LK_GRAPH_LAYERS_MAX = 9999,  // numbers of the identity's keys have four digits
    LK_NETWORK_INPUTS_MAX = 2,
    LK_GRAPH_NAME_BYTES = 16,  // of networks, values and objectives
};

// Layers [first_layer, first_layer + layer_count) of the model's, whose names are unique among all
// networks'. In their `inputs` the numbers below input_count are the network's own inputs, and its
// layer k is number input_count + k.
typedef struct lk_network {
    char name[LK_GRAPH_NAME_BYTES];
    uint32_t first_layer, layer_count;
    uint32_t input_count;  // 1 to LK_NETWORK_INPUTS_MAX
    lk_shape inputs[LK_NETWORK_INPUTS_MAX];
} lk_network;

// A value of an objective: a network applied to earlier values of it, by their numbers, or to
// LK_IMAGES; or noise, which takes nothing.
#define LK_IMAGES UINT32_MAX
typedef struct lk_use {
    char name[LK_GRAPH_NAME_BYTES];
    uint32_t network;  // LK_NONE: noise
    uint32_t inputs[LK_NETWORK_INPUTS_MAX];
    lk_noise_source noise;
    lk_shape shape;  // of the noise
} lk_use;

static inline bool lk_use_is_noise(const lk_use *use) { return use->network == UINT32_MAX; }

typedef struct lk_objective {
    char name[LK_GRAPH_NAME_BYTES];  // in those of its slots, where others train the same network
    uint32_t value_count;
    const lk_use *values;
    uint32_t output;           // the value of the loss
    uint32_t target;           // of a loss of two inputs the second: a value, or LK_IMAGES
    const lk_loss_type *loss;  // NULL: sparse_categorical_crossentropy
    lk_loss_options loss_options;
    uint32_t trains;           // bit n: network n
    float weight_clip;         // what it updates is cut to this size then; 0: it is not
    lk_optimizer optimizer;
} lk_objective;

static inline const lk_loss_type *lk_objective_loss(const lk_objective *objective) {
    return objective->loss ? objective->loss : &lk_loss_sparse_categorical_crossentropy;
}

// So many steps of an objective, then those of the next entry; after the last entry the first.
typedef struct lk_schedule_entry {
    uint32_t objective, steps;
} lk_schedule_entry;

struct lk_graph {
    uint32_t network_count, objective_count, schedule_count;
    const lk_network *networks;
    const lk_objective *objectives;
    const lk_schedule_entry *schedule;
    const struct lk_graph_calls *calls;  // &lk_graph_linked
};

// Steps of a cycle of the schedule.
static inline uint64_t lk_cycle_steps(const lk_graph *graph) {
    uint64_t steps = 0;
    for (uint32_t i = 0; i < graph->schedule_count; i++) steps += graph->schedule[i].steps;
    return steps;
}

// What a step is, by arithmetic alone.
typedef struct lk_step_place {
    uint32_t objective;
    bool images;      // it reads images and labels; otherwise it takes none
    uint64_t update;  // its number among the steps of its objective
    uint64_t batch;   // steps before it that read images: the number of its image batch
} lk_step_place;
lk_step_place lk_step_place_of(const lk_model *model, uint64_t step);

// The first step before which `batches` image batches have been read; UINT64_MAX where no step
// ever is.
uint64_t lk_steps_of_batches(const lk_model *model, uint64_t batches);

// The step of an image batch.
static inline uint64_t lk_step_of_batch(const lk_model *model, uint64_t batch) {
    return lk_steps_of_batches(model, batch + 1) - 1;
}

// Objectives of a model, and what one of them trains with.
static inline uint32_t lk_objective_count(const lk_model *model) {
    return lk_graph_of(model) ? lk_graph_of(model)->objective_count : 1;
}

// Entries of a program's tables, the most of any objective.
typedef struct lk_graph_entries {
    uint32_t ops, tensors, values;
} lk_graph_entries;

// What only the full form needs: a machine without an operating system links it where its model has
// a graph. `b` is a builder of ops/graph/build.h.
typedef struct lk_graph_calls {
    lk_step_place (*place)(const lk_graph *graph, uint64_t step);
    uint64_t (*steps_of_batches)(const lk_graph *graph, uint64_t batches);
    bool (*reads_images)(const lk_objective *objective);
    lk_status (*check)(const lk_model *model, lk_error *error);
    lk_graph_entries (*entries)(const lk_model *model);
    lk_status (*forward)(lk_builder *b);  // the forward ops of the objective's values
    uint32_t (*use_of)(const lk_builder *b, uint32_t value);  // earlier values of its network
    bool (*trains)(const lk_builder *b, uint32_t layer);
    // Is this op, with that parameter, where the gradient of all its uses is emitted? Then the
    // others', after the first one's.
    bool (*takes_gradient)(const lk_builder *b, uint32_t of, uint32_t param);
    void (*add_uses)(lk_builder *b, uint32_t of, uint32_t param);
    lk_status (*slots)(lk_builder *b, uint32_t layer, uint32_t param);
} lk_graph_calls;
extern const lk_graph_calls lk_graph_linked;

// Strips: an example is `least` to `most` images side by side, its times their columns from left to
// right, its labels their classes plus 1, 0 being the blank (ARITHMETIC.md 10, apps/run/strips.h).
enum { LK_STRIP_IMAGES_MAX = 64 };
typedef struct lk_strips {
    uint32_t least, most;  // 1 to LK_STRIP_IMAGES_MAX; most 0: an example is one image
} lk_strips;

// Everything that decides the bits of a run.
typedef struct lk_run_spec {
    lk_model model;
    lk_optimizer optimizer;  // of the short form; a graph's objectives have their own
    uint64_t seed;
    uint32_t global_batch;               // examples of one step, 1 to LK_BATCH_MAX
    uint32_t grain;                      // a power of two from 1 to LK_GRAIN_MAX
    bool drop_remainder;                 // the last, short batch of an epoch is left out
    uint64_t example_count;              // of an epoch: of the training set, or its strips
    uint64_t strip_images;               // of strips: images of the training set
    uint8_t data_hash[LK_SHA256_BYTES];  // of the training set
    lk_augment augment;                  // what LOAD does to images
    lk_strips strips;
    bool init;                           // parameters were taken from a file, which have this hash:
    uint8_t init_hash[LK_SHA256_BYTES];  // of (number of the parameter, its fp32 elements) each
    // The order of the examples. "global": one permutation of the whole set; shards are 0.
    // "sharded": every part of a step reads from one shard alone (ops/order.h).
    uint32_t shards;
    const uint64_t *shard_first;  // (shards + 1) the first example of each; the last is
                                  // example_count. NULL: not known, which a plan need not
} lk_run_spec;

// Are the images of a step, or of an evaluation, more than their bytes as floats? Boards load them
// as they are, as `lockstep embed` sees to.
static inline bool lk_spec_augments(const lk_run_spec *spec, bool train) {
#ifdef LK_SHORT_FORM_ALONE
    (void)spec, (void)train;
    return false;
#else
    return spec->augment.mean.count > 0 || (train && lk_augment_draws(&spec->augment));
#endif
}

// .. or a part of them alone?
static inline bool lk_spec_crops(const lk_run_spec *spec) {
#ifdef LK_SHORT_FORM_ALONE
    (void)spec;
    return false;
#else
    return spec->augment.crop_h > 0;
#endif
}

static inline bool lk_spec_has_strips(const lk_run_spec *spec) {
#ifdef LK_SHORT_FORM_ALONE
    (void)spec;
    return false;
#else
    return spec->strips.most > 0;
#endif
}

// What contrast leaves as it is: the middle of the input range; of floats, whose range is the
// user's, 0.
static inline float lk_spec_middle(const lk_run_spec *spec) {
    const lk_model *m = &spec->model;
    return m->input_type == LK_INPUT_F32 || m->input_range == LK_RANGE_SIGNED ? 0.0f : 0.5f;
}

static inline lk_example_order lk_order_of(const lk_run_spec *spec) {
    return (lk_example_order){.seed = spec->seed,
                              .example_count = spec->example_count,
                              .shard_first = spec->shard_first,
                              .global_batch = spec->global_batch,
                              .shards = spec->shards};
}

// Where a position of order "sharded" is (ops/order.h).
lk_place lk_place_of(const lk_run_spec *spec, uint64_t position);

// Is there an example at `position` of an epoch? Both orders; positions of the last, partial step
// of order "sharded" run up to the end of a whole batch.
bool lk_position_exists(const lk_run_spec *spec, uint64_t position);

// Grains of a full global batch.
static inline uint32_t lk_grain_count(const lk_run_spec *spec) {
    return (spec->global_batch + spec->grain - 1) / spec->grain;
}

// The optimizer of an objective.
static inline const lk_optimizer *lk_optimizer_of(const lk_run_spec *spec, uint32_t objective) {
    const lk_graph *g = lk_graph_of(&spec->model);
    return g ? &g->objectives[objective].optimizer : &spec->optimizer;
}

// Image batches of one epoch (in the short form, its steps), and the examples of step `step`
// (counted from the start of the run).
uint64_t lk_steps_per_epoch(const lk_run_spec *spec);
uint32_t lk_step_examples(const lk_run_spec *spec, uint64_t step);

// The positions of a step that are computed: its examples, or a whole batch in order "sharded".
uint32_t lk_step_positions(const lk_run_spec *spec, uint64_t step);

// The epoch of a step, and its first position in it.
typedef struct lk_batch_start {
    uint64_t epoch, position;
} lk_batch_start;
lk_batch_start lk_batch_start_of(const lk_run_spec *spec, uint64_t step);

// What changes from step to step, of step `step`, where `skipped` steps of its objective before it
// were skipped.
lk_step_scalars lk_step_scalars_at(const lk_run_spec *spec, uint64_t step, uint64_t skipped);

// The default grain: the largest power of two up to 16 that divides global_batch.
uint32_t lk_default_grain(uint32_t global_batch);

// That of the fast arithmetic, whose partial gradients cost more than the sums they save: the
// largest power of two up to LK_GRAIN_MAX that divides global_batch and leaves eight grains of it,
// or the strict default where that is larger.
uint32_t lk_default_fast_grain(uint32_t global_batch);

// Checks batch, grain, shards and optimizer. The model is checked by lk_program_build.
lk_status lk_run_spec_check(const lk_run_spec *spec, lk_error *error);

// SHA-256 over tagged entries of the whole spec and the arithmetic version (ARITHMETIC.md 11,
// identity.c). Layer names are left out: they change no bit.
void lk_run_identity(const lk_run_spec *spec, uint8_t out[LK_SHA256_BYTES]);

#endif
