// Fuzz target (libFuzzer): any bytes as a .gz that an IDX file is packed in.
//
// Never are more bytes written than the limit, or than the header at their beginning says; what is
// accepted is as long as its header says.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "io/gunzip.h"
#include "io/idx.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int packed = -1, unpacked = -1;
static char packed_path[64];

static void prepare(void) {
    if (packed >= 0) return;
    packed = memfd_create("packed", MFD_CLOEXEC);
    unpacked = memfd_create("unpacked", MFD_CLOEXEC);
    if (packed < 0 || unpacked < 0) abort();
    lk_format(packed_path, sizeof packed_path, "/proc/self/fd/%d", packed);
}

static void try_most(uint64_t most) {
    lk_error error = {0}, ignored = {0};
    lk_idx idx;
    uint8_t sha256[LK_SHA256_BYTES], head[LK_IDX_HEADER_BYTES_MAX];
    if (ftruncate(unpacked, 0) != 0 || lseek(unpacked, 0, SEEK_SET) != 0) abort();
    lk_status status = lk_gunzip(packed_path, unpacked, "out", most, sha256, &error);
    const uint64_t bytes = (uint64_t)lseek(unpacked, 0, SEEK_END);
    if (status != LK_OK && (status != LK_BAD_DATA || error.text[0] == '\0')) abort();
    if (most != LK_GUNZIP_IDX) {
        if (bytes > most) abort();
        return;
    }
    if (bytes == 0) return;
    const ssize_t got = pread(unpacked, head, sizeof head, 0);
    if (got <= 0 || lk_idx_parse_header(head, (uint64_t)got, "out", &idx, &ignored) != LK_OK)
        abort();
    const uint64_t said = idx.header_bytes + idx.data_bytes;
    if (bytes > said || (status == LK_OK && bytes != said)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    prepare();
    if (ftruncate(packed, 0) != 0 || pwrite(packed, data, size, 0) != (ssize_t)size) abort();
    try_most(LK_GUNZIP_IDX);
    try_most(100);
    return 0;
}
