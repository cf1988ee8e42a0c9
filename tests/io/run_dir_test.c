// run_dir_test.c - the run directory on a real file system: lock, identity, atomic files, logs.
#define _GNU_SOURCE
#include "io/run_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// cmocka needs the four above it.
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io/checkpoint.h"
#include "memory_files.h"

#define ID_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define ID_B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

static const lk_file_ops *const ops = &lk_file_ops_posix;
static char root[64], dir[96];

static const char *in_dir(const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void write_text(const char *name, const char *text) {
    FILE *file = fopen(in_dir(name), "wb");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0 && fclose(file) == 0);
}

static const char *read_text(const char *name) {
    static char text[16384];
    FILE *file = fopen(in_dir(name), "rb");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

static lk_run_entry entry_of(bool resume) { return resume ? LK_ENTER_RESUME : LK_ENTER_NEW; }

static void must_open(lk_run_dir *run, bool resume) {
    lk_error error = {0};
    lk_status status = lk_run_dir_open(run, dir, entry_of(resume), ID_A, &error);
    if (status != LK_OK) fail_msg("%s", error.text);
}

static void assert_refused(bool resume, const char *identity, lk_status status,
                           const char *reason) {
    lk_run_dir run;
    lk_error error = {0};
    assert_int_equal(lk_run_dir_open(&run, dir, entry_of(resume), identity, &error), status);
    assert_int_equal(run.lock_file, -1);
    if (!strstr(error.text, reason)) fail_msg("\"%s\" is not in: %s", reason, error.text);
}

static int new_dir(void **state) {
    (void)state;
    static int number;
    snprintf(dir, sizeof dir, "%s/run%d", root, number++);
    return 0;
}

static void test_new_run(void **state) {
    (void)state;
    lk_run_dir run;
    must_open(&run, false);
    assert_string_equal(read_text("identity"), ID_A "\n");
    assert_string_equal(run.checkpoints, in_dir("checkpoints"));
    assert_int_equal(access(run.checkpoints, W_OK), 0);
    assert_int_equal(atol(read_text("lock")), (long)getpid());
    lk_run_dir_close(&run);
    assert_refused(false, ID_A, LK_BAD_USAGE, "not empty");
    must_open(&run, true);
    lk_run_dir_close(&run);
}

static void test_a_foreign_directory_is_untouched(void **state) {
    (void)state;
    assert_refused(true, ID_A, LK_NO_INPUT, "begin it with --fresh");
    assert_int_equal(access(dir, F_OK), -1);  // not created by a resume
    assert_int_equal(mkdir(dir, 0755), 0);
    write_text("holiday.jpg", "x");
    assert_refused(false, ID_A, LK_BAD_USAGE, "\"holiday.jpg\" is there");
    assert_refused(true, ID_A, LK_NO_INPUT, "begin it with --fresh");
    assert_int_equal(access(in_dir("lock"), F_OK), -1);
    assert_int_equal(unlink(in_dir("holiday.jpg")), 0);
    write_text("identity.tmp", "aa");  // a start that crashed early
    write_text("lock", "");
    lk_run_dir run;
    must_open(&run, false);
    lk_run_dir_close(&run);
}

// A refused start changes nothing: not what a stranger calls "lock", nor what a link of that name
// leads to.
static void test_a_strangers_lock_is_untouched(void **state) {
    (void)state;
    static const lk_run_entry entries[] = {LK_ENTER_NEW, LK_ENTER_RESUME, LK_ENTER_EITHER,
                                           LK_ENTER_REMOVE};
    static const char *const texts[] = {"precious\n", "17 and more\n", "\n",
                                        "123456789012345678901234567890"};
    char outside[128];
    lk_run_dir run;
    assert_int_equal(mkdir(dir, 0755), 0);
    for (size_t i = 0; i < LK_COUNT(entries) * LK_COUNT(texts) * 2; i++) {
        const char *text = texts[i / 2 % LK_COUNT(texts)];
        lk_error error = {0};
        write_text("lock", text);
        if (i % 2) write_text("other", "x");
        else (void)unlink(in_dir("other"));
        lk_run_entry entry = entries[i / 2 / LK_COUNT(texts)];
        assert_int_not_equal(lk_run_dir_open(&run, dir, entry, ID_A, &error), LK_OK);
        assert_string_equal(read_text("lock"), text);
        assert_int_equal(access(in_dir("identity"), F_OK), -1);
    }
    // One that could be a run's own, too, where it is the rest that is none.
    for (size_t i = 0; i < LK_COUNT(entries); i++) {
        lk_error error = {0};
        write_text("lock", "17\n");
        assert_int_equal(access(in_dir("other"), F_OK), 0);
        assert_int_not_equal(lk_run_dir_open(&run, dir, entries[i], ID_A, &error), LK_OK);
        assert_string_equal(read_text("lock"), "17\n");
    }
    assert_true(unlink(in_dir("lock")) == 0 && unlink(in_dir("other")) == 0);
    write_text("../target", "17\n");  // as a lock would be
    snprintf(outside, sizeof outside, "%s/target", root);
    assert_int_equal(symlink(outside, in_dir("lock")), 0);
    assert_refused(false, ID_A, LK_BAD_USAGE, "is a link");
    assert_string_equal(read_text("../target"), "17\n");
    assert_int_equal(unlink(in_dir("lock")), 0);
    assert_int_equal(mkfifo(in_dir("lock"), 0644), 0);
    assert_refused(false, ID_A, LK_BAD_USAGE, "not the lock of a run");
    assert_true(unlink(in_dir("lock")) == 0 && rmdir(dir) == 0);
    // The same in a directory that holds a run.
    must_open(&run, false);
    lk_run_dir_close(&run);
    write_text("lock", "precious\n");
    assert_refused(true, ID_A, LK_BAD_USAGE, "not the lock of a run");
    assert_string_equal(read_text("lock"), "precious\n");
}

static void test_new_or_resumed(void **state) {
    (void)state;
    lk_run_dir run;
    lk_error error = {0};
    assert_int_equal(lk_run_dir_open(&run, dir, LK_ENTER_EITHER, ID_A, &error), LK_OK);
    assert_false(run.resumed);
    lk_run_dir_close(&run);
    assert_int_equal(lk_run_dir_open(&run, dir, LK_ENTER_EITHER, ID_A, &error), LK_OK);
    assert_true(run.resumed);
    lk_run_dir_close(&run);
    assert_int_equal(lk_run_dir_open(&run, dir, LK_ENTER_EITHER, ID_B, &error), LK_BAD_CONFIG);
    error = (lk_error){0};
    assert_int_equal(unlink(in_dir("identity")), 0);
    assert_int_equal(lk_run_dir_open(&run, dir, LK_ENTER_EITHER, ID_A, &error), LK_BAD_USAGE);
    assert_non_null(strstr(error.text, "holds no run"));
}

// What is done in a run is done in the directory that was entered, not in what has its path now.
static void test_a_moved_run_keeps_to_itself(void **state) {
    (void)state;
    lk_run_dir run, other;
    lk_error error = {0};
    char moved[128], now[LK_PATH_BYTES], path[256];
    must_open(&run, false);
    assert_true(lk_held_files_in_place(&run.held, now));
    snprintf(moved, sizeof moved, "%s-moved", dir);
    assert_int_equal(rename(dir, moved), 0);
    must_open(&other, false);
    write_text("checkpoints/step-0000000001.safetensors", "the other's");
    assert_int_equal(lk_run_dir_check(&run, &error), LK_OK);
    assert_false(lk_held_files_in_place(&run.held, now));
    assert_non_null(strstr(now, "-moved"));
    assert_int_equal(lk_run_dir_write(&run, "config.json", "{}", 2, &error), LK_OK);
    assert_int_equal(access(in_dir("config.json"), F_OK), -1);
    assert_int_equal(lk_file_write_atomic(run.ops, in_dir("checkpoints/step-0000000001"
                                          ".safetensors"), "mine", 4, &error), LK_OK);
    assert_int_equal(lk_checkpoint_clean(run.ops, run.checkpoints, &error), LK_OK);
    assert_string_equal(read_text("checkpoints/step-0000000001.safetensors"), "the other's");
    assert_int_equal(run.ops->remove(run.ops->context, in_dir("checkpoints/step-0000000001"
                                                               ".safetensors")), 0);
    assert_string_equal(read_text("checkpoints/step-0000000001.safetensors"), "the other's");
    snprintf(path, sizeof path, "%s/config.json", moved);
    assert_int_equal(access(path, F_OK), 0);
    // A lock file that was taken away or replaced is found before the next save.
    snprintf(path, sizeof path, "%s/lock", moved);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(lk_run_dir_check(&run, &error), LK_UNAVAILABLE);
    assert_non_null(strstr(error.text, moved));
    error = (lk_error){0};
    assert_int_equal(close(creat(path, 0644)), 0);
    assert_int_equal(lk_run_dir_check(&run, &error), LK_UNAVAILABLE);
    lk_run_dir_close(&run);
    lk_run_dir_close(&other);
}

static void test_links_are_not_followed(void **state) {
    (void)state;
    lk_run_dir run;
    lk_error error = {0};
    char outside[128];
    must_open(&run, false);
    // What is written under a link's name would be written to where it leads.
    write_text("../target.jsonl", "");
    snprintf(outside, sizeof outside, "%s/target.jsonl", root);
    assert_int_equal(symlink(outside, in_dir("m.jsonl")), 0);
    char buffer[16];
    lk_line_log log;
    assert_int_equal(lk_line_log_open(&log, &run, "m.jsonl", buffer, sizeof buffer, &error),
                     LK_IO_ERROR);
    lk_run_dir_close(&run);
    snprintf(outside, sizeof outside, "%s/elsewhere", root);
    assert_int_equal(mkdir(outside, 0755), 0);
    assert_true(rmdir(in_dir("checkpoints")) == 0 && symlink(outside, in_dir("checkpoints")) == 0);
    assert_refused(true, ID_A, LK_BAD_USAGE, "is a link");
    error = (lk_error){0};
    assert_int_equal(lk_run_dir_open(&run, dir, LK_ENTER_REMOVE, ID_A, &error), LK_BAD_USAGE);
    // The run directory itself may be one.
    assert_true(unlink(in_dir("checkpoints")) == 0);
    char link[LK_PATH_BYTES];
    snprintf(link, sizeof link, "%s-link", dir);
    assert_int_equal(symlink(dir, link), 0);
    error = (lk_error){0};
    assert_int_equal(lk_run_dir_open(&run, link, LK_ENTER_RESUME, ID_A, &error), LK_OK);
    assert_true(lk_held_files_in_place(&run.held, link));
    lk_run_dir_close(&run);
}

static void test_lost_checkpoints(void **state) {
    (void)state;
    lk_run_dir run;
    lk_error error = {0};
    must_open(&run, false);
    lk_run_dir_close(&run);
    assert_int_equal(rmdir(in_dir("checkpoints")), 0);
    must_open(&run, true);  // a start that crashed before its first step
    lk_run_dir_close(&run);
    write_text("metrics.jsonl", "{\"step\":7}\n");
    must_open(&run, true);
    lk_run_dir_close(&run);
    assert_int_equal(rmdir(in_dir("checkpoints")), 0);
    assert_refused(true, ID_A, LK_NO_INPUT, "\"checkpoints\" is gone");
    assert_int_equal(lk_run_dir_open(&run, dir, LK_ENTER_EITHER, ID_A, &error), LK_NO_INPUT);
    assert_int_equal(access(in_dir("checkpoints"), F_OK), -1);
    assert_string_equal(read_text("metrics.jsonl"), "{\"step\":7}\n");
    error = (lk_error){0};
    assert_int_equal(lk_run_dir_open(&run, dir, LK_ENTER_REMOVE, ID_A, &error), LK_OK);
    lk_run_dir_close(&run);
}

// A trailing slash, and the file system's own root of a path, name the same directory.
static void test_spellings_of_a_path(void **state) {
    (void)state;
    char spelled[128];
    lk_run_dir run;
    lk_error error = {0};
    for (int slashes = 0; slashes < 3; slashes++) {
        snprintf(spelled, sizeof spelled, "%s%.*s", dir, slashes, "//");
        assert_int_equal(lk_run_dir_open(&run, spelled, LK_ENTER_EITHER, ID_A, &error), LK_OK);
        assert_int_equal(lk_run_dir_write(&run, "config.json", "{}", 2, &error), LK_OK);
        assert_string_equal(run.path, dir);
        lk_run_dir_close(&run);
    }
}

static void test_identity(void **state) {
    (void)state;
    lk_run_dir run;
    must_open(&run, false);
    lk_run_dir_close(&run);
    assert_refused(true, ID_B, LK_BAD_CONFIG, ID_A);
    assert_refused(true, ID_B, LK_BAD_CONFIG, ID_B);
    write_text("identity", "aaaa\n");
    assert_refused(true, ID_A, LK_BAD_DATA, "damaged");
    write_text("identity", ID_A "x");
    assert_refused(true, ID_A, LK_BAD_DATA, "damaged");
    write_text("identity", "A" ID_A);
    assert_refused(true, ID_A, LK_BAD_DATA, "damaged");
}

static void test_lock_names_its_holder(void **state) {
    (void)state;
    int to_parent[2], to_child[2];
    char byte = 0, pid_text[32];
    assert_true(pipe(to_parent) == 0 && pipe(to_child) == 0);
    pid_t child = fork();
    if (child == 0) {
        lk_run_dir run;
        lk_error error = {0};
        bool good = lk_run_dir_open(&run, dir, LK_ENTER_NEW, ID_A, &error) == LK_OK;
        good = good && write(to_parent[1], "x", 1) == 1 && read(to_child[0], &byte, 1) == 1;
        _exit(good ? 0 : 1);  // holding the lock: the end of the process frees it
    }
    assert_int_equal(read(to_parent[0], &byte, 1), 1);
    snprintf(pid_text, sizeof pid_text, "process %ld ", (long)child);
    assert_refused(true, ID_A, LK_UNAVAILABLE, pid_text);
    assert_refused(false, ID_A, LK_UNAVAILABLE, pid_text);
    int status;
    assert_int_equal(write(to_child[1], "x", 1), 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    lk_run_dir run;
    must_open(&run, true);
    lk_run_dir_close(&run);
    for (int i = 0; i < 2; i++) close(to_parent[i]), close(to_child[i]);
}

static void test_small_files(void **state) {
    (void)state;
    lk_run_dir run;
    lk_error error = {0};
    must_open(&run, false);
    assert_int_equal(lk_run_dir_write(&run, "config.json", "{1}", 3, &error), LK_OK);
    assert_int_equal(lk_run_dir_write(&run, "config.json", "{}", 2, &error), LK_OK);
    assert_string_equal(read_text("config.json"), "{}");
    assert_int_equal(access(in_dir("config.json.tmp"), F_OK), -1);
    assert_int_equal(lk_run_dir_write(&run, "no/such", "", 0, &error), LK_IO_ERROR);
    lk_run_dir_close(&run);
}

// A crash at every operation of an atomic write, with every fate of what was not synced.
static void test_small_files_survive_crashes(void **state) {
    (void)state;
    static memory_files fs;
    lk_file_ops memory = memory_files_ops(&fs);
    for (unsigned variant = 0; variant < CRASH_NAME_VARIANTS * CRASH_CONTENT_VARIANTS; variant++) {
        bool reached = true;
        for (unsigned at = 1; reached; at++) {
            lk_error error = {0};
            memory_files_start(&fs);
            assert_int_equal(lk_file_write_atomic(&memory, "r/f", "old", 3, &error), LK_OK);
            memory_files_arm(&fs, FAULT_CRASH, at);
            lk_status status = lk_file_write_atomic(&memory, "r/f", "newer", 5, &error);
            reached = fs.operations >= at;
            memory_files_crash(&fs, variant / CRASH_CONTENT_VARIANTS,
                               variant % CRASH_CONTENT_VARIANTS);
            const memory_file *file = memory_files_find(&fs, "r/f");
            assert_non_null(file);
            bool is_old = file->bytes == 3 && memcmp(file->data, "old", 3) == 0;
            bool is_new = file->bytes == 5 && memcmp(file->data, "newer", 5) == 0;
            assert_true(is_new || (is_old && status != LK_OK));
        }
    }
}

// Where a write, a sync or the rename fails, the old file stands and nothing lies beside it.
static void test_small_files_survive_faults(void **state) {
    (void)state;
    static memory_files fs;
    static const fault kinds[] = {FAULT_NO_SPACE, FAULT_FAILED_SYNC};
    lk_file_ops memory = memory_files_ops(&fs);
    for (size_t k = 0; k < LK_COUNT(kinds); k++) {
        bool reached = true;
        unsigned failures = 0;
        for (unsigned at = 1; reached; at++) {
            lk_error error = {0};
            memory_files_start(&fs);
            assert_int_equal(lk_file_write_atomic(&memory, "r/f", "old", 3, &error), LK_OK);
            memory_files_arm(&fs, kinds[k], at);
            lk_status status = lk_file_write_atomic(&memory, "r/f", "newer", 5, &error);
            reached = fs.operations >= at;
            assert_int_equal(status, fs.happened ? LK_IO_ERROR : LK_OK);
            failures += status != LK_OK;
            const memory_file *file = memory_files_find(&fs, "r/f");
            assert_non_null(file);
            if (status == LK_OK) assert_int_equal(file->bytes, 5);
            // The first sync is the file's: what may not be on the disk gets no name.
            if (kinds[k] == FAULT_FAILED_SYNC && status != LK_OK && failures == 1) {
                assert_int_equal(file->bytes, 3);
            }
            assert_null(memory_files_find(&fs, "r/f.tmp"));
        }
        assert_true(failures >= 2);  // the file's sync and the directory's, or create and write
    }
}

static void test_paths_have_an_end(void **state) {
    (void)state;
    static char longest[LK_PATH_BYTES + 1];
    char out[LK_PATH_BYTES];
    lk_error error = {0};
    memset(longest, 'p', LK_PATH_BYTES - 1);
    assert_int_equal(lk_path_join(out, longest, "", "", &error), LK_OK);
    assert_string_equal(out, longest);
    longest[LK_PATH_BYTES - 1] = 'p';
    assert_int_equal(lk_path_join(out, longest, "", "", &error), LK_BAD_USAGE);
    assert_non_null(strstr(error.text, "is too long"));
}

// A log's name is on the disk before its lines are: after a crash it is not gone with them.
static void test_a_new_log_outlives_a_crash(void **state) {
    (void)state;
    static memory_files fs;
    lk_file_ops memory = memory_files_ops(&fs);
    const lk_run_dir run = {.ops = &memory, .path = "r", .lock_file = -1};
    lk_line_log log;
    lk_error error = {0};
    char buffer[32];
    memory_files_start(&fs);
    assert_int_equal(lk_line_log_open(&log, &run, "m", buffer, sizeof buffer, &error), LK_OK);
    assert_int_equal(lk_line_log_add(&log, "line", 4, &error), LK_OK);
    assert_int_equal(lk_line_log_sync(&log, &error), LK_OK);
    memory_files_crash(&fs, 0, 0);  // of what was not synced nothing
    const memory_file *file = memory_files_find(&fs, "r/m");
    assert_non_null(file);
    assert_int_equal(file->bytes, 5);
}

static void test_log_lines(void **state) {
    (void)state;
    lk_run_dir run;
    lk_line_log log;
    lk_error error = {0};
    char buffer[16];
    must_open(&run, false);
    assert_int_equal(lk_line_log_open(&log, &run, "m.jsonl", buffer, sizeof buffer, &error), LK_OK);
    // Every line is in the file as soon as it is added: whoever is killed now loses none.
    assert_int_equal(lk_line_log_add(&log, "0123456", 7, &error), LK_OK);
    assert_string_equal(read_text("m.jsonl"), "0123456\n");
    assert_int_equal(lk_line_log_add(&log, "abcdefg", 7, &error), LK_OK);
    assert_int_equal(lk_line_log_add(&log, "h", 1, &error), LK_OK);
    assert_string_equal(read_text("m.jsonl"), "0123456\nabcdefg\nh\n");
    assert_int_equal(lk_line_log_sync(&log, &error), LK_OK);
    assert_int_equal(lk_line_log_add(&log, "123456789012345", 15, &error), LK_OK);
    assert_int_equal(lk_line_log_close(&log, &error), LK_OK);
    assert_int_equal(lk_line_log_open(&log, &run, "m.jsonl", buffer, sizeof buffer, &error), LK_OK);
    assert_int_equal(lk_line_log_add(&log, "1234567890123456", 16, &error), LK_INTERNAL);
    error = (lk_error){0};
    assert_int_equal(lk_line_log_close(&log, &error), LK_OK);
    assert_string_equal(read_text("m.jsonl"), "0123456\nabcdefg\nh\n123456789012345\n");
    lk_run_dir_close(&run);
}

// A disk that is full for a while: a table of operations whose writes fail, after some bytes.
static int64_t room;

static int64_t write_into_room(void *context, int file, const void *data, size_t bytes) {
    (void)context;
    if (room == 0) return -ENOSPC;
    int64_t done = ops->write(ops->context, file, data, LK_MIN(bytes, (size_t)room));
    if (done > 0) room -= done;
    return done;
}

static void test_log_waits_for_room(void **state) {
    (void)state;
    lk_file_ops full = *ops;
    lk_run_dir run;
    lk_error error = {0};
    char buffer[16];
    full.write = write_into_room;
    must_open(&run, false);
    for (int patient = 0; patient < 2; patient++) {
        lk_line_log log;
        const char *name = patient ? "p.jsonl" : "m.jsonl";
        assert_int_equal(lk_line_log_open(&log, &run, name, buffer, sizeof buffer, &error), LK_OK);
        log.ops = &full;
        log.patient = patient;
        room = 3;
        const lk_status full_status = patient ? LK_OK : LK_IO_ERROR;
        assert_int_equal(lk_line_log_add(&log, "0123456", 7, &error), full_status);
        error = (lk_error){0};
        assert_int_equal(lk_line_log_sync(&log, &error), LK_IO_ERROR);
        error = (lk_error){0};
        assert_string_equal(read_text(name), "012");
        assert_int_equal(lk_line_log_add(&log, "abcdefg", 7, &error), full_status);
        error = (lk_error){0};
        // No room in the buffer either: a patient log counts, the other fails.
        assert_int_equal(lk_line_log_add(&log, "ABCDEFG", 7, &error), full_status);
        error = (lk_error){0};
        room = 1000;
        assert_int_equal(lk_line_log_sync(&log, &error), LK_OK);
        assert_string_equal(read_text(name), "0123456\nabcdefg\n");
        assert_int_equal(log.lost, 1);
        assert_int_equal(lk_line_log_close(&log, &error), LK_IO_ERROR);
        assert_non_null(strstr(error.text, "1 lines are missing"));
        error = (lk_error){0};
    }
    lk_run_dir_close(&run);
}

static void test_log_cut(void **state) {
    (void)state;
    static const struct {
        const char *before, *after;
        uint64_t step;
    } cases[] = {
        {"", "", 5},
        {"{\"step\":4}\n{\"step\":5}\n{\"step\":6}\n", "{\"step\":4}\n{\"step\":5}\n", 5},
        {"{\"step\":4}\n{\"step\":5}\n{\"step\":6}\n",
         "{\"step\":4}\n{\"step\":5}\n{\"step\":6}\n", 6},
        {"{\"step\":4}\n{\"step\":5}", "{\"step\":4}\n", 5},             // torn
        {"{\"step\":4}\n{\"step\":5}", "", 3},
        {"{\"loss\":1,\"step\": 40}\n", "", 5},
        {"{\"loss\":1,\"step\": 5}\n", "{\"loss\":1,\"step\": 5}\n", 5},
        {"{\"run\":1}\n{\"step\":9}\n", "{\"run\":1}\n", 5},              // heads the file
        {"{\"step\":5}\n{\"x\":1}\n{\"step\":6}\n{\"x\":2}\n", "{\"step\":5}\n{\"x\":1}\n", 5},
        {"{\"x\":\"step\",\"step\":6}\n", "", 5},
        {"{\"last_step\":9,\"step\":5}\n", "{\"last_step\":9,\"step\":5}\n", 5},
        {"{\"step\":18446744073709551616}\n", "", UINT64_MAX - 1},
        {"{\"st", "", 5},
    };
    lk_run_dir run;
    lk_error error = {0};
    uint64_t removed;
    must_open(&run, false);
    assert_int_equal(lk_line_log_cut(&run, "absent.jsonl", 5, &removed, &error), LK_OK);
    assert_int_equal(removed, 0);
    for (size_t i = 0; i < LK_COUNT(cases); i++) {
        write_text("m.jsonl", cases[i].before);
        assert_int_equal(lk_line_log_cut(&run, "m.jsonl", cases[i].step, &removed, &error), LK_OK);
        assert_string_equal(read_text("m.jsonl"), cases[i].after);
        assert_int_equal(removed, strlen(cases[i].before) - strlen(cases[i].after));
    }
    // Longer than the cutter's buffer, the key across its edge, for every position of the edge.
    for (int pad = 4080; pad <= 4100; pad++) {
        static char text[10000];
        static const char line[] = "{\"x\":\"%0*d\",\"step\":%d}\n";
        int first = snprintf(text, sizeof text, line, pad, 0, 5);
        snprintf(text + first, sizeof text - (size_t)first, line, pad, 0, 6);
        write_text("m.jsonl", text);
        assert_int_equal(lk_line_log_cut(&run, "m.jsonl", 5, NULL, &error), LK_OK);
        assert_int_equal(strlen(read_text("m.jsonl")), first);
    }
    lk_run_dir_close(&run);
}

static void test_parents(void **state) {
    (void)state;
    static const char *const cases[][2] = {{"a", "."}, {"a/b", "a"}, {"/a", "/"}, {"a/b/", "a"},
                                           {"/a//b", "/a"}, {"/", "/"}, {"./a", "."}};
    char out[LK_PATH_BYTES];
    for (size_t i = 0; i < LK_COUNT(cases); i++) {
        lk_path_parent(out, cases[i][0]);
        assert_string_equal(out, cases[i][1]);
    }
}

static void count_name(void *context, const char *name) {
    assert_int_equal(strlen(name), 90);
    ++*(unsigned *)context;
}

static void test_lists_many_names(void **state) {
    (void)state;
    unsigned count = 0;
    assert_int_equal(mkdir(dir, 0755), 0);
    for (int i = 0; i < 200; i++) {
        char name[96];
        snprintf(name, sizeof name, "%090d", i);
        write_text(name, "");
    }
    assert_int_equal(ops->list(ops->context, dir, count_name, &count), 0);
    assert_int_equal(count, 200);
    assert_int_equal(ops->list(ops->context, in_dir("absent"), count_name, &count), -ENOENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_new_run, new_dir),
        cmocka_unit_test_setup(test_a_foreign_directory_is_untouched, new_dir),
        cmocka_unit_test_setup(test_a_strangers_lock_is_untouched, new_dir),
        cmocka_unit_test_setup(test_new_or_resumed, new_dir),
        cmocka_unit_test_setup(test_a_moved_run_keeps_to_itself, new_dir),
        cmocka_unit_test_setup(test_links_are_not_followed, new_dir),
        cmocka_unit_test_setup(test_lost_checkpoints, new_dir),
        cmocka_unit_test_setup(test_spellings_of_a_path, new_dir),
        cmocka_unit_test_setup(test_identity, new_dir),
        cmocka_unit_test_setup(test_lock_names_its_holder, new_dir),
        cmocka_unit_test_setup(test_small_files, new_dir),
        cmocka_unit_test_setup(test_small_files_survive_crashes, new_dir),
        cmocka_unit_test_setup(test_small_files_survive_faults, new_dir),
        cmocka_unit_test_setup(test_paths_have_an_end, new_dir),
        cmocka_unit_test_setup(test_a_new_log_outlives_a_crash, new_dir),
        cmocka_unit_test_setup(test_log_lines, new_dir),
        cmocka_unit_test_setup(test_log_waits_for_room, new_dir),
        cmocka_unit_test_setup(test_log_cut, new_dir),
        cmocka_unit_test_setup(test_parents, new_dir),
        cmocka_unit_test_setup(test_lists_many_names, new_dir),
    };
    snprintf(root, sizeof root, "/tmp/lk_run_dir_XXXXXX");
    if (!mkdtemp(root)) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char command[96];
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command) != 0 || failed;
}
