// npy.c - .npy files: the writer (header, rows, temp and rename) and the reader of headers.
#include "io/npy.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "floats are written as they lie");

enum { PREFIX_BYTES = 10 };  // magic, version, u16 length

// `shape` is a tuple.
static void format_header(char out[LK_NPY_HEADER_BYTES], const char *type, const char *shape) {
    static const char prefix[PREFIX_BYTES] = {
        '\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0, LK_NPY_HEADER_BYTES - PREFIX_BYTES, 0};
    memset(out, ' ', LK_NPY_HEADER_BYTES);
    memcpy(out, prefix, sizeof prefix);
    // Two 64-bit numbers leave 20 bytes to spare, one and three of 32 bits 7: one size fits all.
    size_t used = lk_format(out + PREFIX_BYTES, LK_NPY_HEADER_BYTES - PREFIX_BYTES,
                            "{'descr': '%s', 'fortran_order': False, 'shape': %s, }", type, shape);
    lk_assert(used < LK_NPY_HEADER_BYTES - PREFIX_BYTES);
    out[PREFIX_BYTES + used] = ' ';  // over the NUL
    out[LK_NPY_HEADER_BYTES - 1] = '\n';
}

static lk_status start(lk_npy_writer *writer, const char *path, const char *type,
                       const char *shape, lk_error *error) {
    const lk_file_ops *ops = writer->ops;
    char header[LK_NPY_HEADER_BYTES];
    uint64_t bytes;
    LK_CHECK(lk_path_join(writer->path, path, "", "", error));
    const bool too_long = writer->row_bytes == UINT64_MAX && writer->rows > 0;
    if (too_long || !lk_mul_ok(writer->rows, writer->row_bytes, &bytes)) {
        return lk_fail(error, LK_INTERNAL, "%s: %llu rows of %llu bytes overflow 64 bits", path,
                       (unsigned long long)writer->rows, (unsigned long long)writer->row_bytes);
    }
    LK_CHECK(lk_file_create_beside(ops, path, writer->temporary, &writer->file, error));
    format_header(header, type, shape);
    if (lk_file_write_all(ops, writer->file, writer->temporary, header, sizeof header, error) !=
        LK_OK) {
        lk_npy_abandon(writer);
    }
    return error->status;
}

// Values of four bytes.
static lk_status start_matrix(lk_npy_writer *writer, const lk_file_ops *ops, const char *path,
                              const char *type, uint64_t rows, uint64_t columns, lk_error *error) {
    char shape[64];
    *writer = (lk_npy_writer){.ops = ops, .file = -1, .rows = rows};
    if (!lk_mul_ok(columns, sizeof(float), &writer->row_bytes)) writer->row_bytes = UINT64_MAX;
    lk_format(shape, sizeof shape, "(%llu, %llu)", (unsigned long long)rows,
              (unsigned long long)columns);
    return start(writer, path, type, shape, error);
}

lk_status lk_npy_start(lk_npy_writer *writer, const lk_file_ops *ops, const char *path,
                       uint64_t rows, uint64_t columns, lk_error *error) {
    return start_matrix(writer, ops, path, "<f4", rows, columns, error);
}

lk_status lk_npy_start_labels(lk_npy_writer *writer, const lk_file_ops *ops, const char *path,
                              uint64_t rows, uint64_t columns, lk_error *error) {
    return start_matrix(writer, ops, path, "<u4", rows, columns, error);
}

lk_status lk_npy_start_images(lk_npy_writer *writer, const lk_file_ops *ops, const char *path,
                              const lk_npy_images *images, lk_error *error) {
    char shape[64];
    *writer = (lk_npy_writer){.ops = ops, .file = -1, .rows = images->count};
    if (!lk_mul_ok((uint64_t)images->height * images->width, images->channels,
                   &writer->row_bytes)) {
        writer->row_bytes = UINT64_MAX;
    }
    lk_format(shape, sizeof shape, "(%llu, %u, %u, %u)", (unsigned long long)images->count,
              images->height, images->width, images->channels);
    return start(writer, path, "|u1", shape, error);
}

static lk_status add(lk_npy_writer *writer, const void *values, uint64_t rows, lk_error *error) {
    if (rows > writer->rows - writer->rows_written) {
        return lk_fail(error, LK_INTERNAL, "%s: %llu rows were announced, more came", writer->path,
                       (unsigned long long)writer->rows);
    }
    LK_CHECK(lk_file_write_all(writer->ops, writer->file, writer->temporary, values,
                               (size_t)(rows * writer->row_bytes), error));
    writer->rows_written += rows;
    return LK_OK;
}

lk_status lk_npy_add(lk_npy_writer *writer, const float *values, uint64_t rows, lk_error *error) {
    return add(writer, values, rows, error);
}

lk_status lk_npy_add_labels(lk_npy_writer *writer, const uint32_t *values, uint64_t rows,
                            lk_error *error) {
    return add(writer, values, rows, error);
}

lk_status lk_npy_add_images(lk_npy_writer *writer, const uint8_t *images, uint64_t count,
                            lk_error *error) {
    return add(writer, images, count, error);
}

lk_status lk_npy_finish(lk_npy_writer *writer, lk_error *error) {
    if (writer->rows_written != writer->rows) {
        return lk_fail(error, LK_INTERNAL, "%s: %llu rows were announced, %llu came", writer->path,
                       (unsigned long long)writer->rows, (unsigned long long)writer->rows_written);
    }
    int file = writer->file;
    writer->file = -1;
    LK_CHECK(lk_file_sync_close(writer->ops, file, writer->temporary, error));
    LK_CHECK(lk_file_publish(writer->ops, writer->temporary, writer->path, error));
    writer->temporary[0] = '\0';
    return LK_OK;
}

void lk_npy_abandon(lk_npy_writer *writer) {
    if (writer->file >= 0) writer->ops->close(writer->ops->context, writer->file);
    writer->file = -1;
    if (writer->temporary[0]) writer->ops->remove(writer->ops->context, writer->temporary);
    writer->temporary[0] = '\0';
}

// --- reading -------------------------------------------------------------------------------------

// The header's dictionary: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }
typedef struct cursor {
    const char *at, *end;
    const uint8_t *file;  // for the number of a byte
    const char *name;
    lk_error *error;
} cursor;

static lk_status refuse(const cursor *c, const char *what) {
    return lk_fail(c->error, LK_BAD_DATA,
                   "%s: byte %llu: %s; wanted an array as numpy.save writes it", c->name,
                   (unsigned long long)((const uint8_t *)c->at - c->file), what);
}

static void skip_spaces(cursor *c) {
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n')) c->at++;
}

// Takes the text, spaces before it left out; false, and nothing taken, where it does not stand
// there.
static bool take(cursor *c, const char *text) {
    const size_t bytes = strlen(text);
    skip_spaces(c);
    if ((size_t)(c->end - c->at) < bytes || memcmp(c->at, text, bytes) != 0) return false;
    c->at += bytes;
    return true;
}

static lk_status read_number(cursor *c, uint64_t *value) {
    const char *begin = c->at;
    *value = 0;
    while (c->at < c->end && *c->at >= '0' && *c->at <= '9' && c->at - begin < 18) {
        *value = *value * 10 + (uint64_t)(*c->at++ - '0');
    }
    if (c->at > begin && (c->at == c->end || *c->at < '0' || *c->at > '9')) return LK_OK;
    return refuse(c, "a dimension that is no number of at most 18 digits");
}

// (), (5,), (3, 2) or (3, 2,)
static lk_status read_shape(cursor *c, lk_npy *out) {
    if (!take(c, "(")) return refuse(c, "a shape that is no tuple");
    while (!take(c, ")")) {
        if (out->ndim == LK_NPY_DIMS_MAX) return refuse(c, "more than 4 dimensions");
        LK_CHECK(read_number(c, &out->dims[out->ndim]));
        if (out->dims[out->ndim] == 0) {
            return lk_fail(c->error, LK_BAD_DATA,
                           "%s: its shape has a dimension of 0, so there is nothing in it; wanted "
                           "one item at least",
                           c->name);
        }
        out->ndim++;
        if (take(c, ",") || (c->at < c->end && *c->at == ')')) continue;
        return refuse(c, "no comma or end after a dimension");
    }
    return LK_OK;
}

static lk_status read_type(cursor *c, lk_npy *out) {
    if (!take(c, "'") || c->end - c->at < 4) return refuse(c, "a type that is no text");
    const char order = c->at[0], type = c->at[1], size = c->at[2];
    if (c->at[3] != '\'' || !strchr("uifb", type) || !type || !strchr("1248", size) || !size) {
        return refuse(c, "a type that is no plain number of 1, 2, 4 or 8 bytes");
    }
    if (order != '<' && !(order == '|' && size == '1')) {
        return refuse(c, "a type of another byte order than little-endian");
    }
    out->type = type;
    out->item_bytes = (uint32_t)(size - '0');
    c->at += 4;
    return LK_OK;
}

// The three keys, each once, in any order.
static lk_status read_dictionary(cursor *c, lk_npy *out) {
    bool type = false, order = false, shape = false;
    if (!take(c, "{")) return refuse(c, "a header that is no dictionary");
    while (!take(c, "}")) {
        bool *seen = take(c, "'descr':")           ? &type
                     : take(c, "'fortran_order':") ? &order
                     : take(c, "'shape':")         ? &shape
                                                   : NULL;
        if (!seen || *seen) return refuse(c, "a key that is not wanted, or is there twice");
        *seen = true;
        if (seen == &type) LK_CHECK(read_type(c, out));
        if (seen == &shape) LK_CHECK(read_shape(c, out));
        if (seen == &order && !take(c, "False")) {
            return refuse(c, "Fortran's order of dimensions; save numpy.ascontiguousarray of it");
        }
        if (take(c, ",") || (c->at < c->end && *c->at == '}')) continue;
        return refuse(c, "no comma or end after a value");
    }
    skip_spaces(c);
    if (c->at != c->end) return refuse(c, "more behind the dictionary");
    return type && order && shape ? LK_OK : refuse(c, "a key is missing");
}

lk_status lk_npy_parse(const uint8_t *bytes, uint64_t byte_count, uint64_t file_bytes,
                       const char *name, lk_npy *out, lk_error *error) {
    cursor c = {.at = (const char *)bytes, .file = bytes, .name = name, .error = error};
    *out = (lk_npy){.count = 1};
    if (byte_count < PREFIX_BYTES || memcmp(bytes, "\x93NUMPY", 6) != 0) {
        return refuse(&c, "found no \\x93NUMPY");
    }
    const uint32_t version = bytes[6], width = version == 1 ? 2 : 4;
    uint64_t length = 0;
    if (version < 1 || version > 3 || bytes[7] != 0) {
        c.at += 6;
        return refuse(&c, "a version that is not 1.0, 2.0 or 3.0");
    }
    for (uint32_t i = 0; i < width && 8 + i < byte_count; i++) {
        length |= (uint64_t)bytes[8 + i] << (8 * i);
    }
    out->header_bytes = 8 + width + length;
    if (out->header_bytes > LK_MIN(byte_count, LK_NPY_READ_BYTES_MAX)) {
        c.at += 8;
        return refuse(&c, "a header that is longer than the file, or than 4,096 bytes");
    }
    c.at += 8 + width;
    c.end = (const char *)bytes + out->header_bytes;
    LK_CHECK(read_dictionary(&c, out));
    uint64_t wanted;
    bool fits = true;
    for (uint32_t i = 0; i < out->ndim; i++) {
        fits = fits && lk_mul_ok(out->count, out->dims[i], &out->count);
    }
    fits = fits && lk_mul_ok(out->count, out->item_bytes, &wanted) &&
           lk_add_ok(wanted, out->header_bytes, &wanted);
    if (fits && wanted == file_bytes) return LK_OK;
    return lk_fail(error, LK_BAD_DATA, "%s: found %llu bytes, wanted the %s of its header's shape",
                   name, (unsigned long long)file_bytes, fits ? "number" : "(absurd) number");
}

lk_status lk_npy_as_images(const lk_npy *n, const char *name, lk_npy_images *out, lk_error *error) {
    const bool is_f32 = n->type == 'f' && n->item_bytes == 4;
    if (!is_f32 && (n->type != 'u' || n->item_bytes != 1)) {
        return lk_fail(error, LK_BAD_DATA,
                       "%s: its items are %c%u, wanted u1, bytes from 0 to 255, or f4; save "
                       "array.astype(numpy.uint8), or of inputs that are no images "
                       "array.astype(numpy.float32)",
                       name, n->type, n->item_bytes);
    }
    bool good = n->ndim >= 2 && n->ndim <= 4;
    for (uint32_t i = 1; good && i < n->ndim; i++) good = n->dims[i] <= (i == 3 ? 16 : 65535);
    if (!good) {
        return lk_fail(error, LK_BAD_DATA,
                       "%s: an array of %u dimensions, wanted (n, values), (n, height, width) or "
                       "(n, height, width, channels), at most 65,535 high and wide and of 16 "
                       "channels",
                       name, n->ndim);
    }
    *out = (lk_npy_images){.count = n->dims[0],
                           .height = (uint32_t)n->dims[1],
                           .width = n->ndim > 2 ? (uint32_t)n->dims[2] : 1,
                           .channels = n->ndim > 3 ? (uint32_t)n->dims[3] : 1,
                           .is_f32 = is_f32};
    return LK_OK;
}
