// shape.c - layers that change shapes and no number: they become no op. Freestanding.
//
//   flatten   (h, w, c) -> (h * w * c), in the same order
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
}

const lk_layer_words lk_layer_words_flatten = {.type = &lk_layer_flatten,
                                               .name = "flatten",
                                               .meaning = "images to one row of values",
                                               .say_export = say_flatten};
