// data_import.c - .npy pairs and CIFAR's binary files to IDX: read in pieces, checked, written
// under temporary names, and all named at the end.
#include "io/data_import.h"

#include <errno.h>
#include <string.h>

#include "io/idx.h"
#include "io/npy.h"

typedef unsigned long long ull;

static const lk_file_ops *const ops = &lk_file_ops_posix;

enum { PIECE_BYTES = 64 * 1024, FILES_MAX = 5 };

// Files that are written, and named together.
typedef struct output {
    uint32_t count;
    struct {
        int file;  // -1: closed
        char path[LK_PATH_BYTES], temporary[LK_PATH_BYTES];
    } at[FILES_MAX];
} output;

// --- what is written -----------------------------------------------------------------------------

static lk_status add_file(output *o, const char *to, const char *name, uint32_t *number,
                          lk_error *error) {
    lk_assert(o->count < FILES_MAX);
    *number = o->count;
    char *path = o->at[o->count].path;
    LK_CHECK(lk_path_join(path, to, "/", name, error));
    LK_CHECK(lk_path_join(o->at[o->count].temporary, path, "", ".tmp", error));
    int there = ops->open(ops->context, path, LK_OPEN_READ);
    if (there >= 0) ops->close(ops->context, there);
    if (there != -ENOENT) {
        return lk_fail(error, LK_BAD_USAGE,
                       "%s: is there already, and nothing is replaced; remove it, or name another "
                       "directory",
                       path);
    }
    LK_CHECK(lk_file_create(ops, o->at[o->count].temporary, &o->at[o->count].file, error));
    o->count++;
    return LK_OK;
}

static lk_status put(output *o, uint32_t number, const void *data, size_t bytes, lk_error *error) {
    return lk_file_write_all(ops, o->at[number].file, o->at[number].temporary, data, bytes, error);
}

static lk_status finish(output *o, lk_error *error) {
    for (uint32_t i = 0; i < o->count; i++) {
        int file = o->at[i].file;
        o->at[i].file = -1;
        LK_CHECK(lk_file_sync_close(ops, file, o->at[i].temporary, error));
    }
    for (uint32_t i = 0; i < o->count; i++) {
        if (lk_file_publish(ops, o->at[i].temporary, o->at[i].path, error) == LK_OK) {
            o->at[i].temporary[0] = '\0';
            continue;
        }
        while (i-- > 0) ops->remove(ops->context, o->at[i].path);  // a part of a set is none
        return error->status;
    }
    return LK_OK;
}

// After a failure: what was begun goes; after a finish there is nothing to do.
static void abandon(output *o) {
    for (uint32_t i = 0; i < o->count; i++) {
        if (o->at[i].file >= 0) ops->close(ops->context, o->at[i].file);
        if (o->at[i].temporary[0]) ops->remove(ops->context, o->at[i].temporary);
    }
}

static lk_status make_directory(const char *to, lk_error *error) {
    int made = ops->make_directory(ops->context, to);
    if (made >= 0 || made == -EEXIST) return LK_OK;
    return lk_file_fail(error, LK_IO_ERROR, to, "create the directory", made);
}

// The two files of a part, with their headers.
static lk_status begin_part(output *o, const char *to, lk_import_part part, lk_imported *of,
                            uint32_t *images, uint32_t *labels, lk_error *error) {
    static const char *const names[2][2] = {{"train-images-idx3-ubyte", "train-labels-idx1-ubyte"},
                                            {"t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"}};
    uint8_t header[LK_IDX_HEADER_BYTES_MAX];
    if (of->count > UINT32_MAX) {
        return lk_fail(error, LK_BAD_DATA, "%llu examples, and IDX counts them in 32 bits",
                       (ull)of->count);
    }
    lk_idx idx = {.ndim = of->channels == 1 ? 3 : 4,
                  .count = (uint32_t)of->count,
                  .height = of->height,
                  .width = of->width,
                  .channels = of->channels};
    LK_CHECK(add_file(o, to, names[part][0], images, error));
    LK_CHECK(put(o, *images, header, lk_idx_write_header(&idx, header), error));
    idx = (lk_idx){.ndim = 1, .count = idx.count, .height = 1, .width = 1, .channels = 1};
    LK_CHECK(add_file(o, to, names[part][1], labels, error));
    LK_CHECK(put(o, *labels, header, lk_idx_write_header(&idx, header), error));
    LK_CHECK(lk_path_join(of->images, o->at[*images].path, "", "", error));
    return lk_path_join(of->labels, o->at[*labels].path, "", "", error);
}

// --- .npy ----------------------------------------------------------------------------------------

typedef struct array {
    const char *path;
    int file;
    lk_npy npy;
} array;

static lk_status open_array(array *a, const char *path, lk_error *error) {
    uint8_t head[LK_NPY_READ_BYTES_MAX];
    uint64_t bytes;
    a->path = path;
    LK_CHECK(lk_file_open_read(ops, path, &a->file, &bytes, error));
    const size_t count = (size_t)LK_MIN(bytes, sizeof head);
    lk_status status = lk_file_read_all(ops, a->file, path, head, count, 0, error);
    if (status == LK_OK) status = lk_npy_parse(head, count, bytes, path, &a->npy, error);
    if (status == LK_OK) return LK_OK;
    ops->close(ops->context, a->file);
    return status;
}

static lk_status check_images(const array *a, lk_imported *out, lk_error *error) {
    lk_npy_images images;
    LK_CHECK(lk_npy_as_images(&a->npy, a->path, &images, error));
    out->count = images.count;
    out->height = images.height;
    out->width = images.width;
    out->channels = images.channels;
    return LK_OK;
}

static lk_status check_label_array(const array *a, const char *images, uint64_t count,
                                   lk_error *error) {
    const lk_npy *n = &a->npy;
    const bool shape = n->ndim == 1 || (n->ndim == 2 && n->dims[1] == 1);
    if (!shape || (n->type != 'u' && n->type != 'i')) {
        return lk_fail(error, LK_BAD_DATA,
                       "%s: %u dimensions of %c%u, wanted (n) or (n, 1) integers: the numbers of "
                       "classes",
                       a->path, n->ndim, n->type, n->item_bytes);
    }
    return lk_idx_check_counts(count, images, n->dims[0], a->path, error);
}

static lk_status copy_images(output *o, uint32_t to, const array *a, lk_error *error) {
    uint8_t piece[PIECE_BYTES];
    for (uint64_t at = 0; at < a->npy.count;) {
        const size_t bytes = (size_t)LK_MIN(a->npy.count - at, sizeof piece);
        LK_CHECK(
            lk_file_read_all(ops, a->file, a->path, piece, bytes, a->npy.header_bytes + at, error));
        LK_CHECK(put(o, to, piece, bytes, error));
        at += bytes;
    }
    return LK_OK;
}

// Items of any width to bytes. A negative one has its top byte set.
static lk_status copy_labels(output *o, uint32_t to, const array *a, uint32_t *classes,
                             lk_error *error) {
    enum { ITEMS = 4096 };
    uint8_t piece[ITEMS * 8], labels[ITEMS];
    const uint32_t width = a->npy.item_bytes;
    for (uint64_t at = 0; at < a->npy.count;) {
        const size_t items = (size_t)LK_MIN(a->npy.count - at, ITEMS);
        LK_CHECK(lk_file_read_all(ops, a->file, a->path, piece, items * width,
                                  a->npy.header_bytes + at * width, error));
        for (size_t i = 0; i < items; i++) {
            uint64_t value = 0;
            for (uint32_t b = width; b-- > 0;) value = value << 8 | piece[i * width + b];
            if (value > 255 || (a->npy.type == 'i' && width == 1 && value > 127)) {
                return lk_fail(error, LK_BAD_DATA,
                               "%s: label %llu is negative or above 255, wanted 0 to 255", a->path,
                               (ull)(at + i));
            }
            labels[i] = (uint8_t)value;
            *classes = LK_MAX(*classes, (uint32_t)value + 1);
        }
        LK_CHECK(put(o, to, labels, items, error));
        at += items;
    }
    return LK_OK;
}

static lk_status import_arrays(output *o, const array *images, const array *labels, const char *to,
                               lk_import_part part, lk_imported *out, lk_error *error) {
    uint32_t image_file, label_file;
    LK_CHECK(check_images(images, out, error));
    LK_CHECK(check_label_array(labels, images->path, out->count, error));
    LK_CHECK(make_directory(to, error));
    LK_CHECK(begin_part(o, to, part, out, &image_file, &label_file, error));
    LK_CHECK(copy_labels(o, label_file, labels, &out->classes, error));
    LK_CHECK(copy_images(o, image_file, images, error));
    return finish(o, error);
}

lk_status lk_import_npy(const char *images, const char *labels, const char *to, lk_import_part part,
                        lk_imported *out, lk_error *error) {
    array a, b;
    output o = {.count = 0};
    *out = (lk_imported){.count = 0};
    LK_CHECK(open_array(&a, images, error));
    lk_status status = open_array(&b, labels, error);
    if (status == LK_OK) {
        status = import_arrays(&o, &a, &b, to, part, out, error);
        ops->close(ops->context, b.file);
    }
    ops->close(ops->context, a.file);
    abandon(&o);
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

static lk_status copy_records(const cifar *set, output *o, uint32_t images, uint32_t labels,
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
        LK_CHECK(put(o, images, pixels, sizeof pixels, error));
        LK_CHECK(put(o, labels, label, 1, error));
    }
    return LK_OK;
}

// First all files are counted, for the headers; then they are read.
static lk_status import_part(const cifar *set, output *o, const char *directory, const char *to,
                             lk_import_part part, lk_imported *out, lk_error *error) {
    char path[LK_PATH_BYTES];
    uint32_t images = 0, labels = 0;
    uint64_t count;
    int file;
    *out = (lk_imported){.height = CIFAR_SIDE,
                         .width = CIFAR_SIDE,
                         .channels = LK_CIFAR_CHANNELS,
                         .classes = set->classes};
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t f = 0; f < CIFAR_FILES_MAX && set->files[part][f]; f++) {
            LK_CHECK(open_records(set, directory, set->files[part][f], path, &file, &count, error));
            lk_status status = LK_OK;
            if (pass == 0)
                out->count += count;
            else
                status = copy_records(set, o, images, labels, path, file, count, error);
            ops->close(ops->context, file);
            LK_CHECK(status);
        }
        if (pass == 0) LK_CHECK(begin_part(o, to, part, out, &images, &labels, error));
    }
    return LK_OK;
}

static bool good_name(const char *name, size_t letters) {
    bool good = letters < LK_CLASS_NAME_BYTES && name[0] != ' ';
    for (size_t i = 0; i < letters; i++) good = good && name[i] >= ' ' && name[i] <= '~';
    return good;
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
        if (ended || names == count || !good_name(text + at, letters) ||
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
static lk_status import_names(const cifar *set, output *o, const char *directory, const char *to,
                              lk_error *error) {
    char path[LK_PATH_BYTES], text[LK_CLASS_NAMES_BYTES], names[LK_CLASS_NAMES_BYTES];
    uint64_t bytes;
    uint32_t number;
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
    LK_CHECK(add_file(o, to, "classes.txt", &number, error));
    return put(o, number, names, used, error);
}

lk_status lk_import_cifar(const char *directory, const char *to, lk_imported out[2],
                          uint32_t *classes, lk_error *error) {
    char path[LK_PATH_BYTES];
    output o = {.count = 0};
    LK_CHECK(lk_path_join(path, directory, "/", cifar_10.files[0][0], error));
    int ten = ops->open(ops->context, path, LK_OPEN_READ);
    if (ten >= 0) ops->close(ops->context, ten);
    const cifar *set = ten >= 0 ? &cifar_10 : &cifar_100;
    *classes = set->classes;
    lk_status status = make_directory(to, error);
    for (uint32_t part = 0; part < 2 && status == LK_OK; part++) {
        status = import_part(set, &o, directory, to, (lk_import_part)part, &out[part], error);
    }
    if (status == LK_OK) status = import_names(set, &o, directory, to, error);
    if (status == LK_OK) status = finish(&o, error);
    abandon(&o);
    return status;
}
