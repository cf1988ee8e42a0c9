// graph.c - the full form of a model (model.h): several networks, objectives and a schedule.
// Freestanding; linked only where a model has a graph.
#include "ops/graph/build.h"

// --- the schedule --------------------------------------------------------------------------------

static bool takes_two(const lk_objective *o) { return lk_objective_loss(o)->inputs > 1; }

static bool reads_images(const lk_objective *o) {
    if (lk_objective_loss(o)->labels) return true;
    if (takes_two(o) && o->target == LK_IMAGES) return true;
    for (uint32_t v = 0; v < o->value_count; v++) {
        for (uint32_t i = 0; i < LK_NETWORK_INPUTS_MAX; i++) {
            if (!lk_use_is_noise(&o->values[v]) && o->values[v].inputs[i] == LK_IMAGES) return true;
        }
    }
    return false;
}

// Steps of some entries of the schedule: all; those that read images; those of one objective.
typedef struct entry_steps {
    uint64_t all, images, own;
} entry_steps;

static void add_steps(const lk_graph *g, entry_steps *sum, const lk_schedule_entry *e,
                      uint64_t steps, uint32_t objective) {
    sum->all += steps;
    if (reads_images(&g->objectives[e->objective])) sum->images += steps;
    if (e->objective == objective) sum->own += steps;
}

static entry_steps cycle_of(const lk_graph *g, uint32_t objective) {
    entry_steps sum = {0, 0, 0};
    for (uint32_t i = 0; i < g->schedule_count; i++) {
        add_steps(g, &sum, &g->schedule[i], g->schedule[i].steps, objective);
    }
    return sum;
}

static lk_step_place place_of_step(const lk_graph *g, uint64_t step) {
    uint64_t left = step % cycle_of(g, 0).all;
    uint32_t at = 0;
    for (; left >= g->schedule[at].steps; at++) left -= g->schedule[at].steps;
    const uint32_t objective = g->schedule[at].objective;
    const entry_steps cycle = cycle_of(g, objective);
    entry_steps before = {0, 0, 0};
    for (uint32_t i = 0; i < at; i++) {
        add_steps(g, &before, &g->schedule[i], g->schedule[i].steps, objective);
    }
    add_steps(g, &before, &g->schedule[at], left, objective);
    const uint64_t cycles = step / cycle.all;
    return (lk_step_place){.objective = objective,
                           .images = reads_images(&g->objectives[objective]),
                           .update = cycles * cycle.own + before.own,
                           .batch = cycles * cycle.images + before.images};
}

static uint64_t steps_of_batches(const lk_graph *g, uint64_t batches) {
    const entry_steps cycle = cycle_of(g, 0);
    uint64_t steps;
    if (batches == 0) return 0;
    if (cycle.images == 0) return UINT64_MAX;
    if (!lk_mul_ok((batches - 1) / cycle.images, cycle.all, &steps)) return UINT64_MAX;
    uint64_t left = (batches - 1) % cycle.images + 1;
    for (uint32_t i = 0;; i++) {
        const lk_schedule_entry *e = &g->schedule[i];
        const bool images = reads_images(&g->objectives[e->objective]);
        if (images && left <= e->steps) return steps + left;
        if (images) left -= e->steps;
        steps += e->steps;
    }
}

// --- checks --------------------------------------------------------------------------------------

static bool same(const char *a, const char *b) {
    while (*a && *a == *b) a++, b++;
    return *a == *b;
}

// Every parameter is found by its name.
static lk_status check_names(const lk_model *m, lk_error *error) {
    for (uint32_t i = 0; i < m->layer_count; i++) {
        for (uint32_t k = 0; k < i; k++) {
            if (!same(m->layers[i].name, m->layers[k].name)) continue;
            return lk_fail(error, LK_BAD_CONFIG,
                           "layers %u and %u: found the name \"%s\" twice, wanted names that "
                           "differ",
                           k, i, m->layers[i].name);
        }
    }
    return LK_OK;
}

static lk_status check_network(const lk_model *m, const lk_network *n, lk_error *error) {
    if (n->layer_count == 0 || n->first_layer > m->layer_count ||
        n->layer_count > m->layer_count - n->first_layer) {
        return lk_fail(error, LK_BAD_CONFIG, "network %s: found no layers, wanted at least one",
                       n->name);
    }
    if (n->input_count >= 1 && n->input_count <= LK_NETWORK_INPUTS_MAX) return LK_OK;
    return lk_fail(error, LK_BAD_CONFIG, "network %s: found %u inputs, wanted 1 to %d", n->name,
                   n->input_count, LK_NETWORK_INPUTS_MAX);
}

// What a value takes.
static uint32_t inputs_of(const lk_graph *g, const lk_use *use) {
    return lk_use_is_noise(use) ? 0 : g->networks[use->network].input_count;
}

// The networks of an objective's values, as `trains` has them.
static uint32_t networks_of(const lk_objective *o) {
    uint32_t used = 0;
    for (uint32_t v = 0; v < o->value_count; v++) {
        if (!lk_use_is_noise(&o->values[v])) used |= 1u << o->values[v].network;
    }
    return used;
}

// Is a value of use to the loss or to a later value? The loss's first is to nobody else.
static bool is_used(const lk_graph *g, const lk_objective *o, uint32_t value) {
    bool used = false;
    for (uint32_t v = value + 1; v < o->value_count; v++) {
        for (uint32_t i = 0; i < inputs_of(g, &o->values[v]); i++) {
            used = used || o->values[v].inputs[i] == value;
        }
    }
    if (takes_two(o) && value == o->target && value != o->output) return true;
    return used != (value == o->output);
}

static lk_status check_noise(const lk_objective *o, const lk_use *use, lk_error *error) {
    const lk_noise_source *n = &use->noise;
    if (n->kind != LK_NOISE_UNIFORM || n->low <= n->high) return LK_OK;
    return lk_fail(error, LK_BAD_CONFIG,
                   "objective %s: value %s: its noise goes from low to a high below it, wanted one "
                   "that is not",
                   o->name, use->name);
}

static lk_status check_value(const lk_graph *g, const lk_objective *o, uint32_t v,
                             lk_error *error) {
    const lk_use *use = &o->values[v];
    if (lk_use_is_noise(use)) return check_noise(o, use, error);
    if (use->network >= g->network_count) {
        return lk_fail(error, LK_BAD_CONFIG, "objective %s: value %s: there is no network %u",
                       o->name, use->name, use->network);
    }
    for (uint32_t i = 0; i < g->networks[use->network].input_count; i++) {
        if (use->inputs[i] == LK_IMAGES || use->inputs[i] < v) continue;
        return lk_fail(error, LK_BAD_CONFIG,
                       "objective %s: value %s: its input %u is no earlier value", o->name,
                       use->name, i);
    }
    return LK_OK;
}

static lk_status check_trains(const lk_graph *g, const lk_objective *o, lk_error *error) {
    const uint32_t used = networks_of(o);
    for (uint32_t n = 0; n < LK_NETWORKS_MAX; n++) {
        if (!(o->trains >> n & 1) || used >> n & 1) continue;
        return lk_fail(error, LK_BAD_CONFIG,
                       "objective %s: it trains network %s, which none of its values uses", o->name,
                       n < g->network_count ? g->networks[n].name : "?");
    }
    if (o->trains) return LK_OK;
    return lk_fail(error, LK_BAD_CONFIG, "objective %s: it trains no network, wanted one or more",
                   o->name);
}

static lk_status check_objective(const lk_graph *g, const lk_objective *o, lk_error *error) {
    if (o->value_count == 0 || o->value_count > LK_VALUES_MAX || o->output >= o->value_count) {
        return lk_fail(
            error, LK_BAD_CONFIG,
            "objective %s: found %u values, wanted 1 to %d, and one of them for the loss", o->name,
            o->value_count, LK_VALUES_MAX);
    }
    if (takes_two(o) && o->target != LK_IMAGES && o->target >= o->value_count) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "objective %s: the second input of its loss is no value of it", o->name);
    }
    if (!(o->weight_clip >= 0.0f && o->weight_clip - o->weight_clip == 0.0f)) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "objective %s: weight_clip: found a negative or non-finite number, wanted a "
                       "finite one from 0 up",
                       o->name);
    }
    for (uint32_t v = 0; v < o->value_count; v++) LK_CHECK(check_value(g, o, v, error));
    for (uint32_t v = 0; v < o->value_count; v++) {
        if (is_used(g, o, v)) continue;
        return lk_fail(error, LK_BAD_CONFIG,
                       v == o->output
                           ? "objective %s: value %s is the loss's and another value's, wanted the "
                             "loss's alone"
                           : "objective %s: value %s is of no use to the loss; take it out",
                       o->name, o->values[v].name);
    }
    return check_trains(g, o, error);
}

static lk_status check_schedule(const lk_graph *g, lk_error *error) {
    uint32_t found = 0;
    for (uint32_t i = 0; i < g->schedule_count; i++) {
        const lk_schedule_entry *e = &g->schedule[i];
        if (e->objective >= g->objective_count || e->steps == 0) {
            return lk_fail(error, LK_BAD_CONFIG,
                           "schedule: entry %u has no objective or no steps, wanted one or more",
                           i);
        }
        found |= 1u << e->objective;
    }
    for (uint32_t k = 0; k < g->objective_count; k++) {
        if (found >> k & 1) continue;
        return lk_fail(error, LK_BAD_CONFIG,
                       "schedule: no entry is of objective %s; add one, or take the objective out",
                       g->objectives[k].name);
    }
    return LK_OK;
}

static lk_status check_counts(const lk_graph *g, uint32_t layers, lk_error *error) {
    const struct {
        const char *what;
        uint32_t found, most;
    } counts[] = {{"layers", layers, LK_GRAPH_LAYERS_MAX},
                  {"networks", g->network_count, LK_NETWORKS_MAX},
                  {"objectives", g->objective_count, LK_OBJECTIVES_MAX},
                  {"entries of the schedule", g->schedule_count, LK_SCHEDULE_MAX}};
    for (uint32_t i = 0; i < LK_COUNT(counts); i++) {
        if (counts[i].found >= 1 && counts[i].found <= counts[i].most) continue;
        return lk_fail(error, LK_BAD_CONFIG, "model: found %u %s, wanted 1 to %u", counts[i].found,
                       counts[i].what, counts[i].most);
    }
    return LK_OK;
}

static lk_status check_graph(const lk_model *m, lk_error *error) {
    const lk_graph *g = m->graph;
    uint32_t used = 0;
    LK_CHECK(check_counts(g, m->layer_count, error));
    LK_CHECK(check_names(m, error));
    for (uint32_t n = 0; n < g->network_count; n++) {
        LK_CHECK(check_network(m, &g->networks[n], error));
    }
    for (uint32_t k = 0; k < g->objective_count; k++) {
        const lk_objective *o = &g->objectives[k];
        LK_CHECK(check_objective(g, o, error));
        used |= networks_of(o);
    }
    for (uint32_t n = 0; n < g->network_count; n++) {
        if (used >> n & 1) continue;
        return lk_fail(error, LK_BAD_CONFIG, "network %s: no objective uses it; take it out",
                       g->networks[n].name);
    }
    return check_schedule(g, error);
}

// --- table sizes ---------------------------------------------------------------------------------

// A share of a gradient for each input, an op of type `use` for each parameter.
static void add_network(const lk_model *m, const lk_network *n, lk_graph_entries *sum) {
    for (uint32_t i = n->first_layer; i < n->first_layer + n->layer_count; i++) {
        if (i >= m->layer_count) return;
        const lk_layer_type *l = m->layers[i].type, *activation = m->layers[i].activation;
        sum->ops += l->ops_max + (activation ? activation->ops_max : 0) + l->inputs + l->params_max;
        sum->tensors += l->tensors_max + (activation ? activation->tensors_max : 0) + l->inputs;
    }
}

// LOAD, loss, its sum, REDUCE; input, labels, loss, nodes, views, scratch of REDUCE and two of a
// device; parameters, and a slot of every objective for each.
static lk_graph_entries table_entries(const lk_model *m) {
    const lk_graph *g = m->graph;
    lk_graph_entries most = {0, 0, 0};
    uint32_t params = 0, layers = 0;
    for (uint32_t i = 0; i < m->layer_count; i++) params += m->layers[i].type->params_max;
    for (uint32_t n = 0; n < g->network_count; n++) {
        layers = LK_MAX(layers, g->networks[n].layer_count);
    }
    for (uint32_t k = 0; k < g->objective_count; k++) {
        const lk_objective *o = &g->objectives[k];
        lk_graph_entries sum = {.ops = 4, .tensors = 8};
        if (takes_two(o)) sum.ops += 2, sum.tensors += 2;
        for (uint32_t v = 0; v < o->value_count; v++) {
            if (lk_use_is_noise(&o->values[v])) sum.ops++, sum.tensors++;
            if (o->values[v].network >= g->network_count) continue;
            add_network(m, &g->networks[o->values[v].network], &sum);
        }
        most.ops = LK_MAX(most.ops, sum.ops);
        most.tensors = LK_MAX(most.tensors, sum.tensors);
        most.values = LK_MAX(most.values, o->value_count);
    }
    most.tensors += params * (1 + LK_OPTIMIZER_SLOTS_MAX * g->objective_count);
    most.values += LK_NETWORK_INPUTS_MAX + layers;
    return most;
}

// --- building ------------------------------------------------------------------------------------

static const lk_objective *objective_of(const lk_builder *b) {
    return &b->program->spec->model.graph->objectives[b->program->objective];
}

static uint32_t use_of(const lk_builder *b, uint32_t value) {
    const lk_use *values = objective_of(b)->values;
    uint32_t uses = 0;
    for (uint32_t v = 0; v < value; v++) uses += values[v].network == values[value].network;
    return uses;
}

static bool trained_by(const lk_graph *g, const lk_objective *o, uint32_t layer) {
    for (uint32_t n = 0; n < g->network_count; n++) {
        if (layer - g->networks[n].first_layer >= g->networks[n].layer_count) continue;
        return o->trains >> n & 1;
    }
    return false;
}

static bool trains_layer(const lk_builder *b, uint32_t layer) {
    return trained_by(b->program->spec->model.graph, objective_of(b), layer);
}

static uint32_t length_of(const char *text) {
    uint32_t n = 0;
    while (text[n]) n++;
    return n;
}

// All programs have the slots of all objectives, so that all have the same device region.
static lk_status make_slots(lk_builder *b, uint32_t layer, uint32_t param) {
    lk_program *p = b->program;
    const lk_graph *g = p->spec->model.graph;
    uint32_t others[LK_OPTIMIZER_SLOTS_MAX], trained = 0;
    for (uint32_t i = 0; i < LK_OPTIMIZER_SLOTS_MAX; i++) p->params[param].slots[i] = LK_NONE;
    for (uint32_t k = 0; k < g->objective_count; k++) {
        trained += trained_by(g, &g->objectives[k], layer);
    }
    for (uint32_t k = 0; k < g->objective_count; k++) {
        const lk_objective *o = &g->objectives[k];
        const char *of = p->tensors[p->params[param].tensor].name;
        char infix[LK_GRAPH_NAME_BYTES + 1] = "";
        if (!trained_by(g, o, layer)) continue;
        if (trained > 1) lk_format(infix, sizeof infix, "%s.", o->name);
        lk_slot list[LK_OPTIMIZER_SLOTS_MAX];
        const uint32_t count = lk_optimizer_slots(&o->optimizer, list);
        for (uint32_t i = 0; i < count; i++) {
            const char *slot = list[i].name;
            if (length_of(of) + 1 + length_of(infix) + length_of(slot) < LK_NAME_BYTES) continue;
            return lk_fail(b->error, LK_BAD_CONFIG,
                           "%s/%s%s: found a name of %u bytes or more, wanted at most %u; give the "
                           "layer or the objective a shorter one",
                           of, infix, slot, (unsigned)LK_NAME_BYTES, (unsigned)LK_NAME_BYTES - 1);
        }
        LK_CHECK(lk_build_slots(b, param, &o->optimizer, infix,
                                k == p->objective ? p->params[param].slots : others));
    }
    return LK_OK;
}

// The parameters of a network, in canonical order, from its layers alone: the ops are dropped.
static lk_status make_params(lk_builder *b, const lk_network *n) {
    lk_program *p = b->program;
    const uint32_t first = p->op_count;
    uint64_t floats;
    for (uint32_t i = 0; i < n->input_count; i++) {
        LK_CHECK(lk_build_check_shape(b, n->name, &n->inputs[i], &floats));
        if (floats == 0) {
            return lk_fail(b->error, LK_BAD_CONFIG, "network %s: a dimension of its input is 0",
                           n->name);
        }
        lk_build_values(b)[i] = (lk_value){0, n->inputs[i]};
    }
    LK_CHECK(lk_build_network(b, n->first_layer, n->layer_count, n->input_count));
    for (uint32_t i = first; i < p->op_count; i++) {
        if (p->ops[i].type->declare) LK_CHECK(p->ops[i].type->declare(b, &p->ops[i]));
    }
    p->op_count = first;
    return LK_OK;
}

static bool same_shape(const lk_shape *a, const lk_shape *b) {
    return a->h == b->h && a->w == b->w && a->c == b->c && a->flat == b->flat;
}

static lk_status take_value(lk_builder *b, const lk_use *use, uint32_t input, lk_value from) {
    const lk_network *n = &b->program->spec->model.graph->networks[use->network];
    const lk_shape *found = &from.shape, *wanted = &n->inputs[input];
    lk_build_values(b)[input] = from;
    if (same_shape(found, wanted)) return LK_OK;
    return lk_fail(b->error, LK_BAD_CONFIG,
                   "objective %s: value %s: network %s gets %u x %u x %u%s, but its input is %u x "
                   "%u x %u%s",
                   objective_of(b)->name, use->name, n->name, found->h, found->w, found->c,
                   found->flat ? " (flat)" : "", wanted->h, wanted->w, wanted->c,
                   wanted->flat ? " (flat)" : "");
}

static lk_status build_noise(lk_builder *b, const lk_use *use, uint32_t value) {
    const uint32_t number = LK_NOISE_OF_OBJECTIVE * b->program->objective + value;
    uint64_t floats;
    LK_CHECK(lk_build_check_shape(b, use->name, &use->shape, &floats));
    if (floats == 0) {
        return lk_fail(b->error, LK_BAD_CONFIG, "objective %s: value %s: a dimension of it is 0",
                       objective_of(b)->name, use->name);
    }
    b->layer = LK_NONE;
    lk_op *op = lk_build_op(b, &lk_op_noise, (lk_value){.op = LK_NONE}, use->shape);
    op->floats = floats;
    op->ends = true;
    op->noise = lk_noise_of(&use->noise, number);
    return LK_OK;
}

static lk_status build_use(lk_builder *b, const lk_use *use, const lk_value *values,
                           lk_value images) {
    const lk_network *n = &b->program->spec->model.graph->networks[use->network];
    for (uint32_t i = 0; i < n->input_count; i++) {
        const uint32_t from = use->inputs[i];
        LK_CHECK(take_value(b, use, i, from == LK_IMAGES ? images : *(values - from)));
    }
    return lk_build_network(b, n->first_layer, n->layer_count, n->input_count);
}

static lk_status graph_forward(lk_builder *b) {
    const lk_graph *g = b->program->spec->model.graph;
    const lk_objective *o = objective_of(b);
    LK_CHECK(lk_build_load(b));
    const lk_value images = b->output;
    // One that reads none takes none: LOAD then makes no tensor.
    if (!reads_images(o)) b->program->ops[images.op].floats = 0;
    lk_value *values = lk_build_values(b) + table_entries(&b->program->spec->model).values - 1;
    b->params_only = true;
    for (uint32_t n = 0; n < g->network_count; n++) LK_CHECK(make_params(b, &g->networks[n]));
    b->params_only = false;
    // From the end of the table, downwards: the values of layers lie at its start.
    for (uint32_t v = 0; v < o->value_count; v++) {
        const lk_use *use = &o->values[v];
        b->value = v + 1;
        LK_CHECK(lk_use_is_noise(use) ? build_noise(b, use, v) : build_use(b, use, values, images));
        *(values - v) = b->output;
    }
    b->output = *(values - o->output);
    if (takes_two(o)) b->target = o->target == LK_IMAGES ? images : *(values - o->target);
    return LK_OK;
}

// --- gradients of parameters with several uses ---------------------------------------------------

static bool is_use(const lk_program *p, uint32_t op, uint32_t of, uint32_t param) {
    return p->ops[op].layer == p->ops[of].layer && p->ops[op].type == p->ops[of].type &&
           p->ops[op].param[param] == p->ops[of].param[param];
}

// Backward meets the first use last.
static bool takes_gradient(const lk_builder *b, uint32_t of, uint32_t param) {
    const lk_program *p = b->program;
    if (!trains_layer(b, p->ops[of].layer)) return false;
    for (uint32_t i = 0; i < of; i++) {
        if (is_use(p, i, of, param)) return false;
    }
    return true;
}

static void add_uses(lk_builder *b, uint32_t of, uint32_t param) {
    lk_program *p = b->program;
    uint32_t uses = 1;
    for (uint32_t i = of + 1; i < p->forward_end; i++) {
        if (!is_use(p, i, of, param)) continue;
        (void)lk_build_use_gradient(b, &lk_op_use, i);
        uses++;
    }
    p->uses_max = LK_MAX(p->uses_max, uses);
}

const lk_graph_calls lk_graph_linked = {.place = place_of_step,
                                        .steps_of_batches = steps_of_batches,
                                        .reads_images = reads_images,
                                        .check = check_graph,
                                        .entries = table_entries,
                                        .forward = graph_forward,
                                        .use_of = use_of,
                                        .trains = trains_layer,
                                        .takes_gradient = takes_gradient,
                                        .add_uses = add_uses,
                                        .slots = make_slots};
