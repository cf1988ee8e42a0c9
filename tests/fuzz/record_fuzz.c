// Fuzz target (libFuzzer): any text as a record of the data cache (io/data_file.h).
//
// What is accepted is printed again as the same text; a text with a right checksum that is not what
// would be printed is none.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "io/data_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_text(const char *text, size_t size) {
    lk_data_record record;
    char again[LK_DATA_RECORD_BYTES];
    if (!lk_data_record_parse(text, size, &record)) return;
    lk_data_record_print(&record, again);
    if (size != sizeof again - 1 || memcmp(again, text, size) != 0) abort();
}

// The checksum that belongs to the rest, so that the fuzzer comes past it.
static void mend(char *text, size_t size) {
    enum { CHECK_BYTES = 6 + 16 + 1 };
    char check[CHECK_BYTES + 1];
    if (size < CHECK_BYTES) return;
    lk_format(check, sizeof check, "check %016llx\n",
              (unsigned long long)lk_data_fast_hash(0, text, size - CHECK_BYTES));
    memcpy(text + size - CHECK_BYTES, check, CHECK_BYTES);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size ? size : 1);  // a sanitizer sees a read behind it
    if (!text) return 0;
    memcpy(text, data, size);
    try_text(text, size);
    mend(text, size);
    try_text(text, size);
    free(text);
    return 0;
}
