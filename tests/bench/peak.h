// peak.h - the fp32 FMA peak of the core that calls it, with the widest vectors that it has.
#ifndef LOCKSTEP_TESTS_BENCH_PEAK_H
#define LOCKSTEP_TESTS_BENCH_PEAK_H

// GFLOP/s over about a quarter of a millisecond; `seconds` is a clock.
double peak_gflops(double (*seconds)(void));

#endif
