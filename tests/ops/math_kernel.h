// math_kernel.h - the variants of math_kernel.c. x and y (count), not overlapping.
#ifndef LOCKSTEP_TESTS_OPS_MATH_KERNEL_H
#define LOCKSTEP_TESTS_OPS_MATH_KERNEL_H

#include <stddef.h>

typedef void math_kernel(const float *restrict x, float *restrict y, size_t count);

math_kernel math_exp_target, math_log_target;  // as the library is compiled
math_kernel math_exp_plain, math_log_plain;    // the same without optimization
math_kernel math_exp_soft, math_log_soft;      // with the integer fma
math_kernel math_exp_fma, math_log_fma;        // with the fma instruction; x86-64 only

#endif
