// build.h - what a layer, a loss or an op may ask of the program under construction. Freestanding.
//
// Order of things: every layer builds its forward ops (lk_layer_type.build); neighbours that one
// kernel computes are fused (lk_op_type.absorb); tensors and parameters are made
// (lk_op_type.declare); then, from the last op to the first, every op whose output has a gradient
// and depends on a parameter emits its gradient ops (lk_op_type.differentiate).
//
// An op is known by its number. A pointer into the program's ops is good until the next op is
// emitted, except that the table never moves: earlier ops stay where they are.
#ifndef LOCKSTEP_OPS_GRAPH_BUILD_H
#define LOCKSTEP_OPS_GRAPH_BUILD_H

#include "ops/graph/program.h"

// What a layer gives the next: the y of an op, perhaps in another shape.
typedef struct lk_value {
    uint32_t op;
    lk_shape shape;
} lk_value;

struct lk_builder {
    lk_program *program;
    lk_error *error;
    uint32_t layer;                       // the layer being built, or that of the op at hand
    lk_value input[LK_LAYER_INPUTS_MAX];  // of the layer being built
    lk_value output;                      // ... which it sets; of a loss, its first input
    lk_value target;                      // of a loss, its second input; else op LK_NONE
    uint32_t ops_max, tensors_max;        // entries of the program's tables
    lk_param *states;  // (state_count) until all parameters are known, behind which they go then
    uint32_t value;                       // what ops are emitted for: lk_op.value
    bool params_only;                     // no tensor of the replica region is made
};

// --- for lk_layer_type.build ---------------------------------------------------------------------

// Emits a forward op of the layer on `x`, whose y has the shape `y`, and makes that the output.
// Its geometry is the caller's to fill in.
lk_op *lk_build_op(lk_builder *b, const lk_op_type *type, lk_value x, lk_shape y);

// One dimension of a window (convolution or pooling): output size and leading padding, as
// TensorFlow counts. False where the window is larger than a "valid" input.
bool lk_window_size(uint32_t in, uint32_t size, uint32_t stride, lk_padding padding, uint32_t *out,
                    uint32_t *pad);

// Both dimensions of a layer's window over `in`; refuses what is no image, no window or too large.
lk_status lk_build_window(lk_builder *b, const lk_layer *l, lk_shape in, lk_shape *out,
                          uint32_t *pad_top, uint32_t *pad_left);

// A convolution of the layer's window, whose channels are in `groups`, or that is spread out.
lk_status lk_build_grouped_conv2d(lk_builder *b, const lk_layer *l, uint32_t groups,
                                  uint32_t filters);

// A dense layer over the times of a sequence, an image (time, 1, features), with the layer's kernel
// and, if d says so, its bias.
lk_status lk_build_sequence_dense(lk_builder *b, const lk_layer *l, const lk_dense *d);

// Floats of scratch that the kernels of dense layers need for op->dense.
uint64_t lk_dense_forward_scratch(const lk_op *op, uint32_t m_count);
uint64_t lk_dense_input_gradient_scratch(const lk_op *op, uint32_t m_count);
uint64_t lk_dense_weight_gradient_scratch(const lk_op *op, uint32_t m_count);

// --- for lk_op_type.declare ----------------------------------------------------------------------

// A tensor of the replica region with one row of `count` elements for each example held. `suffix`
// comes after the names of the op's layer and type.
lk_status lk_build_rows(lk_builder *b, const lk_op *op, const char *suffix, lk_tensor_class class_,
                        lk_dtype dtype, uint64_t count, uint32_t *tensor);

// The same with a row for each grain held.
lk_status lk_build_grain_rows(lk_builder *b, const lk_op *op, const char *suffix, uint64_t count,
                              uint32_t *tensor);

// Parameter `which` of an op, named LAYER/suffix, with its slots.
typedef struct lk_param_shape {
    const char *suffix;
    uint32_t rank;
    uint64_t size[LK_RANK_MAX];
    uint64_t fan_in, fan_out;
    const lk_initializer *initializer;
} lk_param_shape;
lk_status lk_build_param(lk_builder *b, lk_op *op, uint32_t which, const lk_param_shape *shape);

// The only op that takes the y of forward op `i`, or LK_NONE: several do, or the loss.
uint32_t lk_build_only_user(const lk_builder *b, uint32_t i);

// For absorb: takes in a ReLU, the first. `relu`: whether the op's kernel applies it; with 16 bits
// the walk does, as it rounds.
bool lk_build_absorb_relu(lk_op *op, const lk_op *next, bool *relu);

// A state, named LAYER/suffix of op `op` or, where that is NULL, as `suffix` says. One that
// evaluation reads has one slash in its name, any other has two. State `which` of an op is behind
// the ones before it (lk_lane.state). *tensor: what holds it.
typedef struct lk_state_shape {
    const char *suffix;
    lk_dtype dtype;  // LK_F32 or LK_U32
    uint32_t rank;
    uint64_t size[LK_RANK_MAX];
    const lk_initializer *initializer;  // NULL: zeros
} lk_state_shape;
lk_status lk_build_state(lk_builder *b, lk_op *op, uint32_t which, const lk_state_shape *shape,
                         uint32_t *tensor);

// --- for lk_op_type.observe ----------------------------------------------------------------------

// What op `of` adds up for its states, `count` of them: an op of `type`, of scope LK_SCOPE_GRAINS,
// that reads LK_X and LK_AUX of `of` and writes the node of state i to sums[i]; with the uses of a
// network as lk_build_param_gradient has them. `of` of a layer that is not trained adds up nothing.
void lk_build_state_sums(lk_builder *b, const lk_op_type *type, uint32_t of, uint32_t count);

// --- for lk_op_type.differentiate ----------------------------------------------------------------

// Emits a backward op for forward op `of`: its layer and geometry, LK_DY the gradient of its y.
lk_op *lk_build_gradient(lk_builder *b, const lk_op_type *type, uint32_t of);

// The gradient of parameters: LK_X and LK_AUX of `of`, and the parameters from `first` on, `count`
// of them; unless the objective does not train them. Where the layer's network is applied several
// times there is one such op, as soon as all uses have the gradient of their y: that of use 0,
// followed by an op of type `use` for each of the others.
void lk_build_param_gradient(lk_builder *b, const lk_op_type *type, uint32_t of, uint32_t first,
                             uint32_t count);

// The gradient of input `which`: emits the op with LK_DX set, unless nobody wants it. Several users
// of a tensor add their gradients in the order in which they come here. `masks`: the kernel can
// apply the ReLU of the op that made the input.
lk_status lk_build_input_gradient(lk_builder *b, const lk_op_type *type, uint32_t of,
                                  uint32_t which, bool masks);

// The gradients of both inputs by one op: LK_DX and LK_DX2, each where it is wanted.
lk_status lk_build_input_gradients(lk_builder *b, const lk_op_type *type, uint32_t of);

// The gradient of input `which` is that of y as it is: added where the input has one already, its
// own where no input before it needs it too, and otherwise copied by an op of type `copy`. So the
// last input comes first, and the first one may change it in place.
lk_status lk_build_gradient_share(lk_builder *b, const lk_op_type *copy, uint32_t of,
                                  uint32_t which);

// The gradient of the input is that of y, changed in place by the op emitted; where others use the
// input too, beside it.
lk_status lk_build_gradient_in_place(lk_builder *b, const lk_op_type *type, uint32_t of);

// --- for lk_loss_type.build ----------------------------------------------------------------------

// Emits the loss op on b->output: LK_X that output, LK_X2 the labels or else the target, LK_Y the
// metrics of each example, LK_DX the gradient of x. `target`: not NULL, an op that makes the
// gradient of the target from that of x (LK_DY), where one is wanted.
lk_status lk_build_loss(lk_builder *b, const lk_op_type *type, const lk_op_type *target);

// Emits an op behind the loss, of that layer.
lk_op *lk_build_after_loss(lk_builder *b, const lk_op_type *type, uint32_t layer);

// --- for lk_program_build and ops/graph/graph.c --------------------------------------------------

// The values that layers may take, by number (lk_network); room for as many as a network has.
lk_value *lk_build_values(const lk_builder *b);

// Emits LOAD.
lk_status lk_build_load(lk_builder *b);

// Emits the layers [first, first + count) on the `inputs` values, which lie at lk_build_values;
// b->output becomes that of the last.
lk_status lk_build_network(lk_builder *b, uint32_t first, uint32_t count, uint32_t inputs);

// Refuses a shape of no value, or of too many.
lk_status lk_build_check_shape(lk_builder *b, const char *name, const lk_shape *s,
                               uint64_t *floats);

// The names of an op's layer and use.
void lk_build_op_name(const lk_builder *b, const lk_op *op, char name[LK_NAME_BYTES]);

// An op of `type` with the tensors that the gradient of parameters of op `of` takes.
lk_op *lk_build_use_gradient(lk_builder *b, const lk_op_type *type, uint32_t of);

// What parameter `param` keeps beside it for an optimizer; `infix` comes before the slots' names.
lk_status lk_build_slots(lk_builder *b, uint32_t param, const lk_optimizer *o, const char *infix,
                         uint32_t slots[LK_OPTIMIZER_SLOTS_MAX]);

lk_status lk_build_forward(lk_builder *b);   // layers, fusion, tensors
lk_status lk_build_backward(lk_builder *b);  // loss, gradients, the last op

lk_status lk_build_tensor(lk_builder *b, const char *name, lk_tensor_class class_, lk_dtype dtype,
                          lk_region region, uint32_t rank, const uint64_t *shape, uint32_t *tensor);

#endif
