// program.c - what a program needs besides its ops: tables, reduction, scratch, lifetimes, initial
// values. Freestanding.
#include "ops/graph/average.h"
#include "ops/graph/build.h"
#include "ops/graph/mixed.h"
#include "ops/graph/scale.h"
#include "ops/graph/spectral.h"

// A replica holds all its examples at once up to RESIDENT_EXAMPLES, otherwise MICROBATCH_EXAMPLES
// at a time (measured: larger working sets fall out of the second-level cache). Where that is more
// than KEPT_BYTES of activations, it holds the grains that fit (measured: ResNet-20, 16 examples at
// once beside 32 and 128).
enum { RESIDENT_EXAMPLES = 256, MICROBATCH_EXAMPLES = 128, KEPT_BYTES = 24 << 20 };

// With averages a parameter may have all slots that there are: those of norms (norm_tensors) have
// entries of their own.
enum { AVERAGES_TENSORS = 2 };

const char *lk_phase_name(lk_phase phase) {
    static const char *const names[] = {"load", "forward", "backward", "reduce", "apply"};
    return names[phase];
}

const lk_op *lk_program_without_kernel(const lk_program *p, const lk_kernels *kernels) {
    for (uint32_t i = 0; i < p->op_count; i++) {
        if (lk_kernel_is_reference(kernels, p->ops[i].type)) return &p->ops[i];
    }
    return NULL;
}

// --- table sizes -------------------------------------------------------------------------------

// Every input that is named may be used elsewhere too: one more share of a gradient.
static uint32_t shares_max(const lk_model *m) {
    bool named = false;
    uint32_t inputs = 0;
    for (uint32_t i = 0; i < m->layer_count; i++) {
        named = named || m->layers[i].input_count > 0;
        inputs += m->layers[i].type->inputs;
    }
    return named ? inputs : 0;
}

// Of a loss of two inputs: the gradient of the second, and a share where others take it too.
static uint32_t target_max(const lk_model *m) { return lk_model_loss(m)->inputs > 1 ? 2 : 0; }

// LOAD, loss, its sum, REDUCE; what decodes.
uint32_t lk_program_ops_max(const lk_model *m) {
    if (lk_graph_of(m)) return lk_graph_of(m)->calls->entries(m).ops;
    uint32_t most = 4 + (m->labels ? 1 : 0) + shares_max(m) + target_max(m);
    for (uint32_t i = 0; i < m->layer_count; i++) {
        const lk_layer *l = &m->layers[i];
        most += l->type->ops_max + (l->activation ? l->activation->ops_max : 0);
    }
    return most;
}

static uint32_t params_max(const lk_model *m) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < m->layer_count; i++) most += m->layers[i].type->params_max;
    return most;
}

static uint32_t states_max(const lk_model *m) {
    uint32_t most = (m->skips ? 1 : 0) + (lk_model_scales(m) ? 1 : 0);
    most += lk_spectral_count(m);
    for (uint32_t i = 0; i < m->layer_count; i++) most += m->layers[i].type->states_max;
    return most;
}

// Of lk_program.params.
static uint32_t entries_max(const lk_model *m) { return params_max(m) + states_max(m); }

// Rounded weights; scratch of every op; averages; two for a kernel that is normalized.
static uint32_t precision_max(const lk_model *m) {
    const uint32_t rounded = lk_model_is_mixed(m) ? params_max(m) : 0;
    uint32_t most = lk_model_is_mixed(m) ? rounded + lk_program_ops_max(m) : 0;
    most += 2 * lk_spectral_count(m);
    if (m->averages) most += AVERAGES_TENSORS + rounded;
    return most;
}

// Tables of classes' weights.
static uint32_t weights_max(const lk_model *m) {
    uint32_t most = 0;
    for (uint32_t k = 0; k < lk_objective_count(m); k++) {
        most += lk_loss_options_of(m, k)->class_weight.at != NULL;
    }
    return most;
}

// Input, labels, loss, nodes, views, scratch of REDUCE and two of a device; a strip; of what
// decodes its labels, state and scratch.
uint32_t lk_program_tensors_max(const lk_model *m) {
    if (lk_graph_of(m)) {
        return lk_graph_of(m)->calls->entries(m).tensors + states_max(m) + precision_max(m) +
               weights_max(m);
    }
    uint32_t most = 8 + weights_max(m) + (m->labels ? 4 : 0) + shares_max(m) + target_max(m) +
                    states_max(m) + params_max(m) * (1 + LK_OPTIMIZER_SLOTS_MAX);
    for (uint32_t i = 0; i < m->layer_count; i++) {
        const lk_layer *l = &m->layers[i];
        most += l->type->tensors_max + (l->activation ? l->activation->tensors_max : 0);
    }
    return most + precision_max(m);
}

// The planner sorts tensors there, after the values of layers lay there (ops/graph/build.c).
static uint64_t order_bytes(const lk_model *m) {
    uint64_t sorted = lk_program_tensors_max(m) * sizeof(uint32_t);
    const lk_graph *g = lk_graph_of(m);
    uint64_t values = g ? g->calls->entries(m).values : (uint64_t)m->layer_count + 1;
    return LK_MAX(sorted, values * sizeof(lk_value));
}

uint64_t lk_program_bytes(const lk_model *m) {
    return lk_round_up(lk_program_ops_max(m) * sizeof(lk_op), 64) +
           lk_round_up(lk_program_tensors_max(m) * sizeof(lk_tensor), 64) +
           lk_round_up(entries_max(m) * sizeof(lk_param), 64) + lk_round_up(order_bytes(m), 64);
}

uint64_t lk_programs_bytes(const lk_model *m) {
    return lk_objective_count(m) * lk_program_bytes(m);
}

static void lay_tables(const lk_model *m, uint8_t *memory, lk_program *p) {
    p->ops = (lk_op *)(void *)memory;
    memory += lk_round_up(lk_program_ops_max(m) * sizeof(lk_op), 64);
    p->tensors = (lk_tensor *)(void *)memory;
    memory += lk_round_up(lk_program_tensors_max(m) * sizeof(lk_tensor), 64);
    p->params = (lk_param *)(void *)memory;
    memory += lk_round_up(entries_max(m) * sizeof(lk_param), 64);
    p->order = (uint32_t *)(void *)memory;
}

// --- reduction, scratch, lifetimes -----------------------------------------------------

lk_grain_range lk_replica_grains(uint32_t grains, uint32_t replicas, uint32_t replica) {
    uint32_t first = (uint32_t)((uint64_t)grains * replica / replicas);
    uint32_t end = (uint32_t)((uint64_t)grains * (replica + 1) / replicas);
    return (lk_grain_range){first, end - first};
}

// Returns the most nodes held at once; `counter` says those at the end. `late`: the blocks of a
// microbatch are joined after its last one.
static uint32_t hold_nodes(uint32_t first, uint32_t count, uint32_t microbatch_grains,
                           uint32_t total, bool late, lk_counter *counter) {
    uint32_t most = 0, end = first + count;
    counter->count = 0;
    for (uint32_t at = first; at < end;) {
        uint32_t microbatch_end = LK_MIN(at + microbatch_grains, end), held = counter->count;
        while (at < microbatch_end) {
            lk_node block = lk_next_block(at, microbatch_end, total);
            held = (late ? held : counter->count) + 1;
            most = LK_MAX(most, held);
            lk_counter_push(counter, block);
            at = (uint32_t)LK_MIN((uint64_t)(block.index + 1) << block.level, microbatch_end);
        }
    }
    return most;
}

uint32_t lk_node_slots(uint32_t first, uint32_t count, uint32_t microbatch_grains, uint32_t total) {
    lk_counter counter;
    return hold_nodes(first, count, microbatch_grains, total, false, &counter);
}

uint32_t lk_device_slots(uint32_t first, uint32_t count, uint32_t microbatch_grains,
                         uint32_t total) {
    lk_counter counter;
    return hold_nodes(first, count, microbatch_grains, total, true, &counter);
}

lk_counter lk_nodes_held(uint32_t first, uint32_t count, uint32_t microbatch_grains,
                         uint32_t total) {
    lk_counter counter;
    (void)hold_nodes(first, count, microbatch_grains, total, false, &counter);
    return counter;
}

// The most grains that a replica computes in a step.
static uint32_t replica_grains_max(const lk_program *p) {
    return (p->grains + p->layout.replicas_all - 1) / p->layout.replicas_all;
}

// `fitting`: the grains that were found to fit, or 0.
static void choose_microbatch(lk_program *p, uint64_t fitting) {
    uint32_t most = replica_grains_max(p);
    uint64_t wanted = p->layout.microbatch_examples;
    if (wanted == 0) {
        bool resident = (uint64_t)most * p->spec->grain <= RESIDENT_EXAMPLES;
        wanted = resident ? RESIDENT_EXAMPLES : MICROBATCH_EXAMPLES;
    }
    if (fitting != 0) wanted = fitting * p->spec->grain;
    uint64_t grains = LK_MAX(wanted / p->spec->grain, 1);
    // Whole grains, also where a batch has none: evaluation fills them.
    p->microbatch_grains = (uint32_t)LK_MIN(grains, most);
    p->microbatch_examples = p->microbatch_grains * p->spec->grain;
}

// How many grains' activations fit into KEPT_BYTES, where those of a microbatch do not, or 0. The
// forward ops are there. The programs of several objectives keep the same microbatches.
static uint64_t fitting_grains(const lk_program *p) {
    uint64_t bytes = 0;
    if (p->layout.microbatch_examples || p->layout.device || lk_graph_of(&p->spec->model)) return 0;
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        if (p->tensors[i].region == LK_REGION_REPLICA) bytes += p->tensors[i].bytes;
    }
    if (bytes <= KEPT_BYTES) return 0;
    return LK_MAX(KEPT_BYTES / (bytes / p->microbatch_grains), 1);
}

// Operands pay where reading the others' activations is less than reading their gradients. Only
// replicas that share a memory can read each other's.
static lk_reduce_mode reduce_mode(const lk_program *p, const lk_op *op) {
    bool resident = p->microbatch_grains >= replica_grains_max(p);
    bool reach = lk_layout_sharers(&p->layout) == p->layout.replicas_all;
    const uint32_t uses = lk_op_uses(op);
    // Leaves that are not there are between others where uses are no power of two.
    if (p->layout.device || (uses & (uses - 1)) != 0) return LK_REDUCE_PARTIALS;
    if (!op->type->rows || !resident || !reach) return LK_REDUCE_PARTIALS;
    if (lk_mixed_by_grain(p, op)) return LK_REDUCE_PARTIALS;
    if (p->layout.reduce == LK_REDUCE_ALL_PARTIALS) return LK_REDUCE_PARTIALS;
    if (p->layout.reduce == LK_REDUCE_ALL_OPERANDS) return LK_REDUCE_OPERANDS;
    uint64_t rows, columns;
    op->type->rows(op, &rows, &columns);
    bool pays = p->layout.replicas_all == 1 || (uint64_t)p->microbatch_examples * uses < columns;
    return pays ? LK_REDUCE_OPERANDS : LK_REDUCE_PARTIALS;
}

static bool any_by_grain(const lk_program *p) {
    for (uint32_t i = p->forward_end; i < p->op_count; i++) {
        if (lk_mixed_by_grain(p, &p->ops[i])) return true;
    }
    return false;
}

// The partials of a node, and how many of them a replica holds.
static lk_status node_tensors(lk_builder *b) {
    lk_program *p = b->program;
    const bool device = p->layout.device;
    for (uint32_t i = 0; i < lk_entry_count(p); i++) {
        lk_param *param = &p->params[i];
        if (param->gradient_op == LK_NONE) continue;
        param->mode = reduce_mode(p, &p->ops[param->gradient_op]);
        if (param->mode == LK_REDUCE_OPERANDS) continue;
        param->node_offset = p->node_floats;
        p->node_floats += lk_round_up(param->count, 16);
    }
    p->loss_offset = p->node_floats;
    if (device) p->node_floats += 16;
    // All that share a memory have the same layout, so that one finds what another holds.
    for (uint32_t r = 0; r < lk_layout_sharers(&p->layout); r++) {
        lk_grain_range g =
            lk_layout_grains(&p->layout, p->grains, r - lk_layout_first_sharer(&p->layout));
        lk_counter counter;
        uint32_t slots =
            hold_nodes(g.first, g.count, p->microbatch_grains, p->grains, device, &counter);
        p->node_slots = LK_MAX(p->node_slots, slots);
    }
    // Uses that are no power of two, operands widened whole: a block is joined grain by grain above
    // the nodes held.
    if (p->uses_max > 2 || any_by_grain(p)) p->node_slots += lk_root_level(p->microbatch_grains);
    const uint64_t nodes[] = {p->node_slots, p->node_floats};
    return lk_build_tensor(b, "gradient nodes", LK_CLASS_EXCHANGE, LK_F32, LK_REGION_REPLICA, 2,
                           nodes, &p->nodes);
}

static bool asks_for_norms(const lk_run_spec *spec) {
    if (lk_spectral_count(&spec->model) > 0) return true;
    for (uint32_t k = 0; k < lk_objective_count(&spec->model); k++) {
        if (lk_optimizer_norm(lk_optimizer_of(spec, k))) return true;
    }
    return false;
}

// In the device region: once for each memory, and the same for all objectives. (Their entries in
// the tables are among those of slots that nobody has.)
static lk_status norm_tensors(lk_builder *b) {
    lk_program *p = b->program;
    uint64_t slices = 0;
    p->gradient = p->squares = LK_NONE;
    if (!asks_for_norms(p->spec)) return LK_OK;
    for (uint32_t i = 0; i < lk_entry_count(p); i++) {
        slices += lk_param_slices(&p->params[i]);
    }
    const uint64_t gradient[] = {slices, LK_SLICE_TERMS}, squares[] = {slices, 2};
    LK_CHECK(lk_build_tensor(b, "gradient", LK_CLASS_EXCHANGE, LK_F32, LK_REGION_DEVICE, 2,
                             gradient, &p->gradient));
    return lk_build_tensor(b, "squares", LK_CLASS_EXCHANGE, LK_F32, LK_REGION_DEVICE, 2, squares,
                           &p->squares);
}

static lk_op *loss_of(const lk_program *p) {
    uint32_t i = 0;
    while (p->ops[i].type->scope != LK_SCOPE_LOSS) i++;
    return &p->ops[i];
}

static lk_status refuse_weights(lk_builder *b, uint32_t objective, const lk_weights_list *weights) {
    const lk_model *m = &b->program->spec->model;
    char path[48] = "model.loss";
    if (lk_graph_of(m)) lk_format(path, sizeof path, "model.objectives[%u].loss", objective);
    if (!weights->all) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "%s.class_weight: found class %u, wanted one below %u, the number of "
                       "model.classes; remove it, or raise that",
                       path, weights->count - 1, m->classes);
    }
    return lk_fail(b->error, LK_BAD_CONFIG,
                   "%s.class_weight: found numbers for %u classes, wanted %u, as many as "
                   "model.classes; or an object of some, by their numbers",
                   path, weights->count, m->classes);
}

// Those of all objectives, so that all have the same device region; the loss takes its own.
static lk_status weight_tensors(lk_builder *b) {
    const lk_model *m = &b->program->spec->model;
    const uint64_t classes = m->classes;
    for (uint32_t k = 0; k < lk_objective_count(m); k++) {
        const lk_weights_list *weights = &lk_loss_options_of(m, k)->class_weight;
        uint32_t tensor;
        if (!weights->at) continue;
        if (weights->count > classes || (weights->all && weights->count < classes)) {
            return refuse_weights(b, k, weights);
        }
        LK_CHECK(lk_build_tensor(b, "class_weight", LK_CLASS_STAGING, LK_F32, LK_REGION_DEVICE, 1,
                                 &classes, &tensor));
        if (k == b->program->objective) loss_of(b->program)->tensor[LK_AUX] = tensor;
    }
    return LK_OK;
}

static lk_status reduce_tensors(lk_builder *b) {
    lk_program *p = b->program;
    uint64_t all = 0;  // grains of the step, with their uses, as an owner sees them
    uint64_t scratch = (uint64_t)LK_JOIN_FLOATS * (lk_root_level(p->grains) + 2);
    LK_CHECK(node_tensors(b));
    LK_CHECK(norm_tensors(b));
    LK_CHECK(weight_tensors(b));
    p->views = p->reduce_scratch = LK_NONE;
    if (p->layout.device) return LK_OK;
    for (uint32_t i = 0; i < p->param_count; i++) {
        if (p->params[i].mode == LK_REDUCE_PARTIALS) continue;
        const lk_op *op = &p->ops[p->params[i].gradient_op];
        all = LK_MAX(all, (uint64_t)p->grains * lk_op_uses(op));
        uint64_t rows, columns;
        op->type->rows(op, &rows, &columns);
        uint64_t some = LK_MAX((uint64_t)LK_OPERANDS_ROWS * columns, LK_OPERANDS_FLOATS_MAX);
        const uint64_t mixed = lk_mixed_is(p, op) ? lk_mixed_rows_floats(p, op) : 0;
        const uint64_t examples = (uint64_t)p->microbatch_examples * lk_op_uses(op);
        scratch =
            LK_MAX(scratch, some + mixed + op->type->scratch_floats(op, (uint32_t)examples));
    }
    const uint64_t some = (uint64_t)p->microbatch_grains * p->uses_max;
    const uint64_t views = LK_MAX(some, all) * (uint64_t)sizeof(lk_grain_view) *
                           (lk_model_is_mixed(&p->spec->model) ? 2 : 1);  // and of what is widened
    LK_CHECK(lk_build_tensor(b, "grain views", LK_CLASS_STAGING, LK_U8, LK_REGION_REPLICA, 1,
                             &views, &p->views));
    return lk_build_tensor(b, "reduce/scratch", LK_CLASS_SCRATCH, LK_F32, LK_REGION_REPLICA, 1,
                           &scratch, &p->reduce_scratch);
}

// One for the ops of a device that come one after another, one for those that go beside them.
static lk_status device_scratch(lk_builder *b) {
    lk_program *p = b->program;
    const lk_device_scratch *s = &p->layout.device_scratch;
    uint32_t scratch = LK_NONE, beside = LK_NONE;
    if (s->floats > 0) {
        LK_CHECK(lk_build_tensor(b, "scratch", LK_CLASS_SCRATCH, LK_F32, LK_REGION_REPLICA, 1,
                                 &s->floats, &scratch));
    }
    if (s->beside > 0) {
        LK_CHECK(lk_build_tensor(b, "scratch beside", LK_CLASS_SCRATCH, LK_F32, LK_REGION_REPLICA,
                                 1, &s->beside, &beside));
    }
    for (uint32_t i = 0; i < p->op_count; i++) {
        p->ops[i].tensor[LK_SCRATCH] = lk_op_goes_beside(&p->ops[i]) ? beside : scratch;
    }
    return LK_OK;
}

// Sets op->divided, too.
static uint64_t scratch_floats(const lk_program *p, lk_op *op) {
    const uint32_t some = p->microbatch_examples, replicas = p->layout.replicas;
    const uint64_t uses = (uint64_t)some * p->uses_max;
    if (lk_mixed_is(p, op)) return lk_mixed_scratch_floats(p, op);
    const uint64_t divided =
        op->type->divided_floats ? op->type->divided_floats(op, some, replicas) : 0;
    op->divided = divided > 0;
    if (op->divided) return divided;
    return op->type->scratch_floats(op, (uint32_t)LK_MIN(uses, UINT32_MAX));
}

static lk_status scratch_tensors(lk_builder *b) {
    lk_program *p = b->program;
    if (p->layout.device) return device_scratch(b);
    for (uint32_t i = 0; i < p->op_count; i++) {
        lk_op *op = &p->ops[i];
        if (!op->type->scratch_floats && !lk_mixed_is(p, op)) continue;
        const uint64_t floats = scratch_floats(p, op);
        char name[LK_NAME_BYTES], layer[LK_NAME_BYTES];
        lk_build_op_name(b, op, layer);
        lk_format(name, sizeof name, "%s/%s/scratch", layer, op->type->name);
        LK_CHECK(lk_build_tensor(b, name, LK_CLASS_SCRATCH, LK_F32, LK_REGION_REPLICA, 1, &floats,
                                 &op->tensor[LK_SCRATCH]));
    }
    p->ops[p->reduce_op].tensor[LK_SCRATCH] = p->reduce_scratch;
    return LK_OK;
}

static lk_status check_mixed(const lk_builder *b) {
    const lk_program *p = b->program;
    for (uint32_t i = 0; i < p->op_count; i++) {
        const lk_op *op = &p->ops[i];
        if (op->type->mixed || !lk_mixed_is(p, op)) continue;
        char layer[LK_NAME_BYTES];
        lk_build_op_name(b, op, layer);
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: %s does not compute on tensors of 16 bits yet; use precision "
                       "\"float32\"",
                       layer, op->type->name);
    }
    return LK_OK;
}

static void uses(lk_program *p, uint32_t tensor, uint32_t op) {
    if (tensor == LK_NONE) return;
    lk_tensor *t = &p->tensors[tensor];
    if (t->region == LK_REGION_DEVICE) return;  // states last
    bool first_time = t->last == LK_FOREVER;
    t->first = first_time ? op : LK_MIN(t->first, op);
    t->last = first_time ? op : LK_MAX(t->last, op);
}

// What is run again for a decoding is all there until it is done.
static void lifetimes_again(lk_program *p) {
    const uint32_t decode = lk_program_decode(p);
    for (uint32_t i = 0; i < p->forward_end && decode != LK_NONE; i++) {
        const lk_op *op = &p->ops[i];
        for (uint32_t r = 0; r < LK_ROLES && op->again; r++) uses(p, op->tensor[r], decode);
    }
}

// What an op beside the others reads stays until the next layer's begins, so that the chain may go
// on meanwhile. More is not needed: who writes over it waits (comm/cuda/beside.h).
static void lifetimes_beside(lk_program *p) {
    uint32_t next = p->reduce_op;
    for (uint32_t i = p->reduce_op; i-- > 0;) {
        const lk_op *op = &p->ops[i];
        if (!lk_op_goes_beside(op)) continue;
        for (uint32_t r = 0; r < LK_ROLES; r++) uses(p, op->tensor[r], next);
        if (i == 0 || p->ops[i - 1].layer != op->layer) next = i;
    }
}

static void lifetimes(lk_program *p) {
    for (uint32_t i = 0; i < p->op_count; i++) {
        const lk_op *op = &p->ops[i];
        for (uint32_t r = 0; r < LK_ROLES; r++) uses(p, op->tensor[r], i);
    }
    for (uint32_t i = 0; i < p->param_count; i++) {
        if (p->params[i].mode != LK_REDUCE_OPERANDS) continue;
        const lk_op *op = &p->ops[p->params[i].gradient_op];
        for (uint32_t u = 0; u < lk_op_uses(op); u++) {
            uses(p, op[u].tensor[LK_X], p->reduce_op);
            uses(p, op[u].tensor[LK_DY], p->reduce_op);
        }
    }
    lifetimes_again(p);
    if (p->layout.device) lifetimes_beside(p);
}

static lk_status check_trained(const lk_program *p, lk_error *error) {
    for (uint32_t i = 0; i < p->param_count; i++) {
        if (p->params[i].gradient_op != LK_NONE) return LK_OK;
    }
    return lk_fail(error, LK_BAD_CONFIG,
                   "model: found no layer that a step changes, wanted one with parameters or more "
                   "that is not \"trainable\": false");
}

// `fitting`: 0, or how many grains fit. That is known once the forward ops are there, after which
// it begins anew.
static lk_status build_one(const lk_run_spec *spec, const lk_layout *layout,
                           const lk_plan_options *options, void *memory, uint32_t objective,
                           uint64_t fitting, lk_program *p, lk_error *error) {
    *p = (lk_program){.spec = spec,
                      .layout = *layout,
                      .objective = objective,
                      .optimizer = lk_optimizer_of(spec, objective),
                      .loss_scale = LK_NONE,
                      .skipped = LK_NONE,
                      .uses_max = 1,
                      .checked = options->guards};
    LK_CHECK(lk_run_spec_check(spec, error));
    LK_CHECK(lk_scale_check(&spec->model, error));
    p->grains = lk_grain_count(spec);
    if (spec->model.fast_precision != LK_STRICT && !layout->device) {
        return lk_fail(error, LK_UNAVAILABLE,
                       "arithmetic \"fast\": only a GPU computes it; use \"strict\" here");
    }
    if (layout->replicas_all == 0) p->layout.replicas_all = layout->replicas;
    if (layout->replicas == 0 || p->layout.replicas_all > p->grains) {
        return lk_fail(
            error, LK_BAD_CONFIG,
            "replicas: found %u%s, wanted 1 to %u: a global batch of %u has %u grains of %u and a "
            "replica needs at least one",
            p->layout.replicas_all, layout->replicas_all > layout->replicas ? " in all" : "",
            p->grains, spec->global_batch, p->grains, spec->grain);
    }
    lay_tables(&spec->model, memory, p);
    choose_microbatch(p, fitting);
    lk_builder builder = {.program = p,
                          .error = error,
                          .target = {.op = LK_NONE},
                          .states = p->params + params_max(&spec->model),
                          .ops_max = lk_program_ops_max(&spec->model),
                          .tensors_max = lk_program_tensors_max(&spec->model)};
    LK_CHECK(lk_build_forward(&builder));
    const uint64_t fit = fitting ? 0 : fitting_grains(p);
    if (fit != 0) return build_one(spec, layout, options, memory, objective, fit, p, error);
    if (p->param_count == 0)
        return lk_fail(error, LK_BAD_CONFIG, "model: no layer has parameters to train");
    LK_CHECK(lk_build_backward(&builder));
    LK_CHECK(check_trained(p, error));
    LK_CHECK(lk_spectral_check(p, error));
    LK_CHECK(reduce_tensors(&builder));
    LK_CHECK(check_mixed(&builder));
    LK_CHECK(scratch_tensors(&builder));
    lifetimes(p);
    return lk_plan_regions(p->tensors, p->tensor_count, options, p->order, p->regions, error);
}

lk_status lk_program_build(const lk_run_spec *spec, const lk_layout *layout,
                           const lk_plan_options *options, void *memory, lk_program *program,
                           lk_error *error) {
    return build_one(spec, layout, options, memory, 0, 0, program, error);
}

static void join_regions(lk_program *programs, uint32_t count) {
    lk_region_plan most = {0, 0};
    for (uint32_t k = 0; k < count; k++) {
        const lk_region_plan *r = &programs[k].regions[LK_REGION_REPLICA];
        lk_assert(programs[k].regions[LK_REGION_DEVICE].bytes ==
                  programs[0].regions[LK_REGION_DEVICE].bytes);
        most.bytes = LK_MAX(most.bytes, r->bytes);
        most.lower_bound_bytes = LK_MAX(most.lower_bound_bytes, r->lower_bound_bytes);
    }
    for (uint32_t k = 0; k < count; k++) {
        programs[k].regions[LK_REGION_REPLICA] = most;
        programs[k].programs = count;
        programs[k].all = programs;
    }
}

lk_status lk_programs_build(const lk_run_spec *spec, const lk_layout *layout,
                            const lk_plan_options *options, void *memory, lk_program *programs,
                            lk_error *error) {
    const uint64_t bytes = lk_program_bytes(&spec->model);
    uint8_t *tables = memory;
    LK_CHECK(lk_run_spec_check(spec, error));
    for (uint32_t k = 0; k < lk_objective_count(&spec->model); k++) {
        LK_CHECK(build_one(spec, layout, options, tables + k * bytes, k, 0, &programs[k], error));
    }
    join_regions(programs, lk_objective_count(&spec->model));
    return LK_OK;
}

const lk_program *lk_program_of_step(const lk_program *p, uint64_t step) {
    return p->programs > 1 ? &p->all[lk_step_place_of(&p->spec->model, step).objective] : p;
}

bool lk_state_evaluated(const lk_program *p, uint32_t entry) {
    uint32_t slashes = 0;
    for (const char *c = p->tensors[p->params[entry].tensor].name; *c; c++) slashes += *c == '/';
    return slashes == 1;
}

static uint32_t *skipped_of(const lk_program *p, uint8_t *device, uint32_t objective) {
    return (uint32_t *)(void *)(device + p->tensors[p->skipped].offset) + 2 * objective;
}

uint64_t lk_steps_skipped(const lk_program *p, const uint8_t *device, uint32_t objective) {
    if (p->skipped == LK_NONE) return 0;
    const uint32_t *words = skipped_of(p, (uint8_t *)(uintptr_t)device, objective);
    return words[0] | (uint64_t)words[1] << 32;
}

void lk_skip_step(const lk_program *p, uint8_t *device) {
    if (p->skipped == LK_NONE) return;
    uint32_t *words = skipped_of(p, device, p->objective);
    if (++words[0] == 0) words[1]++;
}

uint32_t lk_next_state(const lk_program *p, lk_state_walk *w) {
    if (!w->slots) {
        if (w->param < p->param_count) return p->params[w->param++].tensor;
        *w = (lk_state_walk){.slots = true};
    }
    const uint32_t programs = LK_MAX(p->programs, 1);
    for (; w->objective < programs; w->objective++, w->slot = 0) {
        const lk_program *own = p->all ? &p->all[w->objective] : p;
        for (; w->slot < lk_optimizer_slot_count(own->optimizer); w->slot++, w->param = 0) {
            while (w->param < own->param_count) {
                const lk_param *param = &own->params[w->param++];
                if (param->gradient_op != LK_NONE) return param->slots[w->slot];
            }
        }
    }
    if (w->state == p->state_count) return LK_NONE;
    return p->params[p->param_count + w->state++].tensor;
}

// --- initial values ----------------------------------------------------------------------------

static void fill_slots(const lk_program *p, uint8_t *device) {
    lk_slot slots[LK_OPTIMIZER_SLOTS_MAX];
    const uint32_t slot_count = lk_optimizer_slots(p->optimizer, slots);
    for (uint32_t i = 0; i < p->param_count; i++) {
        const lk_param *param = &p->params[i];
        if (param->gradient_op == LK_NONE) continue;
        for (uint32_t s = 0; s < slot_count; s++) {
            float *slot = (float *)(void *)(device + p->tensors[param->slots[s]].offset);
            for (uint64_t e = 0; e < param->count; e++) slot[e] = slots[s].initial;
        }
    }
}

static void fill_state(const lk_program *p, uint32_t entry, uint8_t *device) {
    const lk_param *state = &p->params[entry];
    const lk_tensor *t = &p->tensors[state->tensor];
    const lk_initial what = {
        .seed = p->spec->seed, .param = entry, .count = state->count, .value = 1.0f};
    __builtin_memset(device + t->offset, 0, t->bytes);
    if (!state->initializer) return;
    state->initializer->fill(&what, (float *)(void *)(device + t->offset));
}

static void fill_weights(const lk_program *p, uint8_t *device) {
    const lk_weights_list *weights = &lk_program_loss_options(p)->class_weight;
    if (!weights->at) return;
    const lk_tensor *t = &p->tensors[loss_of(p)->tensor[LK_AUX]];
    float *to = (float *)(void *)(device + t->offset);
    for (uint32_t c = 0; c < p->spec->model.classes; c++) to[c] = lk_weight_of(weights, c);
}

uint32_t lk_program_initialize(const lk_program *p, uint8_t *device) {
    for (uint32_t i = 0; i < p->param_count; i++) {
        const lk_param *param = &p->params[i];
        const lk_tensor *t = &p->tensors[param->tensor];
        float *w = (float *)(void *)(device + t->offset);
        lk_initial what = {.seed = p->spec->seed,
                           .param = i,
                           .count = param->count,
                           .columns = t->shape[t->rank - 1]};
        if (param->initializer->takes) {
            what.value = param->initial;
        } else {
            what.fan_in = param->fan_in;
            what.fan_out = param->fan_out;
        }
        param->initializer->fill(&what, w);
    }
    for (uint32_t k = 0; k < LK_MAX(p->programs, 1u); k++) {
        fill_slots(p->all ? &p->all[k] : p, device);
        fill_weights(p->all ? &p->all[k] : p, device);
    }
    if (p->spec->model.averages) p->spec->model.averages->start(p, device);
    for (uint32_t i = p->param_count; i < lk_entry_count(p); i++) fill_state(p, i, device);
    return lk_model_is_mixed(&p->spec->model) ? lk_mixed_round(p, device) : LK_NONE;
}
