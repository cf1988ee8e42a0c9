// exchange.c - buckets, partitions, boxes and reports of exchange.h. Freestanding.
#include "comm/step/exchange.h"

#include "comm/step/norms.h"

lk_partition lk_partition_of(const lk_program *p, uint32_t buckets, uint32_t bucket) {
    uint64_t sixteens = p->loss_offset / 16;
    return (lk_partition){sixteens * bucket / buckets * 16, sixteens * (bucket + 1) / buckets * 16};
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

// --- buckets -------------------------------------------------------------------------------------

// From the end of the node vector to its start: backward is done with the last layer first. A bias
// goes with its kernel.
uint32_t lk_cut_buckets(const lk_program *p, uint64_t floats, uint32_t most, lk_bucket *buckets) {
    lk_bucket now = {.end = p->loss_offset};
    uint32_t count = 0;
    for (uint32_t i = lk_entry_count(p); i-- > 0;) {
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
        buckets[count++] = now;
        now.end = now.begin;
    }
    return count;
}

lk_buckets lk_exchange_buckets(const lk_program *p) {
    lk_buckets buckets = {.count = 1, .bucket[0] = {.end = p->layout.direct ? 0 : p->loss_offset}};
    if (p->layout.bucket_floats > 0 && p->param_count > 0) {
        buckets.count = lk_cut_buckets(p, p->layout.bucket_floats, LK_BUCKETS_MAX, buckets.bucket);
    }
    lk_assert(buckets.count > 0);
    buckets.bucket[buckets.count - 1].after_op = p->reduce_op - 1;
    return buckets;
}

lk_partition lk_bucket_partition(const lk_bucket *bucket, uint32_t world, uint32_t worker) {
    uint64_t sixteens = (bucket->end - bucket->begin) / 16;
    return (lk_partition){bucket->begin + sixteens * worker / world * 16,
                      bucket->begin + sixteens * (worker + 1) / world * 16};
}

uint64_t lk_exchange_sum_floats(const lk_buckets *buckets, uint32_t world, uint32_t worker,
                                uint32_t end) {
    uint64_t floats = 0;
    for (uint32_t k = 0; k < LK_MIN(end, buckets->count); k++) {
        lk_partition s = lk_bucket_partition(&buckets->bucket[k], world, worker);
        floats += s.end - s.begin;
    }
    return floats;
}

uint64_t lk_exchange_box_floats(const lk_program *p, const lk_worker *workers, uint32_t world,
                                uint32_t worker, uint32_t owner) {
    const lk_buckets buckets = lk_exchange_buckets(p);
    return lk_exchange_slots(p, &workers[worker]) *
           lk_exchange_sum_floats(&buckets, world, owner, buckets.count);
}

lk_exchange_most lk_exchange_largest(const lk_program *p, uint32_t world, uint32_t owner) {
    lk_exchange_most most = {.buckets = 0};
    for (uint32_t k = 0; k < lk_exchange_programs(p); k++) {
        const lk_program *own = lk_exchange_program(p, k);
        const lk_buckets buckets = lk_exchange_buckets(own);
        most.buckets = LK_MAX(most.buckets, buckets.count);
        most.node_floats = LK_MAX(most.node_floats, own->loss_offset);
        for (uint32_t i = 0; i < buckets.count; i++) {
            const lk_partition s = lk_bucket_partition(&buckets.bucket[i], world, owner);
            most.slice_floats[i] = LK_MAX(most.slice_floats[i], s.end - s.begin);
        }
    }
    return most;
}

uint64_t lk_exchange_floats(const lk_program *p, const lk_worker *workers, uint32_t world,
                            uint32_t worker) {
    uint64_t floats = lk_exchange_slots(p, &workers[worker]), sums = 0;
    if (!lk_exchange_boxes(p)) return 0;
    for (uint32_t k = 0; k < lk_exchange_programs(p); k++) {
        const lk_buckets buckets = lk_exchange_buckets(lk_exchange_program(p, k));
        sums = LK_MAX(sums, lk_exchange_sum_floats(&buckets, world, worker, buckets.count));
    }
    return floats * lk_exchange_largest(p, world, worker).node_floats + sums;
}

// --- tables ------------------------------------------------------------------------------------

// Bytes of one entry of the tables for each of what.
typedef struct table_bytes {
    uint64_t pointers, reports, held, blocks, holdings, scratch;
} table_bytes;

static table_bytes tables_of(const lk_program *p, uint32_t world) {
    const uint64_t replicas = p->layout.replicas;
    const uint64_t buckets = lk_exchange_largest(p, world, 0).buckets * lk_exchange_programs(p);
    const uint64_t holders = LK_MAX(world, p->layout.replicas);
    table_bytes t = {.pointers = buckets * world * sizeof(void *),
                     .reports = world * sizeof(void *),
                     .holdings = replicas * holders * sizeof(lk_holding)};
    if (p->layout.shared) return t;
    t.held = replicas * sizeof(lk_counter);
    t.blocks = world * sizeof(lk_counter);
    t.scratch = (uint64_t)LK_JOIN_FLOATS * (lk_root_level(p->grains) + 1) * sizeof(float);
    return t;
}

uint64_t lk_exchange_bytes(const lk_program *p, uint32_t world) {
    const table_bytes t = tables_of(p, world);
    return 2 * lk_round_up(t.pointers, 64) + lk_round_up(t.reports, 64) + lk_round_up(t.held, 64) +
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
                       .buckets = lk_exchange_buckets(program),
                       .pointers = lk_exchange_largest(program, world, 0).buckets * world,
                       .slots = lk_exchange_slots(program, &workers[rank]),
                       .holders = LK_MAX(world, program->layout.replicas),
                       .scratch_floats = t.scratch / sizeof(float)};
    x->box = x->all_boxes = take(&at, t.pointers);
    x->sum = x->all_sums = take(&at, t.pointers);
    x->sums_at = x->slots * lk_exchange_largest(program, world, rank).node_floats;
    x->report = take(&at, t.reports);
    x->held = take(&at, t.held);
    x->blocks = take(&at, t.blocks);
    x->holdings = take(&at, t.holdings);
    x->scratch = take(&at, 0);
}

// What the nodes are follows from the grains alone, which all programs have in common.
void lk_exchange_use(lk_exchange *x, const lk_program *program) {
    if (x->program == program) return;
    x->program = program;
    x->buckets = lk_exchange_buckets(program);
    x->box = x->all_boxes + (uint64_t)program->objective * x->pointers;
    x->sum = x->all_sums + (uint64_t)program->objective * x->pointers;
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
        x->held[r] = lk_nodes_held(range.first, count, p->microbatch_grains, leaves);
    }
    for (uint32_t w = 0; w < x->world; w++) {
        lk_exchange_blocks(p, &x->workers[w], p->grains, leaves, &x->blocks[w]);
    }
    lk_assert(x->blocks[x->rank].count <= x->slots);
}

static lk_holding *holdings_of(const lk_exchange *x, uint32_t replica) {
    return x->holdings + (uint64_t)replica * x->holders;
}

// What of a partition is the replica's to work on.
static lk_partition share_of(lk_partition s, uint32_t replicas, uint32_t replica) {
    const lk_bucket whole = {.begin = s.begin, .end = s.end};
    return lk_bucket_partition(&whole, replicas, replica);
}

// --- SHARE -------------------------------------------------------------------------------------

const lk_holding *lk_exchange_held(lk_exchange *x, const lk_group *group, uint32_t replica) {
    lk_holding *holdings = holdings_of(x, replica);
    for (uint32_t r = 0; r < group->replicas; r++) {
        holdings[r] =
            (lk_holding){&x->held[r], lk_node_at(&group->frames[r], 0), x->program->node_floats};
    }
    return holdings;
}

// One chunk of the node vector, within partition `partition`, of every whole node of this worker.
static void share_chunk(const lk_exchange *x, const lk_adder *by, const lk_holding *held,
                        uint32_t holders, lk_partition partition, uint64_t at, uint64_t count) {
    const lk_counter *blocks = &x->blocks[x->rank];
    float *box = x->boxes_out + x->slots * partition.begin;
    float *scratch = x->scratch + by->number * x->scratch_floats;
    for (uint32_t i = 0; i < blocks->count; i++) {
        const float *node = lk_reduce_node(by->kernels, held, holders, x->leaves, blocks->nodes[i],
                                           at, count, scratch);
        __builtin_memcpy(box + i * (partition.end - partition.begin) + (at - partition.begin), node,
                         count * sizeof *node);
    }
}

void lk_exchange_share(lk_exchange *x, const lk_adder *by, const lk_holding *held, uint32_t holders,
                       uint32_t bucket) {
    const lk_bucket *whole = &x->buckets.bucket[bucket];
    lk_partition mine = share_of((lk_partition){whole->begin, whole->end}, by->count, by->number);
    for (uint32_t owner = 0; owner < x->world; owner++) {
        lk_partition partition = lk_bucket_partition(whole, x->world, owner);
        uint64_t end = LK_MIN(partition.end, mine.end);
        for (uint64_t at = LK_MAX(partition.begin, mine.begin); at < end; at += LK_JOIN_FLOATS) {
            share_chunk(x, by, held, holders, partition, at,
                        LK_MIN(end - at, (uint64_t)LK_JOIN_FLOATS));
        }
    }
}

// --- JOIN --------------------------------------------------------------------------------------

void lk_exchange_join(lk_exchange *x, const lk_adder *by, uint32_t bucket) {
    lk_partition partition = lk_bucket_partition(&x->buckets.bucket[bucket], x->world, x->rank);
    lk_partition mine = share_of(partition, by->count, by->number);
    lk_holding *holdings = holdings_of(x, by->number);
    float *scratch = x->scratch + by->number * x->scratch_floats;
    float *out = x->sum_out + lk_exchange_sum_floats(&x->buckets, x->world, x->rank, bucket);
    for (uint32_t w = 0; w < x->world; w++) {
        holdings[w] = (lk_holding){&x->blocks[w], x->box[bucket * x->world + w],
                                   partition.end - partition.begin};
    }
    for (uint64_t at = mine.begin; at < mine.end; at += LK_JOIN_FLOATS) {
        uint64_t count = LK_MIN(mine.end - at, (uint64_t)LK_JOIN_FLOATS);
        const float *sum = lk_reduce(by->kernels, holdings, x->world, x->leaves,
                                     at - partition.begin, count, scratch);
        __builtin_memcpy(out + (at - partition.begin), sum, count * sizeof *sum);
    }
}

// --- APPLY -------------------------------------------------------------------------------------

// What is done with the sums of one element after another of a parameter.
typedef void (*on_sums)(lk_group *group, uint32_t replica, uint64_t step, uint32_t param,
                        uint64_t first, uint64_t count, const float *sum);

static void store_sums(lk_group *group, uint32_t replica, uint64_t step, uint32_t param,
                       uint64_t first, uint64_t count, const float *sum) {
    (void)step;
    float *to = lk_gradient_at(&group->frames[replica], param) + first;
    __builtin_memcpy(to, sum, count * sizeof *sum);
}

static void apply_sums(lk_group *group, uint32_t replica, uint64_t step, uint32_t param,
                       uint64_t first, uint64_t count, const float *sum) {
    lk_group_apply(group, replica, step, param, first, count, sum);
}

static void each_sum(lk_exchange *x, lk_group *group, uint32_t replica, uint64_t step,
                     uint32_t bucket, on_sums do_this) {
    const lk_program *p = x->program;
    const lk_bucket *whole = &x->buckets.bucket[bucket];
    lk_partition mine =
        share_of((lk_partition){whole->begin, whole->end}, group->replicas, replica);
    if (bucket == 0) (void)lk_group_begin_update(group, replica);
    for (uint32_t owner = 0; owner < x->world; owner++) {
        lk_partition partition = lk_bucket_partition(whole, x->world, owner);
        for (uint32_t i = 0; i < lk_entry_count(p); i++) {
            const lk_param *param = &p->params[i];
            uint64_t begin = LK_MAX(LK_MAX(partition.begin, mine.begin), param->node_offset);
            uint64_t end =
                LK_MIN(LK_MIN(partition.end, mine.end), param->node_offset + param->count);
            if (begin >= end) continue;
            do_this(group, replica, step, i, begin - param->node_offset, end - begin,
                    x->sum[bucket * x->world + owner] + (begin - partition.begin));
        }
    }
}

void lk_exchange_apply(lk_exchange *x, lk_group *group, uint32_t replica, uint64_t step,
                       uint32_t bucket) {
    each_sum(x, group, replica, step, bucket, apply_sums);
}

void lk_exchange_store(lk_exchange *x, lk_group *group, uint32_t replica, uint32_t bucket) {
    each_sum(x, group, replica, 0, bucket, store_sums);
}

// --- reports -------------------------------------------------------------------------------------

void lk_exchange_write_report(lk_exchange *x, const lk_group *group, uint32_t grains,
                              uint32_t leaves, uint32_t stop) {
    lk_report *report = x->report_out;
    lk_holding *h = group->holdings;
    float scratch[LK_TREE_LEVELS_MAX + 1];
    *report = (lk_report){.stop = stop,
                      .writes_checkpoint = x->writes_checkpoint,
                      .bad_op = LK_NONE,
                      .bad_param = LK_NONE};
    for (uint32_t r = 0; r < group->replicas; r++) {
        const lk_frame *f = &group->frames[r];
        h[r] = (lk_holding){&f->counter, f->sums[0], LK_METRIC_SUMS_MAX};
        lk_metric_add_counts(report->counts, f->counts);
        report->bad_op = LK_MIN(report->bad_op, f->bad_op);
    }
    lk_exchange_blocks(x->program, &x->workers[x->rank], grains, leaves, &report->blocks);
    for (uint32_t i = 0; i < report->blocks.count; i++) {
        for (uint32_t s = 0; s < lk_program_metrics(x->program)->sum_count; s++) {
            report->sums[i][s] = *lk_reduce_node(&lk_kernels_reference, h, group->replicas, leaves,
                                               report->blocks.nodes[i], s, 1, scratch);
        }
    }
}

void lk_exchange_complete_report(lk_exchange *x, const lk_group *group) {
    for (uint32_t r = 0; r < group->replicas; r++) {
        x->report_given->bad_param = LK_MIN(x->report_given->bad_param, group->bad_param[r]);
    }
}

// Where each worker's nodes of the metrics' sums lie, and the first op that any found not finite.
static uint32_t hold_sums(const lk_exchange *x, lk_holding *out) {
    uint32_t bad_op = LK_NONE;
    for (uint32_t w = 0; w < x->world; w++) {
        const lk_report *report = x->report[w];
        out[w] = (lk_holding){&report->blocks, report->sums[0], LK_METRIC_SUMS_MAX};
        bad_op = LK_MIN(bad_op, report->bad_op);
    }
    return bad_op;
}

void lk_exchange_flags(const lk_exchange *x, uint32_t replica, uint32_t leaves, uint64_t examples,
                       float penalty, lk_flags *out) {
    lk_holding *h = holdings_of(x, replica);
    *out = (lk_flags){.bad_op = hold_sums(x, h), .bad_param = LK_NONE};
    out->bad_mean = lk_is_bad_mean(x->program, h, x->world, leaves, examples, penalty);
}

lk_step_result lk_exchange_finish(const lk_exchange *x, lk_group *group, uint32_t leaves,
                                  uint64_t examples) {
    uint32_t counts[LK_METRIC_COUNTS_MAX] = {0}, stop = 0;
    lk_holding *h = x->holdings;
    const uint32_t bad_op = hold_sums(x, h);
    for (uint32_t w = 0; w < x->world; w++) {
        const lk_report *report = x->report[w];
        lk_metric_add_counts(counts, report->counts);
        group->bad_param[0] = LK_MIN(group->bad_param[0], report->bad_param);
        stop = LK_MAX(stop, report->stop);
    }
    lk_step_result result = lk_group_result(group, h, x->world, leaves, examples, counts, bad_op);
    result.stop = stop;
    return result;
}
