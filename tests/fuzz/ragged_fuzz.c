// Fuzz target (libFuzzer): any bytes as the offsets of ragged sequences (io/ragged.h).
//
// The first four bytes say the width of an offset, whether it has a sign, how many values there are
// and the most of a sequence. What is accepted has lengths in bounds that add up to all values; of
// what is refused the line names the offset.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "io/ragged.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HEAD = 4 };

static void expect_refusal(lk_status status, const lk_error *error) {
    if (status != LK_BAD_DATA || error->status != status) abort();
    if (strncmp(error->text, "fuzz: ", 6) != 0 || strchr(error->text, '\n')) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < HEAD) return 0;
    lk_error error = {0};
    lk_ragged r = {.name = "fuzz",
                   .total = data[2],
                   .least = data[1] >> 1 & 1,
                   .most = data[3],
                   .item_bytes = 1u << (data[0] & 3),
                   .is_signed = data[1] & 1};
    const size_t items = (size - HEAD) / r.item_bytes;
    uint64_t sum = 0, longest = 0;
    for (size_t i = 0; i < items; i++) {
        uint8_t item[8];
        uint64_t length;
        memcpy(item, data + HEAD + i * r.item_bytes, r.item_bytes);
        const lk_status status = lk_ragged_next(&r, item, &length, &error);
        if (status != LK_OK) {
            expect_refusal(status, &error);
            return 0;
        }
        if (i > 0 && (length < r.least || length > r.most)) abort();
        if (r.offsets != i + 1 || r.last > r.total) abort();
        sum += length;
        longest = length > longest ? length : longest;
    }
    if (longest != r.longest) abort();
    const lk_status end = lk_ragged_end(&r, &error);
    if (end != LK_OK) {
        expect_refusal(end, &error);
    } else if (sum != r.total || items < 2) {
        abort();
    }
    return 0;
}
