// config_model.c - layers, loss and optimizer of a configuration, read by the tables of keys that
// they bring (ops/setting.h). Knows no layer and no optimizer.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/run/config_keys.h"

// --- layers --------------------------------------------------------------------------------------

// The layer of that name before layer `index`, plus 1; 0: "input", the model's.
static bool find_input(const lk_config *c, uint32_t index, const char *name, uint32_t *number) {
    *number = 0;
    for (uint32_t i = index; i-- > 0;) {
        if (strcmp(c->layers[i].name, name) != 0) continue;
        *number = i + 1;
        return true;
    }
    return strcmp(name, "input") == 0;
}

static lk_status read_inputs(const lk_config *c, const lk_json_cursor *at, uint32_t index,
                             lk_layer *l, lk_error *error) {
    lk_json_cursor list, element;
    const char *name;
    const uint32_t wanted = l->type->inputs;
    LK_CHECK(lk_json_get_array(at, "inputs", wanted > 1 ? LK_JSON_REQUIRED : LK_JSON_OPTIONAL,
                               wanted, wanted, &list, error));
    if (!list.value) return LK_OK;
    for (uint32_t i = 0; i < wanted; i++) {
        LK_CHECK(lk_json_element(&list, i, &element, error));
        LK_CHECK(lk_json_as_string(&element, &name, error));
        if (find_input(c, index, name, &l->inputs[i])) continue;
        return lk_json_refuse(&element, error,
                              "no layer before this one is called \"%s\"; wanted the name of an "
                              "earlier layer, or \"input\" for the model's",
                              name);
    }
    l->input_count = wanted;
    return LK_OK;
}

static lk_status read_layer(const lk_config *c, const lk_json_cursor *at, uint32_t index,
                            lk_layer *l, lk_error *error) {
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
    snprintf(l->name, sizeof l->name, "%s_%u", words->name, index);
    LK_CHECK(lk_json_get_string(at, "name", LK_JSON_OPTIONAL, l->name, sizeof l->name, error));
    LK_CHECK(read_inputs(c, at, index, l, error));
    return lk_config_read_settings(at, words->keys, words->key_count, others, LK_COUNT(others), l,
                                   error);
}

static lk_status unique_name(const lk_config *c, uint32_t index, const lk_json_cursor *at,
                             lk_error *error) {
    if (!*c->layers[index].name || strchr(c->layers[index].name, '/')) {
        return lk_json_refuse(at, error, "its name is empty or has a \"/\"");
    }
    for (uint32_t i = 0; i < index; i++) {
        if (strcmp(c->layers[i].name, c->layers[index].name) != 0) continue;
        return lk_json_refuse(at, error,
                              "its name \"%s\" is that of layer %u too; names must differ",
                              c->layers[index].name, i);
    }
    return LK_OK;
}

// --- the model -----------------------------------------------------------------------------------

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
    lk_json_cursor list, element;
    const char *name;
    LK_CHECK(lk_json_get_array(at, "inputs", LK_JSON_OPTIONAL, wanted, wanted, &list, error));
    if (!list.value) return LK_OK;
    for (uint32_t i = 0; i < wanted; i++) {
        LK_CHECK(lk_json_element(&list, i, &element, error));
        LK_CHECK(lk_json_as_string(&element, &name, error));
        if (find_input(c, c->spec.model.layer_count, name, &options->inputs[i])) continue;
        return lk_json_refuse(&element, error,
                              "no layer is called \"%s\"; wanted the name of a layer, or \"input\" "
                              "for the model's",
                              name);
    }
    options->input_count = wanted;
    return LK_OK;
}

// After the layers, which it may name.
lk_status lk_config_read_loss(lk_config *c, const lk_json_cursor *at, const char *key,
                              lk_error *error) {
    static const char *const others[] = {"inputs", "type"};
    lk_json_cursor inner, found;
    const lk_loss_words *words;
    lk_model *m = &c->spec.model;
    const bool object =
        lk_json_find(at, key, &found) && lk_json_type_of(&found) == LK_JSON_OBJECT;
    m->loss_options = (lk_loss_options){.input_count = 0};
    if (object) {
        LK_CHECK(lk_json_get_object(at, key, LK_JSON_REQUIRED, &inner, error));
        LK_CHECK(read_loss_type(&inner, "type", LK_JSON_REQUIRED, &words, error));
        LK_CHECK(lk_config_read_settings(&inner, words->keys, words->key_count, others,
                                         LK_COUNT(others), &m->loss_options, error));
        LK_CHECK(read_loss_inputs(c, &inner, words->type->inputs, &m->loss_options, error));
    } else {
        LK_CHECK(read_loss_type(at, key, LK_JSON_OPTIONAL, &words, error));
        lk_config_set_defaults(words->keys, words->key_count, &m->loss_options);
    }
    m->loss = words->type;
    if (!words->type->labels) return LK_OK;
    return lk_json_get_u32(at, "classes", LK_JSON_REQUIRED, LK_CLASSES_LEAST, LK_CLASSES_MOST,
                           &m->classes, error);
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
    lk_model *m = &c->spec.model;
    lk_json_cursor layers, element;
    LK_CHECK(lk_json_get_array(at, key, LK_JSON_REQUIRED, 0, 4096, &layers, error));
    if (lk_json_length(&layers) == 0 && m->classes) {
        return lk_json_refuse(&layers, error,
                              "wanted one layer or more, the last a dense one with %u units, as "
                              "many as there are classes",
                              m->classes);
    }
    if (lk_json_length(&layers) == 0) {
        return lk_json_refuse(&layers, error, "wanted one layer or more");
    }
    m->layer_count = (uint32_t)lk_json_length(&layers);
    c->layers = calloc(m->layer_count, sizeof *c->layers);
    if (!c->layers)
        return lk_fail(error, LK_UNAVAILABLE, "no memory for %u layers", m->layer_count);
    m->layers = c->layers;
    for (uint32_t i = 0; i < m->layer_count; i++) {
        LK_CHECK(lk_json_element(&layers, i, &element, error));
        LK_CHECK(read_layer(c, &element, i, &c->layers[i], error));
        LK_CHECK(unique_name(c, i, &element, error));
    }
    return LK_OK;
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
    c->spec.optimizer.type = words->type;
    return lk_config_read_settings(&inner, words->keys, words->key_count, others, LK_COUNT(others),
                                   &c->spec.optimizer, error);
}
