// gunzip.h - .gz files, unpacked once and then mapped like any other.
//
// Host only, start-up only. Knows gzip (RFC 1952), not what is packed in it. zlib does the work, in
// memory on the stack: no heap.
#ifndef LOCKSTEP_IO_GUNZIP_H
#define LOCKSTEP_IO_GUNZIP_H

#include "arena/base.h"
#include "arena/sha256.h"
#include "io/file_ops.h"

// For `most`: an IDX file is packed in it, and what its header says is the size to the byte. A
// header that says more than so small a .gz can hold is refused, before a byte is written.
#define LK_GUNZIP_IDX 0

// Unpacks `path` into the open file `out` (named `out_path` in errors). Checks everything that gzip
// can: structure, CRC-32 and length of every member, nothing after the last. LK_BAD_DATA names the
// byte of the .gz; LK_NO_INPUT, LK_IO_ERROR. `sha256` is of the unpacked bytes.
//
// most   bytes that may come out, or LK_GUNZIP_IDX; of more none is written, and it is LK_BAD_DATA
lk_status lk_gunzip(const char *path, int out, const char *out_path, uint64_t most,
                    uint8_t sha256[LK_SHA256_BYTES], lk_error *error);

// The same into a new file `out_path`: temporary, sync, rename. What a killed process has left of
// an earlier try is removed.
lk_status lk_gunzip_file(const char *path, const char *out_path, uint64_t most,
                         uint8_t sha256[LK_SHA256_BYTES], lk_error *error);

// An open descriptor of the unpacked bytes of `path`, from the cache directory where they lie there
// already, else unpacked into it as NAME-STAMP.idx with a record beside it (data_file.h).
//
// cache     directory. NULL, or one that cannot take the bytes: a nameless file in $TMPDIR or /tmp
//           has them for this run
// trust     false: unpack again whatever the cache says
// unpacked  the name of the unpacked file; `path` where it has none
//
// What is unpacked there of an earlier state of `path`, or was left by killed processes, goes.
lk_status lk_gunzip_cached(const char *path, const char *cache, bool trust, int *fd,
                           char unpacked[LK_PATH_BYTES], lk_error *error);

#endif
