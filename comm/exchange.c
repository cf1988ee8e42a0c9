// exchange.c - slices, boxes and notes of exchange.h. Freestanding.
#include "comm/exchange.h"

lk_slice lk_slice_of(const lk_program *p, uint32_t parts, uint32_t part) {
    uint64_t sixteens = p->loss_offset / 16;
    return (lk_slice){sixteens * part / parts * 16, sixteens * (part + 1) / parts * 16};
}

// The grains of `grains` that a worker's replicas compute.
static lk_grain_range worker_grains(const lk_program *p, const lk_worker *w, uint32_t grains) {
    uint32_t all = p->layout.replicas_all;
    lk_grain_range first = lk_replica_grains(grains, all, w->before);
    lk_grain_range last = lk_replica_grains(grains, all, w->before + w->replicas - 1);
    return (lk_grain_range){first.first, last.first + last.count - first.first};
}

void lk_exchange_blocks(const lk_program *p, const lk_worker *w, uint32_t grains, uint32_t leaves,
                        lk_counter *out) {
    lk_grain_range range = worker_grains(p, w, grains);
    uint32_t at = range.first, end = LK_MIN(range.first + range.count, leaves);
    out->count = 0;
    while (at < end) {
        lk_node block = lk_next_block(at, end, leaves);
        lk_assert(out->count < LK_BLOCKS_MAX);
        out->nodes[out->count++] = block;
        at = (uint32_t)LK_MIN((uint64_t)(block.index + 1) << block.level, end);
    }
}

uint32_t lk_exchange_slots(const lk_program *p, const lk_worker *w) {
    lk_grain_range range = worker_grains(p, w, p->grains);
    return lk_node_slots(range.first, range.count, range.count, p->grains);
}

bool lk_exchange_boxes(const lk_program *p) { return !p->layout.shared && !p->layout.direct; }

uint64_t lk_exchange_box_floats(const lk_program *p, const lk_worker *workers, uint32_t world,
                                uint32_t worker, uint32_t owner) {
    lk_slice s = lk_slice_of(p, world, owner);
    if (!lk_exchange_boxes(p)) return 0;
    return lk_exchange_slots(p, &workers[worker]) * (s.end - s.begin);
}

uint64_t lk_exchange_floats(const lk_program *p, const lk_worker *workers, uint32_t world,
                            uint32_t worker) {
    lk_slice s = lk_slice_of(p, world, worker);
    if (!lk_exchange_boxes(p)) return 0;
    return lk_exchange_slots(p, &workers[worker]) * p->loss_offset + (s.end - s.begin);
}

uint64_t lk_exchange_bytes(uint32_t world, uint32_t replicas) {
    return 3 * lk_round_up(world * sizeof(void *), 64) +
           lk_round_up((uint64_t)world * replicas * sizeof(lk_holding), 64);
}

void lk_exchange_make(lk_exchange *x, const lk_program *program, const lk_worker *workers,
                      uint32_t world, uint32_t rank, void *memory) {
    uint8_t *at = memory;
    uint64_t pointers = lk_round_up(world * sizeof(void *), 64);
    *x = (lk_exchange){.program = program,
                       .workers = workers,
                       .world = world,
                       .rank = rank,
                       .slots = lk_exchange_slots(program, &workers[rank])};
    x->box = (const float **)(void *)at;
    x->sum = (const float **)(void *)(at + pointers);
    x->note = (const lk_note **)(void *)(at + 2 * pointers);
    x->holdings = (lk_holding *)(void *)(at + 3 * pointers);
}

// --- SHARE -------------------------------------------------------------------------------------

// One chunk of the node vector, within slice `slice`, of every whole node of this worker.
static void share_chunk(const lk_exchange *x, const lk_world *world, const lk_holding *holdings,
                        const lk_counter *blocks, uint32_t leaves, lk_slice slice, uint64_t at,
                        uint64_t count, float *scratch) {
    uint64_t stride = slice.end - slice.begin;
    float *box = x->boxes_out + x->slots * slice.begin;
    for (uint32_t i = 0; i < blocks->count; i++) {
        const float *node = lk_reduce_node(world->kernels, holdings, world->replicas, leaves,
                                           blocks->nodes[i], at, count, scratch);
        __builtin_memcpy(box + i * stride + (at - slice.begin), node, count * sizeof *node);
    }
}

void lk_exchange_share(lk_exchange *x, lk_world *world, uint32_t replica, uint64_t step) {
    const lk_program *p = x->program;
    const lk_holding *holdings = lk_world_begin_update(world, replica);
    uint32_t leaves = lk_step_grains(p, step);
    float *scratch = lk_tensor_at(&world->frames[replica], p->reduce_scratch);
    lk_counter blocks;
    lk_exchange_blocks(p, &x->workers[x->rank], p->grains, leaves, &blocks);
    lk_assert(blocks.count <= x->slots);
    lk_slice mine = lk_slice_of(p, world->replicas, replica);
    for (uint32_t owner = 0; owner < x->world; owner++) {
        lk_slice slice = lk_slice_of(p, x->world, owner);
        uint64_t end = LK_MIN(slice.end, mine.end);
        for (uint64_t at = LK_MAX(slice.begin, mine.begin); at < end; at += LK_JOIN_FLOATS) {
            share_chunk(x, world, holdings, &blocks, leaves, slice, at,
                        LK_MIN(end - at, (uint64_t)LK_JOIN_FLOATS), scratch);
        }
    }
}

// --- JOIN --------------------------------------------------------------------------------------

void lk_exchange_join(lk_exchange *x, lk_world *world, uint32_t replica, uint64_t step) {
    const lk_program *p = x->program;
    uint32_t leaves = lk_step_grains(p, step);
    lk_slice slice = lk_slice_of(p, x->world, x->rank);
    uint64_t floats = slice.end - slice.begin, sixteens = floats / 16;
    lk_holding *holdings = x->holdings + (uint64_t)replica * x->world;
    float *scratch = lk_tensor_at(&world->frames[replica], p->reduce_scratch);
    for (uint32_t w = 0; w < x->world; w++) {
        holdings[w] = (lk_holding){&x->note[w]->blocks, x->box[w], floats};
    }
    uint64_t end = sixteens * (replica + 1) / world->replicas * 16;
    for (uint64_t at = sixteens * replica / world->replicas * 16; at < end; at += LK_JOIN_FLOATS) {
        uint64_t count = LK_MIN(end - at, (uint64_t)LK_JOIN_FLOATS);
        const float *sum =
            lk_reduce(world->kernels, holdings, x->world, leaves, at, count, scratch);
        __builtin_memcpy(x->sum_out + at, sum, count * sizeof *sum);
    }
}

// --- APPLY -------------------------------------------------------------------------------------

void lk_exchange_apply(lk_exchange *x, lk_world *world, uint32_t replica, uint64_t step) {
    const lk_program *p = x->program;
    lk_slice mine = lk_slice_of(p, world->replicas, replica);
    for (uint32_t owner = 0; owner < x->world; owner++) {
        lk_slice slice = lk_slice_of(p, x->world, owner);
        for (uint32_t i = 0; i < p->param_count; i++) {
            const lk_param *param = &p->params[i];
            uint64_t begin = LK_MAX(LK_MAX(slice.begin, mine.begin), param->node_offset);
            uint64_t end = LK_MIN(LK_MIN(slice.end, mine.end), param->node_offset + param->count);
            if (begin >= end) continue;
            lk_world_apply(world, replica, step, i, begin - param->node_offset, end - begin,
                           x->sum[owner] + (begin - slice.begin));
        }
    }
}

// --- notes -------------------------------------------------------------------------------------

void lk_exchange_write_note(lk_exchange *x, const lk_world *world, uint32_t grains, uint32_t leaves,
                            uint32_t stop) {
    lk_note *note = x->note_out;
    lk_holding *h = world->holdings;
    float scratch[LK_TREE_LEVELS_MAX + 1];
    *note = (lk_note){.stop = stop, .bad_op = LK_NONE, .bad_param = LK_NONE};
    for (uint32_t r = 0; r < world->replicas; r++) {
        const lk_frame *f = &world->frames[r];
        h[r] = (lk_holding){&f->counter, f->losses, 1};
        note->correct += f->correct;
        note->bad_op = LK_MIN(note->bad_op, f->bad_op);
    }
    lk_exchange_blocks(x->program, &x->workers[x->rank], grains, leaves, &note->blocks);
    for (uint32_t i = 0; i < note->blocks.count; i++) {
        note->losses[i] = *lk_reduce_node(&lk_kernels_reference, h, world->replicas, leaves,
                                          note->blocks.nodes[i], 0, 1, scratch);
    }
}

void lk_exchange_complete_note(lk_exchange *x, const lk_world *world) {
    for (uint32_t r = 0; r < world->replicas; r++) {
        x->note_given->bad_param = LK_MIN(x->note_given->bad_param, world->bad_param[r]);
    }
}

lk_step_result lk_exchange_finish(const lk_exchange *x, lk_world *world, uint32_t leaves,
                                  uint64_t examples) {
    uint32_t correct = 0, bad_op = LK_NONE, stop = 0;
    lk_holding *h = x->holdings;
    for (uint32_t w = 0; w < x->world; w++) {
        const lk_note *note = x->note[w];
        h[w] = (lk_holding){&note->blocks, note->losses, 1};
        correct += note->correct;
        bad_op = LK_MIN(bad_op, note->bad_op);
        world->bad_param[0] = LK_MIN(world->bad_param[0], note->bad_param);
        stop = LK_MAX(stop, note->stop);
    }
    lk_step_result result = lk_world_result(world, h, x->world, leaves, examples, correct, bad_op);
    result.stop = stop;
    return result;
}
