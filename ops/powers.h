// powers.h - pow and cos of the arithmetic, for numbers that are computed once a step.
//
// Core: freestanding C11. By integers alone, so the bits are the same everywhere; what is rounded
// is a value with 60 bits, so the error is 0.5 ulp and less than 2^-20 more. Slower than what
// ops/math.h has, and so not for kernels; a GPU gets what comes of them (ops/optimizer.h).
//
//   lk_powf    b^y for 0 <= b <= 1 and y >= 0, both finite          b^0 = 1, 0^y = 0
//   lk_cos_pif cos(pi * x) for 0 <= x <= 1                          cos(pi / 2) = +0
//   lk_power   b^n for a whole n, by rounded products: square and multiply from n's top bit
//
// Notation: high(a * b) is the upper half of the 128 bits of a product; divisions round down;
// b = m * 2^e with m in [1, 2), and y = Y * 2^p with Y in [2^23, 2^24).
//
// b^y, 0 < b < 1, y > 0:   2^-(y * log2(1 / b))
//
//    1  X = m * 2^63;  F = 0
//    2  63 times: H = high(X * X);  F = 2 F + (H >> 63);  X = H >> 63 ? H : 2 H
//       F is log2(m) * 2^63: a square of 2 or more is a bit of the logarithm
//    3  L = 2^63 - F, q = 63 where e = -1;  else L = -e * 2^55 - F / 2^8, q = 55
//       L * 2^-q is log2(1 / b)
//    4  L * 2^z in [2^63, 2^64);  L = L * 2^z, q = q + z
//    5  P = high(L * Y * 2^40);  r = q - p - 24           P * 2^-r is y * log2(1 / b)
//    6  the result is +0 where r < 55, 1 where r > 127
//    7  n = P >> r;  f = the lower r bits of P, times 2^(64 - r), rounding down
//    8  z = high(f * 0xb17217f7d1cf79ab)                  ln 2
//    9  v = 2^63;  v = 2^63 - high(z * v) / k for k = 20 .. 1
//   10  the result is v * 2^(-63 - n), rounded once
//
// cos(pi * x):
//
//    1  X = x * 2^63, rounding down;  X = 2^63 - X, and the result is negated, where X > 2^62
//    2  where X <= 2^61: c = 0; else c = 1, X = 2^62 - X: the sine of what is left to pi / 2
//    3  T = 4 * high(2 X * 0xc90fdaa22168c234);  U = high(T * T)     pi * x and its square
//    4  v = 2^63;  v = 2^63 - high(U * v) / (k * (k - 1)) for k = 20 + c, 18 + c .. 2 + c
//    5  v = high(T * v) where c = 1
//    6  the result is v * 2^-63, rounded once
#ifndef LOCKSTEP_OPS_POWERS_H
#define LOCKSTEP_OPS_POWERS_H

#include "ops/fmaf.h"

// The upper half of a * b.
static inline uint64_t lk_high64(uint64_t a, uint64_t b) {
    const uint64_t a_low = (uint32_t)a, a_high = a >> 32, b_low = (uint32_t)b, b_high = b >> 32;
    const uint64_t low = a_low * b_low, one = a_high * b_low, two = a_low * b_high;
    const uint64_t carry = ((low >> 32) + (uint32_t)one + (uint32_t)two) >> 32;
    return a_high * b_high + (one >> 32) + (two >> 32) + carry;
}

// value * 2^exponent, rounded once; value has 64 bits.
static inline float lk_rounded(uint64_t value, int exponent) {
    if (value == 0) return 0.0f;
    return lk_float_from_bits(lk_soft_round(value >> 1 | (value & 1), exponent + 1));
}

// Step 2: the logarithm to base 2 of X * 2^-63, times 2^63.
static inline uint64_t lk_log2_bits(uint64_t x) {
    uint64_t bits = 0;
    for (int i = 0; i < 63; i++) {
        const uint64_t square = lk_high64(x, x);
        bits = bits << 1 | square >> 63;
        x = square >> 63 ? square : square << 1;
    }
    return bits;
}

// Steps 7 to 10: 2^-(P * 2^-r), 55 <= r <= 127.
static inline float lk_half_to(uint64_t p, int r) {
    const int n = r < 64 ? (int)(p >> r) : 0;
    const uint64_t f = r < 64 ? p << (64 - r) : p >> (r - 64);
    const uint64_t z = lk_high64(f, 0xb17217f7d1cf79abu), one = (uint64_t)1 << 63;
    uint64_t v = one;
    for (uint32_t k = 20; k > 0; k--) v = one - lk_high64(z, v) / k;
    return lk_rounded(v, -63 - n);
}

static inline float lk_powf(float b, float y) {
    if (y == 0.0f || b == 1.0f) return 1.0f;
    if (b == 0.0f) return 0.0f;
    const lk_soft_float base = lk_soft_unpack(lk_float_to_bits(b));
    const lk_soft_float power = lk_soft_unpack(lk_float_to_bits(y));
    const uint64_t log = lk_log2_bits(base.mantissa << 40);
    const int e = base.exponent + 23;
    uint64_t l = e == -1 ? ((uint64_t)1 << 63) - log : ((uint64_t)-e << 55) - (log >> 8);
    int q = e == -1 ? 63 : 55;
    for (; !(l >> 63); q++) l <<= 1;
    const int r = q - power.exponent - 24;
    if (r < 55) return 0.0f;
    if (r > 127) return 1.0f;
    return lk_half_to(lk_high64(l, power.mantissa << 40), r);
}

static inline float lk_cos_pif(float x) {
    const lk_soft_float value = lk_soft_unpack(lk_float_to_bits(x));
    const uint64_t one = (uint64_t)1 << 63;
    const int shift = value.exponent + 63;
    uint64_t at = shift < -63 ? 0 : shift < 0 ? value.mantissa >> -shift : value.mantissa << shift;
    const int negative = at > one >> 1;
    if (negative) at = one - at;
    const int sine = at > one >> 2;
    if (sine) at = (one >> 1) - at;
    const uint64_t t = lk_high64(at << 1, 0xc90fdaa22168c234u) << 2, u = lk_high64(t, t);
    uint64_t v = one;
    for (uint32_t k = 20 + (uint32_t)sine; k > 1; k -= 2) v = one - lk_high64(u, v) / (k * (k - 1));
    if (sine) v = lk_high64(t, v);
    const float result = lk_rounded(v, -63);
    return negative && v > 0 ? -result : result;
}

static inline float lk_power(float b, uint64_t n) {
    float result = 1.0f;
    for (int bit = 63; bit >= 0; bit--) {
        result = result * result;
        if (n >> bit & 1) result = result * b;
    }
    return result;
}

#endif
