// step.c - microbatches of a replica, slices of an owner. Freestanding.
#include "comm/step/step.h"

#include "comm/step/norms.h"
#include "ops/fmaf.h"
#include "ops/graph/average.h"
#include "ops/graph/check.h"
#include "ops/graph/mixed.h"

// The plan counts these tables, so their size may not follow the width of a pointer (LK_WIDE) or of
// an enumeration (compile with -fno-short-enums where that is not the default).
_Static_assert(sizeof(lk_op) == 144 && sizeof(lk_tensor) == 144 && sizeof(lk_param) == 72 &&
                   sizeof(lk_grain_view) == 32 && sizeof(lk_frame) == 1152 &&
                   sizeof(lk_holding) == 24,
               "a plan is the same, to the byte, on every target");

static void take_group_tables(lk_arena *a, const lk_program *p, lk_core_regions *r) {
    const uint64_t line = LK_TENSOR_ALIGN_BYTES;
    r->group_tables = lk_arena_take(a, "scheduler tables", lk_group_bytes(p), 1, line);
}

void lk_core_take_tables(lk_arena *a, const lk_program *p, lk_core_regions *r) {
    const uint64_t line = LK_TENSOR_ALIGN_BYTES;
    r->tables = lk_arena_take(a, "program tables", lk_programs_bytes(&p->spec->model), 1, line);
    take_group_tables(a, p, r);
}

void lk_core_take_memory(lk_arena *a, const lk_program *p, bool device, lk_core_regions *r) {
    const uint64_t line = LK_TENSOR_ALIGN_BYTES, page = LK_PAGE_BYTES;
    uint64_t bytes = p->regions[LK_REGION_DEVICE].bytes;
    r->device = device ? lk_arena_take(a, "device region", bytes, 1, page) : NULL;
    // Replica regions start a page and a bit apart, so that equal offsets do not share cache sets.
    r->replica_bytes = lk_round_up(p->regions[LK_REGION_REPLICA].bytes, page) + 5 * line;
    uint32_t here = p->layout.device ? 0 : p->layout.replicas;
    r->replicas = lk_arena_take(a, "replica region", r->replica_bytes, here, line);
}

void lk_core_take(lk_arena *a, const lk_program *p, lk_core_regions *r) {
    take_group_tables(a, p, r);
    lk_core_take_memory(a, p, true, r);
}

uint64_t lk_group_bytes(const lk_program *p) {
    uint64_t r = p->layout.replicas, sharers = lk_layout_sharers(&p->layout);
    return lk_round_up(sharers * sizeof(lk_frame), 64) +
           lk_round_up(r * sharers * sizeof(lk_holding), 64) +
           lk_round_up(r * (sizeof(uint64_t) + sizeof(uint32_t)), 64);
}

void lk_group_make(lk_group *group, const lk_program *program, const lk_kernels *kernels,
                   const lk_source *source, uint8_t *device, uint8_t *replica_regions,
                   uint64_t replica_stride, void *memory) {
    uint64_t r = program->layout.replicas, sharers = lk_layout_sharers(&program->layout);
    uint8_t *at = memory;
    *group = (lk_group){.program = program,
                        .kernels = kernels,
                        .replicas = program->layout.replicas,
                        .sharers = (uint32_t)sharers,
                        .first = lk_layout_first_sharer(&program->layout)};
    group->sharer = (lk_frame *)(void *)at;
    group->frames = group->sharer + group->first;
    at += lk_round_up(sharers * sizeof(lk_frame), 64);
    group->holdings = (lk_holding *)(void *)at;
    at += lk_round_up(r * sharers * sizeof(lk_holding), 64);
    group->together = (lk_together){.count = group->replicas, .lanes = (lk_lane **)(void *)at};
    group->bad_param = (uint32_t *)(void *)(at + r * sizeof(uint64_t));
    for (uint32_t i = 0; i < sharers; i++) group->sharer[i] = (lk_frame){.program = program};
    for (uint32_t i = 0; i < r; i++) {
        group->frames[i] = (lk_frame){.program = program,
                                      .kernels = kernels,
                                      .source = source,
                                      .device = device,
                                      .replica = replica_regions + i * replica_stride};
        if (program->checked) lk_check_start(&group->frames[i]);
    }
}

void lk_group_use(lk_group *group, const lk_program *program) {
    if (group->program == program) return;
    group->program = program;
    for (uint32_t i = 0; i < group->sharers; i++) group->sharer[i].program = program;
    for (uint32_t r = 0; r < group->replicas; r++) {
        lk_frame *f = &group->frames[r];
        f->ahead = (lk_ahead){NULL, NULL, NULL};
        if (program->checked) lk_check_start(f);
    }
    lk_group_look_ahead(group);
}

void lk_group_reach(lk_group *group, uint32_t sharer, uint8_t *replica) {
    lk_assert(sharer < group->first || sharer >= group->first + group->replicas);
    group->sharer[sharer].replica = replica;
}

void lk_group_share_work(lk_group *group, void (*meet)(void *context), void *context) {
    group->together.meet = meet;
    group->together.context = context;
}

// --- LOAD, FORWARD, BACKWARD -------------------------------------------------------------------

static lk_microbatches microbatches_of(const lk_program *p, uint32_t replica, uint32_t grains,
                                       uint64_t positions, lk_microbatch microbatch) {
    lk_grain_range range = lk_layout_grains(&p->layout, grains, replica);
    microbatch.total_grains = lk_grains_of(p, positions);
    return (lk_microbatches){.program = p,
                      .start = microbatch.position,
                      .positions = positions,
                      .at = range.first,
                      .end = LK_MIN(range.first + range.count, microbatch.total_grains),
                      .microbatch = microbatch};
}

lk_microbatches lk_step_microbatches(const lk_program *p, uint32_t replica, uint64_t step) {
    const lk_run_spec *spec = p->spec;
    const lk_batch_start at = lk_batch_start_of(spec, step);
    uint32_t positions = lk_step_positions(spec, step);
    const lk_microbatch microbatch = {.shuffled = true,
                          .sparse = positions != lk_step_examples(spec, step),
                          .step = step,
                          .epoch = at.epoch,
                          .position = at.position};
    return microbatches_of(p, replica, p->grains, positions, microbatch);
}

lk_microbatches lk_evaluate_microbatches(const lk_program *p, uint32_t replica, uint64_t count) {
    return microbatches_of(p, replica, lk_grains_of(p, count), count,
                           (lk_microbatch){.shuffled = false});
}

bool lk_next_microbatch(lk_microbatches *w) {
    if (w->at >= w->end) return false;
    uint64_t grain = w->program->spec->grain, first = w->at * grain;
    w->microbatch.first_grain = w->at;
    w->microbatch.grain_count = LK_MIN(w->program->microbatch_grains, w->end - w->at);
    w->microbatch.examples =
        (uint32_t)LK_MIN(w->microbatch.grain_count * grain, w->positions - first);
    w->microbatch.position = w->start + first;
    w->at += w->microbatch.grain_count;
    return true;
}

uint32_t lk_grains_of(const lk_program *p, uint64_t examples) {
    return (uint32_t)((examples + p->spec->grain - 1) / p->spec->grain);
}

uint32_t lk_step_grains(const lk_program *p, uint64_t step) {
    return lk_grains_of(p, lk_step_positions(p->spec, step));
}

static inline void begin_progress(lk_group *group, uint32_t replica,
                                  const lk_microbatches *microbatches) {
    if (replica != 0) return;
    group->progress.done = 0;
    group->progress.all = microbatches->end - microbatches->at;
}

static inline void add_progress(lk_group *group, uint32_t replica,
                                const lk_microbatches *microbatches) {
    if (replica == 0) group->progress.done += microbatches->microbatch.grain_count;
}

#ifdef LK_SHORT_FORM_ALONE  // its replicas take turns
static void join_others(const lk_group *group, uint32_t replica, uint64_t step,
                        lk_microbatch *microbatch) {
    (void)group, (void)replica, (void)step, (void)microbatch;
}
#else
// Whether every replica has as many microbatches in the step, which all find alike.
static bool all_alike(const lk_program *p, uint64_t step) {
    uint32_t count = 0;
    for (uint32_t r = 0; r < p->layout.replicas; r++) {
        const lk_microbatches w = lk_step_microbatches(p, r, step);
        const uint32_t grains = w.end > w.at ? w.end - w.at : 0;
        const uint32_t own = (grains + p->microbatch_grains - 1) / p->microbatch_grains;
        if (r > 0 && own != count) return false;
        count = own;
    }
    return true;
}

static void join_others(const lk_group *group, uint32_t replica, uint64_t step,
                        lk_microbatch *microbatch) {
    if (!group->together.meet || !all_alike(group->program, step)) return;
    microbatch->together = &group->together;
    microbatch->number = replica;
}
#endif

// In line: a board calls one of the two alone.
// What the step is scaled by: taken out of the mean gradients, whose factor becomes smaller.
static void take_scale(lk_group *group, uint8_t *device) {
    if (!LK_HAS_MIXED || !lk_model_scales(&group->program->spec->model)) return;
    const lk_scale_state *state = lk_scale_of(group->program, device);
    if (!state) return;
    group->scale = *state;
    group->scalars.inverse_n *= lk_scale_inverse(group->program, device);
}

__attribute__((always_inline)) static inline lk_microbatches start(lk_group *group,
                                                                   uint32_t replica,
                                                                   uint64_t step) {
    lk_frame *f = &group->frames[replica];
    lk_microbatches microbatches = lk_step_microbatches(group->program, replica, step);
    lk_frame_start(f);
    join_others(group, replica, step, &microbatches.microbatch);
    begin_progress(group, replica, &microbatches);
    if (replica == 0) {
        const uint64_t skipped =
            lk_steps_skipped(group->program, f->device, group->program->objective);
        group->scalars = lk_step_scalars_at(group->program->spec, step, skipped);
        take_scale(group, f->device);
        lk_norms_weigh(group, true);
    }
    // Without a grain no op runs, but what would live until REDUCE does, and is looked at there.
    const bool none = microbatches.at >= microbatches.end && group->program->checked;
    for (uint32_t op = 0; none && op < group->program->reduce_op; op++) lk_check_before_op(f, op);
    return microbatches;
}

void lk_step_start(lk_group *group, uint32_t replica, uint64_t step, lk_walk *walk) {
    walk->microbatches = start(group, replica, step);
    walk->op = 0;
}

void lk_step_walk(lk_group *group, uint32_t replica, lk_walk *walk, uint32_t last) {
    const uint32_t all = group->program->reduce_op;
    lk_microbatches *microbatches = &walk->microbatches;
    while (walk->op > 0 || lk_next_microbatch(microbatches)) {
        uint32_t end = microbatches->at < microbatches->end ? all : last + 1;
        lk_execute_train_ops(&group->frames[replica], &microbatches->microbatch, walk->op, end,
                             &walk->after);
        walk->op = end < all ? end : 0;
        if (walk->op > 0) return;
        add_progress(group, replica, microbatches);
    }
}

void lk_step_compute(lk_group *group, uint32_t replica, uint64_t step) {
    lk_microbatches microbatches = start(group, replica, step);
    while (lk_next_microbatch(&microbatches)) {
        lk_execute_train(&group->frames[replica], &microbatches.microbatch);
        add_progress(group, replica, &microbatches);
    }
}

void lk_step_compute_seen(lk_group *group, uint32_t replica, uint64_t step, lk_on_op seen,
                          void *context) {
    lk_microbatches microbatches = start(group, replica, step);
    lk_counter after = {0};
    while (lk_next_microbatch(&microbatches)) {
        for (uint32_t op = 0; op < group->program->reduce_op; op++) {
            lk_execute_train_ops(&group->frames[replica], &microbatches.microbatch, op, op + 1,
                                 &after);
            seen(context, replica, op);
        }
        add_progress(group, replica, &microbatches);
    }
}

// --- REDUCE, APPLY -----------------------------------------------------------------------------

void lk_step_foresee(lk_group *group, uint64_t step) {
    const lk_program *p = group->program;
    uint32_t leaves = lk_step_grains(p, step);
    for (uint32_t s = 0; s < group->sharers; s++) {
        lk_grain_range range = lk_replica_grains(p->grains, p->layout.replicas_all, s);
        uint32_t end = LK_MIN(range.first + range.count, leaves);
        uint32_t count = end > range.first ? end - range.first : 0;
        lk_counter held = lk_nodes_held(range.first, count, p->microbatch_grains, leaves);
        lk_frame *f = &group->sharer[s];
        bool ours = f >= group->frames && f < group->frames + group->replicas;
        lk_assert(!ours || f->counter.count == held.count);
        if (!ours) f->counter = held;
    }
}

// Where the update asks for norms no slice of squares has two owners.
static uint64_t border_rows(const lk_program *p, uint64_t columns) {
    uint64_t rows = LK_OPERANDS_ROWS;
    while (lk_program_norm(p) && rows * columns % LK_SLICE_TERMS != 0) rows *= 2;
    return rows;
}

// The first row of an operands parameter that a sharer owns; of the one after the last, the end.
static uint64_t first_row(const lk_op *op, const lk_group *group, uint64_t sharer) {
    uint64_t k_count, columns;
    op->type->rows(op, &k_count, &columns);
    const uint64_t rows = k_count * sharer / group->sharers;
    return LK_MIN(lk_round_up(rows, border_rows(group->program, columns)), k_count);
}

// The first element of a partials parameter: nodes are cut at multiples of 16 floats.
static uint64_t first_element(const lk_param *param, const lk_group *group, uint64_t sharer) {
    const lk_program *p = group->program;
    const uint64_t at = p->node_floats / 16 * sharer / group->sharers * 16;
    const uint64_t first = LK_MAX(at, param->node_offset) - param->node_offset;
    const bool normed = lk_program_norm(p) != LK_NORM_NONE;
    return LK_MIN(lk_round_up(first, normed ? LK_SLICE_TERMS : 1), param->count);
}

lk_owned lk_group_owned(const lk_group *group, uint32_t index, uint32_t sharer) {
    const lk_param *param = &group->program->params[index];
    if (param->gradient_op == LK_NONE) return (lk_owned){0, 0};
    if (param->mode == LK_REDUCE_PARTIALS) {
        return (lk_owned){first_element(param, group, sharer),
                          first_element(param, group, sharer + 1)};
    }
    const lk_op *op = &group->program->ops[param->gradient_op];
    uint64_t rows, columns;
    op->type->rows(op, &rows, &columns);
    return (lk_owned){first_row(op, group, sharer) * columns,
                      first_row(op, group, sharer + 1) * columns};
}

// What an owner needs for its share of a step's update.
typedef struct update {
    lk_group *group;
    lk_frame *frame;
    uint32_t replica, sharer;
    uint32_t positions, leaves;
    const lk_holding *holdings;
    float *scratch;
    bool stores;  // the sums, for an update after their norms are known
} update;

static void note_bad(lk_group *group, uint32_t replica, uint32_t index) {
    group->bad_param[replica] = LK_MIN(group->bad_param[replica], index);
}

// A state follows the mean of what the step added up for it.
static void follow_sums(lk_group *group, uint32_t replica, uint32_t index, uint64_t first,
                        uint64_t count, const float *sum) {
    const lk_op *op = &group->program->ops[group->program->params[index].gradient_op];
    const lk_moving moving = op->type->moving(op);
    float *state = lk_param_at(&group->frames[replica], index) + first;
    bool bad = false;
    for (uint64_t i = 0; i < count; i++) {
        state[i] = lk_moving_of_sum(moving, group->scalars.examples, state[i], sum[i]);
        bad |= !(state[i] - state[i] == 0.0f);
    }
    if (bad) note_bad(group, replica, index);
}

void lk_group_update(lk_group *group, uint32_t replica, const lk_step_scalars *scalars,
                     uint32_t index, uint64_t first, uint64_t count, const float *sum) {
    const lk_program *p = group->program;
    const lk_param *param = &p->params[index];
    const lk_frame *frame = &group->frames[replica];
    const lk_optimizer *o = p->optimizer;
    if (index >= p->param_count) {
        follow_sums(group, replica, index, first, count, sum);
        return;
    }
    float *slots[LK_OPTIMIZER_SLOTS_MAX] = {NULL};
    for (uint32_t s = 0; s < lk_optimizer_slot_count(o); s++) {
        slots[s] = (float *)lk_tensor_at(frame, param->slots[s]) + first;
    }
    float *w = lk_param_at(frame, index) + first;
    uint32_t bad = lk_apply_of(group->kernels, o)(o, scalars, count, sum, w, slots);
    const float most = lk_program_weight_clip(p);
    for (uint64_t i = 0; most > 0.0f && i < count; i++) {
        w[i] = w[i] > most ? most : w[i] < -most ? -most : w[i];
    }
    const bool mixed = lk_model_is_mixed(&p->spec->model) && !lk_param_is_spectral(p, index);
    if (mixed && param->rounded != LK_NONE) {
        float *rounded = (float *)lk_tensor_at(frame, param->rounded) + first;
        bad |= group->kernels->round(lk_model_dtype(&p->spec->model), count, w, rounded);
    }
    const lk_average_calls *averages = p->spec->model.averages;
    if (averages) bad |= averages->follow(frame, scalars, index, first, count);
    if (bad) note_bad(group, replica, index);
}

static void update_own(lk_group *group, uint32_t replica, uint32_t param, uint64_t first,
                       uint64_t count, const float *sum) {
#ifdef LK_SHORT_FORM_ALONE
    lk_group_update(group, replica, &group->scalars, param, first, count, sum);
#else
    const lk_step_scalars own = lk_group_scalars(group, param);
    lk_group_update(group, replica, &own, param, first, count, sum);
#endif
}

void lk_group_apply(lk_group *group, uint32_t replica, uint64_t step, uint32_t param,
                    uint64_t first, uint64_t count, const float *sum) {
    lk_assert(group->scalars.s == step);
    update_own(group, replica, param, first, count, sum);
}

// Elements [first, first + count) of a parameter, whose gradient sums lie at `sum`.
static void apply(const update *u, uint32_t index, uint64_t first, uint64_t count,
                  const float *sum) {
    if (u->stores) {
        __builtin_memcpy(lk_gradient_at(u->frame, index) + first, sum, count * sizeof *sum);
    } else {
        update_own(u->group, u->replica, index, first, count, sum);
    }
}

static void update_partials(const update *u, uint32_t index) {
    const lk_param *param = &u->group->program->params[index];
    const lk_owned own = lk_group_owned(u->group, index, u->sharer);
    const uint64_t last = param->node_offset + own.end;
    for (uint64_t at = param->node_offset + own.first; at < last; at += LK_JOIN_FLOATS) {
        uint64_t count = LK_MIN(last - at, (uint64_t)LK_JOIN_FLOATS);
        const float *sum = lk_reduce(u->group->kernels, u->holdings, u->group->sharers, u->leaves,
                                     at, count, u->scratch);
        apply(u, index, at - param->node_offset, count, sum);
    }
}

// Every grain of the step as gradient op `op` sees it, each with its uses, in leaf order, from all
// who share.
static lk_grain_view *all_views(const update *u, const lk_op *op) {
    const lk_program *p = u->group->program;
    lk_grain_view *views = lk_tensor_at(u->frame, p->views);
    const uint32_t uses = lk_op_uses(op);
    for (uint32_t r = 0; r < u->group->sharers; r++) {
        lk_grain_range range = lk_replica_grains(p->grains, u->group->sharers, r);
        uint32_t end = LK_MIN(range.first + range.count, u->leaves);
        for (uint32_t g = range.first; g < end; g++) {
            uint64_t held = u->positions - (uint64_t)range.first * p->spec->grain;
            uint32_t examples = (uint32_t)LK_MIN(held, (uint64_t)range.count * p->spec->grain);
            for (uint32_t use = 0; use < uses; use++) {
                views[g * uses + use] = lk_grain_view_at(&u->group->sharer[r], op + use,
                                                         g - range.first, examples);
            }
        }
    }
    return views;
}

// A block that would have LK_OPERANDS_ROWS rows has SOME_ROWS where they fit: whole tiles of every
// kernel. With sums of more than MANY_TERMS terms it has MANY_ROWS: it reads more than it writes.
enum { MANY_TERMS = 512, MANY_ROWS = 48, SOME_ROWS = 24 };

// How many rows of an operands parameter of `n_count` columns to work on at once.
static uint64_t operands_rows(const update *u, const lk_op *op, uint64_t n_count) {
    const lk_kernels *k = u->group->kernels;
    const uint64_t terms = (uint64_t)u->positions * lk_op_steps(op) * lk_op_uses(op);
    uint64_t floats = LK_MAX(k->weight_floats, (uint32_t)LK_OPERANDS_FLOATS);
    bool fits = k->weight_rows > 0 && k->weight_rows * n_count <= floats;
    uint64_t multiple = fits ? k->weight_rows : LK_OPERANDS_ROWS;
    uint64_t rows = LK_MAX(floats / n_count / multiple, 1) * multiple;
    uint64_t whole = terms > MANY_TERMS ? MANY_ROWS : SOME_ROWS;
    bool few = rows == LK_OPERANDS_ROWS && whole * n_count <= LK_OPERANDS_FLOATS_MAX;
    return few ? whole : rows;
}

// As update_operands, where operands have 16 bits: the gradients of all examples are widened once,
// the inputs column by column.
static void update_mixed(const update *u, uint32_t index, lk_lane *lane) {
    const lk_program *p = u->group->program;
    const lk_op *op = &p->ops[p->params[index].gradient_op];
    uint64_t k_count, n_count;
    op->type->rows(op, &k_count, &n_count);
    const uint64_t begin = first_row(op, u->group, u->sharer);
    const uint64_t end = first_row(op, u->group, u->sharer + 1);
    const uint64_t rows =
        LK_MIN(operands_rows(u, op, n_count), lk_mixed_rows(p, op));
    float *sums = u->scratch + lk_mixed_rows_floats(p, op);
    lk_grain_view *views = all_views(u, op);
    const uint32_t leaves = u->leaves * lk_op_uses(op);
    lk_mixed_rows_state mixed;
    if (begin == end) return;
    lk_mixed_rows_start(&mixed, u->frame, op, views, leaves, u->scratch);
    lane->grains = mixed.wide;
    lane->grain_count = leaves;
    lane->sums[0] = sums;
    lane->at[LK_SCRATCH] = sums + lk_round_up(rows * n_count, 16);
    for (uint64_t k = begin; k < end; k += rows) {
        const uint64_t some = LK_MIN(rows, end - k);
        const lk_weight_rows all = {.end = (uint32_t)some,
                                    // The inputs of fewer rows lie elsewhere.
                                    .again = k > begin && some == rows,
                                    .w = lk_param_shown_at(u->frame, index) + k * n_count,
                                    .next_end = (uint32_t)LK_MIN(2 * rows, end - k)};
        lk_mixed_rows_take(&mixed, u->frame, op, views, leaves, k, some);
        lane->rows = &all;
        (void)lk_kernel_of(u->group->kernels, op->type)(lane, &mixed.run);
        apply(u, index, k * n_count, some * n_count, sums);
    }
}

// The rows of an operands parameter that this replica owns: gradient and update, block by block in
// cache.
static void update_operands(const update *u, uint32_t index) {
    const lk_program *p = u->group->program;
    const lk_op *op = &p->ops[p->params[index].gradient_op];
    uint64_t k_count, n_count;
    op->type->rows(op, &k_count, &n_count);
    uint64_t begin = first_row(op, u->group, u->sharer);
    uint64_t end = first_row(op, u->group, u->sharer + 1);
    uint64_t rows = operands_rows(u, op, n_count);
    const lk_kernel kernel = lk_kernel_of(u->group->kernels, op->type);
    lk_lane lane = lk_lane_of(u->frame, op, 0);
    if (lk_mixed_is(p, op)) {
        update_mixed(u, index, &lane);
        return;
    }
    lane.grains = all_views(u, op);
    lane.grain_count = u->leaves * lk_op_uses(op);
    lane.sums[0] = u->scratch;
    lane.at[LK_SCRATCH] = u->scratch + lk_round_up(rows * n_count, 16);
    for (uint64_t k = begin; k < end; k += rows) {
        const lk_weight_rows some = {.first = (uint32_t)k,
                                     .end = (uint32_t)LK_MIN(k + rows, end),
                                     .again = k > begin,
                                     .w = lk_param_at(u->frame, index),
                                     .next_end = (uint32_t)LK_MIN(k + 2 * rows, end)};
        lane.rows = &some;
        (void)kernel(&lane, op);
        apply(u, index, k * n_count, (some.end - k) * n_count, u->scratch);
    }
}

// More would drive what the layers before it need out of a core's own cache.
enum { AHEAD_FLOATS_MAX = 256 * 1024 };

void lk_group_look_ahead(lk_group *group) {
    const lk_program *p = group->program;
    uint32_t param = 0;
    while (param < p->param_count && p->params[param].mode == LK_REDUCE_PARTIALS) param++;
    if (param == p->param_count) return;
    const lk_op *op = &p->ops[p->params[param].gradient_op];
    uint64_t k_count, n_count;
    op->type->rows(op, &k_count, &n_count);
    for (uint32_t r = 0; r < group->replicas; r++) {
        lk_frame *f = &group->frames[r];
        uint64_t begin = first_row(op, group, group->first + r);
        uint64_t end = first_row(op, group, group->first + r + 1);
        bool before = begin > k_count - end;
        uint64_t floats =
            LK_MIN((before ? begin : k_count - end) * n_count, (uint64_t)AHEAD_FLOATS_MAX);
        f->ahead.begin = lk_param_shown_at(f, param) + (before ? 0 : end * n_count);
        f->ahead.end = f->ahead.begin + floats;
    }
}

const lk_holding *lk_group_begin_update(lk_group *group, uint32_t replica) {
    lk_holding *h = group->holdings + (uint64_t)replica * group->sharers;
    group->bad_param[replica] = LK_NONE;
    if (group->program->checked) {
        lk_check_before_op(&group->frames[replica], group->program->reduce_op);
    }
    for (uint32_t r = 0; r < group->sharers; r++) {
        h[r] = (lk_holding){&group->sharer[r].counter, lk_node_at(&group->sharer[r], 0),
                            group->program->node_floats};
    }
    return h;
}

static void update_owned(lk_group *group, uint32_t replica, uint64_t step, bool stores) {
    const lk_program *p = group->program;
    lk_assert(group->scalars.s == step);
    lk_frame *frame = &group->frames[replica];
    const update u = {.group = group,
                      .frame = frame,
                      .replica = replica,
                      .sharer = group->first + replica,
                      .positions = lk_step_positions(p->spec, step),
                      .leaves = lk_step_grains(p, step),
                      .holdings = lk_group_begin_update(group, replica),
                      .scratch = lk_tensor_at(frame, p->reduce_scratch),
                      .stores = stores};
    for (uint32_t i = 0; i < lk_entry_count(p); i++) {
        if (p->params[i].mode == LK_REDUCE_PARTIALS) {
            update_partials(&u, i);
        } else {
            update_operands(&u, i);
        }
    }
}

void lk_step_update(lk_group *group, uint32_t replica, uint64_t step) {
    update_owned(group, replica, step, false);
}

void lk_step_reduce(lk_group *group, uint32_t replica, uint64_t step) {
    update_owned(group, replica, step, true);
}

// The device region is one where memory is shared; otherwise every worker has its own.
void lk_step_pass(lk_group *group, uint32_t replica, bool skipped) {
    const bool first = (group->program->layout.shared ? group->first : 0) + replica == 0;
    (void)lk_group_begin_update(group, replica);
    if (skipped && first) lk_skip_step(group->program, group->frames[replica].device);
}

void lk_verdict_follow(const lk_program *p, uint8_t *device, lk_verdict verdict) {
    lk_scale_state *state = lk_scale_of(p, device);
    if (!state || verdict == LK_VERDICT_STOP) return;
    lk_scale_follow(&p->spec->model.loss_scale, state,
                    verdict == LK_VERDICT_APPLY  ? LK_SCALE_APPLIED
                    : verdict == LK_VERDICT_SKIP ? LK_SCALE_SKIPPED
                                                 : LK_SCALE_REPLAYED);
}

void lk_step_follow(lk_group *group, uint32_t replica, lk_verdict verdict) {
    const bool first = (group->program->layout.shared ? group->first : 0) + replica == 0;
    if (first) lk_verdict_follow(group->program, group->frames[replica].device, verdict);
}

// Of LOAD, too, what it makes is y.
static bool is_forward(const lk_op *op) {
    return op->phase == LK_FORWARD || op->type->scope == LK_SCOPE_SOURCE;
}

// By what all know alike: the flags, and the scale that the step began with. What is not finite
// before the gradient of the loss is scaled, no scale cures.
lk_verdict lk_step_decide(const void *context, uint64_t step, const lk_flags *flags) {
    const lk_group *group = context;
    const lk_program *p = group->program;
    const lk_loss_scale *how = &p->spec->model.loss_scale;
    (void)step;
    if (!lk_is_flagged(flags)) return LK_VERDICT_APPLY;
    if (!how->replays) {
        const bool enough = group->scale.word[LK_SCALE_IN_A_ROW] + 1 >= how->skips_max;
        return enough ? LK_VERDICT_STOP : LK_VERDICT_SKIP;
    }
    if (flags->bad_op == LK_NONE && !flags->bad_mean) {  // a norm, which a lower scale may cure
        return lk_scale_can_fall(how, &group->scale) ? LK_VERDICT_REPLAY : LK_VERDICT_STOP;
    }
    const bool forward = flags->bad_mean ||
                         (is_forward(&p->ops[flags->bad_op]) &&
                          p->ops[flags->bad_op].type->scope != LK_SCOPE_LOSS);
    const bool cures = !forward && lk_scale_can_fall(how, &group->scale);
    return cures ? LK_VERDICT_REPLAY : LK_VERDICT_STOP;
}

// --- results -----------------------------------------------------------------------------------

const char *lk_bad_tensor(const lk_program *p, uint32_t bad_op, uint32_t bad_param) {
    if (bad_op != LK_NONE) {
        const lk_op *o = &p->ops[bad_op];
        // Of a loss that is scaled it is the gradient; where no gradient is wanted, what came in.
        const bool scaled = o->type->scope == LK_SCOPE_LOSS && p->loss_scale != LK_NONE;
        const uint32_t dx = o->tensor[LK_DX] != LK_NONE ? LK_DX : LK_DY;
        const bool forward = is_forward(o) && !scaled;
        return p->tensors[o->tensor[forward ? LK_Y : dx]].name;
    }
    return bad_param == LK_NONE ? NULL : p->tensors[p->params[bad_param].tensor].name;
}

// The first is the loss, to which the regularizers' penalty is added.
static float mean_of(const lk_holding *sums, uint32_t holder_count, uint32_t leaves,
                     uint64_t examples, uint32_t metric, float penalty) {
    float scratch[LK_TREE_LEVELS_MAX + 1];
    const float *sum =
        lk_reduce(&lk_kernels_reference, sums, holder_count, leaves, metric, 1, scratch);
    const float mean = (*sum + 0.0f) * (1.0f / lk_count_to_float(examples));
#ifdef LK_SHORT_FORM_ALONE
    (void)penalty;
    return mean;
#else
    return metric == 0 && penalty != 0.0f ? mean + penalty : mean;
#endif
}

bool lk_is_bad_mean(const lk_program *p, const lk_holding *sums, uint32_t holder_count,
                    uint32_t leaves, uint64_t examples, float penalty) {
    for (uint32_t i = 0; i < lk_program_metrics(p)->sum_count; i++) {
        const float mean = mean_of(sums, holder_count, leaves, examples, i, penalty);
        if (!(mean - mean == 0.0f)) return true;
    }
    return false;
}

lk_step_result lk_result_of(const lk_program *p, const lk_holding *sums, uint32_t holder_count,
                            uint32_t leaves, uint64_t examples,
                            const uint32_t counts[LK_METRIC_COUNTS_MAX], uint32_t bad_op,
                            uint32_t bad_param, float penalty) {
    lk_step_result result = {.program = p, .examples = (uint32_t)examples};
    lk_metric_add_counts(result.counts, counts);
    result.bad_tensor = lk_bad_tensor(p, bad_op, bad_param);
    result.bad_loss = bad_param == LK_NONE &&
                      (bad_op == LK_NONE || p->ops[bad_op].type->scope == LK_SCOPE_LOSS);
    for (uint32_t i = 0; i < lk_program_metrics(p)->sum_count; i++) {
        result.means[i] = mean_of(sums, holder_count, leaves, examples, i, penalty);
        bool finite = result.means[i] - result.means[i] == 0.0f;
        if (!result.bad_tensor && !finite) result.bad_tensor = lk_program_metrics(p)->sum[i];
    }
    return result;
}

lk_step_result lk_group_result(const lk_group *group, const lk_holding *sums, uint32_t holder_count,
                               uint32_t leaves, uint64_t examples,
                               const uint32_t counts[LK_METRIC_COUNTS_MAX], uint32_t bad_op) {
    uint32_t param = LK_NONE;
    for (uint32_t r = 0; r < group->replicas; r++) param = LK_MIN(param, group->bad_param[r]);
    return lk_result_of(group->program, sums, holder_count, leaves, examples, counts, bad_op, param,
                        group->penalty);
}

// Where each replica's nodes of the metrics' sums lie, and the first op that any found not finite.
static uint32_t hold_sums(const lk_group *group, lk_holding *out) {
    uint32_t bad_op = LK_NONE;
    for (uint32_t r = 0; r < group->replicas; r++) {
        const lk_frame *f = &group->frames[r];
        out[r] = (lk_holding){&f->counter, f->sums[0], LK_METRIC_SUMS_MAX};
        bad_op = LK_MIN(bad_op, f->bad_op);
    }
    return bad_op;
}

void lk_step_flags(const lk_group *group, uint32_t replica, uint64_t step, lk_flags *out) {
    const lk_program *p = group->program;
    lk_holding *h = group->holdings + (uint64_t)replica * group->sharers;
    *out = (lk_flags){.bad_op = hold_sums(group, h), .bad_param = LK_NONE};
    out->bad_mean = lk_is_bad_mean(p, h, group->replicas, lk_step_grains(p, step),
                                   lk_step_examples(p->spec, step), group->penalty);
}

static lk_step_result finish(lk_group *group, uint32_t leaves, uint64_t examples) {
    uint32_t counts[LK_METRIC_COUNTS_MAX] = {0};
    lk_holding *h = group->holdings;
    const uint32_t bad_op = hold_sums(group, h);
    for (uint32_t r = 0; r < group->replicas; r++) {
        lk_metric_add_counts(counts, group->frames[r].counts);
    }
    return lk_group_result(group, h, group->replicas, leaves, examples, counts, bad_op);
}

// Only now is nobody reading another replica's operands.
void lk_group_check(const lk_group *group) {
    if (!group->program->checked) return;
    for (uint32_t r = 0; r < group->replicas; r++) {
        lk_check_after_op(&group->frames[r], group->program->reduce_op, true);
        lk_check_lasting(&group->frames[r]);
    }
}

lk_step_result lk_step_finish(lk_group *group, uint64_t step) {
    lk_group_check(group);
    return finish(group, lk_step_grains(group->program, step),
                  lk_step_examples(group->program->spec, step));
}

static bool is_given_up(lk_group *group, uint32_t replica) {
    if (!group->gives_up) return false;
    if (replica == 0 && group->gives_up(group->gives_up_context)) {
        __atomic_store_n(&group->given_up, true, __ATOMIC_RELAXED);
    }
    return __atomic_load_n(&group->given_up, __ATOMIC_RELAXED);
}

void lk_evaluate_compute(lk_group *group, uint32_t replica, const lk_source *source,
                         uint64_t count) {
    lk_frame *f = &group->frames[replica];
    const lk_source *training = f->source;
    lk_microbatches microbatches = lk_evaluate_microbatches(group->program, replica, count);
    f->source = source;
    group->bad_param[replica] = LK_NONE;
    if (replica == 0) lk_norms_weigh(group, false);
    lk_frame_start(f);
    begin_progress(group, replica, &microbatches);
    while (!is_given_up(group, replica) && lk_next_microbatch(&microbatches)) {
        lk_execute_forward(f, &microbatches.microbatch);
        add_progress(group, replica, &microbatches);
        if (!group->on_logits) continue;
        group->on_logits(group->on_logits_context, microbatches.microbatch.position,
                         microbatches.microbatch.examples,
                         lk_tensor_at(f, lk_program_shown(group->program)));
    }
    f->source = training;
}

lk_step_result lk_evaluate_finish(lk_group *group, uint64_t count) {
    return finish(group, lk_grains_of(group->program, count), count);
}
