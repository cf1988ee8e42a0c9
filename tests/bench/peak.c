// peak.c - independent chains of fma in registers, nothing else.
#include "tests/bench/peak.h"

#ifdef __x86_64__
#define EACH(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)
#define FMA_512(i) "vfmadd231ps %%zmm30, %%zmm31, %%zmm" #i "\n"
#define FMA_256(i) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #i "\n"
#define CLEAR(i) "vxorps %%ymm" #i ", %%ymm" #i ", %%ymm" #i "\n"

static void chains_512(long rounds) {
    __asm__ volatile(EACH(CLEAR) "vpxord %%zmm30, %%zmm30, %%zmm30\n"
                     "vpxord %%zmm31, %%zmm31, %%zmm31\n"
                     "1:\n" EACH(FMA_512) "dec %0\n jnz 1b\n vzeroupper\n"
                     : "+r"(rounds) : : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5",
                       "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11");
}

static void chains_256(long rounds) {
    __asm__ volatile(EACH(CLEAR) CLEAR(14) CLEAR(15)
                     "1:\n" EACH(FMA_256) "dec %0\n jnz 1b\n vzeroupper\n"
                     : "+r"(rounds) : : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5",
                       "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm14", "xmm15");
}

double peak_gflops(double (*seconds)(void)) {
    enum { CHAINS = 12, ROUNDS = 120000 };
    int wide = __builtin_cpu_supports("avx512f");
    if (!wide && !__builtin_cpu_supports("fma")) return 0.0;
    double start = seconds();
    if (wide) chains_512(ROUNDS);
    else chains_256(ROUNDS);
    return 2.0 * CHAINS * (wide ? 16 : 8) * ROUNDS / (seconds() - start) * 1e-9;
}
#else
double peak_gflops(double (*seconds)(void)) {
    (void)seconds;
    return 0.0;
}
#endif
