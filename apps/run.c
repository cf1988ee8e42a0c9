// run.c - start-up in one order: measure, check, map, open, build, seal.
#define _GNU_SOURCE
#include "apps/run.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "arena/seal.h"
#include "comm/hash.h"
#include "io/shuffle.h"
#include "ops/variant.h"

// --- the source: the scheduler's view of a data set --------------------------------------------

static uint64_t source_order(void *context, uint64_t epoch, uint64_t position) {
    const lk_run *run = context;
    return lk_shuffle(run->config.spec.seed, epoch, run->train.count, position);
}

static const uint8_t *train_image(void *context, uint64_t index) {
    return lk_dataset_image(&((const lk_run *)context)->train, index);
}

static uint32_t train_label(void *context, uint64_t index) {
    return lk_dataset_label(&((const lk_run *)context)->train, index);
}

static const uint8_t *test_image(void *context, uint64_t index) {
    return lk_dataset_image(&((const lk_run *)context)->test, index);
}

static uint32_t test_label(void *context, uint64_t index) {
    return lk_dataset_label(&((const lk_run *)context)->test, index);
}

// --- configure and plan ------------------------------------------------------------------------

static uint32_t processors(void) {
    cpu_set_t allowed;
    return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? (uint32_t)CPU_COUNT(&allowed) : 1;
}

lk_status lk_run_configure(lk_run *run, const lk_config_options *options, lk_run_needs needs,
                           lk_error *error) {
    memset(run, 0, sizeof *run);
    run->needs = needs;
    LK_CHECK(lk_config_open(&run->config, options, error));
    lk_config *c = &run->config;
    LK_CHECK(lk_kernels_choose(c->kernels, &run->kernels, error));
    uint32_t grains = c->spec.grain ? lk_grain_count(&c->spec) : 1;
    run->layout = (lk_layout){
        .replicas = c->replicas ? c->replicas : LK_MIN(processors(), LK_MAX(grains, 1)),
        .wave_examples = (uint32_t)LK_MIN(c->wave_examples, UINT32_MAX),
        .fuse = c->fuse,
        .reduce = c->reduce,
    };
    run->plan_options = (lk_plan_options){.overlay = c->overlay, .guards = c->guards};
    run->train_source = (lk_source){run, source_order, train_image, train_label};
    run->test_source = (lk_source){run, source_order, test_image, test_label};
    return LK_OK;
}

uint32_t lk_run_tensor_count(const lk_run *run) {
    return run->program.param_count * (1 + lk_optimizer_slot_count(&run->config.spec.optimizer));
}

static void tensor_of(const lk_run *run, uint32_t index, lk_safetensors_tensor *out) {
    const lk_tensor *t = &run->program.tensors[index];
    *out = (lk_safetensors_tensor){.name = t->name,
                                   .dtype = LK_SAFETENSORS_F32,
                                   .dim_count = t->rank,
                                   .data = run->core.device ? run->core.device + t->offset : NULL};
    for (uint32_t i = 0; i < t->rank; i++) out->dims[i] = t->shape[i];
}

void lk_run_tensors(const lk_run *run, lk_safetensors_tensor *out) {
    const lk_program *p = &run->program;
    for (uint32_t i = 0; i < p->param_count; i++) tensor_of(run, p->params[i].tensor, out++);
    for (uint32_t s = 0; s < lk_optimizer_slot_count(&p->spec->optimizer); s++) {
        for (uint32_t i = 0; i < p->param_count; i++) tensor_of(run, p->params[i].slots[s], out++);
    }
}

// Bytes that saving a checkpoint needs. The values of its metadata may grow by what the io module
// allows.
static lk_status measure_checkpoint(lk_run *run, lk_error *error) {
    static const char zeros[] = "0000000000000000000000000000000000000000000000000000000000000000";
    lk_safetensors_pair pairs[LK_RUN_STATE_PAIRS];
    static const char *const keys[LK_RUN_STATE_PAIRS] = {"run_identity",     "digest", "state_hash",
                                                         "lockstep_version", "name",   "seed",
                                                         "global_batch",     "grain"};
    for (uint32_t i = 0; i < LK_RUN_STATE_PAIRS; i++)
        pairs[i] = (lk_safetensors_pair){keys[i], zeros};
    lk_safetensors_tensor *tensors = calloc(lk_run_tensor_count(run), sizeof *tensors);
    if (!tensors) return lk_fail(error, LK_UNAVAILABLE, "no memory at start-up");
    lk_run_tensors(run, tensors);
    const lk_checkpoint_job job = {.directory = ".",
                                   .metadata = pairs,
                                   .metadata_count = LK_COUNT(pairs),
                                   .tensors = tensors,
                                   .tensor_count = lk_run_tensor_count(run)};
    size_t bytes = 0;
    uint64_t file_bytes;
    lk_status status = lk_checkpoint_measure(&job, &bytes, &file_bytes, error);
    free(tensors);
    run->checkpoint_bytes = bytes;
    return status;
}

// Takes every region of the arena, in order. The same calls measure (no base) and commit.
static void take_regions(lk_run *run, lk_arena *a) {
    uint32_t replicas = run->layout.replicas;
    const uint64_t line = LK_TENSOR_ALIGN_BYTES, page = LK_PAGE_BYTES;
    lk_core_take(a, &run->program, &run->core);
    run->core_bytes = a->used;
    run->team_tables = lk_arena_take(a, "thread tables", lk_team_bytes(replicas), 1, line);
    run->stacks = lk_arena_take(a, "thread stack", LK_TEAM_STACK_BYTES, replicas - 1, page);
    run->train_memory = lk_arena_take(a, "training set tables", run->train_bytes, 1, line);
    run->test_memory = lk_arena_take(a, "test set tables", run->test_bytes, 1, line);
    if (run->needs.checkpoints) {
        run->checkpoint_buffer =
            lk_arena_take(a, "checkpoint buffer", run->checkpoint_bytes, 1, page);
        run->checkpoint_tables =
            lk_arena_take(a, "checkpoint tables",
                          lk_run_tensor_count(run) * sizeof(lk_safetensors_tensor), 1, line);
    }
    if (run->needs.logs) {
        run->log_buffers = (char *)lk_arena_take(a, "log buffer", LK_RUN_LOG_BYTES, 2, line);
    }
}

// The bytes of the data's tables, and the images a set must have.
static lk_status measure_data(lk_run *run, lk_error *error) {
    LK_CHECK(lk_dataset_bytes(&run->config.train.source, &run->train_bytes, error));
    if (run->config.test.given) {
        LK_CHECK(lk_dataset_bytes(&run->config.test.source, &run->test_bytes, error));
    }
    return LK_OK;
}

lk_status lk_run_plan(lk_run *run, lk_error *error) {
    lk_run_spec *spec = &run->config.spec;
    LK_CHECK(measure_data(run, error));
    run->planning = aligned_alloc(64, lk_round_up(lk_program_bytes(&spec->model), 64));
    if (!run->planning) return lk_fail(error, LK_UNAVAILABLE, "no memory for the program's tables");
    // The plan does not depend on how many examples there are; the real number comes with the data.
    if (spec->example_count == 0) spec->example_count = spec->global_batch;
    LK_CHECK(lk_program_build(spec, &run->layout, &run->plan_options, run->planning, &run->program,
                              error));
    if (run->needs.checkpoints) LK_CHECK(measure_checkpoint(run, error));
    lk_arena_open(&run->arena, NULL, 0);
    take_regions(run, &run->arena);
    return LK_OK;
}

// --- start -------------------------------------------------------------------------------------

static lk_status check_shape(const lk_run *run, const lk_dataset *set, const char *which,
                             lk_error *error) {
    const lk_model *m = &run->config.spec.model;
    if (set->height == m->in_h && set->width == m->in_w && set->channels == m->in_c) return LK_OK;
    return lk_fail(
        error, LK_BAD_CONFIG,
        "%s set: its images are %u x %u x %u, but model.input is %u x %u x %u (height, width, "
        "channels); change one of them",
        which, set->height, set->width, set->channels, m->in_h, m->in_w, m->in_c);
}

static lk_status open_data(lk_run *run, lk_error *error) {
    lk_run_spec *spec = &run->config.spec;
    LK_CHECK(lk_dataset_open(&run->config.train.source, run->train_memory, run->train_bytes,
                             &run->train, error));
    LK_CHECK(check_shape(run, &run->train, "training", error));
    spec->example_count = run->train.count;
    memcpy(spec->data_hash, run->train.sha256, LK_SHA256_BYTES);
    if (!run->config.test.given) return LK_OK;
    LK_CHECK(lk_dataset_open(&run->config.test.source, run->test_memory, run->test_bytes,
                             &run->test, error));
    return check_shape(run, &run->test, "test", error);
}

lk_status lk_run_start(lk_run *run, uint64_t max_memory, lk_error *error) {
    lk_run_spec *spec = &run->config.spec;
    LK_CHECK(lk_memory_check(run->arena.used, max_memory, error));
    LK_CHECK(lk_host_block_map(run->arena.used, &run->block, error));
    lk_arena_open(&run->arena, run->block.base, run->block.bytes);
    take_regions(run, &run->arena);
    LK_CHECK(open_data(run, error));
    LK_CHECK(lk_program_build(spec, &run->layout, &run->plan_options, run->core.tables,
                              &run->program, error));
    lk_run_identity(spec, run->identity);
    lk_hex(run->identity, LK_SHA256_BYTES, run->identity_hex);
    lk_world_make(&run->world, &run->program, run->kernels, &run->train_source, run->core.device,
                  run->core.replicas, run->core.replica_bytes, run->core.world_tables);
    lk_program_initialize(&run->program, run->core.device);
    LK_CHECK(lk_team_start(&run->team, run->layout.replicas, true, run->team_tables, run->stacks,
                           error));
    run->team_started = true;
    return LK_OK;
}

// The stack's pages too are given out at their first touch: all that the loop may want now, so that
// the memory of the first step is that of the last.
__attribute__((noinline)) static void touch_stack(void) {
    volatile uint8_t stack[LK_RUN_STACK_BYTES];
    for (size_t at = 0; at < sizeof stack; at += LK_PAGE_BYTES) stack[at] = 0;
}

lk_status lk_run_seal(lk_run *run, bool enforce, lk_error *error) {
    free(run->planning);
    run->planning = NULL;
    touch_stack();
    lk_arena_seal(&run->arena);
    return enforce ? lk_seal_enforce(error) : LK_OK;
}

void lk_run_close(lk_run *run) {
    if (run->team_started) lk_team_stop(&run->team);
    if (run->train.count) lk_dataset_close(&run->train);
    if (run->test.count) lk_dataset_close(&run->test);
    lk_host_block_unmap(&run->block);
    free(run->planning);
    lk_config_close(&run->config);
}

// --- work --------------------------------------------------------------------------------------

typedef struct work {
    lk_run *run;
    uint64_t step;
} work;

static void step_body(void *context, uint32_t member, lk_team *team) {
    const work *w = context;
    lk_step_compute(&w->run->world, member, w->step);
    lk_team_barrier(team);
    lk_step_update(&w->run->world, member, w->step);
}

lk_step_result lk_run_step(lk_run *run, uint64_t step) {
    work w = {run, step};
    lk_team_run(&run->team, step_body, &w);
    return lk_step_finish(&run->world, step);
}

static void evaluate_body(void *context, uint32_t member, lk_team *team) {
    (void)team;
    const work *w = context;
    lk_evaluate_compute(&w->run->world, member, &w->run->test_source, w->run->test.count);
}

lk_step_result lk_run_evaluate(lk_run *run) {
    work w = {run, 0};
    lk_team_run(&run->team, evaluate_body, &w);
    return lk_evaluate_finish(&run->world, run->test.count);
}

uint64_t lk_run_steps(const lk_run *run) {
    const lk_config *c = &run->config;
    uint64_t all = UINT64_MAX;
    if (c->epochs && !lk_mul_ok(c->epochs, lk_steps_per_epoch(&c->spec), &all)) all = UINT64_MAX;
    return c->steps ? LK_MIN(c->steps, all) : all;
}

// --- digests -----------------------------------------------------------------------------------

void lk_run_digest(const lk_run *run, char hex[LK_SHA256_HEX_BYTES]) {
    lk_digest(&run->program, run->core.device, hex);
}

void lk_run_state_hash(const lk_run *run, uint64_t steps_done, char hex[LK_SHA256_HEX_BYTES]) {
    lk_state_hash(&run->program, run->core.device, steps_done, hex);
}
