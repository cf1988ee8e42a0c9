// initializer.c - the formulas of initializer.h (ARITHMETIC.md 8). Freestanding.
#include "ops/initializer.h"

#include "ops/layers/sums.h"
#include "ops/noise.h"

static float value_of(const lk_initial *p, const lk_initializer *own) {
    return p->value == 0.0f ? own->own : p->value;
}

static void fill_with(const lk_initial *p, float value, float *w) {
    for (uint64_t e = 0; e < p->count; e++) w[e] = value;
}

// Element e of parameter p is made of word e % 4 of the Philox block with counter
// (e / 4 low, e / 4 high, p, attempt).
static lk_philox_block block_of(const lk_initial *p, uint64_t e, uint32_t attempt) {
    return lk_philox(p->seed, LK_PURPOSE_INITIALIZER, (uint32_t)(e / 4), (uint32_t)(e / 4 >> 32),
                     p->param, attempt);
}

// u = the word's unit float; w = (2u - 1) * limit.
static void fill_uniform(const lk_initial *p, float limit, float *w) {
    for (uint64_t e = 0; e < p->count; e += 4) {
        const lk_philox_block b = block_of(p, e, 0);
        for (uint64_t i = 0; i < 4 && e + i < p->count; i++) {
            w[e + i] = (2.0f * lk_unit_float(b.word[i]) - 1.0f) * limit;
        }
    }
}

static float normal_at(const lk_initial *p, uint64_t e, uint32_t attempt) {
    const lk_philox_block b = block_of(p, e, attempt);
    return lk_normal_at(&b, (uint32_t)(e % 4));
}

static void fill_normal(const lk_initial *p, float stddev, float *w) {
    for (uint64_t e = 0; e < p->count; e++) w[e] = normal_at(p, e, 0) * stddev;
}

// The first of some attempts that is at most 2 in size; else the last one cut to 2 (noise.h).
static void fill_truncated(const lk_initial *p, float stddev, float *w) {
    for (uint64_t e = 0; e < p->count; e++) {
        float z = 0.0f;
        for (uint32_t attempt = 0; attempt < (uint32_t)LK_NOISE_TRIES; attempt++) {
            z = normal_at(p, e, attempt);
            if (z >= -2.0f && z <= 2.0f) break;
        }
        w[e] = (z < -2.0f ? -2.0f : z > 2.0f ? 2.0f : z) * stddev;
    }
}

// --- uniform and normal, by the fans -------------------------------------------------------------

static float root_of(float variance, uint64_t fan) {
    return lk_sqrtf(variance / lk_count_to_float(fan));
}

static void fill_glorot_uniform(const lk_initial *p, float *w) {
    fill_uniform(p, root_of(6.0f, p->fan_in + p->fan_out), w);
}
static void fill_he_uniform(const lk_initial *p, float *w) {
    fill_uniform(p, root_of(6.0f, p->fan_in), w);
}
static void fill_lecun_uniform(const lk_initial *p, float *w) {
    fill_uniform(p, root_of(3.0f, p->fan_in), w);
}

// What is left of a normal distribution between -2 and 2 has this deviation.
static const float truncated_deviation = 0x1.c25e4cp-1f;

static void fill_glorot_normal(const lk_initial *p, float *w) {
    fill_truncated(p, root_of(2.0f, p->fan_in + p->fan_out) / truncated_deviation, w);
}
static void fill_he_normal(const lk_initial *p, float *w) {
    fill_truncated(p, root_of(2.0f, p->fan_in) / truncated_deviation, w);
}
static void fill_lecun_normal(const lk_initial *p, float *w) {
    fill_truncated(p, root_of(1.0f, p->fan_in) / truncated_deviation, w);
}

// --- orthogonal ----------------------------------------------------------------------------------

// Rows of the matrix, or its columns where there are fewer of them: `count` vectors of `length`
// elements. Element k of vector i is w[i * apart + k * step].
typedef struct vectors {
    float *w;
    uint64_t count, length, apart, step;
} vectors;

enum { VECTORS_AT_ONCE = 16 };

// Finished sums of the products of vector i with each of `some` from `first` on.
static void products_of(const vectors *v, uint64_t i, uint64_t first, uint32_t some, float *sums) {
    slice_sum sum[VECTORS_AT_ONCE];
    for (uint32_t j = 0; j < some; j++) slice_start(&sum[j], 0.0f);
    for (uint64_t k = 0; k < v->length; k++) {
        const float a = v->w[i * v->apart + k * v->step];
        for (uint32_t j = 0; j < some; j++) {
            slice_term(&sum[j], a, v->w[(first + j) * v->apart + k * v->step]);
        }
    }
    for (uint32_t j = 0; j < some; j++) sums[j] = slice_finish(&sum[j]);
}

// Vector i gets length 1; then those after it lose what they have in its direction.
static void orthogonalize(const vectors *v, uint64_t i) {
    float sums[VECTORS_AT_ONCE];
    products_of(v, i, i, 1, sums);
    const float inverse = sums[0] > 0.0f ? 1.0f / lk_sqrtf(sums[0]) : 0.0f;
    for (uint64_t k = 0; k < v->length; k++) v->w[i * v->apart + k * v->step] *= inverse;
    for (uint64_t first = i + 1; first < v->count; first += VECTORS_AT_ONCE) {
        const uint32_t some = (uint32_t)LK_MIN(v->count - first, (uint64_t)VECTORS_AT_ONCE);
        products_of(v, i, first, some, sums);
        for (uint64_t k = 0; k < v->length; k++) {
            const float a = v->w[i * v->apart + k * v->step];
            for (uint32_t j = 0; j < some; j++) {
                float *b = &v->w[(first + j) * v->apart + k * v->step];
                *b = lk_fmaf(-sums[j], a, *b);
            }
        }
    }
}

// Q of the QR of a normal matrix, where R's diagonal is positive: Gram and Schmidt, twice, since
// the first time rounding leaves what a matrix near a singular one makes large.
static void fill_orthogonal(const lk_initial *p, float *w) {
    const uint64_t columns = p->columns, rows = p->count / columns;
    const bool wide = rows < columns;
    const vectors v = {.w = w,
                       .count = wide ? rows : columns,
                       .length = wide ? columns : rows,
                       .apart = wide ? columns : 1,
                       .step = wide ? 1 : columns};
    const float gain = value_of(p, &lk_initializer_orthogonal);
    fill_normal(p, 1.0f, w);
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint64_t i = 0; i < v.count; i++) orthogonalize(&v, i);
    }
    for (uint64_t e = 0; e < p->count; e++) w[e] = gain * w[e];
}

// --- by a number ---------------------------------------------------------------------------------

static void fill_zeros(const lk_initial *p, float *w) { fill_with(p, 0.0f, w); }
static void fill_ones(const lk_initial *p, float *w) { fill_with(p, 1.0f, w); }
static void fill_constant(const lk_initial *p, float *w) { fill_with(p, p->value, w); }
// Gates i f c o, of as many units each.
static void fill_forget_ones(const lk_initial *p, float *w) {
    const uint64_t units = p->count / 4;
    for (uint64_t e = 0; e < p->count; e++) w[e] = e / units == 1 ? 1.0f : 0.0f;
}
static void fill_random_uniform(const lk_initial *p, float *w) {
    fill_uniform(p, value_of(p, &lk_initializer_random_uniform), w);
}
static void fill_random_normal(const lk_initial *p, float *w) {
    fill_normal(p, value_of(p, &lk_initializer_random_normal), w);
}
static void fill_truncated_normal(const lk_initial *p, float *w) {
    fill_truncated(p, value_of(p, &lk_initializer_truncated_normal), w);
}

// --- descriptors ---------------------------------------------------------------------------------

#define DESCRIPTOR(name) WITH_NUMBER(name, NULL, 0.0f)
#define WITH_NUMBER(name, takes, own) \
    const lk_initializer lk_initializer_##name = {#name, fill_##name, takes, own}

DESCRIPTOR(glorot_uniform);
DESCRIPTOR(glorot_normal);
DESCRIPTOR(he_uniform);
DESCRIPTOR(he_normal);
DESCRIPTOR(lecun_uniform);
DESCRIPTOR(lecun_normal);
DESCRIPTOR(zeros);
DESCRIPTOR(ones);
DESCRIPTOR(forget_ones);
WITH_NUMBER(constant, "value", 0.0f);
WITH_NUMBER(random_uniform, "limit", 0.05f);
WITH_NUMBER(random_normal, "stddev", 0.05f);
WITH_NUMBER(truncated_normal, "stddev", 0.05f);
WITH_NUMBER(orthogonal, "gain", 1.0f);

const lk_initializer *lk_initializer_at(uint32_t number) {
    static const lk_initializer *const all[] = {
#define LK_INITIALIZER_ENTRY(name) &lk_initializer_##name,
        LK_INITIALIZER_LIST(LK_INITIALIZER_ENTRY)
#undef LK_INITIALIZER_ENTRY
    };
    return number < LK_COUNT(all) ? all[number] : NULL;
}
