// math_bits.c - the strided sweep of exp, log, sqrt, tanh and sigmoid for a machine that has no
// test framework: an
// emulated one. Links the core's headers alone; prints what it found, exits 1 where a hash differs.
//
//   math_bits [STRIDE]     65537, 509 or 1 (math_walk.h has their hashes)
#include <stdio.h>
#include <stdlib.h>

#include "ops/math.h"
#include "tests/ops/math_walk.h"

typedef struct sweep {
    float (*function)(float);
    uint64_t hash;
} sweep;

static float exp_of(float x) { return lk_expf(x); }
static float log_of(float x) { return lk_logf(x); }
static float sqrt_of(float x) { return lk_sqrtf(x); }
static float tanh_of(float x) { return lk_tanhf(x); }
static float sigmoid_of(float x) { return lk_sigmoidf(x); }
static float elu_of(float x) { return lk_eluf(x); }
static float softplus_of(float x) { return lk_log1pexpf(x); }
static float swish_of(float x) { return lk_swishf(x); }
static float gelu_of(float x) { return lk_geluf(x); }
static float gelu_tanh_of(float x) { return lk_gelu_tanhf(x); }

static void visit(void *context, const float *x, size_t count) {
    sweep *s = context;
    for (size_t i = 0; i < count; i++) s->hash += math_hash(x[i], s->function(x[i]));
}

int main(int argc, char **argv) {
    static float x[MATH_BLOCK];
    static const struct {
        const char *name;
        float (*function)(float);
        const math_expected *expected;
    } functions[] = {{"exp", exp_of, &math_expected_exp},
                     {"log", log_of, &math_expected_log},
                     {"sqrt", sqrt_of, &math_expected_sqrt},
                     {"tanh", tanh_of, &math_expected_tanh},
                     {"sigmoid", sigmoid_of, &math_expected_sigmoid},
                     {"elu", elu_of, &math_expected_elu},
                     {"softplus", softplus_of, &math_expected_softplus},
                     {"swish", swish_of, &math_expected_swish},
                     {"gelu", gelu_of, &math_expected_gelu},
                     {"gelu_tanh", gelu_tanh_of, &math_expected_gelu_tanh}};
    uint64_t stride = argc > 1 ? strtoull(argv[1], NULL, 10) : 65537;
    if (math_expect(&math_expected_exp, stride) == 0) {
        fprintf(stderr, "usage: %s [STRIDE], one of 65537, 509, 1\n", argv[0]);
        return LK_BAD_USAGE;
    }
    int differ = 0;
    for (size_t i = 0; i < LK_COUNT(functions); i++) {
        sweep s = {.function = functions[i].function};
        math_walk(0, (uint64_t)1 << 32, stride, x, visit, &s);
        math_walk_edges(x, visit, &s);
        bool equal = s.hash == math_expect(functions[i].expected, stride);
        printf("%s stride %llu hash %016llx %s\n", functions[i].name, (unsigned long long)stride,
               (unsigned long long)s.hash, equal ? "equal" : "DIFFERS");
        differ |= !equal;
    }
    return differ;
}
