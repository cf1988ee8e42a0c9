// noise.h - noise as a source of values: what an element of it is. ARITHMETIC.md 10. Freestanding,
// also C++ and CUDA: the reference, the vector kernels and the GPU's share it.
//
// An element is a pure function of the seed, the step, the example's place in the global batch, the
// noise's number and the element's own: never of a replica, a thread or the time.
//
//   normal            pairs by Box and Muller: radius sqrt(-2 log u), u in (0, 1], angle v of a
//   circle truncated_normal  the first of LK_NOISE_TRIES normal ones that is at most 2 in size;
//   where none
//                     is, which 1 of 5e10 elements sees, the last one cut to 2
//   uniform           unit floats
//
// A fast kernel makes whole blocks of words at once and takes from here what it leaves over.
#ifndef LOCKSTEP_OPS_NOISE_H
#define LOCKSTEP_OPS_NOISE_H

#include "arena/philox.h"
#include "ops/math.h"

typedef enum lk_noise_kind {
    LK_NOISE_NORMAL,
    LK_NOISE_TRUNCATED_NORMAL,
    LK_NOISE_UNIFORM,
    LK_NOISE_KINDS
} lk_noise_kind;

// 256 numbers for each objective: that of the value.
enum { LK_NOISE_OF_OBJECTIVE = 256 };

typedef struct lk_noise {
    uint32_t kind;        // lk_noise_kind
    uint32_t number;      // LK_NOISE_OF_OBJECTIVE * objective + value
    float offset, scale;  // an element is offset + scale * what is drawn, by one fma
} lk_noise;

// Each try has blocks of its own: example rows of 2^31 values have 2^29 blocks.
enum { LK_NOISE_TRIES = 8, LK_NOISE_TRY_SHIFT = 29 };

// Two normal numbers from two words.
LK_SCALAR lk_cos_sin lk_normal_pair(uint32_t first, uint32_t second) {
    const float u = (float)(int32_t)((first >> 8) + 1u) * 0x1p-24f;
    const float radius = lk_sqrtf(-0x1p+1f * lk_logf(u));
    lk_cos_sin z = lk_cos_sinf(second >> 8);
    z.cosine = radius * z.cosine;
    z.sine = radius * z.sine;
    return z;
}

// Whose words an element is made of.
typedef struct lk_noise_key {
    uint64_t seed, step;
    lk_purpose purpose;
    uint32_t example;
} lk_noise_key;

LK_SCALAR lk_philox_block lk_noise_block(const lk_noise *n, const lk_noise_key *key,
                                         uint32_t block) {
    return lk_philox_step(key->seed, key->purpose, key->step, n->number, key->example, block);
}

// Number `at` of the four normal numbers of a block.
LK_SCALAR float lk_normal_at(const lk_philox_block *drawn, uint32_t at) {
    const lk_cos_sin z = lk_normal_pair(drawn->word[at & 2u], drawn->word[(at & 2u) + 1u]);
    return at & 1u ? z.sine : z.cosine;
}

// What is drawn for an element, before offset and scale; the tries before `begin` were too large.
LK_SCALAR float lk_noise_drawn(const lk_noise *n, const lk_noise_key *key, uint64_t element,
                               uint32_t begin) {
    const uint32_t block = (uint32_t)(element / 4), at = (uint32_t)(element % 4);
    float z = 0.0f;
    for (uint32_t attempt = begin; attempt < (uint32_t)LK_NOISE_TRIES; attempt++) {
        const lk_philox_block drawn =
            lk_noise_block(n, key, block + (attempt << (uint32_t)LK_NOISE_TRY_SHIFT));
        if (n->kind == (uint32_t)LK_NOISE_UNIFORM) return lk_unit_float(drawn.word[at]);
        z = lk_normal_at(&drawn, at);
        if (n->kind == (uint32_t)LK_NOISE_NORMAL) return z;
        if (z >= -0x1p+1f && z <= 0x1p+1f) return z;
    }
    return z < 0.0f ? -0x1p+1f : 0x1p+1f;
}

LK_SCALAR float lk_noise_at(const lk_noise *n, const lk_noise_key *key, uint64_t element) {
    return lk_fmaf(n->scale, lk_noise_drawn(n, key, element, 0), n->offset);
}

#endif
