// checkpoint_test.c - saving and finding checkpoints while every operation goes wrong in turn.
#define _GNU_SOURCE
#include "io/checkpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// cmocka needs the four above it.
#include <cmocka.h>

#include <errno.h>
#include <unistd.h>

#include "arena/sha256.h"
#include "memory_files.h"

// --- no heap -------------------------------------------------------------------------------------

static unsigned allocations;
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);

void *__wrap_malloc(size_t bytes) { return allocations++, __real_malloc(bytes); }
void *__wrap_calloc(size_t count, size_t bytes) {
    return allocations++, __real_calloc(count, bytes);
}
void *__wrap_realloc(void *old, size_t bytes) {
    return allocations++, __real_realloc(old, bytes);
}

// --- a small model -------------------------------------------------------------------------------

static float weights[3][5], bias[7], scalar[1];
static uint64_t counters[2];

static const lk_safetensors_tensor tensors[] = {
    {"dense/kernel", LK_SAFETENSORS_F32, 2, {3, 5}, weights},
    {"dense/bias", LK_SAFETENSORS_F32, 1, {7}, bias},
    {"adam \"t\"", LK_SAFETENSORS_U64, 1, {2}, counters},
    {"scale", LK_SAFETENSORS_F32, 0, {0}, scalar},
    {"empty", LK_SAFETENSORS_F32, 2, {0, 4}, NULL},
};

static void set_state(uint64_t step) {
    for (unsigned i = 0; i < 15; i++) weights[i / 5][i % 5] = (float)(step * 100 + i);
    for (unsigned i = 0; i < 7; i++) bias[i] = -(float)(step + i);
    counters[0] = step;
    counters[1] = ~step;
    scalar[0] = 0.5f * (float)step;
}

static void assert_state(uint64_t step) {
    float w[3][5], b[7], s = scalar[0];
    uint64_t c = counters[1];
    memcpy(w, weights, sizeof w);
    memcpy(b, bias, sizeof b);
    set_state(step);
    assert_memory_equal(w, weights, sizeof w);
    assert_memory_equal(b, bias, sizeof b);
    assert_true(s == scalar[0] && c == counters[1]);
}

static const lk_safetensors_pair metadata[] = {
    {"run_identity", "2f0a"}, {"epoch", "3"}, {"note", "a \"b\" \\ \n \xc3\xa9"}};

static _Alignas(8) char buffer[80 * 1024];

static lk_checkpoint_job make_job(uint64_t step, unsigned keep_max) {
    lk_checkpoint_job job = {
        .directory = "c",
        .step = step,
        .metadata = metadata,
        .metadata_count = LK_COUNT(metadata),
        .tensors = tensors,
        .tensor_count = LK_COUNT(tensors),
        .keep_max = keep_max,
        .buffer = buffer,
    };
    lk_error error = {0};
    uint64_t file_bytes;
    assert_int_equal(lk_checkpoint_measure(&job, &job.buffer_bytes, &file_bytes, &error), LK_OK);
    assert_true(job.buffer_bytes <= sizeof buffer && file_bytes <= MEMORY_FILE_BYTES);
    return job;
}

static memory_files fs, prepared;
static lk_file_ops ops;
static lk_safetensors_entry entries[16];

static lk_status save(uint64_t step, unsigned keep_max, lk_error *error, bool *durable) {
    set_state(step);
    lk_checkpoint_job job = make_job(step, keep_max);
    unsigned before = allocations;
    lk_status status = lk_checkpoint_save(&ops, &job, error);
    assert_int_equal(allocations, before);
    if (durable) *durable = job.durable;
    assert_true(status != LK_OK || job.durable);
    return status;
}

static void save_well(uint64_t step, unsigned keep_max) {
    lk_error error = {0};
    if (save(step, keep_max, &error, NULL) != LK_OK) fail_msg("%s", error.text);
}

static unsigned reports;
static void count_report(void *context, const char *path, const lk_error *why) {
    (void)context;
    assert_non_null(strstr(why->text, path));
    reports++;
}

// Finds the newest, loads it and checks every value. Returns its step, or 0 where there is none.
static uint64_t newest_whole(void) {
    lk_checkpoint_found found;
    lk_error error = {0};
    lk_safetensors reader;
    uint64_t step;
    reports = 0;
    lk_status status = lk_checkpoint_find_newest(&ops, "c", entries, LK_COUNT(entries),
                                                 count_report, NULL, &found, &error);
    if (status == LK_NO_INPUT) return 0;
    if (status != LK_OK) fail_msg("%s", error.text);
    assert_int_equal(lk_checkpoint_open(&reader, &ops, found.path, entries, LK_COUNT(entries),
                                        &step, &error), LK_OK);
    assert_int_equal(step, found.step);
    memset(weights, 0xff, sizeof weights);
    memset(bias, 0xff, sizeof bias);
    counters[1] = 0;
    assert_int_equal(lk_checkpoint_load(&reader, tensors, LK_COUNT(tensors), &step, &error), LK_OK);
    assert_string_equal(lk_safetensors_metadata(&reader, "note"), metadata[2].value);
    lk_safetensors_close(&reader);
    assert_state(step);
    return step;
}

static unsigned count_names(const char *end) {
    unsigned count = 0;
    for (int i = 0; i < MEMORY_NAMES; i++) {
        const char *path = fs.names[i].path;
        size_t bytes = strlen(path), tail = strlen(end);
        if (fs.names[i].file < 0 || bytes < tail) continue;
        count += strcmp(path + bytes - tail, end) == 0;
    }
    return count;
}

// --- every operation goes wrong in turn ----------------------------------------------------------

// What a run does when it comes back: it cleans up, repeats the step, and goes on.
static void go_on(unsigned keep_max) {
    lk_error error = {0};
    assert_int_equal(lk_checkpoint_clean(&ops, "c", &error), LK_OK);
    assert_int_equal(count_names(".tmp"), 0);
    save_well(30, keep_max);
    assert_int_equal(newest_whole(), 30);
    if (keep_max) assert_true(count_names(".safetensors") <= keep_max);
}

static unsigned points;  // faults that happened

// One fault at one operation of a save of step 30, after `old` (0 = none); then a crash or none.
// Returns false where the save has fewer operations than that.
static bool try_point(fault kind, unsigned at, uint64_t old, unsigned keep_max, bool crash,
                      unsigned names, unsigned contents) {
    lk_error error = {0};
    bool durable;
    fs = prepared;
    memory_files_arm(&fs, kind, at);
    lk_status status = save(30, keep_max, &error, &durable);
    bool reached = fs.operations >= at, happened = fs.happened;
    points += happened;
    bool silent = kind == FAULT_CORRUPT_READ || kind == FAULT_CORRUPT_WRITE;
    if (kind == FAULT_SHORT || kind == FAULT_INTERRUPT) assert_int_equal(status, LK_OK);
    if (silent && happened) assert_int_equal(status, LK_BAD_DATA);
    if (status != LK_OK) assert_true(error.text[0] != '\0' && happened);
    if (kind != FAULT_CRASH) memory_files_arm(&fs, FAULT_NONE, 0);
    // A save that failed gives its space back at once, not only when the run comes back.
    if (kind != FAULT_CRASH && status != LK_OK) assert_int_equal(count_names(".tmp"), 0);
    if (crash) memory_files_crash(&fs, names, contents);

    uint64_t step = newest_whole();
    assert_true(step == 30 || (step == old && !durable));
    assert_int_equal(reports, 0);  // no reader ever sees a damaged file under a checkpoint's name
    go_on(keep_max);
    return reached;
}

static void try_all(uint64_t old, unsigned keep_max) {
    for (unsigned kind = FAULT_CRASH; kind < FAULT_COUNT; kind++) {
        unsigned variants = CRASH_NAME_VARIANTS * CRASH_CONTENT_VARIANTS;
        for (unsigned variant = 0; variant < variants; variant++) {
            unsigned names = variant / CRASH_CONTENT_VARIANTS;
            unsigned contents = variant % CRASH_CONTENT_VARIANTS;
            unsigned at = 1;
            // The last one finds no operation left: a crash after the end of the save.
            while (try_point(kind, at, old, keep_max, true, names, contents)) at++;
        }
        unsigned at = 1;
        while (kind != FAULT_CRASH && try_point(kind, at, old, keep_max, false, 0, 0)) at++;
    }
}

static void test_every_operation_fails_in_turn(void **state) {
    (void)state;
    points = 0;
    ops = memory_files_ops(&fs);
    memory_files_start(&fs);
    prepared = fs;
    try_all(0, 0);  // the first checkpoint of a run
    save_well(20, 1);
    prepared = fs;
    try_all(20, 1);  // the new one replaces the only one
    memory_files_start(&fs);
    save_well(10, 2);
    save_well(20, 2);
    prepared = fs;
    try_all(20, 2);
    print_message("%u crash and fault points tried\n", points);
    assert_true(points > 1000);
}

// --- damage, retention, mismatches ---------------------------------------------------------------

static void test_any_flipped_bit_is_found(void **state) {
    (void)state;
    ops = memory_files_ops(&fs);
    memory_files_start(&fs);
    save_well(10, 0);
    save_well(20, 0);
    memory_file *file = memory_files_find(&fs, "c/step-0000000020.safetensors");
    assert_non_null(file);
    for (size_t bit = 0; bit < file->bytes * 8; bit++) {
        file->data[bit / 8] ^= (char)(1 << bit % 8);
        assert_int_equal(newest_whole(), 10);
        assert_int_equal(reports, 1);
        file->data[bit / 8] ^= (char)(1 << bit % 8);
    }
    for (; file->bytes > 0; file->bytes--) {
        if (file->bytes < file->durable_bytes) assert_int_equal(newest_whole(), 10);
    }
    assert_int_equal(newest_whole(), 10);
}

static void damage(const char *path) {
    memory_file *file = memory_files_find(&fs, path);
    file->data[file->bytes - 1] ^= 1;
}

static unsigned closes, failing_close;

// Where a disk is full, or over a network, it may be close that says so.
static int close_that_fails(void *context, int file) {
    int closed = memory_files_ops(context).close(context, file);
    return ++closes == failing_close ? -EIO : closed;
}

static void test_a_failed_close_is_a_failed_save(void **state) {
    (void)state;
    ops = memory_files_ops(&fs);
    ops.close = close_that_fails;
    for (failing_close = 1; failing_close <= 2; failing_close++) {  // after writing; after reading
        lk_error error = {0};
        closes = 0;
        memory_files_start(&fs);
        assert_int_equal(save(10, 0, &error, NULL), LK_IO_ERROR);
        assert_non_null(strstr(error.text, "cannot close"));
        assert_int_equal(newest_whole(), 0);
        assert_int_equal(count_names(".tmp"), 0);
    }
}

// Of another version, and whole: the digits of the hash are counted as zeros in it.
static void test_another_version_is_refused(void **state) {
    (void)state;
    static const char version[] = "\"" LK_CHECKPOINT_KEY_VERSION "\":\"";
    static const char name[] = "\"" LK_CHECKPOINT_KEY_SHA256 "\":\"";
    char hex[LK_SHA256_HEX_BYTES];
    uint8_t digest[LK_SHA256_BYTES];
    lk_sha256 hash;
    lk_error error = {0};
    lk_safetensors reader;
    uint64_t step;
    ops = memory_files_ops(&fs);
    memory_files_start(&fs);
    save_well(10, 0);
    memory_file *file = memory_files_find(&fs, "c/step-0000000010.safetensors");
    char *digit = strstr(file->data + 8, version), *at = strstr(file->data + 8, name);
    assert_true(digit && at);
    digit[sizeof version - 1] = '9';
    at += sizeof name - 1;
    memset(at, '0', LK_SHA256_HEX_BYTES - 1);
    lk_sha256_start(&hash);
    lk_sha256_add(&hash, file->data, file->bytes);
    lk_sha256_finish(&hash, digest);
    lk_hex(digest, sizeof digest, hex);
    memcpy(at, hex, LK_SHA256_HEX_BYTES - 1);
    assert_int_equal(lk_checkpoint_open(&reader, &ops, "c/step-0000000010.safetensors", entries,
                                        LK_COUNT(entries), &step, &error), LK_UNAVAILABLE);
    assert_non_null(strstr(error.text, "checkpoint version 9, written by"));
    // No older one takes its place, and nobody calls it damaged.
    lk_checkpoint_found found;
    reports = 0;
    error = (lk_error){0};
    assert_int_equal(lk_checkpoint_find_newest(&ops, "c", entries, LK_COUNT(entries), count_report,
                                               NULL, &found, &error), LK_UNAVAILABLE);
    assert_int_equal(reports, 0);
}

static void test_all_damaged_is_an_error(void **state) {
    (void)state;
    lk_checkpoint_found found;
    lk_error error = {0};
    ops = memory_files_ops(&fs);
    memory_files_start(&fs);
    assert_int_equal(newest_whole(), 0);
    save_well(10, 0);
    save_well(20, 0);
    memory_files_find(&fs, "c/step-0000000010.safetensors")->bytes -= 1;
    damage("c/step-0000000020.safetensors");
    reports = 0;
    assert_int_equal(lk_checkpoint_find_newest(&ops, "c", entries, LK_COUNT(entries), count_report,
                                               NULL, &found, &error), LK_BAD_DATA);
    assert_int_equal(reports, 2);
}

static void test_retention_prefers_whole_ones(void **state) {
    (void)state;
    ops = memory_files_ops(&fs);
    memory_files_start(&fs);
    for (uint64_t step = 10; step <= 40; step += 10) save_well(step, 0);
    assert_int_equal(count_names(".safetensors"), 4);
    // 30 and 40 turn out damaged, the run resumes from 20 and saves 25: they go before 20 does.
    damage("c/step-0000000030.safetensors");
    damage("c/step-0000000040.safetensors");
    assert_int_equal(newest_whole(), 20);
    save_well(25, 2);
    assert_int_equal(count_names(".safetensors"), 2);
    assert_non_null(memory_files_find(&fs, "c/step-0000000020.safetensors"));
    assert_non_null(memory_files_find(&fs, "c/step-0000000025.safetensors"));
    assert_int_equal(newest_whole(), 25);
}

static void test_a_renamed_checkpoint_is_found_out(void **state) {
    (void)state;
    ops = memory_files_ops(&fs);
    memory_files_start(&fs);
    save_well(10, 0);
    ops.rename(&fs, "c/step-0000000010.safetensors", "c/step-0000000099.safetensors");
    lk_checkpoint_found found;
    lk_error error = {0};
    assert_int_equal(lk_checkpoint_find_newest(&ops, "c", entries, LK_COUNT(entries), NULL, NULL,
                                               &found, &error), LK_BAD_DATA);
}

static void assert_load_fails(const lk_safetensors_tensor *wanted, size_t count, const char *what) {
    lk_safetensors reader;
    lk_error error = {0};
    uint64_t step;
    assert_int_equal(lk_checkpoint_open(&reader, &ops, "c/step-0000000010.safetensors", entries,
                                        LK_COUNT(entries), &step, &error), LK_OK);
    assert_int_equal(lk_checkpoint_load(&reader, wanted, count, &step, &error), LK_BAD_DATA);
    lk_safetensors_close(&reader);
    if (!strstr(error.text, what)) fail_msg("\"%s\" is not in: %s", what, error.text);
}

static void test_load_wants_the_same_tensors(void **state) {
    (void)state;
    lk_safetensors_tensor wanted[LK_COUNT(tensors)];
    ops = memory_files_ops(&fs);
    memory_files_start(&fs);
    save_well(10, 0);
    assert_load_fails(tensors, LK_COUNT(tensors) - 1, "\"empty\"");
    memcpy(wanted, tensors, sizeof wanted);
    wanted[1].name = "dense/other";
    assert_load_fails(wanted, LK_COUNT(wanted), "dense/other");
    memcpy(wanted, tensors, sizeof wanted);
    wanted[0].dims[0] = 5;
    wanted[0].dims[1] = 3;
    assert_load_fails(wanted, LK_COUNT(wanted), "F32 [3, 5], this model needs F32 [5, 3]");
    memcpy(wanted, tensors, sizeof wanted);
    wanted[1].dtype = LK_SAFETENSORS_I32;
    assert_load_fails(wanted, LK_COUNT(wanted), "needs I32 [7]");
}

static void test_on_a_real_file_system(void **state) {
    (void)state;
    char root[] = "/tmp/lk_checkpoint_XXXXXX", path[LK_PATH_BYTES];
    lk_checkpoint_found found;
    lk_error error = {0};
    assert_non_null(mkdtemp(root));
    set_state(12);
    lk_checkpoint_job job = make_job(12, 1);
    job.directory = root;
    for (job.step = 10; job.step <= 12; job.step++) {
        unsigned before = allocations;
        assert_int_equal(lk_checkpoint_save(&lk_file_ops_posix, &job, &error), LK_OK);
        assert_int_equal(allocations, before);
    }
    assert_int_equal(lk_path_join(path, root, "/step-0000000013.safetensors", ".tmp", &error),
                     LK_OK);
    FILE *leftover = fopen(path, "wb");
    assert_true(leftover && fclose(leftover) == 0);
    assert_int_equal(lk_checkpoint_clean(&lk_file_ops_posix, root, &error), LK_OK);
    assert_int_equal(lk_checkpoint_find_newest(&lk_file_ops_posix, root, entries, LK_COUNT(entries),
                                               NULL, NULL, &found, &error), LK_OK);
    assert_int_equal(found.step, 12);
    assert_int_equal(unlink(found.path), 0);
    assert_int_equal(rmdir(root), 0);  // nothing else was left
}

static void test_names(void **state) {
    (void)state;
    static const char *const bad[] = {
        "step-1.safetensors", "step-00000000010.safetensors", "step-0000000010.safetensors.tmp",
        "step-.safetensors", "step-99999999999999999999.safetensors", "step-000000001x.safetensors",
        "", "step-0000000010"};
    uint64_t step = 7;
    for (size_t i = 0; i < LK_COUNT(bad); i++) assert_false(lk_checkpoint_step_of(bad[i], &step));
    assert_int_equal(step, 7);
    assert_true(lk_checkpoint_step_of("step-0000000010.safetensors", &step));
    assert_int_equal(step, 10);
    assert_true(lk_checkpoint_step_of("step-18446744073709551615.safetensors", &step));
    assert_true(step == UINT64_MAX);
}

static void test_own_keys_are_refused(void **state) {
    (void)state;
    lk_safetensors_pair pair = {"step", "4"};
    lk_checkpoint_job job = make_job(1, 0);
    lk_error error = {0};
    size_t bytes;
    uint64_t file_bytes;
    job.metadata = &pair;
    job.metadata_count = 1;
    assert_int_equal(lk_checkpoint_measure(&job, &bytes, &file_bytes, &error), LK_INTERNAL);
}

// --- what training records of the values ---------------------------------------------------------

static float kernel[6], slot[6];
static const lk_safetensors_tensor trained[] = {
    {"dense/kernel", LK_SAFETENSORS_F32, 2, {2, 3}, kernel},
    {"dense/kernel/momentum", LK_SAFETENSORS_F32, 2, {2, 3}, slot},
};
static char digest_hex[LK_SHA256_HEX_BYTES], state_hex[LK_SHA256_HEX_BYTES];

static void hex_of(lk_sha256 *hash, char hex[LK_SHA256_HEX_BYTES]) {
    uint8_t bytes[LK_SHA256_BYTES];
    lk_sha256_finish(hash, bytes);
    lk_hex(bytes, sizeof bytes, hex);
}

// Saves `trained` as the checkpoint of step 10, with the two hashes of what it holds now.
static void record(void) {
    lk_sha256 hash;
    lk_sha256_start(&hash);
    lk_sha256_add(&hash, kernel, sizeof kernel);
    hex_of(&hash, digest_hex);
    lk_sha256_start(&hash);
    lk_sha256_add(&hash, kernel, sizeof kernel);
    lk_sha256_add(&hash, slot, sizeof slot);
    lk_sha256_add_u64(&hash, 10);
    hex_of(&hash, state_hex);
}

static void save_trained(void) {
    const lk_safetensors_pair pairs[] = {{"digest", digest_hex}, {"state_hash", state_hex}};
    lk_error error = {0};
    uint64_t file_bytes;
    lk_checkpoint_job job = {.directory = "c",
                             .step = 10,
                             .metadata = pairs,
                             .metadata_count = 2,
                             .tensors = trained,
                             .tensor_count = 2,
                             .buffer = buffer};
    ops = memory_files_ops(&fs);
    memory_files_start(&fs);
    assert_int_equal(lk_checkpoint_measure(&job, &job.buffer_bytes, &file_bytes, &error), LK_OK);
    assert_int_equal(lk_checkpoint_save(&ops, &job, &error), LK_OK);
}

static const char trained_path[] = "c/step-0000000010.safetensors";

// Neither who verifies nor who loads believes it; `what` is in the line. NULL: both do.
static void assert_trained(const char *what) {
    const lk_status wanted = what ? LK_BAD_DATA : LK_OK;
    lk_safetensors reader;
    for (int load = 0; load < 2; load++) {
        lk_error error = {0};
        uint64_t step = 0;
        if (load) {
            assert_int_equal(
                lk_checkpoint_peek(&reader, &ops, trained_path, entries, LK_COUNT(entries), &error),
                LK_OK);
            assert_int_equal(lk_checkpoint_load(&reader, trained, 2, &step, &error), wanted);
            lk_safetensors_close(&reader);
        } else {
            lk_status status = lk_checkpoint_open(&reader, &ops, trained_path, entries,
                                                  LK_COUNT(entries), &step, &error);
            assert_int_equal(status, wanted);
            if (status == LK_OK) lk_safetensors_close(&reader);
        }
        if (what && !strstr(error.text, what)) fail_msg("\"%s\" is not in: %s", what, error.text);
        if (!what) assert_int_equal(step, 10);
    }
}

// The content's hash is right in all of these: it is what whoever changes a value can make anew.
static void test_recorded_hashes_are_compared(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++) kernel[i] = (float)i, slot[i] = -(float)i;
    record();
    save_trained();
    assert_trained(NULL);
    kernel[4] += 1.0f;
    save_trained();
    assert_trained("the digest of its parameters is");
    kernel[4] -= 1.0f;
    slot[5] += 1.0f;
    save_trained();
    assert_trained("its state hash is");
    record();
    save_trained();
    assert_trained(NULL);
}

// States come last in the file, and after the step in the state hash; in the digest are those
// alone whose names have one slash.
static void test_states_are_hashed_after_the_step(void **state) {
    static float mean[3] = {1.0f, -2.0f, 4.0f};
    static uint32_t skipped[2] = {0x7fc00000, 5};  // as a float it would not be finite
    const lk_safetensors_tensor all[] = {
        trained[0],
        trained[1],
        {"norm/moving_mean", LK_SAFETENSORS_F32, 1, {3}, mean},
        {"run/steps/skipped", LK_SAFETENSORS_U32, 1, {2}, skipped}};
    lk_safetensors_pair pairs[] = {
        {"digest", digest_hex}, {"state_hash", state_hex}, {"state_tensors", "2"}};
    (void)state;
    record();
    for (int wrong = 0; wrong < 4; wrong++) {
        lk_sha256 hash;
        lk_error error = {0};
        lk_safetensors reader;
        uint64_t file_bytes, step;
        lk_sha256_start(&hash);
        lk_sha256_add(&hash, kernel, sizeof kernel);
        lk_sha256_add(&hash, mean, sizeof mean);
        hex_of(&hash, digest_hex);
        lk_sha256_start(&hash);
        lk_sha256_add(&hash, kernel, sizeof kernel);
        lk_sha256_add(&hash, slot, sizeof slot);
        lk_sha256_add_u64(&hash, 10);
        lk_sha256_add(&hash, mean, sizeof mean);
        lk_sha256_add(&hash, skipped, sizeof skipped);
        hex_of(&hash, state_hex);
        pairs[2].value = wrong == 1 ? "1" : wrong == 2 ? "many" : "2";
        skipped[1] += wrong == 3;
        lk_checkpoint_job job = {.directory = "c", .step = 10, .metadata = pairs,
                                 .metadata_count = 3, .tensors = all, .tensor_count = 4,
                                 .buffer = buffer};
        ops = memory_files_ops(&fs);
        memory_files_start(&fs);
        assert_int_equal(lk_checkpoint_measure(&job, &job.buffer_bytes, &file_bytes, &error),
                         LK_OK);
        assert_int_equal(lk_checkpoint_save(&ops, &job, &error), LK_OK);
        assert_int_equal(lk_checkpoint_peek(&reader, &ops, trained_path, entries,
                                            LK_COUNT(entries), &error),
                         LK_OK);
        const lk_status status = lk_checkpoint_load(&reader, all, 4, &step, &error);
        assert_int_equal(status, wrong ? LK_BAD_DATA : LK_OK);
        if (wrong) assert_non_null(strstr(error.text, "its state hash is"));
        lk_safetensors_close(&reader);
    }
}

static void test_what_is_not_finite_is_refused(void **state) {
    (void)state;
    static const struct {
        uint32_t bits;
        const char *text;
    } cases[] = {{0x7fc00000, "found nan (0x7fc00000)"},
                 {0xff800001, "found nan"},
                 {0x7f800000, "found inf"},
                 {0xff800000, "found -inf"}};
    for (size_t i = 0; i < LK_COUNT(cases); i++) {
        char where[64];
        float *values = i % 2 ? slot : kernel;
        for (int j = 0; j < 6; j++) kernel[j] = slot[j] = (float)j;
        memcpy(&values[i + 1], &cases[i].bits, sizeof *values);
        record();
        save_trained();
        lk_format(where, sizeof where, "tensor \"dense/kernel%s\", element %zu",
                  i % 2 ? "/momentum" : "", i + 1);
        assert_trained(where);
        assert_trained(cases[i].text);
    }
}

// A file that changes after it was verified: what is used was hashed where it lies.
static void test_nothing_is_read_a_second_time(void **state) {
    (void)state;
    lk_safetensors reader;
    lk_error error = {0};
    uint64_t step;
    for (int i = 0; i < 6; i++) kernel[i] = slot[i] = (float)i;
    record();
    save_trained();
    assert_int_equal(
        lk_checkpoint_open(&reader, &ops, trained_path, entries, LK_COUNT(entries), &step, &error),
        LK_OK);
    damage(trained_path);
    assert_int_equal(lk_checkpoint_load(&reader, trained, 2, &step, &error), LK_BAD_DATA);
    assert_non_null(strstr(error.text, "its SHA-256 is"));
    lk_safetensors_close(&reader);
}

// --- scrub ---------------------------------------------------------------------------------------

// Scrubs after the save of `newest`; returns which it was, and LK_BAD_DATA where `damaged`.
static uint64_t scrub(lk_checkpoint_job *job, uint64_t newest, bool damaged) {
    lk_error error = {0};
    job->step = newest;
    unsigned before = allocations;
    assert_int_equal(lk_checkpoint_scrub(&ops, job, &error), damaged ? LK_BAD_DATA : LK_OK);
    assert_int_equal(allocations, before);
    if (damaged) assert_non_null(strstr(error.text, ".safetensors: damaged: "));
    return job->scrubbed;
}

static void test_old_checkpoints_are_read_in_turn(void **state) {
    (void)state;
    ops = memory_files_ops(&fs);
    memory_files_start(&fs);
    lk_checkpoint_job job = make_job(10, 0);
    assert_int_equal(scrub(&job, 10, false), 0);  // there is none
    for (uint64_t step = 10; step <= 40; step += 10) save_well(step, 0);
    job.file_bytes = memory_files_find(&fs, "c/step-0000000040.safetensors")->bytes;
    assert_int_equal(scrub(&job, 40, false), 10);
    assert_int_equal(scrub(&job, 40, false), 20);
    assert_int_equal(scrub(&job, 40, false), 30);
    assert_int_equal(scrub(&job, 40, false), 10);
    damage("c/step-0000000020.safetensors");
    assert_int_equal(scrub(&job, 40, true), 20);
    memory_file *file = memory_files_find(&fs, "c/step-0000000030.safetensors");
    file->data[20] ^= 1;  // of what stands before the digits
    assert_int_equal(scrub(&job, 40, true), 30);
    file->data[20] ^= 1;
    file->bytes -= 1;
    // A round is over those that were there when it began, or new ones would keep it from ending.
    assert_int_equal(scrub(&job, 50, false), 10);
    assert_int_equal(scrub(&job, 50, true), 20);
    assert_int_equal(scrub(&job, 50, true), 30);
    assert_int_equal(scrub(&job, 50, false), 40);
    file->bytes = 40;
    assert_int_equal(scrub(&job, 31, false), 10);
    job.scrubbed = 20;
    assert_int_equal(scrub(&job, 40, true), 30);
    // Larger than what this run saves: not read at all.
    memory_files_find(&fs, "c/step-0000000010.safetensors")->bytes += 2000;
    job.scrubbed = 0;
    assert_int_equal(scrub(&job, 40, true), 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_operation_fails_in_turn),
        cmocka_unit_test(test_any_flipped_bit_is_found),
        cmocka_unit_test(test_a_failed_close_is_a_failed_save),
        cmocka_unit_test(test_another_version_is_refused),
        cmocka_unit_test(test_all_damaged_is_an_error),
        cmocka_unit_test(test_retention_prefers_whole_ones),
        cmocka_unit_test(test_a_renamed_checkpoint_is_found_out),
        cmocka_unit_test(test_load_wants_the_same_tensors),
        cmocka_unit_test(test_on_a_real_file_system),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_own_keys_are_refused),
        cmocka_unit_test(test_recorded_hashes_are_compared),
        cmocka_unit_test(test_states_are_hashed_after_the_step),
        cmocka_unit_test(test_what_is_not_finite_is_refused),
        cmocka_unit_test(test_nothing_is_read_a_second_time),
        cmocka_unit_test(test_old_checkpoints_are_read_in_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
