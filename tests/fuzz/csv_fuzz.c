// Fuzz target (libFuzzer): any bytes as a CSV file (io/csv.h).
//
// Its cells are the same however the bytes come; none is longer than it may be; numbers that are
// taken are finite, and whole ones are numbers.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "io/csv.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct source {
    const uint8_t *data;
    size_t at, size, most;  // bytes at once
} source;

static lk_status more(void *context, uint8_t *out, size_t bytes, size_t *count, lk_error *error) {
    source *s = context;
    (void)error;
    *count = LK_MIN(LK_MIN(bytes, s->most), s->size - s->at);
    if (*count) memcpy(out, s->data + s->at, *count);
    s->at += *count;
    return LK_OK;
}

static void check_cell(const lk_csv_cell *cell) {
    uint64_t whole;
    float number;
    if (cell->letters >= LK_CSV_CELL_BYTES || strlen(cell->text) != cell->letters) abort();
    const bool is_number = lk_csv_number(cell, &number);
    if (is_number && number - number != 0.0f) abort();
    if (!lk_csv_whole(cell, 255, &whole)) return;
    if (!is_number || whole > 255 || number != (float)whole) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    source a = {data, 0, size, SIZE_MAX}, b = {data, 0, size, 3};
    static lk_csv one, other;
    static lk_csv_cell x, y;
    lk_error first = {0}, second = {0};
    lk_csv_start(&one, "fuzz", more, &a);
    lk_csv_start(&other, "fuzz", more, &b);
    for (uint64_t cells = 0;; cells++) {
        if (cells > 2 * (uint64_t)size + 2) abort();  // it must end
        lk_status status = lk_csv_next(&one, &x, &first);
        if (lk_csv_next(&other, &y, &second) != status) abort();
        if (strcmp(first.text, second.text) != 0) abort();
        if (status != LK_OK) {
            if (status != LK_BAD_DATA || first.text[0] == '\0') abort();
            return 0;
        }
        if (x.end != y.end || x.last != y.last || x.letters != y.letters) abort();
        if (x.end) return 0;
        if (memcmp(x.text, y.text, x.letters + 1) != 0) abort();
        if (one.line != other.line || one.column != other.column || one.line == 0) abort();
        check_cell(&x);
    }
}
