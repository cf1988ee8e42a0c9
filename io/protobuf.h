// protobuf.h - writes protocol buffers into a buffer of the caller's: ONNX models, TensorBoard
// events.
//
// Wire format: each field is a varint of (number << 3 | kind), then
//
//     0  varint     7 bits a byte, the lowest first, the top bit set on all but the last
//     1  fixed 64   little-endian            5  fixed 32
//     2  bytes      a varint n, then n bytes: a string, a message, packed numbers
//
// A message of unknown length gets one byte for its length; where it turns out longer than 127 its
// content moves up by a byte or a few. So the bytes are those of any encoder, the shortest there
// are.
//
// Like snprintf: what has no room is counted and dropped, nothing is written past the buffer, and
// `used` is what the whole takes. So one function measures and writes:
//
//     lk_protobuf w = {NULL, 0, 0};                   // measures
//     write_model(&w, model);
//     w = (lk_protobuf){memory, w.used, 0};           // w.used bytes of memory
//     write_model(&w, model);
//     lk_assert(lk_protobuf_fits(&w));
//
//     size_t node = lk_protobuf_begin(&w, 1);         // message NodeProto node = 1
//     lk_protobuf_string(&w, 4, "Relu");              // string op_type = 4
//     lk_protobuf_end(&w, node);
//
// Knows nothing of any message. No heap, no input of others, so no failure but want of room.
#ifndef LOCKSTEP_IO_PROTOBUF_H
#define LOCKSTEP_IO_PROTOBUF_H

#include "arena/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lk_protobuf {
    uint8_t *out;     // (capacity), NULL with 0: only measures
    size_t capacity;  // bytes
    size_t used;      // bytes that all of it takes, with or without room
} lk_protobuf;

static inline bool lk_protobuf_fits(const lk_protobuf *w) { return w->used <= w->capacity; }

// One field each, `field` is its number (1 .. 2^29 - 1). A value of 0 is written, too.
void lk_protobuf_uint(lk_protobuf *w, uint32_t field, uint64_t value);  // uint32/64, bool, enum
void lk_protobuf_int(lk_protobuf *w, uint32_t field, int64_t value);  // int32/64 (10 bytes if < 0)
void lk_protobuf_float(lk_protobuf *w, uint32_t field, float value);
void lk_protobuf_double(lk_protobuf *w, uint32_t field, double value);
void lk_protobuf_string(lk_protobuf *w, uint32_t field, const char *text);  // UTF-8, until its NUL
void lk_protobuf_bytes(lk_protobuf *w, uint32_t field, const void *data, size_t bytes);

// Repeated numbers in one field, "packed".   values (count)
void lk_protobuf_doubles(lk_protobuf *w, uint32_t field, const double *values, size_t count);
void lk_protobuf_ints(lk_protobuf *w, uint32_t field, const int64_t *values, size_t count);

// A field that is a message, or bytes that come piece by piece: begin, its fields, end with what
// begin returned. They nest.
size_t lk_protobuf_begin(lk_protobuf *w, uint32_t field);
void lk_protobuf_end(lk_protobuf *w, size_t begun);

// Bytes as they are, inside a field that was begun; a varint alone.
void lk_protobuf_raw(lk_protobuf *w, const void *data, size_t bytes);
void lk_protobuf_varint(lk_protobuf *w, uint64_t value);

#ifdef __cplusplus
}
#endif
#endif
