// cuda_pipeline.h - stands in for the toolkit's header of this name: asynchronous copies from
// global to shared memory.
//
// A copy is made as late as it may be: by the wait that covers it, of the thread that asked for it,
// and never seen by who does not meet that thread at a barrier behind the wait. Until then what it
// writes is a signalling pattern (block.cpp), so that a wait that is missing or waits for too few
// gives wrong bits.
#ifndef LOCKSTEP_HOST_CUDA_PIPELINE_H
#define LOCKSTEP_HOST_CUDA_PIPELINE_H

#include "cuda_runtime.h"

// `bytes` are 4, 8 or 16, of which the last `zeros` are not read, but zero. Both addresses are
// aligned to `bytes`.
void lk_host_copy_async(void *to, const void *from, size_t bytes, size_t zeros, const char *file,
                        int line, const char *function);
void lk_host_copy_commit(void);
void lk_host_copy_wait(size_t prior, const char *file, int line, const char *function);

static inline void __pipeline_memcpy_async(void *to, const void *from, size_t bytes,
                                           size_t zeros = 0, LK_HOST_SITE) {
    lk_host_copy_async(to, from, bytes, zeros, file, line, function);
}
static inline void __pipeline_commit(void) { lk_host_copy_commit(); }
static inline void __pipeline_wait_prior(size_t prior, LK_HOST_SITE) {
    lk_host_copy_wait(prior, file, line, function);
}

#endif
