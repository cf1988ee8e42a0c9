// safetensors_fuzz.c - any bytes at all go into the safetensors and checkpoint readers.
//
// Besides the sanitizers' complaints, what was accepted must keep the reader's promises: entries
// that tile the data exactly, inside of the file, with shapes that fit, and that can all be read.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "io/checkpoint.h"

typedef struct blob {
    const uint8_t *data;
    size_t bytes;
} blob;

static int blob_open(void *context, const char *path, lk_open_mode mode) {
    (void)context, (void)path;
    return mode == LK_OPEN_READ ? 0 : -EACCES;
}

static int blob_close(void *context, int file) {
    (void)context, (void)file;
    return 0;
}

static int64_t blob_size(void *context, int file) {
    (void)file;
    return (int64_t)((const blob *)context)->bytes;
}

static int64_t blob_read(void *context, int file, void *data, size_t bytes, uint64_t offset) {
    const blob *b = context;
    (void)file;
    if (offset >= b->bytes) return 0;
    size_t done = LK_MIN(bytes, b->bytes - (size_t)offset);
    memcpy(data, b->data + offset, done);
    return (int64_t)done;
}

static void require(bool promise) {
    if (!promise) abort();
}

static void check_promises(const lk_safetensors *reader, lk_error *error) {
    uint64_t end = 0;
    for (size_t i = 0; i < reader->entry_count; i++) {
        const lk_safetensors_entry *entry = &reader->entries[i];
        uint64_t bytes = 0;
        require(entry->begin == end && entry->end >= entry->begin);
        require(lk_safetensors_bytes(entry->dtype, entry->dim_count, entry->dims, &bytes));
        require(bytes == entry->end - entry->begin);
        void *copy = malloc((size_t)bytes + 1);
        require(copy && lk_safetensors_read(reader, entry, copy, error) == LK_OK);
        free(copy);
        require(lk_safetensors_find(reader, entry->name) == entry);
        end = entry->end;
    }
    require(reader->data_at + end == reader->file_bytes);
    void *cursor = NULL;
    const char *key, *value;
    while (lk_safetensors_next_metadata(reader, &cursor, &key, &value)) require(key && value);
}

// What was accepted holds finite numbers alone.
static void check_finite(const lk_safetensors *reader, const uint8_t *values) {
    for (size_t i = 0; i < reader->entry_count; i++) {
        const lk_safetensors_entry *entry = &reader->entries[i];
        for (uint64_t at = entry->begin; entry->dtype == LK_SAFETENSORS_F32 && at < entry->end;
             at += 4) {
            uint32_t bits;
            memcpy(&bits, values + at, sizeof bits);
            require((bits & 0x7f800000) != 0x7f800000);
        }
    }
}

// Whether it is verified without memory, into one block, or into tensors: the same verdict.
static void check_ways(const lk_file_ops *ops, const char *path, size_t bytes, lk_status wanted) {
    static lk_safetensors_entry entries[64];
    lk_safetensors_tensor tensors[64];
    lk_safetensors reader;
    lk_error error = {0}, why[2] = {{0}, {0}};
    uint64_t step;
    if (lk_checkpoint_peek(&reader, ops, path, entries, LK_COUNT(entries), &error) != LK_OK) {
        require(wanted != LK_OK);
        return;
    }
    uint8_t *values = malloc(bytes + 1), *others = malloc(bytes + 1);
    require(values && others);
    for (size_t i = 0; i < reader.entry_count; i++) {
        const lk_safetensors_entry *entry = &entries[i];
        tensors[i] = (lk_safetensors_tensor){
            entry->name, entry->dtype, entry->dim_count, {0}, others + entry->begin};
        memcpy(tensors[i].dims, entry->dims, sizeof tensors[i].dims);
    }
    require(lk_checkpoint_read(&reader, values, &step, &why[0]) == wanted);
    require(lk_checkpoint_load(&reader, tensors, reader.entry_count, &step, &why[1]) == wanted);
    require(strcmp(why[0].text, why[1].text) == 0);
    size_t used = (size_t)(reader.file_bytes - reader.data_at);
    if (wanted == LK_OK) {
        require(memcmp(values, others, used) == 0);
        check_finite(&reader, values);
    }
    free(values);
    free(others);
    lk_safetensors_close(&reader);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static lk_safetensors_entry entries[64];
    blob b = {data, bytes};
    const lk_file_ops ops = {
        .context = &b,
        .open = blob_open,
        .close = blob_close,
        .size = blob_size,
        .read = blob_read,
    };
    lk_safetensors reader;
    lk_error error = {0};
    uint64_t step;
    if (lk_safetensors_open(&reader, &ops, "input", entries, LK_COUNT(entries), &error) == LK_OK) {
        check_promises(&reader, &error);
        lk_safetensors_close(&reader);
    } else {
        require(error.status == LK_BAD_DATA && error.text[0] && !strchr(error.text, '\n'));
    }
    error = (lk_error){0};
    const char *path = "step-0000000010.safetensors";
    lk_status status =
        lk_checkpoint_open(&reader, &ops, path, entries, LK_COUNT(entries), &step, &error);
    if (status == LK_OK) {
        require(step == 10);
        lk_safetensors_close(&reader);
    }
    check_ways(&ops, path, bytes, status);
    return 0;
}
