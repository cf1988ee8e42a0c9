// quick_fma.c - v_fma of ops/cpu/vector.h, compiled as ops/cpu/sse2.c compiles it.
#include "tests/ops/quick_fma.h"

#if defined(__x86_64__) && !defined(__FMA__)
#define V_QUICK 1
#include "ops/cpu/vector.h"

static void four(const float *a, const float *b, const float *c, float *out) {
    v_store(out, v_fma(v_load(a), v_load(b), v_load(c)));
}

bool quick_fma(const float a[4], const float b[4], const float c[4], float out[4]) {
    static void (*volatile const run)(const float *, const float *, const float *, float *) = four;
    _mm_setcsr(_mm_getcsr() & ~0x10u);
    run(a, b, c, out);
    return !(_mm_getcsr() & 0x10);
}
#else
bool quick_fma(const float a[4], const float b[4], const float c[4], float out[4]) {
    (void)a, (void)b, (void)c, (void)out;
    return false;
}
#endif
