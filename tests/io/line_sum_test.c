// line_sum_test.c - the checksum of a log's line: what is put there is the CRC-32 that others
// compute, every changed byte is seen, and it does not matter in which pieces a line comes.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "io/line_sum.h"

enum { LINE_BYTES = 9000 };

// Bit by bit, as the format's page says it.
static uint32_t plain_crc(const char *bytes, size_t count) {
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < count; i++) {
        crc ^= (uint8_t)bytes[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
    }
    return ~crc;
}

// {"step":STEP,"x":"aaa.."} with `filling` letters, and its checksum.
static size_t make_line(char out[LINE_BYTES], uint32_t step, size_t filling) {
    size_t n = (size_t)snprintf(out, LINE_BYTES, "{\"step\":%u,\"x\":\"", step);
    for (size_t i = 0; i < filling; i++) out[n++] = (char)('a' + (step + i) % 26);
    n += (size_t)snprintf(out + n, LINE_BYTES - n, "\"}");
    return lk_line_sum_put(out, n, LINE_BYTES);
}

static void test_known_answer(void **state) {
    (void)state;
    char line[100] = "{\"step\":100}", wanted[100];
    assert_int_equal(plain_crc("123456789", 9), 0xcbf43926);
    snprintf(wanted, sizeof wanted, "{\"step\":100,\"crc32\":\"%08x\"}", plain_crc(line, 11));
    assert_int_equal(lk_line_sum_put(line, strlen(line), sizeof line), strlen(wanted));
    assert_string_equal(line, wanted);
}

static void expect(lk_line_sums *s, bool has, bool wrong) {
    lk_line_sums_end(s);
    assert_int_equal(s->has, has);
    assert_int_equal(s->wrong, wrong);
}

static void test_any_pieces(void **state) {
    (void)state;
    char line[LINE_BYTES];
    for (size_t filling = 0; filling < 30; filling++) {
        const size_t bytes = make_line(line, 7, filling);
        for (size_t piece = 1; piece <= bytes; piece++) {
            lk_line_sums s;
            lk_line_sums_start(&s);
            for (int again = 0; again < 2; again++) {
                for (size_t at = 0; at < bytes; at += piece) {
                    lk_line_sums_feed(&s, line + at, LK_MIN(piece, bytes - at));
                }
                expect(&s, true, false);
            }
            assert_int_equal(s.lines, 2);
            assert_int_equal(s.without, 0);
        }
    }
}

static void test_every_changed_byte(void **state) {
    (void)state;
    char first[LINE_BYTES], line[LINE_BYTES];
    const size_t before = make_line(first, 1, 10), bytes = make_line(line, 2, 40);
    for (size_t at = 0; at < bytes; at++) {
        for (int bit = 0; bit < 8; bit++) {
            lk_line_sums s;
            lk_error error = {.status = LK_OK};
            lk_line_sums_start(&s);
            assert_int_equal(lk_line_sums_check(&s, "log", first, before, &error), LK_OK);
            line[at] = (char)(line[at] ^ 1 << bit);
            assert_int_equal(lk_line_sums_check(&s, "log", line, bytes, &error), LK_BAD_DATA);
            assert_non_null(strstr(error.text, "log: line 2: found "));
            line[at] = (char)(line[at] ^ 1 << bit);
        }
    }
}

// An older version's lines have none. After one that has, none may be without.
static void test_lines_without(void **state) {
    (void)state;
    static const char plain[] = "{\"step\":1}";
    char line[LINE_BYTES];
    lk_line_sums s;
    const size_t bytes = make_line(line, 2, 20);
    lk_line_sums_start(&s);
    lk_line_sums_feed(&s, plain, strlen(plain));
    expect(&s, false, false);
    lk_line_sums_feed(&s, line, bytes);
    expect(&s, true, false);
    expect(&s, false, true);  // an empty line is not the one before it
    lk_line_sums_feed(&s, plain, strlen(plain));
    expect(&s, false, true);
    assert_int_equal(s.wanted, plain_crc(plain, strlen(plain) - 1));
    assert_int_equal(s.lines, 4);
    assert_int_equal(s.without, 3);
    // Digits are written in one way.
    lk_line_sums_start(&s);
    for (size_t i = bytes - 10; i < bytes - 2; i++) line[i] = 'A';
    lk_line_sums_feed(&s, line, bytes);
    expect(&s, false, false);
}

// Without a checksum it must at least be a line of a log.
static void test_foreign_lines(void **state) {
    (void)state;
    static const struct {
        const char *line;
        bool foreign;
    } cases[] = {{"{\"step\":1}", false},
                 {"{\"step\":18446744073709551615,\"x\":{}}", false},
                 {"{\"step\":7,\"x\":1", true},
                 {"{\"step\":,\"x\":1}", true},
                 {"{\"step\":184467440737095516150,\"x\":1}", true},
                 {"{\"step\":7x}", true},
                 {"{\"steps\":7}", true},
                 {"{\"step\":", true},
                 {"hello", true},
                 {"}", true},
                 {"", true}};
    for (size_t i = 0; i < LK_COUNT(cases); i++) {
        const size_t bytes = strlen(cases[i].line);
        for (size_t piece = 1; piece < 40; piece++) {
            lk_line_sums s;
            lk_error error = {.status = LK_OK};
            lk_line_sums_start(&s);
            for (int again = 0; again < 2; again++) {
                for (size_t at = 0; at < bytes; at += piece)
                    lk_line_sums_feed(&s, cases[i].line + at, LK_MIN(piece, bytes - at));
                expect(&s, false, false);
                assert_int_equal(s.foreign, cases[i].foreign);
            }
            assert_int_equal(lk_line_sums_fail(&s, "log", &error),
                             cases[i].foreign ? LK_BAD_DATA : LK_OK);
            if (cases[i].foreign)
                assert_non_null(strstr(error.text, "log: line 2: found a line without"));
        }
    }
}

static void test_files(void **state) {
    (void)state;
    static char line[LINE_BYTES];
    char path[] = "/tmp/lockstep_line_sum_XXXXXX";
    FILE *f = fdopen(mkstemp(path), "w+");
    lk_line_sums s;
    lk_error error = {.status = LK_OK};
    long last = 0;
    assert_non_null(f);
    for (uint32_t step = 1; step <= 40; step++) {  // longer and shorter than a piece of 4,096
        size_t bytes = make_line(line, step, step * 997 % 8800);
        last = ftell(f);
        assert_int_equal(fwrite(line, 1, bytes, f), bytes);
        fputc('\n', f);
    }
    fputs("{\"step\":41,\"torn", f);  // by a power cut: no whole line
    fflush(f);
    assert_int_equal(lk_line_sums_file(&lk_file_ops_posix, path, &s, &error), LK_OK);
    assert_int_equal(s.lines, 40);
    assert_int_equal(s.without, 0);
    fseek(f, last + 9, SEEK_SET);
    fputc('9', f);
    fclose(f);
    assert_int_equal(lk_line_sums_file(&lk_file_ops_posix, path, &s, &error), LK_BAD_DATA);
    assert_non_null(strstr(error.text, "line 40: found crc32 "));
    unlink(path);
    error.status = LK_OK;
    assert_int_equal(lk_line_sums_file(&lk_file_ops_posix, path, &s, &error), LK_OK);
    assert_int_equal(s.lines, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answer),       cmocka_unit_test(test_any_pieces),
        cmocka_unit_test(test_every_changed_byte), cmocka_unit_test(test_lines_without),
        cmocka_unit_test(test_foreign_lines),      cmocka_unit_test(test_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
