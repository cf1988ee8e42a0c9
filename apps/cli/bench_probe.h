// bench_probe.h - what the machine can do at this moment: fp32 peak, way between two cores.
//
// Host only. Knows processors and clocks, nothing of training. Shared machines change under one's
// feet: the same two cores are near (one cache between them) in one second and far in the next. So
// a figure of two cores means something only beside these two numbers, taken just before and after
// it.
#ifndef LOCKSTEP_APPS_CLI_BENCH_PROBE_H
#define LOCKSTEP_APPS_CLI_BENCH_PROBE_H

#include <stdint.h>

typedef struct lk_probe {
    uint32_t cores;          // as many as asked for, at most those this process may use
    double fma_gflops;       // all of them together, fp32, add and multiply counted; 0: unknown
    double pingpong_ns;      // a cache line to the second core and back; 0 with one core
} lk_probe;

// Runs about 10 ms on `cores` processors at once. They should have nothing else to do. The caller's
// own processor mask is as before afterwards.
lk_probe lk_probe_machine(uint32_t cores);

// The name of the vectors that the peak is measured with: "avx512", "avx2", "neon", "scalar".
const char *lk_probe_vectors(void);

#endif
