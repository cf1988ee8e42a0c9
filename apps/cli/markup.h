// markup.h - HTML and SVG as text that grows: nothing that comes from a file or a name is put into
// it unescaped. Heap; for commands that write a page.
#ifndef LOCKSTEP_APPS_CLI_MARKUP_H
#define LOCKSTEP_APPS_CLI_MARKUP_H

#include <jansson.h>

#include "arena/base.h"

typedef struct lk_markup {
    char *text;  // free() it
    size_t used, capacity;
    bool failed;  // there was no memory: lk_markup_check
} lk_markup;

// Our own words; strings that others chose go by lk_put_text.
void lk_put(lk_markup *m, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Any bytes, as text that shows them: < > & " ' as entities, what is no UTF-8 or no character of a
// page as U+FFFD.
void lk_put_text(lk_markup *m, const char *text);
// Bytes as base64.
void lk_put_base64(lk_markup *m, const uint8_t *bytes, size_t count);
// Letters, digits and _ - . / stay as they are; anything else in single quotes of the shell.
void lk_put_shell(lk_markup *m, const char *word);
// 12345678 as "12,345,678".
void lk_put_count(lk_markup *m, uint64_t number);

lk_status lk_markup_check(const lk_markup *m, lk_error *error);

// --- pictures (drawing.c) ------------------------------------------------------------------------

// One line of a diagram.
typedef struct lk_curve {
    const char *name;
    uint32_t number;  // from 0: which colour it has
    bool dots;        // a mark at each point
    size_t count;
    const double *x, *y;
} lk_curve;

// A diagram of curves over one pair of axes, with their names above it.
void lk_draw_curves(lk_markup *m, const char *title, const char *x_name, const lk_curve *curves,
                    uint32_t count);

// The arena and the replica's region of a plan.json, to scale: bytes downwards, ops from left to
// right. As an <svg> of that width, in letters of 11, alone a whole file. False: it is no plan.
enum { LK_PLAN_WIDTH = 1000 };
bool lk_draw_plan(lk_markup *m, const json_t *plan, uint32_t width, bool alone);

#endif
