// tasks.h - the launches of a step as tasks of one persistent kernel (persistent.cu): a static
// table of (level, task, tile). Plain C, and needs no CUDA header.
//
// A launch is a grid of tiles, a tile what a block does. Where a stream has a list of tasks
// (lk_cuda_stream.tasks), launches are not launched but kept there: the number of the body that a
// block carries out, the arguments as bytes, the grid, and the ranges of memory that it reads and
// writes. A task's level is above those of all earlier tasks that write what it touches, or touch
// what it writes. So the tasks of a level may run at once, and a barrier of the whole grid between
// levels is all that orders them. The table, in device memory:
//
//   | lk_cuda_table | levels | tasks, by level | arguments, each aligned |
//
// Blocks of the persistent kernel stride over the tiles of a level, meet, and go on with the next
// one; after the last level with the next step. How tiles are dealt changes no bit: the bodies are
// those of the launches.
#ifndef LOCKSTEP_OPS_CUDA_TASKS_H
#define LOCKSTEP_OPS_CUDA_TASKS_H

#include "ops/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    LK_CUDA_TASKS_MAX = 320,
    LK_CUDA_TASK_SPANS_MAX = 8,               // of a task
    LK_CUDA_ARGUMENTS_BYTES_MAX = 64 * 1024,  // of a step
    LK_CUDA_TABLE_BYTES_MAX = 76 * 1024,      // .. with all else that its table holds
    LK_CUDA_TASK_ALIGN_BYTES = 16,
};

// The bodies. A job of sums.h has three: of its two tiles, and of what joins their parts.
#define LK_CUDA_JOB_BODIES(JOB) \
    LK_CUDA_BODY_##JOB, LK_CUDA_BODY_##JOB##_NARROW, LK_CUDA_BODY_##JOB##_JOIN
typedef enum lk_cuda_body {
    LK_CUDA_BODY_NONE,  // the launch has none: no persistent kernel makes such a step
    LK_CUDA_BODY_LOAD,
    LK_CUDA_BODY_RELU,
    LK_CUDA_BODY_RELU_BACKWARD,
    LK_CUDA_BODY_ADD,
    LK_CUDA_BODY_MAX_POOL,
    LK_CUDA_BODY_MAX_POOL_BACKWARD,
    LK_CUDA_BODY_TANH,
    LK_CUDA_BODY_TANH_BACKWARD,
    LK_CUDA_BODY_SIGMOID,
    LK_CUDA_BODY_SIGMOID_BACKWARD,
    LK_CUDA_BODY_DROP,
    LK_CUDA_BODY_AVERAGE,
    LK_CUDA_BODY_AVERAGE_BACKWARD,
    LK_CUDA_BODY_SUM,
    LK_CUDA_BODY_COPY,
    LK_CUDA_BODY_NEGATE,
    LK_CUDA_BODY_LEAKY_RELU,
    LK_CUDA_BODY_LEAKY_RELU_BACKWARD,
    LK_CUDA_BODY_RELU6,
    LK_CUDA_BODY_RELU6_BACKWARD,
    LK_CUDA_BODY_ELU,
    LK_CUDA_BODY_ELU_BACKWARD,
    LK_CUDA_BODY_SOFTPLUS,
    LK_CUDA_BODY_SOFTPLUS_BACKWARD,
    LK_CUDA_BODY_SWISH,
    LK_CUDA_BODY_SWISH_BACKWARD,
    LK_CUDA_BODY_GELU,
    LK_CUDA_BODY_GELU_BACKWARD,
    LK_CUDA_BODY_GELU_TANH,
    LK_CUDA_BODY_GELU_TANH_BACKWARD,
    LK_CUDA_BODY_NOISE,
    LK_CUDA_BODY_CONCATENATE,
    LK_CUDA_BODY_CONCATENATE_GRADIENT,
    LK_CUDA_BODY_ZERO_PADDING,
    LK_CUDA_BODY_ZERO_PADDING_BACKWARD,
    LK_CUDA_BODY_SQUARES,
    LK_CUDA_BODY_MEAN,
    LK_CUDA_BODY_BINARY,
    LK_CUDA_BODY_GAN,
    LK_CUDA_BODY_SUM_GRAIN,
    LK_CUDA_BODY_SQUARE_GRAIN,
    LK_CUDA_BODY_NORMALIZE_GRAIN,
    LK_CUDA_BODY_NORMALIZE_BY_MOVING,
    LK_CUDA_BODY_SUM_GRADIENTS,
    LK_CUDA_BODY_TURN_BACK_GRAIN,
    LK_CUDA_BODY_TURN_BACK_FROZEN,
    LK_CUDA_BODY_ROWS_TO_NODES,
    LK_CUDA_BODY_FIND_STATISTICS,
    LK_CUDA_BODY_NORMALIZE_CELLS,
    LK_CUDA_BODY_TURN_BACK_CELLS,
    LK_CUDA_BODY_SUMS_OF_CELLS,
    LK_CUDA_BODY_GROUP_OUTPUTS,
    LK_CUDA_BODY_GROUP_INPUTS,
    LK_CUDA_BODY_GROUP_WEIGHTS,
    LK_CUDA_BODY_FILL,
    LK_CUDA_BODY_SPREAD,
    LK_CUDA_BODY_SPREAD_BYTES,
    LK_CUDA_BODY_SOFTMAX,
    LK_CUDA_BODY_COLUMN_SUMS,         // of one tree
    LK_CUDA_BODY_COLUMN_SUMS_GRAINS,  // of a tree for each grain
    LK_CUDA_BODY_JOIN_GRAINS,
    LK_CUDA_BODY_ROUTED_2,
    LK_CUDA_BODY_ROUTED_4,
    LK_CUDA_BODY_ROUTED_JOIN,
    LK_CUDA_BODY_UPDATE,
    LK_CUDA_BODY_JOIN_AND_UPDATE,
    LK_CUDA_BODY_STEP_END,
    LK_CUDA_JOB_BODIES(DENSE_FORWARD),
    LK_CUDA_JOB_BODIES(DENSE_INPUT),
    LK_CUDA_JOB_BODIES(DENSE_WEIGHT),
    LK_CUDA_JOB_BODIES(CONV_FORWARD),
    LK_CUDA_JOB_BODIES(CONV_POOL_FORWARD),  // whose small tile is none: four rows are a thread's
    LK_CUDA_JOB_BODIES(CONV_INPUT),
    LK_CUDA_BODY_CONV_PHASE,  // joined as CONV_INPUT
    LK_CUDA_BODY_CONV_PHASE_NARROW,
    LK_CUDA_JOB_BODIES(CONV_POOL_INPUT),
    LK_CUDA_JOB_BODIES(CONV_WEIGHT),
    LK_CUDA_BODY_COUNT,
} lk_cuda_body;

// --- recording -----------------------------------------------------------------------------------

// What a launch touches. One of which nothing is said conflicts with all others.
typedef struct lk_cuda_span {
    const void *from;
    uint64_t bytes;
    bool writes;
} lk_cuda_span;

typedef struct lk_cuda_spans {
    lk_cuda_span span[LK_CUDA_TASK_SPANS_MAX];
    uint32_t count;
} lk_cuda_spans;

static inline void lk_cuda_touches(lk_cuda_spans *s, const void *from, uint64_t floats,
                                   bool writes) {
    lk_assert(s->count < LK_CUDA_TASK_SPANS_MAX);
    if (!from) return;
    const lk_cuda_span span = {from, floats * sizeof(float), writes};
    s->span[s->count++] = span;
}
static inline void lk_cuda_reads(lk_cuda_spans *s, const void *from, uint64_t floats) {
    lk_cuda_touches(s, from, floats, false);
}
static inline void lk_cuda_writes(lk_cuda_spans *s, const void *from, uint64_t floats) {
    lk_cuda_touches(s, from, floats, true);
}

// A task that is kept: a launch as its launching code chose it.
typedef struct lk_cuda_kept {
    lk_cuda_launched launched;
    uint32_t body, level;
    uint32_t arguments;  // where they are in the list's
    lk_cuda_spans spans;
} lk_cuda_kept;

typedef struct lk_cuda_tasks {
    lk_cuda_kept kept[LK_CUDA_TASKS_MAX];
    uint32_t count, levels;
    uint8_t arguments[LK_CUDA_ARGUMENTS_BYTES_MAX];
    uint32_t used;
    const char *refused;  // why there is no table of these launches, or NULL
    uint32_t refused_op;  // the op of which that is said, or LK_NONE
} lk_cuda_tasks;

void lk_cuda_tasks_open(lk_cuda_tasks *tasks);

// Keeps a launch; `bytes` is what its body takes. After a refusal nothing is kept any more.
void lk_cuda_tasks_keep(lk_cuda_tasks *tasks, lk_cuda_body body, const lk_cuda_launched *launched,
                        const lk_cuda_spans *spans, const void *arguments, uint64_t bytes);

// --- the table -----------------------------------------------------------------------------------

typedef struct lk_cuda_level {
    uint32_t task, tiles;  // its first task, and the tiles of all its tasks
} lk_cuda_level;

typedef struct lk_cuda_task {
    uint32_t body;
    uint32_t tile;         // the first of its tiles, in its level
    uint32_t tiles, in_x;  // how many, and in a row of its grid
    uint32_t arguments;    // bytes from the start of the table
} lk_cuda_task;

typedef struct lk_cuda_table {
    uint32_t levels;
    uint32_t level, task;  // bytes from the start of the table
    uint32_t padding;
} lk_cuda_table;

// Bytes of the table, a multiple of LK_CUDA_TASK_ALIGN_BYTES, and the table, aligned to that.
uint64_t lk_cuda_tasks_bytes(const lk_cuda_tasks *tasks);
void lk_cuda_tasks_write(const lk_cuda_tasks *tasks, uint8_t *to);

// What a launch as a node of a graph, and a step as tasks, is reckoned to take on an H100, in
// seconds; of mnist-cnn one took 3 to 4 times the first and 10 times the second. The formulas stand
// in tests/cuda/launches/budget_test.py.
double lk_cuda_launch_seconds(const lk_cuda_launched *launched);
double lk_cuda_tasks_seconds(const lk_cuda_tasks *tasks);

// --- the persistent kernel -----------------------------------------------------------------------

// Where its blocks meet, in device memory; zeros before the first launch.
typedef struct lk_cuda_meeting {
    uint32_t arrived, padding[31];  // in a cache line of its own
    uint32_t round;
} lk_cuda_meeting;

// Bytes of a body's arguments.
uint64_t lk_cuda_body_bytes(lk_cuda_body body);

// Sets *blocks to how many blocks of the persistent kernel a GPU of `processors` multiprocessors
// holds at once. Returns a cudaError_t.
int lk_cuda_persistent_blocks(uint32_t processors, uint32_t *blocks);

// Launches the persistent kernel in `blocks` blocks, for `steps` steps of `table` (`bytes`).
void lk_cuda_persistent_launch(lk_cuda_stream *s, const uint8_t *table, uint64_t bytes,
                               lk_cuda_meeting *meeting, uint32_t blocks, uint32_t steps);

#ifdef __cplusplus
}
#endif
#endif
