// cuda_walk.c - the walk over the ops of a wave, and over the waves of a step, on a GPU's stream.
#include "comm/cuda_walk.h"

// What the launches of one replica's waves have in common.
typedef struct walk {
    lk_cuda_stream s;
    lk_frame frame;  // addresses on the device
    const lk_program *program;
    lk_fast *fast;  // NULL: the strict arithmetic
    lk_cuda_source source;
    bool train;
    // Where nodes lie: slot i at values + i * stride, of which `floats` are added.
    float *values;
    uint64_t stride, floats;
    uint32_t slot_count;
    lk_cuda_nodes *nodes;
    uint32_t fresh[LK_BLOCKS_MAX];  // slots of the wave's blocks, from left to right
} walk;

// --- nodes -------------------------------------------------------------------------------------

static uint32_t take_slot(const walk *w) {
    for (uint32_t i = 0; i < w->slot_count; i++) {
        if (w->nodes->taken[i]) continue;
        w->nodes->taken[i] = true;
        return i;
    }
    lk_panic(__FILE__, __LINE__, "more nodes than were planned");
}

static float *slot_at(const walk *w, uint32_t slot) { return w->values + slot * w->stride; }

static void take_blocks(walk *w, const lk_wave *wave) {
    uint32_t count = 0;
    lk_block b = lk_wave_block(wave, wave->first_grain);
    for (; b.at < b.end; b = lk_wave_block(wave, b.end)) {
        lk_assert(count < LK_BLOCKS_MAX);
        w->fresh[count++] = take_slot(w);
    }
}

// The blocks of a wave join the nodes held, and siblings become their parent.
static void join_blocks(walk *w, const lk_wave *wave) {
    lk_cuda_nodes *n = w->nodes;
    const uint32_t *fresh = w->fresh;
    lk_block b = lk_wave_block(wave, wave->first_grain);
    for (; b.at < b.end; b = lk_wave_block(wave, b.end)) {
        uint32_t top = n->counter.count;
        n->slot[top] = *fresh++;
        for (uint32_t merges = lk_counter_push(&n->counter, b.node); merges > 0; merges--, top--) {
            float *left = slot_at(w, n->slot[top - 1]);
            lk_cuda_add(&w->s, w->floats, left, slot_at(w, n->slot[top]), left);
            n->taken[n->slot[top]] = false;
        }
    }
}

// --- ops ---------------------------------------------------------------------------------------

bool lk_cuda_is_product(const lk_op *op, lk_fast_layer *layer, lk_fast_pass *pass) {
    *layer = (lk_fast_layer){0};
    switch (op->kind) {
    case LK_OP_DENSE:
    case LK_OP_CONV2D: *pass = LK_FAST_FORWARD; break;
    case LK_OP_DENSE_INPUT_GRADIENT:
    case LK_OP_CONV2D_INPUT_GRADIENT: *pass = LK_FAST_INPUT_GRADIENT; break;
    case LK_OP_DENSE_WEIGHT_GRADIENT:
    case LK_OP_CONV2D_WEIGHT_GRADIENT: *pass = LK_FAST_WEIGHT_GRADIENT; break;
    default: return false;
    }
    const bool conv = op->kind == LK_OP_CONV2D || op->kind == LK_OP_CONV2D_INPUT_GRADIENT ||
                      op->kind == LK_OP_CONV2D_WEIGHT_GRADIENT;
    if (conv) {
        layer->conv = &op->conv;
    } else {
        layer->dense = &op->dense;
    }
    return true;
}

// Forward, and the gradient of an input, in the fast arithmetic. False: the op is a strict one.
static bool fast_op(walk *w, const lk_op *op, const lk_wave *wave) {
    const lk_frame *f = &w->frame;
    const float *weight = lk_param_at(f, op->weight);
    lk_fast_layer layer;
    lk_fast_pass pass;
    if (!w->fast || !lk_cuda_is_product(op, &layer, &pass)) return false;
    if (pass == LK_FAST_FORWARD) {
        lk_fast_forward(w->fast, &w->s, &layer, wave->examples, lk_tensor_at(f, op->x), weight,
                        lk_param_at(f, op->bias), lk_tensor_at(f, op->y));
    } else if (pass == LK_FAST_INPUT_GRADIENT) {
        lk_fast_input_gradient(w->fast, &w->s, &layer, wave->examples, weight,
                               lk_tensor_at(f, op->dy), lk_tensor_at(f, op->mask),
                               lk_tensor_at(f, op->dx));
    }
    return pass != LK_FAST_WEIGHT_GRADIENT;
}

// Rows of a block, of all that a gradient op reads.
static lk_cuda_grains rows_of(const walk *w, const lk_op *op, const lk_wave *wave,
                              const lk_block *b) {
    const uint32_t grain = w->program->spec->grain, first = b->at - wave->first_grain;
    const lk_grain_view view = lk_grain_view_at(&w->frame, op, first, wave->examples);
    return (lk_cuda_grains){
        .x = view.x,
        .dy = view.dy,
        .argmax = view.argmax,
        .grain = grain,
        .examples = LK_MIN((b->end - b->at) * grain, wave->examples - first * grain)};
}

static void gradient(walk *w, const lk_op *op, const lk_wave *wave) {
    const lk_program *p = w->program;
    const uint32_t *fresh = w->fresh;
    lk_fast_layer layer;
    lk_fast_pass pass;
    const bool fast = w->fast && lk_cuda_is_product(op, &layer, &pass);
    lk_block b = lk_wave_block(wave, wave->first_grain);
    for (; b.at < b.end; b = lk_wave_block(wave, b.end)) {
        const lk_cuda_grains rows = rows_of(w, op, wave, &b);
        float *node = slot_at(w, *fresh++);
        float *dw = op->weight == LK_NONE ? NULL : node + p->params[op->weight].node_offset;
        float *db = op->bias == LK_NONE ? NULL : node + p->params[op->bias].node_offset;
        if (fast) {
            lk_fast_weight_gradient(w->fast, &w->s, &layer, &rows, dw, db);
            continue;
        }
        switch (op->kind) {
        case LK_OP_LOSS_SUM:
            lk_cuda_column_sums(&w->s, 1, &rows, w->train ? node + p->loss_offset : node);
            break;
        case LK_OP_DENSE_BIAS_GRADIENT:
            lk_cuda_column_sums(&w->s, op->dense.n_count, &rows, db);
            break;
        case LK_OP_DENSE_WEIGHT_GRADIENT:
            lk_cuda_dense_weight_gradient(&w->s, &op->dense, &rows, dw);
            break;
        case LK_OP_CONV2D_WEIGHT_GRADIENT:
            lk_cuda_conv2d_weight_gradient(&w->s, &op->conv, &rows, dw, db);
            break;
        case LK_OP_CONV2D_POOL_WEIGHT_GRADIENT:
            lk_cuda_conv2d_pool_weight_gradient(&w->s, &op->conv, &rows, dw, db);
            break;
        default: lk_panic(__FILE__, __LINE__, "not a gradient op");
        }
    }
}

static void forward_op(walk *w, const lk_op *op, const lk_wave *wave) {
    const lk_frame *f = &w->frame;
    const lk_program *p = w->program;
    const uint32_t m = wave->examples;
    const float *x = lk_tensor_at(f, op->x), *weight = lk_param_at(f, op->weight);
    const float *bias = lk_param_at(f, op->bias);
    float *y = lk_tensor_at(f, op->y);
    void *argmax = lk_tensor_at(f, op->argmax);
    switch (op->kind) {
    case LK_OP_LOAD: {
        // A training step has its whole batch in a slot, an evaluation one wave.
        uint32_t first = w->train ? wave->first_grain * p->spec->grain : 0;
        lk_cuda_load(&w->s, &w->source, first, m, op->floats, y, lk_tensor_at(f, p->labels));
        break;
    }
    case LK_OP_CONV2D: lk_cuda_conv2d_forward(&w->s, &op->conv, m, x, weight, bias, y); break;
    case LK_OP_CONV2D_POOL:
        lk_cuda_conv2d_pool_forward(&w->s, &op->conv, m, x, weight, bias, y, argmax);
        break;
    case LK_OP_DENSE: lk_cuda_dense_forward(&w->s, &op->dense, m, x, weight, bias, y); break;
    case LK_OP_MAX_POOL: lk_cuda_max_pool_forward(&w->s, &op->pool, m, x, y, argmax); break;
    case LK_OP_RELU: lk_cuda_relu_forward(&w->s, m * op->floats, x, y); break;
    case LK_OP_LOSS:
        lk_cuda_softmax_cross_entropy(&w->s, m, p->spec->model.classes, x,
                                      lk_tensor_at(f, p->labels),
                                      w->train ? lk_tensor_at(f, op->dx) : NULL, y);
        break;
    default: lk_panic(__FILE__, __LINE__, "not a forward op");
    }
}

static void backward_op(walk *w, const lk_op *op, const lk_wave *wave) {
    const lk_frame *f = &w->frame;
    const uint32_t m = wave->examples;
    const float *weight = lk_param_at(f, op->weight), *dy = lk_tensor_at(f, op->dy);
    const float *mask = lk_tensor_at(f, op->mask);
    const void *argmax = lk_tensor_at(f, op->argmax);
    float *dx = lk_tensor_at(f, op->dx);
    switch (op->kind) {
    case LK_OP_RELU_BACKWARD:
        lk_cuda_relu_backward(&w->s, m * op->floats, lk_tensor_at(f, op->y), dy, dx);
        break;
    case LK_OP_MAX_POOL_BACKWARD:
        lk_cuda_max_pool_backward(&w->s, &op->pool, m, dy, argmax, dx);
        break;
    case LK_OP_DENSE_INPUT_GRADIENT:
        lk_cuda_dense_input_gradient(&w->s, &op->dense, m, weight, dy, mask, dx);
        break;
    case LK_OP_CONV2D_INPUT_GRADIENT:
        lk_cuda_conv2d_input_gradient(&w->s, &op->conv, m, weight, dy, mask, dx);
        break;
    case LK_OP_CONV2D_POOL_INPUT_GRADIENT:
        lk_cuda_conv2d_pool_input_gradient(&w->s, &op->conv, m, weight, dy, argmax, mask, dx);
        break;
    default: gradient(w, op, wave);
    }
}

// --- a wave, a step ----------------------------------------------------------------------------

static void walk_wave(walk *w, const lk_wave *wave) {
    const lk_program *p = w->program;
    // Evaluation ends with the loss and its sum, the two ops after the forward ones.
    const uint32_t end = w->train ? p->reduce_op : p->forward_end + 2;
    take_blocks(w, wave);
    for (uint32_t i = 0; i < end; i++) {
        const lk_op *op = &p->ops[i];
        w->s.op = i;
        w->s.scratch = lk_tensor_at(&w->frame, op->scratch);
        if (fast_op(w, op, wave)) continue;
        if (op->kind == LK_OP_LOSS_SUM) {
            gradient(w, op, wave);
        } else if (i <= p->forward_end) {
            forward_op(w, op, wave);
        } else {
            backward_op(w, op, wave);
        }
    }
    join_blocks(w, wave);
}

static walk start_walk(lk_cuda_step *c, uint32_t replica, lk_cuda_nodes *nodes) {
    const lk_program *p = c->program;
    walk w = {
        .s = {.stream = c->compute.stream, .rehearses = c->rehearses, .error = c->compute.code},
        .frame = {.program = p,
                  .device = c->at.device,
                  .replica = c->at.replicas + replica * c->at.replica_bytes},
        .program = p,
        .fast = p->spec->precision == LK_STRICT ? NULL : &c->fast,
        .nodes = nodes};
    return w;
}

// The nodes that a replica holds after its waves, in the tables of the device.
static void list_nodes(lk_cuda_step *c, uint32_t which, const walk *w, lk_counter *all) {
    lk_cuda_node *gradients = c->host.nodes + 2ull * which * c->node_max;
    lk_cuda_node *losses = gradients + c->node_max;
    for (uint32_t i = 0; i < w->nodes->counter.count; i++) {
        const float *values = slot_at(w, w->nodes->slot[i]);
        uint64_t merges = lk_counter_push(all, w->nodes->counter.nodes[i]);
        uint32_t entry = c->node_count[which]++;
        lk_assert(entry < c->node_max);
        gradients[entry] = (lk_cuda_node){values, merges};
        losses[entry] = (lk_cuda_node){values + w->program->loss_offset, merges};
    }
}

static void walk_update(lk_cuda_step *c, uint32_t which, lk_cuda_stream *s) {
    const lk_program *p = c->program;
    const lk_cuda_node *gradients = c->at.nodes + 2ull * which * c->node_max;
    const float inverse_n = 1.0f / (float)c->examples[which];
    s->op = p->reduce_op;
    s->scratch = NULL;
    lk_cuda_update(s, &p->spec->optimizer, c->at.params, p->param_count, p->loss_offset, gradients,
                   c->node_count[which], inverse_n);
    lk_cuda_step_end(s, gradients + c->node_max, c->node_count[which], inverse_n, c->results,
                     c->slots);
}

int lk_cuda_walk_step(lk_cuda_step *c, uint32_t which, uint64_t step) {
    const lk_program *p = c->program;
    lk_cuda_stream s = {
        .stream = c->compute.stream, .rehearses = c->rehearses, .error = c->compute.code};
    lk_counter all = {.count = 0};
    lk_cuda_nodes nodes;
    c->node_count[which] = 0;
    for (uint32_t r = 0; r < p->layout.replicas; r++) {
        nodes = (lk_cuda_nodes){.counter = {.count = 0}};
        walk w = start_walk(c, r, &nodes);
        lk_waves waves = lk_step_waves(p, r, step);
        const bool resident = c->needs.examples > 0;
        w.s.error = s.error;
        w.s.state = &c->at.states[0];
        w.train = true;
        w.source = (lk_cuda_source){.images = resident ? c->at.all_images : c->at.images,
                                    .labels = resident ? c->at.all_labels : c->at.labels,
                                    .index = c->at.index,
                                    .slots = c->slots,
                                    .slot_examples = p->spec->global_batch};
        w.values = lk_node_at(&w.frame, 0);
        w.stride = p->node_floats;
        w.floats = p->node_floats;
        w.slot_count = p->node_slots;
        lk_assert(w.slot_count <= LK_COUNT(nodes.taken));
        while (lk_next_wave(&waves)) walk_wave(&w, &waves.wave);
        list_nodes(c, which, &w, &all);
        s.error = w.s.error;
    }
    s.state = &c->at.states[0];
    walk_update(c, which, &s);
    return s.error;
}

int lk_cuda_walk_forward(lk_cuda_step *c, const lk_wave *wave, uint32_t half,
                         lk_cuda_nodes *nodes) {
    const lk_program *p = c->program;
    const uint64_t first = (uint64_t)half * p->wave_examples;
    walk w = start_walk(c, 0, nodes);
    w.s.state = &c->at.states[1];
    w.source = (lk_cuda_source){.images = c->at.test_images + first * p->ops[0].floats,
                                .labels = c->at.test_labels + first,
                                .slots = 1,
                                .slot_examples = p->wave_examples};
    w.values = c->at.test_losses;
    w.stride = LK_CUDA_LOSS_FLOATS;
    w.floats = 1;
    w.slot_count = LK_CUDA_LOSSES;
    walk_wave(&w, wave);
    return w.s.error;
}
