// lockstep_config.c - configuration documents of lockstep.h, loaded or built value by value.
// Nothing is judged here but that values can stand where they are put: the keys are judged when a
// run is opened, by the same reader as every other document's.
#define _GNU_SOURCE
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "apps/run/lockstep_private.h"
#include "io/json.h"

enum { KEY_BYTES = 160 };

static lockstep_config *make(const char *name) {
    lockstep_config *c = calloc(1, sizeof *c);
    if (c) lk_format(c->name, sizeof c->name, "%s", name);
    return c;
}

lockstep_config *lockstep_config_new(const char *name) {
    lockstep_config *c = make(name && *name ? name : "configuration");
    if (c) c->root = json_object();
    if (c && !c->root) {
        lockstep_config_free(c);
        return NULL;
    }
    if (c && name && *name) lockstep_config_text(c, "name", name);
    return c;
}

static lockstep_config *refused(lockstep_config *c, const lk_error *found, lockstep_error *error) {
    (void)lk_lockstep_answer(found, error);
    lockstep_config_free(c);
    return NULL;
}

// Takes the document over.
static lockstep_config *adopt(lk_json *document, const char *name, lk_error *found,
                              lockstep_error *error) {
    lockstep_config *c = NULL;
    if (found->status == LK_OK) c = make(name);
    if (found->status == LK_OK && !c) (void)lk_fail(found, LK_UNAVAILABLE, "%s: no memory", name);
    if (found->status == LK_OK && !json_is_object(document->root)) {
        (void)lk_fail(found, LK_BAD_CONFIG, "%s: wanted one JSON object", name);
    }
    if (c && found->status == LK_OK) c->root = json_incref(document->root);
    lk_json_close(document);
    if (found->status != LK_OK) return refused(c, found, error);
    (void)lk_lockstep_answer(found, error);
    return c;
}

lockstep_config *lockstep_config_load(const char *file_or_name, lockstep_error *error) {
    lk_error found = {.status = LK_OK};
    lk_json document = {0};
    if (!file_or_name || !*file_or_name) {
        (void)lk_fail(&found, LK_BAD_USAGE, "a configuration: wanted a file or a ready name");
        return refused(NULL, &found, error);
    }
    (void)lk_config_load(&document, file_or_name, &found);
    return adopt(&document, file_or_name, &found, error);
}

lockstep_config *lockstep_config_parse(const char *text, size_t bytes, lockstep_error *error) {
    lk_error found = {.status = LK_OK};
    lk_json document = {0};
    if (!text) {
        (void)lk_fail(&found, LK_BAD_USAGE, "a configuration: found no text, wanted JSON");
        return refused(NULL, &found, error);
    }
    (void)lk_json_load_text(&document, "the configuration", text, bytes, &found);
    return adopt(&document, "the configuration", &found, error);
}

void lockstep_config_free(lockstep_config *c) {
    if (!c) return;
    json_decref(c->root);
    free(c);
}

// --- values --------------------------------------------------------------------------------------

// Puts a value, which is taken over, under a key of an object; keys on the way are made.
static void put_at(lockstep_config *c, json_t *object, const char *path, json_t *value) {
    char key[KEY_BYTES];
    const char *rest = path ? path : "";
    if (!value) {
        (void)lk_fail(&c->wrong, LK_BAD_CONFIG, "%s: %s: the value can not stand in a document",
                      c->name, rest);
    }
    uint32_t depth = 0;
    for (const char *dot; (dot = strchr(rest, '.')) != NULL && c->wrong.status == LK_OK; depth++) {
        lk_format(key, sizeof key, "%.*s", (int)LK_MIN(dot - rest, KEY_BYTES - 1), rest);
        json_t *inner = json_object_get(object, key);
        if (!inner) (void)json_object_set_new(object, key, json_object());
        inner = json_object_get(object, key);
        if (!json_is_object(inner)) {
            (void)lk_fail(&c->wrong, LK_BAD_CONFIG, "%s: %s: \"%s\" is no object", c->name, path,
                          key);
        }
        object = inner;
        rest = dot + 1;
        if (depth == LK_JSON_DEPTH_MAX) {
            (void)lk_fail(&c->wrong, LK_BAD_CONFIG,
                          "%s: \"%s\" and so on: more than %d keys in one another", c->name, key,
                          LK_JSON_DEPTH_MAX);
        }
    }
    if (c->wrong.status == LK_OK && !*rest) {
        (void)lk_fail(&c->wrong, LK_BAD_USAGE, "%s: \"%s\": wanted a key such as \"seed\"", c->name,
                      path ? path : "");
    }
    if (c->wrong.status != LK_OK) {
        json_decref(value);
    } else if (json_object_set_new(object, rest, value) != 0) {
        (void)lk_fail(&c->wrong, LK_BAD_CONFIG, "%s: %s: its name is no text in UTF-8", c->name,
                      path);
    }
}

static void put(lockstep_config *c, const char *path, json_t *value) {
    if (c)
        put_at(c, c->root, path, value);
    else
        json_decref(value);
}

static json_t *real_of(double value) { return isfinite(value) ? json_real(value) : NULL; }

static json_t *parsed(const char *text) {
    if (text && lk_json_is_deep(text, strlen(text))) return NULL;
    return text ? json_loads(text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL) : NULL;
}

void lockstep_config_integer(lockstep_config *c, const char *path, int64_t value) {
    put(c, path, json_integer(value));
}

void lockstep_config_number(lockstep_config *c, const char *path, double value) {
    put(c, path, real_of(value));
}

void lockstep_config_text(lockstep_config *c, const char *path, const char *value) {
    put(c, path, value ? json_string(value) : NULL);
}

void lockstep_config_flag(lockstep_config *c, const char *path, bool value) {
    put(c, path, json_boolean(value));
}

void lockstep_config_json(lockstep_config *c, const char *path, const char *value) {
    put(c, path, parsed(value));
}

// --- the model -----------------------------------------------------------------------------------

void lockstep_config_input(lockstep_config *c, uint32_t height, uint32_t width, uint32_t channels,
                           uint32_t classes) {
    put(c, "model.input",
        json_pack("[I, I, I]", (json_int_t)height, (json_int_t)width, (json_int_t)channels));
    if (classes) put(c, "model.classes", json_integer(classes));
}

void lockstep_config_layer(lockstep_config *c, const char *type) {
    if (!c) return;
    json_t *layers = json_object_get(json_object_get(c->root, "model"), "layers");
    if (!layers) put(c, "model.layers", json_array());
    layers = json_object_get(json_object_get(c->root, "model"), "layers");
    if (json_array_append_new(layers, json_object()) != 0) {
        (void)lk_fail(&c->wrong, LK_BAD_CONFIG, "%s: model.layers: is no list", c->name);
    }
    lockstep_layer_text(c, "type", type);
}

static void put_in_layer(lockstep_config *c, const char *key, json_t *value) {
    if (!c) {
        json_decref(value);
        return;
    }
    // Looked up each time: a document may have been put over the layers since.
    json_t *layers = json_object_get(json_object_get(c->root, "model"), "layers");
    json_t *layer = json_array_get(layers, json_array_size(layers) - 1);
    if (!json_is_object(layer)) {
        (void)lk_fail(&c->wrong, LK_BAD_USAGE,
                      "%s: \"%s\": a layer's key before the first layer; wanted "
                      "lockstep_config_layer before it",
                      c->name, key ? key : "");
    }
    put_at(c, layer, key, value);
}

void lockstep_layer_integer(lockstep_config *c, const char *key, int64_t value) {
    put_in_layer(c, key, json_integer(value));
}

void lockstep_layer_number(lockstep_config *c, const char *key, double value) {
    put_in_layer(c, key, real_of(value));
}

void lockstep_layer_text(lockstep_config *c, const char *key, const char *value) {
    put_in_layer(c, key, value ? json_string(value) : NULL);
}

void lockstep_layer_flag(lockstep_config *c, const char *key, bool value) {
    put_in_layer(c, key, json_boolean(value));
}

void lockstep_layer_json(lockstep_config *c, const char *key, const char *value) {
    put_in_layer(c, key, parsed(value));
}

// --- examples ------------------------------------------------------------------------------------

void lockstep_config_examples(lockstep_config *c, lockstep_set set, const lockstep_examples *e) {
    const lockstep_examples none = {0};
    if (!c) return;
    if (!e) e = &none;
    if (e->labels && e->wide_labels) {
        (void)lk_fail(&c->wrong, LK_BAD_USAGE,
                      "%s: examples with labels and wide_labels: wanted one of them", c->name);
    }
    const void *labels = e->labels;
    if (e->wide_labels) labels = e->wide_labels;
    const lk_dataset_held held = {.images = e->inputs,
                                  .labels = labels,
                                  .count = e->count,
                                  .height = e->height,
                                  .width = e->width,
                                  .channels = e->channels,
                                  .type = e->values == LOCKSTEP_F32 ? LK_IDX_F32 : LK_IDX_U8,
                                  .label_type = e->wide_labels ? LK_IDX_U16 : LK_IDX_U8};
    if (set == LOCKSTEP_TRAIN) c->train = held;
    if (set == LOCKSTEP_TEST) c->test = held;
    c->has_train = c->has_train || set == LOCKSTEP_TRAIN;
    c->has_test = c->has_test || set == LOCKSTEP_TEST;
}
