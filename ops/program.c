// program.c - the passes that make a program of a model. Freestanding.
#include "ops/program.h"

#include "arena/philox.h"

#include "ops/kernels.h"
#include "ops/math.h"
#include "ops/tree.h"

// A replica holds all its examples at once up to RESIDENT_EXAMPLES, otherwise WAVE_EXAMPLES at a
// time (measured: larger working sets fall out of the second-level cache).
enum { RESIDENT_EXAMPLES = 256, WAVE_EXAMPLES = 128 };

const char *lk_op_name(lk_op_kind kind) {
    static const char *const names[] = {
#define LK_OP_NAME(name, text) [name] = text,
        LK_OP_LIST(LK_OP_NAME)
#undef LK_OP_NAME
    };
    return names[kind];
}

const char *lk_phase_name(lk_phase phase) {
    static const char *const names[] = {"load", "forward", "backward", "reduce", "apply"};
    return names[phase];
}

// --- table sizes -------------------------------------------------------------------------------

static uint64_t ops_max(const lk_model *m) { return 7ull * m->layer_count + 6; }
static uint64_t params_max(const lk_model *m) { return 2ull * m->layer_count; }
static uint64_t tensors_max(const lk_model *m) {
    return 3 * ops_max(m) + params_max(m) * (1 + LK_OPTIMIZER_SLOTS_MAX) + 8;
}

uint64_t lk_program_bytes(const lk_model *m) {
    return lk_round_up(ops_max(m) * sizeof(lk_op), 64) +
           lk_round_up(tensors_max(m) * sizeof(lk_tensor), 64) +
           lk_round_up(params_max(m) * sizeof(lk_param), 64) +
           lk_round_up(tensors_max(m) * sizeof(uint32_t), 64);
}

static void lay_tables(const lk_model *m, uint8_t *memory, lk_program *p) {
    p->ops = (lk_op *)(void *)memory;
    memory += lk_round_up(ops_max(m) * sizeof(lk_op), 64);
    p->tensors = (lk_tensor *)(void *)memory;
    memory += lk_round_up(tensors_max(m) * sizeof(lk_tensor), 64);
    p->params = (lk_param *)(void *)memory;
    memory += lk_round_up(params_max(m) * sizeof(lk_param), 64);
    p->order = (uint32_t *)(void *)memory;
}

// --- pass 1: layers to forward ops, shapes checked ---------------------------------------------

// The shape of one example on its way through the layers.
typedef struct example_shape {
    uint32_t h, w, c;
    bool flat;  // (c) alone
} example_shape;

static lk_op *new_op(lk_program *p, lk_op_kind kind, lk_phase phase, uint32_t layer) {
    lk_assert(p->op_count < ops_max(&p->spec->model));
    lk_op *op = &p->ops[p->op_count++];
    *op = (lk_op){.kind = kind,
                  .phase = phase,
                  .layer = layer,
                  .x = LK_NONE,
                  .y = LK_NONE,
                  .argmax = LK_NONE,
                  .dy = LK_NONE,
                  .dx = LK_NONE,
                  .mask = LK_NONE,
                  .weight = LK_NONE,
                  .bias = LK_NONE,
                  .scratch = LK_NONE};
    return op;
}

// One dimension of a window (convolution or pooling): output size and leading padding, as
// TensorFlow counts.
static bool window_size(uint32_t in, uint32_t size, uint32_t stride, lk_padding padding,
                        uint32_t *out, uint32_t *pad) {
    *pad = 0;
    if (padding == LK_PADDING_SAME) {
        *out = (uint32_t)(((uint64_t)in + stride - 1) / stride);
        uint64_t reach = (uint64_t)(*out - 1) * stride + size;
        *pad = reach > in ? (uint32_t)((reach - in) / 2) : 0;
        return true;
    }
    if (size > in) return false;
    *out = (in - size) / stride + 1;
    return true;
}

static lk_status check_window(const lk_layer *l, const example_shape *s, lk_error *error) {
    if (s->flat) {
        return lk_fail(
            error, LK_BAD_CONFIG,
            "layer %s: wants images (height, width, channels) but its input is flat (%u); "
            "put it before flatten",
            l->name, s->c);
    }
    if (l->size_h == 0 || l->size_w == 0 || l->stride_h == 0 || l->stride_w == 0) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "layer %s: a window size or stride is 0, wanted at least 1", l->name);
    }
    return LK_OK;
}

static lk_status too_large(const lk_layer *l, const example_shape *s, lk_error *error) {
    return lk_fail(error, LK_BAD_CONFIG,
                   "layer %s: its window of %u x %u is larger than its input of %u x %u; make it "
                   "smaller or use padding \"same\"",
                   l->name, l->size_h, l->size_w, s->h, s->w);
}

static lk_status add_conv2d(lk_program *p, uint32_t layer, example_shape *s, lk_error *error) {
    const lk_layer *l = &p->spec->model.layers[layer];
    LK_CHECK(check_window(l, s, error));
    lk_op *op = new_op(p, LK_OP_CONV2D, LK_FORWARD, layer);
    lk_conv2d *c = &op->conv;
    *c = (lk_conv2d){.in_h = s->h,
                     .in_w = s->w,
                     .in_c = s->c,
                     .out_c = l->units,
                     .kernel_h = l->size_h,
                     .kernel_w = l->size_w,
                     .stride_h = l->stride_h,
                     .stride_w = l->stride_w,
                     .use_bias = l->use_bias};
    if (l->units == 0) return lk_fail(error, LK_BAD_CONFIG, "layer %s: filters is 0", l->name);
    if (!window_size(s->h, l->size_h, l->stride_h, l->padding, &c->out_h, &c->pad_top) ||
        !window_size(s->w, l->size_w, l->stride_w, l->padding, &c->out_w, &c->pad_left)) {
        return too_large(l, s, error);
    }
    *s = (example_shape){c->out_h, c->out_w, c->out_c, false};
    return LK_OK;
}

static lk_status add_max_pool2d(lk_program *p, uint32_t layer, example_shape *s, lk_error *error) {
    const lk_layer *l = &p->spec->model.layers[layer];
    LK_CHECK(check_window(l, s, error));
    if ((uint64_t)l->size_h * l->size_w > 65536) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "layer %s: a pool of %u x %u, wanted at most 65,536 cells", l->name,
                       l->size_h, l->size_w);
    }
    lk_op *op = new_op(p, LK_OP_MAX_POOL, LK_FORWARD, layer);
    lk_pool2d *o = &op->pool;
    *o = (lk_pool2d){.in_h = s->h,
                     .in_w = s->w,
                     .channels = s->c,
                     .pool_h = l->size_h,
                     .pool_w = l->size_w,
                     .stride_h = l->stride_h,
                     .stride_w = l->stride_w};
    if (!window_size(s->h, l->size_h, l->stride_h, l->padding, &o->out_h, &o->pad_top) ||
        !window_size(s->w, l->size_w, l->stride_w, l->padding, &o->out_w, &o->pad_left)) {
        return too_large(l, s, error);
    }
    *s = (example_shape){o->out_h, o->out_w, s->c, false};
    return LK_OK;
}

static lk_status add_dense(lk_program *p, uint32_t layer, example_shape *s, lk_error *error) {
    const lk_layer *l = &p->spec->model.layers[layer];
    if (!s->flat) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "layer %s: dense wants a flat input but gets images of %u x %u x %u; put a "
                       "flatten layer before it",
                       l->name, s->h, s->w, s->c);
    }
    if (l->units == 0) return lk_fail(error, LK_BAD_CONFIG, "layer %s: units is 0", l->name);
    lk_op *op = new_op(p, LK_OP_DENSE, LK_FORWARD, layer);
    op->dense = (lk_dense){.k_count = s->c, .n_count = l->units, .use_bias = l->use_bias};
    s->c = l->units;
    return LK_OK;
}

// Floats of one example; shapes too large for 32 bits are refused before any kernel sees them.
static lk_status check_floats(const lk_layer *l, const example_shape *s, uint64_t *floats,
                              lk_error *error) {
    if (!lk_mul_ok((uint64_t)s->h * s->w, s->c, floats) || *floats > INT32_MAX) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "layer %s: an output of %u x %u x %u is more than 2^31 values an example",
                       l ? l->name : "input", s->h, s->w, s->c);
    }
    return LK_OK;
}

static lk_status add_layer(lk_program *p, uint32_t layer, example_shape *s, lk_error *error) {
    const lk_layer *l = &p->spec->model.layers[layer];
    uint64_t floats = (uint64_t)s->h * s->w * s->c;
    switch (l->kind) {
    case LK_LAYER_CONV2D: LK_CHECK(add_conv2d(p, layer, s, error)); break;
    case LK_LAYER_MAX_POOL2D: LK_CHECK(add_max_pool2d(p, layer, s, error)); break;
    case LK_LAYER_FLATTEN: *s = (example_shape){1, 1, (uint32_t)floats, true}; return LK_OK;
    case LK_LAYER_DENSE: LK_CHECK(add_dense(p, layer, s, error)); break;
    case LK_LAYER_RELU: new_op(p, LK_OP_RELU, LK_FORWARD, layer)->floats = floats; return LK_OK;
    }
    LK_CHECK(check_floats(l, s, &floats, error));
    p->ops[p->op_count - 1].floats = floats;
    if (l->relu) new_op(p, LK_OP_RELU, LK_FORWARD, layer)->floats = floats;
    return LK_OK;
}

static lk_status forward_ops(lk_program *p, lk_error *error) {
    const lk_model *m = &p->spec->model;
    example_shape s = {m->in_h, m->in_w, m->in_c, false};
    uint64_t floats;
    LK_CHECK(check_floats(NULL, &s, &floats, error));
    if (floats == 0) return lk_fail(error, LK_BAD_CONFIG, "model.input: a dimension is 0");
    new_op(p, LK_OP_LOAD, LK_LOAD, LK_NONE)->floats = floats;
    for (uint32_t i = 0; i < m->layer_count; i++) LK_CHECK(add_layer(p, i, &s, error));
    if (!s.flat || s.c != m->classes || m->classes < 2) {
        return lk_fail(
            error, LK_BAD_CONFIG,
            "model: the last layer's output is %u x %u x %u, wanted %u logits (one a class, "
            "at least 2) for the loss; end with flatten and a dense layer of that many units",
            s.h, s.w, s.c, m->classes);
    }
    return LK_OK;
}

// --- pass 2: fusion ----------------------------------------------------------------------------

// True where max-pooling `o` of the whole output of `c` is the 2x2, stride 2 pooling of the fused
// kernels.
static bool pool_fits(const lk_conv2d *c, const lk_pool2d *o) {
    return o->pool_h == 2 && o->pool_w == 2 && o->stride_h == 2 && o->stride_w == 2 &&
           o->pad_top == 0 && o->pad_left == 0 && o->out_h == c->out_h / 2 &&
           o->out_w == c->out_w / 2;
}

static void fuse(lk_program *p) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < p->op_count; i++) {
        lk_op op = p->ops[i];
        bool relu_next = i + 1 < p->op_count && p->ops[i + 1].kind == LK_OP_RELU;
        if (op.kind == LK_OP_DENSE && relu_next) {
            op.dense.relu = true;
            i++;
        } else if (op.kind == LK_OP_CONV2D) {
            op.conv.relu = relu_next;
            i += relu_next;
            if (!p->layout.pools_apart && i + 1 < p->op_count &&
                p->ops[i + 1].kind == LK_OP_MAX_POOL && pool_fits(&op.conv, &p->ops[i + 1].pool)) {
                op.kind = LK_OP_CONV2D_POOL;
                op.floats = lk_conv2d_pooled_floats(&op.conv);
                i++;
            }
        }
        p->ops[kept++] = op;
    }
    p->op_count = kept;
}

// --- tensors -----------------------------------------------------------------------------------

static lk_status new_tensor(lk_program *p, const char *name, lk_tensor_class class_, lk_dtype dtype,
                            lk_region region, uint32_t rank, const uint64_t *shape, uint32_t *index,
                            lk_error *error) {
    lk_assert(p->tensor_count < tensors_max(&p->spec->model));
    *index = p->tensor_count++;
    return lk_tensor_make(&p->tensors[*index], name, class_, dtype, region, rank, shape, error);
}

static const char *layer_name(const lk_program *p, const lk_op *op) {
    return op->layer == LK_NONE ? "input" : p->spec->model.layers[op->layer].name;
}

// A tensor of the replica region with one row of `floats` elements for each example held; of rank
// 2, also where a row is one element, since grains find theirs by the length of a row.
static lk_status new_rows(lk_program *p, const lk_op *op, const char *suffix,
                          lk_tensor_class class_, lk_dtype dtype, uint64_t floats, uint32_t *index,
                          lk_error *error) {
    char name[LK_NAME_BYTES];
    lk_format(name, sizeof name, "%s%s", layer_name(p, op), suffix);
    const uint64_t shape[] = {p->wave_examples, floats};
    return new_tensor(p, name, class_, dtype, LK_REGION_REPLICA, 2, shape, index, error);
}

static lk_status new_param(lk_program *p, const lk_op *op, const char *suffix, uint32_t rank,
                           const uint64_t *shape, uint32_t *index, lk_error *error) {
    const lk_layer *l = &p->spec->model.layers[op->layer];
    const lk_optimizer *o = &p->spec->optimizer;
    char name[LK_NAME_BYTES];
    *index = p->param_count++;
    lk_param *param = &p->params[*index];
    *param = (lk_param){.initializer = l->initializer, .count = 1};
    lk_format(name, sizeof name, "%s/%s", l->name, suffix);
    LK_CHECK(new_tensor(p, name, LK_CLASS_PARAMETER, LK_F32, LK_REGION_DEVICE, rank, shape,
                        &param->tensor, error));
    for (uint32_t i = 0; i < rank; i++) param->count *= shape[i];
    for (uint32_t i = 0; i < lk_optimizer_slot_count(o); i++) {
        lk_format(name, sizeof name, "%s/%s/%s", l->name, suffix, lk_optimizer_slot_name(o, i));
        LK_CHECK(new_tensor(p, name, LK_CLASS_SLOT, LK_F32, LK_REGION_DEVICE, rank, shape,
                            &param->slots[i], error));
    }
    p->param_floats += param->count;
    return LK_OK;
}

// Kernel, then bias, of a convolution or dense layer.
static lk_status layer_params(lk_program *p, lk_op *op, lk_error *error) {
    if (op->kind == LK_OP_DENSE) {
        const uint64_t k = op->dense.k_count, n = op->dense.n_count;
        LK_CHECK(new_param(p, op, "kernel", 2, (const uint64_t[]){k, n}, &op->weight, error));
        p->params[op->weight].fan_in = k;
        p->params[op->weight].fan_out = n;
        if (!op->dense.use_bias) return LK_OK;
        LK_CHECK(new_param(p, op, "bias", 1, &n, &op->bias, error));
    } else {
        const lk_conv2d *c = &op->conv;
        const uint64_t shape[] = {c->kernel_h, c->kernel_w, c->in_c, c->out_c};
        LK_CHECK(new_param(p, op, "kernel", 4, shape, &op->weight, error));
        p->params[op->weight].fan_in = shape[0] * shape[1] * shape[2];
        p->params[op->weight].fan_out = shape[0] * shape[1] * shape[3];
        if (!c->use_bias) return LK_OK;
        LK_CHECK(new_param(p, op, "bias", 1, &shape[3], &op->bias, error));
    }
    p->params[op->bias].initializer = LK_INIT_ZEROS;
    return LK_OK;
}

// Activations, argmax and parameters of the forward ops; each op reads what the one before wrote.
static lk_status forward_tensors(lk_program *p, lk_error *error) {
    uint32_t value = LK_NONE;
    for (uint32_t i = 0; i < p->op_count; i++) {
        lk_op *op = &p->ops[i];
        op->x = value;
        LK_CHECK(new_rows(p, op, op->kind == LK_OP_RELU ? "/relu" : "", LK_CLASS_ACTIVATION, LK_F32,
                          op->floats, &op->y, error));
        if (op->kind == LK_OP_CONV2D_POOL || op->kind == LK_OP_MAX_POOL) {
            LK_CHECK(new_rows(p, op, "/argmax", LK_CLASS_ACTIVATION,
                              op->kind == LK_OP_MAX_POOL ? LK_U16 : LK_U8, op->floats, &op->argmax,
                              error));
        }
        if (op->kind == LK_OP_DENSE || op->kind == LK_OP_CONV2D || op->kind == LK_OP_CONV2D_POOL) {
            LK_CHECK(layer_params(p, op, error));
        }
        value = op->y;
    }
    p->input = p->ops[0].y;
    p->logits = value;
    p->forward_end = p->op_count;
    return LK_OK;
}

// --- pass 3: backward ops ----------------------------------------------------------------------

static bool is_trainable(const lk_op *op) { return op->weight != LK_NONE; }

static bool has_fused_relu(const lk_op *op) {
    if (op->kind == LK_OP_DENSE) return op->dense.relu;
    return (op->kind == LK_OP_CONV2D || op->kind == LK_OP_CONV2D_POOL) && op->conv.relu;
}

static lk_status loss_ops(lk_program *p, lk_error *error) {
    const lk_op *last = &p->ops[p->op_count - 1];
    LK_CHECK(new_rows(p, last, "/gradient", LK_CLASS_GRADIENT, LK_F32, last->floats, &p->dlogits,
                      error));
    const uint64_t examples = p->wave_examples;
    LK_CHECK(new_tensor(p, "labels", LK_CLASS_STAGING, LK_U32, LK_REGION_REPLICA, 1, &examples,
                        &p->labels, error));
    LK_CHECK(new_tensor(p, "loss", LK_CLASS_ACTIVATION, LK_F32, LK_REGION_REPLICA, 1, &examples,
                        &p->loss, error));
    lk_op *loss = new_op(p, LK_OP_LOSS, LK_FORWARD, LK_NONE);
    loss->x = p->logits;
    loss->y = p->loss;
    loss->dx = p->dlogits;
    new_op(p, LK_OP_LOSS_SUM, LK_FORWARD, LK_NONE)->dy = p->loss;
    return LK_OK;
}

// The gradients of an op's parameters.
static void weight_gradient_ops(lk_program *p, const lk_op *op, uint32_t dy) {
    bool dense = op->kind == LK_OP_DENSE;
    lk_op *g = new_op(p,
                      dense                      ? LK_OP_DENSE_WEIGHT_GRADIENT
                      : op->kind == LK_OP_CONV2D ? LK_OP_CONV2D_WEIGHT_GRADIENT
                                                 : LK_OP_CONV2D_POOL_WEIGHT_GRADIENT,
                      LK_BACKWARD, op->layer);
    g->x = op->x;
    g->dy = dy;
    g->argmax = op->argmax;
    g->weight = op->weight;
    p->params[op->weight].gradient_op = p->op_count - 1;
    if (dense) {
        g->dense = op->dense;
    } else {
        g->conv = op->conv;
        g->bias = op->bias;
    }
    if (op->bias == LK_NONE) return;
    p->params[op->bias].gradient_op = p->op_count - 1;
    if (!dense) return;  // a convolution's kernel writes both
    lk_op *b = new_op(p, LK_OP_DENSE_BIAS_GRADIENT, LK_BACKWARD, op->layer);
    b->dy = dy;
    b->dense = op->dense;
    b->bias = op->bias;
    p->params[op->bias].gradient_op = p->op_count - 1;
}

// Emits the op that turns the gradient of `op`'s output into that of its input.
static lk_status input_gradient_op(lk_program *p, const lk_op *op, const lk_op *before, uint32_t dy,
                                   uint32_t *dx, lk_error *error) {
    lk_op_kind kind = op->kind == LK_OP_DENSE         ? LK_OP_DENSE_INPUT_GRADIENT
                      : op->kind == LK_OP_CONV2D      ? LK_OP_CONV2D_INPUT_GRADIENT
                      : op->kind == LK_OP_CONV2D_POOL ? LK_OP_CONV2D_POOL_INPUT_GRADIENT
                                                      : LK_OP_MAX_POOL_BACKWARD;
    LK_CHECK(new_rows(p, before, before->kind == LK_OP_RELU ? "/relu/gradient" : "/gradient",
                      LK_CLASS_GRADIENT, LK_F32, before->floats, dx, error));
    lk_op *g = new_op(p, kind, LK_BACKWARD, op->layer);
    g->dy = dy;
    g->dx = *dx;
    g->argmax = op->argmax;
    g->weight = op->weight;
    if (kind == LK_OP_DENSE_INPUT_GRADIENT) {
        g->dense = op->dense;
    } else if (kind == LK_OP_MAX_POOL_BACKWARD) {
        g->pool = op->pool;
    } else {
        g->conv = op->conv;
    }
    bool masks = kind != LK_OP_MAX_POOL_BACKWARD;
    if (masks && has_fused_relu(before)) g->mask = before->y;
    return LK_OK;
}

static void relu_backward_op(lk_program *p, const lk_op *op, uint32_t dy) {
    lk_op *g = new_op(p, LK_OP_RELU_BACKWARD, LK_BACKWARD, op->layer);
    g->y = op->y;
    g->dy = g->dx = dy;
    g->floats = op->floats;
}

static lk_status backward_ops(lk_program *p, lk_error *error) {
    LK_CHECK(loss_ops(p, error));
    uint32_t first_trainable = 0;
    while (first_trainable < p->forward_end && !is_trainable(&p->ops[first_trainable]))
        first_trainable++;
    uint32_t dy = p->dlogits;
    bool masked = false;  // dy has been through the ReLU of the op at hand already
    for (uint32_t i = p->forward_end; i-- > first_trainable;) {
        const lk_op *op = &p->ops[i];
        if (op->kind == LK_OP_RELU || (has_fused_relu(op) && !masked)) relu_backward_op(p, op, dy);
        if (op->kind == LK_OP_RELU) continue;
        if (is_trainable(op)) weight_gradient_ops(p, op, dy);
        if (i == first_trainable) break;
        LK_CHECK(input_gradient_op(p, op, &p->ops[i - 1], dy, &dy, error));
        masked = p->ops[p->op_count - 1].mask != LK_NONE;
    }
    p->reduce_op = p->op_count;
    new_op(p, LK_OP_REDUCE_APPLY, LK_REDUCE, LK_NONE);
    return LK_OK;
}

// --- pass 4: reduction, scratch, lifetimes -----------------------------------------------------

lk_grain_range lk_replica_grains(uint32_t grains, uint32_t replicas, uint32_t replica) {
    uint32_t first = (uint32_t)((uint64_t)grains * replica / replicas);
    uint32_t end = (uint32_t)((uint64_t)grains * (replica + 1) / replicas);
    return (lk_grain_range){first, end - first};
}

// Returns the most nodes held at once; `counter` says those at the end. `late`: the blocks of a
// wave are joined after its last one.
static uint32_t hold_nodes(uint32_t first, uint32_t count, uint32_t wave_grains, uint32_t total,
                           bool late, lk_counter *counter) {
    uint32_t most = 0, end = first + count;
    counter->count = 0;
    for (uint32_t at = first; at < end;) {
        uint32_t wave_end = LK_MIN(at + wave_grains, end), held = counter->count;
        while (at < wave_end) {
            lk_node block = lk_next_block(at, wave_end, total);
            held = (late ? held : counter->count) + 1;
            most = LK_MAX(most, held);
            lk_counter_push(counter, block);
            at = (uint32_t)LK_MIN((uint64_t)(block.index + 1) << block.level, wave_end);
        }
    }
    return most;
}

uint32_t lk_node_slots(uint32_t first, uint32_t count, uint32_t wave_grains, uint32_t total) {
    lk_counter counter;
    return hold_nodes(first, count, wave_grains, total, false, &counter);
}

uint32_t lk_device_slots(uint32_t first, uint32_t count, uint32_t wave_grains, uint32_t total) {
    lk_counter counter;
    return hold_nodes(first, count, wave_grains, total, true, &counter);
}

lk_counter lk_nodes_held(uint32_t first, uint32_t count, uint32_t wave_grains, uint32_t total) {
    lk_counter counter;
    (void)hold_nodes(first, count, wave_grains, total, false, &counter);
    return counter;
}

// The most grains that a replica computes in a step.
static uint32_t replica_grains_max(const lk_program *p) {
    return (p->grains + p->layout.replicas_all - 1) / p->layout.replicas_all;
}

static void choose_wave(lk_program *p) {
    uint32_t most = replica_grains_max(p);
    uint64_t wanted = p->layout.wave_examples;
    if (wanted == 0) {
        bool resident = (uint64_t)most * p->spec->grain <= RESIDENT_EXAMPLES;
        wanted = resident ? RESIDENT_EXAMPLES : WAVE_EXAMPLES;
    }
    uint64_t grains = LK_MAX(wanted / p->spec->grain, 1);
    // Whole grains, also where a batch has none: evaluation fills them.
    p->wave_grains = (uint32_t)LK_MIN(grains, most);
    p->wave_examples = p->wave_grains * p->spec->grain;
}

// Operands pay where reading the others' activations is less than reading their gradients. Only
// replicas that share a memory can read each other's.
static lk_reduce_mode reduce_mode(const lk_program *p, const lk_op *op) {
    bool resident = p->wave_grains >= replica_grains_max(p);
    bool reach = lk_layout_sharers(&p->layout) == p->layout.replicas_all;
    if (p->layout.device) return LK_REDUCE_PARTIALS;
    if (op->kind != LK_OP_DENSE_WEIGHT_GRADIENT || !resident || !reach) return LK_REDUCE_PARTIALS;
    if (p->layout.reduce == LK_REDUCE_ALL_PARTIALS) return LK_REDUCE_PARTIALS;
    if (p->layout.reduce == LK_REDUCE_ALL_OPERANDS) return LK_REDUCE_OPERANDS;
    bool pays = p->layout.replicas_all == 1 || p->wave_examples < op->dense.n_count;
    return pays ? LK_REDUCE_OPERANDS : LK_REDUCE_PARTIALS;
}

// The partials of a node, and how many of them a replica holds.
static lk_status node_tensors(lk_program *p, lk_error *error) {
    const bool device = p->layout.device;
    for (uint32_t i = 0; i < p->param_count; i++) {
        lk_param *param = &p->params[i];
        param->mode = reduce_mode(p, &p->ops[param->gradient_op]);
        if (param->mode == LK_REDUCE_OPERANDS) continue;
        param->node_offset = p->node_floats;
        p->node_floats += lk_round_up(param->count, 16);
    }
    p->loss_offset = p->node_floats;
    if (device) p->node_floats += 16;
    // All that share a memory have the same layout, so that one finds what another holds.
    for (uint32_t r = 0; r < lk_layout_sharers(&p->layout); r++) {
        lk_grain_range g =
            lk_layout_grains(&p->layout, p->grains, r - lk_layout_first_sharer(&p->layout));
        lk_counter counter;
        uint32_t slots = hold_nodes(g.first, g.count, p->wave_grains, p->grains, device, &counter);
        p->node_slots = LK_MAX(p->node_slots, slots);
    }
    const uint64_t nodes[] = {p->node_slots, p->node_floats};
    return new_tensor(p, "gradient nodes", LK_CLASS_EXCHANGE, LK_F32, LK_REGION_REPLICA, 2, nodes,
                      &p->nodes, error);
}

static lk_status reduce_tensors(lk_program *p, lk_error *error) {
    bool operands = false;
    uint64_t scratch = (uint64_t)LK_JOIN_FLOATS * (lk_root_level(p->grains) + 2);
    LK_CHECK(node_tensors(p, error));
    p->views = p->reduce_scratch = LK_NONE;
    if (p->layout.device) return LK_OK;
    for (uint32_t i = 0; i < p->param_count; i++) {
        const lk_op *op = &p->ops[p->params[i].gradient_op];
        if (p->params[i].mode == LK_REDUCE_PARTIALS) continue;
        operands = true;
        uint64_t rows =
            LK_MAX((uint64_t)LK_OPERANDS_ROWS * op->dense.n_count, LK_OPERANDS_FLOATS_MAX);
        scratch = LK_MAX(scratch, rows + lk_dense_weight_gradient_scratch_floats(&op->dense));
    }
    const uint64_t views =
        (operands ? p->grains : p->wave_grains) * (uint64_t)sizeof(lk_grain_view);
    LK_CHECK(new_tensor(p, "grain views", LK_CLASS_STAGING, LK_U8, LK_REGION_REPLICA, 1, &views,
                        &p->views, error));
    return new_tensor(p, "reduce/scratch", LK_CLASS_SCRATCH, LK_F32, LK_REGION_REPLICA, 1, &scratch,
                      &p->reduce_scratch, error);
}

static uint64_t scratch_floats(const lk_program *p, const lk_op *op) {
    switch (op->kind) {
    case LK_OP_DENSE: return lk_dense_forward_scratch_floats(&op->dense, p->wave_examples);
    case LK_OP_DENSE_INPUT_GRADIENT:
        return lk_dense_input_gradient_scratch_floats(&op->dense, p->wave_examples);
    case LK_OP_DENSE_WEIGHT_GRADIENT: return lk_dense_weight_gradient_scratch_floats(&op->dense);
    case LK_OP_CONV2D:
    case LK_OP_CONV2D_POOL:
    case LK_OP_CONV2D_INPUT_GRADIENT:
    case LK_OP_CONV2D_POOL_INPUT_GRADIENT:
    case LK_OP_CONV2D_WEIGHT_GRADIENT:
    case LK_OP_CONV2D_POOL_WEIGHT_GRADIENT: return lk_conv2d_scratch_floats(&op->conv);
    default: return 0;
    }
}

// One for all ops of a device, which come one after another.
static lk_status device_scratch(lk_program *p, lk_error *error) {
    const uint64_t floats = p->layout.device_scratch_floats;
    uint32_t scratch;
    if (floats == 0) return LK_OK;
    LK_CHECK(new_tensor(p, "scratch", LK_CLASS_SCRATCH, LK_F32, LK_REGION_REPLICA, 1, &floats,
                        &scratch, error));
    for (uint32_t i = 0; i < p->op_count; i++) p->ops[i].scratch = scratch;
    return LK_OK;
}

static lk_status scratch_tensors(lk_program *p, lk_error *error) {
    if (p->layout.device) return device_scratch(p, error);
    for (uint32_t i = 0; i < p->op_count; i++) {
        lk_op *op = &p->ops[i];
        const uint64_t floats = scratch_floats(p, op);
        if (floats == 0) continue;
        char name[LK_NAME_BYTES];
        lk_format(name, sizeof name, "%s/%s/scratch", layer_name(p, op), lk_op_name(op->kind));
        LK_CHECK(new_tensor(p, name, LK_CLASS_SCRATCH, LK_F32, LK_REGION_REPLICA, 1, &floats,
                            &op->scratch, error));
    }
    p->ops[p->reduce_op].scratch = p->reduce_scratch;
    return LK_OK;
}

static void uses(lk_program *p, uint32_t tensor, uint32_t op) {
    if (tensor == LK_NONE) return;
    lk_tensor *t = &p->tensors[tensor];
    bool first_time = t->last == LK_FOREVER;
    t->first = first_time ? op : LK_MIN(t->first, op);
    t->last = first_time ? op : LK_MAX(t->last, op);
}

static void lifetimes(lk_program *p) {
    for (uint32_t i = 0; i < p->op_count; i++) {
        const lk_op *op = &p->ops[i];
        const uint32_t used[] = {op->x, op->y, op->argmax, op->dy, op->dx, op->mask, op->scratch};
        for (uint32_t u = 0; u < LK_COUNT(used); u++) uses(p, used[u], i);
        if (op->kind == LK_OP_LOAD || op->kind == LK_OP_LOSS) uses(p, p->labels, i);
    }
    for (uint32_t i = 0; i < p->param_count; i++) {
        const lk_op *op = &p->ops[p->params[i].gradient_op];
        if (p->params[i].mode != LK_REDUCE_OPERANDS) continue;
        uses(p, op->x, p->reduce_op);
        uses(p, op->dy, p->reduce_op);
    }
}

lk_status lk_program_build(const lk_run_spec *spec, const lk_layout *layout,
                           const lk_plan_options *options, void *memory, lk_program *p,
                           lk_error *error) {
    *p = (lk_program){.spec = spec, .layout = *layout, .checked = options->guards};
    LK_CHECK(lk_run_spec_check(spec, error));
    p->grains = lk_grain_count(spec);
    if (spec->precision != LK_STRICT && !layout->device) {
        return lk_fail(error, LK_UNAVAILABLE,
                       "arithmetic \"fast\": only a GPU computes it; use \"strict\" here");
    }
    if (layout->replicas_all == 0) p->layout.replicas_all = layout->replicas;
    if (layout->replicas == 0 || p->layout.replicas_all > p->grains) {
        return lk_fail(
            error, LK_BAD_CONFIG,
            "replicas: found %u%s, wanted 1 to %u: a global batch of %u has %u grains of %u and a "
            "replica needs at least one",
            p->layout.replicas_all, layout->replicas_all > layout->replicas ? " in all" : "",
            p->grains, spec->global_batch, p->grains, spec->grain);
    }
    lay_tables(&spec->model, memory, p);
    choose_wave(p);
    LK_CHECK(forward_ops(p, error));
    if (layout->fuse) fuse(p);
    LK_CHECK(forward_tensors(p, error));
    if (p->param_count == 0)
        return lk_fail(error, LK_BAD_CONFIG, "model: no layer has parameters to train");
    LK_CHECK(backward_ops(p, error));
    LK_CHECK(reduce_tensors(p, error));
    LK_CHECK(scratch_tensors(p, error));
    lifetimes(p);
    return lk_plan_regions(p->tensors, p->tensor_count, options, p->order, p->regions, error);
}

// --- initial values ----------------------------------------------------------------------------

static float initial_limit(const lk_param *param) {
    uint64_t fan =
        param->fan_in + (param->initializer == LK_INIT_GLOROT_UNIFORM ? param->fan_out : 0);
    return lk_sqrtf(6.0f / (float)fan);
}

// Element e of parameter p: u = unit float of word e % 4 of the Philox block with counter
// (e / 4 low, e / 4 high, p, 0); w = (2u - 1) * limit.
static void initialize_param(uint64_t seed, uint32_t index, const lk_param *param, float *w) {
    if (param->initializer == LK_INIT_ZEROS) {
        for (uint64_t e = 0; e < param->count; e++) w[e] = 0.0f;
        return;
    }
    float limit = initial_limit(param);
    for (uint64_t e = 0; e < param->count; e += 4) {
        lk_philox_block b = lk_philox(seed, LK_PURPOSE_INITIALIZER, (uint32_t)(e / 4),
                                      (uint32_t)(e / 4 >> 32), index, 0);
        for (uint64_t i = 0; i < 4 && e + i < param->count; i++) {
            w[e + i] = (2.0f * lk_unit_float(b.word[i]) - 1.0f) * limit;
        }
    }
}

void lk_program_initialize(const lk_program *p, uint8_t *device) {
    for (uint32_t i = 0; i < p->param_count; i++) {
        const lk_param *param = &p->params[i];
        float *w = (float *)(void *)(device + p->tensors[param->tensor].offset);
        initialize_param(p->spec->seed, i, param, w);
        for (uint32_t s = 0; s < lk_optimizer_slot_count(&p->spec->optimizer); s++) {
            float *slot = (float *)(void *)(device + p->tensors[param->slots[s]].offset);
            for (uint64_t e = 0; e < param->count; e++) slot[e] = 0.0f;
        }
    }
}
