// safetensors_test.c - the writer's bytes, and every rule of the reader with a file that breaks it.
#define _GNU_SOURCE
#include "io/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// cmocka needs the four above it.
#include <cmocka.h>

#include <unistd.h>

#include "memory_files.h"

static const lk_file_ops *const ops = &lk_file_ops_posix;
static char path[] = "/tmp/lk_safetensors_XXXXXX";
static lk_safetensors_entry entries[8];

static void write_file(const void *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

// A file of this header, unpadded, and `data_bytes` zeros.
static void write_raw(const char *header, size_t data_bytes) {
    static char all[4096];
    uint64_t length = strlen(header);
    memset(all, 0, sizeof all);
    memcpy(all, &length, 8);
    memcpy(all + 8, header, length);
    write_file(all, 8 + length + data_bytes);
}

static lk_status open_it(lk_safetensors *reader, lk_error *error) {
    *error = (lk_error){0};
    return lk_safetensors_open(reader, ops, path, entries, LK_COUNT(entries), error);
}

static void assert_refused(const char *reason) {
    lk_safetensors reader;
    lk_error error;
    assert_int_equal(open_it(&reader, &error), LK_BAD_DATA);
    if (!strstr(error.text, reason)) fail_msg("\"%s\" is not in: %s", reason, error.text);
    if (!strstr(error.text, path)) fail_msg("no path in: %s", error.text);
    assert_int_equal(reader.file, -1);
}

static void test_exact_bytes(void **state) {
    (void)state;
    float w[2][3] = {{1, 2, 3}, {4, 5, 6}};
    lk_safetensors_tensor tensor = {"w", LK_SAFETENSORS_F32, 2, {2, 3}, w};
    lk_safetensors_pair pair = {"k", "v\"\n"};
    lk_safetensors_content content = {&pair, 1, &tensor, 1};
    static const char expected[] =
        "\x78\0\0\0\0\0\0\0{\"__metadata__\":{\"k\":\"v\\\"\\u000a\"},"
        "\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}";
    char header[256];
    size_t used, measured;
    uint64_t data_bytes;
    lk_error error = {0};
    assert_int_equal(lk_safetensors_header(&content, NULL, 0, &measured, NULL, &error), LK_OK);
    assert_int_equal(lk_safetensors_header(&content, header, sizeof header, &used, &data_bytes,
                                           &error), LK_OK);
    assert_int_equal(used, measured);
    assert_int_equal(used, 128);
    assert_int_equal(data_bytes, 24);
    assert_memory_equal(header, expected, sizeof expected - 1);
    for (size_t i = sizeof expected - 1; i < used; i++) assert_int_equal(header[i], ' ');
    assert_int_equal(lk_safetensors_header(&content, header, used - 1, &used, NULL, &error),
                     LK_INTERNAL);
}

static void test_round_trip(void **state) {
    (void)state;
    float w[2][3] = {{1, 2, 3}, {4, 5, 6}}, w_back[2][3];
    uint64_t u[3] = {1, 2, UINT64_MAX}, u_back[3];
    lk_safetensors_tensor tensors[] = {{"z/w", LK_SAFETENSORS_F32, 2, {2, 3}, w},
                                       {"none", LK_SAFETENSORS_F32, 3, {2, 0, 3}, NULL},
                                       {"a u", LK_SAFETENSORS_U64, 1, {3}, u},
                                       {"one", LK_SAFETENSORS_F32, 0, {0}, w}};
    lk_safetensors_pair pairs[] = {{"b", "\xe2\x82\xac"}, {"a", ""}};
    lk_safetensors_content content = {pairs, 2, tensors, 4};
    char header[1024];
    size_t used;
    lk_error error = {0};
    lk_safetensors reader;
    assert_int_equal(lk_safetensors_header(&content, header, sizeof header, &used, NULL, &error),
                     LK_OK);
    int file;
    unlink(path);
    assert_int_equal(lk_file_create(ops, path, &file, &error), LK_OK);
    assert_int_equal(lk_safetensors_write(&content, header, used, ops, file, path, &error), LK_OK);
    assert_int_equal(lk_file_sync_close(ops, file, path, &error), LK_OK);

    assert_int_equal(open_it(&reader, &error), LK_OK);
    assert_int_equal(reader.data_at % LK_SAFETENSORS_ALIGNMENT_BYTES, 0);
    assert_int_equal(reader.entry_count, 4);
    assert_int_equal(lk_safetensors_read(&reader, lk_safetensors_find(&reader, "z/w"), w_back,
                                         &error), LK_OK);
    assert_int_equal(lk_safetensors_read(&reader, lk_safetensors_find(&reader, "a u"), u_back,
                                         &error), LK_OK);
    assert_memory_equal(w, w_back, sizeof w);
    assert_memory_equal(u, u_back, sizeof u);
    assert_int_equal(lk_safetensors_find(&reader, "one")->dim_count, 0);
    assert_int_equal(lk_safetensors_find(&reader, "none")->dims[1], 0);
    assert_null(lk_safetensors_find(&reader, "w"));
    assert_string_equal(lk_safetensors_metadata(&reader, "b"), "\xe2\x82\xac");
    assert_null(lk_safetensors_metadata(&reader, "c"));
    void *cursor = NULL;
    const char *key, *value;
    unsigned count = 0;
    while (lk_safetensors_next_metadata(&reader, &cursor, &key, &value)) count++;
    assert_int_equal(count, 2);
    lk_safetensors_close(&reader);
}

static void test_writer_refuses(void **state) {
    (void)state;
    lk_safetensors_tensor twice[] = {{"w", LK_SAFETENSORS_F32, 0, {0}, NULL},
                                     {"w", LK_SAFETENSORS_F32, 0, {0}, NULL}};
    lk_safetensors_tensor huge = {"w", LK_SAFETENSORS_F32, 2, {1ull << 40, 1ull << 40}, NULL};
    lk_safetensors_tensor half = {"w", LK_SAFETENSORS_F4, 1, {3}, NULL};
    lk_safetensors_tensor reserved = {"__metadata__", LK_SAFETENSORS_F32, 0, {0}, NULL};
    lk_safetensors_pair same[] = {{"k", ""}, {"k", ""}};
    static const char *const not_utf8[] = {"\xff", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                                           "\xe2\x82", "a\x80", "\xe0\x80\x80", "\xf0\x80\x80\x80"};
    const lk_safetensors_content bad[] = {{NULL, 0, twice, 2}, {NULL, 0, &huge, 1},
                                          {NULL, 0, &half, 1}, {NULL, 0, &reserved, 1},
                                          {same, 2, NULL, 0}};
    size_t used;
    for (size_t i = 0; i < LK_COUNT(bad); i++) {
        lk_error error = {0};
        assert_int_equal(lk_safetensors_header(&bad[i], NULL, 0, &used, NULL, &error), LK_INTERNAL);
    }
    for (size_t i = 0; i < LK_COUNT(not_utf8); i++) {
        lk_safetensors_pair pair = {"k", not_utf8[i]};
        lk_safetensors_content content = {&pair, 1, NULL, 0};
        lk_error error = {0};
        assert_int_equal(lk_safetensors_header(&content, NULL, 0, &used, NULL, &error),
                         LK_INTERNAL);
    }
}

#define T(name, dtype, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void test_reader_accepts(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t data_bytes, tensors;
    } good[] = {
        {"{}", 0, 0},
        {"{}   ", 0, 0},
        {"{\"__metadata__\":{}}", 0, 0},
        {"{" T("b", "U8", "[3]", "[4,7]") "," T("a", "F32", "[]", "[0,4]") "}", 7, 2},
        {"{" T("a", "F4", "[2,3]", "[0,3]") "}", 3, 1},
        {"{" T("e", "F32", "[0]", "[4,4]") "," T("a", "F32", "[1]", "[0,4]") "}", 4, 2},
        {"{" T("e", "F32", "[9223372036854775807,0,9]", "[0,0]") "}", 0, 1},
    };
    for (size_t i = 0; i < LK_COUNT(good); i++) {
        lk_safetensors reader;
        lk_error error;
        write_raw(good[i].header, good[i].data_bytes);
        if (open_it(&reader, &error) != LK_OK) fail_msg("%s", error.text);
        assert_int_equal(reader.entry_count, good[i].tensors);
        lk_safetensors_close(&reader);
    }
}

static void test_reader_refuses(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *reason;
    } bad[] = {
        {"[]", 0, "byte 8 is 0x5b"},
        {" {}", 0, "byte 8 is 0x20"},
        {"{}\n", 0, "padded with byte 0x0a"},
        {"{} {}", 0, "safetensors header, byte"},
        {"{\"a\":}", 0, "safetensors header, byte"},
        {"{" T("a", "U8", "[1]", "[0,1]") "," T("a", "U8", "[1]", "[1,2]") "}", 2, "duplicate"},
        {"{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, "duplicate"},
        {"{\"__metadata__\":{\"k\":1}}", 0, "metadata \"k\" is not a string"},
        {"{\"__metadata__\":[]}", 0, "__metadata__ is not an object"},
        {"{\"a\":[]}", 0, "\"a\" is not an object"},
        {"{\"a\\n\":[]}", 0, "\"a?\" is not an object"},
        {"{" T("a", "F33", "[1]", "[0,4]") "}", 4, "has no known dtype"},
        {"{\"a\":{\"shape\":[],\"data_offsets\":[0,4]}}", 4, "has no known dtype"},
        {"{" T("a", "F32", "{}", "[0,4]") "}", 4, "has no shape"},
        {"{" T("a", "F32", "[-1]", "[0,4]") "}", 4, "not a whole number"},
        {"{" T("a", "F32", "[1.0]", "[0,4]") "}", 4, "not a whole number"},
        {"{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "more than 8 dimensions"},
        {"{" T("a", "F32", "[1]", "[0]") "}", 4, "has no data_offsets"},
        {"{" T("a", "F32", "[1]", "[0,-4]") "}", 4, "has no data_offsets"},
        {"{" T("a", "F32", "[1]", "[4,0]") "}", 4, "ends before it begins"},
        {"{" T("a", "F32", "[1]", "[0,4],\"x\":1") "}", 4, "does not know"},
        {"{" T("a", "F32", "[2]", "[0,4]") "}", 4, "needs 8 bytes, its data_offsets hold 4"},
        {"{" T("a", "F32", "[1]", "[0,8]") "}", 8, "needs 4 bytes, its data_offsets hold 8"},
        {"{" T("a", "F4", "[3]", "[0,2]") "}", 2, "not whole bytes"},
        {"{" T("a", "U8", "[4294967296,4294967296]", "[0,0]") "}", 0, "overflows"},
        {"{" T("a", "F64", "[2305843009213693952]", "[0,0]") "}", 0, "overflows"},
        {"{" T("a", "U8", "[2]", "[0,2]") "," T("b", "U8", "[2]", "[1,3]") "}", 3, "overlaps"},
        {"{" T("a", "U8", "[2]", "[0,2]") "," T("b", "U8", "[2]", "[0,2]") "}", 2, "overlaps"},
        {"{" T("a", "U8", "[2]", "[0,2]") "," T("b", "U8", "[2]", "[3,5]") "}", 5, "a hole"},
        {"{" T("a", "U8", "[2]", "[1,3]") "}", 3, "a hole"},
        {"{" T("a", "U8", "[2]", "[0,2]") "}", 1, "cut short"},
        {"{" T("a", "U8", "[2]", "[0,2]") "}", 3, "appended"},
        {"{}", 1, "appended"},
    };
    for (size_t i = 0; i < LK_COUNT(bad); i++) {
        write_raw(bad[i].header, bad[i].data_bytes);
        assert_refused(bad[i].reason);
    }
}

static void test_reader_refuses_lengths(void **state) {
    (void)state;
    write_file("", 0);
    assert_refused("0 bytes, at least 10");
    write_file("\x02\0\0\0\0\0\0\0{", 9);
    assert_refused("at least 10");
    write_file("\x01\0\0\0\0\0\0\0{}", 10);
    assert_refused("header length 1 at byte 0");
    write_file("\x03\0\0\0\0\0\0\0{}", 10);
    assert_refused("was it cut short?");
    write_file("\x01\xe1\xf5\x05\0\0\0\0{}", 10);  // 100,000,001
    assert_refused("header length 100000001");
    write_file("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
    assert_refused("header length 18446744073709551615");
    write_file("\x93NUMPY\x01\0v\0{'descr'", 18);
    assert_refused("not a safetensors file");
    lk_safetensors reader;
    lk_error error = {0};
    assert_int_equal(lk_safetensors_open(&reader, ops, "/tmp/lk_no_such_file", entries, 8, &error),
                     LK_NO_INPUT);
}

static void test_too_many_tensors(void **state) {
    (void)state;
    lk_safetensors reader;
    lk_error error = {0};
    write_raw("{" T("a", "U8", "[1]", "[0,1]") "," T("b", "U8", "[1]", "[1,2]") "}", 2);
    assert_int_equal(lk_safetensors_open(&reader, ops, path, entries, 1, &error), LK_BAD_DATA);
    assert_non_null(strstr(error.text, "more than 1 tensors"));
}

// --- saving: every operation goes wrong in turn --------------------------------------------------

static memory_files fs, prepared;
static const char old_text[] = "what was there", theirs[] = "of somebody else";
static char saved[512];
static size_t saved_bytes;

// A durable file of this text.
static void put_file(const char *name, const char *text) {
    const lk_file_ops memory = memory_files_ops(&fs);
    lk_error error = {0};
    int file;
    assert_int_equal(lk_file_create(&memory, name, &file, &error), LK_OK);
    assert_int_equal(lk_file_write_all(&memory, file, name, text, strlen(text), &error), LK_OK);
    assert_int_equal(lk_file_sync_close(&memory, file, name, &error), LK_OK);
    assert_int_equal(memory.sync_directory(&fs, "d"), 0);
}

static lk_status save_it(lk_error *error) {
    static float w[2][3] = {{1, 2, 3}, {4, 5, 6}};
    static uint8_t b[5] = {1, 2, 3, 4, 5};
    const lk_safetensors_tensor tensors[] = {{"w", LK_SAFETENSORS_F32, 2, {2, 3}, w},
                                             {"b", LK_SAFETENSORS_U8, 1, {5}, b}};
    const lk_safetensors_content content = {NULL, 0, tensors, 2};
    const lk_file_ops memory = memory_files_ops(&fs);
    size_t used;
    *error = (lk_error){0};
    assert_int_equal(lk_safetensors_header(&content, saved, sizeof saved, &used, NULL, error),
                     LK_OK);
    memcpy(saved + used, w, sizeof w);
    memcpy(saved + used + sizeof w, b, sizeof b);
    saved_bytes = used + sizeof w + sizeof b;
    return lk_safetensors_save(&content, saved, used, &memory, "d/out", error);
}

static bool holds(const char *name, const char *expected, size_t bytes) {
    const memory_file *file = memory_files_find(&fs, name);
    return file && file->bytes == bytes && memcmp(file->data, expected, bytes) == 0;
}

// What was there before; text NULL: nothing.
static bool is_as_before(const char *name, const char *text) {
    return text ? holds(name, text, strlen(text)) : !memory_files_find(&fs, name);
}

// One fault at one operation, then a crash (variant > 0) or none. False: there are fewer.
static bool try_save(fault kind, unsigned at, const char *before, unsigned variant,
                     unsigned *happened) {
    lk_error error;
    fs = prepared;
    memory_files_arm(&fs, kind, at);
    lk_status status = save_it(&error);
    bool reached = fs.operations >= at, silent = kind >= FAULT_CORRUPT_READ;
    if (kind == FAULT_SHORT || kind == FAULT_INTERRUPT) assert_int_equal(status, LK_OK);
    if (silent && fs.happened) assert_int_equal(status, LK_BAD_DATA);
    if (status != LK_OK) assert_true(fs.happened && error.text[0] != '\0');
    char temporary[64];
    snprintf(temporary, sizeof temporary, "d/out.%ld.tmp", (long)getpid());
    assert_true(is_as_before("d/out.tmp", theirs));
    if (kind != FAULT_CRASH) assert_true(is_as_before(temporary, NULL));
    *happened += fs.happened;
    if (variant) {
        memory_files_crash(&fs, (variant - 1) / CRASH_CONTENT_VARIANTS,
                           (variant - 1) % CRASH_CONTENT_VARIANTS);
    }
    bool whole = holds("d/out", saved, saved_bytes);
    assert_true(whole || (is_as_before("d/out", before) && status != LK_OK));
    return reached;
}

static void test_save_survives_any_fault(void **state) {
    (void)state;
    unsigned happened = 0;
    for (unsigned there = 0; there < 2; there++) {
        memory_files_start(&fs);
        put_file("d/out.tmp", theirs);
        const char *before = there ? old_text : NULL;
        if (before) put_file("d/out", before);
        prepared = fs;
        for (unsigned kind = FAULT_CRASH; kind < FAULT_COUNT; kind++) {
            unsigned variants = CRASH_NAME_VARIANTS * CRASH_CONTENT_VARIANTS;
            for (unsigned v = kind == FAULT_CRASH; v <= variants; v++) {
                for (unsigned at = 1; try_save((fault)kind, at, before, v, &happened);) at++;
            }
        }
    }
    print_message("%u crash and fault points tried\n", happened);
    assert_true(happened > 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_bytes),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_writer_refuses),
        cmocka_unit_test(test_reader_accepts),
        cmocka_unit_test(test_reader_refuses),
        cmocka_unit_test(test_reader_refuses_lengths),
        cmocka_unit_test(test_too_many_tensors),
        cmocka_unit_test(test_save_survives_any_fault),
    };
    int file = mkstemp(path);
    if (file < 0) return 1;
    close(file);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
