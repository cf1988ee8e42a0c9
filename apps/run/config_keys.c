// config_keys.c - the table of keys, and walks over it. Reads no document.
#define _GNU_SOURCE
#include "apps/run/config_keys.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/png.h"

// --- the table -----------------------------------------------------------------------------------

#define VALUE(KIND, NAME, OWNER, FIELD) \
    .name = NAME, .kind = LK_SETTING_##KIND, .offset = offsetof(OWNER, FIELD)
#define TEXT(NAME, OWNER, FIELD) \
    VALUE(TEXT, NAME, OWNER, FIELD), .most = sizeof(((OWNER *)0)->FIELD)
#define CHOICE(NAME, OWNER, FIELD, NAMES) \
    VALUE(CHOICE, NAME, OWNER, FIELD), .choices = NAMES, .choice_count = LK_COUNT(NAMES)
#define OBJECT(KEYS) .form = LK_KEY_OBJECT, .keys = KEYS, .key_count = LK_COUNT(KEYS)
#define MANY         ((uint64_t)1 << 40)

static const char *const arithmetics[] = {"strict", "fast"};
static const char *const precisions[] = {"float32", "mixed_float16", "mixed_bfloat16"};
static const char *const fast_precisions[] = {"tf32", "bf16", "fp16"};
static const char *const layer_dtypes[] = {"float32"};
static const char *const scale_types[] = {"dynamic", "static"};
static const char *const overflows[] = {"skip", "replay"};
static const char *const orders[] = {"global", "sharded"};
static const char *const reduces[] = {"auto", "partials", "operands"};
static const char *const overlaps[] = {"auto", "on", "off"};
static const char *const persistences[] = {"off", "auto", "on"};  // as lk_cuda_persistence
static const char *const errors[] = {"continue", "stop"};
static const char *const input_types[] = {[LK_INPUT_U8] = "u8", [LK_INPUT_F32] = "f32"};
static const char *const ranges[] = {[LK_RANGE_UNIT] = "unit", [LK_RANGE_SIGNED] = "signed"};
static const char *const flips[] = {"none", "horizontal"};
static const char *const paddings[] = {[LK_PADDED_BLACK] = "black", [LK_PADDED_EDGE] = "edge"};
static const char *const starts[] = {"new", "resume", "resume_or_start"};

// What config.c checks beyond single keys, for the schema.
#define SET_RULES                                                                 \
    "[{\"oneOf\": [{\"required\": [\"images\"]}, {\"required\": [\"manifest\"]}," \
    " {\"required\": [\"made_up\"]}], \"dependentRequired\": {\"images\": [\"labels\"]}}]"
#define DATA_RULES                                          \
    "[{\"not\": {\"required\": [\"set\", \"directory\"]}}," \
    " {\"not\": {\"required\": [\"set\", \"train\"]}},"     \
    " {\"not\": {\"required\": [\"directory\", \"train\"]}}]"
#define MODEL_RULES                                                                           \
    "[{\"oneOf\": [{\"required\": [\"layers\"]}, {\"required\": [\"gan\"]}," \
    " {\"required\": [\"networks\", \"objectives\"]}]},"                                        \
    " {\"not\": {\"required\": [\"loss\", \"networks\"]}},"                                     \
    " {\"dependentRequired\": {\"objectives\": [\"networks\"], \"schedule\": [\"networks\"]}}," \
    " {\"if\": {\"required\": [\"layers\"], \"properties\": {\"loss\": {\"anyOf\": ["             \
    "{\"const\": \"sparse_categorical_crossentropy\"}, {\"type\": \"object\","                \
    " \"properties\": {\"type\": {\"const\": \"sparse_categorical_crossentropy\"}}}]}}},"    \
    " \"then\": {\"required\": [\"classes\"]}}]"
#define ROOT_RULES                                                                             \
    "[{\"anyOf\": [{\"required\": [\"global_batch\"]}, {\"required\": [\"replica_batch\"]}]}," \
    " {\"oneOf\": [{\"required\": [\"optimizer\"]},"                                         \
    " {\"properties\": {\"model\": {\"anyOf\": [{\"required\": [\"networks\"]},"          \
    " {\"required\": [\"gan\"]}]}}}]},"                                                  \
    " {\"if\": {\"required\": [\"accumulate\"], \"properties\": {\"accumulate\":"              \
    " {\"minimum\": 2}}}, \"then\": {\"required\": [\"replica_batch\"]}},"                     \
    " {\"if\": {\"required\": [\"fast_precision\"]}, \"then\": {\"required\": [\"arithmetic\"]," \
    " \"properties\": {\"arithmetic\": {\"const\": \"fast\"}}}}]"

static const lk_key loss_scale[] = {
    {.value = {CHOICE("type", lk_config, spec.model.loss_scale.is_static, scale_types),
               .meaning = "dynamic: it follows overflows; static: it stays"}},
    {.value = {VALUE(FLOAT, "initial", lk_config, spec.model.loss_scale.initial), .low = 1,
               .high = 0x1p30f, .float_constant = 0x1p15f,
               .meaning = "the first one, a power of 2"}},
    {.value = {VALUE(U32, "growth_steps", lk_config, spec.model.loss_scale.growth_steps),
               .most = 1 << 30, .constant = 2000,
               .meaning = "updates in a row after which it grows"}},
    {.value = {VALUE(FLOAT, "growth_factor", lk_config, spec.model.loss_scale.growth), .low = 2,
               .high = 65536, .float_constant = 2, .meaning = "by so much, a power of 2"}},
    {.value = {VALUE(FLOAT, "backoff_factor", lk_config, spec.model.loss_scale.backoff),
               .low = 0x1p-16f, .high = 0.5f, .float_constant = 0.5f,
               .meaning = "what an overflow multiplies it by, a power of 2"}},
    {.value = {VALUE(FLOAT, "floor", lk_config, spec.model.loss_scale.least), .low = 1,
               .high = 0x1p30f, .float_constant = 1,
               .meaning = "it is never smaller, a power of 2"}},
    {.value = {CHOICE("on_overflow", lk_config, spec.model.loss_scale.replays, overflows),
               .meaning = "skip the step, or compute it again at a smaller scale"}},
    {.value = {VALUE(U32, "skips_max", lk_config, spec.model.loss_scale.skips_max),
               .most = 1 << 30, .constant = 100,
               .meaning = "so many skipped one after another end the run"},
     .free = true},
};

static const lk_key made_up[] = {
    {.value = {VALUE(U64, "seed", lk_config_data, source.made_up.seed), .zero = true,
               .most = INT64_MAX, .constant = 1, .meaning = "of the examples"}},
    {.value = {VALUE(U64, "first", lk_config_data, source.made_up.first), .zero = true,
               .most = MANY, .meaning = "number of the first example"}},
    {.value = {VALUE(U64, "count", lk_config_data, source.made_up.count), .required = true,
               .most = MANY, .meaning = "number of examples"}},
    {.value = {VALUE(U32, "height", lk_config_data, source.made_up.height), .most = 65535,
               .constant = 28, .meaning = "rows of an image"}},
    {.value = {VALUE(U32, "width", lk_config_data, source.made_up.width), .most = 65535,
               .constant = 28, .meaning = "columns of an image"}},
    {.value = {VALUE(U32, "channels", lk_config_data, source.made_up.channels), .most = 16,
               .constant = 1, .meaning = "channels of an image"}},
    {.value = {VALUE(U32, "classes", lk_config_data, source.made_up.classes),
               .most = LK_CLASSES_MOST, .constant = 10,
               .meaning = "labels are below it; at most model.classes"}},
};

static const lk_key set[] = {
    {.value = {TEXT("images", lk_config_data, images), .chosen = "none",
               .meaning = "an IDX file of images, plain or .gz"}},
    {.value = {TEXT("labels", lk_config_data, labels), .chosen = "none",
               .meaning = "the IDX file of their labels; with images"}},
    {.value = {TEXT("manifest", lk_config_data, manifest), .chosen = "none",
               .meaning = "the manifest.json of a set in shards"}},
    {.value = {.name = "made_up", .meaning = "examples computed from a seed; no files"},
     OBJECT(made_up)},
};

static const lk_key augment[] = {
    {.value = {VALUE(PAIR, "crop_from", lk_config, spec.augment.crop_h), .zero = true,
               .most = 65535,
               .meaning = "rows and columns of the set's images, of which a part is taken; 0: of "
                          "model.input"}},
    {.value = {VALUE(PAIR, "shift", lk_config, spec.augment.shift_h), .zero = true, .most = 65534,
               .meaning = "moves images by at most so many rows and columns, either way"}},
    {.value = {CHOICE("padding", lk_config, spec.augment.padding, paddings),
               .meaning = "what is moved in: black pixels, or the nearest one of the image"}},
    {.value = {CHOICE("flip", lk_config, spec.augment.flip, flips),
               .meaning = "horizontal: mirrors half of the images, left to right"}},
    {.value = {VALUE(PAIR, "cutout", lk_config, spec.augment.cutout_h), .zero = true, .most = 65535,
               .meaning = "a rectangle of so many rows and columns becomes 0, anywhere"}},
    {.value = {VALUE(FLOAT, "brightness", lk_config, spec.augment.brightness), .high = 1,
               .meaning = "adds up to so much to all values of an image, or takes it away"}},
    {.value = {VALUE(FLOAT, "contrast", lk_config, spec.augment.contrast), .high = 1, .below = 1,
               .meaning =
                   "multiplies all values, seen from the middle, by 1 and up to so much more "
                   "or less"}},
};

static const lk_key strips[] = {
    {.value = {VALUE(U32, "min", lk_config, spec.strips.least), .most = LK_STRIP_IMAGES_MAX,
               .constant = 1, .meaning = "images of a strip, the least"}},
    {.value = {VALUE(U32, "max", lk_config, spec.strips.most), .required = true,
               .most = LK_STRIP_IMAGES_MAX, .meaning = "images of a strip, the most"}},
    {.value = {VALUE(U64, "train_count", lk_config, train.strips), .most = MANY,
               .chosen = "as many as images",
               .meaning = "strips of an epoch, which are others in each"}},
    {.value = {VALUE(U64, "test_count", lk_config, test.strips), .most = MANY,
               .chosen = "as many as images",
               .meaning = "strips of the test set, which are always the same"},
     .free = true},
};

static const lk_key normalize[] = {
    {.value = {VALUE(FLOATS, "mean", lk_config, spec.augment.mean), .low = -1e6f, .high = 1e6f,
               .chosen = "none", .meaning = "of each channel, taken from its values"}},
    {.value = {VALUE(FLOATS, "deviation", lk_config, spec.augment.deviation), .low = 1e-6f,
               .high = 1e6f, .chosen = "none",
               .meaning = "of each channel, what its values are then divided by"}},
};

static const lk_key data[] = {
    {.value = {TEXT("set", lk_config, said.set), .chosen = "none",
               .meaning = "a set by name, as lockstep data fetch gets it: mnist, fashion-mnist"}},
    {.value = {TEXT("directory", lk_config, said.directory), .chosen = "none",
               .meaning = "the four IDX files of MNIST's naming; --data"}},
    {.value = {.name = "train",
               .offset = offsetof(lk_config, train),
               .meaning = "the training set: images with labels, manifest, or made_up"},
     OBJECT(set),
     .rules = SET_RULES},
    {.value = {.name = "test",
               .offset = offsetof(lk_config, test),
               .meaning = "the test set; takes the place of that of set or directory"},
     OBJECT(set),
     .rules = SET_RULES,
     .free = true},
    {.value = {TEXT("cache", lk_config, cache), .chosen = "the user's cache",
               .meaning = "directory for unpacked files and records of their hashes"},
     .free = true},
    {.value = {VALUE(U64, "train_examples", lk_config, train.source.examples), .most = MANY,
               .chosen = "all",
               .meaning = "only the first so many of the training set; --examples"}},
    {.value = {CHOICE("order", lk_config, said.order, orders),
               .meaning =
                   "one permutation of the whole set, or each part of a step from one shard"}},
    {.value = {.name = "strips",
               .meaning = "examples are sequences: images side by side, column by column"},
     OBJECT(strips)},
    {.value = {.name = "augment", .meaning = "what a step does to its images at random"},
     OBJECT(augment)},
    {.value = {.name = "normalize", .meaning = "mean and deviation of each channel become 0 and 1"},
     OBJECT(normalize)},
};

static const lk_key model[] = {
    {.value = {.name = "input",
               .required = true,
               .most = 65535,
               .meaning = "[height, width, channels] of an example"},
     .form = LK_KEY_SHAPE},
    {.value = {CHOICE("input_type", lk_config, spec.model.input_type, input_types),
               .meaning = "what an example's values are: u8, bytes; f32, floats as they are"}},
    {.value = {CHOICE("input_range", lk_config, spec.model.input_range, ranges),
               .meaning = "what bytes become: unit, 0 to 1; signed, -1 to 1"}},
    {.value = {VALUE(U32, "classes", lk_config, spec.model.classes), .least = LK_CLASSES_LEAST,
               .most = LK_CLASSES_MOST,
               .chosen = "required where the loss takes labels",
               .meaning = "number of classes; the last layer has as many units"}},
    {.value = {VALUE(U32, "labels", lk_config, spec.model.labels), .zero = true,
               .most = LK_LABELS_MOST,
               .meaning = "the most labels of an example, which is a sequence of them; 0: it has "
                          "one"}},
    {.value = {.name = "layers",
               .chosen = "required without networks",
               .most = 4096,
               .meaning = "each an object with a type and the keys of that type"},
     .form = LK_KEY_LAYERS},
    {.value = {.name = "loss", .meaning = "what training makes small: a name, or an object"},
     .form = LK_KEY_LOSS},
    {.value = {.name = "gan",
               .chosen = "none",
               .meaning = "short for a generator and a discriminator that train in turn"},
     .form = LK_KEY_GAN},
    {.value = {.name = "networks",
               .chosen = "one, of layers",
               .most = LK_NETWORKS_MAX,
               .meaning = "each a graph of layers of its own, with a name"},
     .form = LK_KEY_NETWORKS},
    {.value = {.name = "objectives",
               .chosen = "one, of loss and optimizer",
               .most = LK_OBJECTIVES_MAX,
               .meaning = "with networks: each one kind of step, with a name"},
     .form = LK_KEY_OBJECTIVES},
    {.value = {.name = "schedule",
               .chosen = "the only objective",
               .most = LK_SCHEDULE_MAX,
               .meaning = "with objectives: [name, steps] each, over and over"},
     .form = LK_KEY_SCHEDULE},
};

static const lk_key layout[] = {
    {.value = {VALUE(U64, "wave_examples", lk_config, microbatch_examples), .most = 1 << 30,
               .chosen = "reckoned", .meaning = "examples that a replica holds at once"}},
    {.value = {VALUE(BOOL, "fuse", lk_config, fuse), .constant = true,
               .meaning = "layers that may be computed together are"}},
    {.value = {VALUE(BOOL, "overlay", lk_config, overlay), .constant = true,
               .meaning = "tensors that do not live at the same time share memory"}},
    {.value = {VALUE(BOOL, "guards", lk_config, guards),
               .meaning = "looks after every op for writes outside of a tensor"}},
    {.value = {CHOICE("reduce", lk_config, reduce, reduces),
               .meaning = "what replicas give each other of a gradient"}},
    {.value = {VALUE(U32, "joint_tile", lk_config, joint_tile), .zero = true,
               .most = LK_JOINT_TILE_MAX,
               .meaning = "cells that a joint layer computes at once, a power of two from 512 on; "
                          "0: chosen"}},
    {.value = {TEXT("kernels", lk_config, kernels), .text = "auto",
               .meaning = "as --kernels; auto: the fastest of this processor"}},
    {.value = {VALUE(BOOL, "resident", lk_config, resident),
               .meaning = "on a GPU: the data set lies there"}},
    {.value = {CHOICE("persistent", lk_config, persistent, persistences),
               .meaning = "on a GPU: steps are one kernel; auto: where that is reckoned quicker"}},
    {.value = {VALUE(BOOL, "dependent_launches", lk_config, dependent_launches),
               .meaning = "on a GPU: a kernel starts while the one before it ends"}},
    {.value = {VALUE(U32, "gpus", lk_config, gpus), .zero = true, .most = 1024, .constant = 1,
               .meaning = "how many, with kernels cuda; 0: all; --gpus"}},
    {.value = {VALUE(U32, "gpu", lk_config, gpu), .zero = true, .most = 1024,
               .constant = LK_CONFIG_ANY_GPU, .chosen = "0; workers in turn",
               .meaning = "number of the first; --gpu"}},
    {.value = {VALUE(U64, "exchange_floats", lk_config, bucket_floats), .most = MANY,
               .chosen = "65536",
               .meaning = "floats of a part of an exchange between hosts or GPUs"}},
    {.value = {CHOICE("overlap", lk_config, overlap, overlaps),
               .meaning = "exchanges while it computes; auto: between hosts"}},
};

static const lk_key checkpoint[] = {
    {.value = {VALUE(U64, "every_steps", lk_config, checkpoint_every_steps), .zero = true,
               .most = MANY, .meaning = "saves after so many steps; 0: not by steps"}},
    {.value = {VALUE(U64, "every_seconds", lk_config, checkpoint_every_seconds), .zero = true,
               .most = MANY, .constant = 600,
               .meaning = "saves after so many seconds; 0: not by time"}},
    {.value = {VALUE(U32, "keep_max", lk_config, keep_max), .zero = true, .most = UINT32_MAX,
               .constant = 5, .meaning = "how many checkpoints stay; 0: all"}},
    {.value = {TEXT("best", lk_config, checkpoint_best), .chosen = "none",
               .meaning = "a metric: the checkpoint of its best evaluation is saved, and stays"}},
    {.value = {CHOICE("on_error", lk_config, said.on_error, errors),
               .meaning = "after a save that failed"}},
    {.value = {VALUE(U64, "hot_steps", lk_config, hot_steps), .zero = true, .most = MANY,
               .constant = LK_CONFIG_HOT_AUTO, .word = "auto",
               .meaning = "steps from one copy in memory to the next; 0: none"}},
};

static const lk_key init[] = {
    {.value = {TEXT("file", lk_config, init.file), .chosen = "none",
               .meaning = "a safetensors file that parameters are taken from by name; --init"}},
    {.value = {TEXT("map", lk_config, init.map), .chosen = "none",
               .meaning = "OTHER=MINE,.. where it calls layers otherwise; --init-map"}},
    {.value = {TEXT("skip", lk_config, init.skip), .chosen = "none",
               .meaning = "layers that are initialized all the same; --init-skip"}},
};

static const lk_key early[] = {
    {.value = {TEXT("metric", lk_config, early.metric), .chosen = "none",
               .meaning = "a metric of the evaluations: loss, accuracy, .."}},
    {.value = {VALUE(U64, "patience", lk_config, early.patience), .most = MANY, .constant = 3,
               .meaning = "evaluations in turn without a better one, after which it ends"}},
    {.value = {VALUE(FLOAT, "min_delta", lk_config, early.min_delta), .high = 1e6f,
               .meaning = "only what is better by more than this is better"}},
};

static const lk_key events[] = {
    {.value = {VALUE(BOOL, "scalars", lk_config, events.scalars),
               .meaning = "what is in metrics.jsonl, and speed, for TensorBoard; --tensorboard"}},
    {.value = {VALUE(U32, "images", lk_config, events.images), .zero = true, .most = 64,
               .meaning = "the first so many examples of a step, at the first and at evaluations"}},
    {.value = {VALUE(BOOL, "histograms", lk_config, events.histograms),
               .meaning = "of all parameters, at the first step and at evaluations"}},
};

static const lk_key samples[] = {
    {.value = {VALUE(U64, "every_steps", lk_config, samples.every_steps), .zero = true,
               .most = MANY,
               .meaning = "steps from one picture of generated images to the next; 0: none"}},
    {.value = {VALUE(U32, "count", lk_config, samples.count), .most = LK_PNG_PIXELS_MAX,
               .constant = 64, .meaning = "images in a picture, of the same noise each time"}},
};

static const lk_key trace[] = {
    {.value = {TEXT("file", lk_config, trace.file), .chosen = "none",
               .meaning = "where a trace of some steps is written; --trace"}},
    {.value = {VALUE(U64, "first_step", lk_config, trace.first_step), .most = MANY, .constant = 11,
               .meaning = "the first of them, counted from 1"}},
    {.value = {VALUE(U32, "steps", lk_config, trace.steps), .most = 1000, .constant = 10,
               .meaning = "how many"}},
};

// In the order in which an unknown key is told what there is.
static const lk_key root[] = {
    {.value = {TEXT("name", lk_config, name), .chosen = "unnamed",
               .meaning = "the default run directory is runs/NAME"},
     .free = true,
     .pattern = "^(?!\\.{1,2}$)[^/\\u0000-\\u001f\\u007f]*$"},
    {.value = {.name = "model", .required = true, .meaning = "what is trained"}, OBJECT(model),
     .rules = MODEL_RULES},
    {.value = {.name = "optimizer",
               .chosen = "required without objectives",
               .meaning = "a type and the keys of that type"},
     .form = LK_KEY_OPTIMIZER},
    {.value = {.name = "data", .meaning = "one of set, directory and train; or --data"},
     OBJECT(data),
     .shown = true,
     .rules = DATA_RULES},
    {.value = {VALUE(U64, "seed", lk_config, spec.seed), .zero = true, .most = INT64_MAX,
               .constant = 1, .meaning = "of initial weights and order of examples; --seed"}},
    {.value = {CHOICE("arithmetic", lk_config, said.arithmetic, arithmetics),
               .meaning = "the same bits on all hardware, or fast on a GPU"}},
    {.value = {CHOICE("precision", lk_config, spec.model.precision, precisions),
               .meaning = "of products: fp32, or operands and activations of 16 bits"}},
    {.value = {.name = "loss_scale",
               .meaning = "of precision mixed_float16, and of fast_precision fp16"},
     OBJECT(loss_scale)},
    {.value = {CHOICE("fast_precision", lk_config, said.fast_precision, fast_precisions),
               .chosen = "tf32",
               .meaning = "of products, in arithmetic fast alone"}},
    {.value = {VALUE(U32, "global_batch", lk_config, spec.global_batch), .most = LK_BATCH_MAX,
               .chosen = "product", .meaning = "examples of one step; or say replica_batch"}},
    {.value = {VALUE(U32, "grain", lk_config, spec.grain), .most = INT32_MAX,
               .chosen = "of global_batch",
               .meaning = "examples of one unit of arithmetic, a power of two up to 4096"}},
    {.value = {VALUE(U64, "replica_batch", lk_config, replica_batch), .most = 1 << 30,
               .chosen = "none", .meaning = "x all replicas x accumulate = global_batch"},
     .free = true},
    {.value = {VALUE(U32, "replicas", lk_config, replicas), .most = 1 << 20, .chosen = "processors",
               .meaning = "of one worker; with replica_batch 1; --replicas"},
     .free = true},
    {.value = {VALUE(U64, "accumulate", lk_config, accumulate), .most = 1 << 30, .constant = 1,
               .meaning = "parts of a step that a replica computes in turn; with replica_batch"},
     .free = true},
    {.value = {VALUE(U64, "epochs", lk_config, epochs), .most = MANY, .chosen = "1 without steps",
               .meaning = "length of the run; of both, what ends first; --epochs"},
     .free = true},
    {.value = {VALUE(U64, "steps", lk_config, steps), .most = MANY, .chosen = "none",
               .meaning = "length of the run; of both, what ends first"},
     .free = true},
    {.value = {VALUE(U64, "cycles", lk_config, cycles), .most = MANY, .chosen = "none",
               .meaning = "length of the run, of model.schedule; of all said, what ends first"},
     .free = true},
    {.value = {.name = "layout", .meaning = "how it is computed; never changes a bit"},
     OBJECT(layout),
     .free = true,
     .shown = true},
    {.value = {VALUE(U64, "log_every_steps", lk_config, log_every_steps), .most = MANY,
               .constant = 100, .meaning = "steps from one line of metrics to the next"},
     .free = true},
    {.value = {VALUE(U64, "hash_every_steps", lk_config, hash_every_steps), .most = MANY,
               .constant = 100, .meaning = "steps from one recorded digest to the next"},
     .free = true},
    {.value = {VALUE(U64, "evaluate_every_steps", lk_config, evaluate_every_steps), .zero = true,
               .most = MANY, .meaning = "the whole test set, once, in order; 0: at the end only"},
     .free = true},
    {.value = {.name = "checkpoint", .meaning = "when the run is saved"},
     OBJECT(checkpoint),
     .free = true,
     .shown = true},
    {.value = {.name = "early_stopping", .meaning = "ends the run where it gets no better"},
     OBJECT(early),
     .free = true,
     .shown = true},
    {.value = {.name = "events", .meaning = "files for TensorBoard in the run directory"},
     OBJECT(events),
     .free = true,
     .shown = true},
    {.value = {.name = "samples", .meaning = "pictures of what a generator makes, as it learns"},
     OBJECT(samples),
     .free = true,
     .shown = true},
    {.value = {TEXT("judge", lk_config, judge), .chosen = "none",
               .meaning = "of eval: a classifier's run that scores generated images; --judge"},
     .free = true},
    {.value = {.name = "trace", .meaning = "where the time of some steps goes, op by op"},
     OBJECT(trace),
     .free = true,
     .shown = true},
    {.value = {.name = "init", .meaning = "weights that the run begins with"}, OBJECT(init)},
    {.value = {CHOICE("on_start", lk_config, on_start, starts),
               .meaning = "what may be in the run directory: nothing, this run, either"},
     .free = true},
    {.value = {VALUE(BOOL, "drop_remainder", lk_config, spec.drop_remainder),
               .meaning = "leaves out an epoch's last, short batch"}},
    {.value = {.name = "$schema",
               .chosen = "none",
               .meaning = "the schema that an editor checks the file by: lockstep config schema"},
     .form = LK_KEY_NOTE,
     .free = true},
};

const lk_key lk_config_keys = {.value = {.name = ""}, OBJECT(root), .rules = ROOT_RULES};

const lk_setting lk_network_keys[] = {
    {TEXT("name", lk_network, name), .required = true,
     .meaning = "unique; of its layers' names the first part"},
    {.name = "inputs", .chosen = "[model.input]", .most = LK_NETWORK_INPUTS_MAX,
     .meaning = "shapes: each [height, width, channels] or [values]"},
    {.name = "layers", .required = true, .most = 4096,
     .meaning = "as model.layers; \"input\" is the first input, \"input_2\" the second"},
};
const lk_setting lk_objective_keys[] = {
    {TEXT("name", lk_objective, name), .required = true, .meaning = "unique"},
    {.name = "values", .required = true, .most = LK_VALUES_MAX,
     .meaning = "networks applied to images or earlier values; the loss takes the last"},
    {.name = "loss", .meaning = "what its steps make small"},
    {.name = "trains", .required = true, .most = LK_NETWORKS_MAX,
     .meaning = "names of the networks that its steps change"},
    {.name = "optimizer", .required = true, .meaning = "as optimizer, with slots of its own"},
    {VALUE(FLOAT, "weight_clip", lk_objective, weight_clip), .high = 1e6f,
     .meaning = "cuts the weights that it trains to this size after each update; 0: it does not"},
};
const lk_setting lk_value_keys[] = {
    {TEXT("name", lk_use, name), .required = true, .meaning = "unique in the objective"},
    {.name = "network", .chosen = "none, of noise", .meaning = "which is applied"},
    {.name = "inputs", .chosen = "the value before", .most = LK_NETWORK_INPUTS_MAX,
     .meaning = "names of earlier values, or \"images\""},
    {.name = "noise", .chosen = "none", .meaning = "an object: the value is noise, no network's"},
};
const lk_setting lk_noise_common[] = {
    {.name = "type", .required = true, .meaning = "how it is spread"},
    {.name = "shape", .required = true, .meaning = "[height, width, channels] or [values]"},
};

const lk_setting lk_gan_keys[] = {
    [LK_GAN_NOISE] = {.name = "noise", .required = true, .meaning = "what the generator is given"},
    [LK_GAN_GENERATOR] = {.name = "generator", .required = true, .most = 4096,
                          .meaning = "layers, as model.layers, that make an image of noise"},
    [LK_GAN_DISCRIMINATOR] = {.name = "discriminator", .required = true, .most = 4096,
                              .meaning = "layers, as model.layers, that make a score of an image"},
    [LK_GAN_LOSS] = {.name = "loss", .required = true,
                     .meaning = "which pair of losses the two have"},
    [LK_GAN_GENERATOR_STEPS] = {.name = "generator_steps", .most = INT32_MAX, .constant = 1,
                                .meaning = "steps of the generator in a cycle"},
    [LK_GAN_DISCRIMINATOR_STEPS] = {.name = "discriminator_steps", .most = INT32_MAX,
                                    .constant = 1,
                                    .meaning = "steps of the discriminator in a cycle"},
    [LK_GAN_GENERATOR_OPTIMIZER] = {.name = "generator_optimizer", .required = true,
                                    .meaning = "as optimizer"},
    [LK_GAN_DISCRIMINATOR_OPTIMIZER] = {.name = "discriminator_optimizer", .required = true,
                                        .meaning = "as optimizer"},
    [LK_GAN_WEIGHT_CLIP] = {.name = "weight_clip", .kind = LK_SETTING_FLOAT, .high = 1e6f,
                            .meaning = "as of an objective, of the discriminator"},
};

const lk_setting lk_layer_common[] = {
    [LK_LAYER_TYPE] = {.name = "type", .required = true, .meaning = "what it computes"},
    [LK_LAYER_NAME] = {TEXT("name", lk_layer, name), .chosen = "TYPE_NUMBER",
                       .meaning = "of its tensors; unique, without \"/\""},
    [LK_LAYER_INPUTS] = {.name = "inputs",
                         .chosen = "the layer before",
                         .meaning = "names of layers before it, or \"input\""},
    [LK_LAYER_TRAINABLE] = {.name = "trainable",
                            .kind = LK_SETTING_BOOL,
                            .constant = 1,
                            .meaning = "of layers with parameters; false: they stay as they are"},
    [LK_LAYER_DTYPE] = {CHOICE("dtype", lk_layer, dtype, layer_dtypes),
                        .chosen = "as precision says",
                        .meaning = "float32: in mixed precision this layer is not"},
};

const lk_setting lk_loss_common[] = {
    [LK_LOSS_TYPE] = {.name = "type", .required = true, .meaning = "what it computes"},
    [LK_LOSS_INPUTS] = {.name = "inputs",
                        .chosen = "the last layer; then \"input\"",
                        .meaning = "names of the layers that it takes, or \"input\""},
};

// --- words and bounds ----------------------------------------------------------------------------

static uint32_t list_activations(const char **names) {
    const lk_layer_words *words;
    uint32_t count = 0;
    names[count++] = "linear";
    for (uint32_t i = 0; (words = lk_layer_words_at(i)) != NULL; i++) {
        if (!words->activation) continue;
        lk_assert(count < LK_KEY_CHOICES_MAX);
        names[count++] = words->name;
    }
    return count;
}

static uint32_t list_initializers(const char **names, uint32_t *fallback) {
    uint32_t count = 0;
    for (; lk_initializer_at(count); count++) {
        lk_assert(count < LK_KEY_CHOICES_MAX);
        names[count] = lk_initializer_at(count)->name;
        if (lk_initializer_at(count) == &lk_initializer_glorot_uniform) *fallback = count;
    }
    return count;
}

uint32_t lk_setting_words(const lk_setting *k, const char **names, uint32_t *fallback) {
    *fallback = 0;
    switch (k->kind) {
    case LK_SETTING_PADDING:
        names[0] = "valid";
        names[LK_PADDING_SAME - LK_PADDING_VALID] = "same";
        *fallback = (uint32_t)k->constant - LK_PADDING_VALID;
        return 2;
    case LK_SETTING_CHOICE:
        lk_assert(k->choice_count <= LK_KEY_CHOICES_MAX);
        for (uint32_t i = 0; i < k->choice_count; i++) names[i] = k->choices[i];
        *fallback = (uint32_t)k->constant;
        return k->choice_count;
    case LK_SETTING_ACTIVATION: return list_activations(names);
    case LK_SETTING_INITIALIZER: return list_initializers(names, fallback);
    case LK_SETTING_U32:
    case LK_SETTING_U64:
    case LK_SETTING_PAIR:
    case LK_SETTING_BOOL:
    case LK_SETTING_FLOAT:
    case LK_SETTING_STEPS:
    case LK_SETTING_FLOATS:
    case LK_SETTING_RATE:
    case LK_SETTING_SHAPE:
    case LK_SETTING_SIDES:
    case LK_SETTING_L2:
    case LK_SETTING_WEIGHTS:
    case LK_SETTING_TEXT: break;
    }
    return 0;
}

uint64_t lk_setting_least(const lk_setting *k) { return k->zero ? 0 : k->least ? k->least : 1; }

// The fewest digits that give the float back.
static double plain_float(float value) {
    char text[32];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value) break;
    }
    return strtod(text, NULL);
}

json_t *lk_setting_default(const lk_setting *k) {
    const char *names[LK_KEY_CHOICES_MAX];
    uint32_t fallback;
    if (k->required || k->chosen || k->fallback) return NULL;
    if (lk_setting_words(k, names, &fallback)) return json_string(names[fallback]);
    switch (k->kind) {
    case LK_SETTING_BOOL: return json_boolean(k->constant != 0);
    case LK_SETTING_FLOAT: return json_real(plain_float(k->float_constant));
    case LK_SETTING_TEXT: return json_string(k->text);
    default: return k->word ? json_string(k->word) : json_integer((json_int_t)k->constant);
    }
}

// --- walks ---------------------------------------------------------------------------------------

// Goes down from `group` by the first name of the path. NULL: no such key.
static const lk_key *step_down(const lk_key *group, const char *name, size_t length) {
    for (uint32_t i = 0; i < group->key_count; i++) {
        const char *other = group->keys[i].value.name;
        if (strlen(other) == length && memcmp(other, name, length) == 0) return &group->keys[i];
    }
    return NULL;
}

const lk_key *lk_key_known(const char *path) {
    const lk_key *key = &lk_config_keys;
    while (key && *path) {
        const size_t length = strcspn(path, ".");
        key = step_down(key, path, length);
        path += length;
        path += *path == '.';
    }
    return key;
}

const lk_key *lk_key_find(const char *path) {
    const lk_key *key = lk_key_known(path);
    lk_assert(key);
    return key;
}

bool lk_key_decides(const char *path) {
    const lk_key *at = &lk_config_keys;
    while (at && *path) {
        const size_t length = strcspn(path, ".[");
        if (at->form == LK_KEY_LAYERS || at->form == LK_KEY_NETWORKS ||
            at->form == LK_KEY_OBJECTIVES) {  // names change no bit, however deep
            const char *last = strrchr(path, '.');
            return strcmp(last ? last + 1 : path, lk_layer_common[LK_LAYER_NAME].name) != 0;
        }
        at = step_down(at, path, length);
        if (at && at->free) return false;
        path += length;
        path += strcspn(path, ".");
        path += *path == '.';
    }
    return true;
}

typedef struct walk {
    lk_key_visit visit;
    void *context;
} walk;

static void walk_settings(const walk *w, const char *path, const char *type,
                          const lk_setting *settings, uint32_t count) {
    char below[LK_KEY_PATH_BYTES];
    for (uint32_t i = 0; i < count; i++) {
        lk_key key = {.value = settings[i]};
        snprintf(below, sizeof below, "%.60s.%s", path, settings[i].name);
        key.free = !lk_key_decides(below);
        w->visit(w->context, below, type, &key);
    }
}

static void walk_layers(const walk *w, const char *path) {
    char each[LK_KEY_PATH_BYTES];
    const lk_layer_words *words;
    snprintf(each, sizeof each, "%.60s[]", path);
    walk_settings(w, each, NULL, lk_layer_common, LK_COUNT(lk_layer_common));
    for (uint32_t i = 0; (words = lk_layer_words_at(i)) != NULL; i++) {
        walk_settings(w, each, words->name, words->keys, words->key_count);
    }
}

// Once: every optimizer has the same ones.
static void walk_rates(const walk *w, const char *path) {
    static const lk_setting type = {.name = "type", .required = true, .meaning = "how it changes"};
    const lk_rate_words *words;
    char below[LK_KEY_PATH_BYTES];
    snprintf(below, sizeof below, "%.40s.learning_rate_schedule", path);
    walk_settings(w, below, NULL, &type, 1);
    for (uint32_t i = 0; (words = lk_rate_words_at(i)) != NULL; i++) {
        walk_settings(w, below, words->name, words->keys, words->key_count);
    }
}

static void walk_optimizers(const walk *w, const char *path) {
    static const lk_setting type = {.name = "type", .required = true, .meaning = "how it updates"};
    const lk_optimizer_words *words;
    walk_settings(w, path, NULL, &type, 1);
    for (uint32_t i = 0; (words = lk_optimizer_words_at(i)) != NULL; i++) {
        walk_settings(w, path, words->name, words->keys, words->key_count);
    }
    walk_rates(w, path);
}

static void walk_losses(const walk *w, const char *path) {
    const lk_loss_words *words;
    walk_settings(w, path, NULL, lk_loss_common, LK_COUNT(lk_loss_common));
    for (uint32_t i = 0; (words = lk_loss_words_at(i)) != NULL; i++) {
        walk_settings(w, path, words->name, words->keys, words->key_count);
    }
}

static void walk_networks(const walk *w, const char *path) {
    char each[LK_KEY_PATH_BYTES], below[LK_KEY_PATH_BYTES];
    snprintf(each, sizeof each, "%.60s[]", path);
    walk_settings(w, each, NULL, lk_network_keys, LK_COUNT(lk_network_keys));
    snprintf(below, sizeof below, "%.60s.layers", each);
    walk_layers(w, below);
}

static void walk_noise(const walk *w, const char *path) {
    const lk_noise_words *words;
    walk_settings(w, path, NULL, lk_noise_common, LK_COUNT(lk_noise_common));
    for (uint32_t i = 0; (words = lk_noise_words_at(i)) != NULL; i++) {
        walk_settings(w, path, words->name, words->keys, words->key_count);
    }
}

// Layers and optimizers are as those of the model. The losses' keys are the discriminator's, which
// has all of them.
static void walk_gan(const walk *w, const char *path) {
    const lk_loss_words *loss = lk_loss_words_of(&lk_loss_gan_discriminator);
    char below[LK_KEY_PATH_BYTES];
    walk_settings(w, path, NULL, lk_gan_keys, LK_COUNT(lk_gan_keys));
    snprintf(below, sizeof below, "%.60s.noise", path);
    walk_noise(w, below);
    snprintf(below, sizeof below, "%.60s.loss", path);
    walk_settings(w, below, NULL, loss->keys, loss->key_count);
}

static void walk_objectives(const walk *w, const char *path) {
    char each[LK_KEY_PATH_BYTES], below[LK_KEY_PATH_BYTES];
    snprintf(each, sizeof each, "%.60s[]", path);
    walk_settings(w, each, NULL, lk_objective_keys, LK_COUNT(lk_objective_keys));
    snprintf(below, sizeof below, "%.60s.values[]", each);
    walk_settings(w, below, NULL, lk_value_keys, LK_COUNT(lk_value_keys));
    snprintf(below, sizeof below, "%.60s.values[].noise", each);
    walk_noise(w, below);
}

// What lies in an object that is free is free.
static void walk_group(const walk *w, const char *path, const lk_key *group) {
    char below[LK_KEY_PATH_BYTES];
    for (uint32_t i = 0; i < group->key_count; i++) {
        lk_key key = group->keys[i];
        snprintf(below, sizeof below, "%.60s%s%s", path, *path ? "." : "", key.value.name);
        key.free = !lk_key_decides(below);
        w->visit(w->context, below, NULL, &key);
        if (key.form == LK_KEY_OBJECT) walk_group(w, below, &key);
        if (key.form == LK_KEY_LAYERS) walk_layers(w, below);
        if (key.form == LK_KEY_OPTIMIZER) walk_optimizers(w, below);
        if (key.form == LK_KEY_LOSS) walk_losses(w, below);
        if (key.form == LK_KEY_GAN) walk_gan(w, below);
        if (key.form == LK_KEY_NETWORKS) walk_networks(w, below);
        if (key.form == LK_KEY_OBJECTIVES) walk_objectives(w, below);
    }
}

void lk_key_walk(lk_key_visit visit, void *context) {
    const walk w = {visit, context};
    walk_group(&w, "", &lk_config_keys);
}
