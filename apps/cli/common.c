// common.c - what commands share: options, ready configurations, weights, the watch over mapped
// data.
#define _GNU_SOURCE
#include <errno.h>
#include <dirent.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "apps/cli/command.h"
#include "apps/cli/tools.h"

// --- options -----------------------------------------------------------------------------------

bool lk_answered;
void (*lk_list_to)(const char *name, const char *value, const char *text);

lk_status lk_answer(lk_error *error) {
    lk_answered = true;
    return lk_fail(error, LK_BAD_USAGE, "answered");
}

enum {
    OPT_SET = 256,
    OPT_DATA,
    OPT_REPLICAS,
    OPT_EXAMPLES,
    OPT_KERNELS,
    OPT_MAX_MEMORY,
    OPT_RUN_DIR,
    OPT_RESUME,
    OPT_FRESH,
    OPT_RESUME_OR_START,
    OPT_SEAL,
    OPT_VERIFY_DATA,
    OPT_JSON,
    OPT_SHOW_SHARDS,
    OPT_CHECKPOINT,
    OPT_OUTPUT,
    OPT_TO,
    OPT_CLUSTER,
    OPT_WORKERS,
    OPT_START_TIMEOUT,
    OPT_STEP_TIMEOUT,
    OPT_COLLECTIVE,
    OPT_INSECURE,
    OPT_PRIVATE_NETWORK,
    OPT_START_DELAY,
    OPT_THROTTLE,
    OPT_EXAMPLE,
    OPT_IMAGES,
    OPT_STEP,
    OPT_COUNT,
    OPT_BETWEEN,
    OPT_PICTURE,
    OPT_JUDGE,
    OPT_BANDWIDTH,
    OPT_LATENCY,
    OPT_GPUS,
    OPT_GPU,
    OPT_EPOCHS,
    OPT_SEED,
    OPT_QUIET,
    OPT_REQUIRE_LOCK,
    OPT_METRICS_FILE,
    OPT_HELP,
    OPT_TENSORBOARD,
    OPT_TRACE,
    OPT_INIT,
    OPT_INIT_MAP,
    OPT_INIT_SKIP,
    OPT_SVG
};

// What help prints of each, in this order, beneath the heading of its section.
typedef enum option_section { OF_CONFIG, OF_COMMAND, OF_WORKERS, SECTION_COUNT } option_section;

static const char *const section_heads[SECTION_COUNT] = {[OF_CONFIG] = "With every CONFIG:",
                                                         [OF_COMMAND] = "Of this command:",
                                                         [OF_WORKERS] = "Of several workers:"};

// The one table of options: parsing, help, manual pages and completion read it.
static const struct {
    struct option option;
    unsigned groups;  // 0: every command
    option_section section;
    const char *value;  // what its value is called; "": it has none
    const char *text;
} known[] = {
    {{"set", required_argument, NULL, OPT_SET},
     0,
     OF_CONFIG,
     "KEY=VALUE",
     "change a value of the configuration: --set optimizer.learning_rate=0.05"},
    {{"data", required_argument, NULL, OPT_DATA},
     0,
     OF_CONFIG,
     "DIRECTORY",
     "the four IDX files of MNIST's naming, plain or .gz"},
    {{"epochs", required_argument, NULL, OPT_EPOCHS},
     0,
     OF_CONFIG,
     "N",
     "the same as --set epochs=N"},
    {{"seed", required_argument, NULL, OPT_SEED}, 0, OF_CONFIG, "N", "the same as --set seed=N"},
    {{"replicas", required_argument, NULL, OPT_REPLICAS},
     0,
     OF_CONFIG,
     "N",
     "threads; any number up to the grains of a batch, same result"},
    {{"examples", required_argument, NULL, OPT_EXAMPLES},
     0,
     OF_CONFIG,
     "N",
     "train on the first N examples of the training set only"},
    {{"kernels", required_argument, NULL, OPT_KERNELS},
     0,
     OF_CONFIG,
     "NAME",
     "reference, portable, avx2, avx512, neon, cuda (a GPU); same result; default: the fastest of "
     "this processor"},
    {{"gpus", required_argument, NULL, OPT_GPUS},
     0,
     OF_CONFIG,
     "N",
     "with --kernels cuda: GPUs that the replicas are divided over, or all"},
    {{"gpu", required_argument, NULL, OPT_GPU},
     0,
     OF_CONFIG,
     "I",
     "the number of the first of them"},
    {{"max-memory", required_argument, NULL, OPT_MAX_MEMORY},
     0,
     OF_CONFIG,
     "BYTES",
     "refuse a plan above this (64M and 2G are understood)"},
    {{"run-dir", required_argument, NULL, OPT_RUN_DIR},
     LK_OPT_TRAIN,
     OF_COMMAND,
     "DIR",
     "where the run lives (runs/NAME); refused if something is there, unless"},
    {{"resume", no_argument, NULL, OPT_RESUME},
     LK_OPT_TRAIN,
     OF_COMMAND,
     "",
     "it goes on from its hot state or its newest whole checkpoint, or"},
    {{"fresh", no_argument, NULL, OPT_FRESH},
     LK_OPT_TRAIN,
     OF_COMMAND,
     "",
     "removes the run that is there and starts anew, or"},
    {{"resume-or-start", no_argument, NULL, OPT_RESUME_OR_START},
     LK_OPT_TRAIN,
     OF_COMMAND,
     "",
     "starts where nothing is, goes on with this run, and ends with 0 where it is finished: for a "
     "supervisor to repeat"},
    {{"seal", no_argument, NULL, OPT_SEAL},
     LK_OPT_TRAIN,
     OF_COMMAND,
     "",
     "has the kernel refuse it any memory once it has started"},
    {{"require-lock", no_argument, NULL, OPT_REQUIRE_LOCK},
     LK_OPT_TRAIN,
     OF_COMMAND,
     "",
     "refuses to start where its memory cannot be locked: it might be swapped out"},
    {{"metrics-file", required_argument, NULL, OPT_METRICS_FILE},
     LK_OPT_TRAIN,
     OF_COMMAND,
     "FILE",
     "keeps step, loss, speed and the like in FILE, every 5 seconds, in Prometheus' text format"},
    {{"verify-data", no_argument, NULL, OPT_VERIFY_DATA},
     LK_OPT_TRAIN | LK_OPT_WEIGHTS,
     OF_COMMAND,
     "",
     "looks at every byte of the data at the start and believes no record of them; without it at "
     "some, and at all while the run goes on"},
    {{"json", no_argument, NULL, OPT_JSON},
     LK_OPT_PLAN | LK_OPT_JSON,
     OF_COMMAND,
     "",
     "JSON in place of lines: one object; of train events, each an object: start, step, progress "
     "(once a second), evaluation, checkpoint, stopped, error, end"},
    {{"quiet", no_argument, NULL, OPT_QUIET},
     LK_OPT_QUIET,
     OF_COMMAND,
     "",
     "says its result alone, and what goes wrong"},
    {{"init", required_argument, NULL, OPT_INIT},
     LK_OPT_TRAIN,
     OF_COMMAND,
     "FILE",
     "begins with the weights of a safetensors file: a checkpoint, an export of layout keras or "
     "torch, or another program's, by the names of its tensors"},
    {{"init-map", required_argument, NULL, OPT_INIT_MAP},
     LK_OPT_TRAIN,
     OF_COMMAND,
     "OTHER=MINE,..",
     "where that file calls layers of the model otherwise"},
    {{"init-skip", required_argument, NULL, OPT_INIT_SKIP},
     LK_OPT_TRAIN,
     OF_COMMAND,
     "LAYER,..",
     "layers that keep what their initializers make"},
    {{"tensorboard", no_argument, NULL, OPT_TENSORBOARD},
     LK_OPT_TRAIN,
     OF_COMMAND,
     "",
     "writes event files for TensorBoard into the run's directory"},
    {{"trace", required_argument, NULL, OPT_TRACE},
     LK_OPT_TRAIN,
     OF_COMMAND,
     "FILE",
     "where the time of some steps goes, op by op, for ui.perfetto.dev"},
    {{"svg", no_argument, NULL, OPT_SVG},
     LK_OPT_PLAN,
     OF_COMMAND,
     "",
     "the plan as a picture, drawn to scale"},
    {{"show-shards", no_argument, NULL, OPT_SHOW_SHARDS},
     LK_OPT_PLAN,
     OF_COMMAND,
     "",
     "who reads what"},
    {{"run-dir", required_argument, NULL, OPT_RUN_DIR},
     LK_OPT_WEIGHTS,
     OF_COMMAND,
     "DIR",
     "weights: the newest whole checkpoint of a run"},
    {{"checkpoint", required_argument, NULL, OPT_CHECKPOINT},
     LK_OPT_WEIGHTS,
     OF_COMMAND,
     "FILE",
     "this one; or what lockstep checkpoint export wrote in layout keras"},
    {{"output", required_argument, NULL, OPT_OUTPUT},
     LK_OPT_OUTPUT,
     OF_COMMAND,
     "FILE.npy",
     "where the predictions go"},
    {{"output", required_argument, NULL, OPT_PICTURE},
     LK_OPT_GENERATE,
     OF_COMMAND,
     "FILE",
     "where the images go: FILE.png, one grid of all, grey or RGB, of other than 1 or 3 channels "
     "the first alone; or FILE.npy, an array of bytes (N, height, width, channels)"},
    {{"count", required_argument, NULL, OPT_COUNT},
     LK_OPT_GENERATE,
     OF_COMMAND,
     "N",
     "how many images (64), of noise 0 to N - 1; --seed chooses others"},
    {{"judge", required_argument, NULL, OPT_JUDGE},
     LK_OPT_JUDGE,
     OF_COMMAND,
     "DIR",
     "of a run with a generator: the run of a classifier, or a checkpoint in one, that scores the "
     "images it makes"},
    {{"count", required_argument, NULL, OPT_COUNT},
     LK_OPT_JUDGE,
     OF_COMMAND,
     "N",
     "how many images it makes for that (as many as the test set has)"},
    {{"between", required_argument, NULL, OPT_BETWEEN},
     LK_OPT_GENERATE,
     OF_COMMAND,
     "A,B",
     "the images on the way from noise A to noise B, in equal steps"},
    {{"to", required_argument, NULL, OPT_TO},
     LK_OPT_EMBED,
     OF_COMMAND,
     "FILE.c",
     "where the source goes"},
    {{"cluster", required_argument, NULL, OPT_CLUSTER},
     LK_OPT_CLUSTER,
     OF_WORKERS,
     "FILE",
     "what TF_CONFIG would say; task may be a launcher's to tell"},
    {{"workers", required_argument, NULL, OPT_WORKERS},
     LK_OPT_PLAN,
     OF_WORKERS,
     "N",
     "the plan of one of N workers"},
    {{"bandwidth", required_argument, NULL, OPT_BANDWIDTH},
     LK_OPT_PLAN,
     OF_WORKERS,
     "GBIT",
     "their traffic on paper, over a link of so many Gbit/s, or bits with a unit: 800M"},
    {{"latency", required_argument, NULL, OPT_LATENCY},
     LK_OPT_PLAN,
     OF_WORKERS,
     "US",
     "of that link, in microseconds"},
    {{"start-timeout", required_argument, NULL, OPT_START_TIMEOUT},
     LK_OPT_TRAIN,
     OF_WORKERS,
     "S",
     "seconds that start-up may take (300)"},
    {{"step-timeout", required_argument, NULL, OPT_STEP_TIMEOUT},
     LK_OPT_TRAIN,
     OF_WORKERS,
     "S",
     "seconds that one worker waits for another (60), ten times as many for rank 0 while it saves"},
    {{"collective", required_argument, NULL, OPT_COLLECTIVE},
     LK_OPT_TRAIN | LK_OPT_PLAN,
     OF_WORKERS,
     "NAME",
     "auto, threads, mpi or ring, window, messages, nccl: how bytes travel"},
    {{"private-network", required_argument, NULL, OPT_PRIVATE_NETWORK},
     LK_OPT_TRAIN,
     OF_WORKERS,
     "N",
     "between hosts: the network that is yours alone, such as 10.1.0.0/16; MPI, which has no "
     "encryption and no key, keeps to it"},
    {{"insecure", no_argument, NULL, OPT_INSECURE},
     LK_OPT_TRAIN,
     OF_WORKERS,
     "",
     "between hosts: no LOCKSTEP_KEY_FILE, and MPI on any network"},
    {{"start-delay", required_argument, NULL, OPT_START_DELAY},
     LK_OPT_TRAIN,
     OF_WORKERS,
     "S",
     "of an evaluator: seconds before it begins (0)"},
    {{"throttle", required_argument, NULL, OPT_THROTTLE},
     LK_OPT_TRAIN,
     OF_WORKERS,
     "S",
     "of an evaluator: seconds from one evaluation to the next (0)"},
    {{"images", required_argument, NULL, OPT_IMAGES},
     LK_OPT_IMAGES,
     OF_COMMAND,
     "FILE",
     "images alone, in place of the test set: an IDX file, a uint8 .npy array, a PNG file, or a "
     "folder of PNG files in the order of their names"},
    {{"example", required_argument, NULL, OPT_EXAMPLE},
     LK_OPT_LEDGER,
     OF_COMMAND,
     "N",
     "number N of the training set: in which steps it was used"},
    {{"step", required_argument, NULL, OPT_STEP},
     LK_OPT_LEDGER,
     OF_COMMAND,
     "S",
     "what step S used"},
};

// One option of help: its name in a column, its text beside it, wrapped.
static void print_option(const char *name, const char *value, const char *text) {
    enum { COLUMN = 25, WIDTH = 98 };
    int at = printf("  --%s%s%s", name, *value ? " " : "", value);
    at += printf("%*s", LK_MAX(COLUMN - at, 2), "");
    for (const char *gap = ""; *text; gap = " ") {
        const int word = (int)strcspn(text, " ");
        const bool fits = at + 1 + word <= WIDTH;
        at = fits ? at + printf("%s", gap) : printf("\n%*s", COLUMN, "") - 1;
        at += printf("%.*s", word, text);
        text += word + (text[word] == ' ');
    }
    putchar('\n');
}

static bool takes(uint32_t row, unsigned groups) {
    return known[row].groups == 0 || (known[row].groups & groups);
}

void lk_print_options(unsigned groups) {
    for (uint32_t section = 0; section < SECTION_COUNT; section++) {
        bool any = false;
        for (uint32_t i = 0; i < LK_COUNT(known); i++) {
            if (known[i].section != section || !takes(i, groups)) continue;
            const bool all = groups == ~0u && section == OF_COMMAND;
            if (!any) printf("\n%s\n", all ? "Of some commands:" : section_heads[section]);
            any = true;
            print_option(known[i].option.name, known[i].value, known[i].text);
        }
    }
}

// What was asked for in place of a run, or LK_OK.
static lk_status answer(char **argv, unsigned groups, bool helps, lk_error *error) {
    char name[64];
    if (helps) {
        lk_print_usage(argv[0]);
        lk_print_options(groups);
        return lk_answer(error);
    }
    for (uint32_t i = 0; i < LK_COUNT(known); i++) {
        if (!takes(i, groups)) continue;
        snprintf(name, sizeof name, "--%s", known[i].option.name);
        lk_list_to(name, *known[i].value ? known[i].value : NULL, known[i].text);
    }
    return lk_answer(error);
}

static lk_status refuse_option(const char *given, const struct option *options, uint32_t count,
                               int kind, lk_error *error) {
    const char *names[LK_COUNT(known)];
    lk_assert(count <= LK_COUNT(names));
    for (uint32_t i = 0; i < count; i++) names[i] = options[i].name;
    if (kind == ':')
        return lk_fail(error, LK_BAD_USAGE, "%s wants a value; see: lockstep help", given);
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(given + strspn(given, "-"), "="),
             given + strspn(given, "-"));
    const char *near = lk_text_nearest(name, names, count);
    return lk_fail(error, LK_BAD_USAGE, "unknown option \"%s\"%s%s%s; see: lockstep help", given,
                   near ? ", did you mean \"--" : "", near ? near : "", near ? "\"?" : "");
}

// A number of bytes: digits and an optional K, M, G or T (powers of 1,024).
static lk_status parse_bytes(const char *option, const char *text, uint64_t *out, lk_error *error) {
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    const char *units = "KMGT", *unit = *end ? strchr(units, *end) : NULL;
    uint64_t scale = unit ? (uint64_t)1 << (10 * (unit - units + 1)) : 1;
    bool well =
        end != text && *text != '-' && errno == 0 && (*end == '\0' || (unit && end[1] == '\0'));
    if (well && value > 0 && lk_mul_ok(value, scale, out)) return LK_OK;
    return lk_fail(error, LK_BAD_USAGE, "--%s: found \"%s\", wanted a number of bytes such as 64M",
                   option, text);
}

// A positive real number, written with digits; *end is where it ends.
static bool parse_real(const char *text, double *out, const char **end) {
    char *stop = NULL;
    *out = strtod(text, &stop);
    *end = stop;
    return stop == text + strspn(text, "0123456789.") && *out > 0 && *out <= 1e15;
}

// The speed of a link: Gbit/s, or with K, M, G or T (powers of 1,000) as many bits a second.
static lk_status parse_bandwidth(const char *text, double *out, lk_error *error) {
    const char *end = NULL, *units = "KMGT", *unit = units + 2;
    double value = 0;
    bool well = parse_real(text, &value, &end);
    if (well && *end) unit = strchr(units, *end++);
    if (well && unit && *end == '\0') {
        for (const char *at = units; at <= unit; at++) value *= 1e3;
        *out = value;
        return LK_OK;
    }
    return lk_fail(error, LK_BAD_USAGE,
                   "--bandwidth: found \"%s\", wanted Gbit/s such as 10, or bits a second with a "
                   "unit such as 800M",
                   text);
}

static lk_status parse_latency(const char *text, double *out, lk_error *error) {
    const char *end = NULL;
    if (parse_real(text, out, &end) && *end == '\0') return LK_OK;
    return lk_fail(error, LK_BAD_USAGE, "--latency: found \"%s\", wanted microseconds such as 20",
                   text);
}

static lk_status parse_from(uint64_t least, const char *option, const char *text, uint64_t most,
                            uint64_t *out, lk_error *error) {
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    bool digits = *text >= '0' && *text <= '9' && *end == '\0';
    if (!digits || errno != 0 || value < least || value > most) {
        return lk_fail(error, LK_BAD_USAGE, "--%s: found \"%s\", wanted a number from %llu to %llu",
                       option, text, (unsigned long long)least, (unsigned long long)most);
    }
    *out = value;
    return LK_OK;
}

static lk_status parse_count(const char *option, const char *text, uint64_t most, uint64_t *out,
                             lk_error *error) {
    return parse_from(1, option, text, most, out, error);
}

// From 0 on; *out is 1 more.
static lk_status parse_index(const char *option, const char *text, uint64_t *out, lk_error *error) {
    LK_CHECK(parse_from(0, option, text, (uint64_t)1 << 40, out, error));
    ++*out;
    return LK_OK;
}

// Two numbers of noise; each of *out is 1 more.
static lk_status parse_between(const char *text, uint64_t out[2], lk_error *error) {
    for (uint32_t i = 0; i < 2; i++) {
        char *end;
        const unsigned long long value = strtoull(text, &end, 10);
        const bool digits = *text >= '0' && *text <= '9' && value < 1 << 30;
        if (!digits || *end != (i == 0 ? ',' : '\0')) {
            return lk_fail(error, LK_BAD_USAGE,
                           "--between: found \"%s\", wanted two numbers of noise, each below "
                           "2^30, such as 0,1",
                           text);
        }
        out[i] = value + 1;
        text = end + 1;
    }
    return LK_OK;
}

lk_status lk_parse_number(const char *option, const char *text, uint32_t most, uint32_t *out,
                          lk_error *error) {
    uint64_t value = 0;
    LK_CHECK(parse_count(option, text, most, &value, error));
    *out = (uint32_t)value;
    return LK_OK;
}

static lk_status parse_delay(const char *option, const char *text, uint32_t *out, lk_error *error) {
    *out = 0;
    return strcmp(text, "0") == 0 ? LK_OK : lk_parse_number(option, text, 86400, out, error);
}

static lk_status parse_gpus(const char *text, uint32_t *out, lk_error *error) {
    *out = LK_CONFIG_ALL_GPUS;
    return strcmp(text, "all") == 0 ? LK_OK
                                    : lk_parse_number("gpus", text, LK_CUDA_GPUS_MAX, out, error);
}

static lk_status parse_gpu(const char *text, uint32_t *out, lk_error *error) {
    char *end;
    unsigned long value = strtoul(text, &end, 10);
    *out = (uint32_t)value + 1;
    if (*text >= '0' && *text <= '9' && *end == '\0' && value <= 1024) return LK_OK;
    return lk_fail(error, LK_BAD_USAGE, "--gpu: found \"%s\", wanted a number from 0 to 1024",
                   text);
}

static lk_status take_set(const char *assignment, lk_common_options *o, lk_error *error) {
    if (o->config.set_count == LK_SET_MAX)
        return lk_fail(error, LK_BAD_USAGE, "more than %d --set", LK_SET_MAX);
    o->set[o->config.set_count++] = assignment;
    return LK_OK;
}

// --KEY N is --set KEY=N, in the same order as those.
static lk_status take_key(const char *key, const char *value, uint64_t least, uint64_t most,
                          char out[32], lk_common_options *o, lk_error *error) {
    char *end;
    errno = 0;
    unsigned long long number = strtoull(value, &end, 10);
    bool digits = *value >= '0' && *value <= '9' && *end == '\0' && errno == 0;
    if (!digits || number < least || number > most) {
        return lk_fail(error, LK_BAD_USAGE, "--%s: found \"%s\", wanted a number from %llu to %llu",
                       key, value, (unsigned long long)least, (unsigned long long)most);
    }
    const bool again = *out != '\0';  // the last one counts, in the first one's place
    lk_format(out, 32, "%s=%llu", key, number);
    return again ? LK_OK : take_set(out, o, error);
}

// --trace FILE is --set trace.file="FILE", and so on.
static lk_status take_text(const char *option, const char *key, const char *text,
                           char out[LK_CONFIG_PATH_BYTES], lk_common_options *o, lk_error *error) {
    char escaped[LK_CONFIG_PATH_BYTES];
    const size_t room = sizeof escaped - 16;
    const bool again = *out != '\0';
    if (lk_text_escape(escaped, room, text, strlen(text)) >= room) {
        return lk_fail(error, LK_BAD_USAGE, "%s: found a text of %zu bytes, wanted a shorter",
                       option, strlen(text));
    }
    lk_format(out, LK_CONFIG_PATH_BYTES, "%s=\"%s\"", key, escaped);
    return again ? LK_OK : take_set(out, o, error);
}

static lk_status take_option(int option, const char *value, lk_common_options *o, lk_error *error) {
    switch (option) {
    case OPT_SET: return take_set(value, o, error);
    case OPT_EPOCHS: return take_key("epochs", value, 1, (uint64_t)1 << 40, o->epochs, o, error);
    case OPT_SEED: return take_key("seed", value, 0, INT64_MAX, o->seed, o, error);
    case OPT_QUIET: o->quiet = true; return LK_OK;
    case OPT_TENSORBOARD: return take_set("events.scalars=true", o, error);
    case OPT_TRACE: return take_text("--trace", "trace.file", value, o->trace, o, error);
    case OPT_INIT: return take_text("--init", "init.file", value, o->init, o, error);
    case OPT_JUDGE: return take_text("--judge", "judge", value, o->judge, o, error);
    case OPT_INIT_MAP: return take_text("--init-map", "init.map", value, o->init_map, o, error);
    case OPT_INIT_SKIP: return take_text("--init-skip", "init.skip", value, o->init_skip, o, error);
    case OPT_REPLICAS:
        return lk_parse_number("replicas", value, 1 << 20, &o->config.replicas, error);
    case OPT_GPUS: return parse_gpus(value, &o->config.gpus, error);
    case OPT_GPU: return parse_gpu(value, &o->config.gpu, error);
    case OPT_EXAMPLES:
        return parse_count("examples", value, (uint64_t)1 << 40, &o->config.examples, error);
    case OPT_WORKERS:
        return lk_parse_number("workers", value, LK_MPI_WORLD_MAX, &o->workers, error);
    case OPT_BANDWIDTH: return parse_bandwidth(value, &o->link.bits_per_second, error);
    case OPT_LATENCY: return parse_latency(value, &o->link.latency_us, error);
    case OPT_START_TIMEOUT:
        return lk_parse_number("start-timeout", value, 86400, &o->mpi.start_timeout_seconds, error);
    case OPT_STEP_TIMEOUT:
        return lk_parse_number("step-timeout", value, 86400, &o->mpi.step_timeout_seconds, error);
    case OPT_COLLECTIVE: return lk_collective_parse(value, &o->collective, error);
    case OPT_STEP: return parse_count("step", value, INT64_MAX, &o->step, error);
    case OPT_COUNT: return parse_count("count", value, 1 << 30, &o->count, error);
    case OPT_BETWEEN: return parse_between(value, o->between, error);
    case OPT_EXAMPLE: return parse_index("example", value, &o->example, error);
    case OPT_START_DELAY: return parse_delay("start-delay", value, &o->start_delay_seconds, error);
    case OPT_THROTTLE: return parse_delay("throttle", value, &o->throttle_seconds, error);
    case OPT_MAX_MEMORY: return parse_bytes("max-memory", value, &o->max_memory, error);
    case OPT_DATA: o->config.data_directory = value; return LK_OK;
    case OPT_KERNELS: o->config.kernels = value; return LK_OK;
    case OPT_RUN_DIR: o->run_dir = value; return LK_OK;
    case OPT_CHECKPOINT: o->checkpoint = value; return LK_OK;
    case OPT_OUTPUT:
    case OPT_PICTURE: o->output = value; return LK_OK;
    case OPT_TO: o->to = value; return LK_OK;
    case OPT_IMAGES: o->images = value; return LK_OK;
    case OPT_CLUSTER: o->cluster = value; return LK_OK;
    case OPT_RESUME: o->resume = true; return LK_OK;
    case OPT_FRESH: o->fresh = true; return LK_OK;
    case OPT_RESUME_OR_START: o->resume_or_start = true; return LK_OK;
    case OPT_SEAL: o->seal = true; return LK_OK;
    case OPT_REQUIRE_LOCK: o->require_lock = true; return LK_OK;
    case OPT_METRICS_FILE: o->metrics_file = value; return LK_OK;
    case OPT_VERIFY_DATA: o->config.verify_data = true; return LK_OK;
    case OPT_INSECURE: o->insecure = o->mpi.reach.insecure = true; return LK_OK;
    case OPT_PRIVATE_NETWORK: return lk_subnet_parse(value, &o->mpi.reach.network, error);
    case OPT_JSON: o->json = true; return LK_OK;
    case OPT_SVG: o->svg = true; return LK_OK;
    default: o->show_shards = true; return LK_OK;
    }
}

lk_status lk_parse_common(int argc, char **argv, unsigned groups, lk_common_options *o,
                          lk_error *error) {
    struct option options[LK_COUNT(known) + 2];
    uint32_t count = 0;
    memset(o, 0, sizeof *o);
    if (lk_list_to) return answer(argv, groups, false, error);
    o->mpi = (lk_mpi_options){.start_timeout_seconds = 300, .step_timeout_seconds = 60};
    for (uint32_t i = 0; i < LK_COUNT(known); i++) {
        if (takes(i, groups)) options[count++] = known[i].option;
    }
    options[count] = (struct option){"help", no_argument, NULL, OPT_HELP};
    options[count + 1] = (struct option){0};
    opterr = 0;
    optind = 1;
    for (;;) {
        int index = 0, found = getopt_long(argc, argv, ":h", options, &index);
        if (found == -1) break;
        if (found == OPT_HELP || found == 'h') return answer(argv, groups, true, error);
        if (found == '?' || found == ':') {
            return refuse_option(lk_refused_option(argv), options, count, found, error);
        }
        if (optarg && !*optarg) {
            return lk_fail(error, LK_BAD_USAGE, "--%s wants a value; see: lockstep help",
                           options[index].name);
        }
        LK_CHECK(take_option(found, optarg, o, error));
    }
    bool lacks = argc == optind && (groups & LK_OPT_NO_CONFIG);
    if (argc - optind != 1 && !lacks) {
        return lk_fail(error, LK_BAD_USAGE,
                       "%s: found %d arguments, wanted one: a configuration's file or name",
                       argv[0], argc - optind);
    }
    if (o->quiet && o->json)
        return lk_fail(error, LK_BAD_USAGE, "--quiet and --json exclude each other");
    if (o->resume && o->fresh)
        return lk_fail(error, LK_BAD_USAGE, "--resume and --fresh exclude each other");
    if (o->resume_or_start && (o->resume || o->fresh)) {
        return lk_fail(error, LK_BAD_USAGE, "--resume-or-start and --%s exclude each other",
                       o->resume ? "resume" : "fresh");
    }
    o->config.config = lacks ? NULL : argv[optind];
    o->config.set = o->set;
    return LK_OK;
}

lk_status lk_check_inputs(const lk_common_options *o, const char *option, const char *output,
                          lk_error *error) {
    const char *const inputs[] = {o->config.config, o->checkpoint, o->images, o->cluster};
    for (uint32_t i = 0; i < LK_COUNT(inputs); i++) {
        LK_CHECK(lk_output_apart(option, output, inputs[i], error));
    }
    return LK_OK;
}

lk_status lk_list_configs(lk_error *error) {
    char path[2 * LK_CONFIG_PATH_BYTES];
    if (!lk_config_find_ready("mnist-cnn", path, sizeof path)) {
        return lk_fail(error, LK_NO_INPUT,
                       "the ready configurations are not installed beside this program");
    }
    *strrchr(path, '/') = '\0';
    struct dirent **entries = NULL;
    int count = scandir(path, &entries, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name, *dot = strrchr(name, '.');
        if (dot && strcmp(dot, ".json") == 0) printf("%.*s\n", (int)(dot - name), name);
        free(entries[i]);
    }
    free(entries);
    return count >= 0 ? LK_OK : lk_file_fail(error, LK_IO_ERROR, path, "list", -errno);
}

// --- mapped data that shrinks ------------------------------------------------------------------

static const lk_dataset *watched[2];

static void on_bus_error(int signal_number, siginfo_t *info, void *context) {
    (void)context;
    const char *file = NULL;
    for (uint32_t i = 0; i < LK_COUNT(watched) && !file; i++) {
        if (watched[i]) (void)lk_dataset_owns_address(watched[i], info->si_addr, &file);
    }
    if (!file) {  // not ours: let it end the process as it would have
        signal(signal_number, SIG_DFL);
        return;
    }
    // Replicas meet the hole at the same moment: one speaks and ends the process.
    static int said;
    while (__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED)) pause();
    char line[LK_PATH_BYTES + 160];
    size_t n =
        lk_format(line, sizeof line,
                  "lockstep: %s: the file was cut short or became unreadable while it was mapped; "
                  "restore it and start again; a run goes on with --resume\n",
                  file);
    ssize_t written = write(STDERR_FILENO, line, LK_MIN(n, sizeof line - 1));
    (void)written;
    _exit(LK_IO_ERROR);
}

void lk_watch_data(const lk_dataset *one, const lk_dataset *other) {
    watched[0] = one;
    watched[1] = other;
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
}
