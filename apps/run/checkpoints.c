// checkpoints.c - lists a directory's checkpoints, and opens one with its values.
#define _GNU_SOURCE
#include "apps/run/checkpoints.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "apps/run/weights.h"

typedef struct collector {
    lk_steps *out;
    size_t capacity;
    bool failed;  // no memory
} collector;

static void collect(void *context, const char *name) {
    collector *c = context;
    uint64_t step;
    if (c->failed || !lk_checkpoint_step_of(name, &step)) return;
    if (c->out->count == c->capacity) {
        size_t capacity = c->capacity ? 2 * c->capacity : 64;
        uint64_t *grown = realloc(c->out->steps, capacity * sizeof *grown);
        c->failed = !grown;
        if (!grown) return;
        c->out->steps = grown;
        c->capacity = capacity;
    }
    c->out->steps[c->out->count++] = step;
}

static int by_step(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

lk_status lk_list_checkpoints(const char *directory, lk_steps *out, lk_error *error) {
    *out = (lk_steps){0};
    collector c = {.out = out};
    int listed = lk_file_ops_posix.list(NULL, directory, collect, &c);
    if (listed < 0 && listed != -ENOENT) {
        return lk_file_fail(error, LK_IO_ERROR, directory, "list", listed);
    }
    if (c.failed) return lk_fail(error, LK_UNAVAILABLE, "%s: no memory for its list", directory);
    if (out->count) qsort(out->steps, out->count, sizeof *out->steps, by_step);
    return LK_OK;
}

lk_status lk_checkpoint_path(char out[LK_PATH_BYTES], const char *directory, uint64_t step,
                             lk_error *error) {
    char name[64];
    snprintf(name, sizeof name, "step-%010llu.safetensors", (unsigned long long)step);
    return lk_path_join(out, directory, "/", name, error);
}

static lk_status read_values(lk_open_checkpoint *c, bool take, lk_error *error) {
    LK_CHECK(lk_check_recorded(&c->reader, error));
    const uint64_t bytes = c->reader.file_bytes - c->reader.data_at;
    if (take) c->values = malloc((size_t)bytes + 1);
    if (take && !c->values) {
        return lk_fail(error, LK_UNAVAILABLE, "%s: no memory for its %llu bytes", c->path,
                       (unsigned long long)bytes);
    }
    return lk_checkpoint_read(&c->reader, c->values, &c->step, error);
}

lk_status lk_checkpoint_enter(lk_open_checkpoint *c, const char *path, bool take, lk_error *error) {
    enum { TENSORS_MAX = 65536 };
    *c = (lk_open_checkpoint){.reader = {.file = -1}};
    LK_CHECK(lk_path_join(c->path, path, "", "", error));
    c->entries = calloc(TENSORS_MAX, sizeof *c->entries);
    if (!c->entries) return lk_fail(error, LK_UNAVAILABLE, "%s: no memory to read it", path);
    if (lk_checkpoint_peek(&c->reader, &lk_file_ops_posix, c->path, c->entries, TENSORS_MAX,
                           error) == LK_OK &&
        read_values(c, take, error) == LK_OK) {
        return LK_OK;
    }
    lk_checkpoint_leave(c);
    return error->status;
}

const void *lk_checkpoint_values(const lk_open_checkpoint *c, const lk_safetensors_entry *entry) {
    lk_assert(c->values);
    return c->values + entry->begin;
}

void lk_checkpoint_leave(lk_open_checkpoint *c) {
    lk_safetensors_close(&c->reader);
    free(c->entries);
    free(c->values);
    c->entries = NULL;
    c->values = NULL;
}
