// config_gan.c - the short form of a generator and a discriminator that train in turn, model.gan:
// written out as the networks, objectives and schedule that it stands for (config_graph.c), in the
// document itself. What is in them is judged there.
#define _GNU_SOURCE
#include <jansson.h>
#include <string.h>

#include "apps/run/config_keys.h"

// What is said in it, by the places that it gets: a mistake there is one of the short form.
static const lk_json_alias aliases[] = {
    {"model.networks[0].layers", "model.gan.generator"},
    {"model.networks[0].inputs[0]", "model.gan.noise.shape"},
    {"model.networks[1].layers", "model.gan.discriminator"},
    {"model.objectives[0].values[0].noise", "model.gan.noise"},
    {"model.objectives[0].optimizer", "model.gan.generator_optimizer"},
    {"model.objectives[1].values[1].noise", "model.gan.noise"},
    {"model.objectives[1].optimizer", "model.gan.discriminator_optimizer"},
    {"model.objectives[1].weight_clip", "model.gan.weight_clip"},
};

// What it stands for must not be there too.
static lk_status check_others(const lk_json_cursor *model, lk_error *error) {
    static const char *const others[] = {"layers", "loss", "networks", "objectives", "schedule"};
    lk_json_cursor given;
    for (uint32_t i = 0; i < LK_COUNT(others); i++) {
        if (!lk_json_find(model, others[i], &given)) continue;
        return lk_json_refuse(&given, error, "with \"gan\", which stands for it; take one out");
    }
    return LK_OK;
}

lk_status lk_config_refuse_penalty(const lk_json_cursor *at, lk_error *error) {
    lk_json_cursor given;
    if (!lk_json_find(at, "gradient_penalty", &given)) return LK_OK;
    return lk_json_refuse(&given, error,
                          "the gradient penalty wants a second derivative, which is not computed; "
                          "use \"weight_clip\" with wasserstein, or another loss");
}

typedef struct gan {
    lk_json_cursor noise, shape, generator, discriminator, loss, optimizers[2];
    uint32_t steps[2];
    float weight_clip;
} gan;

static lk_status check_keys(const lk_json_cursor *at, lk_error *error) {
    const char *keys[LK_COUNT(lk_gan_keys)];
    for (uint32_t i = 0; i < LK_COUNT(lk_gan_keys); i++) keys[i] = lk_gan_keys[i].name;
    LK_CHECK(lk_config_refuse_penalty(at, error));
    return lk_json_keys_only(at, keys, LK_COUNT(keys), error);
}

// The name of a kind, or an object with it and what else the discriminator's loss may be told.
static lk_status read_loss(const lk_json_cursor *at, gan *g, lk_error *error) {
    const lk_loss_words *words = &lk_loss_words_gan_discriminator;
    lk_loss_options unused;
    uint32_t choice;
    if (!lk_json_find(at, "loss", &g->loss)) {
        return lk_json_refuse(at, error, "without \"loss\", wanted one such as \"modified\"");
    }
    if (lk_json_type_of(&g->loss) == LK_JSON_OBJECT) {
        LK_CHECK(lk_config_refuse_penalty(&g->loss, error));
        return lk_config_read_settings(&g->loss, words->keys, words->key_count, NULL, 0, &unused,
                                       error);
    }
    if (lk_json_type_of(&g->loss) != LK_JSON_STRING) {
        return lk_json_refuse(&g->loss, error, "wanted a name, or an object with \"kind\"");
    }
    const lk_setting *kind = &words->keys[0];
    return lk_json_as_choice(&g->loss, kind->choices, kind->choice_count, &choice, error);
}

static lk_status read_steps(const lk_json_cursor *at, uint32_t key, uint32_t *steps,
                            lk_error *error) {
    const lk_setting *k = &lk_gan_keys[key];
    *steps = (uint32_t)k->constant;
    return lk_json_get_u32(at, k->name, LK_JSON_OPTIONAL, 1, (uint32_t)k->most, steps, error);
}

static lk_status read_gan(const lk_json_cursor *at, gan *g, lk_error *error) {
    LK_CHECK(check_keys(at, error));
    LK_CHECK(lk_json_get_object(at, "noise", LK_JSON_REQUIRED, &g->noise, error));
    LK_CHECK(lk_json_get_array(&g->noise, "shape", LK_JSON_REQUIRED, 1, 3, &g->shape, error));
    LK_CHECK(lk_json_get_array(at, "generator", LK_JSON_REQUIRED, 1, 4096, &g->generator, error));
    LK_CHECK(lk_json_get_array(at, "discriminator", LK_JSON_REQUIRED, 1, 4096, &g->discriminator,
                               error));
    LK_CHECK(read_loss(at, g, error));
    for (uint32_t i = 0; i < 2; i++) {
        const char *optimizer = lk_gan_keys[LK_GAN_GENERATOR_OPTIMIZER + i].name;
        LK_CHECK(read_steps(at, LK_GAN_GENERATOR_STEPS + i, &g->steps[i], error));
        LK_CHECK(lk_json_get_object(at, optimizer, LK_JSON_REQUIRED, &g->optimizers[i], error));
    }
    return LK_OK;
}

// The loss of one side: `kind` and what else an object says; the generator's is not smoothed.
static json_t *loss_of(const gan *g, const char *type) {
    const json_t *said = g->loss.value;
    json_t *loss = json_is_object(said) ? json_copy((json_t *)(uintptr_t)said)
                                        : json_pack("{s:O}", "kind", said);
    (void)json_object_set_new(loss, "type", json_string(type));
    if (strcmp(type, "gan_generator") == 0) (void)json_object_del(loss, "label_smoothing");
    return loss;
}

static json_t *objectives_of(const gan *g, const json_t *weight_clip) {
    json_t *noise = g->noise.value, *loss = loss_of(g, "gan_discriminator");
    (void)json_object_set_new(loss, "inputs", json_pack("[s, s]", "real", "fake"));
    json_t *generator =
        json_pack("{s:s, s:[{s:s, s:O}, {s:s, s:s}, {s:s, s:s}], s:[s], s:o, s:O}", "name",
                  "generator", "values", "name", "z", "noise", noise, "name", "made", "network",
                  "generator", "name", "fake", "network", "discriminator", "trains", "generator",
                  "loss", loss_of(g, "gan_generator"), "optimizer", g->optimizers[0].value);
    json_t *discriminator = json_pack(
        "{s:s, s:[{s:s, s:s}, {s:s, s:O}, {s:s, s:s}, {s:s, s:s}], s:[s], s:o, s:O}", "name",
        "discriminator", "values", "name", "real", "network", "discriminator", "name", "z", "noise",
        noise, "name", "made", "network", "generator", "name", "fake", "network", "discriminator",
        "trains", "discriminator", "loss", loss, "optimizer", g->optimizers[1].value);
    if (weight_clip) {
        (void)json_object_set(discriminator, "weight_clip", (json_t *)(uintptr_t)weight_clip);
    }
    return json_pack("[o, o]", generator, discriminator);
}

lk_status lk_config_expand_gan(lk_json *document, lk_error *error) {
    const lk_json_cursor root = lk_json_root(document);
    lk_json_cursor model, at, clip;
    gan g = {.steps = {1, 1}};
    if (!lk_json_find(&root, "model", &model) || lk_json_type_of(&model) != LK_JSON_OBJECT ||
        !lk_json_find(&model, "gan", &at)) {
        return LK_OK;
    }
    LK_CHECK(lk_json_as_object(&at, error));
    LK_CHECK(check_others(&model, error));
    LK_CHECK(read_gan(&at, &g, error));
    json_t *to = model.value;
    const json_t *weight_clip = lk_json_find(&at, "weight_clip", &clip) ? clip.value : NULL;
    (void)json_object_set_new(to, "networks",
                              json_pack("[{s:s, s:[O], s:O}, {s:s, s:O}]", "name", "generator",
                                        "inputs", g.shape.value, "layers", g.generator.value,
                                        "name", "discriminator", "layers", g.discriminator.value));
    (void)json_object_set_new(to, "objectives", objectives_of(&g, weight_clip));
    (void)json_object_set_new(to, "schedule",
                              json_pack("[[s, i], [s, i]]", "generator", (int)g.steps[0],
                                        "discriminator", (int)g.steps[1]));
    (void)json_object_del(to, "gan");
    document->aliases = aliases;
    document->alias_count = LK_COUNT(aliases);
    return LK_OK;
}
