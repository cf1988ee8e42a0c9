// math_kernel.h - the variants of math_kernel.c. x and y (count), not overlapping.
#ifndef LOCKSTEP_TESTS_OPS_MATH_KERNEL_H
#define LOCKSTEP_TESTS_OPS_MATH_KERNEL_H

#include <stddef.h>

typedef void math_kernel(const float *restrict x, float *restrict y, size_t count);

// Declares the functions of a variant.
#define MATH_DECLARE(variant)                                               \
    math_kernel math_exp_##variant, math_log_##variant, math_sqrt_##variant, \
        math_tanh_##variant, math_sigmoid_##variant, math_elu_##variant, math_softplus_##variant, \
        math_swish_##variant, math_gelu_##variant, math_gelu_tanh_##variant;

#endif
