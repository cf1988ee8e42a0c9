// hot_state.h - the state of a run in memory that outlives its process: a file in /dev/shm with two
// copies of all parameters and slots, each with its step and its checksums, written by turns.
//
// A copy is first made invalid, then written, then made valid by its last word: a process that is
// killed at any moment leaves at least the other copy whole. What a copy holds is the tensors'
// bytes, one after the other in the caller's order, so it depends on no layout of memory.
//
// The file is its owner's alone (mode 0600, links and strangers' files are refused), and one
// process at a time holds it (flock). It is gone with the machine's power, and nobody may rely on
// more: this is a shortcut, the checkpoints on disk are what is promised.
//
// Host only. Knows nothing of what the tensors mean, nor when they are kept. Opening maps and locks
// memory; keeping and taking a copy allocate nothing and call nobody.
#ifndef LOCKSTEP_IO_HOT_STATE_H
#define LOCKSTEP_IO_HOT_STATE_H

#include "arena/sha256.h"
#include "io/safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LK_HOT_COPIES = 2 };

// What one copy says of itself.
typedef enum lk_hot_verdict {
    LK_HOT_EMPTY,    // never written
    LK_HOT_WHOLE,    // all of it is what was written
    LK_HOT_TORN,     // its writer was stopped in the middle, or its bytes have changed since
    LK_HOT_FOREIGN,  // whole, but of another run identity
} lk_hot_verdict;

typedef struct lk_hot_copy {
    lk_hot_verdict verdict;
    uint64_t step;  // of a whole one
    uint64_t word;  // the caller's
} lk_hot_copy;

typedef struct lk_hot_state {
    int file;                           // -1: closed
    uint8_t *base;                      // both copies
    uint64_t copy_bytes, tensor_bytes;  // of one copy with its head; of the tensors
    uint8_t identity[LK_SHA256_BYTES];
    uint32_t next;  // the copy that is written next: not the newest whole one
    bool used;      // it holds a whole copy, so it is worth keeping
    char path[LK_PATH_BYTES];
} lk_hot_state;

// Bytes of all tensors; and of the file that keeps copies of tensors of `tensor_bytes` bytes: both
// copies, each with its header.
uint64_t lk_hot_tensor_bytes(const lk_safetensors_tensor *tensors, size_t count);
uint64_t lk_hot_file_bytes(uint64_t tensor_bytes);

// <directory>/lockstep-hot-<key>. LK_BAD_USAGE where that is too long.
lk_status lk_hot_path(char path[LK_PATH_BYTES], const char *directory, uint64_t key,
                      lk_error *error);

// Opens the file at `path`, or with `create` makes it, with all its bytes taken and touched; holds
// it until lk_hot_close or the end of the process. Copies that are there stay.
//   LK_NO_INPUT     there is none (never with `create`)
//   LK_UNAVAILABLE  another process holds it, there is no room, or the memory cannot be mapped
//   LK_BAD_DATA     something else has that name, or it is of another size (without `create`)
lk_status lk_hot_open(lk_hot_state *hot, const char *path, const uint8_t identity[LK_SHA256_BYTES],
                      uint64_t tensor_bytes, bool create, lk_error *error);

// Judges both copies, every byte of them. The next one kept does not overwrite the newest.
void lk_hot_look(lk_hot_state *hot, lk_hot_copy copies[LK_HOT_COPIES]);

// Writes a copy. The tensors must not change meanwhile.
void lk_hot_keep(lk_hot_state *hot, const lk_safetensors_tensor *tensors, size_t count,
                 uint64_t step, uint64_t word);

// Reads copy `which` into the tensors, and checks what was read. LK_BAD_DATA where it is not whole:
// the tensors are then worth nothing.
lk_status lk_hot_take(const lk_hot_state *hot, uint32_t which, const lk_safetensors_tensor *tensors,
                      size_t count, lk_error *error);

// Gives the memory back, and keeps holding the file. Makes both copies invalid. Closes; removes the
// file and closes. Each may be called when closed.
void lk_hot_unmap(lk_hot_state *hot);
void lk_hot_clear(lk_hot_state *hot);
void lk_hot_close(lk_hot_state *hot);
void lk_hot_remove(lk_hot_state *hot);

// The same at the end of a process that gives no memory back any more: the map goes with it.
void lk_hot_leave(lk_hot_state *hot, bool remove);

#ifdef __cplusplus
}
#endif
#endif
