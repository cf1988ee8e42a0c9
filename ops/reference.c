// reference.c - the table of the scalar reference: what every step needs besides its ops.
// Freestanding.
//
// The reference is the contract. It is slow on purpose: one scalar at a time, in the order that
// ops/ARITHMETIC.md states, and it shares no code with the fast kernels. That of an op stands with
// its descriptor in ops/layers/, that of an optimizer in ops/optimizer.c: the table is empty there.
#include "ops/layers/sums.h"

static void load_u8(uint64_t count, const uint8_t *src, float *dst) {
    for (uint64_t i = 0; i < count; i++) dst[i] = (float)src[i] * 0x1.010102p-8f;
}

static void column_sums(uint32_t n_count, uint32_t grain_count, const lk_grain_view *grains,
                        float *out) {
    for (uint32_t n = 0; n < n_count; n++) {
        tree_sum t;
        tree_start(&t);
        for (uint32_t g = 0; g < grain_count; g++) {
            tree_leaf(&t, grain_sum(&grains[g], NULL, 0, grains[g].dy + n, n_count));
        }
        out[n] = tree_finish(&t);
    }
}

static void add(uint64_t count, const float *a, const float *b, float *out) {
    for (uint64_t i = 0; i < count; i++) out[i] = a[i] + b[i];
}

const lk_kernels lk_kernels_reference = {
    .name = "reference", .load_u8 = load_u8, .column_sums = column_sums, .add = add};
