// config_model.c - layers, loss and optimizer of a configuration, read by the tables of keys that
// they bring (ops/setting.h). Knows no layer and no optimizer.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/run/config_keys.h"

// --- layers --------------------------------------------------------------------------------------

// Layers that are being read: of a network, or of the model's only one.
typedef struct layer_list {
    const char *network;  // "": of the only one
    uint32_t first;       // its first layer, of the configuration's
    uint32_t inputs;      // how many values come before it
} layer_list;

// The name of a layer as the document has it.
static const char *local_name(const lk_config *c, const layer_list *list, uint32_t index) {
    const char *name = c->layers[index].name, *dot = strchr(name, '.');
    return *list->network && dot ? dot + 1 : name;
}

// The number of the value of that name before layer `index`: a layer's, "input", or "input_2".
static bool find_input(const lk_config *c, const layer_list *list, uint32_t index,
                       const char *name, uint32_t *number) {
    *number = 0;
    for (uint32_t i = index; i-- > list->first;) {
        if (strcmp(local_name(c, list, i), name) != 0) continue;
        *number = i - list->first + list->inputs;
        return true;
    }
    *number = list->inputs > 1 && strcmp(name, "input_2") == 0;
    return *number || strcmp(name, "input") == 0;
}

static lk_status read_inputs(const lk_config *c, const layer_list *list, const lk_json_cursor *at,
                             uint32_t index, lk_layer *l, lk_error *error) {
    lk_json_cursor names, element;
    const char *name;
    const uint32_t wanted = l->type->inputs;
    LK_CHECK(lk_json_get_array(at, "inputs", wanted > 1 ? LK_JSON_REQUIRED : LK_JSON_OPTIONAL,
                               wanted, wanted, &names, error));
    if (!names.value) return LK_OK;
    for (uint32_t i = 0; i < wanted; i++) {
        LK_CHECK(lk_json_element(&names, i, &element, error));
        LK_CHECK(lk_json_as_string(&element, &name, error));
        if (find_input(c, list, index, name, &l->inputs[i])) continue;
        return lk_json_refuse(&element, error,
                              "no layer before this one is called \"%s\"; wanted the name of an "
                              "earlier layer, or \"input\" for the model's",
                              name);
    }
    l->input_count = wanted;
    return LK_OK;
}

// As the document says it, or TYPE_NUMBER; behind the network's name, with which TYPE_NUMBER may be
// too long: then layer_NUMBER.
static lk_status read_name(const layer_list *list, const lk_json_cursor *at, const char *type,
                           uint32_t index, lk_layer *l, lk_error *error) {
    const size_t before = *list->network ? strlen(list->network) + 1 : 0;
    char name[sizeof l->name];
    const int full = snprintf(name, sizeof name, "%s_%u", type, index - list->first);
    if (before && before + (size_t)full >= sizeof name) {
        snprintf(name, sizeof name, "layer_%u", index - list->first);
    }
    LK_CHECK(lk_json_get_string(at, "name", LK_JSON_OPTIONAL, name, sizeof name, error));
    if (!*name || strchr(name, '/')) {
        return lk_json_refuse(at, error, "its name is empty or has a \"/\"");
    }
    const int length = snprintf(l->name, sizeof l->name, "%s%s%s", list->network,
                                *list->network ? "." : "", name);
    if (length >= 0 && (size_t)length < sizeof l->name) return LK_OK;
    return lk_json_refuse(at, error,
                          "its name with its network's, \"%s.%s\", is %d bytes, wanted at most "
                          "%zu; shorten its key \"name\", or the network's",
                          list->network, name, length, sizeof l->name - 1);
}

static lk_status read_trainable(const lk_json_cursor *at, lk_layer *l, lk_error *error) {
    const char *key = lk_layer_common[LK_LAYER_TRAINABLE].name;
    lk_json_cursor given;
    bool trainable = true;
    LK_CHECK(lk_json_get_bool(at, key, LK_JSON_OPTIONAL, &trainable, error));
    l->frozen = !trainable;
    if (l->type->params_max || !lk_json_find(at, key, &given)) return LK_OK;
    return lk_json_refuse(&given, error,
                          "a layer of type \"%s\" has no parameters; take it out",
                          lk_layer_words_of(l->type)->name);
}

static lk_status read_dtype(const lk_json_cursor *at, lk_layer *l, lk_error *error) {
    const lk_setting *dtype = &lk_layer_common[LK_LAYER_DTYPE];
    lk_json_cursor found;
    uint32_t choice;
    if (!lk_json_find(at, dtype->name, &found)) return LK_OK;
    LK_CHECK(lk_json_get_choice(at, dtype->name, LK_JSON_REQUIRED, dtype->choices,
                                dtype->choice_count, &choice, error));
    l->dtype = LK_LAYER_FLOAT32;
    return LK_OK;
}

static lk_status read_layer(const lk_config *c, const layer_list *list, const lk_json_cursor *at,
                            uint32_t index, lk_layer *l, lk_error *error) {
    const char *others[LK_COUNT(lk_layer_common)], *names[LK_KEY_CHOICES_MAX];
    uint32_t count = 0, choice;
    for (uint32_t i = 0; i < LK_COUNT(others); i++) others[i] = lk_layer_common[i].name;
    for (; lk_layer_words_at(count); count++) {
        lk_assert(count < LK_KEY_CHOICES_MAX);
        names[count] = lk_layer_words_at(count)->name;
    }
    LK_CHECK(lk_json_as_object(at, error));
    LK_CHECK(lk_json_get_choice(at, "type", LK_JSON_REQUIRED, names, count, &choice, error));
    const lk_layer_words *words = lk_layer_words_at(choice);
    *l = (lk_layer){.type = words->type};
    LK_CHECK(read_dtype(at, l, error));
    LK_CHECK(read_name(list, at, words->name, index, l, error));
    LK_CHECK(read_inputs(c, list, at, index, l, error));
    LK_CHECK(read_trainable(at, l, error));
    return lk_config_read_settings(at, words->keys, words->key_count, others, LK_COUNT(others), l,
                                   error);
}

static lk_status unique_name(const lk_config *c, const layer_list *list, uint32_t index,
                             const lk_json_cursor *at, lk_error *error) {
    for (uint32_t i = list->first; i < index; i++) {
        if (strcmp(c->layers[i].name, c->layers[index].name) != 0) continue;
        return lk_json_refuse(at, error,
                              "its name \"%s\" is that of layer %u too; names must differ",
                              local_name(c, list, index), i - list->first);
    }
    return LK_OK;
}

lk_status lk_config_add_layers(lk_config *c, const lk_json_cursor *list, const char *network,
                               uint32_t inputs, lk_error *error) {
    lk_model *m = &c->spec.model;
    lk_json_cursor element;
    const layer_list here = {network, m->layer_count, inputs};
    const uint32_t count = m->layer_count + (uint32_t)lk_json_length(list);
    lk_layer *layers = realloc(c->layers, count * sizeof *layers);
    if (!layers) return lk_fail(error, LK_UNAVAILABLE, "no memory for %u layers", count);
    m->layers = c->layers = layers;
    for (uint32_t i = m->layer_count; i < count; i++) {
        LK_CHECK(lk_json_element(list, i - here.first, &element, error));
        LK_CHECK(read_layer(c, &here, &element, i, &layers[i], error));
        LK_CHECK(unique_name(c, &here, i, &element, error));
    }
    m->layer_count = count;
    return LK_OK;
}

// --- the model -----------------------------------------------------------------------------------

// The number that a key is: digits alone, without a zero before them.
static bool read_class(const char *key, uint32_t *number) {
    uint32_t value = 0;
    if (!*key || (key[0] == '0' && key[1])) return false;
    for (const char *c = key; *c; c++) {
        if (*c < '0' || *c > '9' || value > LK_CLASSES_MOST) return false;
        value = value * 10 + (uint32_t)(*c - '0');
    }
    *number = value;
    return value < LK_CLASSES_MOST;
}

// The classes up to the last that the object has a number of.
static lk_status count_classes(const lk_json_cursor *object, uint32_t *count, lk_error *error) {
    lk_json_cursor value;
    for (const char *key = NULL; lk_json_next(object, &key, &value);) {
        uint32_t number;
        if (!read_class(key, &number)) {
            return lk_json_refuse(&value, error, "wanted the number of a class as its key, 0 to %u",
                                  LK_CLASSES_MOST - 1);
        }
        *count = LK_MAX(*count, number + 1);
    }
    return LK_OK;
}

static lk_status read_weight(const lk_json_cursor *at, const lk_setting *k, float *out,
                             lk_error *error) {
    return lk_json_as_float(at, (double)k->low, (double)k->high, NULL, out, error);
}

static lk_status read_weights(const lk_json_cursor *at, const lk_setting *k, bool all,
                              uint32_t count, float *out, lk_error *error) {
    lk_json_cursor value;
    for (uint32_t i = 0; i < count; i++) {
        out[i] = 1.0f;
        if (!all) continue;
        LK_CHECK(lk_json_element(at, i, &value, error));
        LK_CHECK(read_weight(&value, k, &out[i], error));
    }
    for (const char *key = NULL; !all && lk_json_next(at, &key, &value);) {
        uint32_t number = 0;
        (void)read_class(key, &number);
        LK_CHECK(read_weight(&value, k, &out[number], error));
    }
    return LK_OK;
}

lk_status lk_config_read_weights(const lk_json_cursor *at, const lk_setting *k,
                                 lk_weights_list *out, lk_error *error) {
    lk_json_cursor given;
    uint32_t count = 0;
    if (!lk_json_find(at, k->name, &given)) return LK_OK;
    const bool all = lk_json_type_of(&given) == LK_JSON_ARRAY;
    if (all) {
        LK_CHECK(lk_json_as_array(&given, 1, LK_CLASSES_MOST, error));
        count = (uint32_t)lk_json_length(&given);
    } else {
        LK_CHECK(lk_json_as_object(&given, error));
        LK_CHECK(count_classes(&given, &count, error));
    }
    float *weights = calloc(LK_MAX(count, 1u), sizeof *weights);
    if (!weights) return lk_fail(error, LK_UNAVAILABLE, "no memory for %u weights", count);
    *out = (lk_weights_list){.at = weights, .count = count, .all = all};
    return read_weights(&given, k, all, count, weights, error);
}

static void free_weights(lk_loss_options *o) {
    free((void *)(uintptr_t)o->class_weight.at);
    o->class_weight.at = NULL;
}

void lk_config_close_weights(lk_config *c) {
    free_weights(&c->spec.model.loss_options);
    for (uint32_t k = 0; k < c->graph.objective_count; k++) {
        lk_objective *o = (lk_objective *)(uintptr_t)&c->graph.objectives[k];
        free_weights(&o->loss_options);
    }
}

static lk_status read_loss_type(const lk_json_cursor *at, const char *key,
                                lk_json_presence presence, const lk_loss_words **words,
                                lk_error *error) {
    const char *names[LK_KEY_CHOICES_MAX];
    uint32_t count = 0, choice = 0;
    for (; lk_loss_words_at(count); count++) {
        lk_assert(count < LK_KEY_CHOICES_MAX);
        names[count] = lk_loss_words_at(count)->name;
    }
    LK_CHECK(lk_json_get_choice(at, key, presence, names, count, &choice, error));
    *words = lk_loss_words_at(choice);
    return LK_OK;
}

// The names of layers, as many as are wanted, or none.
static lk_status read_loss_inputs(const lk_config *c, const lk_json_cursor *at, uint32_t wanted,
                                  lk_loss_options *options, lk_error *error) {
    const layer_list all = {"", 0, 1};
    lk_json_cursor list, element;
    const char *name;
    LK_CHECK(lk_json_get_array(at, "inputs", LK_JSON_OPTIONAL, wanted, wanted, &list, error));
    if (!list.value) return LK_OK;
    for (uint32_t i = 0; i < wanted; i++) {
        LK_CHECK(lk_json_element(&list, i, &element, error));
        LK_CHECK(lk_json_as_string(&element, &name, error));
        if (find_input(c, &all, c->spec.model.layer_count, name, &options->inputs[i])) continue;
        return lk_json_refuse(&element, error,
                              "no layer is called \"%s\"; wanted the name of a layer, or \"input\" "
                              "for the model's",
                              name);
    }
    options->input_count = wanted;
    return LK_OK;
}

const char *lk_loss_required_key(const lk_loss_words *words) {
    for (uint32_t i = 0; i < words->key_count; i++) {
        if (words->keys[i].required) return words->keys[i].name;
    }
    return NULL;
}

lk_status lk_config_read_one_loss(const lk_json_cursor *at, const char *key,
                                  const lk_loss_words **words, lk_loss_options *options,
                                  lk_json_cursor *object, lk_error *error) {
    static const char *const others[] = {"inputs", "type"};
    lk_json_cursor found;
    *options = (lk_loss_options){.input_count = 0};
    object->value = NULL;
    if (lk_json_find(at, key, &found) && lk_json_type_of(&found) == LK_JSON_OBJECT) {
        LK_CHECK(lk_json_get_object(at, key, LK_JSON_REQUIRED, object, error));
        LK_CHECK(read_loss_type(object, "type", LK_JSON_REQUIRED, words, error));
        return lk_config_read_settings(object, (*words)->keys, (*words)->key_count, others,
                                       LK_COUNT(others), options, error);
    }
    LK_CHECK(read_loss_type(at, key, LK_JSON_OPTIONAL, words, error));
    const char *required = lk_loss_required_key(*words);
    if (required) {
        return lk_json_refuse(&found, error,
                              "which has a required key, \"%s\"; wanted an object: "
                              "{\"type\": \"%s\", \"%s\": ...}",
                              required, (*words)->name, required);
    }
    lk_config_set_defaults((*words)->keys, (*words)->key_count, options);
    return LK_OK;
}

lk_status lk_config_read_classes(lk_config *c, const lk_json_cursor *at, const lk_loss_type *loss,
                                 lk_error *error) {
    if (!loss->labels) return LK_OK;
    return lk_json_get_u32(at, "classes", LK_JSON_REQUIRED, LK_CLASSES_LEAST, LK_CLASSES_MOST,
                           &c->spec.model.classes, error);
}

// After the layers, which it may name. Of several networks each objective has its own.
lk_status lk_config_read_loss(lk_config *c, const lk_json_cursor *at, const char *key,
                              lk_error *error) {
    lk_json_cursor object, networks;
    const lk_loss_words *words;
    lk_model *m = &c->spec.model;
    if (lk_json_find(at, "networks", &networks)) return LK_OK;
    LK_CHECK(lk_config_read_one_loss(at, key, &words, &m->loss_options, &object, error));
    if (object.value) {
        LK_CHECK(read_loss_inputs(c, &object, words->type->inputs, &m->loss_options, error));
    }
    m->loss = words->type;
    return lk_config_read_classes(c, at, m->loss, error);
}

lk_status lk_config_read_shape(lk_config *c, const lk_json_cursor *at, const char *key,
                               lk_error *error) {
    lk_model *m = &c->spec.model;
    uint32_t *const dimensions[] = {&m->in_h, &m->in_w, &m->in_c};
    lk_json_cursor input, element;
    LK_CHECK(lk_json_get_array(at, key, LK_JSON_REQUIRED, 3, 3, &input, error));
    for (uint32_t i = 0; i < 3; i++) {
        LK_CHECK(lk_json_element(&input, i, &element, error));
        LK_CHECK(lk_json_as_u32(&element, 1, 65535, dimensions[i], error));
    }
    return LK_OK;
}

lk_status lk_config_read_layers(lk_config *c, const lk_json_cursor *at, const char *key,
                                lk_error *error) {
    lk_json_cursor layers, others;
    const bool networks = lk_json_find(at, "networks", &others);
    LK_CHECK(lk_json_get_array(at, key, networks ? LK_JSON_OPTIONAL : LK_JSON_REQUIRED, 0, 4096,
                               &layers, error));
    if (networks && layers.value) {
        return lk_json_refuse(&layers, error,
                              "with \"networks\", wanted one of the two: each network has its own "
                              "layers");
    }
    if (networks) return LK_OK;
    if (lk_json_length(&layers) == 0 && c->spec.model.classes) {
        return lk_json_refuse(&layers, error,
                              "wanted one layer or more, the last a dense one with %u units, as "
                              "many as there are classes",
                              c->spec.model.classes);
    }
    if (lk_json_length(&layers) == 0) {
        return lk_json_refuse(&layers, error, "wanted one layer or more");
    }
    return lk_config_add_layers(c, &layers, "", 1, error);
}

lk_status lk_config_read_rate(const lk_json_cursor *at, const char *key, lk_rate *rate,
                              lk_error *error) {
    static const char *const others[] = {"type"};
    const char *names[LK_KEY_CHOICES_MAX];
    lk_json_cursor inner;
    uint32_t count = 0, choice;
    *rate = (lk_rate){.type = &lk_rate_constant};
    LK_CHECK(lk_json_get_object(at, key, LK_JSON_OPTIONAL, &inner, error));
    if (!inner.value) return LK_OK;
    for (; lk_rate_words_at(count); count++) {
        lk_assert(count < LK_KEY_CHOICES_MAX);
        names[count] = lk_rate_words_at(count)->name;
    }
    LK_CHECK(lk_json_get_choice(&inner, "type", LK_JSON_REQUIRED, names, count, &choice, error));
    const lk_rate_words *words = lk_rate_words_at(choice);
    rate->type = words->type;
    LK_CHECK(lk_config_read_settings(&inner, words->keys, words->key_count, others,
                                     LK_COUNT(others), rate, error));
    return LK_OK;
}

lk_status lk_config_read_optimizer(lk_config *c, const lk_json_cursor *at, const char *key,
                                   lk_error *error) {
    lk_json_cursor given;
    if (!c->spec.model.graph) {
        return lk_config_read_one_optimizer(at, key, &c->spec.optimizer, error);
    }
    if (!lk_json_find(at, key, &given)) return LK_OK;
    return lk_json_refuse(&given, error,
                          "with \"model.objectives\", each of which has its own; take it out");
}

lk_status lk_config_read_one_optimizer(const lk_json_cursor *at, const char *key, lk_optimizer *out,
                                       lk_error *error) {
    static const char *const others[] = {"type"};
    const char *names[LK_KEY_CHOICES_MAX];
    lk_json_cursor inner;
    uint32_t count = 0, choice;
    for (; lk_optimizer_words_at(count); count++) {
        lk_assert(count < LK_KEY_CHOICES_MAX);
        names[count] = lk_optimizer_words_at(count)->name;
    }
    LK_CHECK(lk_json_get_object(at, key, LK_JSON_REQUIRED, &inner, error));
    LK_CHECK(lk_json_get_choice(&inner, "type", LK_JSON_REQUIRED, names, count, &choice, error));
    const lk_optimizer_words *words = lk_optimizer_words_at(choice);
    out->type = words->type;
    return lk_config_read_settings(&inner, words->keys, words->key_count, others, LK_COUNT(others),
                                   out, error);
}
