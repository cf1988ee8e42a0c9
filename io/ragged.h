// ragged.h - sequences of different lengths one behind the other: where each of them begins, and
// the whole numbers of .npy arrays. No heap; knows no file.
//
// n sequences are cut by n + 1 offsets: the first is 0, none is below the one before, the last is
// the number of all values.
#ifndef LOCKSTEP_IO_RAGGED_H
#define LOCKSTEP_IO_RAGGED_H

#include "arena/base.h"

#ifdef __cplusplus
extern "C" {
#endif

// A whole number of 1, 2, 4 or 8 bytes, the lowest first; false: it is negative.
bool lk_ragged_number(const uint8_t *item, uint32_t item_bytes, bool is_signed, uint64_t *out);

typedef struct lk_ragged {
    const char *name;      // of the offsets, for errors
    uint64_t total;        // of the values that they cut
    uint64_t least, most;  // values of a sequence
    uint32_t item_bytes;   // of an offset
    bool is_signed;
    // What has been seen.
    uint64_t offsets;  // how many
    uint64_t last;     // the last of them
    uint64_t longest;  // of the sequences
} lk_ragged;

// One more offset. The first has no length; *length is of the sequence that ends with another.
// LK_BAD_DATA names the offset.
lk_status lk_ragged_next(lk_ragged *ragged, const uint8_t *item, uint64_t *length, lk_error *error);
// After all of them.
lk_status lk_ragged_end(const lk_ragged *ragged, lk_error *error);

#ifdef __cplusplus
}
#endif
#endif
