// png.c - signature, IHDR, IDAT, IEND. The data is a zlib stream of stored blocks, each row of
// pixels behind a filter byte of 0.
#include "io/png.h"

#include <string.h>
#include <zlib.h>

enum {
    BLOCK_BYTES = 65535,  // of a stored block, at most
    BLOCK_HEAD_BYTES = 5,
    STREAM_BYTES = 2 + 4,  // zlib's head and Adler-32
    CHUNK_BYTES = 12,      // length, type, CRC-32
    IHDR_BYTES = 13,
    SIGNATURE_BYTES = 8
};

uint32_t lk_png_shown_channels(uint32_t channels) { return channels == 3 ? 3 : 1; }

// Of all rows with their filter bytes.
static size_t raw_bytes(uint32_t height, uint32_t width, uint32_t channels) {
    return (size_t)height * (1 + (size_t)width * lk_png_shown_channels(channels));
}

static size_t stream_bytes(size_t raw) {
    return STREAM_BYTES + (raw + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_HEAD_BYTES + raw;
}

size_t lk_png_bytes(uint32_t height, uint32_t width, uint32_t channels) {
    if (height == 0 || width == 0 || (uint64_t)height * width > LK_PNG_PIXELS_MAX) return 0;
    return SIGNATURE_BYTES + 3 * CHUNK_BYTES + IHDR_BYTES +
           stream_bytes(raw_bytes(height, width, channels));
}

static uint8_t *put_u32(uint8_t *at, uint32_t value) {
    for (int i = 3; i >= 0; i--) *at++ = (uint8_t)(value >> (8 * i));
    return at;
}

// The chunk whose data begins 8 bytes behind `at` and ends at `end`: its length, type and checksum.
static uint8_t *close_chunk(uint8_t *at, const char *type, uint8_t *end) {
    put_u32(at, (uint32_t)(end - at - 8));
    memcpy(at + 4, type, 4);
    return put_u32(end, (uint32_t)crc32_z(0, at + 4, (size_t)(end - at - 4)));
}

// The bytes of the stream, which cuts them into stored blocks as they come.
typedef struct stream {
    uint8_t *at;
    size_t left, block_left;  // raw bytes, of all and of this block
    uint32_t adler;
} stream;

static void put_raw(stream *s, const uint8_t *bytes, size_t count) {
    s->adler = (uint32_t)adler32_z(s->adler, bytes, count);
    while (count > 0) {
        if (s->block_left == 0) {
            s->block_left = LK_MIN(s->left, (size_t)BLOCK_BYTES);
            const uint16_t n = (uint16_t)s->block_left, not_n = (uint16_t)~n;
            const uint8_t head[BLOCK_HEAD_BYTES] = {s->left == s->block_left, (uint8_t)n,
                                                    (uint8_t)(n >> 8), (uint8_t)not_n,
                                                    (uint8_t)(not_n >> 8)};
            memcpy(s->at, head, sizeof head);
            s->at += sizeof head;
        }
        const size_t piece = LK_MIN(count, s->block_left);
        memcpy(s->at, bytes, piece);
        s->at += piece;
        bytes += piece;
        count -= piece;
        s->left -= piece;
        s->block_left -= piece;
    }
}

static void put_row(stream *s, const uint8_t *row, uint32_t width, uint32_t channels) {
    static const uint8_t filter = 0;
    put_raw(s, &filter, 1);
    if (channels == lk_png_shown_channels(channels)) {
        put_raw(s, row, (size_t)width * channels);
        return;
    }
    for (uint32_t x = 0; x < width; x++) put_raw(s, row + (size_t)x * channels, 1);
}

void lk_png_write(uint8_t *out, const uint8_t *pixels, uint32_t height, uint32_t width,
                  uint32_t channels) {
    static const uint8_t signature[SIGNATURE_BYTES] = {0x89, 'P', 'N', 'G', 13, 10, 26, 10};
    const size_t bytes = lk_png_bytes(height, width, channels);
    lk_assert(bytes > 0);
    memcpy(out, signature, sizeof signature);
    uint8_t *chunk = out + sizeof signature, *at = put_u32(put_u32(chunk + 8, width), height);
    const uint8_t kind[5] = {8, lk_png_shown_channels(channels) == 3 ? 2 : 0, 0, 0, 0};
    memcpy(at, kind, sizeof kind);
    chunk = close_chunk(chunk, "IHDR", at + sizeof kind);
    chunk[8] = 0x78;
    chunk[9] = 0x01;
    stream s = {.at = chunk + 10, .left = raw_bytes(height, width, channels), .adler = 1};
    for (uint32_t y = 0; y < height; y++) {
        put_row(&s, pixels + (size_t)y * width * channels, width, channels);
    }
    chunk = close_chunk(chunk, "IDAT", put_u32(s.at, s.adler));
    lk_assert(close_chunk(chunk, "IEND", chunk + 8) == out + bytes);
}
