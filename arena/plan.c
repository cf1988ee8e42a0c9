// plan.c - lifetimes in, offsets out. Freestanding.
#include "arena/plan.h"

const char *lk_tensor_class_name(lk_tensor_class class_) {
    static const char *const names[] = {
#define LK_CLASS_NAME(name, text) [name] = text,
        LK_TENSOR_CLASS_LIST(LK_CLASS_NAME)
#undef LK_CLASS_NAME
    };
    lk_assert((unsigned)class_ < LK_CLASS_COUNT);
    return names[class_];
}

const char *lk_dtype_name(lk_dtype dtype) {
    static const char *const names[] = {"f32", "u8", "u16", "u32", "f16", "bf16"};
    return names[dtype];
}

uint32_t lk_dtype_bytes(lk_dtype dtype) {
    static const uint8_t bytes[] = {4, 1, 2, 4, 2, 2};
    return bytes[dtype];
}

lk_status lk_tensor_make(lk_tensor *tensor, const char *name, lk_tensor_class class_,
                         lk_dtype dtype, lk_region region, uint32_t rank, const uint64_t *shape,
                         lk_error *error) {
    lk_assert(rank >= 1 && rank <= LK_RANK_MAX);
    *tensor = (lk_tensor){.class_ = class_,
                          .dtype = dtype,
                          .region = region,
                          .rank = rank,
                          .first = 0,
                          .last = LK_FOREVER};
    lk_format(tensor->name, sizeof tensor->name, "%s", name);
    uint64_t bytes = lk_dtype_bytes(dtype);
    for (uint32_t i = 0; i < rank; i++) {
        tensor->shape[i] = shape[i];
        if (!lk_mul_ok(bytes, shape[i], &bytes) || bytes > INT64_MAX) {
            return lk_fail(
                error, LK_BAD_CONFIG,
                "tensor %s: its bytes do not fit in 63 bits; make the layer or the batch smaller",
                tensor->name);
        }
    }
    tensor->bytes = bytes;
    return LK_OK;
}

// What a tensor takes in its region.
static uint64_t footprint(const lk_tensor *t, const lk_plan_options *options) {
    return lk_round_up(t->bytes, LK_TENSOR_ALIGN_BYTES) + (options->guards ? LK_GUARD_BYTES : 0);
}

static bool lifetimes_meet(const lk_tensor *a, const lk_tensor *b) {
    return a->first <= b->last && b->first <= a->last;
}

// Largest first; among equals the one that lives first, then the order of the table.
static bool goes_before(const lk_tensor *tensors, uint32_t a, uint32_t b) {
    if (tensors[a].bytes != tensors[b].bytes) return tensors[a].bytes > tensors[b].bytes;
    if (tensors[a].first != tensors[b].first) return tensors[a].first < tensors[b].first;
    return a < b;
}

static void sort_by_size(const lk_tensor *tensors, uint32_t count, uint32_t *order) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = i;
        for (; at > 0 && goes_before(tensors, i, order[at - 1]); at--) order[at] = order[at - 1];
        order[at] = i;
    }
}

// The lowest offset at which `t` meets none of the tensors order[0 .. placed).
static uint64_t lowest_fit(const lk_tensor *tensors, const uint32_t *order, uint32_t placed,
                           const lk_tensor *t, const lk_plan_options *options) {
    uint64_t offset = 0, bytes = footprint(t, options);
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t i = 0; i < placed; i++) {
            const lk_tensor *other = &tensors[order[i]];
            if (other->region != t->region) continue;
            if (options->overlay && !lifetimes_meet(t, other)) continue;
            uint64_t end = other->offset + footprint(other, options);
            if (offset < end && other->offset < offset + bytes) {
                offset = end;
                moved = true;
            }
        }
    }
    return offset;
}

// The most bytes alive at once; it can only rise where some tensor's life begins.
static uint64_t lower_bound(const lk_tensor *tensors, uint32_t count, lk_region region,
                            const lk_plan_options *options) {
    uint64_t most = 0;
    for (uint32_t at = 0; at < count; at++) {
        if (tensors[at].region != region) continue;
        uint64_t live = 0;
        for (uint32_t i = 0; i < count; i++) {
            bool alive =
                tensors[i].first <= tensors[at].first && tensors[at].first <= tensors[i].last;
            if (tensors[i].region == region && alive) live += footprint(&tensors[i], options);
        }
        most = LK_MAX(most, live);
    }
    return most;
}

lk_status lk_plan_regions(lk_tensor *tensors, uint32_t count, const lk_plan_options *options,
                          uint32_t *order, lk_region_plan regions[LK_REGION_COUNT],
                          lk_error *error) {
    uint64_t all = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!lk_add_ok(all, footprint(&tensors[i], options), &all) || all > INT64_MAX) {
            return lk_fail(error, LK_BAD_CONFIG,
                           "the tensors up to %s do not fit in 63 bits of bytes", tensors[i].name);
        }
    }
    sort_by_size(tensors, count, order);
    for (uint32_t r = 0; r < LK_REGION_COUNT; r++) regions[r] = (lk_region_plan){0, 0};
    for (uint32_t i = 0; i < count; i++) {
        lk_tensor *t = &tensors[order[i]];
        t->offset = lowest_fit(tensors, order, i, t, options);
        regions[t->region].bytes =
            LK_MAX(regions[t->region].bytes, t->offset + footprint(t, options));
    }
    for (uint32_t r = 0; r < LK_REGION_COUNT; r++) {
        regions[r].lower_bound_bytes = lower_bound(tensors, count, (lk_region)r, options);
    }
    return LK_OK;
}
