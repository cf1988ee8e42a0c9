// ops.c - each op of a step on a GPU by itself: are its bits those of the processor, and how long
// does it take?
//
//   gpu_ops CONFIG [--kernels NAME] [--set KEY=VALUE].. [--spoil OP]
//
// A line of JSON for each op, in the program's order, one objective after the other: a full step of
// each, step 1 or a later one, from the parameters that a run starts with, in one microbatch; on
// the GPU and by the processor beside it, op after op. Compared is what an op writes, bit for bit,
// but any NaN is any NaN (same.h); "nans" says how many of its "numbers" are. The time is the
// median of some walks over the ops, not as a graph.
//
//   --kernels NAME   the processor's: "reference" unless said; "auto" takes seconds for minutes,
//                    and is for steps without an overflow: NaNs behind it may stand elsewhere
//   --set KEY=VALUE  of the configuration, for both
//   --spoil OP       one bit of what that op has written is turned, for the test of this program
//
// Exit codes: 0; 1: an op differs; else an error, and which on stderr.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "apps/run/run.h"
#include "comm/cuda/walk.h"
#include "tests/cuda/gpu/same.h"

enum { WALKS = 9, SETS_MAX = 16 };

static lk_run device, host;
static lk_cuda_recording recording;

typedef struct seen {
    bool equal;
    uint64_t numbers, nans;
    float us[WALKS];
} seen;

// Of the objective that is looked at: the programs of both runs, its step, and how many ops there
// were before it.
static struct {
    const lk_program *host, *device;
    uint64_t step;
    seen *ops;
    uint32_t before, failed;
} now;

static struct {
    const char *config, *kernels, *set[SETS_MAX + 2];  // two of our own behind them
    uint32_t set_count, spoiled;
} asked = {.kernels = "reference", .spoiled = UINT32_MAX};

// --- runs ----------------------------------------------------------------------------------------

static lk_status open_run(lk_run *run, const char *kernels, uint32_t batch, lk_error *error) {
    char microbatch[64];
    uint32_t count = asked.set_count;
    snprintf(microbatch, sizeof microbatch, "layout.wave_examples=%u", batch);
    asked.set[count++] = "checkpoint.hot_steps=0";
    if (batch) asked.set[count++] = microbatch;
    const lk_config_options options = {.config = asked.config,
                                       .set = asked.set,
                                       .set_count = count,
                                       .kernels = kernels,
                                       .replicas = 1};
    return lk_run_configure(run, &options, (lk_run_needs){.logs = false}, error);
}

// All three of them.
static lk_status open_runs(lk_run *probe, lk_error *error) {
    LK_CHECK(open_run(probe, asked.kernels, 0, error));
    const uint32_t batch = probe->config.spec.global_batch;
    LK_CHECK(open_run(&device, "cuda", batch, error));
    return open_run(&host, asked.kernels, batch, error);
}

static lk_status start_run(lk_run *run, lk_error *error) {
    uint64_t done = 0;
    LK_CHECK(lk_run_plan(run, error));
    LK_CHECK(lk_run_start(run, 0, error));
    return lk_run_connect(run, &done, error);
}

// --- an op ---------------------------------------------------------------------------------------

static uint64_t count_of(const lk_tensor *t) {
    uint64_t count = 1;
    for (uint32_t i = 0; i < t->rank; i++) count *= t->shape[i];
    return count;
}

// Numbers at `there` on the device and at `here`.
static bool compare(uint32_t op, lk_dtype dtype, void *there, const void *here, uint64_t count) {
    const uint64_t bytes = count * lk_dtype_bytes(dtype);
    uint8_t *copy = malloc(bytes);
    bool equal = copy && cudaStreamSynchronize(device.gpus.gpu[0].compute.stream) == cudaSuccess &&
                 cudaMemcpy(copy, there, bytes, cudaMemcpyDeviceToHost) == cudaSuccess;
    if (equal && now.before + op == asked.spoiled) {
        copy[bytes / 2] ^= 1;
        equal = cudaMemcpy(there, copy, bytes, cudaMemcpyHostToDevice) == cudaSuccess;
    }
    equal = equal && (memcmp(copy, here, bytes) == 0 || same_numbers(dtype, copy, here, count));
    now.ops[op].numbers += count;
    if (copy) now.ops[op].nans += count_nans(dtype, copy, count);
    free(copy);
    return equal;
}

static bool compare_tensor(uint32_t index, uint32_t role) {
    const lk_op *op = &now.host->ops[index], *other = &now.device->ops[index];
    if (op->tensor[role] == LK_NONE || other->tensor[role] == LK_NONE) return true;
    const lk_tensor *t = &now.host->tensors[op->tensor[role]];
    const lk_tensor *u = &now.device->tensors[other->tensor[role]];
    if (t->dtype != u->dtype || count_of(t) != count_of(u)) return false;
    return compare(index, t->dtype, lk_tensor_at(&recording.walk.frame, other->tensor[role]),
                   lk_tensor_at(&host.group.frames[0], op->tensor[role]), count_of(t));
}

// The gradients that an op makes: of one node, since there is one microbatch of whole grains.
static bool compare_sums(uint32_t index) {
    bool equal = true;
    for (uint32_t i = 0; i < lk_entry_count(now.host); i++) {
        const lk_param *p = &now.host->params[i], *other = &now.device->params[i];
        if (p->gradient_op != index || p->mode != LK_REDUCE_PARTIALS) continue;
        equal = compare(index, LK_F32, lk_node_at(&recording.walk.frame, 0) + other->node_offset,
                        lk_node_at(&host.group.frames[0], 0) + p->node_offset, p->count) &&
                equal;
    }
    return equal;
}

static bool is_equal(uint32_t index) {
    const lk_op *op = &now.host->ops[index];
    const bool forward = op->phase == LK_FORWARD || op->type->scope == LK_SCOPE_SOURCE;
    if (op->type != now.device->ops[index].type) return false;
    if (op->type->scope == LK_SCOPE_GRAINS) return compare_sums(index);
    if (op->type->scope == LK_SCOPE_DECODE) return true;  // of evaluations alone
    bool equal = !forward || compare_tensor(index, LK_Y);
    if (!forward || op->type->scope == LK_SCOPE_LOSS) equal = compare_tensor(index, LK_DX) && equal;
    return (forward || compare_tensor(index, LK_DX2)) && equal;
}

static void run_op(uint32_t op, float *us) {
    static cudaEvent_t before, after;
    const cudaStream_t stream = device.gpus.gpu[0].compute.stream;
    float ms = 0.0f;
    int error = before ? 0 : cudaEventCreate(&before) | cudaEventCreate(&after);
    error |= cudaEventRecord(before, stream);
    lk_cuda_record_ops(&recording, op + 1);
    error |= cudaEventRecord(after, stream) | cudaEventSynchronize(after) | recording.error;
    error |= cudaEventElapsedTime(&ms, before, after);
    if (error) now.failed = op + 1;
    *us = 1000.0f * ms;
}

// The processor has done it.
static void on_op(void *context, uint32_t replica, uint32_t op) {
    (void)context, (void)replica;
    run_op(op, &now.ops[op].us[0]);
    now.ops[op].equal = is_equal(op);
}

// --- all -----------------------------------------------------------------------------------------

// The first full step of an objective, but step 0: its examples lie on the device, once it was done
// there; then the device's state stands at it again, with parameters as at first.
static lk_status stand_at_step_of(uint32_t objective, lk_error *error) {
    lk_cuda_step *c = &device.gpus.gpu[0];
    const lk_model *m = &device.config.spec.model;
    now.host = lk_exchange_program(&host.program, objective);
    now.device = lk_exchange_program(&device.program, objective);
    if (!lk_cuda_step_of_kind(now.device, 2 * objective, &now.step)) {
        return lk_fail(error, LK_UNAVAILABLE, "objective %u has no full step", objective);
    }
    now.step = 1;
    while (lk_cuda_kind_of(now.device, now.step) != 2 * objective) now.step++;
    const lk_cuda_state state = {.step = now.step,
                                 .batch = lk_step_place_of(m, now.step).batch,
                                 .bad_op = LK_NONE,
                                 .bad_param = LK_NONE,
                                 .asks = c->asks};
    device.cuda->use(&device.gpus, now.device);
    lk_group_use(&host.group, now.host);
    c->next = UINT64_MAX;  // no step follows another here
    LK_CHECK(lk_cuda_step_begin(c, now.step, error));
    LK_CHECK(lk_cuda_step_wait(c, error));
    c->mirror_is_new = true;
    lk_cuda_step_push(c);
    lk_cuda_copy_in(&c->compute, &c->at.states[0], &state, sizeof state);
    return lk_cuda_step_wait(c, error);
}

// Gradients are looked at: whole ones.
static void start_recording(void) {
    const uint32_t kind = lk_cuda_kind_of(now.device, now.step);
    lk_cuda_record_start(&recording, &device.gpus.gpu[0], kind, now.step);
    recording.walk.left = (lk_cuda_left){.c = NULL};
}

static lk_status walk_all(lk_error *error) {
    const uint32_t count = now.host->reduce_op;
    now.ops = calloc(count, sizeof *now.ops);
    if (!now.ops || count != now.device->reduce_op) {
        return lk_fail(error, LK_INTERNAL, "the programs have %u and %u ops", count,
                       now.device->reduce_op);
    }
    start_recording();
    lk_step_compute_seen(&host.group, 0, now.step, on_op, NULL);
    for (uint32_t walk = 1; walk < WALKS; walk++) {
        start_recording();
        for (uint32_t op = 0; op < count; op++) run_op(op, &now.ops[op].us[walk]);
    }
    return now.failed ? lk_fail(error, LK_INTERNAL, "op %u failed", now.failed - 1) : LK_OK;
}

static int by_size(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static bool print_all(void) {
    bool equal = true;
    const lk_model *m = &host.config.spec.model;
    for (uint32_t i = 0; i < now.host->reduce_op; i++) {
        const lk_op *op = &now.host->ops[i];
        seen *o = &now.ops[i];
        qsort(o->us, WALKS, sizeof(float), by_size);
        printf(
            "{\"op\":%u,\"name\":\"%s\",\"layer\":\"%s\",\"equal\":%s,\"us\":%.2f,"
            "\"numbers\":%llu,\"nans\":%llu}\n",
            now.before + i, op->type->name, op->layer == LK_NONE ? "" : m->layers[op->layer].name,
            o->equal ? "true" : "false", (double)o->us[WALKS / 2], (unsigned long long)o->numbers,
            (unsigned long long)o->nans);
        equal = equal && o->equal;
    }
    return equal;
}

static lk_status see_objectives(bool *equal, lk_error *error) {
    *equal = true;
    for (uint32_t k = 0; k < lk_exchange_programs(&host.program); k++) {
        LK_CHECK(stand_at_step_of(k, error));
        const lk_status status = walk_all(error);
        if (status == LK_OK) *equal = print_all() && *equal;
        now.before += now.host->reduce_op;
        free(now.ops);
        LK_CHECK(status);
    }
    return LK_OK;
}

// Every option has a value.
static bool read_arguments(int argc, char **argv) {
    if (argc < 2 || argc % 2) return false;
    asked.config = argv[1];
    for (int i = 2; i < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        char *end = argv[i];
        if (!strcmp(name, "--kernels") && strcmp(value, "cuda") != 0) {
            asked.kernels = value;
        } else if (!strcmp(name, "--set") && asked.set_count < SETS_MAX) {
            asked.set[asked.set_count++] = value;
        } else if (!strcmp(name, "--spoil")) {
            asked.spoiled = (uint32_t)strtoul(value, &end, 10);
            if (end == value || *end) return false;
        } else {
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv) {
    static lk_run probe;
    bool equal = false;
    lk_error error = {.status = LK_OK};
    if (!read_arguments(argc, argv)) {
        fprintf(stderr, "gpu_ops CONFIG [--kernels NAME] [--set KEY=VALUE].. [--spoil OP]\n");
        return LK_BAD_USAGE;
    }
    lk_status status = open_runs(&probe, &error);
    if (status == LK_OK) status = start_run(&device, &error);
    if (status == LK_OK) status = start_run(&host, &error);
    if (status == LK_OK) status = see_objectives(&equal, &error);
    if (status != LK_OK) fprintf(stderr, "gpu_ops: %s\n", error.text);
    lk_run_close(&device);
    lk_run_close(&host);
    lk_run_close(&probe);
    return status != LK_OK ? (int)status : !equal;
}
