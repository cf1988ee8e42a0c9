// markup.c - see markup.h.
#include "apps/cli/markup.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool make_room(lk_markup *m, size_t bytes) {
    if (m->failed) return false;
    if (m->capacity - m->used > bytes) return true;
    const size_t capacity = 2 * m->capacity + bytes + 4096;
    char *text = realloc(m->text, capacity);
    m->failed = text == NULL;
    if (m->failed) return false;
    m->text = text;
    m->capacity = capacity;
    return true;
}

static void put_bytes(lk_markup *m, const char *bytes, size_t count) {
    if (!make_room(m, count)) return;
    memcpy(m->text + m->used, bytes, count);
    m->used += count;
    m->text[m->used] = '\0';
}

void lk_put(lk_markup *m, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    const int n = vsnprintf(NULL, 0, format, args);
    lk_assert(n >= 0);
    if (make_room(m, (size_t)n)) {
        (void)vsnprintf(m->text + m->used, (size_t)n + 1, format, again);
        m->used += (size_t)n;
    }
    va_end(again);
    va_end(args);
}

// Bytes of the UTF-8 character that begins there, at least 1. *shown: it is one, and a page may
// have it.
static size_t character(const char *text, bool *shown) {
    const uint8_t *b = (const uint8_t *)text;
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    const size_t n = b[0] < 0x80       ? 1
                     : b[0] >> 5 == 6  ? 2
                     : b[0] >> 4 == 14 ? 3
                     : b[0] >> 3 == 30 ? 4
                                       : 0;
    uint32_t code = n <= 1 ? b[0] : b[0] & (0x7fu >> n);
    *shown = false;
    if (n == 0) return 1;
    for (size_t i = 1; i < n; i++) {
        if (b[i] >> 6 != 2) return 1;
        code = code << 6 | (b[i] & 0x3f);
    }
    if (code < least[n] || code > 0x10ffff || code >> 11 == 0x1b) return 1;
    const bool control =
        (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7f && code < 0xa0);
    const bool turns = (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
    const bool none = (code & 0xfffe) == 0xfffe || (code >= 0xfdd0 && code <= 0xfdef);
    *shown = !control && !turns && !none;
    return n;
}

void lk_put_text(lk_markup *m, const char *text) {
    bool shown;
    for (size_t n; *text; text += n) {
        n = character(text, &shown);
        switch (*text) {
        case '<': lk_put(m, "&lt;"); break;
        case '>': lk_put(m, "&gt;"); break;
        case '&': lk_put(m, "&amp;"); break;
        case '"': lk_put(m, "&quot;"); break;
        case '\'': lk_put(m, "&#39;"); break;
        default: put_bytes(m, shown ? text : "\xef\xbf\xbd", shown ? n : 3);
        }
    }
}

void lk_put_base64(lk_markup *m, const uint8_t *bytes, size_t count) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < count; i += 3) {
        const size_t left = LK_MIN(count - i, (size_t)3);
        const uint32_t b = (uint32_t)bytes[i] << 16 | (left > 1 ? (uint32_t)bytes[i + 1] << 8 : 0) |
                           (left > 2 ? bytes[i + 2] : 0);
        const char four[4] = {digits[b >> 18], digits[b >> 12 & 63],
                              left > 1 ? digits[b >> 6 & 63] : '=',
                              left > 2 ? digits[b & 63] : '='};
        put_bytes(m, four, sizeof four);
    }
}

void lk_put_shell(lk_markup *m, const char *word) {
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./=";
    if (*word && *word != '-' && word[strspn(word, plain)] == '\0') {
        lk_put_text(m, word);
        return;
    }
    lk_put(m, "&#39;");
    for (const char *end; *word; word = *end ? end + 1 : end) {
        char part[256];
        end = word + strcspn(word, "'");
        for (const char *at = word; at < end;) {  // characters stay whole
            size_t used = 0;
            for (bool shown; at < end && used < sizeof part - 8;) {
                const size_t n = character(at, &shown);
                memcpy(part + used, at, n);
                used += n;
                at += n;
            }
            part[used] = '\0';
            lk_put_text(m, part);
        }
        if (*end) lk_put(m, "&#39;\\&#39;&#39;");
    }
    lk_put(m, "&#39;");
}

void lk_put_count(lk_markup *m, uint64_t number) {
    char digits[32];
    const int n = snprintf(digits, sizeof digits, "%llu", (unsigned long long)number);
    for (int i = 0; i < n; i++) lk_put(m, "%s%c", i && (n - i) % 3 == 0 ? "," : "", digits[i]);
}

lk_status lk_markup_check(const lk_markup *m, lk_error *error) {
    return m->failed ? lk_fail(error, LK_UNAVAILABLE, "no memory for the page") : LK_OK;
}
