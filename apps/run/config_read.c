// config_read.c - values and objects of a configuration, read by their tables of keys. Knows kinds
// of values; no key, layer or optimizer by name.
#define _GNU_SOURCE
#include <float.h>
#include <stdio.h>
#include <string.h>

#include "apps/run/config_keys.h"

// --- one value -----------------------------------------------------------------------------------

// A size for rows and columns: one integer, or [rows, columns].
static lk_status read_pair(const lk_json_cursor *at, const lk_setting *k, lk_json_presence presence,
                           uint32_t *pair, lk_error *error) {
    lk_json_cursor value, element;
    const bool given = lk_json_find(at, k->name, &value);
    if (!given || lk_json_type_of(&value) != LK_JSON_ARRAY) {
        LK_CHECK(lk_json_get_u32(at, k->name, presence, (uint32_t)lk_setting_least(k),
                                 (uint32_t)k->most, &pair[0], error));
        if (given) pair[1] = pair[0];
        return LK_OK;
    }
    LK_CHECK(lk_json_as_array(&value, 2, 2, error));
    for (uint32_t i = 0; i < 2; i++) {
        LK_CHECK(lk_json_element(&value, i, &element, error));
        LK_CHECK(lk_json_as_u32(&element, (uint32_t)lk_setting_least(k), (uint32_t)k->most,
                                &pair[i], error));
    }
    return LK_OK;
}

// An activation's words are layers, but the first, "linear", which is none.
static const lk_layer_type *find_activation(uint32_t choice) {
    const lk_layer_words *words;
    for (uint32_t i = 0; choice && (words = lk_layer_words_at(i)) != NULL; i++) {
        if (words->activation && --choice == 0) return words->type;
    }
    return NULL;
}

static void set_word(const lk_setting *k, uint32_t choice, void *field) {
    if (k->kind == LK_SETTING_PADDING)
        *(lk_padding *)field = (lk_padding)(choice + LK_PADDING_VALID);
    if (k->kind == LK_SETTING_CHOICE) memcpy(field, &choice, sizeof choice);
    if (k->kind == LK_SETTING_ACTIVATION) {
        *(const lk_layer_type **)field = find_activation(choice);
    }
    if (k->kind == LK_SETTING_INITIALIZER) {
        *(const lk_initializer **)field = lk_initializer_at(choice);
    }
}

// The words of the settings that have words.
static lk_status read_word(const lk_json_cursor *at, const lk_setting *k, lk_json_presence presence,
                           void *field, lk_error *error) {
    const char *names[LK_KEY_CHOICES_MAX];
    uint32_t choice;
    const uint32_t count = lk_setting_words(k, names, &choice);
    LK_CHECK(lk_json_get_choice(at, k->name, presence, names, count, &choice, error));
    set_word(k, choice, field);
    return LK_OK;
}

// A number, or the word that stands for the default.
static lk_status read_u64(const lk_json_cursor *at, const lk_setting *k, lk_json_presence presence,
                          uint64_t *out, lk_error *error) {
    lk_json_cursor value;
    uint32_t word = 0;
    if (k->word && lk_json_find(at, k->name, &value) && lk_json_type_of(&value) == LK_JSON_STRING) {
        return lk_json_as_choice(&value, &k->word, 1, &word, error);
    }
    return lk_json_get_u64(at, k->name, presence, lk_setting_least(k), k->most, out, error);
}

static lk_status check_below(const lk_json_cursor *at, const lk_setting *k, float found,
                             lk_error *error) {
    lk_json_cursor value;
    char rounded[64] = "";
    char wanted[64];
    double written = 0.0;
    if (k->below == 0.0f || found < k->below || !lk_json_find(at, k->name, &value)) return LK_OK;
    LK_CHECK(lk_json_as_float(&value, -(double)FLT_MAX, (double)FLT_MAX, &written, NULL, error));
    if (written < (double)k->below)
        snprintf(rounded, sizeof rounded, "which fp32 rounds to %g, ", (double)found);
    snprintf(wanted, sizeof wanted, "from %g to below %g", (double)k->low, (double)k->below);
    return lk_json_refuse(&value, error, "%swanted a number %s", rounded, wanted);
}

// An array of numbers, of one at least.
static lk_status read_list(const lk_json_cursor *at, const lk_setting *k, lk_json_presence presence,
                           void *field, lk_error *error) {
    lk_json_cursor list, element;
    lk_steps_list *steps = field;
    lk_floats_list *floats = field;
    LK_CHECK(lk_json_get_array(at, k->name, presence, 1, LK_SETTING_LIST_MAX, &list, error));
    if (!list.value) return LK_OK;
    const uint32_t count = (uint32_t)lk_json_length(&list);
    for (uint32_t i = 0; i < count; i++) {
        LK_CHECK(lk_json_element(&list, i, &element, error));
        if (k->kind == LK_SETTING_STEPS)
            LK_CHECK(lk_json_as_u64(&element, lk_setting_least(k), k->most, &steps->at[i], error));
        else
            LK_CHECK(lk_json_as_float(&element, (double)k->low, (double)k->high, NULL,
                                      &floats->at[i], error));
    }
    *(k->kind == LK_SETTING_STEPS ? &steps->count : &floats->count) = count;
    return LK_OK;
}

// [height, width, channels], [time, features] or [values].
static lk_status read_shape(const lk_json_cursor *at, const lk_setting *k,
                            lk_json_presence presence, lk_sizes *shape, lk_error *error) {
    lk_json_cursor list, element;
    LK_CHECK(lk_json_get_array(at, k->name, presence, 1, 3, &list, error));
    if (!list.value) return LK_OK;
    const uint32_t count = (uint32_t)lk_json_length(&list);
    for (uint32_t i = 0; i < count; i++) {
        LK_CHECK(lk_json_element(&list, i, &element, error));
        LK_CHECK(lk_json_as_u32(&element, 1, (uint32_t)k->most, &shape->at[i], error));
    }
    shape->count = count;
    return LK_OK;
}

// Of rows or of columns, before and behind: one number, or two.
static lk_status read_two_sides(const lk_json_cursor *at, const lk_setting *k, uint32_t *sides,
                                lk_error *error) {
    lk_json_cursor element;
    if (lk_json_type_of(at) != LK_JSON_ARRAY) {
        LK_CHECK(lk_json_as_u32(at, 0, (uint32_t)k->most, &sides[0], error));
        sides[1] = sides[0];
        return LK_OK;
    }
    LK_CHECK(lk_json_as_array(at, 2, 2, error));
    for (uint32_t i = 0; i < 2; i++) {
        LK_CHECK(lk_json_element(at, i, &element, error));
        LK_CHECK(lk_json_as_u32(&element, 0, (uint32_t)k->most, &sides[i], error));
    }
    return LK_OK;
}

static lk_status read_sides(const lk_json_cursor *at, const lk_setting *k, uint32_t *sides,
                            lk_error *error) {
    lk_json_cursor value, element;
    if (!lk_json_find(at, k->name, &value)) return LK_OK;
    if (lk_json_type_of(&value) != LK_JSON_ARRAY) {
        LK_CHECK(read_two_sides(&value, k, sides, error));
        sides[2] = sides[3] = sides[0];
        return LK_OK;
    }
    LK_CHECK(lk_json_as_array(&value, 2, 2, error));
    for (uint32_t i = 0; i < 2; i++) {
        LK_CHECK(lk_json_element(&value, i, &element, error));
        LK_CHECK(read_two_sides(&element, k, sides + 2 * i, error));
    }
    return LK_OK;
}

// {"l2": number}
static lk_status read_l2(const lk_json_cursor *at, const lk_setting *k, float *l2,
                         lk_error *error) {
    static const char *const keys[] = {"l2"};
    lk_json_cursor inner;
    LK_CHECK(lk_json_get_object(at, k->name, LK_JSON_OPTIONAL, &inner, error));
    if (!inner.value) return LK_OK;
    LK_CHECK(lk_json_keys_only(&inner, keys, LK_COUNT(keys), error));
    return lk_json_get_float(&inner, keys[0], LK_JSON_REQUIRED, (double)k->low, (double)k->high,
                             NULL, l2, error);
}

static void set_default(const lk_setting *k, const lk_setting *fallback, uint8_t *owner) {
    const char *names[LK_KEY_CHOICES_MAX];
    void *field = owner + k->offset;
    uint32_t *u = field, choice;
    switch (k->kind) {
    case LK_SETTING_U32: *u = (uint32_t)k->constant; break;
    case LK_SETTING_U64: *(uint64_t *)field = k->constant; break;
    case LK_SETTING_PAIR:
        u[0] = u[1] = (uint32_t)k->constant;
        if (fallback) memcpy(u, owner + fallback->offset, 2 * sizeof *u);
        break;
    case LK_SETTING_BOOL: *(bool *)field = k->constant != 0; break;
    case LK_SETTING_FLOAT: *(float *)field = k->float_constant; break;
    case LK_SETTING_TEXT: snprintf(field, (size_t)k->most, "%s", k->text ? k->text : ""); break;
    case LK_SETTING_STEPS: ((lk_steps_list *)field)->count = 0; break;
    case LK_SETTING_FLOATS: ((lk_floats_list *)field)->count = 0; break;
    case LK_SETTING_RATE: *(lk_rate *)field = (lk_rate){.type = &lk_rate_constant}; break;
    case LK_SETTING_SHAPE: *(lk_sizes *)field = (lk_sizes){.count = 0}; break;
    case LK_SETTING_SIDES: u[0] = u[1] = u[2] = u[3] = (uint32_t)k->constant; break;
    case LK_SETTING_L2: *(float *)field = 0.0f; break;
    case LK_SETTING_WEIGHTS: *(lk_weights_list *)field = (lk_weights_list){.at = NULL}; break;
    case LK_SETTING_PADDING:
    case LK_SETTING_CHOICE:
    case LK_SETTING_ACTIVATION:
    case LK_SETTING_INITIALIZER:
        (void)lk_setting_words(k, names, &choice);
        set_word(k, choice, field);
        break;
    }
}

// Into a field that has its default.
static lk_status read_key(const lk_json_cursor *at, const lk_setting *k, uint8_t *owner,
                          lk_error *error) {
    const lk_json_presence presence = k->required ? LK_JSON_REQUIRED : LK_JSON_OPTIONAL;
    void *field = owner + k->offset;
    switch (k->kind) {
    case LK_SETTING_U32:
        return lk_json_get_u32(at, k->name, presence, (uint32_t)lk_setting_least(k),
                               (uint32_t)k->most, field, error);
    case LK_SETTING_U64: return read_u64(at, k, presence, field, error);
    case LK_SETTING_PAIR: return read_pair(at, k, presence, field, error);
    case LK_SETTING_BOOL: return lk_json_get_bool(at, k->name, presence, field, error);
    case LK_SETTING_FLOAT:
        LK_CHECK(lk_json_get_float(at, k->name, presence, (double)k->low, (double)k->high, NULL,
                                   field, error));
        return check_below(at, k, *(float *)field, error);
    case LK_SETTING_STEPS:
    case LK_SETTING_FLOATS: return read_list(at, k, presence, field, error);
    case LK_SETTING_RATE: return lk_config_read_rate(at, k->name, field, error);
    case LK_SETTING_SHAPE: return read_shape(at, k, presence, field, error);
    case LK_SETTING_SIDES: return read_sides(at, k, field, error);
    case LK_SETTING_L2: return read_l2(at, k, field, error);
    case LK_SETTING_WEIGHTS: return lk_config_read_weights(at, k, field, error);
    case LK_SETTING_TEXT:
        return lk_json_get_string(at, k->name, presence, field, (size_t)k->most, error);
    case LK_SETTING_PADDING:
    case LK_SETTING_CHOICE:
    case LK_SETTING_ACTIVATION:
    case LK_SETTING_INITIALIZER: return read_word(at, k, presence, field, error);
    }
    lk_panic(__FILE__, __LINE__, "a kind of key that is not read");
}

void lk_config_set_defaults(const lk_setting *keys, uint32_t count, void *owner) {
    for (uint32_t i = 0; i < count; i++) set_default(&keys[i], NULL, owner);
}

lk_status lk_config_read_settings(const lk_json_cursor *at, const lk_setting *keys, uint32_t count,
                                  const char *const *others, uint32_t other_count, void *owner,
                                  lk_error *error) {
    const char *names[LK_KEYS_MAX];
    lk_assert(count + other_count <= LK_KEYS_MAX);
    for (uint32_t i = 0; i < other_count; i++) names[i] = others[i];
    for (uint32_t i = 0; i < count; i++) names[other_count + i] = keys[i].name;
    LK_CHECK(lk_json_keys_only(at, names, count + other_count, error));
    for (uint32_t i = 0; i < count; i++) {
        const lk_setting *fallback = NULL;
        for (uint32_t f = 0; f < i && keys[i].fallback; f++) {
            if (strcmp(keys[f].name, keys[i].fallback) == 0) fallback = &keys[f];
        }
        set_default(&keys[i], fallback, owner);
        LK_CHECK(read_key(at, &keys[i], owner, error));
    }
    return LK_OK;
}

// --- objects -------------------------------------------------------------------------------------

// As nothing else than text: who has checked it is not this program.
static lk_status read_note(const lk_json_cursor *at, const char *name, lk_error *error) {
    lk_json_cursor value;
    const char *text;
    return lk_json_find(at, name, &value) ? lk_json_as_string(&value, &text, error) : LK_OK;
}

static lk_status read_object(lk_config *c, const lk_json_cursor *at, const lk_key *key,
                             uint8_t *owner, lk_error *error) {
    lk_json_cursor inner;
    const lk_json_presence presence = key->value.required ? LK_JSON_REQUIRED : LK_JSON_OPTIONAL;
    inner.value = NULL;
    if (at->value) LK_CHECK(lk_json_get_object(at, key->value.name, presence, &inner, error));
    return lk_config_read_group(c, &inner, key, owner + key->value.offset, error);
}

lk_status lk_config_read_group(lk_config *c, const lk_json_cursor *at, const lk_key *group,
                               void *owner, lk_error *error) {
    const char *names[LK_KEYS_MAX];
    lk_assert(group->key_count <= LK_KEYS_MAX);
    for (uint32_t i = 0; i < group->key_count; i++) names[i] = group->keys[i].value.name;
    if (at->value) LK_CHECK(lk_json_keys_only(at, names, group->key_count, error));
    for (uint32_t i = 0; i < group->key_count; i++) {
        const lk_key *key = &group->keys[i];
        lk_status status = LK_OK;
        switch (key->form) {
        case LK_KEY_VALUE:
            set_default(&key->value, NULL, owner);
            if (at->value) status = read_key(at, &key->value, owner, error);
            break;
        case LK_KEY_OBJECT: status = read_object(c, at, key, owner, error); break;
        case LK_KEY_SHAPE: status = lk_config_read_shape(c, at, names[i], error); break;
        case LK_KEY_LOSS: status = lk_config_read_loss(c, at, names[i], error); break;
        case LK_KEY_LAYERS: status = lk_config_read_layers(c, at, names[i], error); break;
        case LK_KEY_OPTIMIZER: status = lk_config_read_optimizer(c, at, names[i], error); break;
        case LK_KEY_NETWORKS: status = lk_config_read_networks(c, at, names[i], error); break;
        case LK_KEY_OBJECTIVES: status = lk_config_read_objectives(c, at, names[i], error); break;
        case LK_KEY_SCHEDULE: status = lk_config_read_schedule(c, at, names[i], error); break;
        case LK_KEY_GAN: break;  // written out before: config_gan.c
        case LK_KEY_NOTE: status = read_note(at, names[i], error); break;
        }
        if (status != LK_OK) return status;
    }
    return LK_OK;
}
