// data_cache.c - the names in the cache directory, unfinished files, and cleaning. Host only.
#define _GNU_SOURCE
#include "io/data_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const lk_file_ops *const ops = &lk_file_ops_posix;

enum { HEX = 16 };

// --- names ---------------------------------------------------------------------------------------

static bool has_hex(const char *name) { return strspn(name, "0123456789abcdef") == HEX; }

// Is it ".tmp", or ".tmp." and digits?
static bool is_unfinished(const char *rest) {
    if (strncmp(rest, ".tmp", 4) != 0) return false;
    rest += 4;
    return *rest == '\0' || (*rest == '.' && rest[1] != '\0' &&
                             rest[1 + strspn(rest + 1, "0123456789abcdef")] == '\0');
}

lk_cache_entry lk_cache_entry_of(const char *name) {
    static const char unpacked[] = ".idx", record[] = ".record";
    lk_cache_entry entry = LK_CACHE_FOREIGN;
    if (!has_hex(name)) return entry;
    name += HEX;
    if (name[0] == '-') {
        if (!has_hex(name + 1)) return entry;
        name += 1 + HEX;
        if (strncmp(name, unpacked, sizeof unpacked - 1) != 0) return entry;
        name += sizeof unpacked - 1;
        entry = LK_CACHE_UNPACKED;
    }
    if (strncmp(name, record, sizeof record - 1) == 0) {
        name += sizeof record - 1;
        entry = LK_CACHE_RECORD;
    }
    if (*name == '\0') return entry;
    const bool ours = entry != LK_CACHE_FOREIGN;
    return ours && is_unfinished(name) ? LK_CACHE_UNFINISHED : LK_CACHE_FOREIGN;
}

// --- unfinished files ----------------------------------------------------------------------------

typedef struct cleaning {
    const char *directory;
    const char *begins;   // of this file: leftovers of others are not looked at
    const char *current;  // NAME-STAMP.idx: all else that is unpacked of NAME is outdated
    bool dry;
    lk_cache_cleaned done;
    lk_error *error;
} cleaning;

// Removes an unfinished file, if nobody is writing it. A link is not followed.
static void remove_unfinished(cleaning *c, const char *path) {
    struct stat info;
    int file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) return;
    bool ours = fstat(file, &info) == 0 && S_ISREG(info.st_mode);
    if (ours && ops->lock(ops->context, file) < 0) {
        c->done.busy++;
    } else if (ours && (c->dry || ops->remove(ops->context, path) >= 0)) {
        c->done.files++;
        c->done.bytes += (uint64_t)info.st_size;
    }
    close(file);
}

static void visit_leftover(void *context, const char *name) {
    cleaning *c = context;
    char path[LK_PATH_BYTES];
    lk_error ignored = {0};
    const size_t length = strlen(c->begins);
    if (strncmp(name, c->begins, length) != 0 || !is_unfinished(name + length)) return;
    if (lk_path_join(path, c->directory, "/", name, &ignored) == LK_OK) remove_unfinished(c, path);
}

// Workers that start together must not write into one file. Random numbers, since on hosts or in
// containers that share a cache they may well have one process id.
static lk_status temporary_name(char out[LK_PATH_BYTES], const char *path, lk_error *error) {
    char suffix[32];
    lk_format(suffix, sizeof suffix, ".tmp.%08x%08x", (unsigned)randombytes_random(),
              (unsigned)randombytes_random());
    return lk_path_join(out, path, "", suffix, error);
}

// Between its making and its locking a file is nobody's, and may be taken for a leftover.
static bool is_held(int file) {
    struct stat info;
    const int locked = ops->lock(ops->context, file);
    return locked != -EWOULDBLOCK && fstat(file, &info) == 0 && info.st_nlink > 0;
}

lk_status lk_cache_create(const char *path, char temporary[LK_PATH_BYTES], int *file,
                          lk_error *error) {
    enum { TRIES = 100 };
    char directory[LK_PATH_BYTES];
    const char *slash = strrchr(path, '/');
    cleaning c = {.directory = directory, .begins = slash ? slash + 1 : path, .error = error};
    lk_path_parent(directory, path);
    (void)ops->list(ops->context, directory, visit_leftover, &c);
    for (uint32_t i = 0; i < TRIES; i++) {
        LK_CHECK(temporary_name(temporary, path, error));
        LK_CHECK(lk_file_create(ops, temporary, file, error));
        if (is_held(*file)) return LK_OK;
        ops->close(ops->context, *file);
        (void)ops->remove(ops->context, temporary);
    }
    return lk_fail(error, LK_IO_ERROR, "%s: somebody removes it again and again", temporary);
}

// --- the cache -----------------------------------------------------------------------------------

// Of the same path, unpacked in another state of the .gz: nobody will ask for it again. Who has it
// open keeps it.
static bool is_outdated(const cleaning *c, const char *name) {
    const size_t length = strlen(c->current);
    return strncmp(name, c->current, HEX + 1) == 0 && strncmp(name, c->current, length) != 0;
}

static void visit_tidy(void *context, const char *name) {
    cleaning *c = context;
    char path[LK_PATH_BYTES];
    lk_error ignored = {0};
    const lk_cache_entry entry = lk_cache_entry_of(name);
    if (entry == LK_CACHE_FOREIGN) return;
    if (lk_path_join(path, c->directory, "/", name, &ignored) != LK_OK) return;
    if (entry == LK_CACHE_UNFINISHED && strstr(name, ".record.")) return;  // written in a moment
    if (entry == LK_CACHE_UNFINISHED)
        remove_unfinished(c, path);
    else if (is_outdated(c, name))
        (void)ops->remove(ops->context, path);
}

void lk_cache_tidy(const char *cache, const char *unpacked) {
    const char *slash = strrchr(unpacked, '/');
    cleaning c = {.directory = cache, .current = slash ? slash + 1 : unpacked};
    (void)ops->list(ops->context, cache, visit_tidy, &c);
}

static void visit_clean(void *context, const char *name) {
    cleaning *c = context;
    char path[LK_PATH_BYTES];
    struct stat info;
    const lk_cache_entry entry = lk_cache_entry_of(name);
    if (entry == LK_CACHE_FOREIGN || c->error->status != LK_OK) return;
    if (lk_path_join(path, c->directory, "/", name, c->error) != LK_OK) return;
    if (entry == LK_CACHE_UNFINISHED) {
        remove_unfinished(c, path);
        return;
    }
    if (lstat(path, &info) != 0 || S_ISDIR(info.st_mode)) return;
    const int removed = c->dry ? 0 : ops->remove(ops->context, path);
    if (removed < 0 && removed != -ENOENT) {
        lk_file_fail(c->error, LK_IO_ERROR, path, "remove", removed);
        return;
    }
    c->done.files++;
    c->done.bytes += (uint64_t)info.st_size;
}

lk_status lk_cache_clean(const char *cache, bool dry, lk_cache_cleaned *out, lk_error *error) {
    cleaning c = {.directory = cache, .dry = dry, .error = error};
    const int listed = ops->list(ops->context, cache, visit_clean, &c);
    *out = c.done;
    if (listed == -ENOENT) return lk_file_fail(error, LK_NO_INPUT, cache, "list", listed);
    if (listed < 0) return lk_file_fail(error, LK_IO_ERROR, cache, "list", listed);
    return error->status;
}
