// idx.h - the IDX format, read strictly: the files in which MNIST and its relatives come.
//
// Core: freestanding, no heap, no files. Whoever calls has the bytes and knows the file's size.
//
//   byte 0  00 00        always
//   byte 2  type         08 u8; inputs also 0d f32; labels also 0b, 16 bits, taken without a sign
//                        (not accepted: 09 i8, 0c i32, 0e f64)
//   byte 3  ndim         labels 1, or 2 (n, row) where they are sequences; inputs 2 to 4: (n,
//                        height, width, channels), of which those at the end that are left out are
//                        1
//   byte 4  ndim x u32, big-endian
//   then    the values, last dimension fastest, big-endian, and nothing after them
//
// Every error is one line with the file's name, the byte where it is, what was found and wanted.
#ifndef LOCKSTEP_IO_IDX_H
#define LOCKSTEP_IO_IDX_H

#include "arena/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LK_IDX_HEADER_BYTES_MAX = 20 };

typedef enum lk_idx_kind { LK_IDX_IMAGES, LK_IDX_LABELS } lk_idx_kind;

typedef enum lk_idx_type { LK_IDX_U8 = 0x08, LK_IDX_U16 = 0x0b, LK_IDX_F32 = 0x0d } lk_idx_type;

// Of one value.
static inline uint32_t lk_idx_type_bytes(lk_idx_type type) {
    return type == LK_IDX_F32 ? 4 : type == LK_IDX_U16 ? 2 : 1;
}

// Classes of labels, the most: what 16 bits tell apart. A byte tells 256 apart.
enum { LK_IDX_CLASSES_MAX = 65536, LK_IDX_U8_CLASSES_MAX = 256 };

// The smallest type that has labels below `classes`.
static inline lk_idx_type lk_idx_label_type(uint32_t classes) {
    return classes > LK_IDX_U8_CLASSES_MAX ? LK_IDX_U16 : LK_IDX_U8;
}

// Label `index` of those that lie at `labels`, of type u8 or u16.
static inline uint32_t lk_idx_label(const uint8_t *labels, uint64_t index, lk_idx_type type) {
    if (type != LK_IDX_U16) return labels[index];
    return (uint32_t)labels[2 * index] << 8 | labels[2 * index + 1];
}

// Writes a label of that type; returns its bytes.
static inline uint32_t lk_idx_put_label(uint8_t out[2], uint32_t label, lk_idx_type type) {
    out[0] = (uint8_t)(type == LK_IDX_U16 ? label >> 8 : label);
    if (type == LK_IDX_U16) out[1] = (uint8_t)label;
    return lk_idx_type_bytes(type);
}

typedef struct lk_idx {
    lk_idx_type type;        // 0 is taken for u8 by lk_idx_write_header
    uint32_t ndim;           // 1 or 2 labels; 2 to 4 images
    uint32_t count;          // examples, at least 1
    uint32_t height;         // pixels; 1 for labels, the values of an example's row for sequences
    uint32_t width;          // pixels; 1 for labels
    uint32_t channels;       // 1 for labels and for images of fewer than four dimensions
    uint64_t header_bytes;   // where the first value lies
    uint64_t example_bytes;  // height x width x channels values
    uint64_t data_bytes;     // count x example_bytes
} lk_idx;

// Reads and checks the header of a file of images or of labels.
//
// bytes        the first `byte_count` bytes of the file: all of it, or at least the first
//              LK_IDX_HEADER_BYTES_MAX
// file_bytes   size of the whole file; must be exactly what the header says
// name         of the file, for errors
// LK_BAD_DATA for anything that is not exactly such a file; `out` is then unspecified.
lk_status lk_idx_parse(const uint8_t *bytes, uint64_t byte_count, uint64_t file_bytes,
                       lk_idx_kind wanted, const char *name, lk_idx *out, lk_error *error);

// The header alone, of a file whose size is not known yet: as lk_idx_parse, but what follows the
// header is not judged, and images and labels are both taken.
//
// bytes   the first `byte_count` bytes of the file: all of it, or at least LK_IDX_HEADER_BYTES_MAX
lk_status lk_idx_parse_header(const uint8_t *bytes, uint64_t byte_count, const char *name,
                              lk_idx *out, lk_error *error);

// As many labels as images? LK_BAD_DATA with both numbers and names.
lk_status lk_idx_check_counts(uint64_t image_count, const char *image_name, uint64_t label_count,
                              const char *label_name, lk_error *error);

// Every label below `classes`? LK_BAD_DATA names the first that is not: index, byte offset
// (`header_bytes` before label 0), value.
//
// labels   (count)   of `type`, u8 or u16
lk_status lk_idx_check_labels(const uint8_t *labels, uint64_t count, lk_idx_type type,
                              uint32_t classes, uint64_t header_bytes, const char *name,
                              lk_error *error);

// Labels that are sequences: a row of `bytes` of each example, first how many frames it has, in two
// bytes, the upper one first; then its labels, from 1 on, of their type; then zeros.
enum { LK_IDX_FRAMES_BYTES = 2 };

// How many numbers a row of `bytes` bytes has: one says the frames, the others are labels.
static inline uint32_t lk_idx_row_numbers(uint32_t bytes, lk_idx_type type) {
    return 1 + (bytes - LK_IDX_FRAMES_BYTES) / lk_idx_type_bytes(type);
}

// Number 0 of a row, its frames, or one of its labels.
static inline uint32_t lk_idx_in_row(const uint8_t *row, uint32_t number, lk_idx_type type) {
    if (number == 0) return lk_idx_label(row, 0, LK_IDX_U16);
    return lk_idx_label(row + LK_IDX_FRAMES_BYTES, number - 1, type);
}

// Does every example have a frame or more, up to `frames`, labels below `classes`, and behind its
// last one zeros alone? LK_BAD_DATA names the first byte that is wrong.
lk_status lk_idx_check_sequences(const uint8_t *labels, uint64_t count, uint32_t bytes,
                                 lk_idx_type type, uint32_t frames, uint32_t classes,
                                 uint64_t header_bytes, const char *name, lk_error *error);

// The header that lk_idx_parse reads back, from type, ndim, count, height, width and channels.
// Returns its bytes: 4 + 4 x ndim.
size_t lk_idx_write_header(const lk_idx *idx, uint8_t out[LK_IDX_HEADER_BYTES_MAX]);

// Floats from the format's order of bytes to the machine's, or back, where they lie.
void lk_idx_turn_floats(uint8_t *floats, uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
