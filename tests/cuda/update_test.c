// update_test.c - the end of a step on the device: the tree over the nodes that make up a batch,
// the optimizer on all parameters at once, results in their ring, the stop that stays; and the
// launches of the memory checking mode.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <cuda_runtime_api.h>

#include "ops/cuda/kernels.h"
#include "ops/graph/average.h"
#include "ops/graph/spectral.h"
#include "ops/math.h"
#include "ops/op.h"
#include "ops/tree.h"
#include "tests/cuda/host/host.h"
#include "tests/ops/kernel_calls.h"

#pragma weak lk_host_fail  // no GPU fails on demand

enum { LEAVES_MAX = 70, FLOATS = 200, PARAMS = 3, RING = 4 };

static uint64_t draws;

static uint32_t draw(uint32_t below) {
    draws = draws * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((draws >> 33) % below);
}

static void must(int error) { assert_int_equal(error, cudaSuccess); }

static void *space(uint64_t bytes) {
    void *at = NULL;
    must(cudaMalloc(&at, bytes));
    return at;
}

static void *there(const void *from, uint64_t bytes) {
    void *at = space(bytes);
    must(cudaMemcpy(at, from, bytes, cudaMemcpyHostToDevice));
    return at;
}

static void back(void *to, const void *from, uint64_t bytes) {
    must(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
}

static lk_cuda_state state_now(const lk_cuda_stream *s) {
    lk_cuda_state state;
    must(s->error);
    must(cudaDeviceSynchronize());
    back(&state, s->state, sizeof state);
    return state;
}

static lk_cuda_stream fresh(uint64_t step) {
    const lk_cuda_state state = {.step = step, .bad_op = UINT32_MAX, .bad_param = UINT32_MAX};
    must(lk_cuda_prepare());
    return (lk_cuda_stream){.state = there(&state, sizeof state), .op = 3};
}

// Of every step, in one slot.
static lk_cuda_scalars scalars_there(const lk_optimizer *o, float inverse_n) {
    lk_step_scalars scalars = lk_optimizer_scalars(o, 0, 0, inverse_n);
    scalars.examples = (uint32_t)(1.0f / inverse_n);
    return (lk_cuda_scalars){there(&scalars, sizeof scalars), 1};
}

// --- the tree ------------------------------------------------------------------------------------

static float leaves[LEAVES_MAX][FLOATS];

// Node (level, index) over `total` leaves, at float `at`, as ARITHMETIC.md says.
static float node_value(uint32_t level, uint32_t index, uint32_t total, uint32_t at) {
    if (level == 0) return leaves[index][at];
    uint32_t right = (2 * index + 1) << (level - 1);
    float value = node_value(level - 1, 2 * index, total, at);
    return right < total ? value + node_value(level - 1, 2 * index + 1, total, at) : value;
}

// Cuts the leaves into runs, as replicas hold them, and these into whole nodes; `nodes` is the
// table for the device.
static uint32_t make_nodes(uint32_t total, lk_cuda_node nodes[LEAVES_MAX]) {
    lk_counter counter = {0};
    uint32_t count = 0;
    for (uint32_t at = 0, end; at < total; at = end) {
        end = at + 1 + draw(total - at);
        for (uint32_t first = at; first < end;) {
            lk_node n = lk_next_block(first, end, total);
            float values[FLOATS];
            for (uint32_t i = 0; i < FLOATS; i++)
                values[i] = node_value(n.level, n.index, total, i);
            nodes[count].merges = lk_counter_push(&counter, n);
            nodes[count++].values = there(values, sizeof values);
            uint64_t next = (uint64_t)(n.index + 1) << n.level;
            first = (uint32_t)LK_MIN(next, end);
        }
    }
    return count;
}

// Parameters with a gap behind each, 0..49, 64..64, 80..199; and one without an element.
static const uint64_t own_offset[PARAMS + 1] = {0, 64, 80, 200};
static const uint64_t own_count[PARAMS + 1] = {50, 1, 120, 0};

// Leaves, what their tree gives, and what is updated by it.
static void draw_step(uint32_t total, float *sum, float *w, float *slot) {
    for (uint32_t l = 0; l < total; l++) {
        for (uint32_t i = 0; i < FLOATS; i++)
            leaves[l][i] = (float)draw(1u << 24) * 0x1p-23f - 1.0f;
    }
    for (uint32_t i = 0; i < FLOATS; i++) {
        w[i] = (float)draw(1000);
        slot[i] = (float)draw(100);
        sum[i] = node_value(lk_root_level(total), 0, total, i);
    }
}

// What the device made of w and slot is what the reference makes of them; it is let go.
static void check_updated(const lk_cuda_stream *s, const lk_optimizer *o, const float *sum,
                          float *w, const float *w_there, float *slot, const float *slot_there) {
    float got[FLOATS];
    for (uint32_t p = 0; p < PARAMS; p++) {
        float *slots[LK_OPTIMIZER_SLOTS_MAX] = {slot + own_offset[p]};
        assert_int_equal(apply(&lk_kernels_reference, o, own_count[p], sum + own_offset[p],
                               0x1.999p-7f, w + own_offset[p], slots),
                         0);
    }
    assert_int_equal(state_now(s).bad_param, UINT32_MAX);
    back(got, w_there, sizeof got);
    assert_memory_equal(got, w, sizeof got);  // the gaps too
    back(got, slot_there, sizeof got);
    assert_memory_equal(got, slot, sizeof got);
    must(cudaDeviceReset());
}

static void check_tree(uint32_t total, const lk_optimizer *o) {
    float w[FLOATS], slot[FLOATS], sum[FLOATS];
    draw_step(total, sum, w, slot);
    lk_cuda_node nodes[LEAVES_MAX];
    const uint32_t count = make_nodes(total, nodes);
    lk_cuda_stream s = fresh(0);
    float *w_there = there(w, sizeof w), *slot_there = there(slot, sizeof slot);
    lk_cuda_param params[PARAMS];
    for (uint32_t p = 0; p < PARAMS; p++) {
        params[p] =
            (lk_cuda_param){.node_offset = own_offset[p],
                            .count = own_count[p],
                            .w = w_there + own_offset[p],
                            .slots = {slot_there + own_offset[p]}};
    }
    lk_cuda_update(&s, o, there(params, sizeof params), PARAMS, FLOATS,
                   there(nodes, count * sizeof *nodes), count, (lk_cuda_metrics){NULL, 0},
                   (lk_cuda_norms){0}, scalars_there(o, 0x1.999p-7f));
    check_updated(&s, o, sum, w, w_there, slot, slot_there);
}

static void test_tree(void **unused) {
    (void)unused;
    const lk_optimizer momentum = {.type = &lk_optimizer_momentum,
                                   .learning_rate = 0x1p-3f,
                                   .momentum = 0x1.8p-1f,
                                   .nesterov = true};
    const lk_optimizer sgd = {.type = &lk_optimizer_sgd, .learning_rate = 0x1p-3f};
    for (uint32_t total = 1; total <= LEAVES_MAX; total++) {
        draws = total;
        check_tree(total, total % 2 ? &momentum : &sgd);
    }
}

// --- gradients left in parts ---------------------------------------------------------------------

// Leaves as the parts of the first and the third parameter; the second one's gradient lies in the
// node, and the fourth has none.
static void check_parts(uint32_t total, const lk_optimizer *o) {
    enum { ALL = PARAMS + 1 };
    float w[FLOATS], slot[FLOATS], sum[FLOATS];
    draw_step(total, sum, w, slot);
    sum[64] = 3.0f;
    lk_cuda_stream s = fresh(0);
    float *w_there = there(w, sizeof w), *slot_there = there(slot, sizeof slot);
    const float *leaves_there = there(leaves, sizeof leaves);
    lk_cuda_param params[ALL];
    lk_cuda_parts parts[ALL];
    lk_cuda_joining joining = {.parts = NULL};
    for (uint32_t p = 0; p < ALL; p++) {
        const bool left = p == 0 || p == 2;
        params[p] = (lk_cuda_param){.node_offset = own_offset[p],
                                    .count = own_count[p],
                                    .w = w_there + own_offset[p],
                                    .slots = {slot_there + own_offset[p]}};
        parts[p] = (lk_cuda_parts){.at = left ? leaves_there + own_offset[p] : NULL,
                                   .stride = FLOATS,
                                   .count = left ? total : 1,
                                   .first_block = (uint32_t)joining.blocks};
        lk_cuda_joining_add(&joining, own_count[p], 1);
        lk_cuda_joining_change(&joining, own_count[p], parts[p].count);
    }
    joining.parts = there(parts, sizeof parts);
    float node[FLOATS];
    for (uint32_t i = 0; i < FLOATS; i++) node[i] = i == 64 ? 3.0f : -1000.0f;
    const lk_cuda_node nodes = {there(node, sizeof node), 0};
    lk_cuda_join_and_update(&s, o, there(params, sizeof params), ALL, joining,
                            there(&nodes, sizeof nodes), (lk_cuda_metrics){NULL, 0},
                            scalars_there(o, 0x1.999p-7f));
    check_updated(&s, o, sum, w, w_there, slot, slot_there);
}

static void test_parts(void **unused) {
    (void)unused;
    const lk_optimizer momentum = {
        .type = &lk_optimizer_momentum, .learning_rate = 0x1p-3f, .momentum = 0x1.8p-1f};
    const lk_optimizer sgd = {.type = &lk_optimizer_sgd, .learning_rate = 0x1p-3f};
    for (uint32_t total = 1; total <= LEAVES_MAX; total++) {
        draws = total;
        check_parts(total, total % 2 ? &momentum : &sgd);
    }
}

// --- averages ------------------------------------------------------------------------------------

// With each slot count before them, in the first update and in a later one; of weights that are cut
// to a size before they are averaged.
static void check_averages(const lk_optimizer *o, uint64_t t, float clip) {
    enum { COUNT = 200 };
    const uint32_t all = lk_optimizer_slot_count(o);
    const lk_step_scalars scalars = lk_optimizer_scalars(o, 7, t, 0x1p-3f);
    float w[COUNT], sum[COUNT], slot[LK_OPTIMIZER_SLOTS_MAX][COUNT], got[COUNT];
    float *slots[LK_OPTIMIZER_SLOTS_MAX] = {NULL};
    lk_cuda_param param = {.count = COUNT, .clip = clip};
    lk_cuda_stream s = fresh(7);
    for (uint32_t i = 0; i < COUNT; i++) w[i] = (float)draw(1000), sum[i] = (float)draw(1000) - 500;
    for (uint32_t k = 0; k < all; k++) {
        for (uint32_t i = 0; i < COUNT; i++) slot[k][i] = (float)draw(100);
        slots[k] = slot[k];
        param.slots[k] = there(slot[k], sizeof slot[k]);
    }
    float *w_there = param.w = there(w, sizeof w);
    const lk_cuda_node node = {there(sum, sizeof sum), 0};
    const lk_cuda_scalars ring = {there(&scalars, sizeof scalars), 1};
    lk_cuda_update(&s, o, there(&param, sizeof param), 1, COUNT, there(&node, sizeof node), 1,
                   (lk_cuda_metrics){NULL, 0}, (lk_cuda_norms){0}, ring);
    assert_int_equal(o->type->reference(o, &scalars, COUNT, sum, w, slots), 0);
    for (uint32_t i = 0; clip > 0.0f && i < COUNT; i++) {
        w[i] = w[i] > clip ? clip : w[i] < -clip ? -clip : w[i];
    }
    assert_int_equal(lk_average_reference(COUNT, scalars.average, w, slot[all - 1]), 0);
    assert_int_equal(state_now(&s).bad_param, UINT32_MAX);
    back(got, w_there, sizeof got);
    assert_memory_equal(got, w, sizeof w);
    for (uint32_t k = 0; k < all; k++) {
        back(got, param.slots[k], sizeof got);
        assert_memory_equal(got, slot[k], sizeof got);
    }
    must(cudaDeviceReset());
}

static void test_averages(void **unused) {
    (void)unused;
    const lk_optimizer each[] = {
        {.type = &lk_optimizer_sgd, .learning_rate = 0.5f, .weight_average = 0.75f},
        {.type = &lk_optimizer_momentum, .learning_rate = 0.5f, .weight_average = 0.5f},
        {.type = &lk_optimizer_adam_keras,
         .learning_rate = 0.5f,
         .epsilon = 1.0f,
         .amsgrad = true,
         .weight_average = 0x1.99999ap-1f}};
    for (uint32_t i = 0; i < LK_COUNT(each); i++) {
        for (uint64_t t = 0; t < 2; t++) check_averages(&each[i], t, i % 2 ? 300.0f : 0.0f);
    }
}

// --- norms ---------------------------------------------------------------------------------------

// Three parameters of a slice each, cut by the norm of all: each thread's part is another's input.
static void test_norms(void **unused) {
    (void)unused;
    const lk_optimizer o = {
        .type = &lk_optimizer_sgd, .learning_rate = 0.5f, .global_clipnorm = 0.25f};
    const uint64_t offsets[PARAMS] = {0, 64, 80}, counts[PARAMS] = {50, 1, 120};
    const float inverse_n = 0x1p-2f;
    float w[FLOATS], sum[FLOATS], got[FLOATS], all = 0.0f;
    lk_cuda_param params[PARAMS];
    for (uint32_t i = 0; i < FLOATS; i++) w[i] = (float)draw(1000);
    for (uint32_t i = 0; i < FLOATS; i++) sum[i] = (float)draw(1u << 24) * 0x1p-23f - 1.0f;
    lk_cuda_stream s = fresh(0);
    float *w_there = there(w, sizeof w);
    for (uint32_t p = 0; p < PARAMS; p++) {
        float square = 0.0f;
        params[p] = (lk_cuda_param){.node_offset = offsets[p],
                                    .count = counts[p],
                                    .w = w_there + offsets[p],
                                    .first_slice = p};
        for (uint64_t i = offsets[p]; i < offsets[p] + counts[p]; i++) {
            const float g = (sum[i] + 0.0f) * inverse_n;
            square = lk_fmaf(g, g, square);
        }
        all = all + (square + 0.0f);
    }
    const lk_cuda_norms norms = {.gradient = space(PARAMS * LK_SLICE_TERMS * sizeof(float)),
                                 .squares = space(2 * PARAMS * sizeof(float)),
                                 .sums = space(2 * (PARAMS + 1) * sizeof(float)),
                                 .own = space(PARAMS * sizeof(lk_step_scalars)),
                                 .slices = PARAMS};
    const lk_cuda_node node = {there(sum, sizeof sum), 0};
    lk_cuda_update(&s, &o, there(params, sizeof params), PARAMS, FLOATS, there(&node, sizeof node),
                   1, (lk_cuda_metrics){NULL, 0}, norms, scalars_there(&o, inverse_n));
    const float norm = lk_sqrtf(all), fit = inverse_n * (0.25f / LK_MAX(norm, 0.25f));
    assert_true(norm > 0.25f);
    for (uint32_t p = 0; p < PARAMS; p++) {
        float *slots[LK_OPTIMIZER_SLOTS_MAX] = {NULL};
        assert_int_equal(apply(&lk_kernels_reference, &o, counts[p], sum + offsets[p], fit,
                               w + offsets[p], slots),
                         0);
    }
    assert_int_equal(state_now(&s).bad_param, UINT32_MAX);
    back(got, w_there, sizeof got);
    assert_memory_equal(got, w, sizeof w);
    must(cudaDeviceReset());
}

// --- kernels divided by their norms --------------------------------------------------------------

enum { PADDED = 64 };  // floats before G in a node, and slices before its own

typedef struct divided {
    lk_spectral here;       // as the reference has it
    lk_cuda_spectral there;
    float *memory;
} divided;

// The kernel's values and the vector's are of these sizes; 0: zeros.
static divided divided_open(uint32_t rows, uint32_t columns, lk_dtype dtype, float scale,
                            float length) {
    const uint64_t count = (uint64_t)rows * columns;
    const uint64_t floats = lk_spectral_floats(count, columns);
    const uint64_t kernel = lk_round_up(count, 16), vector = lk_round_up(columns, 16);
    divided d;
    const uint64_t bytes = (2 * kernel + vector + floats) * sizeof(float);
    d.memory = aligned_alloc(64, lk_round_up(bytes, 64));
    float *w = d.memory, *u = w + kernel, *normalized = u + vector;
    for (uint64_t i = 0; i < count; i++) {
        w[i] = scale * ((float)draw(1u << 24) * 0x1p-23f - 1.0f);
    }
    for (uint32_t i = 0; i < columns; i++) {
        u[i] = length * ((float)draw(1u << 24) * 0x1p-23f - 1.0f);
    }
    d.here = lk_spectral_of(count, columns, w, u, normalized, normalized + kernel);
    d.here.dtype = dtype;
    d.there = (lk_cuda_spectral){.w = there(w, count * sizeof *w),
                                 .u = there(u, columns * sizeof *u),
                                 .normalized = space(count * sizeof *w),
                                 .v = space(rows * sizeof *w),
                                 .n = space(columns * sizeof *w),
                                 .numbers = space(2 * sizeof *w),
                                 .rows = rows,
                                 .columns = columns,
                                 .dtype = dtype};
    return d;
}

static void same_floats(const float *found, const float *wanted, uint64_t count) {
    float *got = malloc(count * sizeof *got);
    back(got, found, count * sizeof *got);
    assert_memory_equal(got, wanted, count * sizeof *got);
    free(got);
}

// The update behind it: its gradient is turned, and the vector moves on.
static void check_turned(lk_cuda_stream *s, const divided *d) {
    const lk_optimizer o = {.type = &lk_optimizer_sgd, .learning_rate = 0.5f};
    const uint64_t count = d->here.rows * d->here.columns;
    const uint64_t slices = 1 + (count + LK_SLICE_TERMS - 1) / LK_SLICE_TERMS;
    float *sum = calloc(PADDED + count, sizeof *sum), *w = (float *)(uintptr_t)d->here.w;
    float *products = calloc(slices, 2 * sizeof *products), *none[LK_OPTIMIZER_SLOTS_MAX] = {NULL};
    for (uint64_t i = 0; i < PADDED + count; i++) sum[i] = (float)draw(1u << 24) * 0x1p-23f - 1.0f;
    const lk_cuda_param params[2] = {{.count = 1, .w = there(sum, sizeof *sum)},
                                     {.node_offset = PADDED,
                                      .count = count,
                                      .w = (float *)(uintptr_t)d->there.w,
                                      .first_slice = 1,
                                      .vector = (float *)(uintptr_t)d->there.u,
                                      .v = d->there.v,
                                      .n = d->there.n,
                                      .numbers = d->there.numbers,
                                      .columns = lk_cuda_divide_by(d->there.columns)}};
    const lk_cuda_node node = {there(sum, (PADDED + count) * sizeof *sum), 0};
    const lk_cuda_norms norms = {.gradient = space(slices * LK_SLICE_TERMS * sizeof(float)),
                                 .squares = space(2 * slices * sizeof(float)),
                                 .sums = space(2 * 3 * sizeof(float)),
                                 .own = space(2 * sizeof(lk_step_scalars)),
                                 .slices = slices};
    lk_cuda_update(s, &o, there(params, sizeof params), 2, PADDED + count,
                   there(&node, sizeof node), 1, (lk_cuda_metrics){NULL, 0}, norms,
                   scalars_there(&o, 0.25f));
    float *own = sum + PADDED;
    const lk_step_scalars one = {.inverse_n = 1.0f};
    lk_squares_of(&lk_kernels_reference, LK_NORM_SPECTRAL)(&o, &one, count, own, w, none, products);
    float product = 0.0f;
    for (uint64_t n = slices - 1, i; n > 1; n = (n + 1) / 2) {
        for (i = 0; i < n / 2; i++) products[2 * i] = products[4 * i] + products[4 * i + 2];
        if (n % 2) products[2 * i] = products[2 * n - 2];
    }
    product = products[0] + 0.0f;
    lk_spectral_keep(&d->here);
    lk_spectral_turn(&lk_kernels_reference, &d->here, product, 0, count, own);
    assert_int_equal(apply(&lk_kernels_reference, &o, count, own, 0.25f, w, none), 0);
    assert_int_equal(state_now(s).bad_param, UINT32_MAX);
    same_floats(d->there.w, w, count);
    same_floats(d->there.u, d->here.u, d->here.columns);
    free(products);
    free(sum);
}

static void check_divided(uint32_t rows, uint32_t columns, lk_dtype dtype, float scale,
                          float length) {
    lk_cuda_stream s = fresh(0);
    divided d = divided_open(rows, columns, dtype, scale, length);
    const bool infinite = scale > 1e20f;
    s.scratch = space(lk_cuda_spectral_scratch_floats(rows, columns) * sizeof(float) + 64);
    lk_cuda_spectral_make(&s, &d.there);
    assert_int_equal(lk_spectral_make(&lk_kernels_reference, &d.here), infinite);
    assert_int_equal(state_now(&s).bad_op, infinite ? 3 : UINT32_MAX);
    if (!infinite) {
        same_floats(d.there.v, d.here.v, rows);
        same_floats(d.there.n, d.here.n, columns);
        same_floats(d.there.numbers, d.here.numbers, 2);
        same_floats(d.there.normalized, d.here.normalized, (uint64_t)rows * columns);
        check_turned(&s, &d);
    }
    free(d.memory);
    must(cudaDeviceReset());
}

// Vectors of one slice, of several rounds of a block, of one value; kernels that stay, of zeros and
// of values whose squares are zeros; squares of either vector that are infinite.
static void test_divided(void **unused) {
    (void)unused;
    const uint32_t sizes[][2] = {{1, 1}, {3, 5}, {70, 40}, {5000, 3}, {2, 4700}, {513, 1}};
    for (uint32_t i = 0; i < LK_COUNT(sizes); i++) {
        check_divided(sizes[i][0], sizes[i][1], i % 2 ? LK_BF16 : LK_F32, 1.0f, 1.0f);
    }
    check_divided(6, 7, LK_F16, 0.0f, 1.0f);
    check_divided(6, 7, LK_F32, 0x1p-80f, 0x1p60f);
    check_divided(600, 20, LK_F32, 0x1p100f, 1.0f);
    check_divided(60, 20, LK_F32, 0x1p70f, 0x1p-60f);
}

// A product that is not finite is the parameter's, and ends the run, though nothing is made of it.
static void test_infinite_product(void **unused) {
    (void)unused;
    lk_cuda_stream s = fresh(0);
    const float w[2] = {3.0f, 4.0f}, sum[2] = {0x1p127f, 0x1p127f}, numbers[2] = {1.0f, 1.0f};
    const lk_cuda_param param = {.count = 2,
                                 .w = there(w, sizeof w),
                                 .vector = space(sizeof w),
                                 .v = there(w, sizeof w),
                                 .n = there(w, sizeof w),
                                 .numbers = there(numbers, sizeof numbers),
                                 .columns = lk_cuda_divide_by(1)};
    const lk_cuda_norms norms = {.gradient = space(LK_SLICE_TERMS * sizeof(float)),
                                 .squares = space(2 * sizeof(float)),
                                 .sums = space(4 * sizeof(float)),
                                 .own = space(sizeof(lk_step_scalars)),
                                 .slices = 1};
    const lk_optimizer o = {.type = &lk_optimizer_sgd, .learning_rate = 0x1p-100f};
    const lk_cuda_node node = {there(sum, sizeof sum), 0};
    lk_cuda_update(&s, &o, there(&param, sizeof param), 1, 2, there(&node, sizeof node), 1,
                   (lk_cuda_metrics){NULL, 0}, norms, scalars_there(&o, 0.25f));
    assert_int_equal(state_now(&s).bad_param, 0);
    must(cudaDeviceReset());
}

// --- regularizers --------------------------------------------------------------------------------

// The squares of w, as ARITHMETIC.md 7 has them.
static float squares_of(const float *w, uint64_t count) {
    float chains[8];
    uint32_t slices = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (i % LK_SLICE_TERMS == 0) chains[slices++] = 0.0f;
        chains[slices - 1] = lk_fmaf(w[i], w[i], chains[slices - 1]);
    }
    for (uint32_t n = slices; n > 1; n = (n + 1) / 2) {
        for (uint32_t i = 0; i < n / 2; i++) chains[i] = chains[2 * i] + chains[2 * i + 1];
        if (n % 2) chains[n / 2] = chains[n - 1];
    }
    return chains[0] + 0.0f;
}

// Of three parameters the first, of three slices and a part, and the last have one; of a slot in
// the place of the weights too. The step's loss has what they add.
static void test_penalty(void **unused) {
    (void)unused;
    enum { MOST = 4 * LK_SLICE_TERMS };
    const uint64_t counts[PARAMS] = {3 * LK_SLICE_TERMS + 100, 40, 17};
    const float l2[PARAMS] = {0x1.99999ap-4f, 0.0f, 0x1.333334p-2f};
    float values[2][PARAMS][MOST], want[2] = {0.0f, 0.0f};
    lk_cuda_param params[PARAMS];
    uint64_t slices = 0;
    for (uint32_t p = 0; p < PARAMS; p++) {
        params[p] = (lk_cuda_param){.count = counts[p], .first_slice = slices, .l2 = l2[p]};
        slices += (counts[p] + LK_SLICE_TERMS - 1) / LK_SLICE_TERMS;
        for (uint32_t which = 0; which < 2; which++) {
            for (uint32_t i = 0; i < MOST; i++) {
                values[which][p][i] = (float)draw(1u << 24) * 0x1p-23f - 1.0f;
            }
            const float sum = squares_of(values[which][p], counts[p]);
            if (l2[p] > 0.0f) want[which] = lk_fmaf(l2[p], sum, want[which]);
        }
        params[p].w = there(values[0][p], sizeof values[0][p]);
        params[p].slots[2] = there(values[1][p], sizeof values[1][p]);
    }
    const lk_cuda_penalty penalty = {space(slices * sizeof(float)), space(PARAMS * sizeof(float)),
                                     slices};
    lk_cuda_stream s = fresh(0);
    const lk_cuda_param *params_there = there(params, sizeof params);
    for (uint32_t which = 2; which-- > 0;) {
        lk_cuda_weigh(&s, params_there, PARAMS, penalty, which ? 2 : UINT32_MAX);
        const float found = state_now(&s).penalty;
        assert_memory_equal(&found, &want[which], sizeof found);
    }
    const float loss = 3.0f;
    const lk_cuda_node node = {there(&loss, sizeof loss), 0};
    lk_cuda_result *ring;
    must(cudaHostAlloc((void **)&ring, RING * sizeof *ring, cudaHostAllocMapped));
    const lk_optimizer o = {.type = &lk_optimizer_sgd, .learning_rate = 0.5f};
    lk_cuda_step_end(&s, (lk_cuda_metrics){there(&node, sizeof node), 1}, 1,
                     scalars_there(&o, 0.5f), true, ring, RING);
    (void)state_now(&s);
    assert_true(ring[0].means[0] == 1.5f + want[0]);
    must(cudaDeviceReset());
}

// --- results, and the stop -----------------------------------------------------------------------

typedef struct tiny {
    lk_cuda_stream s;
    float *w, *gradient, *loss;
    lk_cuda_param *params;
    lk_cuda_node *nodes, *loss_nodes;
    lk_cuda_result *ring;
    lk_cuda_scalars scalars;
} tiny;

static const lk_optimizer half = {.type = &lk_optimizer_sgd, .learning_rate = 0.5f};

// One parameter of two floats.
static tiny tiny_open(uint64_t step) {
    tiny t = {.s = fresh(step)};
    const float w[2] = {1.0f, 2.0f}, gradient[2] = {1.0f, 1.0f}, loss = 3.0f;
    t.w = there(w, sizeof w);
    t.gradient = there(gradient, sizeof gradient);
    t.loss = there(&loss, sizeof loss);
    const lk_cuda_param param = {.count = 2, .w = t.w};
    const lk_cuda_node node = {t.gradient, 0}, loss_node = {t.loss, 0};
    t.params = there(&param, sizeof param);
    t.nodes = there(&node, sizeof node);
    t.loss_nodes = there(&loss_node, sizeof loss_node);
    must(cudaHostAlloc((void **)&t.ring, RING * sizeof *t.ring, cudaHostAllocMapped));
    memset(t.ring, 0x55, RING * sizeof *t.ring);
    t.scalars = scalars_there(&half, 0.5f);
    return t;
}

static void tiny_step(tiny *t) {
    const lk_cuda_metrics metrics = {t->loss_nodes, 1};
    lk_cuda_update(&t->s, &half, t->params, 1, 2, t->nodes, 1, metrics,
                   (lk_cuda_norms){0}, t->scalars);
    lk_cuda_step_end(&t->s, metrics, 1, t->scalars, true, t->ring, RING);
}

static void test_results(void **unused) {
    (void)unused;
    tiny t = tiny_open(6);
    for (uint32_t step = 6; step < 9; step++) {
        tiny_step(&t);
        lk_cuda_state state = state_now(&t.s);
        assert_int_equal(state.step, step + 1);
        assert_int_equal(state.stopped, 0);
        const lk_cuda_result *r = &t.ring[step % RING];
        assert_int_equal(r->step, step);
        assert_true(r->means[0] == 1.5f);
        assert_int_equal(r->bad_op, UINT32_MAX);
        assert_int_equal(r->bad_param, UINT32_MAX);
        assert_int_equal(r->not_finite, 0);
    }
    float w[2];
    back(w, t.w, sizeof w);
    assert_true(w[0] == 0.25f && w[1] == 1.25f);
    must(cudaDeviceReset());
}

static void break_op(tiny *t) {
    const float infinite = 1e30f * 1e30f;
    float *steep = there(&infinite, sizeof infinite);
    const lk_dense d = {1, 1, false, false};
    t->s.op = 9;
    lk_cuda_dense_forward(&t->s, &d, 1, steep, steep, NULL, space(4));
    t->s.op = 5;
    lk_cuda_dense_forward(&t->s, &d, 1, steep, steep, NULL, space(4));
}

// Where somebody asks, a step with a flag is not applied, and the next one is.
static void check_held(bool by_op) {
    tiny t = tiny_open(0);
    const float infinite = 1e30f * 1e30f, three = 3.0f;
    float w[2];
    lk_cuda_state state = state_now(&t.s);
    state.asks = 1;
    must(cudaMemcpy(t.s.state, &state, sizeof state, cudaMemcpyHostToDevice));
    if (by_op)
        break_op(&t);
    else
        must(cudaMemcpy(t.loss, &infinite, 4, cudaMemcpyHostToDevice));
    tiny_step(&t);
    state = state_now(&t.s);
    back(w, t.w, sizeof w);
    assert_true(w[0] == 1.0f && w[1] == 2.0f);
    assert_int_equal(state.stopped, 0);
    assert_int_equal(state.step, 1);
    assert_int_equal(state.bad_op, UINT32_MAX);
    assert_int_equal(t.ring[0].not_finite, 1);
    assert_int_equal(t.ring[0].bad_op, by_op ? 5 : UINT32_MAX);
    must(cudaMemcpy(t.loss, &three, 4, cudaMemcpyHostToDevice));
    tiny_step(&t);
    state = state_now(&t.s);
    back(w, t.w, sizeof w);
    assert_true(w[0] == 0.75f && w[1] == 1.75f);
    assert_int_equal(t.ring[1].not_finite, 0);
    // What APPLY itself finds stops the run all the same: something is written.
    must(cudaMemcpy(t.gradient, &infinite, 4, cudaMemcpyHostToDevice));
    tiny_step(&t);
    assert_int_equal(state_now(&t.s).stopped, 1);
    must(cudaDeviceReset());
}

static void test_held(void **unused) {
    (void)unused;
    check_held(false);
    check_held(true);
}

// What stops: a gradient, a loss, an op before. The step is told once; nothing is applied after it.
static void check_stop(const char *what) {
    tiny t = tiny_open(0);
    const float infinite = 1e30f * 1e30f, one = 1.0f;
    tiny_step(&t);
    must(cudaDeviceSynchronize());
    if (strcmp(what, "loss") == 0) {
        must(cudaMemcpy(t.loss, &infinite, 4, cudaMemcpyHostToDevice));
    } else if (strcmp(what, "gradient") == 0) {
        must(cudaMemcpy(t.gradient + 1, &infinite, 4, cudaMemcpyHostToDevice));
    } else {
        break_op(&t);
    }
    tiny_step(&t);
    lk_cuda_state state = state_now(&t.s);
    const lk_cuda_result *r = &t.ring[1];
    assert_int_equal(r->step, 1);
    assert_int_equal(r->not_finite, 1);
    assert_int_equal(r->bad_param, strcmp(what, "gradient") == 0 ? 0 : UINT32_MAX);
    assert_int_equal(r->bad_op, strcmp(what, "op") == 0 ? 5 : UINT32_MAX);
    assert_int_equal(state.stopped, 1);

    float before[2], after[2];
    back(before, t.w, sizeof before);
    must(cudaMemcpy(t.gradient + 1, &one, 4, cudaMemcpyHostToDevice));
    must(cudaMemcpy(t.loss, &one, 4, cudaMemcpyHostToDevice));
    tiny_step(&t);
    state = state_now(&t.s);
    back(after, t.w, sizeof after);
    assert_memory_equal(before, after, sizeof after);
    assert_int_equal(state.stopped, 1);
    assert_int_equal(t.ring[2].step, 0x5555555555555555u);
    must(cudaDeviceReset());
}

static void test_stop(void **unused) {
    (void)unused;
    check_stop("loss");
    check_stop("gradient");
    check_stop("op");
}

// --- a step as a graph, and launches that fail ---------------------------------------------------

static void test_graph(void **unused) {
    (void)unused;
    tiny t = tiny_open(0);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    t.s.stream = stream;
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    tiny_step(&t);
    must(t.s.error);
    must(cudaStreamEndCapture(stream, &graph));
    must(cudaGraphInstantiate(&exec, graph, 0));
    assert_int_equal(state_now(&t.s).step, 0);  // recorded, not run
    for (int i = 0; i < 3; i++) must(cudaGraphLaunch(exec, stream));
    assert_int_equal(state_now(&t.s).step, 3);
    assert_true(t.ring[2].means[0] == 1.5f);
    must(cudaGraphExecDestroy(exec));
    must(cudaGraphDestroy(graph));
    must(cudaStreamDestroy(stream));
    must(cudaDeviceReset());
}

static void test_failed_launch(void **unused) {
    (void)unused;
    if (!lk_host_fail) skip();
    tiny t = tiny_open(0);
    lk_host_fail("cudaLaunchKernelEx", 2);
    tiny_step(&t);
    assert_int_equal(t.s.error, cudaErrorLaunchFailure);
    tiny_step(&t);  // nothing is launched after a failure
    assert_int_equal(t.s.error, cudaErrorLaunchFailure);
    t.s.error = 0;
    assert_int_equal(state_now(&t.s).step, 0);
    must(cudaDeviceReset());
}

static void test_checking(void **unused) {
    (void)unused;
    lk_cuda_stream s = fresh(0);
    uint32_t words[100], none = UINT32_MAX, broken;
    uint32_t *to = space(sizeof words), *flag = there(&none, sizeof none);
    lk_cuda_fill(&s, 100, 0x9d9d9d9du, to);
    lk_cuda_check_bytes(&s, sizeof words, 0x9d, (const uint8_t *)to, 4, flag);
    state_now(&s);
    back(words, to, sizeof words);
    for (uint32_t i = 0; i < 100; i++) assert_int_equal(words[i], 0x9d9d9d9du);
    back(&broken, flag, sizeof broken);
    assert_int_equal(broken, UINT32_MAX);
    must(cudaMemset((uint8_t *)to + 399, 0, 1));
    lk_cuda_check_bytes(&s, sizeof words, 0x9d, (const uint8_t *)to, 6, flag);
    lk_cuda_check_bytes(&s, sizeof words, 0x9d, (const uint8_t *)to, 4, flag);
    lk_cuda_check_bytes(&s, sizeof words - 1, 0x9d, (const uint8_t *)to, 2, flag);
    state_now(&s);
    back(&broken, flag, sizeof broken);
    assert_int_equal(broken, 4 + 399);
    must(cudaMemset((uint8_t *)to + 7, 0, 300));
    lk_cuda_check_bytes(&s, sizeof words, 0x9d, (const uint8_t *)to, 384, flag);
    state_now(&s);
    back(&broken, flag, sizeof broken);
    assert_int_equal(broken, 384 + 7);
    must(cudaDeviceReset());
}

// Three uses of grains of 5 words, or bytes, of which the last grain has two; a fourth of nothing.
static void test_spread(void **unused) {
    enum { GRAINS = 3, LEAVES = 4, OF_GRAIN = 5, LIVE = 12, ALL = GRAINS * LEAVES * OF_GRAIN };
    (void)unused;
    for (uint32_t bytes = 1; bytes <= 4; bytes += 3) {
        lk_cuda_stream s = fresh(0);
        uint8_t from[3][GRAINS * OF_GRAIN * 4], got[ALL * 4];
        uint8_t *to = space(ALL * bytes);
        for (uint32_t u = 0; u < LEAVES; u++) {
            for (uint32_t i = 0; u < 3 && i < sizeof from[u]; i++) from[u][i] = (uint8_t)draw(256);
            lk_cuda_spread(&s, OF_GRAIN * bytes, GRAINS, u < 3 ? LIVE * bytes : 0, LEAVES, u,
                           u < 3 ? there(from[u], sizeof from[u]) : NULL, to);
        }
        (void)state_now(&s);
        back(got, to, ALL * bytes);
        for (uint32_t i = 0; i < ALL * bytes; i++) {
            const uint32_t leaf = i / bytes / OF_GRAIN, u = leaf % LEAVES;
            const uint32_t at = leaf / LEAVES * OF_GRAIN * bytes + i % (OF_GRAIN * bytes);
            assert_int_equal(got[i], u < 3 && at < LIVE * bytes ? from[u][at] : 0);
        }
        must(cudaDeviceReset());
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tree),
        cmocka_unit_test(test_parts),     cmocka_unit_test(test_norms),
        cmocka_unit_test(test_results),  cmocka_unit_test(test_averages),
        cmocka_unit_test(test_stop),     cmocka_unit_test(test_held),
        cmocka_unit_test(test_graph),    cmocka_unit_test(test_failed_launch),
        cmocka_unit_test(test_checking), cmocka_unit_test(test_penalty),
        cmocka_unit_test(test_spread),   cmocka_unit_test(test_divided),
        cmocka_unit_test(test_infinite_product),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
