// check.c - guards and poison behind check.h. Freestanding; knows lifetimes, not what ops compute.
#include "ops/graph/check.h"

static uint8_t *start_of(const lk_frame *f, const lk_tensor *t) {
    return (t->region == LK_REGION_DEVICE ? f->device : f->replica) + t->offset;
}

static bool lasts(const lk_tensor *t) { return t->last == LK_FOREVER; }

static void write_guard(const lk_frame *f, const lk_tensor *t) {
    uint8_t *at = start_of(f, t);
    for (uint64_t i = t->bytes; i < lk_check_guard_end(t); i++) at[i] = LK_CHECK_GUARD;
}

void lk_check_broken(const lk_program *p, uint32_t tensor, uint64_t bytes) {
    const lk_tensor *t = &p->tensors[tensor];
    const char *when = lasts(t) ? "a step" : p->ops[t->last].type->name;
    char what[200];
    lk_format(what, sizeof what,
              "guard: something wrote %llu bytes behind tensor %s (seen after %s)",
              (unsigned long long)bytes, t->name, when);
    lk_panic(__FILE__, __LINE__, what);
}

static void look_at_guard(const lk_frame *f, uint32_t tensor) {
    const lk_tensor *t = &f->program->tensors[tensor];
    const uint8_t *at = start_of(f, t);
    for (uint64_t i = t->bytes; i < lk_check_guard_end(t); i++) {
        if (at[i] != LK_CHECK_GUARD) lk_check_broken(f->program, tensor, i - t->bytes);
    }
}

static void fill(uint8_t *at, uint64_t bytes, bool half) {
    const uint32_t pattern = half ? LK_CHECK_POISON_HALF : LK_CHECK_POISON;
    for (uint64_t i = 0; i < bytes; i++) at[i] = (uint8_t)(pattern >> 8 * (i % 4));
}

void lk_check_start(const lk_frame *f) {
    const lk_program *p = f->program;
    const bool here = !p->layout.device;
    if (here) fill(f->replica, p->regions[LK_REGION_REPLICA].bytes, false);
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        const lk_tensor *t = &p->tensors[i];
        if (lasts(t) && (here || t->region == LK_REGION_DEVICE)) write_guard(f, t);
    }
}

void lk_check_before_op(const lk_frame *f, uint32_t op) {
    const lk_program *p = f->program;
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        const lk_tensor *t = &p->tensors[i];
        if (t->region != LK_REGION_REPLICA || lasts(t) || t->first != op) continue;
        fill(start_of(f, t), t->bytes, lk_dtype_is_half(t->dtype));
        write_guard(f, t);
    }
}

void lk_check_after_op(const lk_frame *f, uint32_t op, bool poison) {
    const lk_program *p = f->program;
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        const lk_tensor *t = &p->tensors[i];
        if (t->region != LK_REGION_REPLICA || lasts(t) || t->last != op) continue;
        look_at_guard(f, i);
        if (poison) fill(start_of(f, t), t->bytes, lk_dtype_is_half(t->dtype));
    }
}

void lk_check_lasting(const lk_frame *f) {
    const lk_program *p = f->program;
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        if (lasts(&p->tensors[i])) look_at_guard(f, i);
    }
}
