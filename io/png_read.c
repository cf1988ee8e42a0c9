// png_read.c - libpng with its memory and its errors led to ours. What it takes comes one after
// another from the caller's memory and is never given back: all of it goes with the picture.
#include "io/png_read.h"

#include <string.h>

#ifndef LK_HAVE_PNG

bool lk_png_can_read(void) { return false; }

lk_status lk_png_read(const uint8_t *bytes, size_t count, const char *name, void *memory,
                      size_t memory_bytes, lk_png_image *out, lk_error *error) {
    (void)bytes, (void)count, (void)memory, (void)memory_bytes, (void)out;
    return lk_fail(error, LK_UNAVAILABLE,
                   "%s: this Lockstep was built without libpng; install libpng-dev and build it "
                   "again, or convert the pictures to .npy",
                   name);
}

#else

#include <png.h>
#include <setjmp.h>

bool lk_png_can_read(void) { return true; }

enum { ALIGN = 16, SIGNATURE_BYTES = 8 };

typedef struct reading {
    const uint8_t *at, *end;
    uint8_t *free, *free_end;
    bool no_memory;
    const char *name;
    lk_error *error;
    lk_png_image image;
    jmp_buf back;
} reading;

static png_voidp take(png_structp png, png_alloc_size_t bytes) {
    reading *r = png_get_mem_ptr(png);
    const size_t room = (size_t)(r->free_end - r->free);
    if (bytes > room || room - bytes < ALIGN) {
        r->no_memory = true;
        return NULL;
    }
    uint8_t *found = r->free;
    r->free += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return found;
}

static void give_back(png_structp png, png_voidp memory) { (void)png, (void)memory; }

static void wrong(png_structp png, png_const_charp what) {
    reading *r = png_get_error_ptr(png);
    if (r->no_memory) {
        lk_fail(r->error, LK_UNAVAILABLE, "%s: there is no memory for the picture", r->name);
    } else if (r->error->status == LK_OK) {
        lk_fail(r->error, LK_BAD_DATA, "%s: is no whole PNG picture: %s", r->name, what);
    }
    longjmp(r->back, 1);
}

// What may be odd and is taken all the same; errors of a data set come as errors.
static void odd(png_structp png, png_const_charp what) { (void)png, (void)what; }

static void read_bytes(png_structp png, png_bytep out, size_t count) {
    reading *r = png_get_io_ptr(png);
    if (count > (size_t)(r->end - r->at)) png_error(png, "it is cut short");
    memcpy(out, r->at, count);
    r->at += count;
}

// What the header says; LK_OK and nothing changed, or refused.
static void check_header(reading *r, png_structp png, png_infop info) {
    const uint32_t bits = png_get_bit_depth(png, info), color = png_get_color_type(png, info);
    if (bits > 8) {
        lk_fail(r->error, LK_BAD_DATA,
                "%s: found %u bits for each channel, wanted 8; convert the picture", r->name, bits);
        longjmp(r->back, 1);
    }
    if (color & PNG_COLOR_MASK_ALPHA || png_get_valid(png, info, PNG_INFO_tRNS)) {
        lk_fail(r->error, LK_BAD_DATA,
                "%s: found transparency, wanted grey or RGB alone; put the picture on a background",
                r->name);
        longjmp(r->back, 1);
    }
    r->image.height = png_get_image_height(png, info);
    r->image.width = png_get_image_width(png, info);
    r->image.channels = color & PNG_COLOR_MASK_COLOR ? 3 : 1;
    if ((uint64_t)r->image.height * r->image.width > LK_PNG_PIXELS_MAX) {
        lk_fail(r->error, LK_BAD_DATA, "%s: found %u x %u pixels, wanted at most %d", r->name,
                r->image.height, r->image.width, LK_PNG_PIXELS_MAX);
        longjmp(r->back, 1);
    }
}

static void read_picture(reading *r, png_structp png, png_infop info) {
    png_set_read_fn(png, r, read_bytes);
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    png_set_user_limits(png, 65535, 65535);
    png_set_crc_action(png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
    png_read_info(png, info);
    check_header(r, png, info);
    png_set_packing(png);
    png_set_expand(png);  // fewer bits to 8, palettes to RGB
    const int passes = png_set_interlace_handling(png);
    png_read_update_info(png, info);
    const size_t row = (size_t)r->image.width * r->image.channels;
    if (png_get_rowbytes(png, info) != row) png_error(png, "rows of another length");
    uint8_t *pixels = take(png, row * r->image.height);
    if (!pixels) png_error(png, "no memory");
    memset(pixels, 0, row * r->image.height);
    r->image.pixels = pixels;
    for (int pass = 0; pass < passes; pass++) {
        for (uint32_t y = 0; y < r->image.height; y++) png_read_row(png, pixels + y * row, NULL);
    }
    png_read_end(png, NULL);
    if (r->at != r->end) png_error(png, "there is more behind its end");
}

lk_status lk_png_read(const uint8_t *bytes, size_t count, const char *name, void *memory,
                      size_t memory_bytes, lk_png_image *out, lk_error *error) {
    reading r = {.at = bytes, .end = bytes + count, .free = memory, .name = name, .error = error};
    r.free_end = r.free + memory_bytes;
    if (count < SIGNATURE_BYTES || png_sig_cmp(bytes, 0, SIGNATURE_BYTES) != 0) {
        return lk_fail(error, LK_BAD_DATA, "%s: byte 0: found no PNG signature", name);
    }
    if (setjmp(r.back) == 0) {
        png_structp png =
            png_create_read_struct_2(PNG_LIBPNG_VER_STRING, &r, wrong, odd, &r, take, give_back);
        png_infop info = png ? png_create_info_struct(png) : NULL;
        if (!info) return lk_fail(error, LK_UNAVAILABLE, "%s: libpng does not start", name);
        read_picture(&r, png, info);
    }
    // Nothing is to be destroyed: all that libpng took lies in `memory`.
    *out = r.image;
    return error->status;
}

#endif
