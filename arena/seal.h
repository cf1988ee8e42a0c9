// seal.h - makes the kernel refuse memory after start-up, in all threads. Host only (Linux,
// libseccomp).
#ifndef LOCKSTEP_ARENA_SEAL_H
#define LOCKSTEP_ARENA_SEAL_H

#include "arena/base.h"

// From here on mmap, mremap, clone, clone3, fork, vfork and execve end the process with one line
// and exit code 70 (LK_INTERNAL), and brk answers 0 (ENOMEM would crash glibc). There is no way
// back. LK_UNAVAILABLE where this build has no libseccomp or the kernel refuses the filter.
lk_status lk_seal_enforce(lk_error *error);

#endif
