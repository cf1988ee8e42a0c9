// init.c - see init.h. Names are looked up, shapes compared and values looked at one tensor at a
// time; the hash is of (number of the parameter, its fp32 elements as the run has them).
#include "apps/run/init.h"

#include <stdlib.h>
#include <string.h>

#include "apps/run/export.h"
#include "io/safetensors.h"
#include "io/text.h"
#include "ops/graph/average.h"

enum { ENTRIES_MAX = 8192 };

typedef struct taking {
    lk_run *run;
    bool store;
    lk_safetensors reader;
    lk_safetensors_entry *entries;  // all below: heap
    float *values, *turned;         // of the largest parameter, as the file has it; as the run has
    const float *taken;             // .. one of the two
    uint32_t *channels;             // (entries of params) of layout torch: of what was flattened
    bool knows_channels;
    const lk_program *program;  // .. while they are found: the model's, not fused
    lk_sha256 hash;
    lk_error *error;
} taking;

// --- lists of names ------------------------------------------------------------------------------

// The next of "a,b,c"; false after the last. An empty one is one, which no layer is called.
static bool next_item(const char **at, const char **item, size_t *letters) {
    if (!**at) return false;
    *item = *at;
    *letters = strcspn(*at, ",");
    *at += *letters;
    *at += **at == ',';
    return true;
}

static bool is_layer(const lk_run *run, const char *name, size_t letters) {
    const lk_program *p = &run->program;
    for (uint32_t i = 0; i < lk_entry_count(p); i++) {
        const char *tensor = p->tensors[p->params[i].tensor].name;
        if (strncmp(tensor, name, letters) == 0 && tensor[letters] == '/') return true;
    }
    return false;
}

static lk_status check_layer(const taking *t, const char *key, const char *name, size_t letters) {
    if (letters && is_layer(t->run, name, letters)) return LK_OK;
    char plain[LK_NAME_BYTES] = "", shown[LK_TEXT_SHOWN_BYTES];
    if (letters < sizeof plain) memcpy(plain, name, letters);
    return lk_fail(t->error, LK_BAD_CONFIG,
                   "%s: init.%s: \"%s\" is no layer of the model that has parameters; wanted %s",
                   t->run->config.document.source, key, lk_text_shown(shown, plain),
                   strcmp(key, "map") == 0 ? "OTHER=MINE,.. with layers MINE of the model"
                                           : "names of layers, with commas between");
}

// Both lists name layers that are there, each once.
static lk_status check_lists(const taking *t) {
    const char *at = t->run->config.init.skip, *item;
    size_t letters;
    while (next_item(&at, &item, &letters)) LK_CHECK(check_layer(t, "skip", item, letters));
    at = t->run->config.init.map;
    while (next_item(&at, &item, &letters)) {
        const char *equal = memchr(item, '=', letters);
        const size_t other = equal ? (size_t)(equal - item) : letters;
        LK_CHECK(check_layer(t, "map", equal ? equal + 1 : item,
                             equal && other ? letters - other - 1 : 0));
    }
    return LK_OK;
}

static bool is_skipped(const lk_run *run, const char *layer, size_t layer_letters) {
    const char *at = run->config.init.skip, *item;
    size_t letters;
    while (next_item(&at, &item, &letters)) {
        if (letters == layer_letters && memcmp(item, layer, letters) == 0) return true;
    }
    return false;
}

// What the file calls a layer of the model.
static void other_name(const lk_run *run, const char *layer, size_t *letters, const char **out) {
    const char *at = run->config.init.map, *item;
    size_t item_letters;
    *out = layer;
    while (next_item(&at, &item, &item_letters)) {
        const char *equal = memchr(item, '=', item_letters);
        const size_t mine = item_letters - (size_t)(equal - item) - 1;
        if (mine != *letters || memcmp(equal + 1, layer, mine) != 0) continue;
        *out = item;
        *letters = (size_t)(equal - item);
        return;
    }
}

// --- what PyTorch has in another order -----------------------------------------------------------

static lk_status take_channels(void *context, const lk_export *said, uint32_t layer,
                               lk_error *error) {
    taking *t = context;
    (void)layer, (void)error;
    (void)lk_export_order(t->program, said, t->channels);
    return LK_OK;
}

// How many channels were flattened before each dense layer, of the model as it is not fused.
static lk_status find_channels(taking *t) {
    const lk_layout layout = {.replicas = 1, .replicas_all = 1, .microbatch_examples = 1};
    const lk_plan_options options = {.overlay = true};
    lk_run_spec spec = {.model = t->run->config.spec.model,
                        .optimizer = {.type = &lk_optimizer_sgd},
                        .global_batch = 2,  // a batch norm of rows wants two
                        .grain = 2,
                        .example_count = 2};
    lk_program program;
    if (t->knows_channels) return LK_OK;
    t->knows_channels = true;
    if (spec.model.graph) {
        return lk_fail(t->error, LK_BAD_CONFIG,
                       "%s: it is of layout torch, and the model has several networks; wanted a "
                       "file of layout keras",
                       t->reader.path);
    }
    void *tables = aligned_alloc(64, lk_round_up(lk_program_bytes(&spec.model), 64));
    if (!tables) return lk_fail(t->error, LK_UNAVAILABLE, "no memory for the program's tables");
    lk_status status = lk_program_build(&spec, &layout, &options, tables, &program, t->error);
    t->program = &program;
    if (status == LK_OK) {
        status = lk_export_walk(&program, take_channels, t, NULL, t->error);
    }
    t->program = NULL;
    free(tables);
    return status;
}

// from   (outputs, channels, positions)
// to     (positions, channels, outputs)
static void turn(const float *from, float *to, uint64_t positions, uint64_t channels,
                 uint64_t outputs) {
    for (uint64_t p = 0; p < positions; p++) {
        for (uint64_t c = 0; c < channels; c++) {
            for (uint64_t o = 0; o < outputs; o++) {
                *to++ = from[(o * channels + c) * positions + p];
            }
        }
    }
}

static const lk_layer_type *type_of(const taking *t, const lk_tensor *tensor) {
    return lk_export_layer_type(&t->run->config.spec.model, tensor->name);
}

static bool is_depthwise(const taking *t, const lk_tensor *tensor) {
    return type_of(t, tensor) == &lk_layer_depthwise_conv2d;
}

// An embedding is PyTorch's as it is.
static bool is_embedding(const taking *t, const lk_tensor *tensor) {
    return type_of(t, tensor) == &lk_layer_label_embedding;
}

static lk_status turn_values(taking *t, uint32_t number, const lk_tensor *tensor) {
    const uint64_t *s = tensor->shape;
    if (is_embedding(t, tensor)) return LK_OK;
    if (tensor->rank == 4) {
        const bool deep = is_depthwise(t, tensor);
        turn(t->values, t->turned, s[0] * s[1], deep ? 1 : s[2], deep ? s[2] * s[3] : s[3]);
        t->taken = t->turned;
        return LK_OK;
    }
    if (tensor->rank == 1 && t->run->config.spec.model.graph) return LK_OK;
    LK_CHECK(find_channels(t));
    const uint32_t channels = t->channels[number];
    if (tensor->rank == 1 && channels == 0) return LK_OK;
    if (channels == 0 || s[0] % channels != 0) {
        return lk_fail(t->error, LK_BAD_CONFIG,
                       "%s: %s takes a sum of flattened images of different shapes, which PyTorch "
                       "flattens in another order; wanted a file of layout keras",
                       t->reader.path, tensor->name);
    }
    turn(t->values, t->turned, s[0] / channels, channels, tensor->rank == 1 ? 1 : s[1]);
    t->taken = t->turned;
    return LK_OK;
}

// --- one parameter -------------------------------------------------------------------------------

static const lk_safetensors_entry *find_named(const taking *t, const char *layer, size_t letters,
                                              char between, const char *word) {
    char name[3 * LK_NAME_BYTES];
    if (!word || letters + strlen(word) + 2 > sizeof name) return NULL;
    memcpy(name, layer, letters);
    name[letters] = between;
    memcpy(name + letters + 1, word, strlen(word) + 1);
    return lk_safetensors_find(&t->reader, name);
}

// (out, in, h, w) of a kernel (h, w, in, out), (out, in) of one of (in, out).
static void shape_of(const taking *t, const lk_tensor *tensor, bool torch, uint64_t dims[4]) {
    static const uint8_t order[5][4] = {{0}, {0}, {1, 0}, {2, 1, 0}, {3, 2, 0, 1}};
    for (uint32_t d = 0; d < tensor->rank; d++) {
        dims[d] = tensor->shape[torch && !is_embedding(t, tensor) ? order[tensor->rank][d] : d];
    }
    if (torch && tensor->rank == 4 && is_depthwise(t, tensor)) dims[0] *= dims[1], dims[1] = 1;
}

static void show_shape(char out[96], uint32_t rank, const uint64_t *dims) {
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t d = 0; d < rank && used < 72; d++) {
        used +=
            lk_format(out + used, 96 - used, "%s%llu", d ? ", " : "", (unsigned long long)dims[d]);
    }
}

// Where a parameter is in the file.
typedef struct place {
    const lk_safetensors_entry *entry, *second;
    bool torch;
    bool has_rows;  // Keras' biases of a GRU, one tensor (2, gates): this is its row `row`
    uint32_t row;
} place;

static lk_status check_shape(const taking *t, const place *at, const lk_safetensors_entry *entry,
                             const lk_tensor *tensor) {
    char found[96], wanted[96], name[LK_TEXT_SHOWN_BYTES];
    uint64_t dims[5] = {2};
    const uint32_t rank = tensor->rank + at->has_rows;
    shape_of(t, tensor, at->torch, dims + at->has_rows);
    bool same = entry->dtype == LK_SAFETENSORS_F32 && entry->dim_count == rank;
    for (uint32_t d = 0; same && d < rank; d++) same = entry->dims[d] == dims[d];
    if (same) return LK_OK;
    show_shape(found, entry->dim_count, entry->dims);
    show_shape(wanted, rank, dims);
    return lk_fail(t->error, LK_BAD_DATA,
                   "%s: tensor %s is %s (%s), wanted F32 (%s) for %s; leave its layer as it is "
                   "initialized with --init-skip",
                   t->reader.path, lk_text_shown(name, entry->name),
                   lk_safetensors_dtype_name(entry->dtype), found, wanted, tensor->name);
}

// The second row of biases of PyTorch's LSTM, which has two where we have their sum. What is 0
// changes no bit.
static lk_status add_second(taking *t, const place *at, const lk_tensor *tensor) {
    LK_CHECK(check_shape(t, at, at->second, tensor));
    LK_CHECK(lk_safetensors_read(&t->reader, at->second, t->turned, t->error));
    for (uint64_t i = 0; i < tensor->shape[0]; i++) {
        if (t->turned[i] != 0.0f) t->values[i] = t->values[i] + t->turned[i];
    }
    return LK_OK;
}

static lk_status take_values(taking *t, uint32_t number, const place *at) {
    const lk_param *param = &t->run->program.params[number];
    const lk_tensor *tensor = &t->run->program.tensors[param->tensor];
    const uint64_t skipped = at->row * param->count;
    LK_CHECK(check_shape(t, at, at->entry, tensor));
    LK_CHECK(lk_safetensors_read(&t->reader, at->entry, t->values, t->error));
    if (skipped > 0) memmove(t->values, t->values + skipped, param->count * sizeof *t->values);
    if (at->second) LK_CHECK(add_second(t, at, tensor));
    if (at->torch) lk_export_swap_gates(type_of(t, tensor), param->count, t->values);
    for (uint64_t i = 0; i < param->count; i++) {
        if (t->values[i] - t->values[i] == 0.0f) continue;
        return lk_fail(t->error, LK_BAD_DATA, "%s: number %llu of tensor %s is not finite",
                       t->reader.path, (unsigned long long)i, tensor->name);
    }
    t->taken = t->values;
    if (at->torch) LK_CHECK(turn_values(t, number, tensor));
    lk_sha256_add_u32(&t->hash, number);
    lk_sha256_add(&t->hash, t->taken, param->count * sizeof *t->taken);
    if (t->store) {
        memcpy(t->run->core.device + tensor->offset, t->taken, param->count * sizeof *t->taken);
    }
    t->run->init_taken++;
    return LK_OK;
}

// Is `word`, a bias of a GRU, a row of a tensor that has both?
static bool find_rows(const taking *t, const char *layer, size_t letters, const char *word,
                      place *out) {
    const bool recurrent = strcmp(word, "recurrent_bias") == 0;
    if (!recurrent && strcmp(word, "bias") != 0) return false;
    const lk_safetensors_entry *both = find_named(t, layer, letters, '/', "bias");
    if (!both || both->dim_count != 2) return false;
    *out = (place){.entry = both, .has_rows = true, .row = recurrent};
    return true;
}

static place find_place(const taking *t, const lk_layer_type *type, const char *layer,
                        size_t letters, const char *word) {
    place at = {.entry = find_named(t, layer, letters, '/', word)};
    if (type == &lk_layer_gru && find_rows(t, layer, letters, word, &at)) return at;
    if (at.entry) return at;
    at.torch = true;
    at.entry = find_named(t, layer, letters, '.', lk_export_torch_word(type, word));
    if (type != &lk_layer_lstm || strcmp(word, "bias") != 0) return at;
    at.second = find_named(t, layer, letters, '.', LK_TORCH_SECOND_BIAS);
    if (!at.second) at.entry = NULL;
    return at;
}

static lk_status take_one(taking *t, uint32_t number) {
    const lk_program *p = &t->run->program;
    const lk_param *param = &p->params[number];
    const char *name = p->tensors[param->tensor].name, *slash = strrchr(name, '/');
    const bool state = number >= p->param_count;
    // States that are whole numbers are of the run, not of the model.
    if (!slash || (state && p->tensors[param->tensor].dtype != LK_F32)) return LK_OK;
    size_t letters = (size_t)(slash - name);
    const char *other;
    if (is_skipped(t->run, name, letters)) return LK_OK;
    other_name(t->run, name, &letters, &other);
    const place at =
        find_place(t, type_of(t, &p->tensors[param->tensor]), other, letters, slash + 1);
    if (at.entry) return take_values(t, number, &at);
    if (state) return LK_OK;
    return lk_fail(
        t->error, LK_BAD_DATA,
        "%s: there is no tensor for %s (%zu tensors there); say what its layer is called "
        "there with --init-map OTHER=MINE, or leave it as it is initialized with "
        "--init-skip MINE",
        t->reader.path, name, t->reader.entry_count);
}

// --- all -----------------------------------------------------------------------------------------

static lk_status take_all(taking *t) {
    const lk_program *p = &t->run->program;
    const uint32_t count = lk_entry_count(p);
    uint64_t most = 1;
    for (uint32_t i = 0; i < count; i++) most = LK_MAX(most, p->params[i].count);
    t->values = malloc(2 * most * sizeof *t->values);  // two biases may be one tensor
    t->turned = malloc(most * sizeof *t->turned);
    t->channels = calloc(count, sizeof *t->channels);
    if (!t->values || !t->turned || !t->channels) {
        return lk_fail(t->error, LK_UNAVAILABLE, "%s: no memory for its tensors", t->reader.path);
    }
    for (uint32_t i = 0; i < count; i++) LK_CHECK(take_one(t, i));
    return LK_OK;
}

lk_status lk_init_take(lk_run *run, bool store, lk_error *error) {
    const char *file = run->config.init.file;
    lk_run_spec *spec = &run->config.spec;
    taking t = {.run = run, .store = store, .error = error};
    run->init_taken = 0;
    // What is evaluated has its weights from elsewhere.
    if (!*file || run->config.evaluates) return LK_OK;
    LK_CHECK(check_lists(&t));
    t.entries = calloc(ENTRIES_MAX, sizeof *t.entries);
    if (!t.entries) return lk_fail(error, LK_UNAVAILABLE, "%s: no memory to read it", file);
    lk_status status =
        lk_safetensors_open(&t.reader, &lk_file_ops_posix, file, t.entries, ENTRIES_MAX, error);
    if (status == LK_OK) {
        lk_sha256_start(&t.hash);
        status = take_all(&t);
        lk_sha256_finish(&t.hash, spec->init_hash);
        spec->init = true;
        lk_safetensors_close(&t.reader);
        const lk_average_calls *averages = spec->model.averages;
        if (status == LK_OK && store && averages) averages->start(&run->program, run->core.device);
        if (status == LK_OK && store) status = lk_run_round(run, file, error);
    }
    free(t.entries);
    free(t.values);
    free(t.turned);
    free(t.channels);
    return status;
}
