// shape.c - layers that change shapes and no number: they become no op. Freestanding.
//
//   flatten   (h, w, c) -> (h * w * c), in the same order
//   reshape   any shape -> any other of as many values, in the same order; (time, features) is a
//             sequence, which is an image one column wide
#include "ops/graph/build.h"
#include "ops/layers/export.h"

static lk_status build_flatten(lk_builder *b, const lk_layer *l) {
    const lk_shape in = b->input[0].shape;
    (void)l;
    b->output = (lk_value){b->input[0].op, {1, 1, in.h * in.w * in.c, true}};
    return LK_OK;
}

const lk_layer_type lk_layer_flatten = {.inputs = 1, .build = build_flatten};

static void say_flatten(lk_export *e, const lk_layer *l) {
    static const int64_t channels_last[] = {0, 2, 3, 1};
    (void)l;
    if (!e->in[0].flat)
        lk_export_ints(lk_export_node_add(e, "Transpose"), "perm", 4, channels_last);
    lk_export_int(lk_export_node_add(e, "Flatten"), "axis", 1);
    e->out.flat = true;
    e->out.channels *= LK_MAX(e->in[0].times, 1u);
    e->out.times = 0;
}

const lk_layer_words lk_layer_words_flatten = {.type = &lk_layer_flatten,
                                               .name = "flatten",
                                               .meaning = "images to one row of values",
                                               .say_export = say_flatten};

// --- reshape -------------------------------------------------------------------------------------

static lk_status build_reshape(lk_builder *b, const lk_layer *l) {
    const lk_shape in = b->input[0].shape;
    const lk_sizes *t = &l->target_shape;
    lk_shape out = {1, 1, t->at[0], true};
    uint64_t floats;
    if (t->count == 3) out = (lk_shape){t->at[0], t->at[1], t->at[2], false};
    if (t->count == 2) out = (lk_shape){t->at[0], 1, t->at[1], false};  // a sequence
    LK_CHECK(lk_build_check_shape(b, l->name, &out, &floats));
    if (floats != (uint64_t)in.h * in.w * in.c) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: its target_shape has %llu values, wanted the %llu of its input, "
                       "%u x %u x %u%s",
                       l->name, (unsigned long long)floats, (unsigned long long)in.h * in.w * in.c,
                       in.h, in.w, in.c, in.flat ? " (flat)" : "");
    }
    b->output = (lk_value){b->input[0].op, out};
    return LK_OK;
}

const lk_layer_type lk_layer_reshape = {.inputs = 1, .build = build_reshape};

static const lk_setting reshape_keys[] = {
    {.name = "target_shape",
     .kind = LK_SETTING_SHAPE,
     .offset = offsetof(lk_layer, target_shape),
     .required = true,
     .most = 1 << 24,
     .meaning = "what the values are seen as"},
};

// In our order of values, channels last. Rows that PyTorch flattened are in another one.
static void say_reshape(lk_export *e, const lk_layer *l) {
    static const int64_t last[] = {0, 2, 3, 1}, first[] = {0, 3, 1, 2};
    const lk_sizes *t = &l->target_shape;
    const bool sequence = t->count == 2;
    const uint32_t w = sequence ? 1 : t->at[1], c = sequence ? t->at[1] : t->at[2];
    const int64_t shape[] = {0, t->at[0], w, c};
    if (t->count == 1) {
        say_flatten(e, l);
        return;
    }
    e->reorders = e->in[0].flat && e->in[0].channels != 1 &&
                  e->in[0].channels != t->at[0] * w * c;
    if (!e->in[0].flat) lk_export_ints(lk_export_node_add(e, "Transpose"), "perm", 4, last);
    lk_export_constant(lk_export_node_add(e, "Reshape"), 4, shape);
    lk_export_node *back = lk_export_node_add(e, "Transpose");
    back->name = "Back";
    lk_export_ints(back, "perm", 4, first);
    e->out = (lk_export_value){.channels = c, .times = sequence ? t->at[0] : 0};
}

const lk_layer_words lk_layer_words_reshape = {.type = &lk_layer_reshape,
                                               .name = "reshape",
                                               .keys = reshape_keys,
                                               .key_count = LK_COUNT(reshape_keys),
                                               .meaning = "the same values in another shape",
                                               .say_export = say_reshape};
