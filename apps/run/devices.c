// devices.c - which devices this library was built with. Alone in its file, so that a test can link
// another one in its place.
#include "apps/run/run.h"

#ifdef LK_HAVE_CUDA
const lk_cuda_calls *lk_cuda_linked(void) { return &lk_cuda; }
#else
const lk_cuda_calls *lk_cuda_linked(void) { return NULL; }
#endif
