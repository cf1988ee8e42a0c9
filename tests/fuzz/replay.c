// replay.c - feeds files to a fuzzer's entry where there is no libFuzzer: each file whole, every
// beginning of it, and it with each byte changed in turn.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { FILE_BYTES_MAX = 1 << 16, STEPS_MAX = 512 };

static uint8_t file[FILE_BYTES_MAX];

// An exact copy on the heap, so that a sanitizer sees a read beyond its end.
static void feed(size_t bytes) {
    uint8_t *copy = malloc(bytes ? bytes : 1);
    if (!copy) abort();
    for (size_t i = 0; i < bytes; i++) copy[i] = file[i];
    LLVMFuzzerTestOneInput(copy, bytes);
    free(copy);
}

int main(int count, char **paths) {
    if (count < 2) {
        fprintf(stderr, "usage: %s file...\n", paths[0]);
        return 64;
    }
    for (int i = 1; i < count; i++) {
        FILE *stream = fopen(paths[i], "rb");
        if (!stream) {
            fprintf(stderr, "%s: cannot be opened; check the path\n", paths[i]);
            return 66;
        }
        size_t bytes = fread(file, 1, sizeof file, stream);
        fclose(stream);
        feed(bytes);
        size_t stride = 1 + bytes / STEPS_MAX;  // long files at a stride, to stay quick
        for (size_t at = 0; at < bytes; at += stride) {
            feed(at);
            uint8_t kept = file[at];
            file[at] = (uint8_t)(kept ^ 0x80);
            feed(bytes);
            file[at] = (uint8_t)(kept + 1);
            feed(bytes);
            file[at] = kept;
        }
    }
    return 0;
}
