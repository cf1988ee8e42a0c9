// math.h - exp, log, tanh, sigmoid, other activations, sqrt, sine and cosine of the arithmetic: the
// same bits from every compiler, processor and GPU.
//
// Core: freestanding C11, also C++ and CUDA. Knows only ops/fmaf.h; no libm, no double, no table.
//
// libm's functions differ between machines, and even between the processors one libm chooses for.
// These are defined by the sequence of operations below, nothing else: each operation is fp32,
// rounded once, to nearest even, with subnormals kept. No branch depends on the argument: where
// two results exist one is selected, so a vector kernel runs the same sequence lane by lane.
//
//            largest error over all 2^32 floats   special values
//   lk_expf  0.882 ulp                            exp(+-0) = 1, exp(+inf) = +inf, exp(-inf) = +0
//   lk_logf  0.896 ulp                            log(1) = +0, log(+-0) = -inf, log(+inf) = +inf,
//                                                 log(x < 0) = NaN
//   lk_tanhf 1.406 ulp                            tanh(+-0) = +-0, tanh(+-inf) = +-1
//   lk_sigmoidf 0.879 ulp                         sigmoid(+-0) = 1/2, sigmoid(+inf) = 1,
//                                                 sigmoid(-inf) = +0
//
//   lk_eluf 1.34 ulp, lk_log1pexpf 1.56, lk_swishf 1.61, lk_gelu_tanhf 1.59, lk_geluf 1.89 at most
//   over every 17th float; e^x - 1 below zero and x above; log(1 + e^x); x / (1 + e^-x); x times
//   its normal distribution, and the approximation of that by tanh. They are defined by their code
//   below and ARITHMETIC.md 9, as are the slopes of the last three, of which nothing is promised.
//
//   lk_sqrtf correctly rounded, as IEEE has it    sqrt(-0) = -0, sqrt(x < 0) = NaN
//   lk_cos_sinf 0.987 ulp, over its 2^24 arguments      exact at quarters of a circle
//
// NaN gives NaN, of any payload. Overflow is +inf, underflow gradual and then +0.
//
// Notation: a + b, a - b, a * b and fma(a, b, c) round once; bits(x) is the 32-bit pattern of x and
// float(u) the float that has the pattern u; integers are modulo 2^32; u >> n shifts in zeros.
//
// exp(x):   x = 2^k * e^r with k an integer and |r| <= ln 2 / 2, and e^r = 1 + r * (1 + r * p(r))
//
//    1  x = -104 if x < -104, then x = 89 if x > 89       beyond, the result is 0 or infinity
//    2  t = fma(x, 0x1.715476p+0, 0x1.8p+23)              1 / ln 2; the low bits of t are now k
//    3  n = t - 0x1.8p+23                                 exact; n is k as a float
//    4  r = fma(n, -0x1.62e43p-1, x)                      the upper part of ln 2
//    5  r = fma(n, 0x1.05c61p-29, r)                      minus the rest of ln 2
//    6  p = 0x1.6a8578p-10
//    7  p = fma(p, r, c) for c = 0x1.124e32p-7, 0x1.55588cp-5, 0x1.55547p-3, 0x1.fffffcp-2, 1, 1
//    8  u = bits(t) - 0x4b400000 + 254                    k + 2 * 127; 0x4b400000 = bits(0x1.8p+23)
//    9  h = u >> 1
//   10  result = (p * float(h << 23)) * float((u - h) << 23)
//
// Two factors, because 2^k alone may be no float; only the last product can round.
//
// log(x):   x = 2^k * (1 + f) with 1 + f in [2/3, 4/3); log(1 + f) = f + f^2 * (-1/2 + f * p(f))
//
//    1  tiny = x < 0x1p-126
//    2  y = x * 0x1p+23 if tiny, else x                   subnormals become normal
//    3  e = (bits(y) - 0x3f2aaaab) & 0xff800000           2^23 * k; 0x3f2aaaab = bits(2/3)
//    4  f = float(bits(y) - e) - 1                        exact
//    5  n = float value of the integer e as signed, times 0x1p-23      exact: k
//    6  n = n - 23 if tiny, else n
//    7  s = f * f
//    8  p = -0x1.0f1842p-3
//    9  p = fma(p, f, c) for c = 0x1.1deb72p-3, -0x1.f03df8p-4, 0x1.1ef1e4p-3, -0x1.55b7e4p-3,
//           0x1.99ccdp-3, -0x1.fffe2ap-3, 0x1.55551ep-2, -0x1p-1
//   10  p = fma(p, s, f)
//   11  p = fma(n, 0x1.62e43p-1, p)                       ln 2
//   12  result = p if 0 < x < +inf; -inf if x = +-0; NaN if x < 0; else x (+inf or NaN)
//
// tanh and sigmoid are quotients of e^r in two floats: e^r = 1 + e + f, where e + f is the product
// p * r of exp's steps 2 to 7 (the last 1 not added) without a rounding, and k is step 8's.
//
// tanh(x):  of the size of x; the sign of x is put back. tanh = m / (2 - m), m = 1 - e^(-2 a)
//
//    1  a = |x|, a = 10 if a > 10                         beyond, the result is 1
//    2  e, f, k of -2 * a;  s = float((k + 127) << 23)    2^k, k = -29 .. 0
//    3  o = 1 - s;  b = s * e;  m = o - b                 m + l is 1 - 2^k * e^r
//    4  l = ((o - m) - b) + (((1 - o) - s) - s * f)
//    5  d = 2 - m;  g = ((2 - d) - m) - l                 d + g is 2 - (m + l)
//    6  i = 1 / d;  q = m * i
//    7  c = fma(-q, g, fma(-q, d, m) + l)                 what is left
//    8  result = fma(c, i, q)
//
// sigmoid(x):  with E = e^-|x|, 1 / (1 + E) where x >= 0 and E / (1 + E) where x < 0
//
//    1  a = -|x|, a = -104 if a < -104                    beyond, the result is 1 or 0
//    2  e, f, k of a;  u = k + 254;  h = u >> 1           2^k = v * w,
//    3  v = float(h << 23);  w = float((u - h) << 23)     as in exp
//    4  j = 1 + e;  l = ((1 - j) + e) + f                 j + l is e^r
//    5  E = (j * v) * w;  d = 1 + E
//    6  g = ((1 - d) + E) + (l * v) * w                   d + g is 1 + E
//    7  j = 1, l = 0, v = w = 1 where not x < 0           the numerator
//    8  i = 1 / d;  q = j * i
//    9  c = fma(-q, g, fma(-q, d, j) + l)
//   10  result = (fma(c, i, q) * v) * w
//
// cos_sin(a): cosine and sine of a / 2^24 of a circle, a < 2^24 an integer; of what is left, f,
//           after q quarters, |f| <= 1/8, sine = f * p(f^2) and cosine = 1 + f^2 * p(f^2)
//
//    1  q = (a + 2^21) >> 22                              0 .. 4
//    2  f = (a - (q << 22), as signed) * 0x1p-24;  g = f * f             f is exact
//    3  p = -0x1.2d9bb8p+6
//    4  p = fma(p, g, c) for c = 0x1.465ec6p+6, -0x1.4abbbap+5, -0x1.a0f37p-23
//    5  s = fma(f, 0x1.921fb6p+2, f * p)                  2 pi
//    6  p = 0x1.d9f7d2p+5
//    7  p = fma(p, g, c) for c = -0x1.55c664p+6, 0x1.03c1dep+6, -0x1.3bd3ccp+4, 1
//    8  x = p, y = s if q is even, else x = s, y = p
//    9  cosine = -x if q is 1 or 2, else x;  sine = -y if q is 2 or 3, else y
//
// The polynomials are minimax fits whose rounded coefficients were then moved by a few units to
// the smallest measured error. Changing any constant changes the arithmetic version.
#ifndef LOCKSTEP_OPS_MATH_H
#define LOCKSTEP_OPS_MATH_H

#include "ops/fmaf.h"

// e^x.
LK_SCALAR float lk_expf(float x) {
    x = x < -0x1.ap+6f ? -0x1.ap+6f : x;    // -104
    x = x > 0x1.64p+6f ? 0x1.64p+6f : x;    // 89
    float t = lk_fmaf(x, 0x1.715476p+0f, 0x1.8p+23f);
    float n = t - 0x1.8p+23f;
    float r = lk_fmaf(n, -0x1.62e43p-1f, x);
    r = lk_fmaf(n, 0x1.05c61p-29f, r);

    float p = 0x1.6a8578p-10f;
    p = lk_fmaf(p, r, 0x1.124e32p-7f);
    p = lk_fmaf(p, r, 0x1.55588cp-5f);
    p = lk_fmaf(p, r, 0x1.55547p-3f);
    p = lk_fmaf(p, r, 0x1.fffffcp-2f);
    p = lk_fmaf(p, r, 0x1p+0f);
    p = lk_fmaf(p, r, 0x1p+0f);

    uint32_t u = lk_float_to_bits(t) - 0x4b400000u + 254u;
    uint32_t h = u >> 1;
    return (p * lk_float_from_bits(h << 23)) * lk_float_from_bits((u - h) << 23);
}

// The natural logarithm of x.
LK_SCALAR float lk_logf(float x) {
    int tiny = x < 0x1p-126f;
    float y = tiny ? x * 0x1p+23f : x;
    uint32_t e = (lk_float_to_bits(y) - 0x3f2aaaabu) & 0xff800000u;
    float f = lk_float_from_bits(lk_float_to_bits(y) - e) - 0x1p+0f;
    float n = (float)(int32_t)e * 0x1p-23f;
    n = tiny ? n - 0x1.7p+4f : n;           // 23
    float s = f * f;

    float p = -0x1.0f1842p-3f;
    p = lk_fmaf(p, f, 0x1.1deb72p-3f);
    p = lk_fmaf(p, f, -0x1.f03df8p-4f);
    p = lk_fmaf(p, f, 0x1.1ef1e4p-3f);
    p = lk_fmaf(p, f, -0x1.55b7e4p-3f);
    p = lk_fmaf(p, f, 0x1.99ccdp-3f);
    p = lk_fmaf(p, f, -0x1.fffe2ap-3f);
    p = lk_fmaf(p, f, 0x1.55551ep-2f);
    p = lk_fmaf(p, f, -0x1p-1f);
    p = lk_fmaf(p, s, f);
    p = lk_fmaf(n, 0x1.62e43p-1f, p);

    p = x > 0.0f && x < lk_float_from_bits(0x7f800000u) ? p : x;
    p = x == 0.0f ? lk_float_from_bits(0xff800000u) : p;
    return x < 0.0f ? lk_float_from_bits(0x7fc00000u) : p;
}

// e^x - 1 before it is scaled: e^x = 2^k * (1 + (e + f)).
typedef struct lk_exp_parts {
    float e, f;
    uint32_t k;
} lk_exp_parts;

LK_SCALAR lk_exp_parts lk_exp_parts_of(float x) {
    float t = lk_fmaf(x, 0x1.715476p+0f, 0x1.8p+23f);
    float n = t - 0x1.8p+23f;
    float r = lk_fmaf(n, -0x1.62e43p-1f, x);
    r = lk_fmaf(n, 0x1.05c61p-29f, r);

    float p = 0x1.6a8578p-10f;
    p = lk_fmaf(p, r, 0x1.124e32p-7f);
    p = lk_fmaf(p, r, 0x1.55588cp-5f);
    p = lk_fmaf(p, r, 0x1.55547p-3f);
    p = lk_fmaf(p, r, 0x1.fffffcp-2f);
    p = lk_fmaf(p, r, 0x1p+0f);

    lk_exp_parts parts;
    parts.e = p * r;
    parts.f = lk_fmaf(p, r, -parts.e);
    parts.k = lk_float_to_bits(t) - 0x4b400000u;
    return parts;
}

// The hyperbolic tangent of x.
LK_SCALAR float lk_tanhf(float x) {
    float a = lk_float_from_bits(lk_float_to_bits(x) & 0x7fffffffu);
    a = a > 0x1.4p+3f ? 0x1.4p+3f : a;      // 10
    lk_exp_parts x2 = lk_exp_parts_of(-0x1p+1f * a);
    float s = lk_float_from_bits((x2.k + 127u) << 23);
    float o = 0x1p+0f - s;
    float b = s * x2.e;
    float m = o - b;
    float l = ((o - m) - b) + (((0x1p+0f - o) - s) - s * x2.f);
    float d = 0x1p+1f - m;
    float g = ((0x1p+1f - d) - m) - l;
    float i = 0x1p+0f / d;
    float q = m * i;
    float c = lk_fmaf(-q, g, lk_fmaf(-q, d, m) + l);
    q = lk_fmaf(c, i, q);
    return lk_float_from_bits((lk_float_to_bits(q) & 0x7fffffffu) |
                              (lk_float_to_bits(x) & 0x80000000u));
}

// 1 / (1 + e^-x).
LK_SCALAR float lk_sigmoidf(float x) {
    int below = x < 0.0f;
    float a = lk_float_from_bits(lk_float_to_bits(x) | 0x80000000u);
    a = a < -0x1.ap+6f ? -0x1.ap+6f : a;    // -104
    lk_exp_parts parts = lk_exp_parts_of(a);
    uint32_t u = parts.k + 254u;
    uint32_t h = u >> 1;
    float v = lk_float_from_bits(h << 23);
    float w = lk_float_from_bits((u - h) << 23);
    float j = 0x1p+0f + parts.e;
    float l = ((0x1p+0f - j) + parts.e) + parts.f;
    float e = (j * v) * w;
    float d = 0x1p+0f + e;
    float g = ((0x1p+0f - d) + e) + (l * v) * w;
    j = below ? j : 0x1p+0f;
    l = below ? l : 0.0f;
    v = below ? v : 0x1p+0f;
    w = below ? w : 0x1p+0f;
    float i = 0x1p+0f / d;
    float q = j * i;
    float c = lk_fmaf(-q, g, lk_fmaf(-q, d, j) + l);
    return (lk_fmaf(c, i, q) * v) * w;
}

// Cosine and sine of a / 2^24 of a circle, a < 2^24.
typedef struct lk_cos_sin {
    float cosine, sine;
} lk_cos_sin;

LK_SCALAR lk_cos_sin lk_cos_sinf(uint32_t a) {
    uint32_t q = (a + 0x200000u) >> 22;
    float f = (float)(int32_t)(a - (q << 22)) * 0x1p-24f;
    float g = f * f;

    float p = -0x1.2d9bb8p+6f;
    p = lk_fmaf(p, g, 0x1.465ec6p+6f);
    p = lk_fmaf(p, g, -0x1.4abbbap+5f);
    p = lk_fmaf(p, g, -0x1.a0f37p-23f);
    float s = lk_fmaf(f, 0x1.921fb6p+2f, f * p);

    p = 0x1.d9f7d2p+5f;
    p = lk_fmaf(p, g, -0x1.55c664p+6f);
    p = lk_fmaf(p, g, 0x1.03c1dep+6f);
    p = lk_fmaf(p, g, -0x1.3bd3ccp+4f);
    p = lk_fmaf(p, g, 0x1p+0f);

    float x = q & 1u ? s : p;
    float y = q & 1u ? p : s;
    lk_cos_sin result;
    result.cosine = (q + 1u) & 2u ? -x : x;
    result.sine = q & 2u ? -y : y;
    return result;
}

// e^x - 1 for x <= 0, x where it is above.
LK_SCALAR float lk_eluf(float x) {
    float a = x > 0.0f ? 0.0f : x;
    a = a < -0x1.4p+4f ? -0x1.4p+4f : a;    // -20
    lk_exp_parts parts = lk_exp_parts_of(a);
    float s = lk_float_from_bits((parts.k + 127u) << 23);
    float o = 0x1p+0f - s;
    float b = s * parts.e;
    float m = o - b;
    float l = ((o - m) - b) + (((0x1p+0f - o) - s) - s * parts.f);
    return x > 0.0f ? x : -(m + l);
}

// log(1 + e^x).
LK_SCALAR float lk_log1pexpf(float x) {
    float a = lk_float_from_bits(lk_float_to_bits(x) | 0x80000000u);
    a = a < -0x1.ap+6f ? -0x1.ap+6f : a;    // -104
    lk_exp_parts parts = lk_exp_parts_of(a);
    uint32_t u = parts.k + 254u;
    uint32_t h = u >> 1;
    float v = lk_float_from_bits(h << 23);
    float w = lk_float_from_bits((u - h) << 23);
    float j = 0x1p+0f + parts.e;
    float l = ((0x1p+0f - j) + parts.e) + parts.f;
    float t = (j * v) * w;
    float r = (l * v) * w;

    float d = 0x1p+1f + t;
    float b = t - (d - 0x1p+1f);
    float i = 0x1p+0f / d;
    float q = t * i;
    float c = (lk_fmaf(-q, d, t) + (r - q * (b + r))) * i;
    float z = q * q;
    float p = 0x1.dba26p-4f;
    p = lk_fmaf(p, z, 0x1.bc8cf8p-4f);
    p = lk_fmaf(p, z, 0x1.24c926p-3f);
    p = lk_fmaf(p, z, 0x1.9998d4p-3f);
    p = lk_fmaf(p, z, 0x1.555556p-2f);
    p = lk_fmaf(q * z, p, c);
    float o = x > 0.0f ? x : 0.0f;
    q = 0x1p+1f * q;
    float s = o + q;
    b = s - o;
    return s + (((o - (s - b)) + (q - b)) + 0x1p+1f * p);
}

// q * v * w = 1 / (1 + e^-(x + y)), |y| small beside x.
typedef struct lk_sigmoid_parts {
    float q, v, w;
} lk_sigmoid_parts;

LK_SCALAR lk_sigmoid_parts lk_sigmoid_parts_of(float x, float y) {
    int below = x < 0.0f;
    float a = below ? x : -x;
    y = below ? y : -y;
    y = a < -0x1.ep+6f ? 0.0f : y;
    a = a < -0x1.ep+6f ? -0x1.ep+6f : a;    // -120
    lk_exp_parts parts = lk_exp_parts_of(a);
    uint32_t u = parts.k + 254u;
    uint32_t h = u >> 1;
    lk_sigmoid_parts s;
    s.v = lk_float_from_bits(h << 23);
    s.w = lk_float_from_bits((u - h) << 23);
    float j = 0x1p+0f + parts.e;
    float l = (((0x1p+0f - j) + parts.e) + parts.f) + y * j;
    float e = (j * s.v) * s.w;
    float d = 0x1p+0f + e;
    float g = ((0x1p+0f - d) + e) + (l * s.v) * s.w;
    j = below ? j : 0x1p+0f;
    l = below ? l : 0.0f;
    s.v = below ? s.v : 0x1p+0f;
    s.w = below ? s.w : 0x1p+0f;
    float i = 0x1p+0f / d;
    float q = j * i;
    float c = lk_fmaf(-q, g, lk_fmaf(-q, d, j) + l);
    s.q = lk_fmaf(c, i, q);
    return s;
}

// x / (1 + e^-x).
LK_SCALAR float lk_swishf(float x) {
    x = x < -0x1.ep+6f ? -0x1.ep+6f : x;    // -120
    lk_sigmoid_parts s = lk_sigmoid_parts_of(x, 0.0f);
    return ((s.q * x) * s.v) * s.w;
}

// x / (1 + e^-z), z = 2 * sqrt(2 / pi) * (x + 0.044715 * x^3).
LK_SCALAR float lk_gelu_tanhf(float x) {
    x = x < -0x1.6p+3f ? -0x1.6p+3f : x;    // -11
    float b = x > 0x1.6p+3f ? 0x1.6p+3f : x;
    float s = b * b;
    float sl = lk_fmaf(b, b, -s);
    float h = 0x1.2444f2p-4f * s;
    float hl = lk_fmaf(0x1.2444f2p-4f, s, -h) + lk_fmaf(0x1.2444f2p-4f, sl, 0x1.49b16ap-29f * s);
    float c = 0x1.988454p+0f + h;
    float t = c - 0x1.988454p+0f;
    float cl = ((0x1.988454p+0f - (c - t)) + (h - t)) + (hl - 0x1.857936p-25f);
    float z = b * c;
    float zl = lk_fmaf(b, c, -z) + b * cl;
    lk_sigmoid_parts p = lk_sigmoid_parts_of(z, zl);
    return ((p.q * x) * p.v) * p.w;
}

// x times the normal distribution at x.
LK_SCALAR float lk_geluf(float x) {
    float a = lk_float_from_bits(lk_float_to_bits(x) & 0x7fffffffu);
    a = a > 0x1.dp+3f ? 0x1.dp+3f : a;    // 14.5
    float o = a - 0x1p+2f;
    float d = a + 0x1p+2f;
    float r = d - a;
    float b = a - o;
    float i = 0x1p+0f / d;
    float t = o * i;
    float e = ((a - (o + b)) + (b - 0x1p+2f)) - t * ((a - (d - r)) + (0x1p+2f - r));
    t = lk_fmaf(lk_fmaf(-t, d, o) + e, i, t);
    float p = -0x1.36186p-14f;
    p = lk_fmaf(p, t, -0x1.13a72p-14f);
    p = lk_fmaf(p, t, 0x1.6a67ccp-11f);
    p = lk_fmaf(p, t, -0x1.3b180cp-12f);
    p = lk_fmaf(p, t, -0x1.47d86p-8f);
    p = lk_fmaf(p, t, 0x1.25ebecp-6f);
    p = lk_fmaf(p, t, -0x1.07c388p-5f);
    p = lk_fmaf(p, t, 0x1.d49536p-6f);
    p = lk_fmaf(p, t, 0x1.cabd66p-7f);
    p = lk_fmaf(p, t, -0x1.8c18f2p-4f);
    p = lk_fmaf(p, t, 0x1.e361eap-2f);

    float s = -0x1p-1f * a;
    float z = s * a;
    lk_exp_parts parts = lk_exp_parts_of(z);
    uint32_t u = parts.k + 254u;
    uint32_t h = u >> 1;
    float v = lk_float_from_bits(h << 23);
    float w = lk_float_from_bits((u - h) << 23);
    float j = 0x1p+0f + parts.e;
    float l = (((0x1p+0f - j) + parts.e) + parts.f) + lk_fmaf(s, a, -z) * j;
    float n = a * p;
    float m = n * j;
    float g = lk_fmaf(n, j, -m) + lk_fmaf(n, l, lk_fmaf(a, p, -n) * j);
    d = a + 0x1p+0f;
    r = d - a;
    float dl = (a - (d - r)) + (0x1p+0f - r);
    i = 0x1p+0f / d;
    float q = m * i;
    float c = lk_fmaf(-q, dl, lk_fmaf(-q, d, m) + g);
    float below = (lk_fmaf(c, i, q) * v) * w;
    float above = (x - (q * v) * w) - ((c * i) * v) * w;
    return x < 0.0f ? -below : above;
}

// The slope of lk_gelu_tanhf.
LK_SCALAR float lk_gelu_tanh_slopef(float x) {
    x = x < -0x1.6p+3f ? -0x1.6p+3f : x;    // -11
    x = x > 0x1.6p+3f ? 0x1.6p+3f : x;      // 11
    float s = x * x;
    float p = lk_sigmoidf(x * lk_fmaf(0x1.2444f2p-4f, s, 0x1.988454p+0f));
    return lk_fmaf((x * p) * (0x1p+0f - p), lk_fmaf(0x1.b6676cp-3f, s, 0x1.988454p+0f), p);
}

// The slope of lk_geluf.
LK_SCALAR float lk_gelu_slopef(float x) {
    x = x < -0x1.dp+3f ? -0x1.dp+3f : x;    // -14.5
    x = x > 0x1.dp+3f ? 0x1.dp+3f : x;      // 14.5
    float a = lk_float_from_bits(lk_float_to_bits(x) & 0x7fffffffu);
    float p = a < 0x1p-60f ? 0x1p-1f : lk_geluf(x) / (a < 0x1p-60f ? 0x1p+0f : x);
    return lk_fmaf(0x1.988454p-2f * x, lk_expf((-0x1p-1f * x) * x), p);
}

// The slope of lk_swishf.
LK_SCALAR float lk_swish_slopef(float x) {
    float s = lk_sigmoidf(x);
    float b = x < -0x1.ap+6f ? -0x1.ap+6f : x;    // -104
    b = b > 0x1.ap+6f ? 0x1.ap+6f : b;            // 104
    return s * lk_fmaf(b, 0x1p+0f - s, 0x1p+0f);
}

// The square root by integers, for processors without a float unit. The root of a mantissa of 49 or
// 50 bits has 25: one more than a float, and what is left over says whether it is exact.
static inline float lk_soft_sqrtf(float x) {
    uint32_t bits = lk_float_to_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return lk_float_from_bits(0x7fc00000u);
    if ((bits & 0x7fffffffu) == 0 || bits == 0x7f800000u) return x;
    if (bits >> 31) return lk_float_from_bits(0x7fc00000u);
    lk_soft_float value = lk_soft_unpack(bits);
    int shift = 25 + ((value.exponent - 25) & 1);  // leaves an even exponent
    uint64_t rest = value.mantissa << shift, root = 0;
    for (int bit = 24; bit >= 0; bit--) {
        uint64_t wider = root | (uint64_t)1 << bit;
        if (wider * wider <= rest) root = wider;
    }
    uint64_t inexact = root * root != rest;
    return lk_float_from_bits(lk_soft_round(root << 1 | inexact, (value.exponent - shift) / 2 - 1));
}

// The square root of x, rounded once.
LK_SCALAR float lk_sqrtf(float x) {
#if defined(__CUDA_ARCH__)
    return __fsqrt_rn(x);
#elif defined(LK_USE_SOFT_FMAF)
    return lk_soft_sqrtf(x);
#elif defined(__x86_64__) || defined(__aarch64__) || defined(__riscv_flen) || \
    (defined(__ARM_FP) && (__ARM_FP & 4))
    return __builtin_sqrtf(x);
#else
    return lk_soft_sqrtf(x);
#endif
}

#endif
