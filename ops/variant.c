// variant.c - asks the processor what it has and chooses a table of kernels. Host only.
#include "ops/variant.h"

#include <string.h>

#ifdef __x86_64__
#include <cpuid.h>

// The builtin takes only literals.
#define LACKS(feature) \
    if (!__builtin_cpu_supports(feature)) return feature

static const char *missing_for_avx2(void) {
    unsigned a, b, c, d;
    LACKS("avx2");
    LACKS("fma");
    // clang 14 has no word for it.
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_F16C)) return "f16c";
    return NULL;
}

static const char *missing_for_avx512(void) {
    LACKS("fma");
    LACKS("avx512f");
    LACKS("avx512dq");
    LACKS("avx512bw");
    LACKS("avx512vl");
    return NULL;
}
#endif

static const char *missing_for_none(void) { return NULL; }

static const struct {
    const lk_kernels *kernels;
    const char *(*missing)(void);
} variants[] = {
#ifdef __x86_64__
    {&lk_kernels_avx512, missing_for_avx512},
    {&lk_kernels_avx2, missing_for_avx2},
#endif
#ifdef __aarch64__
    {&lk_kernels_neon, missing_for_none},  // every AArch64 has it
#endif
    {&lk_kernels_portable, missing_for_none},
    {&lk_kernels_reference, missing_for_none},
};

const char *lk_kernels_missing(unsigned number, const lk_kernels **variant) {
    *variant = number < LK_COUNT(variants) ? variants[number].kernels : NULL;
    return *variant ? variants[number].missing() : NULL;
}

const char *lk_kernels_slow(const lk_kernels *kernels) {
#ifdef __x86_64__
    // Who asks for "portable" where there is FMA knows what it costs.
    if (!__builtin_cpu_supports("fma") &&
        (kernels == &lk_kernels_portable || kernels == &lk_kernels_reference)) {
        return "this processor has no FMA: each fused multiply-add is computed in double, and a "
               "step takes about 15 times as long as with AVX2 and FMA; the bits are the same";
    }
#endif
    (void)kernels;
    return NULL;
}

lk_status lk_kernels_choose(const char *name, const lk_kernels **out, lk_error *error) {
    bool automatic = !name || strcmp(name, "auto") == 0;
    const lk_kernels *variant;
    *out = NULL;
    for (unsigned i = 0; i < LK_COUNT(variants); i++) {
        const char *missing = lk_kernels_missing(i, &variant);
        if (!automatic && strcmp(name, variant->name) != 0) continue;
        if (!missing) {
            *out = variant;
            return LK_OK;
        }
        if (automatic) continue;
        return lk_fail(error, LK_UNAVAILABLE,
                       "kernels \"%s\": this processor has no %s; use \"auto\", all variants give "
                       "the same bits", name, missing);
    }
    char names[64] = "auto";
    for (unsigned i = 0; i < LK_COUNT(variants); i++) {
        size_t length = strlen(names);
        lk_format(names + length, sizeof names - length, ", %s", variants[i].kernels->name);
    }
    return lk_fail(error, LK_BAD_USAGE, "kernels \"%s\": no such variant; this build has %s", name,
                   names);
}
