// base.c - the panic, the small formatter and the errors of base.h. Freestanding.
#include "arena/base.h"

#include <stdarg.h>

const char *lk_status_text(lk_status status) {
    switch (status) {
#define LK_STATUS_CASE(name, code, text) \
    case name: return text;
        LK_STATUS_LIST(LK_STATUS_CASE)
#undef LK_STATUS_CASE
    }
    return "unknown";
}

static lk_panic_handler panic_handler;

void lk_set_panic_handler(lk_panic_handler handler) { panic_handler = handler; }

_Noreturn void lk_panic(const char *file, int line, const char *what) {
    if (panic_handler) panic_handler(file, line, what);
    __builtin_trap();
}

// --- formatter ---------------------------------------------------------------------------------

typedef struct sink {
    char *out;
    size_t bytes, length;
    bool ends_only;  // strings longer than ENDS_BYTES lose their middle
} sink;

enum { ENDS_BYTES = 160 };

static void put(sink *s, char c) {
    if (s->length + 1 < s->bytes) s->out[s->length] = c;
    s->length++;
}

static void put_number(sink *s, unsigned long long value, unsigned base, bool upper, bool negative,
                       unsigned width, bool zeros) {
    char digits[24];
    unsigned count = 0;
    do {
        unsigned d = (unsigned)(value % base);
        digits[count++] = (char)(d < 10 ? '0' + d : (upper ? 'A' : 'a') + d - 10);
        value /= base;
    } while (value);
    unsigned used = count + negative;
    if (negative && zeros) put(s, '-');
    for (; used < width; used++) put(s, zeros ? '0' : ' ');
    if (negative && !zeros) put(s, '-');
    while (count) put(s, digits[--count]);
}

static void put_text(sink *s, const char *text, long limit) {
    long length = 0, at = 0;
    if (!text) text = "(null)";
    while ((limit < 0 || length < limit) && text[length]) length++;
    if (s->ends_only && length > ENDS_BYTES) {
        while (at < ENDS_BYTES / 2) put(s, text[at++]);
        for (unsigned dots = 0; dots < 3; dots++) put(s, '.');
        at = length - ENDS_BYTES / 2;
    }
    while (at < length) put(s, text[at++]);
}

// Reads one integer argument of the length that 'l', 'll' or 'z' before the letter says.
#define NEXT_UNSIGNED(args, longs, size)                              \
    ((size)         ? (unsigned long long)va_arg(args, size_t)        \
     : (longs) == 0 ? (unsigned long long)va_arg(args, unsigned)      \
     : (longs) == 1 ? (unsigned long long)va_arg(args, unsigned long) \
                    : va_arg(args, unsigned long long))
#define NEXT_SIGNED(args, longs)                    \
    ((longs) == 0   ? (long long)va_arg(args, int)  \
     : (longs) == 1 ? (long long)va_arg(args, long) \
                    : va_arg(args, long long))

// Always terminates.
static void format_into(sink *s, const char *format, va_list args) {
    for (const char *f = format; *f; f++) {
        if (*f != '%') {
            put(s, *f);
            continue;
        }
        f++;
        bool zeros = *f == '0', size = false;
        unsigned width = 0, longs = 0;
        long limit = -1;
        while (*f >= '0' && *f <= '9') width = width * 10 + (unsigned)(*f++ - '0');
        if (f[0] == '.' && f[1] == '*') {
            limit = va_arg(args, int);
            f += 2;
        }
        for (; *f == 'l' || *f == 'z'; f++) {
            longs += *f == 'l';
            size |= *f == 'z';
        }
        if (*f == 's') {
            put_text(s, va_arg(args, const char *), limit);
        } else if (*f == 'c') {
            put(s, (char)va_arg(args, int));
        } else if (*f == 'd' || *f == 'i') {
            long long v = NEXT_SIGNED(args, longs);
            unsigned long long magnitude =
                v < 0 ? 0ull - (unsigned long long)v : (unsigned long long)v;
            put_number(s, magnitude, 10, false, v < 0, width, zeros);
        } else if (*f == 'u' || *f == 'x' || *f == 'X') {
            unsigned long long v = NEXT_UNSIGNED(args, longs, size);
            put_number(s, v, *f == 'u' ? 10 : 16, *f == 'X', false, width, zeros);
        } else if (*f) {
            put(s, *f);  // "%%", and whatever the compiler's own format check let through
        } else {
            break;
        }
    }
    if (s->bytes) s->out[LK_MIN(s->length, s->bytes - 1)] = '\0';
}

size_t lk_vformat(char *out, size_t bytes, const char *format, va_list args) {
    sink s = {.out = out, .bytes = bytes};
    format_into(&s, format, args);
    return s.length;
}

size_t lk_format(char *out, size_t bytes, const char *format, ...) {
    va_list args;
    va_start(args, format);
    size_t length = lk_vformat(out, bytes, format, args);
    va_end(args);
    return length;
}

// --- errors ------------------------------------------------------------------------------------

lk_status lk_fail(lk_error *error, lk_status status, const char *format, ...) {
    if (error->status != LK_OK) return error->status;
    sink s = {.out = error->text, .bytes = sizeof error->text};
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    format_into(&s, format, args);
    if (s.length >= s.bytes) {
        s.length = 0;
        s.ends_only = true;
        format_into(&s, format, again);
    }
    va_end(again);
    va_end(args);
    for (unsigned char *c = (unsigned char *)error->text; *c; c++) {
        // In UTF-8, U+0080 to U+009f are controls, too.
        if (c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0) c[0] = c[1] = '?';
        if (*c < 0x20 || *c == 0x7f) *c = '?';
    }
    error->status = status;
    return status;
}
