// ledger.c - lockstep ledger: in which steps an example was used, or which examples a step used.
// From configuration and counts alone; the data is opened only where nothing else says how many
// examples there are, and no byte of it is asked.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "apps/cli/tools.h"
#include "apps/run/ledger.h"
#include "apps/run/record.h"
#include "apps/run/strips.h"
#include "comm/threads/team.h"
#include "io/json.h"
#include "io/manifest.h"
#include "io/shuffle.h"

typedef unsigned long long ull;

static const char help[] =
    "lockstep ledger RUN_DIR|CONFIG (--example N | --step S) [--replicas N] [--set KEY=VALUE] "
    "[--json]\n"
    "\n"
    "From arithmetic alone:\n"
    "  --example N    every step that uses example N of the training set (from 0): epoch, position "
    "in\n"
    "                 the global batch, grain and replica\n"
    "  --step S       every example that step S uses. Steps count from 1, as in the logs; epochs,\n"
    "                 positions, grains and replicas from 0\n"
    "  --replicas N   of all workers (those of the run, or of the configuration)\n"
    "With a RUN_DIR the data need not be on this machine.\n";

typedef struct ledger {
    lk_config config;
    uint64_t *shard_first;  // order "sharded"
    uint64_t steps;         // of the run
    uint32_t replicas;      // 0: not known
    uint64_t recorded_examples;
    uint32_t recorded_replicas;
    json_t *uses;  // --json
} ledger;

// --- the run -------------------------------------------------------------------------------------

// What a run directory recorded; runs of earlier versions recorded nothing of the kind.
static lk_status read_record(ledger *l, const char *run_dir, lk_error *error) {
    char path[LK_PATH_BYTES];
    struct stat facts;
    lk_json document = {.root = NULL};
    lk_json_cursor root, data, at;
    LK_CHECK(lk_path_join(path, run_dir, "/", LK_RECORD_NAME, error));
    if (stat(path, &facts) != 0) return LK_OK;
    LK_CHECK(lk_json_load_file(&document, path, error));
    root = lk_json_root(&document);
    lk_status status = lk_json_get_object(&root, "data", LK_JSON_REQUIRED, &data, error);
    if (status == LK_OK) status = lk_json_get_object(&data, "train", LK_JSON_REQUIRED, &at, error);
    if (status == LK_OK) {
        status = lk_json_get_u64(&at, "examples", LK_JSON_REQUIRED, 1, LK_SHUFFLE_COUNT_MAX,
                                 &l->recorded_examples, error);
    }
    if (status == LK_OK) {
        status = lk_json_get_object(&root, "environment", LK_JSON_REQUIRED, &at, error);
    }
    if (status == LK_OK) {
        status = lk_json_get_u32(&at, "replicas", LK_JSON_REQUIRED, 1, 1 << 20,
                                 &l->recorded_replicas, error);
    }
    lk_json_close(&document);
    return status;
}

static lk_status take_shards(ledger *l, lk_error *error) {
    lk_manifest manifest = {0};
    lk_run_spec *spec = &l->config.spec;
    uint8_t sha256[LK_SHA256_BYTES];
    lk_status status = lk_manifest_load(l->config.train.manifest, &manifest, error);
    if (status == LK_OK) {
        l->shard_first = calloc((size_t)manifest.shard_count + 1, sizeof *l->shard_first);
        if (!l->shard_first) status = lk_fail(error, LK_UNAVAILABLE, "no memory for the shards");
    }
    if (status == LK_OK) status = lk_manifest_cut(&manifest, l->shard_first, sha256, error);
    if (status == LK_OK) {
        spec->shards = manifest.shard_count;
        spec->shard_first = l->shard_first;
        spec->example_count = spec->strip_images = manifest.count;
    }
    lk_manifest_close(&manifest);
    return status;
}

static lk_status count_examples(ledger *l, lk_error *error) {
    const lk_dataset_source *source = &l->config.train.source;
    lk_dataset set;
    uint64_t bytes;
    LK_CHECK(lk_dataset_bytes(source, &bytes, error));
    void *memory = aligned_alloc(64, lk_round_up(bytes + 64, 64));
    if (!memory) return lk_fail(error, LK_UNAVAILABLE, "no memory for the data set's tables");
    lk_status status = lk_dataset_open(source, memory, bytes, &set, error);
    if (status == LK_OK) {
        l->config.spec.example_count = l->config.spec.strip_images = set.count;
        lk_dataset_close(&set);
    }
    free(memory);
    return status;
}

// The shards are the manifest's to say, so it is looked for after all.
static lk_status open_config(ledger *l, lk_config_options *options, lk_error *error) {
    options->no_data = l->recorded_examples > 0 && !options->data_directory;
    options->counted = options->no_data;  // the run was given it by --data, perhaps
    LK_CHECK(lk_config_open(&l->config, options, error));
    if (!l->config.sharded || !options->no_data) return LK_OK;
    lk_config_close(&l->config);
    options->no_data = false;
    return lk_config_open(&l->config, options, error);
}

// As training chooses where nobody says it: of processors, or of the GPUs that are named.
static uint32_t default_replicas(const ledger *l) {
    const lk_config *c = &l->config;
    if (c->replicas) return c->replicas;
    if (strcmp(c->kernels, "cuda") != 0) return LK_MIN(lk_processors(), lk_grain_count(&c->spec));
    return c->gpus == LK_CONFIG_ALL_GPUS ? 1 : LK_MAX(c->gpus, 1);
}

static lk_status open_ledger(ledger *l, const lk_common_options *o, lk_error *error) {
    lk_config_options options = o->config;
    char config[LK_PATH_BYTES];
    struct stat facts;
    const bool run = stat(options.config, &facts) == 0 && S_ISDIR(facts.st_mode);
    options.replicas = 0;  // of all workers here; the configuration's are of one
    if (run) {
        LK_CHECK(lk_path_join(config, options.config, "/", "config.json", error));
        LK_CHECK(read_record(l, options.config, error));
        options.config = config;
    }
    LK_CHECK(open_config(l, &options, error));
    lk_run_spec *spec = &l->config.spec;
    if (l->config.sharded) {
        LK_CHECK(take_shards(l, error));
    } else if (l->recorded_examples && !o->config.examples) {
        spec->example_count = spec->strip_images = l->recorded_examples;
    } else {
        LK_CHECK(count_examples(l, error));
    }
    if (lk_spec_has_strips(spec) && l->config.train.strips)
        spec->example_count = l->config.train.strips;
    LK_CHECK(lk_run_spec_check(spec, error));
    l->steps = lk_config_steps(&l->config);
    l->replicas = o->config.replicas     ? o->config.replicas
                  : l->recorded_replicas ? l->recorded_replicas
                                         : default_replicas(l);
    if (l->replicas <= lk_grain_count(spec)) return LK_OK;
    return lk_fail(error, LK_BAD_USAGE,
                   "--replicas: found %u, wanted 1 to %u, the grains of a step", l->replicas,
                   lk_grain_count(spec));
}

// --- what is said --------------------------------------------------------------------------------

static json_t *use_json(const lk_ledger_use *use) {
    json_t *out =
        json_pack("{s:I, s:I, s:I, s:I, s:I}", "step", (json_int_t)use->step + 1, "epoch",
                  (json_int_t)use->epoch, "position", (json_int_t)use->position, "grain",
                  (json_int_t)use->grain, "replica", (json_int_t)use->replica);
    json_t *images = use->image_count ? json_array() : NULL;
    for (uint32_t i = 0; i < use->image_count; i++)
        json_array_append_new(images, json_integer((json_int_t)use->images[i]));
    if (use->image_count)
        json_object_set_new(out, "images", images);
    else
        json_object_set_new(out, "example", json_integer((json_int_t)use->example));
    return out;
}

static void say_use(ledger *l, const lk_ledger_use *use) {
    if (l->uses) {
        json_array_append_new(l->uses, use_json(use));
        return;
    }
    printf("step %llu  epoch %llu  position %u  grain %u  replica %u  ", (ull)use->step + 1,
           (ull)use->epoch, use->position, use->grain, use->replica);
    if (use->image_count == 0) printf("example %llu", (ull)use->example);
    for (uint32_t i = 0; i < use->image_count; i++)
        printf("%s%llu", i ? ", " : "strip of images ", (ull)use->images[i]);
    printf("\n");
}

// What an epoch does with an example: of strips, in a round.
static uint64_t say_epoch(ledger *l, uint64_t epoch, uint64_t round, uint64_t example) {
    const lk_run_spec *spec = &l->config.spec;
    lk_ledger_use use = {.image_count = 0};
    const bool found = lk_spec_has_strips(spec)
                           ? lk_ledger_find_strip(spec, l->replicas, epoch, round, example, &use)
                           : lk_ledger_find(spec, l->replicas, epoch, example, &use);
    if (!found || use.step >= l->steps) return 0;
    say_use(l, &use);
    return 1;
}

static lk_status say_example(ledger *l, uint64_t example, lk_error *error) {
    const lk_run_spec *spec = &l->config.spec;
    const uint64_t an_epoch = lk_steps_per_epoch(spec);
    const bool strips = lk_spec_has_strips(spec);
    const uint64_t examples = strips ? spec->strip_images : spec->example_count;
    uint64_t count = 0;
    if (example >= examples) {
        return lk_fail(
            error, LK_BAD_USAGE,
            "--example: found %llu, wanted a number from 0 to %llu: the training set has "
            "%llu examples",
            (ull)example, (ull)examples - 1, (ull)examples);
    }
    const uint64_t rounds = strips ? lk_strip_rounds(spec, example) : 1;
    for (uint64_t epoch = 0;
         lk_steps_of_batches(&spec->model, epoch * an_epoch) < l->steps; epoch++) {
        for (uint64_t round = 0; round < rounds; round++)
            count += say_epoch(l, epoch, round, example);
    }
    if (l->uses) return LK_OK;
    printf("example %llu of %llu: used %llu times in %llu steps, by %u replicas\n", (ull)example,
           (ull)examples, (ull)count, (ull)l->steps, l->replicas);
    return LK_OK;
}

static lk_status say_step(ledger *l, uint64_t step, lk_error *error) {
    const lk_run_spec *spec = &l->config.spec;
    uint64_t count = 0;
    if (step > l->steps) {
        return lk_fail(error, LK_BAD_USAGE,
                       "--step: found %llu, wanted a number from 1 to %llu, "
                       "the steps of the run",
                       (ull)step, (ull)l->steps);
    }
    for (uint32_t position = 0; position < spec->global_batch; position++) {
        lk_ledger_use use = {.image_count = 0};
        if (!lk_ledger_at(spec, l->replicas, step - 1, position, &use)) continue;
        say_use(l, &use);
        count++;
    }
    if (l->uses) return LK_OK;
    printf("step %llu of %llu: %llu examples, %u grains of %u, by %u replicas\n", (ull)step,
           (ull)l->steps, (ull)count, lk_grain_count(spec), spec->grain, l->replicas);
    return LK_OK;
}

static lk_status say(ledger *l, const lk_common_options *o, lk_error *error) {
    l->uses = o->json ? json_array() : NULL;
    LK_CHECK(o->step ? say_step(l, o->step, error) : say_example(l, o->example - 1, error));
    if (!o->json) return LK_OK;
    const lk_run_spec *spec = &l->config.spec;
    return lk_print_json(
        json_pack("{s:I, s:I, s:I, s:O}", "examples", (json_int_t)spec->example_count, "steps",
                  (json_int_t)l->steps, "replicas", (json_int_t)l->replicas, "uses", l->uses),
        error);
}

lk_status lk_command_ledger(int argc, char **argv, lk_error *error) {
    static lk_common_options o;
    ledger l = {.steps = 0};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") != 0 && strcmp(argv[i], "-h") != 0) continue;
        fputs(help, stdout);
        return LK_OK;
    }
    LK_CHECK(lk_parse_common(argc, argv, LK_OPT_JSON | LK_OPT_LEDGER, &o, error));
    if (!o.step == !o.example) {
        return lk_fail(error, LK_BAD_USAGE, "ledger: wanted either --example N or --step S");
    }
    lk_status status = open_ledger(&l, &o, error);
    if (status == LK_OK) status = say(&l, &o, error);
    lk_config_close(&l.config);
    free(l.shard_first);
    json_decref(l.uses);
    return status;
}
