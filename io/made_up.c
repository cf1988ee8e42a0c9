// made_up.c - the images of made_up.h. Freestanding, integers only.
#include "io/made_up.h"

#include "arena/philox.h"
#include "io/idx.h"

enum { CELLS = 8, HEAD = 0, NOISE = 1, PATTERN = 2 };  // the last three: counter word c3

typedef struct range {
    const char *key;
    uint64_t found, low, high;
} range;

static uint32_t below(uint32_t word, uint32_t n) { return (uint32_t)(((uint64_t)word * n) >> 32); }

static uint32_t byte_of(const lk_philox_block *block, uint64_t k) {
    return block->word[k / 4 % 4] >> (8 * (k % 4)) & 255;
}

static lk_philox_block draw(const lk_made_up *m, uint32_t c0, uint32_t c1, uint32_t c2,
                            uint32_t c3) {
    return lk_philox(m->seed, LK_PURPOSE_MADE_UP_DATA, c0, c1, c2, c3);
}

lk_status lk_made_up_check(const lk_made_up *m, lk_error *error) {
    const uint64_t most = (uint64_t)1 << 40;
    const range ranges[] = {
        {"height", m->height, 1, 65535},
        {"width", m->width, 1, 65535},
        {"channels", m->channels, 1, 16},
        {"classes", m->classes, 1, LK_IDX_CLASSES_MAX},
        {"first", m->first, 0, most - 1},
        {"count", m->count, 1, most - LK_MIN(m->first, most - 1)},
    };
    for (size_t i = 0; i < LK_COUNT(ranges); i++)
        if (ranges[i].found < ranges[i].low || ranges[i].found > ranges[i].high)
            return lk_fail(error, LK_BAD_CONFIG,
                           "made-up data: %s: found %llu, wanted %llu to %llu", ranges[i].key,
                           (unsigned long long)ranges[i].found, (unsigned long long)ranges[i].low,
                           (unsigned long long)ranges[i].high);
    uint64_t bytes;
    if (!lk_mul_ok(lk_made_up_image_bytes(m), m->count, &bytes) || bytes >> 62)
        return lk_fail(error, LK_BAD_CONFIG,
                       "made-up data: found %llu images of %u x %u x %u, wanted at most 2^62 bytes",
                       (unsigned long long)m->count, m->height, m->width, m->channels);
    return LK_OK;
}

uint64_t lk_made_up_image_bytes(const lk_made_up *m) {
    return (uint64_t)m->height * m->width * m->channels;
}

// One channel's pattern without noise: pixels `channels` apart, row by row.
static void paint_pattern(const lk_made_up *m, uint32_t label, uint32_t channel, uint32_t dy,
                          uint32_t dx, uint8_t *image) {
    uint8_t cell[CELLS * CELLS];
    for (uint32_t i = 0; i < CELLS * CELLS; i += 16) {
        lk_philox_block block = draw(m, i / 16, label, channel, PATTERN);
        for (uint32_t k = 0; k < 16; k++) cell[i + k] = (uint8_t)byte_of(&block, k);
    }
    uint8_t *out = image + channel;
    for (uint32_t y = 0; y < m->height; y++) {
        const uint8_t *row = cell + (y + dy) % m->height * CELLS / m->height * CELLS;
        for (uint32_t x = 0; x < m->width; x++, out += m->channels)
            *out = row[(x + dx) % m->width * CELLS / m->width];
    }
}

void lk_made_up_example(const lk_made_up *m, uint64_t index, uint8_t *image, uint32_t *label) {
    lk_assert(index < m->count);
    const uint64_t example = m->first + index, bytes = lk_made_up_image_bytes(m);
    const uint32_t low = (uint32_t)example, high = (uint32_t)(example >> 32);
    const lk_philox_block head = draw(m, low, high, 0, HEAD);
    const uint32_t class = below(head.word[0], m->classes);
    const uint32_t dy = below(head.word[1], m->height / CELLS + 1);
    const uint32_t dx = below(head.word[2], m->width / CELLS + 1);
    for (uint32_t channel = 0; channel < m->channels; channel++)
        paint_pattern(m, class, channel, dy, dx, image);
    for (uint64_t i = 0; i < bytes; i += 16) {
        const lk_philox_block noise = draw(m, low, high, (uint32_t)(i / 16), NOISE);
        const uint64_t n = LK_MIN(bytes - i, (uint64_t)16);
        for (uint64_t k = 0; k < n; k++)
            image[i + k] = (uint8_t)((image[i + k] + 3 * byte_of(&noise, k) + 2) / 4);
    }
    *label = class;
}
