// neon.c - the kernels for AArch64, every one of which has NEON.
#define LK_VARIANT neon
#define V_NEON 1
#include "ops/cpu/table.inc.h"
