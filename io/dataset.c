// dataset.c - opening and reading data sets: one pair of files, shards, or made-up. Host only.
//
// One path for all kinds: fill the table of parts, then check labels, then find the data hash.
#define _GNU_SOURCE
#include "io/dataset.h"

#include <endian.h>
#include <sodium.h>
#include <string.h>
#include <unistd.h>

#include "io/data_file.h"
#include "io/dataset_proof.h"
#include "io/gunzip.h"
#include "io/idx.h"
#include "io/manifest.h"

typedef unsigned long long ull;

enum { ALIGNMENT = 64 };

// What is needed only while a data set is opened.
typedef struct opening {
    const lk_dataset_source *source;
    lk_dataset *set;
    lk_error *error;
    bool trust;
    bool healing;                // after an opening that found rotten bytes
    bool cached;                 // `cache` is a directory
    char cache[LK_PATH_BYTES];
    uint64_t name;               // of all files, joined: names the record
    uint64_t stamp;              // of all files, joined
    bool young;                  // one of them is: its stamp says nothing
    bool unpacked, rotted;       // a file lies in the cache; bytes are not what their record says
    lk_manifest manifest;        // LK_DATASET_MANIFEST
    char *text;                  // where the next name goes, in the caller's memory
} opening;

// The proof lies before the parts, and both before names and made-up examples.
#define PROOF_BYTES lk_round_up(sizeof(lk_dataset_proof), ALIGNMENT)

// --- memory --------------------------------------------------------------------------------------

// The directory of a manifest with its final '/', or "".
static int folder_length(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? (int)(slash - path + 1) : 0;
}

static lk_status manifest_bytes(const char *path, const lk_manifest *m, uint64_t *bytes,
                                lk_error *error) {
    lk_manifest_shard shard;
    *bytes = PROOF_BYTES + m->shard_count * sizeof(lk_dataset_part);
    for (uint32_t i = 0; i < m->shard_count; i++) {
        LK_CHECK(lk_manifest_get(m, i, &shard, error));
        *bytes += 2 * ((uint64_t)folder_length(path) + 1) + strlen(shard.images) +
                  strlen(shard.labels);
    }
    return LK_OK;
}

static lk_idx_type type_of(const lk_dataset_source *source) {
    return source->type ? source->type : LK_IDX_U8;
}

// Of made-up examples only those that are wanted are made.
static uint64_t made_up_count(const lk_dataset_source *source) {
    const uint64_t all = source->made_up.count, wanted = source->examples;
    return wanted ? LK_MIN(wanted, all) : all;
}

// Labels of the caller's are copied where their bytes do not lie as those of a file.
static lk_status held_bytes(const lk_dataset_held *h, uint64_t *bytes, lk_error *error) {
    if (h->label_type != LK_IDX_U16) return LK_OK;
    if (h->count <= UINT32_MAX) {
        *bytes += h->count * sizeof(uint16_t);
        return LK_OK;
    }
    return lk_fail(error, LK_BAD_DATA, "examples in memory: found %llu, wanted at most 2^32 - 1",
                   (ull)h->count);
}

lk_status lk_dataset_bytes(const lk_dataset_source *source, uint64_t *bytes, lk_error *error) {
    *bytes = PROOF_BYTES + sizeof(lk_dataset_part);
    switch (source->kind) {
    case LK_DATASET_IDX:  // and the names of what is unpacked
        *bytes += strlen(source->images) + strlen(source->labels) + 2 + 2 * LK_PATH_BYTES;
        return LK_OK;
    case LK_DATASET_MADE_UP:
        LK_CHECK(lk_made_up_check(&source->made_up, error));
        *bytes = lk_round_up(*bytes, ALIGNMENT) +
                 made_up_count(source) *
                     (lk_made_up_image_bytes(&source->made_up) *
                          lk_idx_type_bytes(type_of(source)) +
                      lk_idx_type_bytes(lk_idx_label_type(source->made_up.classes)));
        return LK_OK;
    case LK_DATASET_HELD: return held_bytes(&source->held, bytes, error);
    case LK_DATASET_MANIFEST:
        break;
    }
    lk_manifest manifest;
    lk_status status = lk_manifest_load(source->manifest, &manifest, error);
    if (status == LK_OK) status = manifest_bytes(source->manifest, &manifest, bytes, error);
    lk_manifest_close(&manifest);
    return status;
}

// Keeps "folder + name" in the caller's memory; lk_dataset_bytes counted it.
static const char *keep_name(opening *o, int folder_bytes, const char *folder, const char *name) {
    char *kept = o->text;
    size_t length = lk_format(kept, SIZE_MAX, "%.*s%s", folder_bytes, folder, name);
    o->text += length + 1;
    return kept;
}

// --- files ---------------------------------------------------------------------------------------

static bool is_gzip(int fd, const char *name) {
    uint8_t magic[2];
    size_t length = strlen(name);
    if (length >= 3 && strcmp(name + length - 3, ".gz") == 0) return true;
    return pread(fd, magic, 2, 0) == 2 && magic[0] == 0x1f && magic[1] == 0x8b;
}

// Opens file->name, through the cache where it is packed; `path` is what was really opened.
static lk_status open_file(opening *o, const lk_dataset_file *file, int *fd, struct stat *info,
                           char path[LK_PATH_BYTES]) {
    LK_CHECK(lk_path_join(path, file->name, "", "", o->error));
    LK_CHECK(lk_data_open(file->name, fd, info, o->error));
    if (o->source->kind != LK_DATASET_IDX || !is_gzip(*fd, file->name)) return LK_OK;
    close(*fd);
    const char *cache = o->cached ? o->cache : NULL;
    o->unpacked = true;
    LK_CHECK(lk_gunzip_cached(file->name, cache, o->trust, fd, path, o->error));
    if (fstat(*fd, info) == 0) return LK_OK;
    close(*fd);
    return lk_fail(o->error, LK_IO_ERROR, "%s: cannot look at the unpacked file", path);
}

// Maps file->name and reads its header.
static lk_status map_file(opening *o, lk_idx_kind kind, lk_dataset_file *file, lk_idx *idx) {
    char path[LK_PATH_BYTES];
    struct stat info;
    int fd;
    LK_CHECK(open_file(o, file, &fd, &info, path));
    o->name = lk_data_name(o->name, file->name);
    o->stamp = lk_data_stamp(o->stamp, &info);
    file->state = lk_data_state_of(&info);
    file->path = strcmp(path, file->name) == 0 ? file->name : keep_name(o, 0, "", path);
    o->young = o->young || file->state.young;
    uint64_t bytes = (uint64_t)info.st_size;
    const bool populate = o->source->populate;
    lk_status status = lk_data_map(fd, bytes, populate, file->name, &file->map, o->error);
    close(fd);
    LK_CHECK(status);
    file->map_bytes = bytes;
    o->set->mapped_bytes += bytes;
    LK_CHECK(lk_idx_parse(file->map, bytes, bytes, kind, file->name, idx, o->error));
    file->data = file->map + idx->header_bytes;
    return LK_OK;
}

// What the manifest says of a shard's images.
static lk_status check_shard(const opening *o, const char *name, const lk_idx *images,
                             uint64_t wanted) {
    const lk_manifest *m = &o->manifest;
    if (images->count != wanted)
        return lk_fail(o->error, LK_BAD_DATA, "%s: byte 4: found %u examples, wanted %llu by %s",
                       name, images->count, (ull)wanted, o->source->manifest);
    if (images->height != m->height || images->width != m->width ||
        images->channels != m->channels)
        return lk_fail(o->error, LK_BAD_DATA,
                       "%s: byte 8: found images of %u x %u x %u, wanted %u x %u x %u by %s", name,
                       images->height, images->width, images->channels, m->height, m->width,
                       m->channels, o->source->manifest);
    return LK_OK;
}

static const char *type_name(lk_idx_type type) { return type == LK_IDX_F32 ? "f32" : "u8"; }

static lk_status check_type(const opening *o, const char *name, lk_idx_type found) {
    const lk_idx_type wanted = o->source->type;
    if (o->source->kind == LK_DATASET_MANIFEST && o->manifest.is_f32 != (found == LK_IDX_F32)) {
        return lk_fail(o->error, LK_BAD_DATA, "%s: byte 2: found %s values, wanted %s by %s", name,
                       type_name(found), type_name(o->manifest.is_f32 ? LK_IDX_F32 : LK_IDX_U8),
                       o->source->manifest);
    }
    if (!wanted || found == wanted) return LK_OK;
    return lk_fail(o->error, LK_BAD_DATA,
                   "%s: found %s values, wanted %s; set model.input_type to \"%s\", or convert "
                   "them",
                   name, type_name(found), type_name(wanted), type_name(found));
}

// A row of one byte is a label, too.
static lk_status take_label_shape(const opening *o, const char *name, const lk_idx *labels) {
    lk_dataset *set = o->set;
    const bool sequences = labels->ndim == 2 && labels->height > 1;
    if (sequences && o->source->one_label)
        return lk_fail(o->error, LK_BAD_CONFIG,
                       "%s: byte 3: found labels that are sequences, wanted one label an example: "
                       "data.strips puts images with one label each behind each other; leave "
                       "data.strips out, or name other data",
                       name);
    if (set->label_bytes && (set->label_bytes != labels->example_bytes ||
                             set->label_type != labels->type || set->sequences != sequences))
        return lk_fail(o->error, LK_BAD_DATA,
                       "%s: byte 2: found labels of %u bits, %llu bytes of an example, wanted %u "
                       "bits and %u bytes, as in the shards before it; shard the data again", name,
                       8 * lk_idx_type_bytes(labels->type), (ull)labels->example_bytes,
                       8 * lk_idx_type_bytes(set->label_type), set->label_bytes);
    set->sequences = sequences;
    set->label_type = labels->type;
    set->label_bytes = (uint32_t)labels->example_bytes;
    return LK_OK;
}

// Adds the pair of files whose names `part` has. `wanted`: examples by the manifest, or 0.
static lk_status add_part(opening *o, lk_dataset_part *part, uint64_t wanted) {
    lk_dataset *set = o->set;
    lk_idx images, labels;
    set->part_count++;  // from here on lk_dataset_close unmaps it
    LK_CHECK(map_file(o, LK_IDX_IMAGES, &part->images, &images));
    LK_CHECK(check_type(o, part->images.name, images.type));
    if (wanted) LK_CHECK(check_shard(o, part->images.name, &images, wanted));
    LK_CHECK(map_file(o, LK_IDX_LABELS, &part->labels, &labels));
    LK_CHECK(lk_idx_check_counts(images.count, part->images.name, labels.count, part->labels.name,
                                 o->error));
    set->height = images.height;
    set->width = images.width;
    set->channels = images.channels;
    set->type = images.type;
    set->image_bytes = images.example_bytes;
    LK_CHECK(take_label_shape(o, part->labels.name, &labels));
    part->first = set->count;
    part->count = images.count;
    set->count += images.count;
    return LK_OK;
}

static lk_status open_pair(opening *o) {
    lk_dataset_part *part = o->set->parts;
    part->images.name = keep_name(o, 0, "", o->source->images);
    part->labels.name = keep_name(o, 0, "", o->source->labels);
    return add_part(o, part, 0);
}

static bool is_wanted(const lk_dataset_source *source, uint32_t shard) {
    return !source->some ||
           (shard >= source->first_shard && shard - source->first_shard < source->shard_count);
}

// A shard that may lie elsewhere: only its place in the numbering.
static void pass_over(lk_dataset *set, lk_dataset_part *part, uint64_t count) {
    set->part_count++;
    part->first = set->count;
    part->count = count;
    set->count += count;
}

// The record is of these shards with these digests: others are other data.
static void name_shard(opening *o, uint32_t number, const lk_manifest_shard *shard) {
    o->name = lk_data_fast_hash(o->name, &number, sizeof number);
    o->name = lk_data_fast_hash(o->name, shard->images_sha256, LK_SHA256_BYTES);
    o->name = lk_data_fast_hash(o->name, shard->labels_sha256, LK_SHA256_BYTES);
}

// Of a worker that needs some shards it is said which one it has no good files of.
static lk_status in_shard(const opening *o, uint32_t number, lk_status status) {
    char why[LK_ERROR_TEXT_BYTES];
    if (status == LK_OK || !o->source->some) return status;
    lk_format(why, sizeof why, "%s", o->error->text);
    o->error->status = LK_OK;
    return lk_fail(o->error, status, "shard %u of %u: %s", number, o->manifest.shard_count, why);
}

static lk_status open_shards(opening *o) {
    const lk_manifest *m = &o->manifest;
    const char *path = o->source->manifest;
    lk_manifest_shard shard;
    if (o->source->some) o->name = lk_data_fast_hash(o->name, m->data_sha256, LK_SHA256_BYTES);
    for (uint32_t i = 0; i < m->shard_count; i++) {
        lk_dataset_part *part = &o->set->parts[i];
        LK_CHECK(lk_manifest_get(m, i, &shard, o->error));
        part->images.name = keep_name(o, folder_length(path), path, shard.images);
        part->labels.name = keep_name(o, folder_length(path), path, shard.labels);
        if (!is_wanted(o->source, i)) {
            pass_over(o->set, part, shard.count);
            continue;
        }
        name_shard(o, i, &shard);
        LK_CHECK(in_shard(o, i, add_part(o, part, shard.count)));
    }
    o->set->height = m->height;
    o->set->width = m->width;
    o->set->channels = m->channels;
    o->set->type = m->is_f32 ? LK_IDX_F32 : LK_IDX_U8;
    o->set->image_bytes =
        (uint64_t)m->height * m->width * m->channels * lk_idx_type_bytes(o->set->type);
    return LK_OK;
}

// One example: as bytes, or as floats that are widened from the front while the bytes, which lie at
// the end of the same place, are read: byte i never behind float i.
static void make_up_example(const lk_made_up *m, uint64_t number, lk_idx_type type, uint8_t *image,
                            uint32_t *label) {
    const uint64_t count = lk_made_up_image_bytes(m);
    const uint8_t *bytes = image + (lk_idx_type_bytes(type) - 1) * count;
    lk_made_up_example(m, number, image + (lk_idx_type_bytes(type) - 1) * count, label);
    for (uint64_t i = 0; type == LK_IDX_F32 && i < count; i++) {
        const float value = (float)bytes[i] * 0x1.010102p-8f;
        memcpy(image + i * sizeof value, &value, sizeof value);
    }
}

static lk_status make_up(opening *o, uint8_t *memory) {
    const lk_made_up *m = &o->source->made_up;
    lk_dataset *set = o->set;
    const lk_idx_type type = type_of(o->source);
    const uint64_t count = made_up_count(o->source);
    const uint64_t image_bytes = lk_made_up_image_bytes(m) * lk_idx_type_bytes(type);
    const lk_idx_type label_type = lk_idx_label_type(m->classes);
    const uint32_t label_bytes = lk_idx_type_bytes(label_type);
    uint8_t *images = memory + lk_round_up(PROOF_BYTES + sizeof(lk_dataset_part), ALIGNMENT);
    uint8_t *labels = images + count * image_bytes;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t label;
        make_up_example(m, i, type, images + i * image_bytes, &label);
        lk_idx_put_label(labels + i * label_bytes, label, label_type);
    }
    *set->parts = (lk_dataset_part){
        .count = count,
        .images = {.data = images, .name = "made-up images"},
        .labels = {.data = labels, .name = "made-up labels"},
    };
    set->part_count = 1;
    set->count = count;
    set->height = m->height;
    set->width = m->width;
    set->channels = m->channels;
    set->type = type;
    set->native = type == LK_IDX_F32;
    set->image_bytes = image_bytes;
    set->label_type = label_type;
    set->label_bytes = label_bytes;
    const uint64_t all[] = {m->seed,     m->first,   count, m->height, m->width,
                            m->channels, m->classes, type};
    o->name = lk_data_fast_hash(1, all, sizeof all);
    o->stamp = lk_data_fast_hash(2, all, sizeof all);
    return LK_OK;
}

static void hold_labels(opening *o, uint8_t *copy) {
    const lk_dataset_held *h = &o->source->held;
    lk_dataset *set = o->set;
    set->sequences = o->source->label_bytes > 0;
    set->label_type = h->label_type ? h->label_type : LK_IDX_U8;
    set->label_bytes =
        set->sequences ? o->source->label_bytes : lk_idx_type_bytes(set->label_type);
    if (set->label_type != LK_IDX_U16) return;
    lk_assert(!set->sequences);
    for (uint64_t i = 0; i < h->count; i++) {
        uint16_t label;
        memcpy(&label, (const uint8_t *)h->labels + i * sizeof label, sizeof label);
        lk_idx_put_label(copy + i * sizeof label, label, LK_IDX_U16);
    }
    set->parts->labels.data = copy;
}

// What lies in the caller's memory has no stamp: no record is kept of it.
static lk_status hold(opening *o) {
    const lk_dataset_held *h = &o->source->held;
    lk_dataset *set = o->set;
    const lk_idx_type type = h->type ? h->type : LK_IDX_U8;
    uint64_t image_bytes, all;
    if (!h->images || !h->labels || h->count == 0 ||
        !lk_mul_ok((uint64_t)h->height * h->width, h->channels, &image_bytes) || !image_bytes ||
        !lk_mul_ok(image_bytes, lk_idx_type_bytes(type), &image_bytes) ||
        !lk_mul_ok(image_bytes, h->count, &all)) {
        return lk_fail(o->error, LK_BAD_DATA,
                       "examples in memory: found %llu of %u x %u x %u%s, wanted inputs and labels "
                       "of one example or more",
                       (ull)h->count, h->height, h->width, h->channels,
                       h->images && h->labels ? "" : ", and no address");
    }
    LK_CHECK(check_type(o, "inputs in memory", type));
    *set->parts = (lk_dataset_part){
        .count = h->count,
        .images = {.data = h->images, .name = "inputs in memory"},
        .labels = {.data = h->labels, .name = "labels in memory"},
    };
    set->part_count = 1;
    set->count = h->count;
    set->height = h->height;
    set->width = h->width;
    set->channels = h->channels;
    set->type = type;
    set->native = type == LK_IDX_F32;
    set->image_bytes = image_bytes;
    hold_labels(o, (uint8_t *)(set->parts + 1));
    return LK_OK;
}

// The first examples of the set, where not all are wanted. Parts behind them keep none.
static lk_status keep_first(opening *o) {
    lk_dataset *set = o->set;
    const uint64_t wanted = o->source->examples;
    if (!wanted) return LK_OK;
    if (wanted > set->count)
        return lk_fail(o->error, LK_BAD_CONFIG,
                       "%s: found %llu examples, wanted the first %llu; ask for fewer",
                       set->parts->images.name, (ull)set->count, (ull)wanted);
    for (uint32_t i = 0; i < set->part_count; i++) {
        lk_dataset_part *part = &set->parts[i];
        const uint64_t left = wanted > part->first ? wanted - part->first : 0;
        part->count = LK_MIN(part->count, left);
    }
    set->count = wanted;
    return LK_OK;
}

// --- checks and hashes ---------------------------------------------------------------------------

static uint32_t greatest_label(const lk_dataset *set) {
    const uint32_t row = lk_dataset_label_row(set);
    uint32_t most = 0;
    for (uint32_t i = 0; i < set->part_count; i++) {
        const uint8_t *at = set->parts[i].labels.data;
        for (uint64_t e = 0; at && e < set->parts[i].count; e++, at += set->label_bytes) {
            if (!set->sequences) most = LK_MAX(most, lk_idx_label(at, 0, set->label_type));
            for (uint32_t k = 1; k < row; k++)
                most = LK_MAX(most, lk_idx_in_row(at, k, set->label_type));
        }
    }
    return most;
}

static lk_status check_labels(opening *o) {
    lk_dataset *set = o->set;
    const bool made_up = o->source->kind == LK_DATASET_MADE_UP;
    const uint32_t classes =
        made_up && !o->source->classes ? o->source->made_up.classes : o->source->classes;
    if (made_up && o->source->made_up.classes > classes)
        return lk_fail(o->error, LK_BAD_CONFIG,
                       "made-up data: classes: found %u, wanted at most %u, as many as the model "
                       "has",
                       o->source->made_up.classes, classes);
    set->classes = made_up   ? o->source->made_up.classes
                   : classes ? classes
                             : greatest_label(set) + 1;
    if (!classes && !set->sequences) return LK_OK;
    return lk_dataset_check_labels(set, set->classes, o->error);
}

// Where the hash is computed, all floats are looked at, too: where it is believed, they were.
static lk_status check_floats(const opening *o) {
    const lk_dataset *set = o->set;
    for (uint32_t p = 0; p < set->part_count && set->type == LK_IDX_F32; p++) {
        const lk_dataset_part *part = &set->parts[p];
        const uint64_t values = set->image_bytes / sizeof(float);
        for (uint64_t i = 0; part->images.data && i < part->count * values; i++) {
            uint32_t word;
            memcpy(&word, part->images.data + i * sizeof word, sizeof word);
            if (!set->native) word = be32toh(word);
            if ((word & 0x7f800000u) != 0x7f800000u) continue;
            return lk_fail(o->error, LK_BAD_DATA,
                           "%s: example %llu: value %llu: found %s, wanted finite numbers only",
                           part->images.name, (ull)(i / values), (ull)(i % values),
                           word & 0x7fffffu ? "NaN" : "an infinity");
        }
    }
    return LK_OK;
}

static lk_status check_file_hash(const opening *o, const lk_dataset_file *file,
                                 const uint8_t wanted[LK_SHA256_BYTES]) {
    uint8_t found[LK_SHA256_BYTES];
    char found_text[LK_SHA256_HEX_BYTES], wanted_text[LK_SHA256_HEX_BYTES];
    lk_data_sha256(file->map, file->map_bytes, found);
    if (memcmp(found, wanted, LK_SHA256_BYTES) == 0) return LK_OK;
    lk_hex(found, LK_SHA256_BYTES, found_text);
    lk_hex(wanted, LK_SHA256_BYTES, wanted_text);
    return lk_fail(o->error, LK_BAD_DATA,
                   "%s: found SHA-256 %s, wanted %s by %s; copy or shard it again", file->name,
                   found_text, wanted_text, o->source->manifest);
}

static lk_status check_shard_hashes(const opening *o) {
    lk_manifest_shard shard;
    for (uint32_t i = 0; i < o->set->part_count; i++) {
        if (!o->set->parts[i].images.data) continue;
        LK_CHECK(lk_manifest_get(&o->manifest, i, &shard, o->error));
        LK_CHECK(check_file_hash(o, &o->set->parts[i].images, shard.images_sha256));
        LK_CHECK(check_file_hash(o, &o->set->parts[i].labels, shard.labels_sha256));
    }
    return LK_OK;
}

// Floats in the machine's order join the hash as IDX files have them.
static void hash_native(crypto_hash_sha256_state *hash, const uint8_t *floats, uint64_t bytes) {
    uint8_t piece[4096];
    while (bytes) {
        const uint64_t some = LK_MIN(bytes, (uint64_t)sizeof piece);
        memcpy(piece, floats, some);
        lk_idx_turn_floats(piece, some);
        crypto_hash_sha256_update(hash, piece, some);
        floats += some;
        bytes -= some;
    }
}

static void strong_hash(lk_dataset *set) {
    crypto_hash_sha256_state hash;
    crypto_hash_sha256_init(&hash);
    for (uint32_t i = 0; i < set->part_count; i++) {
        const uint8_t *images = set->parts[i].images.data;
        const uint64_t bytes = set->parts[i].count * set->image_bytes;
        if (set->native) hash_native(&hash, images, bytes);
        if (!set->native) crypto_hash_sha256_update(&hash, images, bytes);
    }
    for (uint32_t i = 0; i < set->part_count; i++)
        crypto_hash_sha256_update(&hash, set->parts[i].labels.data,
                                  set->parts[i].count * set->label_bytes);
    crypto_hash_sha256_final(&hash, set->sha256);
}

// Against the manifest's word, whether the hash was computed or believed. It gives none for a part
// of the set.
static lk_status check_data_hash(const opening *o) {
    char found[LK_SHA256_HEX_BYTES], wanted[LK_SHA256_HEX_BYTES];
    if (o->source->kind != LK_DATASET_MANIFEST || o->source->examples ||
        memcmp(o->set->sha256, o->manifest.data_sha256, LK_SHA256_BYTES) == 0)
        return LK_OK;
    lk_hex(o->set->sha256, LK_SHA256_BYTES, found);
    lk_hex(o->manifest.data_sha256, LK_SHA256_BYTES, wanted);
    return lk_fail(o->error, LK_BAD_DATA,
                   "%s: data_sha256: its shards have %s, it says %s; shard the data again",
                   o->source->manifest, found, wanted);
}

static const char rotted_text[] =
    "they are not what they were at an earlier start, though the file's size and times are: the "
    "disk or the memory is failing; get the file again, or, if it is right as it is, touch it";

// By a record of the same files: is it they still? Else, what it knows of these bytes.
static lk_status compare_record(opening *o, const lk_data_record *record) {
    lk_dataset_proof *proof = o->set->proof;
    const bool same = record->stamp == o->stamp;
    lk_status status = LK_OK;
    if (same && o->trust) {
        memcpy(proof->piece, record->piece, sizeof proof->piece);
        status = lk_dataset_prove_some(o->set, rotted_text, o->error);
    } else {
        lk_dataset_hash_pieces(o->set, proof->piece);
        // A .gz that is unpacked again has the bytes that it had.
        if (same || o->healing)
            status = lk_dataset_compare(o->set, record->piece, rotted_text, o->error);
    }
    o->rotted = status != LK_OK;
    return status;
}

// The data hash: from the record where nothing has changed (data_file.h), else computed.
static lk_status find_hash(opening *o) {
    lk_data_record record = {0};
    lk_dataset_proof *proof = o->set->proof;
    char file[32], path[LK_PATH_BYTES];
    lk_format(file, sizeof file, "%016llx.record", (ull)o->name);
    lk_error ignored = {0};
    if (o->cached && lk_path_join(path, o->cache, "/", file, &ignored) != LK_OK) o->cached = false;
    const bool known = o->cached && lk_data_record_read(path, &record);
    if (known)
        LK_CHECK(compare_record(o, &record));
    else
        lk_dataset_hash_pieces(o->set, proof->piece);
    const bool equal = known && memcmp(proof->piece, record.piece, sizeof record.piece) == 0;
    if (equal && o->trust) {
        memcpy(o->set->sha256, record.sha256, LK_SHA256_BYTES);
    } else {
        LK_CHECK(check_floats(o));
        if (o->source->kind == LK_DATASET_MANIFEST) LK_CHECK(check_shard_hashes(o));
        if (o->source->some) {
            memcpy(o->set->sha256, o->manifest.data_sha256, LK_SHA256_BYTES);
        } else {
            strong_hash(o->set);
        }
    }
    LK_CHECK(check_data_hash(o));
    const uint64_t stamp = o->young ? 0 : o->stamp;
    if (!o->cached || (equal && o->trust && record.stamp == stamp)) return LK_OK;
    record.stamp = stamp;
    memcpy(record.piece, proof->piece, sizeof record.piece);
    memcpy(record.sha256, o->set->sha256, LK_SHA256_BYTES);
    lk_data_record_write(path, &record);
    return LK_OK;
}

// --- opening -------------------------------------------------------------------------------------

static lk_status open_parts(opening *o, void *memory, uint64_t bytes) {
    uint64_t needed, parts = 1;
    if (o->source->kind == LK_DATASET_MANIFEST) {
        LK_CHECK(lk_manifest_load(o->source->manifest, &o->manifest, o->error));
        LK_CHECK(manifest_bytes(o->source->manifest, &o->manifest, &needed, o->error));
        parts = o->manifest.shard_count;
    } else {
        LK_CHECK(lk_dataset_bytes(o->source, &needed, o->error));
    }
    if (needed > bytes)  // only where a manifest was exchanged since lk_dataset_bytes
        return lk_fail(o->error, LK_RETRY, "data set: found %llu bytes for its table, wanted %llu; "
                       "the manifest has changed, start again", (ull)bytes, (ull)needed);
    o->set->proof = memory;
    o->set->parts = (lk_dataset_part *)(void *)((uint8_t *)memory + PROOF_BYTES);
    memset(o->set->parts, 0, parts * sizeof(lk_dataset_part));
    o->text = (char *)(o->set->parts + parts);
    switch (o->source->kind) {
    case LK_DATASET_IDX: return open_pair(o);
    case LK_DATASET_MANIFEST: return open_shards(o);
    case LK_DATASET_MADE_UP: return make_up(o, memory);
    case LK_DATASET_HELD: return hold(o);
    }
    lk_panic(__FILE__, __LINE__, "no such kind of data set");
}

static lk_status open_once(opening *o, void *memory, uint64_t bytes) {
    const lk_dataset_source *source = o->source;
    *o->set = (lk_dataset){0};
    o->name = (uint64_t)source->kind;  // shards are checked against more than a pair: own records
    o->cached = source->kind != LK_DATASET_HELD && lk_data_cache(source->cache, o->cache);
    if (source->examples)  // another data hash, so another record
        o->name = lk_data_fast_hash(o->name, &source->examples, sizeof source->examples);
    lk_status status = open_parts(o, memory, bytes);
    if (status == LK_OK) status = keep_first(o);
    if (status == LK_OK) status = check_labels(o);
    if (status == LK_OK) lk_dataset_cut(o->set);
    if (status == LK_OK) status = find_hash(o);
    lk_manifest_close(&o->manifest);
    if (status != LK_OK) lk_dataset_close(o->set);
    return status;
}

lk_status lk_dataset_open(const lk_dataset_source *source, void *memory, uint64_t bytes,
                          lk_dataset *out, lk_error *error) {
    lk_assert((uintptr_t)memory % ALIGNMENT == 0);
    opening o = {.source = source, .set = out, .error = error, .trust = !source->verify};
    lk_status status = open_once(&o, memory, bytes);
    if (!o.rotted || !o.unpacked || source->verify) return status;
    // What has rotted may be what the cache holds of a .gz that has not.
    lk_error first = *error;
    opening again = {.source = source, .set = out, .error = error, .healing = true};
    *error = (lk_error){0};
    status = open_once(&again, memory, bytes);
    if (status != LK_OK) *error = first;
    out->healed = status == LK_OK;
    return error->status;
}

lk_status lk_dataset_verify(const lk_dataset_source *source, void *memory, uint64_t bytes,
                            lk_dataset *out, lk_error *error) {
    lk_dataset_source all = *source;
    all.verify = true;
    return lk_dataset_open(&all, memory, bytes, out, error);
}

void lk_dataset_close(lk_dataset *set) {
    for (uint32_t i = 0; i < set->part_count; i++) {
        lk_data_unmap(set->parts[i].images.map, set->parts[i].images.map_bytes);
        lk_data_unmap(set->parts[i].labels.map, set->parts[i].labels.map_bytes);
    }
    *set = (lk_dataset){0};
}

// --- reading -------------------------------------------------------------------------------------

// The part that holds an example: the last that does not begin behind it.
static const lk_dataset_part *part_of(const lk_dataset *set, uint64_t index) {
    lk_assert(index < set->count);
    uint32_t low = 0, high = set->part_count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (set->parts[middle].first <= index) low = middle;
        else high = middle;
    }
    return &set->parts[low];
}

const uint8_t *lk_dataset_image(const lk_dataset *set, uint64_t index) {
    const lk_dataset_part *part = part_of(set, index);
    lk_assert(part->images.data);
    return part->images.data + (index - part->first) * set->image_bytes;
}

uint32_t lk_dataset_label(const lk_dataset *set, uint64_t index) {
    const uint32_t row = lk_dataset_label_row(set), number = (uint32_t)(index % row);
    const lk_dataset_part *part = part_of(set, index / row);
    lk_assert(part->labels.data);
    const uint8_t *at = part->labels.data + (index / row - part->first) * set->label_bytes;
    if (row == 1) return lk_idx_label(at, 0, set->label_type);
    return lk_idx_in_row(at, number, set->label_type);
}

static bool file_owns(const lk_dataset_file *file, const void *address) {
    uintptr_t at = (uintptr_t)address, begin = (uintptr_t)file->map;
    return file->map && at >= begin && at - begin < file->map_bytes;
}

bool lk_dataset_owns_address(const lk_dataset *set, const void *address, const char **file) {
    for (uint32_t i = 0; i < set->part_count; i++) {
        const lk_dataset_part *part = &set->parts[i];
        const bool images = file_owns(&part->images, address);
        if (!images && !file_owns(&part->labels, address)) continue;
        if (file) *file = images ? part->images.name : part->labels.name;
        return true;
    }
    return false;
}
