// execute.c - the walk over the ops of a microbatch. Freestanding.
#include "ops/graph/execute.h"

#include "ops/graph/augment.h"
#include "ops/graph/average.h"
#include "ops/graph/check.h"
#include "ops/graph/mixed.h"
#include "ops/graph/spectral.h"
#include "ops/layers/decode.h"

void lk_frame_start(lk_frame *f) {
    f->counter.count = 0;
    f->ahead.at = f->ahead.begin;
    for (uint32_t i = 0; i < LK_METRIC_COUNTS_MAX; i++) f->counts[i] = 0;
    f->bad_op = LK_NONE;
    lk_spectral_start(f);
}

// --- load --------------------------------------------------------------------------------------

static void prefetch(const uint8_t *image, uint64_t bytes) {
    enum { LINE_BYTES = 64 };
    for (uint64_t b = 0; b < bytes; b += LINE_BYTES) __builtin_prefetch(image + b);
}

#ifdef LK_SHORT_FORM_ALONE
static bool makes_strips(const lk_source *source) {
    (void)source;
    return false;
}
static void ask_for_strip(lk_coming *c, uint32_t at, uint64_t position) {
    (void)c, (void)at, (void)position;
}
void lk_strip_make(const lk_model *model, const lk_strips *strips, const lk_source *source,
                   uint64_t epoch, uint64_t position, uint8_t *to) {
    (void)model, (void)strips, (void)source, (void)epoch, (void)position, (void)to;
}
void lk_strip_labels(const lk_model *model, const lk_strips *strips, const lk_source *source,
                     uint64_t epoch, uint64_t position, uint32_t *row) {
    (void)model, (void)strips, (void)source, (void)epoch, (void)position, (void)row;
}
#else
static bool makes_strips(const lk_source *source) { return source->strip; }

static void ask_for_strip(lk_coming *c, uint32_t at, uint64_t position) {
    uint64_t images[LK_STRIP_IMAGES_MAX];
    const lk_source *s = c->source;
    const uint32_t count = s->strip(s->context, c->microbatch->epoch, position, images);
    c->index[at] = position;
    c->image[at] = c->room;
    for (uint32_t i = 0; i < count; i++)
        prefetch(s->image(s->context, images[i]), c->bytes / c->spec->strips.most);
}

// An image, (rows, columns) of pixels, column by column.
static void turn_image(uint32_t rows, uint32_t columns, uint64_t pixel, const uint8_t *image,
                       uint8_t *to) {
    for (uint32_t x = 0; x < columns; x++) {
        for (uint32_t y = 0; y < rows; y++, to += pixel) {
            const uint8_t *from = image + ((uint64_t)y * columns + x) * pixel;
            for (uint64_t b = 0; b < pixel; b++) to[b] = from[b];
        }
    }
}

void lk_strip_make(const lk_model *m, const lk_strips *strips, const lk_source *source,
                   uint64_t epoch, uint64_t position, uint8_t *to) {
    uint64_t images[LK_STRIP_IMAGES_MAX];
    const uint32_t count = source->strip(source->context, epoch, position, images);
    const uint64_t all = lk_model_input_bytes(m), one = all / strips->most;
    const uint64_t pixel = all / ((uint64_t)m->in_h * m->in_w);
    for (uint32_t i = 0; i < count; i++) {
        turn_image(m->in_w, m->in_h / strips->most, pixel,
                   source->image(source->context, images[i]), to + i * one);
    }
    __builtin_memset(to + count * one, 0, all - count * one);
}

void lk_strip_labels(const lk_model *m, const lk_strips *strips, const lk_source *source,
                     uint64_t epoch, uint64_t position, uint32_t *row) {
    uint64_t images[LK_STRIP_IMAGES_MAX];
    const uint32_t count = source->strip(source->context, epoch, position, images);
    __builtin_memset(row, 0, lk_model_label_row(m) * sizeof *row);
    row[0] = count * (m->in_h / strips->most);
    for (uint32_t i = 0; i < count; i++)
        row[1 + i] = 1 + source->label(source->context, images[i]);
}
#endif

// The number of example i of a microbatch, of which they are asked for in ascending order.
static uint64_t number_of(lk_coming *c, uint32_t i) {
    const uint32_t at = i % LK_COMING_NUMBERS;
    const lk_microbatch *m = c->microbatch;
    if (!m->shuffled) return m->position + i;
    if (at == 0) {
        c->source->order(c->source->context, m->epoch, m->position + i,
                         LK_MIN(m->examples - i, (uint32_t)LK_COMING_NUMBERS), c->numbers);
    }
    return c->numbers[at];
}

static void ask_for(lk_coming *c, uint32_t i) {
    const uint32_t at = i % LK_COMING;
    c->image[at] = NULL;
    if (i >= c->microbatch->examples) return;
    const bool strips = makes_strips(c->source);
    const uint64_t number = strips ? c->microbatch->position + i : number_of(c, i);
    if (lk_is_missing(c->spec, c->microbatch, i)) return;
    if (strips) {
        ask_for_strip(c, at, number);
        return;
    }
    c->index[at] = number;
    c->image[at] = c->source->image(c->source->context, c->index[at]);
    prefetch(c->image[at], c->bytes);
}

void lk_coming_start(lk_coming *c, const lk_run_spec *spec, const lk_source *source,
                     const lk_microbatch *microbatch, uint64_t bytes, uint8_t *room) {
    c->spec = spec;
    c->source = source;
    c->microbatch = microbatch;
    c->bytes = bytes;
    c->room = room;
    for (uint32_t i = 0; i < LK_COMING; i++) ask_for(c, i);
}

const uint8_t *lk_coming_take(lk_coming *c, uint32_t i, uint64_t *index) {
    const uint8_t *image = c->image[i % LK_COMING];
    if (image) *index = c->index[i % LK_COMING];
    if (image && makes_strips(c->source)) {
        lk_strip_make(&c->spec->model, &c->spec->strips, c->source, c->microbatch->epoch, *index,
                      c->room);
    }
    ask_for(c, i + LK_COMING);
    return image;
}

static void load_signed(uint64_t floats, const uint8_t *image, float *x) {
    for (uint64_t i = 0; i < floats; i++) x[i] = ((float)image[i] - 127.5f) / 127.5f;
}

static void load_big_endian(uint64_t floats, const uint8_t *image, float *x) {
    for (uint64_t i = 0; i < floats; i++, image += sizeof *x) {
        x[i] = lk_float_from_bits((uint32_t)image[0] << 24 | (uint32_t)image[1] << 16 |
                                  (uint32_t)image[2] << 8 | image[3]);
    }
}

void lk_load_values(const lk_frame *f, uint64_t floats, const uint8_t *image, float *x) {
    const lk_model *m = &f->program->spec->model;
    if (m->input_type == LK_INPUT_F32) {
        if (f->source->native) __builtin_memcpy(x, image, floats * sizeof *x);
        if (!f->source->native) load_big_endian(floats, image, x);
    } else if (m->input_range == LK_RANGE_SIGNED) {
        load_signed(floats, image, x);
    } else {
        f->kernels->load_u8(floats, image, x);
    }
}

// Bytes are finite. Floats were, when the data set was opened; these may have been changed since.
static bool is_finite(const lk_frame *f, uint64_t floats, const float *x) {
    uint32_t bad = 0;
    if (f->program->spec->model.input_type != LK_INPUT_F32) return true;
    for (uint64_t i = 0; i < floats; i++) bad |= !(x[i] - x[i] == 0.0f);
    return !bad;
}

// An example's row of labels.
static void load_labels(const lk_frame *f, const lk_microbatch *microbatch, uint64_t index,
                        uint32_t *labels) {
    const lk_source *s = f->source;
    const lk_run_spec *spec = f->program->spec;
    const uint32_t count = lk_model_label_row(&spec->model);
    if (makes_strips(s)) {
        lk_strip_labels(&spec->model, &spec->strips, s, microbatch->epoch, index, labels);
        return;
    }
    for (uint32_t i = 0; i < count; i++) labels[i] = s->label(s->context, index * count + i);
}

// Frames behind an example's own are +0, whatever lies there: no layer's result depends on it.
static void mask_frames(const lk_model *m, uint64_t floats, const uint32_t *labels, float *x) {
    if (lk_model_label_row(m) == 1 || labels[0] >= m->in_h) return;
    const uint64_t own = floats / m->in_h * labels[0];
    __builtin_memset(x + own, 0, (floats - own) * sizeof *x);
}

// Row `row` of the microbatch: the example of that index, or zeros where there is no image.
static void load_one(const lk_frame *f, const lk_microbatch *microbatch, uint32_t row, bool train,
                     uint64_t floats, const uint8_t *image, uint64_t index, float *x,
                     uint32_t *labels) {
    const lk_run_spec *spec = f->program->spec;
    if (!image) {
        __builtin_memset(x, 0, floats * sizeof *x);
        __builtin_memset(labels, 0, lk_model_label_row(&spec->model) * sizeof *labels);
        return;
    }
    if (lk_spec_augments(spec, train) || (lk_spec_crops(spec) && f->source->crops)) {
        const uint32_t example = microbatch->first_grain * spec->grain + row;
        lk_augment_load(f, train, microbatch->step, example, image, x);
    } else {
        lk_load_values(f, floats, image, x);
    }
    load_labels(f, microbatch, index, labels);
    mask_frames(&spec->model, floats, labels, x);
}

static void load(lk_frame *f, const lk_op *op, const lk_microbatch *microbatch, bool train) {
    if (op->floats == 0) return;  // its objective reads no images
    const lk_run_spec *spec = f->program->spec;
    const bool mixed = lk_mixed_is(f->program, op);
    const uint32_t row = lk_model_label_row(&spec->model);
    float *x = lk_tensor_at(f, op->tensor[mixed ? LK_SCRATCH : LK_Y]);
    uint32_t *labels = lk_tensor_at(f, op->tensor[LK_AUX]);
    lk_coming coming;
    lk_coming_start(&coming, spec, f->source, microbatch, lk_model_input_bytes(&spec->model),
                    lk_tensor_at(f, op->tensor[LK_X]));
    for (uint32_t m = 0; m < microbatch->examples; m++) {
        uint64_t index = 0;
        const uint8_t *image = lk_coming_take(&coming, m, &index);
        float *to = x + (mixed ? 0 : m * op->floats);
        load_one(f, microbatch, m, train, op->floats, image, index, to,
                 labels + (uint64_t)m * row);
        // What normalisation has made too large for 16 bits, or what came so.
        if ((mixed && lk_mixed_load(f, op, m, to)) || !is_finite(f, op->floats, to))
            f->bad_op = (uint32_t)(op - f->program->ops);
    }
}

// --- gradients that join the nodes -------------------------------------------------------------

static uint64_t row_length(const lk_tensor *t) { return t->rank == 1 ? 1 : t->shape[1]; }

// Where a tensor has what belongs to a grain: a row for each of its examples, or one for all.
static const void *rows_of_grain(const lk_frame *f, uint32_t tensor, uint64_t grain) {
    if (tensor == LK_NONE) return NULL;
    const lk_tensor *t = &f->program->tensors[tensor];
    const uint64_t rows = t->shape[0] / f->program->microbatch_grains;
    return (const uint8_t *)lk_tensor_at(f, tensor) +
           grain * rows * row_length(t) * lk_dtype_bytes(t->dtype);
}

lk_grain_view lk_grain_view_at(const lk_frame *f, const lk_op *op, uint32_t grain,
                               uint32_t microbatch_examples) {
    const uint32_t whole = f->program->spec->grain;
    return (lk_grain_view){.x = rows_of_grain(f, op->tensor[LK_X], grain),
                           .dy = rows_of_grain(f, op->tensor[LK_DY], grain),
                           .argmax = rows_of_grain(f, op->tensor[LK_AUX], grain),
                           .examples = LK_MIN(microbatch_examples - grain * whole, whole) *
                                       lk_op_steps(op)};
}

// The views of grains [at, end): of each grain one after the other its uses.
static lk_grain_view *grain_views(lk_frame *f, const lk_op *op, const lk_microbatch *microbatch,
                                  uint32_t uses, uint32_t at, uint32_t end) {
    lk_grain_view *views = lk_tensor_at(f, f->program->views), *view = views;
    for (uint32_t g = at; g < end; g++) {
        for (uint32_t u = 0; u < uses; u++) {
            *view++ =
                lk_grain_view_at(f, op + u, g - microbatch->first_grain, microbatch->examples);
        }
    }
    return views;
}

// Metrics are summed like a bias gradient of as many columns; their nodes are in the frame.
static void metric_sum(lk_frame *f, const lk_op *op, const lk_microbatch *microbatch,
                       lk_counter *counter) {
    const uint32_t sums = lk_program_metrics(f->program)->sum_count;
    lk_block b = lk_microbatch_block(microbatch, microbatch->first_grain);
    for (; b.at < b.end; b = lk_microbatch_block(microbatch, b.end)) {
        _Alignas(64) float node[16];
        f->kernels->column_sums(sums, b.end - b.at, grain_views(f, op, microbatch, 1, b.at, b.end),
                                node);
        uint32_t slot = counter->count;
        for (uint32_t i = 0; i < sums; i++) f->sums[slot][i] = node[i];
        for (uint32_t merges = lk_counter_push(counter, b.node); merges > 0; merges--, slot--) {
            for (uint32_t i = 0; i < sums; i++) {
                f->sums[slot - 1][i] = f->sums[slot - 1][i] + f->sums[slot][i];
            }
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

// The node of grains [at, end), by one call of the kernel.
static void grain_sums(lk_frame *f, const lk_op *op, const lk_microbatch *microbatch, lk_lane *lane,
                       uint32_t slot, uint32_t uses, uint32_t at, uint32_t end) {
    lk_assert(slot < f->program->node_slots);
    for (uint32_t i = 0; i < LK_OP_PARAMS; i++) {
        const uint32_t param = op->param[i];
        lane->sums[i] =
            param == LK_NONE ? NULL : lk_node_at(f, slot) + f->program->params[param].node_offset;
    }
    lk_grain_view *views = grain_views(f, op, microbatch, uses, at, end);
    lane->grains = views;
    lane->grain_count = (end - at) * uses;
    if (lk_mixed_is(f->program, op)) {
        lk_mixed_sums(f, op, lane, views);
    } else {
        (void)lk_kernel_of(f->kernels, op->type)(lane, op);
    }
}

// Joins the two topmost slots, `merges` times.
static void join_slots(const lk_frame *f, const lk_op *op, uint32_t top, uint32_t merges) {
    for (; merges > 0; merges--, top--) {
        for (uint32_t i = 0; i < LK_OP_PARAMS; i++) join(f, top, op->param[i]);
    }
}

// The node of each block of the microbatch goes to the slot above those held, and the sums of
// finished subtrees are taken at once. The counter is the op's own copy: every op of a microbatch
// sees the same blocks on top of the same nodes.
//
// Use u of grain g is leaf g * 2^k + u, 2^k the least power of two not below the number of uses: so
// the nodes over grains are those of one use. Kernels want whole nodes: where the uses of a grain
// are none, and where operands are widened whole, a block is added grain by grain.
static void gradient(lk_frame *f, const lk_op *op, const lk_microbatch *microbatch) {
    lk_counter counter = f->counter;
    const lk_param *params = f->program->params;
    lk_lane lane = lk_lane_of(f, op, microbatch->examples);
    lane.grain = f->program->spec->grain;
    const uint32_t *param = op->param, uses = lk_op_uses(op);
    const bool whole = (uses & (uses - 1)) == 0 && !lk_mixed_by_grain(f->program, op);
    if (params[param[0] != LK_NONE ? param[0] : param[1]].mode != LK_REDUCE_PARTIALS) return;
    lk_block b = lk_microbatch_block(microbatch, microbatch->first_grain);
    for (; b.at < b.end; b = lk_microbatch_block(microbatch, b.end)) {
        const uint32_t slot = counter.count;
        const uint32_t all = b.end - b.at;
        const uint32_t some = whole ? all : 1;
        uint32_t above = slot;
        for (uint32_t g = b.at; g < b.end; g += some) {
            grain_sums(f, op, microbatch, &lane, above, uses, g, LK_MIN(g + some, b.end));
            // As many joins as calls of the block, before this one, end in ones.
            uint32_t merges = 0;  // trailing ones
            while ((g - b.at) / some >> merges & 1) merges++;
            join_slots(f, op, above, merges);
            above += 1 - merges;
        }
        join_slots(f, op, above - 1, above - 1 - slot);
        join_slots(f, op, slot, lk_counter_push(&counter, b.node));
    }
}

// --- the other ops -----------------------------------------------------------------------------

lk_lane lk_lane_of(lk_frame *f, const lk_op *op, uint32_t examples) {
    lk_lane lane = {
        .examples = examples, .train = true, .ahead = &f->ahead, .device = f->lane_device};
    for (uint32_t r = 0; r < LK_ROLES; r++) lane.at[r] = lk_tensor_at(f, op->tensor[r]);
    for (uint32_t i = 0; i < LK_OP_PARAMS; i++) lane.param[i] = lk_param_at(f, op->param[i]);
    for (uint32_t i = 0; i < LK_OP_STATES && op->tensor[LK_STATE] != LK_NONE; i++) {
        const uint32_t tensor = op->tensor[LK_STATE] + i;
        const bool is_state = tensor < f->program->tensor_count &&
                              f->program->tensors[tensor].class_ == LK_CLASS_STATE;
        lane.state[i] = is_state ? lk_tensor_at(f, tensor) : NULL;
    }
    const bool mixed = lk_model_is_mixed(&f->program->spec->model) && op->param[0] != LK_NONE;
    const bool other = mixed || lk_param_is_spectral(f->program, op->param[0]);
    if (other && f->program->params[op->param[0]].rounded != LK_NONE) {
        lane.param[0] = lk_tensor_at(f, f->program->params[op->param[0]].rounded);
    }
    return lane;
}

// What positions without an example, which were computed as zeros, have left in the results of the
// loss is taken out again. How they were counted its reference says, one by one.
static void forget_missing(lk_frame *f, const lk_op *op, const lk_microbatch *microbatch,
                           const lk_lane *lane) {
    static const lk_role rows[] = {LK_X, LK_X2, LK_Y, LK_DX, LK_DX2};
    const uint32_t sums = lk_program_metrics(f->program)->sum_count;
    for (uint32_t m = 0; m < microbatch->examples; m++) {
        if (!lk_is_missing(f->program->spec, microbatch, m)) continue;
        lk_lane one = *lane;
        one.examples = 1;
        for (uint32_t i = 0; i < LK_METRIC_COUNTS_MAX; i++) one.counts[i] = 0;
        for (uint32_t r = 0; r < LK_COUNT(rows); r++) {
            if (op->tensor[rows[r]] == LK_NONE) continue;
            one.at[rows[r]] = (float *)lane->at[rows[r]] +
                              m * row_length(&f->program->tensors[op->tensor[rows[r]]]);
        }
        (void)op->type->reference(&one, op);
        for (uint32_t i = 0; i < LK_METRIC_COUNTS_MAX; i++) f->counts[i] -= one.counts[i];
        __builtin_memset(one.at[LK_Y], 0, sums * sizeof(float));
        if (!lane->train) continue;
        __builtin_memset(one.at[LK_DX], 0, op->floats * sizeof(float));
        if (one.at[LK_DX2]) __builtin_memset(one.at[LK_DX2], 0, op->floats * sizeof(float));
    }
}

// Positions without an example are the last of a shard's part of a batch, which is whole grains.
static uint32_t count_present(const lk_lane *l, uint32_t g) {
    const lk_run_spec *spec = l->present_in[0];
    const lk_microbatch *microbatch = l->present_in[1];
    uint32_t rows = lk_lane_rows(l, g);
    const uint64_t first = microbatch->position + (uint64_t)g * l->grain;
    while (rows > 0 && !lk_position_exists(spec, first + rows - 1)) rows--;
    return rows;
}

static void show_grains(lk_lane *l, const lk_frame *f, const lk_microbatch *microbatch) {
    l->grain = f->program->spec->grain;
    if (!microbatch->sparse) return;
    l->present = count_present;
    l->present_in[0] = f->program->spec;
    l->present_in[1] = microbatch;
}

static void before(lk_frame *f, uint32_t op) {
    if (f->program->checked) lk_check_before_op(f, op);
}

static void after_op(lk_frame *f, uint32_t op, bool train) {
    if (f->program->checked) lk_check_after_op(f, op, train);
}

static void note_bad(lk_frame *f, uint32_t index, uint32_t bad) {
    if (bad && index < f->bad_op) f->bad_op = index;
}

static void examples(lk_frame *f, uint32_t index, const lk_microbatch *microbatch,
                     const lk_lane *lane, uint32_t bad) {
    const lk_op *op = &f->program->ops[index];
    if (op->type->scope == LK_SCOPE_LOSS) {
        lk_metric_add_counts(f->counts, lane->counts);
        const bool mixed = lk_mixed_is(f->program, op);
        if (microbatch->sparse && !mixed) forget_missing(f, op, microbatch, lane);
    }
    note_bad(f, index, bad);
}

static uint32_t call(lk_frame *f, const lk_op *op, const lk_microbatch *microbatch,
                     lk_lane *lane) {
    if (lk_mixed_is(f->program, op)) return lk_mixed_call(f, op, microbatch, lane);
    return lk_kernel_of(f->kernels, op->type)(lane, op);
}

#ifdef LK_SHORT_FORM_ALONE
#define call_examples call
#else
// Before the first meeting replicas make what all read, after it each computes its part, and after
// the second all of it is there.
static uint32_t call_divided(lk_frame *f, const lk_op *op, const lk_microbatch *microbatch,
                             lk_lane *lane) {
    const lk_together *t = microbatch->together;
    t->lanes[microbatch->number] = lane;
    t->meet(t->context);
    lane->all = t->lanes;
    lane->all_count = t->count;
    lane->number = microbatch->number;
    const uint32_t bad = lk_kernel_of(f->kernels, op->type)(lane, op);
    t->meet(t->context);
    return bad;
}

static uint32_t call_examples(lk_frame *f, const lk_op *op, const lk_microbatch *microbatch,
                              lk_lane *lane) {
    const bool divided =
        op->divided && microbatch->together && f->kernels->divides[op->type->number];
    return divided ? call_divided(f, op, microbatch, lane) : call(f, op, microbatch, lane);
}
#endif

lk_lane lk_walk_lane(lk_frame *f, const lk_op *op, const lk_microbatch *microbatch, bool train) {
    const lk_average_calls *averages = f->program->spec->model.averages;
    lk_lane lane = lk_lane_of(f, op, microbatch->examples);
    lane.train = train;
    lane.first_example = microbatch->first_grain * f->program->spec->grain;
    lane.seed = f->program->spec->seed;
    lane.step = microbatch->step;
    if (averages && !train) averages->take(f, op, &lane);
    if (op->type->grains) show_grains(&lane, f, microbatch);
    return lane;
}

#ifndef LK_SHORT_FORM_ALONE
// Each round the prediction network sees the labels said so far, and then every example goes on
// until it says one more, or is done. So there are at most as many rounds as labels, and one.
static void decode(lk_frame *f, uint32_t index, const lk_microbatch *microbatch) {
    const lk_op *op = &f->program->ops[index];
    lk_lane lane = lk_walk_lane(f, op, microbatch, false);
    uint32_t bad = 0;
    lk_decode_start(&lane, op);
    do {
        for (uint32_t i = 0; i < f->program->forward_end; i++) {
            const lk_op *again = &f->program->ops[i];
            if (!again->again) continue;
            lk_lane l = lk_walk_lane(f, again, microbatch, false);
            if (again->type->labels) l.at[LK_LABELS] = lane.at[LK_Y];
            bad |= call(f, again, microbatch, &l);
        }
        bad |= call(f, op, microbatch, &lane);
    } while (!bad && lk_decode_goes_on(&lane, op));
    lk_decode_count(&lane, op);
    lk_metric_add_counts(f->counts, lane.counts);
    note_bad(f, index, bad);
}
#endif

static const lk_walker here = {.before = before,
                               .source = load,
                               .examples = examples,
                               .metric = metric_sum,
                               .grains = gradient,
#ifndef LK_SHORT_FORM_ALONE
                               .decode = decode,
#endif
                               .after = after_op};

void lk_walk_ops(const lk_walker *w, lk_frame *f, const lk_microbatch *microbatch, uint32_t begin,
                 uint32_t end, bool train, lk_counter *after) {
    for (uint32_t i = begin; i < end; i++) {
        const lk_op *op = &f->program->ops[i];
        lk_lane lane;
        w->before(f, i);
        switch (op->type->scope) {
        case LK_SCOPE_SOURCE: w->source(f, op, microbatch, train); break;
        case LK_SCOPE_EXAMPLES:
        case LK_SCOPE_LOSS:
            lane = lk_walk_lane(f, op, microbatch, train);
            w->examples(f, i, microbatch, &lane, call_examples(f, op, microbatch, &lane));
            break;
        case LK_SCOPE_METRIC: w->metric(f, op, microbatch, after); break;
        case LK_SCOPE_GRAINS: w->grains(f, op, microbatch); break;
        case LK_SCOPE_DECODE:
#ifndef LK_SHORT_FORM_ALONE
            if (!train) w->decode(f, i, microbatch);
#endif
            break;
        case LK_SCOPE_USE: break;
        case LK_SCOPE_UPDATE: lk_panic(__FILE__, __LINE__, "REDUCE is no part of a walk");
        }
        w->after(f, i, train);
    }
}

// Ops [begin, end) of those that make a microbatch. `after` becomes the nodes held after it.
static void execute(lk_frame *f, const lk_microbatch *microbatch, uint32_t begin, uint32_t end,
                    bool train, lk_counter *after) {
    const uint32_t all = lk_microbatch_ops(f->program, train);
    if (begin == 0) *after = f->counter;
    end = LK_MIN(end, all);
    lk_walk_ops(&here, f, microbatch, begin, end, train, after);
    if (end == all) f->counter = *after;
}

void lk_execute_train(lk_frame *f, const lk_microbatch *microbatch) {
    lk_counter after;
    execute(f, microbatch, 0, LK_NONE, true, &after);
}

void lk_execute_train_ops(lk_frame *f, const lk_microbatch *microbatch, uint32_t begin,
                          uint32_t end, lk_counter *after) {
    execute(f, microbatch, begin, end, true, after);
}

void lk_execute_forward(lk_frame *f, const lk_microbatch *microbatch) {
    lk_counter after;
    execute(f, microbatch, 0, LK_NONE, false, &after);
}

void lk_execute_forward_op(lk_frame *f, const lk_microbatch *microbatch, uint32_t op) {
    lk_counter after = {0};
    lk_walk_ops(&here, f, microbatch, op, op + 1, false, &after);
}
