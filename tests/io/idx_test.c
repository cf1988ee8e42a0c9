// Tests of io/idx.h: every way in which a file can fail to be what it is said to be.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "io/idx.h"

static const uint8_t images_2x3x4[16 + 24] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4};
static const uint8_t colour_1x2x2x3[20 + 12] = {0, 0, 8, 4, 0, 0, 0, 1, 0, 0,
                                                0, 2, 0, 0, 0, 2, 0, 0, 0, 3};
static const uint8_t labels_5[8 + 5] = {0, 0, 8, 1, 0, 0, 0, 5, 0, 9, 3, 10, 255};

static void good(const uint8_t *bytes, size_t size, lk_idx_kind kind, lk_idx *idx) {
    lk_error error = {0};
    assert_int_equal(lk_idx_parse(bytes, size, size, kind, "file", idx, &error), LK_OK);
    assert_int_equal(error.status, LK_OK);
}

// The parse fails with LK_BAD_DATA and says exactly `text`.
static void bad(const uint8_t *bytes, size_t size, lk_idx_kind kind, const char *text) {
    lk_error error = {0};
    lk_idx idx;
    assert_int_equal(lk_idx_parse(bytes, size, size, kind, "file", &idx, &error), LK_BAD_DATA);
    assert_string_equal(error.text, text);
}

static void test_good_files(void **state) {
    (void)state;
    lk_idx idx;
    good(images_2x3x4, sizeof images_2x3x4, LK_IDX_IMAGES, &idx);
    assert_int_equal(idx.count, 2);
    assert_int_equal(idx.height, 3);
    assert_int_equal(idx.width, 4);
    assert_int_equal(idx.channels, 1);
    assert_int_equal(idx.header_bytes, 16);
    assert_int_equal(idx.example_bytes, 12);
    assert_int_equal(idx.data_bytes, 24);
    good(colour_1x2x2x3, sizeof colour_1x2x2x3, LK_IDX_IMAGES, &idx);
    assert_int_equal(idx.channels, 3);
    assert_int_equal(idx.header_bytes, 20);
    assert_int_equal(idx.example_bytes, 12);
    good(labels_5, sizeof labels_5, LK_IDX_LABELS, &idx);
    assert_int_equal(idx.count, 5);
    assert_int_equal(idx.example_bytes, 1);
}

static void test_floats(void **state) {
    (void)state;
    const uint8_t vectors[12 + 24] = {0, 0, 0x0d, 2, 0, 0, 0, 2, 0, 0, 0, 3};
    // 2^31 x 2^30 x 2 values fit in 64 bits, their bytes do not.
    const uint8_t wraps[16] = {0, 0, 0x0d, 3, 0x80, 0, 0, 0, 0x40, 0, 0, 0, 0, 0, 0, 2};
    lk_idx idx;
    good(vectors, sizeof vectors, LK_IDX_IMAGES, &idx);
    assert_int_equal(idx.type, LK_IDX_F32);
    assert_int_equal(idx.count, 2);
    assert_int_equal(idx.height, 3);
    assert_int_equal(idx.width, 1);
    assert_int_equal(idx.example_bytes, 12);
    assert_int_equal(idx.data_bytes, 24);
    bad(vectors, sizeof vectors - 1, LK_IDX_IMAGES, "file: byte 35: truncated: found 35 bytes, "
        "wanted 36 (header 12 + 2 x 3 x 1 x 1 x 4 bytes); fetch it again");
    bad(wraps, 16, LK_IDX_IMAGES, "file: byte 4: found dimensions 2147483648 x 1073741824 x 2 x 1, "
        "more than 2^64 bytes; wanted a file of 16");
}

static void test_the_header_is_enough(void **state) {
    (void)state;
    const uint8_t mnist[20] = {0, 0, 8, 3, 0, 0, 0xea, 0x60, 0, 0, 0, 28, 0, 0, 0, 28};
    lk_error error = {0};
    lk_idx idx;
    assert_int_equal(lk_idx_parse(mnist, 20, 47040016, LK_IDX_IMAGES, "f", &idx, &error), LK_OK);
    assert_int_equal(idx.count, 60000);
    assert_int_equal(idx.data_bytes, 47040000);
}

static void test_sizes(void **state) {
    (void)state;
    uint8_t longer[sizeof images_2x3x4 + 1] = {0};
    memcpy(longer, images_2x3x4, sizeof images_2x3x4);
    bad(longer, 0, LK_IDX_IMAGES,
        "file: byte 0: empty: found 0 bytes, wanted an IDX file of images; fetch it again");
    bad(longer, 3, LK_IDX_IMAGES, "file: byte 3: truncated: found 3 bytes, wanted the 4 that begin "
        "an IDX file; fetch it again");
    bad(longer, 15, LK_IDX_IMAGES,
        "file: byte 15: truncated: found 15 bytes, wanted a header of 16; fetch it again");
    bad(longer, sizeof longer - 2, LK_IDX_IMAGES, "file: byte 39: truncated: found 39 bytes, "
        "wanted 40 (header 16 + 2 x 3 x 4 x 1); fetch it again");
    bad(longer, sizeof longer, LK_IDX_IMAGES, "file: byte 40: too long: found 41 bytes, wanted 40 "
        "(header 16 + 2 x 3 x 4 x 1); fetch it again");
    lk_idx idx;
    for (size_t size = 0; size < sizeof longer; size++) {  // no other size passes
        lk_error error = {0};
        lk_status status = lk_idx_parse(longer, size, size, LK_IDX_IMAGES, "f", &idx, &error);
        assert_int_equal(status, size == sizeof images_2x3x4 ? LK_OK : LK_BAD_DATA);
    }
}

static void test_bad_headers(void **state) {
    (void)state;
    const uint8_t five[4] = {0, 0, 8, 5};
    const uint8_t gzip[8] = {0x1f, 0x8b, 8}, text[4] = {'P', 'N', 'G', ' '};
    const uint8_t floats[8] = {0, 0, 0x0d, 1}, strange[8] = {0, 0, 0x77, 3};
    const uint8_t empty[8] = {0, 0, 8, 1};
    const uint8_t none[16] = {0, 0, 8, 3, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 4};
    const uint8_t huge[20] = {0,    0,    8,    4,    0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
                              0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    // 2^31 x 2^31 x 2 x 2 = 2^64: would be 0 after overflow, and so just the header.
    const uint8_t wraps[20] = {0, 0, 8, 4, 0x80, 0, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 2};
    bad(gzip, 8, LK_IDX_LABELS,
        "file: byte 0: found 1f 8b (gzip), wanted 00 00 (IDX); unpack it first");
    bad(text, 4, LK_IDX_IMAGES, "file: byte 0: found 50 4e, wanted 00 00; this is no IDX file");
    bad(floats, 8, LK_IDX_LABELS,
        "file: byte 2: found type 0d (f32), wanted 08 (u8) or 0b (16 bits); convert the values");
    bad(strange, 8, LK_IDX_IMAGES, "file: byte 2: found type 77 (no IDX type), wanted 08 (u8) or "
        "0d (f32); convert the values");
    bad(five, 4, LK_IDX_IMAGES, "file: byte 3: found 5 dimensions, wanted 2 to 4 (images)");
    bad(five, 4, LK_IDX_LABELS, "file: byte 3: found 5 dimensions, wanted 1 (labels) or "
        "2 (sequences of them)");
    bad(none, 16, LK_IDX_IMAGES, "file: byte 8: dimension 1: found 0, wanted 1 or more");
    bad(empty, 8, LK_IDX_LABELS, "file: byte 4: dimension 0: found 0, wanted 1 or more");
    bad(huge, 20, LK_IDX_IMAGES, "file: byte 4: found dimensions 4294967295 x 4294967295 x "
        "4294967295 x 4294967295, more than 2^64 bytes; wanted a file of 20");
    bad(wraps, 20, LK_IDX_IMAGES, "file: byte 4: found dimensions 2147483648 x 2147483648 x 2 x 2, "
        "more than 2^64 bytes; wanted a file of 20");
}

static void test_images_and_labels_exchanged(void **state) {
    (void)state;
    bad(images_2x3x4, sizeof images_2x3x4, LK_IDX_LABELS, "file: byte 3: found 3 dimensions "
        "(images), wanted 1 (labels); are images and labels exchanged?");
    bad(labels_5, sizeof labels_5, LK_IDX_IMAGES, "file: byte 3: found 1 dimension (labels), "
        "wanted 2 to 4 (images); are images and labels exchanged?");
}

static void test_labels_and_counts(void **state) {
    (void)state;
    lk_error error = {0};
    assert_int_equal(lk_idx_check_labels(labels_5 + 8, 3, LK_IDX_U8, 10, 8, "file", &error), LK_OK);
    assert_int_equal(lk_idx_check_labels(labels_5 + 8, 5, LK_IDX_U8, 256, 8, "file", &error),
                     LK_OK);
    assert_int_equal(lk_idx_check_labels(labels_5 + 8, 5, LK_IDX_U8, 10, 8, "file", &error),
                     LK_BAD_DATA);
    assert_string_equal(error.text,
                        "file: byte 11: label 3: found 10, wanted 0 to 9 (10 classes)");
    error = (lk_error){0};
    assert_int_equal(lk_idx_check_counts(7, "i", 7, "l", &error), LK_OK);
    assert_int_equal(lk_idx_check_counts(60000, "i", 10000, "l", &error), LK_BAD_DATA);
    assert_string_equal(error.text,
                        "l: byte 4: found 10000 labels, wanted 60000, one for each image of i");
}

// Of two examples of three frames at most and up to three labels.
static const uint8_t sequences_2x5[12 + 10] = {0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 5,
                                               0, 3, 1, 2, 9, 0, 1, 0, 0, 0};

static void bad_sequence(uint32_t at, uint8_t byte, const char *text) {
    uint8_t row[10];
    lk_error error = {0};
    memcpy(row, sequences_2x5 + 12, 10);
    row[at] = byte;
    assert_int_equal(lk_idx_check_sequences(row, 2, 5, LK_IDX_U8, 3, 10, 12, "file", &error),
                     LK_BAD_DATA);
    assert_string_equal(error.text, text);
}

static void test_sequences(void **state) {
    (void)state;
    lk_idx idx;
    lk_error error = {0};
    good(sequences_2x5, sizeof sequences_2x5, LK_IDX_LABELS, &idx);
    assert_int_equal(idx.count, 2);
    assert_int_equal(idx.example_bytes, 5);
    assert_int_equal(lk_idx_check_sequences(sequences_2x5 + 12, 2, 5, LK_IDX_U8, 3, 10, 12, "file",
                                            &error),
                     LK_OK);
    bad_sequence(1, 4, "file: byte 12: example 0: found 4 frames, wanted 1 to 3, the rows of an "
                       "input");
    bad_sequence(0, 1, "file: byte 12: example 0: found 259 frames, wanted 1 to 3, the rows of an "
                       "input");
    bad_sequence(6, 0, "file: byte 17: example 1: found 0 frames, wanted 1 to 3, the rows of an "
                       "input");
    bad_sequence(4, 10, "file: byte 16: example 0: found label 10, wanted 1 to 9, and zeros behind "
                        "the last");
    bad_sequence(3, 0, "file: byte 16: example 0: found label 9 behind a 0, wanted 1 to 9, and "
                       "zeros behind the last");
    assert_int_equal(lk_idx_check_sequences(sequences_2x5 + 12, 5, 2, LK_IDX_U8, 3, 10, 12, "file",
                                            &error),
                     LK_BAD_DATA);
    assert_string_equal(error.text,
                        "file: byte 8: found 2 bytes of labels an example, wanted two that say how "
                        "many frames it has, and one or more of labels");
}

// 0, 258, 65,535; and two examples of up to two labels.
static const uint8_t wide_3[8 + 6] = {0, 0, 0x0b, 1, 0, 0, 0, 3, 0, 0, 1, 2, 255, 255};
static const uint8_t wide_2x3[12 + 12] = {0, 0, 0x0b, 2, 0, 0, 0, 2, 0, 0, 0, 3,
                                          0, 3, 1, 2, 3, 0, 0, 1, 0, 9, 0, 0};

static void test_labels_of_two_bytes(void **state) {
    (void)state;
    lk_idx idx;
    lk_error error = {0};
    good(wide_3, sizeof wide_3, LK_IDX_LABELS, &idx);
    assert_int_equal(idx.type, LK_IDX_U16);
    assert_int_equal(idx.count, 3);
    assert_int_equal(idx.example_bytes, 2);
    assert_int_equal(idx.data_bytes, 6);
    const uint32_t wanted[] = {0, 258, 65535};
    for (uint32_t i = 0; i < 3; i++) {
        uint8_t bytes[2];
        assert_int_equal(lk_idx_label(wide_3 + 8, i, LK_IDX_U16), wanted[i]);
        assert_int_equal(lk_idx_put_label(bytes, wanted[i], LK_IDX_U16), 2);
        assert_memory_equal(bytes, wide_3 + 8 + 2 * i, 2);
    }
    assert_int_equal(lk_idx_check_labels(wide_3 + 8, 3, LK_IDX_U16, 65536, 8, "file", &error),
                     LK_OK);
    assert_int_equal(lk_idx_check_labels(wide_3 + 8, 2, LK_IDX_U16, 259, 8, "file", &error), LK_OK);
    assert_int_equal(lk_idx_check_labels(wide_3 + 8, 3, LK_IDX_U16, 258, 8, "file", &error),
                     LK_BAD_DATA);
    assert_string_equal(error.text,
                        "file: byte 10: label 1: found 258, wanted 0 to 257 (258 classes)");
    bad(wide_3, 13, LK_IDX_LABELS, "file: byte 13: truncated: found 13 bytes, wanted 14 (header 8 "
        "+ 3 x 1 x 1 x 1 x 2 bytes); fetch it again");
    bad(wide_2x3, sizeof wide_2x3, LK_IDX_IMAGES,
        "file: byte 2: found type 0b (i16), wanted 08 (u8) or 0d (f32); convert the values");
    error = (lk_error){0};
    for (uint32_t part = 0; part < 2; part++) {
        const uint8_t *bytes = part ? wide_2x3 : wide_3;
        assert_int_equal(lk_idx_parse_header(bytes, 14, "file", &idx, &error), LK_OK);
        assert_int_equal(idx.type, LK_IDX_U16);
    }
}

static void test_sequences_of_two_bytes(void **state) {
    (void)state;
    lk_idx idx;
    lk_error error = {0};
    uint8_t row[12];
    memcpy(row, wide_2x3 + 12, 12);
    good(wide_2x3, sizeof wide_2x3, LK_IDX_LABELS, &idx);
    assert_int_equal(idx.height, 3);
    assert_int_equal(idx.example_bytes, 6);
    assert_int_equal(lk_idx_row_numbers(6, LK_IDX_U16), 3);
    assert_int_equal(lk_idx_row_numbers(5, LK_IDX_U8), 4);
    const uint32_t wanted[] = {3, 258, 768};
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(lk_idx_in_row(row, i, LK_IDX_U16), wanted[i]);
    assert_int_equal(lk_idx_check_sequences(row, 2, 6, LK_IDX_U16, 3, 769, 12, "file", &error),
                     LK_OK);
    assert_int_equal(lk_idx_check_sequences(row, 2, 6, LK_IDX_U16, 3, 768, 12, "file", &error),
                     LK_BAD_DATA);
    assert_string_equal(error.text, "file: byte 16: example 0: found label 768, wanted 1 to 767, "
                        "and zeros behind the last");
    row[8] = row[9] = 0, row[11] = 1, error = (lk_error){0};
    assert_int_equal(lk_idx_check_sequences(row, 2, 6, LK_IDX_U16, 3, 769, 12, "file", &error),
                     LK_BAD_DATA);
    assert_string_equal(error.text, "file: byte 22: example 1: found label 1 behind a 0, wanted 1 "
                        "to 768, and zeros behind the last");
}

static void test_written_headers_read_back(void **state) {
    (void)state;
    uint8_t header[LK_IDX_HEADER_BYTES_MAX];
    lk_idx idx;
    good(images_2x3x4, sizeof images_2x3x4, LK_IDX_IMAGES, &idx);
    assert_int_equal(lk_idx_write_header(&idx, header), 16);
    assert_memory_equal(header, images_2x3x4, 16);
    good(colour_1x2x2x3, sizeof colour_1x2x2x3, LK_IDX_IMAGES, &idx);
    assert_int_equal(lk_idx_write_header(&idx, header), 20);
    assert_memory_equal(header, colour_1x2x2x3, 20);
    good(labels_5, sizeof labels_5, LK_IDX_LABELS, &idx);
    assert_int_equal(lk_idx_write_header(&idx, header), 8);
    assert_memory_equal(header, labels_5, 8);
    good(sequences_2x5, sizeof sequences_2x5, LK_IDX_LABELS, &idx);
    assert_int_equal(lk_idx_write_header(&idx, header), 12);
    assert_memory_equal(header, sequences_2x5, 12);
    good(wide_3, sizeof wide_3, LK_IDX_LABELS, &idx);
    assert_int_equal(lk_idx_write_header(&idx, header), 8);
    assert_memory_equal(header, wide_3, 8);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_labels_of_two_bytes),
        cmocka_unit_test(test_sequences_of_two_bytes),
        cmocka_unit_test(test_floats), cmocka_unit_test(test_good_files),
        cmocka_unit_test(test_the_header_is_enough),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_bad_headers),
        cmocka_unit_test(test_images_and_labels_exchanged),
        cmocka_unit_test(test_labels_and_counts),
        cmocka_unit_test(test_sequences),
        cmocka_unit_test(test_written_headers_read_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
