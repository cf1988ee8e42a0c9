// bench.c - lockstep bench: the speed of a training step, beside what the machine can do meanwhile.
//
// Every case is a process of its own, started and warmed up first, so that its memory and threads
// are those of a training run. Then the cases take turns, round after round: a machine whose speed
// changes while it is measured shows as a spread of the rounds, not as a difference of the cases.
// Data are made up, so nothing has to be fetched, or those of --data; reading, shuffling and
// converting them is part of the step, as in training. Made-up images have no blank parts; kernels
// that leave out zero terms are faster on drawings.
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "apps/cli/bench_probe.h"
#include "apps/cli/command.h"
#include "apps/cli/tools.h"
#include "apps/run/flop.h"

enum { ROUNDS_MAX = 100, STEPS_MAX = 1 << 17, WARM_STEPS = 20, BLOCK_STEPS_MIN = 3 };

// --- the cases -----------------------------------------------------------------------------------

typedef struct bench_case {
    const char *name, *config;
    uint32_t global_batch, grain, replicas;
    bool always;         // --replicas does not change it
    const char *set[2];  // settings of its own, as after --set
} bench_case;

// Images of ready configurations that read a set's files.
#define MADE_UP "data={\"train\":{\"made_up\":{\"count\":60000}}}"
// Three layers of weights that no cache of a core holds.
#define WIDE                                                                                  \
    "model={\"input\":[28,28,1],\"classes\":10,\"loss\":\"sparse_categorical_crossentropy\"," \
    "\"layers\":[{\"type\":\"flatten\"},"                                                     \
    "{\"type\":\"dense\",\"units\":2048,\"activation\":\"relu\"},"                            \
    "{\"type\":\"dense\",\"units\":2048,\"activation\":\"relu\"},"                            \
    "{\"type\":\"dense\",\"units\":2048,\"activation\":\"relu\"},"                            \
    "{\"type\":\"dense\",\"units\":10}]}"
#define STRIPS "data={\"train\":{\"made_up\":{\"count\":60000}},\"strips\":{\"min\":1,\"max\":5}}"

static const bench_case cases[] = {
    {"mnist-cnn-64-one", "bench-mnist-cnn", 64, 16, 1, .always = true},
    {"mnist-cnn-64", "bench-mnist-cnn", 64, 16, 2, .always = false},
    {"mnist-cnn-256", "bench-mnist-cnn", 256, 16, 2, .always = false},
    {"mnist-cnn-1024", "bench-mnist-cnn", 1024, 16, 2, .always = false},
    {"mnist-cnn-8192", "bench-mnist-cnn", 8192, 16, 2, .always = false},
    {"mlp-64", "bench-mlp", 64, 16, 2, .always = false},
    {"lenet-64", "bench-lenet", 64, 16, 2, .always = false},
    // From here on only those that --cases names: they are long, or variants.
    {"mnist-cnn-64-bf16", "bench-mnist-cnn", 64, 16, 2, .set = {"precision=mixed_bfloat16"}},
    {"mnist-cnn-64-f16", "bench-mnist-cnn", 64, 16, 2, .set = {"precision=mixed_float16"}},
    {"mnist-cnn-1024-bf16", "bench-mnist-cnn", 1024, 16, 2, .set = {"precision=mixed_bfloat16"}},
    {"mnist-cnn-1024-f16", "bench-mnist-cnn", 1024, 16, 2, .set = {"precision=mixed_float16"}},
    {"mnist-cnn-8192-bf16", "bench-mnist-cnn", 8192, 16, 2, .set = {"precision=mixed_bfloat16"}},
    {"mnist-cnn-8192-f16", "bench-mnist-cnn", 8192, 16, 2, .set = {"precision=mixed_float16"}},
    {"mlp-2048", "bench-mlp", 64, 16, 2, .set = {WIDE}},
    {"mlp-2048-bf16", "bench-mlp", 64, 16, 2, .set = {WIDE, "precision=mixed_bfloat16"}},
    {"mlp-2048-f16", "bench-mlp", 64, 16, 2, .set = {WIDE, "precision=mixed_float16"}},
    {"resnet20-64", "resnet20-mnist", 64, 32, 2, .set = {MADE_UP}},
    {"resnet20-256", "resnet20-mnist", 256, 32, 2, .set = {MADE_UP}},
    {"rnnt-32", "rnnt-strips", 32, 4, 2, .set = {STRIPS, "precision=float32"}},
    {"rnnt-32-f16", "rnnt-strips", 32, 4, 2, .set = {STRIPS}},
    {"gan-32", "mnist-gan", 32, 16, 2, .set = {MADE_UP}},
    {"lstm-64", "bench-lstm", 64, 32, 2, .always = false},
};

// Without --cases these first cases run; the help text says seven.
enum { USUAL_CASES = 7 };

typedef struct bench_options {
    bool json;
    bool chosen[LK_COUNT(cases)];
    double seconds;  // of one case, over all rounds
    uint32_t rounds;
    uint32_t replicas;    // 0: the case's own
    const char *kernels;  // NULL: the fastest here
    const char *data;     // a directory of four IDX files; NULL: made-up images
} bench_options;

// --- the process of a case -----------------------------------------------------------------------

// What it says once, when it is ready ...
typedef struct bench_facts {
    lk_error error;
    char kernels[32];
    uint32_t replicas;
    uint64_t parameters;
    uint64_t arena_bytes;      // the plan: everything
    uint64_t examples_bytes;   // of it: the made-up examples, which files would bring as a map
    uint64_t anonymous_bytes;  // as the kernel counts it
    lk_step_flop flop;          // of a step
} bench_facts;

// ... and after every block of steps.
typedef struct bench_block {
    lk_error error;
    uint64_t steps;
    double seconds;
    uint64_t all_steps;       // times taken so far, in all blocks
    double p10, median, p90;  // seconds of a step, over all of those
} bench_block;

static bool read_all(int fd, void *out, size_t bytes) {
    uint8_t *at = out;
    while (bytes > 0) {
        ssize_t n = read(fd, at, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

static bool write_all(int fd, const void *data, size_t bytes) {
    const uint8_t *at = data;
    while (bytes > 0) {
        ssize_t n = write(fd, at, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

static int by_value(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

// `values` in ascending order.
static double quantile(const double *values, uint64_t count, double q) {
    return values[(uint64_t)(q * (double)(count - 1) + 0.5)];
}

static double times[STEPS_MAX], sorted_times[STEPS_MAX];  // seconds of a step

// Steps after which the bench waits for a GPU, as training does at every line of its log.
enum { GPU_STEPS = 100 };

// Steps [first, first + count), and their results.
static lk_status run_steps(lk_run *run, uint64_t first, uint64_t count, lk_error *error) {
    lk_step_result r = {0};
    for (uint64_t i = 0; i < count && !r.bad_tensor; i++) r = lk_run_step(run, first + i);
    if (r.pending) r = lk_run_settle(run);
    if (run->lost.status != LK_OK) return lk_fail(error, run->lost.status, "%s", run->lost.text);
    if (!r.bad_tensor) return LK_OK;
    return lk_fail(error, LK_NOT_FINITE, "%s: step %llu: %s is not finite", run->config.name,
                   (unsigned long long)r.step + 1, r.bad_tensor);
}

// Every block does the same steps from the same weights: ReLU's zeros, which cost less, are those
// of a network that learns, and do not depend on how fast the machine was before.
static void run_block(lk_run *run, double seconds, bench_block *b) {
    lk_run_initialize(run);
    uint64_t step = WARM_STEPS, unit = run->cuda ? GPU_STEPS : 1;
    b->error.status = LK_OK;
    b->steps = 0;
    (void)run_steps(run, 0, WARM_STEPS, &b->error);
    double start = lk_seconds(), last = start;
    while (b->error.status == LK_OK && b->all_steps < STEPS_MAX &&
           (last - start < seconds || b->steps < BLOCK_STEPS_MIN)) {
        (void)run_steps(run, step, unit, &b->error);
        double now = lk_seconds();
        times[b->all_steps++] = (now - last) / (double)unit;
        last = now;
        step += unit;
        b->steps += unit;
    }
    b->seconds = last - start;
    memcpy(sorted_times, times, b->all_steps * sizeof times[0]);
    qsort(sorted_times, b->all_steps, sizeof times[0], by_value);
    b->p10 = quantile(sorted_times, b->all_steps, 0.1);
    b->median = quantile(sorted_times, b->all_steps, 0.5);
    b->p90 = quantile(sorted_times, b->all_steps, 0.9);
}

static lk_status start_case(lk_run *run, const bench_case *c, const bench_options *o,
                            lk_error *error) {
    char batch[40], grain[40];
    const bool gpu = o->kernels && strcmp(o->kernels, "cuda") == 0;
    const uint32_t replicas = gpu ? 1 : c->replicas;
    const char *const set[] = {batch, grain, c->set[0], c->set[1]};
    snprintf(batch, sizeof batch, "global_batch=%u", c->global_batch);
    snprintf(grain, sizeof grain, "grain=%u", c->grain);
    const lk_config_options options = {
        .config = c->config,
        .set = set,
        .set_count = 2 + (c->set[0] != NULL) + (c->set[1] != NULL),
        .kernels = o->kernels,
        .data_directory = o->data,
        .replicas = o->replicas && !c->always ? o->replicas : replicas};
    LK_CHECK(lk_run_configure(run, &options, (lk_run_needs){0}, error));
    LK_CHECK(lk_run_plan(run, error));
    LK_CHECK(lk_run_start(run, 0, error));
    LK_CHECK(lk_run_seal(run, false, error));
    return run_steps(run, 0, WARM_STEPS, error);
}

static void fill_facts(const lk_run *run, bench_facts *f) {
    uint32_t slow = 0;
    for (uint32_t i = 0; i < run->program.op_count; i++) {
        slow += lk_run_by_reference(run, run->program.ops[i].type);
    }
    const char *kernels = lk_run_kernels(run);
    if (slow > 0) {
        snprintf(f->kernels, sizeof f->kernels, "%s, %u ops by reference", kernels, slow);
    } else {
        snprintf(f->kernels, sizeof f->kernels, "%s", kernels);
    }
    f->replicas = run->layout.replicas;
    f->parameters = run->program.param_floats;
    f->arena_bytes = run->arena.used;
    f->examples_bytes = run->train_bytes;
    f->anonymous_bytes = lk_memory_anonymous();
    f->flop = lk_step_flop_of(&run->program);
}

// Says that it is ready, then runs a block of as many seconds as it is sent, until nobody asks any
// more.
static void case_main(const bench_case *c, const bench_options *o, int requests, int answers) {
    static lk_run run;
    static bench_facts facts;
    static bench_block block;
    double seconds;
    if (start_case(&run, c, o, &facts.error) == LK_OK) fill_facts(&run, &facts);
    bool heard = write_all(answers, &facts, sizeof facts);
    while (heard && facts.error.status == LK_OK && read_all(requests, &seconds, sizeof seconds)) {
        run_block(&run, seconds, &block);
        heard = write_all(answers, &block, sizeof block);
    }
    lk_run_close(&run);
    _exit(0);
}

// --- taking turns --------------------------------------------------------------------------------

// A case as the parent sees it.
typedef struct bench_lane {
    const bench_case *what;
    pid_t process;
    int requests, answers;
    bench_facts facts;
    bench_block last;
    double rate[ROUNDS_MAX];  // steps/s
    double peak[ROUNDS_MAX];  // GFLOP/s, mean of before and after
    double trip[ROUNDS_MAX];  // ns, likewise
    uint32_t cores;
} bench_lane;

static bench_lane lanes[LK_COUNT(cases)];
static uint32_t lane_count;
static double load_average;  // before anything was started: what others do here; -1: not known

static lk_status gone(const bench_lane *l, lk_error *error) {
    return lk_fail(error, LK_INTERNAL, "bench %s: its process ended without a word", l->what->name);
}

static lk_status start_lane(bench_lane *l, const bench_options *o, lk_error *error) {
    int down[2], up[2];
    if (pipe(down) != 0 || pipe(up) != 0) {
        return lk_fail(error, LK_UNAVAILABLE, "bench: no pipe: %s", strerror(errno));
    }
    fflush(stdout);
    l->process = fork();
    if (l->process < 0) {
        return lk_fail(error, LK_UNAVAILABLE, "bench: no process: %s", strerror(errno));
    }
    if (l->process == 0) {
        close(down[1]);
        close(up[0]);
        case_main(l->what, o, down[0], up[1]);
    }
    close(down[0]);
    close(up[1]);
    l->requests = down[1];
    l->answers = up[0];
    if (!read_all(l->answers, &l->facts, sizeof l->facts)) return gone(l, error);
    if (l->facts.error.status == LK_OK) return LK_OK;
    return lk_fail(error, l->facts.error.status, "bench %s: %s", l->what->name,
                   l->facts.error.text);
}

static lk_status one_turn(bench_lane *l, const bench_options *o, uint32_t round, lk_error *error) {
    double seconds = o->seconds / o->rounds;
    const struct timespec rest = {.tv_nsec = 2000000};
    nanosleep(&rest, NULL);  // the threads of the case before still spin for a moment
    lk_probe before = lk_probe_machine(l->facts.replicas);
    if (!write_all(l->requests, &seconds, sizeof seconds) ||
        !read_all(l->answers, &l->last, sizeof l->last)) {
        return gone(l, error);
    }
    if (l->last.error.status != LK_OK) {
        return lk_fail(error, l->last.error.status, "bench: %s", l->last.error.text);
    }
    nanosleep(&rest, NULL);
    lk_probe after = lk_probe_machine(l->facts.replicas);
    l->cores = before.cores;
    l->rate[round] = (double)l->last.steps / l->last.seconds;
    l->peak[round] = (before.fma_gflops + after.fma_gflops) / 2;
    l->trip[round] = (before.pingpong_ns + after.pingpong_ns) / 2;
    return LK_OK;
}

static void stop_lanes(void) {
    for (uint32_t i = 0; i < lane_count; i++) {
        if (lanes[i].requests > 0) close(lanes[i].requests);
        if (lanes[i].answers > 0) close(lanes[i].answers);
    }
    for (uint32_t i = 0; i < lane_count; i++) {
        if (lanes[i].process > 0) (void)waitpid(lanes[i].process, NULL, 0);
    }
}

// --- saying it -----------------------------------------------------------------------------------

// The smallest, the middle one and the greatest of the rounds.
typedef struct spread {
    double min, median, max;
} spread;

static spread spread_of(const double *values, uint32_t count) {
    double sorted[ROUNDS_MAX];
    memcpy(sorted, values, count * sizeof *values);
    qsort(sorted, count, sizeof *values, by_value);
    return (spread){sorted[0], quantile(sorted, count, 0.5), sorted[count - 1]};
}

// Of a round's speed in that round's own peak; 0 where the peak is not known.
static double share_of_peak(const bench_lane *l, double flop, uint32_t rounds) {
    double shares[ROUNDS_MAX];
    for (uint32_t r = 0; r < rounds; r++) {
        shares[r] = l->peak[r] > 0 ? l->rate[r] * flop * 1e-9 / l->peak[r] : 0.0;
    }
    return spread_of(shares, rounds).median;
}

static void print_spread(const char *key, spread s) {
    printf("\"%s\": {\"min\": %.6g, \"median\": %.6g, \"max\": %.6g}, ", key, s.min, s.median,
           s.max);
}

static void print_counts(const char *key, double framework, double routed) {
    printf("\"%s\": {\"framework\": %.12g, \"routed\": %.12g}, ", key, framework, routed);
}

static void print_json(const bench_lane *l, uint32_t rounds) {
    const bench_case *c = l->what;
    const bench_facts *f = &l->facts;
    spread rate = spread_of(l->rate, rounds);
    double median = 1 / l->last.median;
    printf("{\"case\": \"%s\", \"lockstep\": \"%s\", \"config\": \"%s\", \"kernels\": \"%s\", ",
           c->name, LK_VERSION, c->config, f->kernels);
    printf("\"load_average\": %.2f, \"replicas\": %u, \"global_batch\": %u, \"grain\": %u, ",
           load_average, f->replicas, c->global_batch, c->grain);
    printf("\"parameters\": %llu, \"steps\": %llu, ", (unsigned long long)f->parameters,
           (unsigned long long)l->last.all_steps);
    printf("\"steps_per_second\": {\"median\": %.6g, \"p10\": %.6g, \"p90\": %.6g}, ", median,
           1 / l->last.p90, 1 / l->last.p10);
    printf("\"images_per_second\": %.6g, \"round_steps_per_second\": [", median * c->global_batch);
    for (uint32_t r = 0; r < rounds; r++) printf(r ? ", %.6g" : "%.6g", l->rate[r]);
    printf("], ");
    print_spread("round_spread", rate);
    print_counts("flop_per_step", f->flop.framework, f->flop.routed);
    print_counts("gflops", median * f->flop.framework * 1e-9, median * f->flop.routed * 1e-9);
    print_counts("share_of_peak", share_of_peak(l, f->flop.framework, rounds),
                 share_of_peak(l, f->flop.routed, rounds));
    printf("\"cores\": %u, \"vectors\": \"%s\", ", l->cores, lk_probe_vectors());
    print_spread("fma_peak_gflops", spread_of(l->peak, rounds));
    print_spread("pingpong_ns", spread_of(l->trip, rounds));
    printf("\"arena_bytes\": %llu, \"examples_bytes\": %llu, \"anonymous_bytes\": %llu}\n",
           (unsigned long long)f->arena_bytes, (unsigned long long)f->examples_bytes,
           (unsigned long long)f->anonymous_bytes);
}

static const char head[] =
    "                                        steps/s                              images/s  GFLOP/s"
    "         of peak       FMA peak   ping-pong         memory, MiB\n"
    "case                batch grain lanes   median     p10     p90   rounds      median    every "
    "routed   every routed   GFLOP/s    ns              arena  images   anon\n";

static void print_line(const bench_lane *l, uint32_t rounds) {
    const double mib = 1.0 / (1 << 20);
    const bench_case *c = l->what;
    const bench_facts *f = &l->facts;
    spread rate = spread_of(l->rate, rounds), peak = spread_of(l->peak, rounds);
    spread trip = spread_of(l->trip, rounds);
    double median = 1 / l->last.median;
    char rates[32], trips[32];
    snprintf(rates, sizeof rates, "%.0f..%.0f", rate.min, rate.max);
    snprintf(trips, sizeof trips, l->cores > 1 ? "%.0f (%.0f..%.0f)" : "-", trip.median, trip.min,
             trip.max);
    printf("%-19s %5u %5u %5u  %7.1f %7.1f %7.1f   %-11s %7.0f  ", c->name, c->global_batch,
           c->grain, f->replicas, median, 1 / l->last.p90, 1 / l->last.p10, rates,
           median * c->global_batch);
    printf("%6.1f %6.1f  %5.1f%% %5.1f%%   %7.1f   %-14s ", median * f->flop.framework * 1e-9,
           median * f->flop.routed * 1e-9, 100 * share_of_peak(l, f->flop.framework, rounds),
           100 * share_of_peak(l, f->flop.routed, rounds), peak.median, trips);
    printf("%7.2f %7.2f %6.2f\n", (double)f->arena_bytes * mib, (double)f->examples_bytes * mib,
           (double)f->anonymous_bytes * mib);
}

static void print_all(const bench_options *o) {
    if (!o->json) {
        printf(
            "lockstep %s, kernels %s, %s images, peak of %s; %u rounds of %.2f s a case, the cases "
            "taking turns; load average before: %.2f\n",
            LK_VERSION, lanes[0].facts.kernels, o->data ? o->data : "made-up", lk_probe_vectors(),
            o->rounds, o->seconds / o->rounds, load_average);
        fputs(head, stdout);
    }
    for (uint32_t i = 0; i < lane_count; i++) {
        if (o->json) {
            print_json(&lanes[i], o->rounds);
        } else {
            print_line(&lanes[i], o->rounds);
        }
    }
    if (o->json) return;
    fputs(
        "steps/s: from the time of each step; rounds: the slowest and the fastest as a whole.\n"
        "GFLOP/s: products and sums of convolutions and dense layers. every: at every position,\n"
        "as frameworks count; routed: behind a 2x2 max-pool only the position that won.\n"
        "A share is of the peak of as many cores in the same round.\n"
        "memory: the arena is everything, made-up images included; files would be mapped.\n",
        stdout);
}

// --- the command ---------------------------------------------------------------------------------

static const char usage[] =
    "usage: lockstep bench [--json] [--cases A,B] [--seconds S] [--rounds N] [--replicas N] "
    "[--kernels NAME] [--data DIR]\n";

static lk_status choose_cases(const char *list, bench_options *o, lk_error *error) {
    char word[64];
    const char *names[LK_COUNT(cases)];
    for (uint32_t i = 0; i < LK_COUNT(cases); i++) {
        names[i] = cases[i].name;
        o->chosen[i] = false;
    }
    for (const char *at = list;; at++) {
        size_t length = strcspn(at, ",");
        bool found = false;
        snprintf(word, sizeof word, "%.*s", (int)length, at);
        for (uint32_t i = 0; i < LK_COUNT(cases); i++) {
            if (strcmp(word, names[i]) == 0) o->chosen[i] = found = true;
        }
        if (!found) {
            const char *near = lk_text_nearest(word, names, LK_COUNT(names));
            return lk_fail(error, LK_BAD_USAGE,
                           "bench --cases: there is no \"%s\"%s%s%s; see: lockstep bench --help",
                           word, near ? ", did you mean \"" : "", near ? near : "",
                           near ? "\"?" : "");
        }
        at += length;
        if (!*at) return LK_OK;
    }
}

static lk_status parse_seconds(const char *text, double *out, lk_error *error) {
    char *end;
    *out = strtod(text, &end);
    if (end != text && *end == '\0' && *out >= 0.001 && *out <= 86400) return LK_OK;
    return lk_fail(error, LK_BAD_USAGE,
                   "bench --seconds: found \"%s\", wanted a number from 0.001 to 86400", text);
}

static const char about[] =
    "\nTimes training steps, on made-up data or real, beside the machine's own fp32 peak and "
    "the\n"
    "way of a cache line between two cores, measured before and after every block.\n\n"
    "  --json          one JSON object a case, one a line\n"
    "  --cases A,B     these, instead of the first seven\n"
    "  --seconds S     of measured steps for each case (5)\n"
    "  --rounds N      in which the cases take turns (5)\n"
    "  --replicas N    instead of 2\n"
    "  --kernels NAME  reference, portable, avx2, avx512, neon; default: the fastest here\n"
    "  --data DIR      a directory with the four IDX files of MNIST or the like\n\n"
    "Cases:\n";

static void print_help(void) {
    fputs(usage, stdout);
    fputs(about, stdout);
    for (uint32_t i = 0; i < LK_COUNT(cases); i++) {
        const bench_case *c = &cases[i];
        if (i == USUAL_CASES) puts("\nand, where --cases names them:");
        printf("  %-19s %s, batch %u in grains of %u, %u replica%s\n", c->name, c->config,
               c->global_batch, c->grain, c->replicas, c->replicas == 1 ? "" : "s");
    }
}

static lk_status parse_options(int argc, char **argv, bench_options *o, bool *helped,
                               lk_error *error) {
    enum { JSON = 256, CASES, SECONDS, ROUNDS, REPLICAS, KERNELS, DATA, HELP };
    static const struct option known[] = {{"json", no_argument, NULL, JSON},
                                          {"cases", required_argument, NULL, CASES},
                                          {"seconds", required_argument, NULL, SECONDS},
                                          {"rounds", required_argument, NULL, ROUNDS},
                                          {"replicas", required_argument, NULL, REPLICAS},
                                          {"kernels", required_argument, NULL, KERNELS},
                                          {"data", required_argument, NULL, DATA},
                                          {"help", no_argument, NULL, HELP},
                                          {0}};
    for (uint32_t i = 0; lk_list_to && i + 2 < LK_COUNT(known); i++) {
        lk_list_described(about, known[i].name, known[i].has_arg == required_argument);
    }
    if (lk_list_to) return lk_answer(error);
    opterr = 0;
    optind = 1;
    for (;;) {
        int found = getopt_long(argc, argv, ":h", known, NULL);
        if (found == -1) break;
        switch (found) {
        case JSON: o->json = true; break;
        case CASES: LK_CHECK(choose_cases(optarg, o, error)); break;
        case SECONDS: LK_CHECK(parse_seconds(optarg, &o->seconds, error)); break;
        case ROUNDS:
            LK_CHECK(lk_parse_number("rounds", optarg, ROUNDS_MAX, &o->rounds, error));
            break;
        case REPLICAS:
            LK_CHECK(lk_parse_number("replicas", optarg, 1 << 20, &o->replicas, error));
            break;
        case KERNELS: o->kernels = optarg; break;
        case DATA: o->data = optarg; break;
        case 'h':
        case HELP: *helped = true; return LK_OK;
        default:
            return lk_fail(error, LK_BAD_USAGE, "bench: %s \"%s\"; %.*s",
                           found == ':' ? "a value is missing after" : "unknown option",
                           lk_refused_option(argv), (int)sizeof usage - 2, usage);
        }
    }
    if (optind == argc) return LK_OK;
    return lk_fail(error, LK_BAD_USAGE, "bench: found \"%s\", wanted only options; %.*s",
                   argv[optind], (int)sizeof usage - 2, usage);
}

static lk_status bench(const bench_options *o, lk_error *error) {
    for (uint32_t i = 0; i < LK_COUNT(cases); i++) {
        if (!o->chosen[i]) continue;
        bench_lane *l = &lanes[lane_count++];
        l->what = &cases[i];
        LK_CHECK(start_lane(l, o, error));
    }
    for (uint32_t round = 0; round < o->rounds; round++) {
        for (uint32_t i = 0; i < lane_count; i++) LK_CHECK(one_turn(&lanes[i], o, round, error));
    }
    print_all(o);
    return LK_OK;
}

lk_status lk_command_bench(int argc, char **argv, lk_error *error) {
    bench_options o = {.seconds = 5, .rounds = 5};
    bool helped = false;
    for (uint32_t i = 0; i < USUAL_CASES; i++) o.chosen[i] = true;
    LK_CHECK(parse_options(argc, argv, &o, &helped, error));
    if (helped) {
        print_help();
        return LK_OK;
    }
    if (getloadavg(&load_average, 1) != 1) load_average = -1;
    signal(SIGPIPE, SIG_IGN);  // a case that died is an answer that does not come
    lk_status status = bench(&o, error);
    stop_lanes();
    return status;
}
