// config_model.c - "model" and "optimizer" of a configuration, read by the tables of keys that
// layers and optimizers bring (ops/setting.h). Knows no layer and no optimizer.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/config.h"

enum { KEYS_MAX = 24, CHOICES_MAX = 32 };

// --- one value -----------------------------------------------------------------------------------

// A size for rows and columns: one integer, or [rows, columns].
static lk_status read_pair(const lk_json_cursor *at, const lk_setting *k, lk_json_presence presence,
                           uint32_t *pair, lk_error *error) {
    lk_json_cursor value, element;
    const bool given = lk_json_find(at, k->name, &value);
    if (!given || lk_json_type_of(&value) != LK_JSON_ARRAY) {
        LK_CHECK(lk_json_get_u32(at, k->name, presence, 1, k->most, &pair[0], error));
        if (given) pair[1] = pair[0];
        return LK_OK;
    }
    LK_CHECK(lk_json_as_array(&value, 2, 2, error));
    for (uint32_t i = 0; i < 2; i++) {
        LK_CHECK(lk_json_element(&value, i, &element, error));
        LK_CHECK(lk_json_as_u32(&element, 1, k->most, &pair[i], error));
    }
    return LK_OK;
}

static lk_status read_padding(const lk_json_cursor *at, const lk_setting *k, lk_padding *padding,
                              lk_error *error) {
    static const char *const names[] = {"valid", "same"};
    uint32_t choice = *padding - LK_PADDING_VALID;
    LK_CHECK(
        lk_json_get_choice(at, k->name, LK_JSON_OPTIONAL, names, LK_COUNT(names), &choice, error));
    *padding = (lk_padding)(choice + LK_PADDING_VALID);
    return LK_OK;
}

static lk_status read_activation(const lk_json_cursor *at, const lk_setting *k,
                                 const lk_layer_type **type, lk_error *error) {
    const char *names[CHOICES_MAX] = {"linear"};
    const lk_layer_type *types[CHOICES_MAX] = {NULL};
    const lk_layer_words *words;
    uint32_t count = 1, choice = 0;
    for (uint32_t i = 0; (words = lk_layer_words_at(i)) != NULL; i++) {
        if (!words->activation) continue;
        lk_assert(count < CHOICES_MAX);
        names[count] = words->name;
        types[count++] = words->type;
    }
    LK_CHECK(lk_json_get_choice(at, k->name, LK_JSON_OPTIONAL, names, count, &choice, error));
    *type = types[choice];
    return LK_OK;
}

static lk_status read_initializer(const lk_json_cursor *at, const lk_setting *k,
                                  const lk_initializer **initializer, lk_error *error) {
    const char *names[CHOICES_MAX];
    uint32_t count = 0, choice = 0;
    for (; lk_initializer_at(count); count++) {
        lk_assert(count < CHOICES_MAX);
        names[count] = lk_initializer_at(count)->name;
        if (lk_initializer_at(count) == &lk_initializer_glorot_uniform) choice = count;
    }
    LK_CHECK(lk_json_get_choice(at, k->name, LK_JSON_OPTIONAL, names, count, &choice, error));
    *initializer = lk_initializer_at(choice);
    return LK_OK;
}

static lk_status check_below(const lk_json_cursor *at, const lk_setting *k, float found,
                             lk_error *error) {
    lk_json_cursor value;
    char wanted[64];
    if (k->below == 0.0f || found < k->below || !lk_json_find(at, k->name, &value)) return LK_OK;
    snprintf(wanted, sizeof wanted, "from %g to below %g", (double)k->low, (double)k->below);
    return lk_json_refuse(&value, error, "wanted a number %s", wanted);
}

static lk_status read_key(const lk_json_cursor *at, const lk_setting *k, const lk_setting *fallback,
                          uint8_t *owner, lk_error *error) {
    const lk_json_presence presence = k->required ? LK_JSON_REQUIRED : LK_JSON_OPTIONAL;
    void *field = owner + k->offset;
    uint32_t *u = field;
    switch (k->kind) {
    case LK_SETTING_U32:
        *u = k->constant;
        return lk_json_get_u32(at, k->name, presence, 1, k->most, u, error);
    case LK_SETTING_PAIR:
        u[0] = u[1] = k->constant;
        if (fallback) memcpy(u, owner + fallback->offset, 2 * sizeof *u);
        return read_pair(at, k, presence, u, error);
    case LK_SETTING_BOOL:
        *(bool *)field = k->constant != 0;
        return lk_json_get_bool(at, k->name, presence, field, error);
    case LK_SETTING_FLOAT:
        *(float *)field = k->float_constant;
        LK_CHECK(lk_json_get_float(at, k->name, presence, (double)k->low, (double)k->high, NULL,
                                   field, error));
        return check_below(at, k, *(float *)field, error);
    case LK_SETTING_PADDING: *u = k->constant; return read_padding(at, k, field, error);
    case LK_SETTING_ACTIVATION: return read_activation(at, k, field, error);
    case LK_SETTING_INITIALIZER: return read_initializer(at, k, field, error);
    }
    lk_panic(__FILE__, __LINE__, "a kind of key that is not read");
}

// All keys of a table; `others` are what may stand beside them.
static lk_status read_keys(const lk_json_cursor *at, const lk_setting *keys, uint32_t count,
                           const char *const *others, uint32_t other_count, void *owner,
                           lk_error *error) {
    const char *names[KEYS_MAX];
    lk_assert(count + other_count <= KEYS_MAX);
    for (uint32_t i = 0; i < other_count; i++) names[i] = others[i];
    for (uint32_t i = 0; i < count; i++) names[other_count + i] = keys[i].name;
    LK_CHECK(lk_json_keys_only(at, names, count + other_count, error));
    for (uint32_t i = 0; i < count; i++) {
        const lk_setting *fallback = NULL;
        for (uint32_t f = 0; f < i && keys[i].fallback; f++) {
            if (strcmp(keys[f].name, keys[i].fallback) == 0) fallback = &keys[f];
        }
        LK_CHECK(read_key(at, &keys[i], fallback, owner, error));
    }
    return LK_OK;
}

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
    static const char *const others[] = {"type", "name", "inputs"};
    const char *names[CHOICES_MAX];
    uint32_t count = 0, choice;
    for (; lk_layer_words_at(count); count++) {
        lk_assert(count < CHOICES_MAX);
        names[count] = lk_layer_words_at(count)->name;
    }
    LK_CHECK(lk_json_as_object(at, error));
    LK_CHECK(lk_json_get_choice(at, "type", LK_JSON_REQUIRED, names, count, &choice, error));
    const lk_layer_words *words = lk_layer_words_at(choice);
    *l = (lk_layer){.type = words->type};
    snprintf(l->name, sizeof l->name, "%s_%u", words->name, index);
    LK_CHECK(lk_json_get_string(at, "name", LK_JSON_OPTIONAL, l->name, sizeof l->name, error));
    LK_CHECK(read_inputs(c, at, index, l, error));
    return read_keys(at, words->keys, words->key_count, others, LK_COUNT(others), l, error);
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

static lk_status read_loss(const lk_json_cursor *at, const lk_loss_type **type, lk_error *error) {
    const char *names[CHOICES_MAX];
    uint32_t count = 0, choice = 0;
    for (; lk_loss_words_at(count); count++) {
        lk_assert(count < CHOICES_MAX);
        names[count] = lk_loss_words_at(count)->name;
    }
    LK_CHECK(lk_json_get_choice(at, "loss", LK_JSON_OPTIONAL, names, count, &choice, error));
    *type = lk_loss_words_at(choice)->type;
    return LK_OK;
}

lk_status lk_config_read_model(lk_config *c, const lk_json_cursor *root, lk_error *error) {
    static const char *const keys[] = {"input", "classes", "loss", "layers"};
    lk_json_cursor model, input, layers, element;
    lk_model *m = &c->spec.model;
    uint32_t *const dimensions[] = {&m->in_h, &m->in_w, &m->in_c};
    LK_CHECK(lk_json_get_object(root, "model", LK_JSON_REQUIRED, &model, error));
    LK_CHECK(lk_json_keys_only(&model, keys, LK_COUNT(keys), error));
    LK_CHECK(lk_json_get_array(&model, "input", LK_JSON_REQUIRED, 3, 3, &input, error));
    for (uint32_t i = 0; i < 3; i++) {
        LK_CHECK(lk_json_element(&input, i, &element, error));
        LK_CHECK(lk_json_as_u32(&element, 1, 65535, dimensions[i], error));
    }
    LK_CHECK(lk_json_get_u32(&model, "classes", LK_JSON_REQUIRED, 2, 256, &m->classes, error));
    LK_CHECK(read_loss(&model, &m->loss, error));
    LK_CHECK(lk_json_get_array(&model, "layers", LK_JSON_REQUIRED, 0, 4096, &layers, error));
    if (lk_json_length(&layers) == 0) {
        return lk_json_refuse(&layers, error,
                              "wanted one layer or more, the last a dense one with %u units, as "
                              "many as there are classes",
                              m->classes);
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

lk_status lk_config_read_optimizer(lk_config *c, const lk_json_cursor *root, lk_error *error) {
    static const char *const others[] = {"type"};
    const char *names[CHOICES_MAX];
    lk_json_cursor at;
    uint32_t count = 0, choice;
    for (; lk_optimizer_words_at(count); count++) {
        lk_assert(count < CHOICES_MAX);
        names[count] = lk_optimizer_words_at(count)->name;
    }
    LK_CHECK(lk_json_get_object(root, "optimizer", LK_JSON_REQUIRED, &at, error));
    LK_CHECK(lk_json_get_choice(&at, "type", LK_JSON_REQUIRED, names, count, &choice, error));
    const lk_optimizer_words *words = lk_optimizer_words_at(choice);
    c->spec.optimizer.type = words->type;
    return read_keys(&at, words->keys, words->key_count, others, LK_COUNT(others),
                     &c->spec.optimizer, error);
}
