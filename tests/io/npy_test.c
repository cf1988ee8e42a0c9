// npy_test.c - the .npy writer's bytes, its refusals, and that half a file never shows.
#define _GNU_SOURCE
#include "io/npy.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// cmocka needs the four above it.
#include <cmocka.h>

#include <unistd.h>

static const lk_file_ops *const ops = &lk_file_ops_posix;
static char root[] = "/tmp/lk_npy_XXXXXX";
static char path[64], temporary[112];

static void test_exact_bytes(void **state) {
    (void)state;
    static const char head[] =
        "\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }";
    float rows[3][2] = {{1, 2}, {3, -4}, {0.5f, 1e-40f}};
    unsigned char bytes[256];
    lk_npy_writer writer;
    lk_error error = {0};
    assert_int_equal(lk_npy_start(&writer, ops, path, 3, 2, &error), LK_OK);
    assert_int_equal(lk_npy_add(&writer, rows[0], 1, &error), LK_OK);
    assert_int_equal(lk_npy_add(&writer, rows[1], 2, &error), LK_OK);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(lk_npy_finish(&writer, &error), LK_OK);
    lk_npy_abandon(&writer);  // harmless
    assert_int_equal(access(temporary, F_OK), -1);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(bytes, 1, sizeof bytes, file), LK_NPY_HEADER_BYTES + sizeof rows);
    fclose(file);
    assert_memory_equal(bytes, head, sizeof head - 1);
    for (size_t i = sizeof head - 1; i < LK_NPY_HEADER_BYTES - 1; i++) {
        assert_int_equal(bytes[i], ' ');
    }
    assert_int_equal(bytes[LK_NPY_HEADER_BYTES - 1], '\n');
    assert_memory_equal(bytes + LK_NPY_HEADER_BYTES, rows, sizeof rows);
}

static void test_row_count_must_match(void **state) {
    (void)state;
    float rows[4] = {0};
    lk_npy_writer writer;
    lk_error error = {0};
    unlink(path);
    assert_int_equal(lk_npy_start(&writer, ops, path, 3, 1, &error), LK_OK);
    assert_int_equal(lk_npy_add(&writer, rows, 4, &error), LK_INTERNAL);
    error = (lk_error){0};
    assert_int_equal(lk_npy_add(&writer, rows, 2, &error), LK_OK);
    assert_int_equal(lk_npy_add(&writer, rows, 2, &error), LK_INTERNAL);  // 2 and 2 of 3
    error = (lk_error){0};
    assert_int_equal(lk_npy_finish(&writer, &error), LK_INTERNAL);
    assert_int_equal(access(temporary, F_OK), 0);
    lk_npy_abandon(&writer);
    assert_int_equal(access(temporary, F_OK), -1);
    assert_int_equal(access(path, F_OK), -1);
}

static void test_images(void **state) {
    (void)state;
    static const uint8_t bytes[2 * 3 * 2 * 2] = {1, 2, 3, [23] = 255};
    const lk_npy_images shape = {2, 3, 2, 2, false};
    lk_npy_writer writer;
    lk_error error = {0};
    uint8_t file[LK_NPY_HEADER_BYTES + sizeof bytes + 1];
    lk_npy npy;
    lk_npy_images found;
    assert_int_equal(lk_npy_start_images(&writer, ops, path, &shape, &error), LK_OK);
    assert_int_equal(lk_npy_add_images(&writer, bytes, 1, &error), LK_OK);
    assert_int_equal(lk_npy_add_images(&writer, bytes + 12, 1, &error), LK_OK);
    assert_int_equal(lk_npy_finish(&writer, &error), LK_OK);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    const size_t count = fread(file, 1, sizeof file, f);
    fclose(f);
    assert_int_equal(count, LK_NPY_HEADER_BYTES + sizeof bytes);
    assert_int_equal(lk_npy_parse(file, count, count, path, &npy, &error), LK_OK);
    assert_int_equal(lk_npy_as_images(&npy, path, &found, &error), LK_OK);
    assert_true(found.count == 2 && found.height == 3 && found.width == 2 && found.channels == 2);
    assert_memory_equal(file + npy.header_bytes, bytes, sizeof bytes);
    // The longest header.
    const lk_npy_images longest = {UINT64_MAX, 1, 1, 1, false};
    assert_int_equal(lk_npy_start_images(&writer, ops, path, &longest, &error), LK_OK);
    lk_npy_abandon(&writer);
    const lk_npy_images large = {UINT64_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, false};
    assert_int_equal(lk_npy_start_images(&writer, ops, path, &large, &error), LK_INTERNAL);
    lk_npy_abandon(&writer);
}

static void test_edges(void **state) {
    (void)state;
    lk_npy_writer writer;
    lk_error error = {0};
    assert_int_equal(lk_npy_start(&writer, ops, path, UINT64_MAX, 2, &error), LK_INTERNAL);
    lk_npy_abandon(&writer);
    error = (lk_error){0};
    // The longest header there is still fits: 20 digits and 20 digits.
    assert_int_equal(lk_npy_start(&writer, ops, path, 0, UINT64_MAX, &error), LK_OK);
    assert_int_equal(lk_npy_finish(&writer, &error), LK_OK);
    assert_int_equal(lk_npy_start(&writer, ops, "/no/such/directory/x.npy", 1, 1, &error),
                     LK_IO_ERROR);
    lk_npy_abandon(&writer);
    // Not every file that a full disk cuts short is one of a run.
    error = (lk_error){0};
    assert_int_equal(lk_file_fail(&error, LK_IO_ERROR, path, "write", -ENOSPC), LK_IO_ERROR);
    assert_non_null(strstr(error.text, "free some space and do it again; a run goes on with"));
}

// What our writer writes, read back; and of a head that was cut nothing behind it is believed.
static void test_parse(void **state) {
    (void)state;
    static const char text[] =
        "\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }";
    uint8_t bytes[LK_NPY_HEADER_BYTES];
    lk_npy npy;
    lk_error error = {0};
    memset(bytes, ' ', sizeof bytes);
    memcpy(bytes, text, sizeof text - 1);
    bytes[sizeof bytes - 1] = '\n';
    const uint64_t file_bytes = sizeof bytes + 24;
    assert_int_equal(lk_npy_parse(bytes, sizeof bytes, file_bytes, "a", &npy, &error), LK_OK);
    assert_int_equal(npy.type, 'f');
    assert_int_equal(npy.item_bytes, 4);
    assert_int_equal(npy.ndim, 2);
    assert_int_equal(npy.dims[0], 3);
    assert_int_equal(npy.dims[1], 2);
    assert_int_equal(npy.count, 6);
    assert_int_equal(npy.header_bytes, sizeof bytes);
    for (uint64_t count = 0; count < sizeof bytes; count++) {
        error = (lk_error){0};
        assert_int_equal(lk_npy_parse(bytes, count, file_bytes, "a", &npy, &error), LK_BAD_DATA);
    }
    error = (lk_error){0};
    assert_int_equal(lk_npy_parse(bytes, sizeof bytes, file_bytes + 1, "a", &npy, &error),
                     LK_BAD_DATA);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_bytes),
        cmocka_unit_test(test_row_count_must_match),
        cmocka_unit_test(test_images),
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_parse),
    };
    if (!mkdtemp(root)) return 1;
    snprintf(path, sizeof path, "%s/x.npy", root);
    snprintf(temporary, sizeof temporary, "%s.%ld.tmp", path, (long)getpid());
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return rmdir(root) != 0 || failed;
}
