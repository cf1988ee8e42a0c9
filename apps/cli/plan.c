// plan.c - lockstep plan: every region, offset, byte and exchange of a run, without running it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apps/cli/command.h"
#include "apps/cli/markup.h"
#include "apps/run/order.h"
#include "apps/run/plan_json.h"
#include "comm/cluster/rendezvous.h"

typedef unsigned long long ull;

// --- text --------------------------------------------------------------------------------------

static void print_entries(const lk_arena *a, lk_text_out *out) {
    for (uint32_t i = 0; i < a->entry_count; i++) {
        const lk_arena_entry *e = &a->entries[i];
        if (e->bytes == 0 || e->count == 0) continue;
        lk_text_line(out, "  %12llu  %-20s %12llu bytes x %llu", (ull)e->offset, e->name,
                     (ull)e->bytes, (ull)e->count);
    }
}

// Beside the arena: the next process must find it.
static void print_hot(const lk_run *run, lk_text_out *out) {
    if (run->hot_steps == 0) {
        lk_text_line(out, "hot state: none (%s)",
                     run->config.hot_steps ? "GPUs keep parameters and slots" : "as asked");
        return;
    }
    lk_text_line(out,
                 "hot state %llu bytes beside the arena, 2 copies in /dev/shm: hot_steps %llu%s; a "
                 "copy takes %.1f us, a step at least %.1f us: %.2f%% at most",
                 (ull)run->hot_bytes, (ull)run->hot_steps,
                 run->config.hot_steps == LK_CONFIG_HOT_AUTO ? " (auto)" : "",
                 1e6 * run->hot_seconds, 1e6 * run->hot_step_seconds,
                 100 * run->hot_seconds / (run->hot_step_seconds * (double)run->hot_steps));
}

static void print_ledger(const lk_run *run, lk_text_out *out) {
    lk_text_line(out, "arena %llu bytes", (ull)run->arena.used);
    print_entries(&run->arena, out);
    print_hot(run, out);
    if (run->cuda) return;
    lk_text_line(out,
                 "core %llu bytes: scheduler tables, device and replica regions, all that a target "
                 "without an operating system takes",
                 (ull)run->core_bytes);
}

// What one GPU must have, and why.
static void print_gpu(const lk_run *run, lk_text_out *out) {
    const lk_cuda_group *g = &run->gpus;
    for (uint32_t i = 0; run->cuda && i < g->count; i++) {
        const lk_cuda_step *c = &g->gpu[i];
        lk_text_line(out,
                     "GPU %u: %llu bytes, in one piece, for replicas %u .. %u; the driver takes "
                     "some hundred MiB besides, which train measures",
                     c->device.number, (ull)c->arena.used, c->first_replica,
                     c->first_replica + c->replicas - 1);
        print_entries(&c->arena, out);
        lk_text_line(out, "pinned %llu bytes of the arena: %u steps of examples ahead of the GPU",
                     (ull)c->host.pinned_bytes, c->slots);
        print_entries(&c->host_arena, out);
    }
    char persistent[LK_PLAN_PERSISTENT_BYTES];
    lk_plan_persistent(run, persistent);
    if (*persistent) lk_text_line(out, "%s", persistent);
    if (run->cuda && lk_run_is_fast(run)) {
        lk_text_line(
            out,
            "arithmetic fast: products in %s by cuBLAS; conversions, windows of images and "
            "partial gradients of up to %u bytes at once lie in the scratch",
            lk_fast_precision_name(run->config.spec.model.fast_precision), LK_FAST_CHUNK_BYTES);
    }
}

// Of a worker among several: its GPUs and the host.
static bool is_staged(const lk_run *run) {
    return run->cuda && run->gpu_choice.way == LK_CUDA_STAGED;
}

// What GPUs send each other, or the host, and from when on.
static void print_gpu_exchange(const lk_run *run, lk_text_out *out) {
    const lk_cuda_exchange *x = &run->gpus.exchange;
    const lk_program *p = &run->program;
    if (!run->cuda || (x->peers < 2 && !is_staged(run))) return;
    char schedule[LK_SHA256_HEX_BYTES];
    lk_plan_schedule(x, schedule);
    if (is_staged(run)) {
        lk_text_line(out, "exchange by way of the host: %llu bytes a step between it and the GPUs",
                     (ull)lk_cuda_staged_bytes(&run->gpus));
    } else {
        lk_text_line(out, "exchange between GPUs: %llu bytes a step, sent and received by NCCL",
                     (ull)lk_cuda_exchange_bytes(x));
        lk_text_line(out, "  schedule %s", schedule);
    }
    for (uint32_t b = 0; b < x->bucket_count; b++) {
        lk_text_line(out, "  bucket %u: floats %llu .. %llu, after op %u %s of the last microbatch",
                     b, (ull)x->buckets[b].begin, (ull)x->buckets[b].end, x->buckets[b].after_op,
                     p->ops[x->buckets[b].after_op].type->name);
    }
    for (uint32_t i = 0; !is_staged(run) && i < x->peers; i++) {
        const lk_partition own = lk_cuda_partition(x, i);
        lk_text_line(out, "  GPU %u owns floats %llu .. %llu", i, (ull)own.begin, (ull)own.end);
    }
}

static const char *op_at(const lk_program *p, uint32_t op) {
    return op == LK_FOREVER || op >= p->op_count ? "end" : p->ops[op].type->name;
}

// Of mixed precision: how many bytes of each, whether they are laid over each other or not.
static void print_dtypes(const lk_program *p, lk_region region, lk_text_out *out) {
    char text[160] = "";
    if (!lk_model_is_mixed(&p->spec->model)) return;
    for (uint32_t dtype = LK_F32; dtype <= LK_BF16; dtype++) {
        const size_t used = strlen(text);
        uint64_t bytes = 0;
        for (uint32_t i = 0; i < p->tensor_count; i++) {
            const lk_tensor *t = &p->tensors[i];
            if (t->region == region && (uint32_t)t->dtype == dtype) bytes += t->bytes;
        }
        if (bytes == 0) continue;
        snprintf(text + used, sizeof text - used, "%s %s %llu", used ? "," : "",
                 lk_dtype_name((lk_dtype)dtype), (ull)bytes);
    }
    lk_text_line(out, "  bytes of its tensors by dtype:%s", text);
}

static void print_tensors(const lk_program *p, lk_region region, lk_text_out *out) {
    const lk_region_plan *plan = &p->regions[region];
    lk_text_line(out, "%s: %llu bytes; lower bound %llu, %.1f%% above it",
                 region == LK_REGION_DEVICE ? "device region" : "replica region", (ull)plan->bytes,
                 (ull)plan->lower_bound_bytes,
                 100.0 * ((double)plan->bytes / (double)LK_MAX(plan->lower_bound_bytes, 1) - 1.0));
    print_dtypes(p, region, out);
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        const lk_tensor *t = &p->tensors[i];
        if (t->region != region) continue;
        char shape[80] = "";
        for (uint32_t d = 0; d < t->rank; d++) {
            size_t used = strlen(shape);
            snprintf(shape + used, sizeof shape - used, d ? ", %llu" : "%llu", (ull)t->shape[d]);
        }
        if (t->last == LK_FOREVER) {
            lk_text_line(out, "  %12llu  %12llu  %-10s %-4s (%s)  %s", (ull)t->offset,
                         (ull)t->bytes, lk_tensor_class_name(t->class_), lk_dtype_name(t->dtype),
                         shape, t->name);
        } else {
            lk_text_line(out, "  %12llu  %12llu  %-10s %-4s (%s)  %s  [op %u %s .. %u %s]",
                         (ull)t->offset, (ull)t->bytes, lk_tensor_class_name(t->class_),
                         lk_dtype_name(t->dtype), shape, t->name, t->first, op_at(p, t->first),
                         t->last, op_at(p, t->last));
        }
    }
}

static void print_program(const lk_run *run, const lk_program *p, lk_text_out *out) {
    lk_text_line(out, "program: %u ops", p->op_count);
    for (uint32_t i = 0; i < p->op_count; i++) {
        const lk_op *op = &p->ops[i];
        const char *layer = op->layer == LK_NONE ? "" : p->spec->model.layers[op->layer].name;
        lk_text_line(out, "  op %-3u %-9s %-30s %s%s", i, lk_phase_name(op->phase),
                     op->type->name, layer,
                     lk_run_by_reference(run, op->type) ? "  (by its reference: slow)" : "");
    }
}

// Who computes what among several workers, and what each gives the others in a step.
static void print_workers(const lk_run *run, lk_text_out *out) {
    const lk_program *p = &run->program;
    const lk_run_workers *w = &run->workers;
    if (w->world == 1) return;
    lk_text_line(out, "%u workers, %u replicas in all; this is the plan of rank %u", w->world,
                 run->layout.replicas_all, w->rank);
    lk_text_line(
        out,
        "  beside the arena: exchange window %llu bytes, memory that the workers of a host "
        "share; rendezvous %llu bytes (none under mpiexec); %llu bytes in all",
        (ull)run->window_bytes, (ull)run->rendezvous_bytes, (ull)lk_run_bytes(run));
    const lk_buckets buckets = lk_exchange_buckets(p);
    for (uint32_t k = 0; k < buckets.count && !lk_run_is_direct(run); k++) {
        const lk_bucket *bucket = &buckets.bucket[k];
        const char *when = k + 1 < buckets.count ? ", while the rest is computed" : "";
        lk_text_line(out,
                     "  exchange bucket %u: floats %llu .. %llu, after op %u %s of the last "
                     "microbatch%s",
                     k, (ull)bucket->begin, (ull)bucket->end, bucket->after_op,
                     p->ops[bucket->after_op].type->name, when);
    }
    for (uint32_t r = 0; r < LK_MIN(w->world, 16); r++) {
        const lk_worker *them = &w->list[r];
        uint32_t all = run->layout.replicas_all;
        lk_grain_range first = lk_replica_grains(p->grains, all, them->before);
        lk_grain_range last = lk_replica_grains(p->grains, all, them->before + them->replicas - 1);
        uint64_t slots = lk_exchange_slots(p, them);
        uint64_t own = lk_exchange_sum_floats(&buckets, w->world, r, buckets.count);
        if (lk_run_is_direct(run)) {
            lk_text_line(out, "  worker %u: %u replicas, grains %u .. %u, on GPUs %u .. %u", r,
                         them->replicas, first.first, last.first + last.count - 1, r * them->gpus,
                         (r + 1) * them->gpus - 1);
            continue;
        }
        lk_text_line(out,
                     "  worker %u: %u replicas, grains %u .. %u in %llu whole nodes; owns %llu "
                     "floats; gives %llu bytes of nodes and %llu of sums a step",
                     r, them->replicas, first.first, last.first + last.count - 1, (ull)slots,
                     (ull)own, (ull)(slots * (p->loss_offset - own) * sizeof(float)),
                     (ull)(own * (w->world - 1) * sizeof(float)));
    }
    if (w->world > 16) lk_text_line(out, "  ... and %u more workers alike", w->world - 16);
}

// How long all that takes, and the formula.
static void print_link(const lk_run *run, const lk_link *link, lk_text_out *out) {
    static const char *const what[LK_TRAFFIC_ROUNDS] = {
        "1, nodes to their owners and reports to all", "2, finished sums to all"};
    lk_traffic traffic = lk_traffic_of(run);
    lk_traffic_time time = lk_traffic_time_of(&traffic, link);
    lk_text_line(out, "exchange at %g Gbit/s, each worker on a host of its own",
                 link->bits_per_second / 1e9);
    for (uint32_t i = 0; i < LK_TRAFFIC_ROUNDS; i++) {
        lk_text_line(out, "  round %s: %llu bytes in %llu messages", what[i], (ull)traffic.bytes[i],
                     (ull)traffic.messages[i]);
    }
    lk_text_line(out,
                 "  a step: %d rounds, %llu bytes and %llu messages sent by a worker, and as many "
                 "received",
                 LK_TRAFFIC_ROUNDS, (ull)(traffic.bytes[0] + traffic.bytes[1]),
                 (ull)(traffic.messages[0] + traffic.messages[1]));
    lk_text_line(out,
                 "  time = %d x %g us latency + messages x %d us + 8 x bytes / bandwidth = %.3f + "
                 "%.3f + %.3f = %.3f ms, if nothing is hidden behind the computation",
                 LK_TRAFFIC_ROUNDS, link->latency_us, LK_MESSAGE_US, time.latency / 1e3,
                 time.messages / 1e3, time.bytes / 1e3, time.all / 1e3);
}

static void print_schedule(const lk_run *run, lk_text_out *out) {
    const lk_program *p = &run->program;
    uint32_t replicas = p->layout.replicas;
    lk_text_line(
        out,
        "global batch %u = %u grains of %u; a replica holds up to %u grains (%u examples) at once",
        p->spec->global_batch, p->grains, p->spec->grain, p->microbatch_grains,
        p->microbatch_examples);
    for (uint32_t r = 0; r < LK_MIN(replicas, 16); r++) {
        lk_grain_range g = lk_layout_grains(&p->layout, p->grains, r);
        lk_text_line(out,
                     "  replica %u: grains %u .. %u in %u microbatches, %u tree nodes held at most",
                     r, g.first, g.first + g.count - 1,
                     (g.count + p->microbatch_grains - 1) / p->microbatch_grains,
                     (run->cuda ? lk_device_slots : lk_node_slots)(
                         g.first, g.count, p->microbatch_grains, p->grains));
    }
    if (replicas > 16) lk_text_line(out, "  ... and %u more replicas alike", replicas - 16);
}

// What is there of the scores of a joint, which others have for all cells.
static void print_joints(const lk_program *p, lk_text_out *out) {
    lk_plan_joint j;
    for (uint32_t i = 0; i < p->forward_end; i++) {
        if (!lk_plan_joint_of(p, i, &j)) continue;
        const bool fewer = j.tile_bytes <= j.whole_bytes;
        const uint64_t by = fewer ? j.whole_bytes - j.tile_bytes : j.tile_bytes - j.whole_bytes;
        lk_text_line(out,
                     "  joint %s: %llu bytes for %u cells at a time, %llu %s than the %llu of "
                     "all scores (%u, %u, %u, %u)",
                     j.layer, (ull)j.tile_bytes, j.tile, (ull)by, fewer ? "fewer" : "more",
                     (ull)j.whole_bytes, j.examples, j.frames, j.columns, j.symbols);
    }
}

// How gradients meet.
static void print_reduction(const lk_program *p, lk_text_out *out) {
    for (uint32_t i = 0; i < p->param_count; i++) {
        if (p->params[i].gradient_op == LK_NONE) continue;
        lk_text_line(out, "  reduce %-28s by %s", p->tensors[p->params[i].tensor].name,
                     p->params[i].mode == LK_REDUCE_PARTIALS ? "partials" : "operands");
    }
    lk_text_line(out, "  exchange between replicas: %llu bytes a step",
                 (ull)lk_plan_exchange_bytes(p));
}

// Which objective, and how many steps of a cycle of the schedule are its.
static void print_objective(const lk_program *p, lk_text_out *out) {
    const lk_graph *g = p->spec->model.graph;
    uint64_t own = 0, all = 0;
    for (uint32_t i = 0; i < g->schedule_count; i++) {
        all += g->schedule[i].steps;
        if (g->schedule[i].objective == p->objective) own += g->schedule[i].steps;
    }
    lk_text_line(out, "objective %s: %llu of %llu steps", g->objectives[p->objective].name,
                 (ull)own, (ull)all);
}

static lk_status print_plan(const lk_run *run, const lk_link *link, lk_text_out *out,
                            lk_error *error) {
    lk_text_line(out, "plan of %s: %u replicas, %llu parameters", run->config.document.source,
                 run->layout.replicas, (ull)run->program.param_floats);
    print_ledger(run, out);
    print_gpu(run, out);
    print_tensors(&run->program, LK_REGION_DEVICE, out);
    for (uint32_t k = 0; k < run->program.programs; k++) {
        const lk_program *p = &run->programs[k];
        if (p->spec->model.graph) print_objective(p, out);
        print_tensors(p, LK_REGION_REPLICA, out);
        print_program(run, p, out);
        print_joints(p, out);
        if (k == 0) print_schedule(run, out);
        print_reduction(p, out);
    }
    print_gpu_exchange(run, out);
    print_workers(run, out);
    if (link->bits_per_second > 0) print_link(run, link, out);
    return lk_text_check(out, "standard output", error);
}

static lk_status print_json(const lk_run *run, const lk_link *link, lk_error *error) {
    size_t bytes = lk_plan_json(run, link, NULL, 0) + 1;
    char *text = malloc(bytes);
    if (!text) return lk_fail(error, LK_UNAVAILABLE, "no memory for the plan's text");
    lk_plan_json(run, link, text, bytes);
    fputs(text, stdout);
    free(text);
    return LK_OK;
}

// --svg: the plan to scale, on standard output.
static lk_status print_svg(const lk_run *run, lk_error *error) {
    lk_markup m = {0};
    const size_t bytes = lk_plan_json(run, NULL, NULL, 0) + 1;
    char *text = malloc(bytes);
    if (!text) return lk_fail(error, LK_UNAVAILABLE, "no memory for the plan's text");
    lk_plan_json(run, NULL, text, bytes);
    json_t *plan = json_loads(text, 0, NULL);
    free(text);
    const bool drawn = plan && lk_draw_plan(&m, plan, LK_PLAN_WIDTH, true);
    json_decref(plan);
    if (drawn && lk_markup_check(&m, error) == LK_OK) fputs(m.text, stdout);
    free(m.text);
    return drawn ? error->status : lk_fail(error, LK_UNAVAILABLE, "no memory for the picture");
}

// --- who reads what ----------------------------------------------------------------------------

// What an epoch reads, added up over the workers.
typedef struct coverage {
    uint8_t *times;  // (examples) 0, 1, or 2 for more
    uint64_t read, distinct, twice, outside;
} coverage;

// One step of a worker, position by position, as its replicas walk it.
static void count_step(const lk_run *run, lk_grain_range grains, lk_grain_range shards,
                       uint64_t batch, coverage *c) {
    const lk_run_spec *spec = &run->config.spec;
    const uint64_t step = lk_step_of_batch(&spec->model, batch);
    uint64_t begin = batch * spec->global_batch;
    uint64_t first = begin + (uint64_t)grains.first * spec->grain;
    uint64_t end = begin + LK_MIN((uint64_t)(grains.first + grains.count) * spec->grain,
                                  (uint64_t)lk_step_positions(spec, step));
    uint64_t from = spec->shards ? spec->shard_first[shards.first] : 0;
    uint64_t to = spec->shards ? spec->shard_first[shards.first + shards.count] : UINT64_MAX;
    for (uint64_t p = first; p < end; p++) {
        if (!lk_position_exists(spec, p)) continue;
        uint64_t index = lk_order(spec, 0, p);
        c->read++;
        c->outside += index < from || index >= to;
        c->distinct += c->times[index] == 0;
        c->twice += c->times[index] == 1;
        c->times[index] = (uint8_t)LK_MIN(c->times[index] + 1, 2);
    }
}

static lk_status count_examples(const lk_run *run, coverage *c, lk_text_out *out, lk_error *error) {
    const lk_run_spec *spec = &run->config.spec;
    uint64_t batches = lk_steps_per_epoch(spec);
    for (uint32_t w = 0; w < run->workers.world; w++) {
        lk_grain_range grains = lk_run_grains(run, w), shards = lk_run_shards(run, w);
        uint64_t before = c->read;
        for (uint64_t b = 0; b < batches; b++) count_step(run, grains, shards, b, c);
        lk_text_line(out,
                     "worker %u: grains %u .. %u of every step read shards %u .. %u: %llu "
                     "examples an epoch",
                     w, grains.first, grains.first + grains.count - 1, shards.first,
                     shards.first + shards.count - 1, (ull)(c->read - before));
    }
    // What is left out is counted by the steps, not by what was read: that is to be judged.
    uint64_t dropped = spec->drop_remainder ? spec->example_count : 0;
    for (uint64_t b = 0; dropped && b < batches; b++) {
        const uint64_t step = lk_step_of_batch(&spec->model, b);
        dropped -= LK_MIN(dropped, lk_step_examples(spec, step));
    }
    uint64_t missing = spec->example_count - c->distinct - dropped;
    lk_text_line(
        out, "epoch 0: %llu examples read, %llu distinct, %llu missing, %llu twice, %llu dropped",
        (ull)c->read, (ull)c->distinct, (ull)missing, (ull)c->twice, (ull)dropped);
    if (missing == 0 && c->twice == 0 && c->outside == 0) return LK_OK;
    return lk_fail(error, LK_INTERNAL,
                   "an epoch does not cover every example exactly once, or a "
                   "worker reads %llu examples of shards that are not its own",
                   (ull)c->outside);
}

// Who reads a shard: all, or the workers whose grains lie on it.
static void print_shard(const lk_run *run, uint32_t shard, lk_text_out *out) {
    const lk_dataset_part *part = &run->train.parts[shard];
    const char *name = part->images.name ? part->images.name : "made up";
    uint64_t last = part->first + part->count - 1;
    uint32_t shards = run->config.spec.shards, first = UINT32_MAX, end = 0;
    if (part->count == 0) return;  // behind data.train_examples
    if (shards == 0) {
        lk_text_line(out,
                     "shard %u: examples %llu .. %llu  %s; read by every replica (order "
                     "global)",
                     shard, (ull)part->first, (ull)last, name);
        return;
    }
    for (uint32_t w = 0; w < run->workers.world; w++) {
        lk_grain_range theirs = lk_run_shards(run, w);
        if (shard < theirs.first || shard - theirs.first >= theirs.count) continue;
        first = LK_MIN(first, w);
        end = w;
    }
    uint32_t each = lk_grain_count(&run->config.spec) / shards;
    lk_text_line(out,
                 "shard %u: examples %llu .. %llu  %s; grains %u .. %u, read by workers %u .. "
                 "%u (order sharded)",
                 shard, (ull)part->first, (ull)last, name, shard * each, shard * each + each - 1,
                 first, end);
}

static lk_status show_shards(const lk_run *run, lk_text_out *out, lk_error *error) {
    if (lk_spec_has_strips(&run->config.spec)) {
        return lk_fail(error, LK_UNAVAILABLE,
                       "--show-shards: data.strips: which images make a strip is drawn; lockstep "
                       "ledger says it");
    }
    coverage c = {.times = calloc(run->config.spec.example_count, 1)};
    for (uint32_t i = 0; i < run->train.part_count; i++) print_shard(run, i, out);
    if (!c.times)
        return lk_fail(error, LK_UNAVAILABLE, "no memory to count %llu examples",
                       (ull)run->config.spec.example_count);
    lk_status status = count_examples(run, &c, out, error);
    free(c.times);
    return status;
}

// Opens the data without an arena, only to count it. In order "sharded" the manifest says all that
// there is to count: no shard need be here.
static lk_status open_training_set(lk_run *run, void **memory, lk_error *error) {
    *memory = aligned_alloc(64, lk_round_up(run->train_bytes + 64, 64));
    if (!*memory) return lk_fail(error, LK_UNAVAILABLE, "no memory for the data set's tables");
    run->config.train.source.some = run->config.sharded;
    LK_CHECK(
        lk_dataset_open(&run->config.train.source, *memory, run->train_bytes, &run->train, error));
    run->config.spec.example_count = run->train.count;
    return LK_OK;
}

static lk_status plan(lk_run *run, const lk_common_options *o, lk_error *error) {
    lk_text_out out;
    void *memory = NULL;
    lk_text_open(&out, STDOUT_FILENO);
    LK_CHECK(lk_run_plan(run, error));
    if (o->svg) {
        LK_CHECK(print_svg(run, error));
    } else if (o->json) {
        LK_CHECK(print_json(run, &o->link, error));
    } else {
        LK_CHECK(print_plan(run, &o->link, &out, error));
    }
    if (o->show_shards) {
        lk_status status = open_training_set(run, &memory, error);
        if (status == LK_OK) status = show_shards(run, &out, error);
        if (status == LK_OK) status = lk_text_check(&out, "standard output", error);
        if (run->train.count) lk_dataset_close(&run->train);
        run->train.count = 0;
        free(memory);
        LK_CHECK(status);
    }
    return lk_memory_check(lk_run_bytes(run), o->max_memory, error);
}

// --latency belongs to --bandwidth, and that to several workers; what --show-shards says is text.
static lk_status check_options(lk_common_options *o, lk_error *error) {
    bool given = o->link.bits_per_second > 0;
    if (o->json && o->show_shards)
        return lk_fail(error, LK_BAD_USAGE, "--json and --show-shards exclude each other");
    if (o->svg && (o->json || o->show_shards))
        return lk_fail(error, LK_BAD_USAGE, "--svg and --json or --show-shards exclude each other");
    if (!given && o->link.latency_us > 0)
        return lk_fail(error, LK_BAD_USAGE, "--latency: found no --bandwidth, wanted both");
    if (given && o->workers < 2) {
        return lk_fail(error, LK_BAD_USAGE,
                       "--bandwidth: found one worker, which sends nothing; say how many there are "
                       "with --workers N");
    }
    if (given && o->collective == LK_COLLECTIVE_NCCL) {
        return lk_fail(error, LK_BAD_USAGE,
                       "--bandwidth: found --collective nccl, wanted mpi: the formula is of what "
                       "goes by way of the hosts");
    }
    if (o->link.latency_us == 0) o->link.latency_us = LK_LATENCY_US;
    return LK_OK;
}

lk_status lk_command_plan(int argc, char **argv, lk_error *error) {
    static lk_run run;
    lk_common_options o;
    LK_CHECK(lk_parse_common(argc, argv, LK_OPT_PLAN, &o, error));
    LK_CHECK(check_options(&o, error));
    const lk_run_needs needs = {.checkpoints = true, .logs = true};  // what train will need
    o.config.workers = LK_MAX(o.workers, 1u);
    lk_status status = lk_run_configure(&run, &o.config, needs, error);
    if (status == LK_OK && o.workers > 1) status = lk_run_imagine(&run, o.workers, error);
    if (status == LK_OK) status = lk_collective_imagine(&run, o.collective, error);
    run.rendezvous_bytes = o.workers > 1 ? lk_rendezvous_bytes(run.workers.rank) : 0;
    if (status == LK_OK) status = plan(&run, &o, error);
    lk_run_close(&run);
    return status;
}
