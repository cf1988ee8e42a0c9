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

// Layers became ops in their order, and one that may become some became none or one of FORWARD, or
// two, then its activation's.
static const lk_op *next_op(walk *w, const lk_layer_type *type, uint32_t layer) {
    const lk_program *p = w->program;
    if (type->ops_max == 0) return NULL;
    const bool some = w->op < p->forward_end && p->ops[w->op].layer == layer;
    lk_assert(some || type == &lk_layer_time_reduction);
    return some ? &p->ops[w->op++] : NULL;
}

static const lk_op *second_op(walk *w, const lk_layer_type *type, uint32_t layer) {
    const lk_program *p = w->program;
    const uint32_t most = w->op + (p->spec->model.layers[layer].activation != NULL);
    if (type->ops_max == 0 || most >= p->forward_end || p->ops[most].layer != layer) return NULL;
    return &p->ops[w->op++];
}

static lk_status say(walk *w, lk_export *e, const lk_layer_type *type, uint32_t number,
                     lk_error *error) {
    const lk_layer *l = &w->program->spec->model.layers[number];
    const lk_layer_words *said = lk_layer_words_of(type);
    if (!said->say_export) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "layer %s: type %s cannot be exported; use --layout keras, which needs no "
                       "words for it",
                       l->name, said->name);
    }
    for (uint32_t i = 0; i < type->inputs; i++) lk_assert(!e->in[i].cells);  // a joint is the last
    e->op = next_op(w, type, number);
    e->second = type == l->type ? second_op(w, type, number) : NULL;
    e->out = e->in[0];
    e->node_count = 0;
    said->say_export(e, l);
    const lk_op *op = e->second ? e->second : e->op;
    e->out.floats = op ? op->floats : e->in[0].floats;
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
    w.values[0] =
        (lk_export_value){.channels = m->in_c, .floats = (uint64_t)m->in_h * m->in_w * m->in_c};
    lk_status status = LK_OK;
    for (uint32_t i = 0; i < m->layer_count && status == LK_OK; i++) {
        status = walk_layer(&w, i, error);
    }
    if (last) *last = w.values[m->layer_count];
    free(w.values);
    return status;
}

// --- parameters ----------------------------------------------------------------------------------

const lk_layer_type *lk_export_layer_type(const lk_model *model, const char *tensor) {
    const size_t letters = strcspn(tensor, "/");
    for (uint32_t i = 0; i < model->layer_count; i++) {
        const lk_layer *l = &model->layers[i];
        if (strlen(l->name) == letters && memcmp(l->name, tensor, letters) == 0) return l->type;
    }
    return NULL;
}

// What PyTorch calls them, and of an LSTM or a GRU.
static const struct word {
    const char *ours, *theirs, *recurrent;
    uint32_t rank, rank_too;
} words[] = {{"kernel", "weight", "weight_ih_l0", 2, 4},
             {"recurrent_kernel", NULL, "weight_hh_l0", 2, 2},
             {"recurrent_bias", NULL, LK_TORCH_SECOND_BIAS, 1, 1},
             {"embeddings", "weight", NULL, 2, 2},
             {"bias", "bias", "bias_ih_l0", 1, 1},
             {"gamma", "weight", NULL, 1, 1},
             {"beta", "bias", NULL, 1, 1},
             {"moving_mean", "running_mean", NULL, 1, 1},
             {"moving_variance", "running_var", NULL, 1, 1},
             {LK_EXPORT_VECTOR, NULL, NULL, 1, 1}};

static const struct word *find_word(const char *word) {
    for (uint32_t i = 0; i < LK_COUNT(words); i++) {
        if (strcmp(word, words[i].ours) == 0) return &words[i];
    }
    return NULL;
}

bool lk_export_is_known(const char *word, uint32_t rank) {
    const struct word *w = find_word(word);
    return w && (rank == w->rank || rank == w->rank_too);
}

const char *lk_export_torch_word(const lk_layer_type *type, const char *word) {
    const struct word *w = find_word(word);
    if (!w) return NULL;
    return type == &lk_layer_lstm || type == &lk_layer_gru ? w->recurrent : w->theirs;
}

bool lk_export_joins_biases(const lk_layer_type *type, const char *word) {
    return type == &lk_layer_gru && strcmp(word, "recurrent_bias") == 0;
}

void lk_export_swap_gates(const lk_layer_type *type, uint64_t count, float *values) {
    if (type != &lk_layer_gru) return;
    const uint64_t gate = count / LK_GRU_GATES;
    for (uint64_t i = 0; i < gate; i++) {
        const float first = values[i];
        values[i] = values[gate + i];
        values[gate + i] = first;
    }
}

static bool is_norm(const lk_op *op) {
    return op->type == &lk_op_batch_normalization || op->type == &lk_op_layer_normalization;
}

// A norm of rows has a number for each value: parameters and states alike.
static void order_rows(const lk_program *p, const lk_export *said, uint32_t *channels) {
    const uint32_t state = said->op->tensor[LK_STATE], from = said->in[0].channels;
    for (uint32_t i = 0; i < lk_entry_count(p); i++) {
        const uint32_t tensor = p->params[i].tensor;
        bool own = state != LK_NONE && tensor >= state && tensor < state + LK_OP_STATES;
        for (uint32_t k = 0; k < LK_OP_PARAMS; k++) own = own || said->op->param[k] == i;
        if (own) channels[i] = from ? from : LK_NONE;
    }
}

bool lk_export_order(const lk_program *p, const lk_export *said, uint32_t *channels) {
    const lk_op *op = said->op;
    const lk_export_value *in = &said->in[0];
    if (!op || op->type == &lk_op_label_embedding) return true;
    if (is_norm(op)) {
        if (in->flat) order_rows(p, said, channels);
        return !in->flat || in->channels;
    }
    const uint32_t kernel = op->param[0], second = said->second ? said->second->param[0] : LK_NONE;
    if (second != LK_NONE) {
        channels[second] = (uint32_t)p->tensors[p->params[second].tensor].shape[0];
    }
    if (kernel == LK_NONE || p->tensors[p->params[kernel].tensor].rank != 2) return true;
    channels[kernel] = in->channels ? in->channels : LK_NONE;
    return in->channels;
}
