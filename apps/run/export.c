// export.c - the layers of a program as other frameworks say them: which op each became, and what
// it gives the next.
#include "apps/run/export.h"

#include <stdlib.h>
#include <string.h>

typedef struct walk {
    const lk_program *program;
    lk_export_visitor visit;
    void *context;
    lk_export_value *values;  // (layers + 1) of every layer, by its number plus 1; 0: the input
    uint32_t op;              // the next forward op
} walk;

// Layers became ops in their order, and one that may become some became one of FORWARD.
static const lk_op *next_op(walk *w, const lk_layer_type *type, uint32_t layer) {
    const lk_program *p = w->program;
    if (type->ops_max == 0) return NULL;
    lk_assert(w->op < p->forward_end && p->ops[w->op].layer == layer);
    return &p->ops[w->op++];
}

static lk_status say(walk *w, lk_export *e, const lk_layer_type *type, uint32_t number,
                     lk_error *error) {
    const lk_layer *l = &w->program->spec->model.layers[number];
    const lk_layer_words *words = lk_layer_words_of(type);
    if (!words->say_export) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "layer %s: type %s cannot be exported; use --layout keras, which needs no "
                       "words for it",
                       l->name, words->name);
    }
    e->op = next_op(w, type, number);
    e->out = e->in[0];
    e->node_count = 0;
    e->cannot = NULL;
    words->say_export(e, l);
    if (e->cannot) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "layer %s: type %s %s cannot be exported; use --layout keras, which needs "
                       "no words for it",
                       l->name, words->name, e->cannot);
    }
    return w->visit(w->context, e, number, error);
}

static lk_status walk_layer(walk *w, uint32_t number, lk_error *error) {
    const lk_layer *l = &w->program->spec->model.layers[number];
    lk_export e = {0};
    for (uint32_t i = 0; i < l->type->inputs; i++) {
        e.in[i] = w->values[l->input_count ? l->inputs[i] : number];
    }
    LK_CHECK(say(w, &e, l->type, number, error));
    e.in[0] = e.out;
    if (l->activation) LK_CHECK(say(w, &e, l->activation, number, error));
    w->values[number + 1] = e.out;
    return LK_OK;
}

lk_status lk_export_walk(const lk_program *p, lk_export_visitor visit, void *context,
                         lk_export_value *last, lk_error *error) {
    const lk_model *m = &p->spec->model;
    walk w = {p, visit, context, calloc((size_t)m->layer_count + 1, sizeof *w.values), 1};
    if (!w.values) return lk_fail(error, LK_UNAVAILABLE, "no memory for %u layers", m->layer_count);
    w.values[0] = (lk_export_value){.channels = m->in_c};
    lk_status status = LK_OK;
    for (uint32_t i = 0; i < m->layer_count && status == LK_OK; i++) {
        status = walk_layer(&w, i, error);
    }
    if (last) *last = w.values[m->layer_count];
    free(w.values);
    return status;
}

bool lk_export_is_depthwise(const lk_model *model, const char *tensor) {
    for (uint32_t i = 0; i < model->layer_count; i++) {
        const lk_layer *l = &model->layers[i];
        const size_t letters = strlen(l->name);
        if (l->type != &lk_layer_depthwise_conv2d) continue;
        if (strncmp(tensor, l->name, letters) == 0 && strcmp(tensor + letters, "/kernel") == 0) {
            return true;
        }
    }
    return false;
}
