// events_test.c - event files: the bytes of the records that every file begins with, what a cut
// keeps, names, and a full disk. tests/whole/events_test.py reads them with checksums of its own.
#define _GNU_SOURCE
#include "io/events.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// cmocka needs the four above it.
#include <cmocka.h>

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[] = "/tmp/lk_events_XXXXXX";
static lk_run_dir dir;
static uint8_t memory[128 * 1024], bytes[64 * 1024];

// The event files there, and the last of them.
static uint32_t list(char last[LK_PATH_BYTES]) {
    uint32_t count = 0;
    struct dirent *entry;
    DIR *all = opendir(root);
    last[0] = '\0';
    while ((entry = readdir(all)) != NULL) {
        if (strncmp(entry->d_name, LK_EVENTS_PREFIX, sizeof LK_EVENTS_PREFIX - 1) != 0) continue;
        char path[LK_PATH_BYTES];
        snprintf(path, sizeof path, "%s/%.200s", root, entry->d_name);
        if (strcmp(path, last) > 0) memcpy(last, path, sizeof path);
        count++;
    }
    closedir(all);
    return count;
}

static size_t contents(const char *path) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t n = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    return n;
}

static void begin(lk_events *e, uint64_t first) {
    lk_error error = {0};
    assert_true(lk_events_bytes(0) <= sizeof memory);
    assert_int_equal(lk_events_open(e, &dir, first, 1.5e9, memory, 0, &error), LK_OK);
}

static void scalar(lk_events *e, uint64_t step) {
    lk_error error = {0};
    lk_events_begin(e, 1.5e9 + (double)step, step);
    lk_events_scalar(e, "train/loss", 0.5f);
    assert_int_equal(lk_events_end(e, &error), LK_OK);
}

static void remove_all(void) {
    char path[LK_PATH_BYTES];
    while (list(path)) unlink(path);
}

static void test_exact_bytes(void **state) {
    (void)state;
    char path[LK_PATH_BYTES];
    lk_events e;
    lk_error error = {0};
    begin(&e, 7);
    scalar(&e, 7);
    assert_int_equal(lk_events_close(&e, &error), LK_OK);
    assert_int_equal(list(path), 1);
    assert_string_equal(strrchr(path, '/') + 1, LK_EVENTS_PREFIX "1500000000.lockstep.0");
    const size_t n = contents(path);
    // A length of 26 bytes, its checksum, the wall time; the version, with step 0 written out.
    assert_memory_equal(bytes, "\x1a\0\0\0\0\0\0\0", 8);
    assert_int_equal(bytes[12], 0x09);
    assert_memory_equal(bytes + 21,
                        "\x10\x00\x1a\x0d"
                        "brain.Event:2",
                        17);
    assert_memory_equal(bytes + 42 + 12 + 9, "\x10\x07\x3a\x02\x08\x01", 6);
    assert_int_equal(n, 42 + 31 + 12 + 9 + 2 + 2 + 2 + 12 + 5 + 4);
    assert_memory_equal(bytes + 42 + 31 + 12 + 9, "\x10\x07\x2a\x13\x0a\x11\x0a\x0atrain/loss", 18);
    remove_all();
}

static void test_cut(void **state) {
    (void)state;
    char path[LK_PATH_BYTES];
    struct stat one, two;
    lk_events_cuts cuts;
    lk_events e;
    lk_error error = {0};
    begin(&e, 1);
    for (uint64_t step = 1; step <= 9; step++) scalar(&e, step);
    scalar(&e, 300);
    assert_int_equal(lk_events_close(&e, &error), LK_OK);
    list(path);
    stat(path, &one);
    assert_int_equal(lk_events_cut(&dir, 300, &cuts, &error), LK_OK);
    assert_int_equal(cuts.removed_bytes, 0);
    assert_int_equal(lk_events_cut(&dir, 299, &cuts, &error), LK_OK);
    stat(path, &two);
    assert_int_equal(cuts.removed_bytes, one.st_size - two.st_size);
    assert_true(cuts.removed_bytes > 0);
    assert_int_equal(lk_events_cut(&dir, 4, &cuts, &error), LK_OK);
    assert_int_equal(cuts.removed_bytes % 5, 0);
    // A byte that has changed: the records before it stay.
    FILE *file = fopen(path, "r+b");
    fseek(file, -6, SEEK_END);
    fputc(0x55, file);
    fclose(file);
    const uint64_t record = cuts.removed_bytes / 5;
    assert_int_equal(lk_events_cut(&dir, 4, &cuts, &error), LK_OK);
    assert_int_equal(cuts.removed_bytes, record);
    assert_int_equal(cuts.damaged, 1);
    assert_string_equal(cuts.path, path);
    assert_int_equal(cuts.bytes, record);
    stat(path, &one);
    assert_int_equal(cuts.at, one.st_size);
    // Torn, by a kill: not damaged.
    assert_int_equal(truncate(path, one.st_size - 5), 0);
    assert_int_equal(lk_events_cut(&dir, 4, &cuts, &error), LK_OK);
    assert_int_equal(cuts.removed_bytes, record - 5);
    assert_int_equal(cuts.damaged, 0);
    // Nothing but its version and START: gone.
    assert_int_equal(lk_events_cut(&dir, 0, &cuts, &error), LK_OK);
    assert_int_equal(list(path), 0);
}

// A run that goes on from step 4 owed that step's evaluation: it stands behind the START of step 5.
static void test_cut_behind_start(void **state) {
    (void)state;
    char path[LK_PATH_BYTES];
    struct stat one, two;
    lk_events_cuts cuts;
    lk_events e;
    lk_error error = {0};
    begin(&e, 5);
    scalar(&e, 4);
    scalar(&e, 5);
    assert_int_equal(lk_events_close(&e, &error), LK_OK);
    assert_int_equal(list(path), 1);
    stat(path, &one);
    assert_int_equal(lk_events_cut(&dir, 4, &cuts, &error), LK_OK);
    assert_int_equal(stat(path, &two), 0);
    assert_int_equal(one.st_size - two.st_size, cuts.removed_bytes);
    assert_int_equal(two.st_size, 42 + 31 + cuts.removed_bytes);  // both are as long
    assert_int_equal(cuts.damaged, 0);
    assert_int_equal(lk_events_cut(&dir, 3, &cuts, &error), LK_OK);
    assert_int_equal(list(path), 0);
}

static void test_names(void **state) {
    (void)state;
    char path[LK_PATH_BYTES];
    lk_events e;
    lk_error error = {0};
    for (int i = 0; i < 3; i++) {
        begin(&e, 1);
        assert_int_equal(lk_events_close(&e, &error), LK_OK);
    }
    assert_int_equal(list(path), 3);
    assert_string_equal(strrchr(path, '.'), ".2");
    assert_int_equal(lk_events_cut(&dir, 0, &(lk_events_cuts){0}, &error), LK_OK);
    assert_int_equal(list(path), 0);
    // A long tag is cut, a closed file takes nothing.
    char tag[4 * LK_EVENTS_TAG_BYTES];
    memset(tag, 'x', sizeof tag);
    tag[sizeof tag - 1] = '\0';
    begin(&e, 1);
    lk_events_begin(&e, 1.5e9, 1);
    for (int i = 0; i < LK_EVENTS_SCALARS_MAX; i++) lk_events_scalar(&e, tag, 1.0f);
    assert_int_equal(lk_events_end(&e, &error), LK_OK);
    assert_int_equal(lk_events_close(&e, &error), LK_OK);
    lk_events_begin(&e, 1.5e9, 2);
    lk_events_scalar(&e, tag, 1.0f);
    assert_int_equal(lk_events_end(&e, &error), LK_OK);
    remove_all();
}

// /dev/full takes nothing.
static int full_open(void *context, const char *path, lk_open_mode mode) {
    return lk_file_ops_posix.open(context, mode == LK_OPEN_APPEND ? "/dev/full" : path, mode);
}

static int no_sync(void *context, int file) {
    (void)context, (void)file;
    return 0;
}

static void test_full_disk(void **state) {
    (void)state;
    lk_file_ops ops = lk_file_ops_posix;
    ops.open = full_open;
    ops.sync = no_sync;
    lk_run_dir full = {.ops = &ops};
    snprintf(full.path, sizeof full.path, "%s", root);
    lk_events e;
    lk_error error = {0};
    assert_int_equal(lk_events_open(&e, &full, 1, 1.5e9, memory, 0, &error), LK_IO_ERROR);
    e.log.patient = true;
    error = (lk_error){0};
    for (uint64_t step = 1; step < 2000; step++) scalar(&e, step);
    assert_true(e.log.lost > 0 && e.log.used <= e.log.capacity);
    assert_int_equal(lk_events_close(&e, &error), LK_IO_ERROR);
    assert_int_equal(e.log.file, -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_bytes),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_cut_behind_start),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_full_disk),
    };
    if (!mkdtemp(root)) return 1;
    dir = (lk_run_dir){.ops = &lk_file_ops_posix};
    snprintf(dir.path, sizeof dir.path, "%s", root);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    remove_all();
    rmdir(root);
    return failed;
}
