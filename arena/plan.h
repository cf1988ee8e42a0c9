// plan.h - the tensor table, and where in memory each tensor lies. Freestanding; knows no op, only
// when a tensor is first and last used.
//
// A run has two kinds of region. The device region exists once: parameters, optimizer slots,
// results. The replica region exists once per replica, always with the same layout:
//
//   arena   | tables | device region | replica 0 | replica 1 | ... | thread stacks | io buffers |
//
// Inside a region the planner overlays tensors whose lifetimes do not meet. Intended usage:
//   1. fill the table (name, shape, class, region, first, last)     lk_tensor_add
//   2. lk_plan_regions(): offsets and region sizes, lower bound
//   3. a tensor's address = start of its region + offset
#ifndef LOCKSTEP_ARENA_PLAN_H
#define LOCKSTEP_ARENA_PLAN_H

#include "arena/base.h"

enum {
    LK_NAME_BYTES = 64,
    LK_RANK_MAX = 5,
    LK_TENSOR_ALIGN_BYTES = 64,  // a cache line and a vector register
    LK_GUARD_BYTES = 64,         // after each tensor in a checking plan
};

// F16 and BF16: floats of 16 bits (ops/half.h).
typedef enum lk_dtype { LK_F32, LK_U8, LK_U16, LK_U32, LK_F16, LK_BF16 } lk_dtype;

static inline bool lk_dtype_is_half(lk_dtype dtype) { return dtype >= LK_F16; }

// What a tensor is for: printed by the plan, never used to decide a number.
#define LK_TENSOR_CLASS_LIST(X)                                                                    \
    X(LK_CLASS_PARAMETER, "parameter")                                                             \
    X(LK_CLASS_SLOT, "slot") X(LK_CLASS_GRADIENT, "gradient") X(LK_CLASS_ACTIVATION, "activation") \
        X(LK_CLASS_STAGING, "staging") X(LK_CLASS_EXCHANGE, "exchange")                            \
            X(LK_CLASS_SCRATCH, "scratch") X(LK_CLASS_STATE, "state")

typedef enum lk_tensor_class {
#define LK_CLASS_ENUM(name, text) name,
    LK_TENSOR_CLASS_LIST(LK_CLASS_ENUM)
#undef LK_CLASS_ENUM
        LK_CLASS_COUNT
} lk_tensor_class;

typedef enum lk_region { LK_REGION_DEVICE, LK_REGION_REPLICA, LK_REGION_COUNT } lk_region;

// A lifetime of the whole run.
#define LK_FOREVER UINT32_MAX

typedef struct lk_tensor {
    char name[LK_NAME_BYTES];
    lk_tensor_class class_;
    lk_dtype dtype;
    lk_region region;
    uint32_t rank;
    uint64_t shape[LK_RANK_MAX];
    uint32_t first,
        last;  // index of the first and last op that uses it; last = LK_FOREVER: never overlaid
    uint64_t bytes;   // product of the shape times the element, unpadded
    uint64_t offset;  // bytes from the start of its region; set by lk_plan_regions
} lk_tensor;

typedef struct lk_plan_options {
    bool overlay;  // false: every tensor has memory of its own (the oracle: same bits required)
    bool guards;   // LK_GUARD_BYTES after each tensor, to be checked while running
} lk_plan_options;

typedef struct lk_region_plan {
    uint64_t bytes;              // what the region takes, a multiple of LK_TENSOR_ALIGN_BYTES
    uint64_t lower_bound_bytes;  // the most bytes that live at one op: no layout can take less
} lk_region_plan;

const char *lk_tensor_class_name(lk_tensor_class class_);
const char *lk_dtype_name(lk_dtype dtype);
uint32_t lk_dtype_bytes(lk_dtype dtype);

// Fills `tensor` (name cut at LK_NAME_BYTES - 1) and computes its bytes.
// LK_BAD_CONFIG if the product of the shape and the element size does not fit in 63 bits.
lk_status lk_tensor_make(lk_tensor *tensor, const char *name, lk_tensor_class class_,
                         lk_dtype dtype, lk_region region, uint32_t rank, const uint64_t *shape,
                         lk_error *error);

// Gives every tensor its offset. Greedy by size: the largest first, each at the lowest offset where
// no tensor already placed with a meeting lifetime lies. `order` is scratch for `count` indices.
// LK_BAD_CONFIG where a region's bytes do not fit in 63 bits.
lk_status lk_plan_regions(lk_tensor *tensors, uint32_t count, const lk_plan_options *options,
                          uint32_t *order, lk_region_plan regions[LK_REGION_COUNT],
                          lk_error *error);

#endif
