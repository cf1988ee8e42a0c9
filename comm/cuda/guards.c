// guards.c - guards and poison as launches, and what they found as the processor's line. Host only.
#include "comm/cuda/guards.h"

#include <string.h>

#include "ops/graph/check.h"

// Bytes of a guard are fewer than these, so that a byte's number is within its tensor's.
enum { BYTES_OF_TENSOR = 128 };

#define GUARD_WORD (LK_CHECK_GUARD * 0x01010101u)

static uint8_t *start_of(const lk_frame *f, const lk_tensor *t) {
    return (t->region == LK_REGION_DEVICE ? f->device : f->replica) + t->offset;
}

static bool lasts(const lk_tensor *t) { return t->last == LK_FOREVER; }

static uint32_t poison_of(const lk_tensor *t) {
    return lk_dtype_is_half(t->dtype) ? LK_CHECK_POISON_HALF : LK_CHECK_POISON;
}

static void fill(lk_cuda_stream *s, uint64_t words, uint32_t value, uint8_t *to) {
    lk_cuda_fill(s, words, value, (uint32_t *)(void *)to);
}

// A tensor may end within a word, which then is both.
static void write_guard(lk_cuda_stream *s, const lk_frame *f, const lk_tensor *t) {
    uint8_t *at = start_of(f, t);
    const uint64_t word = sizeof(uint32_t), own = t->bytes / word * word, rest = t->bytes - own;
    const uint32_t mask = (1u << 8 * rest) - 1;
    const uint64_t first = own + (rest > 0) * word;
    fill(s, rest > 0, (poison_of(t) & mask) | (GUARD_WORD & ~mask), at + own);
    fill(s, (lk_check_guard_end(t) - first) / word, GUARD_WORD, at + first);
}

static void look_at_guard(lk_cuda_stream *s, const lk_frame *f, uint32_t tensor, uint32_t *broken) {
    const lk_tensor *t = &f->program->tensors[tensor];
    lk_assert(tensor < UINT32_MAX / BYTES_OF_TENSOR);
    lk_assert(lk_check_guard_end(t) - t->bytes <= BYTES_OF_TENSOR);
    lk_cuda_check_bytes(s, lk_check_guard_end(t) - t->bytes, LK_CHECK_GUARD,
                        start_of(f, t) + t->bytes, tensor * BYTES_OF_TENSOR, broken);
}

// --- moments -------------------------------------------------------------------------------------

void lk_cuda_guards_start(lk_cuda_step *c) {
    const uint32_t programs = lk_exchange_programs(c->program);
    lk_cuda_stream s = {.stream = c->compute.stream, .error = c->compute.code};
    if (!c->at.broken) return;
    fill(&s, c->at.replica_bytes / sizeof(uint32_t) * c->replicas, LK_CHECK_POISON, c->at.replicas);
    c->compute.code = s.error;
    memset(c->host.broken, 0xff, programs * sizeof *c->host.broken);
    lk_cuda_copy_in(&c->compute, c->at.broken, c->host.broken, programs * sizeof *c->at.broken);
}

void lk_cuda_guards_begin(lk_cuda_stream *s, const lk_frame *f, const uint32_t *broken) {
    const lk_program *p = f->program;
    for (uint32_t i = 0; broken && i < p->tensor_count; i++) {
        const lk_tensor *t = &p->tensors[i];
        if (t->region == LK_REGION_REPLICA && lasts(t)) write_guard(s, f, t);
    }
}

void lk_cuda_guards_end(lk_cuda_stream *s, const lk_frame *f, uint32_t *broken) {
    const lk_program *p = f->program;
    for (uint32_t i = 0; broken && i < p->tensor_count; i++) {
        if (lasts(&p->tensors[i])) look_at_guard(s, f, i, broken);
    }
}

void lk_cuda_guards_before(lk_cuda_stream *s, const lk_frame *f, uint32_t op,
                           const uint32_t *broken) {
    const lk_program *p = f->program;
    for (uint32_t i = 0; broken && i < p->tensor_count; i++) {
        const lk_tensor *t = &p->tensors[i];
        if (t->region != LK_REGION_REPLICA || lasts(t) || t->first != op) continue;
        fill(s, t->bytes / sizeof(uint32_t), poison_of(t), start_of(f, t));
        write_guard(s, f, t);
    }
}

void lk_cuda_guards_after(lk_cuda_stream *s, const lk_frame *f, uint32_t op, bool poison,
                          uint32_t *broken) {
    const lk_program *p = f->program;
    for (uint32_t i = 0; broken && i < p->tensor_count; i++) {
        const lk_tensor *t = &p->tensors[i];
        if (t->region != LK_REGION_REPLICA || lasts(t) || t->last != op) continue;
        look_at_guard(s, f, i, broken);
        if (poison) fill(s, t->bytes / sizeof(uint32_t), poison_of(t), start_of(f, t));
    }
}

void lk_cuda_guards_enter(lk_cuda_step *c, uint32_t tensor) {
    const lk_frame f = {.program = c->program, .device = c->at.device, .replica = c->at.replicas};
    lk_cuda_stream s = {.stream = c->compute.stream, .error = c->compute.code};
    if (!c->at.broken) return;
    write_guard(&s, &f, &c->program->tensors[tensor]);
    c->compute.code = s.error;
}

// --- what was found ------------------------------------------------------------------------------

void lk_cuda_guards_tell(lk_cuda_step *c) {
    if (!c->at.broken) return;
    lk_cuda_copy_out(&c->compute, c->host.broken, c->at.broken,
                     lk_exchange_programs(c->program) * sizeof *c->at.broken);
}

void lk_cuda_guards_look(const lk_cuda_step *c) {
    for (uint32_t k = 0; c->at.broken && k < lk_exchange_programs(c->program); k++) {
        const uint32_t found = c->host.broken[k];
        if (found == LK_NONE) continue;
        lk_check_broken(lk_exchange_program(c->program, k), found / BYTES_OF_TENSOR,
                        found % BYTES_OF_TENSOR);
    }
}
