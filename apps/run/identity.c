// identity.c - a run directory and a configuration that is not its: which keys differ. Compares
// the recorded config.json with the document at hand.
#define _GNU_SOURCE
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/run/weights.h"
#include "apps/run/config_keys.h"
#include "apps/run/record.h"

enum { LIST_BYTES = 260, KEY_BYTES = 160, VALUE_BYTES = 48 };

typedef struct difference {
    char text[LIST_BYTES];
    size_t used;
    uint32_t count, shown;
} difference;

static void show_value(char out[VALUE_BYTES], json_t *value) {
    if (!value) {
        snprintf(out, VALUE_BYTES, "not set");
        return;
    }
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
    const char *shown = text ? text : "?";
    const bool fits = strlen(shown) < VALUE_BYTES - 4;
    snprintf(out, VALUE_BYTES, "%.*s%s", VALUE_BYTES - 5, shown, fits ? "" : "...");
    free(text);
}

static void add(difference *d, const char *path, json_t *there, json_t *here) {
    char one[VALUE_BYTES], other[VALUE_BYTES], item[KEY_BYTES + 2 * VALUE_BYTES + 32];
    d->count++;
    show_value(one, there);
    show_value(other, here);
    int n = snprintf(item, sizeof item, "%s%s (%s there, %s here)", d->shown ? ", " : "", path, one,
                     other);
    if (n < 0 || d->used + (size_t)n >= sizeof d->text) return;
    memcpy(d->text + d->used, item, (size_t)n + 1);
    d->used += (size_t)n;
    d->shown++;
}

static void compare(difference *d, const char *path, json_t *there, json_t *here);

// What a document that says nothing at this path has there: its default; of an object that need not
// be there an empty one. NULL: that is not known here. To be let go of.
static json_t *unsaid(const char *path) {
    const lk_key *key = strchr(path, '[') ? NULL : lk_key_known(path);
    if (key && key->form == LK_KEY_OBJECT) return key->shown ? json_object() : NULL;
    return key && key->form == LK_KEY_VALUE ? lk_setting_default(&key->value) : NULL;
}

static void compare_member(difference *d, const char *path, const char *key, json_t *there,
                           json_t *here) {
    char below[KEY_BYTES];
    snprintf(below, sizeof below, "%s%s%s", path, *path ? "." : "", key);
    if (!lk_key_decides(below)) return;
    json_t *said = there ? there : here, *other = there && here ? NULL : unsaid(below);
    const bool both = json_is_object(other) && json_is_object(said);
    // One that says its default says nothing; another is shown beside "not set".
    if (other && (both || json_equal(other, said))) {
        compare(d, below, there ? there : other, here ? here : other);
    } else {
        compare(d, below, there, here);
    }
    json_decref(other);
}

static void compare(difference *d, const char *path, json_t *there, json_t *here) {
    const char *key;
    json_t *value;
    char below[KEY_BYTES];
    if (json_equal(there, here)) return;
    if (json_is_object(there) && json_is_object(here)) {
        json_object_foreach(there, key, value) {
            compare_member(d, path, key, value, json_object_get(here, key));
        }
        json_object_foreach(here, key, value) {
            if (!json_object_get(there, key)) compare_member(d, path, key, NULL, value);
        }
    } else if (json_is_array(there) && json_array_size(there) == json_array_size(here)) {
        for (size_t i = 0; i < json_array_size(there); i++) {
            snprintf(below, sizeof below, "%.*s[%zu]", KEY_BYTES - 24, path, i);
            compare(d, below, json_array_get(there, i), json_array_get(here, i));
        }
    } else {
        add(d, path, there, here);
    }
}

uint32_t lk_config_differences(json_t *there, json_t *here, char *out, size_t bytes) {
    difference d = {.used = 0};
    compare(&d, "", there, here);
    snprintf(out, bytes, "%s", d.text);
    if (d.count > d.shown) {
        snprintf(out, bytes, "%s and %u more", d.text, d.count - d.shown);
    }
    return d.count;
}

static json_t *recorded(const char *run_dir) {
    char path[LK_PATH_BYTES];
    lk_error none = {.status = LK_OK};
    if (lk_path_join(path, run_dir, "/", "config.json", &none) != LK_OK) return NULL;
    return json_load_file(path, 0, NULL);
}

void lk_explain_identity(const lk_run *run, const char *run_dir, lk_error *error) {
    char hex[LK_IDENTITY_HEX_BYTES], more[40] = "";
    difference d = {.used = 0};
    lk_error none = {.status = LK_OK};
    const lk_status status = error->status;
    if (lk_run_dir_identity(&lk_file_ops_posix, run_dir, hex, &none) != LK_OK) return;
    json_t *there = recorded(run_dir);
    json_t *here = run->config.document.root;
    if (there) compare(&d, "", there, here);
    json_decref(there);
    if (d.count > d.shown) snprintf(more, sizeof more, " and %u more", d.count - d.shown);
    error->status = LK_OK;
    (void)lk_fail(error, status,
                  "%s: holds run %s, this configuration is run %s; %s%.*s%.*s%s; make them equal, "
                  "name another directory, or begin anew with --fresh",
                  run_dir, hex, run->identity_hex,
                  d.count ? "they differ in "
                          : "their keys are equal, so the data or the version "
                            "is another",
                  (int)LK_MIN(d.used, 150), d.text, (int)(d.used - LK_MIN(d.used, 150)),
                  d.text + LK_MIN(d.used, 150), more);
}

static uint64_t recorded_count(const json_t *there, const char *key) {
    return (uint64_t)LK_MAX(json_integer_value(json_object_get(there, key)), 0);
}

uint64_t lk_recorded_steps(const lk_run *run, const char *run_dir) {
    json_t *there = recorded(run_dir);
    if (!there) return 0;
    const uint64_t steps = recorded_count(there, "steps"), cycles = recorded_count(there, "cycles");
    uint64_t epochs = recorded_count(there, "epochs");
    json_decref(there);
    if (!steps && !epochs && !cycles) epochs = 1;
    return lk_config_steps_of(&run->config, steps, epochs, cycles);
}
