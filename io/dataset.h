// dataset.h - the examples of a run: opened and checked once, then read by index.
//
// Host only. Knows where examples lie, not what a step does with them. After lk_dataset_open
// nothing here allocates, and reading is pointer arithmetic into read-only maps: the page cache is
// the only copy of a data set. Examples are numbered over all shards in the manifest's order, so
// any number of shards of the same data gives the same bits.
//
// Intended use:
//
//     lk_dataset_source source = {.kind = LK_DATASET_IDX, .images = "train-images-idx3-ubyte.gz",
//                                 .labels = "train-labels-idx1-ubyte.gz", .classes = 10};
//     uint64_t bytes;
//     LK_CHECK(lk_dataset_bytes(&source, &bytes, &error));
//     LK_CHECK(lk_dataset_open(&source, memory, bytes, &set, &error));
//     const uint8_t *image = lk_dataset_image(&set, lk_shuffle(seed, epoch, set.count, position));
//     lk_dataset_close(&set);
#ifndef LOCKSTEP_IO_DATASET_H
#define LOCKSTEP_IO_DATASET_H

#include "arena/base.h"
#include "arena/sha256.h"
#include "io/data_file.h"
#include "io/idx.h"
#include "io/made_up.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum lk_dataset_kind {
    LK_DATASET_IDX,       // one pair of IDX files, plain or .gz
    LK_DATASET_MANIFEST,  // the shards that manifest.json names
    LK_DATASET_MADE_UP,   // io/made_up.h; as f32 what LOAD makes of its bytes, byte / 255
    LK_DATASET_HELD,      // in the caller's memory, unchanged while the set is open
} lk_dataset_kind;

typedef struct lk_dataset_held {
    const void *images;     // (count, height, width, channels), floats as the machine has them
    const void *labels;     // (count)
    uint64_t count;         // from 1
    uint32_t height, width, channels;
    lk_idx_type type;        // of an image's values; 0: u8
    lk_idx_type label_type;  // u8, or u16 as the machine has them, of which a copy is made; 0: u8
} lk_dataset_held;

typedef struct lk_dataset_source {
    lk_dataset_kind kind;
    const char *images, *labels;  // paths; LK_DATASET_IDX
    const char *manifest;         // path; LK_DATASET_MANIFEST
    lk_made_up made_up;           // LK_DATASET_MADE_UP
    lk_dataset_held held;         // LK_DATASET_HELD
    uint32_t label_bytes;         // .. of an example's row of u8, where labels are sequences; 0:
                                  // they are none
    bool one_label;               // strips are made of it: it must not have sequences
    uint32_t classes;             // every label must be below; 0: the largest label decides, of
                                  // LK_DATASET_MADE_UP its own number
    lk_idx_type type;             // that every image's values must have; 0: what they have
    uint64_t examples;            // the run sees the first of them alone, this many; 0: all
    const char *cache;            // directory for unpacked files and records; NULL: the user's
                                  // ($XDG_CACHE_HOME or ~/.cache)/lockstep; "": none
    bool verify;                  // believe no record and nothing unpacked, look at every byte
    bool populate;                // map every page at once: slower start, no faults later
    bool some;                    // LK_DATASET_MANIFEST: only shards [first_shard, first_shard +
    uint32_t first_shard, shard_count;  // shard_count) need to be here, and can be read
} lk_dataset_source;

typedef struct lk_dataset_file {
    const uint8_t *data;  // the first example
    const uint8_t *map;   // the whole file; NULL for made-up data and the caller's
    uint64_t map_bytes;
    const char *name;     // as the user or the manifest wrote it
    const char *path;     // what is mapped, where that has a name; else NULL
    lk_data_state state;  // .. as it was
} lk_dataset_file;

typedef struct lk_dataset_part {
    uint64_t first, count;  // examples
    lk_dataset_file images, labels;  // data is NULL in a shard that is not wanted
} lk_dataset_part;

typedef struct lk_dataset_proof lk_dataset_proof;

typedef struct lk_dataset {
    uint64_t count;                     // examples
    uint32_t height, width, channels;   // of an image, in that order in memory
    uint32_t classes;                   // every label is below
    lk_idx_type type;                   // of an image's values
    bool native;                        // .. f32 in the machine's order of bytes, not big-endian
    uint64_t image_bytes;               // height x width x channels values
    bool sequences;                     // an example has a row of labels (io/idx.h), else one
    lk_idx_type label_type;             // of a label: u8, or u16, the upper byte first
    uint32_t label_bytes;               // of an example's label, or of its row
    uint64_t mapped_bytes;              // of files, headers included
    uint8_t sha256[LK_SHA256_BYTES];    // the data hash: all image bytes, then all labels, as they
                                        // lie in IDX files: the same wherever the values came from
    uint32_t part_count;                // shards
    lk_dataset_part *parts;             // (part_count), in the caller's memory
    lk_dataset_proof *proof;            // hashes of its pieces, in the caller's memory
    bool healed;                        // what was unpacked in the cache had rotted: done again
} lk_dataset;

// Bytes that lk_dataset_open needs for the shard table, for the examples of made-up data, and for
// labels of two bytes that the caller holds.
// Reads the manifest; opens no data file. LK_NO_INPUT, LK_BAD_DATA, LK_BAD_CONFIG.
lk_status lk_dataset_bytes(const lk_dataset_source *source, uint64_t *bytes, lk_error *error);

// Opens, maps and checks all files: format, shape, size, counts, labels. Then the data hash:
// believed from the cache's record where the files are as they were when it was taken, and some of
// their bytes, chosen by chance, are; else computed. A record stands for the manifest's digests
// with which it was taken, and for no others. Where only some shards are wanted, each of them is
// checked by its own digests, and the data hash is the manifest's word.
//
// memory   `bytes` bytes as lk_dataset_bytes says, aligned to 64; must outlive the data set
// LK_NO_INPUT   a file is missing, unreadable or a directory
// LK_BAD_DATA   a file is damaged, is not what it is named as, or does not fit the others
// LK_IO_ERROR   mapping or unpacking failed
// After a failure nothing is left open.
lk_status lk_dataset_open(const lk_dataset_source *source, void *memory, uint64_t bytes,
                          lk_dataset *out, lk_error *error);

// The same with source->verify: unpacks again, computes every hash again, renews the records. Bytes
// that differ from a record under the same stamp are LK_BAD_DATA: nobody wrote them.
lk_status lk_dataset_verify(const lk_dataset_source *source, void *memory, uint64_t bytes,
                            lk_dataset *out, lk_error *error);

void lk_dataset_close(lk_dataset *set);

// One example, by its index below count. The image is (height, width, channels), of bytes or of
// floats, which lie as they come, at any address. Pointer arithmetic and log2(part_count)
// comparisons.
const uint8_t *lk_dataset_image(const lk_dataset *set, uint64_t index);
// Number `index` of the labels, one an example. Of sequences each example has a row of numbers: how
// many frames it has, its labels, zeros behind them.
uint32_t lk_dataset_label(const lk_dataset *set, uint64_t index);
static inline uint32_t lk_dataset_label_row(const lk_dataset *set) {
    return set->sequences ? lk_idx_row_numbers(set->label_bytes, set->label_type) : 1;
}

// While the set is used. Nothing here allocates, and none of it waits for a lock.
//
// Has no file been changed in place? One stat each; and where that cannot tell (io/data_file.h,
// "young"; new times, or such that were set back), all bytes. LK_BAD_DATA names the file. A file
// that was moved, removed or replaced is none of these: what is mapped stays what it was.
lk_status lk_dataset_unchanged(lk_dataset *set, lk_error *error);
// One more chunk of 64 KiB at most, and where it ends a piece, whether that is still what was
// hashed at the start or recorded before it: LK_BAD_DATA. After the last it begins anew.
lk_status lk_dataset_scrub(lk_dataset *set, lk_error *error);
// Every label once more. LK_BAD_DATA names the first from `classes` on.
lk_status lk_dataset_check_labels(const lk_dataset *set, uint32_t classes, lk_error *error);

// Does the address lie in a mapped file, and in which? For the handler of SIGBUS: somebody cut a
// file short while it was mapped. Async-signal-safe. `file` may be NULL.
bool lk_dataset_owns_address(const lk_dataset *set, const void *address, const char **file);

// Writes the set as `shards` pairs of IDX files and a manifest.json into `directory`, which is made
// where missing. Sizes differ by at most one, the larger ones first (60,000 over 7: 8,572 x 3, then
// 8,571 x 4). Every file: temporary, sync, rename; the manifest last, so a directory with a
// manifest is whole. LK_BAD_USAGE: more shards than examples, none, or there is a manifest already.
// LK_UNAVAILABLE: another process is at it. LK_IO_ERROR.
lk_status lk_dataset_shard(const lk_dataset *set, uint32_t shards, const char *directory,
                           lk_error *error);

#ifdef __cplusplus
}
#endif
#endif
