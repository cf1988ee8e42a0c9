// Fuzz target (libFuzzer): any bytes as an IDX file of images and as one of labels.
//
// What is accepted must fit the file exactly, be readable to its last byte, and be written back as
// the same header.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "io/idx.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint8_t sink;

static void try_as(lk_idx_kind kind, const uint8_t *data, size_t size) {
    lk_error error = {0};
    lk_idx idx;
    uint8_t header[LK_IDX_HEADER_BYTES_MAX];
    if (lk_idx_parse(data, size, size, kind, "fuzz", &idx, &error) != LK_OK) {
        if (error.status != LK_BAD_DATA || error.text[0] == '\0') abort();
        return;
    }
    if (idx.header_bytes + idx.data_bytes != size) abort();
    if (idx.count * idx.example_bytes != idx.data_bytes || idx.count == 0) abort();
    if (lk_idx_write_header(&idx, header) != idx.header_bytes) abort();
    if (memcmp(header, data, idx.header_bytes) != 0) abort();
    for (size_t i = 0; i < size; i++) sink ^= data[i];
    if (kind == LK_IDX_LABELS && idx.ndim == 2 && idx.example_bytes <= UINT32_MAX)
        (void)lk_idx_check_sequences(data + idx.header_bytes, idx.count,
                                     (uint32_t)idx.example_bytes, idx.type, 28, 10,
                                     idx.header_bytes, "fuzz", &error);
    else if (kind == LK_IDX_LABELS)
        (void)lk_idx_check_labels(data + idx.header_bytes, idx.count, idx.type, 10,
                                  idx.header_bytes, "fuzz", &error);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    try_as(LK_IDX_IMAGES, data, size);
    try_as(LK_IDX_LABELS, data, size);
    // The header alone, of a file of which the rest was not read: no byte beyond it may be touched.
    if (size >= LK_IDX_HEADER_BYTES_MAX) {
        uint8_t *header = malloc(LK_IDX_HEADER_BYTES_MAX);
        if (!header) return 0;
        lk_error error = {0};
        lk_idx idx;
        memcpy(header, data, LK_IDX_HEADER_BYTES_MAX);
        (void)lk_idx_parse(header, LK_IDX_HEADER_BYTES_MAX, 47040016, LK_IDX_IMAGES, "fuzz", &idx,
                           &error);
        free(header);
    }
    return 0;
}
