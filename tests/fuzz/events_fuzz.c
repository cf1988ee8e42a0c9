// Fuzz target (libFuzzer): any bytes as an event file that a resumed run cuts (io/events.h). The
// first byte chooses the step.
//
// What stays is a beginning of what was there, and cut once more it stays as it is.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "io/events.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct memory {
    const uint8_t *bytes;
    size_t size;
    bool removed;
} memory;

static int do_open(void *context, const char *path, lk_open_mode mode) {
    (void)context, (void)path;
    return mode == LK_OPEN_UPDATE ? 3 : -1;
}

static int do_close(void *context, int file) {
    (void)context;
    return file == 3 ? 0 : -1;
}

static int64_t do_read(void *context, int file, void *data, size_t bytes, uint64_t offset) {
    const memory *m = context;
    if (file != 3 || offset > m->size) abort();
    bytes = LK_MIN(bytes, m->size - (size_t)offset);
    memcpy(data, m->bytes + offset, bytes);
    return (int64_t)bytes;
}

static int64_t do_size(void *context, int file) {
    (void)file;
    return (int64_t)((memory *)context)->size;
}

static int do_truncate(void *context, int file, uint64_t bytes) {
    memory *m = context;
    if (file != 3 || bytes >= m->size) abort();  // it is cut, and not for nothing
    m->size = (size_t)bytes;
    return 0;
}

static int do_sync(void *context, int file) {
    (void)context, (void)file;
    return 0;
}

static int do_remove(void *context, const char *path) {
    (void)path;
    ((memory *)context)->removed = true;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    memory m = {data + 1, size - 1, false};
    const lk_file_ops ops = {.context = &m,
                             .open = do_open,
                             .close = do_close,
                             .read = do_read,
                             .size = do_size,
                             .truncate = do_truncate,
                             .sync = do_sync,
                             .remove = do_remove};
    lk_error error = {.status = LK_OK};
    static lk_events_cuts cut;
    cut = (lk_events_cuts){.damaged = 0};
    if (lk_events_cut_file(&ops, "events", data[0], &cut, &error) != LK_OK) abort();
    if (cut.removed_bytes + m.size != size - 1 || cut.damaged > 1) abort();
    if (cut.damaged && (cut.at != m.size || cut.bytes != cut.removed_bytes)) abort();
    const size_t kept = m.size;
    const bool removed = m.removed;
    m.removed = false;
    cut = (lk_events_cuts){.damaged = 0};
    if (lk_events_cut_file(&ops, "events", data[0], &cut, &error) != LK_OK) abort();
    if (cut.removed_bytes || cut.damaged || m.size != kept || m.removed != removed) abort();
    return 0;
}
