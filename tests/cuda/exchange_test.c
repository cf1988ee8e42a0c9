// exchange_test.c - what GPUs send each other (comm/cuda/exchange.h) against the boxes of
// comm/step/exchange.h: every float once, no bucket before its gradients, and a hash that tells
// schedules apart.
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comm/cuda/exchange.h"
#include "tests/ops/layers.h"

#define DENSE(n, count)                                                             \
    {                                                                               \
        .type = &lk_layer_dense, .name = n, .units = count, .use_bias = true,       \
        .activation = &lk_layer_relu, .initializer = &lk_initializer_glorot_uniform \
    }

static const lk_layer layers[] = {FLATTEN, DENSE("a", 33), DENSE("b", 5), DENSE("c", 7),
                                  DENSE("d", 10)};

typedef struct subject {
    lk_run_spec spec;
    lk_program program;
    lk_cuda_exchange x;
    void *tables;
} subject;

// 61 grains of 4 examples, a last step of 41 examples; `replicas` over `gpus`.
static void make(subject *s, uint32_t gpus, uint32_t replicas, uint64_t bucket_floats) {
    lk_error error = {.status = LK_OK};
    const lk_layout layout = {.replicas = replicas, .device = true};
    const lk_plan_options options = {.overlay = true};
    const lk_worker all = {.replicas = replicas};
    memset(s, 0, sizeof *s);
    s->spec = (lk_run_spec){.model = {.in_h = 3, .in_w = 5, .in_c = 1,
                                      .classes = 10,
                                      .layer_count = LK_COUNT(layers), .layers = layers},
                            .seed = 1,
                            .global_batch = 244,
                            .optimizer = {.type = &lk_optimizer_sgd, .learning_rate = 0.1f},
                            .grain = 4,
                            .example_count = 2 * 244 + 41};
    s->tables = aligned_alloc(64, lk_round_up(lk_program_bytes(&s->spec.model), 64));
    assert_non_null(s->tables);
    lk_status status =
        lk_program_build(&s->spec, &layout, &options, s->tables, &s->program, &error);
    if (status != LK_OK) fail_msg("%s", error.text);
    s->x.program = &s->program;
    s->x.peers = gpus;
    for (uint32_t i = 0; i < gpus; i++) s->x.list[i] = lk_cuda_share(&all, gpus, i);
    lk_cuda_exchange_plan(&s->x, bucket_floats);
}

// --- buckets -----------------------------------------------------------------------------------

static void check_buckets(const subject *s, uint64_t bucket_floats) {
    const lk_program *p = &s->program;
    uint64_t at = p->node_floats;
    for (uint32_t b = 0; b < s->x.bucket_count; b++) {
        const lk_cuda_bucket *bucket = &s->x.buckets[b];
        assert_int_equal(bucket->end, at);
        assert_true(bucket->begin < bucket->end);
        assert_true(b + 1 == s->x.bucket_count || bucket->end - bucket->begin >= bucket_floats);
        assert_true(b == 0 || bucket->after_op >= s->x.buckets[b - 1].after_op);
        for (uint32_t i = 0; i < p->param_count; i++) {
            const uint64_t first = p->params[i].node_offset, end = first + p->params[i].count;
            if (end <= bucket->begin || first >= bucket->end) continue;
            assert_true(first >= bucket->begin && end <= bucket->end);
            assert_true(p->params[i].gradient_op <= bucket->after_op);
        }
        at = bucket->begin;
    }
    assert_int_equal(at, 0);
    assert_true(s->x.buckets[s->x.bucket_count - 1].after_op < p->reduce_op);
}

static void buckets_are_whole_layers(void **state) {
    (void)state;
    static const struct {
        uint64_t floats;
        uint32_t count;
    } cases[] = {{1, 4}, {64, 4}, {100, 3}, {300, 2}, {1 << 20, 1}};
    for (uint32_t i = 0; i < LK_COUNT(cases); i++) {
        subject s;
        make(&s, 2, 2, cases[i].floats);
        check_buckets(&s, cases[i].floats);
        assert_int_equal(s.x.bucket_count, cases[i].count);
        free(s.tables);
    }
}

// --- messages ----------------------------------------------------------------------------------

typedef struct sums {
    const subject *s;
    uint64_t floats[2][8][8];  // of nodes and of sums, from one GPU to another
    uint32_t reports;
    lk_cuda_message last;
} sums;

static void add_message(void *context, const lk_cuda_message *m) {
    sums *sum = context;
    assert_true(m->from != m->to);
    if (m->kind == LK_CUDA_REPORTS) {
        sum->reports++;
        return;
    }
    const lk_cuda_bucket *bucket = &sum->s->x.buckets[m->bucket];
    const uint32_t owner = m->kind == LK_CUDA_NODES ? m->to : m->from;
    const lk_partition partition = lk_cuda_partition(&sum->s->x, owner);
    assert_true(m->begin < m->end && m->begin >= bucket->begin && m->end <= bucket->end);
    assert_true(m->begin >= partition.begin && m->end <= partition.end);
    sum->floats[m->kind == LK_CUDA_SUMS][m->from][m->to] += m->end - m->begin;
}

// In a full step the parts of a box are the box of comm/step/exchange.h, and the loss.
static void check_messages(const subject *s) {
    static sums sum;
    const lk_program *p = &s->program;
    sum = (sums){.s = s};
    for (uint32_t b = 0; b < s->x.bucket_count; b++) {
        for (int kind = LK_CUDA_NODES; kind <= LK_CUDA_REPORTS; kind++) {
            lk_cuda_messages(&s->x, (lk_cuda_message_kind)kind, b, p->grains, add_message, &sum);
        }
    }
    assert_int_equal(sum.reports, s->x.bucket_count * s->x.peers * (s->x.peers - 1));
    uint64_t bytes = 0;
    for (uint32_t from = 0; from < s->x.peers; from++) {
        const lk_partition own = lk_cuda_partition(&s->x, from);
        for (uint32_t to = 0; to < s->x.peers; to++) {
            if (from == to) continue;
            lk_counter blocks;
            lk_exchange_blocks(p, &s->x.list[from], p->grains, p->grains, &blocks);
            const lk_partition partition = lk_cuda_partition(&s->x, to);
            assert_int_equal(sum.floats[0][from][to],
                             blocks.count * (partition.end - partition.begin));
            assert_true(blocks.count <= lk_exchange_slots(p, &s->x.list[from]));
            assert_int_equal(sum.floats[1][from][to], own.end - own.begin);
            bytes += (sum.floats[0][from][to] + sum.floats[1][from][to]) * sizeof(float);
        }
    }
    assert_int_equal(lk_cuda_exchange_bytes(&s->x), bytes);
}

static void every_float_is_sent_once(void **state) {
    (void)state;
    for (uint32_t gpus = 1; gpus <= 8; gpus++) {
        for (uint32_t replicas = gpus; replicas <= 61; replicas += 7) {
            for (uint64_t floats = 1; floats <= 1000; floats *= 10) {
                subject s;
                make(&s, gpus, replicas, floats);
                check_buckets(&s, floats);
                check_messages(&s);
                free(s.tables);
            }
        }
    }
}

// --- the hash ------------------------------------------------------------------------------------

static void hash_of(uint32_t gpus, uint32_t replicas, uint64_t floats,
                    uint8_t hash[LK_SHA256_BYTES]) {
    subject s;
    make(&s, gpus, replicas, floats);
    lk_cuda_schedule_hash(&s.x, hash);
    free(s.tables);
}

static void the_hash_tells_schedules_apart(void **state) {
    (void)state;
    static const uint32_t cases[][3] = {{4, 4, 1}, {4, 4, 300}, {4, 8, 1}, {4, 5, 1}, {3, 4, 1}};
    uint8_t first[LK_SHA256_BYTES], hash[LK_SHA256_BYTES];
    for (uint32_t i = 0; i < LK_COUNT(cases); i++) {
        for (uint32_t k = 0; k < LK_COUNT(cases); k++) {
            hash_of(cases[i][0], cases[i][1], cases[i][2], first);
            hash_of(cases[k][0], cases[k][1], cases[k][2], hash);
            // 8 replicas on 4 GPUs have the whole nodes of 4.
            const bool same = i == k || (i + k == 2 && i != k && i != 1);
            assert_int_equal(memcmp(first, hash, sizeof hash) == 0, same);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_are_whole_layers),
        cmocka_unit_test(every_float_is_sent_once),
        cmocka_unit_test(the_hash_tells_schedules_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
