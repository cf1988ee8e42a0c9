// peers_onednn.c - the work of one step of the MNIST CNN in bare oneDNN primitives (C API 3).
//
// Convolution, max-pool and both dense layers, forward and backward, batch 64: no loading, no loss,
// no update. Generous to oneDNN: every primitive has memory in the layout it likes best, and
// nothing is ever reordered from one layout to another. A worker of tests/bench/peers: it says its
// version, then answers each number of seconds with the times of its steps.
//
//   cc -O2 peers_onednn.c -ldnnl -o peers_onednn
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "oneapi/dnnl/dnnl.h"

enum { BATCH = 64, WORKS_MAX = 16, ARGUMENTS_MAX = 8, TIMES_MAX = 1 << 17, WARM_STEPS = 20 };

#define CHECK(call)                                                                          \
    do {                                                                                     \
        dnnl_status_t status_ = (call);                                                      \
        if (status_ != dnnl_success) {                                                       \
            fprintf(stderr, "%s:%d: oneDNN status %d\n", __FILE__, __LINE__, (int)status_);  \
            exit(70);                                                                        \
        }                                                                                    \
    } while (0)

typedef const_dnnl_primitive_desc_t description;

// One primitive with all its operands.
typedef struct work {
    dnnl_primitive_t primitive;
    int count;
    dnnl_exec_arg_t arguments[ARGUMENTS_MAX];
} work;

static dnnl_engine_t engine;
static dnnl_stream_t stream;
static work works[WORKS_MAX];
static int work_count;

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static dnnl_memory_desc_t desc(int rank, const dnnl_dim_t *dims, dnnl_format_tag_t tag) {
    dnnl_memory_desc_t md;
    CHECK(dnnl_memory_desc_create_with_tag(&md, rank, dims, dnnl_f32, tag));
    return md;
}

#define ANY(...) desc(sizeof((dnnl_dim_t[]){__VA_ARGS__}) / sizeof(dnnl_dim_t),              \
                      (dnnl_dim_t[]){__VA_ARGS__}, dnnl_format_tag_any)

// Memory as the primitive wants it, filled with small numbers of both signs.
static dnnl_memory_t memory_for(description pd, dnnl_query_t query, int index) {
    const_dnnl_memory_desc_t md = dnnl_primitive_desc_query_md(pd, query, index);
    dnnl_memory_t memory;
    float *data;
    size_t bytes = dnnl_memory_desc_get_size(md);
    CHECK(dnnl_memory_create(&memory, md, engine, DNNL_MEMORY_ALLOCATE));
    CHECK(dnnl_memory_get_data_handle(memory, (void **)&data));
    if (query == dnnl_query_workspace_md) {
        memset(data, 0, bytes);
        return memory;
    }
    for (size_t i = 0; i < bytes / sizeof *data; i++) data[i] = (float)((int)(i * 7 % 17) - 8) / 64;
    return memory;
}

static dnnl_memory_t give(work *w, int argument, dnnl_memory_t memory) {
    w->arguments[w->count++] = (dnnl_exec_arg_t){argument, memory};
    return memory;
}

static work *add(dnnl_primitive_desc_t pd) {
    work *w = &works[work_count++];
    CHECK(dnnl_primitive_create(&w->primitive, pd));
    return w;
}

static dnnl_primitive_attr_t with_relu(void) {
    dnnl_primitive_attr_t attributes;
    dnnl_post_ops_t after;
    CHECK(dnnl_primitive_attr_create(&attributes));
    CHECK(dnnl_post_ops_create(&after));
    CHECK(dnnl_post_ops_append_eltwise(after, dnnl_eltwise_relu, 0, 0));
    CHECK(dnnl_primitive_attr_set_post_ops(attributes, after));
    return attributes;
}

// dx = dy where y > 0, in the layout of y.
static void relu_backward(const_dnnl_memory_desc_t y, dnnl_memory_t y_memory) {
    dnnl_primitive_desc_t forward, backward;
    CHECK(dnnl_eltwise_forward_primitive_desc_create(&forward, engine, dnnl_forward_training,
                                                     dnnl_eltwise_relu_use_dst_for_bwd, y, y, 0, 0,
                                                     NULL));
    CHECK(dnnl_eltwise_backward_primitive_desc_create(&backward, engine,
                                                      dnnl_eltwise_relu_use_dst_for_bwd, y, y, y, 0,
                                                      0, forward, NULL));
    work *w = add(backward);
    give(w, DNNL_ARG_DST, y_memory);
    dnnl_memory_t d = give(w, DNNL_ARG_DIFF_DST, memory_for(backward, dnnl_query_diff_dst_md, 0));
    give(w, DNNL_ARG_DIFF_SRC, d);
}

static void convolution_and_pool(void) {
    const dnnl_dims_t one = {1, 1}, two = {2, 2}, zero = {0};
    dnnl_memory_desc_t x = ANY(BATCH, 1, 28, 28), weight = ANY(32, 1, 3, 3), bias = ANY(32);
    dnnl_memory_desc_t y = ANY(BATCH, 32, 26, 26), pooled = ANY(BATCH, 32, 13, 13);
    dnnl_primitive_desc_t conv, conv_weights, pool, pool_back;
    CHECK(dnnl_convolution_forward_primitive_desc_create(
        &conv, engine, dnnl_forward_training, dnnl_convolution_auto, x, weight, bias, y, one, zero,
        zero, zero, with_relu()));
    CHECK(dnnl_convolution_backward_weights_primitive_desc_create(
        &conv_weights, engine, dnnl_convolution_auto, x, weight, bias, y, one, zero, zero, zero,
        conv, NULL));
    work *w = add(conv);
    give(w, DNNL_ARG_SRC, memory_for(conv, dnnl_query_src_md, 0));
    give(w, DNNL_ARG_WEIGHTS, memory_for(conv, dnnl_query_weights_md, 0));
    give(w, DNNL_ARG_BIAS, memory_for(conv, dnnl_query_weights_md, 1));
    dnnl_memory_t conv_y = give(w, DNNL_ARG_DST, memory_for(conv, dnnl_query_dst_md, 0));
    const_dnnl_memory_desc_t layout = dnnl_primitive_desc_query_md(conv, dnnl_query_dst_md, 0);
    CHECK(dnnl_pooling_forward_primitive_desc_create(
        &pool, engine, dnnl_forward_training, dnnl_pooling_max, layout, pooled, two, two, zero,
        zero, zero, NULL));
    w = add(pool);
    give(w, DNNL_ARG_SRC, conv_y);
    give(w, DNNL_ARG_DST, memory_for(pool, dnnl_query_dst_md, 0));
    dnnl_memory_t winners = give(w, DNNL_ARG_WORKSPACE,
                                 memory_for(pool, dnnl_query_workspace_md, 0));
    const_dnnl_memory_desc_t small = dnnl_primitive_desc_query_md(pool, dnnl_query_dst_md, 0);
    CHECK(dnnl_pooling_backward_primitive_desc_create(
        &pool_back, engine, dnnl_pooling_max, layout, small, two, two, zero, zero, zero, pool,
        NULL));
    w = add(pool_back);
    give(w, DNNL_ARG_DIFF_DST, memory_for(pool_back, dnnl_query_diff_dst_md, 0));
    give(w, DNNL_ARG_WORKSPACE, winners);
    give(w, DNNL_ARG_DIFF_SRC, memory_for(pool_back, dnnl_query_diff_src_md, 0));
    relu_backward(layout, conv_y);
    w = add(conv_weights);
    give(w, DNNL_ARG_SRC, memory_for(conv_weights, dnnl_query_src_md, 0));
    give(w, DNNL_ARG_DIFF_DST, memory_for(conv_weights, dnnl_query_diff_dst_md, 0));
    give(w, DNNL_ARG_DIFF_WEIGHTS, memory_for(conv_weights, dnnl_query_diff_weights_md, 0));
    give(w, DNNL_ARG_DIFF_BIAS, memory_for(conv_weights, dnnl_query_diff_weights_md, 1));
}

static void dense(dnnl_dim_t inputs, dnnl_dim_t units, int relu) {
    dnnl_memory_desc_t x = ANY(BATCH, inputs), weight = ANY(units, inputs), bias = ANY(units);
    dnnl_memory_desc_t y = ANY(BATCH, units);
    dnnl_primitive_desc_t forward, data, weights;
    CHECK(dnnl_inner_product_forward_primitive_desc_create(
        &forward, engine, dnnl_forward_training, x, weight, bias, y, relu ? with_relu() : NULL));
    CHECK(dnnl_inner_product_backward_data_primitive_desc_create(
        &data, engine, x, weight, y, forward, NULL));
    CHECK(dnnl_inner_product_backward_weights_primitive_desc_create(
        &weights, engine, x, weight, bias, y, forward, NULL));
    work *w = add(forward);
    give(w, DNNL_ARG_SRC, memory_for(forward, dnnl_query_src_md, 0));
    give(w, DNNL_ARG_WEIGHTS, memory_for(forward, dnnl_query_weights_md, 0));
    give(w, DNNL_ARG_BIAS, memory_for(forward, dnnl_query_weights_md, 1));
    dnnl_memory_t result = give(w, DNNL_ARG_DST, memory_for(forward, dnnl_query_dst_md, 0));
    if (relu) relu_backward(dnnl_primitive_desc_query_md(forward, dnnl_query_dst_md, 0), result);
    w = add(data);
    give(w, DNNL_ARG_DIFF_DST, memory_for(data, dnnl_query_diff_dst_md, 0));
    give(w, DNNL_ARG_WEIGHTS, memory_for(data, dnnl_query_weights_md, 0));
    give(w, DNNL_ARG_DIFF_SRC, memory_for(data, dnnl_query_diff_src_md, 0));
    w = add(weights);
    give(w, DNNL_ARG_SRC, memory_for(weights, dnnl_query_src_md, 0));
    give(w, DNNL_ARG_DIFF_DST, memory_for(weights, dnnl_query_diff_dst_md, 0));
    give(w, DNNL_ARG_DIFF_WEIGHTS, memory_for(weights, dnnl_query_diff_weights_md, 0));
    give(w, DNNL_ARG_DIFF_BIAS, memory_for(weights, dnnl_query_diff_weights_md, 1));
}

static void step(void) {
    for (int i = 0; i < work_count; i++) {
        const work *w = &works[i];
        CHECK(dnnl_primitive_execute(w->primitive, stream, w->count, w->arguments));
    }
    CHECK(dnnl_stream_wait(stream));
}

static void block(double limit) {
    static double times[TIMES_MAX];
    int count = 0;
    double start = seconds(), last = start;
    while (last - start < limit && count < TIMES_MAX) {
        step();
        double now = seconds();
        times[count++] = now - last;
        last = now;
    }
    for (int i = 0; i < count; i++) printf(i ? ", %.9f" : "[%.9f", times[i]);
    printf("]\n");
    fflush(stdout);
}

int main(void) {
    CHECK(dnnl_engine_create(&engine, dnnl_cpu, 0));
    CHECK(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags));
    convolution_and_pool();
    dense(5408, 64, 1);
    dense(64, 10, 0);
    step();
    const dnnl_version_t *v = dnnl_version();
    printf("{\"version\": \"oneDNN %d.%d.%d\"}\n", v->major, v->minor, v->patch);
    for (int i = 0; i < WARM_STEPS; i++) step();
    printf("{\"warm\": true}\n");
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) block(atof(line));
    return 0;
}
