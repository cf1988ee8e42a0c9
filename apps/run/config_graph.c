// config_graph.c - several networks, objectives and a schedule of a configuration: names become
// numbers. What fits together is checked where programs are made (ops/graph/graph.c).
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/run/config_keys.h"

// The keys of an object by its table.
static lk_status only_keys(const lk_json_cursor *at, const lk_setting *keys, uint32_t count,
                           lk_error *error) {
    const char *names[LK_KEYS_MAX];
    lk_assert(count <= LK_KEYS_MAX);
    for (uint32_t i = 0; i < count; i++) names[i] = keys[i].name;
    LK_CHECK(lk_json_as_object(at, error));
    return lk_json_keys_only(at, names, count, error);
}

// A table of `count` entries of `bytes`, all zero; NULL, and the error says it.
static void *make_table(uint32_t count, size_t bytes, lk_error *error) {
    void *table = calloc(count, bytes);
    if (!table) (void)lk_fail(error, LK_UNAVAILABLE, "no memory for %u entries", count);
    return table;
}

// The name of entry `index` of a table whose entries begin with it: unlike all before it.
static lk_status read_entry_name(const lk_json_cursor *at, const void *table, size_t bytes,
                                 uint32_t index, char name[LK_GRAPH_NAME_BYTES], lk_error *error) {
    lk_json_cursor given;
    LK_CHECK(lk_json_get_string(at, "name", LK_JSON_REQUIRED, name, LK_GRAPH_NAME_BYTES, error));
    (void)lk_json_find(at, "name", &given);
    if (!*name || strpbrk(name, "/.")) {
        return lk_json_refuse(&given, error, "its name is empty or has a \"/\" or \".\"");
    }
    for (uint32_t i = 0; i < index; i++) {
        if (strcmp((const char *)table + i * bytes, name) != 0) continue;
        return lk_json_refuse(&given, error, "is the name of entry %u too; names must differ", i);
    }
    return LK_OK;
}

// The number of the entry that the text at `at` names.
static lk_status find_entry(const lk_json_cursor *at, const char *what, const void *table,
                            size_t bytes, uint32_t count, uint32_t *out, lk_error *error) {
    char known[160] = "";
    const char *name;
    LK_CHECK(lk_json_as_string(at, &name, error));
    for (*out = 0; *out < count; ++*out) {
        const char *entry = (const char *)table + *out * bytes;
        if (strcmp(entry, name) == 0) return LK_OK;
        const size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", entry);
    }
    return lk_json_refuse(at, error, "there is no %s of that name; wanted one of: %s", what, known);
}

// --- networks ------------------------------------------------------------------------------------

// [height, width, channels], or [values].
static lk_status read_shape(const lk_json_cursor *at, lk_shape *out, lk_error *error) {
    lk_json_cursor element;
    uint32_t size[3] = {1, 1, 1};
    LK_CHECK(lk_json_as_array(at, 1, 3, error));
    const size_t rank = lk_json_length(at);
    if (rank == 2) {
        return lk_json_refuse(at, error, "wanted [height, width, channels] or [values]");
    }
    for (uint32_t i = 0; i < rank; i++) {
        LK_CHECK(lk_json_element(at, i, &element, error));
        LK_CHECK(lk_json_as_u32(&element, 1, rank == 1 ? 1 << 24 : 65535, &size[i], error));
    }
    *out =
        rank == 1 ? (lk_shape){1, 1, size[0], true} : (lk_shape){size[0], size[1], size[2], false};
    return LK_OK;
}

static lk_status read_network(lk_config *c, const lk_json_cursor *at, uint32_t index, lk_network *n,
                              lk_error *error) {
    const lk_model *m = &c->spec.model;
    lk_json_cursor inputs, layers, element;
    LK_CHECK(only_keys(at, lk_network_keys, LK_COUNT(lk_network_keys), error));
    LK_CHECK(read_entry_name(at, c->graph.networks, sizeof *n, index, n->name, error));
    LK_CHECK(lk_json_get_array(at, "inputs", LK_JSON_OPTIONAL, 1, LK_NETWORK_INPUTS_MAX, &inputs,
                               error));
    n->input_count = inputs.value ? (uint32_t)lk_json_length(&inputs) : 1;
    n->inputs[0] = (lk_shape){m->in_h, m->in_w, m->in_c, false};
    for (uint32_t i = 0; inputs.value && i < n->input_count; i++) {
        LK_CHECK(lk_json_element(&inputs, i, &element, error));
        LK_CHECK(read_shape(&element, &n->inputs[i], error));
    }
    LK_CHECK(lk_json_get_array(at, "layers", LK_JSON_REQUIRED, 1, 4096, &layers, error));
    n->first_layer = m->layer_count;
    n->layer_count = (uint32_t)lk_json_length(&layers);
    return lk_config_add_layers(c, &layers, n->name, n->input_count, error);
}

lk_status lk_config_read_networks(lk_config *c, const lk_json_cursor *at, const char *key,
                                  lk_error *error) {
    lk_json_cursor list, element;
    LK_CHECK(lk_json_get_array(at, key, LK_JSON_OPTIONAL, 1, LK_NETWORKS_MAX, &list, error));
    if (!list.value) return LK_OK;
    if (lk_json_find(at, "loss", &element)) {
        return lk_json_refuse(&element, error,
                              "with \"networks\", where each objective has its own; take it out");
    }
    c->graph.calls = &lk_graph_linked;
    c->spec.model.graph = &c->graph;
    const uint32_t count = (uint32_t)lk_json_length(&list);
    lk_network *networks = make_table(count, sizeof *networks, error);
    if (!networks) return error->status;
    c->graph.networks = networks;
    for (; c->graph.network_count < count; c->graph.network_count++) {
        const uint32_t i = c->graph.network_count;
        LK_CHECK(lk_json_element(&list, i, &element, error));
        LK_CHECK(read_network(c, &element, i, &networks[i], error));
    }
    return LK_OK;
}

// --- objectives ----------------------------------------------------------------------------------

// Without inputs a value takes the one before it, the first the images.
static lk_status read_use_inputs(const lk_config *c, const lk_json_cursor *at, const lk_use *values,
                                 uint32_t index, lk_use *use, lk_error *error) {
    const uint32_t wanted = c->graph.networks[use->network].input_count;
    lk_json_cursor list, element;
    const char *name;
    LK_CHECK(lk_json_get_array(at, "inputs", wanted > 1 ? LK_JSON_REQUIRED : LK_JSON_OPTIONAL,
                               wanted, wanted, &list, error));
    use->inputs[0] = index ? index - 1 : LK_IMAGES;
    for (uint32_t i = 0; list.value && i < wanted; i++) {
        LK_CHECK(lk_json_element(&list, i, &element, error));
        LK_CHECK(lk_json_as_string(&element, &name, error));
        use->inputs[i] = LK_IMAGES;
        if (strcmp(name, "images") == 0) continue;
        if (index == 0) {
            return lk_json_refuse(&element, error, "there is no earlier value; wanted \"images\"");
        }
        LK_CHECK(find_entry(&element, "earlier value", values, sizeof *values, index,
                            &use->inputs[i], error));
    }
    return LK_OK;
}

static lk_status read_noise(const lk_json_cursor *at, lk_use *use, lk_error *error) {
    static const char *const others[] = {"type", "shape"};
    const char *names[LK_NOISE_KINDS];
    lk_json_cursor shape;
    for (uint32_t i = 0; i < LK_NOISE_KINDS; i++) names[i] = lk_noise_words_at(i)->name;
    LK_CHECK(lk_json_as_object(at, error));
    LK_CHECK(lk_json_get_choice(at, "type", LK_JSON_REQUIRED, names, LK_NOISE_KINDS,
                                &use->noise.kind, error));
    const lk_noise_words *words = lk_noise_words_at(use->noise.kind);
    LK_CHECK(lk_json_get_array(at, "shape", LK_JSON_REQUIRED, 1, 3, &shape, error));
    LK_CHECK(read_shape(&shape, &use->shape, error));
    LK_CHECK(lk_config_read_settings(at, words->keys, words->key_count, others, LK_COUNT(others),
                                     &use->noise, error));
    if (use->noise.kind != LK_NOISE_UNIFORM || use->noise.low <= use->noise.high) return LK_OK;
    return lk_json_refuse(at, error, "goes from low to a high below it, wanted one that is not");
}

// Noise takes nothing.
static lk_status read_noise_value(const lk_json_cursor *at, const lk_json_cursor *noise,
                                  lk_use *use, lk_error *error) {
    static const char *const others[] = {"network", "inputs"};
    lk_json_cursor other;
    use->network = LK_NONE;
    for (uint32_t i = 0; i < LK_COUNT(others); i++) {
        if (!lk_json_find(at, others[i], &other)) continue;
        return lk_json_refuse(&other, error, "with \"noise\", which takes nothing; take it out");
    }
    return read_noise(noise, use, error);
}

static lk_status read_use(const lk_config *c, const lk_json_cursor *at, const lk_use *values,
                          uint32_t index, lk_use *use, lk_error *error) {
    lk_json_cursor network, name, noise;
    LK_CHECK(only_keys(at, lk_value_keys, LK_COUNT(lk_value_keys), error));
    LK_CHECK(read_entry_name(at, values, sizeof *values, index, use->name, error));
    (void)lk_json_find(at, "name", &name);
    if (strcmp(use->name, "images") == 0) {
        return lk_json_refuse(&name, error, "\"images\" are those of the data; take another name");
    }
    if (lk_json_find(at, "noise", &noise)) return read_noise_value(at, &noise, use, error);
    if (!lk_json_find(at, "network", &network)) {
        return lk_json_refuse(at, error,
                              "without \"network\", wanted the name of one, or \"noise\"");
    }
    LK_CHECK(find_entry(&network, "network", c->graph.networks, sizeof *c->graph.networks,
                        c->graph.network_count, &use->network, error));
    return read_use_inputs(c, at, values, index, use, error);
}

static lk_status read_trains(const lk_config *c, const lk_json_cursor *at, lk_objective *o,
                             lk_error *error) {
    lk_json_cursor list, element;
    uint32_t network;
    LK_CHECK(lk_json_get_array(at, "trains", LK_JSON_REQUIRED, 1, LK_NETWORKS_MAX, &list, error));
    for (size_t i = 0; i < lk_json_length(&list); i++) {
        LK_CHECK(lk_json_element(&list, i, &element, error));
        LK_CHECK(find_entry(&element, "network", c->graph.networks, sizeof *c->graph.networks,
                            c->graph.network_count, &network, error));
        o->trains |= 1u << network;
    }
    return LK_OK;
}

// What a loss takes: names of values.
static lk_status read_loss_values(const lk_json_cursor *at, uint32_t wanted, lk_objective *o,
                                  lk_error *error) {
    uint32_t *const taken[] = {&o->output, &o->target};
    lk_json_cursor list, element;
    const char *name;
    LK_CHECK(lk_json_get_array(at, "inputs", LK_JSON_OPTIONAL, wanted, wanted, &list, error));
    for (uint32_t i = 0; list.value && i < wanted; i++) {
        LK_CHECK(lk_json_element(&list, i, &element, error));
        LK_CHECK(lk_json_as_string(&element, &name, error));
        *taken[i] = LK_IMAGES;
        if (i > 0 && strcmp(name, "images") == 0) continue;
        LK_CHECK(find_entry(&element, "value", o->values, sizeof *o->values, o->value_count,
                            taken[i], error));
    }
    return LK_OK;
}

// It takes the last value; of two the images, or the values that it names.
static lk_status read_objective_loss(const lk_json_cursor *at, lk_objective *o, lk_error *error) {
    lk_json_cursor object;
    const lk_loss_words *words;
    if (lk_json_find(at, "loss", &object) && lk_json_type_of(&object) == LK_JSON_OBJECT) {
        LK_CHECK(lk_config_refuse_penalty(&object, error));
    }
    LK_CHECK(lk_config_read_one_loss(at, "loss", &words, &o->loss_options, &object, error));
    o->loss = words->type;
    o->target = LK_IMAGES;
    return object.value ? read_loss_values(&object, words->type->inputs, o, error) : LK_OK;
}

static lk_status read_objective(const lk_config *c, const lk_json_cursor *at, uint32_t index,
                                lk_objective *o, lk_error *error) {
    lk_json_cursor list, element;
    LK_CHECK(only_keys(at, lk_objective_keys, LK_COUNT(lk_objective_keys), error));
    LK_CHECK(read_entry_name(at, c->graph.objectives, sizeof *o, index, o->name, error));
    LK_CHECK(lk_json_get_array(at, "values", LK_JSON_REQUIRED, 1, LK_VALUES_MAX, &list, error));
    const uint32_t count = (uint32_t)lk_json_length(&list);
    lk_use *values = make_table(count, sizeof *values, error);
    if (!values) return error->status;
    o->values = values;
    for (uint32_t v = 0; v < count; v++) {
        LK_CHECK(lk_json_element(&list, v, &element, error));
        LK_CHECK(read_use(c, &element, values, v, &values[v], error));
    }
    o->value_count = count;
    o->output = count - 1;
    LK_CHECK(read_objective_loss(at, o, error));
    LK_CHECK(read_trains(c, at, o, error));
    double clip = 0.0;
    LK_CHECK(lk_json_get_float(at, "weight_clip", LK_JSON_OPTIONAL, 0.0, 1e6, &clip,
                               &o->weight_clip, error));
    return lk_config_read_one_optimizer(at, "optimizer", &o->optimizer, error);
}

// What belongs to networks, without them.
static lk_status refuse_without_networks(const lk_json_cursor *given, lk_error *error) {
    return lk_json_refuse(given, error, "without \"networks\", which it is about; wanted both");
}

lk_status lk_config_read_objectives(lk_config *c, const lk_json_cursor *at, const char *key,
                                    lk_error *error) {
    lk_json_cursor list, element;
    const lk_json_presence presence = c->spec.model.graph ? LK_JSON_REQUIRED : LK_JSON_OPTIONAL;
    LK_CHECK(lk_json_get_array(at, key, presence, 1, LK_OBJECTIVES_MAX, &list, error));
    if (!list.value) return LK_OK;
    if (!c->spec.model.graph) return refuse_without_networks(&list, error);
    const uint32_t count = (uint32_t)lk_json_length(&list);
    lk_objective *objectives = make_table(count, sizeof *objectives, error);
    if (!objectives) return error->status;
    c->graph.objectives = objectives;
    while (c->graph.objective_count < count) {
        const uint32_t i = c->graph.objective_count++;
        LK_CHECK(lk_json_element(&list, i, &element, error));
        LK_CHECK(read_objective(c, &element, i, &objectives[i], error));
        LK_CHECK(lk_config_read_classes(c, at, objectives[i].loss, error));
    }
    return LK_OK;
}

// --- the schedule --------------------------------------------------------------------------------

static lk_status read_schedule_entry(const lk_config *c, const lk_json_cursor *at,
                                     lk_schedule_entry *e, lk_error *error) {
    lk_json_cursor part;
    LK_CHECK(lk_json_as_array(at, 2, 2, error));
    LK_CHECK(lk_json_element(at, 0, &part, error));
    LK_CHECK(find_entry(&part, "objective", c->graph.objectives, sizeof *c->graph.objectives,
                        c->graph.objective_count, &e->objective, error));
    LK_CHECK(lk_json_element(at, 1, &part, error));
    return lk_json_as_u32(&part, 1, INT32_MAX, &e->steps, error);
}

lk_status lk_config_read_schedule(lk_config *c, const lk_json_cursor *at, const char *key,
                                  lk_error *error) {
    lk_json_cursor list, element;
    const bool wanted = c->graph.objective_count > 1;
    LK_CHECK(lk_json_get_array(at, key, wanted ? LK_JSON_REQUIRED : LK_JSON_OPTIONAL, 1,
                               LK_SCHEDULE_MAX, &list, error));
    if (list.value && !c->spec.model.graph) return refuse_without_networks(&list, error);
    if (!c->spec.model.graph) return LK_OK;
    const uint32_t count = list.value ? (uint32_t)lk_json_length(&list) : 1;
    lk_schedule_entry *schedule = make_table(count, sizeof *schedule, error);
    if (!schedule) return error->status;
    c->graph.schedule = schedule;
    c->graph.schedule_count = count;
    schedule[0].steps = 1;  // the only objective
    for (uint32_t i = 0; list.value && i < count; i++) {
        LK_CHECK(lk_json_element(&list, i, &element, error));
        LK_CHECK(read_schedule_entry(c, &element, &schedule[i], error));
    }
    return LK_OK;
}

void lk_config_close_graph(lk_config *c) {
    for (uint32_t k = 0; k < c->graph.objective_count; k++) {
        free((void *)c->graph.objectives[k].values);
    }
    free((void *)c->graph.networks);
    free((void *)c->graph.objectives);
    free((void *)c->graph.schedule);
    c->graph = (lk_graph){.network_count = 0};
}
