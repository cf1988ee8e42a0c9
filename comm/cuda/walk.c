// walk.c - the walk over the ops of a microbatch, and over the microbatches of a step, on a GPU's
// stream.
#include "comm/cuda/walk.h"

#include "comm/cuda/guards.h"
#include "comm/cuda/uses.h"
#include "ops/cuda/mixed.h"
#include "ops/graph/mixed.h"
#include "ops/graph/scale.h"
#include "ops/graph/spectral.h"

typedef lk_cuda_walk walk;

// --- nodes -------------------------------------------------------------------------------------

static uint32_t take_slot(const walk *w) {
    for (uint32_t i = 0; i < w->slot_count; i++) {
        if (w->nodes->taken[i]) continue;
        w->nodes->taken[i] = true;
        return i;
    }
    lk_panic(__FILE__, __LINE__, "more nodes than were planned");
}

static float *slot_at(const walk *w, uint32_t slot) { return w->values + slot * w->stride; }

static void take_blocks(walk *w, const lk_microbatch *microbatch) {
    uint32_t count = 0;
    lk_block b = lk_microbatch_block(microbatch, microbatch->first_grain);
    for (; b.at < b.end; b = lk_microbatch_block(microbatch, b.end)) {
        lk_assert(count < LK_BLOCKS_MAX);
        w->fresh[count++] = take_slot(w);
    }
}

// The blocks of a microbatch enter the counter, and siblings become their parent: which slots are
// added is known before anything is computed.
static void plan_joins(walk *w, const lk_microbatch *microbatch) {
    lk_cuda_nodes *n = w->nodes;
    const uint32_t *fresh = w->fresh;
    lk_block b = lk_microbatch_block(microbatch, microbatch->first_grain);
    w->join_count = 0;
    for (; b.at < b.end; b = lk_microbatch_block(microbatch, b.end)) {
        uint32_t top = n->counter.count;
        n->slot[top] = *fresh++;
        for (uint32_t merges = lk_counter_push(&n->counter, b.node); merges > 0; merges--, top--) {
            lk_assert(w->join_count < LK_BLOCKS_MAX);
            uint32_t *join = w->joins[w->join_count++];
            join[0] = n->slot[top - 1];
            join[1] = n->slot[top];
            n->taken[n->slot[top]] = false;
        }
    }
}

static void join_blocks(walk *w, uint64_t begin, uint64_t end) {
    for (uint32_t i = 0; i < w->join_count; i++) {
        float *left = slot_at(w, w->joins[i][0]) + begin;
        lk_cuda_add(&w->s, end - begin, left, slot_at(w, w->joins[i][1]) + begin, left);
    }
}

// --- ops ---------------------------------------------------------------------------------------

// A walk is found by its lane, which frames carry.
static walk *walk_of(const lk_frame *f) {
    return (walk *)(void *)((uint8_t *)f->lane_device - offsetof(walk, lane));
}

static void before(lk_frame *f, uint32_t op) {
    walk *w = walk_of(f);
    lk_cuda_beside_before(&w->beside, &w->s, op);
    w->s.op = op;
    w->s.scratch = lk_tensor_at(f, f->program->ops[op].tensor[LK_SCRATCH]);
}

// --- mixed precision -----------------------------------------------------------------------------

// Launches that follow are of the same op. Where what they find is no flag, they are not told whose
// they are.
static lk_cuda_stream *stream_that(walk *w, bool heeds) {
    if (w->s.op != LK_NONE) w->s.quiet_op = w->s.op;
    w->s.op = heeds ? w->s.quiet_op : LK_NONE;
    return &w->s;
}

static uint32_t compute(lk_frame *f, lk_lane *lane, const lk_op *op, bool heeds) {
    lk_cuda_stream *s = stream_that(walk_of(f), heeds);
    float *const scratch = s->scratch;
    s->scratch = lane->at[LK_SCRATCH];
    (void)lk_kernel_of(f->kernels, op->type)(lane, op);
    s->scratch = scratch;
    return 0;
}

static void widen(lk_frame *f, lk_dtype dtype, uint64_t count, const void *from, float *to) {
    lk_cuda_widen(stream_that(walk_of(f), false), dtype, count, from, to);
}

static uint32_t store(lk_frame *f, const lk_narrow *how, const lk_look *look, uint64_t count,
                      const float *from, uint16_t *to) {
    lk_cuda_stream *s = stream_that(walk_of(f), look->heeds);
    if (lk_dtype_is_half(how->dtype)) {
        lk_cuda_narrow(s, how, look, count, from, to);
    } else {
        lk_cuda_look_for(s, look, count, from);
    }
    return 0;
}

static uint32_t pool(lk_frame *f, const lk_narrow *how, const lk_conv2d *conv, uint32_t examples,
                     bool heeds, const float *from, uint16_t *to, uint8_t *winners) {
    lk_cuda_narrow_pool(stream_that(walk_of(f), heeds), how, conv, examples, from, to, winners);
    return 0;
}

static void scale(lk_frame *f, uint64_t count, float *dx) {
    const lk_scale_state *state = lk_scale_of(f->program, f->device);  // on the device
    lk_cuda_scale(stream_that(walk_of(f), false), f->program->spec->model.loss_scale.initial,
                  &state->word[LK_SCALE_POWER], count, dx);
}

static void relu(lk_frame *f, uint64_t count, float *y) {
    lk_cuda_relu_forward(stream_that(walk_of(f), false), count, y, y);
}

static void clear(lk_frame *f, uint64_t bytes, void *at) {
    lk_cuda_clear_bytes(stream_that(walk_of(f), false), bytes, at);
}

static const lk_mixed_hands hands = {.compute = compute,
                                     .widen = widen,
                                     .store = store,
                                     .pool = pool,
                                     .scale = scale,
                                     .relu = relu,
                                     .clear = clear};

// --- ops that the walk computes ------------------------------------------------------------------

// A training step has this GPU's part of the batch in a slot, an evaluation one microbatch.
static void source(lk_frame *f, const lk_op *op, const lk_microbatch *microbatch, bool train) {
    walk *w = walk_of(f);
    uint32_t first =
        train ? microbatch->first_grain * w->program->spec->grain - w->source_first : 0;
    uint32_t *const labels = lk_tensor_at(f, op->tensor[LK_AUX]);
    if (op->floats == 0) {  // an objective without images: there is an example at each position
        const uint64_t words = (uint64_t)microbatch->examples * w->source.label_row;
        if (labels) lk_cuda_fill(&w->s, words, 0, labels);
        return;
    }
    const bool mixed = lk_mixed_is(f->program, op);
    float *x = lk_tensor_at(f, op->tensor[mixed ? LK_SCRATCH : LK_Y]);
    lk_cuda_load(&w->s, &w->source, first, microbatch->examples, op->floats, x, labels);
    if (!mixed) return;
    const lk_narrow how = {.dtype = lk_model_dtype(&f->program->spec->model), .rule = LK_NARROW};
    const lk_look all = {.heeds = true};
    (void)store(f, &how, &all, microbatch->examples * op->floats, x,
                lk_tensor_at(f, op->tensor[LK_Y]));
}

// The examples of a block, and the rows of all that a gradient op reads.
static uint32_t block_of(const walk *w, const lk_op *op, const lk_microbatch *microbatch,
                        const lk_block *b, lk_grain_view *view) {
    const uint32_t grain = w->program->spec->grain, first = b->at - microbatch->first_grain;
    *view = lk_grain_view_at(&w->frame, op, first, microbatch->examples);
    return LK_MIN((b->end - b->at) * grain, microbatch->examples - first * grain);
}

static void metric(lk_frame *f, const lk_op *op, const lk_microbatch *microbatch,
                   lk_counter *after) {
    walk *w = walk_of(f);
    const uint32_t *fresh = w->fresh;
    const uint32_t sums = lk_program_metrics(w->program)->sum_count;
    (void)after;
    lk_block b = lk_microbatch_block(microbatch, microbatch->first_grain);
    for (; b.at < b.end; b = lk_microbatch_block(microbatch, b.end)) {
        lk_grain_view view;
        const uint32_t examples = block_of(w, op, microbatch, &b, &view);
        const lk_cuda_grains rows = {
            .dy = view.dy, .grain = w->program->spec->grain, .examples = examples};
        float *node = slot_at(w, *fresh++);
        lk_cuda_column_sums(&w->s, sums, &rows, w->train ? node + w->program->loss_offset : node);
    }
}

static void gradient(lk_frame *f, const lk_op *op, const lk_microbatch *microbatch) {
    walk *w = walk_of(f);
    const lk_param *params = w->program->params;
    const uint32_t *fresh = w->fresh, steps = lk_op_steps(op);
    lk_lane lane = lk_lane_of(f, op, 0);
    lane.grain = w->program->spec->grain * steps;
    lk_block b = lk_microbatch_block(microbatch, microbatch->first_grain);
    for (; b.at < b.end; b = lk_microbatch_block(microbatch, b.end)) {
        lk_grain_view view;
        float *node = slot_at(w, *fresh++);
        if (lk_op_uses(op) > 1) {
            lk_cuda_uses_gradient(w, op, microbatch, &b, node);
            continue;
        }
        lane.examples = block_of(w, op, microbatch, &b, &view) * steps;
        lane.grains = &view;
        lane.grain_count = b.end - b.at;
        for (uint32_t i = 0; i < LK_OP_PARAMS; i++) {
            const uint32_t param = op->param[i];
            lane.sums[i] = param == LK_NONE ? NULL : node + params[param].node_offset;
        }
        if (lk_mixed_is(f->program, op)) {
            lane.at[LK_SCRATCH] = w->s.scratch;
            lk_mixed_device_sums(f, op, &lane);
        } else {
            lk_cuda_left_before(&w->left, &w->s, op);
            (void)lk_kernel_of(f->kernels, op->type)(&lane, op);
            lk_cuda_left_after(&w->left, &w->s, op);
        }
    }
}

static void call(lk_frame *f, const lk_op *op, const lk_microbatch *microbatch, lk_lane *lane) {
    if (lk_mixed_is(f->program, op)) {
        (void)lk_mixed_call(f, op, microbatch, lane);
    } else {
        (void)lk_kernel_of(f->kernels, op->type)(lane, op);
    }
}

// How many rounds a decoding has is known here: as many as an example can say labels. Who is done
// earlier does nothing.
static void decode(lk_frame *f, uint32_t index, const lk_microbatch *microbatch) {
    const lk_op *op = &f->program->ops[index];
    lk_lane lane = lk_walk_lane(f, op, microbatch, false);
    walk *w = walk_of(f);
    lk_cuda_decode_begin(&lane, op);
    for (uint32_t round = 0; round < op->joint.labels; round++) {
        for (uint32_t i = 0; i < f->program->forward_end; i++) {
            const lk_op *again = &f->program->ops[i];
            if (!again->again) continue;
            lk_lane l = lk_walk_lane(f, again, microbatch, false);
            if (again->type->labels) l.at[LK_LABELS] = lane.at[LK_Y];
            before(f, i);
            w->s.op = index;
            call(f, again, microbatch, &l);
        }
        before(f, index);
        call(f, op, microbatch, &lane);
    }
    before(f, index);
    lk_cuda_decode_end(&lane, op);
}

// What a kernel found out is on the device. Of the fast arithmetic in fp16 what the kernel of a
// loss wrote is scaled before a product rounds it; mixed precision has done so.
static void examples(lk_frame *f, uint32_t op, const lk_microbatch *microbatch, const lk_lane *lane,
                     uint32_t bad) {
    const lk_op *done = &f->program->ops[op];
    (void)microbatch, (void)bad;
    if (lane->train && !lk_mixed_is(f->program, done)) {
        lk_mixed_scale(f, done, lane, lane->examples);
    }
}
static void before_op(lk_frame *f, uint32_t op) {
    walk *w = walk_of(f);
    before(f, op);
    lk_cuda_guards_before(&w->s, f, op, w->broken);
}
static void after_op(lk_frame *f, uint32_t op, bool train) {
    walk *w = walk_of(f);
    lk_cuda_beside_after(&w->beside, &w->s, op);
    lk_cuda_guards_after(&w->s, f, op, train, w->broken);
}

static const lk_walker there = {.before = before_op,
                                .source = source,
                                .examples = examples,
                                .metric = metric,
                                .grains = gradient,
                                .decode = decode,
                                .after = after_op};

// --- a microbatch ------------------------------------------------------------------------------

// The walk may have been moved since it was made.
static void walk_ops(walk *w, const lk_microbatch *microbatch, uint32_t begin, uint32_t end) {
    w->lane.stream = &w->s;
    w->frame.lane_device = &w->lane;
    lk_walk_ops(&there, &w->frame, microbatch, begin, end, w->train, NULL);
    lk_cuda_beside_join(&w->beside, &w->s);
}

static void walk_microbatch(walk *w, const lk_microbatch *microbatch) {
    take_blocks(w, microbatch);
    walk_ops(w, microbatch, 0, lk_microbatch_ops(w->program, w->train));
    plan_joins(w, microbatch);
    join_blocks(w, 0, w->floats);
}

static walk start_walk(lk_cuda_step *c, uint32_t replica, lk_cuda_nodes *nodes) {
    const lk_program *p = c->program;
    const bool fast = p->spec->model.fast_precision != LK_STRICT;
    walk w = {.s = {.stream = c->compute.stream,
                    .dependent = c->dependent,
                    .rehearses = c->rehearses,
                    .error = c->compute.code,
                    .observer = c->observer,
                    .tasks = c->tasks},
              .frame = {.program = p,
                        .kernels = lk_cuda_step_kernels(p->spec),
                        .device = c->at.device,
                        .replica = c->at.replicas + replica * c->at.replica_bytes},
              .program = p,
              .broken = lk_cuda_broken(c),
              .lane = {.hands = &hands, .fast = fast ? &c->fast : NULL},
              .nodes = nodes};
    return w;
}

// What a step or an evaluation begins with, of the frame's replica: as lk_frame_start.
static void divide_kernels(walk *w) {
    const lk_program *p = w->program;
    for (uint32_t i = 0; LK_HAS_SPECTRAL && i < p->forward_end; i++) {
        const lk_op *op = &p->ops[i];
        const uint32_t param = op->param[0];
        if (!lk_param_is_spectral(p, param) || lk_spectral_op(p, param) != op) continue;
        const lk_spectral k = lk_spectral_at(&w->frame, op);
        const lk_cuda_spectral own = {k.w, k.u, k.normalized, k.v, k.n, k.numbers,
                                      (uint32_t)k.rows, (uint32_t)k.columns, k.dtype};
        w->s.op = i;
        w->s.scratch = lk_tensor_at(&w->frame, op->tensor[LK_SCRATCH]);
        lk_cuda_spectral_make(&w->s, &own);
    }
}

static bool is_signed(const lk_program *p) { return p->spec->model.input_range == LK_RANGE_SIGNED; }

static lk_cuda_source source_of(const lk_program *p, bool train) {
    const lk_run_spec *spec = p->spec;
    return (lk_cuda_source){.is_f32 = spec->model.input_type == LK_INPUT_F32,
                            .is_signed = is_signed(p),
                            .label_row = lk_model_label_row(&spec->model),
                            .middle = lk_spec_middle(spec),
                            .train = train,
                            .augments = lk_spec_augments(spec, train),
                            .augment = spec->augment,
                            .h = spec->model.in_h,
                            .w = spec->model.in_w,
                            .c = spec->model.in_c,
                            .seed = spec->seed};
}

static walk start_training(lk_cuda_step *c, uint32_t replica, lk_cuda_nodes *nodes) {
    const lk_program *p = c->program;
    const bool resident = c->needs.examples > 0;
    walk w = start_walk(c, replica, nodes);
    w.s.state = &c->at.states[0];
    w.train = true;
    lk_cuda_beside_start(&w.beside, c);
    w.source = source_of(p, true);
    w.source.images = resident ? c->at.all_images : c->at.images;
    // What is streamed was turned on its way. A plan has no source yet.
    w.source.big_endian = resident && c->source && !c->source->native;
    w.source.labels = resident ? c->at.all_labels : c->at.labels;
    w.source.resident = resident;
    w.source.order = lk_order_of(p->spec);
    w.source.order.shard_first = c->at.shards;
    w.source.epoch_batches = lk_steps_per_epoch(p->spec);
    w.source.kept = c->needs.first;
    w.source.slots = c->slots;
    w.source.slot_examples = c->batch_count;
    w.source_first = w.source.first_example = c->batch_first;
    w.values = lk_node_at(&w.frame, 0);
    w.stride = p->node_floats;
    w.floats = p->node_floats;
    w.slot_count = p->node_slots;
    lk_assert(w.slot_count <= LK_COUNT(nodes->taken));
    return w;
}

// --- tables of nodes -----------------------------------------------------------------------------

// Adds an entry to a table for the device (lk_cuda_node); `counter` is of the sum that it makes.
static void list_node(lk_cuda_node *table, uint32_t *count, lk_counter *counter, lk_node node,
                      const float *values) {
    table[(*count)++] = (lk_cuda_node){values, lk_counter_push(counter, node)};
}

static void list_replica(lk_cuda_step *c, uint32_t which, const walk *w) {
    for (uint32_t i = 0; i < w->nodes->counter.count; i++) {
        lk_assert(c->held_count[which] < c->node_max);
        lk_cuda_held *held = &c->host.held[which * c->node_max + c->held_count[which]++];
        if (!c->host.held) continue;  // planned, but not there yet
        *held = (lk_cuda_held){w->nodes->counter.nodes[i], slot_at(w, w->nodes->slot[i])};
    }
}

// This GPU has the whole batch: gradients, then the losses of the same nodes.
static void list_alone(lk_cuda_step *c, uint32_t which) {
    lk_cuda_node *table = c->host.nodes + (uint64_t)which * c->table_max;
    const lk_cuda_held *held = &c->host.held[which * c->node_max];
    lk_counter all = {.count = 0};
    uint32_t count = 0;
    if (!c->host.held) return;
    for (uint32_t i = 0; i < c->held_count[which]; i++) {
        list_node(table, &count, &all, held[i].node, held[i].values);
        table[c->node_max + i] =
            (lk_cuda_node){held[i].values + c->program->loss_offset, table[i].merges};
    }
}

// The held nodes that make each block of this GPU, block after block.
static void list_blocks(lk_cuda_step *c, uint32_t which, const lk_counter *blocks) {
    lk_cuda_node *table = c->host.nodes + (uint64_t)which * c->table_max;
    const lk_cuda_held *held = &c->host.held[which * c->node_max];
    uint32_t count = 0;
    for (uint32_t b = 0; b < blocks->count; b++) {
        lk_counter sum = {.count = 0};
        c->block_first[which][b] = count;
        for (uint32_t i = 0; i < c->held_count[which]; i++) {
            const uint64_t first = (uint64_t)held[i].node.index << held[i].node.level;
            if (first >> blocks->nodes[b].level != blocks->nodes[b].index) continue;
            list_node(table, &count, &sum, held[i].node, held[i].values);
        }
        c->block_first[which][b + 1] = count;
    }
    lk_assert(count == c->held_count[which]);
    c->block_count[which] = blocks->count;
}

// The blocks of all GPUs, as the owner of a partition sees them: its own, and those in its inbox.
static void list_slice(lk_cuda_step *c, uint32_t which, uint32_t leaves) {
    const lk_cuda_exchange *x = c->exchange;
    const lk_partition partition = lk_cuda_partition(x, c->peer);
    lk_cuda_node *table = c->host.nodes + (uint64_t)which * c->table_max + c->node_max;
    lk_counter all = {.count = 0};
    uint32_t count = 0;
    for (uint32_t peer = 0; peer < x->peers; peer++) {
        lk_counter blocks;
        lk_exchange_blocks(c->program, &x->list[peer], c->program->grains, leaves, &blocks);
        if (peer == c->peer) list_blocks(c, which, &blocks);
        for (uint32_t b = 0; b < blocks.count; b++) {
            const float *values = peer == c->peer
                                      ? c->at.blocks + b * c->program->node_floats + partition.begin
                                      : lk_cuda_inbox(c, peer, b);
            list_node(table, &count, &all, blocks.nodes[b], values);
        }
    }
    c->node_count[which] = count;
}

// What the update reads: one node, finished.
static void list_sums(lk_cuda_step *c, uint32_t which) {
    c->host.nodes[(uint64_t)(which + 1) * c->table_max - 2] = (lk_cuda_node){c->at.sums, 0};
    c->host.nodes[(uint64_t)(which + 1) * c->table_max - 1] =
        (lk_cuda_node){c->at.sums + c->program->loss_offset, 0};
}

// --- a step, recorded ----------------------------------------------------------------------------

// Without a grain no op runs, but what would live until REDUCE does.
static void begin_guards(walk *w, bool idle) {
    lk_cuda_guards_begin(&w->s, &w->frame, w->broken);
    for (uint32_t op = 0; idle && op < w->program->reduce_op; op++) {
        lk_cuda_guards_before(&w->s, &w->frame, op, w->broken);
    }
}

// Every microbatch but the last of all, whose blocks are taken and whose joins are planned.
void lk_cuda_record_start(lk_cuda_recording *r, lk_cuda_step *c, uint32_t which, uint64_t step) {
    const lk_program *p = c->program;
    *r = (lk_cuda_recording){.c = c, .which = which, .step = step, .error = c->compute.code};
    c->held_count[which] = 0;
    for (uint32_t replica = 0; replica < c->replicas; replica++) {
        lk_microbatches microbatches = lk_step_microbatches(p, c->first_replica + replica, step);
        bool more = lk_next_microbatch(&microbatches);
        r->nodes = (lk_cuda_nodes){.counter = {.count = 0}};
        r->walk = start_training(c, replica, &r->nodes);
        r->walk.s.error = r->error;
        begin_guards(&r->walk, !more);
        divide_kernels(&r->walk);
        lk_cuda_left_start(&r->walk.left, c, which);
        while (more) {
            r->last = microbatches.microbatch;
            more = lk_next_microbatch(&microbatches);
            r->has_last = !more && replica + 1 == c->replicas;
            if (r->has_last) break;
            walk_microbatch(&r->walk, &r->last);
        }
        if (r->has_last) {
            take_blocks(&r->walk, &r->last);
            plan_joins(&r->walk, &r->last);
        }
        list_replica(c, which, &r->walk);
        r->error = r->walk.s.error;
    }
    const uint32_t leaves = lk_step_grains(p, step);
    if (lk_cuda_step_shares(c)) list_sums(c, which);
    if (c->exchange) {
        list_slice(c, which, leaves);
    } else if (c->staged) {
        lk_counter blocks;
        lk_exchange_blocks(p, &c->share, p->grains, leaves, &blocks);
        list_blocks(c, which, &blocks);
    } else {
        list_alone(c, which);
        c->node_count[which] = c->held_count[which];
    }
}

void lk_cuda_record_ops(lk_cuda_recording *r, uint32_t end_op) {
    if (!r->has_last || end_op <= r->op) return;
    walk_ops(&r->walk, &r->last, r->op, end_op);
    r->op = end_op;
    r->error = r->walk.s.error;
}

void lk_cuda_record_joins(lk_cuda_recording *r, uint64_t begin, uint64_t end) {
    if (!r->has_last) return;
    join_blocks(&r->walk, begin, end);
    r->error = r->walk.s.error;
}

static lk_cuda_stream stream_of(const lk_cuda_recording *r, const lk_cuda_queue *queue) {
    return (lk_cuda_stream){.stream = queue->stream,
                            .state = &r->c->at.states[0],
                            .op = r->c->program->reduce_op,
                            .dependent = r->c->dependent,
                            .rehearses = r->c->rehearses,
                            .error = r->error,
                            .observer = r->c->observer,
                            .tasks = r->c->tasks};
}

void lk_cuda_record_nodes(lk_cuda_recording *r, lk_cuda_queue *queue, uint64_t begin,
                          uint64_t end) {
    const lk_cuda_step *c = r->c;
    const lk_cuda_node *table = c->at.nodes + (uint64_t)r->which * c->table_max;
    lk_cuda_stream s = stream_of(r, queue);
    for (uint32_t b = 0; b < c->block_count[r->which]; b++) {
        const uint32_t *first = &c->block_first[r->which][b];
        lk_cuda_join(&s, table + first[0], first[1] - first[0], begin, end - begin,
                     c->at.blocks + b * c->program->node_floats + begin);
    }
    r->error = s.error;
}

void lk_cuda_record_sums(lk_cuda_recording *r, lk_cuda_queue *queue, uint64_t begin, uint64_t end) {
    const lk_cuda_step *c = r->c;
    const lk_partition partition = lk_cuda_partition(c->exchange, c->peer);
    lk_cuda_stream s = stream_of(r, queue);
    begin = LK_MAX(begin, partition.begin);
    end = LK_MIN(end, partition.end);
    if (begin >= end) return;
    lk_cuda_join(&s, c->at.nodes + (uint64_t)r->which * c->table_max + c->node_max,
                 c->node_count[r->which], begin - partition.begin, end - begin, c->at.sums + begin);
    r->error = s.error;
}

void lk_cuda_record_report(lk_cuda_recording *r, lk_cuda_queue *queue) {
    lk_cuda_stream s = stream_of(r, queue);
    lk_cuda_step *c = r->c;
    lk_gpu_report *report = &c->at.reports[c->staged ? 0 : c->peer];
    lk_cuda_report_write(&s, report);
    if (c->staged) lk_cuda_copy_out(queue, c->host.reports, report, sizeof *report);
    r->error = s.error;
}

void lk_cuda_record_give(lk_cuda_recording *r, lk_cuda_queue *queue, uint64_t begin, uint64_t end) {
    const lk_cuda_step *c = r->c;
    for (uint32_t b = 0; b < c->block_count[r->which]; b++) {
        const uint64_t at = b * c->program->node_floats + begin;
        lk_cuda_copy_out(queue, c->host.blocks + at, c->at.blocks + at,
                         (end - begin) * sizeof(float));
    }
}

void lk_cuda_record_take(lk_cuda_recording *r, const float *sums) {
    lk_cuda_step *c = r->c;
    lk_cuda_copy_in(&c->compute, c->at.sums, sums, c->program->node_floats * sizeof *sums);
    lk_cuda_copy_in(&c->compute, &c->at.reports[1], &c->host.reports[1], sizeof *c->host.reports);
}

// Of all replicas: before what joins their nodes and updates, or after it.
static void guard_update(lk_cuda_recording *r, bool before_it) {
    const lk_cuda_step *c = r->c;
    const uint32_t op = c->program->reduce_op;
    lk_cuda_stream s = stream_of(r, &c->compute);
    for (uint32_t replica = 0; replica < c->replicas; replica++) {
        const lk_frame f = {.program = c->program,
                            .device = c->at.device,
                            .replica = c->at.replicas + replica * c->at.replica_bytes};
        if (before_it) {
            lk_cuda_guards_before(&s, &f, op, lk_cuda_broken(c));
        } else {
            lk_cuda_guards_after(&s, &f, op, true, lk_cuda_broken(c));
            lk_cuda_guards_end(&s, &f, lk_cuda_broken(c));
        }
    }
    r->error = s.error;
}

static void record_update(lk_cuda_recording *r) {
    lk_cuda_step *c = r->c;
    const lk_program *p = c->program;
    const lk_cuda_node *table = c->at.nodes + (uint64_t)r->which * c->table_max;
    const lk_cuda_node *gradients = table;
    lk_cuda_metrics metrics = {table + c->node_max, lk_program_metrics(p)->sum_count};
    uint32_t count = c->node_count[r->which];
    const lk_cuda_scalars scalars = {c->at.scalars, c->slots};
    lk_cuda_stream s = stream_of(r, &c->compute);
    if (c->exchange) lk_cuda_report_join(&s, c->at.reports, c->exchange->peers);
    if (c->staged) lk_cuda_report_join(&s, &c->at.reports[1], 1);
    if (lk_cuda_step_shares(c)) {
        gradients = table + c->table_max - 2;
        metrics.nodes = gradients + 1;
        count = 1;
    }
    const lk_cuda_norms norms = lk_program_norm(p) ? c->at.norms : (lk_cuda_norms){0};
    lk_cuda_weigh(&s, lk_cuda_params(c), lk_entry_count(p), c->at.penalty, LK_NONE);
    if (lk_cuda_left_update(&r->walk.left, &s, gradients, metrics, scalars)) {
        lk_assert(count == 1);
    } else {
        lk_cuda_update(&s, p->optimizer, lk_cuda_params(c), lk_entry_count(p), p->loss_offset,
                       gradients, count, metrics, norms, scalars);
    }
    lk_cuda_step_end(&s, metrics, count, scalars, p->ops[0].floats > 0, c->results, c->slots);
    r->error = s.error;
}

void lk_cuda_record_update(lk_cuda_recording *r) {
    guard_update(r, true);
    record_update(r);
    guard_update(r, false);
    lk_cuda_guards_tell(r->c);
}

// --- evaluation ----------------------------------------------------------------------------------

int lk_cuda_walk_begin(lk_cuda_step *c) {
    const lk_program *p = c->program;
    const lk_optimizer *o = p->optimizer;
    const uint32_t average = lk_optimizer_averages(o) ? lk_optimizer_slot_count(o) - 1 : LK_NONE;
    walk w = start_walk(c, 0, NULL);
    w.s.state = &c->at.states[1];
    divide_kernels(&w);
    w.s.op = p->reduce_op;
    lk_cuda_weigh(&w.s, lk_cuda_params(c), lk_entry_count(p), c->at.penalty, average);
    return w.s.error;
}

int lk_cuda_walk_forward(lk_cuda_step *c, const lk_microbatch *microbatch, uint32_t half,
                         lk_cuda_nodes *nodes) {
    const lk_program *p = c->program;
    const uint64_t first = (uint64_t)half * p->microbatch_examples;
    walk w = start_walk(c, 0, nodes);
    w.s.state = &c->at.states[1];
    w.source = source_of(p, false);
    w.source.images = c->at.test_images + first * lk_model_input_bytes(&p->spec->model);
    w.source.labels = c->at.test_labels + first * w.source.label_row;
    w.source.slots = 1;
    w.source.slot_examples = p->microbatch_examples;
    w.values = c->at.test_losses;
    w.stride = LK_CUDA_LOSS_FLOATS;
    w.floats = lk_program_metrics(p)->sum_count;
    w.slot_count = LK_CUDA_LOSSES;
    walk_microbatch(&w, microbatch);
    return w.s.error;
}

int lk_cuda_walk_value(lk_cuda_step *c, const lk_cuda_making *m) {
    const lk_program *p = c->program;
    const uint32_t grains = lk_grains_of(p, m->examples);
    const lk_microbatch microbatch = {
        .grain_count = grains, .examples = m->examples, .total_grains = grains};
    walk w = start_walk(c, 0, NULL);
    w.s.state = &c->at.states[1];
    divide_kernels(&w);
    for (uint32_t i = m->begin; i < m->end; i++) {
        if (p->ops[i].value == m->value) walk_ops(&w, &microbatch, i, i + 1);
    }
    return w.s.error;
}
