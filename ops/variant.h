// variant.h - which table of kernels a run uses. Host only: it asks the processor.
//
// All variants give the same bits, so this decides speed and nothing else.
#ifndef LOCKSTEP_OPS_VARIANT_H
#define LOCKSTEP_OPS_VARIANT_H

#include "ops/op.h"

// The table called `name` ("reference", "portable", on x86-64 "avx2" and "avx512", on AArch64
// "neon"), or with "auto" or NULL the fastest that this processor runs.
//
// LK_BAD_USAGE where there is no such name, LK_UNAVAILABLE where the processor lacks a feature.
lk_status lk_kernels_choose(const char *name, const lk_kernels **out, lk_error *error);

// The name of the first feature that this processor lacks for a variant; NULL where it runs it.
// Variants are numbered from 0, fastest first; *variant is NULL after the last.
const char *lk_kernels_missing(unsigned number, const lk_kernels **variant);

// What this processor lacks that costs the chosen kernels much speed, in a line; or NULL.
const char *lk_kernels_slow(const lk_kernels *kernels);

#endif
