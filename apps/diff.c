// diff.c - lockstep diff: the first step and tensor where two runs part, or that they do not.
//
// First the hash logs, line by line, joined by step: runs may have logged at different intervals.
// Then, since a step hash covers no optimizer slot, the bytes of the newest checkpoint that both
// have. Answers go to standard output: that two runs differ is a result, not an error.
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apps/tools.h"
#include "io/json.h"

typedef unsigned long long ull;

static const char help[] =
    "lockstep diff RUN_A RUN_B\n"
    "\n"
    "Compares the step hashes that two runs logged, and the newest checkpoint that both have.\n"
    "Exit code 0: the same as far as both go. 1: they part; the first step and tensor is\n"
    "printed.\n";

enum { SIDES = 2 };
static const char side_letter[SIDES] = {'A', 'B'};

// --- a hash log, one line at a time --------------------------------------------------------------

typedef struct hash_log {
    char path[LK_PATH_BYTES];
    FILE *file;  // NULL: there is none
    char *text;  // getline's
    size_t capacity;
    uint64_t line;     // its number, from 1
    lk_json document;  // of the line at hand
    bool at_line;      // false: the log has ended
    uint64_t step;     // of the line at hand, or of the last one
    uint64_t lines;    // read in all
} hash_log;

static lk_status log_open(hash_log *log, const char *run_dir, lk_error *error) {
    *log = (hash_log){0};
    LK_CHECK(lk_path_join(log->path, run_dir, "/", "hashes.jsonl", error));
    log->file = fopen(log->path, "re");
    if (log->file || errno == ENOENT) return LK_OK;
    return lk_file_fail(error, LK_NO_INPUT, log->path, "open", -errno);
}

static void log_close(hash_log *log) {
    lk_json_close(&log->document);
    free(log->text);
    if (log->file) fclose(log->file);
    *log = (hash_log){0};
}

static lk_status log_parse(hash_log *log, size_t length, lk_error *error) {
    char source[LK_JSON_SOURCE_BYTES];
    lk_error why = {.status = LK_OK};
    uint64_t step = 0;
    lk_format(source, sizeof source, "%.*s line %llu", LK_JSON_SOURCE_BYTES - 32, log->path,
              (ull)log->line);
    lk_status status = lk_json_load_text(&log->document, source, log->text, length, &why);
    if (status == LK_OK) {
        lk_json_cursor root = lk_json_root(&log->document);
        status = lk_json_get_u64(&root, "step", LK_JSON_REQUIRED, 0, INT64_MAX, &step, &why);
    }
    if (status != LK_OK) return lk_fail(error, LK_BAD_DATA, "%s", why.text);
    if (log->lines && step <= log->step) {
        return lk_fail(error, LK_BAD_DATA,
                       "%s: found step %llu after step %llu, wanted a later one", source, (ull)step,
                       (ull)log->step);
    }
    log->step = step;
    log->lines++;
    return LK_OK;
}

// Goes to the next line. The last line of a run that was killed may be torn: without its newline it
// never was written.
static lk_status log_next(hash_log *log, lk_error *error) {
    lk_json_close(&log->document);
    log->at_line = false;
    if (!log->file) return LK_OK;
    errno = 0;
    ssize_t length = getline(&log->text, &log->capacity, log->file);
    if (length < 0 && ferror(log->file)) {
        return lk_file_fail(error, LK_IO_ERROR, log->path, "read", -errno);
    }
    if (length <= 0 || log->text[length - 1] != '\n') return LK_OK;
    log->line++;
    log->at_line = true;
    return log_parse(log, (size_t)length - 1, error);
}

// --- the logs against each other -----------------------------------------------------------------

typedef struct comparison {
    const char *run[SIDES];
    hash_log log[SIDES];
    uint64_t compared;    // steps that both logged, equal so far
    uint64_t last;        // the last of them
    uint64_t end[SIDES];  // the last step of each log
    bool parted;
} comparison;

static void print_parting(comparison *c, const char *what) {
    c->parted = true;
    printf("differ: step %llu, %s\n", (ull)c->log[0].step, what);
    if (c->compared) {
        printf("the last equal step that both logged is %llu\n", (ull)c->last);
    } else {
        printf("it is the first step that both logged\n");
    }
}

// The next tensor of a line: false after the last.
static bool next_tensor(const lk_json_cursor *root, const char **key, lk_json_cursor *value) {
    while (lk_json_next(root, key, value)) {
        if (strcmp(*key, "step") != 0) return true;
    }
    return false;
}

// Two lines of one step, in the order of the line.
static lk_status compare_lines(comparison *c, lk_error *error) {
    lk_json_cursor root[SIDES], value[SIDES];
    const char *key[SIDES] = {NULL, NULL}, *hash[SIDES];
    char what[400];
    for (uint32_t i = 0; i < SIDES; i++) root[i] = lk_json_root(&c->log[i].document);
    for (;;) {
        bool more[SIDES];
        for (uint32_t i = 0; i < SIDES; i++) more[i] = next_tensor(&root[i], &key[i], &value[i]);
        if (!more[0] && !more[1]) break;
        if (!more[0] || !more[1] || strcmp(key[0], key[1]) != 0) {
            snprintf(what, sizeof what, "tensor names: A has %.120s where B has %.120s: two models",
                     more[0] ? key[0] : "no more", more[1] ? key[1] : "no more");
            print_parting(c, what);
            return LK_OK;
        }
        for (uint32_t i = 0; i < SIDES; i++) {
            lk_error why = {.status = LK_OK};
            if (lk_json_as_string(&value[i], &hash[i], &why) != LK_OK) {
                return lk_fail(error, LK_BAD_DATA, "%s", why.text);
            }
        }
        if (strcmp(hash[0], hash[1]) != 0) {
            snprintf(what, sizeof what, "tensor %.200s: hash A %.32s, B %.32s", key[0], hash[0],
                     hash[1]);
            print_parting(c, what);
            return LK_OK;
        }
    }
    c->compared++;
    c->last = c->log[0].step;
    return LK_OK;
}

// Walks both logs to their ends, or to the first difference.
static lk_status compare_logs(comparison *c, lk_error *error) {
    hash_log *a = &c->log[0], *b = &c->log[1];
    LK_CHECK(log_next(a, error));
    LK_CHECK(log_next(b, error));
    while (a->at_line || b->at_line) {
        bool both = a->at_line && b->at_line && a->step == b->step;
        if (both) LK_CHECK(compare_lines(c, error));
        if (c->parted) return LK_OK;
        bool move_a = both || !b->at_line || (a->at_line && a->step < b->step);
        bool move_b = both || !move_a;
        if (move_a) LK_CHECK(log_next(a, error));
        if (move_b) LK_CHECK(log_next(b, error));
    }
    for (uint32_t i = 0; i < SIDES; i++) c->end[i] = c->log[i].step;
    return LK_OK;
}

static void print_log_ends(const comparison *c) {
    for (uint32_t i = 0; i < SIDES; i++) {
        if (c->log[i].lines) continue;
        printf("%c has no step hashes (%s is %s)\n", side_letter[i], c->log[i].path,
               c->log[i].file ? "empty" : "not there");
    }
    if (!c->log[0].lines || !c->log[1].lines || c->end[0] == c->end[1]) return;
    uint32_t shorter = c->end[0] < c->end[1] ? 0 : 1;
    printf("%c ends at step %llu, %c goes on to step %llu: %s\n", side_letter[shorter],
           (ull)c->end[shorter], side_letter[!shorter], (ull)c->end[!shorter],
           c->compared ? "the shorter run is a prefix of the longer, as far as both logged"
                       : "no step was logged by both");
}

// --- checkpoints against each other --------------------------------------------------------------

static void print_entry(const char *what, const lk_safetensors_entry *entry) {
    printf("%s %s [", what, lk_safetensors_dtype_name(entry->dtype));
    for (unsigned i = 0; i < entry->dim_count; i++) {
        printf("%s%llu", i ? ", " : "", (ull)entry->dims[i]);
    }
    printf("]");
}

static bool same_shape(const lk_safetensors_entry *a, const lk_safetensors_entry *b) {
    return a->dtype == b->dtype && a->dim_count == b->dim_count &&
           a->end - a->begin == b->end - b->begin &&
           memcmp(a->dims, b->dims, a->dim_count * sizeof a->dims[0]) == 0;
}

// The first element that differs, with both values.
static void print_element(const lk_safetensors_entry *entry, uint64_t at, const uint8_t *a,
                          const uint8_t *b) {
    if (entry->dtype != LK_SAFETENSORS_F32) {
        printf("byte %llu: A %02x, B %02x\n", (ull)at, a[at], b[at]);
        return;
    }
    uint32_t bits[SIDES];
    float value[SIDES];
    memcpy(&bits[0], a + at / 4 * 4, 4);
    memcpy(&bits[1], b + at / 4 * 4, 4);
    memcpy(value, bits, sizeof value);
    printf("element %llu: A %.9g (0x%08x), B %.9g (0x%08x)\n", (ull)(at / 4), (double)value[0],
           bits[0], (double)value[1], bits[1]);
}

// Both tensors whole in memory: they were, in training, too.
static lk_status compare_bytes(const lk_open_checkpoint *a, const lk_open_checkpoint *b,
                               const lk_safetensors_entry *x, const lk_safetensors_entry *y,
                               bool *differ, lk_error *error) {
    uint64_t bytes = x->end - x->begin, at = 0;
    uint8_t *data = malloc(2 * bytes + 1);
    if (!data) return lk_fail(error, LK_UNAVAILABLE, "no memory to compare tensor %s", x->name);
    lk_status status = lk_safetensors_read(&a->reader, x, data, error);
    if (status == LK_OK) status = lk_safetensors_read(&b->reader, y, data + bytes, error);
    if (status == LK_OK && memcmp(data, data + bytes, bytes) != 0) {
        while (data[at] == data[bytes + at]) at++;
        *differ = true;
        printf("differ: checkpoint of step %llu, tensor %s, ", (ull)a->step, x->name);
        print_element(x, at, data, data + bytes);
    }
    free(data);
    return status;
}

static lk_status compare_checkpoints(const lk_open_checkpoint *a, const lk_open_checkpoint *b,
                                     bool *differ, lk_error *error) {
    for (size_t i = 0; i < a->reader.entry_count && !*differ; i++) {
        const lk_safetensors_entry *x = &a->reader.entries[i];
        const lk_safetensors_entry *y = lk_safetensors_find(&b->reader, x->name);
        if (y && same_shape(x, y)) {
            LK_CHECK(compare_bytes(a, b, x, y, differ, error));
            continue;
        }
        *differ = true;
        printf("differ: checkpoint of step %llu, tensor %s: ", (ull)a->step, x->name);
        print_entry("A has", x);
        if (y) print_entry(", B", y);
        printf("%s\n", y ? "" : ", B has none");
    }
    for (size_t i = 0; i < b->reader.entry_count && !*differ; i++) {
        const char *name = b->reader.entries[i].name;
        if (lk_safetensors_find(&a->reader, name)) continue;
        *differ = true;
        printf("differ: checkpoint of step %llu, tensor %s: only B has it\n", (ull)a->step, name);
    }
    return LK_OK;
}

// Opens both checkpoints of a step; false, with a line, where one of them is damaged.
static bool open_pair(const comparison *c, uint64_t step, lk_open_checkpoint pair[SIDES]) {
    char directory[LK_PATH_BYTES], path[LK_PATH_BYTES];
    for (uint32_t i = 0; i < SIDES; i++) {
        lk_error why = {.status = LK_OK};
        if (lk_path_join(directory, c->run[i], "/", "checkpoints", &why) == LK_OK &&
            lk_checkpoint_path(path, directory, step, &why) == LK_OK &&
            lk_checkpoint_enter(&pair[i], path, &why) == LK_OK) {
            continue;
        }
        printf("passed over: %s\n", why.text);
        if (i == 1) lk_checkpoint_leave(&pair[0]);
        return false;
    }
    return true;
}

// The newest step of which both have a whole checkpoint.
static lk_status open_newest(const comparison *c, lk_open_checkpoint pair[SIDES], bool *found,
                             lk_error *error) {
    lk_steps steps[SIDES] = {{0}};
    char directory[LK_PATH_BYTES];
    lk_status status = LK_OK;
    for (uint32_t i = 0; i < SIDES && status == LK_OK; i++) {
        status = lk_path_join(directory, c->run[i], "/", "checkpoints", error);
        if (status == LK_OK) status = lk_list_checkpoints(directory, &steps[i], error);
    }
    size_t a = steps[0].count, b = steps[1].count;
    *found = false;
    while (status == LK_OK && !*found && a > 0 && b > 0) {
        uint64_t x = steps[0].steps[a - 1], y = steps[1].steps[b - 1];
        if (x == y) *found = open_pair(c, x, pair);
        a -= x >= y;
        b -= y >= x;
    }
    free(steps[0].steps);
    free(steps[1].steps);
    return status;
}

// Says how the runs agree, after everything was compared.
static void print_same(const comparison *c, const lk_open_checkpoint *saved) {
    const char *digest = saved ? lk_safetensors_metadata(&saved->reader, "digest") : NULL;
    printf("same: %llu steps compared", (ull)c->compared);
    if (c->compared) printf(", last step %llu", (ull)c->last);
    if (digest) printf(", digest %.64s", digest);
    if (saved) printf(" (checkpoint of step %llu, every byte)", (ull)saved->step);
    printf("%s\n",
           saved ? "" : "; no checkpoint of one step is in both, so optimizer slots are unseen");
}

static lk_status compare_states(comparison *c, lk_error *error) {
    lk_open_checkpoint pair[SIDES];
    bool found;
    LK_CHECK(open_newest(c, pair, &found, error));
    if (!found && !c->compared) {
        return lk_fail(error, LK_NO_INPUT,
                       "%s and %s: nothing to compare: no step was logged by both, and "
                       "there is no checkpoint of one step in both",
                       c->run[0], c->run[1]);
    }
    lk_status status = LK_OK;
    if (found) status = compare_checkpoints(&pair[0], &pair[1], &c->parted, error);
    if (status == LK_OK && !c->parted) print_same(c, found ? &pair[0] : NULL);
    for (uint32_t i = 0; i < SIDES && found; i++) lk_checkpoint_leave(&pair[i]);
    return status;
}

// --- the command ---------------------------------------------------------------------------------

// Runs of two identities may still have equal bits up to a step: said, not refused.
static lk_status compare_identities(const comparison *c, lk_error *error) {
    char hex[SIDES][LK_IDENTITY_HEX_BYTES];
    for (uint32_t i = 0; i < SIDES; i++) {
        LK_CHECK(lk_run_dir_identity(&lk_file_ops_posix, c->run[i], hex[i], error));
    }
    if (strcmp(hex[0], hex[1]) == 0) return LK_OK;
    printf("the run identities differ (A %s, B %s): two configurations or data sets\n", hex[0],
           hex[1]);
    return LK_OK;
}

static lk_status compare(comparison *c, lk_error *error) {
    LK_CHECK(compare_identities(c, error));
    for (uint32_t i = 0; i < SIDES; i++) LK_CHECK(log_open(&c->log[i], c->run[i], error));
    LK_CHECK(compare_logs(c, error));
    if (c->parted) return LK_DIFFERS;
    print_log_ends(c);
    LK_CHECK(compare_states(c, error));
    return c->parted ? LK_DIFFERS : LK_OK;
}

lk_status lk_command_diff(int argc, char **argv, lk_error *error) {
    static comparison c;
    lk_arguments a = {.help = help, .word_count = 2};
    LK_CHECK(lk_parse_arguments(argc, argv, &a, error));
    if (a.helped) return LK_OK;
    c = (comparison){.run = {a.words[0], a.words[1]}};
    lk_status status = compare(&c, error);
    for (uint32_t i = 0; i < SIDES; i++) log_close(&c.log[i]);
    return status;
}
