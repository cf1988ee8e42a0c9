// avx512.c - the kernels for x86-64 with AVX-512 F, DQ, BW and VL.
#define LK_VARIANT avx512
#include "ops/cpu/table.inc.h"
