// drawing.c - the pictures of markup.h: curves, and a plan to scale.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "apps/cli/markup.h"

// --- curves --------------------------------------------------------------------------------------

enum { WIDTH = 520, HEIGHT = 260, LEFT = 56, RIGHT = 12, TOP = 28, BOTTOM = 40, TICKS = 5 };
enum { LEGEND_ROW = 16 };

static const char *const colours[] = {"#4e79a7", "#e15759", "#59a14f", "#f28e2b", "#b07aa1",
                                      "#76b7b2", "#9c755f", "#edc948", "#bab0ac", "#8cd17d"};

static const char *colour_of(const lk_curve *c) { return colours[c->number % LK_COUNT(colours)]; }

// An axis: a range of values that covers all, and a step between its marks that is 1, 2 or 5 times
// a power of ten.
typedef struct axis {
    double first, last, step;
} axis;

static axis make_axis(double least, double most) {
    if (!(most > least)) most = least + (least != 0 ? fabs(least) : 1);
    const double rough = (most - least) / TICKS, ten = pow(10, floor(log10(rough)));
    const double times = rough / ten, step = ten * (times <= 1   ? 1
                                                    : times <= 2 ? 2
                                                    : times <= 5 ? 5
                                                                 : 10);
    return (axis){floor(least / step) * step, ceil(most / step) * step, step};
}

static double place_x(const axis *a, double value) {
    return LEFT + (WIDTH - LEFT - RIGHT) * (value - a->first) / (a->last - a->first);
}

static double place_y(const axis *a, double value) {
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - a->first) / (a->last - a->first);
}

static void draw_grid(lk_markup *m, const axis *x, const axis *y) {
    const uint32_t rows = (uint32_t)((y->last - y->first) / y->step + 0.5);
    const uint32_t columns = (uint32_t)((x->last - x->first) / x->step + 0.5);
    for (uint32_t i = 0; i <= rows; i++) {
        const double value = y->first + i * y->step, at = place_y(y, value);
        lk_put(m, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>", LEFT,
               WIDTH - RIGHT, at, at);
        lk_put(m, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.6g</text>\n", LEFT - 6, at + 4,
               fabs(value) < 1e-9 * y->step ? 0 : value);
    }
    for (uint32_t i = 0; i <= columns; i++) {
        const double value = x->first + i * x->step;
        lk_put(m, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.7g</text>\n",
               place_x(x, value), HEIGHT - BOTTOM + 16, value);
    }
}

static void draw_curve(lk_markup *m, const lk_curve *c, const axis *x, const axis *y) {
    char dashes[48] = "";
    const unsigned turn = c->number / (unsigned)LK_COUNT(colours);
    if (turn > 0) lk_format(dashes, sizeof dashes, " stroke-dasharray=\"%u 2\"", 4 * turn);
    lk_put(m, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\"%s points=\"",
           colour_of(c), dashes);
    for (size_t i = 0; i < c->count; i++) {
        lk_put(m, "%.1f,%.1f ", place_x(x, c->x[i]), place_y(y, c->y[i]));
    }
    lk_put(m, "\"/>\n");
    for (size_t i = 0; i < c->count && (c->dots || c->count == 1); i++) {
        lk_put(m,
               "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\" fill=\"%s\"><title>%.9g</title>"
               "</circle>\n",
               place_x(x, c->x[i]), place_y(y, c->y[i]), colour_of(c), c->y[i]);
    }
}

// The title and the name of each curve, in rows upwards from the first, which lies above the axes.
// Returns the number of rows; draws none where `m` is NULL.
static uint32_t draw_names(lk_markup *m, const char *title, const lk_curve *curves, uint32_t count,
                           uint32_t rows) {
    double x = LEFT + 10.0 + 6.5 * (double)strlen(title);
    uint32_t row = 0;
    if (m) {
        lk_put(m, "<text x=\"4\" y=\"%d\" font-weight=\"bold\">%s</text>\n",
               14 - (int)((rows - 1) * LEGEND_ROW), title);
    }
    for (uint32_t k = 0; k < count; k++) {
        const double width = 28.0 + 6.5 * (double)strlen(curves[k].name);
        if (curves[k].count == 0) continue;
        if (x + width > WIDTH && x > LEFT) {
            x = LEFT;
            row++;
        }
        if (m) {
            const int y = 14 - (int)((rows - 1 - row) * LEGEND_ROW);
            lk_put(m,
                   "<rect x=\"%.0f\" y=\"%d\" width=\"10\" height=\"8\" fill=\"%s\"/>"
                   "<text x=\"%.0f\" y=\"%d\">",
                   x, y - 8, colour_of(&curves[k]), x + 14, y);
            lk_put_text(m, curves[k].name);
            lk_put(m, "</text>\n");
        }
        x += width;
    }
    return row + 1;
}

void lk_draw_curves(lk_markup *m, const char *title, const char *x_name, const lk_curve *curves,
                    uint32_t count) {
    double x[2] = {INFINITY, -INFINITY}, y[2] = {INFINITY, -INFINITY};
    for (uint32_t k = 0; k < count; k++) {
        for (size_t i = 0; i < curves[k].count; i++) {
            x[0] = fmin(x[0], curves[k].x[i]);
            x[1] = fmax(x[1], curves[k].x[i]);
            y[0] = fmin(y[0], curves[k].y[i]);
            y[1] = fmax(y[1], curves[k].y[i]);
        }
    }
    if (!isfinite(x[0]) || !isfinite(y[0])) return;
    const axis across = make_axis(fmin(x[0], 0), x[1]), up = make_axis(y[0], y[1]);
    const uint32_t rows = draw_names(NULL, title, curves, count, 1);
    const int above = (int)((rows - 1) * LEGEND_ROW);
    lk_put(m, "<svg class=\"curves\" viewBox=\"0 %d %d %d\" role=\"img\">\n<title>%s</title>\n",
           -above, WIDTH, HEIGHT + above, title);
    draw_grid(m, &across, &up);
    (void)draw_names(m, title, curves, count, rows);
    for (uint32_t k = 0; k < count; k++) {
        if (curves[k].count) draw_curve(m, &curves[k], &across, &up);
    }
    lk_put(m, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>\n</svg>\n",
           (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, x_name);
}

// --- a plan --------------------------------------------------------------------------------------

enum {
    PLAN_LEFT = 90,
    BAR = 34,
    REGION_TOP = 136,
    REGION_HEIGHT = 420,
    LEGEND_TOP = REGION_TOP + REGION_HEIGHT + 48
};

static const char *const shades[] = {"#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2",
                                     "#edc948", "#b07aa1", "#9c755f", "#bab0ac", "#8cd17d"};

static const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static uint64_t number_of(const json_t *object, const char *key) {
    const json_int_t value = json_integer_value(json_object_get(object, key));
    return value > 0 ? (uint64_t)value : 0;
}

// The same colour for the same kind of tensor, in the order in which the kinds come.
static const char *shade_of(const json_t *tensors, const char *kind) {
    size_t i;
    uint32_t known = 0;
    const char *names[LK_COUNT(shades)];
    json_t *tensor;
    json_array_foreach(tensors, i, tensor) {
        const char *other = text_of(tensor, "class");
        uint32_t k = 0;
        while (k < known && strcmp(names[k], other) != 0) k++;
        if (k == known && known < LK_COUNT(shades)) names[known++] = other;
        if (strcmp(other, kind) == 0) return shades[LK_MIN(k, (uint32_t)LK_COUNT(shades) - 1)];
    }
    return shades[0];
}

static void put_title(lk_markup *m, const char *name, uint64_t bytes, uint64_t offset) {
    lk_put(m, "<title>");
    lk_put_text(m, name);
    lk_put(m, ": ");
    lk_put_count(m, bytes);
    lk_put(m, " bytes at ");
    lk_put_count(m, offset);
    lk_put(m, "</title>");
}

// The arena as one bar.
static void draw_ledger(lk_markup *m, const json_t *plan, uint32_t all_width) {
    const json_t *regions = json_object_get(plan, "regions");
    const double all = (double)LK_MAX(number_of(plan, "arena_bytes"), 1u);
    const double width = all_width - PLAN_LEFT;
    size_t i;
    json_t *region;
    lk_put(m, "<text x=\"0\" y=\"14\" font-weight=\"bold\">arena, ");
    lk_put_count(m, number_of(plan, "arena_bytes"));
    lk_put(m, " bytes</text>\n");
    double named = 0;
    json_array_foreach(regions, i, region) {
        const uint64_t bytes = number_of(region, "bytes") * number_of(region, "count");
        const double x = PLAN_LEFT + width * (double)number_of(region, "offset") / all;
        const double w = width * (double)bytes / all;
        const char *name = text_of(region, "name"), *shade = shades[i % LK_COUNT(shades)];
        if (bytes == 0) continue;
        lk_put(m, "<rect x=\"%.2f\" y=\"24\" width=\"%.2f\" height=\"%d\" fill=\"%s\">", x, w, BAR,
               shade);
        put_title(m, name, bytes, number_of(region, "offset"));
        lk_put(m, "</rect>\n");
        if (w < 8.0 * (double)strlen(name) || x < named) continue;
        lk_put(m, "<text x=\"%.1f\" y=\"%d\">", x + 2, 24 + BAR + 14);
        lk_put_text(m, name);
        lk_put(m, "</text>\n");
        named = x + 8.0 * (double)strlen(name);
    }
}

static void draw_tensor(lk_markup *m, const json_t *plan, const json_t *tensor, uint32_t width,
                        uint64_t ops, double bytes_all) {
    const json_t *last = json_object_get(tensor, "last_op");
    const uint64_t first = LK_MIN(number_of(tensor, "first_op"), ops);
    const uint64_t end =
        json_is_integer(last) ? LK_MIN(number_of(tensor, "last_op") + 1, ops) : ops;
    const double across = (double)(width - PLAN_LEFT) / (double)ops;
    const double x = PLAN_LEFT + across * (double)first;
    const double w = across * (double)(end > first ? end - first : 1);
    const double y = REGION_TOP + REGION_HEIGHT * (double)number_of(tensor, "offset") / bytes_all;
    const double h = REGION_HEIGHT * (double)number_of(tensor, "bytes") / bytes_all;
    const char *name = text_of(tensor, "name");
    lk_put(m,
           "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\" "
           "fill-opacity=\"0.8\" stroke=\"#fff\" stroke-width=\"0.5\">",
           x, y, w, h, shade_of(json_object_get(plan, "tensors"), text_of(tensor, "class")));
    put_title(m, name, number_of(tensor, "bytes"), number_of(tensor, "offset"));
    lk_put(m, "</rect>\n");
    if (h < 11 || w < 6.5 * (double)strlen(name)) return;
    lk_put(m, "<text x=\"%.1f\" y=\"%.1f\" fill=\"#111\">", x + 3, y + h / 2 + 4);
    lk_put_text(m, name);
    lk_put(m, "</text>\n");
}

// Where phases begin, below the region.
static void draw_phases(lk_markup *m, const json_t *ops, uint32_t width, uint64_t count) {
    const char *before = "";
    size_t i;
    json_t *op;
    json_array_foreach(ops, i, op) {
        const char *phase = text_of(op, "phase");
        const double x = PLAN_LEFT + (double)(width - PLAN_LEFT) * (double)i / (double)count;
        if (strcmp(phase, before) != 0) {
            lk_put(m, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke=\"#888\"/>", x, x,
                   REGION_TOP, REGION_TOP + REGION_HEIGHT + 6);
            lk_put(m, "<text x=\"%.1f\" y=\"%d\">", x + 2,
                   REGION_TOP + REGION_HEIGHT + (i % 2 ? 28 : 16));
            lk_put_text(m, phase);
            lk_put(m, "</text>\n");
        }
        before = phase;
    }
}

static void draw_region(lk_markup *m, const json_t *plan, uint32_t width, uint64_t ops) {
    const double all = (double)LK_MAX(number_of(plan, "replica_region_bytes"), 1u);
    const json_t *tensors = json_object_get(plan, "tensors");
    size_t i;
    json_t *tensor;
    lk_put(m, "<text x=\"0\" y=\"%d\" font-weight=\"bold\">a replica's region, ", REGION_TOP - 28);
    lk_put_count(m, number_of(plan, "replica_region_bytes"));
    lk_put(
        m,
        " bytes</text>\n<text x=\"0\" y=\"%d\" fill=\"#666\">each tensor at its place, from the op "
        "that writes it to the last that reads it</text>\n",
        REGION_TOP - 12);
    lk_put(m, "<rect x=\"%d\" y=\"%d\" width=\"%u\" height=\"%d\" fill=\"#f4f4f4\"/>\n", PLAN_LEFT,
           REGION_TOP, width - PLAN_LEFT, REGION_HEIGHT);
    for (uint32_t k = 0; k <= 4; k++) {
        lk_put(m, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">", PLAN_LEFT - 6,
               REGION_TOP + REGION_HEIGHT * (int)k / 4 + 4);
        lk_put_count(m, (uint64_t)(all * k / 4));
        lk_put(m, "</text>\n");
    }
    json_array_foreach(tensors, i, tensor) {
        if (strcmp(text_of(tensor, "region"), "replica") == 0) {
            draw_tensor(m, plan, tensor, width, ops, all);
        }
    }
    draw_phases(m, json_object_get(plan, "ops"), width, ops);
}

// Which colour is which kind of tensor.
static void draw_legend(lk_markup *m, const json_t *tensors) {
    const char *seen[LK_COUNT(shades)];
    uint32_t known = 0;
    double x = PLAN_LEFT;
    size_t i;
    json_t *tensor;
    json_array_foreach(tensors, i, tensor) {
        const char *kind = text_of(tensor, "class");
        uint32_t k = 0;
        if (strcmp(text_of(tensor, "region"), "replica") != 0) continue;
        while (k < known && strcmp(seen[k], kind) != 0) k++;
        if (k < known || known == LK_COUNT(shades)) continue;
        seen[known++] = kind;
        lk_put(m,
               "<rect x=\"%.0f\" y=\"%d\" width=\"10\" height=\"8\" fill=\"%s\"/><text x=\"%.0f\""
               " y=\"%d\">",
               x, LEGEND_TOP - 8, shade_of(tensors, kind), x + 14, LEGEND_TOP);
        lk_put_text(m, kind);
        lk_put(m, "</text>\n");
        x += 34.0 + 6.5 * (double)strlen(kind);
    }
}

bool lk_draw_plan(lk_markup *m, const json_t *plan, uint32_t width, bool alone) {
    const json_t *tensors = json_object_get(plan, "tensors");
    uint64_t ops = json_array_size(json_object_get(plan, "ops"));
    size_t i;
    json_t *tensor;
    if (!json_is_array(tensors) || !json_is_array(json_object_get(plan, "regions"))) return false;
    // Without a list of ops, as plans of before have it, the last one that a tensor names.
    json_array_foreach(tensors, i, tensor) {
        ops = LK_MAX(ops, LK_MIN(number_of(tensor, "last_op"), (uint64_t)1 << 20) + 1);
    }
    lk_put(m,
           "<svg class=\"plan\" viewBox=\"0 0 %u %d\" role=\"img\"%s>\n<title>The plan, to scale"
           "</title>\n",
           width, LEGEND_TOP + 8,
           alone ? " xmlns=\"http://www.w3.org/2000/svg\" font-family=\"sans-serif\" "
                   "font-size=\"11\""
                 : "");
    draw_ledger(m, plan, width);
    draw_region(m, plan, width, ops);
    draw_legend(m, tensors);
    lk_put(m, "</svg>\n");
    return true;
}
