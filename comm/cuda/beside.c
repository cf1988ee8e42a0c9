// beside.c - see beside.h.
#include "comm/cuda/beside.h"

// Launches that nobody makes, or that are kept for the persistent kernel, whose levels are found by
// what they touch, go nowhere. Guards are looked at op by op.
void lk_cuda_beside_start(lk_cuda_beside *b, lk_cuda_step *c) {
    const bool launches = !c->observer && !c->tasks && !c->rehearses;
    *b = (lk_cuda_beside){.c = launches && !c->program->checked ? c : NULL, .behind = true};
}

static void note(lk_cuda_stream *s, const lk_cuda_queue *queue) {
    if (s->error == 0) s->error = queue->code;
}

// The first stream waits for the oldest `count` ops beside it.
static void wait_for(lk_cuda_beside *b, lk_cuda_stream *s, uint32_t count) {
    lk_cuda_step *c = b->c;
    if (count == 0) return;
    b->first = (b->first + count) % LK_CUDA_BESIDE_MAX;
    b->count -= count;
    const uint32_t newest = (b->first + LK_CUDA_BESIDE_MAX - 1) % LK_CUDA_BESIDE_MAX;
    lk_cuda_event_follow(&c->compute, c->passed[newest]);
    b->behind = true;
    s->follows = false;
    note(s, &c->compute);
}

static bool overlap(const lk_program *p, uint32_t a, uint32_t b) {
    const lk_tensor *s = &p->tensors[a], *t = &p->tensors[b];
    return s->region == t->region && s->offset < t->offset + t->bytes &&
           t->offset < s->offset + s->bytes;
}

// Does an op write what another one, earlier in the program, may still be reading? A tensor that
// lies where that one's lie, and is none of them, was written after they were done with; what both
// have is written by whoever makes it.
static bool in_the_way(const lk_program *p, const lk_op *op, const lk_op *earlier) {
    for (uint32_t r = 0; r < LK_ROLES; r++) {
        const uint32_t mine = op->tensor[r];
        if (mine == LK_NONE || p->tensors[mine].region != LK_REGION_REPLICA) continue;
        for (uint32_t e = 0; e < LK_ROLES; e++) {
            const uint32_t theirs = earlier->tensor[e];
            if (theirs == LK_NONE || !overlap(p, mine, theirs)) continue;
            if (mine != theirs || r == LK_Y || r == LK_DX) return true;
        }
    }
    return false;
}

// How many of the ops beside must be done before `op`: up to the newest that is in its way.
static uint32_t must_be_done(const lk_cuda_beside *b, const lk_op *op) {
    const lk_program *p = b->c->program;
    for (uint32_t i = b->count; i > 0; i--) {
        const lk_op *earlier = &p->ops[b->op[(b->first + i - 1) % LK_CUDA_BESIDE_MAX]];
        for (uint32_t u = 0; u < lk_op_uses(earlier); u++) {
            if (in_the_way(p, op, earlier + u)) return i;
        }
    }
    return 0;
}

void lk_cuda_beside_before(lk_cuda_beside *b, lk_cuda_stream *s, uint32_t index) {
    lk_cuda_step *c = b->c;
    if (!c) return;
    const lk_op *op = &c->program->ops[index];
    if (op->type->scope == LK_SCOPE_USE) return;
    if (!lk_op_goes_beside(op)) {
        wait_for(b, s, must_be_done(b, op));
        b->behind = true;
        return;
    }
    if (b->count == LK_CUDA_BESIDE_MAX) wait_for(b, s, 1);
    if (b->behind) {
        lk_cuda_event_set(&c->compute, c->left);
        lk_cuda_event_follow(&c->beside, c->left);
        note(s, &c->compute);
        b->behind = false;
    }
    s->stream = c->beside.stream;
    s->beside = true;
    s->follows = false;
}

void lk_cuda_beside_after(lk_cuda_beside *b, lk_cuda_stream *s, uint32_t index) {
    lk_cuda_step *c = b->c;
    if (!c || !lk_op_goes_beside(&c->program->ops[index])) return;
    const uint32_t at = (b->first + b->count++) % LK_CUDA_BESIDE_MAX;
    b->op[at] = index;
    lk_cuda_event_set(&c->beside, c->passed[at]);
    note(s, &c->beside);
    s->stream = c->compute.stream;
    s->beside = false;
    s->follows = false;
}

void lk_cuda_beside_join(lk_cuda_beside *b, lk_cuda_stream *s) {
    if (b->c) wait_for(b, s, b->count);
}
