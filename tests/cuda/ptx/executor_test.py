#!/usr/bin/env python3
"""executor_test - the PTX executor itself, on kernels written here: what each instruction gives,
by rules that Python counts anew; branches, barriers, shuffles, memory; what is counted; and what
is wrong is found.

   executor_test.py PTX_RUN
"""
import json
import math
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
from fractions import Fraction

RUN = sys.argv[1]
THREADS = 64
HEAD = """.version 9.0
.target sm_90
.address_size 64

.extern .shared .align 128 .b8 lk_cuda_shared[];
"""
ENTRY = """
.entry %s(
\t.param .u64 %s_param_0,
\t.param .u64 %s_param_1,
\t.param .align 4 .b8 %s_param_2[8]
)
.maxntid 256, 1, 1
{
\t.local .align 8 .b8 \t__local_depot0[64];
\t.reg .b64 \t%%SP;
\t.reg .b64 \t%%SPL;
\t.reg .pred \t%%p<20>;
\t.reg .b16 \t%%rs<20>;
\t.reg .f32 \t%%f<20>;
\t.reg .b32 \t%%r<40>;
\t.reg .b64 \t%%rd<40>;
\tld.param.u64 \t%%rd1, [%s_param_0];
\tld.param.u64 \t%%rd2, [%s_param_1];
\tmov.u32 \t%%r10, %%tid.x;
\tmov.u32 \t%%r11, %%ctaid.x;
\tmov.u32 \t%%r12, %%ntid.x;
\tmad.lo.s32 \t%%r13, %%r11, %%r12, %%r10;
\tmul.wide.u32 \t%%rd3, %%r13, 8;
\tadd.s64 \t%%rd3, %%rd1, %%rd3;
"""
# Each thread's own operands: 32 bytes of the input.
OPERANDS = """
mul.wide.u32 %rd4, %r13, 32;
add.s64 %rd4, %rd2, %rd4;
ld.global.u32 %r1, [%rd4];
ld.global.u32 %r2, [%rd4+4];
ld.global.u32 %r3, [%rd4+8];
mov.b32 %f1, %r1;
mov.b32 %f2, %r2;
mov.b32 %f3, %r3;
cvt.u16.u32 %rs1, %r1;
cvt.u16.u32 %rs2, %r2;
cvt.u16.u32 %rs3, %r3;
ld.global.u64 %rd11, [%rd4+16];
ld.global.u64 %rd12, [%rd4+24];
setp.ne.s32 %p1, %r3, 0;
setp.lt.s32 %p2, %r1, %r2;
"""
failures = 0


def check(good, *what):
    global failures
    if not good:
        failures += 1
        print("FAILED:", *what)


def kernel(name, body, end="\tret;\n"):
    lines = "".join(f"{line}\n" if line.endswith(":") else f"\t{line}\n"
                    for line in body.strip().splitlines() if line.strip())
    return ENTRY % ((name,) * 6) + lines + end + "\n}\n"


def run(text, data=b"", blocks=1, threads=THREADS, shared=0, seed=0, counts=None):
    """(exit code, {name: values of the threads}, what it said of mistakes)"""
    with tempfile.TemporaryDirectory() as work:
        ptx, given = os.path.join(work, "a.ptx"), os.path.join(work, "a.in")
        with open(ptx, "w", encoding="ascii") as f:
            f.write(text)
        with open(given, "wb") as f:
            f.write(data)
        env = dict(os.environ)
        if counts is not None:
            env["LOCKSTEP_PTX_COUNTS"] = os.path.join(work, "counts")
        done = subprocess.run([RUN, ptx, given, *map(str, (blocks, threads, shared, seed))],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
                              check=False)
        if counts is not None:
            with open(env["LOCKSTEP_PTX_COUNTS"], encoding="ascii") as f:
                counts.extend(json.load(f))
    out = {}
    for line in done.stdout.splitlines():
        name, *values = line.split()
        out[name] = [int(v, 16) for v in values]
    return done.returncode, out, done.stderr


# --- arithmetic ----------------------------------------------------------------------------------

def signed(value, bits):
    value &= (1 << bits) - 1
    return value - (value >> (bits - 1) << bits)


def real(bits):
    return struct.unpack("<f", struct.pack("<I", bits & 0xffffffff))[0]


def to_bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def rounded(x):
    """The float nearest to a fraction, ties to even; a zero is +0."""
    if x == 0:
        return 0
    sign, x = (0x80000000, -x) if x < 0 else (0, x)
    power = max(math.floor(math.log2(x)) - 23 if x > Fraction(1, 2 ** 140) else -149, -149)
    while x >= Fraction(2) ** (power + 24):
        power += 1
    while power > -149 and x < Fraction(2) ** (power + 23):
        power -= 1
    scaled = x / Fraction(2) ** power
    whole = scaled.numerator // scaled.denominator
    rest = scaled - whole
    whole += rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2)
    if whole == 1 << 24:
        whole, power = whole >> 1, power + 1
    if power > 104:
        return sign | 0x7f800000
    return sign | (whole if whole < 1 << 23 else (power + 150 << 23) + (whole - (1 << 23)))


def is_number(*bits):
    return all(b & 0x7f800000 != 0x7f800000 for b in bits)


def of_floats(word, a, b, c):
    """The bits that an operation gives, or None where this says nothing of it: it is no number, or
    a zero with a sign of its own."""
    if not is_number(a, b, c):
        return None
    x, y, z = (Fraction(real(v)) for v in (a, b, c))
    if word in ("div.rn", "rcp.rn") and (y if word == "div.rn" else x) == 0:
        return None
    if word == "sqrt.rn":
        if x <= 0:
            return None
        scale = 1 << 200  # more than enough: a root of a float is never near a tie
        root = Fraction(math.isqrt(int(x * scale * scale)), scale)
        return rounded(root)
    result = {"add": x + y, "add.rn": x + y, "sub": x - y, "sub.rn": x - y, "mul": x * y,
              "mul.rn": x * y, "fma.rn": x * y + z, "div.rn": x / y if y else 0,
              "rcp.rn": 1 / x if x else 0, "min": min(x, y), "max": max(x, y)}[word]
    return rounded(result) if result != 0 else None


def compared(word, a, b, kind):
    if kind == "f32":
        x, y = real(a), real(b)
    elif kind[0] == "s":
        x, y = signed(a, int(kind[1:])), signed(b, int(kind[1:]))
    else:
        mask = (1 << int(kind[1:])) - 1
        x, y = a & mask, b & mask
    nan = kind == "f32" and (x != x or y != y)
    if word in ("num", "nan"):
        return nan == (word == "nan")
    if nan:
        return word.endswith("u") and len(word) == 3
    return {"eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y,
            "ge": x >= y}[word[:2]]


def of_integers(word, kind, a, b, c):
    bits, is_signed = int(kind[1:]), kind[0] == "s"
    x, y, z = ((signed(v, bits) if is_signed else v & (1 << bits) - 1) for v in (a, b, c))
    if word in ("div", "rem"):
        quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        return quotient if word == "div" else x - quotient * y
    return {"add": x + y, "sub": x - y, "mul.lo": x * y, "mad.lo": x * y + z, "min": min(x, y),
            "max": max(x, y), "and": x & y, "or": x | y, "xor": x ^ y, "not": ~x, "neg": -x,
            "mul.wide": x * y, "mul.hi": x * y >> bits}[word]


def shifted(word, kind, a, by):
    bits = int(kind[1:])
    x = signed(a, bits) if kind[0] == "s" else a & (1 << bits) - 1
    if word == "shl":
        return x << by if by < bits else 0
    return x >> min(by, bits)


REGISTERS = {16: "%rs", 32: "%r", 64: "%rd"}


def taken(bits, n):
    """Operand n of a width."""
    return f"%rd{10 + n}" if bits == 64 and n < 3 else f"{REGISTERS[bits]}{n}"


def cases():
    """(instructions that leave a result in %rd19, what it is of (a, b, c, x, y) or None)"""
    def low(bits):
        return {16: "cvt.u64.u16 %rd19, %rs9;", 32: "cvt.u64.u32 %rd19, %r9;", 64: ""}[bits]

    def result(bits):
        return {16: "%rs9", 32: "%r9", 64: "%rd19"}[bits]

    def operands(bits, count):
        return ", ".join([taken(bits, 1), taken(bits, 2), "%rd11"][:count] if bits == 64 else
                         [taken(bits, n) for n in range(1, count + 1)])

    def values(bits, v):
        return (v[3], v[4], v[3]) if bits == 64 else v[:3]

    for kind in ("u16", "s16", "u32", "s32", "u64", "s64"):
        bits = int(kind[1:])
        for word, count in (("add", 2), ("sub", 2), ("mul.lo", 2), ("mad.lo", 3), ("min", 2),
                            ("max", 2), ("div", 2), ("rem", 2)):
            def wanted(v, word=word, kind=kind, bits=bits):
                return of_integers(word, kind, *values(bits, v)) % (1 << bits)
            yield f"{word}.{kind} {result(bits)}, {operands(bits, count)};" + low(bits), wanted
        for word in ("eq", "ne", "lt", "le", "gt", "ge"):
            def wanted(v, word=word, kind=kind, bits=bits):
                return int(compared(word, *values(bits, v)[:2], kind))
            yield (f"setp.{word}.{kind} %p9, {operands(bits, 2)};selp.u64 %rd19, 1, 0, %p9;",
                   wanted)
    for bits in (16, 32, 64):
        for word, count in (("and", 2), ("or", 2), ("xor", 2), ("not", 1)):
            def wanted(v, word=word, bits=bits):
                return of_integers(word, f"u{bits}", *values(bits, v)) % (1 << bits)
            yield f"{word}.b{bits} {result(bits)}, {operands(bits, count)};" + low(bits), wanted
        yield (f"neg.s{bits} {result(bits)}, {operands(bits, 1)};" + low(bits),
               lambda v, bits=bits: -values(bits, v)[0] % (1 << bits))
        for word in ("eq", "ne"):
            yield (f"setp.{word}.b{bits} %p9, {operands(bits, 2)};selp.b64 %rd19, 1, 0, %p9;",
                   lambda v, word=word, bits=bits:
                   int(compared(word, *values(bits, v)[:2], f"u{bits}")))
        for word, kind in (("shl", "b"), ("shr", "u"), ("shr", "s")):
            for by in (0, 1, bits - 1, bits, 200):
                yield (f"{word}.{kind}{bits} {result(bits)}, {operands(bits, 1)}, {by};" +
                       low(bits), lambda v, word=word, kind=kind, bits=bits, by=by:
                       shifted(word, f"{kind}{bits}", values(bits, v)[0], by) % (1 << bits))
        for kind in "bus":
            yield (f"selp.{kind}{bits} {result(bits)}, {operands(bits, 2)}, %p2;" + low(bits),
                   lambda v, bits=bits: values(bits, v)[not signed(v[0], 32) < signed(v[1], 32)] %
                   (1 << bits))
    for kind, wide in (("u16", 32), ("u32", 64), ("s32", 64)):
        bits = int(kind[1:])
        yield (f"mul.wide.{kind} {result(wide)}, {taken(bits, 1)}, {taken(bits, 2)};" + low(wide),
               lambda v, kind=kind, wide=wide:
               of_integers("mul.wide", kind, *v[:3]) % (1 << wide))
    for bits in (32, 64):
        yield (f"mul.hi.u{bits} {result(bits)}, {operands(bits, 2)};" + low(bits),
               lambda v, bits=bits: of_integers("mul.hi", f"u{bits}", *values(bits, v)))
    yield from cases_of_floats()
    yield from cases_of_moves()


def cases_of_floats():
    back = "mov.b32 %r9, %f9;cvt.u64.u32 %rd19, %r9;"
    for word, count in (("add", 2), ("add.rn", 2), ("sub", 2), ("sub.rn", 2), ("mul", 2),
                        ("mul.rn", 2), ("fma.rn", 3), ("div.rn", 2), ("rcp.rn", 1), ("sqrt.rn", 1),
                        ("min", 2), ("max", 2)):
        names = ", ".join(["%f1", "%f2", "%f3"][:count])
        yield (f"{word}.f32 %f9, {names};" + back,
               lambda v, word=word: of_floats(word, *v[:3]))
    yield "neg.f32 %f9, %f1;" + back, lambda v: v[0] ^ 0x80000000
    yield "abs.f32 %f9, %f1;" + back, lambda v: v[0] & 0x7fffffff
    for a, b, least, most in (("7FC00000", "40000000", 0x40000000, 0x40000000),
                              ("40000000", "7FC00000", 0x40000000, 0x40000000),
                              ("00000000", "80000000", 0x80000000, 0),
                              ("80000000", "00000000", 0x80000000, 0)):
        yield f"mov.f32 %f4, 0f{a};min.f32 %f9, %f4, 0f{b};" + back, lambda v, x=least: x
        yield f"mov.f32 %f4, 0f{a};max.f32 %f9, %f4, 0f{b};" + back, lambda v, x=most: x
    for word in ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu",
                 "num", "nan"):
        yield (f"setp.{word}.f32 %p9, %f1, %f2;selp.u64 %rd19, 1, 0, %p9;",
               lambda v, word=word: int(compared(word, v[0], v[1], "f32")))
    yield ("selp.f32 %f9, %f1, %f2, %p2;" + back,
           lambda v: v[not signed(v[0], 32) < signed(v[1], 32)])
    for kind in ("u16", "s16", "u32", "s32", "u64", "s64"):
        bits = int(kind[1:])

        def wanted(v, kind=kind, bits=bits):
            x = v[3] if bits == 64 else v[0]
            x = signed(x, bits) if kind[0] == "s" else x & (1 << bits) - 1
            return rounded(Fraction(x))
        yield f"cvt.rn.f32.{kind} %f9, {taken(bits, 1)};" + back, wanted


def cases_of_moves():
    wide, narrow = "cvt.u64.u32 %rd19, %r9;", "cvt.u64.u16 %rd19, %rs9;"
    yield "cvt.u64.u32 %rd19, %r1;", lambda v: v[0]
    yield "cvt.u64.u16 %rd19, %rs1;", lambda v: v[0] & 0xffff
    yield "cvt.s64.s32 %rd19, %r1;", lambda v: signed(v[0], 32) % (1 << 64)
    yield "cvt.s64.s16 %rd19, %rs1;", lambda v: signed(v[0], 16) % (1 << 64)
    yield "cvt.u32.u64 %r9, %rd11;" + wide, lambda v: v[3] & 0xffffffff
    yield "cvt.u32.u16 %r9, %rs1;" + wide, lambda v: v[0] & 0xffff
    yield "cvt.s32.s16 %r9, %rs1;" + wide, lambda v: signed(v[0], 16) % (1 << 32)
    yield "cvt.s32.s8 %r9, %r1;" + wide, lambda v: signed(v[0], 8) % (1 << 32)
    yield "cvt.u16.u32 %rs9, %r1;" + narrow, lambda v: v[0] & 0xffff
    yield "cvt.u16.u64 %rs9, %rd11;" + narrow, lambda v: v[3] & 0xffff
    yield "cvt.s16.s8 %rs9, %rs1;" + narrow, lambda v: signed(v[0], 8) & 0xffff
    yield "cvt.s16.s8 %r9, %rs1;" + wide, lambda v: signed(v[0], 8) % (1 << 32)
    for kind in ("u32", "s32", "b32"):
        yield f"mov.{kind} %r9, %r1;" + wide, lambda v: v[0]
    for kind in ("u16", "b16"):
        yield f"mov.{kind} %rs9, %rs1;" + narrow, lambda v: v[0] & 0xffff
    for kind in ("u64", "b64"):
        yield f"mov.{kind} %rd19, %rd11;", lambda v: v[3]
    yield "mov.f32 %f9, %f1;mov.b32 %r9, %f9;" + wide, lambda v: v[0]
    for at, count in ((0, 8), (5, 7), (31, 4), (0, 32), (40, 3), (3, 40), (4, 0)):
        def wanted(v, at=at, count=count):
            field = ((1 << count) - 1) << at & 0xffffffff
            return v[1] & ~field | v[0] << at & field
        yield f"bfi.b32 %r9, %r1, %r2, {at}, {count};" + wide, wanted
    for at, count in ((0, 8), (8, 8), (31, 4), (0, 32), (40, 3), (3, 0)):
        yield (f"bfe.u32 %r9, %r1, {at}, {count};" + wide,
               lambda v, at=at, count=count: v[0] >> at & (1 << count) - 1)
    yield "popc.b32 %r9, %r1;" + wide, lambda v: bin(v[0]).count("1")
    yield ("copysign.f32 %f9, %f1, %f2;mov.b32 %r9, %f9;" + wide,
           lambda v: v[1] & 0x7fffffff | v[0] & 0x80000000)
    yield "cvt.u16.u8 %rs9, %rs1;" + narrow, lambda v: v[0] & 255
    yield ("{ .reg .b32 tmp\\; mov.b64 {tmp, %r9}, %rd11\\; }\n" + wide, lambda v: v[3] >> 32)
    yield ("{ .reg .b16 tmp\\; mov.b32 {tmp, %rs9}, %r1\\; }\n" + narrow, lambda v: v[0] >> 16)
    for pick in (0x3210, 0x7654, 0x0123, 0xba98, 0x6f05):
        def wanted(v, pick=pick):
            both, value = v[1] << 32 | v[0], 0
            for n in range(4):
                p = pick >> 4 * n & 15
                byte = both >> 8 * (p & 7) & 255
                value |= (byte if p < 8 else 255 * (byte >> 7)) << 8 * n
            return value
        yield f"prmt.b32 %r9, %r1, %r2, {pick};" + wide, wanted
    for word, of in (("and", lambda p, q: p and q), ("or", lambda p, q: p or q),
                     ("xor", lambda p, q: p != q)):
        yield (f"{word}.pred %p9, %p1, %p2;selp.u64 %rd19, 1, 0, %p9;",
               lambda v, of=of: int(of(v[2] != 0, signed(v[0], 32) < signed(v[1], 32))))
    yield "not.pred %p9, %p1;selp.s64 %rd19, 1, 0, %p9;", lambda v: int(v[2] == 0)
    yield "mov.pred %p9, %p1;selp.s64 %rd19, 1, 0, %p9;", lambda v: int(v[2] != 0)
    for value in (0, -1):
        yield (f"mov.pred %p9, {value};selp.s64 %rd19, 1, 0, %p9;", lambda v, x=-value: x)


def operands_of_threads():
    r, rows = random.Random(1), []
    edges = [0, 1, 0x80000000, 0x7fffffff, 0xffffffff, 0x3f800000, 0xbf800000, 0x7f800000,
             0xff800000, 0x7fc00000, 1, 0x80000001, 0x00800000, 0x7f7fffff, 0x3f7fffff, 0x34000000]
    for n in range(THREADS):
        a, b, c = (edges[(n * k + n // 8) % len(edges)] if n < 24 else r.getrandbits(32)
                   for k in (1, 3, 5))
        if n >= 40:  # numbers that are near each other
            a, b, c = (to_bits(r.choice((1, -1)) * r.uniform(0.5, 4)) for _ in range(3))
        if n == 30:
            a, b = 0x80000000, 0xffffffff
        # Nothing is divided by zero, of any width.
        b = b if b & 0xffff else b | 3
        x, y = r.getrandbits(64), r.getrandbits(r.choice((8, 33, 64))) | 1
        rows.append((a, b, c if n % 5 else 0, x, y))
    return rows


def arithmetic():
    rows = operands_of_threads()
    data = b"".join(struct.pack("<3I4x2Q", *row) for row in rows)
    all_cases = list(cases())
    text = HEAD + "".join(
        kernel(f"k{n}", OPERANDS + re.sub(r"(?<!\\);", ";\n", code).replace("\\", "") +
               "\nst.global.u64 [%rd3], %rd19;")
        for n, (code, _) in enumerate(all_cases))
    code, out, error = run(text, data)
    check(code == 0, "arithmetic", code, error)
    judged = 0
    for n, (instruction, wanted) in enumerate(all_cases):
        for row, found in zip(rows, out.get(f"k{n}", [])):
            value = wanted(row)
            if value is None:
                continue
            judged += 1
            check(found == value, instruction, [hex(v) for v in row], hex(found), hex(value))
    check(judged > 9000, "too few results judged", judged)
    said = subprocess.run([RUN], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    tried = set(re.findall(r"[a-z]\w*(?:\.\w+)+", " ".join(code for code, _ in all_cases)))
    tried |= {"mov.b32.high", "mov.b64.high"}  # as the executor calls what has braces
    check(set(said) <= tried, "not tried", set(said) - tried)
    print(f"arithmetic: {len(said)} words, {judged} results")


# --- ways through a kernel -----------------------------------------------------------------------

def values(body, **options):
    code, out, error = run(HEAD + kernel("k", body), **options)
    check(code == 0, body, error)
    return out.get("k", [])


STORE = "cvt.u64.u32 %rd19, %r9;\nst.global.u64 [%rd3], %rd19;"


def branches():
    """A loop of as many turns as the thread's number, in which some go on early and some leave."""
    body = """
mov.u32 %r9, 0;
mov.u32 %r20, 0;
$L_1:
setp.ge.u32 %p1, %r20, %r10;
@%p1 bra $L_4;
add.s32 %r20, %r20, 1;
and.b32 %r21, %r20, 1;
setp.eq.s32 %p2, %r21, 0;
@%p2 bra $L_2;
bra.uni $L_3;
$L_2:
setp.gt.u32 %p6, %r20, 9;
setp.eq.s32 %p7, %r10, 40;
and.pred %p6, %p6, %p7;
@%p6 ret;
and.b32 %r22, %r10, 3;
setp.eq.s32 %p3, %r22, 3;
@%p3 bra $L_1;
add.s32 %r9, %r9, 100;
bra.uni $L_1;
$L_3:
add.s32 %r9, %r9, 1;
setp.gt.u32 %p4, %r9, 900;
@!%p4 bra $L_1;
add.s32 %r9, %r9, 5000;
$L_4:
mul.lo.s32 %r9, %r9, 2;
setp.eq.s32 %p5, %r10, 33;
@%p5 ret;
""" + STORE

    def wanted(t):
        value = n = 0
        while n < t:
            n += 1
            if n % 2 == 0:
                value += 0 if t % 4 == 3 else 100
                continue
            value += 1
            if value > 900:
                value += 5000
                break
        return 2 * value if t not in (33, 40) else 0
    for seed in range(4):
        found = values(body, seed=seed)
        check(found == [wanted(t) for t in range(THREADS)], "branches", seed, found)
    # What a guard leaves as it was is still there, though others were written meanwhile.
    found = values("""
and.b32 %r1, %r10, 1;
setp.eq.s32 %p1, %r1, 0;
add.s32 %r9, %r10, 7;
add.s32 %r20, %r10, 1000;
add.s32 %r21, %r20, 1;
@%p1 add.s32 %r9, %r20, %r21;
""" + STORE, threads=40)
    check(found == [2 * t + 2001 if t % 2 == 0 else t + 7 for t in range(40)], "guards", found)
    found = values("""
and.b32 %r1, %r10, 1;
setp.eq.s32 %p1, %r1, 0;
mov.u32 %r8, %r10;
mov.u32 %r9, 0;
mov.u32 %r20, 0;
$L_1:
@%p1 mov.u32 %r8, 777;
add.s32 %r9, %r9, %r8;
add.s32 %r21, %r20, 5000;
mul.lo.s32 %r22, %r21, 3;
add.s32 %r9, %r9, %r22;
add.s32 %r20, %r20, 1;
setp.lt.u32 %p2, %r20, 4;
@%p2 bra $L_1;
""" + STORE)
    check(found == [4 * (777 if t % 2 == 0 else t) + 60018 for t in range(THREADS)],
          "guards in a loop", found)
    # Who has ended is not waited for: the others meet, and shuffle.
    found = values("""
mov.u32 %r4, -2;
setp.gt.u32 %p1, %r10, 16;
@%p1 bra $L_1;
setp.eq.s32 %p2, %r10, 0;
@!%p2 bra $L_1;
ret;
$L_1:
shfl.sync.idx.b32 %r9|%p3, %r10, 5, 31, %r4;
""" + STORE, threads=32)
    check(found == [0] + [5] * 31, "after an end", found)
    # The end need not stand at the end.
    code, out, error = run(HEAD + kernel("k", """
mov.u32 %r4, -1;
and.b32 %r1, %r10, 1;
setp.eq.s32 %p1, %r1, 0;
@%p1 bra $L_3;
add.s32 %r9, %r10, 10;
$L_2:
shfl.sync.idx.b32 %r9|%p3, %r9, 6, 31, %r4;
""" + STORE + """
ret;
$L_3:
add.s32 %r9, %r10, 20;
bra.uni $L_2;
""", ""), threads=32)
    check(code == 0 and out["k"] == [26] * 32, "an end in the middle", code, error)


def barriers():
    """Numbers go round through shared memory, several blocks side by side."""
    body = """
mov.u32 %r20, lk_cuda_shared;
shl.b32 %r21, %r10, 2;
add.s32 %r22, %r20, %r21;
st.shared.u32 [%r22], %r13;
bar.sync 0;
add.s32 %r23, %r10, 37;
rem.u32 %r23, %r23, %r12;
shl.b32 %r23, %r23, 2;
add.s32 %r24, %r20, %r23;
ld.shared.u32 %r9, [%r24];
bar.sync 0;
st.shared.u32 [%r22+0], %r9;
bar.sync 0;
ld.shared.u32 %r9, [%r24];
""" + STORE
    for seed in range(6):
        found = values(body, seed=seed, threads=96, blocks=5, shared=384)
        check(found == [t // 96 * 96 + (t % 96 + 74) % 96 for t in range(480)], "barriers", seed,
              found)


def shuffles():
    def from_lane(how, lane, by, width):
        first = lane // width * width
        if how == "idx":
            return first + by % width, True
        other = {"up": lane - by, "down": lane + by, "bfly": lane ^ by}[how]
        inside = other >= first if how == "up" else other < first + width
        return (other, True) if inside else (lane, False)

    for how in ("idx", "up", "down", "bfly"):
        for width, by in ((32, 3), (32, 16), (8, 3), (16, 9)):
            held = (32 - width << 8) | (0 if how == "up" else 31)
            found = values(f"""
add.s32 %r1, %r10, 1000;
mov.u32 %r2, {by};
mov.u32 %r3, {held};
mov.u32 %r4, -1;
shfl.sync.{how}.b32 %r9|%p1, %r1, %r2, %r3, %r4;
@%p1 add.s32 %r9, %r9, 5000;
""" + STORE)
            wanted = []
            for t in range(THREADS):
                lane, inside = from_lane(how, t % 32, by, width)
                wanted.append(t // 32 * 32 + lane + 1000 + 5000 * inside)
            check(found == wanted, "shuffle", how, width, by, found, wanted)
    half = values("""
mov.u32 %r9, 7;
and.b32 %r1, %r10, 1;
setp.eq.s32 %p1, %r1, 0;
@%p1 bra $L_1;
mov.u32 %r4, -1431655766;
shfl.sync.bfly.b32 %r9|%p2, %r10, 2, 31, %r4;
$L_1:
""" + STORE)
    check(half == [7 if t % 2 == 0 else t ^ 2 for t in range(THREADS)], "half a warp", half)


def memory():
    data = bytes((n * 37 + 11) % 256 for n in range(64 * 16))
    for word, size, kind in (("u8", 1, "B"), ("s8", 1, "b"), ("u16", 2, "H"), ("s16", 2, "h")):
        for nc in ("", ".nc"):
            found = values(f"""
mul.wide.u32 %rd4, %r10, {size};
add.s64 %rd4, %rd2, %rd4;
ld.global{nc}.{word} %r9, [%rd4];
""" + STORE, data=data)
            wanted = [struct.unpack_from("<" + kind, data, t * size)[0] % (1 << 32)
                      for t in range(THREADS)]
            check(found == wanted, "ld", word, found)
    found = values("""
mul.wide.u32 %rd4, %r10, 16;
add.s64 %rd4, %rd2, %rd4;
ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd4];
mov.u64 %SPL, __local_depot0;
cvta.local.u64 %SP, %SPL;
add.u64 %rd5, %SP, 8;
st.local.v2.u32 [%SPL+16], {%r1, %r2};
cvta.to.local.u64 %rd6, %rd5;
ld.local.u64 %rd7, [%rd6+8];
st.u32 [%rd5], %r3;
st.local.u16 [%SPL+12], %r4;
ld.u32 %r5, [%SP+8];
ld.local.u16 %rs1, [%SPL+12];
cvt.u32.u16 %r6, %rs1;
cvt.u64.u32 %rd8, %r5;
xor.b64 %rd8, %rd8, %rd7;
mul.wide.u32 %rd9, %r6, 7;
add.s64 %rd8, %rd8, %rd9;
ld.param.v2.u16 {%rs2, %rs3}, [k_param_2];
cvt.u64.u16 %rd9, %rs3;
add.s64 %rd8, %rd8, %rd9;
st.global.v2.u32 [%rd3], {%r1, %r2};
st.global.u64 [%rd3], %rd8;
""", data=data)
    wanted = []
    for t in range(THREADS):
        a, b, c, d = struct.unpack_from("<4I", data, 16 * t)
        wanted.append(((c ^ (a | b << 32)) + 7 * (d & 0xffff) + 0x1312) % (1 << 64))
    check(found == wanted, "vectors, local memory, parameters", found[:3], wanted[:3])
    found = values("""
add.s32 %r1, %r13, 1;
atom.global.add.u32 %r2, [%rd1], %r1;
sub.s32 %r3, 100000, %r13;
setp.eq.s32 %p1, %r13, 0;
@%p1 atom.global.add.u32 %r2, [%rd1+8], -1;
red.global.min.u32 [%rd1+8], %r3;
""", blocks=3, seed=5)
    count = 3 * THREADS
    check(found[0] == count * (count + 1) // 2, "atomic add", found[0])
    found = values("""
mov.u32 %r1, -1;
setp.eq.s32 %p1, %r10, 0;
@%p1 red.global.add.u32 [%rd1+8], %r1;
bar.sync 0;
sub.s32 %r3, 100000, %r13;
atom.global.min.u32 %r2, [%rd1+8], %r3;
""")
    check(found[1] == 100000 - THREADS + 1, "atomic min", found[1])


# Addresses of each thread's 16 bytes of the input (%rd4) and of shared memory (%r22).
COPIED = """
mul.wide.u32 %rd4, %r10, 16;
add.s64 %rd4, %rd2, %rd4;
mov.u32 %r20, lk_cuda_shared;
shl.b32 %r21, %r10, 4;
add.s32 %r22, %r20, %r21;
"""
COPY = "cp.async.ca.shared.global [%r22], [%rd4], 4, 4;\n"
COMMIT, WAIT = "cp.async.commit_group;\n", "cp.async.wait_group 0;\n"


def copies():
    """Bytes that are copied and those that are zero; groups; who is a barrier behind a wait."""
    data = bytes((n * 37 + 11) % 255 + 1 for n in range(64 * 16))
    for way, sizes in (("ca", (4, 8, 16)), ("cg", (16,))):
        for size in sizes:
            for given in (None, *range(size + 1)):
                read = "" if given is None else f", {given}"
                found = values(COPIED + f"""
cp.async.{way}.shared.global [%r22], [%rd4], {size}{read};
""" + COMMIT + WAIT + f"""
ld.shared.u32 %r9, [%r22+{size - 4}];
""" + STORE, data=data, shared=1024)
                taken = [data[16 * t:16 * t + (size if given is None else given)].ljust(size, b"\0")
                         for t in range(THREADS)]
                check(found == [int.from_bytes(b[-4:], "little") for b in taken], "copies", way,
                      size, given, found[:3])
    # What is read may be each lane's own, and some lanes may wait for less. Without a byte to read
    # an address is none.
    for seed in range(4):
        found = values(COPIED + """
and.b32 %r1, %r10, 1;
shl.b32 %r2, %r1, 2;
setp.eq.s32 %p1, %r1, 0;
selp.u64 %rd5, 0, %rd4, %p1;
cp.async.ca.shared.global [%r22], [%rd5], 4, %r2;
""" + COMMIT + """
@!%p1 cp.async.ca.shared.global [%r22+4], [%rd4], 4;
cp.async.commit_group;
@%p1 cp.async.wait_group 1;
@!%p1 cp.async.wait_group 0;
bar.sync 0;
xor.b32 %r3, %r10, 1;
shl.b32 %r3, %r3, 4;
add.s32 %r3, %r20, %r3;
ld.shared.u32 %r9, [%r3];
setp.eq.s32 %p2, %r1, 0;
@%p2 ld.shared.u32 %r4, [%r3+4];
@%p2 add.s32 %r9, %r9, %r4;
""" + STORE, data=data, shared=1024, seed=seed)

        def word(t):
            return int.from_bytes(data[16 * t:16 * t + 4], "little")
        check(found == [2 * word(t + 1) % (1 << 32) if t % 2 == 0 else 0 for t in range(THREADS)],
              "groups", seed, found[:4])


# --- what is counted -----------------------------------------------------------------------------

def counted(body, **options):
    counts = []
    code, _, error = run(HEAD + kernel("k", body), counts=counts, **options)
    check(code == 0 and len(counts) == 1, body, error)
    return counts[0]


def counts():
    def loads(stride, word="u32", registers="%r1", nc=""):
        return counted(f"""
mul.wide.u32 %rd4, %r10, {stride};
add.s64 %rd4, %rd2, %rd4;
ld.global{nc}.{word} {registers}, [%rd4];
""", data=bytes(THREADS * 256))["kinds"]["load_global"]

    def banks(stride, word="u32", registers="%r1"):
        return counted(f"""
mov.u32 %r20, lk_cuda_shared;
mad.lo.s32 %r21, %r10, {stride}, %r20;
st.shared.{word} [%r21], {registers};
""", threads=32, shared=32 * 256)["kinds"]["store_shared"]

    four, two = "{%r1, %r2, %r3, %r4}", "{%r1, %r2}"
    for found, sectors, size in ((loads(4), 8, 256), (loads(0), 2, 8), (loads(8), 16, 256),
                                 (loads(32), 64, 256), (loads(128), 64, 256),
                                 (loads(1, "u8"), 2, 64), (loads(16, "v4.u32", four), 32, 1024),
                                 (loads(4, nc=".nc"), 8, 256)):
        check((found["sectors"], found["bytes"]) == (sectors, size), "sectors", found, sectors,
              size)
    for found, passes, optimum in ((banks(4), 1, 1), (banks(8), 2, 1), (banks(128), 32, 1),
                                   (banks(132), 1, 1), (banks(16, "v4.u32", four), 4, 4),
                                   (banks(32, "v4.u32", four), 8, 4),
                                   (banks(8, "v2.u32", two), 2, 2), (banks(20), 1, 1)):
        check((found["passes"], found["optimum"]) == (passes, optimum), "banks", found, passes,
              optimum)
    both = counted(COPIED + COPY + COMMIT + WAIT, data=bytes(64 * 16), shared=1024)["kinds"]
    check(both["copy"] == {"runs": 2, "lanes": 64, "sectors": 32, "bytes": 256, "passes": 8,
                           "optimum": 2} and both["group"]["runs"] == 4, "copies", both)
    all_of = counted("""
mov.f32 %f1, 0f3F800000;
setp.lt.u32 %p1, %r10, 40;
@%p1 bra $L_1;
fma.rn.f32 %f2, %f1, %f1, %f1;
fma.rn.f32 %f2, %f1, %f2, %f1;
$L_1:
bar.sync 0;
@%p1 fma.rn.f32 %f2, %f1, %f1, %f1;
""")
    kinds = all_of["kinds"]
    check(all_of["diverged"] == 1 and all_of["warps"] == 2 and all_of["blocks"] == 1, all_of)
    check(kinds["fma"]["runs"] == 2 + 2 and kinds["fma"]["lanes"] == 24 * 2 + 40, kinds["fma"])
    check(kinds["barrier"]["runs"] == 2 and kinds["barrier"]["lanes"] == 64, kinds["barrier"])
    check(len(all_of["barriers"]) == 1, all_of["barriers"])


# --- what is wrong -------------------------------------------------------------------------------

SHARED = """
mov.u32 %r20, lk_cuda_shared;
shl.b32 %r21, %r10, 2;
add.s32 %r22, %r20, %r21;
st.shared.u32 [%r22], %r10;
"""
UNDER_WAY = "word of shared memory [0-9a-fx]+, which thread .* by a copy that is under way"
# Instructions, and what is said of them: a pattern.
WRONG = [
    (COPIED + COPY + COMMIT + "ld.shared.u32 %r1, [%r22];", "a race: reads " + UNDER_WAY),
    (COPIED + COPY + WAIT + "ld.shared.u32 %r1, [%r22];", "a race: reads " + UNDER_WAY),
    (COPIED + COPY + COMMIT + "cp.async.wait_group 1;\nld.shared.u32 %r1, [%r22];",
     "a race: reads " + UNDER_WAY),
    (COPIED + COPY + COMMIT + "st.shared.u32 [%r22], %r1;", "a race: writes " + UNDER_WAY),
    (COPIED + COPY + COMMIT + COPY, "a race: writes " + UNDER_WAY),
    (COPIED + COPY + COMMIT + "bar.sync 0;\nld.shared.u32 %r1, [%r20+16];",
     "a race: reads " + UNDER_WAY),
    (COPIED + COPY + COMMIT + WAIT + "ld.shared.u32 %r1, [%r20+16];",
     "with no barrier between|which nobody wrote|" + UNDER_WAY),
    (COPIED + "st.shared.u32 [%r22], %r10;\nbar.sync 0;\nld.shared.u32 %r1, [%r20+16];\n" + COPY +
     COMMIT + WAIT, "a race: (reads|writes) word of shared memory"),
    (COPIED + COPY + COMMIT, "never waited for"),
    (COPIED + COPY + WAIT, "never waited for"),
    (COPIED + "cp.async.ca.shared.global [%r22+2], [%rd4], 4;", "not aligned"),
    (COPIED + "add.s64 %rd4, %rd4, 8;\ncp.async.cg.shared.global [%r22], [%rd4], 16;",
     "not aligned"),
    (COPIED + "cp.async.ca.shared.global [%r22], [%rd1], 4;\nst.global.u64 [%rd3], %rd2;\n" +
     COMMIT + WAIT, "a race: (reads|writes) address"),
    (COPIED + "cp.async.cg.shared.global [%r22], [%rd4], 8;", "copies 8 bytes"),
    (COPIED + "cp.async.ca.shared.global [%r22], [%rd4], 12;", "copies 12 bytes"),
    (COPIED + "cp.async.ca.shared.global [%r22], [%rd4], 4, 8;", "reads more"),
    (COPIED + "cp.async.ca.shared.global [%r22+1024], [%rd4], 4;", "of shared memory, which has"),
    (COPIED + "add.s64 %rd4, %rd4, 65536;\ncp.async.ca.shared.global [%r22], [%rd4], 16;",
     "in no memory|that ends"),
    (COPIED + "cp.async.ca.shared.global [%r22], [%r4], 4;", "another width"),
    (COPIED + "cp.async.ca.shared.global [%r22], [%rd4], 4, 4, %rd5;", "so many operands"),
    ("ex2.approx.f32 %f1, %f2;", "does not know"),
    ("fma.rn.ftz.f32 %f1, %f2, %f3, %f4;", "does not know"),
    ("add.rn.f32 %f1, %f2, %rd3;", "another width"),
    ("add.rn.f32 %f1, %f2;", "so many operands"),
    ("add.rn.f32 %f1, %f2, %f99;", "an operand"),
    ("@%p1 bra $L_9;", "no such label"),
    (".shared .align 4 .b8 own[16];", "a line that"),
    ("ld.global.u32 %r1, [%rd2+62];", "not aligned"),
    ("ld.global.u32 %r1, [%rd2+64];", "in no memory"),
    ("ld.global.v2.u32 {%r1, %r2}, [%rd3+504];\nst.global.u64 [%rd3+8], %rd2;", "in no memory"),
    ("mov.u64 %rd4, 64;\nld.global.u32 %r1, [%rd4];", "in no memory"),
    (SHARED + "ld.shared.u32 %r1, [%r22+256];", "of shared memory, which has 256"),
    ("ld.local.u32 %r1, [__local_depot0+64];", "of local memory, which has 64"),
    ("ld.param.u32 %r1, [k_param_2+8];", "of parameter memory, which has 24"),
    (SHARED + "ld.shared.u32 %r1, [%r20+4];",
     "a race: reads word of shared memory 0x1|word 1 of shared memory, which nobody wrote"),
    (SHARED + "bar.sync 0;\nld.shared.u32 %r1, [%r20+4];\nst.shared.u32 [%r22], %r1;",
     "a race: writes word of shared memory 0x1, which thread"),
    ("mov.u32 %r20, lk_cuda_shared;\nst.shared.u32 [%r20], %r10;",
     "a race: writes word of shared memory 0"),
    ("mov.u32 %r20, lk_cuda_shared;\nld.shared.u32 %r1, [%r20];", "which nobody wrote"),
    ("st.global.u64 [%rd3], %rd2;\nld.global.u64 %rd4, [%rd1];", "a race: (reads|writes) address"),
    ("ld.global.u64 %rd4, [%rd1];\nst.global.u64 [%rd3], %rd2;", "a race: writes address"),
    ("st.global.u8 [%rd1+9], %r10;", "a race: writes address"),
    ("setp.lt.u32 %p1, %r10, 5;\n@%p1 bra $L_1;\nbar.sync 0;\n$L_1:", "the others not"),
    ("setp.lt.u32 %p1, %r10, 32;\n@%p1 bra $L_1;\nbar.sync 0;\n$L_1:", "never come"),
    ("setp.lt.u32 %p1, %r10, 5;\n@%p1 ret;\nbar.sync 0;", "the others not"),
    ("setp.lt.u32 %p1, %r10, 5;\n@%p1 bra.uni $L_1;\nmov.u32 %r1, 0;\n$L_1:", "is said not to"),
    ("bar.sync 1;", "a barrier other than"),
    ("mov.u32 %r4, -1;\nsetp.lt.u32 %p1, %r10, 5;\n"
     "@%p1 shfl.sync.bfly.b32 %r9|%p2, %r10, 1, 31, %r4;", "shuffles among lanes ffffffff"),
    ("mov.u32 %r4, 31;\nsetp.lt.u32 %p1, %r10, 5;\n"
     "@%p1 shfl.sync.bfly.b32 %r9|%p2, %r10, 1, 31, %r4;", "from lane 5"),
    ("and.b32 %r1, %r10, 31;\ndiv.u32 %r2, %r10, %r1;", "divides by zero"),
]


def mistakes():
    for body, wanted in WRONG:
        for seed in (0, 3):
            copied = "cp.async" in body
            code, _, error = run(HEAD + kernel("k", body), data=bytes(1024 if copied else 64),
                                 shared=1024 if copied else 256, seed=seed)
            check(code == 70 and re.search(wanted, error), body, f"exit {code}", error, "wanted",
                  wanted)
    code, _, error = run(HEAD + kernel("k", "mov.u32 %r1, 0;"), threads=257)
    check(code == 70 and "compiled for 256" in error, "too many threads", error)
    code, _, error = run(HEAD + kernel("k", "ld.global.u64 %rd4, [%rd2+56];"), data=bytes(60))
    check(code == 70 and "that ends 4 later" in error, "the end of an allocation", error)
    code, _, error = run(HEAD + ".global .align 4 .b8 table[4];\n" + kernel("k", ""))
    check(code == 70 and "of the module" in error, "variables", error)
    for store in ("mov.u32 %r20, lk_cuda_shared;\nst.shared.u32 [%r20], %r10;",
                  "st.global.u8 [%rd1+9], %r10;"):
        code, _, error = run(HEAD + kernel("k", store), threads=32, shared=4)
        check(code == 70 and "a race: writes" in error, "lanes of a warp", store, error)
    # Blocks race, too; and the same is right with an atomic, or for different bytes.
    other = "rem.u32 %r1, %r13, 64;\nmul.wide.u32 %rd4, %r1, 8;\nadd.s64 %rd4, %rd1, %rd4;\n"
    code, _, error = run(HEAD + kernel("k", other + "st.global.u64 [%rd4], %rd2;"), blocks=2)
    check(code == 70 and "which another block touched" in error, "two blocks", error)
    values(other + "atom.global.add.u32 %r2, [%rd4], 1;", blocks=2)
    values("cvt.u64.u32 %rd4, %r13;\nadd.s64 %rd4, %rd1, %rd4;\nst.global.u8 [%rd4], %r10;",
           blocks=2)


if __name__ == "__main__":
    for part in (arithmetic, branches, barriers, shuffles, memory, copies, counts, mistakes):
        part()
    print(f"{failures} failures")
    sys.exit(1 if failures else 0)
