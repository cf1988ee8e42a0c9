// hash.c - see hash.h.
#include "comm/hash.h"

uint64_t lk_step_hash(const float *values, uint64_t first, uint64_t count) {
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
