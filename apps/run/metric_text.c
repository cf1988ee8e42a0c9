// metric_text.c - fields, lines and words of metric_text.h. Host only.
#include "apps/run/metric_text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct writer {
    char *out;
    size_t bytes, used;
} writer;

static void put(writer *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put(writer *w, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(w->out + w->used, w->bytes - w->used, format, args);
    va_end(args);
    w->used += (size_t)n;
    lk_assert(w->used < w->bytes);
}

static double share_of(lk_named_result n, uint32_t i) {
    return (double)n.r->counts[i] / lk_metric_all(n.names, i, n.r->counts, n.r->examples);
}

static void put_means(writer *w, lk_named_result n) {
    for (uint32_t i = 0; i < n.names->sum_count; i++) {
        const double mean = (double)n.r->means[i];
        put(w, "%s\"%s\":", i ? "," : "", n.names->sum[i]);
        // Of a step that was skipped; JSON has no word for it.
        if (mean - mean == 0) put(w, "%.9g", mean);
        else put(w, "null");
    }
}

static void put_scale(writer *w, lk_named_result n) {
    if (n.r->loss_scale == 0) return;
    put(w, ",\"loss_scale\":%.9g,\"skipped\":%llu,\"replayed\":%llu", (double)n.r->loss_scale,
        (unsigned long long)n.r->skipped, (unsigned long long)n.r->replayed);
}

static void put_shares(writer *w, lk_named_result n) {
    for (uint32_t i = 0; i < n.names->count_count; i++) {
        if (n.names->share[i]) put(w, ",\"%s\":%.6g", n.names->share[i], share_of(n, i));
    }
}

lk_named_result lk_name_result(const lk_program *only, const lk_step_result *r, uint64_t done) {
    const lk_program *p = r && r->program ? r->program : only;
    const lk_graph *g = p->spec->model.graph;
    lk_named_result n = {.names = r && r->names ? r->names : lk_program_metrics(p), .r = r};
    if (!g || g->objective_count == 1) return n;
    n.objective = g->objectives[p->objective].name;
    n.cycle = done ? (done - 1) / lk_cycle_steps(g) + 1 : 0;
    return n;
}

static void put_objective(writer *w, lk_named_result n) {
    char name[6 * LK_GRAPH_NAME_BYTES];
    if (!n.objective) return;
    lk_text_escape(name, sizeof name, n.objective, strlen(n.objective));
    put(w, "\"objective\":\"%s\",", name);
    if (n.cycle) put(w, "\"cycle\":%llu,", (unsigned long long)n.cycle);
}

static void put_fields(writer *w, lk_named_result n) {
    put_objective(w, n);
    put_means(w, n);
    for (uint32_t i = 0; i < n.names->count_count; i++) {
        put(w, ",\"%s\":%u", n.names->count[i], n.r->counts[i]);
    }
    put(w, ",\"examples\":%u", n.r->examples);
    put_scale(w, n);
}

void lk_metric_fields(char out[LK_METRIC_TEXT_BYTES], lk_named_result n, bool shares) {
    writer w = {out, LK_METRIC_TEXT_BYTES, 0};
    put_fields(&w, n);
    if (shares) put_shares(&w, n);
}

static bool counts_errors(const lk_metrics *m) {
    for (uint32_t i = 0; i < m->count_count; i++) {
        if (m->errors_of[i]) return true;
    }
    return false;
}

size_t lk_metric_line(char *out, size_t bytes, uint64_t step, const char *kind, lk_named_result n) {
    writer w = {out, bytes, 0};
    put(&w, "{\"step\":%llu,\"%s\":{", (unsigned long long)step, kind);
    put_fields(&w, n);
    if (counts_errors(n.names)) put_shares(&w, n);
    put(&w, "}}");
    return w.used;
}

void lk_metric_evaluation(char out[LK_METRIC_TEXT_BYTES], lk_named_result n) {
    writer w = {out, LK_METRIC_TEXT_BYTES, 0};
    put_objective(&w, n);
    put(&w, "\"examples\":%u", n.r->examples);
    for (uint32_t i = 0; i < n.names->count_count; i++) {
        put(&w, ",\"%s\":%u", n.names->count[i], n.r->counts[i]);
    }
    put(&w, ",");
    put_means(&w, n);
    put_shares(&w, n);
    put_scale(&w, n);
}

void lk_metric_words(char out[LK_METRIC_TEXT_BYTES], lk_named_result n) {
    writer w = {out, LK_METRIC_TEXT_BYTES, 0};
    if (n.objective) put(&w, "objective %s, ", n.objective);
    for (uint32_t i = 0; i < n.names->sum_count; i++) {
        put(&w, "%s%s %.9g", i ? ", " : "", n.names->sum[i], (double)n.r->means[i]);
    }
    for (uint32_t i = 0; i < n.names->count_count; i++) {
        if (!n.names->share[i]) continue;
        put(&w, ", %s %.2f%%", n.names->share[i], 100.0 * share_of(n, i));
    }
    if (n.r->loss_scale == 0) return;
    put(&w, ", loss_scale %.9g, skipped %llu, replayed %llu", (double)n.r->loss_scale,
        (unsigned long long)n.r->skipped, (unsigned long long)n.r->replayed);
}

void lk_metric_equations(char out[LK_METRIC_TEXT_BYTES], lk_named_result n) {
    writer w = {out, LK_METRIC_TEXT_BYTES, 0};
    for (uint32_t i = 0; i < n.names->sum_count; i++) {
        put(&w, "%s%s = %.9g", i ? ", " : "", n.names->sum[i], (double)n.r->means[i]);
    }
    if (!n.objective) return;
    put(&w, ", objective = %s, cycle = %llu", n.objective, (unsigned long long)n.cycle);
}

void lk_metric_lines(lk_text_out *out, lk_named_result n) {
    for (uint32_t i = 0; i < n.names->sum_count; i++) {
        lk_text_line(out, "test_%s %.9g", n.names->sum[i], (double)n.r->means[i]);
    }
    for (uint32_t i = 0; i < n.names->count_count; i++) {
        if (!n.names->share[i]) continue;
        lk_text_line(out, "test_%s %.2f", n.names->share[i], 100.0 * share_of(n, i));
    }
}

static void put_test(json_t *object, const char *name, double value) {
    char key[64];
    snprintf(key, sizeof key, "test_%s", name);
    (void)json_object_set_new(object, key, json_real(value));
}

void lk_metric_object(json_t *object, lk_named_result n) {
    for (uint32_t i = 0; i < n.names->count_count; i++) {
        (void)json_object_set_new(object, n.names->count[i], json_integer(n.r->counts[i]));
    }
    for (uint32_t i = 0; i < n.names->sum_count; i++) {
        put_test(object, n.names->sum[i], (double)n.r->means[i]);
    }
    for (uint32_t i = 0; i < n.names->count_count; i++) {
        if (n.names->share[i]) put_test(object, n.names->share[i], share_of(n, i));
    }
}
