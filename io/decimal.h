// decimal.h - a float as decimal text, exactly as the C library's "%.9g" prints it. For targets
// that have no C library, so that their lines are those of the host.
//
// Core: freestanding, integers only. Nine significant digits tell every float from every other.
#ifndef LOCKSTEP_IO_DECIMAL_H
#define LOCKSTEP_IO_DECIMAL_H

#include "arena/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LK_DECIMAL_BYTES = 24 };  // the longest is "-1.17549435e-38"

// Rounded to nearest, ties to even. "inf", "-inf", "nan", "-nan" where it is not finite.
void lk_decimal(float value, char out[LK_DECIMAL_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
