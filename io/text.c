// text.c - the line writer, the escaping and the nearest word of text.h. Host only, no heap.
#define _DEFAULT_SOURCE
#include "io/text.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

// --- lines -------------------------------------------------------------------------------------

enum { LEFT_OUT_BYTES = 96 };  // of the line that counts those left out

static const char erase_line[] = "\r\033[K";
enum { ERASE_BYTES = sizeof erase_line - 1, COLUMNS_DEFAULT = 80 };

static bool is_journal(int fd) {
    const char *text = getenv("JOURNAL_STREAM");  // "device:inode"
    struct stat about;
    char *end;
    if (!text || fstat(fd, &about) != 0) return false;
    const unsigned long long device = strtoull(text, &end, 10);
    return *end == ':' && about.st_dev == device && about.st_ino == strtoull(end + 1, &end, 10);
}

const char *lk_text_severity(int fd, lk_severity severity) {
    if (!is_journal(fd)) return "";
    return severity == LK_SEVERITY_ERROR ? "<3>" : "<4>";
}

void lk_text_open(lk_text_out *out, int fd) {
    const char *term = getenv("TERM");
    memset(out, 0, sizeof *out);
    out->fd = fd;
    out->journal = is_journal(fd);
    out->terminal = isatty(fd) && term && strcmp(term, "dumb") != 0;
}

// The bytes that the reader takes now. A pipe or a terminal that can be written to takes PIPE_BUF
// bytes without waiting.
static size_t write_some(lk_text_out *out, const char *bytes, size_t count) {
    enum { AT_ONCE = 4096 };
    size_t done = 0;
    while (done < count && !out->write_errno) {
        struct pollfd ready = {.fd = out->fd, .events = POLLOUT};
        if (poll(&ready, 1, 0) <= 0) break;
        ssize_t written = write(out->fd, bytes + done, LK_MIN(count - done, (size_t)AT_ONCE));
        if (written >= 0) {
            done += (size_t)written;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            break;
        } else if (errno != EINTR) {
            out->write_errno = errno;
        }
    }
    return done;
}

// Where the first held line begins of which nothing is written yet.
static size_t first_whole(const lk_text_out *out) {
    const char *end = out->held_begun ? memchr(out->held, '\n', out->held_used) : NULL;
    return end ? (size_t)(end - out->held) + 1 : out->held_begun ? out->held_used : 0;
}

static void leave_out_oldest(lk_text_out *out) {
    size_t begin = first_whole(out);
    const char *end = memchr(out->held + begin, '\n', out->held_used - begin);
    size_t after = end ? (size_t)(end - out->held) + 1 : out->held_used;
    lk_assert(after > begin);
    memmove(out->held + begin, out->held + after, out->held_used - after);
    out->held_used -= after - begin;
    out->left_out++;
}

// In the place of the lines that are left out, a line that counts them.
static void say_left_out(lk_text_out *out) {
    char line[LEFT_OUT_BYTES];
    if (!out->left_out) return;
    size_t at = first_whole(out);
    size_t length =
        lk_format(line, sizeof line,
                  "... %u lines are left out: nobody took them from here in time\n", out->left_out);
    memmove(out->held + at + length, out->held + at, out->held_used - at);
    memcpy(out->held + at, line, length);
    out->held_used += length;
    out->left_out = 0;
}

static void write_held(lk_text_out *out) {
    struct pollfd ready = {.fd = out->fd, .events = POLLOUT};
    if (!out->held_used || poll(&ready, 1, 0) <= 0) return;
    say_left_out(out);
    size_t done = write_some(out, out->held, out->held_used);
    if (done) out->held_begun = out->held[done - 1] != '\n';
    out->held_used -= done;
    memmove(out->held, out->held + done, out->held_used);
}

static lk_status write_or_hold(lk_text_out *out, const char *bytes, size_t count) {
    write_held(out);
    size_t done = out->held_used ? 0 : write_some(out, bytes, count);
    if (!out->held_used) out->held_begun = done > 0;
    while (out->held_used + count - done > out->held_bytes - LEFT_OUT_BYTES) leave_out_oldest(out);
    memcpy(out->held + out->held_used, bytes + done, count - done);
    out->held_used += count - done;
    return out->write_errno ? LK_IO_ERROR : LK_OK;
}

// A signal or a full pipe only delays; anything else is remembered and ends the writing.
static lk_status write_all(lk_text_out *out, const char *bytes, size_t count) {
    if (out->held) return write_or_hold(out, bytes, count);
    while (count && !out->write_errno) {
        ssize_t written = write(out->fd, bytes, count);
        if (written >= 0) {
            bytes += written;
            count -= (size_t)written;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            struct pollfd ready = {.fd = out->fd, .events = POLLOUT};
            if (poll(&ready, 1, -1) < 0 && errno != EINTR) out->write_errno = errno;
        } else if (errno != EINTR) {
            out->write_errno = errno;
        }
    }
    return out->write_errno ? LK_IO_ERROR : LK_OK;
}

void lk_text_hold(lk_text_out *out, char *memory, size_t bytes) {
    lk_assert(bytes >= 2 * sizeof out->buffer);
    out->held = memory;
    out->held_bytes = bytes;
    out->held_used = out->left_out = 0;
    out->held_begun = false;
}

lk_status lk_text_release(lk_text_out *out) {
    if (!out->held) return LK_OK;
    say_left_out(out);
    const char *bytes = out->held;
    out->held = NULL;
    return write_all(out, bytes, out->held_used);
}

// The line stands in buffer + ERASE_BYTES; the erasing sequence goes right before it when needed.
static lk_status write_line(lk_text_out *out, size_t length, bool erase) {
    char *line = out->buffer + ERASE_BYTES;
    if (!erase) return write_all(out, line, length);
    memcpy(out->buffer, erase_line, ERASE_BYTES);
    return write_all(out, out->buffer, ERASE_BYTES + length);
}

// Where to cut `text` so that at most `bytes` remain and no UTF-8 character is halved.
static size_t cut_at(const char *text, size_t bytes) {
    while (bytes && ((unsigned char)text[bytes] & 0xc0) == 0x80) bytes--;
    return bytes;
}

// Between these a handler of a signal finds the buffer in use.
static void enter(lk_text_out *out) {
    out->busy = 1;
    atomic_signal_fence(memory_order_seq_cst);
}

static lk_status leave(lk_text_out *out, lk_status status) {
    atomic_signal_fence(memory_order_seq_cst);
    out->busy = 0;
    return status;
}

// Formats into the buffer; the newline's place is kept. Returns the length, or that of the longest
// line plus one where it does not fit.
static size_t compose(lk_text_out *out, const char *format, va_list args) {
    enter(out);
    static_assert(sizeof out->buffer >= ERASE_BYTES + LK_TEXT_LINE_BYTES, "the line has its room");
    int length = vsnprintf(out->buffer + ERASE_BYTES, LK_TEXT_LINE_BYTES, format, args);
    return length < 0 ? 0 : LK_MIN((size_t)length, (size_t)LK_TEXT_LINE_BYTES);
}

// A warning for the journal, with its severity before it; where there is no room, without.
static size_t grade(lk_text_out *out, size_t length) {
    static const char warning[] = "WARNING", severity[] = "<4>";
    enum { BYTES = sizeof severity - 1 };
    char *line = out->buffer + ERASE_BYTES;
    if (!out->journal || strncmp(line, warning, sizeof warning - 1) != 0) return length;
    if (length + BYTES >= LK_TEXT_LINE_BYTES) return length;
    memmove(line + BYTES, line, length);
    memcpy(line, severity, BYTES);
    return length + BYTES;
}

static lk_status finish_line(lk_text_out *out, size_t length) {
    out->buffer[ERASE_BYTES + length] = '\n';
    bool erase = out->progress_shown;
    out->progress_shown = false;
    return write_line(out, length + 1, erase);
}

lk_status lk_text_line(lk_text_out *out, const char *format, ...) {
    va_list args;
    va_start(args, format);
    size_t length = compose(out, format, args);
    va_end(args);
    if (length >= LK_TEXT_LINE_BYTES) {
        char *line = out->buffer + ERASE_BYTES;
        length = cut_at(line, LK_TEXT_LINE_BYTES - 1 - 3);
        memcpy(line + length, "...", 3);
        length += 3;
    }
    return leave(out, finish_line(out, grade(out, length)));
}

lk_status lk_text_record(lk_text_out *out, const char *format, ...) {
    va_list args;
    va_start(args, format);
    size_t length = compose(out, format, args);
    va_end(args);
    if (length >= LK_TEXT_LINE_BYTES) return leave(out, LK_INTERNAL);
    return leave(out, finish_line(out, length));
}

static size_t terminal_columns(int fd) {
    struct winsize size;
    if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return COLUMNS_DEFAULT;
    return size.ws_col;
}

// Shows what stands in the buffer, cut to the terminal's width.
static lk_status show_progress(lk_text_out *out, size_t length) {
    length = LK_MIN(length, (size_t)LK_TEXT_LINE_BYTES - 1);
    const char *line = out->buffer + ERASE_BYTES;
    size_t columns = terminal_columns(out->fd) - 1, used = 0, end = 0;
    while (end < length && (used < columns || ((unsigned char)line[end] & 0xc0) == 0x80)) {
        used += ((unsigned char)line[end++] & 0xc0) != 0x80;
    }
    out->progress_shown = true;
    return write_line(out, end, true);
}

lk_status lk_text_progress(lk_text_out *out, const char *format, ...) {
    if (!out->terminal) return LK_OK;
    va_list args;
    va_start(args, format);
    size_t length = compose(out, format, args);
    va_end(args);
    return leave(out, show_progress(out, length));
}

lk_status lk_text_clear(lk_text_out *out) {
    if (!out->progress_shown) return LK_OK;
    enter(out);
    out->progress_shown = false;
    return leave(out, write_line(out, 0, true));
}

// --- from a handler ------------------------------------------------------------------------------

// Takes the buffer for a line of `text`, where that can be written without waiting.
static bool begin_now(lk_text_out *out, const char *text, size_t *length) {
    struct pollfd ready = {.fd = out->fd, .events = POLLOUT};
    if (out->busy || out->write_errno) return false;
    if (poll(&ready, 1, 0) != 1 || !(ready.revents & POLLOUT)) return false;
    enter(out);
    *length = LK_MIN(strlen(text), (size_t)LK_TEXT_LINE_BYTES - 1);
    memcpy(out->buffer + ERASE_BYTES, text, *length);
    return true;
}

bool lk_text_line_now(lk_text_out *out, const char *text) {
    size_t length;
    if (!begin_now(out, text, &length)) return false;
    return leave(out, finish_line(out, length)) == LK_OK;
}

bool lk_text_progress_now(lk_text_out *out, const char *text) {
    size_t length;
    if (!out->terminal || !begin_now(out, text, &length)) return false;
    return leave(out, show_progress(out, length)) == LK_OK;
}

lk_status lk_text_check(const lk_text_out *out, const char *name, lk_error *error) {
    if (!out->write_errno) return LK_OK;
    return lk_fail(
        error, LK_IO_ERROR, "%s: writing failed: %s; %s", name, strerror(out->write_errno),
        out->write_errno == ENOSPC  ? "make room and start it again, a run with --resume"
        : out->write_errno == EPIPE ? "its reader is gone; start it again, a run with --resume"
                                    : "check where it leads");
}

// --- JSON escaping -----------------------------------------------------------------------------

// Bytes of the UTF-8 character at `text`, or 0 where there is none: cut short, overlong, a
// surrogate, above U+10FFFF.
static size_t utf8_length(const unsigned char *text, size_t left) {
    unsigned char c = text[0];
    size_t length = c < 0x80                 ? 1
                    : c >= 0xc2 && c < 0xe0  ? 2
                    : (c & 0xf0) == 0xe0     ? 3
                    : c >= 0xf0 && c <= 0xf4 ? 4
                                             : 0;
    if (length == 0 || length > left) return 0;
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80) return 0;
    }
    if (length < 3) return length;
    bool wrong = (c == 0xe0 && text[1] < 0xa0) || (c == 0xed && text[1] >= 0xa0) ||
                 (c == 0xf0 && text[1] < 0x90) || (c == 0xf4 && text[1] >= 0x90);
    return wrong ? 0 : length;
}

// One character of `used` bytes (0: not UTF-8) as it stands in a JSON string; at most 6 bytes.
static size_t escape_one(char piece[8], const unsigned char *in, size_t used) {
    static const char plain[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    if (used == 0) return lk_format(piece, 8, "\xef\xbf\xbd");
    const char *found = *in ? strchr(plain, *in) : NULL;
    if (used == 1 && found) return lk_format(piece, 8, "\\%c", letters[found - plain]);
    if (*in < 0x20 || *in == 0x7f) return lk_format(piece, 8, "\\u%04x", *in);
    // U+0080 to U+009f: some terminals obey them.
    if (*in == 0xc2 && in[1] < 0xa0) return lk_format(piece, 8, "\\u%04x", in[1]);
    memcpy(piece, in, used);
    return used;
}

size_t lk_text_escape(char *out, size_t bytes, const char *text, size_t length) {
    const unsigned char *in = (const unsigned char *)text;
    size_t needed = 0, written = 0;
    for (size_t i = 0; i < length;) {
        char piece[8];
        size_t used = utf8_length(in + i, length - i);
        size_t count = escape_one(piece, in + i, used);
        // Once a piece did not fit, no later one may: the text is cut, not thinned out.
        if (written == needed && needed + count < bytes) {
            memcpy(out + written, piece, count);
            written += count;
        }
        needed += count;
        i += LK_MAX(used, (size_t)1);
    }
    if (bytes) out[written] = '\0';
    return needed;
}

const char *lk_text_shown(char out[LK_TEXT_SHOWN_BYTES], const char *text) {
    (void)lk_text_escape(out, LK_TEXT_SHOWN_BYTES, text, strlen(text));
    return out;
}

// --- the nearest word --------------------------------------------------------------------------

enum { WORD_BYTES = 48 };  // longer words have no near ones

static char folded(char c) { return c == '-' ? '_' : (char)tolower((unsigned char)c); }

// Damerau-Levenshtein distance (optimal string alignment) over three rows of the table.
static unsigned distance(const char *a, size_t a_count, const char *b, size_t b_count) {
    unsigned rows[3][WORD_BYTES + 1];
    unsigned *before = rows[0], *previous = rows[1], *row = rows[2];
    for (size_t j = 0; j <= b_count; j++) previous[j] = (unsigned)j;
    for (size_t i = 1; i <= a_count; i++) {
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= b_count; j++) {
            char x = folded(a[i - 1]), y = folded(b[j - 1]);
            unsigned best = previous[j - 1] + (x != y);
            best = LK_MIN(best, LK_MIN(previous[j], row[j - 1]) + 1);
            bool swapped = i > 1 && j > 1 && x == folded(b[j - 2]) && folded(a[i - 2]) == y;
            if (swapped) best = LK_MIN(best, before[j - 2] + 1);
            row[j] = best;
        }
        unsigned *oldest = before;
        before = previous;
        previous = row;
        row = oldest;
    }
    return previous[b_count];
}

const char *lk_text_nearest(const char *word, const char *const *words, size_t count) {
    size_t length = strlen(word);
    if (length == 0 || length > WORD_BYTES) return NULL;
    const char *best = NULL;
    // Near: one mistake in a word of up to 4 letters, 2 up to 7, 3 beyond.
    unsigned best_distance = LK_MAX(1u, LK_MIN(3u, ((unsigned)length + 1) / 3)) + 1;
    for (size_t i = 0; i < count; i++) {
        size_t other = strlen(words[i]);
        if (other > WORD_BYTES) continue;
        unsigned d = distance(word, length, words[i], other);
        // All letters changed is no likeness, however short the words.
        if (d < best_distance && d < LK_MAX(length, other)) {
            best_distance = d;
            best = words[i];
        }
    }
    return best;
}
