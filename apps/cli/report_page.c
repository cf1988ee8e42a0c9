// report_page.c - the page of lockstep report: what is known of one run or of two, as HTML without
// scripts and without anything from elsewhere.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/cli/report.h"

enum { MATRIX_CLASSES_MAX = 40, PAIRS_MAX = 12, NAME_BYTES = 64 };
// 0.9 rather than 0.90000000000000002.
#define DIGITS JSON_REAL_PRECISION(15)

static const char head[] =
    "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; "
    "style-src 'unsafe-inline'\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";

static const char style[] =
    "<style>\n"
    ":root{color-scheme:light}\n"
    "body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;"
    "color:#222;background:#fff}\n"
    "body.two{max-width:110rem}\n"
    "h1{font-size:1.6rem;margin-bottom:.2rem;overflow-wrap:anywhere}h2{font-size:1.15rem;"
    "margin:2rem 0 .5rem;border-bottom:1px solid #ddd}\n"
    ".runs{display:grid;grid-template-columns:minmax(0,1fr);gap:2rem}\n"
    ".two .runs{grid-template-columns:repeat(2,minmax(0,1fr))}\n"
    ".charts{display:flex;flex-wrap:wrap;gap:1rem}\n"
    "svg{font:11px system-ui,sans-serif;display:block;max-width:100%}\n"
    "svg.curves{flex:1 1 26rem;max-width:40rem}svg.plan,svg.phases{width:100%}\n"
    "table{border-collapse:collapse}td,th{padding:.15rem .5rem;text-align:left;"
    "vertical-align:top}\n"
    "table.facts td{overflow-wrap:anywhere}\n"
    "table.facts th,table.ops td+td,table.phases td{white-space:nowrap}\n"
    ".scroll{overflow-x:auto}\n"
    "table.matrix td,table.matrix th{text-align:right;font-variant-numeric:tabular-nums;"
    "padding:.15rem .4rem}\n"
    "table.matrix td.right{outline:1px solid #888}\n"
    ".bar{display:inline-block;height:.7rem;background:#4e79a7;vertical-align:baseline}\n"
    ".mistakes{display:flex;flex-wrap:wrap;gap:.8rem}\n"
    ".mistakes figure{margin:0;text-align:center;font-size:.8rem}\n"
    ".mistakes img{height:84px;image-rendering:pixelated;border:1px solid #ccc;display:block;"
    "margin:0 auto .2rem}\n"
    "pre,code{font:13px/1.4 ui-monospace,monospace}pre{background:#f6f6f6;padding:.7rem;"
    "overflow-x:auto;white-space:pre-wrap;overflow-wrap:anywhere}\n"
    ".note{color:#666}\n"
    "</style>\n</head>\n";

static void put_name(lk_markup *m, const lk_report_run *r) {
    const char *name = json_string_value(json_object_get(r->config, "name"));
    lk_put_text(m, name && *name ? name : r->path);
}

// --- facts ---------------------------------------------------------------------------------------

static void put_fact(lk_markup *m, const char *what, const char *value) {
    if (!*value) return;
    lk_put(m, "<tr><th>");
    lk_put_text(m, what);
    lk_put(m, "</th><td><code>");
    lk_put_text(m, value);
    lk_put(m, "</code></td></tr>\n");
}

// The last ones: loss 0.5, accuracy 90.00%. Without labels there is no accuracy; of sequences there
// is a label error rate, too.
static void say_metrics(char out[96], const lk_report_curve *c) {
    const double share = c->accuracy[c->count - 1], errors = c->errors[c->count - 1];
    const char *what = isnan(errors) ? "accuracy" : "sequence accuracy";
    int n = snprintf(out, 96, "loss %.6g", c->loss[c->count - 1]);
    if (!isnan(share)) n += snprintf(out + n, 96 - (size_t)n, ", %s %.2f%%", what, 100 * share);
    if (!isnan(errors))
        snprintf(out + n, 96 - (size_t)n, ", label error rate %.2f%%", 100 * errors);
}

static void put_last(lk_markup *m, const lk_report_curve *c) {
    char what[NAME_BYTES], text[160], metrics[96];
    if (c->count == 0) return;
    const double step = c->step[c->count - 1];
    const char *kind = c->test ? "test set" : "last step logged", *of = c->objective;
    lk_format(what, sizeof what, "%s%s%s", kind, of ? ", " : "", of ? of : "");
    say_metrics(metrics, c);
    if (c->test)
        snprintf(text, sizeof text, "%s, after step %.0f", metrics, step);
    else
        snprintf(text, sizeof text, "%.0f, %s", step, metrics);
    put_fact(m, what, text);
}

static void put_facts(lk_markup *m, const lk_report_run *r) {
    char text[160];
    lk_put(m, "<table class=\"facts\">\n");
    put_fact(m, "run directory", r->path);
    for (uint32_t i = 0; i < r->curve_count; i++) put_last(m, &r->curves[i]);
    if (r->wall_last > r->wall_first) {
        snprintf(text, sizeof text, "%.1f s", r->wall_last - r->wall_first);
        put_fact(m, "from first to last line of its log", text);
    }
    if (r->saved) {
        snprintf(text, sizeof text, "%llu", (unsigned long long)r->step);
        put_fact(m, "newest checkpoint, step", text);
    }
    put_fact(m, "digest", r->digest);
    put_fact(m, "state hash", r->state);
    put_fact(m, "run identity", r->identity);
    put_fact(m, "lockstep", r->version);
    lk_put(m, "</table>\n");
}

// --- curves --------------------------------------------------------------------------------------

enum { LOSS, ACCURACY, ERRORS };

// Does the log have a curve of that kind? If so, its first value is a number.
static const double *curve_of(const lk_report_curve *c, uint32_t what) {
    const double *const y = what == LOSS ? c->loss : what == ACCURACY ? c->accuracy : c->errors;
    return what != LOSS && c->count && isnan(y[0]) ? NULL : y;
}

// Those of all runs that have this kind, each in the colour that it has in every diagram.
static void put_diagram(lk_markup *m, const lk_report_run *runs, uint32_t count, uint32_t what,
                        lk_curve *curves, char (*names)[NAME_BYTES]) {
    static const char *const titles[] = {"loss", "accuracy", "label error rate"};
    uint32_t used = 0, number = 0;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t k = 0; k < runs[i].curve_count; k++, number++) {
            const lk_report_curve *c = &runs[i].curves[k];
            const char *side = count == 1 ? "" : i ? "B, " : "A, ", *of = c->objective;
            const double *y = curve_of(c, what);
            if (!y || c->count == 0) continue;
            lk_format(names[used], NAME_BYTES, "%s%s%s%s", side, c->test ? "test" : "training",
                      of ? ", " : "", of ? of : "");
            curves[used] = (lk_curve){.name = names[used],
                                      .number = number,
                                      .dots = c->test,
                                      .count = c->count,
                                      .x = c->step,
                                      .y = y};
            used++;
        }
    }
    if (used) lk_draw_curves(m, titles[what], "step", curves, used);
}

static void put_curves(lk_markup *m, const lk_report_run *runs, uint32_t count) {
    uint32_t most = 1;
    for (uint32_t i = 0; i < count; i++) most += runs[i].curve_count;
    lk_curve *curves = calloc(most, sizeof *curves);
    char(*names)[NAME_BYTES] = calloc(most, sizeof *names);
    lk_put(m, "<section id=\"curves\"><h2>Learning curves</h2>\n<div class=\"charts\">\n");
    for (uint32_t what = LOSS; curves && names && what <= ERRORS; what++) {
        put_diagram(m, runs, count, what, curves, names);
    }
    m->failed |= !curves || !names;
    free(curves);
    free(names);
    lk_put(m, "</div></section>\n");
}

// --- predictions ---------------------------------------------------------------------------------

// The shade of a cell by its share of its row; white on what is dark.
static void put_cell(lk_markup *m, uint64_t count, uint64_t row, bool right) {
    const double share = row ? (double)count / (double)row : 0;
    const double depth = count ? 0.12 + 0.88 * share : 0;
    const int hue[3] = {right ? 49 : 200, right ? 104 : 60, right ? 160 : 60};
    int c[3];
    for (int i = 0; i < 3; i++) c[i] = (int)(255 - depth * (255 - hue[i]));
    lk_put(m, "<td%s style=\"background:rgb(%d,%d,%d)%s\">", right ? " class=\"right\"" : "", c[0],
           c[1], c[2], depth > 0.6 ? ";color:#fff" : "");
    if (count) lk_put(m, "%llu", (unsigned long long)count);
    lk_put(m, "</td>");
}

// How many examples have a label; and how many of them were taken for that class.
static uint64_t row_sum(const lk_report_run *r, uint32_t label) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < r->pair_count; i++)
        sum += r->pairs[i].label == label ? r->pairs[i].times : 0;
    return sum;
}

static uint64_t times(const lk_report_run *r, uint32_t label, uint32_t predicted) {
    uint64_t i = 0;
    while (i < r->pair_count &&
           (r->pairs[i].label != label || r->pairs[i].predicted != predicted)) i++;
    return i < r->pair_count ? r->pairs[i].times : 0;
}

// The commonest mistakes, as a list: a confusion matrix of many classes would not fit on the page.
static void put_pairs(lk_markup *m, const lk_report_run *r) {
    uint64_t below = UINT64_MAX;
    uint32_t shown = 0;
    lk_put(m, "<table><tr><th>label</th><th>taken for</th><th>times</th></tr>\n");
    while (shown < PAIRS_MAX) {
        uint64_t most = 0;
        for (uint64_t i = 0; i < r->pair_count; i++) {
            const lk_report_pair *p = &r->pairs[i];
            if (p->label != p->predicted && p->times < below) most = LK_MAX(most, p->times);
        }
        if (most == 0) break;
        for (uint64_t i = 0; i < r->pair_count && shown < PAIRS_MAX; i++) {
            const lk_report_pair *p = &r->pairs[i];
            if (p->label == p->predicted || p->times != most) continue;
            lk_put(m, "<tr><td>%u</td><td>%u</td><td>%llu</td></tr>\n", p->label, p->predicted,
                   (unsigned long long)most);
            shown++;
        }
        below = most;
    }
    lk_put(m, "</table>\n");
}

static void put_matrix(lk_markup *m, const lk_report_run *r) {
    lk_put(m,
           "<h2>Confusion matrix</h2>\n<p class=\"note\">A row for each label, a column for "
           "what it was taken for; %llu of %llu are right.</p>\n",
           (unsigned long long)r->correct, (unsigned long long)r->examples);
    if (r->classes > MATRIX_CLASSES_MAX) {
        put_pairs(m, r);
        return;
    }
    lk_put(m, "<div class=\"scroll\"><table class=\"matrix\">\n<tr><th></th>");
    for (uint32_t c = 0; c < r->classes; c++) lk_put(m, "<th>%u</th>", c);
    lk_put(m, "</tr>\n");
    for (uint32_t label = 0; label < r->classes; label++) {
        const uint64_t row = row_sum(r, label);
        lk_put(m, "<tr><th>%u</th>", label);
        for (uint32_t c = 0; c < r->classes; c++) {
            put_cell(m, times(r, label, c), row, c == label);
        }
        lk_put(m, "</tr>\n");
    }
    lk_put(m, "</table></div>\n");
}

static void put_classes(lk_markup *m, const lk_report_run *r) {
    lk_put(m, "<h2>Accuracy by class</h2>\n");
    if (r->classes > LK_REPORT_CLASSES_ALL) {
        lk_put(m, "<p class=\"note\">Of %u classes those that are right the least often.</p>\n",
               r->classes);
    }
    lk_put(m, "<table class=\"classes\">\n");
    for (uint32_t i = 0; i < r->class_count; i++) {
        const lk_report_class *c = &r->by_class[i];
        const double share = 100.0 * (double)c->right / (double)c->examples;
        lk_put(m,
               "<tr><th>%u</th><td>%.2f%%</td><td><span class=\"bar\" style=\"width:%.1frem\">"
               "</span></td><td class=\"note\">%llu of %llu</td></tr>\n",
               c->label, share, 0.15 * share, (unsigned long long)c->right,
               (unsigned long long)c->examples);
    }
    lk_put(m, "</table>\n");
}

static void put_mistakes(lk_markup *m, const lk_report_run *r) {
    lk_put(m, "<h2>The most confident mistakes</h2>\n");
    if (r->mistake_count == 0) lk_put(m, "<p>None.</p>\n");
    lk_put(m, "<div class=\"mistakes\">\n");
    for (uint32_t i = 0; i < r->mistake_count; i++) {
        const lk_report_mistake *x = &r->mistakes[i];
        lk_put(m, "<figure>");
        if (x->png) {
            lk_put(m, "<img alt=\"test example %llu\" src=\"data:image/png;base64,",
                   (unsigned long long)x->index);
            lk_put_base64(m, x->png, x->png_bytes);
            lk_put(m, "\">");
        }
        lk_put(m,
               "<figcaption>%u, not %u<br>%.1f%% sure<br><span class=\"note\">no. %llu</span>"
               "</figcaption></figure>\n",
               x->label, x->predicted, 100 * x->confidence, (unsigned long long)x->index);
    }
    lk_put(m, "</div>\n");
}

static void put_predictions(lk_markup *m, const lk_report_run *r) {
    if (r->examples == 0) {
        lk_put(m, "<h2>Predictions</h2>\n<p class=\"note\">None: ");
        lk_put_text(m, r->why_not);
        lk_put(m, "</p>\n");
        return;
    }
    put_matrix(m, r);
    put_classes(m, r);
    put_mistakes(m, r);
}

// --- time and memory -----------------------------------------------------------------------------

static void put_phases(lk_markup *m, const lk_report_run *r) {
    static const char *const shades[LK_LAPS] = {"#4e79a7", "#76b7b2", "#bab0ac",
                                                "#edc948", "#b07aa1", "#f28e2b"};
    double all = 0, x = 0;
    lk_put(m, "<h2>The time of a step</h2>\n");
    for (uint32_t i = 0; i < LK_LAPS; i++) all += r->phases[i];
    if (r->phase_steps == 0 || !(all > 0) || !isfinite(all)) {
        lk_put(m,
               "<p class=\"note\">Not known: no process of it that saw it has come to its end."
               "</p>\n");
        return;
    }
    lk_put(m,
           "<p class=\"note\">%.1f us, the mean of %llu steps, as the first replica sees it."
           "</p>\n<svg class=\"phases\" viewBox=\"0 0 1000 30\" preserveAspectRatio=\"none\" "
           "height=\"30\">\n",
           all, (unsigned long long)r->phase_steps);
    for (uint32_t i = 0; i < LK_LAPS; i++) {
        const double w = 1000 * r->phases[i] / all;
        lk_put(m,
               "<rect x=\"%.2f\" width=\"%.2f\" height=\"30\" fill=\"%s\"><title>%s</title>"
               "</rect>\n",
               x, w, shades[i], lk_lap_names[i]);
        x += w;
    }
    lk_put(m, "</svg>\n<table class=\"phases\">\n");
    for (uint32_t i = 0; i < LK_LAPS; i++) {
        if (!(r->phases[i] > 0)) continue;
        lk_put(m,
               "<tr><td><span class=\"bar\" style=\"width:.7rem;background:%s\"></span> %s</td>"
               "<td>%.1f us</td><td>%.1f%%</td></tr>\n",
               shades[i], lk_lap_names[i], r->phases[i], 100 * r->phases[i] / all);
    }
    lk_put(m, "</table>\n");
}

// The table below the one of the run: of this machine.
static void put_ops(lk_markup *m, const lk_report_run *r) {
    const double all = r->ops_step_us;
    double most = 0;
    for (uint32_t i = 0; i < r->op_count; i++) most = LK_MAX(most, r->ops[i].us);
    if (r->ops_of_steps == 0 || !(all > 0)) return;
    lk_put(m,
           "<h2>A step, op by op</h2>\n<p class=\"note\">%.1f us, the mean of %u steps that this "
           "page's machine took for it, with %u replica%s and kernels %s; of each replica the mean."
           "</p>\n<div class=\"scroll\"><table class=\"ops\">\n",
           all, r->ops_of_steps, r->ops_replicas, r->ops_replicas == 1 ? "" : "s", r->ops_kernels);
    for (uint32_t i = 0; i < r->op_count; i++) {
        const lk_report_op *op = &r->ops[i];
        lk_put(m, "<tr><td>");
        lk_put_text(m, op->name);
        lk_put(m,
               "</td><td>%s</td><td>%.1f us</td><td>%.1f%%</td><td><span class=\"bar\" "
               "style=\"width:%.1frem\"></span></td></tr>\n",
               op->phase, op->us, 100 * op->us / all, 15 * op->us / most);
    }
    lk_put(m, "</table></div>\n");
}

static void put_time(lk_markup *m, const lk_report_run *r) {
    put_phases(m, r);
    put_ops(m, r);
}

static void put_memory(lk_markup *m, const lk_report_run *r, uint32_t width) {
    lk_put(m, "<h2>Memory, to scale</h2>\n");
    if (!r->plan || !lk_draw_plan(m, r->plan, width, false)) {
        lk_put(m, "<p class=\"note\">plan.json is missing or damaged.</p>\n");
        return;
    }
    const json_t *regions = json_object_get(r->plan, "regions");
    size_t i;
    json_t *region;
    lk_put(m,
           "<details><summary>Regions of the arena</summary><table class=\"matrix\"><tr><th>"
           "region</th><th>offset</th><th>bytes</th><th>times</th></tr>\n");
    json_array_foreach(regions, i, region) {
        static const char *const keys[] = {"offset", "bytes", "count"};
        const char *name = json_string_value(json_object_get(region, "name"));
        lk_put(m, "<tr><th>");
        lk_put_text(m, name ? name : "");
        lk_put(m, "</th>");
        for (uint32_t k = 0; k < LK_COUNT(keys); k++) {
            const json_int_t value = json_integer_value(json_object_get(region, keys[k]));
            lk_put(m, "<td>");
            lk_put_count(m, value > 0 ? (uint64_t)value : 0);
            lk_put(m, "</td>");
        }
        lk_put(m, "</tr>\n");
    }
    lk_put(m, "</table></details>\n");
}

// As wide as the page, or as half of it: what is written there stays of one size.
static void put_wide_memory(lk_markup *m, const lk_report_run *r) {
    put_memory(m, r, LK_PLAN_WIDTH);
}
static void put_half_memory(lk_markup *m, const lk_report_run *r) {
    put_memory(m, r, LK_PLAN_WIDTH * 2 / 3);
}

// --- again ---------------------------------------------------------------------------------------

static void put_reproduction(lk_markup *m, const lk_report_run *r) {
    char config[LK_PATH_BYTES], steps[32];
    lk_format(config, sizeof config, "%s/config.json", r->path);
    lk_put(m, "<h2>To reproduce it</h2>\n<pre>lockstep reproduce ");
    lk_put_shell(m, r->path);
    lk_put(m, "\n# or by hand\nlockstep train ");
    lk_put_shell(m, config);
    lk_put(m, " --run-dir again");
    if (r->saved && r->step > 0) {
        lk_format(steps, sizeof steps, "%llu", (unsigned long long)r->step);
        lk_put(m, " --set steps=%s", steps);
    }
    lk_put(m, "\nlockstep diff ");
    lk_put_shell(m, r->path);
    lk_put(m, " again</pre>\n");
    if (!r->saved || !*r->digest) return;
    lk_put(m,
           "<p>On any machine, with any number of replicas and workers, after step %llu the "
           "digest is <code>",
           (unsigned long long)r->step);
    lk_put_text(m, r->digest);
    lk_put(m, "</code>.</p>\n");
}

static void put_configuration(lk_markup *m, const lk_report_run *r) {
    lk_put(m, "<h2>Configuration</h2>\n");
    char *text = r->config ? json_dumps(r->config, JSON_INDENT(2) | DIGITS) : NULL;
    if (text) {
        lk_put(m, "<pre>");
        lk_put_text(m, text);
        lk_put(m, "</pre>\n");
    } else {
        lk_put(m, "<p class=\"note\">config.json is missing or damaged.</p>\n");
    }
    free(text);
}

// --- two runs ------------------------------------------------------------------------------------

static void put_value(lk_markup *m, const json_t *value) {
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | DIGITS) : NULL;
    lk_put(m, "<td><code>");
    lk_put_text(m, text ? text : "-");
    lk_put(m, "</code></td>");
    free(text);
}

// The keys at the top whose values differ; objects by their keys, once.
static uint32_t put_differences(lk_markup *m, const char *prefix, const json_t *a,
                                const json_t *b) {
    uint32_t count = 0;
    json_t *both = json_object();
    const char *key;
    json_t *ignored;
    json_object_update(both, (json_t *)(uintptr_t)a);
    json_object_update(both, (json_t *)(uintptr_t)b);
    json_object_foreach(both, key, ignored) {
        const json_t *x = json_object_get(a, key), *y = json_object_get(b, key);
        if (x && y && json_equal(x, y)) continue;
        if (!*prefix && json_is_object(x) && json_is_object(y)) {
            count += put_differences(m, key, x, y);
            continue;
        }
        lk_put(m, "<tr><th>");
        lk_put_text(m, prefix);
        lk_put(m, "%s", *prefix ? "." : "");
        lk_put_text(m, key);
        lk_put(m, "</th>");
        put_value(m, x);
        put_value(m, y);
        lk_put(m, "</tr>\n");
        count++;
    }
    json_decref(both);
    return count;
}

static void put_comparison(lk_markup *m, const lk_report_run *runs) {
    lk_put(m,
           "<section id=\"differences\"><h2>What differs in the configuration</h2>\n"
           "<div class=\"scroll\"><table class=\"facts\"><tr><th></th><th>A</th><th>B</th></tr>\n");
    const uint32_t count = put_differences(m, "", runs[0].config, runs[1].config);
    lk_put(m, "</table></div>\n");
    if (count == 0) lk_put(m, "<p>Nothing.</p>\n");
    const bool same = strcmp(runs[0].identity, runs[1].identity) == 0;
    const bool equal = *runs[0].digest && strcmp(runs[0].digest, runs[1].digest) == 0;
    lk_put(m,
           "<p>The run identities are %s; the digests of the newest checkpoints are %s.</p>"
           "</section>\n",
           same ? "equal" : "different", equal ? "equal" : "different");
}

// --- the page ------------------------------------------------------------------------------------

// A section of each run, beside each other.
static void put_section(lk_markup *m, const char *id, const lk_report_run *runs, uint32_t count,
                        void (*put)(lk_markup *m, const lk_report_run *r)) {
    lk_put(m, "<section id=\"%s\" class=\"runs\">\n", id);
    for (uint32_t i = 0; i < count; i++) {
        lk_put(m, "<div>\n");
        put(m, &runs[i]);
        lk_put(m, "</div>\n");
    }
    lk_put(m, "</section>\n");
}

static void put_title(lk_markup *m, const lk_report_run *r) {
    lk_put(m, "<h1>");
    put_name(m, r);
    lk_put(m, "</h1>\n");
    put_facts(m, r);
}

void lk_report_page(lk_markup *m, const lk_report_run *runs, uint32_t count) {
    lk_put(m, "%s<title>", head);
    for (uint32_t i = 0; i < count; i++) {
        lk_put(m, "%s", i ? " and " : "");
        put_name(m, &runs[i]);
    }
    lk_put(m, "</title>\n%s<body%s>\n", style, count == 2 ? " class=\"two\"" : "");
    put_section(m, "facts", runs, count, put_title);
    if (count == 2) put_comparison(m, runs);
    put_curves(m, runs, count);
    put_section(m, "predictions", runs, count, put_predictions);
    put_section(m, "time", runs, count, put_time);
    put_section(m, "memory", runs, count, count == 2 ? put_half_memory : put_wide_memory);
    put_section(m, "again", runs, count, put_reproduction);
    put_section(m, "configuration", runs, count, put_configuration);
    lk_put(m, "</body>\n</html>\n");
}
