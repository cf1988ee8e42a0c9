// best.c - see best.h.
#include "apps/run/best.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The number of a metric by its name: of a mean, or of a count or its share.
static bool find_metric(const lk_metrics *m, const char *name, lk_best *best) {
    for (uint32_t i = 0; i < m->sum_count; i++) {
        best->number = i;
        if (strcmp(m->sum[i], name) == 0) return true;
    }
    best->counts = true;
    for (uint32_t i = 0; i < m->count_count; i++) {
        if (!m->share[i]) continue;
        best->number = i;
        best->errors = m->errors_of[i] != 0;
        best->share = strcmp(m->count[i], name) != 0;
        if (!best->share || strcmp(m->share[i], name) == 0) return true;
    }
    return false;
}

static void list_metrics(const lk_metrics *m, char *out, size_t bytes) {
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < m->sum_count + m->count_count && used < bytes; i++) {
        const char *name = i < m->sum_count ? m->sum[i] : m->share[i - m->sum_count];
        if (!name) continue;
        const int n = snprintf(out + used, bytes - used, "%s%s", i ? ", " : "", name);
        used += (size_t)n;
    }
}

static lk_status make_one(const lk_run *run, const char *key, const char *metric, lk_best *best,
                          lk_error *error) {
    const lk_config *c = &run->config;
    const lk_metrics *m = lk_run_evaluated_metrics(run);
    char names[160];
    *best = (lk_best){.wanted = *metric != '\0'};
    if (!best->wanted) return LK_OK;
    if (!c->evaluate_every_steps || !c->test.given || run->evaluator) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "%s: %s: %s; it goes by evaluations: set evaluate_every_steps and "
                       "data.test, without an evaluator in the cluster",
                       c->document.source, key,
                       run->evaluator ? "the cluster's evaluator evaluates, and not the workers"
                                      : "nothing is evaluated while the run goes on");
    }
    if (find_metric(m, metric, best)) return LK_OK;
    list_metrics(m, names, sizeof names);
    return lk_fail(error, LK_BAD_CONFIG, "%s: %s: found \"%s\", wanted a metric of this model: %s",
                   c->document.source, key, metric, names);
}

lk_status lk_best_make(const lk_run *run, lk_best best[LK_BESTS], lk_error *error) {
    const lk_config *c = &run->config;
    LK_CHECK(make_one(run, "early_stopping.metric", c->early.metric, &best[LK_BEST_STOPS], error));
    best[LK_BEST_STOPS].patience = c->early.patience;
    best[LK_BEST_STOPS].min_delta = c->early.min_delta;
    return make_one(run, "checkpoint.best", c->checkpoint_best, &best[LK_BEST_STAYS], error);
}

// Shares are compared as counts of `all`, examples or labels, of which there are as many in every
// evaluation, so min_delta of a share becomes a count, too.
static bool is_better(const lk_best *b, uint64_t all, float value, uint32_t count) {
    const double more = b->share ? (double)b->min_delta * (double)all : (double)b->min_delta;
    if (!b->any) return true;
    if (b->errors) return (double)count < (double)b->count - more;
    if (b->counts) return (double)count > (double)b->count + more;
    return (double)value < (double)b->value - more;
}

static void note(lk_best *b, uint64_t all, uint64_t done, float value, uint32_t count) {
    b->improved = is_better(b, all, value, count);
    b->since = b->improved ? 0 : b->since + 1;
    if (!b->improved) return;
    b->any = true;
    b->value = value;
    b->count = count;
    b->step = done;
}

static bool counts_step(const lk_run *run, uint64_t done) {
    const uint64_t every = run->config.evaluate_every_steps;
    return every && done % every == 0;
}

void lk_best_note(const lk_run *run, lk_best best[LK_BESTS], uint64_t done,
                  const lk_step_result *r) {
    const lk_metrics *m = lk_run_evaluated_metrics(run);
    for (uint32_t i = 0; i < LK_BESTS; i++) {
        lk_best *b = &best[i];
        b->improved = false;
        if (!b->wanted || !counts_step(run, done) || done <= b->noted) continue;
        b->noted = done;
        const uint32_t examples = (uint32_t)lk_run_test_examples(run);
        const uint32_t all = b->counts ? lk_metric_all(m, b->number, r->counts, examples) : 0;
        note(b, all, done, b->counts ? 0 : r->means[b->number],
             b->counts ? r->counts[b->number] : 0);
    }
}

// --- what was before -----------------------------------------------------------------------------

// Nine digits tell every float from every other, so what comes back is what was.
static void recall_line(const lk_run *run, lk_best best[LK_BESTS], const char *line, size_t bytes) {
    const lk_metrics *m = lk_run_evaluated_metrics(run);
    json_t *root = json_loadb(line, bytes, 0, NULL), *test = json_object_get(root, "test");
    const json_int_t step = json_integer_value(json_object_get(root, "step"));
    lk_step_result r = {.step = 0};
    for (uint32_t i = 0; i < m->sum_count; i++) {
        r.means[i] = (float)json_number_value(json_object_get(test, m->sum[i]));
    }
    for (uint32_t i = 0; i < m->count_count; i++) {
        r.counts[i] = (uint32_t)json_integer_value(json_object_get(test, m->count[i]));
    }
    if (test && step > 0) lk_best_note(run, best, (uint64_t)step, &r);
    json_decref(root);
}

lk_status lk_best_recall(const lk_run *run, const lk_run_dir *dir, lk_best best[LK_BESTS],
                         lk_error *error) {
    char path[LK_PATH_BYTES];
    lk_error missing = {.status = LK_OK};
    uint64_t bytes;
    int file;
    if (!best[LK_BEST_STOPS].wanted && !best[LK_BEST_STAYS].wanted) return LK_OK;
    LK_CHECK(lk_path_join(path, dir->path, "/", "metrics.jsonl", error));
    if (lk_file_open_read(dir->ops, path, &file, &bytes, &missing) != LK_OK) return LK_OK;
    char *text = malloc((size_t)bytes + 1);
    lk_status status = text ? lk_file_read_all(dir->ops, file, path, text, (size_t)bytes, 0, error)
                            : lk_fail(error, LK_UNAVAILABLE, "%s: no memory to read it", path);
    dir->ops->close(dir->ops->context, file);
    for (size_t at = 0, end; status == LK_OK && at < bytes; at = end + 1) {
        const char *newline = memchr(text + at, '\n', (size_t)bytes - at);
        end = newline ? (size_t)(newline - text) : (size_t)bytes;
        recall_line(run, best, text + at, end - at);
    }
    free(text);
    return status;
}

void lk_best_text(const lk_run *run, const lk_best *b, char out[96]) {
    const lk_metrics *m = lk_run_evaluated_metrics(run);
    if (b->counts) {
        (void)snprintf(out, 96, "test_%s %u after step %llu", m->count[b->number], b->count,
                       (unsigned long long)b->step);
    } else {
        (void)snprintf(out, 96, "test_%s %.9g after step %llu", m->sum[b->number], (double)b->value,
                       (unsigned long long)b->step);
    }
}
