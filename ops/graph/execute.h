// execute.h - runs ops of a program on one replica's memory. Freestanding; knows no thread, and of
// other replicas no more than lk_together says.
#ifndef LOCKSTEP_OPS_EXECUTE_H
#define LOCKSTEP_OPS_EXECUTE_H

#include "ops/graph/program.h"
#include "ops/tree.h"

// Where examples come from. Implemented by whoever owns the data; must not allocate.
typedef struct lk_source {
    void *context;
    // index[i] = that of the example at `position + i` of epoch `epoch`: a permutation of the whole
    // set. Anything where there is none (lk_position_exists).
    void (*order)(void *context, uint64_t epoch, uint64_t position, uint32_t count,
                  uint64_t *index);
    // in_h * in_w * in_c values of the model's input type, at any address. Floats are big-endian,
    // as IDX files have them, or the machine's where the source is native.
    const uint8_t *(*image)(void *context, uint64_t index);
    // < classes. Of a model whose labels are sequences number `index` of all examples' rows of
    // labels, lk_model_label_row numbers each (lk_joint, ops/geometry.h).
    uint32_t (*label)(void *context, uint64_t index);
    bool native;
    // Of strips: the images of the one at `position` of epoch `epoch`, at most LK_STRIP_IMAGES_MAX,
    // and how many. `order` is not called then, and `label` says those of images. NULL: an example
    // is one image.
    uint32_t (*strip)(void *context, uint64_t epoch, uint64_t position, uint64_t *images);
    bool crops;  // images are as large as lk_augment.crop_h and crop_w say, and LOAD takes a part
} lk_source;

// The replicas of a process, where each is a thread and has as many microbatches in the step as any
// other: they compute ops that are divided together.
typedef struct lk_together {
    uint32_t count;
    lk_lane **lanes;              // (count) of the op under way
    void (*meet)(void *context);  // called by every replica: none goes on before all have come
    void *context;
} lk_together;

// The examples of a microbatch: which they are, and how their grains fall into whole tree nodes.
typedef struct lk_microbatch {
    uint32_t first_grain, grain_count;  // of the global batch
    uint32_t examples;
    uint32_t total_grains;  // present in this step
    bool shuffled;          // false: examples in the order of the set (evaluation)
    bool sparse;            // some positions may have no example (lk_position_exists): they are
                            // computed as zeros, and add +0 to gradients and loss
    uint64_t step;      // of training: its number
    uint64_t epoch;
    uint64_t position;  // of the microbatch's first example
    const lk_together *together;  // NULL: the replica computes its own examples alone
    uint32_t number;              // of the replica among those
} lk_microbatch;

// Grains [at, end) of the step that make one whole node of the tree.
typedef struct lk_block {
    lk_node node;
    uint32_t at, end;
} lk_block;

// The first block of a microbatch, at its first grain; or the one that follows. Past the last, at
// is the microbatch's end.
static inline lk_block lk_microbatch_block(const lk_microbatch *microbatch, uint32_t at) {
    uint32_t end = microbatch->first_grain + microbatch->grain_count;
    lk_block block = {.at = at, .end = at};
    if (at >= end) return block;
    block.node = lk_next_block(at, end, microbatch->total_grains);
    uint64_t reach = (uint64_t)(block.node.index + 1) << block.node.level;
    block.end = (uint32_t)LK_MIN(reach, end);
    return block;
}

typedef struct lk_frame lk_frame;

// What of a walk depends on where it runs: on this machine, or on a device (comm/cuda/walk.h).
typedef struct lk_walker {
    void (*before)(lk_frame *f, uint32_t op);
    void (*source)(lk_frame *f, const lk_op *op, const lk_microbatch *microbatch, bool train);
    // A kernel of the microbatch has been called and said `bad`.
    void (*examples)(lk_frame *f, uint32_t op, const lk_microbatch *microbatch, const lk_lane *lane,
                     uint32_t bad);
    // Sums over grains go to the nodes of the microbatch's blocks.
    void (*metric)(lk_frame *f, const lk_op *op, const lk_microbatch *microbatch,
                   lk_counter *after);
    void (*grains)(lk_frame *f, const lk_op *op, const lk_microbatch *microbatch);
    // Of a transducer, in evaluation. NULL: none is computed here.
    void (*decode)(lk_frame *f, uint32_t op, const lk_microbatch *microbatch);
    void (*after)(lk_frame *f, uint32_t op, bool train);
} lk_walker;

// What one replica works with.
struct lk_frame {
    LK_WIDE const lk_program *program;
    LK_WIDE const lk_kernels *kernels;
    LK_WIDE const lk_source *source;
    LK_WIDE uint8_t *device;     // start of the device region
    LK_WIDE uint8_t *replica;    // start of this replica's region
    LK_WIDE lk_counter counter;  // the nodes held, after the ops of the microbatches so far
    float sums[LK_BLOCKS_MAX][LK_METRIC_SUMS_MAX];  // of the metrics, of each node held
    lk_ahead ahead;                         // what others update of the weights, to be fetched
    uint32_t counts[LK_METRIC_COUNTS_MAX];  // of the metrics, in the microbatches so far
    uint32_t bad_op;                        // first op of which a result was not finite, or LK_NONE
    // What lanes carry as `device`; begins with lk_mixed_device (ops/graph/mixed.h).
    LK_WIDE void *lane_device;
};

static inline void *lk_tensor_at(const lk_frame *f, uint32_t tensor) {
    if (tensor == LK_NONE) return NULL;
    const lk_tensor *t = &f->program->tensors[tensor];
    return (t->region == LK_REGION_DEVICE ? f->device : f->replica) + t->offset;
}

static inline float *lk_param_at(const lk_frame *f, uint32_t param) {
    return param == LK_NONE ? NULL : (float *)lk_tensor_at(f, f->program->params[param].tensor);
}

// What products take of it, where it lies for all replicas.
static inline float *lk_param_shown_at(const lk_frame *f, uint32_t param) {
    const uint32_t rounded = f->program->params[param].rounded;
    const bool mine = rounded == LK_NONE || lk_param_is_spectral(f->program, param);
    return mine ? lk_param_at(f, param) : (float *)lk_tensor_at(f, rounded);
}

// Slot `slot` of the replica's tree nodes.
static inline float *lk_node_at(const lk_frame *f, uint32_t slot) {
    return (float *)lk_tensor_at(f, f->program->nodes) + slot * f->program->node_floats;
}

// --- which example comes when --------------------------------------------------------------------

// Example i of a microbatch: is there none at its position?
static inline bool lk_is_missing(const lk_run_spec *spec, const lk_microbatch *microbatch,
                                 uint64_t i) {
    return microbatch->sparse && !lk_position_exists(spec, microbatch->position + i);
}

// The examples of a microbatch one after another. Those of a shuffled epoch lie all over a mapped
// file: each is asked for some examples ahead. Their numbers are asked for many at once.
enum { LK_COMING = 4, LK_COMING_NUMBERS = 32 };
typedef struct lk_coming {
    const lk_run_spec *spec;
    const lk_source *source;
    const lk_microbatch *microbatch;
    uint64_t bytes;  // of an image
    uint8_t *room;   // where a strip is made
    const uint8_t *image[LK_COMING];
    uint64_t index[LK_COMING];
    uint64_t numbers[LK_COMING_NUMBERS];  // of those that are asked for next
} lk_coming;

// `room` (bytes) is of a source of strips; it holds the one that was taken last.
void lk_coming_start(lk_coming *coming, const lk_run_spec *spec, const lk_source *source,
                     const lk_microbatch *microbatch, uint64_t bytes, uint8_t *room);
// The image of example i, from 0 up, each once; NULL where there is none, and *index is not set. Of
// strips *index is the position in the epoch.
const uint8_t *lk_coming_take(lk_coming *coming, uint32_t i, uint64_t *index);

// The strip at a position of an epoch, in the bytes of an input: (columns of the images, their
// rows, channels), zeros behind them; and its row of labels.
void lk_strip_make(const lk_model *model, const lk_strips *strips, const lk_source *source,
                   uint64_t epoch, uint64_t position, uint8_t *to);
void lk_strip_labels(const lk_model *model, const lk_strips *strips, const lk_source *source,
                     uint64_t epoch, uint64_t position, uint32_t *row);

// --- a microbatch --------------------------------------------------------------------------------

// Before the first microbatch of a step or an evaluation. Weights are those that its ops take.
void lk_frame_start(lk_frame *frame);

// One microbatch: LOAD, FORWARD, BACKWARD. Its gradients join the nodes held.
void lk_execute_train(lk_frame *frame, const lk_microbatch *microbatch);

// The same in pieces: ops [begin, end) of a microbatch, all of its ops one after another. `after`
// is the microbatch's from its first piece to its last.
void lk_execute_train_ops(lk_frame *frame, const lk_microbatch *microbatch, uint32_t begin,
                          uint32_t end, lk_counter *after);

// One microbatch forward only, up to loss and predictions; the loss joins the nodes held.
void lk_execute_forward(lk_frame *frame, const lk_microbatch *microbatch);

// One op of a forward pass over a microbatch, for whoever wants some of them alone: its inputs are
// there, and of the metrics nothing is kept.
void lk_execute_forward_op(lk_frame *frame, const lk_microbatch *microbatch, uint32_t op);

// The bytes of an image, or of a part of it, as floats of the model's input range.
void lk_load_values(const lk_frame *frame, uint64_t floats, const uint8_t *image, float *x);

// The addresses of an op's tensors and parameters in this frame.
lk_lane lk_lane_of(lk_frame *frame, const lk_op *op, uint32_t examples);

// An op's lane in a walk over a microbatch.
lk_lane lk_walk_lane(lk_frame *frame, const lk_op *op, const lk_microbatch *microbatch, bool train);

// The walk itself: ops [begin, end) of a microbatch, in order, each called as its scope says. There
// is no other one.
void lk_walk_ops(const lk_walker *walker, lk_frame *frame, const lk_microbatch *microbatch,
                 uint32_t begin, uint32_t end, bool train, lk_counter *after);

// Ops of a microbatch: all of training; of evaluation those up to the sums of its metrics, and what
// decodes.
static inline uint32_t lk_microbatch_ops(const lk_program *program, bool train) {
    if (train) return program->reduce_op;
    return program->forward_end + (lk_program_decode(program) == LK_NONE ? 2 : 3);
}

// Describes grain `grain` (a number within the microbatch) of tensors x and dy to a weight
// gradient.
lk_grain_view lk_grain_view_at(const lk_frame *frame, const lk_op *op, uint32_t grain,
                               uint32_t microbatch_examples);

#endif
