// png_read.h - a PNG file, as others write it, as pixels of a data set: by libpng, in the caller's
// memory alone. Host only.
//
// Taken: grey, RGB and palettes of at most 8 bits, interlaced or not. Grey of fewer bits is spread
// to 0 .. 255, a palette becomes RGB. Refused: 16 bits, transparency, wrong checksums, a file cut
// short, more pixels than LK_PNG_PIXELS_MAX. Gamma and colour profiles are passed over.
#ifndef LOCKSTEP_IO_PNG_READ_H
#define LOCKSTEP_IO_PNG_READ_H

#include "io/png.h"

#ifdef __cplusplus
extern "C" {
#endif

// Room for any picture that is taken.
enum { LK_PNG_MEMORY_BYTES = 24 << 20 };

typedef struct lk_png_image {
    uint32_t height, width, channels;  // 1 or 3
    const uint8_t *pixels;             // (height, width, channels), in `memory`
} lk_png_image;

// Whether this Lockstep was built with libpng.
bool lk_png_can_read(void);

// bytes    (count) the file
// memory   (memory_bytes) aligned to 16; the picture is at its beginning
// LK_BAD_DATA in a line that names the file. LK_UNAVAILABLE: too little memory, or no libpng.
lk_status lk_png_read(const uint8_t *bytes, size_t count, const char *name, void *memory,
                      size_t memory_bytes, lk_png_image *out, lk_error *error);

#ifdef __cplusplus
}
#endif
#endif
