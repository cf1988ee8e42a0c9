// config_show.c - lockstep config: a configuration with its defaults, the schema of all of them;
// and lockstep help keys. Everything is said by the table of keys. May use the heap.
#define _GNU_SOURCE
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/run/config_keys.h"
#include "apps/cli/tools.h"

// --- help keys -----------------------------------------------------------------------------------

enum { SHOWN_BYTES = 512 };

// 2^40 rather than 1099511627776.
static void show_bound(char out[32], uint64_t bound) {
    uint32_t bits = 0;
    while (bits < 63 && bound >> bits > 1) bits++;
    const bool power = bits >= 20 && bound == (uint64_t)1 << bits;
    const bool below = bits >= 20 && bound == ((uint64_t)2 << bits) - 1;
    if (power)
        snprintf(out, 32, "2^%u", bits);
    else if (below)
        snprintf(out, 32, "2^%u-1", bits + 1);
    else
        snprintf(out, 32, "%llu", (unsigned long long)bound);
}

static void show_words(char out[SHOWN_BYTES], const char *const *names, uint32_t count) {
    size_t n = 0;
    for (uint32_t i = 0; i < count; i++) {
        n += lk_format(out + n, SHOWN_BYTES - n, "%s%s", i ? " | " : "", names[i]);
        lk_assert(n < SHOWN_BYTES - 1);
    }
}

// Layers, optimizers and losses by their names.
static uint32_t list_losses(const char **names) {
    uint32_t count = 0;
    for (; lk_loss_words_at(count); count++) {
        lk_assert(count < LK_KEY_CHOICES_MAX);
        names[count] = lk_loss_words_at(count)->name;
    }
    return count;
}

static void show_value(char out[SHOWN_BYTES], const lk_setting *k) {
    const char *names[LK_KEY_CHOICES_MAX];
    char least[32], most[32];
    uint32_t fallback;
    const uint32_t count = lk_setting_words(k, names, &fallback);
    show_bound(least, lk_setting_least(k));
    show_bound(most, k->most);
    switch (k->kind) {
    case LK_SETTING_U32:
    case LK_SETTING_U64:
        lk_format(out, SHOWN_BYTES, "%s to %s%s%s", least, most, k->word ? " | " : "",
                  k->word ? k->word : "");
        break;
    case LK_SETTING_PAIR:
        lk_format(out, SHOWN_BYTES, "%s to %s, or [rows, columns]", least, most);
        break;
    case LK_SETTING_BOOL: lk_format(out, SHOWN_BYTES, "true | false"); break;
    case LK_SETTING_FLOAT:
        if (k->below != 0.0f) {
            snprintf(out, SHOWN_BYTES, "%g to below %g", (double)k->low, (double)k->below);
        } else if (k->high < 0x1.fffffep+127f) {
            snprintf(out, SHOWN_BYTES, "%g to %g", (double)k->low, (double)k->high);
        } else {
            snprintf(out, SHOWN_BYTES, "%g or more", (double)k->low);
        }
        break;
    case LK_SETTING_STEPS:
        lk_format(out, SHOWN_BYTES, "[%s or more, ...], up to %d", least, LK_SETTING_LIST_MAX);
        break;
    case LK_SETTING_FLOATS:
        lk_format(out, SHOWN_BYTES, "array of 1 to %d numbers", LK_SETTING_LIST_MAX);
        break;
    case LK_SETTING_RATE: lk_format(out, SHOWN_BYTES, "object"); break;
    case LK_SETTING_WEIGHTS:
        lk_format(out, SHOWN_BYTES, "array, or {\"CLASS\": number}");
        break;
    case LK_SETTING_L2:
        snprintf(out, SHOWN_BYTES, "{\"l2\": %g to %g}", (double)k->low, (double)k->high);
        break;
    case LK_SETTING_SHAPE:
        lk_format(out, SHOWN_BYTES, "[h, w, c], [time, features], [values]");
        break;
    case LK_SETTING_SIDES:
        lk_format(out, SHOWN_BYTES, "0 to %s, or of four sides", most);
        break;
    case LK_SETTING_TEXT: lk_format(out, SHOWN_BYTES, "text"); break;
    case LK_SETTING_PADDING:
    case LK_SETTING_ACTIVATION:
    case LK_SETTING_INITIALIZER:
    case LK_SETTING_CHOICE: show_words(out, names, count); break;
    }
}

static void show_default(char out[SHOWN_BYTES], const lk_setting *k) {
    json_t *value = lk_setting_default(k);
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9)) : NULL;
    if (k->required)
        lk_format(out, SHOWN_BYTES, "required");
    else if (k->chosen)
        lk_format(out, SHOWN_BYTES, "%s", k->chosen);
    else if (k->fallback)
        lk_format(out, SHOWN_BYTES, "%s", k->fallback);
    else if (json_is_string(value))
        lk_format(out, SHOWN_BYTES, "%s", json_string_value(value));
    else
        lk_format(out, SHOWN_BYTES, "%s", text ? text : "");
    free(text);
    json_decref(value);
}

// Of layers, losses, rate schedules, noise or optimizers; NULL past the last.
static const char *type_at(const char *path, uint32_t number) {
    const lk_layer_words *layer = lk_layer_words_at(number);
    const lk_rate_words *rate = lk_rate_words_at(number);
    const lk_loss_words *loss = lk_loss_words_at(number);
    const lk_noise_words *noise = lk_noise_words_at(number);
    const lk_optimizer_words *optimizer = lk_optimizer_words_at(number);
    if (strstr(path, "layers[")) return layer ? layer->name : NULL;
    if (strstr(path, "loss.")) return loss ? loss->name : NULL;
    if (strstr(path, "noise.")) return noise ? noise->name : NULL;
    if (strstr(path, "schedule.")) return rate ? rate->name : NULL;
    return optimizer ? optimizer->name : NULL;
}

static void show_types(char out[SHOWN_BYTES], const char *path) {
    const char *names[LK_KEY_CHOICES_MAX];
    uint32_t count = 0;
    for (; type_at(path, count); count++) {
        lk_assert(count < LK_KEY_CHOICES_MAX);
        names[count] = type_at(path, count);
    }
    show_words(out, names, count);
}

// A long list of words goes on in the next line.
static void print_wrapped(const char *line) {
    enum { COLUMNS = 100 };
    static const char further[] = "        ";
    size_t indent = 0;
    while (indent + strlen(line) > COLUMNS) {
        const char *cut = line + COLUMNS - indent - 2;
        while (cut > line && strncmp(cut, " | ", 3) != 0) cut--;
        if (cut == line) break;
        printf("%.*s |\n%s", (int)(cut - line), line, further);
        line = cut + 3;
        indent = strlen(further);
    }
    printf("%s", line);
}

// What is a list of its own, or a word of one, and has no kind.
static void describe_list(char out[SHOWN_BYTES], const char *path, const char *name) {
    static const struct {
        const char *name, *text;
    } lists[] = {{"inputs", "array of names"},        {"trains", "array of names"},
                 {"values", "array of objects"},      {"layers", "array of objects"},
                 {"network", "the name of a network"}, {"noise", "object"},
                 {"shape", "[h, w, c], [values]"},     {"generator", "array of objects"},
                 {"discriminator", "array of objects"}, {"generator_optimizer", "object"},
                 {"discriminator_optimizer", "object"}};
    const char *losses[LK_KEY_CHOICES_MAX];
    if (strchr(path, '[') == NULL && strcmp(path, "model.loss.inputs") != 0 &&
        strncmp(path, "model.gan.", strlen("model.gan.")) != 0) {
        return;
    }
    if (strcmp(name, "loss") == 0) show_words(out, losses, list_losses(losses));
    if (strcmp(name, "optimizer") == 0) lk_format(out, SHOWN_BYTES, "object");
    for (uint32_t i = 0; i < LK_COUNT(lists); i++) {
        if (strcmp(name, lists[i].name) == 0) lk_format(out, SHOWN_BYTES, "%s", lists[i].text);
    }
    if (strcmp(path, "model.networks[].inputs") == 0) {
        lk_format(out, SHOWN_BYTES, "array of shapes");
    }
    if (strcmp(path, "model.gan.loss") == 0) {
        lk_format(out, SHOWN_BYTES, "a kind, or an object");
    }
}

static void print_key(void *context, const char *path, const char *type, const lk_key *key) {
    char value[SHOWN_BYTES] = "", fallback[SHOWN_BYTES] = "";
    const char *losses[LK_KEY_CHOICES_MAX];
    const lk_setting *k = &key->value;
    (void)context;
    show_default(fallback, k);
    switch (key->form) {
    case LK_KEY_VALUE: show_value(value, k); break;
    case LK_KEY_GAN: lk_format(value, sizeof value, "object"); break;
    case LK_KEY_NOTE: lk_format(value, sizeof value, "text"); break;
    case LK_KEY_SHAPE: lk_format(value, sizeof value, "[1 to 65535, ...]"); break;
    case LK_KEY_LOSS:
        show_words(value, losses, list_losses(losses));
        break;
    case LK_KEY_LAYERS:
    case LK_KEY_NETWORKS:
    case LK_KEY_OBJECTIVES: lk_format(value, sizeof value, "array of objects"); break;
    case LK_KEY_SCHEDULE: lk_format(value, sizeof value, "array of [name, steps]"); break;
    case LK_KEY_OPTIMIZER:
    case LK_KEY_OBJECT:
        lk_format(value, sizeof value, "object");
        if (!k->required) fallback[0] = '\0';
        break;
    }
    if (strcmp(k->name, "type") == 0 && k->kind != LK_SETTING_CHOICE) show_types(value, path);
    describe_list(value, path, k->name);
    if (strcmp(k->name, "loss") == 0 && !k->required) {
        lk_format(fallback, sizeof fallback, "%s", lk_loss_words_at(0)->name);
    }
    char line[2 * SHOWN_BYTES + 256];
    lk_format(line, sizeof line, "%c %s%s%s%s:%s%s%s%s%s", key->free ? ' ' : '*', path,
              type ? " (" : "", type ? type : "", type ? ")" : "", *value ? " " : "", value,
              *fallback ? " (" : "", fallback, *fallback ? ")" : "");
    print_wrapped(line);
    printf("\n      %s\n", k->meaning);
}

lk_status lk_list_keys(lk_error *error) {
    (void)error;
    printf(
        "Keys of a configuration: what may be written, the default in brackets, the meaning.\n"
        "Those with * decide the bits of a run, and with them its identity; the others say\n"
        "how it is computed, shown and kept. What only one type of layer or optimizer has,\n"
        "names it.\n\n");
    lk_key_walk(print_key, NULL);
    return LK_OK;
}

// --- config show ---------------------------------------------------------------------------------

static void fill(json_t *object, const char *name, json_t *value) {
    if (value && !json_object_get(object, name)) (void)json_object_set(object, name, value);
    json_decref(value);
}

static void fill_settings(json_t *object, const lk_setting *keys, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        fill(object, keys[i].name, lk_setting_default(&keys[i]));
        json_t *other = keys[i].fallback ? json_object_get(object, keys[i].fallback) : NULL;
        if (other) fill(object, keys[i].name, json_deep_copy(other));
    }
}

static void fill_rate(json_t *object, const lk_rate *rate) {
    const lk_rate_words *words = lk_rate_words_of(rate->type);
    if (object) fill_settings(object, words->keys, words->key_count);
}

// A layer's name as the document has it, without its network's.
static const char *layer_name(const lk_config *c, uint32_t index) {
    const char *name = c->layers[index].name, *dot = strchr(name, '.');
    return c->spec.model.graph && dot ? dot + 1 : name;
}

// Of the layers [first, first + count), with `inputs` values before them.
static void fill_layers(json_t *layers, const lk_config *c, uint32_t first, uint32_t count,
                        uint32_t inputs) {
    for (uint32_t i = 0; i < count; i++) {
        const lk_layer_words *words = lk_layer_words_of(c->layers[first + i].type);
        json_t *layer = json_array_get(layers, i), *before = json_array();
        const char *input = inputs > 1 ? "input_2" : "input";
        fill(layer, lk_layer_common[LK_LAYER_NAME].name, json_string(layer_name(c, first + i)));
        if (words->type->inputs) {
            (void)json_array_append_new(before,
                                        json_string(i ? layer_name(c, first + i - 1) : input));
        }
        fill(layer, lk_layer_common[LK_LAYER_INPUTS].name, before);
        if (words->type->params_max) {
            fill(layer, lk_layer_common[LK_LAYER_TRAINABLE].name, json_true());
        }
        fill_settings(layer, words->keys, words->key_count);
    }
}

static void fill_loss(json_t *object, const char *name, const lk_loss_type *type) {
    const lk_loss_words *words = lk_loss_words_of(type);
    json_t *loss = json_object_get(object, name);
    if (!json_is_object(loss)) {
        fill(object, name, json_string(words->name));
    } else {
        fill_settings(loss, words->keys, words->key_count);
    }
}

static json_t *shape_of(const lk_shape *s) {
    return s->flat ? json_pack("[i]", (int)s->c)
                   : json_pack("[i, i, i]", (int)s->h, (int)s->w, (int)s->c);
}

static void fill_networks(json_t *networks, const lk_config *c) {
    for (uint32_t n = 0; n < c->graph.network_count; n++) {
        const lk_network *network = &c->graph.networks[n];
        json_t *object = json_array_get(networks, n), *inputs = json_array();
        for (uint32_t i = 0; i < network->input_count; i++) {
            (void)json_array_append_new(inputs, shape_of(&network->inputs[i]));
        }
        fill(object, "inputs", inputs);
        fill_layers(json_object_get(object, "layers"), c, network->first_layer,
                    network->layer_count, network->input_count);
    }
}

static void fill_optimizer(json_t *object, const lk_optimizer *o) {
    const lk_optimizer_words *words = lk_optimizer_words_of(o->type);
    fill_settings(object, words->keys, words->key_count);
    fill_rate(json_object_get(object, "learning_rate_schedule"), &o->rate);
}

static void fill_objectives(json_t *objectives, const lk_config *c) {
    for (uint32_t k = 0; k < c->graph.objective_count; k++) {
        const lk_objective *o = &c->graph.objectives[k];
        json_t *object = json_array_get(objectives, k), *values = json_object_get(object, "values");
        for (uint32_t v = 0; v < o->value_count; v++) {
            const char *before = v ? o->values[v - 1].name : "images";
            json_t *value = json_array_get(values, v), *noise = json_object_get(value, "noise");
            const lk_noise_words *words = lk_noise_words_at(o->values[v].noise.kind);
            if (noise) fill_settings(noise, words->keys, words->key_count);
            if (!noise) fill(value, "inputs", json_pack("[s]", before));
        }
        fill_loss(object, "loss", o->loss);
        fill_optimizer(json_object_get(object, "optimizer"), &o->optimizer);
    }
}

static json_t *schedule_of(const lk_graph *g) {
    json_t *schedule = json_array();
    for (uint32_t i = 0; i < g->schedule_count; i++) {
        const lk_schedule_entry *e = &g->schedule[i];
        (void)json_array_append_new(
            schedule, json_pack("[s, i]", g->objectives[e->objective].name, (int)e->steps));
    }
    return schedule;
}

static void fill_group(json_t *object, const lk_key *group, const lk_config *c);

static void fill_object(json_t *object, const lk_key *key, const lk_config *c) {
    const char *name = key->value.name;
    // One that has a default for each of its keys; others are chosen by being there.
    if (key->shown) fill(object, name, json_object());
    if (json_object_get(object, name)) fill_group(json_object_get(object, name), key, c);
}

static void fill_group(json_t *object, const lk_key *group, const lk_config *c) {
    for (uint32_t i = 0; i < group->key_count; i++) {
        const lk_key *key = &group->keys[i];
        const char *name = key->value.name;
        json_t *inner = json_object_get(object, name);
        const lk_model *m = &c->spec.model;
        switch (key->form) {
        case LK_KEY_VALUE: fill(object, name, lk_setting_default(&key->value)); break;
        case LK_KEY_OBJECT: fill_object(object, key, c); break;
        case LK_KEY_LOSS:
            if (!m->graph) fill_loss(object, name, m->loss);
            break;
        case LK_KEY_LAYERS:
            if (inner) fill_layers(inner, c, 0, m->layer_count, 1);
            break;
        case LK_KEY_OPTIMIZER:
            if (inner) fill_optimizer(inner, &c->spec.optimizer);
            break;
        case LK_KEY_NETWORKS: fill_networks(inner, c); break;
        case LK_KEY_OBJECTIVES: fill_objectives(inner, c); break;
        case LK_KEY_SCHEDULE:
            if (m->graph) fill(object, name, schedule_of(m->graph));
            break;
        case LK_KEY_SHAPE:
        case LK_KEY_GAN:
        case LK_KEY_NOTE: break;
        }
    }
}

static void put(json_t *object, const char *name, json_t *value) {
    (void)json_object_set_new(object, name, value);
}

// What options of the command line say beside the document, and what is reckoned from it.
static void fill_rest(json_t *root, const lk_config *c, const lk_config_options *o) {
    json_t *layout = json_object_get(root, "layout"), *data = json_object_get(root, "data");
    fill(root, "global_batch", json_integer(c->spec.global_batch));
    fill(root, "grain", json_integer(c->spec.grain));
    const lk_fast_precision fast = c->spec.model.fast_precision;
    if (fast != LK_STRICT) {
        fill(root, "fast_precision", json_string(lk_fast_precision_name(fast)));
    }
    if (c->epochs) fill(root, "epochs", json_integer((json_int_t)c->epochs));
    if (c->replicas) put(root, "replicas", json_integer(c->replicas));
    put(layout, "kernels", json_string(c->kernels));
    if (o->gpus) put(layout, "gpus", json_integer(o->gpus == LK_CONFIG_ALL_GPUS ? 0 : o->gpus));
    if (o->gpu) put(layout, "gpu", json_integer(o->gpu - 1));
    if (!o->data_directory) return;
    static const char *const others[] = {"set", "train", "test"};
    for (uint32_t i = 0; i < LK_COUNT(others); i++) (void)json_object_del(data, others[i]);
    put(data, "directory", lk_json_text(o->data_directory));
}

static lk_status print_document(const lk_json *document, lk_error *error) {
    char *text = malloc(LK_CONFIG_DUMP_BYTES);
    if (!text) return lk_fail(error, LK_UNAVAILABLE, "no memory to show the configuration");
    lk_status status = lk_json_dump(document, text, LK_CONFIG_DUMP_BYTES, NULL, error);
    if (status == LK_OK) fputs(text, stdout);
    free(text);
    return status;
}

static lk_status config_show(int argc, char **argv, lk_error *error) {
    static lk_config config;
    static char command[] = "config";  // whose usage help shows
    lk_common_options o;
    argv[0] = command;
    LK_CHECK(lk_parse_common(argc, argv, 0, &o, error));
    o.config.no_data = true;
    o.config.workers = 1;
    lk_status status = lk_config_open(&config, &o.config, error);
    if (status == LK_OK) {
        fill_group(config.document.root, &lk_config_keys, &config);
        fill_rest(config.document.root, &config, &o.config);
        status = print_document(&config.document, error);
    }
    lk_config_close(&config);
    return status;
}

static lk_status config_schema(int argc, char **argv, lk_error *error) {
    lk_arguments a = {.help =
                          "lockstep config schema\n\nPrints a JSON schema of configurations.\n"};
    LK_CHECK(lk_parse_arguments(argc, argv, &a, error));
    return a.helped ? LK_OK : lk_print_schema(error);
}

lk_status lk_command_config(int argc, char **argv, lk_error *error) {
    static const char help[] =
        "lockstep config show CONFIG [--set KEY=VALUE ...] | schema\n"
        "\n"
        "  lockstep config show CONFIG   the configuration with all defaults and with --set, "
        "--data,\n"
        "                                --epochs, --seed, --examples, --replicas, --kernels, "
        "--gpus,\n"
        "                                --gpu: valid JSON that means the same run. What is left\n"
        "                                out is chosen where it trains. The data need not be here\n"
        "  lockstep config schema        a JSON schema (draft 2020-12) of configurations, for "
        "editors\n"
        "\n"
        "lockstep help keys explains every key.\n";
    static const lk_subcommand table[] = {{"show", config_show}, {"schema", config_schema}};
    return lk_run_subcommand(argc, argv, help, table, LK_COUNT(table), error);
}
