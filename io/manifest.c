// manifest.c - strict reading of manifest.json. Host only.
#include "io/manifest.h"

#include <string.h>

typedef unsigned long long ull;

static const uint64_t count_max = (uint64_t)1 << 40;  // as lk_shuffle

// A file that says so itself is data, not configuration: what is wrong in it is LK_BAD_DATA.
static lk_status as_data(lk_status status, lk_error *error) {
    if (status != LK_BAD_CONFIG) return status;
    error->status = LK_BAD_DATA;
    return LK_BAD_DATA;
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static lk_status get_sha256(const lk_json_cursor *object, const char *key,
                            uint8_t out[LK_SHA256_BYTES], lk_error *error) {
    char text[LK_SHA256_HEX_BYTES];
    lk_json_cursor at;
    LK_CHECK(lk_json_get_string(object, key, LK_JSON_REQUIRED, text, sizeof text, error));
    bool good = strlen(text) == LK_SHA256_HEX_BYTES - 1;
    for (int i = 0; good && i < LK_SHA256_BYTES; i++) {
        int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
        good = high >= 0 && low >= 0;
        out[i] = (uint8_t)(16 * high + low);
    }
    if (good) return LK_OK;
    lk_json_find(object, key, &at);
    return lk_json_refuse(&at, error, "wanted 64 lower-case hexadecimal digits");
}

// A plain name, so that a manifest from elsewhere cannot lead out of its own directory.
static lk_status get_name(const lk_json_cursor *object, const char *key,
                          char out[LK_MANIFEST_NAME_BYTES], lk_error *error) {
    lk_json_cursor at;
    LK_CHECK(lk_json_get_string(object, key, LK_JSON_REQUIRED, out, LK_MANIFEST_NAME_BYTES, error));
    if (out[0] != '\0' && out[0] != '.' && !strchr(out, '/')) return LK_OK;
    lk_json_find(object, key, &at);
    return lk_json_refuse(&at, error, "wanted the name of a file beside the manifest");
}

static lk_status read_shard(const lk_manifest *manifest, uint32_t shard, lk_manifest_shard *out,
                            lk_error *error) {
    static const char *const keys[] = {"count", "images", "images_sha256", "labels",
                                       "labels_sha256"};
    lk_json_cursor root = lk_json_root(&manifest->document), list, at;
    LK_CHECK(lk_json_get_array(&root, "shards", LK_JSON_REQUIRED, 1, SIZE_MAX, &list, error));
    LK_CHECK(lk_json_element(&list, shard, &at, error));
    LK_CHECK(lk_json_keys_only(&at, keys, LK_COUNT(keys), error));
    LK_CHECK(lk_json_get_u64(&at, "count", LK_JSON_REQUIRED, 1, UINT32_MAX, &out->count, error));
    LK_CHECK(get_name(&at, "images", out->images, error));
    LK_CHECK(get_sha256(&at, "images_sha256", out->images_sha256, error));
    LK_CHECK(get_name(&at, "labels", out->labels, error));
    return get_sha256(&at, "labels_sha256", out->labels_sha256, error);
}

static lk_status read_all(lk_manifest *m, lk_error *error) {
    static const char *const keys[] = {"format", "count", "height",      "width", "channels",
                                       "type",   "data_sha256", "shards"};
    static const char *const formats[] = {LK_MANIFEST_FORMAT}, *const types[] = {"u8", "f32"};
    lk_json_cursor root = lk_json_root(&m->document), list, at;
    lk_manifest_shard shard;
    uint32_t format, type = 0;
    uint64_t sum = 0;
    LK_CHECK(lk_json_keys_only(&root, keys, LK_COUNT(keys), error));
    LK_CHECK(lk_json_get_choice(&root, "format", LK_JSON_REQUIRED, formats, 1, &format, error));
    LK_CHECK(lk_json_get_u64(&root, "count", LK_JSON_REQUIRED, 1, count_max, &m->count, error));
    LK_CHECK(lk_json_get_u32(&root, "height", LK_JSON_REQUIRED, 1, UINT32_MAX, &m->height, error));
    LK_CHECK(lk_json_get_u32(&root, "width", LK_JSON_REQUIRED, 1, UINT32_MAX, &m->width, error));
    LK_CHECK(
        lk_json_get_u32(&root, "channels", LK_JSON_REQUIRED, 1, UINT32_MAX, &m->channels, error));
    LK_CHECK(lk_json_get_choice(&root, "type", LK_JSON_OPTIONAL, types, 2, &type, error));
    m->is_f32 = type == 1;
    LK_CHECK(get_sha256(&root, "data_sha256", m->data_sha256, error));
    LK_CHECK(lk_json_get_array(&root, "shards", LK_JSON_REQUIRED, 1, UINT32_MAX, &list, error));
    m->shard_count = (uint32_t)lk_json_length(&list);
    for (uint32_t i = 0; i < m->shard_count; i++) {
        LK_CHECK(read_shard(m, i, &shard, error));
        sum += shard.count;
    }
    if (sum == m->count) return LK_OK;
    lk_json_find(&root, "count", &at);
    return lk_json_refuse(&at, error, "wanted %llu, the sum of its shards; shard the data again",
                          (ull)sum);
}

lk_status lk_manifest_load(const char *path, lk_manifest *out, lk_error *error) {
    *out = (lk_manifest){0};
    LK_CHECK(as_data(lk_json_load_file(&out->document, path, error), error));
    return as_data(read_all(out, error), error);
}

lk_status lk_manifest_parse(const char *text, size_t bytes, const char *name, lk_manifest *out,
                            lk_error *error) {
    *out = (lk_manifest){0};
    LK_CHECK(as_data(lk_json_load_text(&out->document, name, text, bytes, error), error));
    return as_data(read_all(out, error), error);
}

lk_status lk_manifest_get(const lk_manifest *manifest, uint32_t shard, lk_manifest_shard *out,
                          lk_error *error) {
    lk_assert(shard < manifest->shard_count);
    return as_data(read_shard(manifest, shard, out, error), error);
}

void lk_manifest_close(lk_manifest *manifest) { lk_json_close(&manifest->document); }

lk_status lk_manifest_cut(const lk_manifest *m, uint64_t *first, uint8_t sha256[LK_SHA256_BYTES],
                          lk_error *error) {
    lk_manifest_shard shard;
    lk_sha256 hash;
    lk_sha256_start(&hash);
    first[0] = 0;
    for (uint32_t k = 0; k < m->shard_count; k++) {
        LK_CHECK(lk_manifest_get(m, k, &shard, error));
        first[k + 1] = first[k] + shard.count;
        lk_sha256_add_u64(&hash, shard.count);
        lk_sha256_add(&hash, shard.images_sha256, LK_SHA256_BYTES);
        lk_sha256_add(&hash, shard.labels_sha256, LK_SHA256_BYTES);
    }
    lk_sha256_finish(&hash, sha256);
    return LK_OK;
}
