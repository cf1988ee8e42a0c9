// text.h - text out of a running program without heap: whole lines, a progress line on a terminal,
// and strings made safe for JSON. Also the nearest word, for "did you mean".
//
// Host only (write, ioctl). Knows file descriptors and characters, nothing of what they mean.
//
// Intended use:
//
//     lk_text_out out;
//     lk_text_open(&out, STDOUT_FILENO);
//     lk_text_progress(&out, "step %u/%u  loss %.4f", step, steps, loss);  // a terminal only
//     lk_text_line(&out, "epoch %u  loss %.9g", epoch, loss);              // everywhere
//     lk_text_clear(&out);                                                 // before the end
//     LK_CHECK(lk_text_check(&out, "standard output", &error));
#ifndef LOCKSTEP_IO_TEXT_H
#define LOCKSTEP_IO_TEXT_H

#include "arena/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LK_TEXT_LINE_BYTES = 4096 };  // the longest line, its newline included

// A writer of lines. One thread at a time; two writers of one terminal know nothing of each other's
// progress line. Nothing is kept back: every call ends with everything written, unless lk_text_hold
// was called.
typedef struct lk_text_out {
    int fd;
    bool journal;         // fd is the journal's stream: warnings say their severity
    bool terminal;        // fd is a terminal that can erase a line (TERM is not "dumb")
    bool progress_shown;  // the cursor stands behind a progress line
    int write_errno;      // of the first write that failed, 0 so far; then nothing more is written
    volatile int busy;    // a call is under way: a signal's handler keeps out
    // lk_text_hold: what could not be written yet, and how many lines found no room there.
    char *held;
    size_t held_bytes, held_used;
    bool held_begun;  // of the first held line something is written
    uint32_t left_out;
    char buffer[LK_TEXT_LINE_BYTES + 8];  // room for the erasing sequence before the line
} lk_text_out;

// What a line on `fd` begins with where journald reads it, which JOURNAL_STREAM says: "<4>" for a
// warning, "<3>" for an error. Elsewhere "".
typedef enum lk_severity { LK_SEVERITY_ERROR = 3, LK_SEVERITY_WARNING = 4 } lk_severity;
const char *lk_text_severity(int fd, lk_severity severity);

// `fd` stays the caller's. Lines that begin with "WARNING" are warnings to the journal.
void lk_text_open(lk_text_out *out, int fd);

// From here on no write waits for the reader (a full pipe, Ctrl-S), since others wait for this
// process: what is not taken at once is held in `bytes` of the caller's memory and goes before the
// next line. Where there is no room the oldest lines are left out, and in their place is their
// number.
void lk_text_hold(lk_text_out *out, char *memory, size_t bytes);

// Nobody waits any more: writes what is held, however long the reader takes.
lk_status lk_text_release(lk_text_out *out);

// Writes one line and its newline in one write(2), an earlier progress line erased first. `format`
// is printf's, floats included (%.9g needs no heap in glibc; absurd precisions might). A line
// longer than the buffer is cut and ends in "...". Returns LK_OK or LK_IO_ERROR.
lk_status lk_text_line(lk_text_out *out, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

// The same for lines that a program reads (metrics.jsonl): one that does not fit is not written at
// all, since half a record is worse than none: LK_INTERNAL.
lk_status lk_text_record(lk_text_out *out, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

// Shows or rewrites the progress line, cut one column short of the terminal's width so that it
// never wraps. One column per character is assumed. Writes nothing where fd is not a terminal.
lk_status lk_text_progress(lk_text_out *out, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

// Erases the progress line, if there is one.
lk_status lk_text_clear(lk_text_out *out);

// The same from the handler of a signal, on the thread that writes here otherwise: `text` is one
// line without its newline. Never waits: false where a call was under way or the reader is slow,
// and nothing was written then.
bool lk_text_line_now(lk_text_out *out, const char *text);
bool lk_text_progress_now(lk_text_out *out, const char *text);

// The first failed write as an error that names `name` ("runs/a/metrics.jsonl"); LK_OK without one.
lk_status lk_text_check(const lk_text_out *out, const char *name, lk_error *error);

// Escapes `text` (length bytes, UTF-8) for the inside of a JSON string; writes no quotes. What is
// not UTF-8 becomes U+FFFD, so the result is always valid. Terminates; cuts between characters
// where the buffer ends; returns the length that the whole would have (as snprintf does).
size_t lk_text_escape(char *out, size_t bytes, const char *text, size_t length);

enum { LK_TEXT_SHOWN_BYTES = 256 };

// A file's own words as they may go to a terminal: escaped as above, cut to the buffer. Returns it.
const char *lk_text_shown(char out[LK_TEXT_SHOWN_BYTES], const char *text);

// The word most like `word`, or NULL where none is near enough to be what was meant. Distance: the
// insertions, deletions, changes and swaps of neighbours; letter case and - against _ cost nothing.
const char *lk_text_nearest(const char *word, const char *const *words, size_t count);

#ifdef __cplusplus
}
#endif
#endif
