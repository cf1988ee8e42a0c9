// portable.c - the kernels for any machine: SSE2 on x86-64, the compiler's vectors elsewhere.
#define LK_VARIANT portable
#include "ops/cpu/table.inc.h"
