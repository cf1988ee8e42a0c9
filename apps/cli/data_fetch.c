// data_fetch.c - lockstep data fetch: known data sets by name, from public hosts, verified.
//
// A set is known by the SHA-256 of its unpacked files, which is why no host and no network needs to
// be trusted. curl does the transport. Nothing gets its final name before its hash was right.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "apps/cli/tools.h"
#include "apps/run/data_sets.h"
#include "io/data_file.h"
#include "io/gunzip.h"

enum { FILE_BYTES_MAX = 47040016 };  // all sets: MNIST's sizes

// Makes a directory and all above it.
static lk_status make_directories(const char *path, lk_error *error) {
    char part[LK_PATH_BYTES];
    LK_CHECK(lk_path_join(part, path, "", "", error));
    for (char *at = part + 1;; at++) {
        if (*at != '/' && *at != '\0') continue;
        char kept = *at;
        *at = '\0';
        int made = lk_file_ops_posix.make_directory(NULL, part);
        if (made < 0 && made != -EEXIST) {
            return lk_file_fail(error, LK_IO_ERROR, part, "make the directory", made);
        }
        *at = kept;
        if (kept == '\0') return LK_OK;
    }
}

// --- what is there -------------------------------------------------------------------------------

static lk_status hash_plain(const char *path, uint8_t sha256[LK_SHA256_BYTES], lk_error *error) {
    struct stat facts;
    const uint8_t *map;
    int fd;
    LK_CHECK(lk_data_open(path, &fd, &facts, error));
    uint64_t bytes = (uint64_t)facts.st_size;
    lk_status status = lk_data_map(fd, bytes, false, path, &map, error);
    close(fd);
    LK_CHECK(status);
    lk_data_sha256(map, bytes, sha256);
    lk_data_unmap(map, bytes);
    return LK_OK;
}

static lk_status hash_packed(const char *path, uint8_t sha256[LK_SHA256_BYTES], lk_error *error) {
    int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (nowhere < 0) return lk_file_fail(error, LK_IO_ERROR, "/dev/null", "open", -errno);
    lk_status status = lk_gunzip(path, nowhere, "/dev/null", FILE_BYTES_MAX, sha256, error);
    close(nowhere);
    return status;
}

static lk_status check_hash(const uint8_t sha256[LK_SHA256_BYTES], const char *wanted,
                            const char *path, lk_error *error) {
    char found[LK_SHA256_HEX_BYTES];
    lk_hex(sha256, LK_SHA256_BYTES, found);
    if (strcmp(found, wanted) == 0) return LK_OK;
    return lk_fail(error, LK_BAD_DATA, "%s: SHA-256 of the unpacked bytes: found %s, wanted %s",
                   path, found, wanted);
}

// Is the file here, plain or packed, and right?
static lk_status check_file(const lk_data_set *set, uint32_t number, const char *directory,
                            lk_error *error) {
    char path[LK_PATH_BYTES];
    uint8_t sha256[LK_SHA256_BYTES];
    if (!lk_data_set_file(directory, lk_data_set_files[number], path)) {
        return lk_fail(error, LK_NO_INPUT, "%s/%s: not there", directory,
                       lk_data_set_files[number]);
    }
    size_t length = strlen(path);
    bool packed = strcmp(path + length - 3, ".gz") == 0;
    LK_CHECK(packed ? hash_packed(path, sha256, error) : hash_plain(path, sha256, error));
    return check_hash(sha256, set->sha256[number], path, error);
}

// --- the network ---------------------------------------------------------------------------------

enum { MESSAGE_BYTES = 200 };

// The first line of what a child writes, the rest read and dropped.
static void read_message(int fd, char message[MESSAGE_BYTES]) {
    size_t used = 0;
    char dropped[256];
    for (;;) {
        bool full = used == MESSAGE_BYTES - 1;
        ssize_t n = full ? read(fd, dropped, sizeof dropped)
                         : read(fd, message + used, MESSAGE_BYTES - 1 - used);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        if (!full) used += (size_t)n;
    }
    message[used] = '\0';
    message[strcspn(message, "\r\n")] = '\0';
}

static int wait_for(pid_t child) {
    int result;
    while (waitpid(child, &result, 0) < 0) {
        if (errno != EINTR) return -1;
    }
    return WIFEXITED(result) ? WEXITSTATUS(result) : -1;
}

// curl ADDRESS into an open file. LK_UNAVAILABLE with curl's own words.
static lk_status run_curl(const char *address, int out, lk_error *error) {
    char words[8][24] = {"curl", "-f", "-sS", "-L", "--connect-timeout", "5", "--max-time", "60"};
    char target[LK_PATH_BYTES], message[MESSAGE_BYTES] = "";
    char *arguments[] = {words[0], words[1], words[2], words[3], words[4],
                         words[5], words[6], words[7], target,   NULL};
    LK_CHECK(lk_path_join(target, address, "", "", error));
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return lk_file_fail(error, LK_IO_ERROR, "pipe", "open", -errno);
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    pid_t child;
    int failed = posix_spawnp(&child, words[0], &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    int result = -1;
    if (!failed) {
        read_message(ends[0], message);
        result = wait_for(child);
    }
    close(ends[0]);
    if (failed) {
        return lk_fail(error, LK_UNAVAILABLE, "curl cannot be started: %s; install it",
                       strerror(failed));
    }
    if (result == 0) return LK_OK;
    return lk_fail(error, LK_UNAVAILABLE, "%s: %s", address,
                   *message ? message : "curl ended without a word");
}

static bool as_json;  // --json: one object at the end, nothing on the way

// Downloads into the locked file `packed`, unpacks, verifies, and only then gives the name.
static lk_status take_from(const char *host, const char *name, const char *sha256_wanted,
                           const char *directory, int packed, const char *packed_path,
                           lk_error *error) {
    char address[LK_PATH_BYTES], file[LK_PATH_BYTES], unverified[LK_PATH_BYTES];
    uint8_t sha256[LK_SHA256_BYTES];
    LK_CHECK(lk_path_join(address, host, name, ".gz", error));
    LK_CHECK(lk_path_join(file, directory, "/", name, error));
    LK_CHECK(lk_path_join(unverified, file, "", ".unverified", error));
    if (!as_json) printf("fetching %s\n", address);
    fflush(stdout);
    int cut = lk_file_ops_posix.truncate(NULL, packed, 0);
    if (cut < 0) return lk_file_fail(error, LK_IO_ERROR, packed_path, "truncate", cut);
    LK_CHECK(run_curl(address, packed, error));
    LK_CHECK(lk_gunzip_file(packed_path, unverified, FILE_BYTES_MAX, sha256, error));
    if (check_hash(sha256, sha256_wanted, address, error) != LK_OK) {
        (void)lk_file_ops_posix.remove(NULL, unverified);
        return error->status;
    }
    return lk_file_publish(&lk_file_ops_posix, unverified, file, error);
}

static lk_status try_hosts(const lk_data_set *set, uint32_t number, const char *directory,
                           int packed, const char *packed_path, lk_error *error) {
    lk_error tries[LK_DATA_SET_HOSTS] = {{.status = LK_OK}};
    for (uint32_t i = 0; i < LK_DATA_SET_HOSTS; i++) {
        lk_status status = take_from(set->hosts[i], lk_data_set_files[number], set->sha256[number],
                                     directory, packed, packed_path, &tries[i]);
        if (status == LK_OK) return LK_OK;
        if (status == LK_IO_ERROR) return lk_fail(error, status, "%s", tries[i].text);
    }
    // What was reached and gave wrong bytes says more than what was not reached.
    bool reached = tries[0].status == LK_BAD_DATA || tries[1].status == LK_BAD_DATA;
    return lk_fail(error, reached ? LK_BAD_DATA : LK_UNAVAILABLE,
                   "%s cannot be fetched: %s; %s; put its four files into %s yourself", set->name,
                   tries[0].text, tries[1].text, directory);
}

static lk_status fetch_file(const lk_data_set *set, uint32_t number, const char *directory,
                            lk_error *error) {
    char packed_path[LK_PATH_BYTES], name[64];
    snprintf(name, sizeof name, "%s.fetching", lk_data_set_files[number]);
    LK_CHECK(lk_path_join(packed_path, directory, "/", name, error));
    int packed = lk_file_ops_posix.open(NULL, packed_path, LK_OPEN_APPEND);
    if (packed < 0) return lk_file_fail(error, LK_IO_ERROR, packed_path, "create", packed);
    // curl inherits the lock: it also holds while an abandoned download goes on.
    if (lk_file_ops_posix.lock(NULL, packed) < 0) {
        close(packed);
        return lk_fail(error, LK_UNAVAILABLE, "%s: another fetch works there; wait for it",
                       packed_path);
    }
    lk_status status = try_hosts(set, number, directory, packed, packed_path, error);
    (void)lk_file_ops_posix.remove(NULL, packed_path);
    close(packed);
    return status;
}

// --- the command ---------------------------------------------------------------------------------

static const char fetch_help[] =
    "lockstep data fetch NAME [--to DIR] [--json]\n"
    "\n"
    "Gets mnist or fashion-mnist, verified by the SHA-256 of each file. Without --to it goes\n"
    "where {\"data\": {\"set\": \"NAME\"}} looks: $LOCKSTEP_DATA/NAME, or the user's cache,\n"
    "~/.cache/lockstep/data/NAME. What is there and right is not fetched again.\n";

static lk_status find_set(const char *name, const lk_data_set **out, lk_error *error) {
    enum { NAMES_MAX = 16 };
    const char *names[NAMES_MAX];
    uint32_t count = 0;
    for (; (*out = lk_data_set_at(count)) != NULL; count++) {
        lk_assert(count < NAMES_MAX);
        names[count] = (*out)->name;
        if (strcmp(name, names[count]) == 0) return LK_OK;
    }
    const char *near = lk_text_nearest(name, names, count);
    return lk_fail(error, LK_BAD_USAGE, "fetch: found \"%s\", wanted mnist or fashion-mnist%s%s%s",
                   name, near ? ", did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

static lk_status print_right(const lk_data_set *set, const char *directory, lk_error *error) {
    if (as_json) {
        return lk_print_json(
            json_pack("{s:s, s:o}", "set", set->name, "directory", lk_json_text(directory)), error);
    }
    printf("%s: all four files in %s are right\n", set->name, directory);
    return LK_OK;
}

static lk_status check_all(const lk_data_set *set, const char *directory, lk_error *error) {
    for (uint32_t i = 0; i < LK_DATA_SET_FILES; i++) LK_CHECK(check_file(set, i, directory, error));
    return print_right(set, directory, error);
}

static lk_status fetch_missing(const lk_data_set *set, const char *directory, lk_error *error) {
    LK_CHECK(make_directories(directory, error));
    for (uint32_t i = 0; i < LK_DATA_SET_FILES; i++) {
        lk_error found = {.status = LK_OK};
        if (check_file(set, i, directory, &found) == LK_OK) continue;
        if (found.status != LK_NO_INPUT && !as_json) printf("again: %s\n", found.text);
        LK_CHECK(fetch_file(set, i, directory, error));
    }
    return print_right(set, directory, error);
}

lk_status lk_command_data_fetch(int argc, char **argv, lk_error *error) {
    const char *to = NULL;
    char directory[LK_PATH_BYTES], elsewhere[LK_PATH_BYTES];
    const lk_argument options[] = {{.name = "to", .text = &to}};
    lk_arguments a = {.help = fetch_help,
                      .options = options,
                      .option_count = 1,
                      .word_count = 1,
                      .json = &as_json};
    const lk_data_set *set;
    LK_CHECK(lk_parse_arguments(argc, argv, &a, error));
    if (a.helped) return LK_OK;
    LK_CHECK(find_set(a.words[0], &set, error));
    if (to) {
        LK_CHECK(lk_path_join(directory, to, "", "", error));
    } else if (!lk_data_set_home(set->name, directory)) {
        return lk_fail(error, LK_BAD_USAGE, "fetch: no place is known: set HOME, or say --to DIR");
    }
    if (!to && !lk_data_set_is_whole(directory) && lk_data_set_find(set->name, elsewhere)) {
        return check_all(set, elsewhere, error);
    }
    if (set->hosts[0]) return fetch_missing(set, directory, error);
    if (lk_data_set_is_whole(directory)) return check_all(set, directory, error);
    return lk_fail(error, LK_UNAVAILABLE, "%s: not on this machine and on no host of its own; %s",
                   set->name, set->instead);
}
