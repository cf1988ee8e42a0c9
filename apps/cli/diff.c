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

#include "apps/cli/two_runs.h"

typedef unsigned long long ull;

static const char help[] =
    "lockstep diff RUN_A RUN_B [--tolerance R] [--json]\n"
    "\n"
    "Compares the step hashes that two runs logged, and the newest checkpoint that both have.\n"
    "Exit code 0: the same as far as both go. 1: they part; the first step and tensor is\n"
    "printed.\n"
    "\n"
    "--tolerance R: how far do they lie apart? Losses and accuracies of the steps that both\n"
    "logged, and every tensor of every checkpoint that both have. Exit code 1 where a\n"
    "relative difference is above R: for a loss |a - b| / max(|a|, |b|), for a tensor the\n"
    "largest |a - b| of its elements over the largest magnitude in it. Tensors of whole\n"
    "numbers, such as the state of a loss scale, must be equal.\n";

enum { SIDES = LK_SIDES };
static const char side_letter[SIDES] = {'A', 'B'};

// --- the logs against each other -----------------------------------------------------------------

typedef struct comparison {
    const char *run[SIDES];
    lk_json_log log[SIDES];
    uint64_t compared;    // steps that both logged, equal so far
    uint64_t last;        // the last of them
    uint64_t end[SIDES];  // the last step of each log
    bool parted;
} comparison;

static void print_parting(comparison *c, const char *what) {
    c->parted = true;
    lk_diff_number("differ_at_step", c->log[0].step);
    lk_diff_text("what", what);
    if (c->compared) lk_diff_number("last_equal_step", c->last);
    lk_diff_say("differ: step %llu, %s\n", (ull)c->log[0].step, what);
    if (c->compared) {
        lk_diff_say("the last equal step that both logged is %llu\n", (ull)c->last);
    } else {
        lk_diff_say("it is the first step that both logged\n");
    }
}

// The next tensor of a line: false after the last.
static bool next_tensor(const lk_json_cursor *root, const char **key, lk_json_cursor *value) {
    while (lk_json_next(root, key, value)) {
        if (strcmp(*key, "step") != 0 && strcmp(*key, LK_LINE_SUM_KEY) != 0) return true;
    }
    return false;
}

// Two lines of one step, in the order of the line.
static lk_status compare_lines(comparison *c, lk_error *error) {
    lk_json_cursor root[SIDES], value[SIDES];
    const char *key[SIDES] = {NULL, NULL}, *hash[SIDES];
    char what[400], name[SIDES][LK_TEXT_SHOWN_BYTES];
    for (uint32_t i = 0; i < SIDES; i++) root[i] = lk_json_root(&c->log[i].document);
    for (;;) {
        bool more[SIDES];
        for (uint32_t i = 0; i < SIDES; i++) more[i] = next_tensor(&root[i], &key[i], &value[i]);
        if (!more[0] && !more[1]) break;
        if (!more[0] || !more[1] || strcmp(key[0], key[1]) != 0) {
            snprintf(what, sizeof what, "tensor names: A has %.120s where B has %.120s: two models",
                     more[0] ? lk_text_shown(name[0], key[0]) : "no more",
                     more[1] ? lk_text_shown(name[1], key[1]) : "no more");
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
            char found[SIDES][LK_TEXT_SHOWN_BYTES];
            snprintf(what, sizeof what, "tensor %.200s: hash A %.32s, B %.32s",
                     lk_text_shown(name[0], key[0]), lk_text_shown(found[0], hash[0]),
                     lk_text_shown(found[1], hash[1]));
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
    lk_json_log *a = &c->log[0], *b = &c->log[1];
    LK_CHECK(lk_json_log_next(a, error));
    LK_CHECK(lk_json_log_next(b, error));
    while (a->at_line || b->at_line) {
        bool both = a->at_line && b->at_line && a->step == b->step;
        if (both) LK_CHECK(compare_lines(c, error));
        if (c->parted) return LK_OK;
        bool move_a = both || !b->at_line || (a->at_line && a->step < b->step);
        bool move_b = both || !move_a;
        if (move_a) LK_CHECK(lk_json_log_next(a, error));
        if (move_b) LK_CHECK(lk_json_log_next(b, error));
    }
    for (uint32_t i = 0; i < SIDES; i++) c->end[i] = c->log[i].step;
    return LK_OK;
}

static void print_log_ends(const comparison *c) {
    for (uint32_t i = 0; i < SIDES; i++) {
        if (c->log[i].lines) continue;
        lk_diff_say("%c has no step hashes (%s is %s)\n", side_letter[i], c->log[i].path,
                    c->log[i].file ? "empty" : "not there");
    }
    if (!c->log[0].lines || !c->log[1].lines || c->end[0] == c->end[1]) return;
    uint32_t shorter = c->end[0] < c->end[1] ? 0 : 1;
    lk_diff_say("%c ends at step %llu, %c goes on to step %llu: %s\n", side_letter[shorter],
                (ull)c->end[shorter], side_letter[!shorter], (ull)c->end[!shorter],
                c->compared ? "the shorter run is a prefix of the longer, as far as both logged"
                            : "no step was logged by both");
}

// --- checkpoints against each other --------------------------------------------------------------

static void print_entry(const char *what, const lk_safetensors_entry *entry) {
    lk_diff_say("%s %s [", what, lk_safetensors_dtype_name(entry->dtype));
    for (unsigned i = 0; i < entry->dim_count; i++) {
        lk_diff_say("%s%llu", i ? ", " : "", (ull)entry->dims[i]);
    }
    lk_diff_say("]");
}

// The first element that differs, with both values.
static void print_element(const lk_safetensors_entry *entry, uint64_t at, const uint8_t *a,
                          const uint8_t *b) {
    if (entry->dtype != LK_SAFETENSORS_F32) {
        lk_diff_say("byte %llu: A %02x, B %02x\n", (ull)at, a[at], b[at]);
        return;
    }
    uint32_t bits[SIDES];
    float value[SIDES];
    memcpy(&bits[0], a + at / 4 * 4, 4);
    memcpy(&bits[1], b + at / 4 * 4, 4);
    memcpy(value, bits, sizeof value);
    lk_diff_say("element %llu: A %.9g (0x%08x), B %.9g (0x%08x)\n", (ull)(at / 4), (double)value[0],
                bits[0], (double)value[1], bits[1]);
}

// The first element that differs, or none.
static void compare_bytes(const lk_open_checkpoint *a, const lk_open_checkpoint *b,
                          const lk_safetensors_entry *x, const lk_safetensors_entry *y,
                          bool *differ) {
    const uint8_t *one = lk_checkpoint_values(a, x), *other = lk_checkpoint_values(b, y);
    uint64_t bytes = x->end - x->begin, at = 0;
    while (at < bytes && one[at] == other[at]) at++;
    if (at == bytes) return;
    char name[LK_TEXT_SHOWN_BYTES];
    *differ = true;
    lk_diff_number("differ_at_checkpoint", a->step);
    lk_diff_text("tensor", x->name);
    lk_diff_say("differ: checkpoint of step %llu, tensor %s, ", (ull)a->step,
                lk_text_shown(name, x->name));
    print_element(x, at, one, other);
}

static void compare_checkpoints(const lk_open_checkpoint *a, const lk_open_checkpoint *b,
                                bool *differ) {
    char name[LK_TEXT_SHOWN_BYTES];
    for (size_t i = 0; i < a->reader.entry_count && !*differ; i++) {
        const lk_safetensors_entry *x = &a->reader.entries[i];
        const lk_safetensors_entry *y = lk_safetensors_find(&b->reader, x->name);
        if (y && lk_same_shape(x, y)) {
            compare_bytes(a, b, x, y, differ);
            continue;
        }
        *differ = true;
        lk_diff_say("differ: checkpoint of step %llu, tensor %s: ", (ull)a->step,
                    lk_text_shown(name, x->name));
        print_entry("A has", x);
        if (y) print_entry(", B", y);
        lk_diff_say("%s\n", y ? "" : ", B has none");
    }
    for (size_t i = 0; i < b->reader.entry_count && !*differ; i++) {
        const char *only = b->reader.entries[i].name;
        if (lk_safetensors_find(&a->reader, only)) continue;
        *differ = true;
        lk_diff_say("differ: checkpoint of step %llu, tensor %s: only B has it\n", (ull)a->step,
                    lk_text_shown(name, only));
    }
}

// The newest step of which both have a whole checkpoint.
static lk_status open_newest(const comparison *c, lk_open_checkpoint pair[SIDES], bool *found,
                             lk_error *error) {
    lk_steps steps;
    LK_CHECK(lk_common_checkpoints(c->run, &steps, error));
    *found = false;
    for (size_t i = steps.count; i > 0 && !*found; i--) {
        *found = lk_checkpoint_enter_both(c->run, steps.steps[i - 1], pair);
    }
    free(steps.steps);
    return LK_OK;
}

// Says how the runs agree, after everything was compared.
static void print_same(const comparison *c, const lk_open_checkpoint *saved) {
    const char *digest = saved ? lk_safetensors_metadata(&saved->reader, "digest") : NULL;
    lk_diff_number("steps_compared", c->compared);
    if (c->compared) lk_diff_number("last_step", c->last);
    if (digest) lk_diff_text("digest", digest);
    if (saved) lk_diff_number("checkpoint_step", saved->step);
    lk_diff_say("same: %llu steps compared", (ull)c->compared);
    if (c->compared) lk_diff_say(", last step %llu", (ull)c->last);
    if (digest) lk_diff_say(", digest %.64s", digest);
    if (saved) lk_diff_say(" (checkpoint of step %llu, every byte)", (ull)saved->step);
    lk_diff_say(
        "%s\n",
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
    if (found) compare_checkpoints(&pair[0], &pair[1], &c->parted);
    if (!c->parted) print_same(c, found ? &pair[0] : NULL);
    if (found) lk_checkpoint_leave_both(pair);
    return LK_OK;
}

// --- the command ---------------------------------------------------------------------------------

// Runs of two identities may still have equal bits up to a step: said, not refused.
static lk_status compare_identities(const comparison *c, lk_error *error) {
    char hex[SIDES][LK_IDENTITY_HEX_BYTES];
    for (uint32_t i = 0; i < SIDES; i++) {
        LK_CHECK(lk_run_dir_identity(&lk_file_ops_posix, c->run[i], hex[i], error));
    }
    if (strcmp(hex[0], hex[1]) == 0) return LK_OK;
    lk_diff_say("the run identities differ (A %s, B %s): two configurations or data sets\n", hex[0],
                hex[1]);
    return LK_OK;
}

static lk_status compare(comparison *c, lk_error *error) {
    for (uint32_t i = 0; i < SIDES; i++) {
        LK_CHECK(lk_json_log_open(&c->log[i], c->run[i], "hashes.jsonl", false, error));
    }
    LK_CHECK(compare_logs(c, error));
    for (uint32_t i = 0; i < SIDES; i++) lk_json_log_say(&c->log[i]);
    if (c->parted) return LK_DIFFERS;
    print_log_ends(c);
    LK_CHECK(compare_states(c, error));
    return c->parted ? LK_DIFFERS : LK_OK;
}

static lk_status parse_tolerance(const char *text, double *tolerance, lk_error *error) {
    char *end = NULL;
    *tolerance = strtod(text, &end);
    if (end != text && *end == '\0' && *tolerance >= 0.0 && *tolerance <= 2.0) return LK_OK;
    return lk_fail(error, LK_BAD_USAGE,
                   "--tolerance: found \"%s\", wanted a relative difference from 0 to 2, like 1e-3",
                   text);
}

lk_status lk_command_diff(int argc, char **argv, lk_error *error) {
    static comparison c;
    const char *text = NULL;
    double tolerance = 0.0;
    const lk_argument options[] = {{.name = "tolerance", .text = &text}};
    bool json = false;
    lk_arguments a = {.help = help,
                      .options = options,
                      .option_count = LK_COUNT(options),
                      .word_count = 2,
                      .json = &json};
    LK_CHECK(lk_parse_arguments(argc, argv, &a, error));
    if (a.helped) return LK_OK;
    if (text) LK_CHECK(parse_tolerance(text, &tolerance, error));
    c = (comparison){.run = {a.words[0], a.words[1]}};
    if (json) lk_diff_answer = json_pack("{s:[]}", "lines");
    LK_CHECK(compare_identities(&c, error));
    lk_status status = text ? lk_compare_within(c.run, tolerance, error) : compare(&c, error);
    if (json && (status == LK_OK || status == LK_DIFFERS)) {
        json_object_set_new(lk_diff_answer, text ? "within" : "same",
                            json_boolean(status == LK_OK));
        LK_CHECK(lk_print_json(lk_diff_answer, error));
    }
    if (text) return status;
    for (uint32_t i = 0; i < SIDES; i++) lk_json_log_close(&c.log[i]);
    return status;
}
