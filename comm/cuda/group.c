// group.c - several GPUs in one step: connected, recorded bucket by bucket, watched. Host
// only.
#define _GNU_SOURCE
#include "comm/cuda/group.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#include "comm/cuda/lanes.h"
#include "comm/cuda/persist.h"
#include "comm/cuda/walk.h"
#include "comm/mpi/mpi.h"
#include "ops/graph/scale.h"

#define EACH_GPU(g, c) for (lk_cuda_step *c = (g)->gpu; c < (g)->gpu + (g)->count; c++)

static void use(const lk_cuda_step *c) { lk_cuda_use(c->device.number); }

// --- the plan ------------------------------------------------------------------------------------

// The peers of the exchange: this worker's GPUs, or those of all. Returns its first.
static uint32_t list_parts(lk_cuda_group *g, const lk_worker *own) {
    const lk_cuda_choice *choice = &g->choice;
    lk_cuda_exchange *x = &g->exchange;
    const bool all = choice->way == LK_CUDA_DIRECT && choice->world > 1;
    uint32_t first = 0;
    x->peers = 0;
    for (uint32_t w = 0; w < (all ? choice->world : 1); w++) {
        const lk_worker *worker = all ? &choice->workers[w] : own;
        const uint32_t gpus = all ? worker->gpus : choice->gpus;
        if (w == choice->rank) first = x->peers;
        lk_assert(x->peers + gpus <= LK_CUDA_PEERS_MAX);
        for (uint32_t i = 0; i < gpus; i++) x->list[x->peers++] = lk_cuda_share(worker, gpus, i);
    }
    return all ? first : 0;
}

static void plan(lk_cuda_group *g, const lk_program *p, const lk_cuda_choice *choice,
                 const lk_cuda_needs *needs) {
    const lk_worker own = {.replicas = p->layout.replicas, .before = p->layout.replicas_before};
    lk_cuda_exchange *x = &g->exchange;
    lk_assert(choice->gpus >= 1 && choice->gpus <= LK_CUDA_GPUS_MAX);
    g->choice = *choice;
    g->count = choice->gpus;
    x->program = p;  // that of the first objective, until another is used
    const uint32_t first = list_parts(g, &own);
    lk_cuda_exchange_plan(x, choice->bucket_floats);
    for (uint32_t i = 0; i < g->count; i++) {
        lk_cuda_step *c = &g->gpu[i];
        c->device.number = choice->first_gpu + i;
        c->peer = first + i;
        c->share = x->list[c->peer];
        c->first_replica = c->share.before - own.before;
        c->replicas = c->share.replicas;
        c->staged = choice->way == LK_CUDA_STAGED;
        c->exchange = x->peers > 1 && !c->staged ? x : NULL;
        c->persist.wanted = choice->persistent;
        c->dependent = choice->dependent;
        lk_cuda_step_plan(c, p, needs);
    }
}

static void take_host(lk_cuda_group *g, lk_arena *arena) {
    EACH_GPU(g, c) lk_cuda_step_take_host(c, arena);
}

// --- others ------------------------------------------------------------------------------------

static void forget_graphs(lk_cuda_group *g) {
    EACH_GPU(g, c) {
        use(c);
        lk_cuda_step_forget(c);
    }
}

static lk_status lost(lk_cuda_group *g, const char *what, lk_error *error) {
    char host[64] = "", where[80] = "at start-up";
    (void)gethostname(host, sizeof host - 1);
    if (g->started) {
        lk_format(where, sizeof where, "at step %llu in phase reduce",
                  (unsigned long long)(g->gpu[0].next - 1));
    }
    g->hangs = g->choice.way == LK_CUDA_STAGED;
    g->lost = !g->hangs;
    return lk_fail(
        error, LK_RETRY,
        "rank %u on %s: the GPUs do not %s any more: %s, noticed %s; the last checkpoint "
        "stands, go on with --resume",
        g->choice.rank, host, g->hangs ? "answer" : "hear each other", what, where);
}

// Has another worker died? It is named, then, which NCCL cannot do.
static lk_status look(lk_cuda_group *g, lk_error *error) {
    if (g->choice.world <= 1 || g->choice.way == LK_CUDA_STAGED) return LK_OK;
    const lk_status status = lk_mpi_look_for_dead(g->started ? g->gpu[0].next - 1 : 0, error);
    g->lost = g->lost || status != LK_OK;
    return status;
}

// NCCL may know it a moment sooner.
static lk_status look_again(lk_cuda_group *g, lk_error *error) {
    const struct timespec moment = {.tv_nsec = 10000000};
    for (uint32_t i = 0; g->choice.world > 1 && i < 30; i++) {
        LK_CHECK(look(g, error));
        nanosleep(&moment, NULL);
    }
    return LK_OK;
}

// What a wait for GPUs that exchange looks at. Their work is short: the first looks come at once.
static lk_status watch(void *context, double seconds, lk_error *error) {
    lk_cuda_group *g = context;
    const char *what = NULL;
    char why[160];
    if (!lk_nccl_is_well(&g->nccl, &what)) {
        LK_CHECK(look_again(g, error));
        lk_format(why, sizeof why, "GPU %u of %u: %s", g->nccl.bad, g->exchange.peers, what);
        return lost(g, why, error);
    }
    if (seconds > 1e-3) LK_CHECK(look(g, error));
    if (g->choice.seconds_max && seconds > g->choice.seconds_max) {
        lk_format(why, sizeof why, "one is silent for longer than --step-timeout (%u s)",
                  g->choice.seconds_max);
        return lost(g, why, error);
    }
    const struct timespec moment = {.tv_nsec = seconds < 1e-3 ? 1000 : 100000};
    if (seconds > 1e-4) nanosleep(&moment, NULL);
    return LK_OK;
}

lk_status lk_cuda_group_wait(lk_cuda_group *g, lk_error *error) {
    EACH_GPU(g, c) {
        use(c);
        LK_CHECK(lk_cuda_step_wait(c, error));
    }
    return LK_OK;
}

// --- messages ------------------------------------------------------------------------------------

// One end of a message, on a GPU of this process: floats of the exchange regions.
static void *sent_from(const lk_cuda_step *c, const lk_cuda_message *m) {
    if (m->kind == LK_CUDA_REPORTS) return &c->at.reports[m->from];
    if (m->kind == LK_CUDA_SUMS) return c->at.sums + m->begin;
    return c->at.blocks + m->block * c->program->node_floats + m->begin;
}

static void *received_at(const lk_cuda_step *c, const lk_cuda_message *m) {
    if (m->kind == LK_CUDA_REPORTS) return &c->at.reports[m->from];
    if (m->kind == LK_CUDA_SUMS) return c->at.sums + m->begin;
    const lk_partition partition = lk_cuda_partition(c->exchange, c->peer);
    return lk_cuda_inbox(c, m->from, m->block) + (m->begin - partition.begin);
}

static lk_cuda_step *gpu_of(lk_cuda_group *g, uint32_t peer) {
    const uint32_t first = g->gpu[0].peer;
    return peer >= first && peer - first < g->count ? &g->gpu[peer - first] : NULL;
}

static void transfer(void *context, const lk_cuda_message *m) {
    lk_cuda_group *g = context;
    lk_cuda_step *from = gpu_of(g, m->from), *to = gpu_of(g, m->to);
    const uint64_t bytes =
        m->kind == LK_CUDA_REPORTS ? sizeof(lk_gpu_report) : (m->end - m->begin) * sizeof(float);
    if (from) {
        use(from);
        lk_nccl_send(&g->nccl, (uint32_t)(from - g->gpu), sent_from(from, m), bytes, m->to,
                     from->comm.stream);
    }
    if (to) {
        use(to);
        lk_nccl_receive(&g->nccl, (uint32_t)(to - g->gpu), received_at(to, m), bytes, m->from,
                        to->comm.stream);
    }
}

void lk_cuda_group_use(lk_cuda_group *g, const lk_program *p) {
    if (g->exchange.program == p) return;
    lk_cuda_exchange_use(&g->exchange, p);
    EACH_GPU(g, c) c->program = p;
}

// --- start ---------------------------------------------------------------------------------------

static lk_status check_nccl(lk_cuda_group *g, const char *doing, lk_error *error) {
    const char *what = NULL;
    if (lk_nccl_is_well(&g->nccl, &what)) return LK_OK;
    return lk_fail(error, LK_UNAVAILABLE, "NCCL: %s: %s; use one GPU, the result is the same",
                   doing, what);
}

// The GPUs of all workers, in the order of ranks, become one world. The leader gives it its name.
static lk_status join_world(lk_cuda_group *g, lk_error *error) {
    uint8_t name[LK_NCCL_ID_BYTES] = {0};
    uint32_t devices[LK_CUDA_GPUS_MAX];
    const lk_cuda_choice *choice = &g->choice;
    for (uint32_t i = 0; i < g->count; i++) devices[i] = g->gpu[i].device.number;
    lk_status status = lk_nccl_load(&g->nccl, error);
    if (status == LK_OK && choice->rank == 0) status = lk_nccl_name(&g->nccl, name, error);
    if (choice->world > 1) {
        LK_CHECK(lk_mpi_settle(status, error));
        lk_mpi_wait_for("NCCL to connect the GPUs of all workers");
        lk_mpi_broadcast(name, sizeof name);
    }
    LK_CHECK(status);
    return lk_nccl_start(&g->nccl, name, g->exchange.peers, g->gpu[0].peer, g->count, devices,
                         error);
}

static lk_status nccl_version(char version[16], lk_error *error) {
    lk_nccl n;
    LK_CHECK(lk_nccl_load(&n, error));
    memcpy(version, n.version, sizeof n.version);
    return LK_OK;
}

// Every pair of GPUs sends and receives, so that nothing is left to connect.
static lk_status connect_gpus(lk_cuda_group *g, lk_error *error) {
    lk_cuda_memory before, after;
    EACH_GPU(g, c) {
        c->watch = lk_cuda_step_shares(c) ? watch : NULL;
        c->watcher = g;
    }
    if (!g->gpu[0].exchange) return LK_OK;
    use(&g->gpu[0]);
    LK_CHECK(lk_cuda_memory_query(&before, error));
    LK_CHECK(join_world(g, error));
    const uint32_t leaves = g->exchange.program->grains;
    for (uint32_t b = 0; b < g->exchange.bucket_count; b++) {
        lk_nccl_begin(&g->nccl);
        lk_cuda_messages(&g->exchange, LK_CUDA_NODES, b, leaves, transfer, g);
        lk_cuda_messages(&g->exchange, LK_CUDA_SUMS, b, leaves, transfer, g);
        lk_cuda_messages(&g->exchange, LK_CUDA_REPORTS, b, leaves, transfer, g);
        lk_nccl_end(&g->nccl);
    }
    LK_CHECK(check_nccl(g, "connecting the GPUs", error));
    EACH_GPU(g, c) {
        use(c);
        LK_CHECK(lk_cuda_step_wait_for(c, &c->comm, NULL, error));
    }
    use(&g->gpu[0]);
    LK_CHECK(lk_cuda_memory_query(&after, error));
    g->nccl_bytes = before.free_bytes > after.free_bytes ? before.free_bytes - after.free_bytes : 0;
    return LK_OK;
}

// A bucket is finished: its exchange goes on beside the ops that follow.
static void record_bucket(lk_cuda_group *g, lk_cuda_recording *recordings, uint32_t bucket) {
    const lk_cuda_exchange *x = &g->exchange;
    const lk_cuda_bucket *b = &x->buckets[bucket];
    const bool last = bucket + 1 == x->bucket_count;
    const lk_program *p = x->program;
    const uint32_t leaves = lk_step_grains(p, recordings[0].step);
    for (uint32_t i = 0; i < g->count; i++) {
        lk_cuda_step *c = &g->gpu[i];
        use(c);
        lk_cuda_record_ops(&recordings[i], last ? p->reduce_op : b->after_op + 1);
        lk_cuda_record_joins(&recordings[i], b->begin, b->end);
        lk_cuda_event_set(&c->compute, c->forked);
        lk_cuda_event_follow(&c->comm, c->forked);
        lk_cuda_record_nodes(&recordings[i], &c->comm, b->begin, b->end);
        if (c->staged) lk_cuda_record_give(&recordings[i], &c->comm, b->begin, b->end);
        if (last) lk_cuda_record_report(&recordings[i], &c->comm);
    }
    if (g->choice.way == LK_CUDA_STAGED) return;
    lk_nccl_begin(&g->nccl);
    lk_cuda_messages(x, LK_CUDA_NODES, bucket, leaves, transfer, g);
    lk_nccl_end(&g->nccl);
    for (uint32_t i = 0; i < g->count; i++) {
        use(&g->gpu[i]);
        lk_cuda_record_sums(&recordings[i], &g->gpu[i].comm, b->begin, b->end);
    }
    lk_nccl_begin(&g->nccl);
    lk_cuda_messages(x, LK_CUDA_SUMS, bucket, leaves, transfer, g);
    if (last) lk_cuda_messages(x, LK_CUDA_REPORTS, bucket, leaves, transfer, g);
    lk_nccl_end(&g->nccl);
}

static void record_alone(lk_cuda_recording *r, const lk_program *p) {
    lk_cuda_record_ops(r, p->reduce_op);
    lk_cuda_record_joins(r, 0, p->node_floats);
}

// APPLY of a step that is staged, once its sums are in the host's memory.
static lk_status record_second_half(lk_cuda_group *g, lk_cuda_recording *recordings, uint32_t which,
                                    lk_error *error) {
    for (uint32_t i = 0; i < g->count; i++) {
        lk_cuda_step *c = &g->gpu[i];
        use(c);
        lk_cuda_graph_start(&c->compute);
        lk_cuda_record_take(&recordings[i], g->gpu[0].host.sums);
        lk_cuda_record_update(&recordings[i]);
        if (c->compute.code == 0) c->compute.code = recordings[i].error;
        struct CUgraph_st *recorded = lk_cuda_graph_stop(&c->compute);
        LK_CHECK(lk_cuda_graph_keep(&c->compute, recorded, &c->update[which], error));
    }
    return LK_OK;
}

// Steps like `step` of all GPUs, each as a graph of its own.
static lk_status record(lk_cuda_group *g, uint32_t which, uint64_t step, lk_error *error) {
    static lk_cuda_recording recordings[LK_CUDA_GPUS_MAX];
    struct CUgraph_st *recorded[LK_CUDA_GPUS_MAX];
    const lk_program *p = lk_program_of_step(g->exchange.program, step);
    lk_cuda_group_use(g, p);
    if (g->gpu[0].persist.is) {
        g->gpu[0].examples[which] = lk_step_examples(p->spec, step);
        return lk_cuda_persist_record(&g->gpu[0], which, step, error);
    }
    for (uint32_t i = 0; i < g->count; i++) {
        lk_cuda_step *c = &g->gpu[i];
        use(c);
        c->examples[which] = lk_step_examples(p->spec, step);
        lk_cuda_graph_start(&c->compute);
        lk_cuda_record_start(&recordings[i], c, which, step);
    }
    if (lk_cuda_step_shares(&g->gpu[0])) {
        for (uint32_t b = 0; b < g->exchange.bucket_count; b++) record_bucket(g, recordings, b);
    } else {
        record_alone(&recordings[0], p);
    }
    for (uint32_t i = 0; i < g->count; i++) {
        lk_cuda_step *c = &g->gpu[i];
        use(c);
        if (lk_cuda_step_shares(c)) {
            lk_cuda_event_set(&c->comm, c->joined);
            lk_cuda_event_follow(&c->compute, c->joined);
        }
        if (!c->staged) lk_cuda_record_update(&recordings[i]);
        if (c->compute.code == 0) c->compute.code = recordings[i].error;
        if (c->compute.code == 0) c->compute.code = c->comm.code;
        recorded[i] = lk_cuda_graph_stop(&c->compute);
        LK_CHECK(lk_cuda_step_check_fast(c, error));
    }
    LK_CHECK(check_nccl(g, "recording a step", error));
    for (uint32_t i = 0; i < g->count; i++) {
        lk_cuda_step *c = &g->gpu[i];
        use(c);
        LK_CHECK(lk_cuda_graph_keep(&c->compute, recorded[i], &c->graph[which], error));
    }
    return g->choice.way == LK_CUDA_STAGED ? record_second_half(g, recordings, which, error)
                                           : LK_OK;
}

// One graph of an objective's full steps, one of its last of an epoch where that is shorter.
static lk_status record_steps(lk_cuda_group *g, lk_error *error) {
    for (uint32_t kind = 0; kind < lk_cuda_kinds(&g->gpu[0]); kind++) {
        uint64_t step;
        if (!lk_cuda_step_of_kind(g->exchange.program, kind, &step)) continue;
        LK_CHECK(record(g, kind, step, error));
    }
    return LK_OK;
}

// Every kind of step and every evaluation once, by all GPUs: of several workers, too, whose GPUs
// wait for each other's; and what is made of noise.
static lk_status try_all(lk_cuda_group *g, lk_error *error) {
    uint64_t step;
    EACH_GPU(g, c) {
        use(c);
        lk_cuda_step_try(c);
    }
    for (uint32_t kind = 0; kind < lk_cuda_kinds(&g->gpu[0]); kind++) {
        if (!lk_cuda_step_of_kind(g->exchange.program, kind, &step)) continue;
        lk_cuda_group_use(g, lk_program_of_step(g->exchange.program, step));
        EACH_GPU(g, c) {
            use(c);
            lk_cuda_step_try_kind(c, kind);
        }
        LK_CHECK(lk_cuda_group_wait(g, error));
    }
    for (uint32_t k = 0; k < lk_exchange_programs(g->exchange.program); k++) {
        lk_cuda_group_use(g, lk_exchange_program(g->exchange.program, k));
        EACH_GPU(g, c) {
            use(c);
            LK_CHECK(lk_cuda_step_try_evaluation(c, error));
            if (k == c->needs.made_objective) LK_CHECK(lk_cuda_step_try_making(c, error));
        }
    }
    EACH_GPU(g, c) {
        use(c);
        LK_CHECK(lk_cuda_step_tried(c, error));
    }
    return LK_OK;
}

static lk_status start(lk_cuda_group *g, const lk_source *source, uint8_t *mirror,
                       lk_error *error) {
    uint8_t *address;
    g->touched = true;
    EACH_GPU(g, c) {
        use(c);
        LK_CHECK(lk_cuda_step_start(c, source, mirror, error));
    }
    use(&g->gpu[0]);
    LK_CHECK(
        lk_cuda_pin(mirror, g->exchange.program->regions[LK_REGION_DEVICE].bytes, &address, error));
    g->mirror = mirror;
    return LK_OK;
}

static lk_status connect(lk_cuda_group *g, lk_error *error) {
    LK_CHECK(connect_gpus(g, error));
    LK_CHECK(record_steps(g, error));
    EACH_GPU(g, c) {
        use(c);
        LK_CHECK(lk_cuda_step_ready(c, error));
    }
    LK_CHECK(try_all(g, error));
    g->started = true;
    return LK_OK;
}

static void end(lk_cuda_group *g) {
    lk_error ignored = {.status = LK_OK};
    // That a worker is gone may be known only to who waited for a round: asked once more.
    if (g->touched && !g->hangs && !g->lost) (void)lk_cuda_group_wait(g, &ignored);
    if (!g->touched || g->hangs) return;  // the end of the process is the end of what hangs
    if (g->lost) {                        // nothing may wait for those who are gone
        if (g->choice.world > 1) lk_mpi_end_soon(LK_RETRY);
        forget_graphs(g);
        lk_nccl_abort(&g->nccl);
        ignored = (lk_error){.status = LK_OK};
        (void)lk_cuda_group_wait(g, &ignored);
    }
    forget_graphs(g);
    lk_nccl_close(&g->nccl);
    EACH_GPU(g, c) {
        use(c);
        lk_cuda_step_close(c);
    }
    lk_cuda_unpin(g->mirror);
    memset(g, 0, sizeof *g);
}

// --- steps ---------------------------------------------------------------------------------------

static void upload(lk_cuda_group *g) { EACH_GPU(g, c) c->mirror_is_new = true; }

// All GPUs hold the same.
static lk_status download(lk_cuda_group *g, lk_error *error) {
    LK_CHECK(lk_cuda_group_wait(g, error));
    use(&g->gpu[0]);
    return lk_cuda_step_download(&g->gpu[0], error);
}

lk_status lk_cuda_group_begin(lk_cuda_group *g, uint64_t step, lk_error *error) {
    EACH_GPU(g, c) {
        use(c);
        LK_CHECK(lk_cuda_step_begin(c, step, error));
    }
    return LK_OK;
}

lk_status lk_cuda_group_update(lk_cuda_group *g, uint64_t step, lk_error *error) {
    EACH_GPU(g, c) {
        use(c);
        LK_CHECK(lk_cuda_step_update(c, step, error));
    }
    return LK_OK;
}

lk_status lk_cuda_group_settle(lk_cuda_group *g, lk_step_result *result, lk_error *error) {
    LK_CHECK(lk_cuda_group_wait(g, error));
    use(&g->gpu[0]);
    return lk_cuda_step_result(&g->gpu[0], result, error);
}

lk_status lk_cuda_group_flags(lk_cuda_group *g, lk_flags *out, lk_error *error) {
    LK_CHECK(lk_cuda_group_wait(g, error));
    return lk_cuda_step_flags(&g->gpu[0], out, error);
}

// A state of the mirror becomes that of the GPUs.
static void tell_gpus(lk_cuda_group *g, uint32_t state) {
    if (state == LK_NONE) return;
    const lk_tensor *t = &g->exchange.program->tensors[state];
    for (uint32_t i = 0; i < g->count; i++) {
        lk_cuda_step *c = &g->gpu[i];
        use(c);
        lk_cuda_copy_in(&c->compute, c->at.device + t->offset, g->mirror + t->offset, t->bytes);
    }
}

void lk_cuda_group_follow(lk_cuda_group *g, lk_verdict verdict) {
    const lk_program *p = g->exchange.program;
    lk_verdict_follow(p, g->mirror, verdict);
    tell_gpus(g, p->loss_scale);
    if (verdict != LK_VERDICT_SKIP || p->skipped == LK_NONE) return;
    lk_skip_step(p, g->mirror);
    tell_gpus(g, p->skipped);
}

const lk_scale_state *lk_cuda_group_scale(const lk_cuda_group *g) {
    return lk_scale_of(g->exchange.program, g->mirror);
}

// The top of the tree of the metrics' sums is the host's: as many nodes as a number has ones.
lk_step_result lk_cuda_group_evaluated(lk_cuda_group *g, uint64_t count) {
    const lk_program *p = g->exchange.program;
    lk_holding held[LK_CUDA_GPUS_MAX];
    uint32_t counts[LK_METRIC_COUNTS_MAX] = {0}, bad_op = LK_NONE;
    for (uint32_t i = 0; i < g->count; i++) {
        const lk_cuda_state *state = g->gpu[i].host.state;
        held[i] =
            (lk_holding){&g->evaluations[i].nodes, g->evaluations[i].sums[0], LK_METRIC_SUMS_MAX};
        lk_metric_add_counts(counts, state->counts);
        bad_op = LK_MIN(bad_op, state->bad_op);
    }
    return lk_result_of(p, held, g->count, lk_grains_of(p, count), count, counts, bad_op, LK_NONE,
                        g->gpu[0].host.state->penalty);
}

lk_status lk_cuda_group_evaluate(lk_cuda_group *g, const lk_source *source, uint64_t count,
                                 lk_on_logits on_logits, void *context, lk_error *error) {
    LK_CHECK(lk_cuda_group_wait(g, error));
    for (uint32_t i = 0; i < g->count; i++) {
        use(&g->gpu[i]);
        LK_CHECK(lk_cuda_step_evaluate(&g->gpu[i], source, count, on_logits, context,
                                       &g->evaluations[i], error));
    }
    for (uint32_t i = 0; i < g->count; i++) {
        use(&g->gpu[i]);
        LK_CHECK(lk_cuda_step_evaluated(&g->gpu[i], &g->evaluations[i], error));
    }
    return LK_OK;
}

static lk_status make(lk_cuda_group *g, const lk_cuda_making *making, uint32_t *bad_op,
                      lk_error *error) {
    LK_CHECK(lk_cuda_group_wait(g, error));
    use(&g->gpu[0]);
    return lk_cuda_step_make(&g->gpu[0], making, bad_op, error);
}

const lk_cuda_calls lk_cuda = {.scratch = lk_cuda_scratch,
                               .kernels = lk_cuda_step_kernels,
                               .plan = plan,
                               .take_host = take_host,
                               .visible = lk_cuda_count,
                               .open = lk_cuda_open,
                               .nccl = nccl_version,
                               .start = start,
                               .connect = connect,
                               .end = end,
                               .upload = upload,
                               .download = download,
                               .use = lk_cuda_group_use,
                               .make = make,
                               .drive = lk_cuda_drive,
                               .settle = lk_cuda_group_settle};
