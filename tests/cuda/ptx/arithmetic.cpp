// arithmetic.cpp - rules that compute: floats rounded to nearest, integers, predicates, bits,
// conversions and moves. No word here flushes subnormals, approximates or rounds otherwise.
//
// Compiled without contraction and with the processor's fused multiply-add. A result that is no
// number has the bits that the processor gives it, which may differ from a GPU's.
#include <math.h>
#include <string.h>

#include <type_traits>

#include "ptx.h"

namespace {

// --- lanes ---------------------------------------------------------------------------------------

// How a value of T lies in a register: 16 bits and less in the low bits of 32.
template <typename T>
struct stored {
    typedef typename std::conditional<
        std::is_same<T, float>::value, float,
        typename std::conditional<(sizeof(T) > 4), uint64_t, uint32_t>::type>::type type;
};
template <typename T>
static inline typename stored<T>::type to_store(T value) {
    if constexpr (std::is_same<T, float>::value) {
        return value;
    } else {
        return static_cast<typename std::make_unsigned<T>::type>(value);
    }
}
template <typename T>
static inline const typename stored<T>::type *lanes(const lk_ptx_warp *w, uint32_t o) {
    return static_cast<const typename stored<T>::type *>(lk_ptx_at(w, o));
}

template <typename S, typename F>
static inline void write_lanes(lk_ptx_warp *w, uint32_t o, uint32_t mask, F value) {
    S *to = static_cast<S *>(lk_ptx_to(w, o));
    if (mask == UINT32_MAX) {
        LK_PTX_EACH(lane) to[lane] = value(lane);
    } else {
        LK_PTX_EACH(lane) {
            const S v = value(lane);
            to[lane] = mask >> lane & 1 ? v : to[lane];
        }
    }
}

template <typename O>
void one(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask) {
    typedef typename O::in T;
    const auto *a = lanes<T>(w, i->o[1]);
    write_lanes<typename stored<typename O::out>::type>(w, i->o[0], mask, [=](uint32_t n) {
        return to_store<typename O::out>(O::of(static_cast<T>(a[n])));
    });
}

template <typename O>
void two(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask) {
    typedef typename O::in T;
    const auto *a = lanes<T>(w, i->o[1]), *b = lanes<T>(w, i->o[2]);
    write_lanes<typename stored<typename O::out>::type>(w, i->o[0], mask, [=](uint32_t n) {
        return to_store<typename O::out>(O::of(static_cast<T>(a[n]), static_cast<T>(b[n])));
    });
}

template <typename O>
void three(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask) {
    typedef typename O::in T;
    const auto *a = lanes<T>(w, i->o[1]), *b = lanes<T>(w, i->o[2]), *c = lanes<T>(w, i->o[3]);
    write_lanes<typename stored<T>::type>(w, i->o[0], mask, [=](uint32_t n) {
        return to_store<T>(O::of(static_cast<T>(a[n]), static_cast<T>(b[n]), static_cast<T>(c[n])));
    });
}

#define LK_ONE(name, T, R, value)            \
    struct name {                            \
        typedef T in;                        \
        typedef R out;                       \
        static R of(T a) { return (value); } \
    }
#define LK_TWO(name, T, R, value)                 \
    struct name {                                 \
        typedef T in;                             \
        typedef R out;                            \
        static R of(T a, T b) { return (value); } \
    }
#define LK_THREE(name, T, value)                       \
    struct name {                                      \
        typedef T in;                                  \
        static T of(T a, T b, T c) { return (value); } \
    }

// --- floats --------------------------------------------------------------------------------------

LK_TWO(float_add, float, float, a + b);
LK_TWO(float_sub, float, float, a - b);
LK_TWO(float_mul, float, float, a *b);
LK_TWO(float_div, float, float, a / b);
LK_ONE(float_rcp, float, float, 1.0f / a);
LK_ONE(float_sqrt, float, float, __builtin_sqrtf(a));
LK_THREE(float_fma, float, __builtin_fmaf(a, b, c));

static inline uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
LK_ONE(float_neg, uint32_t, uint32_t, a ^ 0x80000000u);
LK_ONE(float_abs, uint32_t, uint32_t, a & 0x7fffffffu);
LK_TWO(float_copysign, uint32_t, uint32_t, (b & 0x7fffffffu) | (a & 0x80000000u));
// Of a number and none, the number; +0 is more than -0.
LK_TWO(float_max, float, float,
       a != a             ? b
       : b != b           ? a
       : a > b            ? a
       : b > a            ? b
       : bits_of(a) >> 31 ? b
                          : a);
LK_TWO(float_min, float, float,
       a != a             ? b
       : b != b           ? a
       : a < b            ? a
       : b < a            ? b
       : bits_of(a) >> 31 ? a
                          : b);

// --- integers ------------------------------------------------------------------------------------

template <typename T>
struct number {
    typedef typename std::conditional<(sizeof(T) > 4), uint64_t, uint32_t>::type U;
    static U u(T a) { return static_cast<U>(a); }
    LK_TWO(add, T, T, static_cast<T>(u(a) + u(b)));
    LK_TWO(sub, T, T, static_cast<T>(u(a) - u(b)));
    LK_TWO(mul, T, T, static_cast<T>(u(a) * u(b)));
    LK_THREE(mad, T, static_cast<T>(u(a) * u(b) + u(c)));
    LK_TWO(min, T, T, a < b ? a : b);
    LK_TWO(max, T, T, a > b ? a : b);
    LK_TWO(and_, T, T, a &b);
    LK_TWO(or_, T, T, a | b);
    LK_TWO(xor_, T, T, a ^ b);
    LK_ONE(not_, T, T, static_cast<T>(~a));
    LK_ONE(neg, T, T, static_cast<T>(0 - u(a)));
    LK_ONE(same, T, T, a);
    // By -1 the least number has no quotient: it stays.
    static bool negates(T b) { return std::is_signed<T>::value && b == static_cast<T>(-1); }
    LK_TWO(div, T, T, negates(b) ? static_cast<T>(0 - u(a)) : static_cast<T>(a / b));
    LK_TWO(rem, T, T, negates(b) ? 0 : a % b);
};
LK_ONE(count_bits, uint32_t, uint32_t, (uint32_t)__builtin_popcount(a));
LK_ONE(high_of_64, uint64_t, uint32_t, (uint32_t)(a >> 32));
LK_ONE(high_of_32, uint32_t, uint16_t, (uint16_t)(a >> 16));
LK_TWO(wide_u16, uint16_t, uint32_t, (uint32_t)a *b);
LK_TWO(wide_u32, uint32_t, uint64_t, (uint64_t)a *b);
LK_TWO(wide_s32, int32_t, int64_t, (int64_t)a *b);
LK_TWO(high_u32, uint32_t, uint32_t, (uint32_t)((uint64_t)a *b >> 32));
LK_TWO(high_u64, uint64_t, uint64_t, (uint64_t)((unsigned __int128)a *b >> 64));

// What divides in inactive lanes may be zero.
template <typename O>
void divide(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask) {
    typedef typename O::in T;
    const auto *a = lanes<T>(w, i->o[1]), *b = lanes<T>(w, i->o[2]);
    auto *to = static_cast<typename stored<T>::type *>(lk_ptx_to(w, i->o[0]));
    LK_PTX_LANES(lane, mask) {
        if (b[lane] == 0) lk_ptx_die(w, i, lane, "divides by zero");
        to[lane] = to_store<T>(O::of(static_cast<T>(a[lane]), static_cast<T>(b[lane])));
    }
}

// The distance has 32 bits; what is moved by all its bits and more is gone.
template <typename T>
void shift_left(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask) {
    const auto *a = lanes<T>(w, i->o[1]);
    const uint32_t *by = lanes<uint32_t>(w, i->o[2]);
    write_lanes<typename stored<T>::type>(w, i->o[0], mask, [=](uint32_t n) {
        const T moved = static_cast<T>(static_cast<T>(a[n]) << (by[n] & (8 * sizeof(T) - 1)));
        return to_store<T>(by[n] < 8 * sizeof(T) ? moved : (T)0);
    });
}
template <typename T>
void shift_right(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask) {
    const auto *a = lanes<T>(w, i->o[1]);
    const uint32_t *by = lanes<uint32_t>(w, i->o[2]);
    write_lanes<typename stored<T>::type>(w, i->o[0], mask, [=](uint32_t n) {
        const T from = static_cast<T>(a[n]);
        const T moved = static_cast<T>(from >> (by[n] & (8 * sizeof(T) - 1)));
        return to_store<T>(by[n] < 8 * sizeof(T) ? moved : (T)(from < 0 ? -1 : 0));
    });
}

// The low `count` bits of a, at `at` of b.
void bit_field_insert(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask) {
    const uint32_t *a = lanes<uint32_t>(w, i->o[1]), *b = lanes<uint32_t>(w, i->o[2]);
    const uint32_t *at = lanes<uint32_t>(w, i->o[3]), *count = lanes<uint32_t>(w, i->o[4]);
    write_lanes<uint32_t>(w, i->o[0], mask, [=](uint32_t n) {
        const uint32_t p = at[n] & 255, bits = count[n] & 255;
        const uint32_t low = bits > 31 ? UINT32_MAX : ((uint32_t)1 << bits) - 1;
        const uint32_t field = p > 31 ? 0 : low << p;
        return (b[n] & ~field) | (a[n] << (p & 31) & field);
    });
}

// `count` bits of a from `at` on.
void bit_field_extract(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask) {
    const uint32_t *a = lanes<uint32_t>(w, i->o[1]);
    const uint32_t *at = lanes<uint32_t>(w, i->o[2]), *count = lanes<uint32_t>(w, i->o[3]);
    write_lanes<uint32_t>(w, i->o[0], mask, [=](uint32_t n) {
        const uint32_t p = at[n] & 255, bits = count[n] & 255;
        const uint32_t low = bits > 31 ? UINT32_MAX : ((uint32_t)1 << bits) - 1;
        return (p > 31 ? 0 : a[n] >> (p & 31)) & low;
    });
}

// Four bytes of the eight of b and a, each as four bits of c say; the highest: the sign alone.
void permute_bytes(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask) {
    const uint32_t *a = lanes<uint32_t>(w, i->o[1]), *b = lanes<uint32_t>(w, i->o[2]);
    const uint32_t *c = lanes<uint32_t>(w, i->o[3]);
    write_lanes<uint32_t>(w, i->o[0], mask, [=](uint32_t n) {
        const uint64_t all = (uint64_t)b[n] << 32 | a[n];
        uint32_t value = 0;
        for (uint32_t k = 0; k < 4; k++) {
            const uint32_t pick = c[n] >> 4 * k & 15;
            uint32_t byte = (uint32_t)(all >> 8 * (pick & 7)) & 255;
            if (pick & 8) byte = byte & 128 ? 255 : 0;
            value |= byte << 8 * k;
        }
        return value;
    });
}

// --- predicates ----------------------------------------------------------------------------------

template <typename O>
void compare(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask) {
    typedef typename O::in T;
    const auto *a = lanes<T>(w, i->o[1]), *b = lanes<T>(w, i->o[2]);
    uint32_t value = 0;
    for (uint32_t n = 0; n < 32; n++) {
        value |= (uint32_t)O::of(static_cast<T>(a[n]), static_cast<T>(b[n])) << n;
    }
    lk_ptx_set_predicate(w, i->o[0], mask, value);
}
template <typename T>
struct is {
    LK_TWO(eq, T, bool, a == b);
    LK_TWO(ne, T, bool, a<b || a> b);  // of floats: both are numbers
    LK_TWO(lt, T, bool, a < b);
    LK_TWO(le, T, bool, a <= b);
    LK_TWO(gt, T, bool, a > b);
    LK_TWO(ge, T, bool, a >= b);
    LK_TWO(equ, T, bool, !(a < b || a > b));  // or one is no number
    LK_TWO(neu, T, bool, !(a == b));
    LK_TWO(ltu, T, bool, !(a >= b));
    LK_TWO(leu, T, bool, !(a > b));
    LK_TWO(gtu, T, bool, !(a <= b));
    LK_TWO(geu, T, bool, !(a < b));
    LK_TWO(num, T, bool, a == a && b == b);
    LK_TWO(nan, T, bool, a != a || b != b);
};

LK_TWO(both, uint32_t, uint32_t, a &b);
LK_TWO(either, uint32_t, uint32_t, a | b);
LK_TWO(other, uint32_t, uint32_t, a ^ b);
template <typename O>
void two_predicates(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask) {
    lk_ptx_set_predicate(w, i->o[0], mask,
                         O::of(lk_ptx_predicate(w, i->o[1]), lk_ptx_predicate(w, i->o[2])));
}
void not_predicate(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask) {
    lk_ptx_set_predicate(w, i->o[0], mask, ~lk_ptx_predicate(w, i->o[1]));
}
void move_predicate(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask) {
    lk_ptx_set_predicate(w, i->o[0], mask, lk_ptx_predicate(w, i->o[1]));
}

template <typename T>
void select(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask) {
    const auto *a = lanes<T>(w, i->o[1]), *b = lanes<T>(w, i->o[2]);
    const uint32_t which = lk_ptx_predicate(w, i->o[3]);
    write_lanes<typename stored<T>::type>(w, i->o[0], mask,
                                          [=](uint32_t n) { return which >> n & 1 ? a[n] : b[n]; });
}

// --- conversions ---------------------------------------------------------------------------------

template <typename To, typename From>
struct convert {
    typedef From in;
    typedef To out;
    static To of(From a) { return static_cast<To>(a); }  // to floats: to the nearest
};

// To 8 and 16 bits: extended to the register, as the type's sign says.
template <typename To, typename From>
void narrow(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask) {
    const auto *a = lanes<From>(w, i->o[1]);
    const uint32_t kept = i->width == 2 ? 0xffff : UINT32_MAX;
    if (i->width == 8) lk_ptx_die(w, i, 0, "a register of 64 bits");
    write_lanes<uint32_t>(w, i->o[0], mask, [=](uint32_t n) {
        const To value = static_cast<To>(static_cast<From>(a[n]));
        return (uint32_t)(int32_t)value & kept;
    });
}

// --- the table -----------------------------------------------------------------------------------

typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef uint8_t u8;
typedef int8_t s8;
typedef int16_t s16;
typedef int32_t s32;
typedef int64_t s64;

#define LK_INTEGERS(T, W, www)                                        \
    {"add." #T, www, two<number<T>::add>, LK_PTX_INTEGER},            \
        {"sub." #T, www, two<number<T>::sub>, LK_PTX_INTEGER},        \
        {"mul.lo." #T, www, two<number<T>::mul>, LK_PTX_INTEGER},     \
        {"mad.lo." #T, www W, three<number<T>::mad>, LK_PTX_INTEGER}, \
        {"min." #T, www, two<number<T>::min>, LK_PTX_INTEGER},        \
        {"max." #T, www, two<number<T>::max>, LK_PTX_INTEGER},        \
        {"div." #T, www, divide<number<T>::div>, LK_PTX_INTEGER}, {   \
        "rem." #T, www, divide<number<T>::rem>, LK_PTX_INTEGER        \
    }
#define LK_BITS(B, T, ww, www)                                    \
    {"and." #B, www, two<number<T>::and_>, LK_PTX_INTEGER},       \
        {"or." #B, www, two<number<T>::or_>, LK_PTX_INTEGER},     \
        {"xor." #B, www, two<number<T>::xor_>, LK_PTX_INTEGER}, { \
        "not." #B, ww, one<number<T>::not_>, LK_PTX_INTEGER       \
    }
#define LK_COMPARED(word, T, name, ww) \
    { "setp." #name "." word, "P" ww, compare<is<T>::name>, LK_PTX_COMPARE }
#define LK_COMPARE(word, T, ww)                                                               \
    LK_COMPARED(word, T, eq, ww), LK_COMPARED(word, T, ne, ww), LK_COMPARED(word, T, lt, ww), \
        LK_COMPARED(word, T, le, ww), LK_COMPARED(word, T, gt, ww), LK_COMPARED(word, T, ge, ww)
#define LK_COMPARE_UNORDERED(T, ww)                                     \
    LK_COMPARED("f32", T, equ, ww), LK_COMPARED("f32", T, neu, ww),     \
        LK_COMPARED("f32", T, ltu, ww), LK_COMPARED("f32", T, leu, ww), \
        LK_COMPARED("f32", T, gtu, ww), LK_COMPARED("f32", T, geu, ww), \
        LK_COMPARED("f32", T, num, ww), LK_COMPARED("f32", T, nan, ww)

const lk_ptx_rule RULES[] = {
    {"fma.rn.f32", "Wwww", three<float_fma>, LK_PTX_FMA},
    {"add.rn.f32", "Www", two<float_add>, LK_PTX_FLOAT},
    {"add.f32", "Www", two<float_add>, LK_PTX_FLOAT},
    {"sub.rn.f32", "Www", two<float_sub>, LK_PTX_FLOAT},
    {"sub.f32", "Www", two<float_sub>, LK_PTX_FLOAT},
    {"mul.rn.f32", "Www", two<float_mul>, LK_PTX_FLOAT},
    {"mul.f32", "Www", two<float_mul>, LK_PTX_FLOAT},
    {"div.rn.f32", "Www", two<float_div>, LK_PTX_FLOAT},
    {"rcp.rn.f32", "Ww", one<float_rcp>, LK_PTX_FLOAT},
    {"sqrt.rn.f32", "Ww", one<float_sqrt>, LK_PTX_FLOAT},
    {"min.f32", "Www", two<float_min>, LK_PTX_FLOAT},
    {"max.f32", "Www", two<float_max>, LK_PTX_FLOAT},
    {"neg.f32", "Ww", one<float_neg>, LK_PTX_FLOAT},
    {"copysign.f32", "Www", two<float_copysign>, LK_PTX_FLOAT},
    {"abs.f32", "Ww", one<float_abs>, LK_PTX_FLOAT},

    LK_INTEGERS(u16, "w", "Www"),
    LK_INTEGERS(s16, "w", "Www"),
    LK_INTEGERS(u32, "w", "Www"),
    LK_INTEGERS(s32, "w", "Www"),
    LK_INTEGERS(u64, "l", "Lll"),
    LK_INTEGERS(s64, "l", "Lll"),
    LK_BITS(b16, u16, "Ww", "Www"),
    LK_BITS(b32, u32, "Ww", "Www"),
    LK_BITS(b64, u64, "Ll", "Lll"),
    {"neg.s16", "Ww", one<number<s16>::neg>, LK_PTX_INTEGER},
    {"neg.s32", "Ww", one<number<s32>::neg>, LK_PTX_INTEGER},
    {"neg.s64", "Ll", one<number<s64>::neg>, LK_PTX_INTEGER},
    {"mul.wide.u16", "Www", two<wide_u16>, LK_PTX_INTEGER},
    {"mul.wide.u32", "Lww", two<wide_u32>, LK_PTX_INTEGER},
    {"mul.wide.s32", "Lww", two<wide_s32>, LK_PTX_INTEGER},
    {"mul.hi.u32", "Www", two<high_u32>, LK_PTX_INTEGER},
    {"mul.hi.u64", "Lll", two<high_u64>, LK_PTX_INTEGER},
    {"shl.b16", "Www", shift_left<u16>, LK_PTX_INTEGER},
    {"shl.b32", "Www", shift_left<u32>, LK_PTX_INTEGER},
    {"shl.b64", "Llw", shift_left<u64>, LK_PTX_INTEGER},
    {"shr.u16", "Www", shift_right<u16>, LK_PTX_INTEGER},
    {"shr.u32", "Www", shift_right<u32>, LK_PTX_INTEGER},
    {"shr.u64", "Llw", shift_right<u64>, LK_PTX_INTEGER},
    {"shr.s16", "Www", shift_right<s16>, LK_PTX_INTEGER},
    {"shr.s32", "Www", shift_right<s32>, LK_PTX_INTEGER},
    {"shr.s64", "Llw", shift_right<s64>, LK_PTX_INTEGER},
    {"bfi.b32", "Wwwww", bit_field_insert, LK_PTX_INTEGER},
    {"bfe.u32", "Wwww", bit_field_extract, LK_PTX_INTEGER},
    {"popc.b32", "Ww", one<count_bits>, LK_PTX_INTEGER},
    {"prmt.b32", "Wwww", permute_bytes, LK_PTX_INTEGER},

    LK_COMPARE("u16", u16, "ww"),
    LK_COMPARE("s16", s16, "ww"),
    LK_COMPARE("u32", u32, "ww"),
    LK_COMPARE("s32", s32, "ww"),
    LK_COMPARE("u64", u64, "ll"),
    LK_COMPARE("s64", s64, "ll"),
    LK_COMPARE("f32", float, "ww"),
    LK_COMPARE_UNORDERED(float, "ww"),
    LK_COMPARED("b16", u16, eq, "ww"),
    LK_COMPARED("b16", u16, ne, "ww"),
    LK_COMPARED("b32", u32, eq, "ww"),
    LK_COMPARED("b32", u32, ne, "ww"),
    LK_COMPARED("b64", u64, eq, "ll"),
    LK_COMPARED("b64", u64, ne, "ll"),
    {"and.pred", "Ppp", two_predicates<both>, LK_PTX_COMPARE},
    {"or.pred", "Ppp", two_predicates<either>, LK_PTX_COMPARE},
    {"xor.pred", "Ppp", two_predicates<other>, LK_PTX_COMPARE},
    {"not.pred", "Pp", not_predicate, LK_PTX_COMPARE},
    {"mov.pred", "Pp", move_predicate, LK_PTX_MOVE},
    {"selp.b16", "Wwwp", select<u16>, LK_PTX_INTEGER},
    {"selp.u16", "Wwwp", select<u16>, LK_PTX_INTEGER},
    {"selp.s16", "Wwwp", select<u16>, LK_PTX_INTEGER},
    {"selp.b32", "Wwwp", select<u32>, LK_PTX_INTEGER},
    {"selp.u32", "Wwwp", select<u32>, LK_PTX_INTEGER},
    {"selp.s32", "Wwwp", select<u32>, LK_PTX_INTEGER},
    {"selp.f32", "Wwwp", select<float>, LK_PTX_FLOAT},
    {"selp.b64", "Lllp", select<u64>, LK_PTX_INTEGER},
    {"selp.u64", "Lllp", select<u64>, LK_PTX_INTEGER},
    {"selp.s64", "Lllp", select<u64>, LK_PTX_INTEGER},

    {"mov.u16", "Ww", one<number<u16>::same>, LK_PTX_MOVE},
    {"mov.b16", "Ww", one<number<u16>::same>, LK_PTX_MOVE},
    {"mov.u32", "Ww", one<number<u32>::same>, LK_PTX_MOVE},
    {"mov.s32", "Ww", one<number<u32>::same>, LK_PTX_MOVE},
    {"mov.b32", "Ww", one<number<u32>::same>, LK_PTX_MOVE},
    {"mov.f32", "Ww", one<number<u32>::same>, LK_PTX_MOVE},
    {"mov.u64", "Ll", one<number<u64>::same>, LK_PTX_MOVE},
    {"mov.b64", "Ll", one<number<u64>::same>, LK_PTX_MOVE},
    {"cvt.u64.u32", "Lw", one<convert<u64, u32>>, LK_PTX_MOVE},
    {"cvt.u64.u16", "Lw", one<convert<u64, u16>>, LK_PTX_MOVE},
    {"cvt.s64.s32", "Lw", one<convert<s64, s32>>, LK_PTX_MOVE},
    {"cvt.s64.s16", "Lw", one<convert<s64, s16>>, LK_PTX_MOVE},
    {"cvt.u32.u64", "Wl", one<convert<u32, u64>>, LK_PTX_MOVE},
    {"cvt.u32.u16", "Ww", one<convert<u32, u16>>, LK_PTX_MOVE},
    {"cvt.s32.s16", "Ww", one<convert<s32, s16>>, LK_PTX_MOVE},
    {"cvt.s32.s8", "Ww", one<convert<s32, s8>>, LK_PTX_MOVE},
    {"mov.b64.high", "Wl", one<high_of_64>, LK_PTX_MOVE},
    {"mov.b32.high", "Ww", one<high_of_32>, LK_PTX_MOVE},
    {"cvt.u16.u8", "Hw", narrow<u16, u8>, LK_PTX_MOVE},
    {"cvt.u16.u32", "Hw", narrow<u16, u32>, LK_PTX_MOVE},
    {"cvt.u16.u64", "Hl", narrow<u16, u64>, LK_PTX_MOVE},
    {"cvt.s16.s8", "Hw", narrow<s16, s8>, LK_PTX_MOVE},
    {"cvt.rn.f32.u16", "Ww", one<convert<float, u16>>, LK_PTX_FLOAT},
    {"cvt.rn.f32.s16", "Ww", one<convert<float, s16>>, LK_PTX_FLOAT},
    {"cvt.rn.f32.u32", "Ww", one<convert<float, u32>>, LK_PTX_FLOAT},
    {"cvt.rn.f32.s32", "Ww", one<convert<float, s32>>, LK_PTX_FLOAT},
    {"cvt.rn.f32.u64", "Wl", one<convert<float, u64>>, LK_PTX_FLOAT},
    {"cvt.rn.f32.s64", "Wl", one<convert<float, s64>>, LK_PTX_FLOAT},
};

}  // namespace

lk_ptx_rules lk_ptx_arithmetic_rules(void) { return {RULES, sizeof RULES / sizeof RULES[0]}; }
