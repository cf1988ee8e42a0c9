// hash.h - the step hash: per tensor an order-free sum, so that any owner computes its share.
// Freestanding.
#ifndef LOCKSTEP_COMM_HASH_H
#define LOCKSTEP_COMM_HASH_H

#include "arena/base.h"

// Sum, modulo 2^64, over elements i of mix((first + i) * 0x9e3779b97f4a7c15 + bits of values[i]),
// where mix is the finalizer of MurmurHash3 (fmix64, Austin Appleby). The hash of a tensor is the
// sum of the hashes of its parts, whoever computes them.
uint64_t lk_step_hash(const float *values, uint64_t first, uint64_t count);

#endif
