// npy.c - the .npy writer: header, rows, temp and rename.
#include "io/npy.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "floats are written as they lie");

enum { PREFIX_BYTES = 10 };  // magic, version, u16 length

static void format_header(char out[LK_NPY_HEADER_BYTES], uint64_t rows, uint64_t columns) {
    static const char prefix[PREFIX_BYTES] = {
        '\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0, LK_NPY_HEADER_BYTES - PREFIX_BYTES, 0};
    memset(out, ' ', LK_NPY_HEADER_BYTES);
    memcpy(out, prefix, sizeof prefix);
    // Two 64-bit numbers leave 20 bytes to spare, so one size fits every matrix.
    size_t used = lk_format(out + PREFIX_BYTES, LK_NPY_HEADER_BYTES - PREFIX_BYTES,
                            "{'descr': '<f4', 'fortran_order': False, 'shape': (%llu, %llu), }",
                            (unsigned long long)rows, (unsigned long long)columns);
    lk_assert(used < LK_NPY_HEADER_BYTES - PREFIX_BYTES);
    out[PREFIX_BYTES + used] = ' ';  // over the NUL
    out[LK_NPY_HEADER_BYTES - 1] = '\n';
}

lk_status lk_npy_start(lk_npy_writer *writer, const lk_file_ops *ops, const char *path,
                       uint64_t rows, uint64_t columns, lk_error *error) {
    char header[LK_NPY_HEADER_BYTES];
    uint64_t bytes;
    *writer = (lk_npy_writer){.ops = ops, .file = -1, .rows = rows, .columns = columns};
    LK_CHECK(lk_path_join(writer->path, path, "", "", error));
    LK_CHECK(lk_path_join(writer->temporary, path, "", ".tmp", error));
    if (!lk_mul_ok(rows, columns, &bytes) || !lk_mul_ok(bytes, sizeof(float), &bytes)) {
        return lk_fail(error, LK_INTERNAL, "%s: %llu x %llu floats overflow 64 bits", path,
                       (unsigned long long)rows, (unsigned long long)columns);
    }
    LK_CHECK(lk_file_create(ops, writer->temporary, &writer->file, error));
    format_header(header, rows, columns);
    return lk_file_write_all(ops, writer->file, writer->temporary, header, sizeof header, error);
}

lk_status lk_npy_add(lk_npy_writer *writer, const float *values, uint64_t rows, lk_error *error) {
    if (rows > writer->rows - writer->rows_written) {
        return lk_fail(error, LK_INTERNAL, "%s: %llu rows were announced, more came", writer->path,
                       (unsigned long long)writer->rows);
    }
    LK_CHECK(lk_file_write_all(writer->ops, writer->file, writer->temporary, values,
                               (size_t)(rows * writer->columns * sizeof *values), error));
    writer->rows_written += rows;
    return LK_OK;
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
