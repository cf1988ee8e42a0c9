// launches.c - the launches of one step on a GPU, as the launching code itself chooses them.
//
//   launches CONFIG GLOBAL_BATCH      a line of JSON each; nothing is computed, no GPU is asked
//
// The run is planned as for a GPU; then the code that records its steps walks one of each
// objective, at addresses that nobody may touch, and tells an observer of every launch
// (ops/cuda/kernels.h), and once more, and keeps them as tasks of one persistent kernel
// (ops/cuda/tasks.h): a line each with its level, and one of what the program reckons with or,
// where there is no such kernel, why. Kernels are given as their distance from the function main,
// for who has the program's table of symbols. Exit codes: 0; 69: this configuration does not run on
// GPUs, and why on stderr.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "apps/run/run.h"
#include "comm/cuda/walk.h"

typedef struct teller {
    const lk_program *program;
    uint32_t objective;
    double seconds;  // of the launches
} teller;

int main(int argc, char **argv);

// Of a sum's leaves that come through a 2x2 pool only one in four is wanted.
static uint64_t useful_flop(const lk_op *op) {
    return op->type->flop ? op->type->flop(op).routed * lk_op_uses(op) : 0;
}

static void tell(void *context, const lk_cuda_launched *l) {
    teller *t = context;
    const lk_program *p = t->program;
    const lk_op *op = l->op < p->op_count ? &p->ops[l->op] : NULL;
    printf("{\"objective\":%" PRIu32 ",\"op\":%" PRIu32 ",\"name\":\"%s\",\"flop\":%" PRIu64
           ",\"kernel\":%" PRId64 ",\"blocks\":[%" PRIu32 ",%" PRIu32 ",%" PRIu32
           "],\"threads\":%" PRIu32 ",\"shared\":%" PRIu64 ",\"ahead\":%" PRIu32
           ",\"items\":%" PRIu64 ",\"steps\":%" PRIu64 ",\"fma\":%" PRIu64 ",\"bytes\":%" PRIu64
           "}\n",
           t->objective, l->op, op ? op->type->name : "update", op ? useful_flop(op) : 0,
           (int64_t)((intptr_t)l->kernel - (intptr_t)main), l->blocks[0], l->blocks[1],
           l->blocks[2], l->threads, l->shared_bytes, l->ahead, l->work.items, l->work.steps,
           l->work.fma, l->work.bytes);
    t->seconds += lk_cuda_launch_seconds(l);
}

static void tell_tasks(const teller *t, const lk_cuda_tasks *tasks) {
    for (uint32_t i = 0; i < tasks->count && !tasks->refused; i++) {
        const lk_cuda_launched *l = &tasks->kept[i].launched;
        printf("{\"objective\":%" PRIu32 ",\"level\":%" PRIu32 ",\"op\":%" PRIu32
               ",\"tiles\":%" PRIu32 ",\"threads\":%" PRIu32 ",\"ahead\":%" PRIu32
               ",\"items\":%" PRIu64 ",\"steps\":%" PRIu64 ",\"fma\":%" PRIu64 ",\"bytes\":%" PRIu64
               "}\n",
               t->objective, tasks->kept[i].level, l->op, l->blocks[0] * l->blocks[1], l->threads,
               l->ahead, l->work.items, l->work.steps, l->work.fma, l->work.bytes);
    }
    printf("{\"objective\":%" PRIu32 ",\"launches_s\":%.9f,\"tasks_s\":%.9f,\"refused\":\"%s\"}\n",
           t->objective, t->seconds, tasks->refused ? 0.0 : lk_cuda_tasks_seconds(tasks),
           tasks->refused ? tasks->refused : "");
}

// Addresses, and the host's tables, which are small.
static bool place(lk_cuda_step *c) {
    const lk_cuda_needs needs = c->needs;
    void *block =
        mmap(NULL, c->arena.used, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (block == MAP_FAILED) return false;
    c->block = block;
    lk_cuda_step_plan(c, c->program, &needs);
    c->host.nodes = calloc(lk_cuda_kinds(c) * (size_t)c->table_max, sizeof *c->host.nodes);
    c->host.held = calloc(lk_cuda_kinds(c) * (size_t)c->node_max, sizeof *c->host.held);
    return c->host.nodes && c->host.held;
}

static int record(lk_cuda_step *c, uint32_t objective, uint64_t step) {
    static lk_cuda_recording recording;
    lk_cuda_record_start(&recording, c, 2 * objective, step);
    lk_cuda_record_ops(&recording, c->program->reduce_op);
    lk_cuda_record_joins(&recording, 0, c->program->node_floats);
    lk_cuda_record_update(&recording);
    return recording.error;
}

// A full step of an objective.
static lk_status walk(lk_cuda_step *c, uint32_t objective, lk_error *error) {
    static lk_cuda_tasks tasks;
    uint64_t step;
    if (!lk_cuda_step_of_kind(c->program, 2 * objective, &step)) return LK_OK;
    c->program = lk_program_of_step(c->program, step);
    teller t = {.program = c->program, .objective = objective};
    const lk_cuda_observer observer = {tell, &t};
    c->observer = &observer;
    int code = record(c, objective, step);
    c->observer = NULL;
    lk_cuda_tasks_open(&tasks);
    c->tasks = &tasks;
    if (code == 0) code = record(c, objective, step);
    c->tasks = NULL;
    tell_tasks(&t, &tasks);
    return code ? lk_fail(error, LK_INTERNAL, "a launch failed: %d", code) : LK_OK;
}

static lk_status walk_all(lk_run *run, lk_error *error) {
    lk_cuda_step *c = &run->gpus.gpu[0];
    if (!place(c)) return lk_fail(error, LK_UNAVAILABLE, "no addresses for the plan of a GPU");
    for (uint32_t k = 0; k < lk_objective_count(&run->config.spec.model); k++) {
        LK_CHECK(walk(c, k, error));
    }
    return LK_OK;
}

int main(int argc, char **argv) {
    static lk_run run;
    lk_error error = {.status = LK_OK};
    char batch[64];
    if (argc != 3) return 64;
    snprintf(batch, sizeof batch, "global_batch=%s", argv[2]);
    const char *const set[] = {batch, "data={\"train\":{\"made_up\":{\"count\":60000}}}"};
    const lk_config_options options = {
        .config = argv[1], .set = set, .set_count = 2, .kernels = "cuda", .gpus = 1};
    lk_status status = lk_run_configure(&run, &options, (lk_run_needs){.logs = true}, &error);
    if (status == LK_OK) status = lk_run_plan(&run, &error);
    if (status == LK_OK) status = walk_all(&run, &error);
    if (status != LK_OK) fprintf(stderr, "%s\n", error.text);
    return (int)status;
}
