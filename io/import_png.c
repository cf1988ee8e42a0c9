// import_png.c - a folder of folders of PNG files to IDX: names first, then one picture after
// another.
//
// The memory:  names of classes, numbers and addresses of files (`folder`) | names of all files |
//              per class: their addresses | one file | what libpng takes
#include "io/import_files.h"

#include <stdlib.h>
#include <string.h>

#include "io/png_read.h"

typedef unsigned long long ull;

static const lk_file_ops *const ops = &lk_file_ops_posix;

typedef struct folder {
    lk_class_list found, known;  // as they lie there; of a classes.txt, or none
    uint64_t pictures[LK_CLASSES_MAX];
    const char **files[LK_CLASSES_MAX];  // (pictures) in the order of their bytes
    const lk_class_list *classes;        // one of these lists, as they are numbered
    uint64_t most;                       // pictures of one class
    const char *path;
    uint8_t *free, *end;
    lk_error *error;
    char class_path[LK_PATH_BYTES];
    uint64_t listed;
} folder;

static lk_status no_room(const folder *f) {
    return lk_fail(f->error, LK_UNAVAILABLE, "%s: there is no memory for the names of its files",
                   f->path);
}

static void visit_class(void *context, const char *name) {
    folder *f = context;
    if (name[0] == '.' || f->error->status != LK_OK) return;
    const size_t letters = strlen(name);
    if (!lk_class_list_add(&f->found, name, letters)) {
        lk_fail(f->error, LK_BAD_DATA,
                "%s: found the folder \"%s\", wanted at most 65,536 classes with names of at most "
                "63 printing letters",
                f->path, name);
    }
}

static bool is_png(const char *name) {
    const size_t letters = strlen(name);
    const char *end = letters >= 4 ? name + letters - 4 : "";
    return strcmp(end, ".png") == 0 || strcmp(end, ".PNG") == 0;
}

static void visit_file(void *context, const char *name) {
    folder *f = context;
    const size_t bytes = strlen(name) + 1;
    if (name[0] == '.' || f->error->status != LK_OK) return;
    if (!is_png(name)) {
        lk_fail(f->error, LK_BAD_DATA, "%s: found \"%s\", wanted PNG files alone",
                f->class_path, name);
    } else if ((size_t)(f->end - f->free) < bytes) {
        no_room(f);
    } else {
        memcpy(f->free, name, bytes);
        f->free += bytes;
        f->listed++;
    }
}

static int by_bytes(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

// The names that were just listed from `names` on, in order.
static lk_status sort_files(folder *f, const char *names, uint32_t number) {
    uint8_t *begin = f->free + (-(uintptr_t)f->free & (sizeof(char *) - 1));
    if (begin > f->end || (uint64_t)(f->end - begin) / sizeof(char *) < f->listed) {
        return no_room(f);
    }
    const char **files = (const char **)(void *)begin;
    for (uint64_t i = 0; i < f->listed; i++) {
        files[i] = names;
        names += strlen(names) + 1;
    }
    f->free = begin + f->listed * sizeof *files;
    qsort(files, f->listed, sizeof *files, by_bytes);
    f->files[number] = files;
    f->pictures[number] = f->listed;
    f->most = LK_MAX(f->most, f->listed);
    return LK_OK;
}

static lk_status list_class(folder *f, uint32_t found, uint32_t number) {
    const char *names = (const char *)f->free;
    LK_CHECK(lk_path_join(f->class_path, f->path, "/", f->found.names[found], f->error));
    f->listed = 0;
    int status = ops->list(ops->context, f->class_path, visit_file, f);
    LK_CHECK(f->error->status);
    if (status < 0) {
        return lk_file_fail(f->error, LK_BAD_DATA, f->class_path,
                            "list it, wanted a folder for each class", status);
    }
    if (f->listed) return sort_files(f, names, number);
    return lk_fail(f->error, LK_BAD_DATA, "%s: there is no picture in it", f->class_path);
}

static lk_status list_all(folder *f, const lk_import_to *to) {
    int status = ops->list(ops->context, f->path, visit_class, f);
    LK_CHECK(f->error->status);
    if (status < 0) return lk_file_fail(f->error, LK_NO_INPUT, f->path, "list it", status);
    if (!f->found.count) {
        return lk_fail(f->error, LK_BAD_DATA,
                       "%s: there is no folder in it, wanted one for each class", f->path);
    }
    lk_class_list_sort(&f->found);
    LK_CHECK(lk_import_known_names(to, &f->known, f->error));
    f->classes = f->known.count ? &f->known : &f->found;
    for (uint32_t i = 0; i < f->found.count; i++) {
        const char *name = f->found.names[i];
        const uint32_t number = lk_class_list_find(f->classes, name, strlen(name));
        if (number == f->classes->count) {
            return lk_fail(f->error, LK_BAD_DATA,
                           "%s/%s: is no class of %s/classes.txt; import into another directory, "
                           "or take it out",
                           f->path, name, to->directory);
        }
        LK_CHECK(list_class(f, i, number));
    }
    return LK_OK;
}

// --- pictures ------------------------------------------------------------------------------------

static lk_status read_picture(folder *f, uint32_t number, uint64_t index, char path[LK_PATH_BYTES],
                              lk_png_image *out) {
    char directory[LK_PATH_BYTES];
    uint8_t *memory = f->free + (-(uintptr_t)f->free & 15);
    uint64_t bytes;
    int file;
    LK_CHECK(lk_path_join(directory, f->path, "/", f->classes->names[number], f->error));
    LK_CHECK(lk_path_join(path, directory, "/", f->files[number][index], f->error));
    LK_CHECK(lk_file_open_read(ops, path, &file, &bytes, f->error));
    const size_t room = memory < f->end ? (size_t)(f->end - memory) : 0;
    lk_status status;
    if (bytes > LK_IMPORT_PNG_FILE_BYTES) {
        status = lk_fail(f->error, LK_BAD_DATA, "%s: found %llu bytes, wanted at most %d", path,
                         (ull)bytes, LK_IMPORT_PNG_FILE_BYTES);
    } else if (room < bytes + 16) {
        status = no_room(f);
    } else {
        status = lk_file_read_all(ops, file, path, memory, (size_t)bytes, 0, f->error);
    }
    ops->close(ops->context, file);
    LK_CHECK(status);
    const size_t used = ((size_t)bytes + 15) / 16 * 16;
    return lk_png_read(memory, (size_t)bytes, path, memory + used, room - used, out, f->error);
}

static lk_status check_like(const lk_png_image *image, const char *path, const lk_imported *first,
                            const char *first_path, lk_error *error) {
    if (image->height == first->height && image->width == first->width &&
        image->channels == first->channels) {
        return LK_OK;
    }
    return lk_fail(error, LK_BAD_DATA,
                   "%s: found %u x %u pixels of %u channels, wanted %u x %u of %u, as the first "
                   "picture has, %s; bring all to one size",
                   path, image->height, image->width, image->channels, first->height, first->width,
                   first->channels, first_path);
}

// Round by round, one of each class that has still one.
static lk_status copy_all(folder *f, lk_import_files *files, uint64_t count) {
    char path[LK_PATH_BYTES], first_path[LK_PATH_BYTES];
    lk_imported first = {.count = 0};
    lk_png_image image;
    uint64_t example = 0;
    for (uint64_t i = 0; i < f->most; i++) {
        for (uint32_t c = 0; c < f->classes->count; c++) {
            if (i >= f->pictures[c]) continue;
            LK_CHECK(read_picture(f, c, i, path, &image));
            if (example == 0) {
                first.height = image.height;
                first.width = image.width;
                first.channels = image.channels;
                first.classes = f->classes->count;
                first.label_type = lk_idx_label_type(first.classes);
                memcpy(first_path, path, sizeof path);
                LK_CHECK(lk_import_begin(files, count, &first, f->error));
            }
            LK_CHECK(check_like(&image, path, &first, first_path, f->error));
            const lk_import_part part = lk_import_place(files, example++);
            const size_t bytes = (size_t)image.height * image.width * image.channels;
            LK_CHECK(lk_import_image(files, part, image.pixels, bytes, f->error));
            LK_CHECK(lk_import_label(files, part, c, f->error));
        }
    }
    return LK_OK;
}

static lk_status import_all(folder *f, lk_import_files *files, const lk_import_to *to,
                            lk_imported out[2]) {
    uint64_t count = 0;
    LK_CHECK(list_all(f, to));
    for (uint32_t c = 0; c < f->classes->count; c++) count += f->pictures[c];
    LK_CHECK(lk_import_start(files, to, out, f->error));
    LK_CHECK(copy_all(f, files, count));
    if (!f->known.count) LK_CHECK(lk_import_list(files, f->classes, f->error));
    return lk_import_finish(files, f->error);
}

lk_status lk_import_png(const char *path, const lk_import_to *to, void *memory, size_t bytes,
                        lk_imported out[2], lk_error *error) {
    folder *f = memory;
    lk_import_files files;
    files.file_count = 0;
    if (bytes < sizeof *f) {
        return lk_fail(error, LK_UNAVAILABLE, "%s: no memory for its classes", path);
    }
    f->path = path;
    f->free = (uint8_t *)(f + 1);
    f->end = (uint8_t *)memory + bytes;
    f->error = error;
    f->most = 0;
    memset(f->pictures, 0, sizeof f->pictures);
    lk_class_list_clear(&f->found);
    lk_status status = import_all(f, &files, to, out);
    lk_import_abandon(&files);
    return status;
}
