// ops.c - each op of a step on a GPU by itself: are its bits those of the scalar reference, and how
// long does it take?
//
//   gpu_ops CONFIG [OP]      a line of JSON for each op, in the program's order
//
// Step 1 of the configuration, from the parameters that a run starts with, in one microbatch, on
// made-up data: on the GPU and by the reference beside it, op after op. Compared is what an op
// writes; the time is the median of some walks over the ops, not as a graph. With OP one bit of
// what that op has written is turned, for the test of this program.
// Exit codes: 0; 1: an op differs; else an error, and which on stderr.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "apps/run/run.h"
#include "comm/cuda/walk.h"

enum { STEP = 1, WALKS = 9 };

static lk_run device, host;
static lk_cuda_recording recording;

typedef struct seen {
    bool equal;
    float us[WALKS];
} seen;

static struct {
    seen *ops;
    uint32_t spoiled, failed;
} all = {.spoiled = UINT32_MAX};

// --- runs ----------------------------------------------------------------------------------------

static lk_status open_run(lk_run *run, const char *config, const char *kernels, uint32_t batch,
                          lk_error *error) {
    char microbatch[64];
    snprintf(microbatch, sizeof microbatch, "layout.wave_examples=%u", batch);
    const char *const set[] = {"checkpoint.hot_steps=0", microbatch};
    const lk_config_options options = {.config = config,
                                       .set = set,
                                       .set_count = batch ? 2 : 1,
                                       .kernels = kernels,
                                       .replicas = 1};
    return lk_run_configure(run, &options, (lk_run_needs){.logs = false}, error);
}

static lk_status start_run(lk_run *run, lk_error *error) {
    uint64_t done = 0;
    LK_CHECK(lk_run_plan(run, error));
    LK_CHECK(lk_run_start(run, 0, error));
    return lk_run_connect(run, &done, error);
}

// --- an op ---------------------------------------------------------------------------------------

static uint64_t bytes_of(const lk_tensor *t) {
    uint64_t bytes = lk_dtype_bytes(t->dtype);
    for (uint32_t i = 0; i < t->rank; i++) bytes *= t->shape[i];
    return bytes;
}

// Bytes at `there` on the device and at `here`.
static bool compare(uint32_t op, void *there, const void *here, uint64_t bytes) {
    uint8_t *copy = malloc(bytes);
    bool equal = copy && cudaStreamSynchronize(device.gpus.gpu[0].compute.stream) == cudaSuccess &&
                 cudaMemcpy(copy, there, bytes, cudaMemcpyDeviceToHost) == cudaSuccess;
    if (equal && op == all.spoiled) {
        copy[bytes / 2] ^= 1;
        equal = cudaMemcpy(there, copy, bytes, cudaMemcpyHostToDevice) == cudaSuccess;
    }
    equal = equal && memcmp(copy, here, bytes) == 0;
    free(copy);
    return equal;
}

static bool compare_tensor(uint32_t index, uint32_t role) {
    const lk_op *op = &host.program.ops[index], *other = &device.program.ops[index];
    if (op->tensor[role] == LK_NONE || other->tensor[role] == LK_NONE) return true;
    const lk_tensor *t = &host.program.tensors[op->tensor[role]];
    if (bytes_of(t) != bytes_of(&device.program.tensors[other->tensor[role]])) return false;
    return compare(index, lk_tensor_at(&recording.walk.frame, other->tensor[role]),
                   lk_tensor_at(&host.group.frames[0], op->tensor[role]), bytes_of(t));
}

// The gradients that an op makes: of one node, since there is one microbatch of whole grains.
static bool compare_sums(uint32_t index) {
    bool equal = true;
    for (uint32_t i = 0; i < lk_entry_count(&host.program); i++) {
        const lk_param *p = &host.program.params[i], *other = &device.program.params[i];
        if (p->gradient_op != index || p->mode != LK_REDUCE_PARTIALS) continue;
        equal = compare(index, lk_node_at(&recording.walk.frame, 0) + other->node_offset,
                        lk_node_at(&host.group.frames[0], 0) + p->node_offset,
                        p->count * sizeof(float)) && equal;
    }
    return equal;
}

static bool is_equal(uint32_t index) {
    const lk_op *op = &host.program.ops[index];
    const bool forward = op->phase == LK_FORWARD || op->type->scope == LK_SCOPE_SOURCE;
    if (op->type != device.program.ops[index].type) return false;
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
    if (error) all.failed = op + 1;
    *us = 1000.0f * ms;
}

// The reference has done it.
static void on_op(void *context, uint32_t replica, uint32_t op) {
    (void)context, (void)replica;
    run_op(op, &all.ops[op].us[0]);
    all.ops[op].equal = is_equal(op);
}

// --- all -----------------------------------------------------------------------------------------

// The examples of step STEP lie on the device, and its state stands there; parameters as at first.
static lk_status stand_at_step(lk_error *error) {
    lk_cuda_step *c = &device.gpus.gpu[0];
    for (uint64_t s = 0; s < STEP; s++) LK_CHECK(lk_cuda_step_begin(c, s, error));
    LK_CHECK(lk_cuda_step_wait(c, error));
    if (c->ahead <= STEP) return lk_fail(error, LK_UNAVAILABLE, "the ring holds one step alone");
    c->mirror_is_new = true;
    lk_cuda_step_push(c);
    return lk_cuda_step_wait(c, error);
}

// Gradients are looked at: whole ones.
static void start_recording(void) {
    lk_cuda_record_start(&recording, &device.gpus.gpu[0], 0, STEP);
    recording.walk.left = (lk_cuda_left){.c = NULL};
}

static lk_status walk_all(lk_error *error) {
    const uint32_t count = host.program.reduce_op;
    all.ops = calloc(count, sizeof *all.ops);
    if (!all.ops || count != device.program.reduce_op) {
        return lk_fail(error, LK_INTERNAL, "the programs have %u and %u ops", count,
                       device.program.reduce_op);
    }
    start_recording();
    lk_step_compute_seen(&host.group, 0, STEP, on_op, NULL);
    for (uint32_t walk = 1; walk < WALKS; walk++) {
        start_recording();
        for (uint32_t op = 0; op < count; op++) run_op(op, &all.ops[op].us[walk]);
    }
    return all.failed ? lk_fail(error, LK_INTERNAL, "op %u failed", all.failed - 1) : LK_OK;
}

static int by_size(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static bool print_all(void) {
    bool equal = true;
    for (uint32_t i = 0; i < host.program.reduce_op; i++) {
        const lk_op *op = &host.program.ops[i];
        const lk_model *m = &host.config.spec.model;
        qsort(all.ops[i].us, WALKS, sizeof(float), by_size);
        printf("{\"op\":%u,\"name\":\"%s\",\"layer\":\"%s\",\"equal\":%s,\"us\":%.2f}\n", i,
               op->type->name, op->layer == LK_NONE ? "" : m->layers[op->layer].name,
               all.ops[i].equal ? "true" : "false", (double)all.ops[i].us[WALKS / 2]);
        equal = equal && all.ops[i].equal;
    }
    return equal;
}

int main(int argc, char **argv) {
    static lk_run probe;
    lk_error error = {.status = LK_OK};
    if (argc < 2 || argc > 3) return LK_BAD_USAGE;
    if (argc == 3) all.spoiled = (uint32_t)strtoul(argv[2], NULL, 10);
    lk_status status = open_run(&probe, argv[1], "reference", 0, &error);
    const uint32_t batch = status == LK_OK ? probe.config.spec.global_batch : 0;
    if (status == LK_OK) status = open_run(&device, argv[1], "cuda", batch, &error);
    if (status == LK_OK) status = open_run(&host, argv[1], "reference", batch, &error);
    if (status == LK_OK) status = start_run(&device, &error);
    if (status == LK_OK) status = start_run(&host, &error);
    if (status == LK_OK) status = stand_at_step(&error);
    if (status == LK_OK) status = walk_all(&error);
    const bool equal = status == LK_OK && print_all();
    if (status != LK_OK) fprintf(stderr, "gpu_ops: %s\n", error.text);
    lk_run_close(&device);
    lk_run_close(&host);
    lk_run_close(&probe);
    free(all.ops);
    return status != LK_OK ? (int)status : !equal;
}
