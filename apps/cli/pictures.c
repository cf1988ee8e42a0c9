// pictures.c - see pictures.h.
#include "apps/cli/pictures.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "io/file_ops.h"
#include "io/idx.h"
#include "io/npy.h"
#include "io/png_read.h"

static const lk_file_ops *const ops = &lk_file_ops_posix;

static lk_status no_memory(const char *path, lk_error *error) {
    return lk_fail(error, LK_UNAVAILABLE, "%s: no memory for it", path);
}

// --- one file ------------------------------------------------------------------------------------

static lk_status read_file(const char *path, uint8_t **memory, uint64_t *bytes, lk_error *error) {
    int file;
    LK_CHECK(lk_file_open_read(ops, path, &file, bytes, error));
    *memory = malloc((size_t)*bytes + 1);
    lk_status status = *memory
                           ? lk_file_read_all(ops, file, path, *memory, (size_t)*bytes, 0, error)
                           : no_memory(path, error);
    ops->close(ops->context, file);
    return status;
}

// A picture's pixels, in memory of its own.
static lk_status read_png(const uint8_t *bytes, uint64_t count, const char *path, void **memory,
                          lk_png_image *out, lk_error *error) {
    *memory = aligned_alloc(16, LK_PNG_MEMORY_BYTES);
    if (!*memory) return no_memory(path, error);
    return lk_png_read(bytes, (size_t)count, path, *memory, LK_PNG_MEMORY_BYTES, out, error);
}

// What lies in the memory of a file, but for labels.
static lk_status find_images(void **memory, uint64_t count, const char *path, lk_dataset_held *out,
                             lk_error *error) {
    uint8_t *bytes = *memory;
    if (count && bytes[0] == 0x89) {
        lk_png_image image = {.pixels = NULL};
        void *picture = NULL;
        lk_status status = read_png(bytes, count, path, &picture, &image, error);
        free(bytes);
        *memory = picture;
        *out = (lk_dataset_held){.images = image.pixels, .count = 1, .height = image.height,
                                 .width = image.width, .channels = image.channels};
        return status;
    }
    if (count && bytes[0] == 0x93) {
        lk_npy npy;
        lk_npy_images images;
        LK_CHECK(lk_npy_parse(bytes, count, count, path, &npy, error));
        LK_CHECK(lk_npy_as_images(&npy, path, &images, error));
        *out = (lk_dataset_held){.images = bytes + npy.header_bytes,
                                 .count = images.count,
                                 .height = images.height,
                                 .width = images.width,
                                 .channels = images.channels,
                                 .type = images.is_f32 ? LK_IDX_F32 : LK_IDX_U8};
        return LK_OK;
    }
    lk_idx idx;
    LK_CHECK(lk_idx_parse(bytes, count, count, LK_IDX_IMAGES, path, &idx, error));
    if (idx.type == LK_IDX_F32) lk_idx_turn_floats(bytes + idx.header_bytes, idx.data_bytes);
    *out = (lk_dataset_held){.images = bytes + idx.header_bytes,
                             .count = idx.count,
                             .height = idx.height,
                             .width = idx.width,
                             .channels = idx.channels,
                             .type = idx.type};
    return LK_OK;
}

// --- a folder ------------------------------------------------------------------------------------

typedef struct folder {
    const char *path;
    char **names;  // (capacity), of which count are there
    size_t count, capacity;
    lk_error *error;
} folder;

static void visit(void *context, const char *name) {
    folder *f = context;
    const size_t letters = strlen(name);
    if (name[0] == '.' || f->error->status != LK_OK) return;
    if (letters < 4 || (strcmp(name + letters - 4, ".png") != 0 &&
                        strcmp(name + letters - 4, ".PNG") != 0)) {
        lk_fail(f->error, LK_BAD_DATA, "%s: found \"%s\", wanted PNG files alone", f->path, name);
        return;
    }
    if (f->count == f->capacity) {
        const size_t capacity = 2 * f->capacity + 64;
        char **larger = realloc(f->names, capacity * sizeof *larger);
        if (larger) f->names = larger;
        if (larger) f->capacity = capacity;
    }
    char *copy = f->count < f->capacity ? malloc(letters + 1) : NULL;
    if (!copy) {
        no_memory(f->path, f->error);
        return;
    }
    memcpy(copy, name, letters + 1);
    f->names[f->count++] = copy;
}

static int by_bytes(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static lk_status add_picture(folder *f, size_t number, void **memory, lk_dataset_held *out) {
    char path[LK_PATH_BYTES];
    uint8_t *bytes = NULL;
    void *picture = NULL;
    uint64_t count;
    lk_png_image image = {.pixels = NULL};
    LK_CHECK(lk_path_join(path, f->path, "/", f->names[number], f->error));
    lk_status status = read_file(path, &bytes, &count, f->error);
    if (status == LK_OK) status = read_png(bytes, count, path, &picture, &image, f->error);
    const size_t size = (size_t)image.height * image.width * image.channels;
    if (status == LK_OK && number == 0) {
        *out = (lk_dataset_held){.count = f->count,
                                 .height = image.height,
                                 .width = image.width,
                                 .channels = image.channels};
        *memory = calloc(f->count, size);
        if (!*memory) status = no_memory(f->path, f->error);
    }
    if (status == LK_OK && (image.height != out->height || image.width != out->width ||
                            image.channels != out->channels)) {
        status = lk_fail(f->error, LK_BAD_DATA,
                         "%s: found %u x %u pixels of %u channels, wanted %u x %u of %u, as %s has",
                         path, image.height, image.width, image.channels, out->height, out->width,
                         out->channels, f->names[0]);
    }
    if (status == LK_OK) memcpy((uint8_t *)*memory + number * size, image.pixels, size);
    free(bytes);
    free(picture);
    return status;
}

// LK_OK and no image where the path is no folder.
static lk_status read_folder(const char *path, void **memory, lk_dataset_held *out,
                             lk_error *error) {
    folder f = {.path = path, .error = error};
    int status = ops->list(ops->context, path, visit, &f);
    if (status >= 0 && error->status == LK_OK && f.count == 0) {
        (void)lk_fail(error, LK_BAD_DATA, "%s: there is no picture in it", path);
    }
    if (f.count) qsort(f.names, f.count, sizeof *f.names, by_bytes);
    for (size_t i = 0; i < f.count && error->status == LK_OK; i++) {
        (void)add_picture(&f, i, memory, out);
    }
    if (f.count) out->images = *memory;
    for (size_t i = 0; i < f.count; i++) free(f.names[i]);
    free(f.names);
    return error->status;
}

lk_status lk_read_pictures(const char *path, void *memory[2], lk_dataset_held *out,
                           lk_error *error) {
    uint8_t *bytes = NULL;
    uint64_t count;
    *out = (lk_dataset_held){.count = 0};
    LK_CHECK(read_folder(path, &memory[0], out, error));
    if (!out->count) {
        lk_status status = read_file(path, &bytes, &count, error);
        memory[0] = bytes;
        LK_CHECK(status);
        LK_CHECK(find_images(&memory[0], count, path, out, error));
    }
    memory[1] = calloc((size_t)out->count, 1);
    if (!memory[1]) return no_memory(path, error);
    out->labels = memory[1];
    return LK_OK;
}
