// checkpoint_export.c - lockstep checkpoint export: a checkpoint's parameters as a safetensors file
// for other programs, in the layout of Keras or of PyTorch.
//
// A checkpoint names and shapes parameters as Keras does; PyTorch wants
//
//     NAME/kernel  conv (h, w, in, out)   ->  NAME.weight  (out, in, h, w)
//     NAME/kernel  dense (in, out)        ->  NAME.weight  (out, in)
//     NAME/bias    (out)                  ->  NAME.bias
//
// and flattens (channels, h, w) where Keras flattens (h, w, channels): the inputs of the first
// dense layer change places, too. Both kernels are then the same turn, of (position, channel,
// output) into (output, channel, position); other dense layers have one position. The channels at
// the flatten are the last convolution's; without one they are the image's, which only the
// configuration knows.
//
// What is taken for parameters is what the digest that training recorded is of (io/checkpoint.h).
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apps/cli/tools.h"

typedef unsigned long long ull;

static const char help[] =
    "lockstep checkpoint export FILE|RUN_DIR --output OUT.safetensors [--layout keras|torch]\n"
    "\n"
    "Writes the parameters of a checkpoint, or of a run's newest valid one, without what only\n"
    "training needs. OUT appears when it is whole, and takes the place of a file of that name.\n"
    "  --layout keras   names and shapes as they are: NAME/kernel, NAME/bias (the default)\n"
    "  --layout torch   for load_state_dict: NAME.weight (out, in, ..), NAME.bias; the first\n"
    "                   dense layer takes what PyTorch flattens\n"
    "  --json           prints a JSON object in place of lines\n"
    "  --config CONFIG  the model, checked against the file; wanted with --layout torch, a FILE\n"
    "                   and a model without convolutions or without dense layers, which says\n"
    "                   nowhere else what it flattens\n";

typedef struct exporter {
    const char *source, *output, *layout, *config;
    bool torch, json;
    lk_open_checkpoint from;
    char run_config[LK_PATH_BYTES];  // the configuration that a run directory recorded, or ""
    uint64_t channels;               // of the images at the layer looked at, 0: not known
    bool flat;                       // ... there are none any more: a dense layer came before
    // All below: heap.
    lk_safetensors_tensor *tensors;  // (count) what is written
    size_t count;
    char *names;
    float *values, *scratch;  // of all tensors; of the largest, as the checkpoint has it
    void *header;
} exporter;

// --- what is exported ----------------------------------------------------------------------------

static bool is_file(const char *path, const struct stat *there) {
    struct stat here;
    return stat(path, &here) == 0 && here.st_dev == there->st_dev && here.st_ino == there->st_ino;
}

// Neither the export nor its temporary file may take the place of a checkpoint.
static lk_status check_output(const exporter *e, lk_error *error) {
    char temporary[LK_PATH_BYTES];
    struct stat source;
    uint64_t step;
    const char *slash = strrchr(e->output, '/');
    LK_CHECK(lk_check_place(e->output, error));
    LK_CHECK(lk_path_join(temporary, e->output, "", ".tmp", error));
    if (stat(e->from.path, &source) == 0 &&
        (is_file(e->output, &source) || is_file(temporary, &source))) {
        return lk_fail(error, LK_BAD_USAGE,
                       "--output: found %s, which would replace the checkpoint itself, wanted "
                       "another name",
                       e->output);
    }
    if (!lk_checkpoint_step_of(slash ? slash + 1 : e->output, &step)) return LK_OK;
    return lk_fail(error, LK_BAD_USAGE,
                   "--output: found %s, the name of a checkpoint, which an export is not, wanted "
                   "another name",
                   e->output);
}

static lk_status open_newest(exporter *e, lk_text_out *out, lk_error *error) {
    enum { TENSORS_MAX = 4096 };
    lk_checkpoint_found found;
    LK_CHECK(lk_path_join(e->run_config, e->source, "/", "config.json", error));
    lk_safetensors_entry *entries = calloc(TENSORS_MAX, sizeof *entries);
    if (!entries) return lk_fail(error, LK_UNAVAILABLE, "%s: no memory to read it", e->source);
    const lk_say say = lk_say_on(out);
    lk_status status = lk_find_weights(&lk_file_ops_posix, e->source, entries, TENSORS_MAX, &say,
                                       &found, error);
    free(entries);
    return status == LK_OK ? lk_checkpoint_enter(&e->from, found.path, true, error) : status;
}

static lk_status open_source(exporter *e, lk_text_out *out, lk_error *error) {
    struct stat facts;
    bool is_run = stat(e->source, &facts) == 0 && S_ISDIR(facts.st_mode);
    return is_run ? open_newest(e, out, error)
                  : lk_checkpoint_enter(&e->from, e->source, true, error);
}

// LAYER/PARAMETER; a slot is LAYER/PARAMETER/SLOT. Names of layers have no slash.
static bool is_slot(const lk_safetensors_entry *entry) {
    const char *slash = strchr(entry->name, '/');
    return slash && strchr(slash + 1, '/');
}

static bool is_kernel(const lk_safetensors_tensor *t) { return t->dim_count != 1; }

static lk_status check_parameter(const exporter *e, const lk_safetensors_entry *entry,
                                 lk_error *error) {
    const char *slash = strchr(entry->name, '/'), *part = slash ? slash : "";
    unsigned rank = entry->dim_count;
    bool kernel = strcmp(part, "/kernel") == 0 && (rank == 2 || rank == 4);
    bool bias = strcmp(part, "/bias") == 0 && rank == 1;
    if (entry->dtype == LK_SAFETENSORS_F32 && (kernel || bias)) return LK_OK;
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
        bytes += (size_t)(entry->end - entry->begin);
        bytes_max = LK_MAX(bytes_max, (size_t)(entry->end - entry->begin));
        name_bytes += strlen(entry->name) + 1;
    }
    e->names = malloc(name_bytes);
    e->values = malloc(bytes);
    e->scratch = malloc(bytes_max);
    if (e->tensors && e->names && e->values && e->scratch) return LK_OK;
    return lk_fail(error, LK_UNAVAILABLE, "%s: no memory for its parameters", e->from.path);
}

// --- the model -----------------------------------------------------------------------------------

static lk_status check_tensors(const exporter *e, const lk_program *p, lk_error *error) {
    bool same = p->param_count == e->count;
    for (uint32_t i = 0; same && i < p->param_count; i++) {
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

// Where no dense layer follows, what is flattened are the logits, and PyTorch orders them
// otherwise: (channels, h, w) for (h, w, channels). A file of weights cannot say that.
static lk_status check_flatten(const exporter *e, const lk_program *p, lk_error *error) {
    uint64_t channels = p->spec->model.in_c;
    for (size_t i = 0; i < e->count; i++) {
        const lk_safetensors_tensor *t = &e->tensors[i];
        if (!is_kernel(t)) continue;
        if (t->dim_count == 2) return LK_OK;
        channels = t->dims[3];
    }
    const uint64_t logits = p->spec->model.classes;
    if (!e->torch || channels == 1 || channels == logits) return LK_OK;
    return lk_fail(
        error, LK_BAD_USAGE,
        "--layout torch: %s: its logits are the flattened %llu cells of %llu channels of "
        "a convolution, which PyTorch flattens in another order; use --layout keras, or "
        "end the model with a dense layer",
        e->from.path, (ull)(logits / channels), (ull)channels);
}

// Compiles the configuration's model as a run would, to compare all names and shapes.
static lk_status check_model(const exporter *e, const lk_model *model, lk_error *error) {
    const lk_run_spec spec = {.model = *model,
                              .optimizer = {.type = &lk_optimizer_sgd},
                              .global_batch = 1,
                              .grain = 1,
                              .example_count = 1};
    const lk_layout layout = {.replicas = 1, .replicas_all = 1, .wave_examples = 1};
    const lk_plan_options options = {.overlay = true};
    lk_program program;
    void *tables = aligned_alloc(64, lk_round_up(lk_program_bytes(model), 64));
    if (!tables) return lk_fail(error, LK_UNAVAILABLE, "no memory for the program's tables");
    lk_status status = lk_program_build(&spec, &layout, &options, tables, &program, error);
    if (status == LK_OK) status = check_tensors(e, &program, error);
    if (status == LK_OK) status = check_flatten(e, &program, error);
    free(tables);
    return status;
}

// PyTorch's flatten is turned for the convolution before it, in the order of layers: a graph that
// has both convolutions and dense layers may flatten something else.
static lk_status check_chain(const exporter *e, const lk_model *model, lk_error *error) {
    bool conv = false, dense = false;
    for (size_t i = 0; i < e->count; i++) {
        if (!is_kernel(&e->tensors[i])) continue;
        conv = conv || e->tensors[i].dim_count == 4;
        dense = dense || e->tensors[i].dim_count == 2;
    }
    for (uint32_t i = 0; e->torch && conv && dense && i < model->layer_count; i++) {
        const lk_layer *l = &model->layers[i];
        const bool sum = l->type == &lk_layer_add;
        if (l->input_count == 0 || sum || l->inputs[0] == i) continue;
        return lk_fail(error, LK_BAD_CONFIG,
                       "--layout torch: layer %s takes another layer than the one before it, and "
                       "what the dense layers flatten is not known then; export it with "
                       "--layout keras",
                       l->name);
    }
    return LK_OK;
}

static lk_status read_model(exporter *e, lk_error *error) {
    lk_config config;
    lk_status status = lk_config_open_model(&config, e->config, error);
    if (status == LK_OK) status = check_model(e, &config.spec.model, error);
    if (status == LK_OK) status = check_chain(e, &config.spec.model, error);
    e->channels = config.spec.model.in_c;
    lk_config_close(&config);
    return status;
}

// Is the file silent about what is flattened: of images, or into logits without a dense layer?
static bool needs_model(const exporter *e) {
    bool conv = false, dense = false;
    for (size_t i = 0; i < e->count; i++) {
        if (!is_kernel(&e->tensors[i])) continue;
        conv |= e->tensors[i].dim_count == 4;
        dense |= e->tensors[i].dim_count == 2;
    }
    return e->torch && !(conv && dense);
}

static lk_status find_model(exporter *e, lk_error *error) {
    bool needed = needs_model(e);
    if (!e->config && (needed || e->torch) && *e->run_config) e->config = e->run_config;
    if (e->config) return read_model(e, error);
    if (!needed) return LK_OK;
    return lk_fail(error, LK_BAD_USAGE,
                   "--layout torch: %s does not say how many channels %s; name its run directory "
                   "instead of the file, or its configuration with --config CONFIG",
                   e->from.path,
                   e->count && e->tensors[0].dim_count == 4
                       ? "and cells are flattened into its logits"
                       : "the images have that its first dense layer flattens");
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

static void turn_conv(exporter *e, lk_safetensors_tensor *t) {
    uint64_t *d = t->dims, h = d[0], w = d[1], in = d[2], out = d[3];
    turn(e->scratch, t->data, h * w, in, out);
    d[0] = out;
    d[1] = in;
    d[2] = h;
    d[3] = w;
    e->channels = out;
}

static lk_status turn_dense(exporter *e, lk_safetensors_tensor *t, lk_error *error) {
    uint64_t in = t->dims[0], out = t->dims[1], channels = e->flat ? in : e->channels;
    if (channels == 0 || in % channels != 0) {
        return lk_fail(error, LK_BAD_DATA,
                       "%s: tensor \"%.*s\" takes %llu values, which %llu channels do not divide",
                       e->from.path, 80, t->name, (ull)in, (ull)channels);
    }
    turn(e->scratch, t->data, in / channels, channels, out);
    t->dims[0] = out;
    t->dims[1] = in;
    e->flat = true;
    return LK_OK;
}

// NAME/kernel -> NAME.weight, NAME/bias -> NAME.bias: as many letters. Returns what follows it.
static char *rename_tensor(lk_safetensors_tensor *t, char *name) {
    size_t bytes = strlen(t->name) + 1;
    memcpy(name, t->name, bytes);
    char *slash = strchr(name, '/');
    *slash = '.';
    if (is_kernel(t)) memcpy(slash + 1, "weight", sizeof "weight");
    t->name = name;
    return name + bytes;
}

static lk_status arrange(exporter *e, lk_safetensors_tensor *t, size_t bytes, lk_error *error) {
    if (!e->torch || !is_kernel(t)) {
        memcpy(t->data, e->scratch, bytes);
    } else if (t->dim_count == 4) {
        turn_conv(e, t);
    } else {
        return turn_dense(e, t, error);
    }
    return LK_OK;
}

static lk_status read_parameters(exporter *e, lk_error *error) {
    const lk_safetensors *reader = &e->from.reader;
    float *next = e->values;
    char *name = e->names;
    for (size_t i = 0; i < e->count; i++) {
        lk_safetensors_tensor *t = &e->tensors[i];
        const lk_safetensors_entry *entry = lk_safetensors_find(reader, t->name);
        size_t bytes = (size_t)(entry->end - entry->begin);
        memcpy(e->scratch, lk_checkpoint_values(&e->from, entry), bytes);
        t->data = next;
        next += bytes / sizeof *next;
        LK_CHECK(arrange(e, t, bytes, error));
        if (e->torch) name = rename_tensor(t, name);
    }
    return LK_OK;
}

// --- the file ------------------------------------------------------------------------------------

static lk_status write_output(exporter *e, lk_text_out *out, lk_error *error) {
    static const char *const kept[] = {"name", "step", "run_identity", "digest",
                                       "lockstep_version"};
    lk_safetensors_pair pairs[2 + LK_COUNT(kept)] = {{"format", e->torch ? "pt" : "np"},
                                                     {"layout", e->layout}};
    lk_safetensors_content content = {pairs, 2, e->tensors, e->count};
    for (uint32_t i = 0; i < LK_COUNT(kept); i++) {
        const char *value = lk_safetensors_metadata(&e->from.reader, kept[i]);
        if (value) pairs[content.metadata_count++] = (lk_safetensors_pair){kept[i], value};
    }
    size_t header_bytes;
    uint64_t data_bytes;
    LK_CHECK(lk_safetensors_header(&content, NULL, 0, &header_bytes, &data_bytes, error));
    e->header = malloc(header_bytes);
    if (!e->header) return lk_fail(error, LK_UNAVAILABLE, "%s: no memory for it", e->output);
    LK_CHECK(lk_safetensors_header(&content, e->header, header_bytes, &header_bytes, NULL, error));
    LK_CHECK(lk_safetensors_save(&content, e->header, header_bytes, &lk_file_ops_posix, e->output,
                                 error));
    if (e->json) {
        return lk_print_json(
            json_pack("{s:o, s:s, s:I, s:I, s:I, s:o, s:s?}", "file", lk_json_text(e->output),
                      "layout", e->layout, "tensors", (json_int_t)e->count, "bytes",
                      (json_int_t)(header_bytes + data_bytes), "step", (json_int_t)e->from.step,
                      "from", lk_json_text(e->from.path), "digest",
                      lk_safetensors_metadata(&e->from.reader, "digest")),
            error);
    }
    lk_text_line(out, "weights of step %llu from %s", (ull)e->from.step, e->from.path);
    lk_text_line(out, "digest %s", lk_safetensors_metadata(&e->from.reader, "digest"));
    lk_text_line(out, "exported %s, layout %s: %zu tensors, %llu bytes", e->output, e->layout,
                 e->count, (ull)(header_bytes + data_bytes));
    return lk_text_check(out, "standard output", error);
}

static lk_status export_opened(exporter *e, lk_text_out *out, lk_error *error) {
    LK_CHECK(check_output(e, error));
    LK_CHECK(take_parameters(e, error));
    LK_CHECK(find_model(e, error));
    LK_CHECK(read_parameters(e, error));
    return write_output(e, out, error);
}

static lk_status take_layout(exporter *e, lk_error *error) {
    static const char *const layouts[] = {"keras", "torch"};
    if (!e->layout) e->layout = layouts[0];
    e->torch = strcmp(e->layout, layouts[1]) == 0;
    if (e->torch || strcmp(e->layout, layouts[0]) == 0) return LK_OK;
    return lk_fail(error, LK_BAD_USAGE, "--layout: found \"%s\", wanted \"keras\" or \"torch\"",
                   e->layout);
}

lk_status lk_command_checkpoint_export(int argc, char **argv, lk_error *error) {
    exporter e = {0};
    lk_text_out out;
    const lk_argument options[] = {{.name = "output", .text = &e.output},
                                   {.name = "layout", .text = &e.layout},
                                   {.name = "config", .text = &e.config}};
    lk_arguments a = {.help = help,
                      .options = options,
                      .option_count = LK_COUNT(options),
                      .word_count = 1,
                      .json = &e.json};
    LK_CHECK(lk_parse_arguments(argc, argv, &a, error));
    if (a.helped) return LK_OK;
    if (!e.output) {
        return lk_fail(error, LK_BAD_USAGE, "export: wanted --output OUT.safetensors");
    }
    e.source = a.words[0];
    LK_CHECK(take_layout(&e, error));
    lk_text_open(&out, e.json ? open("/dev/null", O_WRONLY | O_CLOEXEC) : STDOUT_FILENO);
    LK_CHECK(open_source(&e, &out, error));
    lk_status status = export_opened(&e, &out, error);
    free(e.tensors);
    free(e.names);
    free(e.values);
    free(e.scratch);
    free(e.header);
    lk_checkpoint_leave(&e.from);
    return status;
}
