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
#include <time.h>
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
    const uint64_t stamp = lk_data_fast_hash(before, state, sizeof state);
    return stamp ? stamp : 1;
}

static int64_t ns_of(const struct timespec *t) {
    return (int64_t)t->tv_sec * 1000000000 + t->tv_nsec;
}

lk_data_state lk_data_state_of(const struct stat *info) {
    struct timespec now = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    lk_data_state state = {.device = (uint64_t)info->st_dev,
                           .inode = (uint64_t)info->st_ino,
                           .bytes = info->st_size,
                           .modified = ns_of(&info->st_mtim),
                           .changed = ns_of(&info->st_ctim)};
    // Also where it lies ahead: the clock is another machine's.
    state.young = LK_MAX(state.modified, state.changed) > ns_of(&now) - LK_DATA_YOUNG_NS;
    return state;
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

bool lk_data_cache_path(const char *wanted, char out[LK_PATH_BYTES]) {
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    size_t length = 0;
    if (wanted)
        length = lk_format(out, LK_PATH_BYTES, "%s", wanted);
    else if (xdg && xdg[0] == '/')
        length = lk_format(out, LK_PATH_BYTES, "%s/lockstep", xdg);
    else if (home && home[0] == '/')
        length = lk_format(out, LK_PATH_BYTES, "%s/.cache/lockstep", home);
    return length > 0 && length < LK_PATH_BYTES;
}

bool lk_data_cache(const char *wanted, char out[LK_PATH_BYTES]) {
    return lk_data_cache_path(wanted, out) && make_directories(out);
}

// --- records -------------------------------------------------------------------------------------

static const char record_head[] = "lockstep data record 2\n";

void lk_data_record_print(const lk_data_record *record, char out[LK_DATA_RECORD_BYTES]) {
    char sha256[LK_SHA256_HEX_BYTES];
    size_t n;
    lk_hex(record->sha256, LK_SHA256_BYTES, sha256);
    n = lk_format(out, LK_DATA_RECORD_BYTES, "%sstamp %016llx\nsha256 %s\npieces ", record_head,
                  (unsigned long long)record->stamp, sha256);
    for (uint32_t i = 0; i < LK_DATA_PIECES; i++) {
        n += lk_format(out + n, LK_DATA_RECORD_BYTES - n, "%016llx",
                       (unsigned long long)record->piece[i]);
    }
    n += lk_format(out + n, LK_DATA_RECORD_BYTES - n, "\n");
    n += lk_format(out + n, LK_DATA_RECORD_BYTES - n, "check %016llx\n",
                   (unsigned long long)lk_data_fast_hash(0, out, n));
    lk_assert(n == LK_DATA_RECORD_BYTES - 1);
}

// 16 hexadecimal digits; where they are none, no matter what.
static uint64_t read_hex(const char *text) {
    uint64_t value = 0;
    for (uint32_t i = 0; i < 16; i++) {
        const char c = text[i];
        value = value << 4 | (uint64_t)((c >= 'a' ? c - 'a' + 10 : c - '0') & 15);
    }
    return value;
}

// Reads leniently, then accepts only what would be written so: any other byte is no record.
bool lk_data_record_parse(const char *text, size_t bytes, lk_data_record *record) {
    enum { STAMP = sizeof record_head - 1 + 6, SHA256 = STAMP + 16 + 1 + 7 };
    enum { PIECES = SHA256 + 64 + 1 + 7 };
    char again[LK_DATA_RECORD_BYTES];
    if (bytes != LK_DATA_RECORD_BYTES - 1) return false;
    *record = (lk_data_record){.stamp = read_hex(text + STAMP)};
    for (uint32_t i = 0; i < LK_SHA256_BYTES; i += 8) {
        const uint64_t word = read_hex(text + SHA256 + (size_t)2 * i);
        for (uint32_t k = 0; k < 8; k++) record->sha256[i + k] = (uint8_t)(word >> (56 - 8 * k));
    }
    for (uint32_t i = 0; i < LK_DATA_PIECES; i++) {
        record->piece[i] = read_hex(text + PIECES + (size_t)16 * i);
    }
    lk_data_record_print(record, again);
    return memcmp(text, again, bytes) == 0;
}

bool lk_data_record_read(const char *path, lk_data_record *record) {
    char text[LK_DATA_RECORD_BYTES + 1];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return false;
    ssize_t bytes = read(fd, text, sizeof text);
    close(fd);
    return bytes > 0 && lk_data_record_parse(text, (size_t)bytes, record);
}

void lk_data_record_write(const char *path, const lk_data_record *record) {
    char text[LK_DATA_RECORD_BYTES];
    lk_error ignored = {0};
    lk_data_record_print(record, text);
    (void)lk_file_write_atomic(&lk_file_ops_posix, path, text, sizeof text - 1, &ignored);
}
