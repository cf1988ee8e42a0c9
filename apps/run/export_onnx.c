// export_onnx.c - the bytes of an ONNX model: one ModelProto, written by io/protobuf.h. The numbers
// of its fields are those of onnx.proto; nothing of a layer stands here.
//
//   images (batch, h, w, c) -> Cast (bytes only) -> Mul, Add (of bytes, and of data.normalize, as
//   far as no layer takes them over) -> Transpose -> layers -> logits
//   logits -> what the loss takes them for, such as Softmax -> probabilities
//
// Batch normalisation and scaling are part of the layers beside them where they can be
// (export_fold.h).
//
// A node and what it gives are named LAYER/TYPE. What belongs to no layer is named /TYPE: layers
// have names without a slash.
#include <stdlib.h>
#include <string.h>

#include "apps/run/export_fold.h"
#include "io/protobuf.h"

enum { IR_VERSION = 8, OPERATOR_SET = 17, NAME_BYTES = 128 };

typedef enum element_type { ELEMENT_FLOAT = 1, ELEMENT_UINT8 = 2, ELEMENT_INT64 = 7 } element_type;
// AttributeProto.AttributeType, and the field that holds such a value.
enum { ATTRIBUTE_FLOAT = 1, ATTRIBUTE_INT = 2, ATTRIBUTE_INTS = 7 };
enum { FIELD_FLOAT = 2, FIELD_INT = 3, FIELD_INTS = 8 };

static const char logits_name[] = "logits", images_name[] = "images", labels_name[] = "labels";
static const char said_name[] = "labels_and_blank";

typedef struct writer {
    lk_protobuf out;
    const lk_onnx_model *model;
    char before[NAME_BYTES];  // what the first node of those at hand takes
    const char **names;       // (layers) of the last node of each layer, NULL: it has none yet
    bool labels;              // some node takes them
    const lk_op *joint;       // whose results are the model's; NULL: there is none
} writer;

// --- nodes ---------------------------------------------------------------------------------------

// NodeProto up to its attributes. Before `output` it has `unnamed` outputs that nobody takes.
// *begun is for lk_protobuf_end.
static void begin_node(writer *w, const char *const *inputs, uint32_t input_count, uint32_t unnamed,
                       const char *output, const char *type, size_t *begun) {
    *begun = lk_protobuf_begin(&w->out, 1);
    for (uint32_t i = 0; i < input_count; i++) lk_protobuf_string(&w->out, 1, inputs[i]);
    for (uint32_t i = 0; i < unnamed; i++) lk_protobuf_string(&w->out, 2, "");
    lk_protobuf_string(&w->out, 2, output);
    lk_protobuf_string(&w->out, 3, output);
    lk_protobuf_string(&w->out, 4, type);
}

static void write_attribute(writer *w, const lk_export_attribute *a) {
    const size_t begun = lk_protobuf_begin(&w->out, 5);
    lk_protobuf_string(&w->out, 1, a->name);
    if (a->kind == LK_EXPORT_FLOAT) lk_protobuf_float(&w->out, FIELD_FLOAT, a->real);
    if (a->kind == LK_EXPORT_INT && a->count == 0) lk_protobuf_int(&w->out, FIELD_INT, a->ints[0]);
    for (uint32_t i = 0; i < a->count; i++) lk_protobuf_int(&w->out, FIELD_INTS, a->ints[i]);
    lk_protobuf_uint(&w->out, 20,
                     a->kind == LK_EXPORT_FLOAT ? ATTRIBUTE_FLOAT
                     : a->count                 ? ATTRIBUTE_INTS
                                                : ATTRIBUTE_INT);
    lk_protobuf_end(&w->out, begun);
}

// A node of one input that belongs to no layer.
static void write_plain(writer *w, const char *input, const char *output, const char *type,
                        const lk_export_attribute *attribute) {
    size_t begun;
    begin_node(w, &input, 1, 0, output, type, &begun);
    if (attribute) write_attribute(w, attribute);
    lk_protobuf_end(&w->out, begun);
}

static void write_pair(writer *w, const char *left, const char *right, const char *output,
                       const char *type) {
    const char *const inputs[] = {left, right};
    size_t begun;
    begin_node(w, inputs, 2, 0, output, type, &begun);
    lk_protobuf_end(&w->out, begun);
}

static void write_scaling(writer *w) {
    static const lk_export_attribute to_float = {"to", LK_EXPORT_INT, 0, {ELEMENT_FLOAT}, 0.0f};
    static const lk_export_attribute channels_first = {
        "perm", LK_EXPORT_INT, 4, {0, 3, 1, 2}, 0.0f};
    const lk_onnx_scale *scale = &w->model->fold->scale;
    const bool bytes = w->model->input == LK_ONNX_U8;
    const char *at = images_name;
    if (bytes) {
        write_plain(w, at, "/Cast", "Cast", &to_float);
        at = "/Cast";
    }
    if (scale->multiplies) {
        write_pair(w, at, "/factor", "/Mul", "Mul");
        at = "/Mul";
    }
    if (scale->adds) {
        write_pair(w, at, "/offset", "/Add", "Add");
        at = "/Add";
    }
    write_plain(w, at, "/Transpose", "Transpose", &channels_first);
}

// --- layers --------------------------------------------------------------------------------------

static void write_tensor(writer *w, const char *name, uint32_t rank, const uint64_t *dims,
                         const void *values, size_t bytes) {
    const size_t begun = lk_protobuf_begin(&w->out, 5);
    for (uint32_t i = 0; i < rank; i++) lk_protobuf_uint(&w->out, 1, dims[i]);
    lk_protobuf_uint(&w->out, 2, ELEMENT_FLOAT);
    lk_protobuf_string(&w->out, 8, name);
    lk_protobuf_bytes(&w->out, 9, values, bytes);
    lk_protobuf_end(&w->out, begun);
}

// A tensor of integers, as Reshape and Pad take them.
static void write_integers(writer *w, const char *name, uint32_t count, const int64_t *values) {
    const size_t begun = lk_protobuf_begin(&w->out, 5);
    lk_protobuf_uint(&w->out, 1, count);
    lk_protobuf_uint(&w->out, 2, ELEMENT_INT64);
    for (uint32_t i = 0; i < count; i++) lk_protobuf_int(&w->out, 7, values[i]);
    lk_protobuf_string(&w->out, 8, name);
    lk_protobuf_end(&w->out, begun);
}

static void name_node(char out[NAME_BYTES], const lk_layer *l, const char *type) {
    lk_format(out, NAME_BYTES, "%s/%s", l->name, type);
}

// What layer `from` - 1 gives; 0: the images. A layer without nodes gives what it takes.
static void name_value(const writer *w, char out[NAME_BYTES], uint32_t from) {
    const lk_layer *layers = w->model->program->spec->model.layers;
    while (from && !w->names[from - 1]) {
        from = layers[from - 1].input_count ? layers[from - 1].inputs[0] : from - 1;
    }
    if (from == 0) {
        lk_format(out, NAME_BYTES, "/Transpose");
    } else {
        name_node(out, &layers[from - 1], w->names[from - 1]);
    }
}

// A tensor of one value again and again.
static void write_constant(writer *w, const char *name, uint64_t count, float value) {
    const size_t begun = lk_protobuf_begin(&w->out, 5);
    lk_protobuf_uint(&w->out, 1, count);
    lk_protobuf_uint(&w->out, 2, ELEMENT_FLOAT);
    lk_protobuf_string(&w->out, 8, name);
    const size_t values = lk_protobuf_begin(&w->out, 9);
    for (uint64_t i = 0; i < count; i++) lk_protobuf_raw(&w->out, &value, sizeof value);
    lk_protobuf_end(&w->out, values);
    lk_protobuf_end(&w->out, begun);
}

// gamma, beta and the states of an op that has some: what it has not, as constants.
static uint32_t name_statistics(writer *w, const lk_export *e, const lk_layer *l,
                                char rows[LK_OP_PARAMS][NAME_BYTES], const char **inputs,
                                uint32_t count) {
    static const char *const names[LK_OP_PARAMS] = {"gamma", "beta"};
    const lk_program *p = w->model->program;
    const uint32_t state = e->op->tensor[LK_STATE];
    for (uint32_t i = 0; i < LK_OP_PARAMS; i++) {
        const uint32_t param = e->op->param[i];
        lk_format(rows[i], NAME_BYTES, "%s/%s", l->name, names[i]);
        inputs[count++] = rows[i];
        if (param != LK_NONE) continue;
        write_constant(w, rows[i], e->op->norm.channels, i == 0 ? 1.0f : 0.0f);
    }
    for (uint32_t i = 0; state != LK_NONE && i < LK_OP_STATES; i++) {
        inputs[count++] = p->tensors[state + i].name;
    }
    return count;
}

// What a node of a layer gives.
static void name_result(char out[NAME_BYTES], const lk_layer *l, const lk_export_node *node) {
    if (node->result) {
        lk_format(out, NAME_BYTES, "%s", node->result);
    } else {
        name_node(out, l, node->name ? node->name : node->type);
    }
}

// The values that a node takes, in front of all else; how many.
static uint32_t name_values(writer *w, const lk_export *e, const lk_export_node *node,
                            uint32_t number, char names[LK_LAYER_INPUTS_MAX][NAME_BYTES]) {
    const lk_layer *l = &w->model->program->spec->model.layers[number];
    const bool first = w->names[number] == NULL;
    const uint32_t taken = first ? LK_MIN(l->type->inputs, LK_LAYER_INPUTS_MAX) : 1;
    for (uint32_t i = 0; i < node->from_count; i++) {
        const int32_t from = node->from[i];
        const uint32_t input = (uint32_t)~from;
        if (from == LK_EXPORT_LABELS) {
            lk_format(names[i], NAME_BYTES, "%s", labels_name);
            w->labels = true;
        } else if (from >= 0) {
            name_result(names[i], l, &e->nodes[from]);
        } else {
            name_value(w, names[i], l->input_count ? l->inputs[input] : number);
        }
    }
    if (node->from_count) return node->from_count;
    if (!first) name_node(names[0], l, w->names[number]);
    for (uint32_t i = 0; first && i < taken; i++) {
        name_value(w, names[i], l->input_count ? l->inputs[i] : number);
    }
    return taken;
}

static uint32_t name_parameters(const writer *w, const lk_export *e, uint32_t wanted,
                                const char **inputs, uint32_t count) {
    if (!wanted) return count;
    const uint32_t all[] = {e->op->param[0], e->second ? e->second->param[0] : LK_NONE,
                            e->op->param[1]};
    for (uint32_t i = 0; i < LK_COUNT(all); i++) {
        if (!(wanted >> i & 1) || all[i] == LK_NONE) continue;
        inputs[count++] = w->model->tensors[all[i]].name;
    }
    return count;
}

static void write_node(writer *w, const lk_export *e, const lk_export_node *node, uint32_t number) {
    const lk_model *m = &w->model->program->spec->model;
    const lk_layer *l = &m->layers[number];
    char names[LK_LAYER_INPUTS_MAX][NAME_BYTES], output[NAME_BYTES];
    const char *inputs[LK_LAYER_INPUTS_MAX + LK_OP_PARAMS + LK_OP_STATES + 4];
    char constant[NAME_BYTES], reals[2][NAME_BYTES], rows[LK_OP_PARAMS][NAME_BYTES];
    char bias[NAME_BYTES];
    const uint32_t taken = name_values(w, e, node, number, names);
    uint32_t count = node->table ? name_parameters(w, e, node->parameters, inputs, 0) : 0;
    for (uint32_t i = 0; i < taken; i++) inputs[count++] = names[i];
    if (!node->table) count = name_parameters(w, e, node->parameters, inputs, count);
    if (node->parameters & LK_EXPORT_BIAS && w->model->fold->bias[number]) {
        lk_format(bias, sizeof bias, "%s/bias", l->name);
        inputs[count++] = bias;
    }
    if (node->statistics) count = name_statistics(w, e, l, rows, inputs, count);
    name_result(output, l, node);
    if (node->constant_count) {
        lk_format(constant, sizeof constant, "%s/constant", output);
        inputs[count++] = constant;
        write_integers(w, constant, node->constant_count, node->constant);
    }
    if (node->again) inputs[count++] = w->before;
    for (uint32_t i = 0; i < node->real_count; i++) {
        lk_format(reals[i], sizeof reals[i], "%s/constant_%u", output, i);
        inputs[count++] = reals[i];
        write_tensor(w, reals[i], 0, NULL, &node->reals[i], sizeof node->reals[i]);
    }
    size_t begun;
    begin_node(w, inputs, count, node->output, output, node->type, &begun);
    for (uint32_t i = 0; i < node->attribute_count; i++) write_attribute(w, &node->attributes[i]);
    lk_protobuf_end(&w->out, begun);
    w->names[number] = node->name ? node->name : node->type;
}

static lk_status write_layer(void *context, const lk_export *said, uint32_t layer,
                             lk_error *error) {
    writer *w = context;
    const lk_model *m = &w->model->program->spec->model;
    const lk_layer *l = &m->layers[layer];
    (void)error;
    if (w->model->fold->gone[layer]) return LK_OK;
    if (said->out.cells) w->joint = said->op;
    if (w->names[layer]) {
        name_node(w->before, l, w->names[layer]);
    } else {
        name_value(w, w->before, l->input_count ? l->inputs[0] : layer);
    }
    for (uint32_t i = 0; i < said->node_count; i++) {
        write_node(context, said, &said->nodes[i], layer);
    }
    return LK_OK;
}

// The logits, and what they mean. A loss takes rows of values, so the last layer gives them; or the
// cells of a joint.
static void write_end(writer *w, const lk_export_value *last) {
    const lk_export_attribute axis = {"axis", LK_EXPORT_INT, 0, {last->flat ? 1 : 3}, 0.0f};
    const lk_model *m = &w->model->program->spec->model;
    const lk_loss_words *loss = m->loss ? lk_loss_words_of(m->loss) : lk_loss_words_at(0);
    char name[NAME_BYTES];
    lk_assert(last->flat || last->cells);
    name_value(w, name, m->layer_count);
    write_plain(w, name, logits_name, "Identity", NULL);
    if (loss->export_node) {
        write_plain(w, logits_name, loss->export_name, loss->export_node, &axis);
    }
}

// --- values --------------------------------------------------------------------------------------

// Is it a number of a layer that others compute, or that lies in another's tensor?
static bool is_gone(const writer *w, const char *name) {
    const lk_model *m = &w->model->program->spec->model;
    const char *slash = strchr(name, '/');
    const size_t length = slash ? (size_t)(slash - name) : 0;
    for (uint32_t n = 0; n < m->layer_count; n++) {
        const char *layer = m->layers[n].name;
        if (strlen(layer) == length && memcmp(layer, name, length) == 0) {
            return w->model->fold->gone[n] ||
                   lk_export_joins_biases(m->layers[n].type, slash + 1);
        }
    }
    return false;
}

static void write_biases(writer *w) {
    const lk_model *m = &w->model->program->spec->model;
    char name[NAME_BYTES];
    for (uint32_t n = 0; n < m->layer_count; n++) {
        const float *bias = w->model->fold->bias[n];
        if (!bias) continue;
        const uint64_t outputs = lk_onnx_fold_outputs(w->model->fold, n);
        lk_format(name, sizeof name, "%s/bias", m->layers[n].name);
        write_tensor(w, name, 1, &outputs, bias, outputs * sizeof *bias);
    }
}

static void write_tensors(writer *w) {
    const lk_onnx_scale *scale = &w->model->fold->scale;
    const uint64_t channels = scale->channels, bytes = channels * sizeof(float);
    const lk_program *p = w->model->program;
    for (uint32_t i = 0; i < lk_entry_count(p); i++) {
        if (i >= p->param_count && !lk_state_evaluated(p, i)) continue;
        const lk_safetensors_tensor *t = &w->model->tensors[i];
        size_t tensor_bytes = sizeof(float);
        if (is_gone(w, t->name)) continue;
        for (uint32_t d = 0; d < t->dim_count; d++) tensor_bytes *= (size_t)t->dims[d];
        write_tensor(w, t->name, t->dim_count, t->dims, t->data, tensor_bytes);
    }
    write_biases(w);
    if (scale->multiplies) write_tensor(w, "/factor", 1, &channels, scale->factor, bytes);
    if (scale->adds) write_tensor(w, "/offset", 1, &channels, scale->offset, bytes);
}

// ValueInfoProto: rows of any number, and so is a dimension of 0, of that name.
static void write_value(writer *w, uint32_t field, const char *name, element_type element,
                        uint32_t rank, const uint64_t *dims, const char *any) {
    lk_protobuf *out = &w->out;
    const size_t value = lk_protobuf_begin(out, field);
    lk_protobuf_string(out, 1, name);
    const size_t type = lk_protobuf_begin(out, 2), tensor = lk_protobuf_begin(out, 1);
    lk_protobuf_uint(out, 1, element);
    const size_t shape = lk_protobuf_begin(out, 2);
    size_t dim = lk_protobuf_begin(out, 1);
    lk_protobuf_string(out, 2, "batch");
    lk_protobuf_end(out, dim);
    for (uint32_t i = 0; i < rank; i++) {
        dim = lk_protobuf_begin(out, 1);
        if (dims[i]) lk_protobuf_uint(out, 1, dims[i]);
        if (!dims[i]) lk_protobuf_string(out, 2, any);
        lk_protobuf_end(out, dim);
    }
    lk_protobuf_end(out, shape);
    lk_protobuf_end(out, tensor);
    lk_protobuf_end(out, type);
    lk_protobuf_end(out, value);
}

static void write_values(writer *w) {
    const lk_model *m = &w->model->program->spec->model;
    const lk_loss_words *loss = m->loss ? lk_loss_words_of(m->loss) : lk_loss_words_at(0);
    const uint64_t image[] = {m->in_h, m->in_w, m->in_c}, any[] = {0};
    uint64_t outputs[] = {lk_program_output_floats(w->model->program), 0, 0};
    uint32_t rank = 1;
    write_value(w, 11, images_name, w->model->input == LK_ONNX_U8 ? ELEMENT_UINT8 : ELEMENT_FLOAT,
                3, image, NULL);
    if (w->labels) write_value(w, 11, labels_name, ELEMENT_INT64, 1, any, labels_name);
    if (w->joint) {
        const lk_joint *j = &w->joint->joint;
        const uint64_t encoder[] = {j->frames, j->dense.k_count};
        const uint64_t prediction[] = {w->labels ? 0 : j->labels + 1, j->dense.k_count};
        write_value(w, 12, "encoder", ELEMENT_FLOAT, 2, encoder, NULL);
        write_value(w, 12, "prediction", ELEMENT_FLOAT, 2, prediction, said_name);
        outputs[0] = j->frames;
        outputs[1] = prediction[0];
        outputs[2] = j->dense.n_count;
        rank = 3;
    }
    write_value(w, 12, logits_name, ELEMENT_FLOAT, rank, outputs, said_name);
    if (loss->export_node) {
        write_value(w, 12, loss->export_name, ELEMENT_FLOAT, rank, outputs, said_name);
    }
}

// --- the model -----------------------------------------------------------------------------------

// What is exported ends with the last layer, in rows of values or the cells of a joint.
static lk_status check_end(const writer *w, const lk_export_value *last, lk_error *error) {
    const lk_model *m = &w->model->program->spec->model;
    const lk_loss_options *o = &m->loss_options;
    if (!last->flat && !last->cells) {
        return lk_fail(
            error, LK_BAD_CONFIG,
            "--layout onnx: the last layer, %s, gives images, wanted rows of values; end "
            "the model with a flatten layer",
            m->layers[m->layer_count - 1].name);
    }
    if (o->input_count == 0 || o->inputs[0] == m->layer_count) return LK_OK;
    return lk_fail(
        error, LK_BAD_CONFIG,
        "--layout onnx: the loss takes another layer than the last, %s, wanted the last; "
        "use --layout keras",
        m->layers[m->layer_count - 1].name);
}

static lk_status write_graph(writer *w, lk_error *error) {
    const size_t graph = lk_protobuf_begin(&w->out, 7);
    lk_export_value last;
    write_scaling(w);
    LK_CHECK(lk_export_walk(w->model->program, write_layer, w, &last, error));
    LK_CHECK(check_end(w, &last, error));
    write_end(w, &last);
    lk_protobuf_string(&w->out, 2, "lockstep");
    write_tensors(w);
    write_values(w);
    lk_protobuf_end(&w->out, graph);
    return LK_OK;
}

static lk_status write_model(writer *w, lk_error *error) {
    lk_protobuf *out = &w->out;
    lk_protobuf_uint(out, 1, IR_VERSION);
    lk_protobuf_string(out, 2, "lockstep");
    lk_protobuf_string(out, 3, LK_VERSION);
    LK_CHECK(write_graph(w, error));
    const size_t set = lk_protobuf_begin(out, 8);
    lk_protobuf_string(out, 1, "");
    lk_protobuf_uint(out, 2, OPERATOR_SET);
    lk_protobuf_end(out, set);
    for (size_t i = 0; i < w->model->metadata_count; i++) {
        const size_t pair = lk_protobuf_begin(out, 14);
        lk_protobuf_string(out, 1, w->model->metadata[i].key);
        lk_protobuf_string(out, 2, w->model->metadata[i].value);
        lk_protobuf_end(out, pair);
    }
    return LK_OK;
}

lk_status lk_onnx_format(const lk_onnx_model *model, void *out, size_t capacity, size_t *used,
                         lk_error *error) {
    const uint32_t layers = model->program->spec->model.layer_count;
    writer w = {.out = {out, capacity, 0}, .model = model};
    w.names = calloc(layers, sizeof *w.names);
    if (!w.names) return lk_fail(error, LK_UNAVAILABLE, "no memory for %u layers", layers);
    lk_status status = write_model(&w, error);
    free(w.names);
    *used = w.out.used;
    if (status != LK_OK) return status;
    if (w.out.used > INT32_MAX) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "--layout onnx: a model of %zu bytes, and the format holds less than 2 GiB; "
                       "use --layout keras or torch",
                       w.out.used);
    }
    if (!out || lk_protobuf_fits(&w.out)) return LK_OK;
    return lk_fail(error, LK_INTERNAL, "an ONNX model of %zu bytes in a buffer of %zu", w.out.used,
                   capacity);
}
