// export_fold.c - see export_fold.h.
#include "apps/run/export_fold.h"

#include <stdlib.h>
#include <string.h>

#include "ops/math.h"

// Larger offsets stay where they are: behind a sum of products of so much larger numbers they would
// cost bits.
#define OFFSET_MAX 16.0

// y = x * factor + offset, of the channels that a value's number counts modulo `channels`.
typedef struct affine {
    uint32_t channels;
    double *factor, *offset;  // (channels)
    bool moves;               // some offset is not 0
    bool positive;            // all factors are above 0
    bool finite, small;       // all numbers; all offsets
} affine;

static bool is_finite(double x) { return x - x == 0.0; }

static void look(affine *a) {
    a->moves = false;
    a->positive = a->finite = a->small = true;
    for (uint32_t c = 0; c < a->channels; c++) {
        const double o = a->offset[c];
        a->moves = a->moves || o != 0.0;
        a->positive = a->positive && a->factor[c] > 0.0;
        a->finite = a->finite && is_finite(a->factor[c]) && is_finite(o);
        a->small = a->small && o <= OFFSET_MAX && o >= -OFFSET_MAX;
    }
}

// --- the graph -----------------------------------------------------------------------------------

static const lk_model *model_of(const lk_onnx_fold *f) { return &f->program->spec->model; }

// Values are numbered as a layer's inputs: 0 the images, n what layer n - 1 gives.
static bool takes(const lk_onnx_fold *f, uint32_t number, uint32_t value) {
    const lk_layer *l = &model_of(f)->layers[number];
    if (l->input_count == 0) return number == value;
    for (uint32_t i = 0; i < l->input_count; i++) {
        if (l->inputs[i] == value) return true;
    }
    return false;
}

static uint32_t users_of(const lk_onnx_fold *f, uint32_t value) {
    uint32_t users = value == model_of(f)->layer_count;  // the logits
    for (uint32_t n = 0; n < model_of(f)->layer_count; n++) users += takes(f, n, value);
    return users;
}

static bool is_norm(const lk_onnx_fold *f, uint32_t number) {
    return f->ops[number] && f->ops[number]->type == &lk_op_batch_normalization &&
           !model_of(f)->layers[number].activation;
}

static bool has_kernel(const lk_onnx_fold *f, uint32_t number) {
    const lk_op *op = f->ops[number];
    if (!op) return false;
    if (op->type == &lk_op_sequence_dense) {  // with a node that adds its bias
        return model_of(f)->layers[number].type == &lk_layer_dense && op->param[1] != LK_NONE;
    }
    return op->type == &lk_op_conv2d || op->type == &lk_op_grouped_conv2d ||
           op->type == &lk_op_conv2d_transpose || op->type == &lk_op_dense;
}

// Are there zeros around the image of a convolution?
static bool pads(const lk_op *op) {
    const lk_conv2d *c = &op->conv;
    const bool grouped = op->type == &lk_op_grouped_conv2d;
    const uint32_t h = (c->kernel_h - 1) * (grouped ? op->grouped.dilation_h : 1u) + 1;
    const uint32_t w = (c->kernel_w - 1) * (grouped ? op->grouped.dilation_w : 1u) + 1;
    return c->pad_top || c->pad_left ||
           lk_export_pad_end(c->in_h, h, c->stride_h, c->out_h, c->pad_top) ||
           lk_export_pad_end(c->in_w, w, c->stride_w, c->out_w, c->pad_left);
}

// Does a layer without numbers of its own give x * factor + offset for that of x?
static bool lets_pass(const lk_onnx_fold *f, uint32_t number, const affine *a) {
    const lk_layer *l = &model_of(f)->layers[number];
    const lk_layer_type *type = l->type;
    if (l->activation) return false;
    if (type == &lk_layer_zero_padding2d) return !a->moves;
    if (type == &lk_layer_max_pool2d) return a->positive;
    if (type == &lk_layer_reshape) return l->target_shape.count == 1 || a->channels == 1;
    return type == &lk_layer_flatten || type == &lk_layer_dropout || f->gone[number] ||
           type == &lk_layer_average_pool2d || type == &lk_layer_global_average_pool2d;
}

// --- before a layer ------------------------------------------------------------------------------

static bool all_take(const lk_onnx_fold *f, uint32_t value, const affine *a);

static bool takes_before(const lk_onnx_fold *f, uint32_t number, const affine *a) {
    const lk_op *op = f->ops[number];
    if (model_of(f)->layers[number].type->inputs != 1) return false;
    if (!has_kernel(f, number)) return lets_pass(f, number, a) && all_take(f, number + 1, a);
    if (op->type == &lk_op_conv2d_transpose) return !a->moves;
    if (op->type == &lk_op_dense || op->type == &lk_op_sequence_dense) return true;
    return !a->moves || !pads(op);
}

static bool all_take(const lk_onnx_fold *f, uint32_t value, const affine *a) {
    bool some = false;
    if (value == model_of(f)->layer_count) return false;
    for (uint32_t n = 0; n < model_of(f)->layer_count; n++) {
        if (!takes(f, n, value)) continue;
        if (!takes_before(f, n, a)) return false;
        some = true;
    }
    return some;
}

// Input and output of a kernel's element. Dense (in, out), convolutions (out, in of a group, h, w),
// transposed ones (in, out, h, w).
typedef struct place {
    uint64_t in, out;
} place;
static place place_of(const lk_op *op, const lk_safetensors_tensor *t, uint64_t at) {
    const uint64_t cells = t->dim_count == 4 ? t->dims[2] * t->dims[3] : 1;
    const uint64_t first = at / cells / t->dims[1], second = at / cells % t->dims[1];
    if (op->type == &lk_op_conv2d) return (place){second, first};
    if (op->type != &lk_op_grouped_conv2d) return (place){first, second};
    return (place){first / lk_grouped_outputs(&op->grouped) * t->dims[1] + second, first};
}

uint32_t lk_onnx_fold_outputs(const lk_onnx_fold *f, uint32_t number) {
    const lk_op *op = f->ops[number];
    const uint64_t *dims = f->tensors[op->param[0]].dims;
    const bool first = op->type == &lk_op_conv2d || op->type == &lk_op_grouped_conv2d;
    return (uint32_t)dims[first ? 0 : 1];
}

static uint64_t count_of(const lk_safetensors_tensor *t) {
    uint64_t count = 1;
    for (uint32_t d = 0; d < t->dim_count; d++) count *= t->dims[d];
    return count;
}

static float *bias_of(lk_onnx_fold *f, uint32_t number) {
    const uint32_t param = f->ops[number]->param[1];
    if (param != LK_NONE) return f->tensors[param].data;
    if (!f->bias[number]) {
        f->bias[number] = calloc(lk_onnx_fold_outputs(f, number), sizeof(float));
    }
    return f->bias[number];
}

static lk_status no_memory(lk_error *error) {
    return lk_fail(error, LK_UNAVAILABLE, "no memory to fold the constants of a model");
}

static lk_status take_before(lk_onnx_fold *f, uint32_t number, const affine *a, lk_error *error) {
    const lk_op *op = f->ops[number];
    const lk_safetensors_tensor *t = &f->tensors[op->param[0]];
    const uint32_t outputs = lk_onnx_fold_outputs(f, number);
    float *kernel = t->data;
    memset(f->sums, 0, outputs * sizeof *f->sums);
    for (uint64_t i = 0; i < count_of(t); i++) {
        const place at = place_of(op, t, i);
        f->sums[at.out] += (double)kernel[i] * a->offset[at.in % a->channels];
        kernel[i] = (float)((double)kernel[i] * a->factor[at.in % a->channels]);
    }
    if (!a->moves) return LK_OK;
    float *bias = bias_of(f, number);
    if (!bias) return no_memory(error);
    for (uint32_t o = 0; o < outputs; o++) bias[o] = (float)((double)bias[o] + f->sums[o]);
    return LK_OK;
}

static lk_status fold_forward(lk_onnx_fold *f, uint32_t value, const affine *a, lk_error *error) {
    for (uint32_t n = 0; n < model_of(f)->layer_count; n++) {
        if (!takes(f, n, value)) continue;
        LK_CHECK(has_kernel(f, n) ? take_before(f, n, a, error) : fold_forward(f, n + 1, a, error));
    }
    return LK_OK;
}

// --- behind a layer ------------------------------------------------------------------------------

static uint32_t input_of(const lk_onnx_fold *f, uint32_t number) {
    const lk_layer *l = &model_of(f)->layers[number];
    return l->input_count ? l->inputs[0] : number;
}

// The layer with a kernel whose outputs nobody but layer `number` sees; LK_NONE.
static uint32_t maker_of(const lk_onnx_fold *f, uint32_t number) {
    uint32_t value = input_of(f, number);
    while (value > 0 && users_of(f, value) == 1) {
        const lk_layer *l = &model_of(f)->layers[value - 1];
        if (l->activation) return LK_NONE;
        if (has_kernel(f, value - 1)) return value - 1;
        if (l->type != &lk_layer_dropout && !f->gone[value - 1]) return LK_NONE;
        value = input_of(f, value - 1);
    }
    return LK_NONE;
}

static lk_status take_behind(lk_onnx_fold *f, uint32_t number, const affine *a, lk_error *error) {
    const lk_op *op = f->ops[number];
    const lk_safetensors_tensor *t = &f->tensors[op->param[0]];
    float *kernel = t->data, *bias = bias_of(f, number);
    if (!bias) return no_memory(error);
    for (uint64_t i = 0; i < count_of(t); i++) {
        kernel[i] = (float)((double)kernel[i] * a->factor[place_of(op, t, i).out]);
    }
    for (uint32_t o = 0; o < a->channels; o++) {
        bias[o] = (float)((double)bias[o] * a->factor[o] + a->offset[o]);
    }
    return LK_OK;
}

// --- what is folded ------------------------------------------------------------------------------

lk_safetensors_tensor *lk_onnx_fold_find(const lk_onnx_fold *f, const char *name) {
    for (size_t i = 0; i < f->tensor_count; i++) {
        if (strcmp(f->tensors[i].name, name) == 0) return &f->tensors[i];
    }
    return NULL;
}

static const float *state_of(const lk_onnx_fold *f, const lk_op *op, uint32_t which) {
    const lk_safetensors_tensor *t =
        lk_onnx_fold_find(f, f->program->tensors[op->tensor[LK_STATE] + which].name);
    lk_assert(t != NULL);
    return t->data;
}

// A normalisation as evaluation has it.
static void affine_of(const lk_onnx_fold *f, const lk_op *op, affine *a) {
    const float *gamma = op->param[0] == LK_NONE ? NULL : f->tensors[op->param[0]].data;
    const float *beta = op->param[1] == LK_NONE ? NULL : f->tensors[op->param[1]].data;
    const float *mean = state_of(f, op, 0), *variance = state_of(f, op, 1);
    for (uint32_t c = 0; c < a->channels; c++) {
        const float inverse = 1.0f / lk_sqrtf(variance[c] + op->norm.epsilon);
        a->factor[c] = (double)inverse * (gamma ? (double)gamma[c] : 1.0);
        a->offset[c] = (beta ? (double)beta[c] : 0.0) - (double)mean[c] * a->factor[c];
    }
    look(a);
}

// Into the layer before it, or those behind it.
static lk_status fold_norm(lk_onnx_fold *f, uint32_t number, bool behind, lk_error *error) {
    const uint32_t channels = f->ops[number]->norm.channels;
    const uint32_t maker = behind ? maker_of(f, number) : LK_NONE;
    affine a = {.channels = channels, .factor = calloc((size_t)channels * 2, sizeof *a.factor)};
    lk_status status = LK_OK;
    if (!a.factor) return no_memory(error);
    a.offset = a.factor + channels;
    affine_of(f, f->ops[number], &a);
    if (behind && a.finite && maker != LK_NONE) {
        status = take_behind(f, maker, &a, error);
        f->gone[number] = true;
    } else if (!behind && a.finite && a.small && all_take(f, number + 1, &a)) {
        status = fold_forward(f, number + 1, &a, error);
        f->gone[number] = true;
    }
    free(a.factor);
    return status;
}

// Bytes as training has them, unit or signed, then data.normalize.
static void scale_of(lk_onnx_scale *s, const lk_run_spec *spec, lk_onnx_input input) {
    const lk_augmented none = lk_augment_none();
    const bool bytes = input == LK_ONNX_U8, is_signed = spec->model.input_range == LK_RANGE_SIGNED;
    const double byte = !bytes ? 1.0 : is_signed ? 1.0 / 127.5 : (double)0x1.010102p-8f;
    const double least = bytes && is_signed ? -1.0 : 0.0;
    s->channels = LK_MAX(spec->augment.mean.count, 1u);
    for (uint32_t c = 0; c < s->channels; c++) {
        float factor = 1.0f, offset = 0.0f;
        if (spec->augment.mean.count) {
            lk_augment_channel(&spec->augment, &none, c, &factor, &offset);
        }
        s->factor[c] = (float)(byte * (double)factor);
        s->offset[c] = (float)(least * (double)factor + (double)offset);
        s->multiplies = s->multiplies || s->factor[c] != 1.0f;
        s->adds = s->adds || s->offset[c] != 0.0f;
    }
}

static lk_status fold_scale(lk_onnx_fold *f, lk_error *error) {
    lk_onnx_scale *s = &f->scale;
    double factor[LK_AUGMENT_CHANNELS_MAX], offset[LK_AUGMENT_CHANNELS_MAX];
    affine a = {.channels = s->channels, .factor = factor, .offset = offset};
    for (uint32_t c = 0; c < s->channels; c++) {
        factor[c] = (double)s->factor[c];
        offset[c] = (double)s->offset[c];
    }
    look(&a);
    if ((!s->multiplies && !s->adds) || !a.finite || !a.small || !all_take(f, 0, &a)) return LK_OK;
    s->multiplies = s->adds = false;
    return fold_forward(f, 0, &a, error);
}

// A layer is said once more with its activation's op.
static lk_status note_op(void *context, const lk_export *said, uint32_t layer, lk_error *error) {
    lk_onnx_fold *f = context;
    (void)error;
    if (!f->ops[layer]) f->ops[layer] = said->op;
    return LK_OK;
}

static lk_status fold_all(lk_onnx_fold *f, lk_onnx_input input, lk_error *error) {
    const lk_run_spec *spec = f->program->spec;
    LK_CHECK(lk_export_walk(f->program, note_op, f, NULL, error));
    const uint32_t layers = spec->model.layer_count;
    for (uint32_t n = 0; n < layers; n++) {
        if (is_norm(f, n)) LK_CHECK(fold_norm(f, n, true, error));
    }
    for (uint32_t n = layers; n-- > 0;) {  // of two in a row both
        if (is_norm(f, n) && !f->gone[n]) LK_CHECK(fold_norm(f, n, false, error));
    }
    scale_of(&f->scale, spec, input);
    return fold_scale(f, error);
}

lk_status lk_onnx_fold_open(lk_onnx_fold *f, const lk_program *program, lk_onnx_input input,
                            lk_safetensors_tensor *tensors, size_t count, lk_error *error) {
    const lk_model *m = &program->spec->model;
    uint64_t outputs = 1;
    *f = (lk_onnx_fold){.program = program, .tensors = tensors, .tensor_count = count};
    for (size_t i = 0; i < count; i++) {
        if (tensors[i].dim_count < 2) continue;
        outputs = LK_MAX(outputs, LK_MAX(tensors[i].dims[0], tensors[i].dims[1]));
    }
    f->gone = calloc(m->layer_count, sizeof *f->gone);
    f->bias = calloc(m->layer_count, sizeof *f->bias);
    f->ops = calloc(m->layer_count, sizeof(void *));
    f->sums = calloc(outputs, sizeof *f->sums);
    const bool room = f->gone && f->bias && f->ops && f->sums;
    lk_status status = room ? fold_all(f, input, error) : no_memory(error);
    if (status != LK_OK) lk_onnx_fold_close(f);
    return status;
}

void lk_onnx_fold_close(lk_onnx_fold *f) {
    for (uint32_t n = 0; f->bias && n < model_of(f)->layer_count; n++) free(f->bias[n]);
    free(f->gone);
    free(f->bias);
    free(f->ops);
    free(f->sums);
    *f = (lk_onnx_fold){0};
}
