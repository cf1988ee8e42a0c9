// Fuzz target (libFuzzer): any text as manifest.json.
//
// What is accepted must have at least one shard, only plain file names, and counts that add up.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "io/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_shards(const lk_manifest *m, lk_error *error) {
    uint64_t sum = 0;
    if (m->shard_count == 0) abort();
    for (uint32_t i = 0; i < m->shard_count; i++) {
        lk_manifest_shard shard;
        if (lk_manifest_get(m, i, &shard, error) != LK_OK) abort();
        if (strchr(shard.images, '/') || strchr(shard.labels, '/')) abort();
        if (shard.images[0] == '.' || shard.labels[0] == '.') abort();
        if (shard.count == 0) abort();
        sum += shard.count;
    }
    if (sum != m->count) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    lk_error error = {0};
    lk_manifest manifest;
    lk_status status = lk_manifest_parse((const char *)data, size, "fuzz", &manifest, &error);
    if (status == LK_OK) check_shards(&manifest, &error);
    else if (status != error.status || error.text[0] == '\0' || strchr(error.text, '\n')) abort();
    lk_manifest_close(&manifest);
    return 0;
}
