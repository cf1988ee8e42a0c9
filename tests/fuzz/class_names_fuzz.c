// Fuzz target (libFuzzer): any bytes as a list of names of classes (io/data_import.h).
//
// What is accepted has as many lines as were wanted, each a name, and is taken again as it came
// out.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "io/data_import.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_count(const char *text, size_t size, uint32_t count) {
    char out[LK_CLASS_NAMES_BYTES], again[LK_CLASS_NAMES_BYTES];
    lk_error error = {0};
    const size_t used = lk_class_names(text, size, count, "fuzz", out, &error);
    if (!used) {
        if (count && (error.status != LK_BAD_DATA || error.text[0] == '\0')) abort();
        return;
    }
    uint32_t lines = 0;
    for (size_t i = 0; i < used; i++) {
        if (out[i] == '\n')
            lines++;
        else if (out[i] < ' ' || out[i] > '~')
            abort();
    }
    if (lines != count || used > sizeof out || out[used - 1] != '\n') abort();
    if (lk_class_names(out, used, count, "fuzz", again, &error) != used) abort();
    if (memcmp(out, again, used) != 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size ? size : 1);  // a sanitizer sees a read behind it
    if (!text) return 0;
    memcpy(text, data, size);
    for (uint32_t count = 1; count <= 100; count = count == 1 ? 3 : count + 1) {
        try_count(text, size, count);
    }
    free(text);
    return 0;
}
