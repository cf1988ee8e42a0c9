// uses.c - see uses.h.
#include "comm/cuda/uses.h"

#include "ops/graph/mixed.h"

uint64_t lk_cuda_uses_bytes = 64 << 20;

static const lk_role roles[LK_CUDA_USES_ROLES] = {LK_X, LK_DY, LK_AUX};

// Bytes that a kernel reads in a role of a grain, 16 bits widened; 0: none. Sums over grains of
// what was kept of each read nothing else.
static uint64_t bytes_of_grain(const lk_program *p, const lk_op *op, lk_role role) {
    const bool sums = op->type == &lk_op_batch_normalization_statistics ||
                      op->type == &lk_op_batch_normalization_gradient;
    if (op->tensor[role] == LK_NONE || (sums && role != LK_AUX)) return 0;
    const lk_tensor *t = &p->tensors[op->tensor[role]];
    return t->bytes / p->microbatch_grains * (lk_dtype_is_half(t->dtype) ? 2 : 1);
}

// The bytes of those that a step of `count` grains and `examples` examples has filled, whether the
// tensor has a row for each example or for each grain.
static uint64_t live_bytes(const lk_program *p, const lk_op *op, lk_role role, uint32_t count,
                           uint32_t examples) {
    const uint32_t grain = p->spec->grain;
    const uint64_t bytes = bytes_of_grain(p, op, role);
    const uint64_t rows = p->tensors[op->tensor[role]].shape[0] / p->microbatch_grains;
    return rows % grain == 0 ? bytes / grain * examples : bytes * count;
}

static uint64_t node_floats_of(const lk_program *p, const lk_op *op) {
    uint64_t floats = 0;
    for (uint32_t i = 0; i < LK_OP_PARAMS; i++) {
        if (op->param[i] != LK_NONE) floats += lk_round_up(p->params[op->param[i]].count, 16);
    }
    return floats;
}

lk_cuda_uses lk_cuda_uses_of(const lk_program *p, const lk_op *op) {
    lk_cuda_uses u = {.uses = lk_op_uses(op), .leaves = 1, .grains = 1};
    uint64_t bytes = 0, most = 0, levels = 1;
    while (u.leaves < u.uses) u.leaves *= 2;
    for (uint32_t r = 0; r < LK_CUDA_USES_ROLES; r++) {
        u.grain_bytes[r] = bytes_of_grain(p, op, roles[r]);
        bytes += u.grain_bytes[r] * u.leaves;
        most = LK_MAX(most, u.grain_bytes[r]);
    }
    while (u.grains < p->microbatch_grains && 2 * u.grains * bytes <= lk_cuda_uses_bytes) {
        u.grains *= 2;
    }
    u.examples = u.grains * u.leaves * p->spec->grain;
    uint64_t end = 0;
    for (uint32_t r = 0; r < LK_CUDA_USES_ROLES; r++) {
        u.at[r] = end;
        end += lk_round_up(u.grain_bytes[r] * u.leaves * u.grains, LK_TENSOR_ALIGN_BYTES);
    }
    for (uint64_t runs = 1; runs * u.grains < p->microbatch_grains; runs *= 2) levels++;
    u.wide = end;
    if (lk_mixed_is(p, op)) end += lk_round_up(most * u.grains, LK_TENSOR_ALIGN_BYTES);
    u.nodes = end;
    u.node_floats = node_floats_of(p, op);
    u.floats = end / sizeof(float) + levels * u.node_floats;
    return u;
}

// The rows of a use as fp32: `rows` itself, or a widened copy where the tensor has 16 bits. `bytes`
// is the size as fp32.
static const void *widened(lk_cuda_walk *w, const lk_cuda_uses *u, uint32_t tensor, uint64_t bytes,
                           const void *rows) {
    const lk_dtype dtype = w->program->tensors[tensor].dtype;
    float *const to = w->s.scratch + u->wide / sizeof(float);
    if (!lk_dtype_is_half(dtype) || bytes == 0) return rows;
    w->lane.hands->widen(&w->frame, dtype, bytes / sizeof(float), rows, to);
    return to;
}

// The rows of grains [first, first + count) of the microbatch, of all uses; `out` says where.
static void lay_rows(lk_cuda_walk *w, const lk_cuda_uses *u, const lk_op *op,
                     const lk_microbatch *microbatch, uint32_t first, uint32_t count,
                     lk_grain_view *out) {
    uint8_t *const room = (uint8_t *)w->s.scratch;
    const uint32_t grain = w->program->spec->grain;
    const uint32_t examples = LK_MIN(microbatch->examples - first * grain, count * grain);
    *out = (lk_grain_view){.examples = grain};
    for (uint32_t r = 0; r < LK_CUDA_USES_ROLES; r++) {
        const uint64_t bytes = u->grain_bytes[r];
        void *const to = room + u->at[r];
        if (bytes == 0) continue;
        if (roles[r] == LK_X) out->x = to;
        if (roles[r] == LK_DY) out->dy = to;
        if (roles[r] == LK_AUX) out->argmax = to;
        for (uint32_t leaf = 0; leaf < u->leaves; leaf++) {
            const lk_op *use = op + LK_MIN(leaf, u->uses - 1);
            const lk_grain_view view =
                lk_grain_view_at(&w->frame, use, first, microbatch->examples);
            const void *const from = roles[r] == LK_X    ? (const void *)view.x
                                     : roles[r] == LK_DY ? (const void *)view.dy
                                                         : view.argmax;
            const uint64_t live =
                leaf < u->uses ? live_bytes(w->program, op, roles[r], count, examples) : 0;
            lk_cuda_spread(&w->s, bytes, count, live, u->leaves, leaf,
                           widened(w, u, use->tensor[roles[r]], live, from), to);
        }
    }
}

// Where gradient i of node `held` of a block lies: the block's own first, then those in scratch.
static float *gradient_at(const lk_cuda_walk *w, const lk_cuda_uses *u, const lk_op *op,
                          float *node, uint32_t held, uint32_t i) {
    const lk_param *params = w->program->params;
    if (op->param[i] == LK_NONE) return NULL;
    if (held == 0) return node + params[op->param[i]].node_offset;
    float *at = w->s.scratch + u->nodes / sizeof(float) + (held - 1) * u->node_floats;
    return i == 0 || op->param[0] == LK_NONE ? at
                                             : at + lk_round_up(params[op->param[0]].count, 16);
}

// The two topmost nodes become their parent, so often.
static void join_nodes(lk_cuda_walk *w, const lk_cuda_uses *u, const lk_op *op, float *node,
                       uint32_t top, uint32_t merges) {
    for (; merges > 0; merges--, top--) {
        for (uint32_t i = 0; i < LK_OP_PARAMS; i++) {
            float *const left = gradient_at(w, u, op, node, top - 1, i);
            if (!left) continue;
            lk_cuda_add(&w->s, w->program->params[op->param[i]].count, left,
                        gradient_at(w, u, op, node, top, i), left);
        }
    }
}

void lk_cuda_uses_gradient(lk_cuda_walk *w, const lk_op *op, const lk_microbatch *microbatch,
                           const lk_block *b, float *node) {
    const lk_cuda_uses u = lk_cuda_uses_of(w->program, op);
    const uint32_t rows = w->program->spec->grain * lk_op_steps(op);
    float *const scratch = w->s.scratch;
    uint32_t held = 0;
    for (uint32_t g = b->at; g < b->end; g += u.grains) {
        const uint32_t count = LK_MIN(u.grains, b->end - g);
        lk_grain_view view;
        lk_lane lane = lk_lane_of(&w->frame, op, count * u.leaves * rows);
        lay_rows(w, &u, op, microbatch, g - microbatch->first_grain, count, &view);
        lane.grains = &view;
        lane.grain = rows;
        lane.grain_count = count * u.leaves;
        for (uint32_t i = 0; i < LK_OP_PARAMS; i++) {
            lane.sums[i] = gradient_at(w, &u, op, node, held, i);
        }
        lane.at[LK_SCRATCH] = scratch + u.floats;
        (void)w->lane.hands->compute(&w->frame, &lane, op, !lk_mixed_is(w->program, op));
        // As many joins as calls of the block, before this one, end in ones.
        uint32_t merges = 0;
        while ((g - b->at) / u.grains >> merges & 1) merges++;
        join_nodes(w, &u, op, node, held, merges);
        held += 1 - merges;
    }
    join_nodes(w, &u, op, node, held - 1, held - 1);
}
