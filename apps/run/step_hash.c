// step_hash.c - see step_hash.h. The one loop, compiled for what a table's name promises. It is
// products of 64 bits, of which AVX-512 has vectors; without them it takes four times as long.
#include "apps/run/step_hash.h"

#include "comm/step/hash.h"
#include "ops/variant.h"

#ifdef __x86_64__
__attribute__((target("avx512f,avx512vl,avx512dq"))) static uint64_t hash_avx512(
    const float *values, uint64_t count) {
    return lk_step_hash_loop(values, 0, count);
}
#endif

uint64_t lk_step_hash_by(const lk_kernels *kernels, const float *values, uint64_t count) {
#ifdef __x86_64__
    // Who chose the table has asked the processor.
    if (kernels == &lk_kernels_avx512) return hash_avx512(values, count);
#endif
    (void)kernels;
    return lk_step_hash(values, 0, count);
}
