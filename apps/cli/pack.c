// pack.c - lockstep pack: what another machine needs to train a run again and to compare, as one
// archive (recorded.h). The same run directory gives the same bytes. Weights and data are not in
// it: the first are what training gives again, the second are known by their hash.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "apps/cli/recorded.h"
#include "io/line_sum.h"
#include "io/tar.h"

typedef unsigned long long ull;

static const char help[] =
    "lockstep pack RUN_DIR --to FILE.tar [--json]\n"
    "\n"
    "Writes a run's configuration, identity, data hash, machine, step hashes, losses and the "
    "digests\n"
    "of its checkpoints into one archive (POSIX ustar) of some kilobytes, from which lockstep\n"
    "reproduce trains it again and compares. No weights, no data. The same run gives the same "
    "bytes.\n"
    "FILE appears when it is whole, and takes the place of a file of that name.\n";

enum { BUFFER_BYTES = 64 * 1024 };

static const char readme[] =
    "A run of Lockstep, to be trained again and compared:\n"
    "\n"
    "    lockstep reproduce FILE.tar [--data DIRECTORY]\n"
    "\n"
    "manifest.json says which data (SHA-256 of all image bytes, then all labels), which version "
    "and\n"
    "machine, and what the parameters (digest) and the whole state came to.\n";

// A log, through a buffer. One that is not there is left out; a damaged line is refused.
static lk_status add_log(lk_tar_writer *tar, const char *run_dir, const char *name,
                         lk_error *error) {
    static uint8_t buffer[BUFFER_BYTES];
    char path[LK_PATH_BYTES], entry[64];
    lk_line_sums sums;
    uint64_t bytes;
    int file;
    lk_error none = {.status = LK_OK};
    LK_CHECK(lk_path_join(path, run_dir, "/", name, error));
    if (lk_file_open_read(&lk_file_ops_posix, path, &file, &bytes, &none) != LK_OK) {
        return none.status == LK_NO_INPUT ? LK_OK : lk_fail(error, none.status, "%s", none.text);
    }
    lk_format(entry, sizeof entry, "run/%s", name);
    lk_status status = lk_line_sums_file(&lk_file_ops_posix, path, &sums, error);
    if (status == LK_OK) status = lk_tar_begin(tar, entry, bytes, error);
    for (uint64_t at = 0; status == LK_OK && at < bytes;) {
        size_t count = (size_t)LK_MIN(bytes - at, sizeof buffer);
        status = lk_file_read_all(&lk_file_ops_posix, file, path, buffer, count, at, error);
        if (status == LK_OK) status = lk_tar_write(tar, buffer, count, error);
        at += count;
    }
    lk_file_ops_posix.close(NULL, file);
    return status;
}

static lk_status write_entries(lk_tar_writer *tar, const lk_recorded *r, lk_error *error) {
    char *manifest = json_dumps(r->manifest, JSON_INDENT(2) | JSON_SORT_KEYS);
    if (!manifest) return lk_fail(error, LK_UNAVAILABLE, "%s: no memory", r->source);
    lk_status status = lk_tar_add(tar, "run/README", readme, sizeof readme - 1, error);
    if (status == LK_OK) {
        status = lk_tar_add(tar, "run/manifest.json", manifest, strlen(manifest), error);
    }
    free(manifest);
    LK_CHECK(status);
    LK_CHECK(lk_tar_add(tar, "run/config.json", r->config, r->config_bytes, error));
    LK_CHECK(add_log(tar, r->source, "hashes.jsonl", error));
    LK_CHECK(add_log(tar, r->source, "metrics.jsonl", error));
    return lk_tar_finish(tar, error);
}

static lk_status pack(const lk_recorded *r, const char *to, bool json, lk_error *error) {
    lk_tar_writer tar;
    lk_status status = lk_tar_start(&tar, &lk_file_ops_posix, to, error);
    if (status == LK_OK) status = write_entries(&tar, r, error);
    lk_tar_abandon(&tar);
    LK_CHECK(status);
    const lk_recorded_result *last = &r->results[r->result_count - 1];
    if (json) {
        return lk_print_json(
            json_pack("{s:o, s:o, s:I, s:s, s:I, s:s, s:s, s:s?}", "file", lk_json_text(to), "run",
                      lk_json_text(r->source), "bytes", (json_int_t)tar.bytes, "run_identity",
                      r->identity, "step", (json_int_t)last->step, "digest", last->digest,
                      "state_hash", last->state_hash, "data_sha256",
                      r->train.examples ? r->train.sha256 : NULL),
            error);
    }
    printf("packed %s: %llu bytes, %u results to step %llu\n", to, (ull)tar.bytes, r->result_count,
           (ull)last->step);
    printf("run_identity %s\ndigest %s\n", r->identity, last->digest);
    if (!r->train.examples) {
        printf("the data hash is not recorded: the run began with an earlier version\n");
    }
    return LK_OK;
}

// Neither may a run's own file be replaced, of whatever run, nor does an archive belong beside
// those of this one, where --fresh would stumble over it.
static lk_status check_to(const char *to, const char *run_dir, lk_error *error) {
    static const char *const folders[] = {"", "/checkpoints"};
    char parent[LK_PATH_BYTES], folder[LK_PATH_BYTES];
    struct stat there, place;
    lk_path_parent(parent, to);
    for (uint32_t i = 0; i < LK_COUNT(folders); i++) {
        LK_CHECK(lk_path_join(folder, run_dir, "", folders[i], error));
        if (stat(parent, &place) != 0 || stat(folder, &there) != 0) continue;
        if (there.st_dev != place.st_dev || there.st_ino != place.st_ino) continue;
        return lk_fail(error, LK_BAD_USAGE,
                       "--to: found %s, in the run directory itself, wanted a place outside", to);
    }
    return lk_output_check("--to", to, NULL, error);
}

lk_status lk_command_pack(int argc, char **argv, lk_error *error) {
    const char *to = NULL;
    bool json = false;
    lk_recorded r = {.result_count = 0};
    const lk_argument options[] = {{.name = "to", .text = &to}};
    lk_arguments a = {.help = help,
                      .options = options,
                      .option_count = LK_COUNT(options),
                      .word_count = 1,
                      .json = &json};
    LK_CHECK(lk_parse_arguments(argc, argv, &a, error));
    if (a.helped) return LK_OK;
    if (!to) return lk_fail(error, LK_BAD_USAGE, "pack: wanted --to FILE.tar");
    LK_CHECK(check_to(to, a.words[0], error));
    lk_status status = lk_recorded_open_run(&r, a.words[0], false, error);
    if (status == LK_OK) status = pack(&r, to, json, error);
    lk_recorded_close(&r);
    return status;
}
