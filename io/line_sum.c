// line_sum.c - see line_sum.h. A line's last bytes wait in a small window until it is known whether
// they are the checksum.
#include "io/line_sum.h"

#include <errno.h>
#include <string.h>
#include <zlib.h>

static const char HEAD[] = ",\"" LK_LINE_SUM_KEY "\":\"";
static const char TAIL[] = "\"}";
enum { HEAD_BYTES = sizeof HEAD - 1, DIGITS = 8, FIELD_BYTES = HEAD_BYTES + DIGITS + 2 };
_Static_assert(FIELD_BYTES == LK_LINE_SUM_BYTES + 1, "the field, and the line's own brace");

static uint32_t sum_of(uint32_t before, const char *bytes, size_t count) {
    return (uint32_t)crc32_z(before, (const unsigned char *)bytes, count);
}

size_t lk_line_sum_put(char *line, size_t bytes, size_t capacity) {
    lk_assert(bytes > 1 && line[bytes - 1] == '}' && bytes + LK_LINE_SUM_BYTES < capacity);
    const uint32_t sum = sum_of(0, line, --bytes);
    return bytes + lk_format(line + bytes, capacity - bytes, "%s%08x%s", HEAD, sum, TAIL);
}

// --- reading -------------------------------------------------------------------------------------

void lk_line_sums_start(lk_line_sums *sums) { *sums = (lk_line_sums){.line = 1}; }

static bool read_digits(const char *text, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < DIGITS; i++) {
        const char c = text[i];
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return false;
        *out = *out << 4 | (uint32_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return true;
}

// {"step":N and a comma, or the end; and a brace at the end.
static bool looks_like_ours(const lk_line_sums *s) {
    static const char key[] = "{\"step\":";
    size_t at = sizeof key - 1;
    if (s->head_bytes <= at || memcmp(s->head, key, at) != 0) return false;
    while (at < s->head_bytes && s->head[at] >= '0' && s->head[at] <= '9') at++;
    return at > sizeof key - 1 && at < s->head_bytes &&
           (s->head[at] == ',' || s->head[at] == '}') && s->tail[s->tail_bytes - 1] == '}';
}

void lk_line_sums_end(lk_line_sums *s) {
    s->has = s->tail_bytes == FIELD_BYTES && memcmp(s->tail, HEAD, HEAD_BYTES) == 0 &&
             memcmp(s->tail + HEAD_BYTES + DIGITS, TAIL, sizeof TAIL - 1) == 0 &&
             read_digits(s->tail + HEAD_BYTES, &s->found);
    s->wanted = s->has ? s->crc : sum_of(s->crc, s->tail, s->tail_bytes ? s->tail_bytes - 1 : 0);
    s->wrong = s->has ? s->found != s->wanted : s->begun;
    s->foreign = !s->has && !looks_like_ours(s);
    s->begun |= s->has;
    s->without += !s->has;
    s->lines++;
    s->line++;
    s->crc = 0;
    s->head_bytes = s->tail_bytes = 0;
}

// The oldest bytes leave the window: first those in it, then those of the piece.
void lk_line_sums_feed(lk_line_sums *s, const char *bytes, size_t count) {
    const size_t total = s->tail_bytes + count;
    const size_t leaving = total > FIELD_BYTES ? total - FIELD_BYTES : 0;
    const size_t old = LK_MIN(leaving, (size_t)s->tail_bytes), fresh = leaving - old;
    const size_t first = LK_MIN(count, sizeof s->head - s->head_bytes);
    memcpy(s->head + s->head_bytes, bytes, first);
    s->head_bytes += (uint32_t)first;
    s->crc = sum_of(s->crc, s->tail, old);
    s->crc = sum_of(s->crc, bytes, fresh);
    s->tail_bytes -= (uint32_t)old;
    memmove(s->tail, s->tail + old, s->tail_bytes);
    memcpy(s->tail + s->tail_bytes, bytes + fresh, count - fresh);
    s->tail_bytes += (uint32_t)(count - fresh);
}

lk_status lk_line_sums_fail(const lk_line_sums *s, const char *path, lk_error *error) {
    const unsigned long long line = s->lines;
    if (!s->wrong && s->foreign) {
        return lk_fail(error, LK_BAD_DATA,
                       "%s: line %llu: found a line without \"" LK_LINE_SUM_KEY
                       "\" that is not {\"step\":N, ..}, wanted one of a run's log; restore the "
                       "file from a backup",
                       path, line);
    }
    if (!s->wrong) return LK_OK;
    if (!s->has) {
        return lk_fail(error, LK_BAD_DATA,
                       "%s: line %llu: found no \"" LK_LINE_SUM_KEY
                       "\" at its end, wanted one as "
                       "in the lines before it, %08x for its bytes; restore the file from a backup",
                       path, line, s->wanted);
    }
    return lk_fail(error, LK_BAD_DATA,
                   "%s: line %llu: found " LK_LINE_SUM_KEY
                   " %08x, wanted %08x, that of its bytes: "
                   "it was changed or damaged; restore the file from a backup",
                   path, line, s->found, s->wanted);
}

lk_status lk_line_sums_check(lk_line_sums *s, const char *path, const char *line, size_t bytes,
                             lk_error *error) {
    lk_line_sums_feed(s, line, bytes);
    lk_line_sums_end(s);
    return lk_line_sums_fail(s, path, error);
}

static lk_status check_file(const lk_file_ops *ops, int file, uint64_t bytes, const char *path,
                            lk_line_sums *s, lk_error *error) {
    char chunk[4096];
    for (uint64_t at = 0; at < bytes;) {
        size_t piece = (size_t)LK_MIN(bytes - at, (uint64_t)sizeof chunk);
        LK_CHECK(lk_file_read_all(ops, file, path, chunk, piece, at, error));
        const char *next = chunk, *end = chunk + piece, *newline;
        for (; (newline = memchr(next, '\n', (size_t)(end - next))); next = newline + 1) {
            LK_CHECK(lk_line_sums_check(s, path, next, (size_t)(newline - next), error));
        }
        lk_line_sums_feed(s, next, (size_t)(end - next));
        at += piece;
    }
    return LK_OK;
}

lk_status lk_line_sums_file(const lk_file_ops *ops, const char *path, lk_line_sums *s,
                            lk_error *error) {
    lk_error missing = {.status = LK_OK};
    uint64_t bytes;
    int file;
    lk_line_sums_start(s);
    lk_status status = lk_file_open_read(ops, path, &file, &bytes, &missing);
    if (status == LK_NO_INPUT) return LK_OK;
    if (status != LK_OK) return lk_fail(error, status, "%s", missing.text);
    status = check_file(ops, file, bytes, path, s, error);
    ops->close(ops->context, file);
    return status;
}
