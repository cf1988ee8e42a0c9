// step.c - a device's arena, its input ring, steps begun and waited for. Host only.
#define _GNU_SOURCE
#include "comm/cuda/step.h"

#include <endian.h>
#include <math.h>
#include <string.h>

#include "comm/threads/clock.h"
#include "comm/cuda/guards.h"
#include "comm/cuda/persist.h"
#include "comm/cuda/uses.h"
#include "comm/cuda/walk.h"
#include "ops/graph/mixed.h"
#include "ops/graph/scale.h"
#include "ops/graph/spectral.h"

// The input ring: as many steps as fit in RING_BYTES, from one in each half to SLOTS_MAX in both.
// The tests compile it with fewer, so that short runs go round it.
#ifndef LK_CUDA_SLOTS_MAX
#define LK_CUDA_SLOTS_MAX 64
#endif
enum { RING_BYTES = 4 << 20, SLOTS_MAX = LK_CUDA_SLOTS_MAX };

// Labels of resident data that go to the device at once.
enum { LABELS_AT_ONCE = 4096 };

// Kernels that are told apart before the seal.
enum { KERNELS_MAX = 256 };

// What a GPU aligns its memory to, at least.
enum { DEVICE_ALIGN_BYTES = 256 };

// --- the plan ------------------------------------------------------------------------------------

static bool is_fast(const lk_run_spec *spec) { return spec->model.fast_precision != LK_STRICT; }

static lk_fast_rules rules_of(const lk_run_spec *spec) {
    return (lk_fast_rules){.precision = spec->model.fast_precision,
                           .grain = spec->grain,
                           .grains = lk_grain_count(spec),
                           .chunk_bytes = LK_FAST_CHUNK_BYTES,
                           .piece_terms = LK_FAST_PIECE_TERMS,
                           .launch_max = INT32_MAX};
}

static uint64_t op_scratch(const lk_op *op, uint32_t examples, const lk_run_spec *spec) {
    const lk_fast_rules rules = rules_of(spec);
    return lk_cuda_op_scratch_floats(op, spec->grain, examples, is_fast(spec) ? &rules : NULL);
}

// Shapes of products: of each op for a whole grain, and for the short last one of a batch, of an
// epoch and of the test set.
static uint32_t blas_plans_max(const lk_program *p) {
    enum { SHAPES = 4 };
    uint32_t products = 0;
    for (uint32_t i = 0; i < p->op_count; i++) {
        products += lk_cuda_is_product(&p->ops[i]);
    }
    return is_fast(p->spec) ? products * SHAPES : 0;
}

static uint64_t spectral_scratch(const lk_program *p, const lk_op *op) {
    const lk_param *param = &p->params[op->param[0]];
    const lk_tensor *t = &p->tensors[param->tensor];
    const uint32_t columns = (uint32_t)t->shape[t->rank - 1];
    return lk_cuda_spectral_scratch_floats((uint32_t)(param->count / columns), columns);
}

static void add_scratch(const lk_program *p, lk_device_scratch *most) {
    for (uint32_t i = 0; i < p->op_count; i++) {
        const lk_op *op = &p->ops[i];
        uint64_t *const floats = lk_op_goes_beside(op) ? &most->beside : &most->floats;
        const uint64_t wide = lk_mixed_is(p, op) ? lk_mixed_device_floats(p, op) : 0;
        *floats = LK_MAX(*floats, wide + op_scratch(op, p->microbatch_examples, p->spec));
        if (lk_param_is_spectral(p, op->param[0])) {
            most->floats = LK_MAX(most->floats, spectral_scratch(p, op));
        }
        if (op->type->scope != LK_SCOPE_GRAINS || lk_op_uses(op) == 1) continue;
        const lk_cuda_uses u = lk_cuda_uses_of(p, op);
        *floats = LK_MAX(*floats, u.floats + op_scratch(op, u.examples, p->spec));
    }
}

lk_device_scratch lk_cuda_scratch(const lk_program *p) {
    lk_device_scratch most = {0};
    for (uint32_t k = 0; k < lk_exchange_programs(p); k++) {
        add_scratch(lk_exchange_program(p, k), &most);
    }
    return most;
}

static bool is_resident(const lk_cuda_step *c) { return c->needs.examples > 0; }

static bool reads_images(const lk_program *p) { return p->ops[0].floats > 0; }

// 0 where no objective reads images.
static uint64_t image_bytes(const lk_cuda_step *c) {
    bool any = false;
    for (uint32_t k = 0; k < lk_exchange_programs(c->program); k++) {
        any |= reads_images(lk_exchange_program(c->program, k));
    }
    return any ? lk_model_input_bytes(&c->program->spec->model) : 0;
}

static uint64_t label_row(const lk_cuda_step *c) {
    return lk_model_label_row(&c->program->spec->model);
}

static uint32_t ring_slots(const lk_cuda_step *c) {
    if (is_resident(c)) return SLOTS_MAX;
    const uint64_t example = label_row(c) * sizeof(uint32_t) + image_bytes(c);
    const uint64_t slots = RING_BYTES / (example * c->batch_count);
    return (uint32_t)LK_MIN(LK_MAX(slots / 2 * 2, 2), SLOTS_MAX);
}

// The device's ledger holds offsets: its memory has no address that the host could use.
static void *take(lk_cuda_step *c, const char *name, uint64_t bytes, uint64_t count) {
    lk_arena_take(&c->arena, name, bytes, count, DEVICE_ALIGN_BYTES);
    uint64_t offset = c->arena.entries[c->arena.entry_count - 1].offset;
    return c->block && bytes && count ? c->block + offset : NULL;
}

// The examples of a full batch that the replicas of this GPU compute, and how many nodes they hold.
static void count_share(lk_cuda_step *c) {
    const lk_program *p = c->program;
    const uint32_t last = c->first_replica + c->replicas - 1;
    const lk_grain_range a = lk_layout_grains(&p->layout, p->grains, c->first_replica);
    const lk_grain_range b = lk_layout_grains(&p->layout, p->grains, last);
    const uint64_t end = (uint64_t)(b.first + b.count) * p->spec->grain;
    c->batch_first = a.first * p->spec->grain;
    c->batch_count = (uint32_t)LK_MIN(end, p->spec->global_batch) - c->batch_first;
    uint32_t slots = 0;
    for (uint32_t k = 0; k < lk_exchange_programs(p); k++) {
        slots = LK_MAX(slots, lk_exchange_program(p, k)->node_slots);
    }
    c->node_max = c->replicas * slots;
    c->table_max = 2 * c->node_max;
    if (c->staged) c->table_max = c->node_max + 2;
    if (!c->exchange) return;
    const uint32_t own = lk_exchange_slots(p, &c->share);
    c->table_max = c->node_max + own + (uint32_t)lk_cuda_slots_before(c, c->exchange->peers) + 2;
}

// Of a node, the most that any objective has.
static uint64_t node_floats(const lk_program *p) {
    uint64_t most = 0;
    for (uint32_t k = 0; k < lk_exchange_programs(p); k++) {
        most = LK_MAX(most, lk_exchange_program(p, k)->node_floats);
    }
    return most;
}

// .. and of the partition that a GPU owns.
static uint64_t own_floats(const lk_cuda_step *c) {
    uint64_t most = 0;
    for (uint32_t k = 0; k < lk_exchange_programs(c->program); k++) {
        const lk_program *p = lk_exchange_program(c->program, k);
        const lk_partition own = lk_cuda_partition_of(p, c->exchange->peers, c->peer);
        most = LK_MAX(most, own.end - own.begin);
    }
    return most;
}

static void plan_exchange(lk_cuda_step *c) {
    const uint64_t floats = node_floats(c->program), word = sizeof(float);
    lk_cuda_regions *at = &c->at;
    if (!lk_cuda_step_shares(c)) return;
    const uint64_t own = lk_exchange_slots(c->program, &c->share);
    const uint64_t theirs = c->staged ? 0 : lk_cuda_slots_before(c, c->exchange->peers);
    at->blocks = take(c, "exchange: whole nodes", floats * word, own);
    at->inbox = take(c, "exchange: inbox", theirs ? own_floats(c) * word : 0, theirs);
    at->sums = take(c, "exchange: sums", floats * word, 1);
    const uint32_t reports = c->staged ? 2 : c->exchange->peers;
    at->reports = take(c, "exchange: reports", reports * sizeof(lk_gpu_report), 1);
}

static void *on_device(const lk_cuda_step *c, uint32_t tensor) {
    return c->at.device + c->program->tensors[tensor].offset;
}

// Where nothing is left in parts, not even the names.
static void plan_left(lk_cuda_step *c) {
    c->left_floats = lk_cuda_left_floats(c);
    c->at.left = NULL;
    if (c->left_floats == 0) return;
    const uint64_t entries = lk_entry_count(c->program);
    c->at.parts = take(c, "gradients in parts: tables", entries * sizeof(lk_cuda_parts),
                       lk_cuda_kinds(c));
    c->at.left = take(c, "gradients in parts", c->left_floats * sizeof(float), 1);
}

static void plan_norms(lk_cuda_step *c) {
    const lk_program *p = c->program;
    bool any = false;
    for (uint32_t k = 0; k < lk_exchange_programs(p); k++) {
        any |= lk_program_norm(lk_exchange_program(p, k)) != LK_NORM_NONE;
    }
    const uint64_t entries = any ? lk_entry_count(p) : 0;
    lk_cuda_norms *n = &c->at.norms;
    if (entries > 0 && c->at.device) {
        n->slices = p->tensors[p->squares].shape[0];
        n->gradient = on_device(c, p->gradient);
        n->squares = on_device(c, p->squares);
    }
    n->sums = take(c, "sums of squares", (entries + (entries > 0)) * sizeof(float), 2);
    n->own = take(c, "parameters' scalars", entries * sizeof(lk_step_scalars), 1);
}

static void plan_penalty(lk_cuda_step *c) {
    const lk_program *p = c->program;
    lk_cuda_penalty *at = &c->at.penalty;
    bool any = false;
    for (uint32_t k = 0; k < lk_exchange_programs(p); k++) {
        const lk_program *own = lk_exchange_program(p, k);
        for (uint32_t i = 0; i < p->param_count; i++) any |= lk_param_l2(own, i) > 0.0f;
    }
    at->slices = any ? lk_param_first_slice(p, lk_entry_count(p)) : 0;
    at->squares = take(c, "penalty: squares", at->slices * sizeof(float), 1);
    at->sums = take(c, "penalty: sums", any ? lk_entry_count(p) * sizeof(float) : 0, 1);
}

// Tables of tasks; where nobody asks for the persistent kernel, not even their names.
static void plan_tables(lk_cuda_step *c) {
    c->at.tables = NULL;
    if (!lk_cuda_persist_has_tables(c)) return;
    c->at.tables = take(c, "persistent kernel: tables", LK_CUDA_TABLE_BYTES_MAX, lk_cuda_kinds(c));
    c->at.meeting = take(c, "persistent kernel: meeting", sizeof *c->at.meeting, 1);
}

static void plan_guards(lk_cuda_step *c) {
    const uint64_t programs = lk_exchange_programs(c->program);
    c->at.broken = NULL;
    if (!c->program->checked) return;
    c->at.broken = take(c, "guards: what is broken", sizeof *c->at.broken, programs);
}

void lk_cuda_step_take_regions(lk_cuda_step *c) {
    const lk_program *p = c->program;
    const lk_cuda_needs *needs = &c->needs;
    const uint64_t word = sizeof(uint32_t);
    lk_cuda_regions *at = &c->at;
    const uint64_t image = image_bytes(c), row = label_row(c) * word;
    const uint64_t ring = is_resident(c) ? 0 : c->batch_count,
                   microbatch = needs->evaluation ? p->microbatch_examples : 0;
    lk_arena_open(&c->arena, NULL, 0);
    at->states = take(c, "state", sizeof(lk_cuda_state), 2);
    const uint32_t kinds = lk_cuda_kinds(c);
    at->params = take(c, "parameter table", lk_entry_count(p) * sizeof(lk_cuda_param), kinds / 2);
    at->nodes = take(c, "node tables", c->table_max * sizeof(lk_cuda_node), kinds);
    at->device = take(c, "device region", p->regions[LK_REGION_DEVICE].bytes, 1);
    at->replica_bytes = lk_round_up(p->regions[LK_REGION_REPLICA].bytes, DEVICE_ALIGN_BYTES);
    at->replicas = take(c, "replica region", at->replica_bytes, c->replicas);
    plan_exchange(c);
    plan_left(c);
    at->images = take(c, "input ring: images", c->slots * ring * image, 1);
    at->labels = take(c, "input ring: labels", c->slots * ring * row, 1);
    at->scalars = take(c, "input ring: step scalars", c->slots * sizeof(lk_step_scalars), 1);
    plan_norms(c);
    plan_penalty(c);
    at->all_images = take(c, "resident images", needs->examples * image, 1);
    at->all_labels = take(c, "resident labels", needs->examples * row, 1);
    const uint64_t shards = is_resident(c) ? p->spec->shards : 0;
    at->shards = take(c, "resident shards", (shards + (shards > 0)) * sizeof *at->shards, 1);
    at->test_images = take(c, "test images", microbatch * image * 2, 1);
    at->test_labels = take(c, "test labels", microbatch * row * 2, 1);
    at->test_losses =
        take(c, "test losses", microbatch ? LK_CUDA_LOSSES * LK_CUDA_LOSS_FLOATS * word : 0, 1);
    at->workspace = take(c, "cuBLAS workspace", is_fast(p->spec) ? LK_BLAS_WORKSPACE_BYTES : 0, 2);
    plan_tables(c);
    plan_guards(c);
}

// The persistent kernel is chosen by a walk over the step: at addresses that nobody touches.
static void choose_persistent(lk_cuda_step *c) {
    if (c->persist.wanted == LK_CUDA_PERSISTENT_OFF || c->block) return;
    c->block = (uint8_t *)((uintptr_t)1 << 40);
    lk_cuda_step_take_regions(c);
    lk_cuda_persist_choose(c);
    c->block = NULL;
}

void lk_cuda_step_plan(lk_cuda_step *c, const lk_program *p, const lk_cuda_needs *needs) {
    c->program = p;
    c->needs = *needs;
    c->fast.rules = rules_of(p->spec);
    c->fast.blas.precision = p->spec->model.fast_precision;
    count_share(c);
    c->slots = ring_slots(c);
    choose_persistent(c);
    lk_cuda_step_take_regions(c);
}

// What others give and get by way of the host. One GPU of the worker has the sums for all.
static void take_staging(lk_cuda_step *c, lk_arena *a) {
    const lk_program *p = c->program;
    const uint64_t line = LK_TENSOR_ALIGN_BYTES, node = node_floats(p) * sizeof(float);
    lk_cuda_host *h = &c->host;
    const uint64_t own = c->staged ? lk_exchange_slots(p, &c->share) : 0;
    h->blocks = lk_arena_take(a, "pinned: whole nodes", node, own, line);
    h->reports = lk_arena_take(a, "pinned: reports", 2 * sizeof(lk_gpu_report), c->staged, line);
    h->sums = lk_arena_take(a, "pinned: sums", node, c->staged && c->peer == 0, line);
}

// Floats, or labels, that an evaluation shows of an example; the most of any objective.
static uint64_t shown_values(const lk_program *p) {
    return p->tensors[lk_program_shown(p)].shape[1];
}
static uint64_t most_shown(const lk_program *p) {
    uint64_t most = 0;
    for (uint32_t k = 0; k < lk_exchange_programs(p); k++) {
        most = LK_MAX(most, shown_values(lk_exchange_program(p, k)));
    }
    return most;
}

// What the GPU reads and writes by itself lies together, and is pinned as one piece.
static void take_host(lk_cuda_step *c, lk_arena *a) {
    const lk_program *p = c->program;
    const uint64_t line = LK_TENSOR_ALIGN_BYTES, word = sizeof(uint32_t), image = image_bytes(c);
    const uint64_t ring = is_resident(c) ? 0 : c->batch_count;
    const uint64_t microbatch = c->needs.evaluation ? p->microbatch_examples : 0;
    const uint64_t losses = microbatch ? LK_CUDA_LOSSES * LK_CUDA_LOSS_FLOATS * word : 0;
    const uint64_t row = label_row(c) * word;
    lk_cuda_host *h = &c->host;
    h->pinned =
        lk_arena_take(a, "pinned: results", c->slots * sizeof(lk_cuda_result), 1, LK_PAGE_BYTES);
    const uint64_t start = a->entries[a->entry_count - 1].offset;
    h->results = (lk_cuda_result *)(void *)h->pinned;
    h->images = lk_arena_take(a, "pinned: images", c->slots * ring * image, 1, line);
    const uint64_t labels = is_resident(c) ? LABELS_AT_ONCE * word : c->slots * ring * row;
    h->labels = lk_arena_take(a, "pinned: labels", labels, 1, line);
    h->scalars =
        lk_arena_take(a, "pinned: step scalars", c->slots * sizeof(lk_step_scalars), 1, line);
    h->test_images = lk_arena_take(a, "pinned: test images", 2 * microbatch * image, 1, line);
    h->test_labels = lk_arena_take(a, "pinned: test labels", 2 * microbatch * row, 1, line);
    const uint64_t output = most_shown(p);
    h->logits = lk_arena_take(a, "pinned: logits", microbatch * output * word, 1, line);
    const uint64_t made = c->first_replica == 0 ? c->needs.made_bytes : 0;
    h->made = lk_arena_take(a, "pinned: made", p->microbatch_examples * made, 1, line);
    h->losses = lk_arena_take(a, "pinned: losses", losses, 1, line);
    h->state = lk_arena_take(a, "pinned: state", sizeof(lk_cuda_state), 1, line);
    const uint32_t kinds = lk_cuda_kinds(c);
    h->params = lk_arena_take(a, "pinned: parameters", lk_entry_count(p) * sizeof(lk_cuda_param),
                              kinds / 2, line);
    h->nodes = lk_arena_take(a, "pinned: nodes", c->table_max * sizeof(lk_cuda_node), kinds, line);
    if (c->left_floats > 0) {
        h->parts = lk_arena_take(a, "pinned: gradients in parts",
                                 lk_entry_count(p) * sizeof(lk_cuda_parts), kinds, line);
    }
    if (lk_cuda_persist_has_tables(c)) {
        h->tables = lk_arena_take(a, "pinned: tasks", LK_CUDA_TABLE_BYTES_MAX, kinds, line);
    }
    if (p->checked) {
        h->broken = lk_arena_take(a, "pinned: guards", sizeof *h->broken, kinds / 2, line);
    }
    take_staging(c, a);
    h->pinned_bytes = a->used - start;
    h->held = lk_arena_take(a, "GPU: nodes held", c->node_max * sizeof(lk_cuda_held), kinds, line);
    h->plans = lk_arena_take(a, "cuBLAS plans", lk_blas_bytes(blas_plans_max(p)), 1, line);
}

// One region of the host's arena, with a ledger of its own: there may be many GPUs.
void lk_cuda_step_take_host(lk_cuda_step *c, lk_arena *a) {
    lk_arena *own = &c->host_arena;
    lk_arena_open(own, NULL, 0);
    take_host(c, own);
    const uint64_t bytes = own->used;
    void *base = lk_arena_take(a, "staging of a GPU", bytes, 1, LK_PAGE_BYTES);
    if (!base) return;
    lk_arena_open(own, base, bytes);
    take_host(c, own);
}

// --- start ---------------------------------------------------------------------------------------

static lk_status check_room(const lk_cuda_step *c, lk_error *error) {
    lk_cuda_memory memory;
    LK_CHECK(lk_cuda_memory_query(&memory, error));
    if (c->arena.used <= memory.free_bytes) return LK_OK;
    return lk_fail(
        error, LK_UNAVAILABLE,
        "not enough GPU memory: the plan needs %llu bytes, %llu of %llu are free, %llu "
        "are missing; use fewer replicas, a smaller wave_examples or a smaller model "
        "(lockstep plan shows where the bytes go)",
        (unsigned long long)c->arena.used, (unsigned long long)memory.free_bytes,
        (unsigned long long)memory.total_bytes,
        (unsigned long long)(c->arena.used - memory.free_bytes));
}

static lk_status make_queues(lk_cuda_step *c, lk_error *error) {
    LK_CHECK(lk_cuda_queue_make(&c->compute, error));
    LK_CHECK(lk_cuda_queue_make(&c->copy, error));
    LK_CHECK(lk_cuda_queue_make(&c->beside, error));
    LK_CHECK(lk_cuda_event_make(&c->left, error));
    for (uint32_t i = 0; i < LK_CUDA_BESIDE_MAX; i++) {
        LK_CHECK(lk_cuda_event_make(&c->passed[i], error));
    }
    if (lk_cuda_step_shares(c)) {
        LK_CHECK(lk_cuda_queue_make(&c->comm, error));
        LK_CHECK(lk_cuda_event_make(&c->forked, error));
        LK_CHECK(lk_cuda_event_make(&c->joined, error));
    }
    for (uint32_t half = 0; half < 2; half++) {
        LK_CHECK(lk_cuda_event_make(&c->copied[half], error));
        LK_CHECK(lk_cuda_event_make(&c->done[half], error));
        LK_CHECK(lk_cuda_event_make(&c->tested[half], error));
    }
    return LK_OK;
}

// The bytes between the parameters of a node are added with them, and mean nothing.
static void clear_nodes(lk_cuda_step *c) {
    for (uint32_t k = 0; k < lk_exchange_programs(c->program); k++) {
        const lk_program *p = lk_exchange_program(c->program, k);
        for (uint32_t r = 0; r < c->replicas; r++) {
            uint8_t *nodes = c->at.replicas + r * c->at.replica_bytes + p->tensors[p->nodes].offset;
            lk_cuda_clear(&c->compute, nodes, p->tensors[p->nodes].bytes);
        }
    }
}

// The copies that products take in mixed precision; that of an average lies behind (average.c).
static void write_rounded(const lk_cuda_step *c, const lk_program *p, uint32_t index,
                          lk_cuda_param *out) {
    const lk_param *param = &p->params[index];
    if (!lk_model_is_mixed(&p->spec->model) || param->rounded == LK_NONE) return;
    if (lk_param_is_spectral(p, index)) return;  // each replica rounds what it has divided
    out->dtype = lk_model_dtype(&p->spec->model);
    out->rounded = on_device(c, param->rounded);
    if (lk_optimizer_averages(p->optimizer)) {
        out->rounded_average = on_device(c, param->rounded + 1);
    }
}

// What APPLY takes of a kernel that was divided: as replica 0 made it.
static void write_spectral(const lk_cuda_step *c, const lk_program *p, uint32_t index,
                           lk_cuda_param *out) {
    const lk_op *op = lk_spectral_op(p, index);
    const lk_frame frame = {.program = p, .device = c->at.device, .replica = c->at.replicas};
    if (!lk_param_is_spectral(p, index)) return;
    const lk_spectral k = lk_spectral_at(&frame, op);
    out->vector = k.u;
    out->v = k.v;
    out->n = k.n;
    out->numbers = k.numbers;
    out->columns = lk_cuda_divide_by((uint32_t)k.columns);
}

// In order of their places in a node. What is not updated takes none: of no elements, at the place
// of the next.
static void write_params_of(const lk_cuda_step *c, const lk_program *p, lk_cuda_param *out) {
    uint64_t next = 0;
    for (uint32_t i = 0; i < lk_entry_count(p); i++, out++) {
        const lk_param *param = &p->params[i];
        *out = (lk_cuda_param){.node_offset = next,
                               .first_slice = lk_param_first_slice(p, i),
                               .l2 = lk_param_l2(p, i),
                               .clip = lk_program_weight_clip(p)};
        if (param->gradient_op == LK_NONE) continue;
        lk_assert(param->node_offset == next);
        out->count = param->count;
        out->w = on_device(c, param->tensor);
        next += lk_round_up(param->count, 16);
        const lk_op *op = &p->ops[param->gradient_op];
        if (i >= p->param_count) {
            out->moving = op->type->moving(op);
            continue;
        }
        for (uint32_t s = 0; s < lk_optimizer_slot_count(p->optimizer); s++) {
            out->slots[s] = on_device(c, param->slots[s]);
        }
        write_rounded(c, p, i, out);
        write_spectral(c, p, i, out);
    }
}

static void write_params(lk_cuda_step *c) {
    const uint64_t entries = lk_entry_count(c->program);
    const uint32_t programs = lk_exchange_programs(c->program);
    for (uint32_t k = 0; k < programs; k++) {
        write_params_of(c, lk_exchange_program(c->program, k), c->host.params + k * entries);
    }
    lk_cuda_copy_in(&c->compute, c->at.params, c->host.params,
                    programs * entries * sizeof *c->host.params);
}

// What cuBLAS said goes before what a stream says of it.
lk_status lk_cuda_step_check_fast(const lk_cuda_step *c, lk_error *error) {
    const lk_error *said = &c->fast.blas.error;
    return said->status == LK_OK ? LK_OK : lk_fail(error, said->status, "%s", said->text);
}

static lk_status rehearse_step(lk_cuda_step *c, uint32_t which, uint64_t step, lk_error *error) {
    lk_cuda_recording recording;
    c->examples[which] = lk_step_examples(c->program->spec, step);
    lk_cuda_record_start(&recording, c, which, step);
    lk_cuda_record_ops(&recording, c->program->reduce_op);
    LK_CHECK(lk_cuda_step_check_fast(c, error));
    return lk_cuda_check(recording.error, "preparing a step", error);
}

// Walks all microbatches. Of those that are launched one of each size will do: a size that comes
// again has the same launches.
static lk_status rehearse_evaluation(lk_cuda_step *c, bool launches, lk_error *error) {
    lk_cuda_nodes nodes = {.counter = {.count = 0}};
    uint32_t before = 0;
    for (uint32_t r = 0; r < c->replicas; r++) {
        lk_microbatches microbatches =
            lk_evaluate_microbatches(c->program, c->first_replica + r, c->needs.test_examples);
        while (lk_next_microbatch(&microbatches)) {
            const uint32_t examples = microbatches.microbatch.examples;
            c->rehearses = !launches || examples == before;
            before = examples;
            int code = lk_cuda_walk_forward(c, &microbatches.microbatch, 0, &nodes);
            c->rehearses = !launches;
            LK_CHECK(lk_cuda_step_check_fast(c, error));
            LK_CHECK(lk_cuda_check(code, "preparing an evaluation", error));
        }
    }
    return LK_OK;
}

static lk_status rehearse(lk_cuda_step *c, lk_error *error) {
    const lk_program *used = c->program;
    uint64_t step;
    for (uint32_t kind = 0; kind < lk_cuda_kinds(c); kind++) {
        if (!lk_cuda_step_of_kind(used, kind, &step)) continue;
        c->program = lk_program_of_step(used, step);
        LK_CHECK(rehearse_step(c, kind, step, error));
    }
    for (uint32_t k = 0; c->needs.test_examples && k < lk_exchange_programs(used); k++) {
        c->program = lk_exchange_program(used, k);
        LK_CHECK(rehearse_evaluation(c, false, error));
    }
    c->program = used;
    return LK_OK;
}

static lk_status start_fast(lk_cuda_step *c, lk_error *error) {
    const lk_run_spec *spec = c->program->spec;
    if (!is_fast(spec)) return LK_OK;
    LK_CHECK(lk_blas_open(&c->fast.blas, spec->model.fast_precision, blas_plans_max(c->program),
                          c->host.plans,
                          c->at.workspace, LK_BLAS_WORKSPACE_BYTES, error));
    c->rehearses = true;
    LK_CHECK(rehearse(c, error));
    c->rehearses = false;
    lk_blas_seal(&c->fast.blas);
    return lk_cuda_queue_wait(&c->compute, error);
}

static lk_status fill_resident(lk_cuda_step *c, lk_error *error);

lk_status lk_cuda_step_start(lk_cuda_step *c, const lk_source *source, uint8_t *mirror,
                             lk_error *error) {
    const lk_program *p = c->program;
    uint8_t *address;
    c->source = source;
    c->mirror = mirror;
    c->dependent &= c->device.major >= LK_CUDA_DEPENDENT_MAJOR_MIN;
    LK_CHECK(check_room(c, error));
    LK_CHECK(lk_cuda_block_take(c->arena.used, &c->block, error));
    const lk_cuda_needs needs = c->needs;
    lk_cuda_step_plan(c, p, &needs);  // the same calls, now with memory
    LK_CHECK(lk_cuda_pin(c->host.pinned, c->host.pinned_bytes, &address, error));
    c->pinned = true;
    c->results = (lk_cuda_result *)(void *)address;
    LK_CHECK(lk_cuda_check(lk_cuda_prepare(), "loading the kernels", error));
    LK_CHECK(lk_cuda_persist_start(c, error));
    LK_CHECK(make_queues(c, error));
    lk_cuda_guards_start(c);
    clear_nodes(c);
    write_params(c);
    LK_CHECK(start_fast(c, error));
    return lk_cuda_queue_wait(&c->compute, error);
}

// After the graphs are recorded, and the tables with them.
lk_status lk_cuda_step_ready(lk_cuda_step *c, lk_error *error) {
    lk_cuda_copy_in(&c->compute, c->at.nodes, c->host.nodes,
                    (uint64_t)lk_cuda_kinds(c) * c->table_max * sizeof *c->host.nodes);
    if (c->left_floats > 0) {
        lk_cuda_copy_in(&c->compute, c->at.parts, c->host.parts,
                        (uint64_t)lk_cuda_kinds(c) * lk_entry_count(c->program) *
                            sizeof *c->host.parts);
    }
    lk_cuda_persist_ready(c);
    LK_CHECK(lk_cuda_queue_wait(&c->compute, error));
    if (is_resident(c)) LK_CHECK(fill_resident(c, error));
    c->next = UINT64_MAX;  // no step: the first one begun sets the state
    c->mirror_is_new = true;
    return LK_OK;
}

// --- the trial -----------------------------------------------------------------------------------

static void clear(lk_cuda_step *c, void *at, uint64_t bytes) {
    if (at) lk_cuda_clear(&c->compute, at, bytes);
}

// Examples and scalars of zeros, and whatever parameters there are by now; the state is that of a
// run which was stopped, so that no step updates, counts or writes a result. The first step begun
// sets it, and the mirror stays new.
void lk_cuda_step_try(lk_cuda_step *c) {
    const uint64_t image = image_bytes(c), row = label_row(c) * sizeof(uint32_t);
    const uint64_t ring = (uint64_t)c->slots * c->batch_count;
    const uint64_t tested = 2 * (uint64_t)c->program->microbatch_examples;
    lk_cuda_copy_in(&c->compute, c->at.device, c->mirror,
                    c->program->regions[LK_REGION_DEVICE].bytes);
    clear(c, c->at.images, ring * image);
    clear(c, c->at.labels, ring * row);
    clear(c, c->at.scalars, c->slots * sizeof *c->at.scalars);
    clear(c, c->at.test_images, tested * image);
    clear(c, c->at.test_labels, tested * row);
    *c->host.state = (lk_cuda_state){.stopped = 1, .bad_op = LK_NONE, .bad_param = LK_NONE};
    lk_cuda_copy_in(&c->compute, &c->at.states[0], c->host.state, sizeof *c->host.state);
    lk_cuda_copy_in(&c->compute, &c->at.states[1], c->host.state, sizeof *c->host.state);
}

void lk_cuda_step_try_kind(lk_cuda_step *c, uint32_t kind) {
    if (c->persist.is) {
        lk_cuda_persist_try(c, kind);
    } else {
        lk_cuda_graph_launch(&c->compute, c->graph[kind]);
    }
    if (c->staged) lk_cuda_graph_launch(&c->compute, c->update[kind]);
}

// Nodes are joined where a test set has several microbatches: nothing of its own is tried for that.
lk_status lk_cuda_step_try_evaluation(lk_cuda_step *c, lk_error *error) {
    if (!c->needs.test_examples) return LK_OK;
    if (c->compute.code == 0) c->compute.code = lk_cuda_walk_begin(c);
    LK_CHECK(rehearse_evaluation(c, true, error));
    lk_cuda_stream s = {.stream = c->compute.stream, .error = c->compute.code};
    lk_cuda_add(&s, 1, c->at.test_losses, c->at.test_losses, c->at.test_losses);
    c->compute.code = s.error;
    return lk_cuda_check(c->compute.code, "trying an evaluation", error);
}

// What making some rows launches, as far as nothing before it did.
typedef struct kernels_seen {
    void (*kernel[KERNELS_MAX])(void);
    uint32_t count;
    bool new;
} kernels_seen;

static void see_kernel(void *context, const lk_cuda_launched *launch) {
    kernels_seen *seen = context;
    uint32_t i = 0;
    while (i < seen->count && seen->kernel[i] != launch->kernel) i++;
    if (i < seen->count || i == KERNELS_MAX) return;
    seen->kernel[seen->count++] = launch->kernel;
    seen->new = true;
}

// Nobody knows yet how many rows will be made at once, and kernels are chosen by that: each number
// is walked, and launched where it is the first with a kernel.
lk_status lk_cuda_step_try_making(lk_cuda_step *c, lk_error *error) {
    kernels_seen seen = {.count = 0};
    const lk_cuda_observer observer = {see_kernel, &seen};
    lk_cuda_making making = c->needs.made;
    const uint32_t most = c->needs.made_bytes && c->host.made ? c->program->microbatch_examples : 0;
    for (uint32_t n = 1; n <= most; n++) {
        making.examples = n;
        seen.new = false;
        if (n == 1) lk_cuda_guards_enter(c, making.from);
        c->observer = &observer;
        (void)lk_cuda_walk_value(c, &making);
        c->observer = NULL;
        const int code = seen.new ? lk_cuda_walk_value(c, &making) : 0;
        LK_CHECK(lk_cuda_step_check_fast(c, error));
        LK_CHECK(lk_cuda_check(code, "trying to make images", error));
    }
    return LK_OK;
}

lk_status lk_cuda_step_tried(lk_cuda_step *c, lk_error *error) {
    lk_cuda_memory memory;
    lk_cuda_guards_tell(c);
    LK_CHECK(lk_cuda_step_wait(c, error));
    LK_CHECK(lk_cuda_memory_query(&memory, error));
    const uint64_t held = memory.total_bytes - memory.free_bytes;
    c->external_bytes = held > c->arena.used ? held - c->arena.used : 0;
    return LK_OK;
}

void lk_cuda_step_forget(lk_cuda_step *c) {
    for (uint32_t i = 0; i < LK_CUDA_KINDS; i++) {
        lk_cuda_graph_end(c->graph[i]);
        lk_cuda_graph_end(c->update[i]);
        c->graph[i] = c->update[i] = NULL;
    }
}

void lk_cuda_step_close(lk_cuda_step *c) {
    lk_error ignored = {.status = LK_OK};
    lk_cuda_step_forget(c);
    if (c->compute.stream) (void)lk_cuda_queue_wait(&c->compute, &ignored);
    for (uint32_t i = 0; i < 2; i++) {
        lk_cuda_event_end(c->copied[i]);
        lk_cuda_event_end(c->done[i]);
        lk_cuda_event_end(c->tested[i]);
    }
    lk_blas_close(&c->fast.blas);
    lk_cuda_event_end(c->forked);
    lk_cuda_event_end(c->joined);
    lk_cuda_event_end(c->left);
    for (uint32_t i = 0; i < LK_CUDA_BESIDE_MAX; i++) lk_cuda_event_end(c->passed[i]);
    lk_cuda_queue_end(&c->compute);
    lk_cuda_queue_end(&c->copy);
    lk_cuda_queue_end(&c->comm);
    lk_cuda_queue_end(&c->beside);
    if (c->pinned) lk_cuda_unpin(c->host.pinned);
    lk_cuda_block_give(c->block);
    memset(c, 0, sizeof *c);
}

// --- waiting -------------------------------------------------------------------------------------

// Others can keep this GPU waiting for ever, and then the driver would never return.
lk_status lk_cuda_step_wait_for(lk_cuda_step *c, lk_cuda_queue *queue, struct CUevent_st *event,
                                lk_error *error) {
    lk_patience patience = {0};
    if (queue == &c->compute) lk_cuda_persist_flush(c);
    if (c->watch) lk_patience_start(&patience);
    while (c->watch) {
        if (event ? lk_cuda_event_done(queue, event) : lk_cuda_queue_done(queue)) break;
        LK_CHECK(c->watch(c->watcher, lk_patience_spent(&patience), error));
    }
    if (!event) return lk_cuda_queue_wait(queue, error);
    lk_cuda_event_wait(queue, event);
    return LK_OK;
}

// --- examples ------------------------------------------------------------------------------------

// The part of example `i` that is taken, of an image that is larger (ops/augment.h).
static void copy_part(const lk_run_spec *spec, const lk_microbatch *microbatch, uint32_t i,
                      uint64_t bytes, const uint8_t *image, uint8_t *to) {
    const lk_model *m = &spec->model;
    const uint64_t pixel = bytes / ((uint64_t)m->in_h * m->in_w), row = pixel * m->in_w;
    const lk_crop c =
        lk_augment_crop(&spec->augment, microbatch->shuffled, spec->seed, microbatch->step,
                        microbatch->first_grain * spec->grain + i, m->in_h, m->in_w);
    for (uint32_t y = 0; y < m->in_h; y++) {
        const uint64_t first = (uint64_t)(c.top + y) * spec->augment.crop_w + c.left;
        memcpy(to + y * row, image + first * pixel, row);
    }
}

// Floats get the machine's order of bytes on their way to the device.
static void copy_image(const lk_run_spec *spec, const lk_source *s, const lk_microbatch *microbatch,
                       uint32_t i, uint64_t bytes, const uint8_t *image, uint8_t *to) {
    if (s->crops) {
        copy_part(spec, microbatch, i, bytes, image, to);
    } else {
        memcpy(to, image, bytes);
    }
    if (spec->model.input_type != LK_INPUT_F32 || s->native) return;
    for (uint64_t at = 0; at < bytes; at += sizeof(uint32_t)) {
        uint32_t word;
        memcpy(&word, to + at, sizeof word);
        word = be32toh(word);
        memcpy(to + at, &word, sizeof word);
    }
}

// The labels of an example; none: as a device marks it, of sequences as one of no frames.
static void gather_labels(const lk_run_spec *spec, const lk_source *s,
                          const lk_microbatch *microbatch, bool there, uint64_t index,
                          uint32_t *row) {
    const uint32_t count = lk_model_label_row(&spec->model);
    if (there && s->strip) {
        lk_strip_labels(&spec->model, &spec->strips, s, microbatch->epoch, index, row);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t none = count > 1 ? 0 : LK_CUDA_NO_EXAMPLE;
        row[i] = there ? s->label(s->context, index * count + i) : none;
    }
}

// Copies the images, of `bytes` each, and the labels of the microbatch's examples. Strips are made
// where they shall lie.
static void gather(const lk_run_spec *spec, const lk_source *s, const lk_microbatch *microbatch,
                   uint64_t bytes, uint8_t *images, uint32_t *labels) {
    const uint32_t row = lk_model_label_row(&spec->model);
    lk_coming coming;
    lk_coming_start(&coming, spec, s, microbatch, bytes, images);
    for (uint32_t i = 0; i < microbatch->examples; i++, images += bytes, labels += row) {
        uint64_t index = 0;
        coming.room = images;
        const uint8_t *image = lk_coming_take(&coming, i, &index);
        if (image && !s->strip) copy_image(spec, s, microbatch, i, bytes, image, images);
        if (!image) memset(images, 0, bytes);
        gather_labels(spec, s, microbatch, image, index, labels);
    }
}

// As far as is known now which steps are skipped, and how the loss is scaled: the mirror follows
// the verdicts (lk_cuda_group_follow).
static lk_step_scalars scalars_of(const lk_cuda_step *c, uint64_t step) {
    const lk_program *p = lk_program_of_step(c->program, step);
    lk_step_scalars scalars =
        lk_step_scalars_at(p->spec, step, lk_steps_skipped(p, c->mirror, p->objective));
    scalars.inverse_n *= lk_scale_inverse(p, c->mirror);
    return scalars;
}

// Image batches before a step.
static uint64_t batches_before(const lk_cuda_step *c, uint64_t step) {
    return lk_step_place_of(&c->program->spec->model, step).batch;
}

// The examples of a step that reads some into the slot of its image batch in the host's ring.
static void fill_slot(const lk_cuda_step *c, uint64_t step) {
    const lk_run_spec *spec = c->program->spec;
    const lk_batch_start at = lk_batch_start_of(spec, step);
    const uint64_t first = batches_before(c, step) % c->slots * c->batch_count;
    const uint32_t there =
        lk_step_positions(spec, step) - LK_MIN(lk_step_positions(spec, step), c->batch_first);
    const lk_microbatch batch = {.examples = LK_MIN(there, c->batch_count),
                           .shuffled = true,
                           .sparse = lk_step_positions(spec, step) != lk_step_examples(spec, step),
                           .step = step,
                           .first_grain = c->batch_first / spec->grain,
                           .epoch = at.epoch,
                           .position = at.position + c->batch_first};
    c->host.scalars[step % c->slots] = scalars_of(c, step);
    if (is_resident(c) || !reads_images(lk_program_of_step(c->program, step))) return;
    gather(spec, c->source, &batch, image_bytes(c), c->host.images + first * image_bytes(c),
           c->host.labels + first * label_row(c));
}

// Slots [first, first + count) of the examples' ring.
static void copy_slots(lk_cuda_step *c, uint64_t first, uint64_t count) {
    const uint64_t word = sizeof(uint32_t), image = image_bytes(c), row = label_row(c);
    first *= c->batch_count;
    count *= c->batch_count;
    if (count == 0) return;
    lk_cuda_copy_in(&c->copy, c->at.images + first * image, c->host.images + first * image,
                    count * image);
    lk_cuda_copy_in(&c->copy, c->at.labels + first * row, c->host.labels + first * row,
                    count * row * word);
}

// The image batches of steps [step, end), of which the ring has room for twice as many: they may go
// on at its start.
static void copy_batches(lk_cuda_step *c, uint64_t step, uint64_t end) {
    const uint64_t first = batches_before(c, step), count = batches_before(c, end) - first;
    const uint64_t slot = first % c->slots, before = LK_MIN(count, c->slots - slot);
    copy_slots(c, slot, before);
    copy_slots(c, 0, count - before);
}

// The steps from `step` to the end of its half of the ring: the host fills them in, the device gets
// them when it has done with what lay there. Their image batches are at most as many, one after the
// other: what lies where they go is of the half before the last, or older.
static lk_status stage(lk_cuda_step *c, uint64_t step, lk_error *error) {
    const uint64_t lap = c->slots / 2;
    const uint32_t half = (uint32_t)(step / lap % 2);
    const uint64_t end = (step / lap + 1) * lap;
    LK_CHECK(lk_cuda_step_wait_for(c, &c->copy, c->copied[half], error));
    for (uint64_t s = step; s < end; s++) fill_slot(c, s);
    // All steps begun so far lie before this half: those of the other one end here.
    lk_cuda_event_set(&c->compute, c->done[1 - half]);
    lk_cuda_event_follow(&c->copy, c->done[half]);
    lk_cuda_copy_in(&c->copy, c->at.scalars + step % c->slots, c->host.scalars + step % c->slots,
                    (end - step) * sizeof(lk_step_scalars));
    if (!is_resident(c)) copy_batches(c, step, end);
    lk_cuda_event_set(&c->copy, c->copied[half]);
    lk_cuda_event_follow(&c->compute, c->copied[half]);
    c->ahead = end;
    return LK_OK;
}

// All examples that may be asked for, once: images as they lie in the maps, labels by way of pinned
// memory.
static lk_status fill_resident(lk_cuda_step *c, lk_error *error) {
    const lk_source *s = c->source;
    const uint64_t bytes = image_bytes(c), first = c->needs.first, all = c->needs.examples;
    for (uint64_t i = 0, run; i < all; i += run) {
        const uint8_t *at = s->image(s->context, first + i);
        for (run = 1; i + run < all; run++) {
            if (s->image(s->context, first + i + run) != at + run * bytes) break;
        }
        lk_cuda_copy_in(&c->compute, c->at.all_images + i * bytes, at, run * bytes);
    }
    const uint64_t row = label_row(c);
    for (uint64_t i = 0; i < all * row; i += LABELS_AT_ONCE) {
        const uint64_t count = LK_MIN((uint64_t)LABELS_AT_ONCE, all * row - i);
        for (uint64_t k = 0; k < count; k++)
            c->host.labels[k] = s->label(s->context, first * row + i + k);
        lk_cuda_copy_in(&c->compute, c->at.all_labels + i, c->host.labels,
                        count * sizeof(uint32_t));
        LK_CHECK(lk_cuda_queue_wait(&c->compute, error));
    }
    const lk_run_spec *spec = c->program->spec;
    if (spec->shards) {
        lk_cuda_copy_in(&c->compute, c->at.shards, spec->shard_first,
                        (spec->shards + 1) * sizeof *c->at.shards);
    }
    return lk_cuda_queue_wait(&c->compute, error);
}

// --- steps ---------------------------------------------------------------------------------------

void lk_cuda_step_push(lk_cuda_step *c) {
    if (!c->mirror_is_new) return;
    lk_cuda_persist_flush(c);
    lk_cuda_copy_in(&c->compute, c->at.device, c->mirror,
                    c->program->regions[LK_REGION_DEVICE].bytes);
    c->mirror_is_new = false;
}

lk_status lk_cuda_step_download(lk_cuda_step *c, lk_error *error) {
    if (c->mirror_is_new) return LK_OK;  // it is what the device shall have
    LK_CHECK(lk_cuda_step_wait(c, error));
    lk_cuda_copy_out(&c->compute, c->mirror, c->at.device,
                     c->program->regions[LK_REGION_DEVICE].bytes);
    return lk_cuda_queue_wait(&c->compute, error);
}

lk_status lk_cuda_step_wait(lk_cuda_step *c, lk_error *error) {
    if (!c->compute.stream) return LK_OK;  // not even started
    LK_CHECK(lk_cuda_step_wait_for(c, &c->compute, NULL, error));
    lk_cuda_guards_look(c);
    return LK_OK;
}

// The device's state and the rings begin anew at `step`.
static lk_status seek(lk_cuda_step *c, uint64_t step, lk_error *error) {
    LK_CHECK(lk_cuda_step_wait(c, error));
    LK_CHECK(lk_cuda_queue_wait(&c->copy, error));
    memset(c->host.results, 0xff, c->slots * sizeof *c->host.results);
    *c->host.state =
        (lk_cuda_state){.step = step,
                        .batch = batches_before(c, step),
                        .bad_op = LK_NONE,
                        .bad_param = LK_NONE,
                        .asks = c->asks};
    c->asked = c->asks;
    lk_cuda_copy_in(&c->compute, &c->at.states[0], c->host.state, sizeof *c->host.state);
    c->next = c->ahead = step;
    return lk_cuda_queue_wait(&c->compute, error);
}

// The scalars of a step as they are now: what was staged ahead of a verdict did not know it.
static void stage_scalars(lk_cuda_step *c, uint64_t step) {
    const uint64_t slot = step % c->slots;
    c->host.scalars[slot] = scalars_of(c, step);
    lk_cuda_copy_in(&c->compute, c->at.scalars + slot, c->host.scalars + slot,
                    sizeof(lk_step_scalars));
}

lk_status lk_cuda_step_begin(lk_cuda_step *c, uint64_t step, lk_error *error) {
    if (step != c->next || c->asks != c->asked) LK_CHECK(seek(c, step, error));
    lk_cuda_step_push(c);
    if (step >= c->ahead) LK_CHECK(stage(c, step, error));
    if (c->asks) stage_scalars(c, step);
    if (c->persist.is) {
        lk_cuda_persist_begin(c, step);
    } else {
        lk_cuda_graph_launch(&c->compute, c->graph[lk_cuda_kind_of(c->program, step)]);
    }
    c->next = step + 1;
    LK_CHECK(lk_cuda_check(c->copy.code, "giving it examples", error));
    return lk_cuda_check(c->compute.code, "starting a step", error);
}

lk_status lk_cuda_step_update(lk_cuda_step *c, uint64_t step, lk_error *error) {
    lk_assert(c->staged && step + 1 == c->next);
    lk_cuda_graph_launch(&c->compute, c->update[lk_cuda_kind_of(c->program, step)]);
    return lk_cuda_check(c->compute.code, "updating the parameters", error);
}

// The entry of the last step, or of the one that stopped the run: after that nothing was written.
static const lk_cuda_result *find_result(const lk_cuda_step *c) {
    const lk_cuda_result *last = &c->host.results[(c->next - 1) % c->slots];
    if (last->step == c->next - 1) return last;
    for (uint32_t i = 0; i < c->slots; i++) {
        const lk_cuda_result *r = &c->host.results[i];
        if (r->step < c->next && r->not_finite) return r;
    }
    return NULL;
}

static lk_status need_result(const lk_cuda_step *c, const lk_cuda_result **out, lk_error *error) {
    *out = find_result(c);
    if (*out) return LK_OK;
    return lk_fail(error, LK_INTERNAL, "GPU: no result of step %llu",
                   (unsigned long long)(c->next - 1));
}

lk_status lk_cuda_step_flags(lk_cuda_step *c, lk_flags *out, lk_error *error) {
    const lk_cuda_result *r;
    LK_CHECK(need_result(c, &r, error));
    *out = (lk_flags){.bad_op = r->bad_op, .bad_param = LK_NONE};
    for (uint32_t i = 0; i < lk_program_metrics(c->program)->sum_count; i++) {
        out->bad_mean |= !isfinite(r->means[i]);
    }
    return LK_OK;
}

lk_status lk_cuda_step_result(lk_cuda_step *c, lk_step_result *out, lk_error *error) {
    const lk_cuda_result *r;
    LK_CHECK(need_result(c, &r, error));
    const lk_program *p = lk_program_of_step(c->program, r->step);
    *out = (lk_step_result){
        .program = p, .step = r->step, .examples = lk_step_examples(p->spec, r->step)};
    memcpy(out->means, r->means, sizeof r->means);
    memcpy(out->counts, r->counts, sizeof out->counts);
    if (!r->not_finite) return LK_OK;
    out->bad_tensor = lk_bad_tensor(p, r->bad_op, r->bad_param);
    const lk_metrics *metrics = lk_program_metrics(p);
    for (uint32_t i = 0; i < metrics->sum_count && !out->bad_tensor; i++) {
        if (!isfinite(out->means[i])) out->bad_tensor = metrics->sum[i];
    }
    return LK_OK;
}

// --- evaluation ----------------------------------------------------------------------------------

static lk_status evaluate_microbatch(lk_cuda_step *c, const lk_source *source,
                                     const lk_microbatch *microbatch, uint32_t half,
                                     lk_cuda_nodes *nodes, lk_error *error) {
    const uint64_t first = (uint64_t)half * c->program->microbatch_examples, image = image_bytes(c);
    const uint64_t row = label_row(c);
    uint8_t *images = c->host.test_images + first * image;
    uint32_t *labels = c->host.test_labels + first * row;
    if (reads_images(c->program)) {
        lk_cuda_event_wait(&c->compute, c->tested[half]);
        gather(c->program->spec, source, microbatch, image, images, labels);
        lk_cuda_copy_in(&c->compute, c->at.test_images + first * image, images,
                        microbatch->examples * image);
        lk_cuda_copy_in(&c->compute, c->at.test_labels + first * row, labels,
                        microbatch->examples * row * sizeof *labels);
        lk_cuda_event_set(&c->compute, c->tested[half]);
    }
    int code = lk_cuda_walk_forward(c, microbatch, half, nodes);
    if (c->compute.code == 0) c->compute.code = code;
    LK_CHECK(lk_cuda_step_check_fast(c, error));
    return lk_cuda_check(c->compute.code, "an evaluation", error);
}

static lk_status show_logits(lk_cuda_step *c, const lk_microbatch *microbatch,
                             lk_on_logits on_logits, void *context, lk_error *error) {
    const lk_program *p = c->program;
    const uint64_t bytes = microbatch->examples * shown_values(p) * sizeof(float);
    const uint64_t offset = p->tensors[lk_program_shown(p)].offset;
    if (!on_logits) return LK_OK;
    lk_cuda_copy_out(&c->compute, c->host.logits, c->at.replicas + offset, bytes);
    LK_CHECK(lk_cuda_queue_wait(&c->compute, error));
    on_logits(context, microbatch->position, microbatch->examples, c->host.logits);
    return LK_OK;
}

lk_status lk_cuda_step_evaluate(lk_cuda_step *c, const lk_source *source, uint64_t count,
                                lk_on_logits on_logits, void *context, lk_cuda_evaluation *out,
                                lk_error *error) {
    lk_cuda_nodes nodes = {.counter = {.count = 0}};
    uint32_t half = 0;
    lk_cuda_step_push(c);
    LK_CHECK(lk_cuda_step_wait(c, error));
    *c->host.state = (lk_cuda_state){.bad_op = LK_NONE, .bad_param = LK_NONE};
    lk_cuda_copy_in(&c->compute, &c->at.states[1], c->host.state, sizeof *c->host.state);
    if (c->compute.code == 0) c->compute.code = lk_cuda_walk_begin(c);
    for (uint32_t r = 0; r < c->replicas; r++) {
        lk_microbatches microbatches =
            lk_evaluate_microbatches(c->program, c->first_replica + r, count);
        for (; lk_next_microbatch(&microbatches); half = 1 - half) {
            LK_CHECK(evaluate_microbatch(c, source, &microbatches.microbatch, half, &nodes, error));
            LK_CHECK(show_logits(c, &microbatches.microbatch, on_logits, context, error));
        }
    }
    lk_cuda_copy_out(&c->compute, c->host.losses, c->at.test_losses,
                     LK_CUDA_LOSSES * LK_CUDA_LOSS_FLOATS * sizeof(float));
    lk_cuda_copy_out(&c->compute, c->host.state, &c->at.states[1], sizeof *c->host.state);
    lk_cuda_guards_tell(c);
    out->nodes = nodes.counter;
    memcpy(out->slot, nodes.slot, sizeof out->slot);
    return lk_cuda_check(c->compute.code, "an evaluation", error);
}

// Bytes that `rows` rows of a tensor take.
static uint64_t bytes_of_rows(const lk_program *p, uint32_t tensor, uint32_t rows) {
    const lk_tensor *t = &p->tensors[tensor];
    return t->bytes / t->shape[0] * rows;
}

lk_status lk_cuda_step_make(lk_cuda_step *c, const lk_cuda_making *m, uint32_t *bad_op,
                            lk_error *error) {
    const lk_program *p = c->program;
    lk_cuda_step_push(c);
    LK_CHECK(lk_cuda_step_wait(c, error));
    *c->host.state = (lk_cuda_state){.bad_op = LK_NONE, .bad_param = LK_NONE};
    lk_cuda_copy_in(&c->compute, &c->at.states[1], c->host.state, sizeof *c->host.state);
    lk_cuda_guards_enter(c, m->from);
    lk_cuda_copy_in(&c->compute, c->at.replicas + p->tensors[m->from].offset, c->host.made,
                    bytes_of_rows(p, m->from, m->examples));
    const int code = lk_cuda_walk_value(c, m);
    if (c->compute.code == 0) c->compute.code = code;
    LK_CHECK(lk_cuda_step_check_fast(c, error));
    lk_cuda_copy_out(&c->compute, c->host.made, c->at.replicas + p->tensors[m->to].offset,
                     bytes_of_rows(p, m->to, m->examples));
    lk_cuda_copy_out(&c->compute, c->host.state, &c->at.states[1], sizeof *c->host.state);
    lk_cuda_guards_tell(c);
    LK_CHECK(lk_cuda_queue_wait(&c->compute, error));
    lk_cuda_guards_look(c);
    *bad_op = c->host.state->bad_op;
    return lk_cuda_check(c->compute.code, "making images", error);
}

lk_status lk_cuda_step_evaluated(lk_cuda_step *c, lk_cuda_evaluation *out, lk_error *error) {
    LK_CHECK(lk_cuda_queue_wait(&c->compute, error));
    lk_cuda_guards_look(c);
    for (uint32_t i = 0; i < out->nodes.count; i++) {
        memcpy(out->sums[i], &c->host.losses[out->slot[i] * LK_CUDA_LOSS_FLOATS],
               sizeof out->sums[i]);
    }
    return LK_OK;
}
