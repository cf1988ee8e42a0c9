// memory_files.c - the forgetful file system of memory_files.h. Names are whole paths.
#include "memory_files.h"

#include <errno.h>
#include <string.h>

void memory_files_start(memory_files *fs) {
    memset(fs, 0, sizeof *fs);
    for (int i = 0; i < MEMORY_NAMES; i++) fs->names[i].file = fs->durable_names[i].file = -1;
    for (int i = 0; i < MEMORY_HANDLES; i++) fs->handles[i] = -1;
}

void memory_files_arm(memory_files *fs, fault kind, unsigned at) {
    fs->operations = 0;
    fs->fault_at = at;
    fs->kind = kind;
    fs->happened = false;
}

// Counts an operation; true where it is the one that goes wrong.
static bool is_faulty(memory_files *fs) {
    fs->operations++;
    return fs->fault_at != 0 && fs->operations == fs->fault_at;
}

// For the operations that are done whole or not at all.
static int fail_whole(memory_files *fs) {
    if (fs->crashed) return -EIO;
    if (!is_faulty(fs)) return 0;
    if (fs->kind == FAULT_CRASH) {
        fs->happened = fs->crashed = true;
        return -EIO;
    }
    if (fs->kind == FAULT_NO_SPACE) {
        fs->happened = true;
        return -ENOSPC;
    }
    return 0;
}

static memory_name *find_name(memory_name *names, const char *path) {
    for (int i = 0; i < MEMORY_NAMES; i++) {
        if (names[i].file >= 0 && strcmp(names[i].path, path) == 0) return &names[i];
    }
    return NULL;
}

static void set_name(memory_name *names, const memory_name *wanted) {
    memory_name *name = find_name(names, wanted->path);
    for (int i = 0; !name; i++) {
        lk_assert(i < MEMORY_NAMES);
        if (names[i].file < 0) name = &names[i];
    }
    *name = *wanted;
}

static memory_name make_name(const char *path, int file) {
    memory_name name = {.file = file};
    size_t bytes = lk_format(name.path, sizeof name.path, "%s", path);
    lk_assert(bytes < sizeof name.path);
    return name;
}

static void change_names(memory_files *fs, memory_change change) {
    lk_assert(fs->pending_count < MEMORY_PENDING);
    for (int i = 0; i < change.parts; i++) set_name(fs->names, &change.part[i]);
    fs->pending[fs->pending_count++] = change;
}

memory_file *memory_files_find(memory_files *fs, const char *path) {
    memory_name *name = find_name(fs->names, path);
    return name ? &fs->files[name->file] : NULL;
}

// --- crash ---------------------------------------------------------------------------------------

static void crash_contents(memory_file *file, unsigned variant) {
    size_t kept = LK_MIN(file->durable_bytes, file->bytes);
    bool dirty = file->bytes != file->durable_bytes ||
                 memcmp(file->data, file->durable, file->bytes) != 0;
    if (dirty && variant != 1) {
        size_t half = kept + (file->bytes - kept) / 2;
        if (variant == 3) memset(file->data + half, 0xaa, file->bytes - half);
        else file->bytes = variant == 2 ? half : file->durable_bytes;
        memcpy(file->data, file->durable, kept);
    }
    memcpy(file->durable, file->data, sizeof file->durable);
    file->durable_bytes = file->bytes;
}

void memory_files_crash(memory_files *fs, unsigned name_variant, unsigned content_variant) {
    for (int i = 0; i < fs->file_count; i++) crash_contents(&fs->files[i], content_variant);
    for (int i = 0; i < fs->pending_count; i++) {
        bool kept = name_variant == 1 || (name_variant > 1 && ((name_variant * 5u) >> (i % 4)) % 2);
        for (int p = 0; kept && p < fs->pending[i].parts; p++) {
            set_name(fs->durable_names, &fs->pending[i].part[p]);
        }
    }
    memcpy(fs->names, fs->durable_names, sizeof fs->names);
    fs->pending_count = 0;
    for (int i = 0; i < MEMORY_HANDLES; i++) fs->handles[i] = -1;
    fs->crashed = false;
    memory_files_arm(fs, FAULT_NONE, 0);
}

// --- operations ----------------------------------------------------------------------------------

static int memory_open(void *context, const char *path, lk_open_mode mode) {
    memory_files *fs = context;
    int failed = fail_whole(fs), handle = 0;
    if (failed) return failed;
    memory_name *name = find_name(fs->names, path);
    if (name && mode == LK_OPEN_CREATE) return -EEXIST;
    if (!name && mode != LK_OPEN_CREATE && mode != LK_OPEN_APPEND) return -ENOENT;
    int file = name ? name->file : fs->file_count++;
    lk_assert(file < MEMORY_FILES);
    if (!name) change_names(fs, (memory_change){.part = {make_name(path, file)}, .parts = 1});
    while (handle < MEMORY_HANDLES && fs->handles[handle] >= 0) handle++;
    lk_assert(handle < MEMORY_HANDLES);
    fs->handles[handle] = file;
    return handle;
}

static int memory_close(void *context, int handle) {
    memory_files *fs = context;
    lk_assert(fs->crashed || fs->handles[handle] >= 0);
    fs->handles[handle] = -1;  // closed even where it fails, as on Linux
    return fail_whole(fs);
}

static int64_t memory_write(void *context, int handle, const void *data, size_t bytes) {
    memory_files *fs = context;
    if (fs->crashed) return -EIO;
    fault kind = is_faulty(fs) ? fs->kind : FAULT_NONE;
    memory_file *file = &fs->files[fs->handles[handle]];
    size_t done = bytes;
    fs->happened |= kind != FAULT_NONE && kind != FAULT_FAILED_SYNC && kind != FAULT_CORRUPT_READ;
    if (kind == FAULT_INTERRUPT) return -EINTR;
    if (kind == FAULT_SHORT) done = 1;
    if (kind == FAULT_CRASH || kind == FAULT_NO_SPACE) done = bytes / 2;
    lk_assert(file->bytes + done <= MEMORY_FILE_BYTES);
    memcpy(file->data + file->bytes, data, done);
    if (kind == FAULT_CORRUPT_WRITE) file->data[file->bytes + done / 2] ^= 0x10;
    file->bytes += done;
    fs->crashed = kind == FAULT_CRASH;
    return kind == FAULT_CRASH ? -EIO : kind == FAULT_NO_SPACE ? -ENOSPC : (int64_t)done;
}

static int64_t memory_read(void *context, int handle, void *data, size_t bytes, uint64_t offset) {
    memory_files *fs = context;
    if (fs->crashed) return -EIO;
    fault kind = is_faulty(fs) ? fs->kind : FAULT_NONE;
    const memory_file *file = &fs->files[fs->handles[handle]];
    fs->happened |= kind == FAULT_INTERRUPT || kind == FAULT_SHORT || kind == FAULT_CRASH ||
                    kind == FAULT_CORRUPT_READ;
    fs->crashed = kind == FAULT_CRASH;
    if (kind == FAULT_CRASH) return -EIO;
    if (kind == FAULT_INTERRUPT) return -EINTR;
    size_t rest = offset < file->bytes ? file->bytes - (size_t)offset : 0;
    size_t done = LK_MIN(bytes, rest);
    if (kind == FAULT_SHORT && done > 1) done = 1;
    memcpy(data, file->data + offset, done);
    if (kind == FAULT_CORRUPT_READ && done > 0) ((char *)data)[done / 2] ^= 0x01;
    return (int64_t)done;
}

static int64_t memory_size(void *context, int handle) {
    memory_files *fs = context;
    int failed = fail_whole(fs);
    return failed ? failed : (int64_t)fs->files[fs->handles[handle]].bytes;
}

static int fail_sync(memory_files *fs) {
    if (!fs->crashed && fs->kind == FAULT_FAILED_SYNC && fs->operations + 1 == fs->fault_at) {
        fs->operations++;
        fs->happened = true;
        return -EIO;
    }
    return fail_whole(fs);
}

static int memory_sync(void *context, int handle) {
    memory_files *fs = context;
    int failed = fail_sync(fs);
    if (failed) return failed;
    memory_file *file = &fs->files[fs->handles[handle]];
    memcpy(file->durable, file->data, sizeof file->durable);
    file->durable_bytes = file->bytes;
    return 0;
}

static int memory_rename(void *context, const char *from, const char *to) {
    memory_files *fs = context;
    int failed = fail_whole(fs);
    if (failed) return failed;
    memory_name *name = find_name(fs->names, from);
    if (!name) return -ENOENT;
    int file = name->file;
    change_names(fs, (memory_change){.part = {make_name(from, -1), make_name(to, file)},
                                     .parts = 2});
    return 0;
}

static int memory_remove(void *context, const char *path) {
    memory_files *fs = context;
    int failed = fail_whole(fs);
    if (failed) return failed;
    if (!find_name(fs->names, path)) return -ENOENT;
    change_names(fs, (memory_change){.part = {make_name(path, -1)}, .parts = 1});
    return 0;
}

static int memory_sync_directory(void *context, const char *path) {
    memory_files *fs = context;
    (void)path;
    int failed = fail_sync(fs);
    if (failed) return failed;
    memcpy(fs->durable_names, fs->names, sizeof fs->names);
    fs->pending_count = 0;
    return 0;
}

static int memory_list(void *context, const char *path, lk_name_visitor visit,
                       void *visit_context) {
    memory_files *fs = context;
    int failed = fail_whole(fs);
    if (failed) return failed;
    size_t prefix = strlen(path);
    for (int i = 0; i < MEMORY_NAMES; i++) {
        const memory_name *name = &fs->names[i];
        if (name->file < 0 || strncmp(name->path, path, prefix) != 0) continue;
        if (name->path[prefix] == '/') visit(visit_context, name->path + prefix + 1);
    }
    return 0;
}

lk_file_ops memory_files_ops(memory_files *fs) {
    return (lk_file_ops){
        .context = fs,
        .open = memory_open,
        .close = memory_close,
        .write = memory_write,
        .read = memory_read,
        .size = memory_size,
        .sync = memory_sync,
        .rename = memory_rename,
        .remove = memory_remove,
        .sync_directory = memory_sync_directory,
        .list = memory_list,
    };
}
