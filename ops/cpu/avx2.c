// avx2.c - the kernels for x86-64 with AVX2 and FMA.
#define LK_VARIANT avx2
#include "ops/cpu/table.inc.h"
