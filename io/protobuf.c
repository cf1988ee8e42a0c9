// protobuf.c - the wire format of protocol buffers: keys, varints, lengths that move their content.
#include "io/protobuf.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are written as they lie");

enum { VARINT_BYTES_MAX = 10 };

typedef enum wire_kind { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 } wire_kind;

static size_t format_varint(uint8_t out[VARINT_BYTES_MAX], uint64_t value) {
    size_t used = 0;
    while (value > 0x7f) {
        out[used++] = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    out[used++] = (uint8_t)value;
    return used;
}

// All or nothing: a piece that does not fit whole is only counted, as is all that comes after it.
void lk_protobuf_raw(lk_protobuf *w, const void *data, size_t bytes) {
    if (w->used <= w->capacity && bytes <= w->capacity - w->used && bytes) {
        memcpy(w->out + w->used, data, bytes);
    }
    w->used += bytes;
}

void lk_protobuf_varint(lk_protobuf *w, uint64_t value) {
    uint8_t text[VARINT_BYTES_MAX];
    lk_protobuf_raw(w, text, format_varint(text, value));
}

static void write_key(lk_protobuf *w, uint32_t field, wire_kind kind) {
    lk_assert(field >= 1 && field < 1u << 29);
    lk_protobuf_varint(w, (uint64_t)field << 3 | kind);
}

void lk_protobuf_uint(lk_protobuf *w, uint32_t field, uint64_t value) {
    write_key(w, field, WIRE_VARINT);
    lk_protobuf_varint(w, value);
}

void lk_protobuf_int(lk_protobuf *w, uint32_t field, int64_t value) {
    lk_protobuf_uint(w, field, (uint64_t)value);
}

void lk_protobuf_float(lk_protobuf *w, uint32_t field, float value) {
    write_key(w, field, WIRE_32);
    lk_protobuf_raw(w, &value, sizeof value);
}

void lk_protobuf_double(lk_protobuf *w, uint32_t field, double value) {
    write_key(w, field, WIRE_64);
    lk_protobuf_raw(w, &value, sizeof value);
}

void lk_protobuf_bytes(lk_protobuf *w, uint32_t field, const void *data, size_t bytes) {
    write_key(w, field, WIRE_BYTES);
    lk_protobuf_varint(w, bytes);
    lk_protobuf_raw(w, data, bytes);
}

void lk_protobuf_string(lk_protobuf *w, uint32_t field, const char *text) {
    lk_protobuf_bytes(w, field, text, strlen(text));
}

void lk_protobuf_doubles(lk_protobuf *w, uint32_t field, const double *values, size_t count) {
    lk_protobuf_bytes(w, field, values, count * sizeof *values);
}

void lk_protobuf_ints(lk_protobuf *w, uint32_t field, const int64_t *values, size_t count) {
    size_t begun = lk_protobuf_begin(w, field);
    for (size_t i = 0; i < count; i++) lk_protobuf_varint(w, (uint64_t)values[i]);
    lk_protobuf_end(w, begun);
}

// The place of the content's first byte, behind one byte for its length.
size_t lk_protobuf_begin(lk_protobuf *w, uint32_t field) {
    write_key(w, field, WIRE_BYTES);
    lk_protobuf_raw(w, "", 1);
    return w->used;
}

void lk_protobuf_end(lk_protobuf *w, size_t begun) {
    uint8_t text[VARINT_BYTES_MAX];
    lk_assert(begun >= 1 && begun <= w->used);
    const size_t content = w->used - begun, length = format_varint(text, content);
    w->used += length - 1;
    if (!lk_protobuf_fits(w)) return;
    if (length > 1) memmove(w->out + begun - 1 + length, w->out + begun, content);
    memcpy(w->out + begun - 1, text, length);
}
