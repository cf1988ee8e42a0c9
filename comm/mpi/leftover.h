// leftover.h - files that MPI makes in /dev/shm and unlinks once all workers have opened them: a
// run that is killed before that leaves them behind. Host only, before the seal.
#ifndef LOCKSTEP_COMM_MPI_LEFTOVER_H
#define LOCKSTEP_COMM_MPI_LEFTOVER_H

#include "arena/base.h"

// Removes those of this user that nobody has open or mapped, and that are so many seconds old. That
// nobody has is the kernel's word, for every process in every container: it gives a write lease on
// a file only then. Where it gives none at all, nothing is removed. Returns how many were.
uint32_t lk_leftover_remove(uint32_t seconds_old);

#endif
