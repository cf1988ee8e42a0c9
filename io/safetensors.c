// safetensors.c - writes safetensors files from the caller's memory, reads them without trust.
//
// Why a read entry is safe to use: begin_0 = 0, begin_(i+1) = end_i, and data_at + end_last = file
// size, with end - begin = product of the shape, computed without overflow. So every byte of the
// file belongs to exactly one tensor, and none lies outside of the file.
#include "io/safetensors.h"

#include <jansson.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensor bytes are written as they lie");

enum {
    LENGTH_BYTES = 8,  // of the u64 in front of the header
    COMPARE_CHUNK_BYTES = 16 * 1024,
};

static const char METADATA_NAME[] = "__metadata__";

static const struct {
    const char *name;
    unsigned bits;
} dtypes[] = {
#define LK_SAFETENSORS_ROW(name, bits) {#name, bits},
    LK_SAFETENSORS_DTYPE_LIST(LK_SAFETENSORS_ROW)
#undef LK_SAFETENSORS_ROW
};

const char *lk_safetensors_dtype_name(lk_safetensors_dtype dtype) {
    return (unsigned)dtype < LK_SAFETENSORS_DTYPE_COUNT ? dtypes[dtype].name : "?";
}

bool lk_safetensors_bytes(lk_safetensors_dtype dtype, unsigned dim_count, const uint64_t *dims,
                          uint64_t *bytes) {
    uint64_t elements = 1, bits;
    bool empty = false;
    for (unsigned d = 0; d < dim_count; d++) empty |= dims[d] == 0;
    for (unsigned d = 0; d < dim_count && !empty; d++) {
        if (!lk_mul_ok(elements, dims[d], &elements)) return false;
    }
    if (empty) elements = 0;
    if (!lk_mul_ok(elements, dtypes[dtype].bits, &bits) || bits % 8 != 0) return false;
    *bytes = bits / 8;
    return true;
}

// --- writing -------------------------------------------------------------------------------------

// A buffer that counts on when it is full: measuring and writing are the same code.
typedef struct sink {
    char *out;
    size_t capacity, used;
} sink;

static void put(sink *s, const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++, s->used++) {
        if (s->used < s->capacity) s->out[s->used] = text[i];
    }
}

static void put_text(sink *s, const char *text) { put(s, text, strlen(text)); }

static void put_number(sink *s, uint64_t value) {
    char digits[24];
    put(s, digits, lk_format(digits, sizeof digits, "%llu", (unsigned long long)value));
}

static void put_string(sink *s, const char *text) {
    put(s, "\"", 1);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') {
            put(s, "\\", 1);
            put(s, text, 1);
        } else if (c < 0x20) {
            char escape[8];
            put(s, escape, lk_format(escape, sizeof escape, "\\u%04x", c));
        } else {
            put(s, text, 1);
        }
    }
    put(s, "\"", 1);
}

// Well-formed UTF-8 (Unicode table 3-7): no overlong form, no surrogate, nothing above U+10FFFF.
static bool is_utf8(const char *text) {
    const unsigned char *c = (const unsigned char *)text;
    while (*c) {
        unsigned tail = *c < 0x80 ? 0
                      : *c < 0xc2 ? 9
                      : *c < 0xe0 ? 1
                      : *c < 0xf0 ? 2
                      : *c < 0xf5 ? 3
                                  : 9;
        if (tail == 9) return false;
        unsigned low = *c == 0xe0 ? 0xa0 : *c == 0xf0 ? 0x90 : 0x80;
        unsigned high = *c == 0xed ? 0x9f : *c == 0xf4 ? 0x8f : 0xbf;
        c++;
        for (; tail > 0; tail--, c++, low = 0x80, high = 0xbf) {
            if (*c < low || *c > high) return false;
        }
    }
    return true;
}

static lk_status check_pair(const lk_safetensors_content *content, size_t index, lk_error *error) {
    const lk_safetensors_pair *pair = &content->metadata[index];
    if (!is_utf8(pair->key) || !is_utf8(pair->value)) {
        return lk_fail(error, LK_INTERNAL, "metadata \"%s\": not UTF-8", pair->key);
    }
    for (size_t i = 0; i < index; i++) {
        if (strcmp(content->metadata[i].key, pair->key) == 0) {
            return lk_fail(error, LK_INTERNAL, "metadata \"%s\": given twice", pair->key);
        }
    }
    return LK_OK;
}

static lk_status check_tensor(const lk_safetensors_content *content, size_t index,
                              uint64_t *bytes, lk_error *error) {
    const lk_safetensors_tensor *tensor = &content->tensors[index];
    if (!is_utf8(tensor->name) || strcmp(tensor->name, METADATA_NAME) == 0) {
        return lk_fail(error, LK_INTERNAL, "tensor \"%s\": not a usable name", tensor->name);
    }
    for (size_t i = 0; i < index; i++) {
        if (strcmp(content->tensors[i].name, tensor->name) == 0) {
            return lk_fail(error, LK_INTERNAL, "tensor \"%s\": given twice", tensor->name);
        }
    }
    if ((unsigned)tensor->dtype >= LK_SAFETENSORS_DTYPE_COUNT ||
        tensor->dim_count > LK_SAFETENSORS_DIMS_MAX ||
        !lk_safetensors_bytes(tensor->dtype, tensor->dim_count, tensor->dims, bytes)) {
        return lk_fail(error, LK_INTERNAL, "tensor \"%s\": shape or dtype is out of range",
                       tensor->name);
    }
    return LK_OK;
}

static lk_status put_metadata(sink *s, const lk_safetensors_content *content, lk_error *error) {
    for (size_t i = 0; i < content->metadata_count; i++) {
        LK_CHECK(check_pair(content, i, error));
        put_text(s, i == 0 ? "\"__metadata__\":{" : ",");
        put_string(s, content->metadata[i].key);
        put_text(s, ":");
        put_string(s, content->metadata[i].value);
    }
    if (content->metadata_count > 0) put_text(s, "}");
    return LK_OK;
}

static lk_status put_tensors(sink *s, const lk_safetensors_content *content, uint64_t *data_bytes,
                             lk_error *error) {
    uint64_t begin = 0;
    for (size_t i = 0; i < content->tensor_count; i++) {
        const lk_safetensors_tensor *tensor = &content->tensors[i];
        uint64_t bytes, end;
        LK_CHECK(check_tensor(content, i, &bytes, error));
        if (!lk_add_ok(begin, bytes, &end)) {
            return lk_fail(error, LK_INTERNAL, "tensor \"%s\": the file's size overflows",
                           tensor->name);
        }
        if (i > 0 || content->metadata_count > 0) put_text(s, ",");
        put_string(s, tensor->name);
        put_text(s, ":{\"dtype\":\"");
        put_text(s, dtypes[tensor->dtype].name);
        put_text(s, "\",\"shape\":[");
        for (unsigned d = 0; d < tensor->dim_count; d++) {
            if (d > 0) put_text(s, ",");
            put_number(s, tensor->dims[d]);
        }
        put_text(s, "],\"data_offsets\":[");
        put_number(s, begin);
        put_text(s, ",");
        put_number(s, end);
        put_text(s, "]}");
        begin = end;
    }
    *data_bytes = begin;
    return LK_OK;
}

lk_status lk_safetensors_header(const lk_safetensors_content *content, void *out, size_t capacity,
                                size_t *used, uint64_t *data_bytes, lk_error *error) {
    sink s = {out, capacity, LENGTH_BYTES};
    uint64_t total = 0;
    put_text(&s, "{");
    LK_CHECK(put_metadata(&s, content, error));
    LK_CHECK(put_tensors(&s, content, &total, error));
    put_text(&s, "}");
    while (s.used % LK_SAFETENSORS_ALIGNMENT_BYTES != 0) put_text(&s, " ");
    uint64_t header_bytes = s.used - LENGTH_BYTES;
    if (header_bytes > LK_SAFETENSORS_HEADER_BYTES_MAX) {
        return lk_fail(error, LK_INTERNAL, "safetensors header of %llu bytes: the format allows %d",
                       (unsigned long long)header_bytes, LK_SAFETENSORS_HEADER_BYTES_MAX);
    }
    if (out && s.used > capacity) {
        return lk_fail(error, LK_INTERNAL,
                       "safetensors header: needs %zu bytes, the buffer has %zu",
                       s.used, capacity);
    }
    if (out) memcpy(out, &header_bytes, LENGTH_BYTES);
    *used = s.used;
    if (data_bytes) *data_bytes = total;
    return LK_OK;
}

lk_status lk_safetensors_write(const lk_safetensors_content *content, const void *header,
                               size_t header_bytes, const lk_file_ops *ops, int file,
                               const char *path, lk_error *error) {
    LK_CHECK(lk_file_write_all(ops, file, path, header, header_bytes, error));
    for (size_t i = 0; i < content->tensor_count; i++) {
        const lk_safetensors_tensor *tensor = &content->tensors[i];
        uint64_t bytes;
        LK_CHECK(check_tensor(content, i, &bytes, error));
        LK_CHECK(lk_file_write_all(ops, file, path, tensor->data, (size_t)bytes, error));
    }
    return LK_OK;
}

static lk_status compare(const lk_file_ops *ops, int file, const char *path, const char *expected,
                         uint64_t bytes, uint64_t *at, lk_error *error) {
    char chunk[COMPARE_CHUNK_BYTES];
    for (uint64_t done = 0; done < bytes;) {
        size_t piece = (size_t)LK_MIN(bytes - done, (uint64_t)sizeof chunk);
        LK_CHECK(lk_file_read_all(ops, file, path, chunk, piece, *at, error));
        if (memcmp(chunk, expected + done, piece) != 0) {
            return lk_fail(error, LK_BAD_DATA,
                           "%s: reads back different from what was written, after byte %llu; check "
                           "the disk", path, (unsigned long long)*at);
        }
        done += piece;
        *at += piece;
    }
    return LK_OK;
}

static lk_status compare_all(const lk_safetensors_content *content, const void *header,
                             size_t header_bytes, const lk_file_ops *ops, int file,
                             const char *path, uint64_t *at, lk_error *error) {
    LK_CHECK(compare(ops, file, path, header, header_bytes, at, error));
    for (size_t i = 0; i < content->tensor_count; i++) {
        uint64_t bytes;
        LK_CHECK(check_tensor(content, i, &bytes, error));
        LK_CHECK(compare(ops, file, path, content->tensors[i].data, bytes, at, error));
    }
    return LK_OK;
}

static lk_status read_back(const lk_safetensors_content *content, const void *header,
                           size_t header_bytes, const lk_file_ops *ops, const char *path,
                           lk_error *error) {
    int file;
    uint64_t file_bytes, at = 0;
    LK_CHECK(lk_file_open_read(ops, path, &file, &file_bytes, error));
    if (compare_all(content, header, header_bytes, ops, file, path, &at, error) == LK_OK &&
        at != file_bytes) {
        lk_fail(error, LK_BAD_DATA, "%s: reads back as %llu bytes, %llu were written; check the "
                "disk", path, (unsigned long long)file_bytes, (unsigned long long)at);
    }
    int closed = ops->close(ops->context, file);
    if (closed < 0) lk_file_fail(error, LK_IO_ERROR, path, "close", closed);
    return error->status;
}

lk_status lk_safetensors_save(const lk_safetensors_content *content, const void *header,
                              size_t header_bytes, const lk_file_ops *ops, const char *path,
                              lk_error *error) {
    char temporary[LK_PATH_BYTES];
    int file;
    LK_CHECK(lk_file_create_beside(ops, path, temporary, &file, error));
    lk_status written =
        lk_safetensors_write(content, header, header_bytes, ops, file, temporary, error);
    lk_status synced = lk_file_sync_close(ops, file, temporary, error);
    if (written == LK_OK && synced == LK_OK &&
        read_back(content, header, header_bytes, ops, temporary, error) == LK_OK &&
        lk_file_publish(ops, temporary, path, error) == LK_OK) {
        return LK_OK;
    }
    ops->remove(ops->context, temporary);  // frees the space; what failed is in `error`
    return error->status;
}

// --- reading: the header -------------------------------------------------------------------------

static lk_status read_length(lk_safetensors *reader, lk_error *error) {
    const char *path = reader->path;
    unsigned long long header_bytes = 0, file_bytes = reader->file_bytes;
    if (file_bytes < LENGTH_BYTES + 2) {
        return lk_fail(error, LK_BAD_DATA,
                       "%s: not a safetensors file: %llu bytes, at least 10 are "
                       "needed; was it cut short?", path, file_bytes);
    }
    uint8_t start[LENGTH_BYTES + 1];
    LK_CHECK(lk_file_read_all(reader->ops, reader->file, path, start, sizeof start, 0, error));
    for (unsigned i = 0; i < LENGTH_BYTES; i++) header_bytes |= (uint64_t)start[i] << (8 * i);
    if (header_bytes < 2 || header_bytes > LK_SAFETENSORS_HEADER_BYTES_MAX) {
        return lk_fail(error, LK_BAD_DATA,
                       "%s: not a safetensors file: header length %llu at byte 0, "
                       "2 to %d is allowed", path, header_bytes, LK_SAFETENSORS_HEADER_BYTES_MAX);
    }
    if (header_bytes > file_bytes - LENGTH_BYTES) {
        return lk_fail(error, LK_BAD_DATA, "%s: the header should be %llu bytes, but the file has "
                       "only %llu after its first 8; was it cut short?", path, header_bytes,
                       file_bytes - LENGTH_BYTES);
    }
    if (start[LENGTH_BYTES] != '{') {
        return lk_fail(error, LK_BAD_DATA, "%s: not a safetensors file: byte 8 is 0x%02x, '{' was "
                       "expected", path, start[LENGTH_BYTES]);
    }
    if (header_bytes > LK_SAFETENSORS_READ_BYTES_MAX) {
        return lk_fail(error, LK_BAD_DATA,
                       "%s: its header is %llu bytes, wanted at most %d, which every model of this "
                       "program fits in; is it a file of another program?",
                       path, header_bytes, LK_SAFETENSORS_READ_BYTES_MAX);
    }
    reader->data_at = LENGTH_BYTES + header_bytes;
    return LK_OK;
}

// The bytes that are parsed are those that whoever hashes the file finds in memory: read once.
static lk_status read_header(lk_safetensors *reader, lk_error *error) {
    LK_CHECK(lk_host_block_map(reader->data_at, &reader->header_block, error));
    reader->header = (const char *)reader->header_block.base;
    return lk_file_read_all(reader->ops, reader->file, reader->path, reader->header_block.base,
                            (size_t)reader->data_at, 0, error);
}

static lk_status parse_header(lk_safetensors *reader, lk_error *error) {
    const char *text = reader->header + LENGTH_BYTES;
    size_t bytes = (size_t)reader->data_at - LENGTH_BYTES;
    json_error_t why;
    if (text[0] != '{') {
        return lk_fail(error, LK_BAD_DATA, "%s: changed while it was read", reader->path);
    }
    reader->json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
    if (!reader->json) {
        return lk_fail(error, LK_BAD_DATA, "%s: safetensors header, byte %d: %s", reader->path,
                       why.position + LENGTH_BYTES, why.text);
    }
    while (text[bytes - 1] == ' ') bytes--;  // the brace at the front ends it
    if (text[bytes - 1] != '}') {
        return lk_fail(error, LK_BAD_DATA,
                       "%s: the safetensors header is padded with byte 0x%02x, "
                       "only spaces are allowed",
                       reader->path, (unsigned char)text[bytes - 1]);
    }
    return LK_OK;
}

// --- reading: the entries ------------------------------------------------------------------------

static lk_status check_metadata(const lk_safetensors *reader, const json_t *metadata,
                                lk_error *error) {
    if (!json_is_object(metadata)) {
        return lk_fail(error, LK_BAD_DATA, "%s: __metadata__ is not an object", reader->path);
    }
    void *at = json_object_iter((json_t *)metadata);
    for (; at; at = json_object_iter_next((json_t *)metadata, at)) {
        if (json_is_string(json_object_iter_value(at))) continue;
        return lk_fail(error, LK_BAD_DATA,
                       "%s: metadata \"%.*s\" is not a string", reader->path, 80,
                       json_object_iter_key(at));
    }
    return LK_OK;
}

static bool take_count(const json_t *value, uint64_t *out) {
    if (!json_is_integer(value) || json_integer_value(value) < 0) return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static bool take_dtype(const json_t *value, lk_safetensors_dtype *out) {
    if (!json_is_string(value)) return false;
    for (unsigned d = 0; d < LK_SAFETENSORS_DTYPE_COUNT; d++) {
        if (strcmp(json_string_value(value), dtypes[d].name) != 0) continue;
        *out = (lk_safetensors_dtype)d;
        return true;
    }
    return false;
}

// One tensor's record; "wrong" is the field that breaks the format, NULL if none does.
static const char *take_entry(lk_safetensors_entry *entry, const json_t *record) {
    const json_t *dtype = json_object_get(record, "dtype");
    const json_t *shape = json_object_get(record, "shape");
    const json_t *offsets = json_object_get(record, "data_offsets");
    if (!json_is_object(record)) return "is not an object";
    if (!take_dtype(dtype, &entry->dtype)) return "has no known dtype";
    if (!json_is_array(shape)) return "has no shape";
    if (json_array_size(shape) > LK_SAFETENSORS_DIMS_MAX) return "has more than 8 dimensions";
    entry->dim_count = (unsigned)json_array_size(shape);
    for (unsigned d = 0; d < entry->dim_count; d++) {
        if (!take_count(json_array_get(shape, d), &entry->dims[d])) {
            return "has a dimension that is not a whole number >= 0";
        }
    }
    if (json_array_size(offsets) != 2 || !take_count(json_array_get(offsets, 0), &entry->begin) ||
        !take_count(json_array_get(offsets, 1), &entry->end)) {
        return "has no data_offsets [begin, end]";
    }
    if (json_object_size(record) != 3) return "has a field that the format does not know";
    if (entry->begin > entry->end) return "ends before it begins";
    return NULL;
}

static lk_status add_entry(lk_safetensors *reader, size_t capacity, const char *name,
                           const json_t *record, lk_error *error) {
    const char *path = reader->path;
    if (reader->entry_count == capacity) {
        return lk_fail(error, LK_BAD_DATA,
                       "%s: has more than %zu tensors; not a file of this model",
                       path, capacity);
    }
    lk_safetensors_entry *entry = &reader->entries[reader->entry_count];
    *entry = (lk_safetensors_entry){.name = name};
    const char *wrong = take_entry(entry, record);
    if (wrong) {
        return lk_fail(error, LK_BAD_DATA, "%s: tensor \"%.*s\" %s", path, 80, name, wrong);
    }
    uint64_t bytes;
    if (!lk_safetensors_bytes(entry->dtype, entry->dim_count, entry->dims, &bytes)) {
        return lk_fail(error, LK_BAD_DATA,
                       "%s: tensor \"%.*s\": its shape overflows 64 bits, or is "
                       "not whole bytes", path, 80, name);
    }
    if (bytes != entry->end - entry->begin) {
        return lk_fail(error, LK_BAD_DATA, "%s: tensor \"%.*s\": its shape needs %llu bytes, its "
                       "data_offsets hold %llu", path, 80, name, (unsigned long long)bytes,
                       (unsigned long long)(entry->end - entry->begin));
    }
    reader->entry_count++;
    return LK_OK;
}

static bool comes_before(const lk_safetensors_entry *a, const lk_safetensors_entry *b) {
    if (a->begin != b->begin) return a->begin < b->begin;
    if (a->end != b->end) return a->end < b->end;  // empty tensors before the one that starts here
    return strcmp(a->name, b->name) < 0;
}

// Shell sort: files are nearly always in order already, and a hostile one may not cost n^2.
static void sort_entries(lk_safetensors_entry *entries, size_t count) {
    size_t gap = 1;
    while (gap < count / 3) gap = gap * 3 + 1;
    for (; gap > 0; gap /= 3) {
        for (size_t i = gap; i < count; i++) {
            lk_safetensors_entry moving = entries[i];
            size_t at = i;
            for (; at >= gap && comes_before(&moving, &entries[at - gap]); at -= gap) {
                entries[at] = entries[at - gap];
            }
            entries[at] = moving;
        }
    }
}

static lk_status check_tiling(const lk_safetensors *reader, lk_error *error) {
    uint64_t end = 0;
    for (size_t i = 0; i < reader->entry_count; i++) {
        const lk_safetensors_entry *entry = &reader->entries[i];
        if (entry->begin != end) {
            return lk_fail(error, LK_BAD_DATA,
                           "%s: tensor \"%.*s\" %s: it begins at data byte %llu, "
                           "%llu was expected", reader->path, 80, entry->name,
                           entry->begin < end ? "overlaps another" : "leaves a hole before it",
                           (unsigned long long)entry->begin, (unsigned long long)end);
        }
        end = entry->end;
    }
    uint64_t present = reader->file_bytes - reader->data_at;
    if (end == present) return LK_OK;
    return lk_fail(error, LK_BAD_DATA,
                   "%s: the header describes %llu data bytes, the file has %llu; "
                   "%s", reader->path, (unsigned long long)end, (unsigned long long)present,
                   end > present ? "it was cut short" : "something was appended to it");
}

static lk_status read_entries(lk_safetensors *reader, size_t capacity, lk_error *error) {
    json_t *root = reader->json;
    for (void *at = json_object_iter(root); at; at = json_object_iter_next(root, at)) {
        const char *name = json_object_iter_key(at);
        const json_t *value = json_object_iter_value(at);
        if (strcmp(name, METADATA_NAME) == 0) {
            LK_CHECK(check_metadata(reader, value, error));
        } else {
            LK_CHECK(add_entry(reader, capacity, name, value, error));
        }
    }
    sort_entries(reader->entries, reader->entry_count);
    return check_tiling(reader, error);
}

static lk_status read_all_of(lk_safetensors *reader, size_t capacity, lk_error *error) {
    LK_CHECK(read_length(reader, error));
    LK_CHECK(read_header(reader, error));
    LK_CHECK(parse_header(reader, error));
    return read_entries(reader, capacity, error);
}

lk_status lk_safetensors_open(lk_safetensors *reader, const lk_file_ops *ops, const char *path,
                              lk_safetensors_entry *entries, size_t entry_capacity,
                              lk_error *error) {
    *reader = (lk_safetensors){.ops = ops, .path = path, .file = -1, .entries = entries};
    LK_CHECK(lk_file_open_read(ops, path, &reader->file, &reader->file_bytes, error));
    if (read_all_of(reader, entry_capacity, error) == LK_OK) return LK_OK;
    lk_safetensors_close(reader);
    return error->status;
}

void lk_safetensors_close(lk_safetensors *reader) {
    json_decref(reader->json);
    reader->json = NULL;
    if (reader->header) lk_host_block_unmap(&reader->header_block);
    reader->header = NULL;
    if (reader->file >= 0) reader->ops->close(reader->ops->context, reader->file);
    reader->file = -1;
}

const lk_safetensors_entry *lk_safetensors_find(const lk_safetensors *reader, const char *name) {
    for (size_t i = 0; i < reader->entry_count; i++) {
        if (strcmp(reader->entries[i].name, name) == 0) return &reader->entries[i];
    }
    return NULL;
}

lk_status lk_safetensors_read(const lk_safetensors *reader, const lk_safetensors_entry *entry,
                              void *data, lk_error *error) {
    return lk_file_read_all(reader->ops, reader->file, reader->path, data,
                            (size_t)(entry->end - entry->begin), reader->data_at + entry->begin,
                            error);
}

const char *lk_safetensors_metadata(const lk_safetensors *reader, const char *key) {
    return json_string_value(json_object_get(json_object_get(reader->json, METADATA_NAME), key));
}

bool lk_safetensors_next_metadata(const lk_safetensors *reader, void **cursor, const char **key,
                                  const char **value) {
    json_t *metadata = json_object_get(reader->json, METADATA_NAME);
    *cursor = *cursor ? json_object_iter_next(metadata, *cursor) : json_object_iter(metadata);
    if (!*cursor) return false;
    *key = json_object_iter_key(*cursor);
    *value = json_string_value(json_object_iter_value(*cursor));
    return true;
}
