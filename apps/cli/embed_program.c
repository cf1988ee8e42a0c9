// embed_program.c - a compiled program as constants of C: ops, tensors, parameters, the table of
// them. Only the ops that it names are linked into what trains it, and nothing that compiles.
#include "apps/cli/embed.h"

typedef unsigned long long ull;

// What a descriptor's variable is called after lk_op_.
static const char *op_variable(const lk_op_type *type) {
    static const char *const names[] = {
#define NAME_OP(NUMBER, name) [LK_OP_##NUMBER] = #name,
        LK_OP_LIST(NAME_OP)
#undef NAME_OP
    };
    return names[type->number];
}

// A number in a table of the program, or none.
static void put_number(FILE *f, uint32_t number) {
    if (number == LK_NONE)
        fprintf(f, "LK_NONE");
    else
        fprintf(f, "%uu", number);
}

static void put_numbers(FILE *f, const char *name, const uint32_t *numbers, uint32_t count) {
    fprintf(f, "     .%s = {", name);
    for (uint32_t i = 0; i < count; i++) {
        if (i) fprintf(f, ", ");
        put_number(f, numbers[i]);
    }
    fprintf(f, "},\n");
}

// Its shape: the words of the union, up to the last that is not 0.
static void put_words(FILE *f, const lk_op *op) {
    uint32_t count = LK_OP_WORDS;
    while (count > 0 && op->words[count - 1] == 0) count--;
    if (count == 0) return;
    fprintf(f, "     .words = {");
    for (uint32_t i = 0; i < count; i++) fprintf(f, "%s0x%xu", i ? ", " : "", op->words[i]);
    fprintf(f, "},\n");
}

// Without what only the compiler asks of an op.
static void put_op(FILE *f, const lk_op *op) {
    const struct {
        bool is;
        const char *name;
    } flags[] = {{op->relu, "relu"}, {op->relu_apart, "relu_apart"}, {op->odd_apart, "odd_apart"}};
    fprintf(f, "    {.type = &lk_op_%s,\n     .floats = %lluu,\n     .phase = (lk_phase)%u,\n",
            op_variable(op->type), (ull)op->floats, (unsigned)op->phase);
    fprintf(f, "     .layer = ");
    put_number(f, op->layer);
    fprintf(f, ",\n");
    put_numbers(f, "tensor", op->tensor, LK_ROLES);
    put_numbers(f, "param", op->param, LK_OP_PARAMS);
    for (uint32_t i = 0; i < LK_COUNT(flags); i++) {
        if (flags[i].is) fprintf(f, "     .%s = true,\n", flags[i].name);
    }
    if (op->dtype != LK_F32) fprintf(f, "     .dtype = %uu,\n", op->dtype);
    put_words(f, op);
    fprintf(f, "    },\n");
}

static void put_tensor(FILE *f, const lk_tensor *t) {
    fprintf(f, "    {.name = ");
    lk_embed_string(f, t->name);
    fprintf(f,
            ",\n     .class_ = (lk_tensor_class)%u, .dtype = (lk_dtype)%u, "
            ".region = (lk_region)%u,\n",
            (unsigned)t->class_, (unsigned)t->dtype, (unsigned)t->region);
    fprintf(f, "     .rank = %uu, .shape = {", t->rank);
    for (uint32_t i = 0; i < t->rank; i++) fprintf(f, "%s%lluu", i ? ", " : "", (ull)t->shape[i]);
    fprintf(f, "},\n     .first = %uu, .last = %uu, .bytes = %lluu, .offset = %lluu},\n", t->first,
            t->last, (ull)t->bytes, (ull)t->offset);
}

static void put_param(FILE *f, const lk_param *p) {
    fprintf(f, "    {.tensor = %uu,\n", p->tensor);
    put_numbers(f, "slots", p->slots, LK_OPTIMIZER_SLOTS_MAX);
    fprintf(f, "     .rounded = ");
    put_number(f, p->rounded);
    fprintf(f, ", .gradient_op = ");
    put_number(f, p->gradient_op);
    fprintf(f, ",\n     .count = %lluu, .node_offset = %lluu, .mode = (lk_reduce_mode)%u,\n",
            (ull)p->count, (ull)p->node_offset, (unsigned)p->mode);
    if (p->initializer)
        fprintf(f, "     .initializer = &lk_initializer_%s,\n", p->initializer->name);
    if (p->initializer && p->initializer->takes)
        fprintf(f, "     .initial = %af},\n", (double)p->initial);
    else
        fprintf(f, "     .fan_in = %lluu, .fan_out = %lluu},\n", (ull)p->fan_in, (ull)p->fan_out);
}

// Who computes what: only what is read once a program is there.
static void put_layout(FILE *f, const lk_layout *l) {
    fprintf(f,
            "    .layout = {.replicas = %uu, .replicas_all = %uu, .microbatch_examples = %uu},\n",
            l->replicas, l->replicas_all, l->microbatch_examples);
}

static void put_field(FILE *f, const char *name, uint32_t value) {
    fprintf(f, "    .%s = ", name);
    put_number(f, value);
    fprintf(f, ",\n");
}

static void put_fields(FILE *f, const lk_program *p) {
    const struct {
        const char *name;
        uint32_t value;
    } fields[] = {{"uses_max", p->uses_max},
                  {"grains", p->grains},
                  {"microbatch_grains", p->microbatch_grains},
                  {"microbatch_examples", p->microbatch_examples},
                  {"op_count", p->op_count},
                  {"tensor_count", p->tensor_count},
                  {"param_count", p->param_count},
                  {"state_count", p->state_count},
                  {"loss_scale", p->loss_scale},
                  {"skipped", p->skipped},
                  {"forward_end", p->forward_end},
                  {"reduce_op", p->reduce_op},
                  {"input", p->input},
                  {"logits", p->logits},
                  {"dlogits", p->dlogits},
                  {"labels", p->labels},
                  {"loss", p->loss},
                  {"views", p->views},
                  {"nodes", p->nodes},
                  {"node_slots", p->node_slots},
                  {"reduce_scratch", p->reduce_scratch},
                  {"gradient", p->gradient},
                  {"squares", p->squares}};
    for (uint32_t i = 0; i < LK_COUNT(fields); i++) put_field(f, fields[i].name, fields[i].value);
    fprintf(f, "    .node_floats = %lluu,\n    .loss_offset = %lluu,\n    .param_floats = %lluu,\n",
            (ull)p->node_floats, (ull)p->loss_offset, (ull)p->param_floats);
    if (p->checked) fprintf(f, "    .checked = true,\n");
}

void lk_embed_program(FILE *f, const lk_program *p) {
    fprintf(f, "\nstatic const lk_op ops[] = {\n");
    for (uint32_t i = 0; i < p->op_count; i++) put_op(f, &p->ops[i]);
    fprintf(f, "};\n\nstatic const lk_tensor tensors[] = {\n");
    for (uint32_t i = 0; i < p->tensor_count; i++) put_tensor(f, &p->tensors[i]);
    fprintf(f, "};\n\nstatic const lk_param params[] = {\n");
    for (uint32_t i = 0; i < lk_entry_count(p); i++) put_param(f, &p->params[i]);
    fprintf(f, "};\n\n// Its tables are never written, so they may lie in read-only memory.\n");
    fprintf(f,
            "static const lk_program program = {\n    .spec = &lk_embedded_run.spec,\n"
            "    .optimizer = &lk_embedded_run.spec.optimizer,\n");
    put_layout(f, &p->layout);
    put_fields(f, p);
    fprintf(f, "    .regions = {");
    for (uint32_t i = 0; i < LK_REGION_COUNT; i++)
        fprintf(f, "%s{%lluu, %lluu}", i ? ", " : "", (ull)p->regions[i].bytes,
                (ull)p->regions[i].lower_bound_bytes);
    fprintf(f,
            "},\n    .ops = (lk_op *)(uintptr_t)ops,\n"
            "    .tensors = (lk_tensor *)(uintptr_t)tensors,\n"
            "    .params = (lk_param *)(uintptr_t)params,\n};\n");
}
