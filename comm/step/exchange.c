// exchange.c - parts, slices, boxes and notes of exchange.h. Freestanding.
#include "comm/step/exchange.h"

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

// --- parts -------------------------------------------------------------------------------------

// From the end of the node vector to its start: backward is done with the last layer first. A bias
// goes with its kernel.
uint32_t lk_cut_parts(const lk_program *p, uint64_t floats, uint32_t most, lk_part *parts) {
    lk_part now = {.end = p->loss_offset};
    uint32_t count = 0;
    for (uint32_t i = p->param_count; i-- > 0;) {
        const uint32_t op = p->params[i].gradient_op;
        if (op == LK_NONE) continue;
        uint32_t before = i;  // the trained parameter before it
        while (before > 0 && p->params[before - 1].gradient_op == LK_NONE) before--;
        now.begin = before == 0 ? 0 : p->params[i].node_offset;
        now.after_op = LK_MAX(now.after_op, op);
        const bool layer_ends =
            before == 0 || p->ops[p->params[before - 1].gradient_op].layer != p->ops[op].layer;
        const bool full = now.end - now.begin >= floats && count + 1 < most;
        if (before > 0 && (!layer_ends || !full)) continue;
        parts[count++] = now;
        now.end = now.begin;
    }
    return count;
}

lk_parts lk_exchange_parts(const lk_program *p) {
    lk_parts parts = {.count = 1, .part[0] = {.end = p->layout.direct ? 0 : p->loss_offset}};
    if (p->layout.part_floats > 0 && p->param_count > 0) {
        parts.count = lk_cut_parts(p, p->layout.part_floats, LK_PARTS_MAX, parts.part);
    }
    parts.part[parts.count - 1].after_op = p->reduce_op - 1;
    return parts;
}

lk_slice lk_part_slice(const lk_part *part, uint32_t world, uint32_t worker) {
    uint64_t sixteens = (part->end - part->begin) / 16;
    return (lk_slice){part->begin + sixteens * worker / world * 16,
                      part->begin + sixteens * (worker + 1) / world * 16};
}

uint64_t lk_exchange_sum_floats(const lk_parts *parts, uint32_t world, uint32_t worker,
                                uint32_t end) {
    uint64_t floats = 0;
    for (uint32_t k = 0; k < LK_MIN(end, parts->count); k++) {
        lk_slice s = lk_part_slice(&parts->part[k], world, worker);
        floats += s.end - s.begin;
    }
    return floats;
}

uint64_t lk_exchange_box_floats(const lk_program *p, const lk_worker *workers, uint32_t world,
                                uint32_t worker, uint32_t owner) {
    const lk_parts parts = lk_exchange_parts(p);
    return lk_exchange_slots(p, &workers[worker]) *
           lk_exchange_sum_floats(&parts, world, owner, parts.count);
}

uint64_t lk_exchange_floats(const lk_program *p, const lk_worker *workers, uint32_t world,
                            uint32_t worker) {
    const lk_parts parts = lk_exchange_parts(p);
    if (!lk_exchange_boxes(p)) return 0;
    return lk_exchange_slots(p, &workers[worker]) * p->loss_offset +
           lk_exchange_sum_floats(&parts, world, worker, parts.count);
}

// --- tables ------------------------------------------------------------------------------------

// Bytes of one entry of the tables for each of what.
typedef struct table_bytes {
    uint64_t pointers, notes, held, blocks, holdings, scratch;
} table_bytes;

static table_bytes tables_of(const lk_program *p, uint32_t world) {
    const uint64_t replicas = p->layout.replicas, parts = lk_exchange_parts(p).count;
    const uint64_t holders = LK_MAX(world, p->layout.replicas);
    table_bytes t = {.pointers = parts * world * sizeof(void *),
                     .notes = world * sizeof(void *),
                     .holdings = replicas * holders * sizeof(lk_holding)};
    if (p->layout.shared) return t;
    t.held = replicas * sizeof(lk_counter);
    t.blocks = world * sizeof(lk_counter);
    t.scratch = (uint64_t)LK_JOIN_FLOATS * (lk_root_level(p->grains) + 1) * sizeof(float);
    return t;
}

uint64_t lk_exchange_bytes(const lk_program *p, uint32_t world) {
    const table_bytes t = tables_of(p, world);
    return 2 * lk_round_up(t.pointers, 64) + lk_round_up(t.notes, 64) + lk_round_up(t.held, 64) +
           lk_round_up(t.blocks, 64) + lk_round_up(t.holdings, 64) + p->layout.replicas * t.scratch;
}

static void *take(uint8_t **at, uint64_t bytes) {
    void *taken = *at;
    *at += lk_round_up(bytes, 64);
    return taken;
}

void lk_exchange_make(lk_exchange *x, const lk_program *program, const lk_worker *workers,
                      uint32_t world, uint32_t rank, void *memory) {
    const table_bytes t = tables_of(program, world);
    uint8_t *at = memory;
    *x = (lk_exchange){.program = program,
                       .workers = workers,
                       .world = world,
                       .rank = rank,
                       .parts = lk_exchange_parts(program),
                       .slots = lk_exchange_slots(program, &workers[rank]),
                       .holders = LK_MAX(world, program->layout.replicas),
                       .scratch_floats = t.scratch / sizeof(float)};
    x->box = take(&at, t.pointers);
    x->sum = take(&at, t.pointers);
    x->note = take(&at, t.notes);
    x->held = take(&at, t.held);
    x->blocks = take(&at, t.blocks);
    x->holdings = take(&at, t.holdings);
    x->scratch = take(&at, 0);
}

void lk_exchange_foresee(lk_exchange *x, uint64_t step) {
    const lk_program *p = x->program;
    const uint32_t leaves = lk_step_grains(p, step);
    if (leaves == x->leaves) return;
    x->leaves = leaves;
    for (uint32_t r = 0; r < p->layout.replicas; r++) {
        lk_grain_range range = lk_layout_grains(&p->layout, p->grains, r);
        uint32_t end = LK_MIN(range.first + range.count, leaves);
        uint32_t count = end > range.first ? end - range.first : 0;
        x->held[r] = lk_nodes_held(range.first, count, p->wave_grains, leaves);
    }
    for (uint32_t w = 0; w < x->world; w++) {
        lk_exchange_blocks(p, &x->workers[w], p->grains, leaves, &x->blocks[w]);
    }
    lk_assert(x->blocks[x->rank].count <= x->slots);
}

static lk_holding *holdings_of(const lk_exchange *x, uint32_t replica) {
    return x->holdings + (uint64_t)replica * x->holders;
}

// What of a slice is the replica's to work on.
static lk_slice share_of(lk_slice s, uint32_t replicas, uint32_t replica) {
    const lk_part whole = {.begin = s.begin, .end = s.end};
    return lk_part_slice(&whole, replicas, replica);
}

// --- SHARE -------------------------------------------------------------------------------------

const lk_holding *lk_exchange_held(lk_exchange *x, const lk_world *world, uint32_t replica) {
    lk_holding *holdings = holdings_of(x, replica);
    for (uint32_t r = 0; r < world->replicas; r++) {
        holdings[r] =
            (lk_holding){&x->held[r], lk_node_at(&world->frames[r], 0), x->program->node_floats};
    }
    return holdings;
}

// One chunk of the node vector, within slice `slice`, of every whole node of this worker.
static void share_chunk(const lk_exchange *x, const lk_adder *by, const lk_holding *held,
                        uint32_t holders, lk_slice slice, uint64_t at, uint64_t count) {
    const lk_counter *blocks = &x->blocks[x->rank];
    float *box = x->boxes_out + x->slots * slice.begin;
    float *scratch = x->scratch + by->number * x->scratch_floats;
    for (uint32_t i = 0; i < blocks->count; i++) {
        const float *node = lk_reduce_node(by->kernels, held, holders, x->leaves, blocks->nodes[i],
                                           at, count, scratch);
        __builtin_memcpy(box + i * (slice.end - slice.begin) + (at - slice.begin), node,
                         count * sizeof *node);
    }
}

void lk_exchange_share(lk_exchange *x, const lk_adder *by, const lk_holding *held, uint32_t holders,
                       uint32_t part) {
    const lk_part *whole = &x->parts.part[part];
    lk_slice mine = share_of((lk_slice){whole->begin, whole->end}, by->count, by->number);
    for (uint32_t owner = 0; owner < x->world; owner++) {
        lk_slice slice = lk_part_slice(whole, x->world, owner);
        uint64_t end = LK_MIN(slice.end, mine.end);
        for (uint64_t at = LK_MAX(slice.begin, mine.begin); at < end; at += LK_JOIN_FLOATS) {
            share_chunk(x, by, held, holders, slice, at,
                        LK_MIN(end - at, (uint64_t)LK_JOIN_FLOATS));
        }
    }
}

// --- JOIN --------------------------------------------------------------------------------------

void lk_exchange_join(lk_exchange *x, const lk_adder *by, uint32_t part) {
    lk_slice slice = lk_part_slice(&x->parts.part[part], x->world, x->rank);
    lk_slice mine = share_of(slice, by->count, by->number);
    lk_holding *holdings = holdings_of(x, by->number);
    float *scratch = x->scratch + by->number * x->scratch_floats;
    float *out = x->sum_out + lk_exchange_sum_floats(&x->parts, x->world, x->rank, part);
    for (uint32_t w = 0; w < x->world; w++) {
        holdings[w] =
            (lk_holding){&x->blocks[w], x->box[part * x->world + w], slice.end - slice.begin};
    }
    for (uint64_t at = mine.begin; at < mine.end; at += LK_JOIN_FLOATS) {
        uint64_t count = LK_MIN(mine.end - at, (uint64_t)LK_JOIN_FLOATS);
        const float *sum =
            lk_reduce(by->kernels, holdings, x->world, x->leaves, at - slice.begin, count, scratch);
        __builtin_memcpy(out + (at - slice.begin), sum, count * sizeof *sum);
    }
}

// --- APPLY -------------------------------------------------------------------------------------

void lk_exchange_apply(lk_exchange *x, lk_world *world, uint32_t replica, uint64_t step,
                       uint32_t part) {
    const lk_program *p = x->program;
    const lk_part *whole = &x->parts.part[part];
    lk_slice mine = share_of((lk_slice){whole->begin, whole->end}, world->replicas, replica);
    if (part == 0) (void)lk_world_begin_update(world, replica);
    for (uint32_t owner = 0; owner < x->world; owner++) {
        lk_slice slice = lk_part_slice(whole, x->world, owner);
        for (uint32_t i = 0; i < p->param_count; i++) {
            const lk_param *param = &p->params[i];
            uint64_t begin = LK_MAX(LK_MAX(slice.begin, mine.begin), param->node_offset);
            uint64_t end = LK_MIN(LK_MIN(slice.end, mine.end), param->node_offset + param->count);
            if (begin >= end) continue;
            lk_world_apply(world, replica, step, i, begin - param->node_offset, end - begin,
                           x->sum[part * x->world + owner] + (begin - slice.begin));
        }
    }
}

// --- notes -------------------------------------------------------------------------------------

void lk_exchange_write_note(lk_exchange *x, const lk_world *world, uint32_t grains, uint32_t leaves,
                            uint32_t stop) {
    lk_note *note = x->note_out;
    lk_holding *h = world->holdings;
    float scratch[LK_TREE_LEVELS_MAX + 1];
    *note = (lk_note){.stop = stop,
                      .writes_checkpoint = x->writes_checkpoint,
                      .bad_op = LK_NONE,
                      .bad_param = LK_NONE};
    for (uint32_t r = 0; r < world->replicas; r++) {
        const lk_frame *f = &world->frames[r];
        h[r] = (lk_holding){&f->counter, f->sums[0], LK_METRIC_SUMS_MAX};
        lk_metric_add_counts(note->counts, f->counts);
        note->bad_op = LK_MIN(note->bad_op, f->bad_op);
    }
    lk_exchange_blocks(x->program, &x->workers[x->rank], grains, leaves, &note->blocks);
    for (uint32_t i = 0; i < note->blocks.count; i++) {
        for (uint32_t s = 0; s < lk_program_metrics(x->program)->sum_count; s++) {
            note->sums[i][s] = *lk_reduce_node(&lk_kernels_reference, h, world->replicas, leaves,
                                               note->blocks.nodes[i], s, 1, scratch);
        }
    }
}

void lk_exchange_complete_note(lk_exchange *x, const lk_world *world) {
    for (uint32_t r = 0; r < world->replicas; r++) {
        x->note_given->bad_param = LK_MIN(x->note_given->bad_param, world->bad_param[r]);
    }
}

lk_step_result lk_exchange_finish(const lk_exchange *x, lk_world *world, uint32_t leaves,
                                  uint64_t examples) {
    uint32_t counts[LK_METRIC_COUNTS_MAX] = {0}, bad_op = LK_NONE, stop = 0;
    lk_holding *h = x->holdings;
    for (uint32_t w = 0; w < x->world; w++) {
        const lk_note *note = x->note[w];
        h[w] = (lk_holding){&note->blocks, note->sums[0], LK_METRIC_SUMS_MAX};
        lk_metric_add_counts(counts, note->counts);
        bad_op = LK_MIN(bad_op, note->bad_op);
        world->bad_param[0] = LK_MIN(world->bad_param[0], note->bad_param);
        stop = LK_MAX(stop, note->stop);
    }
    lk_step_result result = lk_world_result(world, h, x->world, leaves, examples, counts, bad_op);
    result.stop = stop;
    return result;
}
