// Fuzz target (libFuzzer): any bytes as a tar archive (io/tar.h).
//
// Entries lie in the archive, one behind the other; their names are such that nobody who unpacked
// them would write elsewhere.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "io/tar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint8_t sink;

static void check_name(const char *name) {
    if (!*name || *name == '/' || strlen(name) >= LK_TAR_NAME_BYTES) abort();
    for (const char *part = name; part; part = strchr(part, '/')) {
        part += *part == '/';
        if (strncmp(part, "..", 2) == 0 && (part[2] == '/' || !part[2])) abort();
    }
    for (; *name; name++) {
        if (*name <= ' ' || *name > '~' || *name == '\\') abort();
    }
}

static void walk(const uint8_t *archive, size_t size) {
    uint64_t at = 0, before = 0;
    lk_error error = {0};
    lk_tar_entry entry;
    do {
        if (lk_tar_next(archive, size, "fuzz", &at, &entry, &error) != LK_OK) {
            if (error.status != LK_BAD_DATA || error.text[0] == '\0') abort();
            return;
        }
        if (at > size || (entry.data && at < before + LK_TAR_BLOCK_BYTES)) abort();
        if (!entry.data) return;
        check_name(entry.name);
        if (entry.data != archive + before + LK_TAR_BLOCK_BYTES) abort();
        for (uint64_t i = 0; i < entry.bytes; i++) sink ^= entry.data[i];
        before = at;
    } while (true);
}

// The sums that belong to the headers, so that the fuzzer comes past them: of every block that
// calls itself one.
static void mend(uint8_t *archive, size_t size) {
    for (size_t at = 0; size - at >= LK_TAR_BLOCK_BYTES; at += LK_TAR_BLOCK_BYTES) {
        uint8_t *header = archive + at;
        if (memcmp(header + 257, "ustar", 5) != 0) continue;
        uint32_t sum = 0;
        memset(header + 148, ' ', 8);
        for (uint32_t i = 0; i < LK_TAR_BLOCK_BYTES; i++) sum += header[i];
        for (uint32_t i = 6; i-- > 0; sum >>= 3) header[148 + i] = (uint8_t)('0' + (sum & 7));
        header[154] = '\0';
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t *archive = malloc(size ? size : 1);  // a sanitizer sees a read behind it
    if (!archive) return 0;
    memcpy(archive, data, size);
    walk(archive, size);
    mend(archive, size);
    walk(archive, size);
    const size_t whole = size - size % LK_TAR_BLOCK_BYTES;
    if (whole != size) walk(archive, whole);
    free(archive);
    return 0;
}
