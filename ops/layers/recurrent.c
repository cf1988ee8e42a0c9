// recurrent.c - layers with a state that goes from time to time of a sequence: formulas, the
// reference, gradients. Freestanding. ARITHMETIC.md 3, 5 and 6.
//
//   lstm   Keras' order of gates, i f c o. z is the sequence_dense of x (dense.c), u the recurrent
//          kernel (units, 4 * units); of each example, for t from 0 on, of each unit j:
//
//     a[g] = z[t][g][j] + sum over k, ascending, of h[t-1][k] * u[k][g][j]       t = 0: a[g] = z
//     i = sigmoid(a[i])   f = sigmoid(a[f])   n = tanh(a[c])   o = sigmoid(a[o])
//     c[t] = fma(f, c[t-1], i * n)      h[t] = o * tanh(c[t])        c[-1] and h[-1] are +0
//
//     from the last t down, with dy[t] the gradient of h[t] (+0 where no user takes h[t]):
//     dh = dy[t] + sum over (g, j), ascending, of u[k][g][j] * dz[t+1][g][j]     last t: dh = dy
//     s  = tanh(c[t])
//     dc = fma(dh * o, fma(-s, s, 1), dc[t+1] * f[t+1])               last t: (dh * o) * fma(..)
//     dz[i] = (dc * n) * (i * (1 - i))        dz[f] = (dc * c[t-1]) * (f * (1 - f))
//     dz[c] = (dc * i) * fma(-n, n, 1)        dz[o] = (dh * s) * (o * (1 - o))
//
//   gru    Keras' order of gates, z r h, and its reset_after. x[t] is the sequence_dense of the
//          input, u the recurrent kernel (units, 3 * units), b its biases; of each unit j:
//
//     s[g] = b[g][j] + sum over k, ascending, of h[t-1][k] * u[k][g][j]           t = 0: s[g] = b
//     z = sigmoid(x[t][z] + s[z])   r = sigmoid(x[t][r] + s[r])   q = s[h]
//     n = tanh(fma(r, q, x[t][h]))
//     h[t] = fma(z, h[t-1], (1 - z) * n)                                       h[-1] is +0
//
//     from the last t down, ds the gradient of s and dx[t] that of x[t]:
//     dh = (dy[t] + sum over (g, j), ascending, of u[k][g][j] * ds[t+1][g][j]) + dh[t+1] * z[t+1]
//     dx[h] = (dh * (1 - z)) * fma(-n, n, 1)                                    last t: dh = dy
//     dx[z] = dh * ((h[t-1] - n) * (z * (1 - z)))      dx[r] = (dx[h] * q) * (r * (1 - r))
//     ds[z] = dx[z]           ds[r] = dx[r]            ds[h] = dx[h] * r
//
// In mixed precision h[t] and each dz, dx and ds are rounded as they are made: products take them.
//
// h[t-1] of every time is kept beside the gates: the gradient of u is the sum over (example, time)
// of h[t-1][k] * dz[t][n], of a gru ds[t][n], as that of a dense layer whose examples are the
// times.
#include "ops/cpu/tiles.h"
#include "ops/graph/build.h"
#include "ops/layers/export.h"
#include "ops/layers/keys.h"
#include "ops/layers/rounded.h"
#include "ops/layers/sums.h"
#include "ops/math.h"

// --- the reference -------------------------------------------------------------------------------

// One example's rows; of a time `t` those of its number. Gates are 4 of an lstm, 3 of a gru.
typedef struct example {
    uint32_t units, steps, gates;
    const float *u;     // (units, gates, units)
    const float *bias;  // (gates, units) NULL: none
    float *kept;        // (steps, columns, units) lstm: i f n o c; gru: z r n q
    float *before;      // (steps, units) h[t-1]
    float *y;           // of a forward op; dy of a backward one, of every time or the last
    float *dz;          // (steps, gates, units) gradient of z
    float *inner;       // (steps, gates, units) .. of the sums over the state; an lstm's is dz
    float *carried;     // (units) lstm: dc[t+1] * f[t+1]; gru: dh[t+1] * z[t+1]
    const float *z;     // (steps, gates, units)
    bool every;
    uint8_t dtype;  // what h, dz and inner are rounded to
} example;

static example example_of(const lk_lane *l, const lk_op *op, uint32_t columns, uint32_t m) {
    const uint32_t units = op->sequence.dense.k_count, gates = op->sequence.dense.n_count;
    const uint64_t row = (uint64_t)m * op->sequence.steps;
    const uint64_t y_row = op->sequence.every ? row : m;
    float *y = l->at[LK_Y] ? l->at[LK_Y] : l->at[LK_DY];
    float *dz = l->at[LK_DX] ? (float *)l->at[LK_DX] + row * gates : NULL;
    return (example){.units = units,
                     .steps = op->sequence.steps,
                     .gates = gates / units,
                     .u = l->param[0],
                     .bias = l->param[1],
                     .kept = (float *)l->at[LK_AUX] + row * columns * units,
                     .before = l->at[LK_X2] ? (float *)l->at[LK_X2] + row * units : NULL,
                     .y = y + y_row * units,
                     .dz = dz,
                     .inner = l->at[LK_DX2] ? (float *)l->at[LK_DX2] + row * gates : dz,
                     .carried = l->at[LK_SCRATCH],
                     .z = l->at[LK_X] ? (float *)l->at[LK_X] + row * gates : NULL,
                     .every = op->sequence.every,
                     .dtype = op->dtype};
}

// What the state before time t is to a gate; at t = 0 the bias alone.
static float state_sum(const example *e, uint32_t t, uint32_t column) {
    const uint32_t columns = e->gates * e->units;
    slice_sum s;
    slice_start(&s, e->bias ? e->bias[column] : 0.0f);
    for (uint32_t k = 0; t > 0 && k < e->units; k++) {
        slice_term(&s, e->before[(uint64_t)t * e->units + k], e->u[(uint64_t)k * columns + column]);
    }
    return slice_finish(&s);
}

static float gate_input(const example *e, uint32_t t, uint32_t column) {
    return e->z[(uint64_t)t * e->gates * e->units + column];
}

static void keep_state(const example *e, uint32_t t, uint32_t j, float h) {
    if (t + 1 < e->steps) e->before[((uint64_t)t + 1) * e->units + j] = h;
    if (e->every)
        e->y[(uint64_t)t * e->units + j] = h;
    else if (t + 1 == e->steps)
        e->y[j] = h;
}

// The gradient of h[t] as its users and the time after it have it.
static float state_gradient(const example *e, uint32_t t, uint32_t k) {
    const uint32_t columns = e->gates * e->units;
    float dy = 0.0f;
    slice_sum s;
    if (e->every)
        dy = e->y[(uint64_t)t * e->units + k];
    else if (t + 1 == e->steps)
        dy = e->y[k];
    if (t + 1 == e->steps) return dy;
    slice_start(&s, 0.0f);
    for (uint32_t n = 0; n < columns; n++) {
        slice_term(&s, e->u[(uint64_t)k * columns + n], e->inner[((uint64_t)t + 1) * columns + n]);
    }
    return dy + slice_finish(&s);
}

// --- lstm ----------------------------------------------------------------------------------------

static uint32_t lstm_forward_step(const example *e, uint32_t t) {
    const uint32_t units = e->units;
    float *kept = e->kept + (uint64_t)t * LK_LSTM_COLUMNS * units;
    uint32_t bad = 0;
    for (uint32_t j = 0; j < units; j++) {
        float a[LK_LSTM_GATES];
        for (uint32_t g = 0; g < LK_LSTM_GATES; g++) {
            const uint32_t column = g * units + j;
            a[g] = gate_input(e, t, column);
            if (t > 0) a[g] = a[g] + state_sum(e, t, column);
            bad |= lk_not_finite(a[g]);
        }
        const float i = lk_sigmoidf(a[LK_LSTM_INPUT]), f = lk_sigmoidf(a[LK_LSTM_FORGET]);
        const float n = lk_tanhf(a[LK_LSTM_CANDIDATE]), o = lk_sigmoidf(a[LK_LSTM_OUTPUT]);
        const float last = t ? kept[(int64_t)j - units] : 0.0f;  // c of the time before
        const float c = lk_fmaf(f, last, i * n), h = lk_rounded(e->dtype, o * lk_tanhf(c));
        bad |= lk_not_finite(c);
        kept[LK_LSTM_INPUT * units + j] = i;
        kept[LK_LSTM_FORGET * units + j] = f;
        kept[LK_LSTM_CANDIDATE * units + j] = n;
        kept[LK_LSTM_OUTPUT * units + j] = o;
        kept[LK_LSTM_CELL * units + j] = c;
        keep_state(e, t, j, h);
    }
    return bad;
}

static uint32_t lstm_forward(lk_lane *l, const lk_op *op) {
    uint32_t bad = 0;
    for (uint32_t m = 0; m < l->examples; m++) {
        const example e = example_of(l, op, LK_LSTM_COLUMNS, m);
        __builtin_memset(e.before, 0, e.units * sizeof(float));
        for (uint32_t t = 0; t < e.steps; t++) bad |= lstm_forward_step(&e, t);
    }
    return bad;
}

static uint32_t lstm_backward_step(const example *e, uint32_t t) {
    const uint32_t units = e->units;
    const float *kept = e->kept + (uint64_t)t * LK_LSTM_COLUMNS * units;
    float *dz = e->dz + (uint64_t)t * LK_LSTM_GATES * units;
    uint32_t bad = 0;
    for (uint32_t j = 0; j < units; j++) {
        const float i = kept[LK_LSTM_INPUT * units + j], f = kept[LK_LSTM_FORGET * units + j];
        const float n = kept[LK_LSTM_CANDIDATE * units + j], o = kept[LK_LSTM_OUTPUT * units + j];
        const float last = t ? kept[(int64_t)j - units] : 0.0f;
        const float s = lk_tanhf(kept[LK_LSTM_CELL * units + j]);
        const float dh = state_gradient(e, t, j), slope = lk_fmaf(-s, s, 1.0f);
        const float dc = t + 1 == e->steps ? dh * o * slope : lk_fmaf(dh * o, slope, e->carried[j]);
        bad |= lk_not_finite(dh) | lk_not_finite(dc);
        dz[LK_LSTM_INPUT * units + j] = dc * n * (i * (1.0f - i));
        dz[LK_LSTM_FORGET * units + j] = dc * last * (f * (1.0f - f));
        dz[LK_LSTM_CANDIDATE * units + j] = dc * i * lk_fmaf(-n, n, 1.0f);
        dz[LK_LSTM_OUTPUT * units + j] = dh * s * (o * (1.0f - o));
        bad |= lk_not_finite(dz[LK_LSTM_FORGET * units + j]);  // the others are smaller than dc, dh
        for (uint32_t g = 0; g < LK_LSTM_GATES; g++) {
            dz[g * units + j] = lk_rounded(e->dtype, dz[g * units + j]);
        }
        e->carried[j] = dc * f;
    }
    return bad;
}

static uint32_t lstm_backward(lk_lane *l, const lk_op *op) {
    uint32_t bad = 0;
    for (uint32_t m = 0; m < l->examples; m++) {
        const example e = example_of(l, op, LK_LSTM_COLUMNS, m);
        for (uint32_t t = e.steps; t-- > 0;) bad |= lstm_backward_step(&e, t);
    }
    return bad;
}

// --- gru -----------------------------------------------------------------------------------------

static uint32_t gru_forward_step(const example *e, uint32_t t) {
    const uint32_t units = e->units;
    float *kept = e->kept + (uint64_t)t * LK_GRU_COLUMNS * units;
    uint32_t bad = 0;
    for (uint32_t j = 0; j < units; j++) {
        float x[LK_GRU_GATES], s[LK_GRU_GATES];
        for (uint32_t g = 0; g < LK_GRU_GATES; g++) {
            x[g] = gate_input(e, t, g * units + j);
            s[g] = state_sum(e, t, g * units + j);
        }
        const float update = x[LK_GRU_UPDATE] + s[LK_GRU_UPDATE];
        const float reset = x[LK_GRU_RESET] + s[LK_GRU_RESET];
        const float z = lk_sigmoidf(update), r = lk_sigmoidf(reset), q = s[LK_GRU_CANDIDATE];
        const float candidate = lk_fmaf(r, q, x[LK_GRU_CANDIDATE]), n = lk_tanhf(candidate);
        const float last = e->before[(uint64_t)t * units + j];
        bad |= lk_not_finite(update) | lk_not_finite(reset) | lk_not_finite(candidate);
        kept[LK_GRU_UPDATE * units + j] = z;
        kept[LK_GRU_RESET * units + j] = r;
        kept[LK_GRU_CANDIDATE * units + j] = n;
        kept[LK_GRU_INNER * units + j] = q;
        keep_state(e, t, j, lk_rounded(e->dtype, lk_fmaf(z, last, (1.0f - z) * n)));
    }
    return bad;
}

static uint32_t gru_forward(lk_lane *l, const lk_op *op) {
    uint32_t bad = 0;
    for (uint32_t m = 0; m < l->examples; m++) {
        const example e = example_of(l, op, LK_GRU_COLUMNS, m);
        __builtin_memset(e.before, 0, e.units * sizeof(float));
        for (uint32_t t = 0; t < e.steps; t++) bad |= gru_forward_step(&e, t);
    }
    return bad;
}

static uint32_t gru_backward_step(const example *e, uint32_t t) {
    const uint32_t units = e->units;
    const float *kept = e->kept + (uint64_t)t * LK_GRU_COLUMNS * units;
    float *dx = e->dz + (uint64_t)t * LK_GRU_GATES * units;
    float *ds = e->inner + (uint64_t)t * LK_GRU_GATES * units;
    uint32_t bad = 0;
    for (uint32_t j = 0; j < units; j++) {
        const float z = kept[LK_GRU_UPDATE * units + j], r = kept[LK_GRU_RESET * units + j];
        const float n = kept[LK_GRU_CANDIDATE * units + j], q = kept[LK_GRU_INNER * units + j];
        const float last = e->before[(uint64_t)t * units + j];
        float dh = state_gradient(e, t, j);
        if (t + 1 < e->steps) dh = dh + e->carried[j];
        const float candidate = dh * (1.0f - z) * lk_fmaf(-n, n, 1.0f);
        const float update = dh * ((last - n) * (z * (1.0f - z)));
        const float reset = candidate * q * (r * (1.0f - r));
        bad |= lk_not_finite(dh) | lk_not_finite(reset);  // the others are smaller than dh
        dx[LK_GRU_UPDATE * units + j] = lk_rounded(e->dtype, update);
        dx[LK_GRU_RESET * units + j] = lk_rounded(e->dtype, reset);
        dx[LK_GRU_CANDIDATE * units + j] = lk_rounded(e->dtype, candidate);
        ds[LK_GRU_UPDATE * units + j] = dx[LK_GRU_UPDATE * units + j];
        ds[LK_GRU_RESET * units + j] = dx[LK_GRU_RESET * units + j];
        ds[LK_GRU_CANDIDATE * units + j] = lk_rounded(e->dtype, candidate * r);
        e->carried[j] = dh * z;
    }
    return bad;
}

static uint32_t gru_backward(lk_lane *l, const lk_op *op) {
    uint32_t bad = 0;
    for (uint32_t m = 0; m < l->examples; m++) {
        const example e = example_of(l, op, LK_GRU_COLUMNS, m);
        for (uint32_t t = e.steps; t-- > 0;) bad |= gru_backward_step(&e, t);
    }
    return bad;
}

// --- shapes, parameters --------------------------------------------------------------------------

// The op that multiplies x for all `gates`, then one of `type`.
static lk_status build(lk_builder *b, const lk_layer *l, const lk_op_type *type, uint32_t gates) {
    const lk_shape in = b->input[0].shape;
    const lk_dense input = {.k_count = in.c, .n_count = gates * l->units, .use_bias = l->use_bias};
    const lk_shape every = {in.h, 1, l->units, false}, last = {1, 1, l->units, true};
    if (in.flat || in.w != 1) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: %s wants a sequence (time, features) but gets %u x %u x %u%s; "
                       "put a reshape layer with a target_shape of [time, features] before it",
                       l->name, type->name, in.h, in.w, in.c, in.flat ? " (flat)" : "");
    }
    LK_CHECK(lk_build_sequence_dense(b, l, &input));
    lk_op *z = &b->program->ops[b->output.op];
    z->floats = (uint64_t)in.h * input.n_count;
    if (z->floats > INT32_MAX) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: the gates of %u units over %u times are more than 2^31 values "
                       "an example",
                       l->name, l->units, in.h);
    }
    lk_op *op = lk_build_op(b, type, b->output, l->return_sequences ? every : last);
    op->sequence = (lk_sequence){.dense = {.k_count = l->units, .n_count = input.n_count},
                                 .steps = in.h,
                                 .every = l->return_sequences};
    return LK_OK;
}

static lk_status build_lstm(lk_builder *b, const lk_layer *l) {
    return build(b, l, &lk_op_lstm, LK_LSTM_GATES);
}

static lk_status build_gru(lk_builder *b, const lk_layer *l) {
    if (!l->reset_after) {
        return lk_fail(b->error, LK_BAD_CONFIG,
                       "layer %s: found reset_after false, which no kernel computes; wanted true, "
                       "as Keras has it unless told otherwise and PyTorch always",
                       l->name);
    }
    LK_CHECK(build(b, l, &lk_op_gru, LK_GRU_GATES));
    b->program->ops[b->output.op].sequence.dense.use_bias = l->use_bias;
    return LK_OK;
}

// The recurrent kernel, and what is kept of each time: `columns` values for each unit, the states.
static lk_status declare(lk_builder *b, lk_op *op, uint32_t columns) {
    const lk_dense *d = &op->sequence.dense;
    const uint64_t steps = op->sequence.steps;
    const lk_param_shape kernel = {.suffix = "recurrent_kernel",
                                   .rank = 2,
                                   .size = {d->k_count, d->n_count},
                                   .fan_in = d->k_count,
                                   .fan_out = d->n_count,
                                   .initializer = &lk_initializer_orthogonal};
    const lk_param_shape bias = {.suffix = "recurrent_bias",
                                 .rank = 1,
                                 .size = {d->n_count},
                                 .initializer = &lk_initializer_zeros};
    LK_CHECK(lk_build_param(b, op, 0, &kernel));
    if (d->use_bias) LK_CHECK(lk_build_param(b, op, 1, &bias));
    LK_CHECK(lk_build_rows(b, op, "/kept", LK_CLASS_ACTIVATION, LK_F32,
                           steps * columns * d->k_count, &op->tensor[LK_AUX]));
    return lk_build_rows(b, op, "/before", LK_CLASS_ACTIVATION, LK_F32, steps * d->k_count,
                         &op->tensor[LK_X2]);
}

static lk_status declare_lstm(lk_builder *b, lk_op *op) { return declare(b, op, LK_LSTM_COLUMNS); }
static lk_status declare_gru(lk_builder *b, lk_op *op) { return declare(b, op, LK_GRU_COLUMNS); }

static lk_status differentiate_lstm(lk_builder *b, uint32_t of) {
    LK_CHECK(lk_build_input_gradient(b, &lk_op_lstm_backward, of, 0, false));
    lk_build_param_gradient(b, &lk_op_recurrent_weight_gradient, of, 0, 1);
    return LK_OK;
}

static lk_status differentiate_gru(lk_builder *b, uint32_t of) {
    lk_program *p = b->program;
    const lk_op *gru = &p->ops[of];
    const uint32_t number = p->op_count;
    LK_CHECK(lk_build_input_gradient(b, &lk_op_gru_backward, of, 0, false));
    if (p->op_count == number) return LK_OK;  // nothing before it learns
    lk_op *backward = &p->ops[number];
    const uint64_t floats = (uint64_t)gru->sequence.steps * gru->sequence.dense.n_count;
    backward->tensor[LK_X2] = gru->tensor[LK_X2];
    LK_CHECK(lk_build_rows(b, gru, "/gradient of sums", LK_CLASS_GRADIENT, (lk_dtype)gru->dtype,
                           floats, &backward->tensor[LK_DX2]));
    lk_build_param_gradient(b, &lk_op_recurrent_weight_gradient, of, 0, 1);
    if (gru->sequence.dense.use_bias) {
        lk_build_param_gradient(b, &lk_op_recurrent_bias_gradient, of, 1, 1);
    }
    return LK_OK;
}

// --- descriptors ---------------------------------------------------------------------------------

// States and sums of one time, gathered from all examples; a dense layer's scratch for the product.
static uint64_t forward_scratch(const lk_op *op, uint32_t m_count) {
    const lk_dense *d = &op->sequence.dense;
    return lk_round_up((uint64_t)m_count * d->k_count, 16) +
           lk_round_up((uint64_t)m_count * d->n_count, 16) + lk_dense_forward_scratch(op, m_count);
}

// The same of gradients; and what is carried.
static uint64_t backward_scratch(const lk_op *op, uint32_t m_count) {
    const lk_dense *d = &op->sequence.dense;
    return 2 * lk_round_up((uint64_t)m_count * d->k_count, 16) +
           lk_round_up((uint64_t)m_count * d->n_count, 16) +
           lk_dense_input_gradient_scratch(op, m_count);
}

// The products of a time but the first.
static lk_flop flop(const lk_op *op) {
    const lk_dense *d = &op->sequence.dense;
    const uint64_t all = 2ull * d->k_count * d->n_count * (op->sequence.steps - 1);
    return (lk_flop){all, all};
}

const lk_op_type lk_op_lstm = {.name = "lstm",
                               .suffix = "/lstm",
                               .number = LK_OP_LSTM,
                               .sequence = true,
                               .scope = LK_SCOPE_EXAMPLES,
                               .reference = lstm_forward,
                               .mixed = true,
                               .looks = true,
                               .scratch_floats = LK_RULE(forward_scratch),
                               .flop = LK_RULE(flop),
                               .declare = LK_RULE(declare_lstm),
                               .differentiate = LK_RULE(differentiate_lstm)};
const lk_op_type lk_op_lstm_backward = {.name = "lstm_backward",
                                        .number = LK_OP_LSTM_BACKWARD,
                                        .sequence = true,
                                        .scope = LK_SCOPE_EXAMPLES,
                                        .reference = lstm_backward,
                                        .mixed = true,
                                        .looks = true,
                                        .scratch_floats = LK_RULE(backward_scratch),
                                        .flop = LK_RULE(flop)};

const lk_op_type lk_op_gru = {.name = "gru",
                              .suffix = "/gru",
                              .number = LK_OP_GRU,
                              .sequence = true,
                              .scope = LK_SCOPE_EXAMPLES,
                              .reference = gru_forward,
                              .mixed = true,
                              .looks = true,
                              .scratch_floats = LK_RULE(forward_scratch),
                              .flop = LK_RULE(flop),
                              .declare = LK_RULE(declare_gru),
                              .differentiate = LK_RULE(differentiate_gru)};
const lk_op_type lk_op_gru_backward = {.name = "gru_backward",
                                       .number = LK_OP_GRU_BACKWARD,
                                       .sequence = true,
                                       .scope = LK_SCOPE_EXAMPLES,
                                       .reference = gru_backward,
                                       .mixed = true,
                                       .looks = true,
                                       .both = true,
                                       .scratch_floats = LK_RULE(backward_scratch),
                                       .flop = LK_RULE(flop)};

const lk_layer_type lk_layer_lstm = {
    .inputs = 1, .ops_max = 7, .tensors_max = 12, .params_max = 3, .build = build_lstm};
const lk_layer_type lk_layer_gru = {
    .inputs = 1, .ops_max = 8, .tensors_max = 14, .params_max = 4, .build = build_gru};

// --- words ---------------------------------------------------------------------------------------

// Keys that both have.
#define KEY_KERNEL_INITIALIZER                                                               \
    {                                                                                        \
        .name = "kernel_initializer", .kind = LK_SETTING_INITIALIZER,                        \
        .offset = offsetof(lk_layer, initializer), .field = "initializer",                   \
        .meaning = "initial values of the kernel; those of the recurrent one are orthogonal" \
    }
#define KEY_RETURN_SEQUENCES                                                   \
    {                                                                          \
        .name = "return_sequences", .kind = LK_SETTING_BOOL,                   \
        .offset = offsetof(lk_layer, return_sequences),                        \
        .meaning = "gives the state after every time, not only after the last" \
    }
#define KEY_UNITS                                                                             \
    {                                                                                         \
        .name = "units", .kind = LK_SETTING_U32, .offset = offsetof(lk_layer, units),         \
        .field = "units", .required = true, .most = 1 << 20, .meaning = "values of the state" \
    }
#define KEY_USE_BIAS(text)                                                                   \
    {                                                                                        \
        .name = "use_bias", .kind = LK_SETTING_BOOL, .offset = offsetof(lk_layer, use_bias), \
        .constant = true, .meaning = text                                                    \
    }

static const lk_setting lstm_keys[] = {
    KEY_KERNEL_INITIALIZER,
    LK_KEY_KERNEL_REGULARIZER,
    KEY_RETURN_SEQUENCES,
    {.name = "unit_forget_bias",
     .kind = LK_SETTING_BOOL,
     .offset = offsetof(lk_layer, forget_bias),
     .field = "forget_bias",
     .constant = true,
     .meaning = "biases of the forget gate start at one"},
    KEY_UNITS,
    KEY_USE_BIAS("adds a number to each gate"),
};

static const lk_setting gru_keys[] = {
    KEY_KERNEL_INITIALIZER,
    LK_KEY_KERNEL_REGULARIZER,
    {.name = "reset_after",
     .kind = LK_SETTING_BOOL,
     .offset = offsetof(lk_layer, reset_after),
     .constant = true,
     .meaning = "the reset gate takes what the recurrent kernel makes of the state; only true"},
    KEY_RETURN_SEQUENCES,
    KEY_UNITS,
    KEY_USE_BIAS("adds a number to each gate, and one to what the recurrent kernel gives"),
};

// From (batch, features, time, 1) to (time, batch, features), and back from (time, 1, batch,
// units); the last state alone is the second output, (1, batch, units).
static lk_export_node *say_recurrent(lk_export *e, const lk_layer *l, const char *type) {
    static const int64_t column[] = {3}, direction[] = {0};
    static const int64_t times_first[] = {2, 0, 1}, back[] = {2, 3, 0, 1};
    lk_export_constant(lk_export_node_add(e, "Squeeze"), 1, column);
    lk_export_ints(lk_export_node_named(e, "Transpose", "Times"), "perm", 3, times_first);
    lk_export_node *node = lk_export_node_add(e, type);
    node->parameters = LK_EXPORT_KERNEL | LK_EXPORT_RECURRENT | LK_EXPORT_BIAS;
    lk_export_int(node, "hidden_size", l->units);
    e->out = (lk_export_value){.flat = !l->return_sequences, .channels = l->units};
    if (l->return_sequences) {
        lk_export_ints(lk_export_node_add(e, "Transpose"), "perm", 4, back);
        e->out.times = e->op->sequence.steps;
        return node;
    }
    node->output = 1;
    lk_export_constant(lk_export_node_named(e, "Squeeze", "State"), 1, direction);
    return node;
}

static void say_lstm(lk_export *e, const lk_layer *l) { (void)say_recurrent(e, l, "LSTM"); }

static void say_gru(lk_export *e, const lk_layer *l) {
    lk_export_int(say_recurrent(e, l, "GRU"), "linear_before_reset", 1);
}

const lk_layer_words lk_layer_words_lstm = {
    .type = &lk_layer_lstm,
    .name = "lstm",
    .keys = lstm_keys,
    .key_count = LK_COUNT(lstm_keys),
    .meaning = "long short-term memory: a state that goes from time to time of a sequence",
    .say_export = say_lstm};

const lk_layer_words lk_layer_words_gru = {
    .type = &lk_layer_gru,
    .name = "gru",
    .keys = gru_keys,
    .key_count = LK_COUNT(gru_keys),
    .meaning = "gated recurrent unit: a state that goes from time to time of a sequence",
    .say_export = say_gru};
