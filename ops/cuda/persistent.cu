// persistent.cu - whole steps as one kernel: its blocks stride over the tiles of a level, meet, and
// go on with the next level and the next step (tasks.h).
//
// The arithmetic is not here: a tile is carried out by the body that its launch has. All blocks are
// on the GPU at once, which a cooperative launch makes sure of, so they can wait for each other. No
// body may read through the cache that is not coherent: what it reads was written by other blocks
// of the same kernel (tests/cuda/ptx_test.py).
#include <type_traits>

#include "ops/cuda/conv_phase.h"
#include "ops/cuda/dense.h"
#include "ops/cuda/elements.h"
#include "ops/cuda/grouped_conv.h"
#include "ops/cuda/layer_norm.h"
#include "ops/cuda/loss.h"
#include "ops/cuda/plain.h"
#include "ops/cuda/pool.h"
#include "ops/cuda/update.h"

enum { WARPS = LK_CUDA_THREADS / LANES, NAP_NS = 20 };

// Floats that a block shares: of a body, the most. Behind them is its copy of the table, where all
// of it has room: what a block asks of it is then not behind the barrier of each level again.
enum {
    SHARED_FLOATS = (lk_cuda_sums_shared<lk_cuda_task_narrow, conv_phase_job>() + 31) / 32 * 32,
    SHARED_BYTES_MAX = 48 * 1024
};
enum { COPY_BYTES_MAX = SHARED_BYTES_MAX - SHARED_FLOATS * sizeof(float) };
static_assert((int)SHARED_FLOATS >= 4 * (int)ROUTED_WARPS * (int)ROUTED_LANES, "routed_body");
static_assert((int)SHARED_FLOATS >= lk_cuda_sums_shared<lk_cuda_task_small, conv_phase_job>(),
              "sums");
static_assert((int)SHARED_FLOATS >= (int)LK_CUDA_JOIN_THREADS, "joins");
static_assert((int)SHARED_FLOATS >= (int)COLUMN_THREADS, "column_sums");
static_assert((int)SHARED_FLOATS >= (int)LK_CUDA_THREADS, "norms");
static_assert(lk_cuda_task_small::threads == LK_CUDA_THREADS, "a tile is a block's");
static_assert(lk_cuda_task_narrow::threads == LK_CUDA_THREADS, "a tile is a block's");

// --- bodies --------------------------------------------------------------------------------------

// A body, called with arguments that lie one behind the other.
template <auto BODY>
struct task_of;
template <typename... Wanted, void (*BODY)(lk_cuda_at, Wanted...)>
struct task_of<BODY> {
    typedef lk_cuda_pack<typename std::decay<Wanted>::type...> arguments;

    template <typename First, typename... Before>
    static inline __device__ void call(lk_cuda_at at, const lk_cuda_pack<First> &last,
                                       const Before &...before) {
        BODY(at, before..., last.first);
    }
    template <typename First, typename Second, typename... Rest, typename... Before>
    static inline __device__ void call(lk_cuda_at at,
                                       const lk_cuda_pack<First, Second, Rest...> &pack,
                                       const Before &...before) {
        call(at, pack.rest, before..., pack.first);
    }
    static __device__ void run(lk_cuda_at at, const uint8_t *from) {
        const arguments own = *reinterpret_cast<const arguments *>(from);
        call(at, own);
    }
};

// Of a tile that there is not.
static inline __device__ void no_body(lk_cuda_at, uint32_t) {}

// NUMBER and body of each, in the order of lk_cuda_body.
#define JOB_TASKS(TASK, NUMBER, JOB)                                     \
    TASK(NUMBER, (lk_cuda_sums_body<lk_cuda_task_small, JOB>))           \
    TASK(NUMBER##_NARROW, (lk_cuda_sums_body<lk_cuda_task_narrow, JOB>)) \
    TASK(NUMBER##_JOIN, (lk_cuda_join_body<JOB>))
#define TASKS(TASK)                                                         \
    TASK(LOAD, load_body)                                                   \
    TASK(RELU, relu_forward_body)                                           \
    TASK(RELU_BACKWARD, relu_backward_body)                                 \
    TASK(ADD, add_body)                                                     \
    TASK(MAX_POOL, max_pool_body)                                           \
    TASK(MAX_POOL_BACKWARD, max_pool_backward_body)                         \
    TASK(TANH, activate_body<tanh_of>)                                      \
    TASK(TANH_BACKWARD, activate_backward_body<tanh_of>)                    \
    TASK(SIGMOID, activate_body<sigmoid_of>)                                \
    TASK(SIGMOID_BACKWARD, activate_backward_body<sigmoid_of>)              \
    TASK(DROP, drop_body)                                                   \
    TASK(AVERAGE, average_body)                                             \
    TASK(AVERAGE_BACKWARD, average_backward_body)                           \
    TASK(SUM, sum_body)                                                     \
    TASK(COPY, copy_body)                                                   \
    TASK(NEGATE, negate_body)                                               \
    TASK(LEAKY_RELU, activate_body<leaky_relu_of>)                          \
    TASK(LEAKY_RELU_BACKWARD, activate_backward_body<leaky_relu_of>)        \
    TASK(RELU6, activate_body<relu6_of>)                                    \
    TASK(RELU6_BACKWARD, activate_backward_body<relu6_of>)                  \
    TASK(ELU, activate_body<elu_of>)                                        \
    TASK(ELU_BACKWARD, activate_backward_body<elu_of>)                      \
    TASK(SOFTPLUS, activate_body<softplus_of>)                              \
    TASK(SOFTPLUS_BACKWARD, smooth_backward_body<softplus_of>)              \
    TASK(SWISH, activate_body<swish_of>)                                    \
    TASK(SWISH_BACKWARD, smooth_backward_body<swish_of>)                    \
    TASK(GELU, activate_body<gelu_of>)                                      \
    TASK(GELU_BACKWARD, smooth_backward_body<gelu_of>)                      \
    TASK(GELU_TANH, activate_body<gelu_tanh_of>)                            \
    TASK(GELU_TANH_BACKWARD, smooth_backward_body<gelu_tanh_of>)            \
    TASK(NOISE, noise_body)                                                 \
    TASK(CONCATENATE, join_body)                                            \
    TASK(CONCATENATE_GRADIENT, part_body)                                   \
    TASK(ZERO_PADDING, surround_body)                                       \
    TASK(ZERO_PADDING_BACKWARD, inner_body)                                 \
    TASK(SQUARES, squares_body<WARPS>)                                      \
    TASK(MEAN, mean_body<WARPS>)                                            \
    TASK(BINARY, binary_body)                                               \
    TASK(GAN, gan_body)                                                     \
    TASK(SUM_GRAIN, sum_grain_body)                                         \
    TASK(SQUARE_GRAIN, square_grain_body)                                   \
    TASK(NORMALIZE_GRAIN, normalize_grain_body)                             \
    TASK(NORMALIZE_BY_MOVING, normalize_by_moving_body)                     \
    TASK(SUM_GRADIENTS, sum_gradients_body)                                 \
    TASK(TURN_BACK_GRAIN, turn_back_grain_body)                             \
    TASK(TURN_BACK_FROZEN, turn_back_frozen_body)                           \
    TASK(ROWS_TO_NODES, rows_to_nodes_body)                                 \
    TASK(FIND_STATISTICS, find_statistics_body)                             \
    TASK(NORMALIZE_CELLS, normalize_cells_body)                             \
    TASK(TURN_BACK_CELLS, turn_back_cells_body)                             \
    TASK(SUMS_OF_CELLS, sums_of_cells_body)                                 \
    TASK(GROUP_OUTPUTS, group_outputs_body)                                 \
    TASK(GROUP_INPUTS, group_inputs_body)                                   \
    TASK(GROUP_WEIGHTS, group_weights_body)                                 \
    TASK(FILL, fill_body)                                                   \
    TASK(SPREAD, spread_body<uint32_t>)                                     \
    TASK(SPREAD_BYTES, spread_body<uint8_t>)                                \
    TASK(SOFTMAX, softmax_body<WARPS>)                                      \
    TASK(COLUMN_SUMS, column_sums_body<true>)                               \
    TASK(COLUMN_SUMS_GRAINS, column_sums_body<false>)                       \
    TASK(JOIN_GRAINS, lk_cuda_join_grains_body)                             \
    TASK(ROUTED_2, routed_body<2>)                                          \
    TASK(ROUTED_4, routed_body<4>)                                          \
    TASK(ROUTED_JOIN, lk_cuda_join_body<routed_job>)                        \
    TASK(UPDATE, update_body<false>)                                        \
    TASK(JOIN_AND_UPDATE, join_and_update_body)                             \
    TASK(STEP_END, step_end_body)                                           \
    JOB_TASKS(TASK, DENSE_FORWARD, dense_forward_job)                       \
    JOB_TASKS(TASK, DENSE_INPUT, dense_input_job)                           \
    JOB_TASKS(TASK, DENSE_WEIGHT, dense_weight_job)                         \
    JOB_TASKS(TASK, CONV_FORWARD, conv_forward_job<false>)                  \
    TASK(CONV_POOL_FORWARD, no_body)                                        \
    TASK(CONV_POOL_FORWARD_NARROW,                                          \
         (lk_cuda_sums_body<lk_cuda_task_narrow, conv_forward_job<true>>))  \
    TASK(CONV_POOL_FORWARD_JOIN, lk_cuda_join_body<conv_forward_job<true>>) \
    JOB_TASKS(TASK, CONV_INPUT, conv_input_job<false>)                      \
    TASK(CONV_PHASE,                                                        \
         (lk_cuda_sums_body<lk_cuda_task_small, conv_phase_job>))           \
    TASK(CONV_PHASE_NARROW,                                                 \
         (lk_cuda_sums_body<lk_cuda_task_narrow, conv_phase_job>))          \
    JOB_TASKS(TASK, CONV_POOL_INPUT, conv_input_job<true>)                  \
    JOB_TASKS(TASK, CONV_WEIGHT, conv_weight_job<false>)

// By their numbers. Called through a table, each has a stack frame of its own and they lie in one
// place: a frame of all bodies side by side would be more than a GPU sets aside for a thread.
typedef void (*carrier)(lk_cuda_at, const uint8_t *);
static __constant__ carrier carriers[LK_CUDA_BODY_COUNT] = {nullptr,
#define CARRIER(NUMBER, BODY) task_of<BODY>::run,
                                                            TASKS(CARRIER)
#undef CARRIER
};

static constexpr bool in_order(void) {
    const lk_cuda_body numbers[] = {LK_CUDA_BODY_NONE,
#define NUMBER_OF(NUMBER, BODY) LK_CUDA_BODY_##NUMBER,
                                    TASKS(NUMBER_OF)
#undef NUMBER_OF
    };
    for (uint32_t i = 0; i < LK_COUNT(numbers); i++) {
        if (numbers[i] != (lk_cuda_body)i) return false;
    }
    return LK_COUNT(numbers) == LK_CUDA_BODY_COUNT;
}
static_assert(in_order(), "a body stands at its number");

uint64_t lk_cuda_body_bytes(lk_cuda_body body) {
    static const uint64_t bytes[] = {0,
#define BYTES(NUMBER, BODY) sizeof(task_of<BODY>::arguments),
                                     TASKS(BYTES)
#undef BYTES
    };
    return bytes[body];
}

// --- the kernel ----------------------------------------------------------------------------------

// All blocks have come here, and see what the others wrote. Each has a barrier of its threads
// behind its last tile; its first thread speaks for them.
static inline __device__ void meet(lk_cuda_meeting *m) {
    if (threadIdx.x == 0) {
        volatile uint32_t *const now = &m->round;
        const uint32_t round = *now;
        __threadfence();
        if (atomicAdd(&m->arrived, 1) == gridDim.x - 1) {
            m->arrived = 0;
            __threadfence();
            *now = round + 1;
        }
        while (*now == round) __nanosleep(NAP_NS);
        __threadfence();
    }
    __syncthreads();
}

static __global__ void __launch_bounds__(LK_CUDA_THREADS, 2)
    persistent(const uint8_t *table, uint32_t copy_bytes, lk_cuda_meeting *meeting,
               uint32_t steps) {
    const lk_cuda_table head = *reinterpret_cast<const lk_cuda_table *>(table);
    uint4 *const copy = reinterpret_cast<uint4 *>(lk_cuda_shared + SHARED_FLOATS);
    for (uint32_t i = threadIdx.x; i < copy_bytes / sizeof(uint4); i += LK_CUDA_THREADS) {
        copy[i] = reinterpret_cast<const uint4 *>(table)[i];
    }
    __syncthreads();
    if (copy_bytes > 0) table = reinterpret_cast<const uint8_t *>(copy);
    const lk_cuda_level *levels = reinterpret_cast<const lk_cuda_level *>(table + head.level);
    const lk_cuda_task *tasks = reinterpret_cast<const lk_cuda_task *>(table + head.task);
    for (uint64_t n = 0; n < (uint64_t)steps * head.levels; n++) {
        const lk_cuda_level level = levels[n % head.levels];
        const lk_cuda_task *task = tasks + level.task;
        for (uint32_t tile = blockIdx.x; tile < level.tiles; tile += gridDim.x) {
            while (tile - task->tile >= task->tiles) task++;
            const uint32_t own = tile - task->tile, y = own / task->in_x;
            const lk_cuda_at at = {own - y * task->in_x, y, task->in_x, task->tiles / task->in_x};
            carriers[task->body](at, table + task->arguments);
            __syncthreads();  // what is shared is the next tile's
        }
        meet(meeting);
    }
}

// --- the host's part -----------------------------------------------------------------------------

int lk_cuda_persistent_blocks(uint32_t processors, uint32_t *blocks) {
    int of_each = 0;
    const cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &of_each, persistent, LK_CUDA_THREADS, SHARED_BYTES_MAX);
    *blocks = (uint32_t)of_each * processors;
    return error;
}

void lk_cuda_persistent_launch(lk_cuda_stream *s, const uint8_t *table, uint64_t bytes,
                               lk_cuda_meeting *meeting, uint32_t blocks, uint32_t steps) {
    const uint32_t copied = bytes <= COPY_BYTES_MAX ? (uint32_t)bytes : 0;
    cudaLaunchAttribute together = {};
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(LK_CUDA_THREADS);
    config.dynamicSmemBytes = SHARED_FLOATS * sizeof(float) + copied;
    config.stream = s->stream;
    config.attrs = &together;
    config.numAttrs = 1;
    if (s->error) return;
    s->error = cudaLaunchKernelEx(&config, persistent, table, copied, meeting, steps);
}

int lk_cuda_prepare_persistent(void) { return lk_cuda_prepare_kernels(persistent); }
