// diff_tolerance.c - lockstep diff --tolerance: how far two runs lie apart that need not be equal,
// such as one in fast and one in strict arithmetic. Reads what runs log anyway: the losses of
// metrics.jsonl and the checkpoints that both have.
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/cli/two_runs.h"

typedef unsigned long long ull;

// --- losses --------------------------------------------------------------------------------------

typedef enum metric_kind { TRAIN, TEST, METRIC_KINDS } metric_kind;
static const char *const kind_names[METRIC_KINDS] = {"train", "test"};

typedef struct metric {
    uint64_t step;
    metric_kind kind;
    double loss;
    uint32_t correct, examples;
    bool has_correct;  // a classifier
} metric;

// Metrics of a run, ordered by step and then by kind.
typedef struct metrics {
    metric *list;
    size_t count, capacity;
} metrics;

static lk_status read_metric(lk_json_log *log, metric *m, lk_error *error) {
    lk_json_cursor root = lk_json_root(&log->document), values;
    *m = (metric){.step = log->step};
    lk_json_cursor ignored;
    if (lk_json_find(&root, kind_names[TEST], &ignored)) m->kind = TEST;
    LK_CHECK(lk_json_get_object(&root, kind_names[m->kind], LK_JSON_REQUIRED, &values, error));
    LK_CHECK(
        lk_json_get_float(&values, "loss", LK_JSON_REQUIRED, -1e38, 1e38, &m->loss, NULL, error));
    m->has_correct = lk_json_find(&values, "correct", &ignored);
    LK_CHECK(
        lk_json_get_u32(&values, "correct", LK_JSON_OPTIONAL, 0, UINT32_MAX, &m->correct, error));
    return lk_json_get_u32(&values, "examples", LK_JSON_REQUIRED, 1, UINT32_MAX, &m->examples,
                           error);
}

static lk_status add_metric(metrics *all, const metric *m, lk_error *error) {
    if (all->count == all->capacity) {
        size_t capacity = all->capacity ? 2 * all->capacity : 256;
        metric *grown = realloc(all->list, capacity * sizeof *grown);
        if (!grown) return lk_fail(error, LK_UNAVAILABLE, "no memory for %zu log lines", capacity);
        all->list = grown;
        all->capacity = capacity;
    }
    all->list[all->count++] = *m;
    return LK_OK;
}

static int by_step_and_kind(const void *x, const void *y) {
    const metric *a = x, *b = y;
    if (a->step != b->step) return a->step < b->step ? -1 : 1;
    return (int)a->kind - (int)b->kind;
}

static lk_status read_metrics(const char *run_dir, metrics *all, lk_error *error) {
    lk_json_log log;
    lk_error why = {.status = LK_OK};
    lk_status status = lk_json_log_open(&log, run_dir, "metrics.jsonl", true, error);
    while (status == LK_OK) {
        metric m;
        status = lk_json_log_next(&log, error);
        if (status != LK_OK || !log.at_line) break;
        if (read_metric(&log, &m, &why) != LK_OK) {
            status = lk_fail(error, LK_BAD_DATA, "%s", why.text);
        } else {
            status = add_metric(all, &m, error);
        }
    }
    if (status == LK_OK) lk_json_log_say(&log);
    lk_json_log_close(&log);
    if (all->count) qsort(all->list, all->count, sizeof *all->list, by_step_and_kind);
    return status;
}

// --- what was found so far -----------------------------------------------------------------------

typedef struct apart {
    const char *const *run;
    double tolerance;
    uint64_t compared;    // losses and tensors
    uint64_t first_step;  // where the tolerance was first passed, and by what
    char first[LK_NAME_BYTES + 64];
} apart;

// Of numbers that are finite, as those of checkpoints and logs are.
static double relative(double difference, double magnitude) {
    return difference > 0.0 ? difference / magnitude : 0.0;
}

static bool is_first(const apart *d, uint64_t step) {
    return d->first[0] == '\0' || step < d->first_step;
}

static void judge(apart *d, uint64_t step, double r, const char *what) {
    d->compared++;
    if (r <= d->tolerance || !is_first(d, step)) return;
    d->first_step = step;
    snprintf(d->first, sizeof d->first, "%s, relative difference %.3g", what, r);
}

// Of counters and the like, which no tolerance makes equal.
static void judge_equal(apart *d, uint64_t step, bool equal, const char *what) {
    d->compared++;
    if (equal || !is_first(d, step)) return;
    d->first_step = step;
    snprintf(d->first, sizeof d->first, "%s, whole numbers that are not equal", what);
}

static void compare_losses(apart *d, const metrics *a, const metrics *b, metric_kind kind) {
    const metric *worst_a = NULL, *worst_b = NULL, *last_a = NULL, *last_b = NULL;
    double worst = -1.0;
    uint64_t count = 0;
    char what[32];
    snprintf(what, sizeof what, "%s loss", kind_names[kind]);
    for (size_t i = 0, j = 0; i < a->count && j < b->count;) {
        const metric *x = &a->list[i], *y = &b->list[j];
        int order = by_step_and_kind(x, y);
        i += order <= 0;
        j += order >= 0;
        if (order != 0 || x->kind != kind) continue;
        double r = relative(fabs(x->loss - y->loss), LK_MAX(fabs(x->loss), fabs(y->loss)));
        judge(d, x->step, r, what);
        count++;
        last_a = x;
        last_b = y;
        if (r > worst) {
            worst = r;
            worst_a = x;
            worst_b = y;
        }
    }
    if (!count) return;
    lk_diff_say(
        "%s loss: %llu steps in both, largest relative difference %.3g at step %llu (A %.9g, B "
        "%.9g)\n",
        kind_names[kind], (ull)count, worst, (ull)worst_a->step, worst_a->loss, worst_b->loss);
    if (!last_a->has_correct || !last_b->has_correct) return;
    lk_diff_say("%s accuracy at the last of them, step %llu: A %.2f%%, B %.2f%%\n",
                kind_names[kind], (ull)last_a->step, 100.0 * last_a->correct / last_a->examples,
                100.0 * last_b->correct / last_b->examples);
}

// --- tensors -------------------------------------------------------------------------------------

typedef struct tensor_apart {
    double r;     // largest difference over largest magnitude
    uint64_t at;  // element of the largest difference
    double a, b;  // its values
} tensor_apart;

// a, b    (4 * count bytes) at any address
static tensor_apart compare_values(const uint8_t *a, const uint8_t *b, uint64_t count) {
    tensor_apart t = {0};
    double largest = 0.0, magnitude = 0.0;
    for (uint64_t i = 0; i < count; i++) {
        float x, y;
        memcpy(&x, a + 4 * i, sizeof x);
        memcpy(&y, b + 4 * i, sizeof y);
        double difference = fabs((double)x - (double)y);
        magnitude = LK_MAX(magnitude, LK_MAX(fabs((double)x), fabs((double)y)));
        if (difference <= largest) continue;
        largest = difference;
        t.at = i;
        t.a = (double)x;
        t.b = (double)y;
    }
    t.r = relative(largest, magnitude);
    return t;
}

// Tensors that only one run has, as another optimizer's slots, or of another shape, are named. All
// that are no floats are whole numbers.
static void compare_pair(apart *d, const lk_open_checkpoint pair[LK_SIDES]) {
    const lk_safetensors_entry *worst = NULL;
    tensor_apart most = {.r = -1.0};
    char name[LK_TEXT_SHOWN_BYTES];
    for (size_t i = 0; i < pair[0].reader.entry_count; i++) {
        const lk_safetensors_entry *x = &pair[0].reader.entries[i];
        const lk_safetensors_entry *y = lk_safetensors_find(&pair[1].reader, x->name);
        char what[LK_NAME_BYTES + 16];
        if (!y || !lk_same_shape(x, y)) {
            lk_diff_say("checkpoint of step %llu: tensor %s is not compared: B has %s\n",
                        (ull)pair[0].step, lk_text_shown(name, x->name),
                        y ? "another shape or type of it" : "none");
            continue;
        }
        const uint8_t *a = lk_checkpoint_values(&pair[0], x);
        const uint8_t *b = lk_checkpoint_values(&pair[1], y);
        snprintf(what, sizeof what, "tensor %.*s", LK_NAME_BYTES, lk_text_shown(name, x->name));
        if (x->dtype != LK_SAFETENSORS_F32) {
            judge_equal(d, pair[0].step, memcmp(a, b, x->end - x->begin) == 0, what);
            continue;
        }
        const tensor_apart t = compare_values(a, b, (x->end - x->begin) / sizeof(float));
        judge(d, pair[0].step, t.r, what);
        if (t.r <= most.r) continue;
        most = t;
        worst = x;
    }
    for (size_t i = 0; i < pair[1].reader.entry_count; i++) {
        const char *only = pair[1].reader.entries[i].name;
        if (lk_safetensors_find(&pair[0].reader, only)) continue;
        lk_diff_say("checkpoint of step %llu: tensor %s is not compared: A has none\n",
                    (ull)pair[1].step, lk_text_shown(name, only));
    }
    if (!worst) return;
    lk_diff_say(
        "checkpoint of step %llu: largest relative difference %.3g, tensor %s, element %llu (A "
        "%.9g, B %.9g)\n",
        (ull)pair[0].step, most.r, lk_text_shown(name, worst->name), (ull)most.at, most.a, most.b);
}

static lk_status compare_all_checkpoints(apart *d, lk_error *error) {
    lk_steps steps;
    LK_CHECK(lk_common_checkpoints(d->run, &steps, error));
    for (size_t i = 0; i < steps.count; i++) {
        lk_open_checkpoint pair[LK_SIDES];
        if (!lk_checkpoint_enter_both(d->run, steps.steps[i], pair)) continue;
        compare_pair(d, pair);
        lk_checkpoint_leave_both(pair);
    }
    free(steps.steps);
    return LK_OK;
}

// -------------------------------------------------------------------------------------------------

lk_status lk_compare_within(const char *const runs[LK_SIDES], double tolerance, lk_error *error) {
    apart d = {.run = runs, .tolerance = tolerance};
    metrics log[LK_SIDES] = {{0}};
    lk_status status = LK_OK;
    for (uint32_t i = 0; i < LK_SIDES && status == LK_OK; i++) {
        status = read_metrics(runs[i], &log[i], error);
    }
    if (status == LK_OK) {
        for (uint32_t k = 0; k < METRIC_KINDS; k++) compare_losses(&d, &log[0], &log[1], k);
        status = compare_all_checkpoints(&d, error);
    }
    for (uint32_t i = 0; i < LK_SIDES; i++) free(log[i].list);
    LK_CHECK(status);
    if (!d.compared) {
        return lk_fail(error, LK_NO_INPUT,
                       "%s and %s: nothing to compare: no loss of one step was logged by both, and "
                       "there is no checkpoint of one step in both",
                       runs[0], runs[1]);
    }
    lk_diff_number("compared", d.compared);
    if (d.first[0]) {
        lk_diff_number("first_step", d.first_step);
        lk_diff_text("what", d.first);
        lk_diff_say("further apart than %g: first at step %llu, %s\n", tolerance, (ull)d.first_step,
                    d.first);
        return LK_DIFFERS;
    }
    lk_diff_say("within %g: %llu losses and tensors compared\n", tolerance, (ull)d.compared);
    return LK_OK;
}
