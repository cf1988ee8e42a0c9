// run.c - start-up in one order: measure, check, map, open, build, seal.
#define _GNU_SOURCE
#include "apps/run/run.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "apps/run/generate.h"
#include "apps/run/hot.h"
#include "apps/run/init.h"
#include "apps/run/order.h"
#include "apps/run/journal.h"
#include "apps/run/strips.h"
#include "arena/seal.h"
#include "comm/step/hash.h"
#include "comm/threads/threads.h"
#include "ops/variant.h"

// --- the source: the scheduler's view of a data set --------------------------------------------

static void source_order(void *context, uint64_t epoch, uint64_t position, uint32_t count,
                         uint64_t *index) {
    const lk_run *run = context;
    lk_order_many(&run->config.spec, run->kernels, epoch, position, count, index);
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

static uint32_t any_label(void *context, uint64_t index) {
    return lk_any_label(&((const lk_run *)context)->config.spec.model, index);
}

static uint32_t train_strip(void *context, uint64_t epoch, uint64_t position, uint64_t *images) {
    return lk_strip_of(&((const lk_run *)context)->config.spec, epoch, position, images);
}

static uint32_t test_strip(void *context, uint64_t epoch, uint64_t position, uint64_t *images) {
    const lk_run *run = context;
    (void)epoch;  // those of every evaluation
    return lk_strip_fixed(&run->config.spec, run->test.count, position, images);
}

// Where nothing is trained, the training set is one example of zeros.
static bool trains_strips(const lk_run *run) {
    return lk_spec_has_strips(&run->config.spec) && !run->config.evaluates;
}

static void set_sources(lk_run *run) {
    run->train_source =
        (lk_source){run, source_order, train_image, train_label, false, NULL, false};
    run->test_source = (lk_source){run, source_order, test_image, test_label, false, NULL, false};
    if (trains_strips(run)) run->train_source.strip = train_strip;
    run->train_source.crops = lk_spec_crops(&run->config.spec) && !run->config.evaluates;
    if (run->config.unlabelled) {
        run->test_source.label = any_label;
        return;
    }
    if (lk_spec_has_strips(&run->config.spec)) run->test_source.strip = test_strip;
    run->test_source.crops = lk_spec_crops(&run->config.spec);
}

uint64_t lk_run_test_examples(const lk_run *run) {
    const bool strips = run->test_source.strip && run->config.test.strips;
    return strips && run->test.count ? run->config.test.strips : run->test.count;
}

// --- configure ---------------------------------------------------------------------------------

bool lk_run_is_fast(const lk_run *run) {
    return run->config.spec.model.fast_precision != LK_STRICT;
}

void lk_run_cublas(const lk_run *run, char *out, size_t bytes) {
    lk_blas_version_text(&run->gpus.gpu[0].fast.blas, out, bytes);
}

// A GPU is asked for by name; all else is this processor's.
static lk_status choose_kernels(lk_run *run, lk_error *error) {
    const lk_config *c = &run->config;
    if (lk_run_is_fast(run) && strcmp(c->kernels, "cuda") != 0) {
        return lk_fail(error, LK_UNAVAILABLE,
                       "%s: arithmetic \"fast\" is what the matrix units of a GPU compute, and no "
                       "other kernels give its bits (kernels: found \"%s\"); use --kernels cuda "
                       "where there is a GPU, or arithmetic \"strict\"",
                       c->document.source, c->kernels);
    }
    if (strcmp(c->kernels, "cuda") != 0) {
        return lk_kernels_choose(c->kernels, &run->kernels, error);
    }
    LK_CHECK(lk_kernels_choose("auto", &run->kernels, error));
    run->cuda = lk_cuda_linked();
    if (!run->cuda && lk_run_is_fast(run)) {
        return lk_fail(error, LK_UNAVAILABLE,
                       "arithmetic \"fast\": this build has no kernels \"cuda\"; configure with "
                       "-DLOCKSTEP_CUDA=ON where the CUDA toolkit is, or use \"strict\"");
    }
    if (!run->cuda) {
        return lk_fail(
            error, LK_UNAVAILABLE,
            "kernels \"cuda\": this build has none; configure with -DLOCKSTEP_CUDA=ON "
            "where the CUDA toolkit is, or use \"auto\": all variants give the same bits");
    }
    return LK_OK;
}

// Replicas that share a GPU only take turns on it: one each.
static uint32_t default_replicas(const lk_run *run) {
    const lk_run_spec *spec = &run->config.spec;
    uint32_t grains = spec->grain ? lk_grain_count(spec) : 1;
    return run->cuda ? run->gpu_choice.gpus : LK_MIN(lk_processors(), LK_MAX(grains, 1));
}

// --gpus, --gpu and their keys. A plan may be made for GPUs that are not there; "all" asks which
// are.
static lk_status choose_gpus(lk_run *run, lk_error *error) {
    const lk_config *c = &run->config;
    uint32_t gpus = LK_MAX(c->gpus, 1), first = c->gpu == LK_CONFIG_ANY_GPU ? 0 : c->gpu;
    if (!run->cuda && (gpus > 1 || first)) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "%s: GPUs are asked for with kernels \"%s\"; use --kernels cuda, or leave "
                       "them out",
                       c->document.source, c->kernels);
    }
    if (!run->cuda) return LK_OK;
    if (gpus == LK_CONFIG_ALL_GPUS) {
        uint32_t visible = run->cuda->visible();
        gpus = LK_MAX(visible, first + 1) - first;  // of none, opening one says why
    }
    if (gpus > LK_CUDA_GPUS_MAX || (c->replicas && c->replicas < gpus)) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "%s: %u GPUs for %u replicas, wanted at most %d and one replica or more for "
                       "each",
                       c->document.source, gpus, c->replicas, LK_CUDA_GPUS_MAX);
    }
    run->gpu_choice = (lk_cuda_choice){
        .persistent = (lk_cuda_persistence)run->config.persistent,
        .dependent = run->config.dependent_launches,
        .gpus = gpus,
        .first_gpu = first,
        .bucket_floats = c->bucket_floats ? c->bucket_floats : LK_CUDA_BUCKET_FLOATS};
    return LK_OK;
}

bool lk_run_is_direct(const lk_run *run) { return run->layout.direct; }

const char *lk_run_kernels(const lk_run *run) { return run->cuda ? "cuda" : run->kernels->name; }

bool lk_run_by_reference(const lk_run *run, const lk_op_type *type) {
    if (run->cuda || run->kernels == &lk_kernels_reference) return false;
    return lk_kernel_is_reference(run->kernels, type);
}

const char *lk_run_lanes(const lk_run *run) {
    if (!run->cuda) return "threads";
    return run->gpus.count > 1 ? "on several GPUs" : "on one GPU";
}

lk_status lk_run_configure(lk_run *run, const lk_config_options *options, lk_run_needs needs,
                           lk_error *error) {
    memset(run, 0, sizeof *run);
    run->needs = needs;
    run->workers.world = 1;
    LK_CHECK(lk_config_open(&run->config, options, error));
    lk_config *c = &run->config;
    LK_CHECK(choose_kernels(run, error));
    LK_CHECK(choose_gpus(run, error));
    run->layout = (lk_layout){
        .replicas = c->replicas ? c->replicas : default_replicas(run),
        .microbatch_examples = (uint32_t)LK_MIN(c->microbatch_examples, UINT32_MAX),
        .fuse = c->fuse,
        .joint_tile = c->joint_tile,
        .reduce = c->reduce,
    };
    if (run->cuda) {
        run->layout.device = true;
        if (c->microbatch_examples == 0)
            run->layout.microbatch_examples = LK_CUDA_MICROBATCH_EXAMPLES;
    }
    run->plan_options = (lk_plan_options){.overlay = c->overlay, .guards = c->guards};
    set_sources(run);
    return LK_OK;
}

// --- workers -----------------------------------------------------------------------------------

static lk_status list_workers(lk_run *run, uint32_t world, uint32_t rank, lk_error *error) {
    run->workers = (lk_run_workers){.world = world, .rank = rank};
    run->workers.list = calloc(world, sizeof *run->workers.list);
    return run->workers.list ? LK_OK : lk_fail(error, LK_UNAVAILABLE, "no memory at start-up");
}

static void lay_out_workers(lk_run *run) {
    const lk_run_workers *w = &run->workers;
    const lk_worker *last = &w->list[w->world - 1];
    run->layout.replicas = w->list[w->rank].replicas;
    run->layout.replicas_before = w->list[w->rank].before;
    run->layout.replicas_all = last->before + last->replicas;
    run->gpu_choice.world = w->world;
    run->gpu_choice.rank = w->rank;
    run->gpu_choice.workers = w->list;
    run->gpu_choice.kernels = run->kernels;
    run->gpu_choice.way = LK_CUDA_STAGED;
}

// Threads of one host can share all that they hold. What a GPU holds is its own.
static bool all_share(const lk_run_workers *w) {
    for (uint32_t i = 0; i < w->world; i++) {
        if (w->list[i].gpus) return false;
    }
    return lk_mpi_shares();
}

// Others may have the GPU that this worker was not given: which of them it is that has none?
static void name_rank(uint32_t rank, lk_error *error) {
    char why[LK_ERROR_TEXT_BYTES];
    const lk_status status = error->status;
    lk_format(why, sizeof why, "%s", error->text);
    error->status = LK_OK;
    (void)lk_fail(error, status, "rank %u: %s", rank, why);
}

// Between workers of one host an exchange takes the time of the processors that compute.
static void choose_overlap(lk_run *run, bool one_host) {
    const lk_config *c = &run->config;
    bool wanted = c->overlap == LK_OVERLAP_ON || (c->overlap == LK_OVERLAP_AUTO && !one_host);
    for (uint32_t w = 0; w < run->workers.world; w++) {
        wanted = wanted && run->workers.list[w].gpus == 0;  // they give all at once
    }
    run->layout.bucket_floats = 0;
    if (!wanted || run->layout.shared) return;
    uint64_t least =
        LK_MAX((uint64_t)LK_BUCKET_FLOATS, run->workers.world * (uint64_t)LK_PARTITION_FLOATS);
    if (c->bucket_floats) least = c->bucket_floats;
    run->layout.bucket_floats = (uint32_t)LK_MIN(least, UINT32_MAX);
}

// Where `gpus` GPUs that follow on each other are least used; the first such place.
static uint32_t least_used(const uint32_t *used, uint32_t visible, uint32_t gpus) {
    uint32_t best = 0, least = UINT32_MAX;
    for (uint32_t first = 0; first + gpus <= visible; first++) {
        uint32_t use = 0;
        for (uint32_t i = 0; i < gpus; i++) use += used[first + i];
        if (use < least) best = first;
        least = LK_MIN(least, use);
    }
    return best;
}

// Workers of a host take its GPUs in the order of their ranks, each as many as it asked for, beside
// those that others are told to take. All workers find the same.
static uint32_t take_gpus(const lk_run *run) {
    enum { VISIBLE_MAX = 1024 };
    static uint32_t used[VISIBLE_MAX];
    const lk_run_workers *w = &run->workers;
    const uint32_t visible = LK_MIN(run->cuda->visible(), (uint32_t)VISIBLE_MAX);
    memset(used, 0, sizeof used);
    for (uint32_t told = 2; told-- > 0;) {
        for (uint32_t r = 0; r < w->world; r++) {
            const lk_worker *them = &w->list[r];
            if (!them->gpus || !lk_mpi_is_here(r) || (them->gpu != LK_NONE) != told) continue;
            uint32_t first = told ? them->gpu : least_used(used, visible, them->gpus);
            if (r == w->rank) return first;
            for (uint32_t i = first; i < LK_MIN(first + them->gpus, visible); i++) used[i]++;
        }
    }
    lk_assert(false);
    return 0;
}

lk_status lk_run_join(lk_run *run, uint32_t world, uint32_t rank, lk_status mine, lk_error *error) {
    uint32_t host_workers, host_before, host_rank = 0;
    lk_mpi_host(&host_workers, &host_before);
    if (mine != LK_OK && lk_run_is_fast(run) && !run->cuda) name_rank(rank, error);
    if (mine == LK_OK) mine = list_workers(run, world, rank, error);
    const uint32_t gpu = run->config.gpu == LK_CONFIG_ANY_GPU ? LK_NONE : run->config.gpu;
    lk_worker worker = {.replicas = run->config.replicas, .gpus = run->gpu_choice.gpus, .gpu = gpu};
    if (mine == LK_OK && worker.replicas == 0) {
        uint32_t grains = run->config.spec.grain ? lk_grain_count(&run->config.spec) : 1;
        uint32_t lanes = run->cuda ? worker.gpus : lk_processors() / host_workers;
        worker.replicas = LK_MAX(LK_MIN(lanes, grains / world), LK_MAX(worker.gpus, 1));
    }
    LK_CHECK(lk_mpi_meet(mine, &worker, run->workers.list, error));
    run->workers.joined = true;
    lay_out_workers(run);
    if (run->cuda) run->gpu_choice.first_gpu = take_gpus(run);
    run->layout.shared = all_share(&run->workers);
    for (uint32_t w = 0; w < world; w++) {
        if (!lk_mpi_is_here(w)) continue;
        uint32_t theirs = run->workers.list[w].gpus ? 1 : run->workers.list[w].replicas;
        if (host_rank++ < host_before) run->workers.host_first += theirs;
        run->workers.host_replicas += theirs;
    }
    choose_overlap(run, host_workers == world);
    return LK_OK;
}

lk_status lk_run_imagine(lk_run *run, uint32_t world, lk_error *error) {
    LK_CHECK(list_workers(run, world, 0, error));
    const uint32_t even = LK_MAX(lk_grain_count(&run->config.spec) / world, 1);
    if (run->config.replicas == 0) run->layout.replicas = LK_MIN(run->layout.replicas, even);
    for (uint32_t w = 0; w < world; w++) {
        run->workers.list[w] = (lk_worker){.replicas = run->layout.replicas,
                                           .before = w * run->layout.replicas,
                                           .gpus = run->gpu_choice.gpus};
    }
    lay_out_workers(run);
    choose_overlap(run, false);
    return LK_OK;
}

lk_grain_range lk_run_grains(const lk_run *run, uint32_t worker) {
    const lk_run_workers *w = &run->workers;
    const lk_worker alone = {.replicas = run->layout.replicas};
    const lk_worker *them = w->list ? &w->list[worker] : &alone;
    uint32_t grains = lk_grain_count(&run->config.spec);
    uint32_t all = w->list ? run->layout.replicas_all : run->layout.replicas;
    lk_grain_range first = lk_replica_grains(grains, all, them->before);
    lk_grain_range last = lk_replica_grains(grains, all, them->before + them->replicas - 1);
    return (lk_grain_range){first.first, last.first + last.count - first.first};
}

lk_grain_range lk_run_shards(const lk_run *run, uint32_t worker) {
    uint32_t shards = run->config.spec.shards;
    if (shards == 0) return (lk_grain_range){0, LK_MAX(run->train.part_count, 1)};
    return lk_order_shards(shards, lk_grain_count(&run->config.spec), lk_run_grains(run, worker));
}

// Of one objective: the gradients of a node, the parts of the exchange, and the ops, by whose
// numbers workers tell each other what is not finite.
static void add_program(lk_sha256 *hash, const lk_program *p) {
    const lk_buckets buckets = lk_exchange_buckets(p);
    lk_sha256_add_u64(hash, p->loss_offset);
    for (uint32_t i = 0; i < lk_entry_count(p); i++) {
        lk_sha256_add_u64(hash, p->params[i].node_offset);
    }
    for (uint32_t i = 0; i < p->op_count; i++) {
        lk_sha256_add_u32(hash, (uint32_t)p->ops[i].type->number);
        lk_sha256_add_u32(hash, p->ops[i].layer);
    }
    for (uint32_t k = 0; k < buckets.count; k++) {
        lk_sha256_add_u64(hash, buckets.bucket[k].begin);
        lk_sha256_add_u32(hash, buckets.bucket[k].after_op);
    }
}

// What decides how bytes are cut between workers, when they go, and what they mean: that of each
// objective, whose grains are whose, and parameters and slots as the leader gives them to all.
static void plan_digest(const lk_run *run, char hex[LK_SHA256_HEX_BYTES]) {
    const lk_program *p = &run->program;
    uint8_t bytes[LK_SHA256_BYTES];
    lk_sha256 hash;
    lk_sha256_start(&hash);
    for (uint32_t i = 0; i < lk_entry_count(p); i++) {
        lk_sha256_add_u64(&hash, p->params[i].count);
        lk_sha256_add_u64(&hash, p->tensors[p->params[i].tensor].offset);
    }
    lk_state_walk walk = {0};
    for (uint32_t t; (t = lk_next_state(p, &walk)) != LK_NONE;) {
        lk_sha256_add_u64(&hash, p->tensors[t].offset);
    }
    lk_sha256_add_u64(&hash, p->regions[LK_REGION_DEVICE].bytes);
    for (uint32_t w = 0; w < run->workers.world; w++) {
        lk_sha256_add_u32(&hash, run->workers.list[w].replicas);
    }
    for (uint32_t k = 0; k < p->programs; k++) add_program(&hash, &p->all[k]);
    lk_sha256_finish(&hash, bytes);
    lk_hex(bytes, LK_SHA256_BYTES, hex);
}

// Whoever computes the strict arithmetic has its bits; the fast one has those of its GPU and
// cuBLAS.
static void say_arithmetic(const lk_run *run, char *arithmetic, char *device, size_t bytes) {
    char cublas[24];
    lk_format(arithmetic, bytes, "strict");
    lk_format(device, bytes, "not needed");
    if (!lk_run_is_fast(run)) return;
    lk_run_cublas(run, cublas, sizeof cublas);
    lk_format(arithmetic, bytes, "fast, %s",
              lk_fast_precision_name(run->config.spec.model.fast_precision));
    lk_format(device, bytes, "%s with cuBLAS %s", run->gpus.gpu[0].device.name, cublas);
}

// By MPI; or from GPU to GPU, in messages that each end must expect as the other sends them.
static void say_way(const lk_run *run, char *out, size_t bytes) {
    uint8_t hash[LK_SHA256_BYTES];
    char hex[LK_SHA256_HEX_BYTES];
    lk_format(out, bytes, "by %s", lk_mpi_transport());
    if (run->gpu_choice.way == LK_CUDA_STAGED) return;
    lk_cuda_schedule_hash(&run->gpus.exchange, hash);
    lk_hex(hash, LK_SHA256_BYTES / 2, hex);
    lk_format(out, bytes, "by NCCL, schedule %s", hex);
}

lk_status lk_run_agree(lk_run *run, lk_status mine, lk_error *error) {
    const lk_config *c = &run->config;
    if (!run->workers.joined) return mine;
    LK_CHECK(lk_mpi_settle(mine, error));
    lk_mpi_item items[] = {{.name = "the version"},
                           {.name = "the arithmetic"},
                           {.name = "the hash of the training data"},
                           {.name = "the hash of the test data"},
                           {.name = "the run identity"},
                           {.name = "the digest of the plan"},
                           {.name = "the number of steps"},
                           {.name = "evaluate_every_steps"},
                           {.name = "the hash of the manifest's shards"},
                           {.name = "who evaluates"},
                           {.name = "what the fast arithmetic is computed by"},
                           {.name = "how sums travel"},
                           {.name = "the number of test examples"}};
    const size_t n = sizeof items[0].value;
    lk_format(items[0].value, n, "%s, arithmetic %d", LK_VERSION, LK_ARITHMETIC_VERSION);
    say_arithmetic(run, items[1].value, items[10].value, n);
    lk_hex(run->train.sha256, LK_SHA256_BYTES, items[2].value);
    lk_format(items[3].value, n, "none");
    if (run->test.count) lk_hex(run->test.sha256, LK_SHA256_BYTES, items[3].value);
    lk_format(items[4].value, n, "%s", run->identity_hex);
    plan_digest(run, items[5].value);
    lk_format(items[6].value, n, "%llu", (unsigned long long)lk_run_steps(run));
    lk_format(items[7].value, n, "%llu", (unsigned long long)c->evaluate_every_steps);
    lk_format(items[8].value, n, "not needed");
    if (c->sharded) lk_hex(run->shards_sha256, LK_SHA256_BYTES, items[8].value);
    lk_format(items[9].value, n, "%s", run->evaluator ? "an evaluator" : "the workers");
    say_way(run, items[11].value, n);
    lk_format(items[12].value, n, "%llu", (unsigned long long)lk_run_test_examples(run));
    return lk_mpi_agree(items, LK_COUNT(items), error);
}

lk_status lk_run_connect(lk_run *run, uint64_t *steps_done, lk_error *error) {
    const lk_run_workers *w = &run->workers;
    if (!w->joined) return LK_OK;
    lk_mpi_wait_for("the leader's checkpoint");
    lk_mpi_broadcast(steps_done, sizeof *steps_done);
    if (*steps_done && !run->layout.shared) {
        lk_mpi_broadcast(run->core.device, run->program.regions[LK_REGION_DEVICE].bytes);
    }
    lk_exchange_make(&run->exchange, &run->program, w->list, w->world, w->rank,
                     run->exchange_tables);
    LK_CHECK(lk_mpi_connect(&run->exchange, run->inbox, error));
    lk_status status = run->cuda ? run->cuda->connect(&run->gpus, error) : LK_OK;
    // The others may be waiting for this one's GPUs, and hear of nothing but its end.
    if (status != LK_OK) lk_mpi_break_off(status);
    return status == LK_OK ? lk_mpi_settle(status, error) : status;
}

// This worker's regions of the window. The device region exists once, in the leader's part.
static void take_window_regions(lk_run *run) {
    const lk_run_workers *w = &run->workers;
    if (run->layout.shared) {
        lk_core_take_memory(&run->window, &run->program, w->rank == 0, &run->core);
        return;
    }
    uint64_t floats = lk_exchange_floats(&run->program, w->list, w->world, w->rank);
    (void)lk_arena_take(&run->window, "exchange boxes and sums", floats * sizeof(float), 1,
                        LK_PAGE_BYTES);
}

// Takes the window for good, by all workers at the same point.
static lk_status open_window(lk_run *run, lk_status mine, lk_error *error) {
    uint8_t *base = NULL;
    uint64_t bytes = run->window.used;
    LK_CHECK(lk_mpi_settle(mine, error));
    LK_CHECK(lk_mpi_settle(lk_mpi_window(bytes, &base, error), error));
    lk_arena_open(&run->window, base, lk_round_up(bytes, LK_PAGE_BYTES));
    take_window_regions(run);
    return LK_OK;
}

// The regions of another worker, found as it has taken them.
static lk_core_regions regions_of(const lk_run *run, uint32_t other) {
    lk_arena theirs;
    lk_core_regions regions = run->core;
    lk_arena_open(&theirs, lk_mpi_window_of(other), INT64_MAX);
    lk_core_take_memory(&theirs, &run->program, other == 0, &regions);
    return regions;
}

// Where the other workers' replicas lie.
static void reach_others(lk_run *run) {
    const lk_run_workers *w = &run->workers;
    for (uint32_t other = 0; other < w->world; other++) {
        if (other == w->rank) continue;
        lk_core_regions regions = regions_of(run, other);
        for (uint32_t r = 0; r < w->list[other].replicas; r++) {
            lk_group_reach(&run->group, w->list[other].before + r,
                           regions.replicas + r * regions.replica_bytes);
        }
    }
}

static void measure_workers(lk_run *run) {
    const lk_run_workers *w = &run->workers;
    if (w->world == 1) return;
    lk_arena_open(&run->window, NULL, 0);
    take_window_regions(run);
    run->window_bytes = lk_mpi_window_bytes(run->window.used);
    run->inbox_bytes = lk_mpi_inbox_bytes(&run->program, w->list, w->world, w->rank);
}

uint64_t lk_run_bytes(const lk_run *run) {
    return run->arena.used + run->window_bytes + run->rendezvous_bytes + run->hot_bytes;
}

// --- plan --------------------------------------------------------------------------------------

uint32_t lk_run_tensor_count(const lk_run *run) {
    lk_state_walk walk = {0};
    uint32_t count = 0;
    while (lk_next_state(&run->program, &walk) != LK_NONE) count++;
    return count;
}

static void tensor_of(const lk_run *run, uint32_t index, lk_safetensors_tensor *out) {
    const lk_tensor *t = &run->program.tensors[index];
    *out = (lk_safetensors_tensor){.name = t->name,
                                   .dtype = t->dtype == LK_U32 ? LK_SAFETENSORS_U32
                                                               : LK_SAFETENSORS_F32,
                                   .dim_count = t->rank,
                                   .data = run->core.device ? run->core.device + t->offset : NULL};
    for (uint32_t i = 0; i < t->rank; i++) out->dims[i] = t->shape[i];
}

size_t lk_run_pair_count(const lk_run *run) {
    const size_t all = lk_run_is_fast(run) ? LK_RUN_STATE_PAIRS : LK_RUN_STATE_PAIRS - 4;
    return all - (run->program.state_count ? 0 : 1);
}

void lk_run_tensors(const lk_run *run, lk_safetensors_tensor *out) {
    lk_state_walk walk = {0};
    for (uint32_t t; (t = lk_next_state(&run->program, &walk)) != LK_NONE;) {
        tensor_of(run, t, out++);
    }
}

// Bytes that saving a checkpoint needs. The values of its metadata may grow by what the io module
// allows.
static lk_status measure_checkpoint(lk_run *run, lk_error *error) {
    static const char zeros[] = "0000000000000000000000000000000000000000000000000000000000000000";
    lk_safetensors_pair pairs[LK_RUN_STATE_PAIRS];
    static const char *const keys[LK_RUN_STATE_PAIRS] = {
        "run_identity", "digest", "state_hash", "lockstep_version", "name", "seed",
        "global_batch", "grain",  "arithmetic", "precision",        "gpu",  "cublas",
        LK_CHECKPOINT_KEY_STATES};
    const size_t pair_count = LK_RUN_STATE_PAIRS - (run->program.state_count ? 0 : 1);
    for (uint32_t i = 0; i < pair_count; i++)
        pairs[i] = (lk_safetensors_pair){keys[i], zeros};
    lk_safetensors_tensor *tensors = calloc(lk_run_tensor_count(run), sizeof *tensors);
    if (!tensors) return lk_fail(error, LK_UNAVAILABLE, "no memory at start-up");
    lk_run_tensors(run, tensors);
    const lk_checkpoint_job job = {.directory = ".",
                                   .metadata = pairs,
                                   .metadata_count = pair_count,
                                   .tensors = tensors,
                                   .tensor_count = lk_run_tensor_count(run)};
    size_t bytes = 0;
    lk_status status = lk_checkpoint_measure(&job, &bytes, &run->checkpoint_file_bytes, error);
    free(tensors);
    run->checkpoint_bytes = bytes;
    return status;
}

static uint32_t thread_count(const lk_run *run) { return run->cuda ? 1 : run->layout.replicas; }

// What a board takes (apps/baremetal/embedded.h).
static uint64_t core_bytes(const lk_run *run) {
    lk_core_regions regions;
    lk_arena arena;
    lk_arena_open(&arena, NULL, 0);
    lk_core_take(&arena, &run->program, &regions);
    return arena.used;
}

// Takes every region of the arena, in order. The same calls measure (no base) and commit.
static void take_regions(lk_run *run, lk_arena *a) {
    uint32_t threads = thread_count(run);
    const uint64_t line = LK_TENSOR_ALIGN_BYTES, page = LK_PAGE_BYTES;
    lk_core_take_tables(a, &run->program, &run->core);
    if (!run->layout.shared) lk_core_take_memory(a, &run->program, true, &run->core);
    run->team_tables = lk_arena_take(a, "thread tables", lk_team_bytes(threads), 1, line);
    run->stacks = lk_arena_take(a, "thread stack", LK_TEAM_STACK_BYTES, threads - 1, page);
    if (run->cuda) run->cuda->take_host(&run->gpus, a);
    run->train_memory = lk_arena_take(a, "training set tables", run->train_bytes, 1, line);
    run->test_memory = lk_arena_take(a, "test set tables", run->test_bytes, 1, line);
    if (run->workers.world > 1) {
        uint64_t tables = lk_exchange_bytes(&run->program, run->workers.world);
        run->exchange_tables = lk_arena_take(a, "exchange tables", tables, 1, line);
        run->inbox = lk_arena_take(a, "exchange inbox", run->inbox_bytes, 1, line);
    }
    if (run->needs.checkpoints) {
        run->checkpoint_buffer =
            lk_arena_take(a, "checkpoint buffer", run->checkpoint_bytes, 1, page);
        run->checkpoint_tables =
            lk_arena_take(a, "checkpoint tables",
                          lk_run_tensor_count(run) * sizeof(lk_safetensors_tensor), 1, line);
    }
    if (run->needs.logs) {
        run->log_buffers = (char *)lk_arena_take(a, "log buffer", LK_RUN_LOG_BYTES, 2, line);
        const uint64_t samples = lk_samples_bytes(run);
        if (samples) run->samples_buffer = lk_arena_take(a, "samples buffer", samples, 1, line);
    }
    if (run->needs.logs || run->needs.events) {
        run->journal_buffer = lk_arena_take(a, "journal buffer", lk_journal_bytes(run), 1, line);
    }
    if (run->needs.logs) lk_trace_take(run, a);
}

static lk_status take_shards(lk_run *run, const lk_manifest *manifest, lk_error *error) {
    lk_run_spec *spec = &run->config.spec;
    run->shard_first = calloc((size_t)manifest->shard_count + 1, sizeof *run->shard_first);
    if (!run->shard_first) return lk_fail(error, LK_UNAVAILABLE, "no memory at start-up");
    LK_CHECK(lk_manifest_cut(manifest, run->shard_first, run->shards_sha256, error));
    spec->shards = manifest->shard_count;
    spec->shard_first = run->shard_first;
    spec->example_count = manifest->count;
    return LK_OK;
}

// The bytes of the data's tables, and in order "sharded" the shards, from the manifest alone.
static lk_status measure_data(lk_run *run, lk_error *error) {
    lk_manifest manifest = {0};
    if (run->config.sharded) {
        lk_status status = lk_manifest_load(run->config.train.manifest, &manifest, error);
        if (status == LK_OK) status = take_shards(run, &manifest, error);
        lk_manifest_close(&manifest);
        LK_CHECK(status);
    }
    LK_CHECK(lk_dataset_bytes(&run->config.train.source, &run->train_bytes, error));
    if (run->config.test.given) {
        LK_CHECK(lk_dataset_bytes(&run->config.test.source, &run->test_bytes, error));
    }
    return LK_OK;
}

// What the GPUs keep: of `count` examples all, or those of the shards that this worker opens.
static void plan_gpu(lk_run *run, uint64_t count) {
    const lk_run_spec *spec = &run->config.spec;
    uint64_t first = 0;
    if (spec->shards) {
        const lk_grain_range mine = lk_run_shards(run, run->workers.rank);
        first = spec->shard_first[mine.first];
        count = spec->shard_first[mine.first + mine.count] - first;
    }
    lk_cuda_needs needs = {.first = first,
                           .examples = run->config.resident ? count : 0,
                           .evaluation = run->config.test.given || run->needs.predict,
                           .test_examples = lk_run_test_examples(run)};
    lk_generated_needs(run, &needs);
    run->cuda->plan(&run->gpus, &run->program, &run->gpu_choice, &needs);
}

// Who asks for the persistent kernel gets it, or hears why not.
static lk_status check_persistent(const lk_run *run, lk_error *error) {
    const lk_cuda_persist *p = &run->gpus.gpu[0].persist;
    if (p->wanted != LK_CUDA_PERSISTENT_ON || p->is) return LK_OK;
    return lk_fail(error, LK_BAD_CONFIG,
                   "%s: layout.persistent: found \"on\", but there is no persistent kernel of "
                   "these steps: %s; use \"auto\" or \"off\"",
                   run->config.document.source, p->why);
}

// Opens the training set only to count it: what is kept of it on a GPU is part of the plan.
static lk_status count_examples(lk_run *run, uint64_t *count, lk_error *error) {
    lk_dataset set;
    void *memory = aligned_alloc(64, lk_round_up(run->train_bytes + 64, 64));
    if (!memory) return lk_fail(error, LK_UNAVAILABLE, "no memory for the data set's tables");
    lk_status status =
        lk_dataset_open(&run->config.train.source, memory, run->train_bytes, &set, error);
    if (status == LK_OK) {
        *count = set.count;
        lk_dataset_close(&set);
    }
    free(memory);
    return status;
}

// The factors of the global batch are of all replicas there are, whatever each worker expected.
static lk_status check_factors(const lk_run *run, lk_error *error) {
    const lk_config *c = &run->config;
    if (!c->replica_batch || !c->workers) return LK_OK;
    if (run->workers.list) return lk_config_check_factors(c, run->layout.replicas_all, error);
    return c->workers > 1 ? LK_OK : lk_config_check_factors(c, run->layout.replicas, error);
}

// What is kept on a GPU lies there as in the files.
static lk_status check_strips(const lk_run *run, lk_error *error) {
    const bool resident = run->cuda && run->config.resident;
    if (!resident || !lk_spec_has_strips(&run->config.spec)) return LK_OK;
    return lk_fail(error, LK_BAD_CONFIG,
                   "%s: layout.resident: found true with data.strips, which are made anew in every "
                   "epoch and so are streamed; leave layout.resident out",
                   run->config.document.source);
}

// On a device there is no reference to fall back on.
static lk_status check_kernels(const lk_run *run, lk_error *error) {
    const lk_run_spec *spec = &run->config.spec;
    for (uint32_t i = 0; run->cuda && i < lk_objective_count(&spec->model); i++) {
        const lk_op *op = lk_program_without_kernel(&run->programs[i], run->cuda->kernels(spec));
        if (!op) continue;
        return lk_fail(error, LK_UNAVAILABLE,
                       "%s: --kernels cuda: there is no kernel of %s, which %s%s needs; use "
                       "--kernels auto",
                       run->config.document.source, op->type->name,
                       op->layer == LK_NONE ? "" : "layer ",
                       op->layer == LK_NONE ? "the loss" : spec->model.layers[op->layer].name);
    }
    return LK_OK;
}

lk_status lk_run_plan(lk_run *run, lk_error *error) {
    lk_run_spec *spec = &run->config.spec;
    LK_CHECK(check_factors(run, error));
    LK_CHECK(measure_data(run, error));
    run->planning = aligned_alloc(64, lk_round_up(lk_programs_bytes(&spec->model), 64));
    if (!run->planning) return lk_fail(error, LK_UNAVAILABLE, "no memory for the program's tables");
    // The plan does not depend on how many examples there are; the real number comes with the data.
    if (spec->example_count == 0) spec->example_count = spec->global_batch;
    LK_CHECK(check_strips(run, error));
    LK_CHECK(lk_programs_build(spec, &run->layout, &run->plan_options, run->planning, run->programs,
                               error));
    LK_CHECK(check_kernels(run, error));
    if (run->cuda) {  // once more, now that the scratch its ops need can be asked for
        run->layout.device_scratch = run->cuda->scratch(&run->program);
        LK_CHECK(lk_programs_build(spec, &run->layout, &run->plan_options, run->planning,
                                   run->programs, error));
    }
    if (run->needs.checkpoints) LK_CHECK(measure_checkpoint(run, error));
    if (run->needs.logs) LK_CHECK(lk_samples_check(run, error));
    if (run->cuda) {
        uint64_t count = 0;
        if (run->config.resident && !spec->shards) LK_CHECK(count_examples(run, &count, error));
        plan_gpu(run, count);
        LK_CHECK(check_persistent(run, error));
    }
    measure_workers(run);
    lk_hot_plan(run);
    run->core_bytes = core_bytes(run);
    lk_arena_open(&run->arena, NULL, 0);
    take_regions(run, &run->arena);
    return LK_OK;
}

// --- start -------------------------------------------------------------------------------------

// Strips are as wide as `max` images, one behind the other, which lie on their sides.
static lk_status check_images(const lk_run *run, const lk_dataset *set, const char *which,
                              lk_error *error) {
    const lk_model *m = &run->config.spec.model;
    const uint32_t most = run->config.spec.strips.most;
    if (!set->sequences && (uint64_t)set->width * most == m->in_h &&
        set->height == m->in_w && set->channels == m->in_c) {
        return LK_OK;
    }
    return lk_fail(error, LK_BAD_CONFIG,
                   "%s set: data.strips: its images are %u x %u x %u (height, width, channels) "
                   "with %u bytes of labels each, wanted one label, and model.input [%llu, %u, %u] "
                   "for strips of up to %u of them, found [%u, %u, %u]; change one of them",
                   which, set->height, set->width, set->channels, set->label_bytes,
                   (unsigned long long)set->width * most, set->height, set->channels, most,
                   m->in_h, m->in_w, m->in_c);
}

static lk_status check_shape(const lk_run *run, const lk_dataset *set, const char *which,
                             const lk_source *source, lk_error *error) {
    const lk_model *m = &run->config.spec.model;
    if (source->strip) return check_images(run, set, which, error);
    if (source->label != any_label && (lk_dataset_label_row(set) != lk_model_label_row(m) ||
                                       set->sequences != (m->labels > 0))) {
        const uint32_t one = lk_idx_type_bytes(set->label_type);
        return lk_fail(error, LK_BAD_CONFIG,
                       "%s set: an example has %u bytes of labels, wanted %u: %s, as model.labels "
                       "says; change one of them",
                       which, set->label_bytes,
                       m->labels ? LK_IDX_FRAMES_BYTES + m->labels * one : one,
                       m->labels ? "two of the number of its frames, and its labels" : "one label");
    }
    const lk_augment *a = &run->config.spec.augment;
    const uint32_t height = source->crops ? a->crop_h : m->in_h;
    const uint32_t width = source->crops ? a->crop_w : m->in_w;
    if (set->height == height && set->width == width && set->channels == m->in_c) return LK_OK;
    if (source->crops) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "%s set: its images are %u x %u x %u, but data.augment.crop_from is "
                       "%u x %u, and model.input has %u channels; change one of them",
                       which, set->height, set->width, set->channels, height, width, m->in_c);
    }
    return lk_fail(
        error, LK_BAD_CONFIG,
        "%s set: its images are %u x %u x %u, but model.input is %u x %u x %u (height, width, "
        "channels); change one of them",
        which, set->height, set->width, set->channels, m->in_h, m->in_w, m->in_c);
}

// A worker opens the shards of its own grains. One that has not got them says which.
static lk_status open_training_set(lk_run *run, lk_error *error) {
    lk_dataset_source *source = &run->config.train.source;
    const uint32_t shards = run->config.spec.shards, rank = run->workers.rank;
    char why[LK_ERROR_TEXT_BYTES];
    lk_grain_range mine = lk_run_shards(run, rank), grains = lk_run_grains(run, rank);
    if (shards && mine.count < shards) {
        source->some = true;
        source->first_shard = mine.first;
        source->shard_count = mine.count;
    }
    lk_status status =
        lk_dataset_open(source, run->train_memory, run->train_bytes, &run->train, error);
    if (status == LK_OK || !source->some) return status;
    lk_format(why, sizeof why, "%s", error->text);
    error->status = LK_OK;
    return lk_fail(error, status, "rank %u reads shards %u .. %u (grains %u .. %u): %s", rank,
                   mine.first, mine.first + mine.count - 1, grains.first,
                   grains.first + grains.count - 1, why);
}

static lk_status open_data(lk_run *run, lk_error *error) {
    lk_run_spec *spec = &run->config.spec;
    LK_CHECK(open_training_set(run, error));
    LK_CHECK(check_shape(run, &run->train, "training", &run->train_source, error));
    spec->example_count = run->train.count;
    spec->strip_images = run->train.count;
    if (trains_strips(run) && run->config.train.strips)
        spec->example_count = run->config.train.strips;
    memcpy(spec->data_hash, run->train.sha256, LK_SHA256_BYTES);
    run->train_source.native = run->train.native;
    if (!run->config.test.given) return LK_OK;
    LK_CHECK(lk_dataset_open(&run->config.test.source, run->test_memory, run->test_bytes,
                             &run->test, error));
    run->test_source.native = run->test.native;
    const char *which = run->config.unlabelled ? "given" : "test";
    return check_shape(run, &run->test, which, &run->test_source, error);
}

static lk_status start_gpu(lk_run *run, lk_error *error) {
    if (run->config.resident && run->train_source.crops) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "%s: layout.resident: found true, but the host takes the parts of images "
                       "that data.augment.crop_from wants; leave it out, and they are streamed",
                       run->config.document.source);
    }
    plan_gpu(run, run->train.count);
    LK_CHECK(check_persistent(run, error));
    LK_CHECK(run->cuda->start(&run->gpus, &run->train_source, run->core.device, error));
    return run->workers.joined ? LK_OK : run->cuda->connect(&run->gpus, error);
}

static lk_status open_gpu(lk_run *run, lk_cuda_device *device, lk_error *error) {
    lk_error why = {.status = LK_OK};
    lk_status status = run->cuda->open(device, device->number, &why);
    if (status == LK_OK || !lk_run_is_fast(run)) {
        *error = why;
        return status;
    }
    // Other kernels, which it would advise, are no way out.
    return lk_fail(error, status,
                   "arithmetic \"fast\": no GPU can be used here (lockstep doctor says why); use "
                   "arithmetic \"strict\", or go where there is one");
}

static lk_status open_gpus(lk_run *run, lk_error *error) {
    for (uint32_t i = 0; i < run->gpus.count; i++) {
        LK_CHECK(open_gpu(run, &run->gpus.gpu[i].device, error));
    }
    return LK_OK;
}

lk_status lk_run_start(lk_run *run, uint64_t max_memory, lk_error *error) {
    lk_run_spec *spec = &run->config.spec;
    if (run->cuda) LK_CHECK(open_gpus(run, error));
    lk_status status = lk_memory_check(lk_run_bytes(run), max_memory, error);
    if (status == LK_OK) status = lk_host_block_map(run->arena.used, &run->block, error);
    LK_CHECK(run->workers.joined ? open_window(run, status, error) : status);
    lk_arena_open(&run->arena, run->block.base, run->block.bytes);
    take_regions(run, &run->arena);
    LK_CHECK(open_data(run, error));
    LK_CHECK(lk_programs_build(spec, &run->layout, &run->plan_options, run->core.tables,
                               run->programs, error));
    bool follows = run->layout.shared && run->workers.rank != 0;
    if (follows) run->core.device = regions_of(run, 0).device;
    const uint32_t bad = follows ? LK_NONE : lk_program_initialize(&run->program, run->core.device);
    LK_CHECK(lk_run_check_initial(run, bad, error));
    LK_CHECK(lk_init_take(run, !follows, error));
    lk_run_identity(spec, run->identity);
    lk_hex(run->identity, LK_SHA256_BYTES, run->identity_hex);
    lk_group_make(&run->group, &run->program, run->kernels, &run->train_source, run->core.device,
                  run->core.replicas, run->core.replica_bytes, run->core.group_tables);
    if (run->layout.shared) reach_others(run);
    lk_group_look_ahead(&run->group);
    lk_team_place place = {0, run->layout.replicas};
    if (run->workers.joined) {
        place = (lk_team_place){run->workers.host_first, run->workers.host_replicas};
    }
    LK_CHECK(
        lk_team_start(&run->team, thread_count(run), place, run->team_tables, run->stacks, error));
    run->team_started = true;
    if (!run->cuda) lk_threads_share_work(&run->group, &run->team);
    return run->cuda ? start_gpu(run, error) : LK_OK;
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
    if (run->workers.joined) lk_mpi_seal();
    lk_arena_seal(&run->arena);
    return enforce ? lk_seal_enforce(error) : LK_OK;
}

void lk_run_close(lk_run *run) {
    if (run->cuda) run->cuda->end(&run->gpus);
    if (run->team_started) lk_team_stop(&run->team);
    if (run->train.count) lk_dataset_close(&run->train);
    if (run->test.count) lk_dataset_close(&run->test);
    lk_host_block_unmap(&run->block);
    free(run->planning);
    free(run->workers.list);
    free(run->shard_first);
    lk_config_close(&run->config);
}

// --- the whole run ------------------------------------------------------------------------------

static bool has_objectives(const lk_run *run) {
    const lk_graph *g = run->config.spec.model.graph;
    return g && g->objective_count > 1;
}

// The last steps of objectives in cycle `cycle`: the first of them after `last`, or 0.
static uint64_t logged_in_cycle(const lk_graph *g, uint64_t cycle, uint64_t last) {
    uint64_t end = cycle * lk_cycle_steps(g);
    for (uint32_t i = 0; i < g->schedule_count; i++) {
        bool again = false;
        end += g->schedule[i].steps;
        for (uint32_t k = i + 1; k < g->schedule_count; k++) {
            again = again || g->schedule[k].objective == g->schedule[i].objective;
        }
        if (!again && end > last) return end;
    }
    return 0;
}

uint64_t lk_run_logs(const lk_run *run, uint64_t last) {
    const uint64_t every = run->config.log_every_steps;
    if (last == 0) return 1;
    if (!has_objectives(run)) return (last / every + 1) * every;
    const lk_graph *g = run->config.spec.model.graph;
    const uint64_t cycle_steps = lk_cycle_steps(g);
    for (uint64_t cycle = last / cycle_steps;; cycle++) {
        // The cycle of the first such step that lies in it or behind it.
        cycle = (cycle * cycle_steps / every + 1) * every - 1;
        cycle /= cycle_steps;
        const uint64_t step = logged_in_cycle(g, cycle, last);
        if (step) return step;
    }
}

const lk_program *lk_run_evaluated(const lk_run *run) {
    const lk_graph *g = run->config.spec.model.graph;
    for (uint32_t k = 0; g && k < g->objective_count; k++) {
        if (g->calls->reads_images(&g->objectives[k])) return &run->programs[k];
    }
    return &run->program;
}

uint64_t lk_run_steps(const lk_run *run) { return lk_config_steps(&run->config); }

void lk_run_digest(const lk_run *run, char hex[LK_SHA256_HEX_BYTES]) {
    lk_digest(&run->program, run->core.device, hex);
}

void lk_run_state_hash(const lk_run *run, uint64_t steps_done, char hex[LK_SHA256_HEX_BYTES]) {
    lk_state_hash(&run->program, run->core.device, steps_done, hex);
}
