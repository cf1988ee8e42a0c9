// build.c - layers in, forward and backward ops out: build.h. Freestanding; knows no layer and no
// op but those that every program has.
#include "ops/graph/build.h"

#include "ops/graph/scale.h"
#include "ops/graph/spectral.h"

// --- emitting ------------------------------------------------------------------------------------

// What a layer computes in; of what belongs to none, the model.
static lk_dtype dtype_of(const lk_program *p, uint32_t layer) {
    const lk_model *m = &p->spec->model;
    const bool fp32 = layer != LK_NONE && m->layers[layer].dtype == LK_LAYER_FLOAT32;
    return fp32 ? LK_F32 : lk_model_dtype(m);
}

static lk_op *new_op(lk_builder *b, const lk_op_type *type, lk_phase phase, uint32_t layer) {
    lk_program *p = b->program;
    lk_assert(p->op_count < b->ops_max);
    lk_op *op = &p->ops[p->op_count++];
    *op = (lk_op){.type = type,
                  .phase = phase,
                  .layer = layer,
                  .gradient = LK_NONE,
                  .dtype = (uint8_t)dtype_of(p, layer),
                  .value = (uint8_t)b->value};
    for (uint32_t i = 0; i < LK_ROLES; i++) op->tensor[i] = LK_NONE;
    for (uint32_t i = 0; i < LK_OP_PARAMS; i++) op->param[i] = LK_NONE;
    for (uint32_t i = 0; i < LK_OP_INPUTS; i++) op->input[i] = LK_NONE;
    return op;
}

lk_op *lk_build_op(lk_builder *b, const lk_op_type *type, lk_value x, lk_shape y) {
    lk_op *op = new_op(b, type, LK_FORWARD, b->layer);
    op->input[0] = x.op;
    b->output = (lk_value){b->program->op_count - 1, y};
    return op;
}

lk_status lk_build_tensor(lk_builder *b, const char *name, lk_tensor_class class_, lk_dtype dtype,
                          lk_region region, uint32_t rank, const uint64_t *shape,
                          uint32_t *tensor) {
    lk_program *p = b->program;
    lk_assert(p->tensor_count < b->tensors_max);
    *tensor = p->tensor_count++;
    return lk_tensor_make(&p->tensors[*tensor], name, class_, dtype, region, rank, shape, b->error);
}

static const char *layer_name(const lk_program *p, const lk_op *op) {
    return op->layer == LK_NONE ? "input" : p->spec->model.layers[op->layer].name;
}

void lk_build_op_name(const lk_builder *b, const lk_op *op, char name[LK_NAME_BYTES]) {
    const char *layer = layer_name(b->program, op);
    const lk_graph *g = lk_graph_of(&b->program->spec->model);
    if (g && op->value && op->layer == LK_NONE) {  // noise
        const lk_objective *o = &g->objectives[b->program->objective];
        lk_format(name, LK_NAME_BYTES, "%s", o->values[op->value - 1].name);
        return;
    }
    const uint32_t use = g && op->value ? g->calls->use_of(b, op->value - 1) : 0;
    lk_format(name, LK_NAME_BYTES, use ? "%s:%u" : "%s", layer, use);
}

// Of rank 2, also where a row is one element, since grains find theirs by the length of a row.
lk_status lk_build_rows(lk_builder *b, const lk_op *op, const char *suffix, lk_tensor_class class_,
                        lk_dtype dtype, uint64_t count, uint32_t *tensor) {
    char name[LK_NAME_BYTES], layer[LK_NAME_BYTES];
    const uint64_t shape[] = {b->program->microbatch_examples, count};
    if (b->params_only) return LK_OK;
    lk_build_op_name(b, op, layer);
    lk_format(name, sizeof name, "%s%s%s", layer, op->type->suffix ? op->type->suffix : "", suffix);
    return lk_build_tensor(b, name, class_, dtype, LK_REGION_REPLICA, 2, shape, tensor);
}

lk_status lk_build_grain_rows(lk_builder *b, const lk_op *op, const char *suffix, uint64_t count,
                              uint32_t *tensor) {
    char name[LK_NAME_BYTES], layer[LK_NAME_BYTES];
    const uint64_t shape[] = {b->program->microbatch_grains, count};
    if (b->params_only) return LK_OK;
    lk_build_op_name(b, op, layer);
    lk_format(name, sizeof name, "%s%s%s", layer, op->type->suffix ? op->type->suffix : "", suffix);
    return lk_build_tensor(b, name, LK_CLASS_ACTIVATION, LK_F32, LK_REGION_REPLICA, 2, shape,
                           tensor);
}

lk_status lk_build_slots(lk_builder *b, uint32_t param, const lk_optimizer *o, const char *infix,
                         uint32_t slots[LK_OPTIMIZER_SLOTS_MAX]) {
    const lk_tensor *of = &b->program->tensors[b->program->params[param].tensor];
    lk_slot list[LK_OPTIMIZER_SLOTS_MAX];
    const uint32_t count = lk_optimizer_slots(o, list);
    char name[LK_NAME_BYTES];
    for (uint32_t i = 0; i < count; i++) {
        lk_format(name, sizeof name, "%s/%s%s", of->name, infix, list[i].name);
        LK_CHECK(lk_build_tensor(b, name, LK_CLASS_SLOT, LK_F32, LK_REGION_DEVICE, of->rank,
                                 of->shape, &slots[i]));
    }
    return LK_OK;
}

// Of several networks all parameters and states are there before the first op: the one of that
// name, or LK_NONE.
static uint32_t entry_named(const lk_builder *b, const lk_param *entries, uint32_t count,
                            const char *name) {
    const lk_program *p = b->program;
    if (!lk_graph_of(&p->spec->model) || b->params_only) return LK_NONE;
    for (uint32_t i = 0; i < count; i++) {
        const char *a = p->tensors[entries[i].tensor].name, *c = name;
        while (*a && *a == *c) a++, c++;
        if (*a == *c) return i;
    }
    lk_panic(__FILE__, __LINE__, "a parameter or state that its network has not");
}

// The number that a kernel's initializer takes.
static lk_status check_initial(lk_builder *b, const lk_layer *l, const lk_initializer *i) {
    if (l->initial == 0.0f) return LK_OK;
    if (!i->takes) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: kernel_initializer %s takes no kernel_initializer_value; leave "
                       "it out, or choose an initializer that takes one, such as constant",
                       l->name, i->name);
    }
    if (l->initial < 0.0f && i != &lk_initializer_constant) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: kernel_initializer_value: found a number below 0, wanted the %s "
                       "of %s, above 0",
                       l->name, i->takes, i->name);
    }
    return LK_OK;
}

// Of averages what products take is the tensor after that of the weights.
static lk_status round_average(lk_builder *b, const char *name, const lk_param_shape *s) {
    char rounded[LK_NAME_BYTES];
    uint32_t tensor;
    lk_format(rounded, sizeof rounded, "%s/rounded average", name);
    return lk_build_tensor(b, rounded, LK_CLASS_STAGING, LK_F32, LK_REGION_DEVICE, s->rank, s->size,
                           &tensor);
}

// What it was divided to, of each replica; the numbers of one step; and the state. Several networks
// have all of it before their first op.
static lk_status build_spectral(lk_builder *b, lk_op *op, const char *name,
                                const lk_param_shape *s) {
    const lk_state_shape u = {.suffix = "vector_u",
                              .dtype = LK_F32,
                              .rank = 1,
                              .size = {s->size[s->rank - 1]},
                              .initializer = &lk_initializer_random_normal};
    lk_param *param = &b->program->params[op->param[0]];
    const uint64_t floats = lk_spectral_floats(param->count, u.size[0]);
    char suffixed[LK_NAME_BYTES];
    uint32_t state, numbers;
    LK_CHECK(lk_build_state(b, op, 0, &u, &state));
    if (param->rounded != LK_NONE) return LK_OK;
    lk_format(suffixed, sizeof suffixed, "%s/normalized", name);
    LK_CHECK(lk_build_tensor(b, suffixed, LK_CLASS_STAGING, LK_F32, LK_REGION_REPLICA, s->rank,
                             s->size, &param->rounded));
    lk_format(suffixed, sizeof suffixed, "%s/spectral", name);
    return lk_build_tensor(b, suffixed, LK_CLASS_SCRATCH, LK_F32, LK_REGION_REPLICA, 1, &floats,
                           &numbers);
}

lk_status lk_build_param(lk_builder *b, lk_op *op, uint32_t which, const lk_param_shape *s) {
    lk_program *p = b->program;
    const lk_layer *layer = &p->spec->model.layers[op->layer];
    char name[LK_NAME_BYTES];
    lk_format(name, sizeof name, "%s/%s", layer_name(p, op), s->suffix);
    if (which == 0) LK_CHECK(check_initial(b, layer, s->initializer));
    op->param[which] = entry_named(b, p->params, p->param_count, name);
    const bool spectral = which == 0 && layer->spectral;
    if (op->param[which] != LK_NONE) return spectral ? build_spectral(b, op, name, s) : LK_OK;
    lk_param *param = &p->params[p->param_count];
    *param = (lk_param){.initializer = s->initializer,
                        .count = 1,
                        .gradient_op = LK_NONE,
                        .rounded = LK_NONE,
                        .node_offset = UINT64_MAX / 2,  // of no node
                        .fan_in = s->fan_in,
                        .fan_out = s->fan_out};
    if (s->initializer->takes) param->initial = layer->initial;
    op->param[which] = p->param_count++;
    LK_CHECK(lk_build_tensor(b, name, LK_CLASS_PARAMETER, LK_F32, LK_REGION_DEVICE, s->rank,
                             s->size, &param->tensor));
    for (uint32_t i = 0; i < s->rank; i++) param->count *= s->size[i];
    p->param_floats += param->count;
    if (spectral) {
        LK_CHECK(build_spectral(b, op, name, s));
    } else if (which == 0 && op->dtype != LK_F32 && op->type->mixed && !op->type->plain) {
        char rounded[LK_NAME_BYTES];
        lk_format(rounded, sizeof rounded, "%s/rounded", name);
        LK_CHECK(lk_build_tensor(b, rounded, LK_CLASS_STAGING, LK_F32, LK_REGION_DEVICE, s->rank,
                                 s->size, &param->rounded));
        if (p->spec->model.averages && !layer->frozen) LK_CHECK(round_average(b, name, s));
    }
    if (layer->frozen) return LK_OK;
    if (!b->params_only) return lk_build_slots(b, op->param[which], p->optimizer, "", param->slots);
    return lk_graph_of(&p->spec->model)->calls->slots(b, op->layer, op->param[which]);
}

static lk_status new_state(lk_builder *b, const char *name, const lk_state_shape *s,
                           uint32_t *tensor) {
    lk_param *state = &b->states[b->program->state_count++];
    *state = (lk_param){.initializer = s->initializer,
                        .count = 1,
                        .gradient_op = LK_NONE,
                        .rounded = LK_NONE,
                        .node_offset = UINT64_MAX / 2};  // of no node
    LK_CHECK(lk_build_tensor(b, name, LK_CLASS_STATE, s->dtype, LK_REGION_DEVICE, s->rank, s->size,
                             &state->tensor));
    for (uint32_t i = 0; i < s->rank; i++) state->count *= s->size[i];
    *tensor = state->tensor;
    return LK_OK;
}

lk_status lk_build_state(lk_builder *b, lk_op *op, uint32_t which, const lk_state_shape *s,
                         uint32_t *tensor) {
    const lk_program *p = b->program;
    char name[LK_NAME_BYTES];
    lk_assert(s->dtype == LK_F32 || s->dtype == LK_U32);
    if (!op) return new_state(b, s->suffix, s, tensor);
    lk_format(name, sizeof name, "%s/%s", layer_name(p, op), s->suffix);
    const uint32_t there = entry_named(b, b->states, p->state_count, name);
    if (there == LK_NONE) {
        LK_CHECK(new_state(b, name, s, tensor));
    } else {
        *tensor = b->states[there].tensor;
    }
    if (which == 0) op->tensor[LK_STATE] = *tensor;
    lk_assert(which < LK_OP_STATES && *tensor == op->tensor[LK_STATE] + which);
    return LK_OK;
}

// How many steps of each objective were skipped.
static lk_status count_skipped(lk_builder *b) {
    const lk_model *m = &b->program->spec->model;
    const lk_state_shape counts = {.suffix = "run/steps/skipped",
                                   .dtype = LK_U32,
                                   .rank = 2,
                                   .size = {lk_objective_count(m), 2}};
    return m->skips ? lk_build_state(b, NULL, 0, &counts, &b->program->skipped) : LK_OK;
}

static lk_status scale_loss(lk_builder *b) {
    const lk_model *m = &b->program->spec->model;
    lk_state_shape state = {
        .suffix = "run/loss_scale/state", .dtype = LK_U32, .rank = 1, .size = {LK_SCALE_WORDS}};
    if (!lk_model_scales(m)) return LK_OK;
    if (lk_graph_of(m)) {
        state.rank = 2;
        state.size[0] = lk_objective_count(m);
        state.size[1] = LK_SCALE_WORDS;
    }
    return lk_build_state(b, NULL, 0, &state, &b->program->loss_scale);
}

// Behind the parameters, now that they are all there.
static void gather_states(lk_builder *b) {
    lk_program *p = b->program;
    lk_param *to = p->params + p->param_count;
    for (uint32_t i = 0; i < p->state_count; i++) to[i] = b->states[i];
    b->states = to;
}

// --- shapes --------------------------------------------------------------------------------------

// Floats of one example; shapes too large for 32 bits are refused before any kernel sees them.
lk_status lk_build_check_shape(lk_builder *b, const char *name, const lk_shape *s,
                               uint64_t *floats) {
    if (!lk_mul_ok((uint64_t)s->h * s->w, s->c, floats) || *floats > INT32_MAX) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: an output of %u x %u x %u is more than 2^31 values an example",
                       name, s->h, s->w, s->c);
    }
    return LK_OK;
}

bool lk_window_size(uint32_t in, uint32_t size, uint32_t stride, lk_padding padding, uint32_t *out,
                    uint32_t *pad) {
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

lk_status lk_build_window(lk_builder *b, const lk_layer *l, lk_shape in, lk_shape *out,
                          uint32_t *pad_top, uint32_t *pad_left) {
    if (in.flat) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: wants images (height, width, channels) but its input is flat "
                       "(%u); put it before flatten",
                       l->name, in.c);
    }
    if (l->size_h == 0 || l->size_w == 0 || l->stride_h == 0 || l->stride_w == 0) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: a window size or stride is 0, wanted at least 1", l->name);
    }
    if (!lk_window_size(in.h, l->size_h, l->stride_h, l->padding, &out->h, pad_top) ||
        !lk_window_size(in.w, l->size_w, l->stride_w, l->padding, &out->w, pad_left)) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: its window of %u x %u is larger than its input of %u x %u; make "
                       "it smaller or use padding \"same\"",
                       l->name, l->size_h, l->size_w, in.h, in.w);
    }
    return LK_OK;
}

// --- pass 1: layers to forward ops ---------------------------------------------------------------

// They lie where the planner will sort later.
lk_value *lk_build_values(const lk_builder *b) { return (lk_value *)(void *)b->program->order; }

// `number` is that of the value before the layer.
static lk_status take_inputs(lk_builder *b, const lk_layer *l, uint32_t number) {
    const uint32_t wanted = l->type->inputs;
    const uint32_t given = l->input_count ? l->input_count : LK_MIN(wanted, 1u);
    if (given != wanted) {
        return lk_fail(b->error, LK_BAD_CONFIG, "layer %s: found %u inputs, wanted %u", l->name,
                       given, wanted);
    }
    for (uint32_t i = 0; i < given; i++) {
        const uint32_t from = l->input_count ? l->inputs[i] : number;
        lk_assert(from <= number);
        b->input[i] = lk_build_values(b)[from];
    }
    return LK_OK;
}

static lk_status build_layer(lk_builder *b, const lk_layer *l, uint32_t number) {
    const lk_program *p = b->program;
    const lk_layer_type *steps[] = {l->type, l->activation};
    const uint32_t first = p->op_count;
    LK_CHECK(take_inputs(b, l, number));
    for (uint32_t s = 0; s < LK_COUNT(steps) && steps[s]; s++) {
        const uint32_t before = p->op_count;
        uint64_t floats;
        LK_CHECK(steps[s]->build(b, l));
        LK_CHECK(lk_build_check_shape(b, l->name, &b->output.shape, &floats));
        if (p->op_count > before) p->ops[p->op_count - 1].floats = floats;
        b->input[0] = b->output;
    }
    if (p->op_count > first) p->ops[b->output.op].ends = true;
    return LK_OK;
}

// What the loss takes, its first input first.
static void loss_inputs(const lk_model *m, uint32_t inputs[LK_LAYER_INPUTS_MAX]) {
    const lk_loss_options *o = &m->loss_options;
    inputs[0] = o->input_count ? o->inputs[0] : m->layer_count;
    inputs[1] = o->input_count ? o->inputs[1] : 0;
}

// Does the loss take that value itself? Of several networks it takes the last layer of one.
static bool loss_takes(const lk_model *m, uint32_t number, uint32_t last) {
    uint32_t taken[LK_LAYER_INPUTS_MAX];
    bool takes = false;
    if (lk_graph_of(m)) return number == last;
    loss_inputs(m, taken);
    for (uint32_t n = 0; n < lk_model_loss(m)->inputs; n++) takes = takes || taken[n] == number;
    return takes;
}

// Every layer must be of use to another or to the loss: its parameters would have no gradient.
static lk_status check_used(lk_builder *b, const lk_layer *layers, uint32_t count,
                            uint32_t inputs) {
    for (uint32_t i = 0; i < count; i++) {
        bool used = i + 1 < count && layers[i + 1].input_count == 0 && layers[i + 1].type->inputs;
        used = used || loss_takes(&b->program->spec->model, i + inputs, count - 1 + inputs);
        for (uint32_t k = i + 1; k < count && !used; k++) {
            for (uint32_t n = 0; n < layers[k].input_count; n++) {
                used = used || layers[k].inputs[n] == i + inputs;
            }
        }
        if (used) continue;
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: no other layer takes its output; name it in \"inputs\" of one, "
                       "or take it out",
                       layers[i].name);
    }
    return LK_OK;
}

lk_status lk_build_load(lk_builder *b) {
    const lk_model *m = &b->program->spec->model;
    const lk_shape input = {m->in_h, m->in_w, m->in_c, false};
    uint64_t floats;
    LK_CHECK(lk_build_check_shape(b, "input", &input, &floats));
    if (floats == 0) return lk_fail(b->error, LK_BAD_CONFIG, "model.input: a dimension is 0");
    lk_op *load = new_op(b, &lk_op_load, LK_LOAD, LK_NONE);
    load->floats = floats;
    load->ends = true;
    b->output = (lk_value){0, input};
    return LK_OK;
}

lk_status lk_build_network(lk_builder *b, uint32_t first, uint32_t count, uint32_t inputs) {
    const lk_layer *layers = b->program->spec->model.layers + first;
    LK_CHECK(check_used(b, layers, count, inputs));
    for (uint32_t i = 0; i < count; i++) {
        b->layer = first + i;
        LK_CHECK(build_layer(b, &layers[i], inputs + i - 1));
        lk_build_values(b)[inputs + i] = b->output;
    }
    return LK_OK;
}

static lk_status take_loss_inputs(lk_builder *b) {
    const lk_model *m = &b->program->spec->model;
    const lk_loss_type *loss = lk_model_loss(m);
    uint32_t inputs[LK_LAYER_INPUTS_MAX];
    if (m->loss_options.input_count && m->loss_options.input_count != loss->inputs) {
        return lk_fail(b->error, LK_BAD_CONFIG, "model.loss: found %u inputs, wanted %u",
                       m->loss_options.input_count, loss->inputs);
    }
    loss_inputs(m, inputs);
    b->output = lk_build_values(b)[inputs[0]];
    b->target = (lk_value){.op = LK_NONE};
    if (loss->inputs > 1) b->target = lk_build_values(b)[inputs[1]];
    return LK_OK;
}

static lk_status build_layers(lk_builder *b) {
    const lk_model *m = &b->program->spec->model;
    if (lk_graph_of(m)) return lk_graph_of(m)->calls->forward(b);
    LK_CHECK(lk_build_load(b));
    lk_build_values(b)[0] = b->output;
    LK_CHECK(lk_build_network(b, 0, m->layer_count, 1));
    return take_loss_inputs(b);
}

// --- pass 2: fusion ------------------------------------------------------------------------------

uint32_t lk_build_only_user(const lk_builder *b, uint32_t i) {
    const lk_program *p = b->program;
    uint32_t user = LK_NONE;
    if (b->output.op == i || b->target.op == i) return LK_NONE;  // the loss does
    for (uint32_t k = i + 1; k < p->op_count; k++) {
        for (uint32_t n = 0; p->ops[k].type && n < LK_OP_INPUTS; n++) {
            if (p->ops[k].input[n] != i) continue;
            if (user != LK_NONE) return LK_NONE;
            user = k;
        }
    }
    return user;
}

// Whoever took the y of `from` takes that of `to`.
static void redirect(lk_builder *b, uint32_t from, uint32_t to) {
    lk_program *p = b->program;
    for (uint32_t k = from + 1; k < p->op_count; k++) {
        for (uint32_t n = 0; n < LK_OP_INPUTS; n++) {
            if (p->ops[k].input[n] == from) p->ops[k].input[n] = to;
        }
    }
    if (b->output.op == from) b->output.op = to;
    if (b->target.op == from) b->target.op = to;
}

// Ops that were taken in leave the table; numbers follow. `gradient` holds the new ones meanwhile.
static void close_gaps(lk_builder *b) {
    lk_program *p = b->program;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < p->op_count; i++) p->ops[i].gradient = p->ops[i].type ? kept++ : 0;
    for (uint32_t i = 0; i < p->op_count; i++) {
        for (uint32_t n = 0; n < LK_OP_INPUTS; n++) {
            uint32_t *input = &p->ops[i].input[n];
            if (*input != LK_NONE) *input = p->ops[*input].gradient;
        }
    }
    b->output.op = p->ops[b->output.op].gradient;
    if (b->target.op != LK_NONE) b->target.op = p->ops[b->target.op].gradient;
    kept = 0;
    for (uint32_t i = 0; i < p->op_count; i++) {
        if (!p->ops[i].type) continue;
        p->ops[kept] = p->ops[i];
        p->ops[kept++].gradient = LK_NONE;
    }
    p->op_count = kept;
}

bool lk_build_absorb_relu(lk_op *op, const lk_op *next, bool *relu) {
    if (next->type != &lk_op_relu || op->relu) return false;
    op->relu = true;
    *relu = op->dtype == LK_F32;
    return true;
}

static void fuse(lk_builder *b) {
    lk_program *p = b->program;
    for (uint32_t i = 0; i < p->op_count; i++) {
        lk_op *op = &p->ops[i];
        while (op->type && op->type->absorb) {
            const uint32_t next = lk_build_only_user(b, i);
            const bool relu = op->relu;
            // All uses of a network are fused alike: nothing at its edges.
            if (next == LK_NONE || p->ops[next].value != op->value) break;
            if (p->ops[next].dtype != op->dtype) break;
            if (!op->type->absorb(b, op, &p->ops[next])) break;
            if (op->relu && !relu) op->relu_apart = op->ends;
            op->ends = p->ops[next].ends;
            p->ops[next].type = NULL;
            redirect(b, next, i);
        }
    }
    close_gaps(b);
}

// --- pass 3: tensors of the forward ops ----------------------------------------------------------

static void count_users(lk_builder *b) {
    lk_program *p = b->program;
    for (uint32_t i = 0; i < p->op_count; i++) {
        for (uint32_t n = 0; n < LK_OP_INPUTS; n++) {
            if (p->ops[i].input[n] != LK_NONE) p->ops[p->ops[i].input[n]].users++;
        }
    }
    p->ops[b->output.op].users++;
    if (b->target.op != LK_NONE) p->ops[b->target.op].users++;
}

static bool trains(const lk_builder *b, uint32_t layer) {
    const lk_model *m = &b->program->spec->model;
    if (m->layers[layer].frozen) return false;
    return !lk_graph_of(m) || lk_graph_of(m)->calls->trains(b, layer);
}

// Is the y of op `i` an output that the loss takes as it is? Of two inputs the second is a target,
// but for scores of real and of made examples, which are alike.
static bool is_logits(const lk_builder *b, uint32_t i) {
    return i == b->output.op || (i == b->target.op && lk_program_loss(b->program)->gan);
}

// A layer's output is rounded; what comes before it in the layer is not, nor what the loss takes.
static lk_dtype output_dtype(const lk_builder *b, uint32_t i) {
    const lk_op *op = &b->program->ops[i];
    if (op->narrow && op->type->narrows) {
        return lk_fast_dtype(b->program->spec->model.fast_precision);
    }
    return is_logits(b, i) || !op->ends ? LK_F32 : (lk_dtype)op->dtype;
}

// Nobody else may take it.
static lk_status check_logits(const lk_builder *b) {
    const lk_program *p = b->program;
    for (uint32_t i = 0; i < p->op_count; i++) {
        if (!is_logits(b, i) || p->ops[i].dtype == LK_F32 || p->ops[i].users == 1) continue;
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: the loss takes its output, which stays in float32, and so does "
                       "another layer, which wants 16 bits; say \"dtype\": \"float32\" in it",
                       layer_name(p, &p->ops[i]));
    }
    return LK_OK;
}

// The fast arithmetic in 16 bits: what an op alone takes to multiply it is stored as it multiplies
// it, where rows are as cuBLAS wants them (LK_BLAS_ALIGN_BYTES). Networks that are used twice
// gather their rows in fp32.
static void note_narrow(lk_builder *b, uint32_t i) {
    lk_program *p = b->program;
    lk_op *op = &p->ops[i];
    const lk_dtype dtype = lk_fast_dtype(p->spec->model.fast_precision);
    if (!lk_dtype_is_half(dtype) || lk_graph_of(&p->spec->model)) return;
    if (!op->type->narrows || op->floats % 8 != 0) return;
    const uint32_t user = lk_build_only_user(b, i);
    if (user == LK_NONE || !p->ops[user].type->multiplies) return;
    op->narrow = p->ops[user].narrow = true;
}

static lk_status forward_tensors(lk_builder *b) {
    static const lk_role inputs[LK_OP_INPUTS] = {LK_X, LK_X2};
    lk_program *p = b->program;
    for (uint32_t i = 0; i < p->op_count; i++) {
        lk_op *op = &p->ops[i];
        for (uint32_t n = 0; n < LK_OP_INPUTS; n++) {
            if (op->input[n] == LK_NONE) continue;
            op->tensor[inputs[n]] = p->ops[op->input[n]].tensor[LK_Y];
            op->wants = op->wants || p->ops[op->input[n]].wants;
        }
        note_narrow(b, i);
        if (op->floats > 0) {
            LK_CHECK(lk_build_rows(b, op, "", LK_CLASS_ACTIVATION, output_dtype(b, i),
                                   op->floats, &op->tensor[LK_Y]));
        }
        if (op->type->declare) LK_CHECK(op->type->declare(b, op));
        const bool learns = op->param[0] != LK_NONE || op->param[1] != LK_NONE;
        op->wants = op->wants || (learns && trains(b, op->layer));
    }
    p->input = p->ops[0].tensor[LK_Y];
    p->logits = p->ops[b->output.op].tensor[LK_Y];
    p->forward_end = p->op_count;
    return LK_OK;
}

lk_status lk_build_forward(lk_builder *b) {
    LK_CHECK(build_layers(b));
    if (b->program->layout.fuse) fuse(b);
    count_users(b);
    LK_CHECK(check_logits(b));
    LK_CHECK(forward_tensors(b));
    LK_CHECK(count_skipped(b));
    LK_CHECK(scale_loss(b));
    gather_states(b);
    return LK_OK;
}

// --- pass 4: the loss, and backward --------------------------------------------------------------

// Where a user's share of the gradient of op `of`'s y goes: the first user's is the gradient, the
// next ones' are added to it.
static lk_status gradient_tensor(lk_builder *b, uint32_t of, uint32_t *tensor) {
    lk_op *op = &b->program->ops[of];
    const bool first = op->gradient == LK_NONE;
    LK_CHECK(lk_build_rows(b, op, first ? "/gradient" : "/gradient share", LK_CLASS_GRADIENT,
                           (lk_dtype)op->dtype, op->floats, tensor));
    if (first) op->gradient = *tensor;
    return LK_OK;
}

// The numbers of a loss, in the one place where its op has them.
static void set_numbers(lk_op *loss, const lk_loss_type *type, const lk_loss_options *o) {
    if (type->gan) {
        loss->gan = o->gan;
    } else {
        loss->scale = o->scale;
    }
}

// Labels are sequences for a loss that takes them so, and for no other.
static lk_status check_labels(const lk_builder *b) {
    const lk_model *m = &b->program->spec->model;
    if (lk_program_loss(b->program)->sequences || lk_model_label_row(m) == 1) return LK_OK;
    return lk_fail(b->error, LK_BAD_CONFIG,
                   "model.labels: found %u labels an example, and a loss that takes no sequences "
                   "of them; use loss \"transducer\", or take model.labels out",
                   m->labels);
}

// Where LOAD makes a strip, one after the other.
static lk_status build_strip(lk_builder *b) {
    const lk_run_spec *spec = b->program->spec;
    const uint64_t bytes = lk_model_input_bytes(&spec->model);
    if (!lk_spec_has_strips(spec)) return LK_OK;
    return lk_build_tensor(b, "strip", LK_CLASS_STAGING, LK_U8, LK_REGION_REPLICA, 1, &bytes,
                           &b->program->ops[0].tensor[LK_X]);
}

lk_status lk_build_loss(lk_builder *b, const lk_op_type *type, const lk_op_type *target) {
    lk_program *p = b->program;
    lk_op *last = &p->ops[b->output.op];
    const uint64_t examples = p->microbatch_examples;
    const uint64_t rows[] = {examples, lk_model_label_row(&p->spec->model)};
    const uint64_t sums[] = {examples, lk_program_metrics(p)->sum_count};
    const bool labels = lk_program_loss(p)->labels;
    LK_CHECK(check_labels(b));
    LK_CHECK(lk_build_rows(b, last, "/gradient", LK_CLASS_GRADIENT, (lk_dtype)last->dtype,
                           last->floats, &last->gradient));
    LK_CHECK(lk_build_tensor(b, "labels", LK_CLASS_STAGING, LK_U32, LK_REGION_REPLICA,
                             rows[1] > 1 ? 2 : 1, rows, &p->labels));
    LK_CHECK(lk_build_tensor(b, "loss", LK_CLASS_ACTIVATION, LK_F32, LK_REGION_REPLICA,
                             sums[1] > 1 ? 2 : 1, sums, &p->loss));
    LK_CHECK(build_strip(b));
    lk_op *loss = new_op(b, type, LK_FORWARD, LK_NONE);
    const uint32_t number = p->op_count - 1;
    loss->floats = last->floats;
    set_numbers(loss, lk_program_loss(p), lk_program_loss_options(p));
    loss->input[0] = b->output.op;
    loss->input[1] = b->target.op;
    loss->gradient = last->gradient;
    p->ops[0].tensor[LK_AUX] = p->labels;
    loss->tensor[LK_X] = p->logits;
    loss->tensor[LK_X2] = labels ? p->labels : LK_NONE;
    if (b->target.op != LK_NONE) loss->tensor[LK_X2] = p->ops[b->target.op].tensor[LK_Y];
    if (!labels) loss->tensor[LK_AUX] = p->labels;
    loss->tensor[LK_Y] = p->loss;
    loss->tensor[LK_DX] = last->gradient;
    if (!target && b->target.op != LK_NONE && p->ops[b->target.op].wants) {
        LK_CHECK(gradient_tensor(b, b->target.op, &loss->tensor[LK_DX2]));
    }
    new_op(b, &lk_op_metric_sum, LK_FORWARD, LK_NONE)->tensor[LK_DY] = p->loss;
    for (uint32_t i = 0; i < p->forward_end; i++) {
        if (p->ops[i].type->grains) p->ops[i].tensor[LK_X2] = p->labels;
        if (p->ops[i].type->labels) p->ops[i].tensor[LK_LABELS] = p->labels;
    }
    return target ? lk_build_input_gradient(b, target, number, 1, false) : LK_OK;
}

lk_op *lk_build_after_loss(lk_builder *b, const lk_op_type *type, uint32_t layer) {
    return new_op(b, type, LK_FORWARD, layer);
}

lk_op *lk_build_gradient(lk_builder *b, const lk_op_type *type, uint32_t of) {
    const lk_op *forward = &b->program->ops[of];
    lk_op *g = new_op(b, type, LK_BACKWARD, forward->layer);
    g->floats = forward->floats;
    g->dtype = forward->dtype;
    g->strict = forward->strict;
    g->narrow = forward->narrow;
    g->tensor[LK_DY] = forward->gradient;
    g->grouped = forward->grouped;  // all of the shape
    _Static_assert(sizeof g->grouped == sizeof g->words, "");
    return g;
}

// The gradient of a recurrent op's sums over its state, which its backward op has computed: what
// that writes beside the gradient of x, or that of x itself.
static uint32_t state_gradient(const lk_program *p, const lk_op *use) {
    for (uint32_t i = p->op_count; i-- > 0;) {
        const lk_op *op = &p->ops[i];
        if (op->phase != LK_BACKWARD || op->tensor[LK_AUX] != use->tensor[LK_AUX]) continue;
        if (op->type->both) return op->tensor[LK_DX2];
    }
    return p->ops[use->input[0]].gradient;
}

lk_op *lk_build_use_gradient(lk_builder *b, const lk_op_type *type, uint32_t of) {
    const lk_program *p = b->program;
    const lk_op *use = &p->ops[of];
    uint32_t first = p->op_count;  // the gradient op: this one, or before its further uses
    lk_op *g = lk_build_gradient(b, type, of);
    while (p->ops[first].type == &lk_op_use) first--;
    g->tensor[LK_X] = use->tensor[LK_X];
    if (p->ops[first].type->exchanged) {
        g->tensor[LK_X] = g->tensor[LK_DY];
        g->tensor[LK_DY] = use->tensor[LK_X];
    } else if (p->ops[first].type->recurrent) {
        g->tensor[LK_X] = use->tensor[LK_X2];
        g->tensor[LK_DY] = state_gradient(p, use);
    }
    g->tensor[LK_AUX] = use->tensor[LK_AUX];
    if (use->type->labels) {
        g->tensor[LK_X2] = use->tensor[LK_X2];
        g->tensor[LK_LABELS] = use->tensor[LK_LABELS];
    }
    return g;
}

void lk_build_param_gradient(lk_builder *b, const lk_op_type *type, uint32_t of, uint32_t first,
                             uint32_t count) {
    lk_program *p = b->program;
    const lk_graph *graph = lk_graph_of(&p->spec->model);
    if (!trains(b, p->ops[of].layer)) return;
    if (graph && !graph->calls->takes_gradient(b, of, first)) return;
    lk_op *g = lk_build_use_gradient(b, type, of);
    for (uint32_t i = first; i < first + count; i++) {
        g->param[i] = p->ops[of].param[i];
        if (g->param[i] != LK_NONE) p->params[g->param[i]].gradient_op = p->op_count - 1;
    }
    if (graph) graph->calls->add_uses(b, of, first);
}

void lk_build_state_sums(lk_builder *b, const lk_op_type *type, uint32_t of, uint32_t count) {
    lk_program *p = b->program;
    const lk_graph *graph = lk_graph_of(&p->spec->model);
    const uint32_t tensor = p->ops[of].tensor[LK_STATE];
    if (!trains(b, p->ops[of].layer)) return;
    if (graph && !graph->calls->takes_gradient(b, of, 0)) return;
    lk_op *g = lk_build_use_gradient(b, type, of);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t entry = p->param_count;
        while (p->params[entry].tensor != tensor + i) entry++;
        lk_assert(entry < lk_entry_count(p));
        g->param[i] = entry;
        p->params[entry].gradient_op = p->op_count - 1;
    }
    if (graph) graph->calls->add_uses(b, of, 0);
}

static void add_share(lk_builder *b, uint32_t of, uint32_t share) {
    const uint32_t gradient = b->program->ops[of].gradient;
    if (share == gradient) return;
    lk_op *add = lk_build_gradient(b, &lk_op_add_gradient, of);
    add->tensor[LK_X] = gradient;
    add->tensor[LK_DY] = share;
    add->tensor[LK_DX] = gradient;
}

lk_status lk_build_input_gradient(lk_builder *b, const lk_op_type *type, uint32_t of,
                                  uint32_t which, bool masks) {
    lk_program *p = b->program;
    const uint32_t from = p->ops[of].input[which];
    lk_op *in = &p->ops[from];
    uint32_t dx = LK_NONE;
    if (!in->wants) return LK_OK;
    LK_CHECK(gradient_tensor(b, from, &dx));
    lk_op *g = lk_build_gradient(b, type, of);
    g->tensor[LK_DX] = dx;
    g->tensor[LK_AUX] = p->ops[of].tensor[LK_AUX];
    for (uint32_t i = 0; i < LK_OP_PARAMS; i++) g->param[i] = p->ops[of].param[i];
    if (masks && in->relu && in->users == 1) {
        g->tensor[LK_MASK] = in->tensor[LK_Y];
        in->masked = true;
    }
    add_share(b, from, dx);
    return LK_OK;
}

lk_status lk_build_input_gradients(lk_builder *b, const lk_op_type *type, uint32_t of) {
    static const lk_role roles[LK_OP_INPUTS] = {LK_DX, LK_DX2};
    lk_program *p = b->program;
    const lk_op *op = &p->ops[of];
    uint32_t dx[LK_OP_INPUTS] = {LK_NONE, LK_NONE};
    bool wanted = false;
    for (uint32_t n = 0; n < LK_OP_INPUTS; n++) {
        if (!p->ops[op->input[n]].wants) continue;
        LK_CHECK(gradient_tensor(b, op->input[n], &dx[n]));
        wanted = true;
    }
    if (!wanted) return LK_OK;
    lk_op *g = lk_build_use_gradient(b, type, of);
    for (uint32_t i = 0; i < LK_OP_PARAMS; i++) g->param[i] = op->param[i];
    for (uint32_t n = 0; n < LK_OP_INPUTS; n++) g->tensor[roles[n]] = dx[n];
    for (uint32_t n = LK_OP_INPUTS; n-- > 0;) {
        if (dx[n] != LK_NONE) add_share(b, op->input[n], dx[n]);
    }
    return LK_OK;
}

lk_status lk_build_gradient_share(lk_builder *b, const lk_op_type *copy, uint32_t of,
                                  uint32_t which) {
    const lk_op *ops = b->program->ops, *op = &ops[of];
    const uint32_t from = op->input[which];
    bool last = true;
    if (!ops[from].wants) return LK_OK;
    for (uint32_t n = 0; n < which; n++) last = last && !ops[op->input[n]].wants;
    if (ops[from].dtype != op->dtype) {
        return lk_build_input_gradient(b, copy, of, which, false);
    } else if (ops[from].gradient != LK_NONE) {
        add_share(b, from, op->gradient);
    } else if (last) {
        b->program->ops[from].gradient = op->gradient;
    } else {
        return lk_build_input_gradient(b, copy, of, which, false);
    }
    return LK_OK;
}

lk_status lk_build_gradient_in_place(lk_builder *b, const lk_op_type *type, uint32_t of) {
    lk_program *p = b->program;
    const uint32_t from = p->ops[of].input[0];
    uint32_t dx = p->ops[of].gradient;
    const bool alone = from == LK_NONE ||
                       (p->ops[from].users == 1 && p->ops[from].dtype == p->ops[of].dtype);
    if (alone) {
        if (from != LK_NONE) p->ops[from].gradient = dx;
    } else {
        LK_CHECK(gradient_tensor(b, from, &dx));
    }
    lk_op *g = lk_build_gradient(b, type, of);
    g->tensor[LK_Y] = p->ops[of].tensor[LK_Y];
    g->tensor[LK_DX] = dx;
    if (!alone) add_share(b, from, dx);
    return LK_OK;
}

// The ReLU that an op's kernel applies, where nobody has applied its mask to the gradient yet.
static void unmask(lk_builder *b, uint32_t i) {
    lk_op *g = lk_build_gradient(b, &lk_op_relu_backward, i);
    g->tensor[LK_Y] = b->program->ops[i].tensor[LK_Y];
    g->tensor[LK_DX] = g->tensor[LK_DY];
}

lk_status lk_build_backward(lk_builder *b) {
    lk_program *p = b->program;
    b->value = 0;
    LK_CHECK(lk_program_loss(p)->build(b));
    for (uint32_t i = 0; i < p->forward_end; i++) {
        if (p->ops[i].type->observe) LK_CHECK(p->ops[i].type->observe(b, i));
    }
    for (uint32_t i = p->forward_end; i-- > 0;) {
        const lk_op *op = &p->ops[i];
        if (!op->wants) continue;
        lk_assert(op->gradient != LK_NONE);
        b->layer = op->layer;
        if (op->relu && !op->masked) unmask(b, i);
        LK_CHECK(op->type->differentiate(b, i));
    }
    p->reduce_op = p->op_count;
    new_op(b, &lk_op_reduce_apply, LK_REDUCE, LK_NONE);
    return LK_OK;
}

// --- ops that every program has ------------------------------------------------------------------

const lk_op_type lk_op_load = {.name = "load", .number = LK_OP_LOAD, .scope = LK_SCOPE_SOURCE,
                               .mixed = true};
const lk_op_type lk_op_metric_sum = {
    .name = "loss_sum", .number = LK_OP_METRIC_SUM, .scope = LK_SCOPE_METRIC};
const lk_op_type lk_op_use = {.name = "use", .number = LK_OP_USE, .scope = LK_SCOPE_USE};
const lk_op_type lk_op_reduce_apply = {
    .name = "reduce_apply", .number = LK_OP_REDUCE_APPLY, .scope = LK_SCOPE_UPDATE};
