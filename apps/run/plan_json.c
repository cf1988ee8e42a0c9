// plan_json.c - a run's plan as one JSON document: what lockstep plan --json prints, and what a run
// keeps as plan.json.
#include "apps/run/plan_json.h"

#include <stdio.h>
#include <string.h>

#include "io/text.h"

typedef unsigned long long ull;

void lk_plan_schedule(const lk_cuda_exchange *x, char hex[LK_SHA256_HEX_BYTES]) {
    uint8_t hash[LK_SHA256_BYTES];
    lk_cuda_schedule_hash(x, hash);
    lk_hex(hash, LK_SHA256_BYTES, hex);
}

uint64_t lk_plan_exchange_bytes(const lk_program *p) {
    uint64_t bytes = 0, others = p->layout.replicas - 1;
    bytes += p->node_floats * sizeof(float) * others;
    for (uint32_t i = 0; i < p->param_count; i++) {
        if (p->params[i].mode != LK_REDUCE_OPERANDS) continue;
        const lk_op *op = &p->ops[p->params[i].gradient_op];
        uint64_t rows =
            (uint64_t)op->dense.k_count + (uint64_t)op->dense.n_count * p->layout.replicas;
        bytes += rows * p->spec->global_batch * sizeof(float) * others / p->layout.replicas;
    }
    return bytes;
}

typedef struct json_text {
    char *out;
    size_t bytes, length;
} json_text;

__attribute__((format(printf, 2, 3))) static void put(json_text *j, const char *format, ...) {
    __builtin_va_list args;
    __builtin_va_start(args, format);
    size_t room = j->length < j->bytes ? j->bytes - j->length : 0;
    int n = vsnprintf(room ? j->out + j->length : NULL, room, format, args);
    __builtin_va_end(args);
    if (n > 0) j->length += (size_t)n;
}

static void put_tensor(json_text *j, const lk_tensor *t) {
    char name[2 * LK_NAME_BYTES];
    lk_text_escape(name, sizeof name, t->name, strlen(t->name));
    put(j,
        "    {\"name\": \"%s\", \"class\": \"%s\", \"dtype\": \"%s\", \"region\": \"%s\", "
        "\"shape\": [",
        name, lk_tensor_class_name(t->class_), lk_dtype_name(t->dtype),
        t->region == LK_REGION_DEVICE ? "device" : "replica");
    for (uint32_t d = 0; d < t->rank; d++) put(j, d ? ", %llu" : "%llu", (ull)t->shape[d]);
    put(j, "], \"offset\": %llu, \"bytes\": %llu, \"first_op\": %u, \"last_op\": ", (ull)t->offset,
        (ull)t->bytes, t->first);
    if (t->last == LK_FOREVER) {
        put(j, "null}");
    } else {
        put(j, "%u}", t->last);
    }
}

static void put_ops(json_text *j, const lk_program *p) {
    put(j, "  \"ops\": [\n");
    for (uint32_t i = 0; i < p->op_count; i++) {
        const lk_op *op = &p->ops[i];
        char layer[2 * LK_NAME_BYTES] = "";
        if (op->layer != LK_NONE) {
            const char *plain = p->spec->model.layers[op->layer].name;
            lk_text_escape(layer, sizeof layer, plain, strlen(plain));
        }
        put(j, "    {\"phase\": \"%s\", \"type\": \"%s\", \"layer\": \"%s\"}%s\n",
            lk_phase_name(op->phase), op->type->name, layer, i + 1 < p->op_count ? "," : "");
    }
    put(j, "  ],\n");
}

static void put_buckets(json_text *j, const lk_run *run) {
    const lk_buckets buckets = lk_exchange_buckets(&run->program);
    put(j, "  \"exchange_parts\": [\n");
    for (uint32_t k = 0; k < buckets.count; k++) {
        const lk_bucket *bucket = &buckets.bucket[k];
        put(j, "    {\"begin\": %llu, \"end\": %llu, \"after_op\": %u}%s\n", (ull)bucket->begin,
            (ull)bucket->end, bucket->after_op, k + 1 < buckets.count ? "," : "");
    }
    put(j, "  ],\n");
}

static void put_link(json_text *j, const lk_run *run, const lk_link *link) {
    lk_traffic traffic = lk_traffic_of(run);
    lk_traffic_time time = lk_traffic_time_of(&traffic, link);
    put(j,
        "  \"exchange_of_workers\": {\"bandwidth_bits_per_second\": %.9g, \"latency_us\": %.9g, "
        "\"message_us\": %d, \"turns\": %d, \"bytes_per_step\": %llu, \"messages_per_step\": %llu, "
        "\"us_per_step\": %.3f},\n",
        link->bits_per_second, link->latency_us, LK_MESSAGE_US, LK_TRAFFIC_ROUNDS,
        (ull)(traffic.bytes[0] + traffic.bytes[1]),
        (ull)(traffic.messages[0] + traffic.messages[1]), time.all);
}

static void put_entries(json_text *j, const lk_arena *a) {
    for (uint32_t i = 0; i < a->entry_count; i++) {
        const lk_arena_entry *e = &a->entries[i];
        put(j, "    {\"name\": \"%s\", \"offset\": %llu, \"bytes\": %llu, \"count\": %llu}%s\n",
            e->name, (ull)e->offset, (ull)e->bytes, (ull)e->count,
            i + 1 < a->entry_count ? "," : "");
    }
}

void lk_plan_persistent(const lk_run *run, char text[LK_PLAN_PERSISTENT_BYTES]) {
    const lk_cuda_persist *p = &run->gpus.gpu[0].persist;
    *text = 0;
    if (!run->cuda || p->wanted == LK_CUDA_PERSISTENT_OFF) return;
    if (!p->fits) {
        snprintf(text, LK_PLAN_PERSISTENT_BYTES, "persistent kernel: off (%s)", p->why);
        return;
    }
    snprintf(text, LK_PLAN_PERSISTENT_BYTES,
             "persistent kernel: %s (%u launches of a step in %u levels; %.1f us a step as a "
             "graph, %.1f us as one kernel: estimates; an H100 took 3 to 4 and 10 times that for "
             "mnist-cnn)",
             p->is ? "on" : "off", p->launches, p->levels, 1e6 * p->graph_seconds,
             1e6 * p->seconds);
}

static void put_gpus(json_text *j, const lk_cuda_group *g) {
    const bool staged = g->choice.way == LK_CUDA_STAGED, direct = g->exchange.peers > 1 && !staged;
    put(j, "  ],\n  \"gpus\": [");
    for (uint32_t i = 0; i < g->count; i++) {
        const lk_cuda_step *c = &g->gpu[i];
        put(j,
            "%s{\"number\": %u, \"first_replica\": %u, \"replicas\": %u, \"bytes\": %llu, "
            "\"pinned_bytes\": %llu, \"persistent\": %s, \"regions\": [\n",
            i ? ", " : "", c->device.number, c->first_replica, c->replicas, (ull)c->arena.used,
            (ull)c->host.pinned_bytes, c->persist.is ? "true" : "false");
        put_entries(j, &c->arena);
        put(j, "  ]}");
    }
    char schedule[LK_SHA256_HEX_BYTES] = "";
    if (direct) lk_plan_schedule(&g->exchange, schedule);
    put(j,
        "],\n  \"gpu_exchange_bytes\": %llu,\n  \"gpu_staged_bytes\": %llu,\n"
        "  \"gpu_schedule\": \"%s\",\n  \"gpu_exchange\": [\n",
        (ull)(direct ? lk_cuda_exchange_bytes(&g->exchange) : 0),
        (ull)(staged ? lk_cuda_staged_bytes(g) : 0), schedule);
    for (uint32_t b = 0; (direct || staged) && b < g->exchange.bucket_count; b++) {
        const lk_cuda_bucket *bucket = &g->exchange.buckets[b];
        put(j, "    {\"begin\": %llu, \"end\": %llu, \"after_op\": %u}%s\n", (ull)bucket->begin,
            (ull)bucket->end, bucket->after_op, b + 1 < g->exchange.bucket_count ? "," : "");
    }
}

static void put_tensors(json_text *j, const lk_program *p) {
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        put_tensor(j, &p->tensors[i]);
        put(j, i + 1 < p->tensor_count ? ",\n" : "\n");
    }
}

// The tensors of each objective's program: those of the device region are the same in all.
static void put_objectives(json_text *j, const lk_program *p) {
    put(j, ",\n  \"objectives\": [\n");
    for (uint32_t k = 0; k < p->programs; k++) {
        char name[2 * LK_GRAPH_NAME_BYTES * 3];
        const char *own = p->spec->model.graph->objectives[k].name;
        lk_text_escape(name, sizeof name, own, strlen(own));
        put(j, "%s{\"name\": \"%s\", \"tensors\": [\n", k ? ", " : "  ", name);
        put_tensors(j, &p->all[k]);
        put(j, "  ]}");
    }
    put(j, "]");
}

bool lk_plan_joint_of(const lk_program *p, uint32_t index, lk_plan_joint *out) {
    const lk_op *op = &p->ops[index];
    const lk_joint *j = &op->joint;
    if (op->type != &lk_op_joint) return false;
    *out = (lk_plan_joint){.layer = p->spec->model.layers[op->layer].name,
                           .examples = p->microbatch_examples,
                           .frames = j->frames,
                           .columns = j->labels + 1,
                           .symbols = j->dense.n_count,
                           .tile = j->tile};
    out->whole_bytes = (uint64_t)out->examples * lk_joint_cells(j) * out->symbols * sizeof(float);
    for (uint32_t i = 0; i < p->op_count; i++) {
        const lk_op *of = &p->ops[i];
        if (of->layer != op->layer || of->tensor[LK_SCRATCH] == LK_NONE) continue;
        out->tile_bytes = LK_MAX(out->tile_bytes, p->tensors[of->tensor[LK_SCRATCH]].bytes);
    }
    return true;
}

static void put_joints(json_text *j, const lk_program *p) {
    bool any = false;
    lk_plan_joint joint;
    for (uint32_t i = 0; i < p->forward_end; i++) {
        if (!lk_plan_joint_of(p, i, &joint)) continue;
        char name[6 * LK_NAME_BYTES];
        lk_text_escape(name, sizeof name, joint.layer, strlen(joint.layer));
        put(j,
            "%s{\"layer\": \"%s\", \"tile_cells\": %u, \"tile_bytes\": %llu, "
            "\"whole_shape\": [%u, %u, %u, %u], \"whole_bytes\": %llu, \"saved_bytes\": %lld}",
            any ? ", " : "  \"joints\": [", name, joint.tile, (ull)joint.tile_bytes, joint.examples,
            joint.frames, joint.columns, joint.symbols, (ull)joint.whole_bytes,
            (long long)(joint.whole_bytes - joint.tile_bytes));
        any = true;
    }
    if (any) put(j, "],\n");
}

size_t lk_plan_json(const lk_run *run, const lk_link *link, char *out, size_t bytes) {
    const lk_program *p = &run->program;
    json_text j = {out, bytes, 0};
    put(&j,
        "{\n  \"arena_bytes\": %llu,\n  \"core_bytes\": %llu,\n  \"window_bytes\": %llu,\n"
        "  \"rendezvous_bytes\": %llu,\n  \"hot_bytes\": %llu,\n  \"hot_steps\": %llu,\n"
        "  \"workers\": %u,\n  \"replicas\": %u,\n  \"regions\": [\n",
        (ull)run->arena.used, (ull)run->core_bytes, (ull)run->window_bytes,
        (ull)run->rendezvous_bytes, (ull)run->hot_bytes, (ull)run->hot_steps, run->workers.world,
        run->layout.replicas);
    put_entries(&j, &run->arena);
    if (run->cuda) {
        put_gpus(&j, &run->gpus);
    }
    put(&j, "  ],\n  \"device_region_bytes\": %llu,\n  \"device_lower_bound_bytes\": %llu,\n",
        (ull)p->regions[0].bytes, (ull)p->regions[0].lower_bound_bytes);
    put(&j, "  \"replica_region_bytes\": %llu,\n  \"replica_lower_bound_bytes\": %llu,\n",
        (ull)p->regions[1].bytes, (ull)p->regions[1].lower_bound_bytes);
    put(&j, "  \"exchange_bytes_per_step\": %llu,\n", (ull)lk_plan_exchange_bytes(p));
    if (run->workers.world > 1) put_buckets(&j, run);
    if (link && link->bits_per_second > 0) put_link(&j, run, link);
    put_ops(&j, p);
    put_joints(&j, p);
    put(&j, "  \"tensors\": [\n");
    put_tensors(&j, p);
    put(&j, "  ]");
    if (p->spec->model.graph) put_objectives(&j, p);
    put(&j, "\n}\n");
    return j.length;
}
