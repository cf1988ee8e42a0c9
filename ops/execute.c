// execute.c - the walk over the ops of a wave. Freestanding.
#include "ops/execute.h"

#include "ops/check.h"

void lk_frame_start(lk_frame *f) {
    f->counter.count = 0;
    f->ahead.at = f->ahead.begin;
    f->correct = 0;
    f->bad_op = LK_NONE;
}

// --- load --------------------------------------------------------------------------------------

// Examples of a shuffled epoch lie all over a mapped file: each is asked for some examples ahead.
enum { LOAD_AHEAD = 4, LINE_BYTES = 64 };

static const uint8_t *wave_image(const lk_frame *f, const lk_wave *wave, uint32_t i,
                                 uint64_t *index) {
    const lk_source *s = f->source;
    uint64_t position = wave->position + i;
    *index = wave->shuffled ? s->order(s->context, wave->epoch, position) : position;
    return s->image(s->context, *index);
}

// The example of that index, or zeros where there is no image.
static void load_one(const lk_frame *f, uint64_t floats, const uint8_t *image, uint64_t index,
                     float *x, uint32_t *label) {
    if (image) {
        f->kernels->load_u8(floats, image, x);
        *label = f->source->label(f->source->context, index);
        return;
    }
    __builtin_memset(x, 0, floats * sizeof *x);
    *label = 0;
}

static bool is_missing(const lk_frame *f, const lk_wave *wave, uint32_t i) {
    return wave->sparse && !lk_position_exists(f->program->spec, wave->position + i);
}

static void load(lk_frame *f, const lk_op *op, const lk_wave *wave) {
    float *x = lk_tensor_at(f, op->y);
    uint32_t *labels = lk_tensor_at(f, f->program->labels);
    const uint8_t *image[LOAD_AHEAD];
    uint64_t index[LOAD_AHEAD] = {0};
    for (uint32_t i = 0; i < wave->examples + LOAD_AHEAD; i++) {
        uint32_t at = i % LOAD_AHEAD;
        if (i >= LOAD_AHEAD) {
            uint32_t m = i - LOAD_AHEAD;
            load_one(f, op->floats, image[at], index[at], x + m * op->floats, &labels[m]);
        }
        image[at] = NULL;
        if (i >= wave->examples || is_missing(f, wave, i)) continue;
        image[at] = wave_image(f, wave, i, &index[at]);
        for (uint64_t b = 0; b < op->floats; b += LINE_BYTES) __builtin_prefetch(image[at] + b);
    }
}

// --- gradients that join the nodes -------------------------------------------------------------

lk_grain_view lk_grain_view_at(const lk_frame *f, const lk_op *op, uint32_t grain,
                               uint32_t wave_examples) {
    const lk_program *p = f->program;
    uint64_t first = (uint64_t)grain * p->spec->grain;
    lk_grain_view view = {.examples = (uint32_t)LK_MIN(wave_examples - first, p->spec->grain)};
    const float *dy = lk_tensor_at(f, op->dy);
    view.dy = dy + first * (p->tensors[op->dy].rank == 1 ? 1 : p->tensors[op->dy].shape[1]);
    if (op->x != LK_NONE) {
        const float *x = lk_tensor_at(f, op->x);
        view.x = x + first * p->tensors[op->x].shape[1];
    }
    if (op->argmax != LK_NONE && op->kind == LK_OP_CONV2D_POOL_WEIGHT_GRADIENT) {
        const uint8_t *argmax = lk_tensor_at(f, op->argmax);
        view.argmax = argmax + first * p->tensors[op->argmax].shape[1];
    }
    return view;
}

static void gradient_kernel(lk_frame *f, const lk_op *op, uint32_t grains,
                            const lk_grain_view *views, float *node) {
    const lk_kernels *k = f->kernels;
    const lk_param *params = f->program->params;
    float *scratch = lk_tensor_at(f, op->scratch);
    float *dw = op->weight == LK_NONE ? NULL : node + params[op->weight].node_offset;
    float *db = op->bias == LK_NONE ? NULL : node + params[op->bias].node_offset;
    switch (op->kind) {
    case LK_OP_DENSE_BIAS_GRADIENT: k->column_sums(op->dense.n_count, grains, views, db); break;
    case LK_OP_DENSE_WEIGHT_GRADIENT:
        k->dense_weight_gradient(&op->dense, grains, views,
                                 &(lk_weight_rows){.end = op->dense.k_count}, dw, scratch);
        break;
    case LK_OP_CONV2D_WEIGHT_GRADIENT:
        k->conv2d_weight_gradient(&op->conv, grains, views, dw, db, scratch);
        break;
    case LK_OP_CONV2D_POOL_WEIGHT_GRADIENT:
        k->conv2d_pool_weight_gradient(&op->conv, grains, views, dw, db, scratch);
        break;
    default: lk_panic(__FILE__, __LINE__, "not a gradient op");
    }
}

// The views of a block's grains.
static const lk_grain_view *block_views(lk_frame *f, const lk_op *op, const lk_wave *wave,
                                        const lk_block *block) {
    lk_grain_view *views = lk_tensor_at(f, f->program->views);
    for (uint32_t g = block->at; g < block->end; g++) {
        views[g - block->at] = lk_grain_view_at(f, op, g - wave->first_grain, wave->examples);
    }
    return views;
}

// The loss is summed like a bias gradient of one column; its nodes are single floats of the frame.
static void loss_sum(lk_frame *f, const lk_op *op, const lk_wave *wave, lk_counter *counter) {
    lk_block b = lk_wave_block(wave, wave->first_grain);
    for (; b.at < b.end; b = lk_wave_block(wave, b.end)) {
        _Alignas(64) float node[16];
        f->kernels->column_sums(1, b.end - b.at, block_views(f, op, wave, &b), node);
        uint32_t slot = counter->count;
        f->losses[slot] = node[0];
        for (uint32_t merges = lk_counter_push(counter, b.node); merges > 0; merges--, slot--) {
            f->losses[slot - 1] = f->losses[slot - 1] + f->losses[slot];
        }
    }
}

// Slot `slot` joins the one before it: what is in them of a parameter.
static void join(const lk_frame *f, uint32_t slot, uint32_t param) {
    if (param == LK_NONE) return;
    const lk_param *p = &f->program->params[param];
    float *left = lk_node_at(f, slot - 1) + p->node_offset;
    f->kernels->add(p->count, left, lk_node_at(f, slot) + p->node_offset, left);
}

// The node of each block of the wave goes to the slot above those held, and the sums of finished
// subtrees are taken at once. The counter is the op's own copy: every op of a wave sees the same
// blocks on top of the same nodes.
static void gradient(lk_frame *f, const lk_op *op, const lk_wave *wave) {
    lk_counter counter = f->counter;
    const uint32_t param = op->weight != LK_NONE ? op->weight : op->bias;
    if (f->program->params[param].mode != LK_REDUCE_PARTIALS) return;  // REDUCE computes it
    lk_block b = lk_wave_block(wave, wave->first_grain);
    for (; b.at < b.end; b = lk_wave_block(wave, b.end)) {
        const lk_grain_view *views = block_views(f, op, wave, &b);
        uint32_t slot = counter.count;
        lk_assert(slot < f->program->node_slots);
        gradient_kernel(f, op, b.end - b.at, views, lk_node_at(f, slot));
        for (uint32_t merges = lk_counter_push(&counter, b.node); merges > 0; merges--, slot--) {
            join(f, slot, op->weight);
            join(f, slot, op->bias);
        }
    }
}

// --- the other ops -----------------------------------------------------------------------------

static uint32_t forward_op(lk_frame *f, const lk_op *op, uint32_t m) {
    const lk_kernels *k = f->kernels;
    const float *x = lk_tensor_at(f, op->x), *w = lk_param_at(f, op->weight);
    const float *bias = lk_param_at(f, op->bias);
    float *y = lk_tensor_at(f, op->y), *scratch = lk_tensor_at(f, op->scratch);
    void *argmax = lk_tensor_at(f, op->argmax);
    switch (op->kind) {
    case LK_OP_CONV2D: return k->conv2d_forward(&op->conv, m, x, w, bias, y, scratch);
    case LK_OP_CONV2D_POOL:
        return k->conv2d_pool_forward(&op->conv, m, x, w, bias, y, argmax, &f->ahead,
                                      scratch);
    case LK_OP_DENSE: return k->dense_forward(&op->dense, m, x, w, bias, y, scratch);
    case LK_OP_MAX_POOL: k->max_pool_forward(&op->pool, m, x, y, argmax); return 0;
    case LK_OP_RELU: k->relu_forward(m * op->floats, x, y); return 0;
    default: lk_panic(__FILE__, __LINE__, "not a forward op");
    }
}

// What positions without an example have left in the results of the loss: taken out again. Returns
// how many of them were counted as correct: their label is 0.
static uint32_t forget_missing(lk_frame *f, const lk_op *op, const lk_wave *wave, bool train) {
    uint64_t classes = f->program->tensors[op->x].shape[1];
    float *losses = lk_tensor_at(f, op->y), *dlogits = lk_tensor_at(f, op->dx);
    uint32_t counted = 0;
    for (uint32_t m = 0; m < wave->examples; m++) {
        const float *logits = (const float *)lk_tensor_at(f, op->x) + m * classes;
        bool zero_wins = true;
        if (!is_missing(f, wave, m)) continue;
        for (uint64_t k = 1; k < classes; k++) zero_wins = zero_wins && logits[k] <= logits[0];
        counted += zero_wins;
        losses[m] = 0.0f;
        if (train) __builtin_memset(dlogits + m * classes, 0, classes * sizeof *dlogits);
    }
    return counted;
}

static uint32_t loss(lk_frame *f, const lk_op *op, const lk_wave *wave, bool train) {
    uint32_t correct;
    const lk_tensor *logits = &f->program->tensors[op->x];
    uint32_t bad = f->kernels->softmax_cross_entropy(
        wave->examples, (uint32_t)logits->shape[1], lk_tensor_at(f, op->x),
        lk_tensor_at(f, f->program->labels), train ? lk_tensor_at(f, op->dx) : NULL,
        lk_tensor_at(f, op->y), &correct);
    if (wave->sparse) correct -= forget_missing(f, op, wave, train);
    f->correct += correct;
    return bad;
}

static uint32_t backward_op(lk_frame *f, const lk_op *op, uint32_t m) {
    const lk_kernels *k = f->kernels;
    const float *w = lk_param_at(f, op->weight), *dy = lk_tensor_at(f, op->dy);
    const float *mask = lk_tensor_at(f, op->mask);
    float *dx = lk_tensor_at(f, op->dx), *scratch = lk_tensor_at(f, op->scratch);
    const void *argmax = lk_tensor_at(f, op->argmax);
    switch (op->kind) {
    case LK_OP_RELU_BACKWARD:
        k->relu_backward(m * op->floats, lk_tensor_at(f, op->y), dy, dx);
        return 0;
    case LK_OP_MAX_POOL_BACKWARD: return k->max_pool_backward(&op->pool, m, dy, argmax, dx);
    case LK_OP_DENSE_INPUT_GRADIENT:
        return k->dense_input_gradient(&op->dense, m, w, dy, mask, dx, scratch);
    case LK_OP_CONV2D_INPUT_GRADIENT:
        return k->conv2d_input_gradient(&op->conv, m, w, dy, mask, dx, scratch);
    case LK_OP_CONV2D_POOL_INPUT_GRADIENT:
        return k->conv2d_pool_input_gradient(&op->conv, m, w, dy, argmax, mask, dx, scratch);
    default: lk_panic(__FILE__, __LINE__, "not a backward op");
    }
}

// Ops [begin, end) of those that make a wave. `after` becomes the nodes held after it.
static void execute(lk_frame *f, const lk_wave *wave, uint32_t begin, uint32_t end, bool train,
                    lk_counter *after) {
    // Up to and with the loss and its sum, the two ops after the forward ones.
    const uint32_t all = train ? f->program->reduce_op : f->program->forward_end + 2;
    if (begin == 0) *after = f->counter;
    end = LK_MIN(end, all);
    for (uint32_t i = begin; i < end; i++) {
        const lk_op *op = &f->program->ops[i];
        uint32_t bad = 0;
        if (f->program->checked) lk_check_before_op(f, i);
        switch (op->kind) {
        case LK_OP_LOAD: load(f, op, wave); break;
        case LK_OP_LOSS: bad = loss(f, op, wave, train); break;
        case LK_OP_LOSS_SUM: loss_sum(f, op, wave, after); break;
        case LK_OP_DENSE_WEIGHT_GRADIENT:
        case LK_OP_DENSE_BIAS_GRADIENT:
        case LK_OP_CONV2D_WEIGHT_GRADIENT:
        case LK_OP_CONV2D_POOL_WEIGHT_GRADIENT: gradient(f, op, wave); break;
        default:
            bad = i < f->program->forward_end ? forward_op(f, op, wave->examples)
                                              : backward_op(f, op, wave->examples);
        }
        if (f->program->checked) lk_check_after_op(f, i, train);
        if (bad && i < f->bad_op) f->bad_op = i;
    }
    if (end == all) f->counter = *after;
}

void lk_execute_train(lk_frame *f, const lk_wave *wave) {
    lk_counter after;
    execute(f, wave, 0, LK_NONE, true, &after);
}

void lk_execute_train_ops(lk_frame *f, const lk_wave *wave, uint32_t begin, uint32_t end,
                          lk_counter *after) {
    execute(f, wave, begin, end, true, after);
}

void lk_execute_forward(lk_frame *f, const lk_wave *wave) {
    lk_counter after;
    execute(f, wave, 0, LK_NONE, false, &after);
}
