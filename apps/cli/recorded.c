// recorded.c - a run as it was recorded: makes the manifest of a run directory, and reads a
// manifest that came in an archive.
#define _GNU_SOURCE
#include "apps/cli/recorded.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "apps/run/record.h"
#include "io/json.h"
#include "io/tar.h"

typedef unsigned long long ull;

// --- files ---------------------------------------------------------------------------------------

// A whole file, with a NUL behind it. One that is not there is LK_NO_INPUT.
static lk_status read_file(const char *path, size_t most, char **out, size_t *count,
                           lk_error *error) {
    uint64_t bytes;
    int file;
    LK_CHECK(lk_file_open_read(&lk_file_ops_posix, path, &file, &bytes, error));
    lk_status status = LK_OK;
    if (bytes > most) {
        status = lk_fail(error, LK_BAD_DATA, "%s: %llu bytes, wanted at most %zu", path, (ull)bytes,
                         most);
    }
    if (status == LK_OK) *out = malloc((size_t)bytes + 1);
    if (status == LK_OK && !*out) status = lk_fail(error, LK_UNAVAILABLE, "%s: no memory", path);
    if (status == LK_OK) {
        status = lk_file_read_all(&lk_file_ops_posix, file, path, *out, (size_t)bytes, 0, error);
        (*out)[bytes] = '\0';
        *count = (size_t)bytes;
    }
    lk_file_ops_posix.close(NULL, file);
    return status;
}

// --- the manifest --------------------------------------------------------------------------------

// 64 hexadecimal digits; `out` stays "" where an optional key is not there.
static lk_status get_hex(const lk_json_cursor *object, const char *key, lk_json_presence presence,
                         char out[LK_SHA256_HEX_BYTES], lk_error *error) {
    lk_json_cursor at;
    LK_CHECK(lk_json_get_string(object, key, presence, out, LK_SHA256_HEX_BYTES, error));
    if (!lk_json_find(object, key, &at)) return LK_OK;
    if (strlen(out) == 64 && strspn(out, "0123456789abcdef") == 64) return LK_OK;
    return lk_json_refuse(&at, error, "wanted 64 hexadecimal digits");
}

static lk_status read_set(const lk_json_cursor *data, const char *key, lk_recorded_set *set,
                          lk_error *error) {
    static const char *const keys[] = {"examples", "sha256"};
    lk_json_cursor at;
    if (!lk_json_find(data, key, &at) || lk_json_type_of(&at) == LK_JSON_NULL) return LK_OK;
    LK_CHECK(lk_json_keys_only(&at, keys, LK_COUNT(keys), error));
    LK_CHECK(lk_json_get_u64(&at, "examples", LK_JSON_REQUIRED, 1, (uint64_t)1 << 40,
                             &set->examples, error));
    return get_hex(&at, "sha256", LK_JSON_REQUIRED, set->sha256, error);
}

static lk_status read_results(lk_recorded *r, const lk_json_cursor *root, lk_error *error) {
    static const char *const keys[] = {"step", "digest", "state_hash"};
    lk_json_cursor list, one;
    uint64_t least = 1;
    LK_CHECK(lk_json_get_array(root, "results", LK_JSON_REQUIRED, 1, 1 << 20, &list, error));
    r->results = calloc(lk_json_length(&list), sizeof *r->results);
    if (!r->results) return lk_fail(error, LK_UNAVAILABLE, "%s: no memory", r->source);
    for (size_t i = 0; i < lk_json_length(&list); i++) {
        lk_recorded_result *result = &r->results[r->result_count++];
        LK_CHECK(lk_json_element(&list, i, &one, error));
        LK_CHECK(lk_json_keys_only(&one, keys, LK_COUNT(keys), error));
        LK_CHECK(lk_json_get_u64(&one, "step", LK_JSON_REQUIRED, least, INT64_MAX, &result->step,
                                 error));
        LK_CHECK(get_hex(&one, "digest", LK_JSON_REQUIRED, result->digest, error));
        LK_CHECK(get_hex(&one, "state_hash", LK_JSON_REQUIRED, result->state_hash, error));
        least = result->step + 1;
    }
    return LK_OK;
}

static lk_status read_words(lk_recorded *r, const lk_json_cursor *root, lk_error *error) {
    static const char *const sets[] = {"train", "test"};
    lk_json_cursor data, at;
    LK_CHECK(lk_json_get_string(root, "name", LK_JSON_OPTIONAL, r->name, sizeof r->name, error));
    LK_CHECK(lk_json_get_string(root, "lockstep_version", LK_JSON_REQUIRED, r->version,
                                sizeof r->version, error));
    LK_CHECK(get_hex(root, "run_identity", LK_JSON_REQUIRED, r->identity, error));
    LK_CHECK(lk_json_get_object(root, "data", LK_JSON_OPTIONAL, &data, error));
    if (data.value) {
        LK_CHECK(lk_json_keys_only(&data, sets, LK_COUNT(sets), error));
        LK_CHECK(read_set(&data, "train", &r->train, error));
        LK_CHECK(read_set(&data, "test", &r->test, error));
    }
    LK_CHECK(lk_json_get_object(root, "environment", LK_JSON_OPTIONAL, &at, error));
    if (!at.value) return LK_OK;
    LK_CHECK(lk_json_get_string(&at, "compiler", LK_JSON_OPTIONAL, r->compiler, sizeof r->compiler,
                                error));
    return lk_json_get_string(&at, "machine", LK_JSON_OPTIONAL, r->machine, sizeof r->machine,
                              error);
}

static lk_status read_manifest(lk_recorded *r, const char *text, size_t bytes, lk_error *error) {
    static const char *const keys[] = {
        "format",       "name", "lockstep_version", "arithmetic_version",
        "run_identity", "data", "environment",      "results"};
    char source[LK_PATH_BYTES + 32];
    lk_json document;
    uint32_t format;
    lk_format(source, sizeof source, "%s: run/manifest.json", r->source);
    LK_CHECK(lk_json_load_text(&document, source, text, bytes, error));
    lk_json_cursor root = lk_json_root(&document);
    lk_status status = lk_json_as_object(&root, error);
    if (status == LK_OK) {  // a later format may have other keys
        status = lk_json_get_u32(&root, "format", LK_JSON_REQUIRED, LK_RECORD_FORMAT,
                                 LK_RECORD_FORMAT, &format, error);
    }
    if (status == LK_OK) status = lk_json_keys_only(&root, keys, LK_COUNT(keys), error);
    if (status == LK_OK) {
        status = lk_json_get_u32(&root, "arithmetic_version", LK_JSON_REQUIRED, 1, UINT32_MAX,
                                 &r->arithmetic_version, error);
    }
    if (status == LK_OK) status = read_words(r, &root, error);
    if (status == LK_OK) status = read_results(r, &root, error);
    lk_json_close(&document);
    return status;
}

// --- a run directory -----------------------------------------------------------------------------

// A checkpoint of this run, verified to the last byte, becomes a result; its name the run's.
static lk_status add_result(lk_recorded *r, const char *path, json_t *results, lk_error *error) {
    lk_open_checkpoint saved;
    LK_CHECK(lk_checkpoint_enter(&saved, path, false, error));
    const char *identity = lk_safetensors_metadata(&saved.reader, "run_identity");
    const char *name = lk_safetensors_metadata(&saved.reader, "name");
    lk_status status = LK_OK;
    if (!identity || strcmp(identity, r->identity) != 0) {
        status = lk_fail(error, LK_BAD_DATA, "%s: belongs to another run than its directory", path);
    } else {
        json_array_append_new(
            results, json_pack("{s:I, s:s, s:s}", "step", (json_int_t)saved.step, "digest",
                               lk_safetensors_metadata(&saved.reader, LK_CHECKPOINT_KEY_DIGEST),
                               "state_hash",
                               lk_safetensors_metadata(&saved.reader, LK_CHECKPOINT_KEY_STATE)));
        if (name) json_object_set_new(r->manifest, "name", json_string(name));
    }
    lk_checkpoint_leave(&saved);
    return status;
}

static lk_status collect_results(lk_recorded *r, const char *run_dir, lk_error *error) {
    char directory[LK_PATH_BYTES], path[LK_PATH_BYTES];
    lk_steps steps;
    json_t *results = json_array();
    json_object_set_new(r->manifest, "results", results);
    LK_CHECK(lk_path_join(directory, run_dir, "/", "checkpoints", error));
    LK_CHECK(lk_list_checkpoints(directory, &steps, error));
    for (size_t i = 0; i < steps.count; i++) {
        lk_error why = {.status = LK_OK};
        if (lk_checkpoint_path(path, directory, steps.steps[i], &why) != LK_OK ||
            add_result(r, path, results, &why) != LK_OK) {
            fprintf(stderr, "lockstep: WARNING: checkpoint passed over: %s\n", why.text);
        }
    }
    free(steps.steps);
    if (json_array_size(results)) return LK_OK;
    return lk_fail(error, LK_NO_INPUT,
                   "%s: holds no whole checkpoint, so nothing says what the run came to", run_dir);
}

// What training recorded; runs of earlier versions recorded nothing of the kind.
static lk_status begin_manifest(lk_recorded *r, const char *run_dir, lk_error *error) {
    char path[LK_PATH_BYTES], *text = NULL;
    size_t bytes;
    lk_error none = {.status = LK_OK};
    LK_CHECK(lk_path_join(path, run_dir, "/", LK_RECORD_NAME, error));
    lk_status status = read_file(path, LK_CONFIG_DUMP_BYTES, &text, &bytes, &none);
    if (status != LK_OK && status != LK_NO_INPUT) return lk_fail(error, status, "%s", none.text);
    r->manifest = text ? json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL)
                       : json_pack("{s:i, s:s, s:i, s:s}", "format", LK_RECORD_FORMAT,
                                   "lockstep_version", LK_VERSION, "arithmetic_version",
                                   LK_ARITHMETIC_VERSION, "run_identity", r->identity);
    free(text);
    if (json_is_object(r->manifest)) return LK_OK;
    return lk_fail(error, LK_BAD_DATA, "%s: damaged: it is no JSON object", path);
}

static lk_status check_identity(const lk_recorded *r, const char *run_dir, const char *recorded,
                                lk_error *error) {
    if (strcmp(r->identity, recorded) == 0) return LK_OK;
    return lk_fail(error, LK_BAD_DATA, "%s: " LK_RECORD_NAME " is of run %s, the directory of %s",
                   run_dir, r->identity, recorded);
}

lk_status lk_recorded_open_run(lk_recorded *r, const char *run_dir, bool logs, lk_error *error) {
    char path[LK_PATH_BYTES], identity[LK_IDENTITY_HEX_BYTES];
    *r = (lk_recorded){.result_count = 0};
    LK_CHECK(lk_path_join(r->source, run_dir, "", "", error));
    LK_CHECK(lk_run_dir_identity(&lk_file_ops_posix, run_dir, r->identity, error));
    memcpy(identity, r->identity, sizeof identity);
    LK_CHECK(begin_manifest(r, run_dir, error));
    LK_CHECK(collect_results(r, run_dir, error));
    char *text = json_dumps(r->manifest, JSON_INDENT(2) | JSON_SORT_KEYS);
    if (!text) return lk_fail(error, LK_UNAVAILABLE, "%s: no memory", run_dir);
    lk_status status = read_manifest(r, text, strlen(text), error);
    free(text);
    LK_CHECK(status);
    LK_CHECK(check_identity(r, run_dir, identity, error));
    LK_CHECK(lk_path_join(path, run_dir, "/", "config.json", error));
    LK_CHECK(read_file(path, LK_CONFIG_DUMP_BYTES, &r->config, &r->config_bytes, error));
    LK_CHECK(lk_path_join(path, run_dir, "/", "hashes.jsonl", error));
    lk_error none = {.status = LK_OK};
    if (logs &&
        read_file(path, LK_RECORDED_BYTES_MAX, &r->hashes, &r->hashes_bytes, &none) != LK_OK &&
        none.status != LK_NO_INPUT) {
        return lk_fail(error, none.status, "%s", none.text);
    }
    return LK_OK;
}

// --- an archive ----------------------------------------------------------------------------------

enum { MANIFEST, CONFIG, HASHES, METRICS, README, ENTRIES };
static const char *const entry_names[ENTRIES] = {
    "run/manifest.json", "run/config.json", "run/hashes.jsonl", "run/metrics.jsonl", "run/README"};

static lk_status list_entries(const lk_recorded *r, const uint8_t *archive, size_t bytes,
                              lk_tar_entry entries[ENTRIES], lk_error *error) {
    uint64_t at = 0;
    for (;;) {
        lk_tar_entry entry;
        uint32_t which = 0;
        LK_CHECK(lk_tar_next(archive, bytes, r->source, &at, &entry, error));
        if (!entry.data) break;
        while (which < ENTRIES && strcmp(entry.name, entry_names[which]) != 0) which++;
        if (which == ENTRIES || entries[which].data) {
            return lk_fail(error, LK_BAD_DATA, "%s: entry %s: %s", r->source, entry.name,
                           which == ENTRIES ? "none of a run that lockstep pack has packed"
                                            : "there are two of that name");
        }
        entries[which] = entry;
    }
    for (uint32_t i = MANIFEST; i <= CONFIG; i++) {
        if (entries[i].data) continue;
        return lk_fail(error, LK_BAD_DATA,
                       "%s: has no entry %s; wanted an archive of lockstep pack", r->source,
                       entry_names[i]);
    }
    return LK_OK;
}

static lk_status copy_text(const lk_recorded *r, const lk_tar_entry *entry, size_t most, char **out,
                           size_t *count, lk_error *error) {
    if (!entry->data) return LK_OK;
    if (entry->bytes > most) {
        return lk_fail(error, LK_BAD_DATA, "%s: entry %s: %llu bytes, wanted at most %zu",
                       r->source, entry->name, (ull)entry->bytes, most);
    }
    if (memchr(entry->data, '\0', (size_t)entry->bytes)) {
        return lk_fail(error, LK_BAD_DATA, "%s: entry %s: has a NUL, wanted text", r->source,
                       entry->name);
    }
    *out = malloc((size_t)entry->bytes + 1);
    if (!*out) return lk_fail(error, LK_UNAVAILABLE, "%s: no memory", r->source);
    memcpy(*out, entry->data, (size_t)entry->bytes);
    (*out)[entry->bytes] = '\0';
    *count = (size_t)entry->bytes;
    return LK_OK;
}

static lk_status open_archive(lk_recorded *r, const char *path, lk_error *error) {
    lk_tar_entry entries[ENTRIES] = {0};
    char *archive = NULL;
    size_t bytes;
    *r = (lk_recorded){.result_count = 0};
    LK_CHECK(lk_path_join(r->source, path, "", "", error));
    lk_status status = read_file(path, LK_RECORDED_BYTES_MAX, &archive, &bytes, error);
    if (status == LK_OK) {
        status = list_entries(r, (const uint8_t *)archive, bytes, entries, error);
    }
    if (status == LK_OK) {
        status = read_manifest(r, (const char *)entries[MANIFEST].data,
                               (size_t)entries[MANIFEST].bytes, error);
        // What is wrong with a stranger's manifest is wrong data, not this machine's configuration.
        if (status == LK_BAD_CONFIG) status = error->status = LK_BAD_DATA;
    }
    if (status == LK_OK) {
        status = copy_text(r, &entries[CONFIG], LK_CONFIG_DUMP_BYTES, &r->config, &r->config_bytes,
                           error);
    }
    if (status == LK_OK) {
        status = copy_text(r, &entries[HASHES], LK_RECORDED_BYTES_MAX, &r->hashes, &r->hashes_bytes,
                           error);
    }
    free(archive);
    return status;
}

lk_status lk_recorded_open(lk_recorded *r, const char *place, lk_error *error) {
    struct stat facts;
    *r = (lk_recorded){.result_count = 0};
    if (stat(place, &facts) != 0) return lk_file_fail(error, LK_NO_INPUT, place, "open", -errno);
    return S_ISDIR(facts.st_mode) ? lk_recorded_open_run(r, place, true, error)
                                  : open_archive(r, place, error);
}

void lk_recorded_close(lk_recorded *r) {
    json_decref(r->manifest);
    free(r->results);
    free(r->config);
    free(r->hashes);
    *r = (lk_recorded){.result_count = 0};
}
