// Fuzz target (libFuzzer): any bytes as a PNG file (io/png_read.h).
//
// What is accepted has the size that it says, lies in the memory that was given, and reads the same
// again; too little memory is said, and nothing else comes of it.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "io/png_read.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MEMORY_BYTES = 1 << 18, LITTLE_BYTES = 40 << 10 };

static _Alignas(16) uint8_t memory[MEMORY_BYTES], again[MEMORY_BYTES];

static size_t read_once(const uint8_t *data, size_t size, uint8_t *at, size_t bytes) {
    lk_png_image image = {.pixels = NULL};
    lk_error error = {0};
    lk_status status = lk_png_read(data, size, "fuzz", at, bytes, &image, &error);
    if (status != error.status) abort();
    if (status != LK_OK) {
        if (status != LK_BAD_DATA && status != LK_UNAVAILABLE) abort();
        if (error.text[0] == '\0') abort();
        return 0;
    }
    const uint64_t pixels = (uint64_t)image.height * image.width;
    if (pixels == 0 || pixels > LK_PNG_PIXELS_MAX) abort();
    if (image.channels != 1 && image.channels != 3) abort();
    const size_t used = (size_t)pixels * image.channels;
    if (image.pixels < at || image.pixels + used > at + bytes) abort();
    memmove(at, image.pixels, used);
    return used;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t *copy = malloc(size ? size : 1);  // a sanitizer sees a read behind it
    if (!copy) abort();
    memcpy(copy, data, size);
    const size_t used = read_once(copy, size, memory, MEMORY_BYTES);
    if (read_once(copy, size, again, MEMORY_BYTES) != used) abort();
    if (memcmp(memory, again, used) != 0) abort();
    (void)read_once(copy, size, again, LITTLE_BYTES);
    free(copy);
    return 0;
}
