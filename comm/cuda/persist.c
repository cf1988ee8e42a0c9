// persist.c - tables of tasks instead of graphs: whether, which, and steps gathered to launches.
#include "comm/cuda/persist.h"

#include "comm/cuda/step.h"
#include "comm/cuda/walk.h"

// Of the step that is walked, while a run is planned or started: by one thread at a time. Nothing
// of it is kept.
static lk_cuda_tasks tasks;
static lk_cuda_recording recording;

// Of a graph's time, both as reckoned. Of mnist-cnn on an H100 graphs took 3 to 4 times that, the
// kernel 10: a quarter leaves some room.
#define LESS_THAN 0.25

// --- walks ---------------------------------------------------------------------------------------

static int walk_step(lk_cuda_step *c, uint32_t kind, uint64_t step) {
    lk_cuda_record_start(&recording, c, kind, step);
    lk_cuda_record_ops(&recording, c->program->reduce_op);
    lk_cuda_record_joins(&recording, 0, c->program->node_floats);
    lk_cuda_record_update(&recording);
    return recording.error;
}

static int keep_step(lk_cuda_step *c, uint32_t kind, uint64_t step) {
    lk_cuda_tasks_open(&tasks);
    c->tasks = &tasks;
    const int code = walk_step(c, kind, step);
    c->tasks = NULL;
    return code;
}

static void reckon(void *context, const lk_cuda_launched *launched) {
    lk_cuda_persist *p = context;
    p->graph_seconds += lk_cuda_launch_seconds(launched);
    p->launches++;
}

static void reckon_graph(lk_cuda_step *c, uint32_t kind, uint64_t step) {
    const lk_cuda_observer observer = {reckon, &c->persist};
    const lk_cuda_observer *const before = c->observer;
    c->observer = &observer;
    (void)walk_step(c, kind, step);
    c->observer = before;
}

// --- the choice ----------------------------------------------------------------------------------

bool lk_cuda_persist_has_tables(const lk_cuda_step *c) {
    return c->persist.wanted != LK_CUDA_PERSISTENT_OFF;
}

// What its model and its surroundings say of it; NULL: nothing against.
static const char *refused_at_once(const lk_cuda_step *c) {
    const lk_run_spec *spec = c->program->spec;
    if (lk_cuda_step_shares(c)) return "other GPUs or workers compute a part of each step";
    if (spec->model.fast_precision != LK_STRICT) return "the arithmetic is \"fast\"";
    if (lk_model_is_mixed(&spec->model)) return "precision is not \"float32\"";
    if (c->program->checked) return "layout.guards looks at every op";
    return NULL;
}

static void say_refused(lk_cuda_step *c) {
    const lk_program *p = c->program;
    char op[96] = "";
    if (tasks.refused_op < p->op_count) {
        const lk_op *at = &p->ops[tasks.refused_op];
        lk_format(op, sizeof op, " %s%s%s", at->type->name,
                  at->layer == LK_NONE ? "" : " of layer ",
                  at->layer == LK_NONE ? "" : p->spec->model.layers[at->layer].name);
    }
    lk_format(c->persist.why, sizeof c->persist.why, "%s%s", tasks.refused, op);
}

// Walks a full step of each objective; false where one has no table.
static bool reckon_all(lk_cuda_step *c) {
    const lk_program *used = c->program;
    bool fits = true;
    for (uint32_t kind = 0; fits && kind < lk_cuda_kinds(c); kind++) {
        uint64_t step;
        if (!lk_cuda_step_of_kind(used, kind, &step)) continue;
        c->program = lk_program_of_step(used, step);
        fits = keep_step(c, kind, step) == 0 && !tasks.refused;
        if (!fits) say_refused(c);
        if (fits && kind % 2 == 0) {
            c->persist.levels += tasks.levels;
            c->persist.seconds += lk_cuda_tasks_seconds(&tasks);
            reckon_graph(c, kind, step);
        }
        c->program = used;
    }
    return fits;
}

void lk_cuda_persist_choose(lk_cuda_step *c) {
    lk_cuda_persist *p = &c->persist;
    const char *refused = refused_at_once(c);
    *p = (lk_cuda_persist){.wanted = p->wanted};
    if (refused) {
        lk_format(p->why, sizeof p->why, "%s", refused);
        return;
    }
    p->fits = reckon_all(c);
    const bool pays = p->seconds < LESS_THAN * p->graph_seconds;
    p->is = p->fits && (p->wanted == LK_CUDA_PERSISTENT_ON || pays);
}

// --- tables --------------------------------------------------------------------------------------

lk_status lk_cuda_persist_start(lk_cuda_step *c, lk_error *error) {
    lk_cuda_persist *p = &c->persist;
    if (!p->is) return LK_OK;
    LK_CHECK(lk_cuda_check(lk_cuda_persistent_blocks(c->device.processors, &p->blocks),
                           "asking how many blocks it holds", error));
    if (p->blocks > 0) return LK_OK;
    return lk_fail(error, LK_UNAVAILABLE,
                   "GPU: it does not hold one block of the persistent kernel; leave "
                   "layout.persistent out");
}

static uint64_t table_at(uint32_t kind) { return (uint64_t)kind * LK_CUDA_TABLE_BYTES_MAX; }

lk_status lk_cuda_persist_record(lk_cuda_step *c, uint32_t kind, uint64_t step, lk_error *error) {
    LK_CHECK(lk_cuda_check(keep_step(c, kind, step), "recording a step", error));
    lk_assert(!tasks.refused && lk_cuda_tasks_bytes(&tasks) <= LK_CUDA_TABLE_BYTES_MAX);
    c->persist.bytes[kind] = lk_cuda_tasks_bytes(&tasks);
    lk_cuda_tasks_write(&tasks, c->host.tables + table_at(kind));
    return LK_OK;
}

static void launch(lk_cuda_step *c, uint32_t kind, uint32_t steps) {
    lk_cuda_stream s = {.stream = c->compute.stream, .error = c->compute.code};
    lk_cuda_persistent_launch(&s, c->at.tables + table_at(kind), c->persist.bytes[kind],
                              c->at.meeting, c->persist.blocks, steps);
    c->compute.code = s.error;
}

void lk_cuda_persist_ready(lk_cuda_step *c) {
    if (!c->persist.is) return;
    lk_cuda_copy_in(&c->compute, c->at.tables, c->host.tables, table_at(lk_cuda_kinds(c)));
    lk_cuda_clear(&c->compute, c->at.meeting, sizeof *c->at.meeting);
}

void lk_cuda_persist_try(lk_cuda_step *c, uint32_t kind) { launch(c, kind, 1); }

// --- steps ---------------------------------------------------------------------------------------

void lk_cuda_persist_flush(lk_cuda_step *c) {
    lk_cuda_persist *p = &c->persist;
    if (p->pending == 0) return;
    launch(c, p->kind, p->pending);
    p->pending = 0;
}

void lk_cuda_persist_begin(lk_cuda_step *c, uint64_t step) {
    lk_cuda_persist *p = &c->persist;
    const uint32_t kind = lk_cuda_kind_of(c->program, step);
    if (kind != p->kind) lk_cuda_persist_flush(c);
    p->kind = kind;
    p->pending++;
    // What the ring has next is copied behind all steps begun so far.
    if (step + 1 == c->ahead) lk_cuda_persist_flush(c);
}
