// portable.c - the kernels for any machine: SSE2 on x86-64, the compiler's vectors elsewhere.
//
// On x86-64 without FMA they are the long way, which sse2.c takes where its short one may not go.
#if defined(__x86_64__) && !defined(__FMA__)
#define LK_VARIANT portable_exact
#else
#define LK_VARIANT portable
#endif
#include "ops/cpu/table.inc.h"
