// shape.c - layers that change shapes and no number: they become no op. Freestanding.
//
//   flatten   (h, w, c) -> (h * w * c), in the same order
#include "ops/graph/build.h"

static lk_status build_flatten(lk_builder *b, const lk_layer *l) {
    const lk_shape in = b->input[0].shape;
    (void)l;
    b->output = (lk_value){b->input[0].op, {1, 1, in.h * in.w * in.c, true}};
    return LK_OK;
}

const lk_layer_type lk_layer_flatten = {.inputs = 1, .build = build_flatten};
const lk_layer_words lk_layer_words_flatten = {
    .type = &lk_layer_flatten, .name = "flatten", .meaning = "images to one row of values"};
