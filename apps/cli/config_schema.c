// config_schema.c - the JSON schema (draft 2020-12) of configurations, made from the table of keys.
// May use the heap. What a schema cannot say (shapes of layers, products of batches, names that are
// not unique, bytes of a text) only reading the configuration finds.
#define _GNU_SOURCE
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/cli/command.h"
#include "apps/run/config_keys.h"

static void put(json_t *object, const char *name, json_t *value) {
    (void)json_object_set_new(object, name, value);
}

static json_t *make_array(const char *const *names, uint32_t count) {
    json_t *array = json_array();
    for (uint32_t i = 0; i < count; i++) (void)json_array_append_new(array, json_string(names[i]));
    return array;
}

// --- values --------------------------------------------------------------------------------------

static json_t *make_integer(uint64_t least, uint64_t most) {
    return json_pack("{s:s, s:I, s:I}", "type", "integer", "minimum", (json_int_t)least, "maximum",
                     (json_int_t)LK_MIN(most, (uint64_t)INT64_MAX));
}

static json_t *make_words(const char *const *names, uint32_t count) {
    return json_pack("{s:o}", "enum", make_array(names, count));
}

static json_t *make_number(const lk_setting *k) {
    json_t *number = json_pack("{s:s, s:f}", "type", "number", "minimum", (double)k->low);
    if (k->below != 0.0f)
        put(number, "exclusiveMaximum", json_real((double)k->below));
    else
        put(number, "maximum", json_real((double)k->high));
    return number;
}

static json_t *make_pair(const lk_setting *k) {
    json_t *one = make_integer(lk_setting_least(k), k->most);
    json_t *two = json_pack("{s:s, s:O, s:i, s:i}", "type", "array", "items", one, "minItems", 2,
                            "maxItems", 2);
    return json_pack("{s:[o, o]}", "anyOf", one, two);
}

static json_t *make_list(const lk_setting *k) {
    json_t *each =
        k->kind == LK_SETTING_STEPS ? make_integer(lk_setting_least(k), k->most) : make_number(k);
    return json_pack("{s:s, s:o, s:i, s:i}", "type", "array", "items", each, "minItems", 1,
                     "maxItems", LK_SETTING_LIST_MAX);
}

// [height, width, channels], [time, features] or [values].
static json_t *make_shape(const lk_setting *k) {
    return json_pack("{s:s, s:o, s:i, s:i}", "type", "array", "items", make_integer(1, k->most),
                     "minItems", 1, "maxItems", 3);
}

// A number, [rows, columns], or [[top, bottom], [left, right]].
static json_t *make_sides(const lk_setting *k) {
    json_t *one = make_integer(0, k->most), *pair, *pairs;
    pair = json_pack("{s:s, s:O, s:i, s:i}", "type", "array", "items", one, "minItems", 2,
                     "maxItems", 2);
    pairs = json_pack("{s:s, s:O, s:i, s:i}", "type", "array", "items", pair, "minItems", 2,
                      "maxItems", 2);
    return json_pack("{s:[o, o, o]}", "anyOf", one, pair, pairs);
}

static json_t *make_weights(const lk_setting *k) {
    json_t *list = json_pack("{s:s, s:o, s:i, s:i}", "type", "array", "items", make_number(k),
                             "minItems", 1, "maxItems", LK_CLASSES_MOST);
    json_t *some = json_pack("{s:s, s:{s:o}, s:b}", "type", "object", "patternProperties",
                             "^(0|[1-9][0-9]*)$", make_number(k), "additionalProperties", 0);
    return json_pack("{s:[o, o]}", "anyOf", list, some);
}

static json_t *make_l2(const lk_setting *k) {
    return json_pack("{s:s, s:{s:o}, s:[s], s:b}", "type", "object", "properties", "l2",
                     make_number(k), "required", "l2", "additionalProperties", 0);
}

static json_t *make_rate(void);

static json_t *make_value(const lk_setting *k) {
    const char *names[LK_KEY_CHOICES_MAX];
    uint32_t fallback;
    const uint32_t count = lk_setting_words(k, names, &fallback);
    switch (k->kind) {
    case LK_SETTING_U32: return make_integer(lk_setting_least(k), k->most);
    case LK_SETTING_U64:
        if (!k->word) return make_integer(lk_setting_least(k), k->most);
        return json_pack("{s:[o, {s:s}]}", "anyOf", make_integer(lk_setting_least(k), k->most),
                         "const", k->word);
    case LK_SETTING_PAIR: return make_pair(k);
    case LK_SETTING_BOOL: return json_pack("{s:s}", "type", "boolean");
    case LK_SETTING_FLOAT: return make_number(k);
    case LK_SETTING_STEPS:
    case LK_SETTING_FLOATS: return make_list(k);
    case LK_SETTING_RATE: return make_rate();
    case LK_SETTING_SHAPE: return make_shape(k);
    case LK_SETTING_SIDES: return make_sides(k);
    case LK_SETTING_L2: return make_l2(k);
    case LK_SETTING_WEIGHTS: return make_weights(k);
    case LK_SETTING_TEXT:
        return json_pack("{s:s, s:I}", "type", "string", "maxLength", (json_int_t)k->most - 1);
    case LK_SETTING_PADDING:
    case LK_SETTING_ACTIVATION:
    case LK_SETTING_INITIALIZER:
    case LK_SETTING_CHOICE: return make_words(names, count);
    }
    lk_panic(__FILE__, __LINE__, "a kind of key that has no schema");
}

// With what an editor shows beside it.
static json_t *describe(json_t *schema, const lk_setting *k) {
    json_t *fallback = lk_setting_default(k);
    if (k->meaning) put(schema, "description", json_string(k->meaning));
    if (fallback && json_object_size(schema) > 1)
        put(schema, "default", fallback);
    else
        json_decref(fallback);
    return schema;
}

// --- layers and optimizers -----------------------------------------------------------------------

static json_t *make_typed(const char *type, const char *meaning, const lk_setting *keys,
                          uint32_t count) {
    json_t *properties = json_object(), *required = json_pack("[s]", "type");
    put(properties, "type", json_pack("{s:s, s:s}", "const", type, "description", meaning));
    for (uint32_t i = 0; i < count; i++) {
        put(properties, keys[i].name, describe(make_value(&keys[i]), &keys[i]));
        if (keys[i].required) (void)json_array_append_new(required, json_string(keys[i].name));
    }
    return json_pack("{s:s, s:o, s:o, s:b}", "type", "object", "properties", properties, "required",
                     required, "additionalProperties", 0);
}

static json_t *make_rate(void) {
    const lk_rate_words *words;
    json_t *types = json_array();
    for (uint32_t i = 0; (words = lk_rate_words_at(i)) != NULL; i++) {
        (void)json_array_append_new(
            types, make_typed(words->name, words->meaning, words->keys, words->key_count));
    }
    return json_pack("{s:o}", "oneOf", types);
}

static json_t *make_layer(const lk_layer_words *words) {
    json_t *layer = make_typed(words->name, words->meaning, words->keys, words->key_count);
    json_t *properties = json_object_get(layer, "properties");
    const lk_setting *name = &lk_layer_common[LK_LAYER_NAME];
    const lk_setting *inputs = &lk_layer_common[LK_LAYER_INPUTS];
    const lk_setting *dtype = &lk_layer_common[LK_LAYER_DTYPE];
    const int wanted = (int)words->type->inputs;
    json_t *text = make_value(name);
    put(text, "pattern", json_string("^[^/]+$"));
    put(properties, name->name, describe(text, name));
    if (words->type->params_max) {
        const lk_setting *trainable = &lk_layer_common[LK_LAYER_TRAINABLE];
        put(properties, trainable->name, describe(make_value(trainable), trainable));
    }
    put(properties, dtype->name, describe(make_value(dtype), dtype));
    put(properties, inputs->name,
        describe(json_pack("{s:s, s:{s:s}, s:i, s:i}", "type", "array", "items", "type", "string",
                           "minItems", wanted, "maxItems", wanted),
                 inputs));
    if (wanted > 1) {
        (void)json_array_append_new(json_object_get(layer, "required"), json_string(inputs->name));
    }
    return layer;
}

static json_t *make_layers(const lk_key *key) {
    const lk_layer_words *words;
    json_t *types = json_array();
    for (uint32_t i = 0; (words = lk_layer_words_at(i)) != NULL; i++) {
        (void)json_array_append_new(types, make_layer(words));
    }
    return json_pack("{s:s, s:i, s:I, s:{s:o}}", "type", "array", "minItems", 1, "maxItems",
                     (json_int_t)key->value.most, "items", "oneOf", types);
}

static json_t *make_optimizer(void) {
    const lk_optimizer_words *words;
    json_t *types = json_array();
    for (uint32_t i = 0; (words = lk_optimizer_words_at(i)) != NULL; i++) {
        (void)json_array_append_new(
            types, make_typed(words->name, words->meaning, words->keys, words->key_count));
    }
    return json_pack("{s:o}", "oneOf", types);
}

static json_t *make_loss(void) {
    const lk_loss_words *words;
    const lk_setting *inputs = &lk_loss_common[LK_LOSS_INPUTS];
    json_t *names = json_array(), *types = json_array();
    for (uint32_t i = 0; (words = lk_loss_words_at(i)) != NULL; i++) {
        json_t *loss = make_typed(words->name, words->meaning, words->keys, words->key_count);
        const int wanted = (int)words->type->inputs;
        if (!lk_loss_required_key(words))
            (void)json_array_append_new(names, json_string(words->name));
        put(json_object_get(loss, "properties"), inputs->name,
            describe(json_pack("{s:s, s:{s:s}, s:i, s:i}", "type", "array", "items", "type",
                               "string", "minItems", wanted, "maxItems", wanted),
                     inputs));
        (void)json_array_append_new(types, loss);
    }
    return json_pack("{s:[{s:o}, {s:o}], s:s}", "anyOf", "enum", names, "oneOf", types, "default",
                     lk_loss_words_at(0)->name);
}

// --- several networks ----------------------------------------------------------------------------

static json_t *make_entries(json_t *items, uint64_t least, uint64_t most) {
    return json_pack("{s:s, s:o, s:I, s:I}", "type", "array", "items", items, "minItems",
                     (json_int_t)least, "maxItems", (json_int_t)most);
}

static json_t *make_word(void) { return json_pack("{s:s, s:i}", "type", "string", "minLength", 1); }

// An object with these keys, each by its schema in `schemas`; a NULL there is a name.
static json_t *make_entry(const lk_setting *keys, uint32_t count, json_t *const *schemas) {
    json_t *properties = json_object(), *required = json_array();
    for (uint32_t i = 0; i < count; i++) {
        json_t *schema = schemas[i] ? schemas[i] : make_value(&keys[i]);
        if (!schemas[i]) put(schema, "pattern", json_string("^[^/.]+$"));
        put(schema, "description", json_string(keys[i].meaning));
        put(properties, keys[i].name, schema);
        if (keys[i].required) (void)json_array_append_new(required, json_string(keys[i].name));
    }
    return json_pack("{s:s, s:o, s:o, s:b}", "type", "object", "properties", properties, "required",
                     required, "additionalProperties", 0);
}

static json_t *make_input_shape(void) {
    return json_pack("{s:[o, o]}", "oneOf", make_entries(make_integer(1, 1 << 24), 1, 1),
                     make_entries(make_integer(1, 65535), 3, 3));
}

static json_t *make_networks(const lk_key *key) {
    const lk_key layers = {.value = {.most = lk_network_keys[2].most}};
    json_t *const schemas[] = {NULL, make_entries(make_input_shape(), 1, LK_NETWORK_INPUTS_MAX),
                               make_layers(&layers)};
    return make_entries(make_entry(lk_network_keys, LK_COUNT(lk_network_keys), schemas), 1,
                        key->value.most);
}

static json_t *make_noise(void) {
    const lk_noise_words *words;
    json_t *kinds = json_array();
    for (uint32_t i = 0; (words = lk_noise_words_at(i)) != NULL; i++) {
        json_t *kind = make_typed(words->name, words->meaning, words->keys, words->key_count);
        put(json_object_get(kind, "properties"), "shape", make_input_shape());
        (void)json_array_append_new(json_object_get(kind, "required"), json_string("shape"));
        (void)json_array_append_new(kinds, kind);
    }
    return json_pack("{s:o}", "oneOf", kinds);
}

// A network's value, or noise.
static json_t *make_use(void) {
    json_t *const schemas[] = {NULL, make_word(),
                               make_entries(make_word(), 1, LK_NETWORK_INPUTS_MAX), make_noise()};
    json_t *use = make_entry(lk_value_keys, LK_COUNT(lk_value_keys), schemas);
    put(use, "oneOf",
        json_loads("[{\"required\": [\"network\"]}, {\"required\": [\"noise\"]}]", 0, NULL));
    return use;
}

static json_t *make_objectives(const lk_key *key) {
    json_t *values = make_entries(make_use(), 1, LK_VALUES_MAX);
    json_t *const schemas[] = {NULL,
                               values,
                               make_loss(),
                               make_entries(make_word(), 1, LK_NETWORKS_MAX),
                               make_optimizer(),
                               make_value(&lk_objective_keys[5])};
    return make_entries(make_entry(lk_objective_keys, LK_COUNT(lk_objective_keys), schemas), 1,
                        key->value.most);
}

// The kind of a pair of losses, or an object with it and what else they have.
static json_t *make_pair_of_losses(void) {
    const lk_loss_words *words = lk_loss_words_of(&lk_loss_gan_discriminator);
    json_t *object = make_typed(words->name, words->meaning, words->keys, words->key_count);
    json_t *properties = json_object_get(object, "properties");
    (void)json_object_del(properties, "type");
    (void)json_array_remove(json_object_get(object, "required"), 0);
    json_t *kind = json_deep_copy(json_object_get(properties, "kind"));
    return json_pack("{s:[o, o]}", "anyOf", kind, object);
}

// Layers and optimizers are said once in the schema, where those of a model of one network are.
static json_t *make_gan(void) {
    static const char layers[] = "#/properties/model/properties/layers";
    static const char optimizer[] = "#/properties/optimizer";
    json_t *properties = json_object(), *required = json_array();
    for (uint32_t i = 0; i < LK_COUNT(lk_gan_keys); i++) {
        const lk_setting *k = &lk_gan_keys[i];
        json_t *schema = NULL;
        switch (i) {
        case LK_GAN_NOISE: schema = make_noise(); break;
        case LK_GAN_GENERATOR:
        case LK_GAN_DISCRIMINATOR: schema = json_pack("{s:s}", "$ref", layers); break;
        case LK_GAN_LOSS: schema = make_pair_of_losses(); break;
        case LK_GAN_GENERATOR_OPTIMIZER:
        case LK_GAN_DISCRIMINATOR_OPTIMIZER: schema = json_pack("{s:s}", "$ref", optimizer); break;
        default: schema = describe(make_value(k), k); break;
        }
        put(schema, "description", json_string(k->meaning));
        put(properties, k->name, schema);
        if (k->required) (void)json_array_append_new(required, json_string(k->name));
    }
    return json_pack("{s:s, s:o, s:o, s:b}", "type", "object", "properties", properties, "required",
                     required, "additionalProperties", 0);
}

static json_t *make_schedule(const lk_key *key) {
    json_t *entry = json_pack("{s:s, s:[o, o], s:b, s:i}", "type", "array", "prefixItems",
                              make_word(), make_integer(1, INT32_MAX), "items", 0, "minItems", 2);
    return make_entries(entry, 1, key->value.most);
}

// --- objects -------------------------------------------------------------------------------------

static json_t *make_group(const lk_key *group);

static json_t *make_key(const lk_key *key) {
    json_t *schema = NULL;
    switch (key->form) {
    case LK_KEY_VALUE: schema = make_value(&key->value); break;
    case LK_KEY_OBJECT: schema = make_group(key); break;
    case LK_KEY_LAYERS: schema = make_layers(key); break;
    case LK_KEY_OPTIMIZER: schema = make_optimizer(); break;
    case LK_KEY_LOSS: schema = make_loss(); break;
    case LK_KEY_NETWORKS: schema = make_networks(key); break;
    case LK_KEY_OBJECTIVES: schema = make_objectives(key); break;
    case LK_KEY_SCHEDULE: schema = make_schedule(key); break;
    case LK_KEY_GAN: schema = make_gan(); break;
    case LK_KEY_NOTE: schema = json_pack("{s:s}", "type", "string"); break;
    case LK_KEY_SHAPE:
        schema = json_pack("{s:s, s:o, s:i, s:i}", "type", "array", "items",
                           make_integer(1, key->value.most), "minItems", 3, "maxItems", 3);
        break;
    }
    if (key->pattern) put(schema, "pattern", json_string(key->pattern));
    return key->form == LK_KEY_VALUE
               ? describe(schema, &key->value)
               : (put(schema, "description", json_string(key->value.meaning)), schema);
}

static json_t *make_group(const lk_key *group) {
    json_t *properties = json_object(), *required = json_array();
    for (uint32_t i = 0; i < group->key_count; i++) {
        const lk_setting *k = &group->keys[i].value;
        put(properties, k->name, make_key(&group->keys[i]));
        if (k->required) (void)json_array_append_new(required, json_string(k->name));
    }
    json_t *schema = json_pack("{s:s, s:o, s:b}", "type", "object", "properties", properties,
                               "additionalProperties", 0);
    if (json_array_size(required)) put(schema, "required", json_incref(required));
    json_decref(required);
    if (group->rules) put(schema, "allOf", json_loads(group->rules, 0, NULL));
    return schema;
}

lk_status lk_print_schema(lk_error *error) {
    json_t *schema =
        json_pack("{s:s, s:s}", "$schema", "https://json-schema.org/draft/2020-12/schema", "title",
                  "a configuration of lockstep " LK_VERSION);
    json_t *group = make_group(&lk_config_keys);
    (void)json_object_update(schema, group);
    json_decref(group);
    char *text = json_dumps(schema, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    json_decref(schema);
    if (!text) return lk_fail(error, LK_UNAVAILABLE, "no memory for the schema");
    puts(text);
    free(text);
    return LK_OK;
}
