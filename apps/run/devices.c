// devices.c - which devices this program was linked with. Kept out of lockstep_apps, so that a test
// can link the same program with others.
#include "apps/run/run.h"

#ifdef LK_HAVE_CUDA
const lk_cuda_calls *lk_cuda_linked(void) { return &lk_cuda; }
#else
const lk_cuda_calls *lk_cuda_linked(void) { return NULL; }
#endif
