// identity.c - the run identity: SHA-256 over everything that decides the bits of a run, as tagged
// entries (ARITHMETIC.md 11). Freestanding.
//
// An entry is a key, in ascending order of its bytes, and a value. A value equal to a constant
// default is left out, so that what is new changes no identity of before.
#include "ops/graph/model.h"

#include "ops/geometry.h"

enum { LK_IDENTITY_KEY_BYTES = 96 };

typedef struct identity {
    lk_sha256 hash;
    char last[LK_IDENTITY_KEY_BYTES];  // key of the entry before
} identity;

static int compare(const char *a, const char *b) {
    while (*a && *a == *b) a++, b++;
    return (uint8_t)*a - (uint8_t)*b;
}

static uint32_t length_of(const char *text) {
    uint32_t n = 0;
    while (text[n]) n++;
    return n;
}

// Begins an entry: its key, and how many bytes its value has, which the caller adds.
static void start(identity *id, const char *key, uint64_t bytes) {
    lk_assert(compare(key, id->last) > 0);
    lk_format(id->last, sizeof id->last, "%s", key);
    lk_sha256_add_u32(&id->hash, length_of(key));
    lk_sha256_add(&id->hash, key, length_of(key));
    lk_sha256_add_u32(&id->hash, (uint32_t)bytes);
}

static void add(identity *id, const char *key, const void *value, uint64_t bytes) {
    start(id, key, bytes);
    lk_sha256_add(&id->hash, value, bytes);
}

static void add_text(identity *id, const char *key, const char *text) {
    add(id, key, text, length_of(text));
}

static void add_number(identity *id, const char *key, uint64_t value, uint32_t bytes) {
    uint8_t little[8];
    for (uint32_t i = 0; i < bytes; i++) little[i] = (uint8_t)(value >> 8 * i);
    add(id, key, little, bytes);
}

static void add_u32s(identity *id, const char *key, uint32_t count, const uint32_t *values) {
    uint8_t little[4 * 4];
    lk_assert(count <= 4);
    for (uint32_t i = 0; i < 4 * count; i++) little[i] = (uint8_t)(values[i / 4] >> 8 * (i % 4));
    add(id, key, little, 4 * count);
}

static uint32_t bits_of(float value) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    return bits;
}

// --- keys of layers and optimizers ---------------------------------------------------------------

static void add_list(identity *id, const char *key, uint32_t count, uint32_t words,
                     const uint32_t *values) {
    uint8_t little[LK_SETTING_LIST_MAX * 8];
    const uint32_t bytes = count * words * 4;
    for (uint32_t i = 0; i < bytes; i++) little[i] = (uint8_t)(values[i / 4] >> 8 * (i % 4));
    add(id, key, little, bytes);
}

static void add_rate(identity *id, const char *name, const lk_rate *rate);

static void add_l2(identity *id, const char *name, float l2) {
    char key[LK_IDENTITY_KEY_BYTES];
    lk_format(key, sizeof key, "%s.l2", name);
    if (l2 > 0.0f) add_number(id, key, bits_of(l2), 4);
}

// A field of a layer or an optimizer, under `name`; left out where it is the constant default.
static void add_field(identity *id, const char *name, const lk_setting *k, const void *owner) {
    static const char *const paddings[] = {
        [LK_PADDING_VALID] = "valid", [LK_PADDING_SAME] = "same"};
    const uint8_t *field = (const uint8_t *)owner + k->offset;
    const uint32_t *u = (const uint32_t *)(const void *)field;
    const uint64_t *u64 = (const uint64_t *)(const void *)field;
    const float *f = (const float *)(const void *)field;
    const lk_steps_list *steps = (const lk_steps_list *)(const void *)field;
    const lk_floats_list *floats = (const lk_floats_list *)(const void *)field;
    const void *const *pointer = (const void *const *)(const void *)field;
    const bool constant = !k->required && !k->fallback;
    switch (k->kind) {
    case LK_SETTING_U32:
        if (!constant || *u != k->constant) add_u32s(id, name, 1, u);
        break;
    case LK_SETTING_PAIR:
        if (!constant || u[0] != k->constant || u[1] != k->constant) add_u32s(id, name, 2, u);
        break;
    case LK_SETTING_BOOL:
        if (*(const bool *)field != (k->constant != 0)) {
            add_number(id, name, *(const bool *)field, 4);
        }
        break;
    case LK_SETTING_FLOAT:
        if (!constant || bits_of(*f) != bits_of(k->float_constant)) {
            add_number(id, name, bits_of(*f), 4);
        }
        break;
    case LK_SETTING_PADDING:
        if (*u != k->constant) add_text(id, name, paddings[*u]);
        break;
    case LK_SETTING_ACTIVATION:
        if (*pointer) add_text(id, name, lk_layer_words_of(*pointer)->name);
        break;
    case LK_SETTING_INITIALIZER:
        if (*pointer != &lk_initializer_glorot_uniform) {
            add_text(id, name, ((const lk_initializer *)*pointer)->name);
        }
        break;
    case LK_SETTING_U64:
        if (!constant || *u64 != k->constant) add_number(id, name, *u64, 8);
        break;
    case LK_SETTING_STEPS:
        add_list(id, name, steps->count, 2, (const uint32_t *)(const void *)steps->at);
        break;
    case LK_SETTING_FLOATS:
        add_list(id, name, floats->count, 1, (const uint32_t *)(const void *)floats->at);
        break;
    case LK_SETTING_RATE: add_rate(id, name, (const lk_rate *)(const void *)field); break;
    case LK_SETTING_SHAPE: add_u32s(id, name, u[0], u + 1); break;
    case LK_SETTING_SIDES:
        if (u[0] != k->constant || u[1] != k->constant || u[2] != k->constant ||
            u[3] != k->constant) {
            add_u32s(id, name, 4, u);
        }
        break;
    case LK_SETTING_L2: add_l2(id, name, *f); break;
    case LK_SETTING_WEIGHTS: break;  // by who knows how many classes there are: add_weights
    case LK_SETTING_CHOICE:
        if (!constant || *u != k->constant) add_text(id, name, k->choices[*u]);
        break;
    case LK_SETTING_TEXT:
        lk_panic(__FILE__, __LINE__, "a kind of key that no layer or optimizer has");
    }
}

// Are a layer's inputs others than `number`, the layer before it?
static bool has_inputs(const lk_layer *l, uint32_t number) {
    return l->input_count > 1 || (l->input_count == 1 && l->inputs[0] != number);
}

static void add_layer(identity *id, const lk_layer *l, uint32_t number, uint32_t before) {
    const lk_layer_words *words = lk_layer_words_of(l->type);
    bool inputs = has_inputs(l, before), frozen = l->frozen, type = true;
    bool dtype = l->dtype == LK_LAYER_FLOAT32;
    char key[LK_IDENTITY_KEY_BYTES];
    for (uint32_t i = 0; i <= words->key_count; i++) {
        const char *next = i < words->key_count ? words->keys[i].name : NULL;
        if (dtype && (!next || compare("dtype", next) < 0)) {
            lk_format(key, sizeof key, "model.layer.%04u.dtype", number);
            add_text(id, key, "float32");
            dtype = false;
        }
        if (inputs && (!next || compare("inputs", next) < 0)) {
            lk_format(key, sizeof key, "model.layer.%04u.inputs", number);
            add_u32s(id, key, l->input_count, l->inputs);
            inputs = false;
        }
        if (frozen && (!next || compare("trainable", next) < 0)) {
            lk_format(key, sizeof key, "model.layer.%04u.trainable", number);
            add_number(id, key, 0, 4);
            frozen = false;
        }
        if (type && (!next || compare("type", next) < 0)) {
            lk_format(key, sizeof key, "model.layer.%04u.type", number);
            add_text(id, key, words->name);
            type = false;
        }
        lk_format(key, sizeof key, "model.layer.%04u.%s", number, next ? next : "");
        if (next) add_field(id, key, &words->keys[i], l);
    }
}

// The keys of a type, and the type in its place among them; type NULL: the constant default.
static void add_keys(identity *id, const char *prefix, const lk_setting *keys, uint32_t count,
                     const char *type, const void *owner) {
    char key[LK_IDENTITY_KEY_BYTES];
    for (uint32_t i = 0; i <= count; i++) {
        if (type && (i == count || compare("type", keys[i].name) < 0)) {
            lk_format(key, sizeof key, "%s.type", prefix);
            add_text(id, key, type);
            type = NULL;
        }
        if (i == count) break;
        lk_format(key, sizeof key, "%s.%s", prefix, keys[i].name);
        add_field(id, key, &keys[i], owner);
    }
}

static void add_rate(identity *id, const char *name, const lk_rate *rate) {
    const lk_rate_words *words = lk_rate_words_of(rate->type);
    const char *type = words->type == &lk_rate_constant ? NULL : words->name;
    add_keys(id, name, words->keys, words->key_count, type, rate);
}

static void add_optimizer(identity *id, const char *path, const lk_optimizer *o) {
    const lk_optimizer_words *words = lk_optimizer_words_of(o->type);
    char key[LK_IDENTITY_KEY_BYTES];
    lk_format(key, sizeof key, "%soptimizer", path);
    add_keys(id, key, words->keys, words->key_count, words->name, o);
}

// --- several networks and objectives -------------------------------------------------------------

// Names are left out: they change no bit.
static void add_networks(identity *id, const lk_graph *g) {
    char key[LK_IDENTITY_KEY_BYTES];
    for (uint32_t n = 0; n < g->network_count; n++) {
        const lk_network *network = &g->networks[n];
        for (uint32_t i = 0; i < network->input_count; i++) {
            const lk_shape *s = &network->inputs[i];
            const uint32_t shape[] = {s->h, s->w, s->c, s->flat};
            lk_format(key, sizeof key, "model.network.%04u.input.%04u", n, i);
            add_u32s(id, key, LK_COUNT(shape), shape);
        }
        lk_format(key, sizeof key, "model.network.%04u.layers", n);
        add_number(id, key, network->layer_count, 4);
    }
}

// Of each class; where all are 1, nothing.
static void add_weights(identity *id, const char *path, const lk_loss_options *o,
                        uint32_t classes) {
    const lk_weights_list *weights = &o->class_weight;
    char key[LK_IDENTITY_KEY_BYTES];
    bool some = false;
    for (uint32_t c = 0; c < weights->count; c++) some |= weights->at[c] != 1.0f;
    if (!some) return;
    lk_format(key, sizeof key, "%s.class_weight", path);
    start(id, key, classes * 4);
    for (uint32_t c = 0; c < classes; c++) {
        lk_sha256_add_u32(&id->hash, bits_of(lk_weight_of(weights, c)));
    }
}

static void add_loss_type(identity *id, const char *key, const lk_loss_words *words) {
    if (words->type != &lk_loss_sparse_categorical_crossentropy) add_text(id, key, words->name);
}

static void add_loss_keys(identity *id, const char *path, const lk_loss_words *words,
                          const lk_loss_options *o) {
    char key[LK_IDENTITY_KEY_BYTES];
    for (uint32_t i = 0; i < words->key_count; i++) {
        if (words->keys[i].kind == LK_SETTING_WEIGHTS) continue;  // add_weights, before it
        lk_assert(compare(words->keys[i].name, "inputs") > 0);
        lk_format(key, sizeof key, "%s.%s", path, words->keys[i].name);
        add_field(id, key, &words->keys[i], o);
    }
}

static void add_noise(identity *id, const char *path, uint32_t value, const lk_use *use) {
    const lk_noise_words *words = lk_noise_words_at(use->noise.kind);
    const lk_shape *s = &use->shape;
    const uint32_t shape[] = {s->h, s->w, s->c, s->flat};
    char key[LK_IDENTITY_KEY_BYTES];
    lk_format(key, sizeof key, "%svalue.%04u.noise", path, value);
    add_keys(id, key, words->keys, words->key_count, words->name, &use->noise);
    lk_format(key, sizeof key, "%svalue.%04u.shape", path, value);
    add_u32s(id, key, LK_COUNT(shape), shape);
}

static void add_objective(identity *id, const lk_graph *g, uint32_t number, uint32_t classes) {
    const lk_objective *o = &g->objectives[number];
    char path[40], key[LK_IDENTITY_KEY_BYTES];
    lk_format(path, sizeof path, "model.objective.%04u.", number);
    const lk_loss_words *loss = lk_loss_words_of(lk_objective_loss(o));
    lk_format(key, sizeof key, "%sloss", path);
    add_loss_type(id, key, loss);
    add_weights(id, key, &o->loss_options, classes);
    add_loss_keys(id, key, loss, &o->loss_options);
    add_optimizer(id, path, &o->optimizer);
    lk_format(key, sizeof key, "%soutput", path);
    add_number(id, key, o->output, 4);
    if (lk_objective_loss(o)->inputs > 1) {
        lk_format(key, sizeof key, "%starget", path);
        add_number(id, key, o->target, 4);
    }
    lk_format(key, sizeof key, "%strains", path);
    add_number(id, key, o->trains, 4);
    for (uint32_t v = 0; v < o->value_count; v++) {
        const lk_use *use = &o->values[v];
        if (lk_use_is_noise(use)) {
            add_noise(id, path, v, use);
            continue;
        }
        lk_format(key, sizeof key, "%svalue.%04u.inputs", path, v);
        add_u32s(id, key, g->networks[use->network].input_count, use->inputs);
        lk_format(key, sizeof key, "%svalue.%04u.network", path, v);
        add_number(id, key, use->network, 4);
    }
    lk_format(key, sizeof key, "%sweight_clip", path);
    if (o->weight_clip > 0.0f) add_number(id, key, bits_of(o->weight_clip), 4);
}

static void add_graph(identity *id, const lk_model *m) {
    const lk_graph *g = m->graph;
    char key[LK_IDENTITY_KEY_BYTES];
    add_networks(id, g);
    for (uint32_t k = 0; k < g->objective_count; k++) add_objective(id, g, k, m->classes);
    for (uint32_t i = 0; i < g->schedule_count; i++) {
        const uint32_t entry[] = {g->schedule[i].objective, g->schedule[i].steps};
        lk_format(key, sizeof key, "model.schedule.%04u", i);
        add_u32s(id, key, LK_COUNT(entry), entry);
    }
}

// --- the whole -----------------------------------------------------------------------------------

static void add_number_unless(identity *id, const char *key, uint32_t value, uint32_t constant) {
    if (value != constant) add_number(id, key, value, 4);
}

static void add_augment(identity *id, const lk_augment *a) {
    const uint32_t cutout[] = {a->cutout_h, a->cutout_w}, shift[] = {a->shift_h, a->shift_w};
    add_number_unless(id, "data.augment.brightness", bits_of(a->brightness), 0);
    add_number_unless(id, "data.augment.contrast", bits_of(a->contrast), 0);
    const uint32_t crop[] = {a->crop_h, a->crop_w};
    if (crop[0]) add_u32s(id, "data.augment.crop_from", 2, crop);
    if (cutout[0] || cutout[1]) add_u32s(id, "data.augment.cutout", 2, cutout);
    if (a->flip) add_text(id, "data.augment.flip", "horizontal");
    if (a->padding == LK_PADDED_EDGE) add_text(id, "data.augment.padding", "edge");
    if (shift[0] || shift[1]) add_u32s(id, "data.augment.shift", 2, shift);
}

static void add_floats(identity *id, const char *key, const lk_floats_list *list) {
    if (list->count) add_list(id, key, list->count, 1, (const uint32_t *)(const void *)list->at);
}

static void add_shards(identity *id, const lk_run_spec *spec) {
    // The number of shards, and a hash of where they end: a key's value has few bytes.
    lk_sha256 ends;
    uint8_t sum[LK_SHA256_BYTES];
    lk_sha256_start(&ends);
    for (uint32_t k = 1; k <= spec->shards; k++) lk_sha256_add_u64(&ends, spec->shard_first[k]);
    lk_sha256_finish(&ends, sum);
    add(id, "data.shard_ends", sum, sizeof sum);
    add_number(id, "data.shards", spec->shards, 4);
}

static void add_data(identity *id, const lk_run_spec *spec) {
    add_augment(id, &spec->augment);
    add_number(id, "data.count", spec->example_count, 8);
    add(id, "data.hash", spec->data_hash, LK_SHA256_BYTES);
    add_floats(id, "data.normalize.deviation", &spec->augment.deviation);
    add_floats(id, "data.normalize.mean", &spec->augment.mean);
    if (spec->shards) add_shards(id, spec);
    if (spec->strips.most == 0) return;
    add_number(id, "data.strips.max", spec->strips.most, 4);
    add_number(id, "data.strips.min", spec->strips.least, 4);
}

// Does a loss take others than the last layer's output, and the model's input?
static bool has_loss_inputs(const lk_model *m) {
    const lk_loss_options *o = &m->loss_options;
    return o->input_count > 0 &&
           (o->inputs[0] != m->layer_count || (o->input_count > 1 && o->inputs[1] != 0));
}

static void add_loss(identity *id, const lk_model *m) {
    const lk_loss_words *words = lk_loss_words_of(lk_model_loss(m));
    add_loss_type(id, "model.loss", words);
    add_weights(id, "model.loss", &m->loss_options, m->classes);
    if (has_loss_inputs(m)) {
        add_u32s(id, "model.loss.inputs", m->loss_options.input_count, m->loss_options.inputs);
    }
    add_loss_keys(id, "model.loss", words, &m->loss_options);
}

// The number of the value before a layer, in its network.
static uint32_t before_layer(const lk_model *m, uint32_t layer) {
    const lk_graph *g = m->graph;
    for (uint32_t n = 0; g && n < g->network_count; n++) {
        const lk_network *network = &g->networks[n];
        const uint32_t local = layer - network->first_layer;
        if (local < network->layer_count) return local + network->input_count - 1;
    }
    return layer;
}

static void add_model(identity *id, const lk_model *m) {
    const uint32_t input[] = {m->in_h, m->in_w, m->in_c};
    add_number(id, "model.classes", m->classes, 4);
    add_u32s(id, "model.input", 3, input);
    if (m->input_type == LK_INPUT_F32) add_text(id, "model.input_type", "f32");
    if (m->input_range == LK_RANGE_SIGNED) add_text(id, "model.input_range", "signed");
    add_number_unless(id, "model.labels", m->labels, 0);
    for (uint32_t i = 0; i < m->layer_count; i++) {
        add_layer(id, &m->layers[i], i, before_layer(m, i));
    }
    if (m->graph) {
        add_graph(id, m);
    } else {
        add_loss(id, m);
    }
}

// Of a loss that is scaled alone: nothing else reads it.
static void add_loss_scale(identity *id, const lk_model *m) {
    const lk_loss_scale *s = &m->loss_scale, constant = LK_LOSS_SCALE_DEFAULT;
    if (!lk_model_scales(m)) return;
    add_number_unless(id, "loss_scale.backoff_factor", bits_of(s->backoff),
                      bits_of(constant.backoff));
    add_number_unless(id, "loss_scale.floor", bits_of(s->least), bits_of(constant.least));
    add_number_unless(id, "loss_scale.growth_factor", bits_of(s->growth),
                      bits_of(constant.growth));
    add_number_unless(id, "loss_scale.growth_steps", s->growth_steps, constant.growth_steps);
    add_number_unless(id, "loss_scale.initial", bits_of(s->initial), bits_of(constant.initial));
    if (s->replays) add_text(id, "loss_scale.on_overflow", "replay");
    if (s->is_static) add_text(id, "loss_scale.type", "static");
}

void lk_run_identity(const lk_run_spec *spec, uint8_t out[LK_SHA256_BYTES]) {
    static const char title[] = "lockstep run identity 2";
    identity id = {.last = ""};
    lk_sha256_start(&id.hash);
    lk_sha256_add(&id.hash, title, sizeof title - 1);
    if (spec->model.fast_precision != LK_STRICT) {
        add_text(&id, "arithmetic.fast_precision",
                 lk_fast_precision_name(spec->model.fast_precision));
        add_number(&id, "arithmetic.fast_version", LK_FAST_VERSION, 4);
    }
    add_number(&id, "arithmetic.slice_terms", LK_SLICE_TERMS, 4);
    add_number(&id, "arithmetic.version", LK_ARITHMETIC_VERSION, 4);
    if (spec->drop_remainder) add_number(&id, "batch.drop_remainder", 1, 4);
    add_number(&id, "batch.global", spec->global_batch, 4);
    add_number(&id, "batch.grain", spec->grain, 4);
    add_data(&id, spec);
    if (spec->init) add(&id, "init.hash", spec->init_hash, LK_SHA256_BYTES);
    add_loss_scale(&id, &spec->model);
    add_model(&id, &spec->model);
    if (!spec->model.graph) add_optimizer(&id, "", &spec->optimizer);
    if (spec->model.precision != LK_FLOAT32) {
        add_text(&id, "precision", lk_precision_name(spec->model.precision));
    }
    add_number(&id, "seed", spec->seed, 8);
    lk_sha256_finish(&id.hash, out);
}
