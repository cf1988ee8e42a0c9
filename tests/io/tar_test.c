// tar_test.c - the writer's bytes, that the reader takes them and nothing else, and that half an
// archive never shows.
#define _GNU_SOURCE
#include "io/tar.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// cmocka needs the four above it.
#include <cmocka.h>

#include <unistd.h>

static const lk_file_ops *const ops = &lk_file_ops_posix;
static char root[] = "/tmp/lk_tar_XXXXXX";
static char path[64], temporary[112];
static uint8_t archive[8192];
static size_t archive_bytes;

static void read_back(void) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    archive_bytes = fread(archive, 1, sizeof archive, file);
    fclose(file);
}

// run/one of 5 bytes in two pieces, run/none of 0, run/block of 512.
static void write_three(void) {
    static const uint8_t block[512] = {7};
    lk_tar_writer w;
    lk_error error = {0};
    unlink(path);
    assert_int_equal(lk_tar_start(&w, ops, path, &error), LK_OK);
    assert_int_equal(lk_tar_begin(&w, "run/one", 5, &error), LK_OK);
    assert_int_equal(lk_tar_write(&w, "he", 2, &error), LK_OK);
    assert_int_equal(lk_tar_write(&w, "llo", 3, &error), LK_OK);
    assert_int_equal(lk_tar_add(&w, "run/none", "", 0, &error), LK_OK);
    assert_int_equal(lk_tar_add(&w, "run/block", block, sizeof block, &error), LK_OK);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(lk_tar_finish(&w, &error), LK_OK);
    lk_tar_abandon(&w);  // harmless
    assert_int_equal(access(temporary, F_OK), -1);
    read_back();
}

static void test_exact_bytes(void **state) {
    (void)state;
    uint8_t header[512] = "run/one";
    write_three();
    assert_int_equal(archive_bytes, 512 * (2 + 1 + 2 + 2));
    memcpy(header + 100,
           "0000644\0"
           "0000000\0"
           "0000000\0"
           "00000000005\0"
           "00000000000\0",
           48);
    memcpy(header + 148, "010510\0 0", 9);
    memcpy(header + 257,
           "ustar\0"
           "00",
           8);
    memcpy(header + 329,
           "0000000\0"
           "0000000\0",
           16);
    assert_memory_equal(archive, header, sizeof header);
    assert_memory_equal(archive + 512, "hello\0\0\0", 8);
}

static void test_read_back(void **state) {
    (void)state;
    static const struct {
        const char *name;
        uint64_t bytes;
    } wanted[] = {{"run/one", 5}, {"run/none", 0}, {"run/block", 512}};
    uint64_t at = 0;
    lk_tar_entry entry;
    lk_error error = {0};
    write_three();
    for (size_t i = 0; i < LK_COUNT(wanted); i++) {
        assert_int_equal(lk_tar_next(archive, archive_bytes, path, &at, &entry, &error), LK_OK);
        assert_string_equal(entry.name, wanted[i].name);
        assert_int_equal(entry.bytes, wanted[i].bytes);
        if (i == 0) assert_memory_equal(entry.data, "hello", 5);
    }
    assert_int_equal(lk_tar_next(archive, archive_bytes, path, &at, &entry, &error), LK_OK);
    assert_null(entry.data);
    assert_int_equal(at, archive_bytes);
}

// Reads all of it: LK_OK, or what the first refusal says.
static lk_status read_all(const uint8_t *bytes, size_t count, lk_error *error) {
    uint64_t at = 0;
    lk_tar_entry entry;
    *error = (lk_error){0};
    do {
        LK_CHECK(lk_tar_next(bytes, count, path, &at, &entry, error));
    } while (entry.data);
    return LK_OK;
}

static void put_sum(uint8_t *header) {
    uint32_t sum = 0;
    memset(header + 148, ' ', 8);
    for (size_t i = 0; i < 512; i++) sum += header[i];
    snprintf((char *)header + 148, 8, "%06o", sum);
}

// A change of the first header, with a sum that fits, and what the refusal says.
static void refused(size_t at, const void *bytes, size_t count, const char *word) {
    lk_error error;
    write_three();
    memcpy(archive + at, bytes, count);
    put_sum(archive);
    assert_int_equal(read_all(archive, archive_bytes, &error), LK_BAD_DATA);
    if (!strstr(error.text, word)) fail_msg("found \"%s\", wanted \"%s\"", error.text, word);
}

static void test_hostile_headers(void **state) {
    (void)state;
    static const char *const names[] = {"../one", "/one", "a/../b", "a//b", ".",  "a/.", "a/",
                                        "a b",    "a\\b", "a\n",    "",     "..", "./a", "\x80"};
    for (size_t i = 0; i < LK_COUNT(names); i++) {
        refused(0, names[i], strlen(names[i]) + 1, "the entry's name");
    }
    for (const char *type = "1234567xgLKS"; *type; type++) refused(156, type, 1, "no plain file");
    refused(157, "/etc", 5, "names what it links to");
    refused(345, "a", 2, "in two parts");
    refused(124, "77777777777", 12, "longer than the archive");
    refused(124, "00000010000", 12, "longer than the archive");
    refused(124, "\x80\0\0\0\0\0\0\0\0\0\0\5", 12, "no octal number");
    refused(124, "0000000000x", 12, "no octal number");
    refused(124, "\0\0\0\0\0\0\0\0\0\0\0", 12, "no octal number");
    refused(124, "00000000004", 12, "not zero");  // its last letter is padding then
    refused(257, "ustar  ", 8, "no \"ustar\"");
}

static void test_good_headers_of_others(void **state) {
    (void)state;
    lk_error error;
    write_three();
    archive[156] = '\0';                       // a plain file as the old tar has it
    memcpy(archive + 124, "         5 ", 12);  // spaces before and after
    put_sum(archive);
    assert_int_equal(read_all(archive, archive_bytes, &error), LK_OK);
    memset(archive, 'n', 100);  // the longest name
    put_sum(archive);
    assert_int_equal(read_all(archive, archive_bytes, &error), LK_OK);
}

// Cut anywhere, or any one byte changed: refused, but where nothing is said by it.
static void test_cut_and_damaged(void **state) {
    (void)state;
    lk_error error;
    write_three();
    for (size_t count = 0; count < archive_bytes; count++) {
        assert_int_equal(read_all(archive, count, &error), LK_BAD_DATA);
    }
    uint32_t taken = 0;
    for (size_t i = 0; i < archive_bytes; i++) {
        archive[i] ^= 0x10;
        taken += read_all(archive, archive_bytes, &error) == LK_OK;
        archive[i] ^= 0x10;
    }
    // The contents, of which the archive has no sum; and in each header's own sum the first digit,
    // 0, which may be a space.
    assert_int_equal(taken, 5 + 512 + 3);
    memset(archive + archive_bytes, 0, 1024);
    assert_int_equal(read_all(archive, archive_bytes + 1024, &error), LK_OK);
    archive[archive_bytes + 1000] = 1;
    assert_int_equal(read_all(archive, archive_bytes + 1024, &error), LK_BAD_DATA);
    assert_non_null(strstr(error.text, "behind the end"));
}

static void test_announced_bytes(void **state) {
    (void)state;
    lk_tar_writer w;
    lk_error error = {0};
    unlink(path);
    assert_int_equal(lk_tar_start(&w, ops, path, &error), LK_OK);
    assert_int_equal(lk_tar_begin(&w, "../a", 1, &error), LK_INTERNAL);
    error = (lk_error){0};
    assert_int_equal(lk_tar_begin(&w, "a", (uint64_t)1 << 33, &error), LK_INTERNAL);
    error = (lk_error){0};
    assert_int_equal(lk_tar_begin(&w, "a", 3, &error), LK_OK);
    assert_int_equal(lk_tar_write(&w, "abcd", 4, &error), LK_INTERNAL);
    error = (lk_error){0};
    assert_int_equal(lk_tar_write(&w, "ab", 2, &error), LK_OK);
    assert_int_equal(lk_tar_begin(&w, "b", 1, &error), LK_INTERNAL);
    error = (lk_error){0};
    assert_int_equal(lk_tar_finish(&w, &error), LK_INTERNAL);
    lk_tar_abandon(&w);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(access(temporary, F_OK), -1);
}

static int make_root(void **state) {
    (void)state;
    if (!mkdtemp(root)) return -1;
    snprintf(path, sizeof path, "%s/a.tar", root);
    snprintf(temporary, sizeof temporary, "%s.%ld.tmp", path, (long)getpid());
    return 0;
}

static int remove_root(void **state) {
    (void)state;
    unlink(path);
    return rmdir(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_bytes),     cmocka_unit_test(test_read_back),
        cmocka_unit_test(test_hostile_headers), cmocka_unit_test(test_good_headers_of_others),
        cmocka_unit_test(test_cut_and_damaged), cmocka_unit_test(test_announced_bytes)};
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
