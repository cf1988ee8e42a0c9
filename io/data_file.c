// data_file.c - opening, mapping and remembering files of examples. Host only.
#define _GNU_SOURCE
#include "io/data_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

lk_status lk_data_open(const char *path, int *fd, struct stat *info, lk_error *error) {
    // O_NONBLOCK: opening a pipe must not wait for its writer, it is refused below.
    do {
        *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    } while (*fd < 0 && errno == EINTR);
    if (*fd < 0) return lk_file_fail(error, LK_NO_INPUT, path, "open", -errno);
    int failed = fstat(*fd, info) != 0 ? errno : 0;
    if (!failed && S_ISREG(info->st_mode)) return LK_OK;
    close(*fd);
    *fd = -1;
    if (failed) return lk_file_fail(error, LK_NO_INPUT, path, "look at", -failed);
    return lk_fail(error, LK_NO_INPUT, "%s: found %s, wanted a file; name the file itself", path,
                   S_ISDIR(info->st_mode) ? "a directory" : "a pipe, socket or device");
}

lk_status lk_data_map(int fd, uint64_t bytes, bool populate, const char *path, const uint8_t **map,
                      lk_error *error) {
    *map = NULL;
    if (bytes == 0) return LK_OK;
    int flags = MAP_SHARED | (populate ? MAP_POPULATE : 0);
    void *at = mmap(NULL, bytes, PROT_READ, flags, fd, 0);
    if (at == MAP_FAILED) return lk_file_fail(error, LK_IO_ERROR, path, "map", -errno);
    *map = at;
    return LK_OK;
}

void lk_data_unmap(const uint8_t *map, uint64_t bytes) {
    if (map) munmap((void *)(uintptr_t)map, bytes);
}

uint64_t lk_data_fast_hash(uint64_t before, const void *bytes, uint64_t count) {
    return XXH3_64bits_withSeed(bytes, count, before);
}

uint64_t lk_data_stamp(uint64_t before, const struct stat *info) {
    const uint64_t state[] = {(uint64_t)info->st_size,        (uint64_t)info->st_ino,
                              (uint64_t)info->st_mtim.tv_sec, (uint64_t)info->st_mtim.tv_nsec,
                              (uint64_t)info->st_ctim.tv_sec, (uint64_t)info->st_ctim.tv_nsec};
    return lk_data_fast_hash(before, state, sizeof state);
}

uint64_t lk_data_name(uint64_t before, const char *path) {
    char resolved[PATH_MAX];
    const char *name = realpath(path, resolved) ? resolved : path;
    return lk_data_fast_hash(before, name, strlen(name) + 1);
}

void lk_data_sha256(const void *bytes, uint64_t count, uint8_t out[LK_SHA256_BYTES]) {
    crypto_hash_sha256(out, bytes, count);
}

// --- the cache directory -------------------------------------------------------------------------

static bool is_directory(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

// mkdir -p; only the result counts.
static bool make_directories(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    (void)mkdir(path, 0700);
    return is_directory(path);
}

bool lk_data_cache(const char *wanted, char out[LK_PATH_BYTES]) {
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    size_t length = 0;
    if (wanted)
        length = lk_format(out, LK_PATH_BYTES, "%s", wanted);
    else if (xdg && xdg[0] == '/')
        length = lk_format(out, LK_PATH_BYTES, "%s/lockstep", xdg);
    else if (home && home[0] == '/')
        length = lk_format(out, LK_PATH_BYTES, "%s/.cache/lockstep", home);
    return length > 0 && length < LK_PATH_BYTES && make_directories(out);
}

// --- records -------------------------------------------------------------------------------------

enum { RECORD_BYTES = 23 + (6 + 16 + 1) + (5 + 16 + 1) + (7 + 64 + 1) };

static void print_record(const lk_data_record *record, char out[RECORD_BYTES + 1]) {
    char sha256[LK_SHA256_HEX_BYTES];
    lk_hex(record->sha256, LK_SHA256_BYTES, sha256);
    snprintf(out, RECORD_BYTES + 1,
             "lockstep data record 1\nstamp %016llx\nfast %016llx\nsha256 %s\n",
             (unsigned long long)record->stamp, (unsigned long long)record->fast, sha256);
}

// Reads leniently, then accepts only what would be written so: any other byte is no record.
bool lk_data_record_read(const char *path, lk_data_record *record) {
    char text[RECORD_BYTES + 2], again[RECORD_BYTES + 1], sha256[LK_SHA256_HEX_BYTES];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return false;
    ssize_t bytes = read(fd, text, RECORD_BYTES + 1);
    close(fd);
    if (bytes != RECORD_BYTES) return false;
    text[bytes] = '\0';
    unsigned long long stamp, fast;
    if (sscanf(text, "lockstep data record 1 stamp %16llx fast %16llx sha256 %64[0-9a-f]", &stamp,
               &fast, sha256) != 3)
        return false;
    *record = (lk_data_record){.stamp = stamp, .fast = fast};
    sodium_hex2bin(record->sha256, LK_SHA256_BYTES, sha256, strlen(sha256), NULL, NULL, NULL);
    print_record(record, again);
    return memcmp(text, again, RECORD_BYTES) == 0;
}

void lk_data_record_write(const char *path, const lk_data_record *record) {
    char text[RECORD_BYTES + 1];
    lk_error ignored = {0};
    print_record(record, text);
    (void)lk_file_write_atomic(&lk_file_ops_posix, path, text, RECORD_BYTES, &ignored);
}
