// verify.c - lockstep verify: trains the published runs on this machine and compares the bits.
//
// The runs and their digests are files (configs/published/); nothing of them is known here. Every
// kernel variant that this processor has is tried: the fastest to the end of each run, the others
// as far as the file says, since the reference is some hundred times slower. No file is written.
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "apps/cli/tools.h"
#include "ops/variant.h"

typedef unsigned long long ull;

static const char help[] =
    "lockstep verify [--kernels NAME] [--replicas N] [--digests FILE] [--json]\n"
    "\n"
    "Trains the published runs and compares every digest and state hash with the published\n"
    "one: exit 0 where all are equal, 1 where one differs. A run whose data is not on this\n"
    "machine is left out, and said so.\n"
    "\n"
    "  --kernels NAME   only these, and to the end (default: all that this processor runs)\n"
    "  --replicas N     threads (default: one for each processor)\n"
    "  --digests FILE   other published digests than those beside the configurations\n";

enum { DIGESTS_MAX = 16, NAME_COLUMNS = 16 };

// One run of the file: what is promised of it.
typedef struct promise {
    const char *name;
    char config[LK_PATH_BYTES];
    const char *identity;
    uint64_t other_kernels_until;  // step
    uint32_t count;
    struct {
        uint64_t step;  // ascending
        const char *digest, *state_hash;
    } at[DIGESTS_MAX];
} promise;

typedef struct verifier {
    const char *kernels;   // the only ones, or NULL
    uint64_t replicas;     // 0: not said
    char directory[LK_PATH_BYTES];  // of the digests, ending in '/'
    cpu_set_t processors;  // of this process, if `bound`
    bool bound;
    uint32_t runs, not_run, compared, differ;
    json_t *rows;  // --json: of the table; else NULL
} verifier;

// --- the file -----------------------------------------------------------------------------------

static lk_status read_hex(const lk_json_cursor *object, const char *key, const char **out,
                          lk_error *error) {
    lk_json_cursor at;
    if (!lk_json_find(object, key, &at)) {
        return lk_json_refuse(object, error, "wanted the key \"%s\"", key);
    }
    LK_CHECK(lk_json_as_string(&at, out, error));
    if (strlen(*out) == 64 && strspn(*out, "0123456789abcdef") == 64) return LK_OK;
    return lk_json_refuse(&at, error, "wanted 64 hexadecimal digits");
}

static lk_status read_digests(const lk_json_cursor *run, promise *p, lk_error *error) {
    static const char *const keys[] = {"step", "digest", "state_hash"};
    lk_json_cursor digests, one;
    uint64_t least = 1;
    LK_CHECK(lk_json_get_array(run, "digests", LK_JSON_REQUIRED, 1, DIGESTS_MAX, &digests, error));
    p->count = (uint32_t)lk_json_length(&digests);
    for (uint32_t i = 0; i < p->count; i++) {
        LK_CHECK(lk_json_element(&digests, i, &one, error));
        LK_CHECK(lk_json_keys_only(&one, keys, LK_COUNT(keys), error));
        LK_CHECK(lk_json_get_u64(&one, "step", LK_JSON_REQUIRED, least, UINT32_MAX, &p->at[i].step,
                                 error));
        LK_CHECK(read_hex(&one, "digest", &p->at[i].digest, error));
        LK_CHECK(read_hex(&one, "state_hash", &p->at[i].state_hash, error));
        least = p->at[i].step + 1;
    }
    return LK_OK;
}

static lk_status read_promise(const verifier *v, const lk_json_cursor *run, promise *p,
                              lk_error *error) {
    static const char *const keys[] = {"name", "config", "run_identity", "other_kernels_until",
                                       "digests"};
    lk_json_cursor name;
    char config[LK_PATH_BYTES];
    *p = (promise){.other_kernels_until = 0};
    LK_CHECK(lk_json_keys_only(run, keys, LK_COUNT(keys), error));
    if (!lk_json_find(run, "name", &name)) {
        return lk_json_refuse(run, error, "wanted the key \"name\"");
    }
    LK_CHECK(lk_json_as_string(&name, &p->name, error));
    LK_CHECK(lk_json_get_string(run, "config", LK_JSON_REQUIRED, config, sizeof config, error));
    LK_CHECK(lk_path_join(p->config, v->directory, "", config, error));
    LK_CHECK(read_hex(run, "run_identity", &p->identity, error));
    LK_CHECK(lk_json_get_u64(run, "other_kernels_until", LK_JSON_OPTIONAL, 0, UINT32_MAX,
                             &p->other_kernels_until, error));
    return read_digests(run, p, error);
}

// --- one run ------------------------------------------------------------------------------------

// One line of the table; where a value is not the published one, both in full.
static void print_row(verifier *v, const promise *p, const lk_run *run, uint64_t step,
                      uint32_t count, const char *const names[], const char *const found[],
                      const char *const published[]) {
    uint32_t differ = 0;
    for (uint32_t i = 0; i < count; i++) differ += strcmp(found[i], published[i]) != 0;
    v->compared += count;
    v->differ += differ;
    if (v->rows) {
        json_t *values = json_object();
        for (uint32_t i = 0; i < count; i++) {
            json_object_set_new(
                values, names[i],
                json_pack("{s:s, s:s}", "found", found[i], "published", published[i]));
        }
        json_array_append_new(
            v->rows, json_pack("{s:s, s:s, s:I, s:I, s:b, s:o}", "run", p->name, "kernels",
                               lk_run_kernels(run), "replicas", (json_int_t)run->layout.replicas,
                               "step", (json_int_t)step, "equal", differ == 0, "values", values));
        return;
    }
    printf("%-*.*s %-10s %8u %6llu  ", NAME_COLUMNS, NAME_COLUMNS, p->name, lk_run_kernels(run),
           run->layout.replicas, (ull)step);
    for (uint32_t i = 0; i < count; i++) printf("%s %.12s  ", names[i], found[i]);
    printf("%s\n", differ ? "NO" : "yes");
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(found[i], published[i]) == 0) continue;
        printf("  %s published: %s\n  %s found:     %s\n", names[i], published[i], names[i],
               found[i]);
    }
    fflush(stdout);
}

// Trains until step `until` and compares on the way. LK_OK also where a digest differs.
static lk_status compare_run(verifier *v, const promise *p, lk_run *run, uint64_t until,
                             lk_error *error) {
    char digest[LK_SHA256_HEX_BYTES], state[LK_SHA256_HEX_BYTES];
    LK_CHECK(lk_run_plan(run, error));
    lk_watch_data(&run->train, &run->test);
    LK_CHECK(lk_run_start(run, 0, error));
    LK_CHECK(lk_run_seal(run, false, error));
    if (strcmp(run->identity_hex, p->identity) != 0) {
        print_row(v, p, run, 0, 1, (const char *[]){"run identity"},
                  (const char *[]){run->identity_hex}, &p->identity);
        return LK_OK;  // another run: its digests would say nothing
    }
    uint64_t done = 0;
    for (uint32_t i = 0; i < p->count && p->at[i].step <= until; i++) {
        for (; done < p->at[i].step; done++) {
            lk_step_result r = lk_run_step(run, done);
            if (r.pending && done + 1 == p->at[i].step) r = lk_run_settle(run);
            if (run->lost.status != LK_OK) {
                return lk_fail(error, run->lost.status, "%s: %s", p->name, run->lost.text);
            }
            if (!r.bad_tensor) continue;
            return lk_fail(error, LK_NOT_FINITE, "%s: step %llu: %s is not finite", p->name,
                           (ull)r.step + 1, r.bad_tensor);
        }
        LK_CHECK(lk_run_fetch(run, error));
        lk_run_digest(run, digest);
        lk_run_state_hash(run, done, state);
        print_row(v, p, run, done, 2, (const char *[]){"digest", "state"},
                  (const char *[]){digest, state},
                  (const char *[]){p->at[i].digest, p->at[i].state_hash});
    }
    return LK_OK;
}

static lk_status verify_kernels(verifier *v, const promise *p, const char *kernels, uint64_t until,
                                lk_error *error) {
    static lk_run run;
    const lk_config_options options = {
        .config = p->config, .kernels = kernels, .replicas = (uint32_t)v->replicas};
    const lk_run_needs needs = {.checkpoints = false};
    lk_status status = lk_run_configure(&run, &options, needs, error);
    if (status == LK_OK) status = compare_run(v, p, &run, until, error);
    lk_run_close(&run);
    // The replicas were bound to a processor each, this thread among them; the next run counts
    // anew.
    if (v->bound) (void)sched_setaffinity(0, sizeof v->processors, &v->processors);
    return status;
}

// Every variant that this processor has, fastest first.
static lk_status verify_all_kernels(verifier *v, const promise *p, lk_error *error) {
    const uint64_t last = p->at[p->count - 1].step;
    const lk_kernels *variant;
    bool fastest = true;
    if (v->kernels) return verify_kernels(v, p, v->kernels, last, error);
    for (unsigned i = 0;; i++) {
        const char *missing = lk_kernels_missing(i, &variant);
        if (!variant) break;
        uint64_t until = fastest ? last : p->other_kernels_until;
        if (missing || until == 0) continue;
        LK_CHECK(verify_kernels(v, p, variant->name, until, error));
        fastest = false;
    }
    const lk_cuda_calls *cuda = lk_cuda_linked();
    lk_cuda_device gpu;
    lk_error none = {.status = LK_OK};
    if (!cuda || cuda->open(&gpu, 0, &none) != LK_OK) return LK_OK;
    return verify_kernels(v, p, "cuda", last, error);
}

// --- all of them --------------------------------------------------------------------------------

static lk_status verify_run(verifier *v, const lk_json_cursor *at, lk_error *error) {
    promise p;
    lk_error why = {.status = LK_OK};
    LK_CHECK(read_promise(v, at, &p, error));
    lk_status status = verify_all_kernels(v, &p, &why);
    v->runs++;
    if (status == LK_OK) return LK_OK;
    if (status != LK_NO_INPUT) return lk_fail(error, status, "%s", why.text);
    v->not_run++;
    if (v->rows) {
        json_array_append_new(
            v->rows, json_pack("{s:s, s:o}", "run", p.name, "not_run", lk_json_text(why.text)));
        return LK_OK;
    }
    printf("%-*.*s not run: %s\n", NAME_COLUMNS, NAME_COLUMNS, p.name, why.text);
    return LK_OK;
}

static lk_status verify(verifier *v, const lk_json *document, lk_error *error) {
    static const char *const keys[] = {"about", "arithmetic_version", "runs"};
    lk_json_cursor root = lk_json_root(document), runs, run;
    uint32_t version;
    LK_CHECK(lk_json_keys_only(&root, keys, LK_COUNT(keys), error));
    LK_CHECK(lk_json_get_u32(&root, "arithmetic_version", LK_JSON_REQUIRED, 1, UINT32_MAX, &version,
                             error));
    if (version != LK_ARITHMETIC_VERSION) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "%s: it has digests of arithmetic version %u, this program computes version "
                       "%d: take the file that came with the program",
                       document->source, version, LK_ARITHMETIC_VERSION);
    }
    LK_CHECK(lk_json_get_array(&root, "runs", LK_JSON_REQUIRED, 1, 1000, &runs, error));
    if (!v->rows) {
        printf("%-*s %-10s %8s %6s  %-19s  %-18s  %s\n", NAME_COLUMNS, "run", "kernels", "replicas",
               "step", "digest", "state hash", "equal");
    }
    for (size_t i = 0; i < lk_json_length(&runs); i++) {
        LK_CHECK(lk_json_element(&runs, i, &run, error));
        LK_CHECK(verify_run(v, &run, error));
    }
    return LK_OK;
}

static lk_status verdict(const verifier *v, lk_error *error) {
    if (v->rows) {
        LK_CHECK(
            lk_print_json(json_pack("{s:s, s:i, s:i, s:i, s:i, s:O}", "version", LK_VERSION, "runs",
                                    (int)v->runs, "not_run", (int)v->not_run, "compared",
                                    (int)v->compared, "differ", (int)v->differ, "rows", v->rows),
                          error));
        if (v->differ) return LK_DIFFERS;
        if (v->compared) return LK_OK;
    }
    if (v->differ) {
        printf("DIFFERS: %u of %u values are not the published ones: this machine, or this build, "
               "does not keep the bits; please report the lines above\n",
               v->differ, v->compared);
        return LK_DIFFERS;
    }
    if (v->compared == 0) {
        return lk_fail(error, LK_NO_INPUT, "verify: nothing was compared; the lines \"not run\" "
                       "say why");
    }
    printf("verified: %u of %u runs, %u values compared, 0 differ: this machine computes the "
           "published bits\n",
           v->runs - v->not_run, v->runs, v->compared);
    return LK_OK;
}

static lk_status find_digests(const char *given, char path[LK_PATH_BYTES], lk_error *error) {
    if (given) return lk_path_join(path, given, "", "", error);
    if (!lk_config_find_ready("mnist-cnn", path, LK_PATH_BYTES)) {
        return lk_fail(error, LK_NO_INPUT,
                       "%s: the ready configurations, and with them the published digests, are not "
                       "beside this program: install it whole, or say --digests FILE",
                       path);
    }
    char directory[LK_PATH_BYTES];
    *strrchr(path, '/') = '\0';
    LK_CHECK(lk_path_join(directory, path, "", "", error));
    return lk_path_join(path, directory, "/published/", "digests.json", error);
}

lk_status lk_command_verify(int argc, char **argv, lk_error *error) {
    static verifier v;
    const char *given = NULL;
    char path[LK_PATH_BYTES];
    lk_json document = {.root = NULL};
    const lk_argument options[] = {
        {.name = "kernels", .text = &v.kernels},
        {.name = "replicas", .number = &v.replicas, .min = 1, .max = 1 << 20},
        {.name = "digests", .text = &given},
    };
    bool json = false;
    lk_arguments a = {
        .help = help, .options = options, .option_count = LK_COUNT(options), .json = &json};
    LK_CHECK(lk_parse_arguments(argc, argv, &a, error));
    if (a.helped) return LK_OK;
    v.rows = json ? json_array() : NULL;
    v.bound = sched_getaffinity(0, sizeof v.processors, &v.processors) == 0;
    LK_CHECK(find_digests(given, path, error));
    LK_CHECK(lk_path_join(v.directory, path, "", "", error));
    char *slash = strrchr(v.directory, '/');
    if (slash) slash[1] = '\0';
    else memcpy(v.directory, "./", 3);
    lk_status status = lk_json_load_file(&document, path, error);
    if (status == LK_OK) status = verify(&v, &document, error);
    if (status == LK_OK) status = verdict(&v, error);
    json_decref(v.rows);
    lk_json_close(&document);
    return status;
}
