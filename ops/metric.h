// metric.h - what a step or an evaluation reports of its examples, by name. Freestanding.
//
// A loss says which (ops/layers/layer.h). Sums are fp32: one number for each example, added as a
// bias gradient of that many columns is (ARITHMETIC.md 6) and reported as their mean. Counts are
// integers: how many of the examples, or, of sequences, how many errors and labels they have. The
// first sum is the loss itself.
#ifndef LOCKSTEP_OPS_METRIC_H
#define LOCKSTEP_OPS_METRIC_H

#include "arena/base.h"

// Of one objective; and an evaluation may report the means of two.
enum { LK_METRIC_SUMS_MAX = 2, LK_METRIC_COUNTS_MAX = 3, LK_METRIC_MEANS_MAX = 4 };

// Which of the sums.
enum { LK_METRIC_LOSS = 0 };

typedef struct lk_metrics {
    uint32_t sum_count, count_count;
    const char *sum[LK_METRIC_MEANS_MAX];     // of the mean in logs; the first is "loss"
    const char *count[LK_METRIC_COUNTS_MAX];  // of the number of examples in logs
    const char *share[LK_METRIC_COUNTS_MAX];  // of that number over all examples; NULL: none
    // Not 0: a count of errors, of which less is better; its share is over count `errors_of` - 1.
    uint8_t errors_of[LK_METRIC_COUNTS_MAX];
} lk_metrics;

// What the share of count `i` is over, at least 1.
static inline uint32_t lk_metric_all(const lk_metrics *m, uint32_t i,
                                     const uint32_t counts[LK_METRIC_COUNTS_MAX],
                                     uint32_t examples) {
    const uint32_t all = m->errors_of[i] ? counts[m->errors_of[i] - 1] : examples;
    return all ? all : 1;
}

static inline void lk_metric_add_counts(uint32_t to[LK_METRIC_COUNTS_MAX],
                                        const uint32_t counts[LK_METRIC_COUNTS_MAX]) {
    for (uint32_t i = 0; i < LK_METRIC_COUNTS_MAX; i++) to[i] += counts[i];
}

#endif
