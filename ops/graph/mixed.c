// mixed.c - blocks of examples between 16 bits and fp32: mixed.h. Freestanding; knows no op.
#include "ops/graph/mixed.h"

#include "ops/graph/average.h"
#include "ops/graph/build.h"
#include "ops/graph/scale.h"

// The roles of tensors that may have a row for each example.
static const lk_role rows_of[] = {LK_X, LK_X2, LK_Y, LK_AUX, LK_DY, LK_DX, LK_MASK};

static const lk_tensor *tensor_of(const lk_program *p, const lk_op *op, uint32_t role) {
    return op->tensor[role] == LK_NONE ? NULL : &p->tensors[op->tensor[role]];
}

static bool is_half(const lk_program *p, const lk_op *op, uint32_t role) {
    const lk_tensor *t = tensor_of(p, op, role);
    return t && role != LK_SCRATCH && lk_dtype_is_half(t->dtype);
}

// How many uses of a network's layer an op is for: one, but for gradients of parameters.
static uint32_t uses_of(const lk_op *op) {
    return op->type->scope == LK_SCOPE_GRAINS ? lk_op_uses(op) : 1;
}

// .. in any of them?
static bool is_half_in_some(const lk_program *p, const lk_op *op, uint32_t role) {
    bool half = false;
    for (uint32_t u = 0; u < uses_of(op); u++) half = half || is_half(p, op + u, role);
    return half;
}

bool lk_mixed_has_half(const lk_program *p, const lk_op *op) {
    if (op->type->scope == LK_SCOPE_LOSS) return true;  // it is scaled, also before a layer in fp32
    if (op->type->kept || op->type->scope == LK_SCOPE_USE) return false;
    for (uint32_t r = 0; r < LK_ROLES; r++) {
        if (is_half_in_some(p, op, r)) return true;
    }
    return false;
}

static uint64_t row_of(const lk_tensor *t) { return t->rank == 1 ? 1 : t->shape[1]; }

// .. of an input, which the op writes.
static bool is_gradient(const lk_op *op, uint32_t role) {
    return role == LK_DX || (role == LK_DX2 && op->type->both);
}

static bool is_output(const lk_op *op, uint32_t role) {
    return is_gradient(op, role) || (role == LK_Y && op->phase == LK_FORWARD);
}

// A mask is looked at as it lies.
static bool is_mask(const lk_op *op, uint32_t role) { return role == LK_MASK && !op->type->both; }

static bool is_wide(const lk_program *p, const lk_op *op, uint32_t role) {
    return !is_mask(op, role) && is_half(p, op, role);
}

// The first role of the same tensor: what is changed in place lies in one place.
static uint32_t first_role(const lk_op *op, uint32_t role) {
    for (uint32_t r = 0; r < role; r++) {
        if (op->tensor[r] == op->tensor[role]) return r;
    }
    return role;
}

// --- blocks --------------------------------------------------------------------------------------

// Floats of one example that lie widened.
static uint64_t wide_floats(const lk_program *p, const lk_op *op) {
    uint64_t floats = op->type->apart ? lk_conv2d_out_floats(&op->conv) : 0;
    for (uint32_t r = 0; r < LK_ROLES; r++) {
        if (is_wide(p, op, r) && first_role(op, r) == r) floats += row_of(tensor_of(p, op, r));
    }
    return LK_MAX(floats, 1);
}

// Examples of a block; of an op that sees grains, whole ones. A device has no cache to spare.
static uint32_t examples_of(const lk_program *p, const lk_op *op) {
    uint64_t most = LK_MIXED_FLOATS / wide_floats(p, op);
    if (p->layout.device) return p->microbatch_examples;
    if (most > 8) most = most / 8 * 8;
    if (op->type->sequence) most = LK_MAX(most, LK_MIXED_SEQUENCES);
    if (op->type->grains) most = LK_MAX(most / p->spec->grain, 1) * p->spec->grain;
    return (uint32_t)LK_MIN(LK_MAX(most, 1), p->microbatch_examples);
}

typedef struct call {
    lk_frame *f;
    const lk_op *op;
    const lk_microbatch *microbatch;
    const lk_lane *lane;
    lk_microbatch part;     // the block's, for what seeks who is present
    lk_op run;              // what the kernel gets: ReLU is applied here, as values are rounded
    float *wide[LK_ROLES];  // NULL: the tensor as it lies
    float *apart;           // what a pool seeks its winners among
    float *scratch;
} call;

static void lay(call *c, uint32_t block) {
    const lk_program *p = c->f->program;
    float *at = c->lane->at[LK_SCRATCH];
    for (uint32_t r = 0; r < LK_ROLES; r++) {
        const uint32_t same = first_role(c->op, r);
        c->wide[r] = NULL;
        if (!is_wide(p, c->op, r)) continue;
        c->wide[r] = same < r ? c->wide[same] : at;
        if (same == r) at += lk_round_up(block * row_of(tensor_of(p, c->op, r)), 16);
    }
    c->apart = at;
    if (c->op->type->apart) at += lk_round_up(block * lk_conv2d_out_floats(&c->op->conv), 16);
    c->scratch = at;
}

static uint64_t some_rows(uint64_t examples) {
    const uint64_t most = LK_MIXED_FLOATS / examples / 16 * 16;
    return LK_MAX(most, LK_OPERANDS_ROWS);
}

// Floats from one example's columns to the next one's: an odd number of lines, or they would share
// few places of a cache.
static uint64_t stride_of(uint64_t columns) { return lk_round_up(columns, 16) | 16; }

static const lk_role operands[] = {LK_X, LK_DY, LK_X2};

// A network may be applied to images, of 16 bits, and to what a layer in fp32 makes.
static bool uses_differ(const lk_program *p, const lk_op *op) {
    bool differ = false;
    for (uint32_t u = 1; u < uses_of(op); u++) {
        for (uint32_t i = 0; i < LK_COUNT(operands); i++) {
            differ = differ || is_half(p, op + u, operands[i]) != is_half(p, op, operands[i]);
        }
    }
    return differ;
}

bool lk_mixed_by_grain(const lk_program *p, const lk_op *op) {
    const lk_op_type *type = op->type;
    const bool by_columns = type->some_rows && !type->sequence;
    const bool whole = (!type->half_floats && !by_columns) || uses_differ(p, op);
    return type->scope == LK_SCOPE_GRAINS && whole && lk_mixed_is(p, op);
}

// The room for the operands of `examples` examples, widened, of each use.
static uint64_t operands_floats(const lk_program *p, const lk_op *op, uint32_t examples) {
    uint64_t floats = 0;
    for (uint32_t i = 0; i < (op->type->labels ? 3 : 2); i++) {
        if (!is_half_in_some(p, op, operands[i])) continue;
        floats += lk_round_up(examples * row_of(tensor_of(p, op, operands[i])), 16);
    }
    return floats * p->uses_max;
}

// A block of examples, widened.
static uint64_t block_floats(const lk_program *p, const lk_op *op) {
    const uint32_t block = examples_of(p, op);
    uint64_t floats =
        op->type->apart ? lk_round_up(block * lk_conv2d_out_floats(&op->conv), 16) : 0;
    for (uint32_t r = 0; r < LK_ROLES; r++) {
        if (!is_wide(p, op, r) || first_role(op, r) < r) continue;
        floats += lk_round_up(block * row_of(tensor_of(p, op, r)), 16);
    }
    return floats;
}

uint64_t lk_mixed_device_floats(const lk_program *p, const lk_op *op) {
    const uint32_t all = p->microbatch_examples;
    if (op->type->scope == LK_SCOPE_SOURCE) return lk_round_up(all * op->floats, 16);
    return op->type->scope == LK_SCOPE_GRAINS ? operands_floats(p, op, all) : block_floats(p, op);
}

uint64_t lk_mixed_scratch_floats(const lk_program *p, const lk_op *op) {
    const lk_op_type *type = op->type;
    if (type->scope == LK_SCOPE_SOURCE) return lk_round_up(op->floats, 16);
    const uint64_t examples = (uint64_t)p->microbatch_examples * p->uses_max;
    if (lk_mixed_by_grain(p, op)) {
        return operands_floats(p, op, p->spec->grain) +
               (type->scratch_floats ? type->scratch_floats(op, (uint32_t)examples) : 0);
    }
    if (type->scope == LK_SCOPE_GRAINS) {
        if (type->half_floats) return type->half_floats(op, (uint32_t)examples);
        const uint64_t columns = LK_MIN(some_rows(examples), row_of(tensor_of(p, op, LK_X)));
        return lk_round_up(examples * row_of(tensor_of(p, op, LK_DY)), 16) +
               examples * stride_of(columns) + type->scratch_floats(op, (uint32_t)examples);
    }
    uint64_t floats = block_floats(p, op);
    floats += type->scratch_floats ? type->scratch_floats(op, examples_of(p, op)) : 0;
    return LK_MAX(floats, type->half_floats ? type->half_floats(op, p->microbatch_examples) : 0);
}

// --- a processor's hands -------------------------------------------------------------------------

static uint32_t compute_at_once(lk_frame *f, lk_lane *l, const lk_op *op, bool heeds) {
    const uint32_t bad = lk_kernel_of(f->kernels, op->type)(l, op);
    return heeds ? bad : 0;
}

static void widen_at_once(lk_frame *f, lk_dtype dtype, uint64_t count, const void *from,
                          float *to) {
    f->kernels->widen(dtype, count, from, to);
}

static uint32_t not_finite(uint64_t count, const float *v) {
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) bad |= !(v[i] - v[i] == 0.0f);
    return bad;
}

static uint32_t store_some(const lk_frame *f, const lk_narrow *how, uint64_t count,
                           const float *from, uint16_t *to) {
    if (!lk_dtype_is_half(how->dtype)) return not_finite(count, from);
    return f->kernels->narrow(how, count, from, to);
}

static uint32_t store_at_once(lk_frame *f, const lk_narrow *how, const lk_look *look,
                              uint64_t count, const float *from, uint16_t *to) {
    uint32_t bad = 0;
    if (look->line == 0) bad = store_some(f, how, count, from, to);
    for (uint64_t y = 0; look->line > 0 && y < count / look->line; y++) {
        const uint64_t at = y * look->line, even = at + look->even;
        const uint32_t one = store_some(f, how, look->even, from + at, to + at);
        (void)store_some(f, how, look->line - look->even, from + even, to + even);
        if (y % look->lines < look->even_lines) bad |= one;
    }
    return look->heeds ? bad : 0;
}

static uint32_t pool_at_once(lk_frame *f, const lk_narrow *how, const lk_conv2d *g,
                             uint32_t examples, bool heeds, const float *from, uint16_t *to,
                             uint8_t *winners) {
    const uint64_t pooled = lk_conv2d_pooled_floats(g);
    uint32_t bad = 0;
    for (uint32_t m = 0; m < examples; m++, from += lk_conv2d_out_floats(g)) {
        bad |= f->kernels->narrow_pool(how, g, from, to + m * pooled, winners + m * pooled);
    }
    return heeds ? bad : 0;
}

static void scale_at_once(lk_frame *f, uint64_t count, float *dx) {
    const lk_scale_state *state = lk_scale_of(f->program, f->device);
    const float scale = lk_scale_value(&f->program->spec->model.loss_scale, state);
    for (uint64_t i = 0; scale != 1.0f && i < count; i++) dx[i] = dx[i] * scale;
}

static void relu_at_once(lk_frame *f, uint64_t count, float *y) {
    (void)f;
    for (uint64_t i = 0; i < count; i++) y[i] = y[i] > 0.0f ? y[i] : 0.0f;
}

static void clear_at_once(lk_frame *f, uint64_t bytes, void *at) {
    (void)f;
    __builtin_memset(at, 0, bytes);
}

static const lk_mixed_hands at_once = {.compute = compute_at_once,
                                       .widen = widen_at_once,
                                       .store = store_at_once,
                                       .pool = pool_at_once,
                                       .scale = scale_at_once,
                                       .relu = relu_at_once,
                                       .clear = clear_at_once};

#ifdef LK_SHORT_FORM_ALONE
// A board has no device: its calls are direct.
static const lk_mixed_hands *hands_of(const lk_frame *f) { return (void)f, &at_once; }
#else
static const lk_mixed_hands *hands_of(const lk_frame *f) {
    const lk_mixed_device *device = f->lane_device;
    return device ? device->hands : &at_once;
}
#endif

// --- narrowing -----------------------------------------------------------------------------------

// How values of an output, from value `at` on, become those of its tensor.
static lk_narrow narrow_of(const lk_program *p, const lk_op *op, const lk_lane *l, uint32_t role,
                           uint64_t at) {
    lk_narrow how = {.dtype = tensor_of(p, op, role)->dtype, .rule = LK_NARROW};
    if (role == LK_Y && op->relu) {
        how.rule = op->relu_apart ? LK_NARROW_RELU_AFTER : LK_NARROW_RELU;
    }
    if (role == LK_DX && l->at[LK_MASK] && is_mask(op, LK_MASK)) {
        how.rule = LK_NARROW_MASK;
        how.mask = (const uint16_t *)l->at[LK_MASK] + at;
    }
    return how;
}

static bool is_missing(const call *c, uint32_t m) {
    return lk_is_missing(c->f->program->spec, c->microbatch, m);
}

// How many of examples [m, end) follow one another that there are, or that there are not.
static uint32_t run_of(const call *c, uint32_t m, uint32_t end) {
    const bool missing = is_missing(c, m);
    uint32_t at = m + 1;
    if (!c->microbatch->sparse) return end - m;
    while (at < end && is_missing(c, at) == missing) at++;
    return at - m;
}

// What counts of an output's values: what a 2x2 pool behind it drops, an odd last row or column, is
// stored and not looked at; nor is an example that is none.
static lk_look look_at(const call *c, uint32_t role, uint32_t m) {
    const lk_conv2d *g = &c->op->conv;
    lk_look look = {.heeds = !is_missing(c, m)};
    if (role != LK_Y || !c->op->odd_apart) return look;
    look.line = g->out_w * g->out_c;
    look.even = (g->out_w & ~1u) * g->out_c;
    look.lines = g->out_h;
    look.even_lines = g->out_h & ~1u;
    return look;
}

// The rows of examples [m0, m0 + count) of an output.
static uint32_t store_all(const call *c, uint32_t role, uint32_t m0, uint32_t count,
                          const float *from) {
    const lk_tensor *t = tensor_of(c->f->program, c->op, role);
    const uint64_t row = row_of(t), end = m0 + count;
    uint32_t bad = 0;
    if (t->dtype == LK_U32) return 0;
    for (uint32_t m = m0, some; m < end; m += some, from += some * row) {
        const lk_narrow how = narrow_of(c->f->program, c->op, c->lane, role, m * row);
        const lk_look look = look_at(c, role, m);
        some = run_of(c, m, (uint32_t)end);
        bad |= hands_of(c->f)->store(c->f, &how, &look, some * row, from,
                                     (uint16_t *)c->lane->at[role] + m * row);
    }
    return bad;
}

// --- a block -------------------------------------------------------------------------------------

// What a tensor has of example m0, or of the grain that begins with it. A table of the model has
// no rows of examples.
static void *row_at(const call *c, uint32_t role, uint32_t m0) {
    const lk_tensor *t = tensor_of(c->f->program, c->op, role);
    if (t->region == LK_REGION_DEVICE) return c->lane->at[role];
    const uint64_t row = m0 * t->shape[0] / c->f->program->microbatch_examples;
    return (uint8_t *)c->lane->at[role] + row * row_of(t) * lk_dtype_bytes(t->dtype);
}

static lk_lane widen_block(call *c, uint32_t m0, uint32_t count) {
    lk_lane l = *c->lane;
    l.examples = count;
    l.first_example += m0;
    if (c->op->type->grains) lk_assert(m0 % l.grain == 0);
    if (l.present) {
        c->part = *c->microbatch;
        c->part.position += m0;
        l.present_in[1] = &c->part;
    }
    for (uint32_t i = 0; i < LK_COUNT(rows_of); i++) {
        const uint32_t r = rows_of[i];
        if (!l.at[r]) continue;
        const lk_tensor *t = tensor_of(c->f->program, c->op, r);
        l.at[r] = c->wide[r] ? (void *)c->wide[r] : row_at(c, r, m0);
        if (!c->wide[r] || is_output(c->op, r)) continue;
        hands_of(c->f)->widen(c->f, t->dtype, count * row_of(t), row_at(c, r, m0), c->wide[r]);
    }
    if (c->op->type->labels) l.at[LK_LABELS] = row_at(c, LK_LABELS, m0);
    if (is_mask(c->op, LK_MASK) && is_half(c->f->program, c->op, LK_MASK)) l.at[LK_MASK] = NULL;
    l.at[LK_SCRATCH] = c->scratch;
    return l;
}

// A pool that runs with what makes its values: the winner is sought among rounded ones.
static uint32_t pool_block(const call *c, lk_lane *l, uint32_t m0) {
    const lk_mixed_hands *hands = hands_of(c->f);
    const lk_conv2d *g = &c->run.conv;
    const lk_narrow how = narrow_of(c->f->program, c->op, c->lane, LK_Y, 0);
    uint16_t *to = (uint16_t *)c->lane->at[LK_Y] + m0 * lk_conv2d_pooled_floats(g);
    uint8_t *winners = l->at[LK_AUX];
    lk_op first = c->run;
    first.type = c->op->type->apart;
    first.floats = lk_conv2d_out_floats(g);
    l->at[LK_Y] = c->apart;
    l->at[LK_AUX] = NULL;
    (void)hands->compute(c->f, l, &first, false);
    return hands->pool(c->f, &how, g, l->examples, !is_missing(c, m0), c->apart, to, winners);
}

void lk_mixed_scale(lk_frame *f, const lk_op *op, const lk_lane *lane, uint32_t count) {
    if (op->type->scope != LK_SCOPE_LOSS || f->program->loss_scale == LK_NONE) return;
    for (uint32_t r = 0; r < LK_ROLES; r++) {
        const lk_tensor *t = tensor_of(f->program, op, r);
        if (!t || !is_gradient(op, r)) continue;
        hands_of(f)->scale(f, count * row_of(t), lane->at[r]);
    }
}

// Values that stay in fp32 though their layer is not: ReLU is applied here, too.
static void relu_in_place(const call *c, const lk_lane *l, uint32_t count) {
    if (!c->op->relu || c->op->dtype == LK_F32) return;
    hands_of(c->f)->relu(c->f, count * row_of(tensor_of(c->f->program, c->op, LK_Y)), l->at[LK_Y]);
}

// Of products in fp32 the kernel alone sees the finished sums: ReLU and pools hide some.
static bool sums_in_fp32(const lk_op *op) {
    return op->phase == LK_FORWARD && op->dtype == LK_F32 && op->param[0] != LK_NONE &&
           !op->type->plain;
}

// Whether what the kernel returns is a flag: of ops that see grains it leaves out who is missing.
static bool heeds(const call *c, uint32_t m0) {
    const lk_op_type *type = c->op->type;
    if (type->scope == LK_SCOPE_LOSS) return true;
    return (type->looks || sums_in_fp32(c->op)) && (type->grains || !is_missing(c, m0));
}

static uint32_t compute_block(call *c, uint32_t m0, uint32_t count,
                              uint32_t counts[LK_METRIC_COUNTS_MAX]) {
    lk_lane l = widen_block(c, m0, count);
    if (c->op->type->apart && c->wide[LK_Y]) return pool_block(c, &l, m0);
    for (uint32_t i = 0; i < LK_METRIC_COUNTS_MAX; i++) l.counts[i] = 0;
    const bool loss = c->op->type->scope == LK_SCOPE_LOSS;
    uint32_t bad = hands_of(c->f)->compute(c->f, &l, &c->run, heeds(c, m0));
    lk_metric_add_counts(counts, l.counts);
    if (l.train) lk_mixed_scale(c->f, c->op, &l, count);
    for (uint32_t i = 0; i < LK_COUNT(rows_of); i++) {
        const uint32_t r = rows_of[i];
        if (!l.at[r] || !is_output(c->op, r)) continue;
        if (loss && (r == LK_Y || !l.train)) continue;  // the kernel has looked at it
        bad |= store_all(c, r, m0, count, l.at[r]);
        if (r == LK_Y && !c->wide[r]) relu_in_place(c, &l, count);
    }
    return bad;
}

// The loss of what is no example, and its gradients, are zero.
static void clear_missing(const call *c, uint32_t m, uint32_t count) {
    for (uint32_t r = 0; r < LK_ROLES; r++) {
        const lk_tensor *t = tensor_of(c->f->program, c->op, r);
        if (!t || !is_output(c->op, r) || (is_gradient(c->op, r) && !c->lane->train)) continue;
        hands_of(c->f)->clear(c->f, count * row_of(t) * lk_dtype_bytes(t->dtype), row_at(c, r, m));
    }
}

// Whether the kernel reads and stores 16 bits itself. Which values of an example that is none it
// looks at, it would have to be told.
static bool is_direct(const lk_frame *f, const lk_op *op, const lk_microbatch *microbatch) {
    const lk_program *p = f->program;
    if (!f->kernels->half[op->type->number] || microbatch->sparse) return false;
    if (op->phase != LK_FORWARD) {
        return is_half(p, op, LK_DX) && (op->tensor[LK_MASK] == LK_NONE || is_half(p, op, LK_MASK));
    }
    return is_half(p, op, LK_Y) || (!op->relu && !op->type->apart);
}

static lk_half half_of(const lk_program *p, const lk_op *op) {
    return (lk_half){.dtype = lk_model_dtype(&p->spec->model),
                     .x = is_half(p, op, LK_X),
                     .dy = is_half(p, op, LK_DY)};
}

static uint32_t call_direct(const lk_frame *f, const lk_op *op, lk_lane *lane) {
    const uint32_t out = op->phase == LK_FORWARD ? LK_Y : LK_DX;
    lk_half half = half_of(f->program, op);
    half.out = narrow_of(f->program, op, lane, out, 0);
    lane->half = &half;
    const uint32_t bad = lk_kernel_of(f->kernels, op->type)(lane, op);
    lane->half = NULL;
    return bad;
}

uint32_t lk_mixed_call(lk_frame *f, const lk_op *op, const lk_microbatch *microbatch,
                       lk_lane *lane) {
    if (is_direct(f, op, microbatch)) return call_direct(f, op, lane);
    call c = {.f = f, .op = op, .microbatch = microbatch, .lane = lane, .run = *op};
    const uint32_t block = examples_of(f->program, op), all = lane->examples;
    const bool loss = op->type->scope == LK_SCOPE_LOSS;
    uint32_t bad = 0, counts[LK_METRIC_COUNTS_MAX] = {0};
    lay(&c, block);
    for (uint32_t m = 0, count; m < all; m += count) {
        count = LK_MIN(block, all - m);
        if (!op->type->grains) count = run_of(&c, m, m + count);
        if (loss && is_missing(&c, m)) {
            clear_missing(&c, m, count);
        } else {
            bad |= compute_block(&c, m, count, counts);
        }
    }
    lk_metric_add_counts(lane->counts, counts);
    return bad;
}

uint32_t lk_mixed_load(const lk_frame *f, const lk_op *op, uint32_t row, const float *from) {
    const lk_tensor *t = &f->program->tensors[op->tensor[LK_Y]];
    const lk_narrow how = {.dtype = t->dtype, .rule = LK_NARROW};
    return f->kernels->narrow(&how, op->floats, from,
                              (uint16_t *)lk_tensor_at(f, op->tensor[LK_Y]) + row * op->floats);
}

// --- gradients of parameters ---------------------------------------------------------------------

// Columns [first, first + columns) of all examples of `count` views, `stride` floats apart.
static void widen_columns(const lk_frame *f, const lk_tensor *t, const lk_grain_view *views,
                          uint32_t count, uint64_t first, uint64_t columns, uint64_t stride,
                          lk_grain_view *wide, float *to) {
    const uint64_t row = row_of(t), bytes = lk_dtype_bytes(t->dtype);
    for (uint32_t g = 0; g < count; to += views[g++].examples * stride) {
        const uint8_t *at = (const uint8_t *)views[g].x + first * bytes;
        const uint16_t *half = (const uint16_t *)(const void *)at;
        const uint32_t rows = views[g].examples;
        const bool is_half = lk_dtype_is_half(t->dtype);
        wide[g].x = to;
        if (is_half && f->kernels->widen_rows) {
            f->kernels->widen_rows(t->dtype, rows, columns, half, row, to, stride);
            continue;
        }
        for (uint32_t m = 0; m < rows; m++, at += row * bytes) {
            half = (const uint16_t *)(const void *)at;
            if (is_half)
                f->kernels->widen(t->dtype, columns, half, to + m * stride);
            else
                __builtin_memcpy(to + m * stride, at, columns * bytes);
        }
    }
}

// The gradients of all examples of `count` views in a row, in fp32.
static void widen_gradients(const lk_frame *f, const lk_tensor *t, const lk_grain_view *views,
                            uint32_t count, lk_grain_view *wide, float *to) {
    const uint64_t row = row_of(t);
    for (uint32_t g = 0; g < count; to += views[g++].examples * row) {
        wide[g].dy = to;
        if (lk_dtype_is_half(t->dtype))
            f->kernels->widen(t->dtype, views[g].examples * row, (const void *)views[g].dy, to);
        else
            __builtin_memcpy(to, views[g].dy, views[g].examples * row * sizeof *to);
    }
}

// Column by column of the inputs: the gradients are widened once. Behind the views is room for as
// many.
static void sums_of_columns(lk_frame *f, const lk_op *op, lk_lane *l, lk_grain_view *views) {
    const lk_program *p = f->program;
    const lk_tensor *x = tensor_of(p, op, LK_X), *dy = tensor_of(p, op, LK_DY);
    const uint64_t most = (uint64_t)p->microbatch_examples * p->uses_max, row = row_of(x);
    const uint64_t columns = LK_MIN(some_rows(most), row);
    const uint32_t count = l->grain_count;
    float *dy_at = l->at[LK_SCRATCH], *x_at = dy_at + lk_round_up(most * row_of(dy), 16);
    float *sums = l->sums[0];
    lk_grain_view *wide = views + count;
    lk_op run = *op;
    uint64_t rows, per_row;
    op->type->rows(op, &rows, &per_row);
    op->type->some_rows(&run, (uint32_t)stride_of(columns));
    for (uint32_t g = 0; g < count; g++) wide[g] = views[g];
    l->grains = wide;
    l->at[LK_SCRATCH] = x_at + most * stride_of(columns);
    widen_gradients(f, dy, views, count, wide, dy_at);
    for (uint64_t k = 0; k < row; k += columns) {
        const uint64_t some = LK_MIN(columns, row - k);
        const lk_weight_rows all = {.end = (uint32_t)some, .again = k > 0};
        widen_columns(f, x, views, count, k, some, stride_of(columns), wide, x_at);
        l->rows = &all;
        l->sums[0] = sums + k * per_row;
        (void)lk_kernel_of(f->kernels, op->type)(l, &run);
    }
}

// Rows of an operand, widened if they have 16 bits: returns where they then lie.
static const void *widen_rows(lk_frame *f, const lk_op *op, uint32_t role, const void *rows,
                              uint32_t count, float **to) {
    const lk_tensor *t = tensor_of(f->program, op, role);
    const float *wide = *to;
    if (!is_half(f->program, op, role)) return rows;
    const uint64_t floats = count * (row_of(t) / lk_op_steps(op));
    hands_of(f)->widen(f, t->dtype, floats, rows, *to);
    *to += lk_round_up(floats, 16);
    return wide;
}

// Of an op that finds its rows by an example's number: of those shown, the first is number 0.
static void show_rows(lk_frame *f, const lk_op *op, lk_lane *l, uint32_t rows_shown,
                      lk_grain_view *view, float **to) {
    static const lk_role shown[] = {LK_X, LK_X2, LK_AUX, LK_DY, LK_LABELS};
    const lk_tensor *dy = tensor_of(f->program, op, LK_DY);
    const uint64_t before = (uint64_t)((const uint8_t *)view->dy - (const uint8_t *)l->at[LK_DY]);
    const uint64_t first = before / (row_of(dy) * lk_dtype_bytes(dy->dtype));
    for (uint32_t i = 0; i < LK_COUNT(shown); i++) {
        const lk_tensor *t = tensor_of(f->program, op, shown[i]);
        if (!t) continue;
        const uint8_t *rows = l->at[shown[i]];
        rows += first * row_of(t) * lk_dtype_bytes(t->dtype);
        l->at[shown[i]] = (void *)(uintptr_t)widen_rows(f, op, shown[i], rows, rows_shown, to);
    }
    view->x = l->at[LK_X];
    view->dy = l->at[LK_DY];
}

// The operands of a use of the op, `rows` of them.
static void widen_view(lk_frame *f, const lk_op *op, const lk_op *use, lk_lane *l, uint32_t rows,
                       lk_grain_view *view, float **to) {
    if (op->type->labels) {
        show_rows(f, op, l, rows, view, to);
        return;
    }
    view->x = widen_rows(f, use, LK_X, view->x, rows, to);
    view->dy = widen_rows(f, use, LK_DY, view->dy, rows, to);
}

// Of few grains, whose operands are widened whole.
static void sums_of_operands(lk_frame *f, const lk_op *op, lk_lane *l, const lk_grain_view *views) {
    lk_grain_view *wide = lk_tensor_at(f, f->program->views);
    float *to = l->at[LK_SCRATCH];
    const uint32_t uses = lk_op_uses(op);
    wide += l->grain_count;
    lk_assert(!op->type->labels || l->grain_count == 1);
    for (uint32_t g = 0; g < l->grain_count; g++) {
        wide[g] = views[g];
        widen_view(f, op, op + g % uses, l, views[g].examples, &wide[g], &to);
    }
    l->grains = wide;
    l->at[LK_SCRATCH] = to;
    (void)lk_kernel_of(f->kernels, op->type)(l, op);
}

void lk_mixed_device_sums(lk_frame *f, const lk_op *op, const lk_lane *lane) {
    lk_lane l = *lane;
    lk_grain_view view = *lane->grains;
    float *to = l.at[LK_SCRATCH];
    widen_view(f, op, op, &l, l.examples, &view, &to);
    l.grains = &view;
    l.at[LK_SCRATCH] = to;
    (void)hands_of(f)->compute(f, &l, op, false);
}

void lk_mixed_sums(lk_frame *f, const lk_op *op, const lk_lane *lane, lk_grain_view *views) {
    const lk_half half = half_of(f->program, op);
    lk_lane l = *lane;
    if (lk_mixed_by_grain(f->program, op)) {
        sums_of_operands(f, op, &l, views);
        return;
    }
    if (!op->type->half_floats) {
        sums_of_columns(f, op, &l, views);
        return;
    }
    l.half = &half;
    (void)lk_kernel_of(f->kernels, op->type)(&l, op);
}

// --- rows apart, of the operands of all ----------------------------------------------------------

static uint64_t examples_of_step(const lk_program *p, const lk_op *op) {
    return (uint64_t)p->grains * p->spec->grain * uses_of(op);
}

uint64_t lk_mixed_rows(const lk_program *p, const lk_op *op) {
    return some_rows(examples_of_step(p, op));
}

uint64_t lk_mixed_rows_floats(const lk_program *p, const lk_op *op) {
    return lk_round_up(examples_of_step(p, op) * row_of(tensor_of(p, op, LK_DY)), 16) +
           examples_of_step(p, op) * stride_of(lk_mixed_rows(p, op));
}

void lk_mixed_rows_start(lk_mixed_rows_state *s, const lk_frame *f, const lk_op *op,
                         lk_grain_view *views, uint32_t count, float *scratch) {
    const lk_program *p = f->program;
    const lk_tensor *dy = tensor_of(p, op, LK_DY);
    *s = (lk_mixed_rows_state){.run = *op, .wide = views + count};
    s->x = scratch + lk_round_up(examples_of_step(p, op) * row_of(dy), 16);
    for (uint32_t g = 0; g < count; g++) s->wide[g] = views[g];
    widen_gradients(f, dy, views, count, s->wide, scratch);
}

void lk_mixed_rows_take(lk_mixed_rows_state *s, const lk_frame *f, const lk_op *op,
                        const lk_grain_view *views, uint32_t count, uint64_t first, uint64_t rows) {
    const uint64_t stride = stride_of(rows);
    widen_columns(f, tensor_of(f->program, op, LK_X), views, count, first, rows, stride, s->wide,
                  s->x);
    op->type->some_rows(&s->run, (uint32_t)stride);
}

// --- weights -------------------------------------------------------------------------------------

uint32_t lk_mixed_round(const lk_program *p, uint8_t *device) {
    uint32_t first_bad = LK_NONE;
    for (uint32_t i = 0; i < p->param_count; i++) {
        const lk_param *param = &p->params[i];
        if (param->rounded == LK_NONE || lk_param_is_spectral(p, i)) continue;
        const float *w = (const float *)(void *)(device + p->tensors[param->tensor].offset);
        float *rounded = (float *)(void *)(device + p->tensors[param->rounded].offset);
        const lk_dtype dtype = lk_model_dtype(&p->spec->model);
        uint32_t bad = lk_kernels_reference.round(dtype, param->count, w, rounded);
        const lk_average_calls *averages = p->spec->model.averages;
        if (averages) bad |= averages->round(p, device, i);
        if (bad && first_bad == LK_NONE) first_bad = i;
    }
    return first_bad;
}
