// leftover.h - files that MPI makes in /dev/shm and unlinks once all workers have opened them: a
// run that is killed before that leaves them behind. Host only, before the seal.
#ifndef LOCKSTEP_COMM_MPI_LEFTOVER_H
#define LOCKSTEP_COMM_MPI_LEFTOVER_H

#include "arena/base.h"

// Removes those of this user that are at least `seconds_old` old and that nobody has open or
// mapped. The kernel says so, for every process in every container: only then does it give a write
// lease on the file. Where it gives no leases at all, nothing is removed. Returns the number
// removed.
uint32_t lk_leftover_remove(uint32_t seconds_old);

#endif
