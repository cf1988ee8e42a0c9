// config_keys.h - the keys of a configuration as one table. Reading, the check for unknown keys,
// lockstep help keys, config show, config schema and the question which keys decide bits all come
// from it, so that a key is said once. Knows names, bounds and defaults; layers, optimizers and
// losses bring their own tables (ops/).
//
// To add a key: a line of a table in config_keys.c and the field that it fills in lk_config. The
// README's list of keys is held against the table by tests/whole/config_test.py.
#ifndef LOCKSTEP_APPS_RUN_CONFIG_KEYS_H
#define LOCKSTEP_APPS_RUN_CONFIG_KEYS_H

#include "apps/run/config.h"
#include "ops/rate.h"

enum { LK_CLASSES_LEAST = 2, LK_CLASSES_MOST = LK_IDX_CLASSES_MAX };  // of labels
enum { LK_LABELS_MOST = 4096 };                        // of an example
enum { LK_KEY_CHOICES_MAX = 32, LK_KEY_PATH_BYTES = 96, LK_KEYS_MAX = 32 };

typedef enum lk_key_form {
    LK_KEY_VALUE,      // one value, as `value` says
    LK_KEY_OBJECT,     // an object with `keys`, which fill what lies at value.offset
    LK_KEY_SHAPE,      // [height, width, channels]
    LK_KEY_LOSS,       // the name of a loss, or an object with its type and keys
    LK_KEY_LAYERS,     // an array of layers
    LK_KEY_OPTIMIZER,  // an optimizer
    LK_KEY_NETWORKS,   // an array of networks,
    LK_KEY_OBJECTIVES, // .. of objectives,
    LK_KEY_SCHEDULE,   // .. of [objective, steps]: config_graph.c
    LK_KEY_GAN,        // .. in the short form of config_gan.c
    LK_KEY_NOTE,       // any text; for editors, not for the run
} lk_key_form;

typedef struct lk_key {
    lk_setting value;  // of an object: name, offset, required and meaning alone
    lk_key_form form;
    // It changes no bit, nor does what is in it: a run with another value has the same identity.
    bool free;
    bool shown;                 // of an object: config show has it also where the document has not
    const struct lk_key *keys;  // (key_count)
    uint32_t key_count;
    // For the schema, what the program checks by hand: of a text a regular expression, of an object
    // an array of schemas which must all hold.
    const char *pattern, *rules;
} lk_key;

// The whole document: an object.
extern const lk_key lk_config_keys;
// What a network, an objective and a value of one are; all but texts is read by hand.
extern const lk_setting lk_network_keys[3], lk_objective_keys[6], lk_value_keys[4],
    lk_noise_common[2];
extern const lk_setting lk_gan_keys[9];
enum {
    LK_GAN_NOISE,
    LK_GAN_GENERATOR,
    LK_GAN_DISCRIMINATOR,
    LK_GAN_LOSS,
    LK_GAN_GENERATOR_STEPS,
    LK_GAN_DISCRIMINATOR_STEPS,
    LK_GAN_GENERATOR_OPTIMIZER,
    LK_GAN_DISCRIMINATOR_OPTIMIZER,
    LK_GAN_WEIGHT_CLIP,
};
// What every layer has beside the keys of its type; all are read by hand. "trainable" is of those
// with parameters alone.
extern const lk_setting lk_layer_common[5];
enum { LK_LAYER_TYPE, LK_LAYER_NAME, LK_LAYER_INPUTS, LK_LAYER_TRAINABLE, LK_LAYER_DTYPE };

extern const lk_setting lk_loss_common[2];
enum { LK_LOSS_TYPE, LK_LOSS_INPUTS };

// The key of that path, which is in the table; lk_key_known: or NULL, where it is not.
const lk_key *lk_key_find(const char *path);
const lk_key *lk_key_known(const char *path);

// Does the value at this path, such as "model.layers[2].units", decide bits? What is not known
// does.
bool lk_key_decides(const char *path);

// What may be written for a setting of words, `names` (LK_KEY_CHOICES_MAX); 0 for one of another
// kind. *fallback is the number of the default.
uint32_t lk_setting_words(const lk_setting *k, const char **names, uint32_t *fallback);
// The least that a number may be.
uint64_t lk_setting_least(const lk_setting *k);

// The default as it would be written, to be let go of; NULL: nothing that could be.
struct json_t *lk_setting_default(const lk_setting *k);

// Calls `visit` for every key, objects before what is in them, in the document's order; of layers
// and optimizers once for each type. `path` is "model.layers[].units"; `type` names the layer or
// optimizer whose key it is, NULL: it is of all.
typedef void (*lk_key_visit)(void *context, const char *path, const char *type, const lk_key *key);
void lk_key_walk(lk_key_visit visit, void *context);

// --- reading (config_read.c) ---------------------------------------------------------------------

// Sets every field under `group` to its default, then reads the object `at` by it, where there is
// one: at->value NULL leaves the defaults. LK_BAD_CONFIG.
lk_status lk_config_read_group(lk_config *c, const lk_json_cursor *at, const lk_key *group,
                               void *owner, lk_error *error);
// All keys of a table of settings; `others` (other_count) may stand beside them.
lk_status lk_config_read_settings(const lk_json_cursor *at, const lk_setting *keys, uint32_t count,
                                  const char *const *others, uint32_t other_count, void *owner,
                                  lk_error *error);

// ... and their defaults alone. None follows another.
void lk_config_set_defaults(const lk_setting *keys, uint32_t count, void *owner);

// --- what has a form of its own (config_model.c): `at` is the object that has `key` --------------

lk_status lk_config_read_shape(lk_config *c, const lk_json_cursor *at, const char *key,
                               lk_error *error);
lk_status lk_config_read_loss(lk_config *c, const lk_json_cursor *at, const char *key,
                              lk_error *error);
// Numbers of classes: lk_config_close lets them go.
lk_status lk_config_read_weights(const lk_json_cursor *at, const lk_setting *k,
                                 lk_weights_list *out, lk_error *error);
void lk_config_close_weights(lk_config *c);
lk_status lk_config_read_layers(lk_config *c, const lk_json_cursor *at, const char *key,
                                lk_error *error);
// A rate schedule; where there is none, the constant one.
lk_status lk_config_read_rate(const lk_json_cursor *at, const char *key, lk_rate *rate,
                              lk_error *error);
lk_status lk_config_read_optimizer(lk_config *c, const lk_json_cursor *at, const char *key,
                                   lk_error *error);

// An optimizer of a model with objectives; a loss without its inputs, with its object where it is
// not a name; the classes that its labels have, `at` the model.
lk_status lk_config_read_one_optimizer(const lk_json_cursor *at, const char *key, lk_optimizer *out,
                                       lk_error *error);
lk_status lk_config_read_one_loss(const lk_json_cursor *at, const char *key,
                                  const lk_loss_words **words, lk_loss_options *options,
                                  lk_json_cursor *object, lk_error *error);
// A key that must be said, so that the loss's name alone is not enough; NULL: there is none.
const char *lk_loss_required_key(const lk_loss_words *words);
lk_status lk_config_read_classes(lk_config *c, const lk_json_cursor *at, const lk_loss_type *loss,
                                 lk_error *error);

// The layers of the array `list`, of a network or, with "", of the model: appended to c->layers.
// Their names get "NETWORK." in front.
lk_status lk_config_add_layers(lk_config *c, const lk_json_cursor *list, const char *network,
                               uint32_t inputs, lk_error *error);

// --- several networks (config_graph.c) -----------------------------------------------------------

lk_status lk_config_read_networks(lk_config *c, const lk_json_cursor *at, const char *key,
                                  lk_error *error);
lk_status lk_config_read_objectives(lk_config *c, const lk_json_cursor *at, const char *key,
                                    lk_error *error);
lk_status lk_config_read_schedule(lk_config *c, const lk_json_cursor *at, const char *key,
                                  lk_error *error);
void lk_config_close_graph(lk_config *c);

// --- the short form of two (config_gan.c) --------------------------------------------------------

// What model.gan says becomes networks, objectives and a schedule of the document.
lk_status lk_config_expand_gan(lk_json *document, lk_error *error);
// Refuses the key "gradient_penalty" in an object.
lk_status lk_config_refuse_penalty(const lk_json_cursor *at, lk_error *error);

#endif
