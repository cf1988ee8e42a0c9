// protobuf.c - nanopb's low-level encoder over a buffer that may be too small or none, and messages
// whose length moves their content.
#include "io/protobuf.h"

#include <pb_encode.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are written as they lie");

enum { VARINT_BYTES_MAX = 10 };

// All or nothing: a piece that does not fit whole is only counted, as is all that comes after it.
void lk_protobuf_raw(lk_protobuf *w, const void *data, size_t bytes) {
    if (w->used <= w->capacity && bytes <= w->capacity - w->used && bytes) {
        memcpy(w->out + w->used, data, bytes);
    }
    w->used += bytes;
}

// --- nanopb's encoder, which writes by it --------------------------------------------------------

static bool take(pb_ostream_t *stream, const pb_byte_t *bytes, size_t count) {
    lk_protobuf_raw(stream->state, bytes, count);
    return true;
}

static pb_ostream_t stream_of(lk_protobuf *w) {
    return (pb_ostream_t){.callback = take, .state = w, .max_size = SIZE_MAX};
}

// It fails where a stream does or is full, which this one never is.
static void wrote(bool all) { lk_assert(all); }

static void write_tag(pb_ostream_t *s, uint32_t field, pb_wire_type_t kind) {
    lk_assert(field >= 1 && field < 1u << 29);
    wrote(pb_encode_tag(s, kind, field));
}

void lk_protobuf_varint(lk_protobuf *w, uint64_t value) {
    pb_ostream_t s = stream_of(w);
    wrote(pb_encode_varint(&s, value));
}

void lk_protobuf_uint(lk_protobuf *w, uint32_t field, uint64_t value) {
    pb_ostream_t s = stream_of(w);
    write_tag(&s, field, PB_WT_VARINT);
    wrote(pb_encode_varint(&s, value));
}

void lk_protobuf_int(lk_protobuf *w, uint32_t field, int64_t value) {
    lk_protobuf_uint(w, field, (uint64_t)value);
}

void lk_protobuf_float(lk_protobuf *w, uint32_t field, float value) {
    pb_ostream_t s = stream_of(w);
    write_tag(&s, field, PB_WT_32BIT);
    wrote(pb_encode_fixed32(&s, &value));
}

void lk_protobuf_double(lk_protobuf *w, uint32_t field, double value) {
    pb_ostream_t s = stream_of(w);
    write_tag(&s, field, PB_WT_64BIT);
    wrote(pb_encode_fixed64(&s, &value));
}

void lk_protobuf_bytes(lk_protobuf *w, uint32_t field, const void *data, size_t bytes) {
    pb_ostream_t s = stream_of(w);
    write_tag(&s, field, PB_WT_STRING);
    wrote(pb_encode_string(&s, data, bytes));
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

// --- messages whose length is known behind them --------------------------------------------------

// The place of the content's first byte, behind one byte for its length.
size_t lk_protobuf_begin(lk_protobuf *w, uint32_t field) {
    pb_ostream_t s = stream_of(w);
    write_tag(&s, field, PB_WT_STRING);
    lk_protobuf_raw(w, "", 1);
    return w->used;
}

void lk_protobuf_end(lk_protobuf *w, size_t begun) {
    uint8_t text[VARINT_BYTES_MAX];
    pb_ostream_t s = pb_ostream_from_buffer(text, sizeof text);
    lk_assert(begun >= 1 && begun <= w->used);
    const size_t content = w->used - begun;
    wrote(pb_encode_varint(&s, content));
    const size_t length = s.bytes_written;
    w->used += length - 1;
    if (!lk_protobuf_fits(w)) return;
    if (length > 1) memmove(w->out + begun - 1 + length, w->out + begun, content);
    memcpy(w->out + begun - 1, text, length);
}
