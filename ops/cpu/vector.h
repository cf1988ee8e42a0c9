// vector.h - the few words that the fast kernels are written in, for each instruction set.
//
// A kernel source (dense.inc.h, conv.inc.h, misc.inc.h) is compiled once per variant by portable.c,
// avx2.c, avx512.c and neon.c, with that file's flags; this header turns the same words into that
// set's instructions. It knows nothing of tensors. Every word rounds as the scalar operation it
// stands for, lane by lane: fma is one rounding everywhere.
//
//   vf, vi, vm          V_LANES floats; V_LANES 32-bit integers; V_LANES yes/no
//   vl                  V_LANES / 2 whole numbers of 64 bits, with the compiler's operators
//   V_LANES             16 (AVX-512), 8 (AVX2), 4 (NEON; portable: SSE2, or the compiler's vectors)
//   V_REGISTERS         vector registers to plan a tile for
//   V_FACTORS           1: a factor of many products is broadcast by its load; V_LANES: a product
//                       takes its factor from any lane of a vector that was loaded whole
//   V_PIN(v)            keeps v in a register: without it gcc 12 loads a shared operand at each use
//   V_FORGET(p)         an address that the compiler shall not know to be near another
//   V_ASIDE(x)          a variable waits in memory from here on: registers are for the loop that
//                       follows, whose own addresses gcc 12 would rather spill
//   v_fetch_to_write(p) asks for a line that is about to be written: taking one back from another
//                       core's cache takes long
//   V_ADD_PRODUCT(s, a, b)  s = fma(a, b, s), and s stays in its register: gcc 12 would spill
//                       rather than let a factor go
//   V_UNROLL            before a loop of constant length over tile registers
//   V_TERMS             terms that a loop of products takes at once: 2, or 1 where a product is
//                       many instructions, beside which those of the loop are few
//   V_UNROLL_TERMS      V_UNROLL for a loop over terms, but where V_TERMS is 1
//   V_APART             1: tiles are functions of their own, since gcc 12 spills registers where
//                       many are inlined into one
//   v_first(count)      the first `count` lanes, count <= V_LANES
//   v_keep(m, a)        a where m, +0 elsewhere
//   v_note, v_noted     bad = v_note(bad, v) per stored vector, from v_zero(); v_noted(bad) is 1
//                       where some v was not finite
//   v_fma_lane(v, l, b, c)  fma(v[l], b, c); l is known to the compiler
//   vh, v_halves(a, b)  2 * V_HALF floats: the first half from memory at a, the second from b
//   v_pick(h, i)        lane l is the float of h whose I_PICK(number) is i[l]; numbers may be added
//                       as I_STEP
//   i_permute(v, i)     lane l is v[i[l]]
//   v_winners(..)       of up to V_LANES pooled gradients d whose cell is `cell` and that are not
//                       zero, writes values and numbers (first, first + 1, ..) side by side;
//                       returns how many. May write V_LANES of each.
//   v_spread(to, count, bits, from)  the floats at `from` to the chosen ones of the first `count`
//                       lanes at `to`, +0 to the others; returns how many were chosen
//   v_max(a, b)         a > b ? a : b
//   l_mul(a, b)         the lower halves of a's lanes times b, of 64 bits
//   v_bits(m)           bit l is lane l
//   v_load_f16(p), v_store_f16(p, v), v_round_f16(v)  floats of 16 bits, as of ops/half.h
//   i_bits(v), v_from_bits(i)  the patterns of floats
//   i_max(a, b), i_max_u(a, b)  the larger one, of signed and of unsigned numbers
//   v_store_cells_first lane l of the bytes gets d ? 2 + c : b, of the yes/no in b, c and d
//   v_transpose(r, p, s)  r[i] gets column i of the V_LANES rows of V_LANES floats at p, p + s, ..
//
// Addresses need no alignment, except for v_stream. The mask of a load or store comes from v_first:
// only the chosen lanes are read (the others are +0), or written.
#ifndef LOCKSTEP_OPS_CPU_VECTOR_H
#define LOCKSTEP_OPS_CPU_VECTOR_H

#include <stdint.h>
#include <string.h>

#include "ops/fmaf.h"
#include "ops/half.h"
#include "ops/math.h"

// A sanitizer's checks in fully unrolled tiles take compilers many minutes: there, plain loops.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer) || __has_feature(undefined_behavior_sanitizer)
#define V_CHECKED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define V_CHECKED 1
#endif

#ifdef V_CHECKED
#define V_INLINE static inline __attribute__((unused))
#define V_NOINLINE static __attribute__((noinline))
#define V_UNROLL
#elif defined(__clang__)
#define V_INLINE static inline __attribute__((always_inline, unused))
#define V_NOINLINE static __attribute__((noinline))
#define V_UNROLL _Pragma("clang loop unroll(full)")
#else
#define V_INLINE static inline __attribute__((always_inline, unused))
#define V_NOINLINE static __attribute__((noinline))
#define V_UNROLL _Pragma("GCC unroll 64")
#endif

// A long word, which compilers would spend minutes on if each use had its own copy.
#define V_CALLED V_NOINLINE __attribute__((unused))

#define V_FORGET(p) __asm__("" : "+r"(p))
#define V_ASIDE(x) __asm__("" : "+m"(x))

V_INLINE void v_fetch_to_write(const float *p) {
#ifdef __x86_64__
    __asm__ volatile("prefetchw %0" : : "m"(*p));
#else
    __builtin_prefetch(p, 1);
#endif
}

#if defined(__AVX512F__)
// --- AVX-512 (F, DQ, BW, VL) -------------------------------------------------------------------
#include <immintrin.h>

enum { V_LANES = 16, V_REGISTERS = 32, V_FACTORS = 1, V_TERMS = 2 };
#define V_HALF 8
typedef __m512 vf, vh;
typedef __m512i vi;
typedef uint64_t vl __attribute__((vector_size(64)));
typedef __mmask16 vm;
#define V_PIN(v) __asm__("" : "+v"(v))

V_INLINE vi i_bits(vf v) { return _mm512_castps_si512(v); }
V_INLINE vf v_from_bits(vi v) { return _mm512_castsi512_ps(v); }
V_INLINE vl l_mul(vl a, uint32_t b) {
    return (vl)_mm512_mul_epu32((vi)a, _mm512_set1_epi64((long long)b));
}
V_INLINE vf v_load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}
V_INLINE void v_store_f16(uint16_t *p, vf v) {
    _mm256_storeu_si256((void *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
V_INLINE vf v_round_f16(vf v) {
    return _mm512_cvtph_ps(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
V_INLINE vf v_set1(float x) { return _mm512_set1_ps(x); }
V_INLINE vf v_load(const float *p) { return _mm512_loadu_ps(p); }
V_INLINE void v_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
V_INLINE void v_stream(float *p, vf v) { _mm512_stream_ps(p, v); }
V_INLINE vm v_first(uint32_t count) { return (vm)((1u << count) - 1); }
V_INLINE vf v_load_mask(const float *p, vm m) { return _mm512_maskz_loadu_ps(m, p); }
V_INLINE void v_store_mask(float *p, vm m, vf v) { _mm512_mask_storeu_ps(p, m, v); }

V_INLINE vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
V_INLINE vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
V_INLINE vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
V_INLINE vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
V_INLINE vf v_sqrt(vf a) { return _mm512_sqrt_ps(a); }
V_INLINE vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
V_INLINE vf v_abs(vf a) { return _mm512_abs_ps(a); }
V_INLINE vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }

V_INLINE vm v_gt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
V_INLINE vf v_select(vm m, vf yes, vf no) { return _mm512_mask_blend_ps(m, no, yes); }
V_INLINE vf v_keep(vm m, vf a) { return _mm512_maskz_mov_ps(m, a); }
V_INLINE uint32_t v_bits(vm m) { return m; }
V_INLINE vf v_note(vf bad, vf v) { return _mm512_fmadd_ps(v, _mm512_setzero_ps(), bad); }
V_INLINE uint32_t v_noted(vf bad) { return _mm512_cmp_ps_mask(bad, bad, _CMP_UNORD_Q) != 0; }

V_INLINE vi i_set1(int32_t x) { return _mm512_set1_epi32(x); }
V_INLINE vi i_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
V_INLINE vi i_and(vi a, vi b) { return _mm512_and_si512(a, b); }
V_INLINE vi i_shift_left(vi a, int bits) { return _mm512_slli_epi32(a, (unsigned)bits); }
V_INLINE vi i_shift_right(vi a, int bits) { return _mm512_srli_epi32(a, (unsigned)bits); }
V_INLINE vm i_eq(vi a, vi b) { return _mm512_cmpeq_epi32_mask(a, b); }
V_INLINE vm i_gt(vi a, vi b) { return _mm512_cmpgt_epi32_mask(a, b); }
V_INLINE vi i_max(vi a, vi b) { return _mm512_max_epi32(a, b); }
V_INLINE vi i_max_u(vi a, vi b) { return _mm512_max_epu32(a, b); }
V_INLINE vi i_select(vm m, vi yes, vi no) { return _mm512_mask_blend_epi32(m, no, yes); }
V_INLINE vf v_from_i(vi a) { return _mm512_cvtepi32_ps(a); }
V_INLINE vi i_load_u8(const uint8_t *p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p));
}
V_INLINE vi i_load_u8_first(const uint8_t *p, uint32_t count) {
    return _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(v_first(count), p));
}
V_INLINE void i_store_u8(uint8_t *p, vi a) {
    _mm_storeu_si128((void *)p, _mm512_cvtepi32_epi8(a));
}
V_INLINE void i_store_u8_first(uint8_t *p, uint32_t count, vi a) {
    _mm_mask_storeu_epi8(p, v_first(count), _mm512_cvtepi32_epi8(a));
}
V_INLINE void v_store_cells_first(uint8_t *p, uint32_t count, vm b, vm c, vm d) {
    __m128i upper = _mm_maskz_set1_epi8(b, 1);
    __m128i lower = _mm_mask_mov_epi8(_mm_set1_epi8(2), c, _mm_set1_epi8(3));
    __m128i cells = _mm_mask_mov_epi8(upper, d, lower);
    if (count >= V_LANES) _mm_storeu_si128((void *)p, cells);
    else _mm_mask_storeu_epi8(p, v_first(count), cells);
}
V_INLINE vi i_load_u16(const uint16_t *p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p));
}
V_INLINE void i_store_u16(uint16_t *p, vi a) {
    _mm256_storeu_si256((void *)p, _mm512_cvtepi32_epi16(a));
}
V_INLINE vh v_halves(const float *a, const float *b) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(a)), _mm256_loadu_ps(b), 1);
}
V_INLINE vf v_pick(vh h, vi index) { return _mm512_permutexvar_ps(index, h); }
V_INLINE vi i_permute(vi v, vi index) { return _mm512_permutexvar_epi32(index, v); }
V_INLINE vi i_load(const int32_t *p) { return _mm512_loadu_si512(p); }
V_INLINE uint32_t v_winners(const float *d, const uint8_t *argmax, uint32_t count, uint8_t cell,
                            uint32_t first, float *values, uint32_t *numbers) {
    const vi lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    vm some = count >= V_LANES ? (vm)0xffff : v_first(count);
    vf value = _mm512_maskz_loadu_ps(some, d);
    __m128i won = _mm_maskz_loadu_epi8(some, argmax);
    vm chosen = _mm_mask_cmpeq_epi8_mask(some, won, _mm_set1_epi8((char)cell));
    chosen = _mm512_mask_cmp_ps_mask(chosen, value, _mm512_setzero_ps(), _CMP_NEQ_OQ);
    _mm512_storeu_ps(values, _mm512_maskz_compress_ps(chosen, value));
    _mm512_storeu_si512(numbers, _mm512_maskz_compress_epi32(
                                     chosen, i_add(lanes, i_set1((int32_t)first))));
    return (uint32_t)__builtin_popcount(chosen);
}
V_INLINE uint32_t v_spread(float *to, uint32_t count, uint32_t bits, const float *from) {
    vf v = _mm512_maskz_expandloadu_ps((vm)bits, from);
    if (count >= V_LANES) v_store(to, v);
    else v_store_mask(to, v_first(count), v);
    return (uint32_t)__builtin_popcount(bits);
}

// Quarters of four rows are gathered by loads; what is left is within the quarters.
V_INLINE void v_transpose(vf r[V_LANES], const float *p, uint64_t stride) {
    V_UNROLL for (int i = 0; i < 16; i += 4) {
        vf q[4];
        V_UNROLL for (int j = 0; j < 4; j++) {
            const float *row = p + (uint64_t)j * stride + i;
            q[j] = _mm512_castps128_ps512(_mm_loadu_ps(row));
            q[j] = _mm512_insertf32x4(q[j], _mm_loadu_ps(row + 4 * stride), 1);
            q[j] = _mm512_insertf32x4(q[j], _mm_loadu_ps(row + 8 * stride), 2);
            q[j] = _mm512_insertf32x4(q[j], _mm_loadu_ps(row + 12 * stride), 3);
        }
        __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(q[0], q[1]));
        __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(q[0], q[1]));
        __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(q[2], q[3]));
        __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(q[2], q[3]));
        r[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        r[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        r[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        r[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
}

#elif defined(__AVX2__) && defined(__FMA__)
// --- AVX2 and FMA ------------------------------------------------------------------------------
#include <immintrin.h>

enum { V_LANES = 8, V_REGISTERS = 16, V_FACTORS = 1, V_TERMS = 2 };
#define V_HALF 4
typedef __m256 vf, vh;
typedef __m256i vi;
typedef uint64_t vl __attribute__((vector_size(32)));
typedef __m256 vm;  // all bits of a chosen lane are set
#define V_PIN(v) __asm__("" : "+x"(v))
#ifndef V_CHECKED
#define V_ADD_PRODUCT(sum, a, b) \
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b))
#endif

V_INLINE vi i_bits(vf v) { return _mm256_castps_si256(v); }
V_INLINE vf v_from_bits(vi v) { return _mm256_castsi256_ps(v); }
V_INLINE vl l_mul(vl a, uint32_t b) {
    return (vl)_mm256_mul_epu32((vi)a, _mm256_set1_epi64x((long long)b));
}
V_INLINE vf v_load_f16(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const void *)p));
}
V_INLINE void v_store_f16(uint16_t *p, vf v) {
    _mm_storeu_si128((void *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
V_INLINE vf v_round_f16(vf v) {
    return _mm256_cvtph_ps(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
V_INLINE vf v_set1(float x) { return _mm256_set1_ps(x); }
V_INLINE vf v_load(const float *p) { return _mm256_loadu_ps(p); }
V_INLINE void v_store(float *p, vf v) { _mm256_storeu_ps(p, v); }
V_INLINE void v_stream(float *p, vf v) { _mm256_stream_ps(p, v); }
V_INLINE vm v_first(uint32_t count) {
    static const int32_t edge[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_castsi256_ps(_mm256_loadu_si256((const void *)(edge + 8 - count)));
}
V_INLINE vf v_load_mask(const float *p, vm m) {
    return _mm256_maskload_ps(p, _mm256_castps_si256(m));
}
V_INLINE void v_store_mask(float *p, vm m, vf v) {
    _mm256_maskstore_ps(p, _mm256_castps_si256(m), v);
}

V_INLINE vf v_add(vf a, vf b) { return _mm256_add_ps(a, b); }
V_INLINE vf v_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
V_INLINE vf v_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
V_INLINE vf v_div(vf a, vf b) { return _mm256_div_ps(a, b); }
V_INLINE vf v_sqrt(vf a) { return _mm256_sqrt_ps(a); }
V_INLINE vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
V_INLINE vf v_abs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
V_INLINE vf v_max(vf a, vf b) { return _mm256_max_ps(a, b); }

V_INLINE vm v_gt(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
V_INLINE vf v_select(vm m, vf yes, vf no) { return _mm256_blendv_ps(no, yes, m); }
V_INLINE vf v_keep(vm m, vf a) { return _mm256_and_ps(m, a); }
V_INLINE uint32_t v_bits(vm m) { return (uint32_t)_mm256_movemask_ps(m); }
V_INLINE vf v_note(vf bad, vf v) { return _mm256_fmadd_ps(v, _mm256_setzero_ps(), bad); }
V_INLINE uint32_t v_noted(vf bad) { return v_bits(_mm256_cmp_ps(bad, bad, _CMP_UNORD_Q)) != 0; }

V_INLINE vi i_set1(int32_t x) { return _mm256_set1_epi32(x); }
V_INLINE vi i_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
V_INLINE vi i_and(vi a, vi b) { return _mm256_and_si256(a, b); }
V_INLINE vi i_shift_left(vi a, int bits) { return _mm256_slli_epi32(a, bits); }
V_INLINE vi i_shift_right(vi a, int bits) { return _mm256_srli_epi32(a, bits); }
V_INLINE vm i_eq(vi a, vi b) { return _mm256_castsi256_ps(_mm256_cmpeq_epi32(a, b)); }
V_INLINE vm i_gt(vi a, vi b) { return _mm256_castsi256_ps(_mm256_cmpgt_epi32(a, b)); }
V_INLINE vi i_max(vi a, vi b) { return _mm256_max_epi32(a, b); }
V_INLINE vi i_max_u(vi a, vi b) { return _mm256_max_epu32(a, b); }
V_INLINE vi i_select(vm m, vi yes, vi no) {
    return _mm256_blendv_epi8(no, yes, _mm256_castps_si256(m));
}
V_INLINE vf v_from_i(vi a) { return _mm256_cvtepi32_ps(a); }
V_INLINE vi i_load_u8(const uint8_t *p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p));
}
V_INLINE vi i_load_u8_first(const uint8_t *p, uint32_t count) {
    uint64_t bytes = 0;  // put together in a register: bytes stored cannot be loaded as one at once
    if (count >= 8) {
        memcpy(&bytes, p, 8);
    } else if (count >= 4) {
        uint32_t low, high;
        memcpy(&low, p, 4);
        memcpy(&high, p + count - 4, 4);
        bytes = low | (uint64_t)high << (8 * (count - 4));
    } else if (count > 0) {
        bytes = p[0] | (uint32_t)p[count / 2] << (8 * (count / 2)) |
                (uint32_t)p[count - 1] << (8 * (count - 1));
    }
    return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)bytes));
}
V_INLINE vi i_load_u16(const uint16_t *p) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p));
}
V_INLINE void i_store_u16(uint16_t *p, vi a) {
    __m128i low = _mm256_castsi256_si128(a), high = _mm256_extracti128_si256(a, 1);
    _mm_storeu_si128((void *)p, _mm_packus_epi32(low, high));
}
V_INLINE void i_store_u8(uint8_t *p, vi a) {
    __m128i low = _mm256_castsi256_si128(a), high = _mm256_extracti128_si256(a, 1);
    __m128i words = _mm_packus_epi32(low, high);
    _mm_storel_epi64((void *)p, _mm_packus_epi16(words, words));
}
V_INLINE void i_store_u8_first(uint8_t *p, uint32_t count, vi a) {
    uint8_t bytes[8];
    i_store_u8(bytes, a);
    for (uint32_t i = 0; i < count; i++) p[i] = bytes[i];
}
V_INLINE void v_store_cells_first(uint8_t *p, uint32_t count, vm b, vm c, vm d) {
    vi upper = i_select(b, i_set1(1), i_set1(0)), lower = i_select(c, i_set1(3), i_set1(2));
    vi cells = i_select(d, lower, upper);
    if (count >= V_LANES) i_store_u8(p, cells);
    else i_store_u8_first(p, count, cells);
}

V_INLINE vh v_halves(const float *a, const float *b) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(a)), _mm_loadu_ps(b), 1);
}
V_INLINE vf v_pick(vh h, vi index) { return _mm256_permutevar8x32_ps(h, index); }
V_INLINE vi i_permute(vi v, vi index) { return _mm256_permutevar8x32_epi32(v, index); }
V_INLINE vi i_load(const int32_t *p) { return _mm256_loadu_si256((const void *)p); }

// Halves of two rows are gathered by loads; what is left is within the halves.
V_INLINE void v_transpose(vf r[V_LANES], const float *p, uint64_t stride) {
    V_UNROLL for (int i = 0; i < 8; i += 4) {
        vf q[4];
        V_UNROLL for (int j = 0; j < 4; j++) {
            const float *row = p + (uint64_t)j * stride + i;
            q[j] = _mm256_castps128_ps256(_mm_loadu_ps(row));
            q[j] = _mm256_insertf128_ps(q[j], _mm_loadu_ps(row + 4 * stride), 1);
        }
        vf a = _mm256_unpacklo_ps(q[0], q[1]), b = _mm256_unpackhi_ps(q[0], q[1]);
        vf c = _mm256_unpacklo_ps(q[2], q[3]), d = _mm256_unpackhi_ps(q[2], q[3]);
        r[i] = _mm256_shuffle_ps(a, c, 0x44);
        r[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
        r[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
        r[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
    }
}

#elif defined(V_NEON)
// --- NEON (AArch64) ------------------------------------------------------------------------------
// Every AArch64 has it, so portable.c sees the same compiler: neon.c asks for these words by name.
#include <arm_neon.h>

enum { V_LANES = 4, V_REGISTERS = 32, V_FACTORS = 4, V_TERMS = 2 };
#define V_HALF 4
typedef float32x4_t vf;
typedef float32x4x2_t vh;
typedef int32x4_t vi;
typedef uint64_t vl __attribute__((vector_size(16)));
typedef uint32x4_t vm;  // all bits of a chosen lane are set
#define V_PIN(v) (void)(v)  // fmla has no operand in memory
#define V_APART 1

V_INLINE vi i_bits(vf v) { return vreinterpretq_s32_f32(v); }
V_INLINE vf v_from_bits(vi v) { return vreinterpretq_f32_s32(v); }
V_INLINE vl l_mul(vl a, uint32_t b) {
    return (vl)vmull_u32(vmovn_u64((uint64x2_t)a), vdup_n_u32(b));
}
V_INLINE vf v_load_f16(const uint16_t *p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
V_INLINE void v_store_f16(uint16_t *p, vf v) {
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v)));
}
V_INLINE vf v_round_f16(vf v) { return vcvt_f32_f16(vcvt_f16_f32(v)); }
V_INLINE vf v_set1(float x) { return vdupq_n_f32(x); }
V_INLINE vf v_load(const float *p) { return vld1q_f32(p); }
V_INLINE void v_store(float *p, vf v) { vst1q_f32(p, v); }
V_INLINE void v_stream(float *p, vf v) { vst1q_f32(p, v); }
V_INLINE vm v_first(uint32_t count) { return vcltq_u32((vm){0, 1, 2, 3}, vdupq_n_u32(count)); }
V_INLINE vf v_load_mask(const float *p, vm m) {
    if (m[3]) return v_load(p);
    if (!m[1]) return m[0] ? vld1q_lane_f32(p, v_set1(0.0f), 0) : v_set1(0.0f);
    vf v = vcombine_f32(vld1_f32(p), vdup_n_f32(0.0f));
    return m[2] ? vld1q_lane_f32(p + 2, v, 2) : v;
}
V_INLINE void v_store_mask(float *p, vm m, vf v) {
    if (m[3]) {
        v_store(p, v);
    } else if (m[1]) {
        vst1_f32(p, vget_low_f32(v));
        if (m[2]) vst1q_lane_f32(p + 2, v, 2);
    } else if (m[0]) {
        vst1q_lane_f32(p, v, 0);
    }
}

V_INLINE vf v_add(vf a, vf b) { return vaddq_f32(a, b); }
V_INLINE vf v_sub(vf a, vf b) { return vsubq_f32(a, b); }
V_INLINE vf v_mul(vf a, vf b) { return vmulq_f32(a, b); }
V_INLINE vf v_div(vf a, vf b) { return vdivq_f32(a, b); }
V_INLINE vf v_sqrt(vf a) { return vsqrtq_f32(a); }
V_INLINE vf v_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
V_INLINE vf v_abs(vf a) { return vabsq_f32(a); }

V_INLINE vm v_gt(vf a, vf b) { return vcgtq_f32(a, b); }
V_INLINE vf v_select(vm m, vf yes, vf no) { return vbslq_f32(m, yes, no); }
V_INLINE vf v_keep(vm m, vf a) {
    return vreinterpretq_f32_u32(vandq_u32(m, vreinterpretq_u32_f32(a)));
}
// Not vmaxq_f32: of two zeros it takes +0.
V_INLINE vf v_max(vf a, vf b) { return v_select(v_gt(a, b), a, b); }
V_INLINE uint32_t v_bits(vm m) { return vaddvq_u32(vandq_u32(m, (vm){1, 2, 4, 8})); }
V_INLINE vf v_note(vf bad, vf v) { return vfmaq_f32(bad, v, v_set1(0.0f)); }
V_INLINE uint32_t v_noted(vf bad) { return v_bits(vceqq_f32(bad, bad)) != 15; }

V_INLINE vi i_set1(int32_t x) { return vdupq_n_s32(x); }
V_INLINE vi i_add(vi a, vi b) { return vaddq_s32(a, b); }
V_INLINE vi i_and(vi a, vi b) { return vandq_s32(a, b); }
V_INLINE vi i_shift_left(vi a, int bits) { return vshlq_s32(a, vdupq_n_s32(bits)); }
V_INLINE vi i_shift_right(vi a, int bits) {
    return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), vdupq_n_s32(-bits)));
}
V_INLINE vm i_eq(vi a, vi b) { return vceqq_s32(a, b); }
V_INLINE vm i_gt(vi a, vi b) { return vcgtq_s32(a, b); }
V_INLINE vi i_max(vi a, vi b) { return vmaxq_s32(a, b); }
V_INLINE vi i_max_u(vi a, vi b) {
    return vreinterpretq_s32_u32(vmaxq_u32(vreinterpretq_u32_s32(a), vreinterpretq_u32_s32(b)));
}
V_INLINE vi i_select(vm m, vi yes, vi no) { return vbslq_s32(m, yes, no); }
V_INLINE vf v_from_i(vi a) { return vcvtq_f32_s32(a); }
V_INLINE vi i_from_bytes(uint32_t bytes) {
    uint16x8_t words = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(bytes)));
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(words)));
}
V_INLINE vi i_load_u8(const uint8_t *p) {
    uint32_t bytes;
    memcpy(&bytes, p, sizeof bytes);
    return i_from_bytes(bytes);
}
V_INLINE vi i_load_u8_first(const uint8_t *p, uint32_t count) {
    if (count >= V_LANES) return i_load_u8(p);
    uint32_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) bytes |= (uint32_t)p[i] << 8 * i;
    return i_from_bytes(bytes);
}
V_INLINE uint32_t i_to_bytes(vi a) {
    uint16x4_t words = vmovn_u32(vreinterpretq_u32_s32(a));
    return vget_lane_u32(vreinterpret_u32_u8(vmovn_u16(vcombine_u16(words, words))), 0);
}
V_INLINE void i_store_u8(uint8_t *p, vi a) {
    uint32_t bytes = i_to_bytes(a);
    memcpy(p, &bytes, sizeof bytes);
}
V_INLINE void i_store_u8_first(uint8_t *p, uint32_t count, vi a) {
    uint32_t bytes = i_to_bytes(a);
    for (uint32_t i = 0; i < count; i++) p[i] = (uint8_t)(bytes >> 8 * i);
}
V_INLINE vi i_load_u16(const uint16_t *p) { return vreinterpretq_s32_u32(vmovl_u16(vld1_u16(p))); }
V_INLINE void i_store_u16(uint16_t *p, vi a) {
    vst1_u16(p, vmovn_u32(vreinterpretq_u32_s32(a)));
}
V_INLINE void v_store_cells_first(uint8_t *p, uint32_t count, vm b, vm c, vm d) {
    // A yes is -1: 0 - b is 0 or 1, 2 - c is 2 or 3.
    vi upper = vnegq_s32(vreinterpretq_s32_u32(b));
    vi lower = vsubq_s32(i_set1(2), vreinterpretq_s32_u32(c));
    vi cells = i_select(d, lower, upper);
    if (count >= V_LANES) i_store_u8(p, cells);
    else i_store_u8_first(p, count, cells);
}

// A table look-up is by bytes: float number n is bytes 4n .. 4n + 3.
#define I_PICK(number) ((number) * 0x04040404 + 0x03020100)
#define I_STEP 0x04040404
V_INLINE vh v_halves(const float *a, const float *b) { return (vh){{v_load(a), v_load(b)}}; }
V_INLINE vf v_pick(vh h, vi index) {
    uint8x16x2_t bytes = {{vreinterpretq_u8_f32(h.val[0]), vreinterpretq_u8_f32(h.val[1])}};
    return vreinterpretq_f32_u8(vqtbl2q_u8(bytes, vreinterpretq_u8_s32(index)));
}
V_INLINE vi i_permute(vi v, vi index) {
    vi bytes = vmlaq_n_s32(i_set1(I_PICK(0)), index, I_STEP);
    return vreinterpretq_s32_u8(vqtbl1q_u8(vreinterpretq_u8_s32(v), vreinterpretq_u8_s32(bytes)));
}
V_INLINE vi i_load(const int32_t *p) { return vld1q_s32(p); }

// The bits of *p: 0 is +0.
V_INLINE uint32_t v_word(const float *p) {
    uint32_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

// Bit i: p[i] is not +0, i < 16.
V_INLINE uint32_t v_marks(const float *p) {
    static const uint8_t weights[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint16x8_t half[2];
    V_UNROLL for (int i = 0; i < 2; i++) {
        vi low = vreinterpretq_s32_f32(v_load(p + 8 * i));
        vi high = vreinterpretq_s32_f32(v_load(p + 8 * i + 4));
        half[i] = vuzp1q_u16(vreinterpretq_u16_u32(vtstq_s32(low, low)),
                             vreinterpretq_u16_u32(vtstq_s32(high, high)));
    }
    uint8x16_t marks = vuzp1q_u8(vreinterpretq_u8_u16(half[0]), vreinterpretq_u8_u16(half[1]));
    marks = vandq_u8(marks, vld1q_u8(weights));
    V_UNROLL for (int i = 0; i < 3; i++) marks = vpaddq_u8(marks, marks);
    return vgetq_lane_u16(vreinterpretq_u16_u8(marks), 0);
}

V_INLINE void v_transpose(vf r[V_LANES], const float *p, uint64_t stride) {
    float64x2_t t[4];
    V_UNROLL for (int i = 0; i < 4; i += 2, p += 2 * stride) {
        vf even = v_load(p), odd = v_load(p + stride);
        t[i] = vreinterpretq_f64_f32(vtrn1q_f32(even, odd));
        t[i + 1] = vreinterpretq_f64_f32(vtrn2q_f32(even, odd));
    }
    V_UNROLL for (int i = 0; i < 2; i++) {
        r[i] = vreinterpretq_f32_f64(vtrn1q_f64(t[i], t[i + 2]));
        r[i + 2] = vreinterpretq_f32_f64(vtrn2q_f64(t[i], t[i + 2]));
    }
}

#else
// --- portable: vectors of the compiler, SSE2 where fma has to be made from double --------------
#ifdef __SSE2__
#include <emmintrin.h>
#if !defined(__FMA__) && !defined(LK_USE_SOFT_FMAF)
#define V_NO_FMA 1
#endif
#endif

enum { V_LANES = 4, V_REGISTERS = 16, V_FACTORS = 1, V_TERMS = 1 };
#define V_UNROLL_TERMS
#define V_HALF 2
typedef float vf __attribute__((vector_size(16)));
typedef vf vh;
typedef int32_t vi __attribute__((vector_size(16)));
typedef uint32_t vu __attribute__((vector_size(16)));  // whole numbers that may overflow
typedef uint64_t vl __attribute__((vector_size(16)));
typedef vi vm;  // all bits of a chosen lane are set
#ifdef __SSE2__
#define V_PIN(v) __asm__("" : "+x"(v))
#else
#define V_PIN(v) (void)(v)
#endif

V_INLINE vi i_bits(vf v) { return (vi)v; }
V_INLINE vf v_from_bits(vi v) { return (vf)v; }
V_INLINE vl l_mul(vl a, uint32_t b) {
#ifdef __SSE2__
    return (vl)_mm_mul_epu32((__m128i)a, _mm_set1_epi64x((long long)b));
#else
    return (a & UINT32_MAX) * b;
#endif
}
V_INLINE vf v_load_f16(const uint16_t *p) {
    vf v;
    for (int i = 0; i < V_LANES; i++) v[i] = lk_half_to_float(p[i]);
    return v;
}
V_CALLED void v_store_f16(uint16_t *p, vf v) {
    for (int i = 0; i < V_LANES; i++) p[i] = lk_half_from_float(v[i]);
}
V_CALLED vf v_round_f16(vf v) {
    for (int i = 0; i < V_LANES; i++) v[i] = lk_half_to_float(lk_half_from_float(v[i]));
    return v;
}
V_INLINE vf v_set1(float x) { return (vf){x, x, x, x}; }
V_INLINE vf v_load(const float *p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
V_INLINE void v_store(float *p, vf v) { memcpy(p, &v, sizeof v); }
V_INLINE void v_stream(float *p, vf v) { v_store(p, v); }
V_INLINE vm v_first(uint32_t count) { return (vi){0, 1, 2, 3} < (int32_t)count; }
V_INLINE vf v_load_mask(const float *p, vm m) {
    vf v = {0};
    for (int i = 0; i < V_LANES; i++) {
        if (m[i]) v[i] = p[i];
    }
    return v;
}
V_INLINE void v_store_mask(float *p, vm m, vf v) {
    for (int i = 0; i < V_LANES; i++) {
        if (m[i]) p[i] = v[i];
    }
}

V_INLINE vf v_add(vf a, vf b) { return a + b; }
V_INLINE vf v_sub(vf a, vf b) { return a - b; }
V_INLINE vf v_mul(vf a, vf b) { return a * b; }
V_INLINE vf v_div(vf a, vf b) { return a / b; }
V_INLINE vf v_sqrt(vf a) {
#ifdef __SSE2__
    return _mm_sqrt_ps(a);
#else
    for (int i = 0; i < V_LANES; i++) a[i] = lk_sqrtf(a[i]);
    return a;
#endif
}
V_INLINE vf v_abs(vf a) { return (vf)((vi)a & 0x7fffffff); }

#ifdef V_NO_FMA
// lk_wide_fmaf of ops/fmaf.h, which says why, on two lanes.
V_INLINE __m128d v_wide_fma(__m128d a, __m128d b, __m128d addend) {
    const __m128i one = _mm_set1_epi64x(1);
    __m128d product = _mm_mul_pd(a, b), sum = _mm_add_pd(product, addend);
    __m128d from_addend = _mm_sub_pd(sum, product);
    __m128d error = _mm_add_pd(_mm_sub_pd(product, _mm_sub_pd(sum, from_addend)),
                               _mm_sub_pd(addend, from_addend));
    __m128i bits = _mm_castpd_si128(sum), even = _mm_andnot_si128(bits, one);
    __m128i inward = _mm_srli_epi64(_mm_xor_si128(bits, _mm_castpd_si128(error)), 63);
    __m128i step = _mm_slli_epi64(_mm_and_si128(even, inward), 1);
    __m128i odd = _mm_sub_epi64(_mm_add_epi64(bits, even), step);
    __m128d size = _mm_andnot_pd(_mm_set1_pd(-0.0), error);
    __m128i inexact = _mm_castpd_si128(_mm_cmpgt_pd(size, _mm_setzero_pd()));
    return _mm_castsi128_pd(_mm_or_si128(_mm_and_si128(inexact, odd),
                                         _mm_andnot_si128(inexact, bits)));
}
V_INLINE __m128d v_low(vf a) { return _mm_cvtps_pd(a); }
V_INLINE __m128d v_high(vf a) { return _mm_cvtps_pd(_mm_movehl_ps(a, a)); }
V_INLINE vf v_fma_exact(vf a, vf b, vf c) {
    return _mm_movelh_ps(_mm_cvtpd_ps(v_wide_fma(v_low(a), v_low(b), v_low(c))),
                         _mm_cvtpd_ps(v_wide_fma(v_high(a), v_high(b), v_high(c))));
}
V_CALLED vf v_fma_far(vf a, vf b, vf c) { return v_fma_exact(a, b, c); }
#ifdef V_QUICK
// A third of the work. The product is exact in double; the sum is rounded to double and again to
// float. Two roundings differ from one only where the sum in double lies halfway between two
// floats, and is not the exact sum. Halfway, between normal floats, means that the lowest 29 of its
// bits are a one and 28 zeros: those lanes are computed by the long way. Between subnormal floats
// it is another bit; there the conversion is inexact and tiny, so the processor raises its flag of
// underflow: v_underflow() of a whole kernel says whether its results may be used.
V_INLINE vf v_fma(vf a, vf b, vf c) {
    __m128d low = _mm_add_pd(_mm_mul_pd(v_low(a), v_low(b)), v_low(c));
    __m128d high = _mm_add_pd(_mm_mul_pd(v_high(a), v_high(b)), v_high(c));
    __m128 ends = _mm_shuffle_ps(_mm_castpd_ps(low), _mm_castpd_ps(high), 0x88);
    __m128i rest = _mm_slli_epi32(_mm_castps_si128(ends), 3);
    __m128i halfway = _mm_cmpeq_epi32(rest, _mm_set1_epi32(INT32_MIN));
    if (__builtin_expect(_mm_movemask_epi8(halfway), 0)) return v_fma_far(a, b, c);
    return _mm_movelh_ps(_mm_cvtpd_ps(low), _mm_cvtpd_ps(high));
}
#else
V_INLINE vf v_fma(vf a, vf b, vf c) { return v_fma_far(a, b, c); }
#endif
#else
V_INLINE vf v_fma(vf a, vf b, vf c) {
    vf v;
    for (int i = 0; i < V_LANES; i++) v[i] = lk_fmaf(a[i], b[i], c[i]);
    return v;
}
#endif

V_INLINE vm v_gt(vf a, vf b) { return a > b; }
V_INLINE vf v_select(vm m, vf yes, vf no) { return (vf)((m & (vi)yes) | (~m & (vi)no)); }
V_INLINE vf v_keep(vm m, vf a) { return (vf)(m & (vi)a); }
V_INLINE vf v_max(vf a, vf b) { return v_select(v_gt(a, b), a, b); }
V_INLINE uint32_t v_bits(vm m) {
    return (uint32_t)((m[0] & 1) | (m[1] & 2) | (m[2] & 4) | (m[3] & 8));
}
V_INLINE vf v_note(vf bad, vf v) { return bad + v * v_set1(0.0f); }
V_INLINE uint32_t v_noted(vf bad) { return v_bits(bad != bad) != 0; }

V_INLINE vi i_set1(int32_t x) { return (vi){x, x, x, x}; }
V_INLINE vi i_add(vi a, vi b) { return (vi)((vu)a + (vu)b); }
V_INLINE vi i_and(vi a, vi b) { return a & b; }
V_INLINE vi i_shift_left(vi a, int bits) { return (vi)((vu)a << bits); }
V_INLINE vi i_shift_right(vi a, int bits) {
    for (int i = 0; i < V_LANES; i++) a[i] = (int32_t)((uint32_t)a[i] >> bits);
    return a;
}
V_INLINE vm i_eq(vi a, vi b) { return a == b; }
V_INLINE vm i_gt(vi a, vi b) { return a > b; }
V_INLINE vi i_select(vm m, vi yes, vi no) { return (m & yes) | (~m & no); }
V_INLINE vi i_max(vi a, vi b) { return i_select(a > b, a, b); }
V_INLINE vi i_max_u(vi a, vi b) { return i_select((vi)((vu)a > (vu)b), a, b); }
V_INLINE vf v_from_i(vi a) { return __builtin_convertvector(a, vf); }
V_INLINE vi i_load_u8(const uint8_t *p) { return (vi){p[0], p[1], p[2], p[3]}; }
V_INLINE vi i_load_u8_first(const uint8_t *p, uint32_t count) {
    vi a = {0};
    for (uint32_t i = 0; i < count; i++) a[i] = p[i];
    return a;
}
V_INLINE void i_store_u8_first(uint8_t *p, uint32_t count, vi a) {
    for (uint32_t i = 0; i < count; i++) p[i] = (uint8_t)a[i];
}
V_INLINE void i_store_u8(uint8_t *p, vi a) { i_store_u8_first(p, V_LANES, a); }
V_INLINE vi i_load_u16(const uint16_t *p) { return (vi){p[0], p[1], p[2], p[3]}; }
V_INLINE void i_store_u16(uint16_t *p, vi a) {
    for (int i = 0; i < V_LANES; i++) p[i] = (uint16_t)a[i];
}
V_INLINE void v_store_cells_first(uint8_t *p, uint32_t count, vm b, vm c, vm d) {
    vi upper = i_select(b, i_set1(1), i_set1(0)), lower = i_select(c, i_set1(3), i_set1(2));
    vi cells = i_select(d, lower, upper);
    if (count >= V_LANES) i_store_u8(p, cells);
    else i_store_u8_first(p, count, cells);
}

V_INLINE vh v_halves(const float *a, const float *b) { return (vf){a[0], a[1], b[0], b[1]}; }
V_INLINE vf v_pick(vh h, vi index) {
    return (vf){h[index[0]], h[index[1]], h[index[2]], h[index[3]]};
}
V_INLINE vi i_permute(vi v, vi index) {
    return (vi){v[index[0]], v[index[1]], v[index[2]], v[index[3]]};
}
V_INLINE vi i_load(const int32_t *p) { return (vi){p[0], p[1], p[2], p[3]}; }

V_INLINE void v_transpose(vf r[V_LANES], const float *p, uint64_t stride) {
    V_UNROLL for (int i = 0; i < V_LANES; i++) {
        r[i] = (vf){p[i], p[stride + i], p[2 * stride + i], p[3 * stride + i]};
    }
}
#endif

// --- words that are the same everywhere --------------------------------------------------------

#ifndef I_PICK
#define I_PICK(number) (number)
#define I_STEP 1
#endif
#ifndef V_APART
#define V_APART 0
#endif

V_INLINE vf v_zero(void) { return v_set1(0.0f); }

V_INLINE vl l_set1(uint64_t x) { return (vl){0} + x; }

V_INLINE vf v_fma_lane(vf v, int lane, vf b, vf c) { return v_fma(v_set1(v[lane]), b, c); }

// x > 0 ? x : +0, as the reference has it.
V_INLINE vf v_relu(vf x) { return v_max(x, v_zero()); }

#ifndef __AVX512F__
V_INLINE uint32_t v_winners(const float *d, const uint8_t *argmax, uint32_t count, uint8_t cell,
                            uint32_t first, float *values, uint32_t *numbers) {
    uint32_t n = 0;
    count = count < V_LANES ? count : V_LANES;
    for (uint32_t i = 0; i < count; i++) {
        values[n] = d[i];
        numbers[n] = first + i;
        n += (argmax[i] == cell) & (d[i] != 0.0f);
    }
    return n;
}
#endif

#ifndef V_ADD_PRODUCT
#define V_ADD_PRODUCT(sum, a, b) (sum) = v_fma(a, b, sum)
#endif

// Loads and stores of a last, shorter vector; count <= V_LANES.
V_INLINE vf v_load_first(const float *p, uint32_t count) {
    return count >= V_LANES ? v_load(p) : v_load_mask(p, v_first(count));
}
V_INLINE void v_store_first(float *p, uint32_t count, vf v) {
    if (count >= V_LANES) v_store(p, v);
    else v_store_mask(p, v_first(count), v);
}

#ifndef __AVX512F__
V_INLINE uint32_t v_spread(float *to, uint32_t count, uint32_t bits, const float *from) {
    uint32_t n = 0;
    v_store_first(to, count, v_zero());
    for (; bits; bits &= bits - 1) to[__builtin_ctz(bits)] = from[n++];
    return n;
}
#endif

#ifndef V_UNROLL_TERMS
#define V_UNROLL_TERMS V_UNROLL
#endif

#endif
