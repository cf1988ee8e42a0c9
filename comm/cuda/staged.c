// staged.c - boxes, sums and notes of staged.h.
#include "comm/cuda/staged.h"

#include <string.h>

// What each GPU of the worker holds of a step: its whole nodes, or of an evaluation those of the
// loss.
typedef struct held {
    lk_counter blocks[LK_CUDA_GPUS_MAX];
    lk_holding list[LK_CUDA_GPUS_MAX];
} held;

static void find_blocks(const lk_cuda_group *g, uint32_t leaves, held *out) {
    const lk_program *p = g->exchange.program;
    for (uint32_t i = 0; i < g->count; i++) {
        const lk_cuda_step *c = &g->gpu[i];
        lk_exchange_blocks(p, &c->share, p->grains, leaves, &out->blocks[i]);
        out->list[i] = (lk_holding){&out->blocks[i], c->host.blocks, p->node_floats};
    }
}

// The worker's blocks of `grains` grains, of which `leaves` are there; the loss of each lies
// `offset` floats into a holder's node.
static void write_losses(const lk_cuda_group *g, const lk_exchange *x, const held *h,
                         uint32_t grains, uint32_t leaves, uint64_t offset, lk_note *note) {
    float scratch[LK_TREE_LEVELS_MAX + 1];
    lk_exchange_blocks(x->program, &x->workers[x->rank], grains, leaves, &note->blocks);
    for (uint32_t b = 0; b < note->blocks.count; b++) {
        note->losses[b] = *lk_reduce_node(&lk_kernels_reference, h->list, g->count, leaves,
                                          note->blocks.nodes[b], offset, 1, scratch);
    }
}

// --- SHARE -------------------------------------------------------------------------------------

// One chunk of the gradients, within slice `slice`, of every whole node of this worker.
static void share_chunk(const lk_cuda_group *g, const lk_exchange *x, const held *h,
                        uint32_t leaves, lk_slice slice, uint64_t at, uint64_t count) {
    const uint64_t stride = slice.end - slice.begin;
    const lk_counter *blocks = &x->note_out->blocks;
    float *box = x->boxes_out + x->slots * slice.begin;
    for (uint32_t b = 0; b < blocks->count; b++) {
        const float *node = lk_reduce_node(g->choice.kernels, h->list, g->count, leaves,
                                           blocks->nodes[b], at, count, g->gpu[0].host.scratch);
        memcpy(box + b * stride + (at - slice.begin), node, count * sizeof *node);
    }
}

void lk_cuda_staged_share(const lk_cuda_group *g, lk_exchange *x, uint64_t step, uint32_t stop) {
    const lk_program *p = x->program;
    const uint32_t leaves = lk_step_grains(p, step);
    lk_note *note = x->note_out;
    held h;
    find_blocks(g, leaves, &h);
    *note = (lk_note){.stop = stop,
                      .writes_checkpoint = x->writes_checkpoint,
                      .bad_op = LK_NONE,
                      .bad_param = LK_NONE};
    for (uint32_t i = 0; i < g->count; i++) {
        const lk_cuda_note *own = &g->gpu[i].host.notes[0];
        note->correct += own->correct;
        note->bad_op = LK_MIN(note->bad_op, own->bad_op);
    }
    write_losses(g, x, &h, p->grains, leaves, p->loss_offset, note);
    lk_assert(note->blocks.count <= x->slots);
    for (uint32_t owner = 0; owner < x->world; owner++) {
        const lk_slice slice = lk_slice_of(p, x->world, owner);
        for (uint64_t at = slice.begin; at < slice.end; at += LK_JOIN_FLOATS) {
            share_chunk(g, x, &h, leaves, slice, at,
                        LK_MIN(slice.end - at, (uint64_t)LK_JOIN_FLOATS));
        }
    }
}

// --- JOIN --------------------------------------------------------------------------------------

void lk_cuda_staged_join(const lk_cuda_group *g, lk_exchange *x, uint64_t step) {
    const lk_program *p = x->program;
    const uint32_t leaves = lk_step_grains(p, step);
    const lk_slice slice = lk_slice_of(p, x->world, x->rank);
    const uint64_t floats = slice.end - slice.begin;
    for (uint32_t w = 0; w < x->world; w++) {
        x->holdings[w] = (lk_holding){&x->note[w]->blocks, x->box[w], floats};
    }
    for (uint64_t at = 0; at < floats; at += LK_JOIN_FLOATS) {
        const uint64_t count = LK_MIN(floats - at, (uint64_t)LK_JOIN_FLOATS);
        const float *sum = lk_reduce(g->choice.kernels, x->holdings, x->world, leaves, at, count,
                                     g->gpu[0].host.scratch);
        memcpy(x->sum_out + at, sum, count * sizeof *sum);
    }
}

// --- APPLY -------------------------------------------------------------------------------------

void lk_cuda_staged_sums(const lk_cuda_group *g, const lk_exchange *x, uint64_t step) {
    const lk_program *p = x->program;
    const uint32_t leaves = lk_step_grains(p, step);
    float *sums = g->gpu[0].host.sums, scratch[LK_TREE_LEVELS_MAX + 1];
    lk_cuda_note all = {.bad_op = LK_NONE};
    for (uint32_t w = 0; w < x->world; w++) {
        const lk_slice slice = lk_slice_of(p, x->world, w);
        memcpy(sums + slice.begin, x->sum[w], (slice.end - slice.begin) * sizeof *sums);
        x->holdings[w] = (lk_holding){&x->note[w]->blocks, x->note[w]->losses, 1};
        all.correct += x->note[w]->correct;
        all.bad_op = LK_MIN(all.bad_op, x->note[w]->bad_op);
    }
    sums[p->loss_offset] =
        *lk_reduce(&lk_kernels_reference, x->holdings, x->world, leaves, 0, 1, scratch);
    for (uint32_t i = 0; i < g->count; i++) g->gpu[i].host.notes[1] = all;
}

// --- evaluation --------------------------------------------------------------------------------

void lk_cuda_staged_evaluated(const lk_cuda_group *g, lk_exchange *x, uint64_t count,
                              uint32_t stop) {
    const uint32_t grains = lk_grains_of(x->program, count);
    lk_note *note = x->note_out;
    held h;
    *note = (lk_note){.stop = stop,
                      .writes_checkpoint = x->writes_checkpoint,
                      .bad_op = LK_NONE,
                      .bad_param = LK_NONE};
    for (uint32_t i = 0; i < g->count; i++) {
        const lk_cuda_state *state = g->gpu[i].host.state;
        h.list[i] = (lk_holding){&g->evaluations[i].nodes, g->evaluations[i].losses, 1};
        note->correct += state->correct;
        note->bad_op = LK_MIN(note->bad_op, state->bad_op);
    }
    write_losses(g, x, &h, grains, grains, 0, note);
}
