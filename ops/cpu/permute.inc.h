// permute.inc.h - the order of examples, several positions at once: lk_permute of
// arena/permutation.h, a position a lane. Included by table.inc.h.
//
// A lane is 64 bits wide, so that a product of 32 bits fits; of the state only the lower halves
// count. Two vectors are on their way at once, since a product takes several cycles.

enum { WIDE_LANES = V_LANES / 2, PERMUTE_VECTORS = 2, PERMUTE_AT_ONCE = V_LANES };
_Static_assert(PERMUTE_AT_ONCE == PERMUTE_VECTORS * WIDE_LANES, "lanes of a pass");

enum { PHILOX_ROUNDS = 10 };

// The keys of Philox's rounds, which are the same for all positions.
static void philox_keys(uint64_t seed, uint32_t keys[PHILOX_ROUNDS][2]) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32) ^ (uint32_t)LK_PURPOSE_SHUFFLE;
    for (int r = 0; r < PHILOX_ROUNDS; r++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        keys[r][0] = k0;
        keys[r][1] = k1;
    }
}

// One round of the network: F of `right`, joined to `left`.
V_INLINE void permute_round(const lk_permutation *p, uint32_t keys[PHILOX_ROUNDS][2],
                            uint32_t round, vl left[PERMUTE_VECTORS], vl right[PERMUTE_VECTORS]) {
    const vl mask = l_set1(((uint64_t)1 << p->half_bits) - 1);
    vl c0[PERMUTE_VECTORS], c1[PERMUTE_VECTORS], c2[PERMUTE_VECTORS], c3[PERMUTE_VECTORS];
    V_UNROLL for (int v = 0; v < PERMUTE_VECTORS; v++) {
        c0[v] = right[v];
        c1[v] = l_set1(p->shard * LK_PERMUTE_NUMBERS + round);
        c2[v] = l_set1((uint32_t)p->epoch);
        c3[v] = l_set1(p->epoch >> 32);
    }
    V_UNROLL for (int r = 0; r < PHILOX_ROUNDS; r++) {
        V_UNROLL for (int v = 0; v < PERMUTE_VECTORS; v++) {
            const vl p0 = l_mul(c0[v], 0xD2511F53u), p1 = l_mul(c2[v], 0xCD9E8D57u);
            c0[v] = (p1 >> 32) ^ (c1[v] ^ l_set1(keys[r][0]));
            c2[v] = (p0 >> 32) ^ (c3[v] ^ l_set1(keys[r][1]));
            c1[v] = p1;
            c3[v] = p0;
        }
    }
    V_UNROLL for (int v = 0; v < PERMUTE_VECTORS; v++) {
        const vl next = left[v] ^ (c0[v] & mask);
        left[v] = right[v];
        right[v] = next;
    }
}

// E of PERMUTE_AT_ONCE numbers.
static void permute_pass(const lk_permutation *p, uint32_t keys[PHILOX_ROUNDS][2],
                         uint64_t x[PERMUTE_AT_ONCE]) {
    const vl mask = l_set1(((uint64_t)1 << p->half_bits) - 1);
    vl left[PERMUTE_VECTORS], right[PERMUTE_VECTORS];
    V_UNROLL for (int v = 0; v < PERMUTE_VECTORS; v++) {
        memcpy(&right[v], x + v * WIDE_LANES, sizeof right[v]);
        left[v] = right[v] >> p->half_bits;
        right[v] &= mask;
    }
    for (uint32_t round = 0; round < LK_PERMUTE_ROUNDS; round++)
        permute_round(p, keys, round, left, right);
    V_UNROLL for (int v = 0; v < PERMUTE_VECTORS; v++) {
        const vl joined = left[v] << p->half_bits | right[v];
        memcpy(x + v * WIDE_LANES, &joined, sizeof joined);
    }
}

// Who has left the range walks on, with the next positions beside.
static void permute(const lk_permutation *p, uint64_t first, uint32_t count, uint64_t *index) {
    uint64_t x[PERMUTE_AT_ONCE] = {0};
    uint32_t keys[PHILOX_ROUNDS][2], to[PERMUTE_AT_ONCE];
    uint32_t held = 0, next = 0;
    philox_keys(p->seed, keys);
    while (held > 0 || next < count) {
        for (; held < PERMUTE_AT_ONCE && next < count; held++, next++) {
            x[held] = first + next;
            to[held] = next;
        }
        permute_pass(p, keys, x);
        const uint32_t moved = held;
        held = 0;
        for (uint32_t i = 0; i < moved; i++) {
            index[to[i]] = x[i];
            x[held] = x[i];
            to[held] = to[i];
            held += x[i] >= p->count;
        }
    }
}
