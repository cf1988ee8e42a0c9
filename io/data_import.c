// data_import.c - .npy pairs and CIFAR's binary files to IDX, read in pieces and checked; and lists
// of classes.
#define _GNU_SOURCE
#include "io/data_import.h"

#include <stdlib.h>
#include <string.h>

#include "io/idx.h"
#include "io/import_files.h"
#include "io/npy.h"

typedef unsigned long long ull;

static const lk_file_ops *const ops = &lk_file_ops_posix;

enum { PIECE_BYTES = 64 * 1024 };

// --- .npy ----------------------------------------------------------------------------------------

static lk_status check_images(const lk_import_array *a, lk_imported *out, lk_error *error) {
    lk_npy_images images;
    LK_CHECK(lk_npy_as_images(&a->npy, a->path, &images, error));
    out->count = images.count;
    out->height = images.height;
    out->width = images.width;
    out->channels = images.channels;
    out->is_f32 = images.is_f32;
    return LK_OK;
}

static lk_status check_label_array(const lk_import_array *a, const char *images, uint64_t count,
                                   lk_error *error) {
    const lk_npy *n = &a->npy;
    const bool shape = n->ndim == 1 || (n->ndim == 2 && n->dims[1] == 1);
    if (!shape || (n->type != 'u' && n->type != 'i')) {
        return lk_fail(error, LK_BAD_DATA,
                       "%s: %u dimensions of %c%u, wanted (n) or (n, 1) integers: the numbers of "
                       "classes",
                       a->path, n->ndim, n->type, n->item_bytes);
    }
    if (n->dims[0] == count) return LK_OK;
    return lk_fail(error, LK_BAD_DATA,
                   "%s: found %llu labels, wanted %llu, one for each image of %s", a->path,
                   (ull)n->dims[0], (ull)count, images);
}

static lk_status copy_images(lk_import_files *f, const lk_import_array *a, uint64_t example_bytes,
                             lk_error *error) {
    _Static_assert(PIECE_BYTES % sizeof(float) == 0, "a piece holds whole floats");
    uint8_t piece[PIECE_BYTES];
    const uint32_t item = a->npy.item_bytes;
    const uint64_t count = a->npy.count * item / example_bytes;
    for (uint64_t i = 0; i < count; i++) {
        const lk_import_part part = lk_import_place(f, i);
        for (uint64_t at = 0; at < example_bytes;) {
            const size_t bytes = (size_t)LK_MIN(example_bytes - at, sizeof piece);
            LK_CHECK(lk_file_read_all(ops, a->file, a->path, piece, bytes,
                                      a->npy.header_bytes + i * example_bytes + at, error));
            if (item == sizeof(float)) {
                const uint64_t first = (i * example_bytes + at) / item;
                LK_CHECK(lk_import_turn_floats(piece, bytes, first, a->path, error));
            }
            LK_CHECK(lk_import_image(f, part, piece, bytes, error));
            at += bytes;
        }
    }
    return LK_OK;
}

// Items of any width, none above `limit`: the greatest of them, and with files what they say into
// these. A negative one has its top byte set.
static lk_status each_label(lk_import_files *f, const lk_import_array *a, uint32_t limit,
                            uint32_t *greatest, lk_error *error) {
    enum { ITEMS = 4096 };
    uint8_t piece[ITEMS * 8];
    const uint32_t width = a->npy.item_bytes;
    for (uint64_t at = 0; at < a->npy.count;) {
        const size_t items = (size_t)LK_MIN(a->npy.count - at, ITEMS);
        LK_CHECK(lk_file_read_all(ops, a->file, a->path, piece, items * width,
                                  a->npy.header_bytes + at * width, error));
        for (size_t i = 0; i < items; i++) {
            uint64_t value = 0;
            for (uint32_t b = width; b-- > 0;) value = value << 8 | piece[i * width + b];
            if (value > limit || (a->npy.type == 'i' && value >> (8 * width - 1))) {
                return lk_fail(error, LK_BAD_DATA,
                               "%s: label %llu is negative or above %u, wanted 0 to %u", a->path,
                               (ull)(at + i), limit, limit);
            }
            const uint32_t label = (uint32_t)value;
            *greatest = LK_MAX(*greatest, label);
            if (f) LK_CHECK(lk_import_label(f, lk_import_place(f, at + i), label, error));
        }
        at += items;
    }
    return LK_OK;
}

static lk_status import_arrays(lk_import_files *f, const lk_import_array *images,
                               const lk_import_array *labels, const lk_import_to *to,
                               lk_imported out[2], lk_error *error) {
    lk_imported of = {.count = 0};
    uint32_t greatest = 0, again = 0;
    LK_CHECK(check_images(images, &of, error));
    LK_CHECK(check_label_array(labels, images->path, of.count, error));
    LK_CHECK(each_label(NULL, labels, LK_CLASSES_MAX - 1, &greatest, error));
    of.label_type = lk_idx_label_type(greatest + 1);
    LK_CHECK(lk_import_start(f, to, out, error));
    LK_CHECK(lk_import_begin(f, of.count, &of, error));
    LK_CHECK(each_label(f, labels, greatest, &again, error));
    const uint64_t values = (uint64_t)of.height * of.width * of.channels;
    LK_CHECK(copy_images(f, images, values * images->npy.item_bytes, error));
    return lk_import_finish(f, error);
}

lk_status lk_import_npy(const char *images, const char *labels, const lk_import_to *to,
                        lk_imported out[2], lk_error *error) {
    lk_import_array a, b;
    lk_import_files f;
    f.file_count = 0;
    LK_CHECK(lk_import_open_array(&a, images, error));
    lk_status status = lk_import_open_array(&b, labels, error);
    if (status == LK_OK) {
        status = import_arrays(&f, &a, &b, to, out, error);
        ops->close(ops->context, b.file);
    }
    ops->close(ops->context, a.file);
    lk_import_abandon(&f);
    return status;
}

// --- CIFAR ---------------------------------------------------------------------------------------

enum { CIFAR_BYTES = LK_CIFAR_PIXELS * LK_CIFAR_CHANNELS, CIFAR_FILES_MAX = 5, CIFAR_SIDE = 32 };

typedef struct cifar {
    uint32_t classes, label_bytes;  // of a record: 1, or coarse and fine
    const char *files[2][CIFAR_FILES_MAX];
    const char *names;
} cifar;

static const cifar cifar_10 = {10,
                               1,
                               {{"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                 "data_batch_4.bin", "data_batch_5.bin"},
                                {"test_batch.bin"}},
                               "batches.meta.txt"};
static const cifar cifar_100 = {100, 2, {{"train.bin"}, {"test.bin"}}, "fine_label_names.txt"};

void lk_cifar_pixels(const uint8_t planes[CIFAR_BYTES], uint8_t out[CIFAR_BYTES]) {
    for (uint32_t pixel = 0; pixel < LK_CIFAR_PIXELS; pixel++) {
        for (uint32_t c = 0; c < LK_CIFAR_CHANNELS; c++) {
            out[pixel * LK_CIFAR_CHANNELS + c] = planes[c * LK_CIFAR_PIXELS + pixel];
        }
    }
}

// Opens a file of records and says how many it has.
static lk_status open_records(const cifar *set, const char *directory, const char *name,
                              char path[LK_PATH_BYTES], int *file, uint64_t *count,
                              lk_error *error) {
    const uint64_t record = set->label_bytes + CIFAR_BYTES;
    uint64_t bytes;
    LK_CHECK(lk_path_join(path, directory, "/", name, error));
    LK_CHECK(lk_file_open_read(ops, path, file, &bytes, error));
    *count = bytes / record;
    if (bytes && bytes % record == 0) return LK_OK;
    ops->close(ops->context, *file);
    return lk_fail(error, LK_BAD_DATA,
                   "%s: found %llu bytes, wanted a multiple of %llu: records of "
                   "CIFAR-%u",
                   path, (ull)bytes, (ull)record, set->classes);
}

static lk_status copy_records(const cifar *set, lk_import_files *f, lk_import_part part,
                              const char *path, int file, uint64_t count, lk_error *error) {
    const uint32_t record = set->label_bytes + CIFAR_BYTES;
    uint8_t piece[2 + CIFAR_BYTES], pixels[CIFAR_BYTES];
    for (uint64_t i = 0; i < count; i++) {
        LK_CHECK(lk_file_read_all(ops, file, path, piece, record, i * record, error));
        const uint8_t *label = &piece[set->label_bytes - 1];
        if (*label >= set->classes) {
            return lk_fail(error, LK_BAD_DATA,
                           "%s: byte %llu: label %u of record %llu, wanted one "
                           "below %u",
                           path, (ull)(i * record + set->label_bytes - 1), *label, (ull)i,
                           set->classes);
        }
        lk_cifar_pixels(piece + set->label_bytes, pixels);
        LK_CHECK(lk_import_image(f, part, pixels, sizeof pixels, error));
        LK_CHECK(lk_import_label(f, part, *label, error));
    }
    return LK_OK;
}

// First all files are counted, for the headers; then they are read.
static lk_status import_part(const cifar *set, lk_import_files *f, const char *directory,
                             lk_import_part part, lk_error *error) {
    char path[LK_PATH_BYTES];
    lk_imported *out = &f->parts[part];
    uint64_t count;
    int file;
    *out = (lk_imported){.height = CIFAR_SIDE,
                         .width = CIFAR_SIDE,
                         .channels = LK_CIFAR_CHANNELS,
                         .classes = set->classes};
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t n = 0; n < CIFAR_FILES_MAX && set->files[part][n]; n++) {
            LK_CHECK(open_records(set, directory, set->files[part][n], path, &file, &count, error));
            lk_status status = LK_OK;
            if (pass == 0)
                out->count += count;
            else
                status = copy_records(set, f, part, path, file, count, error);
            ops->close(ops->context, file);
            LK_CHECK(status);
        }
        if (pass == 0) LK_CHECK(lk_import_begin_part(f, part, error));
    }
    return LK_OK;
}

// --- classes -------------------------------------------------------------------------------------

bool lk_class_name_is_good(const char *name, size_t letters) {
    bool good = letters > 0 && letters < LK_CLASS_NAME_BYTES && name[0] != ' ';
    for (size_t i = 0; i < letters; i++) good = good && name[i] >= ' ' && name[i] <= '~';
    return good;
}

void lk_class_list_clear(lk_class_list *list) {
    list->count = 0;
    memset(list->slots, 0, sizeof list->slots);
}

// The slot of a name: its own, or the free one that it would get. There are twice as many as names.
static uint32_t slot_of(const lk_class_list *list, const char *name, size_t letters) {
    uint32_t hash = 2166136261u;  // FNV-1a
    for (size_t i = 0; i < letters; i++) hash = (hash ^ (uint8_t)name[i]) * 16777619u;
    uint32_t slot = hash % LK_CLASS_SLOTS;
    for (; list->slots[slot]; slot = (slot + 1) % LK_CLASS_SLOTS) {
        const char *there = list->names[list->slots[slot] - 1];
        if (strlen(there) == letters && memcmp(there, name, letters) == 0) break;
    }
    return slot;
}

uint32_t lk_class_list_find(const lk_class_list *list, const char *name, size_t letters) {
    const uint32_t there = list->slots[slot_of(list, name, letters)];
    return there ? there - 1 : list->count;
}

bool lk_class_list_add(lk_class_list *list, const char *name, size_t letters) {
    if (!lk_class_name_is_good(name, letters) || list->count == LK_CLASSES_MAX) return false;
    const uint32_t slot = slot_of(list, name, letters);
    if (list->slots[slot]) return false;
    memcpy(list->names[list->count], name, letters);
    list->names[list->count++][letters] = '\0';
    list->slots[slot] = list->count;
    return true;
}

static int by_bytes(const void *a, const void *b) { return strcmp(a, b); }

void lk_class_list_sort(lk_class_list *list) {
    const uint32_t count = list->count;
    qsort(list->names, count, sizeof list->names[0], by_bytes);
    lk_class_list_clear(list);
    for (; list->count < count; list->count++) {
        const char *name = list->names[list->count];
        list->slots[slot_of(list, name, strlen(name))] = list->count + 1;
    }
}

size_t lk_class_names(const char *text, size_t bytes, uint32_t count, const char *name,
                      char out[LK_CLASS_NAMES_BYTES], lk_error *error) {
    size_t used = 0;
    uint32_t names = 0;
    bool ended = false;  // by an empty line
    for (size_t at = 0, end; at < bytes; at = end + 1) {
        const char *newline = memchr(text + at, '\n', bytes - at);
        end = newline ? (size_t)(newline - text) : bytes;
        size_t letters = end - at;
        if (letters && text[end - 1] == '\r') letters--;
        if (letters == 0) {
            ended = true;
            continue;
        }
        if (ended || names == count || !lk_class_name_is_good(text + at, letters) ||
            used + letters + 1 > LK_CLASS_NAMES_BYTES) {
            lk_fail(error, LK_BAD_DATA,
                    "%s: byte %zu: wanted %u names, one a line, of at most 63 printing letters",
                    name, at, count);
            return 0;
        }
        memcpy(out + used, text + at, letters);
        used += letters;
        out[used++] = '\n';
        names++;
    }
    if (names == count) return used;
    lk_fail(error, LK_BAD_DATA, "%s: found %u names, wanted %u", name, names, count);
    return 0;
}

// classes.txt, if the names lie beside the records.
static lk_status import_names(const cifar *set, lk_import_files *f, const char *directory,
                              lk_error *error) {
    char path[LK_PATH_BYTES], text[LK_CLASS_NAMES_BYTES], names[LK_CLASS_NAMES_BYTES];
    uint64_t bytes;
    int file;
    lk_error none = {.status = LK_OK};
    LK_CHECK(lk_path_join(path, directory, "/", set->names, error));
    if (lk_file_open_read(ops, path, &file, &bytes, &none) != LK_OK) {
        return none.status == LK_NO_INPUT ? LK_OK : lk_fail(error, none.status, "%s", none.text);
    }
    const size_t count = (size_t)LK_MIN(bytes, sizeof text);
    lk_status status = lk_file_read_all(ops, file, path, text, count, 0, error);
    ops->close(ops->context, file);
    LK_CHECK(status);
    const size_t used = lk_class_names(text, count, set->classes, path, names, error);
    if (!used) return error->status;
    return lk_import_names(f, names, used, error);
}

lk_status lk_import_cifar(const char *directory, const char *to, lk_imported out[2],
                          uint32_t *classes, lk_error *error) {
    char path[LK_PATH_BYTES];
    lk_import_files f;
    f.file_count = 0;
    LK_CHECK(lk_path_join(path, directory, "/", cifar_10.files[0][0], error));
    int ten = ops->open(ops->context, path, LK_OPEN_READ);
    if (ten >= 0) ops->close(ops->context, ten);
    const cifar *set = ten >= 0 ? &cifar_10 : &cifar_100;
    *classes = set->classes;
    lk_status status = lk_import_start(&f, &(lk_import_to){.directory = to}, out, error);
    for (uint32_t part = 0; part < 2 && status == LK_OK; part++) {
        status = import_part(set, &f, directory, (lk_import_part)part, error);
    }
    if (status == LK_OK) status = import_names(set, &f, directory, error);
    if (status == LK_OK) status = lk_import_finish(&f, error);
    lk_import_abandon(&f);
    return status;
}
