// Fuzz target (libFuzzer): any bytes as an .npy file (io/npy.h).
//
// What is accepted fits the file exactly; no byte behind those that are given is touched.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "io/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_as(const uint8_t *data, size_t size, uint64_t file_bytes) {
    lk_error error = {0};
    lk_npy npy;
    if (lk_npy_parse(data, size, file_bytes, "fuzz", &npy, &error) != LK_OK) {
        if (error.status != LK_BAD_DATA || error.text[0] == '\0') abort();
        return;
    }
    uint64_t items = 1;
    if (npy.ndim > LK_NPY_DIMS_MAX || !strchr("uifb", npy.type)) abort();
    for (uint32_t i = 0; i < npy.ndim; i++) items *= npy.dims[i];
    if (items != npy.count || items == 0) abort();
    if (npy.header_bytes + npy.count * npy.item_bytes != file_bytes) abort();
    if (npy.header_bytes > size) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t *copy = malloc(size ? size : 1);  // a sanitizer sees a read behind it
    if (!copy) return 0;
    memcpy(copy, data, size);
    try_as(copy, size, size);
    // The head of a file that is longer.
    const size_t head = LK_MIN(size, (size_t)LK_NPY_READ_BYTES_MAX);
    for (uint64_t bytes = 1; bytes < (uint64_t)1 << 40; bytes *= 28) {
        try_as(copy, head, 128 + bytes);
    }
    free(copy);
    return 0;
}
