#!/usr/bin/env python3
"""Judge of the arithmetic: trains tiny nets from ops/ARITHMETIC.md alone and compares the digests.

    arithmetic_judge.py                 prints run identity, digest and state hash of each net
    arithmetic_judge.py LOCKSTEP        runs the program LOCKSTEP on the same nets, in several
                                        layouts, and compares; exit 1 where a line differs

Written from the page, not from the sources: no fp32 hardware, no library beyond Python's own. A
number is a Python float that holds an fp32 value; every operation is computed as an exact rational
and rounded once, unless the double nearest to it leaves no doubt. Slow, and meant to be.
"""
import copy
import hashlib
import itertools
import json
import math
import os
import random
import struct
import subprocess
import sys
import tempfile
from fractions import Fraction

L = 512


# --- section 1: numbers ---------------------------------------------------------------------------

def rounded(exact, zero=0.0):
    """The fp32 nearest to a rational, ties to even; `zero` is the zero that an exact 0 gives."""
    if exact == 0:
        return zero
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if size < Fraction(2) ** exponent:
        exponent -= 1
    quantum = Fraction(2) ** (max(exponent, -126) - 23)
    result = round(exact / quantum) * quantum  # Python rounds a rational's ties to even
    if abs(result) >= Fraction(2) ** 128:
        raise OverflowError("a number of the net is not finite")
    return math.copysign(float(result), -1.0 if exact < 0 else 1.0)


def settled(x):
    """The fp32 nearest to all numbers whose nearest double is x, or None where one may have another
    neighbour: x halfway between two of fp32, subnormal there, or too large."""
    if not 2.0 ** -125 < abs(x) < 2.0 ** 127:
        return None
    if struct.unpack("<Q", struct.pack("<d", x))[0] & 0x1FFFFFFF == 0x10000000:
        return None
    return struct.unpack("<f", struct.pack("<f", x))[0]


# Of fp32 values a double holds the product, and IEEE rounds the result to the nearest one. Only
# where the exact result is 0 does its sign need a rule: IEEE's, which a double keeps too.

def fma(a, b, c):
    near = a * b + c
    sure = settled(near)
    return rounded(Fraction(a) * Fraction(b) + Fraction(c), near) if sure is None else sure


def add(a, b):
    near = a + b
    sure = settled(near)
    return rounded(Fraction(a) + Fraction(b), near) if sure is None else sure


def sub(a, b):
    return add(a, -b)


def mul(a, b):
    near = a * b
    sure = settled(near)
    return rounded(Fraction(a) * Fraction(b), near) if sure is None else sure


def div(a, b):
    near = a / b
    sure = settled(near)
    return rounded(Fraction(a) / Fraction(b), near) if sure is None else sure


def check_operations(count):
    """Each operation beside its rational, of operands as far apart as may be, short ones and sums
    near the middle between two numbers among them."""
    draw = random.Random(1)

    def operand():
        mantissa = draw.getrandbits(draw.choice((24, 24, 24, 3))) | 1
        return math.ldexp(draw.choice((-mantissa, mantissa)), draw.randint(-80, 10))

    for _ in range(count):
        a, b, c = operand(), operand(), operand()
        if draw.random() < 0.5:  # just beside, or at, half a unit of c
            unit = math.ldexp(1.0, math.frexp(c)[1] - 25)
            b = math.ldexp(1.0, draw.randint(-20, 20))
            a = rounded(Fraction(unit) / Fraction(b))
            a = draw.choice((a, from_bits(bits(a) + 1), from_bits(bits(a) - 1)))
        for found, exact in ((fma(a, b, c), Fraction(a) * Fraction(b) + Fraction(c)),
                             (add(a, c), Fraction(a) + Fraction(c)),
                             (mul(a, b), Fraction(a) * Fraction(b)),
                             (div(a, c), Fraction(a) / Fraction(c))):
            assert bits(found) == bits(rounded(exact)), (a.hex(), b.hex(), c.hex(), found)


def sqrt(a):
    """Of a positive number: 60 bits by integer square root, a last bit for what was cut off."""
    numerator, denominator = a.as_integer_ratio()
    scaled = (numerator << 200) // denominator
    root = math.isqrt(scaled)
    exact = root * root == scaled and (numerator << 200) % denominator == 0
    return rounded(Fraction(2 * root + (0 if exact else 1), 1 << 101))


def bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def from_bits(u):
    return struct.unpack("<f", struct.pack("<I", u & 0xFFFFFFFF))[0]


def constant(text):
    return float.fromhex(text)


# --- section 15: floats of 16 bits ----------------------------------------------------------------

FORMATS = {"mixed_float16": (10, 15), "mixed_bfloat16": (7, 127)}  # bits of mantissa, bias


def rounded16(x, precision):
    """The float of 16 bits nearest to x, or infinity."""
    mantissa, bias = FORMATS[precision]
    if x == 0:
        return x
    exact = abs(Fraction(x))
    exponent = exact.numerator.bit_length() - exact.denominator.bit_length()
    if exact < Fraction(2) ** exponent:
        exponent -= 1
    quantum = Fraction(2) ** (max(exponent, 1 - bias) - mantissa)
    result = round(exact / quantum) * quantum
    if result >= Fraction(2) ** (bias + 1):
        return math.copysign(math.inf, x)
    return math.copysign(float(result), x)


# --- section 2: sums ------------------------------------------------------------------------------

def tree(leaves):
    """Level by level, left + right; a node without a sibling is copied. None is absent."""
    while len(leaves) > 1:
        pairs = [[node for node in leaves[i:i + 2] if node is not None]
                 for i in range(0, len(leaves), 2)]
        leaves = [add(*pair) if len(pair) == 2 else pair[0] if pair else None for pair in pairs]
    return leaves[0]


def chain(start, terms):
    for a, b in terms:
        start = fma(a, b, start)
    return start


def slices(terms, start=0.0):
    cuts = [terms[i:i + L] for i in range(0, len(terms), L)] or [[]]
    return [chain(start if i == 0 else 0.0, cut) for i, cut in enumerate(cuts)]


def finished(terms, start=0.0):
    return add(tree(slices(terms, start)), 0.0)


# --- section 9: exp and log -----------------------------------------------------------------------

EXP = ["0x1.124e32p-7", "0x1.55588cp-5", "0x1.55547p-3", "0x1.fffffcp-2", "0x1p+0", "0x1p+0"]
LOG = ["0x1.1deb72p-3", "-0x1.f03df8p-4", "0x1.1ef1e4p-3", "-0x1.55b7e4p-3", "0x1.99ccdp-3",
       "-0x1.fffe2ap-3", "0x1.55551ep-2", "-0x1p-1"]


def exp(x):
    x = -104.0 if x < -104.0 else x
    x = 89.0 if x > 89.0 else x
    t = fma(x, constant("0x1.715476p+0"), constant("0x1.8p+23"))
    m = sub(t, constant("0x1.8p+23"))
    r = fma(m, constant("-0x1.62e43p-1"), x)
    r = fma(m, constant("0x1.05c61p-29"), r)
    p = constant("0x1.6a8578p-10")
    for c in EXP:
        p = fma(p, r, constant(c))
    u = (bits(t) - 0x4B400000 + 254) & 0xFFFFFFFF
    h = u >> 1
    return mul(mul(p, from_bits(h << 23)), from_bits((u - h) << 23))


def log(x):
    tiny = x < constant("0x1p-126")
    y = mul(x, constant("0x1p+23")) if tiny else x
    e = (bits(y) - 0x3F2AAAAB) & 0xFF800000
    f = sub(from_bits(bits(y) - e), 1.0)
    m = mul(float(e - (1 << 32) if e >> 31 else e), constant("0x1p-23"))
    m = sub(m, 23.0) if tiny else m
    s = mul(f, f)
    p = constant("-0x1.0f1842p-3")
    for c in LOG:
        p = fma(p, f, constant(c))
    p = fma(p, s, f)
    return fma(m, constant("0x1.62e43p-1"), p)


def exp_parts(x):
    t = fma(x, constant("0x1.715476p+0"), constant("0x1.8p+23"))
    m = sub(t, constant("0x1.8p+23"))
    r = fma(m, constant("-0x1.62e43p-1"), x)
    r = fma(m, constant("0x1.05c61p-29"), r)
    p = constant("0x1.6a8578p-10")
    for c in EXP[:-1]:
        p = fma(p, r, constant(c))
    e = mul(p, r)
    return e, fma(p, r, -e), (bits(t) - 0x4B400000) & 0xFFFFFFFF


def tanh(x):
    a = min(abs(x), 10.0)
    e, f, k = exp_parts(mul(-2.0, a))
    s = from_bits((k + 127) << 23)
    o = sub(1.0, s)
    b = mul(s, e)
    m = sub(o, b)
    rest = add(sub(sub(o, m), b), sub(sub(sub(1.0, o), s), mul(s, f)))
    d = sub(2.0, m)
    g = sub(sub(sub(2.0, d), m), rest)
    i = div(1.0, d)
    q = mul(m, i)
    c = fma(-q, g, add(fma(-q, d, m), rest))
    return math.copysign(fma(c, i, q), x)


def sigmoid(x):
    e, f, k = exp_parts(max(-abs(x), -104.0))
    u = (k + 254) & 0xFFFFFFFF
    h = u >> 1
    v, w = from_bits(h << 23), from_bits((u - h) << 23)
    j = add(1.0, e)
    rest = add(add(sub(1.0, j), e), f)
    power = mul(mul(j, v), w)
    d = add(1.0, power)
    g = add(add(sub(1.0, d), power), mul(mul(rest, v), w))
    if not x < 0:
        j, rest, v, w = 1.0, 0.0, 1.0, 1.0
    i = div(1.0, d)
    q = mul(j, i)
    c = fma(-q, g, add(fma(-q, d, j), rest))
    return mul(mul(fma(c, i, q), v), w)


def factors(k):
    u = (k + 254) & 0xFFFFFFFF
    return from_bits((u >> 1) << 23), from_bits((u - (u >> 1)) << 23)


def cos_sin(a):
    q = (a + (1 << 21)) >> 22
    f = rounded(Fraction(a - (q << 22), 1 << 24))
    g, p = mul(f, f), constant("-0x1.2d9bb8p+6")
    for text in ("0x1.465ec6p+6", "-0x1.4abbbap+5", "-0x1.a0f37p-23"):
        p = fma(p, g, constant(text))
    s, p = fma(f, constant("0x1.921fb6p+2"), mul(f, p)), constant("0x1.d9f7d2p+5")
    for text in ("-0x1.55c664p+6", "0x1.03c1dep+6", "-0x1.3bd3ccp+4", "0x1p+0"):
        p = fma(p, g, constant(text))
    x, y = (s, p) if q & 1 else (p, s)
    return -x if q in (1, 2) else x, -y if q in (2, 3) else y


def normal_pair(u, v):
    """Two numbers of the normal distribution, section 10."""
    r = sqrt(mul(-2.0, log(rounded(Fraction((u >> 8) + 1, 1 << 24)))))
    return tuple(mul(r, part) for part in cos_sin(v >> 8))


def expm1(x):
    e, f, k = exp_parts(max(x, -20.0))
    s = from_bits((k + 127) << 23)
    o = sub(1.0, s)
    b = mul(s, e)
    m = sub(o, b)
    return -add(m, add(sub(sub(o, m), b), sub(sub(sub(1.0, o), s), mul(s, f))))


def softplus(x):
    e, f, k = exp_parts(max(-abs(x), -104.0))
    v, w = factors(k)
    j = add(1.0, e)
    rest = add(add(sub(1.0, j), e), f)
    t, r = mul(mul(j, v), w), mul(mul(rest, v), w)
    d = add(2.0, t)
    b, i = sub(t, sub(d, 2.0)), div(1.0, d)
    q = mul(t, i)
    c = mul(add(fma(-q, d, t), sub(r, mul(q, add(b, r)))), i)
    z, p = mul(q, q), constant("0x1.dba26p-4")
    for text in ("0x1.bc8cf8p-4", "0x1.24c926p-3", "0x1.9998d4p-3", "0x1.555556p-2"):
        p = fma(p, z, constant(text))
    p = fma(mul(q, z), p, c)
    o, q = x if x > 0 else 0.0, mul(2.0, q)
    s = add(o, q)
    b = sub(s, o)
    return add(s, add(add(sub(o, sub(s, b)), sub(q, b)), mul(2.0, p)))


def share(x, y):
    a, y = (x, y) if x < 0 else (-x, -y)
    if a < -120.0:
        a, y = -120.0, 0.0
    e, f, k = exp_parts(a)
    v, w = factors(k)
    j = add(1.0, e)
    rest = add(add(add(sub(1.0, j), e), f), mul(y, j))
    power = mul(mul(j, v), w)
    d = add(1.0, power)
    g = add(add(sub(1.0, d), power), mul(mul(rest, v), w))
    if not x < 0:
        j, rest, v, w = 1.0, 0.0, 1.0, 1.0
    i = div(1.0, d)
    q = mul(j, i)
    c = fma(-q, g, add(fma(-q, d, j), rest))
    return fma(c, i, q), v, w


def swish(x):
    x = max(x, -120.0)
    q, v, w = share(x, 0.0)
    return mul(mul(mul(q, x), v), w)


def swish_slope(x):
    s = sigmoid(x)
    return mul(s, fma(min(max(x, -104.0), 104.0), sub(1.0, s), 1.0))


LINE, CUBE = "0x1.988454p+0", "0x1.2444f2p-4"


def gelu_tanh(x):
    x = max(x, -11.0)
    b, line, cube = min(x, 11.0), constant(LINE), constant(CUBE)
    s = mul(b, b)
    t, h = fma(b, b, -s), mul(cube, s)
    u = add(fma(cube, s, -h), fma(cube, t, mul(constant("0x1.49b16ap-29"), s)))
    c = add(line, h)
    t = sub(c, line)
    u = add(add(sub(line, sub(c, t)), sub(h, t)), sub(u, constant("0x1.857936p-25")))
    z = mul(b, c)
    q, v, w = share(z, add(fma(b, c, -z), mul(b, u)))
    return mul(mul(mul(q, x), v), w)


def gelu_tanh_slope(x):
    x = min(max(x, -11.0), 11.0)
    s, line = mul(x, x), constant(LINE)
    p = sigmoid(mul(x, fma(constant(CUBE), s, line)))
    return fma(mul(mul(x, p), sub(1.0, p)), fma(constant("0x1.b6676cp-3"), s, line), p)


GELU = ["-0x1.13a72p-14", "0x1.6a67ccp-11", "-0x1.3b180cp-12", "-0x1.47d86p-8", "0x1.25ebecp-6",
        "-0x1.07c388p-5", "0x1.d49536p-6", "0x1.cabd66p-7", "-0x1.8c18f2p-4", "0x1.e361eap-2"]


def gelu(x):
    a = min(abs(x), 14.5)
    o, d = sub(a, 4.0), add(a, 4.0)
    r, b, i = sub(d, a), sub(a, o), div(1.0, d)
    t = mul(o, i)
    e = sub(add(sub(a, add(o, b)), sub(b, 4.0)), mul(t, add(sub(a, sub(d, r)), sub(4.0, r))))
    t = fma(add(fma(-t, d, o), e), i, t)
    p = constant("-0x1.36186p-14")
    for c in GELU:
        p = fma(p, t, constant(c))
    s = mul(-0.5, a)
    z = mul(s, a)
    e, f, k = exp_parts(z)
    v, w = factors(k)
    j = add(1.0, e)
    rest = add(add(add(sub(1.0, j), e), f), mul(fma(s, a, -z), j))
    n = mul(a, p)
    m = mul(n, j)
    g = add(fma(n, j, -m), fma(n, rest, mul(fma(a, p, -n), j)))
    d = add(a, 1.0)
    r = sub(d, a)
    b, i = add(sub(a, sub(d, r)), sub(1.0, r)), div(1.0, d)
    q = mul(m, i)
    c = fma(-q, b, add(fma(-q, d, m), g))
    if x < 0:
        return -mul(mul(fma(c, i, q), v), w)
    return sub(sub(x, mul(mul(q, v), w)), mul(mul(mul(c, i), v), w))


def gelu_slope(x):
    x = min(max(x, -14.5), 14.5)
    p = 0.5 if abs(x) < 2.0 ** -60 else div(gelu(x), x)
    return fma(mul(constant("0x1.988454p-2"), x), exp(mul(mul(-0.5, x), x)), p)


def high(a, b):
    return (a * b) >> 64


def power(b, y):
    """b^y, 0 <= b <= 1, y >= 0."""
    if y == 0 or b == 1 or b == 0:
        return 1.0 if y == 0 or b == 1 else 0.0
    m, e = math.frexp(b)  # exact: m in [1/2, 1)
    m, e, (whole, p) = 2 * m, e - 1, math.frexp(y)
    x, f = int(m * 2 ** 63), 0
    for _ in range(63):
        h = high(x, x)
        f, x = 2 * f + (h >> 63), h if h >> 63 else 2 * h
    log2, q = ((1 << 63) - f, 63) if e == -1 else ((-e << 55) - (f >> 8), 55)
    while log2 < 1 << 63:
        log2, q = 2 * log2, q + 1
    product, r = high(log2, int(whole * 2 ** 24) << 40), q - (p - 24) - 24
    if r < 55 or r > 127:
        return 0.0 if r < 55 else 1.0
    z = high(((product % (1 << r)) << 64) >> r, 0xb17217f7d1cf79ab)
    v = 1 << 63
    for k in range(20, 0, -1):
        v = (1 << 63) - high(z, v) // k
    return rounded(Fraction(v, 1 << 63) / 2 ** (product >> r))


def cos_pi(x):
    at = int(Fraction(x) * 2 ** 63)
    negative = at > 1 << 62
    at = (1 << 63) - at if negative else at
    c = int(at > 1 << 61)
    at = (1 << 62) - at if c else at
    t = 4 * high(2 * at, 0xc90fdaa22168c234)
    u, v = high(t, t), 1 << 63
    for k in range(20 + c, 1, -2):
        v = (1 << 63) - high(u, v) // (k * (k - 1))
    v = high(t, v) if c else v
    return rounded(Fraction(-v if negative else v, 1 << 63))


def whole_power(b, k):
    r = 1.0
    for bit in bin(k)[2:]:
        r = mul(r, r)
        r = mul(r, b) if bit == "1" else r
    return r


# --- sections 10 and 13: random words, order, made-up data ----------------------------------------

def block(seed, purpose, c0, c1, c2, c3):
    k0, k1 = seed & 0xFFFFFFFF, (seed >> 32) ^ purpose
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = ((p1 >> 32) ^ c1 ^ k0, p1 & 0xFFFFFFFF,
                          (p0 >> 32) ^ c3 ^ k1, p0 & 0xFFFFFFFF)
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return [c0, c1, c2, c3]


def perm(seed, epoch, count, position, shard=0):
    h = 1
    while 1 << (2 * h) < count:
        h += 1
    mask = (1 << h) - 1
    while True:
        left, right = position >> h, position & mask
        for number in range(6):
            word = block(seed, 2, right, 8 * shard + number, epoch & 0xFFFFFFFF, epoch >> 32)[0]
            left, right = right, left ^ (word & mask)
        position = left << h | right
        if position < count:
            return position


def byte(words, j):
    return (words[j // 4] >> (8 * (j % 4))) & 255


def made_up(data, index):
    """Bytes of an image, and its label."""
    seed, classes = data["seed"], data["classes"]
    height, width, channels = data["height"], data["width"], data["channels"]
    low, high = index & 0xFFFFFFFF, index >> 32
    head = block(seed, 3, low, high, 0, 0)
    label = head[0] * classes >> 32
    dy, dx = head[1] * (height // 8 + 1) >> 32, head[2] * (width // 8 + 1) >> 32
    image = bytearray()
    for y in range(height):
        for x in range(width):
            cell = (8 * (((y + dy) % height * 8) // height) + ((x + dx) % width * 8) // width)
            for channel in range(channels):
                v = len(image)
                pattern = byte(block(seed, 3, cell // 16, label, channel, 2), cell % 16)
                noise = byte(block(seed, 3, low, high, v // 16, 1), v % 16)
                image.append((pattern + 3 * noise + 2) // 4)
    return bytes(image), label


# --- sections 3 and 5: layers ---------------------------------------------------------------------

def relu(v):
    return v if v > 0.0 else 0.0


def window(size, reach, stride, padding):
    if padding == "valid":
        return (size - reach) // stride + 1, 0
    out = (size + stride - 1) // stride
    return out, max((out - 1) * stride + reach - size, 0) // 2


def pair(value):
    return tuple(value) if isinstance(value, list) else (value, value)


class Window:
    """What convolution and pooling share: which cell of the image an output cell reads."""

    def __init__(self, layer, size_key, shape, default_stride):
        self.in_h, self.in_w, self.in_c = shape
        self.kh, self.kw = pair(layer[size_key])
        self.sh, self.sw = pair(layer.get("strides", default_stride))
        self.dh, self.dw = pair(layer.get("dilation_rate", 1))
        padding = layer.get("padding", "valid")
        self.out_h, self.top = window(self.in_h, (self.kh - 1) * self.dh + 1, self.sh, padding)
        self.out_w, self.left = window(self.in_w, (self.kw - 1) * self.dw + 1, self.sw, padding)

    def outputs(self):
        return [(oy, ox) for oy in range(self.out_h) for ox in range(self.out_w)]

    def taps(self):
        return [(ky, kx) for ky in range(self.kh) for kx in range(self.kw)]

    def cell(self, output, tap):
        """Index of the image cell, or None outside the image."""
        iy = output[0] * self.sh + tap[0] * self.dh - self.top
        ix = output[1] * self.sw + tap[1] * self.dw - self.left
        inside = 0 <= iy < self.in_h and 0 <= ix < self.in_w
        return iy * self.in_w + ix if inside else None


def tiles_of(h, w):
    """Cells in the order of section 6; None for those that do not exist."""
    for ty in range(0, h, 2):
        for tx in range(0, w, 2):
            for y, x in ((ty, tx), (ty, tx + 1), (ty + 1, tx), (ty + 1, tx + 1)):
                yield (y, x) if y < h and x < w else None


class Conv2D(Window):
    def __init__(self, layer, shape):
        super().__init__(layer, "kernel_size", shape, 1)
        self.set_groups(layer)
        self.of, self.to = self.in_c // self.groups, self.filters // self.groups
        self.shape = (self.out_h, self.out_w, self.filters)
        self.kernel_count = self.kh * self.kw * self.of * self.filters
        self.bias_count = self.filters

    def set_groups(self, layer):
        self.filters, self.groups = layer["filters"], layer.get("groups", 1)
        window_size = self.kh * self.kw
        self.fans = (window_size * self.in_c // self.groups, window_size * self.filters)
        self.columns = self.filters

    def weight(self, tap, ci, co):
        """ci counts in its group."""
        return ((tap[0] * self.kw + tap[1]) * self.of + ci) * self.filters + co

    def forward(self, x, kernel, bias):
        y = []
        for output in self.outputs():
            for co in range(self.filters):
                terms = []
                for tap in self.taps():
                    cell = self.cell(output, tap)
                    for ci in range(self.of):
                        at = cell if cell is None else cell * self.in_c + co // self.to * self.of
                        pixel = 0.0 if cell is None else x[at + ci]
                        terms.append((pixel, kernel[self.weight(tap, ci, co)]))
                y.append(finished(terms, bias[co] if bias else 0.0))
        return y

    def backward(self, dy, kernel):
        """Terms of an input cell: (ky, kx, co) ascending, wherever an output reads it there."""
        reads = {(self.cell(output, tap), tap): output[0] * self.out_w + output[1]
                 for output in self.outputs() for tap in self.taps()}
        dx = []
        for cell in range(self.in_h * self.in_w):
            for ci in range(self.in_c):
                terms = []
                for tap in self.taps():
                    output = reads.get((cell, tap))
                    first = ci // self.of * self.to
                    for co in range(first, first + self.to):
                        g = 0.0 if output is None else dy[output * self.filters + co]
                        terms.append((kernel[self.weight(tap, ci % self.of, co)], g))
                dx.append(finished(terms))
        return dx

    def gradient_terms(self, x, dy):
        """Per parameter, the terms of one example: kernel elements, then biases."""
        kernels, biases = [None] * self.kernel_count, []
        tiles = list(tiles_of(self.out_h, self.out_w))
        for co in range(self.filters):
            deltas = [0.0 if o is None else dy[(o[0] * self.out_w + o[1]) * self.filters + co]
                      for o in tiles]
            biases.append([(1.0, d) for d in deltas])
            for tap in self.taps():
                cells = [None if o is None else self.cell(o, tap) for o in tiles]
                for ci in range(self.of):
                    channel = co // self.to * self.of + ci
                    pixels = [0.0 if c is None else x[c * self.in_c + channel] for c in cells]
                    kernels[self.weight(tap, ci, co)] = list(zip(pixels, deltas))
        return kernels, biases


class DepthwiseConv2D(Conv2D):
    def set_groups(self, layer):
        multiplier = layer.get("depth_multiplier", 1)
        self.filters, self.groups = self.in_c * multiplier, self.in_c
        self.fans = (self.kh * self.kw * self.in_c, self.kh * self.kw * multiplier)
        self.columns = multiplier


class Conv2DTranspose:
    """Cell i of the image and tap k of the kernel meet cell i * stride + k - pad of the output."""

    def __init__(self, layer, shape):
        self.in_h, self.in_w, self.in_c = shape
        self.kh, self.kw = pair(layer["kernel_size"])
        self.sh, self.sw = pair(layer.get("strides", 1))
        self.filters = layer["filters"]
        (out_h, self.top), (out_w, self.left) = [
            (n * s, max(k - s, 0) // 2) if layer.get("padding", "valid") == "same" else
            (n * s + max(k - s, 0), 0)
            for n, k, s in ((self.in_h, self.kh, self.sh), (self.in_w, self.kw, self.sw))]
        self.shape = (out_h, out_w, self.filters)
        self.fans = (self.kh * self.kw * self.filters, self.kh * self.kw * self.in_c)
        self.kernel_count, self.bias_count = self.fans[0] * self.in_c, self.filters
        self.columns = self.in_c
        self.taps = [(ky, kx) for ky in range(self.kh) for kx in range(self.kw)]
        self.cells = [(iy, ix) for iy in range(self.in_h) for ix in range(self.in_w)]
        self.meet = {(cell, tap): met for cell in self.cells for tap in self.taps
                     if (met := self.met(cell, tap)) is not None}

    def met(self, cell, tap):
        oy, ox = (i * s + k - pad for i, s, k, pad in zip(
            cell, (self.sh, self.sw), tap, (self.top, self.left)))
        inside = 0 <= oy < self.shape[0] and 0 <= ox < self.shape[1]
        return oy * self.shape[1] + ox if inside else None

    def weight(self, tap, f, ci):
        return ((tap[0] * self.kw + tap[1]) * self.filters + f) * self.in_c + ci

    def forward(self, x, kernel, bias):
        source = {(met, tap): cell[0] * self.in_w + cell[1]
                  for (cell, tap), met in self.meet.items()}
        y = []
        for out in range(self.shape[0] * self.shape[1]):
            for f in range(self.filters):
                terms = []
                for tap in self.taps:
                    at = source.get((out, tap))
                    terms += [(kernel[self.weight(tap, f, ci)],
                               0.0 if at is None else x[at * self.in_c + ci])
                              for ci in range(self.in_c)]
                y.append(finished(terms, bias[f] if bias else 0.0))
        return y

    def dy_at(self, dy, cell, tap, f):
        met = self.meet.get((cell, tap))
        return 0.0 if met is None else dy[met * self.filters + f]

    def backward(self, dy, kernel):
        return [finished([(self.dy_at(dy, cell, tap, f), kernel[self.weight(tap, f, ci)])
                          for tap in self.taps for f in range(self.filters)])
                for cell in self.cells for ci in range(self.in_c)]

    def gradient_terms(self, x, dy):
        kernels = [None] * self.kernel_count
        tiles = list(tiles_of(self.in_h, self.in_w))
        for tap in self.taps:
            for f in range(self.filters):
                deltas = [0.0 if c is None else self.dy_at(dy, c, tap, f) for c in tiles]
                for ci in range(self.in_c):
                    kernels[self.weight(tap, f, ci)] = [
                        (d, 0.0 if c is None else x[(c[0] * self.in_w + c[1]) * self.in_c + ci])
                        for c, d in zip(tiles, deltas)]
        cells = list(tiles_of(*self.shape[:2]))
        return kernels, [[(1.0, 0.0 if c is None else
                           dy[(c[0] * self.shape[1] + c[1]) * self.filters + f]) for c in cells]
                         for f in range(self.filters)]


class MaxPool2D(Window):
    kernel_count = 0

    def __init__(self, layer, shape):
        super().__init__(layer, "pool_size", shape, layer["pool_size"])
        self.shape = (self.out_h, self.out_w, self.in_c)

    def forward(self, x, kernel, bias):
        y, self.winners = [], []
        for output in self.outputs():
            for channel in range(self.in_c):
                cells = [self.cell(output, tap) for tap in self.taps()]
                cells = [c * self.in_c + channel for c in cells if c is not None]
                winner = cells[0]
                for c in cells:
                    if x[c] > x[winner]:
                        winner = c
                self.winners.append(winner)
                y.append(x[winner])
        return y

    def backward(self, dy, kernel):
        dx = [0.0] * (self.in_h * self.in_w * self.in_c)
        for winner, g in zip(self.winners, dy):
            dx[winner] = add(dx[winner], g)
        return dx


class AveragePool2D(Window):
    kernel_count = 0

    def __init__(self, layer, shape):
        if layer["type"] == "global_average_pool2d":
            layer = {"pool_size": list(shape[:2]), "strides": 1}
        super().__init__(layer, "pool_size", shape, layer["pool_size"])
        self.shape = (self.out_h, self.out_w, self.in_c)

    def window(self, output):
        """Its cells in the image, and 1 / float(how many)."""
        cells = [self.cell(output, tap) for tap in self.taps()]
        cells = [c for c in cells if c is not None]
        return cells, div(1.0, rounded(Fraction(len(cells))))

    def forward(self, x, kernel, bias):
        y = []
        for cells, part in map(self.window, self.outputs()):
            y += [mul(finished([(1.0, x[c * self.in_c + channel]) for c in cells]), part)
                  for channel in range(self.in_c)]
        return y

    def backward(self, dy, kernel):
        dx = [0.0] * (self.in_h * self.in_w * self.in_c)
        for number, (cells, part) in enumerate(map(self.window, self.outputs())):
            for channel in range(self.in_c):
                share = mul(dy[number * self.in_c + channel], part)
                for c in cells:
                    dx[c * self.in_c + channel] = add(dx[c * self.in_c + channel], share)
        return dx


class Dense:
    def __init__(self, layer, shape):
        self.inputs, self.units = math.prod(shape), layer["units"]
        self.columns = self.units
        self.shape = (self.units,)
        self.fans = (self.inputs, self.units)
        self.kernel_count, self.bias_count = self.inputs * self.units, self.units

    def forward(self, x, kernel, bias):
        return [finished([(x[k], kernel[k * self.units + n]) for k in range(self.inputs)],
                         bias[n] if bias else 0.0) for n in range(self.units)]

    def backward(self, dy, kernel):
        return [finished([(kernel[k * self.units + n], dy[n]) for n in range(self.units)])
                for k in range(self.inputs)]

    def gradient_terms(self, x, dy):
        return [[(x[k], g)] for k in range(self.inputs) for g in dy], [[(1.0, g)] for g in dy]


class SequenceDense(Dense):
    """Over the steps of a sequence; of an lstm or a gru the part that takes x, of all gates."""
    by_rows = True

    def __init__(self, layer, shape):
        self.gates = {"lstm": 4, "gru": 3}.get(layer["type"], 1)
        super().__init__(dict(layer, units=layer["units"] * self.gates), shape[2:])
        self.steps, self.shape = shape[0], (shape[0], 1, self.units)

    @staticmethod
    def rows(x, count):
        return [x[i:i + count] for i in range(0, len(x), count)]

    def forward(self, x, kernel, bias):
        return [v for row in self.rows(x, self.inputs)
                for v in super(SequenceDense, self).forward(row, kernel, bias)]

    def backward(self, dy, kernel):
        return [v for row in self.rows(dy, self.units)
                for v in super(SequenceDense, self).backward(row, kernel)]

    def gradient_terms(self, x, dy):
        x, dy = self.rows(x, self.inputs), self.rows(dy, self.units)
        return ([[(a[k], g[n]) for a, g in zip(x, dy)]
                 for k in range(self.inputs) for n in range(self.units)],
                [[(1.0, g[n]) for g in dy] for n in range(self.units)])


class Recurrent:
    """What goes from step to step: takes the sums of the gates of x."""
    by_rows = True

    def __init__(self, layer, shape):
        self.steps, self.units = shape[0], layer["units"]
        self.every = layer.get("return_sequences", False)
        self.shape = (self.steps, 1, self.units) if self.every else (self.units,)
        self.columns = self.gates * self.units
        self.fans, self.kernel_count = (self.units, self.columns), self.columns * self.units
        self.bias_count = self.columns if self.biased else 0

    def state_gradient(self, dy, t, ds):
        """Of h[t], from what takes it and from what the time after it made of it."""
        dy = SequenceDense.rows(dy, self.units)
        own = dy[t] if self.every else dy[0] if t == self.steps - 1 else [0.0] * self.units
        if not ds:
            return own
        row = self.columns
        return [add(own[k], finished(list(zip(self.kernel[k * row:k * row + row], ds))))
                for k in range(self.units)]

    def kernel_terms(self, states, ds):
        return [[(h[k], row[n]) for h, row in zip(states, ds)]
                for k in range(self.units) for n in range(self.columns)]


def gate_gradient(g, v):
    return mul(g, mul(v, sub(1.0, v)))


class Lstm(Recurrent):
    gates, biased = 4, False

    def forward(self, x, kernel, _bias):
        u, self.kernel = range(self.units), kernel
        h, c, self.kept, out = [0.0] * self.units, [0.0] * self.units, [], []
        for t, z in enumerate(SequenceDense.rows(x, 4 * self.units)):
            a = z if t == 0 else [add(z[n], finished([(h[k], kernel[k * 4 * self.units + n])
                                                      for k in u])) for n in range(len(z))]
            i, f, n, o = SequenceDense.rows(a, self.units)
            i, f, o = ([sigmoid(v) for v in gate] for gate in (i, f, o))
            n = [tanh(v) for v in n]
            before = h, c
            c = [fma(f[j], c[j], mul(i[j], n[j])) for j in u]
            h = self.run.narrowed([mul(o[j], tanh(c[j])) for j in u], self.narrow)
            self.kept.append((i, f, n, o, c, *before))
            out += h
        return out if self.every else h

    def gradients(self, dy):
        u, dz = range(self.units), []
        for t in range(self.steps - 1, -1, -1):
            i, f, n, o, c, _, last = self.kept[t]
            own = self.state_gradient(dy, t, dz[0] if dz else None)
            s = [tanh(v) for v in c]
            slope = [fma(-v, v, 1.0) for v in s]
            through = [mul(own[j], o[j]) for j in u]
            dc = [fma(through[j], slope[j], carried[j]) if dz else mul(through[j], slope[j])
                  for j in u]
            dz.insert(0, self.run.narrowed(
                [gate_gradient(mul(dc[j], n[j]), i[j]) for j in u] +
                [gate_gradient(mul(dc[j], last[j]), f[j]) for j in u] +
                [mul(mul(dc[j], i[j]), fma(-n[j], n[j], 1.0)) for j in u] +
                [gate_gradient(mul(own[j], s[j]), o[j]) for j in u], self.narrow))
            carried = [mul(dc[j], f[j]) for j in u]
        return dz

    def backward(self, dy, _kernel):
        return [v for row in self.gradients(dy) for v in row]

    def gradient_terms(self, _x, dy):
        return self.kernel_terms([kept[5] for kept in self.kept], self.gradients(dy)), []


class Gru(Recurrent):
    gates, biased = 3, True

    def forward(self, x, kernel, bias):
        u, self.kernel, self.kept, out = range(self.units), kernel, [], []
        h = [0.0] * self.units
        for row in SequenceDense.rows(x, self.columns):
            s = [finished([(h[k], kernel[k * self.columns + n]) for k in u],
                          bias[n] if bias else 0.0) for n in range(self.columns)]
            s, row = SequenceDense.rows(s, self.units), SequenceDense.rows(row, self.units)
            z, r = ([sigmoid(add(row[g][j], s[g][j])) for j in u] for g in (0, 1))
            n = [tanh(fma(r[j], s[2][j], row[2][j])) for j in u]
            before = h
            h = self.run.narrowed([fma(z[j], h[j], mul(sub(1.0, z[j]), n[j])) for j in u],
                                  self.narrow)
            self.kept.append((z, r, n, s[2], before))
            out += h
        return out if self.every else h

    def gradients(self, dy):
        """Those of what x is to the gates, and of what the state is."""
        u, of_x, of_state = range(self.units), [], []
        for t in range(self.steps - 1, -1, -1):
            z, r, n, q, last = self.kept[t]
            dh = self.state_gradient(dy, t, of_state[0] if of_state else None)
            if of_state:
                dh = [add(dh[j], carried[j]) for j in u]
            dn = [mul(mul(dh[j], sub(1.0, z[j])), fma(-n[j], n[j], 1.0)) for j in u]
            gates = ([mul(dh[j], mul(sub(last[j], n[j]), mul(z[j], sub(1.0, z[j])))) for j in u] +
                     [gate_gradient(mul(dn[j], q[j]), r[j]) for j in u])
            of_x.insert(0, self.run.narrowed(gates + dn, self.narrow))
            of_state.insert(0, self.run.narrowed(gates + [mul(dn[j], r[j]) for j in u],
                                                 self.narrow))
            carried = [mul(dh[j], z[j]) for j in u]
        return of_x, of_state

    def backward(self, dy, _kernel):
        return [v for row in self.gradients(dy)[0] for v in row]

    def gradient_terms(self, _x, dy):
        ds = self.gradients(dy)[1]
        return (self.kernel_terms([kept[4] for kept in self.kept], ds),
                [[(1.0, row[n]) for row in ds] for n in range(self.columns)])


RECURRENT = {"lstm": Lstm, "gru": Gru}


class Relu:
    kernel_count = 0

    def __init__(self, layer, shape):
        self.shape = shape

    def forward(self, x, kernel, bias):
        self.y = [relu(v) for v in x]
        return self.y

    def backward(self, dy, kernel):
        return [g if y > 0.0 else 0.0 for g, y in zip(dy, self.y)]


class Add:
    kernel_count = 0

    def __init__(self, layer, shape, _other):
        self.shape = shape

    def forward(self, x, kernel, bias):
        return list(map(add, *x))

    def backward(self, dy, kernel):
        return dy


class Concatenate:
    kernel_count = 0

    def __init__(self, layer, shape, other):
        self.values = shape[-1], other[-1]
        self.shape = (*shape[:-1], sum(self.values))

    def forward(self, x, kernel, bias):
        (a, b), y = self.values, []
        for cell in range(len(x[0]) // a):
            y += x[0][cell * a:cell * a + a] + x[1][cell * b:cell * b + b]
        return y

    def shares(self, dy):
        """Of the inputs in the order in which they are added: the second one's first."""
        a, both = self.values[0], sum(self.values)
        cells = range(0, len(dy), both)
        parts = [[v for c in cells for v in dy[c:c + a]],
                 [v for c in cells for v in dy[c + a:c + both]]]
        return [(self.inputs_at[1], parts[1]), (self.inputs_at[0], parts[0])]


class ZeroPadding2D:
    kernel_count = 0

    def __init__(self, layer, shape):
        (self.top, bottom), (self.left, right) = map(pair, pair(layer.get("padding", 1)))
        self.rows, self.columns, self.channels = shape
        self.shape = (self.rows + self.top + bottom, self.columns + self.left + right,
                      self.channels)

    def places(self):
        return [((y + self.top) * self.shape[1] + x + self.left) * self.channels + c
                for y in range(self.rows) for x in range(self.columns)
                for c in range(self.channels)]

    def forward(self, x, kernel, bias):
        y = [0.0] * math.prod(self.shape)
        for place, value in zip(self.places(), x):
            y[place] = value
        return y

    def backward(self, dy, kernel):
        return [dy[place] for place in self.places()]


class Tanh(Relu):
    def forward(self, x, kernel, bias):
        self.y = [tanh(v) for v in x]
        return self.y

    def backward(self, dy, kernel):
        return [mul(g, fma(-y, y, 1.0)) for g, y in zip(dy, self.y)]


class Sigmoid(Relu):
    def forward(self, x, kernel, bias):
        self.y = [sigmoid(v) for v in x]
        return self.y

    def backward(self, dy, kernel):
        return [mul(g, mul(y, sub(1.0, y))) for g, y in zip(dy, self.y)]


class LeakyRelu(Relu):
    def __init__(self, layer, shape):
        super().__init__(layer, shape)
        slope = layer.get("negative_slope", 0.3) if layer else 0.2
        self.slope = rounded(Fraction(str(slope)))

    def forward(self, x, kernel, bias):
        self.y = [v if v > 0.0 else mul(self.slope, v) for v in x]
        return self.y

    def backward(self, dy, kernel):
        return [g if y > 0.0 else mul(self.slope, g) for g, y in zip(dy, self.y)]


class Dropout(Relu):
    def __init__(self, layer, shape):
        super().__init__(layer, shape)
        self.rate = rounded(Fraction(str(layer["rate"])))
        self.scale = div(1.0, sub(1.0, self.rate))

    def keeps(self, i):
        run, step = self.run, self.run.step
        word = block(run.config["seed"], 4, i // 4, run.place, step & 0xFFFFFFFF,
                     self.number + (step >> 32 << 16))[i % 4]
        return Fraction(word >> 8, 1 << 24) >= Fraction(self.rate)

    def forward(self, x, kernel, bias):
        return [mul(v, self.scale) if self.keeps(i) else 0.0 for i, v in enumerate(x)]

    def backward(self, dy, kernel):
        return self.forward(dy, None, None)


class BatchNormalization:
    """Seen grain by grain: `values` are those of each of its examples."""
    kernel_count = 0

    def __init__(self, layer, shape):
        self.shape, self.layer = shape, layer
        self.channels = shape[-1]
        self.frozen = not layer.get("trainable", True)
        self.epsilon = rounded(Fraction(str(layer.get("epsilon", "0.001"))))
        self.momentum = rounded(Fraction(str(layer.get("momentum", "0.99"))))
        self.learns = not self.frozen and (layer.get("scale", True) or layer.get("center", True))
        self.mean, self.variance = [0.0] * self.channels, [1.0] * self.channels

    def terms(self, one, channel):
        """The values of a channel of one example, in tiles; None where there is no cell."""
        if len(self.shape) == 1:
            return [one[channel]]
        h, w = self.shape[:2]
        return [one[(y * w + x) * self.channels + channel] if y < h and x < w else None
                for ty in range(0, h, 2) for tx in range(0, w, 2)
                for y, x in ((ty, tx), (ty, tx + 1), (ty + 1, tx), (ty + 1, tx + 1))]

    def grain(self, pairs):
        """The grain's sum of products; pairs of lists of `terms` of each example."""
        return grain_sum([[(0.0, 0.0) if b is None else (a, b) for a, b in zip(*example)]
                          for example in pairs])

    def factors(self):
        ones, zeros = [1.0] * self.channels, [0.0] * self.channels
        gamma, beta = (self.run.parameters[at] if at is not None else default
                       for at, default in ((self.gamma_at, ones), (self.beta_at, zeros)))
        return gamma, beta

    def forward_grain(self, values):
        c = range(self.channels)
        if self.frozen:
            self.means, variances = self.mean, self.variance
        else:
            count = len(values) * (len(values[0]) // self.channels)
            share = div(1.0, rounded(Fraction(count)))
            terms = [[self.terms(one, i) for one in values] for i in c]
            sums = [self.grain([([1.0] * len(t), t) for t in terms[i]]) for i in c]
            self.means = [mul(add(s, 0.0), share) for s in sums]
            apart = [[[None if v is None else sub(v, self.means[i]) for v in t]
                      for t in terms[i]] for i in c]
            squares = [self.grain([(t, t) for t in apart[i]]) for i in c]
            variances = [mul(add(s, 0.0), share) for s in squares]
            self.observed.append((sums, squares))
        self.inverse = [div(1.0, sqrt(add(v, self.epsilon))) for v in variances]
        self.normal = [[mul(sub(v, self.means[i % self.channels]), self.inverse[i % self.channels])
                        for i, v in enumerate(one)] for one in values]
        gamma, beta = self.factors()
        return [[fma(n, gamma[i % self.channels], beta[i % self.channels])
                 for i, n in enumerate(one)] for one in self.normal]

    def backward_grain(self, gradients, terms):
        gamma, _ = self.factors()
        k = [mul(gamma[i], self.inverse[i]) for i in range(self.channels)]
        if self.frozen:
            return [[mul(k[i % self.channels], g) for i, g in enumerate(dy)] for dy in gradients]
        count = len(gradients) * (len(gradients[0]) // self.channels)
        share, a, b = div(1.0, rounded(Fraction(count))), [], []
        for c in range(self.channels):
            of_gamma = [(self.terms(dy, c), self.terms(n, c))
                        for dy, n in zip(gradients, self.normal)]
            of_beta = [([1.0] * len(dy), dy) for dy, _ in of_gamma]
            a.append(self.grain(of_gamma))
            b.append(self.grain(of_beta))
            for at, pairs in ((self.gamma_at, of_gamma), (self.beta_at, of_beta)):
                if at is None:
                    continue
                if c == 0:
                    terms[at] += [[] for _ in pairs]
                for of_example, both in zip(terms[at][-len(pairs):], pairs):
                    of_example.append([(0.0, 0.0) if v is None else (u, v) for u, v in zip(*both)])
        mean_a = [mul(add(v, 0.0), share) for v in a]
        mean_b = [mul(add(v, 0.0), share) for v in b]
        return [[mul(k[c], fma(-n, mean_a[c], sub(g, mean_b[c])))
                 for g, n, c in zip(dy, normal, list(range(self.channels)) * len(dy))]
                for dy, normal in zip(gradients, self.normal)]

    def follow(self, n):
        """After a step of n examples."""
        if self.frozen:
            return
        cells = math.prod(self.shape) // self.channels
        share = div(1.0, rounded(Fraction(n * cells)))
        for at, moving in ((0, self.mean), (1, self.variance)):
            for c in range(self.channels):
                mean = mul(add(tree([g[at][c] for g in self.observed]), 0.0), share)
                moving[c] = fma(self.momentum, moving[c],
                                mul(sub(1.0, self.momentum), mean))


class LayerNormalization:
    kernel_count = 0

    def __init__(self, layer, shape):
        self.shape, self.channels = shape, shape[-1]
        self.epsilon = rounded(Fraction(str(layer.get("epsilon", "0.001"))))
        self.learns = layer.get("trainable", True) and (
            layer.get("scale", True) or layer.get("center", True))
        self.share = div(1.0, rounded(Fraction(self.channels)))

    def cells(self, values):
        return [values[i:i + self.channels] for i in range(0, len(values), self.channels)]

    def mean(self, pairs):
        return mul(finished(pairs), self.share)

    def forward(self, x, kernel, bias):
        gamma, beta = BatchNormalization.factors(self)
        self.kept, y = [], []
        for cell in self.cells(x):
            mean = self.mean([(1.0, v) for v in cell])
            d = [sub(v, mean) for v in cell]
            inverse = div(1.0, sqrt(add(self.mean([(v, v) for v in d]), self.epsilon)))
            self.kept.append((inverse, [mul(v, inverse) for v in d]))
            y += map(fma, self.kept[-1][1], gamma, beta)
        return y

    def backward(self, dy, kernel):
        gamma, dx = BatchNormalization.factors(self)[0], []
        for (inverse, n), of_cell in zip(self.kept, self.cells(dy)):
            g = list(map(mul, of_cell, gamma))
            a, b = self.mean(list(zip(g, n))), self.mean([(1.0, v) for v in g])
            dx += [mul(inverse, fma(-u, a, sub(v, b))) for u, v in zip(n, g)]
        return dx

    def gradient_terms(self, _x, dy):
        of_cells = list(zip(self.cells(dy), self.kept))
        return ([[(g[k], n[k]) for g, (_, n) in of_cells] for k in range(self.channels)],
                [[(1.0, g[k]) for g, _ in of_cells] for k in range(self.channels)])


class Relu6(Relu):
    def forward(self, x, kernel, bias):
        self.y = [min(relu(v), 6.0) for v in x]
        return self.y

    def backward(self, dy, kernel):
        return [g if 0.0 < y < 6.0 else 0.0 for g, y in zip(dy, self.y)]


class Elu(Relu):
    def __init__(self, layer, shape):
        super().__init__(layer, shape)
        self.alpha = rounded(Fraction(str(layer.get("alpha", 1) if layer else 1)))

    def forward(self, x, kernel, bias):
        self.y = [v if v > 0.0 else mul(self.alpha, expm1(v)) for v in x]
        return self.y

    def backward(self, dy, kernel):
        return [g if y > 0.0 else mul(g, add(y, self.alpha)) for g, y in zip(dy, self.y)]


class Smooth(Relu):
    """A function of x, and its slope."""

    def __init__(self, layer, shape):
        super().__init__(layer, shape)
        if layer and layer.get("approximate"):
            self.of = gelu_tanh, gelu_tanh_slope

    def forward(self, x, kernel, bias):
        self.x = x
        return [self.of[0](v) for v in x]

    def backward(self, dy, kernel):
        return [mul(g, self.of[1](v)) for g, v in zip(dy, self.x)]


class Softplus(Smooth):
    of = softplus, sigmoid


class Swish(Smooth):
    of = swish, swish_slope


class Gelu(Smooth):
    of = gelu, gelu_slope


ACTIVATIONS = {"relu6": Relu6, "elu": Elu, "softplus": Softplus, "swish": Swish, "gelu": Gelu,
               "relu": Relu, "tanh": Tanh, "sigmoid": Sigmoid, "leaky_relu": LeakyRelu}
LAYERS = {"conv2d": Conv2D, "max_pool2d": MaxPool2D, "dense": Dense, "add": Add, "dropout": Dropout,
          "batch_normalization": BatchNormalization, "layer_normalization": LayerNormalization,
          "average_pool2d": AveragePool2D, "global_average_pool2d": AveragePool2D,
          "concatenate": Concatenate, "zero_padding2d": ZeroPadding2D,
          "conv2d_transpose": Conv2DTranspose, "depthwise_conv2d": DepthwiseConv2D, **ACTIVATIONS}


def inputs_of(config, number):
    """The layers that layer `number` takes, each its number plus 1; 0 is the model's input."""
    layers = config["model"]["layers"]
    names = [layer.get("name", f"{layer['type']}_{i}") for i, layer in enumerate(layers)]
    taken = layers[number].get("inputs")
    if taken is None:
        return [number]
    return [max([i + 1 for i in range(number) if names[i] == name], default=0) for name in taken]


# --- section 6: gradients of parameters -----------------------------------------------------------

def grain_sum(examples):
    """`examples`: the terms of each example of a grain."""
    count = len(examples[0])
    if count > L:
        return tree([s for terms in examples for s in slices(terms)])
    per_slice = L // count
    return tree([chain(0.0, [t for terms in examples[i:i + per_slice] for t in terms])
                 for i in range(0, len(examples), per_slice)])


def gradient_sum(examples, grain, by_rows=False):
    """`examples`: for each position of the batch, the terms of one parameter's element, or None."""
    grains = [[e for e in examples[i:i + grain] if e is not None]
              for i in range(0, len(examples), grain)]
    if by_rows:  # of sequences each step is as an example
        grains = [[[term] for e in g for term in e] for g in grains]
    return tree([grain_sum(g) if g else None for g in grains])


# --- section 7: optimizers ------------------------------------------------------------------------

def defaults_of(kind):
    """Of an optimizer; numbers as they are written."""
    more = {"momentum": {"momentum": "0.9"}, "momentum_keras": {"momentum": "0.9"},
            "rmsprop_tf1": {"epsilon": "1e-10"}, "rmsprop_keras": {"epsilon": "1e-7"},
            "adam_keras": {"epsilon": "1e-7"}, "adamw_torch": {"weight_decay": "0.01"},
            "lars_tf": {"momentum": "0.9"}, "lamb_keras": {"epsilon": "1e-7"}}
    return {"momentum": "0", "rho": "0.9", "epsilon": "1e-8", "beta_1": "0.9", "beta_2": "0.999",
            "weight_decay": "0", "clipvalue": "0", "clipnorm": "0", "global_clipnorm": "0",
            "eta": "0.001", "weight_average": "0", **more.get(kind, {})}


def number_of(o, key):
    return rounded(Fraction(str(o.get(key, defaults_of(o["type"])[key]))))


def slot_names(o):
    averages = ["average"] * (number_of(o, "weight_average") > 0)
    if o["type"].startswith("rmsprop"):
        return ["mean_square"] + ["mean_gradient"] * o.get("centered", False) + \
            ["momentum"] * (number_of(o, "momentum") > 0) + averages
    if o["type"].startswith(("adam", "lamb")):
        return ["m", "v"] + ["v_max"] * o.get("amsgrad", False) + averages
    return [] + averages if o["type"] == "sgd" else ["momentum"] + averages


RATE_DEFAULTS = {"warmup_from": "0", "alpha": "0", "m_mul": "1", "power": "1",
                 "end_learning_rate": "0.0001"}


def rate_number(r, key):
    return rounded(Fraction(str(r.get(key, RATE_DEFAULTS.get(key)))))


def rate_at(o, t):
    """The learning rate of update t."""
    r, base = o.get("learning_rate_schedule", {}), rounded(Fraction(str(o["learning_rate"])))
    kind, warm = r.get("type", "constant"), r.get("warmup_steps", 0)
    if t < warm:
        start = rate_number(r, "warmup_from")
        return fma(sub(base, start), div(rounded(Fraction(t)), rounded(Fraction(warm))), start)
    t, steps = t - warm, r.get("steps", 1)

    def part():
        return 1.0 if t >= steps else div(rounded(Fraction(t)), rounded(Fraction(steps)))

    def fall():
        return mul(0.5, add(1.0, cos_pi(part())))

    if kind == "piecewise":
        for boundary, value in zip(r["boundaries"], r["values"]):
            base = rounded(Fraction(str(value))) if boundary < t else base
    elif kind == "exponential":
        y = rounded(Fraction(t // steps)) if r.get("staircase") else \
            div(rounded(Fraction(t)), rounded(Fraction(steps)))
        base = mul(base, power(rate_number(r, "decay_rate"), y))
    elif kind == "polynomial":
        end = rate_number(r, "end_learning_rate")
        base = fma(sub(base, end), power(sub(1.0, part()), rate_number(r, "power")), end)
    elif kind != "constant":
        restarts = 0
        while kind == "cosine_restarts" and t >= steps:
            t, steps, restarts = t - steps, steps * r.get("t_mul", 2), restarts + 1
        alpha, share = rate_number(r, "alpha"), fall()
        if kind == "cosine_restarts":
            share = mul(whole_power(rate_number(r, "m_mul"), restarts), share)
        base = mul(base, fma(sub(1.0, alpha), share, alpha))
    return base


class Scalars:
    """Of step t: the rate, and what adam makes of it."""

    def __init__(self, o, t):
        self.rate = rate_at(o, t)
        if not o["type"].startswith(("adam", "lamb")):
            return
        left = [sub(1.0, whole_power(number_of(o, b), t + 1)) for b in ("beta_1", "beta_2")]
        if o["type"] in ("adam_tf1", "adam_keras"):
            self.size, self.root = div(mul(self.rate, sqrt(left[1])), left[0]), 1.0
        else:
            rate = 1.0 if o["type"] == "lamb_keras" else self.rate
            self.size, self.root = div(rate, left[0]), div(1.0, sqrt(left[1]))


def squares_of(x):
    slices = []
    for first in range(0, len(x), L):
        chain = 0.0
        for value in x[first:first + L]:
            chain = fma(value, value, chain)
        slices.append(chain)
    return add(tree(slices), 0.0)


# --- section 8: initial values --------------------------------------------------------------------

NORMAL_TRIES = 8


def orthogonal(w, columns):
    rows = len(w) // columns
    index = [[r * columns + c for c in range(columns)] for r in range(rows)]
    if rows >= columns:
        index = [list(column) for column in zip(*index)]
    vectors = [[w[at] for at in of] for of in index]
    for _ in range(2):
        for i, a in enumerate(vectors):
            length = finished([(v, v) for v in a])
            factor = div(1.0, sqrt(length)) if length > 0 else 0.0
            a[:] = [mul(v, factor) for v in a]
            for b in vectors[i + 1:]:
                s = finished(list(zip(a, b)))
                b[:] = [fma(-s, u, v) for u, v in zip(a, b)]
    out = [0.0] * len(w)
    for of, vector in zip(index, vectors):
        for at, v in zip(of, vector):
            out[at] = v
    return out


def initial_values(layer, made, seed, number):
    kind = layer.get("kernel_initializer", "glorot_uniform")
    own = {"random_uniform": 0.05, "random_normal": 0.05, "truncated_normal": 0.05,
           "orthogonal": 1}.get(kind, 0)
    v = rounded(Fraction(str(layer.get("kernel_initializer_value", 0) or own)))
    fan_in, fan_out = made.fans

    def words(i, attempt=0):
        e = i // 4
        return block(seed, 1, e & 0xFFFFFFFF, e >> 32, number, attempt)

    def uniform(i):
        return rounded(2 * Fraction(words(i)[i % 4] >> 8, 1 << 24) - 1)

    def normal(i, attempt=0):
        w = words(i, attempt)
        first = i % 4 // 2 * 2
        return normal_pair(w[first], w[first + 1])[i % 2]

    def truncated(i):
        for attempt in range(NORMAL_TRIES):
            z = normal(i, attempt)
            if abs(z) <= 2:
                return z
        return math.copysign(2.0, z)

    def root(variance, fan):
        return sqrt(div(variance, rounded(Fraction(fan))))

    deviation = constant("0x1.c25e4cp-1")
    of = {"zeros": lambda i: 0.0, "ones": lambda i: 1.0, "constant": lambda i: v,
          "random_uniform": lambda i: mul(uniform(i), v),
          "random_normal": lambda i: mul(normal(i), v), "orthogonal": normal,
          "truncated_normal": lambda i: mul(truncated(i), v)}
    for name, variance, fan in (("glorot", 6, fan_in + fan_out), ("he", 6, fan_in),
                                ("lecun", 3, fan_in)):
        limit = root(float(variance), fan)
        stddev = div(root(float(variance // 3), fan), deviation)
        of[name + "_uniform"] = lambda i, limit=limit: mul(uniform(i), limit)
        of[name + "_normal"] = lambda i, stddev=stddev: mul(truncated(i), stddev)
    kernel = [of[kind](i) for i in range(made.kernel_count)]
    if kind == "orthogonal":
        kernel = [mul(v, q) for q in orthogonal(kernel, made.columns)]
    return kernel


class Vector:
    """The state of a kernel of spectral_normalization, as section 8 has it."""
    fans = (1, 1)

    def __init__(self, columns):
        self.kernel_count = self.columns = columns


def unit(a):
    length = finished([(x, x) for x in a])
    factor = div(1.0, sqrt(length)) if length > 0 else 0.0
    return [mul(x, factor) for x in a]


def normalized(w, u):
    """Section 7: v, n, the factor, and what products take; of no sigma above 0 v is None."""
    columns = len(u)
    rows = [w[at:at + columns] for at in range(0, len(w), columns)]
    v = unit([finished(list(zip(row, u))) for row in rows])
    b = [finished(list(zip(v, column))) for column in zip(*rows)]
    n = unit(b)
    sigma = finished(list(zip(b, n)))
    if not sigma > 0:
        return None, u, 1.0, w
    factor = div(1.0, sigma)
    return v, n, factor, [mul(x, factor) for x in w]


# --- sections 4, 7, 8: a run ----------------------------------------------------------------------

class LabelEmbedding:
    """Rows of the kernel for the blank and the labels of the example."""
    by_rows, bias_count, learns, takes_labels = True, 0, True, True

    def __init__(self, layer, model):
        self.rows, self.classes, self.units = model["labels"] + 1, model["classes"], layer["units"]
        self.shape = (self.rows, 1, self.units)
        self.fans, self.columns = (self.classes, self.units), self.units
        self.kernel_count = self.classes * self.units

    def forward(self, label, kernel, _bias):
        self.ids = [0] + label[1]
        rows = [kernel[i * self.units:(i + 1) * self.units] for i in self.ids]
        return [v for row in rows for v in row] + \
            [0.0] * ((self.rows - len(rows)) * self.units)

    def gradient_terms(self, label, dy):
        ids = [0] + label[1]
        ids += [None] * (self.rows - len(ids))
        return [[(1.0 if i == v else 0.0, dy[u * self.units + k]) for u, i in enumerate(ids)]
                for v in range(self.classes) for k in range(self.units)], []


class Joint:
    """The two numbers of each cell that the example has."""
    by_rows, takes_labels = True, True

    def __init__(self, layer, first, second, height):
        assert first[2] == second[2]
        self.frames, self.rows, self.values = first[0], second[0], first[2]
        self.units, self.height = layer["units"], height
        self.shape = (self.frames, self.rows, 2)
        self.fans, self.columns = (self.values, self.units), self.units
        self.kernel_count, self.bias_count = self.values * self.units, self.units

    def cells(self, label):
        said, labels = label
        count = min(self.frames, (said * self.frames + self.height - 1) // self.height)
        return [(t, u) for t in range(count) for u in range(len(labels) + 1)]

    def forward(self, x, label, kernel, bias):
        v, n = range(self.values), range(self.units)
        self.x, self.kept, out = x, {}, [0.0] * (self.frames * self.rows * 2)
        for t, u in self.cells(label):
            h = self.run.narrowed([tanh(add(x[0][t * self.values + k], x[1][u * self.values + k]))
                                   for k in v], self.narrow)
            z = [finished([(h[k], kernel[k * self.units + i]) for k in v],
                          0.0 if bias is None else bias[i]) for i in n]
            top = max(z)
            e = [exp(sub(one, top)) for one in z]
            s = finished([(1.0, one) for one in e])
            own = label[1][u] if u < len(label[1]) else None
            at = (t * self.rows + u) * 2
            out[at] = add(sub(sub(z[0], top), log(s)), 0.0)
            if own is not None:
                out[at + 1] = add(sub(sub(z[own], top), log(s)), 0.0)
            r = div(1.0, s)
            self.kept[t, u] = h, [mul(one, r) for one in e], own
        return out

    def slopes(self, dy):
        """dz of each cell that there is."""
        for (t, u), (h, p, own) in self.kept.items():
            blank, label = dy[(t * self.rows + u) * 2:(t * self.rows + u) * 2 + 2]
            g = add(blank, label)
            yield t, u, h, self.run.narrowed(
                [fma(-p[n], g, blank if n == 0 else label if n == own else 0.0)
                 for n in range(self.units)], self.narrow)

    def backward(self, dy, kernel):
        dx = [[0.0] * len(x) for x in self.x]
        for t, u, h, dz in self.slopes(dy):
            for k in range(self.values):
                dh = finished(list(zip(kernel[k * self.units:(k + 1) * self.units], dz)))
                d = mul(dh, fma(-h[k], h[k], 1.0))
                for to, at in ((dx[0], t * self.values + k), (dx[1], u * self.values + k)):
                    to[at] = add(to[at], d)
        return dx

    def gradient_terms(self, _x, dy):
        none = ([0.0] * self.values, [0.0] * self.units)
        rows = [none] * (self.frames * self.rows)
        for t, u, h, dz in self.slopes(dy):
            rows[t * self.rows + u] = h, dz
        return ([[(h[k], dz[n]) for h, dz in rows] for k in range(self.values)
                 for n in range(self.units)],
                [[(1.0, dz[n]) for _, dz in rows] for n in range(self.units)])


def gan_softplus(z):
    return add(max(z, 0.0), log(add(1.0, exp(-abs(z)))))


def log_sum(p, q):
    top, low = (p, q) if p > q else (q, p)
    return add(top, softplus(sub(low, top)))


class Run:
    def reduce_time(self, layer, number, tensor, shape):
        """The tensor and its shape of neighbouring frames as one, behind the last ones zeros."""
        (times, _, features), factor = shape, layer["factor"]
        behind = -times % factor
        if behind:
            made = ZeroPadding2D({"padding": [[0, behind], [0, 0]]}, shape)
            made.frozen, made.narrow = False, layer.get("dtype") != "float32"
            self.append(made, [tensor])
            made.run, made.number = self, number
            tensor = len(self.shapes) - 1
        return tensor, ((times + behind) // factor, 1, factor * features)

    def __init__(self, config):
        self.config, self.data = config, config["data"]["train"]["made_up"]
        self.examples = [made_up(self.data, i) for i in range(self.data["count"])]
        if "sequences" in config:
            self.examples = [(image, label) for (image, _), label
                             in zip(self.examples, config["sequences"])]
        count, shards = len(self.examples), config.get("shards", 0)
        # As lockstep data shard cuts it: the larger ones first.
        self.shards = [k * (count // shards) + min(k, count % shards)
                       for k in range(shards + 1)] if shards else []
        # A tensor is a number in `shapes`, 0 the model's input; each of self.layers makes the next.
        self.layers, self.parameters, self.frozen, self.by_rows = [], [], set(), set()
        self.l2 = {}  # of kernels that have a regularizer and are trained
        self.vectors = {}  # of kernels that are normalized
        self.shapes, self.learns = [tuple(config["model"]["input"])], [False]
        outputs = [(0, self.shapes[0])]  # by layer number plus 1: tensor, and how it is seen
        for number, layer in enumerate(config["model"]["layers"]):
            taken = [outputs[i] for i in inputs_of(config, number)]
            shape = taken[0][1] if taken else ()
            if layer["type"] == "flatten":
                outputs.append((taken[0][0], (math.prod(shape),)))
                continue
            if layer["type"] == "reshape":
                sizes = tuple(layer["target_shape"])
                outputs.append((taken[0][0], (sizes[0], 1, sizes[1]) if len(sizes) == 2 else sizes))
                continue
            if layer["type"] == "time_reduction":
                outputs.append(self.reduce_time(layer, number, *taken[0]))
                continue
            over = layer["type"] == "dense" and len(shape) == 3
            if layer["type"] in RECURRENT:
                made = SequenceDense(layer, shape)
                made.frozen = not layer.get("trainable", True)
                made.narrow = layer.get("dtype") != "float32"
                self.append(made, [taken[0][0]]).before_activation = True
                self.initialize(layer, made)
                taken = [(len(self.shapes) - 1, made.shape)]
                made = RECURRENT[layer["type"]](layer, made.shape)
            elif layer["type"] == "label_embedding":
                made, taken = LabelEmbedding(layer, config["model"]), []
            elif layer["type"] == "joint":
                made = Joint(layer, *[s for _, s in taken], config["model"]["input"][0])
            else:
                made = (SequenceDense if over else LAYERS[layer["type"]])(
                    layer, *[s for _, s in taken])
            made.frozen = not layer.get("trainable", True)
            self.append(made, [t for t, _ in taken])
            made.run, made.number = self, number
            made.narrow = layer.get("dtype") != "float32"
            if made.kernel_count:
                self.initialize(layer, made)
            if isinstance(made, (BatchNormalization, LayerNormalization)):
                self.declare(layer, made)
            if layer.get("activation", "linear") != "linear":
                function = ACTIVATIONS[layer["activation"]](None, made.shape)
                made.before_activation = True
                function.narrow = made.narrow
                self.append(function, [len(self.shapes) - 1])
            outputs.append((len(self.shapes) - 1, self.shapes[-1]))
        self.begin_vectors(self.layers)
        taken = loss_inputs(config)
        self.loss_at = [outputs[i][0] for i in taken]
        self.logits = self.loss_at[:1]
        names = slot_names(config["optimizer"])
        first = 1.0 if config["optimizer"]["type"] == "rmsprop_tf1" else 0.0
        self.slots = [{name: [first if name == "mean_square" else 0.0] * len(p) for name in names}
                      for p in self.parameters]
        for slots, parameter in zip(self.slots, self.parameters):
            slots["average"] = list(parameter)
        self.step = 0
        self.start(config)

    def start(self, config):
        self.alive = [False] * len(self.parameters)
        self.precision = config.get("precision", "float32")
        how = config.get("loss_scale", {})
        self.scale = self.initial = Fraction(how.get("initial", 32768))
        self.how, self.good, self.skipped, self.in_a_row, self.replayed = how, 0, 0, 0, 0

    def append(self, made, inputs):
        """A layer whose output is a tensor of its own; does it depend on a parameter?"""
        made.inputs_at, made.before_activation = inputs, False
        self.layers.append(made)
        self.shapes.append(made.shape)
        own = getattr(made, "learns", made.kernel_count > 0) and not getattr(made, "frozen", False)
        self.learns.append(own or any(self.learns[i] for i in inputs))
        return made

    def declare(self, layer, made):
        """Parameters of batch normalization, which are no kernels."""
        made.gamma_at = made.beta_at = None
        if layer.get("scale", True):
            made.gamma_at = len(self.parameters)
            self.parameters.append([1.0] * made.channels)
        if layer.get("center", True):
            made.beta_at = len(self.parameters)
            self.parameters.append([0.0] * made.channels)
        if made.frozen:
            self.frozen |= {made.gamma_at, made.beta_at}

    def begin_vectors(self, layers):
        """In the order of states, which are numbered behind the parameters."""
        number = len(self.parameters)
        for layer in layers:
            if getattr(layer, "spectral_at", None) is not None:
                said = {"kernel_initializer": "random_normal", "kernel_initializer_value": 1}
                self.vectors[layer.spectral_at] = initial_values(
                    said, Vector(layer.columns), self.config["seed"], number)
                number += 1
            number += 2 * isinstance(layer, BatchNormalization)

    def moving(self, layers):
        """What evaluation reads beside parameters, layer after layer."""
        values = []
        for layer in layers:
            if isinstance(layer, BatchNormalization):
                values += layer.mean + layer.variance
            elif getattr(layer, "spectral_at", None) is not None:
                values += self.vectors[layer.spectral_at]
        return b"".join(struct.pack("<f", v) for v in values)

    def initialize(self, layer, made):
        made.kernel_at, made.bias_at = len(self.parameters), None
        made.spectral_at = made.kernel_at if layer.get("spectral_normalization") else None
        if getattr(made, "by_rows", False):
            self.by_rows.add(made.kernel_at)
        if isinstance(made, Recurrent):
            layer = {"type": "sums", "kernel_initializer": "orthogonal",
                     "use_bias": layer.get("use_bias", True)}
        elif "kernel_regularizer" in layer and not made.frozen:
            self.l2[made.kernel_at] = rounded(Fraction(str(layer["kernel_regularizer"]["l2"])))
        kernel = initial_values(layer, made, self.config["seed"], made.kernel_at)
        self.parameters.append(kernel)
        return self.add_bias(layer, made)

    def add_bias(self, layer, made):
        if layer.get("use_bias", True) and made.bias_count:
            made.bias_at = len(self.parameters)
            if made.kernel_at in self.by_rows:
                self.by_rows.add(made.bias_at)
            forget = layer["type"] == "lstm" and layer.get("unit_forget_bias", True)
            self.parameters.append([1.0 if forget and i // layer["units"] == 1 else 0.0
                                    for i in range(made.bias_count)])
        if made.frozen:
            self.frozen |= {made.kernel_at, made.bias_at}

    def weights(self, layer):
        if not layer.kernel_count:
            return None, None
        bias = None if layer.bias_at is None else self.parameters[layer.bias_at]
        kernel = self.parameters[layer.kernel_at]
        if layer.spectral_at is not None:
            kernel = self.normalized[layer.spectral_at][3]
        if layer.narrow and self.precision in FORMATS:
            kernel = [rounded16(w, self.precision) for w in kernel]
            assert not any(math.isinf(w) for w in kernel)
        return kernel, bias

    # section 16

    def narrowed(self, values, narrow=True):
        """Rounded where the model says so; a flag where one is not finite, and 0 in its place."""
        if not narrow or self.precision not in FORMATS:
            return values
        values = [rounded16(v, self.precision) for v in values]
        self.flagged |= any(map(math.isinf, values))
        return [0.0 if math.isinf(v) else v for v in values]

    def makes_narrow(self, tensor):
        return tensor == 0 or self.layers[tensor - 1].narrow

    def scaled(self, gradients):
        for at in {at for at in self.loss_at if gradients[at]}:
            if self.precision == "mixed_float16" and at in self.logits:
                gradients[at] = [mul(g, float(self.scale)) for g in gradients[at]]
            gradients[at] = self.narrowed(gradients[at], self.makes_narrow(at))

    def follow(self):
        """After a step: is it applied, and the scale."""
        if self.precision != "mixed_float16":
            assert not self.flagged
            return True
        how, fixed = self.how, self.how.get("type") == "static"
        if not self.flagged:
            self.in_a_row = 0
            self.good += not fixed
            if self.good == how.get("growth_steps", 2000):
                self.scale = min(self.scale * how.get("growth_factor", 2), Fraction(2) ** 30)
                self.good = 0
            return True
        if how.get("on_overflow") == "replay":
            assert self.scale > how.get("floor", 1)
            self.replayed += 1
        else:
            self.skipped, self.in_a_row = self.skipped + 1, self.in_a_row + 1
        if not fixed:
            self.scale = max(self.scale * Fraction(how.get("backoff_factor", 0.5)),
                             Fraction(how.get("floor", 1)))
            self.good = 0
        return False

    def states(self):
        if self.precision != "mixed_float16":
            return b""
        power = int(math.log2(self.scale / self.initial))
        out = b"" if self.how.get("on_overflow") == "replay" else struct.pack("<Q", self.skipped)
        return out + struct.pack("<IIIQ", power & 0xFFFFFFFF, self.good, self.in_a_row,
                                 self.replayed)

    def cropped(self, x):
        """The part of a larger image that this step takes, at its place of the global batch."""
        (rows, columns), (h, w, channels) = self.config["data"]["augment"]["crop_from"], \
            self.shapes[0]
        words = block(self.config["seed"], 7, 2, self.place, self.step & 0xFFFFFFFF,
                      self.step >> 32 << 16)
        top, left = words[0] * (rows - h + 1) >> 32, words[1] * (columns - w + 1) >> 32
        return [x[((top + y) * columns + left + column) * channels + c]
                for y, column, c in itertools.product(range(h), range(w), range(channels))]

    def augmented(self, x):
        """An image as this step sees it, at its place of the global batch."""
        how = {"shift": [0, 0], "cutout": [0, 0], "brightness": 0, "contrast": 0,
               **self.config["data"].get("augment", {})}
        h, w, channels = self.shapes[0]
        seed, step, signed = self.config["seed"], self.step, \
            self.config["model"].get("input_range") == "signed"
        words = [v for b in (0, 1) for v in
                 block(seed, 7, b, self.place, step & 0xFFFFFFFF, step >> 32 << 16)]
        around = [rounded(Fraction(v >> 8, 1 << 23) - 1) for v in words]
        dy, dx = ((words[i] * (2 * how["shift"][i] + 1) >> 32) - how["shift"][i] for i in (0, 1))
        top, left = ((words[5 + i] * (h, w)[i] >> 32) - how["cutout"][i] // 2 for i in (0, 1))
        flips = how.get("flip") == "horizontal" and words[2] >> 31
        floats = self.config["model"].get("input_type") == "f32"
        middle = 0.0 if signed or floats else 0.5
        contrast = fma(rounded(Fraction(str(how["contrast"]))), around[3], 1.0)
        offset = add(fma(-contrast, middle, middle),
                     mul(rounded(Fraction(str(how["brightness"]))), around[4]))
        means = self.config["data"].get("normalize", {})
        out = []
        for y, column, c in itertools.product(range(h), range(w), range(channels)):
            sy, sx = y + dy, (w - 1 - column if flips else column) + dx
            inside = 0 <= sy < h and 0 <= sx < w
            sy, sx = min(max(sy, 0), h - 1), min(max(sx, 0), w - 1)
            value = x[(sy * w + sx) * channels + c]
            if not inside and how.get("padding", "black") == "black":
                value = -1.0 if signed else 0.0
            r, s = 1.0, 0.0
            if means:
                r = div(1.0, rounded(Fraction(str(means["deviation"][c]))))
                s = mul(-rounded(Fraction(str(means["mean"][c]))), r)
            if means or how["contrast"] or how["brightness"]:
                value = fma(value, mul(contrast, r), fma(offset, r, s))
            cut = top <= y < top + how["cutout"][0] and left <= column < left + how["cutout"][1]
            out.append(0.0 if cut else value)
        return out

    def example(self, index, terms):
        """Forward and backward of one example; appends its terms to those of every parameter. Stops
        where a layer wants those of the whole grain: yields them, and is sent the example's."""
        image, label = self.examples[index]
        more = self.config["data"]
        layers = [copy.copy(layer) for layer in self.layers]
        if self.config["model"].get("input_range") == "signed":
            values = [[div(sub(float(b), 127.5), 127.5) for b in image]]
        else:
            values = [[mul(float(b), constant("0x1.010102p-8")) for b in image]]
        if "crop_from" in more.get("augment", {}):
            values = [self.cropped(values[0])]
        if "augment" in more or "normalize" in more:
            values = [self.augmented(values[0])]
        if self.config["model"].get("labels"):  # frames behind its own
            own = len(values[0]) // self.config["model"]["input"][0] * label[0]
            values[0] = values[0][:own] + [0.0] * (len(values[0]) - own)
        values[0] = self.narrowed(values[0])
        for number, layer in enumerate(layers):
            x = [values[i] for i in layer.inputs_at]
            if isinstance(layer, BatchNormalization):
                y = yield self.layers[number].forward_grain, x[0]
                values.append(self.narrowed(y, layer.narrow))
                continue
            if getattr(layer, "takes_labels", False):
                x = [x, label] if x else [label]
                y = layer.forward(*x, *self.weights(layer))
            else:
                y = layer.forward(x[0] if len(x) == 1 else x, *self.weights(layer))
            apart = layer.before_activation or len(values) in self.logits
            values.append(self.narrowed(y, layer.narrow and not apart))
            layer.y = values[-1]  # what backward goes by
        gradients = [None] * len(values)
        sums = LOSSES[loss_of(self.config)["type"]](self, values, label, gradients)
        self.scaled(gradients)
        for i in range(len(layers), 0, -1):
            layer, dy = layers[i - 1], gradients[i]
            if not self.learns[i]:
                continue
            if layer.kernel_count and not layer.frozen:
                taken = values[layer.inputs_at[0]] if layer.inputs_at else label
                kernels, biases = layer.gradient_terms(taken, dy)
                terms[layer.kernel_at].append(kernels)
                if layer.bias_at is not None:
                    terms[layer.bias_at].append(biases)
            if isinstance(layer, LayerNormalization) and layer.learns:
                for at, of_example in zip((layer.gamma_at, layer.beta_at),
                                          layer.gradient_terms(None, dy)):
                    if at is not None:
                        terms[at].append(of_example)
            if isinstance(layer, BatchNormalization):
                dx = yield self.layers[i - 1].backward_grain, dy
                shares = [(n, dx) for n in layer.inputs_at]
            elif not any(self.learns[n] for n in layer.inputs_at):
                continue
            elif isinstance(layer, Concatenate):
                shares = layer.shares(dy)
            elif isinstance(layer, Joint):
                dx = layer.backward(dy, self.weights(layer)[0])
                shares = list(zip(layer.inputs_at, dx))
            else:
                dx = layer.backward(dy, self.weights(layer)[0])
                shares = [(n, dx) for n in layer.inputs_at]
            for n, dx in [(n, dx) for n, dx in shares if self.learns[n]]:
                narrow = self.makes_narrow(n)
                mine = self.narrowed(dx, narrow)
                gradients[n] = (self.narrowed(list(map(add, gradients[n], mine)), narrow)
                                if gradients[n] else mine)
        return sums

    def grain(self, examples, terms):
        """`examples`: place and number of each of a grain; their sums, None where there is none."""
        under_way = [(place, self.example(index, terms)) for place, index in examples
                     if index is not None]
        reports, sent = {}, [None] * len(under_way)
        while under_way:
            asked = []
            for (place, one), value in zip(under_way, sent):
                self.place = place
                try:
                    asked.append(one.send(value))
                except StopIteration as end:
                    reports[place] = end.value
            if not asked:
                break
            both = (terms,) if asked[0][0].__name__ == "backward_grain" else ()
            sent = asked[0][0]([value for _, value in asked], *both)
        for place, index in examples:
            if index is None:  # behind the others of its grain
                for of_parameter in terms:
                    of_parameter.append(None)
        return [reports.get(place) for place, _ in examples]

    # section 4: each gives the sums of an example, and the gradients of what the loss takes

    def softmax_cross_entropy(self, values, label, gradients):
        z = values[self.loss_at[0]]
        top = max(z)
        self.correct += z.index(top) == label
        e = [exp(sub(v, top)) for v in z]
        s = finished([(1.0, v) for v in e])
        r = div(1.0, s)
        smoothing = rounded(Fraction(str(loss_of(self.config).get("label_smoothing", 0))))
        off = div(smoothing, rounded(Fraction(len(z))))
        on = add(sub(1.0, smoothing), off)
        gradients[self.loss_at[0]] = [add(sub(mul(e[k], r), on if k == label else off), 0.0)
                                      for k in range(len(z))]
        distance = sub(z[label], top)
        if smoothing:
            every = finished([(1.0, sub(v, top)) for v in z])
            distance = fma(off, every, mul(sub(1.0, smoothing), distance))
        loss, weights = add(sub(log(s), distance), 0.0), class_weights(self.config)
        if weights:
            gradients[self.loss_at[0]] = [add(mul(g, weights[label]), 0.0)
                                          for g in gradients[self.loss_at[0]]]
            loss = add(mul(loss, weights[label]), 0.0)
        return [loss]

    def binary_crossentropy(self, values, label, gradients):
        z, one = values[self.loss_at[0]], 1.0
        share = rounded(Fraction(str(loss_of(self.config).get("label_smoothing", 0))))
        half = mul(share, 0.5)
        prediction = z.index(max(z)) if len(z) > 1 else int(z[0] > 0)
        self.correct += prediction == label
        said = [k == label for k in range(len(z))] if len(z) > 1 else [label == 1]
        y = [add(sub(one, share), half) if yes else half for yes in said]
        r = div(one, rounded(Fraction(len(z))))
        losses = [fma(t, softplus(-v), mul(sub(one, t), softplus(v))) for t, v in zip(y, z)]
        gradients[self.loss_at[0]] = [add(mul(sub(sigmoid(v), t), r), 0.0) for t, v in zip(y, z)]
        return [mul(finished([(one, v) for v in losses]), r)]

    def mean_squared_error(self, values, _label, gradients):
        p, t = (values[at] for at in self.loss_at)
        r = div(1.0, rounded(Fraction(len(p))))
        d = list(map(sub, p, t))
        dp = [add(mul(v, mul(2.0, r)), 0.0) for v in d]
        gradients[self.loss_at[0]] = dp
        if self.learns[self.loss_at[1]]:
            gradients[self.loss_at[1]] = [sub(0.0, v) for v in dp]
        return [mul(finished([(v, v) for v in d]), r),
                mul(finished([(1.0, abs(v)) for v in d]), r)]

    def mean(self, values, _label, gradients):
        x = values[self.loss_at[0]]
        r = div(1.0, rounded(Fraction(len(x))))
        scale = rounded(Fraction(str(loss_of(self.config).get("scale", 1))))
        gradients[self.loss_at[0]] = [add(mul(r, scale), 0.0)] * len(x)
        return [add(mul(mul(finished([(1.0, v) for v in x]), r), scale), 0.0)]

    def transducer(self, values, label, gradients):
        y, shape = values[self.loss_at[0]], self.shapes[self.loss_at[0]]
        said, height = label[0], self.config["model"]["input"][0]
        frames, labels = min(shape[0], (said * shape[0] + height - 1) // height), len(label[1])
        out = gradients[self.loss_at[0]] = [0.0] * len(y)
        if not frames:
            return [0.0]

        def at(t, u):
            return (t * shape[1] + u) * 2
        alpha, beta = {}, {}
        for t in range(frames - 1, -1, -1):
            for u in range(labels, -1, -1):
                ways = [add(beta[t + 1, u], y[at(t, u)])] if t < frames - 1 else []
                ways += [add(beta[t, u + 1], y[at(t, u) + 1])] if u < labels else []
                beta[t, u] = log_sum(*ways) if len(ways) == 2 else (ways or [y[at(t, u)]])[0]
        loss = sub(0.0, beta[0, 0])
        for t in range(frames):
            for u in range(labels + 1):
                ways = [add(alpha[t - 1, u], y[at(t - 1, u)])] if t else []
                ways += [add(alpha[t, u - 1], y[at(t, u - 1) + 1])] if u else []
                a = alpha[t, u] = log_sum(*ways) if len(ways) == 2 else (ways or [0.0])[0]
                blank, own = (add(a, y[at(t, u) + i]) for i in (0, 1))
                if t < frames - 1:
                    out[at(t, u)] = sub(0.0, exp(add(add(blank, beta[t + 1, u]), loss)))
                elif u == labels:
                    out[at(t, u)] = sub(0.0, exp(add(blank, loss)))
                if u < labels:
                    out[at(t, u) + 1] = sub(0.0, exp(add(add(own, beta[t, u + 1]), loss)))
        return [loss]

    def gan_side(self, values, at, gradients, of_one):
        """The sums of the losses and of the scores at one input."""
        r = div(1.0, rounded(Fraction(len(values[at]))))
        found = [of_one(v) for v in values[at]]
        gradients[at] = [add(mul(g, r), 0.0) for _, g in found]
        return [mul(finished([(1.0, v) for v in of]), r)
                for of in ([loss for loss, _ in found], values[at])]

    def gan_generator(self, values, _label, gradients):
        kind = loss_of(self.config)["kind"]
        one = {"minimax": lambda f: (-gan_softplus(f), -sigmoid(f)),
               "modified": lambda f: (gan_softplus(-f), sub(sigmoid(f), 1.0)),
               "least_squares": lambda f: (mul(mul(sub(f, 1.0), sub(f, 1.0)), 0.5), sub(f, 1.0))}
        return self.gan_side(values, self.loss_at[0], gradients,
                             one.get(kind, lambda f: (-f, -1.0)))

    def gan_discriminator(self, values, _label, gradients):
        loss = loss_of(self.config)
        y = sub(1.0, mul(rounded(Fraction(str(loss.get("label_smoothing", 0.25)))), 0.5))
        real = {"wasserstein": lambda x: (-x, -1.0),
                "minimax": lambda x: (gan_softplus(-x), sub(sigmoid(x), 1.0)),
                "modified": lambda x: (sub(gan_softplus(x), mul(x, y)), sub(sigmoid(x), y)),
                "least_squares": lambda x: (mul(mul(sub(x, 1.0), sub(x, 1.0)), 0.5), sub(x, 1.0)),
                "hinge": lambda x: (sub(1.0, x), -1.0) if x < 1 else (0.0, 0.0)}[loss["kind"]]
        fake = {"wasserstein": lambda f: (f, 1.0),
                "least_squares": lambda f: (mul(mul(f, f), 0.5), f),
                "hinge": lambda f: (add(1.0, f), 1.0) if f > -1 else (0.0, 0.0)}.get(
                    loss["kind"], lambda f: (gan_softplus(f), sigmoid(f)))
        of_real = self.gan_side(values, self.loss_at[0], gradients, real)
        of_fake = self.gan_side(values, self.loss_at[1], gradients, fake)
        return [add(of_real[0], of_fake[0]), of_real[1]]

    # section 14: of one network every step reads images, and is a step of the one objective

    def batch_number(self):
        return self.step

    def own_steps(self):
        return self.step

    def has_images(self):
        return True

    def sum_of(self, q, i, terms):
        return gradient_sum([example and example[i] for example in terms[q]], self.config["grain"],
                            q in self.by_rows)

    def clip(self, q, i):
        pass

    def position(self, epoch, p):
        """The example at position p of an epoch, in the order of the run; None: there is none."""
        seed, batch, total = self.config["seed"], self.config["global_batch"], len(self.examples)
        if not self.shards:
            return perm(seed, epoch, total, p)
        c = batch // (len(self.shards) - 1)
        k, u = p % batch // c, p // batch * c + p % batch % c
        size = self.shards[k + 1] - self.shards[k]
        return self.shards[k] + perm(seed, epoch, size, u, k) if u < size else None

    def train_step(self):
        """A step, with all of its attempts."""
        while True:
            self.flagged = False
            replayed, means = self.replayed, self.try_step()
            if self.replayed == replayed:
                self.step += 1
                return means

    def try_step(self):
        config, total = self.config, self.data["count"]
        batch = config["global_batch"]
        drop = config.get("drop_remainder", False)
        steps = total // batch if drop else (total + batch - 1) // batch
        epoch, first = self.batch_number() // steps, self.batch_number() % steps * batch
        n = min(batch, total - first) if self.has_images() else batch
        self.correct = 0
        terms = [[] for _ in self.parameters]
        reports = []
        self.normalized = {q: normalized(self.parameters[q], u) for q, u in self.vectors.items()}
        normed = [l for l in self.layers if isinstance(l, BatchNormalization)]
        for layer in normed:
            layer.observed = []
        places = range(batch if self.shards else n)
        for at in range(0, len(places), config["grain"]):
            some = [(p, self.position(epoch, first + p)) for p in places[at:at + config["grain"]]]
            reports += self.grain(some, terms)
        assert sum(report is not None for report in reports) == n
        inverse = div(1.0, rounded(Fraction(n)))
        penalty = 0.0
        for q, l2 in sorted(self.l2.items()):
            penalty = fma(l2, squares_of(self.parameters[q]), penalty)
        self.update = self.own_steps() - self.skipped
        self.scalars = Scalars(config["optimizer"], self.update)
        mean = inverse
        if self.precision == "mixed_float16":
            inverse = mul(inverse, float(1 / self.scale))
        applied = self.follow()
        for layer in normed if applied else []:
            if getattr(layer, "moves", True):
                layer.follow(n)
        gradients = []
        for q, parameter in enumerate(self.parameters if applied else []):
            sums = [0.0] * len(parameter) if q in self.frozen else [
                self.sum_of(q, i, terms) for i in range(len(parameter))]
            self.alive[q] |= any(sums)
            gradients.append(self.turned(q, sums))
        fits = self.fits(gradients, inverse)
        for q, sums in enumerate(gradients):
            for i, g in enumerate(sums):
                if q not in self.frozen:
                    self.apply(q, i, self.mean_gradient(q, i, g, *fits[q][:2]), fits[q][2])
                    self.clip(q, i)
                    self.average(q, i)
        width = max(len(report) for report in reports if report)
        sums = [gradient_sum([r and [(1.0, r[k])] for r in reports], config["grain"])
                for k in range(width)]
        means = [mul(add(s, 0.0), mean) for s in sums]
        return [add(means[0], penalty), *means[1:]] if penalty else means

    def turned(self, q, sums):
        """Of a kernel that is normalized: the gradient sum with respect to the kernel itself."""
        if q not in self.vectors or q in self.frozen:
            return sums
        v, n, factor, _ = self.normalized[q]
        self.vectors[q] = n
        if v is None:
            return sums
        pairs = list(zip(sums, self.parameters[q]))
        product = add(tree([chain(0.0, pairs[at:at + L]) for at in range(0, len(pairs), L)]), 0.0)
        share = mul(product, factor)
        return [mul(fma(-mul(share, v[i // len(n)]), n[i % len(n)], g), factor)
                for i, g in enumerate(sums)]

    def mean_gradient(self, q, i, g, inverse, share=1.0):
        g = mul(add(g, 0.0), inverse)
        if q not in self.l2:
            return g
        return fma(mul(mul(2.0, self.l2[q]), share), self.parameters[q][i], g)

    def report(self):
        """What a step logs: its means, and with labels the number of right predictions."""
        return self.said_of(self.train_step())

    def said_of(self, means):
        count = [self.correct] if loss_of(self.config)["type"] in (CROSSENTROPY, BINARY) else []
        return "/".join(["%.9g" % mean for mean in means] + ["%u" % c for c in count])

    def cut(self, g):
        most = number_of(self.config["optimizer"], "clipvalue")
        return g if not most or -most <= g <= most else most if g > most else -most

    def decayed(self, w):
        decay = mul(number_of(self.config["optimizer"], "weight_decay"), self.scalars.rate)
        return fma(-decay, w, w) if decay else w

    def lars(self, g, w):
        decay = number_of(self.config["optimizer"], "weight_decay")
        return fma(decay, w, self.cut(g)) if decay else self.cut(g)

    def lamb(self, g, m, v):
        o, s, g = self.config["optimizer"], self.scalars, self.cut(g)
        m = fma(sub(1.0, number_of(o, "beta_1")), sub(g, m), m)
        v = fma(sub(1.0, number_of(o, "beta_2")), fma(g, g, -v), v)
        return div(mul(m, s.size), fma(s.root, sqrt(v), number_of(o, "epsilon"))), m, v

    def fits(self, gradients, inverse):
        """Of each parameter: inverse, the share that is left of the regularizer, rate."""
        o, rate = self.config["optimizer"], self.scalars.rate
        means = [[self.mean_gradient(q, i, g, inverse) for i, g in enumerate(sums)]
                 for q, sums in enumerate(gradients)]
        if number_of(o, "clipnorm") or number_of(o, "global_clipnorm"):
            most, squares = number_of(o, "clipnorm"), [squares_of(g) for g in means]
            if not most:
                most, all_of_them = number_of(o, "global_clipnorm"), 0.0
                for one in squares:
                    all_of_them = add(all_of_them, one)
                squares = [all_of_them] * len(squares)
            shares = [div(most, max(sqrt(one), most)) for one in squares]
            return [(mul(inverse, share), share, rate) for share in shares]
        if o["type"] not in ("lars_tf", "lamb_keras"):
            return [(inverse, 1.0, rate)] * len(gradients)
        out = []
        for w, g, slots in zip(self.parameters, means, self.slots):
            if o["type"] == "lars_tf":
                u = [self.lars(a, b) for a, b in zip(g, w)]
            else:
                u = [self.lamb(*three)[0] for three in zip(g, slots["m"], slots["v"])]
                w = [self.decayed(value) for value in w]
            one, two = sqrt(squares_of(w)), sqrt(squares_of(u))
            one = mul(number_of(o, "eta"), one) if one and o["type"] == "lars_tf" else one
            out.append((inverse, 1.0, mul(rate, div(one, two)) if one and two else rate))
        return out

    def apply(self, q, i, g, rate):
        o, s, slots = self.config["optimizer"], self.scalars, self.slots[q]
        w = self.parameters[q][i]
        if o["type"] == "lars_tf":
            mu, step = number_of(o, "momentum"), mul(rate, self.lars(g, w))
            v = slots["momentum"][i] = fma(mu, slots["momentum"][i], step)
            self.parameters[q][i] = sub(w, fma(mu, v, step) if o.get("nesterov") else v)
            return
        if o["type"] == "lamb_keras":
            u, slots["m"][i], slots["v"][i] = self.lamb(g, slots["m"][i], slots["v"][i])
            self.parameters[q][i] = fma(-rate, u, self.decayed(w))
            return
        g = self.cut(g)
        if o["type"] in ("sgd", "momentum"):
            if o["type"] == "momentum":
                a = slots["momentum"][i] = fma(number_of(o, "momentum"), slots["momentum"][i], g)
                g = fma(number_of(o, "momentum"), a, g) if o.get("nesterov") else a
            self.parameters[q][i] = fma(-s.rate, g, w)
            return
        if o["type"] == "adam_torch" and number_of(o, "weight_decay"):
            g = fma(number_of(o, "weight_decay"), w, g)
        elif o["type"] != "adam_torch" and mul(number_of(o, "weight_decay"), s.rate):
            w = fma(-mul(number_of(o, "weight_decay"), s.rate), w, w)
        form = {"momentum_keras": self.momentum_keras, "rmsprop": self.rmsprop}.get(
            o["type"] if o["type"] == "momentum_keras" else o["type"].split("_")[0], self.adam)
        self.parameters[q][i] = form(o, s, slots, i, g, w)

    def average(self, q, i):
        keep = number_of(self.config["optimizer"], "weight_average") if self.update else 0.0
        averages = self.slots[q]["average"]
        averages[i] = fma(keep, averages[i], mul(sub(1.0, keep), self.parameters[q][i]))

    @staticmethod
    def momentum_keras(o, s, slots, i, g, w):
        mu, step = number_of(o, "momentum"), mul(s.rate, g)
        m = slots["momentum"][i] = fma(mu, slots["momentum"][i], -step)
        return add(w, fma(mu, m, -step) if o.get("nesterov") else m)

    @staticmethod
    def rmsprop(o, s, slots, i, g, w):
        rest, ms = sub(1.0, number_of(o, "rho")), slots["mean_square"][i]
        d = slots["mean_square"][i] = fma(rest, fma(g, g, -ms), ms)
        if o.get("centered"):
            mg = slots["mean_gradient"][i]
            mg = slots["mean_gradient"][i] = fma(rest, sub(g, mg), mg)
            d = fma(-mg, mg, d)
            d = d if d > 0 else 0.0
        u = div(mul(s.rate, g), sqrt(add(d, number_of(o, "epsilon"))))
        if number_of(o, "momentum"):
            u = slots["momentum"][i] = fma(number_of(o, "momentum"), slots["momentum"][i], u)
        return sub(w, u)

    @staticmethod
    def adam(o, s, slots, i, g, w):
        m, v = slots["m"][i], slots["v"][i]
        m = slots["m"][i] = fma(sub(1.0, number_of(o, "beta_1")), sub(g, m), m)
        v = slots["v"][i] = fma(sub(1.0, number_of(o, "beta_2")), fma(g, g, -v), v)
        if o.get("amsgrad"):
            v = slots["v_max"][i] = max(v, slots["v_max"][i])
        return sub(w, div(mul(m, s.size), fma(s.root, sqrt(v), number_of(o, "epsilon"))))

    # section 11

    def hashes(self):
        values = b"".join(struct.pack("<f", v) for p in self.parameters for v in p)
        state = hashlib.sha256(values)
        for name in slot_names(self.config["optimizer"]):
            state.update(b"".join(struct.pack("<f", v) for q, p in enumerate(self.slots)
                                  if q not in self.frozen for v in p[name]))
        state.update(struct.pack("<Q", self.step))
        moving = self.moving(self.layers)
        state.update(moving + self.states())
        values += moving
        return {"run_identity": identity(self.config, self.examples, self.shards),
                "digest": hashlib.sha256(values).hexdigest(), "state_hash": state.hexdigest()}


CROSSENTROPY = "sparse_categorical_crossentropy"
BINARY = "binary_crossentropy"
LOSSES = {CROSSENTROPY: Run.softmax_cross_entropy, BINARY: Run.binary_crossentropy,
          "mean": Run.mean,
          "mean_squared_error": Run.mean_squared_error, "transducer": Run.transducer,
          "gan_generator": Run.gan_generator, "gan_discriminator": Run.gan_discriminator}


def loss_of(config):
    loss = config["model"].get("loss", CROSSENTROPY)
    return loss if isinstance(loss, dict) else {"type": loss}


def class_weights(config):
    """Of each class, where one is not 1."""
    said, classes = loss_of(config).get("class_weight", {}), config["model"].get("classes", 0)
    if isinstance(said, list):
        said = dict(enumerate(said))
    said = {int(k): rounded(Fraction(str(v))) for k, v in said.items()}
    weights = [said.get(k, 1.0) for k in range(classes)]
    return weights if any(w != 1.0 for w in weights) else []


def loss_inputs(config):
    """Layers' numbers plus 1, 0: the model's input."""
    loss, layers = loss_of(config), config["model"]["layers"]
    names = ["input"] + [layer.get("name") for layer in layers]
    default = [len(layers), 0][:2 if loss["type"] == "mean_squared_error" else 1]
    return [names.index(name) for name in loss["inputs"]] if "inputs" in loss else default


# --- section 14: several networks and objectives --------------------------------------------------

class Noise:
    """A value of an objective that draws for each place of the global batch."""
    kernel_count, learns, narrow, inputs_at, before_activation = 0, False, True, [], False

    def __init__(self, run, said, number):
        self.run, self.said, self.number = run, said, number
        self.shape = tuple(said["shape"])

    def forward(self, _x, _kernel, _bias):
        run, out = self.run, []
        for i in range(math.prod(self.shape)):
            w = block(run.config["seed"], 5, i // 4, run.place, run.step & 0xFFFFFFFF,
                      self.number + (run.step >> 32 << 16))
            first = i % 4 // 2 * 2
            if self.said["type"] == "uniform":
                low, high = (rounded(Fraction(str(self.said.get(key, default))))
                             for key, default in (("low", 0), ("high", 1)))
                out.append(fma(sub(high, low), rounded(Fraction(w[i % 4] >> 8, 1 << 24)), low))
                continue
            assert self.said["type"] == "normal"
            stddev, mean = (rounded(Fraction(str(self.said.get(key, default))))
                            for key, default in (("stddev", 1), ("mean", 0)))
            out.append(fma(stddev, normal_pair(w[first], w[first + 1])[i % 2], mean))
        return out


class Objective(Run):
    """One kind of step: its values, unrolled. Use u of a parameter is an entry of its own for what
    backward collects, whose numbers are the parameter's."""

    def __init__(self, whole, number):
        said = whole.config["model"]["objectives"][number]
        model = {**whole.config["model"], "loss": said["loss"]}
        self.config = {**whole.config, "model": model, "optimizer": said["optimizer"]}
        self.whole, self.said, self.number = whole, said, number
        self.data, self.examples, self.shards = whole.data, whole.examples, []
        self.parameters, self.by_rows = list(whole.parameters), set()
        self.uses = [[q] for q in range(len(self.parameters))]
        self.frozen = {q for q in range(len(self.parameters))
                       if whole.network_of[q] not in said["trains"]}
        self.l2 = {q: l2 for q, l2 in whole.l2.items() if q not in self.frozen}
        self.vectors = whole.vectors
        self.layers, self.shapes, self.learns = [], [tuple(model["input"])], [False]
        values, before = {"images": 0}, 0
        for v, use in enumerate(said["values"]):
            if "noise" in use:
                self.append(Noise(self, use["noise"], 256 * number + v), [])
                before = len(self.shapes) - 1
            else:
                taken = [values[name] for name in use.get("inputs", [])] or [before]
                before = self.unroll(use["network"], taken)
            values[use["name"]] = before
        self.loss_at = [values[name] for name in said["loss"].get("inputs", [])] or [before]
        self.logits = self.loss_at
        names = slot_names(said["optimizer"])
        first = 1.0 if said["optimizer"]["type"] == "rmsprop_tf1" else 0.0
        self.slots = [{name: [first if name == "mean_square" else 0.0] * len(p) for name in names}
                      for p in self.parameters]
        for slots, parameter in zip(self.slots, self.parameters):
            slots["average"] = list(parameter)
        self.own = 0
        self.start(whole.config)

    def entry_of(self, q):
        """Of the next use of parameter q."""
        if not any(q in getattr(layer, "entries", []) for layer in self.layers):
            return q
        self.parameters.append(self.parameters[q])
        self.uses.append([])
        self.uses[q].append(len(self.parameters) - 1)
        self.frozen.add(len(self.parameters) - 1)
        return len(self.parameters) - 1

    def unroll(self, network, taken):
        """One application of a network; the number of the tensor that it makes."""
        trained = network in self.said["trains"]
        at = taken[0]
        for layer, template in self.whole.networks[network]:
            if template is None:
                continue
            made = copy.copy(template)
            made.run, made.entries = self, []
            for key in ("kernel_at", "bias_at", "gamma_at", "beta_at"):
                if getattr(made, key, None) is not None:
                    made.entries.append(getattr(template, key))
                    setattr(made, key, self.entry_of(getattr(template, key)))
            before = template.before_activation
            if isinstance(made, BatchNormalization):
                made.moves = trained
                if trained:
                    self.whole.normed[id(template)] = made
                learns = trained
            else:
                made.frozen, learns = not trained, trained and made.kernel_count > 0
            self.append(made, [at]).before_activation = before
            self.learns[-1] = learns or self.learns[at]
            at = len(self.shapes) - 1
        return at

    def reads_images(self):
        return any(0 in layer.inputs_at for layer in self.layers)

    def has_images(self):
        return self.reads_images()

    def batch_number(self):
        return self.whole.batches

    def own_steps(self):
        return self.own

    def position(self, epoch, p):
        return super().position(epoch, p) if self.has_images() else 0

    def sum_of(self, q, i, terms):
        grain, width, leaves = self.config["grain"], 1, []
        while width < len(self.uses[q]):
            width *= 2
        for at in range(0, len(terms[q]), grain):
            leaves += [grain_sum([example[i] for example in terms[use][at:at + grain]])
                       for use in self.uses[q]] + [None] * (width - len(self.uses[q]))
        return tree(leaves)

    def clip(self, q, i):
        most = rounded(Fraction(str(self.said.get("weight_clip", 0))))
        w = self.parameters[q][i]
        self.parameters[q][i] = w if not most else most if w > most else -most if w < -most else w


class Graph(Run):
    """A run of several networks and objectives."""

    def __init__(self, config):
        self.config, self.data = config, config["data"]["train"]["made_up"]
        self.examples = [made_up(self.data, i) for i in range(self.data["count"])]
        self.parameters, self.frozen, self.by_rows, self.shards = [], set(), set(), []
        self.l2, self.vectors = {}, {}
        self.networks, self.network_of, self.normed = {}, [], {}
        for network in config["model"]["networks"]:
            self.networks[network["name"]] = list(self.layers_of(network))
            self.network_of += [network["name"]] * (len(self.parameters) - len(self.network_of))
        self.step = self.batches = 0
        self.begin_vectors(self.templates())
        self.objectives = [Objective(self, k) for k in range(len(config["model"]["objectives"]))]
        names = [o["name"] for o in config["model"]["objectives"]]
        self.cycle = [(self.objectives[names.index(name)], n == count - 1)
                      for name, count in config["model"]["schedule"] for n in range(count)]

    def layers_of(self, network):
        shape = tuple(network.get("inputs", [self.config["model"]["input"]])[0])
        for layer in network["layers"]:
            if layer["type"] in ("flatten", "reshape"):
                shape = tuple(layer.get("target_shape", [math.prod(shape)]))
                yield layer, None
                continue
            made = LAYERS[layer["type"]](layer, shape)
            made.narrow, made.frozen, shape = layer.get("dtype") != "float32", False, made.shape
            made.before_activation = layer.get("activation", "linear") != "linear"
            if made.kernel_count:
                self.initialize(layer, made)
            if isinstance(made, BatchNormalization):
                self.declare(layer, made)
            yield layer, made
            if made.before_activation:
                function = ACTIVATIONS[layer["activation"]](None, made.shape)
                function.narrow, function.before_activation = made.narrow, False
                yield layer, function

    def templates(self):
        """Of each layer of the networks what it became, or of a normalization what follows it."""
        made = [made for layers in self.networks.values() for _, made in layers if made]
        return [self.normed.get(id(layer), layer) for layer in made]

    def report(self):
        objective, last = self.cycle[self.step % len(self.cycle)]
        objective.step = self.step
        means = objective.train_step()
        self.batches += objective.reads_images()
        logged = last or self.step in (0, self.config["steps"] - 1)
        objective.own, self.step = objective.own + 1, self.step + 1
        return objective.said_of(means) if logged else None

    @property
    def alive(self):
        return [any(o.alive[q] for o in self.objectives) for q in range(len(self.parameters))]

    def states(self):
        if self.config.get("precision", "float32") != "mixed_float16":
            return b""
        states = [objective.states() for objective in self.objectives]
        scale = struct.calcsize("<IIIQ")
        return b"".join(s[:-scale] for s in states) + b"".join(s[-scale:] for s in states)

    def hashes(self):
        digest = hashlib.sha256(b"".join(struct.pack("<f", v) for p in self.parameters for v in p))
        state = digest.copy()
        for o in self.objectives:
            for name in slot_names(o.config["optimizer"]):
                state.update(b"".join(struct.pack("<f", v) for q in range(len(self.parameters))
                                      if q not in o.frozen for v in o.slots[q][name]))
        state.update(struct.pack("<Q", self.step))
        moving = self.moving(self.templates())
        digest.update(moving)
        state.update(moving + self.states())
        return {"run_identity": identity(self.config, self.examples, []),
                "digest": digest.hexdigest(), "state_hash": state.hexdigest()}


def u32(*values):
    return struct.pack(f"<{len(values)}I", *values)


def layer_entries(number, layer, inputs):
    """{key: value} of what is no constant default; defaults that follow another key are written."""
    kind, out = layer["type"], {}
    if inputs != [number]:
        out["inputs"] = u32(*inputs)
    if layer.get("dtype"):
        out["dtype"] = layer["dtype"].encode()
    kernels = ("conv2d", "conv2d_transpose", "depthwise_conv2d")
    size = {"max_pool2d": "pool_size", "average_pool2d": "pool_size",
            **dict.fromkeys(kernels, "kernel_size")}.get(kind)
    out["type"] = kind.encode()
    if size:
        out[size] = u32(*pair(layer[size]))
        strides = pair(layer.get("strides", 1 if kind in kernels else list(pair(layer[size]))))
        if kind not in kernels or tuple(strides) != (1, 1):
            out["strides"] = u32(*strides)
        if layer.get("padding", "valid") != "valid":
            out["padding"] = layer["padding"].encode()
        if tuple(pair(layer.get("dilation_rate", 1))) != (1, 1):
            out["dilation_rate"] = u32(*pair(layer["dilation_rate"]))
    out.update({key: u32(layer[key]) for key in ("groups", "depth_multiplier")
                if layer.get(key, 1) != 1})
    slope = rounded(Fraction(str(layer.get("negative_slope", 0.3))))
    if slope != rounded(Fraction("0.3")):
        out["negative_slope"] = struct.pack("<f", slope)
    if rounded(Fraction(str(layer.get("alpha", 1)))) != 1.0:
        out["alpha"] = struct.pack("<f", rounded(Fraction(str(layer["alpha"]))))
    if layer.get("approximate"):
        out["approximate"] = u32(1)
    if kind == "zero_padding2d":
        sides = [n for two in map(pair, pair(layer.get("padding", 1))) for n in two]
        if sides != [1, 1, 1, 1]:
            out["padding"] = u32(*sides)
    if kind == "reshape":
        out["target_shape"] = u32(*layer["target_shape"])
    if kind == "time_reduction":
        out["factor"] = u32(layer["factor"])
    if kind in ("batch_normalization", "layer_normalization"):
        for key, default in (("epsilon", "0.001"), ("momentum", "0.99")):
            value = rounded(Fraction(str(layer.get(key, default))))
            if value != rounded(Fraction(default)):
                out[key] = struct.pack("<f", value)
        out.update({key: u32(0) for key in ("center", "scale") if not layer.get(key, True)})
    if not layer.get("trainable", True):
        out["trainable"] = u32(0)
    if layer.get("return_sequences"):
        out["return_sequences"] = u32(1)
    if not layer.get("unit_forget_bias", True):
        out["unit_forget_bias"] = u32(0)
    if kind == "dropout":
        out["rate"] = struct.pack("<f", rounded(Fraction(str(layer["rate"]))))
    if kind == "label_embedding":
        out["units"] = u32(layer["units"])
        if layer.get("embeddings_initializer", "glorot_uniform") != "glorot_uniform":
            out["embeddings_initializer"] = layer["embeddings_initializer"].encode()
    units = {**dict.fromkeys(("dense", "lstm", "gru", "joint"), "units"),
             **dict.fromkeys(kernels, "filters")}.get(kind)
    if units:
        if kind != "depthwise_conv2d":
            out[units] = u32(layer[units])
        if not layer.get("use_bias", True):
            out["use_bias"] = u32(0)
        if layer.get("activation", "linear") != "linear":
            out["activation"] = layer["activation"].encode()
        if layer.get("kernel_initializer", "glorot_uniform") != "glorot_uniform":
            out["kernel_initializer"] = layer["kernel_initializer"].encode()
        if layer.get("kernel_regularizer", {}).get("l2"):
            out["kernel_regularizer.l2"] = struct.pack(
                "<f", rounded(Fraction(str(layer["kernel_regularizer"]["l2"]))))
        if layer.get("spectral_normalization"):
            out["spectral_normalization"] = u32(1)
        if layer.get("kernel_initializer_value"):
            out["kernel_initializer_value"] = struct.pack(
                "<f", rounded(Fraction(str(layer["kernel_initializer_value"]))))
    return {f"model.layer.{number:04}.{key}": value for key, value in out.items()}


def rate_entries(r):
    out, u64 = {}, lambda *values: struct.pack(f"<{len(values)}Q", *values)
    if r.get("type", "constant") != "constant":
        out["type"] = r["type"].encode()
    for key in ("steps", "warmup_steps"):
        if r.get(key):
            out[key] = u64(r[key])
    for key in ("warmup_from", "alpha", "m_mul", "power", "end_learning_rate", "decay_rate"):
        if key in r and (key == "decay_rate" or rate_number(r, key) != rate_number({}, key)):
            out[key] = struct.pack("<f", rate_number(r, key))
    if r.get("t_mul", 2) != 2:
        out["t_mul"] = u32(r["t_mul"])
    if r.get("staircase"):
        out["staircase"] = u32(1)
    if "boundaries" in r:
        out["boundaries"] = u64(*r["boundaries"])
        out["values"] = b"".join(struct.pack("<f", rounded(Fraction(str(v)))) for v in r["values"])
    return {"optimizer.learning_rate_schedule." + key: value for key, value in out.items()}


def optimizer_entries(o):
    out = {"type": o["type"].encode(),
           "learning_rate": struct.pack("<f", rounded(Fraction(str(o["learning_rate"]))))}
    for key, default in defaults_of(o["type"]).items():
        if number_of(o, key) != rounded(Fraction(default)):
            out[key] = struct.pack("<f", number_of(o, key))
    out.update({key: u32(1) for key in ("amsgrad", "centered", "nesterov") if o.get(key)})
    return {**{"optimizer." + key: value for key, value in out.items()},
            **rate_entries(o.get("learning_rate_schedule", {}))}


def labels_of(config, examples):
    """Their bytes, as they lie in a file."""
    most = config["model"].get("labels", 0)
    if not most:
        return bytes(label for _, label in examples)
    return b"".join(struct.pack(">H", frames) + bytes(said) + bytes(most - len(said))
                    for _, (frames, said) in examples)


def identity(config, examples, shards):
    model = config["model"]
    values = b"".join(image for image, _ in examples)
    if model.get("input_type") == "f32":  # made up: what LOAD makes of bytes, as IDX files have it
        values = b"".join(struct.pack(">f", mul(float(b), constant("0x1.010102p-8")))
                          for b in values)
    data = values + labels_of(config, examples)
    entries = {"arithmetic.version": u32(1), "arithmetic.slice_terms": u32(L),
               "batch.global": u32(config["global_batch"]), "batch.grain": u32(config["grain"]),
               "data.count": struct.pack("<Q", len(examples)),
               "data.hash": hashlib.sha256(data).digest(),
               "model.classes": u32(model.get("classes", 0)), "model.input": u32(*model["input"]),
               "seed": struct.pack("<Q", config["seed"])}
    if model.get("labels"):
        entries["model.labels"] = u32(model["labels"])
    if config.get("precision", "float32") != "float32":
        entries["precision"] = config["precision"].encode()
    for key, default in (("initial", 32768), ("growth_factor", 2), ("backoff_factor", 0.5),
                         ("floor", 1)):
        if config.get("loss_scale", {}).get(key, default) != default:
            entries["loss_scale." + key] = struct.pack("<f", config["loss_scale"][key])
    if config.get("loss_scale", {}).get("growth_steps", 2000) != 2000:
        entries["loss_scale.growth_steps"] = u32(config["loss_scale"]["growth_steps"])
    for key, default in (("on_overflow", "skip"), ("type", "dynamic")):
        if config.get("loss_scale", {}).get(key, default) != default:
            entries["loss_scale." + key] = config["loss_scale"][key].encode()
    if config.get("drop_remainder"):
        entries["batch.drop_remainder"] = u32(1)
    if shards:
        ends = struct.pack(f"<{len(shards) - 1}Q", *shards[1:])
        entries["data.shards"] = u32(len(shards) - 1)
        entries["data.shard_ends"] = hashlib.sha256(ends).digest()
    for key, value in config["data"].get("augment", {}).items():
        entries["data.augment." + key] = (
            value.encode() if isinstance(value, str) else u32(*value) if isinstance(value, list)
            else struct.pack("<f", rounded(Fraction(str(value)))))
    for key, value in config["data"].get("normalize", {}).items():
        entries["data.normalize." + key] = struct.pack(
            f"<{len(value)}f", *(rounded(Fraction(str(v))) for v in value))
    if "input_type" in model:
        entries["model.input_type"] = model["input_type"].encode()
    if "input_range" in model:
        entries["model.input_range"] = model["input_range"].encode()
    entries.update(graph_entries(model) if "networks" in model else short_entries(config))
    out = b"lockstep run identity 2"
    for key in sorted(entries):
        out += u32(len(key)) + key.encode() + u32(len(entries[key])) + entries[key]
    return hashlib.sha256(out).hexdigest()


def short_entries(config):
    """Of one network."""
    model, entries, loss = config["model"], optimizer_entries(config["optimizer"]), loss_of(config)
    if loss["type"] != CROSSENTROPY:
        entries["model.loss"] = loss["type"].encode()
    if loss_inputs(config) != [len(model["layers"]), 0][:len(loss_inputs(config))]:
        entries["model.loss.inputs"] = u32(*loss_inputs(config))
    if class_weights(config):
        entries["model.loss.class_weight"] = struct.pack(f"<{model['classes']}f",
                                                         *class_weights(config))
    if loss["type"] in (CROSSENTROPY, BINARY) and loss.get("label_smoothing"):
        entries["model.loss.label_smoothing"] = struct.pack(
            "<f", rounded(Fraction(str(loss["label_smoothing"]))))
    if loss.get("scale", 1) != 1:
        entries["model.loss.scale"] = struct.pack("<f", rounded(Fraction(str(loss["scale"]))))
    for number, layer in enumerate(model["layers"]):
        entries.update(layer_entries(number, layer, inputs_of(config, number)))
    return entries


def graph_entries(model):
    """Of several networks. All take the images or one value."""
    out, number, names = {}, 0, [network["name"] for network in model["networks"]]

    def shape(sizes):
        return u32(*([1] * (3 - len(sizes)) + sizes), int(len(sizes) == 1))
    for n, network in enumerate(model["networks"]):
        taken = network.get("inputs", [model["input"]])
        out.update({f"model.network.{n:04}.input.{i:04}": shape(s) for i, s in enumerate(taken)})
        out[f"model.network.{n:04}.layers"] = u32(len(network["layers"]))
        for layer in network["layers"]:
            out.update(layer_entries(number, layer, [number]))
            number += 1
    for k, o in enumerate(model["objectives"]):
        values = [value["name"] for value in o["values"]]
        numbers = {"images": 0xFFFFFFFF, **{name: v for v, name in enumerate(values)}}
        taken = o["loss"].get("inputs", values[-1:])
        own = {"output": u32(numbers[taken[0]]),
               "trains": u32(sum(1 << names.index(name) for name in o["trains"])),
               **optimizer_entries(o["optimizer"])}
        if len(taken) > 1:
            own["target"] = u32(numbers[taken[1]])
        if o["loss"]["type"] != CROSSENTROPY:
            own["loss"] = o["loss"]["type"].encode()
        if "kind" in o["loss"]:
            own["loss.kind"] = o["loss"]["kind"].encode()
        weights = class_weights({"model": {**model, "loss": o["loss"]}})
        if weights:
            own["loss.class_weight"] = struct.pack(f"<{len(weights)}f", *weights)
        smoothing = "0.25" if "kind" in o["loss"] else "0"
        for key, default in (("label_smoothing", smoothing), ("weight_clip", "0")):
            of = o["loss"] if key == "label_smoothing" else o
            if rounded(Fraction(str(of.get(key, default)))) != rounded(Fraction(default)):
                own["loss." * (of is not o) + key] = struct.pack(
                    "<f", rounded(Fraction(str(of[key]))))
        for v, value in enumerate(o["values"]):
            path, noise = f"value.{v:04}.", value.get("noise")
            if not noise:
                before = u32(v - 1 if v else 0xFFFFFFFF)
                own[path + "inputs"] = u32(*[numbers[name] for name in value["inputs"]]) \
                    if "inputs" in value else before
                own[path + "network"] = u32(names.index(value["network"]))
                continue
            own[path + "noise.type"] = noise["type"].encode()
            own[path + "shape"] = shape(noise["shape"])
            for key, default in (("high", 1), ("low", 0), ("mean", 0), ("stddev", 1)):
                if noise.get(key, default) != default:
                    own[path + "noise." + key] = struct.pack(
                        "<f", rounded(Fraction(str(noise[key]))))
        out.update({f"model.objective.{k:04}." + key: value for key, value in own.items()})
    objectives = [o["name"] for o in model["objectives"]]
    out.update({f"model.schedule.{i:04}": u32(objectives.index(name), steps)
                for i, (name, steps) in enumerate(model["schedule"])})
    return out


# --- the nets -------------------------------------------------------------------------------------

def net(name, shape, layers, optimizer, batch, grain, count, steps, loss=None, is_signed=False,
        is_f32=False,
        data_keys=None, classes=3, **more):
    height, width, channels = shape
    height, width = (data_keys or {}).get("augment", {}).get("crop_from", (height, width))
    data = {"seed": 5, "count": count, "height": height, "width": width, "channels": channels,
            "classes": 3}
    model = {"input": list(shape), "layers": layers, **({"loss": loss} if loss else {})}
    if not loss or loss_of({"model": model})["type"] in (CROSSENTROPY, BINARY):
        model["classes"] = classes
        data["classes"] = classes
    if loss == "transducer":
        model.update(classes=4, labels=3)
    if is_signed:
        model["input_range"] = "signed"
    if is_f32:
        model["input_type"] = "f32"
    return dict(name=name, seed=(7 << 32) + 11, global_batch=batch, grain=grain, steps=steps,
                model=model, optimizer=optimizer,
                data={"train": {"made_up": data}, **(data_keys or {})}, **more)


NETS = [
    # Short last grains in every step, a short last step, the next epoch; the fused pooling.
    net("pooled", (6, 6, 1),
        [{"type": "conv2d", "filters": 3, "kernel_size": 3, "padding": "same",
          "activation": "relu"},
         {"type": "max_pool2d", "pool_size": 2}, {"type": "flatten"},
         {"type": "dense", "units": 5, "activation": "relu"}, {"type": "dense", "units": 3}],
        {"type": "momentum", "learning_rate": 0.1, "momentum": 0.9}, 6, 4, 11, 3),
    # Chains of more than 512 terms in a dense layer; drop_remainder; grains of one example.
    net("long", (23, 23, 1),
        [{"type": "flatten"}, {"type": "dense", "units": 3, "activation": "relu"},
         {"type": "dense", "units": 3, "use_bias": False, "kernel_initializer": "he_uniform"}],
        {"type": "sgd", "learning_rate": 0.01}, 5, 1, 7, 2, drop_remainder=True),
    # Gradients of convolutions through strides, channels, overlapping pools and a relu layer.
    net("stacked", (9, 12, 2),
        [{"type": "conv2d", "filters": 3, "kernel_size": [3, 2], "strides": [1, 2],
          "padding": "same", "use_bias": False, "kernel_initializer": "he_uniform"},
         {"type": "relu"}, {"type": "max_pool2d", "pool_size": 3, "strides": 2, "padding": "same"},
         {"type": "conv2d", "filters": 2, "kernel_size": 2, "activation": "relu"},
         {"type": "flatten"}, {"type": "dense", "units": 3}],
        {"type": "momentum", "learning_rate": 0.05, "momentum": 0.5, "nesterov": True}, 7, 2, 9, 3),
    # Weight gradients in several slices: 23 x 23 outputs are 576 terms an example, 9 x 9 are 100.
    # The first kernel is zero at first, so that every maximum of the first step is a tie.
    net("sliced", (24, 24, 1),
        [{"type": "conv2d", "filters": 1, "kernel_size": 2, "kernel_initializer": "zeros"},
         {"type": "max_pool2d", "pool_size": 2},
         {"type": "conv2d", "filters": 2, "kernel_size": 3},
         {"type": "max_pool2d", "pool_size": 2}, {"type": "flatten"},
         {"type": "dense", "units": 3}],
        {"type": "sgd", "learning_rate": 0.1}, 8, 8, 15, 2),
    # Layers whose outputs are one number an example: of one cell and channel, and of one unit.
    net("narrow", (5, 4, 1),
        [{"type": "conv2d", "filters": 1, "kernel_size": [4, 3]},
         {"type": "max_pool2d", "pool_size": 2}, {"type": "flatten"},
         {"type": "dense", "units": 4}, {"type": "dense", "units": 1},
         {"type": "dense", "units": 3}],
        {"type": "sgd", "learning_rate": 0.1}, 7, 2, 11, 3),
    # Shards of 6 and 5 examples: the second step has 2 and 1 left for 2 grains of 2 in each. In the
    # fourth the missing ones, zeros, are taken for class 0, which must not count as correct.
    net("sharded", (6, 6, 1),
        [{"type": "conv2d", "filters": 3, "kernel_size": 3},
         {"type": "max_pool2d", "pool_size": 2}, {"type": "flatten"},
         {"type": "dense", "units": 5, "activation": "relu"}, {"type": "dense", "units": 3}],
        {"type": "momentum", "learning_rate": 0.2, "momentum": 0.9}, 8, 2, 11, 4, shards=2),
    # Sums: a residual block whose input has three users, what is added to itself, ReLU around them.
    net("residual", (5, 4, 1),
        [{"type": "conv2d", "name": "stem", "filters": 4, "kernel_size": 2, "padding": "same",
          "activation": "relu"},
         {"type": "conv2d", "name": "a", "filters": 4, "kernel_size": 3, "padding": "same"},
         {"type": "add", "name": "sum", "inputs": ["a", "stem"]}, {"type": "relu"},
         {"type": "max_pool2d", "name": "side", "inputs": ["stem"], "pool_size": 2, "strides": 1,
          "padding": "same"},
         {"type": "add", "name": "both", "inputs": ["relu_3", "side"]}, {"type": "flatten"},
         {"type": "dense", "name": "b", "units": 3},
         {"type": "add", "name": "twice", "inputs": ["b", "b"]}],
        {"type": "sgd", "learning_rate": 0.1}, 6, 2, 11, 3),
    # Averages: windows over the border, overlapping ones, and a whole image of 24 x 24 cells, which
    # is more than a slice.
    net("averages", (25, 25, 1),
        [{"type": "average_pool2d", "pool_size": 2, "strides": 1},
         {"type": "conv2d", "name": "a", "filters": 2, "kernel_size": 3, "padding": "same",
          "activation": "tanh"},
         {"type": "global_average_pool2d", "name": "whole"},
         {"type": "average_pool2d", "inputs": ["a"], "pool_size": [9, 8], "padding": "same"},
         {"type": "average_pool2d", "pool_size": 2, "strides": 1, "padding": "same"},
         {"type": "flatten"}, {"type": "dense", "name": "b", "units": 2},
         {"type": "add", "inputs": ["b", "whole"]}, {"type": "dense", "units": 3}],
        {"type": "sgd", "learning_rate": 0.5}, 3, 2, 5, 2),
    # What puts values elsewhere: images and rows beside each other, one beside itself; zeros around
    # the images and within; rows as images.
    net("places", (5, 4, 2),
        [{"type": "zero_padding2d", "name": "frame", "padding": [[0, 2], [1, 0]]},
         {"type": "conv2d", "name": "a", "filters": 3, "kernel_size": 3, "activation": "relu"},
         {"type": "concatenate", "name": "twice", "inputs": ["a", "a"]},
         {"type": "zero_padding2d", "name": "ring"},
         {"type": "conv2d", "name": "b", "filters": 2, "kernel_size": 3, "activation": "tanh"},
         {"type": "concatenate", "name": "both", "inputs": ["b", "a"]},
         {"type": "reshape", "name": "seen", "target_shape": [3, 5, 5]},
         {"type": "zero_padding2d", "name": "sides", "padding": [0, 2]},
         {"type": "max_pool2d", "pool_size": [1, 3], "strides": 2},
         {"type": "reshape", "name": "row", "target_shape": [40]},
         {"type": "dense", "name": "c", "units": 4},
         {"type": "concatenate", "name": "rows", "inputs": ["row", "c"]},
         {"type": "dense", "units": 3}],
        {"type": "momentum", "learning_rate": 0.1}, 5, 2, 7, 3),
    # Transposed convolutions: windows that overlap, that leave rows to nobody, of two slices, and
    # images of more terms than a slice; a grain of several.
    net("transposed", (3, 2, 2),
        [{"type": "conv2d_transpose", "filters": 3, "kernel_size": [4, 3], "strides": 2,
          "padding": "same", "activation": "relu"},
         {"type": "conv2d_transpose", "filters": 2, "kernel_size": 2, "strides": [1, 3],
          "use_bias": False},
         {"type": "flatten"}, {"type": "dense", "units": 3}],
        {"type": "sgd", "learning_rate": 0.1}, 5, 4, 7, 2),
    net("transposed_slices", (1, 1, 1),
        [{"type": "conv2d_transpose", "filters": 60, "kernel_size": 2, "strides": 2,
          "kernel_initializer": "he_uniform"},
         {"type": "conv2d_transpose", "filters": 1, "kernel_size": 3, "padding": "same"},
         {"type": "conv2d_transpose", "filters": 1, "kernel_size": 12, "strides": [12, 11]},
         {"type": "max_pool2d", "pool_size": [12, 8]},
         {"type": "flatten"}, {"type": "dense", "units": 3}],
        {"type": "sgd", "learning_rate": 0.1}, 2, 2, 3, 2),
    # Groups of several channels and of one, windows that are spread out; slices that begin within
    # a tap of 300 channels; kernels of several slices an example.
    net("grouped", (5, 6, 2),
        [{"type": "conv2d", "filters": 4, "kernel_size": [2, 3], "groups": 2, "padding": "same",
          "activation": "relu"},
         {"type": "depthwise_conv2d", "kernel_size": 2, "depth_multiplier": 3,
          "dilation_rate": [1, 2], "padding": "same", "kernel_initializer": "orthogonal"},
         {"type": "conv2d", "filters": 3, "kernel_size": 2, "dilation_rate": 2, "groups": 3,
          "use_bias": False, "activation": "tanh"},
         {"type": "depthwise_conv2d", "kernel_size": [2, 1], "strides": 2, "padding": "same"},
         {"type": "flatten"}, {"type": "dense", "units": 3}],
        {"type": "sgd", "learning_rate": 0.1}, 5, 4, 7, 2),
    net("grouped_slices", (24, 23, 1),
        [{"type": "depthwise_conv2d", "kernel_size": 2, "padding": "same",
          "kernel_initializer": "he_uniform"},
         {"type": "max_pool2d", "pool_size": [20, 19]},
         {"type": "flatten"}, {"type": "dense", "units": 600},
         {"type": "reshape", "target_shape": [1, 2, 300]},
         {"type": "conv2d", "filters": 2, "kernel_size": [1, 2], "dilation_rate": [2, 1]},
         {"type": "flatten"}, {"type": "dense", "units": 3}],
        {"type": "sgd", "learning_rate": 0.1}, 3, 2, 3, 2),
    # The smooth activations and relu6, as layers and as activations.
    net("smooth", (4, 4, 1),
        [{"type": "conv2d", "filters": 3, "kernel_size": 2, "activation": "gelu"},
         {"type": "gelu", "approximate": True}, {"type": "swish"},
         {"type": "conv2d", "filters": 2, "kernel_size": 2, "activation": "swish"},
         {"type": "elu", "alpha": 0.3}, {"type": "softplus"}, {"type": "relu6"},
         {"type": "flatten"}, {"type": "dense", "units": 4, "activation": "elu"},
         {"type": "gelu"},
         {"type": "dense", "units": 3, "activation": "softplus"}, {"type": "dense", "units": 3}],
        {"type": "momentum", "learning_rate": 0.5}, 4, 2, 6, 2),
    # tanh, sigmoid and leaky_relu, as layers and as activations.
    net("curves", (4, 4, 1),
        [{"type": "conv2d", "filters": 3, "kernel_size": 2, "activation": "tanh"},
         {"type": "leaky_relu", "negative_slope": 0.125}, {"type": "flatten"},
         {"type": "dense", "units": 4, "activation": "leaky_relu"}, {"type": "sigmoid"},
         {"type": "dense", "units": 4, "activation": "sigmoid"}, {"type": "leaky_relu"},
         {"type": "dense", "units": 4}, {"type": "tanh"}, {"type": "dense", "units": 3}],
        {"type": "momentum", "learning_rate": 0.2, "momentum": 0.9}, 6, 2, 11, 3),
    # What steps leave out: by the layer's number, the place in the batch, the step.
    net("dropped", (5, 4, 1),
        [{"type": "conv2d", "filters": 3, "kernel_size": 2, "activation": "tanh"},
         {"type": "dropout", "rate": 0.3}, {"type": "flatten"},
         {"type": "dense", "units": 7}, {"type": "dropout", "rate": 0.5},
         {"type": "dense", "units": 3}],
        {"type": "momentum", "learning_rate": 0.2, "momentum": 0.9}, 6, 2, 11, 5),
    # Images moved, mirrored, adjusted and cut by the step and the place; two channels normalised.
    net("augmented", (5, 4, 2),
        [{"type": "flatten"}, {"type": "dense", "units": 3}],
        {"type": "momentum", "learning_rate": 0.2, "momentum": 0.9}, 6, 2, 11, 5,
        data_keys={"augment": {"shift": [2, 1], "flip": "horizontal", "cutout": [2, 3],
                               "brightness": 0.25, "contrast": 0.3},
                   "normalize": {"mean": [0.3, 0.45], "deviation": [0.2, 0.31]}}),
    net("cropped", (4, 3, 2),
        [{"type": "flatten"}, {"type": "dense", "units": 3}],
        {"type": "sgd", "learning_rate": 0.2}, 6, 2, 11, 3,
        data_keys={"augment": {"crop_from": [7, 3], "shift": [2, 0], "flip": "horizontal"}}),
    net("cropped-floats", (2, 3, 1),
        [{"type": "flatten"}, {"type": "dense", "units": 3}],
        {"type": "sgd", "learning_rate": 0.2}, 6, 2, 11, 3, is_f32=True,
        data_keys={"augment": {"crop_from": [5, 6]}}),
    net("moved", (4, 6, 1),
        [{"type": "flatten"}, {"type": "dense", "units": 3}],
        {"type": "sgd", "learning_rate": 0.2}, 4, 1, 7, 3, is_signed=True,
        data_keys={"augment": {"shift": [1, 3], "padding": "edge"}}),
    # Floats, whose middle is 0.
    net("floats", (5, 4, 2),
        [{"type": "flatten"}, {"type": "dense", "units": 3}],
        {"type": "sgd", "learning_rate": 0.2}, 6, 2, 11, 3, is_f32=True,
        data_keys={"augment": {"shift": [2, 1], "contrast": 0.3},
                   "normalize": {"mean": [0.3, 0.45], "deviation": [0.2, 0.31]}}),
    # An autoencoder of its input, 529 values and so two slices, with positions without an example.
    net("autoencoder", (23, 23, 1),
        [{"type": "flatten"}, {"type": "dense", "units": 1, "activation": "tanh"},
         {"type": "dense", "units": 529, "activation": "sigmoid"}],
        {"type": "sgd", "learning_rate": 2.5}, 4, 1, 7, 2, shards=2, loss="mean_squared_error"),
    # Two tensors that both learn, one of them a layer's input too.
    net("distance", (4, 4, 1),
        [{"type": "flatten", "name": "f"}, {"type": "dense", "name": "a", "units": 5},
         {"type": "dense", "name": "b", "units": 5, "activation": "relu"},
         {"type": "dense", "name": "c", "units": 4, "activation": "tanh"},
         {"type": "dense", "name": "d", "units": 5}],
        {"type": "momentum", "learning_rate": 0.2, "momentum": 0.9}, 6, 2, 11, 3,
        loss={"type": "mean_squared_error", "inputs": ["a", "d"]}),
    # Batch normalization: of images with odd sizes, of rows, without gamma and beta, by two layers;
    # a layer that is frozen, and what passes through it; short grains, and the second epoch.
    net("normed", (5, 4, 1),
        [{"type": "conv2d", "filters": 3, "kernel_size": 2, "padding": "same", "use_bias": False},
         {"type": "batch_normalization", "momentum": 0.9}, {"type": "relu"},
         {"type": "batch_normalization", "scale": False, "epsilon": 0.01},
         {"type": "dropout", "rate": 0.25}, {"type": "flatten"},
         {"type": "dense", "units": 4, "trainable": False},
         {"type": "batch_normalization", "center": False, "trainable": False},
         {"type": "dense", "units": 3}],
        {"type": "momentum", "learning_rate": 0.2, "momentum": 0.9}, 6, 4, 11, 4),
    # Of the input itself, in several slices; of rows; positions without an example.
    net("normed_slices", (23, 23, 1),
        [{"type": "batch_normalization"}, {"type": "flatten"}, {"type": "dense", "units": 3},
         {"type": "batch_normalization", "scale": False, "center": False}],
        {"type": "sgd", "learning_rate": 0.1}, 4, 2, 7, 2, shards=2),
    # Layer normalization: of cells, more of them than a slice has terms, with beta alone where
    # nothing before it learns; of rows; of one that stays as it is; of more values than a slice.
    net("cells", (5, 4, 2),
        [{"type": "layer_normalization", "scale": False},
         {"type": "conv2d", "filters": 3, "kernel_size": 2, "padding": "same"},
         {"type": "layer_normalization"}, {"type": "relu"},
         {"type": "layer_normalization", "trainable": False}, {"type": "flatten"},
         {"type": "dense", "units": 4}, {"type": "layer_normalization", "epsilon": 0.01},
         {"type": "dense", "units": 3}],
        {"type": "momentum", "learning_rate": 0.2, "momentum": 0.9}, 6, 4, 11, 3),
    net("cells_slices", (23, 23, 1),
        [{"type": "conv2d", "filters": 2, "kernel_size": 1},
         {"type": "layer_normalization"}, {"type": "flatten"},
         {"type": "layer_normalization", "center": False}, {"type": "dense", "units": 3}],
        {"type": "sgd", "learning_rate": 0.1}, 4, 2, 7, 2, shards=2),
    # Labels of which a share is spread over the classes.
    net("smoothed", (4, 4, 1), [{"type": "flatten"}, {"type": "dense", "units": 3}],
        {"type": "sgd", "learning_rate": 0.5}, 6, 2, 11, 3, shards=3,
        loss={"type": "sparse_categorical_crossentropy", "label_smoothing": 0.1}),
    # Classes that count more, less and nothing: all of them said, and some.
    net("weighted", (4, 4, 1), [{"type": "flatten"}, {"type": "dense", "units": 3}],
        {"type": "sgd", "learning_rate": 0.5}, 6, 2, 11, 3, shards=3,
        loss={"type": "sparse_categorical_crossentropy", "label_smoothing": 0.1,
              "class_weight": [0.3, 2.7, 1]}),
    net("weighted-mixed", (4, 4, 1), [{"type": "flatten"}, {"type": "dense", "units": 3}],
        {"type": "adam_keras", "learning_rate": 0.05}, 6, 4, 11, 4, precision="mixed_float16",
        loss_scale={"initial": 1 << 17, "growth_steps": 2},
        loss={"type": "sparse_categorical_crossentropy", "class_weight": {"1": 0, "2": 3.3}}),
    net("weighted-mixed-shards", (4, 4, 1), [{"type": "flatten"}, {"type": "dense", "units": 3}],
        {"type": "adam_keras", "learning_rate": 0.05}, 6, 2, 10, 4, precision="mixed_float16",
        shards=3, loss_scale={"initial": 1 << 10},
        loss={"type": "sparse_categorical_crossentropy", "class_weight": {"1": 0, "2": 3.3}}),
    # Sigmoids: one alone, where zeros in the place of missing examples are taken for class 0; one a
    # class, with a share of the labels at a half.
    net("binary", (4, 4, 1), [{"type": "flatten"}, {"type": "dense", "units": 1}],
        {"type": "sgd", "learning_rate": 0.5}, 6, 1, 11, 4, shards=3, classes=2,
        loss="binary_crossentropy"),
    net("binaries", (4, 4, 1), [{"type": "flatten"}, {"type": "dense", "units": 3}],
        {"type": "sgd", "learning_rate": 0.5}, 6, 4, 11, 3,
        loss={"type": "binary_crossentropy", "label_smoothing": 0.2}),
    net("score", (5, 4, 1),
        [{"type": "conv2d", "filters": 2, "kernel_size": 2, "activation": "tanh"},
         {"type": "flatten"}, {"type": "dense", "units": 7, "activation": "sigmoid"}],
        {"type": "sgd", "learning_rate": 0.5}, 6, 4, 11, 3, loss={"type": "mean", "scale": -1.5}),
    # Sequences: dense layers over the steps, states of every step and of the last; a grain whose
    # rows are two slices; an orthogonal kernel that is high.
    net("sequences", (5, 4, 1),
        [{"type": "reshape", "target_shape": [5, 4]},
         {"type": "dense", "units": 3, "activation": "relu"},
         {"type": "lstm", "units": 3, "return_sequences": True},
         {"type": "lstm", "units": 2, "unit_forget_bias": False},
         {"type": "dense", "units": 3}],
        {"type": "momentum", "learning_rate": 0.5}, 6, 4, 11, 3),
    net("long_sequences", (23, 25, 1),
        [{"type": "reshape", "target_shape": [575, 1]},
         {"type": "dense", "units": 1, "use_bias": False},
         {"type": "reshape", "target_shape": [5, 115]},
         {"type": "dense", "units": 2, "kernel_initializer": "orthogonal"},
         {"type": "lstm", "units": 2, "use_bias": False}, {"type": "dense", "units": 3}],
        {"type": "sgd", "learning_rate": 0.5}, 4, 2, 5, 2, shards=2),
    net("gated_sequences", (5, 4, 1),
        [{"type": "reshape", "target_shape": [5, 4]},
         {"type": "gru", "units": 3, "return_sequences": True},
         {"type": "gru", "units": 2, "return_sequences": True, "use_bias": False},
         {"type": "lstm", "units": 2, "return_sequences": True}, {"type": "gru", "units": 2},
         {"type": "dense", "units": 3}],
        {"type": "momentum", "learning_rate": 0.5}, 6, 4, 11, 3),
    # Frames as one: as many as there are, and with one and three of zeros behind them.
    net("reduced_sequences", (5, 4, 1),
        [{"type": "reshape", "target_shape": [5, 4]}, {"type": "time_reduction", "factor": 2},
         {"type": "gru", "units": 2, "return_sequences": True},
         {"type": "time_reduction", "factor": 3}, {"type": "dense", "units": 3, "name": "one"},
         {"type": "reshape", "target_shape": [5, 4], "inputs": ["input"]},
         {"type": "dense", "units": 1}, {"type": "time_reduction", "factor": 4},
         {"type": "flatten"}, {"type": "dense", "units": 3, "name": "two"},
         {"type": "reshape", "target_shape": [3], "inputs": ["one"]},
         {"type": "add", "inputs": ["two", "reshape_10"]}, {"type": "dense", "units": 3}],
        {"type": "momentum", "learning_rate": 0.5}, 6, 4, 11, 3),
    # Bytes from -1 to 1, and a position without an example, which stays zero.
    net("signed", (3, 3, 1), [{"type": "flatten"}, {"type": "dense", "units": 3}],
        {"type": "sgd", "learning_rate": 0.5}, 4, 1, 7, 3, shards=2, is_signed=True),
]

# Each initializer: of kernels that are high, wide, one vector; by its own number and another.
STARTS = [("glorot_normal", 0), ("he_normal", 0), ("lecun_uniform", 0), ("lecun_normal", 0),
          ("truncated_normal", 0.25), ("random_normal", 0), ("random_uniform", 0.5),
          ("orthogonal", 0), ("orthogonal", 1.5), ("constant", -0.125), ("ones", 0),
          ("orthogonal", 0.5)]
NETS += [net("starts", (3, 3, 1), [
    {"type": "conv2d", "filters": 2, "kernel_size": 2, "kernel_initializer": "orthogonal",
     "kernel_initializer_value": 0.75}, {"type": "flatten"}] + [
         {"type": "dense", "units": 4 + n % 3, "activation": "tanh", "kernel_initializer": kind,
          **({"kernel_initializer_value": value} if value else {})}
         for n, (kind, value) in enumerate(STARTS)] + [
             {"type": "dense", "units": 3, "kernel_initializer": "orthogonal"}],
             {"type": "sgd", "learning_rate": 0.5}, 4, 2, 6, 2)]

# Each optimizer and each rate schedule, on a net of one hidden layer.
OPTIMIZERS = [
    dict(type="sgd", clipvalue=0.0625, learning_rate_schedule=dict(
        type="piecewise", boundaries=[1, 2], values=[0.25, 0.0625])),
    dict(type="momentum", clipvalue=0.125, nesterov=True, learning_rate_schedule=dict(
        type="exponential", steps=3, decay_rate=0.3)),
    dict(type="momentum_keras", weight_decay=0.1, nesterov=True, learning_rate_schedule=dict(
        type="exponential", steps=2, decay_rate=0.3, staircase=True)),
    dict(type="rmsprop_tf1", momentum=0.5, rho=0.7, learning_rate_schedule=dict(
        type="polynomial", steps=4, power=1.5, end_learning_rate=0.01)),
    dict(type="rmsprop_keras", momentum=0.3, centered=True, weight_decay=0.01, epsilon=1e-5,
         learning_rate_schedule=dict(type="cosine", steps=5, warmup_steps=2, warmup_from=0.01)),
    dict(type="adam_tf1", beta_1=0.5, learning_rate_schedule=dict(
        type="cosine_restarts", steps=1, t_mul=3, m_mul=0.7, alpha=0.1)),
    dict(type="adam_keras", amsgrad=True, weight_decay=0.1, beta_2=0.9,
         learning_rate_schedule=dict(type="constant", warmup_steps=3)),
    dict(type="adam_torch", amsgrad=True, weight_decay=0.1),
    dict(type="adamw_torch", clipvalue=0.03125, learning_rate_schedule=dict(
        type="cosine_restarts", steps=3)),
    dict(type="lars_tf", eta=0.3, weight_decay=0.1, nesterov=True, learning_rate_schedule=dict(
        type="polynomial", steps=4)),
    dict(type="lamb_keras", weight_decay=0.1, clipvalue=0.25, beta_2=0.9),
    dict(type="sgd", clipnorm=0.125),
    dict(type="adam_keras", global_clipnorm=0.125),
    dict(type="sgd", weight_average=0.7),
    dict(type="adam_torch", amsgrad=True, weight_average=0.9, clipnorm=0.125),
]
NETS += [
    net(o["type"] + "".join("-" + key for key in ("clipnorm", "global_clipnorm",
                                                        "weight_average") if key in o),
        (2, 2, 1),
        [{"type": "flatten"}, {"type": "dense", "units": 2, "activation": "sigmoid"},
         {"type": "dense", "units": 3}], dict(o, learning_rate=0.125), 4, 2, 7, 5)
    for o in OPTIMIZERS]

# Mixed precision: pools whose winners tie once they are rounded, odd rows, a layer in fp32, several
# users, activations of their own and of others; overflows that are skipped, and computed again.
MIXED_POOLED = [
    {"type": "conv2d", "filters": 4, "kernel_size": 2, "activation": "relu",
     "kernel_initializer": "he_uniform"},
    {"type": "max_pool2d", "pool_size": 2},
    {"type": "conv2d", "filters": 4, "kernel_size": 2}, {"type": "relu"},
    {"type": "max_pool2d", "pool_size": 2},
    {"type": "flatten"}, {"type": "dense", "units": 5, "activation": "tanh"},
    {"type": "dense", "units": 3}]
MIXED_GRAPH = [
    {"type": "flatten"}, {"type": "dense", "units": 4, "activation": "sigmoid", "name": "a"},
    {"type": "dense", "units": 4, "name": "b", "dtype": "float32", "activation": "relu"},
    {"type": "add", "inputs": ["a", "b"]}, {"type": "leaky_relu"},
    {"type": "dense", "units": 4, "name": "c"}, {"type": "add", "inputs": ["c", "a"]},
    {"type": "dropout", "rate": 0.25}, {"type": "dense", "units": 3}]
# What has x or y of 16 bits behind it, or before it, or a value in fp32 inside of its layer.
MIXED_SMOOTH = [
    {"type": "conv2d_transpose", "filters": 3, "kernel_size": 2, "strides": 2,
     "activation": "relu"},
    {"type": "conv2d_transpose", "filters": 2, "kernel_size": 2, "activation": "gelu"},
    {"type": "relu6"}, {"type": "flatten"}, {"type": "dense", "units": 5, "activation": "elu"},
    {"type": "softplus"}, {"type": "dense", "units": 4, "activation": "swish", "dtype": "float32"},
    {"type": "gelu", "approximate": True}, {"type": "dense", "units": 3}]
# Norms over grains and cells, their sums over examples of a last batch that has less; groups.
MIXED_NORMED = [
    {"type": "conv2d", "filters": 4, "kernel_size": 2, "groups": 2, "activation": "relu"},
    {"type": "batch_normalization", "momentum": 0.5}, {"type": "relu"},
    {"type": "layer_normalization"},
    {"type": "depthwise_conv2d", "kernel_size": 2, "dilation_rate": 2, "depth_multiplier": 2},
    {"type": "tanh"}, {"type": "flatten"}, {"type": "dense", "units": 4, "use_bias": False},
    {"type": "batch_normalization", "dtype": "float32"}, {"type": "relu"},
    {"type": "dense", "units": 3}]
# States that go from step to step, rounded at each; of the last layer but for the loss.
MIXED_RECURRENT = [
    {"type": "reshape", "target_shape": [4, 3]},
    {"type": "dense", "units": 3, "activation": "relu"},
    {"type": "lstm", "units": 2, "return_sequences": True},
    {"type": "lstm", "units": 2, "return_sequences": True, "dtype": "float32"},
    {"type": "time_reduction", "factor": 3},
    {"type": "layer_normalization"}, {"type": "lstm", "units": 3}]
MIXED_GATED = [
    {"type": "reshape", "target_shape": [4, 3]},
    {"type": "gru", "units": 2, "return_sequences": True},
    {"type": "gru", "units": 2, "return_sequences": True, "dtype": "float32"},
    {"type": "gru", "units": 3}]
MOMENTUM = {"type": "momentum", "learning_rate": 0.1, "momentum": 0.9}
ADAM = {"type": "adam_keras", "learning_rate": 0.05}
NETS += [
    net("mixed-pooled", (8, 8, 1), MIXED_POOLED, MOMENTUM, 6, 4, 11, 3, precision="mixed_bfloat16"),
    net("mixed-graph", (3, 3, 1), MIXED_GRAPH, MOMENTUM, 6, 2, 11, 3, precision="mixed_bfloat16"),
    net("mixed-skip", (8, 8, 1), MIXED_POOLED, ADAM, 6, 4, 11, 7, precision="mixed_float16",
        loss_scale={"initial": 1 << 18, "growth_steps": 2}),
    net("mixed-averaged", (3, 2, 1), MIXED_SMOOTH, dict(ADAM, weight_average=0.5), 6, 4, 11, 5,
        precision="mixed_float16", loss_scale={"initial": 1 << 18, "growth_steps": 2}),
    net("mixed-replay", (3, 3, 1), MIXED_GRAPH, ADAM, 6, 2, 11, 4, precision="mixed_float16",
        loss_scale={"initial": 1 << 20, "growth_steps": 1, "growth_factor": 4,
                    "backoff_factor": 0.25, "on_overflow": "replay"}),
    net("mixed-smooth", (3, 2, 1), MIXED_SMOOTH, MOMENTUM, 6, 2, 11, 3, precision="mixed_bfloat16"),
    net("mixed-smooth-skip", (3, 2, 1), MIXED_SMOOTH, ADAM, 6, 4, 11, 4, precision="mixed_float16",
        loss_scale={"initial": 1 << 18, "growth_steps": 2}),
    net("mixed-static", (3, 3, 1), MIXED_GRAPH, ADAM, 6, 2, 11, 2, precision="mixed_float16",
        loss_scale={"initial": 256, "type": "static"}),
    net("mixed-normed", (4, 4, 2), MIXED_NORMED, MOMENTUM, 8, 4, 11, 3,
        precision="mixed_bfloat16"),
    net("mixed-normed-skip", (4, 4, 2), MIXED_NORMED, ADAM, 8, 4, 11, 8,
        precision="mixed_float16", loss_scale={"initial": 1 << 12, "growth_steps": 2}),
    net("mixed-recurrent", (4, 3, 1), MIXED_RECURRENT, MOMENTUM, 6, 2, 11, 3,
        precision="mixed_bfloat16"),
    net("mixed-recurrent-replay", (4, 3, 1), MIXED_RECURRENT, ADAM, 6, 4, 11, 3,
        precision="mixed_float16",
        loss_scale={"initial": 1 << 24, "growth_steps": 1, "on_overflow": "replay"}),
    net("mixed-gated", (4, 3, 1), MIXED_GATED, MOMENTUM, 6, 2, 11, 3,
        precision="mixed_bfloat16"),
    net("mixed-gated-replay", (4, 3, 1), MIXED_GATED, ADAM, 6, 4, 11, 3,
        precision="mixed_float16",
        loss_scale={"initial": 1 << 24, "growth_steps": 1, "on_overflow": "replay"}),
    net("mixed-sharded", (3, 3, 1), MIXED_GRAPH, MOMENTUM, 6, 1, 10, 4, precision="mixed_float16",
        shards=3),
]
# A kernel of 2.8 slices, none of whose borders is a row's.
NETS += [net("slices", (25, 19, 1), [{"type": "flatten"}, {"type": "dense", "units": 3}],
             {"type": "lars_tf", "learning_rate": 0.5, "eta": 0.1}, 4, 2, 7, 2)]

# Regularizers: of convolutions, of the kernel of an lstm alone, of a kernel of 2.8 slices; of one
# that is not trained none; beside decay, before each kind of clipping, and of fp32 weights.
def with_l2(layers, *values):
    """Layers with these in turn, None: without one."""
    return [dict(layer, kernel_regularizer={"l2": l2}) if l2 is not None else layer
            for layer, l2 in zip(layers, values)] + layers[len(values):]


REGULARIZED = with_l2(
    [{"type": "conv2d", "filters": 2, "kernel_size": 2, "activation": "tanh"},
     {"type": "depthwise_conv2d", "kernel_size": 2, "use_bias": False},
     {"type": "conv2d_transpose", "filters": 2, "kernel_size": 2},
     {"type": "conv2d", "filters": 2, "kernel_size": 1, "trainable": False},
     {"type": "flatten"}, {"type": "dense", "units": 4, "activation": "sigmoid"},
     {"type": "dense", "units": 3}],
    0.01, 0.25, 0.125, 0.5, None, 0.0625)
NETS += [
    net("regularized", (4, 4, 1), REGULARIZED, dict(MOMENTUM, clipvalue=0.125), 6, 4, 11, 3),
    net("regularized-slices", (25, 19, 1), with_l2(
        [{"type": "flatten"}, {"type": "dense", "units": 3}], None, 0.03),
        {"type": "lars_tf", "learning_rate": 0.5, "eta": 0.1, "weight_decay": 0.1}, 4, 2, 7, 2),
    net("regularized-clipnorm", (4, 4, 1), REGULARIZED, dict(ADAM, clipnorm=0.0625), 6, 4, 11, 3),
    net("regularized-global", (4, 4, 1), REGULARIZED, {
        "type": "adam_torch", "learning_rate": 0.05, "weight_decay": 0.1,
        "global_clipnorm": 0.125}, 6, 2, 11, 3, shards=3),
    net("regularized-recurrent", (5, 4, 1), with_l2(
        [{"type": "reshape", "target_shape": [5, 4]}, {"type": "lstm", "units": 2},
         {"type": "dense", "units": 3}], None, 0.25),
        {"type": "lamb_keras", "learning_rate": 0.05}, 6, 4, 11, 3),
    net("regularized-mixed", (8, 8, 1), with_l2(MIXED_POOLED, 0.25, None, 0.03), ADAM, 6, 4, 11, 5,
        precision="mixed_float16", loss_scale={"initial": 1 << 18, "growth_steps": 2}),
]

# A transducer: the shortest and the longest of both, frames of two rows, a prediction network that
# recurs; and grains of more than one slice of cells.
TRANSDUCER = [
    {"type": "reshape", "target_shape": [5, 4]},
    {"type": "lstm", "units": 3, "return_sequences": True},
    {"type": "dense", "units": 2, "name": "enc"}, {"type": "label_embedding", "units": 2},
    {"type": "lstm", "units": 2, "return_sequences": True, "name": "pred"},
    {"type": "joint", "units": 4, "inputs": ["enc", "pred"]}]
LONG = [
    {"type": "reshape", "target_shape": [60, 1]}, {"type": "dense", "units": 2, "name": "enc"},
    {"type": "label_embedding", "units": 2, "name": "said"},
    {"type": "joint", "units": 4, "inputs": ["enc", "said"], "use_bias": False}]
SAID = [(10, [1, 2, 3]), (1, []), (9, [2]), (4, [3, 3, 1]), (10, []), (1, [2, 1, 3]), (6, [1, 1])]
SAID_LONG = [(60, [1]), (2, [3, 2]), (31, []), (3, [1, 3, 2]), (59, [2])]
NETS += [net("transducer", (10, 2, 1), TRANSDUCER, ADAM, 4, 2, 7, 3, "transducer", sequences=SAID),
         net("mixed-transducer", (10, 2, 1), TRANSDUCER, ADAM, 4, 2, 7, 3, "transducer",
             sequences=SAID, precision="mixed_bfloat16"),
         net("mixed-transducer-skip", (10, 2, 1), TRANSDUCER, ADAM, 4, 2, 7, 5, "transducer",
             sequences=SAID, precision="mixed_float16",
             loss_scale={"initial": 1 << 18, "growth_steps": 1}),
         net("transducer-sliced", (60, 1, 1), LONG, MOMENTUM, 4, 4, 5, 2, "transducer",
             sequences=SAID_LONG)]

# A generator and a discriminator: noise, scores of two uses whose images have 16 bits in one and 32
# in the other, batch normalisation, clipped weights; each pair of losses.
MAKER = [
    {"type": "dense", "units": 8, "use_bias": False}, {"type": "batch_normalization"},
    {"type": "relu"}, {"type": "reshape", "target_shape": [2, 2, 2]},
    {"type": "conv2d_transpose", "filters": 1, "kernel_size": 3, "strides": 2, "padding": "same",
     "activation": "tanh"}]
WIDE_MAKER = MAKER[:-1] + [dict(MAKER[-1], dtype="float32")]
SCORER = [
    {"type": "conv2d", "filters": 2, "kernel_size": 2, "strides": 2, "activation": "leaky_relu"},
    {"type": "flatten"}, {"type": "dense", "units": 3, "activation": "relu"},
    {"type": "dense", "units": 2, "use_bias": False}]


def gan(name, kind, maker, optimizer, steps, cycle=(2, 1), noise="normal", scorer=None, **more):
    clip = {key: more.pop(key) for key in ["weight_clip"] if key in more}
    noise = {"name": "z", "noise": {"type": noise, "shape": [3]}}
    made = [noise, {"name": "made", "network": "generator", "inputs": ["z"]},
            {"name": "fake", "network": "discriminator", "inputs": ["made"]}]
    real = {"name": "real", "network": "discriminator", "inputs": ["images"]}
    both = {"type": "gan_discriminator", "kind": kind, "inputs": ["real", "fake"]}
    model = {"input": [4, 4, 1], "input_range": "signed",
             "networks": [{"name": "generator", "inputs": [[3]], "layers": maker},
                          {"name": "discriminator", "layers": scorer or SCORER}],
             "objectives": [
                 {"name": "generator", "values": made, "trains": ["generator"],
                  "loss": {"type": "gan_generator", "kind": kind}, "optimizer": optimizer},
                 {"name": "discriminator", "values": [real] + made, "trains": ["discriminator"],
                  "loss": dict(both, label_smoothing=0.5) if kind == "modified" else both,
                  "optimizer": optimizer, **clip}],
             "schedule": [["generator", cycle[0]], ["discriminator", cycle[1]]]}
    data = {"seed": 5, "count": 7, "height": 4, "width": 4, "channels": 1, "classes": 3}
    return dict(name=name, seed=(7 << 32) + 11, global_batch=4, grain=2, steps=steps, model=model,
                data={"train": {"made_up": data}}, **more)


TURNS = {"initial": 1 << 18, "growth_steps": 2}
NETS += [
    gan("gan", "minimax", MAKER, ADAM, 4, noise="uniform"),
    gan("mixed-gan", "modified", WIDE_MAKER, MOMENTUM, 5, precision="mixed_bfloat16"),
    gan("mixed-gan-skip", "wasserstein", WIDE_MAKER,
        {"type": "rmsprop_tf1", "learning_rate": 0.001}, 12, weight_clip=0.25,
        precision="mixed_float16", loss_scale=TURNS),
    gan("mixed-gan-replay", "least_squares", MAKER, ADAM, 6, (1, 2), precision="mixed_float16",
        loss_scale=dict(TURNS, growth_steps=1, on_overflow="replay")),
    gan("regularized-gan", "least_squares", [
        dict(layer, kernel_regularizer={"l2": 0.25}) if layer["type"] == "dense" else layer
        for layer in WIDE_MAKER], dict(ADAM, global_clipnorm=0.25), 5, (1, 2),
        scorer=[dict(layer, kernel_regularizer={"l2": 0.125})
                if layer["type"] in ("conv2d", "dense") else layer for layer in SCORER],
        precision="mixed_float16", loss_scale={"initial": 64}),
    gan("mixed-gan-static", "hinge", MAKER, MOMENTUM, 3, precision="mixed_float16",
        loss_scale={"initial": 64, "type": "static"})]


# Kernels divided by their greatest singular values: of every kind of layer and of 2.8 slices; of
# one that is not trained, whose vector stays; of zeros, which stay as they are in the first step;
# beside moving statistics, which are states before and behind; of a discriminator that is used
# twice.
def with_spectral(layers, *types):
    return [dict(layer, spectral_normalization=True) if layer["type"] in types else layer
            for layer in layers]


SPECTRAL = with_spectral(
    [{"type": "batch_normalization"},
     {"type": "conv2d", "filters": 2, "kernel_size": 2, "activation": "tanh"},
     {"type": "conv2d_transpose", "filters": 4, "kernel_size": 2, "strides": 2},
     {"type": "conv2d", "filters": 6, "kernel_size": 2, "groups": 2},
     {"type": "batch_normalization"},
     {"type": "conv2d", "filters": 2, "kernel_size": 1, "trainable": False},
     {"type": "flatten"}, {"type": "dense", "units": 4, "activation": "sigmoid"},
     {"type": "dense", "units": 3, "kernel_regularizer": {"l2": 0.0625}}],
    "conv2d", "conv2d_transpose", "dense")
BOTH = ("conv2d", "dense", "conv2d_transpose")
NETS += [
    net("spectral", (4, 4, 1), SPECTRAL, dict(MOMENTUM, clipvalue=0.125), 6, 4, 11, 3),
    net("spectral-slices", (25, 19, 1), with_spectral(
        [{"type": "flatten"}, {"type": "dense", "units": 3}], "dense"), ADAM, 4, 2, 7, 2),
    net("spectral-zeros", (2, 2, 1), with_spectral(
        [{"type": "flatten"}, {"type": "dense", "units": 3, "kernel_initializer": "zeros"}],
        "dense"), MOMENTUM, 4, 2, 7, 3),
    net("spectral-sequence", (5, 4, 1), with_spectral(
        [{"type": "reshape", "target_shape": [5, 4]}, {"type": "dense", "units": 2},
         {"type": "lstm", "units": 2}, {"type": "dense", "units": 3}], "dense"),
        MOMENTUM, 6, 2, 11, 3, shards=3),
    net("spectral-mixed", (8, 8, 1), with_spectral(MIXED_POOLED, *BOTH), ADAM, 6, 4, 11, 5,
        precision="mixed_float16", loss_scale={"initial": 1 << 18, "growth_steps": 2}),
    gan("spectral-gan", "hinge", with_spectral(MAKER, *BOTH), ADAM, 5, (1, 2),
        scorer=with_spectral(SCORER, *BOTH)),
    gan("spectral-gan-mixed", "wasserstein", WIDE_MAKER, ADAM, 6, (1, 2), weight_clip=0.25,
        scorer=with_spectral(SCORER, *BOTH), precision="mixed_bfloat16")]


# Two objectives whose classes count otherwise, and between them one whose classes are all alike.
def weighted_objectives(name, **more):
    def objective(name, networks, **loss):
        values = [{"name": name, "network": name} for name in networks]
        return {"name": name, "values": values, "trains": networks,
                "loss": {"type": CROSSENTROPY, **loss}, "optimizer": MOMENTUM}
    model = {"input": [4, 4, 1], "classes": 3, "networks": [
        {"name": "body", "layers": [{"type": "flatten"},
                                    {"type": "dense", "units": 4, "activation": "tanh"}]},
        {"name": "head", "inputs": [[4]], "layers": [{"type": "dense", "units": 3}]},
        {"name": "other", "inputs": [[4]], "layers": [{"type": "dense", "units": 3}]}],
        "objectives": [
            objective("first", ["body", "head"], class_weight=[0.3, 2.7, 1]),
            objective("alike", ["body", "head"]),
            objective("second", ["body", "other"], label_smoothing=0.1,
                      class_weight={"1": 0, "2": 3.3})],
        "schedule": [["first", 1], ["alike", 1], ["second", 2]]}
    data = {"seed": 5, "count": 11, "height": 4, "width": 4, "channels": 1, "classes": 3}
    return dict(name=name, seed=(7 << 32) + 11, global_batch=6, grain=2, steps=7, model=model,
                data={"train": {"made_up": data}}, **more)


NETS += [
    weighted_objectives("weighted-objectives"),
    weighted_objectives("weighted-objectives-mixed", precision="mixed_float16",
                        loss_scale={"initial": 1 << 16, "growth_steps": 2})]

LAYOUTS = [  # of the program: replicas and "layout"
    (1, {}),
    (1, {"kernels": "reference", "fuse": False}),
    (2, {"wave_examples": 1, "reduce": "partials", "joint_tile": 1024}),
]


def cut(program, name, data, shards, folder):
    """The "data" of a run in order "sharded", after the shards are there."""
    to = os.path.join(folder, name + "-shards")
    if not os.path.exists(to):
        options = [word for key in ("seed", "height", "width", "channels", "classes")
                   for word in ("--" + key, str(data[key]))]
        subprocess.run([program, "data", "shard", "--made-up", str(data["count"]), *options,
                        "--shards", str(shards), "--to", to], check=True, stdout=subprocess.DEVNULL)
    return {"order": "sharded", "train": {"manifest": os.path.join(to, "manifest.json")}}


def write_sequences(config, folder):
    """The data of a run whose labels are sequences: a pair of files."""
    made, paths = config["data"]["train"]["made_up"], [os.path.join(folder, n) for n in "il"]
    examples = [(made_up(made, i)[0], said) for i, said in enumerate(config["sequences"])]
    shape = [len(examples), made["height"], made["width"], made["channels"]]
    labels = labels_of(config, examples)
    for path, sizes, data in ((paths[0], shape, b"".join(image for image, _ in examples)),
                              (paths[1], [len(examples), len(labels) // len(examples)], labels)):
        with open(path, "wb") as file:
            file.write(bytes([0, 0, 8, len(sizes)]) + struct.pack(f">{len(sizes)}I", *sizes) + data)
    return {"train": {"images": paths[0], "labels": paths[1]}}


def run_lockstep(program, config, replicas, layout, folder):
    """The program's lines by their first word, and the losses that it logged."""
    path, run_dir = os.path.join(folder, config["name"] + ".json"), os.path.join(folder, "run")
    replicas = min(replicas, -(-config["global_batch"] // config["grain"]))
    config = dict(config, replicas=replicas, layout=layout, log_every_steps=1)
    shards = config.pop("shards", 0)
    if shards:
        config["data"] = cut(program, config["name"], config["data"]["train"]["made_up"], shards,
                             folder)
    if "sequences" in config:
        config["data"] = write_sequences(config, folder)
        del config["sequences"]
    with open(path, "w") as file:
        json.dump(config, file)
    run = subprocess.run([program, "train", path, "--run-dir", run_dir, "--fresh"],
                         capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{config['name']}: lockstep ended with {run.returncode}: {run.stderr}")
    found = dict(line.split(" ", 1) for line in run.stdout.splitlines() if " " in line)
    with open(os.path.join(run_dir, "metrics.jsonl")) as file:
        steps = [json.loads(line)["train"] for line in file]
    # %.9g of a count is the count
    names = ["loss", "mean_absolute_error", "correct", "fake", "real"]
    found["losses"] = " ".join("/".join("%.9g" % step[name] for name in names if name in step)
                               for step in steps)
    return found


def main():
    if sys.version_info < (3, 8):
        return 77
    program = sys.argv[1] if len(sys.argv) > 1 else None
    failed = 0
    check_operations(10000)
    with tempfile.TemporaryDirectory() as folder:
        for config in NETS:
            run = (Graph if "networks" in config["model"] else Run)(config)
            losses = [said for _ in range(config["steps"]) for said in [run.report()] if said]
            learned = all(alive or q in run.frozen for q, alive in enumerate(run.alive))
            assert learned, f"{config['name']}: a parameter never learns"
            wanted = dict(run.hashes(), losses=" ".join(losses))
            for key, value in wanted.items():
                print(config["name"], key, value)
            for replicas, layout in LAYOUTS if program else []:
                found = run_lockstep(program, config, replicas, layout, folder)
                for key, value in wanted.items():
                    if found.get(key) != value:
                        failed += 1
                        print(f"{config['name']}: {key}: lockstep with {replicas} replicas, layout "
                              f"{json.dumps(layout)}: {found.get(key)}, the page gives {value}")
    print("the page and the program differ" if failed else "all equal" if program else "done")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
