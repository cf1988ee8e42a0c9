// checkpoint.h - checkpoints that survive a crash at any moment: save, find, verify, load.
//
// A checkpoint is one safetensors file, <directory>/step-%010llu.safetensors, with all parameters
// and optimizer slots as tensors and everything else that steers the next step as metadata strings.
//
// Saving:  write to "<name>.tmp" -> sync -> read back and hash -> rename -> sync the directory,
// and only then remove the oldest. So at every moment the newest published file is whole, and a
// crash leaves the old state or the new one.
//
// Integrity: metadata "content_sha256", always first in the file, is the SHA-256 of the whole file
// with its own 64 hex digits taken as '0'. Length, metadata, shapes, padding and tensors are all
// under it: any changed bit is found. Nothing but these 64 digits is special.
//
// Training records two hashes of its own (ops/ARITHMETIC.md, section 11), and where they stand they
// are compared too, with the same bytes at the same time:
//   "digest"      SHA-256 of the parameters, and of the states that evaluation reads, in file order
//   "state_hash"  of parameters and slots, in file order, of the step as a u64, then of the states
// A tensor whose name has two slashes is a slot, LAYER/PARAMETER/SLOT, or a state that evaluation
// does not read; any other is a parameter, or a state that it does. The last "state_tensors" of the
// file's tensors are states: none where that is not recorded.
//
// Whoever loads gets bytes that were hashed where they lie then: nothing is read a second time.
//
// Host only. Knows nothing else of what the tensors and strings mean. Saving needs no heap;
// finding, verifying and loading are for start-up (jansson).
#ifndef LOCKSTEP_IO_CHECKPOINT_H
#define LOCKSTEP_IO_CHECKPOINT_H

#include "io/safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    LK_CHECKPOINT_VERSION = 1,
    LK_CHECKPOINT_PAIRS_MAX = 64,        // metadata of the caller
    LK_CHECKPOINT_VALUE_SLACK_BYTES = 24,  // by which a value may grow after measuring: any u64
};

// Keys that are written here and refused from the caller.
#define LK_CHECKPOINT_KEY_SHA256 "content_sha256"
#define LK_CHECKPOINT_KEY_VERSION "lockstep_checkpoint"
#define LK_CHECKPOINT_KEY_STEP "step"

// Keys of the caller's that are compared.
#define LK_CHECKPOINT_KEY_DIGEST "digest"
#define LK_CHECKPOINT_KEY_STATE  "state_hash"

// A key of the caller's that says which tensors are states.
#define LK_CHECKPOINT_KEY_STATES "state_tensors"

typedef struct lk_checkpoint_job {
    const char *directory;                 // must exist
    uint64_t step;                         // optimizer updates done; names the file
    const lk_safetensors_pair *metadata;   // the caller's, without the three keys above
    size_t metadata_count;
    const lk_safetensors_tensor *tensors;  // parameters and slots; must not change during a save
    size_t tensor_count;
    unsigned keep_max;                     // checkpoints to keep, 0 = all
    bool spares;                           // that of step `spared` stays beside them
    uint64_t spared;
    void *buffer;                          // scratch of at least lk_checkpoint_measure's bytes
    size_t buffer_bytes;
    bool durable;                          // out: the new checkpoint is whole and will stay
    uint64_t file_bytes;                   // out: of the new checkpoint
    uint64_t scrubbed;                     // step of the checkpoint that was scrubbed last
    uint64_t scrub_end;                    // the round at hand is over those of steps below
} lk_checkpoint_job;

// Bytes of scratch that saves of this job need, and of a file on disk, where every metadata value
// may grow by LK_CHECKPOINT_VALUE_SLACK_BYTES. buffer, keep_max and tensor data are not looked at.
// Call it at start-up: it makes all checks that depend on names and shapes.
lk_status lk_checkpoint_measure(const lk_checkpoint_job *job, size_t *buffer_bytes,
                                uint64_t *file_bytes, lk_error *error);

// Saves. After a failure the older checkpoints stand untouched; job->durable tells whether the new
// one does too (when only the removal of an old one failed). Never allocates.
// LK_IO_ERROR: the disk failed; LK_BAD_DATA: what was read back is not what was written.
lk_status lk_checkpoint_save(const lk_file_ops *ops, lk_checkpoint_job *job, lk_error *error);

// Reads one older checkpoint after a save, the next in turn, and compares its content's hash: what
// rots on a disk is found while another copy may still be had. One file is read through the job's
// buffer, and none that is larger than the one just saved. Never allocates.
// LK_BAD_DATA names the file that is not what was saved; LK_IO_ERROR the one that cannot be read.
lk_status lk_checkpoint_scrub(const lk_file_ops *ops, lk_checkpoint_job *job, lk_error *error);

// Removes temporary files that a crashed run left. Call it at resume, with the run's lock held.
lk_status lk_checkpoint_clean(const lk_file_ops *ops, const char *directory, lk_error *error);

// Opens one checkpoint and verifies all of it: structure, version, hashes, step against the file's
// name, and that every F32 is finite. Ends with lk_safetensors_close.
lk_status lk_checkpoint_open(lk_safetensors *reader, const lk_file_ops *ops, const char *path,
                             lk_safetensors_entry *entries, size_t entry_capacity, uint64_t *step,
                             lk_error *error);

// Opens one and looks at its structure alone: nothing of it is to be believed before one of the two
// below has verified it. Ends with lk_safetensors_close.
lk_status lk_checkpoint_peek(lk_safetensors *reader, const lk_file_ops *ops, const char *path,
                             lk_safetensors_entry *entries, size_t entry_capacity, lk_error *error);

// Reads all tensor bytes of an open checkpoint, each once, and verifies as lk_checkpoint_open does.
//
// values  (file_bytes - data_at) where they go; entry->begin is a tensor's first. NULL: nowhere
lk_status lk_checkpoint_read(const lk_safetensors *reader, void *values, uint64_t *step,
                             lk_error *error);

// Is every one of the tensors there with the same dtype and shape, and none left over? LK_BAD_DATA
// names the tensor.
lk_status lk_checkpoint_fits(const lk_safetensors *reader, const lk_safetensors_tensor *tensors,
                             size_t tensor_count, lk_error *error);
// Fills tensors by name from an open checkpoint, and verifies as lk_checkpoint_open does what lies
// in them then; lk_checkpoint_fits comes before the first byte. After any other failure they hold
// anything.
lk_status lk_checkpoint_load(const lk_safetensors *reader, const lk_safetensors_tensor *tensors,
                             size_t tensor_count, uint64_t *step, lk_error *error);

typedef struct lk_checkpoint_found {
    uint64_t step;
    char path[LK_PATH_BYTES];
} lk_checkpoint_found;

// Is called for every checkpoint that was passed over, newest first, with what is wrong with it.
typedef void (*lk_checkpoint_reporter)(void *context, const char *path, const lk_error *why);

// The newest checkpoint that verifies.
//   LK_OK        found
//   LK_NO_INPUT  there is none at all: the run never saved
//   LK_BAD_DATA  there are some, and every one is damaged; never taken as "start over"
//   LK_IO_ERROR  the directory cannot be listed, or a checkpoint cannot be opened (permissions): it
//                may be whole, so no older one takes its place
//   LK_UNAVAILABLE  the newest is whole, and of a newer version of the format: the same
lk_status lk_checkpoint_find_newest(const lk_file_ops *ops, const char *directory,
                                    lk_safetensors_entry *entries, size_t entry_capacity,
                                    lk_checkpoint_reporter report, void *report_context,
                                    lk_checkpoint_found *found, lk_error *error);

// "step-<10 or more digits>.safetensors" of a directory entry. False for any other name.
bool lk_checkpoint_step_of(const char *name, uint64_t *step);

#ifdef __cplusplus
}
#endif
#endif
