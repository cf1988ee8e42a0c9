// line_sum.h - the checksum at the end of a log's line: put there by who writes, compared by who
// reads.
//
//   {"step":100,"train":{...}}    becomes    {"step":100,"train":{...},"crc32":"1a2b3c4d"}
//
// It is the CRC-32 of zlib, gzip and PNG over the bytes of the line that stand before the field,
// its comma left out: from the opening brace on. All other bytes stay as they are. In Python:
//
//   body, _, rest = line.rpartition(b',"crc32":"');  zlib.crc32(body) == int(rest[:8], 16)
//
// Lines without one were written by versions before it came; they are no error as long as no line
// before them has one, and they begin as every line does: {"step":N
//
// Host only. Knows nothing of what the lines say. Never allocates.
#ifndef LOCKSTEP_IO_LINE_SUM_H
#define LOCKSTEP_IO_LINE_SUM_H

#include "io/file_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LK_LINE_SUM_KEY "crc32"

enum {
    LK_LINE_SUM_BYTES = sizeof ",\"" LK_LINE_SUM_KEY "\":\"01234567\"" - 1
};  // by which it grows

enum { LK_LINE_STEP_BYTES = sizeof "{\"step\":18446744073709551615," - 1 };  // with which it begins

// Puts the checksum into a line that ends with a brace, without its newline. Returns its new
// length.
size_t lk_line_sum_put(char *line, size_t bytes, size_t capacity);

// Lines as they pass by, in pieces: they may be longer than any buffer.
typedef struct lk_line_sums {
    uint64_t line;           // number of the line at hand, from 1
    uint64_t lines;          // whole lines so far
    uint64_t without;        // of them, such without a checksum
    bool begun;              // one with a checksum has come
    bool wrong;              // the last whole line's is wrong, or missing
    bool foreign;            // the last whole line has none, and is none of a log
    bool has;                // the last whole line has one
    uint32_t found, wanted;  // the checksum it has; that of its bytes
    // Of the line at hand: its first bytes; its last, not yet in `crc`.
    uint32_t head_bytes;
    char head[LK_LINE_STEP_BYTES];
    uint32_t crc;
    uint32_t tail_bytes;
    char tail[LK_LINE_SUM_BYTES + 1];
} lk_line_sums;

void lk_line_sums_start(lk_line_sums *sums);
void lk_line_sums_feed(lk_line_sums *sums, const char *bytes, size_t count);
// At a newline: sums->wrong and what follows it are then known.
void lk_line_sums_end(lk_line_sums *sums);

// What is wrong with the last whole line, as LK_BAD_DATA: file, line, found, wanted.
lk_status lk_line_sums_fail(const lk_line_sums *sums, const char *path, lk_error *error);

// Checks a line at hand, given without its newline, and says what is wrong with it.
lk_status lk_line_sums_check(lk_line_sums *sums, const char *path, const char *line, size_t bytes,
                             lk_error *error);

// Checks every whole line of a log. LK_OK where there is no such file: `sums` then has no lines.
lk_status lk_line_sums_file(const lk_file_ops *ops, const char *path, lk_line_sums *sums,
                            lk_error *error);

#ifdef __cplusplus
}
#endif
#endif
