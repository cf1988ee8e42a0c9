// arithmetic_probe.c - can this compiler, with these flags, keep the bits? LockstepArithmetic.cmake
// compiles it for every target and runs it where it can. Knows no header: there may be none.
//
// An #error's text after "Lockstep: " is shown to the user. The exit code is the number of the
// first broken rule in LockstepArithmetic.cmake's list.

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Lockstep: it is big-endian; checkpoints, digests and hashes are little-endian bytes"
#endif
#if !defined(__FLT_EVAL_METHOD__) || (__FLT_EVAL_METHOD__ != 0 && __FLT_EVAL_METHOD__ != 16)
#error "Lockstep: it has excess precision (x87?); take x86-64, or -msse2 -mfpmath=sse"
#endif
#if __FLT_MANT_DIG__ != 24 || __FLT_MAX_EXP__ != 128 || __FLT_MIN_EXP__ != -125
#error "Lockstep: its float is not IEEE 754 binary32"
#endif
#if defined(__FLT_HAS_DENORM__) && !__FLT_HAS_DENORM__
#error "Lockstep: it flushes to zero: its float has no subnormal numbers"
#endif
#if defined(__arm__) && defined(__ARM_NEON)
#error "Lockstep: it flushes to zero: NEON of 32-bit ARM has no subnormals; take -mfpu=vfpv3-d16"
#endif
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "Lockstep: it is compiled with fast-math, which changes the trained weights"
#endif

// Volatile: the processor computes these, not the compiler.
static volatile float smallest_normal = 0x1p-126f, one = 1.0f, half_ulp = 0x1p-24f;
static volatile float three_half_ulps = 0x1.8p-23f, more = 0x1.000002p+0f, less = 0x1.fffffcp-1f;

int main(void) {
    volatile float subnormal = smallest_normal * 0x1p-23f;
    volatile float back = subnormal * 0x1p+23f;
    if (back != smallest_normal) return 1;
    volatile float tie = one + half_ulp, tie_up = one + three_half_ulps;
    if (tie != 1.0f || tie_up != 0x1.000004p+0f) return 2;
    // (1 + 2^-23)(1 - 2^-23) is 1 - 2^-46, and 1 once it is rounded.
    volatile float product = more * less;
    volatile float difference = product - one;
    if (difference != 0.0f) return 3;
    volatile float sum = (one + half_ulp) + half_ulp;
    if (sum != 1.0f) return 4;
    return 0;
}
