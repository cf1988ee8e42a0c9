// gunzip.h - .gz files, unpacked once and then mapped like any other.
//
// Host only, start-up only. Knows gzip (RFC 1952), not what is packed in it. zlib does the work, in
// memory on the stack: no heap.
#ifndef LOCKSTEP_IO_GUNZIP_H
#define LOCKSTEP_IO_GUNZIP_H

#include "arena/base.h"
#include "arena/sha256.h"
#include "io/file_ops.h"

// Unpacks `path` into the open file `out` (named `out_path` in errors). Checks everything that gzip
// can: structure, CRC-32 and length of every member, nothing after the last. LK_BAD_DATA names the
// byte of the .gz; LK_NO_INPUT, LK_IO_ERROR. `sha256` is of the unpacked bytes.
lk_status lk_gunzip(const char *path, int out, const char *out_path,
                    uint8_t sha256[LK_SHA256_BYTES], lk_error *error);

// The same into a new file `out_path`: temporary, sync, rename. For `lockstep data unpack`.
lk_status lk_gunzip_file(const char *path, const char *out_path, uint8_t sha256[LK_SHA256_BYTES],
                         lk_error *error);

// An open descriptor of the unpacked bytes of `path`, from the cache directory where they lie there
// already, else unpacked into it as NAME-STAMP.idx with a record beside it (data_file.h).
//
// cache     directory. NULL, or one that cannot take the bytes: a nameless file in $TMPDIR or /tmp
//           has them for this run
// trust     false: unpack again whatever the cache says
// unpacked  the name of the unpacked file; `path` where it has none
lk_status lk_gunzip_cached(const char *path, const char *cache, bool trust, int *fd,
                           char unpacked[LK_PATH_BYTES], lk_error *error);

#endif
