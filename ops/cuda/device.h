// device.h - what the kernels share: launches, the tree in registers, checks. CUDA C++.
//
// Compiled by nvcc for GPUs and, in the tests, as plain C++ for the host execution layer
// (tests/cuda/host/), so there is no #ifdef and no PTX here and kernels use dynamic shared memory
// only. Nothing in this folder knows a model or a step.
#ifndef LOCKSTEP_OPS_CUDA_DEVICE_H
#define LOCKSTEP_OPS_CUDA_DEVICE_H

#include <cuda_runtime.h>
#include <nv/target>

#include "ops/cuda/tasks.h"
#include "ops/fmaf.h"

// --- launches ------------------------------------------------------------------------------------

enum { LK_CUDA_THREADS = 256, LK_CUDA_BLOCKS_MAX = 4096 };

// The blocks of a launch, and what their threads do; how many of its steps a trip to memory feeds.
struct lk_cuda_grid {
    dim3 blocks;
    lk_cuda_work work;
    uint32_t ahead = LK_CUDA_STEPS_AHEAD;
};

// An argument's bytes for an item: an element, where it is the address of many.
template <typename T>
struct lk_cuda_argument {
    static constexpr uint64_t bytes = 0;
};
template <typename T>
struct lk_cuda_argument<T *> {
    static constexpr uint64_t bytes = sizeof(T) <= sizeof(float) ? sizeof(T) : 0;
};

// What a launch is. Where the bytes are not said: an element of each array an item.
template <typename... Wanted>
static inline lk_cuda_launched lk_cuda_launched_of(const lk_cuda_stream *s,
                                                   void (*kernel)(Wanted...),
                                                   const lk_cuda_grid &grid, uint32_t threads,
                                                   uint64_t shared_bytes) {
    const uint64_t each = (0 + ... + lk_cuda_argument<Wanted>::bytes);
    lk_cuda_launched launch = {s->op == UINT32_MAX ? s->quiet_op : s->op,
                               reinterpret_cast<void (*)(void)>(kernel),
                               {grid.blocks.x, grid.blocks.y, grid.blocks.z},
                               threads,
                               shared_bytes,
                               grid.ahead,
                               grid.work};
    if (launch.work.bytes == 0) launch.work.bytes = each * launch.work.items;
    return launch;
}

// The arguments of a launch, one behind the other.
template <typename... Arguments>
struct lk_cuda_pack;
template <>
struct lk_cuda_pack<> {};
template <typename First>
struct lk_cuda_pack<First> {
    First first;
};
template <typename First, typename... Rest>
struct lk_cuda_pack<First, Rest...> {
    First first;
    lk_cuda_pack<Rest...> rest;
};

static inline void lk_cuda_put(lk_cuda_pack<> *) {}
template <typename First, typename Given>
static inline void lk_cuda_put(lk_cuda_pack<First> *pack, const Given &given) {
    pack->first = static_cast<First>(given);
}
template <typename First, typename Second, typename... Rest, typename Given, typename... More>
static inline void lk_cuda_put(lk_cuda_pack<First, Second, Rest...> *pack, const Given &given,
                               const More &...more) {
    pack->first = static_cast<First>(given);
    lk_cuda_put(&pack->rest, more...);
}

template <typename... Wanted, typename... Given>
static inline void lk_cuda_keep(const lk_cuda_stream *s, lk_cuda_body body,
                                const lk_cuda_spans &spans, void (*kernel)(Wanted...),
                                const lk_cuda_grid &grid, Given... given) {
    lk_cuda_pack<Wanted...> pack = {};
    lk_cuda_put(&pack, given...);
    const lk_cuda_launched launched = lk_cuda_launched_of(s, kernel, grid, LK_CUDA_THREADS, 0);
    lk_cuda_tasks_keep(s->tasks, body, &launched, &spans, &pack, sizeof pack);
}

// Asks for a dependent launch (lk_cuda_begin), where that is wanted and behind a kernel of ours.
static inline void lk_cuda_depend(const lk_cuda_stream *s, cudaLaunchConfig_t *config,
                                  cudaLaunchAttribute *attribute) {
    if (!s->dependent || !s->follows) return;
    attribute->id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute->val.programmaticStreamSerializationAllowed = 1;
    config->attrs = attribute;
    config->numAttrs = 1;
}

// Launches nothing after a failure, nor an empty grid. Where launches are kept, this one is by the
// number of its body, with what it touches.
template <typename... Wanted, typename... Given>
static inline void lk_cuda_launch_body(lk_cuda_stream *s, lk_cuda_body body,
                                       const lk_cuda_spans &spans, void (*kernel)(Wanted...),
                                       const lk_cuda_grid &grid, uint32_t threads,
                                       uint64_t shared_floats, Given... given) {
    const dim3 blocks = grid.blocks;
    if (s->error || s->rehearses || blocks.x == 0 || blocks.y == 0 || blocks.z == 0) return;
    if (s->observer) {
        const lk_cuda_launched launched =
            lk_cuda_launched_of(s, kernel, grid, threads, shared_floats * sizeof(float));
        s->observer->launched(s->observer->context, &launched);
        return;
    }
    if (s->tasks) {
        lk_cuda_keep(s, body, spans, kernel, grid, given...);
        return;
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_floats * sizeof(float);
    config.stream = s->stream;
    cudaLaunchAttribute attribute;
    lk_cuda_depend(s, &config, &attribute);
    s->error = cudaLaunchKernelEx(&config, kernel, static_cast<Wanted>(given)...);
    s->follows = true;
}

// A launch that has no body.
template <typename... Wanted, typename... Given>
static inline void lk_cuda_launch(lk_cuda_stream *s, void (*kernel)(Wanted...),
                                  const lk_cuda_grid &grid, uint32_t threads,
                                  uint64_t shared_floats, Given... given) {
    lk_cuda_launch_body(s, LK_CUDA_BODY_NONE, {}, kernel, grid, threads, shared_floats, given...);
}

// Loads kernels. Each file has one function that does so for its own; lk_cuda_prepare calls them.
template <typename... Kernels>
static inline int lk_cuda_prepare_kernels(Kernels *...kernels) {
    cudaError_t error = cudaSuccess;
    cudaFuncAttributes attributes;
    const cudaError_t errors[] = {cudaFuncGetAttributes(&attributes, kernels)...};
    for (cudaError_t e : errors) error = error == cudaSuccess ? e : error;
    return error;
}

int lk_cuda_prepare_elements(void);
int lk_cuda_prepare_update(void);
int lk_cuda_prepare_loss(void);
int lk_cuda_prepare_pool(void);
int lk_cuda_prepare_plain(void);
int lk_cuda_prepare_norm(void);
int lk_cuda_prepare_layer_norm(void);
int lk_cuda_prepare_grouped_conv(void);
int lk_cuda_prepare_dense(void);
int lk_cuda_prepare_spectral(void);
int lk_cuda_prepare_sequence(void);
int lk_cuda_prepare_transducer(void);
int lk_cuda_prepare_conv(void);
int lk_cuda_prepare_fast(void);
int lk_cuda_prepare_exchange(void);
int lk_cuda_prepare_mixed(void);
int lk_cuda_prepare_persistent(void);

// Blocks for `count` elements, each of which a thread takes with strides of the whole grid, in so
// many steps. Bytes: of all; 0: as lk_cuda_tell says.
static inline lk_cuda_grid lk_cuda_blocks(uint64_t count, uint64_t steps = 1, uint64_t bytes = 0,
                                          uint64_t fma = 0) {
    uint64_t blocks = (count + LK_CUDA_THREADS - 1) / LK_CUDA_THREADS;
    return {dim3((uint32_t)LK_MIN(blocks, (uint64_t)LK_CUDA_BLOCKS_MAX)),
            {count, steps, fma, bytes}};
}

#define LK_CUDA_EACH(i, count)                                                      \
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (count); \
         i += (uint64_t)gridDim.x * blockDim.x)

// Every kernel of a stream begins with it. Where its launch is a dependent one
// (layout.dependent_launches), its blocks may be there while the kernel before it is still under
// way: they wait here until that one has ended and what it wrote can be seen, and before they wait
// they let the next kernel come in the same way. GPUs older than 9.0 know none of this.
static inline __device__ void lk_cuda_begin(void) {
    NV_IF_TARGET(NV_PROVIDES_SM_90,
                 (cudaTriggerProgrammaticLaunchCompletion(); cudaGridDependencySynchronize();))
}

// Where a block stands in its grid. Kernels whose work the persistent kernel does too
// (persistent.cu) are a body, which is told this, and a wrapper for launches of their own.
typedef struct lk_cuda_at {
    uint32_t x, y;
    uint32_t blocks, rows;  // in the directions of x and y
} lk_cuda_at;

static inline __device__ lk_cuda_at lk_cuda_here(void) {
    return {blockIdx.x, blockIdx.y, gridDim.x, gridDim.y};
}

#define LK_CUDA_EACH_AT(at, i, count)                                                \
    for (uint64_t i = (uint64_t)(at).x * LK_CUDA_THREADS + threadIdx.x; i < (count); \
         i += (uint64_t)(at).blocks * LK_CUDA_THREADS)

// The dynamic shared memory of a kernel, aligned for reads of four floats.
extern __shared__ __align__(128) float lk_cuda_shared[];

// --- division by what is known before ------------------------------------------------------------

// n below 2^31.
static inline __device__ __host__ uint32_t lk_cuda_quotient(uint32_t n, const lk_cuda_divisor &d) {
    return (uint32_t)(((uint64_t)n * d.magic >> 32) + n) >> d.shift;
}

// Rows, or terms, of a kernel: numbers that lk_cuda_quotient can take apart.
static inline uint32_t lk_cuda_rows_of(lk_cuda_stream *s, uint64_t rows) {
    if (!s->error && rows >> 31 != 0) s->error = cudaErrorInvalidConfiguration;
    return (uint32_t)rows;
}

// A picture of (rows, columns, channels), and an element of it.
typedef struct lk_cuda_picture {
    lk_cuda_divisor channels, columns;
    uint32_t elements;  // below 2^31
} lk_cuda_picture;

typedef struct lk_cuda_cell {
    uint32_t y, x, channel;
} lk_cuda_cell;

static inline __device__ lk_cuda_cell lk_cuda_cell_of(const lk_cuda_picture &p, uint32_t element) {
    const uint32_t cell = lk_cuda_quotient(element, p.channels);
    const uint32_t y = lk_cuda_quotient(cell, p.columns);
    return {y, cell - y * p.columns.by, element - cell * p.channels.by};
}

// The same of an element of several pictures, one behind the other: fewer than 2^31 elements.
typedef struct lk_cuda_pictures {
    lk_cuda_divisor channels, columns, rows;
} lk_cuda_pictures;

typedef struct lk_cuda_element {
    uint32_t m, y, x, channel;
} lk_cuda_element;

static inline lk_cuda_pictures lk_cuda_pictures_of(uint32_t rows, uint32_t columns,
                                                   uint32_t channels) {
    return {lk_cuda_divide_by(channels), lk_cuda_divide_by(columns), lk_cuda_divide_by(rows)};
}

static inline __device__ lk_cuda_element lk_cuda_element_of(const lk_cuda_pictures &p,
                                                        uint32_t element) {
    const uint32_t cell = lk_cuda_quotient(element, p.channels);
    const uint32_t line = lk_cuda_quotient(cell, p.columns);
    const uint32_t m = lk_cuda_quotient(line, p.rows);
    return {m, line - m * p.rows.by, cell - line * p.columns.by, element - cell * p.channels.by};
}

// Calls launch(first, some) for all examples of a microbatch, in parts of less than 2^31 elements;
// in most cases that is one call. `elements`: of one example.
template <typename Launch>
static inline void lk_cuda_in_parts(lk_cuda_stream *s, uint32_t examples, uint64_t elements,
                                    Launch launch) {
    const uint64_t most = lk_cuda_rows_of(s, elements) ? INT32_MAX / elements : 0;
    for (uint64_t first = 0; !s->error && most > 0 && first < examples; first += most) {
        launch(first, (uint32_t)LK_MIN(examples - first, most));
    }
}

// Blocks for the elements of `pictures` pictures: a row of blocks for each, or for several.
static inline lk_cuda_grid lk_cuda_picture_blocks(const lk_cuda_picture &p, uint32_t pictures) {
    const lk_cuda_grid one = lk_cuda_blocks(p.elements);
    return {dim3(one.blocks.x, LK_MIN(pictures, 65535u)),
            {(uint64_t)p.elements * pictures, 1, 0, 0}};
}

#define LK_CUDA_EACH_PICTURE_AT(at, m, pictures) \
    for (uint32_t m = (at).y; m < (pictures); m += (at).rows)

static inline lk_cuda_picture lk_cuda_picture_of(lk_cuda_stream *s, uint32_t rows, uint32_t columns,
                                                 uint32_t channels) {
    return {lk_cuda_divide_by(channels), lk_cuda_divide_by(columns),
            lk_cuda_rows_of(s, (uint64_t)rows * columns * channels)};
}

// --- numbers -------------------------------------------------------------------------------------

static inline __device__ bool lk_cuda_not_finite(float x) { return !(x - x == 0.0f); }

// A kernel that stored something that is not finite says so, at most once a thread.
static inline __device__ void lk_cuda_report(lk_cuda_state *state, uint32_t op, bool bad) {
    if (bad) atomicMin(&state->bad_op, op);
}

// A binary counter of tree nodes, as in the reference: bit l of `leaves` says that node[l] is held.
typedef struct lk_cuda_tree {
    float node[LK_TREE_LEVELS_MAX];
    uint32_t leaves;
} lk_cuda_tree;

static inline __device__ void lk_cuda_tree_leaf(lk_cuda_tree *t, float value) {
    uint32_t level = 0;
    for (; t->leaves >> level & 1; level++) value = t->node[level] + value;
    t->node[level] = value;
    t->leaves++;
}

static inline __device__ float lk_cuda_tree_finish(const lk_cuda_tree *t) {
    bool some = false;
    float sum = 0.0f;
    for (uint32_t level = 0; level < 32; level++) {
        if (!(t->leaves >> level & 1)) continue;
        sum = some ? t->node[level] + sum : t->node[level];
        some = true;
    }
    return sum;
}

// The node over `count` values, 8 at most, that lie `stride` apart.
static inline __device__ float lk_cuda_join_eight(const float *from, uint64_t stride,
                                                  uint32_t count) {
    float v[8];
#pragma unroll
    for (int n = 0; n < 8; n++) v[n] = (uint32_t)n < count ? from[n * stride] : 0.0f;
#pragma unroll
    for (int by = 1; by < 8; by *= 2) {
#pragma unroll
        for (int n = 0; n < 8; n += 2 * by) {
            if ((uint32_t)(n + by) < count) v[n] = v[n] + v[n + by];
        }
    }
    return v[0];
}

// The tree over the nodes of a batch, for float `at` of each. Those held are a stack.
static inline __device__ float lk_cuda_reduce(const lk_cuda_node *nodes, uint32_t node_count,
                                              uint64_t at) {
    float held[2 * LK_TREE_LEVELS_MAX];
    uint32_t top = 0;
    if (node_count == 1) return nodes[0].values[at];  // nothing is held: no local memory
    for (uint32_t i = 0; i < node_count; i++) {
        float value = nodes[i].values[at];
        for (uint64_t merges = nodes[i].merges; merges > 0; merges--) value = held[--top] + value;
        held[top++] = value;
    }
    float sum = held[--top];
    while (top > 0) sum = held[--top] + sum;
    return sum;
}

#endif
