// png.h - a small picture as a PNG file in the caller's memory, stored rather than compressed: the
// bytes are known beforehand, and nothing is allocated.
//
// Host only (zlib's checksums). Of 1 or 3 channels as they are, grey and RGB; of any other number
// the first alone, as grey.
#ifndef LOCKSTEP_IO_PNG_H
#define LOCKSTEP_IO_PNG_H

#include "arena/base.h"

#ifdef __cplusplus
extern "C" {
#endif

// The most pixels of an image that has a picture. Larger ones have none: 0 bytes.
enum { LK_PNG_PIXELS_MAX = 1 << 20 };

// How many channels of an image its picture shows: all of them, or the first alone.
uint32_t lk_png_shown_channels(uint32_t channels);

size_t lk_png_bytes(uint32_t height, uint32_t width, uint32_t channels);

// pixels  (height, width, channels) bytes
// out     (lk_png_bytes), written entirely
void lk_png_write(uint8_t *out, const uint8_t *pixels, uint32_t height, uint32_t width,
                  uint32_t channels);

#ifdef __cplusplus
}
#endif
#endif
