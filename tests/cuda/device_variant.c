// device_variant.c - the GPU's launches as a table of kernels, so that the tests of the CPU's
// kernels (tests/ops/) test them too: operands are copied to the device, each into an allocation of
// its exact size, and results back.
//
// Stands in for ops/variant.c: the device is the only variant there is. Compiled with LK_BY_TASKS,
// launches that have bodies are tasks of the persistent kernel (ops/cuda/tasks.h), and what they
// say that they read and write is held against what there is.
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <cuda_runtime_api.h>

#include "ops/cuda/mixed.h"
#include "ops/cuda/table.h"
#include "ops/cuda/tasks.h"
#include "ops/layers/decode.h"
#include "ops/variant.h"

#ifndef LK_BY_TASKS
#define LK_BY_TASKS 0
#endif
enum { OP = 7, HELD_MAX = 24, BY_TASKS = LK_BY_TASKS };

// --- one call ------------------------------------------------------------------------------------

static struct {
    void *at[HELD_MAX];
    uint64_t bytes[HELD_MAX];
    uint32_t count;
    lk_cuda_state *state;
    lk_cuda_tasks tasks;
    bool more;  // there may be what the call does not touch
} held;

static void must(int error) {
    if (error == cudaSuccess) return;
    fprintf(stderr, "device: %s\n", cudaGetErrorString((cudaError_t)error));
    abort();
}

static void *space(uint64_t bytes) {
    void *at;
    must(cudaMalloc(&at, bytes ? bytes : 1));
    held.bytes[held.count] = bytes;
    held.at[held.count++] = at;
    return at;
}

static void *there(const void *from, uint64_t bytes) {
    if (!from) return NULL;
    void *at = space(bytes);
    must(cudaMemcpy(at, from, bytes, cudaMemcpyHostToDevice));
    return at;
}

static float *floats_there(const float *from, uint64_t count) {
    return there(from, count * sizeof *from);
}

static void back(void *to, const void *from, uint64_t bytes) {
    if (bytes > 0) must(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
}

static lk_cuda_stream begin(uint64_t scratch_floats) {
    const lk_cuda_state fresh = {.bad_op = UINT32_MAX, .bad_param = UINT32_MAX};
    static bool prepared;
    if (!prepared) must(lk_cuda_prepare());
    prepared = true;
    held.count = 0;
    held.more = false;
    held.state = there(&fresh, sizeof fresh);
    float *scratch = scratch_floats > 0 ? space(scratch_floats * sizeof(float)) : NULL;
    return (lk_cuda_stream){.state = held.state, .scratch = scratch, .op = OP};
}

// .. of a call whose launches all have bodies.
static lk_cuda_stream begin_tasks(uint64_t scratch_floats) {
    lk_cuda_stream s = begin(scratch_floats);
    lk_cuda_tasks_open(&held.tasks);
    if (BY_TASKS) s.tasks = &held.tasks;
    return s;
}

// The allocation that a span is of: it begins there, and ends with it, but for the last word.
static uint32_t held_by(const lk_cuda_span *span) {
    for (uint32_t i = 0; i < held.count; i++) {
        if (held.at[i] == span->from && lk_round_up(held.bytes[i], sizeof(float)) == span->bytes) {
            return i;
        }
    }
    return UINT32_MAX;
}

// Whatever the call has there is named by a task, as a whole, and nothing else is. The scratch, of
// which a call may take less, is the second of all, the state the first.
static void check_spans(const lk_cuda_stream *s) {
    bool named[HELD_MAX] = {false};
    for (uint32_t i = 0; i < held.tasks.count; i++) {
        const lk_cuda_spans *spans = &held.tasks.kept[i].spans;
        if (spans->count == 0 || held.tasks.kept[i].body == LK_CUDA_BODY_LOAD) return;
        for (uint32_t k = 0; k < spans->count; k++) {
            if (spans->span[k].from == s->scratch) continue;
            const uint32_t which = held_by(&spans->span[k]);
            assert_true(which < held.count);
            named[which] = true;
        }
    }
    for (uint32_t i = s->scratch ? 2 : 1; i < held.count && !held.more; i++) {
        assert_true(named[i] || held.bytes[i] == 0);
    }
}

// The tasks of a call, as a step that has no others.
static void run_tasks(const lk_cuda_stream *s) {
    const uint64_t bytes = lk_cuda_tasks_bytes(&held.tasks);
    uint8_t *table = malloc(bytes);
    lk_cuda_stream launch = {.stream = s->stream};
    uint32_t blocks;
    assert_null(held.tasks.refused);
    check_spans(s);
    lk_cuda_tasks_write(&held.tasks, table);
    lk_cuda_meeting *meeting = space(sizeof *meeting);
    must(cudaMemset(meeting, 0, sizeof *meeting));
    must(lk_cuda_persistent_blocks(1, &blocks));
    lk_cuda_persistent_launch(&launch, there(table, bytes), bytes, meeting, blocks, 1);
    must(launch.error);
    free(table);
    lk_cuda_tasks_open(&held.tasks);
}

// Waits, and gives the state that the kernels left.
static lk_cuda_state wait_for(const lk_cuda_stream *s) {
    lk_cuda_state state;
    must(s->error);
    if (s->tasks && s->tasks->count > 0) run_tasks(s);
    must(cudaDeviceSynchronize());
    back(&state, s->state, sizeof state);
    return state;
}

// Of the next call: as small matrices on a large device, or large ones on a small device.
static void draw_blocks_wanted(void) {
    static const uint32_t wanted[] = {1, 2, 5, 264, 30, 1, 100};
    static uint32_t calls;
    lk_cuda_blocks_wanted = wanted[calls++ % LK_COUNT(wanted)];
}

static uint32_t end(const lk_cuda_stream *s) {
    lk_cuda_state state = wait_for(s);
    draw_blocks_wanted();
    for (uint32_t i = 0; i < held.count; i++) must(cudaFree(held.at[i]));
    held.count = 0;
    return state.bad_op == OP || state.bad_param != UINT32_MAX;
}

// --- the table -----------------------------------------------------------------------------------

// Examples of `bytes` each, behind LOAD_BEFORE others of the batch, and labels that say which.
enum { LOAD_BEFORE = 2 };
typedef struct load_shape {
    uint32_t count, bytes;
} load_shape;

static void load_examples(lk_cuda_stream *s, const lk_cuda_source *source, load_shape l,
                          float *dst) {
    enum { BATCH = 7 };
    const lk_cuda_state state = {.batch = BATCH, .bad_op = UINT32_MAX, .bad_param = UINT32_MAX};
    must(cudaMemcpy(s->state, &state, sizeof state, cudaMemcpyHostToDevice));
    float *x = space((uint64_t)l.count * l.bytes * sizeof *x);
    uint32_t *got = space(l.count * sizeof *got), *labels = calloc(l.count, sizeof *labels);
    lk_cuda_load(s, source, LOAD_BEFORE - source->first_example, l.count, l.bytes, x, got);
    wait_for(s);
    back(dst, x, (uint64_t)l.count * l.bytes * sizeof *x);
    back(labels, got, l.count * sizeof *got);
    for (uint32_t i = 0; i < l.count; i++) assert_int_equal(labels[i], i);
    free(labels);
}

// In the second slot of a ring.
static void load_streamed(load_shape l, const uint8_t *src, float *dst) {
    enum { SLOTS = 3 };
    lk_cuda_stream s = begin_tasks(0);
    const uint32_t slot = l.count + LOAD_BEFORE, all = slot * SLOTS;
    uint8_t *images = calloc(all, l.bytes);
    uint32_t *labels = calloc(all, sizeof *labels);
    memcpy(images + (slot + LOAD_BEFORE) * l.bytes, src, (uint64_t)l.count * l.bytes);
    for (uint32_t i = 0; i < l.count; i++) labels[slot + LOAD_BEFORE + i] = i;
    const lk_cuda_source source = {.images = there(images, (uint64_t)all * l.bytes),
                                   .labels = there(labels, all * sizeof *labels),
                                   .slots = SLOTS,
                                   .slot_examples = slot,
                                   .label_row = 1};
    load_examples(&s, &source, l, dst);
    end(&s);
    free(images), free(labels);
}

// Out of a set that is there, in its order of epoch 3, from its second batch; of two shards, or of
// the whole.
static void load_resident(load_shape l, bool sharded, const uint8_t *src, float *dst) {
    enum { EPOCH = 3, EPOCH_BATCHES = 2, FIRST = 1 };
    lk_cuda_stream s = begin_tasks(0);
    const uint32_t batch = (l.count + LOAD_BEFORE + 1) / 2 * 2, all = EPOCH_BATCHES * batch;
    const uint64_t shard_first[] = {0, batch, all};
    lk_example_order order = {.seed = l.count,
                              .example_count = all,
                              .shard_first = shard_first,
                              .global_batch = batch,
                              .shards = sharded ? 2 : 0};
    uint8_t *images = calloc(all, l.bytes);
    uint32_t *labels = calloc(all, sizeof *labels);
    for (uint32_t i = 0; i < l.count; i++) {
        const uint64_t at = lk_order_at(&order, EPOCH, batch + LOAD_BEFORE + i);
        memcpy(images + at * l.bytes, src + (uint64_t)i * l.bytes, l.bytes);
        labels[at] = i;
    }
    order.shard_first = there(shard_first, sizeof shard_first);
    const lk_cuda_source source = {.images = there(images, (uint64_t)all * l.bytes),
                                   .labels = there(labels, all * sizeof *labels),
                                   .resident = true,
                                   .order = order,
                                   .epoch_batches = EPOCH_BATCHES,
                                   .first_example = FIRST,
                                   .label_row = 1};
    load_examples(&s, &source, l, dst);
    end(&s);
    free(images), free(labels);
}

// Small examples, of which a block takes several, and large ones, which take several blocks.
static void load_u8(uint64_t count, const uint8_t *src, float *dst) {
    load_shape l = {(uint32_t)count, 1};
    if (count == 0) return;
    if (count % 3 == 0) l = (load_shape){(uint32_t)count / 3, 3};
    if (count >= 2048) l = (load_shape){1, (uint32_t)count};
    if (count % 2 == 0) load_streamed(l, src, dst);
    if (count % 2 == 1) load_resident(l, count % 4 == 1, src, dst);
}

static uint32_t dense_forward(const lk_dense *d, uint32_t m_count, const float *x, const float *w,
                              const float *bias, float *y, float *scratch) {
    (void)scratch;
    uint64_t out = (uint64_t)m_count * d->n_count;
    lk_cuda_stream s = begin_tasks(lk_cuda_dense_scratch_floats(d, 1, m_count));
    float *to = space(out * sizeof *to);
    lk_cuda_dense_forward(&s, d, m_count, floats_there(x, (uint64_t)m_count * d->k_count),
                          floats_there(w, (uint64_t)d->k_count * d->n_count),
                          floats_there(bias, d->n_count), to);
    wait_for(&s);
    back(y, to, out * sizeof *to);
    return end(&s);
}

static uint32_t dense_input_gradient(const lk_dense *d, uint32_t m_count, const float *w,
                                     const float *dy, const float *mask, float *dx,
                                     float *scratch) {
    (void)scratch;
    uint64_t out = (uint64_t)m_count * d->k_count;
    lk_cuda_stream s = begin_tasks(lk_cuda_dense_scratch_floats(d, 1, m_count));
    float *to = space(out * sizeof *to);
    lk_cuda_dense_input_gradient(&s, d, m_count, floats_there(w, (uint64_t)d->k_count * d->n_count),
                                 floats_there(dy, (uint64_t)m_count * d->n_count),
                                 floats_there(mask, out), to);
    wait_for(&s);
    back(dx, to, out * sizeof *to);
    return end(&s);
}

// The grains of the views one after another, as they lie on a device.
static lk_cuda_grains grains_there(uint32_t count, const lk_grain_view *views, uint64_t x_floats,
                                   uint64_t dy_floats) {
    uint64_t examples = 0, at = 0;
    for (uint32_t g = 0; g < count; g++) examples += views[g].examples;
    float *x = malloc(examples * x_floats * sizeof *x + 1);
    float *dy = malloc(examples * dy_floats * sizeof *dy + 1);
    uint8_t *argmax = malloc(examples * dy_floats + 1);
    for (uint32_t g = 0; g < count; at += views[g++].examples) {
        uint64_t n = views[g].examples;
        if (x_floats) memcpy(x + at * x_floats, views[g].x, n * x_floats * sizeof *x);
        memcpy(dy + at * dy_floats, views[g].dy, n * dy_floats * sizeof *dy);
        if (views[0].argmax) memcpy(argmax + at * dy_floats, views[g].argmax, n * dy_floats);
    }
    lk_cuda_grains grains = {.x = x_floats ? floats_there(x, examples * x_floats) : NULL,
                             .dy = floats_there(dy, examples * dy_floats),
                             .argmax = views[0].argmax ? there(argmax, examples * dy_floats) : NULL,
                             .grain = views[0].examples,
                             .examples = (uint32_t)examples};
    free(x), free(dy), free(argmax);
    return grains;
}

static uint32_t examples_of(uint32_t count, const lk_grain_view *views) {
    uint32_t examples = 0;
    for (uint32_t g = 0; g < count; g++) examples += views[g].examples;
    return examples;
}

static void dense_weight_gradient(const lk_dense *d, uint32_t grain_count,
                                  const lk_grain_view *views, const lk_weight_rows *rows, float *dw,
                                  float *scratch) {
    (void)scratch;
    uint32_t grain = views[0].examples, examples = examples_of(grain_count, views);
    uint64_t out = (uint64_t)d->k_count * d->n_count;
    lk_cuda_stream s = begin_tasks(lk_cuda_dense_scratch_floats(d, grain, examples));
    const lk_cuda_grains grains = grains_there(grain_count, views, d->k_count, d->n_count);
    float *to = space(out * sizeof *to);
    lk_cuda_dense_weight_gradient(&s, d, &grains, to);
    wait_for(&s);
    back(dw, to + (uint64_t)rows->first * d->n_count,
         (uint64_t)(rows->end - rows->first) * d->n_count * sizeof *to);
    end(&s);
}

static void column_sums(uint32_t n_count, uint32_t grain_count, const lk_grain_view *views,
                        float *out) {
    lk_cuda_stream s = begin_tasks(0);
    const lk_cuda_grains grains = grains_there(grain_count, views, 0, n_count);
    float *to = space(n_count * sizeof *to);
    lk_cuda_column_sums(&s, n_count, &grains, to);
    wait_for(&s);
    back(out, to, n_count * sizeof *to);
    end(&s);
}

static uint32_t conv2d_forward(const lk_conv2d *c, uint32_t m_count, const float *x, const float *w,
                               const float *bias, float *y, float *scratch) {
    (void)scratch;
    uint64_t out = m_count * lk_conv2d_out_floats(c);
    lk_cuda_stream s = begin_tasks(lk_cuda_conv2d_scratch_floats(c, 1, m_count));
    float *to = space(out * sizeof *to);
    lk_cuda_conv2d_forward(&s, c, m_count, floats_there(x, m_count * lk_conv2d_in_floats(c)),
                           floats_there(w, lk_conv2d_weight_floats(c)),
                           floats_there(bias, c->out_c), to);
    wait_for(&s);
    back(y, to, out * sizeof *to);
    return end(&s);
}

static uint32_t conv2d_pool_forward(const lk_conv2d *c, uint32_t m_count, const float *x,
                                    const float *w, const float *bias, float *y, uint8_t *argmax,
                                    lk_ahead *ahead, float *scratch) {
    (void)ahead, (void)scratch;
    uint64_t out = m_count * lk_conv2d_pooled_floats(c);
    lk_cuda_stream s = begin_tasks(lk_cuda_conv2d_scratch_floats(c, 1, m_count));
    float *to = space(out * sizeof *to);
    uint8_t *winners = space(out);
    lk_cuda_conv2d_pool_forward(&s, c, m_count, floats_there(x, m_count * lk_conv2d_in_floats(c)),
                                floats_there(w, lk_conv2d_weight_floats(c)),
                                floats_there(bias, c->out_c), to, winners);
    wait_for(&s);
    back(y, to, out * sizeof *to);
    back(argmax, winners, out);
    return end(&s);
}

static uint32_t conv2d_input_gradient(const lk_conv2d *c, uint32_t m_count, const float *w,
                                      const float *dy, const float *mask, float *dx,
                                      float *scratch) {
    (void)scratch;
    uint64_t out = m_count * lk_conv2d_in_floats(c);
    lk_cuda_stream s = begin_tasks(lk_cuda_conv2d_scratch_floats(c, 1, m_count));
    float *to = space(out * sizeof *to);
    lk_cuda_conv2d_input_gradient(&s, c, m_count, floats_there(w, lk_conv2d_weight_floats(c)),
                                  floats_there(dy, m_count * lk_conv2d_out_floats(c)),
                                  floats_there(mask, out), to);
    wait_for(&s);
    back(dx, to, out * sizeof *to);
    return end(&s);
}

static uint32_t conv2d_transpose_forward(const lk_conv2d *c, uint32_t m_count, const float *x,
                                         const float *w, const float *bias, float *y,
                                         float *scratch) {
    (void)scratch;
    uint64_t out = m_count * lk_conv2d_in_floats(c);
    lk_cuda_stream s = begin_tasks(lk_cuda_conv2d_scratch_floats(c, 1, m_count));
    float *to = space(out * sizeof *to);
    lk_cuda_conv2d_transpose_forward(&s, c, m_count,
                                     floats_there(x, m_count * lk_conv2d_out_floats(c)),
                                     floats_there(w, lk_conv2d_weight_floats(c)),
                                     bias ? floats_there(bias, c->in_c) : NULL, to);
    wait_for(&s);
    back(y, to, out * sizeof *to);
    return end(&s);
}

static uint32_t conv2d_pool_input_gradient(const lk_conv2d *c, uint32_t m_count, const float *w,
                                           const float *dy, const uint8_t *argmax,
                                           const float *mask, float *dx, float *scratch) {
    (void)scratch;
    uint64_t out = m_count * lk_conv2d_in_floats(c), pooled = m_count * lk_conv2d_pooled_floats(c);
    lk_cuda_stream s = begin_tasks(lk_cuda_conv2d_scratch_floats(c, 1, m_count));
    float *to = space(out * sizeof *to);
    lk_cuda_conv2d_pool_input_gradient(&s, c, m_count, floats_there(w, lk_conv2d_weight_floats(c)),
                                       floats_there(dy, pooled), there(argmax, pooled),
                                       floats_there(mask, out), to);
    wait_for(&s);
    back(dx, to, out * sizeof *to);
    return end(&s);
}

// A node's zeros have no sign; the tests compare those of the convolution with +0.
static void without_sign(uint64_t count, float *v) {
    for (uint64_t i = 0; i < count; i++) v[i] += 0.0f;
}

static void weight_gradient(const lk_conv2d *c, uint32_t grain_count, const lk_grain_view *views,
                            bool pooled, float *dw, float *db) {
    uint32_t grain = views[0].examples, examples = examples_of(grain_count, views);
    uint64_t out = lk_conv2d_weight_floats(c);
    lk_cuda_stream s = begin_tasks(lk_cuda_conv2d_scratch_floats(c, grain, examples));
    const lk_cuda_grains grains =
        grains_there(grain_count, views, lk_conv2d_in_floats(c),
                     pooled ? lk_conv2d_pooled_floats(c) : lk_conv2d_out_floats(c));
    float *to = space(out * sizeof *to), *to_bias = db ? space(c->out_c * sizeof *to) : NULL;
    if (pooled)
        lk_cuda_conv2d_pool_weight_gradient(&s, c, &grains, to, to_bias);
    else
        lk_cuda_conv2d_weight_gradient(&s, c, &grains, to, to_bias);
    wait_for(&s);
    back(dw, to, out * sizeof *to);
    without_sign(out, dw);
    if (db) back(db, to_bias, c->out_c * sizeof *to), without_sign(c->out_c, db);
    end(&s);
}

static void conv2d_bias_gradient(const lk_conv2d *c, const lk_half *half, uint32_t grain_count,
                                 const lk_grain_view *views, float *db, float *scratch) {
    (void)half, (void)scratch;
    uint32_t grain = views[0].examples, examples = examples_of(grain_count, views);
    lk_cuda_stream s = begin_tasks(lk_cuda_conv2d_bias_scratch_floats(c, grain, examples));
    const lk_cuda_grains grains = grains_there(grain_count, views, 0, lk_conv2d_out_floats(c));
    float *to = space(c->out_c * sizeof *to);
    lk_cuda_conv2d_bias_gradient(&s, c, &grains, to);
    wait_for(&s);
    back(db, to, c->out_c * sizeof *to);
    without_sign(c->out_c, db);
    end(&s);
}

static void conv2d_weight_gradient(const lk_conv2d *c, const lk_half *half, uint32_t grain_count,
                                   const lk_grain_view *views, float *dw, float *db,
                                   float *scratch) {
    (void)half, (void)scratch;
    weight_gradient(c, grain_count, views, false, dw, db);
}

static void conv2d_pool_weight_gradient(const lk_conv2d *c, const lk_half *half,
                                        uint32_t grain_count, const lk_grain_view *views, float *dw,
                                        float *db, float *scratch) {
    (void)half, (void)scratch;
    weight_gradient(c, grain_count, views, true, dw, db);
}

static void max_pool_forward(const lk_pool2d *p, uint32_t m_count, const float *x, float *y,
                             uint16_t *argmax) {
    uint64_t in = (uint64_t)m_count * p->in_h * p->in_w * p->channels;
    uint64_t out = (uint64_t)m_count * p->out_h * p->out_w * p->channels;
    lk_cuda_stream s = begin_tasks(0);
    float *to = space(out * sizeof *to);
    uint16_t *winners = space(out * sizeof *winners);
    lk_cuda_max_pool_forward(&s, p, m_count, floats_there(x, in), to, winners);
    wait_for(&s);
    back(y, to, out * sizeof *to);
    back(argmax, winners, out * sizeof *winners);
    end(&s);
}

static uint32_t max_pool_backward(const lk_pool2d *p, uint32_t m_count, const float *dy,
                                  const uint16_t *argmax, float *dx) {
    uint64_t in = (uint64_t)m_count * p->in_h * p->in_w * p->channels;
    uint64_t out = (uint64_t)m_count * p->out_h * p->out_w * p->channels;
    lk_cuda_stream s = begin_tasks(0);
    float *to = space(in * sizeof *to);
    lk_cuda_max_pool_backward(&s, p, m_count, floats_there(dy, out), there(argmax, out * 2), to);
    wait_for(&s);
    back(dx, to, in * sizeof *to);
    return end(&s);
}

static void relu_forward(uint64_t count, const float *x, float *y) {
    lk_cuda_stream s = begin_tasks(0);
    float *to = space(count * sizeof *to);
    lk_cuda_relu_forward(&s, count, floats_there(x, count), to);
    wait_for(&s);
    back(y, to, count * sizeof *to);
    end(&s);
}

static void relu_backward(uint64_t count, const float *y, const float *dy, float *dx) {
    lk_cuda_stream s = begin_tasks(0);
    float *from = floats_there(dy, count);
    float *to = dy == dx ? from : space(count * sizeof *to);
    lk_cuda_relu_backward(&s, count, floats_there(y, count), from, to);
    wait_for(&s);
    back(dx, to, count * sizeof *to);
    end(&s);
}

static uint32_t softmax_cross_entropy(uint32_t m_count, uint32_t classes, float smoothing,
                                      const float *weights, const float *logits,
                                      const uint32_t *labels, float *dlogits, float *loss,
                                      uint32_t *correct) {
    uint64_t count = (uint64_t)m_count * classes;
    lk_cuda_stream s = begin_tasks(0);
    const float *weights_there = weights ? floats_there(weights, classes) : NULL;
    float *to = dlogits ? space(count * sizeof *to) : NULL, *losses = space(m_count * sizeof *to);
    lk_cuda_softmax_cross_entropy(&s, m_count, classes, smoothing, weights_there,
                                  floats_there(logits, count),
                                  there(labels, m_count * sizeof *labels), to, losses);
    *correct = wait_for(&s).counts[0];
    if (dlogits) back(dlogits, to, count * sizeof *to);
    back(loss, losses, m_count * sizeof *to);
    return end(&s);
}

static void add(uint64_t count, const float *a, const float *b, float *out) {
    lk_cuda_stream s = begin_tasks(0);
    float *to = floats_there(a, count);
    lk_cuda_add(&s, count, to, floats_there(b, count), to);
    wait_for(&s);
    back(out, to, count * sizeof *to);
    end(&s);
}

// Any op of LK_PLAIN_OP_LIST: its tensors go there, the last of them comes back.
static uint64_t role_bytes(const lk_lane *l, const lk_op *op, lk_role role) {
    const bool binary = op->type == &lk_op_binary_crossentropy;
    const uint64_t sums = op->type == &lk_op_mean || binary ? 1 : 2;
    if (binary && role == LK_X2) return l->examples * sizeof(uint32_t);
    if (role == LK_Y && op->type->scope == LK_SCOPE_LOSS) return l->examples * sums * sizeof(float);
    if (role == LK_AUX && op->type->scope == LK_SCOPE_LOSS) return l->examples * sizeof(uint32_t);
    const bool input = role == LK_X || role == LK_DX;
    if (op->type == &lk_op_concatenate || op->type == &lk_op_concatenate_gradient) {
        const uint32_t which = role == LK_X2 || (role == LK_DX && op->join.which);
        const bool whole = role == LK_Y || role == LK_DY;
        const uint64_t values = op->join.values[which] + (whole ? op->join.values[1] : 0);
        return (uint64_t)l->examples * op->join.cells * values * sizeof(float);
    }
    if (input &&
        (op->type == &lk_op_average_pool2d || op->type == &lk_op_average_pool2d_backward ||
         op->type == &lk_op_zero_padding2d || op->type == &lk_op_zero_padding2d_backward)) {
        const lk_pool2d *p = &op->pool;
        return (uint64_t)l->examples * p->in_h * p->in_w * p->channels * sizeof(float);
    }
    return l->examples * op->floats * sizeof(float);
}

static uint64_t grain_rows_bytes(const lk_op *op, uint32_t grains) {
    return (uint64_t)grains * LK_NORM_COLUMNS * op->norm.channels * sizeof(float);
}

// Batch normalisation: what is kept of grains, parameters and states go there, too; which positions
// have an example their labels say.
static uint32_t call_norm(lk_lane *l, const lk_op *op, lk_kernel kernel) {
    const bool keeps = l->train && !op->norm.frozen;
    lk_cuda_stream s = begin_tasks(
        keeps ? lk_cuda_norm_scratch_floats(&op->norm, l->grain, l->examples) : 0);
    held.more = true;
    const lk_cuda_lane device = {.stream = &s};
    lk_lane there_lane = *l;
    const uint64_t channels = op->norm.channels * sizeof(float);
    const uint64_t bytes = l->examples * op->floats * sizeof(float);
    const uint64_t kept = keeps ? grain_rows_bytes(op, lk_lane_grains(l)) : 0;
    const lk_role roles[] = {LK_X, LK_Y, LK_DY, LK_DX};
    uint32_t *labels = malloc((l->examples + 1) * sizeof *labels);
    for (uint32_t m = 0; m < l->examples; m++) {
        const uint32_t g = l->train ? m / l->grain : 0;
        const bool missing = l->train && m - g * l->grain >= lk_lane_present(l, g);
        labels[m] = missing ? LK_CUDA_NO_EXAMPLE : 0;
    }
    there_lane.device = (void *)(uintptr_t)&device;
    for (uint32_t i = 0; i < LK_COUNT(roles); i++) {
        const bool in_place = roles[i] == LK_DX && l->at[LK_DX] == l->at[LK_DY];
        there_lane.at[roles[i]] =
            in_place ? there_lane.at[LK_DY] : there(l->at[roles[i]], bytes);
    }
    there_lane.at[LK_AUX] = keeps ? there(l->at[LK_AUX], kept) : NULL;
    there_lane.at[LK_X2] = there(labels, l->examples * sizeof *labels);
    for (uint32_t i = 0; i < 2; i++) {
        there_lane.param[i] = there(l->param[i], channels);
        there_lane.state[i] = there(l->state[i], channels);
    }
    (void)kernel(&there_lane, op);
    wait_for(&s);
    if (l->at[LK_Y]) back(l->at[LK_Y], there_lane.at[LK_Y], bytes);
    if (l->at[LK_DX]) back(l->at[LK_DX], there_lane.at[LK_DX], bytes);
    if (keeps) back(l->at[LK_AUX], there_lane.at[LK_AUX], kept);
    free(labels);
    return end(&s);
}

static uint32_t call_norm_nodes(lk_lane *l, const lk_op *op, lk_kernel kernel) {
    lk_cuda_stream s = begin_tasks(0);
    const lk_cuda_lane device = {.stream = &s};
    const uint64_t row = grain_rows_bytes(op, 1), channels = op->norm.channels * sizeof(float);
    lk_lane there_lane = *l;
    uint8_t *rows = malloc(l->grain_count * row);
    for (uint32_t g = 0; g < l->grain_count; g++) memcpy(rows + g * row, l->grains[g].argmax, row);
    const lk_grain_view view = {.argmax = there(rows, l->grain_count * row)};
    there_lane.device = (void *)(uintptr_t)&device;
    there_lane.grains = &view;
    for (uint32_t i = 0; i < 2; i++) there_lane.sums[i] = there(l->sums[i], channels);
    (void)kernel(&there_lane, op);
    wait_for(&s);
    for (uint32_t i = 0; i < 2; i++) {
        if (l->sums[i]) back(l->sums[i], there_lane.sums[i], channels);
    }
    free(rows);
    return end(&s);
}

// Layer normalisation: what is kept of cells, and parameters.
static uint32_t call_layer_norm(lk_lane *l, const lk_op *op, lk_kernel kernel) {
    lk_cuda_stream s = begin_tasks(0);
    held.more = true;
    const lk_cuda_lane device = {.stream = &s};
    lk_lane there_lane = *l;
    const uint64_t cells = (uint64_t)l->examples * op->norm.h * op->norm.w;
    const uint64_t kept = 2 * cells * sizeof(float);
    const uint64_t bytes = l->examples * op->floats * sizeof(float);
    const uint64_t channels = op->norm.channels * sizeof(float);
    there_lane.device = (void *)(uintptr_t)&device;
    for (uint32_t r = 0; r < LK_ROLES; r++) {
        there_lane.at[r] = there(l->at[r], r == LK_AUX ? kept : bytes);
    }
    for (uint32_t i = 0; i < 2; i++) {
        there_lane.param[i] = there(l->param[i], channels);
        there_lane.sums[i] = there(l->sums[i], channels);
    }
    const lk_grain_view *first = l->grains;
    const lk_grain_view view = {.x = first ? there(first->x, bytes) : NULL,
                                .dy = first ? there(first->dy, bytes) : NULL,
                                .argmax = first ? there(first->argmax, kept) : NULL};
    if (first) there_lane.grains = &view;
    (void)kernel(&there_lane, op);
    wait_for(&s);
    if (l->at[LK_Y]) back(l->at[LK_Y], there_lane.at[LK_Y], bytes);
    if (l->at[LK_Y]) back(l->at[LK_AUX], there_lane.at[LK_AUX], kept);
    if (l->at[LK_DX]) back(l->at[LK_DX], there_lane.at[LK_DX], bytes);
    for (uint32_t i = 0; i < 2; i++) {
        if (l->sums[i]) back(l->sums[i], there_lane.sums[i], channels);
    }
    return end(&s);
}

// A convolution of groups: its parameters, and of a gradient its grains.
static uint32_t call_grouped(lk_lane *l, const lk_op *op, lk_kernel kernel) {
    lk_cuda_stream s = begin_tasks(0);
    const lk_cuda_lane device = {.stream = &s};
    const lk_conv2d *c = &op->conv;
    const uint64_t in = lk_conv2d_in_floats(c), out = lk_conv2d_out_floats(c);
    const uint64_t weights = lk_grouped_weight_floats(&op->grouped), biases = c->out_c;
    const lk_role roles[] = {LK_X, LK_DX, LK_Y, LK_DY};
    lk_lane there_lane = *l;
    lk_grain_view view;
    there_lane.device = (void *)(uintptr_t)&device;
    for (uint32_t i = 0; i < LK_COUNT(roles); i++) {
        there_lane.at[roles[i]] = floats_there(l->at[roles[i]], l->examples * (i < 2 ? in : out));
    }
    there_lane.param[0] = floats_there(l->param[0], weights);
    there_lane.param[1] = floats_there(l->param[1], biases);
    there_lane.sums[0] = floats_there(l->sums[0], weights);
    there_lane.sums[1] = floats_there(l->sums[1], biases);
    if (l->grain_count > 0) {
        const lk_cuda_grains grains = grains_there(l->grain_count, l->grains, in, out);
        view = (lk_grain_view){.x = grains.x, .dy = grains.dy};
        there_lane.grains = &view;
        there_lane.grain = grains.grain;
        there_lane.examples = grains.examples;
    }
    (void)kernel(&there_lane, op);
    wait_for(&s);
    if (l->at[LK_Y]) back(l->at[LK_Y], there_lane.at[LK_Y], l->examples * out * sizeof(float));
    if (l->at[LK_DX]) back(l->at[LK_DX], there_lane.at[LK_DX], l->examples * in * sizeof(float));
    if (l->sums[0]) back(l->sums[0], there_lane.sums[0], weights * sizeof(float));
    if (l->sums[1]) back(l->sums[1], there_lane.sums[1], biases * sizeof(float));
    return end(&s);
}

// Layers over sequences, as the device's table has them; the views of grains count rows. This is
// how many floats the tensor of a role has.
static uint64_t sequence_floats(const lk_lane *l, const lk_op *op, uint32_t role) {
    const lk_dense *d = &op->sequence.dense;
    const uint64_t rows = (uint64_t)l->examples * op->sequence.steps, units = d->k_count;
    const uint64_t columns = d->n_count / units + 1;  // of what a recurrent layer keeps
    const bool dense = op->type == &lk_op_sequence_dense ||
                       op->type == &lk_op_sequence_dense_input_gradient;
    const bool input = role == LK_X || role == LK_DX || role == LK_MASK;
    if (dense) return rows * (input ? units : d->n_count);
    if (role == LK_X || role == LK_DX || role == LK_DX2) return rows * d->n_count;
    if (role == LK_AUX) return rows * columns * units;
    if (role == LK_X2) return rows * units;
    return (op->sequence.every ? rows : l->examples) * units;
}

static void sequence_params(const lk_dense *d, float *const from[2], float *to[2]) {
    to[0] = floats_there(from[0], (uint64_t)d->k_count * d->n_count);
    to[1] = floats_there(from[1], d->n_count);
}

static uint32_t call_sequence(lk_lane *l, const lk_op *op) {
    const bool sums = op->type->scope == LK_SCOPE_GRAINS;
    const uint32_t grain = sums ? l->grains[0].examples / op->sequence.steps : 1;
    const uint32_t rows = sums ? examples_of(l->grain_count, l->grains) : 0;
    const uint32_t examples = sums ? rows / op->sequence.steps : l->examples;
    lk_cuda_stream s = begin(lk_cuda_op_scratch_floats(op, grain, examples, NULL));
    const lk_cuda_lane device = {.stream = &s};
    const lk_dense *d = &op->sequence.dense;
    lk_lane there_lane = *l;
    lk_grain_view view;
    there_lane.device = (void *)(uintptr_t)&device;
    for (uint32_t r = 0; r < LK_SCRATCH; r++) {
        there_lane.at[r] = floats_there(l->at[r], sums ? 0 : sequence_floats(l, op, r));
    }
    sequence_params(d, l->param, there_lane.param);
    sequence_params(d, l->sums, there_lane.sums);
    if (sums) {
        const lk_cuda_grains grains =
            grains_there(l->grain_count, l->grains, d->k_count, d->n_count);
        view = (lk_grain_view){.x = grains.x, .dy = grains.dy};
        there_lane.grains = &view;
        there_lane.grain = grains.grain;
        there_lane.examples = grains.examples;
    }
    (void)lk_kernels_cuda.kernel[op->type->number](&there_lane, op);
    wait_for(&s);
    for (uint32_t r = 0; r < LK_SCRATCH; r++) {
        const bool out = l->at[r] && r != LK_X && r != LK_DY && r != LK_MASK;
        const bool second = r == LK_DX2 && l->at[r] && l->at[LK_X2];
        if (out || second) back(l->at[r], there_lane.at[r], sequence_floats(l, op, r) * 4);
    }
    for (uint32_t i = 0; i < 2; i++) {
        const uint64_t floats = i ? d->n_count : (uint64_t)d->k_count * d->n_count;
        if (l->sums[i]) back(l->sums[i], there_lane.sums[i], floats * sizeof(float));
    }
    return end(&s);
}

// A transducer's ops: their roles in values of an example.
static uint64_t transducer_floats(const lk_op *op, uint32_t role) {
    const lk_joint *j = &op->joint;
    const uint64_t cells = 2ull * lk_joint_cells(j), rows = j->labels + 1, k = j->dense.k_count;
    const bool loss = op->type == &lk_op_transducer;
    if (op->type == &lk_op_label_embedding || op->type == &lk_op_label_embedding_gradient) {
        return rows * (role == LK_LABELS ? 1 : j->dense.n_count);
    }
    if (role == LK_LABELS || (loss && role == LK_X2)) return rows;
    if (op->type == &lk_op_decode && role == LK_Y) return rows;
    if (op->type == &lk_op_decode && role == LK_AUX) return LK_DECODING_WORDS;
    if (loss) return role == LK_Y ? 1 : cells;
    if (role == LK_X || role == LK_DX) return j->frames * k;
    return role == LK_X2 || role == LK_DX2 ? rows * k : cells;
}

static uint32_t call_transducer(lk_lane *l, const lk_op *op) {
    const lk_role roles[] = {LK_X, LK_X2, LK_Y, LK_AUX, LK_DY, LK_DX, LK_DX2, LK_LABELS};
    const bool sums = op->type->scope == LK_SCOPE_GRAINS;
    const uint32_t examples = sums ? examples_of(l->grain_count, l->grains) : l->examples;
    lk_cuda_stream s = begin(lk_cuda_op_scratch_floats(op, op->joint.grain, examples, NULL));
    const lk_cuda_lane device = {.stream = &s};
    lk_lane there_lane = *l;
    lk_grain_view view;
    there_lane.device = (void *)(uintptr_t)&device;
    for (uint32_t i = 0; i < LK_COUNT(roles); i++) {
        there_lane.at[roles[i]] =
            floats_there(l->at[roles[i]], examples * transducer_floats(op, roles[i]));
    }
    sequence_params(&op->joint.dense, l->param, there_lane.param);
    sequence_params(&op->joint.dense, l->sums, there_lane.sums);
    if (sums) {
        view = (lk_grain_view){.dy = there_lane.at[LK_DY]};
        there_lane.grains = &view;
        there_lane.examples = examples;
    }
    (void)lk_kernels_cuda.kernel[op->type->number](&there_lane, op);
    wait_for(&s);
    for (uint32_t i = 0; i < LK_COUNT(roles); i++) {
        const lk_role r = roles[i];
        const bool out = r == LK_Y || r == LK_DX || r == LK_DX2 || (r == LK_AUX && l->at[LK_Y]);
        const uint64_t bytes = examples * transducer_floats(op, r) * sizeof(float);
        if (l->at[r] && out) back(l->at[r], there_lane.at[r], bytes);
    }
    for (uint32_t i = 0; i < 2; i++) {
        const lk_dense *d = &op->joint.dense;
        const uint64_t floats = i ? d->n_count : (uint64_t)d->k_count * d->n_count;
        if (l->sums[i]) back(l->sums[i], there_lane.sums[i], floats * sizeof(float));
    }
    return end(&s);
}

static uint32_t call_plain(lk_lane *l, const lk_op *op, lk_kernel kernel) {
    if (op->type == &lk_op_grouped_conv2d || op->type == &lk_op_grouped_conv2d_input_gradient ||
        op->type == &lk_op_grouped_conv2d_weight_gradient) {
        return call_grouped(l, op, kernel);
    }
    if (op->type == &lk_op_layer_normalization || op->type == &lk_op_layer_normalization_gradient ||
        op->type == &lk_op_layer_normalization_input_gradient) {
        return call_layer_norm(l, op, kernel);
    }
    if (op->type->grains) return call_norm(l, op, kernel);
    if (op->type->scope == LK_SCOPE_GRAINS) return call_norm_nodes(l, op, kernel);
    lk_cuda_stream s = begin_tasks(0);
    held.more = true;
    const lk_cuda_lane device = {.stream = &s};
    lk_lane there_lane = *l;
    must(cudaMemcpy(&s.state->step, &l->step, sizeof l->step, cudaMemcpyHostToDevice));
    there_lane.device = (void *)(uintptr_t)&device;
    for (uint32_t r = 0; r < LK_ROLES; r++) {
        uint32_t same = 0;
        while (same < r && l->at[same] != l->at[r]) same++;  // in place
        there_lane.at[r] = same < r && l->at[r] ? there_lane.at[same]
                                                : there(l->at[r], role_bytes(l, op, (lk_role)r));
    }
    (void)kernel(&there_lane, op);
    l->counts[0] += wait_for(&s).counts[0];
    const bool loss = op->type->scope == LK_SCOPE_LOSS, backward = l->at[LK_DX] && !loss;
    for (uint32_t r = 0; r < LK_ROLES; r++) {
        bool out = backward ? r == LK_DX : r == LK_Y || r == LK_AUX;
        if (loss) out = r == LK_Y || r == LK_DX || r == LK_DX2;
        if (out && l->at[r]) back(l->at[r], there_lane.at[r], role_bytes(l, op, (lk_role)r));
    }
    return end(&s);
}

#define PLAIN(NUMBER, name)                                     \
    static uint32_t plain_##name(lk_lane *l, const lk_op *op) { \
        return call_plain(l, op, lk_cuda_plain_##name);         \
    }
LK_PLAIN_OP_LIST(PLAIN)
#undef PLAIN

// As two parameters of one node, the first half and, after a gap, the second.
static uint32_t apply(const lk_optimizer *o, const lk_step_scalars *scalars, uint64_t count,
                      const float *sum, float *w, float *const slots[LK_OPTIMIZER_SLOTS_MAX]) {
    enum { GAP = 5 };
    if (count == 0) return 0;
    lk_cuda_stream s = begin_tasks(0);
    uint64_t half = count / 2, rest = count - half;
    float *w_there = floats_there(w, count);
    const uint32_t slot_count = lk_optimizer_slot_count(o);
    float *slots_there[LK_OPTIMIZER_SLOTS_MAX] = {NULL};
    for (uint32_t i = 0; i < slot_count; i++) slots_there[i] = floats_there(slots[i], count);
    float *sums = malloc((count + GAP) * sizeof *sums);
    memset(sums, 0xff, (count + GAP) * sizeof *sums);
    memcpy(sums, sum, half * sizeof *sums);
    memcpy(sums + half + GAP, sum + half, rest * sizeof *sums);
    const float l2 = scalars->regularizer / 2;
    lk_cuda_param params[2] = {
        {.count = half, .w = w_there, .l2 = l2},
        {.node_offset = half + GAP, .count = rest, .w = w_there + half, .l2 = l2}};
    for (uint32_t i = 0; i < slot_count; i++) {
        params[0].slots[i] = slots_there[i];
        params[1].slots[i] = slots_there[i] + half;
    }
    const lk_cuda_node node = {floats_there(sums, count + GAP), 0};
    lk_cuda_update(&s, o, there(params, sizeof params), 2, count + GAP, there(&node, sizeof node),
                   1, (lk_cuda_metrics){NULL, 0}, (lk_cuda_norms){0},
                   (lk_cuda_scalars){there(scalars, sizeof *scalars), 1});
    wait_for(&s);
    back(w, w_there, count * sizeof *w);
    for (uint32_t i = 0; i < slot_count; i++) back(slots[i], slots_there[i], count * sizeof *w);
    free(sums);
    return end(&s);
}

// --- 16 bits -------------------------------------------------------------------------------------

// Who tests them has threads.
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

static uint32_t end_of_halves(const lk_cuda_stream *s) {
    const uint32_t bad = end(s);
    pthread_mutex_unlock(&one_at_a_time);
    return bad;
}

static void widen(lk_dtype dtype, uint64_t count, const uint16_t *src, float *dst) {
    pthread_mutex_lock(&one_at_a_time);
    lk_cuda_stream s = begin(0);
    float *to = space(count * sizeof *to);
    lk_cuda_widen(&s, dtype, count, there(src, count * sizeof *src), to);
    wait_for(&s);
    back(dst, to, count * sizeof *to);
    (void)end_of_halves(&s);
}

static uint32_t narrow(const lk_narrow *how, uint64_t count, const float *src, uint16_t *dst) {
    pthread_mutex_lock(&one_at_a_time);
    lk_cuda_stream s = begin(0);
    const lk_look all = {.heeds = true};
    lk_narrow how_there = *how;
    uint16_t *to = space(count * sizeof *to);
    how_there.mask = there(how->mask, count * sizeof *to);
    lk_cuda_narrow(&s, &how_there, &all, count, floats_there(src, count), to);
    wait_for(&s);
    back(dst, to, count * sizeof *to);
    return end_of_halves(&s);
}

static uint32_t narrow_pool(const lk_narrow *how, const lk_conv2d *c, const float *src,
                            uint16_t *dst, uint8_t *argmax) {
    pthread_mutex_lock(&one_at_a_time);
    lk_cuda_stream s = begin(0);
    const uint64_t count = lk_conv2d_pooled_floats(c);
    uint16_t *to = space(count * sizeof *to);
    uint8_t *winners = space(count);
    lk_cuda_narrow_pool(&s, how, c, 1, floats_there(src, lk_conv2d_out_floats(c)), to, winners);
    wait_for(&s);
    back(dst, to, count * sizeof *to);
    back(argmax, winners, count);
    return end_of_halves(&s);
}

// As an update that changes nothing keeps it.
static uint32_t round_floats(lk_dtype dtype, uint64_t count, const float *src, float *dst) {
    if (count == 0) return 0;
    pthread_mutex_lock(&one_at_a_time);
    const lk_optimizer *o = &(lk_optimizer){.type = &lk_optimizer_sgd};
    const lk_step_scalars scalars = {.inverse_n = 1.0f, .examples = 1};
    lk_cuda_stream s = begin_tasks(0);
    float *sums = space(count * sizeof *sums), *to = space(count * sizeof *to);
    must(cudaMemset(sums, 0, count * sizeof *sums));
    const lk_cuda_param param = {
        .count = count, .w = floats_there(src, count), .rounded = to, .dtype = dtype};
    const lk_cuda_node node = {sums, 0};
    lk_cuda_update(&s, o, there(&param, sizeof param), 1, count, there(&node, sizeof node), 1,
                   (lk_cuda_metrics){NULL, 0}, (lk_cuda_norms){0},
                   (lk_cuda_scalars){there(&scalars, sizeof scalars), 1});
    wait_for(&s);
    back(dst, to, count * sizeof *to);
    return end_of_halves(&s);
}

#define TABLE_BEST(kernel) kernel
#include "ops/cpu/calls.inc.h"

#define PLAIN(NUMBER, name) [LK_OP_##NUMBER] = plain_##name,
#define APPLY(NUMBER, name) [LK_OPTIMIZER_##NUMBER] = apply,
static const lk_kernels device = {
    .name = "device",
    .kernel = {LK_PLAIN_OP_LIST(PLAIN)  //
                   [LK_OP_DENSE] = call_dense,
               [LK_OP_DENSE_INPUT_GRADIENT] = call_dense_input_gradient,
               [LK_OP_DENSE_WEIGHT_GRADIENT] = call_dense_weight_gradient,
               [LK_OP_DENSE_BIAS_GRADIENT] = call_dense_bias_gradient, [LK_OP_CONV2D] = call_conv2d,
               [LK_OP_CONV2D_POOL] = call_conv2d_pool,
               [LK_OP_CONV2D_INPUT_GRADIENT] = call_conv2d_input_gradient,
               [LK_OP_CONV2D_POOL_INPUT_GRADIENT] = call_conv2d_pool_input_gradient,
               [LK_OP_CONV2D_WEIGHT_GRADIENT] = call_conv2d_weight_gradient,
               [LK_OP_CONV2D_POOL_WEIGHT_GRADIENT] = call_conv2d_pool_weight_gradient,
               [LK_OP_CONV2D_TRANSPOSE] = call_conv2d_transpose,
               [LK_OP_CONV2D_TRANSPOSE_INPUT_GRADIENT] = call_conv2d_transpose_input_gradient,
               [LK_OP_CONV2D_TRANSPOSE_WEIGHT_GRADIENT] = call_conv2d_transpose_weight_gradient,
               [LK_OP_CONV2D_TRANSPOSE_BIAS_GRADIENT] = call_conv2d_transpose_bias_gradient,
               [LK_OP_MAX_POOL2D] = call_max_pool2d,
               [LK_OP_MAX_POOL2D_BACKWARD] = call_max_pool2d_backward, [LK_OP_RELU] = call_relu,
               [LK_OP_RELU_BACKWARD] = call_relu_backward,
               [LK_OP_SOFTMAX_CROSS_ENTROPY] = call_softmax_cross_entropy,
               [LK_OP_SEQUENCE_DENSE] = call_sequence,
               [LK_OP_SEQUENCE_DENSE_INPUT_GRADIENT] = call_sequence,
               [LK_OP_SEQUENCE_DENSE_WEIGHT_GRADIENT] = call_sequence,
               [LK_OP_SEQUENCE_DENSE_BIAS_GRADIENT] = call_sequence,
               [LK_OP_LSTM] = call_sequence,
               [LK_OP_LSTM_BACKWARD] = call_sequence,
               [LK_OP_GRU] = call_sequence,
               [LK_OP_GRU_BACKWARD] = call_sequence,
               [LK_OP_RECURRENT_WEIGHT_GRADIENT] = call_sequence,
               [LK_OP_RECURRENT_BIAS_GRADIENT] = call_sequence,
               [LK_OP_LABEL_EMBEDDING] = call_transducer,
               [LK_OP_LABEL_EMBEDDING_GRADIENT] = call_transducer,
               [LK_OP_JOINT] = call_transducer,
               [LK_OP_JOINT_INPUT_GRADIENT] = call_transducer,
               [LK_OP_JOINT_WEIGHT_GRADIENT] = call_transducer,
               [LK_OP_TRANSDUCER] = call_transducer,
               [LK_OP_DECODE] = call_transducer},
    .apply = {LK_OPTIMIZER_LIST(APPLY)},
    .load_u8 = load_u8,
    .column_sums = column_sums,
    .add = add,
    .widen = widen,
    .narrow = narrow,
    .narrow_pool = narrow_pool,
    .round = round_floats,
};

const char *lk_kernels_missing(unsigned number, const lk_kernels **variant) {
    *variant = number == 0 ? &device : NULL;
    return NULL;
}

const char *lk_kernels_slow(const lk_kernels *kernels) {
    (void)kernels;
    return NULL;
}

// The choice of a variant is not the device's to be tested.
lk_status lk_kernels_choose(const char *name, const lk_kernels **out, lk_error *error) {
    (void)name;
    *out = &device;
    return error->status;
}

__attribute__((constructor)) static void leave_out(void) { cmocka_set_skip_filter("test_choose"); }
