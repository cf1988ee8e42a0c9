// kernels.h - the kernels of ops/op.h as launches on a GPU: same operands, same bits.
//
// Plain C, and needs no CUDA header, so that the step (comm/cuda/step.h) can be written without
// one. A launch enqueues on its stream and returns: it never waits, allocates, copies or asks the
// device anything, so all of them can be captured into a graph. Pointers are device addresses
// unless said otherwise, aligned as ops/op.h says, and nothing is read beyond a tensor's end.
//
// Intended usage:
//   1. lk_cuda_prepare() once, before the seal: loads every kernel and raises its limits
//   2. stream.op = number of the op, then the op's launch
//   3. look at stream.error where it matters: launches after a failure do nothing
//
// What is not finite is not returned, as in the C kernels, but noted on the device: the lowest
// number of an op in state->bad_op, the lowest number of a parameter in state->bad_param.
#ifndef LOCKSTEP_OPS_CUDA_KERNELS_H
#define LOCKSTEP_OPS_CUDA_KERNELS_H

#include "arena/plan.h"
#include "ops/augment.h"
#include "ops/geometry.h"
#include "ops/metric.h"
#include "ops/moving.h"
#include "ops/optimizer.h"
#include "ops/order.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;  // what cudaStream_t points to

// What a device keeps of the run: the only thing that kernels write besides tensors. Starts as
// {first step, its image batch, 0, LK_NONE, LK_NONE, 0}; lk_cuda_step_end turns it over.
typedef struct lk_cuda_state {
    uint64_t step;       // number of the step in progress: where rings of scalars and results stand
    uint64_t batch;      // image batches before it: where that of examples stands
    uint32_t stopped;    // not 0: an earlier step was not finite; nothing is applied any more
    uint32_t bad_op;     // of the step in progress: lowest op with a result that is not finite
    uint32_t bad_param;  // likewise, lowest parameter whose update is not finite
    uint32_t counts[LK_METRIC_COUNTS_MAX];  // of the metrics
    uint32_t asks;  // not 0: a step with a flag (bad_op, a mean) is not applied, and stops nothing
    float penalty;  // what regularizers add to the loss (lk_cuda_weigh)
} lk_cuda_state;

// What the threads of a launch do, as far as its host code decides it. Counted where the grid is
// chosen, for who weighs launches without a GPU (tests/cuda/launches); no launch depends on it.
typedef struct lk_cuda_work {
    uint64_t items;  // threads with something to do; where there are more, each takes several
    uint64_t steps;  // that a thread makes for an item, one after another: terms, elements
    uint64_t fma;    // multiply-adds of products, those of a tile's padding too
    uint64_t bytes;  // asked of memory and its caches
} lk_cuda_work;

// Steps whose operands a thread fetches before it waits for the first of them, where nothing else
// is said: what an unrolled loop does.
enum { LK_CUDA_STEPS_AHEAD = 16 };

typedef struct lk_cuda_launched {
    uint32_t op;
    void (*kernel)(void);
    uint32_t blocks[3], threads;
    uint64_t shared_bytes;
    uint32_t ahead;  // steps that a trip to memory feeds
    lk_cuda_work work;
} lk_cuda_launched;

// Of the compute capability: GPUs from here on know dependent launches.
enum { LK_CUDA_DEPENDENT_MAJOR_MIN = 9 };

// Who is told of launches, which then do nothing else.
typedef struct lk_cuda_observer {
    void (*launched)(void *context, const lk_cuda_launched *launch);
    void *context;
} lk_cuda_observer;

// Where launches go, and in whose name.
typedef struct lk_cuda_stream {
    struct CUstream_st *stream;
    lk_cuda_state *state;  // of the device
    float *scratch;        // lk_cuda_op_scratch_floats() at least; contents mean nothing
    uint32_t op;           // number of the op being launched; LK_NONE: what it finds not finite
    uint32_t quiet_op;     // is no flag, and this is its number
    bool beside;           // it is the second of two that are under way at once
    bool dependent;        // a kernel may start while the one before it is under way (device.h)
    bool follows;          // .. if the last thing in the stream was a kernel of ours
    bool rehearses;        // launches do nothing: what comes later is only prepared (blas.h)
    int error;             // 0, or the first cudaError_t
    const lk_cuda_observer *observer;  // NULL: launches are launched
    struct lk_cuda_tasks *tasks;       // .. unless they are kept here (tasks.h)
    // NULL, or where an op whose sums are cut in parts says where in its scratch it left them: then
    // it does not join them. Its scratch must stay.
    struct lk_cuda_parts *left;
} lk_cuda_stream;

// Loads all kernels into the current device, so that no launch does. Returns a cudaError_t.
int lk_cuda_prepare(void);

// How many blocks a launch should have, where it can: two for each multiprocessor of the GPUs this
// is made for. It decides how sums are spread, and so how much scratch they need; never a bit.
// Tests change it.
extern uint32_t lk_cuda_blocks_wanted;

// --- data --------------------------------------------------------------------------------------

// Where LOAD finds the examples of a step. Two ways:
//   streamed  image and label i of the batch lie in slot `batch % slots` of a ring
//   resident  images and labels are the data set, or the part of it from `kept` on; which example
//             of them is at a position, LOAD computes from the order of the epoch
// A position of the batch may have no example (order "sharded", ops/order.h): its label is
// LK_CUDA_NO_EXAMPLE. It is computed as zeros and adds +0 to gradients and loss. Of sequences it
// is a row of zeros: no frames.
#define LK_CUDA_NO_EXAMPLE UINT32_MAX

typedef struct lk_cuda_source {
    const uint8_t *images;  // of `floats` bytes each, or floats
    const uint32_t *labels;
    bool resident;
    lk_example_order order;  // of resident data; its table of shards is the device's
    uint64_t epoch_batches;  // of it
    uint64_t kept;           // of it: number of the first example there is
    uint32_t slots;          // of a ring: 1 or more
    uint32_t slot_examples;  // from one slot to the next
    bool is_f32, big_endian;  // images are floats, and not in the machine's order
    bool is_signed;           // of bytes: the input range is -1 .. 1
    float middle;             // what contrast leaves as it is
    bool train, augments;     // of an evaluation all but mean and deviation are left out
    lk_augment augment;
    uint32_t h, w, c;    // of an image
    uint32_t label_row;  // labels of an example; above 1 a sequence: its frames, of h, then labels
    uint64_t seed;
    uint32_t first_example;  // number in the global batch of the first one of a slot
} lk_cuda_source;

// x[m][i] = (float)byte * 0x1.010102p-8f, or of the signed range ((float)byte - 127.5f) / 127.5f,
// or the float; and what ops/augment.h makes of it; labels[m]: of examples [first, first + m_count)
// of the step's batch. Frames behind a sequence's own are +0.
//                                  x (m_count, floats), labels (m_count, label_row)
void lk_cuda_load(lk_cuda_stream *s, const lk_cuda_source *source, uint32_t first, uint32_t m_count,
                  uint64_t floats, float *x, uint32_t *labels);

// --- forward, and gradients of activations -------------------------------------------------------

// As the formulas of ops/layers/ have them.
void lk_cuda_dense_forward(lk_cuda_stream *s, const lk_dense *d, uint32_t m_count, const float *x,
                           const float *w, const float *bias, float *y);
void lk_cuda_dense_input_gradient(lk_cuda_stream *s, const lk_dense *d, uint32_t m_count,
                                  const float *w, const float *dy, const float *mask, float *dx);
void lk_cuda_conv2d_forward(lk_cuda_stream *s, const lk_conv2d *c, uint32_t m_count, const float *x,
                            const float *w, const float *bias, float *y);
void lk_cuda_conv2d_pool_forward(lk_cuda_stream *s, const lk_conv2d *c, uint32_t m_count,
                                 const float *x, const float *w, const float *bias, float *y,
                                 uint8_t *argmax);
// .. y as an operand of 16 bits (operand.h), which dtype says.
void lk_cuda_conv2d_pool_forward_narrow(lk_cuda_stream *s, const lk_conv2d *c, uint32_t m_count,
                                        const float *x, const float *w, const float *bias,
                                        lk_dtype dtype, uint16_t *y, uint8_t *argmax);
void lk_cuda_conv2d_input_gradient(lk_cuda_stream *s, const lk_conv2d *c, uint32_t m_count,
                                   const float *w, const float *dy, const float *mask, float *dx);
// A transposed convolution, of the geometry of the convolution whose input gradient it is.
void lk_cuda_conv2d_transpose_forward(lk_cuda_stream *s, const lk_conv2d *c, uint32_t m_count,
                                      const float *x, const float *w, const float *bias, float *y);
void lk_cuda_conv2d_pool_input_gradient(lk_cuda_stream *s, const lk_conv2d *c, uint32_t m_count,
                                        const float *w, const float *dy, const uint8_t *argmax,
                                        const float *mask, float *dx);
void lk_cuda_max_pool_forward(lk_cuda_stream *s, const lk_pool2d *p, uint32_t m_count,
                              const float *x, float *y, uint16_t *argmax);
void lk_cuda_max_pool_backward(lk_cuda_stream *s, const lk_pool2d *p, uint32_t m_count,
                               const float *dy, const uint16_t *argmax, float *dx);
void lk_cuda_relu_forward(lk_cuda_stream *s, uint64_t count, const float *x, float *y);
void lk_cuda_relu_backward(lk_cuda_stream *s, uint64_t count, const float *y, const float *dy,
                           float *dx);

// Adds the number of right predictions to state->counts[0]. dlogits may be NULL. `weights` are the
// classes', NULL: all are 1. Where the label is
// LK_CUDA_NO_EXAMPLE, loss and dlogits are computed as for label 0, and +0 is stored. Any other
// label from `classes` on is no class: the example's loss is NaN, and reported.
void lk_cuda_softmax_cross_entropy(lk_cuda_stream *s, uint32_t m_count, uint32_t classes,
                                   float smoothing, const float *weights, const float *logits,
                                   const uint32_t *labels, float *dlogits, float *loss);

// --- gradients of parameters ---------------------------------------------------------------------

// The grains whose node is wanted: consecutive, so that example e of grain g is row g * grain + e
// of each tensor. As with lk_grain_view, they are one whole node of the tree.
typedef struct lk_cuda_grains {
    const float *x;         // row 0: input of the layer (NULL for column sums)
    const float *dy;        // row 0: gradient of its output
    const uint8_t *argmax;  // row 0: fused pooling; else NULL
    uint32_t grain;         // examples of a grain
    uint32_t examples;      // 1 or more; the last grain has what is left
} lk_cuda_grains;

void lk_cuda_dense_weight_gradient(lk_cuda_stream *s, const lk_dense *d,
                                   const lk_cuda_grains *grains, float *dw);
void lk_cuda_column_sums(lk_cuda_stream *s, uint32_t n_count, const lk_cuda_grains *grains,
                         float *out);
// Adds up, for each label, the rows that have it: out (labels, n_count). `ids`: the label of each
// row.
void lk_cuda_label_sums(lk_cuda_stream *s, uint32_t labels, uint32_t n_count,
                        const lk_cuda_grains *grains, const uint32_t *ids, float *out);
void lk_cuda_conv2d_weight_gradient(lk_cuda_stream *s, const lk_conv2d *c,
                                    const lk_cuda_grains *grains, float *dw, float *db);
void lk_cuda_conv2d_pool_weight_gradient(lk_cuda_stream *s, const lk_conv2d *c,
                                         const lk_cuda_grains *grains, float *dw, float *db);
// db of lk_cuda_conv2d_weight_gradient alone; grains->x is not read.
void lk_cuda_conv2d_bias_gradient(lk_cuda_stream *s, const lk_conv2d *c,
                                  const lk_cuda_grains *grains, float *db);

// Copies leaf number `leaf` of each of `grains` grains to its place: leaf l of grain g is at
// to + (g * leaves + l) * bytes. `from` has them one after the other, `live` bytes in all; the rest
// is zeros. Addresses are aligned to 16 bytes.
void lk_cuda_spread(lk_cuda_stream *s, uint64_t bytes, uint32_t grains, uint64_t live,
                    uint32_t leaves, uint32_t leaf, const void *from, void *to);

// Scratch of a launch for at most `examples` examples, in floats. Kernels that are not named need
// none.
uint64_t lk_cuda_dense_scratch_floats(const lk_dense *d, uint32_t grain, uint32_t examples);
// .. where every example has `rows` rows.
uint64_t lk_cuda_dense_rows_scratch_floats(const lk_dense *d, uint32_t rows, uint32_t grain,
                                           uint32_t examples);
uint64_t lk_cuda_conv2d_scratch_floats(const lk_conv2d *c, uint32_t grain, uint32_t examples);
uint64_t lk_cuda_conv2d_bias_scratch_floats(const lk_conv2d *c, uint32_t grain, uint32_t examples);
uint64_t lk_cuda_norm_scratch_floats(const lk_batch_norm *n, uint32_t grain, uint32_t examples);

// --- kernels divided by their norms --------------------------------------------------------------

// As lk_spectral of ops/graph/spectral.h, in device memory. What is no vector: 1 / sigma, or 1
// where the kernel is not divided and, says the other number, its vector and gradient stay.
enum { LK_CUDA_SPECTRAL_FACTOR, LK_CUDA_SPECTRAL_STILL };
typedef struct lk_cuda_spectral {
    const float *w, *u;
    float *normalized, *v, *n, *numbers;
    uint32_t rows, columns;
    uint32_t dtype;  // lk_dtype that the normalized kernel is rounded to
} lk_cuda_spectral;

// As lk_spectral_make.
void lk_cuda_spectral_make(lk_cuda_stream *s, const lk_cuda_spectral *spectral);
uint64_t lk_cuda_spectral_scratch_floats(uint32_t rows, uint32_t columns);

// --- REDUCE and APPLY ----------------------------------------------------------------------------

// out[i] = a[i] + b[i]; out may be a or b.
void lk_cuda_add(lk_cuda_stream *s, uint64_t count, const float *a, const float *b, float *out);

// The whole nodes that make up a batch, from left to right, as a table in device memory. After
// entry i is taken, the two topmost sums are added `merges` times (lk_counter_push says how often);
// what is left at the end is added from the right.
typedef struct lk_cuda_node {
    const float *values;
    uint64_t merges;
} lk_cuda_node;

// Sums whose parts an op left (lk_cuda_stream.left): part n of sum i lies at at[n * stride + i]. A
// sum is the tree over its parts.
typedef struct lk_cuda_parts {
    const float *at;          // NULL: there are none
    uint64_t stride, floats;  // floats: of all that the op left
    uint32_t count;           // 1 or more
    uint32_t first_block;     // of the parameter's update
} lk_cuda_parts;

// Quotients of numbers below 2^31 by a multiplication.
typedef struct lk_cuda_divisor {
    uint32_t by, magic, shift;
} lk_cuda_divisor;

static inline lk_cuda_divisor lk_cuda_divide_by(uint32_t by) {
    lk_cuda_divisor d = {by, 0, 0};
    while ((uint64_t)1 << d.shift < by) d.shift++;
    d.magic = (uint32_t)((((uint64_t)1 << 32) * (((uint64_t)1 << d.shift) - by)) / by + 1);
    return d;
}

// One parameter, or a state that follows the sums of a step, in a table in device memory, ascending
// in node_offset. One that is not updated has no elements, and the place of the next.
typedef struct lk_cuda_param {
    uint64_t node_offset;  // of its gradient, in floats from the start of a node
    uint64_t count;
    float *w;
    float *slots[LK_OPTIMIZER_SLOTS_MAX];
    lk_moving moving;      // of a state; terms 0: a parameter
    uint64_t first_slice;  // of its slices of LK_SLICE_TERMS elements among all entries'
    float l2;              // its regularizer's; 0: it has none
    float clip;            // what it is cut to once it is updated; 0: it is not
    // Mixed precision: what products take of w, and of its average: rounded. NULL: themselves.
    float *rounded, *rounded_average;
    uint32_t dtype;  // lk_dtype that they are rounded to
    // A kernel of spectral_normalization, which products took divided: its gradient is turned, and
    // n becomes its vector. NULL: it is none.
    float *vector;
    const float *v, *n, *numbers;
    lk_cuda_divisor columns;
} lk_cuda_param;

// Where an update that asks for norms (ops/optimizer.h) keeps what it finds, in device memory;
// all NULL where it asks for none, or where the scalars are those of one parameter already. With an
// optimizer that asks for none: products of gradients and kernels of spectral_normalization. The
// slices of all entries have `slices` pairs of sums; behind the pairs of the entries is one more.
typedef struct lk_cuda_norms {
    float *gradient;       // (slices, LK_SLICE_TERMS)
    float *squares;        // (slices, 2)
    float *sums;           // (param_count + 1, 2)
    lk_step_scalars *own;  // (param_count) the scalars of each
    uint64_t slices;
} lk_cuda_norms;

// Where the squares of regularized parameters are added, in device memory: of the slices of all
// entries, and of each entry. NULL where there are none.
typedef struct lk_cuda_penalty {
    float *squares;  // (slices)
    float *sums;     // (param_count)
    uint64_t slices;
} lk_cuda_penalty;

// The penalty of all regularizers into the state, as lk_norms_weigh of comm/step/norms.h. Of slot
// `average` in place of w, LK_NONE: of w.
void lk_cuda_weigh(lk_cuda_stream *s, const lk_cuda_param *params, uint32_t param_count,
                   lk_cuda_penalty penalty, uint32_t average);

// Where the scalars of a step lie, in device memory: slot `step % slots` of a ring, which the host
// fills, so that a graph that was recorded once finds each step's own.
typedef struct lk_cuda_scalars {
    const lk_step_scalars *ring;
    uint32_t slots;  // 1 or more
} lk_cuda_scalars;

// The nodes of the metrics' sums, `sums` floats each; as many as those of the gradients.
typedef struct lk_cuda_metrics {
    const lk_cuda_node *nodes;
    uint32_t sums;
} lk_cuda_metrics;

// The optimizer step of all parameters at once: sum = the tree over `nodes`, then as ops/op.h
// says of apply. Entry p of `params` is parameter number p. node_floats: where the last one ends,
// or more. Does nothing once the state is stopped, nor in a step with a flag where the state asks.
void lk_cuda_update(lk_cuda_stream *s, const lk_optimizer *o, const lk_cuda_param *params,
                    uint32_t param_count, uint64_t node_floats, const lk_cuda_node *nodes,
                    uint32_t node_count, lk_cuda_metrics metrics, lk_cuda_norms norms,
                    lk_cuda_scalars scalars);

// The same of one node, where gradients may have been left in parts: entry p of `parts`, in device
// memory, is parameter number p's; where it has none its gradient lies in the node. No norms.
typedef struct lk_cuda_joining {
    const lk_cuda_parts *parts;
    uint64_t blocks, elements;
    lk_cuda_work work;
} lk_cuda_joining;
void lk_cuda_join_and_update(lk_cuda_stream *s, const lk_optimizer *o, const lk_cuda_param *params,
                             uint32_t param_count, lk_cuda_joining joining,
                             const lk_cuda_node *node, lk_cuda_metrics metrics,
                             lk_cuda_scalars scalars);

// Counts a parameter of `count` elements, whose gradient has `parts` parts, 1 or more; takes back
// one that was counted with 1. The blocks of a parameter: those of parameter p come before those of
// p + 1 (lk_cuda_parts.first_block).
void lk_cuda_joining_add(lk_cuda_joining *joining, uint64_t count, uint32_t parts);
void lk_cuda_joining_change(lk_cuda_joining *joining, uint64_t count, uint32_t parts);
uint64_t lk_cuda_joining_blocks(uint64_t count, uint32_t parts);

// --- REDUCE with other devices -------------------------------------------------------------------

// out[i] = the tree over float first + i of `nodes`, which make up one whole node or the batch; a
// table as above.
void lk_cuda_join(lk_cuda_stream *s, const lk_cuda_node *nodes, uint32_t node_count, uint64_t first,
                  uint64_t count, float *out);

// What else devices tell each other of a step: of the state, before the update.
typedef struct lk_gpu_report {
    uint32_t counts[LK_METRIC_COUNTS_MAX], bad_op;
} lk_gpu_report;
void lk_cuda_report_write(lk_cuda_stream *s, lk_gpu_report *note);
// The notes of all devices become the state of each.
void lk_cuda_report_join(lk_cuda_stream *s, const lk_gpu_report *notes, uint32_t count);

// --- the end of a step ---------------------------------------------------------------------------

// What the host reads of a step, in a ring in pinned host memory.
typedef struct lk_cuda_result {
    uint64_t step;
    float means[LK_METRIC_SUMS_MAX];  // of the metrics: (sum + 0) * (1 / examples of the scalars),
                                      // with the penalty in the first
    uint32_t counts[LK_METRIC_COUNTS_MAX];
    uint32_t bad_op, bad_param;
    uint32_t not_finite;  // a mean is not, or one of the above is set
    uint32_t padding;
} lk_cuda_result;

// Writes slot `step % slots` of the ring, makes the stop sticky, and turns the state over to the
// next step. A stopped run writes nothing more.
// `images`: the step has read a batch of them.
void lk_cuda_step_end(lk_cuda_stream *s, lk_cuda_metrics metrics, uint32_t node_count,
                      lk_cuda_scalars scalars, bool images, lk_cuda_result *ring, uint32_t slots);

// --- the memory checking mode (ops/graph/check.h) ------------------------------------------------

// words[i] = value; and: *broken becomes the least of it and number + i, for each byte i that is
// not `value`.
void lk_cuda_fill(lk_cuda_stream *s, uint64_t words, uint32_t value, uint32_t *to);
void lk_cuda_check_bytes(lk_cuda_stream *s, uint64_t bytes, uint8_t value, const uint8_t *from,
                         uint32_t number, uint32_t *broken);

#ifdef __cplusplus
}
#endif
#endif
