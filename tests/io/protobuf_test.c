// protobuf_test.c - the writer's bytes against those that the format's own documentation and other
// encoders give, its measuring, and that nothing is written where there is no room.
#include "io/protobuf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
// cmocka needs the four above it.
#include <cmocka.h>

static void expect(const lk_protobuf *w, const void *bytes, size_t count) {
    assert_true(lk_protobuf_fits(w));
    assert_int_equal(w->used, count);
    assert_memory_equal(w->out, bytes, count);
}

// The documentation's own examples: {a = 150}, {b = "testing"}, {c = {a = 150}}, {f = [3, 270,
// 86942]}.
static void test_examples_of_the_format(void **state) {
    (void)state;
    static const int64_t three[] = {3, 270, 86942};
    uint8_t out[64];
    lk_protobuf w = {out, sizeof out, 0};
    lk_protobuf_uint(&w, 1, 150);
    expect(&w, "\x08\x96\x01", 3);
    w.used = 0;
    lk_protobuf_string(&w, 2, "testing");
    expect(&w, "\x12\x07testing", 9);
    w.used = 0;
    size_t begun = lk_protobuf_begin(&w, 3);
    lk_protobuf_uint(&w, 1, 150);
    lk_protobuf_end(&w, begun);
    expect(&w, "\x1a\x03\x08\x96\x01", 5);
    w.used = 0;
    lk_protobuf_ints(&w, 6, three, 3);
    expect(&w, "\x32\x06\x03\x8e\x02\x9e\xa7\x05", 8);
}

// TensorBoard's event of step 7, loss 0.25, at 1.5 s.
static void test_event(void **state) {
    (void)state;
    uint8_t out[64];
    lk_protobuf w = {out, sizeof out, 0};
    lk_protobuf_double(&w, 1, 1.5);
    lk_protobuf_int(&w, 2, 7);
    size_t summary = lk_protobuf_begin(&w, 5), value = lk_protobuf_begin(&w, 1);
    lk_protobuf_string(&w, 1, "loss");
    lk_protobuf_float(&w, 2, 0.25f);
    lk_protobuf_end(&w, value);
    lk_protobuf_end(&w, summary);
    expect(&w, "\x09\0\0\0\0\0\0\xf8\x3f\x10\x07\x2a\x0d\x0a\x0b\x0a\x04loss\x15\0\0\x80\x3e", 26);
}

static void test_numbers_at_their_limits(void **state) {
    (void)state;
    static const double two[] = {0.0, -2.0};
    uint8_t out[64];
    lk_protobuf w = {out, sizeof out, 0};
    lk_protobuf_int(&w, 1, -1);
    expect(&w, "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11);
    w.used = 0;
    lk_protobuf_uint(&w, 15, 127);
    lk_protobuf_uint(&w, 16, 128);
    lk_protobuf_uint(&w, 1, 0);
    expect(&w, "\x78\x7f\x80\x01\x80\x01\x08\0", 8);
    w.used = 0;
    lk_protobuf_uint(&w, (1u << 29) - 1, UINT64_MAX);
    expect(&w, "\xf8\xff\xff\xff\x0f\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 15);
    w.used = 0;
    lk_protobuf_doubles(&w, 6, two, 2);
    expect(&w, "\x32\x10\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xc0", 18);
    w.used = 0;
    lk_protobuf_bytes(&w, 2, NULL, 0);
    expect(&w, "\x12\0", 2);
}

// Messages of every length around those where the length takes one byte more, one in another.
static void write_nested(lk_protobuf *w, const uint8_t *content, size_t bytes) {
    size_t outer = lk_protobuf_begin(w, 7), inner = lk_protobuf_begin(w, 1);
    lk_protobuf_bytes(w, 9, content, bytes);
    lk_protobuf_end(w, inner);
    lk_protobuf_uint(w, 2, 5);
    lk_protobuf_end(w, outer);
    lk_protobuf_uint(w, 3, 6);
}

static uint64_t take_varint(const uint8_t **at) {
    uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
        value |= (uint64_t)(**at & 0x7f) << shift;
        if (!(*(*at)++ & 0x80)) return value;
    }
}

static void read_nested(const uint8_t *at, const uint8_t *end, const uint8_t *content,
                        size_t bytes) {
    assert_int_equal(take_varint(&at), 7 << 3 | 2);
    uint64_t length = take_varint(&at);
    const uint8_t *outer_end = at + length;
    assert_int_equal(take_varint(&at), 1 << 3 | 2);
    length = take_varint(&at);
    const uint8_t *inner_end = at + length;
    assert_int_equal(take_varint(&at), 9 << 3 | 2);
    assert_int_equal(take_varint(&at), bytes);
    assert_memory_equal(at, content, bytes);
    assert_ptr_equal(at + bytes, inner_end);
    assert_memory_equal(inner_end, "\x10\x05", 2);
    assert_ptr_equal(inner_end + 2, outer_end);
    assert_memory_equal(outer_end, "\x18\x06", 2);
    assert_ptr_equal(outer_end + 2, end);
}

static void test_lengths_and_measuring(void **state) {
    (void)state;
    enum { BYTES_MAX = 16500 };
    uint8_t *content = malloc(BYTES_MAX), *out = malloc(BYTES_MAX + 64);
    assert_true(content && out);
    for (size_t i = 0; i < BYTES_MAX; i++) content[i] = (uint8_t)(i * 7);
    for (size_t bytes = 0; bytes < BYTES_MAX; bytes += bytes < 300 || bytes > 16300 ? 1 : 500) {
        lk_protobuf measured = {NULL, 0, 0}, w = {out, BYTES_MAX + 64, 0};
        write_nested(&measured, content, bytes);
        write_nested(&w, content, bytes);
        assert_int_equal(measured.used, w.used);
        assert_true(lk_protobuf_fits(&w) && !lk_protobuf_fits(&measured));
        read_nested(out, out + w.used, content, bytes);
    }
    free(content);
    free(out);
}

// Every capacity below what is wanted: told, and no byte behind the buffer touched.
static void test_no_room(void **state) {
    (void)state;
    static const uint8_t content[140] = {1, 2, 3};
    uint8_t out[256];
    lk_protobuf whole = {NULL, 0, 0};
    write_nested(&whole, content, sizeof content);
    for (size_t capacity = 0; capacity <= whole.used; capacity++) {
        memset(out, 0xee, sizeof out);
        lk_protobuf w = {out, capacity, 0};
        write_nested(&w, content, sizeof content);
        assert_int_equal(w.used, whole.used);
        assert_int_equal(lk_protobuf_fits(&w), capacity == whole.used);
        for (size_t i = capacity; i < sizeof out; i++) assert_int_equal(out[i], 0xee);
    }
    read_nested(out, out + whole.used, content, sizeof content);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples_of_the_format), cmocka_unit_test(test_event),
        cmocka_unit_test(test_numbers_at_their_limits),
        cmocka_unit_test(test_lengths_and_measuring), cmocka_unit_test(test_no_room)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
