// tar.c - ustar: the header's fields, its sum, what is refused.
#include "io/tar.h"

#include <string.h>

typedef unsigned long long ull;

// Where the fields of a header begin, and their bytes.
typedef struct field {
    uint32_t at, bytes;
} field;

static const field name_field = {0, 100}, mode_field = {100, 8}, owner_field = {108, 8},
                   group_field = {116, 8}, size_field = {124, 12}, time_field = {136, 12},
                   sum_field = {148, 8}, link_field = {157, 100}, magic_field = {257, 8},
                   major_field = {329, 8}, minor_field = {337, 8}, prefix_field = {345, 155};
enum { TYPE_AT = 156, ARCHIVE_END_BLOCKS = 2 };
static const char magic[8] = {'u', 's', 't', 'a', 'r', '\0', '0', '0'};
#define SIZE_MAX_BYTES (((uint64_t)1 << 33) - 1)  // 11 octal digits

// Letters, digits and . _ - + in parts between single slashes, none of them "." or "..".
static bool good_name(const char *name) {
    const char *part = name;
    if (!*name || strlen(name) >= LK_TAR_NAME_BYTES) return false;
    for (const char *at = name;; at++) {
        const char c = *at;
        if (c == '/' || c == '\0') {
            const size_t bytes = (size_t)(at - part);
            if (bytes == 0 || strncmp(part, "..", bytes) == 0) return false;  // "." is its start
            if (c == '\0') return true;
            part = at + 1;
        } else if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     c == '.' || c == '_' || c == '-' || c == '+')) {
            return false;
        }
    }
}

// The sum of all bytes, those of its own field taken as spaces.
static uint32_t header_sum(const uint8_t header[LK_TAR_BLOCK_BYTES]) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < LK_TAR_BLOCK_BYTES; i++) {
        const bool own = i >= sum_field.at && i < sum_field.at + sum_field.bytes;
        sum += own ? ' ' : header[i];
    }
    return sum;
}

static uint64_t padding_of(uint64_t bytes) {
    return lk_round_up(bytes, LK_TAR_BLOCK_BYTES) - bytes;
}

// --- writing -------------------------------------------------------------------------------------

// As many digits as fit, and a NUL.
static void put_octal(uint8_t *header, field f, uint64_t value) {
    for (uint32_t i = f.bytes - 1; i-- > 0; value >>= 3) {
        header[f.at + i] = (uint8_t)('0' + (value & 7));
    }
}

static void format_header(uint8_t header[LK_TAR_BLOCK_BYTES], const char *name, uint64_t bytes) {
    memset(header, 0, LK_TAR_BLOCK_BYTES);
    memcpy(header + name_field.at, name, strlen(name));
    put_octal(header, mode_field, 0644);
    put_octal(header, owner_field, 0);
    put_octal(header, group_field, 0);
    put_octal(header, size_field, bytes);
    put_octal(header, time_field, 0);
    header[TYPE_AT] = '0';
    memcpy(header + magic_field.at, magic, sizeof magic);
    put_octal(header, major_field, 0);
    put_octal(header, minor_field, 0);
    put_octal(header, (field){sum_field.at, sum_field.bytes - 1}, header_sum(header));
    header[sum_field.at + sum_field.bytes - 1] = ' ';
}

static lk_status put(lk_tar_writer *w, const void *data, size_t bytes, lk_error *error) {
    LK_CHECK(lk_file_write_all(w->ops, w->file, w->temporary, data, bytes, error));
    w->bytes += bytes;
    return LK_OK;
}

static lk_status put_zeros(lk_tar_writer *w, uint64_t bytes, lk_error *error) {
    static const uint8_t zeros[ARCHIVE_END_BLOCKS * LK_TAR_BLOCK_BYTES];
    lk_assert(bytes <= sizeof zeros);
    return bytes ? put(w, zeros, (size_t)bytes, error) : LK_OK;
}

lk_status lk_tar_start(lk_tar_writer *w, const lk_file_ops *ops, const char *path,
                       lk_error *error) {
    *w = (lk_tar_writer){.ops = ops, .file = -1};
    LK_CHECK(lk_path_join(w->path, path, "", "", error));
    return lk_file_create_beside(ops, path, w->temporary, &w->file, error);
}

lk_status lk_tar_begin(lk_tar_writer *w, const char *name, uint64_t bytes, lk_error *error) {
    uint8_t header[LK_TAR_BLOCK_BYTES];
    if (w->left || !good_name(name) || bytes > SIZE_MAX_BYTES) {
        return lk_fail(error, LK_INTERNAL,
                       "%s: entry %s of %llu bytes, %llu of the one before are "
                       "missing",
                       w->path, name, (ull)bytes, (ull)w->left);
    }
    LK_CHECK(put_zeros(w, padding_of(w->bytes), error));
    format_header(header, name, bytes);
    LK_CHECK(put(w, header, sizeof header, error));
    w->left = bytes;
    return LK_OK;
}

lk_status lk_tar_write(lk_tar_writer *w, const void *data, size_t bytes, lk_error *error) {
    if (bytes > w->left) {
        return lk_fail(error, LK_INTERNAL, "%s: %zu bytes for an entry that has %llu to come",
                       w->path, bytes, (ull)w->left);
    }
    LK_CHECK(put(w, data, bytes, error));
    w->left -= bytes;
    return LK_OK;
}

lk_status lk_tar_add(lk_tar_writer *w, const char *name, const void *data, size_t bytes,
                     lk_error *error) {
    LK_CHECK(lk_tar_begin(w, name, bytes, error));
    return lk_tar_write(w, data, bytes, error);
}

lk_status lk_tar_finish(lk_tar_writer *w, lk_error *error) {
    if (w->left) {
        return lk_fail(error, LK_INTERNAL, "%s: %llu bytes of the last entry are missing", w->path,
                       (ull)w->left);
    }
    LK_CHECK(put_zeros(w, padding_of(w->bytes), error));
    LK_CHECK(put_zeros(w, ARCHIVE_END_BLOCKS * LK_TAR_BLOCK_BYTES, error));
    int file = w->file;
    w->file = -1;
    LK_CHECK(lk_file_sync_close(w->ops, file, w->temporary, error));
    LK_CHECK(lk_file_publish(w->ops, w->temporary, w->path, error));
    w->temporary[0] = '\0';
    return LK_OK;
}

void lk_tar_abandon(lk_tar_writer *w) {
    if (w->file >= 0) w->ops->close(w->ops->context, w->file);
    w->file = -1;
    if (w->temporary[0]) w->ops->remove(w->ops->context, w->temporary);
    w->temporary[0] = '\0';
}

// --- reading -------------------------------------------------------------------------------------

static lk_status refuse(const char *path, uint64_t at, const char *what, lk_error *error) {
    return lk_fail(error, LK_BAD_DATA,
                   "%s: byte %llu: %s; wanted a tar archive as lockstep pack "
                   "writes it",
                   path, (ull)at, what);
}

static bool all_zero(const uint8_t *bytes, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        if (bytes[i]) return false;
    }
    return true;
}

// Octal digits, leading spaces allowed, then NULs and spaces alone. False for anything else, such
// as GNU's binary numbers.
static bool get_octal(const uint8_t *header, field f, uint64_t *value) {
    uint32_t i = 0, digits = 0;
    const uint8_t *at = header + f.at;
    *value = 0;
    while (i < f.bytes && at[i] == ' ') i++;
    for (; i < f.bytes && at[i] >= '0' && at[i] <= '7'; i++, digits++) {
        *value = *value << 3 | (uint64_t)(at[i] - '0');
    }
    while (i < f.bytes && (at[i] == ' ' || at[i] == '\0')) i++;
    return digits > 0 && i == f.bytes;
}

static lk_status read_header(const uint8_t *header, const char *path, uint64_t at,
                             lk_tar_entry *entry, lk_error *error) {
    uint64_t sum;
    if (memcmp(header + magic_field.at, magic, sizeof magic) != 0) {
        return refuse(path, at + magic_field.at, "found no \"ustar\" of version 00", error);
    }
    if (!get_octal(header, sum_field, &sum) || sum != header_sum(header)) {
        return refuse(path, at + sum_field.at, "the header's sum is not that of its bytes", error);
    }
    if (header[TYPE_AT] != '0' && header[TYPE_AT] != '\0') {
        return refuse(path, at + TYPE_AT,
                      "the entry is no plain file but a link, a directory or "
                      "another kind",
                      error);
    }
    if (!all_zero(header + link_field.at, link_field.bytes)) {
        return refuse(path, at + link_field.at, "a plain file that names what it links to", error);
    }
    if (!all_zero(header + prefix_field.at, prefix_field.bytes)) {
        return refuse(path, at + prefix_field.at, "a name in two parts, of more than 100 bytes",
                      error);
    }
    memcpy(entry->name, header + name_field.at, name_field.bytes);
    entry->name[LK_TAR_NAME_BYTES - 1] = '\0';
    if (!good_name(entry->name)) {
        return refuse(path, at,
                      "the entry's name is empty, absolute, has \"..\" or other bytes than "
                      "letters, digits and . _ - + /",
                      error);
    }
    if (get_octal(header, size_field, &entry->bytes) && entry->bytes <= SIZE_MAX_BYTES)
        return LK_OK;
    return refuse(path, at + size_field.at, "the entry's size is no octal number", error);
}

// From `at` on there are zeros alone, two blocks of them or more.
static lk_status check_end(const uint8_t *archive, uint64_t bytes, const char *path, uint64_t at,
                           lk_error *error) {
    if (bytes - at < (uint64_t)ARCHIVE_END_BLOCKS * LK_TAR_BLOCK_BYTES) {
        return refuse(path, at, "the archive ends without two blocks of zeros: it was cut short",
                      error);
    }
    for (uint64_t i = at; i < bytes; i++) {
        if (archive[i]) return refuse(path, i, "bytes behind the end of the archive", error);
    }
    return LK_OK;
}

lk_status lk_tar_next(const uint8_t *archive, uint64_t bytes, const char *path, uint64_t *at,
                      lk_tar_entry *entry, lk_error *error) {
    *entry = (lk_tar_entry){.data = NULL};
    if (bytes % LK_TAR_BLOCK_BYTES != 0) {
        return refuse(path, bytes, "the file's length is no multiple of 512: it was cut short",
                      error);
    }
    lk_assert(*at <= bytes && *at % LK_TAR_BLOCK_BYTES == 0);
    if (bytes - *at < LK_TAR_BLOCK_BYTES || all_zero(archive + *at, LK_TAR_BLOCK_BYTES)) {
        LK_CHECK(check_end(archive, bytes, path, *at, error));
        *at = bytes;
        return LK_OK;
    }
    const uint64_t begin = *at + LK_TAR_BLOCK_BYTES;
    LK_CHECK(read_header(archive + *at, path, *at, entry, error));
    if (entry->bytes > bytes - begin) {
        return refuse(path, *at + size_field.at,
                      "the entry is longer than the archive: it was cut "
                      "short",
                      error);
    }
    const uint64_t padding = padding_of(entry->bytes);
    if (!all_zero(archive + begin + entry->bytes, padding)) {
        return refuse(path, begin + entry->bytes, "bytes between two entries that are not zero",
                      error);
    }
    entry->data = archive + begin;
    *at = begin + entry->bytes + padding;
    return LK_OK;
}
