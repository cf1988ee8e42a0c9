// data.c - lockstep data: unpack, shard and verify data sets. Fetching is data_fetch.c's.
#define _GNU_SOURCE
#include <endian.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apps/cli/command.h"
#include "apps/cli/tools.h"
#include "apps/run/data_sets.h"
#include "io/data_cache.h"
#include "io/dataset.h"
#include "io/gunzip.h"

typedef unsigned long long ull;

// --- which data ----------------------------------------------------------------------------------

// In the first line of a help, which refusals repeat.
#define SOURCE_USAGE \
    "(--directory DIR | --manifest FILE | --images FILE --labels FILE | --made-up COUNT)"

#define SOURCE_HELP                                                                               \
    "The data are one of\n"                                                                       \
    "  --images FILE --labels FILE   a pair of IDX files, plain or .gz\n"                         \
    "  --manifest FILE               shards, as lockstep data shard writes them\n"                \
    "  --directory DIR               files of MNIST's naming; --part train (default) or test\n"   \
    "  --made-up COUNT               made-up images; --seed 1 --first 0 --height 28 --width 28\n" \
    "                                --channels 1 --classes 10\n"                                 \
    "and --classes N, with any of them, refuses labels from N on.\n"

#define NOT_GIVEN UINT64_MAX

typedef struct source_options {
    const char *images, *labels, *manifest, *directory, *part;
    uint64_t made_up, seed, first, height, width, channels, classes;  // NOT_GIVEN
    char found_images[LK_PATH_BYTES], found_labels[LK_PATH_BYTES];    // of --directory
    lk_dataset_source source;
} source_options;

enum { SOURCE_OPTIONS = 12 };

static void describe_source(source_options *o, lk_argument out[SOURCE_OPTIONS]) {
    const uint64_t most = (uint64_t)1 << 40;
    const lk_argument options[SOURCE_OPTIONS] = {
        {.name = "images", .text = &o->images},
        {.name = "labels", .text = &o->labels},
        {.name = "manifest", .text = &o->manifest},
        {.name = "directory", .text = &o->directory},
        {.name = "part", .text = &o->part},
        {.name = "made-up", .number = &o->made_up, .min = 1, .max = most},
        {.name = "seed", .number = &o->seed, .max = INT64_MAX},
        {.name = "first", .number = &o->first, .max = most},
        {.name = "height", .number = &o->height, .min = 1, .max = 65535},
        {.name = "width", .number = &o->width, .min = 1, .max = 65535},
        {.name = "channels", .number = &o->channels, .min = 1, .max = 16},
        {.name = "classes", .number = &o->classes, .min = 1, .max = LK_IDX_CLASSES_MAX}};
    memset(o, 0, sizeof *o);
    o->made_up = o->seed = o->first = o->height = o->width = o->channels = o->classes = NOT_GIVEN;
    memcpy(out, options, sizeof options);
}

// A file of --directory: plain, or .gz.
static lk_status part_file(char out[LK_PATH_BYTES], const char *directory, const char *part,
                           const char *name, lk_error *error) {
    char file[64];
    snprintf(file, sizeof file, "%s-%s", part, name);
    if (lk_data_set_file(directory, file, out)) return LK_OK;
    return lk_fail(error, LK_NO_INPUT, "%s/%s-%s: neither this file nor its .gz is there",
                   directory, part, name);
}

static lk_status directory_source(source_options *o, lk_error *error) {
    const char *part = o->part ? o->part : "train";
    if (strcmp(part, "train") != 0 && strcmp(part, "test") != 0) {
        return lk_fail(error, LK_BAD_USAGE, "--part: found \"%s\", wanted train or test", part);
    }
    const char *prefix = strcmp(part, "test") == 0 ? "t10k" : "train";
    LK_CHECK(part_file(o->found_images, o->directory, prefix, "images-idx3-ubyte", error));
    LK_CHECK(part_file(o->found_labels, o->directory, prefix, "labels-idx1-ubyte", error));
    o->images = o->found_images;
    o->labels = o->found_labels;
    return LK_OK;
}

static uint64_t or_default(uint64_t given, uint64_t value) {
    return given == NOT_GIVEN ? value : given;
}

static lk_status made_up_source(const source_options *o, lk_made_up *out, lk_error *error) {
    *out = (lk_made_up){.count = o->made_up,
                        .seed = or_default(o->seed, 1),
                        .first = or_default(o->first, 0),
                        .height = (uint32_t)or_default(o->height, 28),
                        .width = (uint32_t)or_default(o->width, 28),
                        .channels = (uint32_t)or_default(o->channels, 1),
                        .classes = (uint32_t)or_default(o->classes, 10)};
    return lk_made_up_check(out, error);
}

// An option that says nothing about the data that was chosen is a mistake, not a wish to ignore.
static lk_status check_together(const source_options *o, lk_error *error) {
    const struct {
        const char *name;
        uint64_t value;
    } of_made_up[] = {{"seed", o->seed},
                      {"first", o->first},
                      {"height", o->height},
                      {"width", o->width},
                      {"channels", o->channels}};
    int kinds =
        (o->images || o->labels) + !!o->manifest + !!o->directory + (o->made_up != NOT_GIVEN);
    if (kinds != 1) {
        return lk_fail(error, LK_BAD_USAGE,
                       "found %d sources of data, wanted one of: --images FILE --labels FILE, "
                       "--manifest FILE, --directory DIR, --made-up COUNT",
                       kinds);
    }
    if (!o->images != !o->labels) {
        return lk_fail(error, LK_BAD_USAGE, "--images and --labels go together: --%s is missing",
                       o->images ? "labels" : "images");
    }
    if (o->part && !o->directory) {
        return lk_fail(error, LK_BAD_USAGE, "--part goes with --directory only");
    }
    for (uint32_t i = 0; i < LK_COUNT(of_made_up) && o->made_up == NOT_GIVEN; i++) {
        if (of_made_up[i].value == NOT_GIVEN) continue;
        return lk_fail(error, LK_BAD_USAGE, "--%s goes with --made-up only", of_made_up[i].name);
    }
    return LK_OK;
}

static lk_status choose_source(source_options *o, lk_error *error) {
    LK_CHECK(check_together(o, error));
    lk_dataset_source *s = &o->source;
    if (o->directory) LK_CHECK(directory_source(o, error));
    s->kind = o->manifest               ? LK_DATASET_MANIFEST
              : o->made_up != NOT_GIVEN ? LK_DATASET_MADE_UP
                                        : LK_DATASET_IDX;
    s->images = o->images;
    s->labels = o->labels;
    s->manifest = o->manifest;
    s->classes = (uint32_t)or_default(o->classes, 0);
    return s->kind == LK_DATASET_MADE_UP ? made_up_source(o, &s->made_up, error) : LK_OK;
}

// An open data set and the memory under it.
typedef struct open_data {
    void *memory;
    lk_dataset set;
} open_data;

static lk_status open_source(source_options *o, bool believe, open_data *out, lk_error *error) {
    uint64_t bytes;
    *out = (open_data){0};
    LK_CHECK(choose_source(o, error));
    LK_CHECK(lk_dataset_bytes(&o->source, &bytes, error));
    out->memory = aligned_alloc(64, lk_round_up(LK_MAX(bytes, 1), 64));
    if (!out->memory) {
        return lk_fail(error, LK_UNAVAILABLE, "no memory for the data set's %llu bytes",
                       (ull)bytes);
    }
    lk_watch_data(&out->set, NULL);
    lk_status status = believe
                           ? lk_dataset_open(&o->source, out->memory, bytes, &out->set, error)
                           : lk_dataset_verify(&o->source, out->memory, bytes, &out->set, error);
    if (status == LK_OK) return LK_OK;
    free(out->memory);
    return status;
}

static void close_source(open_data *data) {
    lk_dataset_close(&data->set);
    free(data->memory);
}

// --- verify --------------------------------------------------------------------------------------

static const char verify_help[] =
    "lockstep data verify " SOURCE_USAGE
    "\n\n"
    "Checks format, sizes, counts and labels, and computes every hash anew. Prints the number of\n"
    "examples, the image's shape, how many examples each class has, mean and deviation of each\n"
    "channel as data.normalize takes them (of bytes in units of 0 to 1; of sequences without the\n"
    "frames behind them), and the data hash.\n"
    "\n" SOURCE_HELP;

// How often each label is there. Of sequences 0 says that there is none, and is not counted, nor is
// the number of frames.
static lk_status count_labels(const lk_dataset *set, uint64_t **out, lk_error *error) {
    const uint32_t row = lk_dataset_label_row(set);
    uint64_t *counts = calloc(set->classes, sizeof *counts);
    *out = counts;
    if (!counts) return lk_fail(error, LK_UNAVAILABLE, "no memory for %u counts", set->classes);
    for (uint64_t i = 0; i < set->count * row; i++) {
        if (row > 1 && i % row == 0) continue;
        const uint32_t label = lk_dataset_label(set, i);
        if (row == 1 || label) counts[label]++;
    }
    return LK_OK;
}

static lk_status print_classes(const lk_dataset *set, lk_error *error) {
    uint64_t *counts;
    LK_CHECK(count_labels(set, &counts, error));
    printf("class_counts");
    for (uint32_t c = 0; c < set->classes; c++) printf(" %llu", (ull)counts[c]);
    printf("\n");
    free(counts);
    return LK_OK;
}

// Of each channel, its bytes as 0 to 1. How often each byte is there is exact, so both are the
// numbers of the set, whoever computes them.
enum { CHANNELS_MAX = 16 };
typedef struct moments {
    uint32_t channels;  // 0: more than a configuration could say
    double mean[CHANNELS_MAX], deviation[CHANNELS_MAX];
} moments;

// Values of an example: of a sequence those of its own frames, the first number of its labels.
static uint64_t values_of(const lk_dataset *set, uint64_t example) {
    const uint64_t rows = set->sequences
                              ? lk_dataset_label(set, example * lk_dataset_label_row(set))
                              : set->height;
    return rows * set->width * set->channels;
}

static double values_of_all(const lk_dataset *set) {
    uint64_t all = 0;
    for (uint64_t i = 0; i < set->count; i++) all += values_of(set, i);
    return (double)all;
}

static void count_bytes(const lk_dataset *set, uint32_t channels, uint64_t counts[][256]) {
    for (uint64_t i = 0; i < set->count; i++) {
        const uint8_t *image = lk_dataset_image(set, i);
        const uint64_t values = values_of(set, i);
        for (uint64_t b = 0; b < values; b++) counts[b % channels][image[b]]++;
    }
}

// Of floats: sums in double, in the order of the set.
static moments moments_of_floats(const lk_dataset *set) {
    moments m = {.channels = set->channels <= CHANNELS_MAX ? set->channels : 0};
    const double all = values_of_all(set) / set->channels;
    for (uint32_t pass = 0; m.channels && pass < 2; pass++) {
        double sums[CHANNELS_MAX] = {0};
        for (uint64_t i = 0; i < set->count; i++) {
            const uint8_t *image = lk_dataset_image(set, i);
            const uint64_t values = values_of(set, i);
            for (uint64_t v = 0; v < values; v++) {
                uint32_t word;
                float value;
                memcpy(&word, image + v * sizeof word, sizeof word);
                if (!set->native) word = be32toh(word);
                memcpy(&value, &word, sizeof value);
                const double from = value - m.mean[v % m.channels];
                sums[v % m.channels] += pass ? from * from : from;
            }
        }
        for (uint32_t c = 0; c < m.channels; c++) {
            if (pass) m.deviation[c] = sqrt(sums[c] / all);
            if (!pass) m.mean[c] = sums[c] / all;
        }
    }
    return m;
}

static moments moments_of(const lk_dataset *set) {
    if (set->type == LK_IDX_F32) return moments_of_floats(set);
    uint64_t counts[CHANNELS_MAX][256] = {{0}};
    moments m = {.channels = set->channels <= CHANNELS_MAX ? set->channels : 0};
    const double all = values_of_all(set) / set->channels;
    if (m.channels) count_bytes(set, m.channels, counts);
    for (uint32_t c = 0; c < m.channels; c++) {
        double sum = 0, squares = 0;
        for (uint32_t v = 0; v < 256; v++) sum += (double)counts[c][v] * v;
        m.mean[c] = sum / all;
        for (uint32_t v = 0; v < 256; v++) {
            squares += (double)counts[c][v] * (v - m.mean[c]) * (v - m.mean[c]);
        }
        m.deviation[c] = sqrt(squares / all) / 255;
        m.mean[c] /= 255;
    }
    return m;
}

static void print_floats(const char *name, uint32_t count, const double *values) {
    if (!count) return;
    printf("%s [", name);
    for (uint32_t c = 0; c < count; c++) printf("%s%.9g", c ? ", " : "", values[c]);
    printf("]\n");
}

static json_t *floats_json(uint32_t count, const double *values) {
    json_t *list = json_array();
    for (uint32_t c = 0; c < count; c++) json_array_append_new(list, json_real(values[c]));
    return list;
}

static lk_status print_set_json(const lk_dataset *set, const char *hex, lk_error *error) {
    uint64_t *counts;
    LK_CHECK(count_labels(set, &counts, error));
    json_t *list = json_array();
    for (uint32_t c = 0; c < set->classes; c++) {
        json_array_append_new(list, json_integer((json_int_t)counts[c]));
    }
    free(counts);
    const moments m = moments_of(set);
    return lk_print_json(
        json_pack("{s:I, s:I, s:[i,i,i], s:s, s:i, s:o, s:o, s:o, s:s}", "examples",
                  (json_int_t)set->count, "parts", (json_int_t)set->part_count, "image",
                  (int)set->height, (int)set->width, (int)set->channels, "type",
                  set->type == LK_IDX_F32 ? "f32" : "u8", "classes",
                  (int)set->classes, "class_counts", list, "mean", floats_json(m.channels, m.mean),
                  "deviation", floats_json(m.channels, m.deviation), "data_sha256", hex),
        error);
}

static lk_status print_set(const lk_dataset *set, bool json, lk_error *error) {
    char hex[LK_SHA256_HEX_BYTES];
    lk_hex(set->sha256, LK_SHA256_BYTES, hex);
    if (json) return print_set_json(set, hex, error);
    printf("examples %llu in %u %s\n", (ull)set->count, set->part_count,
           set->part_count == 1 ? "part" : "shards");
    printf("image [%u, %u, %u]%s\n", set->height, set->width, set->channels,
           set->type == LK_IDX_F32 ? " of f32" : "");
    printf("classes %u\n", set->classes);
    LK_CHECK(print_classes(set, error));
    const moments m = moments_of(set);
    print_floats("mean", m.channels, m.mean);
    print_floats("deviation", m.channels, m.deviation);
    printf("data_sha256 %s\n", hex);
    return LK_OK;
}

static lk_status verify(int argc, char **argv, lk_error *error) {
    source_options o;
    lk_argument options[SOURCE_OPTIONS];
    describe_source(&o, options);
    bool json = false;
    lk_arguments a = {
        .help = verify_help, .options = options, .option_count = SOURCE_OPTIONS, .json = &json};
    LK_CHECK(lk_parse_arguments(argc, argv, &a, error));
    if (a.helped) return LK_OK;
    open_data data;
    LK_CHECK(open_source(&o, false, &data, error));
    lk_status status = print_set(&data.set, json, error);
    close_source(&data);
    return status;
}

// --- shard ---------------------------------------------------------------------------------------

static const char shard_help[] =
    "lockstep data shard " SOURCE_USAGE
    " --shards N --to DIR\n\n"
    "Writes the examples, in their order, as N pairs of IDX files and a manifest.json into DIR.\n"
    "Any number of shards of the same data trains to the same bits.\n"
    "\n" SOURCE_HELP;

static lk_status shard(int argc, char **argv, lk_error *error) {
    source_options o;
    uint64_t shards = 0;
    const char *to = NULL;
    lk_argument options[SOURCE_OPTIONS + 2];
    describe_source(&o, options);
    options[SOURCE_OPTIONS] =
        (lk_argument){.name = "shards", .number = &shards, .min = 1, .max = 100000};
    options[SOURCE_OPTIONS + 1] = (lk_argument){.name = "to", .text = &to};
    bool json = false;
    lk_arguments a = {
        .help = shard_help, .options = options, .option_count = SOURCE_OPTIONS + 2, .json = &json};
    LK_CHECK(lk_parse_arguments(argc, argv, &a, error));
    if (a.helped) return LK_OK;
    if (!shards || !to) {
        return lk_fail(error, LK_BAD_USAGE,
                       "shard: --%s is missing; see: lockstep data shard --help",
                       shards ? "to DIR" : "shards N");
    }
    open_data data;
    char hex[LK_SHA256_HEX_BYTES];
    LK_CHECK(open_source(&o, true, &data, error));
    lk_status status = lk_dataset_shard(&data.set, (uint32_t)shards, to, error);
    lk_hex(data.set.sha256, LK_SHA256_BYTES, hex);
    if (status == LK_OK && json) {
        char manifest[LK_PATH_BYTES + 16];
        snprintf(manifest, sizeof manifest, "%s/manifest.json", to);
        status = lk_print_json(
            json_pack("{s:o, s:I, s:I, s:s}", "manifest", lk_json_text(manifest), "examples",
                      (json_int_t)data.set.count, "shards", (json_int_t)shards, "data_sha256", hex),
            error);
    } else if (status == LK_OK) {
        printf("%s/manifest.json: %llu examples in %llu shards, data_sha256 %s\n", to,
               (ull)data.set.count, (ull)shards, hex);
    }
    close_source(&data);
    return status;
}

// --- unpack --------------------------------------------------------------------------------------

static const char unpack_help[] =
    "lockstep data unpack FILE.gz OUT\n"
    "\n"
    "Unpacks one IDX file into the new file OUT, checks its header, CRC-32 and length, and prints\n"
    "the SHA-256 of the unpacked bytes. Never needed before training, which reads .gz files "
    "itself.\n";

static lk_status unpack(int argc, char **argv, lk_error *error) {
    bool json = false;
    lk_arguments a = {.help = unpack_help, .word_count = 2, .json = &json};
    uint8_t sha256[LK_SHA256_BYTES];
    char hex[LK_SHA256_HEX_BYTES];
    LK_CHECK(lk_parse_arguments(argc, argv, &a, error));
    if (a.helped) return LK_OK;
    if (access(a.words[1], F_OK) == 0) {
        return lk_fail(error, LK_BAD_USAGE,
                       "%s: it is there already; remove it, or name a new file", a.words[1]);
    }
    LK_CHECK(lk_gunzip_file(a.words[0], a.words[1], LK_GUNZIP_IDX, sha256, error));
    lk_hex(sha256, LK_SHA256_BYTES, hex);
    if (json) {
        return lk_print_json(
            json_pack("{s:o, s:s}", "file", lk_json_text(a.words[1]), "sha256", hex), error);
    }
    printf("%s  %s\n", hex, a.words[1]);  // as sha256sum writes it
    return LK_OK;
}

// --- clean ---------------------------------------------------------------------------------------

static const char clean_help[] =
    "lockstep data clean [--cache DIR] [--dry-run]\n"
    "\n"
    "Removes from the cache ($XDG_CACHE_HOME/lockstep or ~/.cache/lockstep, or DIR) what can be "
    "made\n"
    "again: unpacked .gz files, what was computed of data sets, and what killed processes left. "
    "Sets\n"
    "that lockstep data fetch got stay, and so does all that is not Lockstep's. A run that uses a\n"
    "file keeps it. --dry-run only counts.\n";

static lk_status clean(int argc, char **argv, lk_error *error) {
    const char *wanted = NULL;
    char cache[LK_PATH_BYTES];
    bool dry = false;
    lk_cache_cleaned done = {0};
    const lk_argument options[] = {{.name = "cache", .text = &wanted},
                                   {.name = "dry-run", .flag = &dry}};
    lk_arguments a = {.help = clean_help, .options = options, .option_count = LK_COUNT(options)};
    LK_CHECK(lk_parse_arguments(argc, argv, &a, error));
    if (a.helped) return LK_OK;
    if (!lk_data_cache_path(wanted, cache)) {
        return lk_fail(error, LK_BAD_USAGE,
                       "clean: no cache is known: set HOME, or say --cache DIR");
    }
    lk_error missing = {.status = LK_OK};
    if (lk_cache_clean(cache, dry, &done, &missing) != LK_OK) {
        const bool none = missing.status == LK_NO_INPUT && !wanted;  // nothing was ever kept
        if (!none) return lk_fail(error, missing.status, "%s", missing.text);
    }
    printf("%s: %s %u file%s, %llu bytes\n", cache, dry ? "would remove" : "removed", done.files,
           done.files == 1 ? "" : "s", (ull)done.bytes);
    if (done.busy) printf("%u in use by another process stayed\n", done.busy);
    return LK_OK;
}

lk_status lk_command_data(int argc, char **argv, lk_error *error) {
    static const char help[] =
        "lockstep data fetch|import|unpack|shard|verify|clean ...\n"
        "\n"
        "  lockstep data fetch NAME [--to DIR]               mnist or fashion-mnist, verified\n"
        "  lockstep data import FORMAT ... --to DIR          of npy, png, csv and others\n"
        "  lockstep data unpack FILE.gz OUT                  one gzip file\n"
        "  lockstep data shard SOURCE --shards N --to DIR    spread a set over files\n"
        "  lockstep data verify SOURCE                       check all, print the data hash\n"
        "  lockstep data clean                               what can be made again in the cache\n"
        "\n"
        "Each explains itself: lockstep data shard --help. With --json each prints one JSON "
        "object.\n";
    static const lk_subcommand table[] = {{"fetch", lk_command_data_fetch},
                                          {"import", lk_command_data_import},
                                          {"unpack", unpack},
                                          {"shard", shard},
                                          {"verify", verify},
                                          {"clean", clean}};
    return lk_run_subcommand(argc, argv, help, table, LK_COUNT(table), error);
}
