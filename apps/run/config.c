// config.c - reads a configuration document into lk_config.
#define _GNU_SOURCE
#include "apps/run/config.h"

#include <errno.h>
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apps/run/config_keys.h"
#include "apps/run/data_sets.h"

// --- where things lie --------------------------------------------------------------------------

static bool try_config(char *path, size_t bytes, const char *directory, const char *name) {
    snprintf(path, bytes, "%s/%s.json", directory, name);
    return access(path, R_OK) == 0;
}

bool lk_config_find_ready(const char *name, char *path, size_t bytes) {
    char program[LK_CONFIG_PATH_BYTES] = "", directory[LK_CONFIG_PATH_BYTES + 64];
    const char *given = getenv("LOCKSTEP_CONFIGS");
    if (strchr(name, '/')) return false;
    if (given && *given) return try_config(path, bytes, given, name);
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(program, '/');
    if (slash) *slash = '\0';
    static const char *const places[] = {"configs", "../share/lockstep/configs"};
    for (uint32_t i = LK_COUNT(places); i-- > 0;) {
        snprintf(directory, sizeof directory, "%s/%s", program, places[i]);
        if (try_config(path, bytes, directory, name)) return true;
    }
    return false;
}

lk_status lk_config_load(lk_json *document, const char *file, lk_error *error) {
    char path[2 * LK_CONFIG_PATH_BYTES];
    struct stat there;
    const bool exists = stat(file, &there) == 0;
    // A directory is no configuration: one that is called as a ready one, as its run's may be,
    // hides nothing.
    if ((!exists || S_ISDIR(there.st_mode)) && !strchr(file, '/')) {
        if (lk_config_find_ready(file, path, sizeof path)) {
            file = path;
        } else if (!exists) {
            return lk_fail(
                error, LK_NO_INPUT,
                "%s: there is no such file, and no ready configuration of that name; see "
                "them with: lockstep help configs",
                file);
        }
    }
    return lk_json_load_file(document, file, error);
}

// What --data takes the place of would be left out without a word, where it was asked for, too. An
// object of all of data counts as the document, of which --data changes a part.
static lk_status check_replaced(const lk_config_options *options, lk_error *error) {
    static const char *const names[] = {"data.set", "data.directory", "data.train", "data.test"};
    for (uint32_t i = 0; i < options->set_count && options->data_directory; i++) {
        const char *set = options->set[i];
        for (uint32_t n = 0; n < LK_COUNT(names); n++) {
            const size_t length = strlen(names[n]);
            if (strncmp(set, names[n], length) != 0) continue;
            if (set[length] != '=' && set[length] != '.') continue;
            return lk_fail(error, LK_BAD_USAGE,
                           "--set %.*s: found with --data, which takes the place of data.set, "
                           "data.directory, data.train and data.test; leave one of the two away",
                           (int)strcspn(set, "="), set);
        }
    }
    return LK_OK;
}

static lk_status load_document(lk_config *c, const lk_config_options *options, lk_error *error) {
    LK_CHECK(check_replaced(options, error));
    if (options->text) {
        LK_CHECK(lk_json_load_text(&c->document, options->config, options->text,
                                   options->text_bytes, error));
    } else {
        LK_CHECK(lk_config_load(&c->document, options->config, error));
    }
    for (uint32_t i = 0; i < options->set_count; i++) {
        LK_CHECK(lk_json_set(&c->document, options->set[i], error));
    }
    if (options->examples) {  // it decides the bits, so the document says it
        char setting[48];
        snprintf(setting, sizeof setting, "data.train_examples=%llu",
                 (unsigned long long)options->examples);
        LK_CHECK(lk_json_set(&c->document, setting, error));
    }
    return LK_OK;
}

// The four IDX files of a directory, plain or .gz.
static lk_status standard_file(char out[LK_CONFIG_PATH_BYTES], const char *directory,
                               const char *name, lk_error *error) {
    if (lk_data_set_file(directory, name, out)) return LK_OK;
    return lk_fail(
        error, LK_NO_INPUT,
        "%s/%s: neither this file nor its .gz is there; get the data with: lockstep data fetch "
        "mnist, or name a directory that has it with --data DIRECTORY",
        directory, name);
}

static lk_status standard_pair(lk_config_data *d, const char *directory, const char *images,
                               const char *labels, lk_error *error) {
    d->source.kind = LK_DATASET_IDX;
    LK_CHECK(standard_file(d->images, directory, images, error));
    LK_CHECK(standard_file(d->labels, directory, labels, error));
    d->given = true;
    return LK_OK;
}

// A directory with a training set alone, as an import of one part makes it.
static lk_status check_test_set(const lk_config *c, const char *directory, lk_error *error) {
    static const char name[] = "t10k-images-idx3-ubyte";
    char path[LK_CONFIG_PATH_BYTES];
    if (lk_data_set_file(directory, name, path) ||
        !lk_data_set_file(directory, "train-images-idx3-ubyte", path)) {
        return LK_OK;
    }
    return lk_fail(error, LK_NO_INPUT,
                   "%s/%s: neither this file nor its .gz is there, but a training set is; import a "
                   "test set with --part test, or both with --validation 0.1%s",
                   directory, name,
                   c->evaluates ? "" : ", or name the training set's files alone with data.train");
}

// A test set of the document's own stands.
static lk_status standard_directory(lk_config *c, const char *directory, lk_error *error) {
    if (!c->evaluates) {
        LK_CHECK(standard_pair(&c->train, directory, "train-images-idx3-ubyte",
                               "train-labels-idx1-ubyte", error));
    }
    if (c->test.given) return LK_OK;
    LK_CHECK(check_test_set(c, directory, error));
    return standard_pair(&c->test, directory, "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte",
                         error);
}

// A set by name: $LOCKSTEP_DATA/NAME, the cache's data/NAME, or Debian's package.
static lk_status named_set(lk_config *c, const char *name, lk_error *error) {
    char directory[LK_CONFIG_PATH_BYTES];
    lk_error ignored = {.status = LK_OK};
    for (uint32_t place = 0; place < LK_DATA_SET_PLACES; place++) {
        if (!lk_data_set_place(place, name, directory)) continue;
        // One that has not all of it is passed over, as lockstep data fetch does.
        if (standard_directory(c, directory, &ignored) == LK_OK) return LK_OK;
        ignored.status = LK_OK;
    }
    uint32_t set = 0;
    while (lk_data_set_at(set) && strcmp(lk_data_set_at(set)->name, name) != 0) set++;
    if (!lk_data_set_at(set)) {  // nothing that could be fetched
        return lk_fail(error, LK_NO_INPUT,
                       "data.set: %s is not on this machine, nor is it mnist or fashion-mnist, "
                       "which lockstep data fetch knows; put its four files in $LOCKSTEP_DATA/%s, "
                       "or name their directory with --data DIRECTORY",
                       name, name);
    }
    return lk_fail(
        error, LK_NO_INPUT,
        "data.set: %s is not on this machine; get it with: lockstep data fetch %s, or name a "
        "directory with --data DIRECTORY",
        name, name);
}

// --- data --------------------------------------------------------------------------------------

// "train" or "test": which of {"images", "labels"}, {"manifest"} and {"made_up"} it is.
static lk_status settle_set(const lk_json_cursor *data, const char *key, lk_config_data *d,
                            lk_error *error) {
    lk_json_cursor at, inner;
    if (!lk_json_find(data, key, &at)) return LK_OK;
    bool made_up = lk_json_find(&at, "made_up", &inner), pair = lk_json_find(&at, "images", &inner);
    bool manifest = lk_json_find(&at, "manifest", &inner);
    if (made_up + pair + manifest != 1) {
        return lk_json_refuse(&at, error,
                              "wanted exactly one of images (with labels), manifest, made_up");
    }
    d->given = true;
    d->source.kind = made_up ? LK_DATASET_MADE_UP : manifest ? LK_DATASET_MANIFEST : LK_DATASET_IDX;
    if (made_up) return lk_made_up_check(&d->source.made_up, error);
    if (manifest) return LK_OK;
    return lk_json_get_string(&at, "labels", LK_JSON_REQUIRED, d->labels, sizeof d->labels, error);
}

// Made-up labels are as many as they are asked for; a file's are checked when it is opened.
static lk_status check_classes(const lk_config *c, const char *key, const lk_config_data *d,
                               lk_error *error) {
    const uint32_t found = d->source.made_up.classes, most = lk_config_image_classes(c);
    if (d->source.kind != LK_DATASET_MADE_UP || !c->spec.model.classes || found <= most)
        return LK_OK;
    return lk_fail(error, LK_BAD_CONFIG,
                   "%s: data.%s.made_up.classes: found %u, wanted at most %u, which is "
                   "model.classes%s; change one of them",
                   c->document.source, key, found, most,
                   lk_spec_has_strips(&c->spec) ? " without the blank" : "");
}

uint32_t lk_config_image_classes(const lk_config *c) {
    const uint32_t classes = c->spec.model.classes;
    return lk_spec_has_strips(&c->spec) && classes ? classes - 1 : classes;
}

static void finish_source(lk_config *c, bool verify, lk_config_data *d) {
    d->source.images = d->images;
    d->source.labels = d->labels;
    d->source.manifest = d->manifest;
    d->source.classes = lk_config_image_classes(c);
    d->source.type = c->spec.model.input_type == LK_INPUT_F32 ? LK_IDX_F32 : LK_IDX_U8;
    d->source.one_label = lk_spec_has_strips(&c->spec);
    d->source.cache = c->cache[0] ? c->cache : NULL;
    d->source.populate = true;
    d->source.verify = verify;
}

// Order "sharded" needs shards, all of them whole.
static lk_status check_order(const lk_config *c, lk_error *error) {
    const lk_dataset_source *source = &c->train.source;
    if (!c->sharded) return LK_OK;
    if (source->kind != LK_DATASET_MANIFEST) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "%s: data.order: found \"sharded\", which wants data.train.manifest; make "
                       "shards with: lockstep data shard SOURCE --shards %u --to DIR",
                       c->document.source, lk_grain_count(&c->spec));
    }
    const bool strips = source->examples == 0;
    const uint64_t found = strips ? c->train.strips : source->examples;
    if (found == 0) return LK_OK;
    return lk_fail(error, LK_BAD_CONFIG,
                   "%s: data.%s: found %llu, but order \"sharded\" reads whole shards; "
                   "leave one of them out",
                   c->document.source, strips ? "strips.train_count" : "train_examples",
                   (unsigned long long)found);
}

// Of two training sets one would be left out without a word.
static lk_status check_one_set(const lk_json_cursor *data, lk_error *error) {
    static const char *const names[] = {"set", "directory", "train"};
    const char *found[LK_COUNT(names)];
    uint32_t count = 0;
    lk_json_cursor at;
    for (uint32_t i = 0; i < LK_COUNT(names); i++) {
        if (lk_json_find(data, names[i], &at)) found[count++] = names[i];
    }
    if (count <= 1) return LK_OK;
    return lk_json_refuse(data, error,
                          "with \"%s\" and \"%s\", wanted one of set, directory and train; take "
                          "one out, or replace all: --set 'data={...}' or --data DIRECTORY",
                          found[0], found[1]);
}

static bool hold(lk_config_data *d, const lk_dataset_held *held) {
    if (!held) return false;
    *d = (lk_config_data){.given = true,
                          .source = {.kind = LK_DATASET_HELD, .held = *held},
                          .strips = d->strips};
    return true;
}

// Where the data are, of a document or of --data.
static lk_status find_data(lk_config *c, const lk_json_cursor *root,
                           const lk_config_options *options, lk_error *error) {
    lk_json_cursor data;
    if (options->data_directory && options->no_data) {
        c->train.given = true;
        return LK_OK;
    }
    if (options->data_directory) return standard_directory(c, options->data_directory, error);
    if (!lk_json_find(root, "data", &data)) return LK_OK;
    LK_CHECK(check_one_set(&data, error));
    LK_CHECK(settle_set(&data, "train", &c->train, error));
    LK_CHECK(settle_set(&data, "test", &c->test, error));
    if (options->no_data) {
        c->train.given = c->train.given || *c->said.directory || *c->said.set;
        return LK_OK;
    }
    if (*c->said.directory) LK_CHECK(standard_directory(c, c->said.directory, error));
    return *c->said.set ? named_set(c, c->said.set, error) : LK_OK;
}

// Where nothing is trained, a program still has a training set: one example, and no shards.
static lk_status stand_in(lk_config *c, lk_error *error) {
    static const uint8_t labels[2 + LK_LABELS_MOST] = {0, 1};  // a frame; or label 0
    const lk_model *m = &c->spec.model;
    c->stand_in = calloc((size_t)lk_model_input_bytes(m), 1);
    if (!c->stand_in) return lk_fail(error, LK_UNAVAILABLE, "no memory at start-up");
    const lk_idx_type type = m->input_type == LK_INPUT_F32 ? LK_IDX_F32 : LK_IDX_U8;
    const lk_dataset_held one = {c->stand_in, labels, 1, m->in_h, m->in_w, m->in_c, type,
                                 LK_IDX_U8};
    (void)hold(&c->train, &one);
    c->train.source.label_bytes = m->labels ? 2 + m->labels : 0;
    c->said.order = 0;
    c->spec.drop_remainder = false;
    c->resident = false;
    return LK_OK;
}

static lk_status settle_data(lk_config *c, const lk_json_cursor *root,
                             const lk_config_options *options, lk_error *error) {
    const uint64_t examples = c->train.source.examples;
    c->evaluates = options->evaluates;
    c->unlabelled = options->unlabelled;
    // Training examples in memory stand for all that the document says of data; so do test examples
    // where nothing is trained, and there none at all may be wanted.
    const bool held = options->train || (options->evaluates && (options->test || options->no_data));
    if (!held) LK_CHECK(find_data(c, root, options, error));
    if (hold(&c->train, options->train)) c->train.source.examples = examples;
    (void)hold(&c->test, options->test);
    if (c->evaluates) LK_CHECK(stand_in(c, error));
    c->sharded = c->said.order == 1;
    if (!c->train.given && !options->counted) {
        return lk_fail(
            error, LK_BAD_CONFIG,
            "%s: data: no training set is named; wanted data.set, data.directory, data.train "
            "or --data DIRECTORY",
            c->document.source);
    }
    finish_source(c, options->verify_data, &c->train);
    finish_source(c, options->verify_data, &c->test);
    LK_CHECK(check_classes(c, "train", &c->train, error));
    LK_CHECK(check_classes(c, "test", &c->test, error));
    return check_order(c, error);
}

// --- batch, length, arithmetic -----------------------------------------------------------------

// Replicas of all workers: each has as many as its cluster says, or as one here has.
static uint64_t count_replicas(const lk_config_options *options, uint32_t one) {
    uint64_t all = 0;
    for (uint32_t w = 0; w < LK_MAX(options->workers, 1u); w++) {
        const uint32_t said = options->worker_replicas ? options->worker_replicas[w] : 0;
        all += said ? said : one;
    }
    return all;
}

lk_status lk_config_check_factors(const lk_config *c, uint64_t replicas, lk_error *error) {
    const uint64_t product = c->replica_batch * replicas * c->accumulate;
    char whose[48] = "";
    if (product == c->spec.global_batch) return LK_OK;
    if (c->workers > 1) snprintf(whose, sizeof whose, " of %u workers", c->workers);
    return lk_fail(
        error, LK_BAD_CONFIG,
        "%s: replica_batch %llu x replicas %llu%s x accumulate %llu = %llu, but global_batch "
        "is %u; make them agree, or leave replica_batch out",
        c->document.source, (unsigned long long)c->replica_batch, (unsigned long long)replicas,
        whose, (unsigned long long)c->accumulate, (unsigned long long)product,
        c->spec.global_batch);
}

// global_batch, or the factors whose product it is: replica_batch, the replicas of all workers,
// accumulate. Replicas may come from the command line or the cluster; one where nobody says it.
static lk_status settle_factors(lk_config *c, const lk_json_cursor *root,
                                const lk_config_options *options, lk_error *error) {
    uint64_t product;
    const uint32_t one = options->replicas ? options->replicas : LK_MAX(c->replicas, 1u);
    const uint64_t all = count_replicas(options, one);
    const bool said = options->replicas || c->replicas || options->workers;
    c->replicas = options->own_replicas ? options->own_replicas : said ? one : 0;
    c->workers = options->workers;
    if (!lk_mul_ok(c->replica_batch, all, &product) ||
        !lk_mul_ok(product, c->accumulate, &product) || product > 1 << 30) {
        return lk_json_refuse(root, error,
                              "replica_batch x replicas x accumulate is more than 2^30");
    }
    if (c->spec.global_batch == 0) c->spec.global_batch = (uint32_t)product;
    if (c->accumulate > 1) c->microbatch_examples = c->replica_batch;
    // Of several workers each has what it was told: it is checked when all are known.
    return c->workers == 1 ? lk_config_check_factors(c, all, error) : LK_OK;
}

static lk_status settle_batch(lk_config *c, const lk_json_cursor *root,
                              const lk_config_options *options, lk_error *error) {
    if (c->accumulate > 1 && !c->replica_batch) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "%s: accumulate: found %llu without replica_batch, of which it says how "
                       "often; wanted both, or neither",
                       c->document.source, (unsigned long long)c->accumulate);
    }
    if (!c->replica_batch && !c->spec.global_batch) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "%s: global_batch: missing, wanted the examples of one step",
                       c->document.source);
    }
    if (c->replica_batch) {
        LK_CHECK(settle_factors(c, root, options, error));
    } else if (options->own_replicas || options->replicas) {
        c->replicas = options->own_replicas ? options->own_replicas : options->replicas;
    }
    if (c->spec.grain) return LK_OK;
    c->spec.grain = c->spec.model.fast_precision == LK_STRICT
                        ? lk_default_grain(c->spec.global_batch)
                        : lk_default_fast_grain(c->spec.global_batch);
    return LK_OK;
}

// The loss is scaled where gradients are float16 alone; of its keys none is without use.
static lk_status settle_scale(lk_config *c, const lk_json_cursor *root, lk_error *error) {
    lk_model *m = &c->spec.model;
    lk_json_cursor at;
    m->skips = lk_model_scales(m) && !m->loss_scale.replays;
    if (lk_model_scales(m) || !lk_json_find(root, "loss_scale", &at)) return LK_OK;
    return lk_json_refuse(&at, error,
                          "a loss is scaled in precision \"mixed_float16\", and in arithmetic "
                          "\"fast\" in fast_precision \"fp16\"; set that, or take loss_scale out");
}

static void settle_averages(lk_config *c) {
    lk_model *m = &c->spec.model;
    m->averages = NULL;
    for (uint32_t k = 0; k < lk_objective_count(m); k++) {
        const bool averages = lk_optimizer_averages(lk_optimizer_of(&c->spec, k));
        if (averages) m->averages = &lk_average_linked;
    }
}

// The arithmetic, and in the fast one the precision of products.
static lk_status settle_arithmetic(lk_config *c, const lk_json_cursor *root, lk_error *error) {
    lk_json_cursor at;
    if (c->said.arithmetic == 0) {
        if (!lk_json_find(root, "fast_precision", &at)) return LK_OK;
        return lk_json_refuse(&at, error,
                              "it is a precision of arithmetic \"fast\": set arithmetic to "
                              "\"fast\" or leave fast_precision out");
    }
    if (c->spec.model.precision != LK_FLOAT32) {
        (void)lk_json_find(root, "precision", &at);
        return lk_json_refuse(&at, error,
                              "mixed precision is one of arithmetic \"strict\"; in \"fast\" set "
                              "fast_precision to \"%s\" instead, and take precision out",
                              c->spec.model.precision == LK_MIXED_FLOAT16 ? "fp16" : "bf16");
    }
    c->spec.model.fast_precision = (lk_fast_precision)(c->said.fast_precision + LK_FAST_TF32);
    return LK_OK;
}

// It is a directory's name, too, and a part of a line.
static lk_status check_name(const lk_config *c, const lk_json_cursor *root, lk_error *error) {
    lk_json_cursor at;
    bool fits = !strchr(c->name, '/') && strcmp(c->name, "..") != 0 && strcmp(c->name, ".") != 0;
    for (const char *letter = c->name; *letter; letter++) {
        fits = fits && (unsigned char)*letter >= ' ' && *letter != 0x7f;
    }
    if (fits) return LK_OK;
    (void)lk_json_find(root, "name", &at);
    return lk_json_refuse(&at, error,
                          "wanted a name without \"/\" and control characters: the run lives in "
                          "runs/NAME, or where --run-dir says");
}

// What only bytes have: a range, and pictures.
static lk_status check_inputs(const lk_config *c, lk_error *error) {
    const lk_model *m = &c->spec.model;
    if (m->input_type != LK_INPUT_F32) return LK_OK;
    const char *key = m->input_range == LK_RANGE_SIGNED ? "model.input_range"
                      : c->events.images                ? "events.images"
                      : c->samples.every_steps          ? "samples.every_steps"
                                                        : NULL;
    if (!key) return LK_OK;
    return lk_fail(error, LK_BAD_CONFIG,
                   "%s: %s: found with model.input_type \"f32\", wanted inputs of bytes, which "
                   "have a range and can be shown; leave one of them out",
                   c->document.source, key);
}

static lk_status settle_length(lk_config *c, const lk_json_cursor *root, lk_error *error) {
    lk_json_cursor at;
    if (c->cycles && !c->spec.model.graph) {
        (void)lk_json_find(root, "cycles", &at);
        return lk_json_refuse(&at, error,
                              "without \"model.objectives\", whose schedule it counts; wanted "
                              "steps or epochs");
    }
    if (!c->steps && !c->epochs && !c->cycles) c->epochs = 1;
    if (c->steps || c->cycles || lk_steps_of_batches(&c->spec.model, 1) != UINT64_MAX) return LK_OK;
    return lk_fail(
        error, LK_BAD_CONFIG,
        "%s: no objective reads images, so that an epoch never ends; wanted \"steps\" or "
        "\"cycles\"",
        c->document.source);
}

lk_status lk_config_open(lk_config *c, const lk_config_options *options, lk_error *error) {
    memset(c, 0, sizeof *c);
    LK_CHECK(load_document(c, options, error));
    LK_CHECK(lk_config_expand_gan(&c->document, error));
    lk_json_cursor root = lk_json_root(&c->document);
    LK_CHECK(lk_config_read_group(c, &root, &lk_config_keys, c, error));
    LK_CHECK(check_name(c, &root, error));
    LK_CHECK(settle_arithmetic(c, &root, error));
    LK_CHECK(settle_scale(c, &root, error));
    settle_averages(c);
    LK_CHECK(settle_batch(c, &root, options, error));
    LK_CHECK(settle_length(c, &root, error));
    LK_CHECK(check_inputs(c, error));
    if (c->gpus == 0) c->gpus = LK_CONFIG_ALL_GPUS;
    if (options->gpus) c->gpus = options->gpus;
    if (options->gpu) c->gpu = options->gpu - 1;
    if (options->kernels) snprintf(c->kernels, sizeof c->kernels, "%s", options->kernels);
    c->stop_on_failed_save = c->said.on_error != 0;
    return settle_data(c, &root, options, error);
}

uint64_t lk_config_steps_of(const lk_config *c, uint64_t steps, uint64_t epochs,
                            uint64_t cycles) {
    uint64_t all = UINT64_MAX, of_cycles = UINT64_MAX;
    if (epochs && !lk_mul_ok(epochs, lk_steps_per_epoch(&c->spec), &all)) all = UINT64_MAX;
    if (all != UINT64_MAX) all = lk_steps_of_batches(&c->spec.model, all);
    if (cycles && !lk_mul_ok(cycles, lk_cycle_steps(&c->graph), &of_cycles)) {
        of_cycles = UINT64_MAX;
    }
    all = LK_MIN(all, of_cycles);
    return steps ? LK_MIN(steps, all) : all;
}

uint64_t lk_config_steps(const lk_config *c) {
    return lk_config_steps_of(c, c->steps, c->epochs, c->cycles);
}

lk_status lk_config_open_model(lk_config *c, const char *name, lk_error *error) {
    const lk_config_options options = {.config = name};
    memset(c, 0, sizeof *c);
    LK_CHECK(load_document(c, &options, error));
    LK_CHECK(lk_config_expand_gan(&c->document, error));
    lk_json_cursor root = lk_json_root(&c->document), at;
    LK_CHECK(lk_json_get_object(&root, "model", LK_JSON_REQUIRED, &at, error));
    LK_CHECK(lk_config_read_group(c, &at, lk_key_find("model"), c, error));
    LK_CHECK(lk_json_get_object(&root, "data", LK_JSON_OPTIONAL, &at, error));
    if (!at.value) return LK_OK;
    LK_CHECK(lk_json_get_object(&at, "normalize", LK_JSON_OPTIONAL, &at, error));
    return lk_config_read_group(c, &at, lk_key_find("data.normalize"), c, error);
}

void lk_config_close(lk_config *c) {
    lk_config_close_weights(c);
    lk_config_close_graph(c);
    free(c->layers);
    free(c->stand_in);
    c->layers = NULL;
    c->stand_in = NULL;
    lk_json_close(&c->document);
}
