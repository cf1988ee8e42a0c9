// csv.h - a CSV file, a cell at a time, from a small buffer: RFC 4180 with commas.
//
//   lines end with \n or \r\n, the last one's end may be missing; a byte order mark is passed over
//   a cell in quotes may hold commas, line ends and "" for a quote; spaces belong to the cell
//   refused: a quote within a bare cell, letters behind a closing quote, bytes of 0, a cell of
//   LK_CSV_CELL_BYTES or more
//
// What the cells mean is the caller's. Host only. No heap.
#ifndef LOCKSTEP_IO_CSV_H
#define LOCKSTEP_IO_CSV_H

#include "arena/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LK_CSV_CELL_BYTES = 256, LK_CSV_HELD_BYTES = 16384 };

// Writes up to `bytes` of what comes next, and says how many: 0 at the end.
typedef lk_status (*lk_csv_more)(void *context, uint8_t *out, size_t bytes, size_t *count,
                                 lk_error *error);

typedef struct lk_csv {
    lk_csv_more more;
    void *context;
    const char *name;  // of the file, for errors
    uint64_t line;     // of the cell that was read last, from 1: rows, where no cell has line ends
    uint64_t column;   // .. from 1
    bool begun, row_ended;
    size_t at, held;
    uint8_t bytes[LK_CSV_HELD_BYTES];
} lk_csv;

typedef struct lk_csv_cell {
    char text[LK_CSV_CELL_BYTES];  // with a 0 behind it
    size_t letters;
    bool last;  // of its row
    bool end;   // there is no cell: the file is over
} lk_csv_cell;

void lk_csv_start(lk_csv *csv, const char *name, lk_csv_more more, void *context);
// LK_BAD_DATA names line and column. After an error no more is asked for.
lk_status lk_csv_next(lk_csv *csv, lk_csv_cell *cell, lk_error *error);

// A whole number of digits alone, at most `most`; false where the text is none.
bool lk_csv_whole(const lk_csv_cell *cell, uint64_t most, uint64_t *value);
// Digits with a sign, a point and an exponent, as far as there are any: finite in fp32.
bool lk_csv_number(const lk_csv_cell *cell, float *value);

#ifdef __cplusplus
}
#endif
#endif
