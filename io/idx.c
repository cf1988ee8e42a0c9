// idx.c - strict reading of IDX headers. Freestanding; trusts no byte before it has checked it.
#include "io/idx.h"

typedef unsigned long long ull;

static const char *kind_text(lk_idx_kind kind) {
    return kind == LK_IDX_IMAGES ? "images" : "labels";
}

static const char *type_text(uint8_t type) {
    switch (type) {
    case 0x08: return "u8";
    case 0x09: return "i8";
    case 0x0b: return "i16";
    case 0x0c: return "i32";
    case 0x0d: return "f32";
    case 0x0e: return "f64";
    default: return "no IDX type";
    }
}

static uint32_t read_u32(const uint8_t *bytes) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static void write_u32(uint8_t *bytes, uint32_t value) {
    for (unsigned i = 0; i < 4; i++) bytes[i] = (uint8_t)(value >> (24 - 8 * i));
}

// Bytes 0 to 3: magic, type, number of dimensions.
static lk_status check_magic(const uint8_t *bytes, uint64_t file_bytes, lk_idx_kind wanted,
                             const char *name, lk_error *error) {
    if (file_bytes == 0)
        return lk_fail(error, LK_BAD_DATA,
                       "%s: byte 0: empty: found 0 bytes, wanted an IDX file of %s; fetch it again",
                       name, kind_text(wanted));
    if (file_bytes < 4)
        return lk_fail(error, LK_BAD_DATA,
                       "%s: byte %llu: truncated: found %llu bytes, wanted the 4 that begin an IDX "
                       "file; fetch it again", name, (ull)file_bytes, (ull)file_bytes);
    if (bytes[0] == 0x1f && bytes[1] == 0x8b)
        return lk_fail(error, LK_BAD_DATA,
                       "%s: byte 0: found 1f 8b (gzip), wanted 00 00 (IDX); unpack it first", name);
    if (bytes[0] != 0 || bytes[1] != 0)
        return lk_fail(error, LK_BAD_DATA,
                       "%s: byte 0: found %02x %02x, wanted 00 00; this is no IDX file", name,
                       bytes[0], bytes[1]);
    // Two dimensions are rows of values, or sequences of labels.
    const bool rows = bytes[3] == 2, many = bytes[3] == 3 || bytes[3] == 4;
    const bool labels = bytes[3] == 1 || (rows && wanted == LK_IDX_LABELS);
    const bool images = many || (rows && wanted == LK_IDX_IMAGES);
    if (bytes[2] != LK_IDX_U8 && bytes[2] != (wanted == LK_IDX_IMAGES ? LK_IDX_F32 : LK_IDX_U16))
        return lk_fail(error, LK_BAD_DATA,
                       "%s: byte 2: found type %02x (%s), wanted 08 (u8) or %s; convert the values",
                       name, bytes[2], type_text(bytes[2]),
                       wanted == LK_IDX_IMAGES ? "0d (f32)" : "0b (16 bits)");
    if (wanted == LK_IDX_IMAGES && labels)
        return lk_fail(error, LK_BAD_DATA,
                       "%s: byte 3: found 1 dimension (labels), wanted 2 to 4 (images); "
                       "are images and labels exchanged?", name);
    if (wanted == LK_IDX_LABELS && images)
        return lk_fail(error, LK_BAD_DATA,
                       "%s: byte 3: found %u dimensions (images), wanted 1 (labels); "
                       "are images and labels exchanged?", name, bytes[3]);
    if (!images && !labels)
        return lk_fail(error, LK_BAD_DATA, "%s: byte 3: found %u dimensions, wanted %s", name,
                       bytes[3], wanted == LK_IDX_IMAGES ? "2 to 4 (images)"
                                                         : "1 (labels) or 2 (sequences of them)");
    return LK_OK;
}

static lk_status check_size(const lk_idx *idx, uint64_t file_bytes, const char *name,
                            lk_error *error) {
    uint64_t wanted = idx->header_bytes + idx->data_bytes;
    if (file_bytes == wanted) return LK_OK;
    bool truncated = file_bytes < wanted;
    return lk_fail(error, LK_BAD_DATA,
                   "%s: byte %llu: %s: found %llu bytes, wanted %llu (header %llu + "
                   "%u x %u x %u x %u%s); fetch it again", name,
                   (ull)(truncated ? file_bytes : wanted), truncated ? "truncated" : "too long",
                   (ull)file_bytes, (ull)wanted, (ull)idx->header_bytes, idx->count, idx->height,
                   idx->width, idx->channels,
                   idx->type == LK_IDX_F32   ? " x 4 bytes"
                   : idx->type == LK_IDX_U16 ? " x 2 bytes"
                                             : "");
}

static lk_status parse_header(const uint8_t *bytes, uint64_t file_bytes, lk_idx_kind wanted,
                              const char *name, lk_idx *out, lk_error *error) {
    LK_CHECK(check_magic(bytes, file_bytes, wanted, name, error));
    uint32_t ndim = bytes[3];
    uint64_t header_bytes = 4 + 4 * (uint64_t)ndim;
    if (file_bytes < header_bytes)
        return lk_fail(error, LK_BAD_DATA,
                       "%s: byte %llu: truncated: found %llu bytes, wanted a header of %llu; "
                       "fetch it again", name, (ull)file_bytes, (ull)file_bytes, (ull)header_bytes);
    uint32_t dim[4] = {1, 1, 1, 1};
    for (uint32_t i = 0; i < ndim; i++) {
        dim[i] = read_u32(bytes + 4 + 4 * i);
        if (dim[i] == 0)
            return lk_fail(error, LK_BAD_DATA,
                           "%s: byte %u: dimension %u: found 0, wanted 1 or more", name, 4 + 4 * i,
                           i);
    }
    *out = (lk_idx){.type = (lk_idx_type)bytes[2],
                    .ndim = ndim,
                    .count = dim[0],
                    .height = dim[1],
                    .width = dim[2],
                    .channels = dim[3],
                    .header_bytes = header_bytes};
    uint64_t total;
    if (!lk_mul_ok((uint64_t)dim[1] * dim[2], dim[3], &out->example_bytes) ||
        !lk_mul_ok(out->example_bytes, lk_idx_type_bytes(out->type), &out->example_bytes) ||
        !lk_mul_ok(out->example_bytes, dim[0], &out->data_bytes) ||
        !lk_add_ok(out->data_bytes, header_bytes, &total))
        return lk_fail(error, LK_BAD_DATA,
                       "%s: byte 4: found dimensions %u x %u x %u x %u, more than 2^64 bytes; "
                       "wanted a file of %llu", name, dim[0], dim[1], dim[2], dim[3],
                       (ull)file_bytes);
    return LK_OK;
}

lk_status lk_idx_parse(const uint8_t *bytes, uint64_t byte_count, uint64_t file_bytes,
                       lk_idx_kind wanted, const char *name, lk_idx *out, lk_error *error) {
    lk_assert(byte_count >= LK_MIN(file_bytes, (uint64_t)LK_IDX_HEADER_BYTES_MAX));
    LK_CHECK(parse_header(bytes, file_bytes, wanted, name, out, error));
    return check_size(out, file_bytes, name, error);
}

lk_status lk_idx_parse_header(const uint8_t *bytes, uint64_t byte_count, const char *name,
                              lk_idx *out, lk_error *error) {
    const bool labels = byte_count >= 4 && (bytes[3] == 1 || bytes[2] == LK_IDX_U16);
    return parse_header(bytes, byte_count, labels ? LK_IDX_LABELS : LK_IDX_IMAGES, name, out,
                        error);
}

lk_status lk_idx_check_counts(uint64_t image_count, const char *image_name, uint64_t label_count,
                              const char *label_name, lk_error *error) {
    if (image_count == label_count) return LK_OK;
    return lk_fail(error, LK_BAD_DATA,
                   "%s: byte 4: found %llu labels, wanted %llu, one for each image of %s",
                   label_name, (ull)label_count, (ull)image_count, image_name);
}

lk_status lk_idx_check_labels(const uint8_t *labels, uint64_t count, lk_idx_type type,
                              uint32_t classes, uint64_t header_bytes, const char *name,
                              lk_error *error) {
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t label = lk_idx_label(labels, i, type);
        if (label >= classes)
            return lk_fail(error, LK_BAD_DATA,
                           "%s: byte %llu: label %llu: found %u, wanted 0 to %u (%u classes)", name,
                           (ull)(header_bytes + i * lk_idx_type_bytes(type)), (ull)i, label,
                           classes - 1, classes);
    }
    return LK_OK;
}

static lk_status check_sequence(const uint8_t *row, uint32_t bytes, lk_idx_type type,
                                uint32_t frames_max, uint32_t classes, uint64_t at,
                                uint64_t example, const char *name, lk_error *error) {
    const uint32_t frames = lk_idx_in_row(row, 0, type), numbers = lk_idx_row_numbers(bytes, type);
    bool ended = false;
    if (frames < 1 || frames > frames_max)
        return lk_fail(error, LK_BAD_DATA,
                       "%s: byte %llu: example %llu: found %u frames, wanted 1 to %u, the rows of "
                       "an input", name, (ull)at, (ull)example, frames, frames_max);
    for (uint32_t i = 1; i < numbers; i++) {
        const uint32_t label = lk_idx_in_row(row, i, type);
        const uint64_t in_row = LK_IDX_FRAMES_BYTES + (i - 1) * lk_idx_type_bytes(type);
        if (label >= classes || (ended && label))
            return lk_fail(error, LK_BAD_DATA,
                           "%s: byte %llu: example %llu: found label %u%s, wanted 1 to %u, and "
                           "zeros behind the last", name, (ull)(at + in_row), (ull)example, label,
                           ended ? " behind a 0" : "", classes - 1);
        ended = ended || label == 0;
    }
    return LK_OK;
}

lk_status lk_idx_check_sequences(const uint8_t *labels, uint64_t count, uint32_t bytes,
                                 lk_idx_type type, uint32_t frames, uint32_t classes,
                                 uint64_t header_bytes, const char *name, lk_error *error) {
    if (bytes <= LK_IDX_FRAMES_BYTES)
        return lk_fail(error, LK_BAD_DATA,
                       "%s: byte 8: found %u bytes of labels an example, wanted two that say how "
                       "many frames it has, and one or more of labels", name, bytes);
    for (uint64_t i = 0; i < count; i++)
        LK_CHECK(check_sequence(labels + i * bytes, bytes, type, frames, classes,
                                header_bytes + i * bytes, i, name, error));
    return LK_OK;
}

size_t lk_idx_write_header(const lk_idx *idx, uint8_t out[LK_IDX_HEADER_BYTES_MAX]) {
    lk_assert(idx->ndim >= 1 && idx->ndim <= 4);
    const uint32_t dim[4] = {idx->count, idx->height, idx->width, idx->channels};
    for (unsigned i = 0; i < 4; i++) out[i] = 0;
    out[2] = (uint8_t)(idx->type ? idx->type : LK_IDX_U8);
    out[3] = (uint8_t)idx->ndim;
    for (uint32_t i = 0; i < idx->ndim; i++) write_u32(out + 4 + 4 * i, dim[i]);
    return 4 + 4 * (size_t)idx->ndim;
}

void lk_idx_turn_floats(uint8_t *floats, uint64_t bytes) {
    if (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__) return;
    for (uint64_t i = 0; i + 4 <= bytes; i += 4) {
        uint32_t word;
        __builtin_memcpy(&word, floats + i, sizeof word);
        word = __builtin_bswap32(word);
        __builtin_memcpy(floats + i, &word, sizeof word);
    }
}
