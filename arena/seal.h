// seal.h - makes the kernel refuse memory after start-up, in all threads. Host only (Linux,
// libseccomp).
#ifndef LOCKSTEP_ARENA_SEAL_H
#define LOCKSTEP_ARENA_SEAL_H

#include "arena/base.h"

// From here on the process may do what a sealed run does, and nothing else: files that are opened,
// written, renamed and removed, waiting, time, connections to other workers, signals, the end. Any
// other system call of any thread (mmap, mremap, mprotect, shmat, memfd_create, io_uring_setup,
// userfaultfd, clone, execve, ...; opening a file that is made to be read and written, as shm_open
// does) ends the process with one line that names it and says why, and exit code 70 (LK_INTERNAL).
// brk answers 0 (ENOMEM would crash glibc). There is no way back. LK_UNAVAILABLE where this build
// has no libseccomp or the kernel refuses the filter.
lk_status lk_seal_enforce(lk_error *error);

#endif
