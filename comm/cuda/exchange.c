// exchange.c - buckets and messages of exchange.h.
#include "comm/cuda/exchange.h"

lk_worker lk_cuda_share(const lk_worker *whole, uint32_t gpus, uint32_t gpu) {
    const lk_grain_range peer = lk_replica_grains(whole->replicas, gpus, gpu);
    return (lk_worker){.replicas = peer.count, .before = whole->before + peer.first};
}

lk_partition lk_cuda_partition_of(const lk_program *p, uint32_t peers, uint32_t peer) {
    lk_partition partition = lk_partition_of(p, peers, peer);
    if (peer + 1 == peers) partition.end = p->node_floats;
    return partition;
}

lk_partition lk_cuda_partition(const lk_cuda_exchange *x, uint32_t peer) {
    return lk_cuda_partition_of(x->program, x->peers, peer);
}

// --- buckets -----------------------------------------------------------------------------------

// The loss is summed before the first gradient, and goes with it.
void lk_cuda_exchange_plan(lk_cuda_exchange *x, uint64_t bucket_floats) {
    x->bucket_floats = bucket_floats;
    x->bucket_count = lk_cut_buckets(x->program, bucket_floats, LK_CUDA_BUCKETS_MAX, x->buckets);
    x->buckets[0].end = x->program->node_floats;
}

void lk_cuda_exchange_use(lk_cuda_exchange *x, const lk_program *program) {
    x->program = program;
    lk_cuda_exchange_plan(x, x->bucket_floats);
}

// --- messages ----------------------------------------------------------------------------------

static void send_piece(const lk_cuda_exchange *x, lk_cuda_message *m, uint32_t owner,
                       lk_cuda_on_message on_message, void *context) {
    const lk_cuda_bucket *b = &x->buckets[m->bucket];
    const lk_partition partition = lk_cuda_partition(x, owner);
    m->begin = LK_MAX(partition.begin, b->begin);
    m->end = LK_MIN(partition.end, b->end);
    if (m->begin < m->end) on_message(context, m);
}

void lk_cuda_messages(const lk_cuda_exchange *x, lk_cuda_message_kind kind, uint32_t bucket,
                      uint32_t leaves, lk_cuda_on_message on_message, void *context) {
    lk_cuda_message m = {.kind = kind, .bucket = bucket};
    lk_counter blocks = {.count = 1};
    for (m.from = 0; m.from < x->peers; m.from++) {
        if (kind == LK_CUDA_NODES) {
            lk_exchange_blocks(x->program, &x->list[m.from], x->program->grains, leaves, &blocks);
        }
        for (m.to = 0; m.to < x->peers; m.to++) {
            if (m.to == m.from) continue;
            for (m.block = 0; m.block < blocks.count; m.block++) {
                if (kind == LK_CUDA_REPORTS) {
                    on_message(context, &m);
                } else {
                    send_piece(x, &m, kind == LK_CUDA_NODES ? m.to : m.from, on_message, context);
                }
            }
        }
    }
}

static void each_of_step(const lk_cuda_exchange *x, uint32_t leaves, lk_cuda_on_message on_message,
                         void *context) {
    for (uint32_t b = 0; b < x->bucket_count; b++) {
        lk_cuda_messages(x, LK_CUDA_NODES, b, leaves, on_message, context);
        lk_cuda_messages(x, LK_CUDA_SUMS, b, leaves, on_message, context);
    }
    lk_cuda_messages(x, LK_CUDA_REPORTS, x->bucket_count - 1, leaves, on_message, context);
}

static void hash_message(void *context, const lk_cuda_message *m) {
    lk_sha256 *hash = context;
    const uint32_t numbers[] = {(uint32_t)m->kind, m->bucket, m->from, m->to, m->block};
    for (uint32_t i = 0; i < LK_COUNT(numbers); i++) lk_sha256_add_u32(hash, numbers[i]);
    lk_sha256_add_u64(hash, m->begin);
    lk_sha256_add_u64(hash, m->end);
}

// Grains of the first, or the last, image batch of an epoch; of an objective that reads none all.
static uint32_t leaves_of(const lk_program *p, bool last) {
    const lk_model *m = &p->spec->model;
    const lk_graph *g = lk_graph_of(m);
    if (g && !g->calls->reads_images(&g->objectives[p->objective])) return p->grains;
    const uint64_t batch = last ? lk_steps_per_epoch(p->spec) - 1 : 0;
    return lk_step_grains(p, lk_step_of_batch(m, batch));
}

void lk_cuda_schedule_hash(const lk_cuda_exchange *x, uint8_t bytes[LK_SHA256_BYTES]) {
    lk_cuda_exchange own = *x;
    lk_sha256 hash;
    lk_sha256_start(&hash);
    for (uint32_t k = 0; k < lk_exchange_programs(x->program); k++) {
        lk_cuda_exchange_use(&own, lk_exchange_program(x->program, k));
        for (uint32_t b = 0; b < own.bucket_count; b++) {
            lk_sha256_add_u32(&hash, own.buckets[b].after_op);
        }
        each_of_step(&own, leaves_of(own.program, false), hash_message, &hash);
        each_of_step(&own, leaves_of(own.program, true), hash_message, &hash);
    }
    lk_sha256_finish(&hash, bytes);
}

static void count_message(void *context, const lk_cuda_message *m) {
    *(uint64_t *)context += (m->end - m->begin) * sizeof(float);
}

uint64_t lk_cuda_exchange_bytes(const lk_cuda_exchange *x) {
    uint64_t bytes = 0;
    for (uint32_t b = 0; b < x->bucket_count; b++) {
        lk_cuda_messages(x, LK_CUDA_NODES, b, x->program->grains, count_message, &bytes);
        lk_cuda_messages(x, LK_CUDA_SUMS, b, x->program->grains, count_message, &bytes);
    }
    return bytes;
}
