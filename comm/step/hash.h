// hash.h - what a state of training is known by: the digest of its parameters, the hash of all of
// it, and the step hash, per tensor an order-free sum, so that any owner computes its share.
// Freestanding.
#ifndef LOCKSTEP_COMM_STEP_HASH_H
#define LOCKSTEP_COMM_STEP_HASH_H

#include "ops/graph/program.h"

// Sum, modulo 2^64, over elements i of mix((first + i) * 0x9e3779b97f4a7c15 + bits of values[i]),
// where mix is the finalizer of MurmurHash3 (fmix64, Austin Appleby). The hash of a tensor is the
// sum of the hashes of its parts, whoever computes them.
uint64_t lk_step_hash(const float *values, uint64_t first, uint64_t count);

// Its loop, for whoever compiles it for wider vectors (apps/run/step_hash.c).
static inline __attribute__((always_inline)) uint64_t lk_step_hash_loop(const float *values,
                                                                        uint64_t first,
                                                                        uint64_t count) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits;
        __builtin_memcpy(&bits, &values[i], sizeof bits);
        uint64_t h = (first + i) * 0x9e3779b97f4a7c15u + bits;
        h = (h ^ h >> 33) * 0xff51afd7ed558ccdu;
        h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53u;
        sum += h ^ h >> 33;
    }
    return sum;
}

// Digest: SHA-256 over all parameters in canonical order, then the states that evaluation reads.
// State hash: parameters, then every slot of every parameter, then the number of steps done, then
// all states. `device` is the start of the device region.
void lk_digest(const lk_program *program, const uint8_t *device, char hex[LK_SHA256_HEX_BYTES]);
void lk_state_hash(const lk_program *program, const uint8_t *device, uint64_t steps_done,
                   char hex[LK_SHA256_HEX_BYTES]);

#endif
