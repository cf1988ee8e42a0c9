// say.c - the lines of say.h, composed on the stack.
#include "apps/run/say.h"

#include <stdarg.h>
#include <stdio.h>

void lk_say_line(const lk_say *say, const char *format, ...) {
    char text[LK_SAY_BYTES];
    va_list args;
    if (!say->line) return;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    say->line(say->context, text);
}

void lk_say_warning(const lk_say *say, const char *format, ...) {
    char text[LK_SAY_BYTES];
    va_list args;
    if (!say->warning) return;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    say->warning(say->context, text);
}
