// program.h - a model compiled, once, into a flat program: ops, tensors, parameters. Freestanding.
//
// The program is the same for every replica and worker. A replica runs the ops of LOAD, FORWARD and
// BACKWARD in order for each microbatch of grains (as many examples as it holds at once), then
// REDUCE and APPLY, which the scheduler (comm/step/step.h) drives parameter by parameter.
//
// Built in passes: layers -> forward ops with shapes -> fusion -> tensors -> backward ops
// (ops/graph/build.h) -> reduction, scratch, lifetimes. What an op is, only its descriptor knows.
#ifndef LOCKSTEP_OPS_PROGRAM_H
#define LOCKSTEP_OPS_PROGRAM_H

#include "arena/plan.h"
#include "ops/graph/model.h"
#include "ops/op.h"
#include "ops/tree.h"

// One more whenever lk_program, its tables or the shapes of ops change: `lockstep embed` writes
// them as constants, and whoever compiles these must have the same.
enum { LK_PROGRAM_FORMAT = 3 };

// What REDUCE and APPLY work on at once, small enough for a first-level cache: floats of a join of
// nodes; floats, and a multiple of rows, of a gradient computed from operands. Kernels may wish for
// more floats, up to a maximum.
enum {
    LK_JOIN_FLOATS = 1024,
    LK_OPERANDS_FLOATS = 4096,
    LK_OPERANDS_FLOATS_MAX = 30720,
    LK_OPERANDS_ROWS = 16,
};

// How the gradient of a parameter meets its siblings of other grains (design.md, REDUCE).
typedef enum lk_reduce_mode {
    LK_REDUCE_PARTIALS,  // every replica stores tree nodes; the owner of a slice joins them
    LK_REDUCE_OPERANDS,  // the owner of rows computes all grains from the others' activations and
                         // gradients
} lk_reduce_mode;

// One parameter, in canonical order (networks, layers, kernel before bias): the order of digests.
// A program has those of all networks. After them, in the same table and as much the same for all
// programs, its states: what is neither parameter nor slot but belongs to the run. What a step adds
// up for a state meets its siblings as a gradient does; APPLY then lets the state follow its mean
// (lk_op_type.moving), in place of the optimizer.
typedef struct lk_param {
    uint32_t tensor;
    uint32_t slots[LK_OPTIMIZER_SLOTS_MAX];  // tensors
    // Tensor: what products take of it. LK_NONE: itself; of the device region: it, rounded, in
    // mixed precision; of the replica region: it, normalized (ops/graph/spectral.h).
    uint32_t rounded;
    uint64_t count;                          // elements
    uint64_t node_offset;                    // floats from the start of a node (partials only)
    lk_reduce_mode mode;
    uint32_t gradient_op;  // the op that computes its gradient, or a state's sums; LK_NONE: not
                           // trained here
    LK_WIDE const lk_initializer *initializer;  // of a state NULL: zeros
    union {  // what the initializer goes by
        struct {
            uint64_t fan_in, fan_out;
        };
        float initial;  // where it takes a number
    };
} lk_param;

// Ops of a training step from which no other op takes anything: they may run beside the others.
static inline bool lk_op_goes_beside(const lk_op *op) {
    return op->type->scope == LK_SCOPE_GRAINS || op->type->scope == LK_SCOPE_METRIC;
}

// Who computes what, and how it is laid out: never changes a bit.
typedef enum lk_reduce_choice {
    LK_REDUCE_AUTO,
    LK_REDUCE_ALL_PARTIALS,
    LK_REDUCE_ALL_OPERANDS
} lk_reduce_choice;

// Scratch in floats that the kernels of a device need, which is not known here: most ops one after
// the other, and those that go beside them (lk_op_goes_beside).
typedef struct lk_device_scratch {
    uint64_t floats, beside;
} lk_device_scratch;

typedef struct lk_layout {
    uint32_t replicas;         // of this process
    uint32_t replicas_before;  // of the workers before this one; replica r computes the grains of
                               // replica replicas_before + r of all
    uint32_t replicas_all;     // of all workers; 0: this process is the only one
    bool shared;  // all of them lie in one memory, and each may read what the others hold
    bool direct;  // all of them are on devices that exchange by themselves: nothing else is given
    uint32_t microbatch_examples;  // examples a replica holds at once; 0 chooses
    bool fuse;                     // false: one op a layer (the oracle)
    // Replicas work on a device, not on this machine's threads: its nodes are partials, the loss
    // among them, the blocks of a microbatch are joined after its last op (lk_device_slots), and
    // all ops share two scratches (lk_device_scratch).
    bool device;
    lk_reduce_choice reduce;
    // Workers exchange gradients in parts, each as soon as its layers are done with
    // (comm/step/exchange.h): the fewest floats of a part. 0: all of them at the end.
    uint32_t bucket_floats;
    lk_device_scratch device_scratch;
    uint32_t joint_tile;  // cells that a joint layer computes at once: a power of two from
                          // LK_SLICE_TERMS on; 0 chooses
} lk_layout;

typedef struct lk_program {
    const lk_run_spec *spec;
    lk_layout layout;
    uint32_t objective;             // whose steps it computes
    const lk_optimizer *optimizer;  // of that objective
    uint32_t programs;              // of all objectives, this one among them
    const struct lk_program *all;   // (programs) in the order of objectives
    uint32_t uses_max;              // the most uses that a parameter has
    bool checked;                   // the plan has guards; see ops/graph/check.h
    uint32_t grains;                // of a full global batch
    uint32_t microbatch_grains;           // most grains a replica holds at once
    uint32_t microbatch_examples;         // microbatch_grains * grain
    uint32_t op_count, tensor_count, param_count;
    uint32_t state_count;  // entries of `params` behind the parameters
    uint32_t loss_scale;   // state: lk_scale_state of each objective, ops/graph/scale.h; or LK_NONE
    uint32_t skipped;      // state: (objectives, 2) u32, how many steps of each were skipped, low
                           // word first; LK_NONE: no step ever is (lk_model.skips)
    uint32_t forward_end;  // ops [0, forward_end) are LOAD and FORWARD up to the logits
    uint32_t reduce_op;    // index of the last op
    uint32_t input, logits, dlogits, labels, loss;  // tensors
    uint32_t views;  // tensor: lk_grain_view of the grains a gradient op adds
    uint32_t nodes;  // tensor: (node_slots, node_floats), partial gradients of a replica
    uint32_t node_slots;
    uint64_t node_floats;  // a node: all partials-mode parameters, each padded to 16 floats
    uint64_t loss_offset;  // where the gradients of a node end: node_floats, or, on a device, the
                           // place of the loss
    uint32_t reduce_scratch;  // tensor
    // Where a run of these objectives asks for norms (ops/optimizer.h), or LK_NONE: tensors of all
    // parameters' slices, (LK_SLICE_TERMS) floats of G each, and (2) sums of squares.
    uint32_t gradient, squares;
    uint64_t param_floats;    // of the model, unpadded
    lk_op *ops;
    lk_tensor *tensors;
    lk_param *params;
    uint32_t *order;  // scratch of the planner
    lk_region_plan regions[LK_REGION_COUNT];
} lk_program;

// Bytes that lk_program_build needs for its tables, and the entries of two of them: upper bounds
// from the layers alone. Bytes of the tables of all objectives' programs.
uint64_t lk_program_bytes(const lk_model *model);
uint64_t lk_programs_bytes(const lk_model *model);
uint32_t lk_program_ops_max(const lk_model *model);
uint32_t lk_program_tensors_max(const lk_model *model);

// Compiles the model into `memory` (lk_program_bytes, aligned to 64) and plans its regions. `spec`
// must stay. LK_BAD_CONFIG with the layer, its input shape and what was wanted.
lk_status lk_program_build(const lk_run_spec *spec, const lk_layout *layout,
                           const lk_plan_options *options, void *memory, lk_program *program,
                           lk_error *error);

// The loss of its objective, what a configuration says of it, and what a step reports.
// The first op for which the table has no kernel of its own, so that its reference would run; NULL:
// it has all.
const lk_op *lk_program_without_kernel(const lk_program *program, const lk_kernels *kernels);

static inline const lk_loss_type *lk_program_loss(const lk_program *program) {
    const lk_model *m = &program->spec->model;
    const lk_graph *g = lk_graph_of(m);
    return g ? lk_objective_loss(&g->objectives[program->objective]) : lk_model_loss(m);
}
static inline const lk_loss_options *lk_loss_options_of(const lk_model *model, uint32_t objective) {
    const lk_graph *g = lk_graph_of(model);
    return g ? &g->objectives[objective].loss_options : &model->loss_options;
}
static inline const lk_loss_options *lk_program_loss_options(const lk_program *program) {
    return lk_loss_options_of(&program->spec->model, program->objective);
}
static inline const lk_metrics *lk_program_metrics(const lk_program *program) {
    return &lk_program_loss(program)->metrics;
}

// What an objective cuts the weights to that it has updated; 0: it does not.
static inline float lk_program_weight_clip(const lk_program *program) {
    const lk_graph *g = lk_graph_of(&program->spec->model);
    return g ? g->objectives[program->objective].weight_clip : 0.0f;
}

// Is a parameter a kernel of spectral_normalization? Not a state.
static inline bool lk_param_is_spectral(const lk_program *program, uint32_t param) {
    if (!LK_HAS_SPECTRAL || param >= program->param_count) return false;
    const uint32_t taken = program->params[param].rounded;
    return taken != LK_NONE && program->tensors[taken].region == LK_REGION_REPLICA;
}

// The norms of the whole gradient that its updates ask for, and the slices of a parameter.
static inline lk_norm lk_program_norm(const lk_program *program) {
    if (!LK_HAS_NORMS) return LK_NORM_NONE;
    const lk_norm own = lk_optimizer_norm(program->optimizer);
    for (uint32_t i = 0; own == LK_NORM_NONE && i < program->param_count; i++) {
        const bool trained = program->params[i].gradient_op != LK_NONE;
        if (trained && lk_param_is_spectral(program, i)) return LK_NORM_SPECTRAL;
    }
    return own;
}
// The share of the sum of its squares that a parameter adds to the loss of this objective, which
// trains it: that of its layer, of the kernel alone; 0: none.
static inline float lk_param_l2(const lk_program *program, uint32_t param) {
#ifdef LK_SHORT_FORM_ALONE
    (void)program, (void)param;  // boards know no regularizers either
    return 0.0f;
#else
    const uint32_t gradient = program->params[param].gradient_op;
    const lk_layer *layers = program->spec->model.layers;  // NULL: compiled already, without any
    if (param >= program->param_count || gradient == LK_NONE || !layers) return 0.0f;
    const lk_op *op = &program->ops[gradient];
    const bool kernel = op->param[0] == param && !op->type->recurrent;
    return kernel ? layers[op->layer].l2 : 0.0f;
#endif
}
static inline uint64_t lk_param_slices(const lk_param *param) {
    return (param->count + LK_SLICE_TERMS - 1) / LK_SLICE_TERMS;
}
// The number of an entry's first slice among those of all entries.
static inline uint64_t lk_param_first_slice(const lk_program *program, uint32_t param) {
    uint64_t slices = 0;
    for (uint32_t i = 0; i < param; i++) slices += lk_param_slices(&program->params[i]);
    return slices;
}

// The op that decodes, behind the loss and its sum, or LK_NONE.
static inline uint32_t lk_program_decode(const lk_program *program) {
#ifndef LK_SHORT_FORM_ALONE
    const uint32_t op = program->forward_end + 2;
    if (op < program->op_count && program->ops[op].type->scope == LK_SCOPE_DECODE) return op;
#else
    (void)program;  // boards know no sequences of labels
#endif
    return UINT32_MAX;
}

// Floats of the output of one example.
static inline uint64_t lk_program_output_floats(const lk_program *program) {
    return program->tensors[program->logits].shape[1];
}

// What an evaluation shows of an example (lk_on_logits): its output; of a transducer the row of
// labels that it says, u32. And how many numbers a prediction of it has: those, or these labels.
static inline uint32_t lk_program_shown(const lk_program *program) {
    const uint32_t decode = lk_program_decode(program);
    return decode == UINT32_MAX ? program->logits : program->ops[decode].tensor[LK_Y];
}
static inline uint64_t lk_program_prediction(const lk_program *program) {
    return program->tensors[lk_program_shown(program)].shape[1] -
           (lk_program_decode(program) == UINT32_MAX ? 0 : 1);
}

// Compiles one program for each objective into `programs` (lk_objective_count) and `memory`
// (lk_programs_bytes). Their device regions are the same, tensor for tensor; their replica regions
// overlay, so that each says the bytes of the largest. lk_program_build alone is for models of one
// objective.
lk_status lk_programs_build(const lk_run_spec *spec, const lk_layout *layout,
                            const lk_plan_options *options, void *memory, lk_program *programs,
                            lk_error *error);

// The program that computes a step, of a table of all.
const lk_program *lk_program_of_step(const lk_program *program, uint64_t step);

// Entries of `params`: the parameters, then the states.
static inline uint32_t lk_entry_count(const lk_program *program) {
    return program->param_count + program->state_count;
}

// Is a state of the digest? What evaluation reads is. Its name is LAYER/STATE, as those of
// parameters are; others have two slashes, as slots have.
bool lk_state_evaluated(const lk_program *program, uint32_t entry);

// How many steps of an objective were skipped, as the device region says; and one more.
uint64_t lk_steps_skipped(const lk_program *program, const uint8_t *device, uint32_t objective);
void lk_skip_step(const lk_program *program, uint8_t *device);

// The tensors of a run's state, in the order of state hashes and checkpoints: all parameters, then
// for each objective every slot of every parameter that it trains, then all states. LK_NONE after
// the last.
typedef struct lk_state_walk {
    uint32_t objective, slot, param, state;
    bool slots;
} lk_state_walk;
uint32_t lk_next_state(const lk_program *program, lk_state_walk *walk);

// Grains that replica r of R computes: [first, first + count), contiguous, as equal as can be.
typedef struct lk_grain_range {
    uint32_t first, count;
} lk_grain_range;
lk_grain_range lk_replica_grains(uint32_t grains, uint32_t replicas, uint32_t replica);

// The same for a replica of this process, whose workers are as its layout says.
static inline lk_grain_range lk_layout_grains(const lk_layout *layout, uint32_t grains,
                                              uint32_t replica) {
    return lk_replica_grains(grains, layout->replicas_all, layout->replicas_before + replica);
}

// Replicas that may read each other's memory, and the first of this process among them.
static inline uint32_t lk_layout_sharers(const lk_layout *layout) {
    return layout->shared ? layout->replicas_all : layout->replicas;
}
static inline uint32_t lk_layout_first_sharer(const lk_layout *layout) {
    return layout->shared ? layout->replicas_before : 0;
}

// The most tree nodes a replica must hold at once when it adds grains [first, first + count) of a
// step of `total` one aligned block after another: a binary counter, plus the block just computed.
// A step with fewer grains never needs more (shown by trial in the tests).
uint32_t lk_node_slots(uint32_t first, uint32_t count, uint32_t microbatch_grains, uint32_t total);

// The nodes it holds at the end.
lk_counter lk_nodes_held(uint32_t first, uint32_t count, uint32_t microbatch_grains,
                         uint32_t total);

// The same where all blocks of a microbatch are there before the first is joined, as on a device.
uint32_t lk_device_slots(uint32_t first, uint32_t count, uint32_t microbatch_grains,
                         uint32_t total);

// Writes the initial value of every parameter (Philox keyed by the spec's seed) and slot.
// `device` is the start of the device region. With mixed precision kernels are rounded for
// products: returns the first parameter with a value that 16 bits cannot hold, or LK_NONE.
uint32_t lk_program_initialize(const lk_program *program, uint8_t *device);

#endif
