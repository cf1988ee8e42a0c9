// metric.h - what a step or an evaluation reports of its examples, by name. Freestanding.
//
// A loss says which (ops/layers/layer.h). Sums are fp32: one number for each example, added as a
// bias gradient of that many columns is (ARITHMETIC.md 6) and reported as their mean. Counts are
// integers: how many of the examples. The first sum is the loss itself.
#ifndef LOCKSTEP_OPS_METRIC_H
#define LOCKSTEP_OPS_METRIC_H

#include "arena/base.h"

// Of one objective; and an evaluation may report the means of two.
enum { LK_METRIC_SUMS_MAX = 2, LK_METRIC_COUNTS_MAX = 2, LK_METRIC_MEANS_MAX = 4 };

// Which of the sums.
enum { LK_METRIC_LOSS = 0 };

typedef struct lk_metrics {
    uint32_t sum_count, count_count;
    const char *sum[LK_METRIC_MEANS_MAX];     // of the mean in logs; the first is "loss"
    const char *count[LK_METRIC_COUNTS_MAX];  // of the number of examples in logs
    const char *share[LK_METRIC_COUNTS_MAX];  // of that number over all examples
} lk_metrics;

static inline void lk_metric_add_counts(uint32_t to[LK_METRIC_COUNTS_MAX],
                                        const uint32_t counts[LK_METRIC_COUNTS_MAX]) {
    for (uint32_t i = 0; i < LK_METRIC_COUNTS_MAX; i++) to[i] += counts[i];
}

#endif
