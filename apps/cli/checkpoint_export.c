// checkpoint_export.c - lockstep checkpoint export: a checkpoint's parameters for other programs,
// in a safetensors file as Keras or PyTorch has them, or with their network as an ONNX model.
//
// A checkpoint names and shapes parameters as Keras does; PyTorch wants
//
//     NAME/kernel  conv (h, w, in, out)   ->  NAME.weight  (out, in, h, w)
//     NAME/kernel  depthwise (h, w, in, m) -> NAME.weight  (in * m, 1, h, w)
//     NAME/kernel  dense (in, out)        ->  NAME.weight  (out, in)
//     NAME/bias    (out)                  ->  NAME.bias
//     NAME/gamma, NAME/beta               ->  NAME.weight, NAME.bias; a norm that has one of them
//                                             gets the other as ones or zeros: PyTorch's has both
//     NAME/moving_mean, /moving_variance  ->  NAME.running_mean, NAME.running_var (ours is biased,
//                                             PyTorch's own would be times n / (n - 1))
//     NAME/embeddings (classes, units)    ->  NAME.weight, as it is
//     NAME/vector_u                       ->  nothing: in every layout NAME/kernel is then what the
//                                             layer takes of it, divided by its spectral norm
//
// and of an LSTM, whose gates both have in one order
//
//     NAME/kernel, NAME/recurrent_kernel  ->  NAME.weight_ih_l0, NAME.weight_hh_l0 (4 * units, ..)
//     NAME/bias                           ->  NAME.bias_ih_l0, and zeros as NAME.bias_hh_l0
//
// and of a GRU, whose gates are z r h, and in PyTorch r z n
//
//     NAME/kernel, NAME/recurrent_kernel  ->  NAME.weight_ih_l0, NAME.weight_hh_l0 (3 * units, ..)
//     NAME/bias, NAME/recurrent_bias      ->  NAME.bias_ih_l0, NAME.bias_hh_l0
//
// and flattens (channels, h, w) where Keras flattens (h, w, channels): the inputs of a dense layer
// behind a flatten change places, too. Both kernels are then the same turn, of (position, channel,
// output) into (output, channel, position); other dense layers have one position. How many channels
// were flattened only the configuration knows (apps/run/export.h). An ONNX model keeps our order
// there, and wants the kernels of convolutions alone turned; of an LSTM it has gates in another
// order, and of both a direction in front, and both rows of biases in one.
//
// What is taken for parameters is what the digest that training recorded is of (io/checkpoint.h).
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apps/cli/tools.h"
#include "apps/run/export_fold.h"
#include "ops/graph/spectral.h"

typedef unsigned long long ull;

static const char help[] =
    "lockstep checkpoint export FILE|RUN_DIR --output OUT [--layout keras|torch|onnx]\n"
    "\n"
    "Writes the parameters of a checkpoint, or of a run's newest valid one, without what only\n"
    "training needs. OUT appears when it is whole, and takes the place of a file of that name.\n"
    "  --layout keras   safetensors, names and shapes as they are: NAME/kernel, NAME/bias (the\n"
    "                   default)\n"
    "  --layout torch   safetensors for load_state_dict: NAME.weight (out, in, ..), NAME.bias; a\n"
    "                   dense layer behind a flatten takes what PyTorch flattens\n"
    "  --layout onnx    the whole network: images (batch, height, width, channels) in, logits and\n"
    "                   probabilities out\n"
    "  --input u8|f32   of an ONNX model: bytes, which it scales as training does (the default), "
    "or\n"
    "                   floats that are bytes / 255; where model.input_type is f32 these floats "
    "alone\n"
    "  --weights averaged|trained\n"
    "                   of a run with weight_average: what evaluation takes (the default there),\n"
    "                   or the weights that training goes on from\n"
    "  --json           prints a JSON object in place of lines\n"
    "  --config CONFIG  the model, compared with the names and shapes in the file; wanted with "
    "torch\n"
    "                   and onnx where FILE does not lie in the run directory that it was saved "
    "in\n";

typedef enum export_layout { EXPORT_KERAS, EXPORT_TORCH, EXPORT_ONNX } export_layout;
static const char *const layouts[] = {"keras", "torch", "onnx"};

typedef struct exporter {
    const char *source, *output, *layout_word, *input_word, *weights_word, *config;
    export_layout layout;
    lk_onnx_input input;
    bool input_asked, json;
    bool averaged;  // averages are taken for the parameters that have one
    char digest[LK_SHA256_HEX_BYTES];  // of what is exported
    lk_open_checkpoint from;
    char run_config[LK_PATH_BYTES];  // the configuration that a run directory recorded, or ""
    lk_config model;                 // opened if a configuration is needed or named
    lk_run_spec spec;
    lk_program program;  // of the model, not fused, where there is one
    // All below: heap.
    void *tables;        // of the program
    uint32_t *channels;  // (count) lk_export_order
    lk_safetensors_tensor *tensors;  // (count) what is written
    size_t count, normalized;  // .. and of the kernels, those of spectral_normalization
    char *names;
    float *values, *scratch;  // of all tensors; of the largest, as the checkpoint has it
    struct constant {
        uint32_t layer, channels;
        const char *word;
        float value;
    } *constants;  // (constant_count) that PyTorch wants and the model has not
    size_t constant_count;
    float *constant_values;
    char *constant_names;
    void *header;  // .. of a safetensors file; an ONNX file
} exporter;

static lk_status no_memory(const exporter *e, lk_error *error) {
    return lk_fail(error, LK_UNAVAILABLE, "%s: no memory for it", e->output);
}

// --- what is exported ----------------------------------------------------------------------------

static bool is_file(const char *path, const struct stat *there) {
    struct stat here;
    return stat(path, &here) == 0 && here.st_dev == there->st_dev && here.st_ino == there->st_ino;
}

// An export may not take the place of a checkpoint.
static lk_status check_output(const exporter *e, lk_error *error) {
    struct stat source;
    uint64_t step;
    const char *slash = strrchr(e->output, '/');
    if (stat(e->from.path, &source) == 0 && is_file(e->output, &source)) {
        return lk_fail(error, LK_BAD_USAGE,
                       "--output: found %s, which would replace the checkpoint itself, wanted "
                       "another name",
                       e->output);
    }
    if (lk_checkpoint_step_of(slash ? slash + 1 : e->output, &step)) {
        return lk_fail(error, LK_BAD_USAGE,
                       "--output: found %s, the name of a checkpoint, which an export is not, "
                       "wanted another name",
                       e->output);
    }
    LK_CHECK(lk_output_check("--output", e->output, NULL, error));
    return lk_output_apart("--output", e->output, e->config, error);
}

static lk_status open_newest(exporter *e, lk_text_out *out, lk_error *error) {
    enum { TENSORS_MAX = 4096, TRIES = 10 };
    lk_checkpoint_found found;
    LK_CHECK(lk_path_join(e->run_config, e->source, "/", "config.json", error));
    lk_safetensors_entry *entries = calloc(TENSORS_MAX, sizeof *entries);
    if (!entries) return lk_fail(error, LK_UNAVAILABLE, "%s: no memory to read it", e->source);
    const lk_say say = lk_say_on(out);
    lk_status status = LK_NO_INPUT;
    // A run that goes on may remove the newest meanwhile, and has a newer one.
    for (uint32_t i = 0; i < TRIES && status == LK_NO_INPUT; i++) {
        error->status = LK_OK;
        status = lk_find_weights(&lk_file_ops_posix, e->source, entries, TENSORS_MAX, &say, &found,
                                 error);
        if (status == LK_OK) status = lk_checkpoint_enter(&e->from, found.path, true, error);
    }
    free(entries);
    return status;
}

// A checkpoint that lies where a run saved it: RUN/checkpoints/FILE, of the run that RUN recorded.
static lk_status find_run(exporter *e, lk_error *error) {
    char folder[LK_PATH_BYTES], run[LK_PATH_BYTES], path[LK_PATH_BYTES];
    char found[2 * LK_SHA256_BYTES + 1] = {0};
    const char *identity = lk_safetensors_metadata(&e->from.reader, "run_identity");
    lk_path_parent(folder, e->source);
    lk_path_parent(run, folder);
    const char *slash = strrchr(folder, '/');
    if (strcmp(slash ? slash + 1 : folder, "checkpoints") != 0) return LK_OK;
    LK_CHECK(lk_path_join(path, run, "/", "identity", error));
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return LK_OK;
    const bool same = read(file, found, sizeof found - 1) == sizeof found - 1 && identity &&
                      strcmp(found, identity) == 0;
    close(file);
    return same ? lk_path_join(e->run_config, run, "/", "config.json", error) : LK_OK;
}

static lk_status open_source(exporter *e, lk_text_out *out, lk_error *error) {
    struct stat facts;
    bool is_run = stat(e->source, &facts) == 0 && S_ISDIR(facts.st_mode);
    if (is_run) return open_newest(e, out, error);
    LK_CHECK(lk_checkpoint_enter(&e->from, e->source, true, error));
    lk_status status = find_run(e, error);
    if (status != LK_OK) lk_checkpoint_leave(&e->from);
    return status;
}

// LAYER/PARAMETER; a slot is LAYER/PARAMETER/SLOT. Names of layers have no slash.
static bool is_slot(const lk_safetensors_entry *entry) {
    const char *slash = strchr(entry->name, '/');
    return slash && strchr(slash + 1, '/');
}

static bool is_vector(const char *name) {
    const char *slash = strchr(name, '/');
    return slash && strcmp(slash + 1, LK_EXPORT_VECTOR) == 0;
}

// The average of a parameter, LAYER/PARAMETER/average, or of the first objective that keeps one,
// LAYER/PARAMETER/OBJECTIVE.average; NULL: it has none.
static const lk_safetensors_entry *find_average(const exporter *e, const char *parameter) {
    static const char end[] = "average";
    const size_t letters = strlen(parameter);
    for (size_t i = 0; i < e->from.reader.entry_count; i++) {
        const lk_safetensors_entry *entry = &e->from.reader.entries[i];
        if (strncmp(entry->name, parameter, letters) != 0 || entry->name[letters] != '/') continue;
        const char *slot = entry->name + letters + 1, *dot = strrchr(slot, '.');
        if (strcmp(dot ? dot + 1 : slot, end) == 0) return entry;
    }
    return NULL;
}

static bool has_averages(const exporter *e) {
    for (size_t i = 0; i < e->count; i++) {
        if (find_average(e, e->tensors[i].name)) return true;
    }
    return false;
}

static lk_status choose_weights(exporter *e, lk_error *error) {
    const bool has = has_averages(e);
    e->averaged = has && (!e->weights_word || strcmp(e->weights_word, "averaged") == 0);
    if (has || !e->weights_word || strcmp(e->weights_word, "trained") == 0) return LK_OK;
    return lk_fail(error, LK_BAD_USAGE,
                   "--weights averaged: %s has no averages, which a run with "
                   "optimizer.weight_average keeps; take --weights trained",
                   e->from.path);
}

static lk_status check_parameter(const exporter *e, const lk_safetensors_entry *entry,
                                 lk_error *error) {
    const char *slash = strchr(entry->name, '/');
    const bool known = slash && lk_export_is_known(slash + 1, entry->dim_count);
    if (entry->dtype == LK_SAFETENSORS_F32 && known) return LK_OK;
    return lk_fail(error, LK_BAD_DATA,
                   "%s: tensor \"%.*s\" is no kernel, bias or slot that this version knows; export "
                   "it with the version that saved it",
                   e->from.path, 80, entry->name);
}

// The parameters in file order, which is that of the layers, with room for their names and values.
static lk_status take_parameters(exporter *e, lk_error *error) {
    const lk_safetensors *reader = &e->from.reader;
    size_t bytes = sizeof(float), bytes_max = sizeof(float), name_bytes = 1;
    e->tensors = calloc(reader->entry_count + 1, sizeof *e->tensors);
    for (size_t i = 0; e->tensors && i < reader->entry_count; i++) {
        const lk_safetensors_entry *entry = &reader->entries[i];
        if (is_slot(entry)) continue;
        LK_CHECK(check_parameter(e, entry, error));
        lk_safetensors_tensor *t = &e->tensors[e->count++];
        *t = (lk_safetensors_tensor){entry->name, entry->dtype, entry->dim_count, {0}, NULL};
        memcpy(t->dims, entry->dims, sizeof t->dims);
        bytes += (size_t)(entry->end - entry->begin) * (entry->dim_count == 1 ? 2 : 1);  // biases
        bytes_max = LK_MAX(bytes_max, (size_t)(entry->end - entry->begin));
        name_bytes += strlen(entry->name) + sizeof "running_mean";
    }
    e->names = malloc(name_bytes);
    e->values = malloc(bytes);
    e->scratch = malloc(bytes_max);
    e->channels = calloc(e->count + 1, sizeof *e->channels);
    if (!e->tensors || !e->names || !e->values || !e->scratch || !e->channels) {
        return lk_fail(error, LK_UNAVAILABLE, "%s: no memory for its parameters", e->from.path);
    }
    return choose_weights(e, error);
}

// --- the model -----------------------------------------------------------------------------------

static lk_status check_tensors(const exporter *e, const lk_program *p, lk_error *error) {
    uint32_t count = p->param_count;
    for (uint32_t i = count; i < lk_entry_count(p); i++) count += lk_state_evaluated(p, i);
    bool same = count == e->count;
    for (uint32_t i = 0; same && i < count; i++) {
        const lk_tensor *wanted = &p->tensors[p->params[i].tensor];
        const lk_safetensors_tensor *found = &e->tensors[i];
        same = strcmp(wanted->name, found->name) == 0 && wanted->rank == found->dim_count;
        for (uint32_t d = 0; same && d < wanted->rank; d++) {
            same = wanted->shape[d] == found->dims[d];
        }
    }
    if (same) return LK_OK;
    return lk_fail(error, LK_BAD_CONFIG,
                   "%s: its model has other parameters than %s, wanted the configuration of the "
                   "run that saved it",
                   e->config, e->from.path);
}

// Compiles the configuration's model as a run would, to compare all names and shapes.
static lk_status build_program(exporter *e, lk_error *error) {
    const lk_layout layout = {.replicas = 1, .replicas_all = 1, .microbatch_examples = 1};
    const lk_plan_options options = {.overlay = true};
    e->spec = (lk_run_spec){.model = e->model.spec.model,
                            .augment = e->model.spec.augment,
                            .optimizer = {.type = &lk_optimizer_sgd},
                            .global_batch = 2,
                            .grain = 2,
                            .example_count = 2};
    e->tables = aligned_alloc(64, lk_round_up(lk_program_bytes(&e->spec.model), 64));
    if (!e->tables) return lk_fail(error, LK_UNAVAILABLE, "no memory for the program's tables");
    LK_CHECK(lk_program_build(&e->spec, &layout, &options, e->tables, &e->program, error));
    return check_tensors(e, &e->program, error);
}

static lk_status find_model(exporter *e, lk_error *error) {
    const bool needed = e->layout != EXPORT_KERAS;
    if (!e->config && needed && *e->run_config) e->config = e->run_config;
    if (e->config) {
        LK_CHECK(lk_config_open_model(&e->model, e->config, error));
        if (needed && e->model.spec.model.graph) {
            return lk_fail(error, LK_BAD_CONFIG,
                           "--layout %s: %s: its model has several networks, wanted one; export "
                           "it with --layout keras",
                           layouts[e->layout], e->config);
        }
        return build_program(e, error);
    }
    if (!needed) return LK_OK;
    return lk_fail(error, LK_BAD_USAGE,
                   "--layout %s: %s does not say which layers its parameters are of; name its run "
                   "directory instead of the file, or its configuration with --config CONFIG",
                   layouts[e->layout], e->from.path);
}

// --- what PyTorch flattens -----------------------------------------------------------------------

static lk_status mixed_images(const exporter *e, uint32_t layer, lk_error *error) {
    return lk_fail(
        error, LK_BAD_CONFIG,
        "--layout torch: %s: layer %s takes, or is, a sum or a row of flattened images of "
        "different shapes, which PyTorch flattens in another order; use --layout onnx or keras",
        e->from.path, e->spec.model.layers[layer].name);
}

// Of a norm that has one of the two, the other; an LSTM's second row of biases.
static void note_constant(exporter *e, const lk_export *said, uint32_t layer) {
    const lk_op *op = said->op;
    const bool first = op->param[0] != LK_NONE, second = op->param[1] != LK_NONE;
    struct constant *c = &e->constants[e->constant_count];
    if (e->spec.model.layers[layer].type == &lk_layer_lstm) {
        if (!second) return;
        *c = (struct constant){layer, op->dense.n_count, LK_TORCH_SECOND_BIAS, 0.0f};
    } else {
        const bool norm =
            op->type == &lk_op_batch_normalization || op->type == &lk_op_layer_normalization;
        if (!norm || first == second) return;
        *c = (struct constant){layer, op->norm.channels, second ? "weight" : "bias",
                               second ? 1.0f : 0.0f};
    }
    e->constant_count++;
}

// A dense layer takes rows of values; those that were images PyTorch has in another order.
static lk_status take_channels(void *context, const lk_export *said, uint32_t layer,
                               lk_error *error) {
    exporter *e = context;
    if (said->reorders) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "--layout torch: %s: layer %s reshapes flattened images, which PyTorch "
                       "flattens in another order; use --layout onnx or keras",
                       e->from.path, e->spec.model.layers[layer].name);
    }
    if (said->op) note_constant(e, said, layer);
    return lk_export_order(&e->program, said, e->channels) ? LK_OK : mixed_images(e, layer, error);
}

// Where no dense layer follows, what is flattened are the logits, and PyTorch orders them
// otherwise: (channels, h, w) for (h, w, channels). A file of weights cannot say that.
static lk_status check_flatten(exporter *e, lk_error *error) {
    const uint64_t logits = lk_program_output_floats(&e->program);
    lk_export_value last;
    e->constants = calloc(e->spec.model.layer_count, sizeof *e->constants);
    if (!e->constants) return no_memory(e, error);
    LK_CHECK(lk_export_walk(&e->program, take_channels, e, &last, error));
    if (last.times || last.cells) return LK_OK;
    if (last.channels == 0) return mixed_images(e, e->spec.model.layer_count - 1, error);
    if (last.channels == 1 || last.channels == logits) return LK_OK;
    return lk_fail(
        error, LK_BAD_USAGE,
        "--layout torch: %s: its logits are flattened images, in cells of %u channels, "
        "which PyTorch flattens in another order; use --layout onnx or keras, or end the "
        "model with a dense layer",
        e->from.path, last.channels);
}

// --- the layout ----------------------------------------------------------------------------------

// from   (positions, channels, outputs)
// to     (outputs, channels, positions)
static void turn(const float *from, float *to, uint64_t positions, uint64_t channels,
                 uint64_t outputs) {
    for (uint64_t o = 0; o < outputs; o++) {
        for (uint64_t c = 0; c < channels; c++) {
            for (uint64_t p = 0; p < positions; p++) {
                *to++ = from[(p * channels + c) * outputs + o];
            }
        }
    }
}

static const lk_layer_type *type_of(const exporter *e, const lk_safetensors_tensor *t) {
    return lk_export_layer_type(&e->spec.model, t->name);
}

static void turn_conv(exporter *e, lk_safetensors_tensor *t) {
    uint64_t *d = t->dims, h = d[0], w = d[1], in = d[2], out = d[3];
    if (type_of(e, t) == &lk_layer_depthwise_conv2d) out *= in, in = 1;
    turn(e->scratch, t->data, h * w, in, out);
    d[0] = out;
    d[1] = in;
    d[2] = h;
    d[3] = w;
}

static void turn_dense(exporter *e, lk_safetensors_tensor *t, uint64_t channels) {
    const uint64_t in = t->dims[0], out = t->dims[1];
    lk_assert(channels && in % channels == 0);
    turn(e->scratch, t->data, in / channels, channels, out);
    t->dims[0] = out;
    t->dims[1] = in;
}

// For ONNX: kernels (1, gates, in), biases (1, 2 * gates) with the state's as the second row, of an
// LSTM zeros; its gates are i f c o here and i o f c there, a GRU's z r h in both.
static void turn_recurrent(exporter *e, lk_safetensors_tensor *t, const lk_layer_type *type) {
    static const uint32_t lstm[LK_LSTM_GATES] = {0, 3, 1, 2}, gru[LK_GRU_GATES] = {0, 1, 2};
    const bool is_lstm = type == &lk_layer_lstm;
    const uint32_t *gates = is_lstm ? lstm : gru;
    const uint64_t in = t->dim_count == 2 ? t->dims[0] : 1, all = t->dims[t->dim_count - 1];
    const uint64_t units = all / (is_lstm ? LK_LSTM_GATES : LK_GRU_GATES);
    float *to = t->data;
    for (uint64_t o = 0; o < all; o++) {
        const uint64_t from = gates[o / units] * units + o % units;
        for (uint64_t k = 0; k < in; k++) *to++ = e->scratch[k * all + from];
    }
    if (t->dim_count == 1) memset(to, 0, all * sizeof *to);
    t->dims[1] = t->dim_count == 1 ? 2 * all : all;
    t->dims[2] = in;
    t->dims[0] = 1;
    t->dim_count++;
}

// A GRU's for ONNX: behind its other biases, which come before the recurrent kernel.
static void join_biases(exporter *e, size_t number, size_t bytes) {
    const lk_safetensors_tensor *biases = &e->tensors[number - 2];
    lk_assert(number >= 2 && type_of(e, biases) == &lk_layer_gru && biases->dim_count == 2);
    memcpy((float *)biases->data + bytes / sizeof(float), e->scratch, bytes);
}

// NAME/kernel -> NAME.weight, NAME/bias -> NAME.bias. Returns what follows it.
static char *rename_tensor(const exporter *e, lk_safetensors_tensor *t, char *name) {
    const char *slash = strchr(t->name, '/');
    const size_t before = (size_t)(slash - t->name);
    const char *part = lk_export_torch_word(type_of(e, t), slash + 1);
    lk_assert(part != NULL);
    memcpy(name, t->name, before);
    name[before] = '.';
    memcpy(name + before + 1, part, strlen(part) + 1);
    t->name = name;
    return name + before + 1 + strlen(part) + 1;
}

static void arrange(exporter *e, size_t number, size_t bytes) {
    lk_safetensors_tensor *t = &e->tensors[number];
    const bool torch = e->layout == EXPORT_TORCH;
    const lk_layer_type *type = e->layout == EXPORT_KERAS ? NULL : type_of(e, t);
    if (e->layout != EXPORT_KERAS && t->dim_count == 4) {
        turn_conv(e, t);
    } else if (e->layout == EXPORT_ONNX && lk_export_joins_biases(type, strchr(t->name, '/') + 1)) {
        join_biases(e, number, bytes);
    } else if (e->layout == EXPORT_ONNX && (type == &lk_layer_lstm || type == &lk_layer_gru)) {
        turn_recurrent(e, t, type);
    } else if (torch && t->dim_count == 2 && e->channels[number]) {
        turn_dense(e, t, e->channels[number]);
    } else if (torch && e->channels[number]) {
        turn(e->scratch, t->data, t->dims[0] / e->channels[number], e->channels[number], 1);
    } else {
        memcpy(t->data, e->scratch, bytes);
    }
    if (torch) lk_export_swap_gates(type, bytes / sizeof(float), t->data);
}

// The vector of a kernel, LAYER/kernel, that is normalized; NULL: it is not.
static const lk_safetensors_entry *find_vector(const exporter *e, const char *parameter) {
    char name[LK_NAME_BYTES];
    const size_t letters = strcspn(parameter, "/");
    if (strcmp(parameter + letters, "/kernel") != 0 || letters >= LK_NAME_BYTES) return NULL;
    lk_format(name, sizeof name, "%.*s/" LK_EXPORT_VECTOR, (int)letters, parameter);
    return lk_safetensors_find(&e->from.reader, name);
}

// The kernel in e->scratch becomes what its layer takes of it.
static lk_status normalize(exporter *e, const lk_safetensors_tensor *t, size_t bytes,
                           lk_error *error) {
    const lk_safetensors_entry *vector = find_vector(e, t->name);
    const uint64_t count = bytes / sizeof(float), columns = t->dims[t->dim_count - 1];
    if (!vector) return LK_OK;
    if (vector->dim_count != 1 || vector->dims[0] != columns) {
        return lk_fail(error, LK_BAD_DATA,
                       "%s: tensor \"%.*s\" has %llu values, wanted %llu, as many as %s has "
                       "columns",
                       e->from.path, 80, vector->name, (ull)vector->dims[0], (ull)columns, t->name);
    }
    const uint64_t vectors = lk_round_up(columns, 16), kernel = lk_round_up(count, 16);
    float *memory =
        aligned_alloc(64, lk_round_up((2 * kernel + vectors + lk_spectral_floats(count, columns)) *
                                          sizeof *memory,
                                      64));
    if (!memory) return no_memory(e, error);
    float *w = memory, *u = w + kernel, *normalized = u + vectors;
    memcpy(w, e->scratch, bytes);
    memcpy(u, lk_checkpoint_values(&e->from, vector), columns * sizeof *u);
    const lk_spectral s = lk_spectral_of(count, columns, w, u, normalized, normalized + kernel);
    const bool bad = lk_spectral_make(&lk_kernels_reference, &s);
    memcpy(e->scratch, normalized, bytes);
    free(memory);
    e->normalized++;
    return !bad ? LK_OK
                : lk_fail(error, LK_NOT_FINITE, "%s: %s divided by its norm is not finite",
                          e->from.path, t->name);
}

// What other frameworks have not, once kernels are what they do.
static void drop_vectors(exporter *e) {
    size_t kept = 0;
    for (size_t i = 0; i < e->count; i++) {
        if (!is_vector(e->tensors[i].name)) e->tensors[kept++] = e->tensors[i];
    }
    e->count = kept;
}

static lk_status read_parameters(exporter *e, lk_error *error) {
    const lk_safetensors *reader = &e->from.reader;
    const char *recorded = lk_safetensors_metadata(reader, "digest");
    uint8_t digest[LK_SHA256_BYTES];
    float *next = e->values;
    char *name = e->names;
    lk_sha256 hash;
    lk_sha256_start(&hash);
    for (size_t i = 0; i < e->count; i++) {
        lk_safetensors_tensor *t = &e->tensors[i];
        const lk_safetensors_entry *average = e->averaged ? find_average(e, t->name) : NULL;
        const lk_safetensors_entry *entry =
            average ? average : lk_safetensors_find(reader, t->name);
        size_t bytes = (size_t)(entry->end - entry->begin);
        memcpy(e->scratch, lk_checkpoint_values(&e->from, entry), bytes);
        LK_CHECK(normalize(e, t, bytes, error));
        if (!is_vector(t->name)) lk_sha256_add(&hash, e->scratch, bytes);
        t->data = next;
        next += bytes / sizeof *next * (t->dim_count == 1 ? 2 : 1);
        arrange(e, i, bytes);
        if (e->layout == EXPORT_TORCH && !is_vector(t->name)) name = rename_tensor(e, t, name);
    }
    drop_vectors(e);
    lk_sha256_finish(&hash, digest);
    lk_hex(digest, LK_SHA256_BYTES, e->digest);
    const bool same = !e->averaged && e->normalized == 0;
    if (same && recorded) lk_format(e->digest, sizeof e->digest, "%s", recorded);
    return LK_OK;
}

// Behind the others, in a table of tensors that has room for them.
static lk_status add_constants(exporter *e, lk_error *error) {
    enum { NAME_BYTES = LK_NAME_BYTES + sizeof "." LK_TORCH_SECOND_BIAS };
    size_t floats = 1;
    for (size_t i = 0; i < e->constant_count; i++) floats += e->constants[i].channels;
    lk_safetensors_tensor *tensors =
        realloc(e->tensors, (e->count + e->constant_count + 1) * sizeof *tensors);
    if (tensors) e->tensors = tensors;
    e->constant_values = malloc(floats * sizeof(float));
    e->constant_names = malloc(e->constant_count * NAME_BYTES + 1);
    if (!tensors || !e->constant_values || !e->constant_names) return no_memory(e, error);
    float *next = e->constant_values;
    for (size_t i = 0; i < e->constant_count; i++) {
        const struct constant *c = &e->constants[i];
        char *name = e->constant_names + i * NAME_BYTES;
        lk_format(name, NAME_BYTES, "%s.%s", e->spec.model.layers[c->layer].name, c->word);
        e->tensors[e->count++] =
            (lk_safetensors_tensor){name, LK_SAFETENSORS_F32, 1, {c->channels}, next};
        for (uint32_t k = 0; k < c->channels; k++) *next++ = c->value;
    }
    return LK_OK;
}

// --- the file ------------------------------------------------------------------------------------

enum { PAIRS_MAX = 9 };

// What every file says of where it is from: `pairs` has room for all; returns how many.
static size_t take_metadata(const exporter *e, lk_safetensors_pair pairs[PAIRS_MAX]) {
    static const char *const formats[] = {"np", "pt", "onnx"};
    static const char *const kept[] = {"name", "step", "run_identity", "digest",
                                       "lockstep_version"};
    size_t count = 0;
    pairs[count++] = (lk_safetensors_pair){"format", formats[e->layout]};
    pairs[count++] = (lk_safetensors_pair){"layout", layouts[e->layout]};
    for (uint32_t i = 0; i < LK_COUNT(kept); i++) {
        const bool digest = strcmp(kept[i], "digest") == 0;
        const char *value =
            digest ? e->digest : lk_safetensors_metadata(&e->from.reader, kept[i]);
        if (value) pairs[count++] = (lk_safetensors_pair){kept[i], value};
    }
    if (e->averaged) pairs[count++] = (lk_safetensors_pair){"weights", "averaged"};
    if (e->normalized) pairs[count++] = (lk_safetensors_pair){"spectral_normalization", "applied"};
    return count;
}

static lk_status write_safetensors(exporter *e, uint64_t *bytes, lk_error *error) {
    lk_safetensors_pair pairs[PAIRS_MAX];
    const lk_safetensors_content content = {pairs, take_metadata(e, pairs), e->tensors, e->count};
    size_t header_bytes;
    LK_CHECK(lk_safetensors_header(&content, NULL, 0, &header_bytes, bytes, error));
    e->header = malloc(header_bytes);
    if (!e->header) return no_memory(e, error);
    LK_CHECK(lk_safetensors_header(&content, e->header, header_bytes, &header_bytes, NULL, error));
    *bytes += header_bytes;
    return lk_safetensors_save(&content, e->header, header_bytes, &lk_file_ops_posix, e->output,
                               error);
}

static lk_status format_onnx(exporter *e, const lk_onnx_fold *fold, size_t *used, lk_error *error) {
    lk_safetensors_pair pairs[PAIRS_MAX];
    const lk_onnx_model model = {.program = &e->program,
                                 .tensors = e->tensors,
                                 .fold = fold,
                                 .input = e->input,
                                 .metadata = pairs,
                                 .metadata_count = take_metadata(e, pairs)};
    LK_CHECK(lk_onnx_format(&model, NULL, 0, used, error));
    e->header = malloc(*used);
    if (!e->header) return no_memory(e, error);
    return lk_onnx_format(&model, e->header, *used, used, error);
}

// A model of floats takes floats.
static lk_status choose_input(exporter *e, lk_error *error) {
    if (e->spec.model.input_type != LK_INPUT_F32) return LK_OK;
    if (e->input_asked && e->input != LK_ONNX_F32) {
        return lk_fail(error, LK_BAD_USAGE,
                       "--input: found \"u8\", wanted \"f32\": its model takes floats "
                       "(model.input_type)");
    }
    e->input = LK_ONNX_F32;
    e->input_word = "f32";
    return LK_OK;
}

static lk_status write_onnx(exporter *e, uint64_t *bytes, lk_error *error) {
    lk_onnx_fold fold;
    size_t used;
    LK_CHECK(choose_input(e, error));
    LK_CHECK(lk_onnx_fold_open(&fold, &e->program, e->input, e->tensors, e->count, error));
    const lk_status status = format_onnx(e, &fold, &used, error);
    lk_onnx_fold_close(&fold);
    LK_CHECK(status);
    *bytes = used;
    return lk_file_write_beside(&lk_file_ops_posix, e->output, e->header, used, error);
}

static lk_status say_output(const exporter *e, uint64_t bytes, lk_text_out *out, lk_error *error) {
    const bool onnx = e->layout == EXPORT_ONNX;
    const char *digest = e->digest;
    if (e->json) {
        json_t *said = json_pack(
            "{s:o, s:s, s:I, s:I, s:I, s:o, s:s?}", "file", lk_json_text(e->output), "layout",
            layouts[e->layout], "tensors", (json_int_t)e->count, "bytes", (json_int_t)bytes, "step",
            (json_int_t)e->from.step, "from", lk_json_text(e->from.path), "digest", digest);
        if (said && onnx) json_object_set_new(said, "input", json_string(e->input_word));
        if (said && e->averaged) json_object_set_new(said, "weights", json_string("averaged"));
        if (said && e->normalized) {
            json_object_set_new(said, "normalized", json_integer((json_int_t)e->normalized));
        }
        return lk_print_json(said, error);
    }
    lk_text_line(out, "%sweights of step %llu from %s", e->averaged ? "averaged " : "",
                 (ull)e->from.step, e->from.path);
    lk_text_line(out, "digest %s", digest);
    if (e->normalized) {
        lk_text_line(out, "kernels divided by their norms (spectral_normalization): %zu",
                     e->normalized);
    }
    lk_text_line(out, "exported %s, layout %s%s%s: %zu tensors, %llu bytes", e->output,
                 layouts[e->layout], onnx ? ", images of " : "", onnx ? e->input_word : "",
                 e->count, (ull)bytes);
    return lk_text_check(out, "standard output", error);
}

static lk_status export_opened(exporter *e, lk_text_out *out, lk_error *error) {
    uint64_t bytes;
    LK_CHECK(check_output(e, error));
    LK_CHECK(take_parameters(e, error));
    LK_CHECK(find_model(e, error));
    if (e->layout == EXPORT_TORCH) LK_CHECK(check_flatten(e, error));
    LK_CHECK(read_parameters(e, error));
    if (e->layout == EXPORT_TORCH) LK_CHECK(add_constants(e, error));
    LK_CHECK(e->layout == EXPORT_ONNX ? write_onnx(e, &bytes, error)
                                      : write_safetensors(e, &bytes, error));
    return say_output(e, bytes, out, error);
}

// Which of `words` a word is; NULL is the first.
static lk_status take_word(const char *option, const char **word, const char *const *words,
                           uint32_t count, const char *wanted, uint32_t *number, lk_error *error) {
    if (!*word) *word = words[0];
    for (*number = 0; *number < count; ++*number) {
        if (strcmp(*word, words[*number]) == 0) return LK_OK;
    }
    return lk_fail(error, LK_BAD_USAGE, "%s: found \"%s\", wanted %s", option, *word, wanted);
}

static lk_status take_words(exporter *e, lk_error *error) {
    static const char *const inputs[] = {"u8", "f32"}, *const kinds[] = {"averaged", "trained"};
    uint32_t layout, input, kind;
    const char *weights = e->weights_word;
    e->input_asked = e->input_word != NULL;
    LK_CHECK(take_word("--layout", &e->layout_word, layouts, LK_COUNT(layouts),
                       "\"keras\", \"torch\" or \"onnx\"", &layout, error));
    LK_CHECK(take_word("--input", &e->input_word, inputs, LK_COUNT(inputs), "\"u8\" or \"f32\"",
                       &input, error));
    LK_CHECK(take_word("--weights", &weights, kinds, LK_COUNT(kinds),
                       "\"averaged\" or \"trained\"", &kind, error));
    e->layout = (export_layout)layout;
    e->input = (lk_onnx_input)input;
    if (!e->input_asked || e->layout == EXPORT_ONNX) return LK_OK;
    return lk_fail(error, LK_BAD_USAGE,
                   "--input: weights alone take no images, wanted it with --layout onnx");
}

static void close_exporter(exporter *e) {
    lk_config_close(&e->model);
    free(e->tables);
    free(e->channels);
    free(e->constants);
    free(e->constant_values);
    free(e->constant_names);
    free(e->tensors);
    free(e->names);
    free(e->values);
    free(e->scratch);
    free(e->header);
    lk_checkpoint_leave(&e->from);
}

lk_status lk_command_checkpoint_export(int argc, char **argv, lk_error *error) {
    exporter e = {0};
    lk_text_out out;
    const lk_argument options[] = {{.name = "output", .text = &e.output},
                                   {.name = "layout", .text = &e.layout_word},
                                   {.name = "input", .text = &e.input_word},
                                   {.name = "weights", .text = &e.weights_word},
                                   {.name = "config", .text = &e.config}};
    lk_arguments a = {.help = help,
                      .options = options,
                      .option_count = LK_COUNT(options),
                      .word_count = 1,
                      .json = &e.json};
    LK_CHECK(lk_parse_arguments(argc, argv, &a, error));
    if (a.helped) return LK_OK;
    if (!e.output) return lk_fail(error, LK_BAD_USAGE, "export: wanted --output OUT");
    e.source = a.words[0];
    LK_CHECK(take_words(&e, error));
    lk_text_open(&out, e.json ? open("/dev/null", O_WRONLY | O_CLOEXEC) : STDOUT_FILENO);
    LK_CHECK(open_source(&e, &out, error));
    lk_status status = export_opened(&e, &out, error);
    close_exporter(&e);
    return status;
}
