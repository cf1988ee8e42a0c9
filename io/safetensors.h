// safetensors.h - the safetensors format: a writer without heap, and a strict reader.
//
//   u64 N | N bytes of JSON, padded with spaces | tensor bytes        (little-endian, C order)
//   {"__metadata__":{"key":"value"},"name":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}
//
// The writer pads the header so that the tensor bytes start at a multiple of 64: a reader may map
// the file and compute on it. The reader trusts nothing: every rule of the format is checked before
// an entry is handed out, and each broken rule has a line of its own.
//
// Host only. Knows nothing of runs or checkpoints. Reading is for start-up: jansson uses the heap.
#ifndef LOCKSTEP_IO_SAFETENSORS_H
#define LOCKSTEP_IO_SAFETENSORS_H

#include "arena/host_memory.h"
#include "io/file_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    LK_SAFETENSORS_DIMS_MAX = 8,
    LK_SAFETENSORS_ALIGNMENT_BYTES = 64,  // of the first tensor byte, in files that we write
    LK_SAFETENSORS_HEADER_BYTES_MAX = 100000000,  // the format's own limit
    // What is read: three times the header of the largest model that trains here. To parse a
    // stranger's takes some 25 bytes of memory for each of its own.
    LK_SAFETENSORS_READ_BYTES_MAX = 1 << 20,
};

//        name            bits of one element
#define LK_SAFETENSORS_DTYPE_LIST(X)                                                       \
    X(BOOL, 8) X(F4, 4) X(F6_E2M3, 6) X(F6_E3M2, 6) X(U8, 8) X(I8, 8) X(F8_E5M2, 8)         \
    X(F8_E4M3, 8) X(F8_E8M0, 8) X(F8_E4M3FNUZ, 8) X(F8_E5M2FNUZ, 8) X(I16, 16) X(U16, 16)   \
    X(F16, 16) X(BF16, 16) X(I32, 32) X(U32, 32) X(F32, 32) X(C64, 64) X(F64, 64) X(I64, 64) \
    X(U64, 64)

typedef enum lk_safetensors_dtype {
#define LK_SAFETENSORS_ENUM(name, bits) LK_SAFETENSORS_##name,
    LK_SAFETENSORS_DTYPE_LIST(LK_SAFETENSORS_ENUM)
#undef LK_SAFETENSORS_ENUM
    LK_SAFETENSORS_DTYPE_COUNT
} lk_safetensors_dtype;

const char *lk_safetensors_dtype_name(lk_safetensors_dtype dtype);

// One tensor of the caller's: the writer reads `data`, a checkpoint load fills it.
typedef struct lk_safetensors_tensor {
    const char *name;                        // UTF-8, unique, not "__metadata__"
    lk_safetensors_dtype dtype;
    unsigned dim_count;                      // 0 = scalar
    uint64_t dims[LK_SAFETENSORS_DIMS_MAX];  // elements; 0 is allowed
    void *data;                              // whole tensor, C order, little-endian
} lk_safetensors_tensor;

// Bytes of a tensor. False where they overflow, or are not whole.
bool lk_safetensors_bytes(lk_safetensors_dtype dtype, unsigned dim_count, const uint64_t *dims,
                          uint64_t *bytes);

typedef struct lk_safetensors_pair {
    const char *key, *value;  // UTF-8; keys unique
} lk_safetensors_pair;

// --- writing (no heap) ---------------------------------------------------------------------------

typedef struct lk_safetensors_content {
    const lk_safetensors_pair *metadata;   // written in this order
    size_t metadata_count;
    const lk_safetensors_tensor *tensors;  // written in this order
    size_t tensor_count;
} lk_safetensors_content;

// Builds everything that stands before the tensor bytes: length, JSON and padding.
//
// out        (capacity)  may be NULL with capacity 0: then only measures, by the same code
// used       bytes of the header, a multiple of 64
// data_bytes sum of all tensors; may be NULL
//
// LK_INTERNAL: a name twice, text that is not UTF-8, too many dimensions, or a buffer too small.
lk_status lk_safetensors_header(const lk_safetensors_content *content, void *out, size_t capacity,
                                size_t *used, uint64_t *data_bytes, lk_error *error);

// Writes the header built above and all tensor bytes to an open, empty file.
lk_status lk_safetensors_write(const lk_safetensors_content *content, const void *header,
                               size_t header_bytes, const lk_file_ops *ops, int file,
                               const char *path, lk_error *error);

// The same as a file of its own: written to <path>.tmp, synced, read back and compared byte by byte
// with the memory, renamed to `path`, the directory synced. So `path` is what it was or the whole
// new file, whatever goes wrong; a crash may leave the temporary one.
// LK_IO_ERROR: the disk failed; LK_BAD_DATA: what was read back is not what was written.
lk_status lk_safetensors_save(const lk_safetensors_content *content, const void *header,
                              size_t header_bytes, const lk_file_ops *ops, const char *path,
                              lk_error *error);

// --- reading (start-up only) ---------------------------------------------------------------------

typedef struct lk_safetensors_entry {
    const char *name;  // lives as long as the reader is open
    lk_safetensors_dtype dtype;
    unsigned dim_count;
    uint64_t dims[LK_SAFETENSORS_DIMS_MAX];
    uint64_t begin, end;  // bytes, from the first tensor byte
} lk_safetensors_entry;

typedef struct lk_safetensors {
    const lk_file_ops *ops;
    const char *path;               // the caller's, kept
    int file;                       // -1 when closed
    uint64_t file_bytes;
    uint64_t data_at;               // offset in the file of the first tensor byte
    lk_host_block header_block;
    const char *header;             // (data_at) all bytes before it, read once
    void *json;                     // ... parsed
    lk_safetensors_entry *entries;  // the caller's, sorted by begin: no hole, no overlap
    size_t entry_count;
} lk_safetensors;

// Opens a file and checks all of it but the values: length, JSON without duplicate keys, metadata
// of strings, known dtypes, shapes that fit their offsets, offsets that tile the rest of the file.
// A header above LK_SAFETENSORS_READ_BYTES_MAX is refused before it is read.
// LK_NO_INPUT: no such file. LK_BAD_DATA: broken, named. Nothing is left open after a failure.
lk_status lk_safetensors_open(lk_safetensors *reader, const lk_file_ops *ops, const char *path,
                              lk_safetensors_entry *entries, size_t entry_capacity,
                              lk_error *error);
void lk_safetensors_close(lk_safetensors *reader);

const lk_safetensors_entry *lk_safetensors_find(const lk_safetensors *reader, const char *name);

// data   (entry->end - entry->begin bytes)
lk_status lk_safetensors_read(const lk_safetensors *reader, const lk_safetensors_entry *entry,
                              void *data, lk_error *error);

// The value of a metadata key, or NULL.
const char *lk_safetensors_metadata(const lk_safetensors *reader, const char *key);

// Walks the metadata in file order: `cursor` starts as NULL. False after the last pair.
bool lk_safetensors_next_metadata(const lk_safetensors *reader, void **cursor, const char **key,
                                  const char **value);

#ifdef __cplusplus
}
#endif
#endif
