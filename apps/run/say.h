// say.h - what a run says on the way, to whoever listens: it prints nothing by itself. Text without
// a newline, of at most LK_SAY_BYTES; never from inside of a step. No heap.
#ifndef LOCKSTEP_APPS_RUN_SAY_H
#define LOCKSTEP_APPS_RUN_SAY_H

#include "arena/base.h"

enum { LK_SAY_BYTES = 4096 };

typedef struct lk_say {
    void (*line)(void *context, const char *text);     // NULL: nobody listens
    void (*warning)(void *context, const char *text);  // something is not as it should be
    void *context;
} lk_say;

void lk_say_line(const lk_say *say, const char *format, ...) __attribute__((format(printf, 2, 3)));
void lk_say_warning(const lk_say *say, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
