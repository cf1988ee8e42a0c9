// math_kernel.c - exp, log, sqrt, tanh and sigmoid over arrays, as one compiler and one
// instruction set make them.
//
// Compiled several times, with MATH_VARIANT saying which: every variant must give the same bits.
#include "tests/ops/math_kernel.h"

#include "ops/math.h"

#define MATH_DECLARE_(variant) MATH_DECLARE(variant)
MATH_DECLARE_(MATH_VARIANT)

#define MATH_NAME_(function, variant) math_##function##_##variant
#define MATH_NAME(function, variant) MATH_NAME_(function, variant)

void MATH_NAME(exp, MATH_VARIANT)(const float *restrict x, float *restrict y, size_t count) {
    for (size_t i = 0; i < count; i++) y[i] = lk_expf(x[i]);
}

void MATH_NAME(log, MATH_VARIANT)(const float *restrict x, float *restrict y, size_t count) {
    for (size_t i = 0; i < count; i++) y[i] = lk_logf(x[i]);
}

void MATH_NAME(sqrt, MATH_VARIANT)(const float *restrict x, float *restrict y, size_t count) {
    for (size_t i = 0; i < count; i++) y[i] = lk_sqrtf(x[i]);
}

void MATH_NAME(tanh, MATH_VARIANT)(const float *restrict x, float *restrict y, size_t count) {
    for (size_t i = 0; i < count; i++) y[i] = lk_tanhf(x[i]);
}

void MATH_NAME(sigmoid, MATH_VARIANT)(const float *restrict x, float *restrict y, size_t count) {
    for (size_t i = 0; i < count; i++) y[i] = lk_sigmoidf(x[i]);
}

void MATH_NAME(elu, MATH_VARIANT)(const float *restrict x, float *restrict y, size_t count) {
    for (size_t i = 0; i < count; i++) y[i] = lk_eluf(x[i]);
}

void MATH_NAME(softplus, MATH_VARIANT)(const float *restrict x, float *restrict y, size_t count) {
    for (size_t i = 0; i < count; i++) y[i] = lk_log1pexpf(x[i]);
}

void MATH_NAME(swish, MATH_VARIANT)(const float *restrict x, float *restrict y, size_t count) {
    for (size_t i = 0; i < count; i++) y[i] = lk_swishf(x[i]);
}

void MATH_NAME(gelu, MATH_VARIANT)(const float *restrict x, float *restrict y, size_t count) {
    for (size_t i = 0; i < count; i++) y[i] = lk_geluf(x[i]);
}

void MATH_NAME(gelu_tanh, MATH_VARIANT)(const float *restrict x, float *restrict y, size_t count) {
    for (size_t i = 0; i < count; i++) y[i] = lk_gelu_tanhf(x[i]);
}
