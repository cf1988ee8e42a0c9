// beyond.c - a kernel with a mistake, where the environment asks for it: ReLU writes
// LOCKSTEP_TEST_BEYOND floats behind its output. Who looks at guards has to find them.
#include <stdlib.h>

#include "ops/cuda/kernels.h"

void __real_lk_cuda_relu_forward(lk_cuda_stream *s, uint64_t count, const float *x, float *y);
void __wrap_lk_cuda_relu_forward(lk_cuda_stream *s, uint64_t count, const float *x, float *y);
void __wrap_lk_cuda_relu_forward(lk_cuda_stream *s, uint64_t count, const float *x, float *y) {
    const char *beyond = getenv("LOCKSTEP_TEST_BEYOND");
    __real_lk_cuda_relu_forward(s, count + (beyond ? strtoull(beyond, NULL, 10) : 0), x, y);
}
