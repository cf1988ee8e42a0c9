// manifest.h - manifest.json: how a data set is spread over pairs of IDX files.
//
// Host only, start-up only. Knows names and numbers, not the files themselves.
//
//   {
//     "format": "lockstep-manifest-1",
//     "count": 60000, "height": 28, "width": 28, "channels": 1,
//     "type": "u8",                  or "f32"; may be left out: u8
//     "data_sha256": "...",          SHA-256 over all image bytes, then all labels, no headers
//     "shards": [                    in order: example 0 is the first of shard 0
//       {"count": 8572,
//        "images": "images-00000.idx", "images_sha256": "...",      of the whole file
//        "labels": "labels-00000.idx", "labels_sha256": "..."}
//     ]
//   }
//
// Every other key is needed, no more are allowed. Shard files lie beside the manifest and are plain
// names: no '/', not beginning with '.'. Digests are 64 lower-case hexadecimal digits.
#ifndef LOCKSTEP_IO_MANIFEST_H
#define LOCKSTEP_IO_MANIFEST_H

#include "arena/base.h"
#include "arena/sha256.h"
#include "io/json.h"

#define LK_MANIFEST_FORMAT "lockstep-manifest-1"

enum { LK_MANIFEST_NAME_BYTES = 256 };

typedef struct lk_manifest {
    lk_json document;
    uint64_t count;  // examples, the sum of the shards'
    uint32_t height, width, channels;
    bool is_f32;
    uint32_t shard_count;
    uint8_t data_sha256[LK_SHA256_BYTES];
} lk_manifest;

typedef struct lk_manifest_shard {
    uint64_t count;
    char images[LK_MANIFEST_NAME_BYTES], labels[LK_MANIFEST_NAME_BYTES];
    uint8_t images_sha256[LK_SHA256_BYTES], labels_sha256[LK_SHA256_BYTES];
} lk_manifest_shard;

// Reads and checks all of a manifest. LK_NO_INPUT where the file is not there, LK_BAD_DATA for what
// is wrong inside. Close it in any case.
lk_status lk_manifest_load(const char *path, lk_manifest *out, lk_error *error);
lk_status lk_manifest_parse(const char *text, size_t bytes, const char *name, lk_manifest *out,
                            lk_error *error);

// One shard, below shard_count; cannot fail after a load that did not.
lk_status lk_manifest_get(const lk_manifest *manifest, uint32_t shard, lk_manifest_shard *out,
                          lk_error *error);

// How a manifest cuts its examples, without opening one of them.
//
// first    (shard_count + 1) the number of the first example of each shard; behind them, of all
// sha256   of the sizes and digests of all shards, in their order
lk_status lk_manifest_cut(const lk_manifest *manifest, uint64_t *first,
                          uint8_t sha256[LK_SHA256_BYTES], lk_error *error);

void lk_manifest_close(lk_manifest *manifest);

#endif
