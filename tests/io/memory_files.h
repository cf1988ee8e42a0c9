// memory_files.h - a file system in memory that forgets what was not synced, for crash tests.
//
// Every file has contents as seen (volatile) and as synced (durable); every name as well. A crash
// keeps what is durable, and of the rest what a disk might have kept: nothing, all, a part, a torn
// tail. Any one operation, counted from 1, can be made to go wrong.
#ifndef LOCKSTEP_TESTS_IO_MEMORY_FILES_H
#define LOCKSTEP_TESTS_IO_MEMORY_FILES_H

#include "io/file_ops.h"

typedef enum fault {
    FAULT_NONE,
    FAULT_CRASH,          // this operation is done in part at most, and all later ones fail
    FAULT_SHORT,          // a write or read does one byte only
    FAULT_INTERRUPT,      // a write or read is interrupted
    FAULT_NO_SPACE,       // fails with ENOSPC, a write after half of its bytes
    FAULT_FAILED_SYNC,    // a sync fails and keeps nothing
    FAULT_CORRUPT_READ,   // a read delivers one flipped bit
    FAULT_CORRUPT_WRITE,  // a write stores one flipped bit, and says nothing
    FAULT_COUNT
} fault;

enum {
    MEMORY_FILES = 16,
    MEMORY_NAMES = 16,
    MEMORY_HANDLES = 4,
    MEMORY_FILE_BYTES = 4096,
    MEMORY_PENDING = 16,
    MEMORY_PATH_BYTES = 64,
    CRASH_NAME_VARIANTS = 6,     // 0 nothing of the unsynced names, 1 all, others a mixture
    CRASH_CONTENT_VARIANTS = 4,  // 0 nothing of the unsynced bytes, 1 all, 2 half, 3 a torn tail
};

typedef struct memory_file {
    size_t bytes, durable_bytes;
    char data[MEMORY_FILE_BYTES], durable[MEMORY_FILE_BYTES];
} memory_file;

typedef struct memory_name {
    char path[MEMORY_PATH_BYTES];
    int file;  // -1: there is none of this name
} memory_name;

typedef struct memory_change {  // of names, not synced yet; a rename is one change with two parts
    memory_name part[2];
    int parts;
} memory_change;

typedef struct memory_files {
    memory_file files[MEMORY_FILES];
    int file_count;
    memory_name names[MEMORY_NAMES], durable_names[MEMORY_NAMES];
    memory_change pending[MEMORY_PENDING];
    int pending_count;
    int handles[MEMORY_HANDLES];  // file, or -1
    unsigned operations;          // since the last memory_files_arm
    unsigned fault_at;
    fault kind;
    bool happened;                // the fault applied to that operation
    bool crashed;
} memory_files;

void memory_files_start(memory_files *fs);
lk_file_ops memory_files_ops(memory_files *fs);

// The operation number `at` from now goes wrong; 0 = none.
void memory_files_arm(memory_files *fs, fault kind, unsigned at);

// Power off and on again.
void memory_files_crash(memory_files *fs, unsigned name_variant, unsigned content_variant);

// Direct access for tests: NULL where there is no such file.
memory_file *memory_files_find(memory_files *fs, const char *path);

#endif
