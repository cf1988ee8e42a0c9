// import_files.c - the files of an import: headers, held bytes, and all names at the end.
#define _GNU_SOURCE
#include "io/import_files.h"

#include <endian.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "io/idx.h"
#include "io/shuffle.h"

typedef unsigned long long ull;

static const lk_file_ops *const ops = &lk_file_ops_posix;

enum { MILLION = 1000000 };

// --- .npy files ----------------------------------------------------------------------------------

lk_status lk_import_open_array(lk_import_array *a, const char *path, lk_error *error) {
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

lk_status lk_import_turn_floats(uint8_t *piece, size_t bytes, uint64_t first, const char *path,
                                lk_error *error) {
    for (size_t i = 0; i < bytes; i += sizeof(uint32_t)) {
        uint32_t word;
        memcpy(&word, piece + i, sizeof word);
        word = le32toh(word);
        if ((word & 0x7f800000u) == 0x7f800000u) {
            return lk_fail(error, LK_BAD_DATA,
                           "%s: value %llu: found %s, wanted finite numbers only", path,
                           (ull)(first + i / sizeof word),
                           word & 0x7fffffu ? "NaN" : "an infinity");
        }
    }
    lk_idx_turn_floats(piece, bytes);
    return LK_OK;
}

// --- what is written -----------------------------------------------------------------------------

lk_status lk_import_start(lk_import_files *f, const lk_import_to *to, lk_imported parts[2],
                          lk_error *error) {
    f->to = *to;
    f->parts = parts;
    f->file_count = 0;
    f->count = f->held_out = 0;
    parts[0] = parts[1] = (lk_imported){.count = 0};
    int made = ops->make_directory(ops->context, to->directory);
    if (made >= 0 || made == -EEXIST) return LK_OK;
    return lk_file_fail(error, LK_IO_ERROR, to->directory, "create the directory", made);
}

static bool has_name(int file, const char *path) {
    struct stat here, there;
    return fstat(file, &here) == 0 && stat(path, &there) == 0 && here.st_dev == there.st_dev &&
           here.st_ino == there.st_ino;
}

static lk_status refuse_second(const char *temporary, lk_error *error) {
    return lk_fail(error, LK_UNAVAILABLE,
                   "%s: another import writes there; wait for it, or name another directory",
                   temporary);
}

// What a killed import left goes; a file that its writer still holds stays.
static lk_status remove_leftover(const char *temporary, lk_error *error) {
    const int file = ops->open(ops->context, temporary, LK_OPEN_UPDATE);
    if (file == -ENOENT) return LK_OK;
    if (file < 0) return lk_file_fail(error, LK_IO_ERROR, temporary, "open the leftover", file);
    const int locked = ops->lock(ops->context, file);
    int removed = 0;
    if (locked == -EWOULDBLOCK)
        refuse_second(temporary, error);
    else if (has_name(file, temporary))  // its writer may have renamed it before the lock was free
        removed = ops->remove(ops->context, temporary);
    if (removed < 0) lk_file_fail(error, LK_IO_ERROR, temporary, "remove the leftover", removed);
    ops->close(ops->context, file);
    return error->status;
}

// A new file under a temporary name, locked until it has its own name or is removed: two imports
// must not write, rename or remove each other's.
static lk_status create_locked(const char *temporary, int *file, lk_error *error) {
    enum { TRIES = 100 };
    for (uint32_t i = 0; i < TRIES; i++) {
        *file = ops->open(ops->context, temporary, LK_OPEN_CREATE);
        if (*file == -EEXIST) {
            LK_CHECK(remove_leftover(temporary, error));
            continue;
        }
        if (*file < 0) return lk_file_fail(error, LK_IO_ERROR, temporary, "create", *file);
        const int locked = ops->lock(ops->context, *file);
        // Between the two another import may have taken it for a leftover. Where a file system has
        // no locks, nobody can tell.
        if (locked != -EWOULDBLOCK && has_name(*file, temporary)) return LK_OK;
        ops->close(ops->context, *file);
    }
    return refuse_second(temporary, error);
}

// Looked for while the temporary file is held: an import that ended before has its names by then.
static lk_status refuse_there(const char *path, lk_error *error) {
    int there = ops->open(ops->context, path, LK_OPEN_READ);
    if (there == -ENOENT) return LK_OK;
    if (there >= 0) ops->close(ops->context, there);
    return lk_fail(error, LK_BAD_USAGE,
                   "%s: is there already, and nothing is replaced; remove it, or name another "
                   "directory",
                   path);
}

static lk_status add_file(lk_import_files *f, const char *name, uint32_t *number, lk_error *error) {
    lk_assert(f->file_count < LK_IMPORT_FILES_MAX);
    *number = f->file_count;
    char *path = f->at[f->file_count].path, *temporary = f->at[f->file_count].temporary;
    LK_CHECK(lk_path_join(path, f->to.directory, "/", name, error));
    LK_CHECK(lk_path_join(temporary, path, "", ".tmp", error));
    LK_CHECK(refuse_there(path, error));
    LK_CHECK(create_locked(temporary, &f->at[f->file_count].file, error));
    f->at[f->file_count++].held = 0;
    return refuse_there(path, error);
}

static lk_status write_held(lk_import_files *f, uint32_t number, lk_error *error) {
    const uint32_t bytes = f->at[number].held;
    f->at[number].held = 0;
    return lk_file_write_all(ops, f->at[number].file, f->at[number].temporary, f->at[number].bytes,
                             bytes, error);
}

static lk_status put(lk_import_files *f, uint32_t number, const void *data, size_t bytes,
                     lk_error *error) {
    if (bytes > LK_IMPORT_HELD_BYTES - f->at[number].held) LK_CHECK(write_held(f, number, error));
    if (bytes > LK_IMPORT_HELD_BYTES) {
        return lk_file_write_all(ops, f->at[number].file, f->at[number].temporary, data, bytes,
                                 error);
    }
    memcpy(f->at[number].bytes + f->at[number].held, data, bytes);
    f->at[number].held += (uint32_t)bytes;
    return LK_OK;
}

lk_status lk_import_begin_part(lk_import_files *f, lk_import_part part, lk_error *error) {
    static const char *const names[2][2] = {{"train-images-idx3-ubyte", "train-labels-idx1-ubyte"},
                                            {"t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"}};
    uint8_t header[LK_IDX_HEADER_BYTES_MAX];
    lk_imported *of = &f->parts[part];
    if (of->count > UINT32_MAX) {
        return lk_fail(error, LK_BAD_DATA, "%llu examples, and IDX counts them in 32 bits",
                       (ull)of->count);
    }
    lk_idx idx = {.type = of->is_f32 ? LK_IDX_F32 : LK_IDX_U8,
                  .ndim = of->channels == 1 ? 3 : 4,
                  .count = (uint32_t)of->count,
                  .height = of->height,
                  .width = of->width,
                  .channels = of->channels};
    LK_CHECK(add_file(f, names[part][0], &f->images[part], error));
    LK_CHECK(put(f, f->images[part], header, lk_idx_write_header(&idx, header), error));
    idx = (lk_idx){.type = of->label_type,
                   .ndim = of->label_bytes ? 2 : 1,
                   .count = idx.count,
                   .height = LK_MAX(of->label_bytes / lk_idx_type_bytes(of->label_type), 1u),
                   .width = 1,
                   .channels = 1};
    LK_CHECK(add_file(f, names[part][1], &f->labels[part], error));
    LK_CHECK(put(f, f->labels[part], header, lk_idx_write_header(&idx, header), error));
    LK_CHECK(lk_path_join(of->images, f->at[f->images[part]].path, "", "", error));
    return lk_path_join(of->labels, f->at[f->labels[part]].path, "", "", error);
}

lk_status lk_import_begin(lk_import_files *f, uint64_t count, const lk_imported *of,
                          lk_error *error) {
    const uint32_t share = f->to.test_millionths;
    f->count = count;
    // Without rounding up anywhere: count / 10^6 whole millions and the rest.
    f->held_out = count / MILLION * share + count % MILLION * share / MILLION;
    if (!share) {
        f->parts[f->to.part] = *of;
        f->parts[f->to.part].count = count;
        return lk_import_begin_part(f, f->to.part, error);
    }
    if (f->held_out == 0 || f->held_out == count) {
        return lk_fail(error, LK_BAD_USAGE,
                       "--validation: of %llu examples this leaves one part empty; wanted a share "
                       "that leaves one in each",
                       (ull)count);
    }
    f->parts[LK_IMPORT_TRAIN] = f->parts[LK_IMPORT_TEST] = *of;
    f->parts[LK_IMPORT_TRAIN].count = count - f->held_out;
    f->parts[LK_IMPORT_TEST].count = f->held_out;
    LK_CHECK(lk_import_begin_part(f, LK_IMPORT_TRAIN, error));
    return lk_import_begin_part(f, LK_IMPORT_TEST, error);
}

lk_import_part lk_import_place(const lk_import_files *f, uint64_t example) {
    if (!f->held_out) return f->to.part;
    const uint64_t place = lk_unshuffle(f->to.seed, 0, f->count, example);
    return place < f->held_out ? LK_IMPORT_TEST : LK_IMPORT_TRAIN;
}

lk_status lk_import_image(lk_import_files *f, lk_import_part part, const void *data, size_t bytes,
                          lk_error *error) {
    return put(f, f->images[part], data, bytes, error);
}

lk_status lk_import_label(lk_import_files *f, lk_import_part part, uint32_t label,
                          lk_error *error) {
    lk_imported *of = &f->parts[part];
    uint8_t bytes[2];
    lk_assert(label < (of->label_type == LK_IDX_U16 ? LK_IDX_CLASSES_MAX : LK_IDX_U8_CLASSES_MAX));
    of->classes = LK_MAX(of->classes, label + 1);
    return put(f, f->labels[part], bytes, lk_idx_put_label(bytes, label, of->label_type), error);
}

lk_status lk_import_labels(lk_import_files *f, lk_import_part part, const uint8_t *row,
                           lk_error *error) {
    lk_imported *of = &f->parts[part];
    for (uint32_t i = 1; i < lk_idx_row_numbers(of->label_bytes, of->label_type); i++)
        of->classes = LK_MAX(of->classes, lk_idx_in_row(row, i, of->label_type) + 1);
    return put(f, f->labels[part], row, of->label_bytes, error);
}

// --- names of classes ----------------------------------------------------------------------------

// Piece by piece; a line is not longer than a name.
static lk_status read_names(lk_class_list *names, int file, const char *path, uint64_t bytes,
                            lk_error *error) {
    char piece[4096], line[LK_CLASS_NAME_BYTES];
    size_t letters = 0;
    for (uint64_t at = 0, begin = 0; at < bytes; at++) {
        if (at % sizeof piece == 0) {
            const size_t count = (size_t)LK_MIN(bytes - at, sizeof piece);
            LK_CHECK(lk_file_read_all(ops, file, path, piece, count, at, error));
        }
        const char letter = piece[at % sizeof piece];
        if (letter != '\n' && letters < sizeof line) line[letters] = letter;
        letters += letter != '\n';
        if (letter != '\n' && at + 1 < bytes) continue;
        if (!lk_class_list_add(names, line, letters)) {
            return lk_fail(error, LK_BAD_DATA,
                           "%s: byte %llu: wanted at most 65,536 different names, one a line, of "
                           "at most 63 printing letters",
                           path, (ull)begin);
        }
        begin = at + 1;
        letters = 0;
    }
    return LK_OK;
}

lk_status lk_import_known_names(const lk_import_to *to, lk_class_list *names, lk_error *error) {
    char path[LK_PATH_BYTES];
    uint64_t bytes;
    int file;
    lk_class_list_clear(names);
    LK_CHECK(lk_path_join(path, to->directory, "/", "classes.txt", error));
    lk_error none = {.status = LK_OK};
    if (lk_file_open_read(ops, path, &file, &bytes, &none) != LK_OK) {
        return none.status == LK_NO_INPUT ? LK_OK : lk_fail(error, none.status, "%s", none.text);
    }
    const lk_status status = read_names(names, file, path, bytes, error);
    ops->close(ops->context, file);
    return status;
}

lk_status lk_import_list(lk_import_files *f, const lk_class_list *names, lk_error *error) {
    uint32_t number;
    LK_CHECK(add_file(f, "classes.txt", &number, error));
    for (uint32_t i = 0; i < names->count; i++) {
        LK_CHECK(put(f, number, names->names[i], strlen(names->names[i]), error));
        LK_CHECK(put(f, number, "\n", 1, error));
    }
    return LK_OK;
}

lk_status lk_import_names(lk_import_files *f, const char *lines, size_t bytes, lk_error *error) {
    uint32_t number;
    LK_CHECK(add_file(f, "classes.txt", &number, error));
    return put(f, number, lines, bytes, error);
}

// --- the end -------------------------------------------------------------------------------------

lk_status lk_import_finish(lk_import_files *f, lk_error *error) {
    for (uint32_t i = 0; i < f->file_count; i++) {
        LK_CHECK(write_held(f, i, error));
        const int synced = ops->sync(ops->context, f->at[i].file);
        if (synced < 0) {
            return lk_file_fail(error, LK_IO_ERROR, f->at[i].temporary, "sync", synced);
        }
    }
    for (uint32_t i = 0; i < f->file_count; i++) {
        if (lk_file_publish(ops, f->at[i].temporary, f->at[i].path, error) == LK_OK) {
            f->at[i].temporary[0] = '\0';
            continue;
        }
        while (i-- > 0) ops->remove(ops->context, f->at[i].path);  // a part of a set is none
        return error->status;
    }
    return LK_OK;
}

// Closed, and so free for others, not before its name is the final one or gone.
void lk_import_abandon(lk_import_files *f) {
    for (uint32_t i = 0; i < f->file_count; i++) {
        if (f->at[i].temporary[0]) ops->remove(ops->context, f->at[i].temporary);
        ops->close(ops->context, f->at[i].file);
    }
}
