// quick_fma.h - the short fma of the portable kernels, for fmaf_test.c.
#ifndef LOCKSTEP_TESTS_OPS_QUICK_FMA_H
#define LOCKSTEP_TESTS_OPS_QUICK_FMA_H

#include <stdbool.h>

// out[i] = fma(a[i], b[i], c[i]) as the kernels compute it; false where the processor's flag of
// underflow says that they may not, and always on a processor that is not x86-64.
bool quick_fma(const float a[4], const float b[4], const float c[4], float out[4]);

#endif
