// checkpoints.h - the checkpoints of a directory, without a run: which there are, and one of them
// open and verified. Host only; may use the heap.
#ifndef LOCKSTEP_APPS_RUN_CHECKPOINTS_H
#define LOCKSTEP_APPS_RUN_CHECKPOINTS_H

#include "io/checkpoint.h"
#include "io/file_ops.h"

typedef struct lk_steps {
    uint64_t *steps;  // (count), ascending; free() it
    size_t count;
} lk_steps;

// The steps of which `directory` has checkpoint files, good or not. A directory that is not there
// has none. LK_IO_ERROR where it cannot be listed.
lk_status lk_list_checkpoints(const char *directory, lk_steps *out, lk_error *error);

// <directory>/step-....safetensors
lk_status lk_checkpoint_path(char out[LK_PATH_BYTES], const char *directory, uint64_t step,
                             lk_error *error);

// A checkpoint open for reading, with room for its entries.
typedef struct lk_open_checkpoint {
    char path[LK_PATH_BYTES];
    lk_safetensors reader;
    lk_safetensors_entry *entries;
    uint8_t *values;  // of all tensors, as they were verified; NULL: they were only looked at
    uint64_t step;
} lk_open_checkpoint;

// Opens and verifies; with `take`, the values stay in memory. After a failure there is nothing to
// close. A checkpoint of training has recorded what its values hash to; any other is refused.
lk_status lk_checkpoint_enter(lk_open_checkpoint *checkpoint, const char *path, bool take,
                              lk_error *error);
// A tensor's values, of a checkpoint that was taken.
const void *lk_checkpoint_values(const lk_open_checkpoint *checkpoint,
                                 const lk_safetensors_entry *entry);
void lk_checkpoint_leave(lk_open_checkpoint *checkpoint);

#endif
