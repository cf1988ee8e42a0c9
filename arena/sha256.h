// sha256.h - SHA-256 (FIPS 180-4) for digests and identities. Freestanding; the host's bulk data
// hashing uses libsodium, against which a test checks this one.
#ifndef LOCKSTEP_ARENA_SHA256_H
#define LOCKSTEP_ARENA_SHA256_H

#include "arena/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LK_SHA256_BYTES = 32, LK_SHA256_HEX_BYTES = 65 };

typedef struct lk_sha256 {
    uint32_t state[8];
    uint64_t bytes;      // hashed so far
    uint8_t block[64];
} lk_sha256;

void lk_sha256_start(lk_sha256 *hash);
void lk_sha256_add(lk_sha256 *hash, const void *data, size_t bytes);
void lk_sha256_finish(lk_sha256 *hash, uint8_t out[LK_SHA256_BYTES]);

// Integers in an encoding of fixed width, little-endian on every machine.
void lk_sha256_add_u32(lk_sha256 *hash, uint32_t value);
void lk_sha256_add_u64(lk_sha256 *hash, uint64_t value);

// Lower-case hexadecimal with a final NUL.
void lk_hex(const uint8_t *bytes, size_t count, char *out);

#ifdef __cplusplus
}
#endif
#endif
