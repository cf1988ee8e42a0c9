// reproduce.c - lockstep reproduce: trains a recorded run again, from the same configuration and
// the data at hand, and compares step hashes and digests on the way. Writes no file.
//
// What was recorded is read and laid out before the start; then every step that has a hash or a
// digest is compared when it is done, and the first that differs ends it.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apps/cli/recorded.h"
#include "apps/run/record.h"
#include "comm/step/hash.h"
#include "io/json.h"
#include "io/line_sum.h"

typedef unsigned long long ull;

static const char help[] =
    "lockstep reproduce FILE.tar|RUN_DIR [--set KEY=VALUE] [--data DIRECTORY] [--replicas N] "
    "[--json]\n"
    "\n"
    "Trains a run again that lockstep pack has packed, or that lies in RUN_DIR, and compares "
    "every\n"
    "step hash that it logged and the digest and state hash of every checkpoint. No file is "
    "written.\n"
    "Exit code 0: the same bits. 1: they part; where, and what else differs, is printed.\n"
    "The data may lie elsewhere: --data DIRECTORY, or --set of its keys. How it is computed may\n"
    "differ: --replicas, --kernels, --gpus, --set of what decides no bit.\n";

// The step hashes of the recorded run: one line a step, one number a parameter.
typedef struct hash_log {
    uint64_t *steps;   // (count), ascending
    uint64_t *values;  // (count, parameters)
    size_t count;
} hash_log;

typedef struct reproduction {
    lk_recorded recorded;
    hash_log log;
    lk_text_out out;
    bool json;
    json_t *answer;  // --json
    size_t hashes_compared;
    uint32_t results_compared;
    uint64_t last_equal;  // step, 0: none yet
} reproduction;

// --- what is said --------------------------------------------------------------------------------

static void say(reproduction *r, const char *key, const char *value) {
    if (r->json)
        json_object_set_new(r->answer, key, lk_json_text(value));
    else
        lk_text_line(&r->out, "%s %s", key, value);
}

static void say_number(reproduction *r, const char *key, uint64_t value) {
    if (r->json) json_object_set_new(r->answer, key, json_integer((json_int_t)value));
}

// What else than the bits is not as it was recorded: a hint where they part, no verdict.
static void say_others(reproduction *r, const lk_run *run) {
    char line[2 * LK_RECORDED_WORD_BYTES + 64], shown[LK_TEXT_SHOWN_BYTES];
    const lk_recorded *was = &r->recorded;
    snprintf(line, sizeof line, "%s there, %s here%s", lk_text_shown(shown, was->version),
             LK_VERSION, strcmp(was->version, LK_VERSION) == 0 ? ": the same" : "");
    say(r, "version", line);
    if (*was->compiler) say(r, "compiler_there", lk_text_shown(shown, was->compiler));
    if (*was->machine) say(r, "machine_there", lk_text_shown(shown, was->machine));
    say(r, "kernels_here", lk_run_kernels(run));
}

static lk_status parted(reproduction *r, const lk_run *run, uint64_t step, const char *what,
                        const char *there, const char *here) {
    char line[4 * LK_TEXT_SHOWN_BYTES];
    snprintf(line, sizeof line, "step %llu, %s: %s there, %s here", (ull)step, what, there, here);
    say_number(r, "differ_at_step", step);
    if (r->json && r->last_equal) say_number(r, "last_equal_step", r->last_equal);
    say(r, "differ", line);
    if (!r->json && r->last_equal) {
        lk_text_line(&r->out, "the last equal step that was recorded is %llu", (ull)r->last_equal);
    } else if (!r->json) {
        lk_text_line(&r->out, "it is the first step that was recorded");
    }
    say_others(r, run);
    return LK_DIFFERS;
}

// --- the recorded step hashes --------------------------------------------------------------------

static lk_status read_hash(const lk_json_cursor *at, uint64_t *hash, lk_error *error) {
    const char *text;
    LK_CHECK(lk_json_as_string(at, &text, error));
    if (strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16) {
        return lk_json_refuse(at, error, "wanted 16 hexadecimal digits");
    }
    *hash = strtoull(text, NULL, 16);
    return LK_OK;
}

// One hash for each parameter of the model, in its order.
static lk_status read_line(hash_log *log, const lk_program *p, const lk_json *document,
                           lk_error *error) {
    lk_json_cursor root = lk_json_root(document), at;
    const uint64_t least = log->count ? log->steps[log->count - 1] + 1 : 1;
    const char *key = NULL;
    uint32_t found = 0;
    LK_CHECK(lk_json_get_u64(&root, "step", LK_JSON_REQUIRED, least, INT64_MAX,
                             &log->steps[log->count], error));
    while (lk_json_next(&root, &key, &at)) {
        if (strcmp(key, "step") == 0 || strcmp(key, LK_LINE_SUM_KEY) == 0) continue;
        const char *wanted =
            found < p->param_count ? p->tensors[p->params[found].tensor].name : "no more";
        if (found == p->param_count || strcmp(key, wanted) != 0) {
            return lk_json_refuse(&at, error, "wanted the hash of %s: another model's log", wanted);
        }
        LK_CHECK(read_hash(&at, &log->values[log->count * p->param_count + found], error));
        found++;
    }
    if (found < p->param_count) {
        return lk_json_refuse(&root, error, "has %u hashes, the model %u parameters", found,
                              p->param_count);
    }
    log->count++;
    return LK_OK;
}

static lk_status read_lines(reproduction *r, const lk_program *p, lk_error *error) {
    const char *at = r->recorded.hashes, *end = at + r->recorded.hashes_bytes;
    char source[LK_PATH_BYTES + 64], path[LK_PATH_BYTES + 32];
    lk_line_sums sums;
    lk_line_sums_start(&sums);
    lk_format(path, sizeof path, "%s: hashes.jsonl", r->recorded.source);
    // The last line of a run that was killed may be torn: without its newline it never was written.
    for (const char *next; (next = memchr(at, '\n', (size_t)(end - at))) != NULL; at = next + 1) {
        lk_json document;
        LK_CHECK(lk_line_sums_check(&sums, path, at, (size_t)(next - at), error));
        lk_format(source, sizeof source, "%s line %zu", path, r->log.count + 1);
        LK_CHECK(lk_json_load_text(&document, source, at, (size_t)(next - at), error));
        lk_status status = read_line(&r->log, p, &document, error);
        lk_json_close(&document);
        LK_CHECK(status);
    }
    return LK_OK;
}

static lk_status read_hashes(reproduction *r, const lk_program *p, lk_error *error) {
    const lk_recorded *was = &r->recorded;
    size_t lines = 0, cells;
    if (!was->hashes) return LK_OK;
    for (size_t i = 0; i < was->hashes_bytes; i++) lines += was->hashes[i] == '\n';
    uint64_t wanted;
    bool fits = lk_mul_ok(lines, p->param_count, &wanted) && wanted <= LK_RECORDED_BYTES_MAX;
    cells = fits ? (size_t)wanted : 0;
    r->log.steps = calloc(lines + 1, sizeof *r->log.steps);
    r->log.values = fits ? calloc(cells + p->param_count, sizeof *r->log.values) : NULL;
    if (!r->log.steps || !r->log.values) {
        return lk_fail(error, LK_UNAVAILABLE, "%s: no memory for %zu lines of step hashes",
                       was->source, lines);
    }
    lk_status status = read_lines(r, p, error);
    // What is wrong with a log is wrong data, not this machine's configuration.
    if (status == LK_BAD_CONFIG) status = error->status = LK_BAD_DATA;
    return status;
}

// --- before the first step -----------------------------------------------------------------------

static lk_status compare_set(reproduction *r, const char *which, const lk_recorded_set *was,
                             const lk_dataset *is) {
    char hex[LK_SHA256_HEX_BYTES], line[3 * LK_SHA256_HEX_BYTES];
    if (!was->examples || !is->count) return LK_OK;
    lk_hex(is->sha256, LK_SHA256_BYTES, hex);
    if (was->examples == is->count && strcmp(was->sha256, hex) == 0) return LK_OK;
    snprintf(line, sizeof line, "%s set: %s (%llu examples) there, %s (%llu) here", which,
             was->sha256, (ull)was->examples, hex, (ull)is->count);
    say(r, "differ", line);
    return LK_DIFFERS;
}

// Another run is not trained: its bits would say nothing. Which part of it is another?
static lk_status compare_identity(reproduction *r, const lk_run *run) {
    char keys[512], line[1024];
    const lk_recorded *was = &r->recorded;
    if (strcmp(was->identity, run->identity_hex) == 0) return LK_OK;
    json_t *there = json_loadb(was->config, was->config_bytes, 0, NULL);
    const uint32_t count =
        there ? lk_config_differences(there, run->config.document.root, keys, sizeof keys) : 0;
    json_decref(there);
    snprintf(
        line, sizeof line, "run identity %s there, %s here: %s%s", was->identity, run->identity_hex,
        count ? "the configurations differ in "
        : was->train.examples
            ? "keys and data are equal, so the version is another: take the one that trained it"
            : "the keys are equal, so the data, whose hash was not recorded, or the version is "
              "another",
        count ? keys : "");
    say(r, "differ", line);
    return LK_DIFFERS;
}

static lk_status compare_start(reproduction *r, const lk_run *run) {
    lk_status status = compare_set(r, "training", &r->recorded.train, &run->train);
    if (status == LK_OK) status = compare_identity(r, run);
    if (status != LK_OK) say_others(r, run);
    return status;
}

// --- the steps -----------------------------------------------------------------------------------

static lk_status compare_hashes(reproduction *r, const lk_run *run, uint64_t step,
                                const uint64_t *wanted) {
    const lk_program *p = &run->program;
    for (uint32_t i = 0; i < p->param_count; i++) {
        const lk_tensor *tensor = &p->tensors[p->params[i].tensor];
        const void *values = run->core.device + tensor->offset;
        const uint64_t found = lk_step_hash(values, 0, p->params[i].count);
        char there[20], here[20], what[LK_NAME_BYTES + 32];
        if (found == wanted[i]) continue;
        snprintf(there, sizeof there, "%016llx", (ull)wanted[i]);
        snprintf(here, sizeof here, "%016llx", (ull)found);
        snprintf(what, sizeof what, "hash of tensor %s", tensor->name);
        if (r->json) say(r, "tensor", tensor->name);
        return parted(r, run, step, what, there, here);
    }
    r->hashes_compared++;
    r->last_equal = step;
    return LK_OK;
}

static lk_status compare_result(reproduction *r, const lk_run *run, const lk_recorded_result *was) {
    char digest[LK_SHA256_HEX_BYTES], state[LK_SHA256_HEX_BYTES];
    lk_run_digest(run, digest);
    lk_run_state_hash(run, was->step, state);
    if (strcmp(digest, was->digest) != 0) {
        return parted(r, run, was->step, "digest", was->digest, digest);
    }
    if (strcmp(state, was->state_hash) != 0) {
        return parted(r, run, was->step,
                      "state hash (the parameters are equal, what the optimizer "
                      "keeps is not)",
                      was->state_hash, state);
    }
    r->results_compared++;
    r->last_equal = was->step;
    if (!r->json) {
        lk_text_line(&r->out, "step %llu  digest %s  equal", (ull)was->step, digest);
    }
    return LK_OK;
}

static lk_status do_step(reproduction *r, lk_run *run, uint64_t step, bool settle, uint64_t last,
                         lk_error *error) {
    lk_step_result result = lk_run_step(run, step);
    if (result.pending && settle) result = lk_run_settle(run);
    if (run->lost.status != LK_OK) return lk_fail(error, run->lost.status, "%s", run->lost.text);
    if (result.bad_tensor) {
        lk_fail(error, LK_NOT_FINITE, "step %llu: %s is not finite", (ull)result.step + 1,
                result.bad_tensor);
        return lk_run_blame_data(run, LK_NOT_FINITE, error);
    }
    if (!r->json) lk_text_progress(&r->out, "step %llu/%llu", (ull)step + 1, (ull)last);
    return lk_run_scrub(run, error);
}

static lk_status train_again(reproduction *r, lk_run *run, lk_error *error) {
    const lk_recorded *was = &r->recorded;
    const hash_log *log = &r->log;
    uint64_t last = was->results[was->result_count - 1].step;
    if (log->count) last = LK_MAX(last, log->steps[log->count - 1]);
    size_t next_hash = 0, next_result = 0;
    for (uint64_t done = 0; done < last;) {
        const bool hash = next_hash < log->count && log->steps[next_hash] == done + 1;
        const bool result =
            next_result < was->result_count && was->results[next_result].step == done + 1;
        LK_CHECK(do_step(r, run, done++, hash || result, last, error));
        if (!hash && !result) continue;
        LK_CHECK(lk_run_fetch(run, error));
        if (hash) {
            LK_CHECK(
                compare_hashes(r, run, done, log->values + next_hash++ * run->program.param_count));
        }
        if (result) LK_CHECK(compare_result(r, run, &was->results[next_result++]));
    }
    return lk_run_check_data(run, error);
}

// --- the command ---------------------------------------------------------------------------------

static lk_status say_start(reproduction *r, const lk_run *run, lk_error *error) {
    const lk_recorded *was = &r->recorded;
    char line[256];
    if (r->json) {
        say_number(r, "replicas", run->layout.replicas);
        say(r, "run_identity", was->identity);
        say(r, "kernels", lk_run_kernels(run));
        return LK_OK;
    }
    snprintf(line, sizeof line, "%s: %u results to step %llu, %zu lines of step hashes",
             *was->name ? was->name : "a run", was->result_count,
             (ull)was->results[was->result_count - 1].step, r->log.count);
    lk_text_line(&r->out, "%s", line);
    lk_text_line(&r->out, "run_identity %s", was->identity);
    lk_text_line(&r->out, "kernels %s, replicas %u", lk_run_kernels(run), run->layout.replicas);
    return lk_text_check(&r->out, "standard output", error);
}

static lk_status start(reproduction *r, lk_run *run, const lk_common_options *o, lk_error *error) {
    lk_config_options options = o->config;
    char source[LK_PATH_BYTES + 32];
    if (r->recorded.arithmetic_version != LK_ARITHMETIC_VERSION) {
        return lk_fail(
            error, LK_BAD_CONFIG,
            "%s: was trained in arithmetic version %u, this program computes version %d: "
            "take the version %s that trained it",
            r->recorded.source, r->recorded.arithmetic_version, LK_ARITHMETIC_VERSION,
            r->recorded.version);
    }
    lk_format(source, sizeof source, "%s: config.json", r->recorded.source);
    options.config = source;
    options.text = r->recorded.config;
    options.text_bytes = strlen(r->recorded.config);
    LK_CHECK(lk_run_configure(run, &options, (lk_run_needs){.checkpoints = false}, error));
    LK_CHECK(lk_run_plan(run, error));
    LK_CHECK(read_hashes(r, &run->program, error));
    lk_watch_data(&run->train, &run->test);
    LK_CHECK(lk_run_start(run, o->max_memory, error));
    return lk_run_seal(run, false, error);
}

static lk_status reproduce(reproduction *r, const lk_common_options *o, lk_error *error) {
    static lk_run run;
    LK_CHECK(lk_recorded_open(&r->recorded, o->config.config, error));
    lk_status status = start(r, &run, o, error);
    if (status == LK_OK) status = say_start(r, &run, error);
    if (status == LK_OK) status = compare_start(r, &run);
    if (status == LK_OK) status = train_again(r, &run, error);
    lk_text_clear(&r->out);
    if (status == LK_OK && !r->json) {
        lk_text_line(&r->out,
                     "reproduced: %zu lines of step hashes and %u digests and state hashes "
                     "compared, all equal",
                     r->hashes_compared, r->results_compared);
    }
    lk_run_close(&run);
    return status;
}

lk_status lk_command_reproduce(int argc, char **argv, lk_error *error) {
    static reproduction r;
    static lk_common_options o;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") != 0 && strcmp(argv[i], "-h") != 0) continue;
        fputs(help, stdout);
        return LK_OK;
    }
    LK_CHECK(lk_parse_common(argc, argv, LK_OPT_JSON, &o, error));
    r.json = o.json;
    r.answer = o.json ? json_object() : NULL;
    lk_text_open(&r.out, STDOUT_FILENO);
    lk_status status = reproduce(&r, &o, error);
    lk_recorded_close(&r.recorded);
    free(r.log.steps);
    free(r.log.values);
    if (r.json && (status == LK_OK || status == LK_DIFFERS)) {
        json_object_set_new(r.answer, "reproduced", json_boolean(status == LK_OK));
        say_number(&r, "hashes_compared", r.hashes_compared);
        say_number(&r, "results_compared", r.results_compared);
        LK_CHECK(lk_print_json(r.answer, error));
    }
    return status;
}
