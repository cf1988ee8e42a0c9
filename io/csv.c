// csv.c - cells of a CSV file: one byte after another, each looked at before it is taken.
#include "io/csv.h"

#include <stdlib.h>
#include <string.h>

enum { END = -1, FAILED = -2 };

void lk_csv_start(lk_csv *csv, const char *name, lk_csv_more more, void *context) {
    csv->more = more;
    csv->context = context;
    csv->name = name;
    csv->line = 0;
    csv->column = 0;
    csv->begun = false;
    csv->row_ended = true;
    csv->at = csv->held = 0;
}

// The byte that comes next, which is not taken yet; END or FAILED.
static int peek(lk_csv *csv, lk_error *error) {
    if (csv->at == csv->held) {
        csv->at = csv->held = 0;
        if (csv->more(csv->context, csv->bytes, sizeof csv->bytes, &csv->held, error) != LK_OK) {
            csv->held = 0;
            return FAILED;
        }
        lk_assert(csv->held <= sizeof csv->bytes);
    }
    return csv->held ? csv->bytes[csv->at] : END;
}

static lk_status refuse(const lk_csv *csv, const char *what, lk_error *error) {
    return lk_fail(error, LK_BAD_DATA, "%s: line %llu, column %llu: %s", csv->name,
                   (unsigned long long)csv->line, (unsigned long long)csv->column, what);
}

static lk_status add(const lk_csv *csv, lk_csv_cell *cell, int byte, lk_error *error) {
    if (byte == 0) return refuse(csv, "a byte of 0: this is no text", error);
    if (cell->letters + 1 == sizeof cell->text) {
        return refuse(csv, "a cell of more than 255 letters; is a quote missing?", error);
    }
    cell->text[cell->letters++] = (char)byte;
    return LK_OK;
}

// Behind a cell: a comma, the end of the line, or of the file.
static lk_status close_cell(lk_csv *csv, lk_csv_cell *cell, lk_error *error) {
    int byte = peek(csv, error);
    if (byte == FAILED) return error->status;
    if (byte == '\r') {
        csv->at++;
        byte = peek(csv, error);
        if (byte == FAILED) return error->status;
        if (byte != '\n') return refuse(csv, "a carriage return without a line's end", error);
    }
    cell->last = byte != ',';
    csv->row_ended = cell->last;
    if (byte == ',' || byte == '\n') {
        csv->at++;
        return LK_OK;
    }
    return byte == END ? LK_OK : refuse(csv, "letters behind a closing quote", error);
}

static lk_status quoted(lk_csv *csv, lk_csv_cell *cell, lk_error *error) {
    csv->at++;
    for (;;) {
        int byte = peek(csv, error);
        if (byte == FAILED) return error->status;
        if (byte == END) return refuse(csv, "the file ends within quotes", error);
        csv->at++;
        if (byte == '"') {
            int next = peek(csv, error);
            if (next == FAILED) return error->status;
            if (next != '"') return LK_OK;
            csv->at++;
        }
        LK_CHECK(add(csv, cell, byte, error));
    }
}

static lk_status bare(lk_csv *csv, lk_csv_cell *cell, lk_error *error) {
    for (;;) {
        int byte = peek(csv, error);
        if (byte == FAILED) return error->status;
        if (byte == END || byte == ',' || byte == '\n' || byte == '\r') return LK_OK;
        if (byte == '"') return refuse(csv, "a quote within a cell that begins without", error);
        LK_CHECK(add(csv, cell, byte, error));
        csv->at++;
    }
}

static lk_status pass_mark(lk_csv *csv, lk_error *error) {
    csv->begun = true;
    if (peek(csv, error) == FAILED) return error->status;
    if (csv->held >= 3 && memcmp(csv->bytes, "\xef\xbb\xbf", 3) == 0) csv->at = 3;
    return LK_OK;
}

lk_status lk_csv_next(lk_csv *csv, lk_csv_cell *cell, lk_error *error) {
    cell->letters = 0;
    cell->last = cell->end = false;
    if (!csv->begun) LK_CHECK(pass_mark(csv, error));
    int byte = peek(csv, error);
    if (byte == FAILED) return error->status;
    if (csv->row_ended && byte == END) {
        cell->end = true;
        return LK_OK;
    }
    csv->line += csv->row_ended;
    csv->column = csv->row_ended ? 1 : csv->column + 1;
    csv->row_ended = false;
    LK_CHECK((byte == '"' ? quoted : bare)(csv, cell, error));
    cell->text[cell->letters] = '\0';
    return close_cell(csv, cell, error);
}

bool lk_csv_whole(const lk_csv_cell *cell, uint64_t most, uint64_t *value) {
    uint64_t found = 0;
    if (cell->letters == 0 || cell->letters > 18) return false;
    for (size_t i = 0; i < cell->letters; i++) {
        if (cell->text[i] < '0' || cell->text[i] > '9') return false;
        found = found * 10 + (uint64_t)(cell->text[i] - '0');
    }
    *value = found;
    return found <= most;
}

static size_t digits(const char *text) { return strspn(text, "0123456789"); }

bool lk_csv_number(const lk_csv_cell *cell, float *value) {
    const char *at = cell->text;
    if (*at == '+' || *at == '-') at++;
    const size_t whole = digits(at);
    at += whole;
    size_t part = 0;
    if (*at == '.') {
        part = digits(++at);
        at += part;
    }
    if (whole + part == 0) return false;
    if (*at == 'e' || *at == 'E') {
        at++;
        if (*at == '+' || *at == '-') at++;
        const size_t power = digits(at);
        if (power == 0) return false;
        at += power;
    }
    if (*at != '\0' || at != cell->text + cell->letters) return false;
    *value = strtof(cell->text, NULL);
    return *value - *value == 0.0f;
}
