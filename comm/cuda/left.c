// left.c - see left.h.
#include "comm/cuda/left.h"

#include "ops/graph/mixed.h"

// Parts of more floats than this are joined at once: they would not wait in the second-level cache.
enum { FLOATS_MAX = 4 << 20 };

static uint64_t scratch_of(const lk_program *p, const lk_op *op) {
    return lk_cuda_op_scratch_floats(op, p->spec->grain, p->microbatch_examples, NULL);
}

static bool leaves(const lk_program *p, const lk_op *op) {
    return lk_cuda_leaves_parts(op) && lk_op_uses(op) == 1 && scratch_of(p, op) <= FLOATS_MAX;
}

// Does only the update read its gradients? Norms are of whole ones, and so is what is rounded.
static bool updates_alone(const lk_program *p) {
    const lk_model *model = &p->spec->model;
    return model->fast_precision == LK_STRICT && !lk_model_is_mixed(model) && !p->checked &&
           lk_program_norm(p) == LK_NORM_NONE;
}

uint64_t lk_cuda_left_floats(const lk_cuda_step *c) {
    uint64_t most = 0;
    if (lk_cuda_step_shares(c) || c->node_max > 1) return 0;
    for (uint32_t k = 0; k < lk_exchange_programs(c->program); k++) {
        const lk_program *p = lk_exchange_program(c->program, k);
        uint64_t floats = 0;
        for (uint32_t i = p->forward_end; i < p->op_count && updates_alone(p); i++) {
            if (leaves(p, &p->ops[i])) floats += lk_round_up(scratch_of(p, &p->ops[i]), 16);
        }
        most = LK_MAX(most, floats);
    }
    return most;
}

void lk_cuda_left_start(lk_cuda_left *l, lk_cuda_step *c, uint32_t which) {
    const lk_program *p = c->program;
    const uint64_t first = (uint64_t)which * lk_entry_count(p);
    *l = (lk_cuda_left){.c = NULL};
    if (!c->at.left || !updates_alone(p)) return;
    l->c = c;
    l->joining.parts = c->at.parts + first;
    l->table = c->host.parts ? c->host.parts + first : NULL;
    for (uint32_t i = 0; i < lk_entry_count(p); i++) {
        const bool trained = p->params[i].gradient_op != LK_NONE;
        lk_cuda_joining_add(&l->joining, trained ? p->params[i].count : 0, 1);
        if (l->table) l->table[i] = (lk_cuda_parts){.count = 1};
    }
}

void lk_cuda_left_before(lk_cuda_left *l, lk_cuda_stream *s, const lk_op *op) {
    if (!l->c || !leaves(l->c->program, op)) return;
    l->parts = (lk_cuda_parts){.count = 1};
    s->scratch = l->c->at.left + l->floats;
    s->left = &l->parts;
}

void lk_cuda_left_after(lk_cuda_left *l, lk_cuda_stream *s, const lk_op *op) {
    const lk_cuda_parts left = l->parts;
    uint64_t first = 0;
    if (!s->left) return;
    s->left = NULL;
    if (!left.at) return;
    l->ops++;
    l->floats += lk_round_up(left.floats, 16);
    lk_assert(l->floats <= l->c->left_floats);
    for (uint32_t i = 0; i < LK_OP_PARAMS; i++) {
        if (op->param[i] == LK_NONE) continue;
        const uint64_t count = l->c->program->params[op->param[i]].count;
        lk_cuda_joining_change(&l->joining, count, left.count);
        if (l->table) {
            l->table[op->param[i]] = left;
            l->table[op->param[i]].at += first;
        }
        first += count;
    }
}

bool lk_cuda_left_update(lk_cuda_left *l, lk_cuda_stream *s, const lk_cuda_node *node,
                         lk_cuda_metrics metrics, lk_cuda_scalars scalars) {
    const lk_program *p = l->c ? l->c->program : NULL;
    uint64_t block = 0;
    if (l->ops == 0) return false;
    for (uint32_t i = 0; l->table && i < lk_entry_count(p); i++) {
        const bool trained = p->params[i].gradient_op != LK_NONE;
        l->table[i].first_block = (uint32_t)block;
        block += lk_cuda_joining_blocks(trained ? p->params[i].count : 0, l->table[i].count);
    }
    lk_cuda_join_and_update(s, p->optimizer, lk_cuda_params(l->c), lk_entry_count(p), l->joining,
                            node, metrics, scalars);
    return true;
}
